//! A GET request, and its encoding in HTTP/1.1 (RFC 9112 section 3) and HTTP/2 (RFC 9113 section 8.3).
//!
//! Names and values of fields are validated types, so header injection is impossible. The identity encoding is
//! requested, because a range of a compressed body is useless (RFC 9110 section 14.2 applies to the encoded bytes).
//! The caller's fields replace the defaults of the same name, except Host, Range, If-Range and Accept-Encoding.

use http::header::{self, HeaderName, HeaderValue};

use marline_core::fetch::{RequestRange, Validator};

use super::Proxy;

/// A GET request, independent of the protocol version.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GetRequest {
    /// Path and query of the URL, percent-encoded, starting with `/`.
    pub path_and_query: String,
    /// Host, and the port unless it is the default of the scheme; IPv6 addresses in brackets.
    pub authority: String,
    /// The requested byte range.
    pub range: RequestRange,
    /// Return the range only if the resource still has this validator, otherwise the whole resource (RFC 9110 section
    /// 13.1.5).
    pub if_range: Option<Validator>,
    /// Additional fields.
    pub headers: Vec<(HeaderName, HeaderValue)>,
}

impl GetRequest {
    /// The same request in absolute form (RFC 9112 section 3.2.2), for an HTTP proxy that fetches an `http` URL.
    #[must_use]
    pub fn in_absolute_form(mut self, proxy: &Proxy) -> Self {
        self.path_and_query = format!("http://{}{}", self.authority, self.path_and_query);
        self.headers.retain(|(name, _)| *name != header::PROXY_AUTHORIZATION);
        self.headers.extend(proxy.authorization().map(|value| (header::PROXY_AUTHORIZATION, value)));
        self
    }

    /// Appends the HTTP/1.1 request head.
    pub(super) fn write_http1(&self, out: &mut Vec<u8>) {
        let mut append_field = |name: &str, value: &[u8]| {
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(b": ");
            out.extend_from_slice(value);
            out.extend_from_slice(b"\r\n");
        };
        let request_line = format!("GET {} HTTP/1.1\r\nHost", self.path_and_query);
        append_field(&request_line, self.authority.as_bytes());
        self.for_each_field(|name, value| append_field(canonical_case(name), value.as_bytes()));
        out.extend_from_slice(b"\r\n");
    }

    /// The HTTP/2 request, for `https` or `http`. Values marked as sensitive keep the mark, so they do not enter the
    /// tables of header compression (RFC 7541 section 7.1.3).
    pub(super) fn to_http2(&self, secure: bool) -> Result<http::Request<()>, http::Error> {
        let uri = http::Uri::builder()
            .scheme(if secure { "https" } else { "http" })
            .authority(self.authority.as_str())
            .path_and_query(self.path_and_query.as_str())
            .build()?;
        let mut request = http::Request::builder().method(http::Method::GET).uri(uri).body(())?;
        let fields = request.headers_mut();
        self.for_each_field(|name, value| {
            fields.append(name.clone(), value.clone());
        });
        Ok(request)
    }

    /// Calls `append` for every field except Host.
    fn for_each_field(&self, mut append: impl FnMut(&HeaderName, &HeaderValue)) {
        let is_given = |name: &HeaderName| self.headers.iter().any(|(n, _)| n == name);
        if !is_given(&header::USER_AGENT) {
            append(&header::USER_AGENT, &HeaderValue::from_static(USER_AGENT));
        }
        if !is_given(&header::ACCEPT) {
            append(&header::ACCEPT, &HeaderValue::from_static("*/*"));
        }
        append(&header::ACCEPT_ENCODING, &HeaderValue::from_static("identity"));
        let condition =
            self.if_range.as_ref().map(|validator| HeaderValue::from_bytes(validator.if_range_value().as_bytes()));
        match (range_value(self.range), condition) {
            // A range without its condition could be of another version of the file, so neither is sent.
            (None, _) | (_, Some(Err(_))) => {}
            (Some(range), condition) => {
                append(&header::RANGE, &range);
                if let Some(Ok(condition)) = condition {
                    append(&header::IF_RANGE, &condition);
                }
            }
        }
        for (name, value) in self.headers.iter().filter(|(name, _)| !MANAGED_FIELDS.contains(name)) {
            append(name, value);
        }
    }
}

