//! The result of resolving a name, with its source, and the error if there is none.

use std::fmt;
use std::net::IpAddr;

use marline_core::fetch::{ConnError, ConnErrorKind};
use serde::Serialize;

/// The addresses of a host, with their source.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Resolution {
    /// In the order in which to try them (RFC 8305 section 4), only of families that the link has. Never empty.
    pub addresses: Vec<IpAddr>,
    /// Where the addresses come from.
    pub source: ResolutionSource,
}

/// Source of the addresses of a host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "source")]
pub enum ResolutionSource {
    /// The host was an address literal.
    Literal,
    /// `/etc/hosts`, or the rule about `localhost` (RFC 6761 section 6.3).
    Hosts,
    /// A server that systemd-resolved or systemd-networkd lists for the link, queried over the link.
    Resolved {
        /// Address of the server.
        server: IpAddr,
        /// Name of the link.
        link: String,
    },
    /// A server that NetworkManager lists for the link, queried over the link.
    NetworkManager {
        /// Address of the server.
        server: IpAddr,
        /// Name of the link.
        link: String,
    },
    /// A server from the files of a DHCP client or resolvconf for the link, queried over the link.
    Lease {
        /// Address of the server.
        server: IpAddr,
        /// Name of the link.
        link: String,
    },
    /// A server in `/etc/resolv.conf`, queried over the link.
    ResolvConf {
        /// Address of the server.
        server: IpAddr,
        /// Name of the link.
        link: String,
    },
    /// The system's own resolver. Its query does not use the link, so a CDN may have returned a node suited to
    /// another link.
    System,
}

/// Why a name has no address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ResolveError {
    /// The message for the user, including the name.
    pub message: String,
    /// A retry is useless: the name does not exist, is invalid, has no address for this link, or is refused (DNS
    /// rebinding). `false`: no server answered, and a retry may succeed.
    pub is_definitive: bool,
}

impl From<ResolveError> for ConnError {
    fn from(why: ResolveError) -> Self {
        Self { kind: ConnErrorKind::Dns, text: why.message }
    }
}

impl fmt::Display for ResolutionSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Literal => f.write_str("the address itself"),
            Self::Hosts => f.write_str("/etc/hosts"),
            Self::Resolved { server, link } => write!(f, "systemd-resolved's server {server} of {link}"),
            Self::NetworkManager { server, link } => write!(f, "NetworkManager's server {server} of {link}"),
            Self::Lease { server, link } => write!(f, "the server {server} of {link}'s lease"),
            Self::ResolvConf { server, link } => write!(f, "resolv.conf's server {server} over {link}"),
            Self::System => f.write_str("the system's resolver, not queried over the link"),
        }
    }
}
