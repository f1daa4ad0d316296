//! Tests of applying and restoring the host configuration, in network namespaces that the tests create. They need
//! root and `ip`, and are skipped with a message where these are absent.

use std::process::Command;

use marline_net::links::list_interfaces;
use marline_net::testing::{cable, in_a_network, ip};

use super::*;

impl HostConfig {
    /// Simulates `kill -9`: releases the instance lock, as the kernel does for a dead process, and restores nothing.
    pub(crate) fn kill(mut self) {
        self.undo_log = None;
    }
}

/// The run directory of one test. Its undo log outlives runs that crash.
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

    /// Starts a run over these links, which the user has not named: applies the host configuration and the routing.
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

/// Standard output of `ip` with these arguments.
fn ip_output(arguments: &str) -> String {
    let output = Command::new("ip").args(arguments.split_whitespace()).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// Everything that a run may change: rules, routes and sysctls, as text for comparisons.
fn host_state() -> String {
    let rules_and_routes =
        ["rule", "-6 rule", "route show table all", "-6 route show table all"].map(ip_output).concat();
    // The kernel adds routes of IPv6 link-local addresses up to a second later, so they cannot be compared.
    let lines: Vec<&str> = rules_and_routes.lines().filter(|line| !line.contains("fe80:")).collect();
    let settings =
        [sysctl::MPTCP_ENABLED, sysctl::PATH_MANAGER, sysctl::TCP_RMEM].map(|name| Sysctls::of_system().read(name));
    format!("{}{settings:?}", lines.join("\n"))
}

/// The interface by which packets with this source address leave for the Internet; `None`: there is no route.
fn exit_interface(source: &str) -> Option<String> {
    let destination = if source.contains(':') { "2001:4860:4860::8888" } else { "198.51.100.1" };
    let text = ip_output(&format!("route get {destination} from {source}"));
    let mut fields = text.split_whitespace().skip_while(|field| *field != "dev");
    fields.nth(1).map(str::to_owned)
}

/// Adds two links with IPv4 and IPv6. The default route of `eth0` has the lower metric, so the kernel prefers it.
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

/// Waits until all interfaces have a carrier. The kernel reports it up to a second late, and routes are dead until then.
fn wait_for_carrier() {
    wait_until(|| !ip_output("link show").contains("NO-CARRIER") && !ip_output("route").contains("linkdown"));
}

/// Polls for up to 10 s until the condition holds. After that it returns as well, and the test fails at its own check.
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
        assert_eq!(
            exit_interface("10.2.0.2").as_deref(),
            Some("eth0"),
            "the kernel selects the route by destination only"
        );
        let test_host = TestHost::new();
        let mut host = test_host.apply(&["eth0", "eth1"]);
        for (source, link) in
            [("10.1.0.2", "eth0"), ("10.2.0.2", "eth1"), ("2001:db8:1::2", "eth0"), ("2001:db8:2::2", "eth1")]
        {
            assert_eq!(exit_interface(source).as_deref(), Some(link), "{source}");
        }
        assert!(!ip_output("rule").contains("10.1.0.2"), "the link that the kernel prefers needs no rule");
        assert!(ip_output("rule").contains("from 10.2.0.2 lookup 731"), "{}", ip_output("rule"));
        assert_eq!(Sysctls::of_system().read(sysctl::PATH_MANAGER).as_deref(), Some("userspace"));
        host.restore();
        assert_eq!(host_state(), before);
        drop(host);
        assert_eq!(std::fs::read_dir(test_host.run_dir.path()).unwrap().count(), 0);
    });
}

