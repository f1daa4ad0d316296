//! `marline paths` as a child process in the client namespace.
//!
//! 1. It runs with an empty home directory, and its files are in a directory of its own, because many labs run side
//!    by side.
//! 2. It is ready when it answers a status request.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::server::TempDir;
use crate::{Lab, LabError};

/// Command-line settings of the daemon.
#[derive(Clone, Debug)]
pub(crate) struct DaemonConfig {
    /// Path of marline's executable.
    pub(crate) program: PathBuf,
    /// Policy (`--policy`), such as `marline` or `emptcp`.
    pub(crate) policy: &'static str,
    /// Goal (`--goal`): `speed`, `latency`, `energy` or `cost`.
    pub(crate) goal: &'static str,
    /// Device model for energy accounting (`--energy-model`).
    pub(crate) model: &'static str,
    /// The links that it manages, as arguments of `--link`.
    pub(crate) links: Vec<String>,
    /// File for the decision log, for `marline replay`.
    pub(crate) trace: Option<PathBuf>,
}

/// A running daemon. Dropping it kills the process.
#[derive(Debug)]
pub(crate) struct PathsDaemon {
    child: Option<Child>,
    config: DaemonConfig,
    temp_dir: TempDir,
}

impl PathsDaemon {
    /// Starts the daemon and waits until it answers.
    pub(crate) fn start(lab: &Lab, configs: DaemonConfig) -> Result<Self, LabError> {
        let folder = TempDir::new().map_err(LabError::at_step("directory of the daemon"))?;
        let mut daemon = Self { child: None, config: configs, temp_dir: folder };
        daemon.restart(lab)?;
        Ok(daemon)
    }

    /// Starts it again with the same files, after [`Self::kill`].
    pub(crate) fn restart(&mut self, lab: &Lab) -> Result<(), LabError> {
        let errors = File::options().create(true).append(true).open(self.log_path());
        let errors = errors.map_err(LabError::at_step("log file of the daemon"))?;
        let mut command = self.command(&["run"]);
        command.args(["--policy", self.config.policy, "--goal", self.config.goal]);
        command.args(["--energy-model", self.config.model]);
        command.args(self.config.links.iter().flat_map(|link| ["--link", link]));
        if let Some(trace) = &self.config.trace {
            if let Some(folder) = trace.parent() {
                std::fs::create_dir_all(folder).map_err(LabError::at_step(format!("{}", folder.display())))?;
            }
            command.arg("--trace").arg(trace);
        }
        command
            .stdin(Stdio::null())
            .stdout(errors.try_clone().map_err(LabError::at_step("log file of the daemon"))?)
            .stderr(errors);
        let start_error = |source| LabError::Start { program: "marline paths".into(), source };
        self.child = Some(lab.spawn(&mut command).map_err(start_error)?);
        let deadline = Instant::now() + START_TIMEOUT;
        while self.status(lab).is_err() {
            let exit_status = self.child.as_mut().and_then(|child| child.try_wait().ok().flatten());
            if let Some(status) = exit_status {
                self.child = None;
                return Err(start_error(io::Error::other(format!("{status}: {}", self.last_log_line()))));
            }
            if Instant::now() > deadline {
                return Err(start_error(io::Error::other(format!(
                    "it does not answer status requests: {}",
                    self.last_log_line()
                ))));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Its PID, in the PID namespace of this program.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// The output of `marline paths status --json`.
    pub(crate) fn status(&self, lab: &Lab) -> io::Result<Value> {
        let mut command = self.command(&["status", "--json"]);
        command.stdin(Stdio::null()).stderr(Stdio::null());
        let output = lab.run_at_client(|| command.output())?;
        match output.status.success() {
            true => serde_json::from_slice(&output.stdout).map_err(io::Error::other),
            false => Err(io::Error::other(format!("{}", output.status))),
        }
    }

    /// The last line of its log.
    pub(crate) fn last_log_line(&self) -> String {
        let text = std::fs::read_to_string(self.log_path()).unwrap_or_default();
        text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default().trim().to_owned()
    }

    /// Kills it with SIGKILL, so that it cannot restore anything.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.config.program);
        command.arg("paths").args(args).arg("--run-dir").arg(self.temp_dir.path());
        let empty_home = self.temp_dir.path().join("no-configuration");
        command.env("XDG_CONFIG_HOME", &empty_home).env("HOME", empty_home);
        command
    }

    fn log_path(&self) -> PathBuf {
        self.run_dir().join("said.log")
    }

    /// Directory of its files.
    fn run_dir(&self) -> &Path {
        self.temp_dir.path()
    }
}

impl Drop for PathsDaemon {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Starting takes much less; the margin is for a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(10);
