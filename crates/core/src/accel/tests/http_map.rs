//! Which bytes of which resource: worked examples of the mirror.

use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use super::super::*;
use crate::wire::packet::Seq;

const BODY: u64 = 100_000;

/// A flow whose server begins at this number.
struct Tapped {
    map: HttpMap,
    start: Seq,
    up: u32,
    down: u32,
}

impl Tapped {
    fn new(start: u32) -> Self {
        Self { map: HttpMap::default(), start: Seq::new(start), up: 0, down: 0 }
    }

    fn ask(&mut self, text: &str) {
        let (seq, ack) = (Seq::new(500).plus(self.up), self.start.plus(self.down));
        let length = text.len() as u32;
        self.map.on_request_segment(&ObservedSegment { seq, ack, length, payload: text.as_bytes() });
        self.up += length;
    }

    /// Bytes that come next; of which all are shown, or nothing but that they are there.
    fn answer(&mut self, bytes: &[u8]) {
        self.pass(bytes, bytes.len() as u32);
    }

    fn pass(&mut self, shown: &[u8], length: u32) {
        let (seq, ack) = (self.start.plus(self.down), Seq::new(500).plus(self.up));
        self.map.on_response_segment(&ObservedSegment { seq, ack, length, payload: shown });
        self.down += length;
    }

    /// Passes the check with the right bytes.
    fn prove(&mut self) -> (PosRange, ResourceOffset) {
        let (range, offset) = self.map.take_check().expect("something to compare");
        assert_eq!(self.map.locate(range), None, "nothing is given away before");
        assert!(self.map.is_check(range.start));
        let right: Vec<u8> = (offset.offset..offset.offset + range.len()).map(byte).collect();
        assert!(self.map.on_check_fetched(range.start, &right));
        (range, offset)
    }

