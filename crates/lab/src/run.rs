//! A command in the client namespace: its description ([`Task`]), its process, and its results ([`CommandRun`]).

use std::ffi::OsString;
use std::io::{IsTerminal, Read};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use marline_core::units::DataSize;
use marline_sys::{clock, process, signal};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::peak_rss::PeakRss;
use crate::{EmulationReport, LabError};

/// Where a command's output goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Output {
    /// To the output of this process.
    #[default]
    Inherit,
    /// It is returned in the [`CommandRun`].
    Capture,
    /// It is discarded.
    Discard,
}

/// A command to run. Its arguments and environment may contain the placeholders `{url}` and `{urls}` (what the
/// server serves, over HTTP and HTTPS) and `{ca}` (file of the certificate authority).
#[derive(Clone, Debug)]
pub struct Task {
    pub(crate) program: OsString,
    pub(crate) args: Vec<OsString>,
    pub(crate) env: Vec<(OsString, OsString)>,
    pub(crate) output: Output,
    pub(crate) limit: Option<Duration>,
}

impl Task {
    /// A command without arguments, with inherited output.
    pub fn new(program: impl Into<OsString>) -> Self {
        Self { program: program.into(), args: Vec::new(), env: Vec::new(), output: Output::Inherit, limit: None }
    }

    /// Appends arguments.
    #[must_use]
    pub fn args<S: Into<OsString>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Sets where standard output and standard error go.
    #[must_use]
    pub fn output(mut self, output: Output) -> Self {
        self.output = output;
        self
    }

    /// Sets a time limit; the command is killed when it expires.
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = Some(limit);
        self
    }

    /// Builds the command, with the placeholders replaced by their values.
    pub(crate) fn command(&self, placeholders: &[(&str, String)]) -> Command {
        let fill = |text: &OsString| match text.to_str() {
            Some(text) => placeholders
                .iter()
                .fold(text.to_string(), |t, (placeholder, value)| t.replace(placeholder, value))
                .into(),
            None => text.clone(),
        };
        let mut command = Command::new(fill(&self.program));
        command.args(self.args.iter().map(fill)).envs(self.env.iter().map(|(name, value)| (name, fill(value))));
        let stdio = || match self.output {
            Output::Inherit => Stdio::inherit(),
            Output::Capture => Stdio::piped(),
            Output::Discard => Stdio::null(),
        };
        command.stdout(stdio()).stderr(stdio());
        if self.output != Output::Inherit {
            command.stdin(Stdio::null());
        }
        command
    }
}

/// Results of a command.
#[derive(Clone, Debug)]
pub struct CommandRun {
    /// Its exit status.
    pub status: ExitStatus,
    /// Whether it was killed because its time limit expired.
    pub timed_out: bool,
    /// Time from its start to its end.
    pub wall: Duration,
    /// CPU time in user mode, including the children that it waited for.
    pub user: Duration,
    /// CPU time in the kernel, including these children.
    pub system: Duration,
    /// Peak memory (RSS) of the command or of one of these children.
    pub peak_memory: DataSize,
    /// Its standard output, if captured.
    pub stdout: Vec<u8>,
    /// Its standard error, if captured.
    pub stderr: Vec<u8>,
    /// What the links did during the run.
    pub emulation: EmulationReport,
}

/// A running command.
pub(crate) struct RunningProcess {
    child: Child,
    /// Its start on the monotonic clock, in nanoseconds.
    zero: u64,
    memory: PeakRss,
    pidfd: OwnedFd,
    stdout: Receiver<Vec<u8>>,
    stderr: Receiver<Vec<u8>>,
}

/// A [`CommandRun`] without the report of the links.
pub(crate) struct FinishedProcess {
    pub(crate) usage: process::ProcessUsage,
    pub(crate) peak_memory: DataSize,
    pub(crate) timed_out: bool,
    pub(crate) wall: Duration,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
}

