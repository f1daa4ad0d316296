//! What the accelerator knows, for status and reports.

use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::Mechanism;
use crate::link::LinkId;
use crate::units::{Bitrate, DataSize, Duration, Instant};
use crate::wire::packet::FourTuple;

/// A flow as it stands.
#[derive(Clone, PartialEq, Debug)]
pub struct FlowView {
    /// From here to its other end.
    pub flow: FourTuple,
    /// Its data goes to its other end, and what follows is what that end says; else it comes to here.
    pub is_upload: bool,
    /// Since when it is known.
    pub opened: Instant,
    /// The mechanisms in force for it now.
    pub in_force: Vec<Mechanism>,
    /// Mechanisms that may be used and are found to be of no use for it.
    pub not_in_force: Vec<Excuse>,
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
    /// Pure ACKs that the receiving end has sent.
    pub acks: u64,
    /// Of these, sent over a helping link.
    pub offloaded: u64,
    /// Of these, left out because a newer one says all of them.
    pub replaced: u64,
    /// Restarts after a blackout.
    pub kicks: u64,
    /// The connections that were replayed for it; none: there was none.
    pub replay: Option<ReplayView>,
    /// How long packets wait on their way, beyond the least that was seen.
    pub queue: Option<Duration>,
    /// The round trip as seen from here.
    pub rtt: Option<Duration>,
}

/// The connections that were replayed for a flow (`fast-fetch`).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReplayView {
    /// Whether there is one now.
    pub is_on: bool,
    /// Holes that were filled from it.
    pub filled: u64,
    /// Their bytes.
    pub got: DataSize,
    /// What came over the helping link for that, packets' heads included.
    pub came: DataSize,
    /// What the server was told to have come, so that it sent on.
    pub passed: DataSize,
    /// Why the last one has ended, unless it has done its work.
    pub failure: Option<String>,
}

/// Why a mechanism is not in force for a flow.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Excuse {
    /// Which.
    pub mechanism: Mechanism,
    /// Why, in a few words.
    pub why: String,
}

impl FlowView {
    /// Whether anything was done for it that plain TCP does not do; else it is plain TCP, whatever a model says. A trial of offload
    /// that was in vain is nothing.
    pub fn is_helped(&self) -> bool {
        let filled = self.replay.as_ref().map_or(0, |replay| replay.filled);
        let offloads = [Mechanism::Offload, Mechanism::OffloadAsPublished];
        let is_offloaded = self.offloaded > 0 && self.in_force.iter().any(|one| offloads.contains(one));
        is_offloaded || self.undone + self.hidden.bytes() + self.kicks + filled > 0
    }

    /// Why nothing is done for it, if nothing is.
    pub fn left_alone(&self) -> Option<String> {
        let mut reasons: Vec<&str> = Vec::new();
        for excuse in self.not_in_force.iter().filter(|_| self.in_force.is_empty()) {
            if !reasons.contains(&excuse.why.as_str()) {
                reasons.push(&excuse.why);
            }
        }
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }
}

/// A link as it stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LinkView {
    /// Which.
    pub link: LinkId,
    /// Whether it is dark.
    pub is_dark: bool,
    /// Its gateway was asked several times and has never answered: of its blackouts only the carrier tells.
    pub is_deaf: bool,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::packet::FourTuple;

    /// One for which nothing was done.
    fn view() -> FlowView {
        let flow = FourTuple::new(([10, 0, 0, 2], 4000).into(), ([192, 0, 2, 1], 80).into()).unwrap();
        FlowView {
            flow,
            is_upload: false,
            opened: Instant::ZERO,
            in_force: Vec::new(),
            not_in_force: Vec::new(),
            received: DataSize::ZERO,
            goodput: Bitrate::ZERO,
            plain: None,
            holes: 0,
            random: 0,
            undone: 0,
            hidden: DataSize::ZERO,
            missing: DataSize::ZERO,
            acks: 0,
            offloaded: 0,
            replaced: 0,
            kicks: 0,
            replay: None,
            queue: None,
            rtt: None,
        }
    }

    #[test]
    fn a_flow_is_left_alone_only_if_nothing_is_done_for_it() {
        let why = |mechanism, why: &str| Excuse { mechanism, why: why.into() };
        let others = [why(Mechanism::Undo, "one"), why(Mechanism::Hide, "two"), why(Mechanism::FastFetch, "two")];
        let mut view =
            FlowView { in_force: alloc::vec![Mechanism::Reserve], not_in_force: others.to_vec(), ..view() };
        assert_eq!(view.left_alone(), None);
        view.in_force.clear();
        assert_eq!(view.left_alone().as_deref(), Some("one; two"), "each reason once");
        view.not_in_force.clear();
        assert_eq!(view.left_alone(), None, "nothing was looked into yet");
    }

    #[test]
    fn a_flow_is_helped_by_what_was_done_and_not_by_a_trial() {
        let plain = view();
        assert!(!plain.is_helped());
        assert!(FlowView { undone: 1, ..plain.clone() }.is_helped());
        assert!(FlowView { hidden: DataSize::from_bytes(1), ..plain.clone() }.is_helped());
        assert!(FlowView { kicks: 1, ..plain.clone() }.is_helped());
        let tried = FlowView { offloaded: 190, ..plain };
        assert!(!tried.is_helped(), "it ended");
        assert!(FlowView { in_force: alloc::vec![Mechanism::Offload], ..tried }.is_helped());
    }
}
