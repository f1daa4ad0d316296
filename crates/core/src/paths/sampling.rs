//! Sampling: evaluates the counters of a connection, and takes throughput
//! samples of its paths.
//!
//! 1. A poll is complete when each known subflow was reported. Only then are samples taken, so that those of all
//!    paths end at the same time.
//! 2. A sample lasts at least an RTT including queueing delay, which counts with 100 to 300 ms: within one RTT, a
//!    sender that waits for its congestion window alternates bursts and pauses, and neither is a rate. eMPTCP's
//!    samples last the RTT of the handshake (§3.2), at least 50 ms.
//! 3. A time in which nothing arrived on any path says nothing about links: the application had nothing to send, or
//!    the path is dead, which is detected separately (see [`super::liveness`]).
//! 4. During the drain of another path and while a congestion window opens, samples are discarded
//!    ([`SAMPLE_HOLDOFF`](super::path::SAMPLE_HOLDOFF)). The literal eMPTCP policy does not do so.
//! 5. A subflow that received nothing for long after it was requested to carry data may deliver data all at once
//!    that waited behind a lost packet ([`Subflow::is_late_start`]). Its first poll with bytes only starts the
//!    clock.

use super::config::Policy;
use super::conn::Conn;
use super::event::{Counters, SubflowId};
use super::host_state::HostState;
use super::links::{LinkSet, RateShare, Rates};
use super::path::{JoinState, SAMPLE_HOLDOFF};
use super::polling::{Activity, MIN_SAMPLE_TIME, POLL_INTERVAL};
use super::subflow::Subflow;
use super::throughput::ThroughputWindow;
use super::{black_hole, liveness};
use crate::units::{Bitrate, DataSize, Duration};

/// How long a path carries alone before its rate counts as its capacity.
const MIN_SOLO_TIME: Duration = Duration::from_secs(1);
/// Pause after which a connection is idle, or six RTTs if longer. Our choice: twice the time after which a liveness
/// probe starts.
const IDLE_AFTER: Duration = Duration::from_secs(1);

impl Conn {
    /// Processes the counters of one subflow; returns whether the poll is complete.
    pub(super) fn on_counters(&mut self, host: &mut HostState, subflow: SubflowId, counters: Counters) -> bool {
        let (now, adopted) = (host.now, self.adopted);
        let Some(sub) = self.subflows.get_mut(subflow) else { return false };
        let is_first = sub.volume() == 0;
        let from = sub.polled_at.unwrap_or(now);
        let bytes = sub.on_counters(now, counters, adopted);
        let (link, past_bytes) = (sub.link, if is_first && adopted { sub.volume() } else { 0 });
        self.traffic.count_bytes(past_bytes);
        self.traffic.on_bytes(&bytes);
        if let Some(link) = link.and_then(|index| host.links.get_mut(index)) {
            for (direction, size) in bytes.into_iter().filter(|(_, size)| !size.is_zero()) {
                link.on_payload(&mut host.meter, (from, now), direction, size);
            }
        }
        self.polling.is_complete(&self.subflows)
    }

    /// Processes a complete poll: takes samples, updates the activity, and repeats priorities that did not take
    /// effect.
    pub(super) fn on_poll_complete(&mut self, host: &mut HostState) {
        let now = host.now;
        self.polling.finish();
        black_hole::track_data_seq(&mut self.subflows, self.traffic.received, now);
        let new_bytes = self.subflows.new_bytes(|_| true);
        let carrying_links = self.subflows.carrying_links();
        let begins_burst = self.traffic.begins_burst(now);
        if new_bytes > 0 {
            if begins_burst {
                // The pause before was the application's if no path died in it.
                let is_application_pause = self.subflows.paths.iter().all(|path| path.dead.is_none());
                self.traffic.start_burst(now, is_application_pause);
            }
            self.traffic.track_response(now, new_bytes, self.subflows.min_rtt());
            if !self.polling.is_busy() && host.config.policy == Policy::Marline {
                self.begin_burst();
            }
            self.traffic.count_bytes(new_bytes);
            (self.traffic.last_progress, self.polling.stalled) = (Some(now), false);
            self.set_activity(host, Activity::Busy);
            self.take_samples(host, carrying_links, begins_burst && self.traffic.volume > new_bytes);
        }
        // Own data without a response keeps the connection busy, so that the liveness check continues.
        let is_unanswered = self.subflows.is_unanswered();
        if is_unanswered {
            self.set_activity(host, Activity::Busy);
        }
        self.traffic.count_poll();
        self.subflows.enforce_priorities(host);
        self.subflows.remove_duplicates(host);
        for sub in &mut self.subflows.all {
            (sub.new_bytes, sub.is_polled) = (0, false);
        }
        let quiet_time =
            now.since(self.traffic.last_progress.unwrap_or(self.traffic.opened()).max(self.traffic.burst_start));
        // The connection becomes idle after a pause, unless a check is still in progress or necessary.
        let is_awaited = is_unanswered || self.subflows.is_probing() || self.subflows.is_priority_pending();
        if new_bytes == 0
            && quiet_time > IDLE_AFTER.max(self.subflows.min_rtt() * 6)
            && !is_awaited
            && !liveness::needs_probe(&self.subflows, &self.traffic, host)
        {
            self.polling.stalled |= self.polling.is_busy() && self.subflows.has_no_path(host);
            self.set_activity(host, Activity::Idle);
        }
        self.update_shares(host, carrying_links);
        self.polling.next_poll = now + self.poll_interval(host);
    }

