//! A LAN behind the client of a [fleet lab](crate::fleet): a network namespace with one host, whose default gateway is
//! the client. It tests programs that do not know marline.
//!
//! The client is the lab's machine with several links; `marline edge` runs on it and serves this LAN.
//!
//! | interface | address |
//! |---|---|
//! | [`LAN_DEVICE`] of the client | `192.168.77.1/24` |
//! | [`LAN_DEVICE`] of the LAN host | `192.168.77.2/24`, default route through the client |
//!
//! The servers behind the links have no route to the LAN's subnet. A packet that the client merely forwards gets no
//! reply, so a reply shows that marline carried the traffic by its proxy, by a tunnel or with address translation.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, AsRawFd};

use marline_core::wire::netlink::{Address, Link, LinkChange, Request, Route, family, messages};
use marline_sys::namespace::NetNs;
use marline_sys::netlink::RouteSocket;

use crate::veth::veth_request;
use crate::{Lab, LabError};

/// Name of the veth interface at both ends, in the client's namespace and in the LAN host's.
pub(crate) const LAN_DEVICE: &str = "lan0";
const GATEWAY: Ipv4Addr = Ipv4Addr::new(192, 168, 77, 1);
const HOST: Ipv4Addr = Ipv4Addr::new(192, 168, 77, 2);
const SUBNET: Ipv4Addr = Ipv4Addr::new(192, 168, 77, 0);
const PREFIX_LEN: u8 = 24;
/// Index of the loopback interface in every network namespace.
const LOOPBACK_INDEX: u32 = 1;
/// Sequence number of netlink requests.
const SEQUENCE: u32 = 1;

/// The LAN; see the [module documentation](self).
#[derive(Debug)]
pub(crate) struct LabLan {
    pub(crate) namespace: NetNs,
}

impl LabLan {
    /// Creates the namespace and the veth pair, and configures both ends.
    pub(crate) fn build(lab: &Lab) -> Result<Self, LabError> {
        let to_lab_error = || LabError::at_step("a LAN behind the client");
        let namespace = NetNs::new().map_err(to_lab_error())?;
        let namespace_fd = namespace.as_fd().as_raw_fd();
        lab.run_at_client(|| {
            RouteSocket::open()?.request(&veth_request(LAN_DEVICE, namespace_fd))?;
            configure_end(GATEWAY, None)
        })
        .map_err(to_lab_error())?;
        namespace.run(|| configure_end(HOST, Some(GATEWAY))).map_err(to_lab_error())?;
        Ok(Self { namespace })
    }
}

/// Configures one end of the veth pair: sets it up, and adds address and routes. The calling thread must be in the
/// namespace of that end. `gateway`: the default gateway; `None`: no default route.
fn configure_end(address: Ipv4Addr, gateway: Option<Ipv4Addr>) -> io::Result<()> {
    let socket = RouteSocket::open()?;
    // Each request is sent alone, so all have the same sequence number.
    let send = |request: Request| socket.request(&request.finish(SEQUENCE)).map(drop);
    let up = LinkChange { up: Some(true), ..LinkChange::default() };
    send(up.request(LOOPBACK_INDEX))?;
    let reply = socket.request(&Request::dump_links().finish(SEQUENCE))?;
    let device = messages(&reply).filter_map(|message| Link::parse(&message)).find(|link| link.name == LAN_DEVICE);
    let index = device.map(|link| link.index).ok_or(io::ErrorKind::NotFound)?;
    send(up.request(index))?;
    send(Address::assign(index, address.into(), PREFIX_LEN))?;
    let default_route = Route { source: Some(address.into()), ..Route::default_via_interface(family::V4, index) };
    // `Address::assign` suppresses the subnet route, so it is added here.
    let subnet = Some((IpAddr::V4(SUBNET), PREFIX_LEN));
    send(Route { destination: subnet, ..default_route.clone() }.install())?;
    match gateway {
        Some(gateway) => send(Route { gateway: Some(gateway.into()), ..default_route }.install()),
        None => Ok(()),
    }
}
