//! Helpers of this module's tests, and tests of the resolver against real and scripted servers.

use std::fs;
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use marline_core::link::LinkKind;
use marline_sys::namespace::{NetNs, is_privileged};

use super::message::tests::response;
use super::resolver::Resolver;
use super::system_paths::SystemPaths;
use super::{Resolution, ResolutionSource, ResolveError};
use crate::links::{Interface, Subnet};
use crate::testing::{default_route, test_interface};

/// A usable interface with these addresses and prefix lengths (`192.0.2.2/24`), and default routes for their
/// families. In the tests, `four` and `six` are links with one family, and `both` with both.
pub(crate) fn test_link(name: &str, index: u32, addresses: &[&str]) -> Interface {
    let networks: Vec<Subnet> = addresses
        .iter()
        .map(|text| {
            let (address, prefix) = text.split_once('/').unwrap();
            Subnet { address: address.parse().unwrap(), prefix_len: prefix.parse().unwrap() }
        })
        .collect();
    let addresses: Vec<IpAddr> = networks.iter().map(|network| network.address).collect();
    let route = |is_family: fn(&IpAddr) -> bool| addresses.iter().any(is_family).then_some(default_route(0));
    Interface {
        kind: LinkKind::Other,
        route_v4: route(IpAddr::is_ipv4),
        route_v6: route(IpAddr::is_ipv6),
        addresses,
        subnets: networks,
        ..test_interface(name, index)
    }
}

/// The name servers that the services below this root list for a link.
pub(crate) fn servers_in(root: &std::path::Path, link: &Interface) -> Vec<IpAddr> {
    let found = super::servers::link_servers(
        &SystemPaths { root: root.to_owned(), dns_port: 53, route_lookup: |_| None },
        link,
    );
    found.map(|(_, servers)| servers.iter().map(std::net::SocketAddr::ip).collect()).unwrap_or_default()
}

/// A file system root with these files.
pub(super) fn system_files(files: &[(&str, &str)]) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    root
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

fn resolve(files: &[(&str, &str)], host: &str, link: Option<&Interface>) -> Result<Resolution, String> {
    resolve_with_files(files, host, link).map_err(|why| why.message)
}

fn resolve_with_files(
    files: &[(&str, &str)],
    host: &str,
    link: Option<&Interface>,
) -> Result<Resolution, ResolveError> {
    let root = system_files(files);
    let resolver =
        Resolver::with_paths(SystemPaths { root: root.path().to_owned(), dns_port: 53, route_lookup: |_| None });
    block_on(resolver.resolve_for(None, host, link, Duration::from_secs(10)))
}

