//! Tests of applying and restoring the host configuration, in network namespaces that the tests create. They need
//! root and `ip`, and are skipped with a message where these are absent.

use std::process::Command;

use marline_net::links::list_interfaces;
use marline_net::testing::{cable, in_a_network, ip};

use super::*;

impl HostConfig {
    /// Simulates `kill -9`: no cleanup runs, and only the lock ends.
    pub(crate) fn kill(mut self) {
        self.undo_log = None;
    }
}

/// A host with its own run directory.
struct TestHost {
    run_dir: tempfile::TempDir,
}

impl TestHost {
    fn new() -> Self {
        Self { run_dir: tempfile::tempdir().unwrap() }
    }

    fn lock(&self) -> InstanceLock {
        InstanceLock::acquire(self.run_dir.path(), Role::Paths).unwrap()
    }

    /// Applies the configuration of a run over these links.
    fn apply(&self, links: &[&str]) -> HostConfig {
        let routed_links =
            RoutedLinks { links: links.iter().map(|link| (*link).to_owned()).collect(), is_explicit: false };
        let mut host = HostConfig::new(
            self.lock(),
            self.run_dir.path(),
            routed_links,
            Box::new(|message| eprintln!("notice: {message}")),
        );
        host.apply(Mode::Userspace).unwrap();
        host.update_routing(&list_interfaces().unwrap());
        host
    }
}

