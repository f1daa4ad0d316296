//! What the merger does with two streams of one server: by hand, and by chance.

use alloc::vec::Vec;

use marline_core::units::{Duration, Instant};
use proptest::prelude::*;

use super::{Merge, Mirroring};
use crate::proto::Rtp;

const HOLD: Duration = Duration::from_millis(200);
const FRAME: u64 = 40;

/// A picture: which, of how many packets, whether it is of the base.
#[derive(Clone, Copy, Debug)]
struct Picture {
    which: u32,
    parts: u32,
    is_base: bool,
}

/// One packet of a picture as a session sends it.
fn packet(picture: Picture, part: u32, number: u16, clock: u32, name: u32) -> Vec<u8> {
    let marker = if part + 1 == picture.parts { 0x80 } else { 0 };
    let mut bytes = alloc::vec![0x80, 96 | marker];
    bytes.extend(number.to_be_bytes());
    bytes.extend((clock.wrapping_add(picture.which * 3600)).to_be_bytes());
    bytes.extend(name.to_be_bytes());
    bytes.push(if picture.is_base { 0x61 } else { 0x01 });
    bytes.extend(content(picture.which, part));
    bytes
}

fn content(which: u32, part: u32) -> Vec<u8> {
    (0..100_u32)
        .map(|at| (which.wrapping_mul(31) ^ part.wrapping_mul(17) ^ at.wrapping_mul(which + 1)) as u8)
        .chain(which.to_be_bytes())
        .chain(part.to_be_bytes())
        .collect()
}

/// Every third picture is of the base, and has three parts.
fn pictures(count: u32) -> Vec<Picture> {
    let picture = |which| Picture {
        which,
        parts: if which.is_multiple_of(3) { 3 } else { 1 },
        is_base: which.is_multiple_of(3),
    };
    (0..count).map(picture).collect()
}

/// Both sessions with one server: when each packet comes, by which link; then what leaves.
fn run(
    count: u32,
    first_lost: impl Fn(u32, u32) -> bool,
    second_lost: impl Fn(u32, u32) -> bool,
    behind: u64,
) -> (Merge, Vec<Vec<u8>>) {
    let mut events: Vec<(u64, bool, Vec<u8>)> = Vec::new();
    let (mut a, mut b) = (65_500_u16, 7_u16);
    for picture in pictures(count) {
        for part in 0..picture.parts {
            let at = u64::from(picture.which) * FRAME + u64::from(part);
            if !first_lost(picture.which, part) {
                events.push((at, true, packet(picture, part, a, u32::MAX - 9000, 0xa)));
            }
            a = a.wrapping_add(1);
            if picture.is_base {
                if !second_lost(picture.which, part) {
                    events.push((at + behind, false, packet(picture, part, b, 500, 0xb)));
                }
                b = b.wrapping_add(1);
            }
        }
    }
    events.sort_by_key(|(at, ..)| *at);
    let (mut merge, mut left) = (Merge::new(HOLD, true), Vec::new());
    for (at, is_first, bytes) in events {
        let at = Instant::ZERO + Duration::from_millis(at);
        while let Some(due) = merge.deadline().filter(|due| *due <= at) {
            merge.tick(due);
            assert!(merge.deadline().is_none_or(|next| next > due), "it does what is due");
            left.extend(core::iter::from_fn(|| merge.poll()));
        }
        if is_first {
            merge.on_first(at, bytes)
        } else {
            merge.on_second(at, bytes)
        }
        left.extend(core::iter::from_fn(|| merge.poll()));
    }
    while let Some(due) = merge.deadline() {
        merge.tick(due);
        left.extend(core::iter::from_fn(|| merge.poll()));
    }
    (merge, left)
}

/// Which parts of which pictures, told by what they contain; each is in the first stream's name and clock.
fn contents(left: &[Vec<u8>]) -> Vec<(u32, u32)> {
    let of = |bytes: &Vec<u8>| {
        let rtp = Rtp::parse(bytes).unwrap();
        assert_eq!(rtp.source, 0xa);
        let (_, tail) = rtp.payload.split_at(rtp.payload.len() - 8);
        let word = |at: usize| u32::from_be_bytes(tail[at..at + 4].try_into().unwrap());
        assert_eq!(rtp.timestamp, (u32::MAX - 9000).wrapping_add(word(0) * 3600));
        (word(0), word(4))
    };
    left.iter().map(of).collect()
}

fn all(count: u32) -> Vec<(u32, u32)> {
    pictures(count).iter().flat_map(|picture| (0..picture.parts).map(|part| (picture.which, part))).collect()
}

