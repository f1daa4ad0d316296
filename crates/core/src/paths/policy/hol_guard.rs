//! Head-of-line guard: several links together must not be slower than the best single path.
//!
//! It compares the rate of a connection's paths together with that of one path alone. It starts trials of one path
//! alone, reprobes of the initial link, and decides which links are too slow to help.
//!
//! The stock scheduler assigns a burst to the slow path, and everything behind it waits. Measured with cubic: 1 +
//! 20 Mbit/s carry 5 to 6 together where the fast path alone carries 18.8; 2 + 20 carry 13; 4 + 20 carry 22.5.
//! Therefore:
//!
//! 1. A link whose rate is below a limit, as a share of the fastest one's, adds nothing to a set. The limit comes
//!    from trials, and is a seventh without them (see [`super::super::trial_cache`]). Energy alone would leave such a
//!    link out at about the same limit (the LTE-only threshold of `emptcp-s3` is 0.14 to 0.17 of LTE's rate).
//! 2. What the fast path can carry alone is unknown while a slow one holds it up. If the slow paths together carry at
//!    most a fifth of the fast one's rate, or all paths carry less than 90 % of what the best one did alone, the fast
//!    path is tried alone ([`TRIAL_TIME`]).
//!    If it then carries [`MIN_SOLO_GAIN`] of what all carried (with the goal of throughput: as much), the slow
//!    paths' share becomes the limit.
//! 3. A link that was never measured is first used alone if the initial link is no faster than the assumed rate:
//!    beside a slow path its first seconds show nothing. Data that the server has queued for the slow path
//!    (megabytes, if that was fast before) comes first and fills the receive window; if the slow subflow is
//!    destroyed, the data comes over the new link. Only one connection makes this first use at a time, and the
//!    others use the whole set at once. An initial link that has slowed down may slow further: it carries beside
//!    the new link only after a reprobe has measured its present rate.
//! 4. If a slow link is left out, and during a solo trial for the goal of energy, the subflow of a link that does not
//!    carry is destroyed and not suspended: data in its queue (2 to 3 s at 1 Mbit/s) would otherwise continue to hold
//!    up the others; after closing, it is sent again over them.
//! 5. The initial link is not observed while it is on standby. Every [`MIN_REPROBE_INTERVAL`] or more it carries
//!    data for a moment, until enough has arrived to know its rate. The longer it has been bad, the longer it is
//!    expected to stay so (as with sizes: rule 2 of [`super::energy`]), and the less often it is reprobed.
//! 6. Whether a slow link helps depends on more than its share: 2 + 20 Mbit/s lose what 5 + 50 gain. For the goal
//!    of throughput, a link that would carry [`MIN_TRIAL_SHARE`] of the others' rate, or whose rate is unknown, is
//!    tried together with them, once their rate without it is known.

use super::input::{Decision, PolicyInput};
use crate::paths::links::{Link, LinkSet};
use crate::paths::path::Path;
use crate::paths::reason::Reason;
use crate::paths::throughput::ThroughputWindow;
use crate::paths::trial_cache::{DEFAULT_LIMIT, TrialResult};
use crate::units::{Bitrate, DataSize, Duration, Instant, Ratio};

