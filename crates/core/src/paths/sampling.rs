//! Polling and sampling: evaluates the counters of a connection, takes throughput samples of its paths, and
//! schedules the next poll.
//!
//! 1. A poll is complete when each known subflow was reported. Only then are samples taken, so that those of all
//!    paths end at the same time.
//! 2. A sample lasts at least an RTT including queueing delay: within one RTT, a sender that waits for its window
//!    alternates bursts and pauses, and neither is a rate. eMPTCP's samples last the RTT of the handshake (§3.2),
//!    at least 50 ms.
//! 3. A time in which nothing arrived on any path says nothing about links: the application had nothing to send, or
//!    the path is dead, which is detected separately (see [`super::liveness`]).
//! 4. During the drain of another path and while a window opens, samples are discarded ([`SAMPLE_HOLDOFF`]). The
//!    literal eMPTCP policy does not do so.
//! 5. A subflow that received nothing for long after it was requested to carry data may deliver data all at once
//!    that waited behind a lost packet ([`Subflow::is_late_start`]). Its first poll with bytes only starts the
//!    clock.
//! 6. Active connections share [`MAX_POLLS_PER_SECOND`] polls; idle ones are polled in rotation (see
//!    [`super::idle_poll`]).

use super::config::Policy;
use super::conn::{Activity, Conn, JoinState};
use super::host_state::HostState;
use super::links::{LinkSet, RateShare, Rates};
use super::subflow::{PriorityVerdict, Subflow};
use super::throughput::ThroughputWindow;
use super::{Command, Counters, SubflowId};
use crate::units::{Bitrate, DataSize, Duration, Instant};

/// Time for which samples of a resumed or new path are discarded. Measured: at a negligible RTT, a path reaches at
/// least 80 % of the link's rate within one window of 100 ms. Chosen: three such windows.
pub(super) const SAMPLE_HOLDOFF: Duration = Duration::from_millis(300);
/// Polls per second of all active connections together. Chosen: at 15 µs per subflow, two subflows each, and the
/// same time for decisions, 2 % of a core.
const MAX_POLLS_PER_SECOND: u32 = 300;
/// Poll interval of marline's policy. Chosen: a fifth of the time after which a second path is found dead; costs
/// 0.03 % of a core per subflow.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Poll interval of published policies that measure nothing.
const SLOW_POLL_INTERVAL: Duration = Duration::from_millis(250);
/// eMPTCP's shortest sample: the resolution of the kernel's clock and the driver's jitter would dominate a shorter
/// one.
const MIN_SAMPLE_TIME: Duration = Duration::from_millis(50);
/// Pause after which a new burst of activity begins.
const BURST_PAUSE: Duration = Duration::from_secs(1);
/// Longest pause within one response, or six RTTs if longer. Chosen: a link of 10 kbit/s delivers a packet in 1.2
/// s, and a lost packet is retransmitted after the same time.
const RESPONSE_PAUSE: Duration = Duration::from_secs(3);
/// How long a path carries alone before its rate counts as its capacity.
const MIN_SOLO_TIME: Duration = Duration::from_secs(1);
/// A poll that was not answered within this time is repeated.
pub(super) const POLL_TIMEOUT: Duration = Duration::from_secs(1);

impl Conn {
    /// Processes the counters of one subflow; returns whether the poll is complete.
    pub(super) fn on_counters(&mut self, host: &mut HostState, subflow: SubflowId, counters: Counters) -> bool {
        let (now, adopted) = (host.now, self.adopted);
        let Some(sub) = self.subflow_mut(subflow) else { return false };
        let is_first = sub.volume() == 0;
        let from = sub.polled_at.unwrap_or(now);
        let bytes = sub.on_counters(now, counters, adopted);
        let (link, past_bytes) = (sub.link, if is_first && adopted { sub.volume() } else { 0 });
        self.count_bytes(past_bytes);
        self.on_bytes(&bytes);
        if let Some(link) = link.and_then(|index| host.links.get_mut(index)) {
            for (direction, size) in bytes.into_iter().filter(|(_, size)| !size.is_zero()) {
                link.on_payload(&mut host.meter, (from, now), direction, size);
            }
        }
        self.poll_sent_at.is_some() && self.subflows.iter().all(|sub| sub.is_polled)
    }

