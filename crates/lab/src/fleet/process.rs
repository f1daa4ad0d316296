//! A program of the fleet as a child process (start, readiness, log, end), and the certificate files that make it a
//! member.
//!
//! 1. A process is ready when its log contains a given text; all servers of marline log such a line on standard
//!    error.
//! 2. Dropping a process kills it and waits for it. The lab's PID namespace would kill it too, but without waiting.
//! 3. marline runs with an empty home directory, so that the user's configuration and learned rates have no effect.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::LabError;

/// Directory of the members' files, and the program that creates and uses them.
#[derive(Clone, Debug)]
pub(crate) struct MemberFiles {
    program: PathBuf,
    folder: PathBuf,
}

/// Directory of the certificate authority, relative to the members' files.
pub(crate) const CA_DIR: &str = "ca";

impl MemberFiles {
    /// Creates an authority and certificates for an edge `edge`, an operator `operator`, and relays `relay-1`,
    /// `relay-2`, … at these addresses.
    pub(crate) fn new(program: &Path, folder: &Path, relays: &[Ipv4Addr]) -> Result<Self, LabError> {
        let members = Self { program: program.to_owned(), folder: folder.to_owned() };
        members.run_ca(&["init", "--name", "lab"])?;
        members.run_ca(&["issue", "edge", "edge", "--out", "."])?;
        members.run_ca(&["issue", "operator", "operator", "--out", "."])?;
        for (index, address) in relays.iter().enumerate() {
            let (name, host) = (relay_name(index), relay_host(index));
            let address = address.to_string();
            members.run_ca(&["issue", "relay", &name, "--address", &address, "--address", &host, "--out", "."])?;
        }
        Ok(members)
    }

    /// Path of the executable.
    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    /// Directory of the files.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Command that runs the program in the directory of the files, with an empty home directory below `home`.
    pub(crate) fn command<S: AsRef<OsStr>>(&self, home: &Path, args: &[S]) -> Command {
        self.command_with(Command::new(&self.program), home, args)
    }

    /// The same through another command, whose arguments end with the program to start.
    pub(crate) fn command_with<S: AsRef<OsStr>>(&self, mut command: Command, home: &Path, args: &[S]) -> Command {
        let empty_home = home.join("no-configuration");
        command.args(args).current_dir(&self.folder).stdin(Stdio::null());
        command.env("XDG_CONFIG_HOME", &empty_home).env("XDG_STATE_HOME", &empty_home).env("HOME", empty_home);
        command
    }

    fn run_ca(&self, args: &[&str]) -> Result<(), LabError> {
        let mut command = self.command(&self.folder, &[&["fleet", "ca"], args, &["--ca-dir", CA_DIR]].concat());
        let start_error = |source| LabError::Start { program: "marline fleet ca".into(), source };
        let output = command.output().map_err(start_error)?;
        let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        output.status.success().then_some(()).ok_or(LabError::Server(format!("marline fleet ca: {stderr}")))
    }
}

/// Name of relay `index` (from 0).
pub(crate) fn relay_name(index: usize) -> String {
    format!("relay-{}", index + 1)
}

/// Host name of relay `index`, for which its certificate is valid.
pub(crate) fn relay_host(index: usize) -> String {
    format!("{}.lab", relay_name(index))
}

/// The relay of new flows according to the last such line of an edge's log: its name, or its address if the edge
/// knows it by address.
pub(crate) fn relay_in_use(edge_log: &str) -> Option<&str> {
    let relay = edge_log.lines().rev().find_map(|line| line.split_once("new flows go through "))?.1;
    relay.split([':', ' ', ',']).next()
}

/// A running process; see the [module documentation](self).
#[derive(Debug)]
pub(crate) struct FleetProcess {
    name: String,
    child: Child,
    log: PathBuf,
}

