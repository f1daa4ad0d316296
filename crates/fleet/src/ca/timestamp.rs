//! A second of the calendar, as it stands in certificates, lists and tokens: `2026-10-02T12:00:00Z` (RFC 3339, UTC).
//!
//! Certificates count in seconds, so a [`Stamp`] does, too. It lies between the years 1970 and 9999, the last that a
//! certificate can say (RFC 5280 §4.1.2.5); what would lead out of them ends at their edge.

use std::fmt::{self, Display};
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A second between 1970 and 9999.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UtcSeconds(u64);

impl UtcSeconds {
    /// The last second of 9999.
    pub const MAX: Self = Self(253_402_300_799);

    /// What this machine's clock says.
    pub fn now() -> Self {
        Self::of(SystemTime::now())
    }

    /// The second that this time is in.
    pub fn of(time: SystemTime) -> Self {
        Self::from_unix(time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs())
    }

    pub(crate) fn from_unix(seconds: u64) -> Self {
        Self(seconds.min(Self::MAX.0))
    }

    /// So much later; parts of a second are dropped.
    #[must_use]
    pub fn saturating_add(self, time: Duration) -> Self {
        Self::from_unix(self.0.saturating_add(time.as_secs()))
    }

    /// So much earlier; parts of a second are dropped.
    #[must_use]
    pub fn saturating_sub(self, time: Duration) -> Self {
        Self(self.0.saturating_sub(time.as_secs()))
    }

    /// How long it is since the beginning of 1970.
    pub fn since_epoch(self) -> Duration {
        Duration::from_secs(self.0)
    }
}

impl Display for UtcSeconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (day, second) = (self.0 / DAY, self.0 % DAY);
        let mut year = 1970;
        let mut left = day;
        while left >= days_of_year(year) {
            left -= days_of_year(year);
            year += 1;
        }
        let mut month = 1;
        while left >= days_of_month(year, month) {
            left -= days_of_month(year, month);
            month += 1;
        }
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        write!(f, "{year:04}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}Z", left + 1)
    }
}

impl FromStr for UtcSeconds {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        parse(text).ok_or_else(|| format!("`{text}` is no time such as 2026-10-02T12:00:00Z"))
    }
}

fn parse(text: &str) -> Option<UtcSeconds> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let [year, month, day] = parse_fields(date, '-', [4, 2, 2])?;
    let [hour, minute, second] = parse_fields(time, ':', [2, 2, 2])?;
    let in_calendar = (1970..=9999).contains(&year)
        && (1..=12).contains(&month)
        && (1..=days_of_month(year, month)).contains(&day);
    if !in_calendar || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let days: u64 = (1970..year).map(days_of_year).sum::<u64>()
        + (1..month).map(|month| days_of_month(year, month)).sum::<u64>()
        + (day - 1);
    Some(UtcSeconds(days * DAY + hour * 3600 + minute * 60 + second))
}

fn parse_fields(text: &str, between: char, widths: [usize; 3]) -> Option<[u64; 3]> {
    let parts: Vec<&str> = text.split(between).collect();
    let fits = |(part, width): (&&str, usize)| part.len() == width && part.bytes().all(|b| b.is_ascii_digit());
    if parts.len() != 3 || !parts.iter().zip(widths).all(fits) {
        return None;
    }
    parts.iter().map(|part| part.parse().ok()).collect::<Option<Vec<u64>>>()?.try_into().ok()
}

fn days_of_year(year: u64) -> u64 {
    if is_leap(year) { 366 } else { 365 }
}

fn days_of_month(year: u64, month: u64) -> u64 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if is_leap(year) => 29,
        2 => 28,
        _ => 31,
    }
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

const DAY: u64 = 86_400;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_is_written_as_the_calendar_has_it() {
        // `date -u -d @N +%FT%TZ`.
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
        ] {
            assert!(bad.parse::<UtcSeconds>().is_err(), "{bad}");
        }
    }

    #[test]
    fn what_leads_out_of_the_calendar_ends_at_its_edge() {
        assert_eq!(UtcSeconds(5).saturating_sub(Duration::from_secs(9)), UtcSeconds(0));
        assert_eq!(UtcSeconds(5).saturating_add(Duration::MAX), UtcSeconds::MAX);
    }
}
