//! An HTTP/2 connection (RFC 9113). The h2 crate implements the protocol; the caller polls it.
//!
//! 1. The flow-control windows are as large as the bandwidth-delay product of a fast link ([`Http2Windows`]). Credit
//!    is returned as bytes reach the sink. So flow control does not slow a link down, and a reader that stops is
//!    noticed by the server.
//! 2. Received data is delivered before more is read, and nothing is read while the caller accepts no body. So little
//!    more than the bytes of one call is ever buffered.
//! 3. Requests beyond the server's SETTINGS_MAX_CONCURRENT_STREAMS wait here.
//! 4. After GOAWAY the streams that the server still serves are finished. The others are aborted at once, so that
//!    they can be requested elsewhere meanwhile.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::SystemTime;

use bytes::Bytes;
use h2::client::{self, ResponseFuture, SendRequest};
use h2::{Reason, RecvStream, SendStream};

use marline_core::fetch::{ConnError, ConnErrorKind, ReqId};
use marline_core::units::DataSize;

use super::response_head::{self, ParsedHead};
use super::transport::{LimitedStream, ReadBudget, Transport};
use super::{Event, GetRequest, Sink, conn_error, socket_error};

/// How much a server may send ahead of what was consumed (RFC 9113 section 5.2). At most 2 GiB each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Http2Windows {
    /// Window of each stream.
    pub stream: DataSize,
    /// Window of the connection.
    pub connection: DataSize,
}

impl Default for Http2Windows {
    /// 8 and 16 MiB: 1 Gbit/s × 100 ms is 12.5 MB, and two streams share the connection while one replaces the other.
    fn default() -> Self {
        Self { stream: DataSize::from_mib(8), connection: DataSize::from_mib(16) }
    }
}

/// State of one connection.
pub(super) struct Http2 {
    sender: SendRequest<Bytes>,
    connection: client::Connection<LimitedStream, Bytes>,
    /// How many bytes the connection may still read from the socket; set before each poll of it.
    read_budget: ReadBudget,
    /// Requests for which no stream could be opened yet.
    queued: VecDeque<(ReqId, http::Request<()>)>,
    streams: VecDeque<StreamExchange>,
    /// Events that were not returned yet.
    events: VecDeque<Event>,
    /// Number of requests so far.
    request_count: u64,
    /// Number of complete responses so far.
    response_count: u64,
    /// The server sent GOAWAY.
    is_going_away: bool,
    /// A body was cut off by the end of the connection.
    has_broken_body: bool,
    /// How the connection ended. Data that was received before is still delivered.
    connection_result: Option<Result<(), h2::Error>>,
    /// The end of the connection was reported as an event.
    is_closed: bool,
}

/// One request and its response.
struct StreamExchange {
    req: ReqId,
    stage: StreamStage,
    send_stream: SendStream<Bytes>,
}

enum StreamStage {
    AwaitHead(ResponseFuture),
    /// The head was reported, and the body is not accepted yet.
    HeadReported(RecvStream),
    /// The body, and how many more bytes of it may be delivered.
    Body(RecvStream, u64),
}

/// Result of polling a stream.
enum StreamProgress {
    Idle,
    Reported,
    Ended,
}

impl Http2 {
    pub(super) async fn start(stream: Transport, windows: Http2Windows) -> Result<Self, ConnError> {
        let window_len = |size: DataSize| u32::try_from(size.bytes()).unwrap_or(u32::MAX).min(MAX_WINDOW);
        let (stream, read_budget) = LimitedStream::new(stream);
        let built = client::Builder::new()
            .enable_push(false)
            .initial_window_size(window_len(windows.stream))
            .initial_connection_window_size(window_len(windows.connection))
            .initial_max_send_streams(INITIAL_STREAMS)
            .handshake(stream)
            .await;
        let (sender, connection) = built.map_err(|error| http2_error(&error, ConnErrorKind::Reset))?;
        Ok(Self {
            sender,
            connection,
            read_budget,
            queued: VecDeque::new(),
            streams: VecDeque::new(),
            events: VecDeque::new(),
            request_count: 0,
            response_count: 0,
            is_going_away: false,
            has_broken_body: false,
            connection_result: None,
            is_closed: false,
        })
    }

