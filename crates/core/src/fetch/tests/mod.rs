//! Tests of the download state machine, driven step by step.
//!
//! [`TestDriver`] takes the part of the driver. It keeps the machine contract and remembers connections and requests,
//! so that a test can say "the server responds", "bytes arrive" or "the link goes down" without repeating numbers.

mod captive_portal;
mod first_request;
mod link_shares;
mod links;
mod mirrors;
mod portal_check;
mod range_responses;
mod redirects;
mod refusals;
mod responses;
mod scheduling;
mod server_quirks;
mod servers;
mod single_response;
mod version_check;

use alloc::collections::BTreeMap;
use alloc::string::ToString;
use alloc::vec::Vec;
use core::net::IpAddr;
use core::time::Duration;

use super::{
    ByteRange, Config, ConnError, ConnErrorKind, ConnId, ContentRange, DigestScope, Failure, Fetch, Input,
    LinkShare, Notice, Output, Protocol, ReqId, RequestRange, ResponseHead, UrlId, Validator,
};
use crate::link::{LinkId, LinkKind, LinkProfile};
use crate::machine::Machine;
use crate::units::{DataSize, Instant};

pub(super) const A: LinkId = LinkId(0);
pub(super) const B: LinkId = LinkId(1);

/// A request that the machine has sent.
#[derive(Clone, Debug)]
pub(super) struct SentRequest {
    pub(super) conn: ConnId,
    pub(super) range: RequestRange,
    pub(super) if_range: Option<Validator>,
    /// Offset in the file of the next byte of the accepted body; none: no body was accepted yet.
    pub(super) next_offset: Option<u64>,
}

/// Executes the machine's outputs in memory; see the [module documentation](self).
pub(super) struct TestDriver {
    pub(super) fetch: Fetch,
    pub(super) now: Instant,
    /// The open connections, also those that are not established yet, with their link and URL.
    pub(super) conns: BTreeMap<ConnId, (LinkId, UrlId)>,
    /// The server address that the machine chose for a connection, if it did.
    pub(super) conn_addresses: BTreeMap<ConnId, IpAddr>,
    pub(super) reqs: BTreeMap<ReqId, SentRequest>,
    /// Connections that are established.
    pub(super) connected: Vec<ConnId>,
    /// How many bytes of a response were accepted; none: until it ends.
    pub(super) accepted_lens: BTreeMap<ReqId, Option<DataSize>>,
    pub(super) notices: Vec<Notice>,
    pub(super) done: bool,
    pub(super) failed: Option<Failure>,
    pub(super) restarts: u32,
    pub(super) verify: Vec<ByteRange>,
    /// Received bytes with the mirror that delivered them.
    pub(super) received: Vec<(UrlId, ByteRange)>,
    pub(super) identified: Option<(Option<DataSize>, Option<Validator>)>,
}

impl TestDriver {
    pub(super) fn new(config: Config) -> Self {
        Self {
            fetch: Fetch::new(config),
            now: Instant::ZERO,
            conns: BTreeMap::new(),
            conn_addresses: BTreeMap::new(),
            reqs: BTreeMap::new(),
            connected: Vec::new(),
            accepted_lens: BTreeMap::new(),
            notices: Vec::new(),
            done: false,
            failed: None,
            restarts: 0,
            verify: Vec::new(),
            received: Vec::new(),
            identified: None,
        }
    }

    /// A driver with the link A, which is up.
    pub(super) fn with_one_link(config: Config) -> Self {
        let mut driver = Self::new(config);
        driver.link_up(A, LinkProfile::new("a", LinkKind::Wifi));
        driver
    }

    /// A driver with two links that are up, A and B.
    pub(super) fn with_two_links(config: Config) -> Self {
        let mut driver = Self::with_one_link(config);
        driver.link_up(B, LinkProfile::new("b", LinkKind::Lte));
        driver
    }

    pub(super) fn link_up(&mut self, link: LinkId, profile: LinkProfile) {
        self.handle(Input::LinkUp { link, profile });
    }

    pub(super) fn handle(&mut self, input: Input) {
        self.fetch.handle(self.now, input);
        self.drain();
    }

    /// Lets time pass and calls `tick` at every deadline on the way.
    pub(super) fn advance(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some((at, _)) = self.fetch.deadline().filter(|(at, _)| *at <= end) {
            self.now = at;
            self.fetch.tick(at);
            self.drain();
            assert!(self.fetch.deadline().is_none_or(|(next, _)| next > at), "rule 3 of the machine contract");
        }
        self.now = end;
    }

    fn drain(&mut self) {
        while let Some(output) = self.fetch.poll() {
            match output {
                Output::Connect { conn, link, url, address: at } => {
                    self.conns.insert(conn, (link, url));
                    self.conn_addresses.extend(at.map(|at| (conn, at)));
                }
                Output::Request { req, conn, range, if_range } => {
                    assert!(self.conns.contains_key(&conn), "a request on a closed connection");
                    assert!(
                        !matches!(range, RequestRange::Bounded(range) if range.is_empty()),
                        "a request for an empty range"
                    );
                    self.reqs.insert(req, SentRequest { conn, range, if_range, next_offset: None });
                }
                Output::AcceptBody { req, offset: at, len, .. } => {
                    self.accepted_lens.insert(req, len);
                    self.reqs.get_mut(&req).expect("the request exists").next_offset = Some(at);
                }
                Output::Cancel { req } => {
                    self.reqs.remove(&req);
                }
                Output::Close { conn } => {
                    self.conns.remove(&conn);
                    self.reqs.retain(|_, request| request.conn != conn);
                }
                Output::Identified { total, validator } => self.identified = Some((total, validator)),
                Output::Restart => {
                    self.restarts += 1;
                    self.received.clear();
                }
                Output::Verify { range } => self.verify.push(range),
                Output::Notice(notice) => self.notices.push(notice),
                Output::Done => self.done = true,
                Output::Failed(failure) => self.failed = Some(failure),
            }
        }
    }

