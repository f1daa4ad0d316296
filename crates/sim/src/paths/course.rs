//! What a link carries towards the client at every moment, known from the start.
//!
//! In: a link's line and the events that name it. Out: a [`Course`]: when so many bytes that begin now are through, and
//! whether what is through then arrives.
//!
//! 1. Rates are of IP packets, as in [`crate::spec`]; a trace is taken in bins of [`BIN`], an 802.11 medium at the rate
//!    of one station alone.
//! 2. `hold` and a rate of zero keep what waits; `down` swallows it, silently ([`Course::works`]).
//! 3. Losses, delays and uplinks do not change on the way here: `loss=`, `rtt=`, `jitter=` and `up=` events are left out.
//!
//! Packets are not served one after another from a running queue, as [`crate::link`] does it, because nothing here asks
//! for more than when each one leaves; and that is a sum over a known curve.

use marline_core::units::{Bitrate, DataSize, Duration, Instant};

use crate::medium::Medium;
use crate::optimum::Supply;
use crate::spec::{Carrier, Change, Event, LinkSpec};

/// Rates by time.
#[derive(Clone, Debug)]
pub struct Course {
    /// By time; the first begins at zero, the last one holds for ever.
    steps: Vec<(Instant, Bitrate)>,
    /// When everything vanishes: from, to.
    gone: Vec<(Instant, Instant)>,
}

/// A trace's opportunities are summed over so long: below every round trip here.
const BIN: Duration = Duration::from_millis(20);

impl Course {
    /// The downlink of a link under the events that name it, up to `horizon`; after that as at the end.
    ///
    /// # Panics
    /// When the link names a trace that was not loaded ([`LinkSpec::load`]).
    pub fn new(link: &LinkSpec, events: &[Event], horizon: Duration) -> Self {
        let mut steps = match &link.down {
            Carrier::Rate { first, steps } => {
                let later = steps.iter().map(|(at, rate)| (Instant::ZERO + *at, *rate));
                std::iter::once((Instant::ZERO, *first)).chain(later).collect()
            }
            Carrier::Trace(file) => {
                let trace = crate::link::loaded(file);
                let count = u32::try_from(horizon.as_nanos() / BIN.as_nanos()).unwrap_or(u32::MAX);
                let before = |at: u32| trace.count_before(Instant::ZERO + BIN * at);
                let packet = DataSize::from_bytes(1500);
                let rate = |at: u32| packet * (before(at + 1) - before(at)) / BIN;
                (0..=count).map(|at| (Instant::ZERO + BIN * at, rate(at))).collect()
            }
            Carrier::Medium { preset, phy } => {
                let medium = Medium::new(*preset, [*phy, None], 0, &link.name);
                vec![(Instant::ZERO, medium.solo_rate(0, link.mtu))]
            }
        };
        let mut events: Vec<(Instant, Change)> = events
            .iter()
            .filter(|event| event.link == link.name)
            .map(|event| (Instant::ZERO + event.at, event.change))
            .collect();
        events.sort_by_key(|(at, _)| *at);
        let mut gone: Vec<(Instant, Instant)> = Vec::new();
        let mut held: Vec<(Instant, Instant)> = Vec::new();
        for (at, change) in events {
            match change {
                Change::Rate(rate) => set_from(&mut steps, at, rate),
                Change::Down => open(&mut gone, at),
                Change::Hold => open(&mut held, at),
                Change::Back => {
                    close(&mut gone, at);
                    close(&mut held, at);
                }
                Change::Up(_) | Change::Loss(_) | Change::Rtt(_) | Change::Jitter(_) => {}
            }
        }
        for (from, to) in held {
            hold(&mut steps, from, to);
        }
        Self { steps, gone }
    }

    /// When so many bytes are through that begin at `start`; the far future: never.
    pub fn finish(&self, start: Instant, bytes: u64) -> Instant {
        // Bits times nanoseconds in a second.
        let mut left = u128::from(bytes) * 8 * 1_000_000_000;
        let mut at = start;
        let mut step = self.step_at(start);
        loop {
            let rate = self.steps.get(step).map_or(0, |(_, rate)| rate.bits_per_sec());
            let end = self.steps.get(step + 1).map_or(Instant::FAR_FUTURE, |(end, _)| *end);
            let room = u128::from(rate) * end.since(at).as_nanos();
            if room >= left && rate > 0 {
                let nanos = u64::try_from(left.div_ceil(u128::from(rate))).unwrap_or(u64::MAX);
                return at + Duration::from_nanos(nanos);
            }
            if end == Instant::FAR_FUTURE {
                return Instant::FAR_FUTURE;
            }
            left -= room;
            at = end;
            step += 1;
        }
    }

    /// The rate at a moment, whether anything arrives or not.
    pub fn rate(&self, at: Instant) -> Bitrate {
        self.steps.get(self.step_at(at)).map_or(Bitrate::ZERO, |(_, rate)| *rate)
    }

    /// Whether what is sent at this moment arrives.
    pub fn works(&self, at: Instant) -> bool {
        !self.gone.iter().any(|(from, to)| *from <= at && at < *to)
    }

