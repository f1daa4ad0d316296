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

use super::fetch::LinkInfo;
use super::flow_state::EarlyAckFlow;
use crate::accel::flow::FlowState;
use crate::accel::{
    Accelerator, AddressFamilies, CaptureLevel, ConnId, FetchId, FlowStatus, InactiveReason, Key, Mechanism,
    MirroredConnStatus, NotFetchable, Output, PacketBytes,
};
use crate::units::{Duration, Instant};
use crate::wire::packet::{Checksum, Segment};

impl Accelerator {
    /// A new flow may be plain HTTP: it is looked at until that is known.
    pub(in crate::accel) fn admit(&mut self, key: Key) {
        if !self.config.mechanisms.acknowledge_early() || key.destination_port == HTTPS {
            return;
        }
        if !self.flows.get(&key).is_some_and(|flow| flow.early_ack().is_none() && !flow.is_multipath()) {
            return;
        }
        let has_place = self.early_ack_flows.len() < MAX_FLOWS || self.evict_idle();
        if let Some(flow) = self.flows.get_mut(&key) {
            let woken = flow.deadline();
            self.last_flow_id += 1;
            let hiding = flow.start_early_ack(self.now, self.last_flow_id);
            if has_place {
                self.early_ack_flows.insert(self.last_flow_id, (key, CaptureLevel::Full));
            } else {
                hiding.close(NotFetchable::TooManyFlows);
            }
            self.finish_flow_update(key, woken);
        }
        self.update_capture();
    }

    /// Takes the place of the mirrored flow that has been silent for longest, if for long enough; whether there was one.
    fn evict_idle(&mut self) -> bool {
        let rests = |flow: &&FlowState| {
            let is_idle = flow.early_ack().is_some_and(|hiding| !hiding.has_open_holes());
            is_idle && self.now.since(flow.last_packet()) >= MIN_IDLE
        };
        let flows = self.early_ack_flows.values().filter_map(|(key, _)| self.flows.get(key));
        let Some(key) = flows.filter(rests).min_by_key(|flow| flow.last_packet()).map(FlowState::key) else {
            return false;
        };
        self.remove(&key, NotFetchable::TooManyFlows);
        true
    }

    /// Nothing of this flow is hidden any more.
    fn remove(&mut self, key: &Key, why: NotFetchable) {
        let Some(hiding) = self.flows.get_mut(key).and_then(FlowState::early_ack_mut) else { return };
        hiding.close(why);
        let number = hiding.id();
        self.early_ack_flows.remove(&number);
        self.fetcher.forget(number);
        self.mirrored_conns.close_conn(number);
        self.update_capture();
    }

    /// What is left to do for a flow after anything that concerned it. `woken`: when it wanted to be woken before.
    pub(in crate::accel) fn finish_flow_update(&mut self, key: Key, woken: Option<Instant>) {
        let (now, mut is_wanted) = (self.now, false);
        if let Some(flow) = self.flows.get_mut(&key).filter(|flow| flow.early_ack().is_some()) {
            let wants = flow.take_fetch_requests(now, &mut self.outputs);
            let replays = self.config.mechanisms.has(Mechanism::FastFetch);
            if let Some(hiding) = flow.early_ack().filter(|_| replays) {
                match hiding.position() {
                    Some((place, server)) => {
                        let over = self.secondary.mirrored_conn_link(now);
                        if self.mirrored_conns.follow(now, hiding.id(), &place, server, over) {
                            self.secondary.on_fetch_wanted(now);
                        }
                    }
                    None => self.mirrored_conns.close_conn(hiding.id()),
                }
            }
            for want in wants {
                // What is compared must not come of the same connection that it is to prove.
                let is_check = flow.early_ack().is_some_and(|hiding| hiding.is_check_request(&want));
                let left = if is_check { Err(want) } else { self.mirrored_conns.request(now, want) };
                if let Err(want) = left {
                    self.fetcher.request(now, want);
                    is_wanted = true;
                }
            }
            if let Some(hiding) = flow.early_ack()
                && let Some((_, sight)) = self.early_ack_flows.get_mut(&hiding.id())
                && *sight != hiding.capture_level()
            {
                *sight = hiding.capture_level();
                self.update_capture();
            }
            let hiding = self.flows.get(&key).and_then(FlowState::early_ack).filter(|hiding| hiding.is_finished());
            if hiding.is_some_and(|hiding| self.early_ack_flows.contains_key(&hiding.id())) {
                self.remove(&key, NotFetchable::Finished);
            }
        }
        self.rearm(key, woken);
        if is_wanted {
            self.secondary.on_fetch_wanted(now);
            self.run_fetcher();
        }
    }

