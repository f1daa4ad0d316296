//! Tests whether the losses of a path depend on the sending rate. If they do, they are congestion, whatever the
//! queueing delay, and reductions of the congestion window remain.
//!
//! Policers and buffers of a millisecond drop packets without a queueing delay that could be measured. They differ from
//! a lossy radio link in one thing: they drop fewer packets when the sender slows down. So reductions are undone only
//! on a path that has passed this test, and one of them is left in place from time to time to repeat it (an A/B probe).
//! Only bytes and losses count that arrive while the queue is empty
//! ([`super::loss_classifier::LossClassifier::is_queue_empty`]).
//!
//! ```text
//!   Plain ── six losses in ≥ 4 s, and a queue has stood ──▶ Trial ── as rare as before ──▶ Due ── a loss ──▶ Probe
//!     ▲ ▲                                                     │ more frequent                ▲                 │ │
//!     │ └──────────── a minute or more ─────────────────── Refused ◀─────────── rarer ───────┼─────────────────┘ │
//!     │                                                                       now and then   │                   │
//!     └───────────────────────── more frequent ─────────────────────────────────────────── Trusted ◀─ as before ─┘
//! ```
//!
//! 1. **Plain:** every reduction remains. Losses per byte are counted. A burst resets the counts: it is the overshoot
//!    of slow start, and would make every later loss look rare. Losses within four round trips count once
//!    (`baseline_loss_rtts`).
//! 2. **Trial:** reductions are undone, and the sender speeds up. If there are more losses per byte, they are
//!    congestion. The trial ends at the first significant result, so that it costs a policed path a few packets.
//! 3. **Probe:** one reduction is left in place. If there are fewer losses per byte at the lower rate, they are
//!    congestion.
//! 4. Losses of one flow within a round trip count once, since a sender reacts to them once (RFC 6675 section 5).
//! 5. A trial needs a standing queue: for a quarter of a round trip, and for `standing_queue` at least, every packet
//!    waited for `standing_queue` or longer ([`Standing`]). A path without one may have a policer as its bottleneck.
//!    A trial does not detect that if several flows share the policer: it drops packets of each flow whatever the rate
//!    of that flow is, and such a trial undoes several reductions before it ends. A single packet that has waited is no
//!    evidence: a burst that a policer lets through queues at the next link.
//! 6. A CE mark (RFC 3168) is congestion that the network itself reports: no reduction is undone for `refusal_time`
//!    after it.
//!
//! A path is the address of a server. Its flows are counted together, so that two flows through one policer do not
//! mistake each other's losses for random loss, and a later flow begins with the result.

use crate::accel::observation::options::ObservationOptions;
use crate::units::{Duration, Instant};

/// What is known of a path.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PathTest {
    options: &'static ObservationOptions,
    phase: Phase,
    since: Instant,
    /// The counts of an earlier phase, which those of this phase are compared with.
    baseline: LossCounts,
    /// While the queue was empty.
    counts: LossCounts,
    last_loss: Instant,
    last_mark: Option<Instant>,
    standing_queue: StandingQueue,
    /// The duration of the last refusal, and of the last pause between two probes.
    refusal_time: Option<Duration>,
    probe_interval: Option<Duration>,
    /// When the path was used last.
    last_used: Instant,
}

/// What the losses of a path are, as far as is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum PathVerdict {
    /// The test is still running, or has not begun.
    #[default]
    Unknown,
    /// They do not depend on the sending rate.
    Trusted,
    /// They become more frequent with the sending rate.
    Refused,
    /// The path marks packets (ECN CE) instead of dropping them.
    Marked,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Phase {
    #[default]
    Plain,
    Trial,
    /// Waits for the next loss, whose reduction will remain.
    ProbeDue,
    Probe,
    Trusted {
        until: Instant,
    },
    Refused {
        until: Instant,
    },
}

/// Whether a queue has stood on the path, so that its bottleneck has a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum StandingQueue {
    #[default]
    No,
    /// Every packet since then has waited.
    For { since: Instant, newest: Instant },
    /// A standing queue was seen.
    Seen,
}

/// Bytes that have arrived, and losses.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LossCounts {
    pub(super) bytes: u64,
    pub(super) losses: u64,
}

