//! Number of bytes.

use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Serialize};

use super::arithmetic::{saturating_fraction, saturating_multiple, saturating_unit};
use super::parse::{ParseUnitError, parse_with_unit};
use super::ratio::Ratio;

/// A number of bytes. Arithmetic saturates.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DataSize(u64);

impl DataSize {
    /// Zero bytes.
    pub const ZERO: Self = Self(0);
    /// The largest value.
    pub const MAX: Self = Self(u64::MAX);

    /// `n` bytes.
    pub const fn from_bytes(n: u64) -> Self {
        Self(n)
    }

    /// `n` KiB (1024 bytes each).
    pub const fn from_kib(n: u64) -> Self {
        Self(n.saturating_mul(1024))
    }

    /// `n` MiB (1024 KiB each).
    pub const fn from_mib(n: u64) -> Self {
        Self(n.saturating_mul(1024 * 1024))
    }

    /// The number of bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// Whether there are zero bytes.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// This share of the bytes, rounded down.
    pub fn share(self, share: Ratio) -> Self {
        let bytes = u128::from(self.0) * u128::from(share.ppm()) / 1_000_000;
        Self(u64::try_from(bytes).unwrap_or(u64::MAX))
    }
}

saturating_unit!(DataSize);
saturating_multiple!(DataSize);
saturating_fraction!(DataSize);

impl FromStr for DataSize {
    type Err = ParseUnitError;

    /// `500KiB`, `4MB`, `1.5GiB`, `800B`; a letter alone is a power of 1024: `2M` is `2MiB`.
    fn from_str(s: &str) -> Result<Self, ParseUnitError> {
        parse_with_unit(
            s,
            "a size such as 500KiB or 4MB",
            &[
                ("B", 1),
                ("kB", 1000),
                ("KB", 1000),
                ("MB", 1_000_000),
                ("GB", 1_000_000_000),
                ("TB", 1_000_000_000_000),
                ("KiB", 1 << 10),
                ("MiB", 1 << 20),
                ("GiB", 1 << 30),
                ("TiB", 1 << 40),
                // Like curl, wget and dd.
                ("k", 1 << 10),
                ("K", 1 << 10),
                ("M", 1 << 20),
                ("G", 1 << 30),
                ("T", 1 << 40),
            ],
        )
        .map(Self)
    }
}

impl fmt::Display for DataSize {
    /// The largest decimal unit that leaves at least 1, with one decimal: `4.0MB`, `512B`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, name) = match self.0 {
            0..1000 => return write!(f, "{}B", self.0),
            1000..1_000_000 => (1000, "kB"),
            1_000_000..1_000_000_000 => (1_000_000, "MB"),
            1_000_000_000..1_000_000_000_000 => (1_000_000_000, "GB"),
            _ => (1_000_000_000_000_u64, "TB"),
        };
        write!(f, "{}.{}{name}", self.0 / unit, self.0 % unit * 10 / unit)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::units::{Bitrate, Duration};
    use std::string::ToString;

    #[test]
    fn size_divided_by_time_and_multiplied_again_is_the_same_size() {
        let size = DataSize::from_bytes(1_250_000);
        let rate = size / Duration::from_millis(100);
        assert_eq!(rate, Bitrate::from_mbps(100));
        assert_eq!(rate * Duration::from_millis(100), size);
        assert_eq!(size / rate, Duration::from_millis(100));
    }

    #[test]
    fn division_by_zero_is_defined() {
        assert_eq!(DataSize::ZERO / Duration::ZERO, Bitrate::ZERO);
        assert_eq!(DataSize::from_bytes(1) / Duration::ZERO, Bitrate::MAX);
        assert_eq!(DataSize::from_bytes(1) / Bitrate::ZERO, Duration::MAX);
        assert_eq!(DataSize::ZERO / Bitrate::ZERO, Duration::ZERO);
        assert_eq!(DataSize::MAX + DataSize::MAX, DataSize::MAX);
    }

    #[test]
    fn kilo_is_1000_and_kibi_1024() {
        assert_eq!("500KiB".parse(), Ok(DataSize::from_bytes(512_000)));
        assert_eq!("4MB".parse(), Ok(DataSize::from_bytes(4_000_000)));
        assert_eq!("1.5GiB".parse(), Ok(DataSize::from_bytes(1_610_612_736)));
        assert!("500".parse::<DataSize>().is_err());
        assert!("-1MB".parse::<DataSize>().is_err());
    }

    #[test]
    fn prints_one_decimal() {
        assert_eq!(DataSize::ZERO.to_string(), "0B");
        assert_eq!(DataSize::from_bytes(999).to_string(), "999B");
        assert_eq!(DataSize::from_bytes(4_350_000).to_string(), "4.3MB");
        assert_eq!(DataSize::MAX.to_string(), "18446744.0TB");
    }
}
