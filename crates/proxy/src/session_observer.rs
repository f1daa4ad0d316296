//! Connects the transfer of a response with its player: passes playback state to the stream, and the stream's decisions
//! to the session.
//!
//! The observer of each transfer updates the session's status, publishes events, and accounts received bytes for each
//! link (energy, traffic, rates).
//!
//! If one session has several responses, the newest represents the player: a player opens a new one where it continues
//! to read.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use marline_core::link::LinkId;
use marline_core::stream::{InitialEstimate, LinkMode, ModeReason, PlayerInput, Stream, StreamEvent};
use marline_core::units::{DataSize, Instant};
use marline_download::{ClientContext, DownloadObserver, Progress, StreamObserver};
use serde_json::json;

use super::energy::EnergyMeter;
use super::events::Events;
use super::ffprobe;
use super::link_selector::LinkSelector;
use super::player_estimator::PlayerStatus;
use super::session::{PlaylistSegment, Session, Sessions};
use super::startup_gate::StartDecision;
use super::track_playback::TrackSegment;

/// Decisions of the stream that serves the current response.
#[derive(Clone, Debug, Default)]
pub(super) struct StreamDecisions {
    /// Links on standby.
    pub(super) standby_links: Vec<String>,
    /// The reason of the last change.
    pub(super) last_reason: Option<&'static str>,
    /// How often a lagging link was relieved of its ranges.
    pub(super) recoveries: u32,
    /// Set while the start of playback is being delayed.
    pub(super) startup_wait: Option<StartDecision>,
}

/// Shorter startup delays are not reported.
const MIN_REPORTED_WAIT: Duration = Duration::from_secs(1);

/// Observes one transfer of a session.
pub(super) struct SessionObserver {
    id: u64,
    /// The segment that is transferred, if it belongs to a playlist's playback.
    segment: Option<PlaylistSegment>,
    /// Links with an outstanding request of this transfer.
    busy_links: BTreeSet<String>,
    /// How many bytes may be buffered for the player.
    window: DataSize,
    session: Rc<Session>,
    energy_meter: Rc<RefCell<EnergyMeter>>,
    network: Rc<ClientContext>,
    /// Bytes of each link that are already accounted.
    counted_bytes: BTreeMap<String, u64>,
    /// Shared with the response: every link has failed, and none is expected back soon.
    all_links_down: Rc<Cell<bool>>,
    events: Rc<Events>,
    link_selector: Rc<RefCell<LinkSelector>>,
}

impl SessionObserver {
    pub(super) fn new(
        id: u64,
        from: u64,
        sessions: &Sessions,
        session: &Rc<Session>,
        window: DataSize,
        all_links_down: Rc<Cell<bool>>,
    ) -> Self {
        Self {
            id,
            segment: session.segment_at(from),
            busy_links: BTreeSet::new(),
            window,
            session: Rc::clone(session),
            energy_meter: Rc::clone(&sessions.energy_meter),
            network: Rc::clone(&sessions.network),
            counted_bytes: BTreeMap::new(),
            all_links_down,
            events: Rc::clone(&sessions.events),
            link_selector: Rc::clone(&sessions.link_selector),
        }
    }
}

impl SessionObserver {
    /// Evaluates whether the player must wait longer for its first picture, and publishes changes.
    fn update_startup_gate(&self, stream: &Stream) {
        let Some(decision) = self.session.startup_decision(self.id, stream.rate_forecast(), self.window) else {
            return;
        };
        let is_new = match decision {
            StartDecision::Wait { waited, .. } if waited < MIN_REPORTED_WAIT => return,
            StartDecision::Wait { .. } => {
                self.session.decisions.borrow_mut().startup_wait.replace(decision.clone()).is_none()
            }
            StartDecision::Start(_) if self.session.decisions.borrow_mut().startup_wait.take().is_none() => return,
            StartDecision::Start(_) => true,
        };
        let text = decision.to_string();
        if is_new {
            self.events.publish(&json!({"event": "startup_wait", "session": self.session.id, "text": text}));
        }
        self.session.set_status(&text);
    }

