//! A server, a local stack and the path between them, as simple as TCP allows, for tests of early ACK: from a seed and
//! impairments, whether the application receives the bytes of the server, each once.
//!
//! 1. The local stack keeps what arrives in its window, acknowledges each packet with its three newest SACK blocks, and
//!    sometimes discards everything beyond a hole (reneging, RFC 2018 §8).
//! 2. The server sends what its window allows, retransmits the first unacknowledged segment when a block shows a hole
//!    or nothing was acknowledged for 400 ms, and answers segments outside of its window with its position.
//! 3. Nothing received depends on the accelerator: bytes are computed from their offset, and what is acknowledged must
//!    arrive.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::super::*;
use crate::wire::packet::{
    AddrPair, NewSegment, OptionList, SackBlocks, Seq, SeqRange, TcpOption, TcpTimestamp, Timestamps,
};

const WIFI: LinkId = LinkId(0);
const CELL: LinkId = LinkId(1);
const MSS: u64 = 1000;
const SCALE: u8 = 7;
const DELAY: Duration = Duration::from_millis(25);
const SLOW_FETCH: Duration = Duration::from_secs(3);

/// Impairments; shares are of a thousand.
#[derive(Clone, Copy, Debug)]
pub(super) struct Impairment {
    pub(super) seed: u64,
    pub(super) body: u64,
    pub(super) loss: u64,
    /// Packets that arrive three milliseconds late.
    pub(super) delay: u64,
    /// Fetches that fail, and fetches that are never answered.
    pub(super) refused_fetches: u64,
    pub(super) unanswered_fetches: u64,
    /// Packets for the local stack that are not delivered.
    pub(super) undelivered: u64,
    /// Packets after which the local stack discards what it has beyond its holes.
    pub(super) renege: u64,
    /// When the primary link is down, in milliseconds.
    pub(super) outage: Option<(u64, u64)>,
    /// The first sequence number of the server.
    pub(super) isn: u32,
}

#[derive(Clone, Debug)]
enum Event {
    ToHost(PacketBytes),
    ToStack(PacketBytes),
    ToServer(PacketBytes),
    Fetched(FetchId, u32, Option<PacketBytes>),
    Server,
    Carrier(bool),
}

/// Both ends, the path, and the accelerator between them.
pub(super) struct World {
    impairment: Impairment,
    random: u64,
    pub(super) now: Instant,
    events: BTreeMap<(Instant, u64), Event>,
    count: u64,
    pub(super) accelerator: Accelerator,
    /// The stream, HTTP head included: what the application must receive.
    stream: Vec<u8>,
    head: u64,
    // The server.
    una: u64,
    nxt: u64,
    right_edge: u64,
    last_progress: Instant,
    last_repair: Instant,
    // The local stack: what it has received in order, what it has beyond, and the SACK blocks that it reports.
    pub(super) received: u64,
    beyond: PosRangeSet,
    blocks: Vec<PosRange>,
    recent: u32,
    pub(super) is_reset: bool,
    /// The accelerator has crashed, and packets pass unchanged.
    has_crashed: bool,
    pub(super) fetched: u64,
    pub(super) retransmitted: u64,
    /// How often a zero window reached the server when all it had sent was acknowledged.
    pub(super) frozen: u64,
    /// Delivered packets whose timestamp was too old to be accepted.
    pub(super) aged: u64,
    /// Fetches return one range after the other, each [`SLOW_FETCH`] after the one before; below, those so far.
    pub(super) is_fetch_slow: bool,
    slow_fetches: Vec<u64>,
}