    /// The mean rate from the start to `until`, what vanishes included.
    pub fn mean(&self, until: Duration) -> Bitrate {
        let end = Instant::ZERO + until;
        let ends = self.steps.iter().skip(1).map(|(at, _)| *at).chain([Instant::FAR_FUTURE]);
        let bits: u128 = self
            .steps
            .iter()
            .zip(ends)
            .map(|((from, rate), to)| u128::from(rate.bits_per_sec()) * to.min(end).since(*from).as_nanos())
            .sum();
        let rate = bits / until.as_nanos().max(1);
        Bitrate::from_bits_per_sec(u64::try_from(rate).unwrap_or(u64::MAX))
    }

    /// The same for a clairvoyant: what of each rate is payload, in steps of `bin` up to `horizon`.
    pub fn supply(&self, payload: f64, bin: Duration, horizon: Duration) -> Supply {
        let count = u32::try_from(horizon.as_nanos().div_ceil(bin.as_nanos().max(1))).unwrap_or(u32::MAX);
        let mut step = 0;
        let rates = (0..count.max(1)).map(|n| {
            let (mut at, end) = (Instant::ZERO + bin * n, Instant::ZERO + bin * (n + 1));
            let mut bits = 0.0;
            while at < end {
                while self.steps.get(step + 1).is_some_and(|(next, _)| *next <= at) {
                    step += 1;
                }
                let next = self.steps.get(step + 1).map_or(Instant::FAR_FUTURE, |(next, _)| *next);
                let gone = self.gone.iter().flat_map(|(from, to)| [*from, *to]).filter(|edge| *edge > at).min();
                let to = end.min(next).min(gone.unwrap_or(Instant::FAR_FUTURE));
                if self.works(at) {
                    let rate = self.steps.get(step).map_or(0, |(_, rate)| rate.bits_per_sec());
                    bits += rate as f64 * to.since(at).as_secs_f64();
                }
                at = to;
            }
            Bitrate::from_bits_per_sec((bits * payload / bin.as_secs_f64()) as u64)
        });
        Supply::stepped(bin, rates)
    }

    fn step_at(&self, at: Instant) -> usize {
        self.steps.partition_point(|(from, _)| *from <= at).saturating_sub(1)
    }
}

/// This rate from `at` on, whatever was to come.
fn set_from(steps: &mut Vec<(Instant, Bitrate)>, at: Instant, rate: Bitrate) {
    steps.retain(|(from, _)| *from < at || at == Instant::ZERO && *from == at);
    match steps.last_mut() {
        Some((from, last)) if *from == at => *last = rate,
        _ => steps.push((at, rate)),
    }
}

/// Nothing from `from` to `to`, and then what would have been.
fn hold(steps: &mut Vec<(Instant, Bitrate)>, from: Instant, to: Instant) {
    let after = steps.iter().rfind(|(at, _)| *at <= to).map_or(Bitrate::ZERO, |(_, rate)| *rate);
    steps.retain(|(at, _)| *at < from || *at > to);
    steps.push((from, Bitrate::ZERO));
    if to < Instant::FAR_FUTURE {
        steps.push((to, after));
    }
    steps.sort_by_key(|(at, _)| *at);
}

fn open(spans: &mut Vec<(Instant, Instant)>, at: Instant) {
    if spans.last().is_none_or(|(_, to)| *to < Instant::FAR_FUTURE) {
        spans.push((at, Instant::FAR_FUTURE));
    }
}

fn close(spans: &mut [(Instant, Instant)], at: Instant) {
    if let Some((_, to)) = spans.last_mut().filter(|(_, to)| *to == Instant::FAR_FUTURE) {
        *to = at;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn course(line: &str, events: &[&str]) -> Course {
        let events: Vec<Event> = events.iter().map(|event| event.parse().unwrap()).collect();
        Course::new(&line.parse().unwrap(), &events, Duration::from_secs(60))
    }

    fn after(course: &Course, ms: u64, bytes: u64) -> u64 {
        course.finish(Instant::from_millis(ms), bytes).as_nanos() / 1_000_000
    }

    #[test]
    fn bytes_leave_by_the_rates_of_their_time() {
        let course = course("wifi,rate=8Mbit/s,steps=1s:4Mbit/s+2s:16Mbit/s,rtt=20ms", &[]);
        assert_eq!(after(&course, 0, 500_000), 500);
        assert_eq!(after(&course, 500, 1_000_000), 2000);
        assert_eq!(after(&course, 500, 3_000_000), 3000);
        assert_eq!(course.mean(Duration::from_secs(2)), Bitrate::from_mbps(6));
    }

    #[test]
    fn a_hold_delays_and_a_death_swallows() {
        let course = course("lte,rate=8Mbit/s,rtt=50ms", &["1s:lte=hold", "3s:lte=up", "5s:lte=down", "6s:lte=up"]);
        assert_eq!(after(&course, 500, 1_000_000), 3500);
        assert!(course.works(Instant::from_millis(2000)) && !course.works(Instant::from_millis(5500)));
        assert!(course.works(Instant::from_millis(6000)));
        let supply = course.supply(1.0, Duration::from_secs(1), Duration::from_secs(8));
        assert!((supply.carried(8.0) - 8e6 * 5.0).abs() < 1.0, "{}", supply.carried(8.0));
    }

    #[test]
    fn what_never_ends_says_so() {
        let course = course("lte,rate=8Mbit/s,rtt=50ms", &["1s:lte=rate=0bit/s"]);
        assert_eq!(after(&course, 0, 900_000), 900);
        assert_eq!(course.finish(Instant::from_millis(1500), 1), Instant::FAR_FUTURE);
    }
}
