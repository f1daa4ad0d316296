//! Tests of `marline paths` as an operator uses it: errors are one line and change nothing, and the host configuration is restored
//! after every run, however it ended.
//!
//! Most tests run in a new network namespace (needs root, `unshare`, `ip`) with two links that lead nowhere; they are skipped with
//! a message elsewhere.

use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

use crate::namespaces::MARLINE;

/// A temporary home directory, which also contains the run directory.
struct TestHome(TempDir);

impl TestHome {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env_clear().env("HOME", self.0.path()).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        command.current_dir(self.0.path()).stdin(Stdio::null());
        command
    }

    fn marline(&self, args: &[&str]) -> Output {
        self.command(MARLINE).arg("paths").args(args).output().unwrap()
    }

    /// Runs the script in a network with `eth0` and `eth1` and returns the lines it printed; none where the test is skipped.
    fn run_in_network(&self, script: &str) -> Option<Vec<String>> {
        self.run_in_namespaces(&[], script)
    }

    /// The same in a new mount namespace.
    fn run_in_network_and_mounts(&self, script: &str) -> Option<Vec<String>> {
        self.run_in_namespaces(&["--mount"], script)
    }

    fn run_in_namespaces(&self, extra_args: &[&str], script: &str) -> Option<Vec<String>> {
        let unshare_output =
            self.command("unshare").args(["--net", "--pid", "--fork", "--mount-proc", "ip", "link"]).output();
        if !unshare_output.is_ok_and(|output| output.status.success()) {
            eprintln!("skipped: needs root, unshare and ip");
            return None;
        }
        if !std::path::Path::new("/proc/sys/net/mptcp").exists() {
            eprintln!("skipped: this kernel has no MPTCP");
            return None;
        }
        let script = format!("{NETWORK}{script}");
        let mut command = self.command("timeout");
        // `--kill-child` with a new PID namespace ends every process of the script, however it ends.
        command
            .args(["60", "unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"])
            .args(extra_args);
        command.args(["sh", "-ec", &script]).env("MARLINE", MARLINE);
        let output = command.env("RUN", self.0.path().join("run")).stderr(Stdio::piped()).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{:?}\n{text}\n{stderr}", output.status);
        Some(text.lines().map(str::to_owned).collect())
    }
}

/// Two links, of which the kernel prefers the first, and shell functions for the scripts below.
const NETWORK: &str = r#"
ip link set lo up
for n in 0 1; do
    ip link add eth$n type veth peer name far$n
    # addrgenmode none: otherwise the kernel adds link-local addresses a second later, which would change the compared state.
    ip link set eth$n addrgenmode none
    ip link set far$n addrgenmode none
    ip address add 10.$n.0.2/24 dev eth$n
    ip address add 2001:db8:$n::2/64 dev eth$n nodad
    ip link set eth$n up
    ip link set far$n up
done
for n in 0 1; do
    until ip -br link show eth$n | grep -q LOWER_UP; do sleep 0.01; done
    ip route add default via 10.$n.0.1 dev eth$n metric 10$n
    ip -6 route add default via 2001:db8:$n::1 dev eth$n metric 10$n
done
until [ -z "$(ip route show | grep linkdown)" ]; do sleep 0.01; done
state() { ip rule; ip -6 rule; ip route show table all; ip -6 route show table all; sysctl net.mptcp net.ipv4.tcp_rmem; ls "$RUN" 2>&1 || true; ip mptcp endpoint; ip mptcp limits; }
paths() { "$MARLINE" paths "$@"; }
steer="$MARLINE paths --run-dir $RUN --link eth0,kind=wifi --link eth1,kind=lte"
started() { until paths status --run-dir "$RUN" >/dev/null 2>&1; do sleep 0.02; kill -0 $1; done; }
# Waits for the rule itself: the table exists for a moment before its rules.
led() { until nft list table inet marline 2>/dev/null | grep -q "tproxy to"; do sleep 0.02; kill -0 $1; done; }
# Prints the exit code and the output of a command that must change nothing, and any difference of the state.
refused() {
    state >was; code=0; "$@" >refusal 2>&1 || code=$?; state >is
    echo "$code $(cat refusal)"; diff was is
}
"#;

