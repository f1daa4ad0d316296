//! The connection against a server that is played by hand.

use alloc::string::String;
use alloc::vec;

use super::*;
use crate::accel::early_ack::http_map::ResourceOffset;
use crate::accel::seq_space::{PosRange, position_of};
use crate::wire::packet::Segment;

/// A connection and its server.
struct Played {
    conn: MirroredConn,
    /// The number of the server's SYN.
    isn: u32,
    now: Instant,
}

const LENGTH: u64 = 10_000_000;
const CLIENT_ISN: u32 = u32::MAX - 20;

fn key() -> Key {
    Key::new(([10, 1, 0, 2], 24_000).into(), ([192, 0, 2, 1], 80).into()).unwrap()
}

fn resource() -> Arc<Resource> {
    let request = String::from("GET /film HTTP/1.1\r\nHost: here\r\n");
    Arc::new(Resource { request, etag: "\"a\"".into(), length: LENGTH })
}

fn head(etag: &str, length: u64) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nETag: {etag}\r\n\r\n").into_bytes()
}

fn body(offset: u64, length: usize) -> Vec<u8> {
    (offset..).take(length).map(|at| (at % 251) as u8).collect()
}

fn want(offset: u64, length: u64) -> FetchRequest {
    let range = PosRange::new((7 << 32) + offset, (7 << 32) + offset + length);
    FetchRequest {
        flow: 3,
        range,
        source: ResourceOffset { resource: resource(), offset },
        server: key().destination(),
    }
}

impl Played {
    fn new(isn: u32) -> Self {
        let beat = Duration::from_millis(4);
        let conn = MirroredConn::new(
            &FastFetchOptions::DEFAULT,
            Instant::ZERO,
            key(),
            Seq::new(CLIENT_ISN),
            resource(),
            beat,
        );
        Self { conn, isn, now: Instant::ZERO }
    }

    /// One that has the head, and whose flow has come so far.
    fn walking(isn: u32, follow: u64) -> Self {
        let mut played = Self::new(isn);
        played.accept();
        played.server_sends(1, &head("\"a\"", LENGTH));
        played.conn.follow(played.now, follow);
        assert_eq!(played.conn.phase, Phase::Advancing);
        played.sent_to_server();
        played
    }

    /// The server sends this, at this distance from its SYN.
    fn server_sends(&mut self, at: u64, payload: &[u8]) {
        self.server_sends_with(at, Flags::ACK, self.conn.next_seq(), payload);
    }

    fn server_sends_with(&mut self, at: u64, flags: Flags, ack: Seq, payload: &[u8]) {
        let seq = Seq::new(self.isn.wrapping_add(at as u32));
        let plain = NewSegment::data(&key().reversed(), seq, ack, 1000, None, payload);
        let packet = NewSegment { flags, ..plain }.emit().unwrap();
        self.conn.on_packet(self.now, &Segment::parse(&packet).unwrap());
    }

    /// The server's SYN.
    fn accept(&mut self) {
        self.pass(100);
        self.server_sends_with(0, Flags::SYN | Flags::ACK, Seq::new(CLIENT_ISN).plus(1), &[]);
    }

    /// Bytes of the body.
    fn feed_body(&mut self, offset: u64, length: usize) {
        self.server_sends(1 + head("\"a\"", LENGTH).len() as u64 + offset, &body(offset, length));
    }

    fn pass(&mut self, millis: u64) {
        let until = self.now + Duration::from_millis(millis);
        while let Some(at) = self.conn.deadline().filter(|at| *at <= until) {
            assert!(at >= self.now || self.conn.deadline() <= Some(self.now), "not behind");
            self.now = self.now.max(at);
            self.conn.tick(self.now);
        }
        self.now = until;
    }

    /// What was sent to the server: flags, the acknowledged offset of the body, and the payload's length.
    fn sent_to_server(&mut self) -> Vec<(Flags, i64, usize)> {
        let base = Seq::new(self.isn).plus(1 + head("\"a\"", LENGTH).len() as u32);
        let read = |packet: Vec<u8>| {
            let segment = Segment::parse(&packet).unwrap();
            let acked_offset = segment.ack().map_or(-1, |ack| i64::from(ack.offset_from(base)));
            (segment.flags(), acked_offset, segment.payload().len())
        };
        core::mem::take(&mut self.conn.outputs.packets).into_iter().map(read).collect()
    }

    fn acked(&mut self) -> i64 {
        self.sent_to_server().into_iter().map(|(_, acked_offset, _)| acked_offset).max().unwrap_or(-1)
    }
}

