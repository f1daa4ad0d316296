//! Server side of one connection: receives requests and writes responses.
//!
//! 1. HTTP/1.1 sends responses one after the other, in the order of the requests. HTTP/2 interleaves them frame by
//!    frame.
//! 2. Nothing is written while a fixed amount of bytes or more is unsent, so that the next response is chosen late.
//! 3. A connection that is to end with a fault ends when everything before has been sent.

use std::collections::VecDeque;

use marline_core::fetch::{ByteRange, Protocol, ReqId, RequestRange, Validator};
use marline_core::units::{DataSize, Duration, Instant};

use super::response_stream::{ResponseStream, StreamPiece};
use super::server::{BodyFault, HttpServer, ResponseBody, ServerRequest, ServerResponse};
use crate::tcp::Socket;

/// Server side of a connection.
#[derive(Debug)]
pub(super) struct ServerConn {
    pub(super) socket: Socket,
    link: usize,
    protocol: Protocol,
    awaits_tls_hello: bool,
    received_requests: VecDeque<(Instant, SentRequest)>,
    active_responses: VecDeque<ActiveResponse>,
    response_count: u32,
    idle_since: Instant,
    ending_fault: Option<BodyFault>,
    /// Time of the first write of a body, and bytes written since then: what the rate limit of a connection is compared with.
    written_since: Option<(Instant, DataSize)>,
}

/// A request of the client. The server has received it when the stream has arrived up to `stream_end`.
#[derive(Clone, Debug)]
pub(super) struct SentRequest {
    pub(super) stream_end: u64,
    pub(super) req: ReqId,
    pub(super) range: RequestRange,
    pub(super) if_range: Option<Validator>,
}

#[derive(Debug)]
struct ActiveResponse {
    req: ReqId,
    body: ResponseBody,
    fault: Option<BodyFault>,
}

/// Shared state that a server connection works with.
pub(super) struct ServerContext<'a> {
    pub(super) server: &'a mut HttpServer,
    pub(super) served_bytes: &'a mut DataSize,
    pub(super) requests: &'a mut VecDeque<SentRequest>,
    pub(super) response_stream: &'a mut ResponseStream,
}

impl ServerConn {
    /// A connection that the server has just accepted.
    pub(super) fn new(socket: Socket, link: usize, protocol: Protocol, tls: bool, now: Instant) -> Self {
        Self {
            socket,
            link,
            protocol,
            awaits_tls_hello: tls,
            received_requests: VecDeque::new(),
            active_responses: VecDeque::new(),
            response_count: 0,
            idle_since: now,
            ending_fault: None,
            written_since: None,
        }
    }

    /// Does everything that can be done at `now`.
    pub(super) fn run(&mut self, now: Instant, context: &mut ServerContext<'_>) {
        let received = self.socket.in_order_bytes();
        if self.awaits_tls_hello && received >= TLS_CLIENT_HELLO {
            self.awaits_tls_hello = false;
            self.socket.write(DataSize::from_bytes(TLS_SERVER_FLIGHT));
            context.response_stream.write(StreamPiece::Handshake, TLS_SERVER_FLIGHT);
        }
        while context.requests.front().is_some_and(|request| request.stream_end <= received) {
            self.received_requests.extend(context.requests.pop_front().map(|request| (now, request)));
        }
        while self.ending_fault.is_none()
            && self.next_response_start(context.server.response_delay).is_some_and(|at| at <= now)
        {
            let Some((_, request)) = self.received_requests.pop_front() else { break };
            self.start_response(now, request, context);
        }
        self.fill_send_buffer(now, context);
        self.apply_ending();
        if self.socket.is_peer_finished() {
            self.socket.finish();
        }
    }

    /// When [`Self::run`] must be called even if nothing arrives.
    pub(super) fn next_event(&self, server: &HttpServer) -> Option<Instant> {
        let next_start =
            if self.ending_fault.is_none() { self.next_response_start(server.response_delay) } else { None };
        let next_write = if self.can_write() { self.next_write_time(server) } else { None };
        [next_start, next_write, self.socket.timer()].into_iter().flatten().min()
    }

    /// When the server starts the next response.
    fn next_response_start(&self, response_delay: Duration) -> Option<Instant> {
        let (received_at, _) = self.received_requests.front()?;
        match self.protocol {
            Protocol::Http2 => Some(*received_at + response_delay),
            Protocol::Http1 if self.active_responses.is_empty() => {
                Some((*received_at).max(self.idle_since) + response_delay)
            }
            Protocol::Http1 => None,
        }
    }

