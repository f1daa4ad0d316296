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

use super::dial::Turns;
use super::meter::Meter;
use crate::identity::Name;
use crate::service::words::Endpoint;
use crate::starts::Starts;

/// chosen: a relay that was restarted is there again.
const FIRST_RETRY: Duration = Duration::from_secs(1);
/// chosen: how soon a relay that has come back is used again, and how long one that has no room, or drains, is left alone.
const LAST_RETRY: Duration = Duration::from_secs(10);
/// chosen: without a portal probe only a handshake with a relay shows a captive portal that has appeared on a link, and until then the portal
/// answers direct flows.
const DIRECT_RETRY: Duration = Duration::from_secs(2);
/// chosen: as a name's usual life; one that has moved is found by then.
const FRESH: Duration = Duration::from_secs(60);
/// chosen: a resolver's first attempt and its second one.
const LOOKUP: Duration = Duration::from_secs(2);
/// Where an address is known. chosen: a server of names that is there answers sooner, and a new flow cannot wait much longer.
const AGAIN: Duration = Duration::from_millis(500);

/// Where a relay is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayAt {
    /// What people call it.
    pub label: String,
    /// The name or address in its certificate.
    pub server: ServerName<'static>,
    /// Where it listens, the best first.
    pub places: Vec<Endpoint>,
    /// Who it is, where the fleet's service has said so: its certificate must say the same.
    pub member: Option<Name>,
}

/// One relay, and what is known of it.
#[derive(Debug)]
pub(super) struct Station {
    pub(super) at: RelayAt,
    pub(super) meter: Arc<Meter>,
    /// Of handshakes with it.
    pub(super) turns: Turns,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The last attempt has failed.
    failed: Option<Failed>,
    /// When it was tried first.
    tried: Option<Instant>,
    /// The links over which its address has answered a connection.
    answered: BTreeSet<Option<String>>,
    /// Whether a connection over this link spoke MPTCP.
    mptcp: BTreeMap<String, bool>,
    /// [`Station::is_mptcp_news`].
    told_off: bool,
    /// When it opened a tunnel last.
    carried: Option<Instant>,
    /// Its addresses, and since when each is known; none: an earlier run has found it.
    found: Vec<(SocketAddr, Option<Instant>)>,
}

#[derive(Clone, Debug)]
struct Failed {
    why: String,
    /// It answers, and takes no flow for now.
    is_refusal: bool,
    /// When the next attempt is due, and how long after this one.
    retry: Instant,
    pause: Duration,
}

/// What a connection shows of MPTCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MptcpSeen {
    /// Both sides speak it.
    Spoken,
    /// It fell back to plain TCP on this link, and another link speaks it or was not tried yet.
    Stripped,
    /// It fell back on each link: the relay does not speak it.
    Off,
}

fn off(mptcp: &BTreeMap<String, bool>) -> bool {
    mptcp.len() > 1 && mptcp.values().all(|speaks| !speaks)
}

impl Station {
    fn new(at: RelayAt) -> Self {
        Self { at, meter: Arc::default(), turns: Turns::default(), state: Mutex::default() }
    }

    /// How an attempt to reach it went; whether that, or the reason for a failure, is news.
    pub(super) fn note(&self, went: Result<(), &str>) -> bool {
        self.note_at(Instant::now(), went.map_err(|why| (why, FIRST_RETRY)))
    }

    /// It answers, and takes no flow for now; whether that is news.
    pub(super) fn note_refusal(&self, words: &str) -> bool {
        self.note_at(Instant::now(), Err((words, LAST_RETRY)))
    }

    fn note_at(&self, now: Instant, went: Result<(), (&str, Duration)>) -> bool {
        let mut state = self.lock();
        let before = state.failed.take();
        state.failed = went.err().map(|(why, first)| {
            let is_refusal = first == LAST_RETRY;
            match &before {
                // It was asked again, and refuses again.
                Some(failed) if is_refusal && failed.retry <= now => {
                    Failed { why: why.to_owned(), is_refusal, retry: now + first, pause: first }
                }
                // Flows that fail together, or while the next attempt is due anyway, do not postpone it.
                Some(failed) => Failed { why: why.to_owned(), is_refusal, ..*failed },
                None => Failed { why: why.to_owned(), is_refusal, retry: now + first, pause: first },
            }
        });
        before.map(|failed| failed.why) != state.failed.as_ref().map(|failed| failed.why.clone())
    }