#[test]
fn after_the_head_it_advances_as_far_as_the_flow_has_come() {
    let mut played = Played::new(1000);
    assert_eq!(played.sent_to_server(), [(Flags::SYN, -1, 0)]);
    played.accept();
    let request = "GET /film HTTP/1.1\r\nHost: here\r\n\r\n";
    let sent = played.sent_to_server();
    assert!(matches!(sent[..], [(_, _, length)] if length == request.len()), "{sent:?}");
    let head = head("\"a\"", LENGTH);
    played.server_sends(1, &head[..20]);
    played.server_sends(21, &head[20..]);
    assert_eq!(played.sent_to_server().last().map(|sent| sent.1), Some(0), "it is read in order");
    played.conn.follow(played.now, 500_000);
    played.pass(40);
    let first = played.acked();
    assert!((20_000..50_000).contains(&first), "{first}: two segments each 4 ms");
    for step in 0..100 {
        // The server keeps up.
        played.feed_body(500_000 + step * 1400, 1400);
        played.pass(10);
    }
    assert_eq!(played.acked(), 500_000, "and not beyond the flow");
}

#[test]
fn a_lost_syn_is_retransmitted_up_to_three_times() {
    let mut played = Played::new(1000);
    played.pass(999);
    assert_eq!(played.sent_to_server().len(), 1);
    played.pass(5001);
    let sent = played.sent_to_server();
    assert_eq!(sent.iter().filter(|(flags, ..)| *flags == Flags::SYN).count(), 2);
    assert_eq!(played.conn.close_reason(), Some(CloseReason::NoResponse));
    assert_eq!(played.conn.deadline(), None);
}

#[test]
fn a_lost_request_is_retransmitted() {
    let mut played = Played::new(1000);
    played.accept();
    played.sent_to_server();
    played.pass(1000);
    assert!(matches!(played.sent_to_server()[..], [(_, _, length)] if length > 20));
    played.server_sends(1, &head("\"a\"", LENGTH));
    assert_eq!(played.conn.phase, Phase::Advancing);
}

#[test]
fn a_response_that_differs_from_the_flows_closes_it() {
    let partial = b"HTTP/1.1 206 Partial Content\r\nContent-Length: 5\r\nContent-Range: bytes 5-9/10000000\r\nETag: \"a\"\r\n\r\n";
    let heads = [
        head("\"b\"", LENGTH),
        head("\"a\"", LENGTH - 1),
        head("W/\"a\"", LENGTH),
        b"HTTP/1.1 404 No\r\nContent-Length: 10000000\r\nETag: \"a\"\r\n\r\n".to_vec(),
        partial.to_vec(),
        b"220 a server of mail\r\n\r\n".to_vec(),
        vec![b'x'; 200_000],
    ];
    for head in heads {
        let mut played = Played::new(1000);
        played.accept();
        for (at, piece) in head.chunks(1400).enumerate() {
            played.server_sends(1 + at as u64 * 1400, piece);
        }
        assert_eq!(
            played.conn.close_reason(),
            Some(CloseReason::Differs),
            "{}",
            String::from_utf8_lossy(&head[..20])
        );
        assert!(
            played.sent_to_server().last().is_some_and(|(flags, ..)| flags.contains(Flags::RST)),
            "the server gets a reset"
        );
    }
}

#[test]
fn a_wanted_byte_is_not_acknowledged_before_it_has_arrived() {
    // Both numbers wrap around meanwhile.
    for isn in [1000, u32::MAX - 100_000, u32::MAX - 60] {
        let mut played = Played::walking(isn, 100_000);
        played.conn.request(played.now, want(100_000, 2000)).unwrap();
        played.conn.follow(played.now, 100_000);
        played.feed_body(99_000, 1000);
        played.pass(140);
        assert_eq!(played.acked(), 100_000);
        played.pass(250);
        let pleas = played.sent_to_server();
        assert_eq!(pleas.len(), 4, "after the guard: {pleas:?}");
        assert!(pleas.iter().all(|(_, acked_offset, _)| *acked_offset == 100_000));
        played.feed_body(101_400, 1400);
        assert_eq!(played.conn.outputs.fetched.len(), 0, "a part of it");
        played.feed_body(100_000, 1400);
        let ConnOutputs { packets, fetched: got, returned: back } = played.conn.drain();
        assert_eq!((packets.len(), back.len()), (0, 0), "the flow itself has not come further");
        assert_eq!(
            got,
            [FetchedRange {
                flow: 3,
                start: (7 << 32) + 100_000,
                bytes: body(100_000, 2000),
                latency: None,
                is_overdue: false
            }]
        );
        played.conn.follow(played.now, 300_000);
        played.pass(100);
        assert!(played.acked() > 102_000, "it continues");
    }
}

