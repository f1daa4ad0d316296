//! One client connection together with the server's side of it.
//!
//! It exchanges segments with the link, executes the machine's requests, and produces the machine's inputs one by
//! one.
//!
//! 1. Inputs are created on demand ([`Conn::next_input`]), so that each of them sees the outputs that the previous
//!    one caused. After a close or a cancellation nothing more is reported.
//! 2. A body whose head the machine has not accepted yet is withheld, not discarded.
//! 3. Bytes of one response that become readable at the same instant form one input.
//! 4. A response longer than accepted is a protocol error and closes the connection.

use std::collections::{BTreeMap, VecDeque};

use marline_core::fetch::{
    ByteRange, ConnError, ConnErrorKind, ConnId, Input, PathSample, Protocol, ReqId, RequestRange, Validator,
};
use marline_core::units::{DataSize, Duration, Instant};

use super::file_check::FileCheck;
use super::response_stream::{ResponseStream, StreamPiece};
use super::server::HttpServer;
use super::server_conn::{SentRequest, ServerConn, ServerContext, TLS_CLIENT_HELLO};
use crate::tcp::{Segment, Socket, TcpCloseReason, TcpConfig, TcpState};

/// A client connection, with the server's side once the SYN has arrived there.
#[derive(Debug)]
pub(super) struct Conn {
    id: ConnId,
    /// Index of the link in the scenario.
    pub(super) link: usize,
    protocol: Protocol,
    tls: Option<TlsHandshake>,
    client: Socket,
    server_conn: Option<ServerConn>,
    response_stream: ResponseStream,
    requests: VecDeque<SentRequest>,
    bytes_written: u64,
    responses: BTreeMap<ReqId, OpenResponse>,
    is_connected: bool,
    /// The machine has closed the connection; nothing is reported any more.
    is_closed_by_machine: bool,
    has_protocol_error: bool,
    bytes_after_close: u64,
    next_sample: Option<Instant>,
}

/// State of the TLS handshake at the client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum TlsHandshake {
    Pending,
    HelloSent,
}

/// A response that has not ended yet.
#[derive(Debug, Default)]
struct OpenResponse {
    has_head: bool,
    accepted: Option<AcceptedBody>,
    withheld: VecDeque<StreamPiece>,
}

#[derive(Clone, Copy, Debug)]
struct AcceptedBody {
    offset: u64,
    remaining: Option<DataSize>,
}

impl Conn {
    /// Opens a connection over link number `link` of the scenario; its SYN is ready to be sent.
    pub(super) fn new(
        id: ConnId,
        link: usize,
        config: TcpConfig,
        protocol: Protocol,
        tls: bool,
        now: Instant,
    ) -> Self {
        Self {
            id,
            link,
            protocol,
            tls: tls.then_some(TlsHandshake::Pending),
            client: Socket::connect(config, id.0, now),
            server_conn: None,
            response_stream: ResponseStream::default(),
            requests: VecDeque::new(),
            bytes_written: 0,
            responses: BTreeMap::new(),
            is_connected: false,
            is_closed_by_machine: false,
            has_protocol_error: false,
            bytes_after_close: 0,
            next_sample: None,
        }
    }

    /// Processes a segment that has arrived at the client.
    pub(super) fn on_segment_at_client(&mut self, now: Instant, segment: &Segment) {
        if matches!(self.client.state(), TcpState::Closed(_)) {
            self.bytes_after_close += segment.seqs.len();
        }
        self.client.on_segment(now, segment);
    }

    /// Processes a segment that has arrived at the server; a SYN creates the server's side.
    pub(super) fn on_segment_at_server(&mut self, now: Instant, segment: &Segment, config: TcpConfig) {
        match &mut self.server_conn {
            Some(server_conn) => server_conn.socket.on_segment(now, segment),
            None if segment.flags.syn => {
                let socket = Socket::accept(config, segment, now);
                self.server_conn = Some(ServerConn::new(socket, self.link, self.protocol, self.tls.is_some(), now));
            }
            None => {}
        }
    }

    /// Whether the server has accepted the connection.
    pub(super) const fn has_server_conn(&self) -> bool {
        self.server_conn.is_some()
    }

