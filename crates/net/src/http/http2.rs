//! An HTTP/2 connection (RFC 9113), driven by the h2 crate but polled by us.
//!
//! In: requests, verdicts, turns to read. Out: events and body bytes, of several answers side by side.
//!
//! 1. The windows are ours: as large as a fast link's pipe ([`Windows`]), and given back as bytes reach the sink, so
//!    that flow control never slows a link down, and a reader that stops is felt by the server.
//! 2. What has arrived is handed on before more is read, and nothing is read while the caller takes no body. So little
//!    more than one turn's bytes is ever kept.
//! 3. Requests beyond the server's SETTINGS_MAX_CONCURRENT_STREAMS wait here.
//! 4. After GOAWAY the streams that the server still serves are finished; the rest is aborted at once, so that it can be
//!    asked for elsewhere meanwhile.

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

use super::head::{self, Answer};
use super::stream::{Meter, Metered, Stream};
use super::{Event, Get, Sink, socket_trouble, trouble};

/// How much a server may send ahead of what was consumed (RFC 9113 §5.2). At most 2 GiB each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Windows {
    /// On each stream.
    pub stream: DataSize,
    /// On the connection.
    pub connection: DataSize,
}

impl Default for Windows {
    /// 8 and 16 MiB: 1 Gbit/s × 100 ms is 12.5 MB, and two streams share the connection while one takes over.
    fn default() -> Self {
        Self { stream: DataSize::from_mib(8), connection: DataSize::from_mib(16) }
    }
}

/// One connection.
pub(super) struct Http2 {
    sender: SendRequest<Bytes>,
    driver: client::Connection<Metered, Bytes>,
    meter: Meter,
    /// Requests that no stream could be opened for yet.
    waiting: VecDeque<(ReqId, http::Request<()>)>,
    streams: VecDeque<Exchange>,
    /// What happened and was not told yet.
    events: VecDeque<Event>,
    /// Requests so far.
    asked: u64,
    /// Complete answers so far.
    complete: u64,
    /// The server said GOAWAY.
    going: bool,
    /// A body broke off with the connection.
    broken: bool,
    /// How the connection ended; what it had brought before is still to be told.
    end: Option<Result<(), h2::Error>>,
    over: bool,
}

/// One request and its answer.
struct Exchange {
    req: ReqId,
    stage: Stage,
    reset: SendStream<Bytes>,
}

enum Stage {
    Asked(ResponseFuture),
    Verdict(RecvStream),
    Body(RecvStream, u64),
}

/// What became of a stream in a turn.
enum Turn {
    Nothing,
    Told,
    Gone,
}

impl Http2 {
    pub(super) async fn start(stream: Stream, windows: Windows) -> Result<Self, ConnError> {
        let size = |size: DataSize| u32::try_from(size.bytes()).unwrap_or(u32::MAX).min(WINDOW_MOST);
        let (stream, meter) = Metered::new(stream);
        let built = client::Builder::new()
            .enable_push(false)
            .initial_window_size(size(windows.stream))
            .initial_connection_window_size(size(windows.connection))
            .initial_max_send_streams(AT_FIRST)
            .handshake(stream)
            .await;
        let (sender, driver) = built.map_err(|error| words(&error, ConnErrorKind::Reset))?;
        Ok(Self {
            sender,
            driver,
            meter,
            waiting: VecDeque::new(),
            streams: VecDeque::new(),
            events: VecDeque::new(),
            asked: 0,
            complete: 0,
            going: false,
            broken: false,
            end: None,
            over: false,
        })
    }

    pub(super) fn request(&mut self, req: ReqId, get: &Get) {
        self.asked += 1;
        match get.parts(true) {
            Ok(request) => self.waiting.push_back((req, request)),
            Err(error) => {
                self.abort(req, trouble(ConnErrorKind::Protocol, format!("cannot be asked for: {error}")))
            }
        }
    }

    pub(super) fn accept(&mut self, req: ReqId, limit: Option<DataSize>) {
        let Some(index) = self.streams.iter().position(|exchange| exchange.req == req) else { return };
        let Some(Exchange { stage, reset, .. }) = self.streams.remove(index) else { return };
        let stage = match stage {
            Stage::Verdict(body) => Stage::Body(body, limit.map_or(u64::MAX, DataSize::bytes)),
            other => other,
        };
        self.streams.insert(index, Exchange { req, stage, reset });
    }

    pub(super) fn cancel(&mut self, req: ReqId) {
        self.waiting.retain(|(waiting, _)| *waiting != req);
        self.events.retain(|event| !event.is_of(req));
        self.streams.retain_mut(|exchange| {
            if exchange.req == req {
                // Dropping the stream then gives its unread bytes back to the connection's window.
                exchange.reset.send_reset(Reason::CANCEL);
            }
            exchange.req != req
        });
    }

