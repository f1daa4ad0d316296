//! Lists the interfaces of this machine, and decides for each one whether it is usable.
//!
//! One route netlink socket provides three dumps (links, addresses, routes) and two route lookups (the route to a
//! public IPv4 and to a public IPv6 address). No packet is sent. The replies are parsed separately from the socket,
//! so tests use recorded replies.
//!
//! 1. The kernel itself reports the machine's route to the Internet. Comparing metrics would not find it: metrics
//!    compare only within one table. A VPN has its routes in a separate table selected by a rule (WireGuard), or as
//!    two halves of the address space that are not default routes (OpenVPN).
//! 2. The IPv4 route decides whether there is a VPN, and the IPv6 route only if there is no IPv4 route: a 6in4 tunnel
//!    on a host with native IPv4 is not a VPN. A route through a CLAT does not count, because its packets leave over
//!    an IPv6 link.
//! 3. `2000::/3`, which contains all public IPv6 addresses of today, counts as an IPv6 default route.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;

use marline_core::link::LinkKind;
use marline_core::wire::netlink::{Address, Request, family, messages};
use marline_sys::netlink::RouteSocket;
use serde::Serialize;

use super::LinksError;
use super::clat::is_clat;
use super::device_info::DeviceInfo;
use super::interface::{DefaultRoute, Interface, Subnet, UnusedReason, Usability};
use super::link_kind::{Sysfs, link_kind};
use super::routes::{default_routes, internet_route_request, parse_internet_route};

/// The interfaces of this machine at one moment.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct InterfaceList {
    /// All interfaces, ordered by kernel index.
    pub interfaces: Vec<Interface>,
    /// Name of the tunnel through which this machine's Internet traffic goes, if there is one.
    pub vpn: Option<String>,
}

impl InterfaceList {
    /// Finds the interface with this name.
    pub fn by_name(&self, name: &str) -> Option<&Interface> {
        self.interfaces.iter().find(|interface| interface.name == name)
    }

    /// The loopback interface, for servers on this machine.
    pub fn loopback(&self) -> Option<&Interface> {
        self.interfaces.iter().find(|interface| interface.usability == Usability::Unused(UnusedReason::Loopback))
    }
}

/// Reads the interfaces from the kernel. Needs no privilege and starts no process.
///
/// # Errors
/// Netlink is not available (in a sandbox), or the interfaces change faster than they can be read.
pub fn list_interfaces() -> Result<InterfaceList, LinksError> {
    Ok(interfaces_from(&NetlinkDumps::capture()?, &Sysfs::of_system()))
}

/// The kernel's replies, unparsed.
#[derive(Default)]
struct NetlinkDumps {
    links: Vec<u8>,
    addresses: Vec<u8>,
    routes: Vec<u8>,
    /// Reply to the route lookup for a public address; empty if there is no route.
    internet_route_v4: Vec<u8>,
    internet_route_v6: Vec<u8>,
}

impl NetlinkDumps {
    fn capture() -> io::Result<Self> {
        let socket = RouteSocket::open()?;
        Ok(Self {
            links: socket.request(&Request::dump_links().finish(1))?,
            addresses: socket.request(&Request::dump_addresses().finish(2))?,
            routes: socket.request(&Request::dump_routes(family::UNSPECIFIED).finish(3))?,
            internet_route_v4: internet_route(&socket, family::V4)?,
            internet_route_v6: internet_route(&socket, family::V6)?,
        })
    }
}

/// Looks up the route to the Internet. The result is empty if the kernel reports that there is none. A timeout or a
/// lack of memory is an error instead: otherwise a VPN would be overlooked.
fn internet_route(socket: &RouteSocket, family: u8) -> io::Result<Vec<u8>> {
    const NOBUFS: i32 = rustix::io::Errno::NOBUFS.raw_os_error();
    const NOMEM: i32 = rustix::io::Errno::NOMEM.raw_os_error();
    match socket.request(&internet_route_request(family, 4)) {
        Err(error) if error.kind() == io::ErrorKind::TimedOut => Err(error),
        Err(error) if matches!(error.raw_os_error(), Some(NOBUFS | NOMEM)) => Err(error),
        answer => Ok(answer.unwrap_or_default()),
    }
}

