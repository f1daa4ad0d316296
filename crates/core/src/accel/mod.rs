//! TCP acceleration on one link, with a thin secondary link beside it and nothing changed at the server:
//! Super-aggregation (CoNEXT 2009) and what measurements left of it.
//!
//! A sans-IO state machine. It takes packets of the primary link that leave or arrive, replies of gateways, and fetched
//! bytes; it returns what leaves instead, additional packets for either link or the local stack, probes, and fetch
//! requests.
//!
//! 1. What is not understood, or cannot be improved, leaves as it came. No flow is ever slower than with plain TCP for
//!    long: everything that is held back has a deadline.
//! 2. What has arrived is known from the local stack's ACKs and SACK blocks. Packets that arrive are only observed, for
//!    their time and for HTTP heads, so the data path does not depend on this.
//! 3. Each mechanism has a file or a folder of its own, with its tuned values ([`Options`]), the decision whether it is
//!    worth its cost for a flow, and its report for the status. `mechanism` lists them, and `flow` puts those that change
//!    ACKs in their order.
//! 4. Nothing is probed and no timer runs while no packets flow.
//!
//! Where to start reading: [`Accelerator`] (dispatch), `flow` (one flow), `ack_pipeline` (one ACK).

mod ack_offload;
mod ack_pipeline;
mod config;
mod early_ack;
mod early_ack_flows;
mod eifel_undo;
mod event;
mod fast_fetch;
mod flow;
mod mechanism;
mod observation;
mod options;
mod outage;
mod output_link;
mod secondary;
mod seq_space;
mod status;
#[cfg(test)]
mod tests;
mod withheld_ack;
mod zero_window;

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::net::IpAddr;

use crate::link::LinkId;
use crate::machine::Machine;
use crate::units::{DataSize, Duration, Instant};
use crate::wire::packet::{Ack, Flags, FourTuple as Key, IpParams, Segment};

pub use ack_offload::options::AckOffloadOptions;
pub use config::Config;
pub use early_ack::fetch::options::FetchOptions;
pub use early_ack::http_head::NotFetchable;
pub use early_ack::http_map::{HttpMap, ObservedSegment, Resource, ResourceOffset};
pub use early_ack::options::EarlyAckOptions;
pub use early_ack::pending::{PendingHole, PendingRepair};
pub use early_ack::repair::{Repair, RepairPacket, RepairState};
pub use eifel_undo::EifelUndoOptions;
pub use event::{CaptureLevel, ConnId, Fetch, FetchId, Input, Output, PacketBytes, Wake};
pub use fast_fetch::options::FastFetchOptions;
pub use mechanism::{Mechanism, Mechanisms};
pub use observation::options::ObservationOptions;
pub use outage::options::OutageOptions;
pub use secondary::ack_sender::DATA_PER_ACK_BYTE;
pub use secondary::link::{AddressFamilies, SecondaryLink};
pub use secondary::options::SecondaryLinkOptions;
pub use seq_space::{PosRange, PosRangeSet};
pub use status::{FlowStatus, InactiveReason, LinkStatus, MirroredConnStatus};
pub use withheld_ack::WithheldAckOptions;
pub use zero_window::ZeroWindowOptions;

use early_ack::fetch::RangeFetcher;
use early_ack::flow_state::EarlyAckFlow;
use fast_fetch::pool::MirroredConnPool;
use flow::{AckOutcome, Direction, FlowContext, FlowState};
use observation::minmax_filter::MinMaxFilter;
use observation::path_test::PathTest;
use options::options;
use outage::detector::{OutageDetector, OutageEvent};
use secondary::SecondaryLinks;
use zero_window::FreezeParams;

