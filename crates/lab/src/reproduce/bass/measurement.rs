//! One upload, and what came of it.
//!
//! 1. `mbps` is over the whole upload, from the connection's beginning; `steady_mbps` leaves out the first [`SETTLED`].
//! 2. Both are payload that the receiver had, divided by the time that the sender had.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::config::{UploadCase, UploadRoute};
use crate::reproduce::measurement::{self, MeasuredValues, MeasurementId};

/// What came of it.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct UploadResult {
    pub(super) mbps: f64,
    pub(super) steady_mbps: f64,
    /// The relay, if there is one, from 0.
    #[serde(default)]
    pub(super) relay: Option<usize>,
    /// How late one packet in a hundred left the emulator, or later; in seconds. In virtual time none is.
    #[serde(default)]
    #[serde(alias = "late_s")]
    pub(super) p99_lateness_s: f64,
    /// Packets that were lost before the emulator saw them.
    #[serde(default)]
    #[serde(alias = "unseen")]
    pub(super) dropped_before_emulator: u64,
}

/// How long a connection is left alone before its rate is steady. chosen: slow start of a round trip of 300 ms up to 16 Mbit/s.
pub(super) const SETTLE_TIME: Duration = Duration::from_secs(3);

impl UploadResult {
    /// Rates alone, rounded to what they are kept with.
    pub(super) fn rounded(mbps: f64, steady_mbps: f64) -> Self {
        let rounded = |value: f64| (value * 1e4).round() / 1e4;
        Self {
            mbps: rounded(mbps),
            steady_mbps: rounded(steady_mbps),
            relay: None,
            p99_lateness_s: 0.0,
            dropped_before_emulator: 0,
        }
    }

    /// What two in a row let through.
    pub(super) fn min(self, other: Self) -> Self {
        Self { mbps: self.mbps.min(other.mbps), steady_mbps: self.steady_mbps.min(other.steady_mbps), ..self }
    }
}

impl MeasuredValues for UploadResult {
    fn unreliable_reason(&self) -> Option<String> {
        measurement::suspect(self.p99_lateness_s, self.dropped_before_emulator)
    }

    fn to_line(&self) -> String {
        format!("{:.2} Mbit/s, steady {:.2}", self.mbps, self.steady_mbps)
    }
}

/// One upload of a case.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct UploadId {
    pub(super) artefact: String,
    pub(super) case: String,
    #[serde(alias = "way")]
    pub(super) route: String,
    /// Of plain TCP and of the edge; relays choose their own.
    pub(super) congestion: String,
    /// Of everything that is drawn.
    pub(super) seed: u64,
    /// How long it lasted, in seconds.
    pub(super) length_s: u64,
}

/// What came of it.
pub(super) type UploadMeasurement = measurement::Measurement<UploadId, UploadResult>;

impl UploadId {
    /// Of this case and way.
    pub(super) fn new(case: &UploadCase, route: UploadRoute, congestion: &str) -> Self {
        Self {
            artefact: case.artefact.into(),
            case: case.name.clone(),
            route: route.name(&case.links),
            congestion: congestion.into(),
            seed: case.seed,
            length_s: case.length.as_secs(),
        }
    }
}

impl MeasurementId for UploadId {}

impl fmt::Display for UploadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {} seed {}", self.artefact, self.case, self.route, self.seed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_repository_keeps_is_understood() {
        measurement::tests::is_understood::<UploadId, UploadResult>("bass");
    }
}
