//! One resource over many links: which bytes are asked for on which connection, and when.
//!
//! In: what happens on links, connections and answers ([`Input`]). Out: connections to open, requests to send, bodies
//! to take, and at the end [`Output::Done`] or [`Output::Failed`]. Payload never passes through.
//!
//! 1. The first data request is the probe: it is sent on every connection that opens before the resource is known, for
//!    the next bytes, so the answer costs no extra round trip and a second link's opinion comes for free.
//! 2. Answers are only put together if they are provably of the same file (RFC 9110 §8.8, §13.1.5); see `answers`.
//! 3. A connection always has as many bytes on the way as its pipe holds, so that it never drains; see `plan`.
//! 4. What is left is shared so that all connections end at the same moment, and what then still lags behind is asked
//!    for a second time, up to a bound; see `level` and `tail`.
//! 5. A link that falls silent keeps its bytes until the others have nothing else to do, and is probed by fresh
//!    connections, since TCP's own retransmission backs off for seconds; see `silence`.
//! 6. A link gets more connections only while they pay; see `lanes`.
//!
//! The thesis's five policies run on the same books (`ledger`) and the same answers, with their own `rules`.
//!
//! One request per link, repeated when the last one ends, was not used: each end costs a round trip of silence
//! (1.33 × the ideal time on 300 Mbit/s with 30 ms). One request for everything was not used either: HTTP/1.1 cannot
//! take it back when a link turns out slow.

mod allowance;
mod answers;
mod config;
mod conn;
mod event;
mod first;
mod health;
mod lanes;
mod ledger;
mod level;
mod links;
mod manners;
mod notice;
mod opinions;
mod orders;
mod plan;
mod refusals;
mod rules;
mod same;
mod share;
mod silence;
mod sources;
mod span;
mod spans;
mod steer;
mod tail;
mod terms;
#[cfg(test)]
mod tests;
mod thesis;
mod thinks;
mod whole;

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::net::IpAddr;
use core::time::Duration;

use crate::link::{LinkId, LinkProfile};
use crate::machine::Machine;
use crate::units::{Bitrate, DataSize, Instant};

pub use config::{BAN_REST, Config, MeteredUse, Policy, Proof, Resume, SlowLink, Thesis, UnknownPolicy};
pub use event::{
    Ask, ConnId, ContentRange, Head, Input, OriginId, Output, PathSample, Protocol, ReqId, Share, Trouble,
    TroubleKind, Validator,
};
pub use notice::{Ban, Failure, Notice, OneAnswer};
pub(crate) use plan::FIRST_BITE;
pub use share::Load;
pub use span::Span;
pub use spans::SpanSet;
pub(crate) use steer::Seat;

use conn::{Conn, Req};
use ledger::Ledger;
use links::{LinkState, Standing};

/// The machine. See the [module](self).
#[derive(Debug)]
pub struct Fetch {
    config: Config,
    now: Instant,
    links: BTreeMap<LinkId, LinkState>,
    conns: BTreeMap<ConnId, Conn>,
    reqs: BTreeMap<ReqId, Req>,
    ledger: Ledger,
    phase: Phase,
    /// What each source says of its file.
    validators: BTreeMap<OriginId, Validator>,
    sources: sources::Sources,
    /// What proves its version where the ETags of one URL differ.
    dates: BTreeMap<OriginId, same::Dated>,
    /// What the servers behind them have shown.
    servers: BTreeMap<OriginId, manners::Manners>,
    /// How the resource is asked for as long as nothing is known of it.
    opening: Opening,
    /// A refusal was answered by one request without a range.
    retried_whole: bool,
    /// The request that asked for the whole file first; see `first`.
    first: Option<ReqId>,
    /// Answers that may be a portal's: kept until another link has spoken.
    parked: Vec<opinions::Parked>,
    /// Links that delivered whole files of different sizes have been asked for a range (rule 5 of `opinions`).
    asked_rivals: bool,
    /// What is known of the size as long as everything may have to come as one answer.
    told: Option<opinions::Told>,
    restarts: u32,
    /// The link over which the present one answer comes, or the last one came.
    carrier: Option<LinkId>,
    /// Everything before this has been taken by the in-order reader.
    consumed: u64,
    /// The last time that anything came at all.
    last_data: Instant,
    /// What other downloads leave of the links; what is not in it is free.
    shares: BTreeMap<LinkId, Share>,
    /// Another machine owns this one and chooses its spans.
    steering: Option<steer::Steering>,
    next_conn: u32,
    next_req: u32,
    wake: Option<(Instant, Wake)>,
    out: VecDeque<Output>,
}

