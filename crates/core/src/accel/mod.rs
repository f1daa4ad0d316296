//! Makes TCP on one link faster, with a thin second link beside it and nothing changed at the server: Super-aggregation
//! (CoNEXT 2009).
//!
//! In: packets of the primary link as they leave, and as they pass; answers of gateways; fetched bytes. Out: what leaves
//! instead, packets more over either link, packets for the own stack, and questions.
//!
//! 1. What is not understood, or is not known to be helped, leaves as it came. A flow is never quieter for longer than
//!    plain TCP would be: whatever is kept back has a deadline.
//! 2. What has come is what the own stack says: its ACKs and their SACK blocks. Packets that pass are only looked at for
//!    their time and for the heads of HTTP, so that nothing of the downward way depends on this.
//! 3. Each mechanism is a file, named as the component in the paper's figure 3; a flow puts them in their order (§3.4).
//! 4. Nothing is asked and nobody is woken while nothing moves.

mod bounds;
mod calm;
mod clock;
mod config;
mod detector;
mod detour;
mod event;
mod far;
mod fetcher;
mod filling;
mod flow;
mod freeze;
mod gain;
mod gate;
mod handler;
mod heads;
mod helpers;
mod hider;
mod hiding;
mod holes;
mod interface;
mod line;
mod mirror;
mod mirrored;
mod odds;
mod offloader;
mod owed;
mod pace;
mod repair;
mod replay;
mod replays;
mod reserve;
mod roles;
mod sender;
mod shortest;
mod stretch;
mod tap;
#[cfg(test)]
mod tests;
mod trial;
mod trip;
mod trust;
mod undo;
mod upward;
mod view;
mod ways;
mod window;

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::net::IpAddr;

use crate::link::LinkId;
use crate::machine::Machine;
use crate::units::{DataSize, Duration, Instant};
use crate::wire::packet::{Ack, Flags, FourTuple as Key, IpParams, Segment};

pub use config::{Config, Families, Helper, Mechanism, Mechanisms};
pub use event::{Bytes, Input, Output, Sight, Wake};
pub use fetcher::{Fetch, FetchId};
pub use heads::Refusal;
pub use mirror::{Mirror, Place, Resource, Seen};
pub use offloader::STRETCH;
pub use owed::{Hole, Owed};
pub use repair::{Patch, Repair, RepairState};
pub use replays::CallId;
pub use stretch::{Stretch, Stretches};
pub use view::{Excuse, FlowView, LinkView, ReplayView};

use detector::{Detector, Turn};
use detour::Road;
use fetcher::Fetcher;
use flow::{Flow, May, News, Way};
use freeze::Frost;
use helpers::Helpers;
use hiding::Hiding;
use offloader::Fate;
use replays::Replays;
use shortest::Shortest;
use trust::Trust;

/// Of a packet that is only looked at, so many bytes are shown: the longest headers of IP and TCP, with room for
/// extension headers of IPv6.
pub const SIGHT: usize = 160;

/// The machine. See the [module](self).
#[derive(Debug)]
pub struct Accelerator {
    config: Config,
    now: Instant,
    flows: BTreeMap<Key, Flow>,
    wakes: BTreeSet<(Instant, Key)>,
    detector: Detector,
    helpers: Helpers,
    fetcher: Fetcher,
    replays: Replays,
    /// Flows that may be mirrored, by the number under which the fetcher knows them, and what they need to be shown.
    mirrored: BTreeMap<u64, (Key, Sight)>,
    numbers: u64,
    sight: Sight,
    watch_until: Option<Instant>,
    shortest: Shortest,
    /// By the servers' addresses.
    trusts: BTreeMap<IpAddr, Trust>,
    swept: Instant,
    outputs: VecDeque<Output>,
}

