//! Fetches one response over one link: to learn what a resource is, and to pass on resources that cannot be assembled
//! from ranges.
//!
//! The links are tried in the given order. The result is the response head; the body follows in chunks.
//!
//! 1. If a link cannot connect, or fails before the head, the next one is tried. Any HTTP response counts as success.
//!    Once the request has been sent, the server has [`FIRST_BYTE_TIMEOUT`] to respond.
//! 2. Redirects are followed as in a download: at most ten, never from https to http, and no further into local
//!    networks than the redirecting server is ([`EgressPolicy`]).
//! 3. A connection whose response is complete is kept for the next request.

use std::cell::Cell;
use std::future::poll_fn;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{AUTHORIZATION, HeaderValue};
use marline_core::fetch::{ConnError, ConnErrorKind, ReqId, RequestRange, ResponseHead};
use marline_core::units::DataSize;
use marline_download::ClientContext;
use marline_net::egress::EgressPolicy;
use marline_net::http::{Connection, Event, GetRequest, ResponseMeta, Sink};
use marline_net::links::Interface;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use url::Url;

use super::headers::UpstreamHeaders;

/// A response whose head has arrived.
pub(crate) struct SingleLinkResponse {
    network: Rc<ClientContext>,
    interface: Option<Interface>,
    connection: Option<Connection>,
    scratch: Vec<u8>,
    pub(crate) head: ResponseHead,
    pub(crate) described: ResponseMeta,
    /// The URL after all redirects.
    pub(crate) url: Url,
    /// The destinations to which this URL may connect.
    pub(crate) egress: EgressPolicy,
    /// The address of the responding server.
    server: IpAddr,
    /// Bytes of the body that were peeked at and not delivered yet.
    peeked: Bytes,
    /// Why the body ended early. It is reported after the bytes that arrived before.
    error: Option<ConnError>,
}

/// How peeking at the first bytes of a body ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PeekOutcome {
    Enough,
    /// The body has ended.
    Ended,
    Failed,
}

/// The request to send.
#[derive(Clone)]
pub(crate) struct SingleLinkRequest {
    pub(crate) url: Url,
    pub(crate) headers: UpstreamHeaders,
    /// Value of Authorization, sent to the first origin only.
    pub(crate) authorization: Option<HeaderValue>,
    pub(crate) range: RequestRange,
    /// The destinations to which the URL may lead.
    pub(crate) egress: EgressPolicy,
    /// How long each link may take until the head has arrived, including name resolution and handshakes, before the
    /// next link is tried.
    pub(crate) timeout: Duration,
    /// Whether the request was sent on a connection. From then on the delay is the server's.
    pub(crate) is_sent: Rc<Cell<bool>>,
}

impl SingleLinkResponse {
    /// Sends the request over the first link that works. `links` is `[None]` for a host on this machine. A request that
    /// was already sent stays pending while the next link is tried: the server may be slow, and a second request may
    /// not be faster.
    ///
    /// # Errors
    /// The error of the last link that was tried.
    pub(crate) async fn request(
        network: &Rc<ClientContext>,
        links: &[Option<Interface>],
        request: &SingleLinkRequest,
    ) -> Result<Self, ConnError> {
        let mut last_error = ConnError { kind: ConnErrorKind::Unreachable, text: "no link can be used".to_owned() };
        let mut forbidden = None;
        let last_deadline = Instant::now() + FIRST_BYTE_TIMEOUT.max(request.timeout);
        let mut pending = JoinSet::new();
        for (n, interface) in links.iter().enumerate() {
            let (network, interface, link_request) = (Rc::clone(network), interface.clone(), request.clone());
            let (sent, timeout) = (Rc::clone(&link_request.is_sent), link_request.timeout);
            let text = format!("{}: no response in time", link_request.url.host_str().unwrap_or_default());
            pending
                .spawn_local(async move { Self::request_over(&network, interface.as_ref(), &link_request).await });
            let is_last = n + 1 == links.len();
            let mut deadline = Instant::now() + timeout;
            loop {
                match timeout_at(deadline, pending.join_next()).await {
                    Ok(Some(Ok(Ok(response)))) => return Ok(response),
                    Ok(Some(Ok(Err(error)))) if error.is_refusal() => forbidden = Some(error),
                    Ok(Some(Ok(Err(error)))) => last_error = error,
                    Ok(Some(Err(_)) | None) => {}
                    // After the last link, a request that was sent has the rest of FIRST_BYTE_TIMEOUT.
                    Err(_) if is_last && sent.get() && deadline < last_deadline => {
                        deadline = last_deadline;
                        continue;
                    }
                    Err(_) => {
                        // A request that was not sent in time is abandoned. One that was sent stays pending beside the
                        // next link.
                        last_error = ConnError { kind: ConnErrorKind::TimedOut, text };
                        if !sent.get() {
                            pending = JoinSet::new();
                        }
                        break;
                    }
                }
                if pending.is_empty() || !is_last {
                    break;
                }
            }
        }
        Err(forbidden.unwrap_or(last_error))
    }

