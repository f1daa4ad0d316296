//! RTSP URLs (RFC 2326 section 3.2): `rtsp://host[:port]/path`, as the user writes them.
//!
//! Unlike with the crate `url`, path and host keep their text: servers compare them byte by byte, and digests cover them.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use crate::error::RtpError;

/// URL of a stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RtspUrl {
    /// Host and port as written, without a default port.
    pub authority: String,
    host: String,
    port: u16,
    /// Path and query, beginning with a slash or question mark.
    pub path: String,
}

/// Why a text is not an RTSP URL that can be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RtspUrlError {
    /// Another scheme.
    #[error("expected rtsp://HOST[:PORT]/PATH (RTSP over TLS is not supported)")]
    Scheme,
    /// Credentials. Command lines are visible to all users of a host.
    #[error(
        "every user of this host can read a password on the command line; give it to the player (rtsp://USER:PASSWORD@127.0.0.1:8554/…)"
    )]
    Credentials,
    /// Missing or invalid host or port, or a blank or non-ASCII character anywhere in the URL.
    #[error("the host or port of the URL is missing or invalid")]
    Host,
}

impl RtspUrl {
    /// The URL for requests.
    pub(crate) fn uri(&self) -> String {
        format!("rtsp://{}{}", self.authority, self.path)
    }

    /// Authorities by which the server may call itself: as written, with its port, and by its address.
    pub(crate) fn authorities(&self, resolved: SocketAddr) -> Vec<String> {
        let ip = match resolved.ip() {
            IpAddr::V4(ip) => ip.to_string(),
            IpAddr::V6(ip) => format!("[{ip}]"),
        };
        let mut authorities = vec![format!("{}:{}", self.host, self.port), format!("{ip}:{}", self.port)];
        if self.port == DEFAULT_PORT {
            authorities.extend([self.host.clone(), ip]);
        }
        authorities
    }

    /// Resolves the address of the server.
    pub(crate) async fn resolve(&self) -> Result<SocketAddr, RtpError> {
        let name = self.host.trim_start_matches('[').trim_end_matches(']');
        let found = tokio::net::lookup_host((name, self.port)).await;
        let found = found.map_err(|error| RtpError::Link(format!("cannot resolve RTSP server {name}: {error}")))?;
        // IPv4 first: more links carry it.
        let mut found: Vec<SocketAddr> = found.collect();
        found.sort_by_key(SocketAddr::is_ipv6);
        found
            .first()
            .copied()
            .ok_or_else(|| RtpError::Link(format!("cannot resolve RTSP server {name}: it has no address")))
    }
}

impl FromStr for RtspUrl {
    type Err = RtspUrlError;

    fn from_str(text: &str) -> Result<Self, RtspUrlError> {
        let after = text.strip_prefix("rtsp://").ok_or(RtspUrlError::Scheme)?;
        let (authority, path) = after.split_at(after.find(['/', '?']).unwrap_or(after.len()));
        if authority.contains('@') {
            return Err(RtspUrlError::Credentials);
        }
        let plain = |c: char| c.is_ascii_graphic();
        let colon = authority.rfind(':').filter(|at| !authority.get(*at..).is_some_and(|port| port.contains(']')));
        let (host, port) = authority.split_at(colon.unwrap_or(authority.len()));
        let port = match port.strip_prefix(':') {
            Some(port) => port.parse().ok().filter(|port| *port != 0).ok_or(RtspUrlError::Host)?,
            None => DEFAULT_PORT,
        };
        if host.is_empty() || !text.chars().all(plain) || host.contains(':') != host.starts_with('[') {
            return Err(RtspUrlError::Host);
        }
        let path = if path.is_empty() { "/" } else { path };
        Ok(Self { authority: authority.to_owned(), host: host.to_owned(), port, path: path.to_owned() })
    }
}

/// Default port (RFC 2326 section 3.2).
const DEFAULT_PORT: u16 = 554;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_split_into_host_port_and_path() {
        let url: RtspUrl = "rtsp://cam.example:8554/live?high".parse().unwrap();
        assert_eq!((url.host.as_str(), url.port, url.path.as_str()), ("cam.example", 8554, "/live?high"));
        let six: RtspUrl = "rtsp://[fd00::9]".parse().unwrap();
        assert_eq!((six.host.as_str(), six.port, six.uri().as_str()), ("[fd00::9]", 554, "rtsp://[fd00::9]/"));
        let authorities = six.authorities("[fd00::9]:554".parse().unwrap());
        assert!(authorities.contains(&"[fd00::9]".to_owned()) && authorities.contains(&"[fd00::9]:554".to_owned()));
    }

    #[test]
    fn invalid_urls_are_rejected() {
        for (text, error) in [
            ("rtsps://cam/", RtspUrlError::Scheme),
            ("http://cam/", RtspUrlError::Scheme),
            ("rtsp://me:secret@cam/", RtspUrlError::Credentials),
            ("rtsp:///live", RtspUrlError::Host),
            ("rtsp://cam:0/", RtspUrlError::Host),
            ("rtsp://cam:x/", RtspUrlError::Host),
            ("rtsp://fd00::9/", RtspUrlError::Host),
            ("rtsp://cam/a b", RtspUrlError::Host),
        ] {
            assert_eq!(text.parse::<RtspUrl>(), Err(error), "{text}");
        }
    }
}
