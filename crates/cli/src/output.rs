//! Standard output and standard error of the program: every line that people or programs read goes through here.
//!
//! All text is escaped on the way ([`marline_net::printable`]), so no caller can forget it: server headers, certificates,
//! interface names and values from Redis appear in results, errors and logs. A test of the sources (`tests/laws.rs`) refuses other
//! ways to these streams. The only exceptions are the bytes of a download (`-o -`) and the cursor movements of progress bars
//! and `watch`, which escape the text within.

use std::io::{self, Write};

use marline_net::printable::{mask, printable, printable_lines};

use crate::Exit;

/// A line for people, on standard error: `marline: LINE`. A closed standard error ends nothing.
pub(crate) fn say(line: &str) {
    let _ = writeln!(io::stderr(), "marline: {}", shown(line));
}

/// A line as it is shown: escaped, and without the logins and queries of URLs.
pub(crate) fn shown(line: &str) -> String {
    mask(&printable(line))
}

/// A result, on standard output: a table, JSON, or lines for scripts.
pub(crate) fn print(text: &str) -> Result<(), Exit> {
    io::stdout().write_all(printable_lines(text).as_bytes())?;
    Ok(())
}

/// A result on standard error, where standard output carries the file itself.
pub(crate) fn print_beside(text: &str) -> Result<(), Exit> {
    io::stderr().write_all(printable_lines(text).as_bytes())?;
    Ok(())
}

/// Standard error for `tracing`, which writes one event at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogWriter;

impl Write for LogWriter {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let (line, end) = text.strip_suffix('\n').map_or((&*text, ""), |line| (line, "\n"));
        io::stderr().write_all(format!("{}{end}", shown(line)).as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}