/// How far the download is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Nobody has said yet what the resource is.
    Unknown,
    /// Size and validator are known: ranges from everywhere.
    Ranges,
    /// Everything comes as the answer to one request, which may not have been sent yet.
    OneAnswer {
        /// The request.
        req: Option<ReqId>,
    },
    /// Done or failed.
    Over,
}

/// The first request for a resource. A server may refuse it for its Range field, or for the size of the range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Opening {
    /// A range that fills a round trip or two.
    Range,
    /// A range of a few bytes; the first was refused.
    SmallRange,
}

/// Why the machine wants to be woken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wake {
    /// Something should have come by then.
    Silence,
    /// A connection is ordered again, or a rest is over.
    Retry,
    /// Another link's opinion has been waited for.
    Opinion,
    /// The numbers of connections are looked at.
    Review,
    /// The end is near: shares are looked at often.
    Tail,
}

/// What a download has done so far, for reports. Every figure is also in the stream of inputs and outputs.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// The size, once it is known.
    pub total: Option<DataSize>,
    /// Bytes in their place.
    pub done: DataSize,
    /// Everything before it is in its place.
    pub frontier: u64,
    /// Body bytes received and not needed.
    pub wasted: DataSize,
    /// Each link: bytes, rate over the last second, standing.
    pub links: Vec<(LinkId, DataSize, Bitrate, LinkWord)>,
}

/// How a link stands, in a word and the reason if there is one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LinkWord {
    /// In use.
    Up,
    /// Kept back: metered, or nothing to do.
    Idle,
    /// Nothing comes.
    Silent,
    /// Not used.
    Banned(Ban),
    /// Gone.
    Down,
}

impl Fetch {
    /// A download that knows its configuration and nothing else. It waits for links.
    pub fn new(config: Config) -> Self {
        let mut fetch = Self {
            now: Instant::ZERO,
            links: BTreeMap::new(),
            conns: BTreeMap::new(),
            reqs: BTreeMap::new(),
            ledger: Ledger::new(config.resume.as_ref()),
            phase: Phase::Unknown,
            validators: BTreeMap::new(),
            sources: sources::Sources::new(&config),
            dates: BTreeMap::new(),
            servers: BTreeMap::new(),
            opening: Opening::Range,
            retried_whole: false,
            first: None,
            parked: Vec::new(),
            asked_rivals: false,
            told: None,
            restarts: 0,
            carrier: None,
            consumed: 0,
            last_data: Instant::ZERO,
            shares: BTreeMap::new(),
            steering: None,
            next_conn: 0,
            next_req: 0,
            wake: None,
            out: VecDeque::new(),
            config,
        };
        if let Some(resume) = &fetch.config.resume {
            fetch.validators.extend(resume.source.map(|source| (source, resume.validator.clone())));
            fetch.phase = Phase::Ranges;
        }
        fetch
    }

    /// Where the download stands.
    pub fn status(&self) -> Status {
        let word = |link: &LinkState| match &link.standing {
            Standing::Up if link.conns.is_empty() => LinkWord::Idle,
            Standing::Up => LinkWord::Up,
            Standing::Silent { .. } => LinkWord::Silent,
            Standing::Banned { why: Ban::Down, .. } | Standing::Down => LinkWord::Down,
            Standing::Banned { why, .. } => LinkWord::Banned(why.clone()),
            Standing::Probation => LinkWord::Idle,
        };
        let rate = |link: &LinkState| self.link_rate(link, Duration::from_secs(1));
        Status {
            total: self.ledger.total(),
            done: self.ledger.done(),
            frontier: self.ledger.frontier(),
            wasted: self.ledger.wasted(),
            links: self.links.iter().map(|(id, link)| (*id, link.known.bytes, rate(link), word(link))).collect(),
        }
    }

    fn link_up(&mut self, id: LinkId, profile: LinkProfile) {
        let root = self.sources.first_for(id);
        let link = self.links.entry(id).or_insert_with(|| LinkState::new(profile.clone(), root));
        link.profile = profile;
        link.share = self.shares.get(&id).copied().unwrap_or_default();
        link.failures = 0;
        link.next_try = self.now;
        if matches!(link.standing, Standing::Down | Standing::Silent { .. }) {
            link.standing = Standing::Up;
        }
        // A budget of nothing is spent before anything is asked.
        self.spend(id);
    }

    fn link_down(&mut self, id: LinkId) {
        let Some(link) = self.links.get_mut(&id) else { return };
        link.standing = Standing::Down;
        link.forget_places();
        for conn in core::mem::take(&mut link.conns) {
            self.drop_conn(conn, true);
        }
    }

