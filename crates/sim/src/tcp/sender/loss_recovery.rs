//! What a sender makes of an ACK or a timeout: which segments were delivered, which are lost, the phase of the loss
//! recovery, and the congestion window.

use marline_core::units::Instant;

use super::{Delivered, ForcedSegment, Phase, Sender, TimerKind};
use crate::tcp::congestion::Congestion;
use crate::tcp::prr::{AckSummary, Prr};
use crate::tcp::scoreboard::SentSegment;
use crate::tcp::segment::{Segment, SeqRange};
use crate::tcp::undo::PriorCwnd;

impl Sender {
    pub(super) fn reset_backoff(&mut self) {
        (self.timeouts, self.backoff) = (0, 0);
    }

    pub(super) fn process_ack(&mut self, now: Instant, segment: &Segment) -> Delivered {
        let mut delivered = Delivered::default();
        let min_rtt = self.rtt.min();
        let highest_sacked = self.scoreboard.highest_sacked();
        while let Some(sent) = self.scoreboard.pop_acked(segment.ack) {
            if sent.is_retransmitted {
                delivered.any_retransmitted = true;
            } else if !sent.is_sacked {
                delivered.any_original |= self.was_before_timeout(&sent);
                delivered.first_sent_at.get_or_insert(sent.sent_at);
                delivered.last_sent_at = Some(sent.sent_at);
                // An original that arrives after a higher number was selectively acknowledged was reordered.
                if sent.end() < highest_sacked {
                    self.rack.on_reordered();
                }
            }
            if !sent.is_sacked {
                delivered.segments += 1;
                self.rack.on_delivered(now, &sent, min_rtt);
            }
        }
        self.una = self.una.max(segment.ack);
        let recovery_point = self.recovery_point();
        for block in segment.sacks.iter().filter(|block| block.start >= segment.ack) {
            let rack = &mut self.rack;
            self.scoreboard.sack(block, |sent| {
                delivered.segments += 1;
                delivered.any_sacked = true;
                if !sent.is_retransmitted {
                    delivered.any_original |= sent.end() <= recovery_point;
                    delivered.newest_sacked_sent_at = Some(sent.sent_at);
                    if sent.end() < highest_sacked {
                        rack.on_reordered();
                    }
                }
                rack.on_delivered(now, sent, min_rtt);
            });
        }
        delivered
    }

    pub(super) fn sample_rtt(&mut self, now: Instant, segment: &Segment, delivered: Delivered, advanced: bool) {
        let sample = match (delivered.first_sent_at, delivered.newest_sacked_sent_at, segment.ts_ecr) {
            (Some(first), ..) if !delivered.any_retransmitted => now.since(first),
            (_, Some(sacked), _) => now.since(sacked),
            (.., Some(echo)) if advanced => now.since(echo),
            _ => return,
        };
        self.rtt.on_sample(sample);
        if let Some(last) =
            delivered.last_sent_at.filter(|_| !delivered.any_retransmitted).or(delivered.newest_sacked_sent_at)
        {
            self.congestion.on_rtt(now, now.since(last), self.una, self.nxt);
        }
    }

    /// Evaluates the response to a tail-loss probe: did it repair a loss? (RFC 8985 §7.4)
    pub(super) fn on_probe_ack(
        &mut self,
        now: Instant,
        segment: &Segment,
        has_dsack: bool,
        advanced: bool,
        delivered: u32,
    ) {
        let Some(probe) = self.tail_loss_probe.filter(|probe| segment.ack >= probe.nxt) else { return };
        // RFC 8985 §7.4.2: an ACK beyond the probe without a DSACK means that the probe repaired a loss.
        if probe.is_retransmission && !has_dsack && segment.ack > probe.nxt {
            self.congestion.on_loss();
            self.congestion.cwnd = self.congestion.cwnd.min(self.congestion.ssthresh);
        } else if probe.is_retransmission && !has_dsack && (advanced || delivered > 0) {
            return;
        }
        self.tail_loss_probe = None;
        if matches!(self.timer, Some((_, TimerKind::TailLossProbe))) {
            self.rearm(now);
        }
    }