/// Rule 2. A fast path that is held up seems slower than it is, so that a fifth observed is less in reality.
const MUCH_FASTER: u64 = 5;
/// Rule 2. Share of the best rate that one path had alone, below which all paths together seem held up.
const WORSE_THAN_SOLO: Ratio = Ratio::from_ppm(900_000);
/// How long several links carry together before one of them is tried alone; twice as long for the goal of energy. Our
/// choice: where a fast initial link becomes slow and another one joins, data that waits at the server stalls both for
/// up to 3 s, once.
const MIN_OBSERVATION: Duration = Duration::from_secs(2);
/// Duration of a solo trial: the drain, slow start, and enough time for a mean. Our choice: ten RTTs of 150 ms.
const TRIAL_TIME: Duration = Duration::from_millis(1500);
/// Rule 2, for the goal of energy: the fast path alone must carry 8 % more than all together did.
const MIN_SOLO_GAIN: Ratio = Ratio::from_ppm(1_080_000);
/// Upper bound of a limit found by a trial.
const MAX_LIMIT: Ratio = Ratio::from_percent(50);
/// Rule 6, with the rate observed while the link's window opened. Measured with the kernel: 6 to 8 % where it can
/// carry 10 and helps, 3 to 4 % where it can carry 5 and takes three quarters of the rate for a second.
const MIN_TRIAL_SHARE: Ratio = Ratio::from_ppm(55_000);
/// A concurrent trial ends early if all carry less than this share of what the others carried before. Otherwise it
/// lasts until they carry more, up to twice [`TRIAL_TIME`]. Measured with the kernel: 1 of 20 leaves a quarter; but
/// the packets lost when the window of a helpful link has opened too far leave 75 to 85 % for half a second (5 of
/// 50, 8 of 61).
const COLLAPSE: Ratio = Ratio::from_percent(60);
/// Rule 5. Our choice: at 0.8 Mbit/s a reprobe holds the connection up for about 0.4 s; a tenth of that is lost, and
/// the recovery of the initial link is detected 2 s late on average.
const MIN_REPROBE_INTERVAL: Duration = Duration::from_secs(4);
/// The interval between reprobes is the time on standby divided by this, which bounds how late the end of a bad
/// phase is detected, as a share of its length. Our choice: a quarter. Below it, the longest interval.
const REPROBE_DIVISOR: u32 = 4;
const MAX_REPROBE_INTERVAL: Duration = Duration::from_secs(30);
/// Duration of a reprobe from its first bytes on, and the number of bytes that ends it earlier, after a third of the
/// time: ten times the first congestion window and a queue. In any case it ends after twice the
/// time since its start.
const MAX_REPROBE_TIME: Duration = Duration::from_millis(700);
const REPROBE_BYTES: DataSize = DataSize::from_kib(256);

/// Trials of links, and reprobes of the initial link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in crate::paths) struct TrialState {
    /// One link carries alone.
    pub(in crate::paths) solo: Option<SoloTrial>,
    /// A slow link carries together with the others.
    pub(in crate::paths) concurrent: Option<ConcurrentTrial>,
    /// Result of the last trial, until the host's trial cache has stored it.
    pub(in crate::paths) result: Option<TrialResult>,
    /// Reprobe in progress: its start, and the bytes that the initial link had carried by then.
    pub(in crate::paths) reprobe: Option<(Instant, u64)>,
    /// Time before which no reprobe starts.
    pub(in crate::paths) next_reprobe: Instant,
    /// Time since when the initial link is on standby, and the result of the last reprobe.
    pub(in crate::paths) standby_since: Option<Instant>,
    pub(in crate::paths) reprobe_result: Option<(usize, Bitrate)>,
}

/// Trial of one link alone, to measure what it can carry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::paths) struct SoloTrial {
    pub(in crate::paths) started: Instant,
    pub(in crate::paths) link: usize,
    /// Links that carried the connection before, and their rate.
    pub(in crate::paths) previous_links: LinkSet,
    pub(in crate::paths) previous_rate: Bitrate,
    /// Rate that all connections of the host had over the other links.
    pub(in crate::paths) others_rate: Bitrate,
    /// The link was never measured before, so there is nothing to compare with.
    pub(in crate::paths) is_first_use: bool,
}

/// Trial of a slow link together with the others, to see whether the total rate grows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::paths) struct ConcurrentTrial {
    pub(in crate::paths) started: Instant,
    pub(in crate::paths) slow_link: usize,
    /// Rate of the slow link when it was left out.
    pub(in crate::paths) slow_rate: Bitrate,
    /// Rate of the other links without it.
    pub(in crate::paths) others_rate: Bitrate,
}

impl TrialState {
    /// Whether a trial is in progress.
    pub(in crate::paths) fn is_running(&self) -> bool {
        self.concurrent.is_some() || self.solo.is_some()
    }

    /// Ends trials without a result, because the links that they compared have changed.
    pub(in crate::paths) fn cancel(&mut self) {
        (self.solo, self.concurrent, self.reprobe, self.reprobe_result) = (None, None, None, None);
    }

    /// Ends trials and reprobes before a new burst. Its rates say nothing about those of the last one.
    pub(in crate::paths) fn end_burst(&mut self) {
        (self.solo, self.concurrent, self.reprobe) = (None, None, None);
    }

