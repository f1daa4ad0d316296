//! Accepts connections, as far as the admission control permits, and configures their HTTP/1.1 side.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper_util::rt::TokioTimer;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::spawn_local;

use crate::client::admission::{ClientAdmission, ConnPermit};
use crate::options::ProxyError;

/// Binds an address; returns it with the port number that was bound.
pub(crate) async fn bind(address: SocketAddr) -> Result<(TcpListener, SocketAddr), ProxyError> {
    let bind_error = |error| ProxyError::Bind { address, error };
    let listener = TcpListener::bind(address).await.map_err(bind_error)?;
    let bound = listener.local_addr().map_err(bind_error)?;
    Ok((listener, bound))
}

/// Accepts connections forever, each served in a task of its own, as far as the admission control permits.
pub(crate) async fn accept<F>(
    listener: &TcpListener,
    clients: &Rc<ClientAdmission>,
    serve: impl Fn(TcpStream, SocketAddr, Rc<ConnPermit>) -> F,
) where
    F: Future<Output = ()> + 'static,
{
    loop {
        let Ok((stream, peer)) = listener.accept().await else {
            // Most likely the process has no descriptors left. Closing an idle connection frees one.
            clients.evict_idle();
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let Some(permit) = clients.admit(peer.ip()) else { continue };
        let _ = stream.set_nodelay(true);
        // Detects clients that have disappeared, which would otherwise hold their permit forever.
        let keep_alive = TcpKeepalive::new().with_time(KEEPALIVE_TIME).with_interval(KEEPALIVE_INTERVAL);
        let _ = SockRef::from(&stream).set_tcp_keepalive(&keep_alive);
        spawn_local(serve(stream, peer, permit));
    }
}

/// The maximum number of client connections for a descriptor limit: a tunnel needs six descriptors, with both its
/// pipes, and a player five connections.
pub(crate) fn max_connections(descriptors: u64) -> usize {
    usize::try_from(descriptors / 8).unwrap_or(usize::MAX).clamp(16, MAX_CONNECTIONS)
}

/// The server side of HTTP/1.1, with small buffers for each connection. `timeout` limits how long a request head may
/// take.
pub(crate) fn http1_builder(timeout: Duration) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(Some(timeout))
        .max_buf_size(MAX_HEAD_BUFFER)
        .keep_alive(true);
    builder
}

/// Our choice: twice what two hundred players with five connections each need.
const MAX_CONNECTIONS: usize = 2000;
/// Our choice: a sleeping phone responds within minutes.
const KEEPALIVE_TIME: Duration = Duration::from_secs(120);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
/// The largest request head. Bodies are not buffered here.
const MAX_HEAD_BUFFER: usize = 64 * 1024;
