//! The request of an edge to a relay: one HTTP/1.1 head (RFC 9112), and the responses to it.
//!
//! 1. The only request is CONNECT (RFC 9110 §9.3.6) to a host and a port. Bytes after the head belong to the tunnel.
//! 2. Anything else gets one response and the connection is closed. Bytes that were sent ahead must never be parsed as
//!    another request.
//! 3. An error response contains the reason for programs (Proxy-Status, RFC 9209) and one line of text for people.

use std::fmt::Write as _;

use marline_core::fleet::Target;

/// Longest accepted head. Our choice: a host name and a dozen fields; the default of nginx.
pub(crate) const MAX_HEAD_LEN: usize = 8192;
/// Highest number of header fields. Our choice: curl sends four.
const MAX_HEADER_FIELDS: usize = 64;

/// A request of an edge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Open a tunnel to this target.
    Connect(Target),
}

/// Reason for rejecting a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    /// Status of the response.
    pub status: Status,
    /// Error type of RFC 9209.
    pub error: &'static str,
    /// One line of text for people.
    pub details: String,
}

/// Statuses with which a relay responds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// 400: the request is malformed.
    BadRequest,
    /// 403: a rule forbids the target.
    Forbidden,
    /// 405: only CONNECT is supported.
    MethodNotAllowed,
    /// 408: the head did not arrive in time.
    RequestTimeout,
    /// 429: this edge has reached its limit of tunnels.
    TooManyRequests,
    /// 431: the head is too long or has too many fields.
    HeadersTooLarge,
    /// 502: the origin server refuses the connection or cannot be reached.
    BadGateway,
    /// 503: the relay is at its limit, or draining.
    ServiceUnavailable,
    /// 504: the origin server does not respond.
    GatewayTimeout,
}

impl Status {
    fn as_str(self) -> &'static str {
        match self {
            Self::BadRequest => "400 Bad Request",
            Self::Forbidden => "403 Forbidden",
            Self::MethodNotAllowed => "405 Method Not Allowed",
            Self::RequestTimeout => "408 Request Timeout",
            Self::TooManyRequests => "429 Too Many Requests",
            Self::HeadersTooLarge => "431 Request Header Fields Too Large",
            Self::BadGateway => "502 Bad Gateway",
            Self::ServiceUnavailable => "503 Service Unavailable",
            Self::GatewayTimeout => "504 Gateway Timeout",
        }
    }
}

impl Problem {
    /// Creates a problem; `error` is an error type of RFC 9209.
    pub(crate) fn new(status: Status, error: &'static str, details: impl Into<String>) -> Self {
        Self { status, error, details: details.into() }
    }

    /// The complete HTTP response.
    pub(crate) fn to_response(&self) -> String {
        let mut response = format!("HTTP/1.1 {}\r\n", self.status.as_str());
        // marline's own texts contain no quotes; system error messages might.
        let details: String =
            self.details.chars().filter(|c| matches!(c, ' '..='~') && !matches!(c, '"' | '\\')).collect();
        let _ = write!(response, "Proxy-Status: marline; error={}; details=\"{details}\"\r\n", self.error);
        if self.status == Status::MethodNotAllowed {
            response.push_str("Allow: CONNECT\r\n");
        }
        if matches!(self.status, Status::ServiceUnavailable | Status::TooManyRequests) {
            let _ = write!(response, "Retry-After: {RETRY_AFTER}\r\n");
        }
        let _ = write!(
            response,
            "Content-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}\n",
            self.details.len() + 1,
            self.details
        );
        response
    }
}

/// Value of `Retry-After` in seconds. Our choice: an edge requests another relay from the fleet service long before.
const RETRY_AFTER: u32 = 5;

/// Response to a CONNECT whose tunnel is open. It has no length (RFC 9110 §9.3.6).
pub(crate) const CONNECTED: &str = "HTTP/1.1 200 Connection established\r\n\r\n";

