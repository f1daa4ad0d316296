//! Impostors and connection floods: a relay in place of the service, and idle connections that take up the limits.

use marline_fleet::service::api_types::{AssignmentReply, HeartbeatReply};
use marline_fleet::tls::server_config;
use serde_json::Value;
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::*;

#[test]
fn a_relay_on_the_services_address_is_not_taken_for_the_service() {
    block_on(async {
        let service = TestService::start_default().await;
        let revoked = service.authority().crl_path();
        let revocations =
            marline_fleet::ca::RevocationFile::open(&revoked, service.authority().certificate()).unwrap();
        for (identity, is) in [("marline://relay/fra-1", false), ("marline://fleet/f2", true)] {
            let clients = ClientAuth { roles: vec![Role::Edge, Role::Relay], allow_unauthenticated: true };
            let credentials = service.member(identity);
            let config = server_config(&credentials, revocations.crl_der(), &clients, true).unwrap();
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let url = format!("https://{}", listener.local_addr().unwrap());
            let has_read = Arc::new(AtomicBool::new(false));
            let has_read_flag = Arc::clone(&has_read);
            tokio::spawn(async move {
                let acceptor = TlsAcceptor::from(Arc::new(config));
                while let Ok((socket, _)) = listener.accept().await {
                    let Ok(mut stream) = acceptor.accept(socket).await else { continue };
                    let mut byte = [0];
                    has_read_flag
                        .fetch_or(stream.read(&mut byte).await.is_ok_and(|count| count > 0), Ordering::SeqCst);
                }
            });
            let known = client_config(&service.member("marline://edge/cam-7"), None, true).unwrap();
            let pinned = marline_fleet::tls::first_contact_config(service.authority().fingerprint(), true).unwrap();
            for tls in [known, pinned] {
                let result = Client::new(&url, tls).unwrap().get::<Value>("/v1/health").await;
                let message = result.unwrap_err().to_string();
                assert_eq!(message.contains("the peer is marline://relay/fra-1"), !is, "{message}");
            }
            assert_eq!(has_read.load(Ordering::SeqCst), is, "{identity}: the peer has received data");
        }
    });
}

#[test]
fn each_member_learns_of_a_new_revocation_list_and_may_fetch_it() {
    block_on(async {
        let service = TestService::start_default().await;
        let mut edge = service.client("marline://edge/cam-7");
        let mut relay = service.client("marline://relay/fra-1");
        let report = report(assignment_request(5, &[]), None);
        let before: AssignmentReply = edge.post("/v1/edges/report", &report).await.unwrap();
        service.member("marline://edge/cam-8");
        service.authority().revoke_name(&"marline://edge/cam-8".parse().unwrap(), UtcSeconds::now()).unwrap();
        wait_until("the reply to the edge has the new number", async || {
            edge.post::<AssignmentReply>("/v1/edges/report", &report).await.unwrap().revocations
                > before.revocations
        })
        .await;
        let reply: HeartbeatReply =
            relay.post("/v1/relays/heartbeat", &heartbeat(100, StateVersion::default())).await.unwrap();
        assert_eq!(reply.revocations, before.revocations + 1);
        let file = std::fs::read_to_string(service.authority().crl_path()).unwrap();
        let plain = |text: &str| text.split_whitespace().collect::<String>();
        for mut client in [edge, relay] {
            assert_eq!(plain(&client.get_text("/v1/revoked").await.unwrap()), plain(&file));
        }
    });
}

/// An idle connection from this loopback address.
async fn idle_connection(service: &TestService, from: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(format!("{from}:0").parse().unwrap()).unwrap();
    socket.connect(service.address).await.unwrap()
}

async fn is_closed(stream: &mut TcpStream, wait: Duration) -> bool {
    matches!(tokio::time::timeout(wait, stream.read(&mut [0])).await, Ok(Ok(0) | Err(_)))
}

