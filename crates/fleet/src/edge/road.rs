//! The way to a relay: which one is asked, and connections that wait ready.
//!
//! In: relays, and a target. Out: a tunnel to it through one of them, or why not.
//!
//! 1. [`Config::warm`](super::Config::warm) connections to the first relay that works wait ready: a flow takes the oldest one that is
//!    still open, and another one is made at once. They are made anew before the relay gives them up ([`FRESH`]). One that gives
//!    them up sooner drains, or does not know the edge any more: then it is left in peace, from [`SHORTEST`] to [`LONGEST`].
//!    They are dropped when connections begin over another link than before.
//! 2. What a ready connection says before it is asked is no answer: the relay has given it up. It is thrown away, and so is one
//!    that answers 408.
//! 3. Relays are asked in their order ([`Relays::order`]). One that has not answered after [`HEDGE`] is still waited for while the
//!    next one is asked as well: the first tunnel is taken. A CONNECT may be sent twice as long as no payload went with it.
//! 4. After the same time a ready connection that does not answer is doubted: a new one to the same relay must stand, or the
//!    relay has gone, and all that wait for it with it. If it stands the server is slow, and both are waited for.
//! 5. Where flows may go directly and no relay could be reached by the last attempt, new flows are not held up by them: they are tried again in the
//!    background ([`Roads::keep_trying`]). A relay that has never answered holds up a flow for [`UNKNOWN`].
//! 6. What a relay answers to a request is the server's matter or the rules', and no reason to ask another one, but for "no
//!    room" (503) and for a request that it has not seen (408): then the next one is asked.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use marline_net::links::Interface;
use tokio::io::{AsyncRead as _, AsyncReadExt as _, ReadBuf};
use tokio::sync::{Notify, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, sleep_until, timeout, timeout_at};

use super::Config;
use super::ask::{Answer, Asked, TIMED_OUT, ask};
use super::dial::{self, By, CONNECT, Road, dial, dial_over};
use super::portal::Portals;
use super::relays::{RelayAt, Relays, Station};
use super::trust::Trusted;
use crate::starts::{Shows, Starts};
use crate::tunnel::Target;

/// chosen: less than the five minutes for which a relay waits.
const FRESH: Duration = Duration::from_secs(240);
/// chosen: a relay that was restarted is there again; two thousand edges that come back to one that drains cost it little.
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);
/// chosen: a tunnel over a ready connection takes a round trip to the relay and one on to the server; a second relay must
/// carry within three seconds of a first one that has vanished.
const HEDGE: Duration = Duration::from_millis(1500);

/// chosen: more than the round trip of a satellite. One flow over a slower link goes directly.
const UNKNOWN: Duration = Duration::from_millis(700);

/// chosen: a relay on a busy machine has read a certificate by then; nothing waits for it but the next state of a relay that has failed.
const REJECTION: Duration = Duration::from_millis(200);
/// chosen: a link that comes and goes costs few handshakes.
const CURRENT: Duration = Duration::from_secs(5);

/// chosen: an assignment comes with one of the next heartbeats, and programs give up after half a minute.
const WAIT: Duration = if cfg!(test) { Duration::from_millis(600) } else { Duration::from_secs(20) };

/// chosen: each of them takes as long as a relay may take to answer.
const ATTEMPTS: usize = 3;

/// Why there is no tunnel.
#[derive(Debug, thiserror::Error)]
pub(super) enum RoadError {
    /// No relay could be reached, or none had room: the last one's words.
    #[error("no relay can be had: {0}")]
    None(String),
    /// The fleet's service has said that no relay has room for this edge, and has given none in time.
    #[error("no relay of the fleet has room for this edge; it waits for one")]
    Waiting,
    /// A relay has answered.
    #[error("{}", .0.words)]
    Refused(Answer),
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
    /// Whether flows may go without a relay.
    direct: bool,
    by: By,
    portals: Portals,
    pub(super) starts: Arc<Starts>,
    trusted: Mutex<Trusted>,
    /// Counts up when connections that were made before must not be used any more.
    era: AtomicU64,
    /// The oldest first: to which relay, since when.
    ready: Mutex<VecDeque<(Arc<Station>, Instant, Road)>>,
    /// A ready connection was taken, or the list is another one.
    wake: Notify,
    /// A relay has failed.
    failing: Notify,
    /// The next attempt to reach a relay that failed is another one.
    retry: Notify,
    /// See [`Roads::changes`].
    changes: watch::Sender<u64>,
    /// The fleet's relays are not used until its service has given one.
    held: watch::Sender<bool>,
}

/// One of the relays' results.
type Attempt = (Arc<Station>, Result<(Road, Vec<u8>), Asked>);

