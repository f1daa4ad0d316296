//! Links that fail, stop responding, change, recover, are metered, or never existed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::network::Network;
use crate::program::{Ended, Program, Running, link};
use crate::server::{Resource, Server};

const SIZE: usize = 12_000_000;

/// A file and a correct server of it, limited to `rate_limit` bytes per second on each connection.
fn honest(network: &Network, rate_limit: u64) -> (Resource, Server) {
    let resource = Resource::new(SIZE);
    let all = resource.clone();
    (resource, network.serve(move |request| all.respond(request)).limit_rate(rate_limit))
}

/// Starts a download and waits until so many bytes have been sent.
fn started_download(program: &Program, server: &Server, bytes: u64) -> Running {
    let running = program.start(&[&server.url("/file"), "-o", "out", "--json"]);
    server.wait_sent(bytes);
    running
}

#[track_caller]
fn assert_complete(program: &Program, running: Running, resource: &Resource) -> (Ended, serde_json::Value) {
    let ended = running.wait();
    let report = ended.report();
    assert!(program.file("out").unwrap() == *resource.data, "the file differs: {report}");
    (ended, report)
}

#[test]
fn a_deleted_link_is_used_again_after_it_returns() {
    let Some(network) = Network::two_links() else { return };
    let (resource, server) = honest(&network, 2_000_000);
    let program = network.program();
    let running = started_download(&program, &server, 2_000_000);
    network.client_ip("link del wifi0\n");
    thread::sleep(Duration::from_millis(500));
    let before = server.requests().iter().filter(|request| request.over_wifi()).count();
    network.add_link("wifi0");
    let (_, report) = assert_complete(&program, running, &resource);
    let after = server.requests().iter().filter(|request| request.over_wifi()).count();
    assert!(after > before, "the link is not used again: {report}");
    assert_eq!(report["links"].as_array().unwrap().len(), 2, "{report}");
}

#[test]
fn a_link_that_was_set_down_is_used_again() {
    let Some(network) = Network::two_links() else { return };
    let (resource, server) = honest(&network, 2_000_000);
    let program = network.program();
    let running = started_download(&program, &server, 2_000_000);
    network.client_ip("link set lte0 down\n");
    thread::sleep(Duration::from_millis(500));
    let count = || server.requests().iter().filter(|request| !request.over_wifi()).count();
    let before = count();
    network.client_ip("link set lte0 up\nroute add default via 10.77.2.1 dev lte0 metric 200\n");
    let (_, report) = assert_complete(&program, running, &resource);
    assert!(count() > before, "the link is not used again: {report}");
}

#[test]
fn a_link_that_drops_everything_is_reported_and_used_again() {
    let Some(network) = Network::two_links() else { return };
    let (resource, server) = honest(&network, 1_500_000);
    let program = network.program();
    // Slow enough that the other link does not finish the file meanwhile.
    let url = server.url("/file");
    let running = program.start(&[&url, "-o", "out", "--json", "--limit-rate", "lte0=16Mbit/s"]);
    server.wait_sent(2_000_000);
    network.cut("wifi0");
    thread::sleep(Duration::from_millis(1500));
    network.uncut("wifi0");
    let (ended, report) = assert_complete(&program, running, &resource);
    ended.assert_notice("link wifi0: no data for 1.0s; the other links continue");
    ended.assert_notice("link wifi0: carries data again");
    assert!(report["wasted_bytes"].as_u64().unwrap() < 2_000_000, "{report}");
}

#[test]
fn a_link_that_stays_down_does_not_delay_the_file() {
    let Some(network) = Network::two_links() else { return };
    let (resource, server) = honest(&network, 4_000_000);
    let program = network.program();
    let running = started_download(&program, &server, 4_000_000);
    network.cut("lte0");
    let (_, report) = assert_complete(&program, running, &resource);
    assert_eq!(link(&report, "lte0")["state"], "silent", "{report}");
}

