//! The interfaces of this machine, with a verdict each.
//!
//! In: three dumps (links, addresses, routes) and two questions (which way would a packet to the Internet take, by
//! IPv4 and by IPv6) on one route netlink socket; no packet is sent. Out: a [`Survey`].
//!
//! 1. The kernel itself names the machine's way to the Internet. Metrics cannot: they compare within one table only,
//!    and a VPN keeps its routes in a table of its own behind a rule (WireGuard), or as two halves of the address
//!    space that are no default route at all (OpenVPN).
//! 2. IPv4's way decides whether that is a VPN, IPv6's only where IPv4 has none: a 6in4 tunnel beside native IPv4
//!    hides nothing.
//! 3. `2000::/3`, all public addresses of today, counts as a default route of IPv6.
//!
//! Everything runs on recorded bytes too, which is how it is tested.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use marline_core::link::LinkKind;
use serde::Serialize;

use super::LinksError;
use super::interface::{DefaultRoute, Interface, Network, Reason, Verdict};
use super::kind::{Facts, Sysfs, kind};
use super::netlink::{
    Netlink, RTM_GETADDR, RTM_GETLINK, RTM_GETROUTE, RTM_NEWADDR, RTM_NEWLINK, RTM_NEWROUTE, aligned, attribute,
    attributes, messages, text, u16_at, u32_at,
};

/// What there is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Survey {
    /// All interfaces, by the kernel's number.
    pub interfaces: Vec<Interface>,
    /// The tunnel that is this machine's way to the Internet.
    pub vpn: Option<String>,
}

impl Survey {
    /// The interface of this name.
    pub fn named(&self, name: &str) -> Option<&Interface> {
        self.interfaces.iter().find(|interface| interface.name == name)
    }

    /// The loopback, for servers on this very machine.
    pub fn loopback(&self) -> Option<&Interface> {
        self.interfaces.iter().find(|interface| interface.verdict == Verdict::Unused(Reason::Loopback))
    }
}

/// Asks the kernel. Needs no privilege and starts no process.
///
/// # Errors
/// When the kernel does not answer: no netlink (a sandbox), or interfaces that change faster than they can be read.
pub fn survey() -> Result<Survey, LinksError> {
    Ok(read(&Recording::take()?, &Sysfs::system()))
}

/// The kernel's answers.
#[derive(Default)]
struct Recording {
    links: Vec<u8>,
    addresses: Vec<u8>,
    routes: Vec<u8>,
    /// The way to the Internet; empty when there is none.
    way_v4: Vec<u8>,
    way_v6: Vec<u8>,
}

/// Addresses that nobody routes specially (a root name server's). Only the route to them is asked for.
const FAR_V4: Ipv4Addr = Ipv4Addr::new(198, 41, 0, 4);
const FAR_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0x503, 0xba3e, 0, 0, 0, 2, 0x30);

const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

impl Recording {
    fn take() -> io::Result<Self> {
        /// IFLA_EXT_MASK with RTEXT_FILTER_SKIP_STATS: the counters would be most of the answer.
        const EXT_MASK: u16 = 29;
        const SKIP_STATS: u32 = 8;
        let mut netlink = Netlink::open()?;
        let mut all_links = vec![0; IFINFOMSG];
        all_links.extend(attribute(EXT_MASK, &SKIP_STATS.to_ne_bytes()));
        Ok(Self {
            links: netlink.dump(RTM_GETLINK, &all_links)?,
            addresses: netlink.dump(RTM_GETADDR, &[0; IFADDRMSG])?,
            routes: netlink.dump(RTM_GETROUTE, &[0; RTMSG])?,
            way_v4: netlink.question(RTM_GETROUTE, &way(AF_INET, &FAR_V4.octets())).unwrap_or_default(),
            way_v6: netlink.question(RTM_GETROUTE, &way(AF_INET6, &FAR_V6.octets())).unwrap_or_default(),
        })
    }
}

