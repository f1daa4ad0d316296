//! Fleet scheduler (BASS §III-A.3 and §IV-B): a state machine that decides which edge may use which relay, and for how long.
//!
//! Its inputs are heartbeats of relays, requests and reports of edges, drains, and solved matchings. Its outputs are the replies, and the
//! actions to take: solve a matching, notify an edge that its request is decided, raise the epoch.
//!
//! ```text
//! heartbeats ─▶ relay_table ─┐
//! edges ──────▶ placements ──┼─▶ capacity ─▶ candidates, matching ─▶ edges
//!               matching_window
//! ```
//!
//! 1. Members are identified by the names in their certificates. No field of a body is ever taken for the sender's name.
//! 2. A relay is healthy while its last heartbeat is no older than [`SchedulerConfig::max_missed`] heartbeat intervals. A relay that is
//!    unhealthy, drains, or has a free share r(s) = R(s) / T(s) below [`SchedulerConfig::threshold`] is offered to no edge.
//! 3. The load of a relay is the larger one of what it reports and of what its edges have reserved or use. A relay that reports less
//!    load than it has gets no more edges for it.
//! 4. Requests are collected for [`SchedulerConfig::window`] and matched together. No relay is filled beyond the threshold: that share
//!    is for bursts (§IV-B). BASS's eq. 2 alone would give it to the requests of the first window.
//! 5. An edge keeps its relay until its lease ends; each report renews the lease. The end of a lease frees the reservation only:
//!    streams are between relay and edge, and continue.
//! 6. All edges are matched again each [`SchedulerConfig::reallocation_interval`]. Between these times an edge is matched only if it
//!    sends a request, if its relay fails or drains or delivers too little in two consecutive reports ([`SchedulerConfig::low_share`]),
//!    or if it has no relay and still reports. Other edges move only if the move gains more than a share
//!    ([`SchedulerConfig::min_gain`]) of what the moving edges have, and never within [`SchedulerConfig::min_stay`] after their last
//!    move.
//! 7. All state is soft: an edge that reports the relay it uses gets it again, as far as it has measured it and the relay has capacity.
//!    Relays have better information: for two heartbeats (the grace period) the reservations that they report take precedence over
//!    those that edges report (`recovered`). A process that becomes leader waits equally long before it considers a relay failed.
//! 8. Time does not go back. After a jump of more than two heartbeats no member and no lease expires during the next two.
//! 9. Matchings are solved outside ([`MatchingProblem::solve`]) while heartbeats continue. Parts of a solution that do not fit the
//!    state any more are not applied.
//! 10. A scheduler that is not the leader ([`Input::StepDown`], [`Input::Follow`]) replies to relays, but
//!     decides nothing and lets nothing expire.

mod candidates;
mod capacity;
mod clock;
mod edges;
mod heartbeats;
mod matching;
mod matching_window;
mod placements;
mod recovered;
mod relay_table;
mod replication;
#[cfg(test)]
mod tests;

use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use super::Name;
use super::messages::{
    AssignmentReply, AssignmentRequest, Candidate, CurrentAssignment, Heartbeat, HeartbeatReply, Report,
    StateVersion,
};
use crate::machine::Machine;
use crate::units::{Instant, Ratio};

pub use self::candidates::Proximity;
pub use self::matching::{MatchingProblem, MatchingSolution};
pub use self::replication::{Member, MemberRow, StoredEdge};

use self::candidates::candidates;
use self::capacity::CapacityView;
use self::clock::Clock;
use self::matching_window::MatchingWindow;
use self::placements::{EdgeRecord, Placement, Placements};
use self::relay_table::RelayTable;

/// Parameters of the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SchedulerConfig {
    /// t in BASS: how long requests are collected before they are matched.
    pub window: Duration,
    /// The share of a relay's capacity that is kept free for bursts.
    pub threshold: Ratio,
    /// Interval between matchings of all edges.
    pub reallocation_interval: Duration,
    /// Interval between the heartbeats of relays, and between the reports of edges.
    pub heartbeat: Duration,
    /// A relay is unhealthy after this many missed heartbeats.
    pub max_missed: u32,
    /// Duration of an assignment that no report renews.
    pub lease: Duration,
    /// The gain that justifies moving edges, as a share of what they have now.
    pub min_gain: Ratio,
    /// How long an edge stays at a relay at least.
    pub min_stay: Duration,
    /// An edge's throughput is low if it is below this share of the rate that its programs offer, or of its reservation if that is less.
    pub low_share: Ratio,
    /// Largest number of candidate relays offered to an edge; it measures each of them.
    pub max_candidates: usize,
}