#[test]
fn usage_errors_end_with_64_and_one_line() {
    let home = TestHome::new();
    std::fs::write(
        home.0.path().join("model.toml"),
        "device = 'd'\nsource = 's'\nconfidence = '50%'\nplattform = '1W'\n",
    )
    .unwrap();
    std::fs::write(home.0.path().join("m.toml"), "[paths]\nprofil = 'energy'\n").unwrap();
    let group = "[paths]\ntransparent = true\ncgroup = '../elsewhere'\nports = [80, '8000-8999']\n";
    std::fs::write(home.0.path().join("group.toml"), group).unwrap();
    let table: &[(&[&str], &str)] = &[
        (&["--goal", "fast"], "unknown goal `fast`; use speed, latency, energy or cost"),
        (
            &["--policy", "tcp"],
            "unknown policy `tcp`; use marline, emptcp, emptcp-settled, emptcp-table, wifi-first or mptcp",
        ),
        (&["--link", "eth0,buget=2GB"], "`buget=2GB`: use kind="),
        (&["--link", "eth0,metred=yes"], "use kind=, metered=, budget= or optional after the interface, separated"),
        (&["--port", "80"], "--port needs --transparent"),
        (&["--run-dir", "/etc/passwd"], "--run-dir /etc/passwd: not a directory"),
        (&["status", "--run-dir", "/etc/passwd"], "--run-dir /etc/passwd: not a directory"),
        (&["status", "--at-most", "x"], "`x` is not a number of connections"),
        (&["status", "--config", "m.toml"], "m.toml:2: unknown field `profil`"),
        (&["watch", "--config", "m.toml"], "m.toml:2: unknown field `profil`"),
        (&["explain", "7", "--config", "m.toml"], "m.toml:2: unknown field `profil`"),
        (&["doctor", "--config", "m.toml"], "m.toml:2: unknown field `profil`"),
        (&["doctor", "--config", "group.toml"], "[paths] cgroup: "),
        (&["--config", "group.toml"], "[paths] cgroup: "),
        (&["--link", "eth0", "--link", "eth0"], "--link eth0: named twice"),
        (&["--link", "eth0,limit=1Mbit/s"], "--link eth0: limit= is only for"),
        (&["--trace", "-"], "--trace -: name a file for the log"),
        (&["--dry-run", "--kernel-pm"], "cannot be used with"),
        (&["--energy-model", "./model.toml"], "--energy-model: ./model.toml:4: unknown field `plattform`"),
        (&["--energy-model", "./absent.toml"], "./absent.toml: No such file"),
        (&["--config", "m.toml"], "m.toml:2: unknown field `profil`"),
        (&["--cgroup", "x"], "--transparent"),
        (&["explain", "nonsense"], "a token is up to eight hexadecimal digits"),
        (&["eib", "--kinds", "wifi"], "name two kinds of links"),
        (&["eib", "--kinds", "wifi,tunnel"], "has no tunnel radio"),
        (&["doctor", "--probe", "nowhere"], "--probe nowhere: "),
        (&["stauts"], "unrecognized subcommand 'stauts'"),
    ];
    for (args, expected) in table {
        let output = home.marline(args);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(64), "{args:?}: {stderr}");
        assert!(stderr.contains(expected), "{args:?}: {stderr}");
        assert_eq!(stderr.matches('\n').count(), 1, "{args:?}: {stderr}");
        assert!(output.stdout.is_empty(), "{args:?}");
    }
}

#[test]
fn without_a_daemon_queries_end_with_1_and_say_how_to_start_it() {
    let home = TestHome::new();
    let run = home.0.path().display().to_string();
    for args in [&["status"][..], &["status", "--json"], &["watch"], &["explain", "7b9c2f7a"]] {
        let output = home.marline(&[args, &["--run-dir", &run]].concat());
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(
            stderr.starts_with("marline: no marline paths daemon runs in this network namespace; start it with ")
                && output.stdout.is_empty(),
            "{stderr}"
        );
    }
}

