//! An IP address prefix in the usual notation: `10.1.0.0/16`, `fd00::/8`, or a single address.

use std::fmt::{self, Display};
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

/// An address prefix. A single address has the full prefix length, 32 or 128.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpPrefix {
    address: IpAddr,
    prefix_len: u8,
}

impl IpPrefix {
    /// The addresses whose first `prefix_len` bits equal those of `address`.
    pub const fn new(address: IpAddr, prefix_len: u8) -> Self {
        Self { address, prefix_len }
    }

    /// Whether this is an IPv4 prefix.
    pub const fn is_ipv4(self) -> bool {
        self.address.is_ipv4()
    }

    /// Whether this is a single address, or within the loopback network: then a rule means this host's own addresses.
    pub fn is_single_host(self) -> bool {
        let max_len = if self.address.is_ipv4() { 32 } else { 128 };
        self.prefix_len == max_len || self.prefix_len >= LOOPBACK.prefix_len && LOOPBACK.contains(self.address)
    }

    /// Whether the prefix contains an address. An IPv4 prefix contains no IPv6 address, mapped ones included.
    pub fn contains(self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(base), IpAddr::V4(address)) => {
                equal_prefix(base.to_bits().into(), address.to_bits().into(), 32_u8.saturating_sub(self.prefix_len))
            }
            (IpAddr::V6(base), IpAddr::V6(address)) => {
                equal_prefix(base.to_bits(), address.to_bits(), 128_u8.saturating_sub(self.prefix_len))
            }
            _ => false,
        }
    }
}

/// 127.0.0.0/8: all its addresses are this machine's.
const LOOPBACK: IpPrefix = IpPrefix { address: IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0)), prefix_len: 8 };

/// Whether two numbers are equal except for the last `ignored_bits` bits.
fn equal_prefix(one: u128, other: u128, ignored_bits: u8) -> bool {
    (one ^ other).checked_shr(ignored_bits.into()).unwrap_or(0) == 0
}

impl FromStr for IpPrefix {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let invalid = || format!("`{text}` is not an address prefix such as 10.1.0.0/16 or fd00::/8");
        let (base, bits) = text.split_once('/').map_or((text, None), |(base, bits)| (base, Some(bits)));
        let base: IpAddr = base.parse().map_err(|_| invalid())?;
        let max_len = if base.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Ok(max_len), str::parse).map_err(|_| invalid())?;
        if bits > max_len {
            return Err(invalid());
        }
        Ok(Self::new(base, bits))
    }
}

impl Display for IpPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix_len)
    }
}
