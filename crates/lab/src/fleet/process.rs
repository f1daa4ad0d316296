//! One program of a fleet as a process: started, waited for, ended; what it has said. And the files that make it a member.
//!
//! In: a command and a file for what it says. Out: a running program.
//!
//! 1. It is ready when it has said so on standard error; all of marline's servers do.
//! 2. Dropping it kills it. The lab's room would as well, but whoever is dropped here is also waited for.
//! 3. A command of ours has a home of nobody's, so that no configuration and no learnt rate of the user's counts.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::LabError;

/// Where members' files are, and the program that makes and uses them.
#[derive(Clone, Debug)]
pub(crate) struct MemberFiles {
    program: PathBuf,
    folder: PathBuf,
}

/// The directory of the authority among the members' files.
pub(crate) const CA_DIR: &str = "ca";

impl MemberFiles {
    /// A new authority, an edge `edge`, an operator `operator`, and `relay-1`, `relay-2`, … at these addresses.
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

    /// The program.
    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    /// Where they are.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// This program among these files; what it would keep for its user is below `home`.
    pub(crate) fn command<S: AsRef<OsStr>>(&self, home: &Path, args: &[S]) -> Command {
        self.command_with(Command::new(&self.program), home, args)
    }

    /// The same, by a command that starts the program which its words name.
    pub(crate) fn command_with<S: AsRef<OsStr>>(&self, mut command: Command, home: &Path, args: &[S]) -> Command {
        let empty_home = home.join("no-configuration");
        command.args(args).current_dir(&self.folder).stdin(Stdio::null());
        command.env("XDG_CONFIG_HOME", &empty_home).env("XDG_STATE_HOME", &empty_home).env("HOME", empty_home);
        command
    }

    fn run_ca(&self, args: &[&str]) -> Result<(), LabError> {
        let mut command = self.command(&self.folder, &[&["fleet", "ca"], args, &["--dir", CA_DIR]].concat());
        let start_error = |source| LabError::Start { program: "marline fleet ca".into(), source };
        let output = command.output().map_err(start_error)?;
        let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        output.status.success().then_some(()).ok_or(LabError::Server(format!("marline fleet ca: {stderr}")))
    }
}

/// What relay number `at` is called.
pub(crate) fn relay_name(index: usize) -> String {
    format!("relay-{}", index + 1)
}

/// A name of relay number `at` that its certificate is for.
pub(crate) fn relay_host(index: usize) -> String {
    format!("{}.lab", relay_name(index))
}

/// The relay that new flows go through by the last word of an edge about it: its name, or the address that the edge was told.
pub(crate) fn relay_in_use(edge_log: &str) -> Option<&str> {
    let relay = edge_log.lines().rev().find_map(|line| line.split_once("new flows go through "))?.1;
    relay.split([':', ' ', ',']).next()
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct FleetProcess {
    name: String,
    child: Child,
    log: PathBuf,
}

impl FleetProcess {
    /// Starts it with `spawn`, which decides where; its standard output and errors go to a file in `folder`.
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

    /// Waits until it has said `word`.
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

    /// How it ended and its last words, if it has ended.
    pub(crate) fn exit_reason(&mut self) -> Option<String> {
        let status = self.child.try_wait().ok().flatten()?;
        Some(format!("{status}: {}", self.last_line()))
    }

    /// Everything that it has said.
    pub(crate) fn log_text(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn last_line(&self) -> String {
        let log_text = self.log_text();
        log_text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it says nothing").trim().to_owned()
    }

    /// Its number, outside.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Processor time that it has used so far, with its kernel's on its behalf.
    pub(crate) fn cpu_time(&self) -> Duration {
        cpu_time_of(self.pid())
    }

    /// `kill -9`.
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

/// Processor time that a process has used so far, with its kernel's on its behalf; none of one that is gone.
pub(crate) fn cpu_time_of(pid: u32) -> Duration {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    cpu_ticks(&text).map_or(Duration::ZERO, |ticks| Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND))
}

/// Fields 14 and 15 of `/proc/PID/stat` (proc_pid_stat(5)), counted after the name, which may hold anything.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let (user, system): (u64, u64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(user + system)
}

/// `USER_HZ`, which Linux shows to programs on every machine of ours.
const TICKS_PER_SECOND: u64 = 100;
/// It has little to do before it listens; the machine may be busy.
const READY_TIMEOUT: Duration = Duration::from_secs(15);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_read_behind_a_name_with_brackets() {
        let stat = "42 (a ) b) S 1 42 42 0 -1 4194304 100 0 0 0 17 5 0 0 20 0 1 0 100 1000 10";
        assert_eq!(cpu_ticks(stat), Some(22));
        assert_eq!(cpu_ticks(""), None);
    }

    #[test]
    fn the_relay_in_use_is_the_last_one_that_the_edge_has_named() {
        let said = "marline: it listens\nmarline: new flows go through 10.99.0.3\nmarline: new flows go through relay-2, assigned\n";
        assert_eq!(relay_in_use(said), Some("relay-2"));
        assert_eq!(relay_in_use(said.rsplit_once("marline").unwrap().0), Some("10.99.0.3"));
        assert_eq!(relay_in_use("marline: new flows go directly, over one link: no relay is available"), None);
    }

    #[test]
    fn who_ends_before_it_is_ready_is_told_with_its_last_words() {
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
