//! What goes out next, and when does silence become a reason to send?
//!
//! In: bytes from the application, ACKs, the time. Out: data segments, one at a time.
//!
//! 1. Lost segments go first, then new data; both only while the window and the receiver have room.
//! 2. One timer, as in Linux: the tail-loss probe while nothing is amiss (RFC 8985 §7), the reordering window while
//!    one runs, otherwise the retransmission timeout, doubled each time (RFC 6298 §5), at most 15 times.
//! 3. The window grows only on ACKs of data that was sent while it was full (`fullness`).
//! 4. After a pause longer than a timeout the window starts again (RFC 5681 §4.1).
//! 5. A small segment goes out only as the last one (what Nagle's rule and `TCP_NODELAY` both give a server that
//!    always has more).
//!
//! A needless reduction is not undone here, neither by Eifel nor by F-RTO nor by DSACK.

use core::time::Duration;

use marline_core::units::Instant;

use super::congestion::{Algorithm, Congestion};
use super::fullness::Fullness;
use super::prr::{News, Prr};
use super::rack::Rack;
use super::rtt::Rtt;
use super::scoreboard::Scoreboard;
use super::segment::{Segment, Seqs};

/// One direction's sending end.
#[derive(Clone, Debug)]
pub(super) struct Sender {
    mss: u64,
    /// The first unacknowledged number.
    una: u64,
    /// The next number to be sent.
    nxt: u64,
    /// One past the last byte that the application wrote.
    end: u64,
    fin: Fin,
    /// One past the last number that the receiver has room for.
    room: u64,
    board: Scoreboard,
    congestion: Congestion,
    rtt: Rtt,
    rack: Rack,
    phase: Phase,
    timer: Option<(Instant, Timer)>,
    backoff: u32,
    probe: Option<Probe>,
    full: Fullness,
    last_sent: Instant,
    owes: Option<Owed>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fin {
    No,
    Wanted,
    Sent,
}

/// What the sender is doing about losses.
#[derive(Clone, Copy, Debug)]
enum Phase {
    /// Nothing is known to be lost.
    Open,
    /// Fast recovery until `until` is acknowledged.
    Recovery { until: u64, prr: Prr },
    /// After a timeout, until `until` is acknowledged.
    Loss { until: u64 },
}

/// Why the timer runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Timer {
    Retransmit,
    Probe,
    Reorder,
}

/// A tail-loss probe that was not answered yet.
#[derive(Clone, Copy, Debug)]
struct Probe {
    nxt: u64,
    repeated: bool,
}

/// A segment that goes out whatever the window says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Owed {
    Probe,
    Head,
}

/// What one ACK did.
#[derive(Clone, Copy, Debug, Default)]
struct Delivered {
    segments: u32,
    first: Option<Instant>,
    last: Option<Instant>,
    sacked: Option<Instant>,
    repeated: bool,
}

/// What goes out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Outgoing {
    /// The payload's numbers.
    pub(super) data: Seqs,
    /// It is the last.
    pub(super) fin: bool,
}

impl Sender {
    /// Nothing to send yet.
    pub(super) fn new(algorithm: Algorithm, mss: u64) -> Self {
        Self {
            mss,
            una: 0,
            nxt: 0,
            end: 0,
            fin: Fin::No,
            room: 0,
            board: Scoreboard::default(),
            congestion: Congestion::new(algorithm),
            rtt: Rtt::default(),
            rack: Rack::default(),
            phase: Phase::Open,
            timer: None,
            backoff: 0,
            probe: None,
            full: Fullness::default(),
            last_sent: Instant::ZERO,
            owes: None,
        }
    }

    /// The application has more.
    pub(super) fn write(&mut self, bytes: u64) {
        self.end += bytes;
    }

    /// The application has no more.
    pub(super) fn finish(&mut self) {
        if self.fin == Fin::No {
            self.fin = Fin::Wanted;
        }
    }

    /// The handshake took this long, without repetition.
    pub(super) fn on_handshake(&mut self, rtt: Duration) {
        self.rtt.on_sample(rtt);
    }

    /// The receiver has room up to here (a handshake's window).
    pub(super) fn on_room(&mut self, room: u64) {
        self.room = self.room.max(room);
    }

