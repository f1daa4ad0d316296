//! `marline-lab bench cpu`: processor time per gigabyte and speed, on wires without any emulation.
//!
//! 1. File and output are in memory; nothing but the client, nginx and the kernel is measured.
//! 2. Clients take turns, one warm-up each; the comparison is within the run, because absolute figures are this
//!    machine's.
//! 3. aria2 and marline are also run on two wires (`:2`), curl cannot.

use std::path::PathBuf;

use clap::Args;
use marline_core::fetch::Policy;
use marline_core::units::DataSize;
use marline_sim::scenario::Client;
use marline_sim::spec::LinkSpec;
use serde_json::json;

use super::wired::Wired;
use crate::evidence::{By, Machine, stats};
use crate::page::Table;
use crate::peers::{self, Order};
use crate::result_file::ResultFile;
use crate::runner::command::{begin, print, say};
use crate::server::Folder;
use crate::{LabError, Payload, Service};

/// `marline-lab bench cpu`.
#[derive(Clone, Debug, Args)]
pub(super) struct CpuArgs {
    /// Repetitions.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// How much is downloaded each time.
    #[arg(long, value_name = "SIZE", default_value = "1GB")]
    size: DataSize,
    /// Write everything that was measured to this file as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// One download.
#[derive(Clone, Copy, Debug)]
struct Cost {
    seconds: f64,
    cpu: f64,
    memory: f64,
}

const WIRES: [&str; 2] = ["eth0", "eth1"];

/// Who, and on how many wires.
fn contenders() -> [(String, Client, usize); 5] {
    let ours = Client::Marline { policy: Policy::Marline, only: None };
    let aria2 = |connections| Client::Aria2 { connections };
    [
        ("curl".into(), Client::Curl { only: None }, 1),
        ("marline".into(), ours.clone(), 1),
        ("aria2-s1".into(), aria2(1), 1),
        ("marline:2".into(), ours, 2),
        ("aria2-s2:2".into(), aria2(2), 2),
    ]
}

pub(super) fn run(args: &CpuArgs) -> Result<u8, LabError> {
    let file = ResultFile::open_if(args.json.as_ref())?;
    begin(By::Lab)?;
    let contenders = contenders();
    peers::check_installed(contenders.iter().map(|(_, client, _)| client))?;
    let payload = Payload::new(args.size).map_err(LabError::at("a file in memory"))?;
    print(&Machine::here().line());
    let mut costs: Vec<Vec<Cost>> = vec![Vec::new(); contenders.len()];
    let (mut failed, mut stopped) = (false, false);
    'all: for run in 0..=args.runs {
        for turn in 0..contenders.len() {
            let at = (turn + run as usize) % contenders.len();
            let (name, client, wires) = &contenders[at];
            let ended = download(client, *wires, &payload)?;
            if marline_sys::signal::caught().is_some() {
                stopped = true;
                break 'all;
            }
            match ended {
                Ok(cost) if run > 0 => {
                    say(&format!("run {run} {name}: {:.2} s, {:.2} s of processor", cost.seconds, cost.cpu));
                    costs[at].push(cost);
                }
                Ok(_) => {}
                Err(problem) => {
                    failed = true;
                    say(&format!("run {run} {name}: FAILED: {problem}"));
                }
            }
        }
    }
    if stopped {
        let done: usize = costs.iter().map(Vec::len).sum();
        say(&format!("interrupted: {done} of {} downloads", args.runs as usize * contenders.len()));
    }
    present(args, file, &contenders, &costs)?;
    Ok(if stopped { 130 } else { u8::from(failed) })
}

