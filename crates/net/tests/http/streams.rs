//! Tests of HTTP/2 against a real nginx and against scripted servers.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread;

use bytes::Bytes;
use h2::Reason;
use marline_core::fetch::{ConnErrorKind, Protocol, ReqId, RequestRange};
use marline_core::units::DataSize;
use marline_net::http::{DialRequest, Event, Http2Windows, tls_config};
use tokio_rustls::TlsAcceptor;

use crate::acceptor::acceptor;
use crate::driver::{Nginx, TestClient, dial_to, get_request, last_error_kind, make_identity, range_of};

type H2Connection = h2::server::Connection<tokio_rustls::server::TlsStream<tokio::net::TcpStream>, Bytes>;

/// A scripted HTTP/2 server for one connection, and the request to connect to it.
fn serve_http2<F, Fut>(script: F) -> DialRequest
where
    F: FnOnce(H2Connection) -> Fut + Send + 'static,
    Fut: Future<Output = ()>,
{
    let identity = make_identity("localhost", None);
    let ca = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(ca.path(), &identity.ca_pem).expect("written");
    let tls = Some(tls_config(Some(ca.path()), true).expect("an authority"));
    let mut config = acceptor(&identity);
    config.alpn_protocols = vec![b"h2".to_vec()];
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    listener.set_nonblocking(true).expect("an option");
    let address: SocketAddr = listener.local_addr().expect("an address");
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
            let (tcp, _) = listener.accept().await.expect("a client");
            let tls = TlsAcceptor::from(Arc::new(config)).accept(tcp).await.expect("TLS");
            script(h2::server::handshake(tls).await.expect("HTTP/2")).await;
        });
    });
    DialRequest { tls, ..dial_to(address) }
}

fn ok_response() -> http::Response<()> {
    http::Response::new(())
}

#[test]
fn several_streams_share_one_connection() {
    let identity = make_identity("localhost", None);
    let Some(nginx) = Nginx::start("http2_max_concurrent_streams 4;", 4_000_000, Some(&identity)) else { return };
    let mut client = TestClient::dial(nginx.dial_tls("localhost", true)).expect("connected");
    assert_eq!(client.conn.protocol(), Protocol::Http2);
    (0..40).for_each(|n| client.conn.request(ReqId(n), &get_request(range_of(n, 100_000))));
    let events = client.run_until_ends(40);
    assert_eq!(events.iter().filter(|event| matches!(event, Event::End { .. })).count(), 40);
    for (n, body) in &client.bodies.0 {
        let start = *n as usize * 100_000;
        assert!(nginx.data[start..start + 100_000] == body[..], "piece {n} differs");
    }
}

#[test]
fn a_window_smaller_than_the_file_is_replenished_by_reading() {
    let identity = make_identity("localhost", None);
    let Some(nginx) = Nginx::start("", 4_000_000, Some(&identity)) else { return };
    let windows = Http2Windows { stream: DataSize::from_kib(64), connection: DataSize::from_kib(64) };
    let mut client = TestClient::dial(DialRequest { http2_windows: windows, ..nginx.dial_tls("localhost", true) })
        .expect("connected");
    client.conn.request(ReqId(0), &get_request(RequestRange::Full));
    client.run_until_ends(1);
    assert!(client.bodies.0[&0] == *nginx.data);
}

#[test]
fn a_cancelled_stream_releases_its_window_and_the_others_continue() {
    let identity = make_identity("localhost", None);
    let Some(nginx) = Nginx::start("", 4_000_000, Some(&identity)) else { return };
    let windows = Http2Windows { stream: DataSize::from_kib(64), connection: DataSize::from_kib(64) };
    let mut client = TestClient::dial(DialRequest { http2_windows: windows, ..nginx.dial_tls("localhost", true) })
        .expect("connected");
    for n in 0..20 {
        client.conn.request(ReqId(n), &get_request(RequestRange::Full));
        assert!(matches!(client.next_event(), Event::Head { req, .. } if req == ReqId(n)));
        client.conn.cancel(ReqId(n));
    }
    client.conn.request(ReqId(20), &get_request(RequestRange::Full));
    let events = client.run_until_ends(1);
    assert!(
        events.iter().all(|event| matches!(event, Event::Head { req, .. } | Event::End { req, .. } if req.0 == 20))
    );
    assert!(client.bodies.0.len() == 1 && client.bodies.0[&20] == *nginx.data);
}

