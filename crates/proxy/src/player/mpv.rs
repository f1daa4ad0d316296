//! State of an mpv, derived from its JSON IPC messages, without I/O.
//!
//! Takes lines from the socket; yields the commands to send and a report about the player.
//!
//! 1. Six properties are observed; mpv sends each at once and whenever it changes. Lines with other content, or that
//!    cannot be parsed, are ignored.
//! 2. A stall is `paused-for-cache` after the first picture of a file, unless a seek is in progress: mpv sends `seek`
//!    when one begins, and `playback-restart` when the picture is shown.
//! 3. A pause is no stall, because a paused player needs no data.
//!
//! Polling the properties would wake mpv and miss short stalls.

use std::time::Duration;

use marline_core::units::Instant;
use serde_json::{Value, json};
use url::Url;

use super::report::PlayerReport;
use crate::client::media_url;
use crate::playlist::marks;

/// State of one mpv, as far as its messages have reported it.
#[derive(Clone, Debug, Default)]
pub(crate) struct MpvState {
    url: Option<Url>,
    /// Position within the file, in seconds.
    position: f64,
    /// The first reported position of the file.
    first_position: Option<f64>,
    cached_seconds: Option<f64>,
    paused_for_cache: bool,
    /// The first picture of the file has been shown.
    has_started: bool,
    is_seeking: bool,
    has_ended: bool,
    stalled_since: Option<Instant>,
    stalls: u32,
    stalled_time: Duration,
}

impl MpvState {
    /// The commands to send first.
    pub(crate) fn observe_commands() -> String {
        let line =
            |(id, name): (usize, &&str)| format!("{}\n", json!({"command": ["observe_property", id + 1, name]}));
        OBSERVED_PROPERTIES.iter().enumerate().map(line).collect()
    }

    /// Processes one line. Returns whether the state has changed, apart from the position.
    pub(crate) fn on_line(&mut self, now: Instant, line: &str) -> bool {
        let Ok(message) = serde_json::from_str::<Value>(line) else { return false };
        let previous = (self.is_waiting(), self.stalls, self.has_ended, self.url.clone());
        match message["event"].as_str() {
            Some("property-change") => {
                self.on_property(message["name"].as_str().unwrap_or_default(), &message["data"])
            }
            Some("start-file") => *self = Self { url: self.url.take(), ..Self::default() },
            Some("seek") => self.is_seeking = true,
            Some("playback-restart") => (self.has_started, self.is_seeking) = (true, false),
            Some("end-file") => self.has_ended = message["reason"] == "eof",
            _ => return false,
        }
        self.update_stall(now);
        previous != (self.is_waiting(), self.stalls, self.has_ended, self.url.clone())
    }

    /// The URL that is played through the proxy, and the state of playback; `None`: nothing is played through it.
    pub(crate) fn report(&self, now: Instant) -> Option<(&Url, PlayerReport)> {
        let time = |seconds: f64| Duration::try_from_secs_f64(seconds).unwrap_or_default();
        let current_stall = self.stalled_since.map_or(Duration::ZERO, |since| now.since(since));
        let report = PlayerReport {
            source: "mpv",
            position: time(self.position),
            buffer: self.cached_seconds.map(time),
            is_waiting: self.is_waiting(),
            stalls: self.stalls,
            stalled_time: self.stalled_time + current_stall,
            has_ended: self.has_ended,
        };
        Some((self.url.as_ref()?, report))
    }

    fn is_waiting(&self) -> bool {
        !self.has_ended && (self.paused_for_cache || !self.has_started)
    }

