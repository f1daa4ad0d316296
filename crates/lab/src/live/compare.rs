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

use super::flv::{Kind, Packet};

/// A packet and when it was seen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) at: Instant,
    pub(crate) packet: Packet,
}

/// See the [module](self).
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Received {
    pub(crate) frames_sent: usize,
    pub(crate) frames_received: usize,
    /// Packets, audio included.
    pub(crate) packets_sent: usize,
    pub(crate) packets_received: usize,
    /// Sent, and not recorded in their place.
    pub(crate) missing: usize,
    /// Recorded, and not sent, or not in this place.
    pub(crate) foreign: usize,
}

impl Received {
    /// Compares both.
    pub(crate) fn of(sent: &[Seen], received: &[Seen]) -> Self {
        let frames = |seen: &[Seen]| seen.iter().filter(|seen| seen.packet.kind == Kind::Video).count();
        let (mut next, mut matched, mut foreign) = (0, 0, 0);
        for seen in received {
            let is = |other: &Seen| (other.packet.kind, other.packet.sum) == (seen.packet.kind, seen.packet.sum);
            match sent.iter().skip(next).position(is) {
                Some(ahead) => (next, matched) = (next + ahead + 1, matched + 1),
                None => foreign += 1,
            }
        }
        Self {
            frames_sent: frames(sent),
            frames_received: frames(received),
            packets_sent: sent.len(),
            packets_received: received.len(),
            missing: sent.len() - matched,
            foreign,
        }
    }

    /// Whether every packet that was sent was received, in order, and nothing else.
    pub(crate) fn is_whole(&self) -> bool {
        self.packets_sent > 0 && self.missing == 0 && self.foreign == 0
    }
}

/// The longest pause between arrivals that ends after `from` and begins before `until`.
pub(crate) fn stall(seen: &[Seen], from: Instant, until: Instant) -> Duration {
    let pauses = seen.windows(2).filter_map(|pair| match pair {
        [a, b] if b.at >= from && a.at <= until => Some(b.at.saturating_duration_since(a.at)),
        _ => None,
    });
    pauses.max().unwrap_or_default()
}

/// How much later than the quickest the slowest of them came, against the stream's own clock.
pub(crate) fn delay(seen: &[Seen]) -> Duration {
    let Some(first) = seen.first() else { return Duration::ZERO };
    let late = |seen: &Seen| {
        seen.at.saturating_duration_since(first.at).as_secs_f64() - f64::from(seen.packet.millis) / 1000.0
    };
    let least = seen.iter().map(late).fold(f64::INFINITY, f64::min);
    let most = seen.iter().map(late).fold(f64::NEG_INFINITY, f64::max);
    Duration::from_secs_f64((most - least).max(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Frames with these bytes and moments in milliseconds.
    fn seen(all: &[(u8, u64)]) -> Vec<Seen> {
        let zero = Instant::now();
        let one = |(n, (sum, millis)): (usize, &(u8, u64))| Seen {
            at: zero + Duration::from_millis(*millis),
            packet: Packet { kind: Kind::Video, millis: n as u32 * 40, sum: [*sum; 32] },
        };
        all.iter().enumerate().map(one).collect()
    }

    fn compared(sent: &[u8], received: &[u8]) -> (usize, usize, bool) {
        let timed = |sums: &[u8]| seen(&sums.iter().map(|sum| (*sum, 0)).collect::<Vec<_>>());
        let received = Received::of(&timed(sent), &timed(received));
        (received.missing, received.foreign, received.is_whole())
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
        let all = stall(&arrivals, arrivals[0].at, arrivals[5].at);
        assert_eq!(all, Duration::from_millis(1000));
        let later = stall(&arrivals, arrivals[3].at, arrivals[5].at);
        assert_eq!(later, Duration::from_millis(158));
        assert_eq!(delay(&arrivals), Duration::from_millis(1000));
        assert_eq!(delay(&[]), Duration::ZERO);
    }
}