#[test]
fn a_changed_address_ends_connections_but_not_the_download() {
    let Some(network) = Network::two_links() else { return };
    let (resource, server) = honest(&network, 2_000_000);
    let program = network.program();
    let running = started_download(&program, &server, 2_000_000);
    network.client_ip(
        "address del 10.77.1.2/24 dev wifi0\naddress add 10.77.1.7/24 dev wifi0\n\
         route add default via 10.77.1.1 dev wifi0 metric 100\n",
    );
    let (_, report) = assert_complete(&program, running, &resource);
    let renewed = server.requests().iter().any(|request| request.from.to_string() == "10.77.1.7");
    assert!(renewed, "the new address is not used: {report}");
}

#[test]
fn a_link_that_appears_during_the_download_joins() {
    let Some(network) = Network::two_links() else { return };
    network.client_ip("link del lte0\n");
    let (resource, server) = honest(&network, 2_000_000);
    let program = network.program();
    let url = server.url("/file");
    let running = program.start(&[&url, "-o", "out", "--json", "--limit-rate", "wifi0=24Mbit/s"]);
    server.wait_sent(1_000_000);
    network.add_link("lte0");
    let (_, report) = assert_complete(&program, running, &resource);
    assert!(link(&report, "lte0")["bytes"].as_u64().unwrap() > 500_000, "{report}");
}

#[test]
fn a_single_response_restarts_from_zero_when_its_link_is_removed() {
    let Some(network) = Network::two_links() else { return };
    let resource = Resource::new(SIZE);
    let all = resource.clone();
    let server = network.serve(move |_| all.full_response()).limit_rate(6_000_000);
    let program = network.program();
    let running = started_download(&program, &server, 3_000_000);
    let first = server.requests().last().unwrap().over_wifi();
    network.client_ip(if first { "link del wifi0\n" } else { "link del lte0\n" });
    assert_complete(&program, running, &resource);
}

#[test]
fn when_the_last_link_is_removed_the_download_waits_for_another() {
    let Some(network) = Network::two_links() else { return };
    let (resource, server) = honest(&network, 2_000_000);
    let program = network.program();
    let running = started_download(&program, &server, 4_000_000);
    network.client_ip("link del wifi0\nlink del lte0\n");
    thread::sleep(Duration::from_millis(700));
    network.add_link("lte0");
    assert_complete(&program, running, &resource);
}

#[test]
fn without_any_link_the_exit_code_is_69() {
    let Some(network) = Network::two_links() else { return };
    network.client_ip("link del wifi0\nlink set lte0 down\n");
    let program = network.program();
    let line = program.refused(&["http://203.0.113.9:1/file"], 69);
    assert!(line.contains("lte0"), "{line}");
    let line = program.refused(&["http://203.0.113.9:1/file", "--link", "wifi0"], 69);
    assert!(line.contains("link wifi0: no such interface"), "{line}");
}

#[test]
fn a_missing_named_link_is_reported_and_the_others_are_used() {
    let Some(network) = Network::two_links() else { return };
    let (resource, server) = honest(&network, 0);
    let program = network.program();
    let args = ["--link", "wwan7", "--link", "wifi0"];
    let ended = program.run(&[&[&server.url("/file"), "-o", "out", "--json"][..], &args].concat());
    ended.assert_notice("link wwan7: no such interface; continuing with the other links");
    assert_eq!(ended.report()["links"].as_array().unwrap().len(), 1);
    assert!(program.file("out").unwrap() == *resource.data);
    assert!(server.requests().iter().all(|request| request.over_wifi()));
}

#[test]
fn a_link_that_vanishes_before_its_first_connection_does_not_harm_the_download() {
    let Some(network) = Network::two_links() else { return };
    let (resource, server) = honest(&network, 0);
    // The name server receives the query over the link and removes the link instead of answering.
    let network = Arc::new(network);
    let is_removed = AtomicBool::new(false);
    // The name server's thread outlives the test, but the network must not; hence the weak reference.
    let cutter = Arc::downgrade(&network);
    network.name_server(move |from| {
        if from.starts_with("10.77.1.") {
            if !is_removed.swap(true, Ordering::Relaxed)
                && let Some(network) = cutter.upgrade()
            {
                network.client_ip("link del wifi0\n");
            }
            return false;
        }
        true
    });
    let program = network.program();
    let url = format!("http://file.test:{}/file", server.address.port());
    let ended = program.get(&url);
    let report = ended.report();
    assert!(program.file("out").unwrap() == *resource.data);
    assert_eq!(link(&report, "wifi0")["bytes"], 0, "{report}");
    assert!(link(&report, "lte0")["dns"].as_str().unwrap().contains("resolv.conf"), "{report}");
}