/// Parses the request at the beginning of `bytes`; returns it with the length of its head, or `None` if the head is
/// incomplete.
///
/// # Errors
/// The problem with which to respond.
pub(crate) fn parse(bytes: &[u8]) -> Result<Option<(Request, usize)>, Problem> {
    let mut fields = [httparse::EMPTY_HEADER; MAX_HEADER_FIELDS];
    let mut head = httparse::Request::new(&mut fields);
    let bad = |details: String| Problem::new(Status::BadRequest, "http_request_error", details);
    let len = match head.parse(bytes) {
        Ok(httparse::Status::Complete(len)) if len <= MAX_HEAD_LEN => len,
        Ok(httparse::Status::Partial) if bytes.len() < MAX_HEAD_LEN => return Ok(None),
        Ok(_) => return Err(Problem::new(Status::HeadersTooLarge, "http_request_error", "request head too long")),
        Err(httparse::Error::TooManyHeaders) => {
            return Err(Problem::new(
                Status::HeadersTooLarge,
                "http_request_error",
                "the request head has too many fields",
            ));
        }
        Err(error) => return Err(bad(format!("malformed HTTP/1.1 request: {error}"))),
    };
    if head.method != Some("CONNECT") {
        return Err(Problem::new(Status::MethodNotAllowed, "http_request_error", "a relay accepts only CONNECT"));
    }
    // A CONNECT has no body (RFC 9110 §9.3.6). A client that announces one misunderstands the tunnel's bytes.
    let body =
        |name: &str| ["content-length", "transfer-encoding"].iter().any(|field| name.eq_ignore_ascii_case(field));
    if head.headers.iter().any(|field| body(field.name)) {
        return Err(bad("CONNECT must not have a body".to_owned()));
    }
    let target = head.path.and_then(Target::parse);
    let target = target.ok_or_else(|| bad("CONNECT needs a target of the form host:port".to_owned()))?;
    Ok(Some((Request::Connect(target), len)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connect(authority: &str) -> Option<Target> {
        let head = format!("CONNECT {authority} HTTP/1.1\r\nHost: x\r\n\r\n");
        let (Request::Connect(target), len) = parse(head.as_bytes()).ok()??;
        assert_eq!(len, head.len());
        Some(target)
    }

    #[test]
    fn a_target_is_a_host_and_a_port() {
        for (authority, host, port) in [
            ("live.Example.org:1935", "live.example.org", 1935),
            ("live.example.org.:443", "live.example.org", 443),
            ("192.0.2.7:80", "192.0.2.7", 80),
            ("[2001:DB8::7]:443", "2001:db8::7", 443),
            ("a_b-c:1", "a_b-c", 1),
        ] {
            assert_eq!(connect(authority), Some(Target { host: host.to_owned(), port }), "{authority}");
        }
        for authority in [
            "example.org",
            ":80",
            "a:0",
            "a:65536",
            "a b:80",
            "[::1]",
            "[1.2.3.4]:80",
            "::1:80",
            "127.1:80",
            "0x7f000001.0x1:80",
            "2130706433:80",
            "a..b:80",
            "a/b:80",
            "user@a:80",
        ] {
            assert_eq!(connect(authority), None, "{authority}");
        }
    }

    #[test]
    fn bytes_after_the_head_belong_to_the_tunnel() {
        let bytes = b"CONNECT a:80 HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n";
        assert_eq!(parse(bytes).unwrap().unwrap().1, 25);
        assert_eq!(parse(&bytes[..24]).unwrap(), None);
    }

    #[test]
    fn other_requests_get_an_error_response() {
        let status = |head: &[u8]| parse(head).unwrap_err().status;
        assert_eq!(status(b"GET http://a/ HTTP/1.1\r\n\r\n"), Status::MethodNotAllowed);
        assert_eq!(status(b"\x16\x03\x01\0\0\0"), Status::BadRequest);
        assert_eq!(status(b"CONNECT a:80 HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello"), Status::BadRequest);
        assert_eq!(status(b"CONNECT a:80 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"), Status::BadRequest);
        let long = [b"CONNECT a:80 HTTP/1.1\r\nx: ".as_slice(), &[b'y'; MAX_HEAD_LEN]].concat();
        assert_eq!(status(&long), Status::HeadersTooLarge);
        let many = [b"CONNECT a:80 HTTP/1.1\r\n".as_slice(), &b"a: b\r\n".repeat(65), b"\r\n"].concat();
        assert_eq!(status(&many), Status::HeadersTooLarge);
    }

    #[test]
    fn a_response_gives_the_reason_to_programs_and_people() {
        let problem =
            Problem::new(Status::ServiceUnavailable, "connection_limit_reached", "no \"room\" here\r\nX: y");
        let answer = problem.to_response();
        assert!(answer.starts_with("HTTP/1.1 503 Service Unavailable\r\nProxy-Status: marline; error=connection_limit_reached; details=\"no room hereX: y\"\r\nRetry-After: 5\r\n"));
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(answer.contains(&format!("Content-Length: {}\r\n", body.len())));
    }
}
