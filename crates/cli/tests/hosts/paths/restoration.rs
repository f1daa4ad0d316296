//! The host configuration after a stop, after a crash, and beside other programs.

use super::{TestHome, assert_beginnings};

#[test]
fn a_path_manager_changed_by_another_program_is_restored_and_reported() {
    let home = TestHome::new();
    let script = r#"
is() { [ "$(sysctl -n net.mptcp.path_manager)" = "$1" ]; }
state >before
start_both
paths doctor --run-dir "$RUN" | grep "path manager" | sed 's/process [0-9]*/process N/'
sysctl -qw net.mptcp.path_manager=kernel
until is userspace; do sleep 0.05; kill -0 $daemon; done
grep "another program" log
paths status --run-dir "$RUN" | grep "^note: "
# Another program keeps changing it.
until grep -q "left at" log; do is kernel || sysctl -qw net.mptcp.path_manager=kernel; sleep 0.05; kill -0 $daemon; done
grep -c "restored to userspace" log
paths status --run-dir "$RUN" | grep "^note: "
code=0; paths doctor --run-dir "$RUN" >seen || code=$?; echo "$code"; grep "^WRONG" seen | sed 's/process [0-9]*/process N/'
stop
compare
"#;
    let Some(lines) = home.run_in_network(script) else { return };
    let expected = [
        "ok     path manager  `marline paths` (process N)",
        "marline: net.mptcp.path_manager: another program set it to kernel; restored to userspace. Connections opened meanwhile may be unmanaged",
        "note: net.mptcp.path_manager was changed by another program and restored 1 times: connections opened meanwhile may be unmanaged",
        "6",
        "note: net.mptcp.path_manager is kernel, set by another program: new connections are not managed until it is userspace (`sysctl -w net.mptcp.path_manager=userspace`)",
        "1",
        "WRONG  path manager  `marline paths` (process N) is running, but another program has set this to kernel: new connections are not managed",
    ];
    assert_eq!(lines, expected, "{lines:#?}");
}

#[test]
fn leftovers_of_a_run_with_another_directory_are_reported_and_removed_by_the_next_run() {
    let home = TestHome::new();
    let script = r#"
state >before
"$MARLINE" paths --run-dir ./r3 --link eth0 --link eth1 2>log & daemon=$!
started --run-dir ./r3
crash
code=0; paths doctor --run-dir "$RUN" >seen || code=$?; echo "$code"; grep -A1 "^WRONG" seen
code=0; paths restore --run-dir "$RUN" 2>log || code=$?; echo "$code"; cat log
start_both
stop
grep "no program listens" log; tail -n 1 log
sysctl -n net.mptcp.path_manager
paths restore --run-dir ./r3 2>log; sed 's/restored to .*/restored to N/' log
rmdir "$RUN" ./r3 2>/dev/null || true
compare
"#;
    let Some(lines) = home.run_in_network(script) else { return };
    let expected = [
        "1",
        "WRONG  path manager  it is set to userspace, but no program listens",
        "                     remedy: `marline paths restore`, with the --run-dir of the run that was killed",
        "1",
        "marline: 6 rules and routes removed",
        "marline: net.mptcp.path_manager: still userspace, although no program listens, and ",
        "marline: net.mptcp.path_manager: set to userspace, but no program listens: probably a `marline paths` with another",
        "marline: stopped; the host configuration is restored, except that the kernel manages paths again",
        "kernel",
        "marline: net.ipv4.tcp_rmem: restored to N",
    ];
    assert_beginnings(&lines, &expected);
}

#[test]
fn a_path_manager_set_from_outside_is_used_and_left_unchanged() {
    let home = TestHome::new();
    // As in a container whose host has set it.
    let script = r#"
sysctl -qw net.mptcp.path_manager=userspace
mount --bind /proc/sys /proc/sys; mount -o remount,ro,bind /proc/sys
state >before
start_both
stop
tail -n 1 log
paths restore --run-dir "$RUN" 2>log; cat log
paths doctor --run-dir "$RUN" >seen; grep "path manager" seen
compare
"#;
    let Some(lines) = home.run_in_network(script) else { return };
    let expected = [
        "marline: stopped; the host configuration is restored",
        "marline: nothing to restore",
        "note   path manager  it was set to userspace from outside, and no program listens: connections stay on their first link",
    ];
    assert_eq!(lines, expected, "{lines:#?}");
}

