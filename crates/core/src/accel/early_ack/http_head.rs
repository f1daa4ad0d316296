//! Parses heads of HTTP/1.0 and 1.1: what a request asks for, and what a response says about its body.
//!
//! 1. Two questions are kept apart. Where the next head begins must be certain, or the flow cannot be followed (`Err`).
//!    Whether the body can be fetched is a [`NotFetchable`] of that body alone.
//! 2. A response is fetchable with status 200, or 206 with one range of a known length; a Content-Length; no coding of
//!    any kind; a strong validator (RFC 9110 section 8.8.3), because otherwise it is unknown whether fetched bytes are
//!    of the same representation; and no `Accept-Ranges: none`.
//! 3. Only GET is repeated: it is safe (RFC 9110 section 9.2.1). A request with `Authorization` or `Cookie` is not
//!    repeated, although it might be: an authenticated client may be counted, charged or logged out for requesting
//!    twice, and its credentials would be exposed to a second access network.
//! 4. The repeated request is the original without fields about ranges, conditions, the connection and codings.

use alloc::format;
use alloc::string::{String, ToString};
use core::fmt;

use httparse::EMPTY_HEADER;

/// Why bytes are not fetched a second time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotFetchable {
    /// The flow begins like TLS.
    Encrypted,
    /// It is not HTTP/1, or a head violates RFC 9112.
    NotHttp,
    /// A head is longer than is kept, or too many requests are pending.
    TooLarge,
    /// A part of a head was not captured.
    NotCaptured,
    /// A response without an observed request.
    NoRequest,
    /// The length of the body is unknown before its end.
    NoLength,
    /// The connection switches to another protocol.
    Upgraded,
    /// The method is not GET: repeating the request could have side effects.
    Method,
    /// The request has a cookie or credentials, which are not sent again.
    Credentials,
    /// The target is not a path.
    Target,
    /// Another status than 200 and 206.
    Status(u16),
    /// The response has a content coding, or several ranges.
    Encoded,
    /// The response has no strong ETag, so a second one could be of another file.
    NoValidator,
    /// The server supports no ranges.
    NoRanges,
    /// The fetched bytes differ from those that came.
    Differs,
    /// Too short to be worth a second request.
    Short,
    /// The client has received all that it has requested.
    Finished,
    /// Too many other flows are followed.
    TooManyFlows,
}

impl fmt::Display for NotFetchable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Encrypted => f.write_str("encrypted: its bytes cannot be fetched a second time"),
            Self::NotHttp => f.write_str("not plain HTTP: its bytes cannot be fetched a second time"),
            Self::TooLarge => f.write_str("its HTTP heads are too large to be kept"),
            Self::NotCaptured => f.write_str("a part of its HTTP heads was not captured"),
            Self::NoRequest => f.write_str("a response without an observed request"),
            Self::NoLength => f.write_str("a response of unknown length"),
            Self::Upgraded => f.write_str("upgraded to another protocol"),
            Self::Method => f.write_str("not a GET: repeating the request could have side effects"),
            Self::Credentials => f.write_str("a request with a cookie or credentials is not repeated"),
            Self::Target => f.write_str("a request to a proxy is not repeated"),
            Self::Status(status) => write!(f, "a response with status {status}"),
            Self::Encoded => f.write_str("a response with a coding that has no ranges"),
            Self::NoValidator => {
                f.write_str("a response without a strong ETag: a second one could be of another file")
            }
            Self::NoRanges => f.write_str("the server supports no ranges"),
            Self::Differs => f.write_str("fetched a second time, it differed"),
            Self::Short => f.write_str("short responses are left to TCP"),
            Self::Finished => f.write_str("all requests are answered"),
            Self::TooManyFlows => f.write_str("too many other flows are followed"),
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct RequestHead {
    /// Whether its response has no body in any case.
    pub(crate) is_head: bool,
    /// Bytes of its own body.
    pub(crate) body: u64,
    /// The request to be sent again, in the form of [`Fetch`](crate::accel::Fetch).
    pub(crate) repeated_request: Result<String, NotFetchable>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ResponseHead {
    /// Whether another response to the same request follows (1xx).
    pub(crate) is_interim: bool,
    /// Bytes of its body, unless the request was a HEAD.
    pub(crate) body: u64,
    /// Which bytes of which resource these are.
    pub(crate) part: Result<ResourcePart, NotFetchable>,
}

/// Bytes of a resource.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ResourcePart {
    /// Where the body begins in the resource.
    pub(crate) offset: u64,
    /// Length of the resource.
    pub(crate) length: u64,
    /// Its strong validator, quotes included.
    pub(crate) etag: String,
}

