//! `marline accel` as a process at the client's end, or nobody.
//!
//! In: who helps. Out: the running accelerator; what it says of its flows; the processor time that it took.
//!
//! 1. It is `marline` as a child process, with a home of nobody's, and its files are in a folder of its own.
//! 2. It is ready when it answers for its state.

use std::fs::File;
use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::Bpf;
use super::world::{CELL, PRIMARY};
use crate::server::TempDir;
use crate::{Lab, LabError};

/// Who helps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Who {
    /// Nobody.
    Plain,
    /// `marline accel`, with these words more.
    Accel(&'static str, Vec<String>),
}

/// What is on unless it is switched off.
const OURS: &str = "offload,undo,reserve,revert";
/// What acknowledges data before it has arrived.
const EARLY: &str = "hide";

impl Who {
    /// Everything that is on by default.
    pub(crate) fn ours() -> Self {
        Self::Accel("ours", Vec::new())
    }

    /// What is on by default, and early ACK: what a flow of plain HTTP may have.
    pub(crate) fn early() -> Self {
        Self::Accel("ours", vec!["--enable".to_owned(), EARLY.to_owned()])
    }

    /// Only these mechanisms, under this name.
    pub(crate) fn only(name: &'static str, mechanisms: &str) -> Self {
        let is_on = |word: &&str| !mechanisms.split(',').any(|wanted| wanted == *word);
        let off: Vec<&str> = OURS.split(',').filter(is_on).collect();
        let mut words = Vec::new();
        for (option, list) in [("--disable", off.join(",")), ("--enable", mechanisms.to_owned())] {
            if !list.is_empty() {
                words.extend([option.to_owned(), list]);
            }
        }
        Self::Accel(name, words)
    }

    /// For these flows alone.
    pub(crate) fn with_flows(mut self, filter: &str) -> Self {
        if let Self::Accel(_, words) = &mut self {
            words.extend(["--flows".to_owned(), filter.to_owned()]);
        }
        self
    }

    /// Told what the second link carries from here.
    pub(crate) fn with_uplink(mut self, kbps: u32) -> Self {
        if let Self::Accel(_, words) = &mut self {
            words.extend(["--secondary-up".to_owned(), format!("{kbps}kbit/s")]);
        }
        self
    }

    /// The mechanisms that it names, without those that are on by default.
    pub(crate) fn enabled(&self) -> Vec<&str> {
        let Self::Accel(_, words) = self else { return Vec::new() };
        let list = words.iter().skip_while(|word| *word != "--enable").nth(1);
        list.map(|list| list.split(',').collect()).unwrap_or_default()
    }

    /// As tables name it.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Accel(name, _) => name,
        }
    }
}

/// The running accelerator. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Daemon {
    child: Child,
    folder: TempDir,
    program: std::path::PathBuf,
}

impl Daemon {
    /// Starts it, and waits until it answers; none: nobody is to help.
    pub(crate) fn start(lab: &Lab, who: &Who, program: &Path, has_cell: bool) -> Result<Option<Self>, LabError> {
        let Who::Accel(_, words) = who else { return Ok(None) };
        let folder = TempDir::new().map_err(LabError::at_step("a place for the accelerator"))?;
        let failed = |source| LabError::Start { program: "marline accel".into(), source };
        let errors = File::create(folder.path().join(SAID)).map_err(failed)?;
        let mut command = command(program, folder.path(), &["--primary", PRIMARY]);
        if has_cell {
            command.args(["--secondary", CELL]);
        }
        command.args(words);
        command.stdin(Stdio::null()).stdout(errors.try_clone().map_err(failed)?).stderr(errors);
        let child = lab.spawn(&mut command).map_err(failed)?;
        let mut daemon = Self { child, folder, program: program.to_owned() };
        let until = Instant::now() + PATIENCE;
        while daemon.status(lab).is_err() {
            if let Some(status) = daemon.child.try_wait().map_err(failed)? {
                return Err(failed(io::Error::other(format!("{status}: {}", daemon.said()))));
            }
            if Instant::now() > until {
                return Err(failed(io::Error::other(format!("it does not answer: {}", daemon.said()))));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(Some(daemon))
    }

    /// `marline accel status --json`.
    pub(crate) fn status(&self, lab: &Lab) -> io::Result<Value> {
        let mut command = command(&self.program, self.folder.path(), &["status", "--json"]);
        command.stdin(Stdio::null()).stderr(Stdio::null());
        let output = lab.run_at_client(|| command.output())?;
        match output.status.success() {
            true => first(&output.stdout),
            false => Err(io::Error::other(format!("{}", output.status))),
        }
    }

    /// User and system time so far.
    pub(crate) fn cpu(&self) -> Duration {
        crate::fleet::cpu_time_of(self.child.id())
    }

    /// Its BPF program, if it has one.
    pub(crate) fn bpf(&self) -> Option<Bpf> {
        Bpf::of(self.child.id())
    }

    /// Why it is gone, if it is.
    pub(crate) fn has_ended(&mut self) -> Option<String> {
        let status = self.child.try_wait().ok().flatten()?;
        Some(format!("{status}: {}", self.said()))
    }

    /// The last line that it said.
    fn said(&self) -> String {
        let text = std::fs::read_to_string(self.folder.path().join(SAID)).unwrap_or_default();
        text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default().trim().to_owned()
    }

    /// `kill -9`.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The answer is a list of all accelerators in one place; here there is one.
fn first(text: &[u8]) -> io::Result<Value> {
    let all: Vec<Value> = serde_json::from_slice(text).map_err(io::Error::other)?;
    all.into_iter().next().ok_or_else(|| io::Error::other("nobody answers"))
}

fn command(program: &Path, folder: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.arg("accel").args(words).arg("--run-dir").arg(folder);
    let nowhere = folder.join("no-configuration");
    command.env("XDG_CONFIG_HOME", &nowhere).env("XDG_STATE_HOME", &nowhere).env("HOME", nowhere);
    command
}

const SAID: &str = "said.log";
/// It has little to do before it answers.
const PATIENCE: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_is_the_first_of_a_list() {
        assert_eq!(first(b"[{\"pid\": 4}]").unwrap()["pid"], 4);
        assert!(first(b"[]").is_err() && first(b"{}").is_err());
    }

    #[test]
    fn what_is_not_wanted_is_switched_off() {
        let words = |who: Who| match who {
            Who::Accel(_, words) => words.join(" "),
            Who::Plain => String::new(),
        };
        assert_eq!(words(Who::ours()), "");
        assert_eq!(words(Who::only("paper", "freeze")), format!("--disable {OURS} --enable freeze"));
        assert_eq!(words(Who::only("undo", "undo")), "--disable offload,reserve,revert --enable undo");
        assert_eq!(words(Who::only("nothing", "")), format!("--disable {OURS}"));
        assert_eq!(Who::only("paper", "freeze,fast-fetch").enabled(), ["freeze", "fast-fetch"]);
        assert!(Who::ours().enabled().is_empty() && Who::Plain.enabled().is_empty());
        let one = Who::ours().with_flows("tcp dst port 443");
        assert_eq!((words(one.clone()).as_str(), one.name()), ("--flows tcp dst port 443", "ours"));
        assert_eq!(words(Who::ours().with_uplink(400)), "--secondary-up 400kbit/s");
    }
}
