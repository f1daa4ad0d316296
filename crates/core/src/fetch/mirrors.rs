//! Mirrors: the URLs that claim to have the file, which of them may be combined, and which are excluded.
//!
//! One URL is one mirror, whatever addresses and links serve it; its validator shows which of its responses belong
//! together (RFC 9110 section 8.8). Two URLs may have different files although lengths and validators are equal: the
//! parts of a split archive often have both. Therefore:
//!
//! 1. Without a digest, one mirror is in use at a time. When it fails for good, the whole file is fetched from the next
//!    one, and no byte of the first one is kept.
//! 2. With a digest of the whole file or of its pieces ([`DigestScope`]), each link may use another mirror. The driver
//!    verifies the bytes ([`Output::Verify`]) before the download is complete.
//! 3. Bytes that do not match are fetched again. If one mirror delivered all of them, it is excluded. If several did,
//!    only one mirror is used from then on, so that the next mismatch has one culprit. A mirror whose single response
//!    breaks off repeatedly over every link is excluded, too.
//! 4. An in-order reader cannot give back what it has consumed, so mirrors are never combined for it.
//!
//! Comparing samples of two mirrors was rejected: files that differ in one byte would pass.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::time::Duration;

use super::links::{Link, LinkState};
use super::{
    BanReason, ByteRange, Config, DigestScope, Failure, Fetch, InitialRequest, Notice, Output, Phase, RangeSet,
    TimerReason, UrlId,
};
use crate::link::LinkId;
use crate::units::{DataSize, Instant};

/// All mirrors, and what each of them has delivered.
#[derive(Clone, Debug)]
pub(super) struct Mirrors {
    list: Vec<Mirror>,
    /// Index in `list` of the mirror that is in use while mirrors are not combined.
    current: usize,
    /// What the known digest covers; none: no digest is known, or an in-order reader cannot use it.
    digest: Option<DigestScope>,
    /// Combined bytes did not match: only one mirror is used from now on.
    is_single: bool,
    /// Number of mirrors left since bytes last arrived, while mirrors are not combined.
    failed_in_row: usize,
    /// Total number of changes of the mirror in use.
    switches: usize,
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

#[derive(Clone, Debug)]
struct Mirror {
    id: UrlId,
    is_excluded: bool,
    /// It was left because it delivered nothing, or nothing more.
    has_failed: bool,
    /// Bytes that it delivered and no other mirror has replaced. Kept only if there is a digest.
    delivered: RangeSet,
}

impl Mirror {
    fn new(id: UrlId) -> Self {
        Self { id, is_excluded: false, has_failed: false, delivered: RangeSet::default() }
    }
}

impl Mirrors {
    pub(super) fn new(config: &Config) -> Self {
        let list: Vec<Mirror> = (0..config.mirrors.max(1)).map(|n| Mirror::new(UrlId(n))).collect();
        let resumed = config.resume.as_ref().and_then(|resume| resume.mirror);
        let current = resumed.and_then(|id| list.iter().position(|mirror| mirror.id == id)).unwrap_or(0);
        Self {
            list,
            current,
            digest: config.digest.filter(|_| config.reader_window.is_none()),
            is_single: false,
            failed_in_row: 0,
            switches: 0,
            verified: RangeSet::default(),
            is_file_verified: false,
            verifying: None,
            is_stale: false,
            mismatches: 0,
            journal_of: None,
        }
    }

    /// Whether links may use different mirrors at the same time.
    fn can_combine(&self) -> bool {
        self.digest.is_some() && !self.is_single
    }

    fn current_id(&self) -> UrlId {
        self.list.get(self.current).map_or(UrlId(0), |mirror| mirror.id)
    }

    fn allowed(&self) -> impl Iterator<Item = UrlId> + '_ {
        self.list.iter().filter(|mirror| !mirror.is_excluded).map(|mirror| mirror.id)
    }

    fn allowed_count(&self) -> usize {
        self.allowed().count()
    }

    /// The mirror that a link uses first: spread over the links if mirrors are combined.
    pub(super) fn initial_for(&self, link: LinkId) -> UrlId {
        let index = usize::from(link.0) % self.allowed_count().max(1);
        let assigned = if self.can_combine() { self.allowed().nth(index) } else { None };
        assigned.unwrap_or(self.current_id())
    }