/// Builds the list from the kernel's replies.
fn interfaces_from(dumps: &NetlinkDumps, sysfs: &Sysfs) -> InterfaceList {
    let devices: BTreeMap<u32, DeviceInfo> =
        messages(&dumps.links).filter_map(|m| DeviceInfo::parse(&m)).map(|link| (link.index, link)).collect();
    let mut networks: BTreeMap<u32, Vec<Subnet>> = BTreeMap::new();
    let mut transient: BTreeMap<u32, Vec<IpAddr>> = BTreeMap::new();
    // Addresses that can be used as a source, permanent and transient ones apart.
    for address in messages(&dumps.addresses).filter_map(|m| Address::parse(&m)) {
        if !devices.get(&address.interface).is_some_and(|link| is_usable_source(&address, link)) {
            continue;
        }
        if is_transient(&address) {
            transient.entry(address.interface).or_default().push(address.address);
        } else {
            let subnet = Subnet { address: address.address, prefix_len: address.prefix };
            networks.entry(address.interface).or_default().push(subnet);
        }
    }
    // The default route with the lowest metric for each interface and address family.
    let mut routes: BTreeMap<(u32, u8), DefaultRoute> = BTreeMap::new();
    for (index, family, route) in messages(&dumps.routes).flat_map(|m| default_routes(&m)) {
        routes.entry((index, family)).and_modify(|best| *best = route.min(*best)).or_insert(route);
    }
    let no_subnets = Vec::new();
    let clats: BTreeSet<u32> = devices
        .values()
        .filter(|link| is_tunnel(link, link_kind(link, &devices, sysfs)))
        .filter(|link| is_clat(link, networks.get(&link.index).unwrap_or(&no_subnets), &devices))
        .map(|link| link.index)
        .collect();
    let internet_routes = [
        (family::V4, parse_internet_route(&dumps.internet_route_v4)),
        (family::V6, parse_internet_route(&dumps.internet_route_v6)),
    ];
    for (family, internet_route) in internet_routes {
        if let Some((index, route)) = internet_route {
            // The VPN's two halves of the address space are not default routes, and act as one.
            routes.entry((index, family)).or_insert(route);
        }
    }
    // The interface that carries the Internet traffic, by IPv4 or else by IPv6. A CLAT is skipped, because its
    // packets leave over an IPv6 link.
    let internet_index = internet_routes.iter().find_map(|(_, internet_route)| {
        internet_route.map(|(index, _)| index).filter(|index| !clats.contains(index))
    });
    let mut interfaces: Vec<Interface> = devices
        .values()
        .map(|link| {
            let mut networks = networks.remove(&link.index).unwrap_or_default();
            networks.sort();
            networks.dedup();
            let mut addresses: Vec<IpAddr> = networks.iter().map(|subnet| subnet.address).collect();
            addresses.dedup();
            let mut transient = transient.remove(&link.index).unwrap_or_default();
            transient.sort();
            let mut interface = Interface {
                name: link.name.clone(),
                index: link.index,
                kind: link_kind(link, &devices, sysfs),
                addresses,
                transient_addresses: transient,
                subnets: networks,
                route_v4: routes.get(&(link.index, family::V4)).copied(),
                route_v6: routes.get(&(link.index, family::V6)).copied(),
                metered: None,
                mtu: link.mtu,
                emulated: link.emulated_kind().is_some(),
                usability: Usability::Usable,
            };
            // `usability_of` does not know CLATs and reports them as tunnels.
            interface.usability = match usability_of(link, &devices, &interface, internet_index == Some(link.index))
            {
                Usability::Unused(UnusedReason::Tunnel) if clats.contains(&link.index) => {
                    Usability::Unused(UnusedReason::Clat)
                }
                usability => usability,
            };
            interface
        })
        .collect();
    // If the interface that carries the Internet traffic is a usable tunnel, it is a VPN, and no link below it is
    // used by default.
    let is_vpn =
        |i: &&Interface| internet_index == Some(i.index) && is_tunnel(&devices[&i.index], i.kind) && i.is_usable();
    let vpn = interfaces.iter().find(is_vpn).map(|interface| interface.name.clone());
    if let Some(vpn) = &vpn {
        for interface in interfaces.iter_mut().filter(|i| i.is_usable() && i.name != *vpn) {
            interface.usability = Usability::Unused(UnusedReason::BelowVpn(vpn.clone()));
        }
    }
    InterfaceList { interfaces, vpn }
}

