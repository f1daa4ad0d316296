//! An emulated video player in real time: GreenBag's player model (section II-B) behind a real HTTP connection to a
//! real proxy.
//!
//! 1. It reads until its buffer reaches the high threshold. Then it stops reading until the buffer falls to the low
//!    threshold, which the proxy notices as back-pressure.
//! 2. Twice a second, and whenever buffering begins or ends, it reports its state to the proxy (`POST
//!    /TOKEN/state`), as marline's player page does and as GreenBag expects of its player (section IV-C).
//! 3. Every byte is compared with the expected content.
//! 4. After the last byte the remaining playback is computed, not waited for, because nothing can change it.
//! 5. It uses one thread and blocking reads with timeouts: a process that was started in a
//!    [`Room`](marline_sys::process::Room) cannot start threads, and one connection does not need more.
//!
//! mpv was not used: it chooses by itself when to start, and reproducing the figures of the paper requires the
//! paper's player.

mod http_client;

use std::net::SocketAddr;

use marline_core::playback::{BufferThresholds, MediaProfile, Player, PlayerState};
use marline_core::units::{Duration, Instant};
use marline_sys::{clock, signal};
use serde_json::{Value, json};

use crate::mp4_fixture::Mp4Fixture;
use http_client::{HttpResponse, StatusClient};

/// Configuration of one playback.
#[derive(Clone, Debug)]
pub(crate) struct PlayerConfig {
    /// Address of the proxy's media port.
    pub(crate) media_addr: SocketAddr,
    /// URL of the proxy's status port, with the token.
    pub(crate) status_url: String,
    /// URL of the video.
    pub(crate) url: String,
    /// Rate and duration of the video.
    pub(crate) video: MediaProfile,
    /// Buffer levels at which playback starts and reading stops.
    pub(crate) thresholds: BufferThresholds,
    /// Start of the playback on the monotonic clock, in nanoseconds.
    pub(crate) start_time: u64,
    /// The playback fails after this time.
    pub(crate) time_limit: Duration,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct PlaybackResult {
    /// Playback time (P in the paper).
    pub(crate) playback_time: Duration,
    /// Total buffering time (I in the paper), including the startup.
    pub(crate) buffering_time: Duration,
    /// Number of interruptions after the start.
    pub(crate) stalls: u32,
    /// Time of the first frame.
    pub(crate) first_frame: Duration,
    /// Time of the last byte.
    pub(crate) last_byte: Duration,
    /// Buffering periods: start and length.
    pub(crate) buffering_periods: Vec<(Duration, Duration)>,
    /// Status of the proxy after the last byte.
    pub(crate) proxy_status: Value,
}

/// Plays the video to its end.
///
/// # Errors
/// A description of the failure: the proxy refused, closed the connection, sent wrong bytes, or took too long.
pub(crate) fn play(config: &PlayerConfig) -> Result<PlaybackResult, String> {
    let page = StatusClient::new(&config.status_url)?;
    let mut emulated_player = EmulatedPlayer::new(config, page);
    let mut response = HttpResponse::get(config.media_addr, &config.url, config.time_limit)?;
    let size = config.video.size().bytes();
    if response.length != size {
        return Err(format!("the proxy announces {} bytes, the video has {size}", response.length));
    }
    let mut buffer = vec![0; 1 << 18];
    while emulated_player.player.arrived() < size {
        let now = emulated_player.advance()?;
        let at = emulated_player.player.arrived();
        let wanted = emulated_player.player.read_limit().saturating_sub(at);
        let wait = emulated_player.next_action().since(now).clamp(MIN_WAIT, MAX_WAIT);
        if wanted == 0 {
            std::thread::sleep(wait);
            continue;
        }
        let most = usize::try_from(wanted).unwrap_or(usize::MAX).min(buffer.len());
        let part = buffer.get_mut(..most).unwrap_or_default();
        match response.read(part, wait).map_err(|error| format!("after {at} bytes: {error}"))? {
            None => {}
            Some(0) => return Err(format!("the proxy closed the connection after {at} of {size} bytes")),
            Some(length) => {
                if !Mp4Fixture::matches_at(at, part.get(..length).unwrap_or_default(), &config.video) {
                    return Err(format!("wrong bytes at offset {at}"));
                }
                let now = emulated_player.now();
                emulated_player.player.on_arrival(now, at + length as u64);
            }
        }
    }
    emulated_player.into_result()
}

/// The player and its connection to the proxy's status port.
struct EmulatedPlayer<'a> {
    config: &'a PlayerConfig,
    status_client: StatusClient,
    player: Player,
    /// Time and content of the last report.
    last_report: Option<(Instant, PlayerState)>,
    buffering_periods: Vec<(Duration, Duration)>,
    buffering_since: Option<Duration>,
}