    /// The next mirror in the list that is not excluded, cyclically.
    fn next_after(&self, id: UrlId) -> UrlId {
        let at = self.list.iter().position(|mirror| mirror.id == id).unwrap_or(0);
        let (before, after) = self.list.split_at((at + 1).min(self.list.len()));
        after.iter().chain(before).find(|mirror| !mirror.is_excluded).map_or(id, |mirror| mirror.id)
    }

    fn exclude(&mut self, id: UrlId) {
        if let Some(mirror) = self.list.iter_mut().find(|mirror| mirror.id == id) {
            mirror.is_excluded = true;
        }
    }

    /// A mirror other than `except` that is neither excluded nor has failed.
    fn untried_except(&self, except: Option<UrlId>) -> Option<UrlId> {
        let is_fresh = |mirror: &&Mirror| !mirror.is_excluded && !mirror.has_failed && Some(mirror.id) != except;
        self.list.iter().find(is_fresh).map(|mirror| mirror.id)
    }

    fn set_current(&mut self, id: UrlId) {
        self.current = self.list.iter().position(|mirror| mirror.id == id).unwrap_or(0);
    }

    /// Whether all bytes of a file of this size are verified, or no digest is known.
    pub(super) fn is_verified(&self, total: Option<DataSize>) -> bool {
        match self.digest {
            None => true,
            Some(DigestScope::File) => self.is_file_verified,
            Some(DigestScope::Pieces(_)) => Some(self.verified.len()) == total,
        }
    }

    /// Whether the driver is reading bytes to verify them.
    pub(super) fn is_verifying(&self) -> bool {
        self.verifying.is_some()
    }

    /// All bytes were discarded: forgets what was delivered and verified.
    fn discard_bytes(&mut self) {
        self.verified = RangeSet::default();
        self.is_file_verified = false;
        self.verifying = None;
        for mirror in &mut self.list {
            mirror.delivered = RangeSet::default();
        }
    }

    /// Bytes of a mirror were stored, replacing whatever was stored there before.
    fn note_delivered(&mut self, delivered_from: UrlId, range: ByteRange) {
        for mirror in &mut self.list {
            if mirror.id == delivered_from {
                mirror.delivered.insert(range);
            } else if !mirror.delivered.is_empty() {
                mirror.delivered.remove(range);
            }
        }
        if let Some(DigestScope::Pieces(size)) = self.digest {
            // A late response may have replaced bytes that were already verified.
            let size = size.bytes().max(1);
            let pieces = ByteRange::new(range.start / size * size, range.end.div_ceil(size).saturating_mul(size));
            self.verified.remove(pieces);
            if self.verifying.is_some_and(|verifying| !verifying.intersect(range).is_empty()) {
                self.is_stale = true;
            }
        }
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

    /// The mirror that delivered all of these bytes, if it is a single one.
    fn sole_contributor(&self, range: ByteRange) -> Option<UrlId> {
        let mirror = self.list.iter().find(|mirror| !mirror.delivered.is_empty())?;
        (mirror.delivered.end_of_run(range.start) >= range.end).then_some(mirror.id)
    }

    /// The mirrors that delivered some of these bytes.
    fn contributors(&self, range: ByteRange) -> Vec<UrlId> {
        let part_of = |mirror: &&Mirror| mirror.delivered.iter().any(|run| !run.intersect(range).is_empty());
        self.list.iter().filter(part_of).map(|mirror| mirror.id).collect()
    }
}

impl Fetch {
    /// Whether links may use different mirrors at the same time.
    pub(super) fn can_combine(&self) -> bool {
        self.mirrors.can_combine()
    }

    /// Whether responses without a validator may be combined, because the result is verified.
    pub(super) fn is_result_verifiable(&self) -> bool {
        self.config.has_checksum || self.mirrors.digest.is_some()
    }

    /// Adds a mirror that a server named.
    pub(super) fn add_mirror(&mut self, id: UrlId) {
        let list = &mut self.mirrors.list;
        if list.len() < MAX_MIRRORS && list.iter().all(|mirror| mirror.id != id) {
            list.push(Mirror::new(id));
        }
    }

