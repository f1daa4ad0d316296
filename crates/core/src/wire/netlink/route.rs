//! Routes: destination, gateway and interface, metric, MTU and congestion control.

use alloc::string::String;
use core::net::IpAddr;

use super::{Attributes, Message, Request, family, kind, u8_at};

/// Length of the fixed part: family, prefix lengths, TOS, table, protocol, scope, type, flags.
const FIXED_LEN: usize = 12;

/// A route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Address family: [`family::V4`] or [`family::V6`].
    pub family: u8,
    /// Destination prefix; `None` is the default route.
    pub destination: Option<(IpAddr, u8)>,
    /// Next hop; `None` for a directly connected destination.
    pub gateway: Option<IpAddr>,
    /// Index of the outgoing interface; `None` for a multipath route.
    pub interface: Option<u32>,
    /// Routing table: 254 main, 255 local.
    pub table: u32,
    /// Metric: of two matching routes with the same prefix, the smaller metric wins.
    pub metric: u32,
    /// Preferred source address.
    pub source: Option<IpAddr>,
    /// Congestion control of connections over it; empty for the system's default.
    pub congestion_control: String,
    /// MTU of packets over it in bytes, which also limits the MSS that TCP advertises; `None` for the interface's own.
    pub mtu: Option<u32>,
    /// Route type: 1 unicast; 6 to 9 discard packets.
    pub route_type: u8,
    /// Origin (`RTPROT_…`): 2 kernel, 3 boot, 9 router advertisement, 16 DHCP.
    pub protocol: u8,
}

impl Route {
    /// The main table.
    pub const MAIN: u32 = 254;

    /// A default route of `family` over the interface with index `link`, in the main table, with metric 0.
    pub const fn default_via_interface(family: u8, link: u32) -> Self {
        Self {
            family,
            destination: None,
            gateway: None,
            interface: Some(link),
            table: Self::MAIN,
            metric: 0,
            source: None,
            congestion_control: String::new(),
            mtu: None,
            route_type: UNICAST,
            protocol: BOOT,
        }
    }

    /// Request for the route that a packet from `source` to `destination` would take; no packet is sent. The reply is
    /// one message for [`Route::parse`], or the error that such a packet would meet.
    pub fn lookup(source: Option<IpAddr>, destination: IpAddr) -> Request {
        Self::lookup_via_interface(source, destination, None)
    }

    /// The same for a packet of a socket bound to the interface with this index.
    pub fn lookup_via_interface(source: Option<IpAddr>, destination: IpAddr, link: Option<u32>) -> Request {
        let bits = |address: IpAddr| if address.is_ipv4() { 32 } else { 128 };
        let mut body = [0; FIXED_LEN];
        body[0] = if destination.is_ipv4() { family::V4 } else { family::V6 };
        body[1] = bits(destination);
        body[2] = source.map_or(0, bits);
        let mut request = Request::new(kind::GET_ROUTE, Request::CHANGE, &body);
        request.address(DST, destination);
        if let Some(source) = source {
            request.address(SRC, source);
        }
        if let Some(link) = link {
            request.u32(OIF, link);
        }
        request
    }

    /// Request for the routing table entry that a packet to `destination` would match; the reply's destination is its
    /// prefix.
    pub fn lookup_fib_entry(destination: IpAddr) -> Request {
        let mut body = [0; FIXED_LEN];
        body[0] = if destination.is_ipv4() { family::V4 } else { family::V6 };
        body[1] = if destination.is_ipv4() { 32 } else { 128 };
        body[8..].copy_from_slice(&FIB_MATCH.to_ne_bytes());
        let mut request = Request::new(kind::GET_ROUTE, Request::CHANGE, &body);
        request.address(DST, destination);
        request
    }

    /// Parses a message of kind `NEW_ROUTE` or `DEL_ROUTE`; `None` for any other.
    pub fn parse(message: &Message<'_>) -> Option<Self> {
        if !matches!(message.kind, kind::NEW_ROUTE | kind::DEL_ROUTE) {
            return None;
        }
        let body = message.body;
        let mut route = Self::default_via_interface(u8_at(body, 0)?, 0);
        let prefix = u8_at(body, 1)?;
        route.interface = None;
        route.table = u32::from(u8_at(body, 4)?);
        route.protocol = u8_at(body, 5)?;
        route.route_type = u8_at(body, 7)?;
        let mut destination = None;
        for attribute in Attributes::after(body, FIXED_LEN) {
            match attribute.kind {
                DST => destination = attribute.address(),
                OIF => route.interface = attribute.u32(),
                GATEWAY => route.gateway = attribute.address(),
                PRIORITY => route.metric = attribute.u32().unwrap_or(0),
                PREFSRC => route.source = attribute.address(),
                METRICS => {
                    let metric = |kind| attribute.nested().find(|a| a.kind == kind);
                    route.congestion_control = metric(CC_ALGO).map(|a| a.text()).unwrap_or_default();
                    route.mtu = metric(MTU).and_then(|a| a.u32());
                }
                TABLE => route.table = attribute.u32().unwrap_or(route.table),
                // An IPv4 route with an IPv6 next hop (RFC 5549): family in two bytes, then the address.
                VIA => route.gateway = parse_via(attribute.value),
                _ => {}
            }
        }
        route.destination = destination.filter(|_| prefix > 0).map(|address| (address, prefix));
        Some(route)
    }

