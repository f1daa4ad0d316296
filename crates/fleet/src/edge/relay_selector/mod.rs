//! Which relay an edge uses, and what it asks the fleet's service for (BASS §III-A.1, §IV-B): the edge's side of the matching.
//!
//! In: candidates, measured rates, what the service says, how flows and links go, each with the time. Out, by
//! [`Machine::poll`]: what is to be asked, measured and used. The driver is `agent`.
//!
//! 1. Candidates are asked for at the start, each `REMEASURE`, when the links are others, when the relay in use fails, and when
//!    it carries less than `LOW` of what it did, `LOW_LOOKS` looks running. Not more than once in `CALM`, but for a failure.
//! 2. A candidate is measured if no rate of it is fresh: `FRESH`, by these links. One after the other, for they share the
//!    links; `EACH` each and `ALL` in all, the nearest first. Then the request goes out.
//! 3. What flows carry while data waits is a relay's rate, too, and keeps it fresh: a live stream is not disturbed by probes.
//! 4. Bytes of metered links are counted: [`Config::probe_bytes`] a probe and ten times that a day. When they are used up an
//!    unmetered link is measured alone, and none where there is none.
//! 5. Used are, in this order: what the service has assigned; other candidates by their rates, or by their round trips among those
//!    that are fast enough ([`Config::near`]); what was known before. Who failed comes last. Only new flows are led.
//!    An edge whose flows never go directly ([`Config::strict`]) follows the service where it gives nothing: with `no-gain` it keeps the
//!    relay that it had; with `no-capacity` new flows wait for an assignment ([`Machine::waits`]).
//! 6. It says to hold a relay only if the service has given it and new flows go there.
//! 7. A service that does not answer changes nothing but the time of the next question, which doubles up to `LONGEST`.

mod relay_stats;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Duration;

use marline_core::units::{Bitrate, DataSize, Instant, Ratio};

use super::throughput_probe::{ProbeLimits, ProbeResult};
use crate::identity::Name;
use crate::service::Position;
use crate::service::api_types::{
    AssignmentReply, AssignmentRequest, Candidate, CurrentAssignment, Endpoint, NoRelayReason, Report,
};

pub use self::relay_stats::{PersistedState, RelayInfo};

use self::relay_stats::RelayStats;

/// chosen: as often as the service matches all anew (BASS §IV-B).
const REFRESH_INTERVAL: Duration = Duration::from_secs(30 * 60);
/// chosen: the same.
const RATE_LIFETIME: Duration = Duration::from_secs(30 * 60);
/// chosen: three candidates then fit into [`ALL`].
const PROBE_TIME: Duration = Duration::from_millis(1500);
/// BASS §IV-B spends so long on each.
const TOTAL_PROBE_TIME: Duration = Duration::from_secs(5);
/// chosen: links that come and go must not fill the rest with probes.
const MIN_REFRESH_PAUSE: Duration = Duration::from_secs(60);
/// chosen: a relay that fails is replaced now, but a fleet that fails is not asked all the time.
const FAILURE_REFRESH_PAUSE: Duration = Duration::from_secs(5);
/// chosen: as the service judges reports.
const LOW_RATE_SHARE: Ratio = Ratio::from_percent(70);
const MAX_LOW_SAMPLES: u32 = 2;
/// chosen: a relay that was restarted is tried again by then.
const FAILURE_MEMORY: Duration = Duration::from_secs(60);
const MIN_BACKOFF: Duration = Duration::from_secs(1);
const MAX_BACKOFF: Duration = Duration::from_secs(60);
/// Until the service says otherwise.
const DEFAULT_HEARTBEAT: Duration = Duration::from_secs(5);
/// chosen: with a service that asks for more.
const HEARTBEAT_RANGE: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(60)];
/// How many probes of [`Config::probe_bytes`] a day has.
const PROBES_A_DAY: u64 = 10;
const DAY: Duration = Duration::from_secs(86_400);
/// chosen: 107 Mbit/s for as long as a probe lasts; the relay has a bound of its own.
const MAX_PROBE_SIZE: DataSize = DataSize::from_mib(20);
/// How much of the time data must wait for a rate to be what the links give.
const FULL_SHARE: Ratio = Ratio::from_percent(80);
/// chosen: half of the time is enough to say that programs offer more.
const BUSY_SHARE: Ratio = Ratio::from_percent(50);
/// Of an edge that does not know yet where its stream will go (RFC 2606 §2: nobody is called so).
const UNKNOWN_ORIGIN: &str = "unknown.invalid:1935";
/// chosen: a flow asks no more.
const MAX_IN_USE: usize = 6;

