//! TCP and TLS listener of the service, with limits for connections.
//!
//! Accepted connections are authenticated by TLS; their requests go to [`api`](super::api) together with the caller.
//!
//! 1. A handshake must finish within [`Limits::handshake_timeout`], and the number of concurrent handshakes is limited (`tls_listener`).
//! 2. Clients without a certificate may connect, because they must be able to enrol. Their number and the duration of their connections
//!    are limited ([`Limits::max_anonymous`], [`Limits::anonymous_timeout`]). Beyond the limit, a new connection evicts the oldest one of
//!    the network with the most connections: a client with many idle connections cannot prevent others from enrolling.
//! 3. The number of connections for each member is limited. A connection is closed if no request arrives within
//!    [`Limits::idle_timeout`], or if a request's head takes that long.
//! 4. When the service stops, each connection ends after its current request.

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
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::api::{self, Caller};
use super::coordinator::Coordinator;
use super::leader_conns::MAX_FLEET_CONNECTIONS;
use crate::identity::{Identity, Role};
use crate::tls::Peer;
use crate::tls_listener::Handshakes;

/// Limits for connections of the service.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Longest duration of a TLS handshake.
    pub handshake_timeout: Duration,
    /// Concurrent handshakes.
    pub max_handshakes: usize,
    /// Longest duration of a connection without client certificate.
    pub anonymous_timeout: Duration,
    /// Concurrent connections without client certificate.
    pub max_anonymous: usize,
    /// Longest time without a request on a member's connection.
    pub idle_timeout: Duration,
    /// Longest time for receiving a request body.
    pub body_timeout: Duration,
    /// Concurrent connections of one member.
    pub connections_per_member: usize,
    /// Concurrent connections in total.
    pub max_connections: usize,
}

impl Default for Limits {
    /// Our choice: two thousand edges that reconnect at once are accepted at once (`load` in the tests); heartbeats come each five seconds,
    /// over a slow link as well; a member needs one connection, and has three while it roams; each takes some 30 KB of memory.
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
    /// The same limits, reduced to what a process with this many file descriptors can handle. Some descriptors stay reserved for stores,
    /// lists and other processes, and unauthenticated handshakes get at most a quarter of the rest.
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

/// Descriptors reserved for everything but connections of members. Our choice: the requests forwarded to the leader at once, the pooled
/// connections to it, and some more.
const RESERVED_FDS: usize = 384;

/// The sockets at which the service accepts connections.
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
    handshakes: Arc<Handshakes>,
    anonymous: Mutex<PendingHandshakes<oneshot::Sender<()>>>,
    connection_permits: Arc<Semaphore>,
    members: Mutex<BTreeMap<Identity, usize>>,
}

impl ApiListener {
    /// Binds all addresses; call it inside the runtime that will serve them.
    ///
    /// # Errors
    /// An address does not belong to this host, or its port is in use.
    pub async fn open(coordinator: Arc<Coordinator>, listen: &[SocketAddr], limits: Limits) -> io::Result<Self> {
        let mut listeners = Vec::new();
        for address in listen {
            let bound = TcpListener::bind(address).await;
            let bind_error =
                |error: io::Error| io::Error::new(error.kind(), format!("listen on {address}: {error}"));
            listeners.push(bound.map_err(bind_error)?);
        }
        let shared = SharedLimits {
            limits,
            handshakes: Handshakes::new(limits.max_handshakes, limits.handshake_timeout),
            anonymous: Mutex::new(PendingHandshakes::new(limits.max_anonymous)),
            connection_permits: Arc::new(Semaphore::new(limits.max_connections)),
            members: Mutex::default(),
        };
        Ok(Self { coordinator, listeners, shared: Arc::new(shared), closing: watch::Sender::new(false) })
    }

