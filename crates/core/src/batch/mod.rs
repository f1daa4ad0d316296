//! Schedules several downloads that share the links: decides which of them run and how much of each link they use.
//!
//! 1. At most [`Config::parallel`] downloads run at a time. They start in the order of the list.
//! 2. On each link the download with the fewest remaining bytes comes first. Serving the shortest remaining job first
//!    gives the least mean completion time (Schrage, "A proof of the optimality of the shortest remaining processing
//!    time discipline", 1968). A download of unknown size counts as short, because its first response will give the
//!    size.
//! 3. The others do not use the link while the first download fills it. They get it where the first one does not need
//!    it. They also get one connection each while preceding downloads are about to end, so that the link never runs
//!    empty in between.
//! 4. If the first download does not fill a link (a slow server, a limit per connection), one more download uses it as
//!    an A/B probe. It stays if the link then carries a tenth more.
//! 5. A link with a budget serves one download at a time until that one ends or no longer needs it. The budget is
//!    shared by the whole batch, so two downloads requesting at the same time could exceed it.
//!
//! Letting all downloads compete was rejected: TCP divides a link equally among them, and each small file would wait
//! for the large ones.

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

/// Identifies a download of the batch by its index in the list.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JobId(pub u32);

/// Configuration of a batch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Number of downloads.
    pub jobs: u32,
    /// Number of downloads that run at a time; at least one runs.
    pub parallel: u32,
}

/// An event for the batch.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "in")]
pub enum Input {
    /// A link is available to the downloads.
    Link {
        /// The link.
        link: LinkId,
        /// Whether the link has a budget of bytes.
        has_budget: bool,
    },
    /// Progress of a running download and its use of the links, reported ten times a second.
    Progress {
        /// The download.
        job: JobId,
        /// Bytes still missing; `None` while the size is unknown.
        remaining: Option<DataSize>,
        /// Its load on each link.
        loads: Vec<LinkLoad>,
    },
    /// A download has ended.
    Ended {
        /// The download.
        job: JobId,
    },
}

/// A command for the driver.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "out")]
pub enum Output {
    /// Start a download. Its link shares follow.
    Start {
        /// The download.
        job: JobId,
    },
    /// Set how much of a link a download may use from now on.
    Share {
        /// The download.
        job: JobId,
        /// The link.
        link: LinkId,
        /// The new share.
        share: LinkShare,
    },
}

/// The machine needs no timer: all its decisions follow from the reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimerReason {}

/// Scheduler of a batch; see the [module documentation](self).
#[derive(Debug)]
pub struct Batch {
    config: Config,
    now: Instant,
    /// Index of the next download to start.
    next_job: u32,
    running: BTreeMap<JobId, Job>,
    links: BTreeMap<LinkId, SharedLink>,
    outputs: VecDeque<Output>,
}

/// A running download.
#[derive(Debug, Default)]
struct Job {
    remaining: Option<DataSize>,
    /// `None` until the first report.
    loads: Option<BTreeMap<LinkId, LinkLoad>>,
    shares: BTreeMap<LinkId, LinkShare>,
    /// Whether it ends within [`ENDING_WITHIN`] at its present rate.
    is_ending: bool,
}

impl Job {
    fn load(&self, link: LinkId) -> Option<&LinkLoad> {
        self.loads.as_ref().and_then(|loads| loads.get(&link))
    }

    /// Whether the download would use the link. Before its first report it may need every link.
    fn has_demand(&self, link: LinkId) -> bool {
        match &self.loads {
            None => true,
            // A link that the download has not used yet.
            Some(loads) => loads.get(&link).is_none_or(|load| load.has_demand),
        }
    }

    fn rate(&self) -> Bitrate {
        self.loads.iter().flat_map(BTreeMap::values).map(|load| load.rate).sum()
    }

    /// Whether the download ends soon, or may, because its size is unknown.
    fn is_short(&self) -> bool {
        self.remaining.is_none_or(|left| left <= SHORT_JOB) || self.is_ending
    }

    fn report(&mut self, remaining: Option<DataSize>, loads: Vec<LinkLoad>) {
        self.remaining = remaining;
        self.loads = Some(loads.into_iter().map(|load| (load.link, load)).collect());
        // Near its end the next download slows it down; that must not make it long again.
        let threshold = if self.is_ending { ENDING_WITHIN * 4 } else { ENDING_WITHIN };
        self.is_ending = remaining.is_some_and(|left| left / self.rate() < threshold);
    }
}

/// A link that the downloads share.
#[derive(Debug)]
struct SharedLink {
    has_budget: bool,
    /// The download with the first claim on the link.
    leader: Option<JobId>,
    /// Number of further downloads that may use the link besides the first long one.
    extra_jobs: usize,
    /// Since when the link has had spare capacity.
    spare_since: Option<Instant>,
    probe: Option<AbProbe>,
    /// No A/B probe before this time.
    next_probe_at: Instant,
    probe_interval: Duration,
    /// Whether the last probe showed that one download does not fill the link.
    gains_from_extra: bool,
}

