//! How often a link may ask its server: one token bucket for requests and one for connections.
//!
//! 1. A good download never waits here: each request brings more bytes than it costs, and what comes fills the buckets.
//! 2. A server that brings nothing (it closes, refuses or repeats itself) gets a burst, and then a few requests a second,
//!    whichever rule of the machine asks. `orders` is the only gate.
//! 3. A connection is counted when it stands. Attempts over a silent link reach no server; `silence` spaces them.
//!
//! A limit on failures alone was not used: the storms of the past were made of answers that no rule took for a failure.

use core::time::Duration;

use crate::units::{DataSize, Instant};

/// What a link may still ask.
#[derive(Clone, Debug)]
pub(super) struct TokenBuckets {
    pub(super) requests: TokenBucket,
    pub(super) connections: TokenBucket,
}

/// Tokens that time and received bytes fill.
#[derive(Clone, Debug)]
pub(super) struct TokenBucket {
    limits: BucketLimits,
    /// In thousandths of a token. Below zero when several connections came to stand at once.
    millitokens: i64,
    updated_at: Instant,
}

#[derive(Clone, Copy, Debug)]
struct BucketLimits {
    /// Tokens at the start, and at most.
    burst: i64,
    /// The time for one token.
    interval: Duration,
    /// The received bytes for one token.
    bytes_per_token: DataSize,
}

impl Default for TokenBuckets {
    fn default() -> Self {
        Self { requests: TokenBucket::full(REQUEST_LIMITS), connections: TokenBucket::full(CONNECTION_LIMITS) }
    }
}

impl TokenBuckets {
    /// Received bytes fill both buckets.
    pub(super) fn credit(&mut self, len: DataSize) {
        self.requests.credit(len);
        self.connections.credit(len);
    }
}

impl TokenBucket {
    fn full(rule: BucketLimits) -> Self {
        Self { limits: rule, millitokens: rule.burst * MILLITOKENS, updated_at: Instant::ZERO }
    }

    /// Whether there is a token now.
    pub(super) fn has_token(&self, now: Instant) -> bool {
        self.millitokens_at(now) >= MILLITOKENS
    }

    /// When there is one.
    pub(super) fn next_token_at(&self, now: Instant) -> Instant {
        let missing = MILLITOKENS.saturating_sub(self.millitokens_at(now)).max(0);
        now + self.limits.interval * u32::try_from(missing).unwrap_or(u32::MAX) / MILLITOKENS as u32
    }

    /// Takes one, also if there is none.
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

/// chosen: a quarter of the pieces that 16 connections have on their way at once. The smallest piece of a plan is 16 KiB.
const REQUEST_LIMITS: BucketLimits =
    BucketLimits { burst: 64, interval: Duration::from_millis(250), bytes_per_token: DataSize::from_kib(4) };
/// chosen: more than a link opens to find out how many it needs (16), and a server that closes after each small answer
/// still delivers.
const CONNECTION_LIMITS: BucketLimits =
    BucketLimits { burst: 24, interval: Duration::from_millis(500), bytes_per_token: DataSize::from_kib(16) };

#[cfg(test)]
mod tests {
    use super::*;

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
    fn without_bytes_there_is_a_burst_and_then_a_few_each_second() {
        let allowance = TokenBuckets::default();
        assert_eq!(count_taken(&mut allowance.requests.clone(), 10_001, || 0), 64 + 40);
        assert_eq!(count_taken(&mut allowance.connections.clone(), 10_001, || 11), 24 + 20);
    }

    #[test]
    fn bytes_pay_for_requests_without_end() {
        assert_eq!(count_taken(&mut TokenBuckets::default().requests, 1, || 16 * 1024), 100_000);
    }

    #[test]
    fn the_next_token_is_there_when_it_was_promised() {
        let mut bucket = TokenBuckets::default().connections;
        let now = Instant::from_millis(7);
        (0..30).for_each(|_| bucket.take(now));
        let at = bucket.next_token_at(now);
        assert!(!bucket.has_token(at - Duration::from_millis(1)) && bucket.has_token(at), "{at}");
        assert_eq!(bucket.next_token_at(at), at);
    }
}
