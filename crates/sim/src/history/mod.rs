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

mod audience;
mod driver;
mod judge;
pub mod ledger;
mod subject;
mod weather;

use std::fmt;

use marline_core::fetch::{Fetch, Policy};
use marline_core::stream;
use marline_core::units::Duration;

use crate::contract::{Checked, replay};
use crate::rng::{Purpose, Stream};
use audience::Audience;
use driver::Driver;
pub use subject::Subject;
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
    pub policy: String,
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

/// Runs the history of `seed` with a download.
///
/// # Errors
/// The first thing that was wrong.
///
/// # Panics
/// When the machine breaks rule 1 or 3 of the contract.
pub fn download(seed: u64, policy: Policy, promise: Promise) -> Result<(), Defect> {
    let mut stream = Stream::new(seed, "history", 0, Purpose::Other);
    let weather = Weather::new(&mut stream, policy);
    let config = weather.config.clone();
    let history = History { seed, policy: policy.to_string(), promise, limit: LIMIT };
    history.run::<Fetch>(weather, stream, config, None)
}

/// Runs the history of `seed` with a stream, and with somebody who watches.
///
/// # Errors
/// The first thing that was wrong.
///
/// # Panics
/// When the machine breaks rule 1 or 3 of the contract.
pub fn watch(seed: u64, policy: stream::Policy) -> Result<(), Defect> {
    let mut stream = Stream::new(seed, "history", 0, Purpose::Other);
    let mut weather = Weather::new(&mut stream, Policy::Marline);
    let (audience, config) = Audience::new(seed, &mut weather, policy);
    weather.config = config.fetch.clone();
    let history = History { seed, policy: format!("{policy:?}"), promise: Promise::Ends, limit: LIMIT * 3 };
    history.run::<stream::Stream>(weather, stream, config, Some(audience))
}

/// A history before it begins.
struct History {
    seed: u64,
    policy: String,
    promise: Promise,
    limit: Duration,
}

impl History {
    fn run<M: Subject>(
        self,
        weather: Weather,
        stream: Stream,
        config: M::Config,
        audience: Option<Audience>,
    ) -> Result<(), Defect>
    where
        M::Config: fmt::Debug,
        M::Input: fmt::Debug,
        M::Output: fmt::Debug,
    {
        let drawn = format!("{weather:?} {audience:?}");
        let machine = Checked::new(config.clone(), M::make(&config));
        let mut driver = Driver::new(weather, stream, machine, audience);
        let outcome = driver.run(self.limit);
        let covered = driver.ledger.covered_with_skipped();
        let (machine, log) = driver.machine.into_parts();
        let defect = |wrong: String| {
            let log =
                std::iter::once(drawn.clone()).chain(log.iter().map(|record| format!("{record:?}"))).collect();
            Defect { seed: self.seed, policy: self.policy.clone(), wrong, log }
        };
        let ends = self.promise == Promise::Ends;
        match (outcome, driver.ended) {
            (Err(wrong), _) if ends || !wrong.starts_with("no") => return Err(defect(wrong)),
            (Ok(_), Some(Err(wrong))) if ends || !wrong.starts_with("failed") => return Err(defect(wrong)),
            _ => {}
        }
        if machine.useful() > covered {
            return Err(defect(format!("counts {} useful bytes, {covered} are in place", machine.useful())));
        }
        replay(M::make, &log).map(|_| ()).map_err(|found| defect(format!("rule 4: {found}")))
    }
}

/// Longer than any download takes that has one link at 0.8 Mbit/s and 8 MB to fetch, with all pauses that a server
/// may ask for and all patience that a machine may have.
const LIMIT: Duration = Duration::from_secs(1200);
