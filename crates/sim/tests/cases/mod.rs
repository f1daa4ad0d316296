//! What a run of histories is asked for by the environment.

/// A number that a variable holds; none: it is not set, or holds no number.
pub(crate) fn env_number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// How many histories to run: `HISTORY_CASES`, or so many.
pub(crate) fn case_count(default: u32) -> u32 {
    env_number("HISTORY_CASES").and_then(|cases| u32::try_from(cases).ok()).unwrap_or(default)
}
