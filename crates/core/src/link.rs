//! Links: an access network behind one interface of this host, with its identity, technology and limits.
//!
//! Only what the user or the system declares before the first byte is kept here. Each capability estimates
//! throughput and RTT for itself.

use alloc::string::{String, ToString};
use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::units::{Bitrate, DataSize};

/// Identifies a link within one run. The driver numbers links from zero.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LinkId(pub u16);

/// Access technology of a link. It selects defaults for energy and cost and is shown; no download decision depends
/// on it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkKind {
    /// Wired Ethernet.
    Ethernet,
    /// Wi-Fi (IEEE 802.11).
    Wifi,
    /// 4G (LTE).
    Lte,
    /// 5G (New Radio).
    Nr,
    /// 3G: UMTS, HSPA, EV-DO.
    Umts,
    /// Satellite, geostationary or in low orbit.
    Satellite,
    /// A VPN or another virtual interface.
    Tunnel,
    /// Unknown technology.
    #[default]
    Other,
}

impl LinkKind {
    const NAMES: [(Self, &'static str); 8] = [
        (Self::Ethernet, "ethernet"),
        (Self::Wifi, "wifi"),
        (Self::Lte, "lte"),
        (Self::Nr, "nr"),
        (Self::Umts, "umts"),
        (Self::Satellite, "satellite"),
        (Self::Tunnel, "tunnel"),
        (Self::Other, "other"),
    ];

    /// Whether the radio has an energy tail: the base station releases it only some seconds after the last packet.
    pub const fn is_cellular(self) -> bool {
        matches!(self, Self::Lte | Self::Nr | Self::Umts)
    }

    /// Name in options, scenario files and reports.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(kind, _)| *kind == self).map_or("other", |(_, name)| name)
    }
}

impl fmt::Display for LinkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The text names no kind of link.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a kind of link; use ethernet, wifi, lte, nr (5G), umts (3G), satellite, tunnel or other")]
pub struct UnknownLinkKind(String);

impl FromStr for LinkKind {
    type Err = UnknownLinkKind;
    fn from_str(s: &str) -> Result<Self, UnknownLinkKind> {
        let found = Self::NAMES.iter().find(|(_, name)| *name == s);
        found.map(|(kind, _)| *kind).ok_or_else(|| UnknownLinkKind(s.to_string()))
    }
}

/// Declared properties of a link, known before it carries any data.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkProfile {
    /// Interface name, for messages.
    pub name: String,
    /// Access technology.
    pub kind: LinkKind,
    /// Whether each byte costs money.
    pub metered: bool,
    /// Most bytes that the link may carry; `None`: unlimited. A batch of downloads counts all its files together,
    /// `marline paths` all its runs, the proxy each transfer alone.
    pub budget: Option<DataSize>,
    /// Highest rate at which the link may be used; `None`: unlimited.
    pub rate_limit: Option<Bitrate>,
}

impl LinkProfile {
    /// An unmetered link without budget and rate limit.
    pub fn new(name: &str, kind: LinkKind) -> Self {
        Self { name: name.to_string(), kind, metered: false, budget: None, rate_limit: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_parsed_from_its_own_name() {
        for (kind, name) in LinkKind::NAMES {
            assert_eq!(name.parse(), Ok(kind));
            assert_eq!(kind.to_string(), name);
        }
        assert!("WiFi".parse::<LinkKind>().is_err());
    }
}
