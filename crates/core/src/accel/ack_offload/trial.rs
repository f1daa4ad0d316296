//! A trial: does a flow run better with its ACKs elsewhere?
//!
//! In: what the flow has brought, how long its packets wait, whether something is missing. Out: whether offload is on.
//!
//! 1. While a queue stands in front of the flow's packets its rate is what the way bears, whatever its window is. So rates
//!    of such times are compared, before the switch and behind it; the flow need not go back to be judged.
//! 2. A longer round trip costs a window that does not fill it. So the switch waits for a queue that is about as long as the
//!    difference of the ways: what stands there is on its way then, and nothing is lost. Where queues are short, the
//!    longest of late has to do. One that grows fast is that of a sender which has not found its window yet: it is not
//!    tried, for what it loses at the end of its start says nothing of ways, and is more if the way changes meanwhile. So
//!    a flow that has lost nothing yet is not tried before some seconds either.
//! 3. A flow without a queue is limited by something else. It is judged by means over longer times, with, and then without
//!    once more; and what it gains is to be more, for means waver.
//! 4. Who is slower by three tenths stops at once, without a queue by less. So does one whose losses become many ([`super::loss_guard`]).
//! 5. A judgement is tried again later, and less and less often.

use crate::units::{Bitrate, DataSize, Duration, Instant, Ratio};

/// A flow, now.
#[derive(Clone, Copy, Debug)]
pub(in crate::accel) struct TrialSample {
    pub(in crate::accel) now: Instant,
    /// All that it has brought.
    pub(in crate::accel) received: DataSize,
    /// How long its newest packet has waited; none: that is not known.
    pub(in crate::accel) queue: Option<Duration>,
    /// The longest wait of late.
    pub(in crate::accel) max_queue: Duration,
    /// Its round trip without waiting, by the first way.
    pub(in crate::accel) rtt: Duration,
    /// How much longer the other way is, if that is known.
    pub(in crate::accel) path_difference: Option<Duration>,
    /// It has enough on its way.
    pub(in crate::accel) is_eligible: bool,
    /// It has found its window: something was missing once, or it has been going for long.
    pub(in crate::accel) has_started: bool,
    /// Nothing has been missing for so long that offload may begin.
    pub(in crate::accel) is_clear: bool,
    /// Nothing has been missing for a moment.
    pub(in crate::accel) has_no_holes: bool,
    /// Holes are too many.
    pub(in crate::accel) has_frequent_loss: bool,
    /// The second link answers.
    pub(in crate::accel) is_link_ready: bool,
}

/// Whether one flow has help by trial.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::accel) struct OffloadTrial {
    phase: Phase,
    /// Trials so far.
    trials: u32,
}

#[derive(Clone, Copy, Debug, Default)]
enum Phase {
    #[default]
    New,
    /// Off; what it brings is measured.
    Before { since: Instant, standing: StandingQueueSample, from: Totals },
    /// On; `from` is set when it has had time to show in means.
    With {
        since: Instant,
        before: Baseline,
        standing: StandingQueueSample,
        check: Option<Totals>,
        from: Option<Totals>,
    },
    /// Off once more; `with` is what it brought before.
    Without { since: Instant, from: Option<Totals>, with: Bitrate },
    /// Decided.
    Decided { on: bool, until: Instant },
    /// The second link was not there.
    LinkUnavailable { until: Instant },
}

/// What it brought without help, and whether that is a rate behind a queue.
#[derive(Clone, Copy, Debug)]
struct Baseline {
    rate: Bitrate,
    has_standing_queue: bool,
}

/// So many bytes at this time.
#[derive(Clone, Copy, Debug)]
struct Totals {
    at: Instant,
    received: DataSize,
}

/// What came while a queue stood, and for how long it did.
#[derive(Clone, Copy, Debug, Default)]
struct StandingQueueSample {
    last: Option<Totals>,
    /// The queue at the beginning.
    began: Option<Duration>,
    time: Duration,
    bytes: DataSize,
}

