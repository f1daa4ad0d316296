//! Fleet scheduler (BASS §III-A.3 and §IV-B): a state machine that decides which edge may use which relay, and for how long.
//!
//! Its inputs are heartbeats of relays, requests and reports of edges, drains, and solved matchings, each with the current time.
//! Calls return replies; [`FleetScheduler::poll`] returns the actions to take: solve a matching, reply to an edge, raise the epoch.
//!
//! 1. Members are identified by the names in their certificates. No field of a body is ever taken for the sender's name.
//! 2. A relay is healthy while its last heartbeat is no older than [`SchedulerConfig::max_missed`] heartbeat intervals. A relay that is
//!    unhealthy, drains, or has a free share r(s) = R(s) / T(s) below [`SchedulerConfig::threshold`] is offered to no edge.
//! 3. The load of a relay is the larger one of what it reports and of what its edges have reserved or use. A relay that reports less
//!    load than it has gets no more edges for it.
//! 4. Requests are collected for [`SchedulerConfig::window`] and matched together. No relay is filled beyond the threshold: that share
//!    is for bursts (§IV-B). BASS's eq. 2 alone would give it to the first window.
//! 5. An edge keeps its relay until its lease ends; each report renews the lease. The end of a lease frees the reservation only:
//!    streams are between relay and edge, and continue.
//! 6. All edges are matched anew each [`SchedulerConfig::reallocation_interval`]. Between these times only an edge is matched whose
//!    relay fails or drains, whose relay delivers less than it offers in two consecutive reports, or which has no relay and still
//!    reports. Other edges move only if the move gains more than a share ([`SchedulerConfig::min_gain`]) of what the moving edges have,
//!    and never within [`SchedulerConfig::min_stay`] after their last move.
//! 7. All state is soft: an edge that reports the relay it uses gets it again, as far as it has measured it and the relay has capacity.
//!    Relays have better information: for two heartbeats (the grace period) the reservations that they report take precedence over
//!    those that edges report (`recovered`). A process that becomes leader waits equally long before it considers a relay failed.
//! 8. Time does not go back. After a jump of more than two heartbeats nothing expires during the next two.
//! 9. Matchings are solved outside ([`MatchingProblem::solve`]) while heartbeats continue. Parts of a solution that do not fit the
//!    state any more are not applied.
//! 10. A scheduler that is not the leader ([`FleetScheduler::step_down`], [`FleetScheduler::become_follower`]) replies to relays, but
//!     decides nothing and lets nothing expire.

mod candidates;
mod edges;
mod matching;
mod recovered;
mod relays;
mod replication;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use marline_core::units::{Instant, Ratio};

use super::api_types::StateVersion;
use crate::identity::Name;

pub use self::candidates::Proximity;
pub use self::matching::{MatchingProblem, MatchingSolution};
pub use self::replication::Row;

use self::edges::EdgeRecord;
use self::relays::{Claims, RelayRecord};
use self::replication::DirtyRows;

/// Parameters of the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// An edge's throughput is low if it is below this share of what the edge offers.
    pub low_share: Ratio,
    /// Candidate relays offered to an edge; it measures each of them.
    pub max_candidates: usize,
}

impl Default for SchedulerConfig {
    /// chosen: an edge that starts waits a fifth of a second. Leases last six heartbeats, so that an edge keeps its relay for half a
    /// minute in a tunnel. The other values are those of BASS or follow from the rules above.
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

/// An action that the scheduler requests from its driver.
#[derive(Debug)]
pub enum Output {
    /// Solve this matching, and pass the solution to [`FleetScheduler::apply_solution`].
    Solve(Box<MatchingProblem>),
    /// The request of this edge has been decided.
    Decided(Name),
    /// A relay has seen this epoch: continue with a later one ([`FleetScheduler::bump_epoch`]).
    RaiseEpoch(u64),
}

/// The state machine; see the [module documentation](self).
#[derive(Debug)]
pub struct FleetScheduler {
    config: SchedulerConfig,
    now: Instant,
    /// Rules 7 and 8: nothing expires before this time.
    grace_until: Instant,
    version: StateVersion,
    /// Rule 10: false if another process leads.
    is_leader: bool,
    relays: BTreeMap<Name, RelayRecord>,
    /// The load of each relay by its edges, also of relays that have not sent a heartbeat yet.
    claims: BTreeMap<Name, Claims>,
    edges: BTreeMap<Name, EdgeRecord>,
    /// Relays drained by operators, each with the end of its drain; none: no end.
    drains: BTreeMap<Name, Option<Instant>>,
    /// Edges to be matched when the window ends.
    queue: BTreeSet<Name>,
    window_ends: Instant,
    is_solving: bool,
    next_reallocation: Instant,
    prices: BTreeMap<Name, f64>,
    /// At least one relay was requested to report its reservations in this grace period, or has reported them.
    is_recovering: bool,
    next_sweep: Instant,
    dirty: DirtyRows,
    outputs: VecDeque<Output>,
}

impl FleetScheduler {
    /// A scheduler without members, which leads in this epoch; 0: another process leads.
    pub fn new(config: SchedulerConfig, epoch: u64, now: Instant) -> Self {
        Self {
            config,
            now,
            grace_until: now + config.heartbeat * 2,
            version: StateVersion { epoch, version: 0 },
            is_leader: epoch > 0,
            relays: BTreeMap::new(),
            claims: BTreeMap::new(),
            edges: BTreeMap::new(),
            drains: BTreeMap::new(),
            queue: BTreeSet::new(),
            window_ends: now,
            is_solving: false,
            next_reallocation: now + config.reallocation_interval,
            prices: BTreeMap::new(),
            is_recovering: false,
            next_sweep: now + SWEEP_INTERVAL,
            dirty: DirtyRows::default(),
            outputs: VecDeque::new(),
        }
    }

