//! `marline-lab reproduce emptcp`: reproduces the evaluation of eMPTCP (CoNEXT 2015, sections 4 and 5), with
//! marline's policy beside it. It prints tables for people or result rows (`--json`).
//!
//! 1. Real time uses kernel MPTCP over emulated links ([`real`]), several cases in parallel ([`measurements`]).
//!    Each is stored in `evidence/emptcp/lab.jsonl` as soon as it is complete; `--continue` resumes there.
//! 2. `--sim` runs the same cases in virtual time ([`simulate`]), with pairs of recorded links, a clairvoyant, and
//!    the published schedulers that are computed. It takes a minute, and nothing is stored.
//! 3. `--quick` runs one small case of each kind; where the machine does not permit a lab, it reports that and
//!    omits it.
//! 4. `--congestion` is the sender's congestion control, `--scale` the share of large files to download,
//!    `--clients` selects the clients.

mod base;
mod clairvoyant;
mod config;
mod figures;
mod measurements;
mod paper;
mod real;
mod rows;
mod runner;
mod simulate;
mod table;
mod thresholds;

use std::path::PathBuf;

use marline_core::energy::Model;

use super::ReproduceArgs;
use super::result_set::ResultSet;
use super::store::ResultStore;
use super::threshold;
use crate::bench::is_interrupted;
use crate::mptcp::testbed::ENERGY_MODEL;
use crate::results::energy::device_model;
use crate::results::{Backend, ResultRow};
use crate::runner::command::{notice, prepare_run, print_line};
use crate::{LabError, scenarios};
use config::{EmptcpClient, RunConfig};
use figures::{ARTEFACTS, CLAIRVOYANT, Effort, FigureCase, GRID, SUSPEND, TRACES};
use measurements::DownloadMeasurement;
use real::CaseRunner;
use runner::CaseResults;
use simulate::CaseResult;

/// Runs the reproduction and returns the exit code: 1 if a download failed.
pub(super) fn run(args: &ReproduceArgs) -> Result<u8, LabError> {
    if args.sim {
        return run_simulated(args);
    }
    let figures = if args.quick { figures::quick_cases() } else { figures_of(args)? };
    if args.uses_stored {
        let cells = super::read_stored_results::<DownloadMeasurement>(args)?;
        return Ok(print_measured(args, &figures, &cells));
    }
    if args.quick {
        if let Err(error) = prepare_run(Backend::Lab) {
            notice(&format!("skipped: the lab: {error}"));
            return Ok(0);
        }
    } else {
        prepare_run(Backend::Lab)?;
    }
    let store = match args.quick {
        true => None,
        false => Some(ResultStore::<DownloadMeasurement>::open(&args.results_file(), args.continues, args.scale)?),
    };
    let results = real(args, &figures, store);
    let (cells, stopped) = match results {
        Err(error) if args.quick => {
            notice(&format!("skipped: the lab: {error}"));
            return Ok(0);
        }
        done => done?,
    };
    if stopped {
        notice(&format!("stopped; {} cases are stored, resume with --continue", cells.len()));
        return Ok(130);
    }
    Ok(print_measured(args, &figures, &cells))
}

/// Prints the results of real time, and returns the exit code.
fn print_measured(args: &ReproduceArgs, figures: &[FigureCase], cells: &[DownloadMeasurement]) -> u8 {
    let model = device_model(ENERGY_MODEL);
    let run_figure = |figure: &FigureCase, client, run: usize| {
        let played = measurements::values_of_run(cells, figure, client, run, args.congestion.name())
            .map(CaseResult::from)?;
        Ok(with_optimum(played, figure, client, run, &model))
    };
    print_results(
        args,
        figures,
        Vec::new(),
        &runner::run_all(figures, run_figure, |_| {}),
        Backend::Lab,
        args.scale,
    )
}

/// Runs everything in virtual time.
fn run_simulated(args: &ReproduceArgs) -> Result<u8, LabError> {
    let (named, base) = split_base(&args.cases);
    let scale = if args.quick { args.scale.min(QUICK_SCALE) } else { args.scale };
    let effort = Effort { runs: args.runs.or(args.quick.then_some(QUICK_RUNS)), scale };
    let mut figures = match named.is_empty() && !base.is_empty() {
        true => Vec::new(),
        false => selected_figures(&named, effort, &scenarios::trace_directories(&args.traces))?,
    };
    let model = device_model(ENERGY_MODEL);
    let mut base: Vec<ResultRow> = match args.cases.is_empty() {
        true => figures::BASE.iter().flat_map(|artefact| base::rows(artefact, &model)).collect(),
        false => base.iter().flat_map(|artefact| base::rows(artefact, &model)).collect(),
    };
    for figure in figures.iter_mut().filter(|figure| figure.has_computed_schedulers()) {
        base.push(rows::mdp_row(figure, &model));
        figure.clients.insert(1, EmptcpClient::Mdp);
    }
    let each = |figure: &FigureCase, client: EmptcpClient, run: usize| {
        let setting = &figure.runs[run];
        let played = simulate::simulate(setting, client, &model, run as u64 + 1)?;
        Ok(with_optimum(played, figure, client, run, &model))
    };
    let report = |figure: &FigureCase| {
        if !args.json {
            notice(&format!("{} {}", figure.artefact, figure.case));
        }
    };
    let results = runner::run_all(&figures, each, report);
    Ok(print_results(args, &figures, base, &results, Backend::Sim, scale))
}

