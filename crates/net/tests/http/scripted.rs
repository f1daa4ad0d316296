//! Tests against scripted servers with unusual or wrong behavior.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::thread;
use std::time::Duration;

use marline_core::fetch::{ConnErrorKind, Protocol, ReqId, RequestRange};
use marline_core::units::DataSize;
use marline_net::http::{DialRequest, Event};

use crate::driver::{
    TestClient, dial_to, get_request, last_error_kind, range_of, read_requests, serve_canned, serve_script,
};

fn requesting_client(address: SocketAddr, requests: u32) -> TestClient {
    let mut client = TestClient::dial(dial_to(address)).expect("connected");
    (0..requests).for_each(|n| client.conn.request(ReqId(n), &get_request(range_of(n, 10))));
    client
}

/// The events and the body of one request that gets this response.
fn run_to_close(answer: &[u8]) -> (Vec<Event>, Vec<u8>) {
    let mut client = requesting_client(serve_canned(1, vec![answer.to_vec()]), 1);
    let events = client.run_until_ends(2);
    (events, client.bodies.0.remove(&0).unwrap_or_default())
}

#[test]
fn requests_are_sent_together_before_any_response() {
    let address = serve_script(|mut stream| {
        let text = read_requests(&mut stream, 3);
        let ranges: Vec<&str> = text.lines().filter(|line| line.starts_with("Range")).collect();
        assert_eq!(ranges, ["Range: bytes=0-9", "Range: bytes=10-19", "Range: bytes=20-29"]);
        for n in 0..3 {
            let answer = format!("HTTP/1.1 206 OK\r\nContent-Length: 1\r\n\r\n{n}");
            stream.write_all(answer.as_bytes()).expect("written");
        }
    });
    let mut client = requesting_client(address, 3);
    assert_eq!(client.conn.protocol(), Protocol::Http1);
    assert_eq!(client.conn.peer_addr(), address);
    assert_eq!(client.run_until_ends(3).iter().filter(|event| matches!(event, Event::End { .. })).count(), 3);
    let bodies: Vec<Vec<u8>> = client.bodies.0.into_values().collect();
    assert_eq!(bodies, [b"0", b"1", b"2"]);
    assert!(client.conn.handshake() > Duration::ZERO && client.conn.path_sample().rtt > Duration::ZERO);
}

#[test]
fn pipelined_responses_may_arrive_in_single_bytes() {
    let wire = b"HTTP/1.1 206 OK\r\nContent-Length: 4\r\n\r\nbody\
        HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nch\r\n3\r\nunk\r\n0\r\n\r\n\
        HTTP/1.1 200 OK\r\n\r\nrest";
    let mut client = requesting_client(serve_canned(3, wire.chunks(1).map(<[u8]>::to_vec).collect()), 3);
    let events = client.run_until_ends(4);
    assert_eq!(last_error_kind(&events), Some(ConnErrorKind::CleanClose));
    let bodies: Vec<Vec<u8>> = client.bodies.0.into_values().collect();
    assert_eq!(bodies, [b"body".to_vec(), b"chunk".to_vec(), b"rest".to_vec()]);
}

#[test]
fn each_invalid_response_has_its_error_kind() {
    for (answer, kind, body) in [
        (&b"HTTP/1.1 206 OK\r\nContent-Length: 10\r\n\r\n12345"[..], ConnErrorKind::Truncated, &b"12345"[..]),
        (b"HTTP/1.1 206 OK\r\nContent-Le", ConnErrorKind::Truncated, b""),
        (b"HTTP/1.1 206 OK\r\nContent-Length: 2\r\n\r\n12345", ConnErrorKind::Protocol, b"12"),
        (b"\x15\x03\x01\x00\x02\x02\x50", ConnErrorKind::Protocol, b""),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\nzz", ConnErrorKind::Protocol, b"ab"),
        (b"HTTP/1.0 200 OK\r\n\r\nto the end", ConnErrorKind::CleanClose, b"to the end"),
        (b"", ConnErrorKind::Reset, b""),
    ] {
        let (events, got) = run_to_close(answer);
        let text = String::from_utf8_lossy(answer);
        assert_eq!((last_error_kind(&events), &got[..]), (Some(kind), body), "{text}: {events:?}");
    }
}