    /// Why it cannot be reached, as far as is known; none: it can be, or it was not tried yet.
    pub(super) fn unreachable(&self) -> Option<String> {
        self.lock().failed.as_ref().filter(|failed| !failed.is_refusal).map(|failed| failed.why.clone())
    }

    /// When it is to be tried again in the background; none: it has not failed, or refuses flows.
    pub(super) fn retry(&self) -> Option<Instant> {
        self.lock().failed.as_ref().filter(|failed| !failed.is_refusal).map(|failed| failed.retry)
    }

    /// It is tried again now: the next time comes after a longer pause, whatever becomes of this attempt.
    pub(super) fn retries(&self, now: Instant) {
        if let Some(failed) = &mut self.lock().failed {
            failed.pause = (2 * failed.pause).min(LAST_RETRY);
            failed.retry = now + failed.pause;
        }
    }

    /// Makes the next attempt in the background due now. Later pauses grow from [`FIRST_RETRY`] again.
    pub(super) fn retry_now(&self) {
        if let Some(failed) = self.lock().failed.as_mut().filter(|failed| !failed.is_refusal) {
            (failed.retry, failed.pause) = (Instant::now(), FIRST_RETRY);
        }
    }

    /// A flow goes directly because no relay can be reached: the next attempt is due [`DIRECT_RETRY`] after the last one. Returns true if
    /// it would have come later.
    pub(super) fn retry_soon(&self) -> bool {
        let mut state = self.lock();
        let Some(failed) = state.failed.as_mut().filter(|failed| !failed.is_refusal && failed.pause > DIRECT_RETRY)
        else {
            return false;
        };
        failed.retry -= failed.pause - DIRECT_RETRY;
        failed.pause = DIRECT_RETRY;
        true
    }

    /// It is tried now; when that was so for the first time.
    pub(super) fn is_tried(&self) -> Instant {
        *self.lock().tried.get_or_insert_with(Instant::now)
    }

    /// Whether its address has ever answered a connection.
    pub(super) fn has_answered(&self) -> bool {
        !self.lock().answered.is_empty()
    }

    /// Over this link its address answers a connection, or something else than the relay has answered there.
    pub(super) fn answers(&self, link: Option<&str>, is_relay: bool) {
        let (link, answered) = (link.map(str::to_owned), &mut self.lock().answered);
        if is_relay {
            answered.insert(link)
        } else {
            answered.remove(&link)
        };
    }

    /// Whether a new connection over one of these links speaks MPTCP.
    pub(super) fn note_mptcp(&self, link: &str, links: &[String], speaks: bool) -> MptcpSeen {
        let mut state = self.lock();
        if speaks && off(&state.mptcp) {
            // What the other links have shown was the relay's doing.
            state.mptcp.clear();
        }
        state.mptcp.retain(|name, _| links.contains(name));
        state.mptcp.insert(link.to_owned(), speaks);
        let is_known = links.iter().all(|link| state.mptcp.contains_key(link));
        match speaks {
            true => MptcpSeen::Spoken,
            false if is_known && off(&state.mptcp) => MptcpSeen::Off,
            false => MptcpSeen::Stripped,
        }
    }

    /// Whether it has begun or ceased to speak MPTCP since this was asked last.
    pub(super) fn is_mptcp_news(&self) -> bool {
        let mut state = self.lock();
        let now = off(&state.mptcp);
        std::mem::replace(&mut state.told_off, now) != now
    }

    /// No link carries MPTCP to it, and there are several.
    pub(super) fn is_without_mptcp(&self) -> bool {
        off(&self.lock().mptcp)
    }

    /// It has opened a tunnel.
    pub(super) fn has_carried(&self) {
        self.lock().carried = Some(Instant::now());
    }

