//! Whether a connection speaks MPTCP: `getsockopt(MPTCP_INFO)` as a plain value.
//!
//! In: a socket. Out: [`Spoken`]. A connection that was begun as MPTCP and goes on as TCP tells nobody: neither the
//! application, nor an event of the path manager. This is how its owner sees it; `ss -M` shows it for all sockets.
//!
//! 1. After a fallback the question goes to the TCP socket below, which refuses it: over IPv4 with `EOPNOTSUPP`, over IPv6
//!    with `ENOPROTOOPT`. Before one the kernel answers with flags.
//! 2. A socket that was never MPTCP knows no such question, and its protocol is another.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use rustix::net::ipproto::MPTCP;
use rustix::net::sockopt::socket_protocol;

/// Whether a connection speaks MPTCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spoken {
    /// It is plain TCP, or no TCP at all.
    Never,
    /// It asks for MPTCP; the other end has not answered yet.
    Asked,
    /// Both ends speak it.
    Yes,
    /// It was begun as MPTCP and goes on as TCP: the server, or something on the way, does not speak it.
    FellBack,
}

impl Spoken {
    /// Asks the kernel.
    ///
    /// # Errors
    /// When `socket` is no socket.
    pub fn of(socket: impl AsFd) -> io::Result<Self> {
        if socket_protocol(&socket)? != Some(MPTCP) {
            return Ok(Self::Never);
        }
        let mut info = [0_u8; 12];
        let mut length = info.len() as libc::socklen_t;
        let fd = socket.as_fd().as_raw_fd();
        // SAFETY: `fd` is open for the call, and `length` is the size of the buffer that the kernel fills.
        let asked = super::check(unsafe {
            libc::getsockopt(fd, SOL_MPTCP, MPTCP_INFO, info.as_mut_ptr().cast(), &mut length)
        });
        match asked {
            Ok(_) => Ok(Self::from_flags(u32::from_ne_bytes([info[8], info[9], info[10], info[11]]))),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOPROTOOPT)) => {
                Ok(Self::FellBack)
            }
            Err(error) => Err(error),
        }
    }

    fn from_flags(flags: u32) -> Self {
        match flags {
            flags if flags & FALLBACK != 0 => Self::FellBack,
            flags if flags & REMOTE_KEY_RECEIVED != 0 => Self::Yes,
            _ => Self::Asked,
        }
    }
}

/// `linux/socket.h`, `linux/mptcp.h`: not in `libc`.
const SOL_MPTCP: libc::c_int = 284;
const MPTCP_INFO: libc::c_int = 1;
const FALLBACK: u32 = 1 << 0;
const REMOTE_KEY_RECEIVED: u32 = 1 << 1;

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketType, accept, bind, connect, getsockname, listen, socket};
    use std::net::{IpAddr, SocketAddr, UdpSocket};

    #[test]
    fn both_ends_or_neither_speak_it_over_either_protocol() {
        for (listens, to) in [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("::", "::ffff:127.0.0.1")] {
            for (protocol, spoken) in [(Some(MPTCP), Spoken::Yes), (None, Spoken::FellBack)] {
                let [listens, to]: [IpAddr; 2] = [listens, to].map(|address| address.parse().unwrap());
                let family = if listens.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
                let Ok(client) = socket(family, SocketType::STREAM, Some(MPTCP)) else {
                    eprintln!("skipped: this kernel has no MPTCP, or none over {listens}");
                    continue;
                };
                let server = socket(family, SocketType::STREAM, protocol).unwrap();
                if bind(&server, &SocketAddr::new(listens, 0)).is_err() {
                    eprintln!("skipped: this machine has no {listens}");
                    continue;
                }
                listen(&server, 1).unwrap();
                assert_eq!(Spoken::of(&client).unwrap(), Spoken::Asked);
                let port = SocketAddr::try_from(getsockname(&server).unwrap()).unwrap().port();
                connect(&client, &SocketAddr::new(to, port)).unwrap();
                let accepted = accept(&server).unwrap();
                assert_eq!(Spoken::of(&client).unwrap(), spoken, "{to}");
                let there = if spoken == Spoken::Yes { Spoken::Yes } else { Spoken::Never };
                assert_eq!(Spoken::of(&accepted).unwrap(), there, "{to}");
            }
        }
    }

    #[test]
    fn what_is_no_mptcp_socket_never_spoke_it() {
        assert_eq!(Spoken::of(UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap(), Spoken::Never);
        assert!(Spoken::of(std::fs::File::open("/dev/null").unwrap()).is_err());
    }
}