#[test]
fn a_reset_after_a_closing_response_is_a_clean_close() {
    let address = serve_script(|mut stream| {
        // Unread requests turn the close into a reset.
        let _ = stream.read(&mut [0; 16]);
        let _ = stream.write_all(b"HTTP/1.1 206 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok");
    });
    let mut client = requesting_client(address, 5);
    let events = client.run_until_ends(5);
    assert_eq!(last_error_kind(&events), Some(ConnErrorKind::CleanClose), "{events:?}");
    assert_eq!(client.bodies.0[&0], b"ok");
}

#[test]
fn a_reset_within_a_body_is_a_truncation() {
    let address = serve_script(|mut stream| {
        let _ = stream.read(&mut [0; 16]);
        let _ = stream.write_all(b"HTTP/1.1 206 OK\r\nContent-Length: 20\r\n\r\nok");
    });
    let events = requesting_client(address, 5).run_until_ends(5);
    assert_eq!(last_error_kind(&events), Some(ConnErrorKind::Truncated), "{events:?}");
}

#[test]
fn a_body_is_read_only_after_acceptance_and_up_to_the_limit() {
    let mut wire = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n".to_vec();
    wire.extend_from_slice(&[b'x'; 100_000]);
    let mut client = requesting_client(serve_canned(1, vec![wire]), 1);
    assert!(matches!(client.next_event(), Event::Head { .. }));
    assert!(client.bodies.0.is_empty());
    client.conn.accept(ReqId(0), Some(DataSize::from_bytes(50_000)));
    let events = client.run_until_ends(2);
    assert!(matches!(events[0], Event::End { .. }), "{events:?}");
    assert_eq!(last_error_kind(&events), Some(ConnErrorKind::CleanClose));
    assert_eq!(client.bodies.0[&0].len(), 50_000);
}

#[test]
fn a_poll_reads_about_as_much_as_allowed() {
    let mut wire = b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n".to_vec();
    wire.extend_from_slice(&[b'x'; 60_000]);
    let mut client = requesting_client(serve_canned(1, vec![wire]), 1);
    let Event::Head { req, .. } = client.next_event() else { panic!("no head") };
    client.conn.accept(req, None);
    let mut calls = 0;
    while let Event::Data { len, .. } = client.next_event_within(DataSize::from_bytes(1000)) {
        // Bytes that followed the head are the exception.
        assert!(len.bytes() <= 1000 || calls == 0, "{len:?}");
        calls += 1;
    }
    assert!(calls > 50 && client.bodies.0[&0].len() == 60_000);
}

#[test]
fn a_closed_port_is_refused_and_a_missing_device_is_unreachable() {
    let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port");
    let trouble = TestClient::dial(dial_to(free)).err().expect("refused");
    assert_eq!(trouble.kind, ConnErrorKind::Refused, "{trouble:?}");
    assert!(trouble.text.contains(&free.to_string()));
    let unreachable = SocketAddr::from(([192, 0, 2, 1], 80));
    let dial = DialRequest { device: Some("nosuchif0".into()), ..dial_to(unreachable) };
    let trouble = TestClient::dial(dial).err().expect("unreachable");
    assert_eq!(trouble.kind, ConnErrorKind::Unreachable, "{trouble:?}");
    let none = DialRequest { addresses: Vec::new(), ..dial_to(free) };
    assert_eq!(TestClient::dial(none).err().expect("no address").kind, ConnErrorKind::Dns);
}

#[test]
fn the_next_address_is_tried_at_once_when_one_refuses() {
    let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port");
    let live = serve_canned(1, vec![b"HTTP/1.1 204 No\r\n\r\n".to_vec()]);
    let client = TestClient::dial(DialRequest { addresses: vec![free, live], ..dial_to(free) }).expect("connected");
    assert_eq!(client.conn.peer_addr(), live);
}