    fn place(&self, from: u32, bytes: u64) -> Option<ResourceOffset> {
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
fn a_stretch_of_a_body_has_its_place_over_the_seam_of_numbers() {
    let mut flow = Tapped::new(u32::MAX - 20_000);
    flow.ask(GET);
    let head = ok(BODY);
    flow.answer(head.as_bytes());
    flow.answer(&bytes(0, 1448));
    let (range, offset) = flow.prove();
    assert_eq!((range.len(), offset.offset, offset.resource.length), (512, 0, BODY));
    assert_eq!(offset.resource.request, "GET /f HTTP/1.1\r\nHost: h\r\nAccept-Encoding: identity\r\n");
    let head = head.len() as u32;
    assert_eq!(flow.place(head + 50_000, 1448).unwrap().offset, 50_000);
    assert_eq!(flow.place(head, BODY).unwrap().offset, 0);
    assert_eq!(flow.place(head, BODY + 1), None, "beyond the body");
    assert_eq!(flow.place(head - 1, 5), None, "a part of the head");
    assert_eq!(flow.place(head, 0), None, "nothing is nowhere");
}

#[test]
fn a_part_of_a_resource_begins_where_it_says() {
    let mut flow = Tapped::new(7);
    flow.ask(GET);
    let head = format!(
        "HTTP/1.1 206 P\r\nETag: \"x\"\r\nContent-Length: {BODY}\r\nContent-Range: bytes 5000-{}/300000\r\n\r\n",
        4999 + BODY
    );
    flow.answer(head.as_bytes());
    flow.answer(&bytes(5000, 1448));
    assert_eq!(flow.prove().1.offset, 5000);
    let offset = flow.place(head.len() as u32 + 10, 20).unwrap();
    assert_eq!((offset.offset, offset.resource.length), (5010, 300_000));
}

#[test]
fn answers_of_one_connection_are_told_apart() {
    let mut flow = Tapped::new(7);
    // Pipelined: a HEAD, which has no body whatever it says; one that is interim; one that is short; two that count.
    flow.ask("HEAD /a HTTP/1.1\r\nHost: h\r\n\r\n");
    for _ in 0..3 {
        flow.ask(GET);
    }
    flow.answer(ok(BODY).as_bytes());
    flow.answer(b"HTTP/1.1 100 Continue\r\n\r\n");
    flow.answer(ok(3).as_bytes());
    flow.answer(b"abc");
    for _ in 0..2 {
        let head = ok(BODY);
        flow.answer(head.as_bytes());
        let begins = flow.down;
        flow.answer(&bytes(0, 1448));
        if flow.place(begins, 10).is_none() {
            flow.prove();
        }
        assert_eq!(flow.place(begins + 90_000, 1000).unwrap().offset, 90_000);
        flow.pass(&[], BODY as u32 - 1448);
    }
    assert_eq!(flow.map.take_check(), None, "a resource is compared once");
    assert_eq!(flow.map.not_fetchable(), None);
}

#[test]
fn heads_that_come_in_any_order_are_read() {
    let mut flow = Tapped::new(7);
    flow.ask(GET);
    let stream = [ok(BODY).as_bytes(), &bytes(0, 3000)].concat();
    let seen = |at: usize, to: usize| ObservedSegment {
        seq: Seq::new(7).plus(at as u32),
        ack: Seq::new(500),
        length: (to - at) as u32,
        payload: &stream[at..to],
    };
    for (at, to) in [(1500, 2900), (20, 80), (0, 30), (10, 1500)] {
        flow.map.on_response_segment(&seen(at, to));
    }
    assert_eq!(flow.prove().0.len(), 512);
}

#[test]
fn what_cannot_be_fetched_says_why() {
    let etag = "ETag: \"x\"\r\nContent-Length: 100000\r\n";
    let cases: [(&str, String, &str); 8] = [
        ("\u{16}\u{3}\u{1}", String::new(), "encrypted"),
        ("SSH-2.0-x\r\n", String::new(), "not plain HTTP"),
        (GET, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".into(), "how long"),
        (GET, "HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n".into(), "strong ETag"),
        (GET, format!("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n{etag}\r\n"), "coding"),
        (GET, format!("HTTP/1.1 200 OK\r\nAccept-Ranges: none\r\n{etag}\r\n"), "no ranges"),
        ("GET / HTTP/1.1\r\nCookie: a\r\n\r\n", format!("HTTP/1.1 200 OK\r\n{etag}\r\n"), "cookie"),
        ("POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n", format!("HTTP/1.1 200 OK\r\n{etag}\r\n"), "twice"),
    ];
    for (request, answer, want) in cases {
        let mut flow = Tapped::new(7);
        flow.ask(request);
        flow.answer(answer.as_bytes());
        flow.answer(&bytes(0, 1448));
        assert_eq!(flow.map.take_check(), None, "{want}");
        let why = flow.map.not_fetchable().map(|refusal| format!("{refusal}")).unwrap_or_default();
        assert!(why.contains(want), "{want}: {why}");
    }
}

#[test]
fn bytes_that_differ_end_it_for_good() {
    let mut flow = Tapped::new(7);
    flow.ask(GET);
    flow.answer(ok(BODY).as_bytes());
    let begins = flow.down;
    flow.answer(&bytes(0, 1448));
    let (range, _) = flow.map.take_check().unwrap();
    assert!(flow.map.on_check_fetched(range.start, &[0; 512]));
    assert_eq!((flow.place(begins, 10), flow.map.not_fetchable()), (None, Some(NotFetchable::Differs)));
    assert!(!flow.map.on_check_fetched(range.start, &bytes(0, 512)), "no second chance");
}

#[test]
fn all_is_shown_near_heads_and_no_more() {
    let mut flow = Tapped::new(7);
    let length = 5_000_000;
    assert_eq!(flow.map.capture_level(), CaptureLevel::Full);
    flow.ask(GET);
    flow.answer(ok(length).as_bytes());
    assert_eq!(flow.map.capture_level(), CaptureLevel::Full, "bytes to compare with");
    flow.answer(&bytes(0, 1448));
    assert_eq!(flow.map.capture_level(), CaptureLevel::None);
    flow.pass(&[], 4_500_000);
    assert_eq!(flow.map.capture_level(), CaptureLevel::Full, "the next head is near");
    let mut no_request = HttpMap::default();
    no_request.give_up();
    assert_eq!(
        (no_request.capture_level(), no_request.not_fetchable()),
        (CaptureLevel::None, Some(NotFetchable::NotCaptured))
    );
}

#[test]
fn a_head_that_was_cut_is_not_guessed() {
    let mut flow = Tapped::new(7);
    flow.ask(GET);
    flow.pass(b"HTTP/1.1 200 OK\r\nContent-Le", 1448);
    for _ in 0..4000 {
        flow.pass(&[], 1448);
    }
    assert_eq!(flow.map.not_fetchable(), Some(NotFetchable::NotCaptured));
    let mut cut = Tapped::new(7);
    cut.map.on_request_segment(&ObservedSegment {
        seq: Seq::new(1),
        ack: Seq::new(7),
        length: 900,
        payload: b"GET /f",
    });
    cut.answer(ok(BODY).as_bytes());
    assert_eq!(cut.map.not_fetchable(), Some(NotFetchable::NoRequest));
}

#[test]
fn hundreds_of_requests_do_not_fill_the_memory() {
    let mut flow = Tapped::new(7);
    for _ in 0..64 {
        flow.ask(GET);
    }
    assert_eq!(flow.map.not_fetchable(), None);
    flow.ask(GET);
    assert_eq!(flow.map.not_fetchable(), Some(NotFetchable::TooLarge));
    let mut long = Tapped::new(7);
    long.ask(GET);
    long.answer(&vec![b'a'; 40_000]);
    assert_eq!(long.map.not_fetchable(), Some(NotFetchable::TooLarge));
}
