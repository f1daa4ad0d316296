//! Early ACK of one flow: its HTTP map and its engine together, and what is injected into the local stack.
//!
//! 1. Fetched bytes are injected as segments of the sender would be: with a timestamp from when the hole showed, so
//!    that neither they nor the data in flight is discarded as old (PAWS, RFC 7323 section 5), never older than that of
//!    an earlier injected segment; and with what the sender has acknowledged itself, so that nothing of the local stack
//!    counts as arrived that may still be lost.
//! 2. Injected bytes are kept until they are acknowledged, and injected again while the local stack waits for them: it
//!    may have dropped them.
//! 3. When an outage ends in which the sender was frozen, everything that was in flight is acknowledged by a sweep of
//!    ACKs with the timestamp from before, from which the sender concludes that nothing was lost (RFC 3522). Behind the
//!    sweep goes an ACK with an old number, which TCP answers with its position (RFC 9293 section 3.10.7.4): so the end
//!    of the hole becomes known even if nothing more is to come.
//! 4. A hole that is not filled ends the connection ([`super::engine`]) towards the application, which gets an error.
//!    Not while the link is down: TCP would outlast that as well.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::ops::RangeInclusive;

use super::engine::{AckAction, EarlyAckEngine, EarlyAckPolicy};
use super::fetch::FetchRequest;
use super::http_head::NotFetchable;
use super::http_map::{HttpMap, ObservedSegment, ResourceOffset};
use super::peer_state::PeerState;
use super::pending::{self, INJECT_INTERVAL, MAX_PAYLOAD, PendingHole, PendingRepair};
use crate::accel::CaptureLevel;
use crate::accel::early_ack::options::EarlyAckOptions;
use crate::accel::seq_space::{PosRange, seq_of};
use crate::accel::zero_window::SegmentSize;
use crate::units::{Duration, Instant};
use crate::wire::packet::{
    Ack, Flags, FourTuple as Key, IpParams, NewSegment, SackBlocks, Segment, Seq, TcpTimestamp, Timestamps,
};

/// Early ACK of one flow.
#[derive(Clone, Debug)]
pub(crate) struct EarlyAckFlow {
    options: &'static EarlyAckOptions,
    /// The number under which the fetcher knows the flow.
    id: u64,
    /// From this host to the sender.
    key: Key,
    opened: Instant,
    http_map: HttpMap,
    engine: Option<EarlyAckEngine>,
    /// What was fetched and injected, and is not known to have arrived.
    injected: BTreeMap<u64, InjectedRange>,
    peer: PeerState,
    segment_size: SegmentSize,
    /// The newest timestamp of injected segments and of the local stack's echoes.
    min_tsval: Option<TcpTimestamp>,
    /// When the connection was reset towards the application.
    reset_sent: Option<Instant>,
    /// When the local stack last advanced, or the link recovered.
    last_progress: Instant,
    /// The link is down: nothing can be filled.
    is_link_down: bool,
    /// The local end requests nothing more.
    has_closed: bool,
    holes: u64,
}

/// Fetched bytes that were given to the local stack at `at` and are repeated until it acknowledges them.
#[derive(Clone, Debug)]
struct InjectedRange {
    bytes: Vec<u8>,
    at: Instant,
    ts_val: Option<TcpTimestamp>,
}

/// What may be done, beside what is known here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EarlyAckLimits {
    /// Losses that show now may be acknowledged early.
    pub(crate) allows_new: bool,
    /// How many more bytes may be missing.
    pub(crate) budget: u64,
    /// The local stack's window scale, an exponent (RFC 7323).
    pub(crate) scale: u8,
}

impl EarlyAckFlow {
    /// Of a flow that may be HTTP in plain text.
    pub(crate) fn new(options: &'static EarlyAckOptions, now: Instant, number: u64, key: Key) -> Self {
        Self {
            options,
            id: number,
            key,
            opened: now,
            http_map: HttpMap::default(),
            engine: None,
            injected: BTreeMap::new(),
            peer: PeerState::default(),
            segment_size: SegmentSize::default(),
            min_tsval: None,
            reset_sent: None,
            last_progress: now,
            is_link_down: false,
            has_closed: false,
            holes: 0,
        }
    }

    /// The link is down.
    pub(crate) const fn on_outage_start(&mut self) {
        self.is_link_down = true;
    }

    /// The link has recovered.
    pub(crate) fn on_outage_end(&mut self, now: Instant) {
        self.is_link_down = false;
        self.last_progress = now;
    }

