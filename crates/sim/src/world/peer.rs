//! The server's end of one connection: hears requests, writes answers.
//!
//! 1. HTTP/1.1: one answer after the other, in the order of the requests. HTTP/2: side by side, a frame of each in
//!    turn.
//! 2. The send buffer is kept filled by a fixed amount of unsent bytes, so that a choice among answers is made late.
//! 3. What was promised to end badly ends when everything before has been sent.

use std::collections::VecDeque;

use marline_core::fetch::{ByteRange, Protocol, ReqId, RequestRange, Validator};
use marline_core::units::{DataSize, Duration, Instant};

use super::script::{Piece, Script};
use super::server::{Answer, Asking, Body, Server, Spoiled};
use crate::tcp::Socket;

/// The server's end.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) socket: Socket,
    link: usize,
    protocol: Protocol,
    tls: bool,
    heard: VecDeque<(Instant, Asked)>,
    active: VecDeque<Sending>,
    answered: u32,
    free_since: Instant,
    ending: Option<Spoiled>,
    paced: Option<(Instant, DataSize)>,
}

/// A request on its way to the server: it is heard when the stream is complete up to `end`.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) end: u64,
    pub(super) req: ReqId,
    pub(super) ask: RequestRange,
    pub(super) if_range: Option<Validator>,
}

#[derive(Debug)]
struct Sending {
    req: ReqId,
    body: Body,
    spoiled: Option<Spoiled>,
}

/// What a peer works with beside its own state.
pub(super) struct Desk<'a> {
    pub(super) server: &'a mut Server,
    pub(super) served: &'a mut DataSize,
    pub(super) requests: &'a mut VecDeque<Asked>,
    pub(super) script: &'a mut Script,
}

impl Peer {
    /// The end that was called.
    pub(super) fn new(socket: Socket, link: usize, protocol: Protocol, tls: bool, now: Instant) -> Self {
        Self {
            socket,
            link,
            protocol,
            tls,
            heard: VecDeque::new(),
            active: VecDeque::new(),
            answered: 0,
            free_since: now,
            ending: None,
            paced: None,
        }
    }

    /// Does what can be done at `now`.
    pub(super) fn turn(&mut self, now: Instant, desk: &mut Desk<'_>) {
        let complete = self.socket.complete();
        if self.tls && complete >= TLS_HELLO {
            self.tls = false;
            self.socket.write(DataSize::from_bytes(TLS_ANSWER));
            desk.script.write(Piece::Handshake, TLS_ANSWER);
        }
        while desk.requests.front().is_some_and(|asked| asked.end <= complete) {
            self.heard.extend(desk.requests.pop_front().map(|asked| (now, asked)));
        }
        while self.ending.is_none() && self.starts(desk.server.think).is_some_and(|at| at <= now) {
            let Some((_, asked)) = self.heard.pop_front() else { break };
            self.start(now, asked, desk);
        }
        self.fill(now, desk);
        self.end();
        if self.socket.ended() {
            self.socket.finish();
        }
    }

    /// When [`Self::turn`] has something to do although nothing arrives.
    pub(super) fn next(&self, server: &Server) -> Option<Instant> {
        let start = if self.ending.is_none() { self.starts(server.think) } else { None };
        let pace = if self.wants_more() { self.pace(server) } else { None };
        [start, pace, self.socket.timer()].into_iter().flatten().min()
    }

    /// When the next answer begins.
    fn starts(&self, think: Duration) -> Option<Instant> {
        let (heard, _) = self.heard.front()?;
        match self.protocol {
            Protocol::Http2 => Some(*heard + think),
            Protocol::Http1 if self.active.is_empty() => Some((*heard).max(self.free_since) + think),
            Protocol::Http1 => None,
        }
    }

    fn start(&mut self, now: Instant, asked: Asked, desk: &mut Desk<'_>) {
        self.answered += 1;
        let last = desk.server.keepalive_requests.is_some_and(|most| self.answered >= most);
        let asking = Asking { what: asked.ask, if_range: asked.if_range.as_ref(), last };
        let Answer { head, body, mut spoiled } = desk.server.answer(self.link, now, *desk.served, asking);
        if spoiled == Some(Spoiled::Aborted) && self.protocol == Protocol::Http1 {
            spoiled = Some(Spoiled::Reset);
        }
        if last && spoiled.is_none() {
            spoiled = Some(Spoiled::Closed);
        }
        self.socket.write(HEAD);
        desk.script.write(Piece::Head(asked.req, Box::new(head)), HEAD.bytes());
        self.active.push_back(Sending { req: asked.req, body, spoiled });
        self.finish_empty(now, desk.script);
    }

    fn fill(&mut self, now: Instant, desk: &mut Desk<'_>) {
        while self.wants_more() && self.pace(desk.server).is_none_or(|at| at <= now) {
            let Some(sending) = self.active.front_mut() else { return };
            let chunk = if self.protocol == Protocol::Http1 { CHUNK } else { FRAME };
            let span = sending.body.span;
            let part = span.intersect(ByteRange::at(span.start, chunk));
            sending.body.span.start = part.end;
            self.socket.write(part.len());
            *desk.served += part.len();
            let paced = self.paced.get_or_insert((now, DataSize::ZERO));
            paced.1 += part.len();
            desk.script.write(Piece::Body(sending.req, sending.body.edition, part), part.len().bytes());
            self.finish_empty(now, desk.script);
            if self.protocol == Protocol::Http2 && self.active.len() > 1 {
                self.active.rotate_left(1);
            }
        }
    }

    fn wants_more(&self) -> bool {
        !self.active.is_empty() && self.ending.is_none() && self.socket.unsent() < UNSENT
    }

    /// When the connection's rate allows the next chunk.
    fn pace(&self, server: &Server) -> Option<Instant> {
        let (since, written) = self.paced?;
        Some(since + written / server.per_connection_rate?)
    }

    /// Ends the answer in front if nothing of it is left.
    fn finish_empty(&mut self, now: Instant, script: &mut Script) {
        let done = |sending: &Sending| sending.body.span.is_empty();
        let Some(at) = self.active.iter().position(done) else { return };
        let Some(sending) = self.active.remove(at) else { return };
        match sending.spoiled {
            None => script.write(Piece::End(sending.req), 0),
            Some(Spoiled::Aborted) => script.write(Piece::Abort(sending.req), 0),
            Some(how) => {
                if how == Spoiled::Closed {
                    script.write(Piece::End(sending.req), 0);
                }
                self.ending = Some(how);
            }
        }
        self.free_since = now;
    }

    fn end(&mut self) {
        if !self.socket.unsent().is_zero() {
            return;
        }
        match self.ending {
            Some(Spoiled::Truncated | Spoiled::Closed) => self.socket.finish(),
            Some(Spoiled::Reset) => self.socket.abort(),
            Some(Spoiled::Stalled | Spoiled::Aborted) | None => {}
        }
    }
}

/// An answer's head: nginx's with ETag, ranges and date.
const HEAD: DataSize = DataSize::from_bytes(300);
/// ClientHello.
pub(super) const TLS_HELLO: u64 = 300;
/// ServerHello to Finished with one certificate of usual size.
const TLS_ANSWER: u64 = 3000;
/// What one write of a body brings; with HTTP/2 the usual frame.
const CHUNK: DataSize = DataSize::from_kib(64);
const FRAME: DataSize = DataSize::from_kib(16);
/// Unsent bytes that are kept ready.
const UNSENT: DataSize = DataSize::from_kib(128);
