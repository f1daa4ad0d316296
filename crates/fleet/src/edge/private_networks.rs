//! Connects to private networks that this host reaches without a relay: web pages of modems behind its links, offices behind its static
//! routes.
//!
//! LAN connections to a network for which the kernel has a more specific route than a default route do not arrive here: the kernel forwards
//! them like UDP (`marline_paths::gateway`). Three cases remain.
//!
//! 1. A proxy client names a private address. If the kernel has a more specific route, this host connects at once.
//! 2. Only a default route leads to the address. A relay that may reach private networks is tried first. If no relay carries the flow, this
//!    host connects over the UDP link (the best single link, which carries LAN packets without a tunnel).
//! 3. A proxy client names a host of a local domain (`fritz.box`, `local_domain`). A relay is tried first. If it finds no address for the
//!    name or refuses its address, the DNS servers of this host and of its links are queried. If all addresses are private and the kernel
//!    has a more specific route for them, this host connects. Other names are not resolved here: an attacker who owns the domain may change
//!    its addresses to private ones (DNS rebinding), and the queries would reveal the name to the access networks. A local name that has
//!    led to the Internet within [`NAME_LIFETIME`] is not resolved either ([`PublicNames`]).
//!
//! If such a route exists but TPROXY redirected a LAN connection nevertheless, because its packets carry a mark of another program, only a
//! relay is tried ([`PrivateAccess::UnroutedOnly`]): a connection of this host would bypass its rules for forwarded packets.
//!
//! Only programs on this host and hosts of the LAN get this access ([`private_access`]): both reach these networks by routing anyway. It
//! also holds with `--no-direct`, which concerns the Internet only.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use marline_net::egress::{AddressZone, EgressPolicy};
use marline_net::links::{has_non_default_route, is_outside_links, list_interfaces};
use tokio::net::TcpStream;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::timeout;

use super::Edge;
use super::dial::{DialOptions, connect};
use super::local_domain::{LocalDomain, is_local};
use crate::tunnel::{Problem, Status, Target};

/// Our choice: the same as for a direct connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Our choice: a DNS server's first answer and a repeated one.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(3);
/// How long, and for how many names, it is remembered that a local name led to the Internet. Our choice: longer than a page stays open, and
/// more local names than a site has.
const NAME_LIFETIME: Duration = Duration::from_secs(6 * 3600);
const MAX_NAMES: usize = 10_000;

/// The private networks to which this host opens connections for a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PrivateAccess {
    /// No private network.
    Denied,
    /// Only those that are reached by a default route; the kernel forwards packets to the others.
    UnroutedOnly,
    /// All that this host reaches.
    Full,
}

/// Local names that have led to the Internet, through a relay or directly.
#[derive(Debug, Default)]
pub(super) struct PublicNames(Mutex<SeenNames>);

#[derive(Debug, Default)]
struct SeenNames {
    names: BTreeMap<String, Instant>,
    /// When the newest of those names was seen that were dropped before they expired.
    newest_dropped: Option<Instant>,
}

impl PublicNames {
    /// A flow to this name has been carried to the Internet.
    pub(super) fn note(&self, target: &Target, domains: &[LocalDomain]) {
        if is_local_name(target, domains) {
            self.lock().note(Instant::now(), &target.host);
        }
    }

    /// Whether the name may have led to the Internet; if it may have been dropped early, the answer is yes.
    pub(super) fn may_have(&self, target: &Target) -> bool {
        self.lock().may_have(Instant::now(), &target.host)
    }

    fn lock(&self) -> MutexGuard<'_, SeenNames> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SeenNames {
    fn note(&mut self, now: Instant, host: &str) {
        if self.names.len() >= MAX_NAMES && !self.names.contains_key(host) {
            self.names.retain(|_, seen| is_fresh(now, *seen));
        }
        if self.names.len() >= MAX_NAMES && !self.names.contains_key(host) {
            let oldest = self.names.iter().min_by_key(|(_, seen)| **seen).map(|(name, seen)| (name.clone(), *seen));
            if let Some((oldest, seen)) = oldest {
                self.names.remove(&oldest);
                self.newest_dropped = self.newest_dropped.max(Some(seen));
            }
        }
        self.names.insert(host.to_owned(), now);
    }

    fn may_have(&self, now: Instant, host: &str) -> bool {
        let seen = self.names.get(host).into_iter().chain(&self.newest_dropped);
        seen.copied().any(|seen| is_fresh(now, seen))
    }
}

fn is_fresh(now: Instant, seen: Instant) -> bool {
    now.saturating_duration_since(seen) < NAME_LIFETIME
}

fn is_local_name(target: &Target, domains: &[LocalDomain]) -> bool {
    target.host.parse::<IpAddr>().is_err() && is_local(&target.host, domains)
}

/// The access of a proxy client: programs on this host and hosts of the LAN reach private networks by routing, too.
pub(super) fn private_access(edge: &Edge, client_addr: SocketAddr) -> PrivateAccess {
    match !EgressPolicy::for_peer(client_addr).has_remote_requester()
        || (edge.config.lan && is_outside_links(client_addr.ip()))
    {
        true => PrivateAccess::Full,
        false => PrivateAccess::Denied,
    }
}

/// The address of a target in a private network; `None`: the target is something else.
pub(super) fn private_address(target: &Target) -> Option<SocketAddr> {
    let address: IpAddr = target.host.parse().ok()?;
    (AddressZone::of(address) == AddressZone::Private).then(|| SocketAddr::new(address.to_canonical(), target.port))
}

/// Whether the target has a local name, and a relay has replied that it finds no address for it or may not connect to it.
pub(super) fn may_be_local_name(target: &Target, answer: &Problem, domains: &[LocalDomain]) -> bool {
    is_local_name(target, domains) && matches!(answer.error, "dns_error" | "destination_ip_prohibited")
}

