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
use crate::proto::{Counts, Mirroring};
use crate::rtsp_url::Address;
use crate::{session, sockets};

/// What is wanted.
#[derive(Clone, Debug)]
pub struct Stream {
    /// Where the player finds it.
    pub listen: SocketAddr,
    /// The first link's device.
    pub first: String,
    /// The second link's.
    pub second: String,
    /// The stream; the player may ask for others of the same server.
    pub address: Address,
    /// Its base layer, or something else that is a part of it byte by byte.
    pub base: Option<Address>,
    /// For how long what is behind a hole waits for the base layer.
    pub hold: Duration,
}

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Served {
    /// Players.
    pub sessions: u64,
    /// Requests of theirs.
    pub requests: u64,
    /// Of these, made over both links.
    pub doubled: u64,
    /// Of these, answered over the second link first.
    pub answered_by_second: u64,
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
    pub mirroring: &'static str,
}

/// What all tasks of a run share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) stream: Stream,
    pub(crate) server: SocketAddr,
    pub(crate) base: Option<SocketAddr>,
    pub(crate) served: RefCell<Served>,
    /// Told when all players are to be signed off.
    pub(crate) end: watch::Sender<bool>,
    say: fn(&str),
}

impl Shared {
    /// A line for people.
    pub(crate) fn say(&self, line: &str) {
        (self.say)(line);
    }

    pub(crate) fn count(&self, add: impl FnOnce(&mut Served)) {
        add(&mut self.served.borrow_mut());
    }

    /// A track has done this since it last said so.
    pub(crate) fn merged(&self, old: Counts, new: Counts, mirroring: Option<Mirroring>) {
        self.count(|served| {
            served.media += new.first - old.first;
            served.base_media += new.second - old.second;
            served.base_pictures += new.base - old.base;
            served.enhancement_pictures += new.enhancement - old.enhancement;
            // These two may go down again: what came late is not lost.
            served.filled = served.filled.saturating_add(new.filled).saturating_sub(old.filled);
            served.lost = served.lost.saturating_add(new.lost).saturating_sub(old.lost);
            if let Some(mirroring) = mirroring {
                served.mirroring = match mirroring {
                    Mirroring::Silent => "silent",
                    Mirroring::Looking => "looking",
                    Mirroring::Aligned => "aligned",
                    Mirroring::Unrelated => "unrelated",
                };
            }
        });
    }
}

/// A stream that waits for players.
#[derive(Debug)]
pub struct Front {
    ear: TcpListener,
    shared: Rc<Shared>,
}

impl Front {
    /// Finds the server and listens. `say` is given a line for people whenever something is not as it should be.
    ///
    /// # Errors
    /// A device or a server is not there; the place is not on the loopback, or taken.
    pub async fn open(stream: Stream, say: fn(&str)) -> Result<Self, RtpError> {
        if !stream.listen.ip().is_loopback() {
            let listen = stream.listen;
            return Err(RtpError::Wrong(format!("--listen {listen}: it is not on the loopback (127.0.0.1:8554)")));
        }
        if stream.first == stream.second {
            let name = &stream.first;
            return Err(RtpError::Wrong(format!("link {name}: it is named twice; a link cannot help itself")));
        }
        for name in [&stream.first, &stream.second] {
            sockets::try_out(name).map_err(|error| match error.kind() {
                io::ErrorKind::PermissionDenied => RtpError::Link(format!(
                    "link {name}: binding to it is not permitted (needs Linux 5.7 or CAP_NET_RAW)"
                )),
                _ => {
                    RtpError::Link(format!("link {name}: no such interface; `marline links` lists those there are"))
                }
            })?;
        }
        let server = stream.address.find().await?;
        let base = match &stream.base {
            Some(base) => Some(base.find().await?),
            None => None,
        };
        let listen = stream.listen;
        let ear = TcpListener::bind(listen)
            .await
            .map_err(|error| RtpError::Unfit(format!("--listen {listen}: {error}; name another place")))?;
        let served = Served { mirroring: if base.is_some() { "silent" } else { "off" }, ..Served::default() };
        Ok(Self {
            ear,
            shared: Rc::new(Shared {
                stream,
                server,
                base,
                served: RefCell::new(served),
                end: watch::channel(false).0,
                say,
            }),
        })
    }

    /// What the player is to open.
    pub fn address(&self) -> String {
        let at = self.ear.local_addr().unwrap_or(self.shared.stream.listen);
        format!("rtsp://{at}{}", self.shared.stream.address.rest)
    }

    /// What was done so far.
    pub fn served(&self) -> Served {
        *self.shared.served.borrow()
    }

    /// Signs all players off at the server, for a second at most, so that nothing is sent to nobody.
    pub async fn close(&self) {
        self.shared.end.send_replace(true);
        for _ in 0..FAREWELLS {
            if Rc::strong_count(&self.shared) == 1 {
                return;
            }
            tokio::time::sleep(FAREWELL).await;
        }
    }

    /// Serves players, on a local set of tasks, until it is dropped.
    pub async fn run(&self) {
        loop {
            match self.ear.accept().await {
                Ok((player, from)) if from.ip().is_loopback() && Rc::strong_count(&self.shared) <= PLAYERS => {
                    tokio::task::spawn_local(session::run(Rc::clone(&self.shared), player));
                }
                Ok(_) => self.shared.say("a player was turned away: there are enough"),
                Err(error) => {
                    self.shared.say(&format!("players cannot be heard: {error}"));
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            }
        }
    }
}

const FAREWELL: Duration = Duration::from_millis(20);
/// chosen: a second in all, which covers the round trips of most links; servers forget what was not ended.
const FAREWELLS: u32 = 50;
/// Tasks that share a run: each player has one, and each of its tracks. chosen: nobody looks at more on one machine.
const PLAYERS: usize = 32;