    /// Sets the digest that a server named. The driver's journal remains that of the mirror in use.
    pub(super) fn set_digest(&mut self, scope: DigestScope) {
        if self.config.reader_window.is_none() && self.mirrors.digest.is_none() {
            self.mirrors.digest = Some(scope);
            self.mirrors.journal_of = Some(self.mirrors.current_id());
            // All bytes received so far are from the one mirror in use.
            let (current, done) = (self.mirrors.current, self.coverage.received_ranges().clone());
            if let Some(mirror) = self.mirrors.list.get_mut(current) {
                mirror.delivered = done;
            }
        }
    }

    /// Whether bytes of this mirror must not be recorded in the driver's journal.
    pub(super) fn is_other_mirror(&self, mirror: UrlId) -> bool {
        self.mirrors.journal_of.is_some_and(|journal| journal != mirror)
    }

    /// Whether the whole file failed its verification before.
    pub(super) fn has_mismatched(&self) -> bool {
        self.mirrors.mismatches > 0
    }

    /// Records which mirror delivered these bytes.
    pub(super) fn note_delivered(&mut self, mirror: UrlId, range: ByteRange) {
        self.mirrors.failed_in_row = 0;
        if self.mirrors.digest.is_some() {
            self.mirrors.note_delivered(mirror, range);
        }
    }

    /// Discards all bytes and what was known of them.
    pub(super) fn discard_bytes(&mut self) {
        self.coverage.restart();
        self.mirrors.discard_bytes();
    }

    /// A link gets nothing from its mirror. If mirrors are combined, the link switches to the next one that it has not
    /// tried. Otherwise all links switch together, once none of them gets anything. Returns false if the link stays
    /// with its mirror.
    pub(super) fn try_next_mirror(&mut self, id: LinkId, reason: &BanReason) -> bool {
        if !self.can_combine() {
            return self.leave_mirror_if_unanimous(id, reason);
        }
        let Some(previous) = self.links.get(&id).map(|link| link.mirror) else { return false };
        let untried = self.has_untried_mirror(id);
        if untried {
            self.switch_mirror(id);
            self.notice(Notice::LinkMirrorSwitched { link: id, previous, reason: reason.clone() });
        }
        untried
    }

    /// Whether the link has another mirror that it has not tried since bytes last arrived.
    pub(super) fn has_untried_mirror(&self, id: LinkId) -> bool {
        let tried = |link: &Link| usize::from(link.mirrors_tried) + 1;
        self.links.get(&id).is_some_and(|link| tried(link) < self.mirrors.allowed_count())
    }

    /// Switches a link to the next mirror, even if it has tried that one.
    pub(super) fn switch_mirror(&mut self, id: LinkId) {
        let max = u16::try_from(self.mirrors.allowed_count()).unwrap_or(u16::MAX);
        let Some(next) = self.links.get(&id).map(|link| self.mirrors.next_after(link.mirror)) else { return };
        let Some(link) = self.links.get_mut(&id) else { return };
        link.mirrors_tried = link.mirrors_tried.saturating_add(1).min(max);
        link.mirror = next;
        link.mirror_since = self.now;
        link.omit_range = false;
        link.failures = 0;
        link.next_attempt = self.now;
        for conn in link.conns.clone() {
            self.remove_conn(conn, true);
        }
    }

    /// Switches all links away from a mirror that has delivered nothing, once every usable link has been refused.
    fn leave_mirror_if_unanimous(&mut self, id: LinkId, reason: &BanReason) -> bool {
        if !self.can_switch_mirror() || self.has_delivered() {
            return false;
        }
        let Some(link) = self.links.get_mut(&id) else { return false };
        link.mirror_refused = true;
        let may_respond = |(id, link): (&LinkId, &Link)| !link.mirror_refused && self.is_usable(*id, link);
        if self.links.iter().any(may_respond) {
            return false;
        }
        self.switch_all_to_next_mirror(reason.to_string());
        true
    }

