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

use super::DataRange;
use crate::tcp::congestion::{Algorithm, Congestion};

/// A sent piece.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunk {
    /// Of the subflow's own order.
    pub(super) seq: u64,
    pub(super) data: DataRange,
}

#[derive(Clone, Copy, Debug)]
struct InFlight {
    /// Which transmission it was.
    transmission: u64,
    sent_at: Instant,
    piece: Chunk,
}

/// The sending side of a subflow.
#[derive(Clone, Debug)]
pub(super) struct SubflowSender {
    congestion: Congestion,
    mss: u64,
    keeps_cwnd: bool,
    /// Given and not yet sent.
    queue: VecDeque<DataRange>,
    /// To be sent again.
    retransmit_queue: VecDeque<Chunk>,
    in_flight: VecDeque<InFlight>,
    /// Bytes of these three.
    queued: u64,
    flight_bytes: u64,
    next_seq: u64,
    next_transmission: u64,
    /// A loss of something sent before this is of the same round.
    recovery_point: u64,
    srtt: Option<Duration>,
    min_rtt: Duration,
    /// The most that was on its way in this round, which ends with this transmission.
    round_peak: u64,
    round_end: u64,
    /// The newest answer, or the first transmission since nothing was on its way.
    last_ack_at: Instant,
    /// The last transmission.
    last_sent_at: Instant,
    timeouts: u32,
    /// The most bytes that may wait here (Linux's sk_sndbuf, in payload).
    send_buffer: u64,
    /// What the scheduler takes for its rate, bytes a second.
    pub(super) pacing_rate: f64,
}

impl SubflowSender {
    pub(super) fn new(now: Instant, handshake: Duration, mss: u64, keeps_window: bool) -> Self {
        let mut sender = Self {
            congestion: Congestion::new(Algorithm::Cubic),
            mss,
            keeps_cwnd: keeps_window,
            queue: VecDeque::new(),
            retransmit_queue: VecDeque::new(),
            in_flight: VecDeque::new(),
            queued: 0,
            flight_bytes: 0,
            next_seq: 0,
            next_transmission: 0,
            recovery_point: 0,
            round_peak: 0,
            round_end: 0,
            srtt: Some(handshake),
            min_rtt: handshake,
            last_ack_at: now,
            last_sent_at: now,
            timeouts: 0,
            send_buffer: 0,
            pacing_rate: 0.0,
        };
        sender.grow_send_buffer();
        sender.pacing_rate = sender.current_pacing_rate();
        sender
    }

    /// Everything that waits here or is on its way.
    pub(super) fn buffered_bytes(&self) -> u64 {
        self.queued + self.flight_bytes
    }

    /// How many bytes may.
    pub(super) fn send_buffer(&self) -> u64 {
        self.send_buffer
    }

    /// Linux's sk_pacing_rate: twice the window a round trip in slow start, else 1.2 times.
    pub(super) fn current_pacing_rate(&self) -> f64 {
        let factor = if self.congestion.in_slow_start() { 2.0 } else { 1.2 };
        factor * self.window() as f64 / self.rtt().as_secs_f64().max(1e-4)
    }

    pub(super) fn rtt(&self) -> Duration {
        self.srtt.unwrap_or(self.min_rtt)
    }

    /// Whether it is given no more data.
    pub(super) fn is_stale(&self) -> bool {
        self.timeouts >= STALE_TIMEOUTS
    }

    /// The scheduler gives it data.
    pub(super) fn enqueue(&mut self, data: DataRange) {
        self.queued += data.len;
        match self.queue.back_mut().filter(|last| last.offset + last.len == data.offset) {
            Some(last) => last.len += data.len,
            None => self.queue.push_back(data),
        }
    }

    /// What to send now, if anything may be.
    pub(super) fn next_chunk(&mut self, now: Instant) -> Option<Chunk> {
        if self.queued == 0 {
            return None;
        }
        self.restart_after_idle(now);
        let window = self.window();
        let len = self.retransmit_queue.front().map_or_else(
            || self.chunk_size().min(self.queue.front().map_or(0, |data| data.len)),
            |piece| piece.data.len,
        );
        if self.flight_bytes > 0 && self.flight_bytes + len > window {
            return None;
        }
        let piece = match self.retransmit_queue.pop_front() {
            Some(piece) => piece,
            None => {
                let first = self.queue.front_mut()?;
                let data = DataRange { offset: first.offset, len };
                first.offset += len;
                first.len -= len;
                if first.len == 0 {
                    self.queue.pop_front();
                }
                let seq = self.next_seq;
                self.next_seq += len;
                Chunk { seq, data }
            }
        };
        self.queued -= piece.data.len;
        if self.flight_bytes == 0 {
            self.last_ack_at = now;
        }
        self.flight_bytes += piece.data.len;
        self.round_peak = self.round_peak.max(self.flight_bytes);
        self.last_sent_at = now;
        self.in_flight.push_back(InFlight { transmission: self.next_transmission, sent_at: now, piece });
        self.next_transmission += 1;
        Some(piece)
    }

