//! A process of this program in a lab: started, waited for until it listens, ended with its value.
//!
//! In: a command, where to start it. Out: the process and what it has said; an error says its last line.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A running process.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts it by `spawn`, and waits until it says that it listens. `who` names it in errors, and its log in `home`.
    pub(super) fn start(
        who: &str,
        home: &Path,
        mut command: Command,
        spawn: impl FnOnce(&mut Command) -> io::Result<Child>,
    ) -> Result<Self, String> {
        let failed = |error: io::Error| format!("{who}: {error}");
        let log = home.join(format!("{}.log", who.replace(' ', "-")));
        let file = File::create(&log).map_err(failed)?;
        command.stdin(Stdio::null()).stdout(file.try_clone().map_err(failed)?).stderr(file);
        let mut process = Self { child: spawn(&mut command).map_err(failed)?, log };
        let until = Instant::now() + PATIENCE;
        while !process.said().contains("listens on") {
            if let Ok(Some(status)) = process.child.try_wait() {
                return Err(format!("{who}: {status}: {}", process.last()));
            }
            if Instant::now() > until {
                return Err(format!("{who}: does not listen: {}", process.last()));
            }
            std::thread::sleep(LOOK);
        }
        Ok(process)
    }

    /// Everything that it has said.
    pub(super) fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn last(&self) -> String {
        let said = self.said();
        said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default().trim().to_owned()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The namespaces end with the lab, and with them all that it has changed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// It has little to do before it listens.
const PATIENCE: Duration = Duration::from_secs(15);
const LOOK: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(line: &str) -> Result<Process, String> {
        let home = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", line]);
        Process::start("it", home.path(), command, |command| command.spawn())
    }

    #[test]
    fn who_does_not_listen_says_why() {
        assert_eq!(shell("echo no room >&2; exit 3").unwrap_err(), "it: exit status: 3: no room");
        assert!(shell("echo it listens on 1; exec sleep 100").is_ok());
    }
}
