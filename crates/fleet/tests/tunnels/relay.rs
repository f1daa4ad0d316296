//! A relay over loopback: real sockets, real certificates, and edges of all kinds.
use std::time::Duration;

use marline_core::units::Bitrate;
use marline_fleet::ca::{Authority, Stamp};
use marline_fleet::relay::Limits;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::place::*;

#[test]
fn an_edges_bytes_go_there_and_come_back() {
    block_on(async {
        let (place, server) = (Place::open(Limits::default()).await, echo().await);
        let own = place.edge("cam-1");
        let mut edge = place.connect(&own).await.unwrap();
        // What is sent behind the request belongs to the tunnel.
        edge.write_all(format!("CONNECT {server} HTTP/1.1\r\n\r\nahead ").as_bytes()).await.unwrap();
        assert_eq!(answer(&mut edge).await, "HTTP/1.1 200 Connection established\r\n\r\n");
        let sent: Vec<u8> = (0..5_000_000_u32).map(|n| (n.wrapping_mul(7919) >> 7) as u8).collect();
        let (mut from, mut to) = tokio::io::split(edge);
        let mut heard = Vec::new();
        let write = async {
            to.write_all(&sent).await.unwrap();
            to.shutdown().await.unwrap();
        };
        let ((), read) = tokio::join!(write, from.read_to_end(&mut heard));
        read.unwrap();
        assert!(heard.strip_prefix(b"ahead ").unwrap() == sent);
        let state = place.relay.state();
        assert_eq!((state.up_bytes, state.down_bytes), (5_000_000, 5_000_006));
    });
}

#[test]
fn what_the_relay_will_not_do_is_said_and_the_connection_closed() {
    block_on(async {
        let (place, server) =
            (Place::open(Limits { tunnels_per_edge: 1, ..Limits::default() }).await, echo().await);
        let own = place.edge("cam-1");
        for (target, status, error) in [
            ("127.0.0.2:80", "403", "destination_ip_prohibited"),
            ("[::1]:80", "403", "destination_ip_prohibited"),
            ("169.254.169.254:80", "403", "destination_ip_prohibited"),
            ("127.0.0.1:1", "502", "connection_refused"),
            ("no-port", "400", "http_request_error"),
        ] {
            let (head, mut edge) = place.tunnel(&own, target).await;
            assert!(head.starts_with(&format!("HTTP/1.1 {status} ")) && head.contains(error), "{target}: {head}");
            let mut rest = Vec::new();
            timeout(Duration::from_secs(3), edge.read_to_end(&mut rest)).await.unwrap().unwrap();
        }
        let (_, _first) = place.tunnel(&own, &server.to_string()).await;
        let (head, _) = place.tunnel(&own, &server.to_string()).await;
        assert!(head.starts_with("HTTP/1.1 429 ") && head.contains("Retry-After"), "{head}");
    });
}

#[test]
fn nobody_is_carried_without_an_edges_certificate_of_this_authority() {
    block_on(async {
        let place = Place::open(Limits::default()).await;
        let other = Authority::init(&place.dir.path().join("other"), "other", Stamp::now()).unwrap();
        let stranger = member(&other, place.dir.path(), "marline://edge/cam-1", &[]);
        let relay = member(&place.authority, place.dir.path(), "marline://relay/r2", &["127.0.0.1"]);
        for own in [stranger, relay] {
            // With TLS 1.3 a client may learn of it with its first read.
            let said = async {
                let mut edge = place.connect(&own).await?;
                edge.write_all(b"CONNECT 127.0.0.1:1 HTTP/1.1\r\n\r\n").await?;
                edge.read_u8().await
            };
            assert!(timeout(Duration::from_secs(5), said).await.unwrap().is_err());
        }
        assert_eq!(place.relay.state().edges, []);
    });
}

#[test]
fn a_certificate_that_is_taken_back_ends_the_tunnel() {
    block_on(async {
        let (place, server) = (Place::open(Limits::default()).await, echo().await);
        let (good, bad) = (place.edge("good"), place.edge("bad"));
        let (_, mut stays) = place.tunnel(&good, &server.to_string()).await;
        let (_, mut goes) = place.tunnel(&bad, &server.to_string()).await;
        let mut warm = place.connect(&bad).await.unwrap();
        place.authority.revoke_name(&"marline://edge/bad".parse().unwrap(), Stamp::now()).unwrap();
        let mut byte = [0];
        assert!(timeout(Duration::from_secs(5), goes.read_exact(&mut byte)).await.unwrap().is_err());
        assert!(answer(&mut warm).await.contains("revoked"));
        stays.write_all(b"x").await.unwrap();
        timeout(Duration::from_secs(5), stays.read_exact(&mut byte)).await.unwrap().unwrap();
        let refused = async {
            let mut edge = place.connect(&bad).await?;
            edge.write_all(b"CONNECT 127.0.0.1:1 HTTP/1.1\r\n\r\n").await?;
            edge.read_u8().await
        };
        assert!(refused.await.is_err());
    });
}

