//! Whether MPTCP's option gets through each link: one connection per link to a server that the user names.
//!
//! In: HOST:PORT and the links. Out: for each link whether the option came back with the answer.
//!
//! 1. Nothing is sent over this connection but the handshake. Where it comes about, another one shows whether full-sized packets
//!    pass ([`path_mtu`]).
//! 2. Each socket is bound to its device, so that no rule or metric decides.
//! 3. A single link that gives the option back proves that the server speaks MPTCP; then a link that does not strips
//!    it. Where none does, it may be the server.
//! 4. A link that drops packets with the option is another matter than one that strips it: each connection takes seconds, and
//!    the kernel then asks nobody for MPTCP for an hour (`blackhole`). It shows in the kernel's count of dropped packets
//!    and in the time that the connection took.
//! 5. While MPTCP is off nothing is tried: the answers would tell of plain TCP. A loopback address is on no link.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

use marline_net::links::Interface;
use serde::Serialize;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::Finding;
use super::facts::speaks;
use super::netstat::counters;
use super::path_mtu::{self, BlackHole};

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
    /// Full-sized packets to the server are lost over the link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub black_hole: Option<BlackHole>,
}

/// What came of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "verdict", content = "why")]
pub enum Verdict {
    /// The option came back.
    Speaks,
    /// The answer had no option.
    Plain,
    /// What bore the option was lost, what did not was answered.
    Dropped,
    /// The server is there, and nobody listens.
    Refused,
    /// No connection came about.
    Failed(String),
    /// Not tried: this machine asks nobody for MPTCP now.
    Off,
    /// Not tried: the server is this machine itself.
    Loopback,
    /// Not tried: no link has an address of the server's family.
    NoWay,
}

/// chosen: more than three SYN packets, after two of which the kernel tries without the option.
const PATIENCE: Duration = Duration::from_secs(8);
/// Two packets were lost, if not all: SYNs go out at 0 s, 1 s and 2 or 3 s (`tcp_syn_linear_timeouts`).
const LOST: Duration = Duration::from_millis(1900);

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

/// Connects over each link, side by side, to the first address of a family that the link has. `off`: this machine asks nobody
/// for MPTCP now, and nothing is tried.
pub fn probe(links: &[Interface], addresses: &[SocketAddr], off: bool) -> Vec<Probed> {
    let untried = |server: &SocketAddr, verdict| {
        vec![Probed { link: String::new(), server: *server, verdict, proved: false, black_hole: None }]
    };
    let Some(first) = addresses.first() else { return Vec::new() };
    let far: Vec<SocketAddr> = addresses.iter().filter(|address| !address.ip().is_loopback()).copied().collect();
    if far.is_empty() {
        return untried(first, Verdict::Loopback);
    }
    if off {
        return untried(first, Verdict::Off);
    }
    let dropped = syns_dropped();
    let mut probed = side_by_side(links, &far);
    if probed.is_empty() {
        return untried(first, Verdict::NoWay);
    }
    let dropped = syns_dropped() > dropped;
    let proved = probed.iter().any(|(probed, _)| probed.verdict == Verdict::Speaks);
    for (probed, took) in &mut probed {
        probed.proved = proved;
        if probed.verdict == Verdict::Plain && dropped && *took >= LOST {
            probed.verdict = Verdict::Dropped;
        }
    }
    probed.into_iter().map(|(probed, _)| probed).collect()
}

/// What came of each link, and how long it took.
fn side_by_side(links: &[Interface], addresses: &[SocketAddr]) -> Vec<(Probed, Duration)> {
    let reaches = |link: &Interface, server: &SocketAddr| match server.ip() {
        IpAddr::V4(_) => link.has_v4(),
        IpAddr::V6(_) => link.has_v6(),
    };
    let timed = |link, server| {
        let started = Instant::now();
        let (result, took) = (connect(link, server), started.elapsed());
        let black_hole = result.as_ref().ok().and_then(|_| path_mtu::look(link, server).ok().flatten());
        (result, took, black_hole)
    };
    std::thread::scope(|scope| {
        let tries: Vec<_> = links
            .iter()
            .filter_map(|link| Some((link, *addresses.iter().find(|server| reaches(link, server))?)))
            .map(|(link, server)| (link, server, scope.spawn(move || timed(link, server))))
            .collect();
        let ended = |(link, server, tried): (&Interface, SocketAddr, std::thread::ScopedJoinHandle<'_, _>)| {
            let broken = |_| (Err(io::Error::other("the attempt broke off")), Duration::ZERO, None);
            let (result, took, black_hole) = tried.join().unwrap_or_else(broken);
            let verdict = verdict(result);
            (Probed { link: link.name.clone(), server, verdict, proved: false, black_hole }, took)
        };
        tries.into_iter().map(ended).collect()
    })
}

