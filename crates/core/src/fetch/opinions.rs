//! Second opinions: what is believed of an answer that a captive portal could have given.
//!
//! In: whole files, refusals and sizes, each from one link. Out: the answer that is taken, and the links that are banned
//! for theirs.
//!
//! 1. Such an answer is parked until every other link that may still speak has spoken, or the time for that is over.
//!    How long that is follows from how the others stand now, not from how they stood when it came: a slow network
//!    takes seconds to reach its server beside a portal that answers at once.
//! 2. A whole file beats a refusal, a success beats the body of a redirect, one with a validator beats one without, two
//!    links that say the same beat one; otherwise the first to speak.
//! 3. Of two sizes under one validator the longer counts: a file cut short would pass for the whole, while one that is
//!    promised too long breaks off.
//! 4. A range that was delivered, or a size that a response over another link stated, decides against whole files of
//!    another size. Once a response has had a validator, a whole file that has none and states a length is refused,
//!    unless a response has stated that length. This also holds after the connection of that response was lost.
//! 5. If two links deliver whole files of different sizes and no response has a validator, a link whose response was to a
//!    request without a range is asked for a range, once per download. A portal does not answer with 206.
//!
//! Well-known probe URLs (as phones ask them) were not used: they tell of the network that answers them, not of the one
//! that answers for this host, and a download should talk to nobody but its server.

use alloc::string::String;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::time::Duration;

use super::conn::Conn;
use super::links::{LinkState, Standing};
use super::refusals::concerns_the_range;
use super::{Ask, Ban, ConnId, Failure, Fetch, Head, Notice, OneAnswer, ReqId, Validator, Wake};
use crate::link::LinkId;
use crate::units::{DataSize, Instant};

/// An answer that waits for another link's opinion.
#[derive(Clone, Debug)]
pub(super) struct Parked {
    pub(super) conn: ConnId,
    pub(super) req: ReqId,
    link: LinkId,
    pub(super) head: Head,
    since: Instant,
    /// Why it cannot be used, if it is an answer to a range.
    unusable: Option<String>,
}

impl Parked {
    /// Whether it is the whole file, or a portal's page: a success, or a redirect without a target, which is the resource
    /// itself for other programs.
    fn is_whole(&self) -> bool {
        (self.is_success() || matches!(self.head.status, 300..=303 | 307 | 308)) && self.unusable.is_none()
    }

    fn is_success(&self) -> bool {
        matches!(self.head.status, 200..=299)
    }
}

/// What the header section of a response stated about the file: its size, its validator or both. Kept while the ranges of
/// several responses cannot be combined.
#[derive(Clone, Debug)]
pub(super) struct Told {
    pub(super) link: LinkId,
    /// `None`: no size was stated, only a validator.
    pub(super) total: Option<DataSize>,
    pub(super) validator: Option<Validator>,
    /// An answer to a question for a range said so, which no portal gives.
    pub(super) ranged: bool,
    /// The links that have been told otherwise since.
    pub(super) denied: Vec<LinkId>,
}

impl Fetch {
    /// Whether a whole file is of another size than another link was told, and proves no more than that. What a link was
    /// told itself stands against it, too, where it now proves less, or speaks of less under the same validator.
    pub(super) fn contradicts(&self, link: LinkId, head: &Head) -> bool {
        let (Some(told), Some(length)) = (&self.told, head.length) else { return false };
        let differs = told.total.is_some_and(|total| total != length);
        let disagree = match (&told.validator, &head.validator) {
            (Some(told_of), Some(of)) if told_of == of => told.total.is_some_and(|total| length < total),
            (Some(_), None) => told.total != Some(length),
            (None, Some(_)) => false,
            _ => (told.link != link || told.ranged) && differs,
        };
        disagree && self.links.iter().any(|(id, state)| *id != link && state.in_play())
    }

    /// A whole file is of another size than was told: its link is banned. Once all links say so, the file has changed,
    /// and nothing is known of its size.
    pub(super) fn deny(&mut self, id: ReqId, link: LinkId, got: Option<DataSize>) {
        let want = self.told.as_ref().and_then(|told| told.total);
        self.cancel(id);
        self.ban(link, Ban::OtherLength { got, want }, true);
        let Some(told) = &mut self.told else { return };
        told.denied.push(link);
        if self.links.iter().all(|(id, link)| told.denied.contains(id) || !link.in_play()) {
            self.told = None;
        }
    }

    /// The header section of a response over this link stated the size or the validator of the file. `ranged`: it was the
    /// response to a request for a range. A validator is never replaced here, and a size only by better evidence.
    pub(super) fn told(
        &mut self,
        link: LinkId,
        total: Option<DataSize>,
        validator: Option<&Validator>,
        ranged: bool,
    ) {
        let better = |told: &Told| told.validator.is_none() && (validator.is_some() || ranged || !told.ranged);
        if (total.is_some() || validator.is_some()) && self.told.as_ref().is_none_or(better) {
            let validator = validator.cloned();
            self.told = Some(Told { link, total, validator, ranged, denied: Vec::new() });
        }
    }

