//! `marline-lab reproduce emptcp`: the evaluation of eMPTCP (CoNEXT 2015, §4 and §5) again, with our own policy beside it.
//!
//! In: which artefacts. Out: tables for people, or rows in the form of every reproduction (`--json`).
//!
//! 1. In real time everything is kernel MPTCP over emulated links ([`real`]), several cases at once ([`cells`]), each kept
//!    in `evidence/emptcp/lab.jsonl` as soon as it is done; `--continue` goes on there.
//! 2. `--sim`: the same cases in virtual time ([`simulate`]), with pairs of recorded links, a clairvoyant and the published
//!    schedulers that are computed beside them; a minute, and nothing is kept.
//! 3. `--quick` does one case of each sort, small; where the machine forbids a lab, it says so and leaves it out.
//! 4. `--cc` is the sender's congestion control, `--scale` how much of large files is downloaded, `--clients`
//!    who is compared.

mod base;
mod cells;
mod clairvoyant;
mod figures;
mod floors;
mod paper;
mod real;
mod rows;
mod runner;
mod setting;
mod simulate;
mod table;

use std::path::PathBuf;

use marline_core::energy::Model;

use super::ReproduceArgs;
use super::book::Book;
use super::floor;
use super::store::Store;
use crate::bench::is_stopped;
use crate::evidence::joules::device;
use crate::evidence::{By, Row};
use crate::mptcp::stage::DEVICE;
use crate::runner::command::{begin, print, say};
use crate::{LabError, scenarios};
use cells::Cell;
use figures::{ARTEFACTS, CLAIRVOYANT, Effort, Figure, GRID, SUSPEND, TRACES};
use real::Workshop;
use runner::Done;
use setting::{Setting, Who};
use simulate::Played;

/// Does it, and gives the exit code: 1 if something could not be downloaded.
pub(super) fn run(args: &ReproduceArgs) -> Result<u8, LabError> {
    if args.sim {
        return simulated(args);
    }
    let figures = if args.quick { figures::short() } else { figures_of(args)? };
    if args.kept {
        let cells = super::read::<Cell>(args)?;
        return Ok(measured(args, &figures, &cells));
    }
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
        false => Some(Store::<Cell>::open(&args.file(), args.go_on, args.scale)?),
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
    Ok(measured(args, &figures, &cells))
}

/// Prints what real time has made of these figures, and gives the exit code.
fn measured(args: &ReproduceArgs, figures: &[Figure], cells: &[Cell]) -> u8 {
    let model = device(DEVICE);
    let of = |figure: &Figure, who, run: usize| {
        let played = cells::measured(cells, figure, who, run, args.cc.name()).map(Played::from)?;
        Ok(with_clairvoyant(played, figure, who, run, &model))
    };
    show(args, figures, Vec::new(), &runner::gather(figures, of, |_| {}), By::Lab, args.scale)
}

/// Everything in virtual time.
fn simulated(args: &ReproduceArgs) -> Result<u8, LabError> {
    let (named, base) = split(&args.cases);
    let scale = if args.quick { args.scale.min(QUICK_SCALE) } else { args.scale };
    let effort = Effort { runs: args.runs.or(args.quick.then_some(QUICK_RUNS)), scale };
    let mut figures = match named.is_empty() && !base.is_empty() {
        true => Vec::new(),
        false => chosen(&named, effort, &scenarios::trace_directories(&args.traces))?,
    };
    let model = device(DEVICE);
    let mut base: Vec<Row> = match args.cases.is_empty() {
        true => figures::BASE.iter().flat_map(|artefact| base::rows(artefact, &model)).collect(),
        false => base.iter().flat_map(|artefact| base::rows(artefact, &model)).collect(),
    };
    for figure in figures.iter_mut().filter(|figure| figure.is_computed()) {
        base.push(rows::computed(figure, &model));
        figure.who.insert(1, Who::Mdp);
    }
    let each = |figure: &Figure, who: Who, run: usize| {
        let setting = &figure.settings[run];
        let played = simulate::play(setting, who, &model, run as u64 + 1)?;
        Ok(with_clairvoyant(played, figure, who, run, &model))
    };
    let tell = |figure: &Figure| {
        if !args.json {
            say(&format!("{} {}", figure.artefact, figure.case));
        }
    };
    let done = runner::gather(&figures, each, tell);
    Ok(show(args, &figures, base, &done, By::Sim, scale))
}

