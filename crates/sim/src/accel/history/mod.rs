//! Random histories: whatever happens, is the stream exact, and does no flow wait longer than with plain TCP?
//!
//! In: a seed. Out: a [`Report`], or a [`Defect`] that the same seed finds again.
//!
//! 1. A seed draws the scene (`draw`): links, flows, mechanisms, blackouts, an accelerator that comes late or dies, hostile
//!    packets, ranges that fail.
//! 2. The machine runs under [`ContractChecker`](crate::contract::ContractChecker), its log must replay, and what the world checks at once
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

mod draw;

use std::fmt;

use marline_core::accel::Accelerator;
use marline_core::units::{Duration, Instant};

pub use draw::draw;

use super::scene::{Close, Scene};
use super::world::{FlowOutcome, Outcome, World, needs_origin};
use crate::contract::replay;
use crate::rng::{Purpose, RandomStream};

/// Something that must not be, and how to see it again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Defect {
    /// The history.
    pub seed: u64,
    /// What was wrong.
    pub wrong: String,
    /// The scene.
    pub scene: String,
}

impl fmt::Display for Defect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}: {}", self.seed, self.wrong)
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
    pub late: Duration,
    /// Beside the longest blackout.
    pub stall: Duration,
}

impl Default for Bounds {
    /// Five seconds each: the floor.
    fn default() -> Self {
        Self { late: Duration::from_secs(5), stall: Duration::from_secs(5) }
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
    let scene = draw(seed);
    judge(&scene, Bounds::default()).map_err(|wrong| Defect { seed, wrong, scene: format!("{scene:#?}") })
}

/// Runs a scene with and without its accelerator.
///
/// # Errors
/// The first thing that was wrong, in words.
///
/// # Panics
/// When the machine breaks rule 1 or 3 of the contract.
pub fn judge(scene: &Scene, bounds: Bounds) -> Result<Report, String> {
    let mut world = World::new(scene.clone());
    let with = world.run();
    if let Some(log) = world.into_log() {
        replay(|config| Accelerator::new(config.clone()), &log).map_err(|found| format!("rule 4: {found}"))?;
    }
    if let Some(wrong) = with.wrong.first() {
        return Err(wrong.clone());
    }
    let plain = World::new(scene.plain()).run();
    if let Some(wrong) = plain.wrong.first() {
        return Err(format!("without an accelerator: {wrong}"));
    }
    let mut doubts = Vec::new();
    for (n, (flow, alone)) in with.flows.iter().zip(&plain.flows).enumerate() {
        if let Err(wrong) = compare(scene, n, flow, alone, bounds) {
            let wrong = format!("flow {n}: {wrong}");
            if is_confirmed(scene, n, flow, alone, bounds) {
                return Err(wrong);
            }
            doubts.push(wrong);
        }
    }
    Ok(Report { with, plain, doubts })
}

/// Rule 5: flows of scenes beside this one take so long more often with the accelerator than without.
fn is_confirmed(scene: &Scene, n: usize, flow: &FlowOutcome, alone: &FlowOutcome, bounds: Bounds) -> bool {
    let run = |scene: Scene| World::new(scene).run().flows.into_iter().nth(n);
    let others = (1..=OTHERS).filter_map(|other| run(neighbour(scene, other).plain()));
    let worst = others.fold(alone.clone(), worse);
    if compare(scene, n, flow, &worst, bounds).is_ok() {
        return false;
    }
    if flow.finished.is_none() && worst.finished.is_some() {
        return true;
    }
    let takes_long = |flow: &FlowOutcome| compare(scene, n, flow, &worst, bounds).is_err();
    if !(1..=OTHERS).filter_map(|other| run(neighbour(scene, other))).any(|flow| takes_long(&flow)) {
        return false;
    }
    let many = || (OTHERS + 1..=OTHERS + MANY).map(|other| neighbour(scene, other));
    let with = many().filter_map(run).filter(takes_long).count();
    let without = many().filter_map(|scene| run(scene.plain())).filter(takes_long).count();
    with > MOST_OFTEN * without
}

/// The same scene where other packets are lost and blackouts come a little earlier or later.
fn neighbour(scene: &Scene, n: u64) -> Scene {
    let mut neighbour = Scene { seed: scene.seed.wrapping_add(n << 40), ..scene.clone() };
    let mut chance = RandomStream::new(neighbour.seed, "neighbour", 0, Purpose::Other);
    for blackout in &mut neighbour.blackouts {
        let by = Duration::from_millis(chance.below(2 * SHIFTED));
        blackout.at = (blackout.at + by).saturating_sub(Duration::from_millis(SHIFTED));
    }
    neighbour
}

/// The longer wait and the later end of two runs.
fn worse(one: FlowOutcome, other: FlowOutcome) -> FlowOutcome {
    let finished = one.finished.zip(other.finished).map(|(one, other)| one.max(other));
    FlowOutcome { finished, stall: one.stall.max(other.stall), ..one }
}

fn compare(scene: &Scene, n: usize, flow: &FlowOutcome, alone: &FlowOutcome, bounds: Bounds) -> Result<(), String> {
    let dark: Duration = scene.blackouts.iter().map(|blackout| blackout.lasts).sum();
    let longest = scene.blackouts.iter().map(|blackout| blackout.lasts).max().unwrap_or_default();
    let hides = scene.config.as_ref().is_some_and(|config| config.mechanisms.iter().any(needs_origin));
    if flow.was_robbed {
        return Ok(());
    }
    if flow.was_reset {
        return if hides { Ok(()) } else { Err("was reset, and nothing hides here".into()) };
    }
    let close = scene.flows.get(n).map(|plan| plan.close);
    if matches!(close, Some(Close::ServerReset(_))) {
        // Where its one reset is lost, the client waits for ever.
        return Ok(());
    }
    let most = (longest + bounds.stall).max(alone.stall.0 + bounds.stall);
    if flow.stall.0 > most {
        let (stall, until) = flow.stall;
        return Err(format!("waited {stall:?} until {until}, without an accelerator {:?} at most", alone.stall.0));
    }
    let is_cut = matches!(close, Some(Close::ClientReset(_)));
    match (flow.finished, alone.finished) {
        (None, Some(at)) if !is_cut => Err(format!("never ended: {flow:?}, without an accelerator at {at}")),
        (Some(end), Some(at)) if end > at + dark + bounds.late => Err(format!("ended at {end}, without at {at}")),
        _ => Ok(()),
    }
}

/// Chosen: milliseconds by which a flow may well come to meet a blackout that it had escaped.
const SHIFTED: u64 = 2000;
/// Chosen: enough that a wait which plain TCP has in one of ten runs is nearly always seen.
const OTHERS: u64 = 16;
/// Chosen: enough that what happens in one of twenty runs is seen in both kinds.
const MANY: u64 = 64;
/// Chosen: of rare events, counted twice under equal conditions, one count is thrice the other or more in one of ten times or
/// less; with the two stages before, in one of some hundred.
const MOST_OFTEN: usize = 2;

/// How much faster the flows of a history were, all together: the sum of their times without over that with an accelerator.
pub fn gain(report: &Report, scene: &Scene) -> Option<f64> {
    let time = |outcome: &Outcome| -> Option<f64> {
        let each = outcome.flows.iter().zip(&scene.flows);
        each.map(|(flow, plan)| Some(flow.finished?.since(Instant::ZERO + plan.start).as_secs_f64())).sum()
    };
    Some(time(&report.plain)? / time(&report.with)?)
}
