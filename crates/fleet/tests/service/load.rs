//! How many heartbeats a second one core answers: `cargo test --release -p marline-fleet --test service -- --ignored --nocapture`.

use std::time::Instant;

use serde_json::Value;

use super::*;

const RELAYS: usize = 64;
const BEATS: usize = 2000;

#[test]
#[ignore = "a measurement, of an optimised build: cargo test --release -p marline-fleet --test service heartbeats -- --ignored --nocapture"]
fn heartbeats_of_one_core() {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        block_on(async {
            let place = Place::open().await;
            let own: Vec<Credentials> =
                (0..RELAYS).map(|n| place.member(&format!("marline://relay/r{n}"))).collect();
            tell.send((place.url(), own)).unwrap();
            std::future::pending::<()>().await;
        });
    });
    let (url, own) = told.recv().unwrap();
    block_on(async {
        let mut relays = tokio::task::JoinSet::new();
        let begun = Instant::now();
        for own in own {
            let mut client = Client::new(&url, client_config(&own, None, true).unwrap()).unwrap();
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
        let mut times: Vec<Duration> = relays.join_all().await.into_iter().flatten().collect();
        let rate = times.len() as f64 / begun.elapsed().as_secs_f64();
        times.sort_unstable();
        let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
        println!(
            "{RELAYS} relays, {} heartbeats: {rate:.0} a second, p50 {:?}, p99 {:?}, the slowest {:?}",
            times.len(),
            at(0.5),
            at(0.99),
            at(1.0)
        );
    });
}
