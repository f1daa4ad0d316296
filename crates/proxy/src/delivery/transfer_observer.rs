//! Connects the transfer of a response with its player: passes playback state to the stream, and the stream's decisions
//! to the delivery.
//!
//! The observer of each transfer updates the status, publishes events, and accounts received bytes for each
//! link (energy, traffic, rates).
//!
//! If one resource has several responses, the newest represents the player: a player opens a new one where it continues
//! to read.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use marline_core::energy::Model;
use marline_core::link::LinkId;
use marline_core::proxy::StartDecision;
use marline_core::stream::{InitialEstimate, LinkMode, ModeReason, PlayerInput, Stream, StreamEvent};
use marline_core::units::DataSize;
use marline_download::{DownloadObserver, Progress, StreamObserver};
use serde_json::json;

use super::Delivery;
use super::energy::EnergyMeter;
use super::events::Events;
use crate::player::track_playback::{PlaylistSegment, TrackSegment};
use crate::upstream::links::UpstreamLinks;

/// Where all transfers of a proxy account what they receive, and publish their events.
#[derive(Clone)]
pub(crate) struct Accounting {
    links: Rc<UpstreamLinks>,
    pub(crate) energy_meter: Rc<RefCell<EnergyMeter>>,
    pub(crate) events: Rc<Events>,
}

impl Accounting {
    pub(crate) fn new(links: Rc<UpstreamLinks>, energy_model: Option<Model>) -> Self {
        Self { links, energy_meter: Rc::new(RefCell::new(EnergyMeter::new(energy_model))), events: Rc::default() }
    }
}

/// Observes one transfer.
pub(crate) struct TransferObserver {
    /// Number of the session, for events.
    session_id: u64,
    /// Number of the response.
    id: u64,
    /// The segment that is transferred, if it belongs to a playlist's playback.
    segment: Option<PlaylistSegment>,
    /// Links with an outstanding request of this transfer.
    busy_links: BTreeSet<String>,
    /// How many bytes may be buffered for the player.
    window: DataSize,
    delivery: Rc<Delivery>,
    accounting: Accounting,
    /// Bytes of each link that are already accounted.
    counted_bytes: BTreeMap<String, u64>,
    /// Shared with the response: every link has failed, and none is expected back soon.
    all_links_down: Rc<Cell<bool>>,
}

impl TransferObserver {
    pub(crate) fn new(
        (session_id, id): (u64, u64),
        segment: Option<PlaylistSegment>,
        delivery: &Rc<Delivery>,
        window: DataSize,
        all_links_down: &Rc<Cell<bool>>,
        accounting: Accounting,
    ) -> Self {
        Self {
            session_id,
            id,
            segment,
            busy_links: BTreeSet::new(),
            window,
            delivery: Rc::clone(delivery),
            accounting,
            counted_bytes: BTreeMap::new(),
            all_links_down: Rc::clone(all_links_down),
        }
    }

    /// Evaluates whether the player must wait longer for its first picture, and publishes changes.
    fn update_startup_gate(&self, stream: &Stream) {
        let Some(decision) = self.delivery.startup_decision(self.id, stream.rate_forecast(), self.window) else {
            return;
        };
        let is_new = match decision {
            StartDecision::Wait { waited, .. } if waited < MIN_REPORTED_WAIT => return,
            StartDecision::Wait { .. } => {
                self.delivery.decisions.borrow_mut().startup_wait.replace(decision.clone()).is_none()
            }
            StartDecision::Start(_) if self.delivery.decisions.borrow_mut().startup_wait.take().is_none() => return,
            StartDecision::Start(_) => true,
        };
        let text = decision.to_string();
        if is_new {
            self.accounting
                .events
                .publish(&json!({"event": "startup_wait", "session": self.session_id, "text": text}));
        }
        self.delivery.set_status(&text);
    }

    /// Samples how much of a segment is buffered. Returns the offset at which the response begins.
    fn sample_segment(&self, segment: &TrackSegment) -> Option<u64> {
        let buffer = self.delivery.responses.buffer(self.id)?;
        let total = self.delivery.total.get().map(DataSize::bytes);
        segment.on_buffered(&buffer.range, total, (buffer.read_end, buffer.in_order));
        Some(buffer.range.start)
    }

