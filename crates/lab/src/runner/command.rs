//! `marline-lab run SCENARIO`: runs a scenario repeatedly and writes a table, a JSON file and a page.

use std::path::PathBuf;

use clap::Args;
use marline_core::units::DataSize;
use marline_sim::scenario::{Client, Scenario};
use marline_terminal::output;
use serde_json::json;

use super::{Results, RunPlan, summary};
use crate::html_report::Page;
use crate::result_file::ResultFile;
use crate::results::{Backend, DownloadOutcome, HostInfo};
use crate::{LabError, acquire_privileges, scenarios};

/// Options of `marline-lab run`.
#[derive(Clone, Debug, Args)]
pub(crate) struct RunArgs {
    /// A file such as scenarios/floor-a.toml, or the name of a built-in scenario (floor-a).
    #[arg(value_name = "SCENARIO")]
    scenario: String,
    /// Number of repetitions, instead of the scenario's.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    runs: Option<u32>,
    /// Run only these clients, instead of the scenario's: `marline,aria2-s2`.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    clients: Vec<Client>,
    /// Run only these cases.
    #[arg(long = "case", value_name = "LIST", value_delimiter = ',')]
    cases: Vec<String>,
    /// Download this size instead of the scenario's; the times of events scale in proportion.
    #[arg(long, value_name = "SIZE")]
    size: Option<DataSize>,
    /// Run in virtual time: seconds instead of minutes, without privileges; only marline as a client.
    #[arg(long)]
    sim: bool,
    /// Write all measurements to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a page with throughput over time to this file.
    #[arg(long = "page", value_name = "FILE")]
    page_path: Option<PathBuf>,
    /// Directory of traces (repeatable); also MARLINE_TRACES.
    #[arg(long, value_name = "DIR")]
    traces: Vec<PathBuf>,
}

/// Runs the scenario and returns the exit code: 1 if a download failed.
pub(crate) fn run(args: &RunArgs) -> Result<u8, LabError> {
    let mut scenario = scenarios::load(&args.scenario)?;
    if !args.clients.is_empty() {
        scenario.clients.clone_from(&args.clients);
    }
    retain_cases(&mut scenario, &args.cases)?;
    if let Some(size) = args.size {
        with_size(&mut scenario, size);
    }
    let plan = RunPlan {
        scenario: &scenario,
        runs: args.runs.unwrap_or(scenario.runs),
        backend: if args.sim { Backend::Sim } else { Backend::Lab },
        traces: scenarios::trace_directories(&args.traces),
        samples_process: false,
        shows_progress: false,
    };
    let json = ResultFile::open_if(args.json.as_ref())?;
    let html = ResultFile::open_if(args.page_path.as_ref())?;
    prepare_run(plan.backend)?;
    let results = plan.run(|_, _, _| false, |outcome| notice(&outcome_line(outcome)))?;
    print_skipped(&results);
    for case in summary::cases_of(&results.outcomes) {
        let groups = summary::groups(&scenario, case, &results.outcomes);
        print_line(&format!("\n{case}\n{}", summary::table(&groups).to_text()));
    }
    if let Some(file) = json {
        file.write(&format!("{:#}\n", result_record(&scenario, &results)))?;
    }
    if let Some(file) = html {
        let message = format!("page: {}", file.path().display());
        file.write(&page(&scenario, &results).to_html())?;
        notice(&message);
    }
    print_unfinished(&results, plan.download_count());
    Ok(exit_code(&results))
}

/// Exit code: 0 if every download succeeded, 1 if one failed or there was none, 130 if the user interrupted.
pub(crate) fn exit_code(results: &Results) -> u8 {
    let failed = results.outcomes.iter().any(|outcome| !outcome.is_complete());
    if results.is_stopped { 130 } else { u8::from(failed || results.outcomes.is_empty()) }
}

/// Sets the size of all cases, and scales the times of their events in proportion.
pub(crate) fn with_size(scenario: &mut Scenario, size: DataSize) {
    for case in &mut scenario.cases {
        *case = case.scaled(size.bytes() as f64 / case.size.bytes() as f64);
        case.size = size;
    }
}

/// Prepares a run in real time: first acquires privileges, while there is one thread; then catches signals.
pub(crate) fn prepare_run(by: Backend) -> Result<(), LabError> {
    if by == Backend::Lab {
        acquire_privileges()?;
        marline_sys::signal::install_handlers().map_err(LabError::at_step("signals"))?;
    }
    Ok(())
}