#[test]
fn a_relay_that_drains_lets_the_old_ones_end() {
    block_on(async {
        let (place, server) = (Place::open(Limits::default()).await, echo().await);
        let own = place.edge("cam-1");
        let (_, mut old) = place.tunnel(&own, &server.to_string()).await;
        let mut warm = place.connect(&own).await.unwrap();
        // It is served from the moment at which the relay knows it.
        while place.relay.state().edges.first().is_none_or(|edge| edge.connections < 2) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        place.relay.drain();
        assert!(answer(&mut warm).await.contains("draining"));
        let (head, _) = place.tunnel(&own, &server.to_string()).await;
        assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
        assert!(timeout(Duration::from_millis(500), place.relay.empty()).await.is_err());
        old.write_all(b"still").await.unwrap();
        old.shutdown().await.unwrap();
        let mut heard = String::new();
        old.read_to_string(&mut heard).await.unwrap();
        assert_eq!(heard, "still");
        timeout(Duration::from_secs(5), place.relay.empty()).await.unwrap();
    });
}

#[test]
fn the_capacity_is_shared_and_never_exceeded() {
    block_on(async {
        let limits =
            Limits { capacity: Some(Bitrate::from_mbps(40)), reserve: Bitrate::from_mbps(5), ..Limits::default() };
        let (place, server) = (Place::open(limits).await, echo().await);
        let began = std::time::Instant::now();
        let mut sending = tokio::task::JoinSet::new();
        for name in ["a", "b"] {
            let (_, edge) = place.tunnel(&place.edge(name), &server.to_string()).await;
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
        // 5 MB at 40 Mbit/s: a second, less what credit there is at the start. How much longer is the machine's business.
        assert!(began.elapsed() > Duration::from_millis(850), "{:?}", began.elapsed());
        assert_eq!(place.relay.state().up_bytes, 5_000_000);
    });
}

#[test]
fn who_opens_many_and_says_nothing_keeps_nobody_out() {
    block_on(async {
        let (place, server) = (Place::open(Limits { handshakes: 50, ..Limits::default() }).await, echo().await);
        let mut silent = Vec::new();
        for _ in 0..300 {
            silent.push(TcpStream::connect(place.address).await.unwrap());
        }
        let own = place.edge("cam-1");
        let target = server.to_string();
        let tunnel = place.tunnel(&own, &target);
        let (head, _edge) = timeout(Duration::from_secs(5), tunnel).await.unwrap();
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    });
}

#[test]
fn a_head_that_never_ends_ends_the_connection() {
    block_on(async {
        let place = Place::open(Limits::default()).await;
        let own = place.edge("cam-1");
        let mut long = place.connect(&own).await.unwrap();
        let head = [b"CONNECT a:80 HTTP/1.1\r\nx: ".as_slice(), &[b'y'; 9000]].concat();
        long.write_all(&head).await.unwrap();
        assert!(answer(&mut long).await.starts_with("HTTP/1.1 431 "));
        let mut slow = place.connect(&own).await.unwrap();
        slow.write_all(b"CONNECT a:80").await.unwrap();
        assert!(answer(&mut slow).await.starts_with("HTTP/1.1 408 "));
    });
}

#[test]
fn those_who_are_told_no_and_stay_hold_few_descriptors() {
    block_on(async {
        let place = Place::open(Limits::default()).await;
        let (own, refused) = (place.edge("cam-1"), 60);
        let mut stay = Vec::new();
        for _ in 0..refused {
            let (head, edge) = place.tunnel(&own, "127.0.0.2:80").await;
            assert!(head.starts_with("HTTP/1.1 403 "), "{head}");
            stay.push(edge);
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
        let mut closed = 0;
        for edge in &mut stay {
            // What comes to a socket that is closed is answered with a reset, which the next write hears.
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
