//! The listeners of a relay, and the way of a connection until it is known whose it is.
//!
//! In: connections. Out: a task for each that has shown a certificate ([`serve::serve`]).
//!
//! 1. A handshake has [`HANDSHAKE`], and there are only so many at once ([`Handshakes`]).
//!    Where descriptors have run out the same one goes as where handshakes have.
//! 2. Sockets have room for what several links bring at once ([`LARGE`]; how many may: `rooms`): the kernel's own beginning, 128 KiB, holds up two links
//!    of 8 Mbit/s and 60 ms until it has grown, and MPTCP's grows slowly. That needs CAP_NET_ADMIN; without it there is as
//!    much as `net.core.rmem_max` allows, if that is more, and [`Doors::narrow`] tells.
//! 3. Dead edges are found by the kernel's keep-alive: a link that has gone says nothing.

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

/// chosen: three round trips over a satellite, and two retransmissions.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// chosen: a dead edge is gone after two minutes, and its reservation with it; a mobile radio is not woken for less.
const KEEPALIVE_TIME: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
/// chosen: what comes in one round trip from 2,000 edges that come back at once.
const BACKLOG: i32 = 4096;
/// chosen: descriptors or memory may be there again then.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);
const ACCEPT_RETRY_EVICTED: Duration = Duration::from_millis(1);
/// Why it cannot be listened.
#[derive(Debug, thiserror::Error)]
#[error("listen on {address}: {error}")]
pub struct ListenError {
    /// Where.
    pub address: SocketAddr,
    /// Why not.
    pub error: io::Error,
}

/// The listeners.
#[derive(Debug)]
pub struct Listeners {
    listeners: Vec<std::net::TcpListener>,
    handshakes: Arc<Mutex<PendingHandshakes<AbortHandle>>>,
    has_mptcp: bool,
    has_small_buffers: bool,
}

impl Listeners {
    /// Listens where the relay is to be found.
    ///
    /// # Errors
    /// Somebody else does, the address is not this machine's, or a privilege is missing.
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

    /// Whether connections have less room than several links need.
    pub fn has_small_buffers(&self) -> bool {
        self.has_small_buffers
    }

    /// Whether edges can use all their links.
    pub fn has_mptcp(&self) -> bool {
        self.has_mptcp
    }

    /// Where it is listened.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners.iter().filter_map(|listener| listener.local_addr().ok()).collect()
    }

    /// Takes in who comes, on this thread, until dropped.
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

/// Gives what a listener accepts its room; whether it could.
fn enlarge_buffers(socket: &Socket) -> bool {
    if set_socket_recv_buffer_size_force(socket, LARGE_RCVBUF).is_ok() {
        return true;
    }
    let default_size = socket.recv_buffer_size().unwrap_or(usize::MAX);
    let granted = Socket::new(Domain::IPV4, Type::STREAM, None).and_then(|probe| {
        probe.set_recv_buffer_size(LARGE_RCVBUF)?;
        probe.recv_buffer_size()
    });
    // A size that is set does not grow any more: less than the usual one may grow to is no gain.
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
                // Who has to go has gone afterwards, and his descriptor is free.
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
            Ok(Err(error)) => tracing::debug!(%from, %error, "not let in"),
            Err(_) => tracing::debug!(%from, "no handshake in time"),
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

/// Free when dropped, also when the task is ended.
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
    // Older kernels refuse some of these for MPTCP: then small packets wait, or dead edges are found later.
    let _ = socket.set_nodelay(true);
    let _ = SockRef::from(&socket).set_keepalive(true);
    let keep_alive = TcpKeepalive::new().with_time(KEEPALIVE_TIME).with_interval(KEEPALIVE_INTERVAL);
    let _ = SockRef::from(&socket).set_tcp_keepalive(&keep_alive);
    let tls = Arc::clone(&relay.trusted.borrow().tls);
    TlsAcceptor::from(tls).accept(BufferedSocket::new(socket)).await
}
