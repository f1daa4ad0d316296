//! What a flow's other end has said last: what is given to the own stack in its name says it again.
//!
//! In: segments of the other end as they pass, and how far the own stack has sent. Out: the newest acknowledgement, window and
//! timestamps.
//!
//! 1. What passes may be forged, or damaged. So nothing counts that acknowledges what was never sent, or what is long past
//!    (RFC 5961 §5.2); and of what the own stack has sent nothing that is far beyond what was acknowledged.

use crate::wire::packet::{Segment, Seq, Timestamps};

/// See the [module](self).
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::accel) struct PeerState {
    /// One past the last number that the own stack has sent.
    local_end: Option<Seq>,
    /// What seemed to be sent, and was too far to be believed at once.
    unconfirmed_end: Option<Seq>,
    ack: Option<Seq>,
    pub(in crate::accel) window: u16,
    pub(in crate::accel) timestamps: Option<Timestamps>,
}

impl PeerState {
    /// The own stack has sent everything before this.
    pub(in crate::accel) fn on_local_end(&mut self, end: Seq) {
        let is_far = |from: Seq| !(-MAX_DISTANCE..=MAX_DISTANCE).contains(&end.offset_from(from));
        if self.ack.or(self.local_end).is_none_or(|from| !is_far(from)) {
            self.local_end = Some(self.local_end.map_or(end, |sent| sent.later(end)));
            self.unconfirmed_end = None;
        } else if self.unconfirmed_end.replace(end).is_some_and(|other| !is_far(other)) {
            // Two that agree: the one before was none of it, or much has left unseen.
            (self.local_end, self.unconfirmed_end) = (Some(end), None);
        }
    }

    /// A segment of the other end that acknowledges this; false: it is none of it.
    pub(in crate::accel) fn on_arrival(&mut self, segment: &Segment<'_>, ack: Seq) -> bool {
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

    /// What it has acknowledged.
    pub(in crate::accel) fn ack(&self) -> Seq {
        self.ack.unwrap_or_default()
    }
}

/// Bytes. chosen: more than a window of a request's direction, a 256th of all numbers.
const MAX_DISTANCE: i32 = 1 << 24;

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use super::*;
    use crate::wire::packet::{AddrPair, FourTuple, NewSegment, TcpTimestamp};

    /// A far end that was sent everything before 1000, and whether it has said this.
    fn says(ack: u32) -> (PeerState, bool) {
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
    fn a_forged_packet_of_the_own_end_does_not_deafen_it() {
        let mut forged_first = PeerState::default();
        forged_first.on_local_end(Seq::new(0x4000_0000));
        forged_first.on_local_end(Seq::new(1000));
        forged_first.on_local_end(Seq::new(1100));
        assert_eq!(forged_first.local_end, Some(Seq::new(1100)));
        let (mut peer, _) = says(1000);
        peer.on_local_end(Seq::new(0x4000_0000));
        peer.on_local_end(Seq::new(1200));
        assert_eq!(peer.local_end, Some(Seq::new(1200)));
        for sent in [0x5000_0000, 0x5000_0500] {
            peer.on_local_end(Seq::new(sent));
        }
        assert_eq!(peer.local_end, Some(Seq::new(0x5000_0500)), "much was sent that nobody saw");
    }

    #[test]
    fn what_was_sent_may_be_acknowledged_and_nothing_else() {
        let (peer, is_its) = says(1000);
        assert!(is_its && peer.ack() == Seq::new(1000) && peer.window == 5 && peer.timestamps.is_some());
        assert!(says(900).1);
        for forged in [1001, 0x1200_0000, 900_u32.wrapping_sub(1 << 25)] {
            let (peer, is_its) = says(forged);
            assert!(!is_its && peer.ack() == Seq::default() && peer.timestamps.is_none(), "{forged}");
        }
    }
}