    /// When the connection is to be reset.
    fn reset_due(&self) -> Option<Instant> {
        self.engine.as_ref().filter(|_| !self.is_link_down)?.deadline(self.last_progress)
    }

    /// The number under which the fetcher knows the flow.
    pub(crate) const fn id(&self) -> u64 {
        self.id
    }

    /// A local segment passes or leaves, with `length` bytes of payload.
    pub(crate) fn on_local_segment(&mut self, segment: &Segment<'_>, length: u32) {
        if let Some(seen) = observed(segment, length) {
            let has_fin = segment.flags().contains(Flags::FIN);
            self.has_closed |= has_fin;
            self.peer.on_local_end(segment.seq().plus(length).plus(u32::from(has_fin)));
            self.http_map.on_request_segment(&seen);
        }
    }

    /// A segment of the sender passes.
    pub(crate) fn on_arrival(&mut self, now: Instant, segment: &Segment<'_>, length: u32) {
        if segment.flags().has_any(Flags::SYN | Flags::RST) {
            return;
        }
        let Some(seen) = observed(segment, length) else { return };
        if !self.peer.on_arrival(segment, seen.ack) {
            return;
        }
        self.http_map.on_response_segment(&seen);
        self.segment_size.on_arrival(length);
        let newest_tsval = self.newest_tsval();
        if let Some(engine) = &mut self.engine {
            engine.on_peer_seq(
                now,
                segment.seq(),
                &EarlyAckPolicy { http_map: &self.http_map, allows_new: false, budget: 0, newest_tsval },
            );
        }
    }

    /// An acknowledgement of the local stack leaves; `carries_data`: with data.
    pub(crate) fn on_ack_out(
        &mut self,
        now: Instant,
        ack: &Ack,
        carries_data: bool,
        allowed: &EarlyAckLimits,
    ) -> AckAction {
        if self.engine.is_none() {
            // The position in the stream is known only once a request was observed; an engine that began at an older
            // number would early-ack nothing else.
            self.engine = self.http_map.position(ack.ack).map(|at| EarlyAckEngine::new(self.options, at));
        }
        self.peer.on_local_end(ack.seq);
        if let Some(timestamps) = ack.timestamps {
            self.min_tsval = Some(later_tsval(self.min_tsval, timestamps.ts_ecr));
        }
        let newest_tsval = self.newest_tsval();
        let Some(engine) = &mut self.engine else { return AckAction::Forward };
        let (before, previous_expected) = (engine.total_bytes(), engine.next_expected());
        let policy = EarlyAckPolicy {
            http_map: &self.http_map,
            allows_new: allowed.allows_new,
            budget: allowed.budget,
            newest_tsval,
        };
        let verdict = engine.on_ack_out(now, ack, carries_data, allowed.scale, &policy);
        self.holes += u64::from(engine.total_bytes() > before);
        let next_expected = engine.next_expected();
        if next_expected > previous_expected {
            self.last_progress = now;
        }
        while let Some(first) = self.injected.first_entry() {
            if first.key() + first.get().bytes.len() as u64 > next_expected {
                break;
            }
            first.remove();
        }
        self.http_map.forget_before(next_expected);
        verdict
    }

    /// What is to be fetched now; what was fetched already is injected again instead.
    pub(crate) fn take_fetch_requests(&mut self, now: Instant, packets: &mut Vec<Vec<u8>>) -> Vec<FetchRequest> {
        let server = SocketAddr::new(self.key.addrs.destination(), self.key.destination_port);
        let flow = self.id;
        let request = |range, offset| FetchRequest { flow, range, source: offset, server };
        let mut requests: Vec<FetchRequest> =
            self.http_map.take_check().into_iter().map(|(range, offset)| request(range, offset)).collect();
        let to_fetch = self.engine.as_mut().map(EarlyAckEngine::take_to_fetch).unwrap_or_default();
        for range in to_fetch {
            let again = self
                .injected
                .iter()
                .any(|(start, injected)| PosRange::new(*start, start + injected.bytes.len() as u64).covers(&range));
            if again {
                packets.extend(self.inject(now, range));
            } else if let Some(offset) = self.http_map.locate(range) {
                requests.push(request(range, offset));
            }
        }
        requests
    }

    /// What of a requested range is still missing.
    pub(crate) fn missing(&self, range: PosRange) -> Vec<PosRange> {
        if self.http_map.is_check(range.start) {
            return alloc::vec![range];
        }
        self.engine.as_ref().map(|engine| engine.missing(range)).unwrap_or_default()
    }

