//! What came of one upload, and how it is kept: one line of `evidence/bass/lab.jsonl`.
//!
//! 1. `mbps` is over the whole upload, from the connection's beginning; `steady_mbps` leaves out the first [`SETTLED`].
//! 2. Both are payload that the receiver had, divided by the time that the sender had.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::setting::{Case, Way};
use crate::reproduce::store::Kept;

/// What came of it.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Measured {
    pub(super) mbps: f64,
    pub(super) steady_mbps: f64,
    /// The relay, if there is one, from 0.
    #[serde(default)]
    pub(super) relay: Option<usize>,
    /// How late one packet in a hundred left the emulator, or later; in seconds. In virtual time none is.
    #[serde(default)]
    pub(super) late_s: f64,
    /// Packets that were lost before the emulator saw them.
    #[serde(default)]
    pub(super) unseen: u64,
}

/// How long a connection is left alone before its rate is steady. chosen: slow start of a round trip of 300 ms up to 16 Mbit/s.
pub(super) const SETTLED: Duration = Duration::from_secs(3);
/// As everywhere in the lab: later than this, and the links were not what they were said to be.
const LATE_S: f64 = 1e-3;

impl Measured {
    /// Rates alone, rounded to what they are kept with.
    pub(super) fn of(mbps: f64, steady_mbps: f64) -> Self {
        let rounded = |value: f64| (value * 1e4).round() / 1e4;
        Self { mbps: rounded(mbps), steady_mbps: rounded(steady_mbps), relay: None, late_s: 0.0, unseen: 0 }
    }

    /// What two in a row let through.
    pub(super) fn least(self, other: Self) -> Self {
        Self { mbps: self.mbps.min(other.mbps), steady_mbps: self.steady_mbps.min(other.steady_mbps), ..self }
    }

    /// Why the figures should not be trusted, if so.
    pub(super) fn suspect(&self) -> Option<String> {
        match (self.unseen, self.late_s) {
            (0, late) if late <= LATE_S => None,
            (0, late) => Some(format!("one packet in a hundred was {:.1} ms late or more", late * 1e3)),
            (unseen, _) => Some(format!("{unseen} packets were lost before the emulator saw them")),
        }
    }
}

/// One upload of a case.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Cell {
    pub(super) artefact: String,
    pub(super) case: String,
    pub(super) way: String,
    /// Of all who send.
    pub(super) congestion: String,
    /// Of everything that is drawn.
    pub(super) seed: u64,
    /// How long it lasted, in seconds.
    pub(super) length_s: u64,
    /// Why it is no good.
    #[serde(default)]
    pub(super) problem: Option<String>,
    pub(super) measured: Option<Measured>,
}

impl Kept for Cell {
    const KEY: &'static str = "cell";

    fn is_done(&self) -> bool {
        self.problem.is_none()
    }

    fn lean(&self) -> Self {
        self.clone()
    }
}

impl Cell {
    /// Of this case and way.
    pub(super) fn new(case: &Case, way: Way, congestion: &str, came: Result<Measured, String>) -> Self {
        let (measured, problem) = match came {
            Ok(measured) => (Some(measured), None),
            Err(why) => (None, Some(why)),
        };
        Self {
            artefact: case.artefact.into(),
            case: case.name.clone(),
            way: way.name(&case.links),
            congestion: congestion.into(),
            seed: case.seed,
            length_s: case.length.as_secs(),
            problem,
            measured,
        }
    }

    /// Whether it is this one.
    pub(super) fn is(&self, case: &Case, way: Way, congestion: &str) -> bool {
        (self.artefact.as_str(), &self.case, self.seed) == (case.artefact, &case.name, case.seed)
            && self.way == way.name(&case.links)
            && (self.congestion.as_str(), self.length_s) == (congestion, case.length.as_secs())
    }

    /// Whether nothing is wrong with it.
    pub(super) fn is_good(&self) -> bool {
        self.measured.is_some_and(|measured| measured.suspect().is_none())
    }

    /// One line for people.
    pub(super) fn line(&self) -> String {
        let what = format!("{} {} {} seed {}", self.artefact, self.case, self.way, self.seed);
        match (&self.measured, &self.problem) {
            (Some(measured), None) => {
                let suspect = measured.suspect().map(|why| format!("; suspect: {why}")).unwrap_or_default();
                format!("{what}: {:.2} Mbit/s, steady {:.2}{suspect}", measured.mbps, measured.steady_mbps)
            }
            (_, problem) => format!("{what}: FAILED: {}", problem.as_deref().unwrap_or("nothing was measured")),
        }
    }
}
