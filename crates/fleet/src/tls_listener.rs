//! Accepts connections and runs their TLS handshakes, for the listeners of relays and of the fleet service.
//!
//! Each connection is a task: first its handshake, then the server's own handler.
//!
//! 1. A handshake must finish in time, and the number of concurrent handshakes is limited. Beyond the limit, a new one evicts the oldest of
//!    the network with the most handshakes ([`PendingHandshakes`]).
//! 2. If file descriptors run out, the same handshake is evicted as if the limit were reached.

use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use marline_net::admission::{HandshakeTicket, PendingHandshakes};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

/// Pause after a failed `accept`. Our choice: by then descriptors or memory may be available again.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);
/// After an eviction: the aborted task needs a moment until its descriptor is closed.
const ACCEPT_RETRY_EVICTED: Duration = Duration::from_millis(1);
/// Linux: EMFILE, ENFILE.
const EMFILE: i32 = 24;
const ENFILE: i32 = 23;

/// The handshakes in progress of all listeners of a server.
#[derive(Debug)]
pub(crate) struct Handshakes {
    pending: Mutex<PendingHandshakes<AbortHandle>>,
    max_time: Duration,
}

impl Handshakes {
    /// At most so many handshakes at a time, each within this time.
    pub(crate) fn new(max_handshakes: usize, max_time: Duration) -> Arc<Self> {
        Arc::new(Self { pending: Mutex::new(PendingHandshakes::new(max_handshakes)), max_time })
    }

    /// Accepts connections until dropped: runs `handshake`, and then `serve` with its result and the peer's address.
    pub(crate) async fn accept<S, H, V>(
        self: Arc<Self>,
        listener: TcpListener,
        handshake: impl Fn(TcpStream) -> H,
        serve: impl Fn(S, IpAddr) -> V + Clone + Send + 'static,
    ) -> Infallible
    where
        S: Send + 'static,
        H: Future<Output = io::Result<S>> + Send + 'static,
        V: Future<Output = ()> + Send + 'static,
    {
        loop {
            match listener.accept().await {
                Ok((socket, from)) => self.spawn(from.ip(), handshake(socket), serve.clone()),
                Err(error) => {
                    tracing::debug!(%error, "accept");
                    let is_full = matches!(error.raw_os_error(), Some(EMFILE | ENFILE));
                    let evicted = if is_full { self.lock().evict() } else { None };
                    let pause = if evicted.is_some() { ACCEPT_RETRY_EVICTED } else { ACCEPT_RETRY };
                    evicted.inspect(AbortHandle::abort);
                    sleep(pause).await;
                }
            }
        }
    }

    fn spawn<S, V>(
        self: &Arc<Self>,
        from: IpAddr,
        handshake: impl Future<Output = io::Result<S>> + Send + 'static,
        serve: impl Fn(S, IpAddr) -> V + Send + 'static,
    ) where
        S: Send + 'static,
        V: Future<Output = ()> + Send + 'static,
    {
        let (ticket_tx, ticket_rx) = oneshot::channel();
        let handshakes = Arc::clone(self);
        let task = tokio::spawn(async move {
            // The ticket is issued below, after this task exists, because registering it needs the task's abort handle.
            let Ok(ticket) = ticket_rx.await else { return };
            let result = {
                let _permit = HandshakePermit { handshakes: &handshakes, ticket };
                timeout(handshakes.max_time, handshake).await
            };
            match result {
                Ok(Ok(conn)) => serve(conn, from).await,
                Ok(Err(error)) => tracing::debug!(%from, %error, "connection refused"),
                Err(_) => tracing::debug!(%from, "TLS handshake timed out"),
            }
        });
        let (ticket, evicted) = self.lock().admit(from, task.abort_handle());
        let _ = ticket_tx.send(ticket);
        evicted.inspect(AbortHandle::abort);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, PendingHandshakes<AbortHandle>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The registration of a handshake; removed when dropped, also if the task is aborted.
struct HandshakePermit<'a> {
    handshakes: &'a Handshakes,
    ticket: HandshakeTicket,
}

impl Drop for HandshakePermit<'_> {
    fn drop(&mut self) {
        self.handshakes.lock().release(self.ticket);
    }
}
