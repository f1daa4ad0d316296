//! What would a web server answer?
//!
//! In: a request, the link that it came over, the time. Out: a head, a body by its place in the file, and what goes
//! wrong with it.
//!
//! 1. Ranges and preconditions by RFC 9110 §13.1.5 and §14: 206, 200, 416.
//! 2. A file has editions; the one that is current when an answer begins is served to its end, as a server does that
//!    holds the file open.
//! 3. Faults are a list of plain values; the first one that applies to a request is taken.
//!
//! A real server on loopback was not used: it knows neither virtual time nor how to misbehave on demand.

use marline_core::fetch::{ByteRange, ContentRange, RequestRange, ResponseHead, Validator};
use marline_core::units::{Bitrate, DataSize, Duration, Instant};

/// A server with one resource.
#[derive(Clone, Debug)]
pub struct Server {
    /// The file, first edition first. Never empty.
    pub editions: Vec<Edition>,
    /// Whether ranges are served.
    pub ranges: bool,
    /// Whether answers say how long they are.
    pub lengths: bool,
    /// How many answers a connection carries before the server closes it.
    pub keepalive_requests: Option<u32>,
    /// The most that one connection carries.
    pub per_connection_rate: Option<Bitrate>,
    /// From a request to the first byte of its answer.
    pub think: Duration,
    /// What goes wrong.
    pub faults: Vec<Fault>,
}

/// The file, from some moment on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Edition {
    /// Since when.
    pub since: Since,
    /// How long it is.
    pub size: DataSize,
    /// Its validator.
    pub validator: Option<Validator>,
}

/// When an edition comes out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Since {
    /// So long after the start.
    Time(Duration),
    /// When so many body bytes have been served in all.
    Served(DataSize),
}

/// Something that goes wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// On this link only, by its place in the scene; none: on all.
    pub link: Option<usize>,
    /// Not before.
    pub from: Duration,
    /// Not after; none: for ever.
    pub until: Option<Duration>,
    /// How often; none: always.
    pub times: Option<u32>,
    /// What.
    pub what: What,
}

impl Fault {
    /// Always and on all links.
    pub const fn always(what: What) -> Self {
        Self { link: None, from: Duration::ZERO, until: None, times: None, what }
    }

    /// So often.
    #[must_use]
    pub const fn times(self, times: u32) -> Self {
        Self { times: Some(times), ..self }
    }

    fn applies(&self, link: usize, now: Instant) -> bool {
        let since = now.since(Instant::ZERO);
        self.link.is_none_or(|only| only == link)
            && self.from <= since
            && self.until.is_none_or(|until| since < until)
            && self.times != Some(0)
    }
}

/// Sorts of trouble.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    /// Connections are refused.
    Refuse,
    /// An error status, with Retry-After if it says so.
    Status(u16, Option<Duration>),
    /// A captive portal: 200 with a page of this length instead of the answer.
    Portal(DataSize),
    /// The connection ends after so many bytes of the body, as if that were all.
    Truncate(DataSize),
    /// The connection is reset after so many bytes of the body.
    Reset(DataSize),
    /// The answer stops after so many bytes of the body, and nothing more comes on the connection.
    Stall(DataSize),
    /// The answer is broken off after so many bytes of the body; with HTTP/1.1 that is a reset.
    Abort(DataSize),
    /// So many bytes more than the answer's head says.
    Surplus(DataSize),
}

/// What the server has to say to one request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Answer {
    pub(crate) head: ResponseHead,
    pub(crate) body: Body,
    pub(crate) spoiled: Option<Spoiled>,
}

/// Bytes of an edition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Body {
    /// Which edition; `None`: a page that belongs to no file.
    pub(crate) edition: Option<usize>,
    /// Which bytes.
    pub(crate) span: ByteRange,
}

/// How an answer ends too early.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Spoiled {
    Truncated,
    Reset,
    Stalled,
    /// As HTTP allows, after a complete answer.
    Closed,
    Aborted,
}

impl Server {
    /// A well-behaved server: one edition of this size with a strong ETag, ranges, endless keep-alive, no delay.
    pub fn new(size: DataSize) -> Self {
        let validator = Some(Validator::Etag("\"1\"".to_string()));
        Self {
            editions: vec![Edition { since: Since::Time(Duration::ZERO), size, validator }],
            ranges: true,
            lengths: true,
            keepalive_requests: None,
            per_connection_rate: None,
            think: Duration::ZERO,
            faults: Vec::new(),
        }
    }

    /// Whether a connection over this link is refused now.
    pub(crate) fn refuses(&mut self, link: usize, now: Instant) -> bool {
        self.fault(link, now, |what| what == What::Refuse).is_some()
    }

