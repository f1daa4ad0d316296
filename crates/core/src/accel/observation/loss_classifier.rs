//! Classifies a loss as random or as congestion, by queueing delay.
//!
//! A full queue is a long queue, so the packets around a congestion loss have waited. Each captured or acknowledged
//! timestamp gives the queueing delay of one packet: its delay by the peer's clock minus the minimum delay. A loss is
//! random if one of the packets of the last moment (`recent_window`, or half a round trip) has waited for less than a
//! threshold.
//!
//! 1. One packet below the threshold is enough, because a sender that starts, or restores its window, sends a burst:
//!    the burst queues behind itself, and only its first packets find the queue that was there before.
//! 2. The threshold is `min_threshold`, or a fifth of the round trip if that is longer. While losses come all the
//!    time with hardly any queue ([`LossClassifier::has_random_loss`]) it is nine twentieths of the round trip: as much
//!    as CUBIC's reduction drains.
//! 3. Short queues drop as well, below any fixed threshold. They show in this: losses come when packets have waited
//!    about as long as they ever do, and the longest wait no longer grows ([`QueueDropTest`]). Then the newest packet
//!    must have waited for less than half of the longest recent wait.
//! 4. A burst of losses is a queue that overflows; the wait at that moment is the length of the queue
//!    ([`LossClassifier::on_burst`]). Losses with less than half of it are not due to this queue.
//! 5. Whatever is unknown counts as congestion: no fresh packet, a clock that cannot be used, the first moments of a
//!    flow.
//! 6. The minimum delay is that of the last one to two minutes, the maximum queue that of the last five to ten seconds.
//!
//! The link layer's count of damaged frames, which the paper uses (§3.3), was not used: few drivers provide it, and it
//! does not say whose frames they were.

use super::minmax_filter::MinMaxFilter;
use super::peer_clock::PeerClock;
use super::queue_drop_test::QueueDropTest;
use crate::accel::observation::options::ObservationOptions;
use crate::units::{Duration, Instant};
use crate::wire::packet::TcpTimestamp;

/// Classifier of one flow; see the [module documentation](self).
#[derive(Clone, Debug, Default)]
pub(crate) struct LossClassifier {
    options: &'static ObservationOptions,
    clock: PeerClock,
    min_delay: MinMaxFilter<i64>,
    /// The longest recent queueing delay.
    max_queue: MinMaxFilter<i64>,
    /// The minimum of the recent window.
    recent_min_delay: MinMaxFilter<i64>,
    /// The longest queueing delay, and when it last grew by a step.
    max_growth: (Duration, Instant),
    /// Whether losses come with the longest queueing delays.
    queue_drops: QueueDropTest,
    /// The queueing delay at the last burst of losses.
    burst_queue: Option<Duration>,
    /// When losses came with hardly any queueing delay, the newest last.
    quiet_losses: [Option<Instant>; QUIET_LOSSES],
    /// Until when random loss is assumed to be frequent.
    lossy_until: Option<Instant>,
    newest: Option<(Instant, i64)>,
    /// The delay of the packet before the newest one.
    previous: Option<i64>,
}

impl LossClassifier {
    /// With these options, and nothing observed yet.
    pub(crate) fn new(options: &'static ObservationOptions) -> Self {
        Self {
            options,
            clock: PeerClock::new(options),
            queue_drops: QueueDropTest::new(options),
            ..Self::default()
        }
    }

    /// A packet with this timestamp came, of a flow with this round-trip time.
    pub(crate) fn on_tsval(&mut self, now: Instant, ts_val: TcpTimestamp, rtt: Duration) {
        let tick = self.clock.tick();
        let delay = self.clock.on_tsval(now, ts_val);
        if tick != self.clock.tick() {
            *self = Self { clock: self.clock.clone(), ..Self::new(self.options) };
        }
        let Some(delay) = delay else { return };
        let min_delay = self.min_delay.on_value(now, self.options.min_delay_window, delay, i64::min);
        self.max_queue.on_value(now, self.options.max_queue_window, delay - min_delay, i64::max);
        self.recent_min_delay.on_value(now, (rtt / 2).max(self.options.recent_window), delay, i64::min);
        let (max_queue, (was, _)) = (self.max_queue(), self.max_growth);
        if max_queue > was + (was / 16).max(self.options.clock_grain / 2) {
            self.max_growth = (max_queue, now);
        } else if max_queue < was {
            self.max_growth.0 = max_queue;
        }
        self.previous = self.newest.replace((now, delay)).map(|(_, delay)| delay);
    }

