//! Tests whether MPTCP's option passes each link: one connection per link to a server that the user names.
//!
//! 1. Only a handshake is sent over this connection. If it succeeds, another connection tests full-sized packets
//!    ([`path_mtu`]).
//! 2. Each socket is bound to its device, so that rules and metrics do not matter.
//! 3. A single link that returns the option proves that the server uses MPTCP; then a link that does not return it
//!    strips the option. If no link returns it, the server may lack MPTCP.
//! 4. Dropping packets with the option differs from stripping it: each connection is delayed by seconds, and the
//!    kernel then switches MPTCP off for an hour (`blackhole`). It is detected by the kernel's counter of dropped
//!    packets and the duration of the attempt.
//! 5. While MPTCP is off nothing is tested, because the results would concern plain TCP. A loopback address belongs
//!    to no link.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

use marline_core::finding::Finding;
use marline_net::links::Interface;
use serde::Serialize;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::facts::is_mptcp;
use super::path_mtu::{self, BlackHole};
use crate::kernel::read_mptcp_counters;

/// Result of one link.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct LinkProbe {
    /// Name of the link.
    pub link: String,
    /// Address of the server.
    pub server: SocketAddr,
    /// Result of the connection.
    pub verdict: ProbeVerdict,
    /// Whether any link proved that the server uses MPTCP.
    pub is_server_proven: bool,
    /// Set if full-sized packets to the server are lost over the link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub black_hole: Option<BlackHole>,
}

/// Result of a probe.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "verdict", content = "why")]
pub enum ProbeVerdict {
    /// The server returned the option.
    Mptcp,
    /// The reply had no option.
    PlainTcp,
    /// Packets with the option were lost; without it the server replied.
    Dropped,
    /// The server refused the connection: no program listens at this port.
    Refused,
    /// The connection failed.
    Failed(String),
    /// Not tested: MPTCP is off on this host now.
    MptcpOff,
    /// Not tested: the server is this host itself.
    Loopback,
    /// Not tested: no link has an address of the server's family.
    NoAddress,
}

/// Our choice: more than three SYN packets; after two the kernel continues without the option.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(8);
/// Duration that proves two lost packets: SYNs are sent at 0 s, 1 s and 2 or 3 s (`tcp_syn_linear_timeouts`).
const MIN_DROPPED_TIME: Duration = Duration::from_millis(1900);

/// Resolves HOST:PORT with this host's resolver.
///
/// # Errors
/// One line: the name or port is invalid.
pub fn resolve_server(server: &str) -> Result<Vec<SocketAddr>, String> {
    match server.to_socket_addrs() {
        Ok(addresses) => Ok(addresses.collect()),
        Err(error) => Err(format!("--probe {server}: {error}; name it as HOST:PORT")),
    }
}

/// Connects over all links concurrently, to the first address of a family that the link has. `is_mptcp_off`: nothing
/// is tested.
pub fn probe_links(links: &[Interface], addresses: &[SocketAddr], is_mptcp_off: bool) -> Vec<LinkProbe> {
    let not_tried = |server: &SocketAddr, verdict| {
        vec![LinkProbe { link: String::new(), server: *server, verdict, is_server_proven: false, black_hole: None }]
    };
    let Some(first) = addresses.first() else { return Vec::new() };
    let remote: Vec<SocketAddr> = addresses.iter().filter(|address| !address.ip().is_loopback()).copied().collect();
    if remote.is_empty() {
        return not_tried(first, ProbeVerdict::Loopback);
    }
    if is_mptcp_off {
        return not_tried(first, ProbeVerdict::MptcpOff);
    }
    let drops_before = count_dropped_syns();
    let mut probes = probe_concurrently(links, &remote);
    if probes.is_empty() {
        return not_tried(first, ProbeVerdict::NoAddress);
    }
    let has_drops = count_dropped_syns() > drops_before;
    let is_server_proven = probes.iter().any(|(probe, _)| probe.verdict == ProbeVerdict::Mptcp);
    for (probe, duration) in &mut probes {
        probe.is_server_proven = is_server_proven;
        if probe.verdict == ProbeVerdict::PlainTcp && has_drops && *duration >= MIN_DROPPED_TIME {
            probe.verdict = ProbeVerdict::Dropped;
        }
    }
    probes.into_iter().map(|(probe, _)| probe).collect()
}

