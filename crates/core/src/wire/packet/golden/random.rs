//! Any bytes at all: nothing panics, and checksums stay as right as they were.

use proptest::prelude::*;

use super::*;
use crate::wire::packet::Rewrite;

/// Everything that reads and changes, on everything that is there.
pub(super) fn read_and_change(bytes: &[u8]) {
    let Ok(packet) = Packet::parse(bytes) else { return };
    let _ = (packet.checksum(), packet.is_header_right(), packet.envelope(), packet.pair());
    let _ = (Echo::of(packet), Datagram::of(packet).map(|datagram| datagram.payload().len()));
    let Ok(segment) = Segment::of(packet) else { return };
    let _ = (segment.options().count(), segment.span(), segment.payload_span(), segment.flow());
    if let Some(ack) = segment.pure_ack() {
        let _ = (ack.duplicate_span(), ack.right_edge(200), ack.says_all_of(&ack, 3));
        assert!(!ack.emit(&segment.flow(), packet.envelope()).is_empty());
    }
    change(bytes, segment);
    // Hardly any of them has a right checksum by itself.
    let mut filled = bytes.to_vec();
    super::fill(&mut filled);
    change(&filled, super::segment(&filled));
}

/// A checksum is as right afterwards as it was before.
fn change(bytes: &[u8], segment: Segment<'_>) {
    let packet = segment.packet();
    let right = (packet.checksum() == Checksum::Right, packet.is_header_right());
    let mut new = bytes.to_vec();
    let mut rewrite = Rewrite::of(&mut new).unwrap();
    rewrite.set_ack(Seq::new(0x1234_5678));
    rewrite.set_window(0x9abc);
    rewrite.set_echo(Stamp::new(0xdef0_1234));
    rewrite.map_sacks(|block| (block.start.number() % 3 != 0).then(|| Span::new(block.end, block.start)));
    let after = super::packet(&new);
    assert_eq!((after.checksum() == Checksum::Right, after.is_header_right()), right);
    assert_eq!(super::segment(&new).payload(), segment.payload());
}

/// Packets that get past the first doors: a version, a length that fits, a protocol that is read.
fn plausible() -> impl Strategy<Value = Vec<u8>> {
    (any::<bool>(), 0_usize..5, proptest::collection::vec(any::<u8>(), 40..160)).prop_map(|(v6, of, mut bytes)| {
        let protocol = [protocol::TCP, protocol::TCP, protocol::UDP, protocol::ICMP, protocol::ICMP_V6][of];
        let length = u16::try_from(bytes.len() - if v6 { 40 } else { 0 }).unwrap().to_be_bytes();
        if v6 {
            bytes[0] = 0x60 | bytes[0] & 0xf;
            bytes[4..6].copy_from_slice(&length);
            bytes[6] = protocol;
        } else {
            bytes[0] = 0x45 | bytes[0] & 1;
            bytes[2..4].copy_from_slice(&length);
            bytes[6..8].fill(0);
            bytes[9] = protocol;
        }
        bytes
    })
}

proptest! {
    #[test]
    fn no_bytes_do_harm(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
        read_and_change(&bytes);
    }

    #[test]
    fn no_plausible_packet_does_harm(bytes in plausible()) {
        read_and_change(&bytes);
    }

    #[test]
    fn no_damage_to_a_kernels_packet_does_harm(
        which in 0_usize..21, wrong in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut bytes = all().nth(which).unwrap().to_vec();
        for (at, value) in wrong {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        read_and_change(&bytes);
    }
}
