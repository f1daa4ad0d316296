//! What an answer's head means: the same file, another file, a portal, a pause, the end.
//!
//! 1. A 206 with the asked range identifies the resource; nothing but the resource's own server can make one up.
//! 2. A 200 or an error may come from a captive portal: other links are heard first; see `opinions`.
//! 3. Later answers must agree in size and validator; see `same`.
//! 4. Without a strong validator two answers could be of two files, so everything comes from one answer, unless a
//!    checksum proves the whole; see `whole`.
//! 5. Redirects are followed and names resolved by each link for itself: its own edge of a content network, or its
//!    portal, which rule 2 then finds.
//!
//! Asking with HEAD first was not used: it costs a round trip, and servers answer it carelessly.

use alloc::format;
use core::time::Duration;

use super::conn::FIRST_SPAN;
use super::links::Edge;
use super::plan::LEAST_PIECE;
use super::{
    Ask, Ban, ContentRange, Failure, Fetch, Head, Notice, OneAnswer, Output, Phase, ReqId, Span, Validator, Wake,
};
use crate::link::LinkId;
use crate::units::DataSize;

impl Fetch {
    pub(super) fn head(&mut self, id: ReqId, head: &Head) {
        let Some(req) = self.reqs.get(&id) else { return };
        let (conn_id, ask) = (req.conn, req.ask);
        let Some(conn) = self.conns.get_mut(&conn_id) else { return };
        let link = conn.link;
        conn.last = self.now;
        if let Some(link) = self.links.get_mut(&link) {
            conn.on_head(self.now, &mut link.known.pauses);
        }
        if head.closes {
            conn.draining = true;
        }
        match head.status {
            206 => self.part(id, link, ask, head),
            200 => self.whole(id, link, ask, head),
            301 | 302 | 303 | 307 | 308 => self.redirect(id, link, head),
            416 => self.beyond(id, link, head),
            429 | 503 => self.pause(id, link, head),
            _ => self.refusal(id, link, head),
        }
    }

    /// 206: some of the bytes that were asked for.
    fn part(&mut self, id: ReqId, link: LinkId, ask: Ask, head: &Head) {
        let (asked, conn) = match self.reqs.get(&id) {
            Some(req) => (req.span, req.conn),
            None => return,
        };
        let Some(ContentRange { span: Some(span), total }) = head.range else {
            return self.misbehaves(id, link, "206 without a usable Content-Range");
        };
        if span.start != asked.start || span.is_empty() || span.end > asked.end || ask == Ask::Whole {
            return self.misbehaves(id, link, "another range than the one that was asked for");
        }
        if head.encoded {
            return self.misbehaves(id, link, "an encoded range although identity was asked for");
        }
        if head.length.is_some_and(|length| length != span.len()) {
            return self.misbehaves(id, link, "a Content-Length that is not its range's");
        }
        let total = match (total, self.ledger.total().filter(|_| self.phase == Phase::Ranges)) {
            (Some(total), _) => total,
            // Its validator will tell whether it is the file whose size is known.
            (None, Some(known)) => known,
            (None, None) => return self.one_answer(OneAnswer::NoLength, Some(conn)),
        };
        if self.is_unexpected(total) {
            return self.refuse_size(id, link, total);
        }
        if span.end > total.bytes() {
            return self.misbehaves(id, link, "a range beyond the end");
        }
        if self.phase == Phase::Unknown && !self.identify(id, total, head.validator.as_ref(), span) {
            return;
        }
        if !self.agrees(id, link, total, head.validator.as_ref()) {
            return;
        }
        self.accept(id, span);
        self.spoken_for_ranges();
    }

    /// Whether a file of this size is known to be another one.
    pub(super) fn is_unexpected(&self, total: DataSize) -> bool {
        self.config.expected.is_some_and(|expected| expected != total)
    }

    /// The source has a file of another size than the one that is wanted.
    pub(super) fn refuse_size(&mut self, id: ReqId, link: LinkId, got: DataSize) {
        let want = self.config.expected.unwrap_or_default();
        let text = format!("the file is {} bytes long instead of {}", got.bytes(), want.bytes());
        let ban = Ban::OtherLength { got: Some(got), want: Some(want) };
        self.refuse(id, link, ban, Failure::Protocol { text });
    }

