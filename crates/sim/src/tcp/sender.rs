//! What goes out next, and when does silence become a reason to send?
//!
//! In: bytes from the application, ACKs, the time. Out: data segments, one at a time.
//!
//! 1. Lost segments go first, then new data; both only while the window and the receiver have room.
//! 2. One timer, as in Linux: the tail-loss probe while nothing is amiss (RFC 8985 §7), the reordering window while
//!    one runs, otherwise the retransmission timeout, doubled each time (RFC 6298 §5), for a quarter of an hour.
//! 3. The window grows only on ACKs of data that was sent while it was full (`fullness`).
//! 4. After a pause longer than a timeout the window starts again (RFC 5681 §4.1).
//! 5. A small segment goes out only as the last one (what Nagle's rule and `TCP_NODELAY` both give a server that
//!    always has more).
//!
//! 6. A needless reduction is taken back (`undo`): at the end of recovery, at a partial ACK, after a timeout (there also by
//!    F-RTO, RFC 5682 §3.1), and later by duplicates; not where [`Habits::undo`] is off.
//! 7. A window of zero: with segments outstanding the timeout goes on and each one reduces the threshold again, as Linux 6.18
//!    does; with none the receiver is probed (`persist`).
//! 8. Without SACK, duplicate ACKs stand for what has arrived (RFC 6582, with Linux's count of them).
//! 9. Told that there was no way for the first unacknowledged segment, it takes one doubling of its timer back (RFC 6069).

use core::time::Duration;

use marline_core::units::Instant;

use super::congestion::{Algorithm, Congestion};
use super::fullness::Fullness;
use super::persist::Room;
use super::prr::{News, Prr};
use super::rack::Rack;
use super::rtt::Rtt;
use super::scoreboard::{Scoreboard, Sent};
use super::segment::{Segment, Seqs};
use super::undo::{Before, Undo};

/// What differs between senders.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Habits {
    /// Needless reductions are taken back.
    pub(super) undo: bool,
    /// The other side sends SACK blocks.
    pub(super) sack: bool,
}

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
    room: Room,
    habits: Habits,
    undo: Undo,
    board: Scoreboard,
    congestion: Congestion,
    rtt: Rtt,
    rack: Rack,
    phase: Phase,
    timer: Option<(Instant, Timer)>,
    /// Timeouts in a row, and when the first of them was.
    timeouts: u32,
    silent: Instant,
    /// How often the timer was doubled, and that not taken back.
    backoff: u32,
    probe: Option<Probe>,
    full: Fullness,
    last_sent: Instant,
    owes: Option<Owed>,
    /// F-RTO's step 2b, until the next ACK: new segments, if there are any, and none is repeated.
    fresh_first: bool,
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
    /// After a timeout, until `until` is acknowledged. While `doubtful`, the timeout may have been needless (F-RTO).
    Loss { until: u64, doubtful: bool },
}

/// Why the timer runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Timer {
    Retransmit,
    Probe,
    Reorder,
    Persist,
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
    Window,
}

