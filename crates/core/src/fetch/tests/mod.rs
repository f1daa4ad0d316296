//! The machine, told what happens and asked what it does, step by step.
//!
//! [`Desk`] stands for the driver: it keeps the contract, remembers what was asked for, and lets a test say "the
//! server answers", "the bytes come", "the link dies" without repeating numbers.

mod answers;
mod first;
mod links;
mod opinions;
mod refusals;
mod servers;
mod shares;
mod sharing;
mod sources;

use alloc::collections::BTreeMap;
use alloc::string::ToString;
use alloc::vec::Vec;
use core::net::IpAddr;
use core::time::Duration;

use super::{
    Ask, Config, ConnId, ContentRange, Failure, Fetch, Head, Input, Notice, OriginId, Output, Proof, Protocol,
    ReqId, Share, Span, Trouble, TroubleKind, Validator,
};
use crate::link::{LinkId, LinkKind, LinkProfile};
use crate::machine::Machine;
use crate::units::{DataSize, Instant};

pub(super) const A: LinkId = LinkId(0);
pub(super) const B: LinkId = LinkId(1);

/// A request as the driver sees it.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) conn: ConnId,
    pub(super) ask: Ask,
    pub(super) if_range: Option<Validator>,
    pub(super) at: Option<u64>,
}

/// The driver's desk.
pub(super) struct Desk {
    pub(super) fetch: Fetch,
    pub(super) now: Instant,
    pub(super) conns: BTreeMap<ConnId, (LinkId, OriginId)>,
    /// The address at which a connection was ordered, if one was named.
    pub(super) ordered_at: BTreeMap<ConnId, IpAddr>,
    pub(super) reqs: BTreeMap<ReqId, Asked>,
    /// The connections that have come to stand.
    pub(super) stood: Vec<ConnId>,
    /// How many bytes were accepted of an answer.
    pub(super) lens: BTreeMap<ReqId, Option<DataSize>>,
    pub(super) notices: Vec<Notice>,
    pub(super) done: bool,
    pub(super) failed: Option<Failure>,
    pub(super) restarts: u32,
    /// What is to be verified.
    pub(super) verify: Vec<Span>,
    /// Bytes that came, with the place that they came from.
    pub(super) came: Vec<(OriginId, Span)>,
    pub(super) identified: Option<(Option<DataSize>, Option<Validator>)>,
}

impl Desk {
    pub(super) fn new(config: Config) -> Self {
        Self {
            fetch: Fetch::new(config),
            now: Instant::ZERO,
            conns: BTreeMap::new(),
            ordered_at: BTreeMap::new(),
            reqs: BTreeMap::new(),
            stood: Vec::new(),
            lens: BTreeMap::new(),
            notices: Vec::new(),
            done: false,
            failed: None,
            restarts: 0,
            verify: Vec::new(),
            came: Vec::new(),
            identified: None,
        }
    }

    /// Two links that are up, A and B.
    pub(super) fn two(config: Config) -> Self {
        let mut desk = Self::new(config);
        desk.link(A, LinkProfile::new("a", LinkKind::Wifi));
        desk.link(B, LinkProfile::new("b", LinkKind::Lte));
        desk
    }

    pub(super) fn link(&mut self, link: LinkId, profile: LinkProfile) {
        self.tell(Input::LinkUp { link, profile });
    }

    pub(super) fn tell(&mut self, input: Input) {
        self.fetch.handle(self.now, input);
        self.drain();
    }

