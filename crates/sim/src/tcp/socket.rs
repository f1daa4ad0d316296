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
use super::segment::{Flags, HEADERS, Sacks, Segment, Seqs};
use super::sender::{Habits, Sender};
use super::undo::tick;

/// What both ends of a connection are made from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// The congestion control of this end.
    pub algorithm: Algorithm,
    /// The largest IP packet.
    pub mtu: DataSize,
    /// The receive window, from the start: auto-tuning keeps ahead of the sender and is not modelled.
    pub window: DataSize,
    /// Both ends use SACK (RFC 2018).
    pub sack: bool,
    /// Both ends use timestamps (RFC 7323). Their bytes are counted in any case.
    pub timestamps: bool,
    /// Odd segments are judged as Linux does it, and needless reductions are taken back (Eifel, F-RTO, duplicates). Off:
    /// worlds without odd segments, whose tables were reviewed without.
    pub exact: bool,
}

impl Default for Config {
    /// CUBIC, an MTU of 1500 bytes, the 4 MiB that Linux's 6 MiB buffer gives in packets of this size, SACK and
    /// timestamps; not exact.
    fn default() -> Self {
        Self {
            algorithm: Algorithm::Cubic,
            mtu: DataSize::from_bytes(1500),
            window: DataSize::from_mib(4),
            sack: true,
            timestamps: true,
            exact: false,
        }
    }
}

/// Where a connection is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// The first SYN is out.
    Opening,
    /// A SYN has come and was answered.
    Answering,
    /// Both directions carry data.
    Open,
    /// It is over.
    Over(Ending),
}

/// How a connection ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
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
pub struct Info {
    /// Smoothed round-trip time of what this side sent.
    pub rtt: Duration,
    /// The smallest.
    pub min_rtt: Duration,
    /// Round-trip time as the receiver measures it.
    pub rcv_rtt: Duration,
    /// Segments that came out of order.
    pub out_of_order: u32,
    /// The congestion window of this side, in segments.
    pub window: u32,
    /// Its slow-start threshold, in segments.
    pub threshold: u32,
    /// Timeouts in a row.
    pub backoff: u32,
}

/// One end of a connection.
#[derive(Clone, Debug)]
pub struct Socket {
    flow: u32,
    state: State,
    sender: Sender,
    receiver: Receiver,
    /// When the next handshake segment is due, and how often one was sent.
    handshake: (Option<Instant>, u32),
    began: Instant,
    opened: Option<Instant>,
    reset_owed: bool,
    peer_clock: Option<Instant>,
    timestamps: bool,
    exact: bool,
    /// When an odd segment without data was last answered.
    answered: Option<Instant>,
}

impl Socket {
    /// The side that opens. `flow` names the connection in its segments.
    pub fn connect(config: Config, flow: u32, now: Instant) -> Self {
        Self::new(config, flow, now, State::Opening)
    }

    /// The side that was called by `syn`.
    pub fn accept(config: Config, syn: &Segment, now: Instant) -> Self {
        let mut socket = Self::new(config, syn.flow, now, State::Answering);
        socket.sender.on_room(syn.window.bytes());
        socket.peer_clock = Some(syn.sent);
        socket
    }

    /// The side that does not want to be called by `syn`: the RST that says so.
    pub fn refuse(syn: &Segment, now: Instant) -> Segment {
        let flags = Flags { rst: true, ack: true, ..Flags::default() };
        Segment { flow: syn.flow, flags, sent: now, echo: Some(syn.sent), ..Segment::default() }
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
        if !matches!(self.state, State::Over(_)) {
            self.reset_owed = self.state != State::Opening;
            self.state = State::Over(Ending::Aborted);
        }
    }

    /// A segment has arrived.
    pub fn on_segment(&mut self, now: Instant, segment: &Segment) {
        if self.exact && self.state == State::Open && !self.is_acceptable(now, segment) {
            return;
        }
        match self.state {
            // An ACK is not answered by an ACK.
            State::Over(Ending::Finished) if self.exact => self.reset_owed |= segment.end() > segment.data.start,
            State::Over(_) => self.reset_owed |= !segment.flags.rst,
            State::Opening if segment.flags.rst => self.state = State::Over(Ending::Refused),
            _ if segment.flags.rst => self.state = State::Over(Ending::Reset),
            State::Opening => self.on_answer(now, segment),
            State::Answering if segment.flags.syn => {}
            State::Answering => {
                self.open(now, segment.ack.saturating_add(segment.window.bytes()));
                self.on_open(now, segment);
            }
            State::Open if segment.flags.syn => self.receiver.owe_ack(),
            State::Open => self.on_open(now, segment),
        }
    }

