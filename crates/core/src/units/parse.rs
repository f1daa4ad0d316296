//! Parser of values with units: a decimal number directly followed by its unit, and nothing else.
//!
//! `strtod` and similar functions were rejected: they accept `1e9`, `inf` and trailing text.

use alloc::string::{String, ToString};
use core::time::Duration;

/// Why a value with a unit was rejected. Prints the value and the expected form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseUnitError {
    /// The text is not a number followed by one of the known units.
    #[error("`{text}` is not {expected}")]
    Malformed {
        /// The rejected text.
        text: String,
        /// The expected form, with an example.
        expected: &'static str,
    },
    /// The value exceeds the range of the type.
    #[error("`{text}` is too large")]
    TooLarge {
        /// The rejected text.
        text: String,
    },
}

impl ParseUnitError {
    pub(super) fn too_large(text: &str) -> Self {
        Self::TooLarge { text: text.to_string() }
    }
}

/// Parses a duration: `50ms`, `1.5s`, `200us`, `10ns`, `2min`, `1h`, `30d`.
///
/// # Errors
/// If the text is not a number with one of these units, or the value exceeds 584 years.
pub fn parse_duration(s: &str) -> Result<Duration, ParseUnitError> {
    parse_with_unit(
        s,
        "a duration such as 50ms or 1.5s",
        &[
            ("ns", 1),
            ("us", 1000),
            ("ms", 1_000_000),
            ("s", 1_000_000_000),
            ("min", 60_000_000_000),
            ("h", 3_600_000_000_000),
            ("d", 86_400_000_000_000),
        ],
    )
    .map(Duration::from_nanos)
}

/// Parses a number and its unit, and returns the value in the smallest unit. Digits below the smallest unit are
/// dropped.
pub(super) fn parse_with_unit(
    text: &str,
    expected: &'static str,
    units: &[(&str, u64)],
) -> Result<u64, ParseUnitError> {
    let malformed = || ParseUnitError::Malformed { text: text.to_string(), expected };
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(malformed)?;
    let (number, unit) = text.split_at(split);
    let factor = units.iter().find(|(name, _)| *name == unit).ok_or_else(malformed)?.1;
    let (integer, fraction) = number.split_once('.').unwrap_or((number, "0"));
    if integer.is_empty() || fraction.is_empty() || fraction.contains('.') {
        return Err(malformed());
    }
    let integer: u64 = integer.parse().map_err(|_| ParseUnitError::too_large(text))?;
    let mut value = u128::from(integer) * u128::from(factor);
    let mut weight = u128::from(factor) * 1_000_000_000;
    // Digits beyond the 18th are below the resolution of every unit.
    for digit in fraction.bytes().take(18) {
        weight /= 10;
        value += u128::from(digit - b'0') * weight / 1_000_000_000;
    }
    u64::try_from(value).map_err(|_| ParseUnitError::too_large(text))
}

/// The text is none of the names that are accepted at this position.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown {kind} `{name}`; use {known}")]
pub struct UnknownName {
    pub(crate) name: String,
    /// Expected kind of value, as a noun.
    pub(crate) kind: &'static str,
    /// The accepted names, for the error message.
    pub(crate) known: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(parse_duration("50ms"), Ok(Duration::from_millis(50)));
        assert_eq!(parse_duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse_duration("0.25ms"), Ok(Duration::from_micros(250)));
        assert_eq!(parse_duration("30d"), Ok(Duration::from_secs(30 * 86_400)));
        for bad in ["50", "ms", "", "1.s", ".5s", "1.2.3s", "-1s", "1 s", "1e3s", "50msx"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_too_large_value_is_an_error_and_does_not_wrap() {
        assert!(matches!(parse_duration("999999999999h"), Err(ParseUnitError::TooLarge { .. })));
        assert!(matches!(parse_duration("99999999999999999999s"), Err(ParseUnitError::TooLarge { .. })));
    }
}
