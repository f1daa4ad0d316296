//! The findings about the kernel, its settings, and who else steers.

use super::facts::{Facts, Loopback};
use super::{Finding, State};
use crate::ground::{Running, rival};

/// All of them, in the order in which a person would look.
pub(super) fn all(facts: &Facts) -> Vec<Finding> {
    let kernel = kernel(facts);
    // Without MPTCP there is nothing more to look at in the kernel.
    if kernel.state == State::Blocks {
        return vec![kernel];
    }
    let mut findings = vec![kernel, enabled(facts), privilege(facts)];
    findings.extend(writable(facts));
    findings.push(manager(facts));
    findings.extend(blackhole(facts));
    findings.extend(fallback(facts));
    findings.extend(endpoints(facts));
    findings.extend(leftovers(facts));
    findings
}

fn kernel(facts: &Facts) -> Finding {
    const NAME: &str = "kernel";
    let kernel = &facts.kernel;
    if facts.enabled.is_none() {
        return Finding::blocks(
            NAME,
            format!("Linux {kernel} has no MPTCP"),
            "a kernel from 5.19 on with CONFIG_MPTCP=y, as all large distributions build it",
        );
    }
    if facts.path_manager.is_none() || !facts.has_events {
        return Finding::blocks(
            NAME,
            format!("Linux {kernel} has MPTCP, but no path manager for programs"),
            "a kernel from 5.19 on; until then `ip mptcp endpoint` steers all connections alike",
        );
    }
    Finding::ok(NAME, format!("Linux {kernel} with MPTCP"))
}

fn enabled(facts: &Facts) -> Finding {
    const NAME: &str = "MPTCP";
    let is_on = facts.enabled.as_deref() != Some("0");
    match &facts.loopback {
        _ if !is_on => Finding::blocks(
            NAME,
            "it is switched off (net.mptcp.enabled=0): no program can open MPTCP sockets",
            "`sysctl -w net.mptcp.enabled=1`; `marline paths` also sets it, for as long as it runs",
        ),
        Loopback::Speaks => Finding::ok(NAME, "it is on, and this machine speaks it with itself"),
        // What switches it off for a while has a finding of its own.
        Loopback::Plain => Finding::ok(NAME, "it is on"),
        Loopback::Failed(why) => Finding::note(
            NAME,
            format!("it is on, but this machine cannot try it with itself: {why}"),
            "look for a firewall on the loopback, or a sandbox that refuses MPTCP sockets",
        ),
    }
}

fn privilege(facts: &Facts) -> Finding {
    const NAME: &str = "privilege";
    match (facts.privileged, facts.daemon) {
        (true, _) => Finding::ok(NAME, "CAP_NET_ADMIN is there"),
        (false, Some(daemon)) => {
            Finding::ok(NAME, format!("not here; {daemon} runs and has it: with sudo this examination sees more"))
        }
        (false, None) => Finding::blocks(
            NAME,
            "CAP_NET_ADMIN is missing, without which nothing can be steered",
            "run it as root, or by the systemd unit, which gives it this one privilege; `--dry-run` needs none",
        ),
    }
}

fn writable(facts: &Facts) -> Option<Finding> {
    const NAME: &str = "settings";
    let fits = facts.path_manager.as_deref() == Some("userspace") && facts.enabled.as_deref() != Some("0");
    (facts.privileged && !facts.writable).then(|| {
        if fits {
            return Finding::note(
                NAME,
                "settings below /proc/sys/net cannot be written here; those that a run must have are there",
                "for links that join late, have the host set net.ipv4.tcp_rmem, too (docs/paths.md)",
            );
        }
        Finding::blocks(
            NAME,
            "settings below /proc/sys/net cannot be written here",
            "in a container: have the host set net.mptcp.path_manager=userspace; in a unit: ProtectKernelTunables=no",
        )
    })
}

fn manager(facts: &Facts) -> Finding {
    const NAME: &str = "path manager";
    let userspace = facts.path_manager.as_deref() == Some("userspace");
    if let Some(daemon) = facts.daemon {
        return managed(facts, daemon);
    }
    if let Some(other) = rival(&facts.listeners, userspace) {
        let remedy = if other.name == "mptcpd" {
            "`systemctl disable --now mptcp.service`".to_owned()
        } else if other.name.is_empty() && !facts.privileged {
            "`sudo marline paths doctor` says which; stop it, for two of them would undo each other's work"
                .to_owned()
        } else {
            "stop it, for two of them would undo each other's work".to_owned()
        };
        return Finding::blocks(NAME, format!("another one is active: {}", other.shown()), remedy);
    }
    match facts.path_manager.as_deref() {
        // Nobody in here can change it: it was set from outside, for a run to come.
        Some("userspace") if facts.privileged && !facts.writable => Finding::note(
            NAME,
            "it was set to be a program from outside, and none listens: connections stay on their first link",
            "start `marline paths`",
        ),
        Some("userspace") => Finding::blocks(
            NAME,
            "it is set to be a program, and none listens: all connections stay on their first link",
            "`marline paths restore`, with the --run-dir of the run that was killed if it had one; or \
             `sysctl -w net.mptcp.path_manager=kernel` (before Linux 6.16 `net.mptcp.pm_type=0`); or start `marline paths`",
        ),
        Some("kernel") => Finding::ok(NAME, "the kernel's own; `marline paths` takes over while it runs"),
        other => Finding::note(
            NAME,
            format!("it is `{}`, which marline does not know", other.unwrap_or("?")),
            "`marline paths` sets it to `userspace` while it runs, and puts it back",
        ),
    }
}