    /// Processes a complete poll: takes samples, updates the activity, and repeats priorities that did not take
    /// effect.
    pub(super) fn on_poll_complete(&mut self, host: &mut HostState) {
        let now = host.now;
        self.poll_sent_at = None;
        self.track_data_seq(now);
        let new_bytes = self.new_bytes(|_| true);
        let carrying_links = self.carrying_links();
        let begins_burst = self.last_progress.is_none_or(|moved| now.since(moved) > BURST_PAUSE);
        if new_bytes > 0 {
            if begins_burst {
                self.on_burst_start();
                self.burst_start = now;
            }
            let pause = RESPONSE_PAUSE.max(self.min_rtt() * 6);
            self.track_response(now, new_bytes, self.last_progress.is_none_or(|moved| now.since(moved) > pause));
            self.polls.1 = self.polls.1.saturating_add(1);
            if self.activity == Activity::Idle && host.config.policy == Policy::Marline {
                self.begin_burst();
            }
            self.count_bytes(new_bytes);
            (self.last_progress, self.stalled) = (Some(now), false);
            self.set_activity(host, Activity::Busy);
            self.take_samples(host, carrying_links, begins_burst && self.volume > new_bytes);
        }
        // Own data without a response keeps the connection busy, so that the liveness check continues.
        let is_unanswered =
            self.subflows.iter().any(|sub| sub.unanswered_since.is_some() && !sub.backup && !sub.is_closing);
        if is_unanswered {
            self.set_activity(host, Activity::Busy);
        }
        self.polls.0 = self.polls.0.saturating_add(1);
        self.enforce_priorities(host);
        self.remove_duplicates(host);
        for sub in &mut self.subflows {
            (sub.new_bytes, sub.is_polled) = (0, false);
        }
        let quiet_time = now.since(self.last_progress.unwrap_or(self.opened).max(self.burst_start));
        // The connection becomes idle after a pause, unless a check is still in progress or necessary.
        let is_awaited =
            is_unanswered || self.is_probing() || self.subflows.iter().any(|sub| sub.pending_drain().is_some());
        if new_bytes == 0
            && quiet_time > IDLE_AFTER.max(self.min_rtt() * 6)
            && !is_awaited
            && !self.needs_probe(host)
        {
            self.stalled = self.activity == Activity::Busy && self.has_no_path(host) || self.stalled;
            self.set_activity(host, Activity::Idle);
        }
        self.update_shares(host, carrying_links);
        self.next_poll = now + self.poll_interval(host);
    }

    fn count_bytes(&mut self, bytes: u64) {
        self.volume = self.volume.saturating_add(bytes);
        self.burst_bytes = self.burst_bytes.saturating_add(bytes);
    }

    /// Starts a burst after the connection was idle. Its expected size is small like that of any other, and the
    /// earlier rates of its paths say little about the present.
    fn begin_burst(&mut self) {
        (self.burst_bytes, self.is_eligible) = (0, false);
        (self.trials.solo, self.trials.concurrent, self.trials.reprobe) = (None, None, None);
        for path in &mut self.paths {
            (path.throughput, path.has_queued, path.best_solo_rate, path.solo_rate) =
                (ThroughputWindow::default(), false, Bitrate::ZERO, None);
        }
    }

    /// Bytes since the last complete poll, over some of its subflows.
    fn new_bytes(&self, filter: impl Fn(&Subflow) -> bool) -> u64 {
        self.subflows.iter().filter(|sub| filter(sub)).fold(0, |sum, sub| sum.saturating_add(sub.new_bytes))
    }

