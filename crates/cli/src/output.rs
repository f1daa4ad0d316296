//! Standard output and standard error of this program; see [`marline_terminal::output`].

pub(crate) use marline_terminal::output::{eprint_result, print_result, sanitize};

use crate::NAME;

/// A line for people, on standard error: `marline: LINE`. A closed standard error ends nothing.
pub(crate) fn say(line: &str) {
    marline_terminal::output::print_notice(NAME, line);
}
