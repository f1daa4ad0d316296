//! Opens connections over the links: drives [`HappyEyeballs`] with sockets bound to a device, and resolves names with
//! each link's own name servers.
//!
//! With fewer than two known links there is one attempt, over the route that the kernel chooses. If the kernel would
//! choose an interface that is down and whose routes have remained, the only link is used explicitly. Attempts that
//! lose the race continue in the background for [`EVIDENCE_GRACE`], because their results decide over which link the
//! next connection starts.

mod probes;

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use marline_core::link_choice::{HappyEyeballs, LinkChoice, LinkFailure, LinkObservation};
use marline_core::units::Instant;
use marline_net::dns::Resolver;
use marline_net::egress::AddressZone;
use marline_net::links::{Interface, Subnet, UnusedReason, Usability, list_interfaces};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{sleep_until, timeout};

/// A link over which connections are not started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailingLink {
    /// Name of its interface.
    pub name: String,
    /// Reason of the failure.
    pub reason: LinkFailure,
    /// The link that is used instead, if there is one.
    pub alternative: Option<String>,
}

/// What an established connection reveals about its link.
pub(crate) enum ConnObservation {
    /// The destination is reachable.
    Reached,
    /// The destination is reachable, but SYNs with the MPTCP option are dropped.
    MptcpDropped,
    /// The destination is reachable, but the MPTCP option is stripped.
    MptcpStripped,
    /// The destination is not reached through the links.
    NotViaLinks,
}

/// Opens connections over the links of this host.
pub(crate) struct LinkDialer {
    epoch: std::time::Instant,
    state: Mutex<DialerState>,
    pub(crate) resolver: Resolver,
    failing_links: watch::Sender<Vec<FailingLink>>,
    /// Whether the URL of the portal probe (an HTTP request that reveals captive portals) may be wrong or blocked.
    portal_probe_doubted: watch::Sender<bool>,
    /// The link over which connections start first.
    preferred_link: watch::Sender<Option<String>>,
    /// Notifies when observations or links have changed.
    changed: Notify,
}

#[derive(Default)]
struct DialerState {
    choice: LinkChoice,
    links: Vec<Arc<Interface>>,
    /// Networks of the interfaces that are not links.
    networks: Vec<Subnet>,
    /// Whether the kernel's routes use an interface that is down.
    prefers_down_interface: bool,
    /// The last server that a flow without a relay has reached.
    last_direct_server: Option<SocketAddr>,
}

/// Longest time of an attempt. Our choice: longer than each attempt's own timeouts; it only bounds those without one.
const MAX_ATTEMPT_TIME: Duration = Duration::from_secs(10);
/// Time to resolve a name. Our choice: enough for a name server's first response and a retransmitted one.
const DNS_TIMEOUT: Duration = Duration::from_secs(3);
/// How long after a success the attempts over other links may still deliver results. The caller has its connection by
/// then and does not wait. Our choice: longer than [`DNS_TIMEOUT`].
const EVIDENCE_GRACE: Duration = Duration::from_millis(3500);

