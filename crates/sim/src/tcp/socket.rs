//! TCP socket: opens and closes a connection, and connects its sender and receiver.
//!
//! 1. Three-way handshake. SYN and SYN-ACK are retransmitted after 1, 3, 7, 15, 31 and 63 s, then the attempt times
//!    out (RFC 6298 §5.7, Linux's six retries).
//! 2. A FIN ends one direction behind its last byte. An RST ends both at once; a closed connection responds to
//!    every segment except an RST with an RST.
//! 3. An aborting side sends one RST, unless it has only sent SYNs; later segments are handled by rule 2.
//! 4. There is no TIME-WAIT state, because flow ids are never reused.
//! 5. [`TcpConfig::is_strict`] checks segments that occur only in the simulations of [`crate::accel`]. Segments
//!    with old timestamps (PAWS, RFC 7323 §5) or sequence numbers outside of the window are acknowledged and
//!    dropped. An ACK of unsent data gets a challenge ACK (RFC 5961 §5). A reset is accepted only at exactly the
//!    next sequence number (§3). A finished connection still acknowledges a retransmitted FIN.

use core::time::Duration;

use marline_core::units::{DataSize, Instant};

use super::congestion::Algorithm;
use super::receiver::Receiver;
use super::segment::{Flags, HEADERS_WITH_TIMESTAMPS, SackBlocks, Segment, SeqRange};
use super::sender::{Sender, SenderConfig};
use super::undo::timestamp_tick;

/// Configuration of one end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TcpConfig {
    /// Congestion control of this end.
    pub algorithm: Algorithm,
    /// Largest IP packet.
    pub mtu: DataSize,
    /// Receive window from the start on: auto-tuning is assumed to stay ahead of the sender and is not modelled.
    pub receive_window: DataSize,
    /// Whether both ends use SACK (RFC 2018).
    pub sack: bool,
    /// Whether both ends use timestamps (RFC 7323). Their bytes are counted in any case.
    pub timestamps: bool,
    /// Whether unusual segments are checked as in Linux and spurious reductions are undone (Eifel, F-RTO, DSACK).
    /// Off in simulations without such segments, whose result tables were recorded without it.
    pub is_strict: bool,
}

impl Default for TcpConfig {
    /// CUBIC, an MTU of 1500 bytes, SACK and timestamps, not strict. The window of 4 MiB is what Linux's buffer of
    /// 6 MiB holds in packets of this size.
    fn default() -> Self {
        Self {
            algorithm: Algorithm::Cubic,
            mtu: DataSize::from_bytes(1500),
            receive_window: DataSize::from_mib(4),
            sack: true,
            timestamps: true,
            is_strict: false,
        }
    }
}

/// State of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TcpState {
    /// SYNs are sent, and none was answered yet.
    SynSent,
    /// A SYN was received and answered.
    SynReceived,
    /// Both directions carry data.
    Established,
    /// The connection has ended.
    Closed(TcpCloseReason),
}

/// How a connection ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TcpCloseReason {
    /// Both sides have sent a FIN that was acknowledged.
    Finished,
    /// The peer sent an RST.
    Reset,
    /// The peer responded to the first SYN with an RST.
    Refused,
    /// No response to any retransmission.
    TimedOut,
    /// This side aborted the connection.
    Aborted,
}

/// The values that TCP_INFO would return.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SocketInfo {
    /// Smoothed RTT of this side's data.
    pub rtt: Duration,
    /// Minimum RTT.
    pub min_rtt: Duration,
    /// RTT measured by the receiver.
    pub rcv_rtt: Duration,
    /// Number of segments that arrived out of order.
    pub out_of_order: u32,
    /// Congestion window of this side, in segments.
    pub cwnd: u32,
    /// Slow-start threshold of this side, in segments.
    pub ssthresh: u32,
    /// Number of consecutive timeouts.
    pub timeouts: u32,
}

/// One end of a connection.
#[derive(Clone, Debug)]
pub struct Socket {
    flow: u32,
    state: TcpState,
    sender: Sender,
    receiver: Receiver,
    /// When the next handshake segment is due, and how many were sent.
    syn_timer: (Option<Instant>, u32),
    started_at: Instant,
    established_at: Option<Instant>,
    is_rst_pending: bool,
    peer_ts_val: Option<Instant>,
    uses_timestamps: bool,
    is_strict: bool,
    /// When an unacceptable segment without data was last answered.
    last_challenge_ack: Option<Instant>,
}

