//! `marline-lab bench cpu`: CPU time per gigabyte, and throughput, over veth pairs without emulation.
//!
//! 1. File and output are in memory; only the client, nginx and the kernel are measured.
//! 2. Clients take turns, after one warm-up each. They are compared within the run, because absolute figures depend
//!    on the machine.
//! 3. aria2 and marline also run over two veth pairs (`:2`); curl cannot.

use std::path::PathBuf;

use clap::Args;
use marline_core::fetch::Policy;
use marline_core::units::DataSize;
use marline_sim::scenario::Client;
use marline_sim::spec::LinkSpec;
use serde_json::json;

use super::veth_testbed::VethTestbed;
use crate::clients::{self, ClientCommand};
use crate::html_report::Table;
use crate::result_file::ResultFile;
use crate::results::{Backend, HostInfo, stats};
use crate::runner::command::{notice, prepare_run, print_line};
use crate::server::TempDir;
use crate::{LabError, Payload, Service};

/// Options of `marline-lab bench cpu`.
#[derive(Clone, Debug, Args)]
pub(super) struct CpuArgs {
    /// Number of repetitions.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Size of each download.
    #[arg(long, value_name = "SIZE", default_value = "1GB")]
    size: DataSize,
    /// Write all measurements to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug)]
struct DownloadCost {
    seconds: f64,
    cpu_s: f64,
    peak_rss_bytes: f64,
}

const DEVICES: [&str; 2] = ["eth0", "eth1"];

/// Name and client of each contender, and the number of veth pairs it uses.
fn clients() -> [(String, Client, usize); 5] {
    let marline = Client::Marline { policy: Policy::Marline, only_link: None };
    let aria2 = |connections| Client::Aria2 { connections };
    [
        ("curl".into(), Client::Curl { only_link: None }, 1),
        ("marline".into(), marline.clone(), 1),
        ("aria2-s1".into(), aria2(1), 1),
        ("marline:2".into(), marline, 2),
        ("aria2-s2:2".into(), aria2(2), 2),
    ]
}

pub(super) fn run(args: &CpuArgs) -> Result<u8, LabError> {
    let file = ResultFile::open_if(args.json.as_ref())?;
    prepare_run(Backend::Lab)?;
    let contenders = clients();
    clients::check_installed(contenders.iter().map(|(_, client, _)| client))?;
    let payload = Payload::new(args.size).map_err(LabError::at_step("a file in memory"))?;
    print_line(&HostInfo::current().to_line());
    let mut costs: Vec<Vec<DownloadCost>> = vec![Vec::new(); contenders.len()];
    let (mut failed, mut stopped) = (false, false);
    'all: for run in 0..=args.runs {
        for position in 0..contenders.len() {
            let index = (position + run as usize) % contenders.len();
            let (name, client, wires) = &contenders[index];
            let result = download(client, *wires, &payload)?;
            if marline_sys::signal::last_caught().is_some() {
                stopped = true;
                break 'all;
            }
            match result {
                Ok(cost) if run > 0 => {
                    notice(&format!("run {run} {name}: {:.2} s, {:.2} s of CPU time", cost.seconds, cost.cpu_s));
                    costs[index].push(cost);
                }
                Ok(_) => {}
                Err(problem) => {
                    failed = true;
                    notice(&format!("run {run} {name}: FAILED: {problem}"));
                }
            }
        }
    }
    if stopped {
        let done: usize = costs.iter().map(Vec::len).sum();
        notice(&format!("interrupted: {done} of {} downloads", args.runs as usize * contenders.len()));
    }
    print_results(args, file, &contenders, &costs)?;
    Ok(if stopped { 130 } else { u8::from(failed) })
}

