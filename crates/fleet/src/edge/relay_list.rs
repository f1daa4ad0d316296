//! List of the relays that an edge may use: their addresses, and the results of attempts to use them.
//!
//! The list comes from the command line or from the fleet service, the best relay first. The results of attempts determine the order in
//! which relays are tried.
//!
//! 1. A relay that stays on the list keeps its state. Flows over a relay that left the list continue.
//! 2. A relay that failed is tried after the others until an attempt succeeds. It is retried in the background at intervals that grow
//!    from [`FIRST_RETRY`] to [`LAST_RETRY`], at once when a link appears, and after [`DIRECT_RETRY`] while flows go directly because no
//!    relay is reachable and no portal probe is sent. A relay that answers and refuses flows is only retried by a flow, after
//!    [`LAST_RETRY`].
//! 3. Names are resolved when they are needed, because a failed lookup may succeed later. The last known addresses are used while no DNS
//!    server answers, and a lookup then takes at most [`REFRESH_TIMEOUT`]: the DNS server may be behind a link in an outage.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use marline_net::links::Interface;
use rustls::pki_types::ServerName;
use tokio::net::lookup_host;
use tokio::time::timeout;

use super::handshake_limiter::HandshakeLimiter;
use super::traffic_meter::TrafficMeter;
use crate::identity::Name;
use crate::link_dialer::LinkDialer;
use crate::service::api_types::Endpoint;

/// Our choice: a relay that was restarted is up again.
const FIRST_RETRY: Duration = Duration::from_secs(1);
/// Our choice: how soon a recovered relay is used again, and how long a full or draining relay gets no flows.
const LAST_RETRY: Duration = Duration::from_secs(10);
/// Our choice: without a portal probe only a handshake with a relay detects a captive portal that has appeared on a link, and until then
/// the portal answers direct flows.
const DIRECT_RETRY: Duration = Duration::from_secs(2);
/// Our choice: the usual TTL of a DNS record, so that a relay's new address is found by then.
const DNS_LIFETIME: Duration = Duration::from_secs(60);
/// Our choice: a resolver's first query and its second one.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(2);
/// Limit of a lookup if an address is known. Our choice: a reachable DNS server answers sooner, and a new flow cannot wait much longer.
const REFRESH_TIMEOUT: Duration = Duration::from_millis(500);

/// Address and identity of a relay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayConfig {
    /// The label for people.
    pub label: String,
    /// The name or address that its certificate must contain.
    pub server_name: ServerName<'static>,
    /// Where it listens, in order of preference.
    pub endpoints: Vec<Endpoint>,
    /// Its identity, if it comes from the fleet service: the certificate must name the same.
    pub member: Option<Name>,
}

/// One relay of the list with its state.
#[derive(Debug)]
pub(super) struct RelayEntry {
    pub(super) config: RelayConfig,
    pub(super) traffic_meter: Arc<TrafficMeter>,
    /// Limits concurrent handshakes with it.
    pub(super) handshake_limiter: HandshakeLimiter,
    state: Mutex<RelayHealth>,
}

#[derive(Debug, Default)]
struct RelayHealth {
    /// The last attempt failed.
    failure: Option<Failure>,
    /// When it was first tried.
    first_tried: Option<Instant>,
    /// The links over which its address has accepted a connection; `None`: a connection that was not bound to a link.
    answering_links: BTreeSet<Option<String>>,
    /// Whether the last connection over each link spoke MPTCP.
    mptcp_by_link: BTreeMap<String, bool>,
    /// The value that [`RelayEntry::has_mptcp_changed`] last compared with.
    was_mptcp_unsupported: bool,
    /// When it last opened a tunnel.
    last_tunnel: Option<Instant>,
    /// Its addresses, and when each was resolved; `None`: by an earlier run.
    resolved: Vec<(SocketAddr, Option<Instant>)>,
}

#[derive(Clone, Debug)]
struct Failure {
    reason: String,
    /// The relay answers, but accepts no flow for now.
    is_refusal: bool,
    /// When the next attempt is due, and how long after this one.
    retry_at: Instant,
    pause: Duration,
}

