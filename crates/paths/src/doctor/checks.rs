//! Findings about the kernel, its settings, and other path managers.

use marline_core::finding::{Finding, Severity};

use super::facts::{HostFacts, LoopbackResult};
use crate::host_config::{RunningDaemon, other_path_manager};

/// All findings, in the order in which a person would check.
pub(super) fn check_host(facts: &HostFacts) -> Vec<Finding> {
    let kernel = check_kernel(facts);
    // Without MPTCP the other checks of the kernel are pointless.
    if kernel.severity == Severity::Blocks {
        return vec![kernel];
    }
    let mut findings = vec![kernel, check_mptcp_enabled(facts), check_privilege(facts)];
    findings.extend(check_sysctl_access(facts));
    findings.push(check_path_manager(facts));
    findings.extend(check_blackhole(facts));
    findings.extend(check_fallback(facts));
    findings.extend(check_endpoints(facts));
    findings.extend(check_leftovers(facts));
    findings
}

fn check_kernel(facts: &HostFacts) -> Finding {
    const NAME: &str = "kernel";
    let kernel = &facts.kernel_version;
    if facts.mptcp_enabled.is_none() {
        return Finding::blocks(
            NAME,
            format!("Linux {kernel} has no MPTCP"),
            "use a kernel from 5.19 on with CONFIG_MPTCP=y, as provided by all major distributions",
        );
    }
    if facts.path_manager.is_none() || !facts.has_events {
        return Finding::blocks(
            NAME,
            format!("Linux {kernel} has MPTCP, but no userspace path manager"),
            "use a kernel from 5.19 on; until then `ip mptcp endpoint` manages all connections alike",
        );
    }
    Finding::ok(NAME, format!("Linux {kernel} with MPTCP"))
}

fn check_mptcp_enabled(facts: &HostFacts) -> Finding {
    const NAME: &str = "MPTCP";
    let is_on = facts.mptcp_enabled.as_deref() != Some("0");
    match &facts.loopback {
        _ if !is_on => Finding::blocks(
            NAME,
            "it is switched off (net.mptcp.enabled=0): no program can open MPTCP sockets",
            "`sysctl -w net.mptcp.enabled=1`; `marline paths` also sets it, for as long as it runs",
        ),
        LoopbackResult::Mptcp => Finding::ok(NAME, "it is on, and works on the loopback"),
        // A temporary switch-off has its own finding (`check_blackhole`).
        LoopbackResult::PlainTcp => Finding::ok(NAME, "it is on"),
        LoopbackResult::Failed(reason) => Finding::note(
            NAME,
            format!("it is on, but cannot be tested on the loopback: {reason}"),
            "check for a firewall on the loopback, or a sandbox that refuses MPTCP sockets",
        ),
    }
}

fn check_privilege(facts: &HostFacts) -> Finding {
    const NAME: &str = "privilege";
    match (facts.has_net_admin, facts.daemon) {
        (true, _) => Finding::ok(NAME, "this process has CAP_NET_ADMIN"),
        (false, Some(daemon)) => {
            Finding::ok(NAME, format!("not here; {daemon} is running and has it: with sudo more is checked"))
        }
        (false, None) => Finding::blocks(
            NAME,
            "CAP_NET_ADMIN is missing, without which no path can be managed",
            "run it as root, or by the systemd unit, which gives it this one privilege; `--dry-run` needs none",
        ),
    }
}

fn check_sysctl_access(facts: &HostFacts) -> Option<Finding> {
    const NAME: &str = "settings";
    let is_configured =
        facts.path_manager.as_deref() == Some("userspace") && facts.mptcp_enabled.as_deref() != Some("0");
    (facts.has_net_admin && !facts.has_sysctl_access).then(|| {
        if is_configured {
            return Finding::note(
                NAME,
                "settings below /proc/sys/net cannot be written here; those that a run needs are set already",
                "for fast late subflows, also set net.ipv4.tcp_rmem on the host (docs/paths-reference.md)",
            );
        }
        Finding::blocks(
            NAME,
            "settings below /proc/sys/net cannot be written here",
            "in a container: have the host set net.mptcp.path_manager=userspace; in a unit: ProtectKernelTunables=no",
        )
    })
}

