//! IP packets: parsed, rewritten in place, and built.

use std::net::{Ipv4Addr, Ipv6Addr};

use marline_core::wire::packet::{
    Ack, AddrPair, Checksum, Datagram, Flags, FourTuple, IcmpEcho, IcmpUnreachable, IpParams, NewSegment,
    OptionList, Packet, Rewrite, SackBlocks, Segment, Seq, SeqRange, TcpOption, TcpTimestamp, Timestamps, protocol,
};

use crate::bytes::Bytes;

/// A packet. The bytes after it decide how it is rewritten, and which packets are built afterwards.
pub fn packet(bytes: &[u8]) {
    let mut decisions = Bytes(bytes);
    if let Ok(packet) = Packet::parse(bytes) {
        let whole = packet.bytes();
        assert_eq!(Packet::parse(whole), Ok(packet), "bytes after a packet change it");
        assert!(whole.ends_with(packet.body()));
        decisions.take(whole.len());
        check_parsed(packet, &mut decisions);
    }
    check_built(&mut decisions);
}

fn check_parsed(packet: Packet<'_>, decisions: &mut Bytes<'_>) {
    let unreachable = IcmpUnreachable::of(packet);
    let parsers = [
        Segment::of(packet).is_ok(),
        Datagram::of(packet).is_ok(),
        IcmpEcho::of(packet).is_ok(),
        unreachable.is_ok(),
    ];
    assert!(parsers.iter().filter(|is| **is).count() <= 1, "one packet of two protocols");
    let _ = (packet.checksum(), packet.has_valid_header_checksum());
    if let Ok(datagram) = Datagram::of(packet) {
        assert!(datagram.payload().len() + 8 <= packet.body().len());
        assert_eq!(datagram.four_tuple().addrs, packet.addrs());
    }
    if let Ok(echo) = IcmpEcho::of(packet) {
        let again = echo.emit(&packet.addrs(), packet.ip_params()).expect("a parsed message fits into a packet");
        let again = Packet::parse(&again).expect("a packet");
        assert_eq!((IcmpEcho::of(again), again.checksum()), (Ok(echo), Checksum::Valid));
    }
    if let Ok(unreachable) = unreachable {
        let again = unreachable.emit(packet.ip_params());
        let again = Packet::parse(&again).expect("a packet");
        assert_eq!((IcmpUnreachable::of(again), again.checksum()), (Ok(unreachable), Checksum::Valid));
    }
    if let Ok(segment) = Segment::of(packet) {
        let (seq_range, payload_range) = (segment.seq_range(), segment.payload_range());
        let flags_len = segment.flags().contains(Flags::SYN) as u32 + segment.flags().contains(Flags::FIN) as u32;
        assert_eq!(seq_range.len(), payload_range.len() + flags_len);
        assert_eq!(payload_range.len() as usize, segment.payload().len());
        let has_other_option = segment.options().any(|option| matches!(option, TcpOption::Other { .. }));
        assert_eq!(segment.is_pure_ack() && !has_other_option, segment.pure_ack().is_some());
        check_options(&segment);
        check_rewrite(&segment, decisions);
    }
}

/// Checks that parsed options can be written, and parse to the same options.
fn check_options(segment: &Segment<'_>) {
    let mut list = OptionList::default();
    let all: Vec<TcpOption<'_>> = segment.options().collect();
    assert!(all.iter().all(|option| list.push(option)), "parsed options do not fit into a header");
    let again = NewSegment {
        options: list,
        ..NewSegment::data(&segment.four_tuple(), segment.seq(), Seq::new(0), 0, None, &[])
    };
    let again = again.emit().expect("a segment without payload fits into a packet");
    assert!(Segment::parse(&again).expect("a segment").options().eq(all));
}

