//! The birth and the death of a connection.
//!
//! In: segments, the application's wishes, the time. Out: segments, a [`State`], and how far the stream is complete.
//!
//! 1. Three-way handshake; SYN and SYN-ACK are repeated after 1, 3, 7, 15, 31 and 63 s, then the attempt has timed out
//!    (RFC 6298 §5.7, Linux's six repetitions).
//! 2. FIN ends one direction behind its last byte. RST ends all at once; a connection that is over answers everything
//!    but an RST with one.
//! 3. An end that aborts sends one RST; whatever comes later is answered as rule 2 says.
//! 4. Nothing is kept after the end (no TIME-WAIT): names of connections are never used twice.
//! 5. [`Config::exact`] judges what no other world here sends: segments with old clocks (PAWS, RFC 7323 §5) and numbers
//!    outside of the window are answered and not taken, an ACK of what was never sent gets a challenge ACK (RFC 5961 §5), a
//!    reset counts only at exactly the next number (§3), and who has finished still answers a repeated FIN.

use core::time::Duration;

use marline_core::units::{DataSize, Instant};

use super::congestion::Algorithm;
use super::receiver::Receiver;
use super::segment::{Flags, HEADERS_WITH_TIMESTAMPS, SackBlocks, Segment, SeqRange};
use super::sender::{Sender, SenderConfig};
use super::undo::timestamp_tick;

/// What both ends of a connection are made from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TcpConfig {
    /// The congestion control of this end.
    pub algorithm: Algorithm,
    /// The largest IP packet.
    pub mtu: DataSize,
    /// The receive window, from the start: auto-tuning keeps ahead of the sender and is not modelled.
    pub receive_window: DataSize,
    /// Both ends use SACK (RFC 2018).
    pub sack: bool,
    /// Both ends use timestamps (RFC 7323). Their bytes are counted in any case.
    pub timestamps: bool,
    /// Odd segments are judged as Linux does it, and needless reductions are taken back (Eifel, F-RTO, duplicates). Off:
    /// worlds without odd segments, whose tables were reviewed without.
    pub is_strict: bool,
}

impl Default for TcpConfig {
    /// CUBIC, an MTU of 1500 bytes, the 4 MiB that Linux's 6 MiB buffer gives in packets of this size, SACK and
    /// timestamps; not exact.
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

/// Where a connection is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TcpState {
    /// The first SYN is out.
    SynSent,
    /// A SYN has come and was answered.
    SynReceived,
    /// Both directions carry data.
    Established,
    /// It is over.
    Closed(TcpCloseReason),
}

/// How a connection ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TcpCloseReason {
    /// Both sides have said and acknowledged FIN.
    Finished,
    /// The other side sent RST.
    Reset,
    /// The first SYN was answered by RST.
    Refused,
    /// No answer through all repetitions.
    TimedOut,
    /// This side aborted it.
    Aborted,
}

/// What TCP_INFO would say.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SocketInfo {
    /// Smoothed round-trip time of what this side sent.
    pub rtt: Duration,
    /// The smallest.
    pub min_rtt: Duration,
    /// Round-trip time as the receiver measures it.
    pub rcv_rtt: Duration,
    /// Segments that came out of order.
    pub out_of_order: u32,
    /// The congestion window of this side, in segments.
    pub cwnd: u32,
    /// Its slow-start threshold, in segments.
    pub ssthresh: u32,
    /// Timeouts in a row.
    pub timeouts: u32,
}

/// One end of a connection.
#[derive(Clone, Debug)]
pub struct Socket {
    flow: u32,
    state: TcpState,
    sender: Sender,
    receiver: Receiver,
    /// When the next handshake segment is due, and how often one was sent.
    syn_timer: (Option<Instant>, u32),
    started_at: Instant,
    established_at: Option<Instant>,
    is_rst_pending: bool,
    peer_ts_val: Option<Instant>,
    uses_timestamps: bool,
    is_strict: bool,
    /// When an odd segment without data was last answered.
    last_challenge_ack: Option<Instant>,
}

impl Socket {
    /// The side that opens. `flow` names the connection in its segments.
    pub fn connect(config: TcpConfig, flow: u32, now: Instant) -> Self {
        Self::new(config, flow, now, TcpState::SynSent)
    }