impl PathTest {
    /// With these options, and nothing observed yet.
    pub(crate) fn new(options: &'static ObservationOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// This many bytes were acknowledged while the queue was empty.
    pub(crate) fn on_bytes(&mut self, now: Instant, bytes: u32) {
        self.last_used = now;
        self.counts.bytes += u64::from(bytes);
        let has_enough = self.counts.losses >= self.options.baseline_losses;
        match self.phase {
            Phase::Refused { until } if now >= until => self.begin(now, Phase::Plain),
            Phase::Trial if self.expected() >= f64::from(self.options.min_expected_losses) && has_enough => {
                self.probe()
            }
            Phase::Trusted { until } if now >= until && has_enough => self.probe(),
            Phase::Probe
                if self.expected() >= f64::from(self.options.min_expected_losses)
                    && self.counts.losses < self.options.probe_losses =>
            {
                self.refuse(now)
            }
            Phase::Probe if self.expected() >= f64::from(self.options.min_expected_losses) => self.pass(now),
            _ => {}
        }
    }

    /// A flow with this round-trip time has a loss while the queue is empty, its first in a round trip. Returns true if
    /// the reduction may be undone.
    pub(crate) fn on_loss(&mut self, now: Instant, rtt: Duration) -> bool {
        self.last_used = now;
        // One overshoot of a token bucket causes several losses. The baseline counts overshoots, not those losses.
        if self.phase == Phase::Plain
            && self.counts.losses > 0
            && now.since(self.last_loss) < rtt * self.options.baseline_loss_rtts
        {
            return false;
        }
        self.last_loss = now;
        self.counts.losses += 1;
        match self.phase {
            Phase::Plain
                if self.standing_queue == StandingQueue::Seen
                    && self.counts.losses >= self.options.baseline_losses
                    && now.since(self.since) >= self.options.baseline_time =>
            {
                self.baseline = self.counts;
                self.begin(now, Phase::Trial);
            }
            Phase::Trial if self.is_more_frequent() => self.refuse(now),
            // The path has changed.
            Phase::Trusted { .. } if self.is_more_frequent() => self.begin(now, Phase::Plain),
            Phase::Trusted { .. } if self.expected() >= f64::from(self.options.max_expected_losses) => {
                self.counts = self.counts.half()
            }
            Phase::ProbeDue => {
                self.begin(now, Phase::Probe);
                return false;
            }
            _ => {}
        }
        self.may_undo(now)
    }

    /// The newest packet of a flow with this round-trip time has waited for so long.
    pub(crate) fn on_queueing_delay(&mut self, now: Instant, waited: Duration, rtt: Duration) {
        let required_time = (rtt / self.options.standing_rtt_part).max(self.options.standing_queue);
        self.standing_queue = match self.standing_queue {
            StandingQueue::Seen => StandingQueue::Seen,
            _ if waited < self.options.standing_queue => StandingQueue::No,
            // Between two packets that are far apart the queue may have been empty.
            StandingQueue::For { since, newest } if now.since(newest) < required_time => {
                match now.since(since) >= required_time {
                    true => StandingQueue::Seen,
                    false => StandingQueue::For { since, newest: now },
                }
            }
            StandingQueue::For { .. } | StandingQueue::No => StandingQueue::For { since: now, newest: now },
        };
    }

    /// Many segments were lost together: the burst was larger than a queue or a token bucket.
    pub(crate) fn on_burst(&mut self, now: Instant) {
        match self.phase {
            Phase::Plain => self.begin(now, Phase::Plain),
            Phase::Trial => self.refuse(now),
            _ => {}
        }
    }

    /// A packet with a CE mark came, or an acknowledgement with ECE.
    pub(crate) const fn on_mark(&mut self, now: Instant) {
        self.last_mark = Some(now);
    }

    /// Whether reductions may be undone now.
    pub(crate) fn may_undo(&self, now: Instant) -> bool {
        !self.is_marked(now) && !matches!(self.phase, Phase::Plain | Phase::Refused { .. })
    }

    /// Whether also a loss while the queue is not empty may be undone, if the delay gate calls it random.
    pub(crate) fn is_trusted(&self, now: Instant) -> bool {
        !self.is_marked(now) && matches!(self.phase, Phase::Trusted { .. })
    }

    /// Whether the network has reported congestion recently.
    pub(crate) fn is_marked(&self, now: Instant) -> bool {
        self.last_mark.is_some_and(|at| now.since(at) < self.options.refusal_time)
    }

    /// What the losses of the path are now.
    pub(crate) fn verdict(&self, now: Instant) -> PathVerdict {
        match self.phase {
            _ if self.is_marked(now) => PathVerdict::Marked,
            Phase::Refused { .. } => PathVerdict::Refused,
            Phase::Plain => PathVerdict::Unknown,
            _ => PathVerdict::Trusted,
        }
    }

    /// When it was used last.
    pub(crate) const fn last_used(&self) -> Instant {
        self.last_used
    }

    /// A path that stays trusted, for tests of other parts.
    #[cfg(test)]
    pub(crate) fn trusted() -> Self {
        Self { phase: Phase::Trusted { until: Instant::FAR_FUTURE }, ..Self::default() }
    }

    const fn begin(&mut self, now: Instant, phase: Phase) {
        (self.phase, self.since, self.counts) = (phase, now, LossCounts { bytes: 0, losses: 0 });
    }

    const fn probe(&mut self) {
        (self.phase, self.baseline) = (Phase::ProbeDue, self.counts);
    }

    fn pass(&mut self, now: Instant) {
        let pause = self
            .probe_interval
            .map_or(self.options.first_probe_interval, |pause| (pause * 2).min(self.options.max_probe_interval));
        (self.probe_interval, self.refusal_time) = (Some(pause), None);
        self.begin(now, Phase::Trusted { until: now + pause });
    }

    fn refuse(&mut self, now: Instant) {
        let refusal = self.refusal_time.map_or(self.options.refusal_time, |refusal| (refusal * 2).min(MAX_REFUSAL));
        (self.refusal_time, self.probe_interval) = (Some(refusal), None);
        self.begin(now, Phase::Refused { until: now + refusal });
    }

    /// The losses that these bytes would have at the rate of the baseline.
    fn expected(&self) -> f64 {
        self.counts.bytes as f64 * self.baseline.losses as f64 / (self.baseline.bytes as f64).max(1.0)
    }

    /// Whether there are more losses than chance explains. By Poisson's distribution this is wrong in up to 2 % of single checks,
    /// and in about 5 % of trials, which check at every loss.
    fn is_more_frequent(&self) -> bool {
        let (losses, expected) = (self.counts.losses as f64, self.expected());
        losses > 2.0 + 2.0 * expected || (losses >= 2.0 && expected < 0.1)
    }
}

impl LossCounts {
    /// Half of both, so that old ones count less.
    pub(super) const fn half(self) -> Self {
        Self { bytes: self.bytes / 2, losses: self.losses / 2 }
    }
}

/// Bounds the doubled time, so that a path that has changed is tested again.
const MAX_REFUSAL: Duration = Duration::from_secs(960);

#[cfg(test)]
mod tests {
    use super::*;

