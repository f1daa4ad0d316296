//! Listeners of a relay, and the TLS handshake of each connection.
//!
//! After its handshake a connection is served by a task of its own ([`conn::serve`]).
//!
//! 1. A handshake must finish within [`HANDSHAKE_TIMEOUT`], and the number of concurrent handshakes is limited ([`Handshakes`]). If
//!    descriptors run out, the same handshake is evicted as if the limit were reached.
//! 2. Receive buffers are large enough for several links together ([`LARGE_RCVBUF`]; `rcvbuf_budget` limits their number). The kernel
//!    starts with 128 KiB, which limits two links of 8 Mbit/s and 60 ms until the buffer has grown, and MPTCP's grows slowly. Setting
//!    the size needs CAP_NET_ADMIN. Without it the size is that of `net.core.rmem_max`, if this is larger than the default;
//!    [`Listeners::has_small_buffers`] reports the other case.
//! 3. The kernel's keep-alive detects vanished edges: a failed link sends no packets that would end the connection.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use marline_net::admission::{HandshakeTicket, PendingHandshakes};
use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::rcvbuf_budget::LARGE_RCVBUF;
use super::{Relay, conn};
use crate::tunnel::BufferedSocket;

/// chosen: three RTTs over a satellite, and two retransmissions.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// chosen: a vanished edge and its reservation are removed after two minutes; a mobile radio is not woken more often.
const KEEPALIVE_TIME: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
/// chosen: the connections that arrive within one RTT when 2,000 edges reconnect at once.
const BACKLOG: i32 = 4096;
/// chosen: by then descriptors or memory may be available again.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);
const ACCEPT_RETRY_EVICTED: Duration = Duration::from_millis(1);
/// An address at which the relay cannot listen.
#[derive(Debug, thiserror::Error)]
#[error("listen on {address}: {error}")]
pub struct ListenError {
    /// The address.
    pub address: SocketAddr,
    /// The system's error.
    pub error: io::Error,
}

/// The listening sockets of a relay.
#[derive(Debug)]
pub struct Listeners {
    listeners: Vec<std::net::TcpListener>,
    handshakes: Arc<Mutex<PendingHandshakes<AbortHandle>>>,
    has_mptcp: bool,
    has_small_buffers: bool,
}

impl Listeners {
    /// Listens at all addresses of the configuration.
    ///
    /// # Errors
    /// A port is in use, an address does not belong to this host, or a privilege is missing.
    pub fn open(relay: &Relay) -> Result<Self, ListenError> {
        let mut opened = Self {
            listeners: Vec::new(),
            handshakes: Arc::new(Mutex::new(PendingHandshakes::new(relay.config.limits.handshakes))),
            has_mptcp: true,
            has_small_buffers: false,
        };
        for address in &relay.config.listen {
            let fail = |error| ListenError { address: *address, error };
            let bound = bind(*address, Protocol::MPTCP).or_else(|error| match error.raw_os_error() {
                // A kernel without MPTCP, or one where it is switched off.
                Some(EPROTONOSUPPORT | ENOPROTOOPT) => {
                    opened.has_mptcp = false;
                    bind(*address, Protocol::TCP)
                }
                _ => Err(error),
            });
            let socket = bound.map_err(fail)?;
            opened.has_small_buffers |= !enlarge_buffers(&socket);
            socket.listen(BACKLOG).map_err(fail)?;
            opened.listeners.push(socket.into());
        }
        if !opened.has_small_buffers {
            relay.rcvbuf_budget.enable();
        }
        Ok(opened)
    }

    /// Whether the receive buffers are too small for several links together (rule 2).
    pub fn has_small_buffers(&self) -> bool {
        self.has_small_buffers
    }

    /// Whether all listeners use MPTCP, so that edges can use all their links.
    pub fn has_mptcp(&self) -> bool {
        self.has_mptcp
    }

    /// The addresses of the listeners.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners.iter().filter_map(|listener| listener.local_addr().ok()).collect()
    }

    /// Accepts and serves connections on this thread, until dropped.
    ///
    /// # Errors
    /// The listeners cannot be used by this runtime.
    pub async fn serve(&self, relay: &Arc<Relay>) -> io::Result<std::convert::Infallible> {
        let mut accepting = tokio::task::JoinSet::new();
        for listener in &self.listeners {
            let listener = TcpListener::from_std(listener.try_clone()?)?;
            accepting.spawn(accept(listener, Arc::clone(relay), Arc::clone(&self.handshakes)));
        }
        accepting.join_all().await;
        Err(io::Error::other("no listener"))
    }
}

/// Linux: EMFILE, ENFILE.
const EMFILE: i32 = 24;
const ENFILE: i32 = 23;

