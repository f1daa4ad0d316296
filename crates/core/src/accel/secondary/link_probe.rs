//! Interface Characterizer: what does a helping link bear, and is it there? (Super-aggregation §4.2)
//!
//! In: what is sent over it, its gateway's answers, the time. Out: how many bytes may go now, its round trip, whether it
//! lives, and questions.
//!
//! 1. Nothing is asked of a link that is not used: its radio may sleep. While it is, its gateway is asked five times a
//!    second, and that question waits in the same queue as everything else that leaves.
//! 2. Where the uplink's rate was told, nine tenths of it may be used. Else the allowance grows by a quarter with each
//!    answer that did not wait. It is halved where the first answer behind a growth has waited, or any for long: what waits there
//!    makes the round trips of all flows longer. It shrinks by a tenth where some in a row have waited. What was too much is not
//!    tried again for a while, each time for longer.
//! 3. An answer says nothing of an allowance that is newer than its question, nor of one that is not used: a radio that wakes is
//!    late as well.
//! 4. A link that owes answers for a second is dead until it answers.
//!
//! Its capacity by a burst of packets was not measured: on a radio that costs more than all ACKs of a minute.

use alloc::collections::VecDeque;

use crate::accel::config::SecondaryLink;
use crate::accel::event::Output;
use crate::accel::observation::minmax_filter::MinMaxFilter;
use crate::link::LinkId;
use crate::units::{Bitrate, DataSize, Duration, Instant, Ratio};

/// One helping link.
#[derive(Clone, Debug)]
pub(in crate::accel) struct LinkProber {
    link: SecondaryLink,
    allowance: Bitrate,
    /// When it changed last, and whether it grew and has not been found to be too much.
    allowance_changed: Instant,
    is_growing: bool,
    rate_cap: Option<RateCap>,
    /// Answers in a row that have waited.
    delayed_replies: u32,
    /// What may go at once, in nanoseconds of the allowance; negative after something that could not wait.
    credit: i64,
    credited: Instant,
    used: u64,
    sent: DataSize,
    last_wanted: Option<Instant>,
    next_probe: Option<Instant>,
    next_sequence: u16,
    probes: VecDeque<(u16, Instant)>,
    /// The shortest round trips: a link may get slower, or another way.
    min_rtt: MinMaxFilter<Duration>,
    rtt: Option<Duration>,
    last_reply: Option<Instant>,
    /// When it brought something else than answers last.
    last_traffic: Option<Instant>,
    is_down: bool,
}

/// What it may grow to until then, and how long that was.
#[derive(Clone, Copy, Debug)]
struct RateCap {
    rate: Bitrate,
    until: Instant,
    duration: Duration,
}

