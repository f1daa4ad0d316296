//! The IPv4 side of an IPv6-only network (464XLAT, RFC 6877).
//!
//! A CLAT gives programs that know only IPv4 an interface with an IPv4 default route, and translates what they send into
//! IPv6 packets of one of the real links. It is neither a link nor a VPN: it has no capacity of its own, and its packets
//! leave by a link that is in the survey already. IPv4 servers are reached over each link by IPv6 instead ([`crate::dns`]).

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use super::interface::Network;
use super::kind::Facts;

/// Addresses that a host gives its CLAT (RFC 7335).
const SERVICE: Network = Network { address: IpAddr::V4(Ipv4Addr::new(192, 0, 0, 0)), prefix: 29 };

/// Whether a tunnel device with these addresses is a CLAT: by its addresses, or, where another address was configured, by
/// the names that clatd (`clat`), systemd-networkd (`cl-wlan0`) and Android (`v4-wlan0`) give.
pub(super) fn is_clat(link: &Facts, networks: &[Network], all: &BTreeMap<u32, Facts>) -> bool {
    let mut v4 = networks.iter().map(|network| network.address).filter(IpAddr::is_ipv4).peekable();
    if v4.peek().is_none() {
        return false;
    }
    let is_other = |name: &str| all.values().any(|other| other.index != link.index && other.name == name);
    let named = match link.name.strip_prefix("clat") {
        Some(number) => number.bytes().all(|byte| byte.is_ascii_digit()),
        None => ["cl-", "v4-"].iter().any(|prefix| link.name.strip_prefix(prefix).is_some_and(is_other)),
    };
    named || v4.all(|address| SERVICE.contains(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clat_is_known_by_its_address_or_its_name() {
        let facts = |index, name: &str| (index, Facts { index, name: name.into(), ..Facts::default() });
        let all: BTreeMap<u32, Facts> =
            ["wlan0", "cl-wlan0", "cl-tech", "clat", "clat4", "clatter", "tun0", "v4-wlan0"]
                .into_iter()
                .zip(1..)
                .map(|(name, index)| facts(index, name))
                .collect();
        let is = |name: &str, addresses: &[&str]| {
            let networks: Vec<Network> =
                addresses.iter().map(|text| Network { address: text.parse().unwrap(), prefix: 32 }).collect();
            is_clat(all.values().find(|link| link.name == name).unwrap(), &networks, &all)
        };
        assert!(is("tun0", &["192.0.0.1"]) && is("tun0", &["192.0.0.4", "2001:db8::4"]));
        assert!(is("cl-wlan0", &["10.0.0.1"]) && is("v4-wlan0", &["10.0.0.1"]));
        assert!(is("clat", &["172.16.0.1"]) && is("clat4", &["172.16.0.1"]));
        assert!(
            !is("tun0", &["10.8.0.2"]) && !is("tun0", &["192.0.0.8"]) && !is("tun0", &["192.0.0.1", "10.8.0.2"])
        );
        assert!(!is("cl-tech", &["10.8.0.2"]) && !is("clatter", &["10.8.0.2"]), "a VPN with such a name");
        assert!(!is("clat", &[]) && !is("tun0", &["2001:db8::4"]), "nothing of IPv4");
    }
}
