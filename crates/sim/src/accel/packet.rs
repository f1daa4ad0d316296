//! Segments as packets, and packets as segments.
//!
//! In: a [`Segment`] of one connection; or the bytes that left. Out: the other one.
//!
//! 1. On the wire numbers begin where the plan says and go round; the nearest one to what the reading end waits for is meant.
//! 2. Clocks tick in milliseconds from where the plan says. A segment without its timestamps, where they were agreed on,
//!    has no place here: [`Read::Odd`].
//! 3. Windows are scaled, rounded down; those of SYNs are not.

use std::net::SocketAddr;

use marline_core::units::{DataSize, Instant};
use marline_core::wire::packet::{
    Flags, FourTuple, IpParams, NewSegment, OptionList, SackBlocks, Segment as View, Seq, SeqRange, TcpOption,
    TcpTimestamp, Timestamps,
};

use super::content::Content;
use super::scene::Plan;
use crate::link::Direction;
use crate::tcp::{Flags as Bits, SackBlocks as Blocks, Segment, SeqRange as StreamRange};

/// What both ends have agreed on, and who they are.
#[derive(Clone, Debug)]
pub(super) struct Names {
    /// From the client to the server.
    pub(super) flow: FourTuple,
    numbers: [u32; 2],
    clocks: [u32; 2],
    scale: u8,
    sack: bool,
    timestamps: bool,
}

/// Where the end that reads a packet stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// The number it waits for.
    pub(super) next: u64,
    /// The first of its own that is unacknowledged.
    pub(super) una: u64,
}

/// A packet, read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Read {
    /// What it says.
    Segment(Segment),
    /// No packet of this connection as its ends would make it.
    Odd(&'static str),
}

impl Names {
    /// Of the n-th flow; none where the addresses do not fit.
    pub(super) fn new(plan: &Plan, n: usize) -> Option<Self> {
        let port = 40_000 + u16::try_from(n).ok()?;
        let server = if plan.is_http { 80 } else { 443 };
        let (from, to) = if plan.is_v6 {
            (format!("[2001:db8::2]:{port}"), format!("[2001:db8:1::{}]:{server}", n + 1))
        } else {
            (format!("10.0.0.2:{port}"), format!("192.0.2.{}:{server}", n + 1))
        };
        let (from, to): (SocketAddr, SocketAddr) = (from.parse().ok()?, to.parse().ok()?);
        Some(Self {
            flow: FourTuple::new(from, to)?,
            numbers: plan.numbers,
            clocks: plan.clocks,
            scale: plan.scale,
            sack: plan.sack,
            timestamps: plan.timestamps,
        })
    }

    /// Of a connection without SACK and timestamps, whose numbers begin there.
    pub(super) const fn of(flow: FourTuple, numbers: [u32; 2], scale: u8) -> Self {
        Self { flow, numbers, clocks: [0, 0], scale, sack: false, timestamps: false }
    }