#[test]
fn a_server_that_sends_goaway_closes_cleanly() {
    let identity = make_identity("localhost", None);
    let Some(nginx) = Nginx::start("keepalive_requests 10;", 400_000, Some(&identity)) else { return };
    let mut client = TestClient::dial(nginx.dial_tls("localhost", true)).expect("connected");
    (0..40).for_each(|n| client.conn.request(ReqId(n), &get_request(range_of(n, 10_000))));
    let events = client.run_until_ends(41);
    let ends = events.iter().filter(|event| matches!(event, Event::End { .. })).count();
    assert!((10..40).contains(&ends), "{events:?}");
    assert_eq!(last_error_kind(&events), Some(ConnErrorKind::CleanClose), "{:?}", events.last());
}

#[test]
fn a_refused_stream_is_aborted_and_the_connection_continues() {
    let mut client = TestClient::dial(serve_http2(|mut incoming| async move {
        let mut first = true;
        while let Some(Ok((_, mut answer))) = incoming.accept().await {
            if std::mem::take(&mut first) {
                answer.send_reset(Reason::REFUSED_STREAM);
            } else {
                let mut body = answer.send_response(ok_response(), false).expect("sent");
                body.send_data(Bytes::from_static(b"hello"), true).expect("sent");
            }
        }
    }))
    .expect("connected");
    (0..2).for_each(|n| client.conn.request(ReqId(n), &get_request(RequestRange::Full)));
    let events = client.run_until_ends(2);
    let refused = events.iter().find_map(|event| match event {
        Event::Aborted { req, error: trouble } => Some((req.0, trouble.kind)),
        _ => None,
    });
    assert_eq!(refused, Some((0, ConnErrorKind::StreamRefused)), "{events:?}");
    assert_eq!(client.bodies.0[&1], b"hello");
}

#[test]
fn a_response_ends_at_the_accepted_limit() {
    let mut client = TestClient::dial(serve_http2(|mut incoming| async move {
        while let Some(Ok((_, mut answer))) = incoming.accept().await {
            let mut body = answer.send_response(ok_response(), false).expect("sent");
            body.send_data(Bytes::from_static(b"hello"), true).expect("sent");
        }
    }))
    .expect("connected");
    client.conn.request(ReqId(0), &get_request(RequestRange::Full));
    assert!(matches!(client.next_event(), Event::Head { .. }));
    client.conn.accept(ReqId(0), Some(DataSize::from_bytes(3)));
    let events = client.run_until_ends(1);
    assert!(matches!(events.last(), Some(Event::End { req: ReqId(0), .. })), "{events:?}");
    assert_eq!(client.bodies.0[&0], b"hel");
}

#[test]
fn a_server_can_require_http_1_1_for_a_stream_or_the_connection() {
    for sends_goaway in [false, true] {
        let mut client = TestClient::dial(serve_http2(move |mut incoming| async move {
            while let Some(Ok((_, mut answer))) = incoming.accept().await {
                if sends_goaway {
                    incoming.abrupt_shutdown(Reason::HTTP_1_1_REQUIRED);
                } else {
                    answer.send_reset(Reason::HTTP_1_1_REQUIRED);
                }
            }
        }))
        .expect("connected");
        client.conn.request(ReqId(0), &get_request(RequestRange::Full));
        let events = client.run_until_ends(1);
        assert_eq!(
            last_error_kind(&events),
            Some(ConnErrorKind::Http1Required),
            "goes away: {sends_goaway}: {events:?}"
        );
    }
}

#[test]
fn after_goaway_unserved_requests_are_aborted_while_others_continue() {
    let mut client = TestClient::dial(serve_http2(|mut incoming| async move {
        let (_, mut answer) = incoming.accept().await.expect("a request").expect("a stream");
        incoming.graceful_shutdown();
        let mut body = answer.send_response(ok_response(), false).expect("sent");
        let slowly = async {
            for _ in 0..20 {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
                body.send_data(Bytes::from_static(b"x"), false).expect("sent");
            }
            body.send_data(Bytes::new(), true).expect("sent");
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = slowly => {}
            () = async { while incoming.accept().await.is_some() {} } => {}
        }
    }))
    .expect("connected");
    client.conn.request(ReqId(0), &get_request(RequestRange::Full));
    assert!(matches!(client.next_event(), Event::Head { req: ReqId(0), .. }));
    client.conn.accept(ReqId(0), None);
    assert!(matches!(client.next_event(), Event::Data { .. }));
    client.conn.request(ReqId(1), &get_request(RequestRange::Full));
    let events = client.run_until_ends(2);
    let events: Vec<_> = events.iter().filter(|event| !matches!(event, Event::Data { .. })).collect();
    let [Event::Aborted { req: ReqId(1), error: trouble }, Event::End { req: ReqId(0), .. }] = events[..] else {
        panic!("{events:?}");
    };
    assert_eq!(trouble.kind, ConnErrorKind::CleanClose);
}