/// Whether the device really is a tunnel; emulated links of the laboratory are TUN devices as well.
fn is_tunnel(link: &DeviceInfo, kind: LinkKind) -> bool {
    kind == LinkKind::Tunnel && link.emulated_kind().is_none()
}

const IFF_UP: u32 = 0x1;
const IFF_LOOPBACK: u32 = 0x8;
/// The link has carrier and, on Wi-Fi, completed the key exchange (`operstate` is up or unknown).
const IFF_RUNNING: u32 = 0x40;

/// Whether the interface is usable, or the first reason why not. `is_exit`: the kernel routes Internet traffic over
/// it.
fn usability_of(
    link: &DeviceInfo,
    devices: &BTreeMap<u32, DeviceInfo>,
    interface: &Interface,
    is_exit: bool,
) -> Usability {
    let has_route_and_address = (interface.route_v4.is_some() && interface.addresses.iter().any(IpAddr::is_ipv4))
        || (interface.route_v6.is_some() && interface.addresses.iter().any(IpAddr::is_ipv6));
    let has_route = interface.route_v4.is_some() || interface.route_v6.is_some();
    let controller = link
        .controller
        .and_then(|controller| devices.get(&controller))
        .filter(|m| m.has_info_kind("bridge") || m.has_info_kind("bond") || m.has_info_kind("team"));
    Usability::Unused(if link.flags & IFF_LOOPBACK != 0 {
        UnusedReason::Loopback
    } else if link.flags & IFF_UP == 0 {
        UnusedReason::Down
    } else if let Some(controller) = controller {
        UnusedReason::PortOf(controller.name.clone())
    } else if link.has_info_kind("bridge") && !has_route {
        UnusedReason::Bridge
    } else if link.has_info_kind("veth") && !has_route {
        UnusedReason::Container
    } else if link.flags & IFF_RUNNING == 0 {
        UnusedReason::NoCarrier
    } else if interface.addresses.is_empty() {
        UnusedReason::NoAddress
    } else if is_tunnel(link, interface.kind) && !is_exit {
        UnusedReason::Tunnel
    } else if !has_route_and_address {
        UnusedReason::NoDefaultRoute
    } else {
        return Usability::Usable;
    })
}

/// Whether an address can be the source of connections to other hosts: of universe or site scope, and valid. On the
/// loopback its own addresses count.
fn is_usable_source(address: &Address, link: &DeviceInfo) -> bool {
    const RT_SCOPE_LINK: u8 = 253;
    const RT_SCOPE_HOST: u8 = 254;
    let is_link_local = matches!(address.address, IpAddr::V4(a) if a.is_link_local());
    let is_loopback = link.flags & IFF_LOOPBACK != 0;
    let scope = address.scope < RT_SCOPE_LINK || (is_loopback && address.scope == RT_SCOPE_HOST);
    scope && !is_link_local && address.is_valid()
}

/// Whether an address will be removed while the interface stays up: a temporary (RFC 8981) or deprecated one.
fn is_transient(address: &Address) -> bool {
    // IFA_F_TEMPORARY has the same bit as IPv4's IFA_F_SECONDARY, and secondary addresses are as good as others.
    !address.is_usable() || (address.address.is_ipv6() && address.is_temporary())
}