/// With what a clairvoyant could have done instead, where it is asked.
fn with_clairvoyant(played: Played, figure: &Figure, who: Who, run: usize, model: &Model) -> Played {
    let asked = clairvoyant::is_asked(figure, who);
    let setting = figure.settings.get(run).filter(|_| asked);
    let least = setting.and_then(|setting| simulate::least(setting, model, played.bytes, played.seconds));
    Played { least, ..played }
}

/// `--sim --quick`.
const QUICK_SCALE: f64 = 0.25;
const QUICK_RUNS: u32 = 2;

/// What was named: cases, and artefacts of the energy information base.
fn split(named: &[String]) -> (Vec<String>, Vec<String>) {
    named.iter().cloned().partition(|word| !figures::BASE.contains(&word.as_str()))
}

fn figures_of(args: &ReproduceArgs) -> Result<Vec<Figure>, LabError> {
    let mut figures = chosen(&args.cases, Effort { runs: args.runs, scale: args.scale }, &[])?;
    figures.retain(|figure| ![TRACES, GRID].contains(&figure.artefact));
    if let Some(unknown) = args.clients.iter().find(|name| Who::ALL.iter().all(|who| who.name() != *name)) {
        let known: Vec<&str> = Who::ALL.iter().map(|who| who.name()).collect();
        return Err(LabError::Spec(format!("no client `{unknown}` of eMPTCP's figures: {}", known.join(", "))));
    }
    if !args.clients.is_empty() {
        figures
            .iter_mut()
            .for_each(|figure| figure.who.retain(|who| args.clients.iter().any(|name| name == who.name())));
        figures.retain(|figure| !figure.who.is_empty());
    }
    Ok(figures)
}

/// The figures that were named, all if none was; `F8`, `F10 n=2`.
fn chosen(named: &[String], effort: Effort, traces: &[PathBuf]) -> Result<Vec<Figure>, LabError> {
    let all = || ARTEFACTS.into_iter().chain([SUSPEND, GRID, TRACES]);
    let artefact = |word: &str| word.split(' ').next().unwrap_or_default().to_owned();
    let needed = |word: &String| {
        let first = artefact(word);
        figures::needs(&first).into_iter().map(|name| word.replacen(&first, name, 1)).collect::<Vec<_>>()
    };
    let words: Vec<String> = named.iter().flat_map(needed).collect();
    if let Some(unknown) = words.iter().find(|word| all().all(|known| known != artefact(word))) {
        let known: Vec<&str> =
            figures::BASE.into_iter().chain(all()).chain(["F7", "F9", "F12", CLAIRVOYANT]).collect();
        return Err(LabError::Spec(format!("no artefact `{unknown}` of eMPTCP: {}", known.join(", "))));
    }
    let wanted = |name: &&str| words.is_empty() || words.iter().any(|word| artefact(word) == **name);
    let of = |name| if name == TRACES { recorded(traces) } else { Ok(figures::figures(name, effort)) };
    let figures: Result<Vec<Vec<Figure>>, LabError> = all().filter(wanted).map(of).collect();
    let mut figures = figures?.concat();
    let is_named = |word: &String, figure: &Figure| {
        let case = format!("{} {}", figure.artefact, figure.case);
        *word == figure.artefact || case.starts_with(word.as_str())
    };
    figures.retain(|figure| words.is_empty() || words.iter().any(|word| is_named(word, figure)));
    match figures.is_empty() && words.iter().all(|word| word != TRACES) {
        true => Err(LabError::Spec(format!("no case `{}`: `F10 n=2` is how one is named", words.join(", ")))),
        false => Ok(figures),
    }
}

/// The pairs of recorded links whose traces are there; of the others it is said why they are left out.
fn recorded(traces: &[PathBuf]) -> Result<Vec<Figure>, LabError> {
    let pairs = scenarios::find("greenbag-pairs")?;
    let (mut figures, mut skipped) = (Vec::new(), Vec::new());
    for case in &pairs.cases {
        match Setting::recorded(case, traces, figures::RECORDED) {
            Ok(setting) => figures.push(figures::recorded(case.name.clone(), setting)),
            Err(error) => skipped.push((case.name.as_str(), scenarios::trace_refusal(&error, traces))),
        }
    }
    if let Some((first, why)) = skipped.first() {
        say(&format!("skipped: {TRACES}: {} of {} pairs; {first}: {why}", skipped.len(), pairs.cases.len()));
    }
    Ok(figures)
}