    /// Whether the queue is empty: neither the newest packet nor the one before it, between which a loss shows, has
    /// waited. False if the peer's clock ticks more slowly than once per millisecond.
    pub(crate) fn is_queue_empty(&self, now: Instant) -> bool {
        let is_fine_grained = self.clock.tick().is_some_and(|tick| tick * 2 < self.options.empty_queue);
        let waited = |delay: i64| delay.saturating_sub(self.min_delay.value().unwrap_or(0));
        let before = self.previous.map_or(u64::MAX, |delay| u64::try_from(waited(delay)).unwrap_or(0));
        is_fine_grained
            && self.queueing_delay(now).is_some_and(|queue| queue < self.options.empty_queue)
            && Duration::from_nanos(before) < self.options.empty_queue
    }

    /// So many bytes arrived with the newest packet.
    pub(crate) fn on_bytes(&mut self, now: Instant, bytes: u32) {
        if let Some(is_top) = self.is_near_max(now) {
            self.queue_drops.on_bytes(now, bytes, is_top);
        }
    }

    /// A loss shows now.
    pub(crate) fn on_loss(&mut self, now: Instant) {
        if self.queueing_delay(now).is_some_and(|queue| queue < self.options.min_threshold / 2) {
            self.quiet_losses.rotate_left(1);
            self.quiet_losses[QUIET_LOSSES - 1] = Some(now);
            if self.quiet_losses[0].is_some_and(|first| now.since(first) < self.options.max_queue_window) {
                self.lossy_until = Some(now + self.options.lossy_time);
            }
        }
        if let Some(is_top) = self.is_near_max(now) {
            self.queue_drops.on_loss(is_top);
        }
    }

    /// Whether the newest packet has waited about as long as packets ever do; none while the waits still grow, so that
    /// this is not known.
    fn is_near_max(&self, now: Instant) -> Option<bool> {
        let (max_queue, queue) = (self.max_queue(), self.queueing_delay(now)?);
        let is_top = max_queue >= self.options.clock_grain && queue >= max_queue / 4 * 3;
        (!is_top || now.since(self.max_growth.1) >= self.options.growth_time).then_some(is_top)
    }

    /// A burst of losses shows now.
    pub(crate) fn on_burst(&mut self, now: Instant) {
        self.burst_queue = self.queueing_delay(now).or(self.burst_queue);
    }

    /// How long the newest packet has waited; none without a fresh packet.
    pub(crate) fn queueing_delay(&self, now: Instant) -> Option<Duration> {
        let (at, delay) = self.newest?;
        let waited = delay.saturating_sub(self.min_delay.value()?);
        (now.since(at) < self.options.max_sample_age)
            .then(|| Duration::from_nanos(u64::try_from(waited).unwrap_or(0)))
    }

    /// Whether a loss that shows now is classified as random.
    pub(crate) fn is_random(&self, now: Instant, rtt: Duration) -> bool {
        let bound = self.threshold(now, rtt);
        let waited = if self.queue_drops.drops_at_max() {
            self.queueing_delay(now)
        } else {
            self.queueing_delay(now).and_then(|_| self.recent_min_queue())
        };
        waited.is_some_and(|waited| waited < bound)
    }

    /// The clock of the peer.
    pub(crate) const fn peer_clock(&self) -> &PeerClock {
        &self.clock
    }

    fn threshold(&self, now: Instant, rtt: Duration) -> Duration {
        let grain = self.clock.tick().unwrap_or_default() * 2;
        let needed = if self.has_random_loss(now) { rtt / 20 * 9 } else { rtt / 5 };
        let bound = match self.burst_queue {
            _ if self.queue_drops.drops_at_max() => (self.max_queue() / 2).min(self.options.min_threshold),
            Some(full) => needed.min(full / 4 * 3).max(full / 2).max(self.options.min_threshold),
            None => needed.max(self.options.min_threshold),
        };
        bound.max(grain)
    }

