//! What mpv says over its JSON IPC, read without I/O.
//!
//! In: lines from its socket, time. Out: the lines to send, and how the player stands.
//!
//! 1. Six properties are observed; mpv tells each at once and whenever it changes. Lines that say anything else, or
//!    that nobody can read, change nothing.
//! 2. A stall is `paused-for-cache` after the first picture of a file, unless a seek is under way: mpv tells `seek` when
//!    one begins and `playback-restart` when it has its picture.
//! 3. A pause is no wait: who pauses needs nothing.
//!
//! Polling the properties was not done: mpv would be woken, and a short stall would be missed.

use std::time::Duration;

use marline_core::units::Instant;
use serde_json::{Value, json};
use url::Url;

use super::told::Told;
use super::{marks, target};

/// One mpv, as far as it has spoken.
#[derive(Clone, Debug, Default)]
pub(super) struct Mpv {
    url: Option<Url>,
    position: f64,
    /// The first position that it told.
    first: Option<f64>,
    cache: Option<f64>,
    for_cache: bool,
    /// It has had its first picture.
    started: bool,
    seeks: bool,
    ended: bool,
    waits_since: Option<Instant>,
    stalls: u32,
    stalled: Duration,
}

impl Mpv {
    /// What to send first.
    pub(super) fn greeting() -> String {
        let line =
            |(id, name): (usize, &&str)| format!("{}\n", json!({"command": ["observe_property", id + 1, name]}));
        OBSERVED.iter().enumerate().map(line).collect()
    }

    /// Takes a line; tells whether how it stands has changed by more than the clock.
    pub(super) fn hear(&mut self, now: Instant, line: &str) -> bool {
        let Ok(said) = serde_json::from_str::<Value>(line) else { return false };
        let before = (self.waits(), self.stalls, self.ended, self.url.clone());
        match said["event"].as_str() {
            Some("property-change") => self.property(said["name"].as_str().unwrap_or_default(), &said["data"]),
            Some("start-file") => *self = Self { url: self.url.take(), ..Self::default() },
            Some("seek") => self.seeks = true,
            Some("playback-restart") => (self.started, self.seeks) = (true, false),
            Some("end-file") => self.ended = said["reason"] == "eof",
            _ => return false,
        }
        self.count(now);
        before != (self.waits(), self.stalls, self.ended, self.url.clone())
    }

    /// What it plays through the proxy, and how it stands; none: nothing.
    pub(super) fn stands(&self, now: Instant) -> Option<(&Url, Told)> {
        let time = |seconds: f64| Duration::try_from_secs_f64(seconds).unwrap_or_default();
        let under = self.waits_since.map_or(Duration::ZERO, |since| now.since(since));
        let told = Told {
            source: "mpv",
            position: time(self.position),
            buffer: self.cache.map(time),
            waits: self.waits(),
            stalls: self.stalls,
            stalled: self.stalled + under,
            ended: self.ended,
        };
        Some((self.url.as_ref()?, told))
    }

    fn waits(&self) -> bool {
        !self.ended && (self.for_cache || !self.started)
    }

    fn property(&mut self, name: &str, data: &Value) {
        match name {
            "path" => self.url = data.as_str().and_then(through).or(self.url.take().filter(|_| data.is_null())),
            // Nothing is known of it between two files.
            "time-pos" => {
                let Some(position) = data.as_f64() else { return };
                // Whoever listens only now has missed the event. The first position is told before the first picture.
                self.started |= self.first.is_some_and(|first| position > first) && !self.for_cache && !self.seeks;
                self.first.get_or_insert(position);
                self.position = position;
            }
            "demuxer-cache-duration" => self.cache = data.as_f64(),
            "paused-for-cache" => self.for_cache = data.as_bool().unwrap_or_default(),
            "eof-reached" => self.ended = data.as_bool().unwrap_or(self.ended),
            "seeking" => self.seeks = data.as_bool().unwrap_or_default(),
            _ => {}
        }
    }

    fn count(&mut self, now: Instant) {
        let stalls = self.started && self.for_cache && !self.seeks && !self.ended;
        match (self.waits_since, stalls) {
            (None, true) => {
                self.waits_since = Some(now);
                self.stalls += 1;
            }
            (Some(since), false) => {
                self.waits_since = None;
                self.stalled += now.since(since);
            }
            _ => {}
        }
    }
}

/// The URL behind an address of the proxy.
fn through(path: &str) -> Option<Url> {
    let (_, rest) = path.split_once("://")?;
    let at = rest.find('/')?;
    let (_, path) = marks::behind(rest.get(at..)?);
    target::parse(path).ok().map(|target| target.url)
}

const OBSERVED: [&str; 6] =
    ["path", "time-pos", "paused-for-cache", "demuxer-cache-duration", "eof-reached", "seeking"];

#[cfg(test)]
mod tests {
    use super::*;

