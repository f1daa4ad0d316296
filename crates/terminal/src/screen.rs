//! The terminal's size, and a text that is updated in place every second.
//!
//! On a terminal, each update overwrites the screen from its top. On a dumb terminal, or in a file, the updates follow each other.

use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::time::Duration;

use marline_core::printable::{printable, printable_lines};

use crate::CliError;

/// Interval of updates. Our choice: people do not read figures more often.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);

/// Columns and rows of a terminal; 80 × 24 if they are unknown.
pub fn size_of(terminal: impl AsFd) -> (usize, usize) {
    match rustix::termios::tcgetwinsize(terminal) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
        _ => (80, 24),
    }
}

/// Shows the text that `query` returns on standard output, every second until it fails.
///
/// # Errors
/// The error of `query`, or standard output cannot be written.
pub fn watch(mut query: impl FnMut() -> Result<String, CliError>) -> Result<(), CliError> {
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    let can_repaint = io::stdout().is_terminal() && !is_dumb;
    loop {
        let text = query()?;
        let mut stdout = io::stdout().lock();
        if can_repaint {
            let (columns, rows) = size_of(io::stdout());
            stdout.write_all(repaint(&text, columns, rows).as_bytes())?;
        } else {
            writeln!(stdout, "{}", printable_lines(&text))?;
        }
        stdout.flush()?;
        drop(stdout);
        std::thread::sleep(REFRESH_INTERVAL);
    }
}

/// Escape sequences and text that overwrite the screen from its top. Lines are truncated to the width, and the rest of the
/// previous text is erased.
fn repaint(text: &str, columns: usize, rows: usize) -> String {
    let mut screen_text = String::from("\x1b[H");
    for line in text.lines().take(rows.saturating_sub(1)) {
        screen_text.extend(printable(line).chars().take(columns));
        screen_text += "\x1b[K\r\n";
    }
    screen_text + "\x1b[J"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_update_is_never_wider_or_higher_than_the_screen() {
        let text = "LINK   KIND  STATE\nwlan0  wifi  up\nwwan0  lte   up, metered, 1.5GB of 2.0GB left\n\nnote: \u{1b}[2J\n".repeat(2);
        for (columns, rows) in [(0, 0), (1, 1), (40, 5), (200, 50)] {
            let painted = repaint(&text, columns, rows);
            assert!(painted.starts_with("\x1b[H") && painted.ends_with("\x1b[J"));
            let lines: Vec<&str> = painted[3..painted.len() - 3].split_terminator("\x1b[K\r\n").collect();
            assert!(lines.len() <= rows.saturating_sub(1), "{columns} {rows}");
            assert!(lines.iter().all(|line| line.chars().count() <= columns), "{columns} {rows}");
        }
    }
}