fn verdict(result: io::Result<bool>) -> Verdict {
    match result {
        Ok(true) => Verdict::Speaks,
        Ok(false) => Verdict::Plain,
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Verdict::Refused,
        Err(error) => Verdict::Failed(error.to_string()),
    }
}

/// How often the kernel has given up asking for MPTCP because nothing that asked for it was answered.
fn syns_dropped() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/net/netstat").unwrap_or_default();
    counters(&text).get("MPCapableSYNTXDrop").copied().unwrap_or(0)
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
    let Probed { link, server, verdict, proved, .. } = probed;
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
        Verdict::Dropped => Finding::note(
            NAME,
            format!("{link}: packets with MPTCP's option to {server} are dropped on the way; without it they pass"),
            format!(
                "each connection over {link} begins seconds late, and the kernel then switches MPTCP off for all of this \
                 machine for a while (`blackhole`); ask whoever runs that network, or begin over another link (its metric)"
            ),
        ),
        Verdict::Refused => Finding::note(
            NAME,
            format!("{link}: {server} answers that nobody listens at this port: the link works"),
            "name a port at which a server listens that speaks MPTCP",
        ),
        Verdict::Off => Finding::note(
            NAME,
            format!(
                "{server} was not tried: MPTCP is off on this machine now, so nothing can be told of the links"
            ),
            "first switch it on, as another finding says; then probe again",
        ),
        Verdict::Loopback => Finding::note(
            NAME,
            format!("{server} was not tried: it is this machine itself, and says nothing about links"),
            "name a server that is reached over them",
        ),
        Verdict::NoWay => Finding::note(
            NAME,
            format!("{server} was not tried: no link has an address of its family"),
            "name a server with an address of the other family",
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
    use marline_net::links::list_interfaces;
    use marline_net::testing::{in_a_network, ip};

    use super::*;
    use crate::doctor::State;

    #[test]
    fn a_link_is_blamed_only_where_another_one_proves_the_server() {
        let probed = |verdict, proved| {
            let finding = finding(&Probed {
                link: "wwan0".into(),
                server: "192.0.2.1:80".parse().unwrap(),
                verdict,
                proved,
                black_hole: None,
            });
            (finding.state, finding.says)
        };
        assert_eq!(probed(Verdict::Speaks, true).0, State::Ok);
        assert!(probed(Verdict::Plain, true).1.contains("stripped on the way"));
        assert!(!probed(Verdict::Plain, false).1.contains("stripped"));
        assert!(probed(Verdict::Failed("timed out".into()), false).1.ends_with("192.0.2.1:80: timed out"));
        for proved in [true, false] {
            let (state, says) = probed(Verdict::Dropped, proved);
            assert!(state == State::Note && says.contains("dropped on the way") && !says.contains("stripped"));
        }
        assert!(probed(Verdict::Refused, false).1.ends_with("nobody listens at this port: the link works"));
        assert!(probed(Verdict::Off, false).1.contains("nothing can be told of the links"));
        assert!(probed(Verdict::Loopback, false).1.contains("says nothing about links"));
    }

    #[test]
    fn what_would_tell_nothing_is_not_tried() {
        let at = |address: &str| -> SocketAddr { address.parse().unwrap() };
        let verdict = |addresses: &[SocketAddr], off| probe(&[], addresses, off).remove(0).verdict;
        assert_eq!(verdict(&[at("[::1]:80"), at("127.0.0.1:80")], false), Verdict::Loopback);
        assert_eq!(verdict(&[at("192.0.2.1:80")], true), Verdict::Off);
        assert_eq!(verdict(&[at("192.0.2.1:80")], false), Verdict::NoWay);
    }

    #[test]
    fn servers_with_and_without_mptcp_are_told_apart() {
        in_a_network(|| {
            if !crate::ground::Settings::system().has_mptcp() {
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
            let survey = list_interfaces().unwrap();
            let lo = [survey.loopback().unwrap().clone()];
            let verdict = |server: &Socket| {
                let address = server.local_addr().unwrap().as_socket().unwrap();
                std::thread::scope(|scope| {
                    // Sockets are of the network of the thread that makes them, and so are those of its children.
                    scope.spawn(|| probe(&lo, &[address], false).remove(0).verdict).join().unwrap()
                })
            };
            assert_eq!(verdict(&speaks), Verdict::Speaks);
            assert_eq!(verdict(&plain), Verdict::Plain);
            drop(plain);
            assert_eq!(probe(&lo, &["10.1.0.2:1".parse().unwrap()], false)[0].verdict, Verdict::Refused);
        });
    }
}