    async fn request_over(
        network: &Rc<ClientContext>,
        interface: Option<&Interface>,
        request: &SingleLinkRequest,
    ) -> Result<Self, ConnError> {
        let (mut url, mut egress) = (request.url.clone(), request.egress);
        for _ in 0..=MAX_REDIRECTS {
            let (response, location) =
                match Self::try_once(network, interface, request, (&url, egress), false).await {
                    // The server may have closed an idle connection just before: try once more on a new one.
                    Err(error) if matches!(error.kind, ConnErrorKind::CleanClose | ConnErrorKind::Reset) => {
                        Self::try_once(network, interface, request, (&url, egress), true).await?
                    }
                    Err(ConnError { kind: ConnErrorKind::Http1Required, .. }) => {
                        network.use_http1_for(&url, interface);
                        Self::try_once(network, interface, request, (&url, egress), true).await?
                    }
                    outcome => outcome?,
                };
            let Some(location) = location.filter(|_| (300..400).contains(&response.head.status)) else {
                return Ok(response);
            };
            let protocol_error = |text: String| ConnError { kind: ConnErrorKind::Protocol, text };
            let next = url
                .join(&location)
                .map_err(|error| protocol_error(format!("the redirect target is not a URL: {error}")))?;
            // A redirect within one host does not change where the host is located.
            if url.host() != next.host() {
                egress = egress.referred_by(response.server);
            }
            match (url.scheme(), next.scheme()) {
                ("https", "http") => {
                    return Err(protocol_error("the redirect from https to http is not followed".to_owned()));
                }
                (_, "http" | "https") => url = next,
                (_, scheme) => {
                    return Err(protocol_error(format!("the redirect to a `{scheme}` URL cannot be followed")));
                }
            }
        }
        Err(ConnError { kind: ConnErrorKind::Protocol, text: "too many redirects".to_owned() })
    }

    async fn try_once(
        network: &Rc<ClientContext>,
        interface: Option<&Interface>,
        request: &SingleLinkRequest,
        (url, egress): (&Url, EgressPolicy),
        must_dial: bool,
    ) -> Result<(Self, Option<String>), ConnError> {
        let mut connection = if must_dial {
            network.dial_new(url, interface, egress).await?
        } else {
            network.dial(url, interface, egress).await?
        };
        let server = connection.peer_addr().ip();
        let host = url.host_str().unwrap_or_default();
        let authority = url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
        let path_and_query = url.query().map_or_else(|| url.path().to_owned(), |q| format!("{}?{q}", url.path()));
        let mut headers = request.headers.headers_for(url);
        let is_same_origin = url.origin() == request.url.origin();
        headers
            .extend(request.authorization.clone().filter(|_| is_same_origin).map(|login| (AUTHORIZATION, login)));
        request.headers.cookie_jar.add_to_headers(url, &mut headers);
        connection.request(
            REQUEST_ID,
            &GetRequest { path_and_query, authority, range: request.range, if_range: None, headers },
        );
        request.is_sent.set(true);
        let mut scratch = vec![0; SCRATCH_SIZE];
        let event =
            poll_fn(|cx| connection.poll_event(cx, &mut scratch, &mut ChunkSink::default(), DataSize::ZERO)).await;
        match event {
            Event::Head { head, location, meta: described, .. } => {
                request.headers.cookie_jar.store_cookies(url, &described.set_cookies);
                let response = Self {
                    network: Rc::clone(network),
                    interface: interface.cloned(),
                    connection: Some(connection),
                    scratch,
                    head,
                    described: *described,
                    url: url.clone(),
                    egress,
                    server,
                    peeked: Bytes::new(),
                    error: None,
                };
                Ok((response, location))
            }
            Event::Aborted { error, .. } | Event::Closed { error } => Err(error),
            Event::Data { .. } | Event::End { .. } => {
                Err(ConnError { kind: ConnErrorKind::Protocol, text: "a body without a response head".to_owned() })
            }
        }
    }

