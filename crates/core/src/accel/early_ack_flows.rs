//! Admission of flows to early ACK, and the one fetcher that serves all of them.
//!
//! 1. A flow to the port of HTTPS is not followed. Any other is, until its first bytes show what it is.
//! 2. At most [`MAX_FLOWS`] flows are followed at a time. A flow that has received all that it requested, or cannot be
//!    followed, is removed; an idle one when another flow needs its slot. Later flows use the other mechanisms.
//! 3. The gateway of a secondary link is probed only while something is wanted over it.

use alloc::vec::Vec;
use core::net::SocketAddr;

use super::early_ack::flow_state::EarlyAckFlow;
use super::flow::FlowState;
use super::secondary::link::LinkInfo;
use super::{
    Accelerator, AddressFamilies, CaptureLevel, ConnId, FetchId, FlowStatus, InactiveReason, Key, Mechanism,
    MirroredConnStatus, NotFetchable, Output, PacketBytes, PendingRepair,
};
use crate::units::{Duration, Instant};
use crate::wire::packet::{Checksum, Segment};

impl Accelerator {
    /// A new flow may be plain HTTP: it is followed until that is known.
    pub(super) fn admit(&mut self, key: Key) {
        if !self.config.mechanisms.iter().any(Mechanism::acknowledges_early) || key.destination_port == HTTPS {
            return;
        }
        if !self.flows.get(&key).is_some_and(|flow| flow.early_ack_flow().is_none() && !flow.is_multipath()) {
            return;
        }
        let has_capacity = self.early_ack_flows.len() < MAX_FLOWS || self.evict_idle();
        if let Some(flow) = self.flows.get_mut(&key) {
            let old_deadline = flow.deadline();
            self.last_flow_id += 1;
            let early_ack = flow.early_ack_mut().follow(self.now, self.last_flow_id, key);
            if has_capacity {
                self.early_ack_flows.insert(self.last_flow_id, (key, CaptureLevel::Full));
            } else {
                early_ack.close(NotFetchable::TooManyFlows);
            }
            self.finish_flow_update(key, old_deadline);
        }
        self.update_capture();
    }

    /// Evicts the flow that has been idle for longest, if for long enough. Returns whether there was one.
    fn evict_idle(&mut self) -> bool {
        let rests = |flow: &&FlowState| {
            let is_idle = flow.early_ack_flow().is_some_and(|early_ack| !early_ack.has_open_holes());
            is_idle && self.now.since(flow.last_packet()) >= MIN_IDLE
        };
        let flows = self.early_ack_flows.values().filter_map(|(key, _)| self.flows.get(key));
        let Some(key) = flows.filter(rests).min_by_key(|flow| flow.last_packet()).map(FlowState::key) else {
            return false;
        };
        self.remove(&key, NotFetchable::TooManyFlows);
        true
    }

    /// Nothing of this flow is acknowledged early any more.
    fn remove(&mut self, key: &Key, why: NotFetchable) {
        let Some(early_ack) = self.flows.get_mut(key).and_then(|flow| flow.early_ack_mut().flow.as_mut()) else {
            return;
        };
        early_ack.close(why);
        let number = early_ack.id();
        self.early_ack_flows.remove(&number);
        self.fetcher.forget(number);
        self.mirrored_conns.close_conn(number);
        self.update_capture();
    }