/// Results of the links, with their durations.
fn probe_concurrently(links: &[Interface], addresses: &[SocketAddr]) -> Vec<(LinkProbe, Duration)> {
    let has_family = |link: &Interface, server: &SocketAddr| match server.ip() {
        IpAddr::V4(_) => link.has_v4(),
        IpAddr::V6(_) => link.has_v6(),
    };
    let probe_timed = |link, server| {
        let started = Instant::now();
        let (result, duration) = (connect_mptcp(link, server), started.elapsed());
        let black_hole = result.as_ref().ok().and_then(|_| path_mtu::find_black_hole(link, server).ok().flatten());
        (result, duration, black_hole)
    };
    std::thread::scope(|scope| {
        let attempts: Vec<_> = links
            .iter()
            .filter_map(|link| Some((link, *addresses.iter().find(|server| has_family(link, server))?)))
            .map(|(link, server)| (link, server, scope.spawn(move || probe_timed(link, server))))
            .collect();
        let to_probe = |(link, server, tried): (&Interface, SocketAddr, std::thread::ScopedJoinHandle<'_, _>)| {
            let panicked = |_| (Err(io::Error::other("the attempt failed unexpectedly")), Duration::ZERO, None);
            let (result, duration, black_hole) = tried.join().unwrap_or_else(panicked);
            let verdict = verdict_of(result);
            (LinkProbe { link: link.name.clone(), server, verdict, is_server_proven: false, black_hole }, duration)
        };
        attempts.into_iter().map(to_probe).collect()
    })
}

fn verdict_of(result: io::Result<bool>) -> ProbeVerdict {
    match result {
        Ok(true) => ProbeVerdict::Mptcp,
        Ok(false) => ProbeVerdict::PlainTcp,
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => ProbeVerdict::Refused,
        Err(error) => ProbeVerdict::Failed(error.to_string()),
    }
}

/// Number of times that the kernel continued without MPTCP because SYNs with the option got no reply.
fn count_dropped_syns() -> u64 {
    read_mptcp_counters().get("MPCapableSYNTXDrop").copied().unwrap_or(0)
}

fn connect_mptcp(link: &Interface, server: SocketAddr) -> io::Result<bool> {
    let domain = if server.is_ipv4() { Domain::IPV4 } else { Domain::IPV6 };
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::MPTCP))?;
    socket.bind_device(Some(link.name.as_bytes()))?;
    socket.connect_timeout(&SockAddr::from(server), CONNECT_TIMEOUT)?;
    is_mptcp(&socket, link.index)
}

