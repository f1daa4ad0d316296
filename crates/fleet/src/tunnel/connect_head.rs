//! What an edge asks for: one head of HTTP/1.1 (RFC 9112), and the answers to it.
//!
//! In: bytes. Out: a [`Request`], a [`Problem`] to be answered, or none yet.
//!
//! 1. CONNECT (RFC 9110 §9.3.6) to a host and a port. What follows the head in the same bytes belongs to the tunnel.
//! 2. Whatever cannot be a request of an edge is answered once and the connection is closed: bytes that were sent ahead must
//!    never be taken for another request.
//! 3. Why not is said in a form that programs read (Proxy-Status, RFC 9209), and in a line for people.

use std::fmt::Write as _;
use std::net::IpAddr;

/// The longest head. chosen: a host's name and a dozen of fields; nginx's default.
pub(crate) const MAX_HEAD_LEN: usize = 8192;
/// chosen: curl sends four.
const MAX_FIELDS: usize = 64;

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// A tunnel to there.
    Connect(Target),
}

/// Where a tunnel is to lead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// A name in lower case without a final dot, or an address as text.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl Target {
    /// Of `host:port`; the host of an IPv6 address stands in brackets.
    pub(crate) fn parse(authority: &str) -> Option<Self> {
        let (host, port) = authority.rsplit_once(':')?;
        let port = port.parse().ok().filter(|port| *port > 0)?;
        let bracketed = host.starts_with('[');
        let host = match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            Some(inner) => inner.parse::<IpAddr>().ok().filter(IpAddr::is_ipv6)?.to_string(),
            None => host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase(),
        };
        Self::checked(host, port, bracketed)
    }

    /// Of a host and a port that came apart.
    pub(crate) fn new(host: &str, port: u16) -> Option<Self> {
        let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
        Self::checked(host, port, true).filter(|_| port > 0)
    }

    /// As it stands in a request.
    pub(crate) fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    fn checked(host: String, port: u16, bracketed: bool) -> Option<Self> {
        let is_address = |host: &str| host.parse::<IpAddr>().is_ok_and(|it| it.is_ipv4() || bracketed);
        (is_address(&host) || is_name(&host)).then_some(Self { host, port })
    }
}

/// Letters, digits, hyphens and underscores in labels (RFC 1123 §2.1), at most 253 bytes.
fn is_name(host: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    // The last label of a name is no number: `127.1` and `0x7f.1` are addresses to some resolvers.
    let last = host.rsplit('.').next().unwrap_or_default();
    host.len() <= 253
        && host.split('.').all(|label| !label.is_empty() && label.len() <= 63 && label.bytes().all(plain))
        && !last.starts_with(|first: char| first.is_ascii_digit())
}

/// Why a request is not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    /// The status of the answer.
    pub status: Status,
    /// RFC 9209's word for it.
    pub error: &'static str,
    /// A line for people.
    pub details: String,
}

/// The statuses that a relay answers with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// 400.
    BadRequest,
    /// 403: a rule refuses.
    Forbidden,
    /// 405: only CONNECT is spoken here.
    MethodNotAllowed,
    /// 408: the head took too long.
    RequestTimeout,
    /// 429: this edge has as many tunnels as it may have.
    TooManyRequests,
    /// 431: the head is too long.
    HeadersTooLarge,
    /// 502: the server refuses or cannot be reached.
    BadGateway,
    /// 503: no room, or draining.
    ServiceUnavailable,
    /// 504: the server does not answer.
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
    /// One.
    pub(crate) fn new(status: Status, error: &'static str, words: impl Into<String>) -> Self {
        Self { status, error, details: words.into() }
    }

    /// The whole answer.
    pub(crate) fn to_response(&self) -> String {
        let mut answer = format!("HTTP/1.1 {}\r\n", self.status.as_str());
        // The words of our own errors have no quotes; those of the system might.
        let details: String =
            self.details.chars().filter(|c| matches!(c, ' '..='~') && !matches!(c, '"' | '\\')).collect();
        let _ = write!(answer, "Proxy-Status: marline; error={}; details=\"{details}\"\r\n", self.error);
        if self.status == Status::MethodNotAllowed {
            answer.push_str("Allow: CONNECT\r\n");
        }
        if matches!(self.status, Status::ServiceUnavailable | Status::TooManyRequests) {
            let _ = write!(answer, "Retry-After: {RETRY_AFTER}\r\n");
        }
        let _ = write!(
            answer,
            "Content-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}\n",
            self.details.len() + 1,
            self.details
        );
        answer
    }
}

/// Seconds. chosen: an edge asks the fleet for another relay long before.
const RETRY_AFTER: u32 = 5;

/// The answer to a CONNECT whose tunnel is there. It has no length (RFC 9110 §9.3.6).
pub(crate) const CONNECTED: &str = "HTTP/1.1 200 Connection established\r\n\r\n";

/// The request in `bytes` and how many of them are its head; none: there is more to come.
///
/// # Errors
/// What is to be answered.
pub(crate) fn parse(bytes: &[u8]) -> Result<Option<(Request, usize)>, Problem> {
    let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut head = httparse::Request::new(&mut fields);
    let bad = |words: String| Problem::new(Status::BadRequest, "http_request_error", words);
    let len = match head.parse(bytes) {
        Ok(httparse::Status::Complete(len)) if len <= MAX_HEAD_LEN => len,
        Ok(httparse::Status::Partial) if bytes.len() < MAX_HEAD_LEN => return Ok(None),
        Ok(_) => return Err(Problem::new(Status::HeadersTooLarge, "http_request_error", "the head is too long")),
        Err(httparse::Error::TooManyHeaders) => {
            return Err(Problem::new(
                Status::HeadersTooLarge,
                "http_request_error",
                "the head has too many fields",
            ));
        }
        Err(error) => return Err(bad(format!("no head of HTTP/1.1: {error}"))),
    };
    if head.method != Some("CONNECT") {
        return Err(Problem::new(Status::MethodNotAllowed, "http_request_error", "a relay speaks CONNECT"));
    }
    // A CONNECT has no body (RFC 9110 §9.3.6): whoever announces one takes the tunnel's bytes for something else.
    let body =
        |name: &str| ["content-length", "transfer-encoding"].iter().any(|field| name.eq_ignore_ascii_case(field));
    if head.headers.iter().any(|field| body(field.name)) {
        return Err(bad("a CONNECT with a body".to_owned()));
    }
    let target = head.path.and_then(Target::parse);
    let target = target.ok_or_else(|| bad("CONNECT needs a host and a port, host:port".to_owned()))?;
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
    fn a_tunnel_leads_to_a_host_and_a_port() {
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
    fn what_follows_the_head_belongs_to_the_tunnel() {
        let bytes = b"CONNECT a:80 HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n";
        assert_eq!(parse(bytes).unwrap().unwrap().1, 25);
        assert_eq!(parse(&bytes[..24]).unwrap(), None);
    }

    #[test]
    fn what_cannot_be_an_edges_request_is_answered() {
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
    fn an_answer_says_why_to_programs_and_to_people() {
        let problem =
            Problem::new(Status::ServiceUnavailable, "connection_limit_reached", "no \"room\" here\r\nX: y");
        let answer = problem.to_response();
        assert!(answer.starts_with("HTTP/1.1 503 Service Unavailable\r\nProxy-Status: marline; error=connection_limit_reached; details=\"no room hereX: y\"\r\nRetry-After: 5\r\n"));
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(answer.contains(&format!("Content-Length: {}\r\n", body.len())));
    }
}
