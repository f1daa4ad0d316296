//! What trials of links have found, for all connections of the host.
//!
//! In: trials as they begin and end, each on one connection. Out: whether another one may begin, and how slow a link may be
//! beside a faster one without holding it up.
//!
//! 1. One trial at a time: two would measure each other, and what one has learned of a link, all know.
//! 2. What was found of a slow link beside a fast one holds for every connection that could use both, for [`FOUND`],
//!    doubled each time; a trial that changed nothing is not repeated for [`AGAIN`], doubled as well.

use alloc::collections::BTreeMap;

use super::super::conn::TrialState;
use super::super::event::ConnId;
use super::super::links::LinkSet;
use crate::units::{Bitrate, Duration, Instant, Ratio};

/// Of a slow link beside a fast one, where no trial has told: between the measured 2 of 20, which loses, and 4 of 20,
/// which gains.
pub(super) const DEFAULT_LIMIT: Ratio = Ratio::from_ppm(143_000);
/// The same where our own sender keeps queues short. measured over the kernel, 20 Mbit/s and 60 ms beside 100 ms: 5 % bring
/// 3 to 5 % more, 2.5 % take a tenth to a third.
pub(super) const SHORT_QUEUE_LIMIT: Ratio = Ratio::from_ppm(30_000);
const RESULT_LIFETIME: Duration = Duration::from_secs(60);
const RETRY_INTERVAL: Duration = Duration::from_secs(15);
/// The most doublings.
const MAX_DOUBLINGS: u8 = 5;
/// A trial that has not ended by then never will: its connection is idle or gone.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(6);

/// See the [module](self).
#[derive(Clone, Debug, Default)]
pub(in super::super) struct TrialCache {
    /// The connection that is on trial, and since when.
    running: Option<(ConnId, Instant)>,
    /// By slow link and fast link.
    pairs: BTreeMap<(usize, usize), PairResult>,
}

/// A slow link beside a fast one.
#[derive(Clone, Copy, Debug, Default)]
struct PairResult {
    /// Below this part of the fast one's rate the slow one holds it up; believed until then.
    limit: Option<(Ratio, Instant)>,
    /// No trial before.
    next_trial: Instant,
    trials: u8,
}

/// What a trial has found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) struct TrialResult {
    pub(super) slow_links: LinkSet,
    pub(super) fast_link: usize,
    /// Below this part of the fast one's rate the slow ones hold it up; none: nothing new.
    pub(super) limit: Option<Ratio>,
}

impl TrialCache {
    /// A connection's turn: its trial may have begun or ended.
    pub(in super::super) fn update(&mut self, now: Instant, conn: ConnId, trial: &mut TrialState) {
        let is_running_here = self.running.is_some_and(|(of, _)| of == conn);
        match trial.is_running() {
            true if !is_running_here => self.running = Some((conn, now)),
            false if is_running_here => self.running = None,
            _ => {}
        }
        let Some(TrialResult { slow_links: slow, fast_link: fast, limit }) = trial.result.take() else { return };
        for slow in slow.iter() {
            let pair = self.pairs.entry((slow, fast)).or_default();
            let interval = if limit.is_some() { RESULT_LIFETIME } else { RETRY_INTERVAL };
            pair.next_trial = now + interval.saturating_mul(1 << u32::from(pair.trials.min(MAX_DOUBLINGS)));
            pair.trials = pair.trials.saturating_add(1);
            pair.limit = limit.map(|limit| (limit, pair.next_trial)).or(pair.limit);
        }
    }

    /// A link had an outage: what trials have found of it is no longer known.
    pub(in super::super) fn forget_link(&mut self, link: usize) {
        self.pairs.retain(|(slow, fast), _| *slow != link && *fast != link);
    }

    /// Whether no other connection is on trial.
    pub(super) fn is_free(&self, now: Instant, conn: ConnId) -> bool {
        self.running.is_none_or(|(of, since)| of == conn || now.since(since) > TRIAL_TIMEOUT)
    }

    /// Whether these may be tried beside each other, on this connection.
    pub(super) fn is_due(&self, now: Instant, conn: ConnId, slow: LinkSet, fast: usize) -> bool {
        self.is_free(now, conn)
            && slow.iter().all(|slow| self.pairs.get(&(slow, fast)).is_none_or(|pair| now >= pair.next_trial))
    }

    /// Below which part of the fast one's rate the slow one holds it up, as far as a trial has told.
    pub(super) fn limit(&self, now: Instant, slow: usize, fast: usize) -> Option<Ratio> {
        let cached = self.pairs.get(&(slow, fast)).and_then(|pair| pair.limit).filter(|(_, until)| now < *until);
        cached.map(|(limit, _)| limit)
    }

    /// Whether a link of this rate holds up one of that rate.
    pub(super) fn holds_up(&self, now: Instant, slow: (usize, Bitrate), fast: (usize, Bitrate)) -> bool {
        slow.1 < fast.1.share(self.limit(now, slow.0, fast.0).unwrap_or(DEFAULT_LIMIT))
    }
}
