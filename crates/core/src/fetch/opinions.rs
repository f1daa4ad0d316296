//! Second opinions: what is believed of an answer that a captive portal could have given.
//!
//! In: whole files, refusals and sizes, each from one link. Out: the answer that is taken, and the links that are banned
//! for theirs.
//!
//! 1. Such an answer is parked until every other link that may still speak has spoken, or the time for that is over.
//! 2. A whole file beats a refusal, one with a validator beats one without; otherwise the first to speak.
//! 3. A delivered range, or a size that another link was told, decides against whole files of another size.
//!
//! Well-known probe URLs (as phones ask them) were not used: they tell of the network that answers them, not of the one
//! that answers for this host, and a download should talk to nobody but its server.

use alloc::vec::Vec;
use core::time::Duration;

use super::{Ban, ConnId, Failure, Fetch, Head, ReqId, Validator, Wake};
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
    pub(super) link: LinkId,
    pub(super) total: DataSize,
    validator: Option<Validator>,
}

impl Fetch {
    /// Whether a whole file is of another size than another link was told, and has no validator where that had one.
    pub(super) fn contradicts(&self, link: LinkId, head: &Head) -> bool {
        let Some(told) = &self.told else { return false };
        let other = head.length.is_some_and(|length| length != told.total);
        let weaker = told.validator.is_some() || head.validator.is_none();
        let others = self.links.iter().any(|(id, state)| *id != link && (state.hopeful() || state.resting()));
        told.link != link && other && weaker && others
    }

    pub(super) fn told(&mut self, link: LinkId, total: DataSize, validator: Option<&Validator>) {
        if self.told.as_ref().is_none_or(|told| told.validator.is_none()) {
            self.told = Some(Told { link, total, validator: validator.cloned() });
        }
    }

    /// A server has told the size without delivering anything: a whole file of another size is a portal's page.
    pub(super) fn told_total(&mut self, total: DataSize) {
        let (other, same) = core::mem::take(&mut self.parked).into_iter().partition(|parked| {
            parked.head.status == 200 && parked.head.length.is_some_and(|length| length != total)
        });
        self.parked = same;
        self.ban_parked(other, Some(total));
    }

    /// Keeps an answer until another link has spoken.
    pub(super) fn park(&mut self, id: ReqId, link: LinkId, head: &Head) {
        let Some(conn) = self.reqs.get(&id).map(|req| req.conn) else { return };
        let until = self.now + if self.others_reached(link) { LONG_OPINION } else { OPINION };
        self.parked.push(Parked { conn, req: id, link, head: head.clone(), until });
        self.hear_parked();
    }

    /// Whether a link that has not spoken yet may still do so.
    pub(super) fn other_opinions(&self, than: LinkId) -> bool {
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
    pub(super) fn spoken_for_ranges(&mut self) {
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
}

/// How long a link's first sign of life is waited for. chosen: a second SYN (RFC 6298 §2) and a slow path's round trip.
const OPINION: Duration = Duration::from_millis(1500);
/// How long the opinion of a link is waited for that does reach the server, but has only heard errors so far.
const LONG_OPINION: Duration = Duration::from_secs(10);
