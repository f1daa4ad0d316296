//! The receiving ends: what has come in order, on a subflow and on its connection.
//!
//! In: pieces in any order, some of them twice. Out: how far everything is there without a gap.
//!
//! A piece waits on its subflow until those before it have come there, and then on its connection until those before
//! it have come over whatever subflow (head-of-line blocking, twice).

use std::collections::BTreeMap;

use super::Data;

/// A connection's bytes in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Reassembly {
    next: u64,
    /// From and to, apart from each other, all beyond `next`.
    beyond: BTreeMap<u64, u64>,
    /// Bytes that came again.
    pub(super) twice: u64,
}

impl Reassembly {
    /// Everything before this has come.
    pub(super) const fn next(&self) -> u64 {
        self.next
    }

    /// Bytes that wait behind a gap.
    #[cfg(test)]
    fn waiting(&self) -> u64 {
        self.beyond.iter().map(|(from, to)| to - from).sum()
    }

    pub(super) fn take(&mut self, data: Data) {
        let end = data.at + data.len;
        let (mut from, mut to) = (data.at.max(self.next), end);
        if from >= to {
            self.twice += data.len;
            return;
        }
        self.twice += from - data.at;
        // Those that it meets become one with it.
        let met: Vec<(u64, u64)> =
            self.beyond.range(..=to).rev().take_while(|(_, end)| **end >= from).map(|(f, t)| (*f, *t)).collect();
        for (start, stop) in met {
            self.twice += stop.min(to).saturating_sub(start.max(from));
            self.beyond.remove(&start);
            from = from.min(start);
            to = to.max(stop);
        }
        if from == self.next {
            self.next = to;
        } else {
            self.beyond.insert(from, to);
        }
    }
}

/// A subflow's pieces in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Receiver {
    next: u64,
    beyond: BTreeMap<u64, Data>,
}

impl Receiver {
    /// Bytes that came in order.
    pub(super) const fn received(&self) -> u64 {
        self.next
    }

    /// A piece has come; gives what is in order now.
    pub(super) fn take(&mut self, seq: u64, data: Data) -> Vec<Data> {
        let mut ready = Vec::new();
        if seq > self.next {
            self.beyond.insert(seq, data);
        } else if seq == self.next {
            self.next += data.len;
            ready.push(data);
            while let Some(data) = self.beyond.remove(&self.next) {
                self.next += data.len;
                ready.push(data);
            }
        }
        ready
    }

    /// What came out of order and waits: the other end knows that it came, and MPTCP does not have it.
    pub(super) fn waiting(&self) -> impl Iterator<Item = Data> + '_ {
        self.beyond.values().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::{Purpose, Stream};

    #[test]
    fn gaps_are_filled_in_any_order_and_counted_once() {
        let mut reassembly = Reassembly::default();
        let mut come = |at, len| {
            reassembly.take(Data { at, len });
            (reassembly.next(), reassembly.waiting(), reassembly.twice)
        };
        assert_eq!(come(100, 50), (0, 50, 0));
        assert_eq!(come(200, 50), (0, 100, 0));
        assert_eq!(come(140, 70), (0, 150, 20));
        assert_eq!(come(0, 100), (250, 0, 20));
        assert_eq!(come(0, 260), (260, 0, 270));
    }

    #[test]
    fn it_agrees_with_a_list_of_bytes() {
        let mut random = Stream::new(5, "reassembly", 0, Purpose::Other);
        for _ in 0..200 {
            let (mut reassembly, mut bytes) = (Reassembly::default(), [false; 64]);
            let mut came = 0;
            for _ in 0..30 {
                let (at, len) = (random.below(60), 1 + random.below(8));
                let len = len.min(64 - at);
                reassembly.take(Data { at, len });
                came += len;
                for byte in &mut bytes[at as usize..(at + len) as usize] {
                    *byte = true;
                }
                let next = bytes.iter().take_while(|byte| **byte).count() as u64;
                let all = bytes.iter().filter(|byte| **byte).count() as u64;
                assert_eq!((reassembly.next(), reassembly.waiting()), (next, all - next));
                assert_eq!(reassembly.twice, came - all);
            }
        }
    }
}
