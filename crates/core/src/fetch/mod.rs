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

mod actions;
mod byte_range;
mod config;
mod conn;
mod coverage;
mod endgame;
mod event;
mod external_scheduler;
mod first_request;
mod link_health;
mod link_share;
mod links;
mod metering;
mod mirrors;
mod notification;
mod parallelism;
mod portal_check;
mod range_set;
mod refusals;
mod responses;
mod scheduler;
mod server_delay;
mod server_quirks;
mod single_response;
mod stall;
#[cfg(test)]
mod tests;
mod thesis_policies;
mod thesis_sizing;
mod token_bucket;
mod version_check;
mod water_filling;

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::net::IpAddr;
use core::time::Duration;

use crate::link::{LinkId, LinkProfile};
use crate::machine::Machine;
use crate::units::{Bitrate, DataSize, Instant};

pub use byte_range::ByteRange;
pub use config::{
    Config, DigestScope, INITIAL_BAN, MeteredUse, Policy, Resume, SlowLinkRule, ThesisParams, UnknownPolicy,
};
pub use event::{
    ConnError, ConnErrorKind, ConnId, ContentRange, Input, LinkShare, Output, PathSample, Protocol, ReqId,
    RequestRange, ResponseHead, UrlId, Validator,
};
pub(crate) use external_scheduler::ConnSlot;
pub use link_share::LinkLoad;
pub use notification::{BanReason, Failure, Notice, SingleResponseReason};
pub use range_set::RangeSet;
pub(crate) use scheduler::FIRST_CHUNK;

use conn::{Conn, Req};
use coverage::Coverage;
use links::{Link, LinkState};

/// The machine. See the [module](self).
#[derive(Debug)]
pub struct Fetch {
    config: Config,
    now: Instant,
    links: BTreeMap<LinkId, Link>,
    conns: BTreeMap<ConnId, Conn>,
    reqs: BTreeMap<ReqId, Req>,
    coverage: Coverage,
    phase: Phase,
    /// What each source says of its file.
    validators: BTreeMap<UrlId, Validator>,
    mirrors: mirrors::Mirrors,
    /// What proves its version where the ETags of one URL differ.
    date_validators: BTreeMap<UrlId, version_check::DateValidator>,
    /// What the servers behind them have shown.
    server_quirks: BTreeMap<UrlId, server_quirks::ServerQuirks>,
    /// How the resource is asked for as long as nothing is known of it.
    initial_request: InitialRequest,
    /// A refusal was answered by one request without a range.
    rechecked_without_range: bool,
    /// The request that asked for the whole file first; see `first`.
    first_request: Option<ReqId>,
    /// Answers that may be a portal's: kept until another link has spoken.
    pending_responses: Vec<portal_check::PendingResponse>,
    /// Links that delivered whole files of different sizes have been asked for a range (rule 5 of `opinions`).
    conflict_rechecked: bool,
    /// What is known of the size as long as everything may have to come as one answer.
    reported_file: Option<portal_check::ReportedFile>,
    restarts: u32,
    /// The link over which the present one answer comes, or the last one came.
    single_response_link: Option<LinkId>,
    /// Everything before this has been taken by the in-order reader.
    consumed: u64,
    /// The last time that anything came at all.
    last_data: Instant,
    /// What other downloads leave of the links; what is not in it is free.
    shares: BTreeMap<LinkId, LinkShare>,
    /// Another machine owns this one and chooses its spans.
    external_control: Option<external_scheduler::ExternalControl>,
    next_conn: u32,
    next_req: u32,
    timer: Option<(Instant, TimerReason)>,
    outputs: VecDeque<Output>,
}

/// How far the download is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Nobody has said yet what the resource is.
    Unknown,
    /// Size and validator are known: ranges from everywhere.
    Ranges,
    /// Everything comes as the answer to one request, which may not have been sent yet.
    SingleResponse {
        /// The request.
        req: Option<ReqId>,
    },
    /// Done or failed.
    Finished,
}

/// The first request for a resource. A server may refuse it for its Range field, or for the size of the range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum InitialRequest {
    /// A range that fills a round trip or two.
    Range,
    /// A range of a few bytes; the first was refused.
    SmallRange,
}

/// Why the machine wants to be woken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimerReason {
    /// Something should have come by then.
    Stall,
    /// A connection is ordered again, or a rest is over.
    Retry,
    /// Another link's opinion has been waited for.
    PortalCheck,
    /// The numbers of connections are looked at.
    ConnCount,
    /// The end is near: shares are looked at often.
    Endgame,
}