/// The finding for a probe.
pub(super) fn finding(probed: &LinkProbe) -> Finding {
    const NAME: &str = "probe";
    let LinkProbe { link, server, verdict, is_server_proven, .. } = probed;
    match verdict {
        ProbeVerdict::Mptcp => Finding::ok(NAME, format!("{link}: {server} replies with MPTCP's option")),
        ProbeVerdict::PlainTcp if *is_server_proven => Finding::note(
            NAME,
            format!("{link}: MPTCP's option is stripped on the path to {server}, which uses it over another link"),
            format!(
                "connections that begin over {link} stay plain TCP; contact the operator of that network, or begin over another link (its metric)"
            ),
        ),
        ProbeVerdict::PlainTcp => Finding::note(
            NAME,
            format!("{link}: {server} replies without MPTCP's option"),
            "the server does not support it, or every link strips it: try a server that is known to support it",
        ),
        ProbeVerdict::Dropped => Finding::note(
            NAME,
            format!(
                "{link}: packets with MPTCP's option to {server} are dropped on the path; packets without it pass"
            ),
            format!(
                "each connection over {link} begins seconds late, and the kernel then switches MPTCP off for all of this \
                 machine for a while (`blackhole`); contact the operator of that network, or begin over another link (its metric)"
            ),
        ),
        ProbeVerdict::Refused => Finding::note(
            NAME,
            format!("{link}: {server} refuses connections at this port: the link works"),
            "give the port of a server with MPTCP",
        ),
        ProbeVerdict::MptcpOff => Finding::note(
            NAME,
            format!(
                "{server} was not tested: MPTCP is off on this host now, so the result would say nothing about the links"
            ),
            "switch it on as described in another finding, then probe again",
        ),
        ProbeVerdict::Loopback => Finding::note(
            NAME,
            format!("{server} was not tested: it is this host itself and not reached over links"),
            "give a server that is reached over them",
        ),
        ProbeVerdict::NoAddress => Finding::note(
            NAME,
            format!("{server} was not tested: no link has an address of its family"),
            "give a server with an address of the other family",
        ),
        ProbeVerdict::Failed(reason) => Finding::note(
            NAME,
            format!("{link}: no connection to {server}: {reason}"),
            format!("test whether {link} works at all: `curl --interface {link} …`"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use marline_net::links::list_interfaces;
    use marline_net::testing::{in_a_network, ip};

    use super::*;
    use marline_core::finding::Severity;

    #[test]
    fn a_link_is_blamed_only_where_another_one_proves_the_server() {
        let probed = |verdict, is_server_proven| {
            let finding = finding(&LinkProbe {
                link: "wwan0".into(),
                server: "192.0.2.1:80".parse().unwrap(),
                verdict,
                is_server_proven,
                black_hole: None,
            });
            (finding.severity, finding.message)
        };
        assert_eq!(probed(ProbeVerdict::Mptcp, true).0, Severity::Ok);
        assert!(probed(ProbeVerdict::PlainTcp, true).1.contains("stripped on the path"));
        assert!(!probed(ProbeVerdict::PlainTcp, false).1.contains("stripped"));
        assert!(probed(ProbeVerdict::Failed("timed out".into()), false).1.ends_with("192.0.2.1:80: timed out"));
        for is_server_proven in [true, false] {
            let (state, message) = probed(ProbeVerdict::Dropped, is_server_proven);
            assert!(
                state == Severity::Note && message.contains("dropped on the path") && !message.contains("stripped")
            );
        }
        assert!(
            probed(ProbeVerdict::Refused, false).1.ends_with("refuses connections at this port: the link works")
        );
        assert!(probed(ProbeVerdict::MptcpOff, false).1.contains("the result would say nothing about the links"));
        assert!(probed(ProbeVerdict::Loopback, false).1.contains("not reached over links"));
    }

    #[test]
    fn pointless_probes_are_not_made() {
        let parse_addr = |address: &str| -> SocketAddr { address.parse().unwrap() };
        let verdict =
            |addresses: &[SocketAddr], is_mptcp_off| probe_links(&[], addresses, is_mptcp_off).remove(0).verdict;
        assert_eq!(verdict(&[parse_addr("[::1]:80"), parse_addr("127.0.0.1:80")], false), ProbeVerdict::Loopback);
        assert_eq!(verdict(&[parse_addr("192.0.2.1:80")], true), ProbeVerdict::MptcpOff);
        assert_eq!(verdict(&[parse_addr("192.0.2.1:80")], false), ProbeVerdict::NoAddress);
    }

    #[test]
    fn servers_with_and_without_mptcp_are_distinguished() {
        in_a_network(|| {
            if !crate::host_config::Sysctls::of_system().has_mptcp() {
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
            let (mptcp_server, tcp_server) = (listen(Protocol::MPTCP), listen(Protocol::TCP));
            let survey = list_interfaces().unwrap();
            let lo = [survey.loopback().unwrap().clone()];
            let verdict = |server: &Socket| {
                let address = server.local_addr().unwrap().as_socket().unwrap();
                std::thread::scope(|scope| {
                    // Sockets belong to the network namespace of the thread that creates them, which its child
                    // threads inherit.
                    scope.spawn(|| probe_links(&lo, &[address], false).remove(0).verdict).join().unwrap()
                })
            };
            assert_eq!(verdict(&mptcp_server), ProbeVerdict::Mptcp);
            assert_eq!(verdict(&tcp_server), ProbeVerdict::PlainTcp);
            drop(tcp_server);
            assert_eq!(probe_links(&lo, &["10.1.0.2:1".parse().unwrap()], false)[0].verdict, ProbeVerdict::Refused);
        });
    }
}
