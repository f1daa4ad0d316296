//! Several processes of the service that share a real Redis: each of them handles requests, one makes the assignments, and whichever
//! component is killed, no relay and no edge loses its assignment.

use marline_fleet::service::api_types::{AssignmentReply, HeartbeatReply, RelaySummary, ServiceStatus};
use marline_fleet::service::{DrainReply, DrainRequest, EnrolRequest};
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};

use super::redis_servers::*;
use super::*;

/// One process of the service.
pub(super) struct ServiceProcess {
    pub(super) url: String,
    coordinator: Arc<Coordinator>,
    running: Vec<JoinHandle<()>>,
}

impl ServiceProcess {
    pub(super) async fn start(service: &TestService, name: &str, store: Box<dyn Store>) -> Self {
        Self::with(service, service.authority(), name, store).await
    }

    async fn with(service: &TestService, authority: Authority, name: &str, store: Box<dyn Store>) -> Self {
        let credentials = service.member(&format!("marline://fleet/{name}"));
        let roles = vec![Role::Edge, Role::Relay, Role::Operator, Role::Fleet];
        let trust = TrustStore::with_clients(
            credentials,
            &authority.crl_path(),
            ClientAuth { roles, allow_unauthenticated: true },
        )
        .unwrap();
        let config = SchedulerConfig { window: Duration::from_millis(20), ..SchedulerConfig::default() };
        let coordinator =
            Coordinator::open(config, &name.parse().unwrap(), store, authority, trust.subscribe()).unwrap();
        let listen = ["127.0.0.1:0".parse().unwrap()];
        let listener = ApiListener::open(Arc::clone(&coordinator), &listen, Limits::default()).await.unwrap();
        let address = listener.addresses()[0];
        coordinator.set_address(&address.to_string().parse().unwrap());
        let running_coordinator = Arc::clone(&coordinator);
        let running = vec![
            tokio::spawn(async move { match running_coordinator.run().await {} }),
            tokio::spawn(async move { match trust.run().await {} }),
            tokio::spawn(async move { listener.serve(std::future::pending(), Duration::ZERO).await }),
        ];
        Self { url: format!("https://{address}"), coordinator, running }
    }

    pub(super) async fn wait_for_lead(self) -> Self {
        wait_until("the first process leads", async || self.coordinator.is_leader()).await;
        self
    }

    /// Stops the process as a kill would: without notice to others.
    async fn kill(self) {
        for task in self.running {
            task.abort();
            let _ = task.await;
        }
    }
}

/// Two processes, of which the first one leads.
pub(super) async fn two_processes(
    service: &TestService,
    mut store: impl FnMut() -> Box<dyn Store>,
) -> (ServiceProcess, ServiceProcess) {
    let first = ServiceProcess::start(service, "f1", store()).await.wait_for_lead().await;
    let second = ServiceProcess::start(service, "f2", store()).await;
    wait_for_known_leader(service, &second).await;
    (first, second)
}

pub(super) async fn wait_for_known_leader(service: &TestService, process: &ServiceProcess) {
    let mut ann = client_at(&process.url, &service.member("marline://operator/ann"));
    wait_until("it knows the leader", async || {
        let row: ServiceStatus = ann.get("/v1/service").await.unwrap();
        row.is_leader || row.leader_address.is_some_and(|address| !address.is_empty())
    })
    .await;
}

/// A relay, and an edge with an assignment to it, which report to these processes.
async fn relay_and_edge(
    service: &TestService,
    at_relay: &ServiceProcess,
    at_edge: &ServiceProcess,
) -> (Client, Client, CurrentAssignment) {
    let mut relay = client_at(&at_relay.url, &service.member("marline://relay/fra-1"));
    let mut edge = client_at(&at_edge.url, &service.member("marline://edge/cam-7"));
    relay.post::<Value>("/v1/relays/heartbeat", &heartbeat(100, StateVersion::default())).await.unwrap();
    let got: AssignmentReply =
        edge.post("/v1/edges/request", &assignment_request(5, &[("fra-1", 40)])).await.unwrap();
    let got = got.assignment.unwrap();
    (relay, edge, CurrentAssignment { relay: got.relay, reservation: got.reservation, version: got.version })
}