impl Default for SchedulerConfig {
    /// Our choice: an edge that starts waits a fifth of a second. Leases last six heartbeats, so that an edge keeps its relay for half a
    /// minute without radio coverage. The other values are those of BASS or follow from the rules above.
    fn default() -> Self {
        let heartbeat = Duration::from_secs(5);
        Self {
            window: Duration::from_millis(200),
            threshold: Ratio::from_percent(10),
            reallocation_interval: Duration::from_secs(30 * 60),
            heartbeat,
            max_missed: 3,
            lease: heartbeat * 6,
            min_gain: Ratio::from_percent(10),
            min_stay: Duration::from_secs(60),
            low_share: Ratio::from_percent(70),
            max_candidates: 3,
        }
    }
}

/// What a scheduler was created with: its parameters, its epoch (0: another process leads), and the time.
pub type Config = (SchedulerConfig, u64, Instant);

/// An event, a request of a member or of the driver, or the result of an output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Input {
    /// A relay's heartbeat. The reply is [`Reply::Heartbeat`].
    Heartbeat(Name, Heartbeat),
    /// An edge's request for a relay. It is decided later ([`Output::Decided`]).
    Request(Name, AssignmentRequest),
    /// An edge's report. The reply is [`Reply::Assignment`].
    Report(Name, Report),
    /// An edge releases its relay. The reply is [`Reply::Assignment`].
    Release(Name),
    /// An edge asks which relays to measure. The reply is [`Reply::Candidates`].
    Candidates(Name, Proximity),
    /// The solution of the matching in [`Output::Solve`].
    Solved(MatchingSolution),
    /// An operator drains a relay, or ends its drain.
    Drain {
        /// The relay.
        relay: Name,
        /// Whether it is drained.
        draining: bool,
        /// How long; `None`: without end.
        time: Option<Duration>,
    },
    /// Replaces all drains, each with its remaining time; `None`: without end.
    SetDrains(Vec<(Name, Option<Duration>)>),
    /// This process leads, or still leads, in this epoch or a later one. Members that reported to another process until now have two
    /// heartbeats to report here (rule 7).
    Lead {
        /// The epoch.
        epoch: u64,
    },
    /// The lease of this process has ended. The state is kept, because no other process may lead yet either.
    StepDown,
    /// Another process leads and has newer information: the state except for the drains is discarded.
    Follow,
    /// Switches the collection of changed rows on or off; initially off. Switching it on marks all rows as changed.
    Replicate(bool),
    /// Returns at most so many rows that have changed, as [`Reply::Rows`].
    TakeRows(usize),
    /// The rows of these members could not be written and count as changed again.
    MarkUnwritten(Vec<Member>),
    /// Adds the members in these rows. Edges that are known already keep their newer state.
    Restore(Vec<MemberRow>),
}

/// An action that the scheduler requests from its driver, or a reply.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Output {
    /// The reply to the last input.
    Reply(Reply),
    /// Solve this matching; the result is [`Input::Solved`].
    Solve(MatchingProblem),
    /// The request of this edge has been decided ([`FleetScheduler::reply_for`]).
    Decided(Name),
    /// A relay has seen this epoch: continue with a later one ([`Input::Lead`]).
    RaiseEpoch(u64),
}

/// The reply to an input.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// To a heartbeat.
    Heartbeat(HeartbeatReply),
    /// To a report or a release.
    Assignment(AssignmentReply),
    /// The relays that the edge should measure, the nearest first.
    Candidates(Vec<Candidate>),
    /// The rows to write.
    Rows(Vec<MemberRow>),
    /// The input is invalid and was ignored; the text says why.
    Rejected(String),
}

/// Purpose of the next deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The window of requests ends.
    Window,
    /// Leases, health and drains are checked.
    Sweep,
}