/// How it chooses.
#[derive(Clone, Debug, PartialEq)]
pub struct SelectorConfig {
    /// Where the stream goes to; none: what is heard of it ([`Machine::origin`]).
    pub origin: Option<Endpoint>,
    /// More than this is not needed; none: whatever can be had.
    pub target_rate: Option<Bitrate>,
    /// Where the edge is.
    pub position: Option<Position>,
    /// Of relays that are fast enough the nearest is the best, and not the fastest.
    pub prefer_near: bool,
    /// What one probe may send over metered links.
    pub probe_bytes: DataSize,
    /// No flow goes directly (`--no-direct`): what the service says where it gives no relay is followed.
    pub never_direct: bool,
}

impl Default for SelectorConfig {
    /// chosen: 2 MB are ten seconds of a live stream.
    fn default() -> Self {
        Self {
            origin: None,
            target_rate: None,
            position: None,
            prefer_near: false,
            probe_bytes: DataSize::from_bytes(2_000_000),
            never_direct: false,
        }
    }
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Ask for candidates, and bring them to [`Machine::candidates`].
    FetchCandidates,
    /// Measure, and bring it to [`Machine::probed`].
    Probe(Name, ProbeLimits),
    /// Ask for a relay, and bring the answer to [`Machine::standing`].
    RequestAssignment(AssignmentRequest),
    /// Report, and bring the answer to [`Machine::standing`].
    SendReport(Report),
    /// Lead new flows to these, the best first.
    UseRelays(Vec<Name>),
    /// What is known has changed: keep it ([`Machine::save`]).
    Persist,
}

/// What went through one relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrafficSample {
    /// From programs.
    pub sent: DataSize,
    /// For how long data waited.
    pub blocked: Duration,
}

/// What the links are like.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkFacts {
    /// Those that can carry, by name.
    pub up: Vec<String>,
    /// One of them costs money by the byte.
    pub metered: bool,
    /// The best one that does not.
    pub unmetered: Option<String>,
    /// B_o(c): the most that one of them has shown alone.
    pub best_rate: Bitrate,
}

/// What is under way.
#[derive(Clone, Debug, PartialEq, Eq)]
enum PendingOp {
    Idle,
    Candidates,
    Probe(Name),
    Request,
    Report,
}

/// What the service has given.
#[derive(Clone, Debug)]
struct HeldAssignment {
    assignment: CurrentAssignment,
    /// What the relay carried or showed then.
    initial_rate: Bitrate,
}

/// The machine.
#[derive(Debug)]
pub struct RelaySelector {
    config: SelectorConfig,
    now: Instant,
    stats: RelayStats,
    candidates: Vec<Name>,
    origin: Option<Endpoint>,
    links: LinkFacts,
    held_assignment: Option<HeldAssignment>,
    no_relay_reason: Option<NoRelayReason>,
    /// The service has said `no-capacity`, and nothing else since that decides.
    is_fleet_full: bool,
    /// The relay that it had when the service said `no-gain`.
    previous_relay: Option<Name>,
    pending: PendingOp,
    probe_queue: VecDeque<Name>,
    probing_since: Instant,
    /// When candidates were asked for last, and are to be asked for again.
    last_refresh: Option<Instant>,
    next_refresh: Option<Instant>,
    /// When the next report is due.
    next_report: Instant,
    /// Rule 7: not before.
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
    /// One that knows what an earlier run has kept; `passed` is how long that is ago.
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