/// While a daemon of ours runs: whether the setting is still as it needs it.
fn managed(facts: &Facts, daemon: Running) -> Finding {
    const NAME: &str = "path manager";
    let is = facts.path_manager.as_deref().unwrap_or("?");
    let needed = match facts.mode.as_deref() {
        Some("kernel-pm") => Some("kernel"),
        Some("userspace") => Some("userspace"),
        _ => None,
    };
    match needed {
        Some(needed) if is != needed => Finding::blocks(
            NAME,
            format!("{daemon} runs, but somebody has set it to {is} meanwhile: new connections are not steered"),
            format!(
                "find out who sets it (a file in /etc/sysctl.d, mptcpd), and `sysctl -w net.mptcp.path_manager={needed}` \
                 (before Linux 6.16 `net.mptcp.pm_type`)"
            ),
        ),
        None if is != "userspace" => Finding::note(
            NAME,
            format!("{daemon} runs, and it is set to {is}, which is right with --kernel-pm alone"),
            "ask as root, with the --run-dir of that run: `sudo marline paths doctor`",
        ),
        None if !facts.privileged => {
            Finding::ok(NAME, format!("{daemon} runs; `sudo marline paths status` says what it does"))
        }
        _ => Finding::ok(NAME, daemon.to_string()),
    }
}

fn blackhole(facts: &Facts) -> Option<Finding> {
    const NAME: &str = "blackhole";
    let seconds = facts.blackhole_timeout?;
    let times = facts.counters.get("Blackhole").copied().unwrap_or(0);
    let remedy = format!(
        "`sysctl -w net.mptcp.blackhole_timeout={seconds}` switches MPTCP on again at once; then find the link that drops \
         SYN packets with MPTCP's option: `marline paths doctor --probe HOST:PORT`"
    );
    match (&facts.loopback, times) {
        (Loopback::Plain, _) => Some(Finding::blocks(
            NAME,
            format!(
                "MPTCP is off for all new connections, for {seconds} s after packets with its option were lost \
                 (this happened {times} times since the start of this network)"
            ),
            remedy,
        )),
        (_, 0) => None,
        (_, times) => Some(Finding::note(
            NAME,
            format!(
                "packets with MPTCP's option were lost on some way: {times} times, each of which switched it off for a while"
            ),
            remedy,
        )),
    }
}

fn fallback(facts: &Facts) -> Option<Finding> {
    let count = |name: &str| facts.counters.get(name).copied().unwrap_or(0);
    // The client's view: the answer to the SYN bore no option, or a later packet did not.
    let refused = count("MPCapableFallbackSYNACK");
    let later = count("DssFallback") + count("MPCapableDataFallback") + count("MD5SigFallback");
    let asked = count("MPCapableSYNTX");
    if refused + later == 0 {
        return None;
    }
    let share = format!("of {asked} connections that asked for MPTCP, {refused} were answered without it");
    let broken = if later > 0 { format!(", and {later} lost it later") } else { String::new() };
    Some(Finding::note(
        "fallback",
        format!("{share}{broken}, and are plain TCP"),
        "most servers do not speak it; to see whether a link strips it: \
         `marline paths doctor --probe HOST:PORT` with a server that does",
    ))
}

fn endpoints(facts: &Facts) -> Option<Finding> {
    let endpoints = facts.endpoints.as_ref().filter(|endpoints| !endpoints.is_empty())?;
    let by =
        if facts.network_manager { "NetworkManager (connection.mptcp-flags) or somebody else" } else { "somebody" };
    let disable = if facts.network_manager {
        "`nmcli connection modify NAME connection.mptcp-flags disabled`, or `ip mptcp endpoint flush`"
    } else {
        "`ip mptcp endpoint flush`"
    };
    Some(Finding::note(
        "endpoints",
        format!("{by} has configured {}: {}", count(endpoints.len()), endpoints.join(", ")),
        format!(
            "harmless while `marline paths` steers each connection by itself; with --kernel-pm, and for connections \
             opened before, they make every link join: {disable}"
        ),
    ))
}

