//! Both must beat the best single path.
//!
//! In: what a connection's paths bring together and what one of them brings alone. Out: trials of one path alone, glances
//! at the home link, and which rates are too small to help.
//!
//! The stock scheduler binds a burst to the slow path, and everything behind it waits: 1 + 20 Mbit/s were measured at 5 to
//! 6 together where the fast one alone brought 18.8 (cubic), 2 + 20 at 13; 4 + 20 at 22.5. So:
//!
//! 1. A link that is slower than a part of the fastest one's rate adds nothing to a set: what trials have found, else a
//!    seventh (`trials`). That is about where energy alone would leave it out as well (the LTE-only threshold of
//!    `emptcp-s3` is 0.14 to 0.17 of LTE's rate).
//! 2. What the fast path would bring alone is not known while a slow one holds it up. Where the slow ones bring less than
//!    a fifth, or all bring less than the best one did alone, the fast one is tried alone ([`TRIAL`]). If it brings
//!    [`GAIN`] of what all did (in the throughput profile: as much), the share at which this was found is a drag.
//! 3. A link that was never measured is met alone if the home link is no faster than it is assumed to be: beside a slow one
//!    its first seconds tell nothing. What the server has queued for the slow one (megabytes, if that was fast before) comes
//!    first and holds the receiver's window; destroyed, it comes over the new one. One connection meets it at a time, and
//!    the others take the set at once. A home link that has fallen is on its way somewhere: it carries beside the new one
//!    after a glance has told what it brings now.
//! 4. On a trial, and where a slow link is left out, its subflow is destroyed and not suspended: what waits in its queue (2
//!    to 3 s at 1 Mbit/s) would hold the others up as before; destroyed, it is sent again over them.
//! 5. Nobody sees what the home link does while it rests. From [`GLANCES`] on it carries for a moment, until so much has
//!    come that its rate is known; the longer it has been bad, the longer it is expected to be (as with sizes: rule 2 of
//!    `energy`), and the more seldom it is looked at.
//! 6. Whether a slow link helps is no matter of its share alone: 2 + 20 lose what 5 + 50 gain. Where speed is the aim, one
//!    that would bring [`LEAST`] of the others, or of which nobody knows what it would bring, is tried beside them, once they
//!    have shown what they bring without it.

use super::super::conn::{ConcurrentTrial, Conn, Path, SoloTrial};
use super::super::host_state::HostState;
use super::super::links::{Link, LinkSet};
use super::super::reason::Reason;
use super::super::throughput::ThroughputWindow;
use super::Decision;
use super::trial_cache::{DEFAULT_LIMIT, TrialResult};
use crate::units::{Bitrate, DataSize, Duration, Instant, Ratio};

/// See rule 2. A fast path that is held up seems slower than it is, so that a fifth seen is less in truth.
const MUCH_FASTER: u64 = 5;
const WORSE_THAN_SOLO: Ratio = Ratio::from_ppm(900_000);
/// How long both are seen before one is tried; in the energy profile twice as long. chosen: where a fast home link becomes slow
/// and another one joins, what waits at the server stalls both for up to 3 s, once.
const MIN_OBSERVATION: Duration = Duration::from_secs(2);
/// The drain, slow start, then long enough for a mean. chosen: ten round trips of 150 ms.
const TRIAL_TIME: Duration = Duration::from_millis(1500);
/// See rule 2: the last second beside the last two. chosen: half of what is a gain.
const GROWTH: Ratio = Ratio::from_ppm(1_040_000);
const MIN_SOLO_GAIN: Ratio = Ratio::from_ppm(1_080_000);
/// The most that a trial makes of the limit.
const MAX_LIMIT: Ratio = Ratio::from_percent(50);
/// See rule 6, of what was seen while its window opened. measured over the kernel: 6 to 8 % where it can bring 10 and helps,
/// 3 to 4 % where it can bring 5 and takes three quarters for a second.
const MIN_TRIAL_SHARE: Ratio = Ratio::from_ppm(55_000);
/// A trial beside the others ends soon if all bring less than this of what these did, and else lasts until they bring more, up
/// to twice [`TRIAL`]. measured over the kernel: 1 of 20 leaves a quarter; but the packets that are lost when the window of
/// one that helps has opened too far leave 75 to 85 % for half a second (5 of 50, 8 of 61).
const COLLAPSE: Ratio = Ratio::from_percent(60);
/// See rule 5. chosen: at 0.8 Mbit/s a glance holds the connection up for some 0.4 s; a tenth of that lost, and the home
/// link's return is seen 2 s late on average.
const MIN_REPROBE_INTERVAL: Duration = Duration::from_secs(4);
/// The time between glances as a part of the time for which the link has been resting: how much of a bad spell's length its
/// end is seen late at most. chosen: a quarter; and the longest time between them.
const REPROBE_DIVISOR: u32 = 4;
const MAX_REPROBE_INTERVAL: Duration = Duration::from_secs(30);
/// The longest glance, and what ends it sooner: the first window and a queue, ten times over.
const MAX_REPROBE_TIME: Duration = Duration::from_millis(700);
const REPROBE_BYTES: DataSize = DataSize::from_kib(256);

