//! One row: contenders take turns within a run, and ratios within the run are judged.
//!
//! | what | the accelerator's goodput over |
//! |---|---|
//! | `of plain` | plain TCP with the same links |
//! | `of ideal` | plain TCP with these links without loss and outages, times the share of the time without outages |
//!
//! 1. The first contender changes from run to run.
//! 2. A contender that could not be started is not tried again in that row.
//! 3. A stall is a pause of more than the longest outage and five seconds.
//! 4. Each run is one [`BenchRun`]: others of the row may be concurrent.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use marline_core::units::Ratio;

use super::super::accel::run::BenchRun;
use super::super::report::{ReportTable, Threshold};
use super::Bench;
use crate::LabError;
use crate::accel::outages::{self, Outage};
use crate::accel::{Contender, Stream, Topology, TrialResult};

/// What is required of the accelerator.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Requirement {
    /// At least so much of plain TCP.
    OfPlain(f64),
    /// At least so much of the ideal.
    OfIdeal(f64),
    /// No stall in any run.
    NoStall,
}

/// A row of the table.
#[derive(Clone, Debug)]
pub(super) struct Row {
    /// Name of the row, such as `loss 50ms`.
    pub(super) name: String,
    pub(super) is_tls: bool,
    /// The length of each outage.
    pub(super) outage: Option<Duration>,
    pub(super) length: Duration,
    /// From when on it counts.
    pub(super) from: Duration,
    pub(super) requirements: Vec<Requirement>,
    pub(super) contender: Contender,
}

/// What one run brought, in Mbit/s.
#[derive(Default)]
struct Pair {
    plain: Option<f64>,
    accel: Option<f64>,
    ideal: Option<f64>,
}

/// The row's runs; `world` returns the links for a seed, without outages.
pub(super) fn units<'a>(
    bench: &'a Bench,
    row: Row,
    runs: u32,
    world: impl Fn(u64) -> Topology + Send + Sync + 'a,
) -> Vec<BenchRun<'a>> {
    let needs_ideal = row.requirements.iter().any(|requirement| matches!(requirement, Requirement::OfIdeal(_)));
    // Shared by the runs of a row: contenders that could not be started.
    let shared = Arc::new((row, world, Mutex::new(Vec::new())));
    let unit = |run| {
        let (shared, kinds) = (shared.clone(), run_order(run, bench.includes_accel, needs_ideal));
        let duration = shared.0.length * u32::try_from(kinds.len()).unwrap_or(u32::MAX);
        BenchRun::new(run, duration, move |sheet| {
            let (row, world, refused) = &*shared;
            each(bench, sheet, (row, run), &kinds, &world(u64::from(run) + 1), refused);
            Ok(())
        })
    };
    (0..runs).map(unit).collect()
}

/// One run: all contenders, and their ratios.
fn each(
    bench: &Bench,
    sheet: &mut ReportTable,
    (row, run): (&Row, u32),
    kinds: &[Kind],
    world: &Topology,
    refused: &Mutex<Vec<Kind>>,
) {
    let refused = || refused.lock().unwrap_or_else(PoisonError::into_inner);
    let drawn = row.outage.map_or(Vec::new(), |length| outages::draw(u64::from(run) + 1, length, row.length));
    let mut pair = Pair::default();
    for kind in kinds {
        if refused().contains(kind) {
            continue;
        }
        let taken = match one(bench, row, *kind, world.clone(), &drawn) {
            Ok(None) => break,
            Err(why) => {
                sheet.problem(&row.name, kind.name(), run, &why);
                refused().push(*kind);
                continue;
            }
            Ok(Some(taken)) => taken,
        };
        if let Some(why) = &taken.problem {
            sheet.problem(&row.name, kind.name(), run, why);
            continue;
        }
        if *kind == Kind::Ours && row.requirements.contains(&Requirement::NoStall) {
            let stalled = taken.flows.iter().any(|flow| flow.pause > row.longest());
            let none = Threshold::AtMost(0.0);
            sheet.count(&row.name, "runs with a stall", ("ours", &none), "ours", u32::from(stalled));
        }
        let available = outages::availability(&drawn, row.from, row.length);
        let mbps = pair.take(*kind, taken.mbps(0, row.from, row.length), available);
        sheet.add(&row.name, "Mbit/s", ("ours", &Threshold::Stated), kind.name(), mbps);
        add_details(sheet, &row.name, *kind, &taken);
    }
    pair.judge(sheet, row);
}

/// The runs that are compared in each pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Plain,
    Ours,
    Ideal,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Ours => "ours",
            Self::Ideal => "ideal",
        }
    }
}

