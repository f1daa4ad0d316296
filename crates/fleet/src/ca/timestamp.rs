//! Time in whole seconds as certificates, lists and tokens contain it: `2026-10-02T12:00:00Z` (RFC 3339, UTC).
//!
//! Certificates count in seconds, so [`UtcSeconds`] does as well. Its range is the years 1970 to 9999, the last that a
//! certificate can represent (RFC 5280 §4.1.2.5). Arithmetic saturates at these limits.

use std::fmt::{self, Display};
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// A second between 1970 and 9999.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UtcSeconds(u64);

impl UtcSeconds {
    /// The last second of 9999.
    pub const MAX: Self = Self(253_402_300_799);

    /// The present time of this host's clock.
    pub fn now() -> Self {
        Self::of(SystemTime::now())
    }

    /// The second that contains this time.
    pub fn of(time: SystemTime) -> Self {
        Self::from_unix(time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs())
    }

    pub(crate) fn from_unix(seconds: u64) -> Self {
        Self(seconds.min(Self::MAX.0))
    }

    /// Adds a duration, without its fraction of a second.
    #[must_use]
    pub fn saturating_add(self, time: Duration) -> Self {
        Self::from_unix(self.0.saturating_add(time.as_secs()))
    }

    /// Subtracts a duration, without its fraction of a second.
    #[must_use]
    pub fn saturating_sub(self, time: Duration) -> Self {
        Self(self.0.saturating_sub(time.as_secs()))
    }

    /// Time since the beginning of 1970.
    pub fn since_epoch(self) -> Duration {
        Duration::from_secs(self.0)
    }
}

impl Display for UtcSeconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = OffsetDateTime::from_unix_timestamp(self.0.cast_signed()).map_err(|_| fmt::Error)?;
        f.write_str(&time.format(&Rfc3339).map_err(|_| fmt::Error)?)
    }
}

impl FromStr for UtcSeconds {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let time = OffsetDateTime::parse(text, &Rfc3339).ok();
        let parsed = time.and_then(|time| u64::try_from(time.unix_timestamp()).ok()).map(Self::from_unix);
        // RFC 3339 also allows fractions, leap seconds and other offsets. Here each second has exactly one text.
        parsed
            .filter(|parsed| parsed.to_string() == text)
            .ok_or_else(|| format!("`{text}` is not a time of the form 2026-10-02T12:00:00Z"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_formatted_and_parsed_as_calendar_date() {
        // Expected values from `date -u -d @N +%FT%TZ`.
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_759_406_399, "2025-10-02T11:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (253_402_300_799, "9999-12-31T23:59:59Z"),
        ] {
            assert_eq!(UtcSeconds(seconds).to_string(), text);
            assert_eq!(text.parse(), Ok(UtcSeconds(seconds)));
        }
        for bad in [
            "",
            "2025-10-02",
            "2025-02-29T00:00:00Z",
            "2025-10-02T24:00:00Z",
            "2025-10-02T11:59:60Z",
            "2025-1-02T11:59:59Z",
            "2025-10-02T11:59:59",
            "1969-12-31T23:59:59Z",
            "+025-10-02T11:59:59Z",
            "2025-10-02T11:59:59.5Z",
            "2025-10-02T11:59:59+00:00",
            "2025-10-02T11:59:59-00:00",
            "2025-10-02t11:59:59z",
            "2025-10-02 11:59:59Z",
            "2016-12-31T23:59:60Z",
            "10000-01-01T00:00:00Z",
        ] {
            assert!(bad.parse::<UtcSeconds>().is_err(), "{bad}");
        }
    }

    #[test]
    fn arithmetic_saturates_at_the_limits_of_the_calendar() {
        assert_eq!(UtcSeconds(5).saturating_sub(Duration::from_secs(9)), UtcSeconds(0));
        assert_eq!(UtcSeconds(5).saturating_add(Duration::MAX), UtcSeconds::MAX);
    }
}
