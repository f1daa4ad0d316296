//! A relay over loopback, with real sockets and certificates, and with edges of all kinds.
use std::time::Duration;

use marline_core::units::Bitrate;
use marline_fleet::ca::{Authority, UtcSeconds};
use marline_fleet::relay::Limits;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::fixture::*;

#[test]
fn a_tunnel_carries_bytes_both_ways() {
    block_on(async {
        let (fixture, server) = (TestRelay::start(Limits::default()).await, echo_server().await);
        let credentials = fixture.edge_credentials("cam-1");
        let mut edge = fixture.connect(&credentials).await.unwrap();
        // Data behind the request belongs to the tunnel.
        edge.write_all(format!("CONNECT {server} HTTP/1.1\r\n\r\nahead ").as_bytes()).await.unwrap();
        assert_eq!(read_response_head(&mut edge).await, "HTTP/1.1 200 Connection established\r\n\r\n");
        let sent: Vec<u8> = (0..5_000_000_u32).map(|n| (n.wrapping_mul(7919) >> 7) as u8).collect();
        let (mut from, mut to) = tokio::io::split(edge);
        let mut received = Vec::new();
        let write = async {
            to.write_all(&sent).await.unwrap();
            to.shutdown().await.unwrap();
        };
        let ((), read) = tokio::join!(write, from.read_to_end(&mut received));
        read.unwrap();
        assert!(received.strip_prefix(b"ahead ").unwrap() == sent);
        let state = fixture.relay.state();
        assert_eq!((state.up_bytes, state.down_bytes), (5_000_000, 5_000_006));
    });
}

#[test]
fn a_refused_request_gets_a_response_and_the_connection_is_closed() {
    block_on(async {
        let (fixture, server) =
            (TestRelay::start(Limits { tunnels_per_edge: 1, ..Limits::default() }).await, echo_server().await);
        let credentials = fixture.edge_credentials("cam-1");
        for (target, status, error) in [
            ("127.0.0.2:80", "403", "destination_ip_prohibited"),
            ("[::1]:80", "403", "destination_ip_prohibited"),
            ("169.254.169.254:80", "403", "destination_ip_prohibited"),
            ("127.0.0.1:1", "502", "connection_refused"),
            ("no-port", "400", "http_request_error"),
        ] {
            let (head, mut edge) = fixture.tunnel(&credentials, target).await;
            assert!(head.starts_with(&format!("HTTP/1.1 {status} ")) && head.contains(error), "{target}: {head}");
            let mut remaining = Vec::new();
            timeout(Duration::from_secs(3), edge.read_to_end(&mut remaining)).await.unwrap().unwrap();
        }
        let (_, _first) = fixture.tunnel(&credentials, &server.to_string()).await;
        let (head, _) = fixture.tunnel(&credentials, &server.to_string()).await;
        assert!(head.starts_with("HTTP/1.1 429 ") && head.contains("Retry-After"), "{head}");
    });
}

#[test]
fn only_edges_with_a_certificate_of_this_authority_are_served() {
    block_on(async {
        let fixture = TestRelay::start(Limits::default()).await;
        let other = Authority::init(&fixture.dir.path().join("other"), "other", UtcSeconds::now()).unwrap();
        let foreign_edge = issue_member(&other, fixture.dir.path(), "marline://edge/cam-1", &[]);
        let relay = issue_member(&fixture.authority, fixture.dir.path(), "marline://relay/r2", &["127.0.0.1"]);
        for credentials in [foreign_edge, relay] {
            // With TLS 1.3 a client may learn of a refused handshake only from its first read.
            let message = async {
                let mut edge = fixture.connect(&credentials).await?;
                edge.write_all(b"CONNECT 127.0.0.1:1 HTTP/1.1\r\n\r\n").await?;
                edge.read_u8().await
            };
            assert!(timeout(Duration::from_secs(5), message).await.unwrap().is_err());
        }
        assert_eq!(fixture.relay.state().edges, []);
    });
}

#[test]
fn a_revoked_certificate_ends_the_tunnel() {
    block_on(async {
        let (fixture, server) = (TestRelay::start(Limits::default()).await, echo_server().await);
        let (good, bad) = (fixture.edge_credentials("good"), fixture.edge_credentials("bad"));
        let (_, mut good_tunnel) = fixture.tunnel(&good, &server.to_string()).await;
        let (_, mut bad_tunnel) = fixture.tunnel(&bad, &server.to_string()).await;
        let mut spare = fixture.connect(&bad).await.unwrap();
        fixture.authority.revoke_name(&"marline://edge/bad".parse().unwrap(), UtcSeconds::now()).unwrap();
        let mut byte = [0];
        assert!(timeout(Duration::from_secs(5), bad_tunnel.read_exact(&mut byte)).await.unwrap().is_err());
        assert!(read_response_head(&mut spare).await.contains("revoked"));
        good_tunnel.write_all(b"x").await.unwrap();
        timeout(Duration::from_secs(5), good_tunnel.read_exact(&mut byte)).await.unwrap().unwrap();
        let refused = async {
            let mut edge = fixture.connect(&bad).await?;
            edge.write_all(b"CONNECT 127.0.0.1:1 HTTP/1.1\r\n\r\n").await?;
            edge.read_u8().await
        };
        assert!(refused.await.is_err());
    });
}