/// Checks that a rewrite changes only the requested fields, and that a checksum is valid afterwards if and only if it was
/// valid before.
fn check_rewrite(segment: &Segment<'_>, decisions: &mut Bytes<'_>) {
    let packet = segment.packet();
    let changes = Changes::read(decisions);
    let valid = (packet.checksum() == Checksum::Valid, packet.has_valid_header_checksum());
    let mut bytes = packet.bytes().to_vec();
    changes.apply(Rewrite::of(&mut bytes).expect("a parsed segment"), segment);
    let after = changes.check(&bytes, segment);
    assert_eq!((after.checksum() == Checksum::Valid, after.has_valid_header_checksum()), valid, "{changes:?}");

    // Random inputs almost never have a valid checksum, so the rewrite is repeated with one.
    let mut bytes = packet.bytes().to_vec();
    set_valid_checksum(&mut bytes, segment);
    changes.apply(Rewrite::of(&mut bytes).expect("a parsed segment"), segment);
    assert_eq!(changes.check(&bytes, segment).checksum(), Checksum::Valid, "{changes:?}");
}

/// Computes the TCP checksum over all 16-bit words (RFC 1071), independently of the tested code.
fn set_valid_checksum(bytes: &mut [u8], segment: &Segment<'_>) {
    let mut summed = match segment.four_tuple().addrs {
        AddrPair::V4(source, destination) => [source.octets(), destination.octets()].concat(),
        AddrPair::V6(source, destination) => [source.octets(), destination.octets()].concat(),
    };
    let body = segment.packet().body().len();
    let tcp = bytes.len() - body;
    bytes[tcp + 16..tcp + 18].fill(0);
    summed.extend([0, protocol::TCP]);
    summed.extend(u16::try_from(body).expect("the length of a packet").to_be_bytes());
    summed.extend_from_slice(&bytes[tcp..]);
    // Padding for an odd length; `chunks_exact` drops it after an even one.
    summed.push(0);
    let mut sum: u32 = summed.chunks_exact(2).map(|two| u32::from(u16::from_be_bytes([two[0], two[1]]))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    bytes[tcp + 16..tcp + 18].copy_from_slice(&(!sum as u16).to_be_bytes());
}

/// Changes of a segment, as the input decides.
#[derive(Debug)]
struct Changes {
    ack: Seq,
    window: u16,
    ts_ecr: TcpTimestamp,
    /// Bits that decide in turn whether a SACK block is kept.
    kept_blocks: u8,
    /// Added to the start of each kept block.
    block_shift: u32,
}

impl Changes {
    fn read(from: &mut Bytes<'_>) -> Self {
        let (ack, ts_ecr, block_shift) =
            (Seq::new(read_u32(from)), TcpTimestamp::new(read_u32(from)), u32::from(from.u8()));
        Self { ack, window: from.u16(), ts_ecr, kept_blocks: from.u8(), block_shift }
    }

    fn apply(&self, mut rewrite: Rewrite<'_>, segment: &Segment<'_>) {
        assert_eq!(rewrite.set_ack(self.ack), segment.ack().is_some());
        rewrite.set_window(self.window);
        assert_eq!(rewrite.set_ts_ecr(self.ts_ecr), segment.timestamps().is_some());
        let mut kept_blocks = self.kept_blocks;
        let kept = rewrite.map_sack_blocks(|block| {
            kept_blocks = kept_blocks.rotate_left(1);
            (kept_blocks & 1 == 1).then(|| SeqRange::new(block.start.plus(self.block_shift), block.end))
        });
        assert!(self.kept_blocks != 0xff || kept >= segment.sack_blocks().blocks().len());
    }

    /// Checks that all requested changes were made, and no others.
    fn check<'a>(&self, bytes: &'a [u8], original: &Segment<'_>) -> Packet<'a> {
        let segment = Segment::parse(bytes).expect("a rewritten segment parses");
        assert_eq!(bytes.len(), original.packet().bytes().len());
        assert_eq!(
            (segment.payload(), segment.flags(), segment.seq()),
            (original.payload(), original.flags(), original.seq())
        );
        assert_eq!((segment.ack(), segment.window()), (original.ack().map(|_| self.ack), self.window));
        let timestamps = original.timestamps().map(|stamps| Timestamps { ts_ecr: self.ts_ecr, ..stamps });
        assert_eq!((segment.timestamps(), segment.four_tuple()), (timestamps, original.four_tuple()));
        assert!(self.kept_blocks != 0 || segment.sack_blocks().is_empty());
        segment.packet()
    }
}

/// Builds packets with values from the input and checks that they parse to the same values.
fn check_built(from: &mut Bytes<'_>) {
    let addrs = if from.u8().is_multiple_of(2) {
        AddrPair::V4(read_ipv4(from), read_ipv4(from))
    } else {
        AddrPair::V6(read_ipv6(from), read_ipv6(from))
    };
    let four_tuple = FourTuple { addrs, source_port: from.u16(), destination_port: from.u16() };
    let flow_label = if matches!(addrs, AddrPair::V6(..)) { read_u32(from) & IpParams::FLOW_LABEL_MAX } else { 0 };
    let ip_params = IpParams { traffic_class: from.u8(), hop_limit: from.u8(), flow_label };
    let timestamps = (from.u8() > 63).then(|| Timestamps {
        ts_val: TcpTimestamp::new(read_u32(from)),
        ts_ecr: TcpTimestamp::new(read_u32(from)),
    });
    let blocks: Vec<SeqRange> =
        (0..from.u8() % 5).map(|_| SeqRange::new(Seq::new(read_u32(from)), Seq::new(read_u32(from)))).collect();
    let (seq, ack, window) = (Seq::new(read_u32(from)), Seq::new(read_u32(from)), from.u16());
    let flags = from.one_of(&[Flags::ACK, Flags::ACK | Flags::PSH, Flags::ACK | Flags::ECE | Flags::AE]);
    let wanted = Ack { seq, ack, window, flags, timestamps, sack_blocks: SackBlocks::of(&blocks) };
    let bytes = wanted.emit(&four_tuple, ip_params);
    let segment = parse_built(&bytes, &four_tuple, ip_params);
    // Beside timestamps a TCP header has space for three SACK blocks only.
    let max_blocks = if timestamps.is_some() { 3 } else { 4 };
    let sack_blocks = SackBlocks::of(&blocks[..blocks.len().min(max_blocks)]);
    assert_eq!(segment.pure_ack(), Some(Ack { sack_blocks, ..wanted }));

    let payload = from.0;
    let data = NewSegment { ip_params, ..NewSegment::data(&four_tuple, seq, ack, window, timestamps, payload) };
    if let Some(bytes) = data.emit() {
        let segment = parse_built(&bytes, &four_tuple, ip_params);
        assert_eq!((segment.seq(), segment.ack(), segment.payload()), (seq, Some(ack), payload));
        assert_eq!((segment.window(), segment.timestamps()), (window, timestamps));
    }
    let echo = IcmpEcho { is_reply: from.u8() > 127, id: from.u16(), sequence: from.u16(), data: payload };
    if let Some(bytes) = echo.emit(&addrs, ip_params) {
        let packet = Packet::parse(&bytes).expect("a packet");
        assert_eq!((IcmpEcho::of(packet).map(|echo| echo.data), packet.checksum()), (Ok(payload), Checksum::Valid));
    }
}

fn parse_built<'a>(bytes: &'a [u8], four_tuple: &FourTuple, ip_params: IpParams) -> Segment<'a> {
    let segment = Segment::parse(bytes).expect("a segment");
    let packet = segment.packet();
    assert_eq!(
        (packet.checksum(), packet.has_valid_header_checksum(), packet.bytes()),
        (Checksum::Valid, true, bytes)
    );
    assert_eq!((segment.four_tuple(), packet.ip_params()), (*four_tuple, ip_params));
    segment
}

fn read_u32(from: &mut Bytes<'_>) -> u32 {
    u32::from(from.u16()) << 16 | u32::from(from.u16())
}

fn read_ipv4(from: &mut Bytes<'_>) -> Ipv4Addr {
    Ipv4Addr::from(read_u32(from))
}

fn read_ipv6(from: &mut Bytes<'_>) -> Ipv6Addr {
    Ipv6Addr::from(u128::from(from.u64()) << 64 | u128::from(from.u64()))
}
