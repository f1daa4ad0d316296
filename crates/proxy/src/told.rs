//! What a player says of itself: exact, where what is reckoned of it ([`Watching`](super::watching::Watching)) is not.
//!
//! In: the words of the player page or of mpv. Out: the same in the status, and the position for the streams of that
//! URL.
//!
//! 1. Which source is in use is said: `page` or `mpv`; without either the status has only what is reckoned.
//! 2. Waiting for data is not pausing: a player that pauses needs nothing, one that waits needs everything.
//! 3. What was said counts for [`FRESH`]: a page that is closed says nothing more.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use url::Url;

use super::session::{Session, Sessions};

/// See the [module](self).
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Told {
    /// Who says it.
    pub(super) source: &'static str,
    /// Time of the video.
    pub(super) position: Duration,
    /// What it has beyond that.
    pub(super) buffer: Option<Duration>,
    /// It would go on if it had data.
    pub(super) waits: bool,
    /// Waits since the first picture, those for a seek left out.
    pub(super) stalls: u32,
    pub(super) stalled: Duration,
    /// It has played to the end.
    pub(super) ended: bool,
}

impl Sessions {
    /// A player of this URL says how it stands. Gives the newest session of that URL.
    pub(super) fn stands(&self, url: &Url, told: &Told) -> Option<u64> {
        let of_it: Vec<_> = self.all().into_iter().filter(|session| session.url == *url).collect();
        for session in &of_it {
            *session.told.borrow_mut() = Some((told.clone(), Instant::now()));
            if session.plays() > 0 {
                session.watching.borrow_mut().stands(session.now(), told.position, !told.waits);
            }
        }
        of_it.last().map(|session| session.id)
    }
}

impl Session {
    /// What its player last said of itself, for the status; null: nothing of late.
    pub(super) fn told(&self) -> Value {
        let told = self.told.borrow();
        let Some((told, at)) = told.as_ref().filter(|(told, at)| told.ended || at.elapsed() < FRESH) else {
            return Value::Null;
        };
        json!({
            "source": told.source,
            "position_s": told.position.as_secs_f64(),
            "buffer_s": told.buffer.map(|buffer| buffer.as_secs_f64()),
            "waits": told.waits,
            "stalls": told.stalls,
            "stalled_s": told.stalled.as_secs_f64(),
            "ended": told.ended,
            "age_s": at.elapsed().as_secs_f64(),
        })
    }
}

/// chosen: a browser lets a hidden page speak once a minute at worst.
const FRESH: Duration = Duration::from_secs(70);
