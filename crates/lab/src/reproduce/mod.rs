//! `marline-lab reproduce NAME`: reproduces the tables and figures of a paper, and prints its values beside the
//! measured ones, as tables for people or as one [`ResultRow`] per line (`--json`).
//!
//! The papers are the multi-link HTTP thesis ([`thesis`]), GreenBag ([`greenbag`]), eMPTCP ([`emptcp`]), BASS
//! ([`bass`]) and Super-aggregation ([`superaggregation`]). The rules below are those of the thesis.
//!
//! 1. In real time every download is stored in `evidence/NAME/lab.jsonl` as soon as it is complete; `--continue`
//!    resumes there.
//! 2. `--sim` runs the same in virtual time, within a minute, and stores nothing, because it is quickly repeated.
//! 3. `--quick` simulates all artefacts once and runs one lab case, scaled down. It ends within a minute. Where the
//!    machine does not permit a lab, it reports that and omits the lab case.
//! 4. `--stored` prints the tables of the stored file again without measuring, with the commits and machines of its
//!    sessions. So a figure in the documentation can be compared with the file that it was taken from.
//! 5. An option without effect is refused ([`check_options`]): it must not suggest a measurement that was not made.

mod bass;
mod emptcp;
mod greenbag;
mod measurement;
mod paper;
mod parallel;
mod result_set;
mod store;
mod superaggregation;
mod thesis;
mod thesis_energy;
mod threshold;

use std::path::PathBuf;

use clap::Args;
use marline_sim::scenario::Scenario;

use crate::results::{Backend, DownloadOutcome, HostInfo, ResultRow};
use crate::runner::command::{notice, outcome_line, prepare_run, print_line, retain_cases};
use crate::runner::{Results, RunPlan, format_duration};
use crate::{LabError, scenarios};
use paper::ThesisFigures;
use store::{Persist, ResultStore};

/// Options of `marline-lab reproduce`.
#[derive(Clone, Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct ReproduceArgs {
    /// The paper: thesis, greenbag, emptcp, bass, super.
    #[arg(value_name = "NAME")]
    name: String,
    /// Run in virtual time: a minute instead of hours (not super).
    #[arg(long)]
    sim: bool,
    /// Number of repetitions, instead of the paper's.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    runs: Option<u32>,
    /// Run everything once and scaled down: within a minute (super: half an hour, five minutes with --jobs 6).
    #[arg(long)]
    quick: bool,
    /// Continue with the stored results.
    #[arg(long = "continue")]
    continues: bool,
    /// Print the tables of the stored results with their commits and machines; measure nothing. Use the same
    /// --scale, --runs and --clients as for the results.
    #[arg(long = "stored", conflicts_with_all = ["sim", "quick", "continues"])]
    uses_stored: bool,
    /// Print one JSON object per figure, one per line.
    #[arg(long)]
    json: bool,
    /// Only these cases (thesis: HS-S7) or artefacts (greenbag: F13; also `F13 80%`, `F13 80% marline`; bass: `F11
    /// origin 3`; super: `F6 2s, 50ms`).
    #[arg(long = "case", value_name = "LIST", value_delimiter = ',')]
    cases: Vec<String>,
    /// Only these clients, as the tables name them (emptcp in real time: mptcp,marline; super: plain,paper,ours).
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    clients: Vec<String>,
    /// Directory of the stored results.
    #[arg(long = "out", value_name = "DIR", default_value = "evidence")]
    results_dir: PathBuf,
    /// Directory of traces (repeatable); also MARLINE_TRACES.
    #[arg(long, value_name = "DIR")]
    traces: Vec<PathBuf>,
    /// Number of videos (greenbag), downloads (emptcp), uploads (bass) or cells (super) to measure in parallel,
    /// each in a lab of its own [default: 8 per CPU core; emptcp: 2; bass, super: 1; super: at most 16].
    #[arg(long, visible_alias = "parallel", value_name = "N", value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1000))]
    jobs: Option<usize>,
    /// Congestion control of the server (emptcp), or of plain TCP and of the edge (bass; a relay always sends with
    /// BBR if the kernel has it): cubic, bbr or reno. Only in real time.
    #[arg(long, value_name = "NAME", default_value = "cubic")]
    congestion: crate::Congestion,
    /// Only these congestion controls of the sender (super): cubic, reno, bbr.
    #[arg(long = "sender", value_name = "LIST", value_delimiter = ',')]
    senders: Vec<crate::Congestion>,
    /// Share of the size of large files to download (emptcp).
    #[arg(long, value_name = "SHARE", default_value_t = 1.0, value_parser = parse_share)]
    scale: f64,
    /// Also measure relays selected by the fleet service, in real time (bass).
    #[arg(long = "by-fleet", conflicts_with = "sim")]
    includes_fleet: bool,
    /// Write the decision logs into this directory, for `marline replay` (greenbag, emptcp).
    #[arg(long, value_name = "FOLDER")]
    trace: Option<PathBuf>,
}

