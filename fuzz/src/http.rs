//! HTTP/1.1 from a server: heads and pipelined responses, chunked bodies, header fields, cookies, netrc and mirrors.

use std::time::{Duration, SystemTime};

use marline_core::fetch::{ConnErrorKind, ContentRange, ReqId, ResponseHead, Validator};
use marline_core::units::DataSize;
use marline_download::{metalink, netrc};
use marline_net::fuzzing;
use marline_net::http::{Event, ResponseMeta, Sink};
use url::Url;

use crate::bytes::Bytes;
use crate::names::assert_is_valid_name;

/// Responses to pipelined requests. The first byte gives the number of requests, one more byte for each request decides
/// whether its body is accepted, and the rest is the stream. Its meaning must not depend on where it is cut.
pub fn responses(bytes: &[u8]) {
    let mut bytes = Bytes(bytes);
    let requests = 1 + u32::from(bytes.u8() % 8);
    let decisions = bytes.take(requests as usize);
    let whole = ParsedStream::parse(requests, decisions, std::iter::once(bytes.0));
    let single = ParsedStream::parse(requests, decisions, bytes.0.chunks(1));
    let pieces = ParsedStream::parse(requests, decisions, bytes.0.chunks(7));
    assert_eq!(whole, single, "the stream parses differently byte by byte");
    assert_eq!(whole, pieces, "the stream parses differently in pieces");
}

/// Everything that a stream was parsed to.
#[derive(Default, PartialEq, Eq, Debug)]
struct ParsedStream {
    heads: Vec<(ReqId, ResponseHead, Option<String>, Option<String>)>,
    bodies: Bodies,
    /// Body bytes as the events count them.
    counted: Vec<(ReqId, u64)>,
    ended: Vec<ReqId>,
    closed: Option<ConnErrorKind>,
}

/// Body bytes as the sink received them.
#[derive(Default, PartialEq, Eq, Debug)]
struct Bodies(Vec<(ReqId, Vec<u8>)>);

impl Sink for Bodies {
    fn body(&mut self, req: ReqId, bytes: &[u8]) {
        assert!(!bytes.is_empty(), "an empty piece of a body");
        match self.0.last_mut().filter(|(last, _)| *last == req) {
            Some((_, body)) => body.extend_from_slice(bytes),
            None => self.0.push((req, bytes.to_vec())),
        }
    }
}

impl ParsedStream {
    fn parse<'a>(requests: u32, decisions: &[u8], pieces: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut parser = fuzzing::ResponseParser::new();
        (0..requests).for_each(|n| parser.expect_response(ReqId(n)));
        let (mut parsed, mut unread) = (Self::default(), Vec::new());
        for piece in pieces {
            unread.extend_from_slice(piece);
            parsed.process(&mut parser, decisions, &mut unread);
        }
        parser.on_eof(None, unread.len());
        parsed.process(&mut parser, decisions, &mut unread);
        let bodies: Vec<(ReqId, u64)> =
            parsed.bodies.0.iter().map(|(req, body)| (*req, body.len() as u64)).collect();
        assert_eq!(parsed.counted, bodies, "the events count other bytes than the sink received");
        if parsed.ended.len() == requests as usize {
            // Bytes after the last response close the connection, and the kind of error depends on how many have arrived.
            parsed.closed = None;
        }
        parsed
    }

    /// Processes the unread bytes as a connection does.
    fn process(&mut self, parser: &mut fuzzing::ResponseParser, decisions: &[u8], unread: &mut Vec<u8>) {
        loop {
            let event = match parser.next_event() {
                Some(event) => Some(event),
                None if !parser.wants_bytes() || unread.is_empty() => return,
                None => {
                    let (used, event) = parser.feed(unread, &mut self.bodies);
                    assert!(used <= unread.len(), "the parser used more bytes than it was given");
                    unread.drain(..used);
                    if used == 0 && event.is_none() {
                        return;
                    }
                    event
                }
            };
            if let Some(event) = event {
                self.on_event(parser, decisions, event);
            }
        }
    }

    fn on_event(&mut self, parser: &mut fuzzing::ResponseParser, decisions: &[u8], event: Event) {
        assert!(self.closed.is_none(), "{event:?} after the end");
        match event {
            Event::Head { req, mut head, location, content_disposition, .. } => {
                assert_eq!(req.0 as usize, self.ended.len(), "a response out of order");
                assert_is_valid_head(&head);
                // Retry-After with a date is relative to the clock if the response has no Date field.
                head.retry_after = None;
                self.heads.push((req, head, location, content_disposition));
                match decisions.get(req.0 as usize).copied().unwrap_or(0) {
                    0..=199 => parser.accept(req, None),
                    limit @ 200..=249 => parser.accept(req, Some(DataSize::from_bytes(u64::from(limit - 200)))),
                    _ => parser.cancel(req),
                }
            }
            Event::Data { req, len } => {
                assert!(!len.is_zero(), "data without bytes");
                match self.counted.last_mut().filter(|(last, _)| *last == req) {
                    Some((_, sum)) => *sum += len.bytes(),
                    None => self.counted.push((req, len.bytes())),
                }
            }
            Event::End { req, .. } => self.ended.push(req),
            Event::Aborted { .. } => panic!("HTTP/1.1 cannot abort a single response"),
            Event::Closed { error } => {
                assert!(!error.text.is_empty(), "an error without a description");
                self.closed = Some(error.kind);
            }
        }
    }
}

