//! Random histories: whatever happens, is the stream exact, and does no flow wait longer than with plain TCP?
//!
//! [`play`] takes a seed and returns a [`Report`], or a [`Defect`] that the same seed finds again.
//!
//! 1. A seed determines the scenario (`generate`): links, flows, mechanisms, outages, an accelerator that starts late
//!    or is killed, unexpected packets, ranges that fail.
//! 2. The accelerator runs under [`ContractChecker`](crate::contract::ContractChecker), its log must replay, and the invariants of the
//!    world must hold (see [`super`]).
//! 3. The same scenario runs without an accelerator. A flow that ends there ends here, at most five seconds plus the time of all outages
//!    later ([`Bounds`]). No wait for a byte is more than five seconds longer than the longest outage or the flow's longest wait without an
//!    accelerator, whichever is longer.
//! 4. The accelerator may reset a flow only if it had acknowledged bytes that had not arrived, and these could not be fetched (checked is
//!    only that a mechanism which acknowledges early is enabled). A flow whose accelerator was killed while early-acked bytes were missing
//!    may never end: that is the price of early ACK, and what it has received is still exact.
//! 5. Of two runs that lose different packets, or just miss an outage, one may wait much longer without any accelerator: a request that is
//!    lost a third time waits as long again. A flow that exceeds a bound of rule 3 is therefore run again in neighboring scenarios, which
//!    lose other packets and whose outages come a little earlier or later. It is a defect if the flow never ends although it ends in all
//!    plain runs, or if flows with an accelerator take so long clearly more often than without: longer than the worst of sixteen plain ones
//!    allows, in more than twice as many of 64 scenarios. Otherwise it is reported as a doubt.
//!
//! There is no bound on the ratio of both times: it would mean nothing for a short flow, and too much for a long one.

mod generate;

use std::fmt;

use marline_core::accel::Accelerator;
use marline_core::units::{Duration, Instant};

pub use generate::generate;

use super::world::{FlowOutcome, Outcome, World, needs_origin};
use crate::accel::scenario::{Close, Scenario};
use crate::contract::replay;
use crate::rng::{Purpose, RandomStream};

/// A violated rule, and how to reproduce it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Defect {
    /// The history.
    pub seed: u64,
    /// What was wrong.
    pub description: String,
    /// The scenario.
    pub scenario: String,
}

impl fmt::Display for Defect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}: {}", self.seed, self.description)
    }
}

impl std::error::Error for Defect {}

/// A history without a defect.
#[derive(Clone, PartialEq, Debug)]
pub struct Report {
    /// With the accelerator.
    pub with: Outcome,
    /// Without.
    pub plain: Outcome,
    /// What took too long and was not confirmed (rule 5).
    pub doubts: Vec<String>,
}

/// How much longer a flow may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// In addition to the time of all outages.
    pub max_delay: Duration,
    /// In addition to the longest outage.
    pub max_stall: Duration,
}

impl Default for Bounds {
    /// Five seconds each.
    fn default() -> Self {
        Self { max_delay: Duration::from_secs(5), max_stall: Duration::from_secs(5) }
    }
}

/// Runs the history of a seed.
///
/// # Errors
/// The first thing that was wrong.
///
/// # Panics
/// When the machine breaks rule 1 or 3 of the contract.
pub fn play(seed: u64) -> Result<Report, Defect> {
    let scenario = generate(seed);
    check(&scenario, Bounds::default()).map_err(|defect| Defect {
        seed,
        description: defect,
        scenario: format!("{scenario:#?}"),
    })
}

/// Runs a scenario with and without its accelerator.
///
/// # Errors
/// The first thing that was wrong, in words.
///
/// # Panics
/// When the machine breaks rule 1 or 3 of the contract.
pub fn check(scenario: &Scenario, bounds: Bounds) -> Result<Report, String> {
    let mut world = World::new(scenario.clone());
    let with = world.run();
    if let Some(log) = world.into_log() {
        replay(|config| Accelerator::new(config.clone()), &log).map_err(|found| format!("rule 4: {found}"))?;
    }
    if let Some(defect) = with.defects.first() {
        return Err(defect.clone());
    }
    let plain = World::new(scenario.plain()).run();
    if let Some(defect) = plain.defects.first() {
        return Err(format!("without an accelerator: {defect}"));
    }
    let mut doubts = Vec::new();
    for (n, (flow, alone)) in with.flows.iter().zip(&plain.flows).enumerate() {
        if let Err(defect) = compare(scenario, n, flow, alone, bounds) {
            let defect = format!("flow {n}: {defect}");
            if is_confirmed(scenario, n, flow, alone, bounds) {
                return Err(defect);
            }
            doubts.push(defect);
        }
    }
    Ok(Report { with, plain, doubts })
}

