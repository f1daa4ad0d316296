//! One connection: its two TCP ends, and their applications as a [`FlowScript`] describes them.

use marline_core::units::{DataSize, Duration, Instant};
use marline_core::wire::packet::Seq;

use super::packet::{ReadPosition, WireParams};
use crate::accel::byte_stream::ByteStreams;
use crate::accel::scenario::{Close, FlowScript};
use crate::link::Direction;
use crate::tcp::{Segment, Socket, TcpConfig, TcpState};

/// A connection with its two ends.
#[derive(Debug)]
pub(super) struct TcpPair {
    pub(super) params: WireParams,
    pub(super) content: ByteStreams,
    pub(super) client: Option<Socket>,
    pub(super) server: Option<Socket>,
    /// The highest right edge of the window that the client's stack has offered.
    pub(super) right_edge: u64,
    /// Segments that the server has retransmitted.
    pub(super) retransmitted: u64,
    /// The end of what the server has sent.
    sent_end: u64,
    script: FlowScript,
    config: TcpConfig,
    requests_sent: usize,
    responses_sent: usize,
    next_request_at: Option<Instant>,
    /// How far the client has read, and since when no further. Of an upload, progress of the server counts as well for
    /// the time.
    read: (u64, Instant),
    /// How far the server of an upload has read.
    server_read: u64,
    stall: (Duration, Instant),
    finished: Option<Instant>,
}

impl TcpPair {
    pub(super) fn new(script: &FlowScript, n: usize) -> Option<Self> {
        let params = WireParams::new(script, n)?;
        let content = ByteStreams::new(script, n, params.flow.destination());
        let window =
            if script.scale == 0 { DataSize::from_bytes(65_535) } else { TcpConfig::default().receive_window };
        let (sack, timestamps) = (script.sack, script.timestamps);
        let config = TcpConfig {
            algorithm: script.algorithm,
            receive_window: window,
            sack,
            timestamps,
            is_strict: true,
            ..TcpConfig::default()
        };
        Some(Self {
            params,
            content,
            client: None,
            server: None,
            right_edge: 0,
            retransmitted: 0,
            sent_end: 0,
            script: script.clone(),
            config,
            requests_sent: 0,
            responses_sent: 0,
            next_request_at: None,
            read: (0, Instant::ZERO),
            server_read: 0,
            stall: (Duration::ZERO, Instant::ZERO),
            finished: None,
        })
    }

    /// A segment of the client has reached the server.
    pub(super) fn on_server(&mut self, now: Instant, segment: &Segment) {
        match &mut self.server {
            Some(server) => server.on_segment(now, segment),
            none if segment.flags.syn => *none = Some(Socket::accept(self.config, segment, now)),
            None => {}
        }
    }

    /// A segment has reached the client.
    pub(super) fn on_client(&mut self, now: Instant, segment: &Segment) {
        if let Some(client) = &mut self.client {
            client.on_segment(now, segment);
        }
    }

    /// The sender of this direction learns that a segment had no route.
    pub(super) fn on_unreachable(&mut self, now: Instant, direction: Direction, seq: Seq) {
        let una = self.read_position(if direction == Direction::Up { Direction::Down } else { Direction::Up }).una;
        let sender = if direction == Direction::Up { &mut self.client } else { &mut self.server };
        if let (Some(sender), Some(number)) = (sender, self.params.number(direction, seq, una)) {
            sender.on_unreachable(now, number);
        }
    }

    /// Time has reached `now`.
    pub(super) fn on_timers(&mut self, now: Instant) {
        for socket in [&mut self.client, &mut self.server].into_iter().flatten() {
            socket.on_timer(now);
        }
    }

    /// Runs both applications.
    pub(super) fn run_applications(&mut self, now: Instant) {
        self.run_client(now);
        self.run_server();
    }

    /// The next segment to be sent, and its direction.
    pub(super) fn poll(&mut self, now: Instant) -> Option<(Direction, Segment)> {
        if let Some(segment) = self.client.as_mut().and_then(|client| client.poll(now)) {
            self.right_edge = self.right_edge.max(segment.ack + segment.window.bytes());
            return Some((Direction::Up, segment));
        }
        let segment = self.server.as_mut().and_then(|server| server.poll(now))?;
        self.retransmitted += u64::from(segment.seqs.start < self.sent_end);
        self.sent_end = self.sent_end.max(segment.seqs.end);
        Some((Direction::Down, segment))
    }

    /// When to call [`Self::on_timers`] and [`Self::run_applications`] again.
    pub(super) fn next(&self) -> Option<Instant> {
        let timers = [&self.client, &self.server].map(|end| end.as_ref().and_then(Socket::timer));
        let next_action = match self.state() {
            None => Some(Instant::ZERO + self.script.start),
            Some(TcpState::Established) => self.next_request_at,
            Some(_) => None,
        };
        [timers[0], timers[1], next_action].into_iter().flatten().min()
    }

    /// The state of the end that receives packets of this direction.
    pub(super) fn read_position(&self, direction: Direction) -> ReadPosition {
        let reader = if direction == Direction::Up { &self.server } else { &self.client };
        reader.as_ref().map_or(ReadPosition { next: 0, una: 0 }, |end| ReadPosition {
            next: end.in_order_bytes(),
            una: end.snd_una(),
        })
    }

    /// The sequence number that the client's stack expects.
    pub(super) fn received(&self) -> u64 {
        self.client.as_ref().map_or(0, Socket::rcv_nxt)
    }

