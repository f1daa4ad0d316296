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

use crate::fetch::{Load, Share};
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
        budgeted: bool,
    },
    /// What a running download has left, and what it makes of the links. Reported ten times a second.
    Stands {
        /// Which one.
        job: JobId,
        /// Bytes that it still needs; none: its size is not known.
        left: Option<DataSize>,
        /// Its links.
        loads: Vec<Load>,
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
        share: Share,
    },
}

/// The machine never wants to be woken: what it decides by comes with the reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wake {}

/// The scheduler of a batch. See the [module](self).
#[derive(Debug)]
pub struct Batch {
    config: Config,
    now: Instant,
    /// The next download of the list.
    next: u32,
    running: BTreeMap<JobId, Job>,
    links: BTreeMap<LinkId, Floor>,
    out: VecDeque<Output>,
}

/// A download that runs.
#[derive(Debug, Default)]
struct Job {
    left: Option<DataSize>,
    /// None: nothing was reported yet.
    loads: Option<BTreeMap<LinkId, Load>>,
    shares: BTreeMap<LinkId, Share>,
    /// It is about to end.
    ends: bool,
}

impl Job {
    fn load(&self, link: LinkId) -> Option<&Load> {
        self.loads.as_ref().and_then(|loads| loads.get(&link))
    }

    /// Whether it would use the link. One that has not reported yet wants every link, as it has to find out.
    fn wants(&self, link: LinkId) -> bool {
        match &self.loads {
            None => true,
            // A link that is new to it.
            Some(loads) => loads.get(&link).is_none_or(|load| load.wants),
        }
    }

    fn rate(&self) -> Bitrate {
        self.loads.iter().flat_map(BTreeMap::values).map(|load| load.rate).sum()
    }

    /// Whether it ends within a moment, or may, as its size is not known.
    fn is_short(&self) -> bool {
        self.left.is_none_or(|left| left <= SMALL) || self.ends
    }

    fn report(&mut self, left: Option<DataSize>, loads: Vec<Load>) {
        self.left = left;
        self.loads = Some(loads.into_iter().map(|load| (load.link, load)).collect());
        // The next download slows it down at its end: that does not make it long again.
        let soon = if self.ends { SOON * 4 } else { SOON };
        self.ends = left.is_some_and(|left| left / self.rate() < soon);
    }
}

/// A link as the downloads share it.
#[derive(Debug)]
struct Floor {
    budgeted: bool,
    /// Who has the first claim.
    lead: Option<JobId>,
    /// How many more downloads may use it beside the first that is not short.
    extra: usize,
    /// Since when it could carry more.
    slack_since: Option<Instant>,
    trial: Option<Trial>,
    /// No trial before this.
    rest_until: Instant,
    rest: Duration,
    /// The last trial showed that one download does not fill it.
    proved: bool,
}

/// One more download uses a link, to see whether it carries more then.
#[derive(Clone, Copy, Debug)]
struct Trial {
    before: Bitrate,
    read_at: Instant,
}

impl Floor {
    fn new(budgeted: bool) -> Self {
        Self {
            budgeted,
            lead: None,
            extra: 0,
            slack_since: None,
            trial: None,
            rest_until: Instant::ZERO,
            rest: FIRST_REST,
            proved: false,
        }
    }

    fn follow(&mut self, lead: Option<JobId>) {
        if self.lead != lead {
            (self.lead, self.extra, self.slack_since, self.trial) = (lead, 0, None, None);
        }
    }

    /// Looks whether one more download should use the link. `rate` is what it carries now, `slack` whether it could
    /// carry more, `others` how many further downloads want it.
    fn review(&mut self, now: Instant, rate: Bitrate, slack: bool, others: usize) {
        if let Some(trial) = self.trial {
            if now < trial.read_at {
                return;
            }
            self.trial = None;
            self.slack_since = None;
            self.proved = rate > trial.before + trial.before / GAIN;
            if self.proved {
                self.rest = FIRST_REST;
            } else {
                self.extra = self.extra.saturating_sub(1);
                self.rest_until = now + self.rest;
                self.rest = (self.rest * 2).min(LONGEST_REST);
            }
            return;
        }
        if !slack {
            self.slack_since = None;
            return;
        }
        let since = *self.slack_since.get_or_insert(now);
        let patience = if self.proved { BRIEF } else { PERSISTENT };
        if now >= self.rest_until && since + patience <= now && self.extra < others {
            self.extra += 1;
            self.trial = Some(Trial { before: rate, read_at: now + SETTLE });
        }
    }
}

