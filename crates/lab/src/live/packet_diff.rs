//! Compares the packets that the encoder sent with the recorded ones, and measures how evenly they arrived.
//!
//! 1. A sent packet has arrived if an identical one was recorded after the previous arrived packet. So missing,
//!    changed, duplicate and reordered packets are all detected.
//! 2. A stall is the longest time without a recorded packet, between the first and the last one.
//! 3. The required buffer is the difference in delay between the slowest and the fastest packet, relative to the
//!    timestamps of the stream. A player must buffer that much to play without interruption.

use std::time::{Duration, Instant};

use serde::Serialize;

use super::flv::{FlvPacket, MediaKind};

/// A packet and the time at which it was observed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimedPacket {
    pub(crate) seen_at: Instant,
    pub(crate) packet: FlvPacket,
}

/// Result of the comparison; see the [module documentation](self).
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct PacketComparison {
    pub(crate) frames_sent: usize,
    pub(crate) frames_received: usize,
    /// Packets of video and audio.
    pub(crate) packets_sent: usize,
    pub(crate) packets_received: usize,
    /// Packets sent that were not recorded in their order.
    pub(crate) missing: usize,
    /// Packets recorded that were not sent, or not in this order.
    pub(crate) unexpected: usize,
}

impl PacketComparison {
    /// Compares sent and recorded packets.
    pub(crate) fn compare(sent: &[TimedPacket], recorded: &[TimedPacket]) -> Self {
        let frames =
            |packets: &[TimedPacket]| packets.iter().filter(|seen| seen.packet.kind == MediaKind::Video).count();
        let (mut next_sent, mut matched, mut foreign) = (0, 0, 0);
        for packet in recorded {
            let is_same = |other: &TimedPacket| {
                (other.packet.kind, other.packet.digest) == (packet.packet.kind, packet.packet.digest)
            };
            match sent.iter().skip(next_sent).position(is_same) {
                Some(skipped) => (next_sent, matched) = (next_sent + skipped + 1, matched + 1),
                None => foreign += 1,
            }
        }
        Self {
            frames_sent: frames(sent),
            frames_received: frames(recorded),
            packets_sent: sent.len(),
            packets_received: recorded.len(),
            missing: sent.len() - matched,
            unexpected: foreign,
        }
    }

    /// Whether exactly the sent packets were received, in order.
    pub(crate) fn is_complete(&self) -> bool {
        self.packets_sent > 0 && self.missing == 0 && self.unexpected == 0
    }
}

/// The longest pause between two packets that ends after `start` and begins before `end`.
pub(crate) fn longest_stall(packets: &[TimedPacket], start: Instant, end: Instant) -> Duration {
    let pauses = packets.windows(2).filter_map(|pair| match pair {
        [a, b] if b.seen_at >= start && a.seen_at <= end => Some(b.seen_at.saturating_duration_since(a.seen_at)),
        _ => None,
    });
    pauses.max().unwrap_or_default()
}

/// Difference in delay between the slowest and the fastest packet, relative to the timestamps of the stream.
pub(crate) fn required_buffer(packets: &[TimedPacket]) -> Duration {
    let Some(first) = packets.first() else { return Duration::ZERO };
    let lateness = |packet: &TimedPacket| {
        packet.seen_at.saturating_duration_since(first.seen_at).as_secs_f64()
            - f64::from(packet.packet.millis) / 1000.0
    };
    let min = packets.iter().map(lateness).fold(f64::INFINITY, f64::min);
    let max = packets.iter().map(lateness).fold(f64::NEG_INFINITY, f64::max);
    Duration::from_secs_f64((max - min).max(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Frames with these content bytes and times in milliseconds.
    fn seen(all: &[(u8, u64)]) -> Vec<TimedPacket> {
        let start_time = Instant::now();
        let one = |(n, (sum, millis)): (usize, &(u8, u64))| TimedPacket {
            seen_at: start_time + Duration::from_millis(*millis),
            packet: FlvPacket { kind: MediaKind::Video, millis: n as u32 * 40, digest: [*sum; 32] },
        };
        all.iter().enumerate().map(one).collect()
    }

    fn compared(sent: &[u8], received: &[u8]) -> (usize, usize, bool) {
        let timed = |sums: &[u8]| seen(&sums.iter().map(|sum| (*sum, 0)).collect::<Vec<_>>());
        let received = PacketComparison::compare(&timed(sent), &timed(received));
        (received.missing, received.unexpected, received.is_complete())
    }

    #[test]
    fn each_kind_of_damage_is_detected() {
        assert_eq!(compared(&[1, 2, 3, 4], &[1, 2, 3, 4]), (0, 0, true));
        assert_eq!(compared(&[1, 2, 3, 4], &[1, 2, 4]), (1, 0, false));
        assert_eq!(compared(&[1, 2, 3, 4], &[1, 2, 9, 4]), (1, 1, false));
        assert_eq!(compared(&[1, 2, 3, 4], &[1, 2, 2, 3, 4]), (0, 1, false));
        assert_eq!(compared(&[1, 2, 3, 4], &[1, 3, 2, 4]), (1, 1, false));
        assert_eq!(compared(&[1, 2, 3, 4], &[1, 2]), (2, 0, false));
        assert_eq!(compared(&[1, 1, 1], &[1, 1, 1]), (0, 0, true));
        assert_eq!(compared(&[], &[]), (0, 0, false));
    }

    #[test]
    fn stalls_and_required_buffers_are_measured() {
        let arrivals = seen(&[(1, 0), (2, 40), (3, 1040), (4, 1041), (5, 1042), (6, 1200)]);
        let all = longest_stall(&arrivals, arrivals[0].seen_at, arrivals[5].seen_at);
        assert_eq!(all, Duration::from_millis(1000));
        let later_stall = longest_stall(&arrivals, arrivals[3].seen_at, arrivals[5].seen_at);
        assert_eq!(later_stall, Duration::from_millis(158));
        assert_eq!(required_buffer(&arrivals), Duration::from_millis(1000));
        assert_eq!(required_buffer(&[]), Duration::ZERO);
    }
}
