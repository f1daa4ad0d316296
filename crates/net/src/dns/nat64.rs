//! IPv4 servers over a link that has only IPv6: translates their addresses to those of the network's NAT64.
//!
//! The network's prefix is discovered as in RFC 7050: its DNS64 returns the two well-known IPv4 addresses of
//! `ipv4only.arpa`, embedded in the prefix. Other IPv4 addresses are then embedded as in RFC 6052 section 2.2.
//!
//! Only public addresses are translated: a private one would be a machine of the network's operator, not the server
//! that is meant.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::egress::register_nat64_prefix;

/// A name that has IPv6 addresses only where DNS64 adds them (RFC 7050).
pub(super) const WELL_KNOWN_NAME: &str = "ipv4only.arpa";
/// The IPv4 addresses of [`WELL_KNOWN_NAME`].
const WELL_KNOWN_ADDRS: [Ipv4Addr; 2] = [Ipv4Addr::new(192, 0, 0, 170), Ipv4Addr::new(192, 0, 0, 171)];

/// Permitted prefix lengths, the most common one first.
const PREFIX_LENGTHS: [u8; 6] = [96, 64, 56, 48, 40, 32];

/// The prefix of a NAT64.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Nat64Prefix {
    bits: u128,
    prefix_len: u8,
}

impl Nat64Prefix {
    /// Determines the prefix from the addresses of [`WELL_KNOWN_NAME`].
    pub(super) fn discover(addresses: &[IpAddr]) -> Option<Self> {
        addresses.iter().find_map(|address| match address {
            IpAddr::V6(address) if may_be_nat64_prefix(*address) => PREFIX_LENGTHS.into_iter().find_map(|length| {
                let bits = address.to_bits() & !(u128::MAX >> length);
                let prefix = Self { bits, prefix_len: length };
                WELL_KNOWN_ADDRS.iter().any(|known| prefix.embed(*known) == *address).then_some(prefix)
            }),
            _ => None,
        })
    }

    /// The IPv6 address under which the network's NAT64 serves an IPv4 address; `None` if it is not public.
    pub(super) fn translate(self, address: Ipv4Addr) -> Option<Ipv6Addr> {
        is_public(address).then(|| self.embed(address))
    }

    /// Registers the prefix with the egress policy, which then recognizes IPv4 addresses behind it.
    pub(super) fn register(self) {
        register_nat64_prefix(self.bits, self.prefix_len);
    }

    /// Places the IPv4 address after the prefix, skipping bits 64 to 71, which are zero.
    fn embed(self, address: Ipv4Addr) -> Ipv6Addr {
        let (address, length) = (u128::from(address.to_bits()), u32::from(self.prefix_len));
        let low = match length {
            96 => address,
            64 => address << 24,
            _ => {
                let before = 64 - length;
                // Some bits of the address come before the skipped byte, the others after it.
                let (high_bits, low_bits) = (address >> (32 - before), address & ((1 << (32 - before)) - 1));
                high_bits << 64 | low_bits << (24 + before)
            }
        };
        Ipv6Addr::from_bits(self.bits | low)
    }
}

/// Whether an address may be in the prefix of a NAT64: public addresses, the well-known prefixes (RFC 6052, RFC
/// 8215), and unique local addresses (RFC 4193) may.
fn may_be_nat64_prefix(address: Ipv6Addr) -> bool {
    let first = address.segments()[0];
    first & 0xe000 == 0x2000 || address.segments()[..2] == [0x64, 0xff9b] || first & 0xfe00 == 0xfc00
}

