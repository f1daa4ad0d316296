//! Starts connections over the links: drives [`Race`] with sockets that are bound to a device, and names that each link's own name
//! servers are asked for.
//!
//! Where fewer than two links are known there is one attempt, as the kernel's routes have it. Attempts that lose run on to their own time
//! limits in the background, because their results decide over which link the next connection begins.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use marline_core::link_choice::{LinkChoice, LinkFailure, LinkSeen, Outcome, Race};
use marline_core::units::Instant;
use marline_net::dns::Resolver;
use marline_net::links::{Interface, Network, survey};
use marline_net::reach::Zone;
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{sleep_until, timeout};

/// A link over which connections do not begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailingLink {
    /// Its interface.
    pub name: String,
    /// Why.
    pub why: LinkFailure,
    /// Another link, over which they do.
    pub instead: Option<String>,
}

/// What a connection that stands shows of its link.
pub(crate) enum Shows {
    /// It reaches the destination.
    Reached,
    /// It does, but SYNs with MPTCP's option are dropped.
    WithoutMptcp,
    /// It does, but MPTCP's option is stripped.
    Stripped,
    /// The destination is not behind the links.
    Nothing,
}

/// All links of this host, as places where connections begin.
pub(crate) struct Starts {
    begun: std::time::Instant,
    state: Mutex<State>,
    resolver: Resolver,
    failing: watch::Sender<Vec<FailingLink>>,
    /// The link over which connections begin first.
    first: watch::Sender<Option<String>>,
    /// The evidence or the links have changed.
    changed: Notify,
}

#[derive(Default)]
struct State {
    choice: LinkChoice,
    links: Vec<Arc<Interface>>,
    /// The networks of the interfaces that are no links.
    networks: Vec<Network>,
    /// The server that a flow without a relay has reached last.
    reached: Option<SocketAddr>,
}

/// chosen: longer than each attempt's own time limits, so that it only bounds those that have none.
const LONGEST: Duration = Duration::from_secs(10);
/// chosen: a name server's first answer and a repeated one.
const NAMES: Duration = Duration::from_secs(3);
/// chosen: longer than [`NAMES`]. How long a connection that stands waits for what the other links show.
const GRACE: Duration = Duration::from_millis(3500);

