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

use super::peer::{Asked, Desk, Peer, TLS_HELLO};
use super::script::{Piece, Script};
use super::server::Server;
use super::store::Store;
use crate::tcp::{Config, Ending, Segment, Socket, State};

/// A connection.
#[derive(Debug)]
pub(super) struct Conn {
    id: ConnId,
    /// The link's place in the scene.
    pub(super) link: usize,
    protocol: Protocol,
    tls: Option<Tls>,
    client: Socket,
    peer: Option<Peer>,
    script: Script,
    requests: VecDeque<Asked>,
    written: u64,
    answers: BTreeMap<ReqId, Answering>,
    connected: bool,
    /// Nothing is reported any more.
    left: bool,
    broken: bool,
    late: u64,
    sample: Option<Instant>,
}

/// How far the TLS handshake is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Tls {
    Wanted,
    Asked,
}

/// An answer that has not ended.
#[derive(Debug, Default)]
struct Answering {
    begun: bool,
    accepted: Option<Accepted>,
    held: VecDeque<Piece>,
}

#[derive(Clone, Copy, Debug)]
struct Accepted {
    at: u64,
    left: Option<DataSize>,
}

impl Conn {
    /// A connection over the scene's link number `link`; its SYN is ready to go.
    pub(super) fn new(
        id: ConnId,
        link: usize,
        config: Config,
        protocol: Protocol,
        tls: bool,
        now: Instant,
    ) -> Self {
        Self {
            id,
            link,
            protocol,
            tls: tls.then_some(Tls::Wanted),
            client: Socket::connect(config, id.0, now),
            peer: None,
            script: Script::default(),
            requests: VecDeque::new(),
            written: 0,
            answers: BTreeMap::new(),
            connected: false,
            left: false,
            broken: false,
            late: 0,
            sample: None,
        }
    }

    /// A segment reaches the client.
    pub(super) fn on_client(&mut self, now: Instant, segment: &Segment) {
        if matches!(self.client.state(), State::Over(_)) {
            self.late += segment.data.len();
        }
        self.client.on_segment(now, segment);
    }

    /// A segment reaches the server, which makes an end for the first one.
    pub(super) fn on_server(&mut self, now: Instant, segment: &Segment, config: Config) {
        match &mut self.peer {
            Some(peer) => peer.socket.on_segment(now, segment),
            None if segment.flags.syn => {
                let socket = Socket::accept(config, segment, now);
                self.peer = Some(Peer::new(socket, self.link, self.protocol, self.tls.is_some(), now));
            }
            None => {}
        }
    }

    /// Whether the server has an end of it.
    pub(super) const fn has_peer(&self) -> bool {
        self.peer.is_some()
    }

    /// Lets both ends do what they can at `now`; `up` and `down` take what they send.
    pub(super) fn turn(
        &mut self,
        now: Instant,
        server: &mut Server,
        served: &mut DataSize,
        mut send: impl FnMut(Sent),
    ) {
        self.client.on_timer(now);
        if self.tls == Some(Tls::Wanted) && self.client.state() == State::Open {
            self.tls = Some(Tls::Asked);
            self.write(TLS_HELLO);
        }
        while let Some(segment) = self.client.poll(now) {
            send(Sent::Up(segment));
        }
        let Some(peer) = &mut self.peer else { return };
        peer.socket.on_timer(now);
        let (requests, script) = (&mut self.requests, &mut self.script);
        let mut desk = Desk { server, served, requests, script };
        loop {
            peer.turn(now, &mut desk);
            let mut quiet = true;
            while let Some(segment) = peer.socket.poll(now) {
                quiet = false;
                send(Sent::Down(segment));
            }
            if quiet {
                return;
            }
        }
    }

    /// When [`Self::turn`] or [`Self::next_input`] is to be called although nothing arrives.
    pub(super) fn next(&self, server: &Server) -> Option<Instant> {
        let peer = self.peer.as_ref().and_then(|peer| peer.next(server));
        [self.client.timer(), peer, self.sample].into_iter().flatten().min()
    }

    /// The machine asks for something.
    pub(super) fn request(&mut self, now: Instant, req: ReqId, ask: RequestRange, if_range: Option<Validator>) {
        self.write(REQUEST);
        self.requests.push_back(Asked { end: self.written, req, ask, if_range });
        self.answers.insert(req, Answering::default());
        self.sample.get_or_insert(now + SAMPLE);
    }

    /// The machine takes an answer. False: it is not one of this connection.
    pub(super) fn accept(&mut self, req: ReqId, at: u64, left: Option<DataSize>) -> bool {
        let Some(answer) = self.answers.get_mut(&req) else { return false };
        answer.accepted = Some(Accepted { at, left });
        true
    }

    /// The machine does not want an answer (any more). False: it is not one of this connection.
    pub(super) fn cancel(&mut self, req: ReqId) -> bool {
        self.answers.remove(&req).is_some()
    }