    /// The server's first unacknowledged byte.
    pub(super) fn acknowledged(&self) -> u64 {
        self.server.as_ref().map_or(0, Socket::snd_una)
    }

    /// Both ends in one line.
    pub(super) fn summary(&self) -> String {
        let end = |end: &Option<Socket>| end.as_ref().map_or("none".into(), describe);
        format!("read {}, client {}; server {}", self.read.0, end(&self.client), end(&self.server))
    }

    /// Bytes that the client's application has read.
    pub(super) const fn read(&self) -> u64 {
        self.read.0
    }

    /// When the client had received everything.
    pub(super) const fn finished(&self) -> Option<Instant> {
        self.finished
    }

    /// The longest time that the client has waited for a byte, and when that ended.
    pub(super) fn stall(&self, now: Instant) -> (Duration, Instant) {
        let still = if self.waits() { now.since(self.read.1) } else { Duration::ZERO };
        if still > self.stall.0 { (still, now) } else { self.stall }
    }

    /// The state of the client's end; none before it was opened.
    pub(super) fn state(&self) -> Option<TcpState> {
        self.client.as_ref().map(Socket::state)
    }

    /// The state of the server's end; none before its first SYN.
    pub(super) fn server_state(&self) -> Option<TcpState> {
        self.server.as_ref().map(Socket::state)
    }

    /// Whether nothing more will happen to it.
    pub(super) fn is_over(&self) -> bool {
        let over = |state| matches!(state, Some(TcpState::Closed(_)));
        over(self.state()) && (over(self.server_state()) || self.server.is_none())
    }

    /// Whether the client waits for bytes.
    fn waits(&self) -> bool {
        let wanted = self.requests_sent.checked_sub(1).and_then(|last| self.content.responses().get(last));
        let over = matches!(self.state(), Some(TcpState::Closed(_)));
        !over && wanted.is_some_and(|wanted| self.read.0 < *wanted)
    }

    fn run_client(&mut self, now: Instant) {
        if self.client.is_none() && Instant::ZERO + self.script.start <= now {
            self.client = Some(Socket::connect(self.config, 0, now));
            self.read.1 = now;
        }
        self.note_progress(now);
        let Some(client) = self.client.as_mut().filter(|client| client.state() == TcpState::Established) else {
            return;
        };
        if self.requests_sent == 0 && self.next_request_at.is_none() {
            self.next_request_at = self.script.exchanges.first().map(|first| now + first.pause);
        }
        let ends = |k: Option<usize>| k.and_then(|k| self.content.requests().get(k)).copied();
        let read = self.read.0;
        if self.next_request_at.is_some_and(|at| at <= now) {
            self.next_request_at = None;
            if let Some(end) = ends(Some(self.requests_sent)) {
                client.write(DataSize::from_bytes(end - ends(self.requests_sent.checked_sub(1)).unwrap_or(0)));
                self.requests_sent += 1;
                self.read.1 = now;
            }
        } else if self.requests_sent > 0
            && self.next_request_at.is_none()
            && self.content.responses().get(self.requests_sent - 1) <= Some(&read)
        {
            match self.script.exchanges.get(self.requests_sent) {
                Some(next) => self.next_request_at = Some(now + next.pause),
                None => {
                    self.finished.get_or_insert(now);
                    if self.script.close == Close::Client {
                        client.finish();
                    }
                }
            }
        }
        match self.script.close {
            Close::ClientReset(bytes) if read >= bytes => client.abort(),
            _ if client.is_peer_finished() => client.finish(),
            _ => {}
        }
    }

    /// Bytes that the server's application has read.
    pub(super) fn server_read(&self) -> u64 {
        self.server.as_ref().map_or(0, Socket::in_order_bytes)
    }

    /// The sequence number that the server's stack expects.
    pub(super) fn server_received(&self) -> u64 {
        self.server.as_ref().map_or(0, Socket::rcv_nxt)
    }

    fn note_progress(&mut self, now: Instant) {
        let read = self.client.as_ref().map_or(0, Socket::in_order_bytes);
        let taken = if self.script.is_upload() { self.server_read() } else { 0 };
        if read <= self.read.0 && taken <= self.server_read {
            return;
        }
        self.server_read = taken;
        let pause = now.since(self.read.1);
        if self.waits() && pause > self.stall.0 {
            self.stall = (pause, now);
        }
        self.read = (read, now);
    }

    fn run_server(&mut self) {
        let Some(server) = &mut self.server else { return };
        while self.content.requests().get(self.responses_sent).is_some_and(|end| *end <= server.in_order_bytes()) {
            let answers = self.content.responses();
            let before = self.responses_sent.checked_sub(1).and_then(|k| answers.get(k)).copied().unwrap_or(0);
            let end = answers.get(self.responses_sent).copied().unwrap_or(before);
            server.write(DataSize::from_bytes(end - before));
            self.responses_sent += 1;
            if self.responses_sent == self.script.exchanges.len() && self.script.close == Close::Server {
                server.finish();
            }
        }
        match self.script.close {
            Close::ServerReset(bytes) if server.snd_una() >= bytes => server.abort(),
            _ if server.is_peer_finished() => server.finish(),
            _ => {}
        }
    }
}

/// The state of an end in one line.
fn describe(end: &Socket) -> String {
    let info = end.info();
    format!(
        "{:?}: acknowledged {}, unsent {}, window {}, threshold {}, {} timeouts, smoothed {:?}",
        end.state(),
        end.snd_una(),
        end.unsent().bytes(),
        info.cwnd,
        info.ssthresh,
        info.timeouts,
        info.rtt
    )
}
