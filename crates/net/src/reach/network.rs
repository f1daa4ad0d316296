//! An address prefix, as users and registries write it: `10.1.0.0/16`, `fd00::/8`, or one address.

use std::fmt::{self, Display};
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

/// A network, `10.1.0.0/16` or `fd00::/8`; an address alone is one of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    base: IpAddr,
    bits: u8,
}

impl Network {
    /// The addresses whose first `bits` are those of `base`.
    pub const fn new(base: IpAddr, bits: u8) -> Self {
        Self { base, bits }
    }

    /// Whether its addresses are those of IPv4.
    pub const fn is_ipv4(self) -> bool {
        self.base.is_ipv4()
    }

    /// Whether it is one address, or this machine's loopback: then its own addresses are meant.
    pub fn is_one(self) -> bool {
        let most = if self.base.is_ipv4() { 32 } else { 128 };
        self.bits == most || self.bits >= LOOPBACK.bits && LOOPBACK.has(self.base)
    }

    /// Whether an address is in it.
    pub fn has(self, address: IpAddr) -> bool {
        match (self.base, address) {
            (IpAddr::V4(base), IpAddr::V4(address)) => {
                same(base.to_bits().into(), address.to_bits().into(), 32_u8.saturating_sub(self.bits))
            }
            (IpAddr::V6(base), IpAddr::V6(address)) => {
                same(base.to_bits(), address.to_bits(), 128_u8.saturating_sub(self.bits))
            }
            _ => false,
        }
    }
}

/// 127.0.0.0/8: who names a network in it means this machine.
const LOOPBACK: Network = Network { base: IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0)), bits: 8 };

/// Whether two numbers are equal but for the last so many bits.
fn same(one: u128, other: u128, but: u8) -> bool {
    (one ^ other).checked_shr(but.into()).unwrap_or(0) == 0
}

impl FromStr for Network {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is no network such as 10.1.0.0/16 or fd00::/8");
        let (base, bits) = text.split_once('/').map_or((text, None), |(base, bits)| (base, Some(bits)));
        let base: IpAddr = base.parse().map_err(|_| wrong())?;
        let most = if base.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Ok(most), str::parse).map_err(|_| wrong())?;
        if bits > most {
            return Err(wrong());
        }
        Ok(Self::new(base, bits))
    }
}

impl Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.base, self.bits)
    }
}