    pub(super) fn poll_event(&mut self, cx: &mut Context<'_>, sink: &mut dyn Sink, most: DataSize) -> Poll<Event> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Poll::Ready(event);
            }
            if self.over {
                return Poll::Pending;
            }
            self.open_streams(cx);
            self.poll_streams(cx, sink, most);
            if !self.events.is_empty() {
                continue;
            }
            let held = |exchange: &Exchange| match exchange.stage {
                Stage::Asked(_) => false,
                Stage::Verdict(_) => self.end.is_some(),
                Stage::Body(..) => most.is_zero(),
            };
            if self.streams.iter().any(held) {
                return Poll::Pending;
            }
            if let Some(end) = self.end.take() {
                self.finish(end);
                continue;
            }
            self.meter.set(TURN);
            match Pin::new(&mut self.driver).poll(cx) {
                Poll::Ready(end) => self.end = Some(end),
                // What the driver has just read wakes the streams, but they may not have been polled since.
                Poll::Pending => {
                    self.open_streams(cx);
                    self.poll_streams(cx, sink, most);
                    if self.events.is_empty() {
                        if self.meter.is_spent() {
                            cx.waker().wake_by_ref();
                        }
                        return Poll::Pending;
                    }
                }
            }
        }
    }

    /// Sends what may be sent.
    fn open_streams(&mut self, cx: &mut Context<'_>) {
        while !self.waiting.is_empty() {
            match self.sender.poll_ready(cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) if error.is_go_away() => {
                    self.going = true;
                    for (req, _) in std::mem::take(&mut self.waiting) {
                        self.abort(req, words(&error, ConnErrorKind::CleanClose));
                    }
                    return;
                }
                // Any other error is the connection's: the driver tells it.
                _ => return,
            }
            let Some((req, request)) = self.waiting.pop_front() else { return };
            match self.sender.send_request(request, true) {
                Ok((answer, reset)) => {
                    self.streams.push_back(Exchange { req, stage: Stage::Asked(answer), reset });
                }
                Err(error) if error.reason().is_none() && !error.is_io() => {
                    self.abort(req, words(&error, ConnErrorKind::Protocol))
                }
                Err(_) => return,
            }
        }
    }

    /// Gives each stream a turn, until one has something to say. The one that spoke goes to the back.
    fn poll_streams(&mut self, cx: &mut Context<'_>, sink: &mut dyn Sink, most: DataSize) {
        for _ in 0..self.streams.len() {
            let Some(mut exchange) = self.streams.pop_front() else { return };
            let turn = match &exchange.stage {
                Stage::Asked(_) => self.poll_head(cx, &mut exchange),
                Stage::Verdict(_) => Turn::Nothing,
                Stage::Body(..) => self.poll_body(cx, &mut exchange, sink, most.bytes()),
            };
            if !matches!(turn, Turn::Gone) {
                self.streams.push_back(exchange);
            }
            if !self.events.is_empty() {
                return;
            }
        }
    }

    fn poll_head(&mut self, cx: &mut Context<'_>, exchange: &mut Exchange) -> Turn {
        let Stage::Asked(answer) = &mut exchange.stage else { return Turn::Nothing };
        let response = match Pin::new(answer).poll(cx) {
            Poll::Pending => return Turn::Nothing,
            Poll::Ready(Err(error)) => return self.lose(exchange.req, &error, ConnErrorKind::Reset),
            Poll::Ready(Ok(response)) => response,
        };
        let (parts, body) = response.into_parts();
        let fields = parts.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
        match head::read(parts.status.as_u16(), true, fields, SystemTime::now()) {
            Ok(Answer { mut head, location, disposition, described, .. }) => {
                // HTTP/2 frames bodies by itself: without a length it does not close.
                head.closes_connection = false;
                exchange.stage = Stage::Verdict(body);
                let described = Box::new(described);
                self.events.push_back(Event::Head { req: exchange.req, head, location, disposition, described });
                Turn::Told
            }
            Err(trouble) => {
                exchange.reset.send_reset(Reason::PROTOCOL_ERROR);
                self.abort(exchange.req, trouble);
                Turn::Gone
            }
        }
    }

    fn poll_body(&mut self, cx: &mut Context<'_>, exchange: &mut Exchange, sink: &mut dyn Sink, most: u64) -> Turn {
        let req = exchange.req;
        let Stage::Body(body, allowed) = &mut exchange.stage else { return Turn::Nothing };
        let mut passed = 0;
        let end = loop {
            if passed >= most {
                break None;
            }
            match body.poll_data(cx) {
                Poll::Pending => break None,
                Poll::Ready(None) => break Some(Ok(())),
                Poll::Ready(Some(Err(error))) => break Some(Err(error)),
                Poll::Ready(Some(Ok(bytes))) => {
                    // It fails only for more than was received.
                    let _ = body.flow_control().release_capacity(bytes.len());
                    let take = usize::try_from(*allowed).unwrap_or(usize::MAX).min(bytes.len());
                    *allowed -= take as u64;
                    passed += take as u64;
                    if take > 0 {
                        sink.body(req, &bytes[..take]);
                    }
                    if take < bytes.len() {
                        exchange.reset.send_reset(Reason::CANCEL);
                        break Some(Ok(()));
                    }
                }
            }
        };
        self.data(req, passed);
        match end {
            None if passed == 0 => Turn::Nothing,
            None => Turn::Told,
            Some(Ok(())) => {
                self.complete += 1;
                self.events.push_back(Event::End { req, unconfirmed: false });
                Turn::Gone
            }
            Some(Err(error)) => self.lose(req, &error, ConnErrorKind::Truncated),
        }
    }

    /// A stream failed: by itself, or with the connection, whose end will be told.
    fn lose(&mut self, req: ReqId, error: &h2::Error, kind: ConnErrorKind) -> Turn {
        if error.is_reset() {
            self.abort(req, words(error, kind));
        } else if error.is_go_away() && kind != ConnErrorKind::Truncated {
            self.going = true;
            self.abort(req, words(error, ConnErrorKind::CleanClose));
        } else {
            self.going |= error.is_go_away();
            self.broken |= kind == ConnErrorKind::Truncated;
        }
        Turn::Gone
    }

    fn data(&mut self, req: ReqId, passed: u64) {
        if passed > 0 {
            self.events.push_back(Event::Data { req, len: DataSize::from_bytes(passed) });
        }
    }

    fn abort(&mut self, req: ReqId, trouble: ConnError) {
        self.events.push_back(Event::Aborted { req, trouble });
    }

    /// The connection is over.
    fn finish(&mut self, end: Result<(), h2::Error>) {
        self.over = true;
        let kind = match (self.broken, self.going || self.complete > 0 || self.asked == 0) {
            (true, _) => ConnErrorKind::Truncated,
            (false, true) => ConnErrorKind::CleanClose,
            (false, false) => ConnErrorKind::Reset,
        };
        let trouble = match end {
            Ok(()) => trouble(kind, "the server closed the HTTP/2 connection"),
            Err(error) if error.reason() == Some(Reason::NO_ERROR) => {
                trouble(kind, "the server ends the HTTP/2 connection")
            }
            Err(error) => words(&error, kind),
        };
        self.streams.clear();
        self.events.push_back(Event::Closed { trouble });
    }
}