#[test]
fn the_energy_information_base_is_printed_for_people_and_programs() {
    let home = TestHome::new();
    let text = String::from_utf8(home.marline(&["eib", "--energy-model", "emptcp-s3"]).stdout).unwrap();
    assert!(text.starts_with("emptcp-s3: links with the least energy per byte"), "{text}");
    let json = home.marline(&["eib", "--energy-model", "emptcp-s3", "--json"]).stdout;
    let value: serde_json::Value = serde_json::from_slice(&json).unwrap();
    // eMPTCP, table 2, third row: below 0.234 Mbit/s only LTE, above 0.803 Mbit/s only Wi-Fi.
    let row = value["rows"].as_array().unwrap().iter().find(|row| row["second_mbps"] == 1.5).unwrap();
    assert!((row["first_above_mbps"].as_f64().unwrap() / 0.803 - 1.0).abs() < 0.06, "{row}");
}

#[test]
fn a_failed_start_is_one_line_and_changes_nothing() {
    let home = TestHome::new();
    let script = r#"
refused $steer --link eth9
refused setpriv --bounding-set=-net_admin --inh-caps=-net_admin "$MARLINE" paths --run-dir "$RUN"
cp "$(command -v ip)" ./mptcpd; ./mptcpd mptcp monitor >/dev/null & other=$!
until grep -qE " 16 +[0-9]+ +0*[1-9a-f]" /proc/net/netlink; do sleep 0.01; done
refused $steer
kill $other; wait $other || true
paths --run-dir /proc/none >log 2>&1 || echo "$? $(cat log)"
mount -t tmpfs none /proc/sys/net/mptcp
refused $steer
umount /proc/sys/net/mptcp
mkdir -m 777 ./shared
refused paths --run-dir ./shared
refused $steer --trace /nonexistent/x
chmod 755 .; cp "$MARLINE" ./marline; mkdir -m 755 "$RUN"; touch "$RUN/roots"
refused setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps=+net_admin --ambient-caps=+net_admin \
    ./marline paths --run-dir "$RUN"
refused setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps=+net_admin --ambient-caps=+net_admin \
    ./marline paths --run-dir "$RUN/new"
mount --bind /proc/sys /proc/sys; mount -o remount,ro,bind /proc/sys
refused $steer
umount /proc/sys
"#;
    let Some(lines) = home.run_in_network(script) else { return };
    let expected = [
        "69 marline: link eth9: no such interface; `marline links` lists the interfaces",
        "77 marline: managing paths in this network namespace: not permitted: needs CAP_NET_ADMIN",
        "1 marline: another path manager is active: mptcpd (process ",
        "1 marline: /proc/none: ",
        "1 marline: this kernel has no MPTCP path manager",
        "1 marline: ./shared: users other than its owner may write to it: ",
        "1 marline: /nonexistent/x: the log cannot be written: ",
        "77 marline: the instance lock of this network namespace: ",
        "77 marline: ",
        "1 marline: net.mptcp.path_manager: cannot be set: Read-only file system",
    ];
    assert_eq!(lines.len(), expected.len(), "{lines:#?}");
    for (line, expected) in lines.iter().zip(expected) {
        assert!(line.starts_with(expected), "{lines:#?}");
    }
    for line in &lines[7..9] {
        assert!(line.contains("Permission denied") && line.contains("with --run-dir"), "{line}");
    }
}

#[test]
fn a_path_manager_changed_by_another_program_is_restored_and_reported() {
    let home = TestHome::new();
    let script = r#"
is() { [ "$(sysctl -n net.mptcp.path_manager)" = "$1" ]; }
state >before
$steer 2>log & daemon=$!
started $daemon
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
kill $daemon; wait $daemon
state >after; diff before after
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
until paths status --run-dir ./r3 >/dev/null 2>&1; do sleep 0.02; kill -0 $daemon; done
kill -KILL $daemon; wait $daemon || true
code=0; paths doctor --run-dir "$RUN" >seen || code=$?; echo "$code"; grep -A1 "^WRONG" seen
code=0; paths restore --run-dir "$RUN" 2>log || code=$?; echo "$code"; cat log
$steer 2>log & daemon=$!
started $daemon
kill $daemon; wait $daemon
grep "no program listens" log; tail -n 1 log
sysctl -n net.mptcp.path_manager
paths restore --run-dir ./r3 2>log; sed 's/restored to .*/restored to N/' log
rmdir "$RUN" ./r3 2>/dev/null || true
state >after; diff before after
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
    assert_eq!(lines.len(), expected.len(), "{lines:#?}");
    for (line, expected) in lines.iter().zip(expected) {
        assert!(line.starts_with(expected), "{expected}: {lines:#?}");
    }
}