/// The question for the way to an address.
fn way(family: u8, address: &[u8]) -> Vec<u8> {
    let mut body = vec![0; RTMSG];
    body[0] = family;
    body[1] = (address.len() * 8) as u8;
    body.extend(attribute(RTA_DST, address));
    body
}

/// The survey that these answers give.
fn read(recording: &Recording, sysfs: &Sysfs) -> Survey {
    let facts: BTreeMap<u32, Facts> =
        bodies(&recording.links, RTM_NEWLINK).filter_map(link).map(|f| (f.index, f)).collect();
    let mut networks: BTreeMap<u32, Vec<Network>> = BTreeMap::new();
    for (index, network) in bodies(&recording.addresses, RTM_NEWADDR).filter_map(|body| address(body, &facts)) {
        networks.entry(index).or_default().push(network);
    }
    let mut routes: BTreeMap<(u32, u8), DefaultRoute> = BTreeMap::new();
    for (index, family, route) in bodies(&recording.routes, RTM_NEWROUTE).flat_map(default_routes) {
        routes.entry((index, family)).and_modify(|best| *best = route.min(*best)).or_insert(route);
    }
    let exit = exit(&recording.way_v4).or_else(|| exit(&recording.way_v6));
    let mut interfaces: Vec<Interface> = facts
        .values()
        .map(|link| {
            let mut networks = networks.remove(&link.index).unwrap_or_default();
            networks.sort();
            networks.dedup();
            let mut addresses: Vec<IpAddr> = networks.iter().map(|network| network.address).collect();
            addresses.dedup();
            let mut interface = Interface {
                name: link.name.clone(),
                index: link.index,
                kind: kind(link, &facts, sysfs),
                addresses,
                networks,
                v4: routes.get(&(link.index, AF_INET)).copied(),
                v6: routes.get(&(link.index, AF_INET6)).copied(),
                metered: None,
                verdict: Verdict::Usable,
            };
            interface.verdict = verdict(link, &facts, &interface, exit == Some(link.index));
            interface
        })
        .collect();
    let is_vpn = |i: &&Interface| exit == Some(i.index) && is_tunnel(&facts[&i.index], i.kind) && i.is_usable();
    let vpn = interfaces.iter().find(is_vpn).map(|interface| interface.name.clone());
    if let Some(vpn) = &vpn {
        for interface in interfaces.iter_mut().filter(|i| i.is_usable() && i.name != *vpn) {
            interface.verdict = Verdict::Unused(Reason::BelowVpn(vpn.clone()));
        }
    }
    Survey { interfaces, vpn }
}

/// Whether it is a tunnel in truth: the lab's stand for something else.
fn is_tunnel(link: &Facts, kind: LinkKind) -> bool {
    kind == LinkKind::Tunnel && link.emulated().is_none()
}

const IFF_UP: u32 = 0x1;
const IFF_LOOPBACK: u32 = 0x8;
/// Carrier and, on Wi-Fi, the key exchange are there (`operstate` up or unknown).
const IFF_RUNNING: u32 = 0x40;

/// `is_exit`: the kernel would send packets to the Internet over it.
fn verdict(link: &Facts, all: &BTreeMap<u32, Facts>, interface: &Interface, is_exit: bool) -> Verdict {
    let leads = is_exit
        || (interface.v4.is_some() && interface.addresses.iter().any(IpAddr::is_ipv4))
        || (interface.v6.is_some() && interface.addresses.iter().any(IpAddr::is_ipv6));
    let master =
        link.master.and_then(|master| all.get(&master)).filter(|m| m.is("bridge") || m.is("bond") || m.is("team"));
    Verdict::Unused(if link.flags & IFF_LOOPBACK != 0 {
        Reason::Loopback
    } else if link.flags & IFF_UP == 0 {
        Reason::Down
    } else if let Some(master) = master {
        Reason::PartOf(master.name.clone())
    } else if link.is("bridge") && !leads {
        Reason::Bridge
    } else if link.is("veth") && !leads {
        Reason::Container
    } else if link.flags & IFF_RUNNING == 0 {
        Reason::NoCarrier
    } else if interface.addresses.is_empty() {
        Reason::NoAddress
    } else if is_tunnel(link, interface.kind) && !is_exit {
        Reason::Tunnel
    } else if !leads {
        Reason::NoDefaultRoute
    } else {
        return Verdict::Usable;
    })
}

