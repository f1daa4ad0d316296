//! Checks what this machine can do for a lab, and why not. Each capability is tried, not derived from settings.

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use marline_core::units::Bitrate;
use marline_sim::spec::LinkSpec;
use marline_sys::clock::{self, Timer};
use marline_sys::{priority, tun::Tun};
use rustix::event::{PollFd, PollFlags, poll};
use serde_json::{Value, json};

use crate::server::find_program;
use crate::{Congestion, Lab, LabSpec, Privileges, acquire_privileges};

/// Result of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Name of the check.
    pub name: &'static str,
    /// Whether the check succeeded.
    pub is_ok: bool,
    /// Whether a lab cannot run without it.
    pub is_required: bool,
    /// What was found; on failure the reason and the remedy.
    pub message: String,
}

/// Runs all checks. Call it in a process with one thread: it acquires privileges and builds labs as a real run
/// does.
pub fn check_machine() -> Vec<Finding> {
    let mut findings = vec![check_privileges(), check_tun(), check_lab()];
    if can_run(&findings) {
        findings.extend(Congestion::ALL.map(check_congestion));
    }
    findings.extend([check_real_time(), check_timer()]);
    findings.extend([
        check_program("nginx", "-v", "nginx-light", "--serve needs it"),
        check_program("curl", "--version", "curl", "examples and comparisons use it"),
        check_program("aria2c", "--version", "aria2", "comparisons use it"),
        marline(),
    ]);
    findings
}

/// Whether all required checks succeeded.
pub fn can_run(findings: &[Finding]) -> bool {
    findings.iter().all(|finding| finding.is_ok || !finding.is_required)
}

/// The findings as JSON.
pub fn to_json(findings: &[Finding]) -> Value {
    let finding_json =
        |f: &Finding| json!({"name": f.name, "ok": f.is_ok, "required": f.is_required, "says": f.message});
    json!({"can_run": can_run(findings), "findings": findings.iter().map(finding_json).collect::<Vec<_>>()})
}

fn new_finding(name: &'static str, required: bool, result: Result<String, String>) -> Finding {
    let (ok, message) = match result {
        Ok(message) => (true, message),
        Err(message) => (false, message),
    };
    Finding { name, is_ok: ok, is_required: required, message }
}

fn check_privileges() -> Finding {
    let limit = fs::read_to_string("/proc/sys/user/max_user_namespaces").unwrap_or_else(|_| "unknown".into());
    let limit = limit.trim();
    let result = match acquire_privileges() {
        Ok(Privileges::Root) => Ok(format!("root's own right (user.max_user_namespaces = {limit})")),
        Ok(Privileges::UserNamespace) => {
            Ok(format!("rootless in a user namespace (user.max_user_namespaces = {limit})"))
        }
        Err(error) => Err(error.to_string()),
    };
    new_finding("namespaces", true, result)
}

fn check_tun() -> Finding {
    let mode = fs::metadata(Tun::DEVICE_PATH).map(|m| format!("{:o}", m.permissions().mode() & 0o777));
    let open_result = fs::OpenOptions::new().read(true).write(true).open(Tun::DEVICE_PATH);
    let result = match (mode, open_result) {
        (Ok(mode), Ok(_)) if mode == "600" => Ok(format!("{} mode {mode}: root only", Tun::DEVICE_PATH)),
        (Ok(mode), Ok(_)) => Ok(format!("{} mode {mode}", Tun::DEVICE_PATH)),
        (Ok(mode), Err(error)) => {
            Err(format!("{} mode {mode}: {error}: sudo chmod 666 {}", Tun::DEVICE_PATH, Tun::DEVICE_PATH))
        }
        (Err(error), _) => Err(format!("{}: {error}: sudo modprobe tun", Tun::DEVICE_PATH)),
    };
    new_finding("tun", true, result)
}