    /// Continues or starts a solo trial; `None`: none is running or due.
    ///
    /// `current`: the links that carry the connection. `needs_gain`: the single link must be clearly faster than
    /// all together, because the trial serves the goal of energy.
    pub(super) fn run_solo(
        &mut self,
        input: &mut PolicyInput<'_>,
        usable: LinkSet,
        current: LinkSet,
        needs_gain: bool,
    ) -> Option<Decision> {
        let host = input.host;
        let now = host.now;
        if self.solo.is_some() {
            return self.continue_solo(input, usable, needs_gain);
        }
        let carrying = input.subflows.carrying_links().intersection(current);
        // Start only if several links have carried data together for long enough that their rates are known.
        let is_recent = carrying != current
            || now.since(input.active_since) < if needs_gain { MIN_OBSERVATION * 2 } else { MIN_OBSERVATION };
        if carrying.len() < 2 || is_recent || self.reprobe.is_some() {
            return None;
        }
        let is_unknown = |path: &Path| path.throughput.covered_time() < MIN_OBSERVATION / 2 || path.is_recovering();
        if carrying.iter().any(|index| input.subflows.paths.get(index).is_none_or(is_unknown)) {
            return None;
        }
        let fast = carrying.iter().max_by_key(|index| input.recent_rate(*index))?;
        // The better one of two windows counts: one bad second is a lost packet, or a queue that arrives late.
        let rates = |time| {
            (
                input.combined_rate(carrying, time),
                input.combined_rate(carrying.without(LinkSet::single(fast)), time),
            )
        };
        let (both, slow) = rates(ThroughputWindow::LENGTH).max(rates(ThroughputWindow::LENGTH / 2));
        let best_solo =
            carrying.iter().filter_map(|index| Some((input.subflows.paths.get(index)?.solo_rate?, index))).max();
        // Rule 2: candidates are a link that was faster alone than all are together, or one that is much faster
        // than the rest.
        let worse_than_solo =
            best_solo.filter(|(alone, _)| both < alone.share(WORSE_THAN_SOLO)).map(|(_, link)| link);
        // If queues are short, a slow link holds nothing up; removing it would cost more than the trial can show.
        let much_faster = (slow * MUCH_FASTER <= both - slow && !input.sends_with_short_queues()).then_some(fast);
        let link = worse_than_solo.or(much_faster)?;
        let others = current.without(LinkSet::single(link));
        if input.is_growing(carrying) || !host.trial_cache.is_due(now, input.conn, others, link) {
            return None;
        }
        let others_rate =
            others.iter().filter_map(|index| host.link(index)).map(|link| link.rate(&host.config, now)).sum();
        self.solo = Some(SoloTrial {
            started: now,
            link,
            previous_links: current,
            previous_rate: both,
            others_rate,
            is_first_use: false,
        });
        Some(Decision::new(LinkSet::single(link), Reason::Trial { link, previous_rate: both }))
    }

    /// First use of a link: alone, if the initial link is slow and no other connection uses the new one (rule 3).
    /// `None`: use the set at once.
    pub(super) fn first_use_probe(
        &mut self,
        input: &mut PolicyInput<'_>,
        link: usize,
        initial_link: usize,
        set: LinkSet,
    ) -> Option<Decision> {
        let host = input.host;
        let initial_rate = input.recent_rate(initial_link);
        let is_taken =
            host.link(link).is_some_and(Link::is_used) || !host.trial_cache.is_free(host.now, input.conn);
        if initial_rate > host.config.assumed_rate || !set.contains(initial_link) || is_taken {
            return None;
        }
        self.solo = Some(SoloTrial {
            started: host.now,
            link,
            previous_links: set,
            previous_rate: initial_rate,
            others_rate: initial_rate,
            is_first_use: true,
        });
        Some(Decision::new(LinkSet::single(link), Reason::Trial { link, previous_rate: initial_rate }))
    }

