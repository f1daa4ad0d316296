//! `marline-lab bench assign`: how close the assignment of edges to relays comes to the optimum, and what it costs.
//!
//! | case | what | compared with |
//! |---|---|---|
//! | `match` | generated fleets: gap to the upper bound when the CPU time is used up | greedy by density; BASS's Algorithm 1, truncated; its random baseline |
//! | `churn` | one percent of the edges replaced each second, all matched again | thresholds for the gap, the moved edges and the time |
//!
//! 1. Fleets are generated (`marline_sim::fleet`) with one seed per run. The load is what edges would send to their
//!    best relays, divided by the capacity of the relays.
//! 2. Time is the CPU time of this thread; the clock is read between steps of the solver.
//! 3. Small fleets (up to 100 edges) are compared with the optimum: after its time the solver continues until the
//!    optimum is proved.
//! 4. Algorithm 1 generates all plans and does not end in practice with more than a dozen edges. It is truncated
//!    after ten thousand plans. The first plan gives each edge its choice in the order of arrival.
//!
//! Nothing is emulated, so no privileges are needed. A busy machine affects only results that are limited by CPU
//! time, through its caches.

mod churn;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use marline_core::assign::{Instance, Matching, Solver, bass_algorithm_1, bass_random, density_greedy};
use marline_core::units::{Bitrate, Ratio, parse_duration};
use marline_sim::fleet;
use marline_sim::rng::{Purpose, RandomStream};
use marline_sys::clock;
use serde::Serialize;
use serde_json::json;

use crate::LabError;
use crate::html_report::Table;
use crate::peak_rss::peak_rss_of;
use crate::result_file::ResultFile;
use crate::results::HostInfo;
use crate::runner::command::{notice, print_line};

/// Options of `marline-lab bench assign`.
#[derive(Clone, Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct AssignArgs {
    /// Only these cases: match, churn.
    #[arg(long = "case", value_name = "LIST", value_delimiter = ',')]
    cases: Vec<String>,
    /// Number of relays and edges of `match`.
    #[arg(
        long = "size",
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "8/60,50/1000,500/100000,1000/1000000"
    )]
    sizes: Vec<FleetSize>,
    /// Load of `match`: demand of the edges divided by the capacity of the relays.
    #[arg(long = "load", value_name = "LIST", value_delimiter = ',', default_value = "50%,90%,120%,200%")]
    loads: Vec<Ratio>,
    /// Number of fleets of each size and load [default: 20 for up to 100 edges, 5 for up to 10,000, otherwise 1].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    runs: Option<u32>,
    /// CPU time of a matching [default: 1s, and 8s from a million edges on].
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    cpu: Option<Duration>,
    #[command(flatten)]
    churn: churn::ChurnArgs,
    /// Write all measurements to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

const AFTER_HELP: &str = "\
The full benchmark takes some six minutes on one core and 0.4 GB of memory. Shorter: `marline-lab bench assign --size 50/1000`.
Needs no privileges and no other programs. The exit code does not depend on the figures.";

fn parse_time(text: &str) -> Result<Duration, String> {
    parse_duration(text).map_err(|_| "is not a duration such as 8s".to_owned())
}

/// Number of relays and edges, written as `500/100000`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
struct FleetSize {
    relays: usize,
    edges: usize,
}

impl FromStr for FleetSize {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let parts = s.split_once('/').and_then(|(relays, edges)| Some((relays.parse().ok()?, edges.parse().ok()?)));
        match parts {
            Some((relays, boxes)) if relays > 0 && boxes > 0 => Ok(Self { relays, edges: boxes }),
            _ => Err(format!("`{s}` is not a number of relays and edges such as 500/100000")),
        }
    }
}

impl fmt::Display for FleetSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.relays, self.edges)
    }
}

/// Result of matching one fleet.
#[derive(Clone, Debug, Serialize)]
struct MatchResult {
    size: FleetSize,
    load: Ratio,
    seed: u64,
    candidates: usize,
    gain: Bitrate,
    upper_bound: Bitrate,
    /// Gain of the optimum, if it is proved.
    optimal_gain: Option<Bitrate>,
    hit_share: Ratio,
    /// Share of edges with γ = 1 (assigned to their best relay) in the optimum.
    optimal_hit_share: Option<Ratio>,
    cpu_s: f64,
    density_gain: Bitrate,
    algorithm_1_gain: Bitrate,
    random_gain: Bitrate,
}