/// What a connection shows about MPTCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MptcpSupport {
    /// Both endpoints speak it.
    Supported,
    /// The connection fell back to plain TCP on this link, and another link carries MPTCP or was not tried yet.
    Stripped,
    /// Connections fell back on every link: the relay does not support it.
    Unsupported,
}

fn is_mptcp_unsupported(mptcp: &BTreeMap<String, bool>) -> bool {
    mptcp.len() > 1 && mptcp.values().all(|speaks| !speaks)
}

impl RelayEntry {
    fn new(config: RelayConfig) -> Self {
        Self {
            config,
            traffic_meter: Arc::default(),
            handshake_limiter: HandshakeLimiter::default(),
            state: Mutex::default(),
        }
    }

    /// Records the result of an attempt to reach it; returns whether the state, or the reason of the failure, changed.
    pub(super) fn note_attempt(&self, result: Result<(), &str>) -> bool {
        self.note_attempt_at(Instant::now(), result.map_err(|why| (why, FIRST_RETRY)))
    }

    /// Records that it answers but accepts no flow for now; returns whether that is a change.
    pub(super) fn note_refusal(&self, reason: &str) -> bool {
        self.note_attempt_at(Instant::now(), Err((reason, LAST_RETRY)))
    }

    fn note_attempt_at(&self, now: Instant, result: Result<(), (&str, Duration)>) -> bool {
        let mut state = self.lock();
        let previous = state.failure.take();
        state.failure = result.err().map(|(why, pause)| {
            let is_refusal = pause == LAST_RETRY;
            match &previous {
                // It was tried again, and refused again.
                Some(failed) if is_refusal && failed.retry_at <= now => {
                    Failure { reason: why.to_owned(), is_refusal, retry_at: now + pause, pause }
                }
                // Flows that fail together, or before the next attempt is due, do not postpone it.
                Some(failed) => Failure { reason: why.to_owned(), is_refusal, ..*failed },
                None => Failure { reason: why.to_owned(), is_refusal, retry_at: now + pause, pause },
            }
        });
        previous.map(|failed| failed.reason) != state.failure.as_ref().map(|failed| failed.reason.clone())
    }

    /// Why it is not reachable, as far as known; `None`: it is, or was not tried yet.
    pub(super) fn unreachable_reason(&self) -> Option<String> {
        self.lock().failure.as_ref().filter(|failed| !failed.is_refusal).map(|failed| failed.reason.clone())
    }

    /// When the next attempt in the background is due; `None`: it has not failed, or refuses flows.
    pub(super) fn retry_at(&self) -> Option<Instant> {
        self.lock().failure.as_ref().filter(|failed| !failed.is_refusal).map(|failed| failed.retry_at)
    }

    /// An attempt in the background starts now: the next one follows after a longer pause, whatever the result.
    pub(super) fn start_retry(&self, now: Instant) {
        if let Some(failed) = &mut self.lock().failure {
            failed.pause = (2 * failed.pause).min(LAST_RETRY);
            failed.retry_at = now + failed.pause;
        }
    }

    /// Makes the next attempt in the background due now. Later pauses grow from [`FIRST_RETRY`] again.
    pub(super) fn retry_now(&self) {
        if let Some(failed) = self.lock().failure.as_mut().filter(|failed| !failed.is_refusal) {
            (failed.retry_at, failed.pause) = (Instant::now(), FIRST_RETRY);
        }
    }

    /// A flow goes directly because no relay is reachable: the next attempt is due [`DIRECT_RETRY`] after the last one. Returns whether
    /// this made it earlier.
    pub(super) fn retry_soon(&self) -> bool {
        let mut state = self.lock();
        let Some(failed) =
            state.failure.as_mut().filter(|failed| !failed.is_refusal && failed.pause > DIRECT_RETRY)
        else {
            return false;
        };
        failed.retry_at -= failed.pause - DIRECT_RETRY;
        failed.pause = DIRECT_RETRY;
        true
    }

