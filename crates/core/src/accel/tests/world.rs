//! A server, an own stack and the way between them, as simply as TCP allows: what hiding must hold against.
//!
//! In: a seed and how bad the world is. Out: whether the application's bytes are those of the server, each once.
//!
//! 1. The own stack keeps what comes in its window, acknowledges each packet with its three newest blocks, and sometimes
//!    forgets all that lies beyond a hole.
//! 2. The server sends what its window allows, repeats the first unacknowledged segment when a block shows a hole or
//!    nothing has moved for 400 ms, and answers what is out of place with where it stands.
//! 3. Nothing here knows the machine: the bytes are computed from their place, and whatever is acknowledged must come.

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
const WAY: Duration = Duration::from_millis(25);
const CRAWL: Duration = Duration::from_secs(3);

/// How bad the world is; shares are of a thousand.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weather {
    pub(super) seed: u64,
    pub(super) body: u64,
    pub(super) loss: u64,
    /// Packets that come three milliseconds late.
    pub(super) delay: u64,
    /// Answers that say that bytes cannot be had, and answers that never come.
    pub(super) refused: u64,
    pub(super) unanswered: u64,
    /// Packets for the own stack that find no room.
    pub(super) undelivered: u64,
    /// Packets after which the own stack forgets what lies beyond its holes.
    pub(super) forgets: u64,
    /// When the link is dark, in milliseconds.
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

/// Everything.
pub(super) struct World {
    weather: Weather,
    random: u64,
    pub(super) now: Instant,
    events: BTreeMap<(Instant, u64), Event>,
    count: u64,
    pub(super) machine: Accelerator,
    /// The stream, heads included: what the application must get.
    stream: Vec<u8>,
    head: u64,
    // The server.
    una: u64,
    nxt: u64,
    edge: u64,
    moved: Instant,
    repaired: Instant,
    // The own stack: from here on, what it has beyond, and the blocks that it names.
    pub(super) here: u64,
    beyond: PosRangeSet,
    blocks: Vec<PosRange>,
    recent: u32,
    pub(super) is_reset: bool,
    /// The machine is no more, and packets pass.
    is_dead: bool,
    pub(super) fetched: u64,
    pub(super) repeated: u64,
    /// How often the server was told to wait, and had nothing on its way.
    pub(super) stilled: u64,
    /// What was given and is too old to be taken.
    pub(super) aged: u64,
    /// Fetches bring one range after the other, each [`CRAWL`] after the one before; these so far.
    pub(super) crawls: bool,
    crawled: Vec<u64>,
}

impl World {
    pub(super) fn new(weather: Weather, mechanisms: &[Mechanism]) -> Self {
        let mut config = Config::new(WIFI, Some(CELL));
        config.mechanisms = Mechanisms::of(mechanisms);
        let body = weather.body;
        let head = format!("HTTP/1.1 200 OK\r\nETag: \"x\"\r\nContent-Length: {body}\r\n\r\n");
        let stream: Vec<u8> = head.bytes().chain((0..body).map(byte)).collect();
        let mut world = Self {
            weather,
            random: weather.seed | 1,
            now: Instant::from_millis(1000),
            events: BTreeMap::new(),
            count: 0,
            machine: Accelerator::new(config),
            stream,
            head: head.len() as u64,
            una: 0,
            nxt: 0,
            edge: 64 * MSS,
            moved: Instant::from_millis(1000),
            repaired: Instant::ZERO,
            here: 0,
            beyond: PosRangeSet::default(),
            blocks: Vec::new(),
            recent: 0,
            is_reset: false,
            is_dead: false,
            fetched: 0,
            repeated: 0,
            stilled: 0,
            aged: 0,
            crawls: false,
            crawled: Vec::new(),
        };
        world.open();
        world
    }

    /// Lets it run until all has come, or for so long.
    pub(super) fn run(&mut self, limit: Duration) {
        let end = self.now + limit;
        while self.here < self.stream.len() as u64 && !self.is_reset {
            let event = self.events.first_key_value().map(|((at, _), _)| *at);
            let wake = self.machine.deadline().map(|(at, _)| at).filter(|_| !self.is_dead);
            let Some(at) = [event, wake].into_iter().flatten().min().filter(|at| *at <= end) else { return };
            self.now = self.now.max(at);
            if event == Some(at) {
                if let Some((_, event)) = self.events.pop_first() {
                    self.happen(event);
                }
            } else {
                self.machine.tick(self.now);
                self.drain(None);
                assert!(self.machine.deadline().is_none_or(|(at, _)| at > self.now), "it wakes for ever");
            }
        }
    }

    /// Fetches are answered from now on.
    pub(super) fn speak(&mut self) {
        self.weather.unanswered = 0;
    }

    /// Nobody answers any fetch from now on.
    pub(super) fn go_silent(&mut self) {
        self.weather.unanswered = 1000;
        self.events.retain(|_, event| !matches!(event, Event::Fetched(..)));
    }

