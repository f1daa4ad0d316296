//! `marline lab reproduce emptcp`: the evaluation of eMPTCP (CoNEXT 2015, §4 and §5) again, with our own policy beside it.
//!
//! In: which artefacts. Out: tables for people, or rows in the form of every reproduction (`--json`).
//!
//! 1. In real time everything is kernel MPTCP over emulated links ([`real`]), several cases at once ([`cells`]), each kept
//!    in `evidence/emptcp/lab.jsonl` as soon as it is done; `--continue` goes on there.
//! 2. `--quick` does one case of each sort, small; where the machine forbids a lab, it says so and leaves it out.
//! 3. `--cc` is the sender's congestion control, `--scale` how much of large files and long walks is done.

mod cells;
mod figures;
mod real;
mod setting;

use std::sync::Mutex;

use super::ReproduceArgs;
use super::store::Store;
use crate::LabError;
use crate::evidence::{By, Machine, stats};
use crate::page::Table;
use crate::runner::command::{begin, print, say};
use cells::Cell;
use figures::{ARTEFACTS, Effort, Figure, SUSPEND};
use real::{Measured, Workshop};

/// Does it, and gives the exit code: 1 if something could not be downloaded.
pub(super) fn run(args: &ReproduceArgs) -> Result<u8, LabError> {
    let figures = if args.quick { figures::short() } else { figures_of(args)? };
    if args.quick {
        if let Err(error) = begin(By::Lab) {
            say(&format!("skipped: the lab: {error}"));
            return Ok(0);
        }
    } else {
        begin(By::Lab)?;
    }
    let store = match args.quick {
        true => None,
        false => Some(Store::<Cell>::open(&args.out.join("emptcp").join("lab.jsonl"), args.go_on, args.scale)?),
    };
    let done = real(args, &figures, store);
    let (cells, stopped) = match done {
        Err(error) if args.quick => {
            say(&format!("skipped: the lab: {error}"));
            return Ok(0);
        }
        done => done?,
    };
    if stopped {
        say(&format!("stopped; {} cases are kept, go on with --continue", cells.len()));
        return Ok(130);
    }
    Ok(show(args, &figures, &cells))
}

fn figures_of(args: &ReproduceArgs) -> Result<Vec<Figure>, LabError> {
    let all = || ARTEFACTS.into_iter().chain([SUSPEND]);
    let artefact = |word: &String| word.split(' ').next().unwrap_or_default().to_owned();
    if let Some(unknown) = args.cases.iter().find(|word| all().all(|known| known != artefact(word))) {
        let known: Vec<&str> = all().collect();
        return Err(LabError::Spec(format!("no artefact `{unknown}` of eMPTCP: {}", known.join(", "))));
    }
    let wanted = |name: &&str| args.cases.is_empty() || args.cases.iter().any(|word| artefact(word) == **name);
    let effort = Effort { runs: args.runs, scale: args.scale };
    let mut figures: Vec<Figure> = all().filter(wanted).flat_map(|name| figures::figures(name, effort)).collect();
    let words = |word: &String, figure: &Figure| {
        let case = format!("{} {}", figure.artefact, figure.case);
        *word == figure.artefact || case.starts_with(word.as_str())
    };
    figures.retain(|figure| args.cases.is_empty() || args.cases.iter().any(|word| words(word, figure)));
    match figures.is_empty() {
        true => Err(LabError::Spec(format!("no case `{}`: `F10 n=2` is how one is named", args.cases.join(", ")))),
        false => Ok(figures),
    }
}

/// Does in real time what the store does not have; gives all that it has then, and whether the user stopped it.
fn real(
    args: &ReproduceArgs,
    figures: &[Figure],
    mut store: Option<Store<Cell>>,
) -> Result<(Vec<Cell>, bool), LabError> {
    let there = store.as_mut().map(|store| std::mem::take(&mut store.earlier)).unwrap_or_default();
    let at_once = args.parallel.unwrap_or_else(usual_crowd);
    let workshop = Workshop::new(args.cc, args.trace.clone())?;
    let kept = Mutex::new((store, there.clone()));
    let tell = |cell: &Cell| {
        say(&cell.line());
        let mut kept = kept.lock().map_err(|_| LabError::Emulator("another case has failed".into()))?;
        kept.1.push(cell.clone());
        kept.0.as_mut().map_or(Ok(()), |store| store.keep(cell))
    };
    let stopped = cells::play(figures, &there, &workshop, at_once, tell)?;
    let (_, cells) = kept.into_inner().map_err(|_| LabError::Emulator("another case has failed".into()))?;
    Ok((cells, stopped))
}

/// So many cases at once: a link of 20 Mbit/s needs a tenth of a core.
fn usual_crowd() -> usize {
    2 * std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

fn show(args: &ReproduceArgs, figures: &[Figure], cells: &[Cell]) -> u8 {
    print(&Machine::here().line());
    let mut failed = false;
    let mut rows = Vec::new();
    for figure in figures {
        for who in &figure.who {
            let runs: Vec<&Measured> = (0..figure.settings.len())
                .filter_map(|run| {
                    let measured = cells::measured(cells, figure, *who, run, args.cc.name());
                    failed |= measured.is_err();
                    measured.ok()
                })
                .collect();
            let of = |each: fn(&Measured) -> f64| {
                let values: Vec<f64> = runs.iter().map(|run| each(run)).collect();
                let spread = stats::sigma(&values).unwrap_or(0.0);
                stats::mean(&values).map_or("–".into(), |mean| format!("{mean:.2} ± {spread:.2}"))
            };
            let lte = |run: &Measured| run.links.get(1).map_or(0.0, |lte| lte.carried_bytes as f64 / 1e6);
            rows.push(vec![
                figure.artefact.into(),
                figure.case.clone(),
                who.name().into(),
                of(|run| run.seconds),
                of(|run| run.energy_j),
                of(|run| run.energy_j * 1e6 / run.bytes.max(1) as f64),
                of(lte),
                format!("{}", runs.len()),
            ]);
        }
    }
    let head = ["artefact", "case", "who", "s", "J", "J/MB", "MB over LTE", "runs"];
    let table = Table { head: head.map(String::from).into(), rows, note: None };
    print(&table.plain());
    u8::from(failed)
}