    /// Whether it is a default route that forwards packets.
    pub const fn is_default(&self) -> bool {
        self.destination.is_none() && self.route_type == UNICAST
    }

    /// The request that installs it, replacing one with the same destination, table and metric.
    pub fn install(&self) -> Request {
        self.request(kind::NEW_ROUTE, Request::CHANGE | Request::CREATE_OR_REPLACE)
    }

    /// The request that removes it; it fails if no such route exists.
    pub fn remove(&self) -> Request {
        self.request(kind::DEL_ROUTE, Request::CHANGE)
    }

    fn request(&self, kind: u16, flags: u16) -> Request {
        let mut body = [0; FIXED_LEN];
        body[0] = self.family;
        body[1] = self.destination.map_or(0, |(_, prefix)| prefix);
        // Tables above 255 do not fit the header's byte: 252 (`RT_TABLE_COMPAT`) refers to the attribute.
        body[4] = u8::try_from(self.table).unwrap_or(252);
        body[5] = self.protocol;
        body[6] = if self.gateway.is_none() && self.family == family::V4 { SCOPE_LINK } else { 0 };
        body[7] = self.route_type;
        let mut request = Request::new(kind, flags, &body);
        if let Some((address, _)) = self.destination {
            request.address(DST, address);
        }
        if let Some(gateway) = self.gateway {
            request.address(GATEWAY, gateway);
        }
        if let Some(link) = self.interface {
            request.u32(OIF, link);
        }
        if let Some(source) = self.source {
            request.address(PREFSRC, source);
        }
        request.u32(TABLE, self.table);
        if self.metric > 0 {
            request.u32(PRIORITY, self.metric);
        }
        if !self.congestion_control.is_empty() || self.mtu.is_some() {
            request.nest(METRICS, |r| {
                if let Some(mtu) = self.mtu {
                    r.u32(MTU, mtu);
                }
                if !self.congestion_control.is_empty() {
                    r.text(CC_ALGO, &self.congestion_control);
                }
            });
        }
        request
    }
}

fn parse_via(value: &[u8]) -> Option<IpAddr> {
    super::Attribute { kind: VIA, value: value.get(2..)? }.address()
}

/// `RTM_F_FIB_MATCH`.
const FIB_MATCH: u32 = 0x2000;
const DST: u16 = 1;
const SRC: u16 = 2;
const OIF: u16 = 4;
const GATEWAY: u16 = 5;
const PRIORITY: u16 = 6;
const PREFSRC: u16 = 7;
const METRICS: u16 = 8;
const TABLE: u16 = 15;
const VIA: u16 = 18;
/// Inside `METRICS` (`RTAX_MTU`, `RTAX_CC_ALGO`).
const MTU: u16 = 2;
const CC_ALGO: u16 = 16;

const UNICAST: u8 = 1;
/// Origin of manually added routes (`RTPROT_BOOT`), as `ip route` uses it.
const BOOT: u8 = 3;
const SCOPE_LINK: u8 = 253;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::netlink::messages;

    fn reparse(route: &Route) -> Route {
        let bytes = route.install().finish(1);
        Route::parse(&messages(&bytes).next().unwrap()).unwrap()
    }

    #[test]
    fn an_installed_route_reads_back_as_itself() {
        let plain = Route::default_via_interface(family::V4, 3);
        assert_eq!(reparse(&plain), plain);
        assert!(plain.is_default());
        let full = Route {
            destination: Some(("fd00:1::".parse().unwrap(), 64)),
            gateway: Some("fe80::1".parse().unwrap()),
            source: Some("fd00::2".parse().unwrap()),
            table: 1001,
            metric: 100,
            congestion_control: "cubic".into(),
            mtu: Some(1280),
            protocol: 109,
            ..Route::default_via_interface(family::V6, 7)
        };
        assert_eq!(reparse(&full), full);
        assert!(!full.is_default());
    }

    #[test]
    fn a_removal_equals_the_installed_route() {
        let route = Route {
            gateway: Some("10.0.0.1".parse().unwrap()),
            table: 70_001,
            ..Route::default_via_interface(family::V4, 3)
        };
        let (install, remove) = (route.install().finish(1), route.remove().finish(1));
        let (install, remove) = (messages(&install).next().unwrap(), messages(&remove).next().unwrap());
        assert_eq!((remove.kind, remove.body), (kind::DEL_ROUTE, install.body));
    }

    #[test]
    fn a_lookup_contains_source_and_destination() {
        let (from, to) = ("2001:db8::2".parse().unwrap(), "2001:db8:9::1".parse().unwrap());
        let bytes = Route::lookup(Some(from), to).finish(1);
        let message = messages(&bytes).next().unwrap();
        assert_eq!((message.kind, &message.body[..3]), (kind::GET_ROUTE, &[family::V6, 128, 128][..]));
        let attribute =
            |kind| Attributes::after(message.body, FIXED_LEN).find(|a| a.kind == kind).and_then(|a| a.address());
        assert_eq!((attribute(DST), attribute(SRC)), (Some(to), Some(from)));
        let bytes = Route::lookup(None, from).finish(1);
        assert_eq!(messages(&bytes).next().unwrap().body[2], 0);
    }

    #[test]
    fn an_unreachable_route_is_not_a_default_route() {
        let unreachable = Route { route_type: 7, interface: None, ..Route::default_via_interface(family::V6, 0) };
        assert!(!reparse(&unreachable).is_default());
    }
}
