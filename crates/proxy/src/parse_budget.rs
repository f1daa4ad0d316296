//! Bounds on what reading one playlist or manifest may cost.
//!
//! Playlists come from strangers, and a few hundred bytes can ask for gigabytes: nested variables, templates that repeat a
//! long identifier, a timeline of a million segments for each of a thousand representations. A [`Cost`] is handed down to
//! everything that reads such a text. It counts work in bytes touched, so that a list ends after the same amount of work on
//! every machine, and looks at the clock from time to time, because a slow machine must not work for longer either.
//!
//! There are two kinds of bounds. Beyond those of the rewritten text ([`ListError::Limit`]) the player gets an error: a
//! list of which some addresses were not changed would send it around the proxy without a word. Beyond those of what is
//! remembered for fetching ahead the list is rewritten all the same, and nothing is fetched ahead.

use std::time::{Duration, Instant};

use super::listed_urls::ListedUrls;

/// Why a list is not rewritten.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum PlaylistError {
    /// It is not a playlist or manifest, or has syntax errors; it is passed on unchanged.
    Malformed(String),
    /// Reading it would cost too much; the player gets an error.
    Limit(String),
}

/// What one list may still cost.
#[derive(Debug)]
pub(super) struct ParseBudget {
    work_left: u64,
    work_since_check: u64,
    output_left: u64,
    index_left: u64,
    deadline: Instant,
    /// The addresses that were found.
    pub(super) urls: ListedUrls,
}

impl ParseBudget {
    /// For a text of this length. `buffer_budget`: what the rewritten text may take up in any case.
    pub(super) fn new(input: usize, memory: u64, deadline: Instant) -> Self {
        let input = input as u64;
        let output = input.saturating_mul(OUTPUT_FACTOR).saturating_add(OUTPUT_BASE).min(memory);
        let work = input.saturating_mul(WORK_FACTOR).saturating_add(WORK_BASE);
        Self {
            work_left: work,
            work_since_check: 0,
            output_left: output,
            index_left: MAX_INDEX_BYTES,
            deadline,
            urls: ListedUrls::exact(),
        }
    }

    /// Charges work on this many bytes.
    ///
    /// # Errors
    /// The list costs too much.
    pub(super) fn charge_work(&mut self, bytes: usize) -> Result<(), PlaylistError> {
        // Even an empty thing takes a step.
        let bytes = bytes as u64 + 1;
        self.work_left =
            self.work_left.checked_sub(bytes).ok_or_else(|| limit_error("it takes too much work to read"))?;
        self.work_since_check += bytes;
        if self.work_since_check >= CLOCK_CHECK_INTERVAL {
            self.work_since_check = 0;
            if Instant::now() >= self.deadline {
                return Err(limit_error("it takes too long to read"));
            }
        }
        Ok(())
    }

    /// Adds a part to the rewritten text.
    ///
    /// # Errors
    /// The text becomes too long.
    pub(super) fn write(&mut self, text: &mut String, part: &str) -> Result<(), PlaylistError> {
        let output_left = self.output_left.checked_sub(part.len() as u64);
        self.output_left =
            output_left.ok_or_else(|| limit_error("its addresses become too long when they are replaced"))?;
        if text.capacity() - text.len() < part.len() {
            // Doubling would take up memory that nobody has counted.
            text.reserve_exact(part.len().max(text.len() / 8));
        }
        text.push_str(part);
        Ok(())
    }

    /// Charges bytes that are kept for fetching ahead; whether they may be.
    pub(super) fn charge_index(&mut self, bytes: usize) -> bool {
        let index_left = self.index_left.checked_sub(bytes as u64);
        self.index_left = index_left.unwrap_or(self.index_left);
        index_left.is_some()
    }

    pub(super) fn output_left(&self) -> u64 {
        self.output_left
    }

    /// The work that is left.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn work_left(&self) -> u64 {
        self.work_left
    }
}

impl std::fmt::Display for PlaylistError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Self::Malformed(reason) | Self::Limit(reason)) = self;
        f.write_str(reason)
    }
}