impl OffloadTrial {
    /// Whether help is on now. To be asked with each ACK.
    pub(in crate::accel) fn is_on(&mut self, sample: &TrialSample) -> bool {
        let now = sample.now;
        let mark = Totals { at: now, received: sample.received };
        self.phase = match self.phase {
            Phase::Decided { on: true, .. } | Phase::With { .. } if sample.has_frequent_loss => Phase::New,
            Phase::Decided { on, until } if now < until => Phase::Decided { on, until },
            Phase::LinkUnavailable { until } if now < until => Phase::LinkUnavailable { until },
            Phase::Before { .. } if sample.has_frequent_loss => Phase::New,
            _ if !sample.is_eligible => Phase::New,
            Phase::New | Phase::Decided { .. } | Phase::LinkUnavailable { .. }
                if sample.is_clear && sample.has_started =>
            {
                Phase::Before { since: now, standing: StandingQueueSample::default(), from: mark }
            }
            Phase::New | Phase::Decided { .. } | Phase::LinkUnavailable { .. } => Phase::New,
            Phase::Before { since, standing, from } => on_baseline(sample, mark, since, standing, from),
            Phase::With { since, before, standing, check, from } => {
                self.on_enabled(sample, mark, since, before, (standing, check, from))
            }
            Phase::Without { since, from: None, with } => {
                let from = (now.since(since) >= SETTLE_TIME).then_some(mark);
                Phase::Without { since, from, with }
            }
            Phase::Without { since, from: Some(from), with } => match from.rate_until(mark, AFTER_TIME) {
                Some(without) => self.decide(now, exceeds(with, without, MIN_GAIN_MEAN)),
                None => Phase::Without { since, from: Some(from), with },
            },
        };
        matches!(self.phase, Phase::With { .. } | Phase::Decided { on: true, .. })
    }

    fn on_enabled(
        &mut self,
        sample: &TrialSample,
        mark: Totals,
        since: Instant,
        before: Baseline,
        (standing, check, from): (StandingQueueSample, Option<Totals>, Option<Totals>),
    ) -> Phase {
        let now = sample.now;
        // Bytes behind a hole count when it closes: what is measured lies between two.
        let check = check.filter(|_| sample.has_no_holes);
        let checked = check.and_then(|check| check.rate_until(mark, CHECK_TIME));
        let least = before.rate.share(if before.has_standing_queue { MIN_RATE_QUEUE } else { MIN_RATE_MEAN });
        if checked.is_some_and(|rate| rate < least) {
            return self.decide(now, false);
        }
        let has_begun = now.since(since) >= SWITCH_TIME;
        let check =
            if checked.is_some() { None } else { check }.or((sample.has_no_holes && has_begun).then_some(mark));
        let standing = standing.update(sample, mark);
        if before.has_standing_queue && standing.time >= OFFLOAD_QUEUE_TIME {
            return self.decide(now, exceeds(standing.rate(), before.rate, MIN_GAIN_QUEUE));
        }
        let from = from.or((now.since(since) >= GROWTH_TIME).then_some(mark));
        let mean = from.and_then(|from| from.rate_until(mark, OFFLOAD_TIME));
        match mean.filter(|_| !before.has_standing_queue || now.since(since) >= MAX_WAIT) {
            Some(with) => Phase::Without { since: now, from: None, with },
            None => Phase::With { since, before, standing, check, from },
        }
    }

    fn decide(&mut self, now: Instant, on: bool) -> Phase {
        self.trials += 1;
        Phase::Decided { on, until: now + FIRST_RETRY * (1 << self.trials.min(5)) }
    }

    /// What went elsewhere does not arrive.
    pub(in crate::accel) fn on_delivery_failure(&mut self, now: Instant) {
        self.phase = self.decide(now, false);
    }

    /// Whether the second link is to be ready soon.
    pub(in crate::accel) const fn needs_link(&self) -> bool {
        matches!(self.phase, Phase::Before { .. })
    }

