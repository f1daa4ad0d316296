//! One answer over one link: to learn what a resource is, and to pass on what cannot be put together from parts.
//!
//! In: a URL, the bytes to ask for, the links in the order in which to try them. Out: the head, and the body piece by
//! piece.
//!
//! 1. A link that cannot connect, or breaks before the head, is followed by the next one; an answer is an answer. Once the request
//!    has left, it is the server that is waited for, for [`FIRST_BYTE`].
//! 2. Redirects are followed as a download follows them: at most ten, never from https to http, and no further into local networks
//!    than the server that redirects is ([`Right`]).
//! 3. A connection whose answer is complete stays with the network for whoever asks next.

use std::cell::Cell;
use std::future::poll_fn;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{AUTHORIZATION, HeaderValue};
use marline_core::fetch::{ConnError, ConnErrorKind, ReqId, RequestRange, ResponseHead};
use marline_core::units::DataSize;
use marline_download::Network;
use marline_net::http::{Connection, Described, Event, Get, Sink};
use marline_net::links::Interface;
use marline_net::reach::Right;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use url::Url;

use super::fields::Sent;

/// An answer whose head has come.
pub(super) struct Single {
    network: Rc<Network>,
    interface: Option<Interface>,
    connection: Option<Connection>,
    scratch: Vec<u8>,
    pub(super) head: ResponseHead,
    pub(super) described: Described,
    /// Where it came from, behind all redirects.
    pub(super) url: Url,
    /// What this URL may be connected to.
    pub(super) right: Right,
    /// The server that answers.
    server: IpAddr,
    /// Bytes of the body that were looked at, and not taken yet.
    first: Bytes,
    /// Why no more come; it is reported behind the first bytes.
    broken: Option<ConnError>,
}

/// How looking at the first bytes of a body has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Peeked {
    Enough,
    /// The body has ended.
    Ended,
    Broken,
}

/// What is asked.
#[derive(Clone)]
pub(super) struct Question {
    pub(super) url: Url,
    pub(super) fields: Sent,
    /// A value for Authorization; it goes to the first host only.
    pub(super) login: Option<HeaderValue>,
    pub(super) ask: RequestRange,
    /// What the URL may lead to.
    pub(super) right: Right,
    /// How long each link has until the request has left or the head has come, names and handshakes included.
    pub(super) patience: Duration,
    /// Whether the request has left on a connection: from then on it is the server that waits.
    pub(super) sent: Rc<Cell<bool>>,
}

impl Single {
    /// Asks over the first link that works; `links` has none for a host on this machine. A link on which the request has left stays
    /// in use beside the next one: the server may be slow, and another request to it no faster.
    ///
    /// # Errors
    /// The last link's trouble.
    pub(super) async fn ask(
        network: &Rc<Network>,
        links: &[Option<Interface>],
        question: &Question,
    ) -> Result<Self, ConnError> {
        let mut last = ConnError { kind: ConnErrorKind::Unreachable, text: "no link can be used".to_owned() };
        let mut forbidden = None;
        let longest = Instant::now() + FIRST_BYTE.max(question.patience);
        let mut under_way = JoinSet::new();
        for (n, interface) in links.iter().enumerate() {
            let (network, interface, question) = (Rc::clone(network), interface.clone(), question.clone());
            let (sent, patience) = (Rc::clone(&question.sent), question.patience);
            let text = format!("{}: no answer in time", question.url.host_str().unwrap_or_default());
            under_way.spawn_local(async move { Self::ask_over(&network, interface.as_ref(), &question).await });
            let is_last = n + 1 == links.len();
            let mut until = Instant::now() + patience;
            loop {
                match timeout_at(until, under_way.join_next()).await {
                    Ok(Some(Ok(Ok(single)))) => return Ok(single),
                    Ok(Some(Ok(Err(trouble)))) if trouble.is_refusal() => forbidden = Some(trouble),
                    Ok(Some(Ok(Err(trouble)))) => last = trouble,
                    Ok(Some(Err(_)) | None) => {}
                    Err(_) if is_last && sent.get() && until < longest => {
                        until = longest;
                        continue;
                    }
                    Err(_) => {
                        last = ConnError { kind: ConnErrorKind::TimedOut, text };
                        if !sent.get() {
                            under_way = JoinSet::new();
                        }
                        break;
                    }
                }
                if under_way.is_empty() || !is_last {
                    break;
                }
            }
        }
        Err(forbidden.unwrap_or(last))
    }

