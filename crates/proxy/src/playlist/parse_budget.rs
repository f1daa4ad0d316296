//! Limits on the resources that parsing one playlist or manifest may use.
//!
//! Playlists come from untrusted servers, and a few hundred bytes can demand gigabytes: nested variables, templates
//! that repeat a long identifier, a timeline of a million segments for each of a thousand representations. A
//! [`ParseBudget`] is passed to everything that processes such a text. It counts work in bytes touched, so that parsing
//! stops after the same amount of work on every machine. It also checks the clock from time to time, to bound the
//! duration on slow machines.
//!
//! There are two kinds of limits. Beyond those of the rewritten text ([`PlaylistError::Limit`]) the player gets an
//! error: in a partly rewritten playlist, some URLs would bypass the proxy unnoticed. Beyond those of the index for
//! prefetching, the playlist is still rewritten, and its segments are not prefetched.

use std::time::{Duration, Instant};

use super::listed_urls::ListedUrls;

/// Why a playlist is not rewritten.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum PlaylistError {
    /// It is no playlist or manifest, or has syntax errors. A manifest that is not well-formed is passed on with
    /// marks; in all other cases the player gets an error.
    Malformed(String),
    /// Parsing exceeds a limit. The player gets an error.
    Limit(String),
}

/// What parsing one playlist may still use.
#[derive(Debug)]
pub(crate) struct ParseBudget {
    /// Work that may still be done, in bytes touched.
    work_left: u64,
    /// Work since the clock was checked.
    work_since_check: u64,
    /// Bytes by which the rewritten text may still grow.
    output_left: u64,
    /// Bytes that may still be kept for prefetching.
    index_left: u64,
    deadline: Instant,
    /// The URLs that were found.
    pub(crate) urls: ListedUrls,
}

impl ParseBudget {
    /// A budget for a text of `input` bytes. `memory` limits the rewritten text in any case.
    pub(crate) fn new(input: usize, memory: u64, deadline: Instant) -> Self {
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
    /// The budget is exhausted.
    pub(crate) fn charge_work(&mut self, bytes: usize) -> Result<(), PlaylistError> {
        // An empty item takes work as well.
        let bytes = bytes as u64 + 1;
        self.work_left = self
            .work_left
            .checked_sub(bytes)
            .ok_or_else(|| limit_error("the playlist takes too much work to parse"))?;
        self.work_since_check += bytes;
        if self.work_since_check >= CLOCK_CHECK_INTERVAL {
            self.work_since_check = 0;
            if Instant::now() >= self.deadline {
                return Err(limit_error("the playlist takes too long to parse"));
            }
        }
        Ok(())
    }

    /// Appends a part to the rewritten text.
    ///
    /// # Errors
    /// The text becomes too long.
    pub(crate) fn write(&mut self, text: &mut String, part: &str) -> Result<(), PlaylistError> {
        let output_left = self.output_left.checked_sub(part.len() as u64);
        self.output_left =
            output_left.ok_or_else(|| limit_error("the playlist becomes too long when its URLs are rewritten"))?;
        if text.capacity() - text.len() < part.len() {
            // Doubling the capacity would allocate memory that is not accounted.
            text.reserve_exact(part.len().max(text.len() / 8));
        }
        text.push_str(part);
        Ok(())
    }

    /// Charges bytes that are kept for prefetching. Returns false if they exceed the limit.
    pub(crate) fn charge_index(&mut self, bytes: usize) -> bool {
        let index_left = self.index_left.checked_sub(bytes as u64);
        self.index_left = index_left.unwrap_or(self.index_left);
        index_left.is_some()
    }

    pub(crate) fn output_left(&self) -> u64 {
        self.output_left
    }

    /// The remaining work.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn work_left(&self) -> u64 {
        self.work_left
    }
}

impl std::fmt::Display for PlaylistError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Self::Malformed(reason) | Self::Limit(reason)) = self;
        f.write_str(reason)
    }
}

pub(crate) fn limit_error(reason: impl Into<String>) -> PlaylistError {
    PlaylistError::Limit(reason.into())
}

pub(crate) fn malformed_error(reason: impl Into<String>) -> PlaylistError {
    PlaylistError::Malformed(reason.into())
}

