//! Verification of the received bytes, and what follows when they do not match: which mirror is excluded.
//!
//! One culprit is excluded. If several mirrors delivered the bytes, only one of them is used from then on, so that the next
//! mismatch has one culprit.

use alloc::vec::Vec;

use super::Mirrors;
use super::verification::Mismatch;
use crate::fetch::link::Link;
use crate::fetch::transfers::Transfers;
use crate::fetch::{ByteRange, Notice, UrlId};
use crate::link::LinkId;

impl Mirrors {
    /// Makes the driver verify the next complete piece, or the complete file.
    pub(in crate::fetch) fn verify_next(&mut self, transfers: &mut Transfers) {
        let is_idle = self.verification.has_digest() && !self.verification.is_running();
        if !is_idle || transfers.coverage.total().is_none() {
            return;
        }
        let range = self.verification.start_next(&transfers.coverage);
        if transfers.coverage.is_complete() {
            // No late response may replace bytes during or after their verification.
            transfers.close_all();
        }
        if let Some(range) = range {
            transfers.verify(range);
        }
    }

    /// The driver has compared these bytes with their digest. Returns false if they do not match and no mirror is left
    /// that could deliver better ones.
    pub(in crate::fetch) fn on_verified(
        &mut self,
        transfers: &mut Transfers,
        range: ByteRange,
        matches: bool,
    ) -> bool {
        match self.verification.on_verified(range, matches) {
            None => true,
            Some(Mismatch::Piece) => self.on_piece_mismatch(transfers, range),
            Some(Mismatch::File) => self.on_file_mismatch(transfers, range),
        }
    }

    /// A piece does not match and is fetched again. One culprit is excluded; of several, none can be named, so only one
    /// mirror is used from now on, and the next mismatch has one.
    fn on_piece_mismatch(&mut self, transfers: &mut Transfers, range: ByteRange) -> bool {
        let contributors = self.verification.contributors(range);
        transfers.invalidate(range);
        self.verification.forget_delivered(range);
        match contributors.as_slice() {
            // Bytes of an earlier run that were damaged since: they are fetched again.
            [] => transfers.notice(Notice::DigestMismatch { range, mirror: None }),
            [mirror] => {
                transfers.notice(Notice::DigestMismatch { range, mirror: Some(*mirror) });
                return self.exclude_mirror(transfers, *mirror);
            }
            _ => {
                transfers.notice(Notice::DigestMismatch { range, mirror: None });
                self.use_single_mirror(transfers);
            }
        }
        true
    }

    /// The whole file does not match and is fetched again. A mirror that delivered all of it is excluded; if several
    /// delivered parts, only one mirror is used from now on.
    fn on_file_mismatch(&mut self, transfers: &mut Transfers, range: ByteRange) -> bool {
        let contributors = self.verification.contributors(range);
        let sole_contributor = self.verification.sole_contributor(range);
        match sole_contributor {
            Some(mirror) => self.list.exclude(mirror),
            None => self.is_single = true,
        }
        let mismatches = self.verification.count_mismatch();
        let sole = if let [only] = contributors.as_slice() { Some(*only) } else { None };
        let Some(next) = self.list.untried_except(sole).filter(|_| mismatches <= MAX_MISMATCHES) else {
            return false;
        };
        self.list.set_current(next);
        transfers.notice(Notice::DigestMismatch { range, mirror: sole_contributor });
        self.restart_from(transfers, next);
        true
    }

    /// Excludes a mirror whose bytes do not match, and moves its links to other mirrors. Returns false if no mirror is
    /// left.
    fn exclude_mirror(&mut self, transfers: &mut Transfers, id: UrlId) -> bool {
        self.list.exclude(id);
        if self.list.allowed_count() == 0 {
            return false;
        }
        if self.list.current_id() == id {
            self.list.set_current(self.list.next_after(id));
        }
        self.move_links(transfers, |link| link.mirror == id);
        true
    }

    /// Uses only one mirror from now on.
    fn use_single_mirror(&mut self, transfers: &mut Transfers) {
        self.is_single = true;
        if self.list.allowed().all(|id| id != self.list.current_id()) {
            self.list.set_current(self.list.next_after(self.list.current_id()));
        }
        let only = self.list.current_id();
        self.move_links(transfers, |link| link.mirror != only);
    }

    /// Moves the chosen links to the mirror that they may use now.
    fn move_links(&mut self, transfers: &mut Transfers, which: impl Fn(&Link) -> bool) {
        let leaving: Vec<LinkId> =
            transfers.links.iter().filter(|(_, link)| which(link)).map(|(id, _)| *id).collect();
        for id in leaving {
            let only = (!self.can_combine()).then(|| self.list.current_id());
            let Some(link) = transfers.links.get_mut(&id) else { continue };
            let next = only.unwrap_or_else(|| self.list.next_after(link.mirror));
            for conn in core::mem::take(&mut link.conns) {
                transfers.remove_conn(conn, true);
            }
            if let Some(link) = transfers.links.get_mut(&id) {
                link.reset_to_mirror(next, transfers.now);
            }
        }
    }
}

/// How often the whole file is fetched again after a mismatch. Our choice: if that many mirrors have the same file, the
/// digest is wrong.
const MAX_MISMATCHES: u32 = 8;
