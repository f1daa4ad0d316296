//! Several downloads at once: which of them run, and how they share the links.
//!
//! 1. At most [`Config::parallel`] downloads run at a time. They begin in the order of the list.
//! 2. On each link the download with the least left comes first. Serving the shortest remaining job first gives the
//!    least mean time to completion (Schrage, "A proof of the optimality of the shortest remaining processing time
//!    discipline", 1968). A download of unknown size counts as short: its first response tells.
//! 3. The others stay off the link while the first one fills it. They get it where the first one does not want it, and
//!    one connection each beside downloads that are about to end, so that the link never runs empty in between.
//! 4. A link that the first download holds without filling it (a slow server, a limit for each connection) gets one
//!    more download, on trial: it stays if the link carries a tenth more with it.
//! 5. A link with a budget serves one download at a time until that one ends or wants it no more. So its budget, which
//!    is one for the whole batch, cannot be exceeded by two that ask at the same moment.
//!
//! Letting all downloads compete was not used: TCP shares a link equally among them, and each small file would wait
//! for the large ones beside it.

#[cfg(test)]
mod tests;

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::fetch::{LinkLoad, LinkShare};
use crate::link::LinkId;
use crate::machine::Machine;
use crate::units::{Bitrate, DataSize, Instant};

/// Names a download of the batch: its place in the list.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JobId(pub u32);

/// What a batch is told before it starts.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// How many downloads there are.
    pub jobs: u32,
    /// How many of them run at a time; at least one does.
    pub parallel: u32,
}

/// What happened.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "in")]
pub enum Input {
    /// A link can be used by the downloads.
    Link {
        /// Which one.
        link: LinkId,
        /// It has a budget of bytes.
        has_budget: bool,
    },
    /// What a running download has left, and what it makes of the links. Reported ten times a second.
    Progress {
        /// Which one.
        job: JobId,
        /// Bytes that it still needs; none: its size is not known.
        remaining: Option<DataSize>,
        /// Its links.
        loads: Vec<LinkLoad>,
    },
    /// A download is over.
    Ended {
        /// Which one.
        job: JobId,
    },
}

/// What the driver is to do.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "out")]
pub enum Output {
    /// Begin a download. Its shares follow.
    Start {
        /// Which one.
        job: JobId,
    },
    /// From now on a download may use this much of a link.
    Share {
        /// Which one.
        job: JobId,
        /// Which link.
        link: LinkId,
        /// How much.
        share: LinkShare,
    },
}

/// The machine never wants to be woken: what it decides by comes with the reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimerReason {}

/// The scheduler of a batch. See the [module](self).
#[derive(Debug)]
pub struct Batch {
    config: Config,
    now: Instant,
    /// The next download of the list.
    next_job: u32,
    running: BTreeMap<JobId, Job>,
    links: BTreeMap<LinkId, SharedLink>,
    outputs: VecDeque<Output>,
}

/// A download that runs.
#[derive(Debug, Default)]
struct Job {
    remaining: Option<DataSize>,
    /// None: nothing was reported yet.
    loads: Option<BTreeMap<LinkId, LinkLoad>>,
    shares: BTreeMap<LinkId, LinkShare>,
    /// It is about to end.
    is_ending: bool,
}

impl Job {
    fn load(&self, link: LinkId) -> Option<&LinkLoad> {
        self.loads.as_ref().and_then(|loads| loads.get(&link))
    }

    /// Whether it would use the link. One that has not reported yet wants every link, as it has to find out.
    fn has_demand(&self, link: LinkId) -> bool {
        match &self.loads {
            None => true,
            // A link that is new to it.
            Some(loads) => loads.get(&link).is_none_or(|load| load.has_demand),
        }
    }

    fn rate(&self) -> Bitrate {
        self.loads.iter().flat_map(BTreeMap::values).map(|load| load.rate).sum()
    }

    /// Whether it ends within a moment, or may, as its size is not known.
    fn is_short(&self) -> bool {
        self.remaining.is_none_or(|left| left <= SHORT_JOB) || self.is_ending
    }

    fn report(&mut self, left: Option<DataSize>, loads: Vec<LinkLoad>) {
        self.remaining = left;
        self.loads = Some(loads.into_iter().map(|load| (load.link, load)).collect());
        // The next download slows it down at its end: that does not make it long again.
        let threshold = if self.is_ending { ENDING_WITHIN * 4 } else { ENDING_WITHIN };
        self.is_ending = left.is_some_and(|left| left / self.rate() < threshold);
    }
}

