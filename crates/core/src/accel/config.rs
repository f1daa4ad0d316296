//! What the accelerator is told before it starts: which links there are, and what it may do.

use alloc::collections::BTreeSet;
use alloc::string::ToString;
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::link::LinkId;
use crate::units::{Bitrate, UnknownName};

/// Everything that shapes the decisions, apart from what happens. A log begins with it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The link whose flows are helped.
    pub primary: LinkId,
    /// The links that help; there may be none. Who of them does what, `roles` says.
    pub secondary_links: Vec<SecondaryLink>,
    /// What may be done.
    pub mechanisms: Mechanisms,
}

impl Config {
    /// One link, and one or no other that helps it; everything that is on by default.
    pub fn new(primary: LinkId, secondary: Option<LinkId>) -> Self {
        Self {
            primary,
            secondary_links: secondary.into_iter().map(SecondaryLink::new).collect(),
            mechanisms: Mechanisms::default(),
        }
    }
}

/// A link that helps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SecondaryLink {
    /// Which one.
    pub link: LinkId,
    /// What it carries from here, where that is known; else it is found out.
    pub up: Option<Bitrate>,
    /// What it carries to here, where that is known; else it is found out.
    pub down: Option<Bitrate>,
    /// Of which flows it can take acknowledgements.
    #[serde(default)]
    pub families: AddressFamilies,
}

impl SecondaryLink {
    /// A link of which nothing is known.
    pub const fn new(link: LinkId) -> Self {
        Self { link, up: None, down: None, families: AddressFamilies::Both }
    }
}

/// Families of addresses to which a link leads.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AddressFamilies {
    /// IPv4 and IPv6.
    #[default]
    Both,
    /// IPv4 alone.
    V4,
    /// IPv6 alone.
    V6,
}

impl AddressFamilies {
    /// Whether it leads to IPv4.
    pub const fn has_v4(self) -> bool {
        !matches!(self, Self::V6)
    }

    /// Whether it leads to IPv6.
    pub const fn has_v6(self) -> bool {
        !matches!(self, Self::V4)
    }
}

/// One thing that can be done for a flow.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mechanism {
    /// Pure ACKs go over the second link, the newest in place of older ones (§3.1, with in-place thinning).
    AckOffload,
    /// ACKs that close a hole echo the timestamp from before it, so that the sender takes back its reduction (RFC 3522);
    /// only for losses that the delay gate calls random.
    EifelUndo,
    /// One byte stays unacknowledged, and is acknowledged when a blackout ends, which restarts the sender at once.
    WithheldAck,
    /// When a blackout ends, the sender is told that what it has repeated in it had no way to go, and repeats it at once
    /// (RFC 6069).
    OutageRevert,
    /// ACKs go past holes, and the bytes are fetched elsewhere (§3.3); only where the stream can be fetched.
    EarlyAck,
    /// §3.1 without §4.2's discarding of replaceable ACKs: what the second link cannot bear goes over the first.
    AckOffloadAsPublished,
    /// §3.2, first form: a zero window over the second link while the first is dark.
    ZeroWindowFreeze,
    /// §3.2's last paragraph, the paper's form for Linux senders: the same, and everything on its way is acknowledged first.
    FreezeInFlight,
    /// §3.3, first form: holes are filled from a replayed connection that is acknowledged ahead. Where the application has
    /// ranges the paper uses those ([`Self::Hide`]).
    FastFetch,
}

impl Mechanism {
    /// All of them, in the order in which they are listed.
    pub const ALL: [Self; 9] = [
        Self::AckOffload,
        Self::EifelUndo,
        Self::WithheldAck,
        Self::OutageRevert,
        Self::EarlyAck,
        Self::AckOffloadAsPublished,
        Self::ZeroWindowFreeze,
        Self::FreezeInFlight,
        Self::FastFetch,
    ];

    /// Its word.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AckOffload => "ack-offload",
            Self::EifelUndo => "eifel-undo",
            Self::WithheldAck => "withheld-ack",
            Self::OutageRevert => "outage-revert",
            Self::EarlyAck => "early-ack",
            Self::AckOffloadAsPublished => "ack-offload-as-published",
            Self::ZeroWindowFreeze => "zero-window-freeze",
            Self::FreezeInFlight => "freeze-in-flight",
            Self::FastFetch => "fast-fetch",
        }
    }

    /// Whether it is on unless switched off. What acknowledges data that has not arrived is off: after a crash, or where the
    /// bytes cannot be fetched, such a flow can only be ended.
    pub const fn is_default(self) -> bool {
        matches!(self, Self::AckOffload | Self::EifelUndo | Self::WithheldAck | Self::OutageRevert)
    }

    /// Whether it needs a second link.
    pub const fn needs_secondary_link(self) -> bool {
        matches!(
            self,
            Self::AckOffload
                | Self::AckOffloadAsPublished
                | Self::ZeroWindowFreeze
                | Self::FreezeInFlight
                | Self::FastFetch
        )
    }
}

impl fmt::Display for Mechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Mechanism {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        let known = Self::ALL.into_iter().find(|mechanism| mechanism.name() == name);
        known.ok_or_else(|| UnknownName {
            name: name.to_string(),
            kind: "mechanism",
            known: "ack-offload, eifel-undo, withheld-ack, outage-revert, early-ack, ack-offload-as-published, zero-window-freeze, \
                    freeze-in-flight, fast-fetch",
        })
    }
}

/// A set of mechanisms.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Mechanisms(BTreeSet<Mechanism>);

impl Mechanisms {
    /// These.
    pub fn of(these: &[Mechanism]) -> Self {
        Self(these.iter().copied().collect())
    }

    /// Whether this one is on.
    pub fn has(&self, mechanism: Mechanism) -> bool {
        self.0.contains(&mechanism)
    }

    /// Whether one of these is on.
    pub fn has_any(&self, these: &[Mechanism]) -> bool {
        these.iter().any(|mechanism| self.has(*mechanism))
    }

    /// Whether one of them acknowledges what is not here yet, and has to know where it can be had.
    pub fn acknowledge_early(&self) -> bool {
        use Mechanism::{EarlyAck, FastFetch, FreezeInFlight};
        self.has_any(&[EarlyAck, FreezeInFlight, FastFetch])
    }

    /// Switches one on or off.
    pub fn set(&mut self, mechanism: Mechanism, on: bool) {
        if on {
            self.0.insert(mechanism);
        } else {
            self.0.remove(&mechanism);
        }
    }

    /// Those that are on, in order.
    pub fn iter(&self) -> impl Iterator<Item = Mechanism> + '_ {
        self.0.iter().copied()
    }
}

impl Default for Mechanisms {
    /// What is safe: see [`Mechanism::is_default`].
    fn default() -> Self {
        Self(Mechanism::ALL.into_iter().filter(|mechanism| mechanism.is_default()).collect())
    }
}

impl fmt::Display for Mechanisms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, mechanism) in self.iter().enumerate() {
            write!(f, "{}{mechanism}", if at == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}
