//! Outages: how a connection reacts when a link goes down, and how it uses the link again after its recovery.
//!
//! 1. Measurements from before and during an outage do not describe the recovered link: a modem registers in
//!    another cell, a cable is replaced, and a path that carried nothing for five seconds was not slow but down.
//!    All measurements of the path are discarded, and so are those of the host for the link ([`Link::on_recovery`])
//!    and trials that compared the link with others.
//! 2. While a link is down or its path is unresponsive, no samples are taken.
//! 3. A recovered path is neither judged nor left out before it has carried data for [`JUDGE_AFTER`]. This time
//!    begins with its first sample, because the sender may first have to deliver data that it has queued for other
//!    subflows.
//! 4. When a link goes down, subflows over which this host sends are destroyed, so that their data goes over the
//!    other subflows at once. A subflow over which the peer sends stays until a new one has carried data. When the
//!    link recovers, a new subflow replaces it: the peer sends nothing over the old one until its retransmission
//!    timer expires.
//! 5. A connection all of whose paths fail during a transfer is *stalled*: it becomes idle like any other, but its
//!    paths are still probed. When a link recovers, the peer's retransmission timer may have a minute left; over a
//!    new subflow it sends at once.
//! 6. Only one connection at a time probes an unresponsive link ([`HostState::probe_interval`]). The others join
//!    the link again when that one has received a response.
//!
//! Keeping the measured rates with a shorter memory was rejected: after an outage of two seconds they would all be
//! zero, and a connection would stop using the link before the first byte could arrive.
//!
//! [`Link::on_recovery`]: super::links::Link::on_recovery

use super::config::{Goal, Policy};
use super::conn::{Activity, Conn, DeadPath, JoinState, Path};
use super::event::SubflowId;
use super::host_state::HostState;
use super::subflow::Subflow;
use super::throughput::ThroughputWindow;
use crate::predict::HoltWinters;
use crate::units::{Bitrate, Duration, Instant};

/// How long a recovered path carries data before it is judged. Chosen: the length of the throughput window, so that
/// decisions use only rates over the whole window.
const JUDGE_AFTER: Duration = ThroughputWindow::LENGTH;

/// Whether a path has recovered from an outage and is not judged yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Recovery {
    /// It had no outage, or has carried data for long enough since.
    #[default]
    Stable,
    /// It has recovered and has not carried data yet.
    AwaitingData,
    /// It has carried data again since this time.
    CarryingSince(Instant),
}

impl Path {
    /// Discards all measurements: the path starts as a new one, and is not judged at once.
    pub(super) fn reset_measurements(&mut self, now: Instant) {
        (self.throughput, self.forecaster, self.samples) = (ThroughputWindow::default(), HoltWinters::default(), 0);
        (self.sample_bytes, self.sample_start, self.reprobe_data_at) = (0, now, None);
        (self.solo_rate, self.best_solo_rate) = (None, Bitrate::ZERO);
        (self.is_left_out, self.has_queued) = (false, false);
        self.recovery = Recovery::AwaitingData;
    }

    /// A sample of the path was taken.
    pub(super) fn on_sample(&mut self, now: Instant) {
        self.recovery = match self.recovery {
            Recovery::AwaitingData => Recovery::CarryingSince(now),
            Recovery::CarryingSince(since) if now.since(since) >= JUDGE_AFTER => Recovery::Stable,
            recovery => recovery,
        };
    }

    /// Whether it has recovered from an outage and has not yet carried data for [`JUDGE_AFTER`].
    pub(super) fn is_recovering(&self) -> bool {
        self.recovery != Recovery::Stable
    }
}