#[test]
fn a_whole_first_stream_leaves_as_it_came() {
    for behind in [0, 60, 150] {
        let (merge, left) = run(60, |_, _| false, |_, _| false, behind);
        assert_eq!(contents(&left), all(60));
        let counts = merge.counts();
        assert_eq!((counts.lost, counts.unfit, counts.base, counts.enhancement), (0, 0, 20, 40));
        assert_eq!(merge.mirroring(), Mirroring::Aligned);
    }
}

#[test]
fn a_blackout_costs_only_the_enhancement() {
    let dark = |which: u32, _| (30..80).contains(&which);
    let (merge, left) = run(120, dark, |_, _| false, 60);
    let expected: Vec<_> =
        all(120).into_iter().filter(|(which, part)| !dark(*which, *part) || which.is_multiple_of(3)).collect();
    assert_eq!(contents(&left), expected);
    assert_eq!(merge.counts().base, 40);
    assert_eq!(merge.counts().filled, 17 * 3);
    let (alone, left) = run(120, dark, |_, _| true, 60);
    assert_eq!((alone.counts().base, alone.counts().filled, left.len()), (40 - 17, 0, expected.len() - 17 * 3));
    assert_eq!(alone.mirroring(), Mirroring::Silent);
}

#[test]
fn parts_of_a_picture_get_their_own_numbers() {
    // A head, a tail, what is between; of the base and of others.
    let lost = |which: u32, part: u32| which > 20 && (which / 3 + part).is_multiple_of(3);
    let (merge, left) = run(90, lost, |_, _| false, 60);
    let expected: Vec<_> =
        all(90).into_iter().filter(|(which, part)| !lost(*which, *part) || which.is_multiple_of(3)).collect();
    assert_eq!(contents(&left), expected);
    let mut numbers: Vec<u16> = left.iter().map(|bytes| Rtp::parse(bytes).unwrap().number).collect();
    let index = |content: &(u32, u32)| all(90).iter().position(|other| other == content).unwrap();
    let exact: Vec<u16> = expected.iter().map(|content| 65_500_u16.wrapping_add(index(content) as u16)).collect();
    assert_eq!(numbers, exact, "each part has the number that the server gave it");
    numbers.dedup();
    assert_eq!((numbers.len(), merge.counts().unfit), (expected.len(), 0));
}

#[test]
fn another_encoding_fills_nothing() {
    let mut merge = Merge::new(HOLD, true);
    for picture in pictures(900) {
        let at = Instant::ZERO + Duration::from_millis(u64::from(picture.which) * FRAME);
        merge.on_first(at, packet(picture, 0, picture.which as u16, 0, 0xa));
        let mut other = packet(picture, 0, picture.which as u16, 0, 0xb);
        other.iter_mut().skip(12).for_each(|byte| *byte ^= 0x15);
        merge.on_second(at, other);
        assert!(merge.poll().is_some() && merge.poll().is_none());
    }
    assert_eq!((merge.mirroring(), merge.counts().filled), (Mirroring::Unrelated, 0));
}

proptest! {
    /// Whatever is lost: what leaves is right, in order, once; nothing that the first link brought is kept back, and of what
    /// the second link alone has brought, nothing leaves in a wrong place.
    #[test]
    fn what_leaves_is_right(
        seed: u64,
        first_loss in 0_u64..60,
        second_loss in 0_u64..30,
        behind in 0_u64..180,
    ) {
        let draw = |which: u32, part: u32, salt: u64| {
            let mixed = (seed ^ salt ^ u64::from(which) << 20 ^ u64::from(part)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40
        };
        // The beginning is whole, so that the streams are laid upon each other.
        let first_lost = |which: u32, part: u32| which > 15 && draw(which, part, 1) % 100 < first_loss;
        let second_lost = |which: u32, part: u32| which > 15 && draw(which, part, 2) % 100 < second_loss;
        let (merge, left) = run(150, first_lost, second_lost, behind);
        let mut contents = contents(&left);
        let came = all(150).into_iter().filter(|(which, part)| !first_lost(*which, *part));
        for content in came {
            prop_assert!(contents.contains(&content), "{content:?} came and has not left");
        }
        let length = contents.len();
        contents.sort_unstable();
        contents.dedup();
        prop_assert_eq!(contents.len(), length, "each once");
        let counts = merge.counts();
        prop_assert_eq!(counts.first + counts.filled, length as u64);
    }

    /// No bytes make it panic, and it keeps no more than its bounds.
    #[test]
    fn any_bytes_pass(packets in proptest::collection::vec((any::<bool>(), proptest::collection::vec(any::<u8>(), 0..40)), 0..80)) {
        let mut merge = Merge::new(HOLD, true);
        let mut now = Instant::ZERO;
        for (is_first, bytes) in packets {
            now += Duration::from_millis(7);
            if is_first { merge.on_first(now, bytes) } else { merge.on_second(now, bytes) }
            while merge.poll().is_some() {}
        }
    }
}
