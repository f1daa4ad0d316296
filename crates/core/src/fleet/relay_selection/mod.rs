//! Relay selection: decides which relay an edge uses, and what it requests from the fleet service (BASS sections III-A.1 and IV-B). It is
//! the edge's side of the matching.
//!
//! The inputs are candidates, measured rates, replies of the service, and observations of flows and links. The outputs say what to
//! request, to measure and to use. One operation runs at a time: while the machine waits for its result it has no deadline.
//!
//! 1. Candidates are requested at the start, each `REFRESH_INTERVAL`, when the set of links changes, when the assigned relay fails, when
//!    it carries less than `LOW_RATE_SHARE` of its initial rate in `MAX_LOW_SAMPLES` consecutive samples although more data is waiting,
//!    and when the service has released the edge. The links and low rates cause requests at least `MIN_REFRESH_PAUSE` apart, failures
//!    `FAILURE_REFRESH_PAUSE`.
//! 2. A candidate is measured unless its rate is fresh: not older than `RATE_LIFETIME`, and measured over the same links (those at the
//!    start of the probe). Probes run one after the other, because they share the links: `PROBE_TIME` each and `TOTAL_PROBE_TIME` in all,
//!    the nearest relay first. Then the assignment is requested.
//! 3. The rate that flows reach while data is blocked (waits because the links carry no more) is also a measurement, and keeps the
//!    relay's rate fresh, so that probes do not disturb a live stream.
//! 4. Bytes of metered links are limited: [`SelectorConfig::probe_bytes`] for each probe and ten times that a day. When they are used up, a
//!    single unmetered link is measured; if there is none, nothing is.
//! 5. Relays are used in this order: the one that the service has assigned; all others that are known, by their rates, or by their RTTs
//!    among those that are fast enough ([`SelectorConfig::prefer_near`]); without a rate, candidates before relays known from earlier
//!    runs. Failed relays come last. Only new flows are affected. An edge whose flows never go directly
//!    ([`SelectorConfig::never_direct`]) also follows replies without an assignment: with `no_gain` it keeps its previous relay; with
//!    `no_capacity` new flows wait for an assignment ([`RelaySelector::is_waiting`]).
//! 6. A report claims to hold a relay only if the service has assigned it and new flows use it.
//! 7. If the service does not answer, only the time of the next request changes; the pause doubles up to `MAX_BACKOFF`.

mod events;
mod relay_stats;
#[cfg(test)]
mod tests;

use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use super::messages::{AssignmentReply, AssignmentRequest, Candidate, CurrentAssignment, NoRelayReason, Report};
use super::{Endpoint, Name};
use crate::machine::Machine;
use crate::units::{Bitrate, DataSize, Instant, Ratio};

pub use self::events::{
    Config, Input, LinkFacts, Output, ProbeLimits, ProbeResult, Reason, SelectorConfig, TrafficSample,
};
pub use self::relay_stats::{PersistedState, RelayInfo};

use self::relay_stats::RelayStats;