impl World {
    pub(super) fn new(impairment: Impairment, mechanisms: &[Mechanism]) -> Self {
        let mut config = Config::new(WIFI, Some(CELL));
        config.mechanisms = Mechanisms::of(mechanisms);
        let body = impairment.body;
        let head = format!("HTTP/1.1 200 OK\r\nETag: \"x\"\r\nContent-Length: {body}\r\n\r\n");
        let stream: Vec<u8> = head.bytes().chain((0..body).map(byte)).collect();
        let mut world = Self {
            impairment,
            random: impairment.seed | 1,
            now: Instant::from_millis(1000),
            events: BTreeMap::new(),
            count: 0,
            accelerator: Accelerator::new(config),
            stream,
            head: head.len() as u64,
            una: 0,
            nxt: 0,
            right_edge: 64 * MSS,
            last_progress: Instant::from_millis(1000),
            last_repair: Instant::ZERO,
            received: 0,
            beyond: PosRangeSet::default(),
            blocks: Vec::new(),
            recent: 0,
            is_reset: false,
            has_crashed: false,
            fetched: 0,
            retransmitted: 0,
            frozen: 0,
            aged: 0,
            is_fetch_slow: false,
            slow_fetches: Vec::new(),
        };
        world.open();
        world
    }

    /// Runs until everything has arrived, at most for so long.
    pub(super) fn run(&mut self, limit: Duration) {
        let end = self.now + limit;
        while self.received < self.stream.len() as u64 && !self.is_reset {
            let event = self.events.first_key_value().map(|((at, _), _)| *at);
            let wake = self.accelerator.deadline().map(|(at, _)| at).filter(|_| !self.has_crashed);
            let Some(at) = [event, wake].into_iter().flatten().min().filter(|at| *at <= end) else { return };
            self.now = self.now.max(at);
            if event == Some(at) {
                if let Some((_, event)) = self.events.pop_first() {
                    self.on_event(event);
                }
            } else {
                self.accelerator.tick(self.now);
                self.drain(None);
                assert!(
                    self.accelerator.deadline().is_none_or(|(at, _)| at > self.now),
                    "its deadline does not move"
                );
            }
        }
    }

    /// Fetches are answered from now on.
    pub(super) fn resume_fetches(&mut self) {
        self.impairment.unanswered_fetches = 0;
    }

    /// No fetch is answered from now on.
    pub(super) fn stop_fetches(&mut self) {
        self.impairment.unanswered_fetches = 1000;
        self.events.retain(|_, event| !matches!(event, Event::Fetched(..)));
    }

    /// The accelerator crashes, and its repair process fills the open holes after a while, or resets the connection. Returns
    /// the number of holes.
    pub(super) fn crash(&mut self) -> usize {
        self.has_crashed = true;
        let pending_repairs = self.accelerator.pending_repairs();
        for repair in &pending_repairs {
            if !repair.is_acked_known {
                repair
                    .local_resets(Seq::new(repair.next_expected))
                    .into_iter()
                    .for_each(|reset| self.schedule(Duration::ZERO, Event::ToStack(reset)));
                continue;
            }
            for hole in &repair.holes {
                let (start, end) = hole.fetch.as_ref().unwrap().ranges[0];
                let bytes: Vec<u8> = (start..end).map(byte).collect();
                for (packet, millis) in
                    repair.fill_segments(hole, &bytes, None).into_iter().flat_map(|p| [(p.clone(), 200), (p, 260)])
                {
                    self.schedule(Duration::from_millis(millis), Event::ToStack(packet));
                }
            }
        }
        pending_repairs.iter().map(|repair| repair.holes.len()).sum()
    }

    /// The state, for a failing test.
    pub(super) fn describe(&self) -> String {
        let flow = self.accelerator.flows(self.now).pop();
        format!(
            "{:?} received {} una {} nxt {} at {:?}: {flow:?}",
            self.impairment, self.received, self.una, self.nxt, self.now
        )
    }