    async fn ask_over(
        network: &Rc<Network>,
        interface: Option<&Interface>,
        question: &Question,
    ) -> Result<Self, ConnError> {
        let (mut url, mut right) = (question.url.clone(), question.right);
        for _ in 0..=MOST_REDIRECTS {
            let (single, location) = match Self::once(network, interface, question, (&url, right), false).await {
                // An idle connection may have been closed the moment before: once more, on a new one.
                Err(trouble) if matches!(trouble.kind, ConnErrorKind::CleanClose | ConnErrorKind::Reset) => {
                    Self::once(network, interface, question, (&url, right), true).await?
                }
                Err(ConnError { kind: ConnErrorKind::Http1Required, .. }) => {
                    network.leave_http2(&url, interface);
                    Self::once(network, interface, question, (&url, right), true).await?
                }
                asked => asked?,
            };
            let Some(location) = location.filter(|_| (300..400).contains(&single.head.status)) else {
                return Ok(single);
            };
            let bad = |text: String| ConnError { kind: ConnErrorKind::Protocol, text };
            let next = url.join(&location).map_err(|why| bad(format!("the redirect is no URL: {why}")))?;
            // Within one host a redirect says nothing new of where it is.
            if url.host() != next.host() {
                right = right.led_by(single.server);
            }
            match (url.scheme(), next.scheme()) {
                ("https", "http") => return Err(bad("the redirect from https to http is not followed".to_owned())),
                (_, "http" | "https") => url = next,
                (_, other) => return Err(bad(format!("the redirect to a `{other}` URL cannot be followed"))),
            }
        }
        Err(ConnError { kind: ConnErrorKind::Protocol, text: "redirects without end".to_owned() })
    }

    async fn once(
        network: &Rc<Network>,
        interface: Option<&Interface>,
        question: &Question,
        (url, right): (&Url, Right),
        fresh: bool,
    ) -> Result<(Self, Option<String>), ConnError> {
        let mut connection = if fresh {
            network.dial_anew(url, interface, right).await?
        } else {
            network.dial(url, interface, right).await?
        };
        let server = connection.peer_addr().ip();
        let host = url.host_str().unwrap_or_default();
        let authority = url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
        let path_and_query = url.query().map_or_else(|| url.path().to_owned(), |q| format!("{}?{q}", url.path()));
        let mut headers = question.fields.fields_to(url);
        let same = url.origin() == question.url.origin();
        headers.extend(question.login.clone().filter(|_| same).map(|login| (AUTHORIZATION, login)));
        question.fields.jar.add_to(url, &mut headers);
        connection.request(REQ, &Get { path_and_query, authority, ask: question.ask, if_range: None, headers });
        question.sent.set(true);
        let mut scratch = vec![0; SCRATCH];
        let event =
            poll_fn(|cx| connection.poll_event(cx, &mut scratch, &mut Gathered::default(), DataSize::ZERO)).await;
        match event {
            Event::Head { head, location, described, .. } => {
                question.fields.jar.take(url, &described.cookies);
                let single = Self {
                    network: Rc::clone(network),
                    interface: interface.cloned(),
                    connection: Some(connection),
                    scratch,
                    head,
                    described: *described,
                    url: url.clone(),
                    right,
                    server,
                    first: Bytes::new(),
                    broken: None,
                };
                Ok((single, location))
            }
            Event::Aborted { trouble, .. } | Event::Closed { trouble } => Err(trouble),
            Event::Data { .. } | Event::End { .. } => {
                Err(ConnError { kind: ConnErrorKind::Protocol, text: "an answer without a head".to_owned() })
            }
        }
    }

