//! A plain flow beside accelerated ones in simulated time: its goodput and the link's drops, compared with plain flows
//! alone.
//!
//! | rows | links | what must hold for the medians of ten pairs |
//! |---|---|---|
//! | congestion | policer, CoDel, drop tail of 1 to 100 ms; one or two accelerated flows beside a plain one | the plain flow's goodput at least 0.9, drops at most 1.1 |
//! | random | a hop that loses packets of the accelerated flow alone, in front of a queue that both share | the plain flow has at least 0.9 of its goodput without that loss |
//! | alone | an accelerated flow over a link with random loss | nothing: it shows the remaining gain of `eifel-undo` |
//!
//! A pair is one start with acceleration and one without, of 60 s. The results are compared with
//! `tables/accel-fairness.txt`; `UPDATE_TABLES=1` writes it again. `PAIRS=40` runs 40 pairs of each row and only prints
//! the table.

use std::fmt::Write;

use marline_core::accel::{Config, Mechanism, Mechanisms};
use marline_core::units::{Duration, Instant};
use marline_sim::accel::{FlowScript, Scenario, World};
use marline_sim::spec::{LinkSpec, Loss};

use crate::saved_tables::compare_with_saved;

const PAIRS: u64 = 10;

/// The number of pairs that the environment asks for.
fn pair_count() -> Option<u64> {
    std::env::var("PAIRS").ok().and_then(|pairs| pairs.parse().ok())
}

/// What the rows of a kind are about.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Congestion,
    Random,
    Alone,
}

#[derive(Clone, Copy)]
struct Row {
    kind: Kind,
    link: &'static str,
    /// Loss of the accelerated flows' own hop.
    hop: &'static str,
    accelerated: usize,
}

const fn row(kind: Kind, link: &'static str, hop: &'static str, accelerated: usize) -> Row {
    Row { kind, link, hop, accelerated }
}

use Kind::{Alone, Congestion, Random};

const ROWS: &[Row] = &[
    row(Congestion, "rate=100Mbit/s,rtt=50ms,queue=100ms,police=20Mbit/s:16KiB", "0%", 1),
    row(Congestion, "rate=100Mbit/s,rtt=50ms,queue=100ms,police=20Mbit/s:64KiB", "0%", 1),
    row(Congestion, "rate=100Mbit/s,rtt=50ms,queue=100ms,police=20Mbit/s:256KiB", "0%", 1),
    row(Congestion, "rate=100Mbit/s,rtt=50ms,queue=100ms,police=20Mbit/s:64KiB", "0%", 2),
    row(Congestion, "rate=20Mbit/s,rtt=50ms,queue=200ms,codel", "0%", 1),
    row(Congestion, "rate=20Mbit/s,rtt=50ms,queue=200ms,codel", "0%", 2),
    row(Congestion, "rate=20Mbit/s,rtt=50ms,queue=1ms", "0%", 1),
    row(Congestion, "rate=20Mbit/s,rtt=50ms,queue=5ms", "0%", 1),
    row(Congestion, "rate=20Mbit/s,rtt=50ms,queue=20ms", "0%", 1),
    row(Congestion, "rate=20Mbit/s,rtt=50ms,queue=20ms", "0%", 2),
    row(Congestion, "rate=20Mbit/s,rtt=50ms,queue=100ms", "0%", 1),
    row(Random, "rate=20Mbit/s,rtt=50ms,queue=100ms", "0.1%", 1),
    row(Random, "rate=20Mbit/s,rtt=50ms,queue=100ms", "1%", 1),
    row(Random, "rate=20Mbit/s,rtt=50ms,queue=100ms", "ge:0.3%/30%/100%", 1),
    row(Random, "rate=20Mbit/s,rtt=50ms,queue=20ms", "0.1%", 1),
    row(Random, "rate=20Mbit/s,rtt=50ms,queue=20ms", "1%", 1),
    row(Random, "rate=20Mbit/s,rtt=50ms,queue=20ms", "3%", 1),
    row(Random, "rate=20Mbit/s,rtt=50ms,queue=20ms", "ge:0.3%/30%/100%", 1),
    row(Alone, "rate=20Mbit/s,rtt=50ms,queue=100ms", "0.1%", 1),
    row(Alone, "rate=20Mbit/s,rtt=50ms,queue=100ms", "1%", 1),
    row(Alone, "rate=20Mbit/s,rtt=50ms,queue=100ms", "3%", 1),
    row(Alone, "rate=20Mbit/s,rtt=50ms,queue=100ms", "ge:0.3%/30%/100%", 1),
    row(Alone, "rate=20Mbit/s,rtt=200ms,queue=100ms", "1%", 1),
];

/// Result of a run: Mbit/s of the plain flow and of the others together, and drops because of congestion.
#[derive(Clone, Copy)]
struct RunResult {
    other: f64,
    accelerated: f64,
    drops: f64,
}