impl ReproduceArgs {
    /// Path of the stored results.
    fn results_file(&self) -> PathBuf {
        self.results_dir.join(&self.name).join("lab.jsonl")
    }

    /// Description of the machine, the first line of the tables. For stored results their machines and commits have
    /// been printed already.
    fn host_line(&self) -> String {
        match self.uses_stored {
            true => format!("From {}; no new measurements.", self.results_file().display()),
            false => HostInfo::current().to_line(),
        }
    }
}

/// Prints rows for programs, after a line with the command, the commit and the machine. For stored results that
/// line names the file, which has the sessions of the measurements.
fn print_rows<'a>(args: &ReproduceArgs, rows: impl IntoIterator<Item = &'a ResultRow>) {
    let mut session = store::session_record(args.scale);
    session["stored"] = serde_json::json!(args.uses_stored.then(|| args.results_file()));
    print_line(&serde_json::json!({ "session": session }).to_string());
    rows.into_iter().for_each(|row| print_line(&serde_json::to_string(row).unwrap_or_default()));
}

/// Reads the stored results and prints where they come from.
fn read_stored_results<T: Persist>(args: &ReproduceArgs) -> Result<Vec<T>, LabError> {
    let contents = store::read_results::<T>(&args.results_file(), args.scale)?;
    notice(&contents.to_string());
    Ok(contents.results)
}

const AFTER_HELP: &str = "\
Examples:
  marline-lab reproduce bass --sim
      BASS's figures 5 and 8 to 12 in virtual time: the paper's numbers beside ours.
  marline-lab reproduce bass --case F11,F12 --jobs 4
      In real time: edge, relay and origin over emulated links, 60 origins; stop with Ctrl-C, resume with --continue.
  marline-lab reproduce bass --stored
      The tables of evidence/bass/lab.jsonl, with the commits that they were measured at.
  marline-lab reproduce super --case F6 --sender cubic
      Super-aggregation's blackouts: plain TCP, the paper's freeze and ours.
  marline-lab reproduce super --jobs 6
      All of it with cubic, reno and BBR: 1580 cells, 6 at once, about 2.6 hours; one after the other six times as long.
  marline-lab reproduce emptcp --scale 0.25 --runs 3 --case F5

Artefacts: greenbag F9a F9b F10 to F14, X-over, X-fluct; emptcp T2, F3 to F17, X-unequal, X-grid; bass F5 F8 to F12 X-upload;
super F1 F2a F2b F2c F5 F6 F7 F8 S8.
docs/benchmarks.md explains each one. Missed thresholds are reported; the exit code is 1 only if something could not be measured.";