/// The state machine; see the [module documentation](self).
#[derive(Debug)]
pub struct FleetScheduler {
    config: SchedulerConfig,
    clock: Clock,
    /// Rule 10: false if another process leads.
    is_leader: bool,
    relays: RelayTable,
    placements: Placements,
    window: MatchingWindow,
    next_sweep: Instant,
    outputs: VecDeque<Output>,
}

impl FleetScheduler {
    /// A scheduler without members, which leads in this epoch; 0: another process leads.
    pub fn new(config: SchedulerConfig, epoch: u64, now: Instant) -> Self {
        Self {
            config,
            clock: Clock::new(now, config.heartbeat),
            is_leader: epoch > 0,
            relays: RelayTable::default(),
            placements: Placements::new(epoch),
            window: MatchingWindow::new(&config, now),
            next_sweep: now + SWEEP_INTERVAL,
            outputs: VecDeque::new(),
        }
    }

    /// Whether this process leads.
    pub fn is_leader(&self) -> bool {
        self.is_leader
    }

    /// The current version of the state.
    pub fn version(&self) -> StateVersion {
        self.placements.version()
    }

    fn lead(&mut self, epoch: u64) {
        if !self.is_leader {
            self.is_leader = true;
            self.clock.start_grace();
        }
        self.begin_epoch(epoch);
        let relays: Vec<Name> = self.relays.iter().map(|(name, _)| name.clone()).collect();
        relays.iter().for_each(|relay| self.shed_excess(relay));
    }

    /// Continues in a later epoch. This starts no grace period, because relays can cause it (rule 3 of `heartbeats`).
    fn begin_epoch(&mut self, epoch: u64) {
        if epoch > self.version().epoch {
            self.placements.begin_epoch(epoch);
            self.mark_all_changed();
        }
    }

    fn follow(&mut self) {
        let (drains, is_replicated) = (self.relays.take_drains(), self.placements.changed().is_enabled());
        let new = Self::new(self.config, 0, self.clock.now());
        *self = Self { relays: RelayTable::with_drains(drains), ..new };
        self.replicate(is_replicated);
    }

    fn replicate(&mut self, is_replicated: bool) {
        self.relays.changed().enable(is_replicated);
        self.placements.changed().enable(is_replicated);
        self.mark_all_changed();
    }

    fn mark_all_changed(&mut self) {
        self.relays.mark_all_changed();
        self.placements.mark_all_changed();
    }

    /// The rows that have changed since the last call, at most `max_rows`.
    fn take_rows(&mut self, max_rows: usize) -> Vec<MemberRow> {
        let mut rows = Vec::new();
        while rows.len() < max_rows
            && let Some(name) = self.relays.changed().pop()
        {
            let heartbeat = self.relays.get(&name).map(|relay| relay.heartbeat.clone());
            rows.push(MemberRow::Relay(name, heartbeat));
        }
        while rows.len() < max_rows
            && let Some(name) = self.placements.changed().pop()
        {
            let edge = self.placements.get(&name).map(EdgeRecord::to_stored);
            rows.push(MemberRow::Edge(name, edge));
        }
        rows
    }

    fn mark_unwritten(&mut self, members: &[Member]) {
        for member in members {
            match member {
                Member::Relay(name) => self.relays.changed().mark(name),
                Member::Edge(name) => self.placements.changed().mark(name),
            }
        }
    }

    fn restore(&mut self, rows: Vec<MemberRow>) {
        let now = self.clock.now();
        // Relays first: edges refer to them.
        let (relays, edges): (Vec<_>, Vec<_>) =
            rows.into_iter().partition(|row| matches!(row, MemberRow::Relay(..)));
        for row in relays.into_iter().chain(edges) {
            match row {
                MemberRow::Relay(name, Some(heartbeat)) if heartbeat.validate().is_ok() => {
                    self.relays.restore(name, heartbeat, now);
                }
                MemberRow::Edge(name, Some(edge))
                    if edge.request.validate().is_ok() && self.placements.get(&name).is_none() =>
                {
                    self.note_request(&name, edge.request);
                    if let Some(CurrentAssignment { relay, reservation, version }) = edge.assignment {
                        let lease_ends = self.lease_end();
                        let placement = Placement { relay, reservation, assigned_at: now, lease_ends, version };
                        self.placements.update(&name, |edge| edge.placement = Some(placement));
                    }
                }
                _ => {}
            }
        }
        self.placements.mark_claims_changed();
        self.mark_all_changed();
    }

