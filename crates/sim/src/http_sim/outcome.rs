//! Outcome of a simulated download.

use marline_core::fetch::{Failure, Notice};
use marline_core::units::{DataSize, Duration};

use super::PlaybackOutcome;

/// Result of a run; all times count from its start.
#[derive(Clone, Debug, Default)]
pub struct HttpOutcome {
    /// When the machine reported `Done`, if it did.
    pub finished_at: Option<Duration>,
    /// Why and when the machine gave up.
    pub failed: Option<(Failure, Duration)>,
    /// The version that the client has, complete and unmixed; `None` if it has no such file.
    pub version: Option<usize>,
    /// Distinct bytes stored at their offsets.
    pub covered: DataSize,
    /// Body bytes that reached the client but were not needed.
    pub wasted: DataSize,
    /// Time between the last stored bytes of the first and of the last link to finish.
    pub link_delta: Duration,
    /// The part of each link, in the order of the scenario.
    pub links: Vec<HttpLinkOutcome>,
    /// Notices for the user, with their times.
    pub notices: Vec<(Duration, Notice)>,
    /// Number of inputs passed to the machine.
    pub inputs: u64,
    /// Playback result, if there was a player.
    pub playback: Option<PlaybackOutcome>,
}

impl HttpOutcome {
    /// Whether the machine reported `Done` and the file is complete.
    pub fn is_complete(&self) -> bool {
        self.finished_at.is_some() && self.version.is_some()
    }
}

/// One link's part in a download.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HttpLinkOutcome {
    /// Name of the link in the scenario.
    pub name: String,
    /// Body bytes stored, including bytes that had already arrived over another link.
    pub body_bytes: DataSize,
    /// Number of requests sent, including repeated ones.
    pub requests: u32,
    /// Number of connection attempts, successful or not.
    pub connections: u32,
    /// When the first body byte was stored.
    pub first_byte: Option<Duration>,
    /// When the last body byte was stored.
    pub last_byte: Option<Duration>,
    /// Bytes stored in each [`TIMELINE_STEP`] since the start.
    pub timeline: Vec<DataSize>,
}

/// Length of one slot of [`HttpLinkOutcome::timeline`].
pub const TIMELINE_STEP: Duration = Duration::from_millis(100);

impl HttpLinkOutcome {
    pub(super) fn on_bytes(&mut self, at: Duration, len: DataSize) {
        self.body_bytes += len;
        self.first_byte.get_or_insert(at);
        self.last_byte = Some(at);
        let index = usize::try_from(at.as_nanos() / TIMELINE_STEP.as_nanos()).unwrap_or(usize::MAX);
        if self.timeline.len() <= index {
            self.timeline.resize(index + 1, DataSize::ZERO);
        }
        self.timeline[index] += len;
    }
}

/// Time between the earliest and the latest of the links' last bytes.
pub(super) fn link_delta(links: &[HttpLinkOutcome]) -> Duration {
    let last_bytes = || links.iter().filter_map(|link| link.last_byte);
    match (last_bytes().min(), last_bytes().max()) {
        (Some(first), Some(last)) => last - first,
        _ => Duration::ZERO,
    }
}
