//! The sources of the file: the URLs that are said to have it, and which of them may be combined.
//!
//! One URL is one source, whatever addresses and links serve it; its validator tells which of its answers belong
//! together (RFC 9110 section 8.8). Two URLs may have different files although lengths and validators are equal: the
//! parts of a split archive often have both. Therefore:
//!
//! 1. Without a digest, one source is in use at a time. When it fails for good, the next one is asked for the whole
//!    file, and nothing of the first one is kept.
//! 2. With a digest of the whole file or of its pieces ([`Proof`]), each link may ask another source. The driver
//!    verifies the bytes ([`Output::Verify`]) before the download is complete.
//! 3. Bytes that do not match are fetched again. If one source delivered all of them, it is excluded. If several did,
//!    one source alone is asked from then on, so that the next mismatch has one culprit. A source whose one answer
//!    breaks off again and again over every link is excluded, too.
//! 4. An in-order reader cannot give back what it has read, so sources are never combined for it.
//!
//! Comparing samples of two sources was not used: files that differ in one byte would pass.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::time::Duration;

use super::links::{LinkState, Standing};
use super::{Ban, Config, Failure, Fetch, Notice, Opening, OriginId, Output, Phase, Proof, Span, SpanSet, Wake};
use crate::link::LinkId;
use crate::units::{DataSize, Instant};

/// All sources, and what is known of their bytes.
#[derive(Clone, Debug)]
pub(super) struct Sources {
    list: Vec<Source>,
    /// The one in use while they are not combined: an index of `list`.
    current: usize,
    proof: Option<Proof>,
    /// Combined bytes did not match: one source at a time from now on.
    distrusted: bool,
    /// How many were left since bytes last came, while they are not combined.
    left: usize,
    /// How often the source in use was changed, in all.
    switches: usize,
    /// Pieces that match their digests.
    verified: SpanSet,
    whole_verified: bool,
    /// What the driver is verifying.
    verifying: Option<Span>,
    /// Bytes of that were replaced meanwhile.
    stale: bool,
    /// How often the whole file did not match.
    mismatches: u32,
    /// The driver's journal is of this source alone; none: of all.
    journal: Option<OriginId>,
}

#[derive(Clone, Debug)]
struct Source {
    id: OriginId,
    excluded: bool,
    /// It was left because nothing, or nothing more, came from it.
    failed: bool,
    /// What it delivered, and nothing else has replaced since. Kept only where there is a digest.
    brought: SpanSet,
}

impl Source {
    fn new(id: OriginId) -> Self {
        Self { id, excluded: false, failed: false, brought: SpanSet::default() }
    }
}

impl Sources {
    pub(super) fn new(config: &Config) -> Self {
        let list: Vec<Source> = (0..config.origins.max(1)).map(|n| Source::new(OriginId(n))).collect();
        let resumed = config.resume.as_ref().and_then(|resume| resume.source);
        let current = resumed.and_then(|id| list.iter().position(|source| source.id == id)).unwrap_or(0);
        Self {
            list,
            current,
            proof: config.proof.filter(|_| config.window.is_none()),
            distrusted: false,
            left: 0,
            switches: 0,
            verified: SpanSet::default(),
            whole_verified: false,
            verifying: None,
            stale: false,
            mismatches: 0,
            journal: None,
        }
    }

    /// Whether links may ask different sources.
    fn combines(&self) -> bool {
        self.proof.is_some() && !self.distrusted
    }

    fn in_use(&self) -> OriginId {
        self.list.get(self.current).map_or(OriginId(0), |source| source.id)
    }

