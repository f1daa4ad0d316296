//! Opens tunnels through relays: keeps spare connections, tries relays in order with hedging, and retries those that failed.
//!
//! 1. [`Config::spare_connections`](super::Config::spare_connections) connections to the first working relay are kept open. A flow takes
//!    the oldest one that is still usable, and a replacement is opened at once. They are replaced before the relay closes them
//!    (`MAX_SPARE_AGE`). A relay that closes them earlier drains, or no longer accepts the edge; then the next attempt follows after
//!    [`MIN_PAUSE`], growing to [`MAX_PAUSE`]. They are dropped when new connections begin over another link than before.
//! 2. If a relay sends data over a spare connection before a request, it is closing the connection. Such a connection is dropped, and so is
//!    one that answers a request with 408.
//! 3. Relays are tried in their order ([`RelayList::order`]). After [`HEDGE_DELAY`] without an answer the next one is tried as well, and
//!    the first tunnel is used. A CONNECT request may be sent twice because no payload goes with it.
//! 4. If a spare connection does not answer within the same time, a new connection to the same relay is opened. If that fails, the relay is
//!    unreachable, and so are all its spare connections. If it succeeds, the origin server is slow, and the edge waits for both.
//! 5. If flows may go directly and no relay was reachable at the last attempt, new flows do not wait for relays: they are retried in the
//!    background ([`RelayPool::run_retries`]). A relay that has never answered delays a flow by at most [`UNKNOWN_RELAY_WAIT`].
//! 6. An error response of a relay concerns the origin server or the access rules, so no other relay is tried. The exceptions are 503 (full
//!    or draining) and 408 (the relay has not seen the request): then the next one is tried.

mod retries;
mod spares;

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, sleep_until, timeout};

use super::Config;
use super::connect_request::{ConnectError, REQUEST_TIMEOUT_STATUS, RelayResponse, request_tunnel};
use super::dial::{DialOptions, RelayConn, dial};
use super::portal::PortalProber;
use super::relay_list::{RelayConfig, RelayEntry, RelayList};
use super::trust::ClientTrust;
use crate::link_dialer::LinkDialer;
use crate::tunnel::Target;

/// Our choice: a relay that was restarted is up again; two thousand edges that return to a draining relay cost it little.
const MIN_PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(60);
/// Our choice: a tunnel over a spare connection takes an RTT to the relay and one to the origin server; a second relay must carry flows
/// within three seconds after the first one disappears.
const HEDGE_DELAY: Duration = Duration::from_millis(1500);

/// Our choice: more than the RTT of a satellite link. One flow over a slower link goes directly.
const UNKNOWN_RELAY_WAIT: Duration = Duration::from_millis(700);

/// How long a new flow waits for an assignment. Our choice: one of the next heartbeats brings one, and programs give up after half a
/// minute.
const ADMISSION_WAIT: Duration = if cfg!(test) { Duration::from_millis(600) } else { Duration::from_secs(20) };

/// How often one flow tries all relays, if relays carry other flows meanwhile. Our choice: each attempt takes as long as a relay may take
/// to answer.
const MAX_ATTEMPTS: usize = 3;

/// Why no tunnel was opened.
#[derive(Debug, thiserror::Error)]
pub(super) enum TunnelError {
    /// No relay was reachable, or all refused: the error of the last one.
    #[error("no relay is available: {0}")]
    NoRelay(String),
    /// The fleet service has reported that no relay has capacity for this edge, and has assigned none in time.
    #[error("no relay of the fleet has capacity for this edge; the edge waits for an assignment")]
    Waiting,
    /// A relay has refused the request; another relay would as well.
    #[error("{}", .0.details)]
    Refused(RelayResponse),
}

/// An open tunnel to an origin server through a relay.
#[derive(Debug)]
pub(super) struct Tunnel {
    pub(super) conn: RelayConn,
    pub(super) entry: Arc<RelayEntry>,
    /// Payload that arrived together with the relay's response.
    pub(super) early_data: Vec<u8>,
}

/// Spare connections, and the relays that tunnels may use.
#[derive(Debug)]
pub(super) struct RelayPool {
    pub(super) relays: RelayList,
    spare_connections: usize,
    /// Whether flows may go directly, without a relay.
    allow_direct: bool,
    options: DialOptions,
    portals: PortalProber,
    pub(super) dialer: Arc<LinkDialer>,
    trusted: Mutex<ClientTrust>,
    /// Incremented when connections that were opened before must not be used any more.
    generation: AtomicU64,
    /// Spare connections, the oldest first: the relay, and since when.
    spares: Mutex<VecDeque<(Arc<RelayEntry>, Instant, RelayConn)>>,
    /// A spare connection was taken, or the relay list has changed.
    wake: Notify,
    relay_failed: Notify,
    /// The time of the next retry of a failed relay has changed.
    retry_changed: Notify,
    /// See [`RelayPool::changes`].
    changes: watch::Sender<u64>,
    /// Whether the fleet's relays are not used until the service has assigned one.
    waits_for_assignment: watch::Sender<bool>,
}