    /// Wakes a response that the startup gate delays: all data has arrived, or no more will.
    pub(crate) fn on_transfer_ended(&self) {
        if let Some((_, segment)) = &self.segment {
            self.sample_segment(segment);
        }
        self.delivery.film.wake_waiting();
    }
}

impl Drop for TransferObserver {
    fn drop(&mut self) {
        if let Some((playback, _)) = &self.segment {
            playback.rates.borrow_mut().on_stream_ended(self.id);
        }
    }
}

impl DownloadObserver for TransferObserver {
    fn on_progress(&mut self, progress: &Progress) {
        let mut link_selector = self.accounting.links.selector.borrow_mut();
        let (mut energy_meter, now) = (self.accounting.energy_meter.borrow_mut(), self.delivery.now());
        for link in &progress.links {
            let reported = self.counted_bytes.entry(link.name.clone()).or_default();
            let new_bytes = link.bytes.saturating_sub(std::mem::replace(reported, link.bytes));
            energy_meter.on_received(now, &link.name, link.kind, new_bytes);
            self.accounting.links.network.traffic.add_received(&link.name, new_bytes);
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
        self.delivery.responses.set_progress(progress);
    }

    fn on_message(&mut self, text: &str) {
        self.delivery.set_status(text);
        self.accounting.events.publish(&json!({"event": "notice", "session": self.session_id, "text": text}));
    }
}

impl StreamObserver for TransferObserver {
    fn player_input(&mut self, stream: &Stream) -> Option<PlayerInput> {
        if let Some((playback, segment)) = &self.segment {
            let start = self.sample_segment(segment)?;
            return playback.update_for_stream(
                segment,
                self.delivery.now(),
                start,
                self.delivery.total.get().map(DataSize::bytes),
                stream,
            );
        }
        self.update_startup_gate(stream);
        if !self.delivery.sample_player(Some(self.id)) {
            return None;
        }
        self.delivery.film.update_for_stream(stream)
    }

    fn on_busy_links(&mut self, links: &[LinkId], name: &dyn Fn(LinkId) -> String) {
        self.busy_links = links.iter().map(|link| name(*link)).collect();
    }

    fn on_estimates(&mut self, estimates: &[InitialEstimate], name: &dyn Fn(LinkId) -> String) {
        if !estimates.is_empty() {
            let link_estimates =
                estimates.iter().map(|estimate| (name(estimate.link), estimate.rate, estimate.is_standby));
            *self.delivery.link_estimates.borrow_mut() = link_estimates.collect();
        }
    }

    fn on_stream_event(&mut self, event: &StreamEvent, name: &dyn Fn(LinkId) -> String) {
        let mut decisions = self.delivery.decisions.borrow_mut();
        let id = self.session_id;
        match *event {
            StreamEvent::Standby { link, standby: is_standby, reason } => {
                let (name, reason_text) = (name(link), mode_reason_text(reason));
                decisions.standby_links.retain(|other| *other != name);
                if let Some((playback, _)) = &self.segment {
                    playback.rates.borrow_mut().set_standby(&name, is_standby);
                }
                self.accounting.events.publish(
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
                self.accounting
                    .events
                    .publish(&json!({"event": "mode", "session": id, "only": only_link, "reason": reason_text}));
                let links = self.delivery.responses.progress().map(|progress| progress.links).unwrap_or_default();
                let all_links = links.into_iter().map(|link| link.name);
                decisions.standby_links =
                    all_links.filter(|link| only_link.as_ref().is_some_and(|only| only != link)).collect();
                decisions.last_reason = Some(reason_text);
            }
            StreamEvent::Recovered { link } => {
                decisions.recoveries += 1;
                self.accounting.events.publish(&json!({"event": "recovered", "session": id, "link": name(link)}));
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

/// Shorter startup delays are not reported.
const MIN_REPORTED_WAIT: Duration = Duration::from_secs(1);
