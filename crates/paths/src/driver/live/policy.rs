//! Real policies over the kernel: what they decide is theirs; that it happens, and that the log says so, is tested here.

use std::io::BufRead;

use marline_core::decision_log::Replayer;
use marline_core::paths::{Goal, Policy};

use super::super::super::PathsRecord;
use super::*;

/// Waits for a snapshot that fulfils the condition.
pub(super) fn until(driver: &Running, what: &str, mut condition: impl FnMut(&Snapshot) -> bool) -> Snapshot {
    let started = Clock::now();
    loop {
        let snapshot = driver.snapshot();
        if condition(&snapshot) {
            return snapshot;
        }
        assert!(started.elapsed() < PATIENCE, "{what}: never; {snapshot:#?}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// What the subflows over a link carried, as they were seen last.
fn carried(snapshot: &Snapshot, link: LinkId) -> u64 {
    let subflows = snapshot.connections.iter().flat_map(|conn| &conn.subflows);
    subflows.filter(|sub| sub.link == Some(link)).map(|sub| sub.counters.received.bytes()).sum()
}

fn a_download_uses_both_links(config: Config) {
    between_two_networks(move |server| {
        let address = serve(server, "10.9.0.1:5001");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("paths.log");
        let driver = Running::policy(config.clone(), Some(path.clone()));
        until(&driver, "links", |now| now.links.iter().filter(|link| link.up).count() == 2);
        let (client, _) = Client::download(address);
        let both = |now: &Snapshot| carried(now, FIRST) > 1_000_000 && carried(now, SECOND) > 1_000_000;
        let snapshot = until(&driver, "bytes over both links", both);
        assert!(!snapshot.connections[0].reason.is_empty(), "{snapshot:?}");
        // Carrier is lost: the other link goes on.
        ip("link set c1 down");
        let before = carried(&driver.snapshot(), SECOND);
        until(&driver, "bytes over the link that is left", |now| carried(now, SECOND) > before + 1_000_000);
        drop(client);
        until(&driver, "the end of the connection", |now| now.connections.is_empty());
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
fn the_kernels_own_way_as_a_policy_uses_both_links_and_replays() {
    a_download_uses_both_links(Config { policy: Policy::Mptcp, ..config() });
}

#[test]
fn the_throughput_profile_uses_both_links_and_replays() {
    a_download_uses_both_links(Config { policy: Policy::Marline, goal: Goal::Speed, ..config() });
}
