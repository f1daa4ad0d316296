//! Runs `marline get` as a child process in a temporary directory: starts, watches and stops it, and checks its results.
//!
//! [`Program`] starts downloads; [`Ended`] holds the exit code, the output and the JSON report. [`marline`] starts the program in a
//! directory of the test.
//!
//! 1. Every download writes a decision log, and every log is replayed at the end and must give equal results, unless a test
//!    opts out with [`Program::without_log`].
//! 2. [`Program::refused`] checks that a failed download reports one line and leaves no file at the target.
//! 3. The configuration of this machine has no influence: the home directory and the environment are empty.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// Far longer than any download of these tests: only a hang reaches it.
const HANG_TIMEOUT: Duration = Duration::from_secs(30);

/// The program with these arguments, in this home directory and without further environment variables.
pub(crate) fn marline(home: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_marline"));
    command.args(args).current_dir(home).stdin(Stdio::null());
    clear_environment(&mut command, home);
    command
}

fn clear_environment(command: &mut Command, home: &Path) {
    command.env_clear().env("HOME", home).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    // The user's journal key lives outside the home directory, because some tests count its files.
    command.env("XDG_STATE_HOME", concat!(env!("CARGO_TARGET_TMPDIR"), "/state"));
}

/// Expects success.
pub(crate) fn assert_success(output: &Output) {
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A temporary directory, and how the program is started in it.
pub(crate) struct Program {
    dir: TempDir,
    /// Command prefix, for example to enter a namespace.
    prefix: Vec<String>,
    replays: bool,
}

impl Program {
    pub(crate) fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), prefix: Vec::new(), replays: true }
    }

    /// Adds a command prefix.
    pub(crate) fn with_prefix(mut self, args: impl IntoIterator<Item = String>) -> Self {
        self.prefix.extend(args);
        self
    }

    /// Disables the decision log and its replay, for tests in which its file cannot be written.
    pub(crate) fn without_log(mut self) -> Self {
        self.replays = false;
        self
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir().join(name)
    }

    /// The bytes of a file in the directory; none if it does not exist.
    pub(crate) fn file(&self, name: &str) -> Option<Vec<u8>> {
        std::fs::read(self.path(name)).ok()
    }

    /// The sorted names of all files except the decision log.
    pub(crate) fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.dir()).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.retain(|name| name != LOG);
        names.sort();
        names
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut all: Vec<String> = self.prefix.clone();
        all.extend([env!("CARGO_BIN_EXE_marline"), "get"].map(str::to_owned));
        all.extend(args.iter().map(|arg| (*arg).to_owned()));
        if self.replays {
            all.extend(["--trace".to_owned(), self.path(LOG).display().to_string()]);
        }
        let mut command = Command::new(&all[0]);
        clear_environment(&mut command, self.dir());
        command
            .args(&all[1..])
            .current_dir(self.dir())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Downloads to `out` with a JSON report.
    pub(crate) fn get(&self, url: &str) -> Ended {
        self.run(&[url, "-o", "out", "--json"])
    }

    pub(crate) fn run(&self, args: &[&str]) -> Ended {
        self.start(args).wait()
    }

    /// Runs it with these environment variables.
    pub(crate) fn run_with(&self, variables: &[(&str, &str)], args: &[&str]) -> Ended {
        let mut command = self.command(args);
        command.envs(variables.iter().copied());
        self.spawn(command).wait()
    }

    pub(crate) fn start(&self, args: &[&str]) -> Running {
        self.spawn(self.command(args))
    }

    fn spawn(&self, mut command: Command) -> Running {
        let _ = std::fs::remove_file(self.path(LOG));
        Running::new(command.spawn().unwrap(), self.replays.then(|| self.path(LOG)))
    }

    /// Expects that the program fails with `code` and one line of explanation, and that `out` does not exist. Returns the line.
    pub(crate) fn refused(&self, args: &[&str], code: i32) -> String {
        let mut all = args.to_vec();
        all.extend(["-o", "out", "-q"]);
        let ended = self.run(&all);
        assert_eq!(ended.code, Some(code), "{args:?}: {}", ended.err);
        assert!(ended.out.is_empty(), "{args:?}: results after an error");
        assert_eq!(ended.err.matches('\n').count(), 1, "{args:?}: not one line: {}", ended.err);
        assert!(self.file("out").is_none(), "{args:?}: a file despite the error");
        ended.err.strip_prefix("marline: ").unwrap().trim_end().to_owned()
    }
}

