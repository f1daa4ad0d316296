//! HTTP/1.1 as a server may send it: heads and pipelined answers, chunked bodies, fields.

use std::time::{Duration, SystemTime};

use marline_core::fetch::{ContentRange, Head, ReqId, TroubleKind, Validator};
use marline_core::units::DataSize;
use marline_net::fuzzing;
use marline_download::{netrc, metalink};
use marline_net::http::{Described, Event, Sink};
use url::Url;

use crate::bytes::Bytes;
use crate::names::assert_is_a_name;

/// Answers to pipelined requests. The first byte says how many were sent, one more for each how its head is judged, then
/// comes the stream. It must mean the same however it is cut.
pub fn answers(bytes: &[u8]) {
    let mut bytes = Bytes(bytes);
    let requests = 1 + u32::from(bytes.u8() % 8);
    let verdicts = bytes.take(requests as usize);
    let whole = Reading::of(requests, verdicts, std::iter::once(bytes.0));
    let single = Reading::of(requests, verdicts, bytes.0.chunks(1));
    let pieces = Reading::of(requests, verdicts, bytes.0.chunks(7));
    assert_eq!(whole, single, "a stream means something else when it comes byte by byte");
    assert_eq!(whole, pieces, "a stream means something else when it comes in pieces");
}

/// What a stream meant.
#[derive(Default, PartialEq, Eq, Debug)]
struct Reading {
    heads: Vec<(ReqId, Head, Option<String>, Option<String>)>,
    bodies: Bodies,
    /// As the events counted them.
    counted: Vec<(ReqId, u64)>,
    ended: Vec<ReqId>,
    closed: Option<TroubleKind>,
}

/// Body bytes, as the sink got them.
#[derive(Default, PartialEq, Eq, Debug)]
struct Bodies(Vec<(ReqId, Vec<u8>)>);

impl Sink for Bodies {
    fn body(&mut self, req: ReqId, bytes: &[u8]) {
        assert!(!bytes.is_empty(), "a body piece of no bytes");
        match self.0.last_mut().filter(|(last, _)| *last == req) {
            Some((_, body)) => body.extend_from_slice(bytes),
            None => self.0.push((req, bytes.to_vec())),
        }
    }
}

impl Reading {
    fn of<'a>(requests: u32, verdicts: &[u8], pieces: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut answers = fuzzing::Answers::new();
        (0..requests).for_each(|n| answers.expect(ReqId(n)));
        let (mut reading, mut held) = (Self::default(), Vec::new());
        for piece in pieces {
            held.extend_from_slice(piece);
            reading.turn(&mut answers, verdicts, &mut held);
        }
        answers.finish(None, held.len());
        reading.turn(&mut answers, verdicts, &mut held);
        let bodies: Vec<(ReqId, u64)> =
            reading.bodies.0.iter().map(|(req, body)| (*req, body.len() as u64)).collect();
        assert_eq!(reading.counted, bodies, "events count other bytes than the sink got");
        if reading.ended.len() == requests as usize {
            // What comes unasked ends the connection in one way or another, which depends on how much of it has come.
            reading.closed = None;
        }
        reading
    }

    /// What a connection does with the bytes it holds.
    fn turn(&mut self, answers: &mut fuzzing::Answers, verdicts: &[u8], held: &mut Vec<u8>) {
        loop {
            let event = match answers.next() {
                Some(event) => Some(event),
                None if !answers.wants_bytes() || held.is_empty() => return,
                None => {
                    let (used, event) = answers.feed(held, &mut self.bodies);
                    assert!(used <= held.len(), "took more than there was");
                    held.drain(..used);
                    if used == 0 && event.is_none() {
                        return;
                    }
                    event
                }
            };
            if let Some(event) = event {
                self.note(answers, verdicts, event);
            }
        }
    }

    fn note(&mut self, answers: &mut fuzzing::Answers, verdicts: &[u8], event: Event) {
        assert!(self.closed.is_none(), "{event:?} after the end");
        match event {
            Event::Head { req, mut head, location, disposition, .. } => {
                assert_eq!(req.0 as usize, self.ended.len(), "an answer out of turn");
                assert_is_good(&head);
                // A delay until a date depends on the clock where the answer has no date of its own.
                head.retry_after = None;
                self.heads.push((req, head, location, disposition));
                match verdicts.get(req.0 as usize).copied().unwrap_or(0) {
                    0..=199 => answers.accept(req, None),
                    limit @ 200..=249 => answers.accept(req, Some(DataSize::from_bytes(u64::from(limit - 200)))),
                    _ => answers.cancel(req),
                }
            }
            Event::Data { req, len } => {
                assert!(!len.is_zero(), "data of no bytes");
                match self.counted.last_mut().filter(|(last, _)| *last == req) {
                    Some((_, sum)) => *sum += len.bytes(),
                    None => self.counted.push((req, len.bytes())),
                }
            }
            Event::End { req, .. } => self.ended.push(req),
            Event::Aborted { .. } => panic!("HTTP/1.1 cannot end one answer alone"),
            Event::Closed { trouble } => {
                assert!(!trouble.text.is_empty(), "a trouble without words");
                self.closed = Some(trouble.kind);
            }
        }
    }
}

