//! `marline-lab bench assign`: how near the matching of boxes and relays comes to the best one, and what it costs.
//!
//! | case | what | beside |
//! |---|---|---|
//! | `match` | drawn fleets: what is missing to the bound when the processor time is over | greedy by density; BASS's Algorithm 1 cut off; its random baseline |
//! | `churn` | one of a hundred boxes replaced each second, all matched anew | bounds of what is missing, of who moves, of time |
//!
//! 1. Fleets are drawn from numbers (`marline_sim::fleet`), a seed for each run. Loads are what boxes would send to their best
//!    relays over what relays have.
//! 2. Time is this thread's processor time; the clock is read between steps of the solver.
//! 3. Small fleets (100 boxes) are judged by the best plan: after its time is over the solver goes on until that is proved.
//! 4. Algorithm 1 generates all plans and never ends beyond a dozen boxes; it is cut off after ten thousand, the first of which
//!    is what boxes get that choose in the order in which they came.
//!
//! Nothing is emulated: no privilege is needed, and a busy machine changes no plan but those that its caches delay.

mod churn;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use marline_core::assign::{Instance, Matching, Solver, bass_algorithm_1, bass_random, density_greedy};
use marline_core::units::{Bitrate, Ratio, parse_duration};
use marline_sim::fleet;
use marline_sim::rng::{Purpose, Stream};
use marline_sys::clock;
use serde::Serialize;
use serde_json::json;

use crate::LabError;
use crate::evidence::Machine;
use crate::memory::high_water;
use crate::page::Table;
use crate::result_file::ResultFile;
use crate::runner::command::{print, say};

/// `marline-lab bench assign`.
#[derive(Clone, Debug, Args)]
#[command(after_help = AFTER)]
pub(super) struct AssignArgs {
    /// Only these: match, churn.
    #[arg(long = "case", value_name = "LIST", value_delimiter = ',')]
    cases: Vec<String>,
    /// Relays and boxes of `match`.
    #[arg(
        long = "size",
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "8/60,50/1000,500/100000,1000/1000000"
    )]
    sizes: Vec<Size>,
    /// What boxes would send over what relays have.
    #[arg(long = "load", value_name = "LIST", value_delimiter = ',', default_value = "50%,90%,120%,200%")]
    loads: Vec<Ratio>,
    /// Fleets of each size and load; without it 20 of up to 100 boxes, 5 of up to 10,000, else 1.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    runs: Option<u32>,
    /// Processor time of a matching; without it 1s, and 8s from a million boxes on.
    #[arg(long, value_name = "TIME", value_parser = time)]
    cpu: Option<Duration>,
    #[command(flatten)]
    churn: churn::ChurnArgs,
    /// Write everything that was measured to this file as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

const AFTER: &str = "\
All of it takes some six minutes on one core and 0.4 GB of memory. For a look: `marline-lab bench assign --size 50/1000`.
Needs no privilege and no program. The exit code is 0 whatever the figures are.";

fn time(word: &str) -> Result<Duration, String> {
    parse_duration(word).map_err(|_| "is no duration such as 8s".to_owned())
}

/// Relays and boxes, `500/100000`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
struct Size {
    relays: usize,
    boxes: usize,
}

impl FromStr for Size {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let parts = s.split_once('/').and_then(|(relays, boxes)| Some((relays.parse().ok()?, boxes.parse().ok()?)));
        match parts {
            Some((relays, boxes)) if relays > 0 && boxes > 0 => Ok(Self { relays, boxes }),
            _ => Err(format!("`{s}` is no number of relays and boxes such as 500/100000")),
        }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.relays, self.boxes)
    }
}

/// One fleet, matched.
#[derive(Clone, Debug, Serialize)]
struct Matched {
    size: Size,
    load: Ratio,
    seed: u64,
    candidates: usize,
    gain: Bitrate,
    bound: Bitrate,
    /// The gain of the best plan, where it is proved.
    best: Option<Bitrate>,
    hits: Ratio,
    /// The share of boxes whose γ is 1 in that best plan.
    best_hits: Option<Ratio>,
    cpu_s: f64,
    by_density: Bitrate,
    algorithm_1: Bitrate,
    random: Bitrate,
}

impl Matched {
    /// What is missing to the best plan if that is known, else at most missing.
    fn missing(&self, gain: Bitrate) -> f64 {
        let best = self.best.unwrap_or(self.bound).bits_per_sec();
        if best == 0 { 0.0 } else { 1.0 - gain.bits_per_sec() as f64 / best as f64 }
    }
}

