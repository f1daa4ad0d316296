//! The server's end of one subflow: its congestion window, what it has on its way, and what it must send again.
//!
//! In: data that MPTCP's scheduler gave it, acknowledgements, time. Out: what to send now ([`Sender::next`]), and that
//! nothing came back for too long ([`Sender::deadline`]).
//!
//! 1. The window is that of [`crate::tcp`] (CUBIC with HyStart). Packets go in pieces of a few, as segmentation offload
//!    does it: a [`SHARE`]th of the window.
//! 2. The link keeps the order, so an acknowledgement of a later piece proves that the earlier ones are lost: they are
//!    sent again at once, and the window falls once a round.
//! 3. Without any answer for an RTO everything counts as lost; the RTO doubles each time. After [`STALE`] of them the
//!    subflow is stale: MPTCP gives its data to others (net/mptcp/pm.c, `stale_loss_cnt`), and takes it up again when
//!    something is acknowledged.
//! 4. After a pause longer than an RTO the window halves for each (RFC 2861), unless the server is told not to.
//! 5. What was queued here stays here: only a reset takes it away.

use std::collections::VecDeque;

use marline_core::units::{Duration, Instant};

use super::Data;
use crate::tcp::congestion::{Algorithm, Congestion};

/// A sent piece.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    /// Of the subflow's own order.
    pub(super) seq: u64,
    pub(super) data: Data,
}

#[derive(Clone, Copy, Debug)]
struct OnItsWay {
    /// Which transmission it was.
    number: u64,
    at: Instant,
    piece: Piece,
}

/// The sending side of a subflow.
#[derive(Clone, Debug)]
pub(super) struct Sender {
    congestion: Congestion,
    mss: u64,
    keeps_window: bool,
    /// Given and not yet sent.
    queue: VecDeque<Data>,
    /// To be sent again.
    again: VecDeque<Piece>,
    on_way: VecDeque<OnItsWay>,
    /// Bytes of these three.
    queued: u64,
    flight: u64,
    next_seq: u64,
    next_number: u64,
    /// A loss of something sent before this is of the same round.
    recovered: u64,
    smooth: Option<Duration>,
    least: Duration,
    /// The most that was on its way in this round, which ends with this transmission.
    peak: u64,
    round: u64,
    /// The newest answer, or the first transmission since nothing was on its way.
    heard: Instant,
    /// The last transmission.
    spoke: Instant,
    timeouts: u32,
    /// The most bytes that may wait here (Linux's sk_sndbuf, in payload).
    room: u64,
    /// What the scheduler takes for its rate, bytes a second.
    pub(super) pace: f64,
}

impl Sender {
    pub(super) fn new(now: Instant, handshake: Duration, mss: u64, keeps_window: bool) -> Self {
        let mut sender = Self {
            congestion: Congestion::new(Algorithm::Cubic),
            mss,
            keeps_window,
            queue: VecDeque::new(),
            again: VecDeque::new(),
            on_way: VecDeque::new(),
            queued: 0,
            flight: 0,
            next_seq: 0,
            next_number: 0,
            recovered: 0,
            peak: 0,
            round: 0,
            smooth: Some(handshake),
            least: handshake,
            heard: now,
            spoke: now,
            timeouts: 0,
            room: 0,
            pace: 0.0,
        };
        sender.make_room();
        sender.pace = sender.rate();
        sender
    }

    /// Everything that waits here or is on its way.
    pub(super) fn holds(&self) -> u64 {
        self.queued + self.flight
    }

    /// How many bytes may.
    pub(super) fn room(&self) -> u64 {
        self.room
    }

    /// Linux's sk_pacing_rate: twice the window a round trip in slow start, else 1.2 times.
    pub(super) fn rate(&self) -> f64 {
        let factor = if self.congestion.in_slow_start() { 2.0 } else { 1.2 };
        factor * self.window() as f64 / self.rtt().as_secs_f64().max(1e-4)
    }

    pub(super) fn rtt(&self) -> Duration {
        self.smooth.unwrap_or(self.least)
    }

    /// Whether it is given no more data.
    pub(super) fn is_stale(&self) -> bool {
        self.timeouts >= STALE
    }

    /// The scheduler gives it data.
    pub(super) fn take(&mut self, data: Data) {
        self.queued += data.len;
        match self.queue.back_mut().filter(|last| last.at + last.len == data.at) {
            Some(last) => last.len += data.len,
            None => self.queue.push_back(data),
        }
    }