    /// What is to be done next, until there is nothing left.
    pub fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When to tick again; none: something is under way.
    pub fn deadline(&self) -> Option<Instant> {
        let next = self.next_refresh.map_or(self.next_report, |again| again.min(self.next_report));
        (self.pending == PendingOp::Idle).then(|| next.max(self.not_before))
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Instant) {
        self.advance_time(now);
        if self.deadline().is_none_or(|deadline| deadline > self.now) {
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

    /// The service offers these.
    pub fn handle_candidates(&mut self, candidates: Vec<Candidate>, now: Instant) {
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

    /// A probe has ended; `sent` is what it cost.
    pub fn handle_probe(&mut self, relay: &Name, result: Option<ProbeResult>, sent: DataSize, now: Instant) {
        self.advance_time(now);
        if self.links.metered && self.probe_limits().is_some_and(|limits| limits.device.is_none()) {
            self.stats.add_metered(sent, self.now);
        }
        match result {
            Some(result) => self.stats.record_rate(relay, result.rate, Some(result.rtt), &self.links.up, self.now),
            None => self.stats.set_failed(relay, true, self.now),
        }
        self.update_order();
        self.outputs.push_back(Output::Persist);
        self.probe_next();
    }

    /// The service's answer to a request or a report.
    pub fn handle_reply(&mut self, reply: AssignmentReply, now: Instant) {
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
                let held = CurrentAssignment {
                    relay: assignment.relay,
                    reservation: assignment.reservation,
                    version: assignment.version,
                };
                if self.held_assignment.as_ref().is_none_or(|assigned| assigned.assignment != held) {
                    let rate = self.stats.rate(&held.relay).unwrap_or(held.reservation);
                    (self.held_assignment, self.low_samples) =
                        (Some(HeldAssignment { assignment: held, initial_rate: rate }), 0);
                    self.outputs.push_back(Output::Persist);
                }
                (self.is_fleet_full, self.previous_relay) = (false, None);
            }
            None => {
                let previous = self.held_assignment.take().map(|assigned| assigned.assignment.relay);
                match reply.reason {
                    // Not decided yet.
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

    /// Whether new flows are to wait until the service gives a relay.
    pub fn is_waiting(&self) -> bool {
        self.config.never_direct && self.is_fleet_full && self.held_assignment.is_none()
    }

    /// The service did not answer, or not with what was asked for.
    pub fn handle_unreachable(&mut self, now: Instant) {
        self.advance_time(now);
        let pending = std::mem::replace(&mut self.pending, PendingOp::Idle);
        self.backoff = (self.backoff * 2).clamp(MIN_BACKOFF, MAX_BACKOFF);
        self.not_before = self.now + self.backoff;
        self.probe_queue.clear();
        if matches!(pending, PendingOp::Candidates | PendingOp::Request) {
            self.next_refresh = Some(self.now);
        }
    }

    /// A relay fails, or carries again.
    pub fn set_failed(&mut self, relay: &Name, has_failed: bool, now: Instant) {
        self.advance_time(now);
        if self.stats.is_failed(relay, self.now) == has_failed {
            return;
        }
        self.stats.set_failed(relay, has_failed, self.now);
        if has_failed && self.held_assignment.as_ref().is_some_and(|assigned| assigned.assignment.relay == *relay) {
            let earliest = self.last_refresh.map_or(self.now, |asked| asked + FAILURE_REFRESH_PAUSE);
            self.schedule_refresh(earliest.max(self.now));
        }
        self.update_order();
    }

    /// What has gone through relays in this time.
    pub fn record_traffic(&mut self, samples: &[(Name, TrafficSample)], time: Duration, now: Instant) {
        self.advance_time(now);
        if time.is_zero() {
            return;
        }
        for (relay, sample) in samples {
            let rate = sample.sent / time;
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
        let TrafficSample { sent, blocked: waited } =
            current.unwrap_or(TrafficSample { sent: DataSize::ZERO, blocked: Duration::ZERO });
        let (rate, blocked_share) = (sent / time, Ratio::of(nanos(waited), nanos(time)));
        self.throughput = rate;
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

    /// The links are like this.
    pub fn set_links(&mut self, links: LinkFacts, now: Instant) {
        self.advance_time(now);
        let have_changed = links.up != self.links.up && !self.links.up.is_empty();
        let best_rate = links.best_rate.max(if have_changed { Bitrate::ZERO } else { self.links.best_rate });
        self.links = LinkFacts { best_rate, ..links };
        if have_changed {
            self.schedule_refresh_later();
        }
    }

    /// A flow goes there; whether that is news for [`Machine::save`], which may wait: each flow goes somewhere else.
    pub fn set_origin(&mut self, origin: Endpoint) -> bool {
        let is_new = self.config.origin.is_none() && self.origin.as_ref() != Some(&origin);
        if is_new {
            self.origin = Some(origin);
        }
        is_new
    }

    /// What an earlier run needs to know.
    pub fn save(&self) -> PersistedState {
        self.stats.save(self.origin.clone(), self.now)
    }

    /// Where relays are, and what is known of them: those that are offered or used.
    pub fn relay_info(&self, name: &Name) -> Option<RelayInfo> {
        self.stats.info(name, self.now)
    }

    /// The relays that are used, the best first.
    pub fn relays_in_use(&self) -> &[Name] {
        &self.in_use
    }

    /// What the service has given, and why not if it has given nothing.
    pub fn assignment(&self) -> (Option<&CurrentAssignment>, Option<NoRelayReason>) {
        (self.held_assignment.as_ref().map(|assigned| &assigned.assignment), self.no_relay_reason)
    }

    /// B_o(c), as far as it has been seen.
    pub fn best_link_rate(&self) -> Bitrate {
        self.links.best_rate
    }

    /// What it would ask for now.
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
        let earliest = self.last_refresh.map_or(self.now, |asked| asked + MIN_REFRESH_PAUSE);
        self.schedule_refresh(earliest.max(self.now));
    }

    /// Rule 2.
    fn probe_next(&mut self) {
        while let Some(relay) = self.probe_queue.pop_front() {
            let limits = self.probe_limits().filter(|_| self.now.since(self.probing_since) < TOTAL_PROBE_TIME);
            if let Some(limits) = limits {
                self.begin_op(PendingOp::Probe(relay.clone()), Output::Probe(relay, limits));
                return;
            }
        }
        let request = self.assignment_request();
        self.begin_op(PendingOp::Request, Output::RequestAssignment(request));
    }

    /// Rule 4; none: nothing may be sent.
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

    /// Rule 5.
    fn update_order(&mut self) {
        let previous = self.previous_relay.as_ref().filter(|_| self.config.never_direct);
        let held_relay = self.held_assignment.as_ref().map(|seat| &seat.assignment.relay).or(previous);
        let mut order = self.stats.ranked(&self.candidates, self.near_threshold(), self.now);
        // The one that was given, unless it fails.
        order.sort_by_key(|name| (self.stats.is_failed(name, self.now), Some(name) != held_relay));
        order.truncate(MAX_IN_USE);
        if order != self.in_use {
            self.in_use.clone_from(&order);
            self.outputs.push_back(Output::UseRelays(order));
        }
    }

    /// What is enough, where the nearest counts.
    fn near_threshold(&self) -> Option<Bitrate> {
        let enough = self.stats.best_rate(self.now).share(Ratio::from_percent(80));
        self.config.prefer_near.then(|| self.config.target_rate.map_or(enough, |wanted| wanted.min(enough)))
    }

    /// Rule 6.
    fn build_report(&self) -> Report {
        let in_use = |assigned: &&HeldAssignment| self.in_use.first() == Some(&assigned.assignment.relay);
        let held = self.held_assignment.as_ref().filter(in_use).map(|assigned| assigned.assignment.clone());
        let throughput = if held.is_some() { self.throughput } else { Bitrate::ZERO };
        Report {
            request: self.assignment_request(),
            throughput,
            offered_rate: self.offered_rate.filter(|_| held.is_some()),
            assignment: held,
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