/// A link as the downloads share it.
#[derive(Debug)]
struct SharedLink {
    has_budget: bool,
    /// Who has the first claim.
    leader: Option<JobId>,
    /// How many more downloads may use it beside the first that is not short.
    extra_jobs: usize,
    /// Since when it could carry more.
    spare_since: Option<Instant>,
    probe: Option<AbProbe>,
    /// No trial before this.
    next_probe_at: Instant,
    probe_interval: Duration,
    /// The last trial showed that one download does not fill it.
    gains_from_extra: bool,
}

/// One more download uses a link, to see whether it carries more then.
#[derive(Clone, Copy, Debug)]
struct AbProbe {
    rate_before: Bitrate,
    evaluate_at: Instant,
}

impl SharedLink {
    fn new(budgeted: bool) -> Self {
        Self {
            has_budget: budgeted,
            leader: None,
            extra_jobs: 0,
            spare_since: None,
            probe: None,
            next_probe_at: Instant::ZERO,
            probe_interval: INITIAL_PROBE_INTERVAL,
            gains_from_extra: false,
        }
    }

    fn set_leader(&mut self, leader: Option<JobId>) {
        if self.leader != leader {
            (self.leader, self.extra_jobs, self.spare_since, self.probe) = (leader, 0, None, None);
        }
    }

    /// Looks whether one more download should use the link. `rate` is what it carries now, `slack` whether it could
    /// carry more, `others` how many further downloads want it.
    fn review_extra(&mut self, now: Instant, rate: Bitrate, spare: bool, others: usize) {
        if let Some(probe) = self.probe {
            if now < probe.evaluate_at {
                return;
            }
            self.probe = None;
            self.spare_since = None;
            self.gains_from_extra = rate > probe.rate_before + probe.rate_before / MIN_GAIN_DIVISOR;
            if self.gains_from_extra {
                self.probe_interval = INITIAL_PROBE_INTERVAL;
            } else {
                self.extra_jobs = self.extra_jobs.saturating_sub(1);
                self.next_probe_at = now + self.probe_interval;
                self.probe_interval = (self.probe_interval * 2).min(MAX_PROBE_INTERVAL);
            }
            return;
        }
        if !spare {
            self.spare_since = None;
            return;
        }
        let since = *self.spare_since.get_or_insert(now);
        let spare_time = if self.gains_from_extra { SPARE_TIME_AFTER_GAIN } else { SPARE_TIME };
        if now >= self.next_probe_at && since + spare_time <= now && self.extra_jobs < others {
            self.extra_jobs += 1;
            self.probe = Some(AbProbe { rate_before: rate, evaluate_at: now + SETTLE_TIME });
        }
    }
}

impl Batch {
    /// A batch of which nothing runs yet; [`Machine::tick`] begins it.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            now: Instant::ZERO,
            next_job: 0,
            running: BTreeMap::new(),
            links: BTreeMap::new(),
            outputs: VecDeque::new(),
        }
    }

    /// Whether every download is over.
    pub fn is_over(&self) -> bool {
        self.running.is_empty() && self.next_job >= self.config.jobs
    }

    fn settle(&mut self) {
        while self.running.len() < self.config.parallel.max(1) as usize && self.next_job < self.config.jobs {
            let job = JobId(self.next_job);
            self.next_job += 1;
            self.running.insert(job, Job::default());
            self.outputs.push_back(Output::Start { job });
        }
        let links: Vec<LinkId> = self.links.keys().copied().collect();
        for link in links {
            for (job, share) in self.allocate_link(link) {
                self.set_share(job, link, share);
            }
        }
    }

    fn set_share(&mut self, id: JobId, link: LinkId, share: LinkShare) {
        let Some(job) = self.running.get_mut(&id) else { return };
        if job.shares.insert(link, share) != Some(share) {
            self.outputs.push_back(Output::Share { job: id, link, share });
        }
    }

    fn has_full_share(&self, id: JobId, link: LinkId) -> bool {
        self.running.get(&id).is_some_and(|job| job.shares.get(&link) == Some(&LinkShare::Full))
    }

    /// What each download may use of a link.
    fn allocate_link(&mut self, link: LinkId) -> Vec<(JobId, LinkShare)> {
        let Some(shared_link) = self.links.get_mut(&link) else { return Vec::new() };
        if shared_link.has_budget {
            return lease_link(shared_link, link, &self.running);
        }
        let queue = shortest_first(shared_link.leader, link, &self.running);
        let short = |id: &&JobId| self.running.get(id).is_some_and(Job::is_short);
        let first_long_job = queue.iter().find(|id| !short(id));
        let leader = first_long_job.or(queue.first()).copied();
        shared_link.set_leader(leader);
        let load = leader.and_then(|id| self.running.get(&id)).and_then(|job| job.load(link));
        // A link on which nothing comes is not filled either.
        let slack = load.is_some_and(|load| load.has_spare_capacity || load.rate.is_zero());
        let rate = self.running.values().filter_map(|job| job.load(link)).map(|load| load.rate).sum();
        let position = |id: JobId| queue.iter().position(|other| *other == id);
        // Where all are short there is no one behind the first that is not.
        let first_long = first_long_job.copied().and_then(position).unwrap_or(queue.len());
        shared_link.review_extra(self.now, rate, slack, queue.len().saturating_sub(first_long + 1));
        let last = first_long + shared_link.extra_jobs;
        let share = |id: JobId| match position(id) {
            _ if Some(id) == leader => LinkShare::Full,
            // It had the first claim until it was about to end.
            Some(at) if at < first_long && self.has_full_share(id, link) => LinkShare::Full,
            Some(at) if at <= last => LinkShare::OneConn,
            _ => LinkShare::Paused,
        };
        self.running.keys().map(|id| (*id, share(*id))).collect()
    }
}

