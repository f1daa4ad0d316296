//! Compares the clairvoyant optimum with brute force on small cases, with the player model, and with GreenBag's
//! figures.

use marline_core::playback::{BufferThresholds, MediaProfile, Player, PlayerState};
use marline_core::stream::GreenBagRadio;
use marline_core::units::{Bitrate, DataSize, Duration, EnergyPerBit, Instant, Power};

use super::*;
use crate::rng::{Purpose, RandomStream};

fn kbps(kbps: u64) -> Bitrate {
    Bitrate::from_bits_per_sec(kbps * 1000)
}

fn secs(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

/// GreenBag's settings: constant rates in kbit/s, LTE first, start threshold B = 4 MiB.
fn greenbag_case(lte: u64, wifi: u64, video: u64, duration: u64) -> PlaybackCase {
    PlaybackCase {
        links: vec![CapacityCurve::constant(kbps(lte)), CapacityCurve::constant(kbps(wifi))],
        video: MediaProfile::constant(kbps(video), Duration::from_secs(duration)).unwrap(),
        start_threshold: BufferThresholds::GREENBAG.low,
    }
}

const FINE_GRID: Grid = Grid { bin: Duration::from_millis(500), grain: DataSize::from_bytes(2500) };

const RADIOS: [GreenBagRadio; 2] = [GreenBagRadio::GREENBAG_LTE, GreenBagRadio::GREENBAG_WIFI];

#[test]
fn constant_links_have_the_playback_times_of_the_closed_form() {
    let cases = [
        ("3+3, 50 %", greenbag_case(3000, 3000, 3000, 120), 125.6),
        ("3+3, 90 %", greenbag_case(3000, 3000, 5400, 120), 125.6),
        ("3+3, 100 %", greenbag_case(3000, 3000, 6000, 120), 125.6),
        ("3+3, 110 %", greenbag_case(3000, 3000, 6600, 120), 132.0),
        ("3+3, 120 %", greenbag_case(3000, 3000, 7200, 120), 144.0),
        ("stationary 1", greenbag_case(5160, 3850, 6100, 117), 120.7),
        ("stationary 2", greenbag_case(4070, 5000, 6100, 117), 120.7),
        ("mobile", greenbag_case(4720, 4940, 6100, 117), 120.5),
    ];
    for (name, case, expected) in cases {
        let computed = case.min_playback_time().unwrap().as_secs_f64();
        assert!((computed - expected).abs() < 0.06, "{name}: {computed} instead of {expected}");
    }
}

#[test]
fn constant_links_have_the_energies_of_the_closed_form() {
    // Setting, playback time, expected E* and expected lower bound.
    let cases = [
        ("3+3, 50 %", greenbag_case(3000, 3000, 3000, 120), 125.7, 76.1, 75.4),
        ("3+3, 60 %", greenbag_case(3000, 3000, 3600, 120), 125.7, 107.8, 107.1),
        ("3+3, 70 %", greenbag_case(3000, 3000, 4200, 120), 125.7, 157.5, 156.8),
        ("3+3, 80 %", greenbag_case(3000, 3000, 4800, 120), 125.7, 207.2, 206.5),
        ("3+3, 90 %", greenbag_case(3000, 3000, 5400, 120), 125.7, 257.0, 256.3),
        ("3+3, 100 %", greenbag_case(3000, 3000, 6000, 120), 125.7, 306.7, 306.0),
        ("stationary 1", greenbag_case(5160, 3850, 6100, 117), 120.8, 171.6, 170.1),
        ("stationary 2", greenbag_case(4070, 5000, 6100, 117), 120.7, 129.9, 129.2),
        ("mobile", greenbag_case(4720, 4940, 6100, 117), 120.6, 125.6, 124.1),
    ];
    for (name, case, playback, expected, bound) in cases {
        // At 3 Mbit/s a bin carries a whole number of grains; at other rates the bound needs finer grains.
        let grid = if name.starts_with("3+3") { Grid::default() } else { FINE_GRID };
        let optimum = case.min_energy(&RADIOS, secs(playback), grid).unwrap();
        let (computed, low) = (optimum.energy.as_joules_f64(), optimum.lower_bound.as_joules_f64());
        println!("{name:>12}: {computed:6.1} ({low:6.1}), expected {expected} ({bound})");
        assert!((computed - expected).abs() < 0.006 * expected, "{name}: {computed} instead of {expected}");
        assert!((low - bound).abs() < 0.01 * expected, "{name}: bound {low} instead of {bound}");
    }
}

#[test]
fn stationary_2_by_hand() {
    // 110.2 Mbit over LTE, 603.5 Mbit over Wi-Fi, one tail: 56.6 + 58.2 + 15.1 J.
    let case = greenbag_case(4070, 5000, 6100, 117);
    let optimum = case.min_energy(&RADIOS, secs(120.7), Grid::default()).unwrap();
    assert!((optimum.energy.as_joules_f64() - 129.9).abs() < 0.4, "{optimum:?}");
}

#[test]
fn a_video_that_cannot_be_played_in_time_has_no_minimum_energy() {
    let case = greenbag_case(3000, 3000, 6600, 120);
    assert_eq!(case.min_energy(&RADIOS, secs(131.9), Grid::default()), None);
    let dead = PlaybackCase { links: vec![CapacityCurve::from_steps(secs(1.0), [])], ..case.clone() };
    assert_eq!(dead.min_playback_time(), None);
    assert_eq!(PlaybackCase { links: Vec::new(), ..case }.min_playback_time(), None);
}

/// Random rates for a number of steps; some are zero.
fn rates(rng: &mut RandomStream, steps: usize, maximum: u64) -> Vec<Bitrate> {
    (0..steps).map(|_| kbps(1000 * (rng.below(maximum + 1)))).collect()
}

#[test]
fn the_minimum_start_delay_avoids_stalls_and_a_shorter_delay_does_not() {
    let mut rng = RandomStream::new(7, "optimum", 0, Purpose::Other);
    for round in 0..60 {
        let random_curve = |rng: &mut RandomStream| {
            let mut rates = rates(rng, 12, 6);
            rates.push(kbps(2000));
            CapacityCurve::from_steps(secs(1.0), rates)
        };
        let pieces: Vec<(Duration, DataSize)> =
            (0..6).map(|_| (secs(3.0), DataSize::from_bytes(200_000 + rng.below(2_500_000)))).collect();
        let case = PlaybackCase {
            links: vec![random_curve(&mut rng), random_curve(&mut rng)],
            video: MediaProfile::variable(pieces).unwrap(),
            start_threshold: DataSize::from_bytes(500_000),
        };
        let wait = case.min_start_delay().unwrap();
        assert_eq!(stalls(&case, wait + 0.002), 0, "round {round}: {wait}");
        if wait > 0.1 {
            assert!(stalls(&case, wait - 0.01) > 0, "round {round}: {wait}");
        }
    }
}

/// Number of stalls of a player that starts after `start_delay` and gets all data as it arrives. A start below the
/// threshold counts as a stall.
fn stalls(case: &PlaybackCase, start_delay: f64) -> u32 {
    let mut player =
        Player::new(case.video.clone(), BufferThresholds { low: case.start_threshold, high: None }, Instant::ZERO);
    let mut at = start_delay;
    player.on_arrival(Instant::ZERO + secs(at), (case.carried(at) / 8.0 + 0.001) as u64);
    let late_start = u32::from(player.state() == PlayerState::Buffering);
    while player.state() != PlayerState::Ended && at < 200.0 {
        at += 0.001;
        player.on_arrival(Instant::ZERO + secs(at), (case.carried(at) / 8.0 + 0.001) as u64);
    }
    player.stalls() + late_start
}

/// A small case in whole grains, with its radios.
struct ToyCase {
    case: PlaybackCase,
    radios: [GreenBagRadio; 2],
    playback: Duration,
    /// Grains that each link can carry in each bin.
    carried: Vec<[u64; 2]>,
    grid: Grid,
}

/// A random case with bins of one second and grains of 125,000 bytes (one second at 1 Mbit/s); none if it is not
/// playable.
fn random_toy(rng: &mut RandomStream) -> Option<ToyCase> {
    let bins = 6;
    let carried: Vec<[u64; 2]> = (0..bins).map(|_| [rng.below(4), rng.below(3)]).collect();
    let curve = |at: usize| CapacityCurve::from_steps(secs(1.0), carried.iter().map(|bin| kbps(bin[at] * 1000)));
    let duration = 3 + rng.below(3);
    let grains = duration + rng.below(2 * duration);
    let video =
        MediaProfile::variable([(Duration::from_secs(duration), DataSize::from_bytes(grains * 125_000))]).ok()?;
    let case = PlaybackCase {
        links: vec![curve(0), curve(1)],
        video,
        start_threshold: DataSize::from_bytes(rng.below(4) * 125_000),
    };
    let lte = GreenBagRadio {
        per_bit: EnergyPerBit::from_picojoules(20_000),
        active_power: Power::from_milliwatts(2000),
        tail_power: Power::from_milliwatts(1000 + 100 * rng.below(5)),
        tail_time: Duration::from_secs(1 + rng.below(3)),
    };
    let wifi = GreenBagRadio {
        active_power: Power::from_milliwatts(200 + 300 * rng.below(9)),
        ..GreenBagRadio::GREENBAG_WIFI
    };
    let playback = Duration::from_secs(bins as u64);
    (case.min_playback_time()? <= playback).then_some(ToyCase {
        case,
        radios: [lte, wifi],
        playback,
        carried,
        grid: Grid { bin: secs(1.0), grain: DataSize::from_bytes(125_000) },
    })
}

/// Which end of its bin a link's bytes occupy.
#[derive(Clone, Copy, PartialEq, Debug)]
enum BinSide {
    Start,
    End,
}

impl ToyCase {
    /// Energy of the best schedule in whole grains, by exhaustive search. `sides` are the allowed positions of the
    /// first link's bytes within a bin.
    fn brute_force(&self, sides: &[BinSide]) -> f64 {
        let mut best = f64::INFINITY;
        self.search(0, 0, 0.0, None, sides, &mut best);
        best
    }

    fn search(
        &self,
        bin: usize,
        grains: u64,
        joules: f64,
        tail_start: Option<f64>,
        sides: &[BinSide],
        best: &mut f64,
    ) {
        let [lte, wifi] = &self.radios;
        let tail = lte.tail_time.as_secs_f64();
        let total = self.case.video.size().bytes() / 125_000;
        let Some(carried) = self.carried.get(bin) else {
            if grains == total {
                *best = best.min(joules + tail_start.map_or(0.0, |_| tail * lte.tail_power.as_watts_f64()));
            }
            return;
        };
        let start = self.playback.as_secs_f64() - self.case.video.duration().as_secs_f64();
        let end = (bin + 1) as f64;
        let need =
            if end < start { 0.0 } else { self.case.start_bits().max(self.case.bits_decoded_after(end - start)) };
        for x in 0..=carried[0] {
            for y in 0..=carried[1] {
                let grains_after = grains + x + y;
                if grains_after > total || (grains_after as f64) * 1e6 + 1.0 < need {
                    continue;
                }
                let cost = |radio: &GreenBagRadio, x: u64, rate: u64| {
                    let time = if x == 0 { 0.0 } else { x as f64 / rate as f64 };
                    x as f64 * 1e6 * super::energy::joules_per_bit(radio) + time * radio.active_power.as_watts_f64()
                };
                let joules_after = joules + cost(lte, x, carried[0]) + cost(wifi, y, carried[1]);
                if x == 0 {
                    self.search(bin + 1, grains_after, joules_after, tail_start, sides, best);
                    continue;
                }
                let active = x as f64 / carried[0] as f64;
                for side in sides {
                    let from = if *side == BinSide::Start { bin as f64 } else { end - active };
                    let between = tail_start.map_or(0.0, |last| (from - last).min(tail));
                    let spent = joules_after + between * lte.tail_power.as_watts_f64();
                    self.search(bin + 1, grains_after, spent, Some(from + active), sides, best);
                }
            }
        }
    }
}

#[test]
fn the_optimum_equals_exhaustive_search_on_small_cases() {
    let mut rng = RandomStream::new(11, "toys", 0, Purpose::Other);
    let (mut tried, mut equal) = (0, 0);
    while tried < 40 {
        let Some(toy) = random_toy(&mut rng) else { continue };
        let Some(optimum) = toy.case.min_energy(&toy.radios, toy.playback, toy.grid) else {
            // Playable in bits, but not in whole grains.
            assert!(toy.brute_force(&[BinSide::End]).is_infinite());
            continue;
        };
        tried += 1;
        let (energy, bound) = (optimum.energy.as_joules_f64(), optimum.lower_bound.as_joules_f64());
        let at_end_only = toy.brute_force(&[BinSide::End]);
        let at_either_side = toy.brute_force(&[BinSide::Start, BinSide::End]);
        assert!((energy - at_end_only).abs() < 1e-6, "toy {tried}: {energy}, brute force {at_end_only}");
        assert!(bound <= at_either_side + 1e-6, "toy {tried}: bound {bound}, brute force {at_either_side}");
        // Placing bytes at the start of a bin saves at most the tail energy of one bin per burst.
        let bin = toy.radios[0].tail_power.as_watts_f64();
        assert!(energy <= at_either_side + bin * 3.0, "toy {tried}: {energy}, brute force {at_either_side}");
        equal += u32::from((energy - at_either_side).abs() < 1e-6);
    }
    println!("{equal} of {tried} small cases gain nothing from another position within the bin");
    assert!(equal * 2 >= tried, "{equal} of {tried}");
}

#[test]
fn the_lower_bound_is_close_below_the_optimum_on_fluctuating_links() {
    let mut rng = RandomStream::new(3, "fluctuating", 0, Purpose::Other);
    for _ in 0..3 {
        let lte = CapacityCurve::from_steps(secs(1.0), (0..130).map(|_| kbps(1500 + rng.below(3000))));
        let wifi = CapacityCurve::from_steps(secs(1.0), (0..130).map(|_| kbps(1500 + rng.below(3000))));
        let case = PlaybackCase { links: vec![lte, wifi], ..greenbag_case(1, 1, 4000, 120) };
        let playback = case.min_playback_time().unwrap() + secs(0.1);
        let optimum = case.min_energy(&RADIOS, playback, FINE_GRID).unwrap();
        let gap = 1.0 - optimum.lower_bound.as_joules_f64() / optimum.energy.as_joules_f64();
        println!("{:?} from {:?}: {:.1} %", optimum.energy, optimum.lower_bound, gap * 100.0);
        assert!((0.0..0.04).contains(&gap), "{gap}");
    }
}