    /// The destinations to which URLs in its body may lead.
    pub(crate) fn referred_egress(&self) -> EgressPolicy {
        self.egress.referred_by(self.server)
    }

    /// The next chunk of the body; `None`: it is complete.
    ///
    /// # Errors
    /// The transfer failed.
    pub(crate) async fn next_chunk(&mut self) -> Option<Result<Bytes, ConnError>> {
        if !self.peeked.is_empty() {
            return Some(Ok(std::mem::take(&mut self.peeked)));
        }
        if let Some(error) = self.error.take() {
            return Some(Err(error));
        }
        self.read_chunk().await
    }

    /// Reads bytes until `is_enough` accepts them or the body ends. They stay part of the body.
    pub(crate) async fn peek(&mut self, is_enough: &impl Fn(&[u8]) -> bool) -> PeekOutcome {
        while !is_enough(&self.peeked) {
            match self.read_chunk().await {
                Some(Ok(bytes)) => self.peeked = concat(std::mem::take(&mut self.peeked), bytes),
                Some(Err(error)) => {
                    self.error = Some(error);
                    return PeekOutcome::Failed;
                }
                None if self.error.is_some() => return PeekOutcome::Failed,
                None => return PeekOutcome::Ended,
            }
        }
        PeekOutcome::Enough
    }

    /// The bytes that [`peek`](Self::peek) has read.
    pub(crate) fn peeked(&self) -> &[u8] {
        &self.peeked
    }

    async fn read_chunk(&mut self) -> Option<Result<Bytes, ConnError>> {
        let mut sink = ChunkSink::default();
        loop {
            let connection = self.connection.as_mut()?;
            connection.accept(REQUEST_ID, None);
            let max_read = DataSize::from_bytes(SCRATCH_SIZE as u64);
            let event = poll_fn(|cx| connection.poll_event(cx, &mut self.scratch, &mut sink, max_read)).await;
            match event {
                Event::Data { .. } => {
                    if let Some(interface) = &self.interface {
                        self.network.traffic.add_received(&interface.name, sink.0.len() as u64);
                    }
                    return Some(Ok(Bytes::from(sink.0)));
                }
                Event::End { .. } => {
                    if let Some(connection) = self.connection.take().filter(|_| !self.head.closes_connection) {
                        self.network.keep_idle(&self.url, self.interface.as_ref(), connection);
                    }
                    return None;
                }
                Event::Head { .. } => {}
                Event::Aborted { error, .. } | Event::Closed { error } => {
                    self.connection = None;
                    return Some(Err(error));
                }
            }
        }
    }

    /// Reads a short body to its end, so that the connection can be reused. With a long one the connection is closed.
    pub(crate) async fn drain(mut self) {
        if self.head.length.is_some_and(|length| length <= MAX_DRAIN) {
            // The timeout handles a server that sends a head and withholds the body.
            let _ =
                tokio::time::timeout(DRAIN_TIMEOUT, async { while let Some(Ok(_)) = self.next_chunk().await {} })
                    .await;
        }
    }
}

/// Appends bytes, within the memory of the first ones if it has enough capacity.
pub(crate) fn concat(first: Bytes, next: Bytes) -> Bytes {
    if first.is_empty() {
        return next;
    }
    let mut joined_bytes = BytesMut::from(first);
    joined_bytes.extend_from_slice(&next);
    joined_bytes.freeze()
}

/// Collects the bytes of one read.
#[derive(Default)]
struct ChunkSink(Vec<u8>);

impl Sink for ChunkSink {
    fn body(&mut self, _: ReqId, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}

/// Each connection carries one request at a time.
const REQUEST_ID: ReqId = ReqId(u32::MAX);
/// Size of the read buffer of a connection.
const SCRATCH_SIZE: usize = 64 * 1024;
/// The longest body that is read to its end for the sake of reusing the connection.
const MAX_DRAIN: DataSize = DataSize::from_kib(64);
/// Our choice: an RTT of a slow link. Opening another connection costs no more.
pub(crate) const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
const MAX_REDIRECTS: u32 = 10;
/// As long as players wait for a response. An outage of all links is shorter, or deserves an error.
pub(crate) const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(60);
/// The usual [`SingleLinkRequest::timeout`]. Our choice: three times what a satellite link takes to send a request.
pub(crate) const SEND_TIMEOUT: Duration = Duration::from_secs(10);