    /// What the addresses in its body may lead to.
    pub(super) fn leads(&self) -> Right {
        self.right.led_by(self.server)
    }

    /// The next piece of the body; none: it is complete.
    ///
    /// # Errors
    /// It broke off.
    pub(super) async fn next(&mut self) -> Option<Result<Bytes, ConnError>> {
        if !self.first.is_empty() {
            return Some(Ok(std::mem::take(&mut self.first)));
        }
        if let Some(trouble) = self.broken.take() {
            return Some(Err(trouble));
        }
        self.read().await
    }

    /// Takes bytes in until there are enough of them, or the end; they stay.
    pub(super) async fn peek(&mut self, is_enough: &impl Fn(&[u8]) -> bool) -> Peeked {
        while !is_enough(&self.first) {
            match self.read().await {
                Some(Ok(bytes)) => self.first = joined(std::mem::take(&mut self.first), bytes),
                Some(Err(trouble)) => {
                    self.broken = Some(trouble);
                    return Peeked::Broken;
                }
                None if self.broken.is_some() => return Peeked::Broken,
                None => return Peeked::Ended,
            }
        }
        Peeked::Enough
    }

    /// The bytes that have been taken in.
    pub(super) fn peeked(&self) -> &[u8] {
        &self.first
    }

    async fn read(&mut self) -> Option<Result<Bytes, ConnError>> {
        let mut gathered = Gathered::default();
        loop {
            let connection = self.connection.as_mut()?;
            connection.accept(REQ, None);
            let most = DataSize::from_bytes(SCRATCH as u64);
            let event = poll_fn(|cx| connection.poll_event(cx, &mut self.scratch, &mut gathered, most)).await;
            match event {
                Event::Data { .. } => {
                    if let Some(interface) = &self.interface {
                        self.network.traffic.received(&interface.name, gathered.0.len() as u64);
                    }
                    return Some(Ok(Bytes::from(gathered.0)));
                }
                Event::End { .. } => {
                    if let Some(connection) = self.connection.take().filter(|_| !self.head.closes_connection) {
                        self.network.keep(&self.url, self.interface.as_ref(), connection);
                    }
                    return None;
                }
                Event::Head { .. } => {}
                Event::Aborted { trouble, .. } | Event::Closed { trouble } => {
                    self.connection = None;
                    return Some(Err(trouble));
                }
            }
        }
    }

    /// Reads a short body to its end, so that the connection can be used again; a long one is dropped with it.
    pub(super) async fn drain(mut self) {
        if self.head.length.is_some_and(|length| length <= SHORT) {
            // Nobody waits for a server that sends a head and keeps its body.
            let _ = tokio::time::timeout(DRAINS, async { while let Some(Ok(_)) = self.next().await {} }).await;
        }
    }
}

/// Bytes with more behind them, in the memory of the first ones if there is room.
pub(super) fn joined(first: Bytes, more: Bytes) -> Bytes {
    if first.is_empty() {
        return more;
    }
    let mut all = BytesMut::from(first);
    all.extend_from_slice(&more);
    all.freeze()
}

/// Bytes of one turn.
#[derive(Default)]
struct Gathered(Vec<u8>);

impl Sink for Gathered {
    fn body(&mut self, _: ReqId, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}

/// The one request of a connection at a time.
const REQ: ReqId = ReqId(u32::MAX);
const SCRATCH: usize = 64 * 1024;
const SHORT: DataSize = DataSize::from_kib(64);
/// chosen: a round trip of a slow link; a connection costs no more.
pub(super) const DRAINS: Duration = Duration::from_secs(1);
const MOST_REDIRECTS: u32 = 10;
/// As long as players wait for an answer; an outage of all links is shorter, or worth a message.
pub(super) const FIRST_BYTE: Duration = Duration::from_secs(60);
/// For a request to leave over a link. chosen: three times what a satellite link takes.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
