//! Rate limits, implemented as token buckets.
//!
//! The driver reads no more bytes from a socket than the buckets contain. Unread bytes stay in the kernel's receive
//! buffer, whose window then slows the sender down. So nothing is dropped, and no byte is transferred twice.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use marline_core::link::{LinkId, LinkProfile};
use marline_core::units::{Bitrate, DataSize, Instant};

/// One token bucket, filled at `rate`. It holds at most [`BUCKET_DEPTH`] of its rate, so that a pause is not
/// followed by a burst.
#[derive(Clone, Debug)]
struct TokenBucket {
    rate: Bitrate,
    level: DataSize,
    refilled_at: Instant,
}

impl TokenBucket {
    fn new(rate: Bitrate) -> Self {
        Self { rate, level: DataSize::ZERO, refilled_at: Instant::ZERO }
    }

    /// The number of bytes that may be read now.
    fn available(&mut self, now: Instant) -> DataSize {
        let gained = self.rate * now.since(self.refilled_at);
        // If less than one byte was gained, the time is kept, and counts in the next call.
        if !gained.is_zero() {
            self.level = (self.level + gained).min((self.rate * BUCKET_DEPTH).max(MIN_DEPTH));
            self.refilled_at = now;
        }
        // Small reads would cost one system call for each packet. So reading waits for a worthwhile amount.
        if self.level < (self.rate * READ_INTERVAL).clamp(MIN_READ, MAX_READ) { DataSize::ZERO } else { self.level }
    }

    fn consume(&mut self, len: DataSize) {
        self.level -= len;
    }

    /// When enough bytes for the next read will be available.
    fn next_at(&self, now: Instant) -> Instant {
        let missing = (self.rate * READ_INTERVAL).clamp(MIN_READ, MAX_READ) - self.level;
        now + (missing / self.rate).clamp(Duration::from_millis(1), Duration::from_millis(500))
    }
}

/// Rate limits of a command: one for all links together and one for each link, shared by all downloads.
#[derive(Clone, Debug)]
pub(super) struct RateLimiter {
    epoch: std::time::Instant,
    total: Option<Rc<RefCell<TokenBucket>>>,
    links: Rc<RefCell<BTreeMap<String, Rc<RefCell<TokenBucket>>>>>,
}

impl RateLimiter {
    /// No download's clock may start before `epoch`.
    pub(super) fn new(all: Option<Bitrate>, epoch: std::time::Instant) -> Self {
        let all = all.map(|rate| Rc::new(RefCell::new(TokenBucket::new(rate))));
        Self { epoch, total: all, links: Rc::default() }
    }

    /// The limits for a download, whose clock starts at `started`.
    pub(super) fn for_download(&self, started: std::time::Instant) -> DownloadLimiter {
        let offset = started.saturating_duration_since(self.epoch);
        DownloadLimiter {
            shared: Some(self.clone()),
            clock_offset: offset,
            total: self.total.clone(),
            links: BTreeMap::new(),
        }
    }
}

/// The rate limits as applied to one download.
#[derive(Clone, Debug, Default)]
pub(super) struct DownloadLimiter {
    /// None: the download shares its limits with no other one.
    shared: Option<RateLimiter>,
    /// Difference between the clock of the shared limits and that of the download.
    clock_offset: Duration,
    total: Option<Rc<RefCell<TokenBucket>>>,
    links: BTreeMap<LinkId, Rc<RefCell<TokenBucket>>>,
}

impl DownloadLimiter {
    pub(super) fn add_link(&mut self, link: LinkId, profile: &LinkProfile) {
        let Some(limit) = profile.rate_limit else { return };
        let bucket = || Rc::new(RefCell::new(TokenBucket::new(limit)));
        let shared = self.shared.as_ref().map(|limiter| {
            Rc::clone(limiter.links.borrow_mut().entry(profile.name.clone()).or_insert_with(bucket))
        });
        self.links.entry(link).or_insert_with(|| shared.unwrap_or_else(bucket));
    }

