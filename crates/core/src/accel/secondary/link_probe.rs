//! Probes a secondary link: is it alive, what does it carry, how long is its round trip? (Super-aggregation §4.2,
//! *Interface Characterizer*)
//!
//! 1. An unused link is not probed: its radio may sleep. While it is used, its gateway is probed five times per second,
//!    and the probe waits in the same queue as everything else that leaves.
//! 2. Where the uplink rate was configured, nine tenths of it may be used. Otherwise the allowance grows by a quarter
//!    with each reply that was not delayed. It is halved where the first reply after a growth was delayed, or any reply
//!    for long, because a queue there lengthens the round trips of all flows. It shrinks by a tenth where several
//!    replies in a row were delayed. A rate that was too high is not tried again for a while, each time for longer.
//! 3. A reply says nothing about an allowance that is newer than its probe, nor about one that is not used: a radio
//!    that wakes up is late as well.
//! 4. A link whose replies are overdue by a second is down until it replies.
//!
//! Measuring its capacity by a burst of packets was not used: on a radio link that costs more than all ACKs of a
//! minute.

use alloc::collections::VecDeque;

use crate::accel::event::Output;
use crate::accel::observation::minmax_filter::MinMaxFilter;
use crate::accel::secondary::link::SecondaryLink;
use crate::accel::secondary::options::SecondaryLinkOptions;
use crate::link::LinkId;
use crate::units::{Bitrate, DataSize, Duration, Instant, Ratio};

/// Prober of one secondary link.
#[derive(Clone, Debug)]
pub(crate) struct LinkProber {
    options: &'static SecondaryLinkOptions,
    link: SecondaryLink,
    /// The rate at which may be sent over it.
    allowance: Bitrate,
    /// When the allowance changed last.
    allowance_changed: Instant,
    /// It grew, and has not been found to be too high.
    is_growing: bool,
    rate_cap: Option<RateCap>,
    /// Delayed replies in a row.
    delayed_replies: u32,
    /// What may be sent at once, in nanoseconds of the allowance; negative after something that could not wait.
    credit: i64,
    credited: Instant,
    used: u64,
    /// All bytes that were sent over it.
    sent: DataSize,
    last_wanted: Option<Instant>,
    next_probe: Option<Instant>,
    next_sequence: u16,
    probes: VecDeque<(u16, Instant)>,
    /// The shortest recent round trips: a link may become slower, or take another route.
    min_rtt: MinMaxFilter<Duration>,
    /// The last round trip to its gateway.
    rtt: Option<Duration>,
    last_reply: Option<Instant>,
    /// When it delivered something other than replies last.
    last_traffic: Option<Instant>,
    /// Whether it is known to deliver nothing: no carrier, or overdue replies. A link that was not probed is not down.
    is_down: bool,
}

/// The rate up to which the allowance may grow until then, and how long that lasts.
#[derive(Clone, Copy, Debug)]
struct RateCap {
    rate: Bitrate,
    until: Instant,
    duration: Duration,
}

impl LinkProber {
    /// A prober of this link.
    pub(crate) fn new(options: &'static SecondaryLinkOptions, link: SecondaryLink) -> Self {
        Self {
            options,
            link,
            allowance: link.up.map_or(options.first_allowance, |up| up.share(options.usable_share)),
            allowance_changed: Instant::ZERO,
            is_growing: false,
            rate_cap: None,
            delayed_replies: 0,
            credit: 0,
            credited: Instant::ZERO,
            used: 0,
            sent: DataSize::ZERO,
            last_wanted: None,
            next_probe: None,
            next_sequence: 0,
            probes: VecDeque::new(),
            min_rtt: MinMaxFilter::default(),
            rtt: None,
            last_reply: None,
            last_traffic: None,
            is_down: false,
        }
    }

    pub(crate) const fn link_id(&self) -> LinkId {
        self.link.link
    }

