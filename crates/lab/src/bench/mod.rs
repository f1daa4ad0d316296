//! `marline-lab bench …`: what marline reaches and what others reach, in the same lab, in the same minutes.
//!
//! | verb | what it compares |
//! |---|---|
//! | `floors` | time ÷ ideal on pairs of links, against aria2 in three settings and curl |
//! | `small` | 10 KB to 5 MB against curl on the best link |
//! | `order` | the same links named in both orders |
//! | `cpu` | processor time per gigabyte and speed without any emulation |
//! | `rss` | the most memory that a gigabyte needs |
//! | `proxy` | what players and programs have of `marline proxy` |
//! | `paths` | what is asked of `marline paths`, over kernel MPTCP |
//! | `fleet` | what is asked of `marline edge` and `marline relay` |
//! | `default-link` | how long a new flow takes while the link of the default route fails |
//! | `accel` | what is asked of `marline accel`, over links that lose, fall silent or share the air |
//! | `returning-link` | how soon a link that comes back carries a running transfer again |
//! | `assign` | how near the matching of boxes and relays comes to the best one |
//!
//! The bounds ("floors") stand in the scenario files. A figure decides no test and no exit code: machines differ, and a
//! busy one says nothing; suspect runs are named. The exit code is 1 only if a download failed.

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

use crate::result_file::ResultFile;
use crate::results::{Backend, HostInfo};
use crate::runner::command::{
    exit_code, notice, outcome_line, prepare_run, print_line, print_skipped, print_unfinished, result_record,
    with_size,
};
use crate::runner::{Results, RunPlan, format_duration, summary};
use crate::{LabError, scenarios};
pub(crate) use cases::is_interrupted;
use verdict::Verdict;

/// `marline-lab bench`.
#[derive(Clone, Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    command: Option<BenchCommand>,
}

const AFTER_HELP: &str = "\
Without a word it does `floors`: ten sets of links and the pairs of traces (skipped without --traces), 100 MB, three runs
of marline, aria2 in three settings and curl, in real time. That takes about 40 minutes; how long at least is said at the
start. Ctrl-C ends it and shows what there is. For a look: `marline-lab bench floors --quick` (a quarter of an hour), or
one case: `marline-lab bench floors --case a` (two minutes).
Needs nginx, curl and aria2c. The exit code is 1 only if a download failed or nothing was run, 130 after Ctrl-C.";

/// What is compared; without a word: floors.
#[derive(Clone, Debug, Subcommand)]
enum BenchCommand {
    /// Time over ideal on pairs of links, against aria2 and curl.
    Thresholds(ThresholdArgs),
    /// Small files against curl on the best link.
    Small(CommonArgs),
    /// The same links named in both orders.
    Order(CommonArgs),
    /// Processor time per gigabyte and speed without emulation, against curl and aria2.
    Cpu(cpu::CpuArgs),
    /// The most memory that a gigabyte over two links needs.
    Rss(CommonArgs),
    /// `marline proxy`: speed, start, seeks, links that die or are slow, two hundred players.
    Proxy(proxy::ProxyArgs),
    /// `marline paths`: unequal links, suspension, small files, faults, many connections.
    Paths(paths::PathsArgs),
    /// `marline edge` and `marline relay`: uploads, live video, links that fail, relays that die, processor time.
    Fleet(fleet::FleetArgs),
    /// `marline edge` while the link of the default route fails: the first byte of new flows over another link.
    DefaultLink(default_link::DefaultLinkArgs),
    /// `marline accel`: losses, blackouts, ACKs in a shared cell, what it must not harm, what it costs.
    Accel(accel::AccelArgs),
    /// A link that comes back: how soon it carries again, under `marline paths` and `marline edge`.
    ReturningLink(returning_link::ReturningArgs),
    /// The matching of boxes and relays: drawn fleets up to a million boxes, and boxes that come and go.
    Assign(assign::AssignArgs),
}

/// What all have in common.
#[derive(Clone, Debug, Default, Args)]
struct CommonArgs {
    /// Repetitions, instead of the scenario's.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    runs: Option<u32>,
    /// Write everything that was measured to this file as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// `marline-lab bench floors`.
#[derive(Clone, Debug, Default, Args)]
struct ThresholdArgs {
    /// Only these: a, a-https, b, c, d, e, f, h, i, j, pairs.
    #[arg(long = "case", value_name = "LIST", value_delimiter = ',')]
    cases: Vec<String>,
    /// Download so much, instead of 100 MB, events in proportion; the floors are meant for 100 MB.
    #[arg(long, value_name = "SIZE")]
    size: Option<DataSize>,
    /// Each once, without the pairs of traces: a look, not a measurement.
    #[arg(long)]
    quick: bool,
    /// A directory of traces; also MARLINE_TRACES.
    #[arg(long, value_name = "DIR")]
    traces: Vec<PathBuf>,
    #[command(flatten)]
    common: CommonArgs,
}

/// The cases of `floors`, in the order of the table.
const THRESHOLD_CASES: [&str; 11] = ["a", "a-https", "b", "c", "d", "e", "f", "pairs", "h", "i", "j"];

/// Does it, and gives the exit code.
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
        return Err(LabError::Spec(format!("no floor `{unknown}`; there are: {}", THRESHOLD_CASES.join(", "))));
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
    notice(&format!("{download_count} downloads, {} at least", format_duration(min_time)));
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
