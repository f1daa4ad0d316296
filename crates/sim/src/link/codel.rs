//! CoDel (RFC 8289): drops packets so that the time spent in the queue comes down to a target.
//!
//! For each packet that leaves the queue, [`CoDel::should_drop`] decides from its time in the queue whether to drop
//! it.
//!
//! The code follows section 5 of the RFC: target 5 ms, interval 100 ms, the next drop after interval / sqrt(count).
//! A dropping state that begins soon after the last one resumes near its rate. The RFC's loop inside dequeue
//! becomes one decision per packet, because this queue delivers packets one by one.

use marline_core::units::{DataSize, Duration, Instant};

const TARGET: Duration = Duration::from_millis(5);
const INTERVAL: Duration = Duration::from_millis(100);

#[derive(Clone, Debug)]
pub(super) struct CoDel {
    max_packet: DataSize,
    /// When the queueing delay will have been above the target for an interval; `None` while it is below.
    first_above: Option<Instant>,
    is_dropping: bool,
    drop_next: Instant,
    count: u32,
    last_count: u32,
}

impl CoDel {
    /// `largest` is the largest packet: a queue that holds no more than this is never too long.
    pub(super) fn new(largest: DataSize) -> Self {
        let drop_next = Instant::ZERO;
        Self { max_packet: largest, first_above: None, is_dropping: false, drop_next, count: 0, last_count: 0 }
    }

    /// The queue has become empty.
    pub(super) fn on_empty(&mut self) {
        self.first_above = None;
        self.is_dropping = false;
    }

    /// Whether to drop a packet after `sojourn_time` in the queue; `remaining` bytes stay in the queue behind it.
    pub(super) fn should_drop(&mut self, sojourn_time: Duration, remaining: DataSize, now: Instant) -> bool {
        let is_above_target = self.is_above_target(sojourn_time, remaining, now);
        if self.is_dropping {
            if !is_above_target {
                self.is_dropping = false;
                return false;
            }
            if now < self.drop_next {
                return false;
            }
            self.count += 1;
            self.drop_next = control_law(self.drop_next, self.count);
            return true;
        }
        if !is_above_target {
            return false;
        }
        // Section 5.4: a dropping state that begins soon after the last one continues near its rate.
        let recent = self.count.saturating_sub(self.last_count);
        let is_recent = now.since(self.drop_next) < INTERVAL * 16;
        self.count = if recent > 1 && is_recent { recent } else { 1 };
        self.last_count = self.count;
        self.drop_next = control_law(now, self.count);
        self.is_dropping = true;
        true
    }

    fn is_above_target(&mut self, sojourn_time: Duration, remaining: DataSize, now: Instant) -> bool {
        if sojourn_time < TARGET || remaining <= self.max_packet {
            self.first_above = None;
            return false;
        }
        now >= *self.first_above.get_or_insert(now + INTERVAL)
    }
}

/// Time of the next drop (section 5.3).
fn control_law(from: Instant, count: u32) -> Instant {
    let nanos = INTERVAL.as_nanos() as f64 / libm::sqrt(f64::from(count.max(1)));
    from + Duration::from_nanos(nanos as u64)
}
