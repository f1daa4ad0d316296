//! `marline-lab bench …`: compares marline with other programs in the same lab, in turns.
//!
//! | command | what it compares |
//! |---|---|
//! | `floors` | time ÷ ideal time on pairs of links, against aria2 in three settings and curl |
//! | `small` | downloads of 10 KB to 5 MB against curl on the best link |
//! | `order` | the same links named in both orders |
//! | `cpu` | CPU time per gigabyte and throughput, without emulation |
//! | `rss` | peak memory of a download of a gigabyte |
//! | `proxy` | `marline proxy` for players and programs |
//! | `paths` | thresholds of `marline paths`, over kernel MPTCP |
//! | `fleet` | thresholds of `marline edge` and `marline relay` |
//! | `default-link` | time of a new flow while the link of the default route fails |
//! | `accel` | thresholds of `marline accel`, over links with loss, outages or a shared medium |
//! | `returning-link` | time until a recovered link carries a running transfer again |
//! | `assign` | quality of the assignment of edges to relays, compared with the optimum |
//!
//! The thresholds of `floors`, `small`, `order` and `rss` are in the scenario files, the others in the modules. A figure never affects a
//! test or an exit code, because machines differ and a busy machine distorts it; unreliable runs are marked. The exit code is 1 only if a
//! download failed.

mod accel;
mod assign;
mod cases;
mod cpu;
mod default_link;
mod fleet;
mod paths;
mod proxy;
mod report;
mod returning_link;
mod verdict;
mod veth_testbed;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use marline_core::units::DataSize;
use marline_sim::scenario::Scenario;
use serde_json::{Value, json};

pub(crate) use crate::interrupt::is_interrupted;
use crate::result_file::ResultFile;
use crate::results::{Backend, HostInfo};
use crate::runner::command::{
    exit_code, notice, outcome_line, prepare_run, print_line, print_skipped, print_unfinished, result_record,
    with_size,
};
use crate::runner::{Results, RunPlan, format_duration, summary};
use crate::{LabError, scenarios};
use verdict::Verdict;

/// Options of `marline-lab bench`.
#[derive(Clone, Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    command: Option<BenchCommand>,
}

const AFTER_HELP: &str = "\
Without a command it runs `floors`: ten sets of links and the pairs of traces (skipped without --traces), 100 MB, three runs
of marline, aria2 in three settings and curl, in real time. That takes about 40 minutes; the minimum time is printed at the
start. Ctrl-C ends it and shows the results so far. Shorter: `marline-lab bench floors --quick` (a quarter of an hour), or
one case: `marline-lab bench floors --case a` (two minutes).
Needs nginx, curl and aria2c. The exit code is 1 only if a download failed or nothing was run, 130 after Ctrl-C.";

/// The benchmark; `floors` if none is given.
#[derive(Clone, Debug, Subcommand)]
enum BenchCommand {
    /// Compare time with ideal time on pairs of links, against aria2 and curl.
    #[command(name = "floors")]
    Thresholds(ThresholdArgs),
    /// Compare downloads of small files with curl on the best link.
    Small(CommonArgs),
    /// Compare the same links named in both orders.
    Order(CommonArgs),
    /// Compare CPU time per gigabyte and throughput with curl and aria2, without emulation.
    Cpu(cpu::CpuArgs),
    /// Measure the peak memory of a download of a gigabyte over two links.
    Rss(CommonArgs),
    /// Measure `marline proxy`: throughput, start, seeks, links that fail or are slow, two hundred players.
    Proxy(proxy::ProxyArgs),
    /// Measure `marline paths`: unequal links, suspension, small files, faults, many connections.
    Paths(paths::PathsArgs),
    /// Measure `marline edge` and `marline relay`: uploads, live video, failing links, failing relays, CPU time.
    Fleet(fleet::FleetArgs),
    /// Measure `marline edge` while the link of the default route fails: time to the first byte of new flows.
    DefaultLink(default_link::DefaultLinkArgs),
    /// Measure `marline accel`: loss, outages, ACK contention in a shared cell, what it must not harm, its cost.
    Accel(accel::AccelArgs),
    /// Measure the time until a recovered link carries data again, under `marline paths` and `marline edge`.
    ReturningLink(returning_link::ReturningArgs),
    /// Measure the assignment of edges to relays: generated fleets of up to a million edges, and edges that come
    /// and go.
    Assign(assign::AssignArgs),
}