#[test]
fn any_process_handles_requests_and_one_makes_assignments() {
    block_on(async {
        let server = RedisServer::start(&[]);
        let service = TestService::not_started();
        let (first, second) = two_processes(&service, || server.store()).await;
        let (mut relay, mut edge, assignment) = relay_and_edge(&service, &second, &first).await;
        let assignment_reply: AssignmentReply = edge
            .post("/v1/edges/report", &report(assignment_request(5, &[("fra-1", 40)]), Some(assignment)))
            .await
            .unwrap();
        assert_eq!(assignment_reply.assignment.unwrap().reservation, mbps(40));
        let mut ann = client_at(&second.url, &service.member("marline://operator/ann"));
        let rows: Vec<RelaySummary> = ann.get("/v1/relays").await.unwrap();
        assert_eq!((rows.len(), rows[0].edges), (1, 1));
        // The list shows the expiry of the member's certificate, not that of the forwarding process.
        let (_, short) = service.aged_member("marline://relay/ams-1", Duration::ZERO);
        let mut other = client_at(&second.url, &short);
        other.post::<Value>("/v1/relays/heartbeat", &heartbeat(100, StateVersion::default())).await.unwrap();
        let rows: Vec<RelaySummary> = ann.get("/v1/relays").await.unwrap();
        assert_eq!(rows[0].certificate_not_after, Some(short.validity().unwrap().not_after.to_string()));
        let drain = DrainRequest { draining: true, duration_ms: None };
        let drained: DrainReply = ann.post("/v1/relays/fra-1/drain", &drain).await.unwrap();
        assert_eq!(drained, DrainReply { known: true, durable: true });
        let reply: HeartbeatReply =
            relay.post("/v1/relays/heartbeat", &heartbeat(100, StateVersion::default())).await.unwrap();
        assert!(reply.draining && reply.version.epoch == 1);
        // A refusal by the leader is passed on unchanged.
        let twice = assignment_request(5, &[("fra-1", 1), ("fra-1", 2)]);
        let mut other = client_at(&second.url, &service.member("marline://edge/cam-8"));
        assert_eq!(expect_problem(other.post::<Value>("/v1/edges/request", &twice).await).status, 422);
        let row: ServiceStatus = ann.get("/v1/service").await.unwrap();
        assert_eq!((row.is_leader, row.epoch, row.region.as_deref()), (false, Some(1), Some("test")));
        assert_eq!(Some(format!("https://{}", row.leader_address.unwrap())), Some(first.url.clone()));
        // Only a process of the service can act on behalf of a member.
        let url = first.url.trim_start_matches("https://").to_owned();
        let as_relay =
            forged_request(&url, &service.member("marline://edge/cam-8"), "marline://operator/ann").await;
        assert!(as_relay.starts_with("HTTP/1.1 403"), "{as_relay}");
        let as_fleet = forged_request(&url, &service.member("marline://fleet/f9"), "marline://operator/ann").await;
        assert!(as_fleet.starts_with("HTTP/1.1 200"), "{as_fleet}");
    });
}

