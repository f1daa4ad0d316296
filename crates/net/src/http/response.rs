//! Parses the responses of one HTTP/1.1 connection in order, without I/O.
//!
//! Inputs are the requests that were sent, received bytes, acceptance or cancellation of responses, and the end of
//! the connection. Outputs are events, and slices of body for the sink. The parser keeps no bytes: those that it does
//! not use (an unfinished head, or what follows an event) must be passed again with the next call.
//!
//! ```text
//!            head                  accept             last byte
//!   Head ──────────▶ HeadReported ───────▶ Body ───────────────▶ Head (next request) or Closed (the response closes)
//! ```
//!
//! The framing of one response determines where the next one starts, so every ambiguity ends the connection.

use std::collections::VecDeque;
use std::time::SystemTime;

use marline_core::fetch::{ConnError, ConnErrorKind, ReqId};
use marline_core::units::DataSize;

use super::chunked::ChunkDecoder;
use super::lenient::{
    HTTP_PREFIX, NONSTANDARD_PREFIXES, has_folds, head_end, join_folds, may_be_status_line, normalized_status_line,
    parse_leniently, starts_with,
};
use super::response_head::{self, Framing};
use super::{Event, Sink, conn_error};

/// Position of the connection within its responses.
enum ParserState {
    /// Before or within the head of the response to the oldest request.
    Head,
    /// The head was reported and waits for acceptance.
    HeadReported(Framing),
    /// Within the body.
    Body(BodyState),
    /// No further bytes are accepted.
    Closed,
}

/// The remainder of a body.
struct BodyState {
    framing: BodyFraming,
    /// How many more bytes may be delivered.
    limit_left: u64,
    /// More bytes than the limit permits have arrived.
    limit_exceeded: bool,
}

/// How the remainder of a body is framed.
enum BodyFraming {
    Length(u64),
    Chunked(ChunkDecoder),
    UntilClose,
}

/// Parser of one connection's responses.
pub(super) struct ResponseParser {
    /// Requests without a complete response, the oldest first.
    pending: VecDeque<ReqId>,
    state: ParserState,
    /// Cancelled requests. The connection stops at the response to the first of them.
    cancelled: Vec<ReqId>,
    /// The current or last response stated that the connection closes.
    closes_connection: bool,
    /// Number of complete responses so far.
    completed: u64,
    /// The reason of the end, reported after all other events.
    close_reason: Option<ConnError>,
    /// Number of bytes of an incomplete head that were already searched for its end.
    scanned_len: usize,
    /// The connection ended without a TLS close_notify.
    lacks_tls_close: bool,
}

impl ResponseParser {
    pub(super) fn new() -> Self {
        Self {
            pending: VecDeque::new(),
            state: ParserState::Head,
            cancelled: Vec::new(),
            closes_connection: false,
            completed: 0,
            close_reason: None,
            scanned_len: 0,
            lacks_tls_close: false,
        }
    }

    /// Registers a request that was queued after the others.
    pub(super) fn expect_response(&mut self, req: ReqId) {
        self.pending.push_back(req);
    }

    /// Accepts the body of the current response.
    pub(super) fn accept(&mut self, req: ReqId, limit: Option<DataSize>) {
        if self.pending.front() != Some(&req) {
            return;
        }
        if let ParserState::HeadReported(framing) = self.state {
            let body_framing = match framing {
                Framing::Length(n) => BodyFraming::Length(n),
                Framing::Chunked => BodyFraming::Chunked(ChunkDecoder::new()),
                Framing::UntilClose => BodyFraming::UntilClose,
            };
            let limit_left = limit.map_or(u64::MAX, DataSize::bytes);
            self.state = ParserState::Body(BodyState { framing: body_framing, limit_left, limit_exceeded: false });
        }
    }

    /// Declines a response: the connection will stop at it.
    pub(super) fn cancel(&mut self, req: ReqId) {
        self.cancelled.push(req);
    }

    /// Whether the parser can use bytes now: not while a head waits for acceptance.
    pub(super) fn wants_bytes(&self) -> bool {
        match self.state {
            ParserState::Head => !self.is_cancelled(),
            ParserState::Body(_) => !self.is_cancelled(),
            ParserState::HeadReported(_) | ParserState::Closed => false,
        }
    }

    /// Whether the next bytes belong to a body.
    pub(super) fn in_body(&self) -> bool {
        matches!(self.state, ParserState::Body(_))
    }

    /// Whether the next bytes belong to a body with neither a length nor chunks.
    pub(super) fn is_until_close(&self) -> bool {
        matches!(self.state, ParserState::Body(BodyState { framing: BodyFraming::UntilClose, .. }))
    }