pub(super) fn run(args: &AssignArgs) -> Result<u8, LabError> {
    if let Some(unknown) = args.cases.iter().find(|case| !["match", "churn"].contains(&case.as_str())) {
        return Err(LabError::Spec(format!("no case `{unknown}` of the matching; there are: match, churn")));
    }
    let wants = |case: &str| args.cases.is_empty() || args.cases.iter().any(|wanted| wanted == case);
    let file = ResultFile::open_if(args.json.as_ref())?;
    print(&Machine::here().line());
    let mut matched: Vec<Matched> = Vec::new();
    if wants("match") {
        let mut rows = Vec::new();
        for size in &args.sizes {
            for load in &args.loads {
                let runs = u64::from(args.runs.unwrap_or_else(|| usual_runs(*size)));
                let cpu = args.cpu.unwrap_or_else(|| usual_time(*size));
                let fleets: Vec<Matched> = (1..=runs).map(|seed| match_one(*size, *load, seed, cpu)).collect();
                rows.push(cells(&fleets));
                matched.extend(fleets);
            }
        }
        print(&format!("\n{}", table(rows).plain()));
    }
    let churned = wants("churn").then(|| churn::run(&args.churn));
    if let Some(file) = file {
        let command: Vec<String> = std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect();
        let record = json!({
            "command": command, "version": env!("CARGO_PKG_VERSION"), "machine": Machine::here(),
            "match": matched, "churn": churned,
        });
        file.write(&format!("{record:#}\n"))?;
    }
    Ok(0)
}

fn usual_runs(size: Size) -> u32 {
    match size.boxes {
        0..=100 => 20,
        101..=10_000 => 5,
        _ => 1,
    }
}

fn usual_time(size: Size) -> Duration {
    Duration::from_secs(if size.boxes < 1_000_000 { 1 } else { 8 })
}

fn match_one(size: Size, load: Ratio, seed: u64, cpu: Duration) -> Matched {
    let plan = fleet::Plan { relays: size.relays, boxes: size.boxes, candidates: MEASURED, load, seed };
    let instance = fleet::Fleet::instance(&plan);
    let begun = clock::thread_time();
    let mut solver = Solver::new(&instance, None);
    let progress = loop {
        let progress = solver.step(STEP);
        if progress.is_done || clock::thread_time() - begun >= cpu {
            break progress;
        }
    };
    let cpu_s = (clock::thread_time() - begun).as_secs_f64();
    let hits = solver.matching().hit_share(&instance);
    let best = (size.boxes <= SMALL).then(|| proved(&mut solver)).flatten();
    let best_hits = best.map(|_| solver.matching().hit_share(&instance));
    let mut chance = Stream::new(seed, "random", 0, Purpose::Other);
    let matched = Matched {
        size,
        load,
        seed,
        candidates: instance.candidate_count(),
        gain: progress.gain,
        bound: progress.bound,
        best,
        hits,
        best_hits,
        cpu_s,
        by_density: density_greedy(&instance).gain(),
        algorithm_1: cut_off(&instance).gain(),
        random: bass_random(&instance, |n| chance.below(n)).gain(),
    };
    say(&format!(
        "{size}, load {load}, fleet {seed}: {:.4}% missing, {cpu_s:.3}s",
        matched.missing(matched.gain) * 100.0
    ));
    matched
}

/// The gain of the best plan; none: it was not proved in time.
fn proved(solver: &mut Solver<'_>) -> Option<Bitrate> {
    let begun = clock::thread_time();
    loop {
        let progress = solver.step(STEP);
        if progress.is_done || clock::thread_time() - begun >= PROOF {
            return (progress.gain == progress.bound).then_some(progress.gain);
        }
    }
}

fn cut_off(instance: &Instance) -> Matching {
    bass_algorithm_1(instance, PLANS).0
}

fn cells(fleets: &[Matched]) -> Vec<String> {
    let Some(first) = fleets.first() else { return Vec::new() };
    let count = fleets.len() as f64;
    let mean = |of: &dyn Fn(&Matched) -> f64| fleets.iter().map(of).sum::<f64>() / count;
    let missing = |of: &dyn Fn(&Matched) -> Bitrate| format!("{:.3}%", mean(&|m| m.missing(of(m))) * 100.0);
    let proofs = fleets.iter().filter(|m| m.best.is_some_and(|best| best == m.gain)).count();
    let floor = floor(first.size, first.load);
    let ours = mean(&|m| m.missing(m.gain));
    let longest = fleets.iter().map(|m| m.cpu_s).fold(0.0, f64::max);
    vec![
        first.size.to_string(),
        first.load.to_string(),
        format!("{:.4}", mean(&|m| m.gain.as_mbps_f64()) / 1000.0),
        format!("{:.4}", mean(&|m| m.bound.as_mbps_f64()) / 1000.0),
        format!("{:.4}%", ours * 100.0),
        floor.map_or("–".into(), |floor| format!("≤ {}%", floor * 100.0)),
        floor.map_or("stated", |floor| if ours <= floor { "met" } else { "MISSED" }).into(),
        missing(&|m| m.by_density),
        missing(&|m| m.algorithm_1),
        missing(&|m| m.random),
        gamma(fleets),
        format!("{:.3}", mean(&|m| m.cpu_s)),
        format!("{longest:.3}"),
        format!("{proofs}/{}", fleets.len()),
    ]
}

