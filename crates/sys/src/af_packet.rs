//! Packets as they pass a device, either way: a socket of the family `AF_PACKET`.
//!
//! In: a device's number and a filter. Out: a socket that does not block; what is read from it begins with the header of IP
//! (`SOCK_DGRAM`: the kernel takes the link's own header away).
//!
//! 1. The filter is there before the socket hears anything: nothing comes that was not asked for.
//! 2. What has no room is dropped by the kernel, which counts it ([`drops`]).

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// One instruction of a classic filter: code, jumps where it is true and where it is not, and its number.
pub type Instruction = (u16, u8, u8, u32);

/// Opens the socket on device number `index`.
///
/// # Errors
/// Without CAP_NET_RAW; no such device; a filter that the kernel refuses.
pub fn open_socket(index: u32, filter: &[Instruction]) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    // No protocol: it is deaf until it is bound to one.
    let socket = socket_with(AddressFamily::PACKET, SocketType::DGRAM, flags, None)?;
    attach_filter(&socket, filter)?;
    bind_to_interface(&socket, index)?;
    Ok(socket)
}

/// Has it hear what this filter passes from now on, instead of what another one did.
///
/// # Errors
/// A filter that the kernel refuses; the one before stays.
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
    // What leaves is shown only to those who want every protocol.
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = i32::try_from(index).map_err(|_| io::ErrorKind::InvalidInput)?;
    let (fd, size) = (socket.as_fd().as_raw_fd(), size_of_val(&address) as libc::socklen_t);
    // SAFETY: `fd` is open for the call, and `address` is as long as said.
    super::check(unsafe { libc::bind(fd, (&raw const address).cast(), size) })?;
    Ok(())
}

/// Packets that had no room since the last time this was asked.
///
/// # Errors
/// It is no such socket.
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

    /// Passes the first 30 bytes of whatever has these four bytes where UDP of IPv4 has its data.
    const TEST_FILTER: [Instruction; 4] =
        [(0x20, 0, 0, 28), (0x15, 0, 1, 0x4d41_524c), (6, 0, 0, 30), (6, 0, 0, 0)];

    #[test]
    fn what_the_filter_passes_is_read_from_its_ip_header_on() {
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
        // Over the loopback each is seen as it leaves and as it comes.
        assert_eq!(batch.packets().count(), 2);
        assert!(batch.packets().all(|packet| packet.len() == 30 && packet[0] == 0x45 && packet[28..] == *b"MA"));
        assert_eq!(take_drop_count(&socket).unwrap(), 0);
        take_drop_count(&udp_socket).unwrap_err();
    }

    #[test]
    fn a_device_that_is_not_there_is_an_error() {
        open_socket(0x7fff_fff0, &TEST_FILTER).unwrap_err();
    }
}
