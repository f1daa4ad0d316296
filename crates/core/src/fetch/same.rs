//! Whether two answers are of the same file.
//!
//! 1. Answers must agree in size and validator. One that does not bans its link; if every link that still works says the
//!    same new thing, the file has changed and the download starts again.
//! 2. Where edges of a content network do not agree, a link goes over to one that has delivered: to its URL, at its
//!    address. It does so once, as a portal answers for every address.

use super::links::{Edge, LinkState, Standing};
use super::{Ban, Failure, Fetch, Notice, OriginId, Output, Phase, ReqId, Validator};
use crate::link::LinkId;
use crate::units::DataSize;

impl Fetch {
    /// Whether the answer is of the file that the others are of. If not, its link is dealt with.
    pub(super) fn agrees(
        &mut self,
        id: ReqId,
        link: LinkId,
        total: DataSize,
        validator: Option<&Validator>,
    ) -> bool {
        let asked = self.reqs.get(&id).and_then(|req| self.conns.get(&req.conn));
        let Some((root, edge)) = asked.map(|conn| (conn.root, conn.edge)) else { return false };
        let want = self.ledger.total();
        let known = self.known(root);
        // Sources that are combined have validators of their own; the digest proves that their files are one.
        let proof = known.map_or(validator.is_some() || self.is_proven(), |known| validator == Some(known));
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
        if self.next_root(link, &ban) {
            return false;
        }
        self.differs(id, link, ban, validator.map(|validator| (Some(total), validator.clone())));
        false
    }

    /// The validator that answers of this source must have.
    pub(super) fn known(&self, root: OriginId) -> Option<&Validator> {
        self.validators.get(&root)
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
        self.forget_bytes();
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
}

const MOST_RESTARTS: u32 = 3;