    /// Samples how much of a segment is buffered. Returns the offset at which the response begins.
    fn sample_segment(&self, segment: &TrackSegment) -> Option<u64> {
        let responses = self.session.active_responses.borrow();
        let (range, reader) = responses.get(&self.id)?;
        let (read_end, in_order, _) = reader.upgrade()?.buffered();
        segment.on_buffered(range, self.session.total().map(DataSize::bytes), (read_end, in_order));
        Some(range.start)
    }

    /// Wakes a delayed response: all data has arrived, or no more will.
    pub(super) fn on_transfer_ended(&self) {
        if let Some((_, segment)) = &self.segment {
            self.sample_segment(segment);
        }
        self.session.startup_gate.wake_all();
    }
}

impl Drop for SessionObserver {
    fn drop(&mut self) {
        if let Some((playback, _)) = &self.segment {
            playback.rates.borrow_mut().on_stream_ended(self.id);
        }
    }
}

impl DownloadObserver for SessionObserver {
    fn on_progress(&mut self, progress: &Progress) {
        let mut link_selector = self.link_selector.borrow_mut();
        let (mut energy_meter, now) = (self.energy_meter.borrow_mut(), self.session.now());
        for link in &progress.links {
            let counted = self.counted_bytes.entry(link.name.clone()).or_default();
            let new_bytes = link.bytes.saturating_sub(std::mem::replace(counted, link.bytes));
            energy_meter.on_received(now, &link.name, link.kind, new_bytes);
            self.network.traffic.add_received(&link.name, new_bytes);
            if let Some((playback, _)) = &self.segment {
                let is_busy = self.busy_links.contains(&link.name);
                playback.rates.borrow_mut().on_transfer(now, self.id, &link.name, new_bytes, is_busy);
            }
            link_selector.on_transfer(
                &link.name,
                DataSize::from_bytes((link.rate / 8.0) as u64),
                Duration::from_secs(1),
            );
        }
        let is_unusable = |state: &str| state.starts_with("banned") || state == "down";
        self.all_links_down
            .set(!progress.links.is_empty() && progress.links.iter().all(|link| is_unusable(&link.state)));
        if self.session.active_count() > 0 {
            *self.session.progress.borrow_mut() = Some(progress.clone());
        }
    }

    fn on_message(&mut self, text: &str) {
        self.session.set_status(text);
        self.events.publish(&json!({"event": "notice", "session": self.session.id, "text": text}));
    }
}

impl StreamObserver for SessionObserver {
    fn player_input(&mut self, stream: &Stream) -> Option<PlayerInput> {
        if let Some((playback, segment)) = &self.segment {
            let start = self.sample_segment(segment)?;
            return playback.update_for_stream(
                segment,
                self.session.now(),
                start,
                self.session.total().map(DataSize::bytes),
                stream,
            );
        }
        self.update_startup_gate(stream);
        if !self.session.sample_player(Some(self.id)) {
            return None;
        }
        self.session.player_estimator.borrow().update_for_stream(stream.player())
    }

    fn on_busy_links(&mut self, links: &[LinkId], name: &dyn Fn(LinkId) -> String) {
        self.busy_links = links.iter().map(|link| name(*link)).collect();
    }

    fn on_estimates(&mut self, estimates: &[InitialEstimate], name: &dyn Fn(LinkId) -> String) {
        if !estimates.is_empty() {
            let link_estimates =
                estimates.iter().map(|estimate| (name(estimate.link), estimate.rate, estimate.is_standby));
            *self.session.link_estimates.borrow_mut() = link_estimates.collect();
        }
    }

