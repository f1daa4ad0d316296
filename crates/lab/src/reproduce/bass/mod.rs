//! `marline-lab reproduce bass`: reproduces the evaluation of BASS (sections II-B and V). It prints tables for
//! people or result rows (`--json`), and compares thresholds.
//!
//! 1. In real time edge, relays, fleet service and origin are the programs that users run. They run in network
//!    namespaces with emulated links, and use the kernel's TCP and MPTCP ([`real`]). Each upload is stored in
//!    `evidence/bass/lab.jsonl` as soon as it is complete; `--continue` resumes there.
//! 2. `--sim` runs the same cases in virtual time ([`simulate`]), and figures 8 to 10 for 8 relays and 60 nodes
//!    ([`fleet`]), which are too large for a lab. Nothing is stored.
//! 3. `--quick` runs a few cases of each artefact with short uploads: less than half a minute in virtual time.
//! 4. `--congestion` is the congestion control of plain TCP and of the edge, in real time; a relay forwards with
//!    its own (BBR if the kernel has it). `--by-fleet` also measures the fleet service's choice of relays.
//! 5. The exit code is 1 if an upload failed; a missed threshold is reported and does not affect it.

mod cases;
mod config;
mod fleet;
mod measurement;
mod real;
mod rows;
mod runner;
mod simulate;
mod table;
mod upload;

use super::ReproduceArgs;
use super::measurement::latest;
use super::result_set::ResultSet;
use super::store::ResultStore;
use super::threshold::{self, Threshold};
use crate::LabError;
use crate::bench::is_interrupted;
use crate::results::{Backend, ResultRow};
use crate::runner::command::{notice, prepare_run, print_line};
use cases::{ARTEFACTS, Effort, MEASURED_ARTEFACTS, measured_artefact};
use config::UploadCase;
use measurement::{UploadId, UploadMeasurement};
use real::UploadRunner;
use rows::Results;

/// Runs the reproduction and returns the exit code: 1 if an upload failed.
pub(super) fn run(args: &ReproduceArgs) -> Result<u8, LabError> {
    let chosen = Selection::parse(&args.cases)?;
    let backend = if args.sim { Backend::Sim } else { Backend::Lab };
    if args.uses_stored {
        let cells = super::read_stored_results::<UploadMeasurement>(args)?;
        let effort = Effort { runs: args.runs.unwrap_or(1), quick: false, includes_fleet: false };
        return Ok(print_results(args, &chosen, &chosen.cases(effort, backend), &cells, None, backend));
    }
    if backend == Backend::Lab {
        match prepare_run(backend) {
            Err(error) if args.quick => {
                notice(&format!("skipped: the lab: {error}"));
                return Ok(0);
            }
            begun => begun?,
        }
    }
    let effort = Effort { runs: args.runs.unwrap_or(1), quick: args.quick, includes_fleet: args.includes_fleet };
    let cases = chosen.cases(effort, backend);
    if backend == Backend::Sim {
        let cells = runner::measure_simulated(&cases, args.congestion.name())?;
        let drawn = if args.quick { QUICK_FLEETS } else { args.runs.unwrap_or(FLEETS) };
        return Ok(print_results(
            args,
            &chosen,
            &cases,
            &cells,
            Some(fleet::rows(|a| chosen.includes(a), drawn)),
            backend,
        ));
    }
    let store = match args.quick {
        true => None,
        false => Some(ResultStore::<UploadMeasurement>::open(&args.results_file(), args.continues, 1.0)?),
    };
    let played = play(args, &cases, store);
    let (cells, stopped) = match played {
        Err(error @ (LabError::UserNamespace { .. } | LabError::Tun { .. })) if args.quick => {
            notice(&format!("skipped: the lab: {error}"));
            return Ok(0);
        }
        played => played?,
    };
    if stopped {
        notice(&format!("stopped; {} uploads are stored, resume with --continue", cells.len()));
        return Ok(130);
    }
    Ok(print_results(args, &chosen, &cases, &cells, None, backend))
}

/// The artefacts and cases selected on the command line.
struct Selection(Vec<String>);

impl Selection {
    /// Parses names such as `F11` or `F11 origin 3`.
    fn parse(named: &[String]) -> Result<Self, LabError> {
        let chosen = Self(named.to_vec());
        match chosen.0.iter().find(|name| !ARTEFACTS.contains(&artefact_of(name))) {
            Some(unknown) => {
                Err(LabError::Spec(format!("no artefact `{unknown}` of BASS; available: {}", ARTEFACTS.join(", "))))
            }
            None => Ok(chosen),
        }
    }