    fn take_samples(&mut self, host: &HostState, carrying_links: LinkSet, begins_burst: bool) {
        let now = host.now;
        let is_marline = host.config.policy == Policy::Marline;
        let (is_emptcp, is_literal) = (host.config.policy.is_emptcp(), host.config.policy.trusts_first_sample());
        for index in 0..self.paths.len() {
            let new_bytes = self.new_bytes(|sub| sub.link == Some(index));
            let min_time = match self.subflow_on(index) {
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
            let is_valid = self.subflow_on(index).is_some_and(is_representative);
            let is_first_use =
                self.initial_link != Some(index) && host.link(index).is_some_and(|link| link.last_rate().is_none());
            let Some(path) = self.paths.get_mut(index) else { continue };
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

    /// Repeats priorities that have not taken effect, and destroys subflows whose peer does not follow them.
    fn enforce_priorities(&mut self, host: &mut HostState) {
        let (now, conn) = (host.now, self.id);
        let has_data = |sub: &Subflow| !sub.backup && !sub.is_closing && sub.new_bytes > 0;
        // Something else has changed the priority (an administrator, or an earlier daemon): take over the kernel's
        // value.
        for sub in self.subflows.iter_mut().filter(|sub| sub.pending_drain().is_none() && !sub.is_closing) {
            sub.backup = sub.kernel_backup().unwrap_or(sub.backup);
        }
        let with_data = self.subflows.iter().filter(|sub| has_data(sub)).count();
        let may_end = !self.is_half_closed;
        for sub in &mut self.subflows {
            // Whether another subflow carries data, so that bytes on this one are not fail-over.
            let others = with_data > usize::from(has_data(sub));
            match sub.check_priority(now, others) {
                PriorityVerdict::Pending | PriorityVerdict::Effective => {}
                PriorityVerdict::Repeat => {
                    sub.request_backup(now, sub.backup);
                    host.send_command(conn, Command::SetBackup { subflow: sub.id, backup: sub.backup });
                }
                PriorityVerdict::Unresponsive if !sub.is_closing && with_data > 0 && may_end => {
                    sub.is_closing = true;
                    host.send_command(conn, Command::Destroy { subflow: sub.id });
                }
                PriorityVerdict::Unresponsive => {}
            }
        }
    }

    /// Updates the connection's shares in the rates of the links.
    pub(super) fn update_shares(&mut self, host: &mut HostState, carrying_links: LinkSet) {
        let is_busy = self.activity == Activity::Busy;
        let now = host.now;
        let is_literal = host.config.policy.trusts_first_sample();
        let settled_links = carrying_links
            .iter()
            .filter(|index| is_literal || self.is_settled(*index, now))
            .fold(LinkSet::EMPTY, LinkSet::with);
        // The literal eMPTCP policy counts every sum at once.
        let settle_time_max =
            if is_literal { None } else { self.subflows.iter().map(settle_time).max() }.unwrap_or_default();
        for (index, path) in self.paths.iter_mut().enumerate() {
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
        let bytes = if is_busy { self.burst_bytes } else { 0 };
        host.busy_bytes = host.busy_bytes.saturating_sub(self.counted_bytes).saturating_add(bytes);
        self.counted_bytes = bytes;
    }

    /// Removes the connection from the host's sums.
    pub(super) fn withdraw(&mut self, host: &mut HostState) {
        self.set_activity(host, Activity::Idle);
        self.update_shares(host, LinkSet::EMPTY);
    }

    pub(super) fn set_activity(&mut self, host: &mut HostState, activity: Activity) {
        match (self.activity, activity) {
            (Activity::Busy, Activity::Idle) => host.busy_conns = host.busy_conns.saturating_sub(1),
            (Activity::Idle, Activity::Busy) => host.busy_conns += 1,
            _ => {}
        }
        self.activity = activity;
    }

    /// Whether a path's rate has settled, as far as its time shows: slow start is over, and data that the server
    /// had queued for another path before has been delivered.
    pub(super) fn is_settled(&self, link: usize, now: Instant) -> bool {
        let Some(sub) = self.subflow_on(link) else { return false };
        sub.has_carried && now.since(sub.active_since.max(self.burst_start)) >= settle_time(sub)
    }

    /// Whether no bytes were transferred during an estimated RTT (eMPTCP §3.5).
    pub(super) fn is_quiet(&self, now: Instant, interval: Duration) -> bool {
        let rtt = self.min_rtt().max(interval * 2);
        self.last_progress.is_none_or(|moved| now.since(moved) > rtt)
    }

    /// Interval until the next poll.
    pub(super) fn poll_interval(&self, host: &HostState) -> Duration {
        let handshake = self.subflows.iter().filter(|sub| !sub.is_closing).map(Subflow::handshake_rtt).min();
        let interval = match host.config.policy {
            Policy::Marline => POLL_INTERVAL,
            Policy::WifiFirst | Policy::Mptcp => SLOW_POLL_INTERVAL,
            _ => handshake.unwrap_or(MIN_SAMPLE_TIME).clamp(MIN_SAMPLE_TIME, BURST_PAUSE),
        };
        let is_checking = self.subflows.iter().any(|sub| sub.pending_drain().is_some());
        let interval = if is_checking { interval.min(POLL_INTERVAL) } else { interval };
        let interval = if self.trials.reprobe.is_some() { interval / 2 } else { interval };
        interval.max(BURST_PAUSE * u32::try_from(host.busy_conns).unwrap_or(u32::MAX) / MAX_POLLS_PER_SECOND)
    }
}

/// Time after which a path that was requested to carry data shows its capacity, or ten RTTs if longer (eq. 1: the
/// rounds of slow start up to its rate, and φ = 10 samples). Measured with the kernel: 0.85 of 8 Mbit/s in the
/// first second of LTE beside slow Wi-Fi.
const SETTLE_TIME: Duration = Duration::from_secs(2);

/// Settle time of a subflow.
fn settle_time(sub: &Subflow) -> Duration {
    SETTLE_TIME.max(sub.handshake_rtt() * 10)
}

/// Pause after which a connection is idle, or six RTTs if longer. Chosen: twice the time after which a liveness
/// probe starts.
const IDLE_AFTER: Duration = Duration::from_secs(1);