impl Socket {
    /// Opens a connection; `flow` identifies it in its segments.
    pub fn connect(config: TcpConfig, flow: u32, now: Instant) -> Self {
        Self::new(config, flow, now, TcpState::SynSent)
    }

    /// The side that receives `syn`.
    pub fn accept(config: TcpConfig, syn: &Segment, now: Instant) -> Self {
        let mut socket = Self::new(config, syn.flow, now, TcpState::SynReceived);
        socket.sender.on_handshake_window(syn.window.bytes());
        socket.peer_ts_val = Some(syn.ts_val);
        socket
    }

    /// The RST with which a host refuses `syn`.
    pub fn reset_for(syn: &Segment, now: Instant) -> Segment {
        let flags = Flags { rst: true, ack: true, ..Flags::default() };
        Segment { flow: syn.flow, flags, ts_val: now, ts_ecr: Some(syn.ts_val), ..Segment::default() }
    }

    /// The application writes `bytes`.
    pub fn write(&mut self, bytes: DataSize) {
        self.sender.write(bytes.bytes());
    }

    /// The application has written everything.
    pub fn finish(&mut self) {
        self.sender.finish();
    }

    /// Aborts the connection with an RST, unless it has already ended.
    pub fn abort(&mut self) {
        if !matches!(self.state, TcpState::Closed(_)) {
            self.is_rst_pending = self.state != TcpState::SynSent;
            self.state = TcpState::Closed(TcpCloseReason::Aborted);
        }
    }

    /// Processes a received segment.
    pub fn on_segment(&mut self, now: Instant, segment: &Segment) {
        if self.is_strict && self.state == TcpState::Established && !self.is_acceptable(now, segment) {
            return;
        }
        match self.state {
            // A pure ACK is not acknowledged.
            TcpState::Closed(TcpCloseReason::Finished) if self.is_strict => {
                self.is_rst_pending |= segment.end() > segment.seqs.start
            }
            TcpState::Closed(_) => self.is_rst_pending |= !segment.flags.rst,
            TcpState::SynSent if segment.flags.rst => self.state = TcpState::Closed(TcpCloseReason::Refused),
            _ if segment.flags.rst => self.state = TcpState::Closed(TcpCloseReason::Reset),
            TcpState::SynSent => self.on_syn_ack(now, segment),
            TcpState::SynReceived if segment.flags.syn => {}
            TcpState::SynReceived => {
                self.establish(now, segment.ack.saturating_add(segment.window.bytes()));
                self.on_established(now, segment);
            }
            TcpState::Established if segment.flags.syn => self.receiver.request_ack(),
            TcpState::Established => self.on_established(now, segment),
        }
    }

    /// A router reports that the segment with this number is unreachable.
    pub fn on_unreachable(&mut self, now: Instant, number: u64) {
        if self.state == TcpState::Established {
            self.sender.on_unreachable(now, number);
        }
    }

    /// Processes the timers that have expired by `now`.
    pub fn on_timer(&mut self, now: Instant) {
        if self.state == TcpState::Established {
            self.sender.on_timer(now);
            if self.sender.has_given_up(now) {
                self.state = TcpState::Closed(TcpCloseReason::TimedOut);
            }
        } else if self.syn_timer.0.is_some_and(|at| at <= now) && self.syn_timer.1 > SYN_RETRIES {
            self.state = TcpState::Closed(TcpCloseReason::TimedOut);
        }
    }

    /// The next segment to be sent now, if there is one.
    pub fn poll(&mut self, now: Instant) -> Option<Segment> {
        match self.state {
            TcpState::SynSent => self.next_handshake(now, Flags { syn: true, ..Flags::default() }),
            TcpState::SynReceived => self.next_handshake(now, Flags { syn: true, ack: true, ..Flags::default() }),
            TcpState::Established => self.next_data(now).or_else(|| self.next_ack(now)),
            TcpState::Closed(_) => self.next_reset(now),
        }
    }

