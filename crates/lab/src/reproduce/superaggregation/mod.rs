//! `marline-lab reproduce super`: reproduces the evaluation of Super-aggregation (§2, §3, §6 and §8). It takes artefacts, senders and
//! variants (`--clients`), and prints tables for people or result rows (`--json`).
//!
//! 1. Real time only: the sender is that of a stock kernel, with cubic, reno and BBR, and not a model of it.
//! 2. Plain TCP, `paper` and ours take turns within each run, with the same losses and blackouts; each cell (one variant in one run) is
//!    stored in `evidence/super/lab.jsonl` as soon as it is done, and `--continue` resumes there. A cell that is measured again in a later
//!    session is then compared with one of an earlier session, and perhaps of another build.
//! 3. Several cells may be measured side by side (`--jobs`); which points with which senders, and how long that takes, is
//!    [`plan`]'s.
//! 4. `--quick` does every point once, with cubic alone and for some seconds.
//! 5. A variant whose accelerator does not start is left out with a line that says so; the others are measured.
//! 6. The exit code is 1 if something else could not be measured.

mod config;
mod energy;
mod explain;
mod measurement;
mod paper;
mod plan;
mod rows;
mod table;

use std::sync::{Mutex, PoisonError};

use marline_core::units::DataSize;

use super::ReproduceArgs;
use super::result_set::ResultSet;
use super::store::ResultStore;
use crate::accel::TrialEnv;
use crate::bench::is_interrupted;
use crate::results::Backend;
use crate::runner::command::{notice, prepare_run, print_line};
use crate::server::Payload;
use crate::worker_pool::{JOB_COST, MAX_JOBS};
use crate::{Congestion, LabError};
use config::{FigurePoint, MEASURED};
use measurement::PointMeasurement;
use plan::PlannedMeasurement;
use rows::Results;

/// The artefacts that can be selected.
const ARTEFACTS: [&str; 9] = ["F1", "F2a", "F2b", "F2c", "F5", "F6", "F7", "F8", "S8"];
/// Repetitions of each point.
const RUNS: u32 = 5;
/// What 30 Mbit/s carry in the longest run.
const DOWNLOAD_SIZE: DataSize = DataSize::from_bytes(250_000_000);

/// Runs the reproduction and returns the exit code.
pub(super) fn run(args: &ReproduceArgs) -> Result<u8, LabError> {
    let chosen = Selection::parse(&args.cases)?;
    let jobs = jobs(args)?;
    if args.sim {
        return Err(LabError::Spec("super has no --sim: what it shows is what a real sender does".into()));
    }
    let senders = match (args.senders.is_empty(), args.quick) {
        (false, _) => args.senders.clone(),
        (true, true) => vec![Congestion::Cubic],
        (true, false) => vec![Congestion::Cubic, Congestion::Reno, Congestion::Bbr],
    };
    let cases = chosen.cases(args.quick, &args.clients)?;
    let is_selected = |case: &FigurePoint| chosen.includes_point(case);
    let cells = if args.uses_stored {
        super::read_stored_results::<PointMeasurement>(args)?
    } else {
        match prepare_run(Backend::Lab) {
            Err(error) if args.quick => {
                notice(&format!("skipped: the lab: {error}"));
                return Ok(0);
            }
            begun => begun?,
        }
        let runs = args.runs.unwrap_or(if args.quick { 1 } else { RUNS });
        let store = match args.quick {
            true => None,
            false => Some(ResultStore::<PointMeasurement>::open(&args.results_file(), args.continues, 1.0)?),
        };
        measure_all(&plan::measurement_batches(&cases, &senders, runs, is_selected), jobs, store)?
    };
    if is_interrupted() && !args.quick {
        notice(&format!("stopped; {} cells are kept, go on with --continue", cells.len()));
        return Ok(130);
    }
    if is_interrupted() {
        notice("interrupted: what follows is no result");
    }
    let failed = cells.iter().any(|cell| cell.problem.is_some());
    let code = if is_interrupted() { 130 } else { u8::from(failed) };
    let rows = Results { cases: &cases, measurements: &cells, senders: &senders }.rows();
    if args.json {
        super::print_rows(args, &rows);
        return Ok(code);
    }
    print_line(
        "\nSuper-aggregation (CoNEXT 2009): the paper's figure / ours, in real time over emulated links, kernel TCP.",
    );
    print_line("The paper plots its figures without numbers; what its text says stands in the columns `paper:`.");
    print_line(
        "The client `paper` is our re-implementation of one reading of the paper, over senders that it did not have:",
    );
    paper::LIMITS.iter().for_each(|limit| print_line(limit));
    print_line(&args.host_line());
    for artefact in ARTEFACTS.into_iter().filter(|artefact| chosen.includes(artefact)) {
        if let Some(table) = table::table(&rows, artefact) {
            print_line(&format!("\n{artefact}: {}\n{}", title(artefact), table.to_text()));
            if let Some(out) = plan::omitted(artefact, &cases, &senders, is_selected) {
                print_line(&out);
            }
        }
    }
    if chosen.includes("F7") {
        print_line(
            "F7: `ranges` (hide) is the form with range requests, which the paper publishes too. F7(a) is left out: how fast one lost \
             segment is fetched cannot be distinguished from the others in `status`.",
        );
    }
    Ok(code)
}