impl RequestHead {
    /// Reads a head.
    ///
    /// # Errors
    /// It cannot be said where the next one begins.
    pub(crate) fn parse(head: &[u8]) -> Result<Self, NotFetchable> {
        let mut fields = [EMPTY_HEADER; MAX_FIELDS];
        let mut request = httparse::Request::new(&mut fields);
        check_complete(head, request.parse(head))?;
        let (Some(method), Some(target), Some(version)) = (request.method, request.path, request.version) else {
            return Err(NotFetchable::NotHttp);
        };
        if !method.bytes().all(|b| b.is_ascii_uppercase()) {
            return Err(NotFetchable::NotHttp);
        }
        if method == "CONNECT" {
            return Err(NotFetchable::Upgraded);
        }
        let (mut length, mut is_named) = (None, false);
        let mut again = format!("{method} {target} HTTP/1.{version}\r\n");
        for field in request.headers.iter() {
            let (name, value) = (field.name, text(field.value)?);
            let is_name = |wanted: &str| name.eq_ignore_ascii_case(wanted);
            if is_name("content-length") {
                add_length(&mut length, value)?;
            } else if is_name("transfer-encoding") {
                return Err(NotFetchable::NoLength);
            }
            is_named |= CREDENTIAL_FIELDS.iter().any(|wanted| is_name(wanted));
            if !OMITTED_FIELDS.iter().any(|wanted| is_name(wanted)) {
                again = again + name + ": " + value + "\r\n";
            }
        }
        again += "Accept-Encoding: identity\r\n";
        let again = match () {
            () if method != "GET" || length.is_some_and(|length| length > 0) => Err(NotFetchable::Method),
            () if is_named => Err(NotFetchable::Credentials),
            () if !target.starts_with('/') => Err(NotFetchable::Target),
            () => Ok(again),
        };
        Ok(Self { is_head: method == "HEAD", body: length.unwrap_or(0), repeated_request: again })
    }
}

impl ResponseHead {
    /// Reads a head.
    ///
    /// # Errors
    /// It cannot be said where the next one begins.
    pub(crate) fn parse(head: &[u8]) -> Result<Self, NotFetchable> {
        let mut fields = [EMPTY_HEADER; MAX_FIELDS];
        let mut response = httparse::Response::new(&mut fields);
        check_complete(head, response.parse(head))?;
        let Some(status) = response.code else { return Err(NotFetchable::NotHttp) };
        let (mut length, mut range, mut etag) = (None, None, None);
        let (mut is_coded, mut is_unframed, mut has_ranges) = (false, false, true);
        for field in response.headers.iter() {
            let (name, value) = (field.name, text(field.value)?);
            let is_name = |wanted: &str| name.eq_ignore_ascii_case(wanted);
            if is_name("content-length") {
                add_length(&mut length, value)?;
            } else if is_name("transfer-encoding") {
                is_unframed = true;
            } else if is_name("content-encoding") {
                is_coded |= !value.eq_ignore_ascii_case("identity");
            } else if is_name("content-range") {
                range = content_range(value);
            } else if is_name("accept-ranges") {
                has_ranges &= !value.eq_ignore_ascii_case("none");
            } else if is_name("etag") {
                etag = is_strong(value).then(|| value.to_string());
            }
        }
        let body = match status {
            101 => return Err(NotFetchable::Upgraded),
            100..=199 | 204 | 304 => 0,
            _ if is_unframed => return Err(NotFetchable::NoLength),
            _ => length.ok_or(NotFetchable::NoLength)?,
        };
        let part = match (status, range) {
            _ if is_coded => Err(NotFetchable::Encoded),
            _ if !has_ranges => Err(NotFetchable::NoRanges),
            (200, _) => Ok((0, body)),
            (206, Some((start, end, total))) if end - start == body => Ok((start, total)),
            (206, _) => Err(NotFetchable::Encoded),
            _ => Err(NotFetchable::Status(status)),
        };
        let part = part.and_then(|(offset, length)| {
            etag.map(|etag| ResourcePart { offset, length, etag }).ok_or(NotFetchable::NoValidator)
        });
        Ok(Self { is_interim: status < 200, body, part })
    }
}