    /// The highest rate that may ever be allowed, as far as it is known.
    pub(crate) fn max_rate(&self) -> Bitrate {
        self.link.up.map_or(self.options.max_allowance, |up| up.share(self.options.usable_share))
    }

    /// Something is to be sent over the link soon.
    pub(crate) fn on_wanted(&mut self, now: Instant) {
        self.last_wanted = Some(now);
        if self.next_probe.is_none() {
            self.next_probe = Some(now);
            self.probes.clear();
        }
    }

    /// Whether its gateway replies.
    pub(crate) fn is_alive(&self, now: Instant) -> bool {
        let is_reply_overdue =
            self.probes.front().is_some_and(|(_, sent_at)| now.since(*sent_at) >= self.options.reply_timeout);
        !self.is_down
            && !is_reply_overdue
            && self.last_reply.is_some_and(|replied| now.since(replied) < self.options.max_reply_age)
    }

    /// Whether it is known to deliver nothing: no carrier, or replies are missing. A link that was never probed is not.
    pub(crate) fn is_down(&self, now: Instant) -> bool {
        self.is_down
            || self.probes.front().is_some_and(|(_, sent_at)| now.since(*sent_at) >= self.options.reply_timeout)
    }

    /// Whether its gateway has never replied, so that its state is unknown.
    pub(crate) fn is_unresponsive(&self, now: Instant) -> bool {
        self.is_down(now) && !self.is_down && self.rtt.is_none()
    }

    /// So many bytes leave over it now, whether there is capacity or not.
    pub(crate) fn on_sent(&mut self, now: Instant, bytes: usize) {
        self.credit = self.credit_at(now) - self.cost(bytes);
        self.credited = self.credited.max(now);
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        self.used += bytes;
        self.sent += DataSize::from_bytes(bytes);
    }

    /// When so many bytes may be sent: `now`, or later.
    pub(crate) fn can_send_at(&self, now: Instant, bytes: usize) -> Instant {
        let missing_credit = self.cost(bytes).min(self.max_credit()) - self.credit_at(now);
        now + Duration::from_nanos(u64::try_from(missing_credit).unwrap_or(0))
    }

    /// The gateway replies.
    pub(crate) fn on_probe_reply(&mut self, now: Instant, sequence: u16) {
        let Some(at) = self.probes.iter().position(|(sent_at, _)| *sent_at == sequence) else { return };
        let Some((_, sent_at)) = self.probes.drain(..=at).next_back() else { return };
        let rtt = now.since(sent_at);
        self.last_reply = Some(now);
        self.rtt = Some(rtt);
        let base = self.min_rtt.on_value(now, self.options.min_rtt_window, rtt, Duration::min);
        // A reply that is queued behind download traffic says nothing about the uplink.
        let is_receiving = self.last_traffic.is_some_and(|at| now.since(at) < self.options.reply_timeout);
        if self.link.up.is_none() && !is_receiving {
            self.adapt(now, sent_at, rtt.saturating_sub(base));
        }
        self.used = 0;
    }

    /// The link delivered a packet of the accelerator's own: it is alive, even if replies of its gateway wait in a full
    /// queue.
    pub(crate) fn on_traffic(&mut self, now: Instant) {
        self.probes.retain(|(_, sent_at)| now.since(*sent_at) < self.options.probe_interval);
        (self.last_reply, self.last_traffic) = (Some(now), Some(now));
    }

    /// The carrier was lost or returned.
    pub(crate) fn on_carrier(&mut self, is_up: bool) {
        self.is_down = !is_up;
        if !is_up {
            self.last_reply = None;
        }
    }

    pub(crate) fn tick(&mut self, now: Instant, outputs: &mut VecDeque<Output>) {
        if self.next_probe.is_none_or(|due| now < due) {
            return;
        }
        if self.last_wanted.is_none_or(|wanted| now.since(wanted) >= self.options.idle_time) {
            self.next_probe = None;
            self.probes.clear();
            return;
        }
        self.next_sequence = self.next_sequence.wrapping_add(1);
        if self.probes.len() == MAX_PENDING_PROBES {
            // The oldest pending probe shows how long replies are overdue; the newest may still be answered.
            self.probes.remove(1);
        }
        self.probes.push_back((self.next_sequence, now));
        self.next_probe = Some(now + self.options.probe_interval);
        outputs.push_back(Output::Probe { link: self.link.link, sequence: self.next_sequence });
    }

