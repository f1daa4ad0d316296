//! What the default policy does on the lab's floor cases, as a table that changes are reviewed against.
//!
//! In: the cases of the floors, in virtual time. Out: `tables/floors.txt` and `tables/small.txt`, compared with what is
//! kept there; `UPDATE_TABLES=1` writes them anew. Exact figures are printed (`--nocapture`).
//!
//! 1. A time is shown as a multiple of the ideal, to a hundredth; small files in milliseconds, to five of them.
//! 2. Where chance is part of a case, the median of five seeds is shown.
//! 3. A figure that changes is not wrong by itself: the new table is looked at and committed with its reason. The
//!    floors of the lab are printed beside it and decide nothing here.

mod review;

use std::fmt::Write;

use marline_core::fetch::{Config, Fetch};
use marline_core::units::{DataSize, Duration};
use marline_sim::ideal::ideal;
use marline_sim::spec::{Event, LinkSpec};
use marline_sim::world::{Outcome, Scene, World};

use review::compare;

struct Case {
    name: &'static str,
    links: &'static [&'static str],
    events: &'static [&'static str],
    tls: bool,
    floor: f64,
}

const fn case(name: &'static str, links: &'static [&'static str], floor: f64) -> Case {
    Case { name, links, events: &[], tls: false, floor }
}

const A: &[&str] = &["wifi,rate=80Mbit/s,rtt=20ms", "lte,rate=61Mbit/s,rtt=50ms"];
const D: &[&str] = &["wifi,rate=50Mbit/s,rtt=20ms", "lte,rate=5Mbit/s,rtt=100ms"];
const H: &[&str] = &["wifi,rate=40Mbit/s,rtt=20ms", "lte,rate=30Mbit/s,rtt=50ms"];

const CASES: &[Case] = &[
    case("80/20 + 61/50", A, 1.045),
    Case { tls: true, ..case("80/20 + 61/50, TLS", A, 1.06) },
    case("8/20 + 61/50", &["wifi,rate=8Mbit/s,rtt=20ms", "lte,rate=61Mbit/s,rtt=50ms"], 1.035),
    case("30/20 + 30/60", &["wifi,rate=30Mbit/s,rtt=20ms", "lte,rate=30Mbit/s,rtt=60ms"], 1.02),
    case("50/20 + 5/100", D, 1.025),
    case("300/30 + 100/60", &["wifi,rate=300Mbit/s,rtt=30ms", "lte,rate=100Mbit/s,rtt=60ms"], 1.20),
    case("20/30 0.5% + 20/60", &["wifi,rate=20Mbit/s,rtt=30ms,loss=0.5%", "lte,rate=20Mbit/s,rtt=60ms"], 1.045),
    Case { events: &["3s:wifi=down"], ..case("40/20 dead at 3 s + 30/50", H, 1.04) },
    Case { events: &["3s:wifi=down", "8s:wifi=up"], ..case("the same, back at 8 s", H, 1.06) },
    Case { events: &["3s:wifi=rate=2Mbit/s"], ..case("40/20 to 2 at 3 s + 30/50", H, 1.025) },
    case("61/50 + 80/20 (order)", &["lte,rate=61Mbit/s,rtt=50ms", "wifi,rate=80Mbit/s,rtt=20ms"], 1.045),
];

const SEEDS: std::ops::Range<u64> = 1..6;

fn links(lines: &[&str]) -> Vec<LinkSpec> {
    lines.iter().map(|line| line.parse().expect("a link")).collect()
}

fn events(lines: &[&str]) -> Vec<Event> {
    lines.iter().map(|line| line.parse().expect("an event")).collect()
}

/// The machine as `marline get` uses it.
fn shipped() -> Config {
    Config { open_ended_first: true, ..Config::default() }
}

/// The median run of the seeds, by time.
fn median(case: &Case, size: DataSize) -> Outcome {
    let chance = case.links.iter().any(|line| line.contains("loss"));
    let seeds = if chance { SEEDS } else { 1..2 };
    let mut runs: Vec<Outcome> = seeds
        .map(|seed| {
            let scene = Scene::new(size, links(case.links));
            let scene = Scene { events: events(case.events), tls: case.tls, seed, ..scene };
            let outcome = World::new(scene, Fetch::new(shipped())).run(Duration::from_secs(600));
            assert!(outcome.is_good(), "{}, seed {seed}: {:?} {:?}", case.name, outcome.failed, outcome.notices);
            outcome
        })
        .collect();
    runs.sort_by_key(|outcome| outcome.finished);
    runs.swap_remove(runs.len() / 2)
}

#[test]
fn the_floor_cases_are_as_reviewed() {
    let size = DataSize::from_bytes(100_000_000);
    let mut table = String::from("100 MB by the default policy, time / ideal (rates in Mbit/s, RTTs in ms)\n\n");
    writeln!(table, "{:28}{:>8}{:>8}{:>8}{:>9}", "case", "ideal", "sim", "floor", "wasted").expect("text");
    for case in CASES {
        let best = ideal(&links(case.links), &events(case.events), size).expect("it can be carried").as_secs_f64();
        let outcome = median(case, size);
        let taken = outcome.finished.expect("it ended").as_secs_f64();
        let wasted = outcome.wasted.bytes() as f64 / size.bytes() as f64 * 100.0;
        println!(
            "{:28} {best:.3} s {taken:.3} s {:.4} (floor {}), wasted {wasted:.2}%, link delta {:.3} s, {:?}",
            case.name,
            taken / best,
            case.floor,
            outcome.link_delta.as_secs_f64(),
            outcome.links.iter().map(|link| (link.connections, link.requests)).collect::<Vec<_>>(),
        );
        let wasted = (wasted * 2.0).round() / 2.0;
        let ratio = taken / best;
        writeln!(table, "{:28}{best:7.2}s{ratio:8.2}{:8.3}{wasted:8.1}%", case.name, case.floor).expect("text");
    }
    compare("floors.txt", &table);
}

#[test]
fn small_files_are_as_reviewed() {
    let mut table =
        String::from("small files by the default policy, against one request on the best link (ms)\n\n");
    writeln!(table, "{:16}{:>10}{:>8}{:>8}", "case", "bytes", "both", "single").expect("text");
    for (name, pair) in [("80/20 + 61/50", A), ("50/20 + 5/100", D)] {
        for bytes in [10_000, 262_144, 1_000_000, 5_000_000] {
            let size = DataSize::from_bytes(bytes);
            let millis = |links| {
                let outcome = median(&case(name, links, 0.0), size);
                outcome.finished.expect("it ended").as_secs_f64() * 1000.0
            };
            let (both, single) = (millis(pair), millis(&pair[..1]));
            println!("{name:16} {bytes:>8} bytes: {both:.1} ms, on the first link alone {single:.1} ms");
            let five = |millis: f64| (millis / 5.0).round() * 5.0;
            writeln!(table, "{name:16}{bytes:>10}{:8.0}{:8.0}", five(both), five(single)).expect("text");
        }
    }
    compare("small.txt", &table);
}
