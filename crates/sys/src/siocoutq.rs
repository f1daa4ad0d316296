//! Number of unacknowledged bytes of a connection: `ioctl(SIOCOUTQ)`.
//!
//! It works for connected TCP and MPTCP sockets. For MPTCP it covers the whole connection, whichever subflow carries
//! the data.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Returns the bytes that were written and not yet acknowledged.
///
/// # Errors
/// A listening socket, no socket, or a kernel without support (MPTCP: before 5.17).
pub fn unacknowledged_bytes(socket: impl AsFd) -> io::Result<u64> {
    let mut bytes: libc::c_int = 0;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: `fd` is open for the call, and the kernel writes one `int`. SIOCOUTQ has the number of TIOCOUTQ.
    super::check(unsafe { libc::ioctl(fd, libc::TIOCOUTQ as _, &raw mut bytes) })?;
    Ok(u64::try_from(bytes).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn unread_data_remains_unacknowledged() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut receiver, _) = listener.accept().unwrap();
        assert_eq!(unacknowledged_bytes(&sender).unwrap(), 0);
        sender.set_nonblocking(true).unwrap();
        let mut sent = 0;
        while let Ok(bytes) = sender.write(&[0; 65_536]) {
            sent += bytes;
        }
        assert!(unacknowledged_bytes(&sender).unwrap() > 0);
        let mut remaining = sent;
        let mut sink = [0; 65_536];
        while remaining > 0 {
            remaining -= receiver.read(&mut sink).unwrap();
        }
        while unacknowledged_bytes(&sender).unwrap() > 0 {
            std::thread::yield_now();
        }
    }

    #[test]
    fn files_have_no_send_queue() {
        unacknowledged_bytes(std::fs::File::open("/dev/null").unwrap()).unwrap_err();
    }
}