#[test]
fn a_part_that_has_arrived_is_acknowledged_so_that_the_rest_follows() {
    let mut played = Played::walking(1000, 100_000);
    played.conn.request(played.now, want(100_000, 2000)).unwrap();
    played.pass(400);
    played.sent_to_server();
    played.feed_body(100_000, 1352);
    assert_eq!(played.acked(), 101_352);
    played.feed_body(101_352, 1400);
    assert_eq!(played.conn.outputs.fetched.len(), 1);
}

#[test]
fn ranges_that_do_not_come_in_time_are_returned() {
    let mut played = Played::walking(1000, 10_000);
    played.conn.request(played.now, want(10_000, 1400)).unwrap();
    played.conn.request(played.now, want(9_000_000, 1400)).unwrap_err();
    played.conn.request(played.now, want(20_000, 100_000)).unwrap_err();
    for _ in 0..30 {
        played.pass(100);
        // It responds, and delivers nothing of what is wanted.
        played.feed_body(50_000, 1400);
    }
    assert_eq!(played.conn.outputs.returned, [want(10_000, 1400)]);
    assert_eq!(played.conn.close_reason(), None);
}

#[test]
fn a_server_that_does_not_keep_up_is_probed_and_slowed_down() {
    let mut played = Played::walking(1000, 4_000_000);
    played.pass(400);
    let acked_offset = played.acked();
    assert!(acked_offset > 100_000);
    let before = played.conn.pacer.step_bytes();
    // The server has sent less than that.
    played.pass(400);
    let question = played.sent_to_server().into_iter().any(|(_, acked_offset, _)| acked_offset > 100_000);
    assert!(question && played.conn.probes > 0);
    played.feed_body(60_000, 0);
    assert_eq!(played.sent_to_server().last().map(|sent| sent.1), Some(60_000), "it goes on from there");
    assert!(played.conn.pacer.step_bytes() < before);
    assert_eq!(played.conn.probes, 0);
}

#[test]
fn an_unresponsive_server_is_given_up() {
    let mut played = Played::walking(1000, 4_000_000);
    played.conn.request(played.now, want(900_000, 1400)).unwrap();
    played.pass(10_000);
    assert_eq!(played.conn.close_reason(), Some(CloseReason::NoResponse));
    assert_eq!(played.conn.outputs.returned.len(), 1);
    assert_eq!(played.conn.deadline(), None);
}

#[test]
fn a_reset_or_a_close_returns_the_wanted_ranges() {
    for flags in [Flags::RST | Flags::ACK, Flags::RST, Flags::FIN | Flags::ACK] {
        let mut played = Played::walking(1000, 10_000);
        played.conn.request(played.now, want(10_000, 1400)).unwrap();
        let at = played.conn.acked - position_of(Seq::new(1000));
        played.server_sends_with(at, flags, played.conn.next_seq(), &[]);
        assert_eq!(played.conn.close_reason(), Some(CloseReason::Closed), "{flags:?}");
        assert_eq!(played.conn.outputs.returned, [want(10_000, 1400)]);
    }
    let mut played = Played::walking(1000, 10_000);
    played.server_sends_with(1 << 30, Flags::RST, Seq::default(), &[]);
    played.server_sends_with(5, Flags::RST | Flags::ACK, Seq::new(77), &[]);
    assert_eq!(played.conn.close_reason(), None, "a reset with unknown numbers is ignored");
}

#[test]
fn a_flow_that_is_finished_or_too_fast_closes_it() {
    let mut played = Played::walking(1000, 10_000);
    played.conn.follow(played.now, LENGTH);
    assert_eq!(played.conn.close_reason(), Some(CloseReason::Done));
    let slow = Duration::from_millis(40);
    let mut conn =
        MirroredConn::new(&FastFetchOptions::DEFAULT, Instant::ZERO, key(), Seq::new(1), resource(), slow);
    conn.follow(Instant::ZERO, LENGTH / 2);
    assert_eq!(conn.close_reason(), Some(CloseReason::TooSlow));
    assert!(!MirroredConn::can_catch_up(&FastFetchOptions::DEFAULT, LENGTH / 2, slow));
}

