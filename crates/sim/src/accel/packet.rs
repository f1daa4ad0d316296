//! Converts segments of one connection into packets, and packets into segments.
//!
//! 1. On the wire, sequence numbers start where the script says and wrap. A number means the one nearest to what the
//!    reader expects.
//! 2. Timestamps tick in milliseconds and start where the script says. A segment without timestamps, if they were
//!    agreed on, is [`Read::Invalid`].
//! 3. Windows are scaled, rounded down; those of SYNs are not.

use std::net::SocketAddr;

use marline_core::units::{DataSize, Instant};
use marline_core::wire::packet::{
    Flags, FourTuple, IpParams, NewSegment, OptionList, SackBlocks, Segment as View, Seq, SeqRange, TcpOption,
    TcpTimestamp, Timestamps,
};

use crate::accel::byte_stream::ByteStreams;
use crate::accel::scenario::FlowScript;
use crate::link::Direction;
use crate::tcp::{Flags as Bits, SackBlocks as Blocks, Segment, SeqRange as StreamRange};

/// Addresses of a connection, and what both ends have agreed on.
#[derive(Clone, Debug)]
pub(super) struct WireParams {
    /// From the client to the server.
    pub(super) flow: FourTuple,
    first_seqs: [u32; 2],
    first_timestamps: [u32; 2],
    scale: u8,
    sack: bool,
    timestamps: bool,
}

/// The state of the end that reads a packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadPosition {
    /// The sequence number that it expects.
    pub(super) next: u64,
    /// Its own first unacknowledged one.
    pub(super) una: u64,
}

/// A packet that was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Read {
    /// Its content.
    Segment(Segment),
    /// Not a packet that an end of this connection would send.
    Invalid(&'static str),
}

impl WireParams {
    /// Of the n-th flow; none if there is no address for it.
    pub(super) fn new(script: &FlowScript, n: usize) -> Option<Self> {
        let port = 40_000 + u16::try_from(n).ok()?;
        let server = if script.is_http { 80 } else { 443 };
        let (from, to) = if script.is_v6 {
            (format!("[2001:db8::2]:{port}"), format!("[2001:db8:1::{}]:{server}", n + 1))
        } else {
            (format!("10.0.0.2:{port}"), format!("192.0.2.{}:{server}", n + 1))
        };
        let (from, to): (SocketAddr, SocketAddr) = (from.parse().ok()?, to.parse().ok()?);
        Some(Self {
            flow: FourTuple::new(from, to)?,
            first_seqs: script.numbers,
            first_timestamps: script.clocks,
            scale: script.scale,
            sack: script.sack,
            timestamps: script.timestamps,
        })
    }

    /// Of a connection without SACK and timestamps, with these initial sequence numbers.
    pub(super) const fn of(flow: FourTuple, numbers: [u32; 2], scale: u8) -> Self {
        Self { flow, first_seqs: numbers, first_timestamps: [0, 0], scale, sack: false, timestamps: false }
    }

    /// The packet of a segment.
    pub(super) fn emit(&self, direction: Direction, segment: &Segment, content: &ByteStreams) -> Vec<u8> {
        let [local, other] = self.ends(direction);
        let flow = if direction == Direction::Up { self.flow } else { self.flow.reversed() };
        let payload = content.bytes(direction, segment.seqs.start, segment.seqs.end);
        let Bits { syn, ack, fin, rst } = segment.flags;
        let mut flags = Flags::default();
        for (is_set, flag) in [(syn, Flags::SYN), (ack, Flags::ACK), (fin, Flags::FIN), (rst, Flags::RST)] {
            flags = if is_set { flags | flag } else { flags };
        }
        let scaled = if syn { segment.window.bytes() } else { segment.window.bytes() >> self.scale };
        let new = NewSegment {
            four_tuple: flow,
            ip_params: IpParams::default(),
            seq: if syn { Seq::new(self.first_seqs[local]) } else { self.seq(local, segment.seqs.start) },
            ack: if ack { self.seq(other, segment.ack) } else { Seq::default() },
            flags,
            window: u16::try_from(scaled).unwrap_or(u16::MAX),
            options: self.options(local, other, segment),
            payload: &payload,
        };
        new.emit().unwrap_or_default()
    }

    /// The segment of a packet, as its receiver reads it.
    pub(super) fn read(&self, direction: Direction, packet: &View<'_>, at: ReadPosition, now: Instant) -> Read {
        let [local, other] = self.ends(direction);
        let flags = packet.flags();
        let syn = flags.contains(Flags::SYN);
        let ack = packet.ack();
        let (start, end) = (packet.payload_range().start, packet.payload_range().end);
        let Some(start) = self.near(local, start, at.next) else {
            return Read::Invalid("a number before its stream");
        };
        let Some(acked) = self.near(other, ack.unwrap_or_else(|| self.seq(other, 0)), at.una) else {
            return Read::Invalid("an acknowledgement before the stream");
        };
        let (sent, echo) = match (packet.timestamps(), self.timestamps) {
            (Some(timestamps), true) => {
                let echo = ack.map(|_| self.instant(other, timestamps.ts_ecr, now));
                (self.instant(local, timestamps.ts_val, now), echo)
            }
            (None, false) => (now, None),
            (Some(_), false) => return Read::Invalid("timestamps that were not agreed on"),
            (None, true) if flags.contains(Flags::RST) => (now, None),
            (None, true) => return Read::Invalid("no timestamps"),
        };
        let mut sacks = Blocks::default();
        for block in packet.sack_blocks().blocks() {
            let ends = [block.start, block.end].map(|seq| self.near(other, seq, at.una));
            if let [Some(start), Some(end)] = ends
                && start < end
            {
                sacks.push(StreamRange::new(start, end));
            }
        }
        if !packet.sack_blocks().is_empty() && !self.sack {
            return Read::Invalid("SACK blocks that were not agreed on");
        }
        let length = u64::from(end.since(packet.payload_range().start));
        let window = u64::from(packet.window()) << if syn { 0 } else { self.scale };
        Read::Segment(Segment {
            flow: 0,
            flags: Bits {
                syn,
                ack: ack.is_some(),
                fin: flags.contains(Flags::FIN),
                rst: flags.contains(Flags::RST),
            },
            seqs: StreamRange::new(start, start + length),
            ack: acked,
            window: DataSize::from_bytes(window),
            sacks,
            ts_val: sent,
            ts_ecr: echo,
        })
    }