    /// The machine is killed, and whoever outlives it pays what it has owed after a while, or ends the flow; how many holes.
    pub(super) fn die(&mut self) -> usize {
        self.is_dead = true;
        let owed = self.machine.pending_repairs();
        for pending in &owed {
            if !pending.is_acked_known {
                pending
                    .local_resets(Seq::new(pending.next_expected))
                    .into_iter()
                    .for_each(|reset| self.later(Duration::ZERO, Event::ToStack(reset)));
                continue;
            }
            for hole in &pending.holes {
                let (start, end) = hole.fetch.as_ref().unwrap().ranges[0];
                let bytes: Vec<u8> = (start..end).map(byte).collect();
                for (packet, millis) in
                    pending.fill_segments(hole, &bytes, None).into_iter().flat_map(|p| [(p.clone(), 200), (p, 260)])
                {
                    self.later(Duration::from_millis(millis), Event::ToStack(packet));
                }
            }
        }
        owed.iter().map(|pending| pending.holes.len()).sum()
    }

    /// How it stands, for a test that fails.
    pub(super) fn shown(&self) -> String {
        let flow = self.machine.flows(self.now).pop();
        format!(
            "{:?} here {} una {} nxt {} at {:?}: {flow:?}",
            self.weather, self.here, self.una, self.nxt, self.now
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
        self.later(WAY, Event::Server);
        if let Some((from, to)) = self.weather.outage {
            self.later(Duration::from_millis(from), Event::Carrier(false));
            self.later(Duration::from_millis(to), Event::Carrier(true));
        }
    }

    fn happen(&mut self, event: Event) {
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
                if self.now.since(self.moved) >= Duration::from_millis(400) && self.una < self.nxt {
                    self.moved = self.now;
                    self.repair();
                }
                self.later(Duration::from_millis(2), Event::Server);
            }
        }
    }

    /// Gives the machine something, and does what it says. `held`: a packet that waits for its verdict.
    fn hand(&mut self, input: Input, queued: Option<PacketBytes>) {
        if self.is_dead {
            return queued.into_iter().for_each(|packet| self.leave(packet));
        }
        self.machine.handle(self.now, input);
        self.drain(queued);
    }

    fn drain(&mut self, queued: Option<PacketBytes>) {
        let mut verdicts = 0;
        while let Some(output) = self.machine.poll() {
            match output {
                Output::Forward(packet) => {
                    verdicts += 1;
                    self.leave(packet);
                }
                Output::Suppress => verdicts += 1,
                Output::Send { link: WIFI, packet } => self.leave(packet),
                Output::Send { link: CELL, packet } => self.later(WAY * 3, Event::ToServer(packet)),
                Output::Deliver(packet) if !self.chance(self.weather.undelivered) => {
                    self.later(Duration::ZERO, Event::ToStack(packet));
                }
                Output::Fetch(fetch) => self.fetch(&fetch),
                _ => {}
            }
        }
        assert_eq!(verdicts, u32::from(queued.is_some()), "one word for each packet that waits");
    }

    fn fetch(&mut self, fetch: &Fetch) {
        assert_eq!((fetch.etag.as_str(), fetch.length.bytes()), ("\"x\"", self.weather.body));
        for (range, (start, end)) in fetch.ranges.iter().enumerate() {
            assert!(start < end && *end <= self.weather.body, "{fetch:?}");
            self.fetched += end - start;
            let bytes =
                (!self.chance(self.weather.refused)).then(|| PacketBytes((*start..*end).map(byte).collect()));
            let mut rest = Duration::from_millis(150 + self.number() % 200);
            if self.crawls && *start >= 512 {
                let at = self.crawled.iter().position(|old| old == start).unwrap_or(self.crawled.len());
                self.crawled.extend((at == self.crawled.len()).then_some(*start));
                let due = Instant::from_millis(1000) + CRAWL * (at as u32 + 1);
                rest = rest.max(due.since(self.now));
            }
            if !self.chance(self.weather.unanswered) {
                self.later(rest, Event::Fetched(fetch.id, range as u32, bytes));
            }
        }
    }

    // The server.

    fn send(&mut self) {
        let limit = self.edge.min(self.una + 64 * MSS).min(self.stream.len() as u64);
        let mut burst = 4;
        while self.nxt < limit && burst > 0 {
            let length = MSS.min(limit - self.nxt);
            self.emit(self.nxt, length);
            self.nxt += length;
            burst -= 1;
        }
    }

    fn repair(&mut self) {
        self.repaired = self.now;
        self.repeated += 1;
        let length = MSS.min(self.nxt - self.una);
        self.emit(self.una, length);
    }

    fn emit(&mut self, at: u64, length: u64) {
        let payload = self.stream[at as usize..(at + length) as usize].to_vec();
        let timestamps = Timestamps { ts_val: TcpTimestamp::new(self.millis()), ts_ecr: TcpTimestamp::new(0) };
        let packet =
            NewSegment::data(&key().reversed(), self.seq(at), Seq::new(127), 500, Some(timestamps), &payload);
        let packet = PacketBytes(packet.emit().unwrap());
        if !self.is_dark() && !self.chance(self.weather.loss) {
            // Some come late, and so in another order.
            let delay = if self.chance(self.weather.delay) { Duration::from_millis(3) } else { Duration::ZERO };
            self.later(WAY + delay, Event::ToHost(packet));
        }
    }

    fn on_ack(&mut self, packet: &PacketBytes) {
        let Ok(segment) = Segment::parse(&packet.0) else { return };
        let Some(ack) = segment.ack().filter(|_| !segment.flags().contains(Flags::SYN)) else { return };
        if segment.seq().is_before(Seq::new(127)) && segment.payload().is_empty() {
            // Out of place: where it stands.
            let timestamps =
                Some(Timestamps { ts_val: TcpTimestamp::new(self.millis()), ts_ecr: TcpTimestamp::new(0) });
            let answer =
                NewSegment::data(&key().reversed(), self.seq(self.nxt), Seq::new(127), 500, timestamps, &[]);
            let answer = PacketBytes(answer.emit().unwrap());
            self.later(WAY, Event::ToHost(answer));
        }
        let at = u64::from(ack.since(Seq::new(self.weather.isn)));
        if at > self.nxt || at < self.una {
            return;
        }
        if segment.window() == 0 {
            self.edge = at;
            self.stilled += u64::from(at == self.nxt);
        }
        self.edge = self.edge.max(at + (u64::from(segment.window()) << SCALE));
        if at > self.una {
            self.una = at;
            self.moved = self.now;
        }
        let has_hole = segment.sack_blocks().blocks().iter().any(|block| block.start.is_after(ack));
        if has_hole && self.now.since(self.repaired) >= Duration::from_millis(60) {
            self.repair();
        }
    }

    // The own stack.

    /// `is_given`: the machine has made it.
    fn on_packet(&mut self, packet: &PacketBytes, is_given: bool) {
        let segment = Segment::parse(&packet.0).unwrap();
        if segment.flags().contains(Flags::RST) {
            if self.is_dead && segment.seq() != self.seq(self.here) {
                return;
            }
            assert_eq!(segment.seq(), self.seq(self.here), "a reset that nobody would believe");
            self.is_reset = true;
            return;
        }
        if segment.payload().is_empty() {
            return;
        }
        let at = u64::from(segment.seq().since(Seq::new(self.weather.isn)));
        let ts_val = segment.timestamps().unwrap().ts_val.ticks();
        if ts_val < self.recent {
            // PAWS. Of what the machine makes only what a packet has overtaken in this very moment may be so old.
            self.aged += u64::from(is_given && at >= self.here);
            return self.acknowledge();
        }
        let new = PosRange::new(at, at + segment.payload().len() as u64);
        let capacity = PosRange::new(self.here, self.here + BUFFER);
        assert!(capacity.end >= new.end, "more was sent than there is room for");
        assert_eq!(
            segment.payload(),
            &self.stream[new.start as usize..new.end as usize],
            "other bytes than were sent"
        );
        if at <= self.here {
            self.recent = self.recent.max(ts_val);
        }
        self.beyond.insert(new.intersection(&capacity));
        let here = self.beyond.run_from(self.here);
        self.here = here;
        self.beyond.remove_before(here);
        if self.chance(self.weather.forgets) {
            (self.beyond, self.blocks) = (PosRangeSet::default(), Vec::new());
        }
        let block = self.beyond.iter().find(|block| block.contains(at));
        let mut blocks: Vec<PosRange> = block.into_iter().collect();
        let others: Vec<PosRange> = self.blocks.iter().copied().filter(|old| old.start > here).collect();
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
            ack: self.seq(self.here),
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

    /// A packet leaves for the server. Nobody may promise room that is not there.
    fn leave(&mut self, packet: PacketBytes) {
        if let Ok(segment) = Segment::parse(&packet.0)
            && let Some(ack) = segment.pure_ack()
        {
            let edge = u64::from(ack.right_edge(SCALE).since(Seq::new(self.weather.isn)));
            let at = u64::from(ack.ack.since(Seq::new(self.weather.isn)));
            assert!(edge <= self.here + BUFFER || ack.window == 0, "beyond the right edge: {edge}");
            assert!(at <= self.stream.len() as u64, "beyond what there is");
        }
        if !self.is_dark() && !self.chance(self.weather.loss / 4) {
            self.later(WAY, Event::ToServer(packet));
        }
    }

    fn is_dark(&self) -> bool {
        let millis = u64::from(self.millis()) - 1000;
        self.weather.outage.is_some_and(|(from, to)| (from..to).contains(&millis))
    }

    fn seq(&self, at: u64) -> Seq {
        Seq::new(self.weather.isn).plus(at as u32)
    }

    fn millis(&self) -> u32 {
        self.now.since(Instant::ZERO).as_millis() as u32
    }

    fn later(&mut self, by: Duration, event: Event) {
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

    /// How long the stream is, with its head.
    pub(super) fn end(&self) -> u64 {
        self.head + self.weather.body
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

/// What the own stack has room for.
const BUFFER: u64 = 1_048_576;