    /// Records that it is tried now, and returns when it was tried for the first time.
    pub(super) fn first_tried(&self) -> Instant {
        *self.lock().first_tried.get_or_insert_with(Instant::now)
    }

    /// Whether its address has ever accepted a connection.
    pub(super) fn has_answered(&self) -> bool {
        !self.lock().answering_links.is_empty()
    }

    /// Records whether the relay, or something else, answered at its address over this link.
    pub(super) fn note_answer(&self, link: Option<&str>, is_relay: bool) {
        let (link, answered) = (link.map(str::to_owned), &mut self.lock().answering_links);
        if is_relay {
            answered.insert(link)
        } else {
            answered.remove(&link)
        };
    }

    /// Records whether a new connection over `link`, one of `links`, speaks MPTCP.
    pub(super) fn note_mptcp(&self, link: &str, links: &[String], is_mptcp: bool) -> MptcpSupport {
        let mut state = self.lock();
        if is_mptcp && is_mptcp_unsupported(&state.mptcp_by_link) {
            // The relay speaks MPTCP again: what the other links showed before was the relay's fault.
            state.mptcp_by_link.clear();
        }
        state.mptcp_by_link.retain(|name, _| links.contains(name));
        state.mptcp_by_link.insert(link.to_owned(), is_mptcp);
        let is_known = links.iter().all(|link| state.mptcp_by_link.contains_key(link));
        match is_mptcp {
            true => MptcpSupport::Supported,
            false if is_known && is_mptcp_unsupported(&state.mptcp_by_link) => MptcpSupport::Unsupported,
            false => MptcpSupport::Stripped,
        }
    }

    /// Whether it has started or stopped speaking MPTCP since the last call.
    pub(super) fn has_mptcp_changed(&self) -> bool {
        let mut state = self.lock();
        let now = is_mptcp_unsupported(&state.mptcp_by_link);
        std::mem::replace(&mut state.was_mptcp_unsupported, now) != now
    }

    /// Whether there are several links and none of them carries MPTCP to it.
    pub(super) fn is_without_mptcp(&self) -> bool {
        is_mptcp_unsupported(&self.lock().mptcp_by_link)
    }

    /// Records that it has opened a tunnel.
    pub(super) fn note_tunnel(&self) {
        self.lock().last_tunnel = Some(Instant::now());
    }

    /// Whether it has opened a tunnel since this time.
    pub(super) fn has_tunnel_since(&self, since: Instant) -> bool {
        self.lock().last_tunnel.is_some_and(|at| at >= since)
    }

    /// Why the last attempt failed, however long ago; `None`: it did not.
    pub(super) fn failure_reason(&self) -> Option<String> {
        self.lock().failure.as_ref().map(|failed| failed.reason.clone())
    }

    /// Whether the last attempt failed, however long ago.
    pub(super) fn has_failed(&self) -> bool {
        self.lock().failure.is_some()
    }

    /// Whether the last attempt failed and the next one is not due yet. A relay that refuses flows is retried by a flow, because a
    /// handshake alone does not show whether it accepts one.
    fn is_deferred(&self) -> bool {
        self.lock().failure.as_ref().is_some_and(|failed| !failed.is_refusal || Instant::now() < failed.retry_at)
    }

    /// The last known addresses, fresh or not.
    pub(super) fn last_addresses(&self) -> Option<Vec<SocketAddr>> {
        let found: Vec<_> = self.lock().resolved.iter().map(|(address, _)| *address).collect();
        (!found.is_empty()).then_some(found)
    }

    /// The addresses that need no new lookup yet.
    fn fresh_addresses(&self) -> Option<Vec<SocketAddr>> {
        let is_fresh = |since: Option<Instant>| since.is_some_and(|since| since.elapsed() < DNS_LIFETIME);
        let state = self.lock();
        let fresh: Vec<_> =
            state.resolved.iter().filter(|(_, since)| is_fresh(*since)).map(|(address, _)| *address).collect();
        (!fresh.is_empty()).then_some(fresh)
    }

