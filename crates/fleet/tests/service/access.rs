//! Access control of the API: which callers are admitted, what each role may do, and which requests are refused.

use std::os::unix::fs::PermissionsExt as _;

use marline_fleet::ca::KeyWithRequest;
use marline_fleet::service::api_types::{AssignmentReply, HeartbeatReply, RelaySummary};
use marline_fleet::service::{DrainReply, DrainRequest, EnrolReply, EnrolRequest, MAX_BODY};
use marline_fleet::tls::first_contact_config;
use rustls::pki_types::ServerName;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::*;

impl TestService {
    fn anonymous_client(&self) -> Client {
        let config = first_contact_config(self.authority().fingerprint(), true).unwrap();
        Client::new(&self.url(), config).unwrap()
    }

    async fn tls_stream(&self, config: rustls::ClientConfig) -> TlsStream<TcpStream> {
        let socket = TcpStream::connect(self.address).await.unwrap();
        let name = ServerName::try_from("127.0.0.1").unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, socket).await.unwrap()
    }

    fn token(&self, identity: &str, valid: Duration) -> String {
        let template = CertTemplate::new(identity.parse().unwrap(), vec![], DAY).unwrap();
        self.authority().create_token(&template, valid, UtcSeconds::now()).unwrap().reveal().to_owned()
    }
}

/// Reads until the peer closes the connection.
async fn read_to_close(stream: &mut TlsStream<TcpStream>) -> String {
    let mut all = Vec::new();
    // After a reset, the data received before it is still returned.
    let _ =
        timeout(Duration::from_secs(10), stream.read_to_end(&mut all)).await.expect("the connection is not closed");
    String::from_utf8_lossy(&all).into_owned()
}

#[test]
fn edges_relays_and_operators_use_the_api() {
    block_on(async {
        let service = TestService::start_default().await;
        let mut relay = service.client("marline://relay/fra-1");
        let mut edge = service.client("marline://edge/cam-7");
        let reply: HeartbeatReply =
            relay.post("/v1/relays/heartbeat", &heartbeat(100, StateVersion::default())).await.unwrap();
        assert_eq!(
            (reply.version.epoch, reply.heartbeat_ms, reply.revocations, reply.draining),
            (1, 5000, 1, false)
        );
        let candidates: Value =
            edge.get("/v1/candidates?latitude=50.1&longitude=8.7&origin=a.example%3A80").await.unwrap();
        assert_eq!(
            (candidates[0]["relay"].as_str(), candidates[0]["free_bps"].as_u64()),
            (Some("fra-1"), Some(100_000_000))
        );
        let got: AssignmentReply =
            edge.post("/v1/edges/request", &assignment_request(5, &[("fra-1", 40)])).await.unwrap();
        let assignment = got.assignment.unwrap();
        assert_eq!((assignment.relay.as_str(), assignment.reservation), ("fra-1", mbps(40)));
        assert_eq!(assignment.addresses[0].to_string(), "127.0.0.1:4443");
        let reply: HeartbeatReply =
            relay.post("/v1/relays/heartbeat", &heartbeat(100, reply.version)).await.unwrap();
        let reserved = reply.reservations.unwrap();
        assert_eq!((reserved[0].edge.as_str(), reserved[0].reservation), ("cam-7", mbps(40)));
        let reply: AssignmentReply =
            edge.post("/v1/edges/report", &report(assignment_request(5, &[("fra-1", 40)]), None)).await.unwrap();
        assert_eq!(reply.assignment.unwrap().version, assignment.version);
        let mut ann = service.client("marline://operator/ann");
        let rows: Vec<RelaySummary> = ann.get("/v1/relays").await.unwrap();
        assert_eq!((rows[0].edges, rows[0].free, rows[0].healthy), (1, mbps(60), true));
        let ends: UtcSeconds = rows[0].certificate_not_after.as_ref().unwrap().parse().unwrap();
        assert!(ends > UtcSeconds::now() && ends <= UtcSeconds::now().saturating_add(DAY), "{ends}");
        let edges: Value = ann.get("/v1/edges").await.unwrap();
        assert_eq!((edges[0]["name"].as_str(), edges[0]["relay"].as_str()), (Some("cam-7"), Some("fra-1")));
        let released: AssignmentReply = edge.post("/v1/edges/release", &json!({})).await.unwrap();
        assert_eq!(released.assignment, None);
        let drain = DrainRequest { draining: true, duration_ms: None };
        let drained: DrainReply = ann.post("/v1/relays/fra-1/drain", &drain).await.unwrap();
        assert_eq!(drained, DrainReply { known: true, durable: true });
        let candidates: Value = edge.get("/v1/candidates").await.unwrap();
        assert_eq!(candidates, json!([]));
    });
}