    /// How much to read at one time, so that few bytes after a body must be buffered.
    pub(super) fn read_size(&self) -> usize {
        match &self.state {
            ParserState::Body(BodyState { framing: BodyFraming::Length(n), limit_left, .. }) => {
                usize::try_from(*n.min(limit_left)).unwrap_or(usize::MAX).saturating_add(HEAD_READ_LEN / 4)
            }
            ParserState::Body(_) => usize::MAX,
            _ => HEAD_READ_LEN,
        }
    }

    /// The next event that needs no further bytes: the end of an empty or complete body, or of the connection.
    pub(super) fn next_event(&mut self) -> Option<Event> {
        if let ParserState::Body(body) = &self.state
            && !self.is_cancelled()
        {
            if body.is_cut_by_limit() {
                let event = self.end_response();
                self.close(conn_error(ConnErrorKind::CleanClose, "the rest of the last response was not needed"));
                return event;
            }
            if body.is_complete() {
                return self.end_response();
            }
        }
        if let ParserState::Closed = self.state {
            return self.close_reason.take().map(|error| Event::Closed { error });
        }
        None
    }

    /// Parses bytes; returns how many were used, and an event.
    pub(super) fn feed(&mut self, bytes: &[u8], sink: &mut dyn Sink) -> (usize, Option<Event>) {
        if !self.wants_bytes() || bytes.is_empty() {
            return (0, None);
        }
        match &mut self.state {
            ParserState::Head => self.feed_head(bytes),
            ParserState::Body(body) => {
                let Some(&req) = self.pending.front() else { return (0, None) };
                let (used, passed, failure) = body.feed(bytes, |slice| sink.body(req, slice));
                if let Some(failure) = failure {
                    self.close(failure);
                }
                let event = (passed > 0).then(|| Event::Data { req, len: DataSize::from_bytes(passed) });
                (used, event.or_else(|| self.next_event()))
            }
            ParserState::HeadReported(_) | ParserState::Closed => (0, None),
        }
    }

    /// Reports the end of the connection, with an error or as a normal close. `unread` bytes of an incomplete head
    /// are buffered.
    pub(super) fn on_eof(&mut self, error: Option<ConnError>, unread: usize) {
        let reason = error.as_ref().map_or("the server closed the connection", |cause| cause.text.as_str());
        let end = match &self.state {
            ParserState::Closed => return,
            ParserState::Body(BodyState {
                framing: BodyFraming::UntilClose,
                limit_left,
                limit_exceeded: exceeded,
            }) if error.is_none() => {
                self.state = ParserState::Body(BodyState {
                    framing: BodyFraming::Length(0),
                    limit_left: *limit_left,
                    limit_exceeded: *exceeded,
                });
                return;
            }
            ParserState::Body(_) | ParserState::HeadReported(_) => {
                conn_error(ConnErrorKind::Truncated, format!("{reason} in the middle of an answer"))
            }
            ParserState::Head if unread > 0 => {
                conn_error(ConnErrorKind::Truncated, format!("{reason} in the middle of a head"))
            }
            ParserState::Head if self.pending.is_empty() => conn_error(ConnErrorKind::CleanClose, reason),
            ParserState::Head => match error {
                Some(error) => error,
                None if self.completed > 0 => conn_error(ConnErrorKind::CleanClose, reason),
                None => conn_error(ConnErrorKind::Reset, "the server closed the connection without an answer"),
            },
        };
        self.close(end);
    }

    /// TCP has ended without a TLS close_notify (RFC 8446 section 6.1), as with many servers. This is accepted as the
    /// end of a body that has no other end, and between two responses.
    pub(super) fn on_eof_without_tls_close(&mut self, unread: usize) {
        self.lacks_tls_close = true;
        self.on_eof(None, unread);
    }

