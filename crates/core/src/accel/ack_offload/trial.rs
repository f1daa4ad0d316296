//! A/B trial of ACK offload: is a flow faster with its ACKs on the secondary link?
//!
//! 1. While a queue stands in front of the flow's packets, its rate is the capacity of the path, whatever its window.
//!    So the rates of such times are compared, before the switch and after it; the flow need not be switched back.
//! 2. A longer round-trip time harms a window that does not fill it. So the switch waits for a queue that is about as
//!    long as the path difference: the queued data covers it, and nothing is lost. Where queues are short, the longest
//!    recent one has to do. A queue that grows fast belongs to a sender that has not found its window yet. It is not
//!    tried, because its losses at the end of slow start say nothing about the paths, and increase if the path changes
//!    meanwhile. For the same reason a flow that has lost nothing yet is not tried in its first seconds.
//! 3. A flow without a queue is limited by something else. It is judged by means over longer times, with offload and
//!    then without it again, and it has to gain more, because means vary.
//! 4. A flow that becomes slower by three tenths stops at once, without a queue by less. So does one with frequent
//!    losses ([`super::loss_guard`]).
//! 5. A decision is reviewed later, at growing intervals.

use crate::accel::ack_offload::options::AckOffloadOptions;
use crate::units::{Bitrate, DataSize, Duration, Instant};

/// Observations of a flow at one moment, from which the trial decides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TrialSample {
    pub(crate) now: Instant,
    /// Bytes that the receiver has acknowledged since the flow was first seen.
    pub(crate) received: DataSize,
    /// The queueing delay of its newest packet; none: unknown.
    pub(crate) queue: Option<Duration>,
    /// The longest recent queueing delay.
    pub(crate) max_queue: Duration,
    /// Its round-trip time without queueing, over the primary path.
    pub(crate) rtt: Duration,
    /// How much longer the secondary path is, if known.
    pub(crate) path_difference: Option<Duration>,
    /// It has enough data in flight, and a secondary link can carry its ACKs.
    pub(crate) is_eligible: bool,
    /// It has found its window: something was lost once, or it has been running for long.
    pub(crate) has_started: bool,
    /// Nothing has been missing for so long that offload may begin.
    pub(crate) is_clear: bool,
    /// Nothing has been missing for a moment.
    pub(crate) has_no_holes: bool,
    /// SACK holes are so frequent that offloading ACKs does not pay off.
    pub(crate) has_frequent_loss: bool,
    /// The gateway of the secondary link answers probes.
    pub(crate) is_link_ready: bool,
}

/// The trial of one flow.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OffloadTrial {
    options: &'static AckOffloadOptions,
    phase: Phase,
    /// Number of decided trials. Each one doubles the time until the next review, up to five times.
    trials: u32,
}

#[derive(Clone, Copy, Debug, Default)]
enum Phase {
    #[default]
    New,
    /// Off; the rate is measured.
    Before { queue_sample: StandingQueueSample, from: Totals },
    /// On; `from` is set when means can show the effect.
    With {
        since: Instant,
        before: Baseline,
        queue_sample: StandingQueueSample,
        check: Option<Totals>,
        from: Option<Totals>,
    },
    /// Off once more; `with` is the rate with offload.
    Without { since: Instant, from: Option<Totals>, with: Bitrate },
    /// The result, and until when it holds.
    Decided { on: bool, until: Instant },
}

/// The rate without offload, and whether it was measured behind a standing queue.
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
    /// The queueing delay at the beginning.
    began: Option<Duration>,
    time: Duration,
    bytes: DataSize,
}