    fn open(&mut self) {
        let mut options = OptionList::default();
        options.push(&TcpOption::Mss(1012));
        options.push(&TcpOption::WindowScale(SCALE));
        let syn = NewSegment {
            flags: Flags::SYN,
            options,
            ..NewSegment::data(&key(), Seq::new(99), Seq::new(0), 500, None, &[])
        };
        let syn = PacketBytes(syn.emit().unwrap());
        self.hand(Input::Outgoing(syn.clone()), Some(syn));
        let request = b"GET /f HTTP/1.1\r\nHost: h\r\n\r\n";
        let timestamps = Some(Timestamps::default());
        let request =
            NewSegment::data(&key(), Seq::new(100), self.seq(0), 500, timestamps, request).emit().unwrap();
        self.hand(Input::Outgoing(PacketBytes(request.clone())), Some(PacketBytes(request)));
        self.schedule(DELAY, Event::Server);
        if let Some((from, to)) = self.impairment.outage {
            self.schedule(Duration::from_millis(from), Event::Carrier(false));
            self.schedule(Duration::from_millis(to), Event::Carrier(true));
        }
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::ToHost(packet) => {
                let length = packet.0.len() as u32;
                self.hand(Input::Captured { packet: packet.clone(), length }, None);
                self.on_packet(&packet, false);
            }
            Event::ToStack(packet) => self.on_packet(&packet, true),
            Event::ToServer(packet) => self.on_ack(&packet),
            Event::Fetched(fetch, range, bytes) => self.hand(Input::Fetched { fetch, range, bytes }, None),
            Event::Carrier(is_up) => self.hand(Input::Carrier { link: WIFI, is_up }, None),
            Event::Server => {
                self.send();
                if self.now.since(self.last_progress) >= Duration::from_millis(400) && self.una < self.nxt {
                    self.last_progress = self.now;
                    self.repair();
                }
                self.schedule(Duration::from_millis(2), Event::Server);
            }
        }
    }

    /// Passes an input to the accelerator, and executes its outputs. `queued`: a packet that waits for its verdict.
    fn hand(&mut self, input: Input, queued: Option<PacketBytes>) {
        if self.has_crashed {
            return queued.into_iter().for_each(|packet| self.leave(packet));
        }
        self.accelerator.handle(self.now, input);
        self.drain(queued);
    }

    fn drain(&mut self, queued: Option<PacketBytes>) {
        let mut verdicts = 0;
        while let Some(output) = self.accelerator.poll() {
            match output {
                Output::Forward(packet) => {
                    verdicts += 1;
                    self.leave(packet);
                }
                Output::Suppress => verdicts += 1,
                Output::Send { link: WIFI, packet } => self.leave(packet),
                Output::Send { link: CELL, packet } => self.schedule(DELAY * 3, Event::ToServer(packet)),
                Output::Deliver(packet) if !self.chance(self.impairment.undelivered) => {
                    self.schedule(Duration::ZERO, Event::ToStack(packet));
                }
                Output::Fetch(fetch) => self.fetch(&fetch),
                _ => {}
            }
        }
        assert_eq!(verdicts, u32::from(queued.is_some()), "one verdict for each packet that waits");
    }

    fn fetch(&mut self, fetch: &Fetch) {
        assert_eq!((fetch.etag.as_str(), fetch.length.bytes()), ("\"x\"", self.impairment.body));
        for (range, (start, end)) in fetch.ranges.iter().enumerate() {
            assert!(start < end && *end <= self.impairment.body, "{fetch:?}");
            self.fetched += end - start;
            let bytes = (!self.chance(self.impairment.refused_fetches))
                .then(|| PacketBytes((*start..*end).map(byte).collect()));
            let mut pause = Duration::from_millis(150 + self.number() % 200);
            if self.is_fetch_slow && *start >= 512 {
                let at = self.slow_fetches.iter().position(|old| old == start).unwrap_or(self.slow_fetches.len());
                self.slow_fetches.extend((at == self.slow_fetches.len()).then_some(*start));
                let due = Instant::from_millis(1000) + SLOW_FETCH * (at as u32 + 1);
                pause = pause.max(due.since(self.now));
            }
            if !self.chance(self.impairment.unanswered_fetches) {
                self.schedule(pause, Event::Fetched(fetch.id, range as u32, bytes));
            }
        }
    }

    // The server.

    fn send(&mut self) {
        let limit = self.right_edge.min(self.una + 64 * MSS).min(self.stream.len() as u64);
        let mut burst = 4;
        while self.nxt < limit && burst > 0 {
            let length = MSS.min(limit - self.nxt);
            self.emit(self.nxt, length);
            self.nxt += length;
            burst -= 1;
        }
    }

    fn repair(&mut self) {
        self.last_repair = self.now;
        self.retransmitted += 1;
        let length = MSS.min(self.nxt - self.una);
        self.emit(self.una, length);
    }

    fn emit(&mut self, at: u64, length: u64) {
        let payload = self.stream[at as usize..(at + length) as usize].to_vec();
        let timestamps = Timestamps { ts_val: TcpTimestamp::new(self.millis()), ts_ecr: TcpTimestamp::new(0) };
        let packet =
            NewSegment::data(&key().reversed(), self.seq(at), Seq::new(127), 500, Some(timestamps), &payload);
        let packet = PacketBytes(packet.emit().unwrap());
        if !self.is_down() && !self.chance(self.impairment.loss) {
            // Some are late, and so reordered.
            let delay = if self.chance(self.impairment.delay) { Duration::from_millis(3) } else { Duration::ZERO };
            self.schedule(DELAY + delay, Event::ToHost(packet));
        }
    }

    fn on_ack(&mut self, packet: &PacketBytes) {
        let Ok(segment) = Segment::parse(&packet.0) else { return };
        let Some(ack) = segment.ack().filter(|_| !segment.flags().contains(Flags::SYN)) else { return };
        if segment.seq().is_before(Seq::new(127)) && segment.payload().is_empty() {
            // Outside of the window: answered with the position.
            let timestamps =
                Some(Timestamps { ts_val: TcpTimestamp::new(self.millis()), ts_ecr: TcpTimestamp::new(0) });
            let answer =
                NewSegment::data(&key().reversed(), self.seq(self.nxt), Seq::new(127), 500, timestamps, &[]);
            let answer = PacketBytes(answer.emit().unwrap());
            self.schedule(DELAY, Event::ToHost(answer));
        }
        let at = u64::from(ack.since(Seq::new(self.impairment.isn)));
        if at > self.nxt || at < self.una {
            return;
        }
        if segment.window() == 0 {
            self.right_edge = at;
            self.frozen += u64::from(at == self.nxt);
        }
        self.right_edge = self.right_edge.max(at + (u64::from(segment.window()) << SCALE));
        if at > self.una {
            self.una = at;
            self.last_progress = self.now;
        }
        let has_hole = segment.sack_blocks().blocks().iter().any(|block| block.start.is_after(ack));
        if has_hole && self.now.since(self.last_repair) >= Duration::from_millis(60) {
            self.repair();
        }
    }

    // The local stack.

    /// `is_made`: the accelerator has made it.
    fn on_packet(&mut self, packet: &PacketBytes, is_made: bool) {
        let segment = Segment::parse(&packet.0).unwrap();
        if segment.flags().contains(Flags::RST) {
            if self.has_crashed && segment.seq() != self.seq(self.received) {
                return;
            }
            assert_eq!(segment.seq(), self.seq(self.received), "a reset that the stack would ignore");
            self.is_reset = true;
            return;
        }
        if segment.payload().is_empty() {
            return;
        }
        let at = u64::from(segment.seq().since(Seq::new(self.impairment.isn)));
        let ts_val = segment.timestamps().unwrap().ts_val.ticks();
        if ts_val < self.recent {
            // PAWS. A packet of the accelerator may be so old only if another one has just overtaken it.
            self.aged += u64::from(is_made && at >= self.received);
            return self.acknowledge();
        }
        let new = PosRange::new(at, at + segment.payload().len() as u64);
        let window = PosRange::new(self.received, self.received + BUFFER);
        assert!(window.end >= new.end, "more was sent than the window allows");
        assert_eq!(
            segment.payload(),
            &self.stream[new.start as usize..new.end as usize],
            "other bytes than were sent"
        );
        if at <= self.received {
            self.recent = self.recent.max(ts_val);
        }
        self.beyond.insert(new.intersection(&window));
        let received = self.beyond.run_from(self.received);
        self.received = received;
        self.beyond.remove_before(received);
        if self.chance(self.impairment.renege) {
            (self.beyond, self.blocks) = (PosRangeSet::default(), Vec::new());
        }
        let block = self.beyond.iter().find(|block| block.contains(at));
        let mut blocks: Vec<PosRange> = block.into_iter().collect();
        let others: Vec<PosRange> = self.blocks.iter().copied().filter(|old| old.start > received).collect();
        blocks.extend(others.into_iter().filter(|old| block.is_none_or(|block| !block.covers(old))));
        blocks.truncate(4);
        self.blocks = blocks;
        self.acknowledge();
    }

    fn acknowledge(&mut self) {
        let to_range = |block: &PosRange| SeqRange::new(self.seq(block.start), self.seq(block.end));
        let ranges: Vec<SeqRange> = self.blocks.iter().take(3).map(to_range).collect();
        let ack = Ack {
            seq: Seq::new(127),
            ack: self.seq(self.received),
            window: (BUFFER >> SCALE) as u16,
            flags: Flags::ACK,
            timestamps: Some(Timestamps {
                ts_val: TcpTimestamp::new(self.millis()),
                ts_ecr: TcpTimestamp::new(self.recent),
            }),
            sack_blocks: SackBlocks::of(&ranges),
        };
        let packet = PacketBytes(ack.emit(&key(), IpParams::default()));
        self.hand(Input::Outgoing(packet.clone()), Some(packet));
    }

    /// A packet leaves for the server. It must not offer more window than the stack has.
    fn leave(&mut self, packet: PacketBytes) {
        if let Ok(segment) = Segment::parse(&packet.0)
            && let Some(ack) = segment.pure_ack()
        {
            let right_edge = u64::from(ack.right_edge(SCALE).since(Seq::new(self.impairment.isn)));
            let at = u64::from(ack.ack.since(Seq::new(self.impairment.isn)));
            assert!(
                right_edge <= self.received + BUFFER || ack.window == 0,
                "beyond the right right_edge: {right_edge}"
            );
            assert!(at <= self.stream.len() as u64, "beyond the stream");
        }
        if !self.is_down() && !self.chance(self.impairment.loss / 4) {
            self.schedule(DELAY, Event::ToServer(packet));
        }
    }

    fn is_down(&self) -> bool {
        let millis = u64::from(self.millis()) - 1000;
        self.impairment.outage.is_some_and(|(from, to)| (from..to).contains(&millis))
    }

    fn seq(&self, at: u64) -> Seq {
        Seq::new(self.impairment.isn).plus(at as u32)
    }

    fn millis(&self) -> u32 {
        self.now.since(Instant::ZERO).as_millis() as u32
    }

    fn schedule(&mut self, by: Duration, event: Event) {
        self.count += 1;
        self.events.insert((self.now + by, self.count), event);
    }

    fn number(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random >> 11
    }

    fn chance(&mut self, of_a_thousand: u64) -> bool {
        self.number() % 1000 < of_a_thousand
    }

    /// Length of the stream, with its head.
    pub(super) fn end(&self) -> u64 {
        self.head + self.impairment.body
    }
}

fn key() -> Key {
    let pair = AddrPair::V4([10, 0, 0, 2].into(), [10, 99, 0, 1].into());
    Key { addrs: pair, source_port: 4000, destination_port: 80 }
}

/// The resource's byte at an offset.
fn byte(offset: u64) -> u8 {
    (offset.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// Receive buffer of the local stack.
const BUFFER: u64 = 1_048_576;