/// A running A/B probe: one more download uses the link, to see whether it then carries more.
#[derive(Clone, Copy, Debug)]
struct AbProbe {
    rate_before: Bitrate,
    evaluate_at: Instant,
}

impl SharedLink {
    fn new(has_budget: bool) -> Self {
        Self {
            has_budget,
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

    /// Decides whether one more download should use the link. `rate` is its present total rate, `spare` whether it has
    /// spare capacity, `others` the number of further downloads that need it.
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
    /// Creates a batch in which nothing runs yet; [`Machine::tick`] starts it.
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

    /// Whether all downloads have ended.
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

    /// Share of a link for each running download.
    fn allocate_link(&mut self, link: LinkId) -> Vec<(JobId, LinkShare)> {
        let Some(shared_link) = self.links.get_mut(&link) else { return Vec::new() };
        if shared_link.has_budget {
            return lease_link(shared_link, link, &self.running);
        }
        let queue = shortest_first(shared_link.leader, link, &self.running);
        // The first long download leads the link. Short ones before it may use the link as well, so that it never
        // runs empty while they end.
        let short = |id: &&JobId| self.running.get(id).is_some_and(Job::is_short);
        let first_long_job = queue.iter().find(|id| !short(id));
        let leader = first_long_job.or(queue.first()).copied();
        shared_link.set_leader(leader);
        let load = leader.and_then(|id| self.running.get(&id)).and_then(|job| job.load(link));
        // A link that delivers nothing is not filled either.
        let has_spare_capacity = load.is_some_and(|load| load.has_spare_capacity || load.rate.is_zero());
        let rate = self.running.values().filter_map(|job| job.load(link)).map(|load| load.rate).sum();
        let position = |id: JobId| queue.iter().position(|other| *other == id);
        // If all downloads are short, all of them precede the first long one.
        let first_long = first_long_job.copied().and_then(position).unwrap_or(queue.len());
        shared_link.review_extra(self.now, rate, has_spare_capacity, queue.len().saturating_sub(first_long + 1));
        let last = first_long + shared_link.extra_jobs;
        let share = |id: JobId| match position(id) {
            _ if Some(id) == leader => LinkShare::Full,
            // It had the first claim until it was about to end, and keeps its full share.
            Some(at) if at < first_long && self.has_full_share(id, link) => LinkShare::Full,
            Some(at) if at <= last => LinkShare::OneConn,
            _ => LinkShare::Paused,
        };
        self.running.keys().map(|id| (*id, share(*id))).collect()
    }
}

/// The downloads that need a link, the one with the fewest remaining bytes first. The leader is displaced only by a
/// download with much less, because switching costs a round trip.
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

/// Shares of a link with a budget: one download has it until it ends or no longer needs it.
fn lease_link(
    shared_link: &mut SharedLink,
    link: LinkId,
    running: &BTreeMap<JobId, Job>,
) -> Vec<(JobId, LinkShare)> {
    let has_demand = |id: &JobId| running.get(id).is_some_and(|job| job.has_demand(link));
    // Requested data may still be in flight.
    let busy = |id: &JobId| running.get(id).and_then(|job| job.load(link)).is_some_and(|load| load.has_connections);
    let current = shared_link.leader.filter(|id| has_demand(id) || busy(id));
    // Once the leader no longer needs the link, it requests nothing more, but keeps the link until its connections are
    // done.
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
            Input::Link { link, has_budget } => {
                self.links.entry(link).or_insert_with(|| SharedLink::new(has_budget)).has_budget = has_budget;
            }
            Input::Progress { job, remaining, loads } => {
                if let Some(job) = self.running.get_mut(&job) {
                    job.report(remaining, loads);
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

/// The leader keeps a link unless another download has less than three quarters of the leader's remaining bytes.
const PREEMPTION_DIVISOR: u64 = 4;
/// A download that ends sooner than this lets the next one use its links in parallel. Our choice: a handshake and slow
/// start on a path of 100 ms.
const ENDING_WITHIN: Duration = Duration::from_millis(500);
/// Downloads with at most this much left are always short: two first requests.
const SHORT_JOB: DataSize = DataSize::from_kib(128);
/// A probe succeeds if the rate rises by a tenth.
const MIN_GAIN_DIVISOR: u64 = 10;
/// How long a link must have spare capacity before the next probe: the first time, and after a successful probe.
const SPARE_TIME: Duration = Duration::from_millis(1000);
const SPARE_TIME_AFTER_GAIN: Duration = Duration::from_millis(300);
/// Duration of a probe: connections open and leave slow start.
const SETTLE_TIME: Duration = Duration::from_millis(2000);
/// Time from an unsuccessful probe of a link to the next one; it doubles with each, up to the maximum.
const INITIAL_PROBE_INTERVAL: Duration = Duration::from_secs(4);
const MAX_PROBE_INTERVAL: Duration = Duration::from_secs(60);
