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

mod loss_recovery;
mod transmission;

use core::time::Duration;

use marline_core::units::Instant;

use self::loss_recovery::dsack_block;
use super::congestion::{Algorithm, Congestion};
use super::cwnd_limited::CwndLimited;
use super::persist::PeerWindow;
use super::prr::Prr;
use super::rack::Rack;
use super::rtt::RttEstimator;
use super::scoreboard::Scoreboard;
use super::segment::{Segment, SeqRange};
use super::undo::UndoState;

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

    fn head_timeout(&self) -> Instant {
        self.scoreboard.first().map_or(Instant::FAR_FUTURE, |sent| sent.sent_at + self.rtt.rto())
    }
}

/// Duration of 16 timeouts, the first of 200 ms, each twice as long as the one before, up to [`MAX_RTO`]: Linux converts `tcp_retries2` to
/// this time.
const MAX_RETRANSMIT_TIME: Duration = Duration::from_millis(924_600);
/// With this many doublings, 200 ms exceed the maximum timeout.
const MAX_BACKOFF: u32 = 15;
/// Linux's `TCP_RTO_MAX`.
const MAX_RTO: Duration = Duration::from_secs(120);
