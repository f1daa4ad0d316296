//! Tests of the response parser: responses cut into pieces at every position, and malformed ones.

use super::*;
use proptest::prelude::*;

struct RecordedBodies(Vec<(u32, Vec<u8>)>);

impl Sink for RecordedBodies {
    fn body(&mut self, req: ReqId, bytes: &[u8]) {
        assert!(!bytes.is_empty());
        match self.0.last_mut().filter(|(last, _)| *last == req.0) {
            Some((_, body)) => body.extend_from_slice(bytes),
            None => self.0.push((req.0, bytes.to_vec())),
        }
    }
}

/// The events of a connection with `requests` pending requests that receives these pieces and then ends, with `error`
/// or normally: `head REQUEST STATUS`, `end REQUEST` and `closed KIND`. Data events are omitted. Each response is
/// accepted with `limit`.
fn parse_pieces(
    requests: u32,
    limit: Option<u64>,
    pieces: &[&[u8]],
    error: Option<ConnError>,
) -> (Vec<String>, RecordedBodies) {
    let (mut parser, mut bodies, mut events) = (ResponseParser::new(), RecordedBodies(Vec::new()), Vec::new());
    (0..requests).for_each(|req| parser.expect_response(ReqId(req)));
    let mut on_event = |answers: &mut ResponseParser, event: Event| match event {
        Event::Head { req, head, .. } => {
            events.push(format!("head {} {}", req.0, head.status));
            answers.accept(req, limit.map(DataSize::from_bytes));
        }
        Event::Data { .. } => {}
        Event::End { req, .. } => events.push(format!("end {}", req.0)),
        Event::Aborted { .. } => panic!("HTTP/1.1 aborts nothing"),
        Event::Closed { error } => events.push(format!("closed {:?}", error.kind)),
    };
    let mut unparsed = Vec::new();
    for piece in pieces {
        unparsed.extend_from_slice(piece);
        loop {
            let (used, event) = parser.feed(&unparsed, &mut bodies);
            unparsed.drain(..used);
            match event.or_else(|| parser.next_event()) {
                Some(event) => on_event(&mut parser, event),
                None if used == 0 => break,
                None => {}
            }
        }
    }
    parser.on_eof(error, unparsed.len());
    while let Some(event) = parser.next_event() {
        on_event(&mut parser, event);
    }
    (events, bodies)
}

/// The last event of a connection that receives these bytes and is then closed by the server.
fn close_kind(requests: u32, wire: &[u8]) -> String {
    parse_pieces(requests, None, &[wire], None).0.pop().unwrap_or_default()
}

#[test]
fn an_invalid_field_is_ignored_unless_it_frames_the_body() {
    let with = |field: &str| format!("HTTP/1.1 200 OK\r\n{field}\r\nContent-Length: 2\r\n\r\nok");
    for field in ["Content-Disposition: attachment; filename=\"a\x01b\"", "X: \x1b[31m"] {
        let (events, bodies) = parse_pieces(1, None, &[with(field).as_bytes()], None);
        assert_eq!((events[0].as_str(), bodies.0), ("head 0 200", vec![(0, b"ok".to_vec())]), "{field}");
    }
    for field in ["Content-Length: 1\x01", "Transfer-Encoding\x01: chunked\r\nTransfer-Encoding: \x01chunked"] {
        assert_eq!(close_kind(1, with(field).as_bytes()), "closed Protocol", "{field}");
    }
}

#[test]
fn heads_that_other_programs_accept_are_parsed() {
    let rest = "Content-Length: 2\r\n\r\nok";
    for head in [
        "HTTP/1.1 200\r\n".to_owned() + rest,
        "HTTP/1.1  200  OK\r\n".to_owned() + rest,
        "HTTP/1.1 200 OK\r\na b: c\r\n".to_owned() + rest,
        "HTTP/1.1 200 OK\r\nno colon\r\n".to_owned() + rest,
        "HTTP/1.1 200 OK\r\nX-Empty:\r\n".to_owned() + rest,
        "HTTP/1.1 200 OK\r\nServer : x\r\nContent-Length : 2\r\n\r\nok".to_owned(),
        "HTTP/1.1 200 OK\r\nX-Long: a,\r\n\tb\r\n".to_owned() + rest,
        "HTTP/1.1 200 OK\r\nContent-Length:\r\n 2\r\n\r\nok".to_owned(),
        "HTTP/1.1 200 OK\nContent-Length: 2\n\nok".to_owned(),
        "\r\nHTTP/1.1 200 OK\r\n".to_owned() + rest,
        "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\n".to_owned() + rest,
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok".to_owned(),
        "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n".to_owned() + rest,
        "ICY 200 OK\r\nicy-name: radio\r\n\r\nok".to_owned(),
        "HTTP 200 OK\r\n\r\nok".to_owned(),
        "http/1.1 200 ok\r\n".to_owned() + rest,
        "Http/1.1 200 OK\r\n".to_owned() + rest,
        "HTTP/1.1 200 OK\r\nX-Long: a,\r\n \r\n b\r\n".to_owned() + rest,
        "HTTP/1.1 200 OK\r\nX-Long:\r\n\t\r\n".to_owned() + rest,
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
            .to_owned(),
        "HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\nok".to_owned(),
        "HTTP/1.1 200 OK\r\nContent-Length: 2 bytes\r\n\r\nok".to_owned(),
        "HTTP/1.1 200 OK\r\nContent-Length: 2;x=1\r\n\r\nok".to_owned(),
        "HTTP/1.1 200 OK\r\nContent-Length: 2.0\r\n\r\nok".to_owned(),
        "HTTP/1.1 200 OK\r\nContent-Length: 2B\r\n\r\nok".to_owned(),
        "HTTP/1.1 200OK\r\n".to_owned() + rest,
        "HTTP/1.1 200-OK\n".to_owned() + rest,
        "\r\nHTTP/2 200\r\n".to_owned() + rest,
        "HTTP/2.0 200 OK\r\n".to_owned() + rest,
        "http/1.0 200: fine\r\nConnection: keep-alive\r\n".to_owned() + rest,
        "HTTP/1.1 200 \x1b[31mOK\u{7f}\r\nno colon\r\n".to_owned() + rest,
        "HTTP/1.1\t200 \0OK\r\nX-Long: a,\r\n b\r\n".to_owned() + rest,
    ] {
        for cut in 0..head.len() {
            let (first, second) = head.as_bytes().split_at(cut);
            let (events, bodies) = parse_pieces(1, None, &[first, second], None);
            assert_eq!(events, ["head 0 200", "end 0", "closed CleanClose"], "{head} cut at {cut}");
            assert_eq!(bodies.0, [(0, b"ok".to_vec())], "{head}");
        }
    }
}