impl LinkDialer {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            epoch: std::time::Instant::now(),
            state: Mutex::default(),
            resolver: Resolver::new(),
            failing_links: watch::Sender::default(),
            portal_probe_doubted: watch::Sender::default(),
            preferred_link: watch::Sender::default(),
            changed: Notify::new(),
        })
    }

    /// A dialer for a few connections over the links that are usable now; with a VPN, the kernel chooses the route.
    pub(crate) async fn from_survey() -> Arc<Self> {
        let dialer = Self::new();
        if let Ok(Ok(survey)) = spawn_blocking(list_interfaces).await
            && survey.vpn.is_none()
        {
            let (mut usable, others): (Vec<_>, Vec<_>) =
                survey.interfaces.into_iter().partition(|interface| interface.is_usable());
            usable.sort_by_key(route_preference);
            let with_observation = |link: Interface| {
                let (name, index) = (link.name.clone(), link.index);
                (LinkObservation { name, index, is_unresponsive: false, is_receiving: false, metered: false }, link)
            };
            dialer.set_links(usable.into_iter().map(with_observation).collect(), &others);
        }
        dialer
    }

    /// Sets the links that are up, in the order of the kernel's preference, and the other interfaces. Returns whether
    /// there is a new link.
    pub(crate) fn set_links(&self, links: Vec<(LinkObservation, Interface)>, others: &[Interface]) -> bool {
        let misroutes =
            links.first().is_some_and(|(_, link)| others.iter().any(|other| is_down_and_preferred_to(other, link)));
        let networks = others.iter().flat_map(|interface| interface.subnets.clone()).collect();
        self.apply_links(links, networks, misroutes)
    }

    fn apply_links(
        &self,
        links: Vec<(LinkObservation, Interface)>,
        networks: Vec<Subnet>,
        misroutes: bool,
    ) -> bool {
        let now = self.now();
        let mut state = self.lock();
        let (observations, links): (Vec<_>, Vec<_>) = links.into_iter().unzip();
        let is_new = |link: &Interface| {
            state.links.iter().all(|known| (&known.name, known.index) != (&link.name, link.index))
        };
        let has_new = links.iter().any(is_new);
        if state.links.iter().map(|link| &**link).ne(links.iter()) {
            self.resolver.clear_all();
        }
        state.links = links.into_iter().map(Arc::new).collect();
        (state.networks, state.prefers_down_interface) = (networks, misroutes);
        state.choice.set_links(now, observations);
        drop(state);
        self.publish();
        has_new
    }

    /// Lets the kernel choose the route of connections until links are set again.
    pub(crate) fn use_kernel_routes(&self) {
        let networks = self.lock().networks.clone();
        self.apply_links(Vec::new(), networks, false);
    }

    /// The links over which connections are not started. Changes are reported.
    pub(crate) fn failing(&self) -> watch::Receiver<Vec<FailingLink>> {
        self.failing_links.subscribe()
    }

    /// Whether the URL of the portal probe may be wrong or blocked ([`LinkChoice::is_portal_probe_doubted`]). Changes
    /// are reported.
    pub(crate) fn portal_probe_doubted(&self) -> watch::Receiver<bool> {
        self.portal_probe_doubted.subscribe()
    }

    /// The link over which connections start first. Changes are reported.
    pub(crate) fn preferred_link(&self) -> watch::Receiver<Option<String>> {
        self.preferred_link.subscribe()
    }

    /// Connects to a destination that authenticates itself with a certificate, so that a captive portal is not taken for it.
    ///
    /// # Errors
    /// If no link reaches the destination: the error of the last attempt.
    pub(crate) async fn connect<T, F>(
        self: &Arc<Self>,
        attempt: impl Fn(Option<Arc<Interface>>) -> F + Send + 'static,
    ) -> io::Result<T>
    where
        T: Send + 'static,
        F: Future<Output = io::Result<(T, ConnObservation)>> + Send + 'static,
    {
        let race = HappyEyeballs::new(self.now(), &self.lock().choice);
        self.run(race, attempt).await
    }

    /// Connects to any server. A link with a captive portal is not used if another link works.
    ///
    /// # Errors
    /// If no link reaches the server: the error of the last attempt.
    pub(crate) async fn connect_unauthenticated<T, F>(
        self: &Arc<Self>,
        attempt: impl Fn(Option<Arc<Interface>>) -> F + Send + 'static,
    ) -> io::Result<T>
    where
        T: Send + 'static,
        F: Future<Output = io::Result<(T, ConnObservation)>> + Send + 'static,
    {
        let (race, now) = (HappyEyeballs::to_unauthenticated(self.now(), &self.lock().choice), self.now());
        self.lock().choice.on_unauthenticated_use(now);
        self.changed.notify_waiters();
        self.run(race, attempt).await
    }

    async fn run<T, F>(
        self: &Arc<Self>,
        race: HappyEyeballs,
        attempt: impl Fn(Option<Arc<Interface>>) -> F + Send + 'static,
    ) -> io::Result<T>
    where
        T: Send + 'static,
        F: Future<Output = io::Result<(T, ConnObservation)>> + Send + 'static,
    {
        // With a single link there is no race, but a race may contain one link because others are excluded on purpose.
        let single_attempt = {
            let state = self.lock();
            (state.links.len() < 2).then(|| state.links.first().filter(|_| state.prefers_down_interface).cloned())
        };
        if let Some(link) = single_attempt {
            return attempt(link).await.map(|(value, _)| value);
        }
        let (result_tx, result_rx) = oneshot::channel();
        tokio::spawn(Arc::clone(self).drive(race, attempt, result_tx));
        result_rx.await.unwrap_or_else(|_| Err(io::ErrorKind::Interrupted.into()))
    }

    async fn drive<T, F>(
        self: Arc<Self>,
        mut race: HappyEyeballs,
        attempt: impl Fn(Option<Arc<Interface>>) -> F,
        result_tx: oneshot::Sender<io::Result<T>>,
    ) where
        T: Send + 'static,
        F: Future<Output = io::Result<(T, ConnObservation)>> + Send + 'static,
    {
        let (mut result_tx, mut running, mut pending) = (Some(result_tx), JoinSet::new(), BTreeSet::new());
        let mut grace = None;
        let mut last = io::Error::new(io::ErrorKind::NetworkUnreachable, "no link reaches the destination");
        loop {
            while let Some((number, link)) = race.poll(self.now()) {
                let started = attempt(self.link(&link));
                pending.insert(number);
                running.spawn(async move {
                    let timed_out = |_| io::Error::new(io::ErrorKind::TimedOut, "no answer");
                    (number, timeout(MAX_ATTEMPT_TIME, started).await.unwrap_or_else(|error| Err(timed_out(error))))
                });
            }
            // Once the caller has its result or is gone, no further attempts are started; running ones are still
            // observed.
            let next = race.deadline().filter(|_| result_tx.as_ref().is_some_and(|tx| !tx.is_closed()));
            if running.is_empty() && next.is_none() && grace.is_none() {
                break;
            }
            let due = async {
                match (next, grace) {
                    (_, Some(end)) => sleep_until(end).await,
                    (Some(next), None) => sleep_until((self.epoch + next.since(Instant::default())).into()).await,
                    (None, None) => std::future::pending().await,
                }
            };
            let (number, result) = tokio::select! {
                joined = running.join_next(), if !running.is_empty() => match joined {
                    Some(Ok(ended)) => ended,
                    // The attempt has panicked, which reveals nothing about its link.
                    Some(Err(_)) | None => continue,
                },
                () = due => {
                    // The grace period is over: links without a result count as not responding.
                    if grace.is_some() {
                        pending.iter().for_each(|number| race.handle(self.now(), *number, Err(LinkFailure::NoResponse)));
                        self.record_evidence(&mut race);
                        break;
                    }
                    self.record_evidence(&mut race);
                    continue;
                }
            };
            pending.remove(&number);
            match result {
                Ok((value, observation)) => {
                    grace.get_or_insert(tokio::time::Instant::now() + EVIDENCE_GRACE);
                    if let Some(result_tx) = result_tx.take() {
                        let _ = result_tx.send(Ok(value));
                    }
                    let mptcp_failure = match observation {
                        ConnObservation::Reached => None,
                        ConnObservation::MptcpDropped => Some(LinkFailure::MptcpDropped),
                        ConnObservation::MptcpStripped => Some(LinkFailure::MptcpStripped),
                        ConnObservation::NotViaLinks => return,
                    };
                    race.handle(self.now(), number, Ok(mptcp_failure));
                }
                Err(error) => {
                    race.handle(self.now(), number, Err(classify_error(&error)));
                    last = error;
                }
            }
            self.record_evidence(&mut race);
        }
        if let Some(result_tx) = result_tx {
            let _ = result_tx.send(Err(last));
        }
    }

    fn record_evidence(&self, race: &mut HappyEyeballs) {
        let now = self.now();
        for (link, outcome) in race.new_outcomes(now) {
            self.lock().choice.record(now, &link, outcome);
        }
        self.publish();
    }

    /// Names of the links.
    pub(crate) fn link_names(&self) -> Vec<String> {
        self.lock().links.iter().map(|link| link.name.clone()).collect()
    }

    /// Forgets that links strip MPTCP, because the relay does not support it.
    pub(crate) fn clear_mptcp_stripped(&self) {
        self.lock().choice.forget_failures(LinkFailure::MptcpStripped);
        self.publish();
    }

    /// Resolves a host with the link's own name servers. `client`: the remote host that sent the request, if any; its
    /// look-ups delay no other host.
    ///
    /// # Errors
    /// If the name has no address over this link.
    pub(crate) async fn resolve(
        &self,
        client: Option<IpAddr>,
        (host, port): (&str, u16),
        link: &Interface,
    ) -> io::Result<Vec<SocketAddr>> {
        let found = self.resolver.resolve_for(client, host, Some(link), DNS_TIMEOUT).await;
        let found = found.map_err(|why| io::Error::new(io::ErrorKind::NotFound, why.message))?;
        Ok(found.addresses.into_iter().map(|address| SocketAddr::new(address, port)).collect())
    }

    /// Filters the addresses to the families that the link has.
    ///
    /// # Errors
    /// If none is left: the attempt would reveal nothing about the destination.
    pub(crate) fn with_link_families(
        mut addresses: Vec<SocketAddr>,
        link: &Interface,
    ) -> io::Result<Vec<SocketAddr>> {
        let has_v4 = addresses.iter().any(SocketAddr::is_ipv4);
        let has_v6 = addresses.iter().any(SocketAddr::is_ipv6);
        addresses.retain(|address| if address.is_ipv4() { link.has_v4() } else { link.has_v6() });
        if addresses.is_empty() {
            let name = &link.name;
            return Err(io::Error::other(match (has_v4, has_v6) {
                (true, true) => format!("{name} has no address that reaches the destination"),
                (true, false) => format!("{name} has no IPv4, and the destination has nothing else"),
                (false, _) => format!("{name} has no IPv6, and the destination has nothing else"),
            }));
        }
        Ok(addresses)
    }

    /// The present links.
    pub(crate) fn links(&self) -> Vec<Arc<Interface>> {
        self.lock().links.clone()
    }

    /// Whether this is the index of a link's interface.
    pub(crate) fn is_link(&self, index: u32) -> bool {
        self.lock().links.iter().any(|link| link.index == index)
    }

    /// Whether the address is reached through the links: not this host's own address, nor on one of its LANs.
    pub(crate) fn is_behind_links(&self, address: IpAddr) -> bool {
        let is_on_lan = self.lock().networks.iter().any(|network| network.contains(address));
        !is_on_lan && AddressZone::of(address) != AddressZone::Host
    }

    fn link(&self, name: &str) -> Option<Arc<Interface>> {
        self.lock().links.iter().find(|link| link.name == name).cloned()
    }

    /// Publishes changes to the subscribers.
    fn publish(&self) {
        let (failing, order, doubted) = {
            let state = self.lock();
            let (failing, order) = (state.choice.failing_links(), state.choice.order());
            let working = order.iter().find(|link| state.choice.failure(link).is_none());
            let row = |(name, why)| FailingLink { name, reason: why, alternative: working.cloned() };
            let doubted = state.choice.is_portal_probe_doubted();
            (failing.into_iter().map(row).collect::<Vec<_>>(), order, doubted)
        };
        self.portal_probe_doubted.send_if_modified(|now| std::mem::replace(now, doubted) != doubted);
        let first = order.into_iter().next();
        self.preferred_link.send_if_modified(|current| {
            let is_new = *current != first;
            *current = first;
            is_new
        });
        self.failing_links.send_if_modified(|current| {
            let is_new = *current != failing;
            *current = failing;
            is_new
        });
        self.changed.notify_waiters();
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn lock(&self) -> MutexGuard<'_, DialerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for LinkDialer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LinkDialer").finish_non_exhaustive()
    }
}

