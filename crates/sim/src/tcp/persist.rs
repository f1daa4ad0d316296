//! How far may be sent, and what is done while nothing may?
//!
//! In: the windows that ACKs advertise, the time. Out: the number behind the last that the receiver has room for, and when
//! to ask again while there is no room and nothing on its way.
//!
//! 1. A window counts if its ACK acknowledges something new, comes from a newer number of the other side, or ends later
//!    than the one before; a window of zero counts from the same number too (Linux 6.18's `tcp_may_update_window`).
//! 2. Closed, with nothing outstanding: a probe after a timeout, then after twice as long each time (RFC 9293 §3.8.6.1).
//!    With something outstanding the retransmission timer asks; that is the sender's matter.

use core::time::Duration;

use marline_core::units::Instant;

use super::segment::Segment;

/// The receiver's window.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Room {
    /// One past the last number that the receiver has room for.
    end: u64,
    /// The other side's number in the segment that said so.
    from: u64,
    is_closed: bool,
    probes: u32,
}

impl Room {
    /// A handshake's window, which ends here.
    pub(super) fn on_handshake(&mut self, end: u64) {
        self.end = self.end.max(end);
        self.is_closed = false;
    }

    /// An ACK that is not older than the edge.
    pub(super) fn on_ack(&mut self, segment: &Segment, edge: u64) {
        let (window, number) = (segment.window.bytes(), segment.data.start);
        let end = segment.ack.saturating_add(window);
        let same = number == self.from && (end > self.end || window == 0);
        if segment.ack > edge || number > self.from || same {
            *self = Self { end, from: number, is_closed: window == 0, probes: 0 };
        } else {
            self.probes = 0;
        }
    }

    /// One past the last number that may be sent.
    pub(super) const fn end(&self) -> u64 {
        self.end
    }

    /// The last window was zero.
    pub(super) const fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// When the next probe is due.
    pub(super) fn probe_at(&self, now: Instant, timeout: Duration, longest: Duration) -> Instant {
        now + (timeout * (1 << self.probes.min(PROBES))).min(longest)
    }

    /// A probe goes out.
    pub(super) fn on_probe(&mut self) {
        self.probes += 1;
    }

    /// The receiver has been silent through all probes.
    pub(super) const fn gave_up(&self) -> bool {
        self.probes > PROBES
    }
}

/// Linux's `tcp_retries2`.
const PROBES: u32 = 15;

#[cfg(test)]
mod tests {
    use marline_core::units::DataSize;

    use super::super::segment::Seqs;
    use super::*;

    fn ack(number: u64, ack: u64, window: u64) -> Segment {
        let data = Seqs::new(number, number);
        Segment { data, ack, window: DataSize::from_bytes(window), ..Segment::default() }
    }

    #[test]
    fn a_window_closes_from_the_same_number_and_shrinks_from_a_newer_one() {
        let mut room = Room::default();
        room.on_ack(&ack(5, 100, 1000), 0);
        room.on_ack(&ack(5, 100, 400), 100);
        assert_eq!((room.end(), room.is_closed()), (1100, false), "smaller, from the same number: old news");
        room.on_ack(&ack(5, 100, 0), 100);
        assert_eq!((room.end(), room.is_closed()), (100, true));
        room.on_ack(&ack(6, 100, 400), 100);
        assert_eq!((room.end(), room.is_closed()), (500, false));
    }

    #[test]
    fn probes_come_at_doubled_distances() {
        let (mut room, step, longest) = (Room::default(), Duration::from_millis(250), Duration::from_secs(1));
        let at = |room: &mut Room| {
            let at = room.probe_at(Instant::ZERO, step, longest);
            room.on_probe();
            at.as_nanos() / 1_000_000
        };
        assert_eq!([at(&mut room), at(&mut room), at(&mut room), at(&mut room)], [250, 500, 1000, 1000]);
    }
}