impl Conn {
    /// A trial under way, or one that begins; none: the guard has nothing to say.
    pub(super) fn solo_trial(
        &mut self,
        host: &HostState,
        usable: LinkSet,
        current: LinkSet,
        needs_gain: bool,
    ) -> Option<Decision> {
        let now = host.now;
        if self.trials.solo.is_some() {
            return self.continue_solo_trial(host, usable, needs_gain);
        }
        let carrying = self.carrying_links().intersection(current);
        let is_recent = carrying != current
            || now.since(self.active_since) < if needs_gain { MIN_OBSERVATION * 2 } else { MIN_OBSERVATION };
        if carrying.len() < 2 || is_recent || self.trials.reprobe.is_some() {
            return None;
        }
        let is_unknown = |path: &Path| path.throughput.covered_time() < MIN_OBSERVATION / 2 || path.is_recovering();
        if carrying.iter().any(|index| self.paths.get(index).is_none_or(is_unknown)) {
            return None;
        }
        let fast = carrying.iter().max_by_key(|index| self.recent_rate(*index))?;
        // One bad second is a lost packet, or a queue that comes late.
        let rates = |time| {
            (self.combined_rate(carrying, time), self.combined_rate(carrying.without(LinkSet::single(fast)), time))
        };
        let (both, slow) = rates(ThroughputWindow::LENGTH).max(rates(ThroughputWindow::LENGTH / 2));
        let best_solo = carrying.iter().filter_map(|index| Some((self.paths.get(index)?.solo_rate?, index))).max();
        let worse_than_solo =
            best_solo.filter(|(alone, _)| both < alone.share(WORSE_THAN_SOLO)).map(|(_, link)| link);
        // A slow one that holds nobody up is not taken away to see what the fast one brings: that costs more than it tells.
        let much_faster =
            (slow * MUCH_FASTER <= both - slow && !self.sends_with_short_queues(host)).then_some(fast);
        let link = worse_than_solo.or(much_faster)?;
        let others = current.without(LinkSet::single(link));
        if self.is_growing(carrying) || !host.trial_cache.is_due(now, self.id, others, link) {
            return None;
        }
        let slow =
            others.iter().filter_map(|index| host.link(index)).map(|link| link.rate(&host.config, now)).sum();
        self.trials.solo = Some(SoloTrial {
            started: now,
            link,
            previous_links: current,
            previous_rate: both,
            others_rate: slow,
            is_first_use: false,
        });
        Some(Decision::new(LinkSet::single(link), Reason::Trial { link, previous_rate: both }))
    }

    /// Meets a link for the first time: alone, where the home link is slow and no other connection uses it.
    pub(super) fn first_use_probe(
        &mut self,
        host: &HostState,
        link: usize,
        initial_link: usize,
        set: LinkSet,
    ) -> Option<Decision> {
        let initial_rate = self.recent_rate(initial_link);
        let is_taken = host.link(link).is_some_and(Link::is_used) || !host.trial_cache.is_free(host.now, self.id);
        if initial_rate > host.config.assumed_rate || !set.contains(initial_link) || is_taken {
            return None;
        }
        self.trials.solo = Some(SoloTrial {
            started: host.now,
            link,
            previous_links: set,
            previous_rate: initial_rate,
            others_rate: initial_rate,
            is_first_use: true,
        });
        Some(Decision::new(LinkSet::single(link), Reason::Trial { link, previous_rate: initial_rate }))
    }

