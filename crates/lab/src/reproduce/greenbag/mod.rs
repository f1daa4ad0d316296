//! `marline-lab reproduce greenbag`: reproduces the evaluation of GreenBag (RTSS 2013, section V), with marline's
//! policy and a clairvoyant beside it, and further cases for marline's policy. It prints tables for people or
//! result rows (`--json`).
//!
//! 1. In real time videos are played through `marline proxy` over kernel TCP and emulated links ([`real`]), many
//!    cases in parallel ([`measurements`]). Each is stored in `evidence/greenbag/lab.jsonl` as soon as it is
//!    complete; `--continue` resumes there. The same cases in virtual time are reported beside it.
//! 2. In virtual time (`--sim`) the state machine of `marline proxy` runs over the simulator's links and TCP model:
//!    minutes of video in a fraction of a second each, and therefore more repetitions.
//! 3. `--quick` simulates all artefacts with few repetitions and sizes, and plays a few seconds of video in real
//!    time. Where the machine does not permit a lab, it reports that and omits that part.
//! 4. `--runs` sets the number of repetitions of random cases (figure 12, fluctuating links).

mod config;
mod figures;
mod measurements;
mod real;
mod rows;
mod runner;
mod table;
mod thresholds;

use std::path::PathBuf;

use marline_core::units::Duration;

use super::ReproduceArgs;
use super::result_set::ResultSet;
use super::store::ResultStore;
use super::threshold;
use crate::bench::is_interrupted;
use crate::results::Backend;
use crate::runner::command::{notice, prepare_run, print_line};
use crate::runner::format_duration;
use crate::{LabError, scenarios};
use config::RunConfig;
use figures::{ARTEFACTS, Effort, FigureCase, TRACES};
use measurements::PlaybackMeasurement;
use real::PlaybackRunner;
use runner::CaseResults;

/// Runs the reproduction and returns the exit code: 1 if a playback failed.
pub(super) fn run(args: &ReproduceArgs) -> Result<u8, LabError> {
    let wanted = selected_artefacts(&args.cases)?;
    if args.quick {
        return quick(args, &wanted);
    }
    if args.sim {
        let figures = figures_of(args, &wanted, Effort::FULL)?;
        return Ok(print_results(args, &figures, None, &run_simulated(args, &figures)));
    }
    let (figures, cells) = if args.uses_stored {
        (figures_of(args, &wanted, Effort::LAB)?, super::read_stored_results::<PlaybackMeasurement>(args)?)
    } else {
        prepare_run(Backend::Lab)?;
        let figures = figures_of(args, &wanted, Effort::LAB)?;
        let store = ResultStore::open(&args.results_file(), args.continues, 1.0)?;
        let (cells, stopped) = real(args, &figures, store)?;
        if stopped {
            notice(&format!("stopped; {} cases are stored, resume with --continue", cells.len()));
            return Ok(130);
        }
        (figures, cells)
    };
    let figures = measurements::measured_figures(figures, &cells);
    let each = |figure: &FigureCase, policy, run| measurements::result_with_optimum(&cells, figure, policy, run);
    notice(if args.uses_stored { "computing the clairvoyant's results" } else { COMPARISON_NOTE });
    let real = with_unreliable_counts(runner::run_all(&figures, each, |_| {}), &figures, &cells);
    let compared = if args.uses_stored { Vec::new() } else { run_simulated(args, &figures) };
    Ok(print_results(args, &figures, Some(&real), &compared))
}

const COMPARISON_NOTE: &str = "computing the clairvoyant's results, and the same cases in virtual time";

fn with_unreliable_counts(
    mut results: Vec<CaseResults>,
    figures: &[FigureCase],
    cells: &[PlaybackMeasurement],
) -> Vec<CaseResults> {
    for (results, figure) in results.iter_mut().zip(figures) {
        results.unreliable = figure
            .policies
            .iter()
            .map(|policy| (*policy, measurements::unreliable_count(cells, figure, *policy)))
            .collect();
    }
    results
}