    /// Whether the bytes from here on are to be compared.
    pub(crate) fn is_check(&self, start: u64) -> bool {
        self.http_map.is_check(start)
    }

    /// Bytes were fetched. Returns packets for the local stack.
    pub(crate) fn on_fetched(&mut self, now: Instant, start: u64, bytes: Vec<u8>) -> Vec<Vec<u8>> {
        if self.http_map.on_check_fetched(start, &bytes) {
            return Vec::new();
        }
        let range = PosRange::new(start, start + bytes.len() as u64);
        let missing = self.engine.as_ref().map(|engine| engine.missing(range)).unwrap_or_default();
        if missing.is_empty() {
            return Vec::new();
        }
        let ts_val = missing.first().and_then(|first| self.engine.as_ref()?.tsval_at(first.start));
        let is_longer = |old: &InjectedRange| old.bytes.len() >= bytes.len();
        if !self.injected.get(&start).is_some_and(is_longer) {
            self.injected.insert(start, InjectedRange { bytes, at: now, ts_val });
        }
        missing.into_iter().flat_map(|range| self.inject(now, range)).collect()
    }

    /// Time has passed. Returns packets for the local stack.
    pub(crate) fn tick(&mut self, now: Instant) -> Vec<Vec<u8>> {
        if now.since(self.opened) >= self.options.max_request_wait {
            self.http_map.give_up();
        }
        let Some(engine) = &self.engine else { return Vec::new() };
        if self.reset_due().is_some_and(|end| end <= now) {
            // A reset may get lost like any packet.
            if self.reset_sent.is_some_and(|over| now.since(over) < RESET_INTERVAL) {
                return Vec::new();
            }
            self.reset_sent = Some(now);
            let ack = self.peer.ack();
            let reset = NewSegment::reset(&self.key.reversed(), seq_of(engine.next_expected()), ack);
            return reset.emit().into_iter().collect();
        }
        let next_expected = engine.next_expected();
        match self.injected_at(next_expected) {
            Some((end, at)) if now.since(at) >= INJECT_INTERVAL => {
                self.inject(now, PosRange::new(next_expected, end))
            }
            _ => Vec::new(),
        }
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        let early = self.http_map.has_no_request().then(|| self.opened + self.options.max_request_wait);
        let over = self.reset_due().map(|at| self.reset_sent.map_or(at, |over| at.max(over + RESET_INTERVAL)));
        let engine = self.engine.as_ref().filter(|_| self.reset_sent.is_none());
        let again =
            engine.and_then(|engine| self.injected_at(engine.next_expected())).map(|(_, at)| at + INJECT_INTERVAL);
        [early, over, again].into_iter().flatten().min()
    }

    /// The link has recovered: ACKs of everything that may have been in flight, at most `flight` bytes, then the probe
    /// of the sender's position. None if the bytes cannot be fetched.
    pub(crate) fn unfreeze_sweep(
        &mut self,
        now: Instant,
        last: (Ack, IpParams),
        flight: u64,
        step: u32,
        scale: u8,
    ) -> Vec<Vec<u8>> {
        let acks = self.sweep(now, flight, step);
        if acks.is_empty() {
            return Vec::new();
        }
        let mut packets: Vec<Vec<u8>> =
            acks.iter().filter_map(|ack_number| self.ack_packet(last, last.0.seq, *ack_number, scale)).collect();
        packets.extend(self.probe_position(last, scale));
        packets
    }

    /// The probe of the sender's position.
    pub(crate) fn probe_position(&self, last: (Ack, IpParams), scale: u8) -> Vec<Vec<u8>> {
        let acked = self.engine.as_ref().map(|engine| seq_of(engine.acked()));
        acked.and_then(|acked| self.ack_packet(last, last.0.seq.minus(1), acked, scale)).into_iter().collect()
    }

    /// An acknowledgement of this number, with the right edge as it was advertised.
    fn ack_packet(&self, (last, envelope): (Ack, IpParams), seq: Seq, ack: Seq, scale: u8) -> Option<Vec<u8>> {
        let window = self.engine.as_ref()?.window_at(ack, scale);
        let ack = Ack { seq, ack, window, flags: Flags::ACK, sack_blocks: SackBlocks::default(), ..last };
        Some(ack.emit(&self.key, envelope))
    }

