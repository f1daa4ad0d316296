//! Policies for throughput and latency.
//!
//! Throughput: every link joins at once. Trials show whether several links together beat the best one (see
//! [`super::hol_guard`]):
//!
//! 1. A path that is so slow that it would hold up a fast one is left out early, once its congestion window is open,
//!    in terms of its own RTTs ([`is_window_open`]). The fast path's window need not be open, and its highest rate
//!    counts, because its pauses are caused by the slow one. The slow subflow is destroyed and not suspended: data
//!    that the server has queued on it (measured: up to 6.5 MB on the initial subflow) would arrive over it late,
//!    and hold up everything behind. Data of a destroyed subflow is sent again over the others.
//! 2. When the others have shown their rate without it, the slow path is tried together with them, and stays if the
//!    total grows. Its earlier rate shows its capacity only if its queue was seen to fill: in the first half second
//!    of a connection, a pause of all paths may leave it with a tenth of its capacity. A path that has recovered
//!    from an outage is not judged before it has carried data for two seconds (see [`super::super::outage`]).
//! 3. It is used again without a trial when the others have become so slow that it would be missed.
//!
//! Latency: the path with the shortest RTT (the shortest ever seen on it, without queueing) carries alone, and every
//! other link is joined as a backup, which can take over at once. Real redundancy would need a scheduler that sends
//! each segment twice; the scheduler belongs to the sender and cannot be requested.

use super::hol_guard::TrialState;
use super::input::{Decision, PolicyInput};
use crate::paths::links::LinkSet;
use crate::paths::reason::Reason;
use crate::paths::subflow::Subflow;
use crate::paths::trial_cache::{DEFAULT_LIMIT, SHORT_QUEUE_LIMIT};
use crate::units::{Bitrate, Duration};

/// How long a path has carried data before it is judged, as a time and in its own RTTs. Our choice: a window of 10
/// packets grows to 640 in six RTTs, and two more show its rate.
const MIN_JUDGE_TIME: Duration = Duration::from_millis(500);
const MIN_JUDGE_RTTS: u32 = 8;
/// Duration of samples required by then, of this path and of the fast one.
const MIN_COVERED_TIME: Duration = Duration::from_millis(200);
/// A path that was left out is used again when it is this many times as fast as the limit below which it would hold
/// the others up. Our choice: more than the variation of a fast path's rate from one second to the next.
const REJOIN_FACTOR: u64 = 2;
/// Shortest time between changes of the path with the shortest RTT.
const MIN_STAY: Duration = Duration::from_secs(2);
/// The RTT of another path must be below this percentage of the present one before it is used.
const SHORTER_PERCENT: u64 = 70;

pub(super) fn decide_speed(input: &mut PolicyInput<'_>, trials: &mut TrialState, usable: LinkSet) -> Decision {
    trials.concurrent = trials.concurrent.filter(|trial| usable.contains(trial.slow_link));
    let trial_link = trials.concurrent.map_or(LinkSet::EMPTY, |trial| LinkSet::single(trial.slow_link));
    let is_seen = |at: &usize| {
        input.subflows.paths.get(*at).is_some_and(|path| path.throughput.covered_time() >= MIN_COVERED_TIME)
    };
    // The reference is the fastest path, apart from one on trial.
    let fast = input
        .subflows
        .carrying_links()
        .intersection(usable)
        .without(trial_link)
        .iter()
        .filter(is_seen)
        .max_by_key(|index| input.peak_rate(*index));
    let Some(fast) = fast else {
        return Decision::new(usable, Reason::Fastest { links: usable, rate: Bitrate::ZERO });
    };
    let (mut links, mut fastest_left_out) = (usable.without(trial_link), None);
    for index in links.iter() {
        let slow_rate = hold_up_rate(input, index, fast).filter(|_| index != fast);
        if slow_rate.is_some() {
            links = links.without(LinkSet::single(index));
            fastest_left_out = fastest_left_out.max(slow_rate.map(|rate| (rate, index)));
        }
        let is_queueing = input.subflows.on_link(index).is_some_and(Subflow::is_queueing);
        if let Some(path) = input.subflows.paths.get_mut(index) {
            path.is_left_out = slow_rate.is_some();
            path.has_queued |= is_queueing;
        }
    }
    if let Some(decision) = trials.run_concurrent(input, links, fastest_left_out, fast) {
        return Decision { destroy: usable.without(decision.active), ..decision };
    }
    // In a solo trial, the other links of `links` are only suspended, unlike those in a trial for the goal of energy: if
    // all together carry more, they are used again at once, without a new handshake. What their queues still hold may
    // arrive during the trial and lower its result. Only the last third of the trial counts, which leaves time for that.
    let destroy = usable.without(links);
    if let Some(decision) = trials.run_solo(input, usable, links, false) {
        return Decision { destroy, ..decision };
    }
    let rate = links.iter().map(|index| input.recent_rate(index)).sum();
    let reason = match fastest_left_out {
        Some((slow_rate, slow)) => Reason::LeftOut { links, slow, slow_rate, rate },
        None => Reason::Fastest { links, rate },
    };
    Decision { destroy, ..Decision::new(links, reason) }
}