    /// The download would end with this failure: switches to the next mirror instead, if there is one that may help.
    pub(super) fn try_failover(&mut self, failure: &Failure) -> bool {
        let is_permanent = match failure {
            // The budget and the digest are the same for every mirror.
            Failure::BudgetExhausted | Failure::DigestMismatch => true,
            // If nothing was received, the other mirrors were already tried by `leave_stalled_mirror`.
            Failure::NoLink { .. } | Failure::NoResponse => self.coverage.received().is_zero(),
            _ => false,
        };
        if is_permanent || self.links.is_empty() {
            return false;
        }
        if self.can_combine() {
            return self.failover_single_response(failure);
        }
        if !self.can_switch_mirror() {
            return false;
        }
        self.switch_all_to_next_mirror(failure.to_string());
        self.last_data = self.now;
        true
    }

    /// If mirrors are combined: the single response cannot be got from its mirror. Excludes the mirror and begins again
    /// with the next one.
    fn failover_single_response(&mut self, failure: &Failure) -> bool {
        let Some(link) = self.single_response_link.filter(|_| matches!(self.phase, Phase::SingleResponse { .. }))
        else {
            return false;
        };
        let Some(previous) =
            self.links.get(&link).map(|link| link.mirror).filter(|_| self.has_untried_mirror(link))
        else {
            return false;
        };
        let reason = match failure {
            Failure::RetriesExhausted { error } => BanReason::RepeatedErrors { error: error.clone() },
            _ => BanReason::ProtocolViolation { text: failure.to_string() },
        };
        let next = self.mirrors.next_after(previous);
        self.mirrors.exclude(previous);
        self.mirrors.set_current(next);
        self.restart_from(next);
        self.notice(Notice::LinkMirrorSwitched { link, previous, reason });
        self.last_data = self.now;
        true
    }

    /// Whether another mirror may help, and no reader has consumed bytes of the present one.
    fn can_switch_mirror(&self) -> bool {
        let is_read = self.config.reader_window.is_some() && self.consumed > 0;
        let count = self.mirrors.allowed_count();
        !is_read && self.mirrors.failed_in_row + 1 < count && self.mirrors.switches < count * 2
    }

    /// Whether bytes were received from the mirror in use, or a response is in progress.
    fn has_delivered(&self) -> bool {
        !self.coverage.received().is_zero() || self.reqs.values().any(|req| req.is_accepted)
    }

    /// Leaves a mirror from which no link receives anything: each is stalled or was refused.
    pub(super) fn leave_stalled_mirror(&mut self) {
        if self.links.is_empty() || self.can_combine() || self.mirrors.allowed_count() < 2 {
            return;
        }
        if self.has_delivered() {
            return self.leave_refusing_mirror();
        }
        let mut since = None;
        for (_, link) in self.links.iter().filter(|(id, link)| self.is_usable(**id, link)) {
            match link.state {
                LinkState::Stalled { since: stalled_since } => {
                    since = since.max(Some(stalled_since.max(link.mirror_since)))
                }
                _ if link.mirror_refused => {}
                _ => return,
            }
        }
        let Some(since) = since else { return };
        let can_switch = self.can_switch_mirror();
        // The links may be at fault: after all mirrors were tried, try them again more slowly.
        let until = since + if can_switch { STALLED_MIRROR_TIMEOUT } else { MIRROR_RETRY_TIMEOUT };
        if self.now < until {
            return self.set_timer(until, TimerReason::Stall);
        }
        if can_switch {
            self.switch_all_to_next_mirror("no data received".to_string());
        } else if self.consumed == 0 {
            let next = self.mirrors.next_after(self.mirrors.current_id());
            self.mirrors.set_current(next);
            self.restart_from(next);
        }
    }

    /// The mirror has delivered and now refuses on all links: leaves it after a while.
    fn leave_refusing_mirror(&mut self) {
        if !self.can_switch_mirror() || self.links.iter().any(|(id, link)| self.is_usable(*id, link)) {
            return;
        }
        let refusal = self.links.values().find_map(|link| match &link.state {
            LinkState::Banned {
                reason: reason @ (BanReason::BadStatus { .. } | BanReason::ProtocolViolation { .. }),
                ..
            } => Some(reason),
            _ => None,
        });
        let (Some(reason), until) = (refusal.map(ToString::to_string), self.last_data + REFUSING_MIRROR_TIMEOUT)
        else {
            return;
        };
        if self.now < until {
            return self.set_timer(until, TimerReason::Stall);
        }
        self.switch_all_to_next_mirror(reason);
    }