impl Roads {
    pub(super) fn new(config: &Config, trusted: Trusted) -> Arc<Self> {
        Arc::new(Self {
            relays: Relays::new(&config.relays),
            warm: config.warm,
            direct: config.direct,
            by: By { congestion: config.congestion.clone(), ..By::default() },
            portals: Portals::new(&config.portal_probe),
            starts: Starts::new(),
            trusted: Mutex::new(trusted),
            era: AtomicU64::default(),
            ready: Mutex::default(),
            wake: Notify::new(),
            failing: Notify::new(),
            retry: Notify::new(),
            changes: watch::Sender::default(),
            held: watch::Sender::default(),
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

    /// Whether new flows wait for the fleet's service to give a relay. Relays of the command line are used all the same.
    pub(super) fn hold(&self, held: bool) {
        if self.held.send_if_modified(|now| std::mem::replace(now, held) != held) {
            self.retry.notify_one();
            self.wake.notify_one();
        }
    }

    /// The relays that may be used, in the order in which they are asked.
    fn order(&self) -> Vec<Arc<Station>> {
        let mut order = self.relays.order();
        if *self.held.borrow() {
            order.retain(|station| station.at.member.is_none());
        }
        order
    }

    /// Waits, where new flows wait and no other relay is there.
    async fn admitted(&self) -> Result<(), RoadError> {
        let mut held = self.held.subscribe();
        if !*held.borrow() || !self.order().is_empty() {
            return Ok(());
        }
        let given = timeout(WAIT, held.wait_for(|held| !held)).await;
        given.map(drop).map_err(|_| RoadError::Waiting)
    }

    /// Ends when a relay has failed since this was asked last.
    pub(super) async fn failing(&self) {
        self.failing.notified().await;
    }

    /// A tunnel.
    pub(super) async fn tunnel(self: &Arc<Self>, target: &Target) -> Result<Tunnel, RoadError> {
        self.admitted().await?;
        if !self.direct {
            return self.tunnel_in_time(target).await;
        }
        // Rule 5.
        let order = self.order();
        let failures: Vec<String> = order.iter().filter_map(|station| station.unreachable()).collect();
        if failures.len() == order.len() {
            // Where a request of plain HTTP finds a portal, no handshake with a relay is needed for that.
            let soon = |is_sooner, station: &Arc<Station>| station.retry_soon() | is_sooner;
            if self.portals.is_off() && order.iter().fold(false, soon) {
                self.retry.notify_one();
            }
            return Err(RoadError::None(failures.into_iter().next_back().unwrap_or_else(|| NONE.to_owned())));
        }
        tokio::select! {
            decided = self.tunnel_in_time(target) => decided,
            () = self.unknown() => Err(RoadError::None("no answer yet".to_owned())),
        }
    }

    /// Ends when no relay of the list has ever answered, and they had [`UNKNOWN`] for it.
    async fn unknown(&self) {
        let last = self.order().iter().map(|station| station.is_tried()).max();
        sleep_until((last.unwrap_or_else(Instant::now) + UNKNOWN).into()).await;
        if self.order().iter().any(|station| station.has_answered()) {
            std::future::pending::<()>().await;
        }
    }

    async fn tunnel_in_time(self: &Arc<Self>, target: &Target) -> Result<Tunnel, RoadError> {
        let began = Instant::now();
        for _ in 1..ATTEMPTS {
            match self.tunnel_once(target).await {
                // A relay that has carried other flows meanwhile is slow, and not gone: many flows that begin at once are.
                Err(RoadError::None(_)) if self.relays.all().iter().any(|relay| relay.has_carried_since(began)) => {
                }
                decided => return decided,
            }
        }
        self.tunnel_once(target).await
    }

    async fn tunnel_once(self: &Arc<Self>, target: &Target) -> Result<Tunnel, RoadError> {
        let began = Instant::now();
        let mut last = NONE.to_owned();
        let mut rest = self.order().into_iter();
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
                Ok((road, rest)) => {
                    station.has_carried();
                    self.works(&station);
                    return Ok(Tunnel { road, station, rest });
                }
                Err(Asked::Refused(answer)) if !matches!(answer.status, NO_ROOM | TIMED_OUT) => {
                    return Err(RoadError::Refused(answer));
                }
                Err(Asked::Refused(answer)) => {
                    self.left(&station, station.note_refusal(&answer.words));
                    last = answer.words;
                }
                Err(Asked::Broke(error)) => {
                    self.fail(&station, &error.to_string(), began);
                    last = format!("{}: {error}", station.at.label);
                }
            }
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
                    Err(asked) if asked.is_no_answer() => continue,
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
                    Err(asked) if asked.is_no_answer() => second.await,
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
            let began = Instant::now();
            station.is_tried();
            match station.turns.take(dial(&station, &trusted, &roads.by, &roads.starts)).await {
                // One that has failed works when it has carried a flow, or was tried again.
                Ok((road, _)) if station.has_failed() => {
                    roads.noted(station.is_mptcp_news());
                    Ok(road)
                }
                Ok((road, _)) => {
                    roads.works(&station);
                    Ok(road)
                }
                Err(error) => {
                    roads.fail(&station, &error.to_string(), began);
                    Err(error)
                }
            }
        })
    }

