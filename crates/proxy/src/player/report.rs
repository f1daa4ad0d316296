//! Reports of a player about itself. They are exact, while the estimate from transfers
//! ([`PlayerEstimator`](marline_core::proxy::PlayerEstimator)) is not.
//!
//! The player page and mpv send them. They appear in the status, and their position corrects the streams of that URL.
//!
//! 1. The status names the source, `page` or `mpv`. Without a source it has only the estimate.
//! 2. Waiting for data is not the same as a pause: a paused player needs no data, a waiting one is stalled.
//! 3. A report is valid for [`REPORT_TTL`], because a closed page sends none.

use std::time::Duration;

/// A player's report about itself; see the [module documentation](self).
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct PlayerReport {
    /// The source of the report: `page` or `mpv`.
    pub(crate) source: &'static str,
    /// Position within the video.
    pub(crate) position: Duration,
    /// Playback time that is buffered beyond the position.
    pub(crate) buffer: Option<Duration>,
    /// Playback is interrupted for lack of data.
    pub(crate) is_waiting: bool,
    /// Stalls since the first picture, without those after a seek.
    pub(crate) stalls: u32,
    /// Total duration of these stalls.
    pub(crate) stalled_time: Duration,
    /// Playback has reached the end.
    pub(crate) has_ended: bool,
}

impl PlayerReport {
    /// Whether the report still describes the player when it has this age.
    pub(crate) fn is_valid_at(&self, age: Duration) -> bool {
        self.has_ended || age < REPORT_TTL
    }
}

/// Our choice: browsers run the timers of a hidden page at least once a minute.
const REPORT_TTL: Duration = Duration::from_secs(70);
