//! Parses default routes from a route dump, and the kernel's route to the Internet from a lookup.
//!
//! `marline_core::wire::netlink::Route` is not used for the dump: it has one link per route and no flags, while
//! routes over several links and routes without carrier matter here.
//!
//! 1. A default route has no destination, or `2000::/3`, which contains all public IPv6 addresses of today.
//! 2. Routes that drop packets, dead routes and entries of the route cache do not count.
//! 3. Routes that marline itself has set ([`RTPROT_MARLINE`]) do not count: they copy existing routes and may outlive
//!    them.
//! 4. A route over several links yields a default route for each of them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use marline_core::wire::netlink::{Attributes, Message, family, kind, messages};

use super::DefaultRoute;

/// Length of `struct rtmsg`, which precedes the attributes.
const RTMSG_LEN: usize = 12;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PRIORITY: u16 = 6;
const RTA_MULTIPATH: u16 = 9;
const RTA_TABLE: u16 = 15;
const RTA_VIA: u16 = 18;

/// The origin (`RTPROT_…`) that marks rules and routes as marline's own. Our choice: an `m`, which neither the kernel
/// nor `/etc/iproute2/rt_protos` uses.
pub const RTPROT_MARLINE: u8 = b'm';
/// RTNH_F_DEAD and RTNH_F_LINKDOWN.
const NEXTHOP_DEAD_FLAGS: u8 = 1 | 16;

/// The interfaces of a default route, each with the address family; empty if the message is not a working default
/// route.
pub(super) fn default_routes(message: &Message<'_>) -> Vec<(u32, u8, DefaultRoute)> {
    parse_default_routes(message).unwrap_or_default()
}

fn parse_default_routes(message: &Message<'_>) -> Option<Vec<(u32, u8, DefaultRoute)>> {
    const RTN_UNICAST: u8 = 1;
    /// The byte of the flags that contains RTM_F_CLONED (0x200).
    const CLONED: u8 = 2;
    let fixed: [u8; RTMSG_LEN] = message.body.get(..RTMSG_LEN)?.try_into().ok()?;
    let [family, prefix, _, _, table, protocol, _, route_type, ..] = fixed;
    let [low_flags, cloned, ..] = u32::from_ne_bytes([fixed[8], fixed[9], fixed[10], fixed[11]]).to_le_bytes();
    if message.kind != kind::NEW_ROUTE || protocol == RTPROT_MARLINE {
        return None;
    }
    if route_type != RTN_UNICAST || low_flags & NEXTHOP_DEAD_FLAGS != 0 || cloned & CLONED != 0 {
        return None;
    }
    let mut route = DefaultRoute { metric: 0, table: u32::from(table), gateway: None };
    let (mut destination, mut out_interface, mut parsed_hops) = (None, None, Vec::new());
    for attribute in Attributes::of(message.body.get(RTMSG_LEN..)?) {
        match attribute.kind {
            RTA_DST => destination = attribute.address(),
            RTA_OIF => out_interface = attribute.u32(),
            RTA_GATEWAY => route.gateway = attribute.address(),
            RTA_VIA => route.gateway = parse_via(attribute.value),
            RTA_PRIORITY => route.metric = attribute.u32()?,
            RTA_TABLE => route.table = attribute.u32()?,
            RTA_MULTIPATH => parsed_hops = parse_next_hops(attribute.value),
            _ => {}
        }
    }
    let all_public = IpAddr::V6(Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0));
    if prefix != 0 && !(prefix == 3 && destination == Some(all_public)) {
        return None;
    }
    parsed_hops.extend(out_interface.map(|index| (index, route.gateway)));
    Some(
        parsed_hops
            .into_iter()
            .map(|(index, gateway)| (index, family, DefaultRoute { gateway, ..route }))
            .collect(),
    )
}

/// Parses a list of `struct rtnexthop`: length, flags, weight, interface, attributes. Dead next hops are omitted.
fn parse_next_hops(mut bytes: &[u8]) -> Vec<(u32, Option<IpAddr>)> {
    const RTNEXTHOP_LEN: usize = 8;
    let mut parsed_hops = Vec::new();
    while let Some(&[l0, l1, flags, _, i0, i1, i2, i3]) = bytes.first_chunk::<RTNEXTHOP_LEN>() {
        let length = usize::from(u16::from_ne_bytes([l0, l1]));
        let Some(parts) = bytes.get(RTNEXTHOP_LEN..length) else { break };
        let gateway = Attributes::of(parts).find_map(|attribute| match attribute.kind {
            RTA_GATEWAY => attribute.address(),
            RTA_VIA => parse_via(attribute.value),
            _ => None,
        });
        if flags & NEXTHOP_DEAD_FLAGS == 0 {
            parsed_hops.push((u32::from_ne_bytes([i0, i1, i2, i3]), gateway));
        }
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    parsed_hops
}

/// Parses `struct rtvia`, a next hop of the other address family (RFC 5549).
fn parse_via(value: &[u8]) -> Option<IpAddr> {
    match value.get(2..)? {
        v4 if v4.len() == 4 => Some(IpAddr::from(<[u8; 4]>::try_from(v4).ok()?)),
        v6 => Some(IpAddr::from(<[u8; 16]>::try_from(v6).ok()?)),
    }
}

/// A public address without special routes (a root name server). Used for lookups only: no packet is sent to it.
pub const INTERNET_PROBE_V4: Ipv4Addr = Ipv4Addr::new(198, 41, 0, 4);
/// IPv6 counterpart of [`INTERNET_PROBE_V4`].
pub const INTERNET_PROBE_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0x503, 0xba3e, 0, 0, 0, 2, 0x30);

/// Builds a request for the route to a public address.
pub(super) fn internet_route_request(family: u8, sequence: u32) -> Vec<u8> {
    /// NLM_F_REQUEST and NLM_F_ACK.
    const FLAGS: u16 = 0x1 | 0x4;
    let address = if family == family::V4 {
        INTERNET_PROBE_V4.octets().to_vec()
    } else {
        INTERNET_PROBE_V6.octets().to_vec()
    };
    let attribute = (4 + address.len()) as u16;
    let mut bytes = Vec::with_capacity(64);
    bytes.extend((16 + RTMSG_LEN as u32 + u32::from(attribute)).to_ne_bytes());
    bytes.extend(kind::GET_ROUTE.to_ne_bytes());
    bytes.extend(FLAGS.to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    bytes.extend([0; 4]);
    bytes.extend([family, (address.len() * 8) as u8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    bytes.extend(attribute.to_ne_bytes());
    bytes.extend(RTA_DST.to_ne_bytes());
    bytes.extend(address);
    bytes
}

/// Parses the reply to an [`internet_route_request`]: the interface, and the route over it.
pub(super) fn parse_internet_route(response: &[u8]) -> Option<(u32, DefaultRoute)> {
    let message = messages(response).find(|message| message.kind == kind::NEW_ROUTE)?;
    let table = u32::from(*message.body.get(4)?);
    let (mut route, mut out_interface) = (DefaultRoute { metric: 0, table, gateway: None }, None);
    for attribute in Attributes::of(message.body.get(RTMSG_LEN..)?) {
        match attribute.kind {
            RTA_OIF => out_interface = attribute.u32(),
            RTA_GATEWAY => route.gateway = attribute.address(),
            RTA_VIA => route.gateway = parse_via(attribute.value),
            RTA_TABLE => route.table = attribute.u32()?,
            _ => {}
        }
    }
    out_interface.map(|index| (index, route))
}