/// Our choice: as often as the service computes a new matching of all edges (BASS section IV-B).
const REFRESH_INTERVAL: Duration = Duration::from_secs(30 * 60);
/// Our choice: the same as [`REFRESH_INTERVAL`].
const RATE_LIFETIME: Duration = Duration::from_secs(30 * 60);
/// Our choice: three candidates then fit into [`TOTAL_PROBE_TIME`].
const PROBE_TIME: Duration = Duration::from_millis(1500);
/// For all probes between two requests. BASS section IV-B spends this time on each relay.
const TOTAL_PROBE_TIME: Duration = Duration::from_secs(5);
/// Our choice: links that flap must not fill the remaining capacity with probes.
const MIN_REFRESH_PAUSE: Duration = Duration::from_secs(60);
/// Our choice: a failed relay is replaced soon, but a failing fleet does not cause continuous requests.
const FAILURE_REFRESH_PAUSE: Duration = Duration::from_secs(5);
/// Our choice: the same as the service's threshold for reports.
const LOW_RATE_SHARE: Ratio = Ratio::from_percent(70);
const MAX_LOW_SAMPLES: u32 = 2;
/// How long a relay counts as failed. Our choice: a relay that was restarted is retried by then.
const FAILURE_MEMORY: Duration = Duration::from_secs(60);
const MIN_BACKOFF: Duration = Duration::from_secs(1);
const MAX_BACKOFF: Duration = Duration::from_secs(60);
/// Interval between reports until the service sends one.
const DEFAULT_HEARTBEAT: Duration = Duration::from_secs(5);
/// Limits for the interval between reports that the service sends. Our choice.
const HEARTBEAT_RANGE: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(60)];
/// How many probes of [`SelectorConfig::probe_bytes`] are allowed per day.
const PROBES_A_DAY: u64 = 10;
const DAY: Duration = Duration::from_secs(86_400);
/// Our choice: 112 Mbit/s for the duration of a probe; the relay has its own limit.
const MAX_PROBE_SIZE: DataSize = DataSize::from_mib(20);
/// Share of the time for which data must be blocked for a rate to count as the capacity of the links.
const FULL_SHARE: Ratio = Ratio::from_percent(80);
/// Share of the time from which on a report states that programs offer more than is carried. Our choice: blocked half of the time.
const BUSY_SHARE: Ratio = Ratio::from_percent(50);
/// Origin of an edge that does not know its stream's target yet (RFC 2606 section 2: the name never exists).
const UNKNOWN_ORIGIN: &str = "unknown.invalid:1935";
/// Length of the order of relays for new flows. Our choice: a flow tries no more.
const MAX_IN_USE: usize = 6;

/// The operation in progress.
#[derive(Clone, Debug, PartialEq, Eq)]
enum PendingOp {
    Idle,
    Candidates,
    /// A probe. Links may change while it runs, so both fields are those at its start.
    Probe {
        /// Whether it sends over metered links.
        is_metered: bool,
        /// The links over which it measures; empty if they are not known yet.
        links: Vec<String>,
    },
    Request,
    Report,
}

/// An assignment that the service has given.
#[derive(Clone, Debug)]
struct HeldAssignment {
    assignment: CurrentAssignment,
    /// The rate of the relay at that time, measured or reserved.
    initial_rate: Bitrate,
}

/// State machine of the relay selection; see the [module documentation](self).
#[derive(Debug)]
pub struct RelaySelector {
    config: SelectorConfig,
    now: Instant,
    stats: RelayStats,
    candidates: Vec<Name>,
    origin: Option<Endpoint>,
    links: LinkFacts,
    held_assignment: Option<HeldAssignment>,
    /// The reason in the last reply.
    no_relay_reason: Option<NoRelayReason>,
    /// Whether the last decisive reply was `no_capacity`.
    is_fleet_full: bool,
    /// The relay that the edge held when the service replied `no_gain`.
    previous_relay: Option<Name>,
    pending: PendingOp,
    /// Candidates still to be measured, and when the last candidates arrived: their probes share `TOTAL_PROBE_TIME` from then.
    probe_queue: VecDeque<Name>,
    probing_since: Instant,
    /// When candidates were last requested, and when to request them again.
    last_refresh: Option<Instant>,
    next_refresh: Option<Instant>,
    /// Time of the next report.
    next_report: Instant,
    /// Earliest time of the next request after a failure (rule 7).
    not_before: Instant,
    backoff: Duration,
    heartbeat: Duration,
    throughput: Bitrate,
    offered_rate: Option<Bitrate>,
    low_samples: u32,
    in_use: Vec<Name>,
    outputs: VecDeque<Output>,
}

