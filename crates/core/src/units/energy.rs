//! Energy in joules, and energy per bit.

use core::fmt;
use core::ops::Mul;
use core::str::FromStr;

use serde::{Deserialize, Serialize};

use super::arithmetic::saturating_unit;
use super::parse::{ParseUnitError, parse_with_unit};
use super::{DataSize, Ratio};

/// An energy in nanojoules; reaches 18 GJ. Arithmetic saturates.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Energy(u64);

impl Energy {
    /// No energy.
    pub const ZERO: Self = Self(0);
    /// The largest value, more than any battery holds.
    pub const MAX: Self = Self(u64::MAX);

    /// `n` nanojoules.
    pub const fn from_nanojoules(n: u64) -> Self {
        Self(n)
    }

    /// `n` millijoules.
    pub const fn from_millijoules(n: u64) -> Self {
        Self(n.saturating_mul(1_000_000))
    }

    /// Nanojoules.
    pub const fn nanojoules(self) -> u64 {
        self.0
    }

    /// Joules, for reports and for formulas that need a float.
    pub fn as_joules_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// Whether the energy is zero.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// This share of the energy, rounded down.
    pub fn share(self, share: Ratio) -> Self {
        let energy = u128::from(self.0) * u128::from(share.ppm()) / 1_000_000;
        Self(u64::try_from(energy).unwrap_or(u64::MAX))
    }
}

saturating_unit!(Energy);

impl FromStr for Energy {
    type Err = ParseUnitError;

    /// `15.12J`, `300mJ`, `2kJ`.
    fn from_str(s: &str) -> Result<Self, ParseUnitError> {
        let units = [("nJ", 1), ("uJ", 1000), ("mJ", 1_000_000), ("J", 1_000_000_000), ("kJ", 1_000_000_000_000)];
        parse_with_unit(s, "an energy such as 15.12J or 300mJ", &units).map(Self)
    }
}

impl fmt::Display for Energy {
    /// Joules with three decimals: `15.120J`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}J", self.0 / 1_000_000_000, self.0 % 1_000_000_000 / 1_000_000)
    }
}

/// Energy needed for one bit, in picojoules. One nJ/bit is one mW per Mbit/s, the unit of the papers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EnergyPerBit(u64);

impl EnergyPerBit {
    /// No energy per bit.
    pub const ZERO: Self = Self(0);

    /// `n` picojoules per bit.
    pub const fn from_picojoules(n: u64) -> Self {
        Self(n)
    }

    /// Whether a bit needs no energy.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// Picojoules per bit.
    pub const fn picojoules(self) -> u64 {
        self.0
    }
}

saturating_unit!(EnergyPerBit);

impl Mul<DataSize> for EnergyPerBit {
    type Output = Energy;
    /// Energy for this number of bytes, rounded down to a nanojoule.
    fn mul(self, size: DataSize) -> Energy {
        // Eight bits per byte, a thousand picojoules per nanojoule.
        let nanojoules = u128::from(self.0) * u128::from(size.bytes()) / 125;
        Energy::from_nanojoules(u64::try_from(nanojoules).unwrap_or(u64::MAX))
    }
}

impl FromStr for EnergyPerBit {
    type Err = ParseUnitError;

    /// `16.72nJ/bit`, `900pJ/bit`.
    fn from_str(s: &str) -> Result<Self, ParseUnitError> {
        let units = [("pJ/bit", 1), ("nJ/bit", 1000), ("uJ/bit", 1_000_000)];
        parse_with_unit(s, "an energy per bit such as 16.72nJ/bit (1 nJ/bit is 1 mW per Mbit/s)", &units).map(Self)
    }
}

impl fmt::Display for EnergyPerBit {
    /// Nanojoules with three decimals: `16.720nJ/bit`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}nJ/bit", self.0 / 1000, self.0 % 1000)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::units::{Duration, Power};
    use std::string::ToString;

    #[test]
    fn energy_divided_by_time_is_power() {
        let tail: Energy = "15.12J".parse().unwrap();
        assert_eq!(tail / Duration::from_millis(11_200), Power::from_milliwatts(1350));
        assert_eq!(Energy::ZERO / Duration::ZERO, Power::ZERO);
        assert_eq!(Energy::MAX / Duration::ZERO, Power::MAX);
    }

    #[test]
    fn energy_per_bit_times_size_is_energy() {
        let price: EnergyPerBit = "16.72nJ/bit".parse().unwrap();
        // 8 Mbit.
        assert_eq!(price * DataSize::from_bytes(1_000_000), Energy::from_nanojoules(133_760_000));
        assert_eq!(EnergyPerBit::from_picojoules(u64::MAX) * DataSize::MAX, Energy::MAX);
        assert_eq!(price.to_string(), "16.720nJ/bit");
    }

    #[test]
    fn an_energy_needs_its_unit() {
        assert_eq!("300mJ".parse(), Ok(Energy::from_millijoules(300)));
        assert_eq!("15.12J".parse::<Energy>().unwrap().to_string(), "15.120J");
        assert!("15".parse::<Energy>().is_err());
        assert!("16.72mW".parse::<EnergyPerBit>().is_err());
    }
}
