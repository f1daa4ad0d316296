//! Rate of a link towards the client over time, known from the start.
//!
//! From a link and the events that name it, a [`RateSchedule`] computes when a number of bytes has been
//! transmitted, and whether what is transmitted then arrives.
//!
//! 1. Rates count IP packets, as in [`crate::spec`]. A trace is averaged over bins of `TRACE_BIN`, and an 802.11
//!    channel has the rate of a single station.
//! 2. `hold` and a rate of zero delay queued packets; `down` loses them without any signal
//!    ([`RateSchedule::is_up`]).
//! 3. Loss, delay and the uplink are constant here: events with `loss=`, `rtt=`, `jitter=` and `up=` are ignored.
//!
//! Unlike [`crate::link`], this module does not run a queue packet by packet. Its users need only the departure
//! times, and these follow from a sum over a known curve.

use marline_core::units::{Bitrate, DataSize, Duration, Instant};

use crate::clairvoyant::CapacityCurve;
use crate::spec::{Downlink, LinkEvent, LinkEventKind, LinkSpec};
use crate::wifi_mac::WifiChannel;

/// Rates over time, with outages.
#[derive(Clone, Debug)]
pub struct RateSchedule {
    /// In order of time; the first step starts at zero, the last one holds forever.
    steps: Vec<(Instant, Bitrate)>,
    /// Start and end of each period in which everything is lost.
    outages: Vec<(Instant, Instant)>,
}

/// Bin in which a trace's opportunities are averaged: shorter than every RTT in these simulations.
const TRACE_BIN: Duration = Duration::from_millis(20);

impl RateSchedule {
    /// Downlink of a link under the events that name it, up to `horizon`; afterwards the last rate holds.
    ///
    /// # Panics
    /// If the link uses a trace that was not loaded with [`LinkSpec::load`].
    pub fn new(link: &LinkSpec, events: &[LinkEvent], horizon: Duration) -> Self {
        let mut steps = match &link.downlink {
            Downlink::Rate { initial: first, steps } => {
                let later_steps = steps.iter().map(|(at, rate)| (Instant::ZERO + *at, *rate));
                std::iter::once((Instant::ZERO, *first)).chain(later_steps).collect()
            }
            Downlink::Trace(file) => {
                let trace = crate::link::loaded_trace(file);
                let count = u32::try_from(horizon.as_nanos() / TRACE_BIN.as_nanos()).unwrap_or(u32::MAX);
                let before = |at: u32| trace.count_before(Instant::ZERO + TRACE_BIN * at);
                let packet = DataSize::from_bytes(1500);
                let rate = |at: u32| packet * (before(at + 1) - before(at)) / TRACE_BIN;
                (0..=count).map(|at| (Instant::ZERO + TRACE_BIN * at, rate(at))).collect()
            }
            Downlink::Wifi { preset, phy } => {
                let channel = WifiChannel::new(*preset, [*phy, None], 0, &link.name);
                vec![(Instant::ZERO, channel.solo_rate(0, link.mtu))]
            }
        };
        let mut events: Vec<(Instant, LinkEventKind)> = events
            .iter()
            .filter(|event| event.link == link.name)
            .map(|event| (Instant::ZERO + event.at, event.change))
            .collect();
        events.sort_by_key(|(at, _)| *at);
        let mut outages: Vec<(Instant, Instant)> = Vec::new();
        let mut holds: Vec<(Instant, Instant)> = Vec::new();
        for (at, change) in events {
            match change {
                LinkEventKind::Rate(rate) => set_rate_from(&mut steps, at, rate),
                LinkEventKind::Down => open_interval(&mut outages, at),
                LinkEventKind::Hold => open_interval(&mut holds, at),
                LinkEventKind::Restore => {
                    close_interval(&mut outages, at);
                    close_interval(&mut holds, at);
                }
                LinkEventKind::UplinkRate(_)
                | LinkEventKind::Loss(_)
                | LinkEventKind::Rtt(_)
                | LinkEventKind::Jitter(_) => {}
            }
        }
        for (from, to) in holds {
            insert_hold(&mut steps, from, to);
        }
        Self { steps, outages }
    }

    /// When `bytes` that start at `start` have been transmitted; [`Instant::FAR_FUTURE`] if never.
    pub fn finish_time(&self, start: Instant, bytes: u64) -> Instant {
        // In bits × nanoseconds per second, so that all divisions are exact.
        let mut bits_left = u128::from(bytes) * 8 * 1_000_000_000;
        let mut at = start;
        let mut step = self.step_index(start);
        loop {
            let rate = self.steps.get(step).map_or(0, |(_, rate)| rate.bits_per_sec());
            let end = self.steps.get(step + 1).map_or(Instant::FAR_FUTURE, |(end, _)| *end);
            let capacity = u128::from(rate) * end.since(at).as_nanos();
            if capacity >= bits_left && rate > 0 {
                let nanos = u64::try_from(bits_left.div_ceil(u128::from(rate))).unwrap_or(u64::MAX);
                return at + Duration::from_nanos(nanos);
            }
            if end == Instant::FAR_FUTURE {
                return Instant::FAR_FUTURE;
            }
            bits_left -= capacity;
            at = end;
            step += 1;
        }
    }

    /// Rate at a given time, regardless of outages.
    pub fn rate_at(&self, at: Instant) -> Bitrate {
        self.steps.get(self.step_index(at)).map_or(Bitrate::ZERO, |(_, rate)| *rate)
    }

    /// Whether a packet transmitted at this time arrives.
    pub fn is_up(&self, at: Instant) -> bool {
        !self.outages.iter().any(|(from, to)| *from <= at && at < *to)
    }

