//! The newest acknowledgement, window and timestamps of a flow's peer. Segments that are injected into the local stack
//! in its name repeat them.
//!
//! Captured packets may be forged or damaged. So a packet counts only if it does not acknowledge what was never sent,
//! or what was acknowledged long ago (RFC 5961 section 5.2); and a local segment only if it is not far beyond what was
//! acknowledged.

use crate::wire::packet::{Segment, Seq, Timestamps};

/// See the [module documentation](self).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PeerState {
    /// One past the last number that the local stack has sent.
    local_end: Option<Seq>,
    /// A local end that was too far away to be accepted at once.
    unconfirmed_end: Option<Seq>,
    ack: Option<Seq>,
    pub(crate) window: u16,
    pub(crate) timestamps: Option<Timestamps>,
}

impl PeerState {
    /// The local stack has sent everything before this number.
    pub(crate) fn on_local_end(&mut self, end: Seq) {
        let is_implausible = |from: Seq| !(-MAX_DISTANCE..=MAX_DISTANCE).contains(&end.offset_from(from));
        if self.ack.or(self.local_end).is_none_or(|from| !is_implausible(from)) {
            self.local_end = Some(self.local_end.map_or(end, |sent| sent.later(end)));
            self.unconfirmed_end = None;
        } else if self.unconfirmed_end.replace(end).is_some_and(|other| !is_implausible(other)) {
            // Two segments agree: the accepted one was forged, or many segments were not captured.
            (self.local_end, self.unconfirmed_end) = (Some(end), None);
        }
    }

    /// A segment of the peer with this acknowledgement; false: it is not the peer's.
    pub(crate) fn on_arrival(&mut self, segment: &Segment<'_>, ack: Seq) -> bool {
        if self.local_end.is_some_and(|sent| !(0..=MAX_DISTANCE).contains(&sent.offset_from(ack))) {
            return false;
        }
        if self.ack.is_none_or(|old| !ack.is_before(old)) {
            (self.ack, self.window) = (Some(ack), segment.window());
        }
        let is_newer = |new: &Timestamps| self.timestamps.is_none_or(|old| !new.ts_val.is_before(old.ts_val));
        self.timestamps = segment.timestamps().filter(is_newer).or(self.timestamps);
        true
    }

    /// What the peer has acknowledged.
    pub(crate) fn ack(&self) -> Seq {
        self.ack.unwrap_or_default()
    }
}

/// Bytes. Our choice: more than a window of the request direction, a 256th of the sequence space.
const MAX_DISTANCE: i32 = 1 << 24;

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use super::*;
    use crate::wire::packet::{AddrPair, FourTuple, NewSegment, TcpTimestamp};

    /// A peer that was sent everything before 1000, and whether it accepts a segment with this acknowledgement.
    fn receive_ack(ack: u32) -> (PeerState, bool) {
        let mut peer = PeerState::default();
        peer.on_local_end(Seq::new(1000));
        let pair = AddrPair::V4(Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST);
        let flow = FourTuple { addrs: pair, source_port: 80, destination_port: 9 };
        let timestamps = Some(Timestamps { ts_val: TcpTimestamp::new(7), ts_ecr: TcpTimestamp::new(6) });
        let packet = NewSegment::data(&flow, Seq::new(1), Seq::new(ack), 5, timestamps, b"x").emit().unwrap();
        let is_its = peer.on_arrival(&Segment::parse(&packet).unwrap(), Seq::new(ack));
        (peer, is_its)
    }

    #[test]
    fn a_forged_local_packet_does_not_block_genuine_ones() {
        let mut forged_first = PeerState::default();
        forged_first.on_local_end(Seq::new(0x4000_0000));
        forged_first.on_local_end(Seq::new(1000));
        forged_first.on_local_end(Seq::new(1100));
        assert_eq!(forged_first.local_end, Some(Seq::new(1100)));
        let (mut peer, _) = receive_ack(1000);
        peer.on_local_end(Seq::new(0x4000_0000));
        peer.on_local_end(Seq::new(1200));
        assert_eq!(peer.local_end, Some(Seq::new(1200)));
        for sent in [0x5000_0000, 0x5000_0500] {
            peer.on_local_end(Seq::new(sent));
        }
        assert_eq!(peer.local_end, Some(Seq::new(0x5000_0500)), "many segments were not captured");
    }

    #[test]
    fn only_data_that_was_sent_may_be_acknowledged() {
        let (peer, is_its) = receive_ack(1000);
        assert!(is_its && peer.ack() == Seq::new(1000) && peer.window == 5 && peer.timestamps.is_some());
        assert!(receive_ack(900).1);
        for forged in [1001, 0x1200_0000, 900_u32.wrapping_sub(1 << 25)] {
            let (peer, is_its) = receive_ack(forged);
            assert!(!is_its && peer.ack() == Seq::default() && peer.timestamps.is_none(), "{forged}");
        }
    }
}