/// Keeps only these cases; all, if the list is empty.
pub(crate) fn retain_cases(scenario: &mut Scenario, cases: &[String]) -> Result<(), LabError> {
    if cases.is_empty() {
        return Ok(());
    }
    if let Some(unknown) = cases.iter().find(|case| scenario.case(case).is_none()) {
        let names: Vec<&str> = scenario.cases.iter().map(|case| case.name.as_str()).collect();
        return Err(LabError::Spec(format!("no case `{unknown}` in {}: {}", scenario.name, names.join(", "))));
    }
    scenario.cases.retain(|case| cases.contains(&case.name));
    Ok(())
}

/// The JSON record of a run: command line, seed, version, scenario, machine, results.
pub(crate) fn result_record(scenario: &Scenario, results: &Results) -> serde_json::Value {
    let skipped: Vec<_> =
        results.skipped.iter().map(|(item, reason)| json!({"item": item, "reason": reason})).collect();
    json!({
        "command": std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect::<Vec<_>>(),
        "seed": "run + 1",
        "version": env!("CARGO_PKG_VERSION"),
        "scenario": scenario,
        "machine": HostInfo::current(),
        "skipped": skipped,
        "outcomes": results.outcomes,
    })
}

/// The page of a scenario.
pub(crate) fn page(scenario: &Scenario, results: &Results) -> Page {
    let outcomes = &results.outcomes;
    let sections = summary::cases_of(outcomes).into_iter().filter_map(|name| {
        let groups = summary::groups(scenario, name, outcomes);
        Some(summary::section(scenario.case(name)?, &groups))
    });
    let command: Vec<String> = std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect();
    let by = outcomes.first().map_or("nothing was run", |outcome| match outcome.backend {
        Backend::Sim => "virtual time: marline's decisions over modelled links and TCP",
        Backend::Lab => "real time: programs and kernel TCP over emulated links",
    });
    let mut facts = vec![
        ("Command".to_string(), command.join(" ")),
        ("Made in".into(), by.into()),
        ("Machine".into(), HostInfo::current().to_line()),
        (
            "Rates".into(),
            "bits of IP packets per second, as links are written; payload is 1448 of 1500 bytes".into(),
        ),
    ];
    facts.extend(results.skipped.iter().map(|(item, reason)| (format!("Skipped: {item}"), reason.clone())));
    Page { title: scenario.name.clone(), lead: scenario.description.clone(), facts, sections: sections.collect() }
}

/// One line about one download.
pub(crate) fn outcome_line(outcome: &DownloadOutcome) -> String {
    let DownloadOutcome { case, client, run, seconds, .. } = outcome;
    let ratio = outcome.ratio().map(|ratio| format!(", {ratio:.3} × ideal")).unwrap_or_default();
    let unreliable_text =
        outcome.unreliable_reason.as_ref().map(|reason| format!("; suspect: {reason}")).unwrap_or_default();
    match &outcome.problem {
        Some(problem) => {
            format!("{case} run {run} {client}: FAILED after {seconds:.2} s: {problem}{unreliable_text}")
        }
        None => format!("{case} run {run} {client}: {seconds:.3} s{ratio}{unreliable_text}"),
    }
}

/// Prints what was skipped, with the reason.
pub(crate) fn print_skipped(results: &Results) {
    for (item, reason) in &results.skipped {
        notice(&format!("skipped: {item}: {reason}"));
    }
}

/// Reports an incomplete run: the user interrupted it, or nothing could be run.
pub(crate) fn print_unfinished(results: &Results, planned: usize) {
    let done = results.outcomes.len();
    if results.is_stopped {
        notice(&format!("interrupted: {done} of {planned} downloads"));
    } else if done == 0 {
        let reason = if results.is_trace_missing {
            "no traces were found, see --traces"
        } else {
            "none of the given clients can be simulated"
        };
        notice(&format!("marline-lab: nothing was run: {reason}"));
    }
}

/// Prints a line for people on standard error, beside the results.
pub(crate) fn notice(text: &str) {
    let _ = output::eprint_result(&format!("{text}\n"));
}

/// Prints a result on standard output.
pub(crate) fn print_line(text: &str) {
    // The reader may have closed standard output; that is not an error.
    let _ = output::print_result(&format!("{text}\n"));
}