/// Prints the table and the two verdicts, and writes the file.
fn print_results(
    args: &CpuArgs,
    file: Option<ResultFile>,
    contenders: &[(String, Client, usize)],
    costs: &[Vec<DownloadCost>],
) -> Result<(), LabError> {
    let gigabytes = args.size.bytes() as f64 / 1e9;
    let figure = |costs: &[DownloadCost], value: &dyn Fn(&DownloadCost) -> f64| {
        stats::median(&costs.iter().map(value).collect::<Vec<_>>())
    };
    let curl_cpu = figure(&costs[0], &|cost| cost.cpu_s);
    let number =
        |value: Option<f64>, digits: usize| value.map_or("–".into(), |value| format!("{value:.digits$}"));
    let rows = contenders.iter().zip(costs).map(|((name, ..), costs)| {
        let cpu = figure(costs, &|cost| cost.cpu_s);
        vec![
            name.clone(),
            number(cpu.map(|cpu| cpu / gigabytes), 3),
            number(cpu.zip(curl_cpu).map(|(cpu, curl)| cpu / curl), 2),
            number(figure(costs, &|cost| args.size.bytes() as f64 * 8.0 / 1e6 / cost.seconds), 0),
            number(figure(costs, &|cost| cost.peak_rss_bytes / 1e6), 1),
            costs.len().to_string(),
        ]
    });
    let table = Table {
        header: ["client:wires", "CPU s per GB", "÷ curl", "Mbit/s", "RSS MB", "runs"].map(str::to_owned).to_vec(),
        rows: rows.collect(),
        note: Some("Floor: at most 1.0 × curl's CPU time, and at least its throughput. Medians.".into()),
    };
    print_line(&format!("\n{} over veth, HTTP, file and output in memory\n{}", args.size, table.to_text()));
    let verdict =
        |ours_value: Option<f64>, baseline: Option<f64>, more_is_better: bool| match ours_value.zip(baseline) {
            None => "no run",
            Some((accel, baseline)) if (accel <= baseline) != more_is_better => "met",
            Some(_) => "missed",
        };
    print_line(&format!(
        "CPU time: {}; throughput: {}",
        verdict(figure(&costs[1], &|cost| cost.cpu_s), curl_cpu, false),
        verdict(figure(&costs[1], &|cost| -cost.seconds), figure(&costs[0], &|cost| -cost.seconds), true),
    ));
    if let Some(file) = file {
        let all = contenders.iter().zip(costs).map(|((name, ..), costs)| {
            let runs = costs
                .iter()
                .map(|c| json!({"seconds": c.seconds, "cpu_s": c.cpu_s, "peak_rss_bytes": c.peak_rss_bytes}));
            json!({"client": name, "runs": runs.collect::<Vec<_>>()})
        });
        let command: Vec<String> = std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect();
        let record = json!({
            "command": command,
            "version": env!("CARGO_PKG_VERSION"),
            "machine": HostInfo::current(),
            "bytes": args.size.bytes(),
            "clients": all.collect::<Vec<_>>(),
        });
        file.write(&format!("{record:#}\n"))?;
    }
    Ok(())
}

/// Runs one download over new veth pairs. The inner error is a failure of the client.
fn download(client: &Client, wires: usize, payload: &Payload) -> Result<Result<DownloadCost, String>, LabError> {
    let names = &DEVICES[..wires.min(DEVICES.len())];
    let testbed = VethTestbed::start(names, &Service::Files(payload.path()))?;
    let folder = TempDir::new().map_err(LabError::at_step("directory of the download"))?;
    let program = if client.is_marline() { crate::program::marline()? } else { PathBuf::new() };
    let rate = marline_core::units::Bitrate::from_mbps(10_000);
    let links: Vec<LinkSpec> =
        names.iter().map(|name| LinkSpec::constant(name, rate, std::time::Duration::ZERO)).collect();
    let command = ClientCommand {
        client,
        links: &links,
        best_link: names[0],
        uses_tls: false,
        directory: folder.path(),
        program: &program,
        shows_progress: false,
    };
    let finished = testbed.run(&clients::client_task(&command).limit(std::time::Duration::from_secs(120)))?;
    if finished.timed_out || !finished.usage.status.success() {
        let stderr = String::from_utf8_lossy(&finished.stderr);
        return Ok(Err(format!("{}: {}", finished.usage.status, stderr.lines().last().unwrap_or_default())));
    }
    if crate::runner::sha256(&folder.path().join(clients::OUTPUT_FILE)).ok().as_deref() != Some(payload.sha256()) {
        return Ok(Err("wrong SHA-256".into()));
    }
    Ok(Ok(DownloadCost {
        seconds: finished.wall.as_secs_f64(),
        cpu_s: (finished.usage.user + finished.usage.system).as_secs_f64(),
        peak_rss_bytes: finished.peak_memory.bytes() as f64,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_download_over_veth_pairs_is_complete_and_measured() {
        if crate::acquire_privileges().is_err()
            || ["curl", "nginx"].iter().any(|p| crate::server::find_program(p).is_none())
        {
            eprintln!("skipped: needs the right to make namespaces, curl and nginx");
            return;
        }
        let payload = Payload::new(DataSize::from_bytes(3_000_000)).unwrap();
        for wires in [1, 2] {
            let curl = Client::Curl { only_link: None };
            match download(&curl, wires, &payload) {
                Ok(cost) => assert!(cost.unwrap().seconds < 60.0),
                Err(error) => panic!("{error}"),
            }
        }
    }
}
