//! Throughput probes of a relay: counting, limits, and their end.
use std::time::Duration;

use marline_core::units::{Bitrate, DataSize};
use marline_fleet::edge::ProbeLimits;
use marline_fleet::relay::Limits;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use crate::edge::start_edge;
use crate::fixture::*;

const PROBE_HEAD: &[u8] = b"PUT /.well-known/marline/probe HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";

fn probe_limits(most: DataSize) -> ProbeLimits {
    ProbeLimits { max_bytes: most, max_time: Duration::from_millis(1500), device: None }
}

#[test]
fn a_probe_measures_the_edges_share_of_the_relay() {
    block_on(async {
        let limits = Limits {
            capacity: Some(Bitrate::from_mbps(24)),
            default_reservation: Bitrate::from_mbps(1),
            ..Limits::default()
        };
        let fixture = TestRelay::start(limits).await;
        let (edge, _) = start_edge(&fixture, &[fixture.address], 0, false).await;
        let (probed, sent) = edge.probe("r0", &probe_limits(DataSize::from_mib(8))).await.unwrap();
        let probed = probed.unwrap();
        assert!(
            probed.rate >= Bitrate::from_mbps(12) && probed.rate <= Bitrate::from_mbps(36),
            "{} of 24 Mbit/s",
            probed.rate
        );
        assert!(probed.bytes == sent && sent <= DataSize::from_mib(9), "{sent}");
        // The bytes of the probe count as sent by the edge.
        assert!(fixture.relay.state().up_bytes >= 500_000, "{:?}", fixture.relay.state());
        assert!(edge.probe("r9", &probe_limits(DataSize::from_mib(1))).await.is_none());
    });
}

#[test]
fn a_probe_sends_no_more_than_its_limit() {
    block_on(async {
        let fixture = TestRelay::start(Limits::default()).await;
        let (edge, _) = start_edge(&fixture, &[fixture.address], 0, false).await;
        let (probed, sent) = edge.probe("r0", &probe_limits(DataSize::from_kib(300))).await.unwrap();
        assert!(!probed.unwrap().rate.is_zero());
        assert!(sent <= DataSize::from_kib(320), "{sent}");
        assert!(fixture.relay.state().up_bytes <= 330_000);
    });
}

#[test]
fn an_edge_runs_one_probe_at_a_time_and_none_while_the_relay_drains() {
    block_on(async {
        let fixture = TestRelay::start(Limits::default()).await;
        let credentials = fixture.edge_credentials("cam-1");
        let mut first = fixture.connect(&credentials).await.unwrap();
        first.write_all(PROBE_HEAD).await.unwrap();
        assert!(read_response_head(&mut first).await.starts_with("HTTP/1.1 200 "));
        let mut second = fixture.connect(&credentials).await.unwrap();
        second.write_all(PROBE_HEAD).await.unwrap();
        assert!(read_response_head(&mut second).await.starts_with("HTTP/1.1 429 "));
        let mut other = fixture.connect(&fixture.edge_credentials("cam-2")).await.unwrap();
        other.write_all(PROBE_HEAD).await.unwrap();
        assert!(read_response_head(&mut other).await.starts_with("HTTP/1.1 200 "));
        // At the end of the body the relay reports the number of received bytes: 15, with the chunked encoding.
        first.write_all(b"5\r\nhello\r\n0\r\n\r\n").await.unwrap();
        let mut message = String::new();
        timeout(Duration::from_secs(5), first.read_to_string(&mut message)).await.unwrap().unwrap();
        assert!(message.contains("\r\n15 ") && message.ends_with("0\r\n\r\n"), "{message}");
        // A probe without data is ended by the relay.
        timeout(Duration::from_secs(10), other.read_to_string(&mut message)).await.unwrap().unwrap();
        fixture.relay.drain();
        let mut late = fixture.connect(&credentials).await.unwrap();
        late.write_all(PROBE_HEAD).await.unwrap();
        assert!(read_response_head(&mut late).await.starts_with("HTTP/1.1 503 "));
    });
}
