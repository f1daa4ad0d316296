//! How many heartbeats a second one core answers: a process with a file of its own, one that shares Redis, and one that asks
//! another one, which shares it. `cargo test --release -p marline-fleet --test service heartbeats -- --ignored --nocapture`.

use std::time::Instant;

use serde_json::Value;

use super::redis_servers::Server;
use super::several::two;
use super::*;

const RELAYS: usize = 64;
const BEATS: usize = 2000;

#[test]
#[ignore = "a measurement, of an optimised build: cargo test --release -p marline-fleet --test service heartbeats -- --ignored --nocapture"]
fn heartbeats_of_one_core() {
    measure("a file of its own", async |place: &mut Place| {
        place.start(Limits::default(), |path| Box::new(Embedded::open(path).unwrap())).await;
        place.url()
    });
    let server = Server::start(&[]);
    let port = server.port;
    let store = move || redis_servers::store_at(&format!("redis://127.0.0.1:{port}"));
    measure("Redis, at the one that matches", async move |place: &mut Place| {
        let (first, _) = two(place, store).await;
        first.url
    });
    server.ask::<()>(&["FLUSHALL"]);
    measure("Redis, at another one on the same core, which asks it", async move |place: &mut Place| {
        let (_, second) = two(place, store).await;
        second.url
    });
}

fn measure(what: &str, start: impl AsyncFnOnce(&mut Place) -> String + Send + 'static) {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        block_on(async {
            let mut place = Place::bare();
            let url = start(&mut place).await;
            let own: Vec<Credentials> =
                (0..RELAYS).map(|n| place.member(&format!("marline://relay/r{n}"))).collect();
            tell.send((url, own)).unwrap();
            std::future::pending::<()>().await;
        });
    });
    let (url, own) = told.recv().unwrap();
    let mut times = block_on(ask(&url, own));
    let rate = times.0.len() as f64 / times.1.as_secs_f64();
    times.0.sort_unstable();
    let at = |share: f64| times.0[((times.0.len() - 1) as f64 * share) as usize];
    println!(
        "{what}: {RELAYS} relays, {} heartbeats: {rate:.0} a second, p50 {:?}, p99 {:?}, the slowest {:?}",
        times.0.len(),
        at(0.5),
        at(0.99),
        at(1.0)
    );
}

async fn ask(url: &str, own: Vec<Credentials>) -> (Vec<Duration>, Duration) {
    let mut relays = tokio::task::JoinSet::new();
    let begun = Instant::now();
    for own in own {
        let mut client = client_at(url, &own);
        relays.spawn(async move {
            let mut times = Vec::with_capacity(BEATS);
            client.fetch::<Value>("/v1/health").await.unwrap();
            for _ in 0..BEATS {
                let sent = Instant::now();
                client.send::<Value>("/v1/relays/heartbeat", &beat(100, Mark::default())).await.unwrap();
                times.push(sent.elapsed());
            }
            times
        });
    }
    (relays.join_all().await.into_iter().flatten().collect(), begun.elapsed())
}

const EDGES: usize = 2000;

#[test]
#[ignore = "a measurement, of an optimised build: cargo test --release -p marline-fleet --test service come_back -- --ignored --nocapture"]
fn edges_that_come_back_at_once() {
    marline_net::descriptors::raise();
    come_back("a file of its own", async |place: &mut Place| {
        place.start(Limits::default(), |path| Box::new(Embedded::open(path).unwrap())).await;
        place.url()
    });
    let server = Server::start(&[]);
    let port = server.port;
    let store = move || redis_servers::store_at(&format!("redis://127.0.0.1:{port}"));
    come_back("Redis, at one that asks the one that matches, on the same core", async move |place: &mut Place| {
        let (_, second) = two(place, store).await;
        second.url
    });
}

fn come_back(what: &str, start: impl AsyncFnOnce(&mut Place) -> String + Send + 'static) {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        block_on(async {
            let mut place = Place::bare();
            let url = start(&mut place).await;
            let mut relay = client_at(&url, &place.member("marline://relay/r0"));
            relay.send::<Value>("/v1/relays/heartbeat", &beat(1_000_000, Mark::default())).await.unwrap();
            let own: Vec<Credentials> = (0..EDGES).map(|n| place.member(&format!("marline://edge/e{n}"))).collect();
            tell.send((url, own)).unwrap();
            std::future::pending::<()>().await;
        });
    });
    let (url, own) = told.recv().unwrap();
    let (begun, mut edges) = (Instant::now(), tokio::task::JoinSet::new());
    let (mut times, errors) = block_on(async {
        for own in own {
            let mut client = client_at(&url, &own);
            edges.spawn(async move {
                let report = report(wish(1, &[("r0", 20)]), None);
                client.send::<Value>("/v1/edges/report", &report).await?;
                client.fetch::<Value>("/v1/candidates").await?;
                client.send::<Value>("/v1/edges/request", &report.wish).await?;
                Ok::<_, ClientError>(begun.elapsed())
            });
        }
        let (done, failed): (Vec<_>, Vec<_>) = edges.join_all().await.into_iter().partition(Result::is_ok);
        let times: Vec<Duration> = done.into_iter().map(Result::unwrap).collect();
        (times, failed.into_iter().map(|error| error.unwrap_err().to_string()).collect::<Vec<_>>())
    });
    times.sort_unstable();
    println!(
        "{what}: {EDGES} edges connect, report, ask for candidates and a relay at once: {} in {:?}, {} not: {:?}",
        times.len(),
        times.last(),
        errors.len(),
        errors.first()
    );
    assert!(errors.is_empty());
}