    fn works(&self, station: &Station) {
        if station.note(Ok(())) | station.is_mptcp_news() {
            self.noted(true);
            self.wake.notify_one();
        }
    }

    /// Rule 4. An attempt that fails while others succeed says nothing of the relay: many that begin at once are slow.
    fn fail(&self, station: &Arc<Station>, why: &str, began: Instant) {
        if station.has_carried_since(began) {
            return;
        }
        self.left(station, station.note(Err(why)));
    }

    fn left(&self, station: &Arc<Station>, is_news: bool) {
        self.noted(is_news);
        if self.order().iter().all(|station| station.unreachable().is_some()) {
            self.starts.none_reached();
        }
        lock(&self.ready).retain(|(of, ..)| !Arc::ptr_eq(of, station));
        self.wake.notify_one();
        self.failing.notify_one();
        self.retry.notify_one();
    }

    fn noted(&self, is_news: bool) {
        if is_news {
            self.changes.send_modify(|count| *count = count.wrapping_add(1));
        }
    }

    /// Changes when a relay fails, fails for another reason, or carries again.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Tries each relay of the command line that no ready connection is made to, so that one that cannot be reached is known at once and
    /// not when it is needed. The service's are measured.
    fn greet(self: &Arc<Self>) {
        let named = self.relays.all().into_iter().filter(|station| station.at.member.is_none());
        named.skip(usize::from(self.warm > 0)).for_each(|station| drop(self.fresh(&station)));
    }

    /// Tries relays that have failed at once: a link has come. They may answer over it; so may a captive portal, which the handshake
    /// detects.
    pub(super) fn retry_now(&self) {
        self.relays.all().iter().for_each(|station| station.retry_now());
        self.retry.notify_one();
    }

    /// Tries relays that have failed again, until dropped.
    pub(super) async fn keep_trying(self: &Arc<Self>) -> Infallible {
        loop {
            let next = self.order().into_iter().filter_map(|station| Some((station.retry()?, station)));
            match next.min_by_key(|(at, _)| *at) {
                Some((at, station)) if at <= Instant::now() => {
                    station.retries(at.max(Instant::now()));
                    tokio::spawn(Arc::clone(self).try_again(station));
                }
                Some((at, _)) => drop(timeout_at(at.into(), self.retry.notified()).await),
                None => self.retry.notified().await,
            }
        }
    }

