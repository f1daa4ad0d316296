//! An address of RTSP: which server, which stream.
//!
//! In: what the user wrote. Out: its parts, or what is wrong with it.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use crate::error::RtpError;

/// `rtsp://host[:port]/path`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Address {
    /// Host and port as they were written.
    pub authority: String,
    host: String,
    port: u16,
    /// What follows, with its slash.
    pub rest: String,
}

/// What is wrong with an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AddressError {
    /// Another scheme.
    #[error("expected rtsp://HOST[:PORT]/PATH (RTSP over TLS is not understood)")]
    Scheme,
    /// A name or a password.
    #[error(
        "a password here is seen by everyone on this machine; give it to the player (rtsp://USER:PASSWORD@127.0.0.1:8554/…)"
    )]
    Secret,
    /// No host, or no port.
    #[error("the host or the port is missing or wrong")]
    Host,
}

impl Address {
    /// As it is asked for.
    pub(crate) fn uri(&self) -> String {
        format!("rtsp://{}{}", self.authority, self.rest)
    }

    /// How a server may write where it is: as the user does, with the port, and by its number.
    pub(crate) fn names(&self, found: SocketAddr) -> Vec<String> {
        let ip = match found.ip() {
            IpAddr::V4(ip) => ip.to_string(),
            IpAddr::V6(ip) => format!("[{ip}]"),
        };
        let mut names = vec![format!("{}:{}", self.host, self.port), format!("{ip}:{}", self.port)];
        if self.port == PORT {
            names.extend([self.host.clone(), ip]);
        }
        names
    }

    /// The server's address.
    pub(crate) async fn find(&self) -> Result<SocketAddr, RtpError> {
        let name = self.host.trim_start_matches('[').trim_end_matches(']');
        let found = tokio::net::lookup_host((name, self.port)).await;
        let found = found.map_err(|error| RtpError::Link(format!("{name}: no such server: {error}")))?;
        // Of both families the older one leads over more links.
        let mut found: Vec<SocketAddr> = found.collect();
        found.sort_by_key(SocketAddr::is_ipv6);
        found.first().copied().ok_or_else(|| RtpError::Link(format!("{name}: it has no address")))
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let after = text.strip_prefix("rtsp://").ok_or(AddressError::Scheme)?;
        let (authority, rest) = after.split_at(after.find(['/', '?']).unwrap_or(after.len()));
        if authority.contains('@') {
            return Err(AddressError::Secret);
        }
        let plain = |c: char| c.is_ascii_graphic();
        let colon = authority.rfind(':').filter(|at| !authority.get(*at..).is_some_and(|port| port.contains(']')));
        let (host, port) = authority.split_at(colon.unwrap_or(authority.len()));
        let port = match port.strip_prefix(':') {
            Some(port) => port.parse().ok().filter(|port| *port != 0).ok_or(AddressError::Host)?,
            None => PORT,
        };
        if host.is_empty() || !text.chars().all(plain) || host.contains(':') != host.starts_with('[') {
            return Err(AddressError::Host);
        }
        let rest = if rest.is_empty() { "/" } else { rest };
        Ok(Self { authority: authority.to_owned(), host: host.to_owned(), port, rest: rest.to_owned() })
    }
}

/// RTSP's (RFC 2326 §3.2).
const PORT: u16 = 554;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_parts() {
        let address: Address = "rtsp://cam.example:8554/live?high".parse().unwrap();
        assert_eq!(
            (address.host.as_str(), address.port, address.rest.as_str()),
            ("cam.example", 8554, "/live?high")
        );
        let six: Address = "rtsp://[fd00::9]".parse().unwrap();
        assert_eq!((six.host.as_str(), six.port, six.uri().as_str()), ("[fd00::9]", 554, "rtsp://[fd00::9]/"));
        let names = six.names("[fd00::9]:554".parse().unwrap());
        assert!(names.contains(&"[fd00::9]".to_owned()) && names.contains(&"[fd00::9]:554".to_owned()));
    }

    #[test]
    fn what_is_none_is_refused() {
        for (text, error) in [
            ("rtsps://cam/", AddressError::Scheme),
            ("http://cam/", AddressError::Scheme),
            ("rtsp://me:secret@cam/", AddressError::Secret),
            ("rtsp:///live", AddressError::Host),
            ("rtsp://cam:0/", AddressError::Host),
            ("rtsp://cam:x/", AddressError::Host),
            ("rtsp://fd00::9/", AddressError::Host),
            ("rtsp://cam/a b", AddressError::Host),
        ] {
            assert_eq!(text.parse::<Address>(), Err(error), "{text}");
        }
    }
}
