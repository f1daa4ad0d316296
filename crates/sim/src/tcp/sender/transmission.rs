//! Which segment a sender transmits next: one that is sent regardless of the window, a retransmission, or new data.

use marline_core::units::Instant;

use super::{FinState, ForcedSegment, MAX_RTO, Outgoing, Phase, Sender, TailLossProbe, TimerKind};
use crate::tcp::scoreboard::SentSegment;
use crate::tcp::segment::SeqRange;

impl Sender {
    pub(super) fn next_forced(&mut self, now: Instant) -> Option<Outgoing> {
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

    pub(super) fn next_retransmission(&mut self, now: Instant) -> Option<Outgoing> {
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

    pub(super) fn next_new(&mut self, now: Instant) -> Option<Outgoing> {
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

    /// Sets the persist timer if the peer's window is closed, nothing is in flight and data is waiting.
    pub(super) fn arm_persist_timer(&mut self, now: Instant) {
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
}
