//! What a run of histories is asked for by the environment.

/// A number that a variable holds; none: it is not set, or holds no number.
pub(crate) fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// How many histories to run: `HISTORY_CASES`, or so many.
pub(crate) fn cases(usual: u32) -> u32 {
    number("HISTORY_CASES").and_then(|cases| u32::try_from(cases).ok()).unwrap_or(usual)
}
