//! What the second link has brought and is not passed yet: pictures, and what is known of their numbers.
//!
//! In: packets, and pairs of the same content in both streams. Out: parts whose numbers are known; the next picture that has
//! to fill a hole as a whole.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use marline_core::units::Instant;

use super::extended_seq::Numbers;

/// The second stream.
#[derive(Clone, Debug, Default)]
pub(super) struct Mirror {
    pub(super) name: Option<u32>,
    pub(super) numbers: Numbers,
    pub(super) packets: BTreeMap<u64, Kept>,
    /// Up to here it has left, or is not wanted any more.
    pub(super) passed: u64,
    /// Pairs that have not left: first stream's number, second's.
    pub(super) pairs: BTreeMap<u64, u64>,
    /// By the time of a picture: what its numbers are less than the first stream's; none: pairs contradict each other.
    shifts: BTreeMap<u32, Option<u64>>,
    pub(super) since: Option<Instant>,
}

#[derive(Clone, Debug)]
pub(super) struct Kept {
    pub(super) bytes: Vec<u8>,
    pub(super) timestamp: u32,
    pub(super) marker: bool,
    pub(super) since: Instant,
}

/// A picture of the second stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unit {
    pub(super) first: u64,
    pub(super) last: u64,
    /// In the first stream's clock.
    pub(super) timestamp: u32,
    pub(super) since: Instant,
}

impl Mirror {
    /// A pair says by how much the numbers of this picture are less than the first stream's.
    pub(super) fn shift(&mut self, shift: u64, timestamp: u32) {
        let known = self.shifts.entry(timestamp).or_insert(Some(shift));
        if *known != Some(shift) {
            *known = None;
        }
        while self.shifts.len() > PICTURES {
            self.shifts.pop_first();
        }
    }

    /// What is to be added to numbers of this picture, if its pairs agree.
    pub(super) fn shift_of(&self, timestamp: u32) -> Option<u64> {
        self.shifts.get(&timestamp).copied().flatten()
    }

    /// Another stream has taken the place of the first.
    pub(super) fn restart(&mut self) {
        self.pairs.clear();
        self.shifts.clear();
    }

    /// The parts of a picture that are here, with their numbers.
    pub(super) fn parts(&self, timestamp: u32) -> Vec<(u64, Vec<u8>)> {
        let parts = self.packets.iter().filter(|(_, kept)| kept.timestamp == timestamp);
        parts.map(|(number, kept)| (*number, kept.bytes.clone())).collect()
    }

    /// The first picture of the second stream that is not passed, if it is whole and the first link has brought nothing of it.
    pub(super) fn unit(&self, next: u64, apart: Option<u32>) -> Option<Unit> {
        let apart = apart?;
        let mut parts = self.packets.range(self.passed.saturating_add(1)..).peekable();
        while let Some((first, kept)) = parts.next() {
            let (mut last, mut end, mut is_whole) = (*first, kept, true);
            while let Some((number, more)) = parts.next_if(|(_, more)| more.timestamp == kept.timestamp) {
                is_whole &= *number == last + 1;
                (last, end) = (*number, more);
            }
            let begins = *first == self.passed + 1 || self.packets.contains_key(&(first - 1));
            let ends = end.marker || self.packets.contains_key(&(last + 1));
            match self.shifts.get(&kept.timestamp) {
                // It leaves by itself; what is behind it is not to overtake it.
                Some(Some(shift)) if last.wrapping_add(*shift) >= next => return None,
                Some(_) => {}
                None if is_whole && begins && ends => {
                    let timestamp = kept.timestamp.wrapping_add(apart);
                    return Some(Unit { first: *first, last, timestamp, since: end.since });
                }
                None => {}
            }
        }
        None
    }
}

/// Pictures whose numbers are remembered. chosen: ten seconds of 25 pictures each.
const PICTURES: usize = 256;