    /// The side that was called by `syn`.
    pub fn accept(config: TcpConfig, syn: &Segment, now: Instant) -> Self {
        let mut socket = Self::new(config, syn.flow, now, TcpState::SynReceived);
        socket.sender.on_handshake_window(syn.window.bytes());
        socket.peer_ts_val = Some(syn.ts_val);
        socket
    }

    /// The side that does not want to be called by `syn`: the RST that says so.
    pub fn reset_for(syn: &Segment, now: Instant) -> Segment {
        let flags = Flags { rst: true, ack: true, ..Flags::default() };
        Segment { flow: syn.flow, flags, ts_val: now, ts_ecr: Some(syn.ts_val), ..Segment::default() }
    }

    /// The application wrote so many bytes.
    pub fn write(&mut self, bytes: DataSize) {
        self.sender.write(bytes.bytes());
    }

    /// The application will write no more.
    pub fn finish(&mut self) {
        self.sender.finish();
    }

    /// The application is gone: RST, unless it is over.
    pub fn abort(&mut self) {
        if !matches!(self.state, TcpState::Closed(_)) {
            self.is_rst_pending = self.state != TcpState::SynSent;
            self.state = TcpState::Closed(TcpCloseReason::Aborted);
        }
    }

    /// A segment has arrived.
    pub fn on_segment(&mut self, now: Instant, segment: &Segment) {
        if self.is_strict && self.state == TcpState::Established && !self.is_acceptable(now, segment) {
            return;
        }
        match self.state {
            // An ACK is not answered by an ACK.
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

    /// There was no way for the segment with this number, says a router.
    pub fn on_unreachable(&mut self, now: Instant, number: u64) {
        if self.state == TcpState::Established {
            self.sender.on_unreachable(now, number);
        }
    }

    /// Time has reached `now`.
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

    /// The next segment to go out now.
    pub fn poll(&mut self, now: Instant) -> Option<Segment> {
        match self.state {
            TcpState::SynSent => self.next_handshake(now, Flags { syn: true, ..Flags::default() }),
            TcpState::SynReceived => self.next_handshake(now, Flags { syn: true, ack: true, ..Flags::default() }),
            TcpState::Established => self.next_data(now).or_else(|| self.next_ack(now)),
            TcpState::Closed(_) => self.next_reset(now),
        }
    }

    /// When [`Self::on_timer`] and [`Self::poll`] are to be called next if nothing arrives.
    pub fn timer(&self) -> Option<Instant> {
        match self.state {
            TcpState::SynSent | TcpState::SynReceived => self.syn_timer.0,
            TcpState::Established => [self.sender.timer(), self.receiver.timer()].into_iter().flatten().min(),
            TcpState::Closed(_) => None,
        }
    }

    /// Where the connection is in its life.
    pub const fn state(&self) -> TcpState {
        self.state
    }

    /// Time from the first SYN to its answer; none before that.
    pub fn handshake_time(&self) -> Option<Duration> {
        self.established_at.map(|opened| opened.since(self.started_at))
    }

    /// Bytes complete from the start of the other side's stream.
    pub fn in_order_bytes(&self) -> u64 {
        self.receiver.in_order_bytes()
    }

    /// The number that this side waits for: what its ACKs say.
    pub fn rcv_nxt(&self) -> u64 {
        self.receiver.rcv_nxt()
    }

    /// Different bytes that have arrived, complete or not.
    pub const fn received_bytes(&self) -> u64 {
        self.receiver.received_bytes()
    }

    /// The other side's stream is complete and ended.
    pub fn is_peer_finished(&self) -> bool {
        self.receiver.is_finished()
    }

    /// Bytes written and not sent.
    pub const fn unsent(&self) -> DataSize {
        DataSize::from_bytes(self.sender.unsent())
    }

    /// The first byte that the other side has not acknowledged.
    pub const fn snd_una(&self) -> u64 {
        self.sender.una()
    }

    /// What TCP_INFO would say.
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

    /// Rule 5. What is not taken may have to be answered.
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

    /// Linux's `tcp_disordered_ack`: an ACK that says nothing new may be late without harm.
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
        // Where they do not fit beside the data they go in an ACK of their own. Linux makes the segment shorter.
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

/// RFC 6298 §2.1's first timeout, from where it doubles.
const SYN_TIMEOUT: Duration = super::rtt::INITIAL_RTO;
/// Linux's `tcp_invalid_ratelimit`.
const CHALLENGE_ACK_INTERVAL: Duration = Duration::from_millis(500);
/// Linux's `tcp_syn_retries`.
const SYN_RETRIES: u32 = 6;
