//! Everything as one answer: for servers without ranges, lengths or validators.
//!
//! In: answers with status 200, and the loss of the one that was taken. Out: its acceptance, or another try.
//!
//! 1. One connection of one link carries it; all others are closed.
//! 2. If it breaks off, nothing of it can be used, because nothing proves that the next one continues it.
//! 3. A 200 to a question for a range is a changed file, a server that has stopped serving ranges, or a portal's page;
//!    the validator and the length tell which. A server that serves ranges most of the time is asked again.
//! 4. A 206 of all bytes, whatever was asked for, is a 200 in disguise. No portal gives one.
//! 5. A server that refuses ranges after it has served some is asked for the whole file, over the last link that it has not
//!    refused. Only if that answer is of the known size or version, what is there is given up for it.

use alloc::vec::Vec;
use core::time::Duration;

use super::conn::Conn;
use super::links::{LinkState, Standing, WholeTry};
use super::{
    Ask, Ban, ConnId, ContentRange, Failure, Fetch, Head, Notice, OneAnswer, Output, Phase, ReqId, Span, Trouble,
    TroubleKind, Wake,
};
use crate::link::LinkId;
use crate::units::DataSize;

impl Fetch {
    /// 206 to a request without a range.
    pub(super) fn whole_part(&mut self, id: ReqId, link: LinkId, head: &Head) {
        let length = match head.range {
            None => head.length,
            Some(ContentRange { span: Some(span), total })
                if span.start == 0
                    && total.is_none_or(|total| total == span.len())
                    && head.length.is_none_or(|length| length == span.len()) =>
            {
                total.or(head.length)
            }
            Some(_) => return self.misbehaves(id, link, "a part of the file although all of it was asked for"),
        };
        self.whole(id, link, Ask::Whole, &Head { status: 200, length, ..head.clone() });
    }

    /// Rule 4.
    pub(super) fn whole_as_part(&mut self, id: ReqId, link: LinkId, head: &Head) {
        let length = head.range.and_then(|range| range.total);
        self.whole(id, link, Ask::Whole, &Head { status: 200, length, ..head.clone() });
    }

    /// 200: the whole file, or a portal's page.
    pub(super) fn whole(&mut self, id: ReqId, link: LinkId, ask: Ask, head: &Head) {
        if head.encoded {
            return self.misbehaves(id, link, "an encoded body although identity was asked for");
        }
        if let Some(got) = head.length.filter(|got| self.is_unexpected(*got)) {
            return self.refuse_size(id, link, got);
        }
        if head.length.is_some_and(|length| self.is_doubtful(id, length)) {
            return self.doubt(id);
        }
        let is_known = self.phase == Phase::Ranges && self.is_known(id, head);
        // A page or nothing instead of a range: perhaps not instead of the file. Or the target of a redirect has expired.
        let doubtful = head.page || head.length == Some(DataSize::ZERO);
        if (self.phase == Phase::Unknown && doubtful && self.try_in_one_piece(id, link))
            || (self.phase == Phase::Ranges && !is_known && self.has_expired(id, link, head.status))
        {
            return;
        }
        match self.phase {
            // The last link has asked for it (rule 5).
            Phase::Ranges if ask == Ask::Whole && self.is_same_file(id, head) => {
                let conn = self.reqs.get(&id).map(|req| req.conn);
                self.one_answer(OneAnswer::BadRanges, conn);
            }
            Phase::Unknown | Phase::OneAnswer { .. } if self.exceeds_budget(link, head.length) => {
                self.cancel(id);
                self.ban_or_end(link, Ban::Budget, false, Failure::Budget);
            }
            Phase::Unknown | Phase::OneAnswer { .. } if self.contradicts(link, head) => {
                self.deny(id, link, head.length);
            }
            Phase::OneAnswer { .. } if ask == Ask::Whole => self.take_whole(id, head),
            Phase::Unknown => self.park(id, link, head),
            // If-Range failed: the file has changed, if the answer can prove it; otherwise it is a portal's page.
            _ => match &head.validator {
                Some(validator) if !self.is_known(id, head) => {
                    if !self.relax_condition(id, head) {
                        let sure = head.length.is_some() && head.length == self.ledger.total();
                        let change = Some((head.length, validator.clone()));
                        self.differs(id, link, Ban::OtherValidator, change, sure);
                    }
                }
                Some(_) if self.relax_condition(id, head) => {}
                Some(_) => self.ranges_ignored(id, link),
                // Nothing proves that it is the file, but a portal's page would not have its length.
                None if head.length.is_some() && head.length == self.ledger.total() => {
                    self.ranges_ignored(id, link);
                }
                None => {
                    let (got, want) = (head.length, self.ledger.total());
                    let ban = if head.page { Ban::Page } else { Ban::OtherLength { got, want } };
                    self.differs(id, link, ban, None, false);
                }
            },
        }
    }

