//! What a direction of a link has done.

use std::ops::{Add, AddAssign};

use marline_core::units::{DataSize, Duration};

/// Packets and their IP bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Count {
    /// How many.
    pub packets: u64,
    /// Their IP bytes.
    pub size: DataSize,
}

impl Count {
    pub(super) fn one(size: DataSize) -> Self {
        Self { packets: 1, size }
    }
}

impl Add for Count {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self { packets: self.packets + other.packets, size: self.size + other.size }
    }
}

impl AddAssign for Count {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

/// What became of all packets of one direction: `pushed = delivered + dropped() + inside`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Stats {
    /// Came in.
    pub pushed: Count,
    /// Went out.
    pub delivered: Count,
    /// Found the queue full.
    pub dropped_full: Count,
    /// Dropped by CoDel.
    pub dropped_codel: Count,
    /// More than the policer lets pass.
    pub dropped_police: Count,
    /// Lost by the loss model; on a medium also frames tried too often.
    pub dropped_loss: Count,
    /// Sent while the link was down.
    pub dropped_down: Count,
    /// Larger than the MTU.
    pub dropped_large: Count,
    /// Waiting in the queue now, the packet being sent not included.
    pub queued: Count,
    /// In the queue, being sent or on the way.
    pub inside: Count,
    /// The longest wait in the queue of any packet that was sent.
    pub max_queue_delay: Duration,
    /// Time for which packets of this direction kept the server or the medium busy.
    pub airtime: Duration,
}

impl Stats {
    /// All that came in and will not go out.
    pub fn dropped(&self) -> Count {
        self.dropped_full
            + self.dropped_codel
            + self.dropped_police
            + self.dropped_loss
            + self.dropped_down
            + self.dropped_large
    }
}
