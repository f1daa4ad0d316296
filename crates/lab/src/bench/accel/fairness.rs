//! A plain flow beside an accelerated one: is it slower, and does the link drop more, than beside a plain flow?
//!
//! | rows | links | compared with |
//! |---|---|---|
//! | `policer`, `codel`, `queue 1ms` to `queue 100ms` | all loss is congestion | two plain flows |
//! | `two policer`, `two queue 20ms` | the same, two accelerated flows beside a plain one | three plain flows |
//! | `ge` | the link loses packets of both flows in bursts | two plain flows |
//! | `hop 0.1%`, `hop 1%`, `hop 3%` | a hop loses packets of the accelerated flow alone, at random | two plain flows without that loss |
//!
//! 1. The accelerated flows come from port 443, the other one from port 80.
//! 2. Ratios within a run are judged, whose trials take turns with the same seed: the goodput of the other flow, and
//!    the packets that the link dropped because of congestion.
//! 3. The gain of the accelerated flow, compared with a plain one with the same loss, is reported.

use std::time::Duration;

use marline_core::units::Ratio;
use marline_sim::spec::Loss;

use super::super::accel::run::BenchRun;
use super::super::report::{ReportTable, Threshold};
use super::Bench;
use crate::LabError;
use crate::accel::{Contender, Medium, Queue, Stream, Topology, TrialResult};

/// A row of the table: the queue that the flows share, and its losses.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    queue: Queue,
    /// Number of accelerated flows.
    accelerated: usize,
    /// Loss of the link, as a description writes it.
    bursts: Option<&'static str>,
    /// Loss rate on a hop of the accelerated flow alone, in packets per million.
    hop: u32,
}

const fn case(name: &'static str, queue: Queue) -> Case {
    Case { name, queue, accelerated: 1, bursts: None, hop: 0 }
}

const POLICER: Queue = Queue::Policer("20Mbit/s:64KiB");

const CASES: [Case; 12] = [
    case("policer", POLICER),
    case("codel", Queue::CoDel),
    case("queue 1ms", Queue::Time(1)),
    case("queue 5ms", Queue::Time(5)),
    case("queue 20ms", Queue::Time(20)),
    case("queue 100ms", Queue::Time(100)),
    Case { accelerated: 2, ..case("two policer", POLICER) },
    Case { accelerated: 2, ..case("two queue 20ms", Queue::Time(20)) },
    Case { bursts: Some("ge:0.1%/20%/50%"), ..case("ge", Queue::Time(100)) },
    Case { hop: 1_000, ..case("hop 0.1%", Queue::Time(100)) },
    Case { hop: 10_000, ..case("hop 1%", Queue::Time(100)) },
    Case { hop: 30_000, ..case("hop 3%", Queue::Time(100)) },
];

/// The runs that are compared in each round.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// No flow is accelerated.
    Plain,
    Ours,
    /// No flow is accelerated, and the hop loses nothing.
    Clean,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Ours => "ours",
            Self::Clean => "clean",
        }
    }
}

/// What a trial brought: Mbit/s of the other flow, of those that may be accelerated, and drops.
#[derive(Clone, Copy)]
struct FairnessResult {
    other: f64,
    accelerated: f64,
    drops: f64,
}

pub(super) fn units(bench: &Bench) -> Vec<BenchRun<'_>> {
    let (length, from) = bench.time(23, 3);
    let mut units = Vec::new();
    for case in CASES.iter().filter(|case| bench.wants("fairness", case.name)) {
        let kinds = kinds(case, bench.includes_accel);
        let duration = length * u32::try_from(kinds.len()).unwrap_or(1);
        let unit = |run| BenchRun::new(run, duration, move |sheet| each(bench, sheet, case, run, (length, from)));
        units.extend((0..bench.runs(10)).map(unit));
    }
    units
}

fn kinds(case: &Case, includes_accel: bool) -> Vec<Kind> {
    let mut kinds = vec![Kind::Plain];
    kinds.extend(includes_accel.then_some(Kind::Ours));
    kinds.extend((case.hop > 0).then_some(Kind::Clean));
    kinds
}