/// Linux: EPROTONOSUPPORT, ENOPROTOOPT.
const EPROTONOSUPPORT: i32 = 93;
const ENOPROTOOPT: i32 = 92;

/// Enlarges the receive buffer that accepted connections inherit; false: it is not permitted.
fn enlarge_buffers(socket: &Socket) -> bool {
    if set_socket_recv_buffer_size_force(socket, LARGE_RCVBUF).is_ok() {
        return true;
    }
    let default_size = socket.recv_buffer_size().unwrap_or(usize::MAX);
    let granted = Socket::new(Domain::IPV4, Type::STREAM, None).and_then(|probe| {
        probe.set_recv_buffer_size(LARGE_RCVBUF)?;
        probe.recv_buffer_size()
    });
    // A buffer of a fixed size does not grow any more, so a size below the maximum of automatic growth would be a loss.
    if granted.is_ok_and(|size| size >= LARGE_RCVBUF && size > default_size)
        && socket.set_recv_buffer_size(LARGE_RCVBUF).is_ok()
    {
        return true;
    }
    false
}

fn bind(address: SocketAddr, protocol: Protocol) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking().cloexec(), Some(protocol))?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.bind(&address.into())?;
    Ok(socket)
}

async fn accept(listener: TcpListener, relay: Arc<Relay>, handshakes: Arc<Mutex<PendingHandshakes<AbortHandle>>>) {
    loop {
        match listener.accept().await {
            Ok((socket, from)) => spawn_handshake(socket, from.ip(), Arc::clone(&relay), &handshakes),
            Err(error) => {
                tracing::debug!(%error, "accept");
                let is_full = matches!(error.raw_os_error(), Some(EMFILE | ENFILE));
                let evicted = if is_full { evict(&handshakes) } else { None };
                let wait = if evicted.is_some() { ACCEPT_RETRY_EVICTED } else { ACCEPT_RETRY };
                evicted.inspect(AbortHandle::abort);
                // The aborted task needs a moment until its descriptor is closed.
                tokio::time::sleep(wait).await;
            }
        }
    }
}

fn evict(handshakes: &Mutex<PendingHandshakes<AbortHandle>>) -> Option<AbortHandle> {
    handshakes.lock().unwrap_or_else(PoisonError::into_inner).evict()
}

fn spawn_handshake(
    socket: TcpStream,
    from: IpAddr,
    relay: Arc<Relay>,
    handshakes: &Arc<Mutex<PendingHandshakes<AbortHandle>>>,
) {
    let (ticket_tx, ticket_rx) = tokio::sync::oneshot::channel();
    let open_handshakes = Arc::clone(handshakes);
    let task = tokio::spawn(async move {
        let Ok(ticket) = ticket_rx.await else { return };
        let result = {
            let _permit = HandshakePermit { handshakes: &open_handshakes, ticket };
            timeout(HANDSHAKE_TIMEOUT, tls_handshake(socket, &relay)).await
        };
        match result {
            Ok(Ok(edge)) => conn::serve(edge, &relay).await,
            Ok(Err(error)) => tracing::debug!(%from, %error, "connection refused"),
            Err(_) => tracing::debug!(%from, "TLS handshake timed out"),
        }
    });
    let mut handshakes = handshakes.lock().unwrap_or_else(PoisonError::into_inner);
    let (ticket, evicted) = handshakes.admit(from, task.abort_handle());
    drop(handshakes);
    let _ = ticket_tx.send(ticket);
    if let Some(evicted) = evicted {
        evicted.abort();
    }
}

/// The registration of a handshake; removed when dropped, also if the task is aborted.
struct HandshakePermit<'a> {
    handshakes: &'a Mutex<PendingHandshakes<AbortHandle>>,
    ticket: HandshakeTicket,
}

impl Drop for HandshakePermit<'_> {
    fn drop(&mut self) {
        self.handshakes.lock().unwrap_or_else(PoisonError::into_inner).release(self.ticket);
    }
}

async fn tls_handshake(
    socket: TcpStream,
    relay: &Relay,
) -> io::Result<tokio_rustls::server::TlsStream<BufferedSocket>> {
    // Older kernels refuse some of these options for MPTCP. Then small packets are delayed, or vanished edges are detected later.
    let _ = socket.set_nodelay(true);
    let _ = SockRef::from(&socket).set_keepalive(true);
    let keep_alive = TcpKeepalive::new().with_time(KEEPALIVE_TIME).with_interval(KEEPALIVE_INTERVAL);
    let _ = SockRef::from(&socket).set_tcp_keepalive(&keep_alive);
    let tls = Arc::clone(&relay.trusted.borrow().tls);
    TlsAcceptor::from(tls).accept(BufferedSocket::new(socket)).await
}