fn count(endpoints: usize) -> String {
    if endpoints == 1 { "one endpoint".to_owned() } else { format!("{endpoints} endpoints") }
}

fn leftovers(facts: &Facts) -> Option<Finding> {
    (facts.daemon.is_none() && !facts.leftovers.is_empty()).then(|| {
        Finding::note(
            "leftovers",
            format!("a run that was killed has left behind: {}", facts.leftovers.join("; ")),
            "`marline restore` puts it back, and so does the next run at its end",
        )
    })
}

#[cfg(test)]
pub(super) mod tests {
    use marline_net::links::InterfaceList;

    use super::*;
    use crate::doctor::Listener;

    /// A machine that is fit.
    pub(in crate::doctor) fn facts() -> Facts {
        Facts {
            kernel: "6.18.0".into(),
            enabled: Some("1".into()),
            path_manager: Some("kernel".into()),
            blackhole_timeout: Some(3600),
            writable: true,
            has_events: true,
            counters: [("MPCapableSYNTX".to_owned(), 9)].into(),
            loopback: Loopback::Speaks,
            privileged: true,
            daemon: None,
            mode: None,
            listeners: Vec::new(),
            endpoints: Some(Vec::new()),
            network_manager: false,
            leftovers: Vec::new(),
            named: Vec::new(),
            survey: InterfaceList { interfaces: Vec::new(), vpn: None },
            roads: Vec::new(),
        }
    }

    /// State and text of the finding of this name.
    fn found(facts: &Facts, name: &str) -> Option<(State, String)> {
        let mut findings = all(facts).into_iter().filter(|finding| finding.name == name);
        let finding = findings.next().map(|f| (f.state, format!("{} | {}", f.says, f.remedy)));
        assert!(findings.next().is_none(), "{name} twice");
        finding
    }

    #[track_caller]
    fn check(facts: &Facts, name: &str, state: State, says: &str) {
        let (found, text) = found(facts, name).unwrap_or_else(|| panic!("nothing about {name}"));
        assert!(found == state && text.contains(says), "{found:?} {text}");
        assert_eq!(found == State::Ok, text.ends_with("| "), "a remedy exactly where something is wrong: {text}");
    }

    #[test]
    fn a_fit_machine_has_nothing_but_ok() {
        let findings = all(&facts());
        assert!(findings.iter().all(|finding| finding.state == State::Ok), "{findings:?}");
        assert_eq!(findings.len(), 4);
    }

    #[test]
    fn a_kernel_without_mptcp_or_too_old_is_the_only_finding() {
        let without = Facts { enabled: None, path_manager: None, has_events: false, ..facts() };
        check(&without, "kernel", State::Blocks, "has no MPTCP | a kernel from 5.19 on with CONFIG_MPTCP=y");
        assert_eq!(all(&without).len(), 1);
        for old in [Facts { path_manager: None, ..facts() }, Facts { has_events: false, ..facts() }] {
            check(&old, "kernel", State::Blocks, "no path manager for programs");
        }
    }

    #[test]
    fn mptcp_that_is_switched_off_blocks() {
        let off = Facts { enabled: Some("0".into()), loopback: Loopback::Failed("refused".into()), ..facts() };
        check(&off, "MPTCP", State::Blocks, "`sysctl -w net.mptcp.enabled=1`");
        let odd = Facts { loopback: Loopback::Failed("timed out".into()), ..facts() };
        check(&odd, "MPTCP", State::Note, "cannot try it with itself: timed out");
    }

    #[test]
    fn a_missing_privilege_blocks_unless_a_daemon_has_it() {
        let user = Facts { privileged: false, ..facts() };
        check(&user, "privilege", State::Blocks, "CAP_NET_ADMIN is missing");
        let theirs = Facts { daemon: Some(Running { process: None }), ..user };
        check(&theirs, "privilege", State::Ok, "not here; `marline paths` runs and has it");
        let sealed = Facts { writable: false, ..facts() };
        check(&sealed, "settings", State::Blocks, "ProtectKernelTunables=no");
    }