    /// A server has told the size without delivering anything: a whole file of another size is a portal's page.
    pub(super) fn told_total(&mut self, total: DataSize) {
        let (other, same) = core::mem::take(&mut self.parked)
            .into_iter()
            .partition(|parked| parked.is_whole() && parked.head.length.is_some_and(|length| length != total));
        self.parked = same;
        self.ban_parked(other, Some(total));
    }

    /// Keeps an answer until another link has spoken.
    pub(super) fn park(&mut self, id: ReqId, link: LinkId, head: &Head) {
        self.park_with(id, link, head, None);
    }

    /// Keeps an answer to a range that cannot be used, until another link has spoken.
    pub(super) fn park_unusable(&mut self, id: ReqId, link: LinkId, head: &Head, why: &str) {
        if let Some(req) = self.reqs.get_mut(&id) {
            // Other links ask for the same bytes meanwhile.
            req.span.end = 0;
        }
        self.rebuild();
        self.park_with(id, link, head, Some(why.into()));
    }

    fn park_with(&mut self, id: ReqId, link: LinkId, head: &Head, unusable: Option<String>) {
        let Some(conn) = self.reqs.get(&id).map(|req| req.conn) else { return };
        self.parked.push(Parked { conn, req: id, link, head: head.clone(), since: self.now, unusable });
        self.hear_parked();
    }

    /// Whether an answer over this link waits for another link's opinion. The link has said what it knows: it is asked
    /// nothing more meanwhile, and its silence says nothing.
    pub(super) fn waits_for_opinion(&self, link: LinkId) -> bool {
        self.parked.iter().any(|parked| parked.link == link)
    }

    /// Whether a link that has not spoken yet may still do so.
    pub(super) fn other_opinions(&self, than: LinkId) -> bool {
        self.unheard(than).next().is_some()
    }

    /// The other links that have not spoken yet and may still do so.
    fn unheard(&self, than: LinkId) -> impl Iterator<Item = (LinkId, &LinkState)> {
        let spoken = |id: LinkId| self.parked.iter().any(|parked| parked.link == id);
        let links = self.links.iter().map(|(id, link)| (*id, link));
        links.filter(move |(id, link)| *id != than && self.usable(*id, link) && !spoken(*id))
    }

    /// How long the others are waited for with this answer.
    fn patience_with(&self, parked: &Parked) -> Duration {
        let under_way = |conn: &Conn| !conn.is_open() || !conn.reqs.is_empty();
        let doubtful = parked.is_whole() && parked.head.validator.is_none();
        let patience = self.unheard(parked.link).map(|(_, link)| match () {
            () if link.known.reached => LONG_OPINION,
            () if !self.conns_of(link).any(under_way) => OPINION,
            () if doubtful => LONG_OPINION,
            () => FIRST_SIGN,
        });
        patience.max().unwrap_or_default()
    }

    /// Decides on parked answers whose time has come.
    pub(super) fn hear_parked(&mut self) {
        let Some(first) = self.parked.first() else { return };
        let first_link = first.link;
        let until = first.since + self.patience_with(first);
        if self.now < until {
            return self.wake_at(until, Wake::Opinion);
        }
        if self.all_refused_alike() {
            let (req, link, status) = (first.req, first.link, first.head.status);
            if self.open_otherwise(req, link, status) {
                return;
            }
            for parked in core::mem::take(&mut self.parked) {
                self.cancel(parked.req);
            }
            return self.give_up(Failure::Status { status });
        }
        if self.ask_ranges_of_rivals() {
            return;
        }
        let silent: Vec<LinkId> = self.unheard(first_link).map(|(id, _)| id).collect();
        let parked = self.parked.remove(self.best_parked());
        if parked.is_whole() {
            for link in silent {
                self.notice(Notice::Unconfirmed { link, told: parked.link });
            }
            self.parked.clear();
            self.take_whole(parked.req, &parked.head);
        } else if parked.head.status == 416 {
            self.parked.clear();
            self.ask_without_range(parked.req);
        } else if parked.unusable.is_some() {
            self.parked.clear();
            self.one_answer(OneAnswer::BadRanges, Some(parked.conn));
        } else if !self.open_otherwise(parked.req, parked.link, parked.head.status) {
            let status = parked.head.status;
            self.refuse(parked.req, parked.link, Ban::OtherStatus { status }, Failure::Status { status });
            self.hear_parked();
        }
    }

    /// Rule 5. Returns true if a link is asked for a range.
    fn ask_ranges_of_rivals(&mut self) -> bool {
        let whole: Vec<&Parked> = self.parked.iter().filter(|parked| parked.is_whole()).collect();
        let sizes = || whole.iter().map(|parked| parked.head.length);
        let proved = whole.iter().any(|parked| parked.head.validator.is_some());
        let agree = sizes().all(|size| Some(size) == sizes().next());
        if self.asked_rivals || proved || agree || self.steering.is_some() {
            return false;
        }
        let is_plain = |id: ReqId| self.reqs.get(&id).is_some_and(|req| req.ask == Ask::Whole);
        let plain: Vec<(ReqId, LinkId)> =
            whole.iter().filter(|parked| is_plain(parked.req)).map(|parked| (parked.req, parked.link)).collect();
        if plain.is_empty() {
            return false;
        }
        self.asked_rivals = true;
        // The others wait for this answer, too, however long they have waited.
        for parked in &mut self.parked {
            parked.since = self.now;
        }
        for (req, link) in plain {
            self.cancel(req);
            if let Some(link) = self.links.get_mut(&link) {
                link.plain = false;
                link.next_try = self.now;
            }
        }
        self.wake_at(self.now, Wake::Retry);
        true
    }