impl RelaySelector {
    /// Creates a selector, with the state that an earlier run saved and its age.
    pub fn new(config: SelectorConfig, saved: Option<(PersistedState, Duration)>, now: Instant) -> Self {
        let origin = config.origin.clone().or_else(|| saved.as_ref().and_then(|(saved, _)| saved.origin.clone()));
        let known =
            saved.map_or_else(RelayStats::default, |(saved, elapsed)| RelayStats::restore(saved, elapsed, now));
        let mut selector = Self {
            config,
            now,
            stats: known,
            candidates: Vec::new(),
            origin,
            links: LinkFacts::default(),
            held_assignment: None,
            no_relay_reason: None,
            is_fleet_full: false,
            previous_relay: None,
            pending: PendingOp::Idle,
            probe_queue: VecDeque::new(),
            probing_since: now,
            last_refresh: None,
            next_refresh: Some(now),
            next_report: now + DEFAULT_HEARTBEAT,
            not_before: now,
            backoff: Duration::ZERO,
            heartbeat: DEFAULT_HEARTBEAT,
            throughput: Bitrate::ZERO,
            offered_rate: None,
            low_samples: 0,
            in_use: Vec::new(),
            outputs: VecDeque::new(),
        };
        selector.update_order();
        selector
    }

    /// The service has offered these candidates.
    fn handle_candidates(&mut self, candidates: Vec<Candidate>, now: Instant) {
        self.advance_time(now);
        self.candidates = candidates.iter().map(|candidate| candidate.relay.clone()).collect();
        candidates.into_iter().for_each(|candidate| {
            self.stats.add(&candidate.relay, candidate.addresses, Some(candidate.server_name), self.now);
        });
        self.probe_queue = self.candidates.iter().filter(|name| !self.is_fresh(name)).cloned().collect();
        self.probing_since = self.now;
        self.update_order();
        self.probe_next();
    }

    /// A probe has ended; `sent` is the number of bytes that it sent.
    fn handle_probe(&mut self, relay: &Name, result: Option<ProbeResult>, sent: DataSize, now: Instant) {
        self.advance_time(now);
        let (is_metered, probe_links) = match core::mem::replace(&mut self.pending, PendingOp::Idle) {
            PendingOp::Probe { is_metered, links } => (is_metered, links),
            _ => (false, Vec::new()),
        };
        if is_metered {
            self.stats.add_metered(sent, self.now);
        }
        // A link that appeared or failed during the probe must not make its rate look like one of the new set.
        let links = if probe_links.is_empty() { &self.links.up } else { &probe_links };
        match result {
            Some(result) => self.stats.record_rate(relay, result.rate, Some(result.rtt), links, self.now),
            None => self.stats.set_failed(relay, true, self.now),
        }
        self.update_order();
        self.outputs.push_back(Output::Persist);
        self.probe_next();
    }

    /// The service has replied to a request or a report.
    fn handle_reply(&mut self, reply: AssignmentReply, now: Instant) {
        self.advance_time(now);
        self.pending = PendingOp::Idle;
        (self.backoff, self.not_before) = (Duration::ZERO, self.now);
        self.heartbeat = Duration::from_millis(reply.heartbeat_ms).clamp(HEARTBEAT_RANGE[0], HEARTBEAT_RANGE[1]);
        self.next_report = self.now + self.heartbeat;
        self.no_relay_reason = reply.reason;
        if reply.reason == Some(NoRelayReason::Released) {
            self.schedule_refresh(self.now);
        }
        match reply.assignment {
            Some(assignment) => {
                self.stats.add(&assignment.relay, assignment.addresses, assignment.server_name, self.now);
                let current = CurrentAssignment {
                    relay: assignment.relay,
                    reservation: assignment.reservation,
                    version: assignment.version,
                };
                if self.held_assignment.as_ref().is_none_or(|assigned| assigned.assignment != current) {
                    let rate = self.stats.rate(&current.relay).unwrap_or(current.reservation);
                    (self.held_assignment, self.low_samples) =
                        (Some(HeldAssignment { assignment: current, initial_rate: rate }), 0);
                    self.outputs.push_back(Output::Persist);
                }
                (self.is_fleet_full, self.previous_relay) = (false, None);
            }
            None => {
                let previous = self.held_assignment.take().map(|assigned| assigned.assignment.relay);
                match reply.reason {
                    // The service has not decided yet.
                    Some(NoRelayReason::Pending) | None => {
                        self.previous_relay = previous.or(self.previous_relay.take())
                    }
                    Some(NoRelayReason::NoGain) => {
                        (self.is_fleet_full, self.previous_relay) = (false, previous.or(self.previous_relay.take()))
                    }
                    Some(NoRelayReason::NoCapacity) => (self.is_fleet_full, self.previous_relay) = (true, None),
                    Some(NoRelayReason::NoRelay | NoRelayReason::Released) => {
                        (self.is_fleet_full, self.previous_relay) = (false, None)
                    }
                }
            }
        }
        self.update_order();
    }

