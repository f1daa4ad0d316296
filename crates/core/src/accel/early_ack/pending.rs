//! Pending repairs: bytes that were acknowledged early and have not arrived.
//!
//! The sender never repeats these bytes. So another process must be able to finish the flow if this one ends: for each
//! hole, where its bytes lie in their resource and which segments fill it; else the segments that reset the flow.
//!
//! 1. [`Accelerator::pending_fingerprint`] changes in the very call that makes such an acknowledgement, so that the
//!    driver writes it down before the packet leaves.
//! 2. Bytes that the sender has sent may be injected twice; bytes that it has not sent yet may not be injected at all,
//!    because it takes no acknowledgement of them. So a flow of which it is unknown how much was accepted (after a
//!    sweep, until the local stack is past it) cannot be repaired by a process that does not see its packets, and is
//!    reset ([`PendingRepair::is_acked_known`]).
//! 3. It contains no more than the repair needs; but it has all fields of the requests, and must be kept as secret as
//!    they are.

use alloc::vec::Vec;
use core::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::http_map::ResourceOffset;
use crate::accel::event::{Fetch, FetchId, PacketBytes};
use crate::link::LinkId;
use crate::units::{DataSize, Duration};
use crate::wire::packet::{FourTuple as Key, NewSegment, Seq, TcpTimestamp, Timestamps};

/// A flow with holes that its sender takes for received.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PendingRepair {
    /// The local end.
    pub local: SocketAddr,
    /// The sender.
    pub server: SocketAddr,
    /// The last acknowledgement of the sender, and its window.
    pub acked_by_server: (u32, u16),
    /// The timestamps of a segment of the sender: its own, and the echoed one.
    pub timestamps: Option<(u32, u32)>,
    /// The number that the local stack waits for.
    pub next_expected: u32,
    /// Everything before this number was acknowledged to the sender.
    #[serde(default)]
    pub acked_to_server: Option<u32>,
    /// Whether nothing else was acknowledged. If false, the flow cannot be repaired.
    pub is_acked_known: bool,
    /// The holes, in order.
    pub holes: Vec<PendingHole>,
}

/// A hole.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PendingHole {
    /// The number of its first byte.
    pub seq: u32,
    /// A timestamp of the sender from that time, where there are timestamps.
    pub ts_val: Option<u32>,
    /// How its bytes can be fetched; its link is meaningless. None: they cannot be.
    pub fetch: Option<Fetch>,
}

impl PendingHole {
    /// One past the number of its last byte. A hole of unknown length counts as two bytes, and so does one of a single
    /// byte, since the last byte of a flow may be withheld.
    pub(crate) fn end(&self) -> Seq {
        let ranges = self.fetch.iter().flat_map(|fetch| &fetch.ranges);
        let bytes: u64 = ranges.map(|(start, end)| end.saturating_sub(*start)).sum();
        Seq::new(self.seq).plus(u32::try_from(bytes.max(2)).unwrap_or(u32::MAX))
    }
}

impl PendingRepair {
    /// From the sender to this host; none if the ends are of two families.
    fn flow(&self) -> Option<Key> {
        Key::new(self.server, self.local)
    }

    /// Segments that fill a hole with `bytes`. `min_tsval`: the newest timestamp that the local stack has accepted, if
    /// known; an older one would be discarded.
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

    /// A segment with a byte that the local stack already has, which it answers with an acknowledgement.
    pub fn probe_segment(&self, next_expected: Seq) -> Option<PacketBytes> {
        let (ack, window) = (Seq::new(self.acked_by_server.0), self.acked_by_server.1);
        let timestamps = self
            .timestamps
            .map(|(value, echo)| Timestamps { ts_val: TcpTimestamp::new(value), ts_ecr: TcpTimestamp::new(echo) });
        NewSegment::data(&self.flow()?, next_expected.minus(1), ack, window, timestamps, &[0])
            .emit()
            .map(PacketBytes)
    }

    /// A segment that resets the flow at the sender, if `next` is the number that the local stack sends next.
    pub fn server_reset(&self, next: Seq, next_expected: Seq) -> Option<PacketBytes> {
        NewSegment::reset(&self.flow()?.reversed(), next, next_expected).emit().map(PacketBytes)
    }

    /// Segments one of which resets the flow, at whichever hole the local stack waits, or at `here`.
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

/// A hole of a flow.
pub(crate) fn pending_hole(
    seq: Seq,
    bytes: u64,
    ts_val: Option<TcpTimestamp>,
    location: Option<(SocketAddr, ResourceOffset)>,
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

/// Bytes are injected again that the local stack has not acknowledged by then, because it has dropped them: longer than
/// Linux delays an ACK (40 ms).
pub(crate) const INJECT_INTERVAL: Duration = Duration::from_millis(60);
/// Bytes of an injected segment: fits into a packet of 1500 bytes with all headers of IPv6 and options.
pub(crate) const MAX_PAYLOAD: usize = 1400;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::packet::{Flags, Segment};

    fn pending_repair() -> PendingRepair {
        let hole = |seq, ts_val| PendingHole { seq, ts_val, fetch: None };
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
    fn a_hole_is_filled_by_segments_of_the_sender_across_wraparound() {
        let pending = pending_repair();
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
        assert_eq!(second.ts_val, TcpTimestamp::new(1000), "the newest one, where the hole has none");
        let segments = pending.fill_segments(&pending.holes[0], b"x", Some(TcpTimestamp::new(950)));
        let timestamps = Segment::parse(&segments[0].0).unwrap().timestamps().unwrap();
        assert_eq!(timestamps.ts_val, TcpTimestamp::new(950), "an older one would be discarded");
    }

    #[test]
    fn a_flow_is_reset_at_each_number_that_the_stack_may_wait_for() {
        let packets = pending_repair().local_resets(Seq::new(pending_repair().next_expected));
        let seqs: Vec<Seq> = packets.iter().map(|packet| Segment::parse(&packet.0).unwrap().seq()).collect();
        assert_eq!(seqs, [Seq::new(u32::MAX - 99), Seq::new(5000)]);
        assert!(packets.iter().all(|packet| Segment::parse(&packet.0).unwrap().flags().contains(Flags::RST)));
    }
}
