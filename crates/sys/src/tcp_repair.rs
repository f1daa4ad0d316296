//! A connection of TCP that the kernel believes in and takes no part in: `TCP_REPAIR`, made for what restores processes.
//!
//! In: a socket that is not connected yet. Out: connected from here on without a packet, and closed without one, it holds an
//! address and a port. What comes for it is the kernel's to answer, unless a filter takes it away.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Has the kernel send nothing for this socket.
///
/// # Errors
/// Without CAP_NET_ADMIN; it is no socket of TCP.
pub fn enable_tcp_repair(socket: impl AsFd) -> io::Result<()> {
    let (fd, enable) = (socket.as_fd().as_raw_fd(), 1_i32);
    let (value, size) = ((&raw const enable).cast(), size_of_val(&enable) as libc::socklen_t);
    // SAFETY: `fd` is open for the call, and `value` is as long as said.
    super::check(unsafe { libc::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_REPAIR, value, size) })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    #[test]
    fn what_is_no_connection_cannot_be_held() {
        enable_tcp_repair(UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap_err();
    }
}
