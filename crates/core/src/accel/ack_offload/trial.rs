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
pub(in crate::accel) struct Moment {
    pub(in crate::accel) now: Instant,
    /// All that it has brought.
    pub(in crate::accel) total: DataSize,
    /// How long its newest packet has waited; none: that is not known.
    pub(in crate::accel) queue: Option<Duration>,
    /// The longest wait of late.
    pub(in crate::accel) longest: Duration,
    /// Its round trip without waiting, by the first way.
    pub(in crate::accel) rtt: Duration,
    /// How much longer the other way is, if that is known.
    pub(in crate::accel) extra: Option<Duration>,
    /// It has enough on its way.
    pub(in crate::accel) fits: bool,
    /// It has found its window: something was missing once, or it has been going for long.
    pub(in crate::accel) has_started: bool,
    /// Nothing has been missing for so long that offload may begin.
    pub(in crate::accel) is_calm: bool,
    /// Nothing has been missing for a moment.
    pub(in crate::accel) is_quiet: bool,
    /// Holes are too many.
    pub(in crate::accel) is_strained: bool,
    /// The second link answers.
    pub(in crate::accel) is_ready: bool,
}

/// Whether one flow has help by trial.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::accel) struct Trial {
    phase: Phase,
    /// Trials so far.
    tried: u32,
}

#[derive(Clone, Copy, Debug, Default)]
enum Phase {
    #[default]
    New,
    /// Off; what it brings is measured.
    Before { since: Instant, stood: Standing, from: Mark },
    /// On; `from` is set when it has had time to show in means.
    With { since: Instant, before: Before, stood: Standing, check: Option<Mark>, from: Option<Mark> },
    /// Off once more; `with` is what it brought before.
    Without { since: Instant, from: Option<Mark>, with: Bitrate },
    /// Decided.
    Decided { on: bool, until: Instant },
    /// The second link was not there.
    Alone { until: Instant },
}

/// What it brought without help, and whether that is a rate behind a queue.
#[derive(Clone, Copy, Debug)]
struct Before {
    rate: Bitrate,
    stood: bool,
}

/// So many bytes at this time.
#[derive(Clone, Copy, Debug)]
struct Mark {
    at: Instant,
    total: DataSize,
}

/// What came while a queue stood, and for how long it did.
#[derive(Clone, Copy, Debug, Default)]
struct Standing {
    last: Option<Mark>,
    /// The queue at the beginning.
    began: Option<Duration>,
    time: Duration,
    bytes: DataSize,
}

impl Trial {
    /// Whether help is on now. To be asked with each ACK.
    pub(in crate::accel) fn is_on(&mut self, moment: &Moment) -> bool {
        let now = moment.now;
        let mark = Mark { at: now, total: moment.total };
        self.phase = match self.phase {
            Phase::Decided { on: true, .. } | Phase::With { .. } if moment.is_strained => Phase::New,
            Phase::Decided { on, until } if now < until => Phase::Decided { on, until },
            Phase::Alone { until } if now < until => Phase::Alone { until },
            Phase::Before { .. } if moment.is_strained => Phase::New,
            _ if !moment.fits => Phase::New,
            Phase::New | Phase::Decided { .. } | Phase::Alone { .. } if moment.is_calm && moment.has_started => {
                Phase::Before { since: now, stood: Standing::default(), from: mark }
            }
            Phase::New | Phase::Decided { .. } | Phase::Alone { .. } => Phase::New,
            Phase::Before { since, stood, from } => before(moment, mark, since, stood, from),
            Phase::With { since, before, stood, check, from } => {
                self.with(moment, mark, since, before, (stood, check, from))
            }
            Phase::Without { since, from: None, with } => {
                let from = (now.since(since) >= SETTLE).then_some(mark);
                Phase::Without { since, from, with }
            }
            Phase::Without { since, from: Some(from), with } => match from.until(mark, WITHOUT) {
                Some(without) => self.decide(now, is_more(with, without, MEANS)),
                None => Phase::Without { since, from: Some(from), with },
            },
        };
        matches!(self.phase, Phase::With { .. } | Phase::Decided { on: true, .. })
    }