    fn continue_solo(
        &mut self,
        input: &mut PolicyInput<'_>,
        usable: LinkSet,
        needs_gain: bool,
    ) -> Option<Decision> {
        let host = input.host;
        let SoloTrial { started: trial_start, link, previous_links, previous_rate, others_rate, is_first_use } =
            self.solo?;
        let now = host.now;
        if !usable.contains(link) {
            self.solo = None;
            return None;
        }
        // The trial starts when the link carries data.
        let started =
            input.subflows.on_link(link).filter(|sub| sub.has_carried).map(|sub| sub.active_since.max(trial_start));
        if started.is_none_or(|started| now.since(started) < TRIAL_TIME) && now.since(trial_start) < TRIAL_TIME * 3
        {
            return Some(Decision::new(LinkSet::single(link), Reason::Trial { link, previous_rate }));
        }
        self.solo = None;
        // A link that was not joined in time was not measured.
        started?;
        // Only the last third counts: before it, the drain and the opening window dominate.
        let path = input.subflows.paths.get_mut(link)?;
        let solo_rate = path.throughput.mean(TRIAL_TIME / 3).unwrap_or_default();
        path.throughput.reset_to(solo_rate);
        let (others, before) = (previous_links.without(LinkSet::single(link)), previous_links.intersection(usable));
        if is_first_use {
            // First use: there is no earlier rate for comparison. The new link stays alone if the others have
            // slowed down or would hold it up; otherwise the whole set is used.
            let has_slowed = others.iter().any(|other| input.has_slowed(other));
            let holds_up =
                others.iter().any(|other| host.trial_cache.holds_up(now, (other, others_rate), (link, solo_rate)));
            if has_slowed {
                self.schedule_reprobe(now);
            }
            let links = if has_slowed || holds_up { LinkSet::single(link) } else { before };
            return Some(Decision::new(links, Reason::Fastest { links, rate: solo_rate }));
        }
        let min_rate = if needs_gain { previous_rate.share(MIN_SOLO_GAIN) } else { previous_rate };
        // Compare the rate alone with the earlier rate of all, and derive a limit for the cache.
        let holds_up = solo_rate >= min_rate && !solo_rate.is_zero();
        let fast_rate = host.link(link).map_or(solo_rate, |link| link.rate(&host.config, now).max(solo_rate));
        let limit = match holds_up {
            true => Some(hold_up_limit(others_rate, fast_rate)),
            // For the goal of energy, a missing gain does not prove that all together carry more.
            false => (!needs_gain).then(|| help_limit(others_rate, fast_rate)),
        };
        self.result = Some(TrialResult { slow_links: others, fast_link: link, limit });
        if holds_up {
            self.schedule_reprobe(now);
        }
        let links = if holds_up { LinkSet::single(link) } else { before };
        Some(Decision::new(
            links,
            Reason::Fastest { links, rate: if holds_up { solo_rate } else { previous_rate } },
        ))
    }

    /// Continues or starts a concurrent trial: links with the best rate, and beside them one that was left out
    /// (rule 6).
    pub(super) fn run_concurrent(
        &mut self,
        input: &mut PolicyInput<'_>,
        links: LinkSet,
        left_out: Option<(Bitrate, usize)>,
        fast: usize,
    ) -> Option<Decision> {
        let host = input.host;
        let now = host.now;
        let Some(ConcurrentTrial { started: trial_start, slow_link, slow_rate, others_rate }) = self.concurrent
        else {
            let (rate, slow) = left_out?;
            // Start only if the others' rate is stable and known, and nothing indicates that the slow link is too
            // slow.
            let before = input.combined_rate(links, ThroughputWindow::LENGTH);
            let is_settled =
                input.subflows.carrying_links() == links && links.iter().all(|index| input.is_settled(index));
            let settled = is_settled && now.since(input.active_since) >= MIN_OBSERVATION && self.solo.is_none();
            let is_due =
                !input.is_growing(links) && host.trial_cache.is_due(now, input.conn, LinkSet::single(slow), fast);
            // If it has carried nothing for this connection, the measurements of others count.
            let is_known = input
                .subflows
                .paths
                .get(slow)
                .is_none_or(|path| path.has_queued || path.throughput.covered_time().is_zero());
            // A rate of zero indicates a path that was down or got no data, not a slow one.
            let is_too_slow = is_known && !rate.is_zero() && rate < before.share(MIN_TRIAL_SHARE);
            if !settled || !is_due || is_too_slow || input.is_quiet(MAX_REPROBE_TIME) {
                return None;
            }
            self.concurrent =
                Some(ConcurrentTrial { started: now, slow_link: slow, slow_rate: rate, others_rate: before });
            let all = links.with(slow);
            return Some(Decision::new(all, Reason::Reprobe { links: all, link: slow }));
        };
        let all = links.with(slow_link);
        // Continue until the result is clear: the total collapses, exceeds that without the slow link, or the time
        // is over.
        let started = input
            .subflows
            .on_link(slow_link)
            .filter(|sub| sub.has_carried)
            .map(|sub| sub.active_since.max(trial_start));
        let carried_for = started.map_or(Duration::ZERO, |started| now.since(started));
        let is_worse =
            carried_for >= TRIAL_TIME / 2 && input.combined_rate(all, TRIAL_TIME / 2) < others_rate.share(COLLAPSE);
        let is_better = carried_for >= TRIAL_TIME && input.combined_rate(all, TRIAL_TIME / 2) > others_rate;
        if !is_worse && !is_better && carried_for < TRIAL_TIME * 2 && now.since(trial_start) < TRIAL_TIME * 3 {
            return Some(Decision::new(all, Reason::Reprobe { links: all, link: slow_link }));
        }
        self.concurrent = None;
        let is_conclusive = is_worse || carried_for >= TRIAL_TIME;
        let limit =
            if is_better { help_limit(slow_rate, others_rate) } else { hold_up_limit(slow_rate, others_rate) };
        self.result = Some(TrialResult {
            slow_links: LinkSet::single(slow_link),
            fast_link: fast,
            limit: is_conclusive.then_some(limit),
        });
        let links = if is_better { all } else { links };
        Some(Decision::new(links, Reason::Fastest { links, rate: input.combined_rate(links, TRIAL_TIME / 2) }))
    }

