//! Congestion control of a relay's connections.
//!
//! Random loss on a long path to an origin server reduces the rate of a single flow most. A relay therefore uses BBR on
//! these connections by default, if the kernel has it and allows this process to use it
//! (`net.ipv4.tcp_allowed_congestion_control`, or CAP_NET_ADMIN).

use std::io;
use std::os::fd::AsFd;
use std::str::FromStr;

use socket2::{Domain, Protocol, SockRef, Socket, Type};

/// Longest name: TCP_CA_NAME_MAX of linux/tcp.h without the terminating zero.
const MAX_NAME_LEN: usize = 15;

/// Name of a congestion control of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CongestionControl(String);

impl CongestionControl {
    /// BBR, if this process may use it.
    pub fn bbr() -> Option<Self> {
        let bbr = Self("bbr".to_owned());
        bbr.check().is_ok().then_some(bbr)
    }

    /// Checks that this process may use it.
    ///
    /// # Errors
    /// If the kernel does not have it, or does not permit it.
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

    /// Makes a connection use it.
    pub(crate) fn apply_to(&self, socket: impl AsFd) {
        // It was permitted at the start. If that has changed, the connection keeps the kernel's default.
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
            .ok_or_else(|| format!("`{name}` is not the name of a congestion control, such as cubic or bbr"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_uses_the_given_congestion_control_and_a_missing_one_is_reported() {
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