    fn includes(&self, artefact: &str) -> bool {
        self.0.is_empty() || self.0.iter().any(|name| artefact_of(name) == artefact)
    }

    /// The cases to measure. In virtual time [`fleet`] provides the selection of relays.
    fn cases(&self, effort: Effort, backend: Backend) -> Vec<UploadCase> {
        let needs = |artefact: &str| {
            ARTEFACTS.iter().any(|known| measured_artefact(known) == artefact && self.includes(known))
        };
        let mut all: Vec<UploadCase> = MEASURED_ARTEFACTS
            .into_iter()
            .filter(|artefact| needs(artefact))
            .filter(|artefact| backend == Backend::Lab || *artefact != "F9")
            .flat_map(|artefact| cases::cases(artefact, effort))
            .collect();
        let is_selected = |case: &UploadCase, name: &String| {
            let remaining = name.strip_prefix(artefact_of(name)).unwrap_or_default().trim();
            measured_artefact(artefact_of(name)) == case.artefact
                && (remaining.is_empty() || remaining == case.name)
        };
        all.retain(|case| self.0.is_empty() || self.0.iter().any(|name| is_selected(case, name)));
        all
    }
}

fn artefact_of(name: &str) -> &str {
    name.split(' ').next().unwrap_or_default()
}

/// Measures in real time what is not stored yet. Returns all measurements, and whether the user interrupted.
fn play(
    args: &ReproduceArgs,
    cases: &[UploadCase],
    store: Option<ResultStore<UploadMeasurement>>,
) -> Result<(Vec<UploadMeasurement>, bool), LabError> {
    let runner = UploadRunner::new(args.congestion)?;
    let results = ResultSet::new(store);
    runner::measure_real(cases, &results, &runner, args.jobs.unwrap_or(1))?;
    Ok((results.into_measurements(), is_interrupted()))
}

/// Prints the results as JSON or tables, and returns the exit code.
fn print_results(
    args: &ReproduceArgs,
    chosen: &Selection,
    cases: &[UploadCase],
    cells: &[UploadMeasurement],
    drawn: Option<(Vec<ResultRow>, Vec<Threshold>)>,
    backend: Backend,
) -> u8 {
    let results = Results { cases, measurements: cells, congestion: args.congestion.name() };
    let (mut rows, mut thresholds) = results.rows(|artefact| chosen.includes(artefact));
    if let Some((fleet_rows, fleet_thresholds)) = drawn {
        rows.extend(fleet_rows);
        thresholds.extend(fleet_thresholds);
    }
    rows.extend(thresholds.iter().map(Threshold::to_row));
    rows.iter_mut().for_each(|row| row.backend = backend);
    let runs_of = |case: &UploadCase| case.routes.iter().map(|route| (case.clone(), *route)).collect::<Vec<_>>();
    let last = |(case, route): (UploadCase, _)| latest(cells, &UploadId::new(&case, route, args.congestion.name()));
    let problems: Vec<&UploadMeasurement> =
        cases.iter().flat_map(runs_of).filter_map(last).filter(|cell| cell.problem.is_some()).collect();
    let code = u8::from(!problems.is_empty());
    problems.iter().for_each(|cell| notice(&cell.to_line()));
    if args.json {
        super::print_rows(args, &rows);
        return code;
    }
    let time = match backend {
        Backend::Sim => "virtual time",
        Backend::Lab => "real time: edge, relays and kernel MPTCP over emulated links",
    };
    print_line(&format!("\nBASS (arXiv 1605.08969): the paper's value / the measured one, in {time}."));
    print_line(&congestion_note(backend, args.congestion.name()));
    print_line(
        "The paper plots figures 5, 8 and 9 without numbers; the column `paper` has the values in its text.",
    );
    print_line("Omitted: figures 2 to 4 (measurements of the authors' own networks) and 7.");
    print_line(&args.host_line());
    for artefact in ARTEFACTS {
        if let Some(table) = table::table(&rows, artefact) {
            print_line(&format!("\n{artefact}: {}\n{}", title(artefact), table.to_text()));
            if let Some(remark) = table_note(artefact, backend) {
                print_line(remark);
            }
        }
    }
    if let Some(table) = threshold::table(&thresholds) {
        print_line(&format!("\nThresholds for marline's policies, and whether they are met:\n{}", table.to_text()));
    }
    code
}

/// Describes the congestion control of the senders.
fn congestion_note(backend: Backend, edge: &str) -> String {
    match backend {
        Backend::Sim => "Senders: one model of TCP without a choice of congestion control.".into(),
        Backend::Lab => format!(
            "Senders: {edge} in plain TCP and in the edge's subflows; from commit c55d955 on a relay sends to the origin with its \
             own default, BBR where the kernel has it. So gains compare BBR behind the relay with {edge} without one."
        ),
    }
}