/// Adds the clairvoyant's result for the same bytes and end, if the client is compared with it.
fn with_optimum(
    played: CaseResult,
    figure: &FigureCase,
    client: EmptcpClient,
    run: usize,
    model: &Model,
) -> CaseResult {
    let is_compared = clairvoyant::is_compared(figure, client);
    let setting = figure.runs.get(run).filter(|_| is_compared);
    let least = setting.and_then(|setting| simulate::optimum(setting, model, played.bytes, played.seconds));
    CaseResult { optimum: least, ..played }
}

/// Scale and repetitions of `--sim --quick`.
const QUICK_SCALE: f64 = 0.25;
const QUICK_RUNS: u32 = 2;

/// Splits the selected names into cases and artefacts of the energy information base.
fn split_base(named: &[String]) -> (Vec<String>, Vec<String>) {
    named.iter().cloned().partition(|name| !figures::BASE.contains(&name.as_str()))
}

/// The cases to run in real time, with the selected clients.
fn figures_of(args: &ReproduceArgs) -> Result<Vec<FigureCase>, LabError> {
    let mut figures = selected_figures(&args.cases, Effort { runs: args.runs, scale: args.scale }, &[])?;
    figures.retain(|figure| ![TRACES, GRID].contains(&figure.artefact));
    if let Some(unknown) =
        args.clients.iter().find(|name| EmptcpClient::ALL.iter().all(|client| client.name() != *name))
    {
        let known: Vec<&str> = EmptcpClient::ALL.iter().map(|client| client.name()).collect();
        return Err(LabError::Spec(format!(
            "no client `{unknown}` in eMPTCP's figures; the clients are: {}",
            known.join(", ")
        )));
    }
    if !args.clients.is_empty() {
        figures.iter_mut().for_each(|figure| {
            figure.clients.retain(|client| args.clients.iter().any(|name| name == client.name()))
        });
        figures.retain(|figure| !figure.clients.is_empty());
    }
    Ok(figures)
}

/// The artefacts that must be run for this one. Timelines belong to other artefacts, and the clairvoyant's mean
/// needs many.
fn required_artefacts(name: &str) -> Vec<&str> {
    match name {
        "F7" => vec!["F8"],
        "F9" => vec!["F10"],
        "F12" => vec!["F13"],
        CLAIRVOYANT => clairvoyant::artefacts().collect(),
        name => vec![name],
    }
}

/// The selected figures, all if none is selected; names are such as `F8` or `F10 n=2`.
fn selected_figures(named: &[String], effort: Effort, traces: &[PathBuf]) -> Result<Vec<FigureCase>, LabError> {
    let all = || ARTEFACTS.into_iter().chain([SUSPEND, GRID, TRACES]);
    let artefact = |token: &str| token.split(' ').next().unwrap_or_default().to_owned();
    let needed = |token: &String| {
        let first = artefact(token);
        required_artefacts(&first).into_iter().map(|name| token.replacen(&first, name, 1)).collect::<Vec<_>>()
    };
    let names: Vec<String> = named.iter().flat_map(needed).collect();
    if let Some(unknown) = names.iter().find(|token| all().all(|known| known != artefact(token))) {
        let known: Vec<&str> =
            figures::BASE.into_iter().chain(all()).chain(["F7", "F9", "F12", CLAIRVOYANT]).collect();
        return Err(LabError::Spec(format!("no artefact `{unknown}` of eMPTCP; available: {}", known.join(", "))));
    }
    let wanted = |name: &&str| names.is_empty() || names.iter().any(|token| artefact(token) == **name);
    let figures_of = |name| if name == TRACES { trace_figures(traces) } else { Ok(figures::figures(name, effort)) };
    let figures: Result<Vec<Vec<FigureCase>>, LabError> = all().filter(wanted).map(figures_of).collect();
    let mut figures = figures?.concat();
    let is_selected = |token: &String, figure: &FigureCase| {
        let case = format!("{} {}", figure.artefact, figure.case);
        *token == figure.artefact || case.starts_with(token.as_str())
    };
    figures.retain(|figure| names.is_empty() || names.iter().any(|token| is_selected(token, figure)));
    match figures.is_empty() && names.iter().all(|token| token != TRACES) {
        true => Err(LabError::Spec(format!("no case `{}`; a case is named like `F10 n=2`", names.join(", ")))),
        false => Ok(figures),
    }
}

