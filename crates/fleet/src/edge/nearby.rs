//! Private networks that this box reaches without a relay: modems' pages behind its links, offices behind its static routes.
//!
//! TCP of a LAN to a network for which the kernel has more than a default route does not come here: it is forwarded like UDP
//! (`marline_net::paths::gateway`). Three cases are left.
//!
//! 1. A program that uses the proxy names a private address. Where the kernel has more than a default route, this box connects at once.
//! 2. Only a default route leads to the address. A relay that is allowed to reach private networks goes first; when none carries the flow,
//!    this box connects over the link that UDP takes.
//! 3. A program that uses the proxy names a host (`fritz.box`). A relay goes first. If it does not reach the host or refuses its address, the
//!    name servers of this box and of its links are asked. Where all addresses are private and the kernel has more than a default route for
//!    them, this box connects. A name under which a relay has reached a host before is not looked up here: it would be DNS rebinding.
//!
//! A connection of a LAN that TPROXY has led here although there is such a route, because its packets bear a mark of another program, goes to
//! a relay alone ([`Passes::BesideRoutes`]): a connection of this box would bypass the host's rules for forwarded packets.
//!
//! Only for programs of this machine and for hosts of the LAN ([`may_pass`]): both reach these networks by routing anyway. That holds
//! with `--no-direct` as well, which is about the Internet.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use marline_net::links::{is_beside_links, is_routed, survey};
use marline_net::reach::{Right, Zone};
use tokio::net::TcpStream;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::timeout;

use super::Edge;
use super::dial::{By, connect};
use crate::tunnel::{Problem, Status, Target};

/// chosen: as for a connection without a relay.
const CONNECT: Duration = Duration::from_secs(10);
/// chosen: a name server's first answer and a repeated one.
const LOOK_UP: Duration = Duration::from_secs(3);
/// chosen: longer than a page is left open, and as many as a household's browsers ask for in a day.
const LASTS: Duration = Duration::from_secs(6 * 3600);
const MOST: usize = 10_000;

/// The private networks to which this box makes connections for a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Passes {
    /// None.
    Nowhere,
    /// Those to which only a default route leads: the rest is forwarded.
    BesideRoutes,
    /// All that it reaches.
    Everywhere,
}

/// Names under which a relay has reached hosts.
#[derive(Debug, Default)]
pub(super) struct CarriedNames(Mutex<BTreeMap<String, Instant>>);

impl CarriedNames {
    /// A relay has reached it. Addresses are no names.
    pub(super) fn note(&self, target: &Target) {
        if is_name(target) {
            self.note_at(Instant::now(), &target.host);
        }
    }

    pub(super) fn has(&self, target: &Target) -> bool {
        self.lock().get(&target.host).is_some_and(|seen| seen.elapsed() < LASTS)
    }