/// The response to a request that claims to act on behalf of `member`.
async fn forged_request(address: &str, credentials: &Credentials, member: &str) -> String {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let tls = tokio_rustls::TlsConnector::from(Arc::new(client_config(credentials, None, true).unwrap()));
    let socket = TcpStream::connect(address).await.unwrap();
    let mut stream = tls.connect("127.0.0.1".try_into().unwrap(), socket).await.unwrap();
    let request =
        format!("GET /v1/edges HTTP/1.1\r\nhost: x\r\nmarline-for: {member}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut response = Vec::new();
    let _ = stream.read_to_end(&mut response).await;
    String::from_utf8_lossy(&response).into_owned()
}

#[test]
fn a_token_is_used_once_and_a_revocation_list_reaches_all_processes() {
    block_on(async {
        let server = RedisServer::start(&[]);
        let service = TestService::not_started();
        let copy = copy_of(&service);
        let first = ServiceProcess::start(&service, "f1", server.store()).await.wait_for_lead().await;
        let second = ServiceProcess::with(&service, Authority::open(&copy).unwrap(), "f2", server.store()).await;
        let template = CertTemplate::new("marline://edge/cam-9".parse().unwrap(), vec![], DAY).unwrap();
        let token =
            service.authority().create_token(&template, DAY, UtcSeconds::now()).unwrap().reveal().to_owned();
        let enrol = EnrolRequest { token, request: marline_fleet::ca::KeyWithRequest::generate().unwrap().request };
        let ann = service.member("marline://operator/ann");
        client_at(&second.url, &ann).post::<Value>("/v1/enrol", &enrol).await.unwrap();
        assert_eq!(
            expect_problem(client_at(&first.url, &ann).post::<Value>("/v1/enrol", &enrol).await).status,
            409
        );
        let mut cam = client_at(&second.url, &service.member("marline://edge/cam-7"));
        cam.get::<Value>("/v1/health").await.unwrap();
        service.authority().revoke_name(&"marline://edge/cam-7".parse().unwrap(), UtcSeconds::now()).unwrap();
        wait_until("the other machine has the revocation", async || cam.get::<Value>("/v1/health").await.is_err())
            .await;
        assert_eq!(
            std::fs::read(copy.join("revoked.pem")).unwrap(),
            std::fs::read(service.path("ca/revoked.pem")).unwrap()
        );
    });
}

#[test]
fn revocations_made_independently_on_two_machines_are_merged() {
    block_on(async {
        let server = RedisServer::start(&[]);
        let service = TestService::not_started();
        let members = ["marline://edge/cam-7", "marline://edge/cam-8"].map(|edge| service.member(edge));
        let copy = copy_of(&service);
        let first = ServiceProcess::start(&service, "f1", server.store()).await;
        let second = ServiceProcess::with(&service, Authority::open(&copy).unwrap(), "f2", server.store()).await;
        let copied_authority = Authority::open(&copy).unwrap();
        service.authority().revoke_name(&members[0].peer().unwrap().identity, UtcSeconds::now()).unwrap();
        copied_authority.revoke_name(&members[1].peer().unwrap().identity, UtcSeconds::now()).unwrap();
        for process in [&first, &second] {
            for credentials in &members {
                wait_until("both are refused everywhere", async || {
                    client_at(&process.url, credentials).get::<Value>("/v1/health").await.is_err()
                })
                .await;
            }
        }
        // A later revocation keeps both of them revoked.
        let third = service.member("marline://edge/cam-9");
        service.authority().revoke_name(&third.peer().unwrap().identity, UtcSeconds::now()).unwrap();
        wait_until("the third member is refused", async || {
            client_at(&second.url, &third).get::<Value>("/v1/health").await.is_err()
        })
        .await;
        for credentials in &members {
            assert!(client_at(&second.url, credentials).get::<Value>("/v1/health").await.is_err());
        }
    });
}

/// The directory of another machine, with a copy of the authority.
fn copy_of(service: &TestService) -> PathBuf {
    let copy = service.path("copy");
    std::fs::create_dir(&copy).unwrap();
    std::fs::set_permissions(&copy, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    for file in ["ca.key", "ca.pem", "issued.jsonl", "revoked.pem"] {
        std::fs::copy(service.path("ca").join(file), copy.join(file)).unwrap();
    }
    copy
}

#[test]
fn after_the_leader_is_killed_another_process_continues_with_its_state() {
    block_on(async {
        let server = RedisServer::start(&[]);
        let service = TestService::not_started();
        let (first, second) = two_processes(&service, || server.store()).await;
        let (mut relay, mut edge, initial) = relay_and_edge(&service, &second, &second).await;
        wait_until("both rows are written", async || server.query::<u64>(&["HLEN", "marline:{test}:members"]) == 2)
            .await;
        first.kill().await;
        // Heartbeats get replies throughout; other members keep their assignments meanwhile.
        wait_until("the second process leads", async || {
            relay.post::<Value>("/v1/relays/heartbeat", &heartbeat(100, initial.version)).await.unwrap();
            second.coordinator.is_leader()
        })
        .await;
        // Before any edge has reported to the new leader, another edge gets only the capacity that the first one leaves.
        let mut other = client_at(&second.url, &service.member("marline://edge/cam-8"));
        let got: AssignmentReply =
            other.post("/v1/edges/request", &assignment_request(5, &[("fra-1", 60)])).await.unwrap();
        assert_eq!(
            got.assignment.map(|got| got.reservation),
            Some(mbps(50)),
            "the first edge's 40 Mbit/s are reserved"
        );
        let assignment_reply: AssignmentReply = edge
            .post("/v1/edges/report", &report(assignment_request(5, &[("fra-1", 40)]), Some(initial.clone())))
            .await
            .unwrap();
        let assignment = assignment_reply.assignment.unwrap();
        assert_eq!(
            (assignment.relay, assignment.reservation, assignment.version),
            (initial.relay, initial.reservation, initial.version)
        );
        let reply: HeartbeatReply =
            relay.post("/v1/relays/heartbeat", &heartbeat(100, initial.version)).await.unwrap();
        assert_eq!((reply.version.epoch, reply.reservations.unwrap().len()), (2, 2));
    });
}

#[test]
fn the_service_recovers_from_a_store_that_comes_back_empty() {
    block_on(async {
        let mut server = RedisServer::start(&[]);
        let service = TestService::not_started();
        let (first, second) = two_processes(&service, || server.store()).await;
        let (mut relay, mut edge, initial) = relay_and_edge(&service, &first, &second).await;
        let mut ann = client_at(&first.url, &service.member("marline://operator/ann"));
        let drain = DrainRequest { draining: true, duration_ms: None };
        ann.post::<Value>("/v1/relays/nyc-1/drain", &drain).await.unwrap();
        let mut errors = first.coordinator.errors();
        server.kill();
        wait_until("no process leads", async || {
            let reply: HeartbeatReply =
                relay.post("/v1/relays/heartbeat", &heartbeat(100, initial.version)).await.unwrap();
            assert!(
                reply.version <= initial.version || reply.version.epoch == initial.version.epoch,
                "nothing has been decided since"
            );
            !first.coordinator.is_leader() && !second.coordinator.is_leader()
        })
        .await;
        assert!(errors.borrow_and_update().is_some(), "the error is reported");
        let problem =
            expect_problem(edge.post::<Value>("/v1/edges/request", &assignment_request(5, &[("fra-1", 40)])).await);
        assert_eq!((problem.status, problem.title.as_str()), (503, "not_leading"));
        let reply: HeartbeatReply =
            relay.post("/v1/relays/heartbeat", &heartbeat(100, initial.version)).await.unwrap();
        assert_eq!(reply.version.epoch, initial.version.epoch);
        server.restart();
        wait_until("a process leads", async || first.coordinator.is_leader() || second.coordinator.is_leader())
            .await;
        let leads = if first.coordinator.is_leader() { &first } else { &second };
        wait_for_known_leader(&service, &first).await;
        wait_for_known_leader(&service, &second).await;
        // Whichever process leads, and whatever state it has: each member has reported once.
        let mut relay = client_at(&leads.url, &service.member("marline://relay/fra-1"));
        let heartbeat = heartbeat(100, initial.version);
        wait_until("its epoch is later", async || {
            relay.post::<HeartbeatReply>("/v1/relays/heartbeat", &heartbeat).await.unwrap().version
                > initial.version
        })
        .await;
        let assignment_reply: AssignmentReply = edge
            .post("/v1/edges/report", &report(assignment_request(5, &[("fra-1", 40)]), Some(initial.clone())))
            .await
            .unwrap();
        let assignment = assignment_reply.assignment.unwrap();
        assert_eq!((assignment.relay, assignment.reservation), (initial.relay, initial.reservation));
        let reply: HeartbeatReply = relay.post("/v1/relays/heartbeat", &heartbeat).await.unwrap();
        assert_eq!(reply.reservations.unwrap()[0].reservation, mbps(40));
        // Only the first process has received the drain, so only it can write it again.
        let first_leads = first.coordinator.is_leader();
        wait_until("the drain is written again", async || {
            !first_leads
                || server.try_query::<bool>(&["HEXISTS", "marline:{test}:said", "drain/nyc-1"]).unwrap_or(false)
        })
        .await;
        wait_until("the error has ended", async || {
            [&first, &second].iter().all(|process| process.coordinator.errors().borrow().is_none())
        })
        .await;
    });
}

#[test]
fn a_full_shared_store_stops_no_member() {
    block_on(async {
        let server = RedisServer::start(&["--maxmemory-policy", "noeviction"]);
        let service = TestService::not_started();
        let (first, second) = two_processes(&service, || server.store()).await;
        server.query::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
        let (_relay, _edge, assignment) = relay_and_edge(&service, &first, &second).await;
        assert_eq!(assignment.reservation, mbps(40));
        let mut ann = client_at(&second.url, &service.member("marline://operator/ann"));
        let drain = DrainRequest { draining: true, duration_ms: None };
        let drained: DrainReply = ann.post("/v1/relays/fra-1/drain", &drain).await.unwrap();
        assert_eq!(drained, DrainReply { known: true, durable: false });
        wait_until("the error is reported", async || first.coordinator.errors().borrow().is_some()).await;
        server.query::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
        wait_until("rows are written after all", async || {
            server.query::<u64>(&["HLEN", "marline:{test}:members"]) == 2
        })
        .await;
        wait_until("the error has ended", async || first.coordinator.errors().borrow().is_none()).await;
        assert!(first.coordinator.is_leader());
    });
}

/// A proxy in front of the store that can be cut off without closing connections.
struct StoreProxy {
    port: u16,
    is_open: tokio::sync::watch::Sender<bool>,
}

async fn proxy_to(port: u16) -> StoreProxy {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy =
        StoreProxy { port: listener.local_addr().unwrap().port(), is_open: tokio::sync::watch::Sender::new(true) };
    let open = proxy.is_open.subscribe();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let mut open = open.clone();
            tokio::spawn(async move {
                let upstream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                let (client, upstream) = (client.into_split(), upstream.into_split());
                tokio::select! {
                    () = copy_while_open(client.0, upstream.1, open.clone()) => {}
                    () = copy_while_open(upstream.0, client.1, open.clone()) => {}
                }
                // Keep both connections open while the proxy is cut off.
                let _ = open.wait_for(|open| *open).await;
            });
        }
    });
    proxy
}

