//! Verification of received bytes by digests, and which mirror delivered which bytes.
//!
//! With a digest of the whole file or of its pieces, bytes of several mirrors may be combined. The driver compares the
//! stored bytes with the digest; here is decided which bytes it compares next, and whose bytes they were if they do not
//! match.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::fetch::coverage::Coverage;
use crate::fetch::range_set::RangeSet;
use crate::fetch::{ByteRange, DigestScope, UrlId};
use crate::units::DataSize;

/// What is verified, and what each mirror has delivered.
#[derive(Clone, Debug, Default)]
pub(super) struct Verification {
    /// What the known digest covers; none: no digest is known, or an in-order reader cannot use it.
    scope: Option<DigestScope>,
    /// For each mirror, the bytes that it delivered and no other mirror has replaced. Kept only if there is a digest.
    delivered: BTreeMap<UrlId, RangeSet>,
    /// Bytes of pieces that match their digests.
    verified: RangeSet,
    is_file_verified: bool,
    /// The bytes that the driver is verifying.
    verifying: Option<ByteRange>,
    /// Some of those bytes were replaced meanwhile, so the result is to be ignored.
    is_stale: bool,
    /// How often the whole file did not match.
    mismatches: u32,
    /// The driver's journal is of this mirror only; none: of all mirrors.
    journal_of: Option<UrlId>,
}

/// Bytes that do not match their digest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mismatch {
    Piece,
    /// The whole file.
    File,
}

impl Verification {
    pub(super) fn new(scope: Option<DigestScope>) -> Self {
        Self { scope, ..Self::default() }
    }

    /// Whether a digest is known.
    pub(super) fn has_digest(&self) -> bool {
        self.scope.is_some()
    }

    /// A server named a digest. All bytes received so far are from the one mirror in use, and the driver's journal
    /// remains that of this mirror.
    pub(super) fn set_digest(&mut self, scope: DigestScope, current: UrlId, received: RangeSet) {
        self.scope = Some(scope);
        self.journal_of = Some(current);
        self.delivered.insert(current, received);
    }

    /// Whether bytes of this mirror must not be recorded in the driver's journal.
    pub(super) fn is_other_mirror(&self, mirror: UrlId) -> bool {
        self.journal_of.is_some_and(|journal| journal != mirror)
    }

    /// Whether all bytes of a file of this size are verified, or no digest is known.
    pub(super) fn is_complete(&self, total: Option<DataSize>) -> bool {
        match self.scope {
            None => true,
            Some(DigestScope::File) => self.is_file_verified,
            Some(DigestScope::Pieces(_)) => Some(self.verified.len()) == total,
        }
    }

    /// Whether the driver is reading bytes to verify them.
    pub(super) fn is_running(&self) -> bool {
        self.verifying.is_some()
    }

    /// Whether the whole file failed its verification before.
    pub(super) fn has_mismatched(&self) -> bool {
        self.mismatches > 0
    }

    /// All bytes were discarded: forgets what was delivered and verified.
    pub(super) fn discard(&mut self) {
        self.verified = RangeSet::default();
        self.is_file_verified = false;
        self.verifying = None;
        self.delivered.clear();
    }

    /// All bytes but the verified ones were discarded. Returns the verified ones; empty if there are none.
    pub(super) fn retain_verified(&mut self) -> RangeSet {
        if !self.verified.is_empty() {
            for delivered in self.delivered.values_mut() {
                *delivered = delivered.intersection(&self.verified);
            }
        }
        self.verified.clone()
    }

    /// Bytes of a mirror were stored, replacing whatever was stored there before.
    pub(super) fn on_delivered(&mut self, mirror: UrlId, range: ByteRange) {
        if self.scope.is_none() {
            return;
        }
        for (id, delivered) in &mut self.delivered {
            if *id != mirror && !delivered.is_empty() {
                delivered.remove(range);
            }
        }
        self.delivered.entry(mirror).or_default().insert(range);
        if let Some(DigestScope::Pieces(size)) = self.scope {
            // A late response may have replaced bytes that were already verified.
            let size = size.bytes().max(1);
            let pieces = ByteRange::new(range.start / size * size, range.end.div_ceil(size).saturating_mul(size));
            self.verified.remove(pieces);
            if self.verifying.is_some_and(|verifying| !verifying.intersect(range).is_empty()) {
                self.is_stale = true;
            }
        }
    }

    /// Chooses the bytes that the driver verifies next: a complete piece, or the complete file. None if it is still
    /// busy, or if nothing is due.
    pub(super) fn start_next(&mut self, coverage: &Coverage) -> Option<ByteRange> {
        let (scope, total, None) = (self.scope?, coverage.total()?, self.verifying) else { return None };
        let range = match scope {
            DigestScope::File => {
                (coverage.is_complete() && !self.is_file_verified).then_some(ByteRange::at(0, total))
            }
            DigestScope::Pieces(size) => self.next_unverified(size, total.bytes(), coverage.received_ranges()),
        };
        self.verifying = range;
        range
    }

    /// The next piece that is complete and not verified.
    fn next_unverified(&self, size: DataSize, total: u64, done: &RangeSet) -> Option<ByteRange> {
        let size = size.bytes().max(1);
        for run in done.iter() {
            let mut start = run.start.div_ceil(size).saturating_mul(size);
            while start < run.end.min(total) {
                let end = start.saturating_add(size).min(total);
                if end > run.end {
                    break;
                }
                let known = self.verified.end_of_run(start);
                if known < end {
                    return Some(ByteRange::new(start, end));
                }
                start = known.div_ceil(size).saturating_mul(size);
            }
        }
        None
    }

    /// The driver has compared these bytes with their digest. Returns what does not match; the result is ignored if it
    /// was not requested, or if some of the bytes of a piece were replaced meanwhile.
    pub(super) fn on_verified(&mut self, range: ByteRange, matches: bool) -> Option<Mismatch> {
        self.verifying.take_if(|verifying| *verifying == range)?;
        if core::mem::take(&mut self.is_stale) {
            return None;
        }
        match (self.scope, matches) {
            (Some(DigestScope::Pieces(_)), true) => drop(self.verified.insert(range)),
            (_, true) => self.is_file_verified = true,
            (Some(DigestScope::Pieces(_)), false) => return Some(Mismatch::Piece),
            (_, false) => return Some(Mismatch::File),
        }
        None
    }

    /// These bytes are to be fetched again: no mirror counts as having delivered them.
    pub(super) fn forget_delivered(&mut self, range: ByteRange) {
        for delivered in self.delivered.values_mut() {
            delivered.remove(range);
        }
    }

    /// Counts a mismatch of the whole file. Returns how many there were.
    pub(super) fn count_mismatch(&mut self) -> u32 {
        self.mismatches += 1;
        self.mismatches
    }

    /// The mirror that delivered all of these bytes, if it is a single one.
    pub(super) fn sole_contributor(&self, range: ByteRange) -> Option<UrlId> {
        let (id, delivered) = self.delivered.iter().find(|(_, delivered)| !delivered.is_empty())?;
        (delivered.end_of_run(range.start) >= range.end).then_some(*id)
    }

    /// The mirrors that delivered some of these bytes.
    pub(super) fn contributors(&self, range: ByteRange) -> Vec<UrlId> {
        let has_part = |delivered: &RangeSet| delivered.iter().any(|run| !run.intersect(range).is_empty());
        self.delivered.iter().filter(|(_, delivered)| has_part(delivered)).map(|(id, _)| *id).collect()
    }
}