pub(super) fn limit_error(reason: impl Into<String>) -> PlaylistError {
    PlaylistError::Limit(reason.into())
}

pub(super) fn malformed_error(reason: impl Into<String>) -> PlaylistError {
    PlaylistError::Malformed(reason.into())
}

/// A piece of a stranger's text as a message may repeat it.
pub(super) fn quote_excerpt(text: &str) -> String {
    let mut short: String = text.chars().take(MAX_QUOTED_CHARS).flat_map(char::escape_debug).collect();
    if text.chars().nth(MAX_QUOTED_CHARS).is_some() {
        short.push('…');
    }
    short
}

/// The longest text of HLS. chosen: half a day in segments of two seconds has two mebibytes, the published list of all
/// free television channels has three.
pub(super) const MAX_HLS_BYTES: usize = 8 << 20;
/// The longest text of DASH. chosen: several hours of many short periods have one mebibyte; beside its text a manifest takes
/// up several times its size while it is read.
pub(super) const MAX_DASH_BYTES: usize = 2 << 20;
/// The longest address that is replaced. A longer one could not be requested through the proxy.
pub(super) const MAX_URL: usize = super::media_url::MAX_URL_BYTES;
/// The longest address with variables in it, and the longest one that is fetched ahead. chosen: what nginx and CloudFront
/// accept in a request.
pub(super) const MAX_EXPANDED_URL: usize = 8 * 1024;
/// How long one list may be read. The bound on work ends a list much sooner, unless the machine is busy.
pub(super) const MAX_PARSE_TIME: Duration = Duration::from_secs(4);
/// chosen: resolving an address costs some 350 bytes of work, so that a list of nothing but short entries, of 17 bytes each,
/// just fits. A few tens of milliseconds for a short list, and a second for the longest.
const WORK_FACTOR: u64 = 24;
const WORK_BASE: u64 = 24 << 20;
const CLOCK_CHECK_INTERVAL: u64 = 256 << 10;
/// chosen: 20,000 short addresses that each get the proxy's and a server's name in front of them.
const OUTPUT_BASE: u64 = 4 << 20;
const OUTPUT_FACTOR: u64 = 3;
/// chosen: 20,000 segments with addresses of 150 bytes.
const MAX_INDEX_BYTES: u64 = 4 << 20;
const MAX_QUOTED_CHARS: usize = 40;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_ends_at_the_same_amount_or_at_the_deadline() {
        let distant = Instant::now() + Duration::from_secs(3600);
        let mut cost = ParseBudget::new(100, u64::MAX, distant);
        assert_eq!(cost.work_left(), WORK_BASE + 100 * WORK_FACTOR);
        while cost.charge_work(1 << 20).is_ok() {}
        assert!(cost.work_left() < 2 << 20);
        let mut expired = ParseBudget::new(100, u64::MAX, Instant::now());
        let steps = (0..10_000).take_while(|_| expired.charge_work(1 << 10).is_ok()).count() as u64;
        assert!(steps <= CLOCK_CHECK_INTERVAL >> 10, "{steps}");
    }

    #[test]
    fn output_is_in_proportion_to_the_input_and_within_the_memory() {
        let distant = Instant::now() + Duration::from_secs(3600);
        let part = "x".repeat(1000);
        for (memory, most) in [(10_000, 10_000), (u64::MAX, 300 + OUTPUT_BASE)] {
            let (mut cost, mut text) = (ParseBudget::new(100, memory, distant), String::new());
            while cost.write(&mut text, &part).is_ok() {}
            assert!(text.len() as u64 <= most && text.len() as u64 > most - 1000, "{}", text.len());
            assert!(text.capacity() <= text.len() + text.len() / 8 + 1000);
        }
    }

    #[test]
    fn what_is_quoted_is_short_and_harmless() {
        assert_eq!(quote_excerpt("a\u{1b}[31m"), "a\\u{1b}[31m");
        assert_eq!(quote_excerpt(&"x".repeat(1000)).chars().count(), MAX_QUOTED_CHARS + 1);
    }
}