/// The Range field (RFC 9110 section 14.2); none for the whole resource, or for an empty range.
fn range_value(range: RequestRange) -> Option<HeaderValue> {
    let text = match range {
        RequestRange::Full => return None,
        RequestRange::From(start) => format!("bytes={start}-"),
        RequestRange::Bounded(range) if range.is_empty() => return None,
        RequestRange::Bounded(range) => format!("bytes={}-{}", range.start, range.end - 1),
    };
    HeaderValue::try_from(text).ok()
}

/// Our own fields with the capitalization with which old servers and middleboxes were tested.
fn canonical_case(name: &HeaderName) -> &str {
    match name.as_str() {
        "user-agent" => "User-Agent",
        "accept" => "Accept",
        "accept-encoding" => "Accept-Encoding",
        "range" => "Range",
        "if-range" => "If-Range",
        "authorization" => "Authorization",
        other => other,
    }
}

/// Default value of User-Agent.
const USER_AGENT: &str = concat!("marline/", env!("CARGO_PKG_VERSION"));

/// Fields that only this module may set. Connection and related fields would change the framing that the parser
/// relies on.
const MANAGED_FIELDS: [HeaderName; 10] = [
    header::HOST,
    header::RANGE,
    header::IF_RANGE,
    header::ACCEPT_ENCODING,
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::TE,
    header::EXPECT,
];

#[cfg(test)]
mod tests {
    use super::*;
    use marline_core::fetch::ByteRange;

    fn get(range: RequestRange) -> GetRequest {
        GetRequest {
            path_and_query: "/a?b".into(),
            authority: "h:81".into(),
            range,
            if_range: Some(Validator::Etag("\"x\"".into())),
            headers: vec![
                (header::USER_AGENT, HeaderValue::from_static("me")),
                (header::HOST, HeaderValue::from_static("evil")),
            ],
        }
    }

    #[test]
    fn a_request_has_exactly_the_necessary_fields() {
        let mut out = Vec::new();
        get(RequestRange::Bounded(ByteRange::new(10, 20))).write_http1(&mut out);
        let want = "GET /a?b HTTP/1.1\r\nHost: h:81\r\nAccept: */*\r\nAccept-Encoding: identity\r\n\
                    Range: bytes=10-19\r\nIf-Range: \"x\"\r\nUser-Agent: me\r\n\r\n";
        assert_eq!(String::from_utf8_lossy(&out), want);
    }

    #[test]
    fn the_whole_resource_is_requested_without_conditions() {
        let mut out = Vec::new();
        get(RequestRange::Full).write_http1(&mut out);
        let text = String::from_utf8_lossy(&out).into_owned();
        assert!(!text.contains("Range"), "{text}");
        assert_eq!(range_value(RequestRange::From(7)), Some(HeaderValue::from_static("bytes=7-")));
    }

    #[test]
    fn a_corrupt_validator_injects_no_field() {
        let mut out = Vec::new();
        let validator = Some(Validator::Etag("\"x\"\r\nEvil: yes".into()));
        GetRequest { if_range: validator, ..get(RequestRange::From(5)) }.write_http1(&mut out);
        let text = String::from_utf8_lossy(&out).into_owned();
        assert!(!text.contains("Evil") && !text.contains("Range"), "{text}");
    }

    #[test]
    fn http2_carries_the_same_fields() {
        let request = get(RequestRange::From(5)).to_http2(true).expect("legal");
        assert_eq!(request.uri().to_string(), "https://h:81/a?b");
        assert_eq!(request.headers()["range"], "bytes=5-");
        assert_eq!(request.headers()["user-agent"], "me");
        assert!(!request.headers().contains_key("host"));
    }
}