    /// The sequence number that an ICMP message about a segment of this direction means for its sender.
    pub(super) fn number(&self, direction: Direction, seq: Seq, una: u64) -> Option<u64> {
        let [local, _] = self.ends(direction);
        self.near(local, seq, una)
    }

    const fn ends(&self, direction: Direction) -> [usize; 2] {
        match direction {
            Direction::Up => [0, 1],
            Direction::Down => [1, 0],
        }
    }

    fn seq(&self, end: usize, number: u64) -> Seq {
        // Only the low 32 bits are on the wire.
        Seq::new(self.first_seqs[end].wrapping_add(1).wrapping_add((number & u64::from(u32::MAX)) as u32))
    }

    fn near(&self, end: usize, seq: Seq, near: u64) -> Option<u64> {
        near.checked_add_signed(i64::from(seq.offset_from(self.seq(end, near))))
    }

    fn timestamp_at(&self, end: usize, at: Instant) -> TcpTimestamp {
        let millis = at.as_nanos() / 1_000_000;
        TcpTimestamp::new(self.first_timestamps[end].wrapping_add((millis & u64::from(u32::MAX)) as u32))
    }

    fn instant(&self, end: usize, ts_val: TcpTimestamp, now: Instant) -> Instant {
        let millis = now.as_nanos() / 1_000_000;
        let by = ts_val.since(self.timestamp_at(end, now));
        Instant::from_millis(millis.saturating_add_signed(i64::from(by)))
    }

    fn options(&self, local: usize, other: usize, segment: &Segment) -> OptionList {
        let timestamps = self.timestamps.then(|| Timestamps {
            ts_val: self.timestamp_at(local, segment.ts_val),
            ts_ecr: segment.ts_ecr.map_or(TcpTimestamp::default(), |echo| self.timestamp_at(other, echo)),
        });
        if !segment.flags.syn {
            let mut sacks = SackBlocks::default();
            for block in segment.sacks.iter() {
                sacks.push(SeqRange::new(self.seq(other, block.start), self.seq(other, block.end)));
            }
            return OptionList::established(timestamps, &sacks);
        }
        let mut list = OptionList::default();
        list.push(&TcpOption::Mss(1460));
        if self.sack {
            list.push(&TcpOption::SackPermitted);
        }
        if let Some(timestamps) = timestamps {
            list.push(&TcpOption::Timestamps(timestamps));
        }
        if self.scale > 0 {
            list.push(&TcpOption::Nop);
            list.push(&TcpOption::WindowScale(self.scale));
        }
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_survives_conversion_across_sequence_wraparound() {
        let script = FlowScript {
            numbers: [u32::MAX - 5, u32::MAX - 100],
            clocks: [u32::MAX - 3, 9],
            ..FlowScript::download(9000)
        };
        let params = WireParams::new(&script, 3).unwrap();
        let content = ByteStreams::new(&script, 3, params.flow.destination());
        let now = Instant::from_millis(5000);
        let mut sacks = Blocks::default();
        sacks.push(StreamRange::new(6000, 7448));
        let segment = Segment {
            flags: Bits { ack: true, ..Bits::default() },
            seqs: StreamRange::new(100, 200),
            ack: 4552,
            window: DataSize::from_bytes(128 * 300),
            sacks,
            ts_val: now,
            ts_ecr: Some(Instant::from_millis(4950)),
            ..Segment::default()
        };
        let bytes = params.emit(Direction::Up, &segment, &content);
        let read =
            params.read(Direction::Up, &View::parse(&bytes).unwrap(), ReadPosition { next: 100, una: 3000 }, now);
        assert_eq!(read, Read::Segment(segment));
    }

    #[test]
    fn a_syn_survives_conversion() {
        let script = FlowScript::download(10);
        let params = WireParams::new(&script, 0).unwrap();
        let content = ByteStreams::new(&script, 0, params.flow.destination());
        let bits = Bits { syn: true, ..Bits::default() };
        let syn = Segment { flags: bits, window: DataSize::from_bytes(65_535), ..Segment::default() };
        let bytes = params.emit(Direction::Up, &syn, &content);
        let view = View::parse(&bytes).unwrap();
        assert_eq!(view.seq().number(), script.numbers[0]);
        let read = params.read(Direction::Up, &view, ReadPosition { next: 0, una: 0 }, Instant::ZERO);
        assert_eq!(read, Read::Segment(syn));
    }
}
