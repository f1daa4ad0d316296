//! A LAN behind the lab's client: a network of its own, whose way out is the client.
//!
//! In: a lab. Out: a place for programs that know nothing of it.
//!
//! | | address |
//! |---|---|
//! | the client's end, [`DEVICE`] | `192.168.77.1/24` |
//! | the LAN's end | `192.168.77.2/24`, its default route by way of the other one |
//!
//! The client has no address of the LAN unless there is one, and the links' other ends know none of it: what the client does
//! not carry itself comes back from nowhere.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, AsRawFd};

use marline_core::wire::netlink::{Address, Link, LinkChange, Request, Route, family, messages};
use marline_sys::namespace::Network;
use marline_sys::netlink::RouteSocket;

use crate::veth::veth;
use crate::{Lab, LabError};

/// The device of both ends.
pub(crate) const DEVICE: &str = "lan0";
const BOX: Ipv4Addr = Ipv4Addr::new(192, 168, 77, 1);
const CAMERA: Ipv4Addr = Ipv4Addr::new(192, 168, 77, 2);
const NETWORK: Ipv4Addr = Ipv4Addr::new(192, 168, 77, 0);
const BITS: u8 = 24;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Lan {
    pub(crate) network: Network,
}

impl Lan {
    /// Builds it.
    pub(crate) fn behind(lab: &Lab) -> Result<Self, LabError> {
        let step = || LabError::at("a LAN behind the client");
        let network = Network::new().map_err(step())?;
        let peer = network.as_fd().as_raw_fd();
        lab.inside(|| {
            RouteSocket::open()?.request(&veth(DEVICE, peer))?;
            configure(BOX, None)
        })
        .map_err(step())?;
        network.run(|| configure(CAMERA, Some(BOX))).map_err(step())?;
        Ok(Self { network })
    }
}

/// One end, on a thread in its namespace; `way`: its way out.
fn configure(own: Ipv4Addr, way: Option<Ipv4Addr>) -> io::Result<()> {
    let socket = RouteSocket::open()?;
    let ask = |request: Request| socket.request(&request.finish(1)).map(drop);
    let up = LinkChange { up: Some(true), ..LinkChange::default() };
    ask(up.request(1))?;
    let reply = socket.request(&Request::dump_links().finish(1))?;
    let found = messages(&reply).filter_map(|message| Link::parse(&message)).find(|link| link.name == DEVICE);
    let index = found.map(|link| link.index).ok_or(io::ErrorKind::NotFound)?;
    ask(up.request(index))?;
    ask(Address::assign(index, own.into(), BITS))?;
    let route = Route { source: Some(own.into()), ..Route::default_via_interface(family::V4, index) };
    ask(Route { destination: Some((IpAddr::V4(NETWORK), BITS)), ..route.clone() }.install())?;
    match way {
        Some(way) => ask(Route { gateway: Some(way.into()), ..route }.install()),
        None => Ok(()),
    }
}
