//! One connection: both of its ends, and what their applications do.
//!
//! In: a [`Plan`], segments, the time. Out: segments, how far the client has read, and how long it has waited.

use marline_core::units::{DataSize, Duration, Instant};
use marline_core::wire::packet::Seq;

use super::content::Content;
use super::packet::{Names, Place};
use super::scene::{Close, Plan};
use crate::link::Direction;
use crate::tcp::{Segment, Socket, TcpConfig, TcpState};

/// A connection with its two ends.
#[derive(Debug)]
pub(super) struct Station {
    pub(super) names: Names,
    pub(super) content: Content,
    pub(super) client: Option<Socket>,
    pub(super) server: Option<Socket>,
    /// The last number that the client's stack has said it has room for.
    pub(super) edge: u64,
    /// Segments that the server has sent again.
    pub(super) repeated: u64,
    /// The end of what it has sent.
    sent: u64,
    plan: Plan,
    config: TcpConfig,
    asked: usize,
    answered: usize,
    ask_at: Option<Instant>,
    /// How far the client has read, and since when no further. Of an upload the server's reading counts as well, for the
    /// time.
    read: (u64, Instant),
    /// How far the server has read, of an upload.
    taken: u64,
    stall: (Duration, Instant),
    finished: Option<Instant>,
}

