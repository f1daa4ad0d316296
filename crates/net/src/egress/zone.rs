//! Classifies addresses by how local they are: the public Internet, a private network, one link, or this machine.
//!
//! The kernel is queried for one question only, whether an address is this machine's own ([`is_own_address`]). It is
//! queried each time, so the result follows interfaces that appear, disappear and change. An IPv6 address with an
//! embedded IPv4 address (mapped, NAT64, 6to4, Teredo) gets the more local zone of the two.
//!
//! Addresses for documentation and benchmarking count as public: no private network uses them, and VPN programs and
//! laboratories use them as stand-ins for public addresses. A relay has stricter rules of its own.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::embedded_ipv4::embedded_v4;
use super::ip_prefix::IpPrefix;
use crate::links::is_local_address;

/// How local an address is, ordered from the least local to the most local.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AddressZone {
    /// Every address that is in no other zone.
    Internet,
    /// Private networks: RFC 1918, unique local addresses (RFC 4193), and the carriers' shared address space (RFC
    /// 6598).
    Private,
    /// One link, or a group of receivers: link-local unicast (RFC 3927, RFC 4291), multicast and broadcast.
    LinkLocal,
    /// Addresses at which a cloud's machines read their credentials.
    Metadata,
    /// This machine: loopback addresses, the unspecified address, and the addresses of its interfaces.
    Host,
}

impl AddressZone {
    /// The zone of an address; queries the kernel whether it is this machine's own.
    pub fn of(address: IpAddr) -> Self {
        Self::classify(address, is_own_address)
    }

    /// Like [`of`](Self::of), with `is_own` in place of the kernel.
    pub fn classify(address: IpAddr, is_own: impl Fn(IpAddr) -> bool) -> Self {
        let address = address.to_canonical();
        let embedded = embedded_v4(address).into_iter().map(IpAddr::V4);
        let zone = |address| if is_own(address) { Self::Host } else { Self::by_prefix(address) };
        // The most local one decides: a translator on the path may deliver to any of them.
        std::iter::once(address).chain(embedded).map(zone).max().unwrap_or(Self::Host)
    }

    fn by_prefix(address: IpAddr) -> Self {
        let found = SPECIAL_PREFIXES.iter().find(|(network, _)| network.contains(address));
        found.map_or(Self::Internet, |(_, zone)| *zone)
    }

    /// The prefixes that make up this zone; none for [`Self::Internet`]. A prefix may contain smaller ones of other
    /// zones.
    pub fn prefixes(self) -> impl Iterator<Item = IpPrefix> {
        SPECIAL_PREFIXES.iter().filter(move |(_, zone)| *zone == self).map(|(network, _)| *network)
    }

    /// The description in error messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Internet => "a public address",
            Self::Private => "a private address",
            Self::LinkLocal => "a link-local address",
            Self::Metadata => "the address of a cloud's metadata service",
            Self::Host => "an address of this machine",
        }
    }
}

/// Whether the kernel delivers packets to this address locally; `true` if the kernel cannot be queried.
pub fn is_own_address(address: IpAddr) -> bool {
    is_local_address(address)
        .inspect_err(|error| tracing::warn!(%error, "cannot look up the route to an address"))
        .unwrap_or(true)
}

const fn v4_prefix(a: u8, b: u8, c: u8, d: u8, bits: u8) -> IpPrefix {
    IpPrefix::new(IpAddr::V4(Ipv4Addr::new(a, b, c, d)), bits)
}

const fn v6_prefix(segments: [u16; 8], bits: u8) -> IpPrefix {
    let [a, b, c, d, e, f, g, h] = segments;
    IpPrefix::new(IpAddr::V6(Ipv6Addr::new(a, b, c, d, e, f, g, h)), bits)
}