    /// The number of the last transmission.
    pub(super) fn last_transmission(&self) -> u64 {
        self.next_transmission.saturating_sub(1)
    }

    /// The client has got the transmission of this number.
    pub(super) fn on_ack(&mut self, now: Instant, number: u64) {
        self.last_ack_at = now;
        self.timeouts = 0;
        if number >= self.round_end {
            self.round_end = self.next_transmission;
            self.round_peak = self.flight_bytes;
        }
        while let Some(sent) = self.in_flight.front().copied().filter(|sent| sent.transmission < number) {
            self.in_flight.pop_front();
            self.on_lost(sent);
        }
        let Some(sent) = self.in_flight.front().copied().filter(|sent| sent.transmission == number) else { return };
        self.in_flight.pop_front();
        self.flight_bytes -= sent.piece.data.len;
        let rtt = now.since(sent.sent_at);
        self.min_rtt = self.min_rtt.min(rtt);
        self.srtt = Some(self.srtt.map_or(rtt, |smooth| (smooth * 7 + rtt) / 8));
        self.congestion.on_rtt(now, rtt, number, self.next_transmission);
        if self.is_cwnd_limited() && number >= self.recovery_point {
            let segments = sent.piece.data.len.div_ceil(self.mss);
            self.congestion.on_ack(now, u32::try_from(segments).unwrap_or(u32::MAX));
            self.grow_send_buffer();
        }
    }

    /// When nothing will have come back for too long; none: nothing is on its way.
    pub(super) fn deadline(&self) -> Option<Instant> {
        (self.flight_bytes > 0).then(|| self.last_ack_at + self.rto() * (1 << self.timeouts.min(MAX_BACKOFF)))
    }

    /// It has come. True: the subflow has just become stale.
    pub(super) fn on_deadline(&mut self, now: Instant) -> bool {
        if self.deadline().is_none_or(|at| at > now) {
            return false;
        }
        self.timeouts += 1;
        self.last_ack_at = now;
        self.congestion.on_loss();
        self.congestion.on_timeout();
        for sent in std::mem::take(&mut self.in_flight) {
            self.queued += sent.piece.data.len;
            self.retransmit_queue.push_back(sent.piece);
        }
        self.retransmit_queue.make_contiguous().sort_by_key(|piece| piece.seq);
        self.flight_bytes = 0;
        self.recovery_point = self.next_transmission;
        self.timeouts == STALE_TIMEOUTS
    }

    fn on_lost(&mut self, sent: InFlight) {
        self.flight_bytes -= sent.piece.data.len;
        self.queued += sent.piece.data.len;
        self.retransmit_queue.push_back(sent.piece);
        if sent.transmission >= self.recovery_point {
            self.recovery_point = self.next_transmission;
            self.congestion.on_loss();
            self.congestion.cwnd = self.congestion.ssthresh;
        }
    }

    /// Whether the window was used in this round, so that it may grow (Linux's tcp_is_cwnd_limited).
    fn is_cwnd_limited(&self) -> bool {
        match self.congestion.in_slow_start() {
            true => self.round_peak * 2 >= self.window(),
            false => self.round_peak + self.chunk_size() >= self.window(),
        }
    }

    /// After a pause with nothing on its way.
    fn restart_after_idle(&mut self, now: Instant) {
        if self.flight_bytes > 0 || self.timeouts > 0 {
            return;
        }
        let idle_time = now.since(self.last_sent_at);
        let idle_timeouts = (idle_time.as_nanos() / self.rto().as_nanos().max(1)).min(60);
        let idle_timeouts = if self.keeps_cwnd { 0 } else { u32::try_from(idle_timeouts).unwrap_or(60) };
        self.congestion.on_restart(now, idle_time, idle_timeouts);
        self.last_sent_at = now;
    }

    fn window(&self) -> u64 {
        u64::from(self.congestion.cwnd) * self.mss
    }

    fn chunk_size(&self) -> u64 {
        (u64::from(self.congestion.cwnd) / CHUNKS_PER_WINDOW).clamp(1, MAX_CHUNK_PACKETS) * self.mss
    }