impl Accelerator {
    /// A machine that knows no flow yet.
    pub fn new(config: Config) -> Self {
        Self {
            now: Instant::ZERO,
            flows: BTreeMap::new(),
            wakes: BTreeSet::new(),
            detector: Detector::new(config.primary),
            helpers: Helpers::new(&config),
            fetcher: Fetcher::default(),
            replays: Replays::default(),
            mirrored: BTreeMap::new(),
            numbers: 0,
            sight: Sight::None,
            watch_until: None,
            shortest: Shortest::default(),
            trusts: BTreeMap::new(),
            swept: Instant::ZERO,
            outputs: VecDeque::new(),
            config,
        }
    }

    /// What it was told at the start.
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// All flows, in the order of their addresses; one that goes both ways, twice. Upward only what is more than
    /// requests.
    pub fn flows(&self, now: Instant) -> Vec<FlowView> {
        let views = self.flows.values().map(|flow| self.replayed(flow, flow.view(now, &self.config.mechanisms)));
        views.filter(|view| !view.is_upload || view.received >= UPLOAD).collect()
    }

    /// The links, the primary one first.
    pub fn links(&self, now: Instant) -> Vec<LinkView> {
        let primary = LinkView {
            link: self.config.primary,
            is_dark: self.detector.is_dark(),
            is_deaf: self.detector.is_deaf(),
            blackouts: self.detector.blackouts(),
            dark: self.detector.dark(now),
            rtt: self.detector.rtt(),
            up: None,
            down: None,
            sent: DataSize::ZERO,
            fetched: DataSize::ZERO,
        };
        let fetched = |view: LinkView| LinkView {
            fetched: self.fetcher.fetched_over(view.link) + self.replays.fetched_over(view.link),
            down: view.down.or_else(|| self.fetcher.found_rate(view.link)),
            ..view
        };
        core::iter::once(primary).chain(self.helpers.views(now)).map(fetched).collect()
    }

    /// The shortest round trip of those flows that move; none: nothing has moved yet. One of a flow whose acknowledgements may
    /// not wait counts as nothing.
    pub fn shortest_trip(&self) -> Option<Duration> {
        self.shortest.least()
    }

    fn on_leaving(&mut self, mut packet: Bytes) {
        let now = self.now;
        let Ok(segment) = Segment::parse(&packet.0) else {
            self.outputs.push_back(Output::Leave(packet));
            return;
        };
        let (key, flags) = (segment.four_tuple(), segment.flags());
        self.on_own(&segment, segment.payload().len());
        if flags.contains(Flags::RST) {
            self.forget(&key);
            self.forget(&key.reversed());
        } else if flags.contains(Flags::SYN) {
            self.renew(&key);
            if !flags.contains(Flags::ACK) && self.has_room(&key, FLOWS) {
                let flow = self.flows.entry(key).or_insert_with(|| Flow::new(now, key, Way::Down));
                flow.on_syn(now, &segment);
                self.mirror(key);
            }
        } else if let Some(ack) = segment.pure_ack() {
            let envelope = segment.packet().ip_params();
            return self.on_ack(key, packet, (ack, envelope));
        } else if self.flows.contains_key(&key) {
            let room = self.room(&key);
            let Some(flow) = self.flows.get_mut(&key) else { return };
            let woken = flow.deadline();
            let is_watched = self.sight != Sight::None;
            let may = May { mechanisms: &self.config.mechanisms, is_watched, room };
            flow.on_other(now, &mut packet.0, &may);
            self.helpers.withdraw(&key);
            self.outputs.push_back(Output::Leave(packet));
            self.after(key, woken);
            return;
        }
        self.outputs.push_back(Output::Leave(packet));
    }

    /// An ACK of the own stack.
    fn on_ack(&mut self, key: Key, mut packet: Bytes, ack: (Ack, IpParams)) {
        let Some(news) = self.mark(key, Way::Down, &mut packet, ack) else {
            self.outputs.push_back(Output::Leave(packet));
            return;
        };
        if news.is_plain_now {
            self.mirror(key);
        }
        if news.has_holes && self.config.mechanisms.has(Mechanism::Undo) {
            let until = self.flows.get(&key).and_then(Flow::watch_until);
            self.watch_until = self.watch_until.max(until);
        }
        if news.is_held {
            self.outputs.push_back(Output::Hold);
        } else if let Some(packet) = self.offload(key, packet) {
            // What waits elsewhere says less than this.
            if self.helpers.withdraw(&key)
                && let Some(flow) = self.flows.get_mut(&key)
            {
                flow.counts_mut().replaced += 1;
            }
            self.outputs.push_back(Output::Leave(packet));
        }
        if news.has_data {
            self.sign();
        }
        self.watch();
    }