fn check_path_manager(facts: &HostFacts) -> Finding {
    const NAME: &str = "path manager";
    let userspace = facts.path_manager.as_deref() == Some("userspace");
    if let Some(daemon) = facts.daemon {
        return check_daemon_setting(facts, daemon);
    }
    if let Some(other) = other_path_manager(&facts.event_listeners, userspace) {
        let remedy = if other.name == "mptcpd" {
            "`systemctl disable --now mptcp.service`".to_owned()
        } else if other.name.is_empty() && !facts.has_net_admin {
            "`sudo marline paths doctor` shows its name; stop it, because two path managers undo each other's work"
                .to_owned()
        } else {
            "stop it, because two path managers undo each other's work".to_owned()
        };
        return Finding::blocks(NAME, format!("another one is active: {}", other.describe()), remedy);
    }
    match facts.path_manager.as_deref() {
        // It cannot be changed from inside this container: it was set from outside for a future run.
        Some("userspace") if facts.has_net_admin && !facts.has_sysctl_access => Finding::note(
            NAME,
            "it was set to userspace from outside, and no program listens: connections stay on their first link",
            "start `marline paths`",
        ),
        Some("userspace") => Finding::blocks(
            NAME,
            "it is set to userspace, but no program listens: all connections stay on their first link",
            "`marline paths restore`, with the --run-dir of the run that was killed if it had one; or \
             `sysctl -w net.mptcp.path_manager=kernel` (before Linux 6.16 `net.mptcp.pm_type=0`); or start `marline paths`",
        ),
        Some("kernel") => Finding::ok(NAME, "the kernel's own; `marline paths` takes over while it runs"),
        other => Finding::note(
            NAME,
            format!("it is `{}`, which marline does not know", other.unwrap_or("?")),
            "`marline paths` sets it to `userspace` while it runs, and restores it",
        ),
    }
}

/// While a daemon of marline runs: whether the setting has the value that it needs.
fn check_daemon_setting(facts: &HostFacts, daemon: RunningDaemon) -> Finding {
    const NAME: &str = "path manager";
    let current = facts.path_manager.as_deref().unwrap_or("?");
    let needed = match facts.daemon_mode.as_deref() {
        Some("kernel-pm") => Some("kernel"),
        Some("userspace") => Some("userspace"),
        _ => None,
    };
    match needed {
        Some(needed) if current != needed => Finding::blocks(
            NAME,
            format!(
                "{daemon} is running, but another program has set this to {current}: new connections are not managed"
            ),
            format!(
                "find out who sets it (a file in /etc/sysctl.d, mptcpd), and `sysctl -w net.mptcp.path_manager={needed}` \
                 (before Linux 6.16 `net.mptcp.pm_type`)"
            ),
        ),
        None if current != "userspace" => Finding::note(
            NAME,
            format!("{daemon} is running, and it is set to {current}, which is right only with --kernel-pm"),
            "run it as root, with the --run-dir of that run: `sudo marline paths doctor`",
        ),
        None if !facts.has_net_admin => {
            Finding::ok(NAME, format!("{daemon} is running; `sudo marline paths status` shows what it does"))
        }
        _ => Finding::ok(NAME, daemon.to_string()),
    }
}

fn check_blackhole(facts: &HostFacts) -> Option<Finding> {
    const NAME: &str = "blackhole";
    let seconds = facts.blackhole_timeout?;
    let times = facts.mptcp_counters.get("Blackhole").copied().unwrap_or(0);
    let remedy = format!(
        "`sysctl -w net.mptcp.blackhole_timeout={seconds}` switches MPTCP on again at once; then find the link that drops \
         SYN packets with MPTCP's option: `marline paths doctor --probe HOST:PORT`"
    );
    match (&facts.loopback, times) {
        (LoopbackResult::PlainTcp, _) => Some(Finding::blocks(
            NAME,
            format!(
                "MPTCP is off for all new connections, for {seconds} s after packets with its option were lost \
                 (this happened {times} times since this network namespace was created)"
            ),
            remedy,
        )),
        (_, 0) => None,
        (_, times) => Some(Finding::note(
            NAME,
            format!(
                "packets with MPTCP's option were lost on some path: {times} times, each of which switched it off for a while"
            ),
            remedy,
        )),
    }
}

