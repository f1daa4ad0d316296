//! Merging of two streams of one server: worked cases, and random losses on both links.

use marline_core::units::{Duration, Instant};
use proptest::prelude::*;

use super::{AlignmentState, StreamMerger};
use crate::proto::RtpPacket;

const REORDER_WAIT: Duration = Duration::from_millis(200);
/// Interval between pictures in milliseconds.
const FRAME_INTERVAL: u64 = 40;

/// A picture of the film: its index, its number of packets, and whether it belongs to the base layer.
#[derive(Clone, Copy, Debug)]
struct Picture {
    index: u32,
    parts: u32,
    is_base: bool,
}

/// One packet of a picture, as a session with this clock offset and SSRC sends it.
fn packet(picture: Picture, part: u32, seq: u16, clock: u32, ssrc: u32) -> Vec<u8> {
    let marker = if part + 1 == picture.parts { 0x80 } else { 0 };
    let mut bytes = vec![0x80, 96 | marker];
    bytes.extend(seq.to_be_bytes());
    bytes.extend((clock.wrapping_add(picture.index * 3600)).to_be_bytes());
    bytes.extend(ssrc.to_be_bytes());
    bytes.push(if picture.is_base { 0x61 } else { 0x01 });
    bytes.extend(content(picture.index, part));
    bytes
}

fn content(index: u32, part: u32) -> Vec<u8> {
    (0..100_u32)
        .map(|at| (index.wrapping_mul(31) ^ part.wrapping_mul(17) ^ at.wrapping_mul(index + 1)) as u8)
        .chain(index.to_be_bytes())
        .chain(part.to_be_bytes())
        .collect()
}

/// Every third picture belongs to the base layer and has three packets.
fn pictures(count: u32) -> Vec<Picture> {
    let picture = |index| Picture {
        index,
        parts: if index.is_multiple_of(3) { 3 } else { 1 },
        is_base: index.is_multiple_of(3),
    };
    (0..count).map(picture).collect()
}

/// Runs both sessions: packets arrive unless lost, those of the base layer `base_delay` milliseconds later. Returns the merger and the
/// released packets.
fn run(
    count: u32,
    primary_lost: impl Fn(u32, u32) -> bool,
    base_lost: impl Fn(u32, u32) -> bool,
    base_delay: u64,
) -> (StreamMerger, Vec<Vec<u8>>) {
    let mut events: Vec<(u64, bool, Vec<u8>)> = Vec::new();
    let (mut seq_a, mut seq_b) = (65_500_u16, 7_u16);
    for picture in pictures(count) {
        for part in 0..picture.parts {
            let at = u64::from(picture.index) * FRAME_INTERVAL + u64::from(part);
            if !primary_lost(picture.index, part) {
                events.push((at, true, packet(picture, part, seq_a, u32::MAX - 9000, 0xa)));
            }
            seq_a = seq_a.wrapping_add(1);
            if picture.is_base {
                if !base_lost(picture.index, part) {
                    events.push((at + base_delay, false, packet(picture, part, seq_b, 500, 0xb)));
                }
                seq_b = seq_b.wrapping_add(1);
            }
        }
    }
    events.sort_by_key(|(at, ..)| *at);
    let (mut merge, mut released) = (StreamMerger::new(REORDER_WAIT, true), Vec::new());
    for (at, is_primary, bytes) in events {
        let at = Instant::ZERO + Duration::from_millis(at);
        while let Some(due) = merge.deadline().filter(|due| *due <= at) {
            merge.tick(due);
            assert!(merge.deadline().is_none_or(|next| next > due), "it does what is due");
            released.extend(std::iter::from_fn(|| merge.poll()));
        }
        if is_primary {
            merge.on_primary(at, bytes)
        } else {
            merge.on_base_layer(at, bytes)
        }
        released.extend(std::iter::from_fn(|| merge.poll()));
    }
    while let Some(due) = merge.deadline() {
        merge.tick(due);
        released.extend(std::iter::from_fn(|| merge.poll()));
    }
    (merge, released)
}

/// Picture index and packet of each released packet, read from its payload. Checks that all have the SSRC and clock of the primary stream.
fn contents(released: &[Vec<u8>]) -> Vec<(u32, u32)> {
    let decode = |bytes: &Vec<u8>| {
        let rtp = RtpPacket::parse(bytes).unwrap();
        assert_eq!(rtp.ssrc, 0xa);
        let (_, tail) = rtp.payload.split_at(rtp.payload.len() - 8);
        let read_u32 = |at: usize| u32::from_be_bytes(tail[at..at + 4].try_into().unwrap());
        assert_eq!(rtp.timestamp, (u32::MAX - 9000).wrapping_add(read_u32(0) * 3600));
        (read_u32(0), read_u32(4))
    };
    released.iter().map(decode).collect()
}

fn all(count: u32) -> Vec<(u32, u32)> {
    pictures(count).iter().flat_map(|picture| (0..picture.parts).map(|part| (picture.index, part))).collect()
}

