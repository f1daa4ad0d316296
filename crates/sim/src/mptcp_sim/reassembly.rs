//! Reassembly at the receiver, for each subflow and for the connection.
//!
//! Chunks arrive in any order and possibly twice; the result is the end of the data without gaps.
//!
//! A chunk waits on its subflow for the preceding ones of the subflow, and then on its connection for the preceding
//! ones of all subflows. Both levels cause head-of-line blocking.

use std::collections::BTreeMap;

use super::DataRange;

/// Reassembly of a connection's data.
#[derive(Clone, Debug, Default)]
pub(super) struct Reassembly {
    next_offset: u64,
    /// Disjoint ranges beyond `next_offset`: start to end.
    out_of_order: BTreeMap<u64, u64>,
    /// Bytes received more than once.
    pub(super) duplicate_bytes: u64,
}

impl Reassembly {
    /// End of the data received without a gap.
    pub(super) const fn next_offset(&self) -> u64 {
        self.next_offset
    }

    /// Number of bytes behind a gap.
    #[cfg(test)]
    fn out_of_order_bytes(&self) -> u64 {
        self.out_of_order.iter().map(|(from, to)| to - from).sum()
    }

    pub(super) fn insert(&mut self, data: DataRange) {
        let end = data.offset + data.len;
        let (mut from, mut to) = (data.offset.max(self.next_offset), end);
        if from >= to {
            self.duplicate_bytes += data.len;
            return;
        }
        self.duplicate_bytes += from - data.offset;
        // Merges with all ranges that it overlaps or touches.
        let overlapping: Vec<(u64, u64)> = self
            .out_of_order
            .range(..=to)
            .rev()
            .take_while(|(_, end)| **end >= from)
            .map(|(f, t)| (*f, *t))
            .collect();
        for (start, stop) in overlapping {
            self.duplicate_bytes += stop.min(to).saturating_sub(start.max(from));
            self.out_of_order.remove(&start);
            from = from.min(start);
            to = to.max(stop);
        }
        if from == self.next_offset {
            self.next_offset = to;
        } else {
            self.out_of_order.insert(from, to);
        }
    }
}

/// Reassembly of a subflow's chunks.
#[derive(Clone, Debug, Default)]
pub(super) struct SubflowReceiver {
    next_seq: u64,
    out_of_order: BTreeMap<u64, DataRange>,
}

impl SubflowReceiver {
    /// Number of bytes received in order.
    pub(super) const fn received(&self) -> u64 {
        self.next_seq
    }

    /// Processes a chunk and returns the data that is now in order.
    pub(super) fn on_data(&mut self, seq: u64, data: DataRange) -> Vec<DataRange> {
        let mut ready = Vec::new();
        if seq > self.next_seq {
            self.out_of_order.insert(seq, data);
        } else if seq == self.next_seq {
            self.next_seq += data.len;
            ready.push(data);
            while let Some(data) = self.out_of_order.remove(&self.next_seq) {
                self.next_seq += data.len;
                ready.push(data);
            }
        }
        ready
    }

    /// Chunks behind a gap. The subflow's sender knows that they have arrived, but they have not reached MPTCP.
    pub(super) fn out_of_order(&self) -> impl Iterator<Item = DataRange> + '_ {
        self.out_of_order.values().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::{Purpose, RandomStream};

    #[test]
    fn gaps_are_filled_in_any_order_and_counted_once() {
        let mut reassembly = Reassembly::default();
        let mut receive = |at, len| {
            reassembly.insert(DataRange { offset: at, len });
            (reassembly.next_offset(), reassembly.out_of_order_bytes(), reassembly.duplicate_bytes)
        };
        assert_eq!(receive(100, 50), (0, 50, 0));
        assert_eq!(receive(200, 50), (0, 100, 0));
        assert_eq!(receive(140, 70), (0, 150, 20));
        assert_eq!(receive(0, 100), (250, 0, 20));
        assert_eq!(receive(0, 260), (260, 0, 270));
    }

    #[test]
    fn reassembly_agrees_with_a_bitmap() {
        let mut random = RandomStream::new(5, "reassembly", 0, Purpose::Other);
        for _ in 0..200 {
            let (mut reassembly, mut bytes) = (Reassembly::default(), [false; 64]);
            let mut received = 0;
            for _ in 0..30 {
                let (at, len) = (random.below(60), 1 + random.below(8));
                let len = len.min(64 - at);
                reassembly.insert(DataRange { offset: at, len });
                received += len;
                for byte in &mut bytes[at as usize..(at + len) as usize] {
                    *byte = true;
                }
                let next = bytes.iter().take_while(|byte| **byte).count() as u64;
                let all = bytes.iter().filter(|byte| **byte).count() as u64;
                assert_eq!((reassembly.next_offset(), reassembly.out_of_order_bytes()), (next, all - next));
                assert_eq!(reassembly.duplicate_bytes, received - all);
            }
        }
    }
}