/// Whether all of `head` was parsed. A bare LF, which the parser accepts as the end of a line, is refused: another
/// recipient may take what follows it for a part of the line (RFC 9112 section 2.2).
fn check_complete(head: &[u8], parsed: httparse::Result<usize>) -> Result<(), NotFetchable> {
    let has_bare_lf =
        head.iter().zip(core::iter::once(&0).chain(head)).any(|(b, before)| *b == b'\n' && *before != b'\r');
    match parsed {
        Ok(httparse::Status::Complete(length)) if length == head.len() && !has_bare_lf => Ok(()),
        Err(httparse::Error::TooManyHeaders) => Err(NotFetchable::TooLarge),
        _ => Err(NotFetchable::NotHttp),
    }
}

/// The value of a field without control characters.
fn text(value: &[u8]) -> Result<&str, NotFetchable> {
    let value = core::str::from_utf8(value).map_err(|_| NotFetchable::NotHttp)?;
    if value.bytes().any(|b| b < b' ') { Err(NotFetchable::NotHttp) } else { Ok(value) }
}

/// Adds a Content-Length; several must agree (RFC 9112 section 6.3).
fn add_length(length: &mut Option<u64>, value: &str) -> Result<(), NotFetchable> {
    let new = parse_digits(value).ok_or(NotFetchable::NotHttp)?;
    if length.is_some_and(|old| old != new) || new > MAX_LENGTH {
        return Err(NotFetchable::NotHttp);
    }
    *length = Some(new);
    Ok(())
}

/// `bytes 5-9/20`: first, one past the last, length.
fn content_range(value: &str) -> Option<(u64, u64, u64)> {
    let (range, total) = value.strip_prefix("bytes ")?.split_once('/')?;
    let (start, last) = range.split_once('-')?;
    let (start, end, total) = (parse_digits(start)?, parse_digits(last)?.checked_add(1)?, parse_digits(total)?);
    (start < end && end <= total && total <= MAX_LENGTH).then_some((start, end, total))
}

/// Quotes, and between them neither quotes, blanks nor control characters; a weak validator begins with `W/`.
fn is_strong(etag: &str) -> bool {
    let inner = etag.strip_prefix('"').and_then(|remaining| remaining.strip_suffix('"'));
    inner.is_some_and(|inner| inner.bytes().all(|b| b > b' ' && b != b'"' && b != 0x7f))
}

/// Decimal digits only.
fn parse_digits(text: &str) -> Option<u64> {
    let are = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if are { text.parse().ok() } else { None }
}

/// Longer than any resource, and short enough for positions never to overflow.
const MAX_LENGTH: u64 = 1 << 48;

/// More than browsers and servers send.
const MAX_FIELDS: usize = 100;

/// Fields that identify the client.
const CREDENTIAL_FIELDS: [&str; 3] = ["authorization", "cookie", "proxy-authorization"];

