//! Delivery of one resource to its player: what response bodies, transfers and the status share.
//!
//! A session owns it. Bodies ([`StreamBody`](self::stream_body::StreamBody)) and transfers
//! ([`TransferObserver`](self::transfer_observer::TransferObserver)) hold a reference and know nothing of sessions.
//!
//! [`active_responses`] records what each response has buffered, [`film_playback`] models the player of a single
//! file, [`energy`] sums up the radio energy of all transfers, and [`events`] sends events to the status port.

pub(crate) mod active_responses;
pub(crate) mod energy;
pub(crate) mod events;
pub(crate) mod film_playback;
pub(crate) mod stream_body;
pub(crate) mod transfer_observer;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use marline_core::proxy::{PlayerStatus, StartDecision, StartMode};
use marline_core::stream::RateForecast;
use marline_core::units::{Bitrate, DataSize, Instant};

use self::active_responses::ActiveResponses;
use self::film_playback::FilmPlayback;
use crate::clock::Clock;

/// State of the delivery; see the [module documentation](self).
pub(crate) struct Delivery {
    clock: Clock,
    /// The size of the resource, if its ranges provably belong together.
    pub(crate) total: Cell<Option<DataSize>>,
    /// The largest window (buffer memory) of one response: smaller for one of several segments than for a whole film,
    /// for which it is `DataSize::MAX`.
    pub(crate) max_window: Cell<DataSize>,
    pub(crate) responses: Rc<ActiveResponses>,
    pub(crate) film: Rc<FilmPlayback>,
    pub(crate) decisions: RefCell<StreamDecisions>,
    /// What the last response learnt about the links: interface, rate, whether it was on standby.
    pub(crate) link_estimates: RefCell<Vec<(String, Bitrate, bool)>>,
    /// The outcome of the last request or probe, or the last message of a transfer, for the status.
    status_text: RefCell<String>,
}

/// Decisions of the stream that serves the current response.
#[derive(Clone, Debug, Default)]
pub(crate) struct StreamDecisions {
    pub(crate) standby_links: Vec<String>,
    /// The reason of the last change.
    pub(crate) last_reason: Option<&'static str>,
    /// How often ranges of a link that lagged behind were requested over other links instead.
    pub(crate) recoveries: u32,
    /// Set while the start of playback is being delayed.
    pub(crate) startup_wait: Option<StartDecision>,
}

impl Delivery {
    pub(crate) fn new(clock: Clock, start: StartMode) -> Self {
        Self {
            clock,
            total: Cell::new(None),
            max_window: Cell::new(DataSize::MAX),
            responses: Rc::default(),
            film: Rc::new(FilmPlayback::new(start)),
            decisions: RefCell::default(),
            link_estimates: RefCell::default(),
            status_text: RefCell::default(),
        }
    }

    /// Time since the proxy started.
    pub(crate) fn now(&self) -> Instant {
        self.clock.now()
    }

    pub(crate) fn set_status(&self, text: &str) {
        text.clone_into(&mut self.status_text.borrow_mut());
    }

    pub(crate) fn status_text(&self) -> String {
        self.status_text.borrow().clone()
    }

    /// Accounts bytes that the player reads.
    pub(crate) fn on_bytes_read(&self, offset: u64, bytes: &[u8]) {
        self.film.on_bytes_read(self.now(), offset, bytes);
    }

    /// Forgets a response that has ended, with a window of this size. `is_complete`: the player has read all of it.
    pub(crate) fn on_response_ended(&self, id: u64, window: DataSize, is_complete: bool) {
        if self.responses.remove(id, window, is_complete) {
            self.film.on_last_response_ended(self.now());
        }
    }

    /// How many of `len` bytes at `offset` may go to the player now, in a response that began at `from`.
    pub(crate) fn deliverable_bytes(&self, from: u64, offset: u64, len: u64) -> u64 {
        if self.is_segment() {
            return len;
        }
        self.film.deliverable_bytes(self.now(), (from, offset), len, self.total.get())
    }

    /// Decides whether a response must wait longer, with a window of this size; `None`: it is not held.
    pub(crate) fn startup_decision(
        &self,
        id: u64,
        forecast: Option<RateForecast>,
        window: DataSize,
    ) -> Option<StartDecision> {
        self.film.startup_decision(self.now(), &self.responses.buffer(id)?, forecast, window)
    }

    /// Opens the startup gate.
    pub(crate) fn release_startup(&self) {
        self.film.release_startup(self.now());
    }

    /// The link estimates with which a response at an offset begins. After a seek no link starts on standby.
    pub(crate) fn estimates_at(&self, from: u64) -> Vec<(String, Bitrate, bool)> {
        let mut expected = self.link_estimates.borrow().clone();
        if !self.film.is_continuing_at(from) {
            expected.iter_mut().for_each(|(.., is_standby)| *is_standby = false);
        }
        expected
    }

    /// What is known of the player and of the video that it plays.
    pub(crate) fn player_status(&self) -> Option<PlayerStatus> {
        self.sample_player(None);
        self.film.status()
    }

    /// Updates the model of the player from the newest response. With `only_id`, does so only if that response is the
    /// newest. Returns whether it did.
    pub(crate) fn sample_player(&self, only_id: Option<u64>) -> bool {
        if self.is_segment() {
            return false;
        }
        let Some((id, newest)) = self.responses.newest() else { return false };
        if only_id.is_some_and(|only_id| only_id != id) {
            return false;
        }
        self.film.update(self.now(), &newest, self.total.get());
        true
    }

    /// Whether the resource is one of several segments: it is no video of its own, and does not show how much the player
    /// has of the others.
    fn is_segment(&self) -> bool {
        self.max_window.get() != DataSize::MAX
    }
}