/// In the order of this run.
fn run_order(run: u32, includes_accel: bool, ideal: bool) -> Vec<Kind> {
    let mut kinds = vec![Kind::Plain];
    kinds.extend(includes_accel.then_some(Kind::Ours));
    kinds.extend(ideal.then_some(Kind::Ideal));
    let first = run as usize % kinds.len();
    kinds.rotate_left(first);
    kinds
}

fn one(
    bench: &Bench,
    row: &Row,
    kind: Kind,
    world: Topology,
    outages: &[Outage],
) -> Result<Option<TrialResult>, LabError> {
    let world = match kind {
        Kind::Ideal => Topology { loss: Ratio::ZERO, ..world },
        _ => Topology { events: outages::events(crate::accel::topology::PRIMARY, outages), ..world },
    };
    let contender = if kind == Kind::Ours { row.contender.clone() } else { Contender::Plain };
    bench.trial(&world, &contender, &[Stream::new(row.is_tls)], row.length)
}

impl Row {
    fn longest(&self) -> Duration {
        self.outage.unwrap_or_default() + Duration::from_secs(5)
    }
}

impl Pair {
    /// Keeps a contender's figure. That of the ideal is multiplied by the share of the time without an outage.
    fn take(&mut self, kind: Kind, mbps: f64, available: Ratio) -> f64 {
        let (slot, value) = match kind {
            Kind::Plain => (&mut self.plain, mbps),
            Kind::Ours => (&mut self.accel, mbps),
            Kind::Ideal => (&mut self.ideal, mbps * available.as_f64()),
        };
        *slot = Some(value);
        value
    }

    fn judge(&self, sheet: &mut ReportTable, row: &Row) {
        let over = |value: Option<f64>, with: Option<f64>| Some(value? / with.filter(|with| *with > 0.0)?);
        for requirement in &row.requirements {
            let (metric, bound, with) = match *requirement {
                Requirement::OfPlain(bound) => ("of plain", bound, self.plain),
                Requirement::OfIdeal(bound) => ("of ideal", bound, self.ideal),
                Requirement::NoStall => continue,
            };
            let floor = Threshold::AtLeast(bound);
            for (contender, figure) in [("ours", self.accel), ("plain", self.plain)] {
                if let Some(ratio) = over(figure, with).filter(|_| contender == "ours" || metric == "of ideal") {
                    sheet.add(&row.name, metric, ("ours", &floor), contender, ratio);
                }
            }
        }
    }
}

/// What must be known beside a figure.
fn add_details(sheet: &mut ReportTable, case: &str, kind: Kind, taken: &TrialResult) {
    if let Some(why) = taken.emulation.unreliable_reason() {
        sheet.mark_unreliable(case, &why);
    }
    if kind == Kind::Ours {
        let none = || "nothing".to_owned();
        let force = if taken.active.is_empty() { none() } else { taken.active.join(", ") };
        let alone = taken.inactive_reason().map(|why| format!("; inactive: {why}")).unwrap_or_default();
        let undone = taken.undone();
        sheet.log(case, &format!(": active: {force}{alone}; {undone} reductions undone"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_begins_once() {
        let first: Vec<Kind> = (0..3).map(|run| run_order(run, true, true)[0]).collect();
        assert_eq!(first, [Kind::Plain, Kind::Ours, Kind::Ideal]);
        assert_eq!(run_order(1, false, true), [Kind::Ideal, Kind::Plain]);
        assert_eq!(run_order(0, false, false), [Kind::Plain]);
    }

    #[test]
    fn ratios_are_of_one_run_and_the_ideal_is_what_is_there() {
        let mut pair = Pair::default();
        pair.take(Kind::Plain, 6.9, Ratio::ONE);
        pair.take(Kind::Ours, 9.8, Ratio::ONE);
        assert!((pair.take(Kind::Ideal, 19.3, Ratio::from_percent(53)) - 10.229).abs() < 1e-3);
        let row = Row {
            name: "blackout 10s".into(),
            is_tls: true,
            outage: Some(Duration::from_secs(10)),
            length: Duration::from_secs(60),
            from: Duration::ZERO,
            requirements: vec![Requirement::OfPlain(4.0), Requirement::OfIdeal(0.94), Requirement::NoStall],
            contender: Contender::default_mechanisms(),
        };
        let mut sheet = ReportTable::default();
        pair.judge(&mut sheet, &row);
        let lines: Vec<String> = sheet.table().rows.iter().map(|cells| cells.join("|")).collect();
        assert_eq!(lines[0], "blackout 10s|of plain|1.420|1.420–1.420||≥ 4.000|MISSED|1");
        assert!(
            lines[1].starts_with("blackout 10s|of ideal|0.958|") && lines[1].contains("plain 0.675"),
            "{}",
            lines[1]
        );
        assert!(lines[1].contains("met"));
        assert_eq!(row.longest(), Duration::from_secs(15));
    }
}