/// The pairs of recorded links whose traces are available; prints why others are omitted.
fn trace_figures(traces: &[PathBuf]) -> Result<Vec<FigureCase>, LabError> {
    let pairs = scenarios::load("greenbag-pairs")?;
    let (mut figures, mut skipped) = (Vec::new(), Vec::new());
    for case in &pairs.cases {
        match RunConfig::from_trace_case(case, traces, figures::TRACE_WORK) {
            Ok(run) => figures.push(figures::trace_case(case.name.clone(), run)),
            Err(error) => skipped.push((case.name.as_str(), scenarios::trace_error_text(&error, traces))),
        }
    }
    if let Some((first, why)) = skipped.first() {
        notice(&format!("skipped: {TRACES}: {} of {} pairs; {first}: {why}", skipped.len(), pairs.cases.len()));
    }
    Ok(figures)
}

/// Measures in real time what is not stored yet. Returns all measurements, and whether the user interrupted.
fn real(
    args: &ReproduceArgs,
    figures: &[FigureCase],
    store: Option<ResultStore<DownloadMeasurement>>,
) -> Result<(Vec<DownloadMeasurement>, bool), LabError> {
    let runner = CaseRunner::new(args.congestion, args.trace.clone())?;
    let results = ResultSet::new(store);
    measurements::measure_all(figures, &results, &runner, args.jobs.unwrap_or_else(default_jobs))?;
    Ok((results.into_measurements(), is_interrupted()))
}

/// Number of cases that run in parallel: a link of 20 Mbit/s needs a tenth of a CPU core.
fn default_jobs() -> usize {
    2 * std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Prints the results as JSON or tables, and returns the exit code.
fn print_results(
    args: &ReproduceArgs,
    figures: &[FigureCase],
    base: Vec<ResultRow>,
    results: &[CaseResults],
    backend: Backend,
    scale: f64,
) -> u8 {
    let thresholds = thresholds::thresholds(results);
    let mut rows = base;
    rows.iter_mut().for_each(|row| row.backend = backend);
    rows.extend(rows::rows(results, &thresholds, backend, scale));
    let problems: Vec<String> = results.iter().flat_map(CaseResults::problems).collect();
    problems.iter().for_each(|problem| notice(problem));
    if args.json {
        super::print_rows(args, &rows);
        return u8::from(!problems.is_empty());
    }
    let time = match backend {
        Backend::Sim => "virtual time",
        Backend::Lab => "real time over kernel MPTCP and emulated links",
    };
    let size = if (scale - 1.0).abs() < 1e-9 { String::new() } else { format!(", large work scaled to {scale}") };
    print_line(&format!("\neMPTCP (CoNEXT 2015): energy by the model `{ENERGY_MODEL}`, in {time}{size}."));
    print_line(
        "The paper plots its figures without numbers; the percentages in its text are compared further below.",
    );
    print_line(
        "eMPTCP is our re-implementation over upstream MPTCP in three readings of its text (emptcp, emptcp-settled, emptcp-table); \
         docs/how-it-works/algorithms.md lists what it lacks.",
    );
    print_line(&args.host_line());
    for artefact in figures::BASE {
        if let Some(table) = table::base_table(&rows, artefact) {
            print_line(&format!("\n{artefact}: {}\n{}", title(artefact), table.to_text()));
        }
    }
    for artefact in ARTEFACTS.into_iter().chain([SUSPEND, GRID, TRACES, figures::QUICK]) {
        if figures.iter().any(|figure| figure.artefact == artefact) {
            print_line(&format!("\n{artefact}: {}\n{}", title(artefact), table::table(&rows, artefact).to_text()));
        }
    }
    for (artefact, figure, _) in rows::TIMELINES {
        if let Some(table) = table::timeline_table(&rows, artefact) {
            print_line(&format!(
                "\n{artefact}: {} (the first repetition of {figure})\n{}",
                title(artefact),
                table.to_text()
            ));
        }
    }
    if let Some(table) = table::statement_table(&rows) {
        print_line(&format!("\nStatements in the paper's text, and the measured values:\n{}", table.to_text()));
    }
    if let Some(table) = clairvoyant::table(&rows) {
        print_line(&format!(
            "\n{CLAIRVOYANT}: energy divided by the least of all schedules that end no later\n{}",
            table.to_text()
        ));
    }
    if let Some(table) = threshold::table(&thresholds) {
        print_line(&format!("\nThresholds for marline's policy, and whether they are met:\n{}", table.to_text()));
    }
    u8::from(!problems.is_empty())
}

/// Description of an artefact, above its table.
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
