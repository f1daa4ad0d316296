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

mod film;
mod http;

use std::net::SocketAddr;

use marline_core::playback::{BufferThresholds, MediaProfile, Player, PlayerState};
use marline_core::units::{Duration, Instant};
use marline_sys::{clock, signal};
use serde_json::{Value, json};

pub(crate) use film::{Film, Films};
use http::{Answer, Page};

/// Where one sits down to watch.
#[derive(Clone, Debug)]
pub(crate) struct Seat {
    /// The proxy's media port.
    pub(crate) media: SocketAddr,
    /// The proxy's address of status, with the token.
    pub(crate) status: String,
    /// What is played.
    pub(crate) url: String,
    /// How it is decoded.
    pub(crate) video: MediaProfile,
    /// When it plays, and when it has enough.
    pub(crate) thresholds: BufferThresholds,
    /// The clock at the beginning.
    pub(crate) zero: u64,
    /// Given up after this time.
    pub(crate) limit: Duration,
}

/// How it was to watch.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Viewing {
    /// P.
    pub(crate) playback: Duration,
    /// I, the first wait included.
    pub(crate) interrupted: Duration,
    /// How often it ran dry after the start.
    pub(crate) stalls: u32,
    /// When the first picture was shown.
    pub(crate) first_picture: Duration,
    /// When the last byte came.
    pub(crate) last_byte: Duration,
    /// Each wait: since when, for how long.
    pub(crate) waits: Vec<(Duration, Duration)>,
    /// The proxy's status after the last byte.
    pub(crate) status: Value,
}

/// Plays it to its end.
///
/// # Errors
/// What went wrong, in words: the proxy refused, broke off, sent other bytes, or took too long.
pub(crate) fn watch(seat: &Seat) -> Result<Viewing, String> {
    let page = Page::new(&seat.status)?;
    let mut viewer = Viewer::new(seat, page);
    let mut answer = Answer::get(seat.media, &seat.url, seat.limit)?;
    let size = seat.video.size().bytes();
    if answer.length != size {
        return Err(format!("the proxy speaks of {} bytes, the film has {size}", answer.length));
    }
    let mut buffer = vec![0; 1 << 18];
    while viewer.player.arrived() < size {
        let now = viewer.advance()?;
        let at = viewer.player.arrived();
        let wanted = viewer.player.read_limit().saturating_sub(at);
        let wait = viewer.next().since(now).clamp(SHORTEST, TURN);
        if wanted == 0 {
            std::thread::sleep(wait);
            continue;
        }
        let most = usize::try_from(wanted).unwrap_or(usize::MAX).min(buffer.len());
        let part = buffer.get_mut(..most).unwrap_or_default();
        match answer.read(part, wait).map_err(|error| format!("after {at} bytes: {error}"))? {
            None => {}
            Some(0) => return Err(format!("the proxy broke off after {at} of {size} bytes")),
            Some(length) => {
                if !Film::has(at, part.get(..length).unwrap_or_default(), &seat.video) {
                    return Err(format!("other bytes than the film's at {at}"));
                }
                let now = viewer.now();
                viewer.player.on_arrival(now, at + length as u64);
            }
        }
    }
    viewer.finish()
}

/// The player and whom it tells.
struct Viewer<'a> {
    seat: &'a Seat,
    page: Page,
    player: Player,
    /// When it last told, and what it did then.
    told: Option<(Instant, PlayerState)>,
    waits: Vec<(Duration, Duration)>,
    began_to_wait: Option<Duration>,
}

impl<'a> Viewer<'a> {
    fn new(seat: &'a Seat, page: Page) -> Self {
        let player = Player::new(seat.video.clone(), seat.thresholds, Instant::ZERO);
        Self { seat, page, player, told: None, waits: Vec::new(), began_to_wait: Some(Duration::ZERO) }
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(clock::now().saturating_sub(self.seat.zero))
    }

    /// Time has passed: plays, and tells.
    fn advance(&mut self) -> Result<Instant, String> {
        let now = self.now();
        self.player.advance(now);
        self.note(now.since(Instant::ZERO));
        if now.since(Instant::ZERO) > self.seat.limit {
            return Err(format!("not played to the end in {:.0} s", self.seat.limit.as_secs_f64()));
        }
        if signal::caught().is_some() {
            return Err(STOPPED.into());
        }
        let state = self.player.state();
        if self.told.is_none_or(|(at, was)| was != state || now.since(at) >= TELL_EVERY) {
            self.told = Some((now, state));
            self.tell(state)?;
        }
        Ok(now)
    }

    /// Keeps when it waited.
    fn note(&mut self, now: Duration) {
        let waits = self.player.state() == PlayerState::Buffering;
        match self.began_to_wait {
            Some(since) if !waits => {
                self.waits.push((since, now - since));
                self.began_to_wait = None;
            }
            None if waits => self.began_to_wait = Some(now),
            _ => {}
        }
    }

    fn tell(&mut self, state: PlayerState) -> Result<(), String> {
        let stalled = self.player.buffering_time().saturating_sub(self.first_wait());
        let body = json!({
            "url": self.seat.url,
            "position_s": self.player.position().as_secs_f64(),
            "buffer_s": self.player.buffered_time().as_secs_f64(),
            "waits": state == PlayerState::Buffering,
            "stalls": self.player.stalls(),
            "stalled_s": stalled.as_secs_f64(),
            "ended": state == PlayerState::Ended,
        });
        self.page.post("state", &body)
    }

    fn first_wait(&self) -> Duration {
        self.player.first_frame().map_or(self.player.buffering_time(), |at| at.since(Instant::ZERO))
    }

    /// When something is to be done although nothing comes.
    fn next(&self) -> Instant {
        let tells = self.told.map_or(Instant::ZERO, |(at, _)| at + TELL_EVERY);
        self.player.next_change().map_or(tells, |at| at.min(tells))
    }

    /// Everything is there: asks the proxy for its account, and reckons the rest.
    fn finish(mut self) -> Result<Viewing, String> {
        let now = self.now();
        self.player.advance(now);
        self.note(now.since(Instant::ZERO));
        let last_byte = now.since(Instant::ZERO);
        // The proxy hears of its transfers ten times a second.
        std::thread::sleep(SETTLES);
        let status = self.page.get("status")?;
        self.player.advance(Instant::FAR_FUTURE);
        let playback = self.player.playback_time().ok_or("it has everything and does not end")?;
        Ok(Viewing {
            playback,
            interrupted: self.player.buffering_time(),
            stalls: self.player.stalls(),
            first_picture: self.first_wait(),
            last_byte,
            waits: self.waits,
            status,
        })
    }
}

/// What a viewing that the user broke off ends with.
pub(crate) const STOPPED: &str = "stopped";
/// As often as the player page tells.
const TELL_EVERY: Duration = Duration::from_millis(500);
/// No sleep or time-out is longer, so that a signal is soon noticed.
const TURN: Duration = Duration::from_millis(100);
/// No time-out is shorter: one of zero means none.
const SHORTEST: Duration = Duration::from_millis(1);
/// After this the proxy has counted the last bytes.
const SETTLES: Duration = Duration::from_millis(400);