/// Remarks that are needed to interpret a table.
fn table_note(artefact: &str, backend: Backend) -> Option<&'static str> {
    Some(match (artefact, backend) {
        ("F5", Backend::Lab) => {
            "Links without loss and a relay 2 ms away: this is the most that edge and relay can bring, not what a network gives."
        }
        ("F8", _) => {
            "The decrease with distance is an input: each kilometer adds RTT and loss (real time), or divides the rate \
             (generated fleets). The paper measured it."
        }
        ("F9", Backend::Lab) => {
            "Three relays, all of them measured. An edge normally measures only the nearest of many, which this table does not show."
        }
        ("F9", Backend::Sim) => {
            "Fleets are generated so that the best candidate has on average 5.2 times the edge's own rate: the size of the gain is an \
             input."
        }
        ("F10", Backend::Lab) => {
            "The rate from a relay to the origin is measured with plain TCP, but the relay sends with BBR, so the predicted best \
             relay is not always the best one. The fleet service (fleet) had no such rates of these fresh relays and selected by the rate \
             to them alone."
        }
        ("F10", Backend::Sim) => {
            "γ is over an edge's own candidates (the paper: over all relays), whose rates are known without error, and the best plan \
             is found by the same solver. A plan does not maximize γ: Algorithm 1, truncated after 10,000 plans, gives more edges \
             their best relay and gains less."
        }
        ("F11" | "F12", Backend::Lab) => {
            "The simulator selects the relay of an origin; the fleet service is not involved, and --by-fleet has no effect \
             here. Losses are uniform from 0 to 2 %, which determines the gain of splitting. The edge is connected to its relay \
             before the clock starts. For plain TCP the fastest of the stored runs with the same seed counts."
        }
        ("F11" | "F12", Backend::Sim) => {
            "The simulator selects the relay of an origin. Losses are uniform from 0 to 2 %, which determines the gain of \
             splitting."
        }
        _ => return None,
    })
}

/// Description of an artefact, above its table.
fn title(artefact: &str) -> &'static str {
    match artefact {
        "F5" => "upload over sets of two Wi-Fi and two 4G links, steady (§II-B)",
        "F8" => "bandwidth over distance (§V-B.1)",
        "F9" => "bandwidth by method of relay selection (§V-B.2)",
        "F10" => "the hit rate γ: how many reach so much of the best relay's bandwidth (§V-B.2)",
        "F11" => "bandwidth at the origins, two links of 8 Mbit/s (§V-C), Mbit/s",
        "F12" => "the gain over plain TCP (§V-C)",
        _ => "uploads that have a floor, steady",
    }
}

/// Number of generated fleets for figures 8 to 10.
const FLEETS: u32 = 20;
const QUICK_FLEETS: u32 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(selectors: &[&str]) -> Selection {
        Selection::parse(&selectors.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn cases_are_named_by_artefact_and_name() {
        let effort = Effort { runs: 1, quick: true, includes_fleet: false };
        let names = |selectors: &[&str], backend| {
            let cases = chosen(selectors).cases(effort, backend);
            cases.iter().map(|case| format!("{} {}", case.artefact, case.name)).collect::<Vec<_>>()
        };
        assert_eq!(names(&["F12 origin 2"], Backend::Lab), ["F11 origin 2"]);
        assert_eq!(names(&["F10"], Backend::Lab), ["F9 origin 1"]);
        assert!(names(&["F10"], Backend::Sim).is_empty());
        assert!(names(&[], Backend::Lab).len() > 6);
        assert!(Selection::parse(&["F6".into()]).is_err());
    }

    #[test]
    fn a_quick_run_in_virtual_time_has_rows_and_thresholds() {
        let effort = Effort { runs: 1, quick: true, includes_fleet: false };
        let all = chosen(&[]);
        let cases = all.cases(effort, Backend::Sim);
        let cells = runner::measure_simulated(&cases, "cubic").unwrap();
        assert!(cells.iter().all(|cell| cell.problem.is_none()));
        let (rows, thresholds) =
            Results { cases: &cases, measurements: &cells, congestion: "cubic" }.rows(|_| true);
        for artefact in ["F5", "X-upload", "F8", "F11", "F12"] {
            assert!(table::table(&rows, artefact).is_some(), "{artefact}");
        }
        assert!(thresholds.iter().any(|threshold| threshold.artefact == "X-upload" && threshold.is_met()));
        assert!(thresholds.iter().any(|threshold| threshold.artefact == "F12"));
    }
}