/// Refuses an option of another paper, or a real-time option together with `--sim`, because it would have no
/// effect.
fn check_options(args: &ReproduceArgs) -> Result<(), LabError> {
    const NONE: &[&str] = &[];
    let cc = args.congestion.name() != "cubic";
    // For each option: whether it was given, the papers that use it in real time, and those that use it in virtual
    // time.
    let options: [(&str, bool, &[&str], &[&str]); 9] = [
        ("--clients", !args.clients.is_empty(), &["emptcp", "super"], NONE),
        ("--sender", !args.senders.is_empty(), &["super"], NONE),
        ("--traces", !args.traces.is_empty(), &["greenbag", "emptcp"], &["greenbag", "emptcp"]),
        ("--jobs", args.jobs.is_some(), &["greenbag", "emptcp", "bass", "super"], NONE),
        ("--congestion", cc, &["emptcp", "bass"], NONE),
        ("--scale", args.scale < 1.0, &["emptcp"], &["emptcp"]),
        ("--by-fleet", args.includes_fleet, &["bass"], NONE),
        ("--trace", args.trace.is_some(), &["greenbag", "emptcp"], NONE),
        ("--continue", args.continues, &PAPERS, NONE),
    ];
    let name = args.name.as_str();
    for (option, given, supported, simulated) in options {
        if given && !supported.contains(&name) {
            return Err(LabError::Spec(format!(
                "{option} has no effect on {name}: it is for {}",
                supported.join(", ")
            )));
        }
        // For super, which has no virtual time, `--sim` itself is refused elsewhere.
        if given && args.sim && name != "super" && !simulated.contains(&name) {
            let reason =
                if option == "--congestion" { ": its TCP model has no selectable congestion control" } else { "" };
            return Err(LabError::Spec(format!(
                "{option} has no effect on {name} in virtual time (--sim){reason}"
            )));
        }
    }
    Ok(())
}

fn parse_share(name: &str) -> Result<f64, String> {
    let share: f64 = name.parse().map_err(|_| "is not a number such as 0.25".to_owned())?;
    if share > 0.0 && share <= 1.0 { Ok(share) } else { Err("must be above 0 and at most 1".to_owned()) }
}

/// Names of the papers.
const PAPERS: [&str; 5] = ["thesis", "greenbag", "emptcp", "bass", "super"];

/// The lab case of `--quick`, and the share of its workload that is run. In this case both links matter, and a
/// download takes a few seconds.
const QUICK_CASE: &str = "HS-S7";
const QUICK_LAB_SCALE: f64 = 0.04;

/// Runs the reproduction and returns the exit code: 1 if a download failed.
pub(crate) fn run(args: &ReproduceArgs) -> Result<u8, LabError> {
    if !PAPERS.contains(&args.name.as_str()) {
        return Err(LabError::Spec(format!("no paper `{}`; the papers are: {}", args.name, PAPERS.join(", "))));
    }
    check_options(args)?;
    if args.name == "greenbag" {
        return greenbag::run(args);
    }
    if args.name == "emptcp" {
        return emptcp::run(args);
    }
    if args.name == "bass" {
        return bass::run(args);
    }
    if args.name == "super" {
        return superaggregation::run(args);
    }
    let paper = ThesisFigures::thesis()?;
    let mut scenario = scenarios::load("thesis")?;
    retain_cases(&mut scenario, &args.cases)?;
    if args.quick {
        return quick(args, &paper, &scenario);
    }
    if args.uses_stored {
        let outcomes = read_stored_results::<DownloadOutcome>(args)?;
        print_results(args, &paper, &latest_of_cases(outcomes, &scenario), Backend::Lab, 1.0);
        return Ok(0);
    }
    let backend = if args.sim { Backend::Sim } else { Backend::Lab };
    prepare_run(backend)?;
    let runs = args.runs.unwrap_or(scenario.runs);
    let mut store = None;
    if backend == Backend::Lab {
        store = Some(ResultStore::<DownloadOutcome>::open(&args.results_file(), args.continues, 1.0)?);
        let least = format_duration(run_plan(&scenario, runs, backend).min_time());
        notice(&format!("the downloads take at least {least}; stop with Ctrl-C, resume with --continue"));
    }
    let mut outcomes = store.as_mut().map(|store| std::mem::take(&mut store.earlier_results)).unwrap_or_default();
    let earlier_outcomes = outcomes.clone();
    let done = |case: &str, client: &marline_sim::scenario::Client, run: u32| {
        let client = client.to_string();
        earlier_outcomes.iter().any(|o| o.case == case && o.client == client && o.run == run)
    };
    let mut store_error = None;
    let results = run_plan(&scenario, runs, backend).run(done, |outcome| {
        if !args.json || backend == Backend::Lab {
            notice(&outcome_line(outcome));
        }
        if let Some(Err(error)) = store.as_mut().map(|store| store.append(outcome)) {
            store_error.get_or_insert(error);
        }
    })?;
    if let Some(error) = store_error {
        return Err(error);
    }
    outcomes.extend(results.outcomes);
    if results.is_stopped {
        notice(&format!("stopped; {} downloads are stored, resume with --continue", outcomes.len()));
        return Ok(130);
    }
    print_results(args, &paper, &outcomes, backend, 1.0);
    Ok(u8::from(outcomes.iter().any(|outcome| !outcome.is_complete())))
}