#[test]
fn the_next_address_is_tried_when_one_does_not_respond() {
    // A full backlog drops SYNs, like an unreachable host.
    let unresponsive = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
    unresponsive.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("bound");
    unresponsive.listen(0).expect("listening");
    let unresponsive_addr =
        unresponsive.local_addr().ok().and_then(|address| address.as_socket()).expect("an address");
    let _filler = std::net::TcpStream::connect(unresponsive_addr).expect("the only slot of the backlog");
    let live = serve_canned(1, vec![b"HTTP/1.1 204 No\r\n\r\n".to_vec()]);
    let client =
        TestClient::dial(DialRequest { addresses: vec![unresponsive_addr, live], ..dial_to(unresponsive_addr) })
            .expect("connected");
    assert_eq!(client.conn.peer_addr(), live);
    let only_unresponsive = DialRequest { timeout: Duration::from_millis(300), ..dial_to(unresponsive_addr) };
    assert_eq!(TestClient::dial(only_unresponsive).err().expect("late").kind, ConnErrorKind::TimedOut);
}

#[test]
fn a_socket_is_bound_to_its_device() {
    let address = serve_canned(1, vec![b"HTTP/1.1 204 No\r\n\r\n".to_vec()]);
    let mut client =
        TestClient::dial(DialRequest { device: Some("lo".into()), ..dial_to(address) }).expect("connected");
    client.conn.request(ReqId(0), &get_request(RequestRange::Full));
    assert!(matches!(client.run_until_ends(1).last(), Some(Event::End { .. })));
}

#[test]
fn a_server_without_tls_is_a_tls_error() {
    let address = serve_script(|mut stream| {
        let _ = stream.read(&mut [0; 512]);
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        thread::sleep(Duration::from_millis(50));
    });
    let identity = crate::driver::make_identity("localhost", None);
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), &identity.ca_pem).expect("written");
    let tls = marline_net::http::tls_config(Some(file.path()), true).expect("an authority");
    let trouble = TestClient::dial(DialRequest { tls: Some(tls), ..dial_to(address) }).err().expect("no TLS");
    assert_eq!(trouble.kind, ConnErrorKind::Tls);
    assert!(trouble.text.contains("does not speak TLS"), "{}", trouble.text);
}

#[test]
fn a_tls_handshake_that_was_cut_off_may_be_retried() {
    // No response at all, and the alert internal_error.
    for sent in [&b""[..], b"\x15\x03\x03\x00\x02\x02\x50"] {
        let address = serve_script(move |mut stream| {
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(sent);
        });
        let identity = crate::driver::make_identity("localhost", None);
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), &identity.ca_pem).expect("written");
        let tls = marline_net::http::tls_config(Some(file.path()), true).expect("an authority");
        let trouble = TestClient::dial(DialRequest { tls: Some(tls), ..dial_to(address) }).err().expect("no TLS");
        assert_eq!(trouble.kind, ConnErrorKind::Reset, "{}", trouble.text);
    }
}

#[test]
fn ipv6_servers_are_supported() {
    let Ok(listener) = TcpListener::bind("[::1]:0") else {
        eprintln!("skipped: this machine has no IPv6 loopback");
        return;
    };
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        read_requests(&mut stream, 1);
        stream.write_all(b"HTTP/1.1 204 No\r\n\r\n").expect("written");
    });
    let mut client = requesting_client(address, 1);
    assert!(matches!(client.run_until_ends(1).last(), Some(Event::End { .. })));
}

#[test]
fn an_idle_connection_that_the_server_closes_is_a_clean_close() {
    let mut client = requesting_client(serve_canned(1, vec![b"HTTP/1.1 204 No\r\n\r\n".to_vec()]), 1);
    client.run_until_ends(1);
    assert_eq!(last_error_kind(&[client.next_event()]), Some(ConnErrorKind::CleanClose));
}

#[test]
fn a_poll_without_permission_to_read_reads_no_body() {
    let wire = [&b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n"[..], &[b'x'; 60_000]].concat();
    let mut client = requesting_client(serve_canned(1, vec![wire]), 1);
    let Event::Head { req, .. } = client.next_event() else { panic!("no head") };
    client.conn.accept(req, None);
    let Event::Data { .. } = client.next_event() else { panic!("no data") };
    let before = client.bodies.0[&0].len();
    assert!(client.is_pending(DataSize::ZERO) && client.bodies.0[&0].len() == before);
    client.run_until_ends(1);
    assert_eq!(client.bodies.0[&0].len(), 60_000);
}
