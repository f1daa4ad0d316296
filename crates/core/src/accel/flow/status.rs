//! The status of a flow, and the few properties that the accelerator reads of each.

use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::{AckCounts, Direction, FlowState, PathVerdict};
use crate::accel::early_ack::flow_state::EarlyAckFlow;
use crate::accel::observation::tcp_model::plain_tcp_rate;
use crate::accel::status::{FlowStatus, InactiveReason};
use crate::accel::{Mechanism, Mechanisms, NotFetchable};
use crate::units::{Bitrate, DataSize, Duration, Instant};
use crate::wire::packet::FourTuple as Key;

impl FlowState {
    /// The flow as it is now.
    pub(in crate::accel) fn status(&self, now: Instant, mechanisms: &Mechanisms) -> FlowStatus {
        let has_timestamps = self.last_ack.is_some_and(|(last, _)| last.timestamps.is_some());
        let (early_acked, missing, early_acked_holes) =
            self.early_ack.as_ref().map(EarlyAckFlow::counters).unwrap_or_default();
        let mut active = Vec::new();
        let is_mirrored =
            self.early_ack.as_ref().is_some_and(EarlyAckFlow::is_fetchable) && !self.fetch_latency.is_paused(now);
        let is_of_use = |m: &Mechanism| *m != Mechanism::EarlyAck || self.has_window_for_holes(now);
        active.extend(NEEDS_FETCH.into_iter().filter(|m| is_mirrored && mechanisms.has(*m) && is_of_use(m)));
        if mechanisms.has(Mechanism::EifelUndo)
            && has_timestamps
            && !self.congestion_response.is_unresponsive()
            && self.path_verdict == PathVerdict::Trusted
        {
            active.push(Mechanism::EifelUndo);
        }
        if self.withheld_ack.can_restart_sender() {
            active.push(Mechanism::WithheldAck);
        }
        if mechanisms.has(Mechanism::OutageRevert) && self.recovery.is_active() {
            active.push(Mechanism::OutageRevert);
        }
        if self.ack_path.is_on() {
            active.push(Mechanism::AckOffload);
        } else if self.counts.offloaded > 0 && mechanisms.has(Mechanism::AckOffloadAsPublished) {
            active.push(Mechanism::AckOffloadAsPublished);
        }
        if self.is_frozen {
            active.push(Mechanism::ZeroWindowFreeze);
        }
        let is_upload = self.direction == Direction::Upload;
        FlowStatus {
            flow: if is_upload { self.key.reversed() } else { self.key },
            is_upload,
            opened: self.opened,
            inactive: self.inactive(now, mechanisms, has_timestamps),
            active,
            received: self.goodput.total(),
            goodput: self.goodput.rate(now),
            plain_tcp: self.plain_tcp(self.local_holes.count()),
            holes: self.local_holes.count(),
            random_losses: self.eifel_undo.random_losses() + early_acked_holes,
            undone_reductions: self.eifel_undo.undone_reductions(),
            early_acked: DataSize::from_bytes(early_acked),
            missing: DataSize::from_bytes(missing),
            acks: self.counts.acks,
            offloaded: self.counts.offloaded,
            replaced: self.counts.replaced,
            restarts: self.recovery.restarts(),
            mirrored_conn: None,
            queueing_delay: self.loss_classifier.queueing_delay(now),
            rtt: self.rtt.smoothed(),
        }
    }

    /// The shortest round trip, if its ACKs may wait to be handled together with others: where random losses are
    /// frequent and are undone or acknowledged early. Elsewhere a sender that receives several ACKs at once would only
    /// send in bursts.
    pub(in crate::accel) fn max_ack_delay(&self, now: Instant) -> Option<Duration> {
        let may_wait = self.loss_classifier.has_random_loss(now) && !self.congestion_response.is_unresponsive();
        self.rtt.measured_min().filter(|_| may_wait)
    }

    /// The rate that plain TCP would have, with as many losses as the receiver has seen (or the sender has learned of).
    pub(super) fn plain_tcp(&self, holes: u64) -> Option<Bitrate> {
        let segments = self.goodput.total().bytes() / u64::from(self.segment_size);
        let segment = DataSize::from_bytes(u64::from(self.segment_size));
        plain_tcp_rate(segment, self.rtt.smoothed()?, segments, holes)
    }