/// Whether the routing table has a more specific route than a default route for it.
pub(super) fn has_specific_route(address: SocketAddr) -> bool {
    has_non_default_route(address.ip())
}

/// Connects from this host; without a specific route, over the UDP link.
pub(super) async fn connect_directly(edge: &Edge, address: SocketAddr) -> Result<TcpStream, Problem> {
    let udp_link = edge.udp_link.borrow().as_ref().and_then(|state| state.link.clone());
    let device = udp_link.filter(|_| !has_specific_route(address));
    let options = DialOptions { device, plain_tcp: true, ..DialOptions::default() };
    match timeout(CONNECT_TIMEOUT, connect(address, options)).await {
        Ok(Ok(socket)) => Ok(socket),
        Ok(Err(error)) => Err(Problem::new(Status::BadGateway, "destination_unavailable", error.to_string())),
        Err(_) => Err(Problem::new(Status::GatewayTimeout, "connection_timeout", "no answer")),
    }
}

/// Connects from this host to a private network by name; `None`: no DNS server gives private addresses with a specific route.
pub(super) async fn connect_by_name(edge: &Edge, target: &Target, right: EgressPolicy) -> Option<TcpStream> {
    let mut answers = JoinSet::new();
    let survey = spawn_blocking(list_interfaces).await.ok()?.ok();
    let names = edge.relay_pool.dialer.link_names();
    let links = survey.into_iter().flat_map(|survey| survey.interfaces).filter(|link| names.contains(&link.name));
    // The servers of all links and the system's resolver are queried at once; the first usable answer counts.
    for link in links.map(Some).chain([None]) {
        let (dialer, host) = (Arc::clone(&edge.relay_pool.dialer), target.host.clone());
        answers.spawn(async move {
            let found = dialer.resolver.resolve_for(right.requester(), &host, link.as_ref(), LOOKUP_TIMEOUT).await;
            found.map(|answer| answer.addresses).unwrap_or_default()
        });
    }
    while let Some(addresses) = answers.join_next().await {
        let addresses: Vec<SocketAddr> = addresses
            .unwrap_or_default()
            .into_iter()
            .map(|address| SocketAddr::new(address, target.port))
            .collect();
        // An answer with a public address may come from an attacker who controls the name (DNS rebinding).
        if !are_routed_private(&addresses) {
            continue;
        }
        for address in addresses {
            if let Ok(socket) = connect_directly(edge, address).await {
                return Some(socket);
            }
        }
        return None;
    }
    None
}

/// Whether there are addresses, all of them in private networks with a specific route.
fn are_routed_private(addresses: &[SocketAddr]) -> bool {
    let is_near = |address: &SocketAddr| {
        AddressZone::of(address.ip()) == AddressZone::Private && has_specific_route(*address)
    };
    !addresses.is_empty() && addresses.iter().all(is_near)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_local_name_that_a_relay_cannot_resolve_or_refuses_may_be_in_a_private_network() {
        let answer = |error| Problem::new(Status::BadGateway, error, String::new());
        let local = Target::parse("fritz.box:80").unwrap();
        for (error, may) in [
            ("dns_error", true),
            ("destination_ip_prohibited", true),
            ("dns_timeout", false),
            ("connection_refused", false),
            ("http_request_denied", false),
        ] {
            assert_eq!(may_be_local_name(&local, &answer(error), &[]), may, "{error}");
        }
        for other in ["192.0.2.1:80", "www.example:80"] {
            assert!(!may_be_local_name(&Target::parse(other).unwrap(), &answer("dns_error"), &[]), "{other}");
        }
        let named = ["example".parse().unwrap()];
        assert!(may_be_local_name(&Target::parse("www.example:80").unwrap(), &answer("dns_error"), &named));
        let unroutable = ["127.0.0.1:80", "192.0.2.1:80"].map(|address| address.parse().unwrap());
        assert!(!are_routed_private(&[]) && !are_routed_private(&unroutable));
    }

    #[test]
    fn only_local_names_are_remembered() {
        let names = PublicNames::default();
        let [local, other, address] =
            ["a.lan:443", "a.example:443", "192.0.2.1:443"].map(|to| Target::parse(to).unwrap());
        for target in [&local, &other, &address] {
            names.note(target, &[]);
        }
        assert!(names.may_have(&local) && !names.may_have(&other) && !names.may_have(&address));
    }

    #[test]
    fn after_a_name_was_dropped_early_every_name_may_have_led_to_the_internet() {
        let (mut seen, started_at) = (SeenNames::default(), Instant::now());
        seen.note(started_at, "a.lan");
        let later = started_at + Duration::from_secs(60);
        for n in 1..MAX_NAMES {
            seen.note(later, &format!("{n}.lan"));
        }
        assert!(seen.may_have(later, "a.lan") && !seen.may_have(later, "b.lan"));
        // One name more than the limit.
        seen.note(later, "c.lan");
        assert!(seen.names.len() == MAX_NAMES && seen.may_have(later, "a.lan") && seen.may_have(later, "b.lan"));
        assert!(seen.may_have(started_at + NAME_LIFETIME - Duration::from_secs(1), "b.lan"));
        // The name would have expired by then.
        assert!(
            !seen.may_have(started_at + NAME_LIFETIME, "a.lan")
                && !seen.may_have(started_at + NAME_LIFETIME, "b.lan")
        );
        // Expired names are dropped first.
        seen.note(later + NAME_LIFETIME, "d.lan");
        assert!(seen.names.len() == 1 && !seen.may_have(later + NAME_LIFETIME, "b.lan"));
    }
}
