//! One connection of the client, with the server's end of it.
//!
//! In: segments, the machine's orders. Out: segments, and the machine's inputs one by one.
//!
//! 1. Inputs are made when they are asked for ([`Conn::next_input`]), so that each sees what the machine ordered in
//!    answer to the one before: after a close or a cancellation nothing is reported any more.
//! 2. A body whose head the machine has not judged yet is kept back, not thrown away.
//! 3. Bytes of one answer that became readable at one instant are one input.
//! 4. An answer that brings more than was accepted breaks the protocol, and the connection with it.

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

/// A connection.
#[derive(Debug)]
pub(super) struct Conn {
    id: ConnId,
    /// The link's place in the scene.
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
    /// Nothing is reported any more.
    is_closed_by_machine: bool,
    has_protocol_error: bool,
    bytes_after_close: u64,
    next_sample: Option<Instant>,
}

/// How far the TLS handshake is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum TlsHandshake {
    Pending,
    HelloSent,
}

/// An answer that has not ended.
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
    /// A connection over the scene's link number `link`; its SYN is ready to go.
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

    /// A segment reaches the client.
    pub(super) fn on_segment_at_client(&mut self, now: Instant, segment: &Segment) {
        if matches!(self.client.state(), TcpState::Closed(_)) {
            self.bytes_after_close += segment.seqs.len();
        }
        self.client.on_segment(now, segment);
    }

    /// A segment reaches the server, which makes an end for the first one.
    pub(super) fn on_segment_at_server(&mut self, now: Instant, segment: &Segment, config: TcpConfig) {
        match &mut self.server_conn {
            Some(peer) => peer.socket.on_segment(now, segment),
            None if segment.flags.syn => {
                let socket = Socket::accept(config, segment, now);
                self.server_conn = Some(ServerConn::new(socket, self.link, self.protocol, self.tls.is_some(), now));
            }
            None => {}
        }
    }

    /// Whether the server has an end of it.
    pub(super) const fn has_server_conn(&self) -> bool {
        self.server_conn.is_some()
    }

    /// Lets both ends do what they can at `now`; `up` and `down` take what they send.
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
        let Some(peer) = &mut self.server_conn else { return };
        peer.socket.on_timer(now);
        let (requests, script) = (&mut self.requests, &mut self.response_stream);
        let mut context = ServerContext { server, served_bytes, requests, response_stream: script };
        loop {
            peer.run(now, &mut context);
            let mut is_idle = true;
            while let Some(segment) = peer.socket.poll(now) {
                is_idle = false;
                send(OutgoingSegment::Down(segment));
            }
            if is_idle {
                return;
            }
        }
    }

    /// When [`Self::turn`] or [`Self::next_input`] is to be called although nothing arrives.
    pub(super) fn next_event(&self, server: &HttpServer) -> Option<Instant> {
        let server_conn = self.server_conn.as_ref().and_then(|peer| peer.next_event(server));
        [self.client.timer(), server_conn, self.next_sample].into_iter().flatten().min()
    }

    /// The machine asks for something.
    pub(super) fn request(&mut self, now: Instant, req: ReqId, request: RequestRange, if_range: Option<Validator>) {
        self.write(REQUEST_BYTES);
        self.requests.push_back(SentRequest { stream_end: self.bytes_written, req, range: request, if_range });
        self.responses.insert(req, OpenResponse::default());
        self.next_sample.get_or_insert(now + SAMPLE_INTERVAL);
    }

    /// The machine takes an answer. False: it is not one of this connection.
    pub(super) fn accept(&mut self, req: ReqId, offset: u64, remaining: Option<DataSize>) -> bool {
        let Some(response) = self.responses.get_mut(&req) else { return false };
        response.accepted = Some(AcceptedBody { offset, remaining });
        true
    }

    /// The machine does not want an answer (any more). False: it is not one of this connection.
    pub(super) fn cancel(&mut self, req: ReqId) -> bool {
        self.responses.remove(&req).is_some()
    }

    /// The machine wants no more of it.
    pub(super) fn close(&mut self) {
        self.is_closed_by_machine = true;
        self.next_sample = None;
        self.client.abort();
    }

    /// The next thing that the machine is to hear.
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

    /// Whether it can be forgotten.
    pub(super) fn is_over(&self) -> bool {
        let is_closed = |socket: &Socket| matches!(socket.state(), TcpState::Closed(_));
        self.is_closed_by_machine
            && is_closed(&self.client)
            && self.server_conn.as_ref().is_none_or(|peer| is_closed(&peer.socket))
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

    /// Something that was kept back and may go now.
    fn released_input(&mut self, file_check: &mut FileCheck) -> Option<Input> {
        loop {
            let mut accepted = self.responses.values_mut().filter(|response| response.accepted.is_some());
            let piece = accepted.find_map(|response| response.withheld.pop_front())?;
            if let Some(input) = self.input_for_piece(piece, file_check) {
                return Some(input);
            }
        }
    }

    /// Something new.
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
            StreamPiece::Body(_, version, span) => {
                let accepted_len = accepted.remaining.map_or(span.len(), |left| left.min(span.len()));
                self.has_protocol_error |= accepted_len < span.len();
                if accepted_len.is_zero() {
                    return None;
                }
                file_check.record(version, ByteRange::at(span.start, accepted_len), accepted.offset);
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

/// What goes onto the link.
#[derive(Clone, Copy, Debug)]
pub(super) enum OutgoingSegment {
    Up(Segment),
    Down(Segment),
}

/// A failure of this kind, in the simulation's words.
pub(super) fn conn_error(kind: ConnErrorKind) -> ConnError {
    let text = match kind {
        ConnErrorKind::CleanClose => "the server closed the connection",
        ConnErrorKind::Truncated => "the connection ended in the middle of an answer",
        ConnErrorKind::Reset => "connection reset",
        ConnErrorKind::Refused => "connection refused",
        ConnErrorKind::Unreachable => "no route",
        ConnErrorKind::TimedOut => "timed out",
        ConnErrorKind::Dns => "no such name",
        ConnErrorKind::Tls => "TLS handshake failed",
        ConnErrorKind::Protocol => "more than the answer's length",
        ConnErrorKind::Http1Required => "HTTP/1.1 required",
        ConnErrorKind::StreamRefused => "stream refused",
        ConnErrorKind::ClosedLocally => "closed here",
        ConnErrorKind::Forbidden => "forbidden",
        ConnErrorKind::OwnListener => "our own listener",
    };
    ConnError { kind, text: text.to_string() }
}

/// A request's head with Range and If-Range.
const REQUEST_BYTES: u64 = 200;
/// How often TCP_INFO is read while answers are outstanding.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(50);
