//! Sender of one direction: chooses the next segment, processes ACKs and runs the timer.
//!
//! 1. Lost segments are sent first, then new data, both within the congestion window and the peer's window.
//! 2. There is one timer, as in Linux. It is the tail-loss probe while no loss is suspected (RFC 8985 §7), the
//!    reordering window while one is running, and otherwise the retransmission timeout. The timeout doubles each
//!    time (RFC 6298 §5), for a quarter of an hour in total.
//! 3. The window grows only on ACKs of data that was sent while the window was full (`cwnd_limited`).
//! 4. After a pause longer than a timeout the window is reduced (RFC 5681 §4.1).
//! 5. Only the last segment may be small, which is what both Nagle's algorithm and `TCP_NODELAY` give a server that
//!    always has more data.
//! 6. A spurious reduction is undone (`undo`): at the end of recovery, at a partial ACK, after a timeout (there
//!    also by F-RTO, RFC 5682 §3.1), and later when duplicates are reported. [`SenderConfig::undo`] disables this.
//! 7. Zero window: with segments outstanding the timeout continues, and each one reduces the threshold again, as in
//!    Linux 6.18. With nothing outstanding the receiver is probed (`persist`).
//! 8. Without SACK, duplicate ACKs count as delivered segments (RFC 6582, counted as in Linux).
//! 9. If the first unacknowledged segment is reported as unreachable, one doubling of its timer is reverted (RFC
//!    6069).

use core::time::Duration;

use marline_core::units::Instant;

use super::congestion::{Algorithm, Congestion};
use super::cwnd_limited::CwndLimited;
use super::persist::PeerWindow;
use super::prr::{AckSummary, Prr};
use super::rack::Rack;
use super::rtt::RttEstimator;
use super::scoreboard::{Scoreboard, SentSegment};
use super::segment::{Segment, SeqRange};
use super::undo::{PriorCwnd, UndoState};

/// Options of a sender.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SenderConfig {
    /// Whether spurious reductions are undone.
    pub(super) undo: bool,
    /// Whether the peer sends SACK blocks.
    pub(super) sack: bool,
}

/// Sending side of one direction.
#[derive(Clone, Debug)]
pub(super) struct Sender {
    mss: u64,
    /// First unacknowledged sequence number.
    una: u64,
    /// Next sequence number to be sent.
    nxt: u64,
    /// End of the data that the application has written.
    write_end: u64,
    fin: FinState,
    peer_window: PeerWindow,
    config: SenderConfig,
    undo: UndoState,
    scoreboard: Scoreboard,
    congestion: Congestion,
    rtt: RttEstimator,
    rack: Rack,
    phase: Phase,
    timer: Option<(Instant, TimerKind)>,
    /// Number of consecutive timeouts, and the time of the first of them.
    timeouts: u32,
    first_timeout_at: Instant,
    /// Number of doublings of the timer in effect; [`Self::on_unreachable`] reverts some.
    backoff: u32,
    tail_loss_probe: Option<TailLossProbe>,
    cwnd_limited: CwndLimited,
    last_sent: Instant,
    forced_segment: Option<ForcedSegment>,
    /// F-RTO step 2b, until the next ACK: send new segments if there are any, and retransmit none.
    new_data_first: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FinState {
    NotRequested,
    Requested,
    Sent,
}

/// State of the loss recovery.
#[derive(Clone, Copy, Debug)]
enum Phase {
    /// No loss is known.
    Open,
    /// Fast recovery, until `recovery_point` is acknowledged.
    Recovery { recovery_point: u64, prr: Prr },
    /// After a timeout, until `recovery_point` is acknowledged. With `maybe_spurious`, F-RTO still checks the
    /// timeout.
    Loss { recovery_point: u64, maybe_spurious: bool },
}

/// Purpose of the running timer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum TimerKind {
    Retransmit,
    TailLossProbe,
    RackReordering,
    Persist,
}

/// A tail-loss probe without a response so far.
#[derive(Clone, Copy, Debug)]
struct TailLossProbe {
    nxt: u64,
    is_retransmission: bool,
}

/// A segment that is sent regardless of the window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ForcedSegment {
    TailLossProbe,
    FirstUnacked,
    WindowProbe,
}

