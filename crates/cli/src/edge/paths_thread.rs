//! The links of an edge, steered as `marline paths` does, by a thread of this process.
//!
//! Steering may fail while the edge carries: another daemon steers, or the kernel refuses. The edge goes on with what the kernel does by
//! itself, says so in one line, shows it in its status, and tries again until it succeeds. A missing privilege is final. Links need not
//! be there when the edge starts: steering waits for them.

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
use crate::output::say;
use crate::{CliError, Command, paths};

/// Whether the links are steered by this process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PathsThreadState {
    /// Its thread steers.
    pub(super) active: bool,
    /// Why not.
    pub(super) reason: Option<String>,
}

/// An attempt that has ended.
struct AttemptEnded {
    reason: String,
    /// There will be another one.
    will_retry: bool,
}

/// The thread.
pub(super) struct PathsThread {
    thread: Option<JoinHandle<()>>,
    /// The thread begins no further attempt once this is dropped.
    stop_tx: Option<Sender<()>>,
    ended_rx: Option<mpsc::UnboundedReceiver<AttemptEnded>>,
    run_dir: PathBuf,
    state: watch::Sender<PathsThreadState>,
}

/// chosen: the links of a box that has just started are there or will be later.
const STARTUP_TIMEOUT: Duration = Duration::from_secs(5);
/// chosen: SIGTERM reaches the thread and the edge at the same time; an end that belongs to it is not reported.
const SIGNAL_GRACE: Duration = Duration::from_millis(500);
/// chosen: a daemon that is restarted elsewhere needs a second; a cause that lasts costs an attempt a minute.
const RETRY_PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];
/// The longest pause while a link that the configuration file names is absent. chosen: a modem that has booted is used this soon.
const MAX_PAUSE_WITHOUT_LINKS: Duration = Duration::from_secs(4);
/// chosen: a person who has repaired something watches the log.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

impl PathsThread {
    /// No thread: `--no-paths`.
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

    /// Starts the thread, and waits until the links are steered, or the first attempt has ended.
    pub(super) fn start(args: &RunArgs, config: Option<&Path>) -> Result<Self, CliError> {
        let mut arguments = vec!["marline".to_owned(), "paths".to_owned(), "run".to_owned(), "--quiet".to_owned()];
        arguments.extend(["--short-queues".to_owned(), "--goal".to_owned(), args.goal.name().to_owned()]);
        // One word each: a name may begin with a hyphen.
        arguments.extend(args.link.iter().map(|link| format!("--link={}", as_optional_link(link))));
        arguments.extend(args.run_dir.iter().map(|dir| format!("--run-dir={}", dir.display())));
        parse_arguments(&arguments)?;
        missing_link_notices(&args.link).iter().for_each(|line| say(line));
        let config: Option<PathBuf> = config.map(Path::to_owned);
        let ((running, stop_rx), (ended_tx, mut ended_rx)) = (channel(), mpsc::unbounded_channel());
        let thread_main = move || run_attempts(&arguments, config.as_deref(), &stop_rx, &ended_tx);
        let spawned = std::thread::Builder::new().name("paths".to_owned()).spawn(thread_main);
        let thread = spawned.map_err(|error| CliError::failed(format!("a thread cannot be started: {error}")))?;
        let (run_dir, start_time) = (run_dir(args), Instant::now());
        let mut state = PathsThreadState { active: true, reason: None };
        while start_time.elapsed() < STARTUP_TIMEOUT && !is_own_daemon(&run_dir) {
            if let Ok(AttemptEnded { reason, will_retry }) = ended_rx.try_recv() {
                let retry_text = if will_retry { "; it is tried again" } else { "" };
                say(&format!("the links are not steered from here: {reason}{retry_text}"));
                state = PathsThreadState { active: false, reason: Some(reason) };
                break;
            }
            std::thread::sleep(STARTUP_TIMEOUT / 100);
        }
        let state = watch::Sender::new(state);
        Ok(Self { thread: Some(thread), stop_tx: Some(running), ended_rx: Some(ended_rx), run_dir, state })
    }

