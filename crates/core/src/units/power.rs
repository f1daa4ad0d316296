//! Electric power in watts.

use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Serialize};

use super::arithmetic::{saturating_multiple, saturating_unit};
use super::parse::{ParseUnitError, parse_with_unit};

/// A power in microwatts. Arithmetic saturates.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Power(u64);

impl Power {
    /// No power.
    pub const ZERO: Self = Self(0);
    /// The largest value, more than any device draws.
    pub const MAX: Self = Self(u64::MAX);

    /// `n` microwatts.
    pub const fn from_microwatts(n: u64) -> Self {
        Self(n)
    }

    /// `n` milliwatts.
    pub const fn from_milliwatts(n: u64) -> Self {
        Self(n.saturating_mul(1000))
    }

    /// Microwatts.
    pub const fn microwatts(self) -> u64 {
        self.0
    }

    /// Watts, for reports only.
    pub fn as_watts_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// Whether the power is zero.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }
}

saturating_unit!(Power);
saturating_multiple!(Power);

impl FromStr for Power {
    type Err = ParseUnitError;

    /// `1350mW`, `2.02W`, `500uW`.
    fn from_str(s: &str) -> Result<Self, ParseUnitError> {
        parse_with_unit(s, "a power such as 1350mW or 2.02W", &[("uW", 1), ("mW", 1000), ("W", 1_000_000)])
            .map(Self)
    }
}

impl fmt::Display for Power {
    /// Watts with one decimal from 10 W on, milliwatts with one decimal below: `12.5W`, `2022.2mW`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            10_000_000.. => write!(f, "{}.{}W", self.0 / 1_000_000, self.0 % 1_000_000 / 100_000),
            _ => write!(f, "{}.{}mW", self.0 / 1000, self.0 % 1000 / 100),
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::units::{Bitrate, Duration, Energy, EnergyPerBit};
    use std::string::ToString;

    #[test]
    fn power_times_time_is_energy() {
        assert_eq!(Power::from_milliwatts(1350) * Duration::from_millis(11_200), Energy::from_millijoules(15_120));
        assert_eq!(Power::MAX * Duration::MAX, Energy::MAX);
        assert_eq!(Power::ZERO * Duration::MAX, Energy::ZERO);
    }

    #[test]
    fn energy_per_bit_times_rate_is_power() {
        let per_bit: EnergyPerBit = "16.72nJ/bit".parse().unwrap();
        assert_eq!(per_bit * Bitrate::from_mbps(10), Power::from_microwatts(167_200));
        assert_eq!(EnergyPerBit::from_picojoules(u64::MAX) * Bitrate::MAX, Power::MAX);
    }

    #[test]
    fn a_power_needs_its_unit() {
        assert_eq!("2022.2mW".parse(), Ok(Power::from_microwatts(2_022_200)));
        assert_eq!("1.35W".parse(), Ok(Power::from_milliwatts(1350)));
        assert!("1350".parse::<Power>().is_err());
        assert!("-1mW".parse::<Power>().is_err());
        assert_eq!(Power::from_microwatts(2_022_200).to_string(), "2022.2mW");
        assert_eq!(Power::from_milliwatts(12_500).to_string(), "12.5W");
        assert_eq!(Power::ZERO.to_string(), "0.0mW");
    }
}