/// The kernel's preference of a link, lower is better; `None` without a default route.
pub(crate) fn route_preference(link: &Interface) -> Option<(u32, u32)> {
    let metric = [&link.route_v4, &link.route_v6].into_iter().flatten().map(|route| route.metric).min()?;
    Some((metric, link.index))
}

/// Whether the kernel's routes prefer the other interface, which is down, to the link. The routes of an interface
/// without carrier remain until a network manager removes them.
fn is_down_and_preferred_to(other: &Interface, link: &Interface) -> bool {
    let is_down = matches!(other.usability, Usability::Unused(UnusedReason::NoCarrier | UnusedReason::Down));
    is_down
        && route_preference(other)
            .is_some_and(|other_preference| route_preference(link).is_none_or(|of_link| other_preference < of_link))
}

/// A plain TCP connection, bound to this device.
pub(crate) async fn connect_over(address: SocketAddr, device: Option<&str>) -> io::Result<TcpStream> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    match socket.bind_device(device.map(str::as_bytes)) {
        // Before Linux 5.7 this needs CAP_NET_RAW; without it the kernel chooses the link.
        Err(error) if error.kind() != io::ErrorKind::PermissionDenied => return Err(error),
        _ => {}
    }
    socket.connect(address).await
}

/// Classifies an error by what it reveals about the link.
fn classify_error(error: &io::Error) -> LinkFailure {
    use io::ErrorKind as Kind;
    if let Some(error) = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        return match error {
            // A server of another authority, or one that does not use TLS.
            rustls::Error::InvalidCertificate(
                rustls::CertificateError::UnknownIssuer
                | rustls::CertificateError::NotValidForName
                | rustls::CertificateError::NotValidForNameContext { .. }
                | rustls::CertificateError::BadEncoding
                | rustls::CertificateError::BadSignature,
            )
            | rustls::Error::InvalidMessage(_)
            | rustls::Error::UnsupportedNameType => LinkFailure::WrongCertificate,
            _ => LinkFailure::Other,
        };
    }
    match error.kind() {
        Kind::TimedOut => LinkFailure::NoResponse,
        Kind::ConnectionRefused
        | Kind::ConnectionReset
        | Kind::ConnectionAborted
        | Kind::UnexpectedEof
        | Kind::BrokenPipe => LinkFailure::Refused,
        Kind::HostUnreachable | Kind::NetworkUnreachable | Kind::NetworkDown => LinkFailure::Unreachable,
        Kind::NotFound => LinkFailure::Dns,
        // A route of type `prohibit`. Errors without an OS error code come from a member other than the expected one.
        Kind::PermissionDenied if error.raw_os_error().is_some() => LinkFailure::Unreachable,
        _ => LinkFailure::Other,
    }
}