    /// Removes the parked answers for which `lost` holds. Keeps the size and the validator that they stated.
    pub(super) fn unpark(&mut self, lost: impl Fn(&Parked) -> bool) {
        let (lost, kept) = core::mem::take(&mut self.parked).into_iter().partition(lost);
        self.parked = kept;
        for parked in <Vec<Parked>>::into_iter(lost).filter(|parked| parked.is_whole()) {
            if let Some(validator) = &parked.head.validator {
                self.told(parked.link, parked.head.length, Some(validator), false);
            }
        }
    }

    /// Whether every link was refused with the same status: then it is the server that refuses, and no link is to blame.
    fn all_refused_alike(&self) -> bool {
        let Some(first) = self.parked.first().filter(|_| !self.combines()) else { return false };
        let status = first.head.status;
        let spoke = |id: LinkId| self.parked.iter().any(|parked| parked.link == id);
        let refused = |parked: &Parked| {
            !parked.is_whole() && parked.unusable.is_none() && status != 416 && parked.head.status == status
        };
        self.parked.iter().all(refused) && self.links.iter().all(|(id, link)| spoke(*id) || !link.in_play())
    }

    /// The answer to believe (rules 2 and 3).
    fn best_parked(&self) -> usize {
        let says = |parked: &Parked| (parked.head.status, parked.head.length, parked.head.validator.clone());
        let voices = |parked: &Parked| self.parked.iter().filter(|other| says(other) == says(parked)).count();
        let rank = |parked: &Parked| {
            let validated = parked.head.validator.is_some();
            (!parked.is_whole(), !parked.is_success(), !validated, Reverse(voices(parked)))
        };
        let Some(first) = self.parked.iter().min_by_key(|parked| rank(parked)) else { return 0 };
        let same = |parked: &&Parked| {
            parked.head.validator.is_some()
                && parked.head.validator == first.head.validator
                && rank(parked) == rank(first)
        };
        let longest = self.parked.iter().filter(same).min_by_key(|parked| Reverse(parked.head.length));
        let best = longest.unwrap_or(first).req;
        self.parked.iter().position(|parked| parked.req == best).unwrap_or(0)
    }

    /// A link has delivered a range: what others said instead was not the file.
    pub(super) fn spoken_for_ranges(&mut self) {
        let (total, all) = (self.ledger.total(), core::mem::take(&mut self.parked));
        let asked_for = |parked: &Parked| self.reqs.get(&parked.req).is_some_and(|req| req.ask == Ask::Whole);
        let is_of_the_file = |parked: &Parked| match parked.is_whole() {
            true => asked_for(parked) && parked.head.length == total,
            // So much was not to be had in one piece.
            false => self.is_first(parked.req) && concerns_the_range(parked.head.status),
        };
        let (same, other): (Vec<Parked>, Vec<Parked>) = all.into_iter().partition(is_of_the_file);
        // Nothing is wrong with their links.
        for parked in same {
            self.cancel(parked.req);
        }
        self.ban_parked(other, total);
    }

    fn ban_parked(&mut self, parked: Vec<Parked>, want: Option<DataSize>) {
        let mut done = Vec::new();
        for parked in parked {
            let is_whole = parked.is_whole();
            let ban = match parked.unusable {
                Some(text) => Ban::Protocol { text },
                None if is_whole && parked.head.page => Ban::Page,
                None if is_whole => Ban::OtherLength { got: parked.head.length, want },
                None => Ban::OtherStatus { status: parked.head.status },
            };
            self.cancel(parked.req);
            // Each of its connections may have said the same: that is one reason, not several.
            let dealt_with = done.contains(&parked.link)
                || self
                    .links
                    .get(&parked.link)
                    .is_some_and(|link| matches!(link.standing, Standing::Banned { .. }));
            done.push(parked.link);
            if !dealt_with && !self.next_root(parked.link, &ban) {
                self.ban(parked.link, ban, true);
            }
        }
    }
}

/// How long a link is waited for that is neither reaching for the server nor asked. chosen: a second SYN (RFC 6298 §2)
/// and a slow path's round trip.
const OPINION: Duration = Duration::from_millis(1500);
/// How long a link is waited for that is on its way: a name, TCP and TLS over a satellite, or a third SYN.
const FIRST_SIGN: Duration = Duration::from_secs(6);
/// How long a link is waited for that does reach the server, or any that is on its way while all that is known could as
/// well be a portal's page.
const LONG_OPINION: Duration = Duration::from_secs(10);