/// The downloads that want a link, the one with the least left first. The one that leads it gives way only to one with
/// much less: changing over costs a round trip.
fn shortest_first(leader: Option<JobId>, link: LinkId, running: &BTreeMap<JobId, Job>) -> Vec<JobId> {
    let wanting = running.iter().filter(|(_, job)| job.has_demand(link));
    let left = |id: JobId, job: &Job| {
        let left = job.remaining.unwrap_or_default();
        if Some(id) == leader { left - left / PREEMPTION_DIVISOR } else { left }
    };
    let mut order: Vec<(DataSize, JobId)> = wanting.map(|(id, job)| (left(*id, job), *id)).collect();
    order.sort();
    order.into_iter().map(|(_, id)| id).collect()
}

/// A link with a budget: one download has it, until it ends or wants it no more.
fn lease_link(
    shared_link: &mut SharedLink,
    link: LinkId,
    running: &BTreeMap<JobId, Job>,
) -> Vec<(JobId, LinkShare)> {
    let has_demand = |id: &JobId| running.get(id).is_some_and(|job| job.has_demand(link));
    // What it was asked for may still be on its way.
    let busy = |id: &JobId| running.get(id).and_then(|job| job.load(link)).is_some_and(|load| load.has_connections);
    let current = shared_link.leader.filter(|id| has_demand(id) || busy(id));
    let leader = current.or_else(|| shortest_first(None, link, running).first().copied());
    let previous = shared_link.leader.filter(|_| current.is_some());
    shared_link.set_leader(leader);
    let share = |id: JobId| match leader {
        Some(leader) if leader == id && (previous.is_none() || has_demand(&id)) => LinkShare::Full,
        _ => LinkShare::Paused,
    };
    running.keys().map(|id| (*id, share(*id))).collect()
}

impl Machine for Batch {
    type Input = Input;
    type Output = Output;
    type Reason = TimerReason;

    fn handle(&mut self, now: Instant, input: Input) {
        self.now = self.now.max(now);
        match input {
            Input::Link { link, has_budget: budgeted } => {
                self.links.entry(link).or_insert_with(|| SharedLink::new(budgeted)).has_budget = budgeted;
            }
            Input::Progress { job, remaining: left, loads } => {
                if let Some(job) = self.running.get_mut(&job) {
                    job.report(left, loads);
                }
            }
            Input::Ended { job } => drop(self.running.remove(&job)),
        }
        self.settle();
    }

    fn tick(&mut self, now: Instant) {
        self.now = self.now.max(now);
        self.settle();
    }

    fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    fn deadline(&self) -> Option<(Instant, TimerReason)> {
        None
    }
}

/// The one that leads keeps a link unless another has less than this part of what it has left: 1 / 4 less.
const PREEMPTION_DIVISOR: u64 = 4;
/// A download that ends sooner than this lets the next one begin beside it. chosen: a handshake and slow start of a
/// path of 100 ms.
const ENDING_WITHIN: Duration = Duration::from_millis(500);
/// So little is always short: two first requests.
const SHORT_JOB: DataSize = DataSize::from_kib(128);
/// A tenth more proves that one download does not fill a link.
const MIN_GAIN_DIVISOR: u64 = 10;
/// How long a link must have room before another download tries it: the first time, and when that has paid before.
const SPARE_TIME: Duration = Duration::from_millis(1000);
const SPARE_TIME_AFTER_GAIN: Duration = Duration::from_millis(300);
/// How long a trial lasts: connections open and leave slow start.
const SETTLE_TIME: Duration = Duration::from_millis(2000);
const INITIAL_PROBE_INTERVAL: Duration = Duration::from_secs(4);
const MAX_PROBE_INTERVAL: Duration = Duration::from_secs(60);
