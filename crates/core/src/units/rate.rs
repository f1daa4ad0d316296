//! Data rate in bits per second.

use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Serialize};

use super::arithmetic::{saturating_fraction, saturating_multiple, saturating_unit};
use super::parse::{ParseUnitError, parse_with_unit};
use super::ratio::Ratio;

/// A rate in bits per second. Arithmetic saturates.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bitrate(u64);

impl Bitrate {
    /// No data.
    pub const ZERO: Self = Self(0);
    /// The largest value, more than any link carries.
    pub const MAX: Self = Self(u64::MAX);

    /// `n` bits per second.
    pub const fn from_bits_per_sec(n: u64) -> Self {
        Self(n)
    }

    /// `n` Mbit/s (1,000,000 bits per second each).
    pub const fn from_mbps(n: u64) -> Self {
        Self(n.saturating_mul(1_000_000))
    }

    /// Bits per second.
    pub const fn bits_per_sec(self) -> u64 {
        self.0
    }

    /// In Mbit/s, for reports and for formulas that need a float.
    pub fn as_mbps_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// Whether the rate is zero.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// This share of the rate, rounded down.
    pub fn share(self, share: Ratio) -> Self {
        let rate = u128::from(self.0) * u128::from(share.ppm()) / 1_000_000;
        Self(u64::try_from(rate).unwrap_or(u64::MAX))
    }
}

saturating_unit!(Bitrate);
saturating_multiple!(Bitrate);
saturating_fraction!(Bitrate);

impl FromStr for Bitrate {
    type Err = ParseUnitError;

    /// `20Mbit/s`, `1.5Gbit/s`, `800kbit/s`, `56bit/s`.
    fn from_str(s: &str) -> Result<Self, ParseUnitError> {
        parse_with_unit(
            s,
            "a rate such as 20Mbit/s or 800kbit/s",
            &[("bit/s", 1), ("kbit/s", 1000), ("Mbit/s", 1_000_000), ("Gbit/s", 1_000_000_000)],
        )
        .map(Self)
    }
}

impl fmt::Display for Bitrate {
    /// The largest unit that leaves at least 1, with one decimal: `20.0Mbit/s`, `56bit/s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, name) = match self.0 {
            0..1000 => return write!(f, "{}bit/s", self.0),
            1000..1_000_000 => (1000, "kbit/s"),
            1_000_000..1_000_000_000 => (1_000_000, "Mbit/s"),
            _ => (1_000_000_000_u64, "Gbit/s"),
        };
        write!(f, "{}.{}{name}", self.0 / unit, self.0 % unit * 10 / unit)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::units::{DataSize, Duration};
    use std::string::ToString;

    #[test]
    fn a_rate_needs_its_unit() {
        assert_eq!("20Mbit/s".parse(), Ok(Bitrate::from_mbps(20)));
        assert_eq!("1.5Gbit/s".parse(), Ok(Bitrate::from_mbps(1500)));
        assert!("20".parse::<Bitrate>().is_err());
        assert!("20MB".parse::<Bitrate>().is_err());
    }

    #[test]
    fn prints_zero_and_maximum() {
        assert_eq!(Bitrate::ZERO.to_string(), "0bit/s");
        assert_eq!(Bitrate::MAX.to_string(), "18446744073.7Gbit/s");
        assert_eq!(Bitrate::from_bits_per_sec(12_400_000).to_string(), "12.4Mbit/s");
    }

    #[test]
    fn a_product_above_the_maximum_saturates() {
        assert_eq!(Bitrate::MAX * Duration::MAX, DataSize::MAX);
        assert_eq!(Bitrate::ZERO * Duration::MAX, DataSize::ZERO);
    }
}
