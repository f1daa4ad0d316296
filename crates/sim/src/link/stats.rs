//! Statistics of one direction of a link.

use std::ops::{Add, AddAssign};

use marline_core::units::{DataSize, Duration};

/// A number of packets and their bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PacketCount {
    /// Number of IP packets.
    pub packets: u64,
    /// IP bytes, including headers.
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

/// Fate of all packets of one direction: `offered = delivered + dropped() + in_link`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct DirectionStats {
    /// Packets pushed into the link.
    pub offered: PacketCount,
    /// Packets that have left the link.
    pub delivered: PacketCount,
    /// Dropped because the queue was full.
    pub dropped_queue_full: PacketCount,
    /// Dropped by CoDel when they left the queue.
    pub dropped_codel: PacketCount,
    /// Dropped by the policer, before the queue.
    pub dropped_policer: PacketCount,
    /// Dropped by the loss model; on a Wi-Fi channel also frames given up after too many attempts.
    pub dropped_loss: PacketCount,
    /// Transmitted while the link was down.
    pub dropped_down: PacketCount,
    /// Dropped because they are larger than the MTU.
    pub dropped_oversize: PacketCount,
    /// In the queue now, without the packet in transmission.
    pub queued: PacketCount,
    /// In the queue, in transmission or in the delay line.
    pub in_link: PacketCount,
    /// Longest time in the queue of any transmitted packet.
    pub max_queue_delay: Duration,
    /// Time for which this direction has occupied its transmitter or the channel.
    pub airtime: Duration,
}

impl DirectionStats {
    /// All packets that entered and will never leave.
    pub fn dropped(&self) -> PacketCount {
        self.dropped_queue_full
            + self.dropped_codel
            + self.dropped_policer
            + self.dropped_loss
            + self.dropped_down
            + self.dropped_oversize
    }
}