    /// There was no way for the segment with this number, says a router.
    pub fn on_unreachable(&mut self, now: Instant, number: u64) {
        if self.state == State::Open {
            self.sender.on_unreachable(now, number);
        }
    }

    /// Time has reached `now`.
    pub fn on_timer(&mut self, now: Instant) {
        if self.state == State::Open {
            self.sender.on_timer(now);
            if self.sender.gave_up(now) {
                self.state = State::Over(Ending::TimedOut);
            }
        } else if self.handshake.0.is_some_and(|at| at <= now) && self.handshake.1 > SYN_RETRIES {
            self.state = State::Over(Ending::TimedOut);
        }
    }

    /// The next segment to go out now.
    pub fn poll(&mut self, now: Instant) -> Option<Segment> {
        match self.state {
            State::Opening => self.shake(now, Flags { syn: true, ..Flags::default() }),
            State::Answering => self.shake(now, Flags { syn: true, ack: true, ..Flags::default() }),
            State::Open => self.next_data(now).or_else(|| self.next_ack(now)),
            State::Over(_) => self.next_reset(now),
        }
    }

    /// When [`Self::on_timer`] and [`Self::poll`] are to be called next if nothing arrives.
    pub fn timer(&self) -> Option<Instant> {
        match self.state {
            State::Opening | State::Answering => self.handshake.0,
            State::Open => [self.sender.timer(), self.receiver.timer()].into_iter().flatten().min(),
            State::Over(_) => None,
        }
    }

    /// Where the connection is in its life.
    pub const fn state(&self) -> State {
        self.state
    }

    /// Time from the first SYN to its answer; none before that.
    pub fn handshake(&self) -> Option<Duration> {
        self.opened.map(|opened| opened.since(self.began))
    }

    /// Bytes complete from the start of the other side's stream.
    pub fn complete(&self) -> u64 {
        self.receiver.complete()
    }

    /// The number that this side waits for: what its ACKs say.
    pub fn awaited(&self) -> u64 {
        self.receiver.ack()
    }

    /// Different bytes that have arrived, complete or not.
    pub const fn arrived(&self) -> u64 {
        self.receiver.arrived()
    }

    /// The other side's stream is complete and ended.
    pub fn ended(&self) -> bool {
        self.receiver.ended()
    }

    /// Bytes written and not sent.
    pub const fn unsent(&self) -> DataSize {
        DataSize::from_bytes(self.sender.unsent())
    }

    /// The first byte that the other side has not acknowledged.
    pub const fn acknowledged(&self) -> u64 {
        self.sender.una()
    }

    /// What TCP_INFO would say.
    pub fn info(&self) -> Info {
        Info {
            rtt: self.sender.rtt().smoothed(),
            min_rtt: self.sender.rtt().smallest(),
            rcv_rtt: self.receiver.rtt(),
            out_of_order: self.receiver.out_of_order(),
            window: self.sender.window(),
            threshold: self.sender.threshold(),
            backoff: self.sender.timeouts(),
        }
    }

    fn new(config: Config, flow: u32, now: Instant, state: State) -> Self {
        let mss = config.mtu.bytes().saturating_sub(HEADERS).max(1);
        Self {
            flow,
            state,
            sender: Sender::new(config.algorithm, mss, Habits { undo: config.exact, sack: config.sack }),
            receiver: Receiver::new(mss, config.window, config.sack),
            handshake: (Some(now), 0),
            began: now,
            opened: None,
            reset_owed: false,
            peer_clock: None,
            timestamps: config.timestamps,
            exact: config.exact,
            answered: None,
        }
    }

    fn on_answer(&mut self, now: Instant, segment: &Segment) {
        if segment.flags.syn && segment.flags.ack {
            self.peer_clock = Some(segment.sent);
            self.open(now, segment.window.bytes());
            self.receiver.owe_ack();
        }
    }

    fn open(&mut self, now: Instant, room: u64) {
        self.state = State::Open;
        self.opened = Some(now);
        self.sender.on_room(room);
        if self.handshake.1 == 1 {
            self.sender.on_handshake(now.since(self.began));
        }
        self.handshake.0 = None;
    }