fn check_fallback(facts: &HostFacts) -> Option<Finding> {
    let count = |name: &str| facts.mptcp_counters.get(name).copied().unwrap_or(0);
    // Client side: the reply to the SYN had no option, or a later packet had none.
    let refused = count("MPCapableFallbackSYNACK");
    let fallbacks_after_handshake = count("DssFallback") + count("MPCapableDataFallback") + count("MD5SigFallback");
    let requested = count("MPCapableSYNTX");
    if refused + fallbacks_after_handshake == 0 {
        return None;
    }
    let summary = format!("of {requested} connections that requested MPTCP, {refused} were answered without it");
    let broken = if fallbacks_after_handshake > 0 {
        format!(", and {fallbacks_after_handshake} lost it later")
    } else {
        String::new()
    };
    Some(Finding::note(
        "fallback",
        format!("{summary}{broken}, and are plain TCP"),
        "most servers do not support it; to test whether a link strips it: \
         `marline paths doctor --probe HOST:PORT` with a server that does",
    ))
}

fn check_endpoints(facts: &HostFacts) -> Option<Finding> {
    let endpoints = facts.endpoints.as_ref().filter(|endpoints| !endpoints.is_empty())?;
    let owner = if facts.has_network_manager {
        "NetworkManager (connection.mptcp-flags) or another program"
    } else {
        "another program"
    };
    let disable = if facts.has_network_manager {
        "`nmcli connection modify NAME connection.mptcp-flags disabled`, or `ip mptcp endpoint flush`"
    } else {
        "`ip mptcp endpoint flush`"
    };
    Some(Finding::note(
        "endpoints",
        format!("{owner} has configured {}: {}", endpoint_count(endpoints.len()), endpoints.join(", ")),
        format!(
            "harmless while `marline paths` manages each connection separately; with --kernel-pm, and for connections \
             opened before, they make every link join: {disable}"
        ),
    ))
}

fn endpoint_count(endpoints: usize) -> String {
    if endpoints == 1 { "one endpoint".to_owned() } else { format!("{endpoints} endpoints") }
}

fn check_leftovers(facts: &HostFacts) -> Option<Finding> {
    (facts.daemon.is_none() && !facts.leftovers.is_empty()).then(|| {
        Finding::note(
            "leftovers",
            format!("a run that was killed left behind: {}", facts.leftovers.join("; ")),
            "`marline restore` undoes it, and so does the next run at its end",
        )
    })
}

#[cfg(test)]
pub(super) mod tests {
    use marline_net::links::InterfaceList;

    use super::*;
    use crate::doctor::EventListener;

    /// Facts of a suitable host.
    pub(in crate::doctor) fn healthy_facts() -> HostFacts {
        HostFacts {
            kernel_version: "6.18.0".into(),
            mptcp_enabled: Some("1".into()),
            path_manager: Some("kernel".into()),
            blackhole_timeout: Some(3600),
            has_sysctl_access: true,
            has_events: true,
            mptcp_counters: [("MPCapableSYNTX".to_owned(), 9)].into(),
            loopback: LoopbackResult::Mptcp,
            has_net_admin: true,
            daemon: None,
            daemon_mode: None,
            event_listeners: Vec::new(),
            endpoints: Some(Vec::new()),
            has_network_manager: false,
            leftovers: Vec::new(),
            requested_links: Vec::new(),
            survey: InterfaceList { interfaces: Vec::new(), vpn: None },
            links: Vec::new(),
        }
    }

    /// Severity and text of the finding with this name.
    fn finding_text(facts: &HostFacts, name: &str) -> Option<(Severity, String)> {
        let mut findings = check_host(facts).into_iter().filter(|finding| finding.name == name);
        let finding = findings.next().map(|f| (f.severity, format!("{} | {}", f.message, f.remedy)));
        assert!(findings.next().is_none(), "{name} twice");
        finding
    }

    #[track_caller]
    fn assert_finding(facts: &HostFacts, name: &str, state: Severity, message: &str) {
        let (found, text) = finding_text(facts, name).unwrap_or_else(|| panic!("nothing about {name}"));
        assert!(found == state && text.contains(message), "{found:?} {text}");
        assert_eq!(
            found == Severity::Ok,
            text.ends_with("| "),
            "a remedy exactly where something is wrong: {text}"
        );
    }

