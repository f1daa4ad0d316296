//! Connections of a random history: the responses of their servers, piece by piece, and their faults.

use std::collections::VecDeque;

use marline_core::fetch::{
    ByteRange, ConnError, ConnErrorKind, ConnId, ContentRange, Input, PathSample, Protocol, ReqId, RequestRange,
    ResponseHead, Validator,
};
use marline_core::units::{DataSize, Duration};

use super::{Driver, Event, closed_input};
use crate::fuzz_fetch::fault_plan::{LinkBehavior, etag, one_in};
use crate::fuzz_fetch::reference::{ByteSource, ResponseTruth};
use crate::fuzz_fetch::subject::Subject;
use crate::http_sim::server::{ResponseBody, ServerRequest, ServerResponse};
use crate::rng::RandomStream;

#[derive(Debug)]
pub(super) struct Conn {
    pub(super) link: usize,
    pub(super) is_open: bool,
    /// Whether a step is in the event queue.
    pub(super) step_scheduled: bool,
    /// Hangs forever without an error.
    pub(super) is_unresponsive: bool,
    pub(super) response_count: u32,
    /// Size in bytes of the last piece delivered.
    pub(super) last_chunk: u64,
    pub(super) responses: VecDeque<PendingResponse>,
}

#[derive(Debug)]
pub(super) struct PendingResponse {
    pub(super) req: ReqId,
    pub(super) range: RequestRange,
    pub(super) if_range: Option<Validator>,
    /// Rest of the body; `None` until the head was sent.
    pub(super) remaining_body: Option<ByteRange>,
    /// Bytes that the machine still accepts; `None` without a limit.
    pub(super) remaining_accepted: Option<u64>,
    pub(super) is_accepted: bool,
    pub(super) closes_connection: bool,
}

