//! Bounds on bytes a second, each as a bucket that fills at its rate.
//!
//! In: bytes taken. Out: how many may be taken now, and when there are some again. What is not read stays in the
//! kernel's buffer, whose window then holds the sender back; so nothing is dropped and nothing is paid twice.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use marline_core::link::{LinkId, LinkProfile};
use marline_core::units::{Bitrate, DataSize, Instant};

/// The bucket. It holds at most [`DEPTH`] of its rate, so that a pause is not followed by a flood.
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

    /// How many bytes may be taken now.
    fn available(&mut self, now: Instant) -> DataSize {
        let gained = self.rate * now.since(self.refilled_at);
        // Less than a byte's worth of time is kept for the next look.
        if !gained.is_zero() {
            self.level = (self.level + gained).min((self.rate * BUCKET_DEPTH).max(MIN_DEPTH));
            self.refilled_at = now;
        }
        // A trickle would cost a system call for each packet.
        if self.level < (self.rate * READ_INTERVAL).clamp(MIN_READ, MAX_READ) { DataSize::ZERO } else { self.level }
    }

    fn consume(&mut self, len: DataSize) {
        self.level -= len;
    }

    /// When it is worth looking again.
    fn next_at(&self, now: Instant) -> Instant {
        let missing = (self.rate * READ_INTERVAL).clamp(MIN_READ, MAX_READ) - self.level;
        now + (missing / self.rate).clamp(Duration::from_millis(1), Duration::from_millis(500))
    }
}

/// The bounds of a command: one for all links together, and each link's own, whatever number of downloads uses them.
#[derive(Clone, Debug)]
pub(super) struct RateLimiter {
    epoch: std::time::Instant,
    total: Option<Rc<RefCell<TokenBucket>>>,
    links: Rc<RefCell<BTreeMap<String, Rc<RefCell<TokenBucket>>>>>,
}

impl RateLimiter {
    pub(super) fn new(all: Option<Bitrate>) -> Self {
        let all = all.map(|rate| Rc::new(RefCell::new(TokenBucket::new(rate))));
        Self { epoch: std::time::Instant::now(), total: all, links: Rc::default() }
    }

    /// For a download whose clock begins at `started`.
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

/// The bounds as one download sees them.
#[derive(Clone, Debug, Default)]
pub(super) struct DownloadLimiter {
    /// None: there are no others.
    shared: Option<RateLimiter>,
    /// How much later its clock began than that of the bounds.
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

    /// How many bytes a link may bring now.
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

    /// When it is worth looking again; none: nothing is bounded.
    pub(super) fn next_at(&self, now: Instant) -> Option<Instant> {
        let buckets = self.total.iter().chain(self.links.values());
        let next = buckets.map(|bucket| bucket.borrow().next_at(now + self.clock_offset)).min()?;
        Some(next - self.clock_offset)
    }
}

/// chosen: a tenth of a second, two looks at 20 Hz.
const BUCKET_DEPTH: Duration = Duration::from_millis(100);
/// One packet and a bit: reading less is not worth a system call.
const MIN_DEPTH: DataSize = DataSize::from_kib(2);
/// What is read at once: what comes in this time, and no more than this.
const READ_INTERVAL: Duration = Duration::from_millis(20);
const MIN_READ: DataSize = DataSize::from_bytes(500);
const MAX_READ: DataSize = DataSize::from_kib(64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_kept_over_any_time() {
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
    fn two_downloads_share_one_bound() {
        let bounds = RateLimiter::new(Some(Bitrate::from_mbps(8)));
        let profile = LinkProfile {
            rate_limit: Some(Bitrate::from_mbps(4)),
            ..LinkProfile::new("w", marline_core::link::LinkKind::Wifi)
        };
        let later = bounds.epoch + Duration::from_secs(5);
        // The second one began later, and calls the link by another number.
        let mut runs = [(bounds.for_download(bounds.epoch), LinkId(0)), (bounds.for_download(later), LinkId(3))];
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
    fn a_pause_is_not_followed_by_a_flood() {
        let mut bucket = TokenBucket::new(Bitrate::from_mbps(8));
        assert_eq!(bucket.available(Instant::from_millis(60_000)), DataSize::from_bytes(100_000));
    }

    #[test]
    fn a_crawl_still_crawls() {
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
