//! Which bytes are in their place, which are on their way, and which nobody has asked for yet.
//!
//! 1. A byte is *done* when it has been put in its place, whoever brought it. Bringing it again is waste.
//! 2. A byte is *claimed* when it is done or a live request will bring it; what is not claimed is *free*.
//! 3. Requests that fail give their bytes back by a rebuild from those that still live: no byte is ever freed by
//!    subtraction, so an overlap of two requests cannot lose one.

use super::range_set::RangeSet;
use super::{ByteRange, Resume};
use crate::units::DataSize;

/// The resource's bytes.
#[derive(Clone, Debug, Default)]
pub(super) struct Coverage {
    total: Option<u64>,
    received: RangeSet,
    claimed: RangeSet,
    received_bytes: DataSize,
    wasted_bytes: DataSize,
}

impl Coverage {
    /// Begins with what an earlier run left.
    pub(super) fn new(resume: Option<&Resume>) -> Self {
        let mut coverage = Self::default();
        if let Some(resume) = resume {
            let file = ByteRange::at(0, resume.total);
            coverage.total = Some(resume.total.bytes());
            coverage.received = resume.ranges.iter().map(|have| have.intersect(file)).collect();
            coverage.claimed = coverage.received.clone();
            coverage.received_bytes = coverage.received.len();
        }
        coverage
    }

    /// The size is known now. A reader that has jumped beyond it wants nothing more.
    pub(super) fn set_total(&mut self, total: DataSize) {
        self.total = Some(total.bytes());
        if self.received.iter().any(|done| done.end > total.bytes()) {
            self.received = self.received.iter().map(|done| done.intersect(ByteRange::at(0, total))).collect();
            self.received_bytes = self.received.len();
        }
    }

    /// Forgets everything but the waste: it was another file.
    pub(super) fn restart(&mut self) {
        *self = Self { wasted_bytes: self.wasted_bytes + self.received_bytes, ..Self::default() };
    }

    /// Forgets all bytes but these; what else was done counts as waste.
    pub(super) fn retain_only(&mut self, kept: &RangeSet) {
        self.received = self.received.intersection(kept);
        let kept_bytes = self.received.len();
        self.wasted_bytes += self.received_bytes - kept_bytes;
        self.received_bytes = kept_bytes;
        self.claimed = self.received.clone();
    }

    /// These bytes were wrong: they are missing again.
    pub(super) fn invalidate(&mut self, range: ByteRange) {
        let removed = self.received.remove(range);
        self.received_bytes -= removed;
        self.wasted_bytes += removed;
    }

    /// The bytes in their place.
    pub(super) fn received_ranges(&self) -> &RangeSet {
        &self.received
    }

    /// Nothing before `offset` is wanted, and nothing behind it has come.
    pub(super) fn start_at(&mut self, offset: u64) {
        let skipped = ByteRange::new(0, self.total.unwrap_or(u64::MAX).min(offset));
        self.received = [skipped].into_iter().collect();
        self.received_bytes = skipped.len();
        self.claimed = self.received.clone();
    }

    /// A request for these bytes is on its way.
    pub(super) fn claim(&mut self, range: ByteRange) {
        self.claimed.insert(range);
    }

    /// Only these requests live; everything else that is not done is free again.
    pub(super) fn rebuild_claims(&mut self, requested: impl Iterator<Item = ByteRange>) {
        self.claimed = self.received.clone();
        for range in requested {
            self.claimed.insert(range);
        }
    }

    /// These bytes are in their place; tells how many of them were missing.
    pub(super) fn add_received(&mut self, range: ByteRange) -> DataSize {
        let new = self.received.insert(range);
        self.received_bytes += new;
        self.wasted_bytes += range.len() - new;
        new
    }

    /// Bytes that came for nothing, apart from any that [`Ledger::put`] saw.
    pub(super) fn add_wasted(&mut self, len: DataSize) {
        self.wasted_bytes += len;
    }

    /// The first free bytes at or after `from`, at most up to `end`.
    pub(super) fn next_free(&self, from: u64, end: u64) -> Option<ByteRange> {
        self.claimed.next_gap(from, self.total.unwrap_or(u64::MAX).min(end))
    }

    /// How many bytes are free before `end`.
    pub(super) fn free_bytes(&self, end: u64) -> DataSize {
        self.total.map_or(DataSize::MAX, |total| self.claimed.missing_before(total.min(end)))
    }

    /// How many bytes of `span` are not done.
    pub(super) fn missing_bytes(&self, range: ByteRange) -> DataSize {
        let received: DataSize = self.received.iter().map(|done| done.intersect(range).len()).sum();
        range.len() - received
    }

    /// The first bytes at or after `from` that are not done.
    pub(super) fn next_missing(&self, from: u64) -> Option<ByteRange> {
        self.received.next_gap(from, self.total.unwrap_or(u64::MAX))
    }

    /// The size, once it is known.
    pub(super) fn total(&self) -> Option<DataSize> {
        self.total.map(DataSize::from_bytes)
    }

    /// Bytes in their place.
    pub(super) fn received(&self) -> DataSize {
        self.received_bytes
    }

    /// Bytes received and not needed.
    pub(super) fn wasted_bytes(&self) -> DataSize {
        self.wasted_bytes
    }

    /// Whether every byte is in its place.
    pub(super) fn is_complete(&self) -> bool {
        self.total == Some(self.received_bytes.bytes())
    }

    /// The in-order frontier: everything before it is in its place.
    pub(super) fn in_order_end(&self) -> u64 {
        self.received.end_of_run(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn a_failed_request_gives_back_only_what_no_other_brings() {
        let mut coverage = Coverage::default();
        coverage.set_total(DataSize::from_bytes(100));
        coverage.claim(ByteRange::new(0, 60));
        coverage.claim(ByteRange::new(40, 100));
        assert_eq!(coverage.next_free(0, u64::MAX), None);
        coverage.add_received(ByteRange::new(0, 10));
        coverage.rebuild_claims([ByteRange::new(40, 100)].into_iter());
        assert_eq!(coverage.next_free(0, u64::MAX), Some(ByteRange::new(10, 40)));
        assert_eq!(coverage.free_bytes(u64::MAX).bytes(), 30);
    }

    #[test]
    fn the_second_copy_of_a_byte_is_waste() {
        let mut coverage = Coverage::default();
        coverage.set_total(DataSize::from_bytes(30));
        assert_eq!(coverage.add_received(ByteRange::new(0, 20)).bytes(), 20);
        assert_eq!(coverage.add_received(ByteRange::new(10, 30)).bytes(), 10);
        assert_eq!(
            (coverage.wasted_bytes().bytes(), coverage.is_complete(), coverage.in_order_end()),
            (10, true, 30)
        );
    }

    #[test]
    fn an_earlier_run_counts_only_inside_the_file() {
        let validator = super::super::Validator::Etag("\"a\"".into());
        let resume = Resume {
            total: DataSize::from_bytes(50),
            validator,
            ranges: vec![ByteRange::new(0, 10), ByteRange::new(40, 90)],
            mirror: None,
        };
        let coverage = Coverage::new(Some(&resume));
        assert_eq!((coverage.received().bytes(), coverage.in_order_end()), (20, 10));
        assert_eq!(coverage.next_free(0, u64::MAX), Some(ByteRange::new(10, 40)));
    }
}