    /// The number of bytes that may be read from a link now.
    pub(super) fn available(&self, link: LinkId, now: Instant) -> DataSize {
        let buckets = self.total.iter().chain(self.links.get(&link));
        let now = now + self.clock_offset;
        buckets.map(|bucket| bucket.borrow_mut().available(now)).min().unwrap_or(DataSize::MAX)
    }

    pub(super) fn consume(&self, link: LinkId, len: DataSize) {
        for bucket in self.total.iter().chain(self.links.get(&link)) {
            bucket.borrow_mut().consume(len);
        }
    }

    /// When the next read is possible; none: there is no limit.
    pub(super) fn next_at(&self, now: Instant) -> Option<Instant> {
        let buckets = self.total.iter().chain(self.links.values());
        let next = buckets.map(|bucket| bucket.borrow().next_at(now + self.clock_offset)).min()?;
        Some(next - self.clock_offset)
    }
}

/// Our choice: 100 ms, which covers two polls at 20 Hz.
const BUCKET_DEPTH: Duration = Duration::from_millis(100);
/// Slightly more than one packet: smaller reads are not worth a system call.
const MIN_DEPTH: DataSize = DataSize::from_kib(2);
/// A read waits until this time's worth of bytes is available, within the following bounds.
const READ_INTERVAL: Duration = Duration::from_millis(20);
const MIN_READ: DataSize = DataSize::from_bytes(500);
const MAX_READ: DataSize = DataSize::from_kib(64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_kept_for_any_poll_interval() {
        let mut bucket = TokenBucket::new(Bitrate::from_mbps(8));
        let mut taken = DataSize::ZERO;
        for ms in (0..10_000).step_by(7) {
            let level = bucket.available(Instant::from_millis(ms));
            bucket.consume(level);
            taken += level;
        }
        let kb = taken.bytes() / 1000;
        assert!((9_980..=10_000).contains(&kb), "{kb}");
    }

    #[test]
    fn two_downloads_share_one_limit() {
        let limiter = RateLimiter::new(Some(Bitrate::from_mbps(8)), std::time::Instant::now());
        let profile = LinkProfile {
            rate_limit: Some(Bitrate::from_mbps(4)),
            ..LinkProfile::new("w", marline_core::link::LinkKind::Wifi)
        };
        let later = limiter.epoch + Duration::from_secs(5);
        // The second download starts later, and its ID for the link differs.
        let mut runs = [(limiter.for_download(limiter.epoch), LinkId(0)), (limiter.for_download(later), LinkId(3))];
        for (run, link) in &mut runs {
            run.add_link(*link, &profile);
        }
        let mut taken = 0;
        for ms in (5000..15_000).step_by(5) {
            for (n, (run, link)) in runs.iter().enumerate() {
                let now = Instant::from_millis(if n == 0 { ms } else { ms - 5000 });
                let level = run.available(*link, now);
                run.consume(*link, level);
                taken += level.bytes();
            }
        }
        assert!((4_900_000..=5_100_000).contains(&taken), "{taken}");
    }

    #[test]
    fn a_pause_is_not_followed_by_a_burst() {
        let mut bucket = TokenBucket::new(Bitrate::from_mbps(8));
        assert_eq!(bucket.available(Instant::from_millis(60_000)), DataSize::from_bytes(100_000));
    }

    #[test]
    fn a_very_low_rate_still_makes_progress() {
        let mut bucket = TokenBucket::new(Bitrate::from_bits_per_sec(8000));
        let mut taken = 0;
        for ms in 0..10_000 {
            let level = bucket.available(Instant::from_millis(ms));
            if level >= DataSize::from_bytes(1000) {
                bucket.consume(level);
                taken += level.bytes();
            }
        }
        assert!((9000..=10_000).contains(&taken), "{taken}");
    }
}