    /// Whether it has opened a tunnel since then.
    pub(super) fn has_carried_since(&self, then: Instant) -> bool {
        self.lock().carried.is_some_and(|at| at >= then)
    }

    /// Why the last attempt failed, however long ago that is; none: it did not.
    pub(super) fn failure(&self) -> Option<String> {
        self.lock().failed.as_ref().map(|failed| failed.why.clone())
    }

    /// The last attempt failed, however long ago that is.
    pub(super) fn has_failed(&self) -> bool {
        self.lock().failed.is_some()
    }

    /// The last attempt failed, and it is too early for the next one. A relay that refuses flows is asked by a flow: a handshake alone does
    /// not show whether it takes one.
    fn comes_last(&self) -> bool {
        self.lock().failed.as_ref().is_some_and(|failed| !failed.is_refusal || Instant::now() < failed.retry)
    }

    /// The addresses that were found last.
    pub(super) fn found(&self) -> Option<Vec<SocketAddr>> {
        let found: Vec<_> = self.lock().found.iter().map(|(address, _)| *address).collect();
        (!found.is_empty()).then_some(found)
    }

    /// Those that need not be asked for again yet.
    fn fresh(&self) -> Option<Vec<SocketAddr>> {
        let is_fresh = |since: Option<Instant>| since.is_some_and(|since| since.elapsed() < FRESH);
        let state = self.lock();
        let fresh: Vec<_> =
            state.found.iter().filter(|(_, since)| is_fresh(*since)).map(|(address, _)| *address).collect();
        (!fresh.is_empty()).then_some(fresh)
    }

    /// What an earlier run has found; it serves while nothing answers.
    pub(super) fn recall(&self, addresses: Vec<SocketAddr>) {
        let mut state = self.lock();
        if state.found.is_empty() {
            state.found = addresses.into_iter().map(|address| (address, None)).collect();
        }
    }