    /// When to call [`Self::on_timer`] and [`Self::poll`] if nothing arrives.
    pub fn timer(&self) -> Option<Instant> {
        match self.state {
            TcpState::SynSent | TcpState::SynReceived => self.syn_timer.0,
            TcpState::Established => [self.sender.timer(), self.receiver.timer()].into_iter().flatten().min(),
            TcpState::Closed(_) => None,
        }
    }

    /// State of the connection.
    pub const fn state(&self) -> TcpState {
        self.state
    }

    /// Time from the first SYN to the completion of the handshake; `None` before.
    pub fn handshake_time(&self) -> Option<Duration> {
        self.established_at.map(|opened| opened.since(self.started_at))
    }

    /// Bytes received in order since the start of the peer's stream.
    pub fn in_order_bytes(&self) -> u64 {
        self.receiver.in_order_bytes()
    }

    /// Next expected sequence number, as in this side's ACKs.
    pub fn rcv_nxt(&self) -> u64 {
        self.receiver.rcv_nxt()
    }

    /// Number of distinct bytes that have arrived.
    pub const fn received_bytes(&self) -> u64 {
        self.receiver.received_bytes()
    }

    /// Whether the peer's whole stream, including the FIN, has arrived.
    pub fn is_peer_finished(&self) -> bool {
        self.receiver.is_finished()
    }

    /// Bytes written and never sent.
    pub const fn unsent(&self) -> DataSize {
        DataSize::from_bytes(self.sender.unsent())
    }

    /// First unacknowledged sequence number of this side.
    pub const fn snd_una(&self) -> u64 {
        self.sender.una()
    }

    /// The values that TCP_INFO would return.
    pub fn info(&self) -> SocketInfo {
        SocketInfo {
            rtt: self.sender.rtt().smoothed(),
            min_rtt: self.sender.rtt().min(),
            rcv_rtt: self.receiver.rtt(),
            out_of_order: self.receiver.out_of_order_segments(),
            cwnd: self.sender.cwnd(),
            ssthresh: self.sender.ssthresh(),
            timeouts: self.sender.timeouts(),
        }
    }

    fn new(config: TcpConfig, flow: u32, now: Instant, state: TcpState) -> Self {
        let mss = config.mtu.bytes().saturating_sub(HEADERS_WITH_TIMESTAMPS).max(1);
        Self {
            flow,
            state,
            sender: Sender::new(config.algorithm, mss, SenderConfig { undo: config.is_strict, sack: config.sack }),
            receiver: Receiver::new(mss, config.receive_window, config.sack),
            syn_timer: (Some(now), 0),
            started_at: now,
            established_at: None,
            is_rst_pending: false,
            peer_ts_val: None,
            uses_timestamps: config.timestamps,
            is_strict: config.is_strict,
            last_challenge_ack: None,
        }
    }

    fn on_syn_ack(&mut self, now: Instant, segment: &Segment) {
        if segment.flags.syn && segment.flags.ack {
            self.peer_ts_val = Some(segment.ts_val);
            self.establish(now, segment.window.bytes());
            self.receiver.request_ack();
        }
    }

    fn establish(&mut self, now: Instant, window_end: u64) {
        self.state = TcpState::Established;
        self.established_at = Some(now);
        self.sender.on_handshake_window(window_end);
        if self.syn_timer.1 == 1 {
            self.sender.on_handshake(now.since(self.started_at));
        }
        self.syn_timer.0 = None;
    }

    /// Rule 5: whether the segment is acceptable. Unacceptable segments may cause an ACK.
    fn is_acceptable(&mut self, now: Instant, segment: &Segment) -> bool {
        let (rcv_nxt, start) = (self.receiver.rcv_nxt(), segment.seqs.start);
        if segment.flags.rst {
            if start != rcv_nxt && start < rcv_nxt + self.receiver.window().bytes() {
                self.send_challenge_ack(now, segment);
            }
            return start == rcv_nxt;
        }
        let ts_recent = self.receiver.ts_recent().filter(|_| self.uses_timestamps && !segment.flags.syn);
        let is_old_timestamp = ts_recent
            .is_some_and(|clock| timestamp_tick(segment.ts_val) < timestamp_tick(clock))
            && !self.is_disordered(segment);
        let is_below_window = segment.end() < self.receiver.last_acked() && segment.end() == start;
        let is_above_window = segment.end() > rcv_nxt + self.receiver.window().bytes();
        let acks_unsent = segment.flags.ack && segment.ack > self.sender.nxt();
        if is_old_timestamp || is_below_window || is_above_window || acks_unsent {
            self.send_challenge_ack(now, segment);
        }
        !(is_old_timestamp || is_below_window || is_above_window || acks_unsent)
    }

