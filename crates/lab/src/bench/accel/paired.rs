//! One row: those that are compared take turns within a run, and what is judged are ratios within the run.
//!
//! In: a world for each seed, how long, what is asked. Out: runs that bring the goodput of each, and the ratios that are asked for.
//!
//! | what | ours over |
//! |---|---|
//! | `of plain` | plain TCP in the same world |
//! | `of ideal` | plain TCP in that world without loss and blackouts, times the share of the time in which the link was there |
//!
//! 1. Who begins changes from run to run.
//! 2. Who cannot be started once is not tried again in that row.
//! 3. A stall is a pause of more than the longest blackout and five seconds.
//! 4. A run is one [`Unit`]: others of the row may go on beside it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use marline_core::units::Ratio;

use super::super::report::{ReportTable, Threshold};
use super::Bench;
use super::unit::Unit;
use crate::LabError;
use crate::accel::blackouts::{self, Blackout};
use crate::accel::{Stream, Taken, Who, World};

/// What is asked of ours.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Asked {
    /// At least so much of plain.
    OfPlain(f64),
    /// At least so much of the ideal.
    OfIdeal(f64),
    /// A stall in none of the runs.
    NoStall,
}

/// A row of the table.
#[derive(Clone, Debug)]
pub(super) struct Row {
    /// `loss 50ms`.
    pub(super) name: String,
    pub(super) secure: bool,
    /// How long each blackout is.
    pub(super) dark: Option<Duration>,
    pub(super) length: Duration,
    /// From when on it counts.
    pub(super) from: Duration,
    pub(super) asked: Vec<Asked>,
    pub(super) ours: Who,
}

/// What one run brought, in Mbit/s.
#[derive(Default)]
struct Pair {
    plain: Option<f64>,
    ours: Option<f64>,
    ideal: Option<f64>,
}

/// The row's runs; `world` gives the links for a seed, without blackouts.
pub(super) fn units<'a>(
    bench: &'a Bench,
    row: Row,
    runs: u32,
    world: impl Fn(u64) -> World + Send + Sync + 'a,
) -> Vec<Unit<'a>> {
    let needs_ideal = row.asked.iter().any(|asked| matches!(asked, Asked::OfIdeal(_)));
    // What the runs of a row know of each other: who could not be started.
    let shared = Arc::new((row, world, Mutex::new(Vec::new())));
    let unit = |run| {
        let (shared, turns) = (shared.clone(), turns(run, bench.ours, needs_ideal));
        let takes = shared.0.length * u32::try_from(turns.len()).unwrap_or(u32::MAX);
        Unit::new(run, takes, move |sheet| {
            let (row, world, refused) = &*shared;
            each(bench, sheet, (row, run), &turns, &world(u64::from(run) + 1), refused);
            Ok(())
        })
    };
    (0..runs).map(unit).collect()
}