    /// Sets addresses that an earlier run found. They are used while lookups fail.
    pub(super) fn restore_addresses(&self, addresses: Vec<SocketAddr>) {
        let mut state = self.lock();
        if state.resolved.is_empty() {
            state.resolved = addresses.into_iter().map(|address| (address, None)).collect();
        }
    }

    /// Its addresses, from the system's resolver.
    pub(super) async fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        match self.fresh_addresses() {
            Some(addresses) => Ok(addresses),
            None => self.with_fallback(self.last_addresses(), self.resolve()).await,
        }
    }

    /// Its addresses, from the DNS servers of this link; without a link, from the system's resolver. An answer over one link is not cached
    /// for the others, because a captive portal answers each name with its own address.
    pub(super) async fn addresses_over(
        &self,
        link: Option<&Interface>,
        dialer: &LinkDialer,
    ) -> io::Result<Vec<SocketAddr>> {
        let Some(link) = link else { return self.addresses().await };
        // Cached addresses may be of a family that this link does not have.
        let is_of_link =
            |addresses: &Vec<SocketAddr>| LinkDialer::with_link_families(addresses.clone(), link).is_ok();
        if let Some(addresses) = self.fresh_addresses().filter(is_of_link) {
            return Ok(addresses);
        }
        let look_up = async {
            let mut addresses = Vec::new();
            let mut last = io::Error::new(io::ErrorKind::NotFound, "no address is known");
            for endpoint in &self.config.endpoints {
                match dialer.resolve(None, (&endpoint.host(), endpoint.port()), link).await {
                    Ok(found) => addresses.extend(found),
                    Err(error) => last = error,
                }
            }
            if addresses.is_empty() { Err(last) } else { Ok(addresses) }
        };
        match self.last_addresses().filter(is_of_link) {
            Some(known) => Ok(timeout(REFRESH_TIMEOUT, look_up).await.ok().and_then(Result::ok).unwrap_or(known)),
            None => look_up.await,
        }
    }

    /// Records that the relay was reached at one of these addresses. Known addresses of a family that the link does not have are kept,
    /// because another link may only have that family.
    pub(super) fn set_addresses(&self, addresses: Vec<SocketAddr>) {
        let found = &mut self.lock().resolved;
        found.retain(|(known, _)| addresses.iter().all(|address| address.is_ipv4() != known.is_ipv4()));
        found.splice(0..0, addresses.into_iter().map(|address| (address, Some(Instant::now()))));
    }

    /// The result of the lookup, or the fallback if the lookup fails or takes too long. Either way there is no new lookup until the result
    /// is no longer fresh.
    async fn with_fallback(
        &self,
        fallback: Option<Vec<SocketAddr>>,
        lookup: impl Future<Output = io::Result<Vec<SocketAddr>>>,
    ) -> io::Result<Vec<SocketAddr>> {
        let addresses = match fallback {
            Some(fallback) => timeout(REFRESH_TIMEOUT, lookup).await.ok().and_then(Result::ok).unwrap_or(fallback),
            None => lookup.await?,
        };
        let now = Some(Instant::now());
        self.lock().resolved = addresses.iter().map(|address| (*address, now)).collect();
        Ok(addresses)
    }

    /// Resolves all endpoints by the system's resolver.
    async fn resolve(&self) -> io::Result<Vec<SocketAddr>> {
        let mut addresses = Vec::new();
        let mut last = io::Error::new(io::ErrorKind::NotFound, "no address is known");
        for endpoint in &self.config.endpoints {
            match timeout(LOOKUP_TIMEOUT, lookup_host(endpoint.to_string())).await {
                Ok(Ok(found)) => addresses.extend(found),
                Ok(Err(error)) => last = error,
                Err(_) => last = io::Error::new(io::ErrorKind::TimedOut, "the name server does not answer"),
            }
        }
        if addresses.is_empty() { Err(last) } else { Ok(addresses) }
    }

    fn lock(&self) -> MutexGuard<'_, RelayHealth> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The current list.