    /// Its addresses.
    pub(super) async fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        match self.fresh() {
            Some(addresses) => Ok(addresses),
            None => self.or_known(self.found(), self.look_up()).await,
        }
    }

    /// Its addresses, from the name servers of this link; none: from the system's. An answer over one link is not kept for the others: a
    /// captive portal answers each name with its own address.
    pub(super) async fn addresses_over(
        &self,
        link: Option<&Interface>,
        starts: &Starts,
    ) -> io::Result<Vec<SocketAddr>> {
        let Some(link) = link else { return self.addresses().await };
        // What is known may be of a family that this link does not have.
        let is_of_link = |addresses: &Vec<SocketAddr>| Starts::of_families(addresses.clone(), link).is_ok();
        if let Some(addresses) = self.fresh().filter(is_of_link) {
            return Ok(addresses);
        }
        let look_up = async {
            let mut addresses = Vec::new();
            let mut last = io::Error::new(io::ErrorKind::NotFound, "no address is known");
            for place in &self.at.places {
                match starts.addresses(None, (&place.host(), place.port()), link).await {
                    Ok(found) => addresses.extend(found),
                    Err(error) => last = error,
                }
            }
            if addresses.is_empty() { Err(last) } else { Ok(addresses) }
        };
        match self.found().filter(is_of_link) {
            Some(known) => Ok(timeout(AGAIN, look_up).await.ok().and_then(Result::ok).unwrap_or(known)),
            None => look_up.await,
        }
    }

    /// The relay was reached at one of these. Addresses of a family that the link does not have are kept: another one may have that family
    /// alone.
    pub(super) fn has_found(&self, addresses: Vec<SocketAddr>) {
        let found = &mut self.lock().found;
        found.retain(|(known, _)| addresses.iter().all(|address| address.is_ipv4() != known.is_ipv4()));
        found.splice(0..0, addresses.into_iter().map(|address| (address, Some(Instant::now()))));
    }

    /// What is found, or what is known where that takes too long or brings nothing; it is not asked for again for as long as an answer
    /// is fresh.
    async fn or_known(
        &self,
        known: Option<Vec<SocketAddr>>,
        looked_up: impl Future<Output = io::Result<Vec<SocketAddr>>>,
    ) -> io::Result<Vec<SocketAddr>> {
        let addresses = match known {
            Some(known) => timeout(AGAIN, looked_up).await.ok().and_then(Result::ok).unwrap_or(known),
            None => looked_up.await?,
        };
        let now = Some(Instant::now());
        self.lock().found = addresses.iter().map(|address| (*address, now)).collect();
        Ok(addresses)
    }

    /// The addresses of all places.
    async fn look_up(&self) -> io::Result<Vec<SocketAddr>> {
        let mut addresses = Vec::new();
        let mut last = io::Error::new(io::ErrorKind::NotFound, "no address is known");
        for place in &self.at.places {
            match timeout(LOOKUP, lookup_host(place.to_string())).await {
                Ok(Ok(found)) => addresses.extend(found),
                Ok(Err(error)) => last = error,
                Err(_) => last = io::Error::new(io::ErrorKind::TimedOut, "the name's server does not answer"),
            }
        }
        if addresses.is_empty() { Err(last) } else { Ok(addresses) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The list of now.
#[derive(Debug)]
pub(super) struct Relays(Mutex<Vec<Arc<Station>>>);

impl Relays {
    pub(super) fn new(list: &[RelayAt]) -> Self {
        let relays = Self(Mutex::default());
        relays.replace(list);
        relays
    }

    /// Another list; whether it is another one.
    pub(super) fn replace(&self, list: &[RelayAt]) -> bool {
        let mut now = self.lock();
        if now.iter().map(|station| &station.at).eq(list) {
            return false;
        }
        let known = |at: &RelayAt| now.iter().find(|station| station.at == *at).cloned();
        let next: Vec<_> =
            list.iter().map(|at| known(at).unwrap_or_else(|| Arc::new(Station::new(at.clone())))).collect();
        *now = next;
        true
    }

    /// All, the best first.
    pub(super) fn all(&self) -> Vec<Arc<Station>> {
        self.lock().clone()
    }

    /// All, in the order in which they are asked.
    pub(super) fn order(&self) -> Vec<Arc<Station>> {
        let (last, first): (Vec<_>, Vec<_>) = self.all().into_iter().partition(|station| station.comes_last());
        [first, last].concat()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Station>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::super::dial::CONNECT;
    use super::*;

    fn at(label: &str) -> RelayAt {
        let places = vec!["127.0.0.1:4443".parse().unwrap()];
        RelayAt { label: label.to_owned(), server: "127.0.0.1".try_into().unwrap(), places, member: None }
    }

    fn labels(stations: &[Arc<Station>]) -> String {
        stations.iter().map(|station| station.at.label.as_str()).collect()
    }

    #[test]
    fn what_was_found_last_serves_while_the_server_of_names_is_silent() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (station, known) = (Station::new(at("a")), vec!["192.0.2.1:1".parse().unwrap()]);
            let silent = || station.or_known(Some(known.clone()), std::future::pending());
            // A second relay is asked after this time, and so is a new connection to the first.
            assert_eq!(timeout(CONNECT, silent()).await.unwrap().unwrap(), known);
            // Nobody waits for it again for a while.
            assert_eq!(timeout(AGAIN / 2, station.addresses()).await.unwrap().unwrap(), known);
            let gone = async { Err(io::ErrorKind::NotFound.into()) };
            assert_eq!(station.or_known(Some(known.clone()), gone).await.unwrap(), known);
            let moved: Vec<SocketAddr> = vec!["192.0.2.2:1".parse().unwrap()];
            let found = async { Ok(moved.clone()) };
            assert_eq!(station.or_known(Some(known.clone()), found).await.unwrap(), moved);
            assert_eq!(station.addresses().await.unwrap(), moved);
        });
    }

    #[test]
    fn what_was_found_over_a_link_without_ipv6_does_not_displace_ipv6_addresses() {
        let (station, all) = (Station::new(at("a")), ["192.0.2.1:1", "[2001:db8::1]:1", "192.0.2.2:1"]);
        let [four, six, moved] = all.map(|address| address.parse().unwrap());
        station.recall(vec![four, six]);
        assert_eq!((station.found(), station.fresh()), (Some(vec![four, six]), None));
        station.has_found(vec![moved]);
        assert_eq!((station.found(), station.fresh()), (Some(vec![moved, six]), Some(vec![moved])));
        station.has_found(vec![six]);
        assert_eq!(station.fresh(), Some(vec![six, moved]));
    }

    #[test]
    fn a_relay_that_failed_is_tried_again_at_growing_intervals_however_many_flows_fail() {
        let (station, began) = (Station::new(at("a")), Instant::now());
        assert_eq!(station.retry(), None);
        let (mut now, mut pauses) = (began, Vec::new());
        for _ in 0..6 {
            for _ in 0..100 {
                station.note_at(now, Err(("no answer", FIRST_RETRY)));
            }
            let retry = station.retry().unwrap();
            pauses.push(retry.duration_since(now).as_secs());
            now = retry;
            station.retries(now);
        }
        assert_eq!(pauses, [1, 2, 4, 8, 10, 10]);
        // Flows go directly for want of it: the last attempt was ten seconds before the next one, and no later one is as far away.
        let next = station.retry().unwrap();
        assert!(station.retry_soon() && !station.retry_soon());
        assert_eq!(station.retry(), Some(next - LAST_RETRY + DIRECT_RETRY));
        station.retries(next);
        assert!(station.retry_soon());
        assert_eq!(station.retry(), Some(next + DIRECT_RETRY));
        // A link has come.
        station.retry_now();
        let retry = station.retry().unwrap();
        assert!(retry <= Instant::now());
        station.retries(retry);
        assert_eq!(station.retry(), Some(retry + 2 * FIRST_RETRY));
        assert!(station.note(Ok(())));
        assert_eq!(station.retry(), None);
        // One that has no room is asked by flows alone: at once where no other relay is there, else after ten seconds, each time.
        station.note_at(now, Err(("no room", LAST_RETRY)));
        assert!(station.retry().is_none() && station.failure().is_some());
        let due = |station: &Station| station.lock().failed.as_ref().unwrap().retry;
        assert_eq!(due(&station), now + LAST_RETRY);
        station.note_at(now + LAST_RETRY, Err(("no room", LAST_RETRY)));
        assert_eq!(due(&station), now + 2 * LAST_RETRY);
    }

    #[test]
    fn a_link_that_strips_mptcp_is_told_from_a_relay_that_does_not_speak_it() {
        let (station, links) = (Station::new(at("a")), ["wan1".to_owned(), "wan2".to_owned()]);
        let note = |link: &str, speaks| station.note_mptcp(link, &links, speaks);
        assert_eq!(note("wan1", false), MptcpSeen::Stripped);
        assert_eq!(note("wan2", true), MptcpSeen::Spoken);
        assert_eq!(note("wan1", false), MptcpSeen::Stripped);
        // The relay is started again without MPTCP.
        assert_eq!(note("wan2", false), MptcpSeen::Off);
        assert_eq!(note("wan1", false), MptcpSeen::Off);
        assert!(station.is_without_mptcp() && station.is_mptcp_news() && !station.is_mptcp_news());
        // And again with it.
        assert_eq!(note("wan1", true), MptcpSeen::Spoken);
        assert!(!station.is_without_mptcp());
        assert_eq!(note("wan2", false), MptcpSeen::Stripped);
        // A link that has gone counts no longer.
        assert_eq!(station.note_mptcp("wan2", &links[1..], false), MptcpSeen::Stripped);
        assert!(!station.is_without_mptcp());
    }

    #[test]
    fn who_failed_is_asked_last_also_on_a_new_list() {
        let relays = Relays::new(&[at("a"), at("b"), at("c")]);
        relays.all()[0].note(Err("no answer"));
        assert_eq!(labels(&relays.order()), "bca");
        assert!(!relays.replace(&[at("a"), at("b"), at("c")]));
        assert!(relays.replace(&[at("a"), at("c")]));
        assert_eq!(labels(&relays.order()), "ca");
        relays.all()[0].note(Ok(()));
        assert_eq!(labels(&relays.order()), "ac");
    }
}
