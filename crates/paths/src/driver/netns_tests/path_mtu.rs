//! Path MTU black holes: links that drop full-sized packets without an ICMP message, and similar situations.

use marline_core::paths::{Goal, Policy};

use super::outages::wait_for_link_bytes;
use super::policy::wait_for_snapshot;
use super::*;

/// Routes of the kernel over the second link, for IPv4 (`-4`) or IPv6 (`-6`).
fn routes_of(family: &str) -> String {
    let routes = Process::new("ip").args([family, "route", "show", "table", "all", "dev", "c2"]).output().unwrap();
    String::from_utf8_lossy(&routes.stdout).into_owned()
}

fn all_routes() -> String {
    routes_of("-4") + &routes_of("-6")
}

/// Waits until the routes over the second link have a smaller MTU, or none has.
fn wait_for_mtu(driver: &RunningDriver, is_lowered: bool) {
    wait_for_snapshot(driver, "another MTU", |_| all_routes().contains("mtu 1280") == is_lowered);
}

fn speed_config() -> Config {
    Config { policy: Policy::Marline, goal: Goal::Speed, ..test_config() }
}

/// A driver with both links up.
fn start_driver(config: Config) -> RunningDriver {
    let driver = RunningDriver::with_host_config(config);
    wait_for_snapshot(&driver, "links", |snapshot| snapshot.links.iter().filter(|link| link.up).count() == 2);
    driver
}

/// Makes the server drop packets larger than `size`, including 14 bytes of Ethernet header, without an ICMP message.
fn drop_larger_packets(server: &NetNs, size: u32) {
    server
        .run(|| {
            run_command("tc", &format!("qdisc replace dev s2 root tbf rate 20mbit burst {size} limit 100k"));
            Ok(())
        })
        .unwrap();
}

/// Uploads to this address in this mode: the link drops full-sized packets and carries smaller ones.
fn check_upload(address: &'static str, mode: Mode) {
    with_two_networks(move |server| {
        for link in [1, 2] {
            run_command("tc", &format!("qdisc replace dev c{link} root tbf rate 20mbit burst 64k limit 100k"));
        }
        // The peer's interface drops packets above its MTU, although the peer accepts segments of any size.
        ip("link set c2 gso_max_segs 1");
        ip_in(server, "link set s2 mtu 1400");
        ip_in(server, "route replace 10.2.0.0/24 dev s2 src 10.2.0.1 advmss 1460");
        ip_in(server, "-6 route replace fd00:2::/64 dev s2 metric 256 advmss 1440");
        let address = start_server(server, address);
        let driver = RunningDriver::with_host_config_in(mode, speed_config());
        wait_for_snapshot(&driver, "links", |snapshot| snapshot.links.iter().filter(|link| link.up).count() == 2);
        let client = Client::upload(address);
        let start = Clock::now();
        wait_for_link_bytes(&driver, SECOND_LINK, 2_000_000, "bytes over the link with the smaller path MTU");
        eprintln!("2 MB over the link with the smaller path MTU after {:?}", start.elapsed());
        let family = if address.is_ipv4() { "-4" } else { "-6" };
        assert!(routes_of(family).contains("mtu 1280"), "{}", all_routes());
        drop(client);
        driver.stop();
        assert!(!all_routes().contains("mtu"), "it is undone");
    });
}

#[test]
fn a_link_with_a_smaller_path_mtu_carries_uploads() {
    check_upload("10.9.0.1:5001", Mode::Userspace);
}

#[test]
fn a_link_with_a_smaller_path_mtu_carries_uploads_over_ipv6() {
    check_upload("[fd00:9::1]:5001", Mode::Userspace);
}

#[test]
fn a_link_with_a_smaller_path_mtu_carries_uploads_by_the_kernels_own_path_manager() {
    check_upload("10.9.0.1:5001", Mode::KernelPm);
}

#[test]
fn a_link_with_a_smaller_path_mtu_carries_downloads_over_ipv6() {
    with_two_networks(|server| {
        drop_larger_packets(server, 1420);
        let address = start_server(server, "[fd00:9::1]:5001");
        let driver = start_driver(speed_config());
        let client = Client::download(address).0;
        wait_for_mtu(&driver, true);
        wait_for_link_bytes(&driver, SECOND_LINK, 2_000_000, "bytes over the link with the smaller path MTU");
        assert!(routes_of("-6").contains("mtu 1280"), "{}", all_routes());
        drop(client);
        driver.stop();
        assert!(!all_routes().contains("mtu 1280"), "it is undone");
    });
}

#[test]
fn a_link_with_a_smaller_path_mtu_carries_downloads_and_larger_packets_are_tried_again() {
    with_two_networks(|server| {
        drop_larger_packets(server, 1420);
        let address = start_server(server, "10.9.0.1:5001");
        let driver = start_driver(Config { raise_mtu_after: Duration::from_secs(8), ..speed_config() });
        let start = Clock::now();
        let client = Client::download(address).0;
        wait_for_mtu(&driver, true);
        wait_for_link_bytes(&driver, SECOND_LINK, 2_000_000, "bytes over the link with the smaller path MTU");
        eprintln!("2 MB over the link with the smaller path MTU after {:?}", start.elapsed());
        wait_for_mtu(&driver, false);
        eprintln!("larger packets are tried again after {:?}", start.elapsed());
        wait_for_link_bytes(&driver, SECOND_LINK, 2_000_000, "bytes over the continuing subflow");
        // First they are still lost, then they pass.
        let other = Client::download(address).0;
        wait_for_mtu(&driver, true);
        drop_larger_packets(server, 65_536);
        wait_for_mtu(&driver, false);
        drop((client, other));
        let client = Client::download(address).0;
        wait_for_link_bytes(&driver, SECOND_LINK, 10_000_000, "bytes in full-sized packets");
        assert!(!all_routes().contains("mtu"), "{}", all_routes());
        drop(client);
        driver.stop();
    });
}

#[test]
fn a_server_with_little_data_lowers_no_mtu() {
    with_two_networks(|server| {
        let address = start_server(server, "10.9.0.1:5001");
        let driver = start_driver(speed_config());
        let (client, read) = Client::download_slowly(address);
        wait_for_snapshot(&driver, "a second subflow", |snapshot| {
            snapshot.connections.iter().any(|conn| conn.subflows.len() == 2)
        });
        let (start, before) = (Clock::now(), read.load(Ordering::Relaxed));
        while start.elapsed() < Duration::from_secs(6) {
            assert!(!all_routes().contains("mtu"), "after {:?}: {}", start.elapsed(), all_routes());
            thread::sleep(Duration::from_millis(50));
        }
        assert!(
            read.load(Ordering::Relaxed) - before > 400_000,
            "enough to take the link for one that loses packets"
        );
        drop(client);
        driver.stop();
    });
}