    pub(super) fn request(&mut self, req: ReqId, get: &GetRequest) {
        self.request_count += 1;
        match get.to_http2(true) {
            Ok(request) => self.queued.push_back((req, request)),
            Err(error) => {
                self.abort(req, conn_error(ConnErrorKind::Protocol, format!("the request cannot be sent: {error}")))
            }
        }
    }

    pub(super) fn accept(&mut self, req: ReqId, limit: Option<DataSize>) {
        let Some(index) = self.streams.iter().position(|exchange| exchange.req == req) else { return };
        let Some(StreamExchange { stage, send_stream, .. }) = self.streams.remove(index) else { return };
        let stage = match stage {
            StreamStage::HeadReported(body) => StreamStage::Body(body, limit.map_or(u64::MAX, DataSize::bytes)),
            other => other,
        };
        self.streams.insert(index, StreamExchange { req, stage, send_stream });
    }

    pub(super) fn cancel(&mut self, req: ReqId) {
        self.queued.retain(|(waiting, _)| *waiting != req);
        self.events.retain(|event| !event.is_for(req));
        self.streams.retain_mut(|exchange| {
            if exchange.req == req {
                // Dropping the stream then returns its unread bytes to the connection's window.
                exchange.send_stream.send_reset(Reason::CANCEL);
            }
            exchange.req != req
        });
    }