    /// Tries a relay that has failed. In TLS 1.3 the client's handshake is over before the relay has seen the client's certificate, and a
    /// relay that rejects it closes the connection (RFC 8446, section 4.4.2.4): one that works is silent for a round trip longer.
    async fn try_again(self: Arc<Self>, station: Arc<Station>) {
        let (began, trusted) = (Instant::now(), self.trusted());
        let lasts = async {
            let (mut road, round_trip) = dial(&station, &trusted, &self.by, &self.starts).await?;
            match timeout(2 * round_trip + REJECTION, road.read_u8()).await {
                Err(_) => Ok(()),
                Ok(Ok(_)) => Err(io::ErrorKind::ConnectionAborted.into()),
                Ok(Err(error)) => Err(error),
            }
        };
        match lasts.await {
            Ok(()) => self.works(&station),
            // It closes without a reason: the reason from before is a better one.
            Err(error)
                if matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionAborted) => {}
            Err(error) => self.fail(&station, &error.to_string(), began),
        }
    }

    /// Probes the links that have failed until dropped.
    pub(super) async fn keep_probing(self: &Arc<Self>) -> Infallible {
        loop {
            let link = self.starts.due().await;
            let first = self.order().into_iter().next();
            tokio::spawn(Arc::clone(self).probe_link(link, first));
        }
    }

    /// At the first relay; while that cannot be reached at all, at the server to which a flow has gone directly. Whether something still
    /// answers in the relay's place shows in an attempt to reach a relay only.
    async fn probe_link(self: Arc<Self>, link: Arc<Interface>, first: Option<Arc<Station>>) {
        let began = Instant::now();
        let works = first.as_ref().is_some_and(|station| station.unreachable().is_none());
        let relay = first.filter(|_| works || self.starts.has_portal(&link.name));
        let result = match (&relay, self.starts.direct_probe(&link.name)) {
            (Some(relay), _) => {
                let dialled = dial_over(relay, &self.trusted(), &self.by, Some(&link), &self.starts).await;
                self.noted(relay.is_mptcp_news());
                dialled.map(|(_, shows)| shows)
            }
            (None, Some(server)) => {
                let by = By { device: Some(link.name.clone()), plain: true, ..By::default() };
                let connected = timeout(CONNECT, dial::connect(server, by)).await;
                connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).map(|_| Shows::Reached)
            }
            (None, None) => return,
        };
        self.starts.probed(&link.name, began, result, works || relay.is_none());
    }

    /// Looks for captive portals until dropped.
    pub(super) async fn keep_probing_portals(self: &Arc<Self>) -> Infallible {
        if self.portals.is_off() {
            std::future::pending::<()>().await;
        }
        loop {
            let (roads, link) = (Arc::clone(self), self.starts.due_for_portal().await);
            tokio::spawn(async move {
                let answer = roads.portals.probe(&link, &roads.starts).await;
                if roads.starts.portal_answered(&link.name, answer) {
                    roads.retry_now();
                }
            });
        }
    }

    /// Drops the connections that wait ready when connections begin over another link than these have: their first packets would wait for it.
    pub(super) async fn keep_current(&self) -> Infallible {
        let mut first = self.starts.first();
        loop {
            if first.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
            self.drop_ready();
            sleep(CURRENT).await;
        }
    }

    /// Drops the connections that wait ready: those that are made from now on take another way.
    pub(super) fn drop_ready(&self) {
        self.era.fetch_add(1, Ordering::Relaxed);
        lock(&self.ready).clear();
        self.wake.notify_one();
    }

    /// Keeps connections ready until dropped.
    pub(super) async fn keep_warm(self: &Arc<Self>) -> Infallible {
        self.greet();
        let (mut pause, mut given_up) = (SHORTEST, None::<Instant>);
        loop {
            let Some(first) = self.order().into_iter().next() else {
                self.wake.notified().await;
                continue;
            };
            if first.has_failed() {
                // It is tried again elsewhere.
                let _ = timeout(LONGEST, self.wake.notified()).await;
                continue;
            }
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
            let era = self.era.load(Ordering::Relaxed);
            match joined(self.fresh(&first)).await {
                Ok(road) => {
                    // `drop_ready` increments `era` before it takes this lock.
                    let mut ready = lock(&self.ready);
                    if self.era.load(Ordering::Relaxed) == era {
                        ready.push_back((first, Instant::now(), road));
                    }
                }
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
        let is_first = || self.order().first().is_some_and(|now| Arc::ptr_eq(now, first));
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

const NONE: &str = "no relay is configured";
/// HTTP's status of a relay that has no room or drains.
const NO_ROOM: u16 = 503;

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

#[cfg(test)]
mod tests {
    use super::*;

    fn at(member: Option<&str>) -> RelayAt {
        let places = vec!["127.0.0.1:1".parse().unwrap()];
        let member = member.map(|name| name.parse().unwrap());
        RelayAt { label: "r".to_owned(), server: "127.0.0.1".try_into().unwrap(), places, member }
    }

    fn roads(relays: Vec<RelayAt>) -> Arc<Roads> {
        let config = Config {
            listen: Vec::new(),
            relays,
            warm: 0,
            direct: false,
            congestion: None,
            lan: false,
            guests: super::super::GuestTerms::default(),
            portal_probe: super::super::PortalProbe::OFF,
            local_domains: Vec::new(),
        };
        let provider = Arc::new(crate::tls::provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let tls = builder.unwrap().with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth();
        Roads::new(&config, Arc::new(tls).into())
    }

    #[test]
    fn new_flows_wait_for_the_fleets_relays_and_not_for_those_of_the_command_line() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let target = Target::new("192.0.2.1", 80).unwrap();
            let waits = roads(vec![at(Some("a"))]);
            waits.hold(true);
            let begun = Instant::now();
            assert!(matches!(waits.tunnel(&target).await, Err(RoadError::Waiting)));
            assert!(begun.elapsed() >= WAIT);
            // Given one in time, the flow is led to it, where nothing listens.
            let given = Arc::clone(&waits);
            let giving = tokio::spawn(async move {
                sleep(WAIT / 4).await;
                given.hold(false);
            });
            assert!(matches!(waits.tunnel(&target).await, Err(RoadError::None(_))));
            giving.await.unwrap();
            let named = roads(vec![at(Some("a")), at(None)]);
            named.hold(true);
            assert_eq!(named.order().len(), 1);
            assert!(matches!(named.tunnel(&target).await, Err(RoadError::None(_))));
        });
    }
}
