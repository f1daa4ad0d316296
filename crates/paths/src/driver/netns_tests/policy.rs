//! Real policies with the real kernel. Their decisions are tested elsewhere; these tests check that they are executed
//! and logged.

use std::io::BufRead;

use marline_core::decision_log::Replayer;
use marline_core::paths::{Goal, Policy};

use super::super::super::PathsRecord;
use super::*;

/// Waits for a snapshot that satisfies the condition.
pub(super) fn wait_for_snapshot(
    driver: &RunningDriver,
    description: &str,
    mut condition: impl FnMut(&Snapshot) -> bool,
) -> Snapshot {
    let started = Clock::now();
    loop {
        let snapshot = driver.snapshot();
        if condition(&snapshot) {
            return snapshot;
        }
        assert!(started.elapsed() < TIMEOUT, "{description}: never; {snapshot:#?}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Bytes received by the subflows over a link, by the last sample.
fn received_over(snapshot: &Snapshot, link: LinkId) -> u64 {
    let subflows = snapshot.connections.iter().flat_map(|conn| &conn.subflows);
    subflows.filter(|sub| sub.link == Some(link)).map(|sub| sub.counters.received.bytes()).sum()
}

fn check_download_uses_both_links(config: Config) {
    with_two_networks(move |server| {
        let address = start_server(server, "10.9.0.1:5001");
        let temp_dir = tempfile::tempdir().unwrap();
        let path = temp_dir.path().join("paths.log");
        let driver = RunningDriver::with_policy(config.clone(), Some(path.clone()));
        wait_for_snapshot(&driver, "links", |status| status.links.iter().filter(|link| link.up).count() == 2);
        let (client, _) = Client::download(address);
        let are_both_used = |status: &Snapshot| {
            received_over(status, FIRST_LINK) > 1_000_000 && received_over(status, SECOND_LINK) > 1_000_000
        };
        let snapshot = wait_for_snapshot(&driver, "bytes over both links", are_both_used);
        assert!(!snapshot.connections[0].reason.is_empty(), "{snapshot:?}");
        // One link loses its carrier, and the other continues.
        ip("link set c1 down");
        let before = received_over(&driver.snapshot(), SECOND_LINK);
        wait_for_snapshot(&driver, "bytes over the link that is left", |status| {
            received_over(status, SECOND_LINK) > before + 1_000_000
        });
        drop(client);
        wait_for_snapshot(&driver, "the end of the connection", |status| status.connections.is_empty());
        driver.stop();

        let file = std::io::BufReader::new(std::fs::File::open(path).unwrap());
        let mut replayer = Replayer::new(Paths::new(config));
        for line in file.lines() {
            let record: PathsRecord = serde_json::from_str(&line.unwrap()).unwrap();
            replayer.feed(record).unwrap();
        }
        assert!(replayer.counts().1 > 2, "{:?}", replayer.counts());
    });
}

#[test]
fn the_mptcp_policy_uses_both_links_and_replays() {
    check_download_uses_both_links(Config { policy: Policy::Mptcp, ..test_config() });
}

#[test]
fn the_throughput_profile_uses_both_links_and_replays() {
    check_download_uses_both_links(Config { policy: Policy::Marline, goal: Goal::Speed, ..test_config() });
}