    const STANDING_QUEUE: Duration = ObservationOptions::DEFAULT.standing_queue;
    const REFUSAL_TIME: Duration = ObservationOptions::DEFAULT.refusal_time;
    const RTT: Duration = Duration::from_millis(50);

    fn is_refused(trust: &PathTest) -> bool {
        matches!(trust.phase, Phase::Refused { .. })
    }

    /// A minute of a sender on a path: each round trip delivers `full` segments while reductions are undone and `plain`
    /// ones while they remain, and has a loss if `loses` says so. Returns for how many of its last 20 seconds
    /// reductions were undone.
    fn run(trust: &mut PathTest, plain: u64, full: u64, mut loses: impl FnMut(u64, bool) -> bool) -> u64 {
        (0..20).for_each(|ms| trust.on_queueing_delay(Instant::from_millis(ms), STANDING_QUEUE, RTT));
        let (mut undone, mut is_fast) = (0, false);
        for n in 0..1200_u64 {
            let now = Instant::from_millis(50 * n);
            let segments = if is_fast { full } else { plain };
            trust.on_bytes(now, u32::try_from(segments * 1448).unwrap());
            if loses(segments, is_fast) {
                is_fast = trust.on_loss(now, RTT);
            }
            undone += u64::from(n >= 800 && trust.may_undo(now));
        }
        undone / 20
    }

