//! Operators between units of different kinds: size, rate and time; energy, power and time.
//!
//! Each unit knows only itself and its fractions. What connects two of them is here, so that no unit depends on another
//! one that depends on it.

use core::ops::{Div, Mul};
use core::time::Duration;

use super::energy::{Energy, EnergyPerBit};
use super::power::Power;
use super::rate::Bitrate;
use super::size::DataSize;

impl Div<Duration> for DataSize {
    type Output = Bitrate;
    /// The mean rate, rounded down. Over a time of zero it is the maximum, or zero if there are no bytes.
    fn div(self, time: Duration) -> Bitrate {
        let bits = u128::from(self.bytes()) * 8 * 1_000_000_000;
        match bits.checked_div(time.as_nanos()) {
            Some(rate) => Bitrate::from_bits_per_sec(u64::try_from(rate).unwrap_or(u64::MAX)),
            None if self.is_zero() => Bitrate::ZERO,
            None => Bitrate::MAX,
        }
    }
}

impl Div<Bitrate> for DataSize {
    type Output = Duration;
    /// Time that the bytes take at this rate, rounded up to a nanosecond. At rate zero it is the longest duration,
    /// or zero for no bytes.
    fn div(self, rate: Bitrate) -> Duration {
        if self.is_zero() {
            return Duration::ZERO;
        }
        let bits = u128::from(self.bytes()) * 8 * 1_000_000_000;
        match u128::from(rate.bits_per_sec()) {
            0 => Duration::MAX,
            rate => u64::try_from(bits.div_ceil(rate)).map_or(Duration::MAX, Duration::from_nanos),
        }
    }
}

impl Mul<Duration> for Bitrate {
    type Output = DataSize;
    /// Number of bytes that the rate carries in this time, rounded down.
    fn mul(self, time: Duration) -> DataSize {
        #[expect(clippy::suspicious_arithmetic_impl, reason = "bits to bytes and nanoseconds to seconds")]
        let bytes = u128::from(self.bits_per_sec()).saturating_mul(time.as_nanos()) / 8_000_000_000;
        DataSize::from_bytes(u64::try_from(bytes).unwrap_or(u64::MAX))
    }
}

impl Div<Duration> for Energy {
    type Output = Power;
    /// The mean power, rounded down. Over a time of zero it is the maximum, or zero if there is no energy.
    fn div(self, time: Duration) -> Power {
        // Nanojoules divided by nanoseconds are watts.
        #[expect(clippy::suspicious_arithmetic_impl, reason = "watts to microwatts")]
        let microwatts = (u128::from(self.nanojoules()) * 1_000_000).checked_div(time.as_nanos());
        match microwatts {
            Some(power) => Power::from_microwatts(u64::try_from(power).unwrap_or(u64::MAX)),
            None if self.is_zero() => Power::ZERO,
            None => Power::MAX,
        }
    }
}

impl Mul<Duration> for Power {
    type Output = Energy;
    /// Energy drawn in this time, rounded down to a nanojoule.
    fn mul(self, time: Duration) -> Energy {
        // Microwatts times nanoseconds are femtojoules.
        #[expect(clippy::suspicious_arithmetic_impl, reason = "femtojoules to nanojoules")]
        let nanojoules = u128::from(self.microwatts()).saturating_mul(time.as_nanos()) / 1_000_000;
        Energy::from_nanojoules(u64::try_from(nanojoules).unwrap_or(u64::MAX))
    }
}

impl Mul<Bitrate> for EnergyPerBit {
    type Output = Power;
    /// Power drawn at a steady rate, rounded down to a microwatt.
    fn mul(self, rate: Bitrate) -> Power {
        // Picojoules per bit times bits per second are picowatts.
        let microwatts = u128::from(self.picojoules()) * u128::from(rate.bits_per_sec()) / 1_000_000;
        Power::from_microwatts(u64::try_from(microwatts).unwrap_or(u64::MAX))
    }
}
