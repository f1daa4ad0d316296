//! UDP sockets for RTP and RTCP: pairs of an even port and the next one (RFC 3550 section 11), bound to a link or to the loopback.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use marline_sys::device::bind_to_device;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use tokio::net::UdpSocket;

use crate::proto::rtsp_transport::PortPair;

/// Sockets of one track and direction: RTP on an even port, RTCP on the next one.
#[derive(Debug)]
pub(crate) struct SocketPair {
    pub(crate) media: UdpSocket,
    pub(crate) rtcp: UdpSocket,
}

impl SocketPair {
    /// Binds a pair to a device, for one address family.
    pub(crate) fn on_link(device: &str, is_v6: bool) -> io::Result<Self> {
        let any = if is_v6 { IpAddr::from(Ipv6Addr::UNSPECIFIED) } else { Ipv4Addr::UNSPECIFIED.into() };
        Self::bind_pair(any, Some(device))
    }

    /// Binds a pair to an address of this host.
    pub(crate) fn on_address(ip: IpAddr) -> io::Result<Self> {
        Self::bind_pair(ip, None)
    }

    /// Ports of RTP and RTCP.
    pub(crate) fn ports(&self) -> io::Result<PortPair> {
        Ok((self.media.local_addr()?.port(), self.rtcp.local_addr()?.port()))
    }

    fn bind_pair(ip: IpAddr, device: Option<&str>) -> io::Result<Self> {
        let mut last_error = io::Error::from(io::ErrorKind::AddrInUse);
        for _ in 0..ATTEMPTS {
            let media = bind_udp(SocketAddr::new(ip, 0), device)?;
            let port = media.local_addr()?.port();
            // The kernel may choose an odd port: then the pair is this port and the even one below it.
            let pair = if port % 2 == 0 { (port, port.checked_add(1)) } else { (port & !1, Some(port)) };
            let (even, Some(odd)) = pair else { continue };
            let both = if port == even {
                bind_udp(SocketAddr::new(ip, odd), device).map(|rtcp| Self { media, rtcp })
            } else {
                bind_udp(SocketAddr::new(ip, even), device).map(|even| Self { media: even, rtcp: media })
            };
            match both {
                Ok(pair) => return Ok(pair),
                Err(error) => last_error = error,
            }
        }
        Err(last_error)
    }
}

/// Binds one UDP socket, to a device if one is given.
pub(crate) fn bind_udp(at: SocketAddr, device: Option<&str>) -> io::Result<UdpSocket> {
    let domain = if at.is_ipv6() { Domain::IPV6 } else { Domain::IPV4 };
    let socket = Socket::new(domain, Type::DGRAM.nonblocking().cloexec(), Some(Protocol::UDP))?;
    if let Some(device) = device {
        bind_to_device(&socket, device)?;
    }
    // Best effort: the kernel limits the size to net.core.rmem_max.
    let _ = socket.set_recv_buffer_size(RECV_BUFFER);
    socket.bind(&SockAddr::from(at))?;
    UdpSocket::from_std(socket.into())
}

/// Checks that this process may bind sockets to a device.
pub(crate) fn check_link(device: &str) -> io::Result<()> {
    bind_udp((Ipv4Addr::UNSPECIFIED, 0).into(), Some(device)).map(drop)
}

/// Pairs to try. Of the thousands of ephemeral ports few are in use, so that one attempt mostly succeeds.
const ATTEMPTS: usize = 64;
/// Receive buffer in bytes: 0.4 s at 20 Mbit/s.
const RECV_BUFFER: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_pair_has_an_even_port_and_the_next_one() {
        for pair in
            [SocketPair::on_address(Ipv4Addr::LOCALHOST.into()).unwrap(), SocketPair::on_link("lo", false).unwrap()]
        {
            let (media, rtcp) = pair.ports().unwrap();
            assert_eq!((media % 2, rtcp), (0, media + 1));
        }
        assert!(check_link("nosuch0").is_err());
    }
}
