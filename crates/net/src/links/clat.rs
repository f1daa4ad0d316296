//! Recognizes the IPv4 side of an IPv6-only network (CLAT of 464XLAT, RFC 6877).
//!
//! A CLAT gives programs that support only IPv4 an interface with an IPv4 default route, and translates their packets
//! into IPv6 packets of one of the real links. It is neither a link nor a VPN: it has no capacity of its own, and its
//! packets leave over a link that is listed already. Servers with only IPv4 addresses are reached over each link by
//! IPv6 and NAT64 instead ([`crate::dns`]).

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use super::device_info::DeviceInfo;
use super::interface::Subnet;

/// Addresses that a host assigns to its CLAT (RFC 7335).
const CLAT_PREFIX: Subnet = Subnet { address: IpAddr::V4(Ipv4Addr::new(192, 0, 0, 0)), prefix_len: 29 };

/// Whether a tunnel device with these addresses is a CLAT. It is recognized by its addresses or, if other addresses
/// were configured, by the names that clatd (`clat`), systemd-networkd (`cl-wlan0`) and Android (`v4-wlan0`) assign.
pub(super) fn is_clat(link: &DeviceInfo, networks: &[Subnet], devices: &BTreeMap<u32, DeviceInfo>) -> bool {
    let mut v4 = networks.iter().map(|network| network.address).filter(IpAddr::is_ipv4).peekable();
    if v4.peek().is_none() {
        return false;
    }
    let is_other = |name: &str| devices.values().any(|device| device.index != link.index && device.name == name);
    let has_clat_name = match link.name.strip_prefix("clat") {
        Some(number) => number.bytes().all(|byte| byte.is_ascii_digit()),
        None => ["cl-", "v4-"].iter().any(|prefix| link.name.strip_prefix(prefix).is_some_and(is_other)),
    };
    has_clat_name || v4.all(|address| CLAT_PREFIX.contains(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clat_is_recognized_by_its_address_or_its_name() {
        let device = |index, name: &str| (index, DeviceInfo { index, name: name.into(), ..DeviceInfo::default() });
        let all: BTreeMap<u32, DeviceInfo> =
            ["wlan0", "cl-wlan0", "cl-tech", "clat", "clat4", "clatter", "tun0", "v4-wlan0"]
                .into_iter()
                .zip(1..)
                .map(|(name, index)| device(index, name))
                .collect();
        let is_clat_with = |name: &str, addresses: &[&str]| {
            let networks: Vec<Subnet> =
                addresses.iter().map(|text| Subnet { address: text.parse().unwrap(), prefix_len: 32 }).collect();
            is_clat(all.values().find(|link| link.name == name).unwrap(), &networks, &all)
        };
        assert!(is_clat_with("tun0", &["192.0.0.1"]) && is_clat_with("tun0", &["192.0.0.4", "2001:db8::4"]));
        assert!(is_clat_with("cl-wlan0", &["10.0.0.1"]) && is_clat_with("v4-wlan0", &["10.0.0.1"]));
        assert!(is_clat_with("clat", &["172.16.0.1"]) && is_clat_with("clat4", &["172.16.0.1"]));
        assert!(
            !is_clat_with("tun0", &["10.8.0.2"])
                && !is_clat_with("tun0", &["192.0.0.8"])
                && !is_clat_with("tun0", &["192.0.0.1", "10.8.0.2"])
        );
        assert!(
            !is_clat_with("cl-tech", &["10.8.0.2"]) && !is_clat_with("clatter", &["10.8.0.2"]),
            "a VPN with such a name"
        );
        assert!(!is_clat_with("clat", &[]) && !is_clat_with("tun0", &["2001:db8::4"]), "no IPv4 address");
    }
}