async fn copy_while_open(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    mut open: tokio::sync::watch::Receiver<bool>,
) {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let _ = open.wait_for(|open| *open).await;
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}

#[test]
fn a_leader_cut_off_from_the_store_steps_down_before_another_leads() {
    let server = RedisServer::start(&[]);
    block_on(async {
        let service = TestService::not_started();
        let proxy = proxy_to(server.port).await;
        let mut first = Some(store_behind(&proxy));
        let (first, second) = two_processes(&service, || first.take().unwrap_or_else(|| server.store())).await;
        let (mut relay, _, assignment) = relay_and_edge(&service, &first, &first).await;
        wait_until("both rows are written", async || server.query::<u64>(&["HLEN", "marline:{test}:members"]) == 2)
            .await;
        proxy.is_open.send_replace(false);
        wait_until("the other process leads", async || {
            // The old leader is checked first: its state only changes from leader to follower.
            let (was, is) = (first.coordinator.is_leader(), second.coordinator.is_leader());
            assert!(!(was && is), "both processes lead");
            is
        })
        .await;
        // It still replies to relays, but with nothing newer.
        let reply: HeartbeatReply =
            relay.post("/v1/relays/heartbeat", &heartbeat(100, assignment.version)).await.unwrap();
        assert!(reply.version.epoch <= assignment.version.epoch);
        proxy.is_open.send_replace(true);
        let mut ann = client_at(&first.url, &service.member("marline://operator/ann"));
        wait_until("it knows the leader", async || {
            ann.get::<ServiceStatus>("/v1/service").await.unwrap().epoch == Some(2)
        })
        .await;
        wait_until("it forwards to the leader", async || {
            let reply: HeartbeatReply =
                relay.post("/v1/relays/heartbeat", &heartbeat(100, assignment.version)).await.unwrap();
            reply.version.epoch == 2 && reply.reservations.is_some_and(|edges| edges.len() == 1)
        })
        .await;
        assert!(!first.coordinator.is_leader() && second.coordinator.is_leader());
    });
}

