//! Standard output and standard error of `marline`; see [`marline_terminal::output`], which escapes all text.

pub(crate) use marline_terminal::output::{eprint_result, print_result, sanitize};

use serde::Serialize;

use crate::{CliError, NAME};

/// Prints a notice for people on standard error: `marline: LINE`, sanitized. Errors of writing are ignored: a closed
/// standard error must not end the program.
pub(crate) fn print_notice(line: &str) {
    marline_terminal::output::print_notice(NAME, line);
}

/// Formats a value as indented JSON with a line end, to be passed to [`print_result`].
pub(crate) fn to_json(value: &impl Serialize) -> Result<String, CliError> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| CliError::failed(format!("cannot write the result as JSON: {error}")))?;
    Ok(text + "\n")
}
