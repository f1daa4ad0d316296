//! What an answer's head means: the same file, another file, a portal, a pause, the end.
//!
//! 1. A 206 with the asked range identifies the resource; nothing but the resource's own server can make one up.
//! 2. A 200 or an error may come from a captive portal: other links are heard first; see `opinions`.
//! 3. Later answers must agree in size and validator. One that does not bans its link; if every link that still works
//!    says the same new thing, the file has changed and the download starts again.
//! 4. Without a strong validator two answers could be of two files, so everything comes from one answer, unless a
//!    checksum proves the whole; see `whole`.
//! 5. Redirects are followed and names resolved by each link for itself: its own edge of a content network, or its
//!    portal, which rule 2 then finds. Where edges do not agree, a link goes over to one that has delivered: to its
//!    URL, at its address. It does so once, as a portal answers for every address.
//!
//! Asking with HEAD first was not used: it costs a round trip, and servers answer it carelessly.

use core::time::Duration;

use super::conn::FIRST_SPAN;
use super::links::{Edge, LinkState, Standing};
use super::plan::LEAST_PIECE;
use super::{
    Ask, Ban, ContentRange, Failure, Fetch, Head, Notice, OneAnswer, OriginId, Output, Phase, ReqId, Span,
    Validator, Wake,
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

    /// The first good answer. False: this answer cannot be used after all.
    fn identify(&mut self, id: ReqId, total: DataSize, validator: Option<&Validator>, span: Span) -> bool {
        let provable = validator.is_some() || self.config.proven;
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

    /// Whether the answer is of the file that the others are of. If not, its link is dealt with.
    fn agrees(&mut self, id: ReqId, link: LinkId, total: DataSize, validator: Option<&Validator>) -> bool {
        let asked = self.reqs.get(&id).and_then(|req| self.conns.get(&req.conn));
        let Some((root, edge)) = asked.map(|conn| (conn.root, conn.edge)) else { return false };
        let want = self.ledger.total();
        let known = self.known(root);
        // Mirrors may each have a validator of their own, but one they must have.
        let proof = known.map_or(validator.is_some() || self.config.proven, |known| validator == Some(known));
        let whole_already = matches!(self.phase, Phase::OneAnswer { .. });
        if want.is_none_or(|want| want == total) && (proof || whole_already) {
            if let (None, Some(validator)) = (known, validator) {
                self.validators.insert(root, validator.clone());
            }
            if let Some(link) = self.links.get_mut(&link) {
                link.known.differs = None;
                link.known.proved = true;
                link.known.edge = Some(edge);
            }
            return true;
        }
        let ban =
            if want == Some(total) { Ban::OtherValidator } else { Ban::OtherLength { got: Some(total), want } };
        if self.config.origins > 1 && self.next_root(link, &ban) {
            return false;
        }
        self.differs(id, link, ban, validator.map(|validator| (Some(total), validator.clone())));
        false
    }

    /// The validator that answers from this URL must have. An earlier run's bytes are of one version, whoever has it.
    pub(super) fn known(&self, root: OriginId) -> Option<&Validator> {
        let resumed = self.config.resume.as_ref().filter(|_| self.restarts == 0 && !self.config.proven);
        self.validators.get(&root).or(resumed.map(|resume| &resume.validator))
    }

    /// A link speaks of another file. `change` is what it would be, if the answer proves that.
    pub(super) fn differs(
        &mut self,
        id: ReqId,
        link_id: LinkId,
        ban: Ban,
        change: Option<(Option<DataSize>, Validator)>,
    ) {
        let edge = self.reqs.get(&id).and_then(|req| self.conns.get(&req.conn)).map(|conn| conn.edge);
        self.cancel(id);
        if change.is_some() && edge.is_some_and(|edge| self.adopt_edge(link_id, edge)) {
            return;
        }
        if let Some(link) = self.links.get_mut(&link_id) {
            link.known.differs = change;
        }
        // Judged before the ban, which may call in links that have not spoken yet.
        let speaks = |(id, link): &(&LinkId, &LinkState)| link.known.differs.is_some() || self.usable(**id, link);
        let mut working = self.links.iter().filter(speaks).map(|(_, link)| &link.known.differs);
        let first = working.next().cloned().flatten();
        let all = first.is_some() && working.all(|differs| *differs == first);
        self.ban(link_id, ban, true);
        if all {
            self.restart();
        }
    }

    /// Redirects or name servers have led this link to another edge of a content network than one that has delivered,
    /// and the two do not agree: from now on it asks that one. Once for each link, as a portal would lead it away again.
    fn adopt_edge(&mut self, id: LinkId, own: Edge) -> bool {
        let Some(link) = self.links.get(&id).filter(|link| !link.adopted) else { return false };
        let root = link.root;
        let proved = |link: &LinkState| link.known.edge.filter(|_| link.known.proved && link.root == root);
        // A name with several addresses may have led astray one connection only.
        let others = self.links.iter().filter(|(other, _)| **other != id);
        let mut edges =
            proved(link).into_iter().chain(others.filter_map(|(_, link)| proved(link)).map(Edge::elsewhere));
        let another = |edge: &Edge| edge.origin != own.origin || (edge.at.is_some() && edge.at != own.at);
        let (Some(edge), Some(link)) = (edges.find(another), self.links.get_mut(&id)) else { return false };
        link.adopted = true;
        link.known.edge = None;
        link.targets.insert(root, edge);
        link.next_try = self.now;
        for conn in link.conns.clone() {
            self.drop_conn(conn, true);
        }
        true
    }

    /// The file is another one now: everything starts again.
    pub(super) fn restart(&mut self) {
        self.restarts += 1;
        if self.restarts > MOST_RESTARTS {
            return self.give_up(Failure::KeepsChanging);
        }
        self.close_all();
        self.ledger.restart();
        self.validators.clear();
        self.parked.clear();
        self.told = None;
        self.phase = Phase::Unknown;
        self.consumed = 0;
        for link in self.links.values_mut() {
            link.known.proved = false;
            if link.known.differs.take().is_some() {
                link.standing = Standing::Up;
                link.next_try = self.now;
            }
        }
        self.notice(Notice::Changed);
        self.out.push_back(Output::Restart);
    }

    fn accept(&mut self, id: ReqId, span: Span) {
        let Some(req) = self.reqs.get_mut(&id) else { return };
        let short = span.end < req.span.end;
        req.accepted = true;
        req.span.end = span.end;
        if short {
            self.rebuild();
        }
        self.out.push_back(Output::Accept { req: id, at: span.start, len: Some(span.len()) });
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
        if self.phase == Phase::Unknown && self.other_opinions(link) {
            return self.park(id, link, head);
        }
        let status = head.status;
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

const MOST_RESTARTS: u32 = 3;
/// RFC 9110 §15.4 asks for a limit; browsers allow 20, curl 50. chosen: 10.
const MOST_REDIRECTS: u32 = 10;
/// A server that wants to be asked later than this is asked then all the same: a laptop is carried away meanwhile.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// How long a link waits that asked beyond a small file's end.
const SMALL_REST: Duration = Duration::from_millis(200);
