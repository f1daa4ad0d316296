//! Links that lose full-sized packets without an ICMP message, and what looks like it.

use marline_core::paths::{Goal, Policy};

use super::policy::until;
use super::returns::carries;
use super::*;

/// What the kernel has of routes over the second link, of IPv4 (`-4`) or of IPv6 (`-6`).
fn routes_of(family: &str) -> String {
    let routes = Process::new("ip").args([family, "route", "show", "table", "all", "dev", "c2"]).output().unwrap();
    String::from_utf8_lossy(&routes.stdout).into_owned()
}

fn routes() -> String {
    routes_of("-4") + &routes_of("-6")
}

/// Waits until the routes over the second link have a smaller MTU, or none has.
fn mtu(driver: &Running, lowered: bool) {
    until(driver, "another MTU", |_| routes().contains("mtu 1280") == lowered);
}

fn throughput() -> Config {
    Config { policy: Policy::Marline, goal: Goal::Speed, ..config() }
}

/// A driver with both links up.
fn driver(config: Config) -> Running {
    let driver = Running::laid(config);
    until(&driver, "links", |now| now.links.iter().filter(|link| link.up).count() == 2);
    driver
}

/// The server drops larger packets than this on their way to the client, with 14 bytes of Ethernet, without a word.
fn drops(server: &Network, size: u32) {
    server
        .run(|| {
            run("tc", &format!("qdisc replace dev s2 root tbf rate 20mbit burst {size} limit 100k"));
            Ok(())
        })
        .unwrap();
}

/// Uploads to this address, with the path manager of this mode: the link is lost to full-sized packets, and carries smaller ones.
fn uploads(address: &'static str, mode: Mode) {
    between_two_networks(move |server| {
        for link in [1, 2] {
            run("tc", &format!("qdisc replace dev c{link} root tbf rate 20mbit burst 64k limit 100k"));
        }
        // Larger packets than the peer's interface accepts vanish there, and it accepts segments of any size.
        ip("link set c2 gso_max_segs 1");
        on(server, "link set s2 mtu 1400");
        on(server, "route replace 10.2.0.0/24 dev s2 src 10.2.0.1 advmss 1460");
        on(server, "-6 route replace fd00:2::/64 dev s2 metric 256 advmss 1440");
        let address = serve(server, address);
        let driver = Running::laid_in(mode, throughput());
        until(&driver, "links", |now| now.links.iter().filter(|link| link.up).count() == 2);
        let client = Client::upload(address);
        let began = Clock::now();
        carries(&driver, SECOND, 2_000_000, "bytes over the link with the smaller path MTU");
        eprintln!("2 MB over the link with the smaller path MTU after {:?}", began.elapsed());
        let family = if address.is_ipv4() { "-4" } else { "-6" };
        assert!(routes_of(family).contains("mtu 1280"), "{}", routes());
        drop(client);
        driver.stop();
        assert!(!routes().contains("mtu"), "it is undone");
    });
}

#[test]
fn a_link_with_a_smaller_path_mtu_carries_uploads() {
    uploads("10.9.0.1:5001", Mode::Userspace);
}

#[test]
fn a_link_with_a_smaller_path_mtu_carries_uploads_over_ipv6() {
    uploads("[fd00:9::1]:5001", Mode::Userspace);
}

#[test]
fn a_link_with_a_smaller_path_mtu_carries_uploads_by_the_kernels_own_path_manager() {
    uploads("10.9.0.1:5001", Mode::KernelPm);
}

#[test]
fn a_link_with_a_smaller_path_mtu_carries_downloads_over_ipv6() {
    between_two_networks(|server| {
        drops(server, 1420);
        let address = serve(server, "[fd00:9::1]:5001");
        let driver = driver(throughput());
        let client = Client::download(address).0;
        mtu(&driver, true);
        carries(&driver, SECOND, 2_000_000, "bytes over the link with the smaller path MTU");
        assert!(routes_of("-6").contains("mtu 1280"), "{}", routes());
        drop(client);
        driver.stop();
        assert!(!routes().contains("mtu 1280"), "it is undone");
    });
}

#[test]
fn a_link_with_a_smaller_path_mtu_carries_downloads_and_larger_packets_are_tried_again() {
    between_two_networks(|server| {
        drops(server, 1420);
        let address = serve(server, "10.9.0.1:5001");
        let driver = driver(Config { raise_mtu_after: Duration::from_secs(8), ..throughput() });
        let began = Clock::now();
        let client = Client::download(address).0;
        mtu(&driver, true);
        carries(&driver, SECOND, 2_000_000, "bytes over the link with the smaller path MTU");
        eprintln!("2 MB over the link with the smaller path MTU after {:?}", began.elapsed());
        mtu(&driver, false);
        eprintln!("larger packets are tried again after {:?}", began.elapsed());
        carries(&driver, SECOND, 2_000_000, "bytes over the subflow that goes on");
        // They are still lost, and then they are not.
        let other = Client::download(address).0;
        mtu(&driver, true);
        drops(server, 65_536);
        mtu(&driver, false);
        drop((client, other));
        let client = Client::download(address).0;
        carries(&driver, SECOND, 10_000_000, "bytes in full-sized packets");
        assert!(!routes().contains("mtu"), "{}", routes());
        drop(client);
        driver.stop();
    });
}

#[test]
fn a_server_that_has_little_to_send_lowers_no_mtu() {
    between_two_networks(|server| {
        let address = serve(server, "10.9.0.1:5001");
        let driver = driver(throughput());
        let (client, read) = Client::trickle(address);
        until(&driver, "a second subflow", |now| now.connections.iter().any(|conn| conn.subflows.len() == 2));
        let (began, before) = (Clock::now(), read.load(Ordering::Relaxed));
        while began.elapsed() < Duration::from_secs(6) {
            assert!(!routes().contains("mtu"), "after {:?}: {}", began.elapsed(), routes());
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
