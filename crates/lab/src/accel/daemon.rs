//! `marline accel` as a process at the client's end, or plain TCP.
//!
//! 1. It is `marline` as a child process without a configuration, and its files are in a folder of its own.
//! 2. It is ready when it answers `marline accel status`.

use std::fs::File;
use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::Bpf;
use crate::accel::topology::{CELL, PRIMARY};
use crate::server::TempDir;
use crate::{Lab, LabError};

/// One side of a comparison: plain TCP, or an accelerator with its arguments.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Contender {
    /// Plain TCP: no accelerator runs.
    Plain,
    /// `marline accel` under this name, with these arguments.
    Accel(&'static str, Vec<String>),
}

/// Mechanisms that are on by default.
const DEFAULT_MECHANISMS: &str = "ack-offload,eifel-undo,withheld-ack,outage-revert";
/// Acknowledges data before it has arrived.
const EARLY_ACK: &str = "early-ack";

impl Contender {
    /// The mechanisms that are on by default.
    pub(crate) fn default_mechanisms() -> Self {
        Self::Accel("ours", Vec::new())
    }

    /// The default mechanisms and early ACK: what a flow of plain HTTP can use.
    pub(crate) fn with_early_ack() -> Self {
        Self::Accel("ours", vec!["--enable".to_owned(), EARLY_ACK.to_owned()])
    }

    /// Only these mechanisms, under this name.
    pub(crate) fn only(name: &'static str, mechanisms: &str) -> Self {
        let is_on = |mechanism: &&str| !mechanisms.split(',').any(|wanted| wanted == *mechanism);
        let off: Vec<&str> = DEFAULT_MECHANISMS.split(',').filter(is_on).collect();
        let mut args = Vec::new();
        for (option, list) in [("--disable", off.join(",")), ("--enable", mechanisms.to_owned())] {
            if !list.is_empty() {
                args.extend([option.to_owned(), list]);
            }
        }
        Self::Accel(name, args)
    }

    /// Only for these flows.
    pub(crate) fn with_flows(mut self, filter: &str) -> Self {
        if let Self::Accel(_, args) = &mut self {
            args.extend(["--flows".to_owned(), filter.to_owned()]);
        }
        self
    }

    /// With the upstream rate of the second link.
    pub(crate) fn with_uplink(mut self, kbps: u32) -> Self {
        if let Self::Accel(_, args) = &mut self {
            args.extend(["--secondary-up".to_owned(), format!("{kbps}kbit/s")]);
        }
        self
    }

    /// The mechanisms that are enabled explicitly.
    pub(crate) fn enabled(&self) -> Vec<&str> {
        let Self::Accel(_, args) = self else { return Vec::new() };
        let list = args.iter().skip_while(|arg| *arg != "--enable").nth(1);
        list.map(|list| list.split(',').collect()).unwrap_or_default()
    }

    /// Its name in tables.
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
    /// Starts it, and waits until it answers; none for plain TCP.
    pub(crate) fn start(
        lab: &Lab,
        contender: &Contender,
        program: &Path,
        has_cell: bool,
    ) -> Result<Option<Self>, LabError> {
        let Contender::Accel(_, args) = contender else { return Ok(None) };
        let folder = TempDir::new().map_err(LabError::at_step("a place for the accelerator"))?;
        let failed = |source| LabError::Start { program: "marline accel".into(), source };
        let errors = File::create(folder.path().join(OUTPUT_FILE)).map_err(failed)?;
        let mut command = command(program, folder.path(), &["--primary", PRIMARY]);
        if has_cell {
            command.args(["--secondary", CELL]);
        }
        command.args(args);
        command.stdin(Stdio::null()).stdout(errors.try_clone().map_err(failed)?).stderr(errors);
        let child = lab.spawn(&mut command).map_err(failed)?;
        let mut daemon = Self { child, folder, program: program.to_owned() };
        let until = Instant::now() + START_TIMEOUT;
        while daemon.status(lab).is_err() {
            if let Some(status) = daemon.child.try_wait().map_err(failed)? {
                return Err(failed(io::Error::other(format!("{status}: {}", daemon.output()))));
            }
            if Instant::now() > until {
                return Err(failed(io::Error::other(format!("it does not answer: {}", daemon.output()))));
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

    /// Why it has ended, if it has.
    pub(crate) fn has_ended(&mut self) -> Option<String> {
        let status = self.child.try_wait().ok().flatten()?;
        Some(format!("{status}: {}", self.output()))
    }

    /// The last line of its output.
    fn output(&self) -> String {
        let text = std::fs::read_to_string(self.folder.path().join(OUTPUT_FILE)).unwrap_or_default();
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

/// `marline accel status` prints a list of all accelerators; in a lab there is one.
fn first(text: &[u8]) -> io::Result<Value> {
    let all: Vec<Value> = serde_json::from_slice(text).map_err(io::Error::other)?;
    all.into_iter().next().ok_or_else(|| io::Error::other("no accelerator answers"))
}

fn command(program: &Path, folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.arg("accel").args(args).arg("--run-dir").arg(folder);
    let nowhere = folder.join("no-configuration");
    command.env("XDG_CONFIG_HOME", &nowhere).env("XDG_STATE_HOME", &nowhere).env("HOME", nowhere);
    command
}

const OUTPUT_FILE: &str = "said.log";
/// Our choice: its start takes far less.
const START_TIMEOUT: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_is_the_first_of_a_list() {
        assert_eq!(first(b"[{\"pid\": 4}]").unwrap()["pid"], 4);
        assert!(first(b"[]").is_err() && first(b"{}").is_err());
    }

    #[test]
    fn mechanisms_that_are_not_wanted_are_disabled() {
        let args = |contender: Contender| match contender {
            Contender::Accel(_, args) => args.join(" "),
            Contender::Plain => String::new(),
        };
        assert_eq!(args(Contender::default_mechanisms()), "");
        assert_eq!(
            args(Contender::only("paper", "zero-window-freeze")),
            format!("--disable {DEFAULT_MECHANISMS} --enable zero-window-freeze")
        );
        assert_eq!(
            args(Contender::only("undo", "eifel-undo")),
            "--disable ack-offload,withheld-ack,outage-revert --enable eifel-undo"
        );
        assert_eq!(args(Contender::only("nothing", "")), format!("--disable {DEFAULT_MECHANISMS}"));
        assert_eq!(
            Contender::only("paper", "zero-window-freeze,fast-fetch").enabled(),
            ["zero-window-freeze", "fast-fetch"]
        );
        assert!(Contender::default_mechanisms().enabled().is_empty() && Contender::Plain.enabled().is_empty());
        let one = Contender::default_mechanisms().with_flows("tcp dst port 443");
        assert_eq!((args(one.clone()).as_str(), one.name()), ("--flows tcp dst port 443", "ours"));
        assert_eq!(args(Contender::default_mechanisms().with_uplink(400)), "--secondary-up 400kbit/s");
    }
}
