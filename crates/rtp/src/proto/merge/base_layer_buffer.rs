//! What the second link has brought and is not passed yet: pictures, and what is known of their numbers.
//!
//! In: packets, and pairs of the same content in both streams. Out: parts whose numbers are known; the next picture that has
//! to fill a hole as a whole.

use std::collections::BTreeMap;

use marline_core::units::Instant;

use super::extended_seq::ExtendedSeq;

/// The second stream.
#[derive(Clone, Debug, Default)]
pub(super) struct BaseLayerBuffer {
    pub(super) ssrc: Option<u32>,
    pub(super) ext_seq: ExtendedSeq,
    pub(super) packets: BTreeMap<u64, BufferedPacket>,
    /// Up to here it has left, or is not wanted any more.
    pub(super) passed: u64,
    /// Pairs that have not left: first stream's number, second's.
    pub(super) pairs: BTreeMap<u64, u64>,
    /// By the time of a picture: what its numbers are less than the first stream's; none: pairs contradict each other.
    seq_shifts: BTreeMap<u32, Option<u64>>,
    pub(super) last_seen: Option<Instant>,
}

#[derive(Clone, Debug)]
pub(super) struct BufferedPacket {
    pub(super) bytes: Vec<u8>,
    pub(super) timestamp: u32,
    pub(super) marker: bool,
    pub(super) since: Instant,
}

/// A picture of the second stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct AccessUnit {
    pub(super) first: u64,
    pub(super) last: u64,
    /// In the first stream's clock.
    pub(super) timestamp: u32,
    pub(super) since: Instant,
}

impl BaseLayerBuffer {
    /// A pair says by how much the numbers of this picture are less than the first stream's.
    pub(super) fn learn_seq_shift(&mut self, shift: u64, timestamp: u32) {
        let known = self.seq_shifts.entry(timestamp).or_insert(Some(shift));
        if *known != Some(shift) {
            *known = None;
        }
        while self.seq_shifts.len() > MAX_PICTURES {
            self.seq_shifts.pop_first();
        }
    }

    /// What is to be added to numbers of this picture, if its pairs agree.
    pub(super) fn seq_shift(&self, timestamp: u32) -> Option<u64> {
        self.seq_shifts.get(&timestamp).copied().flatten()
    }

    /// Another stream has taken the place of the first.
    pub(super) fn restart(&mut self) {
        self.pairs.clear();
        self.seq_shifts.clear();
    }

    /// The parts of a picture that are here, with their numbers.
    pub(super) fn packets_of(&self, timestamp: u32) -> Vec<(u64, Vec<u8>)> {
        let packets = self.packets.iter().filter(|(_, packet)| packet.timestamp == timestamp);
        packets.map(|(seq, packet)| (*seq, packet.bytes.clone())).collect()
    }

    /// The first picture of the second stream that is not passed, if it is whole and the first link has brought nothing of it.
    pub(super) fn next_access_unit(&self, next: u64, clock_offset: Option<u32>) -> Option<AccessUnit> {
        let clock_offset = clock_offset?;
        let mut packets = self.packets.range(self.passed.saturating_add(1)..).peekable();
        while let Some((first, packet)) = packets.next() {
            let (mut last, mut end, mut is_whole) = (*first, packet, true);
            while let Some((seq, more)) = packets.next_if(|(_, more)| more.timestamp == packet.timestamp) {
                is_whole &= *seq == last + 1;
                (last, end) = (*seq, more);
            }
            let begins = *first == self.passed + 1 || self.packets.contains_key(&(first - 1));
            let ends = end.marker || self.packets.contains_key(&(last + 1));
            match self.seq_shifts.get(&packet.timestamp) {
                // It leaves by itself; what is behind it is not to overtake it.
                Some(Some(shift)) if last.wrapping_add(*shift) >= next => return None,
                Some(_) => {}
                None if is_whole && begins && ends => {
                    let timestamp = packet.timestamp.wrapping_add(clock_offset);
                    return Some(AccessUnit { first: *first, last, timestamp, since: end.since });
                }
                None => {}
            }
        }
        None
    }
}

/// Pictures whose numbers are remembered. chosen: ten seconds of 25 pictures each.
const MAX_PICTURES: usize = 256;
