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
pub(super) struct PeerWindow {
    /// One past the last number that the receiver has room for.
    window_end: u64,
    /// The other side's number in the segment that said so.
    updated_by_seq: u64,
    is_closed: bool,
    probes: u32,
}

impl PeerWindow {
    /// A handshake's window, which ends here.
    pub(super) fn on_handshake(&mut self, end: u64) {
        self.window_end = self.window_end.max(end);
        self.is_closed = false;
    }

    /// An ACK that is not older than the edge.
    pub(super) fn on_ack(&mut self, segment: &Segment, edge: u64) {
        let (window, seq) = (segment.window.bytes(), segment.seqs.start);
        let end = segment.ack.saturating_add(window);
        let is_from_same_segment = seq == self.updated_by_seq && (end > self.window_end || window == 0);
        if segment.ack > edge || seq > self.updated_by_seq || is_from_same_segment {
            *self = Self { window_end: end, updated_by_seq: seq, is_closed: window == 0, probes: 0 };
        } else {
            self.probes = 0;
        }
    }

    /// One past the last number that may be sent.
    pub(super) const fn window_end(&self) -> u64 {
        self.window_end
    }

    /// The last window was zero.
    pub(super) const fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// When the next probe is due.
    pub(super) fn next_probe(&self, now: Instant, timeout: Duration, max: Duration) -> Instant {
        now + (timeout * (1 << self.probes.min(MAX_PROBES))).min(max)
    }

    /// A probe goes out.
    pub(super) fn on_probe(&mut self) {
        self.probes += 1;
    }

    /// The receiver has been silent through all probes.
    pub(super) const fn has_given_up(&self) -> bool {
        self.probes > MAX_PROBES
    }
}

/// Linux's `tcp_retries2`.
const MAX_PROBES: u32 = 15;

#[cfg(test)]
mod tests {
    use marline_core::units::DataSize;

    use super::super::segment::SeqRange;
    use super::*;

    fn ack(number: u64, ack: u64, window: u64) -> Segment {
        let data = SeqRange::new(number, number);
        Segment { seqs: data, ack, window: DataSize::from_bytes(window), ..Segment::default() }
    }

    #[test]
    fn a_window_closes_from_the_same_number_and_shrinks_from_a_newer_one() {
        let mut room = PeerWindow::default();
        room.on_ack(&ack(5, 100, 1000), 0);
        room.on_ack(&ack(5, 100, 400), 100);
        assert_eq!((room.window_end(), room.is_closed()), (1100, false), "smaller, from the same number: old news");
        room.on_ack(&ack(5, 100, 0), 100);
        assert_eq!((room.window_end(), room.is_closed()), (100, true));
        room.on_ack(&ack(6, 100, 400), 100);
        assert_eq!((room.window_end(), room.is_closed()), (500, false));
    }

    #[test]
    fn probes_come_at_doubled_distances() {
        let (mut room, step, longest) = (PeerWindow::default(), Duration::from_millis(250), Duration::from_secs(1));
        let at = |room: &mut PeerWindow| {
            let at = room.next_probe(Instant::ZERO, step, longest);
            room.on_probe();
            at.as_nanos() / 1_000_000
        };
        assert_eq!([at(&mut room), at(&mut room), at(&mut room), at(&mut room)], [250, 500, 1000, 1000]);
    }
}
