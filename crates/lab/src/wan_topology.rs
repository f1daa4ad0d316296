//! WAN topology behind the server: sites, which are network namespaces of their own, and segments, which are
//! emulated links between two sites.
//!
//! | site | is | address |
//! |---|---|---|
//! | 0 | the server namespace | `10.99.0.1` |
//! | n | a network namespace of its own | `10.99.0.(n+1)` |
//!
//! 1. Two sites that share a segment reach each other over it. A site reaches everything else, the client included,
//!    over its segment to site 0, which forwards packets.
//! 2. A segment uses the same link model as any other link; `rate` applies towards the site that is named first.
//!    Events may change it.
//! 3. Only IPv4: what is measured across sites does not depend on the IP version.
//!
//! One more hop on each client link would not be enough: a relay and a server have a path between them that the
//! client does not use.

use std::fs;
use std::io;
use std::net::Ipv4Addr;

use marline_core::wire::netlink::{Address, LinkChange, Route, family};
use marline_sim::spec::LinkSpec;
use marline_sys::namespace::NetNs;
use marline_sys::netlink::RouteSocket;

use crate::network::{SYSCTLS, TunPair, create_tun, set_link_up};
use crate::{Congestion, LabError, Segment};

/// IPv4 address of a site.
pub(crate) fn site_address(site: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 99, 0, u8::try_from(site + 1).unwrap_or(u8::MAX))
}

/// Builds the sites other than the server, and all segments.
pub(crate) fn build_sites(
    server: &NetNs,
    segments: &[Segment],
    congestion: Congestion,
) -> Result<(Vec<NetNs>, Vec<TunPair>), LabError> {
    let count = segments.iter().map(|segment| segment.from.max(segment.to)).max().unwrap_or(0);
    let namespaces = (1..=count).map(|site| NetNs::new().map_err(LabError::at_step(format!("site {site}"))));
    let sites = namespaces.collect::<Result<Vec<_>, _>>()?;
    for (at, site) in (1..).zip(&sites) {
        site.run(|| configure_site(at)).map_err(LabError::at_step(format!("site {at}")))?;
    }
    if !segments.is_empty() {
        server.run(|| fs::write(IP_FORWARD, "1")).map_err(LabError::at_step(IP_FORWARD))?;
    }
    let network_of = |site: usize| if site == 0 { Some(server) } else { sites.get(site - 1) };
    let end = |site: usize, other: usize, link: &LinkSpec| {
        let step = || LabError::at_step(format!("segment {}", link.name));
        let network = network_of(site).ok_or(io::ErrorKind::NotFound.into()).map_err(step())?;
        network
            .run(|| {
                create_tun(link).and_then(|tun| add_segment_routes(site, other, link, congestion).map(|()| tun))
            })
            .map_err(step())
    };
    let pair = |segment: &Segment| {
        let client = end(segment.from, segment.to, &segment.link)?;
        Ok(TunPair { client, server: end(segment.to, segment.from, &segment.link)? })
    };
    let pairs = segments.iter().map(pair).collect::<Result<Vec<_>, LabError>>()?;
    Ok((sites, pairs))
}

/// Configures a site before its first segment, on a thread in its namespace.
fn configure_site(site: usize) -> io::Result<()> {
    for (name, value) in SYSCTLS {
        // A kernel may lack a setting (usually of IPv6); then there is nothing to set.
        let _ = fs::write(format!("/proc/sys/net/{name}"), value);
    }
    let socket = RouteSocket::open()?;
    socket.request(&LinkChange { up: Some(true), ..LinkChange::default() }.request(1).finish(1))?;
    socket.request(&Address::assign(1, site_address(site).into(), 32).finish(1)).map(drop)
}

/// Brings up one end of a segment and installs its routes, on a thread in its namespace. A segment to site 0 is
/// also the default route.
fn add_segment_routes(
    own_site: usize,
    other_site: usize,
    link: &LinkSpec,
    congestion: Congestion,
) -> io::Result<()> {
    let socket = RouteSocket::open()?;
    let index = set_link_up(&socket, link)?;
    let over =
        Route { source: Some(site_address(own_site).into()), ..Route::default_via_interface(family::V4, index) };
    let towards = Route { destination: Some((site_address(other_site).into(), 32)), ..over.clone() };
    for route in [Some(towards), (other_site == 0).then_some(over)].into_iter().flatten() {
        let with = Route { congestion_control: congestion.name().into(), ..route.clone() };
        socket.request(&with.install().finish(1)).or_else(|_| socket.request(&route.install().finish(1)))?;
    }
    Ok(())
}

const IP_FORWARD: &str = "/proc/sys/net/ipv4/ip_forward";
