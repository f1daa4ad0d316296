//! Lower bound of transfer times: the earliest time at which the links could have carried a given amount of
//! payload.
//!
//! [`ideal_time`] returns a duration that no client can beat.
//!
//! 1. The capacity of a link is its downlink rate × payload share × (1 − mean loss). The payload share is 1448 of
//!    1500 bytes at an MTU of 1500 (52 bytes of IPv4 and TCP headers with timestamps), and 1448 bytes per
//!    opportunity of a trace.
//! 2. Steps and events count: nothing is carried at rate zero, when down or when held.
//! 3. Nothing else counts: no latency, no handshake, no slow start, no queue, no policer. On an 802.11 channel the rate is that
//!    of a single station, so the airtime of acknowledgements is left out.
//!
//! The sum of the rates is no useful reference when rates change; the ratio of the measured time to this bound is.

use std::sync::Arc;

use marline_core::units::{Bitrate, DataSize, Duration};

use crate::spec::{Downlink, LinkEvent, LinkEventKind, LinkSpec};
use crate::trace::Trace;
use crate::wifi_mac::WifiChannel;

/// Cumulative payload capacity of one link.
#[derive(Clone, Debug)]
pub struct PayloadCurve {
    /// In order of time; the first segment starts at zero.
    segments: Vec<CurveSegment>,
}

#[derive(Clone, Debug)]
struct CurveSegment {
    start: Duration,
    /// Bytes carried before the segment.
    carried_before: f64,
    rate: SegmentRate,
    /// Share of the transmitted bytes that is payload and arrives.
    payload_share: f64,
}

#[derive(Clone, Debug)]
enum SegmentRate {
    Zero,
    Rate(Bitrate),
    Trace(Arc<Trace>),
}

impl PayloadCurve {
    /// Payload curve of a link's downlink, under the events that name this link.
    ///
    /// # Panics
    /// If the link uses a trace that was not loaded with [`LinkSpec::load`].
    pub fn new(link: &LinkSpec, events: &[LinkEvent]) -> Self {
        let mut changes: Vec<(Duration, LinkEventKind)> =
            events.iter().filter(|event| event.link == link.name).map(|event| (event.at, event.change)).collect();
        let mut segment_rate = match &link.downlink {
            Downlink::Rate { initial: first, steps } => {
                changes.extend(steps.iter().map(|(at, rate)| (*at, LinkEventKind::Rate(*rate))));
                SegmentRate::Rate(*first)
            }
            Downlink::Trace(file) => SegmentRate::Trace(crate::link::loaded_trace(file)),
            Downlink::Wifi { preset, phy } => SegmentRate::Rate(solo_rate(*preset, *phy, link)),
        };
        changes.sort_by_key(|(at, _)| *at);
        let mut loss = link.loss;
        let (mut is_down, mut is_held) = (false, false);
        let mut curve = Self { segments: Vec::new() };
        curve.push_segment(Duration::ZERO, &segment_rate, link, loss.mean().as_f64());
        for (at, change) in changes {
            match change {
                LinkEventKind::Rate(rate) => {
                    segment_rate = SegmentRate::Rate(match &link.downlink {
                        Downlink::Wifi { preset, .. } => solo_rate(*preset, Some(rate), link),
                        _ => rate,
                    });
                }
                LinkEventKind::Down => is_down = true,
                LinkEventKind::Hold => is_held = true,
                LinkEventKind::Restore => (is_down, is_held) = (false, false),
                LinkEventKind::Loss(new) => loss = new,
                LinkEventKind::UplinkRate(_) | LinkEventKind::Rtt(_) | LinkEventKind::Jitter(_) => continue,
            }
            let current_rate = if is_down || is_held { &SegmentRate::Zero } else { &segment_rate };
            curve.push_segment(at, current_rate, link, loss.mean().as_f64());
        }
        curve
    }

    /// Payload carried from the start until `at`, rounded down.
    pub fn carried(&self, at: Duration) -> DataSize {
        DataSize::from_bytes(self.carried_f64(at) as u64)
    }

