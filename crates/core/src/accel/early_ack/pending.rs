//! What is owed: bytes that were acknowledged ahead of the local TCP stack and are not here.
//!
//! In: the flows that hide. Out: for each, all that somebody else needs to bring it to its end if this process is no
//! more: where each hole lies in its resource, and the segments that fill it; else the segments that end the flow.
//!
//! 1. Nobody will send these bytes again, for they were acknowledged. So they are known to somebody before they are
//!    ([`Accelerator::owing`] changes in the very call that makes the acknowledgement).
//! 2. Bytes that the sender has sent may be given twice; bytes that it has not sent yet may not be given at all, for it takes no
//!    acknowledgement of them. So a flow of which it is not known how much was believed (after a ladder, until the local TCP stack is past
//!    it) cannot be filled by somebody who does not see its packets, and is ended ([`Owed::is_sure`]).
//! 3. It says nothing that is not needed for it; but of requests it has all fields, and is to be kept as secret as they are.

use alloc::vec::Vec;
use core::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::fetch::{Fetch, FetchId};
use super::flow_state::{EarlyAckFlow, MAX_PAYLOAD};
use crate::accel::Accelerator;
use crate::accel::event::PacketBytes;
use crate::accel::flow::FlowState;
use crate::link::LinkId;
use crate::units::DataSize;
use crate::wire::packet::{FourTuple as Key, NewSegment, Seq, TcpTimestamp, Timestamps};

/// A flow with holes that its sender takes for received.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PendingRepair {
    /// This end.
    pub local: SocketAddr,
    /// The sender's.
    pub server: SocketAddr,
    /// What the sender has acknowledged last, and the window that it gave.
    pub acked_by_server: (u32, u16),
    /// What a segment of the sender has as timestamps: its own, and the one that it echoes.
    pub timestamps: Option<(u32, u32)>,
    /// What the local TCP stack waits for.
    pub next_expected: u32,
    /// Everything before this was acknowledged to the sender.
    #[serde(default)]
    pub acked_to_server: Option<u32>,
    /// Whether nothing else was acknowledged. If not, the flow cannot be brought to its end.
    pub is_acked_known: bool,
    /// The holes, in their order.
    pub holes: Vec<PendingHole>,
}

/// One of them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PendingHole {
    /// The number of its first byte.
    pub seq: u32,
    /// The same as a timestamp of the sender at that time, where there are timestamps.
    pub ts_val: Option<u32>,
    /// How its bytes can be got; of the link it says nothing. None: they cannot.
    pub fetch: Option<Fetch>,
}

impl PendingHole {
    /// One past the number of its last byte. A hole whose length is not known counts as two bytes, and so does one of a single byte,
    /// since the last byte of a flow may be withheld.
    pub(in crate::accel) fn end(&self) -> Seq {
        let ranges = self.fetch.iter().flat_map(|fetch| &fetch.ranges);
        let bytes: u64 = ranges.map(|(start, end)| end.saturating_sub(*start)).sum();
        Seq::new(self.seq).plus(u32::try_from(bytes.max(2)).unwrap_or(u32::MAX))
    }
}

impl PendingRepair {
    /// From the sender to here; none, if the ends are of two families.
    fn flow(&self) -> Option<Key> {
        Key::new(self.server, self.local)
    }

    /// Segments that fill a hole with `bytes`. `least`: the newest timestamp that the local TCP stack has accepted, if that is known; an
    /// older one would be discarded.
    pub fn fill_segments(
        &self,
        hole: &PendingHole,
        bytes: &[u8],
        min_tsval: Option<TcpTimestamp>,
    ) -> Vec<PacketBytes> {
        let Some(flow) = self.flow() else { return Vec::new() };
        let timestamps = self.timestamps.map(|(value, echo)| {
            let value = TcpTimestamp::new(hole.ts_val.unwrap_or(value));
            let value = min_tsval.filter(|min_tsval| value.is_before(*min_tsval)).unwrap_or(value);
            Timestamps { ts_val: value, ts_ecr: TcpTimestamp::new(echo) }
        });
        let (ack, window) = (Seq::new(self.acked_by_server.0), self.acked_by_server.1);
        let pieces = bytes.chunks(MAX_PAYLOAD).zip(0_u32..).filter_map(|(piece, at)| {
            let seq = Seq::new(hole.seq).plus(at * MAX_PAYLOAD as u32);
            NewSegment::data(&flow, seq, ack, window, timestamps, piece).emit()
        });
        pieces.map(PacketBytes).collect()
    }

    /// A segment with a byte that the local TCP stack has had, which it answers with an acknowledgement.
    pub fn probe_segment(&self, next_expected: Seq) -> Option<PacketBytes> {
        let (ack, window) = (Seq::new(self.acked_by_server.0), self.acked_by_server.1);
        let timestamps = self
            .timestamps
            .map(|(value, echo)| Timestamps { ts_val: TcpTimestamp::new(value), ts_ecr: TcpTimestamp::new(echo) });
        NewSegment::data(&self.flow()?, next_expected.minus(1), ack, window, timestamps, &[0])
            .emit()
            .map(PacketBytes)
    }

    /// A segment that ends the flow at the sender, if `next` is the number that the local TCP stack sends next.
    pub fn server_reset(&self, next: Seq, next_expected: Seq) -> Option<PacketBytes> {
        NewSegment::reset(&self.flow()?.reversed(), next, next_expected).emit().map(PacketBytes)
    }