    /// The machine wants no more of it.
    pub(super) fn close(&mut self) {
        self.left = true;
        self.sample = None;
        self.client.abort();
    }

    /// The next thing that the machine is to hear.
    pub(super) fn next_input(&mut self, now: Instant, store: &mut Store) -> Option<Input> {
        if self.left {
            return None;
        }
        if !self.connected {
            return self.opening();
        }
        let heard = self.released(store).or_else(|| self.arrived(store)).or_else(|| self.ended());
        heard.or_else(|| self.sampled(now))
    }

    /// Whether it can be forgotten.
    pub(super) fn is_over(&self) -> bool {
        let over = |socket: &Socket| matches!(socket.state(), State::Over(_));
        self.left && over(&self.client) && self.peer.as_ref().is_none_or(|peer| over(&peer.socket))
    }

    /// Body bytes that have reached the client.
    pub(super) fn body_bytes(&self) -> DataSize {
        DataSize::from_bytes((self.client.arrived() + self.late).saturating_sub(self.script.overhead()))
    }

    fn write(&mut self, bytes: u64) {
        self.written += bytes;
        self.client.write(DataSize::from_bytes(bytes));
    }

    fn opening(&mut self) -> Option<Input> {
        if let State::Over(_) = self.client.state() {
            return self.ended();
        }
        if self.tls == Some(Tls::Asked) && self.script.read(self.client.complete()) == Some(Piece::Handshake) {
            self.tls = None;
        }
        if self.client.state() != State::Open || self.tls.is_some() {
            return None;
        }
        self.connected = true;
        let handshake = self.client.handshake().unwrap_or_default();
        Some(Input::Connected { conn: self.id, protocol: self.protocol, handshake_rtt: handshake, peer: None })
    }

    /// Something that was kept back and may go now.
    fn released(&mut self, store: &mut Store) -> Option<Input> {
        loop {
            let mut judged = self.answers.values_mut().filter(|answer| answer.accepted.is_some());
            let piece = judged.find_map(|answer| answer.held.pop_front())?;
            if let Some(input) = self.take(piece, store) {
                return Some(input);
            }
        }
    }

    /// Something new.
    fn arrived(&mut self, store: &mut Store) -> Option<Input> {
        loop {
            if self.broken {
                return None;
            }
            let piece = self.script.read(self.client.complete())?;
            if let Some(input) = self.take(piece, store) {
                return Some(input);
            }
        }
    }

    fn take(&mut self, piece: Piece, store: &mut Store) -> Option<Input> {
        let req = match &piece {
            Piece::Handshake => return None,
            Piece::Head(req, _) | Piece::Body(req, ..) | Piece::End(req) | Piece::Abort(req) => *req,
        };
        let answer = self.answers.get_mut(&req)?;
        if let Piece::Head(_, head) = piece {
            answer.begun = true;
            return Some(Input::Head { req, head: *head });
        }
        let Some(accepted) = &mut answer.accepted else {
            answer.held.push_back(piece);
            return None;
        };
        match piece {
            Piece::Body(_, edition, span) => {
                let fits = accepted.left.map_or(span.len(), |left| left.min(span.len()));
                self.broken |= fits < span.len();
                if fits.is_zero() {
                    return None;
                }
                store.put(edition, ByteRange::at(span.start, fits), accepted.at);
                accepted.at += fits.bytes();
                accepted.left = accepted.left.map(|left| left - fits);
                Some(Input::Data { req, len: fits })
            }
            Piece::Abort(_) => {
                self.answers.remove(&req);
                Some(Input::Aborted { req, error: trouble(ConnErrorKind::Reset) })
            }
            _ => {
                self.answers.remove(&req);
                Some(Input::End { req })
            }
        }
    }

    fn ended(&mut self) -> Option<Input> {
        let begun = || self.answers.values().any(|answer| answer.begun);
        let kind = match self.client.state() {
            _ if self.broken => ConnErrorKind::Protocol,
            State::Over(Ending::Refused) => ConnErrorKind::Refused,
            State::Over(Ending::TimedOut) => ConnErrorKind::TimedOut,
            State::Over(Ending::Reset) => ConnErrorKind::Reset,
            _ if !self.client.ended() || !self.script.is_read() => return None,
            _ if begun() => ConnErrorKind::Truncated,
            _ => ConnErrorKind::CleanClose,
        };
        self.close();
        Some(Input::Closed { conn: self.id, error: trouble(kind) })
    }

    fn sampled(&mut self, now: Instant) -> Option<Input> {
        if self.answers.is_empty() {
            self.sample = None;
        }
        self.sample.filter(|at| *at <= now)?;
        self.sample = Some(now + SAMPLE);
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
pub(super) enum Sent {
    Up(Segment),
    Down(Segment),
}

/// A failure of this kind, in the simulation's words.
pub(super) fn trouble(kind: ConnErrorKind) -> ConnError {
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
const REQUEST: u64 = 200;
/// How often TCP_INFO is read while answers are outstanding.
const SAMPLE: Duration = Duration::from_millis(50);