    pub(super) fn poll_event(
        &mut self,
        cx: &mut Context<'_>,
        sink: &mut dyn Sink,
        max_body: DataSize,
    ) -> Poll<Event> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Poll::Ready(event);
            }
            if self.is_closed {
                return Poll::Pending;
            }
            // First deliver what has already been received. Nothing is read from the socket while there are events.
            self.open_streams(cx);
            self.poll_streams(cx, sink, max_body);
            if !self.events.is_empty() {
                continue;
            }
            // While a body cannot be delivered, reading would only buffer more of it, so the socket is left alone.
            // Heads that wait for acceptance do not stop reading, unless the connection has ended: then its end is
            // reported after their bodies.
            let is_blocked = |exchange: &StreamExchange| match exchange.stage {
                StreamStage::AwaitHead(_) => false,
                StreamStage::HeadReported(_) => self.connection_result.is_some(),
                StreamStage::Body(..) => max_body.is_zero(),
            };
            if self.streams.iter().any(is_blocked) {
                return Poll::Pending;
            }
            // All streams have delivered what was received before the connection ended.
            if let Some(end) = self.connection_result.take() {
                self.on_connection_end(end);
                continue;
            }
            self.read_budget.set(READ_BUDGET);
            match Pin::new(&mut self.connection).poll(cx) {
                Poll::Ready(end) => self.connection_result = Some(end),
                // Bytes that the connection has just read wake the streams, which must be polled again.
                Poll::Pending => {
                    self.open_streams(cx);
                    self.poll_streams(cx, sink, max_body);
                    if self.events.is_empty() {
                        // The budget ended this read, so the socket may hold more bytes that will not wake the task.
                        if self.read_budget.is_exhausted() {
                            cx.waker().wake_by_ref();
                        }
                        return Poll::Pending;
                    }
                }
            }
        }
    }

    /// Sends queued requests for which streams can be opened.
    fn open_streams(&mut self, cx: &mut Context<'_>) {
        while !self.queued.is_empty() {
            match self.sender.poll_ready(cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) if error.is_go_away() => {
                    self.is_going_away = true;
                    for (req, _) in std::mem::take(&mut self.queued) {
                        self.abort(req, http2_error(&error, ConnErrorKind::CleanClose));
                    }
                    return;
                }
                // Any other error concerns the connection, and polling the connection reports it.
                _ => return,
            }
            let Some((req, request)) = self.queued.pop_front() else { return };
            match self.sender.send_request(request, true) {
                Ok((response, send_stream)) => {
                    self.streams.push_back(StreamExchange {
                        req,
                        stage: StreamStage::AwaitHead(response),
                        send_stream,
                    });
                }
                Err(error) if error.reason().is_none() && !error.is_io() => {
                    self.abort(req, http2_error(&error, ConnErrorKind::Protocol))
                }
                Err(_) => return,
            }
        }
    }

    /// Polls each stream until one reports an event. That stream moves to the end of the queue.
    fn poll_streams(&mut self, cx: &mut Context<'_>, sink: &mut dyn Sink, max_body: DataSize) {
        for _ in 0..self.streams.len() {
            let Some(mut exchange) = self.streams.pop_front() else { return };
            let progress = match &exchange.stage {
                StreamStage::AwaitHead(_) => self.poll_head(cx, &mut exchange),
                StreamStage::HeadReported(_) => StreamProgress::Idle,
                StreamStage::Body(..) => self.poll_body(cx, &mut exchange, sink, max_body.bytes()),
            };
            if !matches!(progress, StreamProgress::Ended) {
                self.streams.push_back(exchange);
            }
            if !self.events.is_empty() {
                return;
            }
        }
    }

    fn poll_head(&mut self, cx: &mut Context<'_>, exchange: &mut StreamExchange) -> StreamProgress {
        let StreamStage::AwaitHead(future) = &mut exchange.stage else { return StreamProgress::Idle };
        let response = match Pin::new(future).poll(cx) {
            Poll::Pending => return StreamProgress::Idle,
            Poll::Ready(Err(error)) => return self.on_stream_error(exchange.req, &error, ConnErrorKind::Reset),
            Poll::Ready(Ok(response)) => response,
        };
        let (parts, body) = response.into_parts();
        let fields = parts.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
        match response_head::parse_head(parts.status.as_u16(), true, fields, SystemTime::now()) {
            Ok(ParsedHead { mut head, location, content_disposition: disposition, meta, .. }) => {
                // HTTP/2 frames bodies itself, so a response without a length does not close the connection.
                head.closes_connection = false;
                exchange.stage = StreamStage::HeadReported(body);
                let meta = Box::new(meta);
                self.events.push_back(Event::Head {
                    req: exchange.req,
                    head,
                    location,
                    content_disposition: disposition,
                    meta,
                });
                StreamProgress::Reported
            }
            Err(failure) => {
                exchange.send_stream.send_reset(Reason::PROTOCOL_ERROR);
                self.abort(exchange.req, failure);
                StreamProgress::Ended
            }
        }
    }

    fn poll_body(
        &mut self,
        cx: &mut Context<'_>,
        exchange: &mut StreamExchange,
        sink: &mut dyn Sink,
        max_body: u64,
    ) -> StreamProgress {
        let req = exchange.req;
        let StreamStage::Body(body, limit_left) = &mut exchange.stage else { return StreamProgress::Idle };
        let mut delivered = 0;
        let end = loop {
            if delivered >= max_body {
                break None;
            }
            match body.poll_data(cx) {
                Poll::Pending => break None,
                Poll::Ready(None) => break Some(Ok(())),
                Poll::Ready(Some(Err(error))) => break Some(Err(error)),
                Poll::Ready(Some(Ok(bytes))) => {
                    // This fails only for more bytes than were received.
                    let _ = body.flow_control().release_capacity(bytes.len());
                    let take = usize::try_from(*limit_left).unwrap_or(usize::MAX).min(bytes.len());
                    *limit_left -= take as u64;
                    delivered += take as u64;
                    if take > 0 {
                        sink.body(req, &bytes[..take]);
                    }
                    if take < bytes.len() {
                        exchange.send_stream.send_reset(Reason::CANCEL);
                        break Some(Ok(()));
                    }
                }
            }
        };
        self.push_data(req, delivered);
        match end {
            None if delivered == 0 => StreamProgress::Idle,
            None => StreamProgress::Reported,
            Some(Ok(())) => {
                self.response_count += 1;
                self.events.push_back(Event::End { req, unconfirmed: false });
                StreamProgress::Ended
            }
            Some(Err(error)) => self.on_stream_error(req, &error, ConnErrorKind::Truncated),
        }
    }

    /// A stream failed: by itself, or because of the connection, whose end will be reported.
    fn on_stream_error(&mut self, req: ReqId, error: &h2::Error, kind: ConnErrorKind) -> StreamProgress {
        if error.is_reset() {
            self.abort(req, http2_error(error, kind));
        } else if error.is_go_away() && kind != ConnErrorKind::Truncated {
            self.is_going_away = true;
            self.abort(req, http2_error(error, ConnErrorKind::CleanClose));
        } else {
            self.is_going_away |= error.is_go_away();
            self.has_broken_body |= kind == ConnErrorKind::Truncated;
        }
        StreamProgress::Ended
    }

    fn push_data(&mut self, req: ReqId, delivered: u64) {
        if delivered > 0 {
            self.events.push_back(Event::Data { req, len: DataSize::from_bytes(delivered) });
        }
    }

    fn abort(&mut self, req: ReqId, error: ConnError) {
        self.events.push_back(Event::Aborted { req, error });
    }

    /// Reports the end of the connection.
    fn on_connection_end(&mut self, end: Result<(), h2::Error>) {
        self.is_closed = true;
        let kind = match (
            self.has_broken_body,
            self.is_going_away || self.response_count > 0 || self.request_count == 0,
        ) {
            (true, _) => ConnErrorKind::Truncated,
            (false, true) => ConnErrorKind::CleanClose,
            (false, false) => ConnErrorKind::Reset,
        };
        let failure = match end {
            Ok(()) => conn_error(kind, "the server closed the HTTP/2 connection"),
            Err(error) if error.reason() == Some(Reason::NO_ERROR) => {
                conn_error(kind, "the server ends the HTTP/2 connection")
            }
            Err(error) => http2_error(&error, kind),
        };
        self.streams.clear();
        self.events.push_back(Event::Closed { error: failure });
    }
}

