//! Random histories: does a download survive everything that can happen on the network, with the right result?
//!
//! [`fuzz_download`] and [`fuzz_stream`] run the history of a seed and return the first [`Defect`], which the same
//! seed reproduces.
//!
//! 1. The seed determines the fault plan (links, server, configuration) and then every event.
//! 2. A naive reference model checks all outputs and inputs. No ID is used twice, and no request lies outside of
//!    the resource. No response is accepted that was not announced, and no two open responses are of different
//!    files. At the end every byte belongs to one single file.
//! 3. The machine's count of useful bytes never exceeds the number of distinct bytes delivered.
//! 4. While one link works, the download finishes. This is required only of policies that guarantee it: see
//!    [`Guarantee`].
//! 5. The machine runs inside a [`ContractChecker`], and its log must replay.
//!
//! Fuzzing raw inputs does not help here: almost all of them violate the driver's side of the contract, and then a
//! machine guarantees nothing.

mod driver;
mod fault_plan;
mod random_player;
pub mod reference;
mod stream_invariants;
mod subject;
mod survey;

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
pub use survey::DefectSurvey;

/// What a policy guarantees in addition to a correct file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Guarantee {
    /// The download finishes as long as one link works.
    Terminates,
    /// Nothing more: a dead link may keep its part of the file forever, as in the thesis.
    CorrectnessOnly,
}

/// A violation, with all that is needed to reproduce it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Defect {
    /// Seed that reproduces the history.
    pub seed: u64,
    /// Name of the policy under test.
    pub policy: String,
    /// The violated rule, with the time if it is known.
    pub problem: String,
    /// The fault plan, then one line per record of the history.
    pub log: Vec<String>,
}

impl fmt::Display for Defect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}, policy {}: {}", self.seed, self.policy, self.problem)
    }
}

impl std::error::Error for Defect {}

/// Runs the history of `seed` with a download machine.
///
/// # Errors
/// The first violation.
///
/// # Panics
/// If the machine violates rule 1 or 3 of the contract.
pub fn fuzz_download(seed: u64, policy: Policy, guarantee: Guarantee) -> Result<(), Defect> {
    let mut rng = RandomStream::new(seed, "history", 0, Purpose::Other);
    let fault_plan = FaultPlan::new(&mut rng, policy);
    let config = fault_plan.config.clone();
    let history = FuzzRun { seed, policy: policy.to_string(), guarantee, time_limit: TIME_LIMIT };
    history.run::<Fetch>(fault_plan, rng, config, None)
}

/// Runs the history of `seed` with a stream machine and a random player.
///
/// # Errors
/// The first violation.
///
/// # Panics
/// If the machine violates rule 1 or 3 of the contract.
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

/// Parameters of one history that do not depend on the kind of machine.
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
            // Without the guarantee to terminate, timeouts ("no…", "not…") and reported failures are not defects.
            (Err(problem), _) if must_end || !problem.starts_with("no") => return Err(defect(problem)),
            (Ok(_), Some(Err(wrong))) if must_end || !wrong.starts_with("failed") => return Err(defect(wrong)),
            _ => {}
        }
        if machine.useful_bytes() > covered {
            return Err(defect(format!(
                "the machine counts {} useful bytes, but only {covered} are covered",
                machine.useful_bytes()
            )));
        }
        replay(M::make, &log).map(|_| ()).map_err(|found| defect(format!("rule 4: {found}")))
    }
}

/// Enough for 8 MB over one link of 0.8 Mbit/s, including all pauses that servers request and all timeouts of the
/// machine.
const TIME_LIMIT: Duration = Duration::from_secs(1200);