/// Does in real time what the store does not have; gives all that it has then, and whether the user stopped it.
fn real(
    args: &ReproduceArgs,
    figures: &[Figure],
    store: Option<Store<Cell>>,
) -> Result<(Vec<Cell>, bool), LabError> {
    let workshop = Workshop::new(args.cc, args.trace.clone())?;
    let book = Book::new(store);
    cells::play(figures, &book, &workshop, args.jobs.unwrap_or_else(usual_crowd))?;
    Ok((book.into_cells(), is_stopped()))
}

/// So many cases at once: a link of 20 Mbit/s needs a tenth of a core.
fn usual_crowd() -> usize {
    2 * std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Prints everything in the form that was asked for, and gives the exit code.
fn show(args: &ReproduceArgs, figures: &[Figure], base: Vec<Row>, done: &[Done], by: By, scale: f64) -> u8 {
    let floors = floors::floors(done);
    let mut rows = base;
    rows.iter_mut().for_each(|row| row.by = by);
    rows.extend(rows::rows(done, &floors, by, scale));
    let problems: Vec<String> = done.iter().flat_map(Done::problems).collect();
    problems.iter().for_each(|problem| say(problem));
    if args.json {
        super::print_rows(args, &rows);
        return u8::from(!problems.is_empty());
    }
    let time = match by {
        By::Sim => "virtual time",
        By::Lab => "real time over kernel MPTCP and emulated links",
    };
    let size = if (scale - 1.0).abs() < 1e-9 { String::new() } else { format!(", large work scaled to {scale}") };
    print(&format!("\neMPTCP (CoNEXT 2015): energy by the model `{DEVICE}`, in {time}{size}."));
    print(
        "The paper plots its figures and gives no numbers for them; what its text says in percent stands further below.",
    );
    print(
        "eMPTCP is our re-implementation over upstream MPTCP in three readings of its text (emptcp, emptcp-settled, emptcp-table); \
         docs/algorithms.md lists what it lacks.",
    );
    print(&args.place());
    for artefact in figures::BASE {
        if let Some(table) = table::base(&rows, artefact) {
            print(&format!("\n{artefact}: {}\n{}", title(artefact), table.plain()));
        }
    }
    for artefact in ARTEFACTS.into_iter().chain([SUSPEND, GRID, TRACES, figures::SHORT]) {
        if figures.iter().any(|figure| figure.artefact == artefact) {
            print(&format!("\n{artefact}: {}\n{}", title(artefact), table::table(&rows, artefact).plain()));
        }
    }
    for (artefact, of, _) in rows::COURSES {
        if let Some(table) = table::course(&rows, artefact) {
            print(&format!("\n{artefact}: {} (the first repetition of {of})\n{}", title(artefact), table.plain()));
        }
    }
    if let Some(table) = table::said(&rows) {
        print(&format!("\nWhat the paper's text says, and ours:\n{}", table.plain()));
    }
    if let Some(table) = clairvoyant::table(&rows) {
        print(&format!(
            "\n{CLAIRVOYANT}: energy over the least of all schedules that end no later\n{}",
            table.plain()
        ));
    }
    if let Some(table) = floor::table(&floors) {
        print(&format!("\nFloors:\n{}", table.plain()));
    }
    u8::from(!problems.is_empty())
}

fn title(artefact: &str) -> &'static str {
    match artefact {
        "T2" => {
            "thresholds of the energy information base (§3.3); the model is fitted to these entries: agreement shows nothing"
        }
        "F3" => "energy per byte of both links over the better one's (§3.3)",
        "F4" => "where both are best for a whole transfer, promotion and tail included (§4.1)",
        "F5" => "good Wi-Fi, 256 MB (§4.2)",
        "F6" => "bad Wi-Fi, 256 MB (§4.2)",
        "F7" => "joules over time, Wi-Fi on and off",
        "F8" => "Wi-Fi on and off, 256 MB (§4.3)",
        "F9" => "Mbit/s of Wi-Fi + LTE over time, two nodes in the background",
        "F10" => "other nodes on the channel, 256 MB (§4.4)",
        "F12" => "joules over time on the walk",
        "F13" => "a walk of 250 s out of range and back (§4.5)",
        "F15" => "256 KB in four categories (§5.2)",
        "F16" => "16 MB in four categories (§5.3)",
        "F17" => "a page of 107 objects over six connections (§5.4)",
        "X-unequal" => "links far from equal, 100 MB, for throughput",
        GRID => "Wi-Fi on and off as in F8, with other rates of LTE and of bad Wi-Fi",
        SUSPEND => "bad Wi-Fi becomes good, 160 MB",
        TRACES => "pairs of recorded links, 48 MB",
        _ => "one of each sort, small",
    }
}
