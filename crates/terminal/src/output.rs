//! Standard output and standard error: every line that people or programs read is written here.
//!
//! All text is escaped here ([`marline_core::printable`]), so that no caller can forget it: server headers, certificates,
//! interface names and values from the fleet service's Redis store appear in results, errors and logs. A test that reads
//! the sources (`crates/cli/tests/architecture/`) rejects other code that writes to these streams. The only exceptions are
//! the bytes of a download (`-o -`), and the cursor movements of progress bars and of the subcommands `watch`, which escape
//! their text themselves.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use marline_core::printable::{mask_secrets, printable, printable_lines};

use crate::CliError;

/// Prints a notice for people on standard error, as one line: `PROGRAM: MESSAGE`, sanitized. Errors of writing are
/// ignored: a closed standard error must not end the program.
pub fn print_notice(program: &str, message: &str) {
    let _ = writeln!(io::stderr(), "{program}: {}", sanitize(message));
}

/// Prints the message of a failed command, if it has one, and returns the exit code of the process.
pub fn print_failure(program: &str, error: &CliError) -> ExitCode {
    if let Some(message) = &error.message {
        print_notice(program, message);
    }
    ExitCode::from(error.code)
}

/// Returns one line that is safe to print: control characters escaped as `\uXXXX` (line feeds too), logins and queries of
/// URLs masked.
pub fn sanitize(message: &str) -> String {
    mask_secrets(&printable(message))
}

/// Prints a result on standard output: a table, JSON, or lines for scripts. Line feeds are kept, other control characters
/// escaped; nothing is masked.
///
/// # Errors
/// Standard output cannot be written. If its reader has closed it (`| head`), the error has no message.
pub fn print_result(text: &str) -> Result<(), CliError> {
    io::stdout().write_all(printable_lines(text).as_bytes())?;
    Ok(())
}

/// Prints a result on standard error, for when standard output carries the downloaded file.
///
/// # Errors
/// Standard error cannot be written.
pub fn eprint_result(text: &str) -> Result<(), CliError> {
    io::stderr().write_all(printable_lines(text).as_bytes())?;
    Ok(())
}

/// Prints lines on standard error after the output of a child process, such as a download that the lab measures. Its
/// progress bar may have left the cursor in the middle of a line; on a terminal that line is erased first.
pub fn eprint_after_progress(text: &str) {
    let mut stderr = io::stderr();
    let erase_line = if stderr.is_terminal() { "\r\x1b[K" } else { "" };
    let _ = writeln!(stderr, "{erase_line}{}", printable_lines(text));
}

/// Writer for `tracing`: sanitizes each event and writes it to standard error. `tracing` writes one event per call.
#[derive(Clone, Copy, Debug)]
pub struct LogWriter;

impl Write for LogWriter {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let (message, line_end) = text.strip_suffix('\n').map_or((&*text, ""), |message| (message, "\n"));
        io::stderr().write_all(format!("{}{line_end}", sanitize(message)).as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}
