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
//! The machine is composed of components, each with its state and methods in its own file:
//!
//! | component | state |
//! |---|---|
//! | `Transfers` | links, connections and requests, and the commands that begin and end them |
//! | `Links` | which links may be used: cost, budget, shares, standby |
//! | `Coverage` | received and claimed bytes |
//! | `Resource` | what is known of the file: phase, `Validators`, responses held by the portal check |
//! | `QuirksByMirror` | limits and defects of servers |
//! | `Reader` | position and window of the in-order reader |
//! | `Mirrors` | the URLs, and the `Verification` of their bytes |
//!
//! The rules are functions over these components, one subject in each module. [`Fetch`] combines them: here it
//! dispatches events, in `responses` it judges response heads, and in `failures` it chooses the remedy for a failure.
//!
//! Two simpler designs were rejected. One request per link, repeated after each response, idles for a round trip per
//! request (1.33 × the ideal time at 300 Mbit/s and 30 ms). One request per link for everything cannot be cancelled
//! over HTTP/1.1 when a link turns out to be slow.

mod byte_range;
mod config;
mod conn;
mod coverage;
mod endgame;
mod event;
mod external_control;
mod failures;
mod first_request;
mod forecast;
mod http;
mod link;
mod link_health;
mod link_share;
mod links;
mod metering;
mod mirrors;
mod notice;
mod parallelism;
mod pending_responses;
mod portal_check;
mod range_response;
mod range_set;
mod reader;
mod redirects;
mod refusals;
mod resource;
mod responses;
mod scheduler;
mod server_delay;
mod server_quirks;
mod single_response;
mod stall;
mod status;
#[cfg(test)]
mod tests;
mod thesis_policies;
mod thesis_sizing;
mod token_bucket;
mod transfers;
mod validators;
mod version_check;
mod water_filling;

use alloc::vec::Vec;
use core::net::IpAddr;
use core::time::Duration;

use crate::link::{LinkId, LinkProfile};
use crate::machine::Machine;
use crate::units::{DataSize, Instant};

pub use byte_range::ByteRange;
pub use config::{
    Config, DigestScope, INITIAL_BAN, MeteredUse, Policy, Resume, SlowLinkRule, ThesisParams, UnknownPolicy,
};
pub(crate) use conn::FIRST_CHUNK;
pub use event::{Input, LinkShare, Output, TimerReason};
pub(crate) use external_control::ConnSlot;
pub use http::{
    ConnError, ConnErrorKind, ConnId, ContentRange, PathSample, Protocol, ReqId, RequestRange, ResponseHead, UrlId,
    Validator,
};
pub use link_share::LinkLoad;
pub use notice::{BanReason, Failure, Notice, SingleResponseReason};
pub use range_set::RangeSet;
pub use status::{LinkStatus, Status};

use link::LinkState;
use mirrors::Mirrors;
use transfers::Transfers;

/// State machine of one download; see the [module documentation](self).
#[derive(Debug)]
pub struct Fetch {
    /// Links, connections, requests, received bytes, and what is known of the resource.
    transfers: Transfers,
    /// The URLs that claim to have the file.
    mirrors: Mirrors,
}

impl Fetch {
    /// Creates a download that waits for its first [`Input::LinkUp`].
    pub fn new(config: Config) -> Self {
        Self { mirrors: Mirrors::new(&config), transfers: Transfers::new(config) }
    }

    /// Creates a download that requests no ranges by itself once the resource is identified.
    pub(crate) fn with_external_control(config: Config) -> Self {
        let mut fetch = Self::new(config);
        fetch.transfers.add_owner();
        fetch
    }

    /// The state of links, connections and requests, for an owning machine (`external_control`).
    pub(crate) fn transfers(&self) -> &Transfers {
        &self.transfers
    }

    /// Commands of an owning machine (`external_control`).
    pub(crate) fn transfers_mut(&mut self) -> &mut Transfers {
        &mut self.transfers
    }

    /// The download's use of each link, for the batch scheduler.
    pub fn link_loads(&self) -> Vec<LinkLoad> {
        link_share::link_loads(&self.transfers)
    }

    /// Progress and the status of each link.
    pub fn status(&self) -> Status {
        Status::of(&self.transfers)
    }

