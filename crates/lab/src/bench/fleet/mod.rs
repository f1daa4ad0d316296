//! `marline-lab bench fleet`: thresholds of `marline edge` and `marline relay`, over emulated uplinks with
//! realistic RTTs.
//!
//! | case | what | threshold |
//! |---|---|---|
//! | `upload` | 8+8 and 5+10+3 Mbit/s up, RTT 20 to 120 ms | 0.92 of the sum of the links' single goodputs |
//! | | 20+2 Mbit/s up | 0.97 of the better link alone |
//! | `download` | the same links in the other direction | the same |
//! | `live` | RTMP from ffmpeg at 1.3 times the best link, and at 0.85 of all links | all received, no frame dropped, the encoder at most 2
//! s late |
//! | `cut` | a link fails during the stream and recovers, then another one | no disconnect; a stall of at most 1.5 s, silent 2.5 s |
//! | `killed` | the relay in use is killed, or its host vanishes | a new flow works within 3 s |
//! | `cpu` | CPU time of the relay per gigabyte, without emulation | 1.5 × haproxy's |
//!
//! 1. Each figure is compared with others from the same run; the compared clients take turns, in fresh labs.
//! 2. Bytes are counted at the receiver.
//! 3. The figures do not affect the exit code. It is 1 only if something could not be measured or a stream was
//!    incomplete. Unreliable runs are marked.

mod cpu;
mod failover;
mod live;
mod transfer;

use std::path::PathBuf;

use clap::Args;
use marline_sim::spec::LinkSpec;

use super::cases::{self, Cases, parse_link};
use super::report::ReportTable;
use crate::fleet::client_flow::Direction;
use crate::fleet::{EdgeAccess, FleetConfig, RelayAssignment};
use crate::result_file::ResultFile;
use crate::results::Backend;
use crate::runner::command::prepare_run;
use crate::{Congestion, LabError};

/// Options of `marline-lab bench fleet`.
#[derive(Clone, Debug, Args)]
pub(super) struct FleetArgs {
    /// Only these cases: upload, download, live, cut, killed, cpu, all; or one of their rows, `upload 20+2`.
    #[arg(long = "case", value_name = "LIST", value_delimiter = ',')]
    cases: Vec<String>,
    /// Number of repetitions.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Length of the streams of `live` in seconds; those of `cut` take a fifth of it, at least 12 s.
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u32).range(10..))]
    seconds: u32,
    /// Time in seconds of an upload or download at the rates of the links.
    #[arg(long = "transfer", value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    transfer_seconds: u32,
    /// One short run per case: a first impression, not a measurement.
    #[arg(long, conflicts_with_all = ["runs", "seconds", "transfer_seconds"])]
    quick: bool,
    /// Congestion control of client and server: cubic, bbr or reno.
    #[arg(long, value_name = "NAME", default_value = "cubic")]
    congestion: Congestion,
    /// Write all measurements to this file, as JSON.
    #[arg(long, visible_alias = "out", value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The cases, in the order of the table.
const CASES: [&str; 6] = ["upload", "download", "live", "cut", "killed", "cpu"];

/// Settings of all cases.
struct FleetBench {
    cases: Cases,
    runs: u32,
    seconds: u32,
    transfer_seconds: u32,
    /// Bytes that the case `cpu` transfers.
    cpu_bytes: u64,
    congestion: Congestion,
    program: PathBuf,
}

impl FleetBench {
    fn new(args: &FleetArgs, cases: Cases, program: PathBuf) -> Self {
        let (runs, seconds, transfer, volume) = match args.quick {
            true => (1, 12, 4, 100_000_000),
            false => (args.runs, args.seconds, args.transfer_seconds, 1_000_000_000),
        };
        Self {
            cases,
            runs,
            seconds,
            transfer_seconds: transfer,
            cpu_bytes: volume,
            congestion: args.congestion,
            program,
        }
    }

    /// Configuration of a fleet whose edge gets this many relays on its command line.
    fn fleet_config<'a>(&'a self, links: &'a [LinkSpec], relays: u8, run: u32) -> FleetConfig<'a> {
        FleetConfig {
            links,
            relays,
            assignment: RelayAssignment::CommandLine,
            access: EdgeAccess::Proxy,
            congestion: self.congestion,
            seed: u64::from(run) + 1,
            program: &self.program,
        }
    }

    /// Whether this row of a case is selected.
    fn is_selected(&self, case: &str, row: &str) -> bool {
        self.cases.is_selected(case, row)
    }
}

pub(super) fn run(args: &FleetArgs) -> Result<u8, LabError> {
    let wanted = Cases::new("the fleet", &CASES, &args.cases)?;
    let cases = wanted.selected_cases();
    let file = ResultFile::open_if(args.json.as_ref())?;
    prepare_run(Backend::Lab)?;
    // Check before the first measurement, so that a missing program is reported at once.
    for case in &cases {
        match *case {
            "live" | "cut" => crate::live::check_installed()?,
            "cpu" => cpu::check_installed()?,
            _ => {}
        }
    }
    let program = crate::program::marline()?;
    let bench = FleetBench::new(args, wanted, program);
    let mut report = ReportTable::default();
    cases::run_cases(&cases, |case| match case {
        "upload" => transfer::run(&bench, &mut report, Direction::Up),
        "download" => transfer::run(&bench, &mut report, Direction::Down),
        "live" => live::run(&bench, &mut report),
        "cut" => live::run_failures(&bench, &mut report),
        "killed" => failover::run(&bench, &mut report),
        _ => cpu::run(&bench, &mut report),
    })?;
    cases::finish(
        file,
        &format!("Both ends: {}.\n", args.congestion),
        &report.table(),
        &report.to_json(),
        report.problems,
    )
}