    #[test]
    fn a_suitable_host_has_no_problems() {
        let findings = check_host(&healthy_facts());
        assert!(findings.iter().all(|finding| finding.severity == Severity::Ok), "{findings:?}");
        assert_eq!(findings.len(), 4);
    }

    #[test]
    fn a_kernel_without_mptcp_or_too_old_is_the_only_finding() {
        let without = HostFacts { mptcp_enabled: None, path_manager: None, has_events: false, ..healthy_facts() };
        assert_finding(
            &without,
            "kernel",
            Severity::Blocks,
            "has no MPTCP | use a kernel from 5.19 on with CONFIG_MPTCP=y",
        );
        assert_eq!(check_host(&without).len(), 1);
        for old_kernel in [
            HostFacts { path_manager: None, ..healthy_facts() },
            HostFacts { has_events: false, ..healthy_facts() },
        ] {
            assert_finding(&old_kernel, "kernel", Severity::Blocks, "no userspace path manager");
        }
    }

    #[test]
    fn mptcp_that_is_switched_off_blocks() {
        let off = HostFacts {
            mptcp_enabled: Some("0".into()),
            loopback: LoopbackResult::Failed("refused".into()),
            ..healthy_facts()
        };
        assert_finding(&off, "MPTCP", Severity::Blocks, "`sysctl -w net.mptcp.enabled=1`");
        let odd = HostFacts { loopback: LoopbackResult::Failed("timed out".into()), ..healthy_facts() };
        assert_finding(&odd, "MPTCP", Severity::Note, "cannot be tested on the loopback: timed out");
    }

    #[test]
    fn a_missing_privilege_blocks_unless_a_daemon_has_it() {
        let user = HostFacts { has_net_admin: false, ..healthy_facts() };
        assert_finding(&user, "privilege", Severity::Blocks, "CAP_NET_ADMIN is missing");
        let by_daemon = HostFacts { daemon: Some(RunningDaemon { process: None }), ..user };
        assert_finding(&by_daemon, "privilege", Severity::Ok, "not here; `marline paths` is running and has it");
        let sealed = HostFacts { has_sysctl_access: false, ..healthy_facts() };
        assert_finding(&sealed, "settings", Severity::Blocks, "ProtectKernelTunables=no");
    }

    #[test]
    fn another_path_manager_blocks_and_an_expected_one_is_noted() {
        let listener = |name: &str| vec![EventListener { process: Some(812), name: name.into() }];
        let mptcpd = HostFacts { event_listeners: listener("mptcpd"), ..healthy_facts() };
        assert_finding(
            &mptcpd,
            "path manager",
            Severity::Blocks,
            "another one is active: mptcpd (process 812) | `systemctl disable",
        );
        let userspace = HostFacts { path_manager: Some("userspace".into()), ..healthy_facts() };
        assert_finding(&userspace, "path manager", Severity::Blocks, "no program listens");
        let text = finding_text(&userspace, "path manager").unwrap().1;
        assert!(text.contains("`marline paths restore`") && text.contains("path_manager=kernel"), "{text}");
        let sealed = HostFacts { has_sysctl_access: false, ..userspace.clone() };
        assert_finding(&sealed, "path manager", Severity::Note, "set to userspace from outside");
        assert_finding(&sealed, "settings", Severity::Note, "those that a run needs are set already");
        let hidden = HostFacts { event_listeners: listener(""), has_net_admin: false, ..userspace.clone() };
        assert_finding(&hidden, "path manager", Severity::Blocks, "`sudo marline paths doctor` shows its name");
        let other = HostFacts { event_listeners: listener("steerd"), ..userspace.clone() };
        assert_finding(&other, "path manager", Severity::Blocks, "another one is active: steerd (process 812)");
        let monitoring = HostFacts { event_listeners: listener("ip"), ..healthy_facts() };
        assert_finding(&monitoring, "path manager", Severity::Ok, "the kernel's own");
        let bpf = HostFacts { path_manager: Some("bpf".into()), ..healthy_facts() };
        assert_finding(&bpf, "path manager", Severity::Note, "`bpf`, which marline does not know");
    }

