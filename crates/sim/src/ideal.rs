//! The earliest moment at which links could have carried so many bytes of payload.
//!
//! In: links, what happens to them, a size. Out: a duration that no client can beat.
//!
//! 1. A link's capacity is what its downlink carries × payload share × (1 − mean loss): 1448 of 1500 bytes at MTU 1500
//!    (IPv4 and TCP headers with timestamps: 52 bytes), of each opportunity 1448 bytes.
//! 2. Steps and events count: at rate zero, `down` and `hold` nothing is carried.
//! 3. Nothing else counts: no latency, no handshake, no slow start, no queue. On an 802.11 medium the rate is that of
//!    one station alone, so the ideal leaves out what acknowledgements cost.
//!
//! "Sum of rates" was not used as the yardstick because it says nothing when rates change; time divided by ideal does.

use std::sync::Arc;

use marline_core::units::{Bitrate, DataSize, Duration};

use crate::medium::Medium;
use crate::spec::{Carrier, Change, Event, LinkSpec};
use crate::trace::Trace;

/// What one link could have carried by each moment.
#[derive(Clone, Debug)]
pub struct Curve {
    /// By start; the first starts at zero.
    pieces: Vec<Piece>,
}

#[derive(Clone, Debug)]
struct Piece {
    start: Duration,
    /// Bytes carried before it.
    before: f64,
    pace: Pace,
    /// Share of what is sent that is payload and arrives.
    useful: f64,
}

#[derive(Clone, Debug)]
enum Pace {
    Nothing,
    Rate(Bitrate),
    Trace(Arc<Trace>),
}

impl Curve {
    /// The payload curve of a link's downlink under the events that name it.
    ///
    /// # Panics
    /// When the link names a trace that was not loaded ([`LinkSpec::load`]).
    pub fn new(link: &LinkSpec, events: &[Event]) -> Self {
        let mut changes: Vec<(Duration, Change)> =
            events.iter().filter(|event| event.link == link.name).map(|event| (event.at, event.change)).collect();
        let mut pace = match &link.down {
            Carrier::Rate { first, steps } => {
                changes.extend(steps.iter().map(|(at, rate)| (*at, Change::Rate(*rate))));
                Pace::Rate(*first)
            }
            Carrier::Trace(file) => Pace::Trace(crate::link::loaded(file)),
            Carrier::Medium { preset, phy } => Pace::Rate(solo(*preset, *phy, link)),
        };
        changes.sort_by_key(|(at, _)| *at);
        let mut loss = link.loss;
        let (mut down, mut held) = (false, false);
        let mut curve = Self { pieces: Vec::new() };
        curve.add(Duration::ZERO, &pace, link, loss.mean().as_f64());
        for (at, change) in changes {
            match change {
                Change::Rate(rate) => {
                    pace = Pace::Rate(match &link.down {
                        Carrier::Medium { preset, .. } => solo(*preset, Some(rate), link),
                        _ => rate,
                    });
                }
                Change::Down => down = true,
                Change::Hold => held = true,
                Change::Back => (down, held) = (false, false),
                Change::Loss(new) => loss = new,
                Change::Up(_) | Change::Rtt(_) | Change::Jitter(_) => continue,
            }
            let now = if down || held { &Pace::Nothing } else { &pace };
            curve.add(at, now, link, loss.mean().as_f64());
        }
        curve
    }

    /// Payload carried by `at`, rounded down.
    pub fn at(&self, at: Duration) -> DataSize {
        DataSize::from_bytes(self.carried(at) as u64)
    }

    fn add(&mut self, start: Duration, pace: &Pace, link: &LinkSpec, loss: f64) {
        let before = if self.pieces.is_empty() { 0.0 } else { self.carried(start) };
        let mtu = link.mtu.bytes() as f64;
        let useful = match pace {
            Pace::Trace(_) => 1.0 - loss,
            _ => (mtu - 52.0) / mtu * (1.0 - loss),
        };
        self.pieces.push(Piece { start, before, pace: pace.clone(), useful });
    }

    fn carried(&self, at: Duration) -> f64 {
        let last = self.pieces.partition_point(|piece| piece.start <= at).saturating_sub(1);
        self.pieces.get(last).map_or(0.0, |piece| {
            let sent = match &piece.pace {
                Pace::Nothing => 0.0,
                Pace::Rate(rate) => rate.bits_per_sec() as f64 / 8.0 * at.saturating_sub(piece.start).as_secs_f64(),
                Pace::Trace(trace) => trace.capacity(piece.start, at).bytes() as f64,
            };
            piece.before + sent * piece.useful
        })
    }
}