    fn connected(&mut self, id: ConnId, protocol: Protocol, handshake: Duration, peer: Option<IpAddr>) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.protocol = Some(protocol);
        conn.handshake = handshake;
        conn.edge.at = peer.or(conn.edge.at);
        conn.last = self.now;
        if let Some(link) = self.links.get_mut(&conn.link) {
            link.known.reached = true;
            link.known.handshake = Some(link.known.handshake.map_or(handshake, |least| least.min(handshake)));
            link.allowance.connections.take(self.now);
        }
        self.probe_stands(id);
    }

    fn closed(&mut self, id: ConnId, trouble: Trouble) {
        let Some(conn) = self.conns.get(&id) else { return };
        let (link, root, answered) = (conn.link, conn.root, conn.answered);
        if trouble.kind == TroubleKind::Http1Required {
            return self.leave_http2(id, false);
        }
        // The driver remembers only so many of the places that redirects led to.
        if let Some(link) = self.links.get_mut(&link).filter(|_| trouble.kind == TroubleKind::Local) {
            link.forget_places();
        }
        // A close between answers after something was delivered is how HTTP ends a connection. What is no answer behind
        // one that was good (bytes beyond its end, a reset) ends it as well.
        let unanswered = conn.reqs.front().copied();
        let front = conn.reqs.front().and_then(|req| self.reqs.get(req));
        let between = front.is_none_or(|req| !req.accepted || req.remaining().is_empty());
        let announced = conn.draining || trouble.kind == TroubleKind::Finished;
        let spoilt = matches!(trouble.kind, TroubleKind::Protocol | TroubleKind::Reset | TroubleKind::Truncated);
        let fruitful = (announced || (between && spoilt)) && !conn.meter.total().is_zero();
        if let Some(req) = unanswered {
            self.note_failed_opening(req, link);
        }
        self.note_stub(id);
        self.drop_conn(id, false);
        if !fruitful {
            return self.fail(link, trouble);
        }
        // Resets are the network's as often as the server's.
        if announced || trouble.kind == TroubleKind::Protocol {
            self.manners(root).on_end(answered);
        }
    }

    /// The server serves this URL over HTTP/1.1 only (RFC 9113 §7): the driver remembers that for its host.
    fn leave_http2(&mut self, id: ConnId, order: bool) {
        let link = self.conns.get(&id).map(|conn| conn.link);
        self.drop_conn(id, order);
        if let Some(link) = link.and_then(|link| self.links.get_mut(&link)) {
            link.next_try = self.now;
        }
    }

    fn data(&mut self, id: ReqId, len: DataSize) {
        let now = self.now;
        let Some(req) = self.reqs.get_mut(&id) else { return self.ledger.waste(len) };
        let span = Span::at(req.cursor, len);
        req.cursor = span.end;
        let id = req.conn;
        self.last_data = now;
        self.ledger.put(span);
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.last = now;
        conn.meter.on_bytes(conn.clock(now), len);
        let (link, root) = (conn.link, conn.root);
        self.note_source(root, span);
        self.came_alive(link, id, len);
        self.finish_if_complete();
    }

    /// The framing says that the answer is over: what it did not bring is free again.
    fn end(&mut self, id: ReqId) {
        let Some(req) = self.reqs.get(&id) else { return };
        if matches!(self.phase, Phase::OneAnswer { req: Some(one) } if one == id) && self.ledger.total().is_none() {
            self.ledger.set_total(DataSize::from_bytes(req.cursor));
        }
        let (conn, short, nothing) = (req.conn, !req.remaining().is_empty(), req.cursor == req.span.start);
        self.note_full_answer(id);
        self.forget_req(id);
        if short {
            self.rebuild();
        }
        self.finish_if_complete();
        if let Some(conn) = self.conns.get_mut(&conn) {
            conn.answered += 1;
        }
        let next = self.conns.get(&conn).and_then(|conn| conn.reqs.front()).and_then(|id| self.reqs.get(id));
        let next = next.filter(|next| !next.accepted).map(|next| next.sent);
        let Some(ended) = self.conns.get_mut(&conn) else { return };
        if let Some(sent) = next.filter(|_| ended.protocol == Some(Protocol::Http1)) {
            ended.on_next(self.now, sent);
        }
        let link = ended.link;
        if ended.draining && ended.reqs.is_empty() {
            self.drop_conn(conn, true);
        }
        if short && nothing {
            let trouble = Trouble { kind: TroubleKind::Truncated, text: "an answer without a byte".into() };
            self.fail(link, trouble);
        }
    }

    /// One answer broke off; its connection lives.
    fn aborted(&mut self, id: ReqId, trouble: Trouble) {
        let Some(req) = self.reqs.get(&id) else { return };
        let (conn_id, complete) = (req.conn, req.accepted && req.remaining().is_empty());
        if trouble.kind == TroubleKind::Http1Required {
            return self.leave_http2(conn_id, true);
        }
        if let Some(link) = self.carrier_of(id) {
            self.note_failed_opening(id, link);
        }
        self.note_stub(conn_id);
        self.forget_req(id);
        self.rebuild();
        let Some(conn) = self.conns.get_mut(&conn_id) else { return };
        let link = conn.link;
        // GOAWAY: the server takes no more requests on this connection and finishes those that it has. REFUSED_STREAM is taken
        // for the same: the request was not worked on (RFC 9113 section 8.7) and is sent again on another connection.
        let goes_away = matches!(trouble.kind, TroubleKind::Finished | TroubleKind::StreamRefused);
        let (root, answered, first) = (conn.root, conn.answered, !conn.draining);
        conn.draining |= goes_away;
        // The requests that it gives back are one event.
        let fruitful = (goes_away && !first) || ((goes_away || complete) && !conn.meter.total().is_zero());
        if conn.draining && conn.reqs.is_empty() {
            self.drop_conn(conn_id, true);
        }
        if goes_away && first {
            self.manners(root).on_end(answered);
        }
        if !fruitful {
            self.fail(link, trouble);
        }
    }

    fn finish_if_complete(&mut self) {
        if self.phase != Phase::Over && self.ledger.complete() && self.sources.is_verified(self.ledger.total()) {
            self.phase = Phase::Over;
            self.close_all();
            self.out.push_back(Output::Done);
        }
    }

    /// The source in use cannot give the file, or no link can: another source is asked, or the download ends.
    fn give_up(&mut self, failure: Failure) {
        if self.phase != Phase::Over && !self.fails_over(&failure) {
            self.fail_with(failure);
        }
    }

    /// The download ends without the file.
    fn fail_with(&mut self, failure: Failure) {
        if self.phase != Phase::Over {
            self.phase = Phase::Over;
            self.close_all();
            // Of several sources the one that had another file counts more than those that had none.
            let failed = matches!(
                failure,
                Failure::Status { .. } | Failure::Retries { .. } | Failure::Protocol { .. } | Failure::Redirect
            );
            let failure = if failed && self.has_mismatched() { Failure::Digest } else { failure };
            self.out.push_back(Output::Failed(failure));
        }
    }

    fn notice(&mut self, notice: Notice) {
        self.out.push_back(Output::Notice(notice));
    }

    /// Everything that follows from the present state; called after each input and tick.
    fn settle(&mut self) {
        self.verify_next();
        self.finish_if_complete();
        if self.phase == Phase::Over {
            self.wake = None;
            return;
        }
        self.wake = None;
        self.watch();
        self.after_lost_answer();
        self.open_connections();
        if self.is_led() {
            self.hear_parked();
        } else if self.config.policy == Policy::Marline {
            self.plan();
        } else {
            self.rules();
        }
        self.close_resting();
        self.await_allowance();
        self.await_silence();
    }

    fn wake_at(&mut self, at: Instant, why: Wake) {
        let at = at.max(self.now + SOONEST);
        if self.wake.is_none_or(|(earlier, _)| at < earlier) {
            self.wake = Some((at, why));
        }
    }
}

