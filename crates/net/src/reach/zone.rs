//! How local an address is: the public Internet, a private network, one link, or this machine.
//!
//! Classification needs the kernel for one question only, whether an address is this machine's own ([`is_own`]); it is
//! asked each time, so the answer follows interfaces that come, go and change. An IPv6 address that carries an IPv4
//! address (mapped, NAT64, 6to4, Teredo) is as local as the more local of the two.
//!
//! Addresses for documentation and benchmarking count as public: they are nobody's private network, and VPN programs
//! and laboratories use them as stand-ins for public ones. A relay's own rules are stricter.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::embedded::embedded_v4;
use super::network::Network;
use crate::links::leads_here;

/// How local an address is, the least local first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Zone {
    /// Everything that is not in another zone.
    Internet,
    /// RFC 1918, unique local (RFC 4193), shared address space of carriers (RFC 6598).
    Private,
    /// One link, or a group of receivers: link-local unicast (RFC 3927, RFC 4291), multicast, broadcast.
    LinkLocal,
    /// Where a cloud's machines read their credentials.
    Metadata,
    /// This machine: the loopback, the unspecified address, its own addresses.
    Host,
}

impl Zone {
    /// The zone of an address; the kernel is asked whether it is this machine's own.
    pub fn of(address: IpAddr) -> Self {
        Self::with(address, is_own)
    }

    /// The same, with the answer of `own` in the place of the kernel's.
    pub fn with(address: IpAddr, own: impl Fn(IpAddr) -> bool) -> Self {
        let address = address.to_canonical();
        let embedded = embedded_v4(address).into_iter().map(IpAddr::V4);
        let zone = |address| if own(address) { Self::Host } else { Self::by_number(address) };
        // The most local one decides: a translator on the way may lead to any of them.
        std::iter::once(address).chain(embedded).map(zone).max().unwrap_or(Self::Host)
    }

    fn by_number(address: IpAddr) -> Self {
        let found = ZONES.iter().find(|(network, _)| network.has(address));
        found.map_or(Self::Internet, |(_, zone)| *zone)
    }

    /// The networks that registries have put into it; none for [`Self::Internet`]. Those of other zones may be parts of them.
    pub fn networks(self) -> impl Iterator<Item = Network> {
        ZONES.iter().filter(move |(_, zone)| *zone == self).map(|(network, _)| *network)
    }

    /// As messages name it.
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

/// Whether packets to an address end at this machine; where the kernel does not say, they do.
pub fn is_own(address: IpAddr) -> bool {
    leads_here(address).inspect_err(|error| tracing::warn!(%error, "where packets go")).unwrap_or(true)
}

const fn v4(a: u8, b: u8, c: u8, d: u8, bits: u8) -> Network {
    Network::new(IpAddr::V4(Ipv4Addr::new(a, b, c, d)), bits)
}

const fn v6(segments: [u16; 8], bits: u8) -> Network {
    let [a, b, c, d, e, f, g, h] = segments;
    Network::new(IpAddr::V6(Ipv6Addr::new(a, b, c, d, e, f, g, h)), bits)
}

/// IANA's registries of special-purpose addresses; single addresses stand before the networks that they are in. Metadata
/// services: Alibaba, Azure, Oracle; Amazon, Google, Oracle, Scaleway and Linode by IPv6. All others are link-local.
const ZONES: [(Network, Zone); 23] = [
    (v4(100, 100, 100, 200, 32), Zone::Metadata),
    (v4(168, 63, 129, 16, 32), Zone::Metadata),
    (v4(192, 0, 0, 192, 32), Zone::Metadata),
    (v4(169, 254, 169, 254, 32), Zone::Metadata),
    (v6([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0], 32), Zone::Metadata),
    (v6([0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254], 128), Zone::Metadata),
    (v6([0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe], 128), Zone::Metadata),
    (v6([0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42], 128), Zone::Metadata),
    (v6([0xfd00, 0xa9fe, 0xa9fe, 0, 0, 0, 0, 0], 48), Zone::Metadata),
    (v4(0, 0, 0, 0, 8), Zone::Host),
    (v4(127, 0, 0, 0, 8), Zone::Host),
    (v4(10, 0, 0, 0, 8), Zone::Private),
    (v4(100, 64, 0, 0, 10), Zone::Private),
    (v4(172, 16, 0, 0, 12), Zone::Private),
    (v4(192, 168, 0, 0, 16), Zone::Private),
    (v4(169, 254, 0, 0, 16), Zone::LinkLocal),
    // RFC 7335: the addresses between a host and its own translator to IPv6.
    (v4(192, 0, 0, 0, 24), Zone::LinkLocal),
    (v4(224, 0, 0, 0, 3), Zone::LinkLocal),
    (v6([0, 0, 0, 0, 0, 0, 0, 0], 127), Zone::Host),
    (v6([0xfc00, 0, 0, 0, 0, 0, 0, 0], 7), Zone::Private),
    (v6([0xfec0, 0, 0, 0, 0, 0, 0, 0], 10), Zone::Private),
    (v6([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10), Zone::LinkLocal),
    (v6([0xff00, 0, 0, 0, 0, 0, 0, 0], 8), Zone::LinkLocal),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn zone(address: &str) -> Zone {
        let own = ["203.0.113.5", "10.7.0.1", "2001:db8::5"].map(|own| own.parse::<IpAddr>().unwrap());
        Zone::with(address.parse().unwrap(), |address| own.contains(&address))
    }

    #[test]
    fn addresses_are_in_the_zone_of_their_registry() {
        for (zone_of, addresses) in [
            (
                Zone::Internet,
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
                Zone::Private,
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
                Zone::LinkLocal,
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
                Zone::Metadata,
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
                Zone::Host,
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
                    // Teredo: the client's address stands there inverted.
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