    /// Mechanisms that are enabled and do nothing for this flow, with the reasons.
    fn inactive(&self, now: Instant, mechanisms: &Mechanisms, has_timestamps: bool) -> Vec<InactiveReason> {
        let mut reasons = Vec::new();
        let mut inactive = |mechanism, reason: String| {
            if mechanisms.has(mechanism) {
                reasons.push(InactiveReason { mechanism, reason });
            }
        };
        if self.congestion_response.is_unresponsive() {
            inactive(Mechanism::EifelUndo, "its sender does not slow down after losses".into());
        } else if !has_timestamps && self.last_ack.is_some() {
            inactive(Mechanism::EifelUndo, "it has no timestamps".into());
        } else if self.path_verdict == PathVerdict::Refused {
            inactive(Mechanism::EifelUndo, "losses on its path become more with its rate".into());
        } else if self.path_verdict == PathVerdict::Marked {
            inactive(Mechanism::EifelUndo, "its path marks packets because of congestion".into());
        } else if self.path_verdict == PathVerdict::Unknown && self.local_holes.count() > 0 {
            inactive(Mechanism::EifelUndo, "whether losses on its path depend on its rate is not known yet".into());
        }
        if self.is_multipath() {
            mechanisms
                .iter()
                .for_each(|one| inactive(one, "a part of an MPTCP connection is left as it is".into()));
        }
        if self.ack_path.trial().has_no_benefit() {
            inactive(Mechanism::AckOffload, "it runs no better with its ACKs elsewhere".into());
        } else if self.ack_path.trial().is_link_unavailable() {
            inactive(Mechanism::AckOffload, "the second link's gateway does not answer".into());
        }
        let is_news = |refusal: &NotFetchable| *refusal != NotFetchable::Finished;
        if let Some(refusal) = self.early_ack.as_ref().and_then(EarlyAckFlow::not_fetchable).filter(is_news) {
            let of_bytes = [Mechanism::EarlyAck, Mechanism::FastFetch];
            of_bytes.into_iter().for_each(|one| inactive(one, refusal.to_string()));
        }
        let is_fetchable = self.early_ack.as_ref().is_some_and(|early_ack| early_ack.not_fetchable().is_none());
        if is_fetchable && self.fetch_latency.is_paused(now) {
            let all = [Mechanism::EarlyAck, Mechanism::FastFetch, Mechanism::FreezeInFlight];
            all.into_iter().for_each(|one| inactive(one, "missing bytes come too late".into()));
        } else if is_fetchable && !self.has_window_for_holes(now) {
            let of_holes = [Mechanism::EarlyAck, Mechanism::FastFetch];
            of_holes
                .into_iter()
                .for_each(|one| inactive(one, "its window is used up before missing bytes come".into()));
        }
        if !is_fetchable {
            inactive(Mechanism::FreezeInFlight, "it is not frozen, as its bytes cannot be had elsewhere".into());
        }
        reasons
    }

    /// Counters of what became of its ACKs.
    pub(in crate::accel) const fn counts_mut(&mut self) -> &mut AckCounts {
        &mut self.counts
    }

    /// The receiver's window scale; the largest possible one while it is unknown.
    pub(in crate::accel) fn window_scale(&self) -> u8 {
        self.scale.unwrap_or(14)
    }

    /// Which end is the local stack.
    pub(in crate::accel) const fn direction(&self) -> Direction {
        self.direction
    }

    /// From the receiver to the sender.
    pub(in crate::accel) const fn key(&self) -> Key {
        self.key
    }

    /// When its last packet was observed.
    pub(in crate::accel) const fn last_packet(&self) -> Instant {
        self.last_packet
    }

    /// Until when its packets are to be captured.
    pub(in crate::accel) fn capture_until(&self) -> Option<Instant> {
        self.reported_holes.last_open().map(|last| last + CAPTURE_TIME)
    }
}

/// Mechanisms that need bytes that can be fetched.
const NEEDS_FETCH: [Mechanism; 2] = [Mechanism::EarlyAck, Mechanism::FreezeInFlight];
/// chosen: losses come in groups, and a few seconds of capture cost little.
const CAPTURE_TIME: Duration = Duration::from_secs(10);