/// The selected cases, without those whose traces are missing.
fn figures_of(args: &ReproduceArgs, wanted: &[&'static str], effort: Effort) -> Result<Vec<FigureCase>, LabError> {
    let effort = Effort { runs: args.runs, ..effort };
    let mut figures: Vec<FigureCase> =
        wanted.iter().filter(|name| **name != TRACES).flat_map(|name| figures::figures(name, effort)).collect();
    if wanted.contains(&TRACES) {
        figures.extend(trace_figures(&scenarios::trace_directories(&args.traces))?);
    }
    figures.retain_mut(|figure| figure.retain_named(&args.cases));
    if figures.is_empty() && wanted != [TRACES] {
        return Err(LabError::Spec(format!(
            "no case `{}`; a case is named like `F13 80% marline`",
            args.cases.join(", ")
        )));
    }
    Ok(figures)
}

fn run_simulated(args: &ReproduceArgs, figures: &[FigureCase]) -> Vec<CaseResults> {
    runner::simulate_all(figures, |figure| {
        if !args.json {
            notice(&format!("{} {}", figure.artefact, figure.case));
        }
    })
}

/// Measures in real time what is not stored yet. Returns all measurements, and whether the user interrupted.
fn real(
    args: &ReproduceArgs,
    figures: &[FigureCase],
    store: ResultStore<PlaybackMeasurement>,
) -> Result<(Vec<PlaybackMeasurement>, bool), LabError> {
    let at_once = args.jobs.unwrap_or_else(default_jobs);
    let videos = runner::all_runs(figures).into_iter().map(|(at, ..)| figures[at].runs[0].video().duration());
    let least = videos.sum::<Duration>() / u32::try_from(at_once.max(1)).unwrap_or(u32::MAX);
    notice(&format!(
        "{} of video with {at_once} jobs in parallel; stop with Ctrl-C, resume with --continue",
        format_duration(least)
    ));
    let playback_runner = PlaybackRunner::new(args.trace.clone())?;
    let results = ResultSet::new(Some(store));
    measurements::measure_all(figures, &results, &playback_runner, at_once)?;
    Ok((results.into_measurements(), is_interrupted()))
}

/// Number of cases that run in parallel: each needs a twentieth of a CPU core, so half of the machine stays idle.
fn default_jobs() -> usize {
    8 * std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// `--quick`: all artefacts in virtual time, and a short video in real time.
fn quick(args: &ReproduceArgs, wanted: &[&'static str]) -> Result<u8, LabError> {
    // Acquire privileges first: that is only possible while there is one thread.
    let lab = if args.sim { None } else { Some(prepare_run(Backend::Lab)) };
    let figures = figures_of(args, wanted, Effort::QUICK)?;
    let code = print_results(args, &figures, None, &run_simulated(args, &figures));
    let short = figures::quick_cases();
    let played = match lab {
        None => return Ok(code),
        Some(Err(error)) => Err(error),
        Some(Ok(())) => {
            let playback_runner = PlaybackRunner::new(args.trace.clone())?;
            let results = ResultSet::new(None).with_line_prefix(Some("lab: "));
            let played = measurements::measure_all(&short, &results, &playback_runner, QUICK_JOBS);
            played.map(|()| (is_interrupted(), results.into_measurements()))
        }
    };
    let cells = match played {
        Ok((true, _)) => return Ok(130),
        Ok((false, cells)) => cells,
        Err(error) => {
            notice(&format!("skipped: the lab: {error}"));
            return Ok(code);
        }
    };
    let shown = measurements::measured_figures(short, &cells);
    let real = runner::run_all(
        &shown,
        |figure, policy, run| measurements::result_with_optimum(&cells, figure, policy, run),
        |_| {},
    );
    Ok(code.max(print_results(args, &shown, Some(&real), &runner::simulate_all(&shown, |_| {}))))
}

/// All cases of the short video run in parallel.
const QUICK_JOBS: usize = 3;

/// Prints the results as JSON or tables, and returns the exit code.
fn print_results(
    args: &ReproduceArgs,
    figures: &[FigureCase],
    real: Option<&[CaseResults]>,
    simulated: &[CaseResults],
) -> u8 {
    let (results, backend) = real.map_or((simulated, Backend::Sim), |real| (real, Backend::Lab));
    let thresholds = thresholds::thresholds(results);
    let rows = rows::rows(results, &thresholds, backend);
    let unreliable_count: usize =
        results.iter().flat_map(|results| &results.unreliable).map(|(_, count)| count).sum();
    let compared = real.filter(|_| !simulated.is_empty());
    let compared = compared.map(|_| rows::rows(simulated, &thresholds::thresholds(simulated), Backend::Sim));
    let compared = compared.as_deref();
    let problems: Vec<String> = results.iter().flat_map(CaseResults::problems).collect();
    problems.iter().for_each(|problem| notice(problem));
    if args.json {
        super::print_rows(args, rows.iter().chain(compared.unwrap_or_default()));
        return u8::from(!problems.is_empty());
    }
    let time = match backend {
        Backend::Sim => "virtual time",
        Backend::Lab if compared.is_none() => "real time over kernel TCP and emulated links",
        Backend::Lab => "real time over kernel TCP and emulated links, beside virtual time (sim)",
    };
    print_line(&format!(
        "\nGreenBag (RTSS 2013): playback, interruption and energy in {time}, compared with a clairvoyant."
    ));
    print_line("The paper plots its figures without numbers; the numbers in its text are compared further below.");
    print_line(
        "greenbag-p and greenbag-e are our re-implementation: w_r, w_e and the chooser's margin are chosen, recovery and the choice \
         of links have additional conditions (docs/how-it-works/algorithms.md). The player has no high threshold, figure 14 included.",
    );
    print_line(&args.host_line());
    for artefact in ARTEFACTS.into_iter().chain([TRACES, figures::QUICK]) {
        if figures.iter().any(|figure| figure.artefact == artefact) {
            let table = table::table(&rows, compared, artefact);
            print_line(&format!("\n{artefact}: {}\n{}", title(artefact), table.to_text()));
        }
    }
    if unreliable_count > 0 {
        print_line(&format!(
            "{unreliable_count} playbacks are suspect (see the notes of --json); --continue repeats them."
        ));
    }
    if let Some(table) = table::statement_table(&rows, compared) {
        print_line(&format!("Statements in the paper's text, and the measured values:\n{}", table.to_text()));
    }
    if let Some(table) = threshold::table(&thresholds) {
        print_line(&format!("Thresholds for marline's policies, and whether they are met:\n{}", table.to_text()));
    }
    u8::from(!problems.is_empty())
}

/// The selected artefacts; all, if none is selected.
fn selected_artefacts(named: &[String]) -> Result<Vec<&'static str>, LabError> {
    let all = || ARTEFACTS.into_iter().chain([TRACES]);
    let artefact = |name: &str| name.split(' ').next().unwrap_or_default().to_owned();
    if let Some(unknown) = named.iter().find(|name| all().all(|known| known != artefact(name))) {
        let known: Vec<&str> = all().collect();
        return Err(LabError::Spec(format!(
            "no artefact `{unknown}` of GreenBag; available: {}",
            known.join(", ")
        )));
    }
    Ok(all().filter(|known| named.is_empty() || named.iter().any(|name| artefact(name) == *known)).collect())
}

/// The pairs of recorded links whose traces are available; prints why others are omitted.
fn trace_figures(traces: &[PathBuf]) -> Result<Vec<FigureCase>, LabError> {
    let pairs = scenarios::load("greenbag-pairs")?;
    let (mut figures, mut skipped) = (Vec::new(), Vec::new());
    for case in &pairs.cases {
        match RunConfig::from_trace_case(case, traces, PAIR_LENGTH, PAIR_SHARE) {
            Ok(run) => figures.push(figures::trace_case(case.name.clone(), run)),
            Err(error) => skipped.push((case.name.as_str(), scenarios::trace_error_text(&error, traces))),
        }
    }
    if let Some((first, why)) = skipped.first() {
        notice(&format!("skipped: {TRACES}: {} of {} pairs; {first}: {why}", skipped.len(), pairs.cases.len()));
    }
    Ok(figures)
}

/// Video of recorded pairs: length, and share of the mean bandwidth as in figure 13 at 80 %.
const PAIR_LENGTH: Duration = Duration::from_secs(120);
const PAIR_SHARE: f64 = 0.8;

/// Description of an artefact, above its table.
fn title(artefact: &str) -> &'static str {
    match artefact {
        "F9a" => "size of segments × ratio of LTE to Wi-Fi, 6 Mbit/s in all, 40 s of video at 90 %",
        "F9b" => "size of segments × bit rate, 3 + 3 Mbit/s, 40 s of video",
        "F10" => "adaptive and equal subsegments × ratio of LTE to Wi-Fi, 40 s of video at 80 %",
        "F11" => "one hole of 15 s in Wi-Fi, the bandwidth being 110 % of the video's rate",
        "F12" => "holes of 6 to 25 s in Wi-Fi; 110 s of video at 110 % of the bandwidth, and with a tenth to spare",
        "F13" => "bit rate, 3 + 3 Mbit/s, 120 s of video",
        "F14" => "Table II's bandwidths, 117 s of video at 6.1 Mbit/s, segments of 1000 KiB",
        "X-over" => "bit rates above the bandwidth, 3 + 3 Mbit/s, 120 s of video",
        figures::QUICK => "3 + 3 Mbit/s, 10 s of video at 80 %",
        "X-fluct" => {
            "fluctuating bandwidths (log-AR(1), 1 s, memory 0.8); a constant of marline was chosen on the first 20 draws"
        }
        _ => "pairs of recorded links, 120 s of video at 80 % of what they carry on the average",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn artefacts_are_named_and_unknown_ones_refused() {
        assert_eq!(selected_artefacts(&[]).unwrap().len(), 10);
        assert_eq!(selected_artefacts(&["X-over 110% marline".into(), "F9a".into()]).unwrap(), ["F9a", "X-over"]);
        let refused = selected_artefacts(&["F15".into()]).unwrap_err().to_string();
        assert!(refused.contains("`F15`") && refused.contains("F9a, F9b"), "{refused}");
    }

    #[test]
    fn pairs_without_traces_are_omitted() {
        assert!(trace_figures(&[]).unwrap().is_empty());
        let pairs = scenarios::load("greenbag-pairs").unwrap();
        assert!(pairs.cases.len() >= 12 && pairs.cases.iter().all(|case| case.links.len() == 2));
    }
}