impl Starts {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            begun: std::time::Instant::now(),
            state: Mutex::default(),
            resolver: Resolver::new(),
            failing: watch::Sender::default(),
            first: watch::Sender::default(),
            changed: Notify::new(),
        })
    }

    /// Over the links that can be used now, for a few connections; below a VPN as the kernel has it.
    pub(crate) async fn surveyed() -> Arc<Self> {
        let starts = Self::new();
        if let Ok(Ok(survey)) = spawn_blocking(survey).await
            && survey.vpn.is_none()
        {
            let (mut usable, others): (Vec<_>, Vec<_>) =
                survey.interfaces.into_iter().partition(|interface| interface.is_usable());
            usable.sort_by_key(preference);
            let seen = |link: Interface| {
                (LinkSeen { name: link.name.clone(), index: link.index, silent: false, receives: false }, link)
            };
            let networks = others.into_iter().flat_map(|interface| interface.networks).collect();
            starts.set_links(usable.into_iter().map(seen).collect(), networks);
        }
        starts
    }

    /// The links that are up, in the order of the kernel's preference, and the networks of the other interfaces. Whether there is a link
    /// that was not there before.
    pub(crate) fn set_links(&self, links: Vec<(LinkSeen, Interface)>, networks: Vec<Network>) -> bool {
        let now = self.now();
        let mut state = self.lock();
        let (seen, links): (Vec<_>, Vec<_>) = links.into_iter().unzip();
        let is_new =
            |link: &Interface| state.links.iter().all(|old| (&old.name, old.index) != (&link.name, link.index));
        let has_new = links.iter().any(is_new);
        if state.links.iter().map(|link| &**link).ne(links.iter()) {
            self.resolver.forget_networks();
        }
        state.links = links.into_iter().map(Arc::new).collect();
        state.networks = networks;
        state.choice.set_links(now, seen);
        drop(state);
        self.publish();
        has_new
    }

    /// Connections begin as the kernel's routes have it, until links are set again.
    pub(crate) fn forget_links(&self) {
        let networks = self.lock().networks.clone();
        self.set_links(Vec::new(), networks);
    }

    /// Links over which connections do not begin. Changes are reported.
    pub(crate) fn failing(&self) -> watch::Receiver<Vec<FailingLink>> {
        self.failing.subscribe()
    }

    /// The link over which connections begin first. Changes are reported.
    pub(crate) fn first(&self) -> watch::Receiver<Option<String>> {
        self.first.subscribe()
    }

    /// A connection over the link whose attempt is the first to succeed. `order` makes the race: [`Race::new`] to a destination that proves
    /// by its certificate what it is, [`Race::to_unproven`] to any other.
    ///
    /// # Errors
    /// No link reaches it: the error of the last attempt.
    pub(crate) async fn start<T, F>(
        self: &Arc<Self>,
        order: fn(Instant, &LinkChoice) -> Race,
        attempt: impl Fn(Option<Arc<Interface>>) -> F + Send + 'static,
    ) -> io::Result<T>
    where
        T: Send + 'static,
        F: Future<Output = io::Result<(T, Shows)>> + Send + 'static,
    {
        let race = order(self.now(), &self.lock().choice);
        // A race over one link is one where another link is left out on purpose.
        if self.lock().links.len() < 2 {
            return attempt(None).await.map(|(value, _)| value);
        }
        let (tell, told) = oneshot::channel();
        tokio::spawn(Arc::clone(self).drive(race, attempt, tell));
        told.await.unwrap_or_else(|_| Err(io::ErrorKind::Interrupted.into()))
    }

    async fn drive<T, F>(
        self: Arc<Self>,
        mut race: Race,
        attempt: impl Fn(Option<Arc<Interface>>) -> F,
        tell: oneshot::Sender<io::Result<T>>,
    ) where
        T: Send + 'static,
        F: Future<Output = io::Result<(T, Shows)>> + Send + 'static,
    {
        let (mut tell, mut running, mut open) = (Some(tell), JoinSet::new(), BTreeSet::new());
        let mut grace = None;
        let mut last = io::Error::new(io::ErrorKind::NetworkUnreachable, "no link");
        loop {
            while let Some((number, link)) = race.poll(self.now()) {
                let started = attempt(self.link(&link));
                open.insert(number);
                running.spawn(async move {
                    let late = |_| io::Error::new(io::ErrorKind::TimedOut, "no answer");
                    (number, timeout(LONGEST, started).await.unwrap_or_else(|error| Err(late(error))))
                });
            }
            let next = race.deadline().filter(|_| tell.as_ref().is_some_and(|tell| !tell.is_closed()));
            if running.is_empty() && next.is_none() && grace.is_none() {
                break;
            }
            let due = async {
                match (next, grace) {
                    (_, Some(end)) => sleep_until(end).await,
                    (Some(next), None) => sleep_until((self.begun + next.since(Instant::default())).into()).await,
                    (None, None) => std::future::pending().await,
                }
            };
            let (number, result) = tokio::select! {
                joined = running.join_next(), if !running.is_empty() => match joined {
                    Some(Ok(ended)) => ended,
                    // It has panicked, which says nothing.
                    Some(Err(_)) | None => continue,
                },
                () = due => {
                    if grace.is_some() {
                        open.iter().for_each(|number| race.handle(self.now(), *number, Err(LinkFailure::Silent)));
                        self.learn(&mut race);
                        break;
                    }
                    self.learn(&mut race);
                    continue;
                }
            };
            open.remove(&number);
            match result {
                Ok((value, shows)) => {
                    grace.get_or_insert(tokio::time::Instant::now() + GRACE);
                    if let Some(tell) = tell.take() {
                        let _ = tell.send(Ok(value));
                    }
                    let lacks = match shows {
                        Shows::Reached => None,
                        Shows::WithoutMptcp => Some(LinkFailure::MptcpDropped),
                        Shows::Stripped => Some(LinkFailure::MptcpStripped),
                        Shows::Nothing => return,
                    };
                    race.handle(self.now(), number, Ok(lacks));
                }
                Err(error) => {
                    race.handle(self.now(), number, Err(kind(&error)));
                    last = error;
                }
            }
            self.learn(&mut race);
        }
        if let Some(tell) = tell {
            let _ = tell.send(Err(last));
        }
    }

    fn learn(&self, race: &mut Race) {
        let now = self.now();
        for (link, outcome) in race.evidence(now) {
            self.lock().choice.report(now, &link, outcome);
        }
        self.publish();
    }

    /// Waits until a link is to be probed, and gives it.
    pub(crate) async fn due(&self) -> Arc<Interface> {
        loop {
            let (next, now) = {
                let choice = &self.lock().choice;
                (choice.next_probe().into_iter().chain(choice.next_check()).min(), self.now())
            };
            match next {
                Some((at, link)) if at <= now => {
                    self.lock().choice.probing(now, &link);
                    if let Some(link) = self.link(&link) {
                        return link;
                    }
                }
                Some((at, _)) => drop(timeout(at.since(now), self.changed.notified()).await),
                None => self.changed.notified().await,
            }
        }
    }

    /// The names of the links.
    pub(crate) fn names(&self) -> Vec<String> {
        self.lock().links.iter().map(|link| link.name.clone()).collect()
    }

    /// No link strips MPTCP: the relay does not speak it.
    pub(crate) fn none_strips(&self) {
        self.lock().choice.forgive(LinkFailure::MptcpStripped);
        self.publish();
    }

    /// A flow without a relay has reached this server.
    pub(crate) fn has_reached_directly(&self, server: SocketAddr) {
        self.lock().reached = Some(server);
    }

    /// Where this link is probed while no relay can be reached; none: nothing is known there, or a captive portal would answer.
    pub(crate) fn direct_probe(&self, link: &str) -> Option<SocketAddr> {
        let state = self.lock();
        state.reached.filter(|_| state.choice.failure(link) != Some(LinkFailure::WrongCertificate))
    }

    /// The result of a probe.
    pub(crate) fn probed(&self, link: &str, began: std::time::Instant, result: io::Result<Shows>) {
        let outcome = match result {
            Ok(Shows::WithoutMptcp) => Outcome::Failed(LinkFailure::MptcpDropped),
            Ok(Shows::Stripped) => Outcome::Failed(LinkFailure::MptcpStripped),
            // The relay may be what does not answer.
            Err(_) if self.lock().choice.failure(link).is_none() => return,
            Ok(_) => Outcome::Reached(began.elapsed()),
            Err(error) => Outcome::Failed(kind(&error)),
        };
        self.lock().choice.report(self.now(), link, outcome);
        self.publish();
    }

    /// The addresses of a host, from the link's own name servers.
    ///
    /// # Errors
    /// Over this link the name has none.
    pub(crate) async fn addresses(
        &self,
        asker: Option<IpAddr>,
        (host, port): (&str, u16),
        link: &Interface,
    ) -> io::Result<Vec<SocketAddr>> {
        let found = self.resolver.resolve_for(asker, host, Some(link), NAMES).await;
        let found = found.map_err(|why| io::Error::new(io::ErrorKind::NotFound, why.text))?;
        Ok(found.addresses.into_iter().map(|address| SocketAddr::new(address, port)).collect())
    }

    /// Those of these addresses that are of a family which the link has.
    ///
    /// # Errors
    /// There is none: the link says nothing about the destination.
    pub(crate) fn of_families(mut addresses: Vec<SocketAddr>, link: &Interface) -> io::Result<Vec<SocketAddr>> {
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

    /// Whether the address is behind the links: not this host's own, nor on a LAN of its.
    pub(crate) fn is_behind_links(&self, address: IpAddr) -> bool {
        let is_neighbour = self.lock().networks.iter().any(|network| network.contains(address));
        !is_neighbour && Zone::of(address) != Zone::Host
    }

    fn link(&self, name: &str) -> Option<Arc<Interface>> {
        self.lock().links.iter().find(|link| link.name == name).cloned()
    }

    /// Reports what has changed.
    fn publish(&self) {
        let (failing, order) = {
            let state = self.lock();
            let (failing, order) = (state.choice.failing(), state.choice.order());
            let well = order.iter().find(|link| state.choice.failure(link).is_none());
            let row = |(name, why)| FailingLink { name, why, instead: well.cloned() };
            (failing.into_iter().map(row).collect::<Vec<_>>(), order)
        };
        let first = order.into_iter().next();
        self.first.send_if_modified(|now| {
            let is_new = *now != first;
            *now = first;
            is_new
        });
        self.failing.send_if_modified(|now| {
            let is_new = *now != failing;
            *now = failing;
            is_new
        });
        self.changed.notify_waiters();
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Starts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Starts").finish_non_exhaustive()
    }
}