fn is_public(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let is_shared = a == 100 && b & 0xc0 == 64;
    let is_special = a == 0 || a >= 224 || (a, b, c) == (192, 0, 0);
    !(address.is_private() || address.is_loopback() || address.is_link_local() || is_shared || is_special)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse_v6(text: &str) -> Ipv6Addr {
        text.parse().unwrap()
    }

    /// The table of RFC 6052 section 2.4.
    const TABLE: [(&str, u8, &str); 6] = [
        ("2001:db8::", 32, "2001:db8:c000:221::"),
        ("2001:db8:100::", 40, "2001:db8:1c0:2:21::"),
        ("2001:db8:122::", 48, "2001:db8:122:c000:2:2100::"),
        ("2001:db8:122:300::", 56, "2001:db8:122:3c0:0:221::"),
        ("2001:db8:122:344::", 64, "2001:db8:122:344:c0:2:2100::"),
        ("2001:db8:122:344::", 96, "2001:db8:122:344::192.0.2.33"),
    ];

    #[test]
    fn addresses_are_embedded_as_in_the_table_of_rfc_6052() {
        for (bits, length, want) in TABLE {
            let prefix = Nat64Prefix { bits: parse_v6(bits).to_bits(), prefix_len: length };
            assert_eq!(prefix.translate(Ipv4Addr::new(192, 0, 2, 33)), Some(parse_v6(want)));
            for known in WELL_KNOWN_ADDRS {
                assert_eq!(
                    Nat64Prefix::discover(&[IpAddr::V6(prefix.embed(known))]),
                    Some(prefix),
                    "{bits}/{length}"
                );
            }
        }
        let known = "64:ff9b::192.0.0.171".parse().unwrap();
        let prefix = Nat64Prefix::discover(&["192.0.0.170".parse().unwrap(), known]).unwrap();
        assert_eq!(prefix.translate(Ipv4Addr::new(203, 0, 113, 7)), Some(parse_v6("64:ff9b::203.0.113.7")));
    }

    #[test]
    fn an_answer_without_a_valid_prefix_yields_none() {
        for bad in ["2001:db8::1", "::192.0.0.170", "::ffff:192.0.0.170", "fe80::192.0.0.170", "ff02::192.0.0.170"]
        {
            assert_eq!(Nat64Prefix::discover(&[bad.parse().unwrap()]), None, "{bad}");
        }
        assert_eq!(Nat64Prefix::discover(&["192.0.0.170".parse().unwrap()]), None);
    }

    #[test]
    fn only_public_addresses_are_translated() {
        let prefix = Nat64Prefix::discover(&["64:ff9b::192.0.0.170".parse().unwrap()]).unwrap();
        for private in
            ["10.0.0.1", "192.168.1.1", "172.16.0.1", "127.0.0.1", "169.254.169.254", "100.64.0.1", "0.0.0.0"]
        {
            assert_eq!(prefix.translate(private.parse().unwrap()), None, "{private}");
        }
        assert_eq!(prefix.translate("224.0.0.1".parse().unwrap()), None);
        assert_eq!(prefix.translate("192.0.0.1".parse().unwrap()), None);
    }

    #[test]
    fn a_registered_prefix_is_recognized_by_address_zones() {
        use crate::egress::AddressZone;
        for (bits, length, _) in TABLE {
            // Prefixes that no other test uses, because they stay registered.
            let bits = parse_v6(bits).to_bits() & (u128::MAX >> 32) | (0x2a0f_0000 | u128::from(length)) << 96;
            let prefix = Nat64Prefix { bits: bits & !(u128::MAX >> length), prefix_len: length };
            let zone = |four: [u8; 4]| AddressZone::classify(prefix.embed(four.into()).into(), |_| false);
            assert_eq!(zone([10, 0, 0, 1]), AddressZone::Internet, "{length}");
            prefix.register();
            let found = [[10, 0, 0, 1], [127, 0, 0, 1], [169, 254, 169, 254], [1, 1, 1, 1]].map(zone);
            assert_eq!(
                found,
                [AddressZone::Private, AddressZone::Host, AddressZone::Metadata, AddressZone::Internet],
                "{length}"
            );
        }
    }

    proptest! {
        #[test]
        fn no_address_panics(bits: u128, v4: u32) {
            if let Some(prefix) = Nat64Prefix::discover(&[Ipv6Addr::from_bits(bits).into()]) {
                prefix.translate(Ipv4Addr::from_bits(v4));
            }
        }
    }
}
