//! Status of flows and links, for `marline accel status` and reports.

use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::mechanism::{Mechanism, Mechanisms};
use crate::link::LinkId;
use crate::units::{Bitrate, DataSize, Duration, Instant};
use crate::wire::packet::FourTuple;

/// Status of a flow.
#[derive(Clone, PartialEq, Debug)]
pub struct FlowStatus {
    /// From this host to the peer.
    pub flow: FourTuple,
    /// Its data goes to the peer, and the figures are from the peer's ACKs; else it comes to this host.
    pub is_upload: bool,
    /// Since when it is known.
    pub opened: Instant,
    /// The mechanisms that act on it now.
    pub active: Vec<Mechanism>,
    /// Mechanisms that are enabled and of no use for it.
    pub inactive: Vec<InactiveReason>,
    /// Bytes that were acknowledged since it is known: by the local stack or, of an upload, by the peer.
    pub received: DataSize,
    /// Goodput of the last two seconds.
    pub goodput: Bitrate,
    /// What plain TCP would reach at this loss and round-trip time, by the model (`tcp_model`); none while there is no
    /// loss.
    pub plain_tcp: Option<Bitrate>,
    /// Losses: holes that the receiver has reported.
    pub holes: u64,
    /// Of these, classified as random.
    pub random_losses: u64,
    /// Congestion window reductions that the sender was made to undo.
    pub undone_reductions: u64,
    /// Bytes that were acknowledged before they arrived.
    pub early_acked: DataSize,
    /// Of these, still missing.
    pub missing: DataSize,
    /// Pure ACKs of the receiver.
    pub acks: u64,
    /// Of these, sent over a secondary link.
    pub offloaded: u64,
    /// Of these, dropped because a newer one supersedes them.
    pub replaced: u64,
    /// Outages after which the sender was restarted.
    pub restarts: u64,
    /// Its mirrored connections; none: there was none.
    pub mirrored_conn: Option<MirroredConnStatus>,
    /// How long packets queue, beyond the minimum delay.
    pub queueing_delay: Option<Duration>,
    /// The round-trip time as measured here.
    pub rtt: Option<Duration>,
}

/// The mirrored connections of a flow (`fast-fetch`).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MirroredConnStatus {
    /// Whether there is one now.
    pub is_open: bool,
    /// Holes that were filled from it.
    pub filled_holes: u64,
    /// Bytes of these holes.
    pub filled_bytes: DataSize,
    /// What came over the secondary link for that, headers included.
    pub received: DataSize,
    /// What was acknowledged without having arrived, so that the server sent on.
    pub skipped: DataSize,
    /// Why the last one has ended, unless it was finished.
    pub failure: Option<String>,
}

/// Why a mechanism does not act on a flow.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct InactiveReason {
    /// The mechanism.
    pub mechanism: Mechanism,
    /// The reason, in a few words.
    pub reason: String,
}

/// What the mechanisms report of one flow. Only those that are enabled are listed.
#[derive(Clone, Debug)]
pub(crate) struct MechanismReport<'a> {
    enabled: &'a Mechanisms,
    pub(crate) active: Vec<Mechanism>,
    pub(crate) inactive: Vec<InactiveReason>,
}

impl<'a> MechanismReport<'a> {
    /// An empty report.
    pub(crate) const fn new(enabled: &'a Mechanisms) -> Self {
        Self { enabled, active: Vec::new(), inactive: Vec::new() }
    }

    /// The mechanism acts on the flow, if `is_active`.
    pub(crate) fn active(&mut self, mechanism: Mechanism, is_active: bool) {
        if is_active && self.enabled.has(mechanism) {
            self.active.push(mechanism);
        }
    }

    /// These mechanisms do nothing for the flow, for this reason.
    pub(crate) fn inactive(&mut self, mechanisms: &[Mechanism], reason: &str) {
        let enabled = mechanisms.iter().filter(|mechanism| self.enabled.has(**mechanism));
        self.inactive
            .extend(enabled.map(|mechanism| InactiveReason { mechanism: *mechanism, reason: reason.into() }));
    }
}

impl FlowStatus {
    /// Whether anything was done for it that plain TCP does not do; else a model of plain TCP says nothing about it. An
    /// offload trial without benefit does not count.
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

/// Status of a link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LinkStatus {
    /// Which link.
    pub link: LinkId,
    /// Whether it is down.
    pub is_down: bool,
    /// Its gateway was probed several times and has never replied: only its carrier shows outages.
    pub is_unresponsive: bool,
    /// Outages so far.
    pub outages: u64,
    /// Total duration of the outages.
    pub outage_time: Duration,
    /// The last round trip to its gateway.
    pub rtt: Option<Duration>,
    /// The rate at which may be sent over it, where that is limited.
    pub send_limit: Option<Bitrate>,
    /// The rate that it delivers, where known.
    pub receive_rate: Option<Bitrate>,
    /// Bytes of the accelerator's own that were sent over it.
    pub sent: DataSize,
    /// Bytes that were fetched over it.
    pub fetched: DataSize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::packet::FourTuple;

    /// A flow that nothing was done for.
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
    fn a_flow_has_an_inactive_reason_only_if_nothing_is_done_for_it() {
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
        assert_eq!(view.inactive_reason(), None, "nothing was tried yet");
    }

    #[test]
    fn a_flow_is_accelerated_by_what_was_done_not_by_a_trial() {
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
