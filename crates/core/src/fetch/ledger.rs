//! Which bytes are in their place, which are on their way, and which nobody has asked for yet.
//!
//! 1. A byte is *done* when it has been put in its place, whoever brought it. Bringing it again is waste.
//! 2. A byte is *claimed* when it is done or a live request will bring it; what is not claimed is *free*.
//! 3. Requests that fail give their bytes back by a rebuild from those that still live: no byte is ever freed by
//!    subtraction, so an overlap of two requests cannot lose one.

use super::spans::SpanSet;
use super::{Resume, Span};
use crate::units::DataSize;

/// The resource's bytes.
#[derive(Clone, Debug, Default)]
pub(super) struct Ledger {
    total: Option<u64>,
    done: SpanSet,
    claimed: SpanSet,
    done_bytes: DataSize,
    wasted: DataSize,
}

impl Ledger {
    /// Begins with what an earlier run left.
    pub(super) fn new(resume: Option<&Resume>) -> Self {
        let mut ledger = Self::default();
        if let Some(resume) = resume {
            let whole = Span::at(0, resume.total);
            ledger.total = Some(resume.total.bytes());
            ledger.done = resume.have.iter().map(|have| have.intersect(whole)).collect();
            ledger.claimed = ledger.done.clone();
            ledger.done_bytes = ledger.done.len();
        }
        ledger
    }

    /// The size is known now. A reader that has jumped beyond it wants nothing more.
    pub(super) fn set_total(&mut self, total: DataSize) {
        self.total = Some(total.bytes());
        if self.done.iter().any(|done| done.end > total.bytes()) {
            self.done = self.done.iter().map(|done| done.intersect(Span::at(0, total))).collect();
            self.done_bytes = self.done.len();
        }
    }

    /// Forgets everything but the waste: it was another file.
    pub(super) fn restart(&mut self) {
        *self = Self { wasted: self.wasted + self.done_bytes, ..Self::default() };
    }

    /// Forgets all bytes but these; what else was done counts as waste.
    pub(super) fn keep(&mut self, kept: &SpanSet) {
        self.done = self.done.common(kept);
        let left = self.done.len();
        self.wasted += self.done_bytes - left;
        self.done_bytes = left;
        self.claimed = self.done.clone();
    }

    /// These bytes were wrong: they are missing again.
    pub(super) fn undo(&mut self, span: Span) {
        let had = self.done.remove(span);
        self.done_bytes -= had;
        self.wasted += had;
    }

    /// The bytes in their place.
    pub(super) fn done_spans(&self) -> &SpanSet {
        &self.done
    }

    /// Nothing before `offset` is wanted, and nothing behind it has come.
    pub(super) fn begin_at(&mut self, offset: u64) {
        let skipped = Span::new(0, self.total.unwrap_or(u64::MAX).min(offset));
        self.done = [skipped].into_iter().collect();
        self.done_bytes = skipped.len();
        self.claimed = self.done.clone();
    }

    /// A request for these bytes is on its way.
    pub(super) fn claim(&mut self, span: Span) {
        self.claimed.insert(span);
    }

    /// Only these requests live; everything else that is not done is free again.
    pub(super) fn rebuild(&mut self, live: impl Iterator<Item = Span>) {
        self.claimed = self.done.clone();
        for span in live {
            self.claimed.insert(span);
        }
    }

    /// These bytes are in their place; tells how many of them were missing.
    pub(super) fn put(&mut self, span: Span) -> DataSize {
        let new = self.done.insert(span);
        self.done_bytes += new;
        self.wasted += span.len() - new;
        new
    }

    /// Bytes that came for nothing, apart from any that [`Ledger::put`] saw.
    pub(super) fn waste(&mut self, len: DataSize) {
        self.wasted += len;
    }

    /// The first free bytes at or after `from`, at most up to `end`.
    pub(super) fn free(&self, from: u64, end: u64) -> Option<Span> {
        self.claimed.gap(from, self.total.unwrap_or(u64::MAX).min(end))
    }

    /// How many bytes are free before `end`.
    pub(super) fn free_bytes(&self, end: u64) -> DataSize {
        self.total.map_or(DataSize::MAX, |total| self.claimed.missing(total.min(end)))
    }

    /// How many bytes of `span` are not done.
    pub(super) fn undone_bytes(&self, span: Span) -> DataSize {
        let had: DataSize = self.done.iter().map(|done| done.intersect(span).len()).sum();
        span.len() - had
    }

    /// The first bytes at or after `from` that are not done.
    pub(super) fn undone_from(&self, from: u64) -> Option<Span> {
        self.done.gap(from, self.total.unwrap_or(u64::MAX))
    }

    /// The size, once it is known.
    pub(super) fn total(&self) -> Option<DataSize> {
        self.total.map(DataSize::from_bytes)
    }

    /// Bytes in their place.
    pub(super) fn done(&self) -> DataSize {
        self.done_bytes
    }

    /// Bytes received and not needed.
    pub(super) fn wasted(&self) -> DataSize {
        self.wasted
    }

    /// Whether every byte is in its place.
    pub(super) fn complete(&self) -> bool {
        self.total == Some(self.done_bytes.bytes())
    }

    /// The in-order frontier: everything before it is in its place.
    pub(super) fn frontier(&self) -> u64 {
        self.done.run_from(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn a_failed_request_gives_back_only_what_no_other_brings() {
        let mut ledger = Ledger::default();
        ledger.set_total(DataSize::from_bytes(100));
        ledger.claim(Span::new(0, 60));
        ledger.claim(Span::new(40, 100));
        assert_eq!(ledger.free(0, u64::MAX), None);
        ledger.put(Span::new(0, 10));
        ledger.rebuild([Span::new(40, 100)].into_iter());
        assert_eq!(ledger.free(0, u64::MAX), Some(Span::new(10, 40)));
        assert_eq!(ledger.free_bytes(u64::MAX).bytes(), 30);
    }

    #[test]
    fn the_second_copy_of_a_byte_is_waste() {
        let mut ledger = Ledger::default();
        ledger.set_total(DataSize::from_bytes(30));
        assert_eq!(ledger.put(Span::new(0, 20)).bytes(), 20);
        assert_eq!(ledger.put(Span::new(10, 30)).bytes(), 10);
        assert_eq!((ledger.wasted().bytes(), ledger.complete(), ledger.frontier()), (10, true, 30));
    }

    #[test]
    fn an_earlier_run_counts_only_inside_the_file() {
        let validator = super::super::Validator::Etag("\"a\"".into());
        let resume = Resume {
            total: DataSize::from_bytes(50),
            validator,
            have: vec![Span::new(0, 10), Span::new(40, 90)],
            source: None,
        };
        let ledger = Ledger::new(Some(&resume));
        assert_eq!((ledger.done().bytes(), ledger.frontier()), (20, 10));
        assert_eq!(ledger.free(0, u64::MAX), Some(Span::new(10, 40)));
    }
}