    /// A packet of the other end, held: if it is a pure ACK, one for what the own stack sends (§3.5).
    fn on_arriving(&mut self, mut packet: Bytes) {
        let Ok(segment) = Segment::parse(&packet.0) else {
            self.outputs.push_back(Output::Leave(packet));
            return;
        };
        let (key, envelope, now) = (segment.four_tuple(), segment.packet().ip_params(), self.now);
        if segment.flags().contains(Flags::SYN) {
            if self.has_room(&key, FLOWS / 2) && self.flows.get(&key).is_none_or(|flow| flow.way() == Way::Up) {
                self.flows.entry(key).or_insert_with(|| Flow::new(now, key, Way::Up)).on_syn(now, &segment);
            }
            let own = key.reversed();
            if let Some(flow) = self.flows.get_mut(&own).filter(|flow| flow.way() == Way::Down) {
                flow.on_accepted(&segment);
            }
        } else if let Some(ack) = segment.pure_ack() {
            let news = self.mark(key, Way::Up, &mut packet, (ack, envelope));
            if news.is_some_and(|news| news.has_holes) && self.config.mechanisms.has(Mechanism::Undo) {
                let until = self.flows.get(&key).and_then(Flow::watch_until);
                self.watch_until = self.watch_until.max(until);
            }
        }
        self.outputs.push_back(Output::Leave(packet));
        self.sign();
        self.watch();
    }

    /// A packet of the own stack leaves, or has left with so many bytes.
    fn on_own(&mut self, segment: &Segment<'_>, length: usize) {
        if let Some(flow) = self.flows.get_mut(&segment.four_tuple().reversed()) {
            flow.on_own(self.now, segment, u32::try_from(length).unwrap_or(u32::MAX));
        }
    }

    /// Puts a flow's marks on an ACK; none where there is no room for another flow, or that one goes the other way.
    fn mark(&mut self, key: Key, way: Way, packet: &mut Bytes, ack: (Ack, IpParams)) -> Option<News> {
        // Whoever sends us acknowledgements may not take all places.
        let places = if way == Way::Up { FLOWS / 2 } else { FLOWS };
        if !self.has_room(&key, places) || self.flows.get(&key).is_some_and(|flow| flow.way() != way) {
            return None;
        }
        let (now, is_watched) = (self.now, way == Way::Down && self.sight != Sight::None);
        let room = self.room(&key);
        let flow = self.flows.entry(key).or_insert_with(|| Flow::new(now, key, way));
        let woken = flow.deadline();
        let may = May { mechanisms: &self.config.mechanisms, is_watched, room };
        let path = key.addrs.destination();
        if self.trusts.len() >= PATHS && !self.trusts.contains_key(&path) {
            let oldest = self.trusts.iter().min_by_key(|(_, trust)| trust.heard()).map(|(path, _)| *path);
            if let Some(oldest) = oldest {
                self.trusts.remove(&oldest);
            }
        }
        let trust = self.trusts.entry(path).or_default();
        let news = flow.on_ack(now, &mut packet.0, ack, &may, trust);
        let trip = flow.patience(now);
        // Of a request that is acknowledged no round trip is known, and it says nothing of the others.
        if way == Way::Down || trip.is_some() {
            self.shortest.on_trip(now, trip);
        }
        self.after(key, woken);
        Some(news)
    }

    /// Whether anything depends on the primary link being dark; else nobody is asked.
    fn minds_blackouts(&self) -> bool {
        self.config.mechanisms.has_any(&BLACKOUTS)
    }