impl MatchResult {
    /// Gap of a gain to the optimum if it is known, otherwise to the upper bound.
    fn gap_of(&self, gain: Bitrate) -> f64 {
        let best = self.optimal_gain.unwrap_or(self.upper_bound).bits_per_sec();
        if best == 0 { 0.0 } else { 1.0 - gain.bits_per_sec() as f64 / best as f64 }
    }
}

pub(super) fn run(args: &AssignArgs) -> Result<u8, LabError> {
    if let Some(unknown) = args.cases.iter().find(|case| !["match", "churn"].contains(&case.as_str())) {
        return Err(LabError::Spec(format!("no case `{unknown}` of the matching; there are: match, churn")));
    }
    let is_wanted = |case: &str| args.cases.is_empty() || args.cases.iter().any(|name| name == case);
    let file = ResultFile::open_if(args.json.as_ref())?;
    print_line(&HostInfo::current().to_line());
    let mut matched: Vec<MatchResult> = Vec::new();
    if is_wanted("match") {
        let mut rows = Vec::new();
        for size in &args.sizes {
            for load in &args.loads {
                let runs = u64::from(args.runs.unwrap_or_else(|| default_runs(*size)));
                let cpu = args.cpu.unwrap_or_else(|| default_time(*size));
                let fleets: Vec<MatchResult> =
                    (1..=runs).map(|seed| match_fleet(*size, *load, seed, cpu)).collect();
                rows.push(table_row(&fleets));
                matched.extend(fleets);
            }
        }
        print_line(&format!("\n{}", table(rows).to_text()));
    }
    let churn_seconds = is_wanted("churn").then(|| churn::run(&args.churn));
    if let Some(file) = file {
        let command: Vec<String> = std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect();
        let record = json!({
            "command": command, "version": env!("CARGO_PKG_VERSION"), "machine": HostInfo::current(),
            "match": matched, "churn": churn_seconds,
        });
        file.write(&format!("{record:#}\n"))?;
    }
    Ok(0)
}

/// Number of fleets; small ones are matched more often because their results vary more.
fn default_runs(size: FleetSize) -> u32 {
    match size.edges {
        0..=100 => 20,
        101..=10_000 => 5,
        _ => 1,
    }
}

fn default_time(size: FleetSize) -> Duration {
    Duration::from_secs(if size.edges < 1_000_000 { 1 } else { 8 })
}

/// Generates and matches one fleet, within this CPU time.
fn match_fleet(size: FleetSize, load: Ratio, seed: u64, cpu: Duration) -> MatchResult {
    let spec = fleet::FleetSpec {
        relay_count: size.relays,
        edge_count: size.edges,
        candidates_per_edge: CANDIDATES_PER_EDGE,
        load,
        seed,
    };
    let instance = fleet::Fleet::generate_instance(&spec);
    let cpu_at_start = clock::thread_time();
    let mut solver = Solver::new(&instance, None);
    let progress = loop {
        let progress = solver.step(WORK_PER_CLOCK_READ);
        if progress.is_done || clock::thread_time() - cpu_at_start >= cpu {
            break progress;
        }
    };
    let cpu_s = (clock::thread_time() - cpu_at_start).as_secs_f64();
    let hits = solver.matching().hit_share(&instance);
    let best = (size.edges <= MAX_PROVED_EDGES).then(|| prove_optimum(&mut solver)).flatten();
    let best_hits = best.map(|_| solver.matching().hit_share(&instance));
    let mut rng = RandomStream::new(seed, "random", 0, Purpose::Other);
    let result = MatchResult {
        size,
        load,
        seed,
        candidates: instance.candidate_count(),
        gain: progress.gain,
        upper_bound: progress.bound,
        optimal_gain: best,
        hit_share: hits,
        optimal_hit_share: best_hits,
        cpu_s,
        density_gain: density_greedy(&instance).gain(),
        algorithm_1_gain: algorithm_1_truncated(&instance).gain(),
        random_gain: bass_random(&instance, |n| rng.below(n)).gain(),
    };
    notice(&format!(
        "{size}, load {load}, fleet {seed}: {:.4}% missing, {cpu_s:.3}s",
        result.gap_of(result.gain) * 100.0
    ));
    result
}