/// The kernel's preference: the lower the better; none: no default route.
pub(crate) fn preference(link: &Interface) -> Option<(u32, u32)> {
    let metric = [&link.v4, &link.v6].into_iter().flatten().map(|route| route.metric).min()?;
    Some((metric, link.index))
}

/// A connection of plain TCP, bound to this device.
pub(crate) async fn connect_over(address: SocketAddr, device: Option<&str>) -> io::Result<TcpStream> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    match socket.bind_device(device.map(str::as_bytes)) {
        // Before Linux 5.7 it needs CAP_NET_RAW: then the kernel chooses the link.
        Err(error) if error.kind() != io::ErrorKind::PermissionDenied => return Err(error),
        _ => {}
    }
    socket.connect(address).await
}

/// What an error says of the link.
fn kind(error: &io::Error) -> LinkFailure {
    use io::ErrorKind as Kind;
    if let Some(error) = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        return match error {
            // A server of another authority, or one that does not speak TLS.
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
        Kind::TimedOut => LinkFailure::Silent,
        Kind::ConnectionRefused
        | Kind::ConnectionReset
        | Kind::ConnectionAborted
        | Kind::UnexpectedEof
        | Kind::BrokenPipe => LinkFailure::Refused,
        Kind::HostUnreachable | Kind::NetworkUnreachable | Kind::NetworkDown => LinkFailure::Unreachable,
        Kind::NotFound => LinkFailure::Names,
        // A route of the kind `prohibit`; a member that is not the expected one has no number.
        Kind::PermissionDenied if error.raw_os_error().is_some() => LinkFailure::Unreachable,
        _ => LinkFailure::Other,
    }
}