impl Machine for Fetch {
    type Input = Input;
    type Output = Output;
    type Reason = Wake;

    fn handle(&mut self, now: Instant, input: Input) {
        self.now = self.now.max(now);
        if self.phase == Phase::Over {
            return;
        }
        match input {
            Input::LinkUp { link, profile } => self.link_up(link, profile),
            Input::LinkDown { link } => self.link_down(link),
            Input::Connected { conn, protocol, handshake, peer } => self.connected(conn, protocol, handshake, peer),
            Input::Head { req, head } => self.head(req, &head),
            Input::Data { req, len } => self.data(req, len),
            Input::End { req } => self.end(req),
            Input::Aborted { req, trouble } => self.aborted(req, trouble),
            Input::Closed { conn, trouble } => self.closed(conn, trouble),
            Input::Sample { conn, path } => {
                if let Some(conn) = self.conns.get_mut(&conn) {
                    conn.on_sample(self.now, path);
                }
            }
            Input::Consumed { upto } => self.consumed(upto),
            Input::Source { origin } => self.add_source(origin),
            Input::Proof { proof } => self.add_proof(proof),
            Input::Verified { span, good } => self.verified(span, good),
            Input::Share { link, share } => self.share(link, share),
        }
        self.settle();
    }

    fn tick(&mut self, now: Instant) {
        self.now = self.now.max(now);
        self.settle();
    }

    fn poll(&mut self) -> Option<Output> {
        self.out.pop_front()
    }

    fn deadline(&self) -> Option<(Instant, Wake)> {
        self.wake
    }
}

/// A deadline always lies in the future (rule 3 of the contract).
const SOONEST: Duration = Duration::from_millis(1);