/// What one ACK has delivered.
#[derive(Clone, Copy, Debug, Default)]
struct Delivered {
    segments: u32,
    first_sent_at: Option<Instant>,
    last_sent_at: Option<Instant>,
    newest_sacked_sent_at: Option<Instant>,
    any_retransmitted: bool,
    /// Whether a segment that was sent only once was newly delivered.
    any_original: bool,
    /// Whether anything was newly selectively acknowledged.
    any_sacked: bool,
}

/// A segment to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Outgoing {
    /// Sequence numbers of the payload.
    pub(super) data: SeqRange,
    /// Whether it carries the FIN.
    pub(super) has_fin: bool,
}

impl Sender {
    /// A sender without data.
    pub(super) fn new(algorithm: Algorithm, mss: u64, config: SenderConfig) -> Self {
        Self {
            mss,
            una: 0,
            nxt: 0,
            write_end: 0,
            fin: FinState::NotRequested,
            peer_window: PeerWindow::default(),
            config,
            undo: UndoState::default(),
            scoreboard: Scoreboard::default(),
            congestion: Congestion::new(algorithm),
            rtt: RttEstimator::default(),
            rack: Rack::default(),
            phase: Phase::Open,
            timer: None,
            timeouts: 0,
            first_timeout_at: Instant::ZERO,
            backoff: 0,
            tail_loss_probe: None,
            cwnd_limited: CwndLimited::default(),
            last_sent: Instant::ZERO,
            forced_segment: None,
            new_data_first: false,
        }
    }

    /// The application writes data.
    pub(super) fn write(&mut self, bytes: u64) {
        self.write_end += bytes;
    }

    /// The application has written everything; a FIN follows the data.
    pub(super) fn finish(&mut self) {
        if self.fin == FinState::NotRequested {
            self.fin = FinState::Requested;
        }
    }

    /// Duration of the handshake, if no SYN was retransmitted.
    pub(super) fn on_handshake(&mut self, rtt: Duration) {
        self.rtt.on_sample(rtt);
    }

    /// End of the receive window announced in the handshake.
    pub(super) fn on_handshake_window(&mut self, window_end: u64) {
        self.peer_window.on_handshake(window_end);
    }

    /// Processes an ACK.
    ///
    /// The order matters: the scoreboard is updated first, then the phase (which may undo a reduction), then losses
    /// are detected, and only then the window changes.
    pub(super) fn on_ack(&mut self, now: Instant, segment: &Segment) {
        if segment.ack > self.nxt {
            return;
        }
        let prior_una = self.una;
        let window = self.peer_window.window_end();
        self.new_data_first = false;
        if segment.ack >= prior_una {
            self.peer_window.on_ack(segment, prior_una);
        }
        // DSACK blocks are compared with the first unacknowledged number before this ACK.
        let dsack = dsack_block(segment);
        if let Some(block) = dsack {
            self.undo.on_duplicate(block, prior_una);
        }
        let mut delivered = self.process_ack(now, segment);
        let advanced = self.una > prior_una;
        if !self.config.sack {
            delivered.segments = self.count_dup_acks(segment, window, delivered.segments, advanced);
        }
        self.sample_rtt(now, segment, delivered, advanced);
        self.on_probe_ack(now, segment, dsack.is_some(), advanced, delivered.segments);
        let defers_losses = self.update_phase(segment.ts_ecr, delivered, advanced);
        let newly_lost = !defers_losses && self.detect_losses(now, advanced);
        self.update_cwnd(now, delivered.segments, advanced, newly_lost);
        // A selective acknowledgement postpones the timeout of the first missing segment only if it is for data
        // sent before that segment (`tcp_clean_rtx_queue`).
        let was_sent_before_head = |sacked| self.scoreboard.first().is_some_and(|head| sacked < head.sent_at);
        if advanced {
            self.reset_backoff();
            self.rearm(now);
        } else if delivered.newest_sacked_sent_at.is_some_and(was_sent_before_head) {
            self.rearm(now);
        }
    }

    /// A router reports that the segment with this number is unreachable (Linux: `tcp_ld_RTO_revert`).
    pub(super) fn on_unreachable(&mut self, now: Instant, number: u64) {
        let Some(first) = self.scoreboard.first().filter(|_| number == self.una && self.backoff > 0) else {
            return;
        };
        let sent = first.sent_at;
        self.backoff -= 1;
        self.timer = Some(((sent + self.rto()).max(now), TimerKind::Retransmit));
    }

