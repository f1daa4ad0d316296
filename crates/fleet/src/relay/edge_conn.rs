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

/// Our choice: an idle connection of a vanished edge ends after two minutes, when four probes have had no response (the kernel's default of
/// nine takes more than three); a mobile radio is not woken more often than once a minute.
const KEEPALIVE_TIME: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
const KEEPALIVE_RETRIES: u32 = 4;

/// A connection of an edge, after its handshake.
pub(super) type EdgeConn = TlsStream<BufferedSocket>;

/// Completes the handshake of an accepted connection.
pub(super) async fn handshake(socket: TcpStream, tls: Arc<ServerConfig>) -> io::Result<EdgeConn> {
    // Older kernels refuse some of these options for MPTCP. Then small packets are delayed, or vanished edges are detected later.
    let _ = socket.set_nodelay(true);
    enable_keepalive(&socket);
    TlsAcceptor::from(tls).accept(BufferedSocket::new(socket)).await
}

/// Enables keep-alive probes, which detect a vanished edge.
fn enable_keepalive(socket: &TcpStream) {
    let _ = SockRef::from(socket).set_keepalive(true);
    let keep_alive = TcpKeepalive::new()
        .with_time(KEEPALIVE_TIME)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_RETRIES);
    let _ = SockRef::from(socket).set_tcp_keepalive(&keep_alive);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vanished_edge_is_detected_after_two_minutes() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let socket = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            enable_keepalive(&socket);
            let options = SockRef::from(&socket);
            let (time, interval) =
                (options.tcp_keepalive_time().unwrap(), options.tcp_keepalive_interval().unwrap());
            assert!(options.keepalive().unwrap());
            assert_eq!(time + interval * options.tcp_keepalive_retries().unwrap(), Duration::from_secs(120));
        });
    }
}
