//! A LAN behind the lab's client: a network namespace of its own whose default gateway is the client. It is for
//! programs that do not know marline.
//!
//! | | address |
//! |---|---|
//! | the client's end of the device [`LAN_DEVICE`] | `192.168.77.1/24` |
//! | the LAN host | `192.168.77.2/24`, default route through the client |
//!
//! The other ends of the links have no route to the LAN's subnet. So replies reach the LAN only for traffic that
//! the client itself carries (proxies, tunnels or translates).

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, AsRawFd};

use marline_core::wire::netlink::{Address, Link, LinkChange, Request, Route, family, messages};
use marline_sys::namespace::NetNs;
use marline_sys::netlink::RouteSocket;

use crate::veth::veth_request;
use crate::{Lab, LabError};

/// Name of the veth device, in the client namespace and in the LAN's.
pub(crate) const LAN_DEVICE: &str = "lan0";
const GATEWAY: Ipv4Addr = Ipv4Addr::new(192, 168, 77, 1);
const HOST: Ipv4Addr = Ipv4Addr::new(192, 168, 77, 2);
const SUBNET: Ipv4Addr = Ipv4Addr::new(192, 168, 77, 0);
const PREFIX_LEN: u8 = 24;

/// The LAN; see the [module documentation](self).
#[derive(Debug)]
pub(crate) struct LabLan {
    pub(crate) namespace: NetNs,
}

impl LabLan {
    /// Creates the namespace and the veth pair, and configures both ends.
    pub(crate) fn build(lab: &Lab) -> Result<Self, LabError> {
        let step = || LabError::at_step("a LAN behind the client");
        let network = NetNs::new().map_err(step())?;
        let peer_fd = network.as_fd().as_raw_fd();
        lab.run_at_client(|| {
            RouteSocket::open()?.request(&veth_request(LAN_DEVICE, peer_fd))?;
            configure_end(GATEWAY, None)
        })
        .map_err(step())?;
        network.run(|| configure_end(HOST, Some(GATEWAY))).map_err(step())?;
        Ok(Self { namespace: network })
    }
}

/// Configures one end, on a thread in its namespace; `gateway` is its default gateway.
fn configure_end(address: Ipv4Addr, gateway: Option<Ipv4Addr>) -> io::Result<()> {
    let socket = RouteSocket::open()?;
    let send = |request: Request| socket.request(&request.finish(1)).map(drop);
    let up = LinkChange { up: Some(true), ..LinkChange::default() };
    send(up.request(1))?;
    let reply = socket.request(&Request::dump_links().finish(1))?;
    let device = messages(&reply).filter_map(|message| Link::parse(&message)).find(|link| link.name == LAN_DEVICE);
    let index = device.map(|link| link.index).ok_or(io::ErrorKind::NotFound)?;
    send(up.request(index))?;
    send(Address::assign(index, address.into(), PREFIX_LEN))?;
    let route = Route { source: Some(address.into()), ..Route::default_via_interface(family::V4, index) };
    send(Route { destination: Some((IpAddr::V4(SUBNET), PREFIX_LEN)), ..route.clone() }.install())?;
    match gateway {
        Some(gateway) => send(Route { gateway: Some(gateway.into()), ..route }.install()),
        None => Ok(()),
    }
}