    /// Whether new flows must wait until the service assigns a relay.
    pub fn is_waiting(&self) -> bool {
        self.config.never_direct && self.is_fleet_full && self.held_assignment.is_none()
    }

    /// The service did not answer, or its reply was not usable.
    fn handle_unreachable(&mut self, now: Instant) {
        self.advance_time(now);
        let pending = core::mem::replace(&mut self.pending, PendingOp::Idle);
        self.backoff = (self.backoff * 2).clamp(MIN_BACKOFF, MAX_BACKOFF);
        self.not_before = self.now + self.backoff;
        self.probe_queue.clear();
        if matches!(pending, PendingOp::Candidates | PendingOp::Request) {
            self.next_refresh = Some(self.now);
        }
    }

    /// A relay has failed, or recovered.
    fn set_failed(&mut self, relay: &Name, has_failed: bool, now: Instant) {
        self.advance_time(now);
        if self.stats.is_failed(relay, self.now) == has_failed {
            return;
        }
        self.stats.set_failed(relay, has_failed, self.now);
        if has_failed && self.held_assignment.as_ref().is_some_and(|assigned| assigned.assignment.relay == *relay) {
            let earliest = self.last_refresh.map_or(self.now, |refreshed_at| refreshed_at + FAILURE_REFRESH_PAUSE);
            self.schedule_refresh(earliest.max(self.now));
        }
        self.update_order();
    }

    /// Records the traffic through relays in a period of this length.
    fn record_traffic(&mut self, samples: &[(Name, TrafficSample)], time: Duration, now: Instant) {
        self.advance_time(now);
        if time.is_zero() {
            return;
        }
        for (relay, sample) in samples {
            let rate = sample.sent / time;
            // A lower rate is only evidence if the links were saturated; a higher one always is (rule 3).
            let is_full = Ratio::of(nanos(sample.blocked), nanos(time)) >= FULL_SHARE;
            if is_full || self.stats.rate(relay).is_some_and(|known| rate > known) {
                self.stats.record_rate(relay, rate, None, &self.links.up, self.now);
            }
        }
        let Some(assigned) = &self.held_assignment else {
            (self.throughput, self.offered_rate) = (Bitrate::ZERO, None);
            return;
        };
        let current =
            samples.iter().find(|(relay, _)| *relay == assigned.assignment.relay).map(|(_, sample)| *sample);
        let TrafficSample { sent, blocked } =
            current.unwrap_or(TrafficSample { sent: DataSize::ZERO, blocked: Duration::ZERO });
        let (rate, blocked_share) = (sent / time, Ratio::of(nanos(blocked), nanos(time)));
        self.throughput = rate;
        // Programs offer at least what the relay carried initially, if data is blocked for much of the time.
        self.offered_rate = (blocked_share >= BUSY_SHARE).then(|| rate.max(assigned.initial_rate));
        self.low_samples = if blocked_share >= FULL_SHARE && rate < assigned.initial_rate.share(LOW_RATE_SHARE) {
            self.low_samples + 1
        } else {
            0
        };
        if self.low_samples >= MAX_LOW_SAMPLES {
            self.low_samples = 0;
            self.schedule_refresh_later();
        }
    }

