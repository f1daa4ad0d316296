//! Random histories: whatever happens, is the stream exact, and does no flow wait longer than with plain TCP?
//!
//! In: a seed. Out: a [`Report`], or a [`Defect`] that the same seed finds again.
//!
//! 1. A seed draws the scene (`draw`): links, flows, mechanisms, blackouts, an accelerator that comes late or dies, hostile
//!    packets, ranges that fail.
//! 2. The machine runs under [`Checked`](crate::contract::Checked), its log must replay, and what the world checks at once
//!    must hold (see [`super`]).
//! 3. The same scene runs without an accelerator. A flow that ends there ends here, at most the time of all blackouts and
//!    five seconds later ([`Bounds`]), and no wait for a byte is longer than the longest blackout and five seconds, or than
//!    the longest without an accelerator and five seconds.
//! 4. A flow may end by a reset of the accelerator only if it had acknowledged bytes that were not there, and these could
//!    not be had. A flow whose accelerator died while the server took missing bytes for arrived may not end at all: that is
//!    the price of hiding, and what it has is still exact.
//!
//! 5. Of two runs that lose different packets, or meet a blackout and just escape it, one may wait much longer, without any
//!    accelerator: a request that is lost a third time waits as long again. What breaks a bound of rule 3 is therefore looked
//!    at again in scenes beside it, which lose other packets and whose blackouts come a little earlier or later. It is a
//!    defect if the flow never ends, or if flows with an accelerator take so long clearly more often than without: more than
//!    the worst of sixteen plain ones allows, and that in more than twice as many of 64 scenes. Else it is a doubt,
//!    and said.
//!
//! A bound on the ratio of both times was not used: it says nothing of a short flow, and too much of a long one.

mod generate;

use std::fmt;

use marline_core::accel::Accelerator;
use marline_core::units::{Duration, Instant};

pub use generate::generate;

use super::world::{FlowOutcome, Outcome, World, needs_origin};
use crate::accel::scenario::{Close, Scenario};
use crate::contract::replay;
use crate::rng::{Purpose, Stream};

/// Something that must not be, and how to see it again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Defect {
    /// The history.
    pub seed: u64,
    /// What was wrong.
    pub description: String,
    /// The scene.
    pub scene: String,
}

impl fmt::Display for Defect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}: {}", self.seed, self.description)
    }
}

impl std::error::Error for Defect {}

/// A history that was good.
#[derive(Clone, PartialEq, Debug)]
pub struct Report {
    /// With the accelerator.
    pub with: Outcome,
    /// Without.
    pub plain: Outcome,
    /// What took too long and was not confirmed (rule 5).
    pub doubts: Vec<String>,
}

/// How much longer it may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Beside the time of all blackouts.
    pub max_delay: Duration,
    /// Beside the longest blackout.
    pub max_stall: Duration,
}

impl Default for Bounds {
    /// Five seconds each: the floor.
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
    let scene = generate(seed);
    check(&scene, Bounds::default()).map_err(|defect| Defect {
        seed,
        description: defect,
        scene: format!("{scene:#?}"),
    })
}

/// Runs a scene with and without its accelerator.
///
/// # Errors
/// The first thing that was wrong, in words.
///
/// # Panics
/// When the machine breaks rule 1 or 3 of the contract.
pub fn check(scene: &Scenario, bounds: Bounds) -> Result<Report, String> {
    let mut world = World::new(scene.clone());
    let with = world.run();
    if let Some(log) = world.into_log() {
        replay(|config| Accelerator::new(config.clone()), &log).map_err(|found| format!("rule 4: {found}"))?;
    }
    if let Some(defect) = with.defects.first() {
        return Err(defect.clone());
    }
    let plain = World::new(scene.plain()).run();
    if let Some(defect) = plain.defects.first() {
        return Err(format!("without an accelerator: {defect}"));
    }
    let mut doubts = Vec::new();
    for (n, (flow, alone)) in with.flows.iter().zip(&plain.flows).enumerate() {
        if let Err(defect) = compare(scene, n, flow, alone, bounds) {
            let defect = format!("flow {n}: {defect}");
            if is_confirmed(scene, n, flow, alone, bounds) {
                return Err(defect);
            }
            doubts.push(defect);
        }
    }
    Ok(Report { with, plain, doubts })
}

