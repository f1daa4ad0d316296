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
pub struct HttpServer {
    /// The file, first edition first. Never empty.
    pub versions: Vec<FileVersion>,
    /// Whether ranges are served.
    pub supports_ranges: bool,
    /// Whether answers say how long they are.
    pub sends_content_length: bool,
    /// How many answers a connection carries before the server closes it.
    pub keepalive_requests: Option<u32>,
    /// The most that one connection carries.
    pub per_connection_rate: Option<Bitrate>,
    /// From a request to the first byte of its answer.
    pub response_delay: Duration,
    /// What goes wrong.
    pub faults: Vec<Fault>,
}

/// The file, from some moment on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileVersion {
    /// Since when.
    pub available: AvailableFrom,
    /// How long it is.
    pub size: DataSize,
    /// Its validator.
    pub validator: Option<Validator>,
}

/// When an edition comes out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AvailableFrom {
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
    pub kind: FaultKind,
}

impl Fault {
    /// Always and on all links.
    pub const fn always(what: FaultKind) -> Self {
        Self { link: None, from: Duration::ZERO, until: None, times: None, kind: what }
    }

    /// So often.
    #[must_use]
    pub const fn times(self, times: u32) -> Self {
        Self { times: Some(times), ..self }
    }

    fn applies(&self, link: usize, now: Instant) -> bool {
        let elapsed = now.since(Instant::ZERO);
        self.link.is_none_or(|only| only == link)
            && self.from <= elapsed
            && self.until.is_none_or(|until| elapsed < until)
            && self.times != Some(0)
    }
}

/// Sorts of trouble.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultKind {
    /// Connections are refused.
    RefuseConnection,
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
    Excess(DataSize),
}

/// What the server has to say to one request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ServerResponse {
    pub(crate) head: ResponseHead,
    pub(crate) body: ResponseBody,
    pub(crate) fault: Option<BodyFault>,
}

/// Bytes of an edition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ResponseBody {
    /// Which edition; `None`: a page that belongs to no file.
    pub(crate) version: Option<usize>,
    /// Which bytes.
    pub(crate) span: ByteRange,
}

/// How an answer ends too early.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BodyFault {
    Truncated,
    Reset,
    Stalled,
    /// As HTTP allows, after a complete answer.
    CloseAfter,
    Aborted,
}

impl HttpServer {
    /// A well-behaved server: one edition of this size with a strong ETag, ranges, endless keep-alive, no delay.
    pub fn new(size: DataSize) -> Self {
        let validator = Some(Validator::Etag("\"1\"".to_string()));
        Self {
            versions: vec![FileVersion { available: AvailableFrom::Time(Duration::ZERO), size, validator }],
            supports_ranges: true,
            sends_content_length: true,
            keepalive_requests: None,
            per_connection_rate: None,
            response_delay: Duration::ZERO,
            faults: Vec::new(),
        }
    }

    /// Whether a connection over this link is refused now.
    pub(crate) fn refuses_connection(&mut self, link: usize, now: Instant) -> bool {
        self.take_fault(link, now, |what| what == FaultKind::RefuseConnection).is_some()
    }

    /// The answer to a request; `served` counts the body bytes of all answers so far, `last` says that the connection
    /// carries no further one.
    pub(crate) fn respond(
        &mut self,
        link: usize,
        now: Instant,
        served_bytes: DataSize,
        request: ServerRequest<'_>,
    ) -> ServerResponse {
        let mut response = self.respond_without_fault(now, served_bytes, request);
        response.head.closes_connection = request.is_last;
        if !self.sends_content_length {
            response.head.length = None;
        }
        match self.take_fault(link, now, |what| what != FaultKind::RefuseConnection) {
            None | Some(FaultKind::RefuseConnection) => {}
            Some(FaultKind::Status(status, retry_after)) => {
                response.body = ResponseBody { version: None, span: ByteRange::new(0, ERROR_PAGE) };
                let length = Some(response.body.span.len());
                response.head = ResponseHead {
                    status,
                    retry_after,
                    length,
                    closes_connection: request.is_last,
                    ..ResponseHead::default()
                };
            }
            Some(FaultKind::Portal(size)) => {
                response.body = ResponseBody { version: None, span: ByteRange::at(0, size) };
                response.head = ResponseHead {
                    status: 200,
                    length: Some(size),
                    closes_connection: request.is_last,
                    ..ResponseHead::default()
                };
            }
            Some(FaultKind::Truncate(after)) => response.cut_body(after, BodyFault::Truncated),
            Some(FaultKind::Reset(after)) => response.cut_body(after, BodyFault::Reset),
            Some(FaultKind::Stall(after)) => response.cut_body(after, BodyFault::Stalled),
            Some(FaultKind::Abort(after)) => response.cut_body(after, BodyFault::Aborted),
            Some(FaultKind::Excess(more)) => response.body.span.end += more.bytes(),
        }
        response
    }

