//! What an answer's head means: the same file, another file, a portal, a pause, the end.
//!
//! 1. A 206 with the asked range identifies the resource; nothing but the resource's own server can make one up.
//! 2. A 200, a redirect or an error may come from a captive portal. With other links still to be heard it is parked
//!    until one of them has spoken or [`OPINION`] is over; what then stands alone against a 206 is banned.
//! 3. Later answers must agree in size and validator. One that does not bans its link; if every link that still works
//!    says the same new thing, the file has changed and the download starts again.
//! 4. Without a strong validator two answers could be of two files, so everything comes from one answer, unless a
//!    checksum proves the whole.
//! 5. Redirects are followed by each link for itself: its own edge of a content network, or its portal, which rule 2
//!    then finds.
//!
//! Asking with HEAD first was not used: it costs a round trip, and servers answer it carelessly.

use alloc::vec::Vec;
use core::time::Duration;

use super::conn::FIRST_SPAN;
use super::links::Standing;
use super::{
    Ask, Ban, ConnId, ContentRange, Failure, Fetch, Head, Notice, OneAnswer, Output, Phase, ReqId, Span, Trouble,
    TroubleKind, Validator, Wake,
};
use crate::link::LinkId;
use crate::units::{DataSize, Instant};

/// An answer that waits for another link's opinion.
#[derive(Clone, Debug)]
pub(super) struct Parked {
    pub(super) conn: ConnId,
    pub(super) req: ReqId,
    link: LinkId,
    head: Head,
    until: Instant,
}

/// The size that a link was told before anything could be put together.
#[derive(Clone, Debug)]
pub(super) struct Told {
    link: LinkId,
    total: DataSize,
    validator: Option<Validator>,
}

impl Fetch {
    pub(super) fn head(&mut self, id: ReqId, head: &Head) {
        let Some(req) = self.reqs.get(&id) else { return };
        let (conn_id, ask) = (req.conn, req.ask);
        let Some(conn) = self.conns.get_mut(&conn_id) else { return };
        let link = conn.link;
        conn.last = self.now;
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
        let Some(total) = total else { return self.one_answer(OneAnswer::NoLength, Some(conn)) };
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
        if !provable && span != Span::at(0, total) {
            let conn = self.reqs.get(&id).map(|req| req.conn);
            if let Some(link) = conn.and_then(|conn| self.conns.get(&conn)).map(|conn| conn.link) {
                self.told(link, total, None);
            }
            self.one_answer(OneAnswer::NoValidator, conn);
            return false;
        }
        // Without a validator, an answer that covers everything stands alone.
        self.phase = if provable { Phase::Ranges } else { Phase::OneAnswer { req: Some(id) } };
        if !provable {
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
            let end = req.span.end.min(total.bytes()).max(req.cursor);
            if let Some(conn) = self.conns.get_mut(&req.conn) {
                conn.ahead -= DataSize::from_bytes(req.span.end - end);
            }
            req.span.end = end;
        }
        self.rebuild();
    }

    /// Whether the answer is of the file that the others are of. If not, its link is dealt with.
    fn agrees(&mut self, id: ReqId, link: LinkId, total: DataSize, validator: Option<&Validator>) -> bool {
        let Some(root) = self.reqs.get(&id).and_then(|req| self.conns.get(&req.conn)).map(|conn| conn.root) else {
            return false;
        };
        let want = self.ledger.total();
        let known = self.validators.get(&root);
        let same = want.is_none_or(|want| want == total) && (known.is_none() || known == validator);
        if same {
            if let (None, Some(validator)) = (known, validator) {
                self.validators.insert(root, validator.clone());
            }
            if let Some(link) = self.links.get_mut(&link) {
                link.differs = None;
                link.proved = true;
            }
            return true;
        }
        let ban =
            if want == Some(total) { Ban::OtherValidator } else { Ban::OtherLength { got: Some(total), want } };
        self.differs(id, link, ban, validator.map(|validator| (Some(total), validator.clone())));
        false
    }

    /// A link speaks of another file. `change` is what it would be, if the answer proves that.
    fn differs(&mut self, id: ReqId, link_id: LinkId, ban: Ban, change: Option<(Option<DataSize>, Validator)>) {
        self.cancel(id);
        if change.is_some() && self.adopt_edge(link_id) {
            return;
        }
        if let Some(link) = self.links.get_mut(&link_id) {
            link.differs = change;
        }
        self.ban(link_id, ban, true);
        let mut working = self.links.values().filter(|link| link.hopeful() || link.differs.is_some());
        let first = working.next().and_then(|link| link.differs.clone());
        if first.is_some() && working.all(|link| link.differs == first) {
            self.restart();
        }
    }

