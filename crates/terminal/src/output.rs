//! Standard output and standard error of the programs: every line that people or programs read goes through here.
//!
//! All text is escaped on the way ([`marline_core::printable`]), so no caller can forget it: server headers, certificates,
//! interface names and values from Redis appear in results, errors and logs. A test of the sources (`tests/laws.rs`) refuses other
//! ways to these streams. The only exceptions are the bytes of a download (`-o -`) and the cursor movements of progress bars
//! and `watch`, which escape the text within.

use std::io::{self, IsTerminal, Write};

use marline_core::printable::{mask_secrets, printable, printable_lines};

use crate::CliError;

/// A line for people, on standard error: `PROGRAM: LINE`. A closed standard error ends nothing.
pub fn print_notice(program: &str, line: &str) {
    let _ = writeln!(io::stderr(), "{program}: {}", sanitize(line));
}

/// A line as it is shown: escaped, and without the logins and queries of URLs.
pub fn sanitize(line: &str) -> String {
    mask_secrets(&printable(line))
}

/// A result, on standard output: a table, JSON, or lines for scripts.
///
/// # Errors
/// Standard output cannot be written; a closed one ends the program without a line.
pub fn print_result(text: &str) -> Result<(), CliError> {
    io::stdout().write_all(printable_lines(text).as_bytes())?;
    Ok(())
}

/// A result on standard error, where standard output carries the file itself.
///
/// # Errors
/// Standard error cannot be written.
pub fn eprint_result(text: &str) -> Result<(), CliError> {
    io::stderr().write_all(printable_lines(text).as_bytes())?;
    Ok(())
}

/// Lines on standard error after the output of a child process, whose progress bar may have left the cursor in the middle of a
/// line: that line is erased on a terminal.
pub fn say_after_progress(text: &str) {
    let mut stderr = io::stderr();
    let erase = if stderr.is_terminal() { "\r\x1b[K" } else { "" };
    let _ = writeln!(stderr, "{erase}{}", printable_lines(text));
}

/// Standard error for `tracing`, which writes one event at a time.
#[derive(Clone, Copy, Debug)]
pub struct LogWriter;

impl Write for LogWriter {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let (line, line_end) = text.strip_suffix('\n').map_or((&*text, ""), |line| (line, "\n"));
        io::stderr().write_all(format!("{}{line_end}", sanitize(line)).as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}
