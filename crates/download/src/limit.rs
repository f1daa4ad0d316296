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
struct Bucket {
    rate: Bitrate,
    level: DataSize,
    filled: Instant,
}

impl Bucket {
    fn new(rate: Bitrate) -> Self {
        Self { rate, level: DataSize::ZERO, filled: Instant::ZERO }
    }

    /// How many bytes may be taken now.
    fn level(&mut self, now: Instant) -> DataSize {
        let gained = self.rate * now.since(self.filled);
        // Less than a byte's worth of time is kept for the next look.
        if !gained.is_zero() {
            self.level = (self.level + gained).min((self.rate * DEPTH).max(LEAST));
            self.filled = now;
        }
        // A trickle would cost a system call for each packet.
        if self.level < (self.rate * GULP).clamp(LEAST_GULP, MOST_GULP) { DataSize::ZERO } else { self.level }
    }

    fn take(&mut self, len: DataSize) {
        self.level -= len;
    }

    /// When it is worth looking again.
    fn next(&self, now: Instant) -> Instant {
        let missing = (self.rate * GULP).clamp(LEAST_GULP, MOST_GULP) - self.level;
        now + (missing / self.rate).clamp(Duration::from_millis(1), Duration::from_millis(500))
    }
}

/// The bounds of a command: one for all links together, and each link's own, whatever number of downloads uses them.
#[derive(Clone, Debug)]
pub(super) struct Bounds {
    began: std::time::Instant,
    all: Option<Rc<RefCell<Bucket>>>,
    links: Rc<RefCell<BTreeMap<String, Rc<RefCell<Bucket>>>>>,
}

impl Bounds {
    pub(super) fn new(all: Option<Bitrate>) -> Self {
        let all = all.map(|rate| Rc::new(RefCell::new(Bucket::new(rate))));
        Self { began: std::time::Instant::now(), all, links: Rc::default() }
    }

    /// For a download whose clock begins at `started`.
    pub(super) fn for_run(&self, started: std::time::Instant) -> Limits {
        let offset = started.saturating_duration_since(self.began);
        Limits { bounds: Some(self.clone()), offset, all: self.all.clone(), links: BTreeMap::new() }
    }
}

/// The bounds as one download sees them.
#[derive(Clone, Debug, Default)]
pub(super) struct Limits {
    /// None: there are no others.
    bounds: Option<Bounds>,
    /// How much later its clock began than that of the bounds.
    offset: Duration,
    all: Option<Rc<RefCell<Bucket>>>,
    links: BTreeMap<LinkId, Rc<RefCell<Bucket>>>,
}

impl Limits {
    pub(super) fn set(&mut self, link: LinkId, profile: &LinkProfile) {
        let Some(limit) = profile.rate_limit else { return };
        let bucket = || Rc::new(RefCell::new(Bucket::new(limit)));
        let shared = self
            .bounds
            .as_ref()
            .map(|bounds| Rc::clone(bounds.links.borrow_mut().entry(profile.name.clone()).or_insert_with(bucket)));
        self.links.entry(link).or_insert_with(|| shared.unwrap_or_else(bucket));
    }

    /// How many bytes a link may bring now.
    pub(super) fn level(&self, link: LinkId, now: Instant) -> DataSize {
        let buckets = self.all.iter().chain(self.links.get(&link));
        let now = now + self.offset;
        buckets.map(|bucket| bucket.borrow_mut().level(now)).min().unwrap_or(DataSize::MAX)
    }

    pub(super) fn take(&self, link: LinkId, len: DataSize) {
        for bucket in self.all.iter().chain(self.links.get(&link)) {
            bucket.borrow_mut().take(len);
        }
    }

    /// When it is worth looking again; none: nothing is bounded.
    pub(super) fn next(&self, now: Instant) -> Option<Instant> {
        let buckets = self.all.iter().chain(self.links.values());
        let next = buckets.map(|bucket| bucket.borrow().next(now + self.offset)).min()?;
        Some(next - self.offset)
    }
}

/// chosen: a tenth of a second, two looks at 20 Hz.
const DEPTH: Duration = Duration::from_millis(100);
/// One packet and a bit: reading less is not worth a system call.
const LEAST: DataSize = DataSize::from_kib(2);
/// What is read at once: what comes in this time, and no more than this.
const GULP: Duration = Duration::from_millis(20);
const LEAST_GULP: DataSize = DataSize::from_bytes(500);
const MOST_GULP: DataSize = DataSize::from_kib(64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_kept_over_any_time() {
        let mut bucket = Bucket::new(Bitrate::from_mbps(8));
        let mut taken = DataSize::ZERO;
        for ms in (0..10_000).step_by(7) {
            let level = bucket.level(Instant::from_millis(ms));
            bucket.take(level);
            taken += level;
        }
        let kb = taken.bytes() / 1000;
        assert!((9_980..=10_000).contains(&kb), "{kb}");
    }

    #[test]
    fn two_downloads_share_one_bound() {
        let bounds = Bounds::new(Some(Bitrate::from_mbps(8)));
        let profile = LinkProfile {
            rate_limit: Some(Bitrate::from_mbps(4)),
            ..LinkProfile::new("w", marline_core::link::LinkKind::Wifi)
        };
        let later = bounds.began + Duration::from_secs(5);
        // The second one began later, and calls the link by another number.
        let mut runs = [(bounds.for_run(bounds.began), LinkId(0)), (bounds.for_run(later), LinkId(3))];
        for (run, link) in &mut runs {
            run.set(*link, &profile);
        }
        let mut taken = 0;
        for ms in (5000..15_000).step_by(5) {
            for (n, (run, link)) in runs.iter().enumerate() {
                let now = Instant::from_millis(if n == 0 { ms } else { ms - 5000 });
                let level = run.level(*link, now);
                run.take(*link, level);
                taken += level.bytes();
            }
        }
        assert!((4_900_000..=5_100_000).contains(&taken), "{taken}");
    }

    #[test]
    fn a_pause_is_not_followed_by_a_flood() {
        let mut bucket = Bucket::new(Bitrate::from_mbps(8));
        assert_eq!(bucket.level(Instant::from_millis(60_000)), DataSize::from_bytes(100_000));
    }

    #[test]
    fn a_crawl_still_crawls() {
        let mut bucket = Bucket::new(Bitrate::from_bits_per_sec(8000));
        let mut taken = 0;
        for ms in 0..10_000 {
            let level = bucket.level(Instant::from_millis(ms));
            if level >= DataSize::from_bytes(1000) {
                bucket.take(level);
                taken += level.bytes();
            }
        }
        assert!((9000..=10_000).contains(&taken), "{taken}");
    }
}
