//! What a name resolves to, and who says so.

use std::fmt;
use std::net::IpAddr;

use marline_core::fetch::{ConnError, ConnErrorKind};
use serde::Serialize;

/// The addresses of a host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Resolution {
    /// In the order in which to try them (RFC 8305 §4), only of families that the link has. Never empty.
    pub addresses: Vec<IpAddr>,
    /// Who gave them.
    pub source: AnswerSource,
}

/// Who gave the addresses of a host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "source")]
pub enum AnswerSource {
    /// The host was an address.
    Literal,
    /// `/etc/hosts`, or the rule about `localhost` (RFC 6761 §6.3).
    Hosts,
    /// A server that systemd-resolved or systemd-networkd has for the link, asked over the link.
    Resolved {
        /// The server.
        server: IpAddr,
        /// The link.
        link: String,
    },
    /// A server that NetworkManager has for the link, asked over the link.
    NetworkManager {
        /// The server.
        server: IpAddr,
        /// The link.
        link: String,
    },
    /// A server that a DHCP client or resolvconf has left for the link, asked over the link.
    Lease {
        /// The server.
        server: IpAddr,
        /// The link.
        link: String,
    },
    /// A server of `/etc/resolv.conf`, asked over the link.
    ResolvConf {
        /// The server.
        server: IpAddr,
        /// The link.
        link: String,
    },
    /// The system's own resolver, which was not asked over the link: the server may think of another place.
    System,
}

/// Why a name has no address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ResolveError {
    /// In words, the name included.
    pub message: String,
    /// Somebody who should know says so. Otherwise nobody has answered, and the next try may do better.
    pub is_definitive: bool,
}

impl From<ResolveError> for ConnError {
    fn from(why: ResolveError) -> Self {
        Self { kind: ConnErrorKind::Dns, text: why.message }
    }
}

impl fmt::Display for AnswerSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Literal => f.write_str("the address itself"),
            Self::Hosts => f.write_str("/etc/hosts"),
            Self::Resolved { server, link } => write!(f, "systemd-resolved's server {server} of {link}"),
            Self::NetworkManager { server, link } => write!(f, "NetworkManager's server {server} of {link}"),
            Self::Lease { server, link } => write!(f, "the server {server} of {link}'s lease"),
            Self::ResolvConf { server, link } => write!(f, "resolv.conf's server {server} over {link}"),
            Self::System => f.write_str("the system's resolver, not asked over the link"),
        }
    }
}
