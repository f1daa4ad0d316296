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
use marline_net::admission::{HandshakeTicket, PendingHandshakes};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::api::{self, Caller};
use super::coordinator::Coordinator;
use crate::identity::{Identity, Role};
use crate::tls::Peer;

/// What connections may cost.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How long a handshake may last.
    pub handshake_timeout: Duration,
    /// How many of them at once.
    pub max_handshakes: usize,
    /// How long a stranger's connection may last.
    pub anonymous_timeout: Duration,
    /// How many strangers at once.
    pub max_anonymous: usize,
    /// How long a member may say nothing.
    pub idle_timeout: Duration,
    /// How long a body may take.
    pub body_timeout: Duration,
    /// Connections of one member.
    pub connections_per_member: usize,
    /// Connections in all.
    pub max_connections: usize,
}

impl Default for Limits {
    /// chosen: two thousand edges that come back at once are let in at once (`load` in the tests); heartbeats come each five seconds,
    /// over a slow link as well; a member needs one connection and has three while it roams; some 30 KB of memory each.
    fn default() -> Self {
        Self {
            handshake_timeout: Duration::from_secs(10),
            max_handshakes: 2048,
            anonymous_timeout: Duration::from_secs(20),
            max_anonymous: 64,
            idle_timeout: Duration::from_secs(60),
            body_timeout: Duration::from_secs(10),
            connections_per_member: 16,
            max_connections: 50_000,
        }
    }
}

impl Limits {
    /// The same, or less where a process that may have so many descriptors cannot do it: some are kept for stores, lists and other
    /// processes, and who has not said who he is takes no more than a quarter of the rest.
    #[must_use]
    pub fn fit_descriptors(self, descriptors: u64) -> Self {
        let available_fds = usize::try_from(descriptors).unwrap_or(usize::MAX).saturating_sub(RESERVED_FDS);
        let connections = self.max_connections.min(available_fds).max(1);
        let part_of = |wanted: usize, divisor: usize| wanted.min(connections / divisor).max(1);
        Self {
            max_connections: connections,
            max_handshakes: part_of(self.max_handshakes, 4),
            max_anonymous: part_of(self.max_anonymous, 8),
            ..self
        }
    }
}

/// Descriptors for everything that is no connection of a member. chosen: as many as are asked of another process at once, those kept
/// for it, and some more.
const RESERVED_FDS: usize = 384;

/// Where the service is asked.
#[derive(Debug)]
pub struct ApiListener {
    coordinator: Arc<Coordinator>,
    listeners: Vec<TcpListener>,
    shared: Arc<SharedLimits>,
    closing: watch::Sender<bool>,
}

#[derive(Debug)]
struct SharedLimits {
    limits: Limits,
    handshakes: Mutex<PendingHandshakes<AbortHandle>>,
    anonymous: Mutex<PendingHandshakes<oneshot::Sender<()>>>,
    connection_permits: Semaphore,
    members: Mutex<BTreeMap<Identity, usize>>,
}

impl ApiListener {
    /// Listens; to be called in the runtime that will attend.
    ///
    /// # Errors
    /// An address is not this machine's, or somebody else listens there.
    pub async fn open(coordinator: Arc<Coordinator>, listen: &[SocketAddr], limits: Limits) -> io::Result<Self> {
        let mut listeners = Vec::new();
        for address in listen {
            let bound = TcpListener::bind(address).await;
            let say = |error: io::Error| io::Error::new(error.kind(), format!("listen on {address}: {error}"));
            listeners.push(bound.map_err(say)?);
        }
        let shared = SharedLimits {
            limits,
            handshakes: Mutex::new(PendingHandshakes::new(limits.max_handshakes)),
            anonymous: Mutex::new(PendingHandshakes::new(limits.max_anonymous)),
            connection_permits: Semaphore::new(limits.max_connections),
            members: Mutex::default(),
        };
        Ok(Self { coordinator, listeners, shared: Arc::new(shared), closing: watch::Sender::new(false) })
    }

    /// Where it listens.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners.iter().filter_map(|listener| listener.local_addr().ok()).collect()
    }

    /// Answers until `end`; then no more is accepted, and what is asked is answered, for so long at most.
    pub async fn serve(self, end: impl Future<Output = ()>, grace: Duration) {
        let mut accepting = JoinSet::new();
        let open_connections = watch::Sender::new(());
        for listener in self.listeners {
            let connection = ConnectionContext {
                coordinator: Arc::clone(&self.coordinator),
                shared: Arc::clone(&self.shared),
                closing: self.closing.subscribe(),
                _open_guard: open_connections.subscribe(),
            };
            accepting.spawn(accept(listener, connection));
        }
        end.await;
        accepting.abort_all();
        while accepting.join_next().await.is_some() {}
        self.closing.send_replace(true);
        // Ended when the last connection has gone; those that do not go are ended with the runtime.
        let _ = timeout(grace, open_connections.closed()).await;
    }
}

/// What a connection has of the counter.
#[derive(Clone, Debug)]
struct ConnectionContext {
    coordinator: Arc<Coordinator>,
    shared: Arc<SharedLimits>,
    closing: watch::Receiver<bool>,
    _open_guard: watch::Receiver<()>,
}

