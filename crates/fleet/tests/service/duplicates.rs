//! Detection of one certificate that two processes use.

use marline_fleet::service::api_types::{EdgeSummary, RelaySummary};
use serde_json::Value;

use super::leader_failover::two_processes;
use super::redis_servers::RedisServer;
use super::*;

async fn duplicate_count(operator: &mut Client) -> usize {
    let rows: Vec<EdgeSummary> = operator.get("/v1/edges").await.unwrap();
    rows[0].duplicate_addresses.len()
}

async fn send_report(edge: &mut Client) {
    edge.post::<Value>("/v1/edges/report", &report(assignment_request(5, &[]), None)).await.unwrap();
}

#[test]
fn two_processes_with_one_certificate_are_reported_and_served() {
    block_on(async {
        let service = TestService::start_default().await;
        let (mut ann, credentials) =
            (service.client("marline://operator/ann"), service.member("marline://edge/cam-7"));
        let (mut first, mut second) = (service.client_of(&credentials), service.client_of(&credentials));
        for _ in 0..3 {
            send_report(&mut first).await;
        }
        // A restart of the same machine.
        for _ in 0..3 {
            send_report(&mut second).await;
        }
        assert_eq!(duplicate_count(&mut ann).await, 0);
        send_report(&mut first).await;
        send_report(&mut second).await;
        assert_eq!(duplicate_count(&mut ann).await, 0);
        send_report(&mut first).await;
        assert_eq!(duplicate_count(&mut ann).await, 2);

        let credentials = service.member("marline://relay/fra-1");
        let (mut first, mut second) = (service.client_of(&credentials), service.client_of(&credentials));
        for _ in 0..3 {
            for relay in [&mut first, &mut second] {
                relay
                    .post::<Value>("/v1/relays/heartbeat", &heartbeat(100, StateVersion::default()))
                    .await
                    .unwrap();
            }
        }
        let rows: Vec<RelaySummary> = ann.get("/v1/relays").await.unwrap();
        assert_eq!(rows[0].duplicate_addresses, ["127.0.0.1".parse::<std::net::IpAddr>().unwrap(); 2]);
    });
}

#[test]
fn copies_that_report_to_different_processes_of_the_service_are_detected() {
    block_on(async {
        let server = RedisServer::start(&[]);
        let service = TestService::not_started();
        let (first, second) = two_processes(&service, || server.store()).await;
        let credentials = service.member("marline://edge/cam-7");
        let (mut first_client, mut second_client) =
            (client_at(&first.url, &credentials), client_at(&second.url, &credentials));
        let mut ann = client_at(&second.url, &service.member("marline://operator/ann"));
        for _ in 0..3 {
            send_report(&mut first_client).await;
            send_report(&mut second_client).await;
        }
        assert_eq!(duplicate_count(&mut ann).await, 2);
    });
}
