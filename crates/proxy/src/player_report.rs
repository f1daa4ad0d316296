//! Reports of a player about itself. They are exact, while the estimate from transfers
//! ([`PlayerEstimator`](super::player_estimator::PlayerEstimator)) is not.
//!
//! The player page and mpv send them. They appear in the status, and their position corrects the streams of that URL.
//!
//! 1. The status names the source, `page` or `mpv`. Without a source it has only the estimate.
//! 2. Waiting for data is not the same as a pause: a paused player needs no data, a waiting one is stalled.
//! 3. A report is valid for [`REPORT_TTL`], because a closed page sends none.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use url::Url;

use super::session::{Session, Sessions};

/// A player's report about itself; see the [module documentation](self).
#[derive(Clone, PartialEq, Debug)]
pub(super) struct PlayerReport {
    /// The source of the report: `page` or `mpv`.
    pub(super) source: &'static str,
    /// Position within the video.
    pub(super) position: Duration,
    /// Playback time that is buffered beyond the position.
    pub(super) buffer: Option<Duration>,
    /// Playback is interrupted for lack of data.
    pub(super) is_waiting: bool,
    /// Stalls since the first picture, without those after a seek.
    pub(super) stalls: u32,
    /// Total duration of these stalls.
    pub(super) stalled_time: Duration,
    /// Playback has reached the end.
    pub(super) has_ended: bool,
}

impl Sessions {
    /// Records the report of a player of this URL. Returns the newest session of that URL.
    pub(super) fn on_player_report(&self, url: &Url, report: &PlayerReport) -> Option<u64> {
        let matching: Vec<_> = self.all().into_iter().filter(|session| session.url == *url).collect();
        for session in &matching {
            *session.player_report.borrow_mut() = Some((report.clone(), Instant::now()));
            if session.active_count() > 0 {
                session.player_estimator.borrow_mut().on_reported_position(
                    session.now(),
                    report.position,
                    !report.is_waiting,
                );
            }
        }
        matching.last().map(|session| session.id)
    }
}

impl Session {
    /// The last report for the status; null if there is no recent one.
    pub(super) fn player_report_json(&self) -> Value {
        let last = self.player_report.borrow();
        let Some((report, received_at)) =
            last.as_ref().filter(|(report, at)| report.has_ended || at.elapsed() < REPORT_TTL)
        else {
            return Value::Null;
        };
        json!({
            "source": report.source,
            "position_s": report.position.as_secs_f64(),
            "buffer_s": report.buffer.map(|buffer| buffer.as_secs_f64()),
            "waiting": report.is_waiting,
            "stalls": report.stalls,
            "stalled_s": report.stalled_time.as_secs_f64(),
            "ended": report.has_ended,
            "age_s": received_at.elapsed().as_secs_f64(),
        })
    }
}

/// chosen: browsers run the timers of a hidden page at least once a minute.
const REPORT_TTL: Duration = Duration::from_secs(70);