/// From IANA's registries of special-purpose addresses. Smaller prefixes come before the larger ones that contain
/// them, because the first match decides. Metadata services: Alibaba, Azure, Oracle; Amazon, Google, Oracle, Scaleway
/// and Linode over IPv6. All other clouds use 169.254.169.254. Other link-local addresses of clouds, such as
/// 169.254.170.2, are in [`AddressZone::LinkLocal`].
const SPECIAL_PREFIXES: [(IpPrefix, AddressZone); 23] = [
    (v4_prefix(100, 100, 100, 200, 32), AddressZone::Metadata),
    (v4_prefix(168, 63, 129, 16, 32), AddressZone::Metadata),
    (v4_prefix(192, 0, 0, 192, 32), AddressZone::Metadata),
    (v4_prefix(169, 254, 169, 254, 32), AddressZone::Metadata),
    (v6_prefix([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0], 32), AddressZone::Metadata),
    (v6_prefix([0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254], 128), AddressZone::Metadata),
    (v6_prefix([0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe], 128), AddressZone::Metadata),
    (v6_prefix([0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42], 128), AddressZone::Metadata),
    (v6_prefix([0xfd00, 0xa9fe, 0xa9fe, 0, 0, 0, 0, 0], 48), AddressZone::Metadata),
    (v4_prefix(0, 0, 0, 0, 8), AddressZone::Host),
    (v4_prefix(127, 0, 0, 0, 8), AddressZone::Host),
    (v4_prefix(10, 0, 0, 0, 8), AddressZone::Private),
    (v4_prefix(100, 64, 0, 0, 10), AddressZone::Private),
    (v4_prefix(172, 16, 0, 0, 12), AddressZone::Private),
    (v4_prefix(192, 168, 0, 0, 16), AddressZone::Private),
    (v4_prefix(169, 254, 0, 0, 16), AddressZone::LinkLocal),
    // RFC 7335: addresses between a host and its own IPv4 to IPv6 translator.
    (v4_prefix(192, 0, 0, 0, 24), AddressZone::LinkLocal),
    (v4_prefix(224, 0, 0, 0, 3), AddressZone::LinkLocal),
    (v6_prefix([0, 0, 0, 0, 0, 0, 0, 0], 127), AddressZone::Host),
    (v6_prefix([0xfc00, 0, 0, 0, 0, 0, 0, 0], 7), AddressZone::Private),
    (v6_prefix([0xfec0, 0, 0, 0, 0, 0, 0, 0], 10), AddressZone::Private),
    (v6_prefix([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10), AddressZone::LinkLocal),
    (v6_prefix([0xff00, 0, 0, 0, 0, 0, 0, 0], 8), AddressZone::LinkLocal),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn zone(address: &str) -> AddressZone {
        let local_addresses = ["203.0.113.5", "10.7.0.1", "2001:db8::5"]
            .map(|local_addresses| local_addresses.parse::<IpAddr>().unwrap());
        AddressZone::classify(address.parse().unwrap(), |address| local_addresses.contains(&address))
    }

    #[test]
    fn addresses_are_in_the_zone_of_their_registry() {
        for (zone_of, addresses) in [
            (
                AddressZone::Internet,
                &[
                    "1.1.1.1",
                    "198.51.100.7",
                    "172.32.0.1",
                    "100.128.0.1",
                    "192.169.0.1",
                    "11.0.0.1",
                    "2606:4700::1111",
                    "2001:db8::1",
                    "64:ff9b::101:101",
                    "2002:101:101::1",
                    "::ffff:1.1.1.1",
                ][..],
            ),
            (
                AddressZone::Private,
                &[
                    "10.0.0.1",
                    "172.16.0.1",
                    "172.31.255.255",
                    "192.168.1.1",
                    "100.64.0.1",
                    "fd00::1",
                    "fc00::1",
                    "fec0::1",
                    "::ffff:10.0.0.1",
                    "64:ff9b::10.0.0.1",
                    "64:ff9b:1::10.0.0.1",
                    "2002:a00:1::1",
                ],
            ),
            (
                AddressZone::LinkLocal,
                &[
                    "169.254.1.1",
                    "169.254.170.2",
                    "fe80::1",
                    "224.0.0.1",
                    "255.255.255.255",
                    "240.0.0.1",
                    "192.0.0.2",
                    "ff02::1",
                    "::ffff:169.254.1.1",
                ],
            ),
            (
                AddressZone::Metadata,
                &[
                    "169.254.169.254",
                    "100.100.100.200",
                    "168.63.129.16",
                    "192.0.0.192",
                    "fd00:ec2::254",
                    "fd20:ce::254",
                    "64:ff9b::a9fe:a9fe",
                    "::ffff:169.254.169.254",
                ],
            ),
            (
                AddressZone::Host,
                &[
                    "127.0.0.1",
                    "127.9.9.9",
                    "0.0.0.0",
                    "0.1.2.3",
                    "::",
                    "::1",
                    "::127.0.0.1",
                    "::ffff:0:127.0.0.1",
                    "::ffff:127.0.0.1",
                    "203.0.113.5",
                    "10.7.0.1",
                    "2001:db8::5",
                    "64:ff9b::203.0.113.5",
                    "64:ff9b:1:cb00:71:500::",
                    "2002:cb00:7105::9",
                    // Teredo stores the client's address inverted.
                    "2001:0:909:909::34ff:8efa",
                ],
            ),
        ] {
            for address in addresses {
                assert_eq!(zone(address), zone_of, "{address}");
            }
        }
    }
}
