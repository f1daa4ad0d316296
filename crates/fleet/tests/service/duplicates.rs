//! One certificate in two processes.

use marline_fleet::service::words::{EdgeRow, RelayRow};
use serde_json::Value;

use super::redis_servers::Server;
use super::several::two;
use super::*;

async fn used_from(operator: &mut Client) -> usize {
    let rows: Vec<EdgeRow> = operator.fetch("/v1/edges").await.unwrap();
    rows[0].used_from.len()
}

async fn speaks(edge: &mut Client) {
    edge.send::<Value>("/v1/edges/report", &report(wish(5, &[]), None)).await.unwrap();
}

#[test]
fn two_edges_and_two_relays_with_one_certificate_are_shown_and_served() {
    block_on(async {
        let place = Place::open().await;
        let (mut ann, own) = (place.client("marline://operator/ann"), place.member("marline://edge/cam-7"));
        let (mut first, mut second) = (place.client_of(&own), place.client_of(&own));
        for _ in 0..3 {
            speaks(&mut first).await;
        }
        // The same machine, started again.
        for _ in 0..3 {
            speaks(&mut second).await;
        }
        assert_eq!(used_from(&mut ann).await, 0);
        speaks(&mut first).await;
        speaks(&mut second).await;
        assert_eq!(used_from(&mut ann).await, 0);
        speaks(&mut first).await;
        assert_eq!(used_from(&mut ann).await, 2);

        let own = place.member("marline://relay/fra-1");
        let (mut first, mut second) = (place.client_of(&own), place.client_of(&own));
        for _ in 0..3 {
            for relay in [&mut first, &mut second] {
                relay.send::<Value>("/v1/relays/heartbeat", &beat(100, Mark::default())).await.unwrap();
            }
        }
        let rows: Vec<RelayRow> = ann.fetch("/v1/relays").await.unwrap();
        assert_eq!(rows[0].used_from, ["127.0.0.1".parse::<std::net::IpAddr>().unwrap(); 2]);
    });
}

#[test]
fn copies_that_speak_to_different_processes_of_the_service_are_found() {
    block_on(async {
        let server = Server::start(&[]);
        let place = Place::bare();
        let (first, second) = two(&place, || server.store()).await;
        let own = place.member("marline://edge/cam-7");
        let (mut here, mut there) = (client_at(&first.url, &own), client_at(&second.url, &own));
        let mut ann = client_at(&second.url, &place.member("marline://operator/ann"));
        for _ in 0..3 {
            speaks(&mut here).await;
            speaks(&mut there).await;
        }
        assert_eq!(used_from(&mut ann).await, 2);
    });
}
