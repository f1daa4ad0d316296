//! Share or quotient in parts per million.

use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Serialize};

use super::parse::{ParseUnitError, parse_with_unit};

/// Parts per million, from 0 to about 4294 times the whole. Used for loss rates, shares and quotients of times.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Ratio(u32);

impl Ratio {
    /// Zero percent.
    pub const ZERO: Self = Self(0);
    /// The whole (100 %).
    pub const ONE: Self = Self(1_000_000);

    /// `n` parts per million.
    pub const fn from_ppm(n: u32) -> Self {
        Self(n)
    }

    /// `n` percent.
    pub const fn from_percent(n: u32) -> Self {
        Self(n.saturating_mul(10_000))
    }

    /// `part / total`, rounded down; zero if `total` is zero.
    pub fn of(part: u64, total: u64) -> Self {
        let ppm = (u128::from(part) * 1_000_000).checked_div(u128::from(total)).unwrap_or(0);
        Self(u32::try_from(ppm).unwrap_or(u32::MAX))
    }

    /// Parts per million.
    pub const fn ppm(self) -> u32 {
        self.0
    }

    /// As a fraction, for reports and formulas.
    pub fn as_f64(self) -> f64 {
        f64::from(self.0) / 1e6
    }

    /// The difference to the whole; zero if this exceeds the whole.
    pub const fn complement(self) -> Self {
        Self(1_000_000_u32.saturating_sub(self.0))
    }
}

impl FromStr for Ratio {
    type Err = ParseUnitError;

    /// Accepts `0.5%` and `300ppm`.
    fn from_str(s: &str) -> Result<Self, ParseUnitError> {
        let ppm = parse_with_unit(s, "a share such as 0.5%", &[("%", 10_000), ("ppm", 1)])?;
        u32::try_from(ppm).map(Self).map_err(|_| ParseUnitError::too_large(s))
    }
}

impl fmt::Debug for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Ratio {
    /// Percent with up to four decimals: `0.5%`, `100%`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (integer, mut part, mut digits) = (self.0 / 10_000, self.0 % 10_000, 4);
        if part == 0 {
            return write!(f, "{integer}%");
        }
        while part % 10 == 0 {
            part /= 10;
            digits -= 1;
        }
        write!(f, "{integer}.{part:0digits$}%")
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::string::ToString;

    #[test]
    fn a_share_is_written_in_percent() {
        assert_eq!("0.5%".parse(), Ok(Ratio::from_ppm(5000)));
        assert_eq!(Ratio::from_ppm(5000).to_string(), "0.5%");
        assert_eq!(Ratio::from_ppm(10_010).to_string(), "1.001%");
        assert_eq!(Ratio::ONE.to_string(), "100%");
        assert!("0.5".parse::<Ratio>().is_err());
    }

    #[test]
    fn a_part_of_zero_is_zero() {
        assert_eq!(Ratio::of(5, 0), Ratio::ZERO);
        assert_eq!(Ratio::of(1, 3).ppm(), 333_333);
        assert_eq!(Ratio::of(u64::MAX, 1).ppm(), u32::MAX);
    }
}