    fn push_segment(&mut self, start: Duration, rate: &SegmentRate, link: &LinkSpec, loss: f64) {
        let carried_before = if self.segments.is_empty() { 0.0 } else { self.carried_f64(start) };
        let mtu = link.mtu.bytes() as f64;
        let payload_share = match rate {
            SegmentRate::Trace(_) => 1.0 - loss,
            _ => (mtu - 52.0) / mtu * (1.0 - loss),
        };
        self.segments.push(CurveSegment { start, carried_before, rate: rate.clone(), payload_share });
    }

    fn carried_f64(&self, at: Duration) -> f64 {
        let index = self.segments.partition_point(|segment| segment.start <= at).saturating_sub(1);
        self.segments.get(index).map_or(0.0, |segment| {
            let sent = match &segment.rate {
                SegmentRate::Zero => 0.0,
                SegmentRate::Rate(rate) => {
                    rate.bits_per_sec() as f64 / 8.0 * at.saturating_sub(segment.start).as_secs_f64()
                }
                SegmentRate::Trace(trace) => trace.capacity(segment.start, at).bytes() as f64,
            };
            segment.carried_before + sent * segment.payload_share
        })
    }
}

/// The earliest time at which the links together have carried `size` bytes of payload; `None` if that takes more
/// than ten years.
///
/// # Panics
/// If a link uses a trace that was not loaded with [`LinkSpec::load`].
pub fn ideal_time(links: &[LinkSpec], events: &[LinkEvent], size: DataSize) -> Option<Duration> {
    let curves: Vec<PayloadCurve> = links.iter().map(|link| PayloadCurve::new(link, events)).collect();
    let covered = |at: u64| {
        let at = Duration::from_nanos(at);
        curves.iter().map(|curve| curve.carried_f64(at)).sum::<f64>() >= size.bytes() as f64
    };
    if covered(0) {
        return Some(Duration::ZERO);
    }
    let limit = 10 * 365 * 86_400 * 1_000_000_000;
    let mut covered_at = 1_000_000;
    while !covered(covered_at) {
        if covered_at >= limit {
            return None;
        }
        covered_at = (covered_at * 2).min(limit);
    }
    // Bisection works because the curves never fall: `size` is not covered at `uncovered_at`, but at `covered_at`.
    let mut uncovered_at = 0;
    while covered_at - uncovered_at > 1 {
        let middle = uncovered_at + (covered_at - uncovered_at) / 2;
        if covered(middle) { covered_at = middle } else { uncovered_at = middle }
    }
    Some(Duration::from_nanos(covered_at))
}

