//! Model of a web server: the response to each request, and the faults to inject.
//!
//! For a request, the link it arrived on and the time, [`HttpServer`] returns a head, a body as a range of the
//! file, and how the body ends early.
//!
//! 1. Ranges and preconditions follow RFC 9110 §13.1.5 and §14: 206, 200, 416.
//! 2. A file has versions. A response is served to its end from the version that was current when it began, as by a
//!    server that keeps the file open.
//! 3. Faults are a list of plain values; the first one that applies to a request is used.
//!
//! A real server on loopback does not work here: it has no virtual time and cannot misbehave on demand.

use marline_core::fetch::{ByteRange, ContentRange, RequestRange, ResponseHead, Validator};
use marline_core::units::{Bitrate, DataSize, Duration, Instant};

/// A server with one resource.
#[derive(Clone, Debug)]
pub struct HttpServer {
    /// Versions of the file, in order of time. Never empty.
    pub versions: Vec<FileVersion>,
    /// Whether it supports range requests.
    pub supports_ranges: bool,
    /// Whether responses announce their length.
    pub sends_content_length: bool,
    /// Responses per connection before the server closes it; `None` without a limit.
    pub keepalive_requests: Option<u32>,
    /// Maximum rate of one connection.
    pub per_connection_rate: Option<Bitrate>,
    /// Time from a request to the first byte of its response.
    pub response_delay: Duration,
    /// Faults to inject; the first one that applies to a request is used.
    pub faults: Vec<Fault>,
}

/// A version of the file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileVersion {
    /// When it replaces the previous version.
    pub available: AvailableFrom,
    /// Length of the file in this version.
    pub size: DataSize,
    /// ETag or modification date, if the server sends one.
    pub validator: Option<Validator>,
}

/// When a version becomes current.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AvailableFrom {
    /// This long after the start.
    Time(Duration),
    /// When this many body bytes have been served in total.
    Served(DataSize),
}

/// A fault of the server or of the network path to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// Index of the only link affected; `None` for all links.
    pub link: Option<usize>,
    /// Start of the period in which it occurs, since the start of the run.
    pub from: Duration,
    /// End of the period; `None` if it never ends.
    pub until: Option<Duration>,
    /// Remaining occurrences; `None` if unlimited.
    pub times: Option<u32>,
    /// What happens to the request or connection.
    pub kind: FaultKind,
}

impl Fault {
    /// A fault that affects every request, or every connection, on all links.
    pub const fn always(kind: FaultKind) -> Self {
        Self { link: None, from: Duration::ZERO, until: None, times: None, kind }
    }

    /// Limits the number of occurrences.
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

/// What a fault does to a connection or to the body of a response. A fault after an amount of the body has no effect on bodies that are not
/// longer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultKind {
    /// New connections are refused with an RST.
    RefuseConnection,
    /// An error status, with Retry-After if given.
    Status(u16, Option<Duration>),
    /// A captive portal: status 200 with a page of this length instead of the response.
    Portal(DataSize),
    /// The connection is closed after this much of the body, as if it were complete.
    Truncate(DataSize),
    /// The connection is reset after this much of the body.
    Reset(DataSize),
    /// The response stalls after this much of the body, and nothing more comes on the connection.
    Stall(DataSize),
    /// The response is aborted after this much of the body; with HTTP/1.1 by a reset of the connection.
    Abort(DataSize),
    /// The body is longer by this much than the head announces.
    Excess(DataSize),
}

/// Response to one request, with the fault that ends it early.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ServerResponse {
    pub(crate) head: ResponseHead,
    pub(crate) body: ResponseBody,
    pub(crate) fault: Option<BodyFault>,
}

/// A range of a version of the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ResponseBody {
    /// Index of the version; `None` for a page that is not the file.
    pub(crate) version: Option<usize>,
    /// Bytes of the version that the body consists of.
    pub(crate) range: ByteRange,
}

/// How the connection or response ends after this body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BodyFault {
    Truncated,
    Reset,
    Stalled,
    /// A regular close after a complete response.
    CloseAfter,
    Aborted,
}