/// `--quick`: all cases in virtual time, and one scaled-down case in the lab.
fn quick(args: &ReproduceArgs, paper: &ThesisFigures, scenario: &Scenario) -> Result<u8, LabError> {
    // Acquire privileges first: that is only possible while there is one thread.
    let lab = if args.sim { None } else { Some(prepare_run(Backend::Lab)) };
    let runs = args.runs.unwrap_or(1);
    let report =
        |outcome: &DownloadOutcome| notice(&format!("{}: {}", outcome.backend.name(), outcome_line(outcome)));
    let simulated = run_plan(scenario, runs, Backend::Sim).run(|_, _, _| false, report)?;
    print_results(args, paper, &simulated.outcomes, Backend::Sim, 1.0);
    let mut small = scaled_scenario(scenario, QUICK_LAB_SCALE);
    small.cases.retain(|case| case.name == QUICK_CASE);
    let real = match lab {
        None => Results::default(),
        Some(Err(error)) => {
            notice(&format!("skipped: the lab: {error}"));
            Results::default()
        }
        Some(Ok(())) => run_plan(&small, runs, Backend::Lab).run(|_, _, _| false, report).or_else(|error| {
            notice(&format!("skipped: the lab: {error}"));
            Ok::<_, LabError>(Results::default())
        })?,
    };
    if !real.outcomes.is_empty() {
        print_results(args, paper, &real.outcomes, Backend::Lab, QUICK_LAB_SCALE);
    }
    if real.is_stopped {
        return Ok(130);
    }
    let all = simulated.outcomes.iter().chain(&real.outcomes);
    Ok(u8::from(all.into_iter().any(|outcome| !outcome.is_complete())))
}

/// The results of the selected cases, without duplicates: the last one counts.
fn latest_of_cases(outcomes: Vec<DownloadOutcome>, scenario: &Scenario) -> Vec<DownloadOutcome> {
    let named = |outcome: &DownloadOutcome| scenario.cases.iter().any(|case| case.name == outcome.case);
    let mut last: Vec<DownloadOutcome> = Vec::new();
    for outcome in outcomes.into_iter().filter(named) {
        last.retain(|earlier| !earlier.is_same(&outcome));
        last.push(outcome);
    }
    last
}

fn run_plan(scenario: &Scenario, runs: u32, backend: Backend) -> RunPlan<'_> {
    RunPlan {
        scenario,
        runs,
        backend,
        traces: Vec::new(),
        samples_process: backend == Backend::Lab,
        shows_progress: false,
    }
}