    /// Segments one of which ends the flow, at whichever of its holes the local TCP stack waits, or at `here`.
    pub fn local_resets(&self, next_expected: Seq) -> Vec<PacketBytes> {
        let Some(flow) = self.flow() else { return Vec::new() };
        let ack = Seq::new(self.acked_by_server.0);
        let mut positions: Vec<u32> = [next_expected.number(), self.next_expected]
            .into_iter()
            .chain(self.holes.iter().map(|hole| hole.seq))
            .collect();
        positions.dedup();
        let resets = positions.iter().filter_map(|seq| NewSegment::reset(&flow, Seq::new(*seq), ack).emit());
        resets.map(PacketBytes).collect()
    }
}

impl Accelerator {
    /// Changes whenever [`owed`](Self::owed) does, and costs little to ask.
    pub fn pending_fingerprint(&self) -> (u64, u64) {
        let sum = |(total, missing): (u64, u64), early_ack: &EarlyAckFlow| {
            let (early_acked, open) = early_ack.pending_fingerprint();
            (total.wrapping_add(early_acked), missing.wrapping_add(open))
        };
        self.early_ack_flows().fold((0, 0), sum)
    }

    /// What is owed now.
    pub fn pending_repairs(&self) -> Vec<PendingRepair> {
        self.early_ack_flows().filter_map(EarlyAckFlow::pending_repair).collect()
    }

    fn early_ack_flows(&self) -> impl Iterator<Item = &EarlyAckFlow> {
        let flow = |(key, _): &(Key, crate::accel::CaptureLevel)| self.flows.get(key);
        self.early_ack_flows.values().filter_map(flow).filter_map(FlowState::early_ack)
    }
}

/// A hole, as [`Hiding`] knows it.
pub(in crate::accel) fn pending_hole(
    seq: Seq,
    bytes: u64,
    ts_val: Option<TcpTimestamp>,
    location: Option<(SocketAddr, super::http_map::ResourceOffset)>,
) -> PendingHole {
    let fetch = location.map(|(server, location)| Fetch {
        id: FetchId(0),
        link: LinkId(0),
        server,
        request: location.resource.request.clone(),
        etag: location.resource.etag.clone(),
        length: DataSize::from_bytes(location.resource.length),
        ranges: alloc::vec![(location.offset, location.offset + bytes)],
    });
    PendingHole { seq: seq.number(), ts_val: ts_val.map(TcpTimestamp::ticks), fetch }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::packet::{Flags, Segment};

    fn owed() -> PendingRepair {
        let hole = |seq, ts_val| PendingHole { seq, ts_val: ts_val, fetch: None };
        PendingRepair {
            local: ([10, 0, 0, 2], 40_000).into(),
            server: ([192, 0, 2, 1], 80).into(),
            acked_by_server: (77, 500),
            timestamps: Some((1000, 9)),
            next_expected: u32::MAX - 99,
            acked_to_server: None,
            is_acked_known: true,
            holes: alloc::vec![hole(u32::MAX - 99, Some(900)), hole(5000, None)],
        }
    }

    #[test]
    fn a_hole_is_filled_by_segments_of_the_sender_around_the_end_of_the_numbers() {
        let pending = owed();
        let bytes: Vec<u8> = (0..3000_u32).map(|at| (at % 251) as u8).collect();
        let packets = pending.fill_segments(&pending.holes[0], &bytes, None);
        let mut all = Vec::new();
        for (packet, seq) in packets.iter().zip([u32::MAX - 99, 1300, 2700]) {
            let segment = Segment::parse(&packet.0).unwrap();
            assert_eq!((segment.seq(), segment.ack()), (Seq::new(seq), Some(Seq::new(77))));
            assert_eq!(segment.four_tuple().destination(), pending.local);
            let timestamps = segment.timestamps().unwrap();
            assert_eq!((timestamps.ts_val, timestamps.ts_ecr), (TcpTimestamp::new(900), TcpTimestamp::new(9)));
            all.extend_from_slice(segment.payload());
        }
        assert_eq!((packets.len(), all), (3, bytes));
        let second = pending.fill_segments(&pending.holes[1], b"x", Some(TcpTimestamp::new(990)));
        let second = Segment::parse(&second[0].0).unwrap().timestamps().unwrap();
        assert_eq!(second.ts_val, TcpTimestamp::new(1000), "what came last, where the hole's own is not known");
        let late = pending.fill_segments(&pending.holes[0], b"x", Some(TcpTimestamp::new(950)));
        let late = Segment::parse(&late[0].0).unwrap().timestamps().unwrap();
        assert_eq!(late.ts_val, TcpTimestamp::new(950), "an older one would be discarded");
    }

    #[test]
    fn a_flow_is_ended_at_each_number_that_it_may_wait_for() {
        let packets = owed().local_resets(Seq::new(owed().next_expected));
        let seqs: Vec<Seq> = packets.iter().map(|packet| Segment::parse(&packet.0).unwrap().seq()).collect();
        assert_eq!(seqs, [Seq::new(u32::MAX - 99), Seq::new(5000)]);
        assert!(packets.iter().all(|packet| Segment::parse(&packet.0).unwrap().flags().contains(Flags::RST)));
    }
}