    /// The primary link has brought something.
    fn sign(&mut self) {
        if !self.minds_blackouts() {
            return;
        }
        let turn = self.detector.on_sign(self.now, &mut self.outputs);
        self.turn(turn);
    }

    /// Sends an ACK over a helping link, now or soon, or later over the first; gives it back if it is to leave as ever.
    fn offload(&mut self, key: Key, packet: Bytes) -> Option<Bytes> {
        let now = self.now;
        let Some(flow) = self.flows.get_mut(&key).filter(|_| !self.detector.is_dark()) else { return Some(packet) };
        if self.config.mechanisms.has(Mechanism::OffloadAsPublished) {
            return if flow.may_spill(now) { self.spill(key, packet) } else { Some(packet) };
        } else if !self.config.mechanisms.has(Mechanism::Offload) {
            return Some(packet);
        }
        // What is to be compared with older ones is what the packet says now.
        let Some(ack) = Segment::parse(&packet.0).ok().and_then(|segment| segment.pure_ack()) else {
            return Some(packet);
        };
        let value = ack.timestamps.map(|stamps| stamps.ts_val);
        let woken = flow.deadline();
        let is_ready = flow.detour_mut().trial().wants_link() && self.helpers.prepare(now, &key);
        let road = flow.road(now, is_ready, self.helpers.fastest(now, &key));
        self.watch_until = self.watch_until.max(flow.detour_mut().watch_until());
        let (says, at) = (flow.says(ack), self.outputs.len());
        let late = match road {
            Road::Late(late) => Err((packet.0, late)),
            Road::Elsewhere => self
                .helpers
                .offer(now, key, (ack, packet.0), says.scale, &mut self.outputs)
                .map_err(|packet| (packet, flow.detour_mut().on_refused(now))),
        };
        let left = match late {
            Ok(fate) => {
                flow.detour_mut().on_taken(now, value);
                flow.counts_mut().on_fate(fate);
                None
            }
            Err((packet, late)) => flow.detour_mut().hold(now, packet, says, late),
        };
        if left.is_none() {
            self.outputs.insert(at, Output::Hold);
        }
        self.rearm(key, woken);
        left.map(Bytes)
    }

    /// As published: over a helping link if that has room now; else it is given back.
    fn spill(&mut self, key: Key, packet: Bytes) -> Option<Bytes> {
        let at = self.outputs.len();
        let left = self.helpers.spill(self.now, &key, packet.0, &mut self.outputs);
        if left.is_none() {
            self.outputs.insert(at, Output::Hold);
            self.flows.get_mut(&key).into_iter().for_each(|flow| flow.counts_mut().on_fate(Fate::Alone));
        }
        left.map(Bytes)
    }

    fn on_seen(&mut self, packet: &Bytes, length: u32) {
        let Ok(segment) = Segment::parse_head(&packet.0) else { return };
        let cut = (length as usize).saturating_sub(packet.0.len());
        let payload = u32::try_from(segment.payload().len() + cut).unwrap_or(u32::MAX);
        let own = segment.four_tuple();
        self.on_own(&segment, payload as usize);
        if let Some(flow) = self.flows.get_mut(&own).filter(|flow| flow.way() == Way::Down) {
            let woken = flow.deadline();
            flow.on_asked(self.now, &segment, payload);
            return self.after(own, woken);
        }
        let key = own.reversed();
        let Some(flow) = self.flows.get_mut(&key).filter(|flow| flow.way() == Way::Down) else { return };
        let woken = flow.deadline();
        flow.on_arrival(self.now, &segment, payload);
        self.after(key, woken);
        self.sign();
    }

    fn on_carrier(&mut self, link: LinkId, is_up: bool) {
        if link == self.config.primary && !self.minds_blackouts() {
            return;
        }
        if link == self.config.primary {
            let turn = self.detector.on_carrier(self.now, is_up, &mut self.outputs);
            self.turn(turn);
        } else {
            self.helpers.on_carrier(link, is_up);
        }
    }