    /// The right file, but all of it: the server serves no ranges. If another link has delivered one, this link's
    /// server is to blame; otherwise everything has to come as one answer, and what an earlier run left is of no use.
    fn ranges_ignored(&mut self, id: ReqId, link: LinkId) {
        let conn = self.reqs.get(&id).map(|req| req.conn);
        let root = conn.and_then(|conn| self.conns.get(&conn)).map(|conn| conn.root);
        if let Some(manners) = root.map(|root| self.manners(root)).filter(|manners| manners.serves_ranges()) {
            manners.ignored += 1;
            if manners.ignored <= MOST_IGNORED {
                self.cancel(id);
                return self.rest(link, Duration::ZERO);
            }
        }
        if self.links.iter().any(|(other, state)| *other != link && state.known.proved && state.hopeful()) {
            return self.misbehaves(id, link, "200 with everything instead of the range");
        }
        if let (Some(root), Some(total)) = (root, self.ledger.total()) {
            let known = self.known(root).cloned();
            self.told(link, Some(total), known.as_ref(), false);
        }
        self.one_answer(OneAnswer::NoRanges, conn);
        self.validators.clear();
    }

    /// Whether an answer to a request without a range is of the file that is known: no portal's page is of its size.
    fn is_same_file(&self, id: ReqId, head: &Head) -> bool {
        let total = self.ledger.total();
        (head.length.is_some() && head.length == total && head.validator.is_none()) || self.is_known(id, head)
    }

    /// Rule 5. Tells whether a link that was to be banned asks for the whole file instead.
    pub(super) fn asks_whole_first(&mut self, id: LinkId, why: &Ban) -> bool {
        let others =
            self.links.iter().any(|(other, link)| *other != id && self.usable(*other, link) && link.hopeful());
        let read = self.config.window.is_some() && self.consumed > 0;
        let may_help = matches!(why, Ban::OtherStatus { .. } | Ban::Protocol { .. } | Ban::Trouble { .. });
        if self.phase != Phase::Ranges || others || read || !may_help || self.steering.is_some() {
            return false;
        }
        let Some(link) = self.links.get_mut(&id).filter(|link| link.whole == WholeTry::Untried) else {
            return false;
        };
        if link.standing == Standing::Down || link.known.bytes.is_zero() {
            return false;
        }
        link.whole = WholeTry::Next;
        link.failures = 0;
        link.next_try = self.now;
        for conn in link.conns.clone() {
            self.drop_conn(conn, true);
        }
        self.wake_at(self.now, Wake::Retry);
        true
    }

    /// Sends the request for the whole file that a link owes. Tells whether such a request is to be sent or under way: then
    /// there are no others.
    pub(super) fn try_whole(&mut self) -> bool {
        let trying = |link: &LinkState| link.whole == WholeTry::Next && link.in_play();
        let Some(id) = self.links.iter().find(|(_, link)| trying(link)).map(|(id, _)| *id) else {
            return self.reqs.values().any(|req| req.ask == Ask::Whole);
        };
        let ready = |conn: &Conn| conn.link == id && conn.takes_requests() && conn.reqs.is_empty();
        let conn = self.conns.iter().find(|(_, conn)| ready(conn)).map(|(conn, _)| *conn);
        if let Some(conn) = conn
            && self.send(conn, Ask::Whole)
            && let Some(link) = self.links.get_mut(&id)
        {
            link.whole = WholeTry::Asked;
        }
        true
    }

    fn is_known(&self, id: ReqId, head: &Head) -> bool {
        let root = self.reqs.get(&id).and_then(|req| self.conns.get(&req.conn)).map(|conn| conn.root);
        let proved = root.is_some_and(|root| self.proves(root, head));
        (head.length.is_none() || self.ledger.total() == head.length) && proved
    }