    fn with(
        &mut self,
        moment: &Moment,
        mark: Mark,
        since: Instant,
        before: Before,
        (stood, check, from): (Standing, Option<Mark>, Option<Mark>),
    ) -> Phase {
        let now = moment.now;
        // Bytes behind a hole count when it closes: what is measured lies between two.
        let check = check.filter(|_| moment.is_quiet);
        let checked = check.and_then(|check| check.until(mark, CHECK));
        let least = before.rate.share(if before.stood { HARMED } else { SLOWED });
        if checked.is_some_and(|rate| rate < least) {
            return self.decide(now, false);
        }
        let has_begun = now.since(since) >= GAP;
        let check = if checked.is_some() { None } else { check }.or((moment.is_quiet && has_begun).then_some(mark));
        let stood = stood.on(moment, mark);
        if before.stood && stood.time >= STOOD_WITH {
            return self.decide(now, is_more(stood.rate(), before.rate, STOOD));
        }
        let from = from.or((now.since(since) >= RUN_UP).then_some(mark));
        let mean = from.and_then(|from| from.until(mark, WITH));
        match mean.filter(|_| !before.stood || now.since(since) >= PATIENCE) {
            Some(with) => Phase::Without { since: now, from: None, with },
            None => Phase::With { since, before, stood, check, from },
        }
    }

    fn decide(&mut self, now: Instant, on: bool) -> Phase {
        self.tried += 1;
        Phase::Decided { on, until: now + AGAIN * (1 << self.tried.min(5)) }
    }

    /// What went elsewhere does not arrive.
    pub(in crate::accel) fn fail(&mut self, now: Instant) {
        self.phase = self.decide(now, false);
    }

    /// Whether the second link is to be ready soon.
    pub(in crate::accel) const fn wants_link(&self) -> bool {
        matches!(self.phase, Phase::Before { .. })
    }

    /// Whether it is being found out.
    pub(in crate::accel) const fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Before { .. } | Phase::With { .. })
    }

    /// Whether the second link was not there when it was wanted.
    pub(in crate::accel) const fn is_alone(&self) -> bool {
        matches!(self.phase, Phase::Alone { .. })
    }

    /// Whether it was found that help brings nothing.
    pub(in crate::accel) const fn is_in_vain(&self) -> bool {
        matches!(self.phase, Phase::Decided { on: false, .. })
    }
}

/// Off, until it is known what that brings and a good moment comes.
fn before(moment: &Moment, mark: Mark, since: Instant, stood: Standing, from: Mark) -> Phase {
    let now = moment.now;
    let stood = stood.on(moment, mark);
    if now.since(since) >= PATIENCE && !moment.is_ready {
        return Phase::Alone { until: now + AGAIN };
    }
    let from = if moment.is_quiet { from } else { mark };
    let (stood, from) = if stood.grows(moment) { (Standing::default(), mark) } else { (stood, from) };
    let before = if stood.time >= STOOD_BEFORE {
        let long_enough = moment.queue.is_some_and(|queue| queue >= moment.need());
        long_enough.then(|| Before { rate: stood.rate(), stood: true })
    } else {
        // What stands now is looked at first.
        let from = Some(from).filter(|_| !moment.stands());
        from.and_then(|from| from.until(mark, BEFORE)).map(|rate| Before { rate, stood: false })
    };
    match before.filter(|_| moment.is_ready && moment.is_quiet) {
        Some(before) => Phase::With { since: now, before, stood: Standing::default(), check: None, from: None },
        None => Phase::Before { since, stood, from },
    }
}

/// Whether `more` is above the other by so many percent.
fn is_more(more: Bitrate, less: Bitrate, percent: u64) -> bool {
    more.bits_per_sec() / (100 + percent) >= less.bits_per_sec() / 100
}