    fn on_link_up(&mut self, id: LinkId, profile: LinkProfile) {
        let mirror = self.mirrors.initial_for(id);
        let link = self.transfers.links.add(id, profile, mirror);
        link.failures = 0;
        link.next_attempt = self.transfers.now;
        if matches!(link.state, LinkState::Down | LinkState::Stalled { .. }) {
            link.state = LinkState::Up;
        }
        // A budget of zero is exhausted before the first request.
        self.check_budget(id);
    }

    fn on_link_down(&mut self, id: LinkId) {
        let Some(link) = self.transfers.links.get_mut(&id) else { return };
        link.state = LinkState::Down;
        link.forget_redirect_targets();
        for conn in core::mem::take(&mut link.conns) {
            self.transfers.remove_conn(conn, true);
        }
    }

    fn on_connected(&mut self, id: ConnId, protocol: Protocol, handshake: Duration, peer: Option<IpAddr>) {
        if self.transfers.on_connected(id, protocol, handshake, peer) {
            stall::on_probe_connected(&mut self.transfers, id);
        }
    }

    fn on_closed(&mut self, id: ConnId, error: ConnError) {
        let Some(conn) = self.transfers.conns.get(&id) else { return };
        let (link, mirror, responses) = (conn.link, conn.mirror, conn.responses);
        if error.kind == ConnErrorKind::Http1Required {
            return self.retry_over_http1(id, false);
        }
        // ClosedLocally: the driver has dropped the redirect target that this connection used (it keeps a limited
        // number). The link starts again at its mirror's own URL.
        if let Some(link) =
            self.transfers.links.get_mut(&link).filter(|_| error.kind == ConnErrorKind::ClosedLocally)
        {
            link.forget_redirect_targets();
        }
        // HTTP servers close connections between responses, so such a close after some delivery is no failure. The same
        // holds for a bad end right behind a complete response (excess bytes, a reset).
        let front_request = conn.reqs.front().copied();
        let front = conn.reqs.front().and_then(|req| self.transfers.reqs.get(req));
        let between_responses = front.is_none_or(|req| !req.is_accepted || req.remaining().is_empty());
        let announced = conn.is_draining || error.kind == ConnErrorKind::CleanClose;
        let is_abnormal_end =
            matches!(error.kind, ConnErrorKind::Protocol | ConnErrorKind::Reset | ConnErrorKind::Truncated);
        let delivered =
            (announced || (between_responses && is_abnormal_end)) && !conn.rate_window.total().is_zero();
        if let Some(req) = front_request {
            refusals::note_failed_initial_request(&mut self.transfers, req, link);
        }
        self.note_truncated_range(id);
        self.transfers.remove_conn(id, false);
        if !delivered {
            return self.on_failure(link, error);
        }
        // A reset is not counted: the network causes it as often as the server does.
        if announced || error.kind == ConnErrorKind::Protocol {
            self.transfers.quirks.of_mut(mirror).on_server_close(responses);
        }
    }

    /// The server serves this URL over HTTP/1.1 only (RFC 9113 §7). The driver remembers that for the host, so the next
    /// connection uses HTTP/1.1.
    fn retry_over_http1(&mut self, id: ConnId, notify_driver: bool) {
        let link = self.transfers.conns.get(&id).map(|conn| conn.link);
        self.transfers.remove_conn(id, notify_driver);
        if let Some(link) = link.and_then(|link| self.transfers.links.get_mut(&link)) {
            link.next_attempt = self.transfers.now;
        }
    }

    fn on_data(&mut self, id: ReqId, len: DataSize) {
        let Some((range, id)) = self.transfers.on_data(id, len) else { return };
        let Some(conn) = self.transfers.conns.get(&id) else { return };
        let (link, mirror) = (conn.link, conn.mirror);
        self.mirrors.on_delivered(mirror, range);
        self.on_link_data(link, id, len);
        self.finish_if_complete();
    }

    /// The response is complete by its framing. Bytes that it was expected to deliver and did not are free again.
    fn on_end(&mut self, id: ReqId) {
        let Some(req) = self.transfers.reqs.get(&id) else { return };
        let (conn, is_short, is_empty) =
            (req.conn, !req.remaining().is_empty(), req.next_offset == req.range.start);
        let end = DataSize::from_bytes(req.next_offset);
        if self.transfers.resource.single_response() == Some(id) && self.transfers.coverage.total().is_none() {
            self.transfers.record_total(end);
        }
        if let Some(conn) = self.transfers.conns.get(&conn) {
            self.transfers.quirks.of_mut(conn.mirror).on_complete_response();
        }
        self.transfers.remove_req(id);
        if is_short {
            self.transfers.rebuild_claims();
        }
        self.finish_if_complete();
        let Some(link) = self.transfers.on_response_complete(conn) else { return };
        if is_short && is_empty {
            let error = ConnError { kind: ConnErrorKind::Truncated, text: "empty response".into() };
            self.on_failure(link, error);
        }
    }