/// The table, the two verdicts and the file.
fn present(
    args: &CpuArgs,
    file: Option<ResultFile>,
    contenders: &[(String, Client, usize)],
    costs: &[Vec<Cost>],
) -> Result<(), LabError> {
    let gigabytes = args.size.bytes() as f64 / 1e9;
    let figure =
        |costs: &[Cost], of: &dyn Fn(&Cost) -> f64| stats::median(&costs.iter().map(of).collect::<Vec<_>>());
    let curl = figure(&costs[0], &|cost| cost.cpu);
    let number =
        |value: Option<f64>, digits: usize| value.map_or("–".into(), |value| format!("{value:.digits$}"));
    let rows = contenders.iter().zip(costs).map(|((name, ..), costs)| {
        let cpu = figure(costs, &|cost| cost.cpu);
        vec![
            name.clone(),
            number(cpu.map(|cpu| cpu / gigabytes), 3),
            number(cpu.zip(curl).map(|(cpu, curl)| cpu / curl), 2),
            number(figure(costs, &|cost| args.size.bytes() as f64 * 8.0 / 1e6 / cost.seconds), 0),
            number(figure(costs, &|cost| cost.memory / 1e6), 1),
            costs.len().to_string(),
        ]
    });
    let table = Table {
        head: ["client:wires", "CPU s per GB", "÷ curl", "Mbit/s", "RSS MB", "runs"].map(str::to_owned).to_vec(),
        rows: rows.collect(),
        note: Some("Floor: at most 1.0 × curl's processor time, and at least its speed. Medians.".into()),
    };
    print(&format!("\n{} over veth, HTTP, file and output in memory\n{}", args.size, table.plain()));
    let word = |ours: Option<f64>, theirs: Option<f64>, more: bool| match ours.zip(theirs) {
        None => "no run",
        Some((ours, theirs)) if (ours <= theirs) != more => "met",
        Some(_) => "missed",
    };
    print(&format!(
        "processor: {}; speed: {}",
        word(figure(&costs[1], &|cost| cost.cpu), curl, false),
        word(figure(&costs[1], &|cost| -cost.seconds), figure(&costs[0], &|cost| -cost.seconds), true),
    ));
    if let Some(file) = file {
        let all = contenders.iter().zip(costs).map(|((name, ..), costs)| {
            let runs =
                costs.iter().map(|c| json!({"seconds": c.seconds, "cpu_s": c.cpu, "peak_rss_bytes": c.memory}));
            json!({"client": name, "runs": runs.collect::<Vec<_>>()})
        });
        let command: Vec<String> = std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect();
        let record = json!({
            "command": command,
            "version": env!("CARGO_PKG_VERSION"),
            "machine": Machine::here(),
            "bytes": args.size.bytes(),
            "clients": all.collect::<Vec<_>>(),
        });
        file.write(&format!("{record:#}\n"))?;
    }
    Ok(())
}

/// One download on fresh wires; the inner error is the client's.
fn download(client: &Client, wires: usize, payload: &Payload) -> Result<Result<Cost, String>, LabError> {
    let names = &WIRES[..wires.min(WIRES.len())];
    let wired = Wired::start(names, &Service::Files(payload.path()))?;
    let folder = Folder::new().map_err(LabError::at("a place for the file"))?;
    let program = if client.is_ours() { crate::program::marline()? } else { PathBuf::new() };
    let rate = marline_core::units::Bitrate::from_mbps(10_000);
    let links: Vec<LinkSpec> =
        names.iter().map(|name| LinkSpec::constant(name, rate, std::time::Duration::ZERO)).collect();
    let order = Order {
        client,
        links: &links,
        best: names[0],
        secure: false,
        directory: folder.path(),
        program: &program,
        show: false,
    };
    let ended = wired.run(&peers::task(&order).limit(std::time::Duration::from_secs(120)))?;
    if ended.timed_out || !ended.usage.status.success() {
        let said = String::from_utf8_lossy(&ended.stderr);
        return Ok(Err(format!("{}: {}", ended.usage.status, said.lines().last().unwrap_or_default())));
    }
    if crate::runner::sha256(&folder.path().join(peers::FILE)).ok().as_deref() != Some(payload.sha256()) {
        return Ok(Err("wrong SHA-256".into()));
    }
    Ok(Ok(Cost {
        seconds: ended.wall.as_secs_f64(),
        cpu: (ended.usage.user + ended.usage.system).as_secs_f64(),
        memory: ended.peak_memory.bytes() as f64,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_download_over_plain_wires_is_whole_and_counted() {
        if crate::prepare().is_err() || ["curl", "nginx"].iter().any(|p| crate::server::find(p).is_none()) {
            eprintln!("skipped: needs the right to make namespaces, curl and nginx");
            return;
        }
        let payload = Payload::new(DataSize::from_bytes(3_000_000)).unwrap();
        for wires in [1, 2] {
            let curl = Client::Curl { only: None };
            match download(&curl, wires, &payload) {
                Ok(cost) => assert!(cost.unwrap().seconds < 60.0),
                Err(error) => panic!("{error}"),
            }
        }
    }
}