    fn note_at(&self, now: Instant, host: &str) {
        let mut names = self.lock();
        if names.len() >= MOST && !names.contains_key(host) {
            let oldest = names.iter().min_by_key(|(_, seen)| **seen).map(|(name, _)| name.clone());
            oldest.map(|oldest| names.remove(&oldest));
        }
        names.insert(host.to_owned(), now);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_name(target: &Target) -> bool {
    target.host.parse::<IpAddr>().is_err()
}

/// Those of a client of the proxy: a program of this machine and a host of the LAN reach them by routing, too.
pub(super) fn may_pass(edge: &Edge, from: SocketAddr) -> Passes {
    match !Right::of_peer(from).is_another_hosts() || (edge.config.lan && is_beside_links(from.ip())) {
        true => Passes::Everywhere,
        false => Passes::Nowhere,
    }
}

/// The address of a target in a private network.
pub(super) fn private(target: &Target) -> Option<SocketAddr> {
    let address: IpAddr = target.host.parse().ok()?;
    (Zone::of(address) == Zone::Private).then(|| SocketAddr::new(address.to_canonical(), target.port))
}

/// Whether the target is named, and this answer of a relay leaves open that the name is one of a private network.
pub(super) fn may_be_named(target: &Target, answer: &Problem) -> bool {
    is_name(target) && matches!(answer.status, Status::Forbidden | Status::Unreachable)
}

/// Whether the routing table has more than a default route for it.
pub(super) fn is_near(address: SocketAddr) -> bool {
    is_routed(address.ip())
}

/// A connection of this box to it; where no route is known, over the link that UDP of the LAN takes.
pub(super) async fn reach(edge: &Edge, address: SocketAddr) -> Result<TcpStream, Problem> {
    let rest = edge.rest.borrow().as_ref().and_then(|rest| rest.link.clone());
    let device = rest.filter(|_| !is_near(address));
    let by = By { device, plain: true, ..By::default() };
    match timeout(CONNECT, connect(address, by)).await {
        Ok(Ok(socket)) => Ok(socket),
        Ok(Err(error)) => Err(Problem::new(Status::Unreachable, "destination_unavailable", error.to_string())),
        Err(_) => Err(Problem::new(Status::NoAnswer, "connection_timeout", "no answer")),
    }
}

/// A connection of this box to a private network by name; none: no name server gives private addresses that it has a route to.
pub(super) async fn reach_named(edge: &Edge, target: &Target, right: Right) -> Option<TcpStream> {
    let mut answers = JoinSet::new();
    let survey = spawn_blocking(survey).await.ok()?.ok();
    let names = edge.roads.starts.names();
    let links = survey.into_iter().flat_map(|survey| survey.interfaces).filter(|link| names.contains(&link.name));
    for link in links.map(Some).chain([None]) {
        let (starts, host) = (Arc::clone(&edge.roads.starts), target.host.clone());
        answers.spawn(async move {
            let found = starts.resolver.resolve_for(right.host(), &host, link.as_ref(), LOOK_UP).await;
            found.map(|answer| answer.addresses).unwrap_or_default()
        });
    }
    while let Some(addresses) = answers.join_next().await {
        let addresses: Vec<SocketAddr> = addresses
            .unwrap_or_default()
            .into_iter()
            .map(|address| SocketAddr::new(address, target.port))
            .collect();
        if !are_near(&addresses) {
            continue;
        }
        for address in addresses {
            if let Ok(socket) = reach(edge, address).await {
                return Some(socket);
            }
        }
        return None;
    }
    None
}

/// Whether there are addresses, all of private networks that this box has routes to.
fn are_near(addresses: &[SocketAddr]) -> bool {
    let is_near = |address: &SocketAddr| Zone::of(address.ip()) == Zone::Private && is_near(*address);
    !addresses.is_empty() && addresses.iter().all(is_near)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_a_relay_does_not_reach_may_be_those_of_a_private_network() {
        let (name, address) = (Target::parse("fritz.box:80").unwrap(), Target::parse("192.0.2.1:80").unwrap());
        let answer = |status| Problem::new(status, "x", String::new());
        for (status, may) in [
            (Status::Forbidden, true),
            (Status::Unreachable, true),
            (Status::NoRoom, false),
            (Status::NoAnswer, false),
            (Status::TooMany, false),
        ] {
            assert_eq!(may_be_named(&name, &answer(status)), may);
            assert!(!may_be_named(&address, &answer(status)));
        }
        let own = ["127.0.0.1:80", "192.0.2.1:80"].map(|address| address.parse().unwrap());
        assert!(!are_near(&[]) && !are_near(&own));
    }

    #[test]
    fn names_that_a_relay_has_reached_are_remembered_within_bounds() {
        let (names, target) = (CarriedNames::default(), Target::parse("a.example:443").unwrap());
        assert!(!names.has(&target));
        names.note(&target);
        names.note(&Target::parse("192.0.2.1:443").unwrap());
        assert!(names.has(&target) && names.lock().len() == 1);
        for n in 0..MOST {
            names.note_at(Instant::now(), &format!("{n}.example"));
        }
        assert!(!names.has(&target) && names.lock().len() == MOST, "the oldest one has made room");
    }
}