    fn allowed(&self) -> impl Iterator<Item = OriginId> + '_ {
        self.list.iter().filter(|source| !source.excluded).map(|source| source.id)
    }

    fn count(&self) -> usize {
        self.allowed().count()
    }

    /// The source that a link asks first.
    pub(super) fn first_for(&self, link: LinkId) -> OriginId {
        let turn = usize::from(link.0) % self.count().max(1);
        let spread = if self.combines() { self.allowed().nth(turn) } else { None };
        spread.unwrap_or(self.in_use())
    }

    /// The one behind this in the list, from the start again at its end.
    fn after(&self, id: OriginId) -> OriginId {
        let at = self.list.iter().position(|source| source.id == id).unwrap_or(0);
        let (before, behind) = self.list.split_at((at + 1).min(self.list.len()));
        behind.iter().chain(before).find(|source| !source.excluded).map_or(id, |source| source.id)
    }

    fn exclude(&mut self, id: OriginId) {
        if let Some(source) = self.list.iter_mut().find(|source| source.id == id) {
            source.excluded = true;
        }
    }

    /// A source to fetch the whole file from, other than this one.
    fn fresh(&self, not: Option<OriginId>) -> Option<OriginId> {
        let is_fresh = |source: &&Source| !source.excluded && !source.failed && Some(source.id) != not;
        self.list.iter().find(is_fresh).map(|source| source.id)
    }

    fn use_only(&mut self, id: OriginId) {
        self.current = self.list.iter().position(|source| source.id == id).unwrap_or(0);
    }

    /// Whether nothing remains to be verified of a file of this size.
    pub(super) fn is_verified(&self, total: Option<DataSize>) -> bool {
        match self.proof {
            None => true,
            Some(Proof::Whole) => self.whole_verified,
            Some(Proof::Pieces(_)) => Some(self.verified.len()) == total,
        }
    }

    /// Whether the driver is reading bytes for their digest.
    pub(super) fn is_verifying(&self) -> bool {
        self.verifying.is_some()
    }

    /// The bytes came from zero again: nothing is known of them.
    fn forget_bytes(&mut self) {
        self.verified = SpanSet::default();
        self.whole_verified = false;
        self.verifying = None;
        for source in &mut self.list {
            source.brought = SpanSet::default();
        }
    }

    /// These bytes of a source are in their place, and whatever was there before is not.
    fn put(&mut self, root: OriginId, span: Span) {
        for source in &mut self.list {
            if source.id == root {
                source.brought.insert(span);
            } else if !source.brought.is_empty() {
                source.brought.remove(span);
            }
        }
        if let Some(Proof::Pieces(size)) = self.proof {
            // A late answer may have replaced bytes that were verified.
            let size = size.bytes().max(1);
            let pieces = Span::new(span.start / size * size, span.end.div_ceil(size).saturating_mul(size));
            self.verified.remove(pieces);
            if self.verifying.is_some_and(|verifying| !verifying.intersect(span).is_empty()) {
                self.stale = true;
            }
        }
    }

    /// The piece to verify next: complete, and not verified.
    fn next_piece(&self, size: DataSize, total: u64, done: &SpanSet) -> Option<Span> {
        let size = size.bytes().max(1);
        for run in done.iter() {
            let mut start = run.start.div_ceil(size).saturating_mul(size);
            while start < run.end.min(total) {
                let end = start.saturating_add(size).min(total);
                if end > run.end {
                    break;
                }
                let known = self.verified.run_from(start);
                if known < end {
                    return Some(Span::new(start, end));
                }
                start = known.div_ceil(size).saturating_mul(size);
            }
        }
        None
    }

    /// The one source that delivered all of these bytes.
    fn only_contributor(&self, span: Span) -> Option<OriginId> {
        let source = self.list.iter().find(|source| !source.brought.is_empty())?;
        (source.brought.run_from(span.start) >= span.end).then_some(source.id)
    }

    /// The sources that delivered some of these bytes.
    fn contributors(&self, span: Span) -> Vec<OriginId> {
        let part_of = |source: &&Source| source.brought.iter().any(|run| !run.intersect(span).is_empty());
        self.list.iter().filter(part_of).map(|source| source.id).collect()
    }
}

impl Fetch {
    /// Whether links may ask different sources.
    pub(super) fn combines(&self) -> bool {
        self.sources.combines()
    }

    /// Whether answers without a validator may be put together, because the result is verified.
    pub(super) fn is_proven(&self) -> bool {
        self.config.proven || self.sources.proof.is_some()
    }

    /// A server has named a further source.
    pub(super) fn add_source(&mut self, id: OriginId) {
        let list = &mut self.sources.list;
        if list.len() < MOST_SOURCES && list.iter().all(|source| source.id != id) {
            list.push(Source::new(id));
        }
    }

    /// A server has told a digest of the file. The driver's journal goes on being of the source in use alone.
    pub(super) fn add_proof(&mut self, proof: Proof) {
        if self.config.window.is_none() && self.sources.proof.is_none() {
            self.sources.proof = Some(proof);
            self.sources.journal = Some(self.sources.in_use());
            // What came before belongs to the one source that was in use.
            let (current, done) = (self.sources.current, self.ledger.done_spans().clone());
            if let Some(source) = self.sources.list.get_mut(current) {
                source.brought = done;
            }
        }
    }

    /// Whether bytes of this source must not be claimed in the driver's journal.
    pub(super) fn is_foreign(&self, root: OriginId) -> bool {
        self.sources.journal.is_some_and(|journal| journal != root)
    }

    /// Whether bytes that came did not match the digest of the whole file.
    pub(super) fn has_mismatched(&self) -> bool {
        self.sources.mismatches > 0
    }