    /// The connections of a link, oldest first.
    pub(super) fn conns_on(&self, link: LinkId) -> Vec<ConnId> {
        self.conns.iter().filter(|(_, (l, _))| *l == link).map(|(id, _)| *id).collect()
    }

    /// Establishes the newest connection of a link; its handshake took `rtt` milliseconds.
    pub(super) fn connect_newest(&mut self, link: LinkId, rtt: u64) -> ConnId {
        let conn = *self.conns_on(link).last().expect("a connection was opened");
        self.on_connected(conn, Protocol::Http1, rtt, None);
        conn
    }

    /// Establishes the newest connection of a link, at the address that the machine chose or else at `address`.
    pub(super) fn connect_to(&mut self, link: LinkId, address: &str) -> ConnId {
        let conn = *self.conns_on(link).last().expect("a connection was opened");
        let address = address.parse().expect("an address");
        let peer = self.conn_addresses.get(&conn).copied().unwrap_or(address);
        self.on_connected(conn, Protocol::Http1, 5, Some(peer));
        conn
    }

    /// Establishes a connection; its handshake took `rtt` milliseconds.
    pub(super) fn on_connected(&mut self, conn: ConnId, protocol: Protocol, rtt: u64, peer: Option<IpAddr>) {
        self.connected.push(conn);
        self.handle(Input::Connected { conn, protocol, handshake_rtt: Duration::from_millis(rtt), peer });
    }

    /// The requests of a link, oldest first.
    pub(super) fn requests_on(&self, link: LinkId) -> Vec<(ReqId, SentRequest)> {
        let conns = self.conns_on(link);
        self.reqs.iter().filter(|(_, a)| conns.contains(&a.conn)).map(|(id, a)| (*id, a.clone())).collect()
    }

    pub(super) fn first_request(&self, link: LinkId) -> ReqId {
        self.requests_on(link).first().expect("a request was sent").0
    }

    /// Responds with the requested range of a file of `total` bytes.
    pub(super) fn respond_partial(&mut self, req: ReqId, total: u64, etag: Option<&str>) {
        let request = self.reqs.get(&req).expect("the request exists").clone();
        let range = match request.range {
            RequestRange::Bounded(range) => range.intersect(ByteRange::new(0, total)),
            RequestRange::From(start) => ByteRange::new(start, total),
            RequestRange::Full => ByteRange::new(0, total),
        };
        let head = ResponseHead {
            status: 206,
            length: Some(range.len()),
            range: Some(ContentRange { range: Some(range), total: Some(DataSize::from_bytes(total)) }),
            validator: etag.map(|tag| Validator::Etag(tag.to_string())),
            ..ResponseHead::default()
        };
        self.handle(Input::Head { req, head });
    }

    /// Responds with a status and an empty body.
    pub(super) fn respond_status(&mut self, req: ReqId, status: u16) {
        self.handle(Input::Head {
            req,
            head: ResponseHead { status, length: Some(DataSize::ZERO), ..ResponseHead::default() },
        });
    }

    /// Responds with the whole file (200).
    pub(super) fn respond_full(&mut self, req: ReqId, length: Option<u64>, etag: Option<&str>) {
        let head = ResponseHead {
            status: 200,
            length: length.map(DataSize::from_bytes),
            validator: etag.map(|tag| Validator::Etag(tag.to_string())),
            ..ResponseHead::default()
        };
        self.handle(Input::Head { req, head });
    }

    /// The next `len` bytes of the body arrive; all of them at the present time.
    pub(super) fn deliver(&mut self, req: ReqId, len: u64) {
        if let Some(SentRequest { conn, next_offset: Some(at), .. }) = self.reqs.get_mut(&req) {
            let range = ByteRange::new(*at, *at + len);
            *at = range.end;
            self.received.extend(self.conns.get(conn).map(|(_, url)| (*url, range)));
        }
        self.handle(Input::Data { req, len: DataSize::from_bytes(len) });
    }

    pub(super) fn end_response(&mut self, req: ReqId) {
        self.reqs.remove(&req);
        self.handle(Input::End { req });
    }

    /// Serves all requests of a link, one after another, until there are no more.
    pub(super) fn deliver_all(&mut self, link: LinkId, total: u64, etag: Option<&str>) {
        while let Some((req, request)) = self.requests_on(link).first().cloned() {
            if request.next_offset.is_none() {
                self.respond_partial(req, total, etag);
            }
            let Some(SentRequest { range: requested, .. }) = self.reqs.get(&req).cloned() else { continue };
            let len = match requested {
                RequestRange::Bounded(range) => range.intersect(ByteRange::new(0, total)).len().bytes(),
                RequestRange::From(start) => total - start,
                RequestRange::Full => total,
            };
            self.advance(Duration::from_millis(5));
            self.deliver(req, len);
            if self.done {
                return;
            }
            self.end_response(req);
        }
    }

    /// The connection is closed from outside, by this error, and its requests end with it.
    pub(super) fn close_conn(&mut self, conn: ConnId, kind: ConnErrorKind) {
        self.conns.remove(&conn);
        self.reqs.retain(|_, request| request.conn != conn);
        self.handle(Input::Closed { conn, error: ConnError { kind, text: "test".into() } });
    }
}