    /// One segment of so many.
    fn every(nth: u64) -> impl FnMut(u64, bool) -> bool {
        let mut sum = 0;
        move |segments, _| {
            sum += segments;
            let loses = sum >= nth;
            sum %= nth;
            loses
        }
    }

    #[test]
    fn losses_that_do_not_depend_on_the_rate_are_undone() {
        for nth in [100, 300] {
            let mut trust = PathTest::default();
            assert_eq!(run(&mut trust, 15, 60, every(nth)), 20, "one of {nth}");
            assert!(trust.is_trusted(Instant::from_millis(60_000)));
        }
    }

    #[test]
    fn losses_that_become_more_frequent_with_the_rate_are_not() {
        // A loss each four seconds at the policed rate, and one each round trip above it.
        let mut cycle = 0;
        let mut losses = 0;
        let policed = |_, is_fast| {
            cycle += 1;
            let loses = is_fast || cycle % 80 == 0;
            losses += u64::from(loses);
            loses
        };
        let mut trust = PathTest::default();
        assert_eq!(run(&mut trust, 40, 50, policed), 0);
        assert!(is_refused(&trust) && losses < 20, "{losses} of 15 that a plain sender has");
    }

    #[test]
    fn a_path_has_a_queue_when_one_has_stood_and_not_when_bursts_or_single_packets_waited() {
        let detects_queue = |delays: &mut dyn Iterator<Item = (u64, u64)>| {
            let mut trust = PathTest::default();
            for (at, waited) in delays {
                trust.on_queueing_delay(Instant::from_millis(at), Duration::from_millis(waited), RTT);
            }
            trust.standing_queue == StandingQueue::Seen
        };
        assert!(detects_queue(&mut (0..14).map(|ms| (ms, 4))));
        assert!(!detects_queue(&mut (0..12).map(|ms| (ms, 4))), "too short");
        // A burst of 64 KiB in each round trip: packets of 7 ms, each of which waits longer than the one before.
        assert!(!detects_queue(&mut (0..60_000).filter(|ms| ms % 50 < 7).map(|ms| (ms, ms % 50))));
        assert!(!detects_queue(&mut (0..20).map(|n| (n * 1000, 9))), "what was between is not known");
    }

    #[test]
    fn a_probe_finds_a_path_on_which_losses_have_begun_to_depend_on_the_rate() {
        let mut trust = PathTest::default();
        run(&mut trust, 15, 60, every(100));
        let mut probes = 0;
        for n in 1200..40_000_u64 {
            let now = Instant::from_millis(50 * n);
            trust.on_bytes(now, 60 * 1448);
            let is_probing = trust.phase == Phase::Probe;
            probes += u64::from(is_probing);
            if n % 2 == 0 && !is_probing {
                trust.on_loss(now, RTT);
            }
            if is_refused(&trust) {
                break;
            }
        }
        assert!(is_refused(&trust) && probes > 0);
    }

    #[test]
    fn nothing_is_undone_behind_a_mark_of_congestion_or_after_a_burst_in_a_trial() {
        let mut trust = PathTest::default();
        run(&mut trust, 15, 60, every(100));
        let now = Instant::from_millis(60_000);
        trust.on_mark(now);
        assert!(
            !trust.may_undo(now) && !trust.is_trusted(now + REFUSAL_TIME / 2) && trust.may_undo(now + REFUSAL_TIME)
        );
        let mut trust = PathTest { phase: Phase::Trial, ..PathTest::default() };
        trust.on_burst(now);
        assert!(is_refused(&trust));
    }

    #[test]
    fn a_refusal_ends_and_the_next_one_lasts_twice_as_long() {
        let mut trust = PathTest { phase: Phase::Trial, ..PathTest::default() };
        trust.on_burst(Instant::ZERO);
        trust.on_bytes(Instant::ZERO + REFUSAL_TIME, 1);
        assert_eq!(trust.phase, Phase::Plain);
        trust.phase = Phase::Trial;
        trust.on_burst(Instant::ZERO);
        assert_eq!(trust.phase, Phase::Refused { until: Instant::ZERO + REFUSAL_TIME * 2 });
    }
}