#[test]
fn a_stopped_or_killed_run_leaves_nothing_behind() {
    let home = TestHome::new();
    let script = r#"
state >before
for signal in TERM INT; do
    start_both
    state >while; cmp -s before while && echo "nothing was changed"
    ip rule | grep -c "from 10.1.0.2 .*proto 109"
    # Another program removes the rules: they are added again.
    ip rule flush protocol 109
    until [ "$(ip rule | grep -c "from 10.1.0.2 .*proto 109")" = 2 ]; do sleep 0.02; kill -0 $daemon; done
    kill -$signal $daemon; code=0; wait $daemon || code=$?
    compare; echo "$signal $code $(tail -n 1 log)"
done
for way in restore restart; do
    start_both
    crash
    state >crashed; cmp -s before crashed && echo "nothing was left"
    if [ $way = restore ]; then
        paths restore --run-dir "$RUN"
    else
        start_both
        refused $steer
        refused paths --run-dir ./other
        refused paths restore --run-dir ./other
        stop
    fi
    rmdir "$RUN" 2>/dev/null || true
    compare; echo "$way"
done
"#;
    let Some(lines) = home.run_in_network(script) else { return };
    let stopped = |signal: &str| format!("{signal} 0 marline: stopped; the host configuration is restored");
    // The IPv4 address of the second link has two rules.
    let runs = ["TERM", "INT"].into_iter().flat_map(|signal| ["2".to_owned(), stopped(signal)]);
    let mut expected: Vec<String> = runs.collect();
    expected.push("restore".into());
    assert_eq!(lines[..5], expected, "{lines:#?}");
    // A second run is refused with any run directory, and so is a `restore` that would remove the configuration of the first.
    for refused in &lines[5..8] {
        assert!(refused.starts_with("1 marline: a `marline paths` (process "), "{lines:#?}");
    }
    assert_eq!(lines[8..], ["restart"], "{lines:#?}");
}

#[test]
fn endpoints_and_limits_of_the_kernels_path_manager_are_restored_also_after_a_crash() {
    let home = TestHome::new();
    let script = r#"
# The administrator's own: an endpoint on a link's address, another endpoint, and a limit below what two links need.
ip mptcp endpoint add 10.0.0.2 id 7 dev eth0 subflow backup
ip mptcp endpoint add 10.77.0.1 id 9 signal
ip mptcp limits set subflow 1 add_addr_accepted 3
on_eth0() { ip mptcp endpoint | grep "dev eth0" | sed 's/ id [0-9]*//; s/ *$//' | sort; }
state >before
for way in stop restore userspace kernel-pm; do
    start_both --kernel-pm
    on_eth0; ip mptcp limits
    if [ $way = stop ]; then
        stop
    else
        crash
        case $way in
            restore) paths restore --run-dir "$RUN" 2>log;;
            userspace) $steer 2>log & ;;
            kernel-pm) $steer --kernel-pm 2>log & ;;
        esac
        if [ $way != restore ]; then
            daemon=$!; started --run-dir "$RUN"
            [ $way = kernel-pm ] || on_eth0
            stop
        fi
    fi
    rmdir "$RUN" 2>/dev/null || true
    compare; echo "$way"
done
"#;
    let Some(lines) = home.run_in_network(script) else { return };
    let mut expected = Vec::new();
    for method in ["stop", "restore", "userspace", "kernel-pm"] {
        expected.extend(["10.0.0.2 subflow dev eth0", "2001:db8::2 subflow dev eth0"]);
        expected.push("add_addr_accepted 3 subflows 2");
        expected.extend((method == "userspace").then_some("10.0.0.2 subflow backup dev eth0"));
        expected.push(method);
    }
    assert_eq!(lines.iter().map(|line| line.trim()).collect::<Vec<_>>(), expected);
}

#[test]
fn rules_of_a_killed_forwarder_are_removed_by_restore_and_by_the_next_run() {
    let home = TestHome::new();
    let script = r#"
command -v nft >/dev/null || { echo "skipped: needs nft" >&2; exit 0; }
mkdir ./no-nft; for program in ip sysctl; do ln -s "$(command -v $program)" ./no-nft; done
state >was; code=0; PATH=./no-nft $steer --transparent 2>refusal || code=$?; echo "$code $(cat refusal)"
state >is; diff was is
refused setpriv --bounding-set=-net_admin --inh-caps=-net_admin $steer --transparent
state >before
for way in restore restart; do
    start_both --transparent
    led $daemon
    crash
    while nft list table inet marline >/dev/null 2>&1; do sleep 0.02; done
    ip rule | grep -c "fwmark 0x6d61 .* proto 109"
    ip -6 route show table all | grep -c "^local default dev lo .*proto 109"
    if [ $way = restore ]; then
        paths restore --run-dir "$RUN" 2>log; grep -o "[0-9]* rules and routes removed" log
    else
        start_both
        ip rule | grep fwmark || true
        stop
    fi
    rmdir "$RUN" 2>/dev/null || true
    compare; echo "$way"
done
"#;
    let Some(lines) = home.run_in_network(script) else { return };
    if lines.is_empty() {
        return;
    }
    let reason = "--transparent: the program nft is not installed (package nftables)";
    assert_eq!(lines[0], format!("1 marline: {reason}"));
    assert_eq!(
        lines[1],
        "77 marline: managing paths in this network namespace: not permitted: needs CAP_NET_ADMIN (or `--dry-run`, which changes nothing)"
    );
    // Two rules and two routes of the forwarder, and four rules and two routes of the second link.
    let expected = ["1", "1", "10 rules and routes removed", "restore", "1", "1", "restart"];
    assert_eq!(lines[2..], expected, "{lines:#?}");
}