    /// Whether it steers, at any time.
    pub(super) fn state(&self) -> watch::Receiver<PathsThreadState> {
        self.state.subscribe()
    }

    /// Reports when the links are not steered any more, and when they are again.
    pub(super) async fn watch(&mut self) -> std::convert::Infallible {
        let Some(ended_rx) = &mut self.ended_rx else { return std::future::pending().await };
        loop {
            let previous = self.state.borrow().clone();
            tokio::select! {
                outcome = ended_rx.recv() => {
                    let AttemptEnded { reason, will_retry } = match outcome {
                        Some(attempt) => attempt,
                        None if previous.active => AttemptEnded { reason: "its thread has panicked".to_owned(), will_retry: false },
                        // The first attempt was the last one, and was reported at the start.
                        None => return std::future::pending().await,
                    };
                    tokio::time::sleep(SIGNAL_GRACE).await;
                    // A cause that lasts is reported once, whatever number of attempts it ends.
                    if previous.active || previous.reason.as_ref() != Some(&reason) {
                        let next_step = if will_retry { "it is tried again" } else { "restart the edge to steer them again" };
                        say(&format!(
                            "the links are not steered: {reason}; the kernel alone decides which ones carry; {next_step}"
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
                        say("the links are steered from here again");
                        self.state.send_replace(PathsThreadState { active: true, reason: None });
                    }
                }
            }
        }
    }

    /// Waits until the thread has put back what it changed. It ends by the signal that ended the edge; `is_signalled` says that there
    /// was one.
    pub(super) fn join(self, is_signalled: bool) {
        let Some(thread) = self.thread else { return };
        drop(self.stop_tx);
        // An attempt that began after the signal has not seen it.
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

/// Steers until the edge ends, and again after each failure that may pass.
fn run_attempts(
    arguments: &[String],
    config: Option<&Path>,
    stop_rx: &Receiver<()>,
    ended_tx: &mpsc::UnboundedSender<AttemptEnded>,
) {
    let [shortest, longest] = RETRY_PAUSES;
    let mut pause = shortest;
    loop {
        let started_at = Instant::now();
        let mut max_pause = longest;
        let (reason, will_retry) =
            match parse_arguments(arguments).and_then(|steering| paths::run(steering, config)) {
                Ok(()) => ("steering was stopped".to_owned(), false),
                Err(exit) => {
                    if exit.code == CliError::NETWORK {
                        max_pause = MAX_PAUSE_WITHOUT_LINKS;
                    }
                    (exit.message.unwrap_or_default(), exit.code != CliError::PRIVILEGE)
                }
            };
        // An edge that ends does not listen any more.
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

/// The terms of a link, which need not be there yet: an edge starts at boot, before its modems.
fn as_optional_link(link: &str) -> String {
    let is_optional = link.split(',').any(|part| part == "optional");
    if is_optional { link.to_owned() } else { format!("{link},optional") }
}

/// A line for each link that is named and not there.
fn missing_link_notices(link_args: &[String]) -> Vec<String> {
    let Ok(survey) = list_interfaces() else { return Vec::new() };
    let names = link_args.iter().filter_map(|link| link.split(',').next());
    let missing = names.filter(|name| survey.by_name(name).is_none());
    missing.map(|name| format!("link {name}: there is no such interface yet; it is used when it comes")).collect()
}

fn parse_arguments(arguments: &[String]) -> Result<paths::PathsArgs, CliError> {
    let cli = crate::args::parse(arguments.iter().map(Into::into))?;
    match cli.command {
        Command::Paths(steering) => Ok(*steering),
        _ => Err(CliError::failed("the links cannot be steered")),
    }
}

/// Whether this process answers there, and not another daemon that steers. Blocks for as long as that one takes to answer.
fn is_own_daemon(run_dir: &Path) -> bool {
    let reply = control::query(run_dir, &ControlRequest::Status { max_connections: Some(0) });
    matches!(reply, Ok(ControlReply::Status(status)) if status.pid == std::process::id())
}