    pub(crate) const fn deadline(&self) -> Option<Instant> {
        self.next_probe
    }

    /// The last round trip to its gateway.
    pub(crate) const fn rtt(&self) -> Option<Duration> {
        self.rtt
    }

    /// What may be sent over it.
    pub(crate) const fn allowance(&self) -> Bitrate {
        self.allowance
    }

    /// Whether its capacity was configured, or some rate was too high.
    pub(crate) const fn is_known(&self) -> bool {
        self.link.up.is_some() || self.rate_cap.is_some()
    }

    pub(crate) const fn link(&self) -> &SecondaryLink {
        &self.link
    }

    /// All that was sent over it.
    pub(crate) const fn sent(&self) -> DataSize {
        self.sent
    }

    /// Adapts the allowance to a reply.
    fn adapt(&mut self, now: Instant, sent_at: Instant, waited: Duration) {
        let is_used = DataSize::from_bytes(self.used) / self.options.probe_interval
            >= self.allowance.share(Ratio::from_percent(50));
        if !is_used || sent_at < self.allowance_changed {
            return;
        }
        self.delayed_replies = if waited < self.options.short_delay { 0 } else { self.delayed_replies + 1 };
        if waited >= self.options.long_delay || (self.is_growing && waited >= self.options.short_delay) {
            self.shrink(now, Ratio::from_percent(50), Ratio::from_percent(75));
        } else if self.delayed_replies >= self.options.max_delayed_replies {
            self.shrink(now, Ratio::from_percent(90), Ratio::from_percent(90));
        } else if waited < self.options.no_delay
            && sent_at.since(self.allowance_changed) >= self.options.min_test_time
        {
            self.is_growing = false;
            self.grow(now);
        }
    }

    /// Keeps this share of the allowance, and may soon grow to that one.
    fn shrink(&mut self, now: Instant, keeps: Ratio, most: Ratio) {
        let rate = self.allowance.share(most).max(self.options.min_allowance);
        match &mut self.rate_cap {
            // An allowance below the cap has a queue that is left over, which says nothing about lower rates.
            Some(ceiling) if now < ceiling.until && self.allowance < ceiling.rate => {}
            Some(ceiling) if now < ceiling.until => ceiling.rate = rate,
            ended => {
                let recent = ended.filter(|ceiling| now.since(ceiling.until) < self.options.max_cap_time);
                let again = recent.map_or(self.options.first_cap_time, |ceiling| {
                    (ceiling.duration * 2).min(self.options.max_cap_time)
                });
                *ended = Some(RateCap { rate, until: now + again, duration: again });
            }
        }
        self.allowance = self.allowance.share(keeps).max(self.options.min_allowance);
        (self.allowance_changed, self.is_growing, self.delayed_replies) = (now, false, 0);
    }

    fn grow(&mut self, now: Instant) {
        let ceiling = self.rate_cap.filter(|ceiling| now < ceiling.until);
        let most =
            ceiling.map_or(self.options.max_allowance, |ceiling| ceiling.rate.min(self.options.max_allowance));
        let raised = Bitrate::from_bits_per_sec(self.allowance.bits_per_sec().saturating_mul(5) / 4).min(most);
        if raised > self.allowance {
            (self.allowance, self.allowance_changed, self.is_growing) = (raised, now, true);
        }
    }

    fn credit_at(&self, now: Instant) -> i64 {
        let passed = i64::try_from(now.since(self.credited).as_nanos()).unwrap_or(i64::MAX);
        self.credit.saturating_add(passed).min(self.max_credit())
    }

    fn max_credit(&self) -> i64 {
        i64::try_from(self.options.max_credit.as_nanos()).unwrap_or(i64::MAX)
    }