/// Checks the guarantees for every parsed head.
fn assert_is_valid_head(head: &ResponseHead) {
    if let Some(content_range) = head.range {
        assert!(matches!(head.status, 200 | 206 | 416), "a range with status {}", head.status);
        let (range, total) = (content_range.range, content_range.total.map_or(u64::MAX, DataSize::bytes));
        assert!(range.is_none_or(|range| !range.is_empty() && range.end <= total), "{content_range:?}");
        assert!(range.is_some() || content_range.total.is_some(), "neither a range nor a total");
    }
    match &head.validator {
        Some(Validator::Etag(text)) => {
            assert!(text.len() >= 2 && text.starts_with('"') && text.ends_with('"'), "{text}");
        }
        Some(Validator::LastModified(text)) => assert!(!text.is_empty() && text.is_ascii(), "{text}"),
        None => {}
    }
}

/// A chunked body, cut in three ways.
pub fn chunks(bytes: &[u8]) {
    let read = |size: usize| {
        let mut payload = Vec::new();
        let end = fuzzing::chunked(bytes.chunks(size), |slice| payload.extend_from_slice(slice));
        (end, payload)
    };
    let whole = read(bytes.len().max(1));
    assert_eq!(whole, read(1), "byte by byte");
    assert_eq!(whole, read(5), "in pieces");
    let (end, payload) = whole;
    let Some((used, is_complete)) = end else { return };
    assert!(used <= bytes.len() && payload.len() <= used, "more bytes than the input has");
    assert!(is_complete || used == bytes.len(), "unused bytes after an incomplete body");
    if let Some(body) = bytes.get(..used).filter(|_| is_complete) {
        let again = fuzzing::chunked(std::iter::once(body), |_| {});
        assert_eq!(again, Some((used, true)), "bytes after the body change it");
    }
}

/// Header fields, one per line; the first byte selects the status.
pub fn fields(bytes: &[u8]) {
    let mut bytes = Bytes(bytes);
    let status = bytes.one_of(&[200, 206, 416, 429, 503, 302, 304, 204, 404]);
    let lines = bytes.0.split(|byte| *byte == b'\n').filter_map(|line| {
        let colon = line.iter().position(|byte| *byte == b':')?;
        Some((std::str::from_utf8(&line[..colon]).ok()?, &line[colon + 1..]))
    });
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    let Some((head, content_disposition)) = fuzzing::fields(status, lines, now) else { return };
    assert_is_valid_head(&head);
    if let Some(ContentRange { range: Some(range), total }) = head.range {
        let total = total.map_or("*".to_owned(), |total| total.bytes().to_string());
        let written = format!("bytes {}-{}/{total}", range.start, range.end - 1);
        let fields = [("content-range", written.as_bytes()), ("content-length", b"0")];
        let again = fuzzing::fields(206, fields.into_iter(), now).and_then(|(head, _)| head.range);
        assert_eq!(again, head.range, "{written}");
    }
    if let Ok(url) = url::Url::parse("http://host/file") {
        assert_is_valid_name(&marline_download::file_name(content_disposition.as_deref(), &url));
    }
}

