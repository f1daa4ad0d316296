//! State machine of one download: fetches one resource over several links with HTTP range requests.
//!
//! It decides which byte ranges are requested on which connection, and when. Inputs are events of links, connections
//! and responses ([`Input`]). Outputs are commands to the driver (open a connection, send a request, accept a body) and
//! finally [`Output::Done`] or [`Output::Failed`]. The machine sees byte counts, never payload.
//!
//! 1. No separate probe: until the resource is identified, every new connection requests the next few bytes. This costs
//!    no extra round trip, and the second link's response confirms the first one's (`portal_check`).
//! 2. Responses are combined only if they are provably of the same file (RFC 9110 §8.8, §13.1.5); see `responses` and
//!    `version_check`.
//! 3. Each connection always has at least its bandwidth-delay product requested, so that it never idles; see
//!    `scheduler`.
//! 4. The remaining bytes are divided so that all connections finish at the same time (`water_filling`). Ranges that
//!    are late nevertheless are requested a second time, within a limit for duplicate bytes (`endgame`).
//! 5. A stalled link keeps its ranges until the other links have nothing else to request. New connections probe it,
//!    because TCP's retransmission timeout has backed off to seconds by then; see `stall`.
//! 6. A link gets more connections only while they increase its rate; see `parallelism`.
//!
//! The five policies of the multi-link HTTP thesis (see `docs/how-it-works/algorithms.md`) use the same `coverage` map and the same
//! handling of responses, with their own rules (`thesis_policies`).
//!
//! Two simpler designs were rejected. One request per link, repeated after each response, idles for a round trip per
//! request (1.33 × the ideal time at 300 Mbit/s and 30 ms). One request per link for everything cannot be cancelled
//! over HTTP/1.1 when a link turns out to be slow.

mod actions;
mod byte_range;
mod config;
mod conn;
mod coverage;
mod endgame;
mod event;
mod external_control;
mod first_request;
mod link_health;
mod link_share;
mod links;
mod metering;
mod mirrors;
mod notice;
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
pub(crate) use external_control::ConnSlot;
pub use link_share::LinkLoad;
pub use notice::{BanReason, Failure, Notice, SingleResponseReason};
pub use range_set::RangeSet;
pub(crate) use scheduler::FIRST_CHUNK;

use conn::{Conn, Req};
use coverage::Coverage;
use links::{Link, LinkState};

/// State machine of one download; see the [module documentation](self).
#[derive(Debug)]
pub struct Fetch {
    config: Config,
    now: Instant,
    links: BTreeMap<LinkId, Link>,
    conns: BTreeMap<ConnId, Conn>,
    reqs: BTreeMap<ReqId, Req>,
    coverage: Coverage,
    phase: Phase,
    /// The validator that responses of each mirror must have.
    validators: BTreeMap<UrlId, Validator>,
    mirrors: mirrors::Mirrors,
    /// Last-Modified dates that identify the version where ETags of one URL differ.
    date_validators: BTreeMap<UrlId, version_check::DateValidator>,
    /// Limits and defects that each mirror's servers have shown.
    server_quirks: BTreeMap<UrlId, server_quirks::ServerQuirks>,
    /// Form of the first request while the resource is not identified.
    initial_request: InitialRequest,
    /// A refusal was checked once by a request without a Range field.
    rechecked_without_range: bool,
    /// The initial request for `bytes=0-`; see `first_request`.
    first_request: Option<ReqId>,
    /// Responses that may come from a captive portal, held until other links have responded; see `portal_check`.
    pending_responses: Vec<portal_check::PendingResponse>,
    /// Whether links that delivered whole files of different sizes were asked for a range (rule 5 of `portal_check`).
    conflict_rechecked: bool,
    /// Size and validator that a response reported, while a single response may have to carry the whole file.
    reported_file: Option<portal_check::ReportedFile>,
    restarts: u32,
    /// The link that carries the single response, or carried the last one.
    single_response_link: Option<LinkId>,
    /// The in-order reader has consumed everything before this offset.
    consumed: u64,
    /// When body bytes last arrived on any link, or when the timeout was last restarted.
    last_data: Instant,
    /// Shares of links that a batch of downloads assigned to this one. A link without an entry may be used fully.
    shares: BTreeMap<LinkId, LinkShare>,
    /// Set if an owning machine (`stream`) chooses the ranges.
    external_control: Option<external_control::ExternalControl>,
    next_conn: u32,
    next_req: u32,
    timer: Option<(Instant, TimerReason)>,
    outputs: VecDeque<Output>,
}

/// Progress of the download.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// No usable response yet: size and validator are unknown.
    Unknown,
    /// Size and validator are known; ranges are requested on all links.
    Ranges,
    /// One response carries the whole file.
    SingleResponse {
        /// Its request; none until one is sent.
        req: Option<ReqId>,
    },
    /// Done or failed; inputs are ignored.
    Finished,
}