    /// Nanoseconds of the allowance.
    fn cost(&self, bytes: usize) -> i64 {
        let bits = u64::try_from(bytes).unwrap_or(u64::MAX).saturating_mul(8_000_000_000);
        i64::try_from(bits / self.allowance.bits_per_sec().max(1)).unwrap_or(i64::MAX)
    }
}

const MAX_PENDING_PROBES: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(up: Option<Bitrate>) -> LinkProber {
        LinkProber::new(&SecondaryLinkOptions::DEFAULT, SecondaryLink { up, ..SecondaryLink::new(LinkId(1)) })
    }

    /// A minute of 52-byte ACKs, each sent as soon as there is capacity, over a link of this rate with 75 ms each way.
    fn send(prober: &mut LinkProber, rate: u64) -> (u64, Duration) {
        let (mut queue_ends, mut bytes, mut worst) = (Instant::ZERO, 0, Duration::ZERO);
        let mut outputs = VecDeque::new();
        let mut answers: VecDeque<(Instant, u16)> = VecDeque::new();
        let mut pass = |now: Instant, size: u64| {
            queue_ends = queue_ends.max(now) + Duration::from_nanos(size * 8_000_000_000 / rate);
            queue_ends
        };
        for ms in 0..60_000 {
            let now = Instant::from_millis(ms);
            prober.on_wanted(now);
            prober.tick(now, &mut outputs);
            for output in outputs.drain(..) {
                if let Output::Probe { sequence, .. } = output {
                    let left = pass(now, 60);
                    worst = worst.max(left.since(now));
                    answers.push_back((left + Duration::from_millis(150), sequence));
                }
            }
            while answers.front().is_some_and(|(at, _)| *at <= now) {
                let (_, sequence) = answers.pop_front().unwrap();
                prober.on_probe_reply(now, sequence);
            }
            while prober.is_alive(now) && prober.can_send_at(now, 52) <= now {
                prober.on_sent(now, 52);
                pass(now, 52);
                bytes += 52;
            }
        }
        (bytes * 8 / 60, worst)
    }

    #[test]
    fn a_configured_rate_is_used_to_nine_tenths() {
        let (rate, worst) = send(&mut cell(Some(Bitrate::from_bits_per_sec(400_000))), 400_000);
        assert!((350_000..=361_000).contains(&rate), "{rate}");
        assert!(worst < Duration::from_millis(20), "{worst:?}");
    }

    #[test]
    fn an_unknown_rate_is_found_without_a_long_queue() {
        for real in [50_000, 100_000, 400_000] {
            let mut prober = cell(None);
            let (rate, worst) = send(&mut prober, real);
            assert!(rate > real * 6 / 10 && rate <= real, "{rate} of {real}");
            assert!(worst < Duration::from_millis(200), "{worst:?}");
        }
    }

    /// The allowance in kbit/s, after a reply at this time that was delayed by so many ms.
    fn answer(prober: &mut LinkProber, ms: u64, waited: u64) -> u64 {
        let now = Instant::from_millis(ms);
        prober.adapt(now, now - Duration::from_millis(50 + waited), Duration::from_millis(waited));
        prober.allowance().bits_per_sec() / 1000
    }

    #[test]
    fn a_rate_that_was_too_high_is_reduced_at_once_and_one_late_reply_is_soon_forgotten() {
        let mut prober = cell(None);
        prober.used = 10_000;
        let mut answer = |ms: u64, waited: u64| answer(&mut prober, ms, waited);
        assert_eq!(answer(1000, 0), 62, "it grows");
        assert_eq!(answer(1100, 0), 62, "probed too early to tell");
        assert_eq!(answer(1200, 40), 31, "the first reply that counts was delayed");
        assert_eq!(answer(1250, 100), 31, "probed before that");
        assert_eq!(
            [answer(1400, 0), answer(1600, 0), answer(1800, 0)],
            [39, 46, 46],
            "not beyond the rate that was too high"
        );
        assert_eq!([answer(5300, 0), answer(5500, 0)], [58, 73], "four seconds later it is tried again");
        assert_eq!(answer(5700, 40), 36);
        assert_eq!([answer(13_400, 0), answer(13_600, 0)], [45, 54], "the second time for eight");
        // Much later it happens once more, and is soon forgotten again.
        assert_eq!([answer(90_000, 0), answer(90_200, 90)], [68, 34]);
        assert_eq!([answer(93_800, 0), answer(94_000, 0), answer(94_300, 0)], [42, 51, 64]);
    }

    #[test]
    fn a_leftover_queue_counts_once_and_a_waking_radio_not_at_all() {
        let mut prober = cell(None);
        for n in 0..5 {
            assert_eq!(answer(&mut prober, 1000 + n * 200, 300), 50, "the allowance is unused");
        }
        prober.used = 10_000;
        let grown = (0..8).map(|n| answer(&mut prober, 3000 + n * 200, 0)).last();
        assert_eq!(grown, Some(280));
        let rates = [5000, 5600, 6200, 6800].map(|ms| answer(&mut prober, ms, 500));
        assert_eq!(rates, [140, 70, 35, 17]);
        let last_delay = (0..14).map(|n| answer(&mut prober, 7000 + n * 200, 0)).last();
        assert_eq!(last_delay, Some(280), "the cap was that of the first, and has expired");
    }

    #[test]
    fn a_longer_path_is_not_mistaken_for_a_queue_forever() {
        let mut prober = cell(None);
        let mut at = 0;
        let mut minute = |prober: &mut LinkProber, rtt: u64| {
            for _ in 0..300 {
                at += 200;
                prober.on_wanted(Instant::from_millis(at));
                prober.tick(Instant::from_millis(at), &mut VecDeque::new());
                prober.used = 10_000;
                let sequence = prober.next_sequence;
                prober.on_probe_reply(Instant::from_millis(at + rtt), sequence);
            }
            prober.allowance()
        };
        assert_eq!(minute(&mut prober, 20), SecondaryLinkOptions::DEFAULT.max_allowance);
        minute(&mut prober, 130);
        assert_eq!(minute(&mut prober, 130), SecondaryLinkOptions::DEFAULT.max_allowance);
    }

    #[test]
    fn a_link_with_a_long_path_is_alive_again_when_it_replies() {
        let mut prober = cell(None);
        for n in 0..50 {
            let at = Instant::from_millis(n * 200);
            prober.on_wanted(at);
            prober.tick(at, &mut VecDeque::new());
            if n >= 30 {
                // Two probes later.
                prober.on_probe_reply(at + Duration::from_millis(1), prober.next_sequence - 2);
            }
        }
        assert!(prober.is_alive(Instant::from_millis(10_000)));
    }

    #[test]
    fn a_link_with_overdue_replies_is_down_and_an_unused_one_is_not_probed() {
        let (mut prober, mut outputs) = (cell(None), VecDeque::new());
        let at = Instant::from_millis;
        assert_eq!(prober.deadline(), None);
        prober.on_wanted(at(0));
        prober.tick(at(0), &mut outputs);
        assert!(!prober.is_alive(at(0)), "it has not replied yet");
        assert!(!prober.is_unresponsive(at(900)) && prober.is_unresponsive(at(1000)), "its state is unknown");
        prober.on_probe_reply(at(150), 1);
        assert!(prober.is_alive(at(150)));
        prober.on_wanted(at(200));
        prober.tick(at(200), &mut outputs);
        assert!(prober.is_alive(at(1100)) && !prober.is_alive(at(1200)));
        assert!(prober.is_down(at(1200)) && !prober.is_unresponsive(at(1200)), "it has replied before");
        for n in 1..20 {
            prober.tick(at(200 * n), &mut outputs);
        }
        assert_eq!(prober.deadline(), None, "a second after it was last wanted");
        assert!(outputs.len() < 9);
    }
}
