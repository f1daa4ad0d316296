//! What the accelerator knows, for status and reports.

use alloc::string::String;
use alloc::vec::Vec;

use super::Mechanism;
use crate::link::LinkId;
use crate::units::{Bitrate, DataSize, Duration, Instant};
use crate::wire::packet::Flow;

/// A flow as it stands.
#[derive(Clone, PartialEq, Debug)]
pub struct FlowView {
    /// From here to its other end.
    pub flow: Flow,
    /// Its data goes to its other end, and what follows is what that end says; else it comes to here.
    pub is_upload: bool,
    /// Since when it is known.
    pub opened: Instant,
    /// The mechanisms in force for it now.
    pub in_force: Vec<Mechanism>,
    /// Why nothing is done for it, if nothing is.
    pub left_alone: Option<String>,
    /// Bytes that were acknowledged since it is known: by the own stack or, of an upload, by the other end.
    pub received: DataSize,
    /// What it brought in the last seconds.
    pub goodput: Bitrate,
    /// What plain TCP would bring at this loss and this round trip, by the model (`gain`); none while there is no loss.
    pub plain: Option<Bitrate>,
    /// Losses seen: holes that the receiving end has reported.
    pub holes: u64,
    /// Of these, called random by the delay gate.
    pub random: u64,
    /// Reductions that the sender was told to take back.
    pub undone: u64,
    /// Bytes acknowledged before they were here.
    pub hidden: DataSize,
    /// Of these, still missing.
    pub missing: DataSize,
    /// Why holes are not hidden where that was looked into; none: they may be.
    pub not_hidden: Option<String>,
    /// Pure ACKs that the receiving end has sent.
    pub acks: u64,
    /// Of these, sent over a helping link.
    pub offloaded: u64,
    /// Of these, left out because a newer one says all of them.
    pub replaced: u64,
    /// Restarts after a blackout.
    pub kicks: u64,
    /// How long packets wait on their way, beyond the least that was seen.
    pub queue: Option<Duration>,
    /// The round trip as seen from here.
    pub rtt: Option<Duration>,
}

/// A link as it stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LinkView {
    /// Which.
    pub link: LinkId,
    /// Whether it is dark.
    pub is_dark: bool,
    /// Blackouts so far.
    pub blackouts: u64,
    /// Their time together.
    pub dark: Duration,
    /// The round trip to its gateway, the last that was measured.
    pub rtt: Option<Duration>,
    /// What may be sent over it, where that is limited.
    pub up: Option<Bitrate>,
    /// What it brings, where that is known.
    pub down: Option<Bitrate>,
    /// Bytes of the accelerator's own that went over it.
    pub sent: DataSize,
    /// Bytes that were fetched over it.
    pub fetched: DataSize,
}
