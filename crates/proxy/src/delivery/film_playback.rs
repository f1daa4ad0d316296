//! Playback of a film: one video in one resource, as far as its bytes show it.
//!
//! Combines the timing of the video ([`TimingFinder`]), the model of its player ([`PlayerEstimator`]), the startup
//! gate ([`StartupGate`], which delays the first picture while the links are slower than the video) and what the
//! player reports about itself. The decisions are in core; here are the shared state and the tasks that wait for the
//! gate.
//!
//! Segments of playlists are played by [`TrackPlayback`](crate::player::track_playback::TrackPlayback) instead.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::{Context, Waker};
use std::time::{self, Duration};

use marline_core::proxy::{HeldVideo, PlayerEstimator, PlayerStatus, StartDecision, StartMode, StartupGate};
use marline_core::stream::{PlayerInput, RateForecast, Stream};
use marline_core::units::{DataSize, Instant};

use super::active_responses::ResponseBuffer;
use crate::player::ffprobe;
use crate::player::report::PlayerReport;
use crate::player::timing_finder::TimingFinder;

/// The player of one resource; see the [module documentation](self).
pub(crate) struct FilmPlayback {
    video: RefCell<TimingFinder>,
    estimator: RefCell<PlayerEstimator>,
    gate: RefCell<StartupGate>,
    /// Tasks that wait for the gate.
    wakers: RefCell<Vec<Waker>>,
    /// The last report of the player about itself, and when it arrived.
    report: RefCell<Option<(PlayerReport, time::Instant)>>,
}

impl FilmPlayback {
    pub(crate) fn new(start: StartMode) -> Self {
        Self {
            video: RefCell::default(),
            estimator: RefCell::default(),
            gate: RefCell::new(StartupGate::new(start)),
            wakers: RefCell::default(),
            report: RefCell::default(),
        }
    }

    /// Notes a request for the bytes from here on: it continues the playback, or is a seek.
    pub(crate) fn on_request(&self, now: Instant, from: u64) {
        self.estimator.borrow_mut().on_request(now, from);
    }

    /// Accounts bytes that the player reads, and probes the head of a video whose container is not recognized.
    pub(crate) fn on_bytes_read(self: &Rc<Self>, now: Instant, offset: u64, bytes: &[u8]) {
        self.estimator.borrow_mut().on_bytes_read(now, offset + bytes.len() as u64);
        let mut video = self.video.borrow_mut();
        video.on_bytes_read(offset, bytes);
        let Some(head) = video.take_unknown_head() else { return };
        let playback = Rc::downgrade(self);
        tokio::task::spawn_local(async move {
            let Some(timing) = ffprobe::probe(head).await else { return };
            if let Some(playback) = playback.upgrade() {
                playback.video.borrow_mut().set_video(timing, "ffprobe");
            }
        });
    }

    /// Notes that the player has closed its last response.
    pub(crate) fn on_last_response_ended(&self, now: Instant) {
        self.estimator.borrow_mut().on_last_response_ended(now);
    }

    /// Updates the model of the player from the newest response of a resource of `total` bytes.
    pub(crate) fn update(&self, now: Instant, newest: &ResponseBuffer, total: Option<DataSize>) {
        let found = total.and_then(|total| self.video.borrow_mut().take_profile(total));
        let ends = (newest.read_end, newest.in_order_end());
        self.estimator.borrow_mut().update(now, ends, total, found);
    }

    /// Whether bytes from this offset on continue the current playback, so that links may stay on standby.
    pub(crate) fn is_continuing_at(&self, from: u64) -> bool {
        self.estimator.borrow().is_continuing_at(from)
    }

    /// The update that a stream needs whose model of the player differs.
    pub(crate) fn update_for_stream(&self, stream: &Stream) -> Option<PlayerInput> {
        self.estimator.borrow_mut().update_for_stream(stream.player())
    }

    /// What is known of the player and of the video that it plays.
    pub(crate) fn status(&self) -> Option<PlayerStatus> {
        self.estimator.borrow().status()
    }

    /// Records what the player reports about itself. While it reads, the reported position corrects the model.
    pub(crate) fn on_report(&self, now: Instant, report: &PlayerReport, is_reading: bool) {
        *self.report.borrow_mut() = Some((report.clone(), time::Instant::now()));
        if is_reading {
            self.estimator.borrow_mut().on_reported_position(now, report.position, !report.is_waiting);
        }
    }

    /// The last report of the player, if it is still valid, and its age.
    pub(crate) fn last_report(&self) -> Option<(PlayerReport, Duration)> {
        let last = self.report.borrow();
        let (report, received_at) = last.as_ref()?;
        let age = received_at.elapsed();
        report.is_valid_at(age).then(|| (report.clone(), age))
    }

    /// How many of `len` bytes at `offset` may go to the player now, in a response that began at `from`.
    pub(crate) fn deliverable_bytes(
        &self,
        now: Instant,
        (from, offset): (u64, u64),
        len: u64,
        total: Option<DataSize>,
    ) -> u64 {
        let mut gate = self.gate.borrow_mut();
        if gate.is_released() {
            return len;
        }
        let was_held = gate.is_held();
        let media_start = self.video.borrow().media_start(total);
        let allowed = gate.admit_bytes(now, from, offset, len, media_start);
        if gate.is_held() && !was_held {
            self.estimator.borrow_mut().set_held(now, true);
        }
        allowed
    }

    /// Decides whether a response that begins at `from` must wait longer, with a window of this size; `None`: it is not
    /// held.
    pub(crate) fn startup_decision(
        &self,
        now: Instant,
        response: &ResponseBuffer,
        forecast: Option<RateForecast>,
        window: DataSize,
    ) -> Option<StartDecision> {
        if !self.gate.borrow().is_holding(response.range.start) {
            return None;
        }
        let decision = {
            let estimator = self.estimator.borrow();
            let video = HeldVideo {
                profile: estimator.profile()?,
                in_order_end: response.in_order_end(),
                received: response.read_end + response.buffered(),
                is_full: DataSize::from_bytes(response.buffered()) + FULL_MARGIN >= window,
                forecast,
            };
            self.gate.borrow_mut().poll_decision(now, &video)?
        };
        if matches!(decision, StartDecision::Start(_)) {
            self.release_startup(now);
        }
        Some(decision)
    }

    /// Opens the gate and informs the model of the player.
    pub(crate) fn release_startup(&self, now: Instant) {
        self.open_gate();
        self.estimator.borrow_mut().set_held(now, false);
    }

    /// Opens the gate for a body that is no film.
    pub(crate) fn open_gate(&self) {
        self.gate.borrow_mut().release();
        self.wake_waiting();
    }

    /// Registers a task that is woken when more bytes may be delivered.
    pub(crate) fn register_waker(&self, cx: &Context<'_>) {
        let mut waiting = self.wakers.borrow_mut();
        if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
            waiting.push(cx.waker().clone());
        }
    }

    /// Wakes the tasks that wait for the gate.
    pub(crate) fn wake_waiting(&self) {
        self.wakers.borrow_mut().drain(..).for_each(Waker::wake);
    }
}

/// A window with less free capacity counts as full: no further range may fit.
const FULL_MARGIN: DataSize = DataSize::from_kib(256);
