//! Private networks that this box reaches without a relay: modems' pages behind its links, offices behind its static routes.
//!
//! TCP of a LAN to a network for which the kernel has more than a default route does not come here: it is forwarded like UDP
//! (`marline_net::paths::gateway`). Two cases are left.
//!
//! 1. A program that uses the proxy names a private address. Where the kernel has more than a default route, this box connects at once.
//! 2. Only a default route leads to the address. A relay that is allowed to reach private networks goes first; when none carries the flow,
//!    this box connects over the link that UDP takes.
//!
//! A connection of a LAN that TPROXY has led here although there is such a route, because its packets bear a mark of another program, goes to
//! a relay alone ([`Passes::BesideRoutes`]): a connection of this box would bypass the host's rules for forwarded packets.
//!
//! Only for programs of this machine and for hosts of the LAN ([`may_pass`]): both reach these networks by routing anyway. That holds
//! with `--no-direct` as well, which is about the Internet.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use marline_net::links::{is_beside_links, is_routed};
use marline_net::reach::{Right, Zone};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::Edge;
use super::dial::{By, connect};
use crate::tunnel::{Problem, Status, Target};

/// chosen: as for a connection without a relay.
const CONNECT: Duration = Duration::from_secs(10);

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