/// Fields that the repeated request sets itself, or that are valid for one connection only.
const OMITTED_FIELDS: [&str; 15] = [
    "range",
    "if-range",
    "if-match",
    "if-none-match",
    "if-modified-since",
    "if-unmodified-since",
    "accept-encoding",
    "connection",
    "keep-alive",
    "proxy-connection",
    "upgrade",
    "te",
    "expect",
    "content-length",
    "http2-settings",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_repeated_without_fields_of_its_connection() {
        let head = "GET /a?b=c HTTP/1.1\r\nHost: h:81\r\nUser-Agent: me\r\nRange: bytes=5-\r\nIf-Range: \"x\"\r\n\
                    Connection: keep-alive\r\nAccept-Encoding: gzip\r\nAccept: */*\r\n\r\n";
        let request = RequestHead::parse(head.as_bytes()).expect("read");
        let again =
            "GET /a?b=c HTTP/1.1\r\nHost: h:81\r\nUser-Agent: me\r\nAccept: */*\r\nAccept-Encoding: identity\r\n";
        assert_eq!(request, RequestHead { is_head: false, body: 0, repeated_request: Ok(again.into()) });
    }

    #[test]
    fn only_a_get_without_credentials_is_repeated() {
        for (head, want) in [
            ("POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\n", Ok((5, Err(NotFetchable::Method)))),
            ("HEAD / HTTP/1.1\r\n\r\n", Ok((0, Err(NotFetchable::Method)))),
            ("GET / HTTP/1.1\r\ncookie: a=b\r\n\r\n", Ok((0, Err(NotFetchable::Credentials)))),
            ("GET / HTTP/1.1\r\nAuthorization: Basic eA==\r\n\r\n", Ok((0, Err(NotFetchable::Credentials)))),
            ("GET http://h/ HTTP/1.1\r\n\r\n", Ok((0, Err(NotFetchable::Target)))),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", Err(NotFetchable::NoLength)),
            ("CONNECT h:443 HTTP/1.1\r\n\r\n", Err(NotFetchable::Upgraded)),
            ("GET / HTTP/2\r\n\r\n", Err(NotFetchable::NotHttp)),
            ("GET  / HTTP/1.1\r\n\r\n", Err(NotFetchable::NotHttp)),
            ("GET / HTTP/1.1\r\n folded: x\r\n\r\n", Err(NotFetchable::NotHttp)),
            ("GET / HTTP/1.1\r\nA: b\nEvil: c\r\n\r\n", Err(NotFetchable::NotHttp)),
            ("GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", Err(NotFetchable::NotHttp)),
            ("SSH-2.0-x\r\n\r\n", Err(NotFetchable::NotHttp)),
        ] {
            let got = RequestHead::parse(head.as_bytes()).map(|request| (request.body, request.repeated_request));
            assert_eq!(got, want, "{head}");
        }
    }

    #[test]
    fn a_response_says_which_bytes_it_has() {
        let part = |fields: &str| {
            let head = format!("HTTP/1.1 200 OK\r\n{fields}\r\n\r\n");
            ResponseHead::parse(head.as_bytes()).map(|answer| (answer.body, answer.part))
        };
        let etag = "ETag: \"x\"\r\nContent-Length: 9";
        assert_eq!(part(etag), Ok((9, Ok(ResourcePart { offset: 0, length: 9, etag: "\"x\"".into() }))));
        for (fields, refusal) in [
            ("Content-Length: 9", NotFetchable::NoValidator),
            ("ETag: W/\"x\"\r\nContent-Length: 9", NotFetchable::NoValidator),
            ("Content-Encoding: gzip\r\nETag: \"x\"\r\nContent-Length: 9", NotFetchable::Encoded),
            ("Accept-Ranges: none\r\nETag: \"x\"\r\nContent-Length: 9", NotFetchable::NoRanges),
        ] {
            assert_eq!(part(fields), Ok((9, Err(refusal))), "{fields}");
        }
        for fields in ["ETag: \"x\"", "Transfer-Encoding: chunked", "Transfer-Encoding: gzip\r\nContent-Length: 9"]
        {
            assert_eq!(part(fields), Err(NotFetchable::NoLength), "{fields}");
        }
        assert_eq!(part("Content-Length: +9"), Err(NotFetchable::NotHttp));
        assert_eq!(part("Content-Length: 99999999999999999"), Err(NotFetchable::NotHttp));
    }

    #[test]
    fn a_part_is_one_range_of_a_known_length() {
        let part = |range: &str| {
            let head = format!(
                "HTTP/1.1 206 Partial Content\r\nContent-Length: 5\r\nETag: \"x\"\r\nContent-Range: {range}\r\n\r\n"
            );
            ResponseHead::parse(head.as_bytes()).expect("followed").part
        };
        assert_eq!(part("bytes 5-9/20"), Ok(ResourcePart { offset: 5, length: 20, etag: "\"x\"".into() }));
        for range in ["bytes 5-9/*", "bytes 5-8/20", "bytes 9-5/20", "bytes 18-22/20", "bytes */20", "items 5-9/20"]
        {
            assert_eq!(part(range), Err(NotFetchable::Encoded), "{range}");
        }
    }

    #[test]
    fn some_responses_have_no_body() {
        for (row, interim) in [("100 Continue", true), ("204 No Content", false), ("304 Not Modified", false)] {
            let answer = ResponseHead::parse(format!("HTTP/1.1 {row}\r\nContent-Length: 9\r\n\r\n").as_bytes());
            let answer = answer.expect("followed");
            assert_eq!((answer.body, answer.is_interim), (0, interim), "{row}");
        }
        assert_eq!(ResponseHead::parse(b"HTTP/1.1 101 Switching\r\n\r\n"), Err(NotFetchable::Upgraded));
        assert_eq!(ResponseHead::parse(b"HTTP/1.1 20 OK\r\n\r\n"), Err(NotFetchable::NotHttp));
        let lost = ResponseHead::parse(b"HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\n").expect("followed");
        assert_eq!((lost.body, lost.part), (9, Err(NotFetchable::Status(404))));
    }
}