fn ip_output(arguments: &str) -> String {
    let output = Command::new("ip").args(arguments.split_whitespace()).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// Everything that a run may change, as text.
fn host_state() -> String {
    let ip = ["rule", "-6 rule", "route show table all", "-6 route show table all"].map(ip_output).concat();
    // The kernel adds its own addresses to the link after up to a second.
    let ip: Vec<&str> = ip.lines().filter(|line| !line.contains("fe80:")).collect();
    let settings =
        [sysctl::MPTCP_ENABLED, sysctl::PATH_MANAGER, sysctl::TCP_RMEM].map(|name| Sysctls::of_system().read(name));
    format!("{}{settings:?}", ip.join("\n"))
}

/// The interface by which packets from an address reach the Internet; none: not at all.
fn exit_interface(source: &str) -> Option<String> {
    let destination = if source.contains(':') { "2001:4860:4860::8888" } else { "198.51.100.1" };
    let text = ip_output(&format!("route get {destination} from {source}"));
    let mut fields = text.split_whitespace().skip_while(|field| *field != "dev");
    fields.nth(1).map(str::to_owned)
}

/// Two links with IPv4 and IPv6: the kernel prefers `eth0`, and `eth1` has the worse metric.
fn add_two_links() {
    cable("eth0", "10.1.0.2/24");
    cable("eth1", "10.2.0.2/24");
    ip("address add 2001:db8:1::2/64 dev eth0 nodad");
    ip("address add 2001:db8:2::2/64 dev eth1 nodad");
    ip("route add default via 10.1.0.1 dev eth0 metric 100");
    ip("route add default via 10.2.0.1 dev eth1 metric 200");
    ip("-6 route add default via 2001:db8:1::1 dev eth0 metric 100");
    ip("-6 route add default via 2001:db8:2::1 dev eth1 metric 200");
    wait_for_carrier();
    // Local routes of IPv6 addresses appear some time after the carrier.
    wait_until(|| ip_output("-6 route show table local").matches("local 2001:db8:").count() == 2);
}

/// The kernel reports a carrier up to a second later; until then routes count as dead.
fn wait_for_carrier() {
    wait_until(|| !ip_output("link show").contains("NO-CARRIER") && !ip_output("route").contains("linkdown"));
}

fn wait_until(condition: impl Fn() -> bool) {
    for _ in 0..1000 {
        if condition() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

#[test]
fn packets_leave_by_the_link_of_their_address_and_nothing_is_left_afterwards() {
    in_a_network(|| {
        add_two_links();
        let before = host_state();
        assert_eq!(exit_interface("10.2.0.2").as_deref(), Some("eth0"), "the kernel goes by destination");
        let test_host = TestHost::new();
        let mut host = test_host.apply(&["eth0", "eth1"]);
        for (source, link) in
            [("10.1.0.2", "eth0"), ("10.2.0.2", "eth1"), ("2001:db8:1::2", "eth0"), ("2001:db8:2::2", "eth1")]
        {
            assert_eq!(exit_interface(source).as_deref(), Some(link), "{source}");
        }
        assert!(!ip_output("rule").contains("10.1.0.2"), "the kernel's own choice needs no rule");
        assert!(ip_output("rule").contains("from 10.2.0.2 lookup 731"), "{}", ip_output("rule"));
        assert_eq!(Sysctls::of_system().read(sysctl::PATH_MANAGER).as_deref(), Some("userspace"));
        host.restore();
        assert_eq!(host_state(), before);
        drop(host);
        assert_eq!(std::fs::read_dir(test_host.run_dir.path()).unwrap().count(), 0);
    });
}

#[test]
fn rules_and_routes_of_others_stay_whatever_their_origin() {
    in_a_network(|| {
        add_two_links();
        ip("route add default via 10.2.0.1 dev eth1 table 55 proto 109");
        ip("rule add from 10.2.0.9 table 55 priority 500 protocol 109");
        let before = host_state();
        let test_host = TestHost::new();
        let mut host = test_host.apply(&["eth0", "eth1"]);
        assert_eq!(exit_interface("10.2.0.2").as_deref(), Some("eth1"));
        host.restore();
        assert_eq!(host_state(), before);
        assert!(before.contains("from 10.2.0.9") && before.contains("table 55"), "{before}");
    });
}

#[test]
fn neighbours_and_other_known_networks_are_still_reached_directly() {
    in_a_network(|| {
        add_two_links();
        cable("lan0", "10.3.0.2/24");
        ip("route add 10.77.0.0/16 via 10.1.0.7 dev eth0");
        wait_for_carrier();
        let _host = TestHost::new().apply(&["eth0", "eth1"]);
        for (destination, expected) in [
            ("10.2.0.9", "10.2.0.9 from 10.2.0.2 dev eth1"),
            ("10.3.0.9", "10.3.0.9 from 10.2.0.2 dev lan0"),
            ("10.77.1.1", "10.77.1.1 from 10.2.0.2 via 10.1.0.7 dev eth0"),
        ] {
            let text = ip_output(&format!("route get {destination} from 10.2.0.2"));
            assert!(text.starts_with(expected), "{text}");
        }
    });
}

#[test]
fn a_crash_is_cleaned_at_the_next_start_or_by_restore() {
    in_a_network(|| {
        add_two_links();
        let before = host_state();
        let test_host = TestHost::new();
        test_host.apply(&["eth0", "eth1"]).kill();
        let (crashed, rules) = (host_state(), ip_output("rule"));
        assert_ne!(crashed, before);
        // The next run adopts what fits, and restores what the first one found.
        let mut host = test_host.apply(&["eth0", "eth1"]);
        assert_eq!(ip_output("rule"), rules);
        host.restore();
        drop(host);
        assert_eq!(host_state(), before);
        // With other links, or without a next run.
        test_host.apply(&["eth0", "eth1"]).kill();
        test_host.apply(&["eth0"]).kill();
        assert!(!ip_output("rule").contains("10.2.0.2"));
        test_host.apply(&["eth0", "eth1"]).kill();
        let restored = restore(test_host.run_dir.path()).unwrap().restored;
        let buffer = Sysctls::of_system().read(sysctl::TCP_RMEM).unwrap();
        let buffer = format!("{}: restored to {buffer}", sysctl::TCP_RMEM);
        assert_eq!(restored, ["net.mptcp.path_manager: restored to kernel", &buffer, "6 rules and routes removed"]);
        assert_eq!(host_state(), before);
        assert_eq!(
            restore(test_host.run_dir.path()).unwrap(),
            RestoreResult::default(),
            "nothing is left to restore"
        );
    });
}

#[test]
fn leftovers_of_a_run_with_another_directory_are_restored() {
    in_a_network(|| {
        add_two_links();
        let (before, crashed, test_host) = (host_state(), TestHost::new(), TestHost::new());
        crashed.apply(&["eth0", "eth1"]).kill();
        let notice = check(test_host.run_dir.path(), Mode::Userspace).unwrap().unwrap();
        assert!(notice.contains("no program listens") && notice.contains("restore --run-dir DIR"), "{notice}");
        assert_eq!(
            check(crashed.run_dir.path(), Mode::Userspace).unwrap(),
            None,
            "its undo log explains everything"
        );
        let result = restore(test_host.run_dir.path()).unwrap();
        let [remaining] = &result.remaining[..] else { panic!("{result:?}") };
        assert!(
            remaining.starts_with("net.mptcp.path_manager: still userspace") && remaining.contains("--run-dir DIR"),
            "{remaining}"
        );
        assert_eq!(Sysctls::of_system().read(sysctl::PATH_MANAGER).as_deref(), Some("userspace"));
        test_host.apply(&["eth0", "eth1"]).restore();
        assert_eq!(Sysctls::of_system().read(sysctl::PATH_MANAGER).as_deref(), Some("kernel"));
        assert_eq!(restore(crashed.run_dir.path()).unwrap().remaining, [""; 0]);
        assert_eq!(host_state(), before);
    });
}

#[test]
fn a_setting_that_another_program_changes_is_restored_a_limited_number_of_times() {
    in_a_network(|| {
        add_two_links();
        std::fs::write("/proc/sys/net/mptcp/enabled", "0").unwrap();
        let before = host_state();
        let mut host = TestHost::new().apply(&["eth0", "eth1"]);
        let read = |name| Sysctls::of_system().read(name).unwrap();
        host.recheck_sysctls();
        assert_eq!(host.notes(), [""; 0]);
        std::fs::write("/proc/sys/net/mptcp/enabled", "0").unwrap();
        for round in 0..9 {
            std::fs::write("/proc/sys/net/mptcp/path_manager", "kernel").unwrap();
            host.recheck_sysctls();
            assert_eq!(read(sysctl::PATH_MANAGER) == "userspace", round < 6, "{round}");
        }
        assert_eq!(read(sysctl::MPTCP_ENABLED), "1");
        let notes = host.notes();
        assert!(notes[0].starts_with("net.mptcp.path_manager is kernel, set by another program"), "{notes:?}");
        assert!(
            notes[1].starts_with("net.mptcp.enabled was changed by another program and restored 1 times"),
            "{notes:?}"
        );
        host.restore();
        assert_eq!(host_state(), before);
    });
}

/// A run that may crash at any step: it configures the host, adds an endpoint where the kernel manages paths, and
/// ends.
fn run_until_crash(test_host: &TestHost, mode: Mode) {
    let routed_links = RoutedLinks { links: vec!["eth0".into(), "eth1".into()], is_explicit: false };
    let mut host = HostConfig::new(test_host.lock(), test_host.run_dir.path(), routed_links, Box::new(|_| {}));
    let result = host.apply(mode).and_then(|()| {
        host.update_routing(&list_interfaces().unwrap());
        if mode == Mode::KernelPm {
            let address = "10.2.0.2".parse().unwrap();
            host.record_endpoints(&[Endpoint::for_subflows(address, 0, false)], &[])?;
            if !crash::has_crashed() {
                ip("mptcp endpoint add 10.2.0.2 subflow");
            }
            let (previous, raised) =
                (Limits { subflows: 2, accepted_addresses: 0 }, Limits { subflows: 5, accepted_addresses: 0 });
            host.record_limits(previous, raised)?;
            if !crash::has_crashed() {
                ip("mptcp limits set subflow 5 add_addr_accepted 0");
            }
        }
        Ok(())
    });
    if result.is_ok() {
        host.restore();
    }
    host.kill();
}

#[test]
fn a_crash_at_any_step_is_fully_restored() {
    in_a_network(|| {
        add_two_links();
        ip("mptcp limits set subflow 2 add_addr_accepted 0");
        let full_state = || host_state() + &ip_output("mptcp endpoint show") + &ip_output("mptcp limits show");
        let (test_host, before) = (TestHost::new(), full_state());
        let (mut deaths, mut ends) = (0, 0);
        // A run after another crashed one, which used another configuration.
        for (crashed, mode) in [
            (None, Mode::Userspace),
            (None, Mode::KernelPm),
            (Some(Mode::Userspace), Mode::KernelPm),
            (Some(Mode::KernelPm), Mode::Userspace),
        ] {
            for steps in 0.. {
                if let Some(mode) = crashed {
                    let mut host = test_host.apply(&["eth0", "eth1"]);
                    host.apply(mode).unwrap();
                    host.kill();
                }
                crash::crash_after(Some(steps));
                run_until_crash(&test_host, mode);
                let died = crash::has_crashed();
                crash::crash_after(None);
                deaths += u32::from(died);
                restore(test_host.run_dir.path()).unwrap();
                assert_eq!(full_state(), before, "died after {steps} steps of {mode:?} after {crashed:?}");
                assert_eq!(std::fs::read_dir(test_host.run_dir.path()).unwrap().count(), 0);
                if !died {
                    ends += 1;
                    break;
                }
            }
        }
        assert_eq!(ends, 4);
        assert!(deaths > 40, "{deaths}");
    });
}

#[test]
fn routing_follows_new_leases_and_links_that_return() {
    in_a_network(|| {
        add_two_links();
        let test_host = TestHost::new();
        let mut host = test_host.apply(&["eth0", "eth1"]);
        ip("address flush dev eth1");
        ip("address add 10.9.0.7/24 dev eth1");
        ip("route add default via 10.9.0.1 dev eth1 metric 200");
        host.update_routing(&list_interfaces().unwrap());
        assert_eq!(exit_interface("10.9.0.7").as_deref(), Some("eth1"));
        assert!(ip_output("route get 198.51.100.1 from 10.9.0.7").contains("via 10.9.0.1"));
        assert!(!ip_output("rule").contains("10.2.0.2"), "the old address has no rule any more");
        // The same address with another router.
        ip("route replace default via 10.9.0.254 dev eth1 metric 200");
        host.update_routing(&list_interfaces().unwrap());
        assert!(ip_output("route get 198.51.100.1 from 10.9.0.7").contains("via 10.9.0.254"));
        ip("link set eth1 down");
        host.update_routing(&list_interfaces().unwrap());
        assert!(!ip_output("rule").contains("10.9.0.7"));
        ip("link set eth1 up");
        ip("route add default via 10.9.0.254 dev eth1 metric 200");
        wait_for_carrier();
        host.update_routing(&list_interfaces().unwrap());
        assert_eq!(exit_interface("10.9.0.7").as_deref(), Some("eth1"));
        ip("link delete eth1");
        host.update_routing(&list_interfaces().unwrap());
        assert!(!ip_output("rule").contains("10.9.0.7"));
        cable("eth1", "10.9.0.7/24");
        ip("route add default via 10.9.0.1 dev eth1 metric 200");
        wait_for_carrier();
        host.update_routing(&list_interfaces().unwrap());
        assert_eq!(exit_interface("10.9.0.7").as_deref(), Some("eth1"), "the same name with another number");
        let tables = ip_output("route show table all");
        assert_eq!(tables.matches("default").count(), 4, "two of eth0, one of eth1 and one of ours: {tables}");
    });
}

#[test]
fn removed_rules_are_restored_a_limited_number_of_times() {
    in_a_network(|| {
        add_two_links();
        let mut host = TestHost::new().apply(&["eth0", "eth1"]);
        let count_own =
            |arguments: &str| ip_output(arguments).lines().filter(|line| line.contains("proto 109")).count();
        let count_installed =
            || ["-4 rule", "-6 rule", "-4 route show table all", "-6 route show table all"].map(count_own);
        let complete = count_installed();
        assert_eq!(complete, [2, 2, 1, 1]);
        for round in 0..20 {
            ip("-4 rule flush protocol 109");
            ip("-4 route flush table all protocol 109");
            assert_eq!(count_installed(), [0, 2, 0, 1]);
            host.update_routing(&list_interfaces().unwrap());
            assert_eq!(count_installed() == complete, round < 6, "{round}: {:?}", count_installed());
        }
        assert!(host.last_errors.iter().any(|line| line.contains("repeatedly removes")), "{:?}", host.last_errors);
        // New addresses get their rules nevertheless.
        ip("address add 10.2.0.9/24 dev eth1");
        host.update_routing(&list_interfaces().unwrap());
        assert!(ip_output("rule").contains("from 10.2.0.9 lookup 731"));
    });
}

#[test]
fn packets_from_temporary_and_deprecated_addresses_leave_by_their_link() {
    in_a_network(|| {
        add_two_links();
        ip("address add 2001:db8:2::77/64 dev eth1 nodad preferred_lft 0");
        for (setting, value) in [("accept_dad", "0"), ("use_tempaddr", "2")] {
            std::fs::write(format!("/proc/sys/net/ipv6/conf/eth1/{setting}"), value).unwrap();
        }
        ip("address add 2001:db8:2::88/64 dev eth1 nodad preferred_lft 6000 valid_lft 9000 mngtmpaddr");
        let mut transient = Vec::new();
        for _ in 0..1000 {
            transient.clone_from(&list_interfaces().unwrap().by_name("eth1").unwrap().transient_addresses);
            if transient.len() == 2 {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        assert_eq!(transient.len(), 2, "{}", ip_output("-6 address show dev eth1"));
        let stable = list_interfaces().unwrap().by_name("eth1").unwrap().addresses.clone();
        assert_eq!(stable, ["10.2.0.2", "2001:db8:2::2", "2001:db8:2::88"].map(|a| a.parse::<IpAddr>().unwrap()));
        let mut host = TestHost::new().apply(&["eth0", "eth1"]);
        for address in transient {
            assert_eq!(exit_interface(&address.to_string()).as_deref(), Some("eth1"), "{address}");
        }
        host.restore();
        assert_eq!(ip_output("-6 rule").matches("proto 109").count(), 0);
    });
}

#[test]
fn two_links_in_one_subnet_each_carry_their_own_packets() {
    in_a_network(|| {
        cable("wwan0", "192.168.8.100/24");
        cable("wwan1", "192.168.8.101/24");
        ip("route add default via 192.168.8.1 dev wwan0 metric 100");
        ip("route add default via 192.168.8.1 dev wwan1 metric 200");
        wait_for_carrier();
        let before = host_state();
        let mut host = TestHost::new().apply(&["wwan0", "wwan1"]);
        assert_eq!(exit_interface("192.168.8.100").as_deref(), Some("wwan0"));
        assert_eq!(exit_interface("192.168.8.101").as_deref(), Some("wwan1"));
        host.restore();
        assert_eq!(host_state(), before);
    });
}

/// The interface by which packets from an address leave; `bound`: the device to which their socket is bound.
fn bound_exit_interface(source: &str, bound: &str) -> Option<String> {
    let text = ip_output(&format!("route get 198.51.100.1 from {source} {bound}"));
    let mut fields = text.split_whitespace().skip_while(|field| *field != "dev");
    fields.nth(1).map(str::to_owned)
}

#[test]
fn with_a_shared_address_bound_sockets_use_their_device_and_others_the_main_table() {
    in_a_network(|| {
        for (n, name) in ["wwan0", "wwan1", "wwan2"].into_iter().enumerate() {
            cable(name, "192.168.8.100/24");
            ip(&format!("route add default via 192.168.8.1 dev {name} metric {}00", n + 1));
        }
        cable("eth0", "10.0.9.2/24");
        ip("route add default via 10.0.9.1 dev eth0 metric 900");
        wait_for_carrier();
        let mut host = TestHost::new().apply(&["wwan2", "wwan1", "wwan0", "eth0"]);
        for name in ["wwan0", "wwan1", "wwan2"] {
            let interface = bound_exit_interface("192.168.8.100", &format!("oif {name}"));
            assert_eq!(interface.as_deref(), Some(name));
            let rules = ip_output("rule");
            assert!(rules.contains(&format!("from 192.168.8.100 oif {name} lookup 731")), "{rules}");
        }
        assert_eq!(exit_interface("192.168.8.100").as_deref(), Some("wwan0"));
        assert_eq!(exit_interface("10.0.9.2").as_deref(), Some("eth0"));
        // The only interface with a default route for the address, after the others lost theirs, needs no device in
        // its rules.
        ip("link delete wwan0");
        ip("link delete wwan1");
        host.update_routing(&list_interfaces().unwrap());
        assert_eq!(exit_interface("192.168.8.100").as_deref(), Some("wwan2"));
        assert!(!ip_output("rule").contains("oif"), "{}", ip_output("rule"));
        cable("wwan0", "192.168.8.100/24");
        ip("route add default via 192.168.8.1 dev wwan0 metric 100");
        wait_for_carrier();
        host.update_routing(&list_interfaces().unwrap());
        assert_eq!(bound_exit_interface("192.168.8.100", "oif wwan2").as_deref(), Some("wwan2"));
        assert_eq!(exit_interface("192.168.8.100").as_deref(), Some("wwan0"));
        host.restore();
        assert!(!ip_output("rule").contains("731") && !ip_output("route show table all").contains("731"));
    });
}

#[test]
fn own_routes_do_not_make_a_link_usable() {
    in_a_network(|| {
        add_two_links();
        let mut host = TestHost::new().apply(&["eth0", "eth1"]);
        ip("route delete default dev eth1");
        ip("-6 route delete default dev eth1");
        let survey = list_interfaces().unwrap();
        assert!(!survey.by_name("eth1").unwrap().is_usable(), "it has no default route but ours");
        host.update_routing(&survey);
        assert_eq!(ip_output("rule").matches("731").count(), 0, "{}", ip_output("rule"));
    });
}

#[test]
fn a_host_without_mptcp_or_without_the_privilege_is_not_touched() {
    in_a_network(|| {
        add_two_links();
        let before = host_state();
        let test_host = TestHost::new();
        let routed_links = RoutedLinks { links: vec!["eth0".into(), "eth1".into()], is_explicit: false };
        let missing_dir = test_host.run_dir.path().join("gone");
        let mut host = HostConfig::new(test_host.lock(), &missing_dir, routed_links, Box::new(|_| {}));
        let error = host.apply(Mode::Userspace).unwrap_err().to_string();
        assert!(error.contains("without the undo log nothing is changed"), "{error}");
        host.update_routing(&list_interfaces().unwrap());
        drop(host);
        assert_eq!(host_state(), before);
    });
}

#[test]
fn another_path_manager_is_not_replaced() {
    in_a_network(|| {
        add_two_links();
        std::fs::write("/proc/sys/net/mptcp/path_manager", "userspace").unwrap();
        // A listener with another name; `ip` itself counts as a mere monitor.
        let test_host = TestHost::new();
        let program = test_host.run_dir.path().join("steerd");
        let path_var = std::env::var_os("PATH").unwrap();
        let ip = std::env::split_paths(&path_var).map(|path| path.join("ip")).find(|path| path.exists());
        std::os::unix::fs::symlink(ip.unwrap(), &program).unwrap();
        let mut other = Command::new(program).args(["mptcp", "monitor"]).spawn().unwrap();
        while event_listeners().is_empty() {
            std::thread::sleep(std::time::Duration::from_millis(10));
            assert_eq!(other.try_wait().unwrap(), None);
        }
        let before = host_state();
        let routed_links = RoutedLinks { links: vec!["eth0".into(), "eth1".into()], is_explicit: false };
        let mut host = HostConfig::new(test_host.lock(), test_host.run_dir.path(), routed_links, Box::new(|_| {}));
        let error = host.apply(Mode::Userspace).unwrap_err().to_string();
        assert!(error.starts_with("another path manager is active: steerd (process "), "{error}");
        drop(host);
        assert_eq!(host_state(), before);
        other.kill().unwrap();
        other.wait().unwrap();
        // Without a listener it may be replaced, and the kernel's own path manager remains.
        test_host.apply(&["eth0", "eth1"]).restore();
        assert_eq!(host_state(), before.replace("userspace", "kernel"));
    });
}