    fn start_response(&mut self, now: Instant, request: SentRequest, context: &mut ServerContext<'_>) {
        self.response_count += 1;
        let is_last = context.server.keepalive_requests.is_some_and(|limit| self.response_count >= limit);
        let server_request = ServerRequest { range: request.range, if_range: request.if_range.as_ref(), is_last };
        let ServerResponse { head, body, mut fault } =
            context.server.respond(self.link, now, *context.served_bytes, server_request);
        if fault == Some(BodyFault::Aborted) && self.protocol == Protocol::Http1 {
            fault = Some(BodyFault::Reset);
        }
        if is_last && fault.is_none() {
            fault = Some(BodyFault::CloseAfter);
        }
        self.socket.write(HEAD_SIZE);
        context.response_stream.write(StreamPiece::Head(request.req, Box::new(head)), HEAD_SIZE.bytes());
        self.active_responses.push_back(ActiveResponse { req: request.req, body, fault });
        self.finish_sent_response(now, context.response_stream);
    }

    fn fill_send_buffer(&mut self, now: Instant, context: &mut ServerContext<'_>) {
        while self.can_write() && self.next_write_time(context.server).is_none_or(|at| at <= now) {
            let Some(response) = self.active_responses.front_mut() else { return };
            let chunk = if self.protocol == Protocol::Http1 { HTTP1_CHUNK } else { HTTP2_FRAME };
            let range = response.body.range;
            let part = range.intersect(ByteRange::at(range.start, chunk));
            response.body.range.start = part.end;
            self.socket.write(part.len());
            *context.served_bytes += part.len();
            let rate_state = self.written_since.get_or_insert((now, DataSize::ZERO));
            rate_state.1 += part.len();
            context
                .response_stream
                .write(StreamPiece::Body(response.req, response.body.version, part), part.len().bytes());
            self.finish_sent_response(now, context.response_stream);
            if self.protocol == Protocol::Http2 && self.active_responses.len() > 1 {
                self.active_responses.rotate_left(1);
            }
        }
    }

    fn can_write(&self) -> bool {
        !self.active_responses.is_empty() && self.ending_fault.is_none() && self.socket.unsent() < MAX_UNSENT
    }

    /// When the connection's rate limit permits the next chunk.
    fn next_write_time(&self, server: &HttpServer) -> Option<Instant> {
        let (since, written) = self.written_since?;
        Some(since + written / server.per_connection_rate?)
    }

    /// Completes the first response that has no body left to write.
    fn finish_sent_response(&mut self, now: Instant, response_stream: &mut ResponseStream) {
        let is_sent = |sending: &ActiveResponse| sending.body.range.is_empty();
        let Some(at) = self.active_responses.iter().position(is_sent) else { return };
        let Some(response) = self.active_responses.remove(at) else { return };
        match response.fault {
            None => response_stream.write(StreamPiece::End(response.req), 0),
            Some(BodyFault::Aborted) => response_stream.write(StreamPiece::Abort(response.req), 0),
            Some(fault) => {
                if fault == BodyFault::CloseAfter {
                    response_stream.write(StreamPiece::End(response.req), 0);
                }
                self.ending_fault = Some(fault);
            }
        }
        self.idle_since = now;
    }

    fn apply_ending(&mut self) {
        if !self.socket.unsent().is_zero() {
            return;
        }
        match self.ending_fault {
            Some(BodyFault::Truncated | BodyFault::CloseAfter) => self.socket.finish(),
            Some(BodyFault::Reset) => self.socket.abort(),
            Some(BodyFault::Stalled | BodyFault::Aborted) | None => {}
        }
    }
}

/// A response head like nginx's, with ETag, range and date.
const HEAD_SIZE: DataSize = DataSize::from_bytes(300);
/// Bytes of a ClientHello.
pub(super) const TLS_CLIENT_HELLO: u64 = 300;
/// Bytes from ServerHello to Finished, with one certificate of usual size.
const TLS_SERVER_FLIGHT: u64 = 3000;
/// Body bytes written at once; with HTTP/2 the usual frame.
const HTTP1_CHUNK: DataSize = DataSize::from_kib(64);
const HTTP2_FRAME: DataSize = DataSize::from_kib(16);
/// Number of unsent bytes from which on nothing more is written.
const MAX_UNSENT: DataSize = DataSize::from_kib(128);