    fn rto(&self) -> Duration {
        (self.rtt() + MIN_RTO).min(MAX_RTO)
    }

    /// It never shrinks.
    fn grow_send_buffer(&mut self) {
        self.send_buffer = self.send_buffer.max((self.window() * SEND_BUFFER_TENTHS / 10).min(MAX_SEND_BUFFER));
    }
}

/// Pieces of a window. chosen: fine enough for a queue of a few packets, coarse enough for a quarter of a gigabyte in a
/// tenth of a second.
const CHUNKS_PER_WINDOW: u64 = 24;
/// Packets of a piece (Linux: 64 KB of segmentation offload; here what a queue of 100 ms at 1 Mbit/s takes).
const MAX_CHUNK_PACKETS: u64 = 6;
/// Linux's TCP_RTO_MIN.
const MIN_RTO: Duration = Duration::from_millis(200);
/// Linux's TCP_RTO_MAX.
const MAX_RTO: Duration = Duration::from_secs(120);
/// Doublings: 200 ms become 102 s.
const MAX_BACKOFF: u32 = 9;
/// Timeouts until MPTCP calls a subflow stale. chosen: with the first doublings this is 0.6 s behind a short path and
/// 1.5 s behind 300 ms; measured on a short path: 0.6 to 1.0 s (the kernel counts four of its own, undoubled intervals).
const STALE_TIMEOUTS: u32 = 2;
/// tcp_sndbuf_expand: twice the window in truesize with a reserve of 4352 bytes for each packet, of which a packet needs
/// 2304 to 3100: 2.8 to 3.8 times the window in payload. chosen: where the measured collapse of unequal links comes out.
const SEND_BUFFER_TENTHS: u64 = 28;
/// tcp_wmem's 4 MiB, in payload.
const MAX_SEND_BUFFER: u64 = 2_600_000;

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u64 = 1428;

    fn sender(keeps: bool) -> SubflowSender {
        let mut sender = SubflowSender::new(Instant::ZERO, Duration::from_millis(50), MSS, keeps);
        sender.enqueue(DataRange { offset: 0, len: 10_000_000 });
        sender
    }

    /// Sends what may be sent; numbers of what went.
    fn send_all(sender: &mut SubflowSender, now: Instant) -> Vec<u64> {
        std::iter::from_fn(|| sender.next_chunk(now).map(|_| sender.last_transmission())).collect()
    }

    #[test]
    fn slow_start_doubles_each_round() {
        let mut sender = sender(false);
        let mut now = Instant::ZERO;
        let mut sent = send_all(&mut sender, now);
        assert_eq!(sent.len(), 10);
        now += Duration::from_millis(50);
        for number in std::mem::take(&mut sent) {
            sender.on_ack(now, number);
        }
        assert_eq!(send_all(&mut sender, now).len(), 20);
    }

    #[test]
    fn what_a_later_answer_proves_lost_is_sent_again_first() {
        let mut sender = sender(false);
        let sent = send_all(&mut sender, Instant::ZERO);
        let now = Instant::from_millis(50);
        for number in sent.iter().skip(1) {
            sender.on_ack(now, *number);
        }
        assert_eq!(sender.next_chunk(now).unwrap().seq, 0);
        assert_eq!(sender.congestion.ssthresh, 7);
    }

    #[test]
    fn silence_doubles_the_timeout_and_makes_it_stale() {
        let mut sender = sender(false);
        send_all(&mut sender, Instant::ZERO);
        let first = sender.deadline().unwrap();
        assert_eq!(first, Instant::from_millis(250));
        assert!(!sender.on_deadline(first));
        assert_eq!(sender.next_chunk(first).unwrap().seq, 0);
        assert!(sender.next_chunk(first).is_none(), "one packet probes");
        let second = sender.deadline().unwrap();
        assert_eq!(second.since(first), Duration::from_millis(500));
        assert!(sender.on_deadline(second) && sender.is_stale());
        sender.next_chunk(second);
        sender.on_ack(second + Duration::from_millis(50), sender.last_transmission());
        assert!(!sender.is_stale());
    }

    #[test]
    fn a_pause_takes_the_window_unless_it_is_kept() {
        for (keeps, expected) in [(true, 100), (false, 10)] {
            let mut sender = sender(keeps);
            sender.queue.clear();
            sender.queued = 0;
            sender.congestion.cwnd = 100;
            sender.enqueue(DataRange { offset: 0, len: 1_000_000 });
            send_all(&mut sender, Instant::from_millis(5000));
            assert_eq!(sender.congestion.cwnd, expected);
        }
    }
}
