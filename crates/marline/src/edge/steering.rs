//! The links of an edge, steered as `marline paths` does, by a thread of this process.
//!
//! The thread may end before the edge does: no privilege, another daemon that steers, a kernel that refuses. The edge goes on with what
//! the kernel does by itself, says so in one line, and shows it in its status.

use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use marline_net::paths::control::{self, Question};
use serde::{Deserialize, Serialize};
use tokio::sync::{oneshot, watch};

use super::args::RunArgs;
use super::run_dir;
use crate::output::say;
use crate::{Exit, Verb, paths};

/// Whether the links are steered by this process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SteeringState {
    /// Its thread runs.
    pub(super) active: bool,
    /// Why not.
    pub(super) why: Option<String>,
}

/// The thread.
pub(super) struct Steering {
    thread: Option<JoinHandle<()>>,
    ended: Option<oneshot::Receiver<String>>,
    state: watch::Sender<SteeringState>,
}

/// chosen: the links of a box that has just started are there or will be later.
const READY: Duration = Duration::from_secs(5);
/// chosen: SIGTERM reaches the thread and the edge at the same time; an end that belongs to it is not reported.
const SAME_SIGNAL: Duration = Duration::from_millis(500);

impl Steering {
    /// No thread: `--no-paths`.
    pub(super) fn none() -> Self {
        let state = SteeringState { active: false, why: Some("--no-paths".to_owned()) };
        Self { thread: None, ended: None, state: watch::Sender::new(state) }
    }

    /// Starts the thread, and waits until the links are steered, or are not going to be.
    pub(super) fn start(args: &RunArgs, config: Option<&Path>) -> Result<Self, Exit> {
        let mut words = vec!["marline".to_owned(), "paths".to_owned(), "run".to_owned(), "--quiet".to_owned()];
        words.extend(["--short-queues".to_owned(), "--profile".to_owned(), profile(args)]);
        words.extend(args.link.iter().flat_map(|link| ["--link".to_owned(), link.clone()]));
        words.extend(args.run_dir.iter().flat_map(|dir| ["--run-dir".to_owned(), dir.display().to_string()]));
        let cli = crate::args::parse(words.into_iter().map(Into::into))?;
        let Verb::Paths(steering) = cli.verb else { return Err(Exit::failed("the links cannot be steered")) };
        let config: Option<PathBuf> = config.map(Path::to_owned);
        let (tell, mut ended) = oneshot::channel();
        let run = move || {
            let why = match paths::run(*steering, config.as_deref()) {
                Ok(()) => "steering was stopped".to_owned(),
                Err(exit) => exit.line.unwrap_or_default(),
            };
            // An edge that ends does not listen any more.
            let _ = tell.send(why);
        };
        let started = std::thread::Builder::new().name("paths".to_owned()).spawn(run);
        let thread = started.map_err(|error| Exit::failed(format!("a thread cannot be started: {error}")))?;
        let run_dir = run_dir(args);
        let (began, question) = (Instant::now(), Question::Status { at_most: Some(0) });
        while !thread.is_finished() && began.elapsed() < READY && control::ask(&run_dir, &question).is_err() {
            std::thread::sleep(READY / 100);
        }
        let mut state = SteeringState { active: true, why: None };
        let mut ended_later = None;
        match ended.try_recv() {
            Ok(why) => {
                say(&format!("the links are not steered from here: {why}"));
                state = SteeringState { active: false, why: Some(why) };
            }
            Err(_) => ended_later = Some(ended),
        }
        Ok(Self { thread: Some(thread), ended: ended_later, state: watch::Sender::new(state) })
    }

    /// Whether it runs, at any time.
    pub(super) fn state(&self) -> watch::Receiver<SteeringState> {
        self.state.subscribe()
    }

    /// Reports the end of the thread, if it ends before this is dropped.
    pub(super) async fn watch(&mut self) -> std::convert::Infallible {
        if let Some(ended) = self.ended.take() {
            let why = ended.await.unwrap_or_else(|_| "its thread has panicked".to_owned());
            tokio::time::sleep(SAME_SIGNAL).await;
            say(&format!(
                "the links are no longer steered: {why}; the kernel alone decides which ones carry; restart the edge to steer \
                 them again"
            ));
            self.state.send_replace(SteeringState { active: false, why: Some(why) });
        }
        std::future::pending().await
    }

    /// Waits until the thread has put back what it changed. It ends by the signal that ended the edge; `is_signalled` says that there
    /// was one.
    pub(super) fn join(self, is_signalled: bool) {
        let Some(thread) = self.thread else { return };
        if !is_signalled && !thread.is_finished() {
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM);
        }
        let _ = thread.join();
    }
}

/// What the links are used for.
fn profile(args: &RunArgs) -> String {
    let minimised = args.minimise.map(|what| what.profile().to_owned());
    minimised.or_else(|| args.profile.clone()).unwrap_or_else(|| "throughput".to_owned())
}
