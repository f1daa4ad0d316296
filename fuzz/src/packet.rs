//! Packets: read, changed where they lie, and made.

use std::net::{Ipv4Addr, Ipv6Addr};

use marline_core::wire::packet::{
    Ack, Checksum, Datagram, Echo, Envelope, Flags, Flow, NewSegment, OptionList, Packet, Pair, Rewrite, Sacks,
    Segment, Seq, Span, Stamp, TcpOption, Timestamps, Unreachable, protocol,
};

use crate::bytes::Bytes;

/// A packet; what stands behind its end decides how it is changed, and what is made then.
pub fn packet(bytes: &[u8]) {
    let mut decisions = Bytes(bytes);
    if let Ok(packet) = Packet::parse(bytes) {
        let whole = packet.bytes();
        assert_eq!(Packet::parse(whole), Ok(packet), "what is behind a packet matters");
        assert!(whole.ends_with(packet.body()));
        decisions.take(whole.len());
        read(packet, &mut decisions);
    }
    made(&mut decisions);
}

fn read(packet: Packet<'_>, decisions: &mut Bytes<'_>) {
    let word = Unreachable::of(packet);
    let readers =
        [Segment::of(packet).is_ok(), Datagram::of(packet).is_ok(), Echo::of(packet).is_ok(), word.is_ok()];
    assert!(readers.iter().filter(|is| **is).count() <= 1, "one packet of two protocols");
    let _ = (packet.checksum(), packet.is_header_right());
    if let Ok(datagram) = Datagram::of(packet) {
        assert!(datagram.payload().len() + 8 <= packet.body().len());
        assert_eq!(datagram.flow().pair, packet.pair());
    }
    if let Ok(echo) = Echo::of(packet) {
        let again = echo.emit(&packet.pair(), packet.envelope()).expect("what has fitted fits");
        let again = Packet::parse(&again).expect("a packet");
        assert_eq!((Echo::of(again), again.checksum()), (Ok(echo), Checksum::Right));
    }
    if let Ok(word) = word {
        let again = word.emit(packet.envelope());
        let again = Packet::parse(&again).expect("a packet");
        assert_eq!((Unreachable::of(again), again.checksum()), (Ok(word), Checksum::Right));
    }
    if let Ok(segment) = Segment::of(packet) {
        let (span, inner) = (segment.span(), segment.payload_span());
        let places = segment.flags().contains(Flags::SYN) as u32 + segment.flags().contains(Flags::FIN) as u32;
        assert_eq!(span.bytes(), inner.bytes() + places);
        assert_eq!(inner.bytes() as usize, segment.payload().len());
        let says_more = segment.options().any(|option| matches!(option, TcpOption::Other { .. }));
        assert_eq!(segment.is_pure_ack() && !says_more, segment.pure_ack().is_some());
        options(&segment);
        changed(&segment, decisions);
    }
}

/// What is read can be written, and reads back.
fn options(segment: &Segment<'_>) {
    let mut list = OptionList::default();
    let all: Vec<TcpOption<'_>> = segment.options().collect();
    assert!(all.iter().all(|option| list.push(option)), "a header holds more than a header");
    let again =
        NewSegment { options: list, ..NewSegment::data(&segment.flow(), segment.seq(), Seq::new(0), 0, None, &[]) };
    let again = again.emit().expect("short");
    assert!(Segment::parse(&again).expect("a segment").options().eq(all));
}

/// Changes are what was asked for, and a checksum is as right afterwards as it was before.
fn changed(segment: &Segment<'_>, decisions: &mut Bytes<'_>) {
    let packet = segment.packet();
    let how = Change::of(decisions);
    let right = (packet.checksum() == Checksum::Right, packet.is_header_right());
    let mut bytes = packet.bytes().to_vec();
    how.make(Rewrite::of(&mut bytes).expect("it was read"), segment);
    let after = how.check(&bytes, segment);
    assert_eq!((after.checksum() == Checksum::Right, after.is_header_right()), right, "{how:?}");

    // Hardly any input has a right checksum by itself.
    let mut bytes = packet.bytes().to_vec();
    fill(&mut bytes, segment);
    how.make(Rewrite::of(&mut bytes).expect("it was read"), segment);
    assert_eq!(how.check(&bytes, segment).checksum(), Checksum::Right, "{how:?}");
}