    /// Notes which source delivered these bytes.
    pub(super) fn note_source(&mut self, root: OriginId, span: Span) {
        self.sources.left = 0;
        if self.sources.proof.is_some() {
            self.sources.put(root, span);
        }
    }

    /// Forgets all bytes, and everything that was known of them.
    pub(super) fn forget_bytes(&mut self) {
        self.ledger.restart();
        self.sources.forget_bytes();
    }

    /// This link gets nothing from its source: it goes to the next one if sources are combined. Otherwise all links go,
    /// once none of them can get anything. False: the link has to do with the source that it has.
    pub(super) fn next_root(&mut self, id: LinkId, why: &Ban) -> bool {
        if !self.combines() {
            return self.leave_source(id, why);
        }
        let Some(left) = self.links.get(&id).map(|link| link.root) else { return false };
        let untried = self.untried_root(id);
        if untried {
            self.leave_root(id);
            self.notice(Notice::NextOrigin { link: id, left, why: why.clone() });
        }
        untried
    }

    /// Whether a link has another source that it has not tried since bytes last came.
    pub(super) fn untried_root(&self, id: LinkId) -> bool {
        let tried = |link: &LinkState| usize::from(link.roots_left) + 1;
        self.links.get(&id).is_some_and(|link| tried(link) < self.sources.count())
    }

    /// Moves a link to the next source, whatever it has tried.
    pub(super) fn leave_root(&mut self, id: LinkId) {
        let most = u16::try_from(self.sources.count()).unwrap_or(u16::MAX);
        let Some(next) = self.links.get(&id).map(|link| self.sources.after(link.root)) else { return };
        let Some(link) = self.links.get_mut(&id) else { return };
        link.roots_left = link.roots_left.saturating_add(1).min(most);
        link.root = next;
        link.root_since = self.now;
        link.plain = false;
        link.failures = 0;
        link.next_try = self.now;
        for conn in link.conns.clone() {
            self.drop_conn(conn, true);
        }
    }

    /// Leaves a source of which nothing has come, when no link can get anything from it.
    fn leave_source(&mut self, id: LinkId, why: &Ban) -> bool {
        if !self.may_switch() || self.has_delivered() {
            return false;
        }
        let Some(link) = self.links.get_mut(&id) else { return false };
        link.refused = true;
        let waits = |(id, link): (&LinkId, &LinkState)| !link.refused && self.usable(*id, link);
        if self.links.iter().any(waits) {
            return false;
        }
        self.switch_source(why.to_string());
        true
    }

    /// The download would end with this failure: the next source is asked for the whole file instead, if there is one.
    pub(super) fn fails_over(&mut self, failure: &Failure) -> bool {
        let lasting = match failure {
            // A budget is the same everywhere, and so is a digest.
            Failure::Budget | Failure::Digest => true,
            // Of a source from which nothing came, the others have been asked meanwhile.
            Failure::NoLink { .. } | Failure::NoAnswer => self.ledger.done().is_zero(),
            _ => false,
        };
        if lasting || self.links.is_empty() {
            return false;
        }
        if self.combines() {
            return self.leave_failed_answer(failure);
        }
        if !self.may_switch() {
            return false;
        }
        self.switch_source(failure.to_string());
        self.last_data = self.now;
        true
    }

    /// The one answer cannot be had from a source that is asked beside others. It is excluded, and everything begins again
    /// with the next one.
    fn leave_failed_answer(&mut self, failure: &Failure) -> bool {
        let Some(link) = self.carrier.filter(|_| matches!(self.phase, Phase::OneAnswer { .. })) else {
            return false;
        };
        let Some(left) = self.links.get(&link).map(|link| link.root).filter(|_| self.untried_root(link)) else {
            return false;
        };
        let why = match failure {
            Failure::Retries { trouble } => Ban::Trouble { trouble: trouble.clone() },
            _ => Ban::Protocol { text: failure.to_string() },
        };
        let next = self.sources.after(left);
        self.sources.exclude(left);
        self.sources.use_only(next);
        self.begin_with(next);
        self.notice(Notice::NextOrigin { link, left, why });
        self.last_data = self.now;
        true
    }

    /// Whether there is a source that may do better, and nobody has read anything of the present one.
    fn may_switch(&self) -> bool {
        let read = self.config.window.is_some() && self.consumed > 0;
        let count = self.sources.count();
        !read && self.sources.left + 1 < count && self.sources.switches < count * 2
    }

