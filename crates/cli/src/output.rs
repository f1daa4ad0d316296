//! Standard output and standard error of `marline`; see [`marline_terminal::output`].

pub(crate) use marline_terminal::output::{eprint_result, print_result, sanitize};

use crate::NAME;

/// Prints a notice for people on standard error: `marline: LINE`. Errors are ignored: a closed standard error must not
/// end the program.
pub(crate) fn print_notice(line: &str) {
    marline_terminal::output::print_notice(NAME, line);
}
