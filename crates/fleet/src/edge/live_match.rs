//! Defines which flows are live streams: by port, by host, or both (`PORT`, `HOST` or `HOST:PORT`).
//!
//! A host name is compared with the name in the client's request. A redirected LAN connection has no name, and matches by port or address
//! only.
//!
//! Live streams also determine the origin server for the fleet's choice of a relay ([`StreamOrigin`]): opening a web page during a stream
//! is no reason for another relay.

use std::fmt::{self, Display};
use std::net::IpAddr;
use std::str::FromStr;

use marline_net::http::host_and_port;

use crate::service::api_types::Endpoint;
use crate::tunnel::Target;

/// The port of RTMP (Adobe's RTMP specification section 5; IANA: macromedia-fcs).
const RTMP_PORT: u16 = 1935;

/// Condition for flows that are live streams. Without host and port it would match all flows; such a condition cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveMatch {
    host: Option<String>,
    port: Option<u16>,
}

impl LiveMatch {
    /// RTMP flows to any host.
    pub const fn rtmp() -> Self {
        Self { host: None, port: Some(RTMP_PORT) }
    }

    pub(super) fn matches(&self, target: &Target) -> bool {
        self.host.as_ref().is_none_or(|host| *host == target.host)
            && self.port.is_none_or(|port| port == target.port)
    }
}

/// Target of the newest live stream; before the first one, target of the newest flow.
#[derive(Debug, Default)]
pub(super) struct StreamOrigin {
    pub(super) origin: Option<Endpoint>,
    is_live: bool,
}

impl StreamOrigin {
    /// Records the target of a new flow; returns whether the origin changed.
    pub(super) fn update(&mut self, origin: Endpoint, is_live: bool) -> bool {
        let counts = is_live || !self.is_live;
        let is_news = counts && self.origin.as_ref() != Some(&origin);
        self.is_live |= is_live;
        if is_news {
            self.origin = Some(origin);
        }
        is_news
    }
}

impl FromStr for LiveMatch {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!("`{text}` is not a port, a host or a host with a port, such as 1936 or ingest.example.org:443")
        };
        if text.bytes().all(|byte| byte.is_ascii_digit()) {
            let port = text.parse().ok().filter(|port| *port > 0);
            return Ok(Self { host: None, port: Some(port.ok_or_else(wrong)?) });
        }
        if let Some(target) = Target::parse(text) {
            return Ok(Self { host: Some(target.host), port: Some(target.port) });
        }
        // An IPv6 address needs no brackets if no port follows.
        let inner = text.strip_prefix('[').and_then(|remaining| remaining.strip_suffix(']')).unwrap_or(text);
        let host = inner.parse::<IpAddr>().map_or_else(|_| inner.to_owned(), |address| address.to_string());
        let target = Target::new(&host, RTMP_PORT).ok_or_else(wrong)?;
        Ok(Self { host: Some(target.host), port: None })
    }
}

impl Display for LiveMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.host, self.port) {
            (Some(host), Some(port)) => f.write_str(&host_and_port(host, port)),
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
    fn a_flow_matches_by_port_host_or_both() {
        let is_match =
            |live: &str, target: &str| live.parse::<LiveMatch>().unwrap().matches(&Target::parse(target).unwrap());
        assert!(is_match("1936", "a.example:1936") && !is_match("1936", "a.example:1935"));
        assert!(is_match("A.example.", "a.example:1") && !is_match("a.example", "b.example:1"));
        assert!(is_match("a.example:443", "a.example:443") && !is_match("a.example:443", "a.example:444"));
        assert!(is_match("192.0.2.1", "192.0.2.1:80") && is_match("2001:db8::1", "[2001:db8:0::1]:80"));
        assert!(is_match("[2001:db8::1]:443", "[2001:db8::1]:443") && is_match("[2001:db8::1]", "[2001:db8::1]:1"));
        assert!(LiveMatch::rtmp().matches(&Target::parse("x.example:1935").unwrap()));
    }

    #[test]
    fn other_text_is_refused() {
        for text in ["", "0", "65536", "a b", "a.example:0", "a.example:x", "http://a.example", "1.2.3.4.5"] {
            assert!(text.parse::<LiveMatch>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_page_opened_during_a_stream_does_not_change_the_origin() {
        let mut stream_origin = StreamOrigin::default();
        let mut update = |origin: &str, is_live| {
            let is_news = stream_origin.update(origin.parse().unwrap(), is_live);
            (is_news, stream_origin.origin.as_ref().unwrap().to_string())
        };
        assert_eq!(update("page.example:443", false), (true, "page.example:443".to_owned()));
        assert_eq!(update("page.example:443", false), (false, "page.example:443".to_owned()));
        assert_eq!(update("other.example:443", false), (true, "other.example:443".to_owned()));
        assert_eq!(update("live.example:1935", true), (true, "live.example:1935".to_owned()));
        assert_eq!(update("page.example:443", false), (false, "live.example:1935".to_owned()));
        assert_eq!(update("new.example:1935", true), (true, "new.example:1935".to_owned()));
    }
}