    fn respond_without_fault(
        &self,
        now: Instant,
        served_bytes: DataSize,
        request: ServerRequest<'_>,
    ) -> ServerResponse {
        let version_index = self.current_version(now, served_bytes);
        let version = &self.versions[version_index];
        let total = version.size;
        let head = ResponseHead {
            validator: version.validator.clone(),
            refuses_ranges: !self.supports_ranges,
            ..ResponseHead::default()
        };
        let is_if_range_met =
            request.if_range.is_none_or(|validator| Some(validator) == version.validator.as_ref());
        let requested = match request.range {
            RequestRange::Full => None,
            RequestRange::From(start) => Some(ByteRange::new(start, u64::MAX)),
            RequestRange::Bounded(span) => Some(span),
        };
        let Some(requested) = requested.filter(|_| self.supports_ranges && is_if_range_met) else {
            let body = ResponseBody { version: Some(version_index), span: ByteRange::at(0, total) };
            return ServerResponse {
                head: ResponseHead { status: 200, length: Some(total), ..head },
                body,
                fault: None,
            };
        };
        let span = requested.intersect(ByteRange::at(0, total));
        let body = ResponseBody { version: Some(version_index), span };
        let (status, range) = if span.is_empty() {
            (416, ContentRange { range: None, total: Some(total) })
        } else {
            (206, ContentRange { range: Some(span), total: Some(total) })
        };
        let head = ResponseHead { status, length: Some(span.len()), range: Some(range), ..head };
        ServerResponse { head, body, fault: None }
    }

    fn current_version(&self, now: Instant, served_bytes: DataSize) -> usize {
        let is_available = |edition: &FileVersion| match edition.available {
            AvailableFrom::Time(time) => time <= now.since(Instant::ZERO),
            AvailableFrom::Served(bytes) => bytes <= served_bytes,
        };
        self.versions.iter().rposition(is_available).unwrap_or(0)
    }

    fn take_fault(
        &mut self,
        link: usize,
        now: Instant,
        is_wanted: impl Fn(FaultKind) -> bool,
    ) -> Option<FaultKind> {
        let fault = self.faults.iter_mut().find(|fault| is_wanted(fault.kind) && fault.applies(link, now))?;
        if let Some(times) = &mut fault.times {
            *times -= 1;
        }
        Some(fault.kind)
    }
}

/// What a request asks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerRequest<'a> {
    pub(crate) range: RequestRange,
    pub(crate) if_range: Option<&'a Validator>,
    pub(crate) is_last: bool,
}

impl ServerResponse {
    fn cut_body(&mut self, after: DataSize, fault: BodyFault) {
        if after < self.body.span.len() {
            self.body.span.end = self.body.span.start + after.bytes();
            self.fault = Some(fault);
        }
    }
}

/// Bytes of an error's page.
const ERROR_PAGE: u64 = 150;

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(what: RequestRange) -> ServerRequest<'static> {
        ServerRequest { range: what, if_range: None, is_last: false }
    }

    fn answer(server: &mut HttpServer, asking: ServerRequest<'_>) -> ServerResponse {
        server.respond(0, Instant::ZERO, DataSize::ZERO, asking)
    }

    #[test]
    fn ranges_end_where_the_file_ends() {
        let mut server = HttpServer::new(DataSize::from_bytes(100));
        let cut = answer(&mut server, ask(RequestRange::Bounded(ByteRange::new(90, 200))));
        assert_eq!((cut.head.status, cut.body.span), (206, ByteRange::new(90, 100)));
        let beyond = answer(&mut server, ask(RequestRange::From(100)));
        assert_eq!((beyond.head.status, beyond.body.span.len()), (416, DataSize::ZERO));
    }

    #[test]
    fn another_validator_gets_the_whole() {
        let mut server = HttpServer::new(DataSize::from_bytes(100));
        let old = Validator::Etag("\"0\"".to_string());
        let asking = ServerRequest { if_range: Some(&old), ..ask(RequestRange::From(50)) };
        let whole = answer(&mut server, asking);
        assert_eq!((whole.head.status, whole.body.span), (200, ByteRange::new(0, 100)));
    }

    #[test]
    fn a_fault_is_used_up() {
        let mut server = HttpServer::new(DataSize::from_bytes(100));
        server.faults = vec![Fault::always(FaultKind::Status(503, None)).times(1)];
        assert_eq!(answer(&mut server, ask(RequestRange::Full)).head.status, 503);
        assert_eq!(answer(&mut server, ask(RequestRange::Full)).head.status, 200);
    }

    #[test]
    fn a_new_edition_comes_out_when_enough_was_served() {
        let mut server = HttpServer::new(DataSize::from_bytes(100));
        let since = AvailableFrom::Served(DataSize::from_bytes(60));
        server.versions.push(FileVersion { available: since, size: DataSize::from_bytes(70), validator: None });
        let late = server.respond(0, Instant::ZERO, DataSize::from_bytes(60), ask(RequestRange::Full));
        assert_eq!(late.body, ResponseBody { version: Some(1), span: ByteRange::new(0, 70) });
    }
}
