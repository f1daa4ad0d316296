//! What a person sees while a download runs.
//!
//! [`Progress`] values and lines go in; text goes to standard error, never to standard output, which may carry the
//! file itself.
//!
//! 1. On a terminal: one bar per link and one in all, or one per file and one in all ([`files`]), drawn again at most ten
//!    times a second ([`bars`]).
//! 2. Elsewhere: one line per second ([`lines`]).
//! 3. With `--quiet`: nothing at all. Errors are not progress and are printed elsewhere.
//! 4. Lines that the user should read once are never overdrawn.
//! 5. A standard error that is gone never ends a download.
//!
//! indicatif (0.18) was not used. It would replace the cursor movement, the rate limit and the bar itself: about 75 of the 586
//! lines here without tests. The rest chooses what a line says and what it leaves out on a narrow or low terminal, and would
//! become the message of a bar whose template changes with each width. It adds three crates. Three properties would be lost:
//!
//! - It writes to standard error by itself, outside the writers that escape text (`tests/laws.rs`, rule 7). With a terminal
//!   of our own (`TermLike`) the cursor movement stays here.
//! - Of more lines than the terminal has rows it drops the last ones. Here the last line is the sum, which always stays.
//! - It fills each line with blanks up to the last column. When the terminal becomes narrower, all of these lines wrap, and
//!   the next drawing begins too low.

mod bars;
mod figures;
mod files;
mod lines;

use std::io::IsTerminal;

use marline_download::{BatchProgress, DownloadObserver, Progress, Report};

pub(crate) use bars::Bars;
pub(crate) use figures::{rate, size, time};
pub(crate) use lines::Lines;

/// Who looks on, by what standard error is.
pub(crate) enum Viewer {
    /// Nobody.
    Quiet,
    /// A log or a pipe.
    Lines(Lines),
    /// A person.
    Bars(Bars),
}

impl Viewer {
    /// Chooses by `--quiet` and the terminal.
    pub(crate) fn new(quiet: bool) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        match (quiet, terminal && !dumb) {
            (true, _) => Self::Quiet,
            (false, true) => Self::Bars(Bars::new()),
            (false, false) => Self::Lines(Lines::new()),
        }
    }

    /// Takes the bars away. Called on every way out.
    pub(crate) fn clear(&mut self) {
        if let Self::Bars(bars) = self {
            bars.clear();
        }
    }

    /// Shows how a batch goes; one file as a download of its own.
    pub(crate) fn overview(&mut self, overview: &BatchProgress) {
        match (&mut *self, overview.files.as_slice()) {
            (Self::Quiet, _) => {}
            (_, [file]) if overview.total == 1 => self.on_progress(&file.progress),
            (_, []) if overview.total == 1 => {}
            (Self::Lines(lines), _) => lines.overview(overview),
            (Self::Bars(bars), _) => bars.overview(overview),
        }
    }

    /// Says how it went, in one line.
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
            Self::Lines(lines) => lines.line(text),
            Self::Bars(bars) => bars.line(text),
        }
    }
}
