//! Spare connections to the first working relay (rules 1 and 2 of the [parent module](super)).

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead as _, ReadBuf};
use tokio::time::{sleep, timeout};

use super::{MAX_PAUSE, MIN_PAUSE, RelayPool, join_dial, lock};
use crate::edge::dial::{self, CONNECT_TIMEOUT, RelayConn};
use crate::edge::relay_list::RelayEntry;

/// Our choice: less than the five minutes for which a relay keeps an idle connection.
const MAX_SPARE_AGE: Duration = Duration::from_secs(240);
/// Shortest time between two changes of the preferred link that drop the spare connections. Our choice: a link that flaps costs few
/// handshakes.
const LINK_CHANGE_PAUSE: Duration = Duration::from_secs(5);

impl RelayPool {
    /// Drops the spare connections when new connections begin over another link than they did: otherwise their first packets would wait for
    /// the old link.
    pub(in crate::edge) async fn run_link_changes(&self) -> Infallible {
        let mut preferred_link = self.dialer.preferred_link();
        loop {
            if preferred_link.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
            self.drop_spares();
            sleep(LINK_CHANGE_PAUSE).await;
        }
    }

    /// Drops the spare connections; those opened from now on use the new links.
    pub(in crate::edge) fn drop_spares(&self) {
        self.generation.fetch_add(1, Ordering::Relaxed);
        lock(&self.spares).clear();
        self.wake.notify_one();
    }

    /// Keeps spare connections open until dropped.
    pub(in crate::edge) async fn run_spares(self: &Arc<Self>) -> Infallible {
        self.dial_configured();
        let (mut pause, mut given_up) = (MIN_PAUSE, None::<Instant>);
        loop {
            let Some(first_relay) = self.usable_relays().into_iter().next() else {
                self.wake.notified().await;
                continue;
            };
            if first_relay.has_failed() {
                // `run_retries` tries it again.
                let _ = timeout(MAX_PAUSE, self.wake.notified()).await;
                continue;
            }
            // The relay has closed a spare connection early (rule 1). If that happens repeatedly, the pause grows.
            if self.drop_stale(&first_relay) {
                let is_again = given_up.replace(Instant::now()).is_some_and(|at| at.elapsed() < MAX_PAUSE * 2);
                pause = if is_again { (pause * 2).min(MAX_PAUSE) } else { MIN_PAUSE };
                self.pause_while_first(&first_relay, pause).await;
                continue;
            }
            // The relay has closed none of them: fill up the spare connections, one at a time.
            let count = lock(&self.spares).len();
            if count >= self.spare_connections {
                let _ = timeout(MAX_SPARE_AGE / 8, self.wake.notified()).await;
                continue;
            }
            // A change of links during the handshake makes the new connection unusable, which the generation shows.
            let generation = self.generation.load(Ordering::Relaxed);
            match join_dial(self.dial_in_background(&first_relay)).await {
                Ok(conn) => {
                    // `drop_spares` increments the generation before it takes this lock.
                    let mut ready = lock(&self.spares);
                    if self.generation.load(Ordering::Relaxed) == generation {
                        ready.push_back((first_relay, Instant::now(), conn));
                    }
                }
                Err(error) => {
                    tracing::debug!(relay = first_relay.config.label, ?error, "not ready");
                    sleep(CONNECT_TIMEOUT).await;
                }
            }
        }
    }

    /// The oldest spare connection to this relay that is still usable.
    pub(super) fn take_spare(&self, entry: &Arc<RelayEntry>) -> Option<RelayConn> {
        let trusted = self.trusted();
        let mut ready = lock(&self.spares);
        while let Some(index) = ready.iter().position(|(owner, ..)| Arc::ptr_eq(owner, entry)) {
            let (_, since, mut conn) = ready.remove(index)?;
            self.wake.notify_one();
            if since.elapsed() < MAX_SPARE_AGE
                && is_idle(&mut conn)
                && dial::check_peer(&conn, entry, &trusted).is_ok()
            {
                return Some(conn);
            }
        }
        None
    }

    /// Waits for this time, or until this relay is no longer the first.
    async fn pause_while_first(&self, first_relay: &Arc<RelayEntry>, time: Duration) {
        let is_first = || self.usable_relays().first().is_some_and(|current| Arc::ptr_eq(current, first_relay));
        let until_replaced = async {
            while is_first() {
                self.wake.notified().await;
            }
        };
        let _ = timeout(time, until_replaced).await;
    }

    /// Drops spare connections that are no longer usable, or belong to a relay that is no longer the first. Returns whether the relay has
    /// closed one of them.
    fn drop_stale(&self, first_relay: &Arc<RelayEntry>) -> bool {
        let (trusted, mut given_up) = (self.trusted(), false);
        lock(&self.spares).retain_mut(|(entry, since, conn)| {
            let is_wanted = Arc::ptr_eq(entry, first_relay)
                && since.elapsed() < MAX_SPARE_AGE
                && dial::check_peer(conn, entry, &trusted).is_ok();
            let is_open = is_wanted && is_idle(conn);
            given_up |= is_wanted && !is_open;
            is_open
        });
        given_up
    }
}

/// Whether the connection is open and nothing was received (rule 2).
fn is_idle(conn: &mut RelayConn) -> bool {
    let mut byte = [0];
    let mut cx = Context::from_waker(Waker::noop());
    matches!(Pin::new(conn).poll_read(&mut cx, &mut ReadBuf::new(&mut byte)), Poll::Pending)
}