    /// Switches all links to the next mirror, for the whole file.
    fn switch_all_to_next_mirror(&mut self, reason: String) {
        let failed = self.mirrors.current_id();
        let next = self.mirrors.next_after(failed);
        if let Some(mirror) = self.mirrors.list.get_mut(self.mirrors.current) {
            mirror.has_failed = true;
        }
        self.mirrors.set_current(next);
        self.mirrors.failed_in_row += 1;
        self.mirrors.switches += 1;
        let from_zero = self.restart_from(next);
        self.notice(Notice::MirrorSwitched { failed, next, reason, discards_data: from_zero });
    }

    /// Begins again with this mirror only. Pieces that match their digests are kept. Returns whether bytes were
    /// discarded.
    fn restart_from(&mut self, mirror: UrlId) -> bool {
        let kept = self.mirrors.verified.clone();
        let had_data = self.phase != Phase::Unknown || !self.coverage.received().is_zero();
        self.close_all();
        self.validators.clear();
        self.date_validators.clear();
        self.initial_request = InitialRequest::Range;
        self.first_request = None;
        self.pending_responses.clear();
        self.reported_file = None;
        self.single_response_link = None;
        let keeps_data = !kept.is_empty();
        if keeps_data {
            self.coverage.retain_only(&kept);
            for known in &mut self.mirrors.list {
                known.delivered = known.delivered.intersection(&kept);
            }
            self.phase = Phase::Ranges;
        } else {
            self.discard_bytes();
            self.phase = Phase::Unknown;
            self.consumed = 0;
        }
        self.rebuild_claims();
        for link in self.links.values_mut() {
            link.reset_to_mirror(mirror, self.now);
        }
        // Connections may have been opened already in this turn; they are closed now, so open new ones soon.
        self.set_timer(self.now, TimerReason::Retry);
        if had_data && !keeps_data {
            self.outputs.push_back(Output::Restart);
        }
        had_data && !keeps_data
    }

    /// Makes the driver verify the next complete piece, or the complete file.
    pub(super) fn verify_next(&mut self) {
        let (Some(scope), Some(total), None) = (self.mirrors.digest, self.coverage.total(), self.mirrors.verifying)
        else {
            return;
        };
        let range = match scope {
            DigestScope::File => {
                let due = self.coverage.is_complete() && !self.mirrors.is_file_verified;
                due.then_some(ByteRange::at(0, total))
            }
            DigestScope::Pieces(size) => {
                self.mirrors.next_unverified(size, total.bytes(), self.coverage.received_ranges())
            }
        };
        if self.coverage.is_complete() {
            // No late response may replace bytes during or after their verification.
            self.close_all();
        }
        if let Some(range) = range {
            self.mirrors.verifying = Some(range);
            self.outputs.push_back(Output::Verify { range });
        }
    }

    /// The driver has compared these bytes with their digest.
    pub(super) fn on_verified(&mut self, range: ByteRange, matches: bool) {
        if self.mirrors.verifying.take_if(|verifying| *verifying == range).is_none() {
            return;
        }
        if core::mem::take(&mut self.mirrors.is_stale) {
            return;
        }
        match (self.mirrors.digest, matches) {
            (Some(DigestScope::Pieces(_)), true) => drop(self.mirrors.verified.insert(range)),
            (_, true) => self.mirrors.is_file_verified = true,
            (Some(DigestScope::Pieces(_)), false) => self.on_piece_mismatch(range),
            (_, false) => self.on_file_mismatch(range),
        }
    }

    fn on_piece_mismatch(&mut self, range: ByteRange) {
        let contributors = self.mirrors.contributors(range);
        self.coverage.invalidate(range);
        for mirror in &mut self.mirrors.list {
            mirror.delivered.remove(range);
        }
        self.rebuild_claims();
        match contributors.as_slice() {
            // Bytes of an earlier run that were damaged since: they are fetched again.
            [] => self.notice(Notice::DigestMismatch { range, mirror: None }),
            [mirror] => {
                self.notice(Notice::DigestMismatch { range, mirror: Some(*mirror) });
                self.exclude_mirror(*mirror);
            }
            _ => {
                self.notice(Notice::DigestMismatch { range, mirror: None });
                self.use_single_mirror();
            }
        }
    }

