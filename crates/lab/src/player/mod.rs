//! An emulated player in real time: GreenBag's player (§II-B) behind a real HTTP connection to a real proxy.
//!
//! In: a [`Seat`]: where the proxy is, what is played, with which thresholds, and since when. Out: a [`Viewing`].
//!
//! 1. It reads whatever the connection has, up to what its high threshold allows; then it reads no more until the low
//!    one, and the proxy feels it as back-pressure.
//! 2. Twice a second, and whenever it begins or ceases to wait, it tells the proxy how it stands (`POST /TOKEN/state`), as
//!    the player page does and as GreenBag asks its player (§IV-C).
//! 3. Every byte is compared with the film's.
//! 4. Once the last byte is there nothing can change any more: the rest of the playing is reckoned, not waited for.
//! 5. One thread and blocking reads with time-outs: whoever was born in a [`Room`](marline_sys::process::Room) can start
//!    no more threads, and one connection needs none.
//!
//! mpv was not used for this: it starts when it likes, and figures of a paper need the paper's player.

mod http_client;
mod mp4_fixture;

use std::net::SocketAddr;

use marline_core::playback::{BufferThresholds, MediaProfile, Player, PlayerState};
use marline_core::units::{Duration, Instant};
use marline_sys::{clock, signal};
use serde_json::{Value, json};

use http_client::{HttpResponse, StatusClient};
pub(crate) use mp4_fixture::{Mp4Fixture, Mp4Fixtures};

/// Where one sits down to watch.
#[derive(Clone, Debug)]
pub(crate) struct PlayerConfig {
    /// The proxy's media port.
    pub(crate) media_addr: SocketAddr,
    /// The proxy's address of status, with the token.
    pub(crate) status_url: String,
    /// What is played.
    pub(crate) url: String,
    /// How it is decoded.
    pub(crate) video: MediaProfile,
    /// When it plays, and when it has enough.
    pub(crate) thresholds: BufferThresholds,
    /// The clock at the beginning.
    pub(crate) start_time: u64,
    /// Given up after this time.
    pub(crate) time_limit: Duration,
}

/// How it was to watch.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct PlaybackResult {
    /// P.
    pub(crate) playback_time: Duration,
    /// I, the first wait included.
    pub(crate) buffering_time: Duration,
    /// How often it ran dry after the start.
    pub(crate) stalls: u32,
    /// When the first picture was shown.
    pub(crate) first_frame: Duration,
    /// When the last byte came.
    pub(crate) last_byte: Duration,
    /// Each wait: since when, for how long.
    pub(crate) buffering_periods: Vec<(Duration, Duration)>,
    /// The proxy's status after the last byte.
    pub(crate) proxy_status: Value,
}

/// Plays it to its end.
///
/// # Errors
/// What went wrong, in words: the proxy refused, broke off, sent other bytes, or took too long.
pub(crate) fn play(config: &PlayerConfig) -> Result<PlaybackResult, String> {
    let page = StatusClient::new(&config.status_url)?;
    let mut viewer = EmulatedPlayer::new(config, page);
    let mut response = HttpResponse::get(config.media_addr, &config.url, config.time_limit)?;
    let size = config.video.size().bytes();
    if response.length != size {
        return Err(format!("the proxy speaks of {} bytes, the film has {size}", response.length));
    }
    let mut buffer = vec![0; 1 << 18];
    while viewer.player.arrived() < size {
        let now = viewer.advance()?;
        let at = viewer.player.arrived();
        let wanted = viewer.player.read_limit().saturating_sub(at);
        let wait = viewer.next_action().since(now).clamp(MIN_WAIT, MAX_WAIT);
        if wanted == 0 {
            std::thread::sleep(wait);
            continue;
        }
        let most = usize::try_from(wanted).unwrap_or(usize::MAX).min(buffer.len());
        let part = buffer.get_mut(..most).unwrap_or_default();
        match response.read(part, wait).map_err(|error| format!("after {at} bytes: {error}"))? {
            None => {}
            Some(0) => return Err(format!("the proxy broke off after {at} of {size} bytes")),
            Some(length) => {
                if !Mp4Fixture::matches_at(at, part.get(..length).unwrap_or_default(), &config.video) {
                    return Err(format!("other bytes than the film's at {at}"));
                }
                let now = viewer.now();
                viewer.player.on_arrival(now, at + length as u64);
            }
        }
    }
    viewer.into_result()
}

/// The player and whom it tells.
struct EmulatedPlayer<'a> {
    config: &'a PlayerConfig,
    status_client: StatusClient,
    player: Player,
    /// When it last told, and what it did then.
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

    /// Time has passed: plays, and tells.
    fn advance(&mut self) -> Result<Instant, String> {
        let now = self.now();
        self.player.advance(now);
        self.note_buffering(now.since(Instant::ZERO));
        if now.since(Instant::ZERO) > self.config.time_limit {
            return Err(format!("not played to the end in {:.0} s", self.config.time_limit.as_secs_f64()));
        }
        if signal::caught().is_some() {
            return Err(STOPPED_BY_USER.into());
        }
        let state = self.player.state();
        if self.last_report.is_none_or(|(at, was)| was != state || now.since(at) >= REPORT_INTERVAL) {
            self.last_report = Some((now, state));
            self.report(state)?;
        }
        Ok(now)
    }

    /// Keeps when it waited.
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

    fn report(&mut self, state: PlayerState) -> Result<(), String> {
        let stalled = self.player.buffering_time().saturating_sub(self.startup_time());
        let body = json!({
            "url": self.config.url,
            "position_s": self.player.position().as_secs_f64(),
            "buffer_s": self.player.buffered_time().as_secs_f64(),
            "waits": state == PlayerState::Buffering,
            "stalls": self.player.stalls(),
            "stalled_s": stalled.as_secs_f64(),
            "ended": state == PlayerState::Ended,
        });
        self.status_client.post("state", &body)
    }

    fn startup_time(&self) -> Duration {
        self.player.first_frame().map_or(self.player.buffering_time(), |at| at.since(Instant::ZERO))
    }

    /// When something is to be done although nothing comes.
    fn next_action(&self) -> Instant {
        let tells = self.last_report.map_or(Instant::ZERO, |(at, _)| at + REPORT_INTERVAL);
        self.player.next_change().map_or(tells, |at| at.min(tells))
    }

    /// Everything is there: asks the proxy for its account, and reckons the rest.
    fn into_result(mut self) -> Result<PlaybackResult, String> {
        let now = self.now();
        self.player.advance(now);
        self.note_buffering(now.since(Instant::ZERO));
        let last_byte = now.since(Instant::ZERO);
        // The proxy hears of its transfers ten times a second.
        std::thread::sleep(SETTLE_TIME);
        let status = self.status_client.get("status")?;
        self.player.advance(Instant::FAR_FUTURE);
        let playback = self.player.playback_time().ok_or("it has everything and does not end")?;
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

/// What a viewing that the user broke off ends with.
pub(crate) const STOPPED_BY_USER: &str = "stopped";
/// As often as the player page tells.
const REPORT_INTERVAL: Duration = Duration::from_millis(500);
/// No sleep or time-out is longer, so that a signal is soon noticed.
const MAX_WAIT: Duration = Duration::from_millis(100);
/// No time-out is shorter: one of zero means none.
const MIN_WAIT: Duration = Duration::from_millis(1);
/// After this the proxy has counted the last bytes.
const SETTLE_TIME: Duration = Duration::from_millis(400);