options! {
    /// The options of all mechanisms.
    pub struct Options {
        /// What flows and paths are observed to do.
        pub observation: ObservationOptions = ObservationOptions::DEFAULT,
        /// Outage detector, restart ACKs and outage revert.
        pub outage: OutageOptions = OutageOptions::DEFAULT,
        /// Eifel undo.
        pub eifel_undo: EifelUndoOptions = EifelUndoOptions::DEFAULT,
        /// Withheld ACK.
        pub withheld_ack: WithheldAckOptions = WithheldAckOptions::DEFAULT,
        /// ACK offload.
        pub ack_offload: AckOffloadOptions = AckOffloadOptions::DEFAULT,
        /// Secondary links.
        pub secondary: SecondaryLinkOptions = SecondaryLinkOptions::DEFAULT,
        /// Zero-window freeze.
        pub zero_window: ZeroWindowOptions = ZeroWindowOptions::DEFAULT,
        /// Early ACK.
        pub early_ack: EarlyAckOptions = EarlyAckOptions::DEFAULT,
        /// Range requests for early-acked holes.
        pub fetch: FetchOptions = FetchOptions::DEFAULT,
        /// Mirrored connections.
        pub fast_fetch: FastFetchOptions = FastFetchOptions::DEFAULT,
    }
}

/// Bytes of a captured packet that are shown: the longest headers of IP and TCP, with space for extension headers of
/// IPv6.
pub const SNAP_LENGTH: usize = 160;

/// State machine of all flows of one primary link; see the [module documentation](self).
#[derive(Debug)]
pub struct Accelerator {
    config: Config,
    now: Instant,
    flows: BTreeMap<Key, FlowState>,
    /// When each flow is to tick next.
    wakes: BTreeSet<(Instant, Key)>,
    detector: OutageDetector,
    secondary: SecondaryLinks,
    fetcher: RangeFetcher,
    mirrored_conns: MirroredConnPool,
    /// Flows that are followed for early ACK, by the number with which the fetcher refers to them, and what must be
    /// captured of each.
    early_ack_flows: BTreeMap<u64, (Key, CaptureLevel)>,
    last_flow_id: u64,
    capture_level: CaptureLevel,
    capture_until: Option<Instant>,
    /// The shortest round-trip time of all flows that moved in the last second; a flow whose ACKs may not wait counts as
    /// zero.
    min_rtt: MinMaxFilter<Duration>,
    /// By the server's address.
    paths: BTreeMap<IpAddr, PathTest>,
    last_sweep: Instant,
    outputs: VecDeque<Output>,
}

impl Accelerator {
    /// An accelerator that knows no flow yet.
    pub fn new(config: Config) -> Self {
        Self {
            now: Instant::ZERO,
            flows: BTreeMap::new(),
            wakes: BTreeSet::new(),
            detector: OutageDetector::new(config.primary, &config.options.outage),
            secondary: SecondaryLinks::new(&config.options.secondary, &config.secondary_links),
            fetcher: RangeFetcher::new(&config.options.fetch),
            mirrored_conns: MirroredConnPool::new(&config.options.fast_fetch),
            early_ack_flows: BTreeMap::new(),
            last_flow_id: 0,
            capture_level: CaptureLevel::None,
            capture_until: None,
            min_rtt: MinMaxFilter::default(),
            paths: BTreeMap::new(),
            last_sweep: Instant::ZERO,
            outputs: VecDeque::new(),
            config,
        }
    }

    /// The configuration.
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// All flows, in the order of their addresses; a connection that transfers in both directions appears twice.
    /// Uploads appear once 64 KiB are acknowledged, so that requests do not count.
    pub fn flows(&self, now: Instant) -> Vec<FlowStatus> {
        let statuses = self.flows.values().map(|flow| {
            self.with_mirrored_conn(flow, flow::status::flow_status(flow, now, &self.config.mechanisms))
        });
        statuses.filter(|view| !view.is_upload || view.received >= MIN_UPLOAD).collect()
    }

    /// The links, the primary one first.
    pub fn links(&self, now: Instant) -> Vec<LinkStatus> {
        let primary = LinkStatus {
            link: self.config.primary,
            is_down: self.detector.is_down(),
            is_unresponsive: self.detector.is_unresponsive(),
            outages: self.detector.outages(),
            outage_time: self.detector.outage_time(now),
            rtt: self.detector.rtt(),
            send_limit: None,
            receive_rate: None,
            sent: DataSize::ZERO,
            fetched: DataSize::ZERO,
        };
        let fetched = |view: LinkStatus| LinkStatus {
            fetched: self.fetcher.fetched_over(view.link) + self.mirrored_conns.fetched_over(view.link),
            receive_rate: view.receive_rate.or_else(|| self.fetcher.measured_rate(view.link)),
            ..view
        };
        core::iter::once(primary).chain(self.secondary.statuses(now)).map(fetched).collect()
    }

