//! Whether MPTCP's option gets through each link: one connection per link to a server that the user names.
//!
//! In: HOST:PORT and the links. Out: for each link whether the option came back with the answer.
//!
//! 1. Nothing is sent but the handshake; the connection is then closed.
//! 2. Each socket is bound to its device, so that no rule or metric decides.
//! 3. A single link that gives the option back proves that the server speaks MPTCP; then a link that does not strips
//!    it. Where none does, it may be the server.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::time::Duration;

use serde::Serialize;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::Finding;
use super::facts::speaks;
use crate::links::Interface;

/// What came of one link.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Probed {
    /// The link.
    pub link: String,
    /// Where to.
    pub server: SocketAddr,
    /// What came of it.
    pub verdict: Verdict,
    /// Whether some link proved that the server speaks MPTCP.
    pub proved: bool,
}

/// What came of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "verdict", content = "why")]
pub enum Verdict {
    /// The option came back.
    Speaks,
    /// The answer had no option.
    Plain,
    /// No connection came about.
    Failed(String),
}

/// chosen: more than three SYN packets, after two of which the kernel tries without the option.
const PATIENCE: Duration = Duration::from_secs(8);

/// The addresses of HOST:PORT, by this machine's own resolver.
///
/// # Errors
/// One line: the name or the port is none.
pub fn addresses(server: &str) -> Result<Vec<SocketAddr>, String> {
    match server.to_socket_addrs() {
        Ok(addresses) => Ok(addresses.collect()),
        Err(error) => Err(format!("--probe {server}: {error}; name it as HOST:PORT")),
    }
}

/// Connects over each link, side by side, to the first address of a family that the link has.
pub fn probe(links: &[Interface], addresses: &[SocketAddr]) -> Vec<Probed> {
    let reaches = |link: &Interface, server: &SocketAddr| match server.ip() {
        IpAddr::V4(_) => link.has_v4(),
        IpAddr::V6(_) => link.has_v6(),
    };
    let mut probed: Vec<Probed> = std::thread::scope(|scope| {
        let tries: Vec<_> = links
            .iter()
            .filter_map(|link| Some((link, *addresses.iter().find(|server| reaches(link, server))?)))
            .map(|(link, server)| (link, server, scope.spawn(move || connect(link, server))))
            .collect();
        let verdict = |result: io::Result<bool>| match result {
            Ok(true) => Verdict::Speaks,
            Ok(false) => Verdict::Plain,
            Err(error) => Verdict::Failed(error.to_string()),
        };
        let ended = |(link, server, tried): (&Interface, SocketAddr, std::thread::ScopedJoinHandle<'_, _>)| {
            let result = tried.join().unwrap_or_else(|_| Err(io::Error::other("the attempt broke off")));
            Probed { link: link.name.clone(), server, verdict: verdict(result), proved: false }
        };
        tries.into_iter().map(ended).collect()
    });
    let proved = probed.iter().any(|probed| probed.verdict == Verdict::Speaks);
    probed.iter_mut().for_each(|probed| probed.proved = proved);
    probed
}

fn connect(link: &Interface, server: SocketAddr) -> io::Result<bool> {
    let domain = if server.is_ipv4() { Domain::IPV4 } else { Domain::IPV6 };
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::MPTCP))?;
    socket.bind_device(Some(link.name.as_bytes()))?;
    socket.connect_timeout(&SockAddr::from(server), PATIENCE)?;
    speaks(&socket, link.index)
}

/// What it comes to.
pub(super) fn finding(probed: &Probed) -> Finding {
    const NAME: &str = "probe";
    let Probed { link, server, verdict, proved } = probed;
    match verdict {
        Verdict::Speaks => Finding::ok(NAME, format!("{link}: {server} answers with MPTCP's option")),
        Verdict::Plain if *proved => Finding::note(
            NAME,
            format!("{link}: MPTCP's option is stripped on the way to {server}, which speaks it over another link"),
            format!(
                "connections that begin over {link} stay plain TCP; ask whoever runs that network, or begin over another link (its metric)"
            ),
        ),
        Verdict::Plain => Finding::note(
            NAME,
            format!("{link}: {server} answers without MPTCP's option"),
            "the server does not speak it, or every link strips it: try one that is known to speak it",
        ),
        Verdict::Failed(why) => Finding::note(
            NAME,
            format!("{link}: no connection to {server}: {why}"),
            format!("see whether {link} works at all: `curl --interface {link} …`"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::links::live::{in_a_network, ip};
    use crate::links::survey;
    use crate::paths::doctor::State;

    #[test]
    fn a_link_is_blamed_only_where_another_one_proves_the_server() {
        let probed = |verdict, proved| {
            let finding =
                finding(&Probed { link: "wwan0".into(), server: "192.0.2.1:80".parse().unwrap(), verdict, proved });
            (finding.state, finding.says)
        };
        assert_eq!(probed(Verdict::Speaks, true).0, State::Ok);
        assert!(probed(Verdict::Plain, true).1.contains("stripped on the way"));
        assert!(!probed(Verdict::Plain, false).1.contains("stripped"));
        assert!(probed(Verdict::Failed("timed out".into()), false).1.ends_with("192.0.2.1:80: timed out"));
    }

    #[test]
    fn servers_with_and_without_mptcp_are_told_apart() {
        in_a_network(|| {
            if !crate::paths::ground::Settings::system().has_mptcp() {
                eprintln!("skipped: this kernel has no MPTCP");
                return;
            }
            ip("address add 10.1.0.2/24 dev lo");
            let listen = |protocol| {
                let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(protocol)).unwrap();
                socket.bind(&SockAddr::from(SocketAddr::from(([10, 1, 0, 2], 0)))).unwrap();
                socket.listen(8).unwrap();
                socket
            };
            let (speaks, plain) = (listen(Protocol::MPTCP), listen(Protocol::TCP));
            let survey = survey().unwrap();
            let lo = [survey.loopback().unwrap().clone()];
            let verdict = |server: &Socket| {
                let address = server.local_addr().unwrap().as_socket().unwrap();
                std::thread::scope(|scope| {
                    // Sockets are of the network of the thread that makes them, and so are those of its children.
                    scope.spawn(|| probe(&lo, &[address]).remove(0).verdict).join().unwrap()
                })
            };
            assert_eq!(verdict(&speaks), Verdict::Speaks);
            assert_eq!(verdict(&plain), Verdict::Plain);
            drop(plain);
            assert!(
                matches!(&probe(&lo, &["10.1.0.2:1".parse().unwrap()])[0].verdict, Verdict::Failed(why) if why.contains("refused"))
            );
        });
    }
}