    /// The link is down: the same sweep with a zero window, of which `steps` are sent. None if the bytes cannot be
    /// fetched.
    pub(crate) fn freeze(
        &mut self,
        now: Instant,
        (last, envelope): (&Ack, IpParams),
        acks: &RangeInclusive<u64>,
        step: u32,
    ) -> Vec<Vec<u8>> {
        let sweep = self.sweep(now, acks.end().saturating_mul(step.into()), step);
        let Some(lowest) = sweep.last().copied() else { return Vec::new() };
        let is_sent = |ack_number: &&Seq| u64::from(ack_number.since(lowest) / step.max(1)) >= *acks.start();
        let with_ack = |ack| Ack { ack, window: 0, flags: Flags::ACK, sack_blocks: SackBlocks::default(), ..*last };
        sweep.iter().filter(is_sent).map(|ack_number| with_ack(*ack_number).emit(&self.key, envelope)).collect()
    }

    /// Whether it is unknown how much of a sweep was accepted, or what it acknowledged has not all arrived.
    pub(crate) fn has_open_sweep(&self) -> bool {
        self.engine.as_ref().is_some_and(|engine| engine.sweep_top().is_some())
    }

    /// Where the flow is in its resource, and its server; none: its bytes cannot be fetched.
    pub(crate) fn position(&self) -> Option<(ResourceOffset, SocketAddr)> {
        let next_expected = self.engine.as_ref().map(EarlyAckEngine::next_expected)?;
        let offset = self.http_map.locate(PosRange::new(next_expected, next_expected + 1))?;
        Some((offset, SocketAddr::new(self.key.addrs.destination(), self.key.destination_port)))
    }

    /// Whether these bytes are requested for a comparison.
    pub(crate) fn is_check_request(&self, request: &FetchRequest) -> bool {
        self.http_map.is_check(request.range.start)
    }

    /// The size of the sender's segments, as they came.
    pub(crate) const fn sender_segment_size(&self) -> Option<u32> {
        self.segment_size.known()
    }

    /// The numbers of a sweep over `flight` bytes, the highest first; one that is open already is repeated, as far as
    /// it is unknown how much of it was accepted.
    fn sweep(&mut self, now: Instant, flight: u64, step: u32) -> Vec<Seq> {
        let newest_tsval = self.newest_tsval();
        let (Some(engine), Some(end)) = (&mut self.engine, self.http_map.end()) else { return Vec::new() };
        let front = engine.acked().max(engine.next_expected());
        let top = end.min(front.saturating_add(flight));
        // Only within one body whose bytes can be fetched.
        let sweep_top = engine.sweep_top();
        let from = sweep_top.map_or(front, |standing| standing.saturating_sub(1));
        let can_refetch = top > from && self.http_map.locate(PosRange::new(from, top)).is_some();
        let Some(top) = sweep_top.filter(|_| !can_refetch).or(can_refetch.then_some(top)) else {
            return Vec::new();
        };
        let policy = EarlyAckPolicy { http_map: &self.http_map, allows_new: false, budget: 0, newest_tsval };
        engine.sweep(now, top, step, &policy)
    }

    /// Whether nothing is to be acknowledged early any more.
    pub(crate) fn is_finished(&self) -> bool {
        !self.has_open_holes()
            && self
                .http_map
                .is_finished(self.engine.as_ref().map_or(0, EarlyAckEngine::next_expected), self.has_closed)
    }

    /// Stops early ACK, for this reason unless there was one. Only while nothing is missing.
    pub(crate) fn close(&mut self, why: NotFetchable) {
        self.http_map.close(why);
        self.engine = None;
        self.injected.clear();
    }

    /// How much must be captured of it.
    pub(crate) fn capture_level(&self) -> CaptureLevel {
        match self.http_map.capture_level() {
            CaptureLevel::Full => CaptureLevel::Full,
            _ if self.has_open_holes() || self.not_fetchable().is_none() => CaptureLevel::Headers,
            _ => CaptureLevel::None,
        }
    }

    /// Whether its bytes can be fetched now.
    pub(crate) fn is_fetchable(&self) -> bool {
        let next_expected = self.engine.as_ref().map(EarlyAckEngine::next_expected);
        next_expected.is_some_and(|next_expected| {
            self.http_map.locate(PosRange::new(next_expected, next_expected + 1)).is_some()
        })
    }

    /// Whether something was acknowledged that has not arrived.
    pub(crate) fn has_open_holes(&self) -> bool {
        self.engine.as_ref().is_some_and(|engine| !engine.is_idle())
    }

    /// Why nothing is acknowledged early.
    pub(crate) fn not_fetchable(&self) -> Option<NotFetchable> {
        self.http_map.not_fetchable()
    }

    /// Bytes that were acknowledged early, those of them that are missing, and the number of holes.
    pub(crate) fn counters(&self) -> (u64, u64, u64) {
        self.engine.as_ref().map_or((0, 0, 0), |engine| (engine.total_bytes(), engine.missing_bytes(), self.holes))
    }