/// What a download has done so far, for reports. Every figure is also in the stream of inputs and outputs.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// The size, once it is known.
    pub total: Option<DataSize>,
    /// Bytes in their place.
    pub received: DataSize,
    /// Everything before it is in its place.
    pub in_order_end: u64,
    /// Body bytes received and not needed.
    pub wasted: DataSize,
    /// Each link: bytes, rate over the last second, standing.
    pub links: Vec<(LinkId, DataSize, Bitrate, LinkStatus)>,
}

/// How a link stands, in a word and the reason if there is one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LinkStatus {
    /// In use.
    Up,
    /// Kept back: metered, or nothing to do.
    Idle,
    /// Nothing comes.
    Stalled,
    /// Not used.
    Banned(BanReason),
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
            coverage: Coverage::new(config.resume.as_ref()),
            phase: Phase::Unknown,
            validators: BTreeMap::new(),
            mirrors: mirrors::Mirrors::new(&config),
            date_validators: BTreeMap::new(),
            server_quirks: BTreeMap::new(),
            initial_request: InitialRequest::Range,
            rechecked_without_range: false,
            first_request: None,
            pending_responses: Vec::new(),
            conflict_rechecked: false,
            reported_file: None,
            restarts: 0,
            single_response_link: None,
            consumed: 0,
            last_data: Instant::ZERO,
            shares: BTreeMap::new(),
            external_control: None,
            next_conn: 0,
            next_req: 0,
            timer: None,
            outputs: VecDeque::new(),
            config,
        };
        if let Some(resume) = &fetch.config.resume {
            fetch.validators.extend(resume.mirror.map(|mirror| (mirror, resume.validator.clone())));
            fetch.phase = Phase::Ranges;
        }
        fetch
    }

    /// Where the download stands.
    pub fn status(&self) -> Status {
        let status = |link: &Link| match &link.state {
            LinkState::Up if link.conns.is_empty() => LinkStatus::Idle,
            LinkState::Up => LinkStatus::Up,
            LinkState::Stalled { .. } => LinkStatus::Stalled,
            LinkState::Banned { reason: BanReason::Down, .. } | LinkState::Down => LinkStatus::Down,
            LinkState::Banned { reason, .. } => LinkStatus::Banned(reason.clone()),
            LinkState::Probing => LinkStatus::Idle,
        };
        let rate = |link: &Link| self.link_rate(link, Duration::from_secs(1));
        Status {
            total: self.coverage.total(),
            received: self.coverage.received(),
            in_order_end: self.coverage.in_order_end(),
            wasted: self.coverage.wasted_bytes(),
            links: self.links.iter().map(|(id, link)| (*id, link.stats.bytes, rate(link), status(link))).collect(),
        }
    }

    fn on_link_up(&mut self, id: LinkId, profile: LinkProfile) {
        let mirror = self.mirrors.initial_for(id);
        let link = self.links.entry(id).or_insert_with(|| Link::new(profile.clone(), mirror));
        link.profile = profile;
        link.share = self.shares.get(&id).copied().unwrap_or_default();
        link.failures = 0;
        link.next_attempt = self.now;
        if matches!(link.state, LinkState::Down | LinkState::Stalled { .. }) {
            link.state = LinkState::Up;
        }
        // A budget of nothing is spent before anything is asked.
        self.check_budget(id);
    }

    fn on_link_down(&mut self, id: LinkId) {
        let Some(link) = self.links.get_mut(&id) else { return };
        link.state = LinkState::Down;
        link.forget_redirect_targets();
        for conn in core::mem::take(&mut link.conns) {
            self.remove_conn(conn, true);
        }
    }

    fn on_connected(&mut self, id: ConnId, protocol: Protocol, handshake: Duration, peer: Option<IpAddr>) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.protocol = Some(protocol);
        conn.handshake_rtt = handshake;
        conn.cdn_node.address = peer.or(conn.cdn_node.address);
        conn.last_activity = self.now;
        if let Some(link) = self.links.get_mut(&conn.link) {
            link.stats.has_connected = true;
            link.stats.min_handshake_rtt =
                Some(link.stats.min_handshake_rtt.map_or(handshake, |least| least.min(handshake)));
            link.token_buckets.connections.take(self.now);
        }
        self.on_probe_connected(id);
    }

    fn on_closed(&mut self, id: ConnId, error: ConnError) {
        let Some(conn) = self.conns.get(&id) else { return };
        let (link, mirror, responses) = (conn.link, conn.mirror, conn.responses);
        if error.kind == ConnErrorKind::Http1Required {
            return self.retry_over_http1(id, false);
        }
        // The driver remembers only so many of the places that redirects led to.
        if let Some(link) = self.links.get_mut(&link).filter(|_| error.kind == ConnErrorKind::ClosedLocally) {
            link.forget_redirect_targets();
        }
        // A close between answers after something was delivered is how HTTP ends a connection. What is no answer behind
        // one that was good (bytes beyond its end, a reset) ends it as well.
        let front_request = conn.reqs.front().copied();
        let front = conn.reqs.front().and_then(|req| self.reqs.get(req));
        let between_responses = front.is_none_or(|req| !req.is_accepted || req.remaining().is_empty());
        let announced = conn.is_draining || error.kind == ConnErrorKind::CleanClose;
        let bad_end =
            matches!(error.kind, ConnErrorKind::Protocol | ConnErrorKind::Reset | ConnErrorKind::Truncated);
        let delivered = (announced || (between_responses && bad_end)) && !conn.rate_window.total().is_zero();
        if let Some(req) = front_request {
            self.note_failed_initial_request(req, link);
        }
        self.note_truncated_range(id);
        self.remove_conn(id, false);
        if !delivered {
            return self.on_failure(link, error);
        }
        // Resets are the network's as often as the server's.
        if announced || error.kind == ConnErrorKind::Protocol {
            self.quirks_mut(mirror).on_server_close(responses);
        }
    }

    /// The server serves this URL over HTTP/1.1 only (RFC 9113 §7): the driver remembers that for its host.
    fn retry_over_http1(&mut self, id: ConnId, notify_driver: bool) {
        let link = self.conns.get(&id).map(|conn| conn.link);
        self.remove_conn(id, notify_driver);
        if let Some(link) = link.and_then(|link| self.links.get_mut(&link)) {
            link.next_attempt = self.now;
        }
    }

    fn on_data(&mut self, id: ReqId, len: DataSize) {
        let now = self.now;
        let Some(req) = self.reqs.get_mut(&id) else { return self.coverage.add_wasted(len) };
        let range = ByteRange::at(req.next_offset, len);
        req.next_offset = range.end;
        let id = req.conn;
        self.last_data = now;
        self.coverage.add_received(range);
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.last_activity = now;
        conn.rate_window.on_bytes(conn.transfer_clock(now), len);
        let (link, mirror) = (conn.link, conn.mirror);
        self.note_delivered(mirror, range);
        self.on_link_data(link, id, len);
        self.finish_if_complete();
    }

    /// The framing says that the answer is over: what it did not bring is free again.
    fn on_end(&mut self, id: ReqId) {
        let Some(req) = self.reqs.get(&id) else { return };
        if matches!(self.phase, Phase::SingleResponse { req: Some(single) } if single == id)
            && self.coverage.total().is_none()
        {
            self.coverage.set_total(DataSize::from_bytes(req.next_offset));
        }
        let (conn, is_short, is_empty) =
            (req.conn, !req.remaining().is_empty(), req.next_offset == req.range.start);
        self.note_complete_response(id);
        self.remove_req(id);
        if is_short {
            self.rebuild_claims();
        }
        self.finish_if_complete();
        if let Some(conn) = self.conns.get_mut(&conn) {
            conn.responses += 1;
        }
        let next = self.conns.get(&conn).and_then(|conn| conn.reqs.front()).and_then(|id| self.reqs.get(id));
        let next = next.filter(|next| !next.is_accepted).map(|next| next.sent_at);
        let Some(conn_state) = self.conns.get_mut(&conn) else { return };
        if let Some(sent) = next.filter(|_| conn_state.protocol == Some(Protocol::Http1)) {
            conn_state.start_server_delay(self.now, sent);
        }
        let link = conn_state.link;
        if conn_state.is_draining && conn_state.reqs.is_empty() {
            self.remove_conn(conn, true);
        }
        if is_short && is_empty {
            let error = ConnError { kind: ConnErrorKind::Truncated, text: "an answer without a byte".into() };
            self.on_failure(link, error);
        }
    }

    /// One answer broke off; its connection lives.
    fn on_aborted(&mut self, id: ReqId, error: ConnError) {
        let Some(req) = self.reqs.get(&id) else { return };
        let (conn_id, complete) = (req.conn, req.is_accepted && req.remaining().is_empty());
        if error.kind == ConnErrorKind::Http1Required {
            return self.retry_over_http1(conn_id, true);
        }
        if let Some(link) = self.request_link(id) {
            self.note_failed_initial_request(id, link);
        }
        self.note_truncated_range(conn_id);
        self.remove_req(id);
        self.rebuild_claims();
        let Some(conn) = self.conns.get_mut(&conn_id) else { return };
        let link = conn.link;
        // GOAWAY: the server takes no more requests on this connection and finishes those that it has. REFUSED_STREAM is taken
        // for the same: the request was not worked on (RFC 9113 section 8.7) and is sent again on another connection.
        let goes_away = matches!(error.kind, ConnErrorKind::CleanClose | ConnErrorKind::StreamRefused);
        let (mirror, responses, is_first_goaway) = (conn.mirror, conn.responses, !conn.is_draining);
        conn.is_draining |= goes_away;
        // The requests that it gives back are one event.
        let delivered =
            (goes_away && !is_first_goaway) || ((goes_away || complete) && !conn.rate_window.total().is_zero());
        if conn.is_draining && conn.reqs.is_empty() {
            self.remove_conn(conn_id, true);
        }
        if goes_away && is_first_goaway {
            self.quirks_mut(mirror).on_server_close(responses);
        }
        if !delivered {
            self.on_failure(link, error);
        }
    }

    fn finish_if_complete(&mut self) {
        if self.phase != Phase::Finished
            && self.coverage.is_complete()
            && self.mirrors.is_verified(self.coverage.total())
        {
            self.phase = Phase::Finished;
            self.close_all();
            self.outputs.push_back(Output::Done);
        }
    }

    /// The source in use cannot give the file, or no link can: another source is asked, or the download ends.
    fn failover_or_fail(&mut self, failure: Failure) {
        if self.phase != Phase::Finished && !self.try_failover(&failure) {
            self.fail_with(failure);
        }
    }

    /// The download ends without the file.
    fn fail_with(&mut self, failure: Failure) {
        if self.phase != Phase::Finished {
            self.phase = Phase::Finished;
            self.close_all();
            // Of several sources the one that had another file counts more than those that had none.
            let mirror_failed = matches!(
                failure,
                Failure::BadStatus { .. }
                    | Failure::RetriesExhausted { .. }
                    | Failure::ProtocolViolation { .. }
                    | Failure::RedirectLoop
            );
            let failure = if mirror_failed && self.has_mismatched() { Failure::DigestMismatch } else { failure };
            self.outputs.push_back(Output::Failed(failure));
        }
    }

    fn notice(&mut self, notice: Notice) {
        self.outputs.push_back(Output::Notice(notice));
    }

    /// Everything that follows from the present state; called after each input and tick.
    fn settle(&mut self) {
        self.verify_next();
        self.finish_if_complete();
        if self.phase == Phase::Finished {
            self.timer = None;
            return;
        }
        self.timer = None;
        self.check_stalls();
        self.check_lost_response();
        self.open_connections();
        if self.is_externally_controlled() {
            self.resolve_pending();
        } else if self.config.policy == Policy::Marline {
            self.schedule();
        } else {
            self.run_thesis_policy();
        }
        self.close_standby();
        self.set_token_timer();
        self.set_stall_timer();
    }

    fn set_timer(&mut self, at: Instant, reason: TimerReason) {
        let at = at.max(self.now + MIN_TIMER);
        if self.timer.is_none_or(|(earlier, _)| at < earlier) {
            self.timer = Some((at, reason));
        }
    }
}

