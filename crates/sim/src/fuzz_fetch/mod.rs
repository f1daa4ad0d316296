//! Random histories: does a download survive everything that can happen, and is what it makes of it right?
//!
//! In: a seed. Out: nothing, or a [`Defect`] that the same seed finds again.
//!
//! 1. A seed draws the weather (links, server, configuration) and then every single event.
//! 2. A naive ledger watches each order and each report: no name used twice, no request outside of the resource, no
//!    answer accepted that was not announced, never two open answers of different files, and at the end every byte of
//!    one single file.
//! 3. The machine's own count of useful bytes never exceeds the different bytes in place.
//! 4. As long as one link works the download ends (asked of the policies that promise it: see [`Promise`]).
//! 5. The machine runs under [`Checked`], and its log must replay.
//!
//! Fuzzing raw inputs was not used: almost all of them break the driver's side of the contract, about which a machine
//! promises nothing.

mod driver;
mod fault_plan;
mod random_player;
pub mod reference;
mod stream_invariants;
mod subject;

use std::fmt;

use marline_core::fetch::{Fetch, Policy};
use marline_core::stream;
use marline_core::units::Duration;

use crate::contract::{ContractChecker, replay};
use crate::rng::{Purpose, RandomStream};
use driver::Driver;
use fault_plan::FaultPlan;
use random_player::RandomPlayer;
pub use subject::Subject;

/// What a policy promises beside being right.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Guarantee {
    /// It ends as long as one link works.
    Terminates,
    /// Nothing: a dead link may keep its part of the file for ever, as in the thesis.
    CorrectnessOnly,
}

/// Something that must not be, and how to see it again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Defect {
    /// The history.
    pub seed: u64,
    /// The policy.
    pub policy: String,
    /// What was wrong.
    pub problem: String,
    /// The weather, and each record of the history, a line each.
    pub log: Vec<String>,
}

impl fmt::Display for Defect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}, policy {}: {}", self.seed, self.policy, self.problem)
    }
}

impl std::error::Error for Defect {}

/// Runs the history of `seed` with a download.
///
/// # Errors
/// The first thing that was wrong.
///
/// # Panics
/// When the machine breaks rule 1 or 3 of the contract.
pub fn fuzz_download(seed: u64, policy: Policy, guarantee: Guarantee) -> Result<(), Defect> {
    let mut rng = RandomStream::new(seed, "history", 0, Purpose::Other);
    let fault_plan = FaultPlan::new(&mut rng, policy);
    let config = fault_plan.config.clone();
    let history = FuzzRun { seed, policy: policy.to_string(), guarantee, time_limit: TIME_LIMIT };
    history.run::<Fetch>(fault_plan, rng, config, None)
}

/// Runs the history of `seed` with a stream, and with somebody who watches.
///
/// # Errors
/// The first thing that was wrong.
///
/// # Panics
/// When the machine breaks rule 1 or 3 of the contract.
pub fn fuzz_stream(seed: u64, policy: stream::Policy) -> Result<(), Defect> {
    let mut rng = RandomStream::new(seed, "history", 0, Purpose::Other);
    let mut fault_plan = FaultPlan::new(&mut rng, Policy::Marline);
    let (player, config) = RandomPlayer::new(seed, &mut fault_plan, policy);
    fault_plan.config = config.fetch.clone();
    let history = FuzzRun {
        seed,
        policy: format!("{policy:?}"),
        guarantee: Guarantee::Terminates,
        time_limit: TIME_LIMIT * 3,
    };
    history.run::<stream::Stream>(fault_plan, rng, config, Some(player))
}

/// A history before it begins.
struct FuzzRun {
    seed: u64,
    policy: String,
    guarantee: Guarantee,
    time_limit: Duration,
}

impl FuzzRun {
    fn run<M: Subject>(
        self,
        fault_plan: FaultPlan,
        rng: RandomStream,
        config: M::Config,
        player: Option<RandomPlayer>,
    ) -> Result<(), Defect>
    where
        M::Config: fmt::Debug,
        M::Input: fmt::Debug,
        M::Output: fmt::Debug,
    {
        let description = format!("{fault_plan:?} {player:?}");
        let machine = ContractChecker::new(config.clone(), M::make(&config));
        let mut driver = Driver::new(fault_plan, rng, machine, player);
        let outcome = driver.run(self.time_limit);
        let covered = driver.reference.covered_with_skipped();
        let (machine, log) = driver.machine.into_parts();
        let defect = |problem: String| {
            let log = std::iter::once(description.clone())
                .chain(log.iter().map(|record| format!("{record:?}")))
                .collect();
            Defect { seed: self.seed, policy: self.policy.clone(), problem, log }
        };
        let must_end = self.guarantee == Guarantee::Terminates;
        match (outcome, driver.result) {
            (Err(problem), _) if must_end || !problem.starts_with("no") => return Err(defect(problem)),
            (Ok(_), Some(Err(wrong))) if must_end || !wrong.starts_with("failed") => return Err(defect(wrong)),
            _ => {}
        }
        if machine.useful_bytes() > covered {
            return Err(defect(format!("counts {} useful bytes, {covered} are in place", machine.useful_bytes())));
        }
        replay(M::make, &log).map(|_| ()).map_err(|found| defect(format!("rule 4: {found}")))
    }
}

/// Longer than any download takes that has one link at 0.8 Mbit/s and 8 MB to fetch, with all pauses that a server
/// may ask for and all patience that a machine may have.
const TIME_LIMIT: Duration = Duration::from_secs(1200);