/// The earliest time at which the links' summed payload capacity covers `size`; none if it never does within ten
/// years.
///
/// # Panics
/// When a link names a trace that was not loaded ([`LinkSpec::load`]).
pub fn ideal(links: &[LinkSpec], events: &[Event], size: DataSize) -> Option<Duration> {
    let curves: Vec<Curve> = links.iter().map(|link| Curve::new(link, events)).collect();
    let covered = |at: u64| {
        let at = Duration::from_nanos(at);
        curves.iter().map(|curve| curve.carried(at)).sum::<f64>() >= size.bytes() as f64
    };
    if covered(0) {
        return Some(Duration::ZERO);
    }
    let most = 10 * 365 * 86_400 * 1_000_000_000;
    let mut enough = 1_000_000;
    while !covered(enough) {
        if enough >= most {
            return None;
        }
        enough = (enough * 2).min(most);
    }
    // The curves never fall, so halving finds the one moment: not covered at `short`, covered at `enough`.
    let mut short = 0;
    while enough - short > 1 {
        let middle = short + (enough - short) / 2;
        if covered(middle) { enough = middle } else { short = middle }
    }
    Some(Duration::from_nanos(enough))
}

fn solo(preset: crate::medium::Preset, phy: Option<Bitrate>, link: &LinkSpec) -> Bitrate {
    Medium::new(preset, [phy, None], 0, &link.name).solo_rate(0, link.mtu)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn links(written: &[&str]) -> Vec<LinkSpec> {
        written.iter().map(|line| line.parse().unwrap()).collect()
    }

    fn events(written: &[&str]) -> Vec<Event> {
        written.iter().map(|line| line.parse().unwrap()).collect()
    }

    const FILE: DataSize = DataSize::from_bytes(100_000_000);

    #[test]
    fn the_measured_table_has_these_ideals() {
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
        for (cell, written, happens, expected) in cells {
            let ours = ideal(&links(&written), &events(happens), FILE).unwrap().as_secs_f64();
            assert!((ours - expected).abs() < 0.02, "{cell}: {ours} instead of {expected}");
        }
    }

    #[test]
    fn steps_and_events_say_the_same() {
        let stepped = links(&["w,rate=40Mbit/s,steps=3s:2Mbit/s"]);
        let changed = links(&["w,rate=40Mbit/s"]);
        let size = DataSize::from_bytes(20_000_000);
        assert_eq!(ideal(&stepped, &[], size), ideal(&changed, &events(&["3s:w=rate=2Mbit/s"]), size));
    }

    #[test]
    fn what_never_comes_is_none() {
        let dead = links(&["w,rate=40Mbit/s"]);
        assert_eq!(ideal(&dead, &events(&["1s:w=hold"]), FILE), None);
        assert_eq!(ideal(&[], &[], FILE), None);
        assert_eq!(ideal(&[], &[], DataSize::ZERO), Some(Duration::ZERO));
        assert_eq!(ideal(&dead, &events(&["0s:w=loss=100%"]), FILE), None);
    }

    #[test]
    fn a_curve_over_a_trace_counts_its_opportunities() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("one.down"), "1\n2\n3\n4\n").unwrap();
        let mut link: LinkSpec = "lte,trace=one.down,loss=50%".parse().unwrap();
        link.load(&[dir.path().to_path_buf()]).unwrap();
        let curve = Curve::new(&link, &events(&["8ms:lte=down", "12ms:lte=up", "16ms:lte=rate=12Mbit/s"]));
        let at = |ms| curve.at(Duration::from_millis(ms)).bytes();
        // Opportunities of a millisecond count once it has passed.
        assert_eq!((at(0), at(2), at(5)), (0, 724, 4 * 724));
        assert_eq!((at(8), at(12), at(13)), (7 * 724, 7 * 724, 8 * 724));
        // 12 Mbit/s is one packet of 1500 bytes a millisecond.
        assert_eq!((at(16), at(20)), (11 * 724, 15 * 724));
        let whole = ideal(&[link], &[], DataSize::from_bytes(724)).unwrap();
        assert!(whole > Duration::from_millis(1) && whole < Duration::from_micros(1001));
    }

    #[test]
    fn the_measured_trace_pair_has_this_ideal() {
        let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces");
        let mut pair =
            links(&["wlan0,trace=solis-campus-231115-203027.up", "lte0,trace=umn-4g-driving-50087-dr.down"]);
        for link in &mut pair {
            if let Err(error) = link.load(std::slice::from_ref(&dir)) {
                eprintln!("skipped: {error}");
                return;
            }
        }
        // baselines of the lab, cell g4
        let ours = ideal(&pair, &[], FILE).unwrap().as_secs_f64();
        assert!((ours - 24.50).abs() < 0.05, "{ours}");
    }
}
