//! The listeners of the service, and what a connection may cost.
//!
//! In: connections. Out: requests with who sends them ([`api`](super::api)).
//!
//! 1. A handshake has [`Limits::handshake`], and there are only so many at once, as at a relay's door.
//! 2. Who has no certificate may enrol: so many strangers at once, and each for [`Limits::stranger`] and no longer. One more takes
//!    the place of the oldest of the network that has the most: who says nothing on many connections keeps nobody else from enrolling.
//! 3. A member has so many connections; one that says nothing for [`Limits::idle`], or needs as long for a request's head, is closed.
//! 4. When the service ends, connections end with the request that they are at.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use marline_net::admission::{HandshakeTicket, Handshakes};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::api::{self, Caller};
use super::desk::Desk;
use crate::identity::{Identity, Role};
use crate::tls::Peer;

/// What connections may cost.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How long a handshake may last.
    pub handshake: Duration,
    /// How many of them at once.
    pub handshakes: usize,
    /// How long a stranger's connection may last.
    pub stranger: Duration,
    /// How many strangers at once.
    pub strangers: usize,
    /// How long a member may say nothing.
    pub idle: Duration,
    /// How long a body may take.
    pub body: Duration,
    /// Connections of one member.
    pub of_member: usize,
    /// Connections in all.
    pub connections: usize,
}

impl Default for Limits {
    /// chosen: two thousand edges that come back at once are let in at once (`load` in the tests); heartbeats come each five seconds,
    /// over a slow link as well; a member needs one connection and has three while it roams; some 30 KB of memory each.
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(10),
            handshakes: 2048,
            stranger: Duration::from_secs(20),
            strangers: 64,
            idle: Duration::from_secs(60),
            body: Duration::from_secs(10),
            of_member: 16,
            connections: 50_000,
        }
    }
}

impl Limits {
    /// The same, or less where a process that may have so many descriptors cannot do it: some are kept for stores, lists and other
    /// processes, and who has not said who he is takes no more than a quarter of the rest.
    #[must_use]
    pub fn within(self, descriptors: u64) -> Self {
        let room = usize::try_from(descriptors).unwrap_or(usize::MAX).saturating_sub(ASIDE);
        let connections = self.connections.min(room).max(1);
        let some = |wanted: usize, part: usize| wanted.min(connections / part).max(1);
        Self { connections, handshakes: some(self.handshakes, 4), strangers: some(self.strangers, 8), ..self }
    }
}

/// Descriptors for everything that is no connection of a member. chosen: as many as are asked of another process at once, those kept
/// for it, and some more.
const ASIDE: usize = 384;

/// Where the service is asked.
#[derive(Debug)]
pub struct Counter {
    desk: Arc<Desk>,
    listeners: Vec<TcpListener>,
    shared: Arc<Shared>,
    closing: watch::Sender<bool>,
}

#[derive(Debug)]
struct Shared {
    limits: Limits,
    handshakes: Mutex<Handshakes<AbortHandle>>,
    strangers: Mutex<Handshakes<oneshot::Sender<()>>>,
    all: Semaphore,
    members: Mutex<BTreeMap<Identity, usize>>,
}

impl Counter {
    /// Listens; to be called in the runtime that will attend.
    ///
    /// # Errors
    /// An address is not this machine's, or somebody else listens there.
    pub async fn open(desk: Arc<Desk>, listen: &[SocketAddr], limits: Limits) -> io::Result<Self> {
        let mut listeners = Vec::new();
        for address in listen {
            let bound = TcpListener::bind(address).await;
            let say = |error: io::Error| io::Error::new(error.kind(), format!("listen on {address}: {error}"));
            listeners.push(bound.map_err(say)?);
        }
        let shared = Shared {
            limits,
            handshakes: Mutex::new(Handshakes::new(limits.handshakes)),
            strangers: Mutex::new(Handshakes::new(limits.strangers)),
            all: Semaphore::new(limits.connections),
            members: Mutex::default(),
        };
        Ok(Self { desk, listeners, shared: Arc::new(shared), closing: watch::Sender::new(false) })
    }

    /// Where it listens.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners.iter().filter_map(|listener| listener.local_addr().ok()).collect()
    }

    /// Answers until `end`; then no more is accepted, and what is asked is answered, for so long at most.
    pub async fn attend(self, end: impl Future<Output = ()>, longest: Duration) {
        let mut accepting = JoinSet::new();
        let open = watch::Sender::new(());
        for listener in self.listeners {
            let connection = Connection {
                desk: Arc::clone(&self.desk),
                shared: Arc::clone(&self.shared),
                closing: self.closing.subscribe(),
                _open: open.subscribe(),
            };
            accepting.spawn(accept(listener, connection));
        }
        end.await;
        accepting.abort_all();
        while accepting.join_next().await.is_some() {}
        self.closing.send_replace(true);
        // Ended when the last connection has gone; those that do not go are ended with the runtime.
        let _ = timeout(longest, open.closed()).await;
    }
}

/// What a connection has of the counter.
#[derive(Clone, Debug)]
struct Connection {
    desk: Arc<Desk>,
    shared: Arc<Shared>,
    closing: watch::Receiver<bool>,
    _open: watch::Receiver<()>,
}

async fn accept(listener: TcpListener, connection: Connection) {
    loop {
        match listener.accept().await {
            Ok((socket, from)) => take_in(socket, from.ip(), connection.clone()),
            Err(error) => {
                tracing::debug!(%error, "accept");
                tokio::time::sleep(BREATH).await;
            }
        }
    }
}