    /// The other side has acknowledged something.
    pub(super) fn on_ack(&mut self, now: Instant, segment: &Segment) {
        if segment.ack > self.nxt {
            return;
        }
        self.on_room(segment.ack.saturating_add(segment.window.bytes()));
        let duplicate = reports_duplicate(segment);
        let edge = self.una;
        let delivered = self.take(now, segment);
        let moved = self.una > edge;
        self.learn_rtt(now, segment, delivered, moved);
        self.judge_probe(now, segment, duplicate, moved, delivered.segments);
        self.leave_phase();
        let newly_lost = self.find_losses(now);
        self.move_window(now, delivered.segments, moved, newly_lost);
        if moved {
            self.backoff = 0;
            self.rearm(now);
        }
    }

    /// The timer has run out.
    pub(super) fn on_timer(&mut self, now: Instant) {
        let Some((at, timer)) = self.timer else { return };
        if at > now {
            return;
        }
        self.timer = None;
        match timer {
            Timer::Probe => self.on_tail(now),
            Timer::Reorder => {
                self.find_losses(now);
                if self.timer.is_none() {
                    self.rearm_timeout(now, true);
                }
            }
            Timer::Retransmit => self.on_timeout(now),
        }
    }

    /// The next segment to go out now, if there is one.
    pub(super) fn next(&mut self, now: Instant) -> Option<Outgoing> {
        let out = self.owed(now).or_else(|| self.repeat(now)).or_else(|| self.fresh(now));
        match out {
            Some(_) => self.last_sent = now,
            None => {
                let (in_flight, outstanding) = (self.board.in_flight(), self.board.outstanding());
                self.full.on_pause(in_flight >= self.congestion.window, outstanding, self.una, self.nxt);
            }
        }
        out
    }

    /// When [`Self::on_timer`] is to be called.
    pub(super) fn timer(&self) -> Option<Instant> {
        self.timer.map(|(at, _)| at)
    }

    /// The first unacknowledged number.
    pub(super) const fn una(&self) -> u64 {
        self.una
    }

    /// The next number.
    pub(super) const fn nxt(&self) -> u64 {
        self.nxt
    }

    /// Bytes written and not yet sent for the first time.
    pub(super) const fn unsent(&self) -> u64 {
        self.end.saturating_sub(self.nxt)
    }

    /// Everything, the FIN included, has been acknowledged.
    pub(super) fn finished(&self) -> bool {
        self.fin == Fin::Sent && self.una > self.end
    }

    /// The other side has been silent through all repetitions.
    pub(super) const fn gave_up(&self) -> bool {
        self.backoff > RETRIES
    }

    /// The estimate of the round-trip time.
    pub(super) const fn rtt(&self) -> &Rtt {
        &self.rtt
    }

    /// The congestion window in segments.
    pub(super) const fn window(&self) -> u32 {
        self.congestion.window
    }

    fn take(&mut self, now: Instant, segment: &Segment) -> Delivered {
        let mut delivered = Delivered::default();
        let smallest = self.rtt.smallest();
        let highest = self.board.highest();
        while let Some(sent) = self.board.pop_acked(segment.ack) {
            if sent.repeated {
                delivered.repeated = true;
            } else if !sent.sacked {
                delivered.first.get_or_insert(sent.at);
                delivered.last = Some(sent.at);
                if sent.end() < highest {
                    self.rack.on_reordered();
                }
            }
            if !sent.sacked {
                delivered.segments += 1;
                self.rack.on_delivered(now, &sent, smallest);
            }
        }
        self.una = self.una.max(segment.ack);
        for block in segment.sacks.iter().filter(|block| block.start >= segment.ack) {
            let rack = &mut self.rack;
            self.board.sack(block, |sent| {
                delivered.segments += 1;
                if !sent.repeated {
                    delivered.sacked = Some(sent.at);
                    if sent.end() < highest {
                        rack.on_reordered();
                    }
                }
                rack.on_delivered(now, sent, smallest);
            });
        }
        delivered
    }

