//! Connections of edges: TLS over MPTCP or TCP.
//!
//! The kernel's keep-alive detects vanished edges: a failed link sends no packets that would end the connection.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::tunnel::BufferedSocket;

/// Our choice: a vanished edge and its reservation are removed after three minutes (the kernel's default is nine probes); a mobile radio is
/// not woken more often.
const KEEPALIVE_TIME: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// A connection of an edge, after its handshake.
pub(super) type EdgeConn = TlsStream<BufferedSocket>;

/// Completes the handshake of an accepted connection.
pub(super) async fn handshake(socket: TcpStream, tls: Arc<ServerConfig>) -> io::Result<EdgeConn> {
    // Older kernels refuse some of these options for MPTCP. Then small packets are delayed, or vanished edges are detected later.
    let _ = socket.set_nodelay(true);
    let _ = SockRef::from(&socket).set_keepalive(true);
    let keep_alive = TcpKeepalive::new().with_time(KEEPALIVE_TIME).with_interval(KEEPALIVE_INTERVAL);
    let _ = SockRef::from(&socket).set_tcp_keepalive(&keep_alive);
    TlsAcceptor::from(tls).accept(BufferedSocket::new(socket)).await
}