impl Batch {
    /// A batch of which nothing runs yet; [`Machine::tick`] begins it.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            now: Instant::ZERO,
            next: 0,
            running: BTreeMap::new(),
            links: BTreeMap::new(),
            out: VecDeque::new(),
        }
    }

    /// Whether every download is over.
    pub fn is_over(&self) -> bool {
        self.running.is_empty() && self.next >= self.config.jobs
    }

    fn settle(&mut self) {
        while self.running.len() < self.config.parallel.max(1) as usize && self.next < self.config.jobs {
            let job = JobId(self.next);
            self.next += 1;
            self.running.insert(job, Job::default());
            self.out.push_back(Output::Start { job });
        }
        let links: Vec<LinkId> = self.links.keys().copied().collect();
        for link in links {
            for (job, share) in self.arrange(link) {
                self.order(job, link, share);
            }
        }
    }

    fn order(&mut self, id: JobId, link: LinkId, share: Share) {
        let Some(job) = self.running.get_mut(&id) else { return };
        if job.shares.insert(link, share) != Some(share) {
            self.out.push_back(Output::Share { job: id, link, share });
        }
    }

    fn has_all(&self, id: JobId, link: LinkId) -> bool {
        self.running.get(&id).is_some_and(|job| job.shares.get(&link) == Some(&Share::Full))
    }

    /// What each download may use of a link.
    fn arrange(&mut self, link: LinkId) -> Vec<(JobId, Share)> {
        let Some(floor) = self.links.get_mut(&link) else { return Vec::new() };
        if floor.budgeted {
            return lease(floor, link, &self.running);
        }
        let order = in_order(floor.lead, link, &self.running);
        let short = |id: &&JobId| self.running.get(id).is_some_and(Job::is_short);
        let long = order.iter().find(|id| !short(id));
        let lead = long.or(order.first()).copied();
        floor.follow(lead);
        let load = lead.and_then(|id| self.running.get(&id)).and_then(|job| job.load(link));
        // A link on which nothing comes is not filled either.
        let slack = load.is_some_and(|load| load.slack || load.rate.is_zero());
        let rate = self.running.values().filter_map(|job| job.load(link)).map(|load| load.rate).sum();
        let position = |id: JobId| order.iter().position(|other| *other == id);
        // Where all are short there is no one behind the first that is not.
        let first_long = long.copied().and_then(position).unwrap_or(order.len());
        floor.review(self.now, rate, slack, order.len().saturating_sub(first_long + 1));
        let last = first_long + floor.extra;
        let share = |id: JobId| match position(id) {
            _ if Some(id) == lead => Share::Full,
            // It had the first claim until it was about to end.
            Some(at) if at < first_long && self.has_all(id, link) => Share::Full,
            Some(at) if at <= last => Share::One,
            _ => Share::Rest,
        };
        self.running.keys().map(|id| (*id, share(*id))).collect()
    }
}

/// The downloads that want a link, the one with the least left first. The one that leads it gives way only to one with
/// much less: changing over costs a round trip.
fn in_order(lead: Option<JobId>, link: LinkId, running: &BTreeMap<JobId, Job>) -> Vec<JobId> {
    let wanting = running.iter().filter(|(_, job)| job.wants(link));
    let left = |id: JobId, job: &Job| {
        let left = job.left.unwrap_or_default();
        if Some(id) == lead { left - left / GIVES_WAY } else { left }
    };
    let mut order: Vec<(DataSize, JobId)> = wanting.map(|(id, job)| (left(*id, job), *id)).collect();
    order.sort();
    order.into_iter().map(|(_, id)| id).collect()
}

/// A link with a budget: one download has it, until it ends or wants it no more.
fn lease(floor: &mut Floor, link: LinkId, running: &BTreeMap<JobId, Job>) -> Vec<(JobId, Share)> {
    let holds = |id: &JobId| running.get(id).is_some_and(|job| job.wants(link));
    // What it was asked for may still be on its way.
    let busy = |id: &JobId| running.get(id).and_then(|job| job.load(link)).is_some_and(|load| load.busy);
    let keeps = floor.lead.filter(|id| holds(id) || busy(id));
    let lead = keeps.or_else(|| in_order(None, link, running).first().copied());
    let held = floor.lead.filter(|_| keeps.is_some());
    floor.follow(lead);
    let share = |id: JobId| match lead {
        Some(lead) if lead == id && (held.is_none() || holds(&id)) => Share::Full,
        _ => Share::Rest,
    };
    running.keys().map(|id| (*id, share(*id))).collect()
}

impl Machine for Batch {
    type Input = Input;
    type Output = Output;
    type Reason = Wake;

    fn handle(&mut self, now: Instant, input: Input) {
        self.now = self.now.max(now);
        match input {
            Input::Link { link, budgeted } => {
                self.links.entry(link).or_insert_with(|| Floor::new(budgeted)).budgeted = budgeted;
            }
            Input::Stands { job, left, loads } => {
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
        self.out.pop_front()
    }

    fn deadline(&self) -> Option<(Instant, Wake)> {
        None
    }
}

/// The one that leads keeps a link unless another has less than this part of what it has left: 1 / 4 less.
const GIVES_WAY: u64 = 4;
/// A download that ends sooner than this lets the next one begin beside it. chosen: a handshake and slow start of a
/// path of 100 ms.
const SOON: Duration = Duration::from_millis(500);
/// So little is always short: two first requests.
const SMALL: DataSize = DataSize::from_kib(128);
/// A tenth more proves that one download does not fill a link.
const GAIN: u64 = 10;
/// How long a link must have room before another download tries it: the first time, and when that has paid before.
const PERSISTENT: Duration = Duration::from_millis(1000);
const BRIEF: Duration = Duration::from_millis(300);
/// How long a trial lasts: connections open and leave slow start.
const SETTLE: Duration = Duration::from_millis(2000);
const FIRST_REST: Duration = Duration::from_secs(4);
const LONGEST_REST: Duration = Duration::from_secs(60);
