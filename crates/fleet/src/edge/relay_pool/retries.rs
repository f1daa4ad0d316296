//! Background probes of failed relays and failed links.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use marline_net::links::Interface;
use tokio::io::AsyncReadExt as _;
use tokio::time::{timeout, timeout_at};

use super::RelayPool;
use crate::edge::dial::{self, CONNECT_TIMEOUT, DialOptions, dial, dial_over};
use crate::edge::relay_list::RelayEntry;
use crate::link_dialer::ConnObservation;

/// How long, besides two RTTs, a retried relay must keep the connection open. Our choice: by then a relay on a busy machine has verified a
/// certificate; only the next state of a failed relay waits for it.
const REJECTION_WAIT: Duration = Duration::from_millis(200);

impl RelayPool {
    /// Retries failed relays at once, because a link has appeared. They may be reachable over it; or a captive portal answers, which the
    /// handshake detects.
    pub(in crate::edge) fn retry_now(&self) {
        self.relays.all().iter().for_each(|entry| entry.retry_now());
        self.retry_changed.notify_one();
    }

    /// Retries failed relays when they are due, until dropped.
    pub(in crate::edge) async fn run_retries(self: &Arc<Self>) -> Infallible {
        loop {
            let next = self.usable_relays().into_iter().filter_map(|entry| Some((entry.retry_at()?, entry)));
            match next.min_by_key(|(at, _)| *at) {
                Some((at, entry)) if at <= Instant::now() => {
                    entry.start_retry(at.max(Instant::now()));
                    tokio::spawn(Arc::clone(self).retry_relay(entry));
                }
                Some((at, _)) => drop(timeout_at(at.into(), self.retry_changed.notified()).await),
                None => self.retry_changed.notified().await,
            }
        }
    }

    /// Retries a failed relay. In TLS 1.3 the client completes its handshake before the relay has seen the client's certificate, and a
    /// relay that rejects it closes the connection (RFC 8446, section 4.4.2.4). Therefore a working relay must keep the connection open for
    /// another two RTTs.
    async fn retry_relay(self: Arc<Self>, entry: Arc<RelayEntry>) {
        let (started_at, trusted) = (Instant::now(), self.trusted());
        let probe = async {
            let (mut conn, rtt) = dial(&entry, &trusted, &self.options, &self.dialer).await?;
            match timeout(2 * rtt + REJECTION_WAIT, conn.read_u8()).await {
                Err(_) => Ok(()),
                Ok(Ok(_)) => Err(io::ErrorKind::ConnectionAborted.into()),
                Ok(Err(error)) => Err(error),
            }
        };
        match probe.await {
            Ok(()) => self.mark_up(&entry),
            // The relay closes without a reason: the earlier reason is more useful.
            Err(error)
                if matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionAborted) => {}
            Err(error) => self.mark_failed(&entry, &error.to_string(), started_at),
        }
    }

    /// Probes failed links until dropped.
    pub(in crate::edge) async fn run_link_probes(self: &Arc<Self>) -> Infallible {
        loop {
            let link = self.dialer.next_probe().await;
            let first_relay = self.usable_relays().into_iter().next();
            tokio::spawn(Arc::clone(self).probe_link(link, first_relay));
        }
    }

    /// Probes a link at the first relay, or, while that is not reachable at all, at the server that a direct flow has reached. Whether a
    /// portal still answers instead of the relay shows only in an attempt to reach a relay.
    async fn probe_link(self: Arc<Self>, link: Arc<Interface>, first_relay: Option<Arc<RelayEntry>>) {
        let started_at = Instant::now();
        let is_usable = first_relay.as_ref().is_some_and(|entry| entry.unreachable_reason().is_none());
        let relay = first_relay.filter(|_| is_usable || self.dialer.has_portal(&link.name));
        let result = match (&relay, self.dialer.direct_probe_target(&link.name)) {
            (Some(relay), _) => {
                let dialled = dial_over(relay, &self.trusted(), &self.options, Some(&link), &self.dialer).await;
                self.notify_changes(relay.has_mptcp_changed());
                dialled.map(|(_, observation)| observation)
            }
            (None, Some(server)) => {
                let options =
                    DialOptions { device: Some(link.name.clone()), plain_tcp: true, ..DialOptions::default() };
                let connected = timeout(CONNECT_TIMEOUT, dial::connect(server, options)).await;
                connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).map(|_| ConnObservation::Reached)
            }
            (None, None) => return,
        };
        self.dialer.record_probe(&link.name, started_at, result, is_usable || relay.is_none());
    }

    /// Probes links for captive portals until dropped.
    pub(in crate::edge) async fn run_portal_probes(self: &Arc<Self>) -> Infallible {
        if self.portals.is_off() {
            std::future::pending::<()>().await;
        }
        loop {
            let (pool, link) = (Arc::clone(self), self.dialer.next_portal_probe().await);
            tokio::spawn(async move {
                let answer = pool.portals.probe(&link, &pool.dialer).await;
                if pool.dialer.record_portal_answer(&link.name, answer) {
                    pool.retry_now();
                }
            });
        }
    }
}
