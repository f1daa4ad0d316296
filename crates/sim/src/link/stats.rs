//! What a direction of a link has done.

use std::ops::{Add, AddAssign};

use marline_core::units::{DataSize, Duration};

/// Packets and their IP bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PacketCount {
    /// How many.
    pub packets: u64,
    /// Their IP bytes.
    pub bytes: DataSize,
}

impl PacketCount {
    pub(super) fn single(size: DataSize) -> Self {
        Self { packets: 1, bytes: size }
    }
}

impl Add for PacketCount {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self { packets: self.packets + other.packets, bytes: self.bytes + other.bytes }
    }
}

impl AddAssign for PacketCount {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

/// What became of all packets of one direction: `pushed = delivered + dropped() + inside`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct DirectionStats {
    /// Came in.
    pub offered: PacketCount,
    /// Went out.
    pub delivered: PacketCount,
    /// Found the queue full.
    pub dropped_queue_full: PacketCount,
    /// Dropped by CoDel.
    pub dropped_codel: PacketCount,
    /// More than the policer lets pass.
    pub dropped_policer: PacketCount,
    /// Lost by the loss model; on a medium also frames tried too often.
    pub dropped_loss: PacketCount,
    /// Sent while the link was down.
    pub dropped_down: PacketCount,
    /// Larger than the MTU.
    pub dropped_oversize: PacketCount,
    /// Waiting in the queue now, the packet being sent not included.
    pub queued: PacketCount,
    /// In the queue, being sent or on the way.
    pub in_link: PacketCount,
    /// The longest wait in the queue of any packet that was sent.
    pub max_queue_delay: Duration,
    /// Time for which packets of this direction kept the server or the medium busy.
    pub airtime: Duration,
}

impl DirectionStats {
    /// All that came in and will not go out.
    pub fn dropped(&self) -> PacketCount {
        self.dropped_queue_full
            + self.dropped_codel
            + self.dropped_policer
            + self.dropped_loss
            + self.dropped_down
            + self.dropped_oversize
    }
}
