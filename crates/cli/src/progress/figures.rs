//! Formats rates, sizes, shares and times in few characters for progress and status output.
//!
//! The `Display` of the unit types is meant for logs and options. Here the width matters, so that columns stay aligned while
//! the numbers change.

use marline_core::units::DataSize;
use marline_download::Report;

/// `78.4 Mbit/s`, at most 12 characters; 13 just below 1 Gbit/s, where it is rounded up to `1000.0 Mbit/s`, and from 100 Gbit/s.
pub(crate) fn rate(bits_per_sec: f64) -> String {
    // Not `max(0.0)`: an empty sum of floats is -0.0, and `max` may return either zero, so "-0 kbit/s" could appear.
    let rate = if bits_per_sec.is_finite() && bits_per_sec > 0.0 { bits_per_sec } else { 0.0 };
    match rate {
        r if r < 1e6 => format!("{:.0} kbit/s", r / 1e3),
        r if r < 1e9 => format!("{:.1} Mbit/s", r / 1e6),
        r => format!("{:.2} Gbit/s", r / 1e9),
    }
}

/// `41.2MB`, in units of 1000.
pub(crate) fn size(bytes: u64) -> String {
    DataSize::from_bytes(bytes).to_string()
}

/// `0.8 s`, `12 s`, `3 min 5 s`, `2 h 4 min`.
pub(crate) fn time(seconds: f64) -> String {
    let whole_seconds = seconds.max(0.0) as u64;
    match whole_seconds {
        0..10 => format!("{seconds:.1} s"),
        10..60 => format!("{whole_seconds} s"),
        60..3600 => format!("{} min {} s", whole_seconds / 60, whole_seconds % 60),
        _ => format!("{} h {} min", whole_seconds / 3600, whole_seconds / 60 % 60),
    }
}

/// `part` in percent of `total`, rounded to the nearest, so that the shares of two links add up to 100 (101 if both end in exactly .5).
/// 0 if `total` is 0.
pub(super) fn share(part: u64, total: u64) -> u64 {
    let share = (u128::from(part) * 100 + u128::from(total) / 2).checked_div(u128::from(total)).unwrap_or(0);
    u64::try_from(share).map_or(100, |share| share.min(100))
}

/// `part` in percent of `total`, rounded down, so that 100 means complete. 0 if `total` is 0.
pub(super) fn percent(part: u64, total: u64) -> u64 {
    let share = (u128::from(part) * 100).checked_div(u128::from(total)).unwrap_or(0);
    u64::try_from(share).map_or(100, |share| share.min(100))
}

/// `0:19`, `12:05`, `3:07:00`; `--:--` for 100 hours and longer, and for a time that is unknown.
pub(super) fn clock(seconds: f64) -> String {
    if !(0.0..359_999.5).contains(&seconds) {
        return "--:--".into();
    }
    let s = seconds.round() as u64;
    match s / 3600 {
        0 => format!("{}:{:02}", s / 60, s % 60),
        h => format!("{h}:{:02}:{:02}", s / 60 % 60, s % 60),
    }
}

/// The final line of a download: the path, size, time and rate, and the share of each link.
pub(super) fn summary(report: &Report) -> String {
    let carried: u64 = report.links.iter().map(|link| link.bytes).sum();
    let mut links: Vec<String> = Vec::new();
    for link in &report.links {
        links.push(format!("{} {}%", link.name, share(link.bytes, carried)));
    }
    let path = report.path.as_deref().unwrap_or("standard output");
    if report.links.is_empty() && report.resumed_bytes == report.bytes {
        return format!("{path}: {}, already complete from an earlier run", size(report.bytes));
    }
    let resumed = match report.resumed_bytes {
        0 => String::new(),
        bytes => format!(", {} of it from an earlier run", size(bytes)),
    };
    format!(
        "{path}: {}{resumed} in {:.2} s, {} ({})",
        size(report.bytes),
        report.seconds,
        rate(report.goodput_mbps * 1e6),
        links.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short_and_never_fail() {
        assert_eq!(rate(78_400_000.0), "78.4 Mbit/s");
        assert_eq!(rate(0.0), "0 kbit/s");
        assert_eq!(rate(f64::NAN), "0 kbit/s");
        assert_eq!(rate(1.25e9), "1.25 Gbit/s");
        assert_eq!(clock(19.4), "0:19");
        assert_eq!(clock(11_220.0), "3:07:00");
        assert_eq!(clock(f64::INFINITY), "--:--");
        assert_eq!(clock(-1.0), "--:--");
        assert_eq!(percent(1, 0), 0);
        assert_eq!(percent(u64::MAX, 1), 100);
        assert_eq!((percent(999, 1000), share(999, 1000)), (99, 100));
        assert_eq!((share(586, 1000), share(414, 1000), share(1, 0)), (59, 41, 0));
    }

    #[test]
    fn times_are_short() {
        assert_eq!([0.8, 12.4, 185.0, 7440.0].map(time), ["0.8 s", "12 s", "3 min 5 s", "2 h 4 min"]);
    }
}
