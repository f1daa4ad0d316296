//! Rate limit of a link: one token bucket for requests and one for connections.
//!
//! 1. A normal download is never delayed here: each request delivers more bytes than it costs, and received bytes fill
//!    the buckets.
//! 2. A server that delivers nothing (it closes, refuses or repeats itself) gets a burst and then a few requests per
//!    second, whichever part of the machine sends them. All pass through `transfers`.
//! 3. A connection costs its token when it is established. Attempts on a stalled link reach no server; `stall` spaces
//!    them.
//!
//! Limiting only retries after failures was rejected: earlier request storms consisted of responses that no rule
//! classified as failures.

use core::time::Duration;

use crate::units::{DataSize, Instant};

/// Rate limits of one link.
#[derive(Clone, Debug)]
pub(super) struct TokenBuckets {
    pub(super) requests: TokenBucket,
    pub(super) connections: TokenBucket,
}

/// Token bucket that time and received bytes fill.
#[derive(Clone, Debug)]
pub(super) struct TokenBucket {
    limits: BucketLimits,
    /// In thousandths of a token. Negative if several connections were established at once.
    millitokens: i64,
    updated_at: Instant,
}

#[derive(Clone, Copy, Debug)]
struct BucketLimits {
    /// Tokens at the start, and maximum.
    burst: i64,
    /// Time that adds one token.
    interval: Duration,
    /// Received bytes that add one token.
    bytes_per_token: DataSize,
}

impl Default for TokenBuckets {
    fn default() -> Self {
        Self { requests: TokenBucket::full(REQUEST_LIMITS), connections: TokenBucket::full(CONNECTION_LIMITS) }
    }
}

impl TokenBuckets {
    /// Adds tokens to both buckets for received bytes.
    pub(super) fn credit(&mut self, len: DataSize) {
        self.requests.credit(len);
        self.connections.credit(len);
    }
}

impl TokenBucket {
    fn full(rule: BucketLimits) -> Self {
        Self { limits: rule, millitokens: rule.burst * MILLITOKENS, updated_at: Instant::ZERO }
    }

    /// Whether a whole token is available.
    pub(super) fn has_token(&self, now: Instant) -> bool {
        self.millitokens_at(now) >= MILLITOKENS
    }

    /// When a whole token will be available, without further bytes.
    pub(super) fn next_token_at(&self, now: Instant) -> Instant {
        let missing = MILLITOKENS.saturating_sub(self.millitokens_at(now)).max(0);
        now + self.limits.interval * u32::try_from(missing).unwrap_or(u32::MAX) / MILLITOKENS as u32
    }

    /// Takes a token, even if there is none: the balance may become negative.
    pub(super) fn take(&mut self, now: Instant) {
        self.millitokens = self.millitokens_at(now) - MILLITOKENS;
        self.updated_at = now;
    }

    fn credit(&mut self, len: DataSize) {
        let credited = len.bytes().saturating_mul(MILLITOKENS as u64) / self.limits.bytes_per_token.bytes();
        let credited = i64::try_from(credited).unwrap_or(i64::MAX);
        self.millitokens = self.millitokens.saturating_add(credited).min(self.limits.burst * MILLITOKENS);
    }

    fn millitokens_at(&self, now: Instant) -> i64 {
        let filled = now.since(self.updated_at).as_nanos() * MILLITOKENS as u128 / self.limits.interval.as_nanos();
        let filled = i64::try_from(filled).unwrap_or(i64::MAX);
        self.millitokens.saturating_add(filled).min(self.limits.burst * MILLITOKENS)
    }
}

const MILLITOKENS: i64 = 1000;

/// Our choice: an eighth of the requests that 16 connections may have in flight, and a token for a quarter of the
/// smallest request (16 KiB).
const REQUEST_LIMITS: BucketLimits =
    BucketLimits { burst: 64, interval: Duration::from_millis(250), bytes_per_token: DataSize::from_kib(4) };
/// Our choice: more than a link opens to find its number of connections (16). A server that closes after each small
/// response still delivers.
const CONNECTION_LIMITS: BucketLimits =
    BucketLimits { burst: 24, interval: Duration::from_millis(500), bytes_per_token: DataSize::from_kib(16) };

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes every token until `until` (ms), and credits `earns()` bytes for each. Returns the number of tokens.
    fn count_taken(bucket: &mut TokenBucket, until: u64, earns: impl Fn() -> u64) -> u32 {
        let mut count = 0;
        for ms in 0..until {
            let now = Instant::from_millis(ms);
            while bucket.has_token(now) && count < 100_000 {
                bucket.take(now);
                bucket.credit(DataSize::from_bytes(earns()));
                count += 1;
            }
        }
        count
    }

    #[test]
    fn without_received_bytes_a_burst_is_followed_by_a_few_per_second() {
        let buckets = TokenBuckets::default();
        assert_eq!(count_taken(&mut buckets.requests.clone(), 10_001, || 0), 64 + 40);
        assert_eq!(count_taken(&mut buckets.connections.clone(), 10_001, || 11), 24 + 20);
    }

    #[test]
    fn received_bytes_refill_the_bucket_without_limit() {
        assert_eq!(count_taken(&mut TokenBuckets::default().requests, 1, || 16 * 1024), 100_000);
    }

    #[test]
    fn a_token_is_available_at_the_predicted_time() {
        let mut bucket = TokenBuckets::default().connections;
        let now = Instant::from_millis(7);
        (0..30).for_each(|_| bucket.take(now));
        let at = bucket.next_token_at(now);
        assert!(!bucket.has_token(at - Duration::from_millis(1)) && bucket.has_token(at), "{at}");
        assert_eq!(bucket.next_token_at(at), at);
    }
}