#[derive(Debug)]
pub(super) struct RelayList(Mutex<Vec<Arc<RelayEntry>>>);

impl RelayList {
    pub(super) fn new(list: &[RelayConfig]) -> Self {
        let relays = Self(Mutex::default());
        relays.replace(list);
        relays
    }

    /// Replaces the list; returns whether it differs.
    pub(super) fn replace(&self, list: &[RelayConfig]) -> bool {
        let mut current = self.lock();
        if current.iter().map(|entry| &entry.config).eq(list) {
            return false;
        }
        let known = |config: &RelayConfig| current.iter().find(|entry| entry.config == *config).cloned();
        let replacement: Vec<_> =
            list.iter().map(|at| known(at).unwrap_or_else(|| Arc::new(RelayEntry::new(at.clone())))).collect();
        *current = replacement;
        true
    }

    /// All relays, in order of preference.
    pub(super) fn all(&self) -> Vec<Arc<RelayEntry>> {
        self.lock().clone()
    }

    /// All relays, in the order in which they are tried: those that failed recently come last.
    pub(super) fn order(&self) -> Vec<Arc<RelayEntry>> {
        let (last, first): (Vec<_>, Vec<_>) = self.all().into_iter().partition(|entry| entry.is_deferred());
        [first, last].concat()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<RelayEntry>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::super::dial::CONNECT_TIMEOUT;
    use super::*;

    fn config(label: &str) -> RelayConfig {
        let endpoints = vec!["127.0.0.1:4443".parse().unwrap()];
        RelayConfig {
            label: label.to_owned(),
            server_name: "127.0.0.1".try_into().unwrap(),
            endpoints,
            member: None,
        }
    }

    fn labels(stations: &[Arc<RelayEntry>]) -> String {
        stations.iter().map(|entry| entry.config.label.as_str()).collect()
    }

    #[test]
    fn the_last_addresses_are_used_while_the_name_server_does_not_answer() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (entry, known) = (RelayEntry::new(config("a")), vec!["192.0.2.1:1".parse().unwrap()]);
            let unanswered_lookup = || entry.with_fallback(Some(known.clone()), std::future::pending());
            // A second relay, and a new connection to the first, are tried after this time.
            assert_eq!(timeout(CONNECT_TIMEOUT, unanswered_lookup()).await.unwrap().unwrap(), known);
            // Later calls do not wait for a lookup again for a while.
            assert_eq!(timeout(REFRESH_TIMEOUT / 2, entry.addresses()).await.unwrap().unwrap(), known);
            let lookup = async { Err(io::ErrorKind::NotFound.into()) };
            assert_eq!(entry.with_fallback(Some(known.clone()), lookup).await.unwrap(), known);
            let moved: Vec<SocketAddr> = vec!["192.0.2.2:1".parse().unwrap()];
            let found = async { Ok(moved.clone()) };
            assert_eq!(entry.with_fallback(Some(known.clone()), found).await.unwrap(), moved);
            assert_eq!(entry.addresses().await.unwrap(), moved);
        });
    }

    #[test]
    fn addresses_found_over_a_link_without_ipv6_do_not_replace_ipv6_addresses() {
        let (entry, all) = (RelayEntry::new(config("a")), ["192.0.2.1:1", "[2001:db8::1]:1", "192.0.2.2:1"]);
        let [four, six, moved] = all.map(|address| address.parse().unwrap());
        entry.restore_addresses(vec![four, six]);
        assert_eq!((entry.last_addresses(), entry.fresh_addresses()), (Some(vec![four, six]), None));
        entry.set_addresses(vec![moved]);
        assert_eq!((entry.last_addresses(), entry.fresh_addresses()), (Some(vec![moved, six]), Some(vec![moved])));
        entry.set_addresses(vec![six]);
        assert_eq!(entry.fresh_addresses(), Some(vec![six, moved]));
    }

    #[test]
    fn a_failed_relay_is_retried_at_growing_intervals_however_many_flows_fail() {
        let (entry, started_at) = (RelayEntry::new(config("a")), Instant::now());
        assert_eq!(entry.retry_at(), None);
        let (mut now, mut pauses) = (started_at, Vec::new());
        for _ in 0..6 {
            for _ in 0..100 {
                entry.note_attempt_at(now, Err(("no answer", FIRST_RETRY)));
            }
            let retry = entry.retry_at().unwrap();
            pauses.push(retry.duration_since(now).as_secs());
            now = retry;
            entry.start_retry(now);
        }
        assert_eq!(pauses, [1, 2, 4, 8, 10, 10]);
        // Flows go directly because of it. The last attempt was ten seconds before the next one, and later pauses are shorter.
        let next = entry.retry_at().unwrap();
        assert!(entry.retry_soon() && !entry.retry_soon());
        assert_eq!(entry.retry_at(), Some(next - LAST_RETRY + DIRECT_RETRY));
        entry.start_retry(next);
        assert!(entry.retry_soon());
        assert_eq!(entry.retry_at(), Some(next + DIRECT_RETRY));
        // A link has appeared.
        entry.retry_now();
        let retry = entry.retry_at().unwrap();
        assert!(retry <= Instant::now());
        entry.start_retry(retry);
        assert_eq!(entry.retry_at(), Some(retry + 2 * FIRST_RETRY));
        assert!(entry.note_attempt(Ok(())));
        assert_eq!(entry.retry_at(), None);
        // A full relay is only tried by flows: at once if there is no other relay, else after ten seconds, each time.
        entry.note_attempt_at(now, Err(("at capacity", LAST_RETRY)));
        assert!(entry.retry_at().is_none() && entry.failure_reason().is_some());
        let due = |entry: &RelayEntry| entry.lock().failure.as_ref().unwrap().retry_at;
        assert_eq!(due(&entry), now + LAST_RETRY);
        entry.note_attempt_at(now + LAST_RETRY, Err(("at capacity", LAST_RETRY)));
        assert_eq!(due(&entry), now + 2 * LAST_RETRY);
    }

    #[test]
    fn a_link_that_strips_mptcp_is_distinguished_from_a_relay_that_does_not_support_it() {
        let (entry, links) = (RelayEntry::new(config("a")), ["wan1".to_owned(), "wan2".to_owned()]);
        let note = |link: &str, speaks| entry.note_mptcp(link, &links, speaks);
        assert_eq!(note("wan1", false), MptcpSupport::Stripped);
        assert_eq!(note("wan2", true), MptcpSupport::Supported);
        assert_eq!(note("wan1", false), MptcpSupport::Stripped);
        // The relay is restarted without MPTCP.
        assert_eq!(note("wan2", false), MptcpSupport::Unsupported);
        assert_eq!(note("wan1", false), MptcpSupport::Unsupported);
        assert!(entry.is_without_mptcp() && entry.has_mptcp_changed() && !entry.has_mptcp_changed());
        // The relay is restarted with MPTCP.
        assert_eq!(note("wan1", true), MptcpSupport::Supported);
        assert!(!entry.is_without_mptcp());
        assert_eq!(note("wan2", false), MptcpSupport::Stripped);
        // A link that was removed no longer counts.
        assert_eq!(entry.note_mptcp("wan2", &links[1..], false), MptcpSupport::Stripped);
        assert!(!entry.is_without_mptcp());
    }

    #[test]
    fn a_failed_relay_is_tried_last_also_on_a_new_list() {
        let relays = RelayList::new(&[config("a"), config("b"), config("c")]);
        relays.all()[0].note_attempt(Err("no answer"));
        assert_eq!(labels(&relays.order()), "bca");
        assert!(!relays.replace(&[config("a"), config("b"), config("c")]));
        assert!(relays.replace(&[config("a"), config("c")]));
        assert_eq!(labels(&relays.order()), "ca");
        relays.all()[0].note_attempt(Ok(()));
        assert_eq!(labels(&relays.order()), "ac");
    }
}