    /// The whole file does not match and is fetched again. A mirror that delivered all of it is excluded; if several
    /// delivered parts, only one mirror is used from now on.
    fn on_file_mismatch(&mut self, range: ByteRange) {
        let contributors = self.mirrors.contributors(range);
        let sole_contributor = self.mirrors.sole_contributor(range);
        match sole_contributor {
            Some(mirror) => self.mirrors.exclude(mirror),
            None => self.mirrors.is_single = true,
        }
        self.mirrors.mismatches += 1;
        let sole = if let [only] = contributors.as_slice() { Some(*only) } else { None };
        let other = self.mirrors.untried_except(sole);
        let Some(next) = other.filter(|_| self.mirrors.mismatches <= MAX_MISMATCHES) else {
            return self.fail_with(Failure::DigestMismatch);
        };
        self.mirrors.set_current(next);
        self.notice(Notice::DigestMismatch { range, mirror: sole_contributor });
        self.restart_from(next);
    }

    /// Excludes a mirror whose bytes do not match, and moves its links to other mirrors.
    fn exclude_mirror(&mut self, id: UrlId) {
        self.mirrors.exclude(id);
        if self.mirrors.allowed_count() == 0 {
            return self.fail_with(Failure::DigestMismatch);
        }
        if self.mirrors.current_id() == id {
            self.mirrors.set_current(self.mirrors.next_after(id));
        }
        self.move_links(|link| link.mirror == id);
    }

    /// Uses only one mirror from now on.
    fn use_single_mirror(&mut self) {
        self.mirrors.is_single = true;
        if self.mirrors.allowed().all(|id| id != self.mirrors.current_id()) {
            self.mirrors.set_current(self.mirrors.next_after(self.mirrors.current_id()));
        }
        let only = self.mirrors.current_id();
        self.move_links(|link| link.mirror != only);
    }

    /// Moves the chosen links to the mirror that they may use now.
    fn move_links(&mut self, which: impl Fn(&Link) -> bool) {
        let leaving: Vec<LinkId> = self.links.iter().filter(|(_, link)| which(link)).map(|(id, _)| *id).collect();
        for id in leaving {
            let only = (!self.can_combine()).then(|| self.mirrors.current_id());
            let Some(link) = self.links.get_mut(&id) else { continue };
            let next = only.unwrap_or_else(|| self.mirrors.next_after(link.mirror));
            for conn in core::mem::take(&mut link.conns) {
                self.remove_conn(conn, true);
            }
            if let Some(link) = self.links.get_mut(&id) {
                link.reset_to_mirror(next, self.now);
            }
        }
    }
}

impl Link {
    /// Forgets what was known of the link's mirror, and uses this one.
    fn reset_to_mirror(&mut self, mirror: UrlId, now: Instant) {
        self.mirror = mirror;
        self.mirror_since = now;
        self.mirrors_tried = 0;
        self.mirror_refused = false;
        self.omit_range = false;
        self.failures = 0;
        self.next_attempt = now;
        self.forget_redirect_targets();
        self.conn_count = super::parallelism::ConnCountController::default();
        self.stats.is_verified = false;
        self.stats.cdn_node = None;
        self.stats.conflicting_version = None;
        self.stats.contradictions = 0;
        self.stats.best_single_response = (0, 0);
        if self.state != LinkState::Down {
            self.state = LinkState::Up;
        }
    }
}

/// How long a mirror may deliver nothing over any link at first.
const STALLED_MIRROR_TIMEOUT: Duration = Duration::from_secs(3);
/// The same after all mirrors were tried: another change is unlikely to help.
pub(super) const MIRROR_RETRY_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a mirror that has delivered may refuse on all links. chosen: the first two bans of a link.
const REFUSING_MIRROR_TIMEOUT: Duration = Duration::from_secs(12);
/// How often the whole file is fetched again after a mismatch. chosen: if that many mirrors have the same file, the
/// digest is wrong.
const MAX_MISMATCHES: u32 = 8;
/// Maximum number of mirrors; further ones that servers name are ignored.
const MAX_MIRRORS: usize = 32;