    /// Whether it is being found out.
    pub(in crate::accel) const fn is_running(&self) -> bool {
        matches!(self.phase, Phase::Before { .. } | Phase::With { .. })
    }

    /// Whether the second link was not there when it was wanted.
    pub(in crate::accel) const fn is_link_unavailable(&self) -> bool {
        matches!(self.phase, Phase::LinkUnavailable { .. })
    }

    /// Whether it was found that help brings nothing.
    pub(in crate::accel) const fn has_no_benefit(&self) -> bool {
        matches!(self.phase, Phase::Decided { on: false, .. })
    }
}

/// Off, until it is known what that brings and a good moment comes.
fn on_baseline(
    sample: &TrialSample,
    mark: Totals,
    since: Instant,
    standing: StandingQueueSample,
    from: Totals,
) -> Phase {
    let now = sample.now;
    let standing = standing.update(sample, mark);
    if now.since(since) >= MAX_WAIT && !sample.is_link_ready {
        return Phase::LinkUnavailable { until: now + FIRST_RETRY };
    }
    let from = if sample.has_no_holes { from } else { mark };
    let (standing, from) =
        if standing.grows_fast(sample) { (StandingQueueSample::default(), mark) } else { (standing, from) };
    let before = if standing.time >= BASELINE_QUEUE_TIME {
        let long_enough = sample.queue.is_some_and(|queue| queue >= sample.required_queue());
        long_enough.then(|| Baseline { rate: standing.rate(), has_standing_queue: true })
    } else {
        // What stands now is looked at first.
        let from = Some(from).filter(|_| !sample.has_standing_queue());
        from.and_then(|from| from.rate_until(mark, BASELINE_TIME))
            .map(|rate| Baseline { rate, has_standing_queue: false })
    };
    match before.filter(|_| sample.is_link_ready && sample.has_no_holes) {
        Some(before) => {
            Phase::With { since: now, before, standing: StandingQueueSample::default(), check: None, from: None }
        }
        None => Phase::Before { since, standing, from },
    }
}

/// Whether `more` is above the other by so many percent.
fn exceeds(higher: Bitrate, lower: Bitrate, percent: u64) -> bool {
    higher.bits_per_sec() / (100 + percent) >= lower.bits_per_sec() / 100
}

impl TrialSample {
    /// One of which nothing is known.
    pub(in crate::accel) const fn new(now: Instant) -> Self {
        Self {
            now,
            received: DataSize::ZERO,
            queue: None,
            max_queue: Duration::ZERO,
            rtt: Duration::ZERO,
            path_difference: None,
            is_eligible: false,
            has_started: false,
            is_clear: false,
            has_no_holes: false,
            has_frequent_loss: false,
            is_link_ready: false,
        }
    }

    /// Whether its packets wait.
    fn has_standing_queue(&self) -> bool {
        self.queue.is_some_and(|queue| queue >= STANDING_QUEUE)
    }

    /// How long the queue is to be for the switch.
    fn required_queue(&self) -> Duration {
        let long_rtt = self.rtt + self.path_difference.unwrap_or(DEFAULT_DIFFERENCE);
        let full = (long_rtt * 17 / 20).saturating_sub(self.rtt);
        full.min(self.max_queue * 3 / 4).max(STANDING_QUEUE)
    }
}

impl Totals {
    /// The rate up to `now`, if that is long enough.
    fn rate_until(self, now: Self, long: Duration) -> Option<Bitrate> {
        let time = now.at.since(self.at);
        (time >= long).then(|| self.bytes_until(now) / time)
    }

    fn bytes_until(self, now: Self) -> DataSize {
        DataSize::from_bytes(now.received.bytes().saturating_sub(self.received.bytes()))
    }
}

impl StandingQueueSample {
    fn update(self, sample: &TrialSample, mark: Totals) -> Self {
        let Some(queue) = sample.queue.filter(|queue| sample.has_no_holes && *queue >= STANDING_QUEUE) else {
            return Self { last: None, ..self };
        };
        let last = self.last.unwrap_or(mark);
        Self {
            last: Some(mark),
            began: self.began.or(Some(queue)),
            time: self.time + mark.at.since(last.at),
            bytes: self.bytes + last.bytes_until(mark),
        }
    }