#[test]
fn idle_connections_without_a_certificate_prevent_no_enrolment() {
    block_on(async {
        let limits = Limits { max_anonymous: 2, ..Limits::default() };
        let service = TestService::with(limits, |path| Box::new(EmbeddedStore::open(path).unwrap())).await;
        let pinned = || marline_fleet::tls::first_contact_config(service.authority().fingerprint(), true).unwrap();
        let mut idle = Vec::new();
        for _ in 0..4 {
            let socket = idle_connection(&service, "127.0.0.2").await;
            let tls = tokio_rustls::TlsConnector::from(Arc::new(pinned()));
            idle.push(tls.connect("127.0.0.1".try_into().unwrap(), socket).await.unwrap());
        }
        let mut honest = Client::new(&service.url(), pinned()).unwrap();
        honest.get::<Value>("/v1/health").await.unwrap();
        // The oldest of the idle connections were evicted, and no more of them than necessary.
        let mut open = 0;
        for mut stream in idle {
            let ended = tokio::time::timeout(Duration::from_millis(300), stream.read(&mut [0])).await;
            open += usize::from(ended.is_err());
        }
        assert_eq!(open, 1);
    });
}

#[test]
fn a_connection_refused_at_the_limit_frees_its_handshake_slot() {
    block_on(async {
        let limits = Limits { max_connections: 3, max_handshakes: 3, ..Limits::default() };
        let service = TestService::with(limits, |path| Box::new(EmbeddedStore::open(path).unwrap())).await;
        let mut members: Vec<Client> = (0..3).map(|n| service.client(&format!("marline://relay/r{n}"))).collect();
        for member in &mut members {
            member.get::<Value>("/v1/health").await.unwrap();
        }
        let wait = Duration::from_secs(20);
        for from in ["127.0.0.2", "127.0.0.3"] {
            assert!(
                is_closed(&mut idle_connection(&service, from).await, wait).await,
                "{from}: refused at the limit of connections"
            );
        }
        drop(members);
        let mut one = service.client("marline://relay/r3");
        wait_until("a connection is accepted again", async || one.get::<Value>("/v1/health").await.is_ok()).await;
        drop(one);
        // Three at once, as the limit allows: none of them is evicted because of connections that have ended.
        let mut three = Vec::new();
        for _ in 0..3 {
            three.push(idle_connection(&service, "127.0.0.4").await);
        }
        for stream in &mut three {
            assert!(
                !is_closed(stream, Duration::from_millis(300)).await,
                "a slot is still in use by an ended connection"
            );
        }
    });
}

#[test]
fn a_relay_can_announce_only_hosts_for_which_its_certificate_is_valid() {
    block_on(async {
        let service = TestService::start_default().await;
        let mut relay = service.client("marline://relay/fra-1");
        let mut edge = service.client("marline://edge/cam-7");
        let good = || heartbeat(100, StateVersion::default());
        let evil = |server_name: &str, addresses: &[&str]| Heartbeat {
            server_name: server_name.parse().unwrap(),
            addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
            ..good()
        };
        for (heartbeat, host) in [
            (evil("evil.example", &["127.0.0.1:4443"]), "evil.example"),
            (evil("127.0.0.1", &["evil.example:443"]), "evil.example"),
            (evil("127.0.0.1", &["127.0.0.1:4443", "192.168.1.1:80"]), "192.168.1.1"),
            (evil("127.0.0.1", &["[::1]:4443"]), "::1"),
            (evil("127.0.0.1", &["127.0.0.2:4443"]), "127.0.0.2"),
        ] {
            let problem = expect_problem(relay.post::<HeartbeatReply>("/v1/relays/heartbeat", &heartbeat).await);
            assert!(problem.status == 403 && problem.detail.contains(host), "{problem:?}");
        }
        let offered: Value = edge.get("/v1/candidates?origin=live.example:1935").await.unwrap();
        assert_eq!(offered, serde_json::json!([]), "no refused heartbeat was stored");
        relay.post::<HeartbeatReply>("/v1/relays/heartbeat", &good()).await.unwrap();
        let other_port = evil("127.0.0.1", &["127.0.0.1:4443", "127.0.0.1:443"]);
        relay.post::<HeartbeatReply>("/v1/relays/heartbeat", &other_port).await.unwrap();
    });
}
