//! Detection of one certificate that two processes use at the same time, such as on a copied memory card. Operators see it,
//! and both processes are served all the same.
//!
//! Each process sends a random instance number with its reports. Evidence is that an instance reports again after another one
//! did. Two such returns may be due to a late request of a process that has just been replaced; the third one counts.

use marline_fleet::service::api_types::{EdgeSummary, RelaySummary};
use serde_json::Value;

use super::leader_failover::two_processes;
use super::redis_servers::RedisServer;
use super::*;

/// Number of processes that the operator sees for the first edge; 0: no duplicate was detected.
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
        // Looks like a restart of the machine: the first process does not return.
        for _ in 0..3 {
            send_report(&mut second).await;
        }
        assert_eq!(duplicate_count(&mut ann).await, 0);
        // Two returns, then the third one.
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
        // One of them leads, and the other one forwards reports to it.
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