/// The selected artefacts (`F6`) and points (`F6 2s, 50ms`, of which the first words suffice); empty: all.
struct Selection(Vec<String>);

impl Selection {
    fn parse(pieces: &[String]) -> Result<Self, LabError> {
        let mut named: Vec<String> = Vec::new();
        for piece in pieces {
            // The list is cut at commas, and a point's name has one with a space behind it.
            match named.last_mut().filter(|_| piece.starts_with(' ')) {
                Some(last) => *last += &format!(",{piece}"),
                None => named.push(piece.clone()),
            }
        }
        match named.iter().find(|name| !ARTEFACTS.contains(&artefact_of(name))) {
            Some(unknown) => Err(LabError::Spec(format!(
                "no artefact `{unknown}` of Super-aggregation; there are: {}",
                ARTEFACTS.join(", ")
            ))),
            None => Ok(Self(named)),
        }
    }

    fn includes(&self, artefact: &str) -> bool {
        self.0.is_empty() || self.0.iter().any(|name| artefact_of(name) == artefact)
    }

    /// Whether the user named this point, and not all of its artefact.
    fn includes_point(&self, case: &FigurePoint) -> bool {
        let has_artefact = |name: &&String| artefact_of(name) == case.artefact && name.len() > case.artefact.len();
        self.0.iter().filter(has_artefact).any(|name| is_point(name, case))
    }

    /// The points to measure, with the selected variants.
    fn cases(&self, quick: bool, variants: &[String]) -> Result<Vec<FigurePoint>, LabError> {
        let named = |case: &FigurePoint| {
            // The account of §8 has the rates of two points.
            let account = [("F1", "11g-mixed"), ("F5", "11g-mixed, 50ms")];
            let is_accounted =
                self.0.iter().any(|name| name == "S8") && account.contains(&(case.artefact, &case.name));
            self.0.is_empty() || self.0.iter().any(|name| is_point(name, case)) || is_accounted
        };
        let mut all: Vec<FigurePoint> = MEASURED.into_iter().flat_map(config::cases).filter(named).collect();
        if quick {
            all = all.into_iter().map(FigurePoint::quick).collect();
        }
        if !variants.is_empty() {
            for case in &mut all {
                case.variants.retain(|variant| variants.iter().any(|wanted| wanted == variant.name));
            }
            all.retain(|case| !case.variants.is_empty());
        }
        match all.is_empty() {
            true => Err(LabError::Spec("no point or client has such a name; docs/benchmarks.md lists them".into())),
            false => Ok(all),
        }
    }
}

/// Whether a selector names this point: its artefact, and the first words of its name.
fn is_point(name: &str, case: &FigurePoint) -> bool {
    let remaining = name.strip_prefix(artefact_of(name)).unwrap_or_default().trim();
    artefact_of(name) == case.artefact && case.name.starts_with(remaining)
}

fn artefact_of(name: &str) -> &str {
    name.split(' ').next().unwrap_or_default()
}

/// Number of cells to measure in parallel.
fn jobs(args: &ReproduceArgs) -> Result<usize, LabError> {
    let max = usize::from(MAX_JOBS);
    match args.jobs.unwrap_or(1) {
        jobs if jobs > max => {
            Err(LabError::Spec(format!("--jobs {jobs}: at most {max} labs side by side, more are late")))
        }
        jobs => Ok(jobs),
    }
}