    /// Whether the queue grows as that of a sender which has not found its window yet.
    fn grows_fast(&self, sample: &TrialSample) -> bool {
        let higher = sample.queue.zip(self.began).map_or(Duration::ZERO, |(now, began)| now.saturating_sub(began));
        self.time >= BASELINE_QUEUE_TIME && higher >= self.time / GROWTH_PART
    }

    fn rate(&self) -> Bitrate {
        self.bytes / self.time.max(Duration::from_millis(1))
    }
}

/// chosen: more than the unevenness of a wireless link, and of ACKs for a dozen segments at 20 Mbit/s.
const STANDING_QUEUE: Duration = Duration::from_millis(10);
/// chosen: some hundred packets.
const BASELINE_QUEUE_TIME: Duration = Duration::from_millis(400);
/// The queue's time in which it has grown by one part. chosen: a window that doubles each round trip fills a queue in half of
/// the time or less; one of 20 segments that grows by one, in twenty round trips by one.
const GROWTH_PART: u32 = 10;
const OFFLOAD_QUEUE_TIME: Duration = Duration::from_millis(1000);
/// Percent that it is to gain. chosen: what a queue lets through wavers by one.
const MIN_GAIN_QUEUE: u64 = 2;
/// chosen: means of seconds waver by some.
const MIN_GAIN_MEAN: u64 = 5;
/// Between an access point and a mobile link.
const DEFAULT_DIFFERENCE: Duration = Duration::from_millis(50);
/// chosen: longer than a window takes to fill a queue at most, where it fills one.
const BASELINE_TIME: Duration = Duration::from_secs(3);
/// chosen: the time between two losses of CUBIC at 20 Mbit/s and 100 ms, and some more.
const MAX_WAIT: Duration = Duration::from_secs(12);
/// chosen: ACKs of the longer way are all there then.
const SWITCH_TIME: Duration = Duration::from_millis(300);
/// chosen: a longer way shows within two of its round trips.
const CHECK_TIME: Duration = Duration::from_millis(500);
/// chosen: more than a loss takes from CUBIC.
const MIN_RATE_QUEUE: Ratio = Ratio::from_percent(70);
/// chosen: more than means of half a second waver; a flow without a queue is slower by the longer way, if at all, and
/// stays so.
const MIN_RATE_MEAN: Ratio = Ratio::from_percent(85);
/// chosen: the window has grown into the longer way by then.
const GROWTH_TIME: Duration = Duration::from_secs(4);
const OFFLOAD_TIME: Duration = Duration::from_secs(4);
/// chosen: longer than a line takes to fade ([`super::ack_path`]), and a round trip.
const SETTLE_TIME: Duration = Duration::from_millis(4500);
const AFTER_TIME: Duration = Duration::from_secs(2);
/// chosen: doubled with each trial, from a minute to half an hour.
const FIRST_RETRY: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    /// A flow of so many Mbit/s with and without help behind a queue of so many ms, asked every 10 ms: for how many of 60
    /// seconds help was on; at the end, and whether it is called vain.
    fn run(with: u64, without: u64, queue: u64, holes: bool) -> (u64, bool, bool) {
        let (mut trial, mut total, mut on, mut is_on) = (OffloadTrial::default(), 0, 0, false);
        for n in 0..6000 {
            let queue = Duration::from_millis(queue);
            let is_quiet = !holes || n % 300 > 50;
            is_on = trial.is_on(&TrialSample {
                now: Instant::from_millis(n * 10),
                received: DataSize::from_bytes(total),
                queue: Some(queue),
                max_queue: queue,
                rtt: Duration::from_millis(50),
                path_difference: None,
                is_eligible: true,
                has_started: true,
                is_clear: is_quiet,
                has_no_holes: is_quiet,
                has_frequent_loss: false,
                is_link_ready: true,
            });
            // Bytes behind a hole come at once when it closes.
            total += if is_on { with } else { without } * if is_quiet { 1250 } else { 0 };
            total += if holes && n % 300 == 50 { 50 * without * 1250 } else { 0 };
            on += u64::from(is_on);
        }
        (on / 100, is_on, trial.has_no_benefit())
    }

    #[test]
    fn behind_a_queue_it_is_judged_within_two_seconds_and_stays() {
        assert_eq!(run(20, 17, 60, false), (59, true, false));
        assert_eq!(run(20, 17, 60, true), (59, true, false), "holes between");
        assert_eq!(run(20, 20, 60, false), (1, false, true));
        assert_eq!(run(15, 20, 60, false), (1, false, true));
        assert_eq!(run(10, 20, 60, false), (0, false, true), "ended at once");
    }

    #[test]
    fn a_queue_that_fills_fast_is_waited_for() {
        let mut trial = OffloadTrial::default();
        let first = |queue: fn(u64) -> u64, trial: &mut OffloadTrial| {
            let is_on_at = |ms: &u64| {
                trial.is_on(&TrialSample {
                    received: DataSize::from_bytes(ms * 2500),
                    queue: Some(Duration::from_millis(queue(*ms))),
                    max_queue: Duration::from_millis(400),
                    rtt: Duration::from_millis(50),
                    is_eligible: true,
                    has_started: true,
                    is_clear: true,
                    has_no_holes: true,
                    is_link_ready: true,
                    ..TrialSample::new(Instant::from_millis(*ms))
                })
            };
            (0..3300).find(is_on_at)
        };
        // 100 ms in 400, up to a second; the switch then waits for 400 ms in which it stands.
        let begins = first(|ms| 60 + ms.min(1000) / 4, &mut trial).unwrap();
        assert!((1400..1900).contains(&begins), "{begins}");
        // One that begins late is no reason to go by a mean of before.
        let late = |ms: u64| if ms < 2700 { 0 } else { 60 + (ms - 2700) / 4 };
        assert_eq!(first(late, &mut OffloadTrial::default()), None);
        let begins = first(|ms| 60 + ms / 20, &mut OffloadTrial::default()).unwrap();
        assert!((400..450).contains(&begins), "{begins}");
    }

    #[test]
    fn a_flow_that_may_be_in_its_start_is_waited_for() {
        let mut trial = OffloadTrial::default();
        let mut is_on_at = |ms: u64, has_started: bool| {
            trial.is_on(&TrialSample {
                received: DataSize::from_bytes(ms * 2500),
                queue: Some(Duration::from_millis(60)),
                max_queue: Duration::from_millis(60),
                rtt: Duration::from_millis(50),
                is_eligible: true,
                has_started,
                is_clear: true,
                has_no_holes: true,
                is_link_ready: true,
                ..TrialSample::new(Instant::from_millis(ms))
            })
        };
        assert!(!(0..4000).any(|ms| is_on_at(ms, false)));
        assert!((4000..4500).any(|ms| is_on_at(ms, true)));
    }

    #[test]
    fn without_a_queue_it_is_judged_by_means() {
        let (on, is_on, vain) = run(20, 17, 0, false);
        assert!(on > 40 && is_on && !vain, "{on}");
        assert_eq!(run(20, 20, 0, false), (8, false, true));
        assert_eq!(run(10, 20, 0, false), (0, false, true), "ended at once");
    }

    #[test]
    fn the_switch_waits_for_a_long_queue_and_where_there_is_none_for_the_longest() {
        let sample = |longest, extra| TrialSample {
            max_queue: Duration::from_millis(longest),
            rtt: Duration::from_millis(50),
            path_difference: Some(Duration::from_millis(extra)),
            ..TrialSample::new(Instant::ZERO)
        };
        let need = |longest, extra| sample(longest, extra).required_queue().as_millis();
        assert_eq!((need(100, 50), need(100, 75), need(40, 75), need(4, 75)), (35, 56, 30, 10));
    }
}
