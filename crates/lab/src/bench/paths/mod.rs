//! `marline lab bench paths`: what is asked of `marline paths`, over kernel MPTCP and emulated links with real round trips.
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
use serde_json::json;

use super::sheet::Sheet;
use crate::evidence::{By, Machine};
use crate::mptcp::peer::Mptcpd;
use crate::mptcp::stage::{Scene, Stage, Who};
use crate::result_file::ResultFile;
use crate::runner::command::{begin, print, say};
use crate::{Congestion, LabError};

/// `marline lab bench paths`.
#[derive(Clone, Debug, Args)]
pub(super) struct PathsArgs {
    /// Only these: unequal, suspend, small, faults, scale; or one of their rows, `unequal 50+5`.
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
        let named = |wanted: &String| wanted == case || *wanted == format!("{case} {row}");
        self.args.cases.is_empty() || self.args.cases.iter().any(named)
    }
}

pub(super) fn run(args: &PathsArgs) -> Result<u8, LabError> {
    let case_of = |word: &str| word.split(' ').next().unwrap_or_default().to_owned();
    if let Some(unknown) = args.cases.iter().find(|word| !CASES.contains(&case_of(word).as_str())) {
        return Err(LabError::Spec(format!("no case `{unknown}` of the paths; there are: {}", CASES.join(", "))));
    }
    let file = ResultFile::open_if(args.json.as_ref())?;
    begin(By::Lab)?;
    if crate::server::find("nginx").is_none() {
        return Err(LabError::Missing { program: "nginx".into(), package: "nginx-light" });
    }
    if Mptcpd::program().is_none() {
        say("mptcpd is not installed (package mptcpd): it is left out");
    }
    let program = std::env::current_exe().map_err(LabError::at("the path of this program"))?;
    let bench = Bench { args, program };
    print(&Machine::here().line());
    let mut sheet = Sheet::default();
    let wanted = |case: &&str| args.cases.is_empty() || args.cases.iter().any(|word| case_of(word) == **case);
    for case in CASES.into_iter().filter(wanted) {
        match case {
            "unequal" => unequal::run(&bench, &mut sheet)?,
            "suspend" => suspend::run(&bench, &mut sheet)?,
            "small" => small::run(&bench, &mut sheet)?,
            "faults" => faults::run(&bench, &mut sheet)?,
            _ => scale::run(&bench, &mut sheet)?,
        }
        if is_stopped() {
            say("interrupted: what follows is no result");
            break;
        }
    }
    print(&format!("\nSender: {}.\n{}", args.cc, sheet.table().plain()));
    if let Some(file) = file {
        let command: Vec<String> = std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect();
        let version = env!("CARGO_PKG_VERSION");
        let record =
            json!({"command": command, "version": version, "machine": Machine::here(), "rows": sheet.record()});
        file.write(&format!("{record:#}\n"))?;
    }
    Ok(if is_stopped() { 130 } else { u8::from(sheet.problems > 0) })
}

/// Whether the user wants an end.
fn is_stopped() -> bool {
    marline_sys::signal::caught().is_some()
}

/// A link from its written form, which is known to be right.
fn link(words: &str) -> LinkSpec {
    words.parse().expect("links that are written here are understood")
}