    fn learn_rtt(&mut self, now: Instant, segment: &Segment, delivered: Delivered, moved: bool) {
        let sample = match (delivered.first, delivered.sacked, segment.echo) {
            (Some(first), ..) if !delivered.repeated => now.since(first),
            (_, Some(sacked), _) => now.since(sacked),
            (.., Some(echo)) if moved => now.since(echo),
            _ => return,
        };
        self.rtt.on_sample(sample);
        if let Some(last) = delivered.last.filter(|_| !delivered.repeated).or(delivered.sacked) {
            self.congestion.on_rtt(now, now.since(last), self.una, self.nxt);
        }
    }

    /// Did the answer to a probe tell of a loss? (RFC 8985 §7.4)
    fn judge_probe(&mut self, now: Instant, segment: &Segment, duplicate: bool, moved: bool, delivered: u32) {
        let Some(probe) = self.probe.filter(|probe| segment.ack >= probe.nxt) else { return };
        if probe.repeated && !duplicate && segment.ack > probe.nxt {
            self.congestion.on_loss();
            self.congestion.window = self.congestion.window.min(self.congestion.threshold);
        } else if probe.repeated && !duplicate && (moved || delivered > 0) {
            return;
        }
        self.probe = None;
        if matches!(self.timer, Some((_, Timer::Probe))) {
            self.rearm(now);
        }
    }

    fn leave_phase(&mut self) {
        match self.phase {
            Phase::Recovery { until, .. } if self.una >= until => {
                self.congestion.window = self.congestion.threshold;
                self.phase = Phase::Open;
            }
            Phase::Loss { until } if self.una >= until => self.phase = Phase::Open,
            _ => {}
        }
    }

    /// Marks losses and enters recovery for the first of them. Returns whether there were new ones.
    fn find_losses(&mut self, now: Instant) -> bool {
        let recovering = !matches!(self.phase, Phase::Open);
        let (lost, again) = self.rack.detect(now, &mut self.board, &self.rtt, recovering);
        if let Some(again) = again {
            self.timer = Some((again, Timer::Reorder));
        }
        if self.board.lost() > 0 && !recovering {
            let prr = Prr::new(self.congestion.window);
            self.congestion.on_loss();
            self.phase = Phase::Recovery { until: self.nxt, prr };
            self.probe = None;
            self.reduce(0, false);
            if again.is_none() {
                self.rearm_timeout(now, true);
            }
        }
        lost > 0
    }

    fn move_window(&mut self, now: Instant, delivered: u32, moved: bool, newly_lost: bool) {
        match self.phase {
            Phase::Recovery { .. } if delivered > 0 => self.reduce(delivered, moved && !newly_lost),
            Phase::Recovery { .. } => {}
            Phase::Open | Phase::Loss { .. } => {
                if moved && self.full.is_limited(&self.congestion) {
                    self.congestion.on_ack(now, delivered);
                }
            }
        }
    }

    fn reduce(&mut self, delivered: u32, clean: bool) {
        if let Phase::Recovery { prr, .. } = &mut self.phase {
            let news = News { delivered, clean };
            self.congestion.window = prr.on_ack(news, self.board.in_flight(), self.congestion.threshold);
        }
    }

    fn on_tail(&mut self, now: Instant) {
        self.owes = Some(Owed::Probe);
        self.rearm_timeout(now, true);
    }

    fn on_timeout(&mut self, now: Instant) {
        if self.board.outstanding() == 0 {
            return;
        }
        let first = !matches!(self.phase, Phase::Loss { .. });
        if matches!(self.phase, Phase::Open) || (!first && self.backoff == 0) {
            self.congestion.on_loss();
        }
        self.phase = Phase::Loss { until: self.nxt };
        self.congestion.on_timeout();
        self.probe = None;
        self.backoff += 1;
        let (una, rack, rtt) = (self.una, &self.rack, &self.rtt);
        self.board.mark_lost(|sent| sent.data.start <= una || rack.timed_out(now, sent, rtt));
        self.congestion.window = self.board.in_flight() + 1;
        self.owes = Some(Owed::Head);
        self.rearm_timeout(now, false);
    }

