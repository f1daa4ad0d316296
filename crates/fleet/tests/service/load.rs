//! Measures how many heartbeats per second one core can process: a process with an unshared store, the leader with a shared Redis, and
//! another process that forwards to it. `cargo test --release -p marline-fleet --test service heartbeats -- --ignored --nocapture`.

use std::time::Instant;

use serde_json::Value;

use super::leader_failover::two_processes;
use super::redis_servers::RedisServer;
use super::*;

const RELAYS: usize = 64;
const HEARTBEATS: usize = 2000;

#[test]
#[ignore = "a measurement, of an optimised build: cargo test --release -p marline-fleet --test service heartbeats -- --ignored --nocapture"]
fn heartbeats_of_one_core() {
    measure("unshared store", async |service: &mut TestService| {
        service.start(Limits::default(), |path| Box::new(EmbeddedStore::open(path).unwrap())).await;
        service.url()
    });
    let server = RedisServer::start(&[]);
    let port = server.port;
    let store = move || redis_servers::store_at(&format!("redis://127.0.0.1:{port}"));
    measure("Redis, sent to the leader", async move |service: &mut TestService| {
        let (first, _) = two_processes(service, store).await;
        first.url
    });
    server.query::<()>(&["FLUSHALL"]);
    measure("Redis, sent to a follower on the same core", async move |service: &mut TestService| {
        let (_, second) = two_processes(service, store).await;
        second.url
    });
}

fn measure(description: &str, start: impl AsyncFnOnce(&mut TestService) -> String + Send + 'static) {
    let (tx, rx) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        block_on(async {
            let mut service = TestService::not_started();
            let url = start(&mut service).await;
            let credentials: Vec<Credentials> =
                (0..RELAYS).map(|n| service.member(&format!("marline://relay/r{n}"))).collect();
            tx.send((url, credentials)).unwrap();
            std::future::pending::<()>().await;
        });
    });
    let (url, credentials) = rx.recv().unwrap();
    let mut times = block_on(send_heartbeats(&url, credentials));
    let rate = times.0.len() as f64 / times.1.as_secs_f64();
    times.0.sort_unstable();
    let at = |share: f64| times.0[((times.0.len() - 1) as f64 * share) as usize];
    println!(
        "{description}: {RELAYS} relays, {} heartbeats: {rate:.0} per second, p50 {:?}, p99 {:?}, maximum {:?}",
        times.0.len(),
        at(0.5),
        at(0.99),
        at(1.0)
    );
}

async fn send_heartbeats(url: &str, credentials: Vec<Credentials>) -> (Vec<Duration>, Duration) {
    let mut relays = tokio::task::JoinSet::new();
    let started_at = Instant::now();
    for credentials in credentials {
        let mut client = client_at(url, &credentials);
        relays.spawn(async move {
            let mut times = Vec::with_capacity(HEARTBEATS);
            client.get::<Value>("/v1/health").await.unwrap();
            for _ in 0..HEARTBEATS {
                let sent = Instant::now();
                client
                    .post::<Value>("/v1/relays/heartbeat", &heartbeat(100, StateVersion::default()))
                    .await
                    .unwrap();
                times.push(sent.elapsed());
            }
            times
        });
    }
    (relays.join_all().await.into_iter().flatten().collect(), started_at.elapsed())
}

const EDGES: usize = 2000;

#[test]
#[ignore = "a measurement, of an optimised build: cargo test --release -p marline-fleet --test service come_back -- --ignored --nocapture"]
fn edges_that_come_back_at_once() {
    marline_net::rlimit::raise_nofile_limit();
    measure_reconnect("unshared store", async |service: &mut TestService| {
        service.start(Limits::default(), |path| Box::new(EmbeddedStore::open(path).unwrap())).await;
        service.url()
    });
    let server = RedisServer::start(&[]);
    let port = server.port;
    let store = move || redis_servers::store_at(&format!("redis://127.0.0.1:{port}"));
    measure_reconnect("Redis, sent to a follower on the same core", async move |service: &mut TestService| {
        let (_, second) = two_processes(service, store).await;
        second.url
    });
}

fn measure_reconnect(description: &str, start: impl AsyncFnOnce(&mut TestService) -> String + Send + 'static) {
    let (tx, rx) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        block_on(async {
            let mut service = TestService::not_started();
            let url = start(&mut service).await;
            let mut relay = client_at(&url, &service.member("marline://relay/r0"));
            relay
                .post::<Value>("/v1/relays/heartbeat", &heartbeat(1_000_000, StateVersion::default()))
                .await
                .unwrap();
            let credentials: Vec<Credentials> =
                (0..EDGES).map(|n| service.member(&format!("marline://edge/e{n}"))).collect();
            tx.send((url, credentials)).unwrap();
            std::future::pending::<()>().await;
        });
    });
    let (url, credentials) = rx.recv().unwrap();
    let (started_at, mut edges) = (Instant::now(), tokio::task::JoinSet::new());
    let (mut times, errors) = block_on(async {
        for credentials in credentials {
            let mut client = client_at(&url, &credentials);
            edges.spawn(async move {
                let report = report(assignment_request(1, &[("r0", 20)]), None);
                client.post::<Value>("/v1/edges/report", &report).await?;
                client.get::<Value>("/v1/candidates").await?;
                client.post::<Value>("/v1/edges/request", &report.request).await?;
                Ok::<_, ClientError>(started_at.elapsed())
            });
        }
        let (done, failed): (Vec<_>, Vec<_>) = edges.join_all().await.into_iter().partition(Result::is_ok);
        let times: Vec<Duration> = done.into_iter().map(Result::unwrap).collect();
        (times, failed.into_iter().map(|error| error.unwrap_err().to_string()).collect::<Vec<_>>())
    });
    times.sort_unstable();
    println!(
        "{description}: {EDGES} edges connect, report, request candidates and a relay at once: {} succeed in {:?}, {} fail: {:?}",
        times.len(),
        times.last(),
        errors.len(),
        errors.first()
    );
    assert!(errors.is_empty());
}