fn minimal_spec() -> LabSpec {
    LabSpec::new(vec![LinkSpec::constant("check", Bitrate::from_mbps(10), Duration::from_millis(1))])
}

fn check_lab() -> Finding {
    let result = match Lab::start(&minimal_spec()) {
        Ok(lab) => Ok(format!("built in {:.0} ms", lab.build_time().as_secs_f64() * 1e3)),
        Err(error) => Err(error.to_string()),
    };
    new_finding("lab", true, result)
}

fn check_congestion(algorithm: Congestion) -> Finding {
    let result = match Lab::start(&LabSpec { congestion: algorithm, ..minimal_spec() }) {
        Ok(lab) if lab.congestion().is_granted() => Ok("granted by route".to_string()),
        Ok(lab) => {
            Err(format!("the kernel gives {} instead: sudo modprobe tcp_{algorithm}", lab.congestion().client))
        }
        Err(error) => Err(error.to_string()),
    };
    // Not required: measurements are possible with another algorithm, and the result names it.
    new_finding(algorithm.name(), false, result)
}

fn check_real_time() -> Finding {
    let result = match priority::check_real_time() {
        Ok(()) => Ok("SCHED_FIFO is permitted".to_string()),
        Err(error) => Err(format!("no SCHED_FIFO ({error}): packets may leave later on a busy machine")),
    };
    new_finding("real-time", false, result)
}

/// Measures how late a timer wakes a sleeping thread; no lab on this machine is more precise.
fn check_timer() -> Finding {
    let measure = || -> std::io::Result<Vec<Duration>> {
        let timer = Timer::new()?;
        let mut delays = Vec::new();
        for _ in 0..200 {
            let at = clock::now() + 1_000_000;
            timer.arm(Some(at))?;
            poll(&mut [PollFd::new(&timer, PollFlags::IN)], None)?;
            delays.push(Duration::from_nanos(clock::now().saturating_sub(at)));
        }
        delays.sort_unstable();
        Ok(delays)
    };
    let result = match std::thread::spawn(measure).join() {
        Ok(Ok(delays)) => {
            let percentile = |share: usize| delays.get(delays.len() * share / 100).copied().unwrap_or_default();
            let text = format!(
                "wakes {:.3} ms late (p99 {:.3} ms)",
                percentile(50).as_secs_f64() * 1e3,
                percentile(99).as_secs_f64() * 1e3
            );
            if percentile(99) < Duration::from_millis(1) {
                Ok(text)
            } else {
                Err(format!("{text}: this machine is busy"))
            }
        }
        _ => Err("the timer could not be tested".to_string()),
    };
    new_finding("timer", false, result)
}

fn check_program(name: &'static str, version: &str, package: &str, purpose: &str) -> Finding {
    let result = match find_program(name) {
        Some(path) => Ok(first_line(Command::new(path).arg(version)).unwrap_or_else(|| "found".into())),
        None => Err(format!("not installed ({purpose}): apt-get install {package}")),
    };
    new_finding(name, false, result)
}

/// Finds the `marline` program that is measured.
fn marline() -> Finding {
    let found = crate::program::marline().map(|path| {
        let version = first_line(Command::new(&path).arg("--version")).unwrap_or_else(|| "no version".into());
        format!("{version}, {}", path.display())
    });
    new_finding("marline", false, found.map_err(|error| error.to_string()))
}

/// The first line that a program prints, on standard output or else on standard error.
fn first_line(command: &mut Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).output().ok()?;
    let mut text = String::new();
    output.stdout.as_slice().chain(output.stderr.as_slice()).read_to_string(&mut text).ok()?;
    text.lines().next().map(|line| line.trim().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_failed_required_check_prevents_a_lab() {
        let works = new_finding("a", true, Ok(String::new()));
        let lacks = new_finding("b", false, Err(String::new()));
        assert!(can_run(&[works.clone(), lacks.clone()]));
        assert!(!can_run(&[works, Finding { is_required: true, ..lacks }]));
    }
}
