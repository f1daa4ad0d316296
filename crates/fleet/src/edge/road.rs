//! The way to a relay: which one is asked, and connections that wait ready.
//!
//! In: relays, and a target. Out: a tunnel to it through one of them, or why not.
//!
//! 1. [`Config::warm`](super::Config::warm) connections to the first relay that works wait ready: a flow takes the oldest one that is
//!    still open, and another one is made at once. They are made anew before the relay gives them up ([`FRESH`]). One that gives
//!    them up sooner drains, or does not know the edge any more: then it is left in peace, from [`SHORTEST`] to [`LONGEST`].
//! 2. What a ready connection says before it is asked is no answer: the relay has given it up. It is thrown away, and so is one
//!    that answers 408.
//! 3. Relays are asked in their order ([`Relays::order`]). One that has not answered after [`HEDGE`] is still waited for while the
//!    next one is asked as well: the first tunnel is taken. A CONNECT may be sent twice as long as no payload went with it.
//! 4. After the same time a ready connection that does not answer is doubted: a new one to the same relay must stand, or the
//!    relay has gone, and all that wait for it with it. If it stands the server is slow, and both are waited for.
//! 5. What a relay answers to a request is the server's matter or the rules', and no reason to ask another one, but for "no
//!    room" (503) and for a request that it has not seen (408): then the next one is asked.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead as _, ReadBuf};
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

use super::Config;
use super::ask::{Asked, ask};
use super::dial::{self, By, CONNECT, Road, dial};
use super::relays::{RelayAt, Relays, Station};
use super::trust::Trusted;
use crate::tunnel::Target;

/// chosen: less than the five minutes for which a relay waits.
const FRESH: Duration = Duration::from_secs(240);
/// chosen: a relay that was restarted is there again; two thousand edges that come back to one that drains cost it little.
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);
/// chosen: a tunnel over a ready connection takes a round trip to the relay and one on to the server; a second relay must
/// carry within three seconds of a first one that has vanished.
const HEDGE: Duration = Duration::from_millis(1500);

/// Why there is no tunnel.
#[derive(Debug, thiserror::Error)]
pub(super) enum RoadError {
    /// No relay could be reached, or none had room: the last one's words.
    #[error("no relay can be had: {0}")]
    None(String),
    /// A relay has answered: its status, and its words.
    #[error("{words}")]
    Refused { status: u16, words: String },
}

/// A way to a server through a relay.
#[derive(Debug)]
pub(super) struct Tunnel {
    pub(super) road: Road,
    pub(super) station: Arc<Station>,
    /// What came behind the relay's answer.
    pub(super) rest: Vec<u8>,
}

/// All ways.
#[derive(Debug)]
pub(super) struct Roads {
    pub(super) relays: Relays,
    warm: usize,
    by: By,
    trusted: Mutex<Trusted>,
    /// The oldest first: to which relay, since when.
    ready: Mutex<VecDeque<(Arc<Station>, Instant, Road)>>,
    /// A ready connection was taken, or the list is another one.
    wake: Notify,
    /// A relay has failed.
    failing: Notify,
}

/// One of the relays' results.
type Attempt = (Arc<Station>, Result<(Road, Vec<u8>), Asked>);

impl Roads {
    pub(super) fn new(config: &Config, trusted: Trusted) -> Arc<Self> {
        Arc::new(Self {
            relays: Relays::new(&config.relays),
            warm: config.warm,
            by: By { congestion: config.congestion.clone(), ..By::default() },
            trusted: Mutex::new(trusted),
            ready: Mutex::default(),
            wake: Notify::new(),
            failing: Notify::new(),
        })
    }

    /// Other relays from now on; flows that run are not touched.
    pub(super) fn lead(&self, list: &[RelayAt]) {
        if self.relays.replace(list) {
            self.wake.notify_one();
        }
    }

    /// Trusts others from now on.
    pub(super) fn trust(&self, trusted: Trusted) {
        *lock(&self.trusted) = trusted;
        self.wake.notify_one();
    }

    pub(super) fn trusted(&self) -> Trusted {
        lock(&self.trusted).clone()
    }

    /// Ends when a relay has failed since this was asked last.
    pub(super) async fn failing(&self) {
        self.failing.notified().await;
    }

    /// A tunnel.
    pub(super) async fn tunnel(self: &Arc<Self>, target: &Target) -> Result<Tunnel, RoadError> {
        let mut last = "none is named".to_owned();
        let mut rest = self.relays.order().into_iter();
        let mut running: JoinSet<Attempt> = JoinSet::new();
        loop {
            if let Some(station) = rest.next() {
                let (roads, target) = (Arc::clone(self), target.clone());
                running.spawn(async move {
                    let attempt = roads.attempt(&station, &target).await;
                    (station, attempt)
                });
            }
            let is_last = rest.len() == 0;
            let (station, attempt) = tokio::select! {
                joined = running.join_next() => match joined {
                    Some(Ok(ended)) => ended,
                    Some(Err(error)) => {
                        last = error.to_string();
                        continue;
                    }
                    None if is_last => return Err(RoadError::None(last)),
                    None => continue,
                },
                () = sleep(HEDGE), if !is_last => continue,
            };
            match attempt {
                Ok((road, rest)) => return Ok(Tunnel { road, station, rest }),
                Err(Asked::Refused(status, words)) if !matches!(status, NO_ROOM | TIMED_OUT) => {
                    return Err(RoadError::Refused { status, words });
                }
                Err(Asked::Refused(_, words)) => last = words,
                Err(Asked::Broke(error)) => last = format!("{}: {error}", station.at.label),
            }
            self.fail(&station);
            tracing::warn!(relay = station.at.label, why = last, "a relay does not carry");
        }
    }