    /// Updates the links.
    fn set_links(&mut self, links: LinkFacts, now: Instant) {
        self.advance_time(now);
        let have_changed = links.up != self.links.up && !self.links.up.is_empty();
        let best_rate = links.best_rate.max(if have_changed { Bitrate::ZERO } else { self.links.best_rate });
        self.links = LinkFacts { best_rate, ..links };
        if have_changed {
            self.schedule_refresh_later();
        }
    }

    /// Sets the target of a new flow or stream as the origin.
    fn set_origin(&mut self, origin: Endpoint) {
        if self.config.origin.is_none() && self.origin.as_ref() != Some(&origin) {
            self.origin = Some(origin);
            self.outputs.push_back(Output::Persist);
        }
    }

    /// The state to save for a later run.
    pub fn save(&self) -> PersistedState {
        self.stats.save(self.origin.clone(), self.now)
    }

    /// Address and measurements of a relay that is offered or used.
    pub fn relay_info(&self, name: &Name) -> Option<RelayInfo> {
        self.stats.info(name, self.now)
    }

    /// The relays in use, in order of preference.
    pub fn relays_in_use(&self) -> &[Name] {
        &self.in_use
    }

    /// The assignment, or why the service has given none.
    pub fn assignment(&self) -> (Option<&CurrentAssignment>, Option<NoRelayReason>) {
        (self.held_assignment.as_ref().map(|assigned| &assigned.assignment), self.no_relay_reason)
    }

    /// B_o(c), as far as it was observed.
    pub fn best_link_rate(&self) -> Bitrate {
        self.links.best_rate
    }

    /// The request that the edge would send now.
    pub fn assignment_request(&self) -> AssignmentRequest {
        let unknown = || UNKNOWN_ORIGIN.parse().expect("a name and a port");
        AssignmentRequest {
            origin: self.origin.clone().unwrap_or_else(unknown),
            best_link_rate: self.links.best_rate,
            target_rate: self.config.target_rate,
            position: self.config.position,
            measurements: self.stats.measurements(self.near_threshold(), self.now),
        }
    }

    fn advance_time(&mut self, now: Instant) {
        self.now = self.now.max(now);
    }

    fn begin_op(&mut self, pending: PendingOp, output: Output) {
        self.pending = pending;
        self.outputs.push_back(output);
    }

    fn schedule_refresh(&mut self, at: Instant) {
        self.next_refresh = Some(self.next_refresh.map_or(at, |again| again.min(at)));
    }

    fn schedule_refresh_later(&mut self) {
        let earliest = self.last_refresh.map_or(self.now, |refreshed_at| refreshed_at + MIN_REFRESH_PAUSE);
        self.schedule_refresh(earliest.max(self.now));
    }

    /// Starts the next probe, or requests an assignment after the last one (rule 2).
    fn probe_next(&mut self) {
        while let Some(relay) = self.probe_queue.pop_front() {
            let limits = self.probe_limits().filter(|_| self.now.since(self.probing_since) < TOTAL_PROBE_TIME);
            if let Some(limits) = limits {
                let is_metered = self.links.metered && limits.device.is_none();
                let links = self.links.up.clone();
                self.begin_op(PendingOp::Probe { is_metered, links }, Output::Probe(relay, limits));
                return;
            }
        }
        let request = self.assignment_request();
        self.begin_op(PendingOp::Request, Output::RequestAssignment(request));
    }

    /// Limits of the next probe; `None`: nothing may be sent (rule 4).
    fn probe_limits(&self) -> Option<ProbeLimits> {
        let time_left = (TOTAL_PROBE_TIME.saturating_sub(self.now.since(self.probing_since))).min(PROBE_TIME);
        let limits = ProbeLimits { max_bytes: MAX_PROBE_SIZE, max_time: time_left, device: None };
        let cap = self.config.probe_bytes;
        if !self.links.metered {
            return Some(limits);
        }
        if !cap.is_zero() && self.stats.metered_today(self.now) + cap <= cap * PROBES_A_DAY {
            return Some(ProbeLimits { max_bytes: cap.min(MAX_PROBE_SIZE), ..limits });
        }
        self.links.unmetered.clone().map(|unmetered| ProbeLimits { device: Some(unmetered), ..limits })
    }