impl LinkProber {
    /// On these terms.
    pub(in crate::accel) fn new(link: SecondaryLink) -> Self {
        Self {
            link: link,
            allowance: link.up.map_or(FIRST_ALLOWANCE, |up| up.share(USABLE_SHARE)),
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

    /// Which link.
    pub(in crate::accel) const fn link_id(&self) -> LinkId {
        self.link.link
    }

    /// The most that may ever be allowed, as far as it is known.
    pub(in crate::accel) fn max_rate(&self) -> Bitrate {
        self.link.up.map_or(MAX_ALLOWANCE, |up| up.share(USABLE_SHARE))
    }

    /// Something is to be sent over it soon.
    pub(in crate::accel) fn on_wanted(&mut self, now: Instant) {
        self.last_wanted = Some(now);
        if self.next_probe.is_none() {
            self.next_probe = Some(now);
            self.probes.clear();
        }
    }

    /// Whether it answers.
    pub(in crate::accel) fn is_alive(&self, now: Instant) -> bool {
        let is_reply_overdue = self.probes.front().is_some_and(|(_, sent_at)| now.since(*sent_at) >= REPLY_TIMEOUT);
        !self.is_down
            && !is_reply_overdue
            && self.last_reply.is_some_and(|replied| now.since(replied) < MAX_REPLY_AGE)
    }

    /// Whether it is known to bring nothing: no carrier, or it owes answers. A link that nobody has asked is not.
    pub(in crate::accel) fn is_down(&self, now: Instant) -> bool {
        self.is_down || self.probes.front().is_some_and(|(_, sent_at)| now.since(*sent_at) >= REPLY_TIMEOUT)
    }

    /// Whether its gateway has never answered, so that nobody knows.
    pub(in crate::accel) fn is_unresponsive(&self, now: Instant) -> bool {
        self.is_down(now) && !self.is_down && self.rtt.is_none()
    }

    /// So many bytes go over it now, whether there is room or not.
    pub(in crate::accel) fn on_sent(&mut self, now: Instant, bytes: usize) {
        self.credit = self.credit_at(now) - self.cost(bytes);
        self.credited = self.credited.max(now);
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        self.used += bytes;
        self.sent += DataSize::from_bytes(bytes);
    }

    /// When there is room for so many bytes: `now`, or later.
    pub(in crate::accel) fn can_send_at(&self, now: Instant, bytes: usize) -> Instant {
        let missing_credit = self.cost(bytes).min(MAX_CREDIT) - self.credit_at(now);
        now + Duration::from_nanos(u64::try_from(missing_credit).unwrap_or(0))
    }

    /// The gateway answers.
    pub(in crate::accel) fn on_probe_reply(&mut self, now: Instant, sequence: u16) {
        let Some(at) = self.probes.iter().position(|(sent_at, _)| *sent_at == sequence) else { return };
        let Some((_, sent_at)) = self.probes.drain(..=at).next_back() else { return };
        let rtt = now.since(sent_at);
        self.last_reply = Some(now);
        self.rtt = Some(rtt);
        let base = self.min_rtt.on_value(now, MIN_RTT_WINDOW, rtt, Duration::min);
        // An answer that waits behind what a server sends says nothing of the way up.
        let is_receiving = self.last_traffic.is_some_and(|at| now.since(at) < REPLY_TIMEOUT);
        if self.link.up.is_none() && !is_receiving {
            self.adapt(now, sent_at, rtt.saturating_sub(base));
        }
        self.used = 0;
    }

    /// It has brought something of the accelerator's own: it lives, whatever its gateway owes in a full queue.
    pub(in crate::accel) fn on_traffic(&mut self, now: Instant) {
        self.probes.retain(|(_, sent_at)| now.since(*sent_at) < PROBE_INTERVAL);
        (self.last_reply, self.last_traffic) = (Some(now), Some(now));
    }

    /// The carrier came or went.
    pub(in crate::accel) fn on_carrier(&mut self, is_up: bool) {
        self.is_down = !is_up;
        if !is_up {
            self.last_reply = None;
        }
    }

    /// Time has passed.
    pub(in crate::accel) fn tick(&mut self, now: Instant, outputs: &mut VecDeque<Output>) {
        if self.next_probe.is_none_or(|due| now < due) {
            return;
        }
        if self.last_wanted.is_none_or(|wanted| now.since(wanted) >= IDLE_TIME) {
            self.next_probe = None;
            self.probes.clear();
            return;
        }
        self.next_sequence = self.next_sequence.wrapping_add(1);
        if self.probes.len() == MAX_PENDING_PROBES {
            // The oldest tells for how long it owes answers; the newest may be answered yet.
            self.probes.remove(1);
        }
        self.probes.push_back((self.next_sequence, now));
        self.next_probe = Some(now + PROBE_INTERVAL);
        outputs.push_back(Output::Probe { link: self.link.link, sequence: self.next_sequence });
    }

    /// When to tick next.
    pub(in crate::accel) const fn deadline(&self) -> Option<Instant> {
        self.next_probe
    }

    /// The last round trip to its gateway.
    pub(in crate::accel) const fn rtt(&self) -> Option<Duration> {
        self.rtt
    }

    /// What may be sent over it.
    pub(in crate::accel) const fn allowance(&self) -> Bitrate {
        self.allowance
    }

    /// Whether what it bears was told, or something was too much.
    pub(in crate::accel) const fn is_known(&self) -> bool {
        self.link.up.is_some() || self.rate_cap.is_some()
    }

    /// On what terms it is used.
    pub(in crate::accel) const fn link(&self) -> &SecondaryLink {
        &self.link
    }

    /// All that was sent over it.
    pub(in crate::accel) const fn sent(&self) -> DataSize {
        self.sent
    }

    /// What an answer says of the allowance.
    fn adapt(&mut self, now: Instant, sent_at: Instant, waited: Duration) {
        let is_used =
            DataSize::from_bytes(self.used) / PROBE_INTERVAL >= self.allowance.share(Ratio::from_percent(50));
        if !is_used || sent_at < self.allowance_changed {
            return;
        }
        self.delayed_replies = if waited < SHORT_DELAY { 0 } else { self.delayed_replies + 1 };
        if waited >= LONG_DELAY || (self.is_growing && waited >= SHORT_DELAY) {
            self.shrink(now, Ratio::from_percent(50), Ratio::from_percent(75));
        } else if self.delayed_replies >= MAX_DELAYED_REPLIES {
            self.shrink(now, Ratio::from_percent(90), Ratio::from_percent(90));
        } else if waited < NO_DELAY && sent_at.since(self.allowance_changed) >= MIN_TEST_TIME {
            self.is_growing = false;
            self.grow(now);
        }
    }

    /// It keeps so much, and may soon grow to so much.
    fn shrink(&mut self, now: Instant, keeps: Ratio, most: Ratio) {
        let rate = self.allowance.share(most).max(MIN_ALLOWANCE);
        match &mut self.rate_cap {
            // One that is below has a queue which is left over, and tells nothing of less.
            Some(ceiling) if now < ceiling.until && self.allowance < ceiling.rate => {}
            Some(ceiling) if now < ceiling.until => ceiling.rate = rate,
            ended => {
                let recent = ended.filter(|ceiling| now.since(ceiling.until) < MAX_CAP_TIME);
                let again = recent.map_or(FIRST_CAP_TIME, |ceiling| (ceiling.duration * 2).min(MAX_CAP_TIME));
                *ended = Some(RateCap { rate, until: now + again, duration: again });
            }
        }
        self.allowance = self.allowance.share(keeps).max(MIN_ALLOWANCE);
        (self.allowance_changed, self.is_growing, self.delayed_replies) = (now, false, 0);
    }

    fn grow(&mut self, now: Instant) {
        let ceiling = self.rate_cap.filter(|ceiling| now < ceiling.until);
        let most = ceiling.map_or(MAX_ALLOWANCE, |ceiling| ceiling.rate.min(MAX_ALLOWANCE));
        let more = Bitrate::from_bits_per_sec(self.allowance.bits_per_sec().saturating_mul(5) / 4).min(most);
        if more > self.allowance {
            (self.allowance, self.allowance_changed, self.is_growing) = (more, now, true);
        }
    }

    fn credit_at(&self, now: Instant) -> i64 {
        let passed = i64::try_from(now.since(self.credited).as_nanos()).unwrap_or(i64::MAX);
        self.credit.saturating_add(passed).min(MAX_CREDIT)
    }

    /// Nanoseconds of the allowance.
    fn cost(&self, bytes: usize) -> i64 {
        let bits = u64::try_from(bytes).unwrap_or(u64::MAX).saturating_mul(8_000_000_000);
        i64::try_from(bits / self.allowance.bits_per_sec().max(1)).unwrap_or(i64::MAX)
    }
}

/// Facts, D.
const USABLE_SHARE: Ratio = Ratio::from_percent(90);
/// chosen: the least link that is worth it has 50 kbit/s.
const FIRST_ALLOWANCE: Bitrate = Bitrate::from_bits_per_sec(50_000);
/// chosen: two ACKs a round trip.
const MIN_ALLOWANCE: Bitrate = Bitrate::from_bits_per_sec(16_000);
/// chosen: six hundred ACKs a second; more of them change nothing.
const MAX_ALLOWANCE: Bitrate = Bitrate::from_bits_per_sec(280_000);
/// In nanoseconds. chosen: two ACKs in one at 100 kbit/s.
const MAX_CREDIT: i64 = 10_000_000;
const PROBE_INTERVAL: Duration = Duration::from_millis(200);
/// chosen: two ACKs' time at 50 kbit/s.
const NO_DELAY: Duration = Duration::from_millis(15);
/// chosen: less is the radio's scheduling.
const SHORT_DELAY: Duration = Duration::from_millis(30);
const LONG_DELAY: Duration = Duration::from_millis(80);
/// chosen: a second of them.
const MAX_DELAYED_REPLIES: u32 = 5;
/// chosen: an overload adds a queue of this order at least within it.
const MIN_TEST_TIME: Duration = Duration::from_millis(100);
/// chosen: one late answer may be the radio's doing, and costs no more than some seconds; a mobile link's rate changes within
/// minutes.
const FIRST_CAP_TIME: Duration = Duration::from_secs(4);
const MAX_CAP_TIME: Duration = Duration::from_secs(60);
/// chosen: longer than a queue of ours stands.
const MIN_RTT_WINDOW: Duration = Duration::from_secs(30);
/// chosen: longer than any round trip of a link that is worth it.
const REPLY_TIMEOUT: Duration = Duration::from_secs(1);
const MAX_REPLY_AGE: Duration = Duration::from_millis(1500);
/// chosen: a link that nothing was wanted of for so long may sleep.
const IDLE_TIME: Duration = Duration::from_secs(1);
const MAX_PENDING_PROBES: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(up: Option<Bitrate>) -> LinkProber {
        LinkProber::new(SecondaryLink { up, ..SecondaryLink::new(LinkId(1)) })
    }

    /// A minute of 52-byte ACKs, each sent as soon as there is room, over a link of this rate with 75 ms each way.
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
    fn a_rate_that_was_told_is_used_to_nine_tenths() {
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

    /// What it may use, in kbit/s, after an answer at this time that has waited so long, in ms.
    fn answer(prober: &mut LinkProber, ms: u64, waited: u64) -> u64 {
        let now = Instant::from_millis(ms);
        prober.adapt(now, now - Duration::from_millis(50 + waited), Duration::from_millis(waited));
        prober.allowance().bits_per_sec() / 1000
    }

    #[test]
    fn what_was_too_much_is_taken_back_at_once_and_one_late_answer_is_soon_forgotten() {
        let mut prober = cell(None);
        prober.used = 10_000;
        let mut answer = |ms: u64, waited: u64| answer(&mut prober, ms, waited);
        assert_eq!(answer(1000, 0), 62, "it grows");
        assert_eq!(answer(1100, 0), 62, "asked too early to tell");
        assert_eq!(answer(1200, 40), 31, "the first that tells has waited");
        assert_eq!(answer(1250, 100), 31, "asked before that");
        assert_eq!(
            [answer(1400, 0), answer(1600, 0), answer(1800, 0)],
            [39, 46, 46],
            "not beyond what was too much"
        );
        assert_eq!([answer(5300, 0), answer(5500, 0)], [58, 73], "four seconds later it is tried again");
        assert_eq!(answer(5700, 40), 36);
        assert_eq!([answer(13_400, 0), answer(13_600, 0)], [45, 54], "the second time for eight");
        // Much later once more: it is soon forgotten again.
        assert_eq!([answer(90_000, 0), answer(90_200, 90)], [68, 34]);
        assert_eq!([answer(93_800, 0), answer(94_000, 0), answer(94_300, 0)], [42, 51, 64]);
    }

    #[test]
    fn a_queue_that_is_left_over_counts_once_and_a_radio_that_wakes_not_at_all() {
        let mut prober = cell(None);
        for n in 0..5 {
            assert_eq!(answer(&mut prober, 1000 + n * 200, 300), 50, "nothing was sent");
        }
        prober.used = 10_000;
        let grown = (0..8).map(|n| answer(&mut prober, 3000 + n * 200, 0)).last();
        assert_eq!(grown, Some(280));
        let late = [5000, 5600, 6200, 6800].map(|ms| answer(&mut prober, ms, 500));
        assert_eq!(late, [140, 70, 35, 17]);
        let later = (0..14).map(|n| answer(&mut prober, 7000 + n * 200, 0)).last();
        assert_eq!(later, Some(280), "the ceiling was that of the first, and is gone");
    }

    #[test]
    fn a_way_that_has_become_longer_is_no_queue_for_ever() {
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
        assert_eq!(minute(&mut prober, 20), MAX_ALLOWANCE);
        minute(&mut prober, 130);
        assert_eq!(minute(&mut prober, 130), MAX_ALLOWANCE);
    }

    #[test]
    fn a_link_with_a_long_way_that_was_dark_is_seen_when_it_answers() {
        let mut prober = cell(None);
        for n in 0..50 {
            let at = Instant::from_millis(n * 200);
            prober.on_wanted(at);
            prober.tick(at, &mut VecDeque::new());
            if n >= 30 {
                // Two questions later.
                prober.on_probe_reply(at + Duration::from_millis(1), prober.next_sequence - 2);
            }
        }
        assert!(prober.is_alive(Instant::from_millis(10_000)));
    }

    #[test]
    fn a_link_that_owes_answers_is_dead_and_one_that_is_not_used_is_not_asked() {
        let (mut prober, mut outputs) = (cell(None), VecDeque::new());
        let at = Instant::from_millis;
        assert_eq!(prober.deadline(), None);
        prober.on_wanted(at(0));
        prober.tick(at(0), &mut outputs);
        assert!(!prober.is_alive(at(0)), "it has not answered yet");
        assert!(!prober.is_unresponsive(at(900)) && prober.is_unresponsive(at(1000)), "nobody knows");
        prober.on_probe_reply(at(150), 1);
        assert!(prober.is_alive(at(150)));
        prober.on_wanted(at(200));
        prober.tick(at(200), &mut outputs);
        assert!(prober.is_alive(at(1100)) && !prober.is_alive(at(1200)));
        assert!(prober.is_down(at(1200)) && !prober.is_unresponsive(at(1200)), "it has answered before");
        for n in 1..20 {
            prober.tick(at(200 * n), &mut outputs);
        }
        assert_eq!(prober.deadline(), None, "a second after the last wish");
        assert!(outputs.len() < 9);
    }
}