    /// One response was aborted; its connection stays open.
    fn on_aborted(&mut self, id: ReqId, error: ConnError) {
        let Some(req) = self.transfers.reqs.get(&id) else { return };
        let (conn_id, complete) = (req.conn, req.is_accepted && req.remaining().is_empty());
        if error.kind == ConnErrorKind::Http1Required {
            return self.retry_over_http1(conn_id, true);
        }
        if let Some(link) = self.transfers.request_link(id) {
            refusals::note_failed_initial_request(&mut self.transfers, id, link);
        }
        self.note_truncated_range(conn_id);
        self.transfers.remove_req(id);
        self.transfers.rebuild_claims();
        let Some(conn) = self.transfers.conns.get(&conn_id) else { return };
        let link = conn.link;
        // GOAWAY: the server accepts no more requests on this connection and completes those it has. REFUSED_STREAM is
        // handled alike: the request was not processed (RFC 9113 section 8.7) and is sent again on another connection.
        let is_closing = matches!(error.kind, ConnErrorKind::CleanClose | ConnErrorKind::StreamRefused);
        let (mirror, responses, is_first_goaway) = (conn.mirror, conn.responses, !conn.is_draining);
        // One GOAWAY aborts several requests; only the first counts as a failure.
        let delivered =
            (is_closing && !is_first_goaway) || ((is_closing || complete) && !conn.rate_window.total().is_zero());
        if is_closing {
            self.transfers.mark_draining(conn_id);
        }
        self.transfers.close_if_drained(conn_id);
        if is_closing && is_first_goaway {
            self.transfers.quirks.of_mut(mirror).on_server_close(responses);
        }
        if !delivered {
            self.on_failure(link, error);
        }
    }

    fn finish_if_complete(&mut self) {
        let coverage = &self.transfers.coverage;
        if coverage.is_complete() && self.mirrors.is_verified(coverage.total()) {
            self.transfers.finish(Output::Done);
        }
    }

    /// Derives all actions from the present state. Runs after every input and tick. Mismatches and stalls come first,
    /// because they free bytes and connections that the scheduler then uses. Timers come last.
    fn settle(&mut self) {
        self.mirrors.verify_next(&mut self.transfers);
        self.finish_if_complete();
        self.transfers.clear_timer();
        if self.transfers.is_finished() {
            return;
        }
        self.check_stalls();
        self.check_lost_response();
        link_health::open_connections(&mut self.transfers);
        let is_externally_controlled = self.transfers.is_externally_controlled();
        self.resolve_pending();
        let transfers = &mut self.transfers;
        if is_externally_controlled {
            // The owner sends the requests.
        } else if transfers.config.policy == Policy::Marline {
            scheduler::schedule(transfers);
        } else {
            thesis_policies::run_thesis_policy(transfers);
        }
        transfers.close_standby();
        transfers.set_token_timer();
        stall::set_stall_timer(transfers);
    }
}

impl Machine for Fetch {
    type Input = Input;
    type Output = Output;
    type Reason = TimerReason;

    fn handle(&mut self, now: Instant, input: Input) {
        self.transfers.advance_time(now);
        if self.transfers.is_finished() {
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
            Input::Sample { conn, path } => self.transfers.on_sample(conn, path),
            Input::Consumed { end } => stall::on_consumed(&mut self.transfers, end),
            Input::Mirror { mirror } => self.mirrors.add_mirror(mirror),
            Input::Digest { scope } => self.mirrors.set_digest(&self.transfers, scope),
            Input::Verified { range, matches: is_match } => {
                if !self.mirrors.on_verified(&mut self.transfers, range, is_match) {
                    self.fail_with(Failure::DigestMismatch);
                }
            }
            Input::Share { link, share } => link_share::on_share(&mut self.transfers, link, share),
        }
        self.settle();
    }

    fn tick(&mut self, now: Instant) {
        self.transfers.advance_time(now);
        self.settle();
    }

    fn poll(&mut self) -> Option<Output> {
        self.transfers.poll_output()
    }

    fn deadline(&self) -> Option<(Instant, TimerReason)> {
        self.transfers.deadline()
    }
}