#[test]
fn a_complete_primary_stream_leaves_unchanged() {
    for base_delay in [0, 60, 150] {
        let (merge, released) = run(60, |_, _| false, |_, _| false, base_delay);
        assert_eq!(contents(&released), all(60));
        let counts = merge.counts();
        assert_eq!(
            (counts.lost, counts.unplaced, counts.base_pictures, counts.enhancement_pictures),
            (0, 0, 20, 40)
        );
        assert_eq!(merge.alignment(), AlignmentState::Aligned);
    }
}

#[test]
fn an_outage_costs_only_the_enhancement_layer() {
    let in_outage = |index: u32, _| (30..80).contains(&index);
    let (merge, released) = run(120, in_outage, |_, _| false, 60);
    let expected: Vec<_> =
        all(120).into_iter().filter(|(index, part)| !in_outage(*index, *part) || index.is_multiple_of(3)).collect();
    assert_eq!(contents(&released), expected);
    assert_eq!(merge.counts().base_pictures, 40);
    assert_eq!(merge.counts().filled, 17 * 3);
    let (alone, released) = run(120, in_outage, |_, _| true, 60);
    assert_eq!(
        (alone.counts().base_pictures, alone.counts().filled, released.len()),
        (40 - 17, 0, expected.len() - 17 * 3)
    );
    assert_eq!(alone.alignment(), AlignmentState::NoData);
}

#[test]
fn missing_packets_of_a_picture_get_their_exact_sequence_numbers() {
    // First, last and middle packets, of base and enhancement pictures.
    let lost = |index: u32, part: u32| index > 20 && (index / 3 + part).is_multiple_of(3);
    let (merge, released) = run(90, lost, |_, _| false, 60);
    let expected: Vec<_> =
        all(90).into_iter().filter(|(index, part)| !lost(*index, *part) || index.is_multiple_of(3)).collect();
    assert_eq!(contents(&released), expected);
    let mut seqs: Vec<u16> = released.iter().map(|bytes| RtpPacket::parse(bytes).unwrap().seq).collect();
    let position_of = |content: &(u32, u32)| all(90).iter().position(|other| other == content).unwrap();
    let exact: Vec<u16> =
        expected.iter().map(|content| 65_500_u16.wrapping_add(position_of(content) as u16)).collect();
    assert_eq!(seqs, exact, "each packet has the sequence number that the server gave it");
    seqs.dedup();
    assert_eq!((seqs.len(), merge.counts().unplaced), (expected.len(), 0));
}

#[test]
fn another_encoding_fills_nothing() {
    let mut merge = StreamMerger::new(REORDER_WAIT, true);
    for picture in pictures(900) {
        let at = Instant::ZERO + Duration::from_millis(u64::from(picture.index) * FRAME_INTERVAL);
        merge.on_primary(at, packet(picture, 0, picture.index as u16, 0, 0xa));
        let mut other = packet(picture, 0, picture.index as u16, 0, 0xb);
        other.iter_mut().skip(12).for_each(|byte| *byte ^= 0x15);
        merge.on_base_layer(at, other);
        assert!(merge.poll().is_some() && merge.poll().is_none());
    }
    assert_eq!((merge.alignment(), merge.counts().filled), (AlignmentState::Unrelated, 0));
}

proptest! {
    /// Whatever is lost, each released packet has the right header and leaves once, and every packet of the primary link is released.
    #[test]
    fn released_packets_are_right_for_any_losses(
        seed: u64,
        primary_loss in 0_u64..60,
        base_loss in 0_u64..30,
        base_delay in 0_u64..180,
    ) {
        let draw = |index: u32, part: u32, salt: u64| {
            let mixed = (seed ^ salt ^ u64::from(index) << 20 ^ u64::from(part)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40
        };
        // The beginning is complete, so that the streams are aligned.
        let primary_lost = |index: u32, part: u32| index > 15 && draw(index, part, 1) % 100 < primary_loss;
        let base_lost = |index: u32, part: u32| index > 15 && draw(index, part, 2) % 100 < base_loss;
        let (merge, released) = run(150, primary_lost, base_lost, base_delay);
        let mut contents = contents(&released);
        let came = all(150).into_iter().filter(|(index, part)| !primary_lost(*index, *part));
        for content in came {
            prop_assert!(contents.contains(&content), "{content:?} arrived and was not released");
        }
        let length = contents.len();
        contents.sort_unstable();
        contents.dedup();
        prop_assert_eq!(contents.len(), length, "each once");
        let counts = merge.counts();
        prop_assert_eq!(counts.primary + counts.filled, length as u64);
    }

    /// Arbitrary datagrams cause no panic.
    #[test]
    fn arbitrary_datagrams_cause_no_panic(packets in proptest::collection::vec((any::<bool>(), proptest::collection::vec(any::<u8>(), 0..40)), 0..80)) {
        let mut merge = StreamMerger::new(REORDER_WAIT, true);
        let mut now = Instant::ZERO;
        for (is_primary, bytes) in packets {
            now += Duration::from_millis(7);
            if is_primary { merge.on_primary(now, bytes) } else { merge.on_base_layer(now, bytes) }
            while merge.poll().is_some() {}
        }
    }
}