/// Result of one relay's attempt.
type Attempt = (Arc<RelayEntry>, Result<(RelayConn, Vec<u8>), ConnectError>);

impl RelayPool {
    pub(super) fn new(config: &Config, trusted: ClientTrust) -> Arc<Self> {
        Arc::new(Self {
            relays: RelayList::new(&config.relays),
            spare_connections: config.spare_connections,
            allow_direct: config.allow_direct,
            options: DialOptions { congestion: config.congestion.clone(), ..DialOptions::default() },
            portals: PortalProber::new(&config.portal_probe),
            dialer: LinkDialer::new(),
            trusted: Mutex::new(trusted),
            generation: AtomicU64::default(),
            spares: Mutex::default(),
            wake: Notify::new(),
            relay_failed: Notify::new(),
            retry_changed: Notify::new(),
            changes: watch::Sender::default(),
            waits_for_assignment: watch::Sender::default(),
        })
    }

    /// Replaces the relays; open flows continue.
    pub(super) fn set_relays(&self, list: &[RelayConfig]) {
        if self.relays.replace(list) {
            self.wake.notify_one();
        }
    }

    /// Replaces the credentials and trusted authorities.
    pub(super) fn set_trust(&self, trusted: ClientTrust) {
        *lock(&self.trusted) = trusted;
        self.wake.notify_one();
    }

    pub(super) fn trusted(&self) -> ClientTrust {
        lock(&self.trusted).clone()
    }

    /// Sets whether new flows wait until the fleet service assigns a relay. Relays of the command line are used in any case.
    pub(super) fn set_waiting(&self, is_held: bool) {
        if self.waits_for_assignment.send_if_modified(|now| std::mem::replace(now, is_held) != is_held) {
            self.retry_changed.notify_one();
            self.wake.notify_one();
        }
    }

    /// The usable relays, in the order in which they are tried.
    fn usable_relays(&self) -> Vec<Arc<RelayEntry>> {
        let mut order = self.relays.order();
        if *self.waits_for_assignment.borrow() {
            order.retain(|entry| entry.config.member.is_none());
        }
        order
    }

    /// Waits for an assignment if new flows have to and there is no other relay.
    async fn wait_for_admission(&self) -> Result<(), TunnelError> {
        let mut waiting = self.waits_for_assignment.subscribe();
        if !*waiting.borrow() || !self.usable_relays().is_empty() {
            return Ok(());
        }
        let assigned = timeout(ADMISSION_WAIT, waiting.wait_for(|waiting| !waiting)).await;
        assigned.map(drop).map_err(|_| TunnelError::Waiting)
    }

    /// Returns when a relay has failed since the last call.
    pub(super) async fn relay_failed(&self) {
        self.relay_failed.notified().await;
    }

    /// Opens a tunnel to this target.
    pub(super) async fn open_tunnel(self: &Arc<Self>, target: &Target) -> Result<Tunnel, TunnelError> {
        self.wait_for_admission().await?;
        if !self.allow_direct {
            return self.open_tunnel_retrying(target).await;
        }
        // Rule 5.
        let order = self.usable_relays();
        let failures: Vec<String> = order.iter().filter_map(|entry| entry.unreachable_reason()).collect();
        if failures.len() == order.len() {
            // If a portal is detected by a plain HTTP request, no handshake with a relay is needed for it.
            let soon = |is_sooner, entry: &Arc<RelayEntry>| entry.retry_soon() | is_sooner;
            if self.portals.is_off() && order.iter().fold(false, soon) {
                self.retry_changed.notify_one();
            }
            return Err(TunnelError::NoRelay(
                failures.into_iter().next_back().unwrap_or_else(|| NO_RELAY_TEXT.to_owned()),
            ));
        }
        tokio::select! {
            result = self.open_tunnel_retrying(target) => result,
            () = self.unknown_relay_timeout() => Err(TunnelError::NoRelay("no answer yet".to_owned())),
        }
    }

    /// Returns when no relay of the list has ever answered, although each had [`UNKNOWN_RELAY_WAIT`] to do so.
    async fn unknown_relay_timeout(&self) {
        let last = self.usable_relays().iter().map(|entry| entry.first_tried()).max();
        sleep_until((last.unwrap_or_else(Instant::now) + UNKNOWN_RELAY_WAIT).into()).await;
        if self.usable_relays().iter().any(|entry| entry.has_answered()) {
            std::future::pending::<()>().await;
        }
    }

