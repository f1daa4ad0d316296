//! The peer's receive window, and the persist timer for a closed window (RFC 9293).
//!
//! 1. A window update is accepted if its ACK acknowledges new data, has a newer sequence number, or extends the
//!    window. From the same sequence number, only a window of zero may shrink it (`tcp_may_update_window` of Linux
//!    6.18).
//! 2. While the window is closed and nothing is outstanding, probes are sent after a timeout that doubles each time
//!    (RFC 9293 §3.8.6.1). With data outstanding, the retransmission timer of the sender has this role.

use core::time::Duration;

use marline_core::units::Instant;

use super::segment::Segment;

/// The peer's receive window.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PeerWindow {
    /// End of the window, as a sequence number.
    window_end: u64,
    /// Sequence number of the segment with the last window update.
    updated_by_seq: u64,
    is_closed: bool,
    probes: u32,
}

impl PeerWindow {
    /// The window announced in the handshake.
    pub(super) fn on_handshake(&mut self, end: u64) {
        self.window_end = self.window_end.max(end);
        self.is_closed = false;
    }

    /// An ACK that is not older than `edge`, the first unacknowledged sequence number.
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

    /// End of the sequence numbers that may be sent.
    pub(super) const fn window_end(&self) -> u64 {
        self.window_end
    }

    /// Whether the last window update was zero.
    pub(super) const fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Time of the next probe; `timeout` doubles with each probe, up to `max`.
    pub(super) fn next_probe(&self, now: Instant, timeout: Duration, max: Duration) -> Instant {
        now + (timeout * (1 << self.probes.min(MAX_PROBES))).min(max)
    }

    /// A probe is sent.
    pub(super) fn on_probe(&mut self) {
        self.probes += 1;
    }

    /// Whether the peer has responded to none of the probes.
    pub(super) const fn has_given_up(&self) -> bool {
        self.probes > MAX_PROBES
    }
}

/// More probes than this without a response end the connection: Linux's `tcp_retries2`.
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
    fn a_window_shrinks_only_with_a_newer_sequence_number_or_to_zero() {
        let mut peer_window = PeerWindow::default();
        peer_window.on_ack(&ack(5, 100, 1000), 0);
        peer_window.on_ack(&ack(5, 100, 400), 100);
        assert_eq!(
            (peer_window.window_end(), peer_window.is_closed()),
            (1100, false),
            "a smaller window from the same number is outdated"
        );
        peer_window.on_ack(&ack(5, 100, 0), 100);
        assert_eq!((peer_window.window_end(), peer_window.is_closed()), (100, true));
        peer_window.on_ack(&ack(6, 100, 400), 100);
        assert_eq!((peer_window.window_end(), peer_window.is_closed()), (500, false));
    }

    #[test]
    fn the_interval_between_probes_doubles() {
        let (mut peer_window, step, longest) =
            (PeerWindow::default(), Duration::from_millis(250), Duration::from_secs(1));
        let at = |window: &mut PeerWindow| {
            let at = window.next_probe(Instant::ZERO, step, longest);
            window.on_probe();
            at.as_nanos() / 1_000_000
        };
        assert_eq!(
            [at(&mut peer_window), at(&mut peer_window), at(&mut peer_window), at(&mut peer_window)],
            [250, 500, 1000, 1000]
        );
    }
}