/// Options of several benchmarks.
#[derive(Clone, Debug, Default, Args)]
struct CommonArgs {
    /// Number of repetitions, instead of the scenario's.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    runs: Option<u32>,
    /// Write all measurements to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Options of `marline-lab bench floors`.
#[derive(Clone, Debug, Default, Args)]
struct ThresholdArgs {
    /// Only these cases: a, a-https, b, c, d, e, f, h, i, j, pairs.
    #[arg(long = "case", value_name = "LIST", value_delimiter = ',')]
    cases: Vec<String>,
    /// Download this size instead of 100 MB; the times of events scale in proportion. The thresholds apply to 100
    /// MB.
    #[arg(long, value_name = "SIZE")]
    size: Option<DataSize>,
    /// One run per case, without the pairs of traces: a first impression, not a measurement.
    #[arg(long)]
    quick: bool,
    /// Directory of traces (repeatable); also MARLINE_TRACES.
    #[arg(long, value_name = "DIR")]
    traces: Vec<PathBuf>,
    #[command(flatten)]
    common: CommonArgs,
}

/// The cases of `floors`, in the order of the table.
const THRESHOLD_CASES: [&str; 11] = ["a", "a-https", "b", "c", "d", "e", "f", "pairs", "h", "i", "j"];

/// Runs the benchmark and returns the exit code.
pub(crate) fn run(args: &BenchArgs) -> Result<u8, LabError> {
    match args.command.clone().unwrap_or_else(|| BenchCommand::Thresholds(ThresholdArgs::default())) {
        BenchCommand::Thresholds(args) => run_thresholds(&args),
        BenchCommand::Small(args) => compare(&["floor-small"], None, &args, &[]),
        BenchCommand::Order(args) => compare(&["floor-order"], None, &args, &[]),
        BenchCommand::Rss(args) => compare(&["floor-rss", "floor-rss-https"], None, &args, &[]),
        BenchCommand::Cpu(args) => cpu::run(&args),
        BenchCommand::Proxy(args) => proxy::run(&args),
        BenchCommand::Paths(args) => paths::run(&args),
        BenchCommand::Fleet(args) => fleet::run(&args),
        BenchCommand::DefaultLink(args) => default_link::run(&args),
        BenchCommand::Accel(args) => accel::run(&args),
        BenchCommand::ReturningLink(args) => returning_link::run(&args),
        BenchCommand::Assign(args) => assign::run(&args),
    }
}

fn run_thresholds(args: &ThresholdArgs) -> Result<u8, LabError> {
    if let Some(unknown) = args.cases.iter().find(|case| !THRESHOLD_CASES.contains(&case.as_str())) {
        return Err(LabError::Spec(format!("no case `{unknown}`; the cases are: {}", THRESHOLD_CASES.join(", "))));
    }
    let is_wanted = |case: &&str| match args.cases.is_empty() {
        true => !(args.quick && *case == "pairs"),
        false => args.cases.iter().any(|wanted| wanted == case),
    };
    let names = THRESHOLD_CASES.into_iter().filter(is_wanted);
    let names: Vec<String> =
        names.map(|case| if case == "pairs" { case.to_string() } else { format!("floor-{case}") }).collect();
    let mut common = args.common.clone();
    if args.quick {
        common.runs = common.runs.or(Some(1));
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    compare(&names, args.size, &common, &args.traces)
}

/// Runs scenarios one after the other, prints a table for each case, and all verdicts at the end.
fn compare(names: &[&str], size: Option<DataSize>, args: &CommonArgs, traces: &[PathBuf]) -> Result<u8, LabError> {
    let file = ResultFile::open_if(args.json.as_ref())?;
    let mut scenarios: Vec<Scenario> = names.iter().map(|name| scenarios::load(name)).collect::<Result<_, _>>()?;
    if let Some(size) = size {
        scenarios.iter_mut().for_each(|scenario| with_size(scenario, size));
    }
    let traces = scenarios::trace_directories(traces);
    let plan = |scenario| run_plan(scenario, args.runs, &traces);
    let download_count: usize = scenarios.iter().map(|scenario| plan(scenario).download_count()).sum();
    prepare_run(Backend::Lab)?;
    print_line(&HostInfo::current().to_line());
    let min_time = scenarios.iter().map(|scenario| plan(scenario).min_time()).sum();
    notice(&format!("{download_count} downloads, which take at least {}", format_duration(min_time)));
    let mut verdicts: Vec<Verdict> = Vec::new();
    let mut records: Vec<Value> = Vec::new();
    let mut all = Results::default();
    for scenario in &scenarios {
        let results = plan(scenario).run(|_, _, _| false, |outcome| notice(&outcome_line(outcome)))?;
        print_skipped(&results);
        print_tables(scenario, &results);
        let verdicts_of_scenario = verdict::verdicts(scenario, &results.outcomes);
        let mut scenario_record = result_record(scenario, &results);
        scenario_record["verdicts"] = json!(verdicts_of_scenario);
        records.push(scenario_record);
        verdicts.extend(verdicts_of_scenario);
        all.outcomes.extend(results.outcomes);
        all.is_trace_missing |= results.is_trace_missing;
        if results.is_stopped {
            all.is_stopped = true;
            break;
        }
    }
    print_line(&format!("\n{}", verdict::table(&verdicts).to_text()));
    if let Some(file) = file {
        file.write(&format!("{:#}\n", Value::Array(records)))?;
    }
    print_unfinished(&all, download_count);
    Ok(exit_code(&all))
}

fn run_plan<'a>(scenario: &'a Scenario, runs: Option<u32>, traces: &[PathBuf]) -> RunPlan<'a> {
    RunPlan {
        scenario,
        runs: runs.unwrap_or(scenario.runs),
        backend: Backend::Lab,
        traces: traces.to_vec(),
        samples_process: false,
        shows_progress: false,
    }
}

/// Prints a table for each case of a scenario.
fn print_tables(scenario: &Scenario, results: &Results) {
    for case in summary::cases_of(&results.outcomes) {
        let groups = summary::groups(scenario, case, &results.outcomes);
        let links = scenario.case(case).map(|case| {
            let specs = case.links.iter().map(ToString::to_string);
            specs.chain(case.events.iter().map(ToString::to_string)).collect::<Vec<_>>().join(" ")
        });
        print_line(&format!("\n{case}: {}\n{}", links.unwrap_or_default(), summary::table(&groups).to_text()));
    }
}
