//! Hosts with ports: targets of tunnels, origin servers, and where relays listen.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::{String, ToString};
use core::fmt::{self, Display};
use core::net::IpAddr;
use core::str::FromStr;

use serde::{Deserialize, Serialize};

/// A host and a port: the origin server of an edge's stream, or an address at which a relay listens.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Endpoint(String);

impl Endpoint {
    /// The host; an IPv6 address without its brackets.
    pub fn host(&self) -> String {
        let host = self.0.rsplit_once(':').map_or(self.0.as_str(), |(host, _)| host);
        host.trim_start_matches('[').trim_end_matches(']').to_owned()
    }

    /// The port; 0 cannot occur, because parsing rejects it.
    pub fn port(&self) -> u16 {
        self.0.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).unwrap_or_default()
    }
}

impl Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Endpoint {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let target = Target::parse(text).ok_or_else(|| format!("`{text}` is not HOST:PORT"))?;
        let Target { host, port } = target;
        Ok(Self(if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }))
    }
}

impl TryFrom<String> for Endpoint {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Endpoint> for String {
    fn from(endpoint: Endpoint) -> Self {
        endpoint.0
    }
}

/// Target of a tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Host name in lower case without a final dot, or an IP address as text.
    pub host: String,
    /// TCP port, not zero.
    pub port: u16,
}

impl Target {
    /// Parses `host:port`, with an IPv6 address in brackets.
    pub fn parse(authority: &str) -> Option<Self> {
        let (host, port) = authority.rsplit_once(':')?;
        let port = port.parse().ok().filter(|port| *port > 0)?;
        let bracketed = host.starts_with('[');
        let host = match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            Some(inner) => inner.parse::<IpAddr>().ok().filter(IpAddr::is_ipv6)?.to_string(),
            None => host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase(),
        };
        Self::checked(host, port, bracketed)
    }

    /// Creates a target from a separate host and port; `None` if either is invalid.
    pub fn new(host: &str, port: u16) -> Option<Self> {
        let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
        Self::checked(host, port, true).filter(|_| port > 0)
    }

    /// The target as `host:port`, as in a request.
    pub fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    fn checked(host: String, port: u16, bracketed: bool) -> Option<Self> {
        let is_address = |host: &str| host.parse::<IpAddr>().is_ok_and(|it| it.is_ipv4() || bracketed);
        (is_address(&host) || is_name(&host)).then_some(Self { host, port })
    }
}

/// Whether `host` is a host name: labels of letters, digits, hyphens and underscores (RFC 1123 §2.1), at most 253
/// bytes.
fn is_name(host: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    // The last label must not begin with a digit: some resolvers take `127.1` and `0x7f.1` for addresses.
    let last = host.rsplit('.').next().unwrap_or_default();
    host.len() <= 253
        && host.split('.').all(|label| !label.is_empty() && label.len() <= 63 && label.bytes().all(plain))
        && !last.starts_with(|first: char| first.is_ascii_digit())
}
