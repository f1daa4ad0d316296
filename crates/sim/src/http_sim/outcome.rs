//! What came of it.

use marline_core::fetch::{Failure, Notice};
use marline_core::units::{DataSize, Duration};

use super::PlaybackOutcome;

/// The end of a run.
#[derive(Clone, Debug, Default)]
pub struct HttpOutcome {
    /// When the machine said that everything is there; none: it did not.
    pub finished_at: Option<Duration>,
    /// Why the machine gave up, and when.
    pub failed: Option<(Failure, Duration)>,
    /// The edition of the server's file that the client has, complete and unmixed; none: it has no such file.
    pub version: Option<usize>,
    /// Different bytes of the file in place.
    pub covered: DataSize,
    /// Body bytes that reached the client and were not needed.
    pub wasted: DataSize,
    /// Between the last useful bytes of the link that ends first and the one that ends last.
    pub link_delta: Duration,
    /// Each link, in the scene's order.
    pub links: Vec<HttpLinkOutcome>,
    /// What the user was told, and when.
    pub notices: Vec<(Duration, Notice)>,
    /// Inputs that the machine was given.
    pub inputs: u64,
    /// How it was to watch; none: nobody watched.
    pub playback: Option<PlaybackOutcome>,
}

impl HttpOutcome {
    /// Whether the machine said that it is done and the file is whole.
    pub fn is_complete(&self) -> bool {
        self.finished_at.is_some() && self.version.is_some()
    }
}

/// One link's part in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HttpLinkOutcome {
    /// Its name.
    pub name: String,
    /// Body bytes that were put in place, those among them that were there already included.
    pub body_bytes: DataSize,
    /// Requests sent.
    pub requests: u32,
    /// Connections tried.
    pub connections: u32,
    /// When its first body byte was put in place.
    pub first_byte: Option<Duration>,
    /// When its last body byte was put in place.
    pub last_byte: Option<Duration>,
    /// Bytes put in place in each [`SLICE`] since the start.
    pub timeline: Vec<DataSize>,
}

/// The grain of [`LinkOutcome::timeline`].
pub const TIMELINE_STEP: Duration = Duration::from_millis(100);

impl HttpLinkOutcome {
    pub(super) fn on_bytes(&mut self, at: Duration, len: DataSize) {
        self.body_bytes += len;
        self.first_byte.get_or_insert(at);
        self.last_byte = Some(at);
        let slice = usize::try_from(at.as_nanos() / TIMELINE_STEP.as_nanos()).unwrap_or(usize::MAX);
        if self.timeline.len() <= slice {
            self.timeline.resize(slice + 1, DataSize::ZERO);
        }
        self.timeline[slice] += len;
    }
}

/// Between the first and the last of the links' last bytes.
pub(super) fn link_delta(links: &[HttpLinkOutcome]) -> Duration {
    let last_bytes = || links.iter().filter_map(|link| link.last_byte);
    match (last_bytes().min(), last_bytes().max()) {
        (Some(first), Some(last)) => last - first,
        _ => Duration::ZERO,
    }
}