    /// Runs both sides until nothing more can be done at `now`. `send` gets the outgoing segments.
    pub(super) fn run(
        &mut self,
        now: Instant,
        server: &mut HttpServer,
        served_bytes: &mut DataSize,
        mut send: impl FnMut(OutgoingSegment),
    ) {
        self.client.on_timer(now);
        if self.tls == Some(TlsHandshake::Pending) && self.client.state() == TcpState::Established {
            self.tls = Some(TlsHandshake::HelloSent);
            self.write(TLS_CLIENT_HELLO);
        }
        while let Some(segment) = self.client.poll(now) {
            send(OutgoingSegment::Up(segment));
        }
        let Some(server_conn) = &mut self.server_conn else { return };
        server_conn.socket.on_timer(now);
        let (requests, response_stream) = (&mut self.requests, &mut self.response_stream);
        let mut context = ServerContext { server, served_bytes, requests, response_stream };
        loop {
            server_conn.run(now, &mut context);
            let mut is_idle = true;
            while let Some(segment) = server_conn.socket.poll(now) {
                is_idle = false;
                send(OutgoingSegment::Down(segment));
            }
            if is_idle {
                return;
            }
        }
    }

    /// When [`Self::run`] or [`Self::next_input`] must be called even if nothing arrives.
    pub(super) fn next_event(&self, server: &HttpServer) -> Option<Instant> {
        let server_conn = self.server_conn.as_ref().and_then(|server_conn| server_conn.next_event(server));
        [self.client.timer(), server_conn, self.next_sample].into_iter().flatten().min()
    }

    /// Sends a request for the machine.
    pub(super) fn request(&mut self, now: Instant, req: ReqId, request: RequestRange, if_range: Option<Validator>) {
        self.write(REQUEST_BYTES);
        self.requests.push_back(SentRequest { stream_end: self.bytes_written, req, range: request, if_range });
        self.responses.insert(req, OpenResponse::default());
        self.next_sample.get_or_insert(now + SAMPLE_INTERVAL);
    }

    /// Accepts the body of a response. Returns false if it does not belong to this connection.
    pub(super) fn accept(&mut self, req: ReqId, offset: u64, remaining: Option<DataSize>) -> bool {
        let Some(response) = self.responses.get_mut(&req) else { return false };
        response.accepted = Some(AcceptedBody { offset, remaining });
        true
    }

    /// Drops a response that the machine does not want. Returns false if it does not belong to this connection.
    pub(super) fn cancel(&mut self, req: ReqId) -> bool {
        self.responses.remove(&req).is_some()
    }

    /// Closes the connection for the machine.
    pub(super) fn close(&mut self) {
        self.is_closed_by_machine = true;
        self.next_sample = None;
        self.client.abort();
    }

    /// The next input for the machine, if there is one.
    pub(super) fn next_input(&mut self, now: Instant, file_check: &mut FileCheck) -> Option<Input> {
        if self.is_closed_by_machine {
            return None;
        }
        if !self.is_connected {
            return self.handshake_input();
        }
        let input = self
            .released_input(file_check)
            .or_else(|| self.arrived_input(file_check))
            .or_else(|| self.close_input());
        input.or_else(|| self.sample_input(now))
    }

    /// Whether both sides are closed and the connection can be removed.
    pub(super) fn is_over(&self) -> bool {
        let is_closed = |socket: &Socket| matches!(socket.state(), TcpState::Closed(_));
        self.is_closed_by_machine
            && is_closed(&self.client)
            && self.server_conn.as_ref().is_none_or(|server_conn| is_closed(&server_conn.socket))
    }

    /// Body bytes that have reached the client.
    pub(super) fn body_bytes(&self) -> DataSize {
        DataSize::from_bytes(
            (self.client.received_bytes() + self.bytes_after_close).saturating_sub(self.response_stream.overhead()),
        )
    }

    fn write(&mut self, bytes: u64) {
        self.bytes_written += bytes;
        self.client.write(DataSize::from_bytes(bytes));
    }

    fn handshake_input(&mut self) -> Option<Input> {
        if let TcpState::Closed(_) = self.client.state() {
            return self.close_input();
        }
        if self.tls == Some(TlsHandshake::HelloSent)
            && self.response_stream.read(self.client.in_order_bytes()) == Some(StreamPiece::Handshake)
        {
            self.tls = None;
        }
        if self.client.state() != TcpState::Established || self.tls.is_some() {
            return None;
        }
        self.is_connected = true;
        let handshake = self.client.handshake_time().unwrap_or_default();
        Some(Input::Connected { conn: self.id, protocol: self.protocol, handshake_rtt: handshake, peer: None })
    }

    /// An input from withheld pieces whose response has been accepted meanwhile.
    fn released_input(&mut self, file_check: &mut FileCheck) -> Option<Input> {
        loop {
            let mut accepted = self.responses.values_mut().filter(|response| response.accepted.is_some());
            let piece = accepted.find_map(|response| response.withheld.pop_front())?;
            if let Some(input) = self.input_for_piece(piece, file_check) {
                return Some(input);
            }
        }
    }

