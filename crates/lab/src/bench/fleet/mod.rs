//! `marline-lab bench fleet`: what is asked of `marline edge` and `marline relay`, over emulated uplinks with real round trips.
//!
//! | case | what | floor |
//! |---|---|---|
//! | `upload` | 8+8 and 5+10+3 Mbit/s up, round trips of 20 to 120 ms | 0.92 of the sum of the links' single goodputs |
//! | | 20+2 Mbit/s up | 0.97 of the better link alone |
//! | `download` | the same links the other way | the same |
//! | `live` | ffmpeg's RTMP at 1.3 times the best link, and at 0.85 of all links | all received, no frame dropped |
//! | `cut` | a link is cut in mid-stream, works again, then another one is | no disconnect; a stall of 1.5 s, silent 2.5 s |
//! | `failover` | the relay in use is killed, or its host vanishes | a new flow works within 3 s |
//! | `cpu` | the relay's processor time for a gigabyte, without emulation | 1.5 × haproxy's |
//!
//! 1. Each figure is beside what it is compared with, from the same run; who is compared takes turns, in fresh labs.
//! 2. Bytes are counted where they arrive.
//! 3. A figure decides no exit code: it is 1 only if something could not be done at all, or a stream was not whole. Suspect
//!    runs are named.

mod cpu;
mod failover;
mod live;
mod transfer;

use std::path::PathBuf;

use clap::Args;
use marline_sim::spec::LinkSpec;

use super::cases::{self, Cases, is_interrupted, parse_link};
use super::report::ReportTable;
use crate::fleet::client_flow::Direction;
use crate::fleet::{EdgeAccess, FleetConfig, RelayAssignment};
use crate::result_file::ResultFile;
use crate::results::Backend;
use crate::runner::command::prepare_run;
use crate::{Congestion, LabError};

/// `marline-lab bench fleet`.
#[derive(Clone, Debug, Args)]
pub(super) struct FleetArgs {
    /// Only these: upload, download, live, cut, killed, cpu, all; or one of their rows, `upload 20+2`.
    #[arg(long = "case", value_name = "LIST", value_delimiter = ',')]
    cases: Vec<String>,
    /// Repetitions.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// So long are the streams of `live`; those of `cut` are a fifth of it.
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u32).range(10..))]
    seconds: u32,
    /// So long an upload or a download takes at the links' rates.
    #[arg(long = "transfer", value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    transfer_seconds: u32,
    /// Each once and short: a look, not a measurement.
    #[arg(long, conflicts_with_all = ["runs", "seconds", "transfer_seconds"])]
    quick: bool,
    /// Congestion control at both ends: cubic, bbr or reno.
    #[arg(long, value_name = "NAME", default_value = "cubic")]
    congestion: Congestion,
    /// Write everything that was measured to this file as JSON.
    #[arg(long, visible_alias = "out", value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The cases, in the order of the table.
const CASES: [&str; 6] = ["upload", "download", "live", "cut", "killed", "cpu"];

/// What all cases have in common.
struct FleetBench {
    cases: Cases,
    runs: u32,
    seconds: u32,
    transfer_seconds: u32,
    /// Gigabytes of `cpu`, in bytes.
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

    /// So many relays, named to the edge.
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

    /// Whether this row of a case is wanted.
    fn is_selected(&self, case: &str, row: &str) -> bool {
        self.cases.is_selected(case, row)
    }
}

pub(super) fn run(args: &FleetArgs) -> Result<u8, LabError> {
    let wanted = Cases::new("the fleet", &CASES, &args.cases)?;
    let cases = wanted.selected_cases();
    let file = ResultFile::open_if(args.json.as_ref())?;
    prepare_run(Backend::Lab)?;
    // Asked before anything is measured: what is missing is said at once.
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
