//! Whether two addresses belong to networks of the same interface of this machine.

use std::io;
use std::net::IpAddr;

use marline_core::wire::netlink::{Address, Request, messages};
use marline_sys::netlink::RouteSocket;

use super::IpPrefix;

/// Whether the networks of one interface contain both addresses: then these hosts can reach each other without this
/// machine. A link-local `one` belongs to the interface with index `scope_id`. `false` if the kernel cannot be
/// queried.
pub(super) fn is_same_network(one: IpAddr, scope_id: u32, other: IpAddr) -> bool {
    let networks = interface_networks()
        .inspect_err(|error| tracing::warn!(%error, "cannot read the addresses of this machine's interfaces"));
    have_common_network(&networks.unwrap_or_default(), one.to_canonical(), scope_id, other.to_canonical())
}

fn have_common_network(networks: &[(u32, IpPrefix)], one: IpAddr, scope: u32, other: IpAddr) -> bool {
    let has_subnet_with = |link: u32, address: IpAddr| {
        networks.iter().any(|(index, network)| *index == link && network.contains(address))
    };
    let is_host_on = |link: u32| if is_link_local(one) { link == scope } else { has_subnet_with(link, one) };
    networks.iter().any(|(link, _)| is_host_on(*link) && has_subnet_with(*link, other))
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

/// The networks of all interfaces, each with its interface index.
fn interface_networks() -> io::Result<Vec<(u32, IpPrefix)>> {
    let dump = RouteSocket::open()?.request(&Request::dump_addresses().finish(1))?;
    let with_index = |address: Address| (address.interface, IpPrefix::new(address.address, address.prefix));
    Ok(messages(&dump).filter_map(|message| Address::parse(&message)).map(with_index).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{cable, in_a_network, ip};

    #[test]
    fn hosts_on_one_interface_share_its_networks() {
        let networks: Vec<(u32, IpPrefix)> =
            [(2, "192.168.1.0/24"), (2, "fd00:1::/64"), (2, "fe80::1/64"), (3, "10.0.0.2/8"), (3, "fe80::2/64")]
                .map(|(link, network)| (link, network.parse().unwrap()))
                .into();
        for (one, scope, other, shared) in [
            ("192.168.1.7", 0, "192.168.1.9", true),
            ("192.168.1.7", 0, "fd00:1::9", true),
            ("192.168.1.7", 0, "192.168.2.9", false),
            ("192.168.1.7", 0, "10.1.1.1", false),
            ("10.9.9.9", 0, "10.1.1.1", true),
            ("fe80::7", 2, "192.168.1.9", true),
            ("fe80::7", 3, "192.168.1.9", false),
            ("fe80::7", 0, "192.168.1.9", false),
            ("172.16.0.1", 0, "172.16.0.2", false),
        ] {
            let [one, other] = [one, other].map(|address| address.parse().unwrap());
            assert_eq!(have_common_network(&networks, one, scope, other), shared, "{one} {other}");
        }
    }

    #[test]
    fn interface_networks_are_read_again_for_each_check() {
        in_a_network(|| {
            let shared = |one: &str, other: &str| is_same_network(one.parse().unwrap(), 0, other.parse().unwrap());
            cable("d0", "192.168.7.1/24");
            assert!(shared("192.168.7.2", "192.168.7.3") && !shared("192.168.7.2", "192.168.8.3"));
            ip("address add 192.168.8.1/24 dev d0");
            assert!(shared("192.168.7.2", "192.168.8.3"));
            ip("address del 192.168.7.1/24 dev d0");
            assert!(!shared("192.168.7.2", "192.168.7.3"));
        });
    }
}
