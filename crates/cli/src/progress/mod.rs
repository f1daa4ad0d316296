//! Progress display of downloads, on standard error: standard output may carry the file itself.
//!
//! 1. On a terminal: one bar per link and one for the total, or one line per file and one for the total ([`files`]), redrawn
//!    at most ten times per second ([`bars`]).
//! 2. Otherwise: one line per second ([`lines`]).
//! 3. With `--quiet`: nothing. Errors are printed elsewhere.
//! 4. Messages are permanent lines that the bars never overwrite.
//! 5. A closed standard error never ends a download.
//!
//! The library indicatif (0.18) is not used. It would replace the cursor movement, the rate limit and the bar itself, about 75
//! of the 600 lines here without tests. The other lines decide what is shown and what is left out on a narrow or short
//! terminal; they would remain, as messages of a bar whose template changes with each width. It would add three crates, and
//! three properties would be lost:
//!
//! - It writes to standard error by itself, not through the functions that escape text (`tests/architecture/main.rs`, rule 7). With a
//!   terminal implementation of our own (`TermLike`), the cursor movement would stay here.
//! - If there are more lines than rows, it drops the last ones. Here the last line is the total, which must stay visible.
//! - It pads each line with spaces up to the last column. If the terminal becomes narrower, all of these lines wrap, and the
//!   next redraw starts too low.

mod bar_style;
mod bars;
mod figures;
mod files;
mod lines;

use std::io::IsTerminal;

use marline_download::{BatchProgress, DownloadObserver, Progress, Report};

pub(crate) use bars::Bars;
pub(crate) use figures::{rate, size, time};
pub(crate) use lines::Lines;

/// Progress display, chosen by `--quiet` and the kind of standard error.
pub(crate) enum Viewer {
    /// No output.
    Quiet,
    /// Standard error is a file, a pipe or a dumb terminal.
    Lines(Lines),
    /// Standard error is a terminal.
    Bars(Bars),
}

impl Viewer {
    /// Creates the display.
    pub(crate) fn new(quiet: bool) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        match (quiet, terminal && !dumb) {
            (true, _) => Self::Quiet,
            (false, true) => Self::Bars(Bars::new()),
            (false, false) => Self::Lines(Lines::new()),
        }
    }

    /// Erases the bars. Must be called before the command returns, also on failure.
    pub(crate) fn clear(&mut self) {
        if let Self::Bars(bars) = self {
            bars.clear();
        }
    }

    /// Shows the progress of a batch; a batch of one file is shown with one bar per link.
    pub(crate) fn overview(&mut self, overview: &BatchProgress) {
        match (&mut *self, overview.files.as_slice()) {
            (Self::Quiet, _) => {}
            (_, [file]) if overview.total == 1 => self.on_progress(&file.progress),
            (_, []) if overview.total == 1 => {}
            (Self::Lines(lines), _) => lines.overview(overview),
            (Self::Bars(bars), _) => bars.overview(overview),
        }
    }

    /// Prints the summary of a download in one line.
    pub(crate) fn summary(&mut self, report: &Report) {
        self.clear();
        if !matches!(self, Self::Quiet) {
            self.on_message(&figures::summary(report));
        }
    }
}

impl DownloadObserver for Viewer {
    fn on_progress(&mut self, progress: &Progress) {
        match self {
            Self::Quiet => {}
            Self::Lines(lines) => lines.progress(progress),
            Self::Bars(bars) => bars.progress(progress),
        }
    }

    fn on_message(&mut self, text: &str) {
        match self {
            Self::Quiet => {}
            Self::Lines(lines) => lines.print_message(text),
            Self::Bars(bars) => bars.print_message(text),
        }
    }
}