    fn on_answer(&mut self, link: LinkId, sequence: u16) {
        if link == self.config.primary {
            let turn = self.detector.on_answer(self.now, sequence);
            self.turn(turn);
        } else {
            self.helpers.on_answer(self.now, link, sequence);
        }
    }

    /// The primary link went dark, or came back.
    fn turn(&mut self, turn: Option<Turn>) {
        let (now, primary) = (self.now, self.config.primary);
        let Some(turn) = turn else { return };
        let mut frost = if turn == Turn::Dark { self.frost() } else { None };
        let keys: Vec<Key> = self.flows.keys().copied().collect();
        for key in keys {
            let Some(flow) = self.flows.get_mut(&key) else { continue };
            let woken = flow.deadline();
            match turn {
                Turn::Dark => {
                    flow.release(now, primary, true, &mut self.outputs);
                    let at = self.outputs.len();
                    let cold = frost.filter(|frost| self.helpers.carries(frost.link, &key));
                    flow.on_dark(now, cold, &mut self.outputs);
                    frost = frost.map(|frost| self.helpers.spend(now, frost, self.outputs.range(at..)));
                }
                Turn::Light => flow.on_light(now, primary, &mut self.outputs),
            }
            self.after(key, woken);
        }
    }

    /// How senders are frozen now, if at all.
    fn frost(&self) -> Option<Frost> {
        let mechanisms = &self.config.mechanisms;
        let (link, rate) = self.helpers.freeze(self.now)?;
        let flight = mechanisms.has(Mechanism::FreezeFlight).then_some(rate);
        let is_plain = mechanisms.has(Mechanism::Freeze);
        (is_plain || flight.is_some()).then_some(Frost { link, is_plain, flight, spent: 0 })
    }

    /// Asks for sight of what passes while that is of use, and no longer.
    fn watch(&mut self) {
        let wanted =
            if self.watch_until.is_some_and(|until| self.now < until) { Sight::Heads } else { Sight::None };
        let sight = self.mirrored.values().map(|(_, sight)| *sight).fold(wanted, Sight::max);
        if sight != self.sight {
            self.sight = sight;
            self.outputs.push_back(Output::Watch(sight));
        }
        if wanted == Sight::None {
            self.watch_until = None;
        }
    }

    /// Whether this flow is known, or there is a place among so many; those that rest make place, once a second.
    fn has_room(&mut self, key: &Key, places: usize) -> bool {
        if self.flows.len() >= places && self.now.since(self.swept) >= SECOND && !self.flows.contains_key(key) {
            self.sweep(CROWDED);
        }
        self.flows.len() < places || self.flows.contains_key(key)
    }

    /// The own stack's SYN begins another connection between the same ports, unless it is said again. One that comes may be late,
    /// or forged.
    fn renew(&mut self, key: &Key) {
        for key in [*key, key.reversed()] {
            if self.flows.get(&key).is_some_and(Flow::has_begun) {
                self.forget(&key);
            }
        }
    }

    fn rearm(&mut self, key: Key, woken: Option<Instant>) {
        let wanted = self.flows.get(&key).and_then(Flow::deadline);
        if wanted != woken {
            if let Some(at) = woken {
                self.wakes.remove(&(at, key));
            }
            if let Some(at) = wanted {
                self.wakes.insert((at, key));
            }
        }
    }

    fn forget(&mut self, key: &Key) {
        if let Some(flow) = self.flows.remove(key) {
            if let Some(at) = flow.deadline() {
                self.wakes.remove(&(at, *key));
            }
            if let Some(number) = flow.hiding().map(Hiding::number) {
                self.mirrored.remove(&number);
                self.fetcher.forget(number);
                self.replays.forget(number);
            }
            self.helpers.withdraw(key);
        }
    }

    /// Flows that have been silent for so long, and miss nothing, are forgotten; one that goes on is known again.
    fn sweep(&mut self, silent: Duration) {
        self.swept = self.now;
        let now = self.now;
        let is_old = |flow: &&Flow| {
            let time = now.since(flow.heard());
            time >= FORGOTTEN || (time >= silent && !flow.hiding().is_some_and(Hiding::is_busy))
        };
        let old: Vec<Key> = self.flows.values().filter(is_old).map(Flow::key).collect();
        for key in old {
            self.forget(&key);
        }
    }

