//! Places behind the server's end: networks of their own, and what lies between any two of them.
//!
//! In: segments, each a link between two places. Out: the places' namespaces, and the ends of the segments for the emulator.
//!
//! | place | is | address |
//! |---|---|---|
//! | 0 | the server's end | `10.99.0.1` |
//! | n | a network of its own | `10.99.0.(n+1)` |
//!
//! 1. Two places that share a segment reach each other over it. Whatever else a place reaches, the client too, it reaches over its
//!    segment to place 0, which passes packets on.
//! 2. A segment is a link of sim like any other; `rate` is towards the place that is named first. Events may change it.
//! 3. IPv4 only: what is measured across places does not depend on the version.
//!
//! One more hop on each link was not enough: a relay and a server have a way of their own, which is not the client's.

use std::fs;
use std::io;
use std::net::Ipv4Addr;

use marline_core::wire::netlink::{Address, LinkChange, Route, family};
use marline_sim::spec::LinkSpec;
use marline_sys::namespace::Network;
use marline_sys::netlink::RouteSocket;

use crate::network::{SYSCTLS, TunPair, create_tun, set_link_up};
use crate::{Congestion, LabError};

/// A link between two places behind the server: 0 is its end, and each further number a network of its own.
#[derive(Clone, Debug)]
pub struct Segment {
    /// The first place.
    pub from: usize,
    /// The second one.
    pub to: usize,
    /// What lies between; its name is a device's at both ends.
    pub link: LinkSpec,
}

/// Where a place is reached.
pub(crate) fn site_address(site: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 99, 0, u8::try_from(site + 1).unwrap_or(u8::MAX))
}

/// The most places: one byte of their addresses.
pub(crate) const MAX_SITES: usize = 200;

/// Builds the places beside the server's end, and the segments between all.
pub(crate) fn build_sites(
    server: &Network,
    segments: &[Segment],
    congestion: Congestion,
) -> Result<(Vec<Network>, Vec<TunPair>), LabError> {
    let count = segments.iter().map(|segment| segment.from.max(segment.to)).max().unwrap_or(0);
    let places = (1..=count).map(|site| Network::new().map_err(LabError::at_step(format!("place {site}"))));
    let sites = places.collect::<Result<Vec<_>, _>>()?;
    for (at, site) in (1..).zip(&sites) {
        site.run(|| configure_site(at)).map_err(LabError::at_step(format!("place {at}")))?;
    }
    if !segments.is_empty() {
        server.run(|| fs::write(IP_FORWARD, "1")).map_err(LabError::at_step(IP_FORWARD))?;
    }
    let of = |site: usize| if site == 0 { Some(server) } else { sites.get(site - 1) };
    let end = |own: usize, other: usize, link: &LinkSpec| {
        let step = || LabError::at_step(format!("segment {}", link.name));
        let network = of(own).ok_or(io::ErrorKind::NotFound.into()).map_err(step())?;
        network
            .run(|| create_tun(link).and_then(|tun| add_segment_routes(own, other, link, congestion).map(|()| tun)))
            .map_err(step())
    };
    let pair = |segment: &Segment| {
        let client = end(segment.from, segment.to, &segment.link)?;
        Ok(TunPair { client, server: end(segment.to, segment.from, &segment.link)? })
    };
    let pairs = segments.iter().map(pair).collect::<Result<Vec<_>, LabError>>()?;
    Ok((sites, pairs))
}

/// A place before its first segment, on a thread inside.
fn configure_site(site: usize) -> io::Result<()> {
    for (name, value) in SYSCTLS {
        // What this kernel lacks (IPv6, mostly) need not be set.
        let _ = fs::write(format!("/proc/sys/net/{name}"), value);
    }
    let socket = RouteSocket::open()?;
    socket.request(&LinkChange { up: Some(true), ..LinkChange::default() }.request(1).finish(1))?;
    socket.request(&Address::assign(1, site_address(site).into(), 32).finish(1)).map(drop)
}

/// The routes of one end of a segment, on a thread inside.
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
