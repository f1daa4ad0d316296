//! Environment variables that control random histories.

/// The number in a variable; `None` if it is not set or not a number.
pub(crate) fn env_number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Number of histories to run: `HISTORY_CASES`, or the default.
pub(crate) fn case_count(default: u32) -> u32 {
    env_number("HISTORY_CASES").and_then(|cases| u32::try_from(cases).ok()).unwrap_or(default)
}
