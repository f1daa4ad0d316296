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
pub(super) struct Allowance {
    pub(super) requests: Bucket,
    pub(super) connections: Bucket,
}

/// Tokens that time and received bytes fill.
#[derive(Clone, Debug)]
pub(super) struct Bucket {
    rule: Rule,
    /// In thousandths of a token. Below zero when several connections came to stand at once.
    level: i64,
    at: Instant,
}

#[derive(Clone, Copy, Debug)]
struct Rule {
    /// Tokens at the start, and at most.
    burst: i64,
    /// The time for one token.
    every: Duration,
    /// The received bytes for one token.
    bytes: DataSize,
}

impl Default for Allowance {
    fn default() -> Self {
        Self { requests: Bucket::full(REQUESTS), connections: Bucket::full(CONNECTIONS) }
    }
}

impl Allowance {
    /// Received bytes fill both buckets.
    pub(super) fn earn(&mut self, len: DataSize) {
        self.requests.earn(len);
        self.connections.earn(len);
    }
}

impl Bucket {
    fn full(rule: Rule) -> Self {
        Self { rule, level: rule.burst * TOKEN, at: Instant::ZERO }
    }

    /// Whether there is a token now.
    pub(super) fn has(&self, now: Instant) -> bool {
        self.level_at(now) >= TOKEN
    }

    /// When there is one.
    pub(super) fn next(&self, now: Instant) -> Instant {
        let missing = TOKEN.saturating_sub(self.level_at(now)).max(0);
        now + self.rule.every * u32::try_from(missing).unwrap_or(u32::MAX) / TOKEN as u32
    }

    /// Takes one, also if there is none.
    pub(super) fn take(&mut self, now: Instant) {
        self.level = self.level_at(now) - TOKEN;
        self.at = now;
    }

    fn earn(&mut self, len: DataSize) {
        let earned = len.bytes().saturating_mul(TOKEN as u64) / self.rule.bytes.bytes();
        let earned = i64::try_from(earned).unwrap_or(i64::MAX);
        self.level = self.level.saturating_add(earned).min(self.rule.burst * TOKEN);
    }

    fn level_at(&self, now: Instant) -> i64 {
        let filled = now.since(self.at).as_nanos() * TOKEN as u128 / self.rule.every.as_nanos();
        let filled = i64::try_from(filled).unwrap_or(i64::MAX);
        self.level.saturating_add(filled).min(self.rule.burst * TOKEN)
    }
}

const TOKEN: i64 = 1000;

/// chosen: a quarter of the pieces that 16 connections have on their way at once. The smallest piece of a plan is 16 KiB.
const REQUESTS: Rule = Rule { burst: 64, every: Duration::from_millis(250), bytes: DataSize::from_kib(4) };
/// chosen: more than a link opens to find out how many it needs (16), and a server that closes after each small answer
/// still delivers.
const CONNECTIONS: Rule = Rule { burst: 24, every: Duration::from_millis(500), bytes: DataSize::from_kib(16) };

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(bucket: &mut Bucket, until: u64, earns: impl Fn() -> u64) -> u32 {
        let mut count = 0;
        for ms in 0..until {
            let now = Instant::from_millis(ms);
            while bucket.has(now) && count < 100_000 {
                bucket.take(now);
                bucket.earn(DataSize::from_bytes(earns()));
                count += 1;
            }
        }
        count
    }

    #[test]
    fn without_bytes_there_is_a_burst_and_then_a_few_each_second() {
        let allowance = Allowance::default();
        assert_eq!(taken(&mut allowance.requests.clone(), 10_001, || 0), 64 + 40);
        assert_eq!(taken(&mut allowance.connections.clone(), 10_001, || 11), 24 + 20);
    }

    #[test]
    fn bytes_pay_for_requests_without_end() {
        assert_eq!(taken(&mut Allowance::default().requests, 1, || 16 * 1024), 100_000);
    }

    #[test]
    fn the_next_token_is_there_when_it_was_promised() {
        let mut bucket = Allowance::default().connections;
        let now = Instant::from_millis(7);
        (0..30).for_each(|_| bucket.take(now));
        let at = bucket.next(now);
        assert!(!bucket.has(at - Duration::from_millis(1)) && bucket.has(at), "{at}");
        assert_eq!(bucket.next(at), at);
    }
}