/// Form of the first request for a resource. A server may reject its Range field or the size of the range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum InitialRequest {
    /// A range that fills one or two round trips.
    Range,
    /// A range of a few KiB, after the larger one was refused.
    SmallRange,
}

/// Why the machine wants to be called at its deadline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimerReason {
    /// A connection is stalled if it delivers nothing by then.
    Stall,
    /// A connection may be opened again, a ban ends, or a request token becomes available.
    Retry,
    /// The wait for other links' responses ends; see `portal_check`.
    PortalCheck,
    /// Periodic review of the number of connections per link.
    ConnCount,
    /// Frequent review of stragglers while the last bytes are in flight.
    Endgame,
}

/// Progress of a download, for reports. Every figure can also be derived from the inputs and outputs.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// Size of the resource, once it is known.
    pub total: Option<DataSize>,
    /// Distinct bytes received.
    pub received: DataSize,
    /// Everything before this offset has been received.
    pub in_order_end: u64,
    /// Body bytes received in vain: duplicates, and bytes that were discarded.
    pub wasted: DataSize,
    /// Per link: bytes received, rate over the last second, status.
    pub links: Vec<(LinkId, DataSize, Bitrate, LinkStatus)>,
}

/// Status of a link, with the reason where there is one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LinkStatus {
    /// Usable, and it has connections.
    Up,
    /// Usable without connections: metered, on standby, or nothing to request.
    Idle,
    /// Nothing arrives although something was requested.
    Stalled,
    /// Out of use because of failures or wrong responses.
    Banned(BanReason),
    /// The interface is gone.
    Down,
}

impl Fetch {
    /// Creates a download that waits for its first [`Input::LinkUp`].
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

    /// Progress and the status of each link.
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
        // A budget of zero is exhausted before the first request.
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
        // ClosedLocally: the driver has dropped the redirect target that this connection used (it keeps a limited
        // number). The link starts again at its mirror's own URL.
        if let Some(link) = self.links.get_mut(&link).filter(|_| error.kind == ConnErrorKind::ClosedLocally) {
            link.forget_redirect_targets();
        }
        // HTTP servers close connections between responses, so such a close after some delivery is no failure. The same
        // holds for a bad end right behind a complete response (excess bytes, a reset).
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
        // A reset is not counted: the network causes it as often as the server does.
        if announced || error.kind == ConnErrorKind::Protocol {
            self.quirks_mut(mirror).on_server_close(responses);
        }
    }

    /// The server serves this URL over HTTP/1.1 only (RFC 9113 §7). The driver remembers that for the host, so the next
    /// connection uses HTTP/1.1.
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

    /// The response is complete by its framing. Bytes that it was expected to deliver and did not are free again.
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
            let error = ConnError { kind: ConnErrorKind::Truncated, text: "empty response".into() };
            self.on_failure(link, error);
        }
    }

    /// One response was aborted; its connection stays open.
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
        // GOAWAY: the server accepts no more requests on this connection and completes those it has. REFUSED_STREAM is
        // handled alike: the request was not processed (RFC 9113 section 8.7) and is sent again on another connection.
        let goes_away = matches!(error.kind, ConnErrorKind::CleanClose | ConnErrorKind::StreamRefused);
        let (mirror, responses, is_first_goaway) = (conn.mirror, conn.responses, !conn.is_draining);
        conn.is_draining |= goes_away;
        // One GOAWAY aborts several requests; only the first counts as a failure.
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

    /// The mirror in use, or every link, has failed: switches to another mirror, or fails the download.
    fn failover_or_fail(&mut self, failure: Failure) {
        if self.phase != Phase::Finished && !self.try_failover(&failure) {
            self.fail_with(failure);
        }
    }

    /// Ends the download without the file.
    fn fail_with(&mut self, failure: Failure) {
        if self.phase != Phase::Finished {
            self.phase = Phase::Finished;
            self.close_all();
            // If one mirror had a file with a wrong digest, report that rather than the failure of the others.
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

    /// Derives all actions from the present state. Runs after every input and tick. Mismatches and stalls come first,
    /// because they free bytes and connections that the scheduler then uses. Timers come last.
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
            Input::Consumed { end } => self.on_consumed(end),
            Input::Mirror { mirror } => self.add_mirror(mirror),
            Input::Digest { scope } => self.set_digest(scope),
            Input::Verified { range, matches: is_match } => self.on_verified(range, is_match),
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

/// Smallest delay of a timer: a deadline always lies in the future (rule 3 of the machine contract).
const MIN_TIMER: Duration = Duration::from_millis(1);