impl FleetProcess {
    /// Starts the process with `spawn`, which selects the namespace. Standard output and error go to a file in
    /// `folder`.
    pub(crate) fn start(
        name: &str,
        folder: &Path,
        command: &mut Command,
        spawn: impl FnOnce(&mut Command) -> io::Result<Child>,
    ) -> Result<Self, LabError> {
        let log = folder.join(format!("{name}.log"));
        let start_error = |source| LabError::Start { program: name.into(), source };
        let file = File::create(&log).map_err(LabError::at_step(log.display().to_string()))?;
        let out = file.try_clone().map_err(LabError::at_step(log.display().to_string()))?;
        command.stdin(Stdio::null()).stdout(out).stderr(file);
        Ok(Self { name: name.into(), child: spawn(command).map_err(start_error)?, log })
    }

    /// Waits until the log contains `text`; an error if the process ends or the time expires.
    pub(crate) fn wait_until_ready(mut self, text: &str) -> Result<Self, LabError> {
        let deadline = Instant::now() + READY_TIMEOUT;
        while !self.log_text().contains(text) {
            if let Some(reason) = self.exit_reason() {
                return Err(LabError::Server(format!("{}: {reason}", self.name)));
            }
            if Instant::now() > deadline {
                return Err(LabError::Server(format!("{} is not ready: {}", self.name, self.last_line())));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(self)
    }

    /// Exit status and last log line, if the process has ended.
    pub(crate) fn exit_reason(&mut self) -> Option<String> {
        let status = self.child.try_wait().ok().flatten()?;
        Some(format!("{status}: {}", self.last_line()))
    }

    pub(crate) fn log_text(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn last_line(&self) -> String {
        let log_text = self.log_text();
        log_text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("its log is empty").trim().to_owned()
    }

    /// Its PID, in the PID namespace of this program.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// CPU time used so far, in user and kernel mode.
    pub(crate) fn cpu_time(&self) -> Duration {
        cpu_time_of(self.pid())
    }

    /// Kills the process with SIGKILL and waits for it.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for FleetProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// CPU time that a process has used so far, in user and kernel mode; zero if it no longer exists.
pub(crate) fn cpu_time_of(pid: u32) -> Duration {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    cpu_ticks(&text).map_or(Duration::ZERO, |ticks| Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND))
}

/// Sum of the fields 14 and 15 of `/proc/PID/stat` (proc_pid_stat(5)), counted after the name, which may contain
/// any character.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let (user, system): (u64, u64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(user + system)
}

/// `USER_HZ`, which is 100 on every architecture that marline supports.
const TICKS_PER_SECOND: u64 = 100;
/// Starting takes much less; the margin is for a busy machine.
const READY_TIMEOUT: Duration = Duration::from_secs(15);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_parsed_after_a_process_name_with_parentheses() {
        let stat = "42 (a ) b) S 1 42 42 0 -1 4194304 100 0 0 0 17 5 0 0 20 0 1 0 100 1000 10";
        assert_eq!(cpu_ticks(stat), Some(22));
        assert_eq!(cpu_ticks(""), None);
    }

    #[test]
    fn the_relay_in_use_is_the_last_one_in_the_edges_log() {
        let edge_log = "marline: it listens\nmarline: new flows go through 10.99.0.3\nmarline: new flows go through relay-2, assigned\n";
        assert_eq!(relay_in_use(edge_log), Some("relay-2"));
        assert_eq!(relay_in_use(edge_log.rsplit_once("marline").unwrap().0), Some("10.99.0.3"));
        assert_eq!(relay_in_use("marline: new flows go directly, over one link: no relay is available"), None);
    }

    #[test]
    fn a_process_that_ends_early_is_reported_with_its_last_log_line() {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "echo first >&2; echo 'no such thing' >&2; exit 3"]);
        let member = FleetProcess::start("who", folder.path(), &mut command, Command::spawn).unwrap();
        let error = member.wait_until_ready("listens on").unwrap_err().to_string();
        assert!(error.contains("who: exit status: 3: no such thing"), "{error}");
        let mut command = Command::new("sh");
        command.args(["-c", "echo it listens on; exec sleep 100"]);
        let member = FleetProcess::start("who", folder.path(), &mut command, Command::spawn).unwrap();
        let mut member = member.wait_until_ready("listens on").unwrap();
        assert_eq!(member.exit_reason(), None);
        member.kill();
        assert!(member.exit_reason().is_some_and(|how| how.contains("signal: 9")));
    }
}