/// Continues until the optimum is proved and returns its gain; `None` if [`MAX_PROOF_TIME`] was not enough.
fn prove_optimum(solver: &mut Solver<'_>) -> Option<Bitrate> {
    let cpu_at_start = clock::thread_time();
    loop {
        let progress = solver.step(WORK_PER_CLOCK_READ);
        if progress.is_done || clock::thread_time() - cpu_at_start >= MAX_PROOF_TIME {
            return (progress.gain == progress.bound).then_some(progress.gain);
        }
    }
}

fn algorithm_1_truncated(instance: &Instance) -> Matching {
    bass_algorithm_1(instance, MAX_PLANS).0
}

fn table_row(fleets: &[MatchResult]) -> Vec<String> {
    let Some(first) = fleets.first() else { return Vec::new() };
    let count = fleets.len() as f64;
    let mean = |value: &dyn Fn(&MatchResult) -> f64| fleets.iter().map(value).sum::<f64>() / count;
    let missing = |gain: &dyn Fn(&MatchResult) -> Bitrate| format!("{:.3}%", mean(&|m| m.gap_of(gain(m))) * 100.0);
    let proofs = fleets.iter().filter(|m| m.optimal_gain.is_some_and(|best| best == m.gain)).count();
    let threshold = gap_threshold(first.size, first.load);
    let our_gap = mean(&|m| m.gap_of(m.gain));
    let longest = fleets.iter().map(|m| m.cpu_s).fold(0.0, f64::max);
    vec![
        first.size.to_string(),
        first.load.to_string(),
        format!("{:.4}", mean(&|m| m.gain.as_mbps_f64()) / 1000.0),
        format!("{:.4}", mean(&|m| m.upper_bound.as_mbps_f64()) / 1000.0),
        format!("{:.4}%", our_gap * 100.0),
        threshold.map_or("–".into(), |threshold| format!("≤ {}%", threshold * 100.0)),
        threshold.map_or("stated", |threshold| if our_gap <= threshold { "met" } else { "MISSED" }).into(),
        missing(&|m| m.density_gain),
        missing(&|m| m.algorithm_1_gain),
        missing(&|m| m.random_gain),
        hit_share_cell(fleets),
        format!("{:.3}", mean(&|m| m.cpu_s)),
        format!("{longest:.3}"),
        format!("{proofs}/{}", fleets.len()),
    ]
}

/// The share of edges that have their best relay. If the optimum is proved, also that share in the optimum, and
/// whether the threshold is met if there is one.
fn hit_share_cell(fleets: &[MatchResult]) -> String {
    let mean =
        |value: &dyn Fn(&MatchResult) -> f64| fleets.iter().map(value).sum::<f64>() / fleets.len().max(1) as f64;
    let our_share = mean(&|m| m.hit_share.as_f64());
    let optimal_shares: Option<Vec<f64>> = fleets.iter().map(|m| Some(m.optimal_hit_share?.as_f64())).collect();
    let Some(optimal_share) = optimal_shares.map(|shares| shares.iter().sum::<f64>() / shares.len().max(1) as f64)
    else {
        return format!("{:.1}%", our_share * 100.0);
    };
    let has_threshold =
        fleets.first().is_some_and(|m| m.load == GAMMA_LOAD && (m.size.relays, m.size.edges) == (8, 60));
    let verdict = match (has_threshold, meets_hit_threshold(our_share, optimal_share)) {
        (false, _) => "",
        (true, true) => ", met",
        (true, false) => ", MISSED",
    };
    format!("{:.1}%, best plan {:.1}%{verdict}", our_share * 100.0, optimal_share * 100.0)
}