/// Rule 5: flows of neighboring scenarios take so long more often with the accelerator than without.
fn is_confirmed(scenario: &Scenario, n: usize, flow: &FlowOutcome, alone: &FlowOutcome, bounds: Bounds) -> bool {
    let run = |scenario: Scenario| World::new(scenario).run().flows.into_iter().nth(n);
    let others = (1..=NEIGHBORS).filter_map(|other| run(neighbor(scenario, other).plain()));
    let worst = others.fold(alone.clone(), worse_of);
    if compare(scenario, n, flow, &worst, bounds).is_ok() {
        return false;
    }
    if flow.finished.is_none() && worst.finished.is_some() {
        return true;
    }
    let is_slow = |flow: &FlowOutcome| compare(scenario, n, flow, &worst, bounds).is_err();
    if !(1..=NEIGHBORS).filter_map(|other| run(neighbor(scenario, other))).any(|flow| is_slow(&flow)) {
        return false;
    }
    let neighbors = || (NEIGHBORS + 1..=NEIGHBORS + CONFIRMING_RUNS).map(|other| neighbor(scenario, other));
    let with = neighbors().filter_map(run).filter(is_slow).count();
    let without = neighbors().filter_map(|scenario| run(scenario.plain())).filter(is_slow).count();
    with > MAX_FREQUENCY_RATIO * without
}

/// The same scenario with other packet losses, and outages a little earlier or later.
fn neighbor(scenario: &Scenario, n: u64) -> Scenario {
    let mut shifted = Scenario { seed: scenario.seed.wrapping_add(n << 40), ..scenario.clone() };
    let mut rng = RandomStream::new(shifted.seed, "neighbour", 0, Purpose::Other);
    for outage in &mut shifted.outages {
        let by = Duration::from_millis(rng.below(2 * MAX_SHIFT_MS));
        outage.at = (outage.at + by).saturating_sub(Duration::from_millis(MAX_SHIFT_MS));
    }
    shifted
}

/// The longer wait and the later end of two runs.
fn worse_of(one: FlowOutcome, other: FlowOutcome) -> FlowOutcome {
    let finished = one.finished.zip(other.finished).map(|(one, other)| one.max(other));
    FlowOutcome { finished, stall: one.stall.max(other.stall), ..one }
}

fn compare(
    scenario: &Scenario,
    flow_index: usize,
    flow: &FlowOutcome,
    alone: &FlowOutcome,
    bounds: Bounds,
) -> Result<(), String> {
    let outage_time: Duration = scenario.outages.iter().map(|outage| outage.duration).sum();
    let longest = scenario.outages.iter().map(|outage| outage.duration).max().unwrap_or_default();
    let has_early_ack = scenario.config.as_ref().is_some_and(|config| config.mechanisms.iter().any(needs_origin));
    if flow.lost_early_acked {
        return Ok(());
    }
    if flow.was_reset {
        return if has_early_ack { Ok(()) } else { Err("was reset, and no mechanism acknowledges early".into()) };
    }
    let close = scenario.flows.get(flow_index).map(|script| script.close);
    if matches!(close, Some(Close::ServerReset(_))) {
        // If the server's single reset is lost, the client waits forever.
        return Ok(());
    }
    let most = (longest + bounds.max_stall).max(alone.stall.0 + bounds.max_stall);
    if flow.stall.0 > most {
        let (stall, until) = flow.stall;
        return Err(format!("waited {stall:?} until {until}, without an accelerator {:?} at most", alone.stall.0));
    }
    let is_cut = matches!(close, Some(Close::ClientReset(_)));
    match (flow.finished, alone.finished) {
        (None, Some(at)) if !is_cut => Err(format!("never ended: {flow:?}, without an accelerator at {at}")),
        (Some(end), Some(at)) if end > at + outage_time + bounds.max_delay => {
            Err(format!("ended at {end}, without at {at}"))
        }
        _ => Ok(()),
    }
}

/// Largest shift of an outage in either direction, in milliseconds. Our choice: enough that a flow which just missed an outage meets it.
const MAX_SHIFT_MS: u64 = 2000;
/// Our choice: enough that a wait which plain TCP has in one of ten runs is nearly always seen.
const NEIGHBORS: u64 = 16;
/// Our choice: enough that an event of one in twenty runs is seen in both kinds.
const CONFIRMING_RUNS: u64 = 64;
/// Our choice: of rare events, counted twice under equal conditions, one count exceeds the other three times in at most one
/// of ten cases; with the two stages before, in one of some hundred.
const MAX_FREQUENCY_RATIO: usize = 2;

/// How much faster the flows of a history were in total: the sum of their times without the accelerator over that with it. None if a flow
/// did not end.
pub fn speedup(report: &Report, scenario: &Scenario) -> Option<f64> {
    let time = |outcome: &Outcome| -> Option<f64> {
        let each = outcome.flows.iter().zip(&scenario.flows);
        each.map(|(flow, script)| Some(flow.finished?.since(Instant::ZERO + script.start).as_secs_f64())).sum()
    };
    Some(time(&report.plain)? / time(&report.with)?)
}
