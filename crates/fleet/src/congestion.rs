//! Which congestion control a connection has.
//!
//! In: a name, as the kernel knows it. Out: whether this process may use it, and sockets that do.
//!
//! A relay's connections to servers are where a long way's random losses hurt a single flow most: a relay uses BBR there unless
//! something else is said, where the kernel has it and lets this process use it (`net.ipv4.tcp_allowed_congestion_control`, or
//! CAP_NET_ADMIN).

use std::io;
use std::os::fd::AsFd;
use std::str::FromStr;

use socket2::{Domain, Protocol, SockRef, Socket, Type};

/// The longest name, TCP_CA_NAME_MAX of linux/tcp.h with its end.
const MAX_NAME_LEN: usize = 15;

/// A congestion control.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CongestionControl(String);

impl CongestionControl {
    /// BBR, if this process may use it.
    pub fn bbr() -> Option<Self> {
        let bbr = Self("bbr".to_owned());
        bbr.check().is_ok().then_some(bbr)
    }

    /// Whether this process may use it.
    ///
    /// # Errors
    /// The kernel does not know it, or refuses.
    pub fn check(&self) -> io::Result<()> {
        Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?.set_tcp_congestion(self.0.as_bytes()).map_err(
            |error| {
                let why = match error.kind() {
                    io::ErrorKind::NotFound => {
                        "this kernel does not have it (net.ipv4.tcp_available_congestion_control)"
                    }
                    io::ErrorKind::PermissionDenied => {
                        "this user may not use it (net.ipv4.tcp_allowed_congestion_control)"
                    }
                    _ => return error,
                };
                io::Error::new(error.kind(), format!("{}: {why}", self.0))
            },
        )
    }

    /// Has this connection use it.
    pub(crate) fn apply_to(&self, socket: impl AsFd) {
        // It was allowed at the start; a connection with the kernel's own is as good as any.
        let _ = SockRef::from(&socket).set_tcp_congestion(self.0.as_bytes());
    }
}

impl FromStr for CongestionControl {
    type Err = String;
    fn from_str(name: &str) -> Result<Self, String> {
        let fits = !name.is_empty() && name.len() <= MAX_NAME_LEN;
        let is_name = fits && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        is_name
            .then(|| Self(name.to_owned()))
            .ok_or_else(|| format!("`{name}` is no congestion control such as cubic or bbr"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_has_what_was_said_and_what_the_kernel_lacks_is_told() {
        let reno: CongestionControl = "reno".parse().unwrap();
        reno.check().unwrap();
        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
        reno.apply_to(&socket);
        assert!(socket.tcp_congestion().unwrap().starts_with(b"reno"));
        let none: CongestionControl = "no_such_thing".parse().unwrap();
        assert!(none.check().unwrap_err().to_string().starts_with("no_such_thing: this kernel does not have it"));
        for bad in ["", "a b", "sixteen_letters_", "bbr;"] {
            assert!(bad.parse::<CongestionControl>().is_err(), "{bad}");
        }
    }
}