/// How many boxes have the best relay that there is for them; of proved fleets beside how many have it in the best plan, and
/// whether the floor is met where there is one.
fn gamma(fleets: &[Matched]) -> String {
    let mean = |of: &dyn Fn(&Matched) -> f64| fleets.iter().map(of).sum::<f64>() / fleets.len().max(1) as f64;
    let ours = mean(&|m| m.hits.as_f64());
    let best: Option<Vec<f64>> = fleets.iter().map(|m| Some(m.best_hits?.as_f64())).collect();
    let Some(best) = best.map(|all| all.iter().sum::<f64>() / all.len().max(1) as f64) else {
        return format!("{:.1}%", ours * 100.0);
    };
    let judged = fleets.first().is_some_and(|m| m.load == GAMMA_LOAD && (m.size.relays, m.size.boxes) == (8, 60));
    let word = match (judged, is_hit_enough(ours, best)) {
        (false, _) => "",
        (true, true) => ", met",
        (true, false) => ", MISSED",
    };
    format!("{:.1}%, best plan {:.1}%{word}", ours * 100.0, best * 100.0)
}

/// The floor of γ at [`GAMMA_LOAD`] with 8 relays and 60 boxes: nine of ten boxes, else two points less than the best plan's at most.
fn is_hit_enough(ours: f64, best: f64) -> bool {
    ours >= 0.9 || ours >= best - 0.02
}

/// What is asked for, as a part of the best plan (100 boxes) or of the bound.
fn floor(size: Size, load: Ratio) -> Option<f64> {
    let percent = load.ppm() / 10_000;
    match (size.relays, size.boxes) {
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
    let memory = high_water(std::process::id()) >> 20;
    Table {
        head: HEAD.map(str::to_owned).to_vec(),
        rows,
        note: Some(format!(
            "Means over fleets. Missing: to the best plan where that is proved (100 boxes), else to the bound, at most. \
             γ = 1: boxes that have the best relay for them; floor at 8/60, load 50%: 90% of them, else 2 points less than \
             the best plan's at most. \
             Most memory of all, fleets included: {memory} MiB."
        )),
    }
}

/// How many relays boxes measure.
const MEASURED: std::ops::RangeInclusive<u64> = 3..=8;
/// The most boxes of a fleet whose best plan is looked for.
const SMALL: usize = 100;
/// The load at which γ has a floor.
const GAMMA_LOAD: Ratio = Ratio::from_percent(50);
/// Work between two looks at the clock: about a millisecond.
const STEP: u64 = 200_000;
/// Processor time of a proof, beyond the matching's own.
const PROOF: Duration = Duration::from_secs(60);
/// Rule 4.
const PLANS: u64 = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_relays_over_boxes() {
        assert_eq!("8/60".parse(), Ok(Size { relays: 8, boxes: 60 }));
        for bad in ["8", "0/60", "8/0", "8/60/1", "a/b", ""] {
            assert!(bad.parse::<Size>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_small_fleet_is_matched_and_proved() {
        let size = Size { relays: 3, boxes: 10 };
        let matched = match_one(size, Ratio::from_percent(90), 1, Duration::from_secs(1));
        assert_eq!(matched.best, Some(matched.gain));
        assert_eq!(matched.best_hits, Some(matched.hits));
        assert!(matched.by_density <= matched.gain && matched.random <= matched.gain);
        assert_eq!(cells(&[matched]).len(), table(Vec::new()).head.len());
    }

    #[test]
    fn gamma_is_judged_where_it_has_a_floor_and_beside_the_best_plans() {
        assert!(is_hit_enough(0.9, 1.0) && is_hit_enough(0.85, 0.865) && !is_hit_enough(0.85, 0.88));
        let matched = match_one(Size { relays: 8, boxes: 60 }, GAMMA_LOAD, 1, Duration::from_secs(1));
        assert!(gamma(std::slice::from_ref(&matched)).ends_with(", met"));
        let worse = Matched { hits: Ratio::from_percent(50), ..matched.clone() };
        assert!(gamma(&[worse]).ends_with(", MISSED"));
        let unproved = Matched { best_hits: None, ..matched };
        assert!(!gamma(&[unproved]).contains("best plan"));
    }
}
