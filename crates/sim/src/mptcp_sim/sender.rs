//! Sender of one subflow at the server: congestion window, data in flight, retransmissions.
//!
//! MPTCP's scheduler provides the data. [`SubflowSender::next_chunk`] returns what to send now, and
//! [`SubflowSender::deadline`] is the retransmission timeout.
//!
//! 1. The congestion window is that of [`crate::tcp`] (CUBIC with HyStart). Packets are sent in chunks, as with segmentation offload:
//!    `CHUNKS_PER_WINDOW` of them per window, but of at least one packet and at most `MAX_CHUNK_PACKETS`.
//! 2. Links keep the order, so an ACK of a later chunk proves that the earlier ones are lost. They are
//!    retransmitted at once, and the window is reduced once per round.
//! 3. Without any ACK for an RTO everything counts as lost; the RTO doubles each time. After `STALE_TIMEOUTS`
//!    timeouts the subflow is stale: MPTCP reinjects its data on others (net/mptcp/pm.c, `stale_loss_cnt`). It is
//!    used again after the next ACK.
//! 4. After a pause, the window is halved for each RTO of it, at most to the initial window (RFC 2861), unless the server keeps its window.
//! 5. Queued data stays with the subflow; only a reset removes it.

use std::collections::VecDeque;

use marline_core::units::{Duration, Instant};

use super::DataRange;
use crate::tcp::congestion::{Algorithm, Congestion};

/// Data sent in one transmission.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunk {
    /// Offset in the subflow's own sequence.
    pub(super) seq: u64,
    pub(super) data: DataRange,
}

#[derive(Clone, Copy, Debug)]
struct InFlight {
    transmission: u64,
    sent_at: Instant,
    chunk: Chunk,
}

/// Sending side of a subflow.
#[derive(Clone, Debug)]
pub(super) struct SubflowSender {
    congestion: Congestion,
    mss: u64,
    keeps_cwnd: bool,
    /// Assigned and not yet sent.
    queue: VecDeque<DataRange>,
    /// Lost chunks, to be retransmitted before new data.
    retransmit_queue: VecDeque<Chunk>,
    in_flight: VecDeque<InFlight>,
    /// Bytes in `queue` and `retransmit_queue`, and bytes in flight.
    queued: u64,
    flight_bytes: u64,
    next_seq: u64,
    next_transmission: u64,
    /// A loss of a transmission before this one belongs to the same round and does not reduce the window again.
    recovery_point: u64,
    srtt: Option<Duration>,
    min_rtt: Duration,
    /// Most bytes in flight in this round, and the transmission with which the round ends.
    round_peak: u64,
    round_end: u64,
    /// Time of the last ACK or timeout, or of the first transmission after nothing was in flight: start of the running timeout.
    last_ack_at: Instant,
    /// Time of the last transmission.
    last_sent_at: Instant,
    timeouts: u32,
    /// Maximum number of bytes buffered here (Linux's sk_sndbuf, in payload).
    send_buffer: u64,
    /// Rate assumed by the scheduler, in bytes per second.
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

    /// Bytes that are queued or in flight.
    pub(super) fn buffered_bytes(&self) -> u64 {
        self.queued + self.flight_bytes
    }

    /// Maximum of [`Self::buffered_bytes`].
    pub(super) fn send_buffer(&self) -> u64 {
        self.send_buffer
    }

    /// Linux's sk_pacing_rate: the window per RTT, times 2 in slow start and times 1.2 otherwise.
    pub(super) fn current_pacing_rate(&self) -> f64 {
        let factor = if self.congestion.in_slow_start() { 2.0 } else { 1.2 };
        factor * self.window() as f64 / self.rtt().as_secs_f64().max(1e-4)
    }

    pub(super) fn rtt(&self) -> Duration {
        self.srtt.unwrap_or(self.min_rtt)
    }

    /// Whether the scheduler must not assign more data to it.
    pub(super) fn is_stale(&self) -> bool {
        self.timeouts >= STALE_TIMEOUTS
    }

    /// Assigns data to this subflow.
    pub(super) fn enqueue(&mut self, data: DataRange) {
        self.queued += data.len;
        match self.queue.back_mut().filter(|last| last.offset + last.len == data.offset) {
            Some(last) => last.len += data.len,
            None => self.queue.push_back(data),
        }
    }

    /// The chunk to send now, if there is one and the window permits.
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
        // One chunk may always be in flight, however small the window is.
        if self.flight_bytes > 0 && self.flight_bytes + len > window {
            return None;
        }
        let chunk = match self.retransmit_queue.pop_front() {
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
        self.queued -= chunk.data.len;
        if self.flight_bytes == 0 {
            self.last_ack_at = now;
        }
        self.flight_bytes += chunk.data.len;
        self.round_peak = self.round_peak.max(self.flight_bytes);
        self.last_sent_at = now;
        self.in_flight.push_back(InFlight { transmission: self.next_transmission, sent_at: now, chunk });
        self.next_transmission += 1;
        Some(chunk)
    }

    /// Number of the last transmission.
    pub(super) fn last_transmission(&self) -> u64 {
        self.next_transmission.saturating_sub(1)
    }