    /// Changes with [`pending_repair`](Self::pending_repair).
    pub(crate) fn pending_fingerprint(&self) -> (u64, u64) {
        let sweep = self.engine.as_ref().and_then(EarlyAckEngine::sweep_top).unwrap_or(0);
        let (early_acked, missing, _) = self.counters();
        (early_acked, missing.wrapping_add(sweep))
    }

    /// What was acknowledged, or may have been, and has not arrived; none if there is nothing.
    pub(crate) fn pending_repair(&self) -> Option<PendingRepair> {
        let server = SocketAddr::new(self.key.addrs.destination(), self.key.destination_port);
        let to_hole = |(range, ts_val): (PosRange, Option<TcpTimestamp>)| {
            let offset = self.http_map.locate(range).map(|offset| (server, offset));
            let ts_val = ts_val.map(|ts_val| later_tsval(self.min_tsval, ts_val));
            pending::pending_hole(seq_of(range.start), range.len(), ts_val, offset)
        };
        let engine = self.engine.as_ref()?;
        let holes: Vec<PendingHole> = engine.open_holes().map(to_hole).collect();
        let is_sure = engine.sweep_top().is_none();
        let timestamps = self
            .peer
            .timestamps
            .map(|timestamps| (later_tsval(self.min_tsval, timestamps.ts_val).ticks(), timestamps.ts_ecr.ticks()));
        (!holes.is_empty() || !is_sure).then(|| PendingRepair {
            local: SocketAddr::new(self.key.addrs.source(), self.key.source_port),
            server,
            acked_by_server: (self.peer.ack().number(), self.peer.window),
            timestamps,
            next_expected: seq_of(engine.next_expected()).number(),
            acked_to_server: Some(seq_of(engine.acked()).number()),
            is_acked_known: is_sure,
            holes,
        })
    }

    /// Since when the oldest open hole is early-acked.
    pub(crate) fn oldest_hole(&self) -> Option<Instant> {
        self.engine.as_ref()?.oldest_hole()
    }

    fn newest_tsval(&self) -> Option<TcpTimestamp> {
        self.peer.timestamps.map(|timestamps| timestamps.ts_val)
    }

    /// The end of the injected range that has this position, and when it was injected.
    fn injected_at(&self, position: u64) -> Option<(u64, Instant)> {
        // Ranges may lie within each other.
        let parts = self.injected.range(..=position).rev();
        let mut ends = parts.map(|(start, injected)| (start + injected.bytes.len() as u64, injected.at));
        ends.find(|(end, _)| position < *end)
    }

    /// Packets with these bytes, as far as they were fetched.
    fn inject(&mut self, now: Instant, range: PosRange) -> Vec<Vec<u8>> {
        let mut packets = Vec::new();
        for (start, injected) in self.injected.range_mut(..range.end) {
            let common = PosRange::new(*start, start + injected.bytes.len() as u64).intersection(&range);
            if common.is_empty() {
                continue;
            }
            let (from, to) = ((common.start - start) as usize, (common.end - start) as usize);
            let Some(bytes) = injected.bytes.get(from..to) else { continue };
            injected.at = now;
            let peer = self.peer;
            let timestamps = peer.timestamps.map(|timestamps| {
                let value = later_tsval(self.min_tsval, injected.ts_val.unwrap_or(timestamps.ts_val));
                self.min_tsval = Some(value);
                Timestamps { ts_val: value, ..timestamps }
            });
            for (at, piece) in bytes.chunks(MAX_PAYLOAD).enumerate() {
                let seq = seq_of(common.start + (at * MAX_PAYLOAD) as u64);
                let (flow, ack) = (self.key.reversed(), peer.ack());
                let segment = NewSegment::data(&flow, seq, ack, peer.window, timestamps, piece);
                packets.extend(segment.emit());
            }
        }
        packets
    }
}

fn later_tsval(old: Option<TcpTimestamp>, new: TcpTimestamp) -> TcpTimestamp {
    old.map_or(new, |old| if old.is_before(new) { new } else { old })
}

/// A reset is repeated after this time, because it may be lost like any packet.
const RESET_INTERVAL: Duration = Duration::from_secs(1);

fn observed<'a>(segment: &Segment<'a>, length: u32) -> Option<ObservedSegment<'a>> {
    Some(ObservedSegment {
        seq: segment.payload_range().start,
        ack: segment.ack()?,
        length,
        payload: segment.payload(),
    })
}
