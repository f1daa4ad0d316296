//! The scheduling machine (BASS §III-A.3 and §IV-B): who is there, who may have which relay, and until when.
//!
//! In: heartbeats of relays, requests and reports of edges, drains, solved matchings, each with the time. Out: answers,
//! and by [`Machine::poll`] what is to be done: a matching to be solved, an edge to be answered, the lead to be taken anew.
//!
//! 1. Names are those of certificates. Nothing that a body says is taken for a name of its sender.
//! 2. A relay is healthy while it was heard in the last [`Config::missed`] heartbeats. One that is not, that drains or that has
//!    no share of its capacity free above [`Config::threshold`], r(s) = R(s) / T(s), is offered to nobody.
//! 3. What a relay carries is the larger one of what it says and of what its edges have reserved or use: one that reports less
//!    than is true gets no more edges for it.
//! 4. Requests are gathered for [`Config::window`], and matched together. No relay is filled beyond the threshold: that
//!    share is for bursts (§IV-B). BASS's eq. 2 alone would give it to the first window.
//! 5. An edge has a relay until its lease ends, which each report renews. When a lease ends only the reservation does: streams
//!    belong to relay and edge.
//! 6. All edges are matched anew each [`Config::reallocate`], and those alone whose relay fails, drains, or twice running gives them
//!    less than they offer, or who have none and report that they live. Others move only if that brings more than a share ([`Config::better`]) of what those have who
//!    move, and none that came to its relay less than [`Config::settled`] ago.
//! 7. All this is soft: an edge that names the relay it holds has it again, as far as it has measured it and there is
//!    room. Relays know better: for two heartbeats what they say that they keep comes before the words of edges (`kept`). A machine
//!    that takes the lead waits for as long before it takes a relay for gone.
//! 8. Time does not go back. When it has jumped by more than two heartbeats, nothing ends for the next two.
//! 9. Matchings are solved outside ([`Problem::solve`]) while heartbeats go on; what does not fit any more when it comes back is
//!    left as it is.
//! 10. One that does not lead ([`Machine::pause`], [`Machine::follow`]) answers relays, decides nothing and ends nothing.

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

/// How a machine schedules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedulerConfig {
    /// t: for how long requests are gathered.
    pub window: Duration,
    /// The share of a relay that is left for bursts.
    pub threshold: Ratio,
    /// How often all edges are matched anew.
    pub reallocation_interval: Duration,
    /// How often relays and edges are heard.
    pub heartbeat: Duration,
    /// After how many missed heartbeats a relay is not healthy.
    pub max_missed: u32,
    /// How long an assignment lasts that no report renews.
    pub lease: Duration,
    /// How much of what they have those must gain who move.
    pub min_gain: Ratio,
    /// How long an edge stays where it came to.
    pub min_stay: Duration,
    /// How much of what it offers must get through to an edge; below it is low.
    pub low_share: Ratio,
    /// How many relays an edge is offered: it measures each of them.
    pub max_candidates: usize,
}

impl Default for SchedulerConfig {
    /// chosen: a box that is started waits for a fifth of a second; others see paper or rule. Leases are six heartbeats long:
    /// a box that is in a tunnel for half a minute still has its relay.
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

/// What a machine wants done.
#[derive(Debug)]
pub enum Output {
    /// Solve this, and bring the solution to [`Machine::solved`].
    Solve(Box<MatchingProblem>),
    /// This edge's request is decided.
    Decided(Name),
    /// A relay has seen this epoch: go on with a later one ([`Machine::lift`]).
    RaiseEpoch(u64),
}

/// The machine.
#[derive(Debug)]
pub struct FleetScheduler {
    config: SchedulerConfig,
    now: Instant,
    /// Rule 8: until then nothing ends.
    grace_until: Instant,
    version: StateVersion,
    /// Rule 10.
    is_leader: bool,
    relays: BTreeMap<Name, RelayRecord>,
    /// What edges have at each relay, also at those that have not announced themselves yet.
    claims: BTreeMap<Name, Claims>,
    edges: BTreeMap<Name, EdgeRecord>,
    /// By operators; until then.
    drains: BTreeMap<Name, Option<Instant>>,
    /// Edges to be matched at the end of the window.
    queue: BTreeSet<Name>,
    window_ends: Instant,
    is_solving: bool,
    next_reallocation: Instant,
    prices: BTreeMap<Name, f64>,
    /// Relays were asked what they keep, and it counts.
    is_recovering: bool,
    next_sweep: Instant,
    dirty: DirtyRows,
    outputs: VecDeque<Output>,
}

impl FleetScheduler {
    /// One that knows nobody, and leads with this epoch; with none (0) somebody else does.
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

    /// Takes the lead, or takes it up again, with this epoch or a later one. Who spoke to another one until now has two heartbeats
    /// to come (rule 7).
    pub fn become_leader(&mut self, epoch: u64, now: Instant) {
        self.advance(now);
        if !self.is_leader {
            (self.is_leader, self.grace_until) = (true, self.now + self.config.heartbeat * 2);
        }
        self.bump_epoch(epoch);
        let relays: Vec<Name> = self.relays.keys().cloned().collect();
        relays.iter().for_each(|relay| self.shed_excess(relay));
    }

    /// Goes on with a later epoch. Nobody gets time by that: relays bring it about (rule 3 of `relays`).
    pub fn bump_epoch(&mut self, epoch: u64) {
        if epoch > self.version.epoch {
            self.version = StateVersion { epoch, version: 0 };
            // Relays know nothing of this epoch yet.
            let version = self.version;
            self.claims.values_mut().for_each(|claims| claims.changed_in = version);
            self.mark_all_dirty();
        }
    }

    /// Leads no longer, as far as it knows; keeps what it has, for nobody else may lead either.
    pub fn step_down(&mut self) {
        self.is_leader = false;
    }

    /// Somebody else leads, and knows better.
    pub fn become_follower(&mut self) {
        let drains = std::mem::take(&mut self.drains);
        let is_replicated = self.dirty.is_enabled();
        *self = Self { drains, is_leader: false, ..Self::new(self.config, 0, self.now) };
        self.set_replicated(is_replicated);
    }

    /// Whether it leads.
    pub fn is_leader(&self) -> bool {
        self.is_leader
    }

    /// Does what is due.
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

    /// The next thing to be done; ask until there is none.
    pub fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When to [`Machine::tick`], at the latest.
    pub fn deadline(&self) -> Instant {
        let is_waiting = self.is_leader && !self.queue.is_empty() && !self.is_solving;
        if is_waiting { self.next_sweep.min(self.window_ends) } else { self.next_sweep }
    }

    /// Which state this is.
    pub fn version(&self) -> StateVersion {
        self.version
    }

    /// Rule 8.
    fn advance(&mut self, now: Instant) {
        if now.since(self.now) > self.config.heartbeat * 2 {
            self.grace_until = now + self.config.heartbeat * 2;
        }
        self.now = self.now.max(now);
    }

    /// What ends by itself.
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

    /// Puts an edge into the window, which begins with the first one.
    fn enqueue(&mut self, edge: &Name) {
        if self.queue.is_empty() {
            self.window_ends = self.now + self.config.window;
        }
        self.queue.insert(edge.clone());
    }
}

/// chosen: leases and health are matters of many seconds.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