/// Rule 5: flows of scenes beside this one take so long more often with the accelerator than without.
fn is_confirmed(scene: &Scenario, n: usize, flow: &FlowOutcome, alone: &FlowOutcome, bounds: Bounds) -> bool {
    let run = |scene: Scenario| World::new(scene).run().flows.into_iter().nth(n);
    let others = (1..=NEIGHBORS).filter_map(|other| run(neighbor(scene, other).plain()));
    let worst = others.fold(alone.clone(), worse_of);
    if compare(scene, n, flow, &worst, bounds).is_ok() {
        return false;
    }
    if flow.finished.is_none() && worst.finished.is_some() {
        return true;
    }
    let takes_long = |flow: &FlowOutcome| compare(scene, n, flow, &worst, bounds).is_err();
    if !(1..=NEIGHBORS).filter_map(|other| run(neighbor(scene, other))).any(|flow| takes_long(&flow)) {
        return false;
    }
    let many = || (NEIGHBORS + 1..=NEIGHBORS + CONFIRMING_RUNS).map(|other| neighbor(scene, other));
    let with = many().filter_map(run).filter(takes_long).count();
    let without = many().filter_map(|scene| run(scene.plain())).filter(takes_long).count();
    with > MAX_FREQUENCY_RATIO * without
}

/// The same scene where other packets are lost and blackouts come a little earlier or later.
fn neighbor(scene: &Scenario, n: u64) -> Scenario {
    let mut neighbour = Scenario { seed: scene.seed.wrapping_add(n << 40), ..scene.clone() };
    let mut rng = Stream::new(neighbour.seed, "neighbour", 0, Purpose::Other);
    for outage in &mut neighbour.outages {
        let by = Duration::from_millis(rng.below(2 * MAX_SHIFT_MS));
        outage.at = (outage.at + by).saturating_sub(Duration::from_millis(MAX_SHIFT_MS));
    }
    neighbour
}

/// The longer wait and the later end of two runs.
fn worse_of(one: FlowOutcome, other: FlowOutcome) -> FlowOutcome {
    let finished = one.finished.zip(other.finished).map(|(one, other)| one.max(other));
    FlowOutcome { finished, stall: one.stall.max(other.stall), ..one }
}

fn compare(
    scene: &Scenario,
    n: usize,
    flow: &FlowOutcome,
    alone: &FlowOutcome,
    bounds: Bounds,
) -> Result<(), String> {
    let outage_time: Duration = scene.outages.iter().map(|outage| outage.duration).sum();
    let longest = scene.outages.iter().map(|outage| outage.duration).max().unwrap_or_default();
    let has_early_ack = scene.config.as_ref().is_some_and(|config| config.mechanisms.iter().any(needs_origin));
    if flow.lost_early_acked {
        return Ok(());
    }
    if flow.was_reset {
        return if has_early_ack { Ok(()) } else { Err("was reset, and nothing hides here".into()) };
    }
    let close = scene.flows.get(n).map(|plan| plan.close);
    if matches!(close, Some(Close::ServerReset(_))) {
        // Where its one reset is lost, the client waits for ever.
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

/// Chosen: milliseconds by which a flow may well come to meet a blackout that it had escaped.
const MAX_SHIFT_MS: u64 = 2000;
/// Chosen: enough that a wait which plain TCP has in one of ten runs is nearly always seen.
const NEIGHBORS: u64 = 16;
/// Chosen: enough that what happens in one of twenty runs is seen in both kinds.
const CONFIRMING_RUNS: u64 = 64;
/// Chosen: of rare events, counted twice under equal conditions, one count is thrice the other or more in one of ten times or
/// less; with the two stages before, in one of some hundred.
const MAX_FREQUENCY_RATIO: usize = 2;

/// How much faster the flows of a history were, all together: the sum of their times without over that with an accelerator.
pub fn speedup(report: &Report, scene: &Scenario) -> Option<f64> {
    let time = |outcome: &Outcome| -> Option<f64> {
        let each = outcome.flows.iter().zip(&scene.flows);
        each.map(|(flow, plan)| Some(flow.finished?.since(Instant::ZERO + plan.start).as_secs_f64())).sum()
    };
    Some(time(&report.plain)? / time(&report.with)?)
}
