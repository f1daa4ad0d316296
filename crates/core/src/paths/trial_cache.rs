//! Results of trials of links, shared by all connections of the host.
//!
//! It records trials, each of which runs on one connection. It decides whether another trial may start, and how
//! slow a link may be beside a faster one without holding it up.
//!
//! 1. Only one trial runs at a time, because two would measure each other. All connections use its result.
//! 2. A result about a slow link beside a fast one is valid for every connection that can use both, for
//!    [`RESULT_LIFETIME`], doubled with each trial of the two up to 32-fold. A trial without a conclusive result is not
//!    repeated for [`RETRY_INTERVAL`], doubled as well.

use alloc::collections::BTreeMap;

use super::event::ConnId;
use super::links::LinkSet;
use crate::units::{Bitrate, Duration, Instant, Ratio};

/// Limit of a slow link's rate as a share of a fast link's rate if no trial has been made: between 2 of 20 Mbit/s,
/// which was measured to lose, and 4 of 20, which gains.
pub(super) const DEFAULT_LIMIT: Ratio = Ratio::from_ppm(143_000);
/// The same limit if this host's sender keeps queues short. Measured with the kernel, 20 Mbit/s and 60 ms beside
/// 100 ms: a share of 5 % gains 3 to 5 %, and 2.5 % loses a tenth to a third.
pub(super) const SHORT_QUEUE_LIMIT: Ratio = Ratio::from_ppm(30_000);
const RESULT_LIFETIME: Duration = Duration::from_secs(60);
const RETRY_INTERVAL: Duration = Duration::from_secs(15);
/// Maximum number of doublings.
const MAX_DOUBLINGS: u8 = 5;
/// A trial that has not ended within this time never will: its connection is idle or gone.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(6);

/// Results of trials; see the [module documentation](self).
#[derive(Clone, Debug, Default)]
pub(super) struct TrialCache {
    /// The connection with a running trial, and its start.
    running: Option<(ConnId, Instant)>,
    /// Results by slow link and fast link.
    pairs: BTreeMap<(usize, usize), PairResult>,
}

/// Result for a slow link beside a fast one.
#[derive(Clone, Copy, Debug, Default)]
struct PairResult {
    /// Share of the fast link's rate below which the slow link holds it up, and the time until which this is valid.
    limit: Option<(Ratio, Instant)>,
    /// Time before which no further trial starts.
    next_trial: Instant,
    trials: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct TrialResult {
    pub(super) slow_links: LinkSet,
    pub(super) fast_link: usize,
    /// Share of the fast link's rate below which the slow links hold it up; `None`: no new result.
    pub(super) limit: Option<Ratio>,
}

impl TrialCache {
    /// Records that a connection's trial has started or ended, and its result. Called at each evaluation of a connection.
    pub(super) fn update(&mut self, now: Instant, conn: ConnId, is_running: bool, result: Option<TrialResult>) {
        let is_running_here = self.running.is_some_and(|(trial_conn, _)| trial_conn == conn);
        match is_running {
            true if !is_running_here => self.running = Some((conn, now)),
            false if is_running_here => self.running = None,
            _ => {}
        }
        let Some(TrialResult { slow_links: slow, fast_link: fast, limit }) = result else { return };
        for slow in slow.iter() {
            let pair = self.pairs.entry((slow, fast)).or_default();
            let interval = if limit.is_some() { RESULT_LIFETIME } else { RETRY_INTERVAL };
            pair.next_trial = now + interval.saturating_mul(1 << u32::from(pair.trials.min(MAX_DOUBLINGS)));
            pair.trials = pair.trials.saturating_add(1);
            pair.limit = limit.map(|limit| (limit, pair.next_trial)).or(pair.limit);
        }
    }

    /// Discards results about a link after an outage.
    pub(super) fn forget_link(&mut self, link: usize) {
        self.pairs.retain(|(slow, fast), _| *slow != link && *fast != link);
    }

    /// Whether no other connection has a running trial.
    pub(super) fn is_free(&self, now: Instant, conn: ConnId) -> bool {
        self.running.is_none_or(|(trial_conn, since)| trial_conn == conn || now.since(since) > TRIAL_TIMEOUT)
    }

    /// Whether a trial of these links beside each other may start on this connection.
    pub(super) fn is_due(&self, now: Instant, conn: ConnId, slow: LinkSet, fast: usize) -> bool {
        self.is_free(now, conn)
            && slow.iter().all(|slow| self.pairs.get(&(slow, fast)).is_none_or(|pair| now >= pair.next_trial))
    }

    /// Share of the fast link's rate below which the slow link holds it up, by a valid result of a trial.
    pub(super) fn limit(&self, now: Instant, slow: usize, fast: usize) -> Option<Ratio> {
        let cached = self.pairs.get(&(slow, fast)).and_then(|pair| pair.limit).filter(|(_, until)| now < *until);
        cached.map(|(limit, _)| limit)
    }

    /// Whether a slow link with this rate holds up a fast one with that rate.
    pub(super) fn holds_up(&self, now: Instant, slow: (usize, Bitrate), fast: (usize, Bitrate)) -> bool {
        slow.1 < fast.1.share(self.limit(now, slow.0, fast.0).unwrap_or(DEFAULT_LIMIT))
    }
}