impl Conn {
    /// Processes that a link went down or came up.
    pub(super) fn on_link_change(&mut self, host: &mut HostState, index: usize, up: bool) {
        let now = host.now;
        let has_subflow = self.subflow_on(index).is_some();
        let Some(path) = self.paths.get_mut(index) else { return };
        path.join_not_before = now;
        path.join_failures = 0;
        if host.config.policy == Policy::Marline {
            path.reset_measurements(now);
        }
        if up {
            // The sender of data that waits on the old subflow has backed off, so a new subflow is faster. Without
            // a subflow the link is like a new one.
            let is_waiting = has_subflow && (self.activity == Activity::Busy || self.stalled);
            path.dead = is_waiting.then_some(DeadPath::new(now, now));
        } else {
            path.join = JoinState::Idle;
            let lost =
                self.subflows.iter().filter(|sub| sub.link == Some(index) && self.sends_with_short_queues(host));
            let lost: alloc::vec::Vec<SubflowId> = lost.map(|sub| sub.id).collect();
            lost.into_iter().for_each(|id| self.destroy(host, id));
        }
        if host.config.policy == Policy::Marline {
            self.cancel_trials();
        }
        self.update_shares(host, self.carrying_links());
    }

    /// A link that is up has got an address of a further family: joins that failed for lack of an address are tried
    /// at once.
    pub(super) fn on_address_added(&mut self, host: &mut HostState, index: usize) {
        let Some(path) = self.paths.get_mut(index) else { return };
        (path.join_not_before, path.join_failures) = (host.now, 0);
        if let Some(dead) = &mut path.dead {
            dead.next_probe = host.now;
        }
        if let Some(link) = host.links.get_mut(index) {
            link.next_probe = host.now;
        }
    }

    /// Ends trials without a result, because the links that they compared have changed.
    pub(super) fn cancel_trials(&mut self) {
        (self.trials.solo, self.trials.concurrent, self.trials.reprobe, self.trials.reprobe_result) =
            (None, None, None, None);
    }

    /// Whether no subflow uses a link that is up and a path that is not dead.
    pub(super) fn has_no_path(&self, host: &HostState) -> bool {
        let is_usable = |sub: &Subflow| {
            let path = sub.link.and_then(|index| Some((self.paths.get(index)?, host.link(index)?)));
            path.is_none_or(|(path, link)| link.up && path.dead.is_none())
        };
        !self.subflows.iter().any(|sub| !sub.is_closing && is_usable(sub))
    }
}

impl HostState {
    /// A link recovers from an outage or goes down: earlier results of trials are no longer valid.
    pub(super) fn on_link_recovered(&mut self, index: usize) {
        if self.config.policy == Policy::Marline {
            self.trial_cache.forget_link(index);
            if let Some(link) = self.links.get_mut(index) {
                link.on_recovery(&self.config, self.now);
            }
        }
    }

    /// Interval until the next probe of an unresponsive path. `silent_since`: start of the outage.
    ///
    /// If energy is the goal, a radio that is costly to wake is probed at growing intervals. Otherwise the interval
    /// stays below two seconds, within which a recovered link must be in use again.
    pub(super) fn probe_interval(&self, index: usize, dead_since: Instant, failures: u8) -> Duration {
        let cheapest =
            self.up_links().iter().map(|index| self.single_packet_energy(index)).min().unwrap_or_default();
        let saves_energy = matches!(self.config.goal, Goal::Energy | Goal::Cost);
        if saves_energy && self.single_packet_energy(index) > cheapest {
            return DeadPath::FIRST_PROBE
                .saturating_mul(1 << u32::from(failures).min(8))
                .min(DeadPath::MAX_PROBE_INTERVAL);
        }
        if self.now.since(dead_since) < FAST_PROBE_TIME { DeadPath::FIRST_PROBE } else { SLOW_PROBE_INTERVAL }
    }
}

/// For this long an unresponsive link is probed every second, and every [`SLOW_PROBE_INTERVAL`] later. Chosen: most
/// handovers and reconnections of modems take less time.
const FAST_PROBE_TIME: Duration = Duration::from_secs(20);
/// Chosen: together with the RTTs of a join, a link is used again within two seconds of its recovery on average.
const SLOW_PROBE_INTERVAL: Duration = Duration::from_millis(1500);