    fn on_stream_event(&mut self, event: &StreamEvent, name: &dyn Fn(LinkId) -> String) {
        let mut decisions = self.session.decisions.borrow_mut();
        let id = self.session.id;
        match *event {
            StreamEvent::Standby { link, standby: is_standby, reason } => {
                let (name, reason_text) = (name(link), mode_reason_text(reason));
                decisions.standby_links.retain(|other| *other != name);
                if let Some((playback, _)) = &self.segment {
                    playback.rates.borrow_mut().set_standby(&name, is_standby);
                }
                self.events.publish(
                    &json!({"event": "standby", "session": id, "link": name, "standby": is_standby, "reason": reason_text}),
                );
                if is_standby {
                    decisions.standby_links.push(name);
                }
                decisions.last_reason = Some(reason_text);
            }
            StreamEvent::Mode { mode, reason } => {
                let (only_link, reason_text) = (
                    if let LinkMode::Only(link) = mode { Some(name(link)) } else { None },
                    mode_reason_text(reason),
                );
                self.events
                    .publish(&json!({"event": "mode", "session": id, "only": only_link, "reason": reason_text}));
                let links = self.session.progress.borrow();
                let all_links = links.iter().flat_map(|progress| &progress.links).map(|link| link.name.clone());
                decisions.standby_links =
                    all_links.filter(|link| only_link.as_ref().is_some_and(|only| only != link)).collect();
                decisions.last_reason = Some(reason_text);
            }
            StreamEvent::Recovered { link } => {
                decisions.recoveries += 1;
                self.events.publish(&json!({"event": "recovered", "session": id, "link": name(link)}));
            }
            StreamEvent::Deliver { .. } => {}
        }
    }
}

fn mode_reason_text(reason: ModeReason) -> &'static str {
    match reason {
        ModeReason::Buffering => "the player is buffering",
        ModeReason::SingleLinkTooSlow => "no single link would deliver in time",
        ModeReason::Cheapest => "the other links suffice at lower cost",
        ModeReason::BufferLow => "the buffer is running low",
        ModeReason::LinkLost => "the only link in use has failed",
    }
}

impl Session {
    /// Accounts bytes that the player reads, and probes the head of a video whose container is not recognized.
    pub(super) fn on_bytes_read(self: &Rc<Self>, at: u64, bytes: &[u8]) {
        let mut estimator = self.player_estimator.borrow_mut();
        estimator.on_bytes_read(self.now(), at, bytes);
        let Some(head) = estimator.take_unknown_head() else { return };
        let session = Rc::downgrade(self);
        tokio::task::spawn_local(async move {
            let Some(video) = ffprobe::probe(head).await else { return };
            if let Some(session) = session.upgrade() {
                session.player_estimator.borrow_mut().set_video(video, "ffprobe");
            }
        });
    }

    /// Whether bytes from this offset on continue the current playback, so that links may stay on standby.
    pub(super) fn is_continuing_at(&self, from: u64) -> bool {
        self.player_estimator.borrow().is_continuing_at(from)
    }

    /// What is known of the player and of the video that it plays.
    pub(super) fn player_status(&self) -> Option<PlayerStatus> {
        self.sample_player(None);
        self.player_estimator.borrow().status()
    }

    /// Updates the player estimator from the newest response. With `only_id`, does so only if that response is the
    /// newest. Returns whether it did.
    fn sample_player(&self, only_id: Option<u64>) -> bool {
        // A session that is one of several segments does not show how much the player has of the others.
        if self.max_window.get() != DataSize::MAX {
            return false;
        }
        let newest =
            self.active_responses.borrow().last_key_value().map(|(id, (_, reader))| (*id, reader.upgrade()));
        let Some((id, Some(reader))) = newest else { return false };
        if only_id.is_some_and(|of| of != id) {
            return false;
        }
        let (read_end, in_order, _) = reader.buffered();
        self.player_estimator.borrow_mut().update(self.now(), read_end, read_end + in_order, self.total());
        true
    }

    /// Time since the proxy started.
    pub(super) fn now(&self) -> Instant {
        Instant::ZERO + self.proxy_start.elapsed()
    }
}