    async fn open_tunnel_retrying(self: &Arc<Self>, target: &Target) -> Result<Tunnel, TunnelError> {
        let started_at = Instant::now();
        for _ in 1..MAX_ATTEMPTS {
            match self.open_tunnel_once(target).await {
                // A relay that has carried other flows meanwhile is slow, not unreachable: that happens when many flows start at once.
                Err(TunnelError::NoRelay(_))
                    if self.relays.all().iter().any(|relay| relay.has_tunnel_since(started_at)) => {}
                result => return result,
            }
        }
        self.open_tunnel_once(target).await
    }

    async fn open_tunnel_once(self: &Arc<Self>, target: &Target) -> Result<Tunnel, TunnelError> {
        let started_at = Instant::now();
        let mut last = NO_RELAY_TEXT.to_owned();
        let mut remaining = self.usable_relays().into_iter();
        let mut running: JoinSet<Attempt> = JoinSet::new();
        loop {
            // Each pass starts the next relay's attempt. It is reached when an attempt has failed, or when none has ended within the hedge
            // delay; earlier attempts go on meanwhile.
            if let Some(entry) = remaining.next() {
                let (pool, target) = (Arc::clone(self), target.clone());
                running.spawn(async move {
                    let attempt = pool.try_relay(&entry, &target).await;
                    (entry, attempt)
                });
            }
            let is_last = remaining.len() == 0;
            let (entry, attempt) = tokio::select! {
                joined = running.join_next() => match joined {
                    Some(Ok(ended)) => ended,
                    Some(Err(error)) => {
                        last = error.to_string();
                        continue;
                    }
                    // No attempt is running: all relays have failed, or the list is empty.
                    None if is_last => return Err(TunnelError::NoRelay(last)),
                    None => continue,
                },
                () = sleep(HEDGE_DELAY), if !is_last => continue,
            };
            match attempt {
                Ok((conn, early_data)) => {
                    entry.note_tunnel();
                    self.mark_up(&entry);
                    return Ok(Tunnel { conn, entry, early_data });
                }
                // Rule 6: another relay would refuse as well.
                Err(ConnectError::Refused(answer))
                    if !matches!(answer.status, SERVICE_UNAVAILABLE | REQUEST_TIMEOUT_STATUS) =>
                {
                    return Err(TunnelError::Refused(answer));
                }
                Err(ConnectError::Refused(answer)) => {
                    self.handle_failure(&entry, entry.note_refusal(&answer.details));
                    last = answer.details;
                }
                Err(ConnectError::Connection(error)) => {
                    self.mark_failed(&entry, &error.to_string(), started_at);
                    last = format!("{}: {error}", entry.config.label);
                }
            }
            tracing::warn!(relay = entry.config.label, why = last, "relay cannot carry a flow");
        }
    }

    /// Requests the tunnel from this relay: over a spare connection, or over a new one.
    async fn try_relay(
        self: &Arc<Self>,
        entry: &Arc<RelayEntry>,
        target: &Target,
    ) -> Result<(RelayConn, Vec<u8>), ConnectError> {
        while let Some(conn) = self.take_spare(entry) {
            let first_request = request_tunnel(conn, target);
            tokio::pin!(first_request);
            // Rule 2: a connection that the relay has closed meanwhile costs no time, so the next spare one is tried. Rule 4: if there is
            // no answer, a new connection shows whether the relay is reachable.
            let second_dial = tokio::select! {
                first = &mut first_request => match first {
                    Err(error) if error.is_connection_failure() => continue,
                    result => return result,
                },
                () = sleep(HEDGE_DELAY) => self.dial_in_background(entry),
            };
            // The dial continues if its caller is dropped: its result counts for the next flow.
            let second_request = async {
                let conn = join_dial(second_dial).await?;
                request_tunnel(conn, target).await
            };
            tokio::pin!(second_request);
            return tokio::select! {
                first = &mut first_request => match first {
                    Err(error) if error.is_connection_failure() => second_request.await,
                    result => result,
                },
                result = &mut second_request => result,
            };
        }
        let conn = join_dial(self.dial_in_background(entry)).await?;
        request_tunnel(conn, target).await
    }

    /// Opens a new connection in a task that records the result even if its caller is dropped.
    fn dial_in_background(self: &Arc<Self>, entry: &Arc<RelayEntry>) -> JoinHandle<io::Result<RelayConn>> {
        let (pool, entry, trusted) = (Arc::clone(self), Arc::clone(entry), self.trusted());
        tokio::spawn(async move {
            let started_at = Instant::now();
            entry.first_tried();
            match entry.handshake_limiter.run(dial(&entry, &trusted, &pool.options, &pool.dialer)).await {
                // A failed relay counts as recovered only after it has carried a flow, or after a retry.
                Ok((conn, _)) if entry.has_failed() => {
                    pool.notify_changes(entry.has_mptcp_changed());
                    Ok(conn)
                }
                Ok((conn, _)) => {
                    pool.mark_up(&entry);
                    Ok(conn)
                }
                Err(error) => {
                    pool.mark_failed(&entry, &error.to_string(), started_at);
                    Err(error)
                }
            }
        })
    }

