//! Identity and result of one upload.
//!
//! 1. `mbps` is the mean rate of the whole upload, connection setup included; `steady_mbps` excludes the first
//!    [`SETTLE_TIME`].
//! 2. Both count the payload that the receiver got, divided by the time that the sender had.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::config::{UploadCase, UploadRoute};
use crate::reproduce::measurement::{self, MeasuredValues, MeasurementId};

#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct UploadResult {
    pub(super) mbps: f64,
    pub(super) steady_mbps: f64,
    /// Index of the relay, from 0; `None` without a relay.
    #[serde(default)]
    pub(super) relay: Option<usize>,
    /// p99 lateness of the emulator in seconds; 0 in virtual time.
    #[serde(default)]
    #[serde(alias = "late_s")]
    pub(super) p99_lateness_s: f64,
    /// Packets dropped before they reached the emulator.
    #[serde(default)]
    #[serde(alias = "unseen")]
    pub(super) dropped_before_emulator: u64,
}

/// Time after which the rate of a connection counts as steady. Our choice: slow start at an RTT of 300 ms up to 16
/// Mbit/s.
pub(super) const SETTLE_TIME: Duration = Duration::from_secs(3);

impl UploadResult {
    /// A result with these rates only, rounded as it is stored.
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

    /// Result of two segments in series: the smaller rates.
    pub(super) fn min(self, other: Self) -> Self {
        Self { mbps: self.mbps.min(other.mbps), steady_mbps: self.steady_mbps.min(other.steady_mbps), ..self }
    }
}

impl MeasuredValues for UploadResult {
    fn unreliable_reason(&self) -> Option<String> {
        measurement::unreliable_reason_of(self.p99_lateness_s, self.dropped_before_emulator)
    }

    fn to_line(&self) -> String {
        format!("{:.2} Mbit/s, steady {:.2}", self.mbps, self.steady_mbps)
    }
}

/// Identity of one upload.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct UploadId {
    pub(super) artefact: String,
    pub(super) case: String,
    #[serde(alias = "way")]
    pub(super) route: String,
    /// Congestion control of plain TCP and of the edge; relays use their own.
    pub(super) congestion: String,
    /// Seed of all randomness.
    pub(super) seed: u64,
    /// Length of the upload in seconds.
    pub(super) length_s: u64,
}

/// One upload with its result.
pub(super) type UploadMeasurement = measurement::Measurement<UploadId, UploadResult>;

impl UploadId {
    /// The ID of this case and route.
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
    fn the_committed_measurements_can_be_read() {
        measurement::tests::check_committed_measurements::<UploadId, UploadResult>("bass");
    }
}
