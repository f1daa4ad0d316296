//! Listeners of a relay, and the TLS handshake of each connection.
//!
//! After its handshake a connection is served by a task of its own ([`conn::serve`]).
//!
//! 1. A handshake must finish within [`HANDSHAKE_TIMEOUT`], and the number of concurrent handshakes is limited (`tls_listener`).
//! 2. Receive buffers are large enough for several links together ([`LARGE_RCVBUF`]; `rcvbuf_budget` limits their number). The kernel
//!    starts with 128 KiB, which limits two links of 8 Mbit/s and 60 ms until the buffer has grown, and MPTCP's grows slowly. Setting
//!    the size needs CAP_NET_ADMIN. Without it `net.core.rmem_max` limits the size, which is set only if the granted
//!    buffer reaches [`LARGE_RCVBUF`] and exceeds the default; [`Listeners::has_small_buffers`] reports the other case.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;

use super::rcvbuf_budget::LARGE_RCVBUF;
use super::{Relay, conn, edge_conn};
use crate::listen_error::ListenError;
use crate::tls_listener::Handshakes;

/// Our choice: three RTTs over a satellite, and two retransmissions.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Our choice: the connections that arrive within one RTT when 2,000 edges reconnect at once.
const BACKLOG: i32 = 4096;

/// The listening sockets of a relay.
#[derive(Debug)]
pub struct Listeners {
    listeners: Vec<std::net::TcpListener>,
    handshakes: Arc<Handshakes>,
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
            handshakes: Handshakes::new(relay.config.limits.handshakes, HANDSHAKE_TIMEOUT),
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
            let (for_handshake, for_serving) = (Arc::clone(relay), Arc::clone(relay));
            let handshake = move |socket| {
                // The configuration in force when the connection arrives.
                edge_conn::handshake(socket, Arc::clone(&for_handshake.trusted.borrow().tls))
            };
            let serve = move |edge, _| {
                let relay = Arc::clone(&for_serving);
                async move { conn::serve(edge, &relay).await }
            };
            accepting.spawn(Arc::clone(&self.handshakes).accept(listener, handshake, serve));
        }
        accepting.join_all().await;
        Err(io::Error::other("no listener"))
    }
}

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