    /// Whether something has come from the source in use, or is coming.
    fn has_delivered(&self) -> bool {
        !self.ledger.done().is_zero() || self.reqs.values().any(|req| req.accepted)
    }

    /// Leaves a source that says nothing, or nothing but refusals, over all links.
    pub(super) fn leave_silent_source(&mut self) {
        if self.links.is_empty() || self.combines() || self.sources.count() < 2 {
            return;
        }
        if self.has_delivered() {
            return self.leave_refusing_source();
        }
        let mut since = None;
        for (_, link) in self.links.iter().filter(|(id, link)| self.usable(**id, link)) {
            match link.standing {
                Standing::Silent { since: of } => since = since.max(Some(of.max(link.root_since))),
                _ if link.refused => {}
                _ => return,
            }
        }
        let Some(since) = since else { return };
        let fresh = self.may_switch();
        // Perhaps it is the links after all: once all sources were tried, they are tried again more slowly.
        let until = since + if fresh { LEAVE_SILENT } else { LEAVE_AGAIN };
        if self.now < until {
            return self.wake_at(until, Wake::Silence);
        }
        if fresh {
            self.switch_source("nothing comes from it".to_string());
        } else if self.consumed == 0 {
            let next = self.sources.after(self.sources.in_use());
            self.sources.use_only(next);
            self.begin_with(next);
        }
    }

    /// A source has delivered, and refuses over all links since: it is given some time.
    fn leave_refusing_source(&mut self) {
        if !self.may_switch() || self.links.iter().any(|(id, link)| self.usable(*id, link)) {
            return;
        }
        let refusal = self.links.values().find_map(|link| match &link.standing {
            Standing::Banned { why: why @ (Ban::OtherStatus { .. } | Ban::Protocol { .. }), .. } => Some(why),
            _ => None,
        });
        let (Some(why), until) = (refusal.map(ToString::to_string), self.last_data + LEAVE_REFUSING) else {
            return;
        };
        if self.now < until {
            return self.wake_at(until, Wake::Silence);
        }
        self.switch_source(why);
    }

    /// Asks the next source for the whole file, over all links.
    fn switch_source(&mut self, why: String) {
        let left = self.sources.in_use();
        let next = self.sources.after(left);
        if let Some(source) = self.sources.list.get_mut(self.sources.current) {
            source.failed = true;
        }
        self.sources.use_only(next);
        self.sources.left += 1;
        self.sources.switches += 1;
        let from_zero = self.begin_with(next);
        self.notice(Notice::NextSource { left, next, why, from_zero });
    }

    /// Everything begins again with this source alone. Pieces that match their digests are kept. Tells whether bytes
    /// were thrown away.
    fn begin_with(&mut self, source: OriginId) -> bool {
        let kept = self.sources.verified.clone();
        let had = self.phase != Phase::Unknown || !self.ledger.done().is_zero();
        self.close_all();
        self.validators.clear();
        self.dates.clear();
        self.opening = Opening::Range;
        self.first = None;
        self.parked.clear();
        self.told = None;
        self.carrier = None;
        let keeps = !kept.is_empty();
        if keeps {
            self.ledger.keep(&kept);
            for known in &mut self.sources.list {
                known.brought = known.brought.common(&kept);
            }
            self.phase = Phase::Ranges;
        } else {
            self.forget_bytes();
            self.phase = Phase::Unknown;
            self.consumed = 0;
        }
        self.rebuild();
        for link in self.links.values_mut() {
            link.begin_with(source, self.now);
        }
        // Connections may have been ordered already in this turn.
        self.wake_at(self.now, Wake::Retry);
        if had && !keeps {
            self.out.push_back(Output::Restart);
        }
        had && !keeps
    }

    /// Asks the driver to verify what is complete.
    pub(super) fn verify_next(&mut self) {
        let (Some(proof), Some(total), None) = (self.sources.proof, self.ledger.total(), self.sources.verifying)
        else {
            return;
        };
        let span = match proof {
            Proof::Whole => {
                let due = self.ledger.complete() && !self.sources.whole_verified;
                due.then_some(Span::at(0, total))
            }
            Proof::Pieces(size) => self.sources.next_piece(size, total.bytes(), self.ledger.done_spans()),
        };
        if self.ledger.complete() {
            // Nothing may replace bytes that are being verified, or were.
            self.close_all();
        }
        if let Some(span) = span {
            self.sources.verifying = Some(span);
            self.out.push_back(Output::Verify { span });
        }
    }

