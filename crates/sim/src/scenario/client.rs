//! Clients under test: marline with one of its policies, or another download program.
//!
//! | text | client |
//! |---|---|
//! | `marline`, `naive`, `static-limit`, `dynamic-limit`, `bdp-limit` | `marline get` with that policy, on all links |
//! | `single:LINK`, `marline:LINK` | the same on one link |
//! | `aria2-sN` | aria2 with N connections distributed over the links, pieces of 1 MiB |
//! | `curl` | curl on the best single link |
//! | `curl:LINK` | curl on that link |

use std::fmt;
use std::str::FromStr;

use marline_core::fetch::Policy;
use serde::{Serialize, Serializer};

/// A download program with its settings.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Client {
    /// `marline get`, on all links unless one is named.
    Marline {
        /// Scheduling policy: size and assignment of requests.
        policy: Policy,
        /// The only link to use; `None` for all links.
        only_link: Option<String>,
    },
    /// aria2, on all links.
    Aria2 {
        /// Total number of connections (`-s`, `-x`).
        connections: u32,
    },
    /// curl, which uses one link.
    Curl {
        /// The link to use; `None` for the best single link.
        only_link: Option<String>,
    },
}

impl Client {
    /// `marline get` with its defaults.
    pub const MARLINE: Self = Self::Marline { policy: Policy::Marline, only_link: None };

    /// Whether this is `marline get`, with any policy.
    pub fn is_marline(&self) -> bool {
        matches!(self, Self::Marline { .. })
    }

    /// The link that the client is restricted to, if one is named.
    pub fn only_link(&self) -> Option<&str> {
        match self {
            Self::Marline { only_link: only, .. } | Self::Curl { only_link: only } => only.as_deref(),
            Self::Aria2 { .. } => None,
        }
    }
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Marline { policy, .. } => write!(f, "{policy}")?,
            Self::Aria2 { connections } => write!(f, "aria2-s{connections}")?,
            Self::Curl { .. } => f.write_str("curl")?,
        }
        self.only_link().map_or(Ok(()), |link| write!(f, ":{link}"))
    }
}

/// A text that names no known client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a client: expected marline, naive, static-limit, dynamic-limit, bdp-limit, single:LINK, aria2-sN or curl"
)]
pub struct ClientError(String);

impl FromStr for Client {
    type Err = ClientError;

    fn from_str(s: &str) -> Result<Self, ClientError> {
        let error = || ClientError(s.to_string());
        let (name, only_link) = match s.split_once(':') {
            Some((_, "")) => return Err(error()),
            Some((name, link)) => (name, Some(link.to_string())),
            None => (s, None),
        };
        if let Some(connections) = name.strip_prefix("aria2-s") {
            let connections = connections.parse().map_err(|_| error())?;
            // aria2 accepts at most 16 connections to one server.
            return match (connections, only_link) {
                (1..=16, None) => Ok(Self::Aria2 { connections }),
                _ => Err(error()),
            };
        }
        if name == "curl" {
            return Ok(Self::Curl { only_link });
        }
        let policy = name.parse().map_err(|_| error())?;
        // With several links the single-link policy would choose one itself, and the result would not show which.
        if policy == Policy::Single && only_link.is_none() {
            return Err(error());
        }
        Ok(Self::Marline { policy, only_link })
    }
}

impl Serialize for Client {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