#[test]
fn a_path_manager_set_from_outside_is_used_and_left_unchanged() {
    let home = TestHome::new();
    // As in a container whose host has set it.
    let script = r#"
sysctl -qw net.mptcp.path_manager=userspace
mount --bind /proc/sys /proc/sys; mount -o remount,ro,bind /proc/sys
state >before
$steer 2>log & daemon=$!
started $daemon
kill $daemon; wait $daemon
tail -n 1 log
paths restore --run-dir "$RUN" 2>log; cat log
paths doctor --run-dir "$RUN" >seen; grep "path manager" seen
state >after; diff before after
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
fn doctor_and_queries_use_the_configuration() {
    let home = TestHome::new();
    let script = r#"
mkdir -p config/marline
printf '[paths]\nrun-dir = "%s"\nlinks = ["eth0", "eth1"]\n[link.eth0]\nkind = "lte"\nmetered = true\n[link.eth1]\nkind = "wifi"\n' \
    "$RUN" >config/marline/marline.toml
file=config/marline/marline.toml
paths doctor --config $file | grep "default link"
XDG_CONFIG_HOME=$PWD/config "$MARLINE" paths doctor | grep -c "default link"
sed 's/"eth1"\]/"wwan9"]/' <$file >other.toml
code=0; paths doctor --config other.toml >seen || code=$?; echo "$code"; grep "^WRONG" seen
"$MARLINE" paths --config $file 2>log & daemon=$!
until paths status --config $file >/dev/null 2>&1; do sleep 0.02; kill -0 $daemon; done
[ -S "$RUN"/paths-*.sock ]
XDG_CONFIG_HOME=$PWD/config "$MARLINE" paths status | grep -c "policy marline"
code=0; paths explain 7 --config $file 2>seen || code=$?; echo "$code $(cut -d, -f1 seen)"
code=0; timeout 1 "$MARLINE" paths watch --config $file >seen || code=$?; echo "$code"
kill $daemon; wait $daemon
"#;
    let Some(lines) = home.run_in_network(script) else { return };
    let expected = [
        "note   default link  connections begin over eth0, which is metered, although there is eth1",
        "1",
        "1",
        "WRONG  links         the configuration names wwan9, but there is no such interface",
        "1",
        "1 marline: there is no connection 00000007",
        "124",
    ];
    assert_eq!(lines, expected, "{lines:#?}");
}

#[test]
fn other_users_see_that_a_daemon_runs_and_that_they_may_not_query_it() {
    let home = TestHome::new();
    let script = r#"
chmod 755 .; cp "$MARLINE" ./marline
mount -t tmpfs -o mode=755 none /run
as() { user=$1; shift; setpriv --reuid $user --regid $user --clear-groups --inh-caps=-all --bounding-set=-all "$@"; }
"$MARLINE" paths --link eth0 --link eth1 2>log & daemon=$!
until paths status >/dev/null 2>&1; do sleep 0.02; kill -0 $daemon; done
code=0; as 65534 ./marline paths doctor >seen || code=$?; echo "$code"; grep -E "^[a-zA-Z]+ +(privilege|path manager) " seen
code=0; as 65534 ./marline paths status 2>seen || code=$?; echo "$code $(grep -o "not permitted: run this command as root" seen)"
kill $daemon; wait $daemon
code=0; as 65534 ./marline paths doctor >seen || code=$?; echo "$code"; grep -E "^[a-zA-Z]+ +(privilege|path manager) " seen
mkdir theirs; chown 65533 theirs
as 65533 ./marline paths --dry-run --run-dir theirs --link eth0 --link eth1 2>log & daemon=$!
until ls theirs/*.sock >/dev/null 2>&1; do sleep 0.02; kill -0 $daemon; done
code=0; as 65534 ./marline paths status --run-dir theirs 2>seen || code=$?; echo "$code $(grep -o "not permitted: run this command as root" seen)"
"#;
    let Some(lines) = home.run_in_network(script) else { return };
    let expected = [
        "0",
        "ok     privilege     not here; `marline paths` is running and has it: with sudo more is checked",
        "ok     path manager  `marline paths` is running; `sudo marline paths status` shows what it does",
        "77 not permitted: run this command as root",
        "1",
        "WRONG  privilege     CAP_NET_ADMIN is missing, without which no path can be managed",
        "ok     path manager  the kernel's own; `marline paths` takes over while it runs",
        "77 not permitted: run this command as root",
    ];
    assert_eq!(lines, expected, "{lines:#?}");
}

#[test]
fn an_optional_link_may_be_the_only_one() {
    let home = TestHome::new();
    let script = r#"
state >before
"$MARLINE" paths --run-dir "$RUN" --link usb0,optional,kind=lte 2>log & daemon=$!
started $daemon
ip link add usb0 type veth peer name far2
ip link set usb0 addrgenmode none; ip link set far2 addrgenmode none
ip address add 10.7.0.2/24 dev usb0
ip link set usb0 up; ip link set far2 up
until ip -br link show usb0 | grep -q LOWER_UP; do sleep 0.01; done
ip route add default via 10.7.0.1 dev usb0 metric 300
until paths status --run-dir "$RUN" | grep -q "^usb0 .* up"; do sleep 0.05; kill -0 $daemon; done
grep "managing MPTCP" log
kill $daemon; wait $daemon
ip link delete usb0
state >after; diff before after
"#;
    let Some(lines) = home.run_in_network(script) else { return };
    let [line] = &lines[..] else { panic!("{lines:#?}") };
    assert!(line.starts_with("marline: managing MPTCP over no link yet; policy marline"), "{line}");
}

#[test]
fn a_stopped_or_killed_run_leaves_nothing_behind() {
    let home = TestHome::new();
    let script = r#"
state >before
for signal in TERM INT; do
    $steer 2>log & daemon=$!
    started $daemon
    state >while; cmp -s before while && echo "nothing was changed"
    ip rule | grep -c "from 10.1.0.2 .*proto 109"
    # Another program removes the rules: they are added again.
    ip rule flush protocol 109
    until [ "$(ip rule | grep -c "from 10.1.0.2 .*proto 109")" = 2 ]; do sleep 0.02; kill -0 $daemon; done
    kill -$signal $daemon; code=0; wait $daemon || code=$?
    state >after; diff before after; echo "$signal $code $(tail -n 1 log)"
done
for way in restore restart; do
    $steer 2>log & daemon=$!
    started $daemon
    kill -KILL $daemon; wait $daemon || true
    state >crashed; cmp -s before crashed && echo "nothing was left"
    if [ $way = restore ]; then
        paths restore --run-dir "$RUN"
    else
        $steer 2>log & daemon=$!
        started $daemon
        refused $steer
        refused paths --run-dir ./other
        refused paths restore --run-dir ./other
        kill $daemon; wait $daemon
    fi
    rmdir "$RUN" 2>/dev/null || true
    state >after; diff before after; echo "$way"
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
    $steer --kernel-pm 2>log & daemon=$!
    started $daemon
    on_eth0; ip mptcp limits
    if [ $way = stop ]; then
        kill $daemon; wait $daemon
    else
        kill -KILL $daemon; wait $daemon || true
        case $way in
            restore) paths restore --run-dir "$RUN" 2>log;;
            userspace) $steer 2>log & ;;
            kernel-pm) $steer --kernel-pm 2>log & ;;
        esac
        if [ $way != restore ]; then
            daemon=$!; started $daemon
            [ $way = kernel-pm ] || on_eth0
            kill $daemon; wait $daemon
        fi
    fi
    rmdir "$RUN" 2>/dev/null || true
    state >after; diff before after; echo "$way"
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
fn an_optional_link_is_used_whenever_it_appears() {
    let home = TestHome::new();
    let script = r#"
state >before
"$MARLINE" paths --run-dir "$RUN" --link eth0,kind=wifi --link usb0,optional,kind=lte 2>log & daemon=$!
started $daemon
paths status --run-dir "$RUN" --json >first
for turn in 1 2; do
    ip link add usb0 type veth peer name far2
    ip link set usb0 addrgenmode none; ip link set far2 addrgenmode none
    ip address add 10.7.0.2/24 dev usb0
    ip link set usb0 up; ip link set far2 up
    until ip -br link show usb0 | grep -q LOWER_UP; do sleep 0.01; done
    ip route add default via 10.7.0.1 dev usb0 metric 300
    until ip rule | grep -q "from 10.7.0.2 lookup 731"; do sleep 0.05; kill -0 $daemon; done
    ip link delete usb0
    while ip rule | grep -q "from 10.7.0.2"; do sleep 0.05; kill -0 $daemon; done
done
paths status --run-dir "$RUN" --json >second
for status in first second; do tr -d ' \n' <$status | grep -o '"name":"[a-z0-9]*"' | tr '\n' ' '; echo; done
grep usb0 log
kill $daemon; wait $daemon
state >after; diff before after
"#;
    let Some(lines) = home.run_in_network(script) else { return };
    let expected = [
        "\"name\":\"eth0\" ",
        "\"name\":\"eth0\" \"name\":\"usb0\" ",
        "marline: link usb0: no such interface yet; it will be used when it appears",
        "marline: usb0 (lte) appeared, and is used from now on",
    ];
    assert_eq!(lines, expected);
}

/// Interfaces at boot: down, up without a default route, or missing; found or named in the configuration.
#[test]
fn a_run_that_starts_before_its_links_waits_for_them() {
    let home = TestHome::new();
    std::fs::write(home.0.path().join("named.toml"), "[paths]\noptional-links = ['eth0', 'eth1']\n").unwrap();
    let script = r#"
both() { paths status --run-dir "$RUN" --json | tr -d ' \n' | grep -o '"up":true' | wc -l; }
led() { ip rule | grep -c "from 10.1.0.2 lookup 731" || true; }
come() {
    for n in 0 1; do
        ip link show eth$n >/dev/null 2>&1 || ip link add eth$n type veth peer name far$n
        ip address replace 10.$n.0.2/24 dev eth$n; ip link set eth$n up; ip link set far$n up
        until ip -br link show eth$n | grep -q LOWER_UP; do sleep 0.01; done
        ip route replace default via 10.$n.0.1 dev eth$n metric 10$n
    done
}
begin() {
    "$MARLINE" paths --run-dir "$RUN" "$@" 2>log & daemon=$!
    started $daemon
    grep "waiting" log | sed 's/ used:.*;/ used;/'
    come
    until [ $(both) = 2 ] && [ $(led) = 1 ]; do sleep 0.05; kill -0 $daemon; done
    kill $daemon; wait $daemon && echo "both are steered"
}
ip link set eth0 down; ip link set eth1 down
begin
ip route flush default; ip -6 route flush default
begin
ip link delete eth0; ip link delete eth1
begin
ip link delete eth0; ip link delete eth1
begin --quiet
ip link delete eth0; ip link delete eth1
begin --config named.toml
"#;
    let Some(lines) = home.run_in_network(script) else { return };
    let each = ["marline: no link can be used; waiting for a usable link", "both are steered"];
    assert_eq!(lines, each.repeat(5), "{lines:#?}");
}

#[test]
fn the_used_part_of_a_budget_is_kept_for_the_next_run() {
    let home = TestHome::new();
    let script = r#"
mkdir "$RUN"; echo '{"eth1": 400000000, "wwan7": 7}' >"$RUN/budgets.json"
used() { paths status --run-dir "$RUN" --json | tr -d ' \n' | grep -o '"budget_used_bytes":[0-9]*,"budget_left_bytes":[0-9]*' | tr -dc '0-9,'; echo; }
for run in 1 2; do
    "$MARLINE" paths --run-dir "$RUN" --link eth0 --link eth1,budget=1GB 2>log & daemon=$!
    started $daemon
    used
    # No host has this address: only ARP requests are sent.
    until [ "$(used | cut -d, -f1)" -gt 400000000 ]; do
        timeout 0.5 bash -c 'exec 3<>/dev/tcp/10.1.0.9/80' 2>/dev/null || true; kill -0 $daemon
    done
    kill $daemon; wait $daemon
done
tr -d ' \n' <"$RUN/budgets.json"
"#;
    let Some(lines) = home.run_in_network(script) else { return };
    let [first, second, saved] = &lines[..] else { panic!("{lines:?}") };
    let [first, second] = [first, second].map(|line| {
        let (used, left) = line.split_once(',').unwrap();
        let (used, left): (u64, u64) = (used.parse().unwrap(), left.parse().unwrap());
        assert_eq!(used + left, 1_000_000_000);
        used
    });
    let saved: std::collections::BTreeMap<String, u64> = serde_json::from_str(saved).unwrap();
    assert!(first >= 400_000_000 && second > first && saved["eth1"] >= second, "{first} {second} {saved:?}");
    assert!(saved["eth1"] < 400_100_000 && saved["wwan7"] == 7, "{saved:?}");
}

#[test]
fn the_status_shows_connections_of_the_forwarder() {
    let home = TestHome::new();
    // The link leads nowhere; the forwarder's connection fails after the kernel's three ARP requests for the router.
    let script = r#"
command -v nft >/dev/null || { echo "skipped: needs nft" >&2; exit 0; }
$steer --transparent 2>log & daemon=$!
started $daemon
led $daemon
timeout 20 bash -c 'exec 3<>/dev/tcp/198.51.100.1/80; read -u 3' || true
until paths status --run-dir "$RUN" | grep "^forwarded TCP connections: 0 open, .* 1 failed, "; do sleep 0.05; kill -0 $daemon; done
paths status --run-dir "$RUN" --json
kill $daemon; wait $daemon
"#;
    let Some(lines) = home.run_in_network(script) else { return };
    let Some((_, json)) = lines.split_first() else { return };
    let status: serde_json::Value = serde_json::from_str(&json.join("\n")).unwrap();
    assert_eq!(status["forwarder"]["failed"], 1, "{status}");
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
    $steer --transparent 2>log & daemon=$!
    started $daemon
    led $daemon
    kill -KILL $daemon; wait $daemon || true
    while nft list table inet marline >/dev/null 2>&1; do sleep 0.02; done
    ip rule | grep -c "fwmark 0x6d61 .* proto 109"
    ip -6 route show table all | grep -c "^local default dev lo .*proto 109"
    if [ $way = restore ]; then
        paths restore --run-dir "$RUN" 2>log; grep -o "[0-9]* rules and routes removed" log
    else
        $steer 2>log & daemon=$!
        started $daemon
        ip rule | grep fwmark || true
        kill $daemon; wait $daemon
    fi
    rmdir "$RUN" 2>/dev/null || true
    state >after; diff before after; echo "$way"
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

#[test]
fn a_dry_run_needs_no_privilege_and_changes_nothing() {
    let home = TestHome::new();
    let script = r#"
chmod 755 .; mkdir "$RUN"; chown 65534 "$RUN"; cp "$MARLINE" ./marline
state >before
setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps=-all --bounding-set=-all \
    ./marline paths --dry-run --run-dir "$RUN" --link eth0,kind=wifi --link eth1,kind=lte 2>log & daemon=$!
started $daemon
paths status --run-dir "$RUN" --json
kill $daemon; code=0; wait $daemon || code=$?
state >after; diff before after; echo "$code"
"#;
    let Some(lines) = home.run_in_network(script) else { return };
    let (last, json) = lines.split_last().unwrap();
    assert_eq!(last, "0");
    let log = std::fs::read_to_string(home.0.path().join("log")).unwrap();
    for line in [
        "marline: would set net.mptcp.path_manager: userspace (it is kernel)\n",
        "marline: would set the route default via 10.1.0.1 dev eth1 table 7310",
        "marline: would add the rule 20000 from 10.1.0.2 lookup main suppress_prefixlength 1\n",
        "marline: would add the rule 20001 from 2001:db8:1::2 lookup 7310",
    ] {
        assert!(log.contains(line), "{line}: {log}");
    }
    let status: serde_json::Value = serde_json::from_str(&json.join("\n")).unwrap();
    assert_eq!((status["mode"].as_str(), status["links"].as_array().unwrap().len()), (Some("dry-run"), 2));
}

#[test]
fn a_dry_run_is_queried_at_the_default_socket_and_never_replaces_a_daemons() {
    let home = TestHome::new();
    let script = r#"
mkdir -p "$RUN"; mount --make-rprivate / && mount -t tmpfs tmpfs /run && mkdir /run/marline
dry() { "$MARLINE" paths --dry-run --link eth0 --link eth1 "$@" 2>log & daemon=$!; }
dry --quiet
until paths status >/dev/null 2>&1; do sleep 0.02; kill -0 $daemon; done
paths status --json | grep '"mode"'; kill $daemon; wait $daemon; wc -c <log
$MARLINE paths --quiet --link eth0 --link eth1 & real=$!
until paths status >/dev/null 2>&1; do sleep 0.02; kill -0 $real; done
dry; until grep -q "cannot query this dry run" log; do sleep 0.02; kill -0 $daemon; done
paths status --json | grep '"mode"'; kill $daemon; wait $daemon
paths status --json | grep '"mode"'
TERM=dumb paths watch >/dev/null 2>ended & watch=$!
sleep 0.3; kill $real; wait $real; code=0; wait $watch || code=$?
echo "$code $(cat ended)"
"#;
    let Some(lines) = home.run_in_network_and_mounts(script) else { return };
    let modes: Vec<&str> = lines.iter().map(|line| line.trim().trim_end_matches(',')).collect();
    assert_eq!(
        modes,
        [
            r#""mode": "dry-run""#,
            "0",
            r#""mode": "userspace""#,
            r#""mode": "userspace""#,
            "1 marline: `marline paths` has ended",
        ]
    );
}

#[test]
fn foreign_endpoints_are_reported_at_the_start_and_own_ones_are_not_reported_as_foreign() {
    let home = TestHome::new();
    let script = r#"
ip mptcp endpoint add 10.1.0.2 id 7 dev eth1 subflow
ip mptcp endpoint add 10.77.0.1 id 9 signal
$steer --kernel-pm 2>log & daemon=$!
started $daemon
grep -c "endpoint 10.1.0.2 id 7 does not belong to marline: with it the kernel adds a subflow over eth1" log
grep -c "does not belong to marline" log
paths status --run-dir "$RUN" --json | grep -c "does not belong to marline"
findings() { paths doctor --run-dir "$RUN" | grep " endpoints " || true; }
findings
kill -KILL $daemon; wait $daemon || true
findings
ip mptcp endpoint show | grep -c "^10.0.0.2"
"#;
    let Some(lines) = home.run_in_network(script) else { return };
    assert_eq!(lines[..3], ["1", "1", "1"], "{lines:#?}");
    for finding in &lines[3..5] {
        assert!(finding.ends_with("has configured 2 endpoints: 10.1.0.2 id 7, 10.77.0.1 id 9"), "{finding}");
    }
    assert_eq!(lines[5], "1", "marline's own endpoint remains after a crash");
}

#[test]
fn the_doctor_reports_problems_and_ends_with_1() {
    let home = TestHome::new();
    let script = r#"
paths doctor --run-dir "$RUN" >log; echo "fit $?"
sysctl -q net.mptcp.enabled=0
code=0; paths doctor --run-dir "$RUN" --json >log || code=$?; echo "$code"; cat log
"#;
    let Some(lines) = home.run_in_network(script) else { return };
    assert_eq!(lines[..2], ["fit 0", "1"], "{lines:#?}");
    let report: serde_json::Value = serde_json::from_str(&lines[2..].join("\n")).unwrap();
    assert_eq!(report["ok"], false);
    let findings = report["findings"].as_array().unwrap();
    let wrong: Vec<&str> =
        findings.iter().filter(|f| f["severity"] == "blocks").map(|f| f["name"].as_str().unwrap()).collect();
    assert_eq!(wrong, ["MPTCP"], "{report}");
}
