//! A secondary link: as configured, and as the fetchers see it.

use serde::{Deserialize, Serialize};

use crate::link::LinkId;
use crate::units::{Bitrate, Duration};

/// A link that assists.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SecondaryLink {
    /// Which link.
    pub link: LinkId,
    /// Its uplink rate, where configured; else it is measured.
    pub up: Option<Bitrate>,
    /// Its downlink rate, where configured; else it is measured.
    pub down: Option<Bitrate>,
    /// The address families of flows whose ACKs it can carry.
    #[serde(default)]
    pub families: AddressFamilies,
}

impl SecondaryLink {
    /// A link of which nothing is known.
    pub const fn new(link: LinkId) -> Self {
        Self { link, up: None, down: None, families: AddressFamilies::Both }
    }
}

/// Address families that a link reaches.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AddressFamilies {
    /// IPv4 and IPv6.
    #[default]
    Both,
    /// IPv4 only.
    V4,
    /// IPv6 only.
    V6,
}

impl AddressFamilies {
    /// Whether it reaches IPv4.
    pub const fn has_v4(self) -> bool {
        !matches!(self, Self::V6)
    }

    /// Whether it reaches IPv6.
    pub const fn has_v6(self) -> bool {
        !matches!(self, Self::V4)
    }
}

/// What is known of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LinkInfo {
    pub(crate) link: LinkId,
    /// Whether it is the primary link.
    pub(crate) is_primary: bool,
    /// Whether it delivers nothing now.
    pub(crate) is_down: bool,
    /// The rate that it delivers, if known.
    pub(crate) receive_rate: Option<Bitrate>,
    /// Its round-trip time, if known.
    pub(crate) rtt: Option<Duration>,
    /// The address families that it reaches.
    pub(crate) families: AddressFamilies,
}

/// The link of a mirrored connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ConnLink {
    pub(crate) link: LinkId,
    /// How often it may carry an ACK.
    pub(crate) ack_interval: Duration,
}
