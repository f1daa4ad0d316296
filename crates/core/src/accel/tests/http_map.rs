//! Worked examples of the HTTP map: which bytes of a flow are which bytes of which resource.

use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use super::super::*;
use crate::wire::packet::Seq;

const BODY: u64 = 100_000;

/// A captured flow. `start`: the first sequence number of the server.
struct CapturedFlow {
    map: HttpMap,
    start: Seq,
    up: u32,
    down: u32,
}

impl CapturedFlow {
    fn new(start: u32) -> Self {
        Self { map: HttpMap::default(), start: Seq::new(start), up: 0, down: 0 }
    }

    fn request(&mut self, text: &str) {
        let (seq, ack) = (Seq::new(500).plus(self.up), self.start.plus(self.down));
        let length = text.len() as u32;
        self.map.on_request_segment(&ObservedSegment { seq, ack, length, payload: text.as_bytes() });
        self.up += length;
    }

    /// The next bytes of the server, captured in full.
    fn respond(&mut self, bytes: &[u8]) {
        self.receive(bytes, bytes.len() as u32);
    }

    /// The next bytes of the server, of which only `captured` were captured.
    fn receive(&mut self, captured: &[u8], length: u32) {
        let (seq, ack) = (self.start.plus(self.down), Seq::new(500).plus(self.up));
        self.map.on_response_segment(&ObservedSegment { seq, ack, length, payload: captured });
        self.down += length;
    }

    /// Answers the check with the correct bytes.
    fn pass_check(&mut self) -> (PosRange, ResourceOffset) {
        let (range, offset) = self.map.take_check().expect("a range to compare");
        assert_eq!(self.map.locate(range), None, "nothing is located before the check");
        assert!(self.map.is_check(range.start));
        let correct: Vec<u8> = (offset.offset..offset.offset + range.len()).map(byte).collect();
        assert!(self.map.on_check_fetched(range.start, &correct));
        (range, offset)
    }

    fn locate(&self, from: u32, bytes: u64) -> Option<ResourceOffset> {
        let start = self.map.position(self.start)? + u64::from(from);
        self.map.locate(PosRange::new(start, start + bytes))
    }
}