/// Threshold of γ at [`GAMMA_LOAD`] with 8 relays and 60 edges: 90 % of the edges, or at most two points less than
/// in the optimum.
fn meets_hit_threshold(our_share: f64, optimal_share: f64) -> bool {
    our_share >= 0.9 || our_share >= optimal_share - 0.02
}

/// Largest permitted gap to the optimum (up to 100 edges) or to the upper bound, as a fraction.
fn gap_threshold(size: FleetSize, load: Ratio) -> Option<f64> {
    let percent = load.ppm() / 10_000;
    match (size.relays, size.edges) {
        (8, 60) if [90, 120].contains(&percent) => Some(0.002),
        (50, 1000) if [90, 120].contains(&percent) => Some(0.01),
        (500, 100_000) if [90, 120, 200].contains(&percent) => Some(0.0015),
        (1000, 1_000_000) => Some(0.001),
        _ => None,
    }
}

fn table(rows: Vec<Vec<String>>) -> Table {
    const HEAD: [&str; 14] = [
        "size",
        "load",
        "gain Gbit/s",
        "bound Gbit/s",
        "missing",
        "floor",
        "",
        "density",
        "Algorithm 1",
        "random",
        "γ = 1",
        "CPU s",
        "longest",
        "best",
    ];
    let memory = peak_rss_of(std::process::id()) >> 20;
    Table {
        header: HEAD.map(str::to_owned).to_vec(),
        rows,
        note: Some(format!(
            "Means over fleets. Missing: gap to the best plan where that is proved (up to 100 edges), else to the upper bound. \
             γ = 1: edges assigned to their best relay; floor at 8/60, load 50%: 90% of them, else 2 points less than \
             the best plan's at most. \
             Most memory of all, fleets included: {memory} MiB."
        )),
    }
}

/// Number of relays that each edge has measured.
const CANDIDATES_PER_EDGE: std::ops::RangeInclusive<u64> = 3..=8;
/// Largest fleet for which the optimum is searched, in edges.
const MAX_PROVED_EDGES: usize = 100;
/// The load at which γ has a threshold.
const GAMMA_LOAD: Ratio = Ratio::from_percent(50);
/// Work of the solver between two readings of the clock: about a millisecond.
const WORK_PER_CLOCK_READ: u64 = 200_000;
/// CPU time of a proof, after the time of the matching.
const MAX_PROOF_TIME: Duration = Duration::from_secs(60);
/// Number of plans after which Algorithm 1 is truncated (rule 4).
const MAX_PLANS: u64 = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_written_as_relays_slash_edges() {
        assert_eq!("8/60".parse(), Ok(FleetSize { relays: 8, edges: 60 }));
        for bad in ["8", "0/60", "8/0", "8/60/1", "a/b", ""] {
            assert!(bad.parse::<FleetSize>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_small_fleet_is_matched_optimally_with_proof() {
        let size = FleetSize { relays: 3, edges: 10 };
        let matched = match_fleet(size, Ratio::from_percent(90), 1, Duration::from_secs(1));
        assert_eq!(matched.optimal_gain, Some(matched.gain));
        assert_eq!(matched.optimal_hit_share, Some(matched.hit_share));
        assert!(matched.density_gain <= matched.gain && matched.random_gain <= matched.gain);
        assert_eq!(table_row(&[matched]).len(), table(Vec::new()).header.len());
    }

    #[test]
    fn gamma_is_compared_with_its_threshold_and_the_optimum() {
        assert!(
            meets_hit_threshold(0.9, 1.0) && meets_hit_threshold(0.85, 0.865) && !meets_hit_threshold(0.85, 0.88)
        );
        let matched = match_fleet(FleetSize { relays: 8, edges: 60 }, GAMMA_LOAD, 1, Duration::from_secs(1));
        assert!(hit_share_cell(std::slice::from_ref(&matched)).ends_with(", met"));
        let worse = MatchResult { hit_share: Ratio::from_percent(50), ..matched.clone() };
        assert!(hit_share_cell(&[worse]).ends_with(", MISSED"));
        let unproved = MatchResult { optimal_hit_share: None, ..matched };
        assert!(!hit_share_cell(&[unproved]).contains("best plan"));
    }
}
