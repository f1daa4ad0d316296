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
//!    room. A machine that takes the lead waits for two heartbeats before it takes a relay for gone.
//! 8. Time does not go back. When it has jumped by more than two heartbeats, nothing ends for the next two.
//! 9. Matchings are solved outside ([`Problem::solve`]) while heartbeats go on; what does not fit any more when it comes back is
//!    left as it is.
//! 10. One that does not lead ([`Machine::pause`], [`Machine::follow`]) answers relays, decides nothing and ends nothing.

mod candidates;
mod edges;
mod matching;
mod relays;
mod share;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use marline_core::units::{Instant, Ratio};

use super::words::Mark;
use crate::identity::Name;

pub use self::candidates::Near;
pub use self::matching::{Problem, Solution};
pub use self::share::Row;

use self::edges::Edge;
use self::relays::{Claims, Relay};
use self::share::News;

/// How a machine schedules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// t: for how long requests are gathered.
    pub window: Duration,
    /// The share of a relay that is left for bursts.
    pub threshold: Ratio,
    /// How often all edges are matched anew.
    pub reallocate: Duration,
    /// How often relays and edges are heard.
    pub heartbeat: Duration,
    /// After how many missed heartbeats a relay is not healthy.
    pub missed: u32,
    /// How long an assignment lasts that no report renews.
    pub lease: Duration,
    /// How much of what they have those must gain who move.
    pub better: Ratio,
    /// How long an edge stays where it came to.
    pub settled: Duration,
    /// How much of what it offers must get through to an edge; below it is low.
    pub low: Ratio,
    /// How many relays an edge is offered: it measures each of them.
    pub candidates: usize,
}

impl Default for Config {
    /// chosen: a box that is started waits for a fifth of a second; others see paper or rule. Leases are six heartbeats long:
    /// a box that is in a tunnel for half a minute still has its relay.
    fn default() -> Self {
        let heartbeat = Duration::from_secs(5);
        Self {
            window: Duration::from_millis(200),
            threshold: Ratio::from_percent(10),
            reallocate: Duration::from_secs(30 * 60),
            heartbeat,
            missed: 3,
            lease: heartbeat * 6,
            better: Ratio::from_percent(10),
            settled: Duration::from_secs(60),
            low: Ratio::from_percent(70),
            candidates: 3,
        }
    }
}

/// What a machine wants done.
#[derive(Debug)]
pub enum Output {
    /// Solve this, and bring the solution to [`Machine::solved`].
    Solve(Box<Problem>),
    /// This edge's request is decided.
    Decided(Name),
    /// A relay has seen this epoch: go on with a later one ([`Machine::lift`]).
    Behind(u64),
}

/// The machine.
#[derive(Debug)]
pub struct Machine {
    config: Config,
    now: Instant,
    /// Rule 8: until then nothing ends.
    grace: Instant,
    mark: Mark,
    /// Rule 10.
    leads: bool,
    relays: BTreeMap<Name, Relay>,
    /// What edges have at each relay, also at those that have not announced themselves yet.
    claims: BTreeMap<Name, Claims>,
    edges: BTreeMap<Name, Edge>,
    /// By operators; until then.
    drains: BTreeMap<Name, Option<Instant>>,
    /// Edges to be matched at the end of the window.
    queue: BTreeSet<Name>,
    window_ends: Instant,
    solving: bool,
    reallocates: Instant,
    prices: BTreeMap<Name, f64>,
    next_sweep: Instant,
    news: News,
    outputs: VecDeque<Output>,
}

impl Machine {
    /// One that knows nobody, and leads with this epoch; with none (0) somebody else does.
    pub fn new(config: Config, epoch: u64, now: Instant) -> Self {
        Self {
            config,
            now,
            grace: now + config.heartbeat * 2,
            mark: Mark { epoch, version: 0 },
            leads: epoch > 0,
            relays: BTreeMap::new(),
            claims: BTreeMap::new(),
            edges: BTreeMap::new(),
            drains: BTreeMap::new(),
            queue: BTreeSet::new(),
            window_ends: now,
            solving: false,
            reallocates: now + config.reallocate,
            prices: BTreeMap::new(),
            next_sweep: now + SWEEP,
            news: News::default(),
            outputs: VecDeque::new(),
        }
    }

    /// Takes the lead, or takes it up again, with this epoch or a later one. Who spoke to another one until now has two heartbeats
    /// to come (rule 7).
    pub fn lead(&mut self, epoch: u64, now: Instant) {
        self.advance(now);
        if !self.leads {
            (self.leads, self.grace) = (true, self.now + self.config.heartbeat * 2);
        }
        self.lift(epoch);
        let relays: Vec<Name> = self.relays.keys().cloned().collect();
        relays.iter().for_each(|relay| self.fit(relay));
    }

    /// Goes on with a later epoch. Nobody gets time by that: relays bring it about (rule 3 of `relays`).
    pub fn lift(&mut self, epoch: u64) {
        if epoch > self.mark.epoch {
            self.mark = Mark { epoch, version: 0 };
            // Relays know nothing of this epoch yet.
            let mark = self.mark;
            self.claims.values_mut().for_each(|claims| claims.changed = mark);
            self.renew();
        }
    }

    /// Leads no longer, as far as it knows; keeps what it has, for nobody else may lead either.
    pub fn pause(&mut self) {
        self.leads = false;
    }

    /// Somebody else leads, and knows better.
    pub fn follow(&mut self) {
        let drains = std::mem::take(&mut self.drains);
        let shares = self.news.shares();
        *self = Self { drains, leads: false, ..Self::new(self.config, 0, self.now) };
        self.share(shares);
    }

    /// Whether it leads.
    pub fn leads(&self) -> bool {
        self.leads
    }

    /// Does what is due.
    pub fn tick(&mut self, now: Instant) {
        self.advance(now);
        if !self.leads {
            self.next_sweep = self.now + SWEEP;
            return;
        }
        if self.now >= self.next_sweep {
            self.sweep();
            self.next_sweep = self.now + SWEEP;
        }
        if self.solving {
            return;
        }
        if self.now >= self.reallocates {
            self.reallocates = self.now + self.config.reallocate;
            self.begin(true);
        } else if !self.queue.is_empty() && self.now >= self.window_ends {
            self.begin(false);
        }
    }

    /// The next thing to be done; ask until there is none.
    pub fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When to [`Machine::tick`], at the latest.
    pub fn deadline(&self) -> Instant {
        let waits = self.leads && !self.queue.is_empty() && !self.solving;
        if waits { self.next_sweep.min(self.window_ends) } else { self.next_sweep }
    }

    /// Which state this is.
    pub fn mark(&self) -> Mark {
        self.mark
    }

    /// Rule 8.
    fn advance(&mut self, now: Instant) {
        if now.since(self.now) > self.config.heartbeat * 2 {
            self.grace = now + self.config.heartbeat * 2;
        }
        self.now = self.now.max(now);
    }

    /// What ends by itself.
    fn sweep(&mut self) {
        let now = self.now;
        self.drains.retain(|_, until| until.is_none_or(|until| until > now));
        if now >= self.grace {
            self.forget_relays();
            self.end_leases();
        }
        self.displace();
        let relays = &self.relays;
        self.claims.retain(|relay, claims| !claims.edges.is_empty() || relays.contains_key(relay));
    }

    fn next_version(&mut self) -> Mark {
        self.mark.version += 1;
        self.mark
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
const SWEEP: Duration = Duration::from_secs(1);