    /// The shortest round-trip time of active flows; none: nothing is active. Zero if a flow's ACKs must not wait.
    pub fn min_rtt(&self) -> Option<Duration> {
        self.min_rtt.value()
    }

    fn on_outgoing(&mut self, mut packet: PacketBytes) {
        let now = self.now;
        let Ok(segment) = Segment::parse(&packet.0) else {
            self.outputs.push_back(Output::Forward(packet));
            return;
        };
        let (key, flags) = (segment.four_tuple(), segment.flags());
        self.on_local_segment(&segment, segment.payload().len());
        if flags.contains(Flags::RST) {
            self.forget(&key);
            self.forget(&key.reversed());
        } else if flags.contains(Flags::SYN) {
            self.restart_flow(&key);
            let options = self.config.options;
            if !flags.contains(Flags::ACK) && self.can_track(&key, MAX_FLOWS) {
                let flow =
                    self.flows.entry(key).or_insert_with(|| FlowState::new(options, now, key, Direction::Download));
                flow.on_syn(now, &segment);
                self.admit(key);
            }
        } else if let Some(ack) = segment.pure_ack() {
            let ip_params = segment.packet().ip_params();
            return self.on_ack(key, packet, (ack, ip_params));
        } else if self.flows.contains_key(&key) {
            let early_ack_budget = self.early_ack_budget(&key);
            let Some(flow) = self.flows.get_mut(&key) else { return };
            let old_deadline = flow.deadline();
            let is_captured = self.capture_level != CaptureLevel::None;
            let context = FlowContext { mechanisms: &self.config.mechanisms, is_captured, early_ack_budget };
            flow.on_data_out(now, &mut packet.0, &context);
            self.secondary.withdraw(&key);
            self.outputs.push_back(Output::Forward(packet));
            self.finish_flow_update(key, old_deadline);
            return;
        }
        self.outputs.push_back(Output::Forward(packet));
    }

    /// A pure ACK of the local stack.
    fn on_ack(&mut self, key: Key, mut packet: PacketBytes, ack: (Ack, IpParams)) {
        let Some(outcome) = self.rewrite_ack(key, Direction::Download, &mut packet, ack) else {
            self.outputs.push_back(Output::Forward(packet));
            return;
        };
        if outcome.is_plain_tcp {
            self.admit(key);
        }
        if outcome.has_holes && self.config.mechanisms.has(Mechanism::EifelUndo) {
            let until = self.flows.get(&key).and_then(FlowState::capture_until);
            self.capture_until = self.capture_until.max(until);
        }
        if outcome.is_suppressed {
            self.outputs.push_back(Output::Suppress);
        } else if let Some(packet) = self.offload(key, packet) {
            // An older ACK that waits for a secondary link reports less than this one.
            if self.secondary.withdraw(&key)
                && let Some(flow) = self.flows.get_mut(&key)
            {
                flow.counts_mut().replaced += 1;
            }
            self.outputs.push_back(Output::Forward(packet));
        }
        if outcome.has_data {
            self.on_activity();
        }
        self.update_capture();
    }

    /// A packet of a peer, which is held: a pure ACK belongs to an upload (Super-aggregation §3.5).
    fn on_incoming(&mut self, mut packet: PacketBytes) {
        let Ok(segment) = Segment::parse(&packet.0) else {
            self.outputs.push_back(Output::Forward(packet));
            return;
        };
        let (key, ip_params, now) = (segment.four_tuple(), segment.packet().ip_params(), self.now);
        let options = self.config.options;
        if segment.flags().contains(Flags::SYN) {
            if self.can_track(&key, MAX_FLOWS / 2)
                && self.flows.get(&key).is_none_or(|flow| flow.direction() == Direction::Upload)
            {
                self.flows
                    .entry(key)
                    .or_insert_with(|| FlowState::new(options, now, key, Direction::Upload))
                    .on_syn(now, &segment);
            }
            let local = key.reversed();
            if let Some(flow) = self.flows.get_mut(&local).filter(|flow| flow.direction() == Direction::Download) {
                flow.on_syn_ack(&segment);
            }
        } else if let Some(ack) = segment.pure_ack() {
            let outcome = self.rewrite_ack(key, Direction::Upload, &mut packet, (ack, ip_params));
            if outcome.is_some_and(|outcome| outcome.has_holes) && self.config.mechanisms.has(Mechanism::EifelUndo)
            {
                let until = self.flows.get(&key).and_then(FlowState::capture_until);
                self.capture_until = self.capture_until.max(until);
            }
        }
        self.outputs.push_back(Output::Forward(packet));
        self.on_activity();
        self.update_capture();
    }