fn solo_rate(preset: crate::wifi_mac::WifiPreset, phy: Option<Bitrate>, link: &LinkSpec) -> Bitrate {
    WifiChannel::new(preset, [phy, None], 0, &link.name).solo_rate(0, link.mtu)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn links(written: &[&str]) -> Vec<LinkSpec> {
        written.iter().map(|line| line.parse().unwrap()).collect()
    }

    fn events(written: &[&str]) -> Vec<LinkEvent> {
        written.iter().map(|line| line.parse().unwrap()).collect()
    }

    const FILE: DataSize = DataSize::from_bytes(100_000_000);

    #[test]
    fn the_lower_bounds_of_the_benchmark_cases_are_as_computed_by_hand() {
        let cells: [(&str, [&str; 2], &[&str], f64); 9] = [
            ("a", ["wlan0,rate=80Mbit/s,rtt=20ms", "lte0,rate=61Mbit/s,rtt=50ms"], &[], 5.88),
            ("b", ["wlan0,rate=8Mbit/s,rtt=20ms", "lte0,rate=61Mbit/s,rtt=50ms"], &[], 12.01),
            ("c", ["wlan0,rate=30Mbit/s,rtt=20ms", "lte0,rate=30Mbit/s,rtt=60ms"], &[], 13.81),
            ("d", ["wlan0,rate=50Mbit/s,rtt=20ms", "lte0,rate=5Mbit/s,rtt=100ms"], &[], 15.07),
            ("e", ["wlan0,rate=300Mbit/s,rtt=30ms", "lte0,rate=100Mbit/s,rtt=60ms"], &[], 2.07),
            ("f", ["wlan0,rate=20Mbit/s,rtt=30ms,loss=0.5%", "lte0,rate=20Mbit/s,rtt=60ms"], &[], 20.77),
            ("h", ["wlan0,rate=40Mbit/s,rtt=20ms", "lte0,rate=30Mbit/s,rtt=50ms"], &["3s:wlan0=down"], 23.62),
            (
                "i",
                ["wlan0,rate=40Mbit/s,rtt=20ms", "lte0,rate=30Mbit/s,rtt=50ms"],
                &["3s:wlan0=down", "8s:wlan0=up"],
                14.70,
            ),
            (
                "j",
                ["wlan0,rate=40Mbit/s,rtt=20ms", "lte0,rate=30Mbit/s,rtt=50ms"],
                &["3s:wlan0=rate=2Mbit/s"],
                22.34,
            ),
        ];
        for (cell, written, event_texts, expected) in cells {
            let computed = ideal_time(&links(&written), &events(event_texts), FILE).unwrap().as_secs_f64();
            assert!((computed - expected).abs() < 0.02, "{cell}: {computed} instead of {expected}");
        }
    }

    #[test]
    fn steps_and_events_give_equal_curves() {
        let stepped = links(&["w,rate=40Mbit/s,steps=3s:2Mbit/s"]);
        let changed = links(&["w,rate=40Mbit/s"]);
        let size = DataSize::from_bytes(20_000_000);
        assert_eq!(ideal_time(&stepped, &[], size), ideal_time(&changed, &events(&["3s:w=rate=2Mbit/s"]), size));
    }

    #[test]
    fn an_impossible_transfer_has_no_lower_bound() {
        let dead = links(&["w,rate=40Mbit/s"]);
        assert_eq!(ideal_time(&dead, &events(&["1s:w=hold"]), FILE), None);
        assert_eq!(ideal_time(&[], &[], FILE), None);
        assert_eq!(ideal_time(&[], &[], DataSize::ZERO), Some(Duration::ZERO));
        assert_eq!(ideal_time(&dead, &events(&["0s:w=loss=100%"]), FILE), None);
    }

    #[test]
    fn the_curve_of_a_trace_counts_its_opportunities() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("one.down"), "1\n2\n3\n4\n").unwrap();
        let mut link: LinkSpec = "lte,trace=one.down,loss=50%".parse().unwrap();
        link.load(&[dir.path().to_path_buf()]).unwrap();
        let curve = PayloadCurve::new(&link, &events(&["8ms:lte=down", "12ms:lte=up", "16ms:lte=rate=12Mbit/s"]));
        let at = |ms| curve.carried(Duration::from_millis(ms)).bytes();
        // An opportunity counts only when its millisecond has passed.
        assert_eq!((at(0), at(2), at(5)), (0, 724, 4 * 724));
        assert_eq!((at(8), at(12), at(13)), (7 * 724, 7 * 724, 8 * 724));
        // 12 Mbit/s are one packet of 1500 bytes per millisecond.
        assert_eq!((at(16), at(20)), (11 * 724, 15 * 724));
        let ideal = ideal_time(&[link], &[], DataSize::from_bytes(724)).unwrap();
        assert!(ideal > Duration::from_millis(1) && ideal < Duration::from_micros(1001));
    }

    #[test]
    fn the_lower_bound_of_a_recorded_pair_of_traces_is_known() {
        let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces");
        let mut pair =
            links(&["wlan0,trace=solis-campus-231115-203027.up", "lte0,trace=umn-4g-driving-50087-dr.down"]);
        for link in &mut pair {
            if let Err(error) = link.load(std::slice::from_ref(&dir)) {
                eprintln!("skipped: {error}");
                return;
            }
        }
        // The lab's baseline, case g4.
        let computed = ideal_time(&pair, &[], FILE).unwrap().as_secs_f64();
        assert!((computed - 24.50).abs() < 0.05, "{computed}");
    }
}