impl<'a> EmulatedPlayer<'a> {
    fn new(config: &'a PlayerConfig, page: StatusClient) -> Self {
        let player = Player::new(config.video.clone(), config.thresholds, Instant::ZERO);
        Self {
            config,
            status_client: page,
            player,
            last_report: None,
            buffering_periods: Vec::new(),
            buffering_since: Some(Duration::ZERO),
        }
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(clock::now().saturating_sub(self.config.start_time))
    }

    /// Advances the playback to the present and sends a report if one is due.
    fn advance(&mut self) -> Result<Instant, String> {
        let now = self.now();
        self.player.advance(now);
        self.note_buffering(now.since(Instant::ZERO));
        if now.since(Instant::ZERO) > self.config.time_limit {
            return Err(format!("not played to the end in {:.0} s", self.config.time_limit.as_secs_f64()));
        }
        if signal::last_caught().is_some() {
            return Err(STOPPED_BY_USER.into());
        }
        let state = self.player.state();
        if self.last_report.is_none_or(|(at, was)| was != state || now.since(at) >= REPORT_INTERVAL) {
            self.last_report = Some((now, state));
            self.report(state)?;
        }
        Ok(now)
    }

    /// Records the beginning and end of buffering periods.
    fn note_buffering(&mut self, now: Duration) {
        let waits = self.player.state() == PlayerState::Buffering;
        match self.buffering_since {
            Some(since) if !waits => {
                self.buffering_periods.push((since, now - since));
                self.buffering_since = None;
            }
            None if waits => self.buffering_since = Some(now),
            _ => {}
        }
    }

    /// Reports the state of the player to the proxy.
    fn report(&mut self, state: PlayerState) -> Result<(), String> {
        let stalled = self.player.buffering_time().saturating_sub(self.startup_time());
        let body = json!({
            "url": self.config.url,
            "position_s": self.player.position().as_secs_f64(),
            "buffer_s": self.player.buffered_time().as_secs_f64(),
            "waiting": state == PlayerState::Buffering,
            "stalls": self.player.stalls(),
            "stalled_s": stalled.as_secs_f64(),
            "ended": state == PlayerState::Ended,
        });
        self.status_client.post("state", &body)
    }

    /// Time until the first frame; while there is none, the buffering time so far.
    fn startup_time(&self) -> Duration {
        self.player.first_frame().map_or(self.player.buffering_time(), |at| at.since(Instant::ZERO))
    }

    /// Time of the next report or change of state, even if no data arrives.
    fn next_action(&self) -> Instant {
        let next_report_at = self.last_report.map_or(Instant::ZERO, |(at, _)| at + REPORT_INTERVAL);
        self.player.next_change().map_or(next_report_at, |at| at.min(next_report_at))
    }

    /// After the last byte: gets the proxy's status, and computes the remaining playback.
    fn into_result(mut self) -> Result<PlaybackResult, String> {
        let now = self.now();
        self.player.advance(now);
        self.note_buffering(now.since(Instant::ZERO));
        let last_byte = now.since(Instant::ZERO);
        // The proxy updates its transfer counters ten times a second.
        std::thread::sleep(SETTLE_TIME);
        let status = self.status_client.get("status")?;
        self.player.advance(Instant::FAR_FUTURE);
        let playback = self.player.playback_time().ok_or("the playback does not end although all bytes arrived")?;
        Ok(PlaybackResult {
            playback_time: playback,
            buffering_time: self.player.buffering_time(),
            stalls: self.player.stalls(),
            first_frame: self.startup_time(),
            last_byte,
            buffering_periods: self.buffering_periods,
            proxy_status: status,
        })
    }
}

/// Error text when the user interrupts the playback.
pub(crate) const STOPPED_BY_USER: &str = "stopped";
/// Interval of reports, as in marline's player page.
const REPORT_INTERVAL: Duration = Duration::from_millis(500);
/// Longest sleep or read timeout, so that a signal is noticed soon.
const MAX_WAIT: Duration = Duration::from_millis(100);
/// Shortest read timeout; a timeout of zero would be an error.
const MIN_WAIT: Duration = Duration::from_millis(1);
/// After this time the proxy has counted the last bytes.
const SETTLE_TIME: Duration = Duration::from_millis(400);
