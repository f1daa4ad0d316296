//! The accelerator's part in hiding: which flows are mirrored, and the one fetcher that serves all of them.
//!
//! In: new flows, what they miss, what was fetched. Out: questions for ranges, bytes to the flow that misses them.
//!
//! 1. A flow to the port of HTTPS is not looked at. Any other is, until its first bytes say what it is.
//! 2. At most [`MIRRORED`] flows have a mirror at the same time. One that has all that it has asked for, or cannot be followed,
//!    gives its place back; one that rests, when another one needs it. Later ones are helped otherwise.
//! 3. Nothing is asked of the helping link's gateway but while something is wanted over it.

use alloc::vec::Vec;
use core::net::SocketAddr;

use super::fetch::Road;
use super::flow_state::Hiding;
use crate::accel::flow::Flow;
use crate::accel::{
    Accelerator, Bytes, CallId, Excuse, Families, FetchId, FlowView, Key, Mechanism, Output, Refusal, ReplayView,
    Sight,
};
use crate::units::{Duration, Instant};
use crate::wire::packet::{Checksum, Segment};

impl Accelerator {
    /// A new flow may be plain HTTP: it is looked at until that is known.
    pub(in crate::accel) fn mirror(&mut self, key: Key) {
        if !self.config.mechanisms.acknowledge_ahead() || key.destination_port == HTTPS {
            return;
        }
        if !self.flows.get(&key).is_some_and(|flow| flow.hiding().is_none() && !flow.is_multipath()) {
            return;
        }
        let has_place = self.mirrored.len() < MIRRORED || self.make_place();
        if let Some(flow) = self.flows.get_mut(&key) {
            let woken = flow.deadline();
            self.numbers += 1;
            let hiding = flow.mirror(self.now, self.numbers);
            if has_place {
                self.mirrored.insert(self.numbers, (key, Sight::Whole));
            } else {
                hiding.close(Refusal::Crowded);
            }
            self.after(key, woken);
        }
        self.watch();
    }

    /// Takes the place of the mirrored flow that has been silent for longest, if for long enough; whether there was one.
    fn make_place(&mut self) -> bool {
        let rests = |flow: &&Flow| {
            let is_idle = flow.hiding().is_some_and(|hiding| !hiding.is_busy());
            is_idle && self.now.since(flow.heard()) >= RESTS
        };
        let flows = self.mirrored.values().filter_map(|(key, _)| self.flows.get(key));
        let Some(key) = flows.filter(rests).min_by_key(|flow| flow.heard()).map(Flow::key) else { return false };
        self.unmirror(&key, Refusal::Crowded);
        true
    }

    /// Nothing of this flow is hidden any more.
    fn unmirror(&mut self, key: &Key, why: Refusal) {
        let Some(hiding) = self.flows.get_mut(key).and_then(Flow::hiding_mut) else { return };
        hiding.close(why);
        let number = hiding.number();
        self.mirrored.remove(&number);
        self.fetcher.forget(number);
        self.replays.rest(number);
        self.watch();
    }

    /// What is left to do for a flow after anything that concerned it. `woken`: when it wanted to be woken before.
    pub(in crate::accel) fn after(&mut self, key: Key, woken: Option<Instant>) {
        let (now, mut is_wanted) = (self.now, false);
        if let Some(flow) = self.flows.get_mut(&key).filter(|flow| flow.hiding().is_some()) {
            let wants = flow.wants(now, &mut self.outputs);
            let replays = self.config.mechanisms.has(Mechanism::FastFetch);
            if let Some(hiding) = flow.hiding().filter(|_| replays) {
                match hiding.here() {
                    Some((place, server)) => {
                        let over = self.helpers.replay(now);
                        if self.replays.follow(now, hiding.number(), &place, server, over) {
                            self.helpers.want(now);
                        }
                    }
                    None => self.replays.rest(hiding.number()),
                }
            }
            for want in wants {
                // What is compared must not come of the same connection that it is to prove.
                let is_check = flow.hiding().is_some_and(|hiding| hiding.is_check(&want));
                let left = if is_check { Err(want) } else { self.replays.want(now, want) };
                if let Err(want) = left {
                    self.fetcher.want(now, want);
                    is_wanted = true;
                }
            }
            if let Some(hiding) = flow.hiding()
                && let Some((_, sight)) = self.mirrored.get_mut(&hiding.number())
                && *sight != hiding.sight()
            {
                *sight = hiding.sight();
                self.watch();
            }
            let hiding = self.flows.get(&key).and_then(Flow::hiding).filter(|hiding| hiding.is_over());
            if hiding.is_some_and(|hiding| self.mirrored.contains_key(&hiding.number())) {
                self.unmirror(&key, Refusal::Over);
            }
        }
        self.rearm(key, woken);
        if is_wanted {
            self.helpers.want(now);
            self.fetch();
        }
    }

