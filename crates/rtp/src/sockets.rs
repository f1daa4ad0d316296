//! Sockets for media: pairs of ports as RTP has them, bound to a link or to the loopback.
//!
//! In: a device, a family. Out: two sockets, the first one's port even (RFC 3550 §11).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use marline_sys::device::bind_to_device;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use tokio::net::UdpSocket;

use crate::proto::rtsp_transport::PortPair;

/// For media, and for its reports.
#[derive(Debug)]
pub(crate) struct SocketPair {
    pub(crate) media: UdpSocket,
    pub(crate) rtcp: UdpSocket,
}

impl SocketPair {
    /// Bound to a device, with addresses of this family.
    pub(crate) fn on_link(device: &str, is_v6: bool) -> io::Result<Self> {
        let any = if is_v6 { IpAddr::from(Ipv6Addr::UNSPECIFIED) } else { Ipv4Addr::UNSPECIFIED.into() };
        Self::bind_pair(any, Some(device))
    }

    /// On an address of this machine.
    pub(crate) fn on_address(ip: IpAddr) -> io::Result<Self> {
        Self::bind_pair(ip, None)
    }

    /// Their ports.
    pub(crate) fn ports(&self) -> io::Result<PortPair> {
        Ok((self.media.local_addr()?.port(), self.rtcp.local_addr()?.port()))
    }

    fn bind_pair(ip: IpAddr, device: Option<&str>) -> io::Result<Self> {
        let mut why = io::Error::from(io::ErrorKind::AddrInUse);
        for _ in 0..ATTEMPTS {
            let media = bind_udp(SocketAddr::new(ip, 0), device)?;
            let port = media.local_addr()?.port();
            // The kernel gives odd ones to those that bind, mostly; the pair is then the one above.
            let pair = if port % 2 == 0 { (port, port.checked_add(1)) } else { (port & !1, Some(port)) };
            let (even, Some(odd)) = pair else { continue };
            let both = if port == even {
                bind_udp(SocketAddr::new(ip, odd), device).map(|rtcp| Self { media, rtcp })
            } else {
                bind_udp(SocketAddr::new(ip, even), device).map(|even| Self { media: even, rtcp: media })
            };
            match both {
                Ok(pair) => return Ok(pair),
                Err(error) => why = error,
            }
        }
        Err(why)
    }
}

/// One socket for what is sent over a device; nobody is answered there.
pub(crate) fn bind_udp(at: SocketAddr, device: Option<&str>) -> io::Result<UdpSocket> {
    let domain = if at.is_ipv6() { Domain::IPV6 } else { Domain::IPV4 };
    let socket = Socket::new(domain, Type::DGRAM.nonblocking().cloexec(), Some(Protocol::UDP))?;
    if let Some(device) = device {
        bind_to_device(&socket, device)?;
    }
    // What the kernel permits at most is enough where it is less.
    let _ = socket.set_recv_buffer_size(RECV_BUFFER);
    socket.bind(&SockAddr::from(at))?;
    UdpSocket::from_std(socket.into())
}

/// Whether sockets may be bound to a device.
pub(crate) fn check_link(device: &str) -> io::Result<()> {
    bind_udp((Ipv4Addr::UNSPECIFIED, 0).into(), Some(device)).map(drop)
}

/// chosen: a few of thousands are taken on any machine.
const ATTEMPTS: usize = 64;
/// chosen: a third of a second of 20 Mbit/s.
const RECV_BUFFER: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_pair_has_an_even_port_and_the_next_one() {
        for pair in
            [SocketPair::on_address(Ipv4Addr::LOCALHOST.into()).unwrap(), SocketPair::on_link("lo", false).unwrap()]
        {
            let (media, rtcp) = pair.ports().unwrap();
            assert_eq!((media % 2, rtcp), (0, media + 1));
        }
        assert!(check_link("nosuch0").is_err());
    }
}