    /// The driver has compared these bytes with their digest.
    pub(super) fn verified(&mut self, span: Span, good: bool) {
        if self.sources.verifying.take_if(|verifying| *verifying == span).is_none() {
            return;
        }
        if core::mem::take(&mut self.sources.stale) {
            return;
        }
        match (self.sources.proof, good) {
            (Some(Proof::Pieces(_)), true) => drop(self.sources.verified.insert(span)),
            (_, true) => self.sources.whole_verified = true,
            (Some(Proof::Pieces(_)), false) => self.bad_piece(span),
            (_, false) => self.bad_whole(span),
        }
    }

    fn bad_piece(&mut self, span: Span) {
        let of = self.sources.contributors(span);
        self.ledger.undo(span);
        for source in &mut self.sources.list {
            source.brought.remove(span);
        }
        self.rebuild();
        match of.as_slice() {
            // An earlier run's bytes, damaged since: they are fetched again.
            [] => self.notice(Notice::Mismatch { span, source: None }),
            [source] => {
                self.notice(Notice::Mismatch { span, source: Some(*source) });
                self.exclude(*source);
            }
            _ => {
                self.notice(Notice::Mismatch { span, source: None });
                self.distrust();
            }
        }
    }

    /// The whole file does not match. It is fetched again: not from a source that delivered all of it, and from one source
    /// alone if several did.
    fn bad_whole(&mut self, span: Span) {
        let of = self.sources.contributors(span);
        let culprit = self.sources.only_contributor(span);
        match culprit {
            Some(source) => self.sources.exclude(source),
            None => self.sources.distrusted = true,
        }
        self.sources.mismatches += 1;
        let only = if let [only] = of.as_slice() { Some(*only) } else { None };
        let other = self.sources.fresh(only);
        let Some(next) = other.filter(|_| self.sources.mismatches <= MOST_MISMATCHES) else {
            return self.fail_with(Failure::Digest);
        };
        self.sources.use_only(next);
        self.notice(Notice::Mismatch { span, source: culprit });
        self.begin_with(next);
    }

    /// A source whose bytes do not match is not asked any more.
    fn exclude(&mut self, id: OriginId) {
        self.sources.exclude(id);
        if self.sources.count() == 0 {
            return self.fail_with(Failure::Digest);
        }
        if self.sources.in_use() == id {
            self.sources.use_only(self.sources.after(id));
        }
        self.leave_all(|link| link.root == id);
    }

    /// One source alone is asked from now on.
    fn distrust(&mut self) {
        self.sources.distrusted = true;
        if self.sources.allowed().all(|id| id != self.sources.in_use()) {
            self.sources.use_only(self.sources.after(self.sources.in_use()));
        }
        let only = self.sources.in_use();
        self.leave_all(|link| link.root != only);
    }

    /// Moves these links to the source that they may ask now.
    fn leave_all(&mut self, which: impl Fn(&LinkState) -> bool) {
        let leaving: Vec<LinkId> = self.links.iter().filter(|(_, link)| which(link)).map(|(id, _)| *id).collect();
        for id in leaving {
            let only = (!self.combines()).then(|| self.sources.in_use());
            let Some(link) = self.links.get_mut(&id) else { continue };
            let next = only.unwrap_or_else(|| self.sources.after(link.root));
            for conn in core::mem::take(&mut link.conns) {
                self.drop_conn(conn, true);
            }
            if let Some(link) = self.links.get_mut(&id) {
                link.begin_with(next, self.now);
            }
        }
    }
}

impl LinkState {
    /// Everything that was known of the link's source is forgotten, and this one is asked.
    fn begin_with(&mut self, source: OriginId, now: Instant) {
        self.root = source;
        self.root_since = now;
        self.roots_left = 0;
        self.refused = false;
        self.plain = false;
        self.failures = 0;
        self.next_try = now;
        self.forget_places();
        self.lanes = super::lanes::Lanes::default();
        self.known.proved = false;
        self.known.edge = None;
        self.known.differs = None;
        self.known.contradictions = 0;
        self.known.best_answer = (0, 0);
        if self.standing != Standing::Down {
            self.standing = Standing::Up;
        }
    }
}

/// How long nothing may come from a source over any link: the first time, and when all sources were tried.
const LEAVE_SILENT: Duration = Duration::from_secs(3);
const LEAVE_AGAIN: Duration = Duration::from_secs(10);
/// How long a source that has delivered may refuse over all links. chosen: two rests of a banned link.
const LEAVE_REFUSING: Duration = Duration::from_secs(12);
/// How often the whole file is fetched again because it does not match. chosen: if so many sources have the same wrong file,
/// the digest is wrong.
const MOST_MISMATCHES: u32 = 8;
/// More sources than this are not kept of what servers name.
const MOST_SOURCES: usize = 32;