/// chosen: descriptors or memory may be there again then.
const BREATH: Duration = Duration::from_millis(50);

fn take_in(socket: TcpStream, from: IpAddr, connection: Connection) {
    let (tell, ticket) = oneshot::channel();
    let shared = Arc::clone(&connection.shared);
    let task = tokio::spawn(async move {
        let shared = Arc::clone(&connection.shared);
        let Ok(ticket) = ticket.await else { return };
        let place = Place { of: &shared.handshakes, ticket };
        let Ok(_room) = shared.all.try_acquire() else { return };
        let known = {
            let _place = place;
            timeout(shared.limits.handshake, shake_hands(socket, &connection.desk)).await
        };
        match known {
            Ok(Ok(stream)) => serve(stream, from, connection).await,
            Ok(Err(error)) => tracing::debug!(%from, %error, "not let in"),
            Err(_) => tracing::debug!(%from, "no handshake in time"),
        }
    });
    let (ticket, goes) =
        shared.handshakes.lock().unwrap_or_else(PoisonError::into_inner).came(from, task.abort_handle());
    let _ = tell.send(ticket);
    if let Some(goes) = goes {
        goes.abort();
    }
}

/// Free when dropped, also when the task is ended.
struct Place<'a, T> {
    of: &'a Mutex<Handshakes<T>>,
    ticket: HandshakeTicket,
}

impl<T> Drop for Place<'_, T> {
    fn drop(&mut self) {
        self.of.lock().unwrap_or_else(PoisonError::into_inner).done(self.ticket);
    }
}

async fn shake_hands(socket: TcpStream, desk: &Desk) -> io::Result<TlsStream<TcpStream>> {
    socket.set_nodelay(true)?;
    let tls = Arc::clone(&desk.trusted().tls);
    TlsAcceptor::from(tls).accept(socket).await
}

async fn serve(stream: TlsStream<TcpStream>, from: IpAddr, connection: Connection) {
    let shared = Arc::clone(&connection.shared);
    let certificates = stream.get_ref().1.peer_certificates();
    if certificates.is_none() {
        let (stays, goes) = oneshot::channel();
        let (ticket, other) = shared.strangers.lock().unwrap_or_else(PoisonError::into_inner).came(from, stays);
        let _place = Place { of: &shared.strangers, ticket };
        // Whose place this is now hears it by that.
        drop(other);
        tokio::select! {
            _ = timeout(shared.limits.stranger, talk(stream, None, connection)) => {}
            _ = goes => tracing::debug!(%from, "its place was needed"),
        }
        return;
    }
    match Peer::of(certificates) {
        Ok(peer) => {
            let most = if peer.identity.role == Role::Fleet { OF_COLLEAGUE } else { shared.limits.of_member };
            let Some(_seat) = Seat::take(&shared, &peer.identity, most) else {
                tracing::debug!(peer = %peer.identity, "has too many connections");
                return;
            };
            let certificate = certificates.and_then(<[_]>::first).map(|shown| shown.clone().into_owned());
            let caller = certificate.map(|certificate| Caller { peer, certificate, from });
            talk(stream, caller, connection).await;
        }
        Err(error) => tracing::debug!(%error, "not let in"),
    }
}

/// One of a member's connections; free when dropped.
struct Seat<'a> {
    shared: &'a Shared,
    identity: Identity,
}

impl<'a> Seat<'a> {
    fn take(shared: &'a Shared, identity: &Identity, most: usize) -> Option<Self> {
        let mut members = shared.members.lock().unwrap_or_else(PoisonError::into_inner);
        let count = members.entry(identity.clone()).or_insert(0);
        if *count >= most {
            return None;
        }
        *count += 1;
        Some(Self { shared, identity: identity.clone() })
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        let mut members = self.shared.members.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = members.get_mut(&self.identity) {
            *count -= 1;
            if *count == 0 {
                members.remove(&self.identity);
            }
        }
    }
}

async fn talk(stream: TlsStream<TcpStream>, caller: Option<Caller>, connection: Connection) {
    let Connection { desk, shared, mut closing, _open } = connection;
    let (caller, body) = (caller.as_ref(), shared.limits.body);
    let answer = service_fn(|request| {
        let desk = Arc::clone(&desk);
        async move { Ok::<_, Infallible>(api::answer(&desk, caller, request, body).await) }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(Some(shared.limits.idle)).max_buf_size(BUFFER);
    let mut serving = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), answer));
    let ended = tokio::select! {
        ended = serving.as_mut() => ended,
        _ = async { closing.wait_for(|closing| *closing).await.is_ok() } => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended");
    }
}

/// Connections of another process of the service, which asks for many. chosen: as many as edges ask in a window,
/// several times, by four others.
pub(super) const OF_COLLEAGUE: usize = 1024;
/// A head, and a part of a body.
const BUFFER: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_descriptors_mean_fewer_connections_and_leave_some_for_the_store() {
        let wanted = Limits::default();
        let of = |descriptors| {
            let Limits { connections, handshakes, strangers, .. } = wanted.within(descriptors);
            (connections, handshakes, strangers)
        };
        assert_eq!(of(65_536), (50_000, 2048, 64));
        assert_eq!(of(4096), (3712, 928, 64));
        assert_eq!(of(1024), (640, 160, 64));
        assert_eq!(of(256), (1, 1, 1));
    }
}