    fn is_fresh(&self, relay: &Name) -> bool {
        self.stats.is_fresh(relay, &self.links.up, self.now)
    }

    /// Updates the order of the relays in use (rule 5).
    fn update_order(&mut self) {
        let previous = self.previous_relay.as_ref().filter(|_| self.config.never_direct);
        let held_relay = self.held_assignment.as_ref().map(|assignment| &assignment.assignment.relay).or(previous);
        let mut order = self.stats.ranked(&self.candidates, self.near_threshold(), self.now);
        // The assigned relay comes first, unless it has failed.
        order.sort_by_key(|name| (self.stats.is_failed(name, self.now), Some(name) != held_relay));
        order.truncate(MAX_IN_USE);
        if order != self.in_use {
            self.in_use.clone_from(&order);
            self.outputs.push_back(Output::UseRelays(order));
        }
    }

    /// The rate that is fast enough for a near relay to be preferred: 80 % of the highest rate, or the edge's target if that is lower.
    /// `None`: the fastest is preferred.
    fn near_threshold(&self) -> Option<Bitrate> {
        let sufficient_rate = self.stats.best_rate(self.now).share(Ratio::from_percent(80));
        self.config
            .prefer_near
            .then(|| self.config.target_rate.map_or(sufficient_rate, |wanted| wanted.min(sufficient_rate)))
    }

    /// The report for the service (rule 6).
    fn build_report(&self) -> Report {
        let in_use = |assigned: &&HeldAssignment| self.in_use.first() == Some(&assigned.assignment.relay);
        let assignment = self.held_assignment.as_ref().filter(in_use).map(|assigned| assigned.assignment.clone());
        let throughput = if assignment.is_some() { self.throughput } else { Bitrate::ZERO };
        Report {
            request: self.assignment_request(),
            throughput,
            offered_rate: self.offered_rate.filter(|_| assignment.is_some()),
            assignment,
        }
    }
}

impl Machine for RelaySelector {
    type Input = Input;
    type Output = Output;
    type Reason = Reason;

    fn handle(&mut self, now: Instant, input: Input) {
        match input {
            Input::Candidates(candidates) => self.handle_candidates(candidates, now),
            Input::ProbeEnded { relay, result, sent } => self.handle_probe(&relay, result, sent, now),
            Input::Reply(reply) => self.handle_reply(reply, now),
            Input::Unreachable => self.handle_unreachable(now),
            Input::RelayFailed { relay, has_failed } => self.set_failed(&relay, has_failed, now),
            Input::Traffic { samples, time } => self.record_traffic(&samples, time, now),
            Input::Links(links) => self.set_links(links, now),
            Input::Origin(origin) => {
                self.advance_time(now);
                self.set_origin(origin);
            }
        }
    }

    /// Starts the operation that is due.
    fn tick(&mut self, now: Instant) {
        self.advance_time(now);
        if self.deadline().is_none_or(|(deadline, _)| deadline > self.now) {
            return;
        }
        if self.next_refresh.is_some_and(|again| again <= self.now) {
            (self.last_refresh, self.next_refresh) = (Some(self.now), Some(self.now + REFRESH_INTERVAL));
            self.begin_op(PendingOp::Candidates, Output::FetchCandidates);
        } else {
            let report = self.build_report();
            self.begin_op(PendingOp::Report, Output::SendReport(report));
        }
    }

    fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// `None`: an operation is in progress.
    fn deadline(&self) -> Option<(Instant, Reason)> {
        if self.pending != PendingOp::Idle {
            return None;
        }
        // If both are due, candidates come first: the report after them then states the new measurements.
        let refresh = self.next_refresh.map(|at| (at.max(self.not_before), Reason::Refresh));
        let report = (self.next_report.max(self.not_before), Reason::Report);
        Some(refresh.filter(|refresh| refresh.0 <= report.0).unwrap_or(report))
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