impl Event {
    /// Whether it tells of this request.
    fn is_of(&self, wanted: ReqId) -> bool {
        match self {
            Self::Head { req, .. } | Self::Data { req, .. } | Self::End { req, .. } | Self::Aborted { req, .. } => {
                *req == wanted
            }
            Self::Closed { .. } => false,
        }
    }
}

/// What an error of HTTP/2 means; `kind` where it is the other end that gave up.
fn words(error: &h2::Error, kind: ConnErrorKind) -> ConnError {
    if let Some(error) = error.get_io() {
        let lost = socket_trouble("connection lost", error);
        let kind = if kind == ConnErrorKind::Truncated { kind } else { lost.kind };
        return ConnError { kind, ..lost };
    }
    match error.reason() {
        Some(Reason::HTTP_1_1_REQUIRED) if error.is_remote() => {
            trouble(ConnErrorKind::Http1Required, "the server wants HTTP/1.1")
        }
        Some(Reason::NO_ERROR) if error.is_go_away() => trouble(kind, "the server ends the HTTP/2 connection"),
        // What is wrong is the encryption, which HTTP/1.1 does not judge (RFC 9113 section 9.2.2).
        Some(Reason::INADEQUATE_SECURITY) if error.is_remote() => {
            trouble(ConnErrorKind::Http1Required, "the server refuses HTTP/2 over this encryption")
        }
        Some(Reason::REFUSED_STREAM) if error.is_remote() => {
            trouble(ConnErrorKind::StreamRefused, "the server refused the stream")
        }
        Some(reason) if error.is_remote() => {
            trouble(kind, format!("the server reset it: {}", reason.description()))
        }
        Some(reason) => trouble(ConnErrorKind::Protocol, format!("broken HTTP/2: {}", reason.description())),
        None => trouble(ConnErrorKind::Protocol, format!("broken HTTP/2: {error}")),
    }
}

/// Streams before the server's settings have told how many it allows; the others wait for them. chosen: more than links
/// ask for in the first round trip. nginx since 1.25.3 (and Debian's 1.22) refuses what goes beyond twice its limit at once.
const AT_FIRST: usize = 8;

/// What a turn of the driver reads at most. Chosen: as much as a turn of HTTP/1.1 on a plain socket.
const TURN: usize = 256 * 1024;
/// RFC 9113 §6.9.1.
const WINDOW_MOST: u32 = (1 << 31) - 1;