/// What every head promises.
fn assert_is_good(head: &Head) {
    if let Some(range) = head.range {
        assert!(matches!(head.status, 200 | 206 | 416), "a range with {}", head.status);
        let (span, total) = (range.span, range.total.map_or(u64::MAX, DataSize::bytes));
        assert!(span.is_none_or(|span| !span.is_empty() && span.end <= total), "{range:?}");
        assert!(span.is_some() || range.total.is_some(), "a range that says nothing");
    }
    match &head.validator {
        Some(Validator::Etag(text)) => {
            assert!(text.len() >= 2 && text.starts_with('"') && text.ends_with('"'), "{text}");
        }
        Some(Validator::Date(text)) => assert!(!text.is_empty() && text.is_ascii(), "{text}"),
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
    let Some((used, done)) = end else { return };
    assert!(used <= bytes.len() && payload.len() <= used, "more than there was");
    assert!(done || used == bytes.len(), "bytes left behind a body that is not complete");
    if let Some(body) = bytes.get(..used).filter(|_| done) {
        let again = fuzzing::chunked(std::iter::once(body), |_| {});
        assert_eq!(again, Some((used, true)), "what lies behind the body changes it");
    }
}

/// Fields of a head, a line each; the first byte chooses the status.
pub fn fields(bytes: &[u8]) {
    let mut bytes = Bytes(bytes);
    let status = bytes.one_of(&[200, 206, 416, 429, 503, 302, 304, 204, 404]);
    let lines = bytes.0.split(|byte| *byte == b'\n').filter_map(|line| {
        let colon = line.iter().position(|byte| *byte == b':')?;
        Some((std::str::from_utf8(&line[..colon]).ok()?, &line[colon + 1..]))
    });
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    let Some((head, disposition)) = fuzzing::fields(status, lines, now) else { return };
    assert_is_good(&head);
    if let Some(ContentRange { span: Some(span), total }) = head.range {
        let total = total.map_or("*".to_owned(), |total| total.bytes().to_string());
        let written = format!("bytes {}-{}/{total}", span.start, span.end - 1);
        let fields = [("content-range", written.as_bytes()), ("content-length", b"0")];
        let again = fuzzing::fields(206, fields.into_iter(), now).and_then(|(head, _)| head.range);
        assert_eq!(again, head.range, "{written}");
    }
    if let Ok(url) = url::Url::parse("http://host/file") {
        assert_is_a_name(&marline_download::file_name(disposition.as_deref(), &url));
    }
}

/// Set-Cookie fields, one on each line, of a server. What it sets is for it and its domain, and for no one else.
pub fn cookies(bytes: &[u8]) {
    let url = |text: &str| text.parse::<Url>().expect("a URL");
    let from = url("https://a.example.co.uk/x/list");
    let to = [
        "https://a.example.co.uk/x/1",
        "https://b.example.co.uk/",
        "https://other.co.uk/",
        "https://a.example.com/",
    ];
    let to = to.map(url);
    let lines: Vec<String> = String::from_utf8_lossy(bytes).lines().map(str::to_owned).collect();
    let sent = fuzzing::cookies(&from, &lines, &to);
    assert!(sent.iter().skip(2).all(Option::is_none), "a server has set cookies for others");
    for field in sent.into_iter().flatten() {
        assert!(field.len() <= 8190, "a field that servers refuse");
        assert!(!field.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0)), "a field that is more than one");
    }
}

/// A file of cookies in Netscape's format: what is read is written so that it reads back as itself.
pub fn cookie_file(bytes: &[u8]) {
    let Some(text) = fuzzing::cookie_file(bytes) else { return };
    assert!(text.lines().skip(1).all(|line| line.split('\t').count() == 7), "{text:?}");
    if text.lines().count() > 1 {
        assert_eq!(fuzzing::cookie_file(text.as_bytes()).as_deref(), Some(text.as_str()));
    }
}

/// A netrc file: no host without a name, and no more logins than words.
pub fn netrc(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let Some(logins) = netrc::read(&text) else { return };
    assert!(logins.hosts.len() <= text.split_whitespace().count() / 4 + 1);
    assert!(logins.hosts.keys().all(|host| !host.chars().any(char::is_uppercase)));
}

/// A proxy's response to CONNECT: a status of three digits, whatever its fields say.
pub fn proxy_answer(bytes: &[u8]) {
    let status = fuzzing::connect_status(bytes);
    assert!(status.is_none_or(|status| status < 1000));
    let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    assert_eq!(fuzzing::connect_status(line), status, "only the status line counts");
}

/// A Metalink file, and the same text as the fields in which a server names copies and a digest.
///
/// No name leaves its directory, URLs have a host, and there is a bound on their number.
pub fn sources(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let is_usable = |url: &Url| matches!(url.scheme(), "http" | "https") && url.host().is_some();
    for file in metalink::parse(&text).into_iter().flat_map(|link| link.files) {
        assert!(!file.sources.is_empty() && file.sources.len() <= metalink::MOST_URLS);
        assert!(file.sources.iter().all(|source| source.foreign && is_usable(&source.url)));
        let leaves = |part: &str| part.is_empty() || part == "." || part == "..";
        assert!(!file.name.split('/').any(leaves) && !file.name.contains(char::is_control), "{}", file.name);
        if let Some(pieces) = file.digests.pieces {
            assert!(pieces.digests.iter().all(|digest| digest.len() == pieces.function.len()));
        }
    }
    let fields: Vec<String> = text.lines().map(str::to_owned).collect();
    let described =
        Described { links: fields.clone(), repr_digests: fields.clone(), digests: fields, ..Described::default() };
    let base: Url = "https://h.example/d/f".parse().expect("a URL");
    let copies = described.duplicates(&base);
    assert!(copies.len() <= 32 && copies.iter().all(is_usable));
    let _ = described.digest();
}