    #[test]
    fn a_changed_path_manager_setting_blocks_while_a_daemon_runs() {
        let daemon = Some(RunningDaemon { process: Some(7) });
        let with = |mode: Option<&str>, manager: &str| {
            let (mode, path_manager) = (mode.map(str::to_owned), Some(manager.to_owned()));
            HostFacts { daemon, daemon_mode: mode, path_manager, ..healthy_facts() }
        };
        for (mode, manager, state, message) in [
            (Some("userspace"), "userspace", Severity::Ok, "`marline paths` (process 7) | "),
            (Some("kernel-pm"), "kernel", Severity::Ok, "`marline paths` (process 7) | "),
            (Some("userspace"), "kernel", Severity::Blocks, ": new connections are not managed | "),
            (Some("userspace"), "kernel", Severity::Blocks, "`sysctl -w net.mptcp.path_manager=userspace`"),
            (Some("kernel-pm"), "userspace", Severity::Blocks, "`sysctl -w net.mptcp.path_manager=kernel`"),
            (None, "userspace", Severity::Ok, "`marline paths` (process 7) | "),
            (None, "kernel", Severity::Note, "right only with --kernel-pm"),
        ] {
            assert_finding(&with(mode, manager), "path manager", state, message);
        }
        let by_daemon = HostFacts {
            daemon: Some(RunningDaemon { process: None }),
            has_net_admin: false,
            ..with(None, "userspace")
        };
        assert_finding(
            &by_daemon,
            "path manager",
            Severity::Ok,
            "`marline paths` is running; `sudo marline paths status` shows",
        );
    }

    #[test]
    fn a_blackhole_blocks_while_it_lasts_and_is_noted_afterwards() {
        assert_eq!(finding_text(&healthy_facts(), "blackhole"), None);
        let mut after_blackhole = healthy_facts();
        after_blackhole.mptcp_counters.insert("Blackhole".into(), 2);
        assert_finding(&after_blackhole, "blackhole", Severity::Note, "2 times");
        let now = HostFacts { loopback: LoopbackResult::PlainTcp, ..after_blackhole };
        assert_finding(
            &now,
            "blackhole",
            Severity::Blocks,
            "`sysctl -w net.mptcp.blackhole_timeout=3600` switches MPTCP on again",
        );
        assert_eq!(
            finding_text(&HostFacts { blackhole_timeout: None, ..now }, "blackhole"),
            None,
            "a kernel that knows none"
        );
    }

    #[test]
    fn options_that_are_stripped_or_refused_are_counted() {
        assert_eq!(finding_text(&healthy_facts(), "fallback"), None);
        let mut some = healthy_facts();
        some.mptcp_counters.insert("MPCapableFallbackSYNACK".into(), 5);
        assert_finding(
            &some,
            "fallback",
            Severity::Note,
            "of 9 connections that requested MPTCP, 5 were answered without it, and",
        );
        some.mptcp_counters.insert("DssFallback".into(), 1);
        assert_finding(&some, "fallback", Severity::Note, "and 1 lost it later");
    }

    #[test]
    fn endpoints_of_others_are_noted_with_a_remedy() {
        let endpoints = Some(vec!["10.1.0.2 id 1".to_owned(), "10.2.0.2 id 2".to_owned()]);
        let mut facts = HostFacts { endpoints, ..healthy_facts() };
        assert_finding(
            &facts,
            "endpoints",
            Severity::Note,
            "has configured 2 endpoints: 10.1.0.2 id 1, 10.2.0.2 id 2",
        );
        facts.has_network_manager = true;
        assert_finding(&facts, "endpoints", Severity::Note, "connection.mptcp-flags disabled");
        assert_eq!(
            finding_text(&HostFacts { endpoints: None, ..facts }, "endpoints"),
            None,
            "what cannot be read is no finding"
        );
    }

    #[test]
    fn leftovers_of_a_killed_run_are_noted_while_no_other_runs() {
        let killed = HostFacts { leftovers: vec!["net.mptcp.path_manager=userspace".into()], ..healthy_facts() };
        assert_finding(&killed, "leftovers", Severity::Note, "`marline restore`");
        assert_eq!(
            finding_text(&HostFacts { daemon: Some(RunningDaemon { process: Some(7) }), ..killed }, "leftovers"),
            None
        );
    }
}