#[test]
fn blanks_at_the_start_of_a_body_are_not_parsed_as_a_continuation_line() {
    for head in [
        "HTTP/1.1 200 OK\r\nX-Long: a,\r\n \r\nContent-Length: 3\r\n\r\n",
        "HTTP/1.1 200 OK\nX-Long: a,\n\t\nContent-Length: 3\n\n",
        "http/1.1 200 OK\r\nX-Long: a,\r\n \r\n b\r\nContent-Length: 3\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX: y\r\nContent-Length:\r\n 3\r\n \r\n\r\n",
        "HTTP/1.1 200 OK\r\nno colon\r\nContent-Length: 3\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX-Long: a\r\n \r\nConnection: close\r\n\r\n",
        "HTTP/1.1 200 OK\r\n \r\nContent-Length: 3\r\n\r\n",
    ] {
        for body in [" ok", "\tok", " \r\n", "\r\n ", "\n\n ", " : "] {
            let wire = [head, body].concat();
            for cut in 0..wire.len() {
                let (first, second) = wire.as_bytes().split_at(cut);
                let (events, bodies) = parse_pieces(1, None, &[first, second], None);
                assert_eq!(events, ["head 0 200", "end 0", "closed CleanClose"], "{wire:?} cut at {cut}");
                assert_eq!(bodies.0, [(0, body.as_bytes().to_vec())], "{wire:?} cut at {cut}");
            }
        }
    }
}

#[test]
fn long_heads_are_parsed_however_they_are_segmented() {
    let rest = "Content-Length: 2\r\n\r\nok";
    for head in [
        format!("HTTP/1.1 200 OK\r\n{}{rest}", format!("X: {}\r\n", "y".repeat(2000)).repeat(100)),
        format!("HTTP/1.1 200 OK\r\n{}{rest}", "X: y\r\n".repeat(3000)),
        format!("HTTP/1.1 200 OK\nX: {}\n{}", "y".repeat(90_000), rest.replace('\r', "")),
        format!("http/1.1 200 OK\r\nX: {}\r\n \r\n z\r\n{rest}", "y".repeat(9000)),
    ] {
        for piece in [head.len(), 4096, 1000, 1] {
            let pieces: Vec<&[u8]> = head.as_bytes().chunks(piece).collect();
            let (events, bodies) = parse_pieces(1, None, &pieces, None);
            assert_eq!(events, ["head 0 200", "end 0", "closed CleanClose"], "{} in {piece}", &head[..40]);
            assert_eq!(bodies.0, [(0, b"ok".to_vec())]);
        }
    }
}