    fn continue_solo_trial(&mut self, host: &HostState, usable: LinkSet, needs_gain: bool) -> Option<Decision> {
        let SoloTrial {
            started: since,
            link,
            previous_links: before,
            previous_rate: both,
            others_rate: slow,
            is_first_use: first,
        } = self.trials.solo?;
        let now = host.now;
        if !usable.contains(link) {
            self.trials.solo = None;
            return None;
        }
        // It begins when the link carries.
        let started = self.subflow_on(link).filter(|sub| sub.has_carried).map(|sub| sub.active_since.max(since));
        if started.is_none_or(|started| now.since(started) < TRIAL_TIME) && now.since(since) < TRIAL_TIME * 3 {
            return Some(Decision::new(LinkSet::single(link), Reason::Trial { link, previous_rate: both }));
        }
        self.trials.solo = None;
        // What did not come up in time is not said to be slow.
        started?;
        // The last third: the drain and the opening window are over. What came before them tells nothing.
        let path = self.paths.get_mut(link)?;
        let solo_rate = path.throughput.mean(TRIAL_TIME / 3).unwrap_or_default();
        path.throughput.reset_to(solo_rate);
        let (others, before) = (before.without(LinkSet::single(link)), before.intersection(usable));
        if first {
            let has_slowed = others.iter().any(|other| self.has_slowed(host, other));
            let holds_up =
                others.iter().any(|other| host.trial_cache.holds_up(now, (other, slow), (link, solo_rate)));
            if has_slowed {
                self.schedule_reprobe(now);
            }
            let links = if has_slowed || holds_up { LinkSet::single(link) } else { before };
            return Some(Decision::new(links, Reason::Fastest { links, rate: solo_rate }));
        }
        let min_rate = if needs_gain { both.share(MIN_SOLO_GAIN) } else { both };
        let holds_up = solo_rate >= min_rate && !solo_rate.is_zero();
        let fast_rate = host.link(link).map_or(solo_rate, |link| link.rate(&host.config, now).max(solo_rate));
        let limit = match holds_up {
            true => Some(hold_up_limit(slow, fast_rate)),
            // Energy asks for more than that both bring more.
            false => (!needs_gain).then(|| help_limit(slow, fast_rate)),
        };
        self.trials.result = Some(TrialResult { slow_links: others, fast_link: link, limit });
        if holds_up {
            self.schedule_reprobe(now);
        }
        let links = if holds_up { LinkSet::single(link) } else { before };
        Some(Decision::new(links, Reason::Fastest { links, rate: if holds_up { solo_rate } else { both } }))
    }

    /// Links with the best rate, and beside them one that was left out: on trial, or one that begins.
    pub(super) fn concurrent_trial(
        &mut self,
        host: &HostState,
        links: LinkSet,
        left_out: Option<(Bitrate, usize)>,
        fast: usize,
    ) -> Option<Decision> {
        let now = host.now;
        let Some(ConcurrentTrial { started: since, slow_link: slow, slow_rate: rate, others_rate: before }) =
            self.trials.concurrent
        else {
            let (rate, slow) = left_out?;
            let before = self.combined_rate(links, ThroughputWindow::LENGTH);
            let is_settled =
                self.carrying_links() == links && links.iter().all(|index| self.is_settled(index, now));
            let settled =
                is_settled && now.since(self.active_since) >= MIN_OBSERVATION && self.trials.solo.is_none();
            let is_due =
                !self.is_growing(links) && host.trial_cache.is_due(now, self.id, LinkSet::single(slow), fast);
            // What others know of it stands for one that carried nothing here.
            let is_known =
                self.paths.get(slow).is_none_or(|path| path.has_queued || path.throughput.covered_time().is_zero());
            // A rate of zero tells of a path that was down or was given nothing, and not of a slow one.
            let is_too_slow = is_known && !rate.is_zero() && rate < before.share(MIN_TRIAL_SHARE);
            if !settled || !is_due || is_too_slow || self.is_quiet(now, MAX_REPROBE_TIME) {
                return None;
            }
            self.trials.concurrent =
                Some(ConcurrentTrial { started: now, slow_link: slow, slow_rate: rate, others_rate: before });
            let all = links.with(slow);
            return Some(Decision::new(all, Reason::Reprobe { links: all, link: slow }));
        };
        let all = links.with(slow);
        let started = self.subflow_on(slow).filter(|sub| sub.has_carried).map(|sub| sub.active_since.max(since));
        let carried_for = started.map_or(Duration::ZERO, |started| now.since(started));
        let is_worse =
            carried_for >= TRIAL_TIME / 2 && self.combined_rate(all, TRIAL_TIME / 2) < before.share(COLLAPSE);
        let is_better = carried_for >= TRIAL_TIME && self.combined_rate(all, TRIAL_TIME / 2) > before;
        if !is_worse && !is_better && carried_for < TRIAL_TIME * 2 && now.since(since) < TRIAL_TIME * 3 {
            return Some(Decision::new(all, Reason::Reprobe { links: all, link: slow }));
        }
        self.trials.concurrent = None;
        let is_conclusive = is_worse || carried_for >= TRIAL_TIME;
        let limit = if is_better { help_limit(rate, before) } else { hold_up_limit(rate, before) };
        self.trials.result = Some(TrialResult {
            slow_links: LinkSet::single(slow),
            fast_link: fast,
            limit: is_conclusive.then_some(limit),
        });
        let links = if is_better { all } else { links };
        Some(Decision::new(links, Reason::Fastest { links, rate: self.combined_rate(links, TRIAL_TIME / 2) }))
    }

