//! Tests of `marline paths` as an operator uses it: errors are one line and change nothing, and the host configuration is restored
//! after every run, however it ended.
//!
//! Most tests run in a new network namespace (needs root, `unshare`, `ip`) with two links that lead nowhere; they are skipped with
//! a message elsewhere.

mod command_line;
mod dry_run;
mod links;
mod queries;
mod restoration;

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
# Waits until the daemon answers queries with these options.
started() { until paths status "$@" >/dev/null 2>&1; do sleep 0.02; kill -0 $daemon; done; }
# Starts a daemon with these options.
start() { "$MARLINE" paths --run-dir "$RUN" "$@" 2>log & daemon=$!; started --run-dir "$RUN"; }
start_both() { start --link eth0,kind=wifi --link eth1,kind=lte "$@"; }
stop() { kill $daemon; wait $daemon; }
crash() { kill -KILL $daemon; wait $daemon || true; }
compare() { state >after; diff before after; }
# Waits for the rule itself: the table exists for a moment before its rules.
led() { until nft list table inet marline 2>/dev/null | grep -q "tproxy to"; do sleep 0.02; kill -0 $1; done; }
plug_usb0() {
    ip link add usb0 type veth peer name far2
    ip link set usb0 addrgenmode none; ip link set far2 addrgenmode none
    ip address add 10.7.0.2/24 dev usb0
    ip link set usb0 up; ip link set far2 up
    until ip -br link show usb0 | grep -q LOWER_UP; do sleep 0.01; done
    ip route add default via 10.7.0.1 dev usb0 metric 300
}
# Prints the exit code and the output of a command that must change nothing, and any difference of the state.
refused() {
    state >was; code=0; "$@" >refusal 2>&1 || code=$?; state >is
    echo "$code $(cat refusal)"; diff was is
}
"#;

/// Expects as many lines, each with its beginning.
fn assert_beginnings(lines: &[String], expected: &[&str]) {
    assert_eq!(lines.len(), expected.len(), "{lines:#?}");
    for (line, expected) in lines.iter().zip(expected) {
        assert!(line.starts_with(expected), "{expected}: {lines:#?}");
    }
}