    /// Linux's `tcp_disordered_ack`: an ACK without new information may arrive late.
    fn is_disordered(&self, segment: &Segment) -> bool {
        segment.seqs.is_empty() && segment.seqs.start == self.receiver.rcv_nxt() && segment.ack == self.sender.una()
    }

    fn send_challenge_ack(&mut self, now: Instant, segment: &Segment) {
        let is_rate_limited = segment.seqs.is_empty() && !segment.flags.fin;
        if !is_rate_limited {
            self.receiver.request_ack();
        } else if self.last_challenge_ack.is_none_or(|at| now.since(at) >= CHALLENGE_ACK_INTERVAL) {
            self.last_challenge_ack = Some(now);
            self.receiver.request_ack();
        }
    }

    fn on_established(&mut self, now: Instant, segment: &Segment) {
        self.receiver.on_segment(now, segment);
        if segment.flags.ack {
            self.sender.on_ack(now, segment);
        }
        if self.sender.is_finished() && self.receiver.is_finished() && !self.receiver.is_ack_due(now) {
            self.state = TcpState::Closed(TcpCloseReason::Finished);
        }
    }

    fn next_handshake(&mut self, now: Instant, flags: Flags) -> Option<Segment> {
        let (due_at, attempts) = self.syn_timer;
        if due_at.is_none_or(|at| at > now) || attempts > SYN_RETRIES {
            return None;
        }
        self.syn_timer = (Some(now + SYN_TIMEOUT * (1 << attempts)), attempts + 1);
        Some(Segment { flags, ..self.segment_template(now) })
    }

    fn next_data(&mut self, now: Instant) -> Option<Segment> {
        let outgoing = self.sender.next_segment(now)?;
        // SACK blocks that do not fit beside the data are sent in an ACK of their own. Linux makes the segment
        // shorter instead.
        let sacks_fit = outgoing.data.len() < self.sender.mss() || !self.receiver.has_blocks();
        let sacks = if sacks_fit { self.receiver.take_sack_blocks() } else { SackBlocks::default() };
        let flags = Flags { ack: true, fin: outgoing.has_fin, ..Flags::default() };
        Some(Segment { flags, seqs: outgoing.data, sacks, ..self.segment_template(now) })
    }

    fn next_ack(&mut self, now: Instant) -> Option<Segment> {
        if !self.receiver.is_ack_due(now) {
            return None;
        }
        let sacks = self.receiver.take_sack_blocks();
        if self.sender.is_finished() && self.receiver.is_finished() {
            self.state = TcpState::Closed(TcpCloseReason::Finished);
        }
        Some(Segment { flags: Flags { ack: true, ..Flags::default() }, sacks, ..self.segment_template(now) })
    }

    fn next_reset(&mut self, now: Instant) -> Option<Segment> {
        if !std::mem::take(&mut self.is_rst_pending) {
            return None;
        }
        let rst = !(self.is_strict && self.state == TcpState::Closed(TcpCloseReason::Finished));
        Some(Segment { flags: Flags { rst, ack: true, ..Flags::default() }, ..self.segment_template(now) })
    }

    fn segment_template(&self, now: Instant) -> Segment {
        let snd_nxt = self.sender.nxt();
        Segment {
            flow: self.flow,
            seqs: SeqRange::new(snd_nxt, snd_nxt),
            ack: self.receiver.rcv_nxt(),
            window: self.receiver.window(),
            ts_val: now,
            ts_ecr: self.receiver.ts_recent().or(self.peer_ts_val).filter(|_| self.uses_timestamps),
            ..Segment::default()
        }
    }
}

/// Initial timeout of a SYN, which then doubles (RFC 6298 §2.1).
const SYN_TIMEOUT: Duration = super::rtt::INITIAL_RTO;
/// Minimum interval between challenge ACKs: Linux's `tcp_invalid_ratelimit`.
const CHALLENGE_ACK_INTERVAL: Duration = Duration::from_millis(500);
/// Retransmissions of a SYN: Linux's `tcp_syn_retries`.
const SYN_RETRIES: u32 = 6;