    /// Whether losses come all the time, whatever the queue. This state is kept while a queue stands, because no loss
    /// can come with an empty queue then.
    pub(crate) fn has_random_loss(&self, now: Instant) -> bool {
        self.lossy_until.is_some_and(|until| now < until)
    }

    /// The shortest queueing delay of the recent window.
    fn recent_min_queue(&self) -> Option<Duration> {
        let waited = self.recent_min_delay.value()?.saturating_sub(self.min_delay.value()?);
        Some(Duration::from_nanos(u64::try_from(waited).unwrap_or(0)))
    }

    /// The longest wait of late.
    pub(crate) fn max_queue(&self) -> Duration {
        Duration::from_nanos(u64::try_from(self.max_queue.value().unwrap_or(0)).unwrap_or(0))
    }
}

/// Losses. Our choice: one in a thousand at 20 Mbit/s makes as many in `max_queue_window`.
const QUIET_LOSSES: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(40);

    /// A classifier that has seen a second of packets with these queueing delays, one after another, and the time at
    /// the end.
    fn gate(delays: &[u64]) -> (LossClassifier, Instant) {
        let (mut classifier, mut now) = (LossClassifier::default(), Instant::ZERO);
        for n in 0..1000_u64 {
            let wait = delays[usize::try_from(n).unwrap() * delays.len() / 1000];
            now = Instant::from_millis(30 + n + wait);
            classifier.on_tsval(now, TcpTimestamp::new(u32::try_from(n).unwrap()), RTT);
        }
        (classifier, now)
    }

    #[test]
    fn a_loss_behind_a_long_queue_is_congestion_and_one_behind_a_short_queue_is_random() {
        let (long, now) = gate(&[0, 40, 80, 40]);
        assert_eq!((long.is_random(now, RTT), long.queueing_delay(now)), (false, Some(Duration::from_millis(40))));
        let (short, now) = gate(&[0, 40, 80, 15]);
        assert!(short.is_random(now, RTT));
        let (empty, now) = gate(&[0]);
        assert!(empty.is_random(now, RTT));
    }

    #[test]
    fn a_burst_that_queues_behind_itself_is_no_queue_and_a_standing_one_is() {
        let wait = |n: u64| n.saturating_sub(960);
        let (mut classifier, mut now) = (LossClassifier::default(), Instant::ZERO);
        for n in 0..990_u64 {
            now = Instant::from_millis(30 + n + wait(n));
            classifier.on_tsval(now, TcpTimestamp::new(u32::try_from(n).unwrap()), RTT);
        }
        assert!(
            classifier.queueing_delay(now).unwrap() > ObservationOptions::DEFAULT.min_threshold
                && classifier.is_random(now, RTT)
        );
        for n in 990..1100_u64 {
            now = Instant::from_millis(30 + n + 30);
            classifier.on_tsval(now, TcpTimestamp::new(u32::try_from(n).unwrap()), RTT);
        }
        assert!(!classifier.is_random(now, RTT));
    }

    #[test]
    fn where_losses_come_with_the_longest_delays_a_short_queue_counts_as_full() {
        let (mut short, now) = gate(&[0, 4, 8, 12]);
        assert!(short.is_random(now, RTT), "too few losses so far");
        for _ in 0..8 {
            short.on_loss(now);
        }
        assert!(short.is_random(now, RTT), "the longest delay still grows");
        let mut later = now;
        for n in 1000..2100_u64 {
            later = Instant::from_millis(30 + n + 12);
            short.on_tsval(later, TcpTimestamp::new(u32::try_from(n).unwrap()), RTT);
        }
        for _ in 0..8 {
            short.on_loss(later);
        }
        assert!(!short.is_random(later, RTT), "12 of 12 ms");
        let (mut any, now) = gate(&[0, 12, 2]);
        for _ in 0..8 {
            any.on_loss(now);
        }
        assert!(any.is_random(now, RTT), "2 of 12 ms");
    }

    #[test]
    fn without_a_fresh_sample_a_loss_is_congestion() {
        assert!(!LossClassifier::default().is_random(Instant::ZERO, RTT));
        let (classifier, now) = gate(&[0]);
        assert!(!classifier.is_random(now + ObservationOptions::DEFAULT.max_sample_age, RTT), "an old packet");
    }
}