impl<M: Subject> Driver<M> {
    /// Schedules the connection's next step, unless one is scheduled or the connection hangs.
    pub(super) fn schedule_step(&mut self, id: ConnId, is_delayed: bool) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if conn.step_scheduled || conn.is_unresponsive {
            return;
        }
        conn.step_scheduled = true;
        let latency = self.fault_plan.links[conn.link].rtt;
        self.schedule(if is_delayed { latency } else { Duration::ZERO }, Event::ConnStep(id));
    }

    pub(super) fn step_conn(&mut self, id: ConnId) -> Result<(), String> {
        let Some(conn) = self.conns.get_mut(&id) else { return Ok(()) };
        conn.step_scheduled = false;
        let behavior = self.fault_plan.links[conn.link].clone();
        if !self.link_present[conn.link] || conn.is_unresponsive {
            return Ok(());
        }
        // Faults are drawn first, so that a handshake can fail as well.
        if self.rng.bernoulli(behavior.fault_rate) {
            return self.inject_fault(id);
        }
        let Some(conn) = self.conns.get_mut(&id) else { return Ok(()) };
        if !conn.is_open {
            conn.is_open = true;
            let (protocol, handshake) = (self.fault_plan.protocol, behavior.rtt);
            return self.feed(Input::Connected { conn: id, protocol, handshake_rtt: handshake, peer: None });
        }
        let Some(index) = self.choose_response(id) else { return Ok(()) };
        self.send_response(id, index, &behavior)?;
        self.schedule_next_step(id, &behavior);
        Ok(())
    }

    /// Index of the response that continues: the first one with HTTP/1.1, a random one with HTTP/2.
    fn choose_response(&mut self, id: ConnId) -> Option<usize> {
        let conn = self.conns.get(&id)?;
        let window_end = self.window_end();
        let is_withheld = |body: ByteRange| !body.is_empty() && body.start >= window_end;
        // A head can always be sent; a body only after its acceptance and within the reader's window.
        let ready = |pending: &PendingResponse| {
            pending.remaining_body.is_none_or(|body| pending.is_accepted && !is_withheld(body))
        };
        if self.fault_plan.protocol == Protocol::Http1 {
            return conn.responses.front().filter(|pending| ready(pending)).map(|_| 0);
        }
        let ready_indices: Vec<usize> =
            (0..conn.responses.len()).filter(|index| ready(&conn.responses[*index])).collect();
        let choice = self.rng.below(ready_indices.len() as u64);
        ready_indices.get(usize::try_from(choice).unwrap_or(0)).copied()
    }

    fn send_response(&mut self, id: ConnId, index: usize, behavior: &LinkBehavior) -> Result<(), String> {
        let window_end = self.window_end();
        let Some(conn) = self.conns.get_mut(&id) else { return Ok(()) };
        let pending = &mut conn.responses[index];
        let req = pending.req;
        let Some(body) = &mut pending.remaining_body else { return self.send_head(id, index, behavior) };
        let remaining = pending.remaining_accepted.unwrap_or(u64::MAX);
        if body.is_empty() {
            let closes = pending.closes_connection;
            conn.responses.remove(index);
            self.feed(Input::End { req })?;
            return if closes { self.close_conn(id, ConnErrorKind::CleanClose) } else { Ok(()) };
        }
        if remaining == 0 {
            return self.close_conn(id, ConnErrorKind::Protocol);
        }
        // At most the rest of the body, of the accepted length and of the reader's window.
        let max_len = body.len().bytes().min(remaining).min(1 << 16).min(window_end - body.start);
        let len = 1 + self.rng.below(max_len);
        conn.last_chunk = len;
        body.start += len;
        pending.remaining_accepted = pending.remaining_accepted.map(|remaining| remaining - len);
        let len = DataSize::from_bytes(len);
        self.served_bytes += len;
        self.feed(Input::Data { req, len })?;
        if self.player.is_none()
            && self.reader_window().is_some()
            && self.reference.in_order_end() > self.consumed_end
        {
            let delay = self.random_duration(Duration::from_millis(30));
            self.schedule(delay, Event::Consume);
        }
        if one_in(&mut self.rng, 8) && self.conns.contains_key(&id) {
            let rtt = behavior.rtt + self.random_duration(behavior.rtt);
            let path = PathSample { rtt, min_rtt: behavior.rtt, rcv_rtt: rtt, out_of_order: 0 };
            self.feed(Input::Sample { conn: id, path })?;
        }
        Ok(())
    }

    fn send_head(&mut self, id: ConnId, index: usize, behavior: &LinkBehavior) -> Result<(), String> {
        let Some(conn) = self.conns.get_mut(&id) else { return Ok(()) };
        conn.response_count += 1;
        let server = &mut self.fault_plan.server;
        let is_last = server.keepalive_requests.is_some_and(|limit| conn.response_count >= limit);
        let pending = &mut conn.responses[index];
        let request = ServerRequest { range: pending.range, if_range: pending.if_range.as_ref(), is_last };
        let mut response = server.respond(conn.link, self.now, self.served_bytes, request);
        if self.rng.bernoulli(behavior.corruption_rate) {
            corrupt_response(&mut self.rng, &mut response);
        }
        let ServerResponse { head, body, .. } = response;
        let source = match (body.version, &head.validator) {
            (Some(version), Some(_)) => ByteSource::Version(version),
            (Some(_), None) => ByteSource::Unverified(pending.req, ResponseTruth::File),
            (None, _) => ByteSource::Unverified(pending.req, ResponseTruth::OtherPage),
        };
        pending.remaining_body = Some(body.range);
        pending.closes_connection = is_last;
        let req = pending.req;
        self.reference.on_head(req, source, body.range.start);
        self.feed(Input::Head { req, head })
    }

    fn schedule_next_step(&mut self, id: ConnId, behavior: &LinkBehavior) {
        let active_conns = self.conns.values().filter(|conn| !conn.responses.is_empty()).count() as u64;
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if conn.step_scheduled || conn.is_unresponsive || conn.responses.is_empty() {
            return;
        }
        conn.step_scheduled = true;
        // All busy connections share the link's rate.
        let transmit_time = DataSize::from_bytes(conn.last_chunk) * active_conns / behavior.rate;
        let delay = transmit_time + self.random_duration(Duration::from_millis(20));
        self.schedule(delay, Event::ConnStep(id));
    }

    fn inject_fault(&mut self, id: ConnId) -> Result<(), String> {
        let Some(conn) = self.conns.get_mut(&id) else { return Ok(()) };
        match self.rng.below(6) {
            0 => {
                conn.is_unresponsive = true;
                Ok(())
            }
            1 if conn.is_open && self.fault_plan.protocol == Protocol::Http2 => match conn.responses.pop_front() {
                Some(PendingResponse { req, .. }) => {
                    self.schedule_step(id, false);
                    let error = ConnError { kind: ConnErrorKind::Reset, text: "stream reset".to_string() };
                    self.feed(Input::Aborted { req, error })
                }
                None => Ok(()),
            },
            // A body that ends before its announced length, where the machine knows that length.
            2 if conn
                .responses
                .front()
                .is_some_and(|pending| pending.is_accepted && pending.remaining_accepted.is_some()) =>
            {
                let Some(PendingResponse { req, .. }) = conn.responses.pop_front() else { return Ok(()) };
                self.schedule_step(id, false);
                self.feed(Input::End { req })
            }
            3 => {
                conn.step_scheduled = true;
                let delay = self.random_duration(Duration::from_secs(8));
                self.schedule(delay, Event::ConnStep(id));
                Ok(())
            }
            _ => {
                let kinds: &[ConnErrorKind] = if conn.is_open { &OPEN_CONN_ERRORS } else { &HANDSHAKE_ERRORS };
                let kind = kinds[usize::try_from(self.rng.below(kinds.len() as u64)).unwrap_or(0)];
                self.close_conn(id, kind)
            }
        }
    }

    fn close_conn(&mut self, id: ConnId, kind: ConnErrorKind) -> Result<(), String> {
        match self.conns.remove(&id) {
            Some(_) => self.feed(closed_input(id, kind)),
            None => Ok(()),
        }
    }
}

