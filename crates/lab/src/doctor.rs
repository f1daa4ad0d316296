//! What this machine can do for a lab, and why not: each answer is tried, not guessed.

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use marline_core::units::Bitrate;
use marline_sim::spec::LinkSpec;
use marline_sys::clock::{self, Timer};
use marline_sys::{sched, tun::Tun};
use rustix::event::{PollFd, PollFlags, poll};
use serde_json::{Value, json};

use crate::server::find;
use crate::{Access, Congestion, Lab, LabSpec, prepare};

/// One thing that was tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What.
    pub name: &'static str,
    /// Whether it works.
    pub ok: bool,
    /// Whether a lab cannot do without it.
    pub required: bool,
    /// What was found, or why not and what to do.
    pub says: String,
}

/// All that was tried. Call it in a process with one thread: it takes the way that a lab takes.
pub fn machine() -> Vec<Finding> {
    let mut all = vec![access(), tun_node(), a_lab()];
    if can_run(&all) {
        all.extend(Congestion::ALL.map(congestion));
    }
    all.extend([real_time(), timer_floor()]);
    all.extend([
        program("nginx", "-v", "nginx-light", "--serve needs it"),
        program("curl", "--version", "curl", "examples and comparisons use it"),
        program("aria2c", "--version", "aria2", "comparisons use it"),
        marline(),
    ]);
    all
}

/// Whether a lab can run here.
pub fn can_run(findings: &[Finding]) -> bool {
    findings.iter().all(|finding| finding.ok || !finding.required)
}

/// The findings as JSON.
pub fn to_json(findings: &[Finding]) -> Value {
    let one = |f: &Finding| json!({"name": f.name, "ok": f.ok, "required": f.required, "says": f.says});
    json!({"can_run": can_run(findings), "findings": findings.iter().map(one).collect::<Vec<_>>()})
}

fn finding(name: &'static str, required: bool, result: Result<String, String>) -> Finding {
    let (ok, says) = match result {
        Ok(says) => (true, says),
        Err(says) => (false, says),
    };
    Finding { name, ok, required, says }
}

fn access() -> Finding {
    let limit = fs::read_to_string("/proc/sys/user/max_user_namespaces").unwrap_or_else(|_| "unknown".into());
    let limit = limit.trim();
    let result = match prepare() {
        Ok(Access::Root) => Ok(format!("root's own right (user.max_user_namespaces = {limit})")),
        Ok(Access::Rootless) => Ok(format!("rootless in a user namespace (user.max_user_namespaces = {limit})")),
        Err(error) => Err(error.to_string()),
    };
    finding("namespaces", true, result)
}

fn tun_node() -> Finding {
    let mode = fs::metadata(Tun::NODE).map(|m| format!("{:o}", m.permissions().mode() & 0o777));
    let opened = fs::OpenOptions::new().read(true).write(true).open(Tun::NODE);
    let result = match (mode, opened) {
        (Ok(mode), Ok(_)) if mode == "600" => Ok(format!("{} mode {mode}: root only", Tun::NODE)),
        (Ok(mode), Ok(_)) => Ok(format!("{} mode {mode}", Tun::NODE)),
        (Ok(mode), Err(error)) => Err(format!("{} mode {mode}: {error}: sudo chmod 666 {}", Tun::NODE, Tun::NODE)),
        (Err(error), _) => Err(format!("{}: {error}: sudo modprobe tun", Tun::NODE)),
    };
    finding("tun", true, result)
}

fn small() -> LabSpec {
    LabSpec::new(vec![LinkSpec::constant("check", Bitrate::from_mbps(10), Duration::from_millis(1))])
}

fn a_lab() -> Finding {
    let result = match Lab::start(&small()) {
        Ok(lab) => Ok(format!("built in {:.0} ms", lab.build_time().as_secs_f64() * 1e3)),
        Err(error) => Err(error.to_string()),
    };
    finding("lab", true, result)
}

fn congestion(wanted: Congestion) -> Finding {
    let result = match Lab::start(&LabSpec { congestion: wanted, ..small() }) {
        Ok(lab) if lab.congestion().is_granted() => Ok("granted by route".to_string()),
        Ok(lab) => Err(format!("the kernel gives {} instead: sudo modprobe tcp_{wanted}", lab.congestion().client)),
        Err(error) => Err(error.to_string()),
    };
    // Without it one can still measure, with what the kernel has; the result says so.
    finding(wanted.name(), false, result)
}

fn real_time() -> Finding {
    let result = match sched::try_real_time() {
        Ok(()) => Ok("SCHED_FIFO is permitted".to_string()),
        Err(error) => Err(format!("no SCHED_FIFO ({error}): packets may leave later on a busy machine")),
    };
    finding("real-time", false, result)
}

/// How late a timer wakes a sleeping thread here: no lab is more precise than that.
fn timer_floor() -> Finding {
    let late = || -> std::io::Result<Vec<Duration>> {
        let timer = Timer::new()?;
        let mut late = Vec::new();
        for _ in 0..200 {
            let at = clock::now() + 1_000_000;
            timer.arm(Some(at))?;
            poll(&mut [PollFd::new(&timer, PollFlags::IN)], None)?;
            late.push(Duration::from_nanos(clock::now().saturating_sub(at)));
        }
        late.sort_unstable();
        Ok(late)
    };
    let result = match std::thread::spawn(late).join() {
        Ok(Ok(late)) => {
            let at = |share: usize| late.get(late.len() * share / 100).copied().unwrap_or_default();
            let text = format!(
                "wakes {:.3} ms late (p99 {:.3} ms)",
                at(50).as_secs_f64() * 1e3,
                at(99).as_secs_f64() * 1e3
            );
            if at(99) < Duration::from_millis(1) { Ok(text) } else { Err(format!("{text}: this machine is busy")) }
        }
        _ => Err("the trial failed".to_string()),
    };
    finding("timer", false, result)
}

fn program(name: &'static str, version: &str, package: &str, purpose: &str) -> Finding {
    let result = match find(name) {
        Some(path) => Ok(first_line(Command::new(path).arg(version)).unwrap_or_else(|| "found".into())),
        None => Err(format!("not installed ({purpose}): apt-get install {package}")),
    };
    finding(name, false, result)
}

/// The program that is measured.
fn marline() -> Finding {
    let found = crate::program::marline().map(|path| {
        let version = first_line(Command::new(&path).arg("--version")).unwrap_or_else(|| "no version".into());
        format!("{version}, {}", path.display())
    });
    finding("marline", false, found.map_err(|error| error.to_string()))
}

/// The first line that a program prints.
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
    fn only_what_is_required_keeps_a_lab_from_running() {
        let works = finding("a", true, Ok(String::new()));
        let lacks = finding("b", false, Err(String::new()));
        assert!(can_run(&[works.clone(), lacks.clone()]));
        assert!(!can_run(&[works, Finding { required: true, ..lacks }]));
    }
}