/// One run: all that take turns in it, and their ratios.
fn each(
    bench: &Bench,
    sheet: &mut ReportTable,
    (row, run): (&Row, u32),
    turns: &[Kind],
    world: &World,
    refused: &Mutex<Vec<Kind>>,
) {
    let refused = || refused.lock().unwrap_or_else(PoisonError::into_inner);
    let dark = row.dark.map_or(Vec::new(), |length| blackouts::draw(u64::from(run) + 1, length, row.length));
    let mut pair = Pair::default();
    for kind in turns {
        if refused().contains(kind) {
            continue;
        }
        let taken = match one(bench, row, *kind, world.clone(), &dark) {
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
        if *kind == Kind::Ours && row.asked.contains(&Asked::NoStall) {
            let stalled = taken.flows.iter().any(|flow| flow.pause > row.longest());
            let none = Threshold::AtMost(0.0);
            sheet.count(&row.name, "runs with a stall", ("ours", &none), "ours", u32::from(stalled));
        }
        let available = blackouts::availability(&dark, row.from, row.length);
        let mbps = pair.take(*kind, taken.mbps(0, row.from, row.length), available);
        sheet.add(&row.name, "Mbit/s", ("ours", &Threshold::Stated), kind.name(), mbps);
        tell(sheet, &row.name, *kind, &taken);
    }
    pair.judge(sheet, row);
}

/// Who is measured.
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
fn turns(run: u32, ours: bool, ideal: bool) -> Vec<Kind> {
    let mut turns = vec![Kind::Plain];
    turns.extend(ours.then_some(Kind::Ours));
    turns.extend(ideal.then_some(Kind::Ideal));
    let first = run as usize % turns.len();
    turns.rotate_left(first);
    turns
}

fn one(bench: &Bench, row: &Row, kind: Kind, world: World, dark: &[Blackout]) -> Result<Option<Taken>, LabError> {
    let world = match kind {
        Kind::Ideal => World { loss: Ratio::ZERO, ..world },
        _ => World { events: blackouts::events(crate::accel::world::PRIMARY, dark), ..world },
    };
    let who = if kind == Kind::Ours { row.ours.clone() } else { Who::Plain };
    bench.trial(&world, &who, &[Stream::new(row.secure)], row.length)
}

impl Row {
    fn longest(&self) -> Duration {
        self.dark.unwrap_or_default() + Duration::from_secs(5)
    }
}

impl Pair {
    /// Keeps a figure; the ideal is what is there without trouble, as long as the link is there.
    fn take(&mut self, kind: Kind, mbps: f64, available: Ratio) -> f64 {
        let (place, value) = match kind {
            Kind::Plain => (&mut self.plain, mbps),
            Kind::Ours => (&mut self.ours, mbps),
            Kind::Ideal => (&mut self.ideal, mbps * available.as_f64()),
        };
        *place = Some(value);
        value
    }

    fn judge(&self, sheet: &mut ReportTable, row: &Row) {
        let over = |of: Option<f64>, with: Option<f64>| Some(of? / with.filter(|with| *with > 0.0)?);
        for asked in &row.asked {
            let (what, bound, with) = match *asked {
                Asked::OfPlain(bound) => ("of plain", bound, self.plain),
                Asked::OfIdeal(bound) => ("of ideal", bound, self.ideal),
                Asked::NoStall => continue,
            };
            let floor = Threshold::AtLeast(bound);
            for (who, figure) in [("ours", self.ours), ("plain", self.plain)] {
                if let Some(ratio) = over(figure, with).filter(|_| who == "ours" || what == "of ideal") {
                    sheet.add(&row.name, what, ("ours", &floor), who, ratio);
                }
            }
        }
    }
}

/// What must be known beside a figure.
fn tell(sheet: &mut ReportTable, case: &str, kind: Kind, taken: &Taken) {
    if let Some(why) = taken.emulation.unreliable_reason() {
        sheet.mark_unreliable(case, &why);
    }
    if kind == Kind::Ours {
        let none = || "nothing".to_owned();
        let force = if taken.in_force.is_empty() { none() } else { taken.in_force.join(", ") };
        let alone = taken.left_alone().map(|why| format!("; left alone: {why}")).unwrap_or_default();
        let undone = taken.undone();
        sheet.log(case, &format!(": in force: {force}{alone}; {undone} reductions undone"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_begins_once() {
        let first: Vec<Kind> = (0..3).map(|run| turns(run, true, true)[0]).collect();
        assert_eq!(first, [Kind::Plain, Kind::Ours, Kind::Ideal]);
        assert_eq!(turns(1, false, true), [Kind::Ideal, Kind::Plain]);
        assert_eq!(turns(0, false, false), [Kind::Plain]);
    }

    #[test]
    fn ratios_are_of_one_run_and_the_ideal_is_what_is_there() {
        let mut pair = Pair::default();
        pair.take(Kind::Plain, 6.9, Ratio::ONE);
        pair.take(Kind::Ours, 9.8, Ratio::ONE);
        assert!((pair.take(Kind::Ideal, 19.3, Ratio::from_percent(53)) - 10.229).abs() < 1e-3);
        let row = Row {
            name: "blackout 10s".into(),
            secure: true,
            dark: Some(Duration::from_secs(10)),
            length: Duration::from_secs(60),
            from: Duration::ZERO,
            asked: vec![Asked::OfPlain(4.0), Asked::OfIdeal(0.94), Asked::NoStall],
            ours: Who::ours(),
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
