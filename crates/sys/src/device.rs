//! Binds a socket to a network interface, so that its packets leave by no other.
//!
//! `SO_BINDTODEVICE` needs no privilege since Linux 5.7, as long as the socket is not bound to an interface yet.
//! `socket2` offers it for its own sockets; this function accepts any descriptor, such as a socket that a runtime
//! already owns.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Binds `socket` to the interface `name`.
///
/// # Errors
/// No such interface (`ENODEV`), an empty name or one of more than 15 bytes (`EINVAL`), or not permitted (`EPERM`):
/// without CAP_NET_RAW on a kernel before 5.7 or on a socket that is already bound to an interface.
pub fn bind_to_device(socket: impl AsFd, name: &str) -> io::Result<()> {
    if name.is_empty() || name.len() >= libc::IFNAMSIZ {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let (fd, length) = (socket.as_fd().as_raw_fd(), name.len() as libc::socklen_t);
    // SAFETY: `fd` is open for the call; the kernel reads `length` bytes of `name` and keeps no pointer.
    super::check(unsafe {
        libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_BINDTODEVICE, name.as_ptr().cast(), length)
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    #[test]
    fn a_bound_socket_uses_its_device_only() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        bind_to_device(&socket, "lo").unwrap();
        assert_eq!(socket.send_to(b"x", socket.local_addr().unwrap()).unwrap(), 1);
    }

    #[test]
    fn a_device_that_does_not_exist_is_an_error() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert_eq!(bind_to_device(&socket, "nosuch0").unwrap_err().raw_os_error(), Some(libc::ENODEV));
        assert_eq!(bind_to_device(&socket, "").unwrap_err().raw_os_error(), Some(libc::EINVAL));
        assert_eq!(bind_to_device(&socket, "sixteen_bytes_16").unwrap_err().raw_os_error(), Some(libc::EINVAL));
    }
}
