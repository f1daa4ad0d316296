//! Forwards one connection: from a program that uses TCP to a server that may support MPTCP.
//!
//! 1. The socket to the server carries a mark ([`FORWARDER_MARK`]) that the nftables rules exclude; otherwise it would
//!    be redirected to the forwarder again.
//! 2. A failure resets both sides and never looks like an orderly end. The same holds when the forwarder itself ends.
//! 3. Delaying small packets is up to the end hosts: the forwarder adds no delay (`TCP_NODELAY`).

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use marline_core::units::DataSize;
use marline_net::{mptcp, splice};
use marline_sys::mptcp::MptcpStatus;
use rustix::net::sockopt::set_tcp_congestion;
use socket2::{SockRef, Socket};
use tokio::net::{TcpSocket, TcpStream};

use super::nft_rules::FORWARDER_MARK;
use super::{Config, ForwardError, ForwarderCounters};

/// Checks at the start that connections to servers can be created: the kernel has MPTCP, and marks are permitted.
pub(super) fn check_sockets() -> Result<(), ForwardError> {
    let probe = marked_mptcp_socket(SocketAddr::from(([127, 0, 0, 1], 0)));
    probe.map(drop).map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => ForwardError::NotPermitted,
        _ => ForwardError::Socket { object: "an MPTCP socket", error },
    })
}

/// Forwards a connection until it ends.
pub(super) async fn forward_connection(client: TcpStream, config: &Config, counters: &ForwarderCounters) {
    let Some(destination) = original_destination(&client) else {
        tracing::debug!("a connection that was not redirected here");
        return set_reset_on_close(&client);
    };
    let server = match tokio::time::timeout(config.connect_timeout, connect_mptcp(destination)).await {
        Ok(Ok(server)) => server,
        result => {
            counters.failed.fetch_add(1, Ordering::Relaxed);
            let reason = result.map_or_else(|_| "no answer".to_owned(), |attempt| error_text(attempt.err()));
            tracing::debug!(%destination, reason, "server not reached");
            return set_reset_on_close(&client);
        }
    };
    let mptcp_status = MptcpStatus::query(&server).unwrap_or(MptcpStatus::PlainTcp);
    let counter = if mptcp_status == MptcpStatus::Negotiated { &counters.mptcp } else { &counters.fallen_back };
    counter.fetch_add(1, Ordering::Relaxed);
    tracing::debug!(%destination, ?mptcp_status, "connected");
    counters.open.fetch_add(1, Ordering::Relaxed);
    let _open = OpenConnection(&counters.open);
    // From now on every end resets both sides, except an orderly end of both.
    set_reset_on_close(&client);
    set_reset_on_close(&server);
    match relay_bytes(&client, &server, config, &counters.bytes).await {
        Ok(()) => {
            set_orderly_close(&client);
            set_orderly_close(&server);
        }
        Err(error) => tracing::debug!(%destination, %error, "connection failed"),
    }
}

fn error_text(error: Option<io::Error>) -> String {
    error.map(|error| error.to_string()).unwrap_or_default()
}

/// Subtracts a connection from the counter of open ones when it is dropped, however the connection ends.
struct OpenConnection<'a>(&'a AtomicU64);

impl Drop for OpenConnection<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Original destination of a redirected connection; none: it was not redirected. TPROXY leaves packets unchanged, so the
/// accepted socket has the server's address as its local one.
fn original_destination(client: &TcpStream) -> Option<SocketAddr> {
    client.local_addr().ok().filter(|destination| !destination.ip().is_loopback())
}

async fn connect_mptcp(destination: SocketAddr) -> io::Result<TcpStream> {
    let (socket, destination) = marked_mptcp_socket(destination)?;
    socket.set_tcp_nodelay(true)?;
    TcpSocket::from_std_stream(socket.into()).connect(destination).await
}

/// A socket with the forwarder's mark, and the address to connect it to: for an IPv4 server its IPv4-mapped IPv6
/// address.
fn marked_mptcp_socket(destination: SocketAddr) -> io::Result<(Socket, SocketAddr)> {
    let (socket, destination) = mptcp::mptcp_socket_to(destination)?;
    socket.set_mark(FORWARDER_MARK)?;
    Ok((socket, destination))
}

/// Relays both directions until both have ended. Fails after the idle timeout, or the shorter one of a half-closed
/// connection, without data.
async fn relay_bytes(client: &TcpStream, server: &TcpStream, config: &Config, bytes: &AtomicU64) -> io::Result<()> {
    client.set_nodelay(true)?;
    // The loopback has no congestion, and pacing (BBR, if it is the host's default) would only slow it down. Every
    // kernel has Reno; if a sandbox forbids setting it, nothing else changes.
    let _ = set_tcp_congestion(client, "reno");
    let on_bytes = |_, size: DataSize| {
        bytes.fetch_add(size.bytes(), Ordering::Relaxed);
    };
    splice::splice_both(client, server, config.idle_timeout, on_bytes).await
}

/// Makes a later close send a RST, so that the peer notices the failure.
fn set_reset_on_close(socket: &impl AsFd) {
    // On an error the close looks orderly, as without this call.
    let _ = SockRef::from(&socket.as_fd()).set_linger(Some(Duration::ZERO));
}

/// Makes a later close orderly: pending data is still sent.
fn set_orderly_close(socket: &impl AsFd) {
    let _ = SockRef::from(&socket.as_fd()).set_linger(None);
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (connected, accepted) =
            tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
        (connected.unwrap(), accepted.unwrap().0)
    }

    fn block_on(future: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future);
    }

    #[test]
    fn the_end_of_one_direction_leaves_the_other_open() {
        block_on(async {
            let ((mut program, client), (server_side, mut server)) = (pair().await, pair().await);
            let bytes = AtomicU64::new(0);
            let config = Config::default();
            let exchange = async {
                program.write_all(b"question").await.unwrap();
                program.shutdown().await.unwrap();
                let mut received = Vec::new();
                server.read_to_end(&mut received).await.unwrap();
                assert_eq!(received, b"question");
                server.write_all(b"answer").await.unwrap();
                drop(server);
                received.clear();
                program.read_to_end(&mut received).await.unwrap();
                assert_eq!(received, b"answer");
            };
            let (outcome, ()) = tokio::join!(relay_bytes(&client, &server_side, &config, &bytes), exchange);
            outcome.unwrap();
            assert_eq!(bytes.into_inner(), 14);
        });
    }

    #[test]
    fn an_idle_connection_ends() {
        block_on(async {
            let ((program, client), (server_side, _server)) = (pair().await, pair().await);
            let config = Config { idle_timeout: Duration::from_millis(20), ..Config::default() };
            let error = relay_bytes(&client, &server_side, &config, &AtomicU64::new(0)).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            drop(program);
        });
    }

    #[test]
    fn a_direct_connection_has_no_original_destination() {
        block_on(async {
            let (_program, client) = pair().await;
            assert_eq!(original_destination(&client), None);
        });
    }

    #[test]
    fn a_failure_on_one_side_resets_the_other() {
        block_on(async {
            let (mut program, client) = pair().await;
            set_reset_on_close(&client);
            drop(client);
            let error = program.read(&mut [0; 1]).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        });
    }
}
