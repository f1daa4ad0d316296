//! Ranges that are wanted from a mirrored connection, as far as they have come.

use alloc::vec::Vec;

use crate::accel::early_ack::fetch::{FetchRequest, FetchedRange};
use crate::accel::seq_space::{PosRange, PosRangeSet};
use crate::units::Instant;

/// Sorted by their offset in the resource.
#[derive(Clone, Debug, Default)]
pub(super) struct WantedRanges(Vec<WantedRange>);

#[derive(Clone, Debug)]
struct WantedRange {
    request: FetchRequest,
    /// In the resource.
    range: PosRange,
    bytes: Vec<u8>,
    received: PosRangeSet,
    since: Instant,
    until: Instant,
}

impl WantedRanges {
    /// Adds a range.
    pub(super) fn add(&mut self, request: FetchRequest, since: Instant, until: Instant) {
        let range = PosRange::new(request.source.offset, request.source.offset + request.range.len());
        let bytes = alloc::vec![0; usize::try_from(range.len()).unwrap_or(0)];
        self.0.push(WantedRange { request, range, bytes, received: PosRangeSet::default(), since, until });
        self.0.sort_by_key(|entry| entry.range.start);
    }

    /// These bytes came, from this offset of the resource on. Returns whether some of them were wanted.
    pub(super) fn on_bytes(&mut self, offset: u64, bytes: &[u8]) -> bool {
        let shown = PosRange::new(offset, offset + bytes.len() as u64);
        let mut any = false;
        for entry in &mut self.0 {
            let common = entry.range.intersection(&shown);
            if common.is_empty() {
                continue;
            }
            let length = common.len() as usize;
            let (to, from) = ((common.start - entry.range.start) as usize, (common.start - shown.start) as usize);
            if let (Some(to), Some(from)) = (entry.bytes.get_mut(to..to + length), bytes.get(from..from + length)) {
                to.copy_from_slice(from);
                entry.received.insert(common);
                any = true;
            }
        }
        any
    }

    /// The complete ranges, and since when they were wanted.
    pub(super) fn take_complete(&mut self) -> Vec<(FetchedRange, Instant)> {
        let is_complete = |entry: &mut WantedRange| entry.received.run_from(entry.range.start) >= entry.range.end;
        let complete = self.0.extract_if(.., is_complete);
        complete
            .map(|entry| {
                let FetchRequest { flow, range: fetched, .. } = entry.request;
                (
                    FetchedRange {
                        flow,
                        start: fetched.start,
                        bytes: entry.bytes,
                        latency: None,
                        is_overdue: false,
                    },
                    entry.since,
                )
            })
            .collect()
    }

    /// Those that did not come in time.
    pub(super) fn take_overdue(&mut self, now: Instant) -> Vec<FetchRequest> {
        self.0.extract_if(.., |entry| entry.until <= now).map(|entry| entry.request).collect()
    }

    /// The flow does not miss anything before this offset any more: it was late, not lost.
    pub(super) fn forget_before(&mut self, offset: u64) {
        self.0.retain(|entry| entry.range.end > offset);
    }

    /// All that have not come.
    pub(super) fn drain(&mut self) -> Vec<FetchRequest> {
        self.0.drain(..).map(|entry| entry.request).collect()
    }

    /// Where the first one begins, and the first byte of it that has not come.
    pub(super) fn first(&self) -> Option<(u64, u64)> {
        self.0.first().map(|entry| (entry.range.start, entry.received.run_from(entry.range.start)))
    }

    /// When the next one is late.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.0.iter().map(|entry| entry.until).min()
    }

    /// Number of ranges.
    pub(super) fn count(&self) -> u32 {
        u32::try_from(self.0.len()).unwrap_or(u32::MAX)
    }

    /// Bytes of all ranges.
    pub(super) fn bytes(&self) -> u64 {
        self.0.iter().map(|entry| entry.range.len()).sum()
    }
}