    /// The first good answer. False: this answer cannot be used after all.
    fn identify(&mut self, id: ReqId, total: DataSize, validator: Option<&Validator>, span: Span) -> bool {
        let provable = validator.is_some() || self.is_proven();
        if !provable && let Some(link) = self.carrier_of(id) {
            self.told(link, total, None, true);
        }
        if !provable && span != Span::at(0, total) {
            let conn = self.reqs.get(&id).map(|req| req.conn);
            self.one_answer(OneAnswer::NoValidator, conn);
            return false;
        }
        // Without a validator, an answer that covers everything stands alone.
        self.phase = if provable { Phase::Ranges } else { Phase::OneAnswer { req: Some(id) } };
        if !provable {
            self.carrier = self.carrier_of(id);
            self.drop_others(id);
        }
        self.settle_total(total);
        self.out.push_back(Output::Identified { total: Some(total), validator: validator.cloned() });
        true
    }

    /// The size is known: requests with open ends get theirs, and those beyond it are pointless.
    fn settle_total(&mut self, total: DataSize) {
        self.ledger.set_total(total);
        for req in self.reqs.values_mut() {
            req.span.end = req.span.end.min(total.bytes()).max(req.cursor);
        }
        self.rebuild();
    }

    /// Tells the driver to take the body of an answer.
    pub(super) fn accepted(&mut self, id: ReqId, at: u64, len: Option<DataSize>) {
        let conn = self.reqs.get(&id).and_then(|req| self.conns.get(&req.conn));
        let foreign = conn.is_some_and(|conn| self.is_foreign(conn.root));
        self.out.push_back(Output::Accept { req: id, at, len, foreign });
    }

    fn accept(&mut self, id: ReqId, span: Span) {
        let Some(req) = self.reqs.get_mut(&id) else { return };
        let short = span.end < req.span.end;
        req.accepted = true;
        req.span.end = span.end;
        if short {
            self.rebuild();
        }
        self.accepted(id, span.start, Some(span.len()));
    }

    fn redirect(&mut self, id: ReqId, link_id: LinkId, head: &Head) {
        let root = self.reqs.get(&id).and_then(|req| self.conns.get(&req.conn)).map(|conn| conn.root);
        let (Some(root), Some(link)) = (root, self.links.get_mut(&link_id)) else { return };
        link.redirects += 1;
        match head.location {
            Some(target) if link.redirects <= MOST_REDIRECTS => {
                link.targets.insert(root, Edge { origin: target, at: None });
                link.next_try = self.now;
                // Its connections lead to the old place.
                for conn in link.conns.clone() {
                    self.drop_conn(conn, true);
                }
            }
            _ => self.refuse(id, link_id, Ban::OtherStatus { status: head.status }, Failure::Redirect),
        }
    }

    /// 416: the range lies beyond the end.
    fn beyond(&mut self, id: ReqId, link: LinkId, head: &Head) {
        let total = head.range.and_then(|range| range.total);
        match (self.phase, total) {
            // An empty file, or a reader that has jumped beyond the end: nothing is wanted.
            (Phase::Unknown, Some(total)) if total.bytes() <= self.ledger.frontier() => {
                self.phase = Phase::Ranges;
                self.settle_total(total);
                self.out.push_back(Output::Identified { total: Some(total), validator: None });
                self.finish_if_complete();
            }
            // A question for the bytes behind the first ones of a small file: the first answer is on its way.
            (Phase::Unknown, Some(total)) => {
                self.cancel(id);
                self.rest(link, SMALL_REST);
                self.told(link, total, None, true);
                self.told_total(total);
            }
            // No word of the size: a server that refuses ranges altogether, or a portal.
            (Phase::Unknown, None) if self.other_opinions(link) => self.park(id, link, head),
            (Phase::Unknown, None) => self.ask_without_range(id),
            (Phase::OneAnswer { .. }, None) => {
                self.cancel(id);
                let why = Ban::OtherStatus { status: head.status };
                if !self.next_root(link, &why) {
                    self.ban_or_end(link, why, false, Failure::Status { status: head.status });
                }
            }
            (_, total) if total.is_some() && total == self.ledger.total() => {
                self.cancel(id);
                self.rest(link, SMALL_REST);
            }
            (_, got) => {
                let want = self.ledger.total();
                self.differs(id, link, Ban::OtherLength { got, want }, None);
            }
        }
    }