    /// How many bytes more may be missing; where ranges are not asked for, as many as the flow's replayed connection takes.
    pub(in crate::accel) fn room(&self, key: &Key) -> u64 {
        let server = SocketAddr::new(key.addrs.destination(), key.destination_port);
        let room = self.fetcher.room(server).saturating_sub(self.replays.waiting());
        let of_replay = |hiding: &Hiding| self.replays.room(hiding.number());
        if self.config.mechanisms.has(Mechanism::Hide) || !self.config.mechanisms.has(Mechanism::FastFetch) {
            return room;
        }
        room.min(self.flows.get(key).and_then(Flow::hiding).map_or(0, of_replay))
    }

    /// What is told of a flow, with its replayed connection.
    pub(in crate::accel) fn replayed(&self, flow: &Flow, view: FlowView) -> FlowView {
        let replay = flow.hiding().and_then(|hiding| self.replays.view(hiding.number()));
        let FlowView { mut in_force, mut not_in_force, .. } = view;
        let mechanism = Mechanism::FastFetch;
        let is_refused = not_in_force.iter().any(|excuse| excuse.mechanism == mechanism);
        match &replay {
            Some(replay) if replay.is_on && !is_refused => in_force.push(mechanism),
            Some(ReplayView { failure: Some(why), .. }) => {
                not_in_force.push(Excuse { mechanism, why: why.clone() });
            }
            _ => {}
        }
        FlowView { replay, in_force, not_in_force, ..view }
    }

    /// Asks for missing bytes that are due.
    pub(in crate::accel) fn fetch(&mut self) {
        let mut roads: Vec<Road> = self.helpers.roads(self.now).collect();
        let (link, is_dark) = (self.config.primary, self.detector.is_dark());
        roads.push(Road {
            link,
            is_primary: true,
            is_dark,
            down: None,
            rtt: self.detector.rtt(),
            families: Families::Both,
        });
        self.fetcher.set_roads(&roads);
        let (flows, mirrored) = (&self.flows, &self.mirrored);
        self.fetcher.tick(self.now, |number, stretch| {
            let flow = mirrored.get(&number).and_then(|(key, _)| flows.get(key));
            flow.and_then(Flow::hiding).map(|hiding| hiding.missing(stretch)).unwrap_or_default()
        });
        self.outputs.extend(self.fetcher.outputs());
    }

    /// Does what replayed connections ask for, and hands on what they brought.
    pub(in crate::accel) fn settle(&mut self) {
        loop {
            let (outputs, got, back) = self.replays.drain();
            for output in outputs {
                if let Output::Send { link, packet } = &output {
                    self.helpers.on_sent(self.now, *link, packet.0.len());
                }
                self.outputs.push_back(output);
            }
            if got.is_empty() && back.is_empty() {
                return;
            }
            for want in back {
                self.fetcher.want(self.now, want);
            }
            for got in got {
                let Some((key, _)) = self.mirrored.get(&got.flow).copied() else { continue };
                if let Some(flow) = self.flows.get_mut(&key) {
                    let woken = flow.deadline();
                    flow.on_fetched(self.now, got, &mut self.outputs);
                    self.after(key, woken);
                }
            }
            self.fetch();
        }
    }

    /// A packet for a replayed connection.
    pub(in crate::accel) fn on_heard(&mut self, call: CallId, packet: &Bytes) {
        let Ok(segment) = Segment::parse(&packet.0) else { return };
        // Nobody else has looked at it, and what it brings is given to the own stack with a new checksum.
        if segment.packet().checksum() == Checksum::Invalid || !segment.packet().has_valid_header_checksum() {
            return;
        }
        if let Some(link) = self.replays.on_packet(self.now, call, &segment) {
            self.helpers.on_traffic(self.now, link);
        }
    }

    pub(in crate::accel) fn on_fetched(&mut self, fetch: FetchId, range: u32, bytes: Option<Bytes>) {
        let got = self.fetcher.fetched(self.now, fetch, range, bytes.map(|bytes| bytes.0));
        let key = got.as_ref().and_then(|got| self.mirrored.get(&got.flow)).map(|(key, _)| *key);
        if let (Some(got), Some(key)) = (got, key)
            && let Some(flow) = self.flows.get_mut(&key)
        {
            let woken = flow.deadline();
            flow.on_fetched(self.now, got, &mut self.outputs);
            self.after(key, woken);
        }
        self.fetch();
    }
}

/// IANA's.
const HTTPS: u16 = 443;
/// chosen: more downloads than one host runs; each keeps some tens of kilobytes at the most.
const MIRRORED: usize = 64;
/// chosen: between two requests of a program that goes on.
const RESTS: Duration = Duration::from_secs(10);
