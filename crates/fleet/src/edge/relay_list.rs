//! The relays that an edge may use: where they are, and how they have answered.
//!
//! In: a list, the best first, from the command line or from the fleet's service; how attempts went. Out: the order in which
//! they are asked.
//!
//! 1. A relay that stays on the list keeps what is known of it; flows over one that left it are not touched.
//! 2. A relay that failed is asked after the others until an attempt succeeds. It is tried in the background at intervals that grow
//!    from [`FIRST_RETRY`] to [`LAST_RETRY`], at once when a link comes, and after [`DIRECT_RETRY`] while flows go directly for want
//!    of it and no portal probe is sent. One that answers and refuses flows is tried by a flow, after [`LAST_RETRY`].
//! 3. Names are looked up when they are needed: what cannot be resolved now may be later. What was found last serves while
//!    nobody answers, and nobody waits for longer than [`AGAIN`] to learn that: the server of names may be behind a link that has gone.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use marline_net::links::Interface;
use rustls::pki_types::ServerName;
use tokio::net::lookup_host;
use tokio::time::timeout;

use super::dial::HandshakeLimiter;
use super::traffic_meter::TrafficMeter;
use crate::identity::Name;
use crate::link_dialer::LinkDialer;
use crate::service::api_types::Endpoint;

/// chosen: a relay that was restarted is there again.
const FIRST_RETRY: Duration = Duration::from_secs(1);
/// chosen: how soon a relay that has come back is used again, and how long one that has no room, or drains, is left alone.
const LAST_RETRY: Duration = Duration::from_secs(10);
/// chosen: without a portal probe only a handshake with a relay shows a captive portal that has appeared on a link, and until then the portal
/// answers direct flows.
const DIRECT_RETRY: Duration = Duration::from_secs(2);
/// chosen: as a name's usual life; one that has moved is found by then.
const DNS_LIFETIME: Duration = Duration::from_secs(60);
/// chosen: a resolver's first attempt and its second one.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(2);
/// Where an address is known. chosen: a server of names that is there answers sooner, and a new flow cannot wait much longer.
const REFRESH_TIMEOUT: Duration = Duration::from_millis(500);

/// Where a relay is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayConfig {
    /// What people call it.
    pub label: String,
    /// The name or address in its certificate.
    pub server_name: ServerName<'static>,
    /// Where it listens, the best first.
    pub endpoints: Vec<Endpoint>,
    /// Who it is, where the fleet's service has said so: its certificate must say the same.
    pub member: Option<Name>,
}

/// One relay, and what is known of it.
#[derive(Debug)]
pub(super) struct RelayEntry {
    pub(super) config: RelayConfig,
    pub(super) traffic_meter: Arc<TrafficMeter>,
    /// Of handshakes with it.
    pub(super) handshake_limiter: HandshakeLimiter,
    state: Mutex<RelayHealth>,
}

#[derive(Debug, Default)]
struct RelayHealth {
    /// The last attempt has failed.
    failure: Option<Failure>,
    /// When it was tried first.
    first_tried: Option<Instant>,
    /// The links over which its address has answered a connection.
    answering_links: BTreeSet<Option<String>>,
    /// Whether a connection over this link spoke MPTCP.
    mptcp_by_link: BTreeMap<String, bool>,
    /// [`Station::is_mptcp_news`].
    was_mptcp_unsupported: bool,
    /// When it opened a tunnel last.
    last_tunnel: Option<Instant>,
    /// Its addresses, and since when each is known; none: an earlier run has found it.
    resolved: Vec<(SocketAddr, Option<Instant>)>,
}

#[derive(Clone, Debug)]
struct Failure {
    reason: String,
    /// It answers, and takes no flow for now.
    is_refusal: bool,
    /// When the next attempt is due, and how long after this one.
    retry_at: Instant,
    pause: Duration,
}

