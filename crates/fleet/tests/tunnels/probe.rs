//! Probes of a relay: what is counted, for whom, and where they end.
use std::time::Duration;

use marline_core::units::{Bitrate, DataSize};
use marline_fleet::edge::ProbeTerms;
use marline_fleet::relay::Limits;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use crate::edge::edge;
use crate::place::*;

const PUT: &[u8] = b"PUT /.well-known/marline/probe HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";

fn terms(most: DataSize) -> ProbeTerms {
    ProbeTerms { most, time: Duration::from_millis(1500), only: None }
}

#[test]
fn an_edge_learns_what_its_share_of_a_relay_is() {
    block_on(async {
        let limits =
            Limits { capacity: Some(Bitrate::from_mbps(24)), reserve: Bitrate::from_mbps(1), ..Limits::default() };
        let place = Place::open(limits).await;
        let (edge, _) = edge(&place, &[place.address], 0, false).await;
        let (probed, sent) = edge.probe("r0", &terms(DataSize::from_mib(8))).await.unwrap();
        let probed = probed.unwrap();
        assert!(
            probed.rate >= Bitrate::from_mbps(12) && probed.rate <= Bitrate::from_mbps(36),
            "{} of 24 Mbit/s",
            probed.rate
        );
        assert!(probed.bytes == sent && sent <= DataSize::from_mib(9), "{sent}");
        // It counts as what the edge has sent.
        assert!(place.relay.state().up_bytes >= 500_000, "{:?}", place.relay.state());
        assert!(edge.probe("r9", &terms(DataSize::from_mib(1))).await.is_none());
    });
}

#[test]
fn a_probe_sends_no_more_than_it_may() {
    block_on(async {
        let place = Place::open(Limits::default()).await;
        let (edge, _) = edge(&place, &[place.address], 0, false).await;
        let (probed, sent) = edge.probe("r0", &terms(DataSize::from_kib(300))).await.unwrap();
        assert!(!probed.unwrap().rate.is_zero());
        assert!(sent <= DataSize::from_kib(320), "{sent}");
        assert!(place.relay.state().up_bytes <= 330_000);
    });
}

#[test]
fn one_probe_of_an_edge_at_a_time_and_none_while_the_relay_drains() {
    block_on(async {
        let place = Place::open(Limits::default()).await;
        let own = place.edge("cam-1");
        let mut first = place.connect(&own).await.unwrap();
        first.write_all(PUT).await.unwrap();
        assert!(answer(&mut first).await.starts_with("HTTP/1.1 200 "));
        let mut second = place.connect(&own).await.unwrap();
        second.write_all(PUT).await.unwrap();
        assert!(answer(&mut second).await.starts_with("HTTP/1.1 429 "));
        let mut other = place.connect(&place.edge("cam-2")).await.unwrap();
        other.write_all(PUT).await.unwrap();
        assert!(answer(&mut other).await.starts_with("HTTP/1.1 200 "));
        // Its end is answered with what has come.
        first.write_all(b"5\r\nhello\r\n0\r\n\r\n").await.unwrap();
        let mut said = String::new();
        timeout(Duration::from_secs(5), first.read_to_string(&mut said)).await.unwrap().unwrap();
        assert!(said.contains("\r\n15 ") && said.ends_with("0\r\n\r\n"), "{said}");
        // Who says nothing is ended.
        timeout(Duration::from_secs(10), other.read_to_string(&mut said)).await.unwrap().unwrap();
        place.relay.drain();
        let mut late = place.connect(&own).await.unwrap();
        late.write_all(PUT).await.unwrap();
        assert!(answer(&mut late).await.starts_with("HTTP/1.1 503 "));
    });
}