    /// Redirects have led this link to another edge of a content network than a link that has delivered, and the two
    /// do not agree: from now on it asks that link's edge. Once for each link, as a portal would lead it away again.
    fn adopt_edge(&mut self, id: LinkId) -> bool {
        let Some((root, own)) = self.links.get(&id).map(|link| (link.root, link.target())) else { return false };
        let proved = self.links.iter().find(|(other, link)| **other != id && link.proved && link.root == root);
        let (Some(edge), Some(link)) = (proved.map(|(_, link)| link.target()), self.links.get_mut(&id)) else {
            return false;
        };
        if edge == own || link.adopted {
            return false;
        }
        link.adopted = true;
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
            link.proved = false;
            if link.differs.take().is_some() {
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
        if let Some(conn) = self.conns.get_mut(&req.conn) {
            conn.ahead -= DataSize::from_bytes(req.span.end - span.end);
        }
        req.accepted = true;
        req.span.end = span.end;
        if short {
            self.rebuild();
        }
        self.out.push_back(Output::Accept { req: id, at: span.start, len: Some(span.len()) });
    }

    /// 200: the whole file, or a portal's page.
    fn whole(&mut self, id: ReqId, link: LinkId, ask: Ask, head: &Head) {
        if head.encoded {
            return self.misbehaves(id, link, "an encoded body although identity was asked for");
        }
        match self.phase {
            Phase::Unknown | Phase::OneAnswer { .. } if self.contradicts(link, head) => {
                let ban = Ban::OtherLength { got: head.length, want: self.told.as_ref().map(|told| told.total) };
                self.cancel(id);
                self.ban(link, ban, true);
            }
            Phase::Unknown | Phase::OneAnswer { .. } if ask == Ask::Whole => self.take_whole(id, head),
            Phase::Unknown => self.park(id, link, head),
            // If-Range failed: the file has changed, if the answer can prove it; otherwise it is a portal's page.
            _ => match &head.validator {
                Some(validator) if !self.is_known(id, head.length, validator) => {
                    self.differs(id, link, Ban::OtherValidator, Some((head.length, validator.clone())));
                }
                Some(_) => self.ranges_ignored(id, link),
                // Nothing proves that it is the file, but a portal's page would not have its length.
                None if head.length.is_some() && head.length == self.ledger.total() => {
                    self.ranges_ignored(id, link);
                }
                None => {
                    let (got, want) = (head.length, self.ledger.total());
                    self.differs(id, link, Ban::OtherLength { got, want }, None);
                }
            },
        }
    }

    /// The right file, but all of it: the server serves no ranges. If another link has delivered one, this link's
    /// server is to blame; otherwise everything has to come as one answer, and what an earlier run left is of no use.
    fn ranges_ignored(&mut self, id: ReqId, link: LinkId) {
        if self.links.iter().any(|(other, state)| *other != link && state.proved && state.hopeful()) {
            return self.misbehaves(id, link, "200 with everything instead of the range");
        }
        let conn = self.reqs.get(&id).map(|req| req.conn);
        self.one_answer(OneAnswer::NoRanges, conn);
        self.validators.clear();
        self.out.push_back(Output::Restart);
    }

    fn is_known(&self, id: ReqId, total: Option<DataSize>, validator: &Validator) -> bool {
        let root = self.reqs.get(&id).and_then(|req| self.conns.get(&req.conn)).map(|conn| conn.root);
        let known = root.and_then(|root| self.validators.get(&root));
        (total.is_none() || self.ledger.total() == total) && known == Some(validator)
    }

    /// Whether a whole file is of another size than another link was told, and has no validator where that had one.
    fn contradicts(&self, link: LinkId, head: &Head) -> bool {
        let Some(told) = &self.told else { return false };
        let other = head.length.is_some_and(|length| length != told.total);
        let weaker = told.validator.is_some() || head.validator.is_none();
        let others = self.links.iter().any(|(id, state)| *id != link && (state.hopeful() || state.resting()));
        told.link != link && other && weaker && others
    }

    fn told(&mut self, link: LinkId, total: DataSize, validator: Option<&Validator>) {
        if self.told.as_ref().is_none_or(|told| told.validator.is_none()) {
            self.told = Some(Told { link, total, validator: validator.cloned() });
        }
    }

    /// Takes this answer for the whole file, and no other.
    fn take_whole(&mut self, id: ReqId, head: &Head) {
        if !matches!(self.phase, Phase::OneAnswer { .. }) {
            let why = if head.length.is_none() { OneAnswer::NoLength } else { OneAnswer::NoRanges };
            self.notice(Notice::OneAnswer { why });
        }
        self.phase = Phase::OneAnswer { req: Some(id) };
        let link = self.reqs.get(&id).and_then(|req| self.conns.get(&req.conn)).map(|conn| conn.link);
        if let (Some(link), Some(total)) = (link, head.length) {
            self.told(link, total, head.validator.as_ref());
        }
        self.drop_others(id);
        if let Some(req) = self.reqs.get_mut(&id) {
            let end = head.length.map_or(u64::MAX, DataSize::bytes);
            if let Some(conn) = self.conns.get_mut(&req.conn) {
                conn.ahead = DataSize::from_bytes(end);
            }
            req.span = Span::new(0, end);
            req.cursor = 0;
            req.accepted = true;
        }
        if let Some(total) = head.length {
            self.ledger.set_total(total);
        }
        self.rebuild();
        self.out.push_back(Output::Identified { total: head.length, validator: None });
        self.out.push_back(Output::Accept { req: id, at: 0, len: head.length });
        self.finish_if_complete();
    }

    /// Closes all connections but the one of this request.
    fn drop_others(&mut self, id: ReqId) {
        let keep = self.reqs.get(&id).map(|req| req.conn);
        let others: Vec<ConnId> = self.conns.keys().copied().filter(|other| Some(*other) != keep).collect();
        for other in others {
            self.drop_conn(other, true);
        }
    }

    /// From now on everything comes as one answer; `conn` has an answer that is of no use.
    fn one_answer(&mut self, why: OneAnswer, conn: Option<ConnId>) {
        self.phase = Phase::OneAnswer { req: None };
        self.notice(Notice::OneAnswer { why });
        let keep = conn.and_then(|conn| self.conns.get(&conn)).map(|conn| conn.link);
        self.close_all();
        if let Some(link) = keep.and_then(|link| self.links.get_mut(&link)) {
            link.next_try = self.now;
        }
        self.ledger.restart();
        for link in self.links.values_mut() {
            link.proved = false;
        }
        if let Some(link) = keep.and_then(|link| self.links.get_mut(&link)) {
            link.proved = true;
        }
    }

    /// Looks whether the one answer broke off: nothing of it can be used, as nothing proves that the next one
    /// continues it. Its bytes are no progress, so the retries are counted by how far it came.
    pub(super) fn after_lost_answer(&mut self) {
        let Phase::OneAnswer { req: Some(id) } = self.phase else { return };
        if self.reqs.contains_key(&id) || self.ledger.complete() {
            return;
        }
        let (best, lost) = self.best_answer;
        let came = self.ledger.frontier();
        self.best_answer = if came > best { (came, 0) } else { (best, lost + 1) };
        if self.best_answer.1 > self.config.retries {
            let text = "the one answer breaks off again and again".into();
            let last = self.links.values().find_map(|link| link.last_trouble.clone());
            let trouble = last.unwrap_or(Trouble { kind: TroubleKind::Truncated, text });
            return self.give_up(Failure::Retries { trouble });
        }
        self.phase = Phase::OneAnswer { req: None };
        self.ledger.restart();
        self.consumed = 0;
        self.out.push_back(Output::Restart);
    }

    fn redirect(&mut self, id: ReqId, link_id: LinkId, head: &Head) {
        let root = self.reqs.get(&id).and_then(|req| self.conns.get(&req.conn)).map(|conn| conn.root);
        let (Some(root), Some(link)) = (root, self.links.get_mut(&link_id)) else { return };
        link.redirects += 1;
        match head.location {
            Some(target) if link.redirects <= MOST_REDIRECTS => {
                link.targets.insert(root, target);
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
            (Phase::Unknown, Some(total)) if total.is_zero() => {
                self.phase = Phase::Ranges;
                self.settle_total(total);
                self.out.push_back(Output::Identified { total: Some(total), validator: None });
                self.finish_if_complete();
            }
            // A question for the bytes behind the first ones of a small file: the first answer is on its way.
            (Phase::Unknown, Some(total)) => {
                self.cancel(id);
                self.rest(link, SMALL_REST);
                self.told(link, total, None);
                self.told_total(total);
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

    /// A server has told the size without delivering anything: a whole file of another size is a portal's page.
    fn told_total(&mut self, total: DataSize) {
        let (other, same) = core::mem::take(&mut self.parked).into_iter().partition(|parked| {
            parked.head.status == 200 && parked.head.length.is_some_and(|length| length != total)
        });
        self.parked = same;
        self.ban_parked(other, Some(total));
    }

    /// 429 and 503: not now.
    fn pause(&mut self, id: ReqId, link_id: LinkId, head: &Head) {
        self.cancel(id);
        let Some(link) = self.links.get_mut(&link_id) else { return };
        link.failures += 1;
        link.lanes.be_modest();
        let wait = head.retry_after.unwrap_or_else(|| link.backoff()).min(LONGEST_PAUSE);
        link.next_try = self.now + wait;
        link.paused_until = link.next_try;
        let spent = link.failures > self.config.retries;
        for conn in link.conns.clone() {
            self.drop_conn(conn, true);
        }
        self.notice(Notice::Pause { wait, status: head.status });
        if spent {
            let status = head.status;
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
    fn refuse(&mut self, id: ReqId, link_id: LinkId, ban: Ban, failure: Failure) {
        self.cancel(id);
        if self.next_root(link_id, &ban) {
            return;
        }
        self.ban_or_end(link_id, ban, self.phase != Phase::Unknown, failure);
    }

    /// Bans a link; if it was the last that could bring anything, the failure itself says more than its ban.
    pub(super) fn ban_or_end(&mut self, link_id: LinkId, why: Ban, probing: bool, failure: Failure) {
        let others = self.links.iter().any(|(id, link)| *id != link_id && (link.hopeful() || link.resting()));
        if others || probing {
            self.ban(link_id, why, probing);
            self.fail_if_hopeless(failure);
        } else {
            self.give_up(failure);
        }
    }

    /// Answers that HTTP does not allow: once may be chance, again and again is not.
    fn misbehaves(&mut self, id: ReqId, link_id: LinkId, text: &str) {
        self.cancel(id);
        let why = Ban::Protocol { text: text.into() };
        if self.next_root(link_id, &why) {
            return;
        }
        self.ban_or_end(link_id, why, self.phase != Phase::Unknown, Failure::Protocol { text: text.into() });
    }

    /// Keeps an answer until another link has spoken.
    fn park(&mut self, id: ReqId, link: LinkId, head: &Head) {
        let Some(conn) = self.reqs.get(&id).map(|req| req.conn) else { return };
        let until = self.now + if self.others_reached(link) { LONG_OPINION } else { OPINION };
        self.parked.push(Parked { conn, req: id, link, head: head.clone(), until });
        self.hear_parked();
    }

    /// Whether a link that has not spoken yet may still do so.
    fn other_opinions(&self, than: LinkId) -> bool {
        self.links.iter().any(|(id, link)| {
            *id != than
                && link.hopeful()
                && self.allowed(*id)
                && !self.parked.iter().any(|parked| parked.link == *id)
        })
    }

    /// Whether another link has already spoken with the server.
    fn others_reached(&self, than: LinkId) -> bool {
        self.links.iter().any(|(id, link)| *id != than && link.reached)
    }

    /// Decides on parked answers whose time has come.
    pub(super) fn hear_parked(&mut self) {
        let Some(first) = self.parked.first() else { return };
        let waiting = self.other_opinions(first.link);
        if waiting && self.now < first.until {
            let until = first.until;
            return self.wake_at(until, Wake::Opinion);
        }
        // A whole file beats a refusal, one with a validator beats one without; otherwise the first to speak.
        let rank = |parked: &Parked| (parked.head.status != 200, parked.head.validator.is_none());
        let best = (0..self.parked.len()).min_by_key(|i| self.parked.get(*i).map(rank)).unwrap_or(0);
        let parked = self.parked.remove(best);
        if parked.head.status == 200 {
            self.parked.clear();
            self.take_whole(parked.req, &parked.head);
        } else {
            let status = parked.head.status;
            self.refuse(parked.req, parked.link, Ban::OtherStatus { status }, Failure::Status { status });
            self.hear_parked();
        }
    }

    /// A link has delivered a range: what others said instead was not the file.
    fn spoken_for_ranges(&mut self) {
        let parked = core::mem::take(&mut self.parked);
        self.ban_parked(parked, self.ledger.total());
    }

    fn ban_parked(&mut self, parked: Vec<Parked>, want: Option<DataSize>) {
        for parked in parked {
            let ban = match parked.head.status {
                200 => Ban::OtherLength { got: parked.head.length, want },
                status => Ban::OtherStatus { status },
            };
            self.cancel(parked.req);
            self.ban(parked.link, ban, true);
        }
    }

    /// The span that a connection asks for before the resource is known: the next bytes that nobody has asked for.
    pub(super) fn probe_span(&self) -> Option<Span> {
        let free = self.ledger.free(0, u64::MAX)?;
        Some(Span::at(free.start, free.len().min(FIRST_SPAN)))
    }
}

/// How long a link's first sign of life is waited for. chosen: a second SYN (RFC 6298 §2) and a slow path's round trip.
const OPINION: Duration = Duration::from_millis(1500);
/// How long the opinion of a link is waited for that does reach the server, but has only heard errors so far.
const LONG_OPINION: Duration = Duration::from_secs(10);
const MOST_RESTARTS: u32 = 3;
/// RFC 9110 §15.4 asks for a limit; browsers allow 20, curl 50. chosen: 10.
const MOST_REDIRECTS: u32 = 10;
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// How long a link waits that asked beyond a small file's end.
const SMALL_REST: Duration = Duration::from_millis(200);
