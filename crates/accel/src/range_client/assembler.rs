//! Assembles the ranges of one fetch from the bytes of a response.
//!
//! 1. A server may join ranges, or send them in another order (RFC 9110 section 15.3.7.2): bytes are stored where they
//!    belong, whatever part they came in.
//! 2. Of a range only the next missing byte and what follows it is stored; other bytes are skipped. Parts are complete,
//!    so nothing is lost by that, and no set of holes is needed.

use marline_core::accel::Fetch;

/// What is missing of a fetch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct RangeAssembler {
    ranges: Vec<PartialRange>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct PartialRange {
    start: u64,
    end: u64,
    bytes: Vec<u8>,
    is_finished: bool,
}

impl RangeAssembler {
    pub(super) fn of(fetch: &Fetch) -> Self {
        let range = |(start, end): &(u64, u64)| PartialRange {
            start: *start,
            end: *end,
            bytes: Vec::new(),
            is_finished: start >= end,
        };
        Self { ranges: fetch.ranges.iter().map(range).collect() }
    }

    /// Bytes from `offset` on; `done` is called for each range that they complete.
    pub(super) fn add(&mut self, offset: u64, bytes: &[u8], mut done: impl FnMut(u32, Vec<u8>)) {
        let end = offset.saturating_add(bytes.len() as u64);
        for (range, number) in self.ranges.iter_mut().zip(0..) {
            let next = range.start + range.bytes.len() as u64;
            if range.is_finished || next < offset || next >= end {
                continue;
            }
            let (from, to) = ((next - offset) as usize, (end.min(range.end) - offset) as usize);
            range.bytes.extend_from_slice(bytes.get(from..to).unwrap_or_default());
            if range.start + range.bytes.len() as u64 == range.end {
                range.is_finished = true;
                done(number, std::mem::take(&mut range.bytes));
            }
        }
    }

    /// Gives up the open ranges, and returns their numbers.
    pub(super) fn give_up(&mut self) -> Vec<u32> {
        let open = self.ranges.iter_mut().zip(0..).filter(|(range, _)| !range.is_finished);
        open.map(|(range, number)| {
            range.is_finished = true;
            number
        })
        .collect()
    }

    /// Starts again: bytes of incomplete ranges are dropped.
    pub(super) fn restart(&mut self) {
        self.ranges.iter_mut().for_each(|range| range.bytes.clear());
    }

    /// Whether every range was answered.
    pub(super) fn is_done(&self) -> bool {
        self.ranges.iter().all(|range| range.is_finished)
    }

    /// The most bytes that a response may have: the ranges, and for several of them the overhead of each.
    pub(super) fn max_response(&self) -> u64 {
        let bytes: u64 = self.ranges.iter().map(|range| range.end.saturating_sub(range.start)).sum();
        bytes + (self.ranges.len() as u64 + 1) * PART_OVERHEAD
    }

    /// The value of the Range field (RFC 9110 section 14.1.2); none if there is nothing to request.
    pub(super) fn range_field(&self) -> Option<String> {
        let open = self.ranges.iter().filter(|range| !range.is_finished);
        let ranges: Vec<String> = open.map(|range| format!("{}-{}", range.start, range.end - 1)).collect();
        (!ranges.is_empty()).then(|| format!("bytes={}", ranges.join(",")))
    }
}

/// Our choice: boundary, type and range of a part take 120 to 250 bytes.
const PART_OVERHEAD: u64 = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use marline_core::accel::FetchId;
    use marline_core::link::LinkId;
    use marline_core::units::DataSize;
    use proptest::prelude::*;

    fn wanted(ranges: &[(u64, u64)]) -> RangeAssembler {
        RangeAssembler::of(&Fetch {
            id: FetchId(1),
            link: LinkId(0),
            server: ([127, 0, 0, 1], 80).into(),
            request: String::new(),
            etag: "\"x\"".into(),
            length: DataSize::from_bytes(1000),
            ranges: ranges.to_vec(),
        })
    }

    #[test]
    fn a_joined_part_completes_all_ranges_in_it() {
        let data: Vec<u8> = (0..100).collect();
        let mut wanted = wanted(&[(10, 20), (30, 35), (50, 60)]);
        assert_eq!(wanted.range_field().as_deref(), Some("bytes=10-19,30-34,50-59"));
        let mut done = Vec::new();
        wanted.add(5, &data[5..40], |range, bytes| done.push((range, bytes)));
        assert_eq!(done, [(0, data[10..20].to_vec()), (1, data[30..35].to_vec())]);
        assert_eq!(wanted.range_field().as_deref(), Some("bytes=50-59"));
        assert_eq!((wanted.give_up(), wanted.is_done(), wanted.range_field()), (vec![2], true, None));
    }

    proptest! {
        #[test]
        fn completed_ranges_are_correct_and_come_once(
            ranges in prop::collection::vec((0_u64..90, 1_u64..10), 1..6),
            pieces in prop::collection::vec((0_usize..100, 0_usize..40), 0..30),
        ) {
            let data: Vec<u8> = (0..=100).collect();
            let ranges: Vec<(u64, u64)> = ranges.into_iter().map(|(at, length)| (at, at + length)).collect();
            let mut wanted = wanted(&ranges);
            let mut done = vec![0; ranges.len()];
            let pieces = pieces.into_iter().chain([(0, 100)]);
            for (at, length) in pieces {
                let piece = &data[at..(at + length).min(100)];
                wanted.add(at as u64, piece, |range, bytes| {
                    done[range as usize] += 1;
                    let (start, end) = ranges[range as usize];
                    assert_eq!(bytes, &data[start as usize..end as usize]);
                });
            }
            prop_assert!(wanted.is_done() && done.iter().all(|times| *times == 1));
        }
    }
}
