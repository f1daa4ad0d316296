//! Clients without valid credentials, and clients that attack the relay.
use std::sync::Arc;
use std::time::Duration;

use marline_fleet::ca::{CertTemplate, MemberFiles, UtcSeconds};
use marline_fleet::relay::Limits;
use marline_fleet::tls::{Credentials, client_config};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::fixture::*;

/// Whether a relay serves a client with this TLS configuration.
async fn is_served(fixture: &TestRelay, tls: rustls::ClientConfig) -> bool {
    let exchange = async {
        let socket = TcpStream::connect(fixture.address).await?;
        let server = ServerName::try_from("127.0.0.1").unwrap();
        let mut edge = TlsConnector::from(Arc::new(tls)).connect(server, socket).await?;
        edge.write_all(b"CONNECT 127.0.0.1:1 HTTP/1.1\r\n\r\n").await?;
        // With TLS 1.3 a client may learn of a refused handshake only from its first read.
        edge.read_u8().await
    };
    timeout(Duration::from_secs(10), exchange).await.unwrap().is_ok()
}

#[test]
fn a_client_without_a_valid_certificate_is_refused() {
    block_on(async {
        let fixture = TestRelay::start(Limits::default()).await;
        let credentials = fixture.edge_credentials("cam-1");
        assert!(is_served(&fixture, client_config(&credentials, None, true).unwrap()).await);
        let mut roots = rustls::RootCertStore::empty();
        roots.add(credentials.authority().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let none =
            rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        assert!(!is_served(&fixture, none.with_root_certificates(roots).with_no_client_auth()).await);
        // A certificate with a validity of one hour, issued two hours ago.
        let template =
            CertTemplate::new("marline://edge/old".parse().unwrap(), Vec::new(), Duration::from_secs(3600))
                .unwrap();
        let then = UtcSeconds::now().saturating_sub(Duration::from_secs(7200));
        let (chain, key) = fixture.authority.issue_with_key(&template, then).unwrap();
        let dir = fixture.dir.path().join("old");
        std::fs::create_dir(&dir).unwrap();
        let files = MemberFiles::of(&dir, &"old".parse().unwrap()).unwrap();
        files.write(&chain, Some(&key)).unwrap();
        let old_credentials = Credentials::read(&files.certificate, &files.key, &files.authority).unwrap();
        assert!(!is_served(&fixture, client_config(&old_credentials, None, true).unwrap()).await);
        assert_eq!(fixture.relay.state().edges, []);
    });
}

#[test]
fn an_edge_is_identified_by_its_certificate_and_not_by_its_headers() {
    block_on(async {
        let (fixture, server) = (TestRelay::start(Limits::default()).await, echo_server().await);
        let mut edge = fixture.connect(&fixture.edge_credentials("a")).await.unwrap();
        let head = format!(
            "CONNECT {server} HTTP/1.1\r\nProxy-Authorization: Basic Yjpi\r\nFrom: b\r\nForwarded: for=b\r\n\r\n"
        );
        edge.write_all(head.as_bytes()).await.unwrap();
        assert!(read_response_head(&mut edge).await.starts_with("HTTP/1.1 200 "));
        let names: Vec<String> = fixture.relay.state().edges.into_iter().map(|edge| edge.name).collect();
        assert_eq!(names, ["a"]);
        // The certificate of B is public; without its private key it cannot be used.
        let (a, b) = (member_files(&fixture, "a2"), member_files(&fixture, "b2"));
        let mixed = Credentials::read(&b.certificate, &a.key, &b.authority);
        let refused = match mixed.map(|mixed| client_config(&mixed, None, true)) {
            Ok(Ok(tls)) => !is_served(&fixture, tls).await,
            _ => true,
        };
        assert!(refused);
    });
}

fn member_files(fixture: &TestRelay, name: &str) -> MemberFiles {
    let template =
        CertTemplate::new(format!("marline://edge/{name}").parse().unwrap(), Vec::new(), Duration::from_secs(3600))
            .unwrap();
    let (chain, key) = fixture.authority.issue_with_key(&template, UtcSeconds::now()).unwrap();
    let dir = fixture.dir.path().join(format!("files-{name}"));
    std::fs::create_dir(&dir).unwrap();
    let files = MemberFiles::of(&dir, &name.parse().unwrap()).unwrap();
    files.write(&chain, Some(&key)).unwrap();
    files
}

#[test]
fn local_addresses_are_refused_in_every_notation() {
    block_on(async {
        let fixture = TestRelay::with(Limits::default(), &[]).await;
        let server = echo_server().await.port();
        let credentials = fixture.edge_credentials("cam-1");
        for host in [
            "127.0.0.1",
            "localhost",
            "a.localhost",
            "LOCALHOST.",
            "[::1]",
            "[::ffff:127.0.0.1]",
            "[::127.0.0.1]",
            "[64:ff9b::7f00:1]",
            "[2002:7f00:1::]",
            "169.254.169.254",
            "[fd00:ec2::254]",
            "0.0.0.0",
            "[::]",
        ] {
            let (head, _) = fixture.tunnel(&credentials, &format!("{host}:{server}")).await;
            assert!(
                head.starts_with("HTTP/1.1 403 ") && head.contains("destination_ip_prohibited"),
                "{host}: {head}"
            );
            assert!(!head.to_lowercase().contains("loopback") && !head.contains(" is this relay"), "{head}");
        }
        for host in ["127.1", "0x7f000001", "2130706433", "0177.0.0.1"] {
            let (head, _) = fixture.tunnel(&credentials, &format!("{host}:{server}")).await;
            assert!(head.starts_with("HTTP/1.1 400 "), "{host}: {head}");
        }
    });
}

#[test]
fn ten_thousand_half_open_handshakes_prevent_no_tunnel() {
    if marline_net::rlimit::raise_nofile_limit() < 13_000 {
        eprintln!("skipped: needs 13,000 open files (ulimit -Hn)");
        return;
    }
    block_on(async {
        let (fixture, server) = (TestRelay::start(Limits::default()).await, echo_server().await);
        let mut idle = Vec::new();
        for n in 0..10_000_u32 {
            // Some send the beginning of a ClientHello, most send nothing.
            let mut socket = TcpStream::connect(fixture.address).await.unwrap();
            if n % 10 == 0 {
                let _ = socket.write_all(&[0x16, 3, 1, 2, 0]).await;
            }
            idle.push(socket);
        }
        let (credentials, target) = (fixture.edge_credentials("cam-1"), server.to_string());
        let (head, _edge) = timeout(Duration::from_secs(10), fixture.tunnel(&credentials, &target)).await.unwrap();
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    });
}