impl OffloadTrial {
    /// With these options, and nothing observed yet.
    pub(crate) fn new(options: &'static AckOffloadOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// Whether offload is on now. To be called with each ACK.
    pub(crate) fn is_on(&mut self, sample: &TrialSample) -> bool {
        let now = sample.now;
        let mark = Totals { at: now, received: sample.received };
        self.phase = match self.phase {
            Phase::Decided { on: true, .. } | Phase::With { .. } if sample.has_frequent_loss => Phase::New,
            Phase::Decided { on, until } if now < until => Phase::Decided { on, until },
            Phase::Before { .. } if sample.has_frequent_loss => Phase::New,
            _ if !sample.is_eligible => Phase::New,
            Phase::New | Phase::Decided { .. } if sample.is_clear && sample.has_started => {
                Phase::Before { queue_sample: StandingQueueSample::default(), from: mark }
            }
            Phase::New | Phase::Decided { .. } => Phase::New,
            Phase::Before { queue_sample, from } => self.on_baseline(sample, mark, queue_sample, from),
            Phase::With { since, before, queue_sample, check, from } => {
                self.on_enabled(sample, mark, since, before, (queue_sample, check, from))
            }
            Phase::Without { since, from: None, with } => {
                let from = (now.since(since) >= self.options.settle_time).then_some(mark);
                Phase::Without { since, from, with }
            }
            Phase::Without { since, from: Some(from), with } => {
                match from.rate_until(mark, self.options.mean_time_again) {
                    Some(without) => self.decide(now, exceeds(with, without, self.options.min_gain_mean)),
                    None => Phase::Without { since, from: Some(from), with },
                }
            }
        };
        matches!(self.phase, Phase::With { .. } | Phase::Decided { on: true, .. })
    }

    /// Off, until the rate is known and the moment is good for the switch.
    fn on_baseline(
        &self,
        sample: &TrialSample,
        mark: Totals,
        standing: StandingQueueSample,
        from: Totals,
    ) -> Phase {
        let standing = standing.update(self.options, sample, mark);
        let from = if sample.has_no_holes { from } else { mark };
        let (standing, from) = if standing.grows_fast(self.options, sample) {
            (StandingQueueSample::default(), mark)
        } else {
            (standing, from)
        };
        let before = if standing.time >= self.options.queue_time_without {
            let long_enough = sample.queue.is_some_and(|queue| queue >= sample.required_queue(self.options));
            long_enough.then(|| Baseline { rate: standing.rate(), has_standing_queue: true })
        } else {
            // A standing queue is measured first.
            let from = Some(from).filter(|_| !sample.has_standing_queue(self.options));
            from.and_then(|from| from.rate_until(mark, self.options.mean_time_without))
                .map(|rate| Baseline { rate, has_standing_queue: false })
        };
        match before.filter(|_| sample.is_link_ready && sample.has_no_holes) {
            Some(before) => Phase::With {
                since: sample.now,
                before,
                queue_sample: StandingQueueSample::default(),
                check: None,
                from: None,
            },
            None => Phase::Before { queue_sample: standing, from },
        }
    }

    fn on_enabled(
        &mut self,
        sample: &TrialSample,
        mark: Totals,
        since: Instant,
        before: Baseline,
        (queue_sample, check, from): (StandingQueueSample, Option<Totals>, Option<Totals>),
    ) -> Phase {
        let now = sample.now;
        // Bytes behind a hole are acknowledged when it closes, so a measurement lies between two holes.
        let check = check.filter(|_| sample.has_no_holes);
        let checked = check.and_then(|check| check.rate_until(mark, self.options.check_time));
        let least = before.rate.share(if before.has_standing_queue {
            self.options.min_rate_queue
        } else {
            self.options.min_rate_mean
        });
        if checked.is_some_and(|rate| rate < least) {
            return self.decide(now, false);
        }
        let has_begun = now.since(since) >= self.options.switch_time;
        let check =
            if checked.is_some() { None } else { check }.or((sample.has_no_holes && has_begun).then_some(mark));
        let queue_sample = queue_sample.update(self.options, sample, mark);
        if before.has_standing_queue && queue_sample.time >= self.options.queue_time_with {
            return self.decide(now, exceeds(queue_sample.rate(), before.rate, self.options.min_gain_queue));
        }
        let from = from.or((now.since(since) >= self.options.growth_time).then_some(mark));
        let mean = from.and_then(|from| from.rate_until(mark, self.options.mean_time_with));
        match mean.filter(|_| !before.has_standing_queue || now.since(since) >= self.options.max_trial_wait) {
            Some(with) => Phase::Without { since: now, from: None, with },
            None => Phase::With { since, before, queue_sample, check, from },
        }
    }

    fn decide(&mut self, now: Instant, on: bool) -> Phase {
        self.trials += 1;
        Phase::Decided { on, until: now + self.options.first_review * (1 << self.trials.min(5)) }
    }

    /// Offloaded ACKs do not arrive.
    pub(crate) fn on_delivery_failure(&mut self, now: Instant) {
        self.phase = self.decide(now, false);
    }

    /// Whether the secondary link is to be ready soon.
    pub(crate) const fn needs_link(&self) -> bool {
        matches!(self.phase, Phase::Before { .. })
    }

    /// Whether a trial is running.
    pub(crate) const fn is_running(&self) -> bool {
        matches!(self.phase, Phase::Before { .. } | Phase::With { .. })
    }

    /// Whether offload was found to bring nothing.
    pub(crate) const fn has_no_benefit(&self) -> bool {
        matches!(self.phase, Phase::Decided { on: false, .. })
    }
}

/// Whether `higher` is above the other by this percentage.
fn exceeds(higher: Bitrate, lower: Bitrate, percent: u64) -> bool {
    higher.bits_per_sec() / (100 + percent) >= lower.bits_per_sec() / 100
}

impl TrialSample {
    /// A sample of which nothing is known.
    pub(crate) const fn new(now: Instant) -> Self {
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

    /// Whether its packets are queued.
    fn has_standing_queue(&self, options: &AckOffloadOptions) -> bool {
        self.queue.is_some_and(|queue| queue >= options.standing_queue)
    }

    /// How long the queue must be for the switch.
    fn required_queue(&self, options: &AckOffloadOptions) -> Duration {
        let long_rtt = self.rtt + self.path_difference.unwrap_or(options.default_difference);
        let full = (long_rtt * 17 / 20).saturating_sub(self.rtt);
        full.min(self.max_queue * 3 / 4).max(options.standing_queue)
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
    fn update(self, options: &AckOffloadOptions, sample: &TrialSample, mark: Totals) -> Self {
        let Some(queue) = sample.queue.filter(|queue| sample.has_no_holes && *queue >= options.standing_queue)
        else {
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

    /// Whether the queue grows like that of a sender that has not found its window yet.
    fn grows_fast(&self, options: &AckOffloadOptions, sample: &TrialSample) -> bool {
        let higher = sample.queue.zip(self.began).map_or(Duration::ZERO, |(now, began)| now.saturating_sub(began));
        self.time >= options.queue_time_without && higher >= self.time / options.growth_part
    }

    fn rate(&self) -> Bitrate {
        self.bytes / self.time.max(Duration::from_millis(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A flow of so many Mbit/s with and without offload behind a queue of so many ms, called every 10 ms: for how many
    /// of 60 seconds offload was on; whether it is on at the end; whether it was found to bring nothing.
    fn run(with: u64, without: u64, queue: u64, holes: bool) -> (u64, bool, bool) {
        let (mut trial, mut total, mut on, mut is_on) = (OffloadTrial::default(), 0, 0, false);
        for step in 0..6000 {
            let queue = Duration::from_millis(queue);
            let is_quiet = !holes || step % 300 > 50;
            is_on = trial.is_on(&TrialSample {
                now: Instant::from_millis(step * 10),
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
            total += if holes && step % 300 == 50 { 50 * without * 1250 } else { 0 };
            on += u64::from(is_on);
        }
        (on / 100, is_on, trial.has_no_benefit())
    }

    #[test]
    fn behind_a_queue_a_flow_is_judged_within_two_seconds() {
        assert_eq!(run(20, 17, 60, false), (59, true, false));
        assert_eq!(run(20, 17, 60, true), (59, true, false), "holes between");
        assert_eq!(run(20, 20, 60, false), (1, false, true));
        assert_eq!(run(15, 20, 60, false), (1, false, true));
        assert_eq!(run(10, 20, 60, false), (0, false, true), "ends at once");
    }

    #[test]
    fn a_fast_growing_queue_postpones_the_trial() {
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
        // 100 ms in 400 ms, up to a second; then the switch waits for 400 ms of a standing queue.
        let begins = first(|ms| 60 + ms.min(1000) / 4, &mut trial).unwrap();
        assert!((1400..1900).contains(&begins), "{begins}");
        // A queue that begins late must not lead to a mean of before.
        let delay_at = |ms: u64| if ms < 2700 { 0 } else { 60 + (ms - 2700) / 4 };
        assert_eq!(first(delay_at, &mut OffloadTrial::default()), None);
        let begins = first(|ms| 60 + ms / 20, &mut OffloadTrial::default()).unwrap();
        assert!((400..450).contains(&begins), "{begins}");
    }

    #[test]
    fn a_flow_in_slow_start_postpones_the_trial() {
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
    fn without_a_queue_a_flow_is_judged_by_means() {
        let (on, is_on, failed) = run(20, 17, 0, false);
        assert!(on > 40 && is_on && !failed, "{on}");
        assert_eq!(run(20, 20, 0, false), (8, false, true));
        assert_eq!(run(10, 20, 0, false), (0, false, true), "ends at once");
    }

    #[test]
    fn the_switch_waits_for_a_long_queue_or_the_longest_recent_one() {
        let sample = |longest, extra| TrialSample {
            max_queue: Duration::from_millis(longest),
            rtt: Duration::from_millis(50),
            path_difference: Some(Duration::from_millis(extra)),
            ..TrialSample::new(Instant::ZERO)
        };
        let need = |longest, extra| sample(longest, extra).required_queue(&AckOffloadOptions::DEFAULT).as_millis();
        assert_eq!((need(100, 50), need(100, 75), need(40, 75), need(4, 75)), (35, 56, 30, 10));
    }
}