    /// The bound addresses.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners.iter().filter_map(|listener| listener.local_addr().ok()).collect()
    }

    /// Serves until `end` resolves. Then it accepts nothing more and finishes current requests, for at most `grace`.
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
            let (coordinator, permits) =
                (Arc::clone(&self.coordinator), Arc::clone(&self.shared.connection_permits));
            let handshake = move |socket| tls_handshake(socket, Arc::clone(&coordinator), Arc::clone(&permits));
            let serve =
                move |(stream, permit), address| serve_admitted(stream, permit, address, connection.clone());
            accepting.spawn(Arc::clone(&self.shared.handshakes).accept(listener, handshake, serve));
        }
        end.await;
        accepting.abort_all();
        while accepting.join_next().await.is_some() {}
        self.closing.send_replace(true);
        // Resolves when the last connection is closed; connections that exceed the grace period end with the runtime.
        let _ = timeout(grace, open_connections.closed()).await;
    }
}

/// Everything that a connection shares with the listener.
#[derive(Clone, Debug)]
struct ConnectionContext {
    coordinator: Arc<Coordinator>,
    shared: Arc<SharedLimits>,
    closing: watch::Receiver<bool>,
    _open_guard: watch::Receiver<()>,
}

/// The registration of an anonymous connection; removed when dropped.
struct AnonymousPermit<'a> {
    anonymous: &'a Mutex<PendingHandshakes<oneshot::Sender<()>>>,
    ticket: HandshakeTicket,
}

impl Drop for AnonymousPermit<'_> {
    fn drop(&mut self) {
        self.anonymous.lock().unwrap_or_else(PoisonError::into_inner).release(self.ticket);
    }
}

async fn tls_handshake(
    socket: TcpStream,
    coordinator: Arc<Coordinator>,
    permits: Arc<Semaphore>,
) -> io::Result<(TlsStream<TcpStream>, OwnedSemaphorePermit)> {
    let permit = permits.try_acquire_owned().map_err(|_| io::Error::other("too many connections"))?;
    socket.set_nodelay(true)?;
    let tls = Arc::clone(&coordinator.trusted().tls);
    Ok((TlsAcceptor::from(tls).accept(socket).await?, permit))
}

/// Serves a connection; `_permit` counts it as open until it ends.
async fn serve_admitted(
    stream: TlsStream<TcpStream>,
    _permit: OwnedSemaphorePermit,
    address: IpAddr,
    connection: ConnectionContext,
) {
    serve_connection(stream, address, connection).await;
}

async fn serve_connection(stream: TlsStream<TcpStream>, address: IpAddr, connection: ConnectionContext) {
    let shared = Arc::clone(&connection.shared);
    let certificates = stream.get_ref().1.peer_certificates();
    if certificates.is_none() {
        let (evict_tx, evict_rx) = oneshot::channel();
        let (ticket, evicted) =
            shared.anonymous.lock().unwrap_or_else(PoisonError::into_inner).admit(address, evict_tx);
        let _permit = AnonymousPermit { anonymous: &shared.anonymous, ticket };
        // The evicted connection notices that its sender is dropped.
        drop(evicted);
        tokio::select! {
            _ = timeout(shared.limits.anonymous_timeout, serve_http(stream, None, connection)) => {}
            _ = evict_rx => tracing::debug!(%address, "evicted in favour of a newer connection"),
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
                tracing::debug!(peer = %peer.identity, "connection refused: the member has too many connections");
                return;
            };
            let certificate = certificates.and_then(<[_]>::first).map(|shown| shown.clone().into_owned());
            let caller = certificate.map(|certificate| Caller { peer, certificate, address });
            serve_http(stream, caller, connection).await;
        }
        Err(error) => tracing::debug!(%error, "connection refused"),
    }
}

/// The permit for one connection of a member; released when dropped.
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
        tracing::debug!(%error, "connection ended with an error");
    }
}

/// Bytes of the HTTP read buffer: a head, and a part of a body.
const READ_BUFFER: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_descriptors_mean_fewer_connections_and_leave_some_for_the_store() {
        let wanted = Limits::default();
        let limits_of = |descriptors| {
            let Limits {
                max_connections: connections, max_handshakes: handshakes, max_anonymous: anonymous, ..
            } = wanted.fit_descriptors(descriptors);
            (connections, handshakes, anonymous)
        };
        assert_eq!(limits_of(65_536), (50_000, 2048, 64));
        assert_eq!(limits_of(4096), (3712, 928, 64));
        assert_eq!(limits_of(1024), (640, 160, 64));
        assert_eq!(limits_of(256), (1, 1, 1));
    }
}