/// Writes the kernel's present replies to a file: five parts, each preceded by its length.
#[cfg(test)]
pub(super) fn save_dumps(path: &std::path::Path) -> io::Result<()> {
    let dumps = NetlinkDumps::capture()?;
    let parts = [dumps.links, dumps.addresses, dumps.routes, dumps.internet_route_v4, dumps.internet_route_v6];
    let bytes: Vec<u8> =
        parts.iter().flat_map(|part| [&(part.len() as u32).to_le_bytes()[..], part].concat()).collect();
    std::fs::write(path, bytes)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;

    /// Replies for the interfaces of `netns_tests::each_sort_of_interface_is_classified`, from a little-endian
    /// machine. To record them again, run that test with MARLINE_RECORD_SURVEY set to the path of the file.
    const RECORDED_DUMPS: &[u8] = include_bytes!("survey.recording");

    fn recorded_dumps() -> NetlinkDumps {
        let mut remaining = RECORDED_DUMPS;
        let mut part = || {
            let (length, tail) = remaining.split_first_chunk().unwrap();
            let (part, tail) = tail.split_at(u32::from_le_bytes(*length) as usize);
            remaining = tail;
            part.to_vec()
        };
        NetlinkDumps {
            links: part(),
            addresses: part(),
            routes: part(),
            internet_route_v4: part(),
            internet_route_v6: part(),
        }
    }

    fn interfaces_without_sysfs(recording: &NetlinkDumps) -> InterfaceList {
        interfaces_from(recording, &Sysfs::at(Path::new("/nonexistent")))
    }

    #[cfg(target_endian = "little")]
    #[test]
    fn recorded_replies_give_the_expected_list() {
        let list = interfaces_without_sysfs(&recorded_dumps());
        assert_eq!(list.vpn, None);
        let text: String = list.interfaces.iter().map(|i| serde_json::to_string(i).unwrap() + "\n").collect();
        assert_eq!(text, include_str!("survey.golden"));
    }

    #[cfg(target_endian = "little")]
    #[test]
    fn a_tunnel_that_carries_the_internet_route_is_a_vpn() {
        let mut recording = recorded_dumps();
        let tunnel = interfaces_without_sysfs(&recording).by_name("tun0").unwrap().index;
        // The reply that the kernel would send with a route over tun0.
        let at = recording.internet_route_v4.windows(4).position(|w| w == [8, 0, 4, 0]).unwrap() + 4;
        recording.internet_route_v4[at..at + 4].copy_from_slice(&tunnel.to_ne_bytes());
        let survey = interfaces_without_sysfs(&recording);
        assert_eq!(survey.vpn.as_deref(), Some("tun0"));
        let usable: Vec<_> = survey.interfaces.iter().filter(|i| i.is_usable()).map(|i| i.name.as_str()).collect();
        assert_eq!(usable, ["tun0"]);
        assert_eq!(
            survey.by_name("eth0").unwrap().usability,
            Usability::Unused(UnusedReason::BelowVpn("tun0".into()))
        );
    }

    #[test]
    fn empty_replies_give_an_empty_list() {
        assert_eq!(
            interfaces_without_sysfs(&NetlinkDumps::default()),
            InterfaceList { interfaces: Vec::new(), vpn: None }
        );
    }

    proptest! {
        #[test]
        fn damaged_replies_never_panic(damage in proptest::collection::vec((0..100_000_usize, any::<u8>()), 1..20)) {
            let mut recording = recorded_dumps();
            for (at, byte) in damage {
                for part in [&mut recording.links, &mut recording.addresses, &mut recording.routes, &mut recording.internet_route_v4] {
                    let length = part.len();
                    part[at % length] = byte;
                }
            }
            interfaces_without_sysfs(&recording);
        }
    }
}
