//! The answers of one HTTP/1.1 connection, in order, without I/O.
//!
//! In: the requests that were sent, the bytes that came, verdicts on heads, the connection's end. Out: events, and
//! slices of body for the sink. It keeps nothing of the bytes: what it does not take (an unfinished head, or what lies
//! behind an event) the caller offers again.
//!
//! ```text
//!            head            accept             last byte
//!   Head ───────────▶ Verdict ───────▶ Body ───────────────▶ Head (next request) or Over (the answer closes)
//! ```
//!
//! The framing of one answer decides where the next one starts, so every doubt ends the connection.

use std::collections::VecDeque;
use std::time::SystemTime;

use marline_core::fetch::{ReqId, Trouble, TroubleKind};
use marline_core::units::DataSize;

use super::chunk::Chunks;
use super::head::{self, Framing};
use super::{Event, Sink, trouble};

/// Where the connection stands in its answers.
enum State {
    /// Before or within the head of the oldest request's answer.
    Head,
    /// The head was reported.
    Verdict(Framing),
    /// Within its body.
    Body(Body),
    /// Nothing more will be taken.
    Over,
}

/// What is left of a body.
struct Body {
    rest: Rest,
    /// How many more bytes may be delivered.
    allowed: u64,
}

/// How the rest of a body is framed.
enum Rest {
    Length(u64),
    Chunked(Chunks),
    UntilClose,
}

/// The answers of one connection.
pub(super) struct Answers {
    /// Requests without a complete answer, the oldest first.
    open: VecDeque<ReqId>,
    state: State,
    /// Requests that were not wanted any more before their head came.
    unwanted: Vec<ReqId>,
    /// The present or last answer said that it closes.
    closes: bool,
    /// Complete answers so far.
    complete: u64,
    /// The end, to be reported when nothing else is left.
    ending: Option<Trouble>,
}

impl Answers {
    pub(super) fn new() -> Self {
        Self {
            open: VecDeque::new(),
            state: State::Head,
            unwanted: Vec::new(),
            closes: false,
            complete: 0,
            ending: None,
        }
    }

    /// A request was queued behind the others.
    pub(super) fn expect(&mut self, req: ReqId) {
        self.open.push_back(req);
    }

    /// The body of the answer at hand may flow.
    pub(super) fn accept(&mut self, req: ReqId, limit: Option<DataSize>) {
        if self.open.front() != Some(&req) {
            return;
        }
        if let State::Verdict(framing) = self.state {
            let rest = match framing {
                Framing::Length(n) => Rest::Length(n),
                Framing::Chunked => Rest::Chunked(Chunks::new()),
                Framing::UntilClose => Rest::UntilClose,
            };
            self.state = State::Body(Body { rest, allowed: limit.map_or(u64::MAX, DataSize::bytes) });
        }
    }

    /// An answer is not wanted: the connection will stop at it.
    pub(super) fn cancel(&mut self, req: ReqId) {
        self.unwanted.push(req);
    }

    /// Whether bytes are of use now: not while a head waits for its verdict.
    pub(super) fn wants_bytes(&self) -> bool {
        match self.state {
            State::Head => !self.is_stopped(),
            State::Body(_) => !self.is_stopped(),
            State::Verdict(_) | State::Over => false,
        }
    }

    /// Whether the next bytes belong to a body.
    pub(super) fn in_body(&self) -> bool {
        matches!(self.state, State::Body(_))
    }

    /// How much to read at one time, so that little of what follows a body must be kept aside.
    pub(super) fn read_size(&self) -> usize {
        match &self.state {
            State::Body(Body { rest: Rest::Length(n), .. }) => {
                usize::try_from(*n).unwrap_or(usize::MAX).saturating_add(HEAD_READ / 4)
            }
            State::Body(_) => usize::MAX,
            _ => HEAD_READ,
        }
    }

    /// What can be said without further bytes: a body of no bytes is complete, or all is over.
    pub(super) fn next(&mut self) -> Option<Event> {
        if let State::Body(Body { rest, .. }) = &self.state {
            let done = match rest {
                Rest::Length(n) => *n == 0,
                Rest::Chunked(chunks) => chunks.is_done(),
                Rest::UntilClose => false,
            };
            if done && !self.is_stopped() {
                return self.end();
            }
        }
        if let State::Over = self.state {
            return self.ending.take().map(|trouble| Event::Closed { trouble });
        }
        None
    }

    /// Takes bytes from the front of what has come; says how many it took, and what they mean.
    pub(super) fn feed(&mut self, bytes: &[u8], sink: &mut dyn Sink) -> (usize, Option<Event>) {
        if !self.wants_bytes() || bytes.is_empty() {
            return (0, None);
        }
        match &mut self.state {
            State::Head => self.feed_head(bytes),
            State::Body(body) => {
                let Some(&req) = self.open.front() else { return (0, None) };
                let (used, passed, bad) = body.feed(bytes, |slice| sink.body(req, slice));
                if let Some(bad) = bad {
                    self.over(bad);
                }
                let event = (passed > 0).then(|| Event::Data { req, len: DataSize::from_bytes(passed) });
                (used, event.or_else(|| self.next()))
            }
            State::Verdict(_) | State::Over => (0, None),
        }
    }