    /// The packet that carries a segment, whole.
    pub(super) fn emit(&self, direction: Direction, segment: &Segment, content: &Content) -> Vec<u8> {
        let [own, other] = self.ends(direction);
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
            seq: if syn { Seq::new(self.numbers[own]) } else { self.seq(own, segment.seqs.start) },
            ack: if ack { self.seq(other, segment.ack) } else { Seq::default() },
            flags,
            window: u16::try_from(scaled).unwrap_or(u16::MAX),
            options: self.options(own, other, segment),
            payload: &payload,
        };
        new.emit().unwrap_or_default()
    }

    /// What a packet says to the end that it is for.
    pub(super) fn read(&self, direction: Direction, packet: &View<'_>, at: Place, now: Instant) -> Read {
        let [own, other] = self.ends(direction);
        let flags = packet.flags();
        let syn = flags.contains(Flags::SYN);
        let ack = packet.ack();
        let (start, end) = (packet.payload_range().start, packet.payload_range().end);
        let Some(start) = self.near(own, start, at.next) else { return Read::Odd("a number before its stream") };
        let Some(acked) = self.near(other, ack.unwrap_or_else(|| self.seq(other, 0)), at.una) else {
            return Read::Odd("an acknowledgement before the stream");
        };
        let (sent, echo) = match (packet.timestamps(), self.timestamps) {
            (Some(stamps), true) => {
                let echo = ack.map(|_| self.instant(other, stamps.ts_ecr, now));
                (self.instant(own, stamps.ts_val, now), echo)
            }
            (None, false) => (now, None),
            (Some(_), false) => return Read::Odd("timestamps that nobody agreed on"),
            (None, true) if flags.contains(Flags::RST) => (now, None),
            (None, true) => return Read::Odd("no timestamps"),
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
            return Read::Odd("SACK blocks that nobody agreed on");
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

    /// The number that a message about a segment of this direction means, to its sender, who stands there.
    pub(super) fn number(&self, direction: Direction, seq: Seq, una: u64) -> Option<u64> {
        let [own, _] = self.ends(direction);
        self.near(own, seq, una)
    }

    const fn ends(&self, direction: Direction) -> [usize; 2] {
        match direction {
            Direction::Up => [0, 1],
            Direction::Down => [1, 0],
        }
    }

    fn seq(&self, end: usize, number: u64) -> Seq {
        // Only the low 32 bits are on the wire.
        Seq::new(self.numbers[end].wrapping_add(1).wrapping_add((number & u64::from(u32::MAX)) as u32))
    }

    fn near(&self, end: usize, seq: Seq, near: u64) -> Option<u64> {
        near.checked_add_signed(i64::from(seq.offset_from(self.seq(end, near))))
    }

    fn stamp(&self, end: usize, at: Instant) -> TcpTimestamp {
        let millis = at.as_nanos() / 1_000_000;
        TcpTimestamp::new(self.clocks[end].wrapping_add((millis & u64::from(u32::MAX)) as u32))
    }

    fn instant(&self, end: usize, stamp: TcpTimestamp, now: Instant) -> Instant {
        let millis = now.as_nanos() / 1_000_000;
        let by = stamp.since(self.stamp(end, now));
        Instant::from_millis(millis.saturating_add_signed(i64::from(by)))
    }

    fn options(&self, own: usize, other: usize, segment: &Segment) -> OptionList {
        let stamps = self.timestamps.then(|| Timestamps {
            ts_val: self.stamp(own, segment.ts_val),
            ts_ecr: segment.ts_ecr.map_or(TcpTimestamp::default(), |echo| self.stamp(other, echo)),
        });
        if !segment.flags.syn {
            let mut sacks = SackBlocks::default();
            for block in segment.sacks.iter() {
                sacks.push(SeqRange::new(self.seq(other, block.start), self.seq(other, block.end)));
            }
            return OptionList::established(stamps, &sacks);
        }
        let mut list = OptionList::default();
        list.push(&TcpOption::Mss(1460));
        if self.sack {
            list.push(&TcpOption::SackPermitted);
        }
        if let Some(stamps) = stamps {
            list.push(&TcpOption::Timestamps(stamps));
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
    fn a_segment_is_read_back_as_it_was_over_the_seam() {
        let plan =
            Plan { numbers: [u32::MAX - 5, u32::MAX - 100], clocks: [u32::MAX - 3, 9], ..Plan::download(9000) };
        let names = Names::new(&plan, 3).unwrap();
        let content = Content::new(&plan, 3, names.flow.destination());
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
        let bytes = names.emit(Direction::Up, &segment, &content);
        let read = names.read(Direction::Up, &View::parse(&bytes).unwrap(), Place { next: 100, una: 3000 }, now);
        assert_eq!(read, Read::Segment(segment));
    }

    #[test]
    fn a_handshake_is_read_back() {
        let plan = Plan::download(10);
        let names = Names::new(&plan, 0).unwrap();
        let content = Content::new(&plan, 0, names.flow.destination());
        let bits = Bits { syn: true, ..Bits::default() };
        let syn = Segment { flags: bits, window: DataSize::from_bytes(65_535), ..Segment::default() };
        let bytes = names.emit(Direction::Up, &syn, &content);
        let view = View::parse(&bytes).unwrap();
        assert_eq!(view.seq().number(), plan.numbers[0]);
        let read = names.read(Direction::Up, &view, Place { next: 0, una: 0 }, Instant::ZERO);
        assert_eq!(read, Read::Segment(syn));
    }
}