    /// The timer has expired.
    pub(super) fn on_timer(&mut self, now: Instant) {
        let Some((at, timer)) = self.timer else { return };
        if at > now {
            return;
        }
        self.timer = None;
        self.new_data_first = false;
        match timer {
            TimerKind::TailLossProbe => self.on_probe_timer(now),
            TimerKind::RackReordering => {
                self.detect_losses(now, false);
                if self.timer.is_none() {
                    self.rearm_timeout(now, true);
                }
            }
            TimerKind::Retransmit => self.on_timeout(now),
            TimerKind::Persist => self.forced_segment = Some(ForcedSegment::WindowProbe),
        }
    }

    /// The next segment to be sent now, if there is one.
    pub(super) fn next_segment(&mut self, now: Instant) -> Option<Outgoing> {
        let outgoing =
            self.next_forced(now).or_else(|| self.next_retransmission(now)).or_else(|| self.next_new(now));
        match outgoing {
            Some(_) => self.last_sent = now,
            None => {
                self.arm_persist_timer(now);
                let (in_flight, outstanding) = (self.scoreboard.in_flight(), self.scoreboard.outstanding());
                self.cwnd_limited.on_pause(in_flight >= self.congestion.cwnd, outstanding, self.una, self.nxt);
            }
        }
        outgoing
    }

    /// When [`Self::on_timer`] must be called.
    pub(super) fn timer(&self) -> Option<Instant> {
        self.timer.map(|(at, _)| at)
    }

    /// First unacknowledged sequence number.
    pub(super) const fn una(&self) -> u64 {
        self.una
    }

    /// Next sequence number to be sent.
    pub(super) const fn nxt(&self) -> u64 {
        self.nxt
    }

    /// Bytes written and never sent.
    pub(super) const fn unsent(&self) -> u64 {
        self.write_end.saturating_sub(self.nxt)
    }

    /// Whether everything, including the FIN, is acknowledged.
    pub(super) fn is_finished(&self) -> bool {
        self.fin == FinState::Sent && self.una > self.write_end
    }

    /// Whether the peer has not responded to any retransmission until the limit.
    pub(super) fn has_given_up(&self, now: Instant) -> bool {
        (self.timeouts > 0 && now.since(self.first_timeout_at) >= MAX_RETRANSMIT_TIME)
            || self.peer_window.has_given_up()
    }

    /// Payload of a full segment in bytes.
    pub(super) const fn mss(&self) -> u64 {
        self.mss
    }

    /// RTT estimate.
    pub(super) const fn rtt(&self) -> &RttEstimator {
        &self.rtt
    }

    /// Congestion window in segments.
    pub(super) const fn cwnd(&self) -> u32 {
        self.congestion.cwnd
    }

    /// Slow-start threshold in segments.
    pub(super) const fn ssthresh(&self) -> u32 {
        self.congestion.ssthresh
    }

    /// Number of consecutive timeouts.
    pub(super) const fn timeouts(&self) -> u32 {
        self.timeouts
    }

    fn reset_backoff(&mut self) {
        (self.timeouts, self.backoff) = (0, 0);
    }

