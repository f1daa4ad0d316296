//! Options and counters of one run, and the state that its tasks share.
//!
//! This is a module of its own, since the listener starts sessions, and sessions and tracks count here.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::time::Duration;

use serde::Serialize;
use tokio::sync::watch;

use crate::proto::{AlignmentState, MergeCounts};
use crate::rtsp_url::RtspUrl;

/// Options of one run.
#[derive(Clone, Debug)]
pub struct StreamOptions {
    /// Loopback address at which players find the stream.
    pub listen: SocketAddr,
    /// Interface of the link that carries the media.
    pub primary: String,
    /// Interface of the link that assists.
    pub secondary: String,
    /// The stream. Players may request other streams of the same server.
    pub url: RtspUrl,
    /// URL of the base layer, or of another stream whose payloads all occur in the main stream.
    pub base_layer: Option<RtspUrl>,
    /// How long packets behind a hole wait for the base layer.
    pub reorder_wait: Duration,
}

/// Counters of one run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RtpStats {
    /// Connections of players.
    pub sessions: u64,
    /// RTSP requests of players.
    pub requests: u64,
    /// Of these, sent over both links.
    pub duplicated: u64,
    /// Of these, answered first over the secondary link while the primary connection was up.
    pub answered_by_secondary: u64,
    /// RTCP reports of players.
    pub reports: u64,
    /// Of these, carried by the secondary link alone.
    pub offloaded: u64,
    /// RTCP feedback of players, sent over both links.
    pub feedback: u64,
    /// RTP packets from the primary link.
    pub media: u64,
    /// RTP packets of the base layer from the secondary link.
    pub base_media: u64,
    /// Of these, forwarded to the player because the primary link did not deliver them.
    pub filled: u64,
    /// Sequence numbers that neither link delivered.
    pub lost: u64,
    /// H.264 pictures forwarded to the player on which other pictures depend.
    pub base_pictures: u64,
    /// H.264 pictures forwarded to the player on which no other picture depends.
    pub enhancement_pictures: u64,
    /// Latest state of the base layer: `off`, `no_data`, `searching`, `aligned` or `unrelated`.
    pub base_layer: &'static str,
}

/// State that all tasks of a run share. Tasks hold references, so that the listener sees when all have ended.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) stream: StreamOptions,
    pub(crate) server: SocketAddr,
    pub(crate) base_layer: Option<SocketAddr>,
    pub(crate) stats: RefCell<RtpStats>,
    /// Becomes true when all sessions must end.
    pub(crate) shutdown: watch::Sender<bool>,
    pub(crate) warn: fn(&str),
}

impl Shared {
    /// Reports a problem to the user.
    pub(crate) fn warn(&self, line: &str) {
        (self.warn)(line);
    }

    pub(crate) fn count(&self, add: impl FnOnce(&mut RtpStats)) {
        add(&mut self.stats.borrow_mut());
    }

    /// Adds what a track has counted since its last report.
    pub(crate) fn add_track_counts(&self, old: MergeCounts, new: MergeCounts, alignment: Option<AlignmentState>) {
        self.count(|stats| {
            stats.media += new.primary - old.primary;
            stats.base_media += new.base_layer - old.base_layer;
            stats.base_pictures += new.base_pictures - old.base_pictures;
            stats.enhancement_pictures += new.enhancement_pictures - old.enhancement_pictures;
            // These two may fall: a packet that arrives late is not lost.
            stats.filled = stats.filled.saturating_add(new.filled).saturating_sub(old.filled);
            stats.lost = stats.lost.saturating_add(new.lost).saturating_sub(old.lost);
            if let Some(alignment) = alignment {
                stats.base_layer = match alignment {
                    AlignmentState::NoData => "no_data",
                    AlignmentState::Searching => "searching",
                    AlignmentState::Aligned => "aligned",
                    AlignmentState::Unrelated => "unrelated",
                };
            }
        });
    }
}
