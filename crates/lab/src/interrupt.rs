//! Whether the user has interrupted the program.

/// Whether the user interrupted the program.
pub(crate) fn is_interrupted() -> bool {
    marline_sys::signal::last_caught().is_some()
}