    /// Lets time pass, with every deadline on the way.
    pub(super) fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some((at, _)) = self.fetch.deadline().filter(|(at, _)| *at <= end) {
            self.now = at;
            self.fetch.tick(at);
            self.drain();
            assert!(self.fetch.deadline().is_none_or(|(next, _)| next > at), "rule 3");
        }
        self.now = end;
    }

    fn drain(&mut self) {
        while let Some(output) = self.fetch.poll() {
            match output {
                Output::Connect { conn, link, origin, at } => {
                    self.conns.insert(conn, (link, origin));
                    self.ordered_at.extend(at.map(|at| (conn, at)));
                }
                Output::Request { req, conn, range, if_range } => {
                    assert!(self.conns.contains_key(&conn), "a request on a connection that is closed");
                    assert!(!matches!(range, Ask::Span(span) if span.is_empty()), "a request for no bytes");
                    self.reqs.insert(req, Asked { conn, ask: range, if_range, at: None });
                }
                Output::Accept { req, at, len, .. } => {
                    self.lens.insert(req, len);
                    self.reqs.get_mut(&req).expect("accepts what was asked for").at = Some(at);
                }
                Output::Cancel { req } => {
                    self.reqs.remove(&req);
                }
                Output::Close { conn } => {
                    self.conns.remove(&conn);
                    self.reqs.retain(|_, asked| asked.conn != conn);
                }
                Output::Identified { total, validator } => self.identified = Some((total, validator)),
                Output::Restart => {
                    self.restarts += 1;
                    self.came.clear();
                }
                Output::Verify { span } => self.verify.push(span),
                Output::Notice(notice) => self.notices.push(notice),
                Output::Done => self.done = true,
                Output::Failed(failure) => self.failed = Some(failure),
            }
        }
    }

    /// The connections of a link.
    pub(super) fn on(&self, link: LinkId) -> Vec<ConnId> {
        self.conns.iter().filter(|(_, (l, _))| *l == link).map(|(id, _)| *id).collect()
    }

    /// The newest connection of a link stands after this many milliseconds.
    pub(super) fn connect(&mut self, link: LinkId, rtt: u64) -> ConnId {
        let conn = *self.on(link).last().expect("a connection was ordered");
        self.stands(conn, Protocol::Http1, rtt, None);
        conn
    }

    /// The newest connection of a link stands: at the address that was ordered, or at this one.
    pub(super) fn connect_to(&mut self, link: LinkId, own: &str) -> ConnId {
        let conn = *self.on(link).last().expect("a connection was ordered");
        let own = own.parse().expect("an address");
        let peer = self.ordered_at.get(&conn).copied().unwrap_or(own);
        self.stands(conn, Protocol::Http1, 5, Some(peer));
        conn
    }

    /// A connection stands after this many milliseconds.
    pub(super) fn stands(&mut self, conn: ConnId, protocol: Protocol, rtt: u64, peer: Option<IpAddr>) {
        self.stood.push(conn);
        self.tell(Input::Connected { conn, protocol, handshake: Duration::from_millis(rtt), peer });
    }

    /// The requests of a link, oldest first.
    pub(super) fn asked(&self, link: LinkId) -> Vec<(ReqId, Asked)> {
        let conns = self.on(link);
        self.reqs.iter().filter(|(_, a)| conns.contains(&a.conn)).map(|(id, a)| (*id, a.clone())).collect()
    }

    pub(super) fn first(&self, link: LinkId) -> ReqId {
        self.asked(link).first().expect("a request was sent").0
    }

    /// The server answers a request with its range of a file of `total` bytes.
    pub(super) fn part(&mut self, req: ReqId, total: u64, etag: Option<&str>) {
        let asked = self.reqs.get(&req).expect("was asked").clone();
        let span = match asked.ask {
            Ask::Span(span) => span.intersect(Span::new(0, total)),
            Ask::From(start) => Span::new(start, total),
            Ask::Whole => Span::new(0, total),
        };
        let head = Head {
            status: 206,
            length: Some(span.len()),
            range: Some(ContentRange { span: Some(span), total: Some(DataSize::from_bytes(total)) }),
            validator: etag.map(|tag| Validator::Etag(tag.to_string())),
            ..Head::default()
        };
        self.tell(Input::Head { req, head });
    }

    /// The server answers with a bare status.
    pub(super) fn status(&mut self, req: ReqId, status: u16) {
        self.tell(Input::Head { req, head: Head { status, length: Some(DataSize::ZERO), ..Head::default() } });
    }

    /// The server answers with everything.
    pub(super) fn whole(&mut self, req: ReqId, length: Option<u64>, etag: Option<&str>) {
        let head = Head {
            status: 200,
            length: length.map(DataSize::from_bytes),
            validator: etag.map(|tag| Validator::Etag(tag.to_string())),
            ..Head::default()
        };
        self.tell(Input::Head { req, head });
    }

    pub(super) fn bytes(&mut self, req: ReqId, len: u64) {
        if let Some(Asked { conn, at: Some(at), .. }) = self.reqs.get_mut(&req) {
            let span = Span::new(*at, *at + len);
            *at = span.end;
            self.came.extend(self.conns.get(conn).map(|(_, origin)| (*origin, span)));
        }
        self.tell(Input::Data { req, len: DataSize::from_bytes(len) });
    }

    pub(super) fn end(&mut self, req: ReqId) {
        self.reqs.remove(&req);
        self.tell(Input::End { req });
    }

    /// Everything that a link was asked for comes at once, until it is asked for nothing more.
    pub(super) fn deliver_all(&mut self, link: LinkId, total: u64, etag: Option<&str>) {
        while let Some((req, asked)) = self.asked(link).first().cloned() {
            if asked.at.is_none() {
                self.part(req, total, etag);
            }
            let Some(Asked { ask, .. }) = self.reqs.get(&req).cloned() else { continue };
            let len = match ask {
                Ask::Span(span) => span.intersect(Span::new(0, total)).len().bytes(),
                Ask::From(start) => total - start,
                Ask::Whole => total,
            };
            self.pass(Duration::from_millis(5));
            self.bytes(req, len);
            if self.done {
                return;
            }
            self.end(req);
        }
    }

    pub(super) fn close(&mut self, conn: ConnId, kind: TroubleKind) {
        self.conns.remove(&conn);
        self.reqs.retain(|_, asked| asked.conn != conn);
        self.tell(Input::Closed { conn, trouble: Trouble { kind, text: "test".into() } });
    }
}
