//! A TCP connection without packets: `TCP_REPAIR`, made for restoring processes.
//!
//! A socket in this mode connects and closes without a packet. It occupies an address and a port. The kernel still
//! replies to packets that arrive for it, unless a filter removes them.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Puts a TCP socket, which must not be connected, into repair mode: the kernel sends nothing to connect or close it.
///
/// # Errors
/// Without CAP_NET_ADMIN; not a TCP socket.
pub fn enable_tcp_repair(socket: impl AsFd) -> io::Result<()> {
    let (fd, enable) = (socket.as_fd().as_raw_fd(), 1_i32);
    let (value, size) = ((&raw const enable).cast(), size_of_val(&enable) as libc::socklen_t);
    // SAFETY: `fd` is open for the call, and `size` is the length of `value`.
    super::check(unsafe { libc::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_REPAIR, value, size) })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    #[test]
    fn other_sockets_have_no_repair_mode() {
        enable_tcp_repair(UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap_err();
    }
}