#[test]
fn rules_and_routes_of_others_stay_even_with_marlines_protocol_number() {
    in_a_network(|| {
        add_two_links();
        // marline marks its own rules and routes with the protocol number 109.
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
fn more_specific_routes_of_the_main_table_take_precedence_over_source_routing() {
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
fn changes_of_a_crashed_run_are_restored_by_the_next_run_or_by_restore() {
    in_a_network(|| {
        add_two_links();
        let before = host_state();
        let test_host = TestHost::new();
        test_host.apply(&["eth0", "eth1"]).kill();
        let rules = ip_output("rule");
        assert_ne!(host_state(), before);
        // The next run keeps the rules that are still right. At its end it restores the state from before the crashed run.
        let mut host = test_host.apply(&["eth0", "eth1"]);
        assert_eq!(ip_output("rule"), rules);
        host.restore();
        drop(host);
        assert_eq!(host_state(), before);
        // If the next run has other links, it removes the rules that it does not need.
        test_host.apply(&["eth0", "eth1"]).kill();
        test_host.apply(&["eth0"]).kill();
        assert!(!ip_output("rule").contains("10.2.0.2"));
        // Without a next run, `restore` removes 2 rules and 1 route for each of IPv4 and IPv6.
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
fn changes_of_a_crashed_run_with_another_run_directory_are_reported() {
    in_a_network(|| {
        add_two_links();
        let (before, crashed_host, test_host) = (host_state(), TestHost::new(), TestHost::new());
        crashed_host.apply(&["eth0", "eth1"]).kill();
        // The path manager is set to userspace, no process receives its events, and the undo log of `test_host` does not
        // list the setting.
        let notice = check(test_host.run_dir.path(), Mode::Userspace).unwrap().unwrap();
        assert!(notice.contains("no program listens") && notice.contains("restore --run-dir DIR"), "{notice}");
        assert_eq!(
            check(crashed_host.run_dir.path(), Mode::Userspace).unwrap(),
            None,
            "the undo log in this directory lists the setting as changed by marline"
        );
        let result = restore(test_host.run_dir.path()).unwrap();
        let [remaining] = &result.remaining[..] else { panic!("{result:?}") };
        assert!(
            remaining.starts_with("net.mptcp.path_manager: still userspace") && remaining.contains("--run-dir DIR"),
            "{remaining}"
        );
        assert_eq!(Sysctls::of_system().read(sysctl::PATH_MANAGER).as_deref(), Some("userspace"));
        // The next run does not know the previous value, and sets the kernel's default at its end.
        test_host.apply(&["eth0", "eth1"]).restore();
        assert_eq!(Sysctls::of_system().read(sysctl::PATH_MANAGER).as_deref(), Some("kernel"));
        assert_eq!(restore(crashed_host.run_dir.path()).unwrap().remaining, [""; 0]);
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

/// A run that may crash at any step ([`crash::crash_after`]). It configures the host, and in mode [`Mode::KernelPm`] adds
/// an MPTCP endpoint and raises the limits. If it has not crashed, it restores everything. A real process would execute
/// nothing after the crash, so the `ip` commands are skipped then.
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
        let (mut crashed_runs, mut completed_runs) = (0, 0);
        // The second mode is that of the run under test. The first one, if any, is that of a run that crashed before it.
        for (previous_mode, mode) in [
            (None, Mode::Userspace),
            (None, Mode::KernelPm),
            (Some(Mode::Userspace), Mode::KernelPm),
            (Some(Mode::KernelPm), Mode::Userspace),
        ] {
            for steps in 0.. {
                if let Some(previous_mode) = previous_mode {
                    let mut host = test_host.apply(&["eth0", "eth1"]);
                    host.apply(previous_mode).unwrap();
                    host.kill();
                }
                crash::crash_after(Some(steps));
                run_until_crash(&test_host, mode);
                let has_crashed = crash::has_crashed();
                crash::crash_after(None);
                crashed_runs += u32::from(has_crashed);
                restore(test_host.run_dir.path()).unwrap();
                assert_eq!(full_state(), before, "crash after {steps} steps of {mode:?} after {previous_mode:?}");
                assert_eq!(std::fs::read_dir(test_host.run_dir.path()).unwrap().count(), 0);
                // The run has fewer steps than this: all crash points are tested.
                if !has_crashed {
                    completed_runs += 1;
                    break;
                }
            }
        }
        assert_eq!(completed_runs, 4);
        assert!(crashed_runs > 40, "{crashed_runs}");
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
        assert_eq!(
            exit_interface("10.9.0.7").as_deref(),
            Some("eth1"),
            "the same interface name with another interface index"
        );
        let tables = ip_output("route show table all");
        assert_eq!(
            tables.matches("default").count(),
            4,
            "IPv4 and IPv6 of eth0, IPv4 of eth1, and marline's in table 731: {tables}"
        );
    });
}

#[test]
fn removed_rules_are_restored_a_limited_number_of_times() {
    in_a_network(|| {
        add_two_links();
        let mut host = TestHost::new().apply(&["eth0", "eth1"]);
        // marline's protocol number is 109.
        let count_lines_of_marline =
            |arguments: &str| ip_output(arguments).lines().filter(|line| line.contains("proto 109")).count();
        let count_rules_and_routes = || {
            ["-4 rule", "-6 rule", "-4 route show table all", "-6 route show table all"].map(count_lines_of_marline)
        };
        let complete = count_rules_and_routes();
        assert_eq!(complete, [2, 2, 1, 1]);
        for round in 0..20 {
            ip("-4 rule flush protocol 109");
            ip("-4 route flush table all protocol 109");
            assert_eq!(count_rules_and_routes(), [0, 2, 0, 1]);
            host.update_routing(&list_interfaces().unwrap());
            let counts = count_rules_and_routes();
            assert_eq!(counts == complete, round < 6, "{round}: {counts:?}");
        }
        assert!(host.last_errors.iter().any(|line| line.contains("repeatedly removes")), "{:?}", host.last_errors);
        // The limit does not apply to new addresses.
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
        // One deprecated address (`preferred_lft 0`) and one temporary address, which the kernel
        // derives from the address with `mngtmpaddr`.
        let mut transient_addresses = Vec::new();
        for _ in 0..1000 {
            transient_addresses
                .clone_from(&list_interfaces().unwrap().by_name("eth1").unwrap().transient_addresses);
            if transient_addresses.len() == 2 {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        assert_eq!(transient_addresses.len(), 2, "{}", ip_output("-6 address show dev eth1"));
        let stable = list_interfaces().unwrap().by_name("eth1").unwrap().addresses.clone();
        assert_eq!(stable, ["10.2.0.2", "2001:db8:2::2", "2001:db8:2::88"].map(|a| a.parse::<IpAddr>().unwrap()));
        let mut host = TestHost::new().apply(&["eth0", "eth1"]);
        for address in transient_addresses {
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

/// The interface by which packets leave that have this source address and whose socket is bound to this device.
fn bound_exit_interface(source: &str, device: &str) -> Option<String> {
    let text = ip_output(&format!("route get 198.51.100.1 from {source} oif {device}"));
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
            let interface = bound_exit_interface("192.168.8.100", name);
            assert_eq!(interface.as_deref(), Some(name));
            let rules = ip_output("rule");
            assert!(rules.contains(&format!("from 192.168.8.100 oif {name} lookup 731")), "{rules}");
        }
        assert_eq!(exit_interface("192.168.8.100").as_deref(), Some("wwan0"));
        assert_eq!(exit_interface("10.0.9.2").as_deref(), Some("eth0"));
        // When only one interface has the address, its rules need no device (`oif`).
        ip("link delete wwan0");
        ip("link delete wwan1");
        host.update_routing(&list_interfaces().unwrap());
        assert_eq!(exit_interface("192.168.8.100").as_deref(), Some("wwan2"));
        assert!(!ip_output("rule").contains("oif"), "{}", ip_output("rule"));
        cable("wwan0", "192.168.8.100/24");
        ip("route add default via 192.168.8.1 dev wwan0 metric 100");
        wait_for_carrier();
        host.update_routing(&list_interfaces().unwrap());
        assert_eq!(bound_exit_interface("192.168.8.100", "wwan2").as_deref(), Some("wwan2"));
        assert_eq!(exit_interface("192.168.8.100").as_deref(), Some("wwan0"));
        host.restore();
        assert!(!ip_output("rule").contains("731") && !ip_output("route show table all").contains("731"));
    });
}

#[test]
fn a_link_whose_only_default_route_is_marlines_is_not_usable() {
    in_a_network(|| {
        add_two_links();
        let mut host = TestHost::new().apply(&["eth0", "eth1"]);
        ip("route delete default dev eth1");
        ip("-6 route delete default dev eth1");
        let interfaces = list_interfaces().unwrap();
        assert!(!interfaces.by_name("eth1").unwrap().is_usable(), "only marline's default route is left");
        host.update_routing(&interfaces);
        assert_eq!(ip_output("rule").matches("731").count(), 0, "{}", ip_output("rule"));
    });
}

#[test]
fn nothing_is_changed_if_the_undo_log_cannot_be_written() {
    in_a_network(|| {
        add_two_links();
        let before = host_state();
        let test_host = TestHost::new();
        let routed_links = RoutedLinks { links: vec!["eth0".into(), "eth1".into()], is_explicit: false };
        let missing_dir = test_host.run_dir.path().join("missing");
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
        // A foreign path manager: a process that receives MPTCP events. `ip mptcp monitor` does so, but a process called
        // `ip` is ignored as a diagnostic tool, so it runs under another name.
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
        // When that process has ended, a run may replace the setting `userspace`. At its end it sets `kernel`, the default,
        // because nothing would manage paths with the previous value.
        test_host.apply(&["eth0", "eth1"]).restore();
        assert_eq!(host_state(), before.replace("userspace", "kernel"));
    });
}