    /// Continues or starts a reprobe of the initial link, while others carry the connection (rule 5).
    pub(super) fn run_reprobe(
        &mut self,
        input: &mut PolicyInput<'_>,
        current: LinkSet,
        initial_link: usize,
    ) -> Option<Decision> {
        let host = input.host;
        let now = host.now;
        let (volume, proven) = input
            .subflows
            .on_link(initial_link)
            .map_or((0, false), |sub| (sub.volume(), sub.has_carried && !sub.backup));
        if let Some((since, before)) = self.reprobe {
            // A reprobe in progress: measure until enough bytes have arrived or its time is over.
            let new_bytes = volume.saturating_sub(before);
            let path = input.subflows.paths.get_mut(initial_link)?;
            // The first bytes only start the clock, because their transfer time is unknown.
            let measured_for = path.reprobe_data_at.map_or(Duration::ZERO, |from| now.since(from));
            if path.reprobe_data_at.is_none() && proven && new_bytes > 0 {
                path.reprobe_data_at = Some(now);
                self.reprobe = Some((since, volume));
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
            self.reprobe = None;
            self.reprobe_result = Some((initial_link, rate));
            let standby_time = now.since(self.standby_since.unwrap_or(now));
            self.next_reprobe =
                now + (standby_time / REPROBE_DIVISOR).clamp(MIN_REPROBE_INTERVAL, MAX_REPROBE_INTERVAL);
            return None;
        }
        // No reprobe in progress: track the time on standby, and start one when it is due.
        if current.contains(initial_link) {
            (self.standby_since, self.reprobe_result) = (None, None);
        } else {
            self.standby_since.get_or_insert(now);
        }
        let is_standby = input.initial_link == Some(initial_link)
            && !current.contains(initial_link)
            && input.subflows.on_link(initial_link).is_some_and(|sub| sub.backup);
        if !is_standby || now < self.next_reprobe || input.is_quiet(MAX_REPROBE_TIME) {
            return None;
        }
        if let Some(path) = input.subflows.paths.get_mut(initial_link) {
            path.reprobe_data_at = None;
        }
        self.reprobe = Some((now, volume));
        let links = current.with(initial_link);
        Some(Decision::new(links, Reason::Reprobe { links, link: initial_link }))
    }

    /// Starts the time on standby of the initial link, unless it is already on standby.
    fn schedule_reprobe(&mut self, now: Instant) {
        self.standby_since.get_or_insert(now);
        self.next_reprobe = now + MIN_REPROBE_INTERVAL;
    }
}

/// Limit below which a slow link holds up a fast one, if it did so with these rates: a fifth above the observed
/// share, between [`DEFAULT_LIMIT`] and [`MAX_LIMIT`].
fn hold_up_limit(slow: Bitrate, fast: Bitrate) -> Ratio {
    Ratio::of(slow.bits_per_sec().saturating_mul(6) / 5, fast.bits_per_sec()).min(MAX_LIMIT).max(DEFAULT_LIMIT)
}

/// Limit above which a slow link helps, if it did so with these rates. Our choice: a third of the observed share, at
/// most [`DEFAULT_LIMIT`].
fn help_limit(slow: Bitrate, fast: Bitrate) -> Ratio {
    Ratio::of(slow.bits_per_sec() / 3, fast.bits_per_sec()).min(DEFAULT_LIMIT)
}