    /// The local stack has sent, or sends, a segment with so many bytes of payload.
    fn on_local_segment(&mut self, segment: &Segment<'_>, length: usize) {
        if let Some(flow) = self.flows.get_mut(&segment.four_tuple().reversed()) {
            flow.on_local_segment(self.now, segment, u32::try_from(length).unwrap_or(u32::MAX));
        }
    }

    /// Passes an ACK through its flow's pipeline; none if there is no slot for another flow, or it transfers in the
    /// other direction.
    fn rewrite_ack(
        &mut self,
        key: Key,
        direction: Direction,
        packet: &mut PacketBytes,
        ack: (Ack, IpParams),
    ) -> Option<AckOutcome> {
        // Peers that send ACKs must not be able to take all slots.
        let max_flows = if direction == Direction::Upload { MAX_FLOWS / 2 } else { MAX_FLOWS };
        if !self.can_track(&key, max_flows)
            || self.flows.get(&key).is_some_and(|flow| flow.direction() != direction)
        {
            return None;
        }
        let (now, is_captured) =
            (self.now, direction == Direction::Download && self.capture_level != CaptureLevel::None);
        let (early_ack_budget, options) = (self.early_ack_budget(&key), self.config.options);
        let flow = self.flows.entry(key).or_insert_with(|| FlowState::new(options, now, key, direction));
        let old_deadline = flow.deadline();
        let context = FlowContext { mechanisms: &self.config.mechanisms, is_captured, early_ack_budget };
        let path = key.addrs.destination();
        if self.paths.len() >= MAX_PATHS && !self.paths.contains_key(&path) {
            let oldest = self.paths.iter().min_by_key(|(_, trust)| trust.last_used()).map(|(path, _)| *path);
            if let Some(oldest) = oldest {
                self.paths.remove(&oldest);
            }
        }
        let trust = self.paths.entry(path).or_insert_with(|| PathTest::new(&options.observation));
        let outcome = flow.on_ack(now, &mut packet.0, ack, &context, trust);
        let rtt = flow.max_ack_delay(now);
        // The ACK of a request shows no round-trip time, and says nothing about downloads.
        if direction == Direction::Download || rtt.is_some() {
            self.min_rtt.on_value(now, SECOND, rtt.unwrap_or_default(), Duration::min);
        }
        self.finish_flow_update(key, old_deadline);
        Some(outcome)
    }

    /// Whether any mechanism depends on outages of the primary link; otherwise nothing is probed.
    fn needs_outage_detection(&self) -> bool {
        self.config.mechanisms.iter().any(Mechanism::needs_outage_detection)
    }

    /// Something has arrived over the primary link.
    fn on_activity(&mut self) {
        if !self.needs_outage_detection() {
            return;
        }
        let event = self.detector.on_activity(self.now, &mut self.outputs);
        self.on_outage_event(event);
    }

    fn on_captured(&mut self, packet: &PacketBytes, length: u32) {
        let Ok(segment) = Segment::parse_head(&packet.0) else { return };
        let cut = (length as usize).saturating_sub(packet.0.len());
        let payload = u32::try_from(segment.payload().len() + cut).unwrap_or(u32::MAX);
        let local = segment.four_tuple();
        self.on_local_segment(&segment, payload as usize);
        if let Some(flow) = self.flows.get_mut(&local).filter(|flow| flow.direction() == Direction::Download) {
            let old_deadline = flow.deadline();
            flow.on_request_bytes(self.now, &segment, payload);
            return self.finish_flow_update(local, old_deadline);
        }
        let key = local.reversed();
        let Some(flow) = self.flows.get_mut(&key).filter(|flow| flow.direction() == Direction::Download) else {
            return;
        };
        let old_deadline = flow.deadline();
        flow.on_arrival(self.now, &segment, payload);
        self.finish_flow_update(key, old_deadline);
        self.on_activity();
    }