    fn feed_head(&mut self, bytes: &[u8]) -> (usize, Option<Event>) {
        let Some(&req) = self.pending.front() else { return self.on_unsolicited(bytes) };
        // The bytes may still become one of the nonstandard prefixes: wait for more.
        let may_become = |prefix: &[u8]| {
            prefix.get(..bytes.len()).is_some_and(|first| starts_with(first, bytes, prefix == HTTP_PREFIX))
        };
        if NONSTANDARD_PREFIXES.iter().any(|(prefix, _)| may_become(prefix)) {
            return (0, None);
        }
        if !self.may_hold_head_end(bytes) {
            return (0, None);
        }
        // Step 1: replace a nonstandard prefix (such as `ICY `) by its HTTP/1 form. The copy is only made for such
        // servers.
        let prefix_match =
            NONSTANDARD_PREFIXES.iter().find(|(prefix, _)| starts_with(bytes, prefix, *prefix == HTTP_PREFIX));
        let prefix_match =
            prefix_match.filter(|(prefix, replacement)| prefix != replacement || !bytes.starts_with(prefix));
        let rewritten = prefix_match.map(|(prefix, replacement)| [*replacement, &bytes[prefix.len()..]].concat());
        // How many bytes longer the parsed head is than the received one; wraps if it is shorter.
        let mut added_len =
            prefix_match.map_or(0, |(prefix, replacement)| replacement.len().wrapping_sub(prefix.len()));
        let mut head = rewritten.as_deref().unwrap_or(bytes);
        let mut usual_fields = [httparse::EMPTY_HEADER; USUAL_FIELDS];
        let (mut all_fields, joined, normalized);
        let mut response = httparse::Response::new(&mut usual_fields);
        // Step 2: strict parsing, which succeeds for nearly all heads.
        let mut parsed = response.parse(head);
        if parsed.is_err() && head.len() < LONG_HEAD_LEN && may_be_status_line(head) {
            return (0, None);
        }
        // Step 3: normalize the status line; it is parsed again in step 4.
        if parsed.is_err()
            && let Some((end, line)) = normalized_status_line(head)
        {
            added_len = added_len.wrapping_add(line.len()).wrapping_sub(end);
            normalized = [&line[..], &head[end..]].concat();
            head = &normalized;
        }
        if parsed.is_err() {
            // Step 4: there are more fields than usual, or one has a syntax error: a control byte in its value, a blank
            // before the colon, or a continuation line. RFC 9112 section 5 requires such a field to be rejected or
            // dropped. The other fields remain usable, unless the invalid one determines where the body ends.
            head = &head[..head_end(head).unwrap_or(head.len())];
            let lines = head.iter().filter(|byte| **byte == b'\n').count();
            all_fields = vec![httparse::EMPTY_HEADER; lines.min(MAX_FIELDS)];
            (response, parsed) = parse_leniently(head, &mut all_fields);
        }
        // Step 5: join continuation lines, which the lenient parser accepts only in some positions.
        if parsed.is_err_and(|error| error != httparse::Error::TooManyHeaders) && has_folds(head) {
            joined = join_folds(head);
            all_fields =
                vec![httparse::EMPTY_HEADER; joined.iter().filter(|byte| **byte == b'\n').count().min(MAX_FIELDS)];
            (response, parsed) = parse_leniently(&joined, &mut all_fields);
        }
        let used = match parsed {
            Ok(httparse::Status::Complete(used)) if used <= MAX_HEAD_LEN => used.wrapping_sub(added_len),
            Ok(httparse::Status::Partial) if bytes.len() < MAX_HEAD_LEN => return (0, None),
            Ok(_) => return self.fail_protocol("the server sent a head of more than 300 KiB"),
            Err(httparse::Error::TooManyHeaders) => {
                return self.fail_protocol("the server sent more than 4096 header fields");
            }
            Err(error) => return self.fail_protocol(&format!("the server does not speak HTTP/1.1: {error}")),
        };
        self.scanned_len = 0;
        let status = response.code.unwrap_or_default();
        match status {
            101 => return self.fail_protocol("the server switched to another protocol"),
            // Interim responses such as 103 are skipped; the final one follows.
            100..=199 => return (used, None),
            _ => {}
        }
        let fields = response.headers.iter().map(|field| (field.name, field.value));
        match response_head::parse_head(status, response.version == Some(1), fields, SystemTime::now()) {
            Ok(parsed_head) => {
                self.closes_connection = parsed_head.head.closes_connection;
                self.state = ParserState::HeadReported(parsed_head.framing);
                let response_head::ParsedHead { head, location, content_disposition: disposition, meta, .. } =
                    parsed_head;
                (
                    used,
                    Some(Event::Head {
                        req,
                        head,
                        location,
                        content_disposition: disposition,
                        meta: Box::new(meta),
                    }),
                )
            }
            Err(failure) => {
                self.close(failure);
                (0, self.next_event())
            }
        }
    }

    /// Whether a head may end within these bytes. A long head is parsed only when its end has arrived, so that the
    /// time is linear in its length, however it is segmented.
    fn may_hold_head_end(&mut self, bytes: &[u8]) -> bool {
        if bytes.len() < LONG_HEAD_LEN || bytes.len() >= MAX_HEAD_LEN {
            return true;
        }
        let from = self.scanned_len.saturating_sub(3);
        self.scanned_len = bytes.len();
        let unscanned = bytes.get(from..).unwrap_or_default();
        from == 0
            || unscanned.windows(2).any(|pair| pair == b"\n\n")
            || unscanned.windows(3).any(|triple| triple == b"\n\r\n")
    }