fn store_behind(proxy: &StoreProxy) -> Box<dyn Store> {
    store_at(&format!("redis://127.0.0.1:{}", proxy.port))
}

#[test]
fn two_leaders_for_a_moment_do_no_harm() {
    block_on(async {
        let server = RedisServer::start(&[]);
        let service = TestService::not_started();
        let (first, second) = two_processes(&service, || server.store()).await;
        let (mut at_first, _, assignment) = relay_and_edge(&service, &first, &first).await;
        let mut at_second = client_at(&second.url, &service.member("marline://relay/fra-1"));
        // The Redis primary fails with its latest writes lost, and its replica grants the lease to another process in the same epoch.
        for _ in 0..3 {
            server.query::<()>(&["FLUSHALL"]);
            tokio::time::sleep(Duration::from_millis(1200)).await;
        }
        // A relay that receives replies from both applies only newer ones. In the end both processes agree on a leader.
        let mut seen_version = assignment.version;
        wait_until("one process leads and both give the same version", async || {
            for client in [&mut at_first, &mut at_second] {
                let reply: HeartbeatReply =
                    client.post("/v1/relays/heartbeat", &heartbeat(100, seen_version)).await.unwrap();
                seen_version = seen_version.max(reply.version);
            }
            let reply: HeartbeatReply =
                at_first.post("/v1/relays/heartbeat", &heartbeat(100, seen_version)).await.unwrap();
            let other: HeartbeatReply =
                at_second.post("/v1/relays/heartbeat", &heartbeat(100, seen_version)).await.unwrap();
            first.coordinator.is_leader() != second.coordinator.is_leader()
                && reply.version == other.version
                && reply.version >= seen_version
        })
        .await;
    });
}

