//! What an answer's head means: the same file, another file, a portal, a pause, the end.
//!
//! 1. A 206 with the asked range identifies the resource; nothing but the resource's own server can make one up.
//! 2. A 200 or an error may come from a captive portal: other links are heard first; see `opinions`.
//! 3. Later answers must agree in size and validator; see `same`.
//! 4. Without a strong validator two answers could be of two files, so everything comes from one answer, unless a
//!    checksum proves the whole; see `whole`. The same holds for a server whose answers to ranges cannot be used: what
//!    comes in one piece for other programs comes in one piece here.
//! 5. Redirects are followed and names resolved by each link for itself: its own edge of a content network, or its
//!    portal, which rule 2 then finds.
//!
//! Asking with HEAD first was not used: it costs a round trip, and servers answer it carelessly.

use alloc::format;
use core::time::Duration;

use super::conn::{Conn, FIRST_SPAN};
use super::links::{Edge, LinkState};
use super::manners::size_of;
use super::plan::LEAST_PIECE;
use super::{
    Ask, Ban, ContentRange, Failure, Fetch, Head, Notice, OneAnswer, Opening, Output, Phase, ReqId, Span, Validator,
};
use crate::link::LinkId;
use crate::units::DataSize;

impl Fetch {
    pub(super) fn head(&mut self, id: ReqId, head: &Head) {
        let Some(req) = self.reqs.get(&id) else { return };
        let (conn_id, ask) = (req.conn, req.ask);
        let Some(conn) = self.conns.get_mut(&conn_id) else { return };
        let (link, root) = (conn.link, conn.root);
        conn.last = self.now;
        if let Some(link) = self.links.get_mut(&link) {
            conn.on_head(self.now, &mut link.known.pauses);
        }
        let announces_end = head.closes && head.status == 206 && !conn.draining;
        conn.draining |= head.closes;
        let answers = conn.answered + 1;
        if req.piped {
            self.manners(root).on_pipelined();
        }
        if announces_end {
            self.manners(root).on_end(answers);
        }
        match head.status {
            206 if ask == Ask::Whole => self.whole_part(id, link, head),
            206 => self.part(id, link, head),
            // A part under the status of the whole.
            200 if ask != Ask::Whole && head.range.is_some_and(|range| range.span.is_some()) => {
                self.part(id, link, head);
            }
            // 203: a proxy has changed something (RFC 9110 §15.3.4). The others mean success to every downloader.
            200..=203 | 207..=299 => self.whole(id, link, ask, head),
            300..=303 | 307 | 308 if head.redirects || head.location.is_some() => self.redirect(id, link, head),
            // Without a target a redirect is the response itself, as curl has it, and a 204 an empty file. To a request for a
            // range they say nothing of the file.
            204 | 205 | 300..=308 if ask != Ask::Whole && self.try_in_one_piece(id, link) => {}
            204 | 205 if ask == Ask::Whole => {
                self.whole(id, link, ask, &Head { length: Some(DataSize::ZERO), ..head.clone() });
            }
            300..=303 | 307 | 308 if ask == Ask::Whole && head.length != Some(DataSize::ZERO) => {
                self.whole(id, link, ask, head);
            }
            301..=303 | 307 | 308 => self.redirect(id, link, head),
            416 => self.beyond(id, link, head),
            429 | 503 => self.pause(id, link, head),
            _ => self.refusal(id, link, head),
        }
    }

