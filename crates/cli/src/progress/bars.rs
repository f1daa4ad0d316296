//! Progress bars on a terminal: one bar per link and one for the total, redrawn in place.
//!
//! Progress may be reported at any rate; the bars are redrawn at most ten times per second.
//!
//! 1. A link's bar is its share of the file, so that the bars of the links add up to the total below them. Its percentage is its share of
//!    what all links have carried.
//! 2. A redraw is one write: cursor up, then each line followed by "erase to the end of the line", so that nothing flickers.
//! 3. No line is wider than the terminal, since a wrapped line would break the next redraw. The width is queried each time.
//! 4. If the links, the total and the cursor's line need more rows than the terminal has, only the total is shown.
//! 5. A single link has no bar of its own: its name is in front of the total.
//! 6. After [`Bars::clear`] the terminal looks as if nothing had been drawn.

use std::io::Write;
use std::time::{Duration, Instant};

use marline_download::{BatchProgress, Progress};
use marline_net::printable::printable;
use marline_terminal::screen;

use crate::output::sanitize;

use super::bar_style::BarStyle;
use super::figures::{clock, percent, rate, share, size};
use super::files;

/// Bars on standard error.
pub(crate) struct Bars {
    /// Number of lines that are on the screen now.
    drawn: usize,
    /// Time of the last redraw.
    last: Option<Instant>,
    /// Characters of the bars.
    style: BarStyle,
}

impl Bars {
    /// Creates the display; nothing is drawn yet.
    pub(crate) fn new() -> Self {
        Self { drawn: 0, last: None, style: BarStyle::of_locale() }
    }

    /// Redraws the progress of one file, unless the last redraw was less than [`REDRAW`] ago.
    pub(crate) fn progress(&mut self, progress: &Progress) {
        self.redraw(|ink, columns, rows| draw(progress, ink, columns, rows));
    }

    /// As [`Self::progress`], for several files.
    pub(crate) fn overview(&mut self, overview: &BatchProgress) {
        self.redraw(|ink, columns, rows| files::draw(overview, ink, columns, rows));
    }

    fn redraw(&mut self, lines: impl FnOnce(BarStyle, usize, usize) -> Vec<String>) {
        if self.last.is_some_and(|last| last.elapsed() < REDRAW) {
            return;
        }
        self.last = Some(Instant::now());
        let (columns, rows) = screen::size_of(std::io::stderr());
        let lines = lines(self.style, columns, rows);
        let mut text = self.cursor_up();
        for line in &lines {
            text += line;
            text += "\x1b[K\n";
        }
        // Erases the remaining lines if the previous drawing was longer.
        text += "\x1b[J";
        self.drawn = lines.len();
        write_stderr(&text);
    }

    /// Writes `text` as a permanent line; the next redraw is below it.
    pub(crate) fn print_message(&mut self, text: &str) {
        self.clear();
        write_stderr(&format!("marline: {}\n", sanitize(text)));
        self.last = None;
    }

    /// Erases the bars from the screen.
    pub(crate) fn clear(&mut self) {
        if self.drawn > 0 {
            write_stderr(&(self.cursor_up() + "\x1b[J"));
            self.drawn = 0;
        }
    }

    /// Escape sequence that moves the cursor to the first drawn line.
    fn cursor_up(&self) -> String {
        match self.drawn {
            0 => "\r".into(),
            n => format!("\r\x1b[{n}A"),
        }
    }
}

/// The lines of one drawing, none of them wider than `columns - 1`.
fn draw(progress: &Progress, ink: BarStyle, columns: usize, rows: usize) -> Vec<String> {
    let names = progress.links.iter().map(|link| link.name.chars().count()).max().unwrap_or(0).clamp(3, 15);
    let carried: u64 = progress.links.iter().map(|link| link.bytes).sum();
    let width = columns.saturating_sub(names + FIGURES).min(50);
    // On a narrow terminal the bar is dropped first, then the size, and the rate last.
    let narrow = width == 0;
    let mut lines = Vec::new();
    let only = match progress.links.as_slice() {
        [link] => Some(link),
        _ => None,
    };
    if only.is_none() && progress.links.len() + 1 < rows {
        for link in &progress.links {
            let bar = ink.bar(link.bytes, progress.total, width);
            let share = share(link.bytes, carried);
            let mut line = if narrow {
                format!("{:<names$} {share:>3}% {:>12}", link.name, rate(link.rate))
            } else {
                let (size, rate) = (size(link.bytes), rate(link.rate));
                format!("{:<names$} {bar} {size:>8} {rate:>12} {share:>3}%", link.name)
            };
            if link.state != "up" {
                line += &format!("  {}", link.state);
            }
            lines.push(line);
        }
    }
    let bar = ink.bar(progress.received, progress.total, width);
    let name = only.map_or("all", |link| link.name.as_str());
    let (done, speed) = (size(progress.received), rate(progress.rate));
    let left = || progress.eta_s.map_or_else(|| "--:--".into(), clock);
    let mut all = match (progress.checked_bytes, progress.total) {
        (Some(checked), total) => {
            let share = percent(checked, total.unwrap_or(progress.received));
            if narrow {
                format!("{share:>3}% checking")
            } else {
                format!("{name:<names$} {bar} {done:>8}  checking {share:>3}%")
            }
        }
        (None, Some(total)) if narrow => {
            format!("{name:<names$} {:>3}% {speed:>12}  {} left", percent(progress.received, total), left())
        }
        (None, Some(total)) => {
            let share = percent(progress.received, total);
            format!("{name:<names$} {bar} {done:>8} {speed:>12} {share:>3}%  {} left", left())
        }
        (None, None) if narrow => format!("{name:<names$} {done:>8} {speed:>12}"),
        (None, None) => format!("{name:<names$} {bar} {done:>8} {speed:>12}"),
    };
    if let Some(link) = only.filter(|link| link.state != "up" && progress.checked_bytes.is_none()) {
        all += &format!("  {}", link.state);
    }
    lines.push(all);
    for line in &mut lines {
        *line = printable(line).chars().take(columns.saturating_sub(1)).collect();
    }
    lines
}