    /// Ends a phase or undoes a reduction. Returns true if no segment may be marked as lost yet.
    pub(super) fn update_phase(&mut self, ts_ecr: Option<Instant>, delivered: Delivered, advanced: bool) -> bool {
        match self.phase {
            Phase::Recovery { recovery_point: until, .. } if self.una >= until => {
                if !(self.can_undo(ts_ecr) && self.undo_reduction(false)) {
                    self.congestion.cwnd = self.congestion.ssthresh;
                }
                self.phase = Phase::Open;
            }
            Phase::Recovery { .. } if advanced && self.config.undo && self.undo.is_original(ts_ecr) => {
                self.rack.on_reordered();
                // Until the retransmissions in flight are acknowledged, no more losses are marked and the window is
                // not restored.
                if self.scoreboard.retransmits_in_flight() > 0 {
                    return true;
                }
                self.undo.forget_retransmits();
                self.undo_reduction(true);
                self.phase = Phase::Open;
            }
            Phase::Loss { recovery_point: until, maybe_spurious: doubtful } => {
                self.update_loss_phase(until, doubtful, ts_ecr, delivered, advanced)
            }
            Phase::Open | Phase::Recovery { .. } => {}
        }
        if self.config.undo
            && !matches!(self.phase, Phase::Loss { .. })
            && self.undo.all_retransmits_were_spurious()
        {
            self.undo_reduction(false);
            self.phase = Phase::Open;
        }
        false
    }

    /// Eifel detection and F-RTO after a timeout.
    fn update_loss_phase(
        &mut self,
        recovery_point: u64,
        maybe_spurious: bool,
        ts_ecr: Option<Instant>,
        delivered: Delivered,
        advanced: bool,
    ) {
        // F-RTO: the delivery of a segment that was not retransmitted shows that the timeout was spurious.
        let is_spurious = maybe_spurious && delivered.any_original;
        if (advanced && self.can_undo(ts_ecr)) || is_spurious {
            self.undo_reduction(true);
            self.reset_backoff();
            self.phase = Phase::Open;
        } else if self.una >= recovery_point {
            self.phase = Phase::Open;
        } else if maybe_spurious && self.nxt > recovery_point {
            // F-RTO step 3: new data was sent, and a selective acknowledgement now proves a loss.
            self.phase = Phase::Loss { recovery_point, maybe_spurious: !delivered.any_sacked };
        } else if maybe_spurious && advanced {
            // F-RTO step 2b: the first ACK advances, so new data is sent and the next ACK decides.
            self.phase = Phase::Loss { recovery_point: self.nxt, maybe_spurious };
            self.new_data_first = true;
        }
    }

    fn can_undo(&self, ts_ecr: Option<Instant>) -> bool {
        self.config.undo && self.undo.can_undo(ts_ecr)
    }

    /// Restores what the last reduction changed; with `clear_losses`, also clears all loss marks.
    fn undo_reduction(&mut self, clear_losses: bool) -> bool {
        if clear_losses {
            self.scoreboard.clear_lost();
        }
        let Some(prior) = self.undo.take() else { return false };
        self.congestion.cwnd = self.congestion.cwnd.max(prior.cwnd);
        self.congestion.ssthresh = self.congestion.ssthresh.max(prior.ssthresh);
        true
    }

    /// Saves the window and threshold before a reduction.
    fn save_prior_cwnd(&mut self) {
        let Congestion { cwnd: window, ssthresh: threshold, .. } = self.congestion;
        // As in `tcp_current_ssthresh`: at least three quarters of the window are restored.
        let threshold = match self.phase {
            Phase::Recovery { .. } => threshold,
            Phase::Open | Phase::Loss { .. } => threshold.max(window / 2 + window / 4),
        };
        self.undo.on_reduction(
            self.una,
            PriorCwnd { cwnd: window, ssthresh: threshold },
            self.scoreboard.retransmits_in_flight(),
        );
    }

    /// Whether the segment was sent before the last timeout.
    fn was_before_timeout(&self, sent: &SentSegment) -> bool {
        sent.end() <= self.recovery_point()
    }

    fn recovery_point(&self) -> u64 {
        match self.phase {
            Phase::Loss { recovery_point: until, .. } => until,
            Phase::Open | Phase::Recovery { .. } => self.nxt,
        }
    }

    /// Without SACK: counts duplicate ACKs. Returns the number of segments that this ACK delivers.
    pub(super) fn count_dup_acks(
        &mut self,
        segment: &Segment,
        prior_window_end: u64,
        acked: u32,
        advanced: bool,
    ) -> u32 {
        if advanced {
            self.scoreboard.reset_dup_acks(acked.saturating_sub(1), matches!(self.phase, Phase::Open));
            return acked;
        }
        let is_dup_ack =
            segment.ack == self.una && segment.seqs.is_empty() && self.peer_window.window_end() == prior_window_end;
        u32::from(is_dup_ack && self.scoreboard.count_dup_ack())
    }

