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
pub mod ledger;
mod weather;

use std::fmt;

use marline_core::fetch::{Config, Input, Output, Policy};
use marline_core::machine::Machine;
use marline_core::units::{DataSize, Duration};

use crate::contract::{Checked, replay};
use crate::rng::{Purpose, Stream};
use driver::Driver;
use weather::Weather;

/// What a policy promises beside being right.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Promise {
    /// It ends as long as one link works.
    Ends,
    /// Nothing: a dead link may keep its part of the file for ever, as in the thesis.
    Nothing,
}

/// Something that must not be, and how to see it again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Defect {
    /// The history.
    pub seed: u64,
    /// The policy.
    pub policy: Policy,
    /// What was wrong.
    pub wrong: String,
    /// The weather, and each record of the history, a line each.
    pub log: Vec<String>,
}

impl fmt::Display for Defect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}, policy {}: {}", self.seed, self.policy, self.wrong)
    }
}

impl std::error::Error for Defect {}

/// Runs the history of `seed`: `make` makes the machine, `useful` says how many useful bytes it counts.
///
/// # Errors
/// The first thing that was wrong.
///
/// # Panics
/// When the machine breaks rule 1 or 3 of the contract.
pub fn run<M>(
    seed: u64,
    policy: Policy,
    promise: Promise,
    make: impl Fn(&Config) -> M,
    useful: impl Fn(&M) -> DataSize,
) -> Result<(), Defect>
where
    M: Machine<Input = Input, Output = Output>,
{
    let mut stream = Stream::new(seed, "history", 0, Purpose::Other);
    let weather = Weather::new(&mut stream, policy);
    let config = weather.config.clone();
    let drawn = format!("{weather:?}");
    let machine = Checked::new(config.clone(), make(&config));
    let mut driver = Driver::new(weather, stream, machine);
    let outcome = driver.run(LIMIT);
    let covered = driver.ledger.covered();
    let (machine, log) = driver.machine.into_parts();
    let defect = |wrong: String| {
        let log = std::iter::once(drawn.clone()).chain(log.iter().map(|record| format!("{record:?}"))).collect();
        Defect { seed, policy, wrong, log }
    };
    match (outcome, driver.ended) {
        (Err(wrong), _) if promise == Promise::Ends || !wrong.starts_with("no") => return Err(defect(wrong)),
        (Ok(_), Some(Err(wrong))) if promise == Promise::Ends || !wrong.starts_with("failed") => {
            return Err(defect(wrong));
        }
        _ => {}
    }
    if useful(&machine) > covered {
        return Err(defect(format!("counts {} useful bytes, {covered} are in place", useful(&machine))));
    }
    replay(make, &log).map(|_| ()).map_err(|found| defect(format!("rule 4: {found}")))
}

/// Longer than any download takes that has one link at 0.8 Mbit/s and 8 MB to fetch, with all pauses that a server
/// may ask for and all patience that a machine may have.
const LIMIT: Duration = Duration::from_secs(1200);