fn write_stderr(text: &str) {
    let mut out = std::io::stderr().lock();
    // Errors are ignored: a closed terminal must not end a download.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Shortest time between two redraws. Our choice: it looks smooth, and drawing three lines costs 20 µs.
const REDRAW: Duration = Duration::from_millis(100);

/// Columns of a line without name and bar: `  999.9MB  999.9 Mbit/s 100%  0:00:00 left`, and the last column, which stays empty.
const FIGURES: usize = 43;

#[cfg(test)]
mod tests {
    use super::*;
    use marline_core::link::LinkKind;
    use marline_download::LinkProgress;

    fn two_links() -> Progress {
        let link = |name: &str, bytes, rate, state: &str| LinkProgress {
            name: name.into(),
            kind: LinkKind::Wifi,
            metered: false,
            bytes,
            rate,
            state: state.into(),
        };
        Progress {
            total: Some(250_000_000),
            received: 100_000_000,
            rate: 78.4e6,
            eta_s: Some(15.3),
            links: vec![
                link("wlan0", 60_000_000, 48.3e6, "up"),
                link("wwan0", 40_000_000, 30.1e6, "banned: its response is 312 bytes long (a captive portal?)"),
            ],
            ..Progress::default()
        }
    }

    #[test]
    fn each_link_and_the_total_have_a_line() {
        let lines = draw(&two_links(), BarStyle::Ascii, 80, 24);
        assert_eq!(lines.len(), 3);
        assert_eq!(lines[0], "wlan0 =======>                           60.0MB  48.3 Mbit/s  60%");
        assert!(lines[1].contains("40%  banned: "), "{}", lines[1]);
        assert!(lines[2].ends_with("100.0MB  78.4 Mbit/s  40%  0:15 left"), "{}", lines[2]);
    }

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        for columns in 0..200 {
            for ink in [BarStyle::Ascii, BarStyle::Unicode] {
                for line in draw(&two_links(), ink, columns, 24) {
                    assert!(line.chars().count() <= columns.saturating_sub(1), "{columns}: {line}");
                }
            }
        }
    }

    #[test]
    fn a_narrow_terminal_shows_the_percentage_before_all_else() {
        for columns in [24, 30, 40, 47] {
            for (line, share) in draw(&two_links(), BarStyle::Ascii, columns, 24).iter().zip(["60%", "40%", "40%"])
            {
                assert!(line.contains(share), "{columns}: {line}");
            }
        }
    }

    #[test]
    fn verification_of_the_checksum_is_shown_as_checking() {
        let progress = Progress { checked_bytes: Some(25_000_000), received: 250_000_000, ..two_links() };
        for columns in [30, 80] {
            let lines = draw(&progress, BarStyle::Ascii, columns, 24);
            assert!(lines[2].contains("checking") && lines[2].contains("10%"), "{}", lines[2]);
        }
    }

    #[test]
    fn a_terminal_with_few_rows_shows_only_the_total() {
        assert_eq!(draw(&two_links(), BarStyle::Ascii, 80, 3).len(), 1);
        assert_eq!(draw(&two_links(), BarStyle::Ascii, 80, 4).len(), 3);
    }

    #[test]
    fn a_single_link_has_one_bar() {
        let mut progress = two_links();
        progress.links.remove(0);
        let lines = draw(&progress, BarStyle::Ascii, 200, 24);
        assert_eq!(lines.len(), 1);
        assert!(lines[0].starts_with("wwan0 ===") && lines[0].contains(" left  banned: "), "{}", lines[0]);
    }
}
