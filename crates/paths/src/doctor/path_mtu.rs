//! Detects path MTU black holes: links that drop full-sized packets without an ICMP message.
//!
//! 1. A few kilobytes are sent over a plain TCP connection as the head of an HTTP request. The server's kernel
//!    acknowledges them, whatever its program does with them.
//! 2. If nothing is acknowledged, smaller segments are tried ([`COMMON_MTUS`]) over new connections. A link over
//!    which no size passes is not reported: it has another problem.
//! 3. Only the direction to the server is measured. Both directions of a link almost always have the same MTU.

use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use marline_core::finding::Finding;
use marline_net::links::Interface;
use marline_sys::tcp_info::TcpInfo;
use serde::Serialize;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

/// A link that drops full-sized packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct BlackHole {
    /// MTU of its interface.
    pub mtu: u32,
    /// The largest tested MTU that passes.
    pub passing_mtu: u32,
}

/// Common MTUs: jumbo frames, Ethernet, PPPoE, tunnels, mobile networks, and the minimum of IPv6.
const COMMON_MTUS: [u32; 13] = [9000, 1500, 1492, 1480, 1472, 1460, 1450, 1440, 1430, 1420, 1400, 1358, 1280];

/// Sends full-sized packets over the link, and smaller ones if those are lost.
///
/// # Errors
/// The connection failed.
pub(super) fn find_black_hole(link: &Interface, server: SocketAddr) -> io::Result<Option<BlackHole>> {
    let mtu = std::fs::read_to_string(format!("/sys/class/net/{}/mtu", link.name))?;
    let mtu: u32 = mtu.trim().parse().map_err(io::Error::other)?;
    if mtu_passes(link, server, mtu)? {
        return Ok(None);
    }
    let smaller: Vec<u32> = COMMON_MTUS.into_iter().filter(|size| *size < mtu).collect();
    // Sizes are in descending order, so those that pass are at the end.
    let mut result = Ok(true);
    let first_passing = smaller.partition_point(|size| match mtu_passes(link, server, *size) {
        Ok(is_passing) => !is_passing,
        Err(error) => {
            result = Err(error);
            false
        }
    });
    result?;
    Ok(smaller.get(first_passing).map(|passing_mtu| BlackHole { mtu, passing_mtu: *passing_mtu }))
}

/// Whether segments of packets of this size are acknowledged.
fn mtu_passes(link: &Interface, server: SocketAddr, mtu: u32) -> io::Result<bool> {
    let (domain, headers) = match server.ip() {
        IpAddr::V4(_) => (Domain::IPV4, 20 + 20),
        IpAddr::V6(_) => (Domain::IPV6, 40 + 20),
    };
    let mut socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
    socket.bind_device(Some(link.name.as_bytes()))?;
    socket.set_tcp_mss(mtu.saturating_sub(headers))?;
    socket.set_tcp_nodelay(true)?;
    socket.connect_timeout(&SockAddr::from(server), CONNECT_TIMEOUT)?;
    let length = SEGMENT_COUNT * mtu as usize;
    let request = format!(
        "GET / HTTP/1.1\r\nHost: {server}\r\nConnection: close\r\nX-Padding: {}\r\n\r\n",
        "0".repeat(length)
    );
    socket.set_write_timeout(Some(ACK_TIMEOUT))?;
    socket.write_all(request.as_bytes())?;
    let start = Instant::now();
    while start.elapsed() < ACK_TIMEOUT {
        let info = TcpInfo::query(&socket)?;
        // The SYN counts as one byte. A reset by the server proves that data arrived.
        if info.bytes_acked > u64::from(mtu) || socket.take_error()?.is_some() {
            return Ok(true);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(false)
}

/// The finding for a black hole.
pub(super) fn finding(link: &str, server: SocketAddr, black_hole: BlackHole) -> Finding {
    let BlackHole { mtu, passing_mtu } = black_hole;
    Finding::note(
        "path MTU",
        format!(
            "{link}: packets of {mtu} bytes to {server} are lost on the path without an ICMP message; packets of {passing_mtu} \
             bytes pass"
        ),
        format!(
            "`ip link set {link} mtu {passing_mtu}`, and the same in the configuration of the network; `net.ipv4.tcp_mtu_probing=1` \
             helps plain TCP"
        ),
    )
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(4);
/// Our choice: several retransmissions on a link with an RTT of half a second.
const ACK_TIMEOUT: Duration = Duration::from_secs(2);
/// Our choice: a request head of less than 8 KB at an MTU of 1500, which servers accept.
const SEGMENT_COUNT: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;
    use marline_net::links::list_interfaces;
    use marline_net::testing::{in_a_network, ip};
    use marline_sys::namespace::NetNs;
    use std::os::fd::{AsFd, AsRawFd};

    #[test]
    fn a_black_hole_is_found_with_the_size_that_passes() {
        in_a_network(|| {
            let server_netns = NetNs::new().unwrap();
            let netns_path = format!("/proc/{}/fd/{}", std::process::id(), server_netns.as_fd().as_raw_fd());
            ip(&format!("link add c1 type veth peer name s1 netns {netns_path}"));
            ip("address add 10.1.0.2/24 dev c1");
            // Packets are dropped by size, so aggregated packets (GSO) must not be larger than on the wire.
            ip("link set c1 up gso_max_segs 1");
            let server = server_netns
                .run(|| {
                    ip("link set lo up");
                    ip("address add 10.1.0.1/24 dev s1");
                    ip("link set s1 up");
                    let server = std::net::TcpListener::bind("10.1.0.1:0")?;
                    // It accepts segments of any size, but its interface drops packets above its MTU.
                    ip("link set s1 mtu 1434");
                    ip("route replace 10.1.0.0/24 dev s1 src 10.1.0.1 advmss 1460");
                    Ok(server)
                })
                .unwrap();
            let address = server.local_addr().unwrap();
            let survey = list_interfaces().unwrap();
            let link = survey.interfaces.iter().find(|link| link.name == "c1").unwrap();
            let found = find_black_hole(link, address).unwrap();
            assert_eq!(found, Some(BlackHole { mtu: 1500, passing_mtu: 1430 }));
            let result = finding("c1", address, found.unwrap());
            assert!(
                result.message.contains("packets of 1430 bytes pass")
                    && result.remedy.contains("ip link set c1 mtu 1430")
            );
            server_netns
                .run(|| {
                    ip("link set s1 mtu 1500");
                    Ok(())
                })
                .unwrap();
            assert_eq!(find_black_hole(link, address).unwrap(), None);
        });
    }
}