    fn on_carrier(&mut self, link: LinkId, is_up: bool) {
        if link == self.config.primary && !self.needs_outage_detection() {
            return;
        }
        if link == self.config.primary {
            let event = self.detector.on_carrier(self.now, is_up, &mut self.outputs);
            self.on_outage_event(event);
        } else {
            self.secondary.on_carrier(link, is_up);
        }
    }

    fn on_probe_reply(&mut self, link: LinkId, sequence: u16) {
        if link == self.config.primary {
            let event = self.detector.on_probe_reply(self.now, sequence);
            self.on_outage_event(event);
        } else {
            self.secondary.on_probe_reply(self.now, link, sequence);
        }
    }

    /// The primary link has failed, or recovered.
    fn on_outage_event(&mut self, event: Option<OutageEvent>) {
        let (now, primary) = (self.now, self.config.primary);
        let Some(event) = event else { return };
        let mut freeze = if event == OutageEvent::Started { self.freeze_params() } else { None };
        let keys: Vec<Key> = self.flows.keys().copied().collect();
        for key in keys {
            let Some(flow) = self.flows.get_mut(&key) else { continue };
            let old_deadline = flow.deadline();
            match event {
                OutageEvent::Started => {
                    flow.send_delayed(now, primary, true, &mut self.outputs);
                    let at = self.outputs.len();
                    let flow_freeze = freeze.filter(|freeze| self.secondary.carries(freeze.link, &key));
                    flow.on_outage_start(now, flow_freeze, &mut self.outputs);
                    freeze =
                        freeze.map(|freeze| self.secondary.on_freeze_sent(now, freeze, self.outputs.range(at..)));
                }
                OutageEvent::Ended => flow.on_outage_end(now, primary, &mut self.outputs),
            }
            self.finish_flow_update(key, old_deadline);
        }
    }

    /// How senders are frozen now, if at all.
    fn freeze_params(&self) -> Option<FreezeParams> {
        let mechanisms = &self.config.mechanisms;
        let (link, rate) = self.secondary.freeze_link(self.now)?;
        let flight = mechanisms.has(Mechanism::FreezeInFlight).then_some(rate);
        let is_plain = mechanisms.has(Mechanism::ZeroWindowFreeze);
        (is_plain || flight.is_some()).then_some(FreezeParams {
            options: &self.config.options.zero_window,
            link,
            is_first_form: is_plain,
            in_flight_rate: flight,
            sent_acks: 0,
        })
    }

    /// Starts and stops the capture of packets, so that it runs only while something needs it.
    fn update_capture(&mut self) {
        let wanted = if self.capture_until.is_some_and(|until| self.now < until) {
            CaptureLevel::Headers
        } else {
            CaptureLevel::None
        };
        let level = self.early_ack_flows.values().map(|(_, level)| *level).fold(wanted, CaptureLevel::max);
        if level != self.capture_level {
            self.capture_level = level;
            self.outputs.push_back(Output::Capture(level));
        }
        if wanted == CaptureLevel::None {
            self.capture_until = None;
        }
    }

    /// Whether this flow is known, or fewer than `max_flows` are. If the table is full, idle flows are forgotten first,
    /// at most once a second.
    fn can_track(&mut self, key: &Key, max_flows: usize) -> bool {
        if self.flows.len() >= max_flows
            && self.now.since(self.last_sweep) >= SECOND
            && !self.flows.contains_key(key)
        {
            self.forget_idle(IDLE_WHEN_FULL);
        }
        self.flows.len() < max_flows || self.flows.contains_key(key)
    }

    /// A SYN of the local stack begins another connection between the same ports, unless it is a retransmission. A SYN
    /// of the peer may be late or forged, and forgets nothing.
    fn restart_flow(&mut self, key: &Key) {
        for key in [*key, key.reversed()] {
            if self.flows.get(&key).is_some_and(FlowState::has_begun) {
                self.forget(&key);
            }
        }
    }