/// The bodies of the messages of this type.
fn bodies(bytes: &[u8], kind: u16) -> impl Iterator<Item = &[u8]> {
    messages(bytes).filter(move |message| message.kind == kind).map(|message| message.body)
}

/// `struct ifinfomsg`, then attributes.
const IFINFOMSG: usize = 16;

fn link(body: &[u8]) -> Option<Facts> {
    const IFLA_ADDRESS: u16 = 1;
    const IFLA_IFNAME: u16 = 3;
    const IFLA_LINK: u16 = 5;
    const IFLA_MASTER: u16 = 10;
    const IFLA_LINKINFO: u16 = 18;
    const IFLA_INFO_KIND: u16 = 1;
    const IFLA_IFALIAS: u16 = 20;
    let mut facts =
        Facts { hardware: u16_at(body, 2)?, index: u32_at(body, 4)?, flags: u32_at(body, 8)?, ..Facts::default() };
    for (kind, payload) in attributes(body.get(IFINFOMSG..)?) {
        match kind {
            IFLA_ADDRESS => facts.mac = payload.to_vec(),
            IFLA_IFNAME => facts.name = text(payload),
            IFLA_LINK => facts.lower = u32_at(payload, 0),
            IFLA_MASTER => facts.master = u32_at(payload, 0),
            IFLA_IFALIAS => facts.alias = Some(text(payload)),
            IFLA_LINKINFO => {
                facts.info = attributes(payload).find(|(k, _)| *k == IFLA_INFO_KIND).map(|(_, p)| text(p))
            }
            _ => {}
        }
    }
    (!facts.name.is_empty()).then_some(facts)
}

/// `struct ifaddrmsg`, then attributes.
const IFADDRMSG: usize = 8;

/// An address that can be a source for the world outside: of universe or site scope and in good standing. On the
/// loopback, its own.
fn address(body: &[u8], links: &BTreeMap<u32, Facts>) -> Option<(u32, Network)> {
    const IFA_ADDRESS: u16 = 1;
    const IFA_LOCAL: u16 = 2;
    const IFA_FLAGS: u16 = 8;
    /// IFA_F_TEMPORARY, DADFAILED, DEPRECATED, TENTATIVE.
    const NOT_STEADY: u32 = 0x01 | 0x08 | 0x20 | 0x40;
    const RT_SCOPE_LINK: u8 = 253;
    const RT_SCOPE_HOST: u8 = 254;
    let (family, prefix, scope) = (*body.first()?, *body.get(1)?, *body.get(3)?);
    let index = u32_at(body, 4)?;
    let mut flags = u32::from(*body.get(2)?);
    let (mut own, mut peer) = (None, None);
    for (kind, payload) in attributes(body.get(IFADDRMSG..)?) {
        match kind {
            // On a line with two ends IFA_ADDRESS is the other one.
            IFA_ADDRESS => peer = ip(family, payload),
            IFA_LOCAL => own = ip(family, payload),
            IFA_FLAGS => flags = u32_at(payload, 0)?,
            _ => {}
        }
    }
    let address = own.or(peer)?;
    let is_link_local = matches!(address, IpAddr::V4(a) if a.is_link_local());
    let is_loopback = links.get(&index)?.flags & IFF_LOOPBACK != 0;
    let reaches = scope < RT_SCOPE_LINK || (is_loopback && scope == RT_SCOPE_HOST);
    // IFA_F_TEMPORARY shares its bit with IPv4's IFA_F_SECONDARY, which is as good as any other.
    let standing = if family == AF_INET { flags & !0x01 } else { flags };
    (reaches && !is_link_local && standing & NOT_STEADY == 0).then_some((index, Network { address, prefix }))
}