#[test]
fn the_end_of_the_connection_within_a_body_is_a_truncation() {
    let mut client = TestClient::dial(serve_http2(|mut incoming| async move {
        let (_, mut answer) = incoming.accept().await.expect("a request").expect("a stream");
        let mut body = answer.send_response(ok_response(), false).expect("sent");
        body.send_data(Bytes::from_static(b"hello"), false).expect("sent");
        // Long enough to send the frames; then everything is dropped.
        let _ = tokio::time::timeout(std::time::Duration::from_millis(50), incoming.accept()).await;
    }))
    .expect("connected");
    client.conn.request(ReqId(0), &get_request(RequestRange::Full));
    let events = client.run_until_ends(2);
    assert_eq!(last_error_kind(&events), Some(ConnErrorKind::Truncated), "{events:?}");
}

#[test]
fn without_permission_to_read_the_windows_fill_and_reading_continues_later() {
    let identity = make_identity("localhost", None);
    let Some(nginx) = Nginx::start("", 4_000_000, Some(&identity)) else { return };
    let mut client = TestClient::dial(nginx.dial_tls("localhost", true)).expect("connected");
    (0..2).for_each(|n| client.conn.request(ReqId(n), &get_request(RequestRange::Full)));
    let Event::Head { req, .. } = client.next_event() else { panic!("no head") };
    client.conn.accept(req, None);
    assert!(client.is_pending(DataSize::ZERO) && client.bodies.0.is_empty());
    let Event::Data { len, .. } = client.next_event_within(DataSize::from_bytes(1)) else { panic!("no data") };
    assert!(len <= DataSize::from_kib(16), "{len:?}");
    client.run_until_ends(2);
    assert!(client.bodies.0.values().all(|body| *body == *nginx.data));
}

#[test]
fn a_body_without_a_length_ends_with_tcp_even_without_close_notify() {
    let identity = make_identity("localhost", None);
    let ca = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(ca.path(), &identity.ca_pem).expect("written");
    let tls = Some(tls_config(Some(ca.path()), false).expect("an authority"));
    for (answer, clean, kind, unconfirmed) in [
        (&b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nbody"[..], false, ConnErrorKind::CleanClose, Some(true)),
        (b"HTTP/1.0 200 OK\r\n\r\nbody", false, ConnErrorKind::CleanClose, Some(true)),
        (b"HTTP/1.0 200 OK\r\n\r\nbody", true, ConnErrorKind::CleanClose, Some(false)),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody", false, ConnErrorKind::CleanClose, Some(false)),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nbody", false, ConnErrorKind::Truncated, None),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n",
            false,
            ConnErrorKind::Truncated,
            None,
        ),
    ] {
        let mut config = acceptor(&identity);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let config = Arc::new(config);
        let address = crate::driver::serve_script(move |mut tcp| {
            let mut session = rustls::ServerConnection::new(config).expect("a session");
            let mut stream = rustls::Stream::new(&mut session, &mut tcp);
            let mut request = [0; 1024];
            let _ = std::io::Read::read(&mut stream, &mut request).expect("a request");
            std::io::Write::write_all(&mut stream, answer).expect("written");
            if clean {
                stream.conn.send_close_notify();
                std::io::Write::flush(&mut stream).expect("written");
            }
        });
        let mut client = TestClient::dial(DialRequest { tls: tls.clone(), ..dial_to(address) }).expect("connected");
        client.conn.request(ReqId(0), &get_request(RequestRange::Full));
        let events = client.run_until_ends(2);
        assert_eq!(last_error_kind(&events), Some(kind), "{events:?}");
        assert_eq!(client.bodies.0.remove(&0).expect("a body"), b"body");
        let end = events.iter().find_map(|event| match event {
            Event::End { unconfirmed, .. } => Some(*unconfirmed),
            _ => None,
        });
        assert_eq!(end, unconfirmed, "{events:?}");
    }
}
