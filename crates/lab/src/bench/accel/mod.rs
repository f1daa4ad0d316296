//! `marline-lab bench accel`: measures `marline accel` with a stock kernel's TCP at both ends.
//!
//! | case | what | floor |
//! |---|---|---|
//! | `loss` | 1 % random loss, 50 and 200 ms, TLS | 4 and 8 times plain |
//! | `loss-http` | 1, 2 and 3 %, plain HTTP, the second link also with 600 kbit/s | 0.95 to 0.9 of loss-free; 5 times plain |
//! | `blackout` | outages of 10 s and 2 s every 20 s | 0.94 and 0.95 of loss-free × availability |
//! | `upload` | 1 % random loss of what the client sends, 50 and 200 ms; outages of 10 s every 20 s | plain |
//! | `offload` | an 802.11g cell, the second link with 400 and 100 kbit/s up | 0.95 of UDP's goodput; 1.15 times plain |
//! | `both` | 1 % and outages of 2 s every 20 s | 5 (TLS) and 8 times plain (HTTP); no stall |
//! | `harmless` | a clean link, a BBR sender, congestion alone | 0.98 of plain; a competing flow loses no more |
//! | `fairness` | a plain flow beside an accelerated one: policer, CoDel, queues of 1 to 100 ms, random loss | 0.9 of its goodput beside a plain one; 1.1 times the drops |
//! | `grid` | 24 combinations of mechanism, second link and loss | 0.97 of plain in each |
//! | `integrity` | whole files with all impairments at once | each byte correct; no stall |
//! | `cost` | processor time per packet, speed at 300 Mbit/s and 1 Gbit/s | 10 µs, 200 ns in BPF; 0.97 of plain |
//!
//! 1. Plain TCP and the accelerator take turns within each run, in new labs with the same seed. The ratio of such a
//!    pair is judged; the same holds for loss-free goodput and UDP's.
//! 2. Loss is towards the client only; for an upload, from it only.
//! 3. Figures do not affect the exit code: it is 1 only if something could not be run, or a byte was wrong. Suspect
//!    runs are named.
//! 4. Runs of different seeds and rows may be concurrent (`--jobs`, [`run`]); those of `cost` never are.

mod cost;
mod do_no_harm;
mod fairness;
mod grid;
mod integrity;
mod offload;
mod paired;
mod rows;
mod run;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use marline_core::units::DataSize;

use super::cases::{self, Cases};
use crate::accel::{Contender, Stream, Topology, Trial, TrialEnv, TrialResult};
use crate::interrupt::is_interrupted;
use crate::result_file::ResultFile;
use crate::results::{Backend, HostInfo};
use crate::runner::command::{notice, prepare_run, print_line};
use crate::server::Payload;
use crate::worker_pool::MAX_JOBS;
use crate::{Congestion, LabError};
use run::BenchRun;

/// `marline-lab bench accel`.
#[derive(Clone, Debug, Args)]
#[command(after_help = AFTER)]
pub(super) struct AccelArgs {
    /// Only these: loss, loss-http, blackout, upload, offload, both, harmless, fairness, grid, integrity, cost, all; or
    /// one of their rows, `loss 200ms`.
    #[arg(long = "case", value_name = "LIST", value_delimiter = ',')]
    cases: Vec<String>,
    /// Repetitions [default: 5; both 20, fairness 10, grid 9, integrity 100].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    runs: Option<u32>,
    /// Only these repetitions, by their numbers from 0; for `integrity` a number selects the impairments.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    only: Vec<u32>,
    /// Short runs, each once unless --runs is given: a check, not a measurement.
    #[arg(long)]
    quick: bool,
    /// So many concurrent runs, each in a lab of its own; those of `cost` are always alone.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=i64::from(MAX_JOBS)))]
    jobs: u16,
    /// The server's congestion control where a row does not name one: cubic, bbr or reno.
    #[arg(long = "congestion", value_name = "NAME", default_value = "cubic")]
    cc: Congestion,
    /// Plain TCP only, without the accelerator.
    #[arg(long)]
    plain: bool,
    /// Write all measurements to this file as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

const AFTER: &str = "\
A run of a row takes one to three minutes, all rows with the usual repetitions more than six hours, with `--jobs 6` little
more than one; `--quick` a quarter of an hour. How many runs and about how long is said at the start. A lab takes a
twentieth of two cores; what a crowd spoils all the same is named suspect. Ctrl-C ends it and shows what there is.
Needs root, nginx, curl, ip and ss (iproute2). docs/benchmarks.md tells what each case is.

Examples:
  marline-lab bench accel --jobs 6
  marline-lab bench accel --case \"loss 200ms\",blackout --quick --runs 3";

/// The cases, in the order of the table.
const CASES: [&str; 11] = [
    "loss",
    "loss-http",
    "blackout",
    "upload",
    "offload",
    "both",
    "harmless",
    "fairness",
    "grid",
    "integrity",
    "cost",
];

/// Options and resources that all cases use.
struct Bench {
    cases: Cases,
    runs: Option<u32>,
    quick: bool,
    congestion: Congestion,
    /// Whether the accelerator is measured.
    includes_accel: bool,
    workshop: TrialEnv,
    /// Large enough for any run.
    payload: Payload,
}

impl Bench {
    /// Whether this row of a case is wanted.
    fn wants(&self, case: &str, row: &str) -> bool {
        self.cases.is_selected(case, row)
    }