#[test]
fn a_killed_redis_primary_costs_no_assignment() {
    block_on(async {
        let mut cluster = RedisCluster::start();
        let service = TestService::not_started();
        let (first, second) = two_processes(&service, || store_at(&cluster.url())).await;
        let (mut relay, mut edge, initial) = relay_and_edge(&service, &first, &second).await;
        let primary = cluster.primary_of_test();
        cluster.0[primary].kill();
        let mut ann = client_at(&second.url, &service.member("marline://operator/ann"));
        let drain = DrainRequest { draining: true, duration_ms: None };
        wait_until("the replica stores the drain", async || {
            relay.post::<Value>("/v1/relays/heartbeat", &heartbeat(100, initial.version)).await.unwrap();
            let drained = ann.post::<DrainReply>("/v1/relays/nyc-1/drain", &drain).await;
            drained.is_ok_and(|drained| drained.durable)
        })
        .await;
        wait_until("a process leads", async || first.coordinator.is_leader() || second.coordinator.is_leader())
            .await;
        let report = report(assignment_request(5, &[("fra-1", 40)]), Some(initial.clone()));
        let mut reply = None;
        wait_until("the edge gets a reply", async || {
            reply = edge.post::<AssignmentReply>("/v1/edges/report", &report).await.ok();
            reply.is_some()
        })
        .await;
        let assignment = reply.unwrap().assignment.unwrap();
        assert_eq!((assignment.relay, assignment.reservation), (initial.relay, initial.reservation));
    });
}

#[test]
fn an_invalid_epoch_is_reported_until_it_is_repaired() {
    block_on(async {
        let server = RedisServer::start(&[]);
        let service = TestService::not_started();
        let process = ServiceProcess::start(&service, "f1", server.store()).await.wait_for_lead().await;
        let mut ann = client_at(&process.url, &service.member("marline://operator/ann"));
        let (mut relay, _, assignment) = relay_and_edge(&service, &process, &process).await;
        let mut seen_version = assignment.version;
        let keys = ["marline:{test}:epoch", "marline:{test}:lead"];
        for (index, value) in
            ["text", "1e300", "18446744073709551615", "9007199254740992", "-1", " 7", "0x10", ""].iter().enumerate()
        {
            // Without a leader's lease the next bid reads the epoch.
            server.query::<()>(&["DEL", keys[1]]);
            server.query::<()>(&["SET", keys[0], value]);
            let mut row = None;
            wait_until("the error is reported", async || {
                let now: ServiceStatus = ann.get("/v1/service").await.unwrap();
                let is_reported = now.error.as_ref().is_some_and(|trouble| trouble.contains(keys[0]));
                row = Some(now);
                is_reported
            })
            .await;
            let error = row.unwrap().error.unwrap();
            assert!(error.contains(&format!("`{value}`")) && error.contains("redis-cli DEL"), "{error}");
            // The error stays while other calls to the store succeed.
            for _ in 0..if index == 0 { 25 } else { 3 } {
                tokio::time::sleep(Duration::from_millis(100)).await;
                let now: ServiceStatus = ann.get("/v1/service").await.unwrap();
                assert!(now.error.is_some(), "{value}");
            }
            server.query::<()>(&["DEL", keys[0]]);
            wait_until("it leads again", async || {
                let now: ServiceStatus = ann.get("/v1/service").await.unwrap();
                now.is_leader && now.error.is_none()
            })
            .await;
            // The relay receives newer versions only: no epoch is reused.
            wait_until("the relay receives a newer version", async || {
                let reply: HeartbeatReply =
                    relay.post("/v1/relays/heartbeat", &heartbeat(100, seen_version)).await.unwrap();
                let is_newer = reply.version > seen_version;
                seen_version = seen_version.max(reply.version);
                is_newer
            })
            .await;
        }
        // Another process's lease with an invalid epoch and an invalid address.
        server.query::<()>(&["HSET", keys[1], "holder", "other", "epoch", "1e300", "place", "x\r\n\u{1b}[2J"]);
        wait_until("the error is reported", async || {
            let now: ServiceStatus = ann.get("/v1/service").await.unwrap();
            now.error.is_some_and(|trouble| trouble.contains(keys[1]))
        })
        .await;
    });
}
