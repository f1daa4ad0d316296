//! Exact text of values, which parses back to the same value.
//!
//! The largest unit without a fraction is used: `1500kbit/s`, not `1.5Mbit/s`. The `Display` of the units is made
//! for people and rounds.

use marline_core::units::{Bitrate, DataSize, Duration};

/// The rate, without rounding.
pub(super) fn format_rate(rate: Bitrate) -> String {
    format_exact(
        rate.bits_per_sec(),
        &[("Gbit/s", 1_000_000_000), ("Mbit/s", 1_000_000), ("kbit/s", 1000), ("bit/s", 1)],
    )
}

/// The duration, without rounding.
pub(super) fn format_duration(time: Duration) -> String {
    let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    format_exact(nanos, &[("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1000), ("ns", 1)])
}

/// The size, without rounding.
pub(super) fn format_size(size: DataSize) -> String {
    format_exact(size.bytes(), &[("MiB", 1 << 20), ("MB", 1_000_000), ("KiB", 1 << 10), ("kB", 1000), ("B", 1)])
}

/// Uses the first unit that yields a whole number.
fn format_exact(value: u64, units: &[(&str, u64)]) -> String {
    let exact_unit = units.iter().find(|(_, unit)| value.is_multiple_of(*unit));
    exact_unit.map_or_else(|| value.to_string(), |(name, unit)| format!("{}{name}", value / unit))
}