    /// The number of repetitions, unless another one is given.
    fn runs(&self, usual: u32) -> u32 {
        self.runs.unwrap_or(if self.quick { 1 } else { usual })
    }

    /// The runs of a case.
    fn units(&self, case: &str) -> Result<Vec<BenchRun<'_>>, LabError> {
        Ok(match case {
            "offload" => offload::units(self),
            "harmless" => do_no_harm::units(self),
            "fairness" => fairness::units(self),
            "grid" => grid::units(self),
            "integrity" => integrity::units(self)?,
            "cost" => cost::units(self),
            case => rows::units(self, case),
        })
    }

    /// One trial; none: the user interrupted it, so it is no result.
    fn trial(
        &self,
        world: &Topology,
        contender: &Contender,
        streams: &[Stream],
        length: Duration,
    ) -> Result<Option<TrialResult>, LabError> {
        self.trial_of(&self.payload, world, contender, streams, length)
    }

    /// The same with another file.
    fn trial_of(
        &self,
        payload: &Payload,
        world: &Topology,
        contender: &Contender,
        streams: &[Stream],
        length: Duration,
    ) -> Result<Option<TrialResult>, LabError> {
        if is_interrupted() {
            return Ok(None);
        }
        let done =
            Trial { world, contender, streams, length, sample_interval: None, payload, workshop: &self.workshop }
                .run();
        if is_interrupted() { Ok(None) } else { done.map(Some) }
    }

    /// The length of a run, and from when on it counts.
    fn time(&self, seconds: u64, from: u64) -> (Duration, Duration) {
        match self.quick {
            true => (Duration::from_secs(seconds.min(QUICK)), Duration::from_secs(from.min(1))),
            false => (Duration::from_secs(seconds), Duration::from_secs(from)),
        }
    }
}

/// Seconds of a quick run.
const QUICK: u64 = 6;
/// What 20 Mbit/s carry in the longest run, and 30 Mbit/s in the shorter ones of a cell.
const SIZE: DataSize = DataSize::from_bytes(200_000_000);
/// What 1 Gbit/s carry in a run of `cost`.
const LARGE: DataSize = DataSize::from_bytes(400_000_000);

pub(super) fn run(args: &AccelArgs) -> Result<u8, LabError> {
    let cases = Cases::new("the accelerator", &CASES, &args.cases)?;
    let file = ResultFile::open_if(args.json.as_ref())?;
    prepare_run(Backend::Lab)?;
    for (program, package) in [("nginx", "nginx-light"), ("curl", "curl"), ("ip", "iproute2"), ("ss", "iproute2")] {
        crate::server::find_program(program)
            .ok_or(LabError::MissingProgram { program: program.into(), package })?;
    }
    let bench = Bench {
        runs: args.runs,
        quick: args.quick,
        congestion: args.cc,
        includes_accel: !args.plain,
        workshop: TrialEnv::new()?,
        payload: Payload::new(if cases.is_selected("cost", "1000") { LARGE } else { SIZE })
            .map_err(LabError::at_step("a file in memory"))?,
        cases,
    };
    print_line(&HostInfo::current().to_line());
    let mut units = Vec::new();
    for case in bench.cases.selected_cases() {
        units.extend(bench.units(case)?);
    }
    if !args.only.is_empty() && !units.is_empty() {
        units.retain(|unit| args.only.contains(&unit.run()));
        if units.is_empty() {
            return Err(LabError::Spec(
                "--only: no repetition has such a number; they count from 0, see --runs".into(),
            ));
        }
    }
    let sheet = run::each(&units, usize::from(args.jobs))?;
    if is_interrupted() {
        notice("interrupted: what follows is no result");
    }
    let head = format!("Sender: {}, where a row names no other. Loss of what carries data alone.\n", args.cc);
    cases::finish(file, &head, &sheet.table(), &sheet.to_json(), sheet.problems)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: AccelArgs,
    }

    fn parse(line: &str) -> Result<AccelArgs, String> {
        let args = std::iter::once("accel").chain(line.split_whitespace());
        Line::try_parse_from(args).map(|line| line.args).map_err(|error| error.to_string())
    }

    #[test]
    fn quick_runs_may_be_repeated_and_jobs_are_one_to_sixteen() {
        let args = parse("--quick --runs 3 --jobs 6").unwrap();
        assert_eq!((args.quick, args.runs, args.jobs), (true, Some(3), 6));
        assert_eq!(parse("").unwrap().jobs, 1);
        assert_eq!(parse("--only 10,34").unwrap().only, [10, 34]);
        for refused in ["--jobs 0", "--jobs 17"] {
            assert!(parse(refused).unwrap_err().contains("1..=16"), "{refused}");
        }
    }
}
