//! Packet capture on an interface, in both directions: an `AF_PACKET` socket.
//!
//! The socket is non-blocking. Packets start with the IP header (`SOCK_DGRAM`: the kernel removes the link-layer
//! header). What else arrives on the interface, such as ARP, is captured too unless the filter drops it.
//!
//! 1. The filter is attached before the socket receives anything, so no unwanted packet arrives.
//! 2. Packets that do not fit into the socket's receive buffer are dropped by the kernel, which counts them
//!    ([`take_drop_count`]).

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// One instruction of a classic BPF filter: code, jump offsets if true and if false, and operand. The filter returns
/// how many bytes of a packet are kept; 0 drops it.
pub type Instruction = (u16, u8, u8, u32);

/// Opens the socket on the interface with this index.
///
/// # Errors
/// Without CAP_NET_RAW; no such interface; a filter that the kernel refuses.
pub fn open_socket(index: u32, filter: &[Instruction]) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    // Without a protocol it receives nothing until it is bound to one.
    let socket = socket_with(AddressFamily::PACKET, SocketType::DGRAM, flags, None)?;
    attach_filter(&socket, filter)?;
    bind_to_interface(&socket, index)?;
    Ok(socket)
}

/// Replaces the filter of the socket.
///
/// # Errors
/// The kernel refuses the filter; the previous one remains.
pub fn attach_filter(socket: impl AsFd, filter: &[Instruction]) -> io::Result<()> {
    let code = |&(code, jt, jf, k): &Instruction| libc::sock_filter { code, jt, jf, k };
    let mut filter: Vec<libc::sock_filter> = filter.iter().map(code).collect();
    let length = u16::try_from(filter.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let program = libc::sock_fprog { len: length, filter: filter.as_mut_ptr() };
    let (fd, size) = (socket.as_fd().as_raw_fd(), size_of_val(&program) as libc::socklen_t);
    // SAFETY: `fd` is open for the call; the kernel copies `program` and the instructions that it names.
    super::check(unsafe {
        libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, (&raw const program).cast(), size)
    })?;
    Ok(())
}

fn bind_to_interface(socket: impl AsFd, index: u32) -> io::Result<()> {
    // SAFETY: an all-zero `sockaddr_ll` is valid.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as _;
    // Outgoing packets are passed only to sockets for all protocols.
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = i32::try_from(index).map_err(|_| io::ErrorKind::InvalidInput)?;
    let (fd, size) = (socket.as_fd().as_raw_fd(), size_of_val(&address) as libc::socklen_t);
    // SAFETY: `fd` is open for the call, and `size` is the length of `address`.
    super::check(unsafe { libc::bind(fd, (&raw const address).cast(), size) })?;
    Ok(())
}

/// Number of packets dropped for lack of buffer space since the last call (the first: since the socket was opened).
///
/// # Errors
/// Not a packet socket.
pub fn take_drop_count(socket: impl AsFd) -> io::Result<u32> {
    // SAFETY: an all-zero `tpacket_stats` is valid.
    let mut stats: libc::tpacket_stats = unsafe { std::mem::zeroed() };
    let (fd, mut size) = (socket.as_fd().as_raw_fd(), size_of_val(&stats) as libc::socklen_t);
    // SAFETY: `fd` is open for the call, and `size` is the size of what the kernel fills.
    super::check(unsafe {
        libc::getsockopt(fd, libc::SOL_PACKET, libc::PACKET_STATISTICS, (&raw mut stats).cast(), &mut size)
    })?;
    Ok(stats.tp_drops)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    use crate::recvmmsg::Batch;

    /// Passes the first 30 bytes of packets with these four bytes at the start of the UDP payload (IPv4).
    const TEST_FILTER: [Instruction; 4] =
        [(0x20, 0, 0, 28), (0x15, 0, 1, 0x4d41_524c), (6, 0, 0, 30), (6, 0, 0, 0)];

    #[test]
    fn captured_packets_start_with_the_ip_header() {
        let socket = match open_socket(1, &TEST_FILTER) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                eprintln!("skipped: needs CAP_NET_RAW");
                return;
            }
            opened => opened.unwrap(),
        };
        let udp_socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        for payload in [b"MARK", b"MARL", b"NARL"] {
            udp_socket.send_to(payload, udp_socket.local_addr().unwrap()).unwrap();
        }
        let mut batch = Batch::new(8, 100);
        batch.receive(&socket).unwrap();
        // On the loopback each packet is captured twice: when sent and when received.
        assert_eq!(batch.packets().count(), 2);
        assert!(batch.packets().all(|packet| packet.len() == 30 && packet[0] == 0x45 && packet[28..] == *b"MA"));
        assert_eq!(take_drop_count(&socket).unwrap(), 0);
        take_drop_count(&udp_socket).unwrap_err();
    }

    #[test]
    fn a_missing_interface_is_an_error() {
        open_socket(0x7fff_fff0, &TEST_FILTER).unwrap_err();
    }
}