    /// Lets drains, recovered reservations, relays and leases expire.
    fn expire(&mut self) {
        let now = self.clock.now();
        self.relays.expire_drains(now);
        if !self.clock.is_in_grace() {
            if self.placements.end_recovery() {
                let silent = self.relays.end_reports();
                silent.iter().for_each(|relay| self.shed_excess(relay));
            }
            self.relays.expire(now, self.config.lease);
            for edge in self.placements.expired(now, &self.config) {
                self.release(&edge);
                self.placements.remove(&edge);
            }
        }
        self.requeue_displaced();
        let relays = &self.relays;
        self.placements.remove_unused_claims(|relay| relays.get(relay).is_some());
    }

    /// Adds an edge to the window.
    fn enqueue(&mut self, edge: &Name) {
        self.window.enqueue(edge, self.clock.now(), &self.config);
    }

    fn view(&self) -> CapacityView<'_> {
        CapacityView { config: &self.config, clock: self.clock, relays: &self.relays, placements: &self.placements }
    }

    /// Processes an input; returns the reply to it, if it has one. The error says why the input is invalid.
    fn process(&mut self, input: Input) -> Result<Option<Reply>, String> {
        let mut reply = None;
        match input {
            Input::Heartbeat(relay, heartbeat) => {
                reply = Some(Reply::Heartbeat(self.heartbeat(&relay, heartbeat)?))
            }
            Input::Request(edge, request) => self.request(&edge, request)?,
            Input::Report(edge, report) => reply = Some(Reply::Assignment(self.report(&edge, report)?)),
            Input::Release(edge) => {
                self.release(&edge);
                reply = Some(Reply::Assignment(self.reply_for(&edge)));
            }
            Input::Candidates(edge, proximity) => {
                reply = Some(Reply::Candidates(candidates(self.view(), &edge, &proximity)));
            }
            Input::Solved(solution) => self.apply_solution(solution),
            Input::Drain { relay, draining, time } => self.drain(&relay, draining, time),
            Input::SetDrains(drains) => self.set_drains(drains),
            Input::Lead { epoch } => self.lead(epoch),
            Input::StepDown => self.is_leader = false,
            Input::Follow => self.follow(),
            Input::Replicate(is_replicated) => self.replicate(is_replicated),
            Input::TakeRows(max_rows) => reply = Some(Reply::Rows(self.take_rows(max_rows))),
            Input::MarkUnwritten(members) => self.mark_unwritten(&members),
            Input::Restore(rows) => self.restore(rows),
        }
        Ok(reply)
    }
}

impl Machine for FleetScheduler {
    type Input = Input;
    type Output = Output;
    type Reason = Reason;

    fn handle(&mut self, now: Instant, input: Input) {
        self.clock.advance(now);
        let reply = self.process(input).unwrap_or_else(|why| Some(Reply::Rejected(why)));
        self.outputs.extend(reply.map(Output::Reply));
    }

    fn tick(&mut self, now: Instant) {
        self.clock.advance(now);
        let now = self.clock.now();
        if !self.is_leader {
            self.next_sweep = now + SWEEP_INTERVAL;
            return;
        }
        if now >= self.next_sweep {
            self.expire();
            self.next_sweep = now + SWEEP_INTERVAL;
        }
        if let Some((scope, queue)) = self.window.take_due(now, &self.config) {
            self.begin_matching(scope, &queue);
        }
    }

    fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    fn deadline(&self) -> Option<(Instant, Reason)> {
        let window = self.window.ends_at().filter(|_| self.is_leader).map(|at| (at, Reason::Window));
        let sweep = (self.next_sweep, Reason::Sweep);
        Some(window.filter(|window| window.0 < sweep.0).unwrap_or(sweep))
    }
}

/// Our choice: leases and health change over many seconds.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