    /// The server refuses a range of which it does not say what is wrong with it: everything is asked for, once.
    pub(super) fn ask_without_range(&mut self, id: ReqId) {
        let conn = self.reqs.get(&id).map(|req| req.conn);
        self.one_answer(OneAnswer::NoRanges, conn);
        self.wake_at(self.now, Wake::Retry);
    }

    /// 429 and 503: not now. A mirror may do better.
    fn pause(&mut self, id: ReqId, link_id: LinkId, head: &Head) {
        self.cancel(id);
        if self.next_root(link_id, &Ban::OtherStatus { status: head.status }) {
            return;
        }
        let Some(link) = self.links.get_mut(&link_id) else { return };
        link.failures += 1;
        link.lanes.be_modest();
        let asked = head.retry_after.filter(|asked| *asked > LONGEST_PAUSE);
        let wait = head.retry_after.unwrap_or_else(|| link.backoff()).min(LONGEST_PAUSE);
        link.next_try = self.now + wait;
        link.paused_until = link.next_try;
        let spent = link.failures > self.config.retries;
        for conn in link.conns.clone() {
            self.drop_conn(conn, true);
        }
        let status = head.status;
        if !spent {
            self.notice(Notice::Pause { link: link_id, wait, asked, status });
        } else {
            self.ban_or_end(link_id, Ban::OtherStatus { status }, false, Failure::Status { status });
        }
    }

    /// Any other status: a server that fails is tried again, one that refuses is not.
    fn refusal(&mut self, id: ReqId, link: LinkId, head: &Head) {
        if matches!(head.status, 408 | 500 | 502 | 504) {
            return self.pause(id, link, head);
        }
        let status = head.status;
        // All links may be refused alike: they are judged together.
        let alike = self.parked.iter().any(|parked| parked.head.status == status);
        if self.phase == Phase::Unknown && (alike || self.other_opinions(link)) {
            return self.park(id, link, head);
        }
        self.refuse(id, link, Ban::OtherStatus { status }, Failure::Status { status });
    }

    /// This link will not deliver from its present root: the next one, or the end.
    pub(super) fn refuse(&mut self, id: ReqId, link_id: LinkId, ban: Ban, failure: Failure) {
        self.cancel(id);
        if self.next_root(link_id, &ban) {
            return;
        }
        self.ban_or_end(link_id, ban, self.phase != Phase::Unknown, failure);
    }

    /// Bans a link; if it was the last that could bring anything, the failure itself says more than its ban.
    pub(super) fn ban_or_end(&mut self, link_id: LinkId, why: Ban, probing: bool, failure: Failure) {
        let others = self.links.iter().any(|(id, link)| *id != link_id && link.in_play());
        if others || probing {
            self.ban(link_id, why, probing);
            self.fail_if_hopeless(failure);
        } else {
            self.give_up(failure);
        }
    }

    /// Answers that HTTP does not allow: once may be chance, again and again is not.
    pub(super) fn misbehaves(&mut self, id: ReqId, link_id: LinkId, text: &str) {
        self.cancel(id);
        let why = Ban::Protocol { text: text.into() };
        if self.next_root(link_id, &why) {
            return;
        }
        self.ban_or_end(link_id, why, self.phase != Phase::Unknown, Failure::Protocol { text: text.into() });
    }

    /// The span that a connection asks for before the resource is known: the next bytes that nobody has asked for, and
    /// that the reader has room for, or the connection would wait for the others.
    pub(super) fn probe_span(&self) -> Option<Span> {
        let free = self.ledger.free(0, self.limit())?;
        let room = self.config.window.map_or(DataSize::MAX, |window| window / (self.links.len() as u64).max(1));
        Some(Span::at(free.start, free.len().min(FIRST_SPAN).min(room.max(LEAST_PIECE))))
    }
}

/// RFC 9110 §15.4 asks for a limit; browsers allow 20, curl 50. chosen: 10.
const MOST_REDIRECTS: u32 = 10;
/// A server that wants to be asked later than this is asked then all the same: a laptop is carried away meanwhile.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// How long a link waits that asked beyond a small file's end.
const SMALL_REST: Duration = Duration::from_millis(200);
