//! Whether two answers are of the same file.
//!
//! 1. Answers must agree in size and validator. One that does not bans its link; if every link that still works says the
//!    same new thing, the file has changed and the download starts again.
//! 2. Servers behind one address may give the same bytes different ETags. Where the size and a strong Last-Modified agree,
//!    the date proves the version from then on (RFC 9110 §8.8.2.2): it takes the ETag's place in If-Range and, should
//!    the server not know what to do with it there, stands alone.
//! 3. A server that contradicts itself on every link, and not always in the same way, gives one answer.
//! 4. Where edges of a content network do not agree, a link goes over to one that has delivered: to its URL, at its
//!    address. It does so once, as a portal answers for every address.

use alloc::string::String;
use core::time::Duration;

use super::links::{Edge, LinkState, Standing};
use super::{Ban, Fetch, Head, Notice, OneAnswer, OriginId, Output, Phase, ReqId, Validator};
use crate::link::LinkId;
use crate::units::DataSize;

impl Fetch {
    /// Whether the answer is of the file that the others are of. If not, its link is dealt with.
    pub(super) fn agrees(&mut self, id: ReqId, link: LinkId, total: DataSize, head: &Head) -> bool {
        let validator = head.validator.as_ref();
        let asked = self.reqs.get(&id).and_then(|req| self.conns.get(&req.conn));
        let Some((root, edge)) = asked.map(|conn| (conn.root, conn.edge)) else { return false };
        let want = self.ledger.total();
        if want == Some(total) {
            self.prove_by_date(root, head);
        }
        let known = self.known(root);
        // Sources that are combined have validators of their own; the digest proves that their files are one.
        let proof = known.map_or(validator.is_some() || self.is_proven(), |known| is_version(known, head));
        let whole_already = matches!(self.phase, Phase::OneAnswer { .. });
        if want.is_none_or(|want| want == total) && (proof || whole_already) {
            if let (None, Some(validator)) = (known, validator) {
                self.validators.insert(root, validator.clone());
            }
            self.note_date(root, head);
            if let Some(link) = self.links.get_mut(&link) {
                link.known.differs = None;
                link.known.contradictions = 0;
                link.known.proved = true;
                link.known.edge = Some(edge);
            }
            return true;
        }
        let ban =
            if want == Some(total) { Ban::OtherValidator } else { Ban::OtherLength { got: Some(total), want } };
        if self.next_root(link, &ban) {
            return false;
        }
        self.differs(id, link, ban, validator.map(|validator| (Some(total), validator.clone())), true);
        false
    }

    /// The validator that answers of this source must have.
    pub(super) fn known(&self, root: OriginId) -> Option<&Validator> {
        self.validators.get(&root)
    }

    /// The validator that a request for a range of this URL is bound to.
    pub(super) fn condition(&self, root: OriginId) -> Option<&Validator> {
        let alone = self.dates.get(&root).is_some_and(|dated| dated.role == Role::Alone);
        if alone { None } else { self.known(root) }
    }

    /// Whether an answer is of the version that is known of this URL.
    pub(super) fn proves(&self, root: OriginId, head: &Head) -> bool {
        self.known(root).is_some_and(|known| is_version(known, head))
    }

    /// The date of a version that its ETag proves.
    fn note_date(&mut self, root: OriginId, head: &Head) {
        let same = matches!((self.known(root), &head.validator), (Some(known @ Validator::Etag(_)), Some(of)) if known == of);
        if let Some(text) = head.modified.as_ref().filter(|_| same) {
            self.dates.entry(root).or_insert_with(|| Dated { text: text.clone(), role: Role::Aside });
        }
    }

    /// An answer of the right size has another ETag and the same date: the date proves the version from now on.
    fn prove_by_date(&mut self, root: OriginId, head: &Head) {
        let other = matches!(self.known(root), Some(known @ Validator::Etag(_)) if !is_version(known, head));
        let Some(dated) = self.dates.get_mut(&root).filter(|_| other) else { return };
        if head.modified.as_ref() == Some(&dated.text) {
            dated.role = Role::Condition;
            self.validators.insert(root, Validator::Date(dated.text.clone()));
        }
    }

