//! Which flows are live streams: by port, by host, or both.
//!
//! In: what the user has written, `PORT`, `HOST` or `HOST:PORT`. Out: whether a flow is one.
//!
//! A name is compared as the flow names it: what came over the LAN as an address has none, and is known by port or address.

use std::fmt::{self, Display};
use std::net::IpAddr;
use std::str::FromStr;

use crate::tunnel::Target;

/// The port of RTMP (Adobe's specification §5; IANA: macromedia-fcs).
const RTMP: u16 = 1935;

/// Flows that are live streams. With neither host nor port it would be all, which cannot be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Live {
    host: Option<String>,
    port: Option<u16>,
}

impl Live {
    /// RTMP, wherever it goes.
    pub const fn rtmp() -> Self {
        Self { host: None, port: Some(RTMP) }
    }

    pub(super) fn is(&self, target: &Target) -> bool {
        self.host.as_ref().is_none_or(|host| *host == target.host)
            && self.port.is_none_or(|port| port == target.port)
    }
}

impl FromStr for Live {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!("`{text}` is no port, no host and no host with a port, such as 1936 or ingest.example.org:443")
        };
        if text.bytes().all(|byte| byte.is_ascii_digit()) {
            let port = text.parse().ok().filter(|port| *port > 0);
            return Ok(Self { host: None, port: Some(port.ok_or_else(wrong)?) });
        }
        if let Some(target) = Target::parse(text) {
            return Ok(Self { host: Some(target.host), port: Some(target.port) });
        }
        // An address of IPv6 may stand without brackets where no port follows.
        let inner = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
        let host = inner.parse::<IpAddr>().map_or_else(|_| inner.to_owned(), |address| address.to_string());
        let target = Target::new(&host, RTMP).ok_or_else(wrong)?;
        Ok(Self { host: Some(target.host), port: None })
    }
}

impl Display for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.host, self.port) {
            (Some(host), Some(port)) if host.contains(':') => write!(f, "[{host}]:{port}"),
            (Some(host), Some(port)) => write!(f, "{host}:{port}"),
            (Some(host), None) => f.write_str(host),
            (None, Some(port)) => write!(f, "port {port}"),
            (None, None) => f.write_str("everything"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_a_host_or_both_say_which() {
        let is = |live: &str, target: &str| live.parse::<Live>().unwrap().is(&Target::parse(target).unwrap());
        assert!(is("1936", "a.example:1936") && !is("1936", "a.example:1935"));
        assert!(is("A.example.", "a.example:1") && !is("a.example", "b.example:1"));
        assert!(is("a.example:443", "a.example:443") && !is("a.example:443", "a.example:444"));
        assert!(is("192.0.2.1", "192.0.2.1:80") && is("2001:db8::1", "[2001:db8:0::1]:80"));
        assert!(is("[2001:db8::1]:443", "[2001:db8::1]:443") && is("[2001:db8::1]", "[2001:db8::1]:1"));
        assert!(Live::rtmp().is(&Target::parse("x.example:1935").unwrap()));
    }

    #[test]
    fn what_is_neither_is_refused() {
        for text in ["", "0", "65536", "a b", "a.example:0", "a.example:x", "http://a.example", "1.2.3.4.5"] {
            assert!(text.parse::<Live>().is_err(), "{text}");
        }
    }
}