fn each(
    bench: &Bench,
    sheet: &mut ReportTable,
    case: &Case,
    run: u32,
    (length, from): (Duration, Duration),
) -> Result<(), LabError> {
    let name = &format!("fairness {}", case.name);
    let mut kinds = kinds(case, bench.includes_accel);
    let first = run as usize % kinds.len();
    kinds.rotate_left(first);
    let mut streams = vec![Stream::new(true); case.accelerated];
    streams.push(Stream::new(false));
    let mut all: Vec<(Kind, FairnessResult)> = Vec::new();
    for kind in kinds {
        let contender = if kind == Kind::Ours {
            Contender::default_mechanisms().with_flows("tcp dst port 443")
        } else {
            Contender::Plain
        };
        match bench.trial(&world(bench, case, kind, run), &contender, &streams, length) {
            Err(why) => sheet.problem(name, kind.name(), run, &why),
            Ok(None) => return Ok(()),
            Ok(Some(taken)) => match &taken.problem {
                Some(why) => sheet.problem(name, kind.name(), run, why),
                None => all.push((kind, record_fairness(sheet, name, case, kind, &taken, (length, from)))),
            },
        }
    }
    judge(sheet, name, &all);
    Ok(())
}

fn world(bench: &Bench, case: &Case, kind: Kind, run: u32) -> Topology {
    let bursts: Option<Loss> = case.bursts.and_then(|written| written.parse().ok());
    let hop = (case.hop > 0 && kind != Kind::Clean).then_some((443, Ratio::from_ppm(case.hop)));
    // The policer limits the rate, not the link behind it.
    let air = if case.queue == POLICER { Medium::Rate(100_000) } else { Medium::Rate(20_000) };
    let congestion = bench.congestion;
    Topology {
        medium: air,
        queue: case.queue,
        bursts,
        hop,
        congestion,
        cell: None,
        ..Topology::default_links(u64::from(run) + 1)
    }
}

fn record_fairness(
    sheet: &mut ReportTable,
    name: &str,
    case: &Case,
    kind: Kind,
    taken: &TrialResult,
    (length, from): (Duration, Duration),
) -> FairnessResult {
    let down = taken.emulation.links.first().map(|link| link.downlink).unwrap_or_default();
    let drops = down.dropped_queue_full.packets + down.dropped_codel.packets + down.dropped_policer.packets;
    let accelerated = (0..case.accelerated).map(|stream| taken.mbps(stream, from, length)).sum();
    let fairness =
        FairnessResult { other: taken.mbps(case.accelerated, from, length), accelerated, drops: drops as f64 };
    for (metric, figure) in [
        ("Mbit/s of the other", fairness.other),
        ("Mbit/s of the accelerated", accelerated),
        ("drops", fairness.drops),
    ] {
        sheet.add(name, metric, ("ours", &Threshold::Stated), kind.name(), figure);
    }
    if kind == Kind::Ours {
        sheet.add(name, "reductions undone", ("ours", &Threshold::Stated), "ours", taken.undone() as f64);
    }
    if let Some(why) = taken.emulation.unreliable_reason() {
        sheet.mark_unreliable(name, &why);
    }
    fairness
}

/// The ratios of one run.
fn judge(sheet: &mut ReportTable, name: &str, all: &[(Kind, FairnessResult)]) {
    let result_of = |kind| all.iter().find(|(other, _)| *other == kind).map(|(_, fairness)| *fairness);
    let (Some(accel), Some(plain)) = (result_of(Kind::Ours), result_of(Kind::Plain)) else { return };
    let clean = result_of(Kind::Clean).unwrap_or(plain);
    let ratio = |part: f64, total: f64| part / total.max(1e-3);
    let least = Threshold::AtLeast(0.9);
    sheet.add(name, "the other, of plain", ("ours", &least), "ours", ratio(accel.other, clean.other));
    let most = Threshold::AtMost(1.1);
    sheet.add(name, "drops, of plain", ("ours", &most), "ours", ratio(accel.drops, clean.drops.max(1.0)));
    sheet.add(
        name,
        "the accelerated, of plain",
        ("ours", &Threshold::Stated),
        "ours",
        ratio(accel.accelerated, plain.accelerated),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lossy_hop_is_compared_with_links_that_lose_nothing() {
        let fairness = |other, accelerated, drops| FairnessResult { other, accelerated, drops };
        let all = [
            (Kind::Ours, fairness(9.5, 10.0, 30.0)),
            (Kind::Clean, fairness(10.0, 10.0, 30.0)),
            (Kind::Plain, fairness(18.0, 1.0, 20.0)),
        ];
        let mut sheet = ReportTable::default();
        judge(&mut sheet, "fairness hop 1%", &all);
        let rows: Vec<String> = sheet.table().rows.iter().map(|cells| cells[..3].join("|")).collect();
        assert!(rows[0].ends_with("the other, of plain|0.950"), "{rows:?}");
        assert!(
            rows[1].ends_with("drops, of plain|1.000") && rows[2].ends_with("the accelerated, of plain|10.0"),
            "{rows:?}"
        );
        assert_eq!(kinds(&CASES[0], true).len(), 2);
        assert_eq!(kinds(&CASES[9], true).len(), 3);
    }
}