/// An excerpt of untrusted text that is safe to repeat in a message.
pub(crate) fn quote_excerpt(text: &str) -> String {
    let mut short: String = text.chars().take(MAX_QUOTED_CHARS).flat_map(char::escape_debug).collect();
    if text.chars().nth(MAX_QUOTED_CHARS).is_some() {
        short.push('…');
    }
    short
}

/// The longest HLS text. Our choice: half a day in segments of two seconds has two mebibytes, the published playlist of
/// all free television channels has three.
pub(crate) const MAX_HLS_BYTES: usize = 8 << 20;
/// The longest DASH text. Our choice: several hours of many short periods have one mebibyte. While it is parsed, a
/// manifest uses several times its size in addition to its text.
pub(crate) const MAX_DASH_BYTES: usize = 2 << 20;
/// The longest URL that is rewritten. A longer one could not be requested through the proxy.
pub(crate) const MAX_URL: usize = crate::client::media_url::MAX_URL_BYTES;
/// The longest URL with expanded variables, and the longest one that is prefetched. Our choice: what nginx and
/// CloudFront accept in a request.
pub(crate) const MAX_EXPANDED_URL: usize = 8 * 1024;
/// The time limit for one playlist. The limit on work takes effect much sooner, unless the machine is busy.
pub(crate) const MAX_PARSE_TIME: Duration = Duration::from_secs(4);
/// Permitted work for each byte of input, in addition to [`WORK_BASE`]. Our choice: resolving a URL costs some 350
/// bytes of work, so that a playlist of nothing but short entries, of 17 bytes each, just fits. This allows a few
/// tens of milliseconds for a short playlist, and a second for the longest.
const WORK_FACTOR: u64 = 24;
const WORK_BASE: u64 = 24 << 20;
/// Work after which the clock is checked.
const CLOCK_CHECK_INTERVAL: u64 = 256 << 10;
/// Permitted length of the rewritten text, in addition to [`OUTPUT_FACTOR`] bytes for each byte of input. Our choice:
/// 20,000 short URLs that are each prefixed with the names of the proxy and of a server.
const OUTPUT_BASE: u64 = 4 << 20;
const OUTPUT_FACTOR: u64 = 3;
/// Our choice: 20,000 segments with URLs of 150 bytes.
const MAX_INDEX_BYTES: u64 = 4 << 20;
const MAX_QUOTED_CHARS: usize = 40;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parsing_stops_at_a_fixed_amount_of_work_or_at_the_deadline() {
        let distant = Instant::now() + Duration::from_secs(3600);
        let mut budget = ParseBudget::new(100, u64::MAX, distant);
        assert_eq!(budget.work_left(), WORK_BASE + 100 * WORK_FACTOR);
        while budget.charge_work(1 << 20).is_ok() {}
        assert!(budget.work_left() < 2 << 20);
        let mut expired = ParseBudget::new(100, u64::MAX, Instant::now());
        let steps = (0..10_000).take_while(|_| expired.charge_work(1 << 10).is_ok()).count() as u64;
        assert!(steps <= CLOCK_CHECK_INTERVAL >> 10, "{steps}");
    }

    #[test]
    fn output_is_bounded_by_the_input_and_the_memory() {
        let distant = Instant::now() + Duration::from_secs(3600);
        let part = "x".repeat(1000);
        for (memory, most) in [(10_000, 10_000), (u64::MAX, 300 + OUTPUT_BASE)] {
            let (mut budget, mut text) = (ParseBudget::new(100, memory, distant), String::new());
            while budget.write(&mut text, &part).is_ok() {}
            assert!(text.len() as u64 <= most && text.len() as u64 > most - 1000, "{}", text.len());
            assert!(text.capacity() <= text.len() + text.len() / 8 + 1000);
        }
    }

    #[test]
    fn excerpts_are_short_and_escaped() {
        assert_eq!(quote_excerpt("a\u{1b}[31m"), "a\\u{1b}[31m");
        assert_eq!(quote_excerpt(&"x".repeat(1000)).chars().count(), MAX_QUOTED_CHARS + 1);
    }
}
