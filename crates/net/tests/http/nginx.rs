//! Tests against a real nginx.

use marline_core::fetch::{ConnErrorKind, Protocol, ReqId, RequestRange, Validator};
use marline_core::units::DataSize;
use marline_net::http::{Event, GetRequest};

use crate::driver::{Nginx, TestClient, dial_to, get_request, last_error_kind, make_identity, range_of};

/// Requests all pieces at once, and checks that each one is equal to that part of the file.
fn fetch_pieces(client: &mut TestClient, nginx: &Nginx, count: u32, size: u64) -> Vec<Event> {
    (0..count).for_each(|n| client.conn.request(ReqId(n), &get_request(range_of(n, size))));
    let events = client.run_until_ends(count as usize);
    for (n, body) in &client.bodies.0 {
        let start = (u64::from(*n) * size) as usize;
        assert!(nginx.data[start..start + size as usize] == body[..], "piece {n} differs");
    }
    events
}

fn ends(events: &[Event]) -> Vec<u32> {
    events.iter().filter_map(|event| if let Event::End { req, .. } = event { Some(req.0) } else { None }).collect()
}

#[test]
fn two_hundred_pipelined_ranges_arrive_in_order() {
    let Some(nginx) = Nginx::start("", 200 * 10_000, None) else { return };
    let mut client = TestClient::dial(dial_to(nginx.address)).expect("connected");
    let events = fetch_pieces(&mut client, &nginx, 200, 10_000);
    assert_eq!(ends(&events), (0..200).collect::<Vec<_>>());
    let Some(Event::Head { head, .. }) = events.first() else { panic!("no head") };
    assert_eq!((head.status, head.length), (206, Some(DataSize::from_bytes(10_000))));
    assert_eq!(head.range.and_then(|range| range.total), Some(DataSize::from_bytes(2_000_000)));
    assert!(matches!(head.validator, Some(Validator::Etag(_))));
}

#[test]
fn a_connection_limited_to_ten_requests_ends_cleanly_after_ten() {
    let Some(nginx) = Nginx::start("keepalive_requests 10;", 40 * 10_000, None) else { return };
    let mut client = TestClient::dial(dial_to(nginx.address)).expect("connected");
    let events = fetch_pieces(&mut client, &nginx, 40, 10_000);
    assert_eq!(ends(&events), (0..10).collect::<Vec<_>>());
    assert_eq!(last_error_kind(&events), Some(ConnErrorKind::CleanClose), "{:?}", events.last());
    let closing = events.iter().filter(|event| matches!(event, Event::Head { head, .. } if head.closes_connection));
    assert_eq!(closing.count(), 1);
}

#[test]
fn if_range_and_unsatisfiable_ranges_are_reported() {
    let Some(nginx) = Nginx::start("", 1000, None) else { return };
    let mut client = TestClient::dial(dial_to(nginx.address)).expect("connected");
    let other = Some(Validator::Etag("\"other\"".into()));
    client.conn.request(ReqId(0), &GetRequest { if_range: other, ..get_request(range_of(0, 10)) });
    client.conn.request(ReqId(1), &get_request(RequestRange::From(5000)));
    let heads: Vec<_> = client
        .run_until_ends(2)
        .into_iter()
        .filter_map(|event| if let Event::Head { head, .. } = event { Some(head) } else { None })
        .collect();
    assert_eq!((heads[0].status, heads[0].length), (200, Some(DataSize::from_bytes(1000))));
    assert_eq!((heads[1].status, heads[1].range.map(|range| range.range)), (416, Some(None)));
    assert_eq!(heads[1].range.and_then(|range| range.total), Some(DataSize::from_bytes(1000)));
}

#[test]
fn tls_uses_http_1_1_if_nothing_else_is_offered() {
    let identity = make_identity("localhost", None);
    let Some(nginx) = Nginx::start("", 3_000_000, Some(&identity)) else { return };
    let mut client = TestClient::dial(nginx.dial_tls("localhost", false)).expect("connected");
    assert_eq!(client.conn.protocol(), Protocol::Http1);
    let events = fetch_pieces(&mut client, &nginx, 30, 100_000);
    assert_eq!(ends(&events).len(), 30);
}

#[test]
fn a_certificate_for_another_name_is_refused_with_a_clear_text() {
    let identity = make_identity("other.example", None);
    let Some(nginx) = Nginx::start("", 10, Some(&identity)) else { return };
    let error = TestClient::dial(nginx.dial_tls("localhost", true)).err().expect("refused");
    assert_eq!(error.kind, ConnErrorKind::Tls);
    assert_eq!(error.text, "localhost: the certificate is for other.example, not for localhost");
}

#[test]
fn an_expired_certificate_is_refused_with_a_clear_text() {
    let expired = make_identity("localhost", Some(2020));
    let Some(nginx) = Nginx::start("", 10, Some(&expired)) else { return };
    let error = TestClient::dial(nginx.dial_tls("localhost", true)).err().expect("refused");
    assert!(error.text.contains("expired") && error.text.contains("days ago"), "{}", error.text);
}

#[test]
fn a_certificate_of_an_unknown_authority_is_refused_with_a_clear_text() {
    let identity = make_identity("localhost", None);
    let Some(nginx) = Nginx::start("", 10, Some(&identity)) else { return };
    std::fs::write(nginx.dir.path().join("ca.pem"), make_identity("localhost", None).ca_pem).expect("written");
    let error = TestClient::dial(nginx.dial_tls("localhost", true)).err().expect("refused");
    assert_eq!(error.kind, ConnErrorKind::Tls);
    assert!(error.text.contains("not trusted"), "{}", error.text);
}
