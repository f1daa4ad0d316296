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

use crate::network::{SETTINGS, TunPair, connect, device};
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
pub(crate) fn address(place: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 99, 0, u8::try_from(place + 1).unwrap_or(u8::MAX))
}

/// The most places: one byte of their addresses.
pub(crate) const MOST_PLACES: usize = 200;

/// Builds the places beside the server's end, and the segments between all.
pub(crate) fn build(
    server: &Network,
    segments: &[Segment],
    wanted: Congestion,
) -> Result<(Vec<Network>, Vec<TunPair>), LabError> {
    let count = segments.iter().map(|segment| segment.from.max(segment.to)).max().unwrap_or(0);
    let places = (1..=count).map(|place| Network::new().map_err(LabError::at(format!("place {place}"))));
    let places = places.collect::<Result<Vec<_>, _>>()?;
    for (at, place) in (1..).zip(&places) {
        place.run(|| begin(at)).map_err(LabError::at(format!("place {at}")))?;
    }
    if !segments.is_empty() {
        server.run(|| fs::write(FORWARD, "1")).map_err(LabError::at(FORWARD))?;
    }
    let of = |place: usize| if place == 0 { Some(server) } else { places.get(place - 1) };
    let end = |own: usize, other: usize, link: &LinkSpec| {
        let step = || LabError::at(format!("segment {}", link.name));
        let network = of(own).ok_or(io::ErrorKind::NotFound.into()).map_err(step())?;
        network.run(|| device(link).and_then(|tun| route(own, other, link, wanted).map(|()| tun))).map_err(step())
    };
    let pair = |segment: &Segment| {
        let client = end(segment.from, segment.to, &segment.link)?;
        Ok(TunPair { client, server: end(segment.to, segment.from, &segment.link)? })
    };
    let pairs = segments.iter().map(pair).collect::<Result<Vec<_>, LabError>>()?;
    Ok((places, pairs))
}

/// A place before its first segment, on a thread inside.
fn begin(place: usize) -> io::Result<()> {
    for (name, value) in SETTINGS {
        // What this kernel lacks (IPv6, mostly) need not be set.
        let _ = fs::write(format!("/proc/sys/net/{name}"), value);
    }
    let socket = RouteSocket::open()?;
    socket.request(&LinkChange { up: Some(true), ..LinkChange::default() }.request(1).finish(1))?;
    socket.request(&Address::assign(1, address(place).into(), 32).finish(1)).map(drop)
}

/// The routes of one end of a segment, on a thread inside.
fn route(own: usize, other: usize, link: &LinkSpec, wanted: Congestion) -> io::Result<()> {
    let socket = RouteSocket::open()?;
    let index = connect(&socket, link)?;
    let over = Route { source: Some(address(own).into()), ..Route::default_via_interface(family::V4, index) };
    let towards = Route { destination: Some((address(other).into(), 32)), ..over.clone() };
    for route in [Some(towards), (other == 0).then_some(over)].into_iter().flatten() {
        let with = Route { congestion_control: wanted.name().into(), ..route.clone() };
        socket.request(&with.install().finish(1)).or_else(|_| socket.request(&route.install().finish(1)))?;
    }
    Ok(())
}

const FORWARD: &str = "/proc/sys/net/ipv4/ip_forward";
