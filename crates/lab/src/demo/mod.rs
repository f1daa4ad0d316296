//! `marline-lab demo`: one download over each of two links alone, then over both, shown while it runs.
//!
//! 1. In real time the output is that of `marline get`: one bar per link on a terminal, otherwise a line per
//!    second. It runs `marline`, kernel TCP and a real web server.
//! 2. In virtual time (`--sim`) each download is shown afterwards: one line of throughput over time per link.
//! 3. At the end it prints a table and writes a page with the throughput over time.
//!
//! `marline-lab demo live` is another demonstration: a broadcast through an edge ([`live`]).

mod live;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use marline_core::units::DataSize;

use crate::html_report::Table;
use crate::result_file::ResultFile;
use crate::results::{Backend, DownloadOutcome, stats};
use crate::runner::command::{exit_code, notice, page, prepare_run, print_line};
use crate::runner::{Results, RunPlan};
use crate::{LabError, scenarios};

/// Options of `marline-lab demo`.
#[derive(Clone, Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct DemoArgs {
    #[command(subcommand)]
    command: Option<DemoCommand>,
    /// Download 25 MB instead of 250 MB.
    #[arg(long)]
    quick: bool,
    /// Run in virtual time: needs no privileges and no other programs, and ends at once.
    #[arg(long)]
    sim: bool,
    /// Write the page with throughput over time to this file.
    #[arg(long = "page", value_name = "FILE", default_value = "marline-demo.html")]
    page_path: PathBuf,
}

/// Further demonstrations.
#[derive(Clone, Debug, Subcommand)]
enum DemoCommand {
    /// Broadcast live video through an edge over three uplinks, two of which fail in turn.
    #[command(after_help = AFTER_LIVE)]
    Live(live::LiveArgs),
}

const AFTER_LIVE: &str = "\
ffmpeg pushes RTMP; `marline edge`, the gateway of its network, carries it over all links to the `marline relay` that the fleet
service has selected; the relay forwards it to nginx, which records it. Every packet of ffmpeg is compared with the recording. The exit
code is 0 if all were received in order over one connection and no frame was dropped, else 1.
Needs ffmpeg, nginx with libnginx-mod-rtmp, and socat; docs/lab.md explains the lines of the table.
Example:
  sudo marline-lab demo live --seconds 30 --bitrate 6Mbit/s --link wifi,rate=20Mbit/s,up=5Mbit/s,rtt=30ms \\
      --link lte,rate=20Mbit/s,up=5Mbit/s,rtt=60ms";

/// Size of the download with `--quick`.
const QUICK_SIZE: DataSize = DataSize::from_bytes(25_000_000);

/// Runs the demonstration and returns the exit code: 1 if a download failed.
pub(crate) fn run(args: &DemoArgs) -> Result<u8, LabError> {
    if let Some(DemoCommand::Live(args)) = &args.command {
        return live::run(args);
    }
    let mut scenario = scenarios::load("demo")?;
    if args.quick {
        scenario.cases.iter_mut().for_each(|case| case.size = QUICK_SIZE);
    }
    let backend = if args.sim { Backend::Sim } else { Backend::Lab };
    let page_file = ResultFile::open(&args.page_path)?;
    prepare_run(backend)?;
    if backend == Backend::Lab {
        // Report a missing program before announcing the first download.
        crate::program::marline()?;
    }
    for case in &scenario.cases {
        let links: Vec<String> = case.links.iter().map(ToString::to_string).collect();
        let description = if args.sim { "in virtual time" } else { "with real TCP and a real web server" };
        print_line(&format!("{} {description}, over two emulated links:\n  {}", case.size, links.join("\n  ")));
    }
    let mut results = Results::default();
    // One plan per client, so that each client is announced before it starts.
    for client in scenario.clients.clone() {
        let mut single_client = scenario.clone();
        single_client.clients = vec![client.clone()];
        print_line(&format!(
            "\n{}",
            client.only_link().map_or("both links".to_string(), |link| format!("{link} alone"))
        ));
        let plan = RunPlan {
            scenario: &single_client,
            runs: 1,
            backend,
            traces: Vec::new(),
            samples_process: false,
            shows_progress: backend == Backend::Lab,
        };
        let client_results = plan.run(
            |_, _, _| false,
            |outcome| {
                if backend == Backend::Sim {
                    throughput_lines(outcome).iter().for_each(|line| print_line(line));
                }
                if let Some(problem) = &outcome.problem {
                    notice(&format!("FAILED: {problem}"));
                }
            },
        )?;
        results.outcomes.extend(client_results.outcomes);
        if client_results.is_stopped {
            return Ok(130);
        }
    }
    print_line(&format!("\n{}", table(&results.outcomes).to_text()));
    page_file.write(&page(&scenario, &results).to_html())?;
    let path = std::fs::canonicalize(&args.page_path).unwrap_or_else(|_| args.page_path.clone());
    print_line(&format!("Throughput over time: {}", path.display()));
    Ok(exit_code(&results))
}