    /// Handles bytes without a pending request. Servers that close an idle connection may send a 408 first, and some
    /// send an extra line end after a body.
    fn on_unsolicited(&mut self, bytes: &[u8]) -> (usize, Option<Event>) {
        if bytes.iter().all(|byte| matches!(byte, b'\r' | b'\n')) {
            return (bytes.len(), None);
        }
        if bytes.starts_with(b"HTTP/1.1 408") {
            self.close(conn_error(ConnErrorKind::CleanClose, "the server closed the idle connection"));
            return (0, self.next_event());
        }
        self.fail_protocol("the server sent data without a request")
    }

    fn fail_protocol(&mut self, text: &str) -> (usize, Option<Event>) {
        self.close(conn_error(ConnErrorKind::Protocol, text));
        (0, self.next_event())
    }

    /// Completes the current response.
    fn end_response(&mut self) -> Option<Event> {
        let req = self.pending.pop_front()?;
        self.completed += 1;
        self.state = ParserState::Head;
        if self.closes_connection {
            self.close(conn_error(
                ConnErrorKind::CleanClose,
                "the server closes the connection after this response",
            ));
        }
        Some(Event::End { req, unconfirmed: std::mem::take(&mut self.lacks_tls_close) })
    }

    fn close(&mut self, error: ConnError) {
        self.state = ParserState::Closed;
        self.close_reason = Some(error);
    }

    /// Whether the current response was cancelled: then only the end of the connection can follow.
    fn is_cancelled(&self) -> bool {
        self.pending.front().is_some_and(|req| self.cancelled.contains(req))
    }
}

impl BodyState {
    /// Whether the whole body has arrived.
    fn is_complete(&self) -> bool {
        match &self.framing {
            BodyFraming::Length(n) => *n == 0,
            BodyFraming::Chunked(chunks) => chunks.is_done(),
            BodyFraming::UntilClose => false,
        }
    }

    /// Whether everything within the limit has arrived, and more follows.
    fn is_cut_by_limit(&self) -> bool {
        self.limit_exceeded || (self.limit_left == 0 && matches!(self.framing, BodyFraming::Length(1..)))
    }

    /// Delivers the bytes that belong to the body. Returns the bytes used, the payload bytes among them, and an
    /// error.
    fn feed(&mut self, bytes: &[u8], mut payload: impl FnMut(&[u8])) -> (usize, u64, Option<ConnError>) {
        let before = self.limit_left;
        let (limit_left, exceeded) = (&mut self.limit_left, &mut self.limit_exceeded);
        let mut pass = |slice: &[u8]| {
            let take = usize::try_from(*limit_left).unwrap_or(usize::MAX).min(slice.len());
            *exceeded |= take < slice.len();
            *limit_left -= take as u64;
            if take > 0 {
                payload(&slice[..take]);
            }
        };
        let mut is_invalid = false;
        let used = match &mut self.framing {
            BodyFraming::Length(left) => {
                // No further than the limit: where the body is cut off must not depend on how the bytes were
                // segmented.
                let take = usize::try_from((*left).min(before)).unwrap_or(usize::MAX).min(bytes.len());
                pass(&bytes[..take]);
                *left -= take as u64;
                take
            }
            BodyFraming::UntilClose => {
                pass(bytes);
                bytes.len()
            }
            BodyFraming::Chunked(chunks) => chunks.feed(bytes, pass).unwrap_or_else(|_| {
                is_invalid = true;
                bytes.len()
            }),
        };
        let failure = is_invalid && !self.limit_exceeded;
        let failure = failure.then(|| conn_error(ConnErrorKind::Protocol, "the server sent a broken chunked body"));
        (used, before - self.limit_left, failure)
    }
}

/// Maximum length of a head, as in curl. nginx and Apache send at most 8 KiB by default.
const MAX_HEAD_LEN: usize = 300 * 1024;
/// A head that is longer is parsed only when it is complete.
const LONG_HEAD_LEN: usize = 8 * 1024;
/// Enough fields for nearly all heads.
const USUAL_FIELDS: usize = 128;
/// Maximum number of fields in a head.
pub const MAX_FIELDS: usize = 4096;
/// How much is read at one time while a head is due. It must be small, because what follows the head is buffered.
const HEAD_READ_LEN: usize = 4 * 1024;

#[cfg(test)]
mod tests;
