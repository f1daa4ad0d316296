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
pub struct FlowStatus {
    /// From here to its other end.
    pub flow: FourTuple,
    /// Its data goes to its other end, and what follows is what that end says; else it comes to here.
    pub is_upload: bool,
    /// Since when it is known.
    pub opened: Instant,
    /// The mechanisms in force for it now.
    pub active: Vec<Mechanism>,
    /// Mechanisms that may be used and are found to be of no use for it.
    pub inactive: Vec<InactiveReason>,
    /// Bytes that were acknowledged since it is known: by the own stack or, of an upload, by the other end.
    pub received: DataSize,
    /// What it brought in the last seconds.
    pub goodput: Bitrate,
    /// What plain TCP would bring at this loss and this round trip, by the model (`gain`); none while there is no loss.
    pub plain_tcp: Option<Bitrate>,
    /// Losses seen: holes that the receiving end has reported.
    pub holes: u64,
    /// Of these, called random by the delay gate.
    pub random_losses: u64,
    /// Reductions that the sender was told to take back.
    pub undone_reductions: u64,
    /// Bytes acknowledged before they were here.
    pub early_acked: DataSize,
    /// Of these, still missing.
    pub missing: DataSize,
    /// Pure ACKs that the receiving end has sent.
    pub acks: u64,
    /// Of these, sent over a helping link.
    pub offloaded: u64,
    /// Of these, left out because a newer one says all of them.
    pub replaced: u64,
    /// Restarts after a blackout.
    pub restarts: u64,
    /// The connections that were replayed for it; none: there was none.
    pub mirrored_conn: Option<MirroredConnStatus>,
    /// How long packets wait on their way, beyond the least that was seen.
    pub queueing_delay: Option<Duration>,
    /// The round trip as seen from here.
    pub rtt: Option<Duration>,
}

/// The connections that were replayed for a flow (`fast-fetch`).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MirroredConnStatus {
    /// Whether there is one now.
    pub is_open: bool,
    /// Holes that were filled from it.
    pub filled_holes: u64,
    /// Their bytes.
    pub filled_bytes: DataSize,
    /// What came over the helping link for that, packets' heads included.
    pub received: DataSize,
    /// What the server was told to have come, so that it sent on.
    pub skipped: DataSize,
    /// Why the last one has ended, unless it has done its work.
    pub failure: Option<String>,
}

/// Why a mechanism is not in force for a flow.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct InactiveReason {
    /// Which.
    pub mechanism: Mechanism,
    /// Why, in a few words.
    pub reason: String,
}

impl FlowStatus {
    /// Whether anything was done for it that plain TCP does not do; else it is plain TCP, whatever a model says. A trial of offload
    /// that was in vain is nothing.
    pub fn is_accelerated(&self) -> bool {
        let filled = self.mirrored_conn.as_ref().map_or(0, |conn| conn.filled_holes);
        let offloads = [Mechanism::AckOffload, Mechanism::AckOffloadAsPublished];
        let is_offloaded = self.offloaded > 0 && self.active.iter().any(|one| offloads.contains(one));
        is_offloaded || self.undone_reductions + self.early_acked.bytes() + self.restarts + filled > 0
    }

    /// Why nothing is done for it, if nothing is.
    pub fn inactive_reason(&self) -> Option<String> {
        let mut reasons: Vec<&str> = Vec::new();
        for one in self.inactive.iter().filter(|_| self.active.is_empty()) {
            if !reasons.contains(&one.reason.as_str()) {
                reasons.push(&one.reason);
            }
        }
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }
}

/// A link as it stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LinkStatus {
    /// Which.
    pub link: LinkId,
    /// Whether it is dark.
    pub is_down: bool,
    /// Its gateway was asked several times and has never answered: of its blackouts only the carrier tells.
    pub is_unresponsive: bool,
    /// Blackouts so far.
    pub outages: u64,
    /// Their time together.
    pub outage_time: Duration,
    /// The round trip to its gateway, the last that was measured.
    pub rtt: Option<Duration>,
    /// What may be sent over it, where that is limited.
    pub send_limit: Option<Bitrate>,
    /// What it brings, where that is known.
    pub receive_rate: Option<Bitrate>,
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
    fn view() -> FlowStatus {
        let flow = FourTuple::new(([10, 0, 0, 2], 4000).into(), ([192, 0, 2, 1], 80).into()).unwrap();
        FlowStatus {
            flow,
            is_upload: false,
            opened: Instant::ZERO,
            active: Vec::new(),
            inactive: Vec::new(),
            received: DataSize::ZERO,
            goodput: Bitrate::ZERO,
            plain_tcp: None,
            holes: 0,
            random_losses: 0,
            undone_reductions: 0,
            early_acked: DataSize::ZERO,
            missing: DataSize::ZERO,
            acks: 0,
            offloaded: 0,
            replaced: 0,
            restarts: 0,
            mirrored_conn: None,
            queueing_delay: None,
            rtt: None,
        }
    }

    #[test]
    fn a_flow_is_left_alone_only_if_nothing_is_done_for_it() {
        let inactive = |mechanism, inactive: &str| InactiveReason { mechanism, reason: inactive.into() };
        let others = [
            inactive(Mechanism::EifelUndo, "one"),
            inactive(Mechanism::EarlyAck, "two"),
            inactive(Mechanism::FastFetch, "two"),
        ];
        let mut view =
            FlowStatus { active: alloc::vec![Mechanism::WithheldAck], inactive: others.to_vec(), ..view() };
        assert_eq!(view.inactive_reason(), None);
        view.active.clear();
        assert_eq!(view.inactive_reason().as_deref(), Some("one; two"), "each reason once");
        view.inactive.clear();
        assert_eq!(view.inactive_reason(), None, "nothing was looked into yet");
    }

    #[test]
    fn a_flow_is_helped_by_what_was_done_and_not_by_a_trial() {
        let plain = view();
        assert!(!plain.is_accelerated());
        assert!(FlowStatus { undone_reductions: 1, ..plain.clone() }.is_accelerated());
        assert!(FlowStatus { early_acked: DataSize::from_bytes(1), ..plain.clone() }.is_accelerated());
        assert!(FlowStatus { restarts: 1, ..plain.clone() }.is_accelerated());
        let tried = FlowStatus { offloaded: 190, ..plain };
        assert!(!tried.is_accelerated(), "it ended");
        assert!(FlowStatus { active: alloc::vec![Mechanism::AckOffload], ..tried }.is_accelerated());
    }
}