#[cfg(test)]
mod tests {
    use marline_net::testing::{default_route, test_interface};

    use super::*;

    fn interface(name: &str, metric: Option<u32>, verdict: Usability) -> Interface {
        Interface {
            addresses: vec!["192.0.2.2".parse().unwrap()],
            route_v4: metric.map(default_route),
            usability: verdict,
            ..test_interface(name, name.len() as u32)
        }
    }

    /// The link over which a single attempt is made.
    fn attempts_over(links: &[Interface], others: &[Interface]) -> Option<String> {
        let seen = |link: &Interface| {
            let (name, index) = (link.name.clone(), link.index);
            (
                LinkObservation { name, index, is_unresponsive: false, is_receiving: false, metered: false },
                link.clone(),
            )
        };
        let dialer = LinkDialer::new();
        dialer.set_links(links.iter().map(seen).collect(), others);
        let attempt = |link: Option<Arc<Interface>>| async move {
            Ok((link.map(|link| link.name.clone()), ConnObservation::Reached))
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(dialer.connect(attempt)).unwrap()
    }

    #[test]
    fn the_only_link_is_used_explicitly_if_the_kernel_would_choose_an_interface_that_is_down() {
        let link = [interface("wan2", Some(200), Usability::Usable)];
        let down = |metric| interface("wan10", metric, Usability::Unused(UnusedReason::NoCarrier));
        assert_eq!(attempts_over(&link, &[down(Some(100))]).as_deref(), Some("wan2"));
        // The interface that is down is not preferred, has no route, or is up.
        assert_eq!(attempts_over(&link, &[down(Some(300))]), None);
        assert_eq!(attempts_over(&link, &[down(None)]), None);
        assert_eq!(attempts_over(&link, &[interface("tun0", Some(0), Usability::Usable)]), None);
        assert_eq!(attempts_over(&[], &[down(Some(100))]), None);
    }
}