impl Moment {
    /// One of which nothing is known.
    pub(in crate::accel) const fn at(now: Instant) -> Self {
        Self {
            now,
            total: DataSize::ZERO,
            queue: None,
            longest: Duration::ZERO,
            rtt: Duration::ZERO,
            extra: None,
            fits: false,
            has_started: false,
            is_calm: false,
            is_quiet: false,
            is_strained: false,
            is_ready: false,
        }
    }

    /// Whether its packets wait.
    fn stands(&self) -> bool {
        self.queue.is_some_and(|queue| queue >= STANDS)
    }

    /// How long the queue is to be for the switch.
    fn need(&self) -> Duration {
        let longer = self.rtt + self.extra.unwrap_or(USUAL);
        let full = (longer * 17 / 20).saturating_sub(self.rtt);
        full.min(self.longest * 3 / 4).max(STANDS)
    }
}

impl Mark {
    /// The rate up to `now`, if that is long enough.
    fn until(self, now: Self, long: Duration) -> Option<Bitrate> {
        let time = now.at.since(self.at);
        (time >= long).then(|| self.bytes(now) / time)
    }

    fn bytes(self, now: Self) -> DataSize {
        DataSize::from_bytes(now.total.bytes().saturating_sub(self.total.bytes()))
    }
}

impl Standing {
    fn on(self, moment: &Moment, mark: Mark) -> Self {
        let Some(queue) = moment.queue.filter(|queue| moment.is_quiet && *queue >= STANDS) else {
            return Self { last: None, ..self };
        };
        let last = self.last.unwrap_or(mark);
        Self {
            last: Some(mark),
            began: self.began.or(Some(queue)),
            time: self.time + mark.at.since(last.at),
            bytes: self.bytes + last.bytes(mark),
        }
    }

    /// Whether the queue grows as that of a sender which has not found its window yet.
    fn grows(&self, moment: &Moment) -> bool {
        let more = moment.queue.zip(self.began).map_or(Duration::ZERO, |(now, began)| now.saturating_sub(began));
        self.time >= STOOD_BEFORE && more >= self.time / STEEP
    }

    fn rate(&self) -> Bitrate {
        self.bytes / self.time.max(Duration::from_millis(1))
    }
}