    /// What to send now, if anything may be.
    pub(super) fn next(&mut self, now: Instant) -> Option<Piece> {
        if self.queued == 0 {
            return None;
        }
        self.restart(now);
        let window = self.window();
        let want = self.again.front().map_or_else(
            || self.piece_size().min(self.queue.front().map_or(0, |data| data.len)),
            |piece| piece.data.len,
        );
        if self.flight > 0 && self.flight + want > window {
            return None;
        }
        let piece = match self.again.pop_front() {
            Some(piece) => piece,
            None => {
                let first = self.queue.front_mut()?;
                let data = Data { at: first.at, len: want };
                first.at += want;
                first.len -= want;
                if first.len == 0 {
                    self.queue.pop_front();
                }
                let seq = self.next_seq;
                self.next_seq += want;
                Piece { seq, data }
            }
        };
        self.queued -= piece.data.len;
        if self.flight == 0 {
            self.heard = now;
        }
        self.flight += piece.data.len;
        self.peak = self.peak.max(self.flight);
        self.spoke = now;
        self.on_way.push_back(OnItsWay { number: self.next_number, at: now, piece });
        self.next_number += 1;
        Some(piece)
    }

    /// The number of the last transmission.
    pub(super) fn number(&self) -> u64 {
        self.next_number.saturating_sub(1)
    }

    /// The client has got the transmission of this number.
    pub(super) fn on_ack(&mut self, now: Instant, number: u64) {
        self.heard = now;
        self.timeouts = 0;
        if number >= self.round {
            self.round = self.next_number;
            self.peak = self.flight;
        }
        while let Some(sent) = self.on_way.front().copied().filter(|sent| sent.number < number) {
            self.on_way.pop_front();
            self.on_lost(sent);
        }
        let Some(sent) = self.on_way.front().copied().filter(|sent| sent.number == number) else { return };
        self.on_way.pop_front();
        self.flight -= sent.piece.data.len;
        let rtt = now.since(sent.at);
        self.least = self.least.min(rtt);
        self.smooth = Some(self.smooth.map_or(rtt, |smooth| (smooth * 7 + rtt) / 8));
        self.congestion.on_rtt(now, rtt, number, self.next_number);
        if self.is_full() && number >= self.recovered {
            let segments = sent.piece.data.len.div_ceil(self.mss);
            self.congestion.on_ack(now, u32::try_from(segments).unwrap_or(u32::MAX));
            self.make_room();
        }
    }

    /// When nothing will have come back for too long; none: nothing is on its way.
    pub(super) fn deadline(&self) -> Option<Instant> {
        (self.flight > 0).then(|| self.heard + self.timeout() * (1 << self.timeouts.min(MOST_BACKOFF)))
    }

    /// It has come. True: the subflow has just become stale.
    pub(super) fn on_deadline(&mut self, now: Instant) -> bool {
        if self.deadline().is_none_or(|at| at > now) {
            return false;
        }
        self.timeouts += 1;
        self.heard = now;
        self.congestion.on_loss();
        self.congestion.on_timeout();
        for sent in std::mem::take(&mut self.on_way) {
            self.queued += sent.piece.data.len;
            self.again.push_back(sent.piece);
        }
        self.again.make_contiguous().sort_by_key(|piece| piece.seq);
        self.flight = 0;
        self.recovered = self.next_number;
        self.timeouts == STALE
    }

    fn on_lost(&mut self, sent: OnItsWay) {
        self.flight -= sent.piece.data.len;
        self.queued += sent.piece.data.len;
        self.again.push_back(sent.piece);
        if sent.number >= self.recovered {
            self.recovered = self.next_number;
            self.congestion.on_loss();
            self.congestion.window = self.congestion.threshold;
        }
    }

    /// Whether the window was used in this round, so that it may grow (Linux's tcp_is_cwnd_limited).
    fn is_full(&self) -> bool {
        match self.congestion.in_slow_start() {
            true => self.peak * 2 >= self.window(),
            false => self.peak + self.piece_size() >= self.window(),
        }
    }

    /// After a pause with nothing on its way.
    fn restart(&mut self, now: Instant) {
        if self.flight > 0 || self.timeouts > 0 {
            return;
        }
        let pause = now.since(self.spoke);
        let idle = (pause.as_nanos() / self.timeout().as_nanos().max(1)).min(60);
        let idle = if self.keeps_window { 0 } else { u32::try_from(idle).unwrap_or(60) };
        self.congestion.on_restart(now, pause, idle);
        self.spoke = now;
    }

    fn window(&self) -> u64 {
        u64::from(self.congestion.window) * self.mss
    }