fn byte(offset: u64) -> u8 {
    (offset.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

fn bytes(from: u64, count: u64) -> Vec<u8> {
    (from..from + count).map(byte).collect()
}

fn ok(length: u64) -> String {
    format!("HTTP/1.1 200 OK\r\nETag: \"x\"\r\nContent-Length: {length}\r\n\r\n")
}

const GET: &str = "GET /f HTTP/1.1\r\nHost: h\r\n\r\n";

#[test]
fn a_range_of_a_body_is_located_across_sequence_wraparound() {
    let mut flow = CapturedFlow::new(u32::MAX - 20_000);
    flow.request(GET);
    let head = ok(BODY);
    flow.respond(head.as_bytes());
    flow.respond(&bytes(0, 1448));
    let (range, offset) = flow.pass_check();
    assert_eq!((range.len(), offset.offset, offset.resource.length), (512, 0, BODY));
    assert_eq!(offset.resource.request, "GET /f HTTP/1.1\r\nHost: h\r\nAccept-Encoding: identity\r\n");
    let head = head.len() as u32;
    assert_eq!(flow.locate(head + 50_000, 1448).unwrap().offset, 50_000);
    assert_eq!(flow.locate(head, BODY).unwrap().offset, 0);
    assert_eq!(flow.locate(head, BODY + 1), None, "beyond the body");
    assert_eq!(flow.locate(head - 1, 5), None, "a part of the head");
    assert_eq!(flow.locate(head, 0), None, "an empty range has no location");
}

#[test]
fn a_partial_response_begins_at_its_content_range() {
    let mut flow = CapturedFlow::new(7);
    flow.request(GET);
    let head = format!(
        "HTTP/1.1 206 P\r\nETag: \"x\"\r\nContent-Length: {BODY}\r\nContent-Range: bytes 5000-{}/300000\r\n\r\n",
        4999 + BODY
    );
    flow.respond(head.as_bytes());
    flow.respond(&bytes(5000, 1448));
    assert_eq!(flow.pass_check().1.offset, 5000);
    let offset = flow.locate(head.len() as u32 + 10, 20).unwrap();
    assert_eq!((offset.offset, offset.resource.length), (5010, 300_000));
}

#[test]
fn pipelined_responses_are_distinguished() {
    let mut flow = CapturedFlow::new(7);
    // Pipelined: a response to HEAD, which has no body whatever its length; an interim one; a short one; two that count.
    flow.request("HEAD /a HTTP/1.1\r\nHost: h\r\n\r\n");
    for _ in 0..3 {
        flow.request(GET);
    }
    flow.respond(ok(BODY).as_bytes());
    flow.respond(b"HTTP/1.1 100 Continue\r\n\r\n");
    flow.respond(ok(3).as_bytes());
    flow.respond(b"abc");
    for _ in 0..2 {
        let head = ok(BODY);
        flow.respond(head.as_bytes());
        let start = flow.down;
        flow.respond(&bytes(0, 1448));
        if flow.locate(start, 10).is_none() {
            flow.pass_check();
        }
        assert_eq!(flow.locate(start + 90_000, 1000).unwrap().offset, 90_000);
        flow.receive(&[], BODY as u32 - 1448);
    }
    assert_eq!(flow.map.take_check(), None, "a resource is compared once");
    assert_eq!(flow.map.not_fetchable(), None);
}

#[test]
fn heads_are_parsed_from_reordered_segments() {
    let mut flow = CapturedFlow::new(7);
    flow.request(GET);
    let stream = [ok(BODY).as_bytes(), &bytes(0, 3000)].concat();
    let observed = |at: usize, to: usize| ObservedSegment {
        seq: Seq::new(7).plus(at as u32),
        ack: Seq::new(500),
        length: (to - at) as u32,
        payload: &stream[at..to],
    };
    for (at, to) in [(1500, 2900), (20, 80), (0, 30), (10, 1500)] {
        flow.map.on_response_segment(&observed(at, to));
    }
    assert_eq!(flow.pass_check().0.len(), 512);
}

#[test]
fn responses_that_cannot_be_fetched_give_a_reason() {
    let etag = "ETag: \"x\"\r\nContent-Length: 100000\r\n";
    let cases: [(&str, String, &str); 8] = [
        ("\u{16}\u{3}\u{1}", String::new(), "encrypted"),
        ("SSH-2.0-x\r\n", String::new(), "not plain HTTP"),
        (GET, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".into(), "unknown length"),
        (GET, "HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n".into(), "strong ETag"),
        (GET, format!("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n{etag}\r\n"), "coding"),
        (GET, format!("HTTP/1.1 200 OK\r\nAccept-Ranges: none\r\n{etag}\r\n"), "no ranges"),
        ("GET / HTTP/1.1\r\nCookie: a\r\n\r\n", format!("HTTP/1.1 200 OK\r\n{etag}\r\n"), "cookie"),
        ("POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n", format!("HTTP/1.1 200 OK\r\n{etag}\r\n"), "side effects"),
    ];
    for (request, response, reason) in cases {
        let mut flow = CapturedFlow::new(7);
        flow.request(request);
        flow.respond(response.as_bytes());
        flow.respond(&bytes(0, 1448));
        assert_eq!(flow.map.take_check(), None, "{reason}");
        let shown = flow.map.not_fetchable().map(|refusal| format!("{refusal}")).unwrap_or_default();
        assert!(shown.contains(reason), "{reason}: {shown}");
    }
}

#[test]
fn a_failed_check_ends_the_map_for_good() {
    let mut flow = CapturedFlow::new(7);
    flow.request(GET);
    flow.respond(ok(BODY).as_bytes());
    let start = flow.down;
    flow.respond(&bytes(0, 1448));
    let (range, _) = flow.map.take_check().unwrap();
    assert!(flow.map.on_check_fetched(range.start, &[0; 512]));
    assert_eq!((flow.locate(start, 10), flow.map.not_fetchable()), (None, Some(NotFetchable::Differs)));
    assert!(!flow.map.on_check_fetched(range.start, &bytes(0, 512)), "no second chance");
}

#[test]
fn full_capture_is_wanted_near_heads_only() {
    let mut flow = CapturedFlow::new(7);
    let length = 5_000_000;
    assert_eq!(flow.map.capture_level(), CaptureLevel::Full);
    flow.request(GET);
    flow.respond(ok(length).as_bytes());
    assert_eq!(flow.map.capture_level(), CaptureLevel::Full, "bytes for the check");
    flow.respond(&bytes(0, 1448));
    assert_eq!(flow.map.capture_level(), CaptureLevel::None);
    flow.receive(&[], 4_500_000);
    assert_eq!(flow.map.capture_level(), CaptureLevel::Full, "the next head is near");
    let mut no_request = HttpMap::default();
    no_request.give_up();
    assert_eq!(
        (no_request.capture_level(), no_request.not_fetchable()),
        (CaptureLevel::None, Some(NotFetchable::NotCaptured))
    );
}

#[test]
fn a_truncated_head_is_not_guessed() {
    let mut flow = CapturedFlow::new(7);
    flow.request(GET);
    flow.receive(b"HTTP/1.1 200 OK\r\nContent-Le", 1448);
    for _ in 0..4000 {
        flow.receive(&[], 1448);
    }
    assert_eq!(flow.map.not_fetchable(), Some(NotFetchable::NotCaptured));
    let mut cut = CapturedFlow::new(7);
    cut.map.on_request_segment(&ObservedSegment {
        seq: Seq::new(1),
        ack: Seq::new(7),
        length: 900,
        payload: b"GET /f",
    });
    cut.respond(ok(BODY).as_bytes());
    assert_eq!(cut.map.not_fetchable(), Some(NotFetchable::NoRequest));
}

#[test]
fn requests_and_heads_are_bounded() {
    let mut flow = CapturedFlow::new(7);
    for _ in 0..64 {
        flow.request(GET);
    }
    assert_eq!(flow.map.not_fetchable(), None);
    flow.request(GET);
    assert_eq!(flow.map.not_fetchable(), Some(NotFetchable::TooLarge));
    let mut long = CapturedFlow::new(7);
    long.request(GET);
    long.respond(&vec![b'a'; 40_000]);
    assert_eq!(long.map.not_fetchable(), Some(NotFetchable::TooLarge));
}