/// What one ACK did.
#[derive(Clone, Copy, Debug, Default)]
struct Delivered {
    segments: u32,
    first: Option<Instant>,
    last: Option<Instant>,
    sacked: Option<Instant>,
    repeated: bool,
    /// Something that was sent once, the first time.
    original: bool,
    /// Some of it was selectively acknowledged.
    selected: bool,
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
    pub(super) fn new(algorithm: Algorithm, mss: u64, habits: Habits) -> Self {
        Self {
            mss,
            una: 0,
            nxt: 0,
            end: 0,
            fin: Fin::No,
            room: Room::default(),
            habits,
            undo: Undo::default(),
            board: Scoreboard::default(),
            congestion: Congestion::new(algorithm),
            rtt: Rtt::default(),
            rack: Rack::default(),
            phase: Phase::Open,
            timer: None,
            timeouts: 0,
            silent: Instant::ZERO,
            backoff: 0,
            probe: None,
            full: Fullness::default(),
            last_sent: Instant::ZERO,
            owes: None,
            fresh_first: false,
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
        self.room.on_handshake(room);
    }

    /// The other side has acknowledged something.
    pub(super) fn on_ack(&mut self, now: Instant, segment: &Segment) {
        if segment.ack > self.nxt {
            return;
        }
        let edge = self.una;
        let window = self.room.end();
        self.fresh_first = false;
        if segment.ack >= edge {
            self.room.on_ack(segment, edge);
        }
        let duplicate = reported_duplicate(segment);
        if let Some(block) = duplicate {
            self.undo.on_duplicate(block, edge);
        }
        let mut delivered = self.take(now, segment);
        let moved = self.una > edge;
        if !self.habits.sack {
            delivered.segments = self.count_duplicates(segment, window, delivered.segments, moved);
        }
        self.learn_rtt(now, segment, delivered, moved);
        self.judge_probe(now, segment, duplicate.is_some(), moved, delivered.segments);
        let holds = self.leave_phase(segment.echo, delivered, moved);
        let newly_lost = !holds && self.find_losses(now, moved);
        self.move_window(now, delivered.segments, moved, newly_lost);
        // What is selectively acknowledged puts off the timeout of what is missing only if it left before that did
        // (`tcp_clean_rtx_queue`).
        let is_older = |sacked| self.board.first().is_some_and(|head| sacked < head.at);
        if moved {
            self.start_anew();
            self.rearm(now);
        } else if delivered.sacked.is_some_and(is_older) {
            self.rearm(now);
        }
    }

    /// There was no way for the segment with this number, says a router (Linux: `tcp_ld_RTO_revert`).
    pub(super) fn on_unreachable(&mut self, now: Instant, number: u64) {
        let Some(head) = self.board.first().filter(|_| number == self.una && self.backoff > 0) else { return };
        let sent = head.at;
        self.backoff -= 1;
        self.timer = Some(((sent + self.patience()).max(now), Timer::Retransmit));
    }

    /// The timer has run out.
    pub(super) fn on_timer(&mut self, now: Instant) {
        let Some((at, timer)) = self.timer else { return };
        if at > now {
            return;
        }
        self.timer = None;
        self.fresh_first = false;
        match timer {
            Timer::Probe => self.on_tail(now),
            Timer::Reorder => {
                self.find_losses(now, false);
                if self.timer.is_none() {
                    self.rearm_timeout(now, true);
                }
            }
            Timer::Retransmit => self.on_timeout(now),
            Timer::Persist => self.owes = Some(Owed::Window),
        }
    }

    /// The next segment to go out now, if there is one.
    pub(super) fn next(&mut self, now: Instant) -> Option<Outgoing> {
        let out = self.owed(now).or_else(|| self.repeat(now)).or_else(|| self.fresh(now));
        match out {
            Some(_) => self.last_sent = now,
            None => {
                self.persist(now);
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
    pub(super) fn gave_up(&self, now: Instant) -> bool {
        (self.timeouts > 0 && now.since(self.silent) >= LIFE) || self.room.gave_up()
    }

    /// The bytes of a full segment.
    pub(super) const fn mss(&self) -> u64 {
        self.mss
    }

    /// The estimate of the round-trip time.
    pub(super) const fn rtt(&self) -> &Rtt {
        &self.rtt
    }

    /// The congestion window in segments.
    pub(super) const fn window(&self) -> u32 {
        self.congestion.window
    }

    /// The slow-start threshold in segments.
    pub(super) const fn threshold(&self) -> u32 {
        self.congestion.threshold
    }

    /// Timeouts in a row.
    pub(super) const fn timeouts(&self) -> u32 {
        self.timeouts
    }

    fn start_anew(&mut self) {
        (self.timeouts, self.backoff) = (0, 0);
    }

    fn take(&mut self, now: Instant, segment: &Segment) -> Delivered {
        let mut delivered = Delivered::default();
        let smallest = self.rtt.smallest();
        let highest = self.board.highest();
        while let Some(sent) = self.board.pop_acked(segment.ack) {
            if sent.repeated {
                delivered.repeated = true;
            } else if !sent.sacked {
                delivered.original |= self.was_before_timeout(&sent);
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
        let until = self.until();
        for block in segment.sacks.iter().filter(|block| block.start >= segment.ack) {
            let rack = &mut self.rack;
            self.board.sack(block, |sent| {
                delivered.segments += 1;
                delivered.selected = true;
                if !sent.repeated {
                    delivered.original |= sent.end() <= until;
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

    /// Ends a phase, or takes a reduction back. True where no segment is to be called lost yet.
    fn leave_phase(&mut self, echo: Option<Instant>, delivered: Delivered, moved: bool) -> bool {
        match self.phase {
            Phase::Recovery { until, .. } if self.una >= until => {
                if !(self.may_undo(echo) && self.take_back(false)) {
                    self.congestion.window = self.congestion.threshold;
                }
                self.phase = Phase::Open;
            }
            Phase::Recovery { .. } if moved && self.habits.undo && self.undo.is_original(echo) => {
                self.rack.on_reordered();
                // What was sent again meanwhile is waited for: nothing more is lost, and nothing is put back yet.
                if self.board.resent() > 0 {
                    return true;
                }
                self.undo.forget_repeats();
                self.take_back(true);
                self.phase = Phase::Open;
            }
            Phase::Loss { until, doubtful } => self.after_timeout(until, doubtful, echo, delivered, moved),
            Phase::Open | Phase::Recovery { .. } => {}
        }
        if self.habits.undo && !matches!(self.phase, Phase::Loss { .. }) && self.undo.all_were_duplicates() {
            self.take_back(false);
            self.phase = Phase::Open;
        }
        false
    }

    /// Eifel and F-RTO after a timeout.
    fn after_timeout(&mut self, until: u64, doubtful: bool, echo: Option<Instant>, got: Delivered, moved: bool) {
        let proven = doubtful && got.original;
        if (moved && self.may_undo(echo)) || proven {
            self.take_back(true);
            self.start_anew();
            self.phase = Phase::Open;
        } else if self.una >= until {
            self.phase = Phase::Open;
        } else if doubtful && self.nxt > until {
            self.phase = Phase::Loss { until, doubtful: !got.selected };
        } else if doubtful && moved {
            self.phase = Phase::Loss { until: self.nxt, doubtful };
            self.fresh_first = true;
        }
    }

    fn may_undo(&self, echo: Option<Instant>) -> bool {
        self.habits.undo && self.undo.may(echo)
    }

    /// Puts back what the last reduction has changed; with `all`, nothing counts as lost any more.
    fn take_back(&mut self, all: bool) -> bool {
        if all {
            self.board.unmark_lost();
        }
        let Some(before) = self.undo.take() else { return false };
        self.congestion.window = self.congestion.window.max(before.window);
        self.congestion.threshold = self.congestion.threshold.max(before.threshold);
        true
    }

    /// About to reduce: what is there now.
    fn note_reduction(&mut self) {
        let Congestion { window, threshold, .. } = self.congestion;
        let threshold = match self.phase {
            Phase::Recovery { .. } => threshold,
            Phase::Open | Phase::Loss { .. } => threshold.max(window / 2 + window / 4),
        };
        self.undo.on_reduction(self.una, Before { window, threshold }, self.board.resent());
    }

    /// Whether it was sent before the last timeout.
    fn was_before_timeout(&self, sent: &Sent) -> bool {
        sent.end() <= self.until()
    }

    fn until(&self) -> u64 {
        match self.phase {
            Phase::Loss { until, .. } => until,
            Phase::Open | Phase::Recovery { .. } => self.nxt,
        }
    }

    /// Without SACK: what a duplicate ACK stands for. Returns how many segments this ACK delivered.
    fn count_duplicates(&mut self, segment: &Segment, window: u64, acked: u32, moved: bool) -> u32 {
        if moved {
            self.board.forget_duplicates(acked.saturating_sub(1), matches!(self.phase, Phase::Open));
            return acked;
        }
        let same = segment.ack == self.una && segment.data.is_empty() && self.room.end() == window;
        u32::from(same && self.board.count_duplicate())
    }

    /// Marks losses and enters recovery for the first of them. Returns whether there were new ones.
    fn find_losses(&mut self, now: Instant, moved: bool) -> bool {
        let recovering = !matches!(self.phase, Phase::Open);
        let (lost, again) = if self.habits.sack {
            self.rack.detect(now, &mut self.board, &self.rtt, recovering)
        } else {
            (self.find_without_sack(moved), None)
        };
        if let Some(again) = again {
            self.timer = Some((again, Timer::Reorder));
        }
        if self.board.lost() > 0 && !recovering {
            let prr = Prr::new(self.congestion.window);
            self.note_reduction();
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

    /// RFC 6582: the first segment, after three duplicates and after a partial ACK.
    fn find_without_sack(&mut self, moved: bool) -> u32 {
        let is_lost = match self.phase {
            Phase::Open => self.board.duplicates() >= DUPLICATES,
            Phase::Recovery { .. } => moved,
            Phase::Loss { .. } => false,
        };
        let una = self.una;
        if is_lost { self.board.mark_lost(|sent| sent.data.start <= una && !sent.repeated) } else { 0 }
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
        let first = matches!(self.phase, Phase::Open);
        let again = matches!(self.phase, Phase::Loss { .. }) && (self.timeouts == 0 || self.room.is_closed());
        if first || again {
            self.note_reduction();
            self.congestion.on_loss();
        }
        let doubtful = self.habits.undo && self.habits.sack && (first || self.timeouts > 0);
        self.phase = Phase::Loss { until: self.nxt, doubtful };
        self.congestion.on_timeout();
        self.probe = None;
        if self.timeouts == 0 {
            self.silent = now;
        }
        self.timeouts += 1;
        self.backoff += 1;
        let (una, rack, rtt) = (self.una, &self.rack, &self.rtt);
        let all = !self.habits.sack;
        self.board.forget_duplicates(u32::MAX, true);
        self.board.mark_lost(|sent| all || sent.data.start <= una || rack.timed_out(now, sent, rtt));
        self.board.lose_first_copy();
        self.congestion.window = self.board.in_flight() + 1;
        self.owes = Some(Owed::Head);
        self.rearm_timeout(now, false);
    }

    fn owed(&mut self, now: Instant) -> Option<Outgoing> {
        match self.owes.take()? {
            Owed::Head => self.repeat_first(now),
            Owed::Window => Some(self.ask_for_room(now)),

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
        if self.waits_for_fresh() {
            return None;
        }
        if self.board.in_flight() >= self.congestion.window {
            return None;
        }
        let sent = self.board.resend_lost(now)?;
        Some(self.on_repeated(now, sent))
    }

    /// After a timeout.
    fn repeat_first(&mut self, now: Instant) -> Option<Outgoing> {
        let sent = self.board.resend_first(now)?;
        Some(self.on_repeated(now, sent))
    }

    fn on_repeated(&mut self, now: Instant, sent: Sent) -> Outgoing {
        self.undo.on_repeat(now);
        self.count_sent();
        let is_head = sent.data.start <= self.una && !matches!(self.timer, Some((_, Timer::Reorder)));
        if self.timer.is_none() || is_head {
            self.rearm_timeout(now, false);
        }
        Outgoing { data: sent.data, fin: sent.fin }
    }

    /// F-RTO's step 2b; where there is nothing new, the timeout counts as needed.
    fn waits_for_fresh(&mut self) -> bool {
        if let Phase::Loss { until, .. } = self.phase
            && self.fresh_first
            && self.nxt == until
            && self.cut().is_none()
        {
            self.fresh_first = false;
            self.phase = Phase::Loss { until, doubtful: false };
        }
        self.fresh_first
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
        // What is sent behind a hole does not put off the timeout of what is missing (`tcp_event_new_data_sent`).
        if self.is_calm() {
            self.rearm(now);
        } else if !matches!(self.timer, Some((_, Timer::Retransmit | Timer::Reorder))) {
            self.rearm_timeout(now, true);
        }
        Some(out)
    }

    /// The next new segment, if the application has one and the receiver has room.
    fn cut(&self) -> Option<Outgoing> {
        let len = self.unsent().min(self.mss);
        let last = self.nxt + len == self.end;
        let fin = last && self.fin == Fin::Wanted;
        let data = Seqs::new(self.nxt, self.nxt + len);
        let sendable = (len > 0 || fin) && self.nxt <= self.end && data.end <= self.room.end().max(data.start);
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
        if self.board.outstanding() == 0 {
            self.timer = None;
        } else if self.is_calm() {
            let at = now + self.rtt.probe_timeout(self.board.outstanding());
            self.timer = Some((at.min(self.head_timeout()), Timer::Probe));
        } else if !matches!(self.timer, Some((_, Timer::Reorder))) {
            self.rearm_timeout(now, false);
        }
    }

    /// Nothing is amiss.
    fn is_calm(&self) -> bool {
        let nothing_missing = self.board.sacked() == 0 && self.board.resent() == 0;
        matches!(self.phase, Phase::Open) && nothing_missing && self.probe.is_none()
    }

    /// The retransmission timeout from now, or from when the first segment was sent.
    fn rearm_timeout(&mut self, now: Instant, from_head: bool) {
        if self.board.outstanding() == 0 {
            return;
        }
        let at = if from_head { self.head_timeout().max(now) } else { now + self.patience() };
        self.timer = Some((at, Timer::Retransmit));
    }

    /// The retransmission timeout, doubled as often as it ran out.
    fn patience(&self) -> Duration {
        (self.rtt.timeout() * (1 << self.backoff.min(DOUBLINGS))).min(LONGEST_TIMEOUT)
    }

    /// Nothing may be sent, nothing is on its way, and something waits: the receiver is asked after a while.
    fn persist(&mut self, now: Instant) {
        let waits = self.unsent() > 0 || self.fin == Fin::Wanted;
        if self.timer.is_none() && waits && self.board.outstanding() == 0 && self.cut().is_none() {
            let at = self.room.probe_at(now, self.rtt.timeout(), LONGEST_TIMEOUT);
            self.timer = Some((at, Timer::Persist));
        }
    }

    /// As much as there is room for, or an old number, which is answered with the window.
    fn ask_for_room(&mut self, now: Instant) -> Outgoing {
        self.room.on_probe();
        let some = self.unsent().min(self.room.end().saturating_sub(self.nxt)).min(self.mss);
        if some > 0 && self.board.outstanding() == 0 {
            let out = self.send(now, Outgoing { data: Seqs::new(self.nxt, self.nxt + some), fin: false });
            self.rearm(now);
            return out;
        }
        let old = self.una.saturating_sub(1);
        Outgoing { data: Seqs::new(old, old), fin: false }
    }

    fn head_timeout(&self) -> Instant {
        self.board.first().map_or(Instant::FAR_FUTURE, |sent| sent.at + self.rtt.timeout())
    }
}

/// RFC 2883 §4: the first block lies before the ACK or within the second.
fn reported_duplicate(segment: &Segment) -> Option<Seqs> {
    let mut blocks = segment.sacks.iter();
    let first = blocks.next()?;
    (first.start < segment.ack || blocks.next().is_some_and(|second| second.covers(first))).then_some(first)
}

/// RFC 5681 §3.2's threshold.
const DUPLICATES: u32 = 3;

/// As long as 15 doublings of 200 ms take: Linux's `tcp_retries2`, which it makes a time of.
const LIFE: Duration = Duration::from_millis(924_600);
/// 200 ms so often doubled are more than the longest timeout.
const DOUBLINGS: u32 = 15;
/// Linux's `TCP_RTO_MAX`.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(120);
