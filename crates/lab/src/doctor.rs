//! Checks what this machine can do for a lab, and why not. Each capability is tried, not derived from settings.

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use marline_core::finding::{Finding, Report, Severity};
use marline_core::units::Bitrate;
use marline_sim::spec::LinkSpec;
use marline_sys::clock::{self, Timer};
use marline_sys::{priority, tun::Tun};
use rustix::event::{PollFd, PollFlags, poll};

use crate::server::find_program;
use crate::{Congestion, Lab, LabSpec, Privileges, acquire_privileges};

/// Runs all checks. Call it in a process with one thread: it acquires privileges and builds labs as a real run
/// does.
pub fn check_machine() -> Report {
    let mut findings = vec![check_privileges(), check_tun(), check_lab()];
    if Report::new(findings.clone()).ok {
        findings.extend(Congestion::ALL.map(check_congestion));
    }
    findings.extend([check_real_time(), check_timer()]);
    findings.extend([
        check_program("nginx", "-v", "nginx-light", "--serve needs it"),
        check_program("curl", "--version", "curl", "examples and comparisons use it"),
        check_program("aria2c", "--version", "aria2", "comparisons use it"),
        marline(),
    ]);
    Report::new(findings)
}

/// The finding of a check. An error is what was observed, and the remedy.
fn new_finding(name: &'static str, failure: Severity, result: Result<String, (String, String)>) -> Finding {
    match result {
        Ok(message) => Finding::ok(name, message),
        Err((message, remedy)) => Finding { name, severity: failure, message, remedy },
    }
}

/// A failure without a remedy of its own: its text says what is known.
fn no_remedy(error: impl ToString) -> (String, String) {
    (error.to_string(), String::new())
}

fn check_privileges() -> Finding {
    let limit = fs::read_to_string("/proc/sys/user/max_user_namespaces").unwrap_or_else(|_| "unknown".into());
    let limit = limit.trim();
    let result = match acquire_privileges() {
        Ok(Privileges::Root) => Ok(format!("root's own right (user.max_user_namespaces = {limit})")),
        Ok(Privileges::UserNamespace) => {
            Ok(format!("rootless in a user namespace (user.max_user_namespaces = {limit})"))
        }
        Err(error) => Err(no_remedy(error)),
    };
    new_finding("namespaces", Severity::Blocks, result)
}

fn check_tun() -> Finding {
    let mode = fs::metadata(Tun::DEVICE_PATH).map(|m| format!("{:o}", m.permissions().mode() & 0o777));
    let open_result = fs::OpenOptions::new().read(true).write(true).open(Tun::DEVICE_PATH);
    let result = match (mode, open_result) {
        (Ok(mode), Ok(_)) if mode == "600" => Ok(format!("{} mode {mode}: root only", Tun::DEVICE_PATH)),
        (Ok(mode), Ok(_)) => Ok(format!("{} mode {mode}", Tun::DEVICE_PATH)),
        (Ok(mode), Err(error)) => {
            let remedy = format!("`sudo chmod 666 {}`", Tun::DEVICE_PATH);
            Err((format!("{} mode {mode}: {error}", Tun::DEVICE_PATH), remedy))
        }
        (Err(error), _) => Err((format!("{}: {error}", Tun::DEVICE_PATH), "`sudo modprobe tun`".to_owned())),
    };
    new_finding("tun", Severity::Blocks, result)
}

fn minimal_spec() -> LabSpec {
    LabSpec::new(vec![LinkSpec::constant("check", Bitrate::from_mbps(10), Duration::from_millis(1))])
}

fn check_lab() -> Finding {
    let result = match Lab::start(&minimal_spec()) {
        Ok(lab) => Ok(format!("built in {:.0} ms", lab.build_time().as_secs_f64() * 1e3)),
        Err(error) => Err(no_remedy(error)),
    };
    new_finding("lab", Severity::Blocks, result)
}

fn check_congestion(algorithm: Congestion) -> Finding {
    let result = match Lab::start(&LabSpec { congestion: algorithm, ..minimal_spec() }) {
        Ok(lab) if lab.congestion().is_granted() => Ok("granted by route".to_string()),
        Ok(lab) => {
            let message = format!("the kernel gives {} instead", lab.congestion().client);
            Err((message, format!("`sudo modprobe tcp_{algorithm}`")))
        }
        Err(error) => Err(no_remedy(error)),
    };
    // Not required: measurements are possible with another algorithm, and the result names it.
    new_finding(algorithm.name(), Severity::Note, result)
}

fn check_real_time() -> Finding {
    let result = match priority::check_real_time() {
        Ok(()) => Ok("SCHED_FIFO is permitted".to_string()),
        Err(error) => Err(no_remedy(format!("no SCHED_FIFO ({error}): packets may leave later on a busy machine"))),
    };
    new_finding("real-time", Severity::Note, result)
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
                Err((format!("{text}: this machine is busy"), "stop other programs while you measure".to_owned()))
            }
        }
        _ => Err(no_remedy("the timer could not be tested")),
    };
    new_finding("timer", Severity::Note, result)
}

fn check_program(name: &'static str, version: &str, package: &str, purpose: &str) -> Finding {
    let result = match find_program(name) {
        Some(path) => Ok(first_line(Command::new(path).arg(version)).unwrap_or_else(|| "found".into())),
        None => Err((format!("not installed ({purpose})"), format!("`apt-get install {package}`"))),
    };
    new_finding(name, Severity::Note, result)
}

/// Finds the `marline` program that is measured.
fn marline() -> Finding {
    let found = crate::program::marline().map(|path| {
        let version = first_line(Command::new(&path).arg("--version")).unwrap_or_else(|| "no version".into());
        format!("{version}, {}", path.display())
    });
    new_finding("marline", Severity::Note, found.map_err(no_remedy))
}

/// The first line that a program prints, on standard output or else on standard error.
fn first_line(command: &mut Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).output().ok()?;
    let mut text = String::new();
    output.stdout.as_slice().chain(output.stderr.as_slice()).read_to_string(&mut text).ok()?;
    text.lines().next().map(|line| line.trim().to_string())
}