    /// The whole file instead of a range: the server may not know the validator that If-Range named, as it was another
    /// server's, or may not compare dates. Tells whether the request is to be repeated with less of a condition.
    pub(super) fn relax_condition(&mut self, id: ReqId, head: &Head) -> bool {
        let Some(conn) = self.reqs.get(&id).and_then(|req| self.conns.get(&req.conn)) else { return false };
        let (root, link) = (conn.root, conn.link);
        let stale = self.reqs.get(&id).is_some_and(|req| req.condition.as_ref() != self.condition(root));
        let by_etag = matches!(self.known(root), Some(known @ Validator::Etag(_)) if !is_version(known, head));
        let size = head.length.is_none() || head.length == self.ledger.total();
        let Some(dated) = self.dates.get_mut(&root) else { return false };
        if !size || head.modified.as_ref().is_some_and(|modified| *modified != dated.text) {
            return false;
        }
        dated.role = match dated.role {
            // It was sent before the condition was changed.
            role @ (Role::Condition | Role::Alone) if stale => role,
            Role::Aside if by_etag => Role::Condition,
            Role::Condition => Role::Alone,
            Role::Aside | Role::Alone => return false,
        };
        self.validators.insert(root, Validator::Date(dated.text.clone()));
        self.cancel(id);
        self.rest(link, Duration::ZERO);
        true
    }

    /// Rule 3: a link's answer, which is the server's for sure, is of no file that is known. Tells whether the link needs
    /// no ban, as it is asked again, or everything is.
    fn contradicts_itself(&mut self, link_id: LinkId) -> bool {
        if let Some(link) = self.links.get_mut(&link_id) {
            link.known.contradictions += 1;
        }
        let concerned =
            |(id, link): &(&LinkId, &LinkState)| link.known.contradictions > 0 || self.usable(**id, link);
        let links = || self.links.iter().filter(concerned).map(|(_, link)| link.known.contradictions);
        if self.phase != Phase::Ranges || links().any(|count| count == 0) {
            return false;
        }
        // Once is chance, where there is nobody else to say so.
        if links().sum::<u32>() == 1 {
            self.rest(link_id, SECOND_WORD);
            return true;
        }
        for link in self.links.values_mut() {
            if core::mem::take(&mut link.known.contradictions) > 0 && !matches!(link.standing, Standing::Down) {
                link.standing = Standing::Up;
                link.known.differs = None;
                link.next_try = self.now;
            }
        }
        self.one_answer(OneAnswer::Unsteady, None);
        true
    }

    /// A link speaks of another file. `change` is what it would be, if the answer proves that; `sure` that no portal has
    /// answered.
    pub(super) fn differs(
        &mut self,
        id: ReqId,
        link_id: LinkId,
        ban: Ban,
        change: Option<(Option<DataSize>, Validator)>,
        sure: bool,
    ) {
        let edge = self.reqs.get(&id).and_then(|req| self.conns.get(&req.conn)).map(|conn| conn.edge);
        self.cancel(id);
        if self.protect_first(link_id) {
            return;
        }
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
        // A link that is believed needs no ban.
        if all {
            return self.restart();
        }
        if !(sure && self.contradicts_itself(link_id)) {
            self.ban(link_id, ban, true);
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
        self.validators.clear();
        self.dates.clear();
        self.parked.clear();
        self.told = None;
        for link in self.links.values_mut() {
            link.known.proved = false;
            if link.known.differs.take().is_some() {
                link.standing = Standing::Up;
                link.next_try = self.now;
            }
        }
        if self.restarts > MOST_RESTARTS {
            return self.one_answer(OneAnswer::Unsteady, None);
        }
        self.close_all();
        self.forget_bytes();
        self.phase = Phase::Unknown;
        self.consumed = 0;
        self.notice(Notice::Changed);
        self.out.push_back(Output::Restart);
    }
}

/// What proves a version where ETags do not.
#[derive(Clone, Debug)]
pub(super) struct Dated {
    /// Last-Modified, as the server writes it.
    text: String,
    role: Role,
}

/// What a date is good for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    /// The ETag does.
    Aside,
    /// Requests are bound to it, and answers compared with it.
    Condition,
    /// Answers are compared with it.
    Alone,
}

/// Whether an answer is of this version.
fn is_version(known: &Validator, head: &Head) -> bool {
    let by_date = matches!(known, Validator::Date(date) if head.modified.as_ref() == Some(date));
    by_date || head.validator.as_ref() == Some(known)
}

/// How long a server that has contradicted itself once is left alone.
const SECOND_WORD: Duration = Duration::from_millis(200);
/// A file that changes more often, or a server that gives each answer a validator of its own, gives one answer.
const MOST_RESTARTS: u32 = 2;