    /// The common end of everything that concerned a flow: fetch requests, mirrored connection, capture level, timer.
    /// `old_deadline`: the deadline of the flow before.
    pub(super) fn finish_flow_update(&mut self, key: Key, old_deadline: Option<Instant>) {
        let (now, mut is_wanted) = (self.now, false);
        if let Some(flow) = self.flows.get_mut(&key).filter(|flow| flow.early_ack_flow().is_some()) {
            let requests = flow.early_ack_mut().take_fetch_requests(now, &mut self.outputs);
            let is_fast_fetch = self.config.mechanisms.has(Mechanism::FastFetch);
            if let Some(early_ack) = flow.early_ack_flow().filter(|_| is_fast_fetch) {
                match early_ack.position() {
                    Some((source, server)) => {
                        let link = self.secondary.mirrored_conn_link(now);
                        if self.mirrored_conns.follow(now, early_ack.id(), &source, server, link) {
                            self.secondary.on_fetch_wanted(now);
                        }
                    }
                    None => self.mirrored_conns.close_conn(early_ack.id()),
                }
            }
            for request in requests {
                // The comparison must not use the connection that it is to verify.
                let is_check = flow.early_ack_flow().is_some_and(|early_ack| early_ack.is_check_request(&request));
                let left = if is_check { Err(request) } else { self.mirrored_conns.request(now, request) };
                if let Err(request) = left {
                    self.fetcher.request(now, request);
                    is_wanted = true;
                }
            }
            if let Some(early_ack) = flow.early_ack_flow()
                && let Some((_, level)) = self.early_ack_flows.get_mut(&early_ack.id())
                && *level != early_ack.capture_level()
            {
                *level = early_ack.capture_level();
                self.update_capture();
            }
            let early_ack = self
                .flows
                .get(&key)
                .and_then(FlowState::early_ack_flow)
                .filter(|early_ack| early_ack.is_finished());
            if early_ack.is_some_and(|early_ack| self.early_ack_flows.contains_key(&early_ack.id())) {
                self.remove(&key, NotFetchable::Finished);
            }
        }
        self.rearm(key, old_deadline);
        if is_wanted {
            self.secondary.on_fetch_wanted(now);
            self.run_fetcher();
        }
    }

    /// How many more bytes may be missing; without range requests, as many as the flow's mirrored connection accepts.
    pub(super) fn early_ack_budget(&self, key: &Key) -> u64 {
        let server = SocketAddr::new(key.addrs.destination(), key.destination_port);
        let budget = self.fetcher.budget(server).saturating_sub(self.mirrored_conns.waiting_bytes());
        let of_conn = |early_ack: &EarlyAckFlow| self.mirrored_conns.budget(early_ack.id());
        if self.config.mechanisms.has(Mechanism::EarlyAck) || !self.config.mechanisms.has(Mechanism::FastFetch) {
            return budget;
        }
        budget.min(self.flows.get(key).and_then(FlowState::early_ack_flow).map_or(0, of_conn))
    }

    /// The status of a flow, with its mirrored connection.
    pub(super) fn with_mirrored_conn(&self, flow: &FlowState, view: FlowStatus) -> FlowStatus {
        let conn = flow.early_ack_flow().and_then(|early_ack| self.mirrored_conns.status(early_ack.id()));
        let FlowStatus { mut active, mut inactive, .. } = view;
        let mechanism = Mechanism::FastFetch;
        let is_refused = inactive.iter().any(|one| one.mechanism == mechanism);
        match &conn {
            Some(conn) if conn.is_open && !is_refused => active.push(mechanism),
            Some(MirroredConnStatus { failure: Some(why), .. }) => {
                inactive.push(InactiveReason { mechanism, reason: why.clone() });
            }
            _ => {}
        }
        FlowStatus { mirrored_conn: conn, active, inactive, ..view }
    }

    /// Changes whenever [`pending_repairs`](Self::pending_repairs) does, and is cheap.
    pub fn pending_fingerprint(&self) -> (u64, u64) {
        let sum = |(total, missing): (u64, u64), early_ack: &EarlyAckFlow| {
            let (early_acked, open) = early_ack.pending_fingerprint();
            (total.wrapping_add(early_acked), missing.wrapping_add(open))
        };
        self.followed_flows().fold((0, 0), sum)
    }

    /// What has to be repaired if this process ends now.
    pub fn pending_repairs(&self) -> Vec<PendingRepair> {
        self.followed_flows().filter_map(EarlyAckFlow::pending_repair).collect()
    }

