//! What became of each packet that the encoder sent, and how evenly they arrived.
//!
//! In: packets as sent and as received, each with its moment. Out: counts, the longest pause, how far the latest was behind.
//!
//! 1. A packet has arrived if one with the same bytes was recorded after the one before it: so a packet that is missing, one
//!    that is changed, one that comes twice and one out of order are each seen.
//! 2. A stall is the longest time in which no packet arrived, between the first and the last one.
//! 3. The delay is how much later than the quickest packet the slowest one came, against the stream's own clock: what a
//!    viewer must have in the buffer so as not to notice.

use std::time::{Duration, Instant};

use serde::Serialize;

use super::flv::{FlvPacket, MediaKind};

/// A packet and when it was seen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimedPacket {
    pub(crate) seen_at: Instant,
    pub(crate) packet: FlvPacket,
}

/// See the [module](self).
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct PacketComparison {
    pub(crate) frames_sent: usize,
    pub(crate) frames_received: usize,
    /// Packets, audio included.
    pub(crate) packets_sent: usize,
    pub(crate) packets_received: usize,
    /// Sent, and not recorded in their place.
    pub(crate) missing: usize,
    /// Recorded, and not sent, or not in this place.
    pub(crate) unexpected: usize,
}

impl PacketComparison {
    /// Compares both.
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

    /// Whether every packet that was sent was received, in order, and nothing else.
    pub(crate) fn is_complete(&self) -> bool {
        self.packets_sent > 0 && self.missing == 0 && self.unexpected == 0
    }
}

/// The longest pause between arrivals that ends after `from` and begins before `until`.
pub(crate) fn longest_stall(packets: &[TimedPacket], start: Instant, end: Instant) -> Duration {
    let pauses = packets.windows(2).filter_map(|pair| match pair {
        [a, b] if b.seen_at >= start && a.seen_at <= end => Some(b.seen_at.saturating_duration_since(a.seen_at)),
        _ => None,
    });
    pauses.max().unwrap_or_default()
}

/// How much later than the quickest the slowest of them came, against the stream's own clock.
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

    /// Frames with these bytes and moments in milliseconds.
    fn seen(all: &[(u8, u64)]) -> Vec<TimedPacket> {
        let zero = Instant::now();
        let one = |(n, (sum, millis)): (usize, &(u8, u64))| TimedPacket {
            seen_at: zero + Duration::from_millis(*millis),
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
    fn each_kind_of_damage_is_seen() {
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
    fn pauses_and_delays_are_told_apart() {
        let arrivals = seen(&[(1, 0), (2, 40), (3, 1040), (4, 1041), (5, 1042), (6, 1200)]);
        let all = longest_stall(&arrivals, arrivals[0].seen_at, arrivals[5].seen_at);
        assert_eq!(all, Duration::from_millis(1000));
        let later = longest_stall(&arrivals, arrivals[3].seen_at, arrivals[5].seen_at);
        assert_eq!(later, Duration::from_millis(158));
        assert_eq!(required_buffer(&arrivals), Duration::from_millis(1000));
        assert_eq!(required_buffer(&[]), Duration::ZERO);
    }
}
