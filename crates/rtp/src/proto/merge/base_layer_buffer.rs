//! Buffer of base-layer packets from the secondary link: what has not been merged yet, and what is known of their positions.
//!
//! Where one packet of a picture was matched with the primary stream, the shift between the sequence numbers places all of its
//! packets exactly. A picture without any match can only fill a hole as a whole ([`BaseLayerBuffer::next_access_unit`]).

use std::collections::BTreeMap;

use marline_core::units::Instant;

use super::extended_seq::ExtendedSeq;

/// State of the base-layer stream.
#[derive(Clone, Debug, Default)]
pub(super) struct BaseLayerBuffer {
    pub(super) ssrc: Option<u32>,
    pub(super) ext_seq: ExtendedSeq,
    pub(super) packets: BTreeMap<u64, BufferedPacket>,
    /// Extended sequence number up to which packets were merged or are obsolete.
    pub(super) passed: u64,
    /// Matched packets that have not left yet: sequence number in the primary stream to that in the base-layer stream.
    pub(super) pairs: BTreeMap<u64, u64>,
    /// By timestamp of a picture: what to add to its sequence numbers to get those of the primary stream. `None` if matches
    /// contradict each other.
    seq_shifts: BTreeMap<u32, Option<u64>>,
    pub(super) last_seen: Option<Instant>,
}

#[derive(Clone, Debug)]
pub(super) struct BufferedPacket {
    pub(super) bytes: Vec<u8>,
    pub(super) timestamp: u32,
    pub(super) marker: bool,
    /// When it arrived.
    pub(super) since: Instant,
}

/// A complete picture of the base-layer stream: the packets `first..=last`.
#[derive(Clone, Copy, Debug)]
pub(super) struct AccessUnit {
    pub(super) first: u64,
    pub(super) last: u64,
    /// In the clock of the primary stream.
    pub(super) timestamp: u32,
    /// When its last packet arrived.
    pub(super) since: Instant,
}

impl BaseLayerBuffer {
    /// Records the shift that a matched packet of this picture shows.
    pub(super) fn learn_seq_shift(&mut self, shift: u64, timestamp: u32) {
        let known = self.seq_shifts.entry(timestamp).or_insert(Some(shift));
        if *known != Some(shift) {
            *known = None;
        }
        while self.seq_shifts.len() > MAX_PICTURES {
            self.seq_shifts.pop_first();
        }
    }

    /// What to add to sequence numbers of this picture, if all its matches agree.
    pub(super) fn seq_shift(&self, timestamp: u32) -> Option<u64> {
        self.seq_shifts.get(&timestamp).copied().flatten()
    }

    /// Forgets the relation to the primary stream, because another SSRC replaced it.
    pub(super) fn restart(&mut self) {
        self.pairs.clear();
        self.seq_shifts.clear();
    }

    /// The buffered packets of a picture with their sequence numbers.
    pub(super) fn packets_of(&self, timestamp: u32) -> Vec<(u64, Vec<u8>)> {
        let packets = self.packets.iter().filter(|(_, packet)| packet.timestamp == timestamp);
        packets.map(|(seq, packet)| (*seq, packet.bytes.clone())).collect()
    }

    /// The first complete picture that has not been merged and of which the primary link has delivered no packet.
    pub(super) fn next_access_unit(&self, next: u64, clock_offset: Option<u32>) -> Option<AccessUnit> {
        let clock_offset = clock_offset?;
        let mut packets = self.packets.range(self.passed.saturating_add(1)..).peekable();
        while let Some((first, packet)) = packets.next() {
            let (mut last, mut end, mut is_contiguous) = (*first, packet, true);
            while let Some((seq, next_packet)) =
                packets.next_if(|(_, next_packet)| next_packet.timestamp == packet.timestamp)
            {
                is_contiguous &= *seq == last + 1;
                (last, end) = (*seq, next_packet);
            }
            let begins = *first == self.passed + 1 || self.packets.contains_key(&(first - 1));
            let ends = end.marker || self.packets.contains_key(&(last + 1));
            match self.seq_shifts.get(&packet.timestamp) {
                // Its packets are queued by sequence number. Later pictures must not overtake it.
                Some(Some(shift)) if last.wrapping_add(*shift) >= next => return None,
                Some(_) => {}
                None if is_contiguous && begins && ends => {
                    let timestamp = packet.timestamp.wrapping_add(clock_offset);
                    return Some(AccessUnit { first: *first, last, timestamp, since: end.since });
                }
                None => {}
            }
        }
        None
    }
}

/// Pictures whose shift is remembered: ten seconds at 25 pictures per second.
const MAX_PICTURES: usize = 256;