    fn rearm(&mut self, key: Key, old_deadline: Option<Instant>) {
        let wanted = self.flows.get(&key).and_then(FlowState::deadline);
        if wanted != old_deadline {
            if let Some(at) = old_deadline {
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
            if let Some(number) = flow.early_ack_flow().map(EarlyAckFlow::id) {
                self.early_ack_flows.remove(&number);
                self.fetcher.forget(number);
                self.mirrored_conns.forget(number);
            }
            self.secondary.withdraw(key);
        }
    }

    /// Forgets flows that have been idle for so long and have no open early-acked hole; one that becomes active again
    /// is added again.
    fn forget_idle(&mut self, idle: Duration) {
        self.last_sweep = self.now;
        let now = self.now;
        let is_old = |flow: &&FlowState| {
            let time = now.since(flow.last_packet());
            time >= MAX_IDLE || (time >= idle && !flow.early_ack_flow().is_some_and(EarlyAckFlow::has_open_holes))
        };
        let idle_keys: Vec<Key> = self.flows.values().filter(is_old).map(FlowState::key).collect();
        for key in idle_keys {
            self.forget(&key);
        }
    }

    fn on_time(&mut self) {
        let (now, primary) = (self.now, self.config.primary);
        while let Some((at, key)) = self.wakes.first().copied().filter(|(at, _)| *at <= now) {
            self.wakes.remove(&(at, key));
            if let Some(flow) = self.flows.get_mut(&key) {
                flow.tick(now, primary, &self.config.mechanisms, &mut self.outputs);
                self.finish_flow_update(key, None);
            }
        }
        let event = self.detector.tick(now, &mut self.outputs);
        self.on_outage_event(event);
        self.mirrored_conns.tick(now);
        self.secondary.tick(now, primary, &mut self.outputs);
        self.run_fetcher();
        self.update_capture();
        if now.since(self.last_sweep) >= SWEEP_INTERVAL {
            self.forget_idle(MAX_IDLE);
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
            Input::Outgoing(packet) => self.on_outgoing(packet),
            Input::Incoming(packet) => self.on_incoming(packet),
            Input::Captured { packet, length } => self.on_captured(&packet, length),
            Input::PacketCount { link, packets } if link == self.config.primary => {
                let event = self.detector.on_count(self.now, packets, &mut self.outputs);
                self.on_outage_event(event);
            }
            Input::ProbeReply { link, sequence } => self.on_probe_reply(link, sequence),
            Input::Carrier { link, is_up } => self.on_carrier(link, is_up),
            Input::Fetched { fetch, range, bytes } => self.on_fetched(fetch, range, bytes),
            Input::PortReserved { conn, local, isn } => {
                self.mirrored_conns.on_port_reserved(self.now, conn, local, isn)
            }
            Input::ConnPacket { conn, packet } => self.on_conn_packet(conn, &packet),
            Input::PacketCount { .. } => {}
        }
        self.drain_mirrored_conns();
    }

    fn tick(&mut self, now: Instant) {
        self.advance(now);
        self.on_time();
        self.drain_mirrored_conns();
    }

    fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    fn deadline(&self) -> Option<(Instant, Wake)> {
        let flow = self.wakes.first().map(|(at, _)| (*at, Wake::Flow));
        let detector = self.detector.deadline().map(|at| (at, Wake::LinkProbe));
        let secondary_probe = self.secondary.next_probe().map(|at| (at, Wake::LinkProbe));
        let credit = self.secondary.next_send(self.now).map(|at| (at, Wake::SendCredit));
        let capture_end = self
            .capture_until
            .filter(|_| self.capture_level != CaptureLevel::None)
            .map(|at| (at, Wake::CaptureEnd));
        let fetch = self.fetcher.deadline().map(|at| (at, Wake::Fetch));
        let conn = self.mirrored_conns.deadline().map(|at| (at, Wake::Fetch));
        [flow, detector, secondary_probe, credit, capture_end, fetch, conn]
            .into_iter()
            .flatten()
            .min_by_key(|(at, _)| *at)
    }
}

/// Our choice: 10 MB of memory; packets of further flows leave unchanged.
const MAX_FLOWS: usize = 10_000;
/// Our choice: the servers that a host uses within some minutes; the one that was unused for longest is forgotten.
const MAX_PATHS: usize = 256;
/// Our choice: more than a request with all its cookies.
const MIN_UPLOAD: DataSize = DataSize::from_kib(64);
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);
const SECOND: Duration = Duration::from_secs(1);
/// Our choice: when the table is full, active flows stay.
const IDLE_WHEN_FULL: Duration = Duration::from_secs(10);
/// Our choice: a flow that becomes active later starts again, and is observed within one round trip.
const MAX_IDLE: Duration = Duration::from_secs(300);
