//! Progress without a terminal: at most one line per second on standard error, suitable for log files and `grep`.

use marline_download::{BatchProgress, Progress};

use super::figures::{clock, percent, rate, size};
use super::files;

/// One line per second on standard error.
pub(crate) struct Lines {
    /// Second of the last line, counted from the start of the download.
    last: u64,
}

impl Lines {
    /// The first line appears after one second, so a short download prints only its summary.
    pub(crate) fn new() -> Self {
        Self { last: 0 }
    }

    /// Writes the progress of one file if a new second has begun.
    pub(crate) fn progress(&mut self, progress: &Progress) {
        let second = progress.elapsed_s.max(0.0) as u64;
        if second > self.last {
            self.last = second;
            self.print_message(&text(progress));
        }
    }

    /// As [`Self::progress`], for several files.
    pub(crate) fn overview(&mut self, overview: &BatchProgress) {
        let second = overview.elapsed_s.max(0.0) as u64;
        if second > self.last {
            self.last = second;
            self.print_message(&files::text(overview));
        }
    }

    /// Writes `text` as a line.
    pub(crate) fn print_message(&mut self, text: &str) {
        crate::output::print_notice(text);
    }
}

/// `12.3MB of 250.0MB (4%) at 78.4 Mbit/s, ETA 0:25; wlan0 48.3 Mbit/s, wwan0 30.1 Mbit/s`.
fn text(progress: &Progress) -> String {
    if let Some(checked) = progress.checked_bytes {
        let total = progress.total.unwrap_or(progress.received);
        return format!("checking: {} of {} ({}%)", size(checked), size(total), percent(checked, total));
    }
    let mut text = match progress.total {
        Some(total) => {
            format!("{} of {} ({}%)", size(progress.received), size(total), percent(progress.received, total))
        }
        None => size(progress.received),
    };
    text += &format!(" at {}", rate(progress.rate));
    if let Some(eta) = progress.eta_s {
        text += &format!(", ETA {}", clock(eta));
    }
    let mut separator = ';';
    for link in &progress.links {
        text += &format!("{separator} {} {}", link.name, rate(link.rate));
        if link.state != "up" {
            text += &format!(" ({})", link.state);
        }
        separator = ',';
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use marline_core::link::LinkKind;
    use marline_download::LinkProgress;

    #[test]
    fn a_line_has_the_total_and_each_link() {
        let link = |name: &str, rate, state: &str| LinkProgress {
            name: name.into(),
            kind: LinkKind::Wifi,
            metered: false,
            bytes: 1,
            rate,
            state: state.into(),
        };
        let progress = Progress {
            total: Some(250_000_000),
            received: 12_300_000,
            rate: 78.4e6,
            eta_s: Some(25.0),
            links: vec![link("wlan0", 48.3e6, "up"), link("wwan0", 30.1e6, "silent")],
            ..Progress::default()
        };
        assert_eq!(
            text(&progress),
            "12.3MB of 250.0MB (4%) at 78.4 Mbit/s, ETA 0:25; wlan0 48.3 Mbit/s, wwan0 30.1 Mbit/s (silent)"
        );
    }

    #[test]
    fn verification_of_the_checksum_is_shown_as_checking() {
        let progress = Progress { received: 4_000_000, checked_bytes: Some(1_000_000), ..Progress::default() };
        assert_eq!(text(&progress), "checking: 1.0MB of 4.0MB (25%)");
    }

    #[test]
    fn without_a_size_there_is_no_share() {
        let progress = Progress { received: 5_000_000, rate: 1e6, ..Progress::default() };
        assert_eq!(text(&progress), "5.0MB at 1.0 Mbit/s");
    }
}