    fn piece_size(&self) -> u64 {
        (u64::from(self.congestion.window) / SHARE).clamp(1, MOST_PACKETS) * self.mss
    }

    fn timeout(&self) -> Duration {
        (self.rtt() + LEAST_TIMEOUT).min(MOST_TIMEOUT)
    }

    /// It never shrinks.
    fn make_room(&mut self) {
        self.room = self.room.max((self.window() * ROOM_TENTHS / 10).min(MOST_ROOM));
    }
}

/// Pieces of a window. chosen: fine enough for a queue of a few packets, coarse enough for a quarter of a gigabyte in a
/// tenth of a second.
const SHARE: u64 = 24;
/// Packets of a piece (Linux: 64 KB of segmentation offload; here what a queue of 100 ms at 1 Mbit/s takes).
const MOST_PACKETS: u64 = 6;
/// Linux's TCP_RTO_MIN.
const LEAST_TIMEOUT: Duration = Duration::from_millis(200);
/// Linux's TCP_RTO_MAX.
const MOST_TIMEOUT: Duration = Duration::from_secs(120);
/// Doublings: 200 ms become 102 s.
const MOST_BACKOFF: u32 = 9;
/// Timeouts until MPTCP calls a subflow stale. chosen: with the first doublings this is 0.6 s behind a short path and
/// 1.5 s behind 300 ms; measured on a short path: 0.6 to 1.0 s (the kernel counts four of its own, undoubled intervals).
const STALE: u32 = 2;
/// tcp_sndbuf_expand: twice the window in truesize with a reserve of 4352 bytes for each packet, of which a packet needs
/// 2304 to 3100: 2.8 to 3.8 times the window in payload. chosen: where the measured collapse of unequal links comes out.
const ROOM_TENTHS: u64 = 28;
/// tcp_wmem's 4 MiB, in payload.
const MOST_ROOM: u64 = 2_600_000;

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u64 = 1428;

    fn sender(keeps: bool) -> Sender {
        let mut sender = Sender::new(Instant::ZERO, Duration::from_millis(50), MSS, keeps);
        sender.take(Data { at: 0, len: 10_000_000 });
        sender
    }

    /// Sends what may be sent; numbers of what went.
    fn burst(sender: &mut Sender, now: Instant) -> Vec<u64> {
        std::iter::from_fn(|| sender.next(now).map(|_| sender.number())).collect()
    }

    #[test]
    fn slow_start_doubles_each_round() {
        let mut sender = sender(false);
        let mut now = Instant::ZERO;
        let mut sent = burst(&mut sender, now);
        assert_eq!(sent.len(), 10);
        now += Duration::from_millis(50);
        for number in std::mem::take(&mut sent) {
            sender.on_ack(now, number);
        }
        assert_eq!(burst(&mut sender, now).len(), 20);
    }

    #[test]
    fn what_a_later_answer_proves_lost_is_sent_again_first() {
        let mut sender = sender(false);
        let sent = burst(&mut sender, Instant::ZERO);
        let now = Instant::from_millis(50);
        for number in sent.iter().skip(1) {
            sender.on_ack(now, *number);
        }
        assert_eq!(sender.next(now).unwrap().seq, 0);
        assert_eq!(sender.congestion.threshold, 7);
    }

    #[test]
    fn silence_doubles_the_timeout_and_makes_it_stale() {
        let mut sender = sender(false);
        burst(&mut sender, Instant::ZERO);
        let first = sender.deadline().unwrap();
        assert_eq!(first, Instant::from_millis(250));
        assert!(!sender.on_deadline(first));
        assert_eq!(sender.next(first).unwrap().seq, 0);
        assert!(sender.next(first).is_none(), "one packet probes");
        let second = sender.deadline().unwrap();
        assert_eq!(second.since(first), Duration::from_millis(500));
        assert!(sender.on_deadline(second) && sender.is_stale());
        sender.next(second);
        sender.on_ack(second + Duration::from_millis(50), sender.number());
        assert!(!sender.is_stale());
    }

    #[test]
    fn a_pause_takes_the_window_unless_it_is_kept() {
        for (keeps, expected) in [(true, 100), (false, 10)] {
            let mut sender = sender(keeps);
            sender.queue.clear();
            sender.queued = 0;
            sender.congestion.window = 100;
            sender.take(Data { at: 0, len: 1_000_000 });
            burst(&mut sender, Instant::from_millis(5000));
            assert_eq!(sender.congestion.window, expected);
        }
    }
}