/// A running download.
pub(crate) struct Running {
    child: Child,
    out: Option<JoinHandle<Vec<u8>>>,
    err: JoinHandle<Vec<u8>>,
    log: Option<PathBuf>,
}

impl Running {
    pub(crate) fn new(mut child: Child, log: Option<PathBuf>) -> Self {
        let drain = |mut pipe: Box<dyn Read + Send>| {
            thread::spawn(move || {
                let mut bytes = Vec::new();
                let _ = pipe.read_to_end(&mut bytes);
                bytes
            })
        };
        let out = child.stdout.take().map(|pipe| drain(Box::new(pipe)));
        let err = drain(Box::new(child.stderr.take().unwrap()));
        Self { child, out, err, log }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Kills it with SIGKILL.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn wait(mut self) -> Ended {
        let end = Instant::now() + HANG_TIMEOUT;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if Instant::now() > end {
                self.child.kill().unwrap();
                let stderr = self.err.join().unwrap();
                let log = self.log.and_then(|log| std::fs::read_to_string(log).ok()).unwrap_or_default();
                let lines: Vec<&str> = log.lines().take(40).collect();
                panic!("the program hangs: {}\n{lines:#?}", String::from_utf8_lossy(&stderr));
            }
            thread::sleep(Duration::from_millis(2));
        };
        let out = self.out.map(|out| out.join().unwrap()).unwrap_or_default();
        let err = String::from_utf8(self.err.join().unwrap()).unwrap();
        if let Some(log) = self.log.filter(|log| log.exists()) {
            let replay = Command::new(env!("CARGO_BIN_EXE_marline")).arg("replay").arg(&log).output().unwrap();
            let stderr = String::from_utf8_lossy(&replay.stdout).into_owned();
            let wrong = String::from_utf8_lossy(&replay.stderr).into_owned();
            assert!(replay.status.success() && stderr.starts_with("equal: "), "replay: {stderr}{wrong}");
        }
        Ended { code: status.code(), out, err }
    }
}

/// A finished download.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) out: Vec<u8>,
    pub(crate) err: String,
}

impl Ended {
    /// Expects success; returns the JSON report.
    pub(crate) fn report(&self) -> serde_json::Value {
        assert_eq!(self.code, Some(0), "{}", self.err);
        serde_json::from_slice(&self.out).unwrap_or_else(|why| panic!("{why}: {self:?}"))
    }

    /// The lines of its standard error without those of the progress display.
    pub(crate) fn notices(&self) -> Vec<&str> {
        let lines = self.err.lines().map(|line| line.strip_prefix("marline: ").unwrap_or(line));
        lines.filter(|line| !line.contains("bit/s")).collect()
    }

    /// Expects that exactly one notice contains this text.
    pub(crate) fn assert_notice(&self, text: &str) {
        let count = self.notices().iter().filter(|line| line.contains(text)).count();
        assert_eq!(count, 1, "`{text}` is not reported exactly once: {}", self.err);
    }

    /// Expects no notices.
    pub(crate) fn assert_no_notices(&self) {
        assert!(self.notices().is_empty(), "{}", self.err);
    }
}

/// The row of one link in a report.
pub(crate) fn link<'a>(report: &'a serde_json::Value, name: &str) -> &'a serde_json::Value {
    report["links"].as_array().unwrap().iter().find(|link| link["name"] == name).unwrap()
}

/// The hexadecimal digest of bytes, computed by a system program such as `sha256sum`.
pub(crate) fn digest(program: &str, bytes: &[u8]) -> String {
    let mut child = Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(bytes).unwrap();
    let output = child.wait_with_output().unwrap();
    String::from_utf8(output.stdout).unwrap().split(' ').next().unwrap().to_owned()
}

const LOG: &str = "decisions.log";
