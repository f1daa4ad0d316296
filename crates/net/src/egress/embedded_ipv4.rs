//! Finds the IPv4 addresses that are embedded in an IPv6 address: a connection to it may end at one of them.
//!
//! 1. Mapped and compatible (RFC 4291 section 2.5.5), translated (RFC 2765 section 2.1), 6to4 (RFC 3056 section 2),
//!    Teredo (RFC 4380 section 4: its server and, inverted, its client), and the NAT64 prefixes 64:ff9b::/96 (RFC
//!    6052 section 2.1) and 64:ff9b:1::/48 for local use (RFC 8215).
//! 2. In the local-use prefix of NAT64 the IPv4 address follows the operator's own prefix of 48, 56, 64 or 96 bits
//!    (RFC 6052 section 2.2), whose length is not known here. So every possible position counts whose remaining bits
//!    are zero. The address 0.0.0.0 is returned only if there is no other.
//! 3. A network's own NAT64 prefix counts once it is known ([`register_nat64_prefix`]). Prefixes of networks that
//!    this host has left are dropped when newer ones need the entries.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{PoisonError, RwLock};

/// All IPv4 addresses embedded in an address; empty for an IPv4 address.
pub fn embedded_v4(address: IpAddr) -> Vec<Ipv4Addr> {
    match address {
        IpAddr::V4(_) => Vec::new(),
        IpAddr::V6(address) => {
            let mut candidates = standard_embedded(address);
            let prefixes = NAT64_PREFIXES.read().unwrap_or_else(PoisonError::into_inner);
            candidates.extend(
                prefixes.iter().filter_map(|(bits, length)| nat64_embedded(address.to_bits(), *bits, *length)),
            );
            candidates
        }
    }
}

/// Registers the NAT64 prefix of a network, of 32, 40, 48, 56, 64 or 96 bits (RFC 6052 section 2.2).
pub(crate) fn register_nat64_prefix(bits: u128, length: u8) {
    let mut prefixes = NAT64_PREFIXES.write().unwrap_or_else(PoisonError::into_inner);
    prefixes.retain(|known| *known != (bits, length));
    prefixes.insert(0, (bits, length));
    prefixes.truncate(MAX_NAT64_PREFIXES);
}

/// The most recently registered first.
static NAT64_PREFIXES: RwLock<Vec<(u128, u8)>> = RwLock::new(Vec::new());
/// Our choice: more than the links of any host.
const MAX_NAT64_PREFIXES: usize = 32;

/// The IPv4 address to which a NAT64 with this prefix translates; `None`: the address is not in the prefix.
fn nat64_embedded(address: u128, prefix: u128, length: u8) -> Option<Ipv4Addr> {
    let length = u32::from(length);
    let mask = u128::MAX.checked_shl(128 - length)?;
    if (address ^ prefix) & mask != 0 {
        return None;
    }
    let value = if length >= 96 {
        low_32(address)
    } else {
        // Bits 64 to 71 are zero and not part of the address (RFC 6052 section 2.2).
        let joined = (address >> 64) << 56 | (address & ((1 << 56) - 1));
        low_32(joined.checked_shr(120 - length - 32)?)
    };
    Some(Ipv4Addr::from_bits(value))
}

fn standard_embedded(address: Ipv6Addr) -> Vec<Ipv4Addr> {
    let bits = address.to_bits();
    // The 32 bits from `offset` on.
    let ipv4_at = |offset: u32| bits.checked_shr(96_u32.saturating_sub(offset)).map_or(0, low_32);
    let last_32 = Ipv4Addr::from_bits(ipv4_at(96));
    match address.segments() {
        [0, 0, 0, 0, 0, 0, high, low] if (high, low) > (0, 1) => vec![last_32],
        [0, 0, 0, 0, 0, 0xffff, _, _] | [0, 0, 0, 0, 0xffff, 0, _, _] | [0x64, 0xff9b, 0, 0, 0, 0, _, _] => {
            vec![last_32]
        }
        [0x64, 0xff9b, 1, ..] => local_nat64_embedded(bits),
        [0x2002, ..] => vec![Ipv4Addr::from_bits(ipv4_at(16))],
        [0x2001, 0, ..] => vec![Ipv4Addr::from_bits(ipv4_at(32)), Ipv4Addr::from_bits(!ipv4_at(96))],
        _ => Vec::new(),
    }
}

fn local_nat64_embedded(bits: u128) -> Vec<Ipv4Addr> {
    // For prefixes of 48, 56 and 64 bits the address continues after bits 64 to 71, which are zero.
    let after_prefix = |prefix_len: u32| {
        // `before` bits of the address end at bit 64, and `after` bits follow bit 71.
        let (before, after) = (64 - prefix_len, 32 - (64 - prefix_len));
        let high = if before == 0 { 0 } else { low_32(bits >> 64) & ((1 << before) - 1) };
        let low = low_32(bits >> (56 - after)) & low_mask(after);
        // All bits after the address, and the skipped ones, must be zero for this prefix length to be possible.
        let is_low_zero = bits & ((1 << (56 - after)) - 1) == 0 && (bits >> 56) & 0xff == 0;
        is_low_zero.then(|| u64::from(high) << after | u64::from(low)).map(|value| low_32(value.into()))
    };
    let candidates = [48, 56, 64].into_iter().filter_map(after_prefix).chain([low_32(bits)]);
    let mut found: Vec<Ipv4Addr> = candidates.filter(|address| *address != 0).map(Ipv4Addr::from_bits).collect();
    if found.is_empty() {
        found.push(Ipv4Addr::UNSPECIFIED);
    }
    found
}

fn low_mask(bits: u32) -> u32 {
    u32::MAX.checked_shr(32 - bits).unwrap_or(0)
}

/// The last 32 bits.
fn low_32(bits: u128) -> u32 {
    (bits & u128::from(u32::MAX)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_yields_the_address_that_its_standard_defines() {
        for (address, carried) in [
            ("2606:4700::1", &[][..]),
            ("::1", &[]),
            ("::", &[]),
            ("::7f00:1", &["127.0.0.1"]),
            ("::ffff:1.2.3.4", &["1.2.3.4"]),
            ("::ffff:0:1.2.3.4", &["1.2.3.4"]),
            ("64:ff9b::1.2.3.4", &["1.2.3.4"]),
            ("2002:102:304::1", &["1.2.3.4"]),
            ("2001:0:102:304::f6f6:f6f6", &["1.2.3.4", "9.9.9.9"]),
            // The examples of RFC 6052 section 2.4, with another prefix.
            ("64:ff9b:1:c000:2:2100::", &["192.0.2.33"]),
            ("64:ff9b:1:1c0:0:221::", &["192.0.2.33"]),
            ("64:ff9b:1:122:c0:2:2100:0", &["192.0.2.33"]),
            ("64:ff9b:1:122:3:4:c000:221", &["192.0.2.33"]),
            ("64:ff9b:1::", &["0.0.0.0"]),
        ] {
            let carried: Vec<Ipv4Addr> = carried.iter().map(|address| address.parse().unwrap()).collect();
            let found = standard_embedded(address.parse().unwrap());
            assert!(carried.iter().all(|address| found.contains(address)), "{address}: {found:?}");
            assert!(found.is_empty() == carried.is_empty(), "{address}: {found:?}");
        }
    }
}