    fn hear(mpv: &mut Mpv, lines: &[(u64, &str)]) {
        for (millis, line) in lines {
            mpv.hear(Instant::from_millis(*millis), line);
        }
    }

    /// As mpv 0.35 has sent it.
    const BEGINNING: [(u64, &str); 9] = [
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
    fn it_stands_where_it_says() {
        let mut mpv = Mpv::default();
        assert_eq!(mpv.stands(Instant::ZERO), None);
        hear(&mut mpv, &BEGINNING);
        let (url, told) = mpv.stands(Instant::from_millis(1000)).unwrap();
        assert_eq!(url.as_str(), "https://h.example/f.mp4?x");
        assert_eq!((told.buffer, told.waits, told.stalls), (Some(Duration::from_millis(3250)), false, 0));
        assert_eq!(told.position.as_millis(), 83);
    }

    #[test]
    fn a_wait_for_data_is_a_stall_and_a_wait_after_a_seek_is_none() {
        let mut mpv = Mpv::default();
        hear(&mut mpv, &BEGINNING);
        let for_cache =
            |now| format!(r#"{{"event":"property-change","id":3,"name":"paused-for-cache","data":{now}}}"#);
        let (stops, goes) = (for_cache(true), for_cache(false));
        assert!(mpv.hear(Instant::from_millis(2000), &stops));
        assert!(mpv.stands(Instant::from_millis(3000)).unwrap().1.waits);
        hear(&mut mpv, &[(4000, &goes), (5000, r#"{"event":"seek"}"#), (5001, &stops), (5500, &goes)]);
        hear(&mut mpv, &[(5600, r#"{"event":"playback-restart"}"#)]);
        let told = mpv.stands(Instant::from_millis(9000)).unwrap().1;
        assert_eq!((told.stalls, told.stalled, told.waits), (1, Duration::from_secs(2), false));
        hear(&mut mpv, &[(9000, r#"{"event":"property-change","id":5,"name":"eof-reached","data":true}"#)]);
        assert!(mpv.stands(Instant::from_millis(9000)).unwrap().1.ended);
    }

    #[test]
    fn who_listens_late_knows_what_the_properties_say() {
        let mut mpv = Mpv::default();
        hear(
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
        assert!(mpv.stands(Instant::ZERO).unwrap().1.waits, "a position is no picture");
        hear(&mut mpv, &[(4, r#"{"event":"property-change","id":2,"name":"time-pos","data":0.625000}"#)]);
        assert!(!mpv.stands(Instant::ZERO).unwrap().1.waits);
        hear(&mut mpv, &[(5, r#"{"event":"property-change","id":3,"name":"paused-for-cache","data":true}"#)]);
        assert_eq!(mpv.stands(Instant::ZERO).unwrap().1.stalls, 1);
        // At the end, and back again.
        hear(&mut mpv, &[(9, r#"{"event":"property-change","id":5,"name":"eof-reached","data":true}"#)]);
        hear(&mut mpv, &[(10, r#"{"event":"seek"}"#), (11, r#"{"event":"playback-restart"}"#)]);
        assert!(mpv.stands(Instant::ZERO).unwrap().1.ended);
        hear(&mut mpv, &[(12, r#"{"event":"property-change","id":5,"name":"eof-reached","data":false}"#)]);
        assert!(!mpv.stands(Instant::ZERO).unwrap().1.ended);
    }

    #[test]
    fn before_the_first_picture_it_waits_and_stalls_not() {
        let mut mpv = Mpv::default();
        hear(&mut mpv, &BEGINNING[..5]);
        let waits = r#"{"event":"property-change","id":3,"name":"paused-for-cache","data":true}"#;
        hear(&mut mpv, &[(10, waits), (400, &waits.replace("true", "false"))]);
        let told = mpv.stands(Instant::from_millis(1000)).unwrap().1;
        assert_eq!((told.waits, told.stalls), (true, 0));
    }

    #[test]
    fn what_nobody_can_read_changes_nothing() {
        let mut mpv = Mpv::default();
        hear(&mut mpv, &BEGINNING);
        let before = mpv.stands(Instant::from_millis(1000)).map(|(url, told)| (url.clone(), told));
        for line in
            ["", "null", "[]", "{", r#"{"event":7}"#, r#"{"event":"property-change","name":"time-pos","data":"x"}"#]
        {
            assert!(!mpv.hear(Instant::from_millis(1000), line), "{line}");
        }
        assert_eq!(mpv.stands(Instant::from_millis(1000)).map(|(url, told)| (url.clone(), told)), before);
        // A file that does not come through the proxy is nobody's business.
        hear(&mut mpv, &[(9, r#"{"event":"property-change","name":"path","data":"/home/me/film.mkv"}"#)]);
        assert_eq!(mpv.stands(Instant::from_millis(1000)), None);
    }
}