/// `struct rtmsg`, then attributes.
const RTMSG: usize = 12;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PRIORITY: u16 = 6;
const RTA_MULTIPATH: u16 = 9;
const RTA_TABLE: u16 = 15;
const RTA_VIA: u16 = 18;

/// The interfaces that a route leads over, with the family, if it is a default route that works.
fn default_routes(body: &[u8]) -> Vec<(u32, u8, DefaultRoute)> {
    parse_default_routes(body).unwrap_or_default()
}

fn parse_default_routes(body: &[u8]) -> Option<Vec<(u32, u8, DefaultRoute)>> {
    const RTN_UNICAST: u8 = 1;
    /// RTNH_F_DEAD and RTNH_F_LINKDOWN.
    const DEAD: u32 = 1 | 16;
    /// RTM_F_CLONED: an entry of the route cache.
    const CLONED: u32 = 0x200;
    let (family, prefix, kind) = (*body.first()?, *body.get(1)?, *body.get(7)?);
    let flags = u32_at(body, 8)?;
    if kind != RTN_UNICAST || flags & (DEAD | CLONED) != 0 {
        return None;
    }
    let (mut route, mut hops) =
        (DefaultRoute { metric: 0, table: u32::from(*body.get(4)?), gateway: None }, Vec::new());
    let (mut to, mut over) = (None, None);
    for (kind, payload) in attributes(body.get(RTMSG..)?) {
        match kind {
            RTA_DST => to = ip(family, payload),
            RTA_OIF => over = u32_at(payload, 0),
            RTA_GATEWAY => route.gateway = ip(family, payload),
            RTA_VIA => route.gateway = via(payload),
            RTA_PRIORITY => route.metric = u32_at(payload, 0)?,
            RTA_TABLE => route.table = u32_at(payload, 0)?,
            RTA_MULTIPATH => hops = next_hops(family, payload),
            _ => {}
        }
    }
    let public_v6 = IpAddr::V6(Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0));
    if prefix != 0 && !(prefix == 3 && to == Some(public_v6)) {
        return None;
    }
    hops.extend(over.map(|index| (index, route.gateway)));
    Some(hops.into_iter().map(|(index, gateway)| (index, family, DefaultRoute { gateway, ..route })).collect())
}

/// `struct rtnexthop` after `struct rtnexthop`: length, flags, weight, interface, attributes.
fn next_hops(family: u8, mut bytes: &[u8]) -> Vec<(u32, Option<IpAddr>)> {
    const RTNEXTHOP: usize = 8;
    const DEAD: u8 = 1 | 16;
    let mut hops = Vec::new();
    while let (Some(length), Some(flags), Some(index)) = (u16_at(bytes, 0), bytes.get(2), u32_at(bytes, 4)) {
        let length = usize::from(length);
        let Some(parts) = bytes.get(RTNEXTHOP..length) else { break };
        let gateway = attributes(parts).find_map(|(kind, payload)| match kind {
            RTA_GATEWAY => ip(family, payload),
            RTA_VIA => via(payload),
            _ => None,
        });
        if flags & DEAD == 0 {
            hops.push((index, gateway));
        }
        bytes = bytes.get(aligned(length)..).unwrap_or_default();
    }
    hops
}

/// The interface that the answer to a [`way`] names.
fn exit(answer: &[u8]) -> Option<u32> {
    let body = bodies(answer, RTM_NEWROUTE).next()?;
    attributes(body.get(RTMSG..)?).find(|(kind, _)| *kind == RTA_OIF).and_then(|(_, payload)| u32_at(payload, 0))
}

/// `struct rtvia`: a router of the other family (RFC 5549).
fn via(payload: &[u8]) -> Option<IpAddr> {
    ip(u16_at(payload, 0)?.try_into().ok()?, payload.get(2..)?)
}

fn ip(family: u8, payload: &[u8]) -> Option<IpAddr> {
    match family {
        AF_INET => Some(IpAddr::from(<[u8; 4]>::try_from(payload).ok()?)),
        AF_INET6 => Some(IpAddr::from(<[u8; 16]>::try_from(payload).ok()?)),
        _ => None,
    }
}