    #[test]
    fn another_path_manager_blocks_and_one_that_is_awaited_is_noted() {
        let listener = |name: &str| vec![Listener { process: Some(812), name: name.into() }];
        let mptcpd = Facts { listeners: listener("mptcpd"), ..facts() };
        check(
            &mptcpd,
            "path manager",
            State::Blocks,
            "another one is active: mptcpd (process 812) | `systemctl disable",
        );
        let userspace = Facts { path_manager: Some("userspace".into()), ..facts() };
        check(&userspace, "path manager", State::Blocks, "none listens");
        let text = found(&userspace, "path manager").unwrap().1;
        assert!(text.contains("`marline paths restore`") && text.contains("path_manager=kernel"), "{text}");
        let sealed = Facts { writable: false, ..userspace.clone() };
        check(&sealed, "path manager", State::Note, "set to be a program from outside");
        check(&sealed, "settings", State::Note, "those that a run must have are there");
        let hidden = Facts { listeners: listener(""), privileged: false, ..userspace.clone() };
        check(&hidden, "path manager", State::Blocks, "`sudo marline paths doctor` says which");
        let other = Facts { listeners: listener("steerd"), ..userspace.clone() };
        check(&other, "path manager", State::Blocks, "another one is active: steerd (process 812)");
        let looks = Facts { listeners: listener("ip"), ..facts() };
        check(&looks, "path manager", State::Ok, "the kernel's own");
        let bpf = Facts { path_manager: Some("bpf".into()), ..facts() };
        check(&bpf, "path manager", State::Note, "`bpf`, which marline does not know");
    }

    #[test]
    fn a_path_manager_that_is_not_the_daemons_any_more_blocks() {
        let daemon = Some(Running { process: Some(7) });
        let with = |mode: Option<&str>, is: &str| {
            let (mode, path_manager) = (mode.map(str::to_owned), Some(is.to_owned()));
            Facts { daemon, mode, path_manager, ..facts() }
        };
        for (mode, is, state, says) in [
            (Some("userspace"), "userspace", State::Ok, "`marline paths` (process 7) | "),
            (Some("kernel-pm"), "kernel", State::Ok, "`marline paths` (process 7) | "),
            (Some("userspace"), "kernel", State::Blocks, "meanwhile: new connections are not steered | "),
            (Some("userspace"), "kernel", State::Blocks, "`sysctl -w net.mptcp.path_manager=userspace`"),
            (Some("kernel-pm"), "userspace", State::Blocks, "`sysctl -w net.mptcp.path_manager=kernel`"),
            (None, "userspace", State::Ok, "`marline paths` (process 7) | "),
            (None, "kernel", State::Note, "right with --kernel-pm alone"),
        ] {
            check(&with(mode, is), "path manager", state, says);
        }
        let theirs =
            Facts { daemon: Some(Running { process: None }), privileged: false, ..with(None, "userspace") };
        check(&theirs, "path manager", State::Ok, "`marline paths` runs; `sudo marline paths status` says");
    }

    #[test]
    fn a_blackhole_blocks_while_it_lasts_and_is_noted_afterwards() {
        assert_eq!(found(&facts(), "blackhole"), None);
        let mut once = facts();
        once.counters.insert("Blackhole".into(), 2);
        check(&once, "blackhole", State::Note, "2 times");
        let now = Facts { loopback: Loopback::Plain, ..once };
        check(
            &now,
            "blackhole",
            State::Blocks,
            "`sysctl -w net.mptcp.blackhole_timeout=3600` switches MPTCP on again",
        );
        assert_eq!(found(&Facts { blackhole_timeout: None, ..now }, "blackhole"), None, "a kernel that knows none");
    }

    #[test]
    fn options_that_are_stripped_or_refused_are_counted() {
        assert_eq!(found(&facts(), "fallback"), None);
        let mut some = facts();
        some.counters.insert("MPCapableFallbackSYNACK".into(), 5);
        check(
            &some,
            "fallback",
            State::Note,
            "of 9 connections that asked for MPTCP, 5 were answered without it, and",
        );
        some.counters.insert("DssFallback".into(), 1);
        check(&some, "fallback", State::Note, "and 1 lost it later");
    }

    #[test]
    fn endpoints_of_others_are_noted_with_how_to_get_rid_of_them() {
        let endpoints = Some(vec!["10.1.0.2 id 1".to_owned(), "10.2.0.2 id 2".to_owned()]);
        let mut facts = Facts { endpoints, ..facts() };
        check(&facts, "endpoints", State::Note, "has configured 2 endpoints: 10.1.0.2 id 1, 10.2.0.2 id 2");
        facts.network_manager = true;
        check(&facts, "endpoints", State::Note, "connection.mptcp-flags disabled");
        assert_eq!(
            found(&Facts { endpoints: None, ..facts }, "endpoints"),
            None,
            "what cannot be read is no finding"
        );
    }

    #[test]
    fn what_a_killed_run_left_is_noted_while_no_other_runs() {
        let left = Facts { leftovers: vec!["net.mptcp.path_manager=userspace".into()], ..facts() };
        check(&left, "leftovers", State::Note, "`marline restore`");
        assert_eq!(found(&Facts { daemon: Some(Running { process: Some(7) }), ..left }, "leftovers"), None);
    }
}
