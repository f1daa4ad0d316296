//! What a player says of itself: exact, where what is reckoned of it ([`Watching`](super::player_estimator::Watching)) is not.
//!
//! In: the words of the player page or of mpv. Out: the same in the status, and the position for the streams of that
//! URL.
//!
//! 1. Which source is in use is said: `player_page` or `mpv`; without either the status has only what is reckoned.
//! 2. Waiting for data is not pausing: a player that pauses needs nothing, one that waits needs everything.
//! 3. What was said counts for [`FRESH`]: a page that is closed says nothing more.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use url::Url;

use super::session::{Session, Sessions};

/// See the [module](self).
#[derive(Clone, PartialEq, Debug)]
pub(super) struct PlayerReport {
    /// Who says it.
    pub(super) source: &'static str,
    /// Time of the video.
    pub(super) position: Duration,
    /// What it has beyond that.
    pub(super) buffer: Option<Duration>,
    /// It would go on if it had data.
    pub(super) is_waiting: bool,
    /// Waits since the first picture, those for a seek left out.
    pub(super) stalls: u32,
    pub(super) stalled_time: Duration,
    /// It has played to the end.
    pub(super) has_ended: bool,
}

impl Sessions {
    /// A player of this URL says how it stands. Gives the newest session of that URL.
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
    /// What its player last said of itself, for the status; null: nothing of late.
    pub(super) fn player_report_json(&self) -> Value {
        let last = self.player_report.borrow();
        let Some((report, received_at)) =
            last.as_ref().filter(|(told, at)| told.has_ended || at.elapsed() < REPORT_TTL)
        else {
            return Value::Null;
        };
        json!({
            "source": report.source,
            "position_s": report.position.as_secs_f64(),
            "buffer_s": report.buffer.map(|buffer| buffer.as_secs_f64()),
            "waits": report.is_waiting,
            "stalls": report.stalls,
            "stalled_s": report.stalled_time.as_secs_f64(),
            "ended": report.has_ended,
            "age_s": received_at.elapsed().as_secs_f64(),
        })
    }
}

/// chosen: a browser lets a hidden page speak once a minute at worst.
const REPORT_TTL: Duration = Duration::from_secs(70);
