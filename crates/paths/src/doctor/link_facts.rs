//! Gathers facts about each interface that may be a link: routing, addresses, reverse path filter and cost.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use marline_core::link::LinkKind;
use marline_net::links::{Interface, InterfaceList, LinkArg, MeteredHints, UnusedReason, Usability};
use marline_sys::netlink::RouteSocket;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::host_config::{Sysctls, exit_interface};

/// Facts about one interface other than the loopback.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LinkFacts {
    /// Name of the interface.
    pub name: String,
    /// Assumed access technology.
    pub kind: LinkKind,
    /// Whether its traffic costs money, if known.
    pub is_metered: bool,
    /// Metric of its default route of IPv4, or else of IPv6; none: it has neither.
    pub metric: Option<u32>,
    /// The effective `rp_filter`, the maximum of its own setting and that for `all`: 1 strict, 2 loose, 0 off.
    pub rp_filter: u8,
    /// Addresses whose packets to the Internet would leave by another interface, or not at all.
    pub misrouted_addresses: Vec<IpAddr>,
    /// Its addresses that another interface also has.
    pub shared_addresses: Vec<IpAddr>,
    /// For a link with shared addresses: whether its router replies to a socket that is bound to the link; none: not
    /// tested.
    pub router_answers: Option<bool>,
}

/// Gathers facts about each interface that is usable, or is unusable only for lack of a default route or because a VPN
/// has it; `link_args` is what the configuration states about links.
pub(super) fn gather_links(
    survey: &InterfaceList,
    metered: &MeteredHints,
    settings: &Sysctls,
    link_args: &[LinkArg],
) -> Vec<LinkFacts> {
    let socket = RouteSocket::open();
    let is_shared = |address: &IpAddr| {
        survey.interfaces.iter().filter(|interface| interface.addresses.contains(address)).count() > 1
    };
    // With a shared address, only bound sockets have a defined link.
    let exit_of_address = |address: IpAddr, link: u32| {
        let bound = is_shared(&address).then_some(link);
        socket.as_ref().ok().and_then(|socket| exit_interface(socket, address, bound))
    };
    let interfaces = survey.interfaces.iter().filter(|interface| may_be_link(interface));
    let facts_of = |interface: &Interface| {
        let has_route = |address: &&IpAddr| {
            if address.is_ipv4() { interface.route_v4.is_some() } else { interface.route_v6.is_some() }
        };
        let misrouted = interface
            .addresses
            .iter()
            .filter(has_route)
            .filter(|a| exit_of_address(**a, interface.index) != Some(interface.index));
        let shared_addresses: Vec<IpAddr> = interface.addresses.iter().copied().filter(is_shared).collect();
        let rp_filter = |name: &str| {
            settings.read_of_interface("net/ipv4/conf", name, "rp_filter").and_then(|text| text.parse().ok())
        };
        let link_arg = link_args.iter().find(|arg| arg.name == interface.name);
        let metered_hint = || metered.get(&interface.name).is_some_and(|metered| metered.metered);
        LinkFacts {
            name: interface.name.clone(),
            kind: link_arg.and_then(|link_arg| link_arg.kind).unwrap_or(interface.kind),
            is_metered: link_arg.and_then(|link_arg| link_arg.metered).unwrap_or_else(metered_hint),
            metric: interface.route_v4.or(interface.route_v6).map(|route| route.metric),
            rp_filter: rp_filter("all").unwrap_or(0).max(rp_filter(&interface.name).unwrap_or(0)),
            misrouted_addresses: misrouted.copied().collect(),
            router_answers: None,
            shared_addresses,
        }
    };
    let interfaces: Vec<&Interface> = interfaces.collect();
    let mut links: Vec<LinkFacts> = interfaces.iter().map(|interface| facts_of(interface)).collect();
    std::thread::scope(|scope| {
        let attempts: Vec<_> = links
            .iter_mut()
            .zip(&interfaces)
            .filter(|(link, _)| !link.shared_addresses.is_empty())
            .filter_map(|(link, interface)| Some((link, interface.route_v4.or(interface.route_v6)?.gateway?)))
            .map(|(link, gateway)| {
                let name = link.name.clone();
                (link, scope.spawn(move || does_router_answer(&name, gateway)))
            })
            .collect();
        for (link, attempts) in attempts {
            link.router_answers = attempts.join().ok();
        }
    });
    links
}

/// Whether a router replies to a socket that is bound to this link, by accepting or refusing a connection.
fn does_router_answer(link: &str, router: IpAddr) -> bool {
    let domain = if router.is_ipv4() { Domain::IPV4 } else { Domain::IPV6 };
    let connect = || {
        let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
        socket.bind_device(Some(link.as_bytes()))?;
        socket.connect_timeout(&SockAddr::from(SocketAddr::new(router, HTTP_PORT)), ROUTER_TIMEOUT)
    };
    match connect() {
        Ok(()) => true,
        Err(error) => error.kind() == io::ErrorKind::ConnectionRefused,
    }
}

/// Port of a modem's web page. A modem without one refuses the connection.
const HTTP_PORT: u16 = 80;
/// Our choice: two SYNs, at 0 and 1 s.
const ROUTER_TIMEOUT: Duration = Duration::from_secs(2);

/// Whether it is a link or could become one.
pub(super) fn may_be_link(interface: &Interface) -> bool {
    match &interface.usability {
        Usability::Usable => true,
        Usability::Unused(reason) => matches!(reason, UnusedReason::NoDefaultRoute | UnusedReason::BelowVpn(_)),
    }
}