#[test]
fn a_connection_of_an_idle_flow_is_closed() {
    let mut played = Played::walking(1000, 10_000);
    let followed = played.now;
    played.conn.acked = played.conn.ack_limit();
    assert_eq!(played.conn.deadline(), Some(followed + FastFetchOptions::DEFAULT.max_idle));
    played.conn.tick(followed + FastFetchOptions::DEFAULT.max_idle - Duration::from_millis(1));
    assert_eq!(played.conn.close_reason(), None);
    played.conn.tick(followed + FastFetchOptions::DEFAULT.max_idle);
    assert_eq!((played.conn.close_reason(), played.conn.deadline()), (Some(CloseReason::Done), None));
}

#[test]
fn a_connection_that_was_idle_is_not_probed_at_once() {
    let mut played = Played::walking(1000, 10_000);
    played.conn.acked = played.conn.ack_limit();
    let later = played.now + Duration::from_secs(5);
    played.conn.follow(later, 50_000);
    played.conn.tick(later);
    assert_eq!((played.conn.probes, played.conn.close_reason()), (0, None));
}

#[test]
fn whatever_a_server_sends_no_wanted_byte_is_acknowledged_and_memory_is_bounded() {
    let mut seed = 1_u64;
    let mut draw = move |n: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % n
    };
    for round in 0..200 {
        let mut played = if round % 4 == 0 { Played::new(draw(1 << 32) as u32) } else { Played::walking(9, 5000) };
        let mut wanted = Vec::new();
        for _ in 0..200 {
            let flags = [Flags::ACK, Flags::SYN | Flags::ACK, Flags::ACK | Flags::PSH, Flags::SYN];
            let ack = if draw(3) == 0 { Seq::new(draw(1 << 32) as u32) } else { played.conn.next_seq() };
            let at = if draw(2) == 0 { draw(1 << 32) } else { draw(20_000) };
            let bytes = vec![draw(256) as u8; draw(1500) as usize];
            let flags = flags[draw(4) as usize];
            played.server_sends_with(at, flags, ack, &bytes);
            played.pass(draw(300));
            let offset = played.conn.offset() + draw(30_000);
            let length = 1 + draw(3000);
            if draw(4) == 0 && played.conn.request(played.now, want(offset, length)).is_ok() {
                wanted.push((offset, length));
            }
            if draw(4) == 0 {
                played.conn.follow(played.now, draw(40_000));
                // What the flow has is not wanted any more.
                wanted.retain(|(offset, length)| offset + length > played.conn.flow_offset);
            }
            let out = played.conn.drain();
            wanted.retain(|(offset, _)| {
                let is_of = |start: u64| start == (7 << 32) + offset;
                !out.fetched.iter().any(|got| is_of(got.start))
                    && !out.returned.iter().any(|wanted_range| is_of(wanted_range.range.start))
            });
            assert!(wanted.iter().all(|(offset, _)| played.conn.acked <= played.conn.body_start + offset + 3000));
            assert!(played.conn.wanted.count() <= 40 && out.packets.len() < 2000);
        }
    }
}

#[test]
fn a_range_that_arrived_by_itself_is_not_wanted_any_more() {
    let mut played = Played::walking(7, 0);
    assert!(played.conn.request(played.now, want(20_000, 1000)).is_ok());
    assert_eq!(played.conn.wanted.count(), 1);
    played.conn.follow(played.now, 30_000);
    assert_eq!(played.conn.wanted.count(), 0);
}

#[test]
fn a_long_request_is_sent_in_segments() {
    let mut played = Played::new(7);
    let request = format!("GET /{} HTTP/1.1\r\nHost: here\r\n", "a".repeat(3000));
    let resource = Arc::new(Resource { request, etag: "\"a\"".into(), length: LENGTH });
    played.conn = MirroredConn::new(
        &FastFetchOptions::DEFAULT,
        Instant::ZERO,
        key(),
        Seq::new(CLIENT_ISN),
        resource,
        Duration::from_millis(4),
    );
    played.accept();
    let sizes: Vec<usize> = played.conn.outputs.packets.iter().map(Vec::len).collect();
    assert!(sizes.len() >= 4 && sizes.iter().all(|size| *size <= 1500), "{sizes:?}");
    // A piece of it has come.
    played.server_sends_with(1, Flags::ACK, Seq::new(CLIENT_ISN).plus(1).plus(SEGMENT.into()), &[]);
    played.server_sends(1, &head("\"a\"", LENGTH));
    assert_eq!(played.conn.phase, Phase::Advancing);
}