impl RunningProcess {
    pub(crate) fn new(mut child: Child, start_time: u64, memory: PeakRss) -> Result<Self, LabError> {
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).unwrap_or(Pid::INIT);
        let pidfd = pidfd_open(pid, PidfdFlags::empty());
        let pidfd = pidfd.map_err(|e| LabError::Setup { step: "pidfd".into(), source: e.into() })?;
        let (stdout, stderr) = (read_pipe(child.stdout.take()), read_pipe(child.stderr.take()));
        Ok(Self { child, zero: start_time, memory, pidfd, stdout, stderr })
    }

    /// Waits for the command to end. A signal that this process receives meanwhile (see [`signal::install_handlers`]) is
    /// forwarded; a command that still runs [`KILL_DELAY`] later is killed.
    pub(crate) fn wait(mut self, limit: Option<Duration>) -> Result<FinishedProcess, LabError> {
        let mut passed_on = false;
        let mut deadline = limit.map(|limit| self.zero + limit.as_nanos() as u64);
        let mut timed_out = false;
        while !self.has_ended() {
            self.memory.sample(self.child.id());
            if let (Some(number), false) = (signal::last_caught(), passed_on) {
                passed_on = true;
                self.forward_signal(number);
                deadline = Some(clock::now() + KILL_DELAY.as_nanos() as u64);
            }
            if deadline.is_some_and(|at| clock::now() >= at) {
                timed_out = !passed_on;
                let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
                deadline = None;
            }
        }
        let wall = Duration::from_nanos(clock::now().saturating_sub(self.zero));
        let usage = process::wait_with_usage(self.child.id()).map_err(LabError::at_step("wait"))?;
        // A child of the command may keep the pipe open. Take what arrives until there is a pause of half a second.
        let text = |from: &Receiver<Vec<u8>>| {
            let mut all = Vec::new();
            while let Ok(part) = from.recv_timeout(Duration::from_millis(500)) {
                all.extend(part);
            }
            all
        };
        let peak_memory = self.memory.peak(usage.peak_memory);
        Ok(FinishedProcess {
            usage,
            peak_memory,
            timed_out,
            wall,
            stdout: text(&self.stdout),
            stderr: text(&self.stderr),
        })
    }

    /// Waits for the end of the process, at most 50 ms, so that the caller can check for signals and deadlines.
    fn has_ended(&self) -> bool {
        let poll_interval = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        matches!(poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], Some(&poll_interval)), Ok(1..))
    }

    fn forward_signal(&self, number: i32) {
        // Ctrl-C goes to all programs of a terminal, so the command has received it already. A second SIGINT could
        // mean something else to it.
        let interrupt = number == Signal::INT.as_raw();
        if interrupt && std::io::stderr().is_terminal() {
            return;
        }
        let signal = if interrupt { Signal::INT } else { Signal::TERM };
        let _ = pidfd_send_signal(&self.pidfd, signal);
    }
}

/// Time that a command has to end after a forwarded signal.
const KILL_DELAY: Duration = Duration::from_secs(5);

/// Reads a pipe to its end on a thread of its own, so that the command never blocks on a full pipe.
fn read_pipe(pipe: Option<impl Read + Send + 'static>) -> Receiver<Vec<u8>> {
    let (parts, all) = mpsc::channel();
    if let Some(mut pipe) = pipe {
        std::thread::spawn(move || {
            let mut buffer = vec![0; 64 * 1024];
            while let Ok(length @ 1..) = pipe.read(&mut buffer) {
                if parts.send(buffer.get(..length).unwrap_or_default().to_vec()).is_err() {
                    return;
                }
            }
        });
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_replaced() {
        let task = Task::new("curl").args(["-o", "x", "{url}?a={ca}"]).env("U", "{urls}");
        let placeholders =
            [("{url}", "http://h/f".to_string()), ("{urls}", "https://h/f".into()), ("{ca}", "/c".into())];
        let command = task.command(&placeholders);
        let args: Vec<_> = command.get_args().collect();
        assert_eq!(args, ["-o", "x", "http://h/f?a=/c"]);
        assert!(command.get_envs().any(|(name, value)| name == "U" && value == Some("https://h/f".as_ref())));
    }

    #[test]
    fn a_command_is_waited_for_and_its_output_kept() {
        let task = Task::new("sh").args(["-c", "echo out; echo err >&2; exit 4"]).output(Output::Capture);
        let child = task.command(&[]).spawn().unwrap();
        let ended = RunningProcess::new(child, clock::now(), PeakRss::start()).unwrap().wait(None).unwrap();
        assert_eq!(ended.usage.status.code(), Some(4));
        assert_eq!((ended.stdout.as_slice(), ended.stderr.as_slice()), (&b"out\n"[..], &b"err\n"[..]));
        assert!(!ended.timed_out);
    }

    #[test]
    fn a_command_that_takes_too_long_is_killed() {
        let child = Task::new("sleep").args(["1000"]).command(&[]).spawn().unwrap();
        let ended = RunningProcess::new(child, clock::now(), PeakRss::start())
            .unwrap()
            .wait(Some(Duration::from_millis(1)))
            .unwrap();
        assert!(ended.timed_out && ended.usage.status.code().is_none());
    }
}