#[test]
fn a_slow_name_server_delays_the_download_only_by_its_own_delay() {
    let Some(network) = Network::two_links() else { return };
    let (resource, server) = honest(&network, 0);
    network.name_server(|_| {
        thread::sleep(Duration::from_millis(700));
        true
    });
    let program = network.program();
    let report = program.get(&format!("http://file.test:{}/file", server.address.port())).report();
    assert!(program.file("out").unwrap() == *resource.data);
    assert!(report["seconds"].as_f64().unwrap() < 10.0, "{report}");
}

#[test]
fn a_stream_continues_in_order_when_a_link_fails() {
    let Some(network) = Network::two_links() else { return };
    let (resource, server) = honest(&network, 4_000_000);
    let program = network.program();
    let running = program.start(&[&server.url("/file"), "-o", "-", "-q"]);
    server.wait_sent(3_000_000);
    network.cut("wifi0");
    let ended = running.wait();
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert!(ended.out == *resource.data, "the stream differs");
}

#[test]
fn a_server_unreachable_over_one_link_is_reached_over_the_other() {
    let Some(network) = Network::two_links() else { return };
    let (resource, server) = honest(&network, 0);
    network.server_ip("route del 10.77.1.0/24\nroute add unreachable 10.77.1.0/24\n");
    let program = network.program();
    let report = program.get(&server.url("/file")).report();
    assert!(program.file("out").unwrap() == *resource.data);
    assert_eq!(link(&report, "wifi0")["bytes"], 0, "{report}");
}

#[test]
fn a_name_that_does_not_exist_is_reported() {
    let Some(network) = Network::two_links() else { return };
    network.name_server(|_| true);
    let begun = Instant::now();
    let line = network.program().refused(&["http://absent.test/file", "--retry", "1000"], 68);
    assert_eq!(line, "http://absent.test/file: absent.test: no such name according to 203.0.113.9");
    assert!(begun.elapsed() < Duration::from_secs(5), "the name was looked up again");
}

#[test]
fn a_name_server_that_does_not_respond_at_first_is_queried_again() {
    let Some(network) = Network::two_links() else { return };
    let (resource, server) = honest(&network, 0);
    // A little longer than the timeout of a lookup.
    let begun = Instant::now();
    network.name_server(move |_| begun.elapsed() > Duration::from_millis(5500));
    let program = network.program();
    let ended = program.get(&format!("http://file.test:{}/file", server.address.port()));
    ended.report();
    assert!(program.file("out").unwrap() == *resource.data);
    for name in ["wifi0", "lte0"] {
        let notices = ended.notices();
        let notice = notices.iter().find(|line| line.starts_with(&format!("link {name}: no data for ")));
        let waits = notice.is_some_and(|line| line.ends_with("s (looking up the name); it is retried"));
        assert!(waits, "{}", ended.err);
    }
    assert!(ended.err.contains("wifi0 0 kbit/s (silent, looking up the name)"), "{}", ended.err);
}

#[test]
fn a_name_that_resolves_over_one_link_only_is_enough() {
    let Some(network) = Network::two_links() else { return };
    let (resource, server) = honest(&network, 0);
    network.name_server_by_client(|from| if from.starts_with("10.77.1.") { "other.test" } else { "file.test" });
    let program = network.program();
    let ended = program.get(&format!("http://file.test:{}/file", server.address.port()));
    let report = ended.report();
    assert!(program.file("out").unwrap() == *resource.data);
    assert_eq!(link(&report, "wifi0")["bytes"], 0, "{report}");
}

