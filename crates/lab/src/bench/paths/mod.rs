//! `marline-lab bench paths`: thresholds of `marline paths`, over kernel MPTCP and emulated links with realistic
//! RTTs.
//!
//! | case | what | compared with |
//! |---|---|---|
//! | `unequal` | 50+5, 20+1 and 8+61 Mbit/s, each rate once on Wi-Fi, and 20+20 and 20+5 with RTT 150 ms; goal throughput | the better link alone; the kernel's endpoints; mptcpd |
//! | `suspend` | bytes over LTE after Wi-Fi has become good | only control packets permitted |
//! | `small` | 256 KB over good and bad links: joules and seconds | TCP over Wi-Fi; the kernel's endpoints; mptcpd |
//! | `faults` | loss of carrier, silent link, lost MP_PRIO, killed daemon, lost events | thresholds in seconds |
//! | `scale` | a thousand and ten thousand connections, a hundred of them active | thresholds of CPU and memory |
//!
//! 1. The sender's congestion control can be selected (`--congestion`); nothing else of the sender is changed.
//! 2. Clients take turns within each repetition; medians are compared.
//! 3. The figures do not affect the exit code. It is 1 only if something could not be measured. Unreliable runs are
//!    marked.

mod faults;
mod scale;
mod small;
mod suspend;
mod unequal;

use std::path::{Path, PathBuf};

use clap::Args;
use marline_core::units::DataSize;
use marline_sim::spec::{LinkEvent, LinkSpec};

use super::cases::{self, Cases, parse_link};
use super::report::ReportTable;
use crate::mptcp::mptcpd::Mptcpd;
use crate::mptcp::testbed::{PathVariant, Testbed, TestbedConfig};
use crate::result_file::ResultFile;
use crate::results::Backend;
use crate::runner::command::{notice, prepare_run};
use crate::{Congestion, LabError};

/// Options of `marline-lab bench paths`.
#[derive(Clone, Debug, Args)]
pub(super) struct PathsArgs {
    /// Only these cases: unequal, suspend, small, faults, scale, all; or one of their rows, `unequal 50+5`.
    #[arg(long = "case", value_name = "LIST", value_delimiter = ',')]
    cases: Vec<String>,
    /// Number of repetitions.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Size of each download of `unequal`.
    #[arg(long, value_name = "SIZE", default_value = "100MB")]
    size: DataSize,
    /// Congestion control of the server: cubic, bbr or reno.
    #[arg(long, value_name = "NAME", default_value = "cubic")]
    congestion: Congestion,
    /// Number of connections in `scale`.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1000,10000")]
    connections: Vec<u32>,
    /// Write all measurements to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the daemon's decision logs into this directory, for `marline replay`.
    #[arg(long = "trace", value_name = "FOLDER")]
    trace_dir: Option<PathBuf>,
}

/// The cases, in the order of the table.
const CASES: [&str; 5] = ["unequal", "suspend", "small", "faults", "scale"];

/// Settings of all cases.
struct PathsBench<'a> {
    args: &'a PathsArgs,
    cases: Cases,
    program: PathBuf,
}

impl PathsBench<'_> {
    /// Configuration of a testbed with these links.
    fn testbed_config<'s>(
        &'s self,
        links: &'s [LinkSpec],
        events: &'s [LinkEvent],
        served_file: &'s Path,
        run: u32,
    ) -> TestbedConfig<'s> {
        TestbedConfig {
            links,
            events,
            served_file,
            congestion: self.args.congestion,
            seed: u64::from(run) + 1,
            program: &self.program,
            trace: None,
        }
    }

    /// Starts a testbed. `None` if that failed, which is reported as a problem, or if mptcpd is not installed.
    fn start_testbed(
        &self,
        report: &mut ReportTable,
        case: &str,
        config: &TestbedConfig<'_>,
        (variant, run): (PathVariant, u32),
    ) -> Option<Testbed> {
        if variant == PathVariant::Mptcpd && Mptcpd::program().is_none() {
            return None;
        }
        let mut config = config.clone();
        if let Some(folder) = &self.args.trace_dir {
            let label = format!("{case} {} {run}.ndjson", variant.name(config.links));
            config.trace = Some(folder.join(label.replace([' ', '/', ':', '+'], "-")));
        }
        let testbed = Testbed::start(&config, variant);
        testbed.map_err(|reason| report.problem(case, &variant.name(config.links), run, &reason)).ok()
    }

    /// Whether this row of a case is selected.
    fn is_selected(&self, case: &str, row: &str) -> bool {
        self.cases.is_selected(case, row)
    }
}

pub(super) fn run(args: &PathsArgs) -> Result<u8, LabError> {
    let cases = Cases::new("the paths", &CASES, &args.cases)?;
    let file = ResultFile::open_if(args.json.as_ref())?;
    prepare_run(Backend::Lab)?;
    if crate::server::find_program("nginx").is_none() {
        return Err(LabError::MissingProgram { program: "nginx".into(), package: "nginx-light" });
    }
    if Mptcpd::program().is_none() {
        notice("mptcpd is not installed (package mptcpd): its rows are omitted");
    }
    let program = crate::program::marline()?;
    let bench = PathsBench { args, cases, program };
    let mut report = ReportTable::default();
    cases::run_cases(&bench.cases.selected_cases(), |case| match case {
        "unequal" => unequal::run(&bench, &mut report),
        "suspend" => suspend::run(&bench, &mut report),
        "small" => small::run(&bench, &mut report),
        "faults" => faults::run(&bench, &mut report),
        _ => scale::run(&bench, &mut report),
    })?;
    cases::finish(
        file,
        &format!("Sender: {}.\n", args.congestion),
        &report.table(),
        &report.to_json(),
        report.problems,
    )
}