/// Measures what is not stored yet, and returns all measurements.
fn measure_all(
    items: &[Vec<PlannedMeasurement<'_>>],
    jobs: usize,
    store: Option<ResultStore<PointMeasurement>>,
) -> Result<Vec<PointMeasurement>, LabError> {
    let results = ResultSet::new(store);
    let payload = Payload::new(DOWNLOAD_SIZE).map_err(LabError::at_step("a file in memory"))?;
    let runner = TrialEnv::new()?;
    let effort = plan::count_and_time(items, |item| results.is_done(&item.point()), jobs);
    notice(&format!("{}; stop with Ctrl-C, go on with --continue", plan::effort_text(effort, jobs)));
    let refused = Mutex::new(Vec::<&'static str>::new());
    let refused = || refused.lock().unwrap_or_else(PoisonError::into_inner);
    let one = |item: &PlannedMeasurement<'_>| {
        let variant = item.variant.name;
        if refused().contains(&variant) {
            return Ok(None);
        }
        match measurement::measure_point(item.case, item.variant, item.sender, item.run, (&payload, &runner)) {
            _ if is_interrupted() => Ok(None),
            Ok(result) => Ok(Some(result)),
            Err(why) if why.to_string().starts_with(START_ERROR) => {
                let mut refused = refused();
                if !refused.contains(&variant) {
                    notice(&format!("`{variant}` is left out: {why}"));
                    refused.push(variant);
                }
                Ok(None)
            }
            Err(reason) => Ok(Some(Err(reason.to_string()))),
        }
    };
    results.measure(items, jobs, PlannedMeasurement::point, |_| JOB_COST, one)?;
    Ok(results.into_measurements())
}

/// Beginning of the error if an accelerator does not start.
const START_ERROR: &str = "cannot start `marline accel`";

fn title(artefact: &str) -> &'static str {
    match artefact {
        "F1" => "two connections over two links (§2.2)",
        "F2a" => "what ACKs take of a cell (§3.1)",
        "F2b" => "a connection over a blackout of 2 s (§3.2)",
        "F2c" => "random loss (§3.3)",
        "F5" => "ACKs over the second link (§6.3)",
        "F6" => "blackouts every 20 s on average (§6.4)",
        "F7" => "random loss, plain HTTP (§6.5)",
        "F8" => "a walk through three access points (§6.6)",
        _ => "joules of 10 MB (§8)",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(selectors: &[&str]) -> Selection {
        Selection::parse(&selectors.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn points_are_named_by_their_first_words() {
        let names = |selectors: &[&str]| {
            let cases = chosen(selectors).cases(false, &[]).unwrap();
            cases.iter().map(|case| format!("{} {}", case.artefact, case.name)).collect::<Vec<_>>()
        };
        assert_eq!(names(&["F6 10s"]), ["F6 10s, 50ms"]);
        assert_eq!(names(&["S8"]), ["F1 11g-mixed", "F5 11g-mixed, 50ms"]);
        assert_eq!(names(&["F2b"]).len(), 1);
        assert!(names(&[]).len() > 30);
        assert_eq!(names(&["F6 2s", " 200ms", "F6 10s"]), ["F6 2s, 200ms", "F6 10s, 50ms"]);
        assert!(
            Selection::parse(&["F3".into()]).is_err() && Selection::parse(&["F6".into(), "F3".into()]).is_err()
        );
    }

    #[test]
    fn only_who_is_wanted_takes_part() {
        let cases = chosen(&["F1", "F6"]).cases(true, &["plain".into(), "ideal".into()]).unwrap();
        assert!(cases.iter().all(|case| case.artefact == "F6" && case.variants.len() == 2));
        assert!(chosen(&["F1"]).cases(false, &["ours".into()]).is_err());
    }

    #[test]
    fn more_labs_at_once_than_a_machine_bears_are_refused() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: ReproduceArgs,
        }
        let parse = |args: &[&str]| {
            let line = [&["reproduce", "super"], args].concat();
            <Line as clap::Parser>::try_parse_from(line).map(|line| line.args)
        };
        let jobs_of = |args: &[&str]| jobs(&parse(args).unwrap());
        assert_eq!(
            (jobs_of(&[]).unwrap(), jobs_of(&["--jobs", "6"]).unwrap(), jobs_of(&["--parallel", "4"]).unwrap()),
            (1, 6, 4)
        );
        assert!(jobs_of(&["--jobs", "17"]).unwrap_err().to_string().contains("at most 16"));
        assert!(parse(&["--jobs", "0"]).is_err());
    }

    #[test]
    fn a_point_is_named_by_more_than_its_artefact() {
        let case = &config::cases("F6")[1];
        assert!(chosen(&["F6 2s, 100ms"]).includes_point(case) && chosen(&["F6 2s"]).includes_point(case));
        assert!(
            !chosen(&["F6"]).includes_point(case)
                && !chosen(&[]).includes_point(case)
                && !chosen(&["F6 10s"]).includes_point(case)
        );
    }
}