    /// An input from newly arrived data.
    fn arrived_input(&mut self, file_check: &mut FileCheck) -> Option<Input> {
        loop {
            if self.has_protocol_error {
                return None;
            }
            let piece = self.response_stream.read(self.client.in_order_bytes())?;
            if let Some(input) = self.input_for_piece(piece, file_check) {
                return Some(input);
            }
        }
    }

    fn input_for_piece(&mut self, piece: StreamPiece, file_check: &mut FileCheck) -> Option<Input> {
        let req = match &piece {
            StreamPiece::Handshake => return None,
            StreamPiece::Head(req, _)
            | StreamPiece::Body(req, ..)
            | StreamPiece::End(req)
            | StreamPiece::Abort(req) => *req,
        };
        let response = self.responses.get_mut(&req)?;
        if let StreamPiece::Head(_, head) = piece {
            response.has_head = true;
            return Some(Input::Head { req, head: *head });
        }
        let Some(accepted) = &mut response.accepted else {
            response.withheld.push_back(piece);
            return None;
        };
        match piece {
            StreamPiece::Body(_, version, range) => {
                let accepted_len = accepted.remaining.map_or(range.len(), |left| left.min(range.len()));
                self.has_protocol_error |= accepted_len < range.len();
                if accepted_len.is_zero() {
                    return None;
                }
                file_check.record(version, ByteRange::at(range.start, accepted_len), accepted.offset);
                accepted.offset += accepted_len.bytes();
                accepted.remaining = accepted.remaining.map(|left| left - accepted_len);
                Some(Input::Data { req, len: accepted_len })
            }
            StreamPiece::Abort(_) => {
                self.responses.remove(&req);
                Some(Input::Aborted { req, error: conn_error(ConnErrorKind::Reset) })
            }
            _ => {
                self.responses.remove(&req);
                Some(Input::End { req })
            }
        }
    }

    fn close_input(&mut self) -> Option<Input> {
        let any_begun = || self.responses.values().any(|response| response.has_head);
        let kind = match self.client.state() {
            _ if self.has_protocol_error => ConnErrorKind::Protocol,
            TcpState::Closed(TcpCloseReason::Refused) => ConnErrorKind::Refused,
            TcpState::Closed(TcpCloseReason::TimedOut) => ConnErrorKind::TimedOut,
            TcpState::Closed(TcpCloseReason::Reset) => ConnErrorKind::Reset,
            _ if !self.client.is_peer_finished() || !self.response_stream.is_drained() => return None,
            _ if any_begun() => ConnErrorKind::Truncated,
            _ => ConnErrorKind::CleanClose,
        };
        self.close();
        Some(Input::Closed { conn: self.id, error: conn_error(kind) })
    }

    fn sample_input(&mut self, now: Instant) -> Option<Input> {
        if self.responses.is_empty() {
            self.next_sample = None;
        }
        self.next_sample.filter(|at| *at <= now)?;
        self.next_sample = Some(now + SAMPLE_INTERVAL);
        let info = self.client.info();
        let path = PathSample {
            rtt: info.rtt,
            min_rtt: info.min_rtt,
            rcv_rtt: info.rcv_rtt,
            out_of_order: info.out_of_order,
        };
        Some(Input::Sample { conn: self.id, path })
    }
}

/// A segment to be sent, with its direction.
#[derive(Clone, Copy, Debug)]
pub(super) enum OutgoingSegment {
    Up(Segment),
    Down(Segment),
}

/// An error of this kind with the simulator's text.
pub(super) fn conn_error(kind: ConnErrorKind) -> ConnError {
    let text = match kind {
        ConnErrorKind::CleanClose => "the server closed the connection",
        ConnErrorKind::Truncated => "the connection ended in the middle of a response",
        ConnErrorKind::Reset => "connection reset",
        ConnErrorKind::Refused => "connection refused",
        ConnErrorKind::Unreachable => "no route to host",
        ConnErrorKind::TimedOut => "timed out",
        ConnErrorKind::Dns => "no such name",
        ConnErrorKind::Tls => "TLS handshake failed",
        ConnErrorKind::Protocol => "body longer than announced",
        ConnErrorKind::Http1Required => "HTTP/1.1 required",
        ConnErrorKind::StreamRefused => "stream refused",
        ConnErrorKind::ClosedLocally => "closed locally",
        ConnErrorKind::Forbidden => "forbidden",
        ConnErrorKind::OwnListener => "the address is marline's own listener",
    };
    ConnError { kind, text: text.to_string() }
}

/// Bytes of a request head with Range and If-Range.
const REQUEST_BYTES: u64 = 200;
/// Interval of reading TCP_INFO while responses are outstanding.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(50);