impl Event {
    /// Whether the event concerns this request.
    fn is_for(&self, request: ReqId) -> bool {
        match self {
            Self::Head { req, .. } | Self::Data { req, .. } | Self::End { req, .. } | Self::Aborted { req, .. } => {
                *req == request
            }
            Self::Closed { .. } => false,
        }
    }
}

/// Converts an HTTP/2 error. `kind` is used if the peer has ended the stream or the connection for a reason that has
/// no kind of its own.
fn http2_error(error: &h2::Error, kind: ConnErrorKind) -> ConnError {
    if let Some(error) = error.get_io() {
        let io_failure = socket_error("connection lost", error);
        let kind = if kind == ConnErrorKind::Truncated { kind } else { io_failure.kind };
        return ConnError { kind, ..io_failure };
    }
    match error.reason() {
        Some(Reason::HTTP_1_1_REQUIRED) if error.is_remote() => {
            conn_error(ConnErrorKind::Http1Required, "the server requires HTTP/1.1")
        }
        Some(Reason::NO_ERROR) if error.is_go_away() => conn_error(kind, "the server ends the HTTP/2 connection"),
        // The error concerns the encryption, which HTTP/1.1 does not restrict (RFC 9113 section 9.2.2).
        Some(Reason::INADEQUATE_SECURITY) if error.is_remote() => {
            conn_error(ConnErrorKind::Http1Required, "the server refuses HTTP/2 over this encryption")
        }
        Some(Reason::REFUSED_STREAM) if error.is_remote() => {
            conn_error(ConnErrorKind::StreamRefused, "the server refused the stream")
        }
        Some(reason) if error.is_remote() => {
            conn_error(kind, format!("the server reset the stream: {}", reason.description()))
        }
        Some(reason) => conn_error(ConnErrorKind::Protocol, format!("broken HTTP/2: {}", reason.description())),
        None => conn_error(ConnErrorKind::Protocol, format!("broken HTTP/2: {error}")),
    }
}

/// Number of streams before the server's SETTINGS state its limit; further ones wait for them. Our choice: more than
/// links request in the first RTT. nginx since 1.25.3 (and Debian's 1.22) refuses streams beyond twice its limit at
/// once.
const INITIAL_STREAMS: usize = 8;

/// Maximum number of bytes that one poll of the connection reads. Our choice: as much as one HTTP/1.1 read of a plain
/// socket.
const READ_BUDGET: usize = 256 * 1024;
/// RFC 9113 section 6.9.1.
const MAX_WINDOW: u32 = (1 << 31) - 1;