fn scaled_scenario(scenario: &Scenario, factor: f64) -> Scenario {
    let mut scenario = scenario.clone();
    scenario.cases = scenario.cases.iter().map(|case| case.scaled(factor)).collect();
    scenario
}

/// Difference in percentage points up to which two shares count as equal.
const EQUAL_WITHIN: f64 = 10.0;

/// Prints the rows as JSON or as tables.
fn print_results(
    args: &ReproduceArgs,
    paper: &ThesisFigures,
    outcomes: &[DownloadOutcome],
    backend: Backend,
    scale: f64,
) {
    let rows = thesis::rows(paper, outcomes, backend, scale);
    // `--json` replaces the tables.
    if args.json {
        print_rows(args, &rows);
        return;
    }
    print_tables(args, paper, outcomes, &rows, backend, scale);
}

fn print_tables(
    args: &ReproduceArgs,
    paper: &ThesisFigures,
    outcomes: &[DownloadOutcome],
    rows: &[ResultRow],
    backend: Backend,
    scale: f64,
) {
    let made = match backend {
        Backend::Sim => "virtual time",
        Backend::Lab => "real time over emulated links",
    };
    let size = if (scale - 1.0).abs() < 1e-9 { String::new() } else { format!(", scaled to {scale}") };
    print_line(&format!("\nMulti-link HTTP thesis: the paper's value / the measured one, in {made}{size}."));
    print_line(&args.host_line());
    let cases = || thesis::CASES.into_iter().filter(|case| outcomes.iter().any(|outcome| outcome.case == *case));
    for case in cases() {
        let runs = 1 + outcomes.iter().filter(|o| o.case == case).map(|o| o.run).max().unwrap_or(0);
        print_line(&format!("\nTable 5.12, {case} ({runs} runs)\n{}", thesis::table_5_12(rows, case).to_text()));
        if backend == Backend::Lab {
            print_line(&format!("Table 6.18, {case}: CPU\n{}", thesis::table_of(rows, "T6.18", case).to_text()));
            print_line(&format!("Table 6.19, {case}: memory\n{}", thesis::table_of(rows, "T6.19", case).to_text()));
        }
        print_line(&format!(
            "Table 7.10, {case}: energy of the phone\n{}",
            thesis::table_of(rows, "T7.10", case).to_text()
        ));
    }
    print_line("Time as a share of a single link's (table 5.2 and others), in percent, in the paper and here:");
    let shares = thesis::shares(paper, outcomes);
    for share in &shares {
        let apart = if share.difference() > EQUAL_WITHIN {
            format!("  {:.0} points apart", share.difference())
        } else {
            String::new()
        };
        print_line(&format!(
            "  {:<6} {:<14} of {:<12} {:>6.1} {:>6.1}{apart}",
            share.case,
            share.policy,
            share.single,
            share.paper * 100.0,
            share.measured * 100.0
        ));
    }
    let differing = shares.iter().filter(|share| share.difference() > EQUAL_WITHIN).count();
    print_line(&format!("{differing} of {} are more than {EQUAL_WITHIN} points apart.", shares.len()));
    print_line("Order of the multi-link approaches, fastest first, in the paper and here:");
    for case in cases() {
        let [published_order, measured_order] =
            thesis::orders(paper, outcomes, case).map(|command| command.join(" < "));
        print_line(&format!("  {case:<6} {published_order:<52} | {measured_order}"));
    }
    thesis::COMPARISON_NOTES.iter().for_each(|remark| print_line(remark));
    let compared = thesis::time_over_best(outcomes);
    if !compared.is_empty() {
        print_line("marline's time over that of the fastest of Algorithms 1 to 3:");
    }
    for (case, policy, ratio) in compared {
        let slower = if ratio >= 1.0 { "  NOT faster" } else { "" };
        print_line(&format!("  {case:<6} {ratio:.4} of {policy}{slower}"));
    }
}