#[test]
fn open_tunnels_continue_on_a_draining_relay() {
    block_on(async {
        let (fixture, server) = (TestRelay::start(Limits::default()).await, echo_server().await);
        let credentials = fixture.edge_credentials("cam-1");
        let (_, mut old_tunnel) = fixture.tunnel(&credentials, &server.to_string()).await;
        let mut spare = fixture.connect(&credentials).await.unwrap();
        // A drain affects the connection from the moment at which the relay has registered it.
        while fixture.relay.state().edges.first().is_none_or(|edge| edge.connections < 2) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        fixture.relay.drain();
        assert!(read_response_head(&mut spare).await.contains("draining"));
        let (head, _) = fixture.tunnel(&credentials, &server.to_string()).await;
        assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
        assert!(timeout(Duration::from_millis(500), fixture.relay.wait_until_idle()).await.is_err());
        old_tunnel.write_all(b"still").await.unwrap();
        old_tunnel.shutdown().await.unwrap();
        let mut received = String::new();
        old_tunnel.read_to_string(&mut received).await.unwrap();
        assert_eq!(received, "still");
        timeout(Duration::from_secs(5), fixture.relay.wait_until_idle()).await.unwrap();
    });
}

#[test]
fn the_capacity_is_shared_and_never_exceeded() {
    block_on(async {
        let limits = Limits {
            capacity: Some(Bitrate::from_mbps(40)),
            default_reservation: Bitrate::from_mbps(5),
            ..Limits::default()
        };
        let (fixture, server) = (TestRelay::start(limits).await, echo_server().await);
        let started_at = std::time::Instant::now();
        let mut sending = tokio::task::JoinSet::new();
        for name in ["a", "b"] {
            let (_, edge) = fixture.tunnel(&fixture.edge_credentials(name), &server.to_string()).await;
            sending.spawn(async move {
                let (mut from, mut to) = tokio::io::split(edge);
                let mut sink = vec![0; 65_536];
                let read =
                    tokio::spawn(async move { while from.read(&mut sink).await.is_ok_and(|len| len > 0) {} });
                to.write_all(&vec![7; 2_500_000]).await.unwrap();
                to.shutdown().await.unwrap();
                read.await.unwrap();
            });
        }
        sending.join_all().await;
        // 5 MB at 40 Mbit/s take one second, less the initial credit. There is no upper bound, because the machine may be busy.
        assert!(started_at.elapsed() > Duration::from_millis(850), "{:?}", started_at.elapsed());
        assert_eq!(fixture.relay.state().up_bytes, 5_000_000);
    });
}

#[test]
fn many_idle_connections_prevent_no_tunnel() {
    block_on(async {
        let (fixture, server) =
            (TestRelay::start(Limits { handshakes: 50, ..Limits::default() }).await, echo_server().await);
        let mut idle = Vec::new();
        for _ in 0..300 {
            idle.push(TcpStream::connect(fixture.address).await.unwrap());
        }
        let credentials = fixture.edge_credentials("cam-1");
        let target = server.to_string();
        let tunnel = fixture.tunnel(&credentials, &target);
        let (head, _edge) = timeout(Duration::from_secs(5), tunnel).await.unwrap();
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    });
}

#[test]
fn an_endless_request_head_ends_the_connection() {
    block_on(async {
        let fixture = TestRelay::start(Limits::default()).await;
        let credentials = fixture.edge_credentials("cam-1");
        let mut long = fixture.connect(&credentials).await.unwrap();
        let head = [b"CONNECT a:80 HTTP/1.1\r\nx: ".as_slice(), &[b'y'; 9000]].concat();
        long.write_all(&head).await.unwrap();
        assert!(read_response_head(&mut long).await.starts_with("HTTP/1.1 431 "));
        let mut slow = fixture.connect(&credentials).await.unwrap();
        slow.write_all(b"CONNECT a:80").await.unwrap();
        assert!(read_response_head(&mut slow).await.starts_with("HTTP/1.1 408 "));
    });
}

#[test]
fn refused_connections_that_stay_open_hold_few_descriptors() {
    block_on(async {
        let fixture = TestRelay::start(Limits::default()).await;
        let (credentials, refused) = (fixture.edge_credentials("cam-1"), 60);
        let mut open_edges = Vec::new();
        for _ in 0..refused {
            let (head, edge) = fixture.tunnel(&credentials, "127.0.0.2:80").await;
            assert!(head.starts_with("HTTP/1.1 403 "), "{head}");
            open_edges.push(edge);
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
        let mut closed = 0;
        for edge in &mut open_edges {
            // A closed socket responds to data with a reset, which the next write reports.
            let _ = edge.write_all(b"x").await;
            let _ = edge.flush().await;
            tokio::time::sleep(Duration::from_millis(5)).await;
            let again = async {
                edge.write_all(b"x").await?;
                edge.flush().await
            };
            closed += usize::from(again.await.is_err());
        }
        assert!(closed >= refused / 3, "{closed} of {refused} were closed");
    });
}
