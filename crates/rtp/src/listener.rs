//! A player's stream over two links: between a player on this machine and an unmodified server of RTSP.
//!
//! In: two links, a server, perhaps the address of the stream's base layer. Out: a place on the loopback where the player
//! finds the stream under the same path.
//!
//! ```text
//! player ══loopback══ session ──requests──▶ first link (and second, what may be said twice) ──▶ server
//!                     track   ◀──media───── first link;  ──reports──▶ second link
//!                     mirror  ◀──base────── second link, a session of its own
//! ```
//!
//! 1. `proto` says what goes where; this crate has the sockets.
//! 2. A socket is bound to its link's device. No privilege is needed, and nothing of this machine is changed.
//! 3. Nothing listens beyond the loopback; what comes from others than the server or this machine is not read.
//! 4. A second link that fails, or a base layer that is not offered, is said once, and the stream goes on without.

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

/// What is wanted.
#[derive(Clone, Debug)]
pub struct StreamOptions {
    /// Where the player finds it.
    pub listen: SocketAddr,
    /// The first link's device.
    pub primary: String,
    /// The second link's.
    pub secondary: String,
    /// The stream; the player may ask for others of the same server.
    pub url: RtspUrl,
    /// Its base layer, or something else that is a part of it byte by byte.
    pub base_layer: Option<RtspUrl>,
    /// For how long what is behind a hole waits for the base layer.
    pub reorder_wait: Duration,
}

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RtpStats {
    /// Players.
    pub sessions: u64,
    /// Requests of theirs.
    pub requests: u64,
    /// Of these, made over both links.
    pub duplicated: u64,
    /// Of these, answered over the second link first.
    pub answered_by_secondary: u64,
    /// Reports of players, by RTCP.
    pub reports: u64,
    /// Of these, such that only the second link carried.
    pub offloaded: u64,
    /// Feedback by RTCP, sent over both links.
    pub feedback: u64,
    /// Packets of media that the first link has brought.
    pub media: u64,
    /// Packets of the base layer that the second link has brought.
    pub base_media: u64,
    /// Of these, such that only the second link has brought and that went to the player.
    pub filled: u64,
    /// Numbers that no link has brought.
    pub lost: u64,
    /// Pictures of H.264 that went to the player, and on which others depend.
    pub base_pictures: u64,
    /// Pictures on which none depends.
    pub enhancement_pictures: u64,
    /// How it stood with the base layer at the end: `off`, `silent`, `looking`, `aligned` or `unrelated`.
    pub base_layer: &'static str,
}

/// What all tasks of a run share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) stream: StreamOptions,
    pub(crate) server: SocketAddr,
    pub(crate) base_layer: Option<SocketAddr>,
    pub(crate) stats: RefCell<RtpStats>,
    /// Told when all players are to be signed off.
    pub(crate) shutdown: watch::Sender<bool>,
    warn: fn(&str),
}

impl Shared {
    /// A line for people.
    pub(crate) fn warn(&self, line: &str) {
        (self.warn)(line);
    }

    pub(crate) fn count(&self, add: impl FnOnce(&mut RtpStats)) {
        add(&mut self.stats.borrow_mut());
    }

    /// A track has done this since it last said so.
    pub(crate) fn add_track_counts(&self, old: MergeCounts, new: MergeCounts, alignment: Option<AlignmentState>) {
        self.count(|stats| {
            stats.media += new.primary - old.primary;
            stats.base_media += new.base_layer - old.base_layer;
            stats.base_pictures += new.base_pictures - old.base_pictures;
            stats.enhancement_pictures += new.enhancement_pictures - old.enhancement_pictures;
            // These two may go down again: what came late is not lost.
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

/// A stream that waits for players.
#[derive(Debug)]
pub struct RtspListener {
    listener: TcpListener,
    shared: Rc<Shared>,
}

impl RtspListener {
    /// Finds the server and listens. `say` is given a line for people whenever something is not as it should be.
    ///
    /// # Errors
    /// A device or a server is not there; the place is not on the loopback, or taken.
    pub async fn open(stream: StreamOptions, warn: fn(&str)) -> Result<Self, RtpError> {
        if !stream.listen.ip().is_loopback() {
            let listen = stream.listen;
            return Err(RtpError::Usage(format!("--listen {listen}: it is not on the loopback (127.0.0.1:8554)")));
        }
        if stream.primary == stream.secondary {
            let name = &stream.primary;
            return Err(RtpError::Usage(format!("link {name}: it is named twice; a link cannot help itself")));
        }
        for name in [&stream.primary, &stream.secondary] {
            sockets::check_link(name).map_err(|error| match error.kind() {
                io::ErrorKind::PermissionDenied => RtpError::Link(format!(
                    "link {name}: binding to it is not permitted (needs Linux 5.7 or CAP_NET_RAW)"
                )),
                _ => {
                    RtpError::Link(format!("link {name}: no such interface; `marline links` lists those there are"))
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
            .map_err(|error| RtpError::Listen(format!("--listen {listen}: {error}; name another place")))?;
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

    /// What the player is to open.
    pub fn url(&self) -> String {
        let at = self.listener.local_addr().unwrap_or(self.shared.stream.listen);
        format!("rtsp://{at}{}", self.shared.stream.url.path)
    }

    /// What was done so far.
    pub fn stats(&self) -> RtpStats {
        *self.shared.stats.borrow()
    }

    /// Signs all players off at the server, for a second at most, so that nothing is sent to nobody.
    pub async fn close(&self) {
        self.shared.shutdown.send_replace(true);
        for _ in 0..CLOSE_POLLS {
            if Rc::strong_count(&self.shared) == 1 {
                return;
            }
            tokio::time::sleep(CLOSE_POLL).await;
        }
    }

    /// Serves players, on a local set of tasks, until it is dropped.
    pub async fn run(&self) {
        loop {
            match self.listener.accept().await {
                Ok((player, from)) if from.ip().is_loopback() && Rc::strong_count(&self.shared) <= MAX_TASKS => {
                    tokio::task::spawn_local(session::run(Rc::clone(&self.shared), player));
                }
                Ok(_) => self.shared.warn("a player was turned away: there are enough"),
                Err(error) => {
                    self.shared.warn(&format!("players cannot be heard: {error}"));
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            }
        }
    }
}

const CLOSE_POLL: Duration = Duration::from_millis(20);
/// chosen: a second in all, which covers the round trips of most links; servers forget what was not ended.
const CLOSE_POLLS: u32 = 50;
/// Tasks that share a run: each player has one, and each of its tracks. chosen: nobody looks at more on one machine.
const MAX_TASKS: usize = 32;