    /// Through this relay: over a connection that waits, or over a new one.
    async fn attempt(self: &Arc<Self>, station: &Arc<Station>, target: &Target) -> Result<(Road, Vec<u8>), Asked> {
        while let Some(road) = self.take(station) {
            let asked = ask(road, target);
            tokio::pin!(asked);
            let second = tokio::select! {
                first = &mut asked => match first {
                    Err(Asked::Broke(_) | Asked::Refused(TIMED_OUT, _)) => continue,
                    decided => return decided,
                },
                () = sleep(HEDGE) => self.fresh(station),
            };
            // It goes on if nobody waits for it any more: what it finds counts for the next flow.
            let second = async {
                let road = joined(second).await?;
                ask(road, target).await
            };
            tokio::pin!(second);
            return tokio::select! {
                first = &mut asked => match first {
                    Err(Asked::Broke(_) | Asked::Refused(TIMED_OUT, _)) => second.await,
                    decided => decided,
                },
                decided = &mut second => decided,
            };
        }
        let road = joined(self.fresh(station)).await?;
        ask(road, target).await
    }

    /// A new connection, which notes how that went, whoever waits for it.
    fn fresh(self: &Arc<Self>, station: &Arc<Station>) -> JoinHandle<io::Result<Road>> {
        let (roads, station, trusted) = (Arc::clone(self), Arc::clone(station), self.trusted());
        tokio::spawn(async move {
            match dial(&station, &trusted, &roads.by).await {
                Ok((road, _)) => {
                    station.note(false);
                    Ok(road)
                }
                Err(error) => {
                    roads.fail(&station);
                    Err(error)
                }
            }
        })
    }

    /// Rule 4.
    fn fail(&self, station: &Arc<Station>) {
        station.note(true);
        lock(&self.ready).retain(|(of, ..)| !Arc::ptr_eq(of, station));
        self.wake.notify_one();
        self.failing.notify_one();
    }

    /// Keeps connections ready until dropped.
    pub(super) async fn keep_warm(self: &Arc<Self>) -> Infallible {
        let (mut pause, mut given_up) = (SHORTEST, None::<Instant>);
        loop {
            let Some(first) = self.relays.order().into_iter().next() else {
                self.wake.notified().await;
                continue;
            };
            if self.drop_old(&first) {
                let is_again = given_up.replace(Instant::now()).is_some_and(|at| at.elapsed() < LONGEST * 2);
                pause = if is_again { (pause * 2).min(LONGEST) } else { SHORTEST };
                self.rest(&first, pause).await;
                continue;
            }
            let count = lock(&self.ready).len();
            if count >= self.warm {
                let _ = timeout(FRESH / 8, self.wake.notified()).await;
                continue;
            }
            match joined(self.fresh(&first)).await {
                Ok(road) => lock(&self.ready).push_back((first, Instant::now(), road)),
                Err(error) => {
                    tracing::debug!(relay = first.at.label, ?error, "not ready");
                    sleep(CONNECT).await;
                }
            }
        }
    }

    /// The oldest connection to this relay that is still good.
    fn take(&self, station: &Arc<Station>) -> Option<Road> {
        let trusted = self.trusted();
        let mut ready = lock(&self.ready);
        while let Some(found) = ready.iter().position(|(of, ..)| Arc::ptr_eq(of, station)) {
            let (_, since, mut road) = ready.remove(found)?;
            self.wake.notify_one();
            if since.elapsed() < FRESH && is_silent(&mut road) && dial::check(&road, station, &trusted).is_ok() {
                return Some(road);
            }
        }
        None
    }

    /// Waits for so long, or until this relay is no longer the first.
    async fn rest(&self, first: &Arc<Station>, time: Duration) {
        let is_first = || self.relays.order().first().is_some_and(|now| Arc::ptr_eq(now, first));
        let no_longer = async {
            while is_first() {
                self.wake.notified().await;
            }
        };
        let _ = timeout(time, no_longer).await;
    }

    /// Those that are no good any more, or lead to a relay that is no longer the first. Whether it has given up one of them.
    fn drop_old(&self, first: &Arc<Station>) -> bool {
        let (trusted, mut given_up) = (self.trusted(), false);
        lock(&self.ready).retain_mut(|(of, since, road)| {
            let is_wanted =
                Arc::ptr_eq(of, first) && since.elapsed() < FRESH && dial::check(road, of, &trusted).is_ok();
            let is_open = is_wanted && is_silent(road);
            given_up |= is_wanted && !is_open;
            is_open
        });
        given_up
    }
}

/// HTTP's status of a relay that has no room or drains.
const NO_ROOM: u16 = 503;
/// HTTP's status of a relay that has waited for long enough.
const TIMED_OUT: u16 = 408;

/// Rule 2: open, and nothing has come.
fn is_silent(road: &mut Road) -> bool {
    let mut byte = [0];
    let mut cx = Context::from_waker(Waker::noop());
    matches!(Pin::new(road).poll_read(&mut cx, &mut ReadBuf::new(&mut byte)), Poll::Pending)
}

async fn joined(dialled: JoinHandle<io::Result<Road>>) -> Result<Road, Asked> {
    dialled.await.map_err(|error| Asked::Broke(io::Error::other(error)))?.map_err(Asked::Broke)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
