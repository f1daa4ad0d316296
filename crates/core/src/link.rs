//! What a link is: an access network behind one interface of this machine.
//!
//! Identity, kind and terms of use. Estimates of a link's speed belong to the feature that makes them; what is said
//! here is what the user or the system declares before the first byte moves.

use alloc::string::{String, ToString};
use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::units::{Bitrate, DataSize};

/// Names a link within one run; the driver gives them out from zero upwards.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LinkId(pub u16);

/// The access technology. It is shown, and chooses defaults of energy and cost; no download decision rests on it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkKind {
    /// A cable.
    Ethernet,
    /// 802.11.
    Wifi,
    /// 4G.
    Lte,
    /// 5G.
    Nr,
    /// 3G: UMTS, HSPA, EV-DO.
    Umts,
    /// Geostationary or low orbit.
    Satellite,
    /// A VPN or another virtual interface.
    Tunnel,
    /// Not known.
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

    /// Whether a base station lets its radio sleep some seconds after the last packet, and no sooner.
    pub const fn is_cellular(self) -> bool {
        matches!(self, Self::Lte | Self::Nr | Self::Umts)
    }

    /// The word used in options, scenario files and reports.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(kind, _)| *kind == self).map_or("other", |(_, name)| name)
    }
}

impl fmt::Display for LinkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The word is no kind of link.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no kind of link: ethernet, wifi, lte, nr (5G), umts (3G), satellite, tunnel or other")]
pub struct UnknownLinkKind(String);

impl FromStr for LinkKind {
    type Err = UnknownLinkKind;
    fn from_str(s: &str) -> Result<Self, UnknownLinkKind> {
        let found = Self::NAMES.iter().find(|(_, name)| *name == s);
        found.map(|(kind, _)| *kind).ok_or_else(|| UnknownLinkKind(s.to_string()))
    }
}

/// What is known of a link before it carries anything.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkProfile {
    /// The interface's name, for people.
    pub name: String,
    /// The access technology.
    pub kind: LinkKind,
    /// Whether each byte costs money.
    pub metered: bool,
    /// How many bytes it may carry in this run; none: as many as are wanted.
    pub budget: Option<DataSize>,
    /// The most it may carry a second; none: all it can.
    pub rate_limit: Option<Bitrate>,
}

impl LinkProfile {
    /// An unmetered link without budget or limit.
    pub fn new(name: &str, kind: LinkKind) -> Self {
        Self { name: name.to_string(), kind, metered: false, budget: None, rate_limit: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_reads_its_own_name() {
        for (kind, name) in LinkKind::NAMES {
            assert_eq!(name.parse(), Ok(kind));
            assert_eq!(kind.to_string(), name);
        }
        assert!("WiFi".parse::<LinkKind>().is_err());
    }
}