    /// The answer to a request; `served` counts the body bytes of all answers so far, `last` says that the connection
    /// carries no further one.
    pub(crate) fn answer(&mut self, link: usize, now: Instant, served: DataSize, ask: Asking<'_>) -> Answer {
        let mut answer = self.regular(now, served, ask);
        answer.head.closes_connection = ask.last;
        if !self.lengths {
            answer.head.length = None;
        }
        match self.fault(link, now, |what| what != What::Refuse) {
            None | Some(What::Refuse) => {}
            Some(What::Status(status, retry_after)) => {
                answer.body = Body { edition: None, span: ByteRange::new(0, ERROR_PAGE) };
                let length = Some(answer.body.span.len());
                answer.head = ResponseHead {
                    status,
                    retry_after,
                    length,
                    closes_connection: ask.last,
                    ..ResponseHead::default()
                };
            }
            Some(What::Portal(size)) => {
                answer.body = Body { edition: None, span: ByteRange::at(0, size) };
                answer.head = ResponseHead {
                    status: 200,
                    length: Some(size),
                    closes_connection: ask.last,
                    ..ResponseHead::default()
                };
            }
            Some(What::Truncate(after)) => answer.spoil(after, Spoiled::Truncated),
            Some(What::Reset(after)) => answer.spoil(after, Spoiled::Reset),
            Some(What::Stall(after)) => answer.spoil(after, Spoiled::Stalled),
            Some(What::Abort(after)) => answer.spoil(after, Spoiled::Aborted),
            Some(What::Surplus(more)) => answer.body.span.end += more.bytes(),
        }
        answer
    }

    fn regular(&self, now: Instant, served: DataSize, ask: Asking<'_>) -> Answer {
        let number = self.current(now, served);
        let edition = &self.editions[number];
        let total = edition.size;
        let head = ResponseHead {
            validator: edition.validator.clone(),
            refuses_ranges: !self.ranges,
            ..ResponseHead::default()
        };
        let proven = ask.if_range.is_none_or(|validator| Some(validator) == edition.validator.as_ref());
        let wanted = match ask.what {
            RequestRange::Full => None,
            RequestRange::From(start) => Some(ByteRange::new(start, u64::MAX)),
            RequestRange::Bounded(span) => Some(span),
        };
        let Some(wanted) = wanted.filter(|_| self.ranges && proven) else {
            let body = Body { edition: Some(number), span: ByteRange::at(0, total) };
            return Answer { head: ResponseHead { status: 200, length: Some(total), ..head }, body, spoiled: None };
        };
        let span = wanted.intersect(ByteRange::at(0, total));
        let body = Body { edition: Some(number), span };
        let (status, range) = if span.is_empty() {
            (416, ContentRange { range: None, total: Some(total) })
        } else {
            (206, ContentRange { range: Some(span), total: Some(total) })
        };
        let head = ResponseHead { status, length: Some(span.len()), range: Some(range), ..head };
        Answer { head, body, spoiled: None }
    }

    fn current(&self, now: Instant, served: DataSize) -> usize {
        let out = |edition: &Edition| match edition.since {
            Since::Time(time) => time <= now.since(Instant::ZERO),
            Since::Served(bytes) => bytes <= served,
        };
        self.editions.iter().rposition(out).unwrap_or(0)
    }

    fn fault(&mut self, link: usize, now: Instant, wanted: impl Fn(What) -> bool) -> Option<What> {
        let fault = self.faults.iter_mut().find(|fault| wanted(fault.what) && fault.applies(link, now))?;
        if let Some(times) = &mut fault.times {
            *times -= 1;
        }
        Some(fault.what)
    }
}

/// What a request asks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asking<'a> {
    pub(crate) what: RequestRange,
    pub(crate) if_range: Option<&'a Validator>,
    pub(crate) last: bool,
}

impl Answer {
    fn spoil(&mut self, after: DataSize, how: Spoiled) {
        if after < self.body.span.len() {
            self.body.span.end = self.body.span.start + after.bytes();
            self.spoiled = Some(how);
        }
    }
}

/// Bytes of an error's page.
const ERROR_PAGE: u64 = 150;

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(what: RequestRange) -> Asking<'static> {
        Asking { what, if_range: None, last: false }
    }

    fn answer(server: &mut Server, asking: Asking<'_>) -> Answer {
        server.answer(0, Instant::ZERO, DataSize::ZERO, asking)
    }

    #[test]
    fn ranges_end_where_the_file_ends() {
        let mut server = Server::new(DataSize::from_bytes(100));
        let cut = answer(&mut server, ask(RequestRange::Bounded(ByteRange::new(90, 200))));
        assert_eq!((cut.head.status, cut.body.span), (206, ByteRange::new(90, 100)));
        let beyond = answer(&mut server, ask(RequestRange::From(100)));
        assert_eq!((beyond.head.status, beyond.body.span.len()), (416, DataSize::ZERO));
    }

    #[test]
    fn another_validator_gets_the_whole() {
        let mut server = Server::new(DataSize::from_bytes(100));
        let old = Validator::Etag("\"0\"".to_string());
        let asking = Asking { if_range: Some(&old), ..ask(RequestRange::From(50)) };
        let whole = answer(&mut server, asking);
        assert_eq!((whole.head.status, whole.body.span), (200, ByteRange::new(0, 100)));
    }

    #[test]
    fn a_fault_is_used_up() {
        let mut server = Server::new(DataSize::from_bytes(100));
        server.faults = vec![Fault::always(What::Status(503, None)).times(1)];
        assert_eq!(answer(&mut server, ask(RequestRange::Full)).head.status, 503);
        assert_eq!(answer(&mut server, ask(RequestRange::Full)).head.status, 200);
    }

    #[test]
    fn a_new_edition_comes_out_when_enough_was_served() {
        let mut server = Server::new(DataSize::from_bytes(100));
        let since = Since::Served(DataSize::from_bytes(60));
        server.editions.push(Edition { since, size: DataSize::from_bytes(70), validator: None });
        let late = server.answer(0, Instant::ZERO, DataSize::from_bytes(60), ask(RequestRange::Full));
        assert_eq!(late.body, Body { edition: Some(1), span: ByteRange::new(0, 70) });
    }
}