    /// The connection has ended: without an error where `error` is none. `unread` bytes of a head had come.
    pub(super) fn finish(&mut self, error: Option<Trouble>, unread: usize) {
        let said = error.as_ref().map_or("the server closed the connection", |trouble| trouble.text.as_str());
        let end = match &self.state {
            State::Over => return,
            State::Body(Body { rest: Rest::UntilClose, allowed }) if error.is_none() => {
                self.state = State::Body(Body { rest: Rest::Length(0), allowed: *allowed });
                return;
            }
            State::Body(_) | State::Verdict(_) => {
                trouble(TroubleKind::Truncated, format!("{said} in the middle of an answer"))
            }
            State::Head if unread > 0 => trouble(TroubleKind::Truncated, format!("{said} in the middle of a head")),
            State::Head if self.open.is_empty() => trouble(TroubleKind::Finished, said),
            State::Head => match error {
                Some(error) => error,
                None if self.complete > 0 => trouble(TroubleKind::Finished, said),
                None => trouble(TroubleKind::Reset, "the server closed the connection without an answer"),
            },
        };
        self.over(end);
    }

    fn feed_head(&mut self, bytes: &[u8]) -> (usize, Option<Event>) {
        let Some(&req) = self.open.front() else { return self.unasked(bytes) };
        let mut fields = [httparse::EMPTY_HEADER; FIELDS_MOST];
        let mut response = httparse::Response::new(&mut fields);
        let used = match response.parse(bytes) {
            Ok(httparse::Status::Complete(used)) if used <= HEAD_MOST => used,
            Ok(httparse::Status::Partial) if bytes.len() < HEAD_MOST => return (0, None),
            Ok(_) => return self.refuse("the server sent a head of more than 64 KiB"),
            Err(httparse::Error::TooManyHeaders) => {
                return self.refuse("the server sent more than 128 header fields");
            }
            Err(error) => return self.refuse(&format!("the server does not speak HTTP/1.1: {error}")),
        };
        let status = response.code.unwrap_or_default();
        match status {
            101 => return self.refuse("the server switched to another protocol"),
            100..=199 => return (used, None),
            _ => {}
        }
        let fields = response.headers.iter().map(|field| (field.name, field.value));
        match head::read(status, response.version == Some(1), fields, SystemTime::now()) {
            Ok(answer) => {
                self.closes = answer.head.closes;
                self.state = State::Verdict(answer.framing);
                let head::Answer { head, location, disposition, .. } = answer;
                (used, Some(Event::Head { req, head, location, disposition }))
            }
            Err(trouble) => {
                self.over(trouble);
                (0, self.next())
            }
        }
    }

    /// Bytes came although nothing was asked for. Servers that give up an idle connection may say so with a 408.
    fn unasked(&mut self, bytes: &[u8]) -> (usize, Option<Event>) {
        if bytes.starts_with(b"HTTP/1.1 408") {
            self.over(trouble(TroubleKind::Finished, "the server ended the idle connection"));
            return (0, self.next());
        }
        self.refuse("the server sent more than was asked for")
    }

    fn refuse(&mut self, text: &str) -> (usize, Option<Event>) {
        self.over(trouble(TroubleKind::Protocol, text));
        (0, self.next())
    }

    /// The answer at hand is complete.
    fn end(&mut self) -> Option<Event> {
        let req = self.open.pop_front()?;
        self.complete += 1;
        self.state = State::Head;
        if self.closes {
            self.over(trouble(TroubleKind::Finished, "the server closes the connection after this answer"));
        }
        Some(Event::End { req })
    }

    fn over(&mut self, trouble: Trouble) {
        self.state = State::Over;
        self.ending = Some(trouble);
    }

    /// The answer at hand was cancelled: only the connection's end can follow.
    fn is_stopped(&self) -> bool {
        self.open.front().is_some_and(|req| self.unwanted.contains(req))
    }
}

impl Body {
    /// Passes on what belongs to the body. Returns the bytes used, the payload among them, and what is wrong.
    fn feed(&mut self, bytes: &[u8], mut payload: impl FnMut(&[u8])) -> (usize, u64, Option<Trouble>) {
        let before = self.allowed;
        let (allowed, mut excess) = (&mut self.allowed, false);
        let mut pass = |slice: &[u8]| {
            let take = usize::try_from(*allowed).unwrap_or(usize::MAX).min(slice.len());
            excess |= take < slice.len();
            *allowed -= take as u64;
            if take > 0 {
                payload(&slice[..take]);
            }
        };
        let mut broken = false;
        let used = match &mut self.rest {
            Rest::Length(left) => {
                let take = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                pass(&bytes[..take]);
                *left -= take as u64;
                take
            }
            Rest::UntilClose => {
                pass(bytes);
                bytes.len()
            }
            Rest::Chunked(chunks) => chunks.feed(bytes, pass).unwrap_or_else(|_| {
                broken = true;
                bytes.len()
            }),
        };
        let text = match (excess, broken) {
            (true, _) => Some("the server sent more than was asked for"),
            (_, true) => Some("the server sent a broken chunked body"),
            _ => None,
        };
        (used, before - self.allowed, text.map(|text| trouble(TroubleKind::Protocol, text)))
    }
}

/// The largest head that is read (nginx and Apache send heads of at most 8 KiB by default).
const HEAD_MOST: usize = 64 * 1024;
/// The most fields in a head.
const FIELDS_MOST: usize = 128;
/// How much is read at one time while a head is due; what lies behind the head is kept aside, so it must be little.
const HEAD_READ: usize = 4 * 1024;
