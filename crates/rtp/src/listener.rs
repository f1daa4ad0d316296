//! Listener for players: offers the streams of one RTSP server on the loopback, over two links.
//!
//! ```text
//! player ══loopback══ session ──requests──▶ primary link (repeatable ones over the secondary link too) ──▶ server
//!                     track   ◀──media───── primary link;   ──RTCP reports──▶ secondary link
//!                     base_layer_session ◀─ secondary link, an RTSP session of its own
//! ```
//!
//! - Sockets are bound to the device of their link. That needs no privilege, and the host configuration stays as it is.
//! - Only the loopback is listened on, and datagrams from other hosts than the server are ignored.
//! - A secondary link that fails, or a base layer that the server does not offer, is reported once; the stream continues without it.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use serde::Serialize;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::error::RtpError;
use crate::proto::{AlignmentState, MergeCounts};
use crate::rtsp_url::RtspUrl;
use crate::{session, sockets};

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
    /// State of the base layer at the end: `off`, `no_data`, `searching`, `aligned` or `unrelated`.
    pub base_layer: &'static str,
}

/// State that all tasks of a run share. Each task holds a reference, so that their number is known.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) stream: StreamOptions,
    pub(crate) server: SocketAddr,
    pub(crate) base_layer: Option<SocketAddr>,
    pub(crate) stats: RefCell<RtpStats>,
    /// Becomes true when all sessions must end.
    pub(crate) shutdown: watch::Sender<bool>,
    warn: fn(&str),
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

/// Listener of one run.
#[derive(Debug)]
pub struct RtspListener {
    listener: TcpListener,
    shared: Rc<Shared>,
}

impl RtspListener {
    /// Resolves the server and listens. `warn` receives one line for the user for each problem.
    ///
    /// # Errors
    /// If an interface or the server does not exist, or the listening address is not on the loopback or in use.
    pub async fn open(stream: StreamOptions, warn: fn(&str)) -> Result<Self, RtpError> {
        if !stream.listen.ip().is_loopback() {
            let listen = stream.listen;
            return Err(RtpError::Usage(format!(
                "--listen {listen}: not a loopback address; use one such as 127.0.0.1:8554"
            )));
        }
        if stream.primary == stream.secondary {
            let name = &stream.primary;
            return Err(RtpError::Usage(format!(
                "link {name}: given as primary and as secondary link; name two different links"
            )));
        }
        for name in [&stream.primary, &stream.secondary] {
            sockets::check_link(name).map_err(|error| match error.kind() {
                io::ErrorKind::PermissionDenied => RtpError::Link(format!(
                    "link {name}: binding to it is not permitted (needs Linux 5.7 or CAP_NET_RAW)"
                )),
                _ => {
                    RtpError::Link(format!("link {name}: no such interface; `marline links` lists the interfaces"))
                }
            })?;
        }
        let server = stream.url.resolve().await?;
        let base_layer = match &stream.base_layer {
            Some(base) => Some(base.resolve().await?),
            None => None,
        };
        let listen = stream.listen;
        let listener = TcpListener::bind(listen)
            .await
            .map_err(|error| RtpError::Listen(format!("--listen {listen}: {error}; choose another address")))?;
        let stats =
            RtpStats { base_layer: if base_layer.is_some() { "no_data" } else { "off" }, ..RtpStats::default() };
        Ok(Self {
            listener,
            shared: Rc::new(Shared {
                stream,
                server,
                base_layer,
                stats: RefCell::new(stats),
                shutdown: watch::channel(false).0,
                warn,
            }),
        })
    }

    /// URL for the player to open.
    pub fn url(&self) -> String {
        let at = self.listener.local_addr().unwrap_or(self.shared.stream.listen);
        format!("rtsp://{at}{}", self.shared.stream.url.path)
    }

    /// Counters so far.
    pub fn stats(&self) -> RtpStats {
        *self.shared.stats.borrow()
    }

    /// Ends all sessions at the server, so that it stops sending. Waits for one second at most.
    pub async fn close(&self) {
        self.shared.shutdown.send_replace(true);
        for _ in 0..CLOSE_POLLS {
            if Rc::strong_count(&self.shared) == 1 {
                return;
            }
            tokio::time::sleep(CLOSE_POLL).await;
        }
    }

    /// Accepts players on the current `LocalSet` until the future is dropped.
    pub async fn run(&self) {
        loop {
            match self.listener.accept().await {
                Ok((player, from)) if from.ip().is_loopback() && Rc::strong_count(&self.shared) <= MAX_TASKS => {
                    tokio::task::spawn_local(session::run(Rc::clone(&self.shared), player));
                }
                Ok(_) => self.shared.warn("a player was refused: too many sessions are open"),
                Err(error) => {
                    self.shared.warn(&format!("cannot accept players: {error}"));
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            }
        }
    }
}

/// Interval at which [`RtspListener::close`] looks for tasks that still run.
const CLOSE_POLL: Duration = Duration::from_millis(20);
/// One second in total: more than the RTT of most links. Servers time out sessions that were not ended.
const CLOSE_POLLS: u32 = 50;
/// Limit of tasks: one for each player and each of its tracks. More than one host plays at a time.
const MAX_TASKS: usize = 32;
