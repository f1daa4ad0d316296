//! Path manager of an edge: runs `marline paths` in a thread of this process.
//!
//! The path manager may fail while the edge works: another daemon manages the paths, or the kernel refuses. Then the kernel
//! manages the paths itself; the edge prints a notice, shows the reason in its status, and retries until the path manager
//! runs. A missing privilege is final. Links need not exist when the edge starts: the path manager waits for them.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use marline_net::links::list_interfaces;
use marline_paths::control::{self, ControlReply, ControlRequest};
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, watch};

use super::args::RunArgs;
use super::run_dir;
use crate::args::LinkOption;
use crate::output::print_notice;
use crate::{CliError, paths};

/// Whether this process manages the MPTCP paths; `steering` in the status.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PathsThreadState {
    /// The path manager runs, or its first attempt has neither succeeded nor failed within [`STARTUP_TIMEOUT`].
    pub(super) active: bool,
    /// Why the path manager does not run.
    pub(super) reason: Option<String>,
}

/// End of one run of the path manager.
struct AttemptEnded {
    reason: String,
    /// The thread starts the path manager again.
    will_retry: bool,
}

/// Handle of the path manager's thread.
pub(super) struct PathsThread {
    thread: Option<JoinHandle<()>>,
    /// The thread makes no further attempt once this is dropped.
    stop_tx: Option<Sender<()>>,
    ended_rx: Option<mpsc::UnboundedReceiver<AttemptEnded>>,
    run_dir: PathBuf,
    state: watch::Sender<PathsThreadState>,
}

/// Longest time that the start of the edge waits for the path manager. Our choice: a host without links at boot starts soon.
const STARTUP_TIMEOUT: Duration = Duration::from_secs(5);
/// Delay before an end of the path manager is reported. SIGTERM reaches the thread and the edge at the same time, and the end
/// of the whole process needs no notice. Our choice.
const SIGNAL_GRACE: Duration = Duration::from_millis(500);
/// First and longest pause between attempts, doubled each time. Our choice: another daemon that restarts needs a second, and a
/// permanent failure costs one attempt per minute.
const RETRY_PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];
/// Longest pause between attempts that fail because no link can be used. Our choice: a modem is used soon after it has booted.
const MAX_PAUSE_WITHOUT_LINKS: Duration = Duration::from_secs(4);
/// Interval of the checks whether the path manager runs again, and of the repeated signals at the end. Our choice: an operator who has
/// fixed a problem watches the log.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

impl PathsThread {
    /// No path manager, for `--no-paths`.
    pub(super) fn none() -> Self {
        let state = PathsThreadState { active: false, reason: Some("--no-paths".to_owned()) };
        Self {
            thread: None,
            stop_tx: None,
            ended_rx: None,
            run_dir: PathBuf::new(),
            state: watch::Sender::new(state),
        }
    }

    /// Starts the thread. Waits until the path manager runs or its first attempt has failed, at most [`STARTUP_TIMEOUT`].
    pub(super) fn start(args: &RunArgs, config: Option<&Path>) -> Result<Self, CliError> {
        // An edge starts at boot before its modems, so a link that does not exist yet is no error.
        let links = args.links.link.iter().cloned().map(|option| LinkOption { is_optional: true, ..option });
        let paths_args = paths::RunArgs::for_edge(args.goal, links.collect(), args.run_dir_args.clone());
        missing_link_notices(&args.links.link).iter().for_each(|line| print_notice(line));
        let config: Option<PathBuf> = config.map(Path::to_owned);
        let ((stop_tx, stop_rx), (ended_tx, mut ended_rx)) = (channel(), mpsc::unbounded_channel());
        let thread_main = move || run_attempts(&paths_args, config.as_deref(), &stop_rx, &ended_tx);
        let spawned = std::thread::Builder::new().name("paths".to_owned()).spawn(thread_main);
        let thread = spawned.map_err(|error| CliError::failed(format!("cannot start a thread: {error}")))?;
        let (run_dir, start_time) = (run_dir(args), Instant::now());
        let mut state = PathsThreadState { active: true, reason: None };
        while start_time.elapsed() < STARTUP_TIMEOUT && !is_own_daemon(&run_dir) {
            if let Ok(AttemptEnded { reason, will_retry }) = ended_rx.try_recv() {
                let retry_text = if will_retry { "; the edge keeps trying" } else { "" };
                print_notice(&format!("MPTCP paths are not managed by this edge: {reason}{retry_text}"));
                state = PathsThreadState { active: false, reason: Some(reason) };
                break;
            }
            std::thread::sleep(STARTUP_TIMEOUT / 100);
        }
        let state = watch::Sender::new(state);
        Ok(Self { thread: Some(thread), stop_tx: Some(stop_tx), ended_rx: Some(ended_rx), run_dir, state })
    }