impl HttpServer {
    /// A well-behaved server: one version of this size with a strong ETag, ranges, unlimited keep-alive, no delay.
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
        self.take_fault(link, now, |kind| kind == FaultKind::RefuseConnection).is_some()
    }

    /// The response to a request; `served_bytes` is the number of body bytes of all responses so far.
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
        match self.take_fault(link, now, |kind| kind != FaultKind::RefuseConnection) {
            None | Some(FaultKind::RefuseConnection) => {}
            Some(FaultKind::Status(status, retry_after)) => {
                response.body = ResponseBody { version: None, range: ByteRange::new(0, ERROR_PAGE) };
                let length = Some(response.body.range.len());
                response.head = ResponseHead {
                    status,
                    retry_after,
                    length,
                    closes_connection: request.is_last,
                    ..ResponseHead::default()
                };
            }
            Some(FaultKind::Portal(size)) => {
                response.body = ResponseBody { version: None, range: ByteRange::at(0, size) };
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
            Some(FaultKind::Excess(excess)) => response.body.range.end += excess.bytes(),
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
            RequestRange::Bounded(range) => Some(range),
        };
        let Some(requested) = requested.filter(|_| self.supports_ranges && is_if_range_met) else {
            let body = ResponseBody { version: Some(version_index), range: ByteRange::at(0, total) };
            return ServerResponse {
                head: ResponseHead { status: 200, length: Some(total), ..head },
                body,
                fault: None,
            };
        };
        let span = requested.intersect(ByteRange::at(0, total));
        let body = ResponseBody { version: Some(version_index), range: span };
        let (status, range) = if span.is_empty() {
            (416, ContentRange { range: None, total: Some(total) })
        } else {
            (206, ContentRange { range: Some(span), total: Some(total) })
        };
        let head = ResponseHead { status, length: Some(span.len()), range: Some(range), ..head };
        ServerResponse { head, body, fault: None }
    }

    fn current_version(&self, now: Instant, served_bytes: DataSize) -> usize {
        let is_available = |version: &FileVersion| match version.available {
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

/// What the server uses of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerRequest<'a> {
    pub(crate) range: RequestRange,
    pub(crate) if_range: Option<&'a Validator>,
    pub(crate) is_last: bool,
}

impl ServerResponse {
    fn cut_body(&mut self, after: DataSize, fault: BodyFault) {
        if after < self.body.range.len() {
            self.body.range.end = self.body.range.start + after.bytes();
            self.fault = Some(fault);
        }
    }
}

/// Bytes of an error page.
const ERROR_PAGE: u64 = 150;

#[cfg(test)]
mod tests {
    use super::*;

    fn request(range: RequestRange) -> ServerRequest<'static> {
        ServerRequest { range, if_range: None, is_last: false }
    }

    fn response(server: &mut HttpServer, request: ServerRequest<'_>) -> ServerResponse {
        server.respond(0, Instant::ZERO, DataSize::ZERO, request)
    }

    #[test]
    fn ranges_are_limited_to_the_file() {
        let mut server = HttpServer::new(DataSize::from_bytes(100));
        let cut = response(&mut server, request(RequestRange::Bounded(ByteRange::new(90, 200))));
        assert_eq!((cut.head.status, cut.body.range), (206, ByteRange::new(90, 100)));
        let beyond = response(&mut server, request(RequestRange::From(100)));
        assert_eq!((beyond.head.status, beyond.body.range.len()), (416, DataSize::ZERO));
    }

    #[test]
    fn a_failed_if_range_gets_the_whole_file() {
        let mut server = HttpServer::new(DataSize::from_bytes(100));
        let old_etag = Validator::Etag("\"0\"".to_string());
        let conditional = ServerRequest { if_range: Some(&old_etag), ..request(RequestRange::From(50)) };
        let full_response = response(&mut server, conditional);
        assert_eq!((full_response.head.status, full_response.body.range), (200, ByteRange::new(0, 100)));
    }

    #[test]
    fn a_fault_occurs_the_given_number_of_times() {
        let mut server = HttpServer::new(DataSize::from_bytes(100));
        server.faults = vec![Fault::always(FaultKind::Status(503, None)).times(1)];
        assert_eq!(response(&mut server, request(RequestRange::Full)).head.status, 503);
        assert_eq!(response(&mut server, request(RequestRange::Full)).head.status, 200);
    }

    #[test]
    fn a_new_version_becomes_current_after_the_given_bytes() {
        let mut server = HttpServer::new(DataSize::from_bytes(100));
        let since = AvailableFrom::Served(DataSize::from_bytes(60));
        server.versions.push(FileVersion { available: since, size: DataSize::from_bytes(70), validator: None });
        let last_response = server.respond(0, Instant::ZERO, DataSize::from_bytes(60), request(RequestRange::Full));
        assert_eq!(last_response.body, ResponseBody { version: Some(1), range: ByteRange::new(0, 70) });
    }
}