#[test]
fn a_limit_for_an_unused_link_is_reported() {
    let Some(network) = Network::two_links() else { return };
    let (_, server) = honest(&network, 0);
    let url = server.url("/file");
    let args = ["--limit-rate", "wwan7=1Mbit/s", "--limit-rate", "lo=1Mbit/s", "--limit-rate", "lte0=900Mbit/s"];
    let ended = network.program().run(&[&[&url, "-o", "out", "--json"][..], &args].concat());
    ended.report();
    ended.assert_notice("link wwan7: no such interface; its limit has no effect");
    ended.assert_notice("link lo: it is the loopback interface; its limit has no effect");
    assert!(!ended.err.contains("lte0: "), "{}", ended.err);
}

#[test]
fn a_metered_link_is_unused_until_the_other_fails() {
    let Some(network) = Network::two_links() else { return };
    let (resource, server) = honest(&network, 6_000_000);
    let metered = ["--link", "wifi0", "--link", "lte0,metered=yes"];
    let program = network.program();
    let ended = program.run(&[&[&server.url("/file"), "-o", "out", "--json"][..], &metered].concat());
    assert_eq!(link(&ended.report(), "lte0")["bytes"], 0);
    assert!(server.requests().iter().all(|request| request.over_wifi()));

    let program = network.program();
    let url = server.url("/file");
    let args = [&[&url, "-o", "out", "--json"][..], &metered].concat();
    let before = server.sent_bytes();
    let running = program.start(&args);
    server.wait_sent(before + 3_000_000);
    network.client_ip("link set wifi0 down\n");
    let (ended, report) = assert_complete(&program, running, &resource);
    ended.assert_notice("link lte0: it is metered, and used because no other link works");
    assert!(link(&report, "lte0")["bytes"].as_u64().unwrap() > 5_000_000, "{report}");
}

#[test]
fn the_metered_option_permits_and_forbids_a_metered_link() {
    let Some(network) = Network::two_links() else { return };
    let (_, server) = honest(&network, 6_000_000);
    let program = network.program();
    let metered = ["--link", "wifi0", "--link", "lte0,metered=yes", "--json", "-o", "out", "--metered"];
    let url = server.url("/file");
    let report = program.run(&[&metered[..], &["use", &url]].concat()).report();
    assert!(link(&report, "lte0")["bytes"].as_u64().unwrap() > 1_000_000, "{report}");

    network.client_ip("link set wifi0 down\n");
    let program = network.program();
    let ended = program.run(&[&metered[..], &["never", "-q", &url]].concat());
    assert_eq!(ended.code, Some(69), "{}", ended.err);
    assert!(ended.err.contains("lte0: it is metered, and --metered never forbids it"), "{}", ended.err);
}

#[test]
fn a_budget_is_not_exceeded() {
    let Some(network) = Network::two_links() else { return };
    let (resource, server) = honest(&network, 4_000_000);
    let program = network.program();
    let args = ["--link", "wifi0", "--link", "lte0,budget=1MB", "--json", "-o", "out"];
    let url = server.url("/file");
    let report = program.run(&[&args[..], &[&url]].concat()).report();
    let spent = link(&report, "lte0")["bytes"].as_u64().unwrap();
    assert!((500_000..=1_000_000).contains(&spent), "{report}");
    assert!(program.file("out").unwrap() == *resource.data);
}

#[test]
fn a_rate_limit_applies_to_its_link() {
    let Some(network) = Network::two_links() else { return };
    let (resource, server) = honest(&network, 6_000_000);
    let program = network.program();
    let args = ["--limit-rate", "lte0=4Mbit/s", "--json", "-o", "out"];
    let url = server.url("/file");
    let begun = Instant::now();
    let report = program.run(&[&args[..], &[&url]].concat()).report();
    let most = 4e6 / 8.0 * begun.elapsed().as_secs_f64() * 1.3;
    let carried = link(&report, "lte0")["bytes"].as_u64().unwrap();
    assert!((carried as f64) < most && carried > 100_000, "{report}");
    assert!(program.file("out").unwrap() == *resource.data);
}