/// Set-Cookie fields of one server, one per line. Its cookies are sent to itself and to its domain only.
pub fn cookies(bytes: &[u8]) {
    let url = |text: &str| text.parse::<Url>().expect("a URL");
    let from = url("https://a.example.co.uk/x/list");
    let targets = [
        "https://a.example.co.uk/x/1",
        "https://b.example.co.uk/",
        "https://other.co.uk/",
        "https://a.example.com/",
    ];
    let targets = targets.map(url);
    let lines: Vec<String> = String::from_utf8_lossy(bytes).lines().map(str::to_owned).collect();
    let sent = fuzzing::cookies(&from, &lines, &targets);
    assert!(sent.iter().skip(2).all(Option::is_none), "a server has set cookies for other domains");
    for field in sent.into_iter().flatten() {
        assert!(field.len() <= 8190, "a field that is too long for servers");
        assert!(!field.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0)), "a field with a line end or NUL");
    }
}

/// A Netscape cookie file. Parsed cookies are written in a form that parses to the same cookies.
pub fn cookie_file(bytes: &[u8]) {
    let Some(text) = fuzzing::cookie_file(bytes) else { return };
    assert!(text.lines().skip(1).all(|line| line.split('\t').count() == 7), "{text:?}");
    if text.lines().count() > 1 {
        assert_eq!(fuzzing::cookie_file(text.as_bytes()).as_deref(), Some(text.as_str()));
    }
}

/// A netrc file. Host names are in lower case, and each login takes at least four words of the file.
pub fn netrc(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let Some(logins) = netrc::parse(&text) else { return };
    assert!(logins.hosts.len() <= text.split_whitespace().count() / 4 + 1);
    assert!(logins.hosts.keys().all(|host| !host.chars().any(char::is_uppercase)));
}

/// Response of an upstream proxy to CONNECT. The status has at most three digits and does not depend on the fields.
pub fn proxy_response(bytes: &[u8]) {
    let status = fuzzing::connect_status(bytes);
    assert!(status.is_none_or(|status| status < 1000));
    let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    assert_eq!(fuzzing::connect_status(line), status, "the status depends on more than the status line");
}

/// A Metalink file, and the same text as the header fields in which a server names mirrors and digests.
///
/// File names stay below their directory, URLs have a host, and the number of URLs is bounded.
pub fn mirror_urls(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let is_usable = |url: &Url| matches!(url.scheme(), "http" | "https") && url.host().is_some();
    for file in metalink::parse(&text).into_iter().flat_map(|metalink| metalink.files) {
        assert!(!file.mirrors.is_empty() && file.mirrors.len() <= metalink::MAX_URLS);
        assert!(file.mirrors.iter().all(|mirror| mirror.is_untrusted && is_usable(&mirror.url)));
        let is_unsafe = |part: &str| part.is_empty() || part == "." || part == "..";
        assert!(!file.name.split('/').any(is_unsafe) && !file.name.contains(char::is_control), "{}", file.name);
        if let Some(pieces) = file.digests.pieces {
            assert!(pieces.digests.iter().all(|digest| digest.len() == pieces.hash.len()));
        }
    }
    let fields: Vec<String> = text.lines().map(str::to_owned).collect();
    let meta = ResponseMeta {
        links: fields.clone(),
        repr_digests: fields.clone(),
        digests: fields,
        ..ResponseMeta::default()
    };
    let base: Url = "https://h.example/d/f".parse().expect("a URL");
    let mirrors = meta.mirrors(&base);
    assert!(mirrors.len() <= 32 && mirrors.iter().all(is_usable));
    let _ = meta.full_digest();
}