    fn owed(&mut self, now: Instant) -> Option<Outgoing> {
        match self.owes.take()? {
            Owed::Head => self.repeat(now),
            Owed::Probe => {
                let out = match self.cut() {
                    Some(fresh) => Some(self.send(now, fresh)),
                    None => self.board.resend_last(now).map(|sent| Outgoing { data: sent.data, fin: sent.fin }),
                }?;
                self.probe = Some(Probe { nxt: self.nxt, repeated: out.data.end + u64::from(out.fin) == self.nxt });
                self.rearm_timeout(now, false);
                Some(out)
            }
        }
    }

    fn repeat(&mut self, now: Instant) -> Option<Outgoing> {
        if self.board.in_flight() >= self.congestion.window {
            return None;
        }
        let sent = self.board.resend_lost(now)?;
        self.count_sent();
        if self.timer.is_none() {
            self.rearm_timeout(now, false);
        }
        Some(Outgoing { data: sent.data, fin: sent.fin })
    }

    fn fresh(&mut self, now: Instant) -> Option<Outgoing> {
        let out = self.cut()?;
        if self.board.outstanding() == 0 {
            self.restart(now);
        }
        if self.board.in_flight() >= self.congestion.window {
            return None;
        }
        self.count_sent();
        let out = self.send(now, out);
        self.rearm(now);
        Some(out)
    }

    /// The next new segment, if the application has one and the receiver has room.
    fn cut(&self) -> Option<Outgoing> {
        let len = self.unsent().min(self.mss);
        let last = self.nxt + len == self.end;
        let fin = last && self.fin == Fin::Wanted;
        let data = Seqs::new(self.nxt, self.nxt + len);
        let sendable = (len > 0 || fin) && self.nxt <= self.end && data.end <= self.room.max(data.start);
        sendable.then_some(Outgoing { data, fin })
    }

    fn send(&mut self, now: Instant, out: Outgoing) -> Outgoing {
        self.board.push(out.data, out.fin, now);
        self.nxt = out.data.end + u64::from(out.fin);
        if out.fin {
            self.fin = Fin::Sent;
        }
        out
    }

    fn count_sent(&mut self) {
        if let Phase::Recovery { prr, .. } = &mut self.phase {
            prr.on_sent();
        }
    }

    fn restart(&mut self, now: Instant) {
        let pause = now.since(self.last_sent);
        if self.nxt == 0 || pause.is_zero() {
            return;
        }
        let timeout = self.rtt.timeout();
        let idle = u32::try_from(pause.as_nanos() / timeout.as_nanos().max(1)).unwrap_or(u32::MAX);
        self.congestion.on_restart(now, pause, idle);
    }

    /// After an ACK or new data: a probe while nothing is amiss, otherwise the timeout.
    fn rearm(&mut self, now: Instant) {
        let calm = matches!(self.phase, Phase::Open) && self.board.sacked() == 0 && self.probe.is_none();
        if self.board.outstanding() == 0 {
            self.timer = None;
        } else if calm {
            let at = now + self.rtt.probe_timeout(self.board.outstanding());
            self.timer = Some((at.min(self.head_timeout()), Timer::Probe));
        } else if !matches!(self.timer, Some((_, Timer::Reorder))) {
            self.rearm_timeout(now, false);
        }
    }

    /// The retransmission timeout from now, or from when the first segment was sent.
    fn rearm_timeout(&mut self, now: Instant, from_head: bool) {
        if self.board.outstanding() == 0 {
            return;
        }
        let wait = (self.rtt.timeout() * (1 << self.backoff.min(RETRIES))).min(LONGEST_TIMEOUT);
        let at = if from_head { self.head_timeout().max(now) } else { now + wait };
        self.timer = Some((at, Timer::Retransmit));
    }

    fn head_timeout(&self) -> Instant {
        self.board.first().map_or(Instant::FAR_FUTURE, |sent| sent.at + self.rtt.timeout())
    }
}

/// RFC 2883 §4: the first block lies before the ACK or within the second.
fn reports_duplicate(segment: &Segment) -> bool {
    let mut blocks = segment.sacks.iter();
    let Some(first) = blocks.next() else { return false };
    first.start < segment.ack || blocks.next().is_some_and(|second| second.covers(first))
}

/// Linux's `tcp_retries2`.
const RETRIES: u32 = 15;
/// Linux's `TCP_RTO_MAX`.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(120);