    fn mark_up(&self, entry: &RelayEntry) {
        if entry.note_attempt(Ok(())) | entry.has_mptcp_changed() {
            self.notify_changes(true);
            self.wake.notify_one();
        }
    }

    /// Records a failure and drops the spare connections (rule 4). An attempt that fails while others succeed is no evidence against the
    /// relay: many that start at once are slow.
    fn mark_failed(&self, entry: &Arc<RelayEntry>, reason: &str, since: Instant) {
        if entry.has_tunnel_since(since) {
            return;
        }
        self.handle_failure(entry, entry.note_attempt(Err(reason)));
    }

    fn handle_failure(&self, entry: &Arc<RelayEntry>, has_changed: bool) {
        self.notify_changes(has_changed);
        if self.usable_relays().iter().all(|entry| entry.unreachable_reason().is_some()) {
            self.dialer.record_no_relay_reached();
        }
        lock(&self.spares).retain(|(owner, ..)| !Arc::ptr_eq(owner, entry));
        self.wake.notify_one();
        self.relay_failed.notify_one();
        self.retry_changed.notify_one();
    }

    fn notify_changes(&self, has_changed: bool) {
        if has_changed {
            self.changes.send_modify(|count| *count = count.wrapping_add(1));
        }
    }

    /// Changes when a relay fails, fails for another reason, or recovers.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Tries each relay of the command line that gets no spare connection, so that an unreachable one is known at once and not when it is
    /// needed. Relays of the fleet service are probed by the relay selection.
    fn dial_configured(self: &Arc<Self>) {
        let configured = self.relays.all().into_iter().filter(|entry| entry.config.member.is_none());
        configured
            .skip(usize::from(self.spare_connections > 0))
            .for_each(|entry| drop(self.dial_in_background(&entry)));
    }
}

const NO_RELAY_TEXT: &str = "no relay is configured";
/// HTTP status of a relay that is full or drains.
const SERVICE_UNAVAILABLE: u16 = 503;

async fn join_dial(task: JoinHandle<io::Result<RelayConn>>) -> Result<RelayConn, ConnectError> {
    task.await.map_err(|error| ConnectError::Connection(io::Error::other(error)))?.map_err(ConnectError::Connection)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn relay_config(member: Option<&str>) -> RelayConfig {
        let endpoints = vec!["127.0.0.1:1".parse().unwrap()];
        let member = member.map(|name| name.parse().unwrap());
        RelayConfig { label: "r".to_owned(), server_name: "127.0.0.1".try_into().unwrap(), endpoints, member }
    }

    fn new_pool(relays: Vec<RelayConfig>) -> Arc<RelayPool> {
        let config = Config {
            listen: Vec::new(),
            relays,
            spare_connections: 0,
            allow_direct: false,
            congestion: None,
            lan: false,
            admission: super::super::AdmissionConfig::default(),
            portal_probe: super::super::PortalProbe::OFF,
            local_domains: Vec::new(),
        };
        let provider = Arc::new(crate::crypto::crypto_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let tls = builder.unwrap().with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth();
        RelayPool::new(&config, Arc::new(tls).into())
    }

    #[test]
    fn new_flows_wait_for_the_fleets_relays_and_not_for_those_of_the_command_line() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let target = Target::new("192.0.2.1", 80).unwrap();
            let pool = new_pool(vec![relay_config(Some("a"))]);
            pool.set_waiting(true);
            let started_at = Instant::now();
            assert!(matches!(pool.open_tunnel(&target).await, Err(TunnelError::Waiting)));
            assert!(started_at.elapsed() >= ADMISSION_WAIT);
            // An assignment in time releases the flow; its relay is not listening.
            let shared_pool = Arc::clone(&pool);
            let release = tokio::spawn(async move {
                sleep(ADMISSION_WAIT / 4).await;
                shared_pool.set_waiting(false);
            });
            assert!(matches!(pool.open_tunnel(&target).await, Err(TunnelError::NoRelay(_))));
            release.await.unwrap();
            let mixed_pool = new_pool(vec![relay_config(Some("a")), relay_config(None)]);
            mixed_pool.set_waiting(true);
            assert_eq!(mixed_pool.usable_relays().len(), 1);
            assert!(matches!(mixed_pool.open_tunnel(&target).await, Err(TunnelError::NoRelay(_))));
        });
    }
}