    fn process_ack(&mut self, now: Instant, segment: &Segment) -> Delivered {
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

    fn sample_rtt(&mut self, now: Instant, segment: &Segment, delivered: Delivered, advanced: bool) {
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
    fn on_probe_ack(&mut self, now: Instant, segment: &Segment, has_dsack: bool, advanced: bool, delivered: u32) {
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
    fn update_phase(&mut self, ts_ecr: Option<Instant>, delivered: Delivered, advanced: bool) -> bool {
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
    fn count_dup_acks(&mut self, segment: &Segment, prior_window_end: u64, acked: u32, advanced: bool) -> u32 {
        if advanced {
            self.scoreboard.reset_dup_acks(acked.saturating_sub(1), matches!(self.phase, Phase::Open));
            return acked;
        }
        let is_dup_ack =
            segment.ack == self.una && segment.seqs.is_empty() && self.peer_window.window_end() == prior_window_end;
        u32::from(is_dup_ack && self.scoreboard.count_dup_ack())
    }

    /// Marks losses, and enters recovery at the first one. Returns whether there were new losses.
    fn detect_losses(&mut self, now: Instant, advanced: bool) -> bool {
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

    fn update_cwnd(&mut self, now: Instant, delivered: u32, advanced: bool, newly_lost: bool) {
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

    fn on_probe_timer(&mut self, now: Instant) {
        self.forced_segment = Some(ForcedSegment::TailLossProbe);
        self.rearm_timeout(now, true);
    }

    fn on_timeout(&mut self, now: Instant) {
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

    fn next_forced(&mut self, now: Instant) -> Option<Outgoing> {
        match self.forced_segment.take()? {
            ForcedSegment::FirstUnacked => self.retransmit_first(now),
            ForcedSegment::WindowProbe => Some(self.window_probe(now)),

            ForcedSegment::TailLossProbe => {
                let outgoing = match self.peek_new() {
                    Some(fresh) => Some(self.record_sent(now, fresh)),
                    None => self
                        .scoreboard
                        .retransmit_last(now)
                        .map(|sent| Outgoing { data: sent.data, has_fin: sent.has_fin }),
                }?;
                self.tail_loss_probe = Some(TailLossProbe {
                    nxt: self.nxt,
                    is_retransmission: outgoing.data.end + u64::from(outgoing.has_fin) == self.nxt,
                });
                self.rearm_timeout(now, false);
                Some(outgoing)
            }
        }
    }

    fn next_retransmission(&mut self, now: Instant) -> Option<Outgoing> {
        if self.waits_for_new_data() {
            return None;
        }
        if self.scoreboard.in_flight() >= self.congestion.cwnd {
            return None;
        }
        let sent = self.scoreboard.retransmit_lost(now)?;
        Some(self.on_retransmitted(now, sent))
    }

    /// Retransmits the first segment after a timeout.
    fn retransmit_first(&mut self, now: Instant) -> Option<Outgoing> {
        let sent = self.scoreboard.retransmit_first(now)?;
        Some(self.on_retransmitted(now, sent))
    }

    fn on_retransmitted(&mut self, now: Instant, sent: SentSegment) -> Outgoing {
        self.undo.on_retransmit(now);
        self.on_sent_in_recovery();
        // The retransmission of the first segment restarts the timer, unless RACK uses it.
        let is_head = sent.data.start <= self.una && !matches!(self.timer, Some((_, TimerKind::RackReordering)));
        if self.timer.is_none() || is_head {
            self.rearm_timeout(now, false);
        }
        Outgoing { data: sent.data, has_fin: sent.has_fin }
    }

    /// F-RTO step 2b. If there is no new data to send, the timeout is taken as genuine.
    fn waits_for_new_data(&mut self) -> bool {
        if let Phase::Loss { recovery_point: until, .. } = self.phase
            && self.new_data_first
            && self.nxt == until
            && self.peek_new().is_none()
        {
            self.new_data_first = false;
            self.phase = Phase::Loss { recovery_point: until, maybe_spurious: false };
        }
        self.new_data_first
    }

    fn next_new(&mut self, now: Instant) -> Option<Outgoing> {
        let outgoing = self.peek_new()?;
        if self.scoreboard.outstanding() == 0 {
            self.restart_after_idle(now);
        }
        if self.scoreboard.in_flight() >= self.congestion.cwnd {
            return None;
        }
        self.on_sent_in_recovery();
        let outgoing = self.record_sent(now, outgoing);
        // New data behind a gap does not postpone the timeout of the missing data (`tcp_event_new_data_sent`).
        if self.has_no_losses() {
            self.rearm(now);
        } else if !matches!(self.timer, Some((_, TimerKind::Retransmit | TimerKind::RackReordering))) {
            self.rearm_timeout(now, true);
        }
        Some(outgoing)
    }

    /// The next new segment, if the application has data and the peer's window permits.
    fn peek_new(&self) -> Option<Outgoing> {
        let len = self.unsent().min(self.mss);
        let is_last = self.nxt + len == self.write_end;
        let fin = is_last && self.fin == FinState::Requested;
        let data = SeqRange::new(self.nxt, self.nxt + len);
        let sendable = (len > 0 || fin)
            && self.nxt <= self.write_end
            && data.end <= self.peer_window.window_end().max(data.start);
        sendable.then_some(Outgoing { data, has_fin: fin })
    }

    fn record_sent(&mut self, now: Instant, outgoing: Outgoing) -> Outgoing {
        self.scoreboard.push(outgoing.data, outgoing.has_fin, now);
        self.nxt = outgoing.data.end + u64::from(outgoing.has_fin);
        if outgoing.has_fin {
            self.fin = FinState::Sent;
        }
        outgoing
    }

    fn on_sent_in_recovery(&mut self) {
        if let Phase::Recovery { prr, .. } = &mut self.phase {
            prr.on_sent();
        }
    }

    fn restart_after_idle(&mut self, now: Instant) {
        let idle_time = now.since(self.last_sent);
        if self.nxt == 0 || idle_time.is_zero() {
            return;
        }
        let rto = self.rtt.rto();
        let idle_timeouts = u32::try_from(idle_time.as_nanos() / rto.as_nanos().max(1)).unwrap_or(u32::MAX);
        self.congestion.on_restart(now, idle_time, idle_timeouts);
    }

    /// Sets the timer after an ACK or new data: a tail-loss probe if no loss is suspected, otherwise the timeout.
    fn rearm(&mut self, now: Instant) {
        if self.scoreboard.outstanding() == 0 {
            self.timer = None;
        } else if self.has_no_losses() {
            let at = now + self.rtt.probe_timeout(self.scoreboard.outstanding());
            self.timer = Some((at.min(self.head_timeout()), TimerKind::TailLossProbe));
        } else if !matches!(self.timer, Some((_, TimerKind::RackReordering))) {
            self.rearm_timeout(now, false);
        }
    }

    /// Whether no loss is known or suspected.
    fn has_no_losses(&self) -> bool {
        let nothing_missing = self.scoreboard.sacked() == 0 && self.scoreboard.retransmits_in_flight() == 0;
        matches!(self.phase, Phase::Open) && nothing_missing && self.tail_loss_probe.is_none()
    }

    /// Sets the retransmission timeout, from now or from the time when the first segment was sent.
    fn rearm_timeout(&mut self, now: Instant, from_head: bool) {
        if self.scoreboard.outstanding() == 0 {
            return;
        }
        let at = if from_head { self.head_timeout().max(now) } else { now + self.rto() };
        self.timer = Some((at, TimerKind::Retransmit));
    }

    /// Retransmission timeout with backoff.
    fn rto(&self) -> Duration {
        (self.rtt.rto() * (1 << self.backoff.min(MAX_BACKOFF))).min(MAX_RTO)
    }

    /// Sets the persist timer if the peer's window is closed, nothing is in flight and data is waiting.
    fn arm_persist_timer(&mut self, now: Instant) {
        let has_unsent = self.unsent() > 0 || self.fin == FinState::Requested;
        if self.timer.is_none() && has_unsent && self.scoreboard.outstanding() == 0 && self.peek_new().is_none() {
            let at = self.peer_window.next_probe(now, self.rtt.rto(), MAX_RTO);
            self.timer = Some((at, TimerKind::Persist));
        }
    }

    /// As much data as the window permits, or an old sequence number, to which the peer responds with its window.
    fn window_probe(&mut self, now: Instant) -> Outgoing {
        self.peer_window.on_probe();
        let len = self.unsent().min(self.peer_window.window_end().saturating_sub(self.nxt)).min(self.mss);
        if len > 0 && self.scoreboard.outstanding() == 0 {
            let outgoing =
                self.record_sent(now, Outgoing { data: SeqRange::new(self.nxt, self.nxt + len), has_fin: false });
            self.rearm(now);
            return outgoing;
        }
        let old_seq = self.una.saturating_sub(1);
        Outgoing { data: SeqRange::new(old_seq, old_seq), has_fin: false }
    }

    fn head_timeout(&self) -> Instant {
        self.scoreboard.first().map_or(Instant::FAR_FUTURE, |sent| sent.sent_at + self.rtt.rto())
    }
}

/// DSACK (RFC 2883 §4): the first block is below the ACK or inside the second block.
fn dsack_block(segment: &Segment) -> Option<SeqRange> {
    let mut blocks = segment.sacks.iter();
    let first = blocks.next()?;
    (first.start < segment.ack || blocks.next().is_some_and(|second| second.covers(first))).then_some(first)
}

/// Duplicate ACK threshold of RFC 5681 §3.2.
const DUP_ACK_THRESHOLD: u32 = 3;

/// Duration of 15 doublings of 200 ms: Linux converts `tcp_retries2` to this time.
const MAX_RETRANSMIT_TIME: Duration = Duration::from_millis(924_600);
/// With this many doublings, 200 ms exceed the maximum timeout.
const MAX_BACKOFF: u32 = 15;
/// Linux's `TCP_RTO_MAX`.
const MAX_RTO: Duration = Duration::from_secs(120);
