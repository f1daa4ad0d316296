//! Hosts that are laid and put back, in network namespaces that the tests make. They need root and `ip`, and say so
//! where these are absent.

use std::process::Command;

use marline_net::links::list_interfaces;
use marline_net::testing::{cable, in_a_network, ip};

use super::*;

impl Host {
    /// `kill -9`: nothing of the host's own is run any more, and only the claim ends.
    pub(crate) fn kill(mut self) {
        self.laid = None;
    }
}

/// A host with a run directory of its own.
struct Lab {
    run: tempfile::TempDir,
}

impl Lab {
    fn new() -> Self {
        Self { run: tempfile::tempdir().unwrap() }
    }

    fn claim(&self) -> Claim {
        Claim::take(self.run.path(), Role::Steer).unwrap()
    }

    /// A run over these links, laid.
    fn lay(&self, links: &[&str]) -> Host {
        let roads = Roads { links: links.iter().map(|link| (*link).to_owned()).collect(), named: false };
        let mut host = Host::new(self.claim(), self.run.path(), roads, Box::new(|line| eprintln!("told: {line}")));
        host.lay(Mode::Userspace).unwrap();
        host.follow(&list_interfaces().unwrap());
        host
    }
}

fn output(words: &str) -> String {
    let output = Command::new("ip").args(words.split_whitespace()).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// All that a run may change, as text.
fn everything() -> String {
    let ip = ["rule", "-6 rule", "route show table all", "-6 route show table all"].map(output).concat();
    // The kernel's own addresses of the link come a second after it.
    let ip: Vec<&str> = ip.lines().filter(|line| !line.contains("fe80:")).collect();
    let settings =
        [settings::ENABLED, settings::PATH_MANAGER, settings::BUFFER].map(|name| Settings::system().read(name));
    format!("{}{settings:?}", ip.join("\n"))
}

/// The link by which the world is reached from an address; none: not at all.
fn leaves_by(from: &str) -> Option<String> {
    let to = if from.contains(':') { "2001:4860:4860::8888" } else { "198.51.100.1" };
    let text = output(&format!("route get {to} from {from}"));
    let mut words = text.split_whitespace().skip_while(|word| *word != "dev");
    words.nth(1).map(str::to_owned)
}

/// `eth0` is the kernel's choice, `eth1` has the worse metric; both have IPv4 and IPv6.
fn two_links() {
    cable("eth0", "10.1.0.2/24");
    cable("eth1", "10.2.0.2/24");
    ip("address add 2001:db8:1::2/64 dev eth0 nodad");
    ip("address add 2001:db8:2::2/64 dev eth1 nodad");
    ip("route add default via 10.1.0.1 dev eth0 metric 100");
    ip("route add default via 10.2.0.1 dev eth1 metric 200");
    ip("-6 route add default via 2001:db8:1::1 dev eth0 metric 100");
    ip("-6 route add default via 2001:db8:2::1 dev eth1 metric 200");
    wait_for_carrier();
    // The local routes of IPv6 addresses come some time after the carrier.
    wait_until(|| output("-6 route show table local").matches("local 2001:db8:").count() == 2);
}

/// The kernel tells of a carrier up to a second later; until then routes count as dead.
fn wait_for_carrier() {
    wait_until(|| !output("link show").contains("NO-CARRIER") && !output("route").contains("linkdown"));
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
fn what_has_a_links_address_leaves_by_it_and_afterwards_nothing_is_left() {
    in_a_network(|| {
        two_links();
        let before = everything();
        assert_eq!(leaves_by("10.2.0.2").as_deref(), Some("eth0"), "the kernel goes by destination");
        let lab = Lab::new();
        let mut host = lab.lay(&["eth0", "eth1"]);
        for (from, link) in
            [("10.1.0.2", "eth0"), ("10.2.0.2", "eth1"), ("2001:db8:1::2", "eth0"), ("2001:db8:2::2", "eth1")]
        {
            assert_eq!(leaves_by(from).as_deref(), Some(link), "{from}");
        }
        assert!(!output("rule").contains("10.1.0.2"), "the kernel's own choice needs no rule");
        assert!(output("rule").contains("from 10.2.0.2 lookup 731"), "{}", output("rule"));
        assert_eq!(Settings::system().read(settings::PATH_MANAGER).as_deref(), Some("userspace"));
        host.restore();
        assert_eq!(everything(), before);
        drop(host);
        assert_eq!(std::fs::read_dir(lab.run.path()).unwrap().count(), 0);
    });
}

#[test]
fn rules_and_routes_of_others_stay_whatever_origin_they_name() {
    in_a_network(|| {
        two_links();
        ip("route add default via 10.2.0.1 dev eth1 table 55 proto 109");
        ip("rule add from 10.2.0.9 table 55 priority 500 protocol 109");
        let before = everything();
        let lab = Lab::new();
        let mut host = lab.lay(&["eth0", "eth1"]);
        assert_eq!(leaves_by("10.2.0.2").as_deref(), Some("eth1"));
        host.restore();
        assert_eq!(everything(), before);
        assert!(before.contains("from 10.2.0.9") && before.contains("table 55"), "{before}");
    });
}

#[test]
fn neighbours_and_other_known_networks_are_still_reached_directly() {
    in_a_network(|| {
        two_links();
        cable("lan0", "10.3.0.2/24");
        ip("route add 10.77.0.0/16 via 10.1.0.7 dev eth0");
        wait_for_carrier();
        let _host = Lab::new().lay(&["eth0", "eth1"]);
        for (to, by) in [
            ("10.2.0.9", "10.2.0.9 from 10.2.0.2 dev eth1"),
            ("10.3.0.9", "10.3.0.9 from 10.2.0.2 dev lan0"),
            ("10.77.1.1", "10.77.1.1 from 10.2.0.2 via 10.1.0.7 dev eth0"),
        ] {
            let text = output(&format!("route get {to} from 10.2.0.2"));
            assert!(text.starts_with(by), "{text}");
        }
    });
}

#[test]
fn a_crash_is_cleaned_at_the_next_start_or_by_restore() {
    in_a_network(|| {
        two_links();
        let before = everything();
        let lab = Lab::new();
        lab.lay(&["eth0", "eth1"]).kill();
        let (crashed, rules) = (everything(), output("rule"));
        assert_ne!(crashed, before);
        // The next run takes over what fits, and puts back what the first one found.
        let mut host = lab.lay(&["eth0", "eth1"]);
        assert_eq!(output("rule"), rules);
        host.restore();
        drop(host);
        assert_eq!(everything(), before);
        // With links that are others now, or without a next run.
        lab.lay(&["eth0", "eth1"]).kill();
        lab.lay(&["eth0"]).kill();
        assert!(!output("rule").contains("10.2.0.2"));
        lab.lay(&["eth0", "eth1"]).kill();
        let lines = restore(lab.run.path()).unwrap().lines;
        let buffer = Settings::system().read(settings::BUFFER).unwrap();
        let buffer = format!("{}: {buffer} again", settings::BUFFER);
        assert_eq!(lines, ["net.mptcp.path_manager: kernel again", &buffer, "6 rules and routes removed"]);
        assert_eq!(everything(), before);
        assert_eq!(restore(lab.run.path()).unwrap(), Restored::default(), "there is nothing more to put back");
    });
}

#[test]
fn what_a_run_with_another_directory_has_left_does_not_stay_for_ever() {
    in_a_network(|| {
        two_links();
        let (before, crashed, lab) = (everything(), Lab::new(), Lab::new());
        crashed.lay(&["eth0", "eth1"]).kill();
        let told = check(lab.run.path(), Mode::Userspace).unwrap().unwrap();
        assert!(told.contains("none listens") && told.contains("restore --run-dir DIR"), "{told}");
        assert_eq!(check(crashed.run.path(), Mode::Userspace).unwrap(), None, "its own notes tell it all");
        let restored = restore(lab.run.path()).unwrap();
        let [left] = &restored.left[..] else { panic!("{restored:?}") };
        assert!(
            left.starts_with("net.mptcp.path_manager: still userspace") && left.contains("--run-dir DIR"),
            "{left}"
        );
        assert_eq!(Settings::system().read(settings::PATH_MANAGER).as_deref(), Some("userspace"));
        lab.lay(&["eth0", "eth1"]).restore();
        assert_eq!(Settings::system().read(settings::PATH_MANAGER).as_deref(), Some("kernel"));
        assert_eq!(restore(crashed.run.path()).unwrap().left, [""; 0]);
        assert_eq!(everything(), before);
    });
}

#[test]
fn a_setting_that_somebody_else_changes_is_put_back_but_not_without_end() {
    in_a_network(|| {
        two_links();
        std::fs::write("/proc/sys/net/mptcp/enabled", "0").unwrap();
        let before = everything();
        let mut host = Lab::new().lay(&["eth0", "eth1"]);
        let read = |name| Settings::system().read(name).unwrap();
        host.hold();
        assert_eq!(host.notes(), [""; 0]);
        std::fs::write("/proc/sys/net/mptcp/enabled", "0").unwrap();
        for round in 0..9 {
            std::fs::write("/proc/sys/net/mptcp/path_manager", "kernel").unwrap();
            host.hold();
            assert_eq!(read(settings::PATH_MANAGER) == "userspace", round < 6, "{round}");
        }
        assert_eq!(read(settings::ENABLED), "1");
        let notes = host.notes();
        assert!(notes[0].starts_with("net.mptcp.path_manager is kernel, which somebody else has set"), "{notes:?}");
        assert!(
            notes[1].starts_with("net.mptcp.enabled was changed by somebody else and put back 1 times"),
            "{notes:?}"
        );
        host.restore();
        assert_eq!(everything(), before);
    });
}

/// A run that may die at any step: it lays the host, adds an endpoint where the kernel manages paths, and ends.
fn a_run_that_may_die(lab: &Lab, mode: Mode) {
    let roads = Roads { links: vec!["eth0".into(), "eth1".into()], named: false };
    let mut host = Host::new(lab.claim(), lab.run.path(), roads, Box::new(|_| {}));
    let laid = host.lay(mode).and_then(|()| {
        host.follow(&list_interfaces().unwrap());
        if mode == Mode::KernelPm {
            let address = "10.2.0.2".parse().unwrap();
            host.note_endpoints(&[Endpoint::for_subflows(address, 0, false)], &[])?;
            if !fault::is_dying() {
                ip("mptcp endpoint add 10.2.0.2 subflow");
            }
            let (was, more) =
                (Limits { subflows: 2, accepted_addresses: 0 }, Limits { subflows: 5, accepted_addresses: 0 });
            host.note_limits(was, more)?;
            if !fault::is_dying() {
                ip("mptcp limits set subflow 5 add_addr_accepted 0");
            }
        }
        Ok(())
    });
    if laid.is_ok() {
        host.restore();
    }
    host.kill();
}

#[test]
fn whatever_the_step_at_which_a_run_dies_all_is_put_back() {
    in_a_network(|| {
        two_links();
        ip("mptcp limits set subflow 2 add_addr_accepted 0");
        let all = || everything() + &output("mptcp endpoint show") + &output("mptcp limits show");
        let (lab, before) = (Lab::new(), all());
        let (mut deaths, mut ends) = (0, 0);
        // A run that another one has crashed before, too, and left a host that wants to be laid otherwise.
        for (crashed, mode) in [
            (None, Mode::Userspace),
            (None, Mode::KernelPm),
            (Some(Mode::Userspace), Mode::KernelPm),
            (Some(Mode::KernelPm), Mode::Userspace),
        ] {
            for steps in 0.. {
                if let Some(mode) = crashed {
                    let mut host = lab.lay(&["eth0", "eth1"]);
                    host.lay(mode).unwrap();
                    host.kill();
                }
                fault::dies_after(Some(steps));
                a_run_that_may_die(&lab, mode);
                let died = fault::is_dying();
                fault::dies_after(None);
                deaths += u32::from(died);
                restore(lab.run.path()).unwrap();
                assert_eq!(all(), before, "died after {steps} steps of {mode:?} after {crashed:?}");
                assert_eq!(std::fs::read_dir(lab.run.path()).unwrap().count(), 0);
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
fn a_new_lease_is_followed_and_so_is_a_link_that_goes_and_comes() {
    in_a_network(|| {
        two_links();
        let lab = Lab::new();
        let mut host = lab.lay(&["eth0", "eth1"]);
        ip("address flush dev eth1");
        ip("address add 10.9.0.7/24 dev eth1");
        ip("route add default via 10.9.0.1 dev eth1 metric 200");
        host.follow(&list_interfaces().unwrap());
        assert_eq!(leaves_by("10.9.0.7").as_deref(), Some("eth1"));
        assert!(output("route get 198.51.100.1 from 10.9.0.7").contains("via 10.9.0.1"));
        assert!(!output("rule").contains("10.2.0.2"), "the old address has no rule any more");
        // The same address, and the router is another one.
        ip("route replace default via 10.9.0.254 dev eth1 metric 200");
        host.follow(&list_interfaces().unwrap());
        assert!(output("route get 198.51.100.1 from 10.9.0.7").contains("via 10.9.0.254"));
        ip("link set eth1 down");
        host.follow(&list_interfaces().unwrap());
        assert!(!output("rule").contains("10.9.0.7"));
        ip("link set eth1 up");
        ip("route add default via 10.9.0.254 dev eth1 metric 200");
        wait_for_carrier();
        host.follow(&list_interfaces().unwrap());
        assert_eq!(leaves_by("10.9.0.7").as_deref(), Some("eth1"));
        ip("link delete eth1");
        host.follow(&list_interfaces().unwrap());
        assert!(!output("rule").contains("10.9.0.7"));
        cable("eth1", "10.9.0.7/24");
        ip("route add default via 10.9.0.1 dev eth1 metric 200");
        wait_for_carrier();
        host.follow(&list_interfaces().unwrap());
        assert_eq!(leaves_by("10.9.0.7").as_deref(), Some("eth1"), "the same name with another number");
        let tables = output("route show table all");
        assert_eq!(tables.matches("default").count(), 4, "two of eth0, one of eth1 and one of ours: {tables}");
    });
}

#[test]
fn what_somebody_else_removes_is_put_back_but_not_without_end() {
    in_a_network(|| {
        two_links();
        let mut host = Lab::new().lay(&["eth0", "eth1"]);
        let ours = |words: &str| output(words).lines().filter(|line| line.contains("proto 109")).count();
        let laid = || ["-4 rule", "-6 rule", "-4 route show table all", "-6 route show table all"].map(ours);
        let whole = laid();
        assert_eq!(whole, [2, 2, 1, 1]);
        for round in 0..20 {
            ip("-4 rule flush protocol 109");
            ip("-4 route flush table all protocol 109");
            assert_eq!(laid(), [0, 2, 0, 1]);
            host.follow(&list_interfaces().unwrap());
            assert_eq!(laid() == whole, round < 6, "{round}: {:?}", laid());
        }
        assert!(host.told.iter().any(|line| line.contains("again and again")), "{:?}", host.told);
        // What is new has its rules all the same.
        ip("address add 10.2.0.9/24 dev eth1");
        host.follow(&list_interfaces().unwrap());
        assert!(output("rule").contains("from 10.2.0.9 lookup 731"));
    });
}

#[test]
fn an_address_that_is_temporary_or_deprecated_leaves_by_its_link_too() {
    in_a_network(|| {
        two_links();
        ip("address add 2001:db8:2::77/64 dev eth1 nodad preferred_lft 0");
        for (setting, value) in [("accept_dad", "0"), ("use_tempaddr", "2")] {
            std::fs::write(format!("/proc/sys/net/ipv6/conf/eth1/{setting}"), value).unwrap();
        }
        ip("address add 2001:db8:2::88/64 dev eth1 nodad preferred_lft 6000 valid_lft 9000 mngtmpaddr");
        let mut passing = Vec::new();
        for _ in 0..1000 {
            passing.clone_from(&list_interfaces().unwrap().by_name("eth1").unwrap().transient_addresses);
            if passing.len() == 2 {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        assert_eq!(passing.len(), 2, "{}", output("-6 address show dev eth1"));
        let lasting = list_interfaces().unwrap().by_name("eth1").unwrap().addresses.clone();
        assert_eq!(lasting, ["10.2.0.2", "2001:db8:2::2", "2001:db8:2::88"].map(|a| a.parse::<IpAddr>().unwrap()));
        let mut host = Lab::new().lay(&["eth0", "eth1"]);
        for address in passing {
            assert_eq!(leaves_by(&address.to_string()).as_deref(), Some("eth1"), "{address}");
        }
        host.restore();
        assert_eq!(output("-6 rule").matches("proto 109").count(), 0);
    });
}

#[test]
fn two_links_of_one_subnet_leave_each_by_its_own() {
    in_a_network(|| {
        cable("wwan0", "192.168.8.100/24");
        cable("wwan1", "192.168.8.101/24");
        ip("route add default via 192.168.8.1 dev wwan0 metric 100");
        ip("route add default via 192.168.8.1 dev wwan1 metric 200");
        wait_for_carrier();
        let before = everything();
        let mut host = Lab::new().lay(&["wwan0", "wwan1"]);
        assert_eq!(leaves_by("192.168.8.100").as_deref(), Some("wwan0"));
        assert_eq!(leaves_by("192.168.8.101").as_deref(), Some("wwan1"));
        host.restore();
        assert_eq!(everything(), before);
    });
}

/// By which interface packets from there to the world leave; `bound`: to which device their socket is bound.
fn leaves_bound(from: &str, bound: &str) -> Option<String> {
    let text = output(&format!("route get 198.51.100.1 from {from} {bound}"));
    let mut words = text.split_whitespace().skip_while(|word| *word != "dev");
    words.nth(1).map(str::to_owned)
}

#[test]
fn links_of_one_address_leave_each_by_its_own_device_and_what_is_not_bound_by_the_main_table() {
    in_a_network(|| {
        for (n, name) in ["wwan0", "wwan1", "wwan2"].into_iter().enumerate() {
            cable(name, "192.168.8.100/24");
            ip(&format!("route add default via 192.168.8.1 dev {name} metric {}00", n + 1));
        }
        cable("eth0", "10.0.9.2/24");
        ip("route add default via 10.0.9.1 dev eth0 metric 900");
        wait_for_carrier();
        let mut host = Lab::new().lay(&["wwan2", "wwan1", "wwan0", "eth0"]);
        for name in ["wwan0", "wwan1", "wwan2"] {
            let led = leaves_bound("192.168.8.100", &format!("oif {name}"));
            assert_eq!(led.as_deref(), Some(name));
            let rules = output("rule");
            assert!(rules.contains(&format!("from 192.168.8.100 oif {name} lookup 731")), "{rules}");
        }
        assert_eq!(leaves_by("192.168.8.100").as_deref(), Some("wwan0"));
        assert_eq!(leaves_by("10.0.9.2").as_deref(), Some("eth0"));
        // One that was the only one of the address with a default route, as the others went, needs no device.
        ip("link delete wwan0");
        ip("link delete wwan1");
        host.follow(&list_interfaces().unwrap());
        assert_eq!(leaves_by("192.168.8.100").as_deref(), Some("wwan2"));
        assert!(!output("rule").contains("oif"), "{}", output("rule"));
        cable("wwan0", "192.168.8.100/24");
        ip("route add default via 192.168.8.1 dev wwan0 metric 100");
        wait_for_carrier();
        host.follow(&list_interfaces().unwrap());
        assert_eq!(leaves_bound("192.168.8.100", "oif wwan2").as_deref(), Some("wwan2"));
        assert_eq!(leaves_by("192.168.8.100").as_deref(), Some("wwan0"));
        host.restore();
        assert!(!output("rule").contains("731") && !output("route show table all").contains("731"));
    });
}

#[test]
fn our_own_routes_are_no_reason_to_believe_in_a_link() {
    in_a_network(|| {
        two_links();
        let mut host = Lab::new().lay(&["eth0", "eth1"]);
        ip("route delete default dev eth1");
        ip("-6 route delete default dev eth1");
        let survey = list_interfaces().unwrap();
        assert!(!survey.by_name("eth1").unwrap().is_usable(), "it has no default route but ours");
        host.follow(&survey);
        assert_eq!(output("rule").matches("731").count(), 0, "{}", output("rule"));
    });
}

#[test]
fn a_host_without_mptcp_or_without_the_privilege_is_not_touched() {
    in_a_network(|| {
        two_links();
        let before = everything();
        let lab = Lab::new();
        let roads = Roads { links: vec!["eth0".into(), "eth1".into()], named: false };
        let gone = lab.run.path().join("gone");
        let mut host = Host::new(lab.claim(), &gone, roads, Box::new(|_| {}));
        let error = host.lay(Mode::Userspace).unwrap_err().to_string();
        assert!(error.contains("without it nothing is changed"), "{error}");
        host.follow(&list_interfaces().unwrap());
        drop(host);
        assert_eq!(everything(), before);
    });
}

#[test]
fn another_path_manager_is_not_driven_out() {
    in_a_network(|| {
        two_links();
        std::fs::write("/proc/sys/net/mptcp/path_manager", "userspace").unwrap();
        // A listener of another name; `ip` itself is known to only look.
        let lab = Lab::new();
        let program = lab.run.path().join("steerd");
        let folders = std::env::var_os("PATH").unwrap();
        let ip = std::env::split_paths(&folders).map(|path| path.join("ip")).find(|path| path.exists());
        std::os::unix::fs::symlink(ip.unwrap(), &program).unwrap();
        let mut other = Command::new(program).args(["mptcp", "monitor"]).spawn().unwrap();
        while listeners().is_empty() {
            std::thread::sleep(std::time::Duration::from_millis(10));
            assert_eq!(other.try_wait().unwrap(), None);
        }
        let before = everything();
        let roads = Roads { links: vec!["eth0".into(), "eth1".into()], named: false };
        let mut host = Host::new(lab.claim(), lab.run.path(), roads, Box::new(|_| {}));
        let error = host.lay(Mode::Userspace).unwrap_err().to_string();
        assert!(error.starts_with("another path manager is active: steerd (process "), "{error}");
        drop(host);
        assert_eq!(everything(), before);
        other.kill().unwrap();
        other.wait().unwrap();
        // With nobody there it may be taken over, and the kernel's own is what is left.
        lab.lay(&["eth0", "eth1"]).restore();
        assert_eq!(everything(), before.replace("userspace", "kernel"));
    });
}