    /// The client has acknowledged this transmission.
    pub(super) fn on_ack(&mut self, now: Instant, number: u64) {
        self.last_ack_at = now;
        self.timeouts = 0;
        if number >= self.round_end {
            self.round_end = self.next_transmission;
            self.round_peak = self.flight_bytes;
        }
        // Links keep the order, so everything sent earlier and still in flight is lost.
        while let Some(sent) = self.in_flight.front().copied().filter(|sent| sent.transmission < number) {
            self.in_flight.pop_front();
            self.on_lost(sent);
        }
        let Some(sent) = self.in_flight.front().copied().filter(|sent| sent.transmission == number) else { return };
        self.in_flight.pop_front();
        self.flight_bytes -= sent.chunk.data.len;
        let rtt = now.since(sent.sent_at);
        self.min_rtt = self.min_rtt.min(rtt);
        self.srtt = Some(self.srtt.map_or(rtt, |smooth| (smooth * 7 + rtt) / 8));
        self.congestion.on_rtt(now, rtt, number, self.next_transmission);
        if self.is_cwnd_limited() && number >= self.recovery_point {
            let segments = sent.chunk.data.len.div_ceil(self.mss);
            self.congestion.on_ack(now, u32::try_from(segments).unwrap_or(u32::MAX));
            self.grow_send_buffer();
        }
    }

    /// Time of the retransmission timeout; `None` if nothing is in flight.
    pub(super) fn deadline(&self) -> Option<Instant> {
        (self.flight_bytes > 0).then(|| self.last_ack_at + self.rto() * (1 << self.timeouts.min(MAX_BACKOFF)))
    }

    /// Handles the retransmission timeout. Returns true if the subflow has just become stale.
    pub(super) fn on_deadline(&mut self, now: Instant) -> bool {
        if self.deadline().is_none_or(|at| at > now) {
            return false;
        }
        self.timeouts += 1;
        self.last_ack_at = now;
        self.congestion.on_loss();
        self.congestion.on_timeout();
        for sent in std::mem::take(&mut self.in_flight) {
            self.queued += sent.chunk.data.len;
            self.retransmit_queue.push_back(sent.chunk);
        }
        self.retransmit_queue.make_contiguous().sort_by_key(|piece| piece.seq);
        self.flight_bytes = 0;
        self.recovery_point = self.next_transmission;
        self.timeouts == STALE_TIMEOUTS
    }

    fn on_lost(&mut self, sent: InFlight) {
        self.flight_bytes -= sent.chunk.data.len;
        self.queued += sent.chunk.data.len;
        self.retransmit_queue.push_back(sent.chunk);
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

    /// Reduces the window after a pause with nothing in flight.
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

    /// Adapts the send buffer to the window; it never shrinks.
    fn grow_send_buffer(&mut self) {
        self.send_buffer = self.send_buffer.max((self.window() * SEND_BUFFER_TENTHS / 10).min(MAX_SEND_BUFFER));
    }
}

/// Chunks per window. Our choice: fine enough for a queue of a few packets, and coarse enough to simulate a quarter
/// of a gigabyte in a tenth of a second.
const CHUNKS_PER_WINDOW: u64 = 24;
/// Maximum packets per chunk: what fits into a queue of 100 ms at 1 Mbit/s (Linux: 64 KB with segmentation
/// offload).
const MAX_CHUNK_PACKETS: u64 = 6;
/// Added to the RTT for the timeout: Linux's TCP_RTO_MIN.
const MIN_RTO: Duration = Duration::from_millis(200);
/// Upper limit of the timeout: Linux's TCP_RTO_MAX.
const MAX_RTO: Duration = Duration::from_secs(120);
/// Maximum number of doublings: 200 ms become 102 s.
const MAX_BACKOFF: u32 = 9;
/// Timeouts after which a subflow is stale. Our choice: including the doubling, this takes 0.6 s on a short path
/// and 1.5 s at an RTT of 300 ms. Measured on a short path: 0.6 to 1.0 s (the kernel counts four constant intervals
/// of its own).
const STALE_TIMEOUTS: u32 = 2;
/// Tenths of the window in payload. Linux's tcp_sndbuf_expand takes twice the window in truesize, with 4352 bytes
/// per packet, while a packet needs 2304 to 3100: 2.8 to 3.8 windows. Our choice: the value that reproduces the
/// measured collapse on unequal links.
const SEND_BUFFER_TENTHS: u64 = 28;
/// tcp_wmem's maximum of 4 MiB, in payload.
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

    /// Sends as much as possible and returns the numbers of the transmissions.
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
    fn a_chunk_skipped_by_an_ack_is_retransmitted_first() {
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
    fn timeouts_double_and_make_the_subflow_stale() {
        let mut sender = sender(false);
        send_all(&mut sender, Instant::ZERO);
        let first = sender.deadline().unwrap();
        assert_eq!(first, Instant::from_millis(250));
        assert!(!sender.on_deadline(first));
        assert_eq!(sender.next_chunk(first).unwrap().seq, 0);
        assert!(sender.next_chunk(first).is_none(), "only one packet is sent as a probe");
        let second = sender.deadline().unwrap();
        assert_eq!(second.since(first), Duration::from_millis(500));
        assert!(sender.on_deadline(second) && sender.is_stale());
        sender.next_chunk(second);
        sender.on_ack(second + Duration::from_millis(50), sender.last_transmission());
        assert!(!sender.is_stale());
    }

    #[test]
    fn a_pause_reduces_the_window_unless_the_server_keeps_it() {
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