    /// Starts a burst after the connection was idle. Its expected size is small like that of any other, and the
    /// earlier rates of its paths say little about the present.
    fn begin_burst(&mut self) {
        self.traffic.reset_burst();
        self.trials.end_burst();
        for path in &mut self.subflows.paths {
            (path.throughput, path.has_queued, path.best_solo_rate, path.solo_rate) =
                (ThroughputWindow::default(), false, Bitrate::ZERO, None);
        }
    }

    fn take_samples(&mut self, host: &HostState, carrying_links: LinkSet, begins_burst: bool) {
        let now = host.now;
        let is_marline = host.config.policy == Policy::Marline;
        let (is_emptcp, is_literal) = (host.config.policy.is_emptcp(), host.config.policy.trusts_first_sample());
        for index in 0..self.subflows.paths.len() {
            let new_bytes = self.subflows.new_bytes(|sub| sub.link == Some(index));
            let min_time = match self.subflows.on_link(index) {
                Some(sub) if is_emptcp => sub.handshake_rtt().max(MIN_SAMPLE_TIME),
                Some(sub) => sub.rtt().clamp(POLL_INTERVAL, SAMPLE_HOLDOFF),
                None => POLL_INTERVAL,
            };
            // Before the first byte it is unknown whether the sender had data for this path: data that waits in the
            // other path's queue comes first. If full-sized packets may be lost, the rate of small ones says
            // nothing.
            let is_representative = |sub: &Subflow| {
                sub.has_carried && !(is_marline && (sub.is_late_start || sub.missing_since.is_some()))
            };
            let is_valid = self.subflows.on_link(index).is_some_and(is_representative);
            let is_first_use =
                self.initial_link != Some(index) && host.link(index).is_some_and(|link| link.last_rate().is_none());
            let Some(path) = self.subflows.paths.get_mut(index) else { continue };
            path.sample_bytes = path.sample_bytes.saturating_add(new_bytes);
            let is_unusable = path.dead.is_some() || host.link(index).is_some_and(|link| !link.up);
            if new_bytes > 0 {
                (path.join_obstacle, path.is_black_hole) = (None, false);
                // The old subflow continues after an outage: measurements from before and during it are discarded.
                if path.dead.take().is_some() && is_marline {
                    path.reset_measurements(now);
                }
                // The bytes prove what the probe was to show.
                if path.join.is_probe() {
                    (path.join, path.probed_at) = (JoinState::Idle, Some(now));
                }
            }
            let time = now.since(path.sample_start);
            // The first poll after a pause only starts the clock, because the start of the transfer is unknown.
            if !carrying_links.contains(index) {
                path.samples = 0;
            }
            let is_held_off = !is_literal && now < path.samples_from;
            if !carrying_links.contains(index)
                || begins_burst
                || is_held_off
                || !is_valid
                || is_unusable && is_marline
            {
                (path.sample_bytes, path.sample_start) = (0, now);
            } else if time >= min_time {
                let rate = DataSize::from_bytes(path.sample_bytes) / time;
                path.throughput.push(rate, time);
                path.on_sample(now);
                // "An initial bandwidth for the interface" (eMPTCP §3.2): what the forecast begins with.
                if is_literal && is_first_use && path.forecaster.samples() == 0 {
                    path.forecaster.on_sample(host.config.assumed_rate);
                }
                path.forecaster.on_sample(rate);
                path.samples = path.samples.saturating_add(1);
                if carrying_links.len() == 1 && path.throughput.covered_time() >= MIN_SOLO_TIME {
                    path.solo_rate = path.throughput.median();
                    path.best_solo_rate = path.best_solo_rate.max(path.solo_rate.unwrap_or_default());
                }
                (path.sample_bytes, path.sample_start) = (0, now);
            }
        }
    }

    /// Updates the connection's shares in the rates of the links.
    pub(super) fn update_shares(&mut self, host: &mut HostState, carrying_links: LinkSet) {
        let is_busy = self.polling.is_busy();
        let now = host.now;
        let is_literal = host.config.policy.trusts_first_sample();
        let settled_links = carrying_links
            .iter()
            .filter(|index| is_literal || self.subflows.is_settled(*index, self.traffic.burst_start, now))
            .fold(LinkSet::EMPTY, LinkSet::with);
        // The literal eMPTCP policy counts every sum at once.
        let settle_time_max =
            if is_literal { None } else { self.subflows.all.iter().map(Subflow::settle_time).max() }
                .unwrap_or_default();
        for (index, path) in self.subflows.paths.iter_mut().enumerate() {
            let is_active = is_busy && carrying_links.contains(index) && !path.throughput.covered_time().is_zero();
            let bits = |rate: Option<Bitrate>| rate.map_or(0, Bitrate::bits_per_sec);
            // Beside another path, bursts and pauses alternate, and a median would be one or the other.
            let rate = if carrying_links.len() > 1 {
                path.throughput.mean(ThroughputWindow::LENGTH)
            } else {
                path.throughput.median()
            };
            let rates = Rates { recent: bits(rate), forecast: bits(path.forecaster.forecast()) };
            let share = if is_active {
                RateShare { is_active, is_settled: settled_links.contains(index), rates }
            } else {
                RateShare::default()
            };
            if share != path.rate_share {
                if let Some(link) = host.links.get_mut(index) {
                    link.update_share(&host.config, now, [path.rate_share, share], settle_time_max);
                }
                path.rate_share = share;
            }
        }
        let bytes = if is_busy { self.traffic.burst_bytes } else { 0 };
        host.busy_bytes = host.busy_bytes.saturating_sub(self.counted_bytes).saturating_add(bytes);
        self.counted_bytes = bytes;
    }

    /// Removes the connection from the host's sums.
    pub(super) fn withdraw(&mut self, host: &mut HostState) {
        self.set_activity(host, Activity::Idle);
        self.update_shares(host, LinkSet::EMPTY);
    }
}