/// Time, goodput, and goodput as a share of the sum of the links' goodputs alone.
fn table(outcomes: &[DownloadOutcome]) -> Table {
    let name = |outcome: &DownloadOutcome| match outcome.client.split_once(':') {
        Some((_, link)) => format!("{link} alone"),
        None => "both, marline".to_string(),
    };
    let single_links = outcomes.iter().filter(|outcome| outcome.client.contains(':') && outcome.is_complete());
    let sum: f64 = single_links.map(DownloadOutcome::goodput_mbps).sum();
    let row = |outcome: &DownloadOutcome| match &outcome.problem {
        Some(problem) => vec![name(outcome), "failed".into(), problem.clone(), String::new()],
        None => vec![
            name(outcome),
            format!("{:.2} s", outcome.seconds),
            format!("{:.1} Mbit/s", outcome.goodput_mbps()),
            format!("{:.1} %", outcome.goodput_mbps() / sum * 100.0),
        ],
    };
    Table {
        header: ["links", "time", "goodput", "of the sum"].map(str::to_owned).to_vec(),
        rows: outcomes.iter().map(row).collect(),
        note: None,
    }
}

/// Throughput over time, one line per link that carried data.
fn throughput_lines(outcome: &DownloadOutcome) -> Vec<String> {
    let peak = outcome.links.iter().flat_map(|link| to_columns(&link.rates_mbps())).fold(1.0, f64::max);
    let active_links = outcome.links.iter().filter(|link| link.span_s.is_some());
    active_links
        .map(|link| {
            let rate = link.median_mbps.unwrap_or(0.0);
            format!(
                "  {:<6} {} {rate:.1} Mbit/s, {:.2} s",
                link.name,
                sparkline(&link.rates_mbps(), peak),
                outcome.seconds
            )
        })
        .collect()
}

/// Maximum number of bars in a line.
const COLUMNS: usize = 60;

/// Averages neighboring slots until at most [`COLUMNS`] are left.
fn to_columns(rates: &[f64]) -> Vec<f64> {
    let chunk_len = rates.len().div_ceil(COLUMNS).max(1);
    rates.chunks(chunk_len).map(|chunk| stats::mean(chunk).unwrap_or(0.0)).collect()
}

/// Draws the rates as bars; a full bar is `peak`.
fn sparkline(rates: &[f64], peak: f64) -> String {
    const HEIGHTS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let height = |rate: f64| HEIGHTS[((rate / peak * 8.0).ceil() as usize).clamp(1, 8) - 1];
    to_columns(rates).into_iter().map(height).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::outcome::tests::example_outcome;

    #[test]
    fn the_table_shows_the_share_of_the_sum() {
        let outcomes = [
            example_outcome("single:wifi", 0, 10.0),
            example_outcome("single:lte", 0, 20.0),
            example_outcome("marline", 0, 7.0),
        ];
        let table = table(&outcomes);
        assert_eq!(table.rows[0], ["wifi alone", "10.00 s", "80.0 Mbit/s", "66.7 %"]);
        assert_eq!(table.rows[2], ["both, marline", "7.00 s", "114.3 Mbit/s", "95.2 %"]);
    }

    #[test]
    fn throughput_over_time_fits_a_line() {
        assert_eq!(sparkline(&[0.0, 10.0, 45.0, 80.0], 80.0), "▁▁▅█");
        assert_eq!(sparkline(&vec![80.0; 2782], 80.0).chars().count(), 60);
        assert_eq!(throughput_lines(&example_outcome("marline", 0, 6.0)).len(), 2);
    }
}