impl Station {
    pub(super) fn new(plan: &Plan, n: usize) -> Option<Self> {
        let names = Names::new(plan, n)?;
        let content = Content::new(plan, n, names.flow.destination());
        let window =
            if plan.scale == 0 { DataSize::from_bytes(65_535) } else { TcpConfig::default().receive_window };
        let (sack, timestamps) = (plan.sack, plan.timestamps);
        let config = TcpConfig {
            algorithm: plan.algorithm,
            receive_window: window,
            sack,
            timestamps,
            is_strict: true,
            ..TcpConfig::default()
        };
        Some(Self {
            names,
            content,
            client: None,
            server: None,
            edge: 0,
            repeated: 0,
            sent: 0,
            plan: plan.clone(),
            config,
            asked: 0,
            answered: 0,
            ask_at: None,
            read: (0, Instant::ZERO),
            taken: 0,
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

    /// There was no way for a segment of this direction, its sender is told.
    pub(super) fn on_unreachable(&mut self, now: Instant, direction: Direction, seq: Seq) {
        let una = self.place(if direction == Direction::Up { Direction::Down } else { Direction::Up }).una;
        let sender = if direction == Direction::Up { &mut self.client } else { &mut self.server };
        if let (Some(sender), Some(number)) = (sender, self.names.number(direction, seq, una)) {
            sender.on_unreachable(now, number);
        }
    }

    /// Time has reached `now`.
    pub(super) fn on_timers(&mut self, now: Instant) {
        for socket in [&mut self.client, &mut self.server].into_iter().flatten() {
            socket.on_timer(now);
        }
    }

    /// Both applications do what is to be done.
    pub(super) fn act(&mut self, now: Instant) {
        self.act_at_client(now);
        self.act_at_server();
    }

    /// The next segment to go out, and which way.
    pub(super) fn poll(&mut self, now: Instant) -> Option<(Direction, Segment)> {
        if let Some(segment) = self.client.as_mut().and_then(|client| client.poll(now)) {
            self.edge = self.edge.max(segment.ack + segment.window.bytes());
            return Some((Direction::Up, segment));
        }
        let segment = self.server.as_mut().and_then(|server| server.poll(now))?;
        self.repeated += u64::from(segment.seqs.start < self.sent);
        self.sent = self.sent.max(segment.seqs.end);
        Some((Direction::Down, segment))
    }

    /// When to call [`Self::on_timers`] and [`Self::act`] again.
    pub(super) fn next(&self) -> Option<Instant> {
        let timers = [&self.client, &self.server].map(|end| end.as_ref().and_then(Socket::timer));
        let wish = match self.state() {
            None => Some(Instant::ZERO + self.plan.start),
            Some(TcpState::Established) => self.ask_at,
            Some(_) => None,
        };
        [timers[0], timers[1], wish].into_iter().flatten().min()
    }

    /// Where an end stands that gets a packet of this direction.
    pub(super) fn place(&self, direction: Direction) -> Place {
        let reader = if direction == Direction::Up { &self.server } else { &self.client };
        reader
            .as_ref()
            .map_or(Place { next: 0, una: 0 }, |end| Place { next: end.in_order_bytes(), una: end.snd_una() })
    }

    /// The number that the client's stack waits for.
    pub(super) fn received(&self) -> u64 {
        self.client.as_ref().map_or(0, Socket::rcv_nxt)
    }

    /// The first byte that the server waits to see acknowledged.
    pub(super) fn acknowledged(&self) -> u64 {
        self.server.as_ref().map_or(0, Socket::snd_una)
    }

    /// Both ends, as a line.
    pub(super) fn line(&self) -> String {
        let end = |end: &Option<Socket>| end.as_ref().map_or("none".into(), told);
        format!("read {}, client {}; server {}", self.read.0, end(&self.client), end(&self.server))
    }

    /// What the client has told its application.
    pub(super) const fn read(&self) -> u64 {
        self.read.0
    }

    /// When the client had everything.
    pub(super) const fn finished(&self) -> Option<Instant> {
        self.finished
    }

    /// The longest time that the client has waited for a byte, and when that ended.
    pub(super) fn stall(&self, now: Instant) -> (Duration, Instant) {
        let still = if self.waits() { now.since(self.read.1) } else { Duration::ZERO };
        if still > self.stall.0 { (still, now) } else { self.stall }
    }

    /// How the client's end stands; none before it was opened.
    pub(super) fn state(&self) -> Option<TcpState> {
        self.client.as_ref().map(Socket::state)
    }

    /// How the server's end stands; none before it was called.
    pub(super) fn server_state(&self) -> Option<TcpState> {
        self.server.as_ref().map(Socket::state)
    }

    /// Nothing more will happen to it.
    pub(super) fn is_over(&self) -> bool {
        let over = |state| matches!(state, Some(TcpState::Closed(_)));
        over(self.state()) && (over(self.server_state()) || self.server.is_none())
    }

    /// The client waits for bytes.
    fn waits(&self) -> bool {
        let wanted = self.asked.checked_sub(1).and_then(|last| self.content.answers().get(last));
        let over = matches!(self.state(), Some(TcpState::Closed(_)));
        !over && wanted.is_some_and(|wanted| self.read.0 < *wanted)
    }

    fn act_at_client(&mut self, now: Instant) {
        if self.client.is_none() && Instant::ZERO + self.plan.start <= now {
            self.client = Some(Socket::connect(self.config, 0, now));
            self.read.1 = now;
        }
        self.note_progress(now);
        let Some(client) = self.client.as_mut().filter(|client| client.state() == TcpState::Established) else {
            return;
        };
        if self.asked == 0 && self.ask_at.is_none() {
            self.ask_at = self.plan.exchanges.first().map(|first| now + first.pause);
        }
        let ends = |k: Option<usize>| k.and_then(|k| self.content.requests().get(k)).copied();
        let read = self.read.0;
        if self.ask_at.is_some_and(|at| at <= now) {
            self.ask_at = None;
            if let Some(end) = ends(Some(self.asked)) {
                client.write(DataSize::from_bytes(end - ends(self.asked.checked_sub(1)).unwrap_or(0)));
                self.asked += 1;
                self.read.1 = now;
            }
        } else if self.asked > 0
            && self.ask_at.is_none()
            && self.content.answers().get(self.asked - 1) <= Some(&read)
        {
            match self.plan.exchanges.get(self.asked) {
                Some(next) => self.ask_at = Some(now + next.pause),
                None => {
                    self.finished.get_or_insert(now);
                    if self.plan.close == Close::Client {
                        client.finish();
                    }
                }
            }
        }
        match self.plan.close {
            Close::ClientReset(bytes) if read >= bytes => client.abort(),
            _ if client.is_peer_finished() => client.finish(),
            _ => {}
        }
    }

    /// The server's end has told its application so much.
    pub(super) fn taken(&self) -> u64 {
        self.server.as_ref().map_or(0, Socket::in_order_bytes)
    }

    /// The number that the server's stack waits for.
    pub(super) fn taken_by_stack(&self) -> u64 {
        self.server.as_ref().map_or(0, Socket::rcv_nxt)
    }

    fn note_progress(&mut self, now: Instant) {
        let read = self.client.as_ref().map_or(0, Socket::in_order_bytes);
        let taken = if self.plan.is_upload() { self.taken() } else { 0 };
        if read <= self.read.0 && taken <= self.taken {
            return;
        }
        self.taken = taken;
        let pause = now.since(self.read.1);
        if self.waits() && pause > self.stall.0 {
            self.stall = (pause, now);
        }
        self.read = (read, now);
    }

    fn act_at_server(&mut self) {
        let Some(server) = &mut self.server else { return };
        while self.content.requests().get(self.answered).is_some_and(|end| *end <= server.in_order_bytes()) {
            let answers = self.content.answers();
            let before = self.answered.checked_sub(1).and_then(|k| answers.get(k)).copied().unwrap_or(0);
            let end = answers.get(self.answered).copied().unwrap_or(before);
            server.write(DataSize::from_bytes(end - before));
            self.answered += 1;
            if self.answered == self.plan.exchanges.len() && self.plan.close == Close::Server {
                server.finish();
            }
        }
        match self.plan.close {
            Close::ServerReset(bytes) if server.snd_una() >= bytes => server.abort(),
            _ if server.is_peer_finished() => server.finish(),
            _ => {}
        }
    }
}

/// What an end says of what it has sent.
fn told(end: &Socket) -> String {
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
