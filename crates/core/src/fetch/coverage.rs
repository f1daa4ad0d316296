//! Coverage map of a download: which bytes have been received, which are requested, and which are free.
//!
//! 1. A byte is *received* when it has been stored, whichever connection delivered it. Receiving it again is waste.
//! 2. A byte is *claimed* when it is received or a live request will deliver it. A byte that is not claimed is *free*.
//! 3. When a request ends early, the claims are rebuilt from the live requests. Nothing is ever freed by subtraction,
//!    so a byte that two requests cover cannot be lost when one of them fails.

use super::{ByteRange, RangeSet, Resume};
use crate::units::DataSize;

/// Received and claimed bytes of one resource; see the [module documentation](self).
#[derive(Clone, Debug, Default)]
pub(super) struct Coverage {
    total: Option<u64>,
    received: RangeSet,
    claimed: RangeSet,
    received_bytes: DataSize,
    wasted_bytes: DataSize,
}

impl Coverage {
    /// Starts with the bytes of an earlier run, if there are any.
    pub(super) fn new(resume: Option<&Resume>) -> Self {
        let mut coverage = Self::default();
        if let Some(resume) = resume {
            let file = ByteRange::at(0, resume.total);
            coverage.total = Some(resume.total.bytes());
            coverage.received = resume.ranges.iter().map(|range| range.intersect(file)).collect();
            coverage.claimed = coverage.received.clone();
            coverage.received_bytes = coverage.received.len();
        }
        coverage
    }

    /// Sets the size of the resource. Bytes behind the end, which a seek had skipped, are dropped.
    pub(super) fn set_total(&mut self, total: DataSize) {
        self.total = Some(total.bytes());
        if self.received.iter().any(|done| done.end > total.bytes()) {
            self.received = self.received.iter().map(|done| done.intersect(ByteRange::at(0, total))).collect();
            self.received_bytes = self.received.len();
        }
    }

    /// Forgets everything except the wasted bytes, to which the received ones are added: the resource is another file
    /// now.
    pub(super) fn restart(&mut self) {
        *self = Self { wasted_bytes: self.wasted_bytes + self.received_bytes, ..Self::default() };
    }

    /// Keeps only these received bytes; the others count as waste.
    pub(super) fn retain_only(&mut self, retained: &RangeSet) {
        self.received = self.received.intersection(retained);
        let kept_bytes = self.received.len();
        self.wasted_bytes += self.received_bytes - kept_bytes;
        self.received_bytes = kept_bytes;
        self.claimed = self.received.clone();
    }

    /// These bytes were wrong: they are missing again, and count as waste.
    pub(super) fn invalidate(&mut self, range: ByteRange) {
        let removed = self.received.remove(range);
        self.received_bytes -= removed;
        self.wasted_bytes += removed;
    }

    /// The received bytes.
    pub(super) fn received_ranges(&self) -> &RangeSet {
        &self.received
    }

    /// Continues at `offset` after a seek: the bytes before it are treated as received, all others as missing.
    pub(super) fn start_at(&mut self, offset: u64) {
        let skipped = ByteRange::new(0, self.total.unwrap_or(u64::MAX).min(offset));
        self.received = [skipped].into_iter().collect();
        self.received_bytes = skipped.len();
        self.claimed = self.received.clone();
    }

    /// Marks bytes as requested.
    pub(super) fn claim(&mut self, range: ByteRange) {
        self.claimed.insert(range);
    }

    /// Rebuilds the claims: bytes that are neither received nor in `requested` are free again.
    pub(super) fn rebuild_claims(&mut self, requested: impl Iterator<Item = ByteRange>) {
        self.claimed = self.received.clone();
        for range in requested {
            self.claimed.insert(range);
        }
    }

    /// Marks bytes as received. Returns how many of them were missing; the others count as waste.
    pub(super) fn add_received(&mut self, range: ByteRange) -> DataSize {
        let new = self.received.insert(range);
        self.received_bytes += new;
        self.wasted_bytes += range.len() - new;
        new
    }

    /// Counts wasted bytes in addition to those that [`Coverage::add_received`] found.
    pub(super) fn add_wasted(&mut self, len: DataSize) {
        self.wasted_bytes += len;
    }

    /// The first run of free bytes at or after `from` and before `end`.
    pub(super) fn next_free(&self, from: u64, end: u64) -> Option<ByteRange> {
        self.claimed.next_gap(from, self.total.unwrap_or(u64::MAX).min(end))
    }

    /// Number of free bytes before `end`.
    pub(super) fn free_bytes(&self, end: u64) -> DataSize {
        self.total.map_or(DataSize::MAX, |total| self.claimed.missing_before(total.min(end)))
    }

    /// Number of bytes of `range` that have not been received.
    pub(super) fn missing_bytes(&self, range: ByteRange) -> DataSize {
        let received: DataSize = self.received.iter().map(|done| done.intersect(range).len()).sum();
        range.len() - received
    }

    /// The first run of bytes at or after `from` that have not been received.
    pub(super) fn next_missing(&self, from: u64) -> Option<ByteRange> {
        self.received.next_gap(from, self.total.unwrap_or(u64::MAX))
    }

    /// Size of the resource, once it is known.
    pub(super) fn total(&self) -> Option<DataSize> {
        self.total.map(DataSize::from_bytes)
    }

    /// Number of distinct bytes received, including those that a seek skipped.
    pub(super) fn received(&self) -> DataSize {
        self.received_bytes
    }

    /// Body bytes received without use.
    pub(super) fn wasted_bytes(&self) -> DataSize {
        self.wasted_bytes
    }

    /// Whether every byte has been received.
    pub(super) fn is_complete(&self) -> bool {
        self.total == Some(self.received_bytes.bytes())
    }

    /// Everything before this offset has been received.
    pub(super) fn in_order_end(&self) -> u64 {
        self.received.end_of_run(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn a_failed_request_frees_only_bytes_that_no_other_request_covers() {
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
    fn a_byte_received_twice_counts_as_waste() {
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
    fn ranges_of_an_earlier_run_are_cut_to_the_file() {
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