fn play(row: &Row, hop: &str, seed: u64, is_accelerated: bool) -> RunResult {
    let duration = Duration::from_secs(60);
    let link: LinkSpec = format!("wifi,{}", row.link).parse().expect("a link");
    let hop: Loss = hop.parse().expect("a loss");
    let flow = |n: usize| FlowScript {
        is_accelerated,
        start: Duration::from_millis(seed * 13 % 100 * n as u64),
        loss: hop,
        ..FlowScript::download(400_000_000)
    };
    let mut scenario = Scenario::new(link, flow(0));
    scenario.seed = seed + 1;
    scenario.flows = (0..row.accelerated).map(flow).collect();
    if row.kind != Alone {
        scenario.flows.push(FlowScript { is_accelerated: false, loss: Loss::NONE, ..flow(row.accelerated) });
    }
    scenario.config = is_accelerated.then(|| Config {
        mechanisms: Mechanisms::of(&[Mechanism::EifelUndo, Mechanism::WithheldAck, Mechanism::OutageRevert]),
        ..Config::new(Scenario::PRIMARY, None)
    });
    let mut world = World::new(scenario);
    world.run_until(Instant::ZERO + duration);
    let defects = world.outcome().defects;
    assert!(defects.is_empty(), "{defects:?}");
    let mbps = |n: usize| world.read(n) as f64 * 8.0 / duration.as_secs_f64() / 1e6;
    RunResult {
        other: mbps(row.accelerated),
        accelerated: (0..row.accelerated).map(mbps).sum(),
        drops: world.dropped() as f64,
    }
}

fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let mut all: Vec<f64> = figures.collect();
    all.sort_by(f64::total_cmp);
    (all[(all.len() - 1) / 2] + all[all.len() / 2]) / 2.0
}

/// Medians: goodput of the accelerated flows without and with acceleration, of the plain flow beside them, and the
/// ratios of each pair for the plain flow and for drops.
fn medians(row: &Row) -> [f64; 6] {
    let pairs: Vec<[RunResult; 3]> = (0..pair_count().unwrap_or(PAIRS))
        .map(|seed| {
            let plain = play(row, row.hop, seed, false);
            // The plain flow is compared with a run without the loss of the other flow, since that loss leaves capacity to it.
            let clean = if row.kind == Random { play(row, "0%", seed, false) } else { plain };
            [plain, play(row, row.hop, seed, true), clean]
        })
        .collect();
    let median_of = |figure: fn(&[RunResult; 3]) -> f64| median(pairs.iter().map(figure));
    [
        median_of(|[plain, ..]| plain.accelerated),
        median_of(|[_, accel, _]| accel.accelerated),
        median_of(|[_, _, clean]| clean.other),
        median_of(|[_, accel, _]| accel.other),
        median_of(|[_, accel, clean]| accel.other / clean.other.max(1e-3)),
        median_of(|[_, accel, clean]| accel.drops / clean.drops.max(1.0)),
    ]
}

#[test]
fn a_plain_flow_beside_accelerated_ones_loses_nothing() {
    let names = ["congestion", "random", "alone"];
    let mut table = String::from(
        "a plain flow beside accelerated ones, 60 s, medians of ten pairs of starts; the accelerated flows' own hop loses packets at random\n\n",
    );
    writeln!(
        table,
        "{:11}{:58}{:17}{:>7}{:>8}{:>8}{:>8}{:>8}{:>8}{:>8}",
        "", "link", "hop loses", "flows", "plain", "ours", "other", "beside", "ratio", "drops"
    )
    .expect("text");
    #[allow(clippy::disallowed_methods, reason = "each row has a world of its own, and rows are put in order")]
    let workers: Vec<_> = (0..2).map(|odd| std::thread::spawn(move || half(odd))).collect();
    let mut all: Vec<(usize, [f64; 6])> =
        workers.into_iter().flat_map(|worker| worker.join().expect("a worker")).collect();
    all.sort_by_key(|(at, _)| *at);
    let mut missed = Vec::new();
    for (at, [plain, accel, clean, other, ratio, drops]) in all {
        let row = &ROWS[at];
        write!(
            table,
            "{:11}{:58}{:17}{:>7}{plain:8.1}{accel:8.1}",
            names[row.kind as usize], row.link, row.hop, row.accelerated
        )
        .expect("text");
        match row.kind {
            Alone => writeln!(table).expect("text"),
            _ => writeln!(table, "{clean:8.1}{other:8.1}{ratio:8.2}{drops:8.2}").expect("text"),
        }
        let is_fair = match row.kind {
            Congestion => ratio >= 0.9 && drops <= 1.1,
            Random => ratio >= 0.9,
            Alone => true,
        };
        if !is_fair {
            missed.push(table.lines().last().unwrap_or_default().to_owned());
        }
    }
    println!("{table}");
    if pair_count().is_some() {
        return;
    }
    assert!(missed.is_empty(), "{missed:#?}");
    compare_with_saved("accel-fairness.txt", &table);
}

fn half(odd: usize) -> Vec<(usize, [f64; 6])> {
    ROWS.iter().enumerate().skip(odd).step_by(2).map(|(at, row)| (at, medians(row))).collect()
}