    /// Current and future states of the path manager.
    pub(super) fn state(&self) -> watch::Receiver<PathsThreadState> {
        self.state.subscribe()
    }

    /// Prints a notice when the path manager stops and when it runs again.
    pub(super) async fn watch(&mut self) -> std::convert::Infallible {
        let Some(ended_rx) = &mut self.ended_rx else { return std::future::pending().await };
        loop {
            let previous = self.state.borrow().clone();
            tokio::select! {
                outcome = ended_rx.recv() => {
                    let AttemptEnded { reason, will_retry } = match outcome {
                        Some(attempt) => attempt,
                        None if previous.active => AttemptEnded { reason: "its thread has panicked".to_owned(), will_retry: false },
                        // The only attempt has failed, which was reported at the start.
                        None => return std::future::pending().await,
                    };
                    tokio::time::sleep(SIGNAL_GRACE).await;
                    // A permanent cause is reported once, however many attempts fail.
                    if previous.active || previous.reason.as_ref() != Some(&reason) {
                        let next_step = if will_retry { "the edge keeps trying" } else { "restart the edge to manage them again" };
                        print_notice(&format!(
                            "MPTCP paths are no longer managed by this edge: {reason}; the kernel alone selects links; {next_step}"
                        ));
                    }
                    self.state.send_replace(PathsThreadState { active: false, reason: Some(reason) });
                    if !will_retry {
                        return std::future::pending().await;
                    }
                }
                () = tokio::time::sleep(POLL_INTERVAL), if !previous.active => {
                    let run_dir = self.run_dir.clone();
                    if tokio::task::spawn_blocking(move || is_own_daemon(&run_dir)).await.unwrap_or_default() {
                        print_notice("MPTCP paths are managed by this edge again");
                        self.state.send_replace(PathsThreadState { active: true, reason: None });
                    }
                }
            }
        }
    }

    /// Waits until the thread has restored the host configuration. The signal that ended the edge also ends the thread;
    /// without one (`is_signalled` is false), this process sends itself SIGTERM.
    pub(super) fn join(self, is_signalled: bool) {
        let Some(thread) = self.thread else { return };
        drop(self.stop_tx);
        // An attempt that began after the signal has not received it, so the signal is repeated.
        let mut next_signal_at = Instant::now() + if is_signalled { POLL_INTERVAL } else { Duration::ZERO };
        while !thread.is_finished() {
            if Instant::now() >= next_signal_at {
                let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM);
                next_signal_at += POLL_INTERVAL;
            }
            std::thread::sleep(POLL_INTERVAL / 100);
        }
        let _ = thread.join();
    }
}

/// Runs the path manager until the edge ends, and restarts it after each temporary failure.
fn run_attempts(
    args: &paths::RunArgs,
    config: Option<&Path>,
    stop_rx: &Receiver<()>,
    ended_tx: &mpsc::UnboundedSender<AttemptEnded>,
) {
    let [shortest, longest] = RETRY_PAUSES;
    let mut pause = shortest;
    loop {
        let started_at = Instant::now();
        let mut max_pause = longest;
        let (reason, will_retry) = match paths::run_path_manager(args.clone(), config) {
            Ok(()) => ("the path manager was stopped".to_owned(), false),
            Err(exit) => {
                if exit.code == CliError::NETWORK {
                    max_pause = MAX_PAUSE_WITHOUT_LINKS;
                }
                (exit.message.unwrap_or_default(), exit.code != CliError::PRIVILEGE)
            }
        };
        // Fails if the edge is ending and has dropped the receiver.
        let _ = ended_tx.send(AttemptEnded { reason, will_retry });
        if started_at.elapsed() > longest {
            pause = shortest;
        }
        if !will_retry || stop_rx.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
            return;
        }
        pause = (2 * pause).min(max_pause);
    }
}

/// A notice for each named link that does not exist yet.
fn missing_link_notices(links: &[LinkOption]) -> Vec<String> {
    let Ok(survey) = list_interfaces() else { return Vec::new() };
    let names = links.iter().map(|option| option.link.name.as_str());
    let missing = names.filter(|name| survey.by_name(name).is_none());
    missing.map(|name| format!("link {name}: no such interface yet; it will be used when it appears")).collect()
}

/// Whether the path manager at `run_dir` is this process and not another daemon. Blocks until the daemon responds.
fn is_own_daemon(run_dir: &Path) -> bool {
    let reply = control::query(run_dir, &ControlRequest::Status { max_connections: Some(0) });
    matches!(reply, Ok(ControlReply::Status(status)) if status.pid == std::process::id())
}