    /// A glance at the home link, while others carry the connection.
    pub(super) fn reprobe_initial_link(
        &mut self,
        host: &HostState,
        current: LinkSet,
        initial_link: usize,
    ) -> Option<Decision> {
        let now = host.now;
        let (volume, proven) =
            self.subflow_on(initial_link).map_or((0, false), |sub| (sub.volume(), sub.has_carried && !sub.backup));
        if let Some((since, before)) = self.trials.reprobe {
            let new_bytes = volume.saturating_sub(before);
            let path = self.paths.get_mut(initial_link)?;
            // What came first only starts the clock.
            let measured_for = path.reprobe_data_at.map_or(Duration::ZERO, |from| now.since(from));
            if path.reprobe_data_at.is_none() && proven && new_bytes > 0 {
                path.reprobe_data_at = Some(now);
                self.trials.reprobe = Some((since, volume));
            }
            let is_enough = measured_for >= MAX_REPROBE_TIME / 3 && new_bytes >= REPROBE_BYTES.bytes()
                || measured_for >= MAX_REPROBE_TIME
                || now.since(since) >= MAX_REPROBE_TIME * 2;
            if !is_enough {
                let links = current.with(initial_link);
                return Some(Decision::new(links, Reason::Reprobe { links, link: initial_link }));
            }
            let rate =
                if measured_for.is_zero() { Bitrate::ZERO } else { DataSize::from_bytes(new_bytes) / measured_for };
            path.throughput.reset_to(rate);
            path.reprobe_data_at = None;
            self.trials.reprobe = None;
            self.trials.reprobe_result = Some((initial_link, rate));
            let standby_time = now.since(self.trials.standby_since.unwrap_or(now));
            self.trials.next_reprobe =
                now + (standby_time / REPROBE_DIVISOR).clamp(MIN_REPROBE_INTERVAL, MAX_REPROBE_INTERVAL);
            return None;
        }
        if current.contains(initial_link) {
            (self.trials.standby_since, self.trials.reprobe_result) = (None, None);
        } else {
            self.trials.standby_since.get_or_insert(now);
        }
        let is_standby = self.initial_link == Some(initial_link)
            && !current.contains(initial_link)
            && self.subflow_on(initial_link).is_some_and(|sub| sub.backup);
        if !is_standby || now < self.trials.next_reprobe || self.is_quiet(now, MAX_REPROBE_TIME) {
            return None;
        }
        if let Some(path) = self.paths.get_mut(initial_link) {
            path.reprobe_data_at = None;
        }
        self.trials.reprobe = Some((now, volume));
        let links = current.with(initial_link);
        Some(Decision::new(links, Reason::Reprobe { links, link: initial_link }))
    }

    /// The home link rests from now on, if it did not before.
    fn schedule_reprobe(&mut self, now: Instant) {
        self.trials.standby_since.get_or_insert(now);
        self.trials.next_reprobe = now + MIN_REPROBE_INTERVAL;
    }

    /// What some links brought together, over the last `time` of each.
    fn combined_rate(&self, links: LinkSet, time: Duration) -> Bitrate {
        links.iter().filter_map(|index| self.paths.get(index)?.throughput.mean(time)).sum()
    }

    /// Whether more comes over them from one second to the next: a window that opens is no path that was set free.
    fn is_growing(&self, links: LinkSet) -> bool {
        self.combined_rate(links, ThroughputWindow::LENGTH / 2)
            > self.combined_rate(links, ThroughputWindow::LENGTH).share(GROWTH)
    }

    /// A path's rate over the last second.
    pub(super) fn recent_rate(&self, link: usize) -> Bitrate {
        let path = self.paths.get(link);
        path.and_then(|path| path.throughput.mean(Duration::from_secs(1))).unwrap_or_default()
    }
}

/// Up to where a slow link holds a fast one up if it did with these rates.
fn hold_up_limit(slow: Bitrate, fast: Bitrate) -> Ratio {
    Ratio::of(slow.bits_per_sec().saturating_mul(6) / 5, fast.bits_per_sec()).min(MAX_LIMIT).max(DEFAULT_LIMIT)
}

/// From where on a slow link helps if it did with these rates. chosen: a third of that share.
fn help_limit(slow: Bitrate, fast: Bitrate) -> Ratio {
    Ratio::of(slow.bits_per_sec() / 3, fast.bits_per_sec()).min(DEFAULT_LIMIT)
}