#[test]
fn line_ends_after_a_body_are_skipped() {
    let (events, _) = parse_pieces(1, None, &[b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok\r\n", b"\n"], None);
    assert_eq!(events, ["head 0 200", "end 0", "closed CleanClose"]);
    assert_eq!(close_kind(1, b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokJUNK"), "closed Protocol");
}

const PIPELINED: &[u8] =
    b"HTTP/1.1 206 Partial Content\r\nContent-Length: 5\r\nContent-Range: bytes 0-4/9\r\n\r\nhello\
    HTTP/1.1 100 Continue\r\n\r\n\
    HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3;x\r\nabc\r\n1\r\nd\r\n0\r\nT: v\r\n\r\n\
    HTTP/1.1 204 No Content\r\n\r\n\
    HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n\
    HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 3\r\n\r\nend";

#[test]
fn pipelined_responses_are_parsed_equally_wherever_they_are_cut() {
    let want = [
        "head 0 206",
        "end 0",
        "head 1 200",
        "end 1",
        "head 2 204",
        "end 2",
        "head 3 404",
        "end 3",
        "head 4 200",
        "end 4",
        "closed CleanClose",
    ];
    let bodies = vec![(0, b"hello".to_vec()), (1, b"abcd".to_vec()), (4, b"end".to_vec())];
    for cut in 0..=PIPELINED.len() {
        let (first, second) = PIPELINED.split_at(cut);
        let (events, got) = parse_pieces(6, None, &[first, second], None);
        assert_eq!(
            (events.iter().map(String::as_str).collect::<Vec<_>>(), got.0),
            (want.to_vec(), bodies.clone()),
            "{cut}"
        );
    }
    let single: Vec<&[u8]> = PIPELINED.chunks(1).collect();
    assert_eq!(parse_pieces(6, None, &single, None).0, want);
}

#[test]
fn an_early_end_is_classified_by_its_position() {
    let whole = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello";
    for cut in 1..whole.len() {
        assert_eq!(close_kind(1, &whole[..cut]), "closed Truncated", "{cut}");
    }
    assert_eq!(close_kind(1, whole), "closed CleanClose");
    assert_eq!(close_kind(2, whole), "closed CleanClose");
    assert_eq!(close_kind(0, b""), "closed CleanClose");
    assert_eq!(close_kind(1, b""), "closed Reset");
    assert_eq!(
        close_kind(1, b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n"),
        "closed Truncated"
    );
}

#[test]
fn a_reset_is_distinguished_from_a_normal_end() {
    let reset = || Some(conn_error(ConnErrorKind::Reset, "reset"));
    let last = |wire: &[u8]| parse_pieces(1, None, &[wire], reset()).0.pop().unwrap_or_default();
    assert_eq!(last(b""), "closed Reset");
    assert_eq!(last(b"HTTP/1.1 200 OK\r\n\r\nuntil the clo"), "closed Truncated");
    assert_eq!(parse_pieces(0, None, &[], reset()).0, ["closed CleanClose"]);
}

#[test]
fn a_body_until_close_ends_with_the_connection() {
    for version in ["1.0", "1.1"] {
        let wire = format!("HTTP/{version} 200 OK\r\n\r\nall of it");
        let (events, bodies) = parse_pieces(1, None, &[wire.as_bytes()], None);
        assert_eq!(events, ["head 0 200", "end 0", "closed CleanClose"]);
        assert_eq!(bodies.0, [(0, b"all of it".to_vec())]);
    }
}

#[test]
fn bytes_beyond_the_limit_are_never_delivered() {
    for wire in [
        &b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n123456789"[..],
        b"HTTP/1.1 200 OK\r\n\r\n123456789",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\n123\r\n6\r\n456789\r\n",
    ] {
        let (events, bodies) = parse_pieces(1, Some(5), &[wire], None);
        assert_eq!(events, ["head 0 200", "end 0", "closed CleanClose"]);
        assert_eq!(bodies.0, [(0, b"12345".to_vec())]);
    }
}

#[test]
fn data_that_is_not_http_ends_the_connection() {
    let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: b\r\n".repeat(5000));
    let long = format!("HTTP/1.1 200 OK\r\na: {}", "b".repeat(310_000));
    for bad in [
        &b"SSH-2.0-OpenSSH\r\n"[..],
        b"<html>",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/4 200 OK\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 20\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0x10\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1.234.567\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1e6\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        many.as_bytes(),
        long.as_bytes(),
    ] {
        assert_eq!(close_kind(1, bad), "closed Protocol", "{}", String::from_utf8_lossy(&bad[..bad.len().min(40)]));
    }
    assert_eq!(close_kind(0, b"HTTP/1.1 200 OK\r\n\r\n"), "closed Protocol");
    assert_eq!(close_kind(0, b"HTTP/1.1 408 Request Timeout\r\n\r\n"), "closed CleanClose");
}

#[test]
fn a_cancelled_response_stops_the_connection() {
    let (mut parser, mut bodies) = (ResponseParser::new(), RecordedBodies(Vec::new()));
    parser.expect_response(ReqId(0));
    let (used, event) = parser.feed(PIPELINED, &mut bodies);
    assert!(matches!(event, Some(Event::Head { .. })));
    parser.cancel(ReqId(0));
    parser.accept(ReqId(0), None);
    assert_eq!(parser.feed(&PIPELINED[used..], &mut bodies), (0, None));
    assert!(parser.next_event().is_none() && bodies.0.is_empty());
}

proptest! {
    #[test]
    fn arbitrary_bytes_neither_panic_nor_exceed_the_limit(
        noise in prop::collection::vec(any::<u8>(), 0..200),
        at in 0..PIPELINED.len(),
        limit in 0_u64..8,
    ) {
        let wire = [&PIPELINED[..at], &noise].concat();
        let (_, bodies) = parse_pieces(5, Some(limit), &[&wire], None);
        prop_assert!(bodies.0.iter().all(|(_, body)| body.len() as u64 <= limit));
    }
}