/// Rate of a link, if it is so slow that it would hold the fast one up; `None`: it would not.
fn hold_up_rate(input: &PolicyInput<'_>, index: usize, fast: usize) -> Option<Bitrate> {
    let host = input.host;
    let path = input.subflows.paths.get(index).filter(|path| !path.is_recovering())?;
    let default_limit = if input.sends_with_short_queues() { SHORT_QUEUE_LIMIT } else { DEFAULT_LIMIT };
    let limit = host.trial_cache.limit(host.now, index, fast).unwrap_or(default_limit);
    let (carries, is_seen) = (
        input.subflows.carrying_links().contains(index) && !path.is_left_out,
        !path.throughput.covered_time().is_zero(),
    );
    let (slow_rate, min_rate) = match (carries, is_seen) {
        (true, _) => {
            // What a relay sends may pause on one path because of another one. Data of this host does not, and
            // an unresponsive path must be left soon.
            let rate = match host.config.short_queues && !input.sends_with_short_queues() {
                true => path.throughput.active_mean(Duration::from_secs(1)),
                false => Some(input.recent_rate(index)),
            };
            (rate.filter(|_| is_window_open(input, index)), input.peak_rate(fast).share(limit))
        }
        // Not in use, but known: its window may have opened in its last second, so the peak counts.
        (false, true) => (
            Some(input.peak_rate(index)),
            input.peak_rate(fast).share(limit) * if path.is_left_out { REJOIN_FACTOR } else { 1 },
        ),
        // Nothing is known from this connection: the measurements of other connections count.
        (false, false) => {
            let fast_rate = host.link(fast).map(|link| link.rate(&host.config, host.now)).unwrap_or_default();
            (host.link(index)?.rate_since_recovery(), input.peak_rate(fast).max(fast_rate).share(limit))
        }
    };
    slow_rate.filter(|slow| *slow < min_rate)
}

/// Whether a path's window is open, in terms of its own RTTs, and its rate is known.
fn is_window_open(input: &PolicyInput<'_>, index: usize) -> bool {
    let host = input.host;
    let is_open = |sub: &Subflow| {
        sub.has_carried
            && host.now.since(sub.active_since) >= MIN_JUDGE_TIME.max(sub.handshake_rtt() * MIN_JUDGE_RTTS)
    };
    input.subflows.on_link(index).is_some_and(is_open)
        && input.subflows.paths.get(index).is_some_and(|path| path.throughput.covered_time() >= MIN_COVERED_TIME)
}

pub(super) fn decide_latency(input: &PolicyInput<'_>, usable: LinkSet, initial_link: usize) -> Decision {
    let host = input.host;
    // Stay on the present path unless another one is clearly shorter, and change at most every `MIN_STAY`.
    let rtt = |index: usize| input.subflows.on_link(index).map(|sub| sub.handshake_rtt());
    let current_link = input.active_links.intersection(usable).first().unwrap_or(initial_link);
    let current = rtt(current_link).unwrap_or(Duration::MAX);
    let can_change = host.now.since(input.active_since) >= MIN_STAY
        || input.subflows.joined_links().intersection(input.active_links).is_empty();
    let best = usable.iter().filter(|_| can_change).filter_map(|index| Some((rtt(index)?, index))).min();
    let is_shorter = |(other, _): &(Duration, usize)| {
        other.as_nanos().saturating_mul(100) < current.as_nanos().saturating_mul(SHORTER_PERCENT.into())
    };
    let (rtt, link) = best.filter(is_shorter).unwrap_or((current, current_link));
    let millis = if rtt == Duration::MAX { 0 } else { rtt.as_millis() as u64 };
    Decision { standby: usable, ..Decision::new(LinkSet::single(link), Reason::ShortestRtt { link, millis }) }
}