    /// Rule 5. What is not taken may have to be answered.
    fn is_acceptable(&mut self, now: Instant, segment: &Segment) -> bool {
        let (next, start) = (self.receiver.ack(), segment.data.start);
        if segment.flags.rst {
            if start != next && start < next + self.receiver.window().bytes() {
                self.answer(now, segment);
            }
            return start == next;
        }
        let clock = self.receiver.echo().filter(|_| self.timestamps && !segment.flags.syn);
        let is_old = clock.is_some_and(|clock| tick(segment.sent) < tick(clock)) && !self.is_disordered(segment);
        let is_before = segment.end() < self.receiver.acked() && segment.end() == start;
        let is_beyond = segment.end() > next + self.receiver.window().bytes();
        let is_unsent = segment.flags.ack && segment.ack > self.sender.nxt();
        if is_old || is_before || is_beyond || is_unsent {
            self.answer(now, segment);
        }
        !(is_old || is_before || is_beyond || is_unsent)
    }

    /// Linux's `tcp_disordered_ack`: an ACK that says nothing new may be late without harm.
    fn is_disordered(&self, segment: &Segment) -> bool {
        segment.data.is_empty() && segment.data.start == self.receiver.ack() && segment.ack == self.sender.una()
    }

    fn answer(&mut self, now: Instant, segment: &Segment) {
        let is_limited = segment.data.is_empty() && !segment.flags.fin;
        if !is_limited {
            self.receiver.owe_ack();
        } else if self.answered.is_none_or(|at| now.since(at) >= ANSWERS_APART) {
            self.answered = Some(now);
            self.receiver.owe_ack();
        }
    }

    fn on_open(&mut self, now: Instant, segment: &Segment) {
        self.receiver.on_segment(now, segment);
        if segment.flags.ack {
            self.sender.on_ack(now, segment);
        }
        if self.sender.finished() && self.receiver.ended() && !self.receiver.ack_due(now) {
            self.state = State::Over(Ending::Finished);
        }
    }

    fn shake(&mut self, now: Instant, flags: Flags) -> Option<Segment> {
        let (due, sent) = self.handshake;
        if due.is_none_or(|at| at > now) || sent > SYN_RETRIES {
            return None;
        }
        self.handshake = (Some(now + SYN_TIMEOUT * (1 << sent)), sent + 1);
        Some(Segment { flags, ..self.blank(now) })
    }

    fn next_data(&mut self, now: Instant) -> Option<Segment> {
        let out = self.sender.next(now)?;
        // Where they do not fit beside the data they go in an ACK of their own. Linux makes the segment shorter.
        let fits = out.data.len() < self.sender.mss() || !self.receiver.has_blocks();
        let sacks = if fits { self.receiver.take_ack() } else { Sacks::default() };
        let flags = Flags { ack: true, fin: out.fin, ..Flags::default() };
        Some(Segment { flags, data: out.data, sacks, ..self.blank(now) })
    }

    fn next_ack(&mut self, now: Instant) -> Option<Segment> {
        if !self.receiver.ack_due(now) {
            return None;
        }
        let sacks = self.receiver.take_ack();
        if self.sender.finished() && self.receiver.ended() {
            self.state = State::Over(Ending::Finished);
        }
        Some(Segment { flags: Flags { ack: true, ..Flags::default() }, sacks, ..self.blank(now) })
    }

    fn next_reset(&mut self, now: Instant) -> Option<Segment> {
        if !std::mem::take(&mut self.reset_owed) {
            return None;
        }
        let rst = !(self.exact && self.state == State::Over(Ending::Finished));
        Some(Segment { flags: Flags { rst, ack: true, ..Flags::default() }, ..self.blank(now) })
    }

    fn blank(&self, now: Instant) -> Segment {
        let next = self.sender.nxt();
        Segment {
            flow: self.flow,
            data: Seqs::new(next, next),
            ack: self.receiver.ack(),
            window: self.receiver.window(),
            sent: now,
            echo: self.receiver.echo().or(self.peer_clock).filter(|_| self.timestamps),
            ..Segment::default()
        }
    }
}

/// RFC 6298 §2.1's first timeout, from where it doubles.
const SYN_TIMEOUT: Duration = super::rtt::INITIAL_TIMEOUT;
/// Linux's `tcp_invalid_ratelimit`.
const ANSWERS_APART: Duration = Duration::from_millis(500);
/// Linux's `tcp_syn_retries`.
const SYN_RETRIES: u32 = 6;