/// Replaces or damages a response, as a captive portal, a broken server or another CDN node would.
fn corrupt_response(rng: &mut RandomStream, response: &mut ServerResponse) {
    let page = |rng: &mut RandomStream, status: u16| {
        let body = ResponseBody { version: None, range: ByteRange::new(0, rng.below(20_000)) };
        let head = ResponseHead { status, length: Some(body.range.len()), ..ResponseHead::default() };
        ServerResponse { head, body, fault: None }
    };
    match rng.below(12) {
        0..3 => *response = page(rng, 200),
        3 => *response = page(rng, 404),
        4 => *response = page(rng, 403),
        5 => *response = page(rng, 302),
        6 => *response = page(rng, 503),
        7 => response.head.is_encoded = true,
        8 => response.head.range = None,
        9 => {
            // A range other than requested is not the server's file at these offsets, whatever validator it
            // carries.
            response.body.version = None;
            response.head.length = Some(DataSize::from_bytes(rng.below(1_000_000)));
        }
        10 => {
            // Another CDN node, with a version of its own.
            response.body.version = Some(OTHER_CDN_VERSION);
            response.head.validator = etag(OTHER_CDN_VERSION);
        }
        _ => {
            if let Some(ContentRange { range: Some(range), .. }) = &mut response.head.range {
                range.start += 1 + rng.below(1000);
                range.end = range.end.max(range.start);
                response.body.range = *range;
            }
        }
    }
}

const HANDSHAKE_ERRORS: [ConnErrorKind; 5] = [
    ConnErrorKind::Refused,
    ConnErrorKind::Unreachable,
    ConnErrorKind::TimedOut,
    ConnErrorKind::Dns,
    ConnErrorKind::Tls,
];
const OPEN_CONN_ERRORS: [ConnErrorKind; 4] =
    [ConnErrorKind::CleanClose, ConnErrorKind::Truncated, ConnErrorKind::Reset, ConnErrorKind::Protocol];
/// The version that only another CDN node has; it is as long as the server's.
const OTHER_CDN_VERSION: usize = 9;