fn addresses(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

#[test]
fn an_address_literal_resolves_to_itself() {
    let four = test_link("eth0", 2, &["192.0.2.2/24"]);
    for (host, link, want) in [
        ("203.0.113.7", None, Ok("203.0.113.7")),
        ("[2001:db8::7]", None, Ok("2001:db8::7")),
        ("2001:db8::7", None, Ok("2001:db8::7")),
        ("127.0.0.1", Some(&four), Ok("127.0.0.1")),
        ("::1", Some(&four), Ok("::1")),
        ("[2001:db8::7]", Some(&four), Err("[2001:db8::7] has no address that this link can use")),
        (
            "[fe80::1%eth0]",
            Some(&four),
            Err("[fe80::1%eth0]: an address with a zone is refused; the link decides the interface"),
        ),
        (
            "fe80::1%25eth0",
            None,
            Err("fe80::1%25eth0: an address with a zone is refused; the link decides the interface"),
        ),
    ] {
        let got = resolve(&[], host, link);
        let want = want
            .map(|a| Resolution { addresses: addresses(&[a]), source: ResolutionSource::Literal })
            .map_err(str::to_owned);
        assert_eq!(got, want, "{host}");
    }
}

#[test]
fn the_hosts_file_takes_precedence_over_servers() {
    let files = [("etc/hosts", "192.0.2.9 nas.lan\n2001:db8::9 nas.lan\n")];
    let four = test_link("eth0", 2, &["192.0.2.2/24"]);
    let answer = resolve(&files, "NAS.lan.", Some(&four)).unwrap();
    assert_eq!(answer, Resolution { addresses: addresses(&["192.0.2.9"]), source: ResolutionSource::Hosts });
    assert_eq!(resolve(&files, "nas.lan", None).unwrap().addresses.len(), 2);
    let local = resolve(&files, "localhost", Some(&four)).unwrap();
    assert_eq!(local.addresses, addresses(&["127.0.0.1", "::1"]));
}

#[test]
fn an_invalid_name_is_an_error_and_does_not_panic() {
    for host in ["", ".", "..", "a..b", "exa mple.org", &"a".repeat(300), "\u{e4}.example", "a/b.example"] {
        assert!(resolve(&[], host, Some(&test_link("lo", 1, &["127.0.0.1/8"]))).is_err(), "{host}");
    }
}

/// Runs the work in a new network namespace whose loopback also has 10.53.0.1 and 2001:db8:53::1, with that link.
fn in_network_namespace(work: impl FnOnce(&Interface) + Send) {
    if !is_privileged() || Command::new("ip").arg("-V").output().is_err() {
        eprintln!("skipped: needs CAP_NET_ADMIN, CAP_SYS_ADMIN and the program ip");
        return;
    }
    let ip = |arguments: &str| {
        assert!(Command::new("ip").args(arguments.split(' ')).status().unwrap().success(), "ip {arguments}");
    };
    let in_namespace = || -> io::Result<()> {
        ip("link set lo up");
        ip("address add 10.53.0.1/24 dev lo");
        ip("address add 2001:db8:53::1/64 dev lo nodad");
        work(&test_link("lo", 1, &["10.53.0.1/24", "2001:db8:53::1/64"]));
        Ok(())
    };
    NetNs::new().unwrap().run(in_namespace).unwrap();
}

/// A real DNS server, which ends with the test.
struct Dnsmasq(Child);

impl Dnsmasq {
    fn start(options: &[&str]) -> Option<Self> {
        let program = ["/usr/sbin/dnsmasq", "/usr/bin/dnsmasq"].map(PathBuf::from).into_iter().find(|p| p.exists());
        let Some(program) = program else {
            eprintln!("skipped: needs dnsmasq (Debian: dnsmasq-base)");
            return None;
        };
        let mut command = Command::new(program);
        command
            .args(["--keep-in-foreground", "--conf-file=/dev/null", "--no-hosts", "--no-resolv", "--user=root"])
            .args([
                "--bind-interfaces",
                "--listen-address=10.53.0.1",
                "--pid-file=",
                "--no-daemon",
                "--log-facility=/dev/null",
            ])
            .args(options)
            .stderr(Stdio::null());
        let server = Self(command.spawn().unwrap());
        let probe = UdpSocket::bind("10.53.0.1:0").unwrap();
        probe.connect("10.53.0.1:53").unwrap();
        probe.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let started = Instant::now();
        let question = super::message::encode_query(1, "ready.test", super::message::Family::V4, false).unwrap();
        while started.elapsed() < Duration::from_secs(10) {
            if probe.send(&question).is_ok() && probe.recv(&mut [0; 512]).is_ok() {
                return Some(server);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("dnsmasq does not answer");
    }
}

impl Drop for Dnsmasq {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const RESOLVED_CONF: (&str, &str) = ("run/systemd/netif/links/1", "DNS=10.53.0.1\n");

#[test]
fn a_real_server_is_queried_over_the_link() {
    in_network_namespace(|lo| {
        let many: Vec<String> =
            (1..=200).map(|n| format!("--host-record=many.test,10.9.{}.{}", n / 100, n % 100)).collect();
        let mut options = vec![
            "--host-record=edge.test,203.0.113.5,2001:db8::5",
            "--host-record=four.test,203.0.113.6",
            "--cname=www.test,edge.test",
            "--address=/nowhere.test/",
            "--local=/test/",
        ];
        options.extend(many.iter().map(String::as_str));
        let Some(_server) = Dnsmasq::start(&options) else { return };
        let server = "10.53.0.1".parse().unwrap();
        let source = ResolutionSource::Resolved { server, link: "lo".into() };
        let edge = Resolution { addresses: addresses(&["2001:db8::5", "203.0.113.5"]), source: source.clone() };
        assert_eq!(resolve(&[RESOLVED_CONF], "edge.test", Some(lo)), Ok(edge.clone()));
        assert_eq!(resolve(&[RESOLVED_CONF], "WWW.Test.", Some(lo)), Ok(edge), "through a CNAME");
        assert_eq!(
            resolve(&[RESOLVED_CONF], "four.test", Some(lo)).unwrap().addresses,
            addresses(&["203.0.113.6"])
        );
        let four = test_link("lo", 1, &["10.53.0.1/24"]);
        assert_eq!(
            resolve(&[RESOLVED_CONF], "edge.test", Some(&four)).unwrap().addresses,
            addresses(&["203.0.113.5"])
        );
        let many = resolve(&[RESOLVED_CONF], "many.test", Some(&four)).unwrap();
        assert_eq!((many.addresses.len(), many.source), (200, source), "over TCP");
        let conf = resolve(&[("etc/resolv.conf", "nameserver 10.53.0.1\n")], "four.test", Some(lo)).unwrap();
        assert_eq!(conf.source.to_string(), "resolv.conf's server 10.53.0.1 over lo");
        let none = resolve_with_files(&[RESOLVED_CONF], "nowhere.test", Some(lo)).unwrap_err();
        assert_eq!(
            none,
            ResolveError {
                message: "nowhere.test: no such name according to 10.53.0.1".into(),
                is_definitive: true
            }
        );
    });
}

#[test]
fn after_an_unresponsive_server_the_next_one_is_queried() {
    in_network_namespace(|lo| {
        let Some(_server) = Dnsmasq::start(&["--host-record=edge.test,203.0.113.5"]) else { return };
        // The first port has no listener; the second server exists and does not respond.
        let _silent = UdpSocket::bind("10.53.0.2:53").unwrap();
        for dead in ["10.53.0.1:54", "10.53.0.2"] {
            let line = format!("DNS={dead} 10.53.0.1\n");
            let answer = resolve(&[("run/systemd/netif/links/1", &line)], "edge.test", Some(lo)).unwrap();
            assert_eq!(answer.addresses, addresses(&["203.0.113.5"]), "{dead}");
        }
    });
}

#[test]
fn a_link_can_resolve_if_one_of_its_servers_responds_at_all() {
    in_network_namespace(|link| {
        let can_resolve = |text: &str| {
            let root = system_files(&[("etc/resolv.conf", text)]);
            let resolver = Resolver::with_paths(SystemPaths {
                root: root.path().to_owned(),
                dns_port: 53,
                route_lookup: |_| None,
            });
            block_on(resolver.can_resolve_over(link))
        };
        // The server denies the name; the other address has no server.
        let Some(_dnsmasq) = Dnsmasq::start(&["--address=/arpa/"]) else { return };
        assert_eq!(can_resolve("nameserver 10.53.0.9\nnameserver 10.53.0.1\n"), Some(true));
        assert_eq!(can_resolve("nameserver 10.53.0.9\n"), Some(false));
        assert_eq!(can_resolve("nameserver 127.0.0.53\n"), None);
    });
}

#[test]
fn without_a_server_of_the_link_the_system_is_queried_and_reported() {
    in_network_namespace(|lo| {
        // The namespace has no access to the system's servers, so the system's resolver knows no name either.
        let error = resolve_with_files(&[("etc/resolv.conf", "nameserver 127.0.0.53\n")], "edge.invalid", Some(lo))
            .unwrap_err();
        assert!(error.message.starts_with("edge.invalid: "), "{error:?}");
        // A timeout is not a definitive answer.
        let _silent = UdpSocket::bind("10.53.0.1:53").unwrap();
        let error = resolve_with_files(&[RESOLVED_CONF], "edge.test", Some(lo)).unwrap_err();
        let message = "DNS server 10.53.0.1:53 does not answer".to_owned();
        assert_eq!(error, ResolveError { message, is_definitive: false });
    });
    // Only the system's resolver accepts this notation of an address.
    let answer = resolve(&[], "0x7f000001", None).unwrap();
    assert_eq!(answer, Resolution { addresses: addresses(&["127.0.0.1"]), source: ResolutionSource::System });
    assert_eq!(answer.source.to_string(), "the system's resolver, not queried over the link");
}

#[test]
fn a_result_is_cached_for_its_link_only() {
    in_network_namespace(|lo| {
        let socket = UdpSocket::bind("10.53.0.1:53").unwrap();
        let root = system_files(&[RESOLVED_CONF]);
        let resolver = Resolver::with_paths(SystemPaths {
            root: root.path().to_owned(),
            dns_port: 53,
            route_lookup: |_| None,
        });
        let four = test_link("lo", 1, &["10.53.0.1/24"]);
        std::thread::scope(|scope| {
            let server = scope.spawn(move || {
                let mut query_count = 0;
                socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
                let mut buffer = [0; 512];
                while let Ok((length, from)) = socket.recv_from(&mut buffer) {
                    query_count += 1;
                    socket
                        .send_to(&response(&buffer[..length], 0, &[("", 1, vec![203, 0, 113, query_count])]), from)
                        .unwrap();
                }
                query_count
            });
            block_on(async {
                let resolve = || resolver.resolve_for(None, "edge.test", Some(&four), Duration::from_secs(5));
                let first = resolve().await.unwrap();
                assert_eq!(resolve().await.unwrap(), first);
                resolver.clear_cache();
                assert_ne!(resolve().await.unwrap(), first);
            });
            assert_eq!(server.join().unwrap(), 2);
        });
        let _ = lo;
    });
}

#[test]
fn a_look_up_ends_at_its_time_limit() {
    in_network_namespace(|lo| {
        let _silent = UdpSocket::bind("10.53.0.1:53").unwrap();
        let root = system_files(&[RESOLVED_CONF]);
        let resolver = Resolver::with_paths(SystemPaths {
            root: root.path().to_owned(),
            dns_port: 53,
            route_lookup: |_| None,
        });
        let error =
            block_on(resolver.resolve_for(None, "edge.test", Some(lo), Duration::from_millis(300))).unwrap_err();
        assert_eq!(error.message, "edge.test: no answer within 0.3 s");
    });
}

/// In a network with its own NAT64 prefix, an address that translates to a private one is refused.
#[test]
fn addresses_that_translate_to_private_ones_count_as_private() {
    use crate::egress::{AddressZone, EgressPolicy};
    const SIX: (&str, &str) = ("run/systemd/netif/links/1", "DNS=2001:db8:53::1\n");
    let both = test_link("lo", 1, &["10.53.0.1/24", "2001:db8:53::1/64"]);
    in_network_namespace(|_| {
        let records = [
            "--local=/test/",
            "--host-record=six.test,2a0e:b107:64::a00:1",
            "--host-record=out.test,2a0e:b107:64::808:808",
        ];
        let known = "--host-record=ipv4only.arpa,2a0e:b107:64::c000:aa";
        let options = [&["--listen-address=2001:db8:53::1", known][..], &records].concat();
        let Some(_server) = Dnsmasq::start(&options) else { return };
        let root = system_files(&[SIX]);
        let resolver = Resolver::with_paths(SystemPaths {
            root: root.path().to_owned(),
            dns_port: 53,
            route_lookup: |_| None,
        });
        let policy = EgressPolicy::user().referred_by_zone(AddressZone::Internet);
        for (host, is_refused) in [("six.test", true), ("2a0e:b107:64::7f00:1", true), ("out.test", false)] {
            let answer =
                block_on(resolver.resolve_checked(&policy, host, Some(&both), Duration::from_secs(20))).unwrap();
            let checked = policy.check((answer.addresses[0], 80).into());
            assert_eq!(checked.is_err(), is_refused, "{host}: {answer:?}");
        }
    });
}

/// In an IPv6-only network with DNS64, hosts with only IPv4 are reached through its NAT64.
#[test]
fn ipv4_addresses_are_translated_over_a_link_without_ipv4() {
    const SIX: (&str, &str) = ("run/systemd/netif/links/1", "DNS=2001:db8:53::1\n");
    let hosts = ("etc/hosts", "203.0.113.9 nas.test\n10.0.0.9 private.test\n");
    let records = ["--host-record=edge.test,203.0.113.5,2001:db8::5", "--host-record=four.test,203.0.113.6"];
    let six = test_link("lo", 1, &["2001:db8:53::1/64"]);
    for (known, translates) in [("--host-record=ipv4only.arpa,64:ff9b::c000:aa", true), ("--local=/arpa/", false)] {
        in_network_namespace(|_| {
            let mut options = vec!["--listen-address=2001:db8:53::1", "--local=/test/", known];
            options.extend(records);
            let Some(_server) = Dnsmasq::start(&options) else { return };
            let first = |host: &str| resolve(&[SIX, hosts], host, Some(&six)).map(|answer| answer.addresses);
            assert_eq!(
                first("edge.test").unwrap(),
                addresses(&["2001:db8::5"]),
                "it has an IPv6 address of its own"
            );
            for (host, want) in [
                ("203.0.113.7", "64:ff9b::203.0.113.7"),
                ("four.test", "64:ff9b::203.0.113.6"),
                ("nas.test", "64:ff9b::203.0.113.9"),
            ] {
                match first(host) {
                    Ok(found) => assert!(translates && found == addresses(&[want]), "{host}: {found:?}"),
                    Err(why) => assert!(!translates, "{host}: {why}"),
                }
            }
            // Private addresses are not translated.
            for host in ["10.0.0.1", "169.254.169.254", "private.test"] {
                assert!(first(host).is_err(), "{host}");
            }
            // A link with IPv4 does not use NAT64.
            let both = test_link("lo", 1, &["10.53.0.1/24", "2001:db8:53::1/64"]);
            let answer = resolve(&[SIX], "four.test", Some(&both)).unwrap();
            assert_eq!(answer.addresses, addresses(&["203.0.113.6"]));
        });
    }
}