/// What a connection shows of MPTCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MptcpSupport {
    /// Both sides speak it.
    Supported,
    /// It fell back to plain TCP on this link, and another link speaks it or was not tried yet.
    Stripped,
    /// It fell back on each link: the relay does not speak it.
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

    /// How an attempt to reach it went; whether that, or the reason for a failure, is news.
    pub(super) fn note_attempt(&self, result: Result<(), &str>) -> bool {
        self.note_attempt_at(Instant::now(), result.map_err(|why| (why, FIRST_RETRY)))
    }

    /// It answers, and takes no flow for now; whether that is news.
    pub(super) fn note_refusal(&self, reason: &str) -> bool {
        self.note_attempt_at(Instant::now(), Err((reason, LAST_RETRY)))
    }

    fn note_attempt_at(&self, now: Instant, result: Result<(), (&str, Duration)>) -> bool {
        let mut state = self.lock();
        let previous = state.failure.take();
        state.failure = result.err().map(|(why, pause)| {
            let is_refusal = pause == LAST_RETRY;
            match &previous {
                // It was asked again, and refuses again.
                Some(failed) if is_refusal && failed.retry_at <= now => {
                    Failure { reason: why.to_owned(), is_refusal, retry_at: now + pause, pause }
                }
                // Flows that fail together, or while the next attempt is due anyway, do not postpone it.
                Some(failed) => Failure { reason: why.to_owned(), is_refusal, ..*failed },
                None => Failure { reason: why.to_owned(), is_refusal, retry_at: now + pause, pause },
            }
        });
        previous.map(|failed| failed.reason) != state.failure.as_ref().map(|failed| failed.reason.clone())
    }

    /// Why it cannot be reached, as far as is known; none: it can be, or it was not tried yet.
    pub(super) fn unreachable_reason(&self) -> Option<String> {
        self.lock().failure.as_ref().filter(|failed| !failed.is_refusal).map(|failed| failed.reason.clone())
    }

    /// When it is to be tried again in the background; none: it has not failed, or refuses flows.
    pub(super) fn retry_at(&self) -> Option<Instant> {
        self.lock().failure.as_ref().filter(|failed| !failed.is_refusal).map(|failed| failed.retry_at)
    }

    /// It is tried again now: the next time comes after a longer pause, whatever becomes of this attempt.
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

    /// A flow goes directly because no relay can be reached: the next attempt is due [`DIRECT_RETRY`] after the last one. Returns true if
    /// it would have come later.
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

    /// It is tried now; when that was so for the first time.
    pub(super) fn first_tried(&self) -> Instant {
        *self.lock().first_tried.get_or_insert_with(Instant::now)
    }

    /// Whether its address has ever answered a connection.
    pub(super) fn has_answered(&self) -> bool {
        !self.lock().answering_links.is_empty()
    }

    /// Over this link its address answers a connection, or something else than the relay has answered there.
    pub(super) fn note_answer(&self, link: Option<&str>, is_relay: bool) {
        let (link, answered) = (link.map(str::to_owned), &mut self.lock().answering_links);
        if is_relay {
            answered.insert(link)
        } else {
            answered.remove(&link)
        };
    }

    /// Whether a new connection over one of these links speaks MPTCP.
    pub(super) fn note_mptcp(&self, link: &str, links: &[String], is_mptcp: bool) -> MptcpSupport {
        let mut state = self.lock();
        if is_mptcp && is_mptcp_unsupported(&state.mptcp_by_link) {
            // What the other links have shown was the relay's doing.
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

    /// Whether it has begun or ceased to speak MPTCP since this was asked last.
    pub(super) fn has_mptcp_changed(&self) -> bool {
        let mut state = self.lock();
        let now = is_mptcp_unsupported(&state.mptcp_by_link);
        std::mem::replace(&mut state.was_mptcp_unsupported, now) != now
    }

    /// No link carries MPTCP to it, and there are several.
    pub(super) fn is_without_mptcp(&self) -> bool {
        is_mptcp_unsupported(&self.lock().mptcp_by_link)
    }

    /// It has opened a tunnel.
    pub(super) fn note_tunnel(&self) {
        self.lock().last_tunnel = Some(Instant::now());
    }

    /// Whether it has opened a tunnel since then.
    pub(super) fn has_tunnel_since(&self, since: Instant) -> bool {
        self.lock().last_tunnel.is_some_and(|at| at >= since)
    }

    /// Why the last attempt failed, however long ago that is; none: it did not.
    pub(super) fn failure_reason(&self) -> Option<String> {
        self.lock().failure.as_ref().map(|failed| failed.reason.clone())
    }

    /// The last attempt failed, however long ago that is.
    pub(super) fn has_failed(&self) -> bool {
        self.lock().failure.is_some()
    }

    /// The last attempt failed, and it is too early for the next one. A relay that refuses flows is asked by a flow: a handshake alone does
    /// not show whether it takes one.
    fn is_deferred(&self) -> bool {
        self.lock().failure.as_ref().is_some_and(|failed| !failed.is_refusal || Instant::now() < failed.retry_at)
    }

    /// The addresses that were found last.
    pub(super) fn last_addresses(&self) -> Option<Vec<SocketAddr>> {
        let found: Vec<_> = self.lock().resolved.iter().map(|(address, _)| *address).collect();
        (!found.is_empty()).then_some(found)
    }

    /// Those that need not be asked for again yet.
    fn fresh_addresses(&self) -> Option<Vec<SocketAddr>> {
        let is_fresh = |since: Option<Instant>| since.is_some_and(|since| since.elapsed() < DNS_LIFETIME);
        let state = self.lock();
        let fresh: Vec<_> =
            state.resolved.iter().filter(|(_, since)| is_fresh(*since)).map(|(address, _)| *address).collect();
        (!fresh.is_empty()).then_some(fresh)
    }

    /// What an earlier run has found; it serves while nothing answers.
    pub(super) fn restore_addresses(&self, addresses: Vec<SocketAddr>) {
        let mut state = self.lock();
        if state.resolved.is_empty() {
            state.resolved = addresses.into_iter().map(|address| (address, None)).collect();
        }
    }

    /// Its addresses.
    pub(super) async fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        match self.fresh_addresses() {
            Some(addresses) => Ok(addresses),
            None => self.with_fallback(self.last_addresses(), self.resolve()).await,
        }
    }

    /// Its addresses, from the name servers of this link; none: from the system's. An answer over one link is not kept for the others: a
    /// captive portal answers each name with its own address.
    pub(super) async fn addresses_over(
        &self,
        link: Option<&Interface>,
        starts: &LinkDialer,
    ) -> io::Result<Vec<SocketAddr>> {
        let Some(link) = link else { return self.addresses().await };
        // What is known may be of a family that this link does not have.
        let is_of_link =
            |addresses: &Vec<SocketAddr>| LinkDialer::with_link_families(addresses.clone(), link).is_ok();
        if let Some(addresses) = self.fresh_addresses().filter(is_of_link) {
            return Ok(addresses);
        }
        let look_up = async {
            let mut addresses = Vec::new();
            let mut last = io::Error::new(io::ErrorKind::NotFound, "no address is known");
            for endpoint in &self.config.endpoints {
                match starts.resolve(None, (&endpoint.host(), endpoint.port()), link).await {
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

    /// The relay was reached at one of these. Addresses of a family that the link does not have are kept: another one may have that family
    /// alone.
    pub(super) fn set_addresses(&self, addresses: Vec<SocketAddr>) {
        let found = &mut self.lock().resolved;
        found.retain(|(known, _)| addresses.iter().all(|address| address.is_ipv4() != known.is_ipv4()));
        found.splice(0..0, addresses.into_iter().map(|address| (address, Some(Instant::now()))));
    }

    /// What is found, or what is known where that takes too long or brings nothing; it is not asked for again for as long as an answer
    /// is fresh.
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

    /// The addresses of all places.
    async fn resolve(&self) -> io::Result<Vec<SocketAddr>> {
        let mut addresses = Vec::new();
        let mut last = io::Error::new(io::ErrorKind::NotFound, "no address is known");
        for endpoint in &self.config.endpoints {
            match timeout(LOOKUP_TIMEOUT, lookup_host(endpoint.to_string())).await {
                Ok(Ok(found)) => addresses.extend(found),
                Ok(Err(error)) => last = error,
                Err(_) => last = io::Error::new(io::ErrorKind::TimedOut, "the name's server does not answer"),
            }
        }
        if addresses.is_empty() { Err(last) } else { Ok(addresses) }
    }

    fn lock(&self) -> MutexGuard<'_, RelayHealth> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The list of now.
#[derive(Debug)]
pub(super) struct RelayList(Mutex<Vec<Arc<RelayEntry>>>);

impl RelayList {
    pub(super) fn new(list: &[RelayConfig]) -> Self {
        let relays = Self(Mutex::default());
        relays.replace(list);
        relays
    }

    /// Another list; whether it is another one.
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

    /// All, the best first.
    pub(super) fn all(&self) -> Vec<Arc<RelayEntry>> {
        self.lock().clone()
    }

    /// All, in the order in which they are asked.
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
    fn what_was_found_last_serves_while_the_server_of_names_is_silent() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (entry, known) = (RelayEntry::new(config("a")), vec!["192.0.2.1:1".parse().unwrap()]);
            let silent = || entry.with_fallback(Some(known.clone()), std::future::pending());
            // A second relay is asked after this time, and so is a new connection to the first.
            assert_eq!(timeout(CONNECT_TIMEOUT, silent()).await.unwrap().unwrap(), known);
            // Nobody waits for it again for a while.
            assert_eq!(timeout(REFRESH_TIMEOUT / 2, entry.addresses()).await.unwrap().unwrap(), known);
            let gone = async { Err(io::ErrorKind::NotFound.into()) };
            assert_eq!(entry.with_fallback(Some(known.clone()), gone).await.unwrap(), known);
            let moved: Vec<SocketAddr> = vec!["192.0.2.2:1".parse().unwrap()];
            let found = async { Ok(moved.clone()) };
            assert_eq!(entry.with_fallback(Some(known.clone()), found).await.unwrap(), moved);
            assert_eq!(entry.addresses().await.unwrap(), moved);
        });
    }

    #[test]
    fn what_was_found_over_a_link_without_ipv6_does_not_displace_ipv6_addresses() {
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
    fn a_relay_that_failed_is_tried_again_at_growing_intervals_however_many_flows_fail() {
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
        // Flows go directly for want of it: the last attempt was ten seconds before the next one, and no later one is as far away.
        let next = entry.retry_at().unwrap();
        assert!(entry.retry_soon() && !entry.retry_soon());
        assert_eq!(entry.retry_at(), Some(next - LAST_RETRY + DIRECT_RETRY));
        entry.start_retry(next);
        assert!(entry.retry_soon());
        assert_eq!(entry.retry_at(), Some(next + DIRECT_RETRY));
        // A link has come.
        entry.retry_now();
        let retry = entry.retry_at().unwrap();
        assert!(retry <= Instant::now());
        entry.start_retry(retry);
        assert_eq!(entry.retry_at(), Some(retry + 2 * FIRST_RETRY));
        assert!(entry.note_attempt(Ok(())));
        assert_eq!(entry.retry_at(), None);
        // One that has no room is asked by flows alone: at once where no other relay is there, else after ten seconds, each time.
        entry.note_attempt_at(now, Err(("no room", LAST_RETRY)));
        assert!(entry.retry_at().is_none() && entry.failure_reason().is_some());
        let due = |entry: &RelayEntry| entry.lock().failure.as_ref().unwrap().retry_at;
        assert_eq!(due(&entry), now + LAST_RETRY);
        entry.note_attempt_at(now + LAST_RETRY, Err(("no room", LAST_RETRY)));
        assert_eq!(due(&entry), now + 2 * LAST_RETRY);
    }

    #[test]
    fn a_link_that_strips_mptcp_is_told_from_a_relay_that_does_not_speak_it() {
        let (entry, links) = (RelayEntry::new(config("a")), ["wan1".to_owned(), "wan2".to_owned()]);
        let note = |link: &str, speaks| entry.note_mptcp(link, &links, speaks);
        assert_eq!(note("wan1", false), MptcpSupport::Stripped);
        assert_eq!(note("wan2", true), MptcpSupport::Supported);
        assert_eq!(note("wan1", false), MptcpSupport::Stripped);
        // The relay is started again without MPTCP.
        assert_eq!(note("wan2", false), MptcpSupport::Unsupported);
        assert_eq!(note("wan1", false), MptcpSupport::Unsupported);
        assert!(entry.is_without_mptcp() && entry.has_mptcp_changed() && !entry.has_mptcp_changed());
        // And again with it.
        assert_eq!(note("wan1", true), MptcpSupport::Supported);
        assert!(!entry.is_without_mptcp());
        assert_eq!(note("wan2", false), MptcpSupport::Stripped);
        // A link that has gone counts no longer.
        assert_eq!(entry.note_mptcp("wan2", &links[1..], false), MptcpSupport::Stripped);
        assert!(!entry.is_without_mptcp());
    }

    #[test]
    fn who_failed_is_asked_last_also_on_a_new_list() {
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