impl Machine for Fetch {
    type Input = Input;
    type Output = Output;
    type Reason = TimerReason;

    fn handle(&mut self, now: Instant, input: Input) {
        self.now = self.now.max(now);
        if self.phase == Phase::Finished {
            return;
        }
        match input {
            Input::LinkUp { link, profile } => self.on_link_up(link, profile),
            Input::LinkDown { link } => self.on_link_down(link),
            Input::Connected { conn, protocol, handshake_rtt: handshake, peer } => {
                self.on_connected(conn, protocol, handshake, peer)
            }
            Input::Head { req, head } => self.on_head(req, &head),
            Input::Data { req, len } => self.on_data(req, len),
            Input::End { req } => self.on_end(req),
            Input::Aborted { req, error } => self.on_aborted(req, error),
            Input::Closed { conn, error } => self.on_closed(conn, error),
            Input::Sample { conn, path } => {
                if let Some(conn) = self.conns.get_mut(&conn) {
                    conn.on_sample(self.now, path);
                }
            }
            Input::Consumed { end: upto } => self.on_consumed(upto),
            Input::Mirror { mirror: origin } => self.add_mirror(origin),
            Input::Digest { scope: proof } => self.set_digest(proof),
            Input::Verified { range, matches: good } => self.on_verified(range, good),
            Input::Share { link, share } => self.on_share(link, share),
        }
        self.settle();
    }

    fn tick(&mut self, now: Instant) {
        self.now = self.now.max(now);
        self.settle();
    }

    fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    fn deadline(&self) -> Option<(Instant, TimerReason)> {
        self.timer
    }
}

/// A deadline always lies in the future (rule 3 of the contract).
const MIN_TIMER: Duration = Duration::from_millis(1);