    /// Marks losses, and enters recovery at the first one. Returns whether there were new losses.
    pub(super) fn detect_losses(&mut self, now: Instant, advanced: bool) -> bool {
        let recovering = !matches!(self.phase, Phase::Open);
        let (lost, recheck_at) = if self.config.sack {
            self.rack.detect_losses(now, &mut self.scoreboard, &self.rtt, recovering)
        } else {
            (self.detect_losses_without_sack(advanced), None)
        };
        if let Some(recheck_at) = recheck_at {
            self.timer = Some((recheck_at, TimerKind::RackReordering));
        }
        if self.scoreboard.lost() > 0 && !recovering {
            let prr = Prr::new(self.congestion.cwnd);
            self.save_prior_cwnd();
            self.congestion.on_loss();
            self.phase = Phase::Recovery { recovery_point: self.nxt, prr };
            self.tail_loss_probe = None;
            self.apply_prr(0, false);
            if recheck_at.is_none() {
                self.rearm_timeout(now, true);
            }
        }
        lost > 0
    }

    /// RFC 6582: the first segment is lost after three duplicate ACKs and after a partial ACK.
    fn detect_losses_without_sack(&mut self, advanced: bool) -> u32 {
        let is_lost = match self.phase {
            Phase::Open => self.scoreboard.dup_acks() >= DUP_ACK_THRESHOLD,
            Phase::Recovery { .. } => advanced,
            Phase::Loss { .. } => false,
        };
        let una = self.una;
        if is_lost { self.scoreboard.mark_lost(|sent| sent.data.start <= una && !sent.is_retransmitted) } else { 0 }
    }

    pub(super) fn update_cwnd(&mut self, now: Instant, delivered: u32, advanced: bool, newly_lost: bool) {
        match self.phase {
            Phase::Recovery { .. } if delivered > 0 => self.apply_prr(delivered, advanced && !newly_lost),
            Phase::Recovery { .. } => {}
            Phase::Open | Phase::Loss { .. } => {
                if advanced && self.cwnd_limited.is_limited(&self.congestion) {
                    self.congestion.on_ack(now, delivered);
                }
            }
        }
    }

    fn apply_prr(&mut self, delivered: u32, advanced_without_loss: bool) {
        if let Phase::Recovery { prr, .. } = &mut self.phase {
            let ack = AckSummary { delivered, advanced_without_loss };
            self.congestion.cwnd = prr.on_ack(ack, self.scoreboard.in_flight(), self.congestion.ssthresh);
        }
    }

    pub(super) fn on_probe_timer(&mut self, now: Instant) {
        self.forced_segment = Some(ForcedSegment::TailLossProbe);
        self.rearm_timeout(now, true);
    }

    pub(super) fn on_timeout(&mut self, now: Instant) {
        if self.scoreboard.outstanding() == 0 {
            return;
        }
        let was_open = matches!(self.phase, Phase::Open);
        // Linux reduces the threshold again if data was acknowledged since the last timeout, or while the peer's
        // window is zero.
        let is_repeated =
            matches!(self.phase, Phase::Loss { .. }) && (self.timeouts == 0 || self.peer_window.is_closed());
        if was_open || is_repeated {
            self.save_prior_cwnd();
            self.congestion.on_loss();
        }
        // As in `tcp_enter_loss`: F-RTO is not used for the first timeout during fast recovery.
        let maybe_spurious = self.config.undo && self.config.sack && (was_open || self.timeouts > 0);
        self.phase = Phase::Loss { recovery_point: self.nxt, maybe_spurious };
        self.congestion.on_timeout();
        self.tail_loss_probe = None;
        if self.timeouts == 0 {
            self.first_timeout_at = now;
        }
        self.timeouts += 1;
        self.backoff += 1;
        let (una, rack, rtt) = (self.una, &self.rack, &self.rtt);
        let without_sack = !self.config.sack;
        self.scoreboard.reset_dup_acks(u32::MAX, true);
        self.scoreboard
            .mark_lost(|sent| without_sack || sent.data.start <= una || rack.is_lost_on_timeout(now, sent, rtt));
        self.scoreboard.clear_first_retransmit();
        // The window permits one segment: the first unacknowledged one.
        self.congestion.cwnd = self.scoreboard.in_flight() + 1;
        self.forced_segment = Some(ForcedSegment::FirstUnacked);
        self.rearm_timeout(now, false);
    }
}

/// DSACK (RFC 2883 §4): the first block is below the ACK or inside the second block.
pub(super) fn dsack_block(segment: &Segment) -> Option<SeqRange> {
    let mut blocks = segment.sacks.iter();
    let first = blocks.next()?;
    (first.start < segment.ack || blocks.next().is_some_and(|second| second.covers(first))).then_some(first)
}

/// Duplicate ACK threshold of RFC 5681 §3.2.
const DUP_ACK_THRESHOLD: u32 = 3;
