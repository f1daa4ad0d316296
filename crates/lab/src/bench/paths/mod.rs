//! `marline-lab bench paths`: what is asked of `marline paths`, over kernel MPTCP and emulated links with real round trips.
//!
//! | case | what | beside |
//! |---|---|---|
//! | `unequal` | 50+5, 20+1 and 8+61 Mbit/s, Wi-Fi either one, and 20+20 and 20+5 over 150 ms; profile throughput | the better link alone; the kernel's endpoints; mptcpd |
//! | `suspend` | bytes over LTE after Wi-Fi has become good | nothing but control |
//! | `small` | 256 KB, good and bad links: joules and seconds | TCP over Wi-Fi; the kernel's endpoints; mptcpd |
//! | `faults` | carrier loss, silence, a lost priority, a killed daemon, lost events | bounds in seconds |
//! | `scale` | a thousand and ten thousand connections, a hundred of them active | bounds of processor and memory |
//!
//! 1. The sender's congestion control is chosen (`--cc`); nothing else of it is ours to change.
//! 2. Clients take turns within each repetition; medians are compared.
//! 3. A figure decides no exit code: it is 1 only if something could not be done at all. Suspect runs are named.

mod faults;
mod scale;
mod small;
mod suspend;
mod unequal;

use std::path::{Path, PathBuf};

use clap::Args;
use marline_core::units::DataSize;
use marline_sim::spec::{Event, LinkSpec};

use super::sheet::Sheet;
use super::turns::{self, Cases, is_stopped, link};
use crate::evidence::By;
use crate::mptcp::peer::Mptcpd;
use crate::mptcp::stage::{Scene, Stage, Who};
use crate::result_file::ResultFile;
use crate::runner::command::{begin, say};
use crate::{Congestion, LabError};

/// `marline-lab bench paths`.
#[derive(Clone, Debug, Args)]
pub(super) struct PathsArgs {
    /// Only these: unequal, suspend, small, faults, scale, all; or one of their rows, `unequal 50+5`.
    #[arg(long = "case", value_name = "LIST", value_delimiter = ',')]
    cases: Vec<String>,
    /// Repetitions.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// How much is downloaded each time in `unequal`.
    #[arg(long, value_name = "SIZE", default_value = "100MB")]
    size: DataSize,
    /// The server's congestion control: cubic, bbr or reno.
    #[arg(long, value_name = "NAME", default_value = "cubic")]
    cc: Congestion,
    /// So many connections in `scale`.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1000,10000")]
    connections: Vec<u32>,
    /// Write everything that was measured to this file as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the daemon's decisions into files in this folder, for `marline replay`.
    #[arg(long, value_name = "FOLDER")]
    trace: Option<PathBuf>,
}

/// The cases, in the order of the table.
const CASES: [&str; 5] = ["unequal", "suspend", "small", "faults", "scale"];

/// What all cases have in common.
struct Bench<'a> {
    args: &'a PathsArgs,
    cases: Cases,
    program: PathBuf,
}

impl Bench<'_> {
    /// A place with these links.
    fn scene<'s>(&'s self, links: &'s [LinkSpec], events: &'s [Event], served: &'s Path, run: u32) -> Scene<'s> {
        Scene {
            links,
            events,
            served,
            congestion: self.args.cc,
            seed: u64::from(run) + 1,
            program: &self.program,
            trace: None,
        }
    }

    /// A place in which somebody decides; none: it could not be had, which is told.
    fn stage(&self, sheet: &mut Sheet, case: &str, scene: &Scene<'_>, (who, run): (Who, u32)) -> Option<Stage> {
        if who == Who::Mptcpd && Mptcpd::program().is_none() {
            return None;
        }
        let mut scene = scene.clone();
        if let Some(folder) = &self.args.trace {
            let label = format!("{case} {} {run}.ndjson", who.name(scene.links));
            scene.trace = Some(folder.join(label.replace([' ', '/', ':', '+'], "-")));
        }
        let stage = Stage::start(&scene, who);
        stage.map_err(|why| sheet.problem(case, &who.name(scene.links), run, &why)).ok()
    }

    /// Whether this row of a case is wanted.
    fn wants(&self, case: &str, row: &str) -> bool {
        self.cases.wants(case, row)
    }
}

pub(super) fn run(args: &PathsArgs) -> Result<u8, LabError> {
    let cases = Cases::new("the paths", &CASES, &args.cases)?;
    let file = ResultFile::open_if(args.json.as_ref())?;
    begin(By::Lab)?;
    if crate::server::find("nginx").is_none() {
        return Err(LabError::Missing { program: "nginx".into(), package: "nginx-light" });
    }
    if Mptcpd::program().is_none() {
        say("mptcpd is not installed (package mptcpd): it is left out");
    }
    let program = crate::program::marline()?;
    let bench = Bench { args, cases, program };
    let mut sheet = Sheet::default();
    turns::each(&bench.cases.wanted(), |case| match case {
        "unequal" => unequal::run(&bench, &mut sheet),
        "suspend" => suspend::run(&bench, &mut sheet),
        "small" => small::run(&bench, &mut sheet),
        "faults" => faults::run(&bench, &mut sheet),
        _ => scale::run(&bench, &mut sheet),
    })?;
    turns::end(file, &format!("Sender: {}.\n", args.cc), &sheet.table(), &sheet.record(), sheet.problems)
}
