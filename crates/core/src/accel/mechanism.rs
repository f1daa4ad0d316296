//! The mechanisms: what each is called and what it needs. This is the list in which a new one is added.

use alloc::collections::BTreeSet;
use alloc::string::ToString;
use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::units::UnknownName;

/// One thing that can be done for a flow.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mechanism {
    /// Pure ACKs leave over a secondary link, the newest in place of older ones (§3.1, with in-place thinning).
    AckOffload,
    /// ACKs that close a hole echo the timestamp from before it, so that the sender undoes its reduction (RFC 3522);
    /// only for losses that are classified as random.
    EifelUndo,
    /// One byte stays unacknowledged, and is acknowledged when an outage ends, which restarts the sender at once.
    WithheldAck,
    /// When an outage ends, the sender receives ICMP errors for what it has retransmitted during it, and retransmits at
    /// once (RFC 6069).
    OutageRevert,
    /// ACKs go past holes, and the bytes are fetched by range requests (§3.3); only where the stream can be fetched.
    EarlyAck,
    /// §3.1 without §4.2's discarding of replaceable ACKs: what a secondary link has no capacity for leaves over the
    /// primary one.
    AckOffloadAsPublished,
    /// §3.2, first form: a zero window over a secondary link while the primary one is down.
    ZeroWindowFreeze,
    /// §3.2's last paragraph, the paper's form for Linux senders: the same, and everything in flight is acknowledged
    /// first.
    FreezeInFlight,
    /// §3.3, first form: holes are filled from a mirrored connection that is acknowledged ahead. Where the application
    /// can use ranges the paper uses those ([`Self::EarlyAck`]).
    FastFetch,
}

impl Mechanism {
    /// All mechanisms, in the order in which they are listed.
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

    /// Its name in options, logs and JSON.
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

    /// Whether it is on unless disabled. Mechanisms that acknowledge data before it has arrived are off: after a crash,
    /// or where the bytes cannot be fetched, such a flow can only be reset.
    pub const fn is_default(self) -> bool {
        matches!(self, Self::AckOffload | Self::EifelUndo | Self::WithheldAck | Self::OutageRevert)
    }

    /// Whether it acts on outages of the primary link, so that they must be detected.
    pub const fn needs_outage_detection(self) -> bool {
        matches!(self, Self::WithheldAck | Self::OutageRevert | Self::ZeroWindowFreeze | Self::FreezeInFlight)
    }

    /// Whether it acknowledges data before it has arrived, and has to know where that can be fetched.
    pub const fn acknowledges_early(self) -> bool {
        matches!(self, Self::EarlyAck | Self::FreezeInFlight | Self::FastFetch)
    }

    /// Whether it needs a secondary link.
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
    /// These mechanisms.
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
    /// Those that are on unless disabled ([`Mechanism::is_default`]).
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