/// Makes the checksum right, word by word (RFC 1071).
fn fill(bytes: &mut [u8], segment: &Segment<'_>) {
    let mut summed = match segment.flow().pair {
        Pair::V4(from, to) => [from.octets(), to.octets()].concat(),
        Pair::V6(from, to) => [from.octets(), to.octets()].concat(),
    };
    let body = segment.packet().body().len();
    let tcp = bytes.len() - body;
    bytes[tcp + 16..tcp + 18].fill(0);
    summed.extend([0, protocol::TCP]);
    summed.extend(u16::try_from(body).expect("a packet's length").to_be_bytes());
    summed.extend_from_slice(&bytes[tcp..]);
    summed.push(0);
    let mut sum: u32 = summed.chunks_exact(2).map(|two| u32::from(u16::from_be_bytes([two[0], two[1]]))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    bytes[tcp + 16..tcp + 18].copy_from_slice(&(!sum as u16).to_be_bytes());
}

#[derive(Debug)]
struct Change {
    ack: Seq,
    window: u16,
    echo: Stamp,
    keep: u8,
    shift: u32,
}

impl Change {
    fn of(from: &mut Bytes<'_>) -> Self {
        let (ack, echo, shift) = (Seq::new(word(from)), Stamp::new(word(from)), u32::from(from.u8()));
        Self { ack, window: from.u16(), echo, keep: from.u8(), shift }
    }

    fn make(&self, mut rewrite: Rewrite<'_>, segment: &Segment<'_>) {
        assert_eq!(rewrite.set_ack(self.ack), segment.ack().is_some());
        rewrite.set_window(self.window);
        assert_eq!(rewrite.set_echo(self.echo), segment.timestamps().is_some());
        let mut keep = self.keep;
        let left = rewrite.map_sacks(|block| {
            keep = keep.rotate_left(1);
            (keep & 1 == 1).then(|| Span::new(block.start.plus(self.shift), block.end))
        });
        assert!(self.keep != 0xff || left >= segment.sacks().blocks().len());
    }

    /// Everything that was asked for is there, and everything else is as it was.
    fn check<'a>(&self, bytes: &'a [u8], former: &Segment<'_>) -> Packet<'a> {
        let segment = Segment::parse(bytes).expect("a change breaks nothing");
        assert_eq!(bytes.len(), former.packet().bytes().len());
        assert_eq!(
            (segment.payload(), segment.flags(), segment.seq()),
            (former.payload(), former.flags(), former.seq())
        );
        assert_eq!((segment.ack(), segment.window()), (former.ack().map(|_| self.ack), self.window));
        let echo = former.timestamps().map(|stamps| Timestamps { echo: self.echo, ..stamps });
        assert_eq!((segment.timestamps(), segment.flow()), (echo, former.flow()));
        assert!(self.keep != 0 || segment.sacks().is_empty());
        segment.packet()
    }
}

/// What is made reads back as what was wanted.
fn made(from: &mut Bytes<'_>) {
    let pair =
        if from.u8().is_multiple_of(2) { Pair::V4(v4(from), v4(from)) } else { Pair::V6(v6(from), v6(from)) };
    let flow = Flow { pair, source_port: from.u16(), destination_port: from.u16() };
    let label = if matches!(pair, Pair::V6(..)) { word(from) & Envelope::LABEL_MAX } else { 0 };
    let envelope = Envelope { class: from.u8(), hops: from.u8(), label };
    let timestamps =
        (from.u8() > 63).then(|| Timestamps { value: Stamp::new(word(from)), echo: Stamp::new(word(from)) });
    let blocks: Vec<Span> =
        (0..from.u8() % 5).map(|_| Span::new(Seq::new(word(from)), Seq::new(word(from)))).collect();
    let (seq, ack, window) = (Seq::new(word(from)), Seq::new(word(from)), from.u16());
    let flags = from.one_of(&[Flags::ACK, Flags::ACK | Flags::PSH, Flags::ACK | Flags::ECE | Flags::AE]);
    let wanted = Ack { seq, ack, window, flags, timestamps, sacks: Sacks::of(&blocks) };
    let bytes = wanted.emit(&flow, envelope);
    let segment = whole(&bytes, &flow, envelope);
    let room = if timestamps.is_some() { 3 } else { 4 };
    let sacks = Sacks::of(&blocks[..blocks.len().min(room)]);
    assert_eq!(segment.pure_ack(), Some(Ack { sacks, ..wanted }));

    let payload = from.0;
    let data = NewSegment { envelope, ..NewSegment::data(&flow, seq, ack, window, timestamps, payload) };
    if let Some(bytes) = data.emit() {
        let segment = whole(&bytes, &flow, envelope);
        assert_eq!((segment.seq(), segment.ack(), segment.payload()), (seq, Some(ack), payload));
        assert_eq!((segment.window(), segment.timestamps()), (window, timestamps));
    }
    if let Some(bytes) = (Echo { is_reply: from.u8() > 127, id: from.u16(), sequence: from.u16(), data: payload })
        .emit(&pair, envelope)
    {
        let packet = Packet::parse(&bytes).expect("a packet");
        assert_eq!((Echo::of(packet).map(|echo| echo.data), packet.checksum()), (Ok(payload), Checksum::Right));
    }
}

fn whole<'a>(bytes: &'a [u8], flow: &Flow, envelope: Envelope) -> Segment<'a> {
    let segment = Segment::parse(bytes).expect("a segment");
    let packet = segment.packet();
    assert_eq!((packet.checksum(), packet.is_header_right(), packet.bytes()), (Checksum::Right, true, bytes));
    assert_eq!((segment.flow(), packet.envelope()), (*flow, envelope));
    segment
}

fn word(from: &mut Bytes<'_>) -> u32 {
    u32::from(from.u16()) << 16 | u32::from(from.u16())
}

fn v4(from: &mut Bytes<'_>) -> Ipv4Addr {
    Ipv4Addr::from(word(from))
}

fn v6(from: &mut Bytes<'_>) -> Ipv6Addr {
    Ipv6Addr::from(u128::from(from.u64()) << 64 | u128::from(from.u64()))
}