    /// Mean rate from the start until `until`, including what is lost in outages.
    pub fn mean_rate(&self, until: Duration) -> Bitrate {
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

    /// Payload capacity for the clairvoyant optimum, in steps of `bin` up to `horizon`; `payload` is the payload
    /// share.
    pub fn capacity_curve(&self, payload: f64, bin: Duration, horizon: Duration) -> CapacityCurve {
        let count = u32::try_from(horizon.as_nanos().div_ceil(bin.as_nanos().max(1))).unwrap_or(u32::MAX);
        let mut step = 0;
        let rates = (0..count.max(1)).map(|n| {
            let (mut at, end) = (Instant::ZERO + bin * n, Instant::ZERO + bin * (n + 1));
            let mut bits = 0.0;
            // Within a bin the rate changes at the steps and at the boundaries of outages.
            while at < end {
                while self.steps.get(step + 1).is_some_and(|(next, _)| *next <= at) {
                    step += 1;
                }
                let next = self.steps.get(step + 1).map_or(Instant::FAR_FUTURE, |(next, _)| *next);
                let next_edge =
                    self.outages.iter().flat_map(|(from, to)| [*from, *to]).filter(|edge| *edge > at).min();
                let to = end.min(next).min(next_edge.unwrap_or(Instant::FAR_FUTURE));
                if self.is_up(at) {
                    let rate = self.steps.get(step).map_or(0, |(_, rate)| rate.bits_per_sec());
                    bits += rate as f64 * to.since(at).as_secs_f64();
                }
                at = to;
            }
            Bitrate::from_bits_per_sec((bits * payload / bin.as_secs_f64()) as u64)
        });
        CapacityCurve::from_steps(bin, rates)
    }

    fn step_index(&self, at: Instant) -> usize {
        self.steps.partition_point(|(from, _)| *from <= at).saturating_sub(1)
    }
}

/// Sets the rate from `at` on and removes all later steps, also those of the link's `steps=`.
fn set_rate_from(steps: &mut Vec<(Instant, Bitrate)>, at: Instant, rate: Bitrate) {
    steps.retain(|(from, _)| *from < at || at == Instant::ZERO && *from == at);
    match steps.last_mut() {
        Some((from, last)) if *from == at => *last = rate,
        _ => steps.push((at, rate)),
    }
}

/// Sets the rate to zero between `from` and `to`; afterwards the original rates continue.
fn insert_hold(steps: &mut Vec<(Instant, Bitrate)>, from: Instant, to: Instant) {
    let rate_after = steps.iter().rfind(|(at, _)| *at <= to).map_or(Bitrate::ZERO, |(_, rate)| *rate);
    steps.retain(|(at, _)| *at < from || *at > to);
    steps.push((from, Bitrate::ZERO));
    if to < Instant::FAR_FUTURE {
        steps.push((to, rate_after));
    }
    steps.sort_by_key(|(at, _)| *at);
}

fn open_interval(intervals: &mut Vec<(Instant, Instant)>, at: Instant) {
    if intervals.last().is_none_or(|(_, to)| *to < Instant::FAR_FUTURE) {
        intervals.push((at, Instant::FAR_FUTURE));
    }
}

fn close_interval(intervals: &mut [(Instant, Instant)], at: Instant) {
    if let Some((_, to)) = intervals.last_mut().filter(|(_, to)| *to == Instant::FAR_FUTURE) {
        *to = at;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_schedule(line: &str, events: &[&str]) -> RateSchedule {
        let events: Vec<LinkEvent> = events.iter().map(|event| event.parse().unwrap()).collect();
        RateSchedule::new(&line.parse().unwrap(), &events, Duration::from_secs(60))
    }

    fn finish_millis(schedule: &RateSchedule, ms: u64, bytes: u64) -> u64 {
        schedule.finish_time(Instant::from_millis(ms), bytes).as_nanos() / 1_000_000
    }

    #[test]
    fn bytes_are_transmitted_at_the_current_rate() {
        let schedule = parse_schedule("wifi,rate=8Mbit/s,steps=1s:4Mbit/s+2s:16Mbit/s,rtt=20ms", &[]);
        assert_eq!(finish_millis(&schedule, 0, 500_000), 500);
        assert_eq!(finish_millis(&schedule, 500, 1_000_000), 2000);
        assert_eq!(finish_millis(&schedule, 500, 3_000_000), 3000);
        assert_eq!(schedule.mean_rate(Duration::from_secs(2)), Bitrate::from_mbps(6));
    }

    #[test]
    fn a_hold_delays_packets_and_an_outage_loses_them() {
        let schedule =
            parse_schedule("lte,rate=8Mbit/s,rtt=50ms", &["1s:lte=hold", "3s:lte=up", "5s:lte=down", "6s:lte=up"]);
        assert_eq!(finish_millis(&schedule, 500, 1_000_000), 3500);
        assert!(schedule.is_up(Instant::from_millis(2000)) && !schedule.is_up(Instant::from_millis(5500)));
        assert!(schedule.is_up(Instant::from_millis(6000)));
        let supply = schedule.capacity_curve(1.0, Duration::from_secs(1), Duration::from_secs(8));
        assert!((supply.carried_bits(8.0) - 8e6 * 5.0).abs() < 1.0, "{}", supply.carried_bits(8.0));
    }

    #[test]
    fn a_transmission_that_never_ends_finishes_in_the_far_future() {
        let schedule = parse_schedule("lte,rate=8Mbit/s,rtt=50ms", &["1s:lte=rate=0bit/s"]);
        assert_eq!(finish_millis(&schedule, 0, 900_000), 900);
        assert_eq!(schedule.finish_time(Instant::from_millis(1500), 1), Instant::FAR_FUTURE);
    }
}
