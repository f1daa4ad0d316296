//! `marline paths` as a process at the client's end.
//!
//! In: a policy, a device, a place for its files. Out: the running daemon; what it says of itself.
//!
//! 1. It is `marline` as a child process, with a home of nobody's, and its files are in a folder of its own: many labs run
//!    side by side.
//! 2. It is ready when it answers for its state.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::server::Folder;
use crate::{Lab, LabError};

/// How it is started.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// marline's executable.
    pub(crate) program: PathBuf,
    /// `marline`, `emptcp`, `wifi-first` or `mptcp`.
    pub(crate) policy: &'static str,
    /// `energy`, `throughput`, `latency` or `metered`.
    pub(crate) profile: &'static str,
    /// The device whose radios are paid for.
    pub(crate) model: &'static str,
    /// The links that it may use.
    pub(crate) links: Vec<String>,
    /// The file for its log of decisions, for `marline replay`.
    pub(crate) trace: Option<PathBuf>,
}

/// A running daemon. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Daemon {
    child: Option<Child>,
    settings: Settings,
    folder: Folder,
}

impl Daemon {
    /// Starts it, and waits until it answers.
    pub(crate) fn start(lab: &Lab, settings: Settings) -> Result<Self, LabError> {
        let folder = Folder::new().map_err(LabError::at("a place for the daemon"))?;
        let mut daemon = Self { child: None, settings, folder };
        daemon.start_again(lab)?;
        Ok(daemon)
    }

    /// Starts it once more in the same place, after [`Self::kill`].
    pub(crate) fn start_again(&mut self, lab: &Lab) -> Result<(), LabError> {
        let errors = File::options().create(true).append(true).open(self.errors());
        let errors = errors.map_err(LabError::at("a file for the daemon's errors"))?;
        let mut command = self.command(&["run"]);
        command.args(["--policy", self.settings.policy, "--profile", self.settings.profile]);
        command.args(["--energy-model", self.settings.model]);
        command.args(self.settings.links.iter().flat_map(|link| ["--link", link]));
        if let Some(trace) = &self.settings.trace {
            if let Some(folder) = trace.parent() {
                std::fs::create_dir_all(folder).map_err(LabError::at(format!("{}", folder.display())))?;
            }
            command.arg("--trace").arg(trace);
        }
        command.stdin(Stdio::null()).stdout(errors.try_clone().map_err(LabError::at("a file"))?).stderr(errors);
        let failed = |source| LabError::Start { program: "marline paths".into(), source };
        self.child = Some(lab.spawn(&mut command).map_err(failed)?);
        let until = Instant::now() + PATIENCE;
        while self.status(lab).is_err() {
            let ended = self.child.as_mut().and_then(|child| child.try_wait().ok().flatten());
            if let Some(status) = ended {
                self.child = None;
                return Err(failed(io::Error::other(format!("{status}: {}", self.said()))));
            }
            if Instant::now() > until {
                return Err(failed(io::Error::other(format!("it does not answer: {}", self.said()))));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Its pid, outside.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// `marline paths status --json`.
    pub(crate) fn status(&self, lab: &Lab) -> io::Result<Value> {
        let mut command = self.command(&["status", "--json"]);
        command.stdin(Stdio::null()).stderr(Stdio::null());
        let output = lab.inside(|| command.output())?;
        match output.status.success() {
            true => serde_json::from_slice(&output.stdout).map_err(io::Error::other),
            false => Err(io::Error::other(format!("{}", output.status))),
        }
    }

    /// The last line that it said.
    pub(crate) fn said(&self) -> String {
        let text = std::fs::read_to_string(self.errors()).unwrap_or_default();
        text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default().trim().to_owned()
    }

    /// `kill -9`, without a chance to put anything back.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.settings.program);
        command.arg("paths").args(words).arg("--run-dir").arg(self.folder.path());
        let nowhere = self.folder.path().join("no-configuration");
        command.env("XDG_CONFIG_HOME", &nowhere).env("HOME", nowhere);
        command
    }

    fn errors(&self) -> PathBuf {
        self.place().join("said.log")
    }

    /// Where its files are.
    fn place(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}

/// It has little to do before it answers.
const PATIENCE: Duration = Duration::from_secs(10);