#[test]
fn a_client_without_a_certificate_may_enrol_and_read_the_public_paths() {
    block_on(async {
        let service = TestService::start_default().await;
        let mut anonymous = service.anonymous_client();
        assert_eq!(anonymous.get::<Value>("/v1/health").await.unwrap(), json!({"status": "ok"}));
        let described: Value = anonymous.get("/v1/openapi.json").await.unwrap();
        assert!(described["paths"]["/v1/enrol"].is_object());
        for path in ["/v1/relays", "/v1/edges", "/v1/candidates", "/v1/revoked"] {
            let problem = expect_problem(service.anonymous_client().get::<Value>(path).await);
            assert_eq!((problem.status, problem.title.as_str()), (403, "not_allowed"), "{path}");
        }
        let new = KeyWithRequest::generate().unwrap();
        let token = service.token("marline://edge/cam-9", DAY);
        let enrol = EnrolRequest { token: token.clone(), request: new.request.clone() };
        let enrolled: EnrolReply = service.anonymous_client().post("/v1/enrol", &enrol).await.unwrap();
        assert_eq!(enrolled.certificate.matches("BEGIN CERTIFICATE").count(), 2);
        // The new certificate gives access.
        std::fs::write(service.path("e.pem"), &enrolled.certificate).unwrap();
        std::fs::write(service.path("e.key"), new.key.reveal()).unwrap();
        std::fs::set_permissions(service.path("e.key"), std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::write(service.path("e.ca"), &enrolled.authority).unwrap();
        let credentials =
            Credentials::read(&service.path("e.pem"), &service.path("e.key"), &service.path("e.ca")).unwrap();
        service.client_of(&credentials).get::<Value>("/v1/candidates").await.unwrap();
        // The token cannot be used again.
        let used = expect_problem(service.anonymous_client().post::<Value>("/v1/enrol", &enrol).await);
        assert_eq!((used.status, used.title.as_str()), (409, "used"));
        for (token, status) in [
            ("mlt1.x.y".to_owned(), 400),
            (service.token("marline://edge/late", Duration::ZERO).replace("mlt1.", "mlt1.A"), 400),
            (TestService::start_default().await.token("marline://edge/other", DAY), 403),
        ] {
            let problem = expect_problem(
                service
                    .anonymous_client()
                    .post::<Value>("/v1/enrol", &EnrolRequest { token, ..enrol.clone() })
                    .await,
            );
            assert_eq!(problem.status, status, "{problem}");
        }
    });
}

#[test]
fn each_role_may_call_only_its_own_paths() {
    block_on(async {
        let service = TestService::start_default().await;
        let mut edge = service.client("marline://edge/cam-7");
        let problem = expect_problem(
            edge.post::<Value>("/v1/relays/heartbeat", &heartbeat(100, StateVersion::default())).await,
        );
        assert_eq!(problem.detail, "marline://edge/cam-7: only the role relay may call this");
        assert_eq!(expect_problem(edge.get::<Value>("/v1/relays").await).status, 403);
        let drain = DrainRequest { draining: true, duration_ms: None };
        let mut relay = service.client("marline://relay/fra-1");
        assert_eq!(expect_problem(relay.post::<Value>("/v1/relays/fra-1/drain", &drain).await).status, 403);
        assert_eq!(
            expect_problem(relay.post::<Value>("/v1/edges/request", &assignment_request(1, &[])).await).status,
            403
        );
        assert_eq!(expect_problem(relay.get::<Value>("/v1/nothing").await).status, 404);
        assert_eq!(expect_problem(relay.get::<Value>("/v1/relays/heartbeat").await).status, 405);
        // A certificate with the role `fleet` is not accepted from clients of a service with an unshared store.
        assert!(service.client("marline://fleet/f2").get::<Value>("/v1/health").await.is_err());
    });
}

#[test]
fn a_name_in_a_body_is_rejected() {
    block_on(async {
        let service = TestService::start_default().await;
        let mut edge = service.client("marline://edge/cam-7");
        let mut request = serde_json::to_value(assignment_request(1, &[])).unwrap();
        request["edge"] = json!("cam-8");
        let problem = expect_problem(edge.post::<Value>("/v1/edges/request", &request).await);
        assert!(problem.status == 400 && problem.detail.contains("unknown field `edge`"), "{problem}");
    });
}

#[test]
fn revocation_takes_effect_on_open_connections() {
    block_on(async {
        let service = TestService::start_default().await;
        let credentials = service.member("marline://relay/fra-1");
        let mut relay = service.client_of(&credentials);
        relay.post::<Value>("/v1/relays/heartbeat", &heartbeat(100, StateVersion::default())).await.unwrap();
        service.authority().revoke_name(&credentials.peer().unwrap().identity, UtcSeconds::now()).unwrap();
        tokio::time::sleep(Duration::from_millis(1500)).await;
        let problem = expect_problem(
            relay.post::<Value>("/v1/relays/heartbeat", &heartbeat(100, StateVersion::default())).await,
        );
        assert!(problem.detail.contains("has been revoked"), "{problem}");
        assert!(relay.get::<Value>("/v1/health").await.is_err(), "a new connection is refused as well");
        // Other members learn of the new list from their replies, and can fetch it.
        let mut other = service.client("marline://relay/ams-1");
        let reply: HeartbeatReply =
            other.post("/v1/relays/heartbeat", &heartbeat(100, StateVersion::default())).await.unwrap();
        assert_eq!(reply.revocations, 2);
    });
}

#[test]
fn the_revocation_list_is_the_authoritys_file() {
    block_on(async {
        let service = TestService::start_default().await;
        let credentials = service.member("marline://edge/cam-7");
        let mut stream = service.tls_stream(client_config(&credentials, None, true).unwrap()).await;
        stream.write_all(b"GET /v1/revoked HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await.unwrap();
        let text = read_to_close(&mut stream).await;
        let file = std::fs::read_to_string(service.authority().crl_path()).unwrap();
        let plain = |text: &str| text.split_whitespace().collect::<String>();
        assert!(plain(&text).ends_with(&plain(&file)), "{text}");
    });
}

#[test]
fn oversized_slow_and_empty_requests_are_refused() {
    block_on(async {
        let short = Duration::from_millis(300);
        let limits = Limits {
            body_timeout: short,
            idle_timeout: short * 2,
            anonymous_timeout: short * 4,
            ..Limits::default()
        };
        let service = TestService::with(limits, |path| Box::new(EmbeddedStore::open(path).unwrap())).await;
        let credentials = service.member("marline://edge/cam-7");
        let raw = async || service.tls_stream(client_config(&credentials, None, true).unwrap()).await;
        let head = |length: usize, kind: &str| {
            format!(
                "POST /v1/edges/report HTTP/1.1\r\nhost: a\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n"
            )
        };
        let json = "application/json";
        for (length, kind, body, status) in [
            (MAX_BODY + 1, json, "", "413"),
            (10, json, "{\"a\"", "408"),
            (2, json, "no", "400"),
            (2, "text/plain", "{}", "415"),
        ] {
            let mut stream = raw().await;
            stream.write_all((head(length, kind) + body).as_bytes()).await.unwrap();
            let text = read_to_close(&mut stream).await;
            assert!(text.starts_with(&format!("HTTP/1.1 {status}")), "{text}");
            assert!(text.contains("application/problem+json"), "{text}");
        }
        // A chunked body, whose size is not declared in advance.
        let mut stream = raw().await;
        let chunked = head(0, json).replace("content-length: 0", "transfer-encoding: chunked");
        stream.write_all(chunked.as_bytes()).await.unwrap();
        for _ in 0..5 {
            let piece = [b"4000\r\n".as_slice(), &[b' '; 0x4000], b"\r\n"].concat();
            // The server may refuse the body before the last chunk is sent.
            let _ = stream.write_all(&piece).await;
        }
        let text = read_to_close(&mut stream).await;
        assert!(text.starts_with("HTTP/1.1 413"), "{text}");
        // A head that arrives byte by byte, and a connection without any request.
        for config in [
            client_config(&credentials, None, true).unwrap(),
            first_contact_config(service.authority().fingerprint(), true).unwrap(),
        ] {
            let mut slow = service.tls_stream(config.clone()).await;
            let mut idle_stream = service.tls_stream(config).await;
            let drip = async {
                for byte in b"GET /v1/health HTTP/1.1\r\nx: ".iter().chain([b'a'; 200].iter()) {
                    if slow.write_all(&[*byte]).await.is_err() {
                        break;
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            };
            let dripped = timeout(Duration::from_secs(4), drip);
            let (_, text) = tokio::join!(dripped, read_to_close(&mut idle_stream));
            assert!(!text.contains("200 OK"), "{text}");
            assert!(!read_to_close(&mut slow).await.contains("200 OK"));
        }
        service.client_of(&credentials).get::<Value>("/v1/health").await.unwrap();
    });
}

#[test]
fn the_number_of_connections_of_a_member_is_limited() {
    block_on(async {
        let limits = Limits { connections_per_member: 2, ..Limits::default() };
        let service = TestService::with(limits, |path| Box::new(EmbeddedStore::open(path).unwrap())).await;
        let credentials = service.member("marline://edge/cam-7");
        let (mut one, mut two, mut three) =
            (service.client_of(&credentials), service.client_of(&credentials), service.client_of(&credentials));
        one.get::<Value>("/v1/health").await.unwrap();
        two.get::<Value>("/v1/health").await.unwrap();
        assert!(three.get::<Value>("/v1/health").await.is_err());
        service.client("marline://edge/cam-8").get::<Value>("/v1/health").await.unwrap();
        drop(one);
        tokio::time::sleep(Duration::from_millis(100)).await;
        three.get::<Value>("/v1/health").await.unwrap();
    });
}