    fn on_property(&mut self, name: &str, data: &Value) {
        match name {
            "path" => self.url = data.as_str().and_then(media_url).or(self.url.take().filter(|_| data.is_null())),
            // mpv sends no value between two files.
            "time-pos" => {
                let Some(position) = data.as_f64() else { return };
                // A client that connects late misses the event, so a rising position counts as a picture. mpv sends the
                // first position before it shows the first picture.
                self.has_started |= self.first_position.is_some_and(|first| position > first)
                    && !self.paused_for_cache
                    && !self.is_seeking;
                self.first_position.get_or_insert(position);
                self.position = position;
            }
            "demuxer-cache-duration" => self.cached_seconds = data.as_f64(),
            "paused-for-cache" => self.paused_for_cache = data.as_bool().unwrap_or_default(),
            "eof-reached" => self.has_ended = data.as_bool().unwrap_or(self.has_ended),
            "seeking" => self.is_seeking = data.as_bool().unwrap_or_default(),
            _ => {}
        }
    }

    fn update_stall(&mut self, now: Instant) {
        let is_stalled = self.has_started && self.paused_for_cache && !self.is_seeking && !self.has_ended;
        match (self.stalled_since, is_stalled) {
            (None, true) => {
                self.stalled_since = Some(now);
                self.stalls += 1;
            }
            (Some(since), false) => {
                self.stalled_since = None;
                self.stalled_time += now.since(since);
            }
            _ => {}
        }
    }
}

/// The URL of the media behind an address of the proxy.
fn media_url(path: &str) -> Option<Url> {
    let (_, address) = path.split_once("://")?;
    let path_start = address.find('/')?;
    let (_, path) = marks::strip_marks(address.get(path_start..)?);
    media_url::parse(path).ok().map(|target| target.url)
}

const OBSERVED_PROPERTIES: [&str; 6] =
    ["path", "time-pos", "paused-for-cache", "demuxer-cache-duration", "eof-reached", "seeking"];

#[cfg(test)]
mod tests {
    use super::*;

    fn feed_lines(state: &mut MpvState, lines: &[(u64, &str)]) {
        for (millis, line) in lines {
            state.on_line(Instant::from_millis(*millis), line);
        }
    }