    fn on_time(&mut self) {
        let (now, primary) = (self.now, self.config.primary);
        while let Some((at, key)) = self.wakes.first().copied().filter(|(at, _)| *at <= now) {
            self.wakes.remove(&(at, key));
            if let Some(flow) = self.flows.get_mut(&key) {
                flow.tick(now, primary, &self.config.mechanisms, &mut self.outputs);
                self.after(key, None);
            }
        }
        let turn = self.detector.tick(now, &mut self.outputs);
        self.turn(turn);
        self.replays.tick(now);
        self.helpers.tick(now, primary, &mut self.outputs);
        self.fetch();
        self.watch();
        if now.since(self.swept) >= SWEEP {
            self.sweep(FORGOTTEN);
        }
    }

    fn advance(&mut self, now: Instant) {
        self.now = self.now.max(now);
    }
}

impl Machine for Accelerator {
    type Input = Input;
    type Output = Output;
    type Reason = Wake;

    fn handle(&mut self, now: Instant, input: Input) {
        self.advance(now);
        match input {
            Input::Leaving(packet) => self.on_leaving(packet),
            Input::Arriving(packet) => self.on_arriving(packet),
            Input::Seen { packet, length } => self.on_seen(&packet, length),
            Input::Counted { link, packets } if link == self.config.primary => {
                let turn = self.detector.on_count(self.now, packets, &mut self.outputs);
                self.turn(turn);
            }
            Input::Answered { link, sequence } => self.on_answer(link, sequence),
            Input::Carrier { link, is_up } => self.on_carrier(link, is_up),
            Input::Fetched { fetch, range, bytes } => self.on_fetched(fetch, range, bytes),
            Input::Called { call, local, number } => self.replays.on_called(self.now, call, local, number),
            Input::Heard { call, packet } => self.on_heard(call, &packet),
            Input::Counted { .. } => {}
        }
        self.settle();
    }

    fn tick(&mut self, now: Instant) {
        self.advance(now);
        self.on_time();
        self.settle();
    }

    fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    fn deadline(&self) -> Option<(Instant, Wake)> {
        let flow = self.wakes.first().map(|(at, _)| (*at, Wake::Flow));
        let detector = self.detector.deadline().map(|at| (at, Wake::Link));
        let question = self.helpers.next_question().map(|at| (at, Wake::Link));
        let room = self.helpers.next_room(self.now).map(|at| (at, Wake::Room));
        let watch = self.watch_until.filter(|_| self.sight != Sight::None).map(|at| (at, Wake::Watch));
        let fetch = self.fetcher.deadline().map(|at| (at, Wake::Fetch));
        let replay = self.replays.deadline().map(|at| (at, Wake::Fetch));
        [flow, detector, question, room, watch, fetch, replay].into_iter().flatten().min_by_key(|(at, _)| *at)
    }
}

/// What has to know whether the primary link is dark.
const BLACKOUTS: [Mechanism; 4] =
    [Mechanism::Reserve, Mechanism::Revert, Mechanism::Freeze, Mechanism::FreezeFlight];
/// chosen: 10 MB of memory; flows beyond that leave as they came.
const FLOWS: usize = 10_000;
/// chosen: the servers that a host talks to within some minutes; the one that was silent for longest is forgotten.
const PATHS: usize = 256;
/// chosen: more than a request with all its cookies.
const UPLOAD: DataSize = DataSize::from_kib(64);
const SWEEP: Duration = Duration::from_secs(60);
const SECOND: Duration = Duration::from_secs(1);
/// chosen: where there is no place for another flow, those that move go on.
const CROWDED: Duration = Duration::from_secs(10);
/// chosen: what comes after that begins anew, and is learned in a round trip.
const FORGOTTEN: Duration = Duration::from_secs(300);