    /// Takes this answer for the whole file, and no other.
    pub(super) fn take_whole(&mut self, id: ReqId, head: &Head) {
        if !matches!(self.phase, Phase::OneAnswer { .. }) {
            let why = if head.length.is_none() { OneAnswer::NoLength } else { OneAnswer::NoRanges };
            self.notice(Notice::OneAnswer { why });
        }
        self.phase = Phase::OneAnswer { req: Some(id) };
        self.carrier = self.carrier_of(id);
        if let Some(link) = self.carrier {
            // This response replaces what earlier ones stated about the version.
            self.told.take_if(|_| head.validator.is_some());
            self.told(link, head.length, head.validator.as_ref(), false);
        }
        self.drop_others(id);
        if let Some(req) = self.reqs.get_mut(&id) {
            req.span = Span::new(0, head.length.map_or(u64::MAX, DataSize::bytes));
            req.cursor = 0;
            req.accepted = true;
        }
        if let Some(total) = head.length {
            self.ledger.set_total(total);
        }
        self.rebuild();
        self.out.push_back(Output::Identified { total: head.length, validator: None });
        self.accepted(id, 0, head.length);
        self.finish_if_complete();
    }

    /// The link over which an answer comes.
    pub(super) fn carrier_of(&self, id: ReqId) -> Option<LinkId> {
        self.reqs.get(&id).and_then(|req| self.conns.get(&req.conn)).map(|conn| conn.link)
    }

    /// Closes all connections but the one of this request.
    pub(super) fn drop_others(&mut self, id: ReqId) {
        let keep = self.reqs.get(&id).map(|req| req.conn);
        let others: Vec<ConnId> = self.conns.keys().copied().filter(|other| Some(*other) != keep).collect();
        for other in others {
            self.drop_conn(other, true);
        }
    }

    /// From now on everything comes as one answer; `conn` has an answer that is of no use.
    pub(super) fn one_answer(&mut self, why: OneAnswer, conn: Option<ConnId>) {
        if matches!(why, OneAnswer::NoRanges | OneAnswer::BadRanges) && self.fall_back_to_first() {
            return self.notice(Notice::OneAnswer { why });
        }
        self.phase = Phase::OneAnswer { req: None };
        self.notice(Notice::OneAnswer { why });
        self.wake_at(self.now, Wake::Retry);
        let keep = conn.and_then(|conn| self.conns.get(&conn)).map(|conn| conn.link);
        if let Some(link) = keep.or_else(|| self.links.keys().next().copied()) {
            // The size of a file that keeps changing is not known, only that its responses have a validator.
            let total = self.ledger.total().filter(|_| why != OneAnswer::Unsteady);
            let validator = self.validators.values().next().cloned();
            self.told(link, total, validator.as_ref(), false);
        }
        self.close_all();
        if let Some(link) = keep.and_then(|link| self.links.get_mut(&link)) {
            link.next_try = self.now;
        }
        if !self.ledger.done().is_zero() {
            self.consumed = 0;
            self.out.push_back(Output::Restart);
        }
        self.forget_bytes();
        for link in self.links.values_mut() {
            link.known.proved = false;
        }
        if let Some(link) = keep.and_then(|link| self.links.get_mut(&link)) {
            link.known.proved = true;
        }
    }

    /// Looks whether the one answer broke off: nothing of it can be used, as nothing proves that the next one
    /// continues it.
    pub(super) fn after_lost_answer(&mut self) {
        let Phase::OneAnswer { req: Some(id) } = self.phase else { return };
        if self.reqs.contains_key(&id) || self.ledger.complete() {
            return;
        }
        self.phase = Phase::OneAnswer { req: None };
        let came = self.ledger.frontier();
        self.forget_bytes();
        // One that never began is among its link's failures already.
        if came > 0 {
            self.consumed = 0;
            self.out.push_back(Output::Restart);
            self.count_lost_answer(came);
        }
    }

    /// Bytes of a lost answer are no progress, so each link's tries are counted by how far it came over that link. Who
    /// has used them up makes room for the others, and its word for the size no longer counts against theirs.
    fn count_lost_answer(&mut self, came: u64) {
        let Some(id) = self.carrier else { return };
        let Some(link) = self.links.get_mut(&id) else { return };
        let (best, lost) = link.known.best_answer;
        link.known.best_answer = if came > best { (came, 0) } else { (best, lost + 1) };
        if link.known.best_answer.1 <= self.config.retries {
            return;
        }
        let text = "the one answer breaks off again and again".into();
        let trouble = link.known.last_trouble.clone().unwrap_or(Trouble { kind: TroubleKind::Truncated, text });
        let hopeful = link.hopeful();
        let fresh = |link: &LinkState| link.known.best_answer.1 <= self.config.retries && !link.spent;
        if !self.links.values().any(|link| fresh(link) && link.in_play()) {
            return self.give_up(Failure::Retries { trouble });
        }
        self.told.take_if(|told| told.link == id);
        if hopeful {
            self.ban(id, Ban::Trouble { trouble }, true);
        }
    }
}

/// Answers with everything, in a row, from a server that has served ranges, before everything is taken from one of them.
const MOST_IGNORED: u32 = 3;
