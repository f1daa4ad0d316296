//! Runs a shell script in new network, process and mount namespaces; when it ends, all processes that it started are killed.

use std::process::{Command, Stdio};

/// The program under test.
pub(crate) const MARLINE: &str = env!("CARGO_BIN_EXE_marline");

/// Runs the script in new namespaces and returns the lines that it printed. Returns none, and prints why, where this host does not permit
/// namespaces or lacks MPTCP or one of the programs.
///
/// The script is bash with `-e`, may use `$MARLINE`, and has 120 s. Its working directory is empty and is removed afterwards.
///
/// # Panics
/// If the script fails.
pub(crate) fn run_in_namespaces(programs: &[&str], script: &str) -> Option<Vec<String>> {
    let home = tempfile::tempdir().unwrap();
    let command = |program: &str| {
        let mut command = Command::new(program);
        command.env_clear().env("HOME", home.path()).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        command.current_dir(home.path()).stdin(Stdio::null());
        command
    };
    let unshare_output =
        command("unshare").args(["--net", "--pid", "--fork", "--mount-proc", "ip", "link"]).output();
    if !unshare_output.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: needs root, unshare and ip");
        return None;
    }
    for program in programs {
        let which = command("sh").args(["-c", &format!("command -v {program}")]).output();
        if !which.is_ok_and(|output| output.status.success()) {
            eprintln!("skipped: needs the program {program}");
            return None;
        }
    }
    if !std::path::Path::new("/proc/sys/net/mptcp").exists() {
        eprintln!("skipped: this kernel has no MPTCP");
        return None;
    }
    let mut bounded = command("timeout");
    // `--kill-child` with a new PID namespace ends every process of the script, however it ends.
    bounded.args(["120", "unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "--mount"]);
    bounded.args(["bash", "-ec", script]).env("MARLINE", MARLINE);
    let output = bounded.stderr(Stdio::piped()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{:?}\n{text}\n{stderr}", output.status);
    Some(text.lines().map(str::to_owned).collect())
}
