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
use std::rc::Rc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::error::RtpError;
use crate::run_state::{RtpStats, Shared, StreamOptions};
use crate::{session, sockets};

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
    /// If an interface or the server does not exist, both links are the same, or the listening address is not on the loopback or in use.
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
/// While there are more references to [`Shared`] than this, players are refused. The listener holds one, a player two, and each track and
/// each base-layer session one. Enough for several players at once.
const MAX_TASKS: usize = 32;