    /// 206: some of the bytes that were asked for.
    fn part(&mut self, id: ReqId, link: LinkId, head: &Head) {
        let Some(req) = self.reqs.get(&id) else { return };
        let (asked, conn) = (if self.is_first(id) { Span::new(0, u64::MAX) } else { req.span }, req.conn);
        let span = match head.range {
            Some(ContentRange { span: Some(span), .. }) => span,
            // A range of no bytes, at the end of the file.
            Some(ContentRange { total: Some(total), .. }) if total.bytes() <= asked.start => {
                return self.beyond(id, link, head);
            }
            _ => return self.unusable(id, link, "206 without a usable Content-Range", head),
        };
        let total = head.range.and_then(|range| range.total);
        if head.encoded {
            return self.misbehaves(id, link, "an encoded range although identity was asked for");
        }
        if head.length.is_some_and(|length| length != span.len()) {
            return self.unusable(id, link, "a Content-Length that is not its range's", head);
        }
        let within = span.start == asked.start && span.end <= asked.end;
        if !within && total.is_some_and(|total| span == Span::at(0, total)) && !self.is_first(id) {
            return self.whole_as_part(id, link, head);
        }
        // More than was asked for is good if its head agrees with itself.
        let skipped = DataSize::from_bytes(asked.start.saturating_sub(span.start));
        let more = head.length.is_some() && span.start <= asked.start && asked.start < span.end;
        if !within && (!more || skipped > MOST_SKIPPED) {
            // Its total is that of the file all the same: no portal says one.
            if let Some(total) = total.filter(|total| self.phase == Phase::Unknown && span.end <= total.bytes()) {
                self.told(link, Some(total), head.validator.as_ref(), true);
            }
            return self.unusable(id, link, "another range than the one that was asked for", head);
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
        if self.is_doubtful(id, total) {
            return self.doubt(id);
        }
        if span.end > total.bytes() {
            return self.unusable(id, link, "a range beyond the end", head);
        }
        // A small HTML page that claims to be all of the file may be an error page: one request without a range decides.
        let small_page = head.page && span == Span::at(0, total) && total <= FIRST_SPAN;
        if small_page && self.try_in_one_piece(id, link) {
            return;
        }
        if self.phase == Phase::Unknown && !self.identify(id, total, head.validator.as_ref(), span) {
            return;
        }
        if !self.agrees(id, link, total, head) {
            return;
        }
        self.accept(id, span);
        self.spoken_for_ranges();
        self.leave_tiny_ranges(id, span);
    }

    /// Ranges of a few bytes each, where more was asked for, are not worth their requests.
    fn leave_tiny_ranges(&mut self, id: ReqId, span: Span) {
        let total = self.ledger.total().unwrap_or_default();
        let Some(req) = self.reqs.get(&id) else { return };
        let asked = size_of(req.ask).unwrap_or(DataSize::MAX);
        let Some(root) = self.conns.get(&req.conn).map(|conn| conn.root) else { return };
        let manners = self.manners(root);
        if span.len() < TINY && span.len() < asked && span.end < total.bytes() {
            manners.tiny += 1;
            if manners.tiny >= MOST_TINY {
                self.one_answer(OneAnswer::BadRanges, None);
            }
        } else if span.len() >= TINY {
            manners.tiny = 0;
        }
    }

    /// Whether a first answer says that the file ends exactly where the request did. Servers that number the bytes of a part
    /// as if it were the whole say so, too.
    pub(super) fn is_doubtful(&self, id: ReqId, total: DataSize) -> bool {
        let asked = self.reqs.get(&id).map(|req| req.ask);
        // A range with an open end names no end that a server could repeat, and players send such ranges everywhere.
        let ends_there = matches!(asked, Some(Ask::Span(span)) if span.end == total.bytes());
        let is_known =
            self.config.expected.is_some() || self.config.resume.is_some() || self.ledger.total().is_some();
        self.phase == Phase::Unknown && ends_there && !is_known
    }

    /// The whole file is asked for instead.
    pub(super) fn doubt(&mut self, id: ReqId) {
        let conn = self.reqs.get(&id).map(|req| req.conn);
        self.one_answer(OneAnswer::Doubtful, conn);
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
            self.told(link, Some(total), None, true);
        }
        if !provable && span != Span::at(0, total) {
            let conn = self.reqs.get(&id).map(|req| req.conn);
            self.one_answer(OneAnswer::NoValidator, conn);
            return false;
        }
        // Without a validator, an answer that covers everything stands alone.
        self.phase = if provable { Phase::Ranges } else { Phase::OneAnswer { req: Some(id) } };
        if !provable {
            if self.is_first(id) && total > FIRST_SPAN {
                self.notice(Notice::OneAnswer { why: OneAnswer::NoValidator });
            }
            self.carrier = self.carrier_of(id);
            self.drop_others(id);
        }
        if self.opening == Opening::SmallRange
            && let Some(root) = self.reqs.get(&id).and_then(|req| self.conns.get(&req.conn)).map(|conn| conn.root)
        {
            let refused = if self.config.open_first { total } else { FIRST_SPAN };
            self.manners(root).refuses_from(refused);
        }
        self.settle_total(total);
        self.out.push_back(Output::Identified { total: Some(total), validator: validator.cloned() });
        self.end_plain_tries();
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

    /// Takes the bytes of `span` up to the end of what was asked for: perhaps some that are in their place already, and
    /// perhaps fewer.
    fn accept(&mut self, id: ReqId, span: Span) {
        let alone = self.links.values().filter(|link| link.in_play()).count() == 1;
        let first = self.first == Some(id) && self.ledger.total().is_none_or(|total| span.end == total.bytes());
        if self.first == Some(id) && !first {
            // Only a part of what was asked for.
            self.first = None;
        }
        let Some(req) = self.reqs.get(&id) else { return };
        let mut end = span.end.min(if req.ask == Ask::From(0) { u64::MAX } else { req.span.end });
        // A server that does not heed the end of a range: what nobody else brings comes with it.
        if alone && self.config.window.is_none() {
            end = self.ledger.free(end, span.end).filter(|free| free.start == end).map_or(end, |free| free.end);
        }
        if first {
            end = if self.phase == Phase::Ranges { req.span.end.min(span.end) } else { span.end };
        }
        let (changed, cut) = (span.start < req.span.start || end != req.span.end, end < span.end && !first);
        let (asked, link, root) =
            (size_of(req.ask), self.carrier_of(id), self.conns.get(&req.conn).map(|conn| conn.root));
        if let Some(req) = self.reqs.get_mut(&id) {
            req.accepted = true;
            req.span = Span::new(span.start, end);
            req.cursor = span.start;
        }
        if let Some(link) = link.and_then(|link| self.links.get_mut(&link)) {
            link.served_here = link.served_here.saturating_add(1);
        }
        if let Some(root) = root {
            let manners = self.manners(root);
            manners.on_served(asked.unwrap_or_default());
            // What is cut off takes its connection along.
            manners.brief |= cut;
        }
        if changed {
            self.rebuild();
        }
        let end = if first { span.end } else { end };
        self.accepted(id, span.start, Some(DataSize::from_bytes(end - span.start)));
        if first {
            self.update_first();
        }
    }

    fn redirect(&mut self, id: ReqId, link_id: LinkId, head: &Head) {
        let conn = self.reqs.get(&id).and_then(|req| self.conns.get(&req.conn));
        let places = conn.map(|conn| (conn.root, conn.edge.origin));
        if self.has_expired(id, link_id, head.status) {
            return;
        }
        let (Some((root, from)), Some(link)) = (places, self.links.get_mut(&link_id)) else { return };
        let most = self.config.max_redirects;
        let circles = head.location.is_some_and(|to| link.goes_in_circles(root, from, to));
        let ends = link.redirects > most || (circles && most > FEW_REDIRECTS);
        // Requests for a range may be sent round in circles, and others not.
        if ends && most > FEW_REDIRECTS && self.try_in_one_piece(id, link_id) {
            if let Some(link) = self.links.get_mut(&link_id) {
                link.forget_redirects();
            }
            return;
        }
        let Some(link) = self.links.get_mut(&link_id) else { return };
        match head.location {
            Some(target) if !ends => {
                link.targets.insert(root, Edge { origin: target, at: None });
                link.served_here = 0;
                link.next_try = self.now;
                self.leave_old_place(link_id);
            }
            // One that must not be followed leads where it leads without a range, too.
            _ if !head.redirects && self.try_in_one_piece(id, link_id) => {}
            _ => {
                let failure = match head.location {
                    Some(_) => Failure::Redirect,
                    None => Failure::Protocol { text: "a redirect whose target cannot be read or followed".into() },
                };
                self.refuse(id, link_id, Ban::OtherStatus { status: head.status }, failure);
            }
        }
    }

    /// A link's connections lead to where its requests no longer go: what they bring already is still good.
    fn leave_old_place(&mut self, link: LinkId) {
        let Some(link) = self.links.get(&link) else { return };
        for id in link.conns.clone() {
            let brings = |conn: &Conn| {
                let front = conn.reqs.front().and_then(|req| self.reqs.get(req));
                front.is_some_and(|req| req.accepted && !req.remaining().is_empty())
            };
            if self.phase == Phase::Ranges && self.conns.get(&id).is_some_and(brings) {
                self.conns.entry(id).and_modify(|conn| conn.draining = true);
            } else {
                self.drop_conn(id, true);
            }
        }
    }

    /// 416: the range lies beyond the end.
    fn beyond(&mut self, id: ReqId, link: LinkId, head: &Head) {
        let total = head.range.and_then(|range| range.total);
        if total.is_none() && self.was_too_large(id, head.status) {
            return;
        }
        let start = self.reqs.get(&id).map_or(0, |req| req.span.start);
        match (self.phase, total) {
            // An empty file, or a reader that has jumped beyond the end: nothing is wanted.
            (Phase::Unknown, Some(total)) if total.bytes() <= self.ledger.frontier() => {
                self.phase = Phase::Ranges;
                self.settle_total(total);
                self.out.push_back(Output::Identified { total: Some(total), validator: None });
                self.finish_if_complete();
            }
            // The range begins within the file by the server's own word.
            (Phase::Unknown, Some(total)) if start < total.bytes() => {
                if !self.try_in_one_piece(id, link) {
                    let status = head.status;
                    self.refuse(id, link, Ban::OtherStatus { status }, Failure::Status { status });
                }
            }
            // A question for the bytes behind the first ones of a small file: the first answer is on its way.
            (Phase::Unknown, Some(total)) => {
                self.cancel(id);
                self.rest(link, SMALL_REST);
                self.told(link, Some(total), None, true);
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
                if total.is_some_and(|total| start < total.bytes()) {
                    // It is not beyond the end by the server's own word.
                    let status = head.status;
                    return self.refuse(id, link, Ban::OtherStatus { status }, Failure::Status { status });
                }
                self.cancel(id);
                self.rest(link, SMALL_REST);
            }
            (_, got) => {
                let want = self.ledger.total();
                self.differs(id, link, Ban::OtherLength { got, want }, None, got.is_some());
            }
        }
    }

    /// The server refuses a range of which it does not say what is wrong with it: everything is asked for, once.
    pub(super) fn ask_without_range(&mut self, id: ReqId) {
        let conn = self.reqs.get(&id).map(|req| req.conn);
        self.one_answer(OneAnswer::NoRanges, conn);
    }

    /// Any other status: a server that fails is tried again, one that refuses is not.
    fn refusal(&mut self, id: ReqId, link: LinkId, head: &Head) {
        let status = head.status;
        if self.has_expired(id, link, status) || self.was_too_large(id, status) {
            return;
        }
        if self.awaits_first(id) {
            self.cancel(id);
            return self.rest(link, AWAIT_FIRST);
        }
        // Something that is only there for requests without a range.
        let away = self.reqs.get(&id).and_then(|req| self.conns.get(&req.conn)).is_some_and(Conn::is_redirected);
        if (away || status == 304) && self.try_in_one_piece(id, link) {
            return;
        }
        if matches!(status, 408 | 500 | 502 | 504) {
            return self.pause(id, link, head);
        }
        if self.retries_whole(id, link, status) {
            return;
        }
        // All links may be refused alike: they are judged together.
        let alike = self.parked.iter().any(|parked| parked.head.status == status);
        if self.phase == Phase::Unknown && (alike || self.other_opinions(link)) {
            return self.park(id, link, head);
        }
        if self.open_otherwise(id, link, status) {
            return;
        }
        self.refuse(id, link, Ban::OtherStatus { status }, Failure::Status { status });
    }

    /// This link will not deliver from its present root: the next one, or the end.
    pub(super) fn refuse(&mut self, id: ReqId, link_id: LinkId, ban: Ban, failure: Failure) {
        self.cancel(id);
        if self.protect_first(link_id) || self.next_root(link_id, &ban) {
            return;
        }
        let probing = self.may_deliver_again();
        self.ban_or_end(link_id, ban, probing, failure);
    }

    /// Whether the resource has been had from anywhere, so that a refusal may pass.
    pub(super) fn may_deliver_again(&self) -> bool {
        match self.phase {
            Phase::Unknown => false,
            Phase::Ranges | Phase::Over => true,
            Phase::OneAnswer { .. } => self.links.values().any(LinkState::has_delivered_here),
        }
    }

    /// Bans a link; if it was the last that could bring anything, the failure itself says more than its ban.
    pub(super) fn ban_or_end(&mut self, link_id: LinkId, why: Ban, probing: bool, failure: Failure) {
        if self.asks_whole_first(link_id, &why) {
            return;
        }
        let others = self.links.iter().any(|(id, link)| *id != link_id && link.in_play());
        if others || probing {
            self.ban(link_id, why, probing);
            self.fail_if_hopeless(failure);
        } else {
            self.give_up(failure);
        }
    }

    /// An answer to a range that cannot be used. Other links may have better ones; where this is the server's way, there
    /// is one answer without ranges.
    pub(super) fn unusable(&mut self, id: ReqId, link_id: LinkId, text: &str, head: &Head) {
        if self.phase == Phase::Unknown && self.other_opinions(link_id) {
            return self.park_unusable(id, link_id, head, text);
        }
        let witness =
            |(other, link): (&LinkId, &LinkState)| *other != link_id && link.hopeful() && link.known.proved;
        if self.untried_root(link_id)
            || self.links.iter().any(witness)
            || matches!(self.phase, Phase::OneAnswer { .. })
        {
            return self.misbehaves(id, link_id, text);
        }
        let conn = self.reqs.get(&id).map(|req| req.conn);
        let root = conn.and_then(|conn| self.conns.get(&conn)).map(|conn| conn.root);
        let served = root.is_some_and(|root| self.manners(root).serves_ranges());
        if self.protect_first(link_id) {
            return self.cancel(id);
        }
        let Some(link) = self.links.get_mut(&link_id) else { return };
        link.failures += 1;
        let wait = link.backoff();
        if !served || link.failures > self.config.retries {
            return self.one_answer(OneAnswer::BadRanges, conn);
        }
        self.cancel(id);
        self.rest(link_id, wait);
    }

    /// Answers that HTTP does not allow: once may be chance, again and again is not.
    pub(super) fn misbehaves(&mut self, id: ReqId, link_id: LinkId, text: &str) {
        self.cancel(id);
        let why = Ban::Protocol { text: text.into() };
        if self.protect_first(link_id) || self.next_root(link_id, &why) {
            return;
        }
        let probing = self.may_deliver_again();
        self.ban_or_end(link_id, why, probing, Failure::Protocol { text: text.into() });
    }

    /// The span that a connection asks for before the resource is known: the next bytes that nobody has asked for, and
    /// that the reader has room for, or the connection would wait for the others.
    pub(super) fn probe_span(&self) -> Option<Span> {
        let free = self.ledger.free(0, self.limit())?;
        let room = self.config.window.map_or(DataSize::MAX, |window| window / (self.links.len() as u64).max(1));
        let first = match self.opening {
            Opening::Range => FIRST_SPAN,
            Opening::SmallRange => SMALL_SPAN,
        };
        Some(Span::at(free.start, free.len().min(first).min(room.max(LEAST_PIECE))))
    }
}

/// A server that begins so far before the range that was asked for is worth it. chosen: a second of a slow link.
const MOST_SKIPPED: DataSize = DataSize::from_mib(1);
/// What is asked for where a first range was refused: hosts that limit the size of a range allow this much.
pub(super) const SMALL_SPAN: DataSize = DataSize::from_kib(4);
/// Smaller ranges than this, where more was asked for, are given up after so many in a row.
const TINY: DataSize = DataSize::from_kib(4);
const MOST_TINY: u32 = 8;
/// How long a link waits that was refused while the first request is unanswered.
const AWAIT_FIRST: Duration = Duration::from_secs(5);
/// Where no more redirects are allowed than this, all of them are followed.
const FEW_REDIRECTS: u32 = 10;
/// How long a link waits that asked beyond a small file's end.
const SMALL_REST: Duration = Duration::from_millis(200);