    /// Becomes leader, or remains it, in this epoch or a later one. Members that reported to another process until now have two
    /// heartbeats to report here (rule 7).
    pub fn become_leader(&mut self, epoch: u64, now: Instant) {
        self.advance(now);
        if !self.is_leader {
            (self.is_leader, self.grace_until) = (true, self.now + self.config.heartbeat * 2);
        }
        self.bump_epoch(epoch);
        let relays: Vec<Name> = self.relays.keys().cloned().collect();
        relays.iter().for_each(|relay| self.shed_excess(relay));
    }

    /// Continues in a later epoch. This starts no grace period, because relays can cause it (rule 3 of `relays`).
    pub fn bump_epoch(&mut self, epoch: u64) {
        if epoch > self.version.epoch {
            self.version = StateVersion { epoch, version: 0 };
            // No relay has seen this epoch, so each of them must receive its reservations again.
            let version = self.version;
            self.claims.values_mut().for_each(|claims| claims.changed_in = version);
            self.mark_all_dirty();
        }
    }

    /// Stops leading when the lease has ended. Keeps the state, because no other process may lead yet either.
    pub fn step_down(&mut self) {
        self.is_leader = false;
    }

    /// Discards the state except for the drains, because another process leads and has newer information.
    pub fn become_follower(&mut self) {
        let drains = std::mem::take(&mut self.drains);
        let is_replicated = self.dirty.is_enabled();
        *self = Self { drains, is_leader: false, ..Self::new(self.config, 0, self.now) };
        self.set_replicated(is_replicated);
    }

    /// Whether this process leads.
    pub fn is_leader(&self) -> bool {
        self.is_leader
    }

    /// Performs everything that is due at `now`.
    pub fn tick(&mut self, now: Instant) {
        self.advance(now);
        if !self.is_leader {
            self.next_sweep = self.now + SWEEP_INTERVAL;
            return;
        }
        if self.now >= self.next_sweep {
            self.expire();
            self.next_sweep = self.now + SWEEP_INTERVAL;
        }
        if self.is_solving {
            return;
        }
        if self.now >= self.next_reallocation {
            self.next_reallocation = self.now + self.config.reallocation_interval;
            self.begin_matching(true);
        } else if !self.queue.is_empty() && self.now >= self.window_ends {
            self.begin_matching(false);
        }
    }

    /// The next action; call it until it returns none.
    pub fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// The latest time for the next [`FleetScheduler::tick`].
    pub fn deadline(&self) -> Instant {
        let is_waiting = self.is_leader && !self.queue.is_empty() && !self.is_solving;
        if is_waiting { self.next_sweep.min(self.window_ends) } else { self.next_sweep }
    }

    /// The current version of the state.
    pub fn version(&self) -> StateVersion {
        self.version
    }

    /// Sets the clock (rule 8).
    fn advance(&mut self, now: Instant) {
        if now.since(self.now) > self.config.heartbeat * 2 {
            self.grace_until = now + self.config.heartbeat * 2;
        }
        self.now = self.now.max(now);
    }

    /// Lets drains, recovered reservations, relays and leases expire.
    fn expire(&mut self) {
        let now = self.now;
        self.drains.retain(|_, until| until.is_none_or(|until| until > now));
        if now >= self.grace_until {
            self.end_recovery();
            self.expire_relays();
            self.expire_leases();
        }
        self.requeue_displaced();
        let relays = &self.relays;
        self.claims.retain(|relay, claims| !claims.edges.is_empty() || relays.contains_key(relay));
    }

    fn next_version(&mut self) -> StateVersion {
        self.version.version += 1;
        self.version
    }

    /// Adds an edge to the window; the first edge starts it.
    fn enqueue(&mut self, edge: &Name) {
        if self.queue.is_empty() {
            self.window_ends = self.now + self.config.window;
        }
        self.queue.insert(edge.clone());
    }
}

/// chosen: leases and health change over many seconds.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