/// chosen: more than the unevenness of a wireless link, and of ACKs for a dozen segments at 20 Mbit/s.
const STANDS: Duration = Duration::from_millis(10);
/// chosen: some hundred packets.
const STOOD_BEFORE: Duration = Duration::from_millis(400);
/// The queue's time in which it has grown by one part. chosen: a window that doubles each round trip fills a queue in half of
/// the time or less; one of 20 segments that grows by one, in twenty round trips by one.
const STEEP: u32 = 10;
const STOOD_WITH: Duration = Duration::from_millis(1000);
/// Percent that it is to gain. chosen: what a queue lets through wavers by one.
const STOOD: u64 = 2;
/// chosen: means of seconds waver by some.
const MEANS: u64 = 5;
/// Between an access point and a mobile link.
const USUAL: Duration = Duration::from_millis(50);
/// chosen: longer than a window takes to fill a queue at most, where it fills one.
const BEFORE: Duration = Duration::from_secs(3);
/// chosen: the time between two losses of CUBIC at 20 Mbit/s and 100 ms, and some more.
const PATIENCE: Duration = Duration::from_secs(12);
/// chosen: ACKs of the longer way are all there then.
const GAP: Duration = Duration::from_millis(300);
/// chosen: a longer way shows within two of its round trips.
const CHECK: Duration = Duration::from_millis(500);
/// chosen: more than a loss takes from CUBIC.
const HARMED: Ratio = Ratio::from_percent(70);
/// chosen: more than means of half a second waver; a flow without a queue is slower by the longer way, if at all, and
/// stays so.
const SLOWED: Ratio = Ratio::from_percent(85);
/// chosen: the window has grown into the longer way by then.
const RUN_UP: Duration = Duration::from_secs(4);
const WITH: Duration = Duration::from_secs(4);
/// chosen: longer than a line takes to fade ([`super::ack_path`]), and a round trip.
const SETTLE: Duration = Duration::from_millis(4500);
const WITHOUT: Duration = Duration::from_secs(2);
/// chosen: doubled with each trial, from a minute to half an hour.
const AGAIN: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    /// A flow of so many Mbit/s with and without help behind a queue of so many ms, asked every 10 ms: for how many of 60
    /// seconds help was on; at the end, and whether it is called vain.
    fn run(with: u64, without: u64, queue: u64, holes: bool) -> (u64, bool, bool) {
        let (mut trial, mut total, mut on, mut is_on) = (Trial::default(), 0, 0, false);
        for n in 0..6000 {
            let queue = Duration::from_millis(queue);
            let is_quiet = !holes || n % 300 > 50;
            is_on = trial.is_on(&Moment {
                now: Instant::from_millis(n * 10),
                total: DataSize::from_bytes(total),
                queue: Some(queue),
                longest: queue,
                rtt: Duration::from_millis(50),
                extra: None,
                fits: true,
                has_started: true,
                is_calm: is_quiet,
                is_quiet,
                is_strained: false,
                is_ready: true,
            });
            // Bytes behind a hole come at once when it closes.
            total += if is_on { with } else { without } * if is_quiet { 1250 } else { 0 };
            total += if holes && n % 300 == 50 { 50 * without * 1250 } else { 0 };
            on += u64::from(is_on);
        }
        (on / 100, is_on, trial.is_in_vain())
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
        let mut trial = Trial::default();
        let first = |queue: fn(u64) -> u64, trial: &mut Trial| {
            let ask = |ms: &u64| {
                trial.is_on(&Moment {
                    total: DataSize::from_bytes(ms * 2500),
                    queue: Some(Duration::from_millis(queue(*ms))),
                    longest: Duration::from_millis(400),
                    rtt: Duration::from_millis(50),
                    fits: true,
                    has_started: true,
                    is_calm: true,
                    is_quiet: true,
                    is_ready: true,
                    ..Moment::at(Instant::from_millis(*ms))
                })
            };
            (0..3300).find(ask)
        };
        // 100 ms in 400, up to a second; the switch then waits for 400 ms in which it stands.
        let begins = first(|ms| 60 + ms.min(1000) / 4, &mut trial).unwrap();
        assert!((1400..1900).contains(&begins), "{begins}");
        // One that begins late is no reason to go by a mean of before.
        let late = |ms: u64| if ms < 2700 { 0 } else { 60 + (ms - 2700) / 4 };
        assert_eq!(first(late, &mut Trial::default()), None);
        let begins = first(|ms| 60 + ms / 20, &mut Trial::default()).unwrap();
        assert!((400..450).contains(&begins), "{begins}");
    }

    #[test]
    fn a_flow_that_may_be_in_its_start_is_waited_for() {
        let mut trial = Trial::default();
        let mut ask = |ms: u64, has_started: bool| {
            trial.is_on(&Moment {
                total: DataSize::from_bytes(ms * 2500),
                queue: Some(Duration::from_millis(60)),
                longest: Duration::from_millis(60),
                rtt: Duration::from_millis(50),
                fits: true,
                has_started,
                is_calm: true,
                is_quiet: true,
                is_ready: true,
                ..Moment::at(Instant::from_millis(ms))
            })
        };
        assert!(!(0..4000).any(|ms| ask(ms, false)));
        assert!((4000..4500).any(|ms| ask(ms, true)));
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
        let moment = |longest, extra| Moment {
            longest: Duration::from_millis(longest),
            rtt: Duration::from_millis(50),
            extra: Some(Duration::from_millis(extra)),
            ..Moment::at(Instant::ZERO)
        };
        let need = |longest, extra| moment(longest, extra).need().as_millis();
        assert_eq!((need(100, 50), need(100, 75), need(40, 75), need(4, 75)), (35, 56, 30, 10));
    }
}