    /// How many bytes more may be missing; where ranges are not asked for, as many as the flow's replayed connection takes.
    pub(in crate::accel) fn early_ack_budget(&self, key: &Key) -> u64 {
        let server = SocketAddr::new(key.addrs.destination(), key.destination_port);
        let room = self.fetcher.budget(server).saturating_sub(self.mirrored_conns.waiting_bytes());
        let of_replay = |hiding: &EarlyAckFlow| self.mirrored_conns.budget(hiding.id());
        if self.config.mechanisms.has(Mechanism::EarlyAck) || !self.config.mechanisms.has(Mechanism::FastFetch) {
            return room;
        }
        room.min(self.flows.get(key).and_then(FlowState::early_ack).map_or(0, of_replay))
    }

    /// What is told of a flow, with its replayed connection.
    pub(in crate::accel) fn with_mirrored_conn(&self, flow: &FlowState, view: FlowStatus) -> FlowStatus {
        let replay = flow.early_ack().and_then(|hiding| self.mirrored_conns.status(hiding.id()));
        let FlowStatus { active: mut in_force, inactive: mut not_in_force, .. } = view;
        let mechanism = Mechanism::FastFetch;
        let is_refused = not_in_force.iter().any(|excuse| excuse.mechanism == mechanism);
        match &replay {
            Some(replay) if replay.is_open && !is_refused => in_force.push(mechanism),
            Some(MirroredConnStatus { failure: Some(why), .. }) => {
                not_in_force.push(InactiveReason { mechanism, reason: why.clone() });
            }
            _ => {}
        }
        FlowStatus { mirrored_conn: replay, active: in_force, inactive: not_in_force, ..view }
    }

    /// Asks for missing bytes that are due.
    pub(in crate::accel) fn run_fetcher(&mut self) {
        let mut roads: Vec<LinkInfo> = self.secondary.fetch_links(self.now).collect();
        let (link, is_dark) = (self.config.primary, self.detector.is_down());
        roads.push(LinkInfo {
            link,
            is_primary: true,
            is_down: is_dark,
            receive_rate: None,
            rtt: self.detector.rtt(),
            families: AddressFamilies::Both,
        });
        self.fetcher.set_links(&roads);
        let (flows, mirrored) = (&self.flows, &self.early_ack_flows);
        self.fetcher.tick(self.now, |number, stretch| {
            let flow = mirrored.get(&number).and_then(|(key, _)| flows.get(key));
            flow.and_then(FlowState::early_ack).map(|hiding| hiding.missing(stretch)).unwrap_or_default()
        });
        self.outputs.extend(self.fetcher.take_outputs());
    }

    /// Does what replayed connections ask for, and hands on what they brought.
    pub(in crate::accel) fn drain_mirrored_conns(&mut self) {
        loop {
            let (outputs, got, back) = self.mirrored_conns.drain();
            for output in outputs {
                if let Output::Send { link, packet } = &output {
                    self.secondary.on_sent(self.now, *link, packet.0.len());
                }
                self.outputs.push_back(output);
            }
            if got.is_empty() && back.is_empty() {
                return;
            }
            for want in back {
                self.fetcher.request(self.now, want);
            }
            for got in got {
                let Some((key, _)) = self.early_ack_flows.get(&got.flow).copied() else { continue };
                if let Some(flow) = self.flows.get_mut(&key) {
                    let woken = flow.deadline();
                    flow.on_fetched(self.now, got, &mut self.outputs);
                    self.finish_flow_update(key, woken);
                }
            }
            self.run_fetcher();
        }
    }

    /// A packet for a replayed connection.
    pub(in crate::accel) fn on_conn_packet(&mut self, call: ConnId, packet: &PacketBytes) {
        let Ok(segment) = Segment::parse(&packet.0) else { return };
        // Nobody else has looked at it, and what it brings is given to the own stack with a new checksum.
        if segment.packet().checksum() == Checksum::Invalid || !segment.packet().has_valid_header_checksum() {
            return;
        }
        if let Some(link) = self.mirrored_conns.on_packet(self.now, call, &segment) {
            self.secondary.on_traffic(self.now, link);
        }
    }

    pub(in crate::accel) fn on_fetched(&mut self, fetch: FetchId, range: u32, bytes: Option<PacketBytes>) {
        let got = self.fetcher.fetched(self.now, fetch, range, bytes.map(|bytes| bytes.0));
        let key = got.as_ref().and_then(|got| self.early_ack_flows.get(&got.flow)).map(|(key, _)| *key);
        if let (Some(got), Some(key)) = (got, key)
            && let Some(flow) = self.flows.get_mut(&key)
        {
            let woken = flow.deadline();
            flow.on_fetched(self.now, got, &mut self.outputs);
            self.finish_flow_update(key, woken);
        }
        self.run_fetcher();
    }
}

/// IANA's.
const HTTPS: u16 = 443;
/// chosen: more downloads than one host runs; each keeps some tens of kilobytes at the most.
const MAX_FLOWS: usize = 64;
/// chosen: between two requests of a program that goes on.
const MIN_IDLE: Duration = Duration::from_secs(10);