    /// Recorded from mpv 0.35.
    const START_LINES: [(u64, &str); 9] = [
        (0, r#"{"request_id":0,"error":"success"}"#),
        (0, r#"{"event":"property-change","id":2,"name":"time-pos"}"#),
        (0, r#"{"event":"start-file","playlist_entry_id":1}"#),
        (
            1,
            r#"{"event":"property-change","id":1,"name":"path","data":"http://127.0.0.1:8480/https://h.example/f.mp4?x"}"#,
        ),
        (2, r#"{"event":"property-change","id":3,"name":"paused-for-cache","data":false}"#),
        (500, r#"{"event":"file-loaded"}"#),
        (600, r#"{"event":"playback-restart"}"#),
        (700, r#"{"event":"property-change","id":2,"name":"time-pos","data":0.083333}"#),
        (700, r#"{"event":"property-change","id":4,"name":"demuxer-cache-duration","data":3.250000}"#),
    ];

    #[test]
    fn the_report_follows_the_properties() {
        let mut mpv = MpvState::default();
        assert_eq!(mpv.report(Instant::ZERO), None);
        feed_lines(&mut mpv, &START_LINES);
        let (url, report) = mpv.report(Instant::from_millis(1000)).unwrap();
        assert_eq!(url.as_str(), "https://h.example/f.mp4?x");
        assert_eq!(
            (report.buffer, report.is_waiting, report.stalls),
            (Some(Duration::from_millis(3250)), false, 0)
        );
        assert_eq!(report.position.as_millis(), 83);
    }

    #[test]
    fn waiting_for_data_is_a_stall_unless_a_seek_is_in_progress() {
        let mut mpv = MpvState::default();
        feed_lines(&mut mpv, &START_LINES);
        let for_cache =
            |now| format!(r#"{{"event":"property-change","id":3,"name":"paused-for-cache","data":{now}}}"#);
        let (stall, resume) = (for_cache(true), for_cache(false));
        assert!(mpv.on_line(Instant::from_millis(2000), &stall));
        assert!(mpv.report(Instant::from_millis(3000)).unwrap().1.is_waiting);
        feed_lines(&mut mpv, &[(4000, &resume), (5000, r#"{"event":"seek"}"#), (5001, &stall), (5500, &resume)]);
        feed_lines(&mut mpv, &[(5600, r#"{"event":"playback-restart"}"#)]);
        let report = mpv.report(Instant::from_millis(9000)).unwrap().1;
        assert_eq!((report.stalls, report.stalled_time, report.is_waiting), (1, Duration::from_secs(2), false));
        feed_lines(&mut mpv, &[(9000, r#"{"event":"property-change","id":5,"name":"eof-reached","data":true}"#)]);
        assert!(mpv.report(Instant::from_millis(9000)).unwrap().1.has_ended);
    }

    #[test]
    fn a_late_connection_derives_the_state_from_properties() {
        let mut mpv = MpvState::default();
        feed_lines(
            &mut mpv,
            &[
                (
                    0,
                    r#"{"event":"property-change","id":1,"name":"path","data":"http://127.0.0.1:8480/http://h/b.mp4"}"#,
                ),
                (0, r#"{"event":"property-change","id":2,"name":"time-pos","data":0.500000}"#),
                (0, r#"{"event":"property-change","id":3,"name":"paused-for-cache","data":false}"#),
                (0, r#"{"event":"property-change","id":4,"name":"demuxer-cache-duration","data":1.021678}"#),
                (0, r#"{"event":"property-change","id":5,"name":"eof-reached","data":false}"#),
                (0, r#"{"event":"property-change","id":6,"name":"seeking","data":false}"#),
            ],
        );
        assert!(mpv.report(Instant::ZERO).unwrap().1.is_waiting, "a position is no picture");
        feed_lines(&mut mpv, &[(4, r#"{"event":"property-change","id":2,"name":"time-pos","data":0.625000}"#)]);
        assert!(!mpv.report(Instant::ZERO).unwrap().1.is_waiting);
        feed_lines(&mut mpv, &[(5, r#"{"event":"property-change","id":3,"name":"paused-for-cache","data":true}"#)]);
        assert_eq!(mpv.report(Instant::ZERO).unwrap().1.stalls, 1);
        // The end of the file, and a seek back from it.
        feed_lines(&mut mpv, &[(9, r#"{"event":"property-change","id":5,"name":"eof-reached","data":true}"#)]);
        feed_lines(&mut mpv, &[(10, r#"{"event":"seek"}"#), (11, r#"{"event":"playback-restart"}"#)]);
        assert!(mpv.report(Instant::ZERO).unwrap().1.has_ended);
        feed_lines(&mut mpv, &[(12, r#"{"event":"property-change","id":5,"name":"eof-reached","data":false}"#)]);
        assert!(!mpv.report(Instant::ZERO).unwrap().1.has_ended);
    }

    #[test]
    fn waiting_before_the_first_picture_is_no_stall() {
        let mut mpv = MpvState::default();
        feed_lines(&mut mpv, &START_LINES[..5]);
        let waits = r#"{"event":"property-change","id":3,"name":"paused-for-cache","data":true}"#;
        feed_lines(&mut mpv, &[(10, waits), (400, &waits.replace("true", "false"))]);
        let report = mpv.report(Instant::from_millis(1000)).unwrap().1;
        assert_eq!((report.is_waiting, report.stalls), (true, 0));
    }

    #[test]
    fn unreadable_lines_change_nothing() {
        let mut mpv = MpvState::default();
        feed_lines(&mut mpv, &START_LINES);
        let before = mpv.report(Instant::from_millis(1000)).map(|(url, report)| (url.clone(), report));
        for line in
            ["", "null", "[]", "{", r#"{"event":7}"#, r#"{"event":"property-change","name":"time-pos","data":"x"}"#]
        {
            assert!(!mpv.on_line(Instant::from_millis(1000), line), "{line}");
        }
        assert_eq!(mpv.report(Instant::from_millis(1000)).map(|(url, report)| (url.clone(), report)), before);
        // A file that is not played through the proxy is ignored.
        feed_lines(&mut mpv, &[(9, r#"{"event":"property-change","name":"path","data":"/home/me/film.mkv"}"#)]);
        assert_eq!(mpv.report(Instant::from_millis(1000)), None);
    }
}