async fn accept(listener: TcpListener, connection: ConnectionContext) {
    loop {
        match listener.accept().await {
            Ok((socket, from)) => spawn_handshake(socket, from.ip(), connection.clone()),
            Err(error) => {
                tracing::debug!(%error, "accept");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

/// chosen: descriptors or memory may be there again then.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

fn spawn_handshake(socket: TcpStream, address: IpAddr, connection: ConnectionContext) {
    let (ticket_tx, ticket_rx) = oneshot::channel();
    let shared = Arc::clone(&connection.shared);
    let task = tokio::spawn(async move {
        let shared = Arc::clone(&connection.shared);
        let Ok(ticket) = ticket_rx.await else { return };
        let permit = HandshakePermit { handshakes: &shared.handshakes, ticket };
        let Ok(_connection_permit) = shared.connection_permits.try_acquire() else { return };
        let result = {
            let _permit = permit;
            timeout(shared.limits.handshake_timeout, tls_handshake(socket, &connection.coordinator)).await
        };
        match result {
            Ok(Ok(stream)) => serve_connection(stream, address, connection).await,
            Ok(Err(error)) => tracing::debug!(%address, %error, "not let in"),
            Err(_) => tracing::debug!(%address, "no handshake in time"),
        }
    });
    let (ticket, evicted) =
        shared.handshakes.lock().unwrap_or_else(PoisonError::into_inner).admit(address, task.abort_handle());
    let _ = ticket_tx.send(ticket);
    if let Some(evicted) = evicted {
        evicted.abort();
    }
}

/// Free when dropped, also when the task is ended.
struct HandshakePermit<'a, T> {
    handshakes: &'a Mutex<PendingHandshakes<T>>,
    ticket: HandshakeTicket,
}

impl<T> Drop for HandshakePermit<'_, T> {
    fn drop(&mut self) {
        self.handshakes.lock().unwrap_or_else(PoisonError::into_inner).release(self.ticket);
    }
}

async fn tls_handshake(socket: TcpStream, coordinator: &Coordinator) -> io::Result<TlsStream<TcpStream>> {
    socket.set_nodelay(true)?;
    let tls = Arc::clone(&coordinator.trusted().tls);
    TlsAcceptor::from(tls).accept(socket).await
}

async fn serve_connection(stream: TlsStream<TcpStream>, address: IpAddr, connection: ConnectionContext) {
    let shared = Arc::clone(&connection.shared);
    let certificates = stream.get_ref().1.peer_certificates();
    if certificates.is_none() {
        let (evict_tx, evict_rx) = oneshot::channel();
        let (ticket, evicted) =
            shared.anonymous.lock().unwrap_or_else(PoisonError::into_inner).admit(address, evict_tx);
        let _permit = HandshakePermit { handshakes: &shared.anonymous, ticket };
        // Whose place this is now hears it by that.
        drop(evicted);
        tokio::select! {
            _ = timeout(shared.limits.anonymous_timeout, serve_http(stream, None, connection)) => {}
            _ = evict_rx => tracing::debug!(%address, "its place was needed"),
        }
        return;
    }
    match Peer::of(certificates) {
        Ok(peer) => {
            let limit = if peer.identity.role == Role::Fleet {
                MAX_FLEET_CONNECTIONS
            } else {
                shared.limits.connections_per_member
            };
            let Some(_permit) = MemberPermit::acquire(&shared, &peer.identity, limit) else {
                tracing::debug!(peer = %peer.identity, "has too many connections");
                return;
            };
            let certificate = certificates.and_then(<[_]>::first).map(|shown| shown.clone().into_owned());
            let caller = certificate.map(|certificate| Caller { peer, certificate, address });
            serve_http(stream, caller, connection).await;
        }
        Err(error) => tracing::debug!(%error, "not let in"),
    }
}

/// One of a member's connections; free when dropped.
struct MemberPermit<'a> {
    limits: &'a SharedLimits,
    identity: Identity,
}

impl<'a> MemberPermit<'a> {
    fn acquire(shared: &'a SharedLimits, identity: &Identity, limit: usize) -> Option<Self> {
        let mut members = shared.members.lock().unwrap_or_else(PoisonError::into_inner);
        let count = members.entry(identity.clone()).or_insert(0);
        if *count >= limit {
            return None;
        }
        *count += 1;
        Some(Self { limits: shared, identity: identity.clone() })
    }
}

impl Drop for MemberPermit<'_> {
    fn drop(&mut self) {
        let mut members = self.limits.members.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = members.get_mut(&self.identity) {
            *count -= 1;
            if *count == 0 {
                members.remove(&self.identity);
            }
        }
    }
}

async fn serve_http(stream: TlsStream<TcpStream>, caller: Option<Caller>, connection: ConnectionContext) {
    let ConnectionContext { coordinator, shared, mut closing, _open_guard: _open } = connection;
    let (caller, body) = (caller.as_ref(), shared.limits.body_timeout);
    let handler = service_fn(|request| {
        let coordinator = Arc::clone(&coordinator);
        async move { Ok::<_, Infallible>(api::respond(&coordinator, caller, request, body).await) }
    });
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(Some(shared.limits.idle_timeout))
        .max_buf_size(READ_BUFFER);
    let mut serving = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), handler));
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
pub(super) const MAX_FLEET_CONNECTIONS: usize = 1024;
/// A head, and a part of a body.
const READ_BUFFER: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_descriptors_mean_fewer_connections_and_leave_some_for_the_store() {
        let wanted = Limits::default();
        let of = |descriptors| {
            let Limits {
                max_connections: connections, max_handshakes: handshakes, max_anonymous: strangers, ..
            } = wanted.fit_descriptors(descriptors);
            (connections, handshakes, strangers)
        };
        assert_eq!(of(65_536), (50_000, 2048, 64));
        assert_eq!(of(4096), (3712, 928, 64));
        assert_eq!(of(1024), (640, 160, 64));
        assert_eq!(of(256), (1, 1, 1));
    }
}