    fn followed_flows(&self) -> impl Iterator<Item = &EarlyAckFlow> {
        let flow = |(key, _): &(Key, CaptureLevel)| self.flows.get(key);
        self.early_ack_flows.values().filter_map(flow).filter_map(FlowState::early_ack_flow)
    }

    /// Requests missing bytes that are due.
    pub(super) fn run_fetcher(&mut self) {
        let mut links: Vec<LinkInfo> = self.secondary.fetch_links(self.now).collect();
        let (link, is_down) = (self.config.primary, self.detector.is_down());
        links.push(LinkInfo {
            link,
            is_primary: true,
            is_down,
            receive_rate: None,
            rtt: self.detector.rtt(),
            families: AddressFamilies::Both,
        });
        self.fetcher.set_links(&links);
        let (flows, flow_ids) = (&self.flows, &self.early_ack_flows);
        self.fetcher.tick(self.now, |number, range| {
            let flow = flow_ids.get(&number).and_then(|(key, _)| flows.get(key));
            flow.and_then(FlowState::early_ack_flow).map(|early_ack| early_ack.missing(range)).unwrap_or_default()
        });
        self.outputs.extend(self.fetcher.take_outputs());
    }

    /// Executes what mirrored connections have to send, and hands on what they received.
    pub(super) fn drain_mirrored_conns(&mut self) {
        loop {
            let (outputs, fetched, back) = self.mirrored_conns.drain();
            for output in outputs {
                if let Output::Send { link, packet } = &output {
                    self.secondary.on_sent(self.now, *link, packet.0.len());
                }
                self.outputs.push_back(output);
            }
            if fetched.is_empty() && back.is_empty() {
                return;
            }
            for request in back {
                self.fetcher.request(self.now, request);
            }
            for fetched in fetched {
                let Some((key, _)) = self.early_ack_flows.get(&fetched.flow).copied() else { continue };
                if let Some(flow) = self.flows.get_mut(&key) {
                    let old_deadline = flow.deadline();
                    flow.early_ack_mut().on_fetched(self.now, fetched, &mut self.outputs);
                    self.finish_flow_update(key, old_deadline);
                }
            }
            self.run_fetcher();
        }
    }

    /// A packet for a mirrored connection.
    pub(super) fn on_conn_packet(&mut self, conn: ConnId, packet: &PacketBytes) {
        let Ok(segment) = Segment::parse(&packet.0) else { return };
        // The kernel has not checked this packet, and its content is injected into the local stack with a new checksum.
        if segment.packet().checksum() == Checksum::Invalid || !segment.packet().has_valid_header_checksum() {
            return;
        }
        if let Some(link) = self.mirrored_conns.on_packet(self.now, conn, &segment) {
            self.secondary.on_traffic(self.now, link);
        }
    }

    pub(super) fn on_fetched(&mut self, fetch: FetchId, range: u32, bytes: Option<PacketBytes>) {
        let fetched = self.fetcher.fetched(self.now, fetch, range, bytes.map(|bytes| bytes.0));
        let key = fetched.as_ref().and_then(|fetched| self.early_ack_flows.get(&fetched.flow)).map(|(key, _)| *key);
        if let (Some(fetched), Some(key)) = (fetched, key)
            && let Some(flow) = self.flows.get_mut(&key)
        {
            let old_deadline = flow.deadline();
            flow.early_ack_mut().on_fetched(self.now, fetched, &mut self.outputs);
            self.finish_flow_update(key, old_deadline);
        }
        self.run_fetcher();
    }
}

/// IANA's port number.
const HTTPS: u16 = 443;
/// Our choice: more downloads than one host runs; each keeps some tens of kilobytes at the most.
const MAX_FLOWS: usize = 64;
/// A flow that was idle for less is not evicted for another: the pause between two requests of a program that continues.
const MIN_IDLE: Duration = Duration::from_secs(10);
