//! The links of an edge, steered as `marline paths` does, by a thread of this process.
//!
//! Steering may fail while the edge carries: another daemon steers, or the kernel refuses. The edge goes on with what the kernel does by
//! itself, says so in one line, shows it in its status, and tries again until it succeeds. A missing privilege is final. Links need not
//! be there when the edge starts: steering waits for them.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use marline_net::links::survey;
use marline_paths::control::{self, Answer, Question};
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, watch};

use super::args::RunArgs;
use super::run_dir;
use crate::output::say;
use crate::{Exit, Verb, paths};

/// Whether the links are steered by this process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SteeringState {
    /// Its thread steers.
    pub(super) active: bool,
    /// Why not.
    pub(super) why: Option<String>,
}

/// An attempt that has ended.
struct Ended {
    why: String,
    /// There will be another one.
    again: bool,
}

/// The thread.
pub(super) struct Steering {
    thread: Option<JoinHandle<()>>,
    /// The thread begins no further attempt once this is dropped.
    running: Option<Sender<()>>,
    ended: Option<mpsc::UnboundedReceiver<Ended>>,
    run_dir: PathBuf,
    state: watch::Sender<SteeringState>,
}

/// chosen: the links of a box that has just started are there or will be later.
const READY: Duration = Duration::from_secs(5);
/// chosen: SIGTERM reaches the thread and the edge at the same time; an end that belongs to it is not reported.
const SAME_SIGNAL: Duration = Duration::from_millis(500);
/// chosen: a daemon that is restarted elsewhere needs a second; a cause that lasts costs an attempt a minute.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];
/// The longest pause while a link that the configuration file names is absent. chosen: a modem that has booted is used this soon.
const LONGEST_WITHOUT_LINKS: Duration = Duration::from_secs(4);
/// chosen: a person who has repaired something watches the log.
const LOOK: Duration = Duration::from_secs(1);

impl Steering {
    /// No thread: `--no-paths`.
    pub(super) fn none() -> Self {
        let state = SteeringState { active: false, why: Some("--no-paths".to_owned()) };
        Self { thread: None, running: None, ended: None, run_dir: PathBuf::new(), state: watch::Sender::new(state) }
    }

    /// Starts the thread, and waits until the links are steered, or the first attempt has ended.
    pub(super) fn start(args: &RunArgs, config: Option<&Path>) -> Result<Self, Exit> {
        let mut words = vec!["marline".to_owned(), "paths".to_owned(), "run".to_owned(), "--quiet".to_owned()];
        words.extend(["--short-queues".to_owned(), "--profile".to_owned(), profile(args)]);
        // One word each: a name may begin with a hyphen.
        words.extend(args.link.iter().map(|link| format!("--link={}", awaited(link))));
        words.extend(args.run_dir.iter().map(|dir| format!("--run-dir={}", dir.display())));
        parsed(&words)?;
        absent(&args.link).iter().for_each(|line| say(line));
        let config: Option<PathBuf> = config.map(Path::to_owned);
        let ((running, stop), (tell, mut ended)) = (channel(), mpsc::unbounded_channel());
        let run = move || attempts(&words, config.as_deref(), &stop, &tell);
        let started = std::thread::Builder::new().name("paths".to_owned()).spawn(run);
        let thread = started.map_err(|error| Exit::failed(format!("a thread cannot be started: {error}")))?;
        let (run_dir, began) = (run_dir(args), Instant::now());
        let mut state = SteeringState { active: true, why: None };
        while began.elapsed() < READY && !is_own(&run_dir) {
            if let Ok(Ended { why, again }) = ended.try_recv() {
                let again = if again { "; it is tried again" } else { "" };
                say(&format!("the links are not steered from here: {why}{again}"));
                state = SteeringState { active: false, why: Some(why) };
                break;
            }
            std::thread::sleep(READY / 100);
        }
        let state = watch::Sender::new(state);
        Ok(Self { thread: Some(thread), running: Some(running), ended: Some(ended), run_dir, state })
    }

    /// Whether it steers, at any time.
    pub(super) fn state(&self) -> watch::Receiver<SteeringState> {
        self.state.subscribe()
    }

    /// Reports when the links are not steered any more, and when they are again.
    pub(super) async fn watch(&mut self) -> std::convert::Infallible {
        let Some(ended) = &mut self.ended else { return std::future::pending().await };
        loop {
            let before = self.state.borrow().clone();
            tokio::select! {
                ended = ended.recv() => {
                    let Ended { why, again } = match ended {
                        Some(ended) => ended,
                        None if before.active => Ended { why: "its thread has panicked".to_owned(), again: false },
                        // The first attempt was the last one, and was reported at the start.
                        None => return std::future::pending().await,
                    };
                    tokio::time::sleep(SAME_SIGNAL).await;
                    // A cause that lasts is reported once, whatever number of attempts it ends.
                    if before.active || before.why.as_ref() != Some(&why) {
                        let then = if again { "it is tried again" } else { "restart the edge to steer them again" };
                        say(&format!(
                            "the links are not steered: {why}; the kernel alone decides which ones carry; {then}"
                        ));
                    }
                    self.state.send_replace(SteeringState { active: false, why: Some(why) });
                    if !again {
                        return std::future::pending().await;
                    }
                }
                () = tokio::time::sleep(LOOK), if !before.active => {
                    let run_dir = self.run_dir.clone();
                    if tokio::task::spawn_blocking(move || is_own(&run_dir)).await.unwrap_or_default() {
                        say("the links are steered from here again");
                        self.state.send_replace(SteeringState { active: true, why: None });
                    }
                }
            }
        }
    }

    /// Waits until the thread has put back what it changed. It ends by the signal that ended the edge; `is_signalled` says that there
    /// was one.
    pub(super) fn join(self, is_signalled: bool) {
        let Some(thread) = self.thread else { return };
        drop(self.running);
        // An attempt that began after the signal has not seen it.
        let mut next = Instant::now() + if is_signalled { LOOK } else { Duration::ZERO };
        while !thread.is_finished() {
            if Instant::now() >= next {
                let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM);
                next += LOOK;
            }
            std::thread::sleep(LOOK / 100);
        }
        let _ = thread.join();
    }
}

/// Steers until the edge ends, and again after each failure that may pass.
fn attempts(words: &[String], config: Option<&Path>, stop: &Receiver<()>, tell: &mpsc::UnboundedSender<Ended>) {
    let [shortest, longest] = PAUSES;
    let mut pause = shortest;
    loop {
        let began = Instant::now();
        let mut most = longest;
        let (why, again) = match parsed(words).and_then(|steering| paths::run(steering, config)) {
            Ok(()) => ("steering was stopped".to_owned(), false),
            Err(exit) => {
                if exit.code == Exit::NETWORK {
                    most = LONGEST_WITHOUT_LINKS;
                }
                (exit.line.unwrap_or_default(), exit.code != Exit::PRIVILEGE)
            }
        };
        // An edge that ends does not listen any more.
        let _ = tell.send(Ended { why, again });
        if began.elapsed() > longest {
            pause = shortest;
        }
        if !again || stop.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
            return;
        }
        pause = (2 * pause).min(most);
    }
}

/// The terms of a link, which need not be there yet: an edge starts at boot, before its modems.
fn awaited(link: &str) -> String {
    let waits = link.split(',').any(|part| part == "later");
    if waits { link.to_owned() } else { format!("{link},later") }
}

/// A line for each link that is named and not there.
fn absent(links: &[String]) -> Vec<String> {
    let Ok(survey) = survey() else { return Vec::new() };
    let names = links.iter().filter_map(|link| link.split(',').next());
    let absent = names.filter(|name| survey.named(name).is_none());
    absent.map(|name| format!("link {name}: there is no such interface yet; it is used when it comes")).collect()
}

fn parsed(words: &[String]) -> Result<paths::PathsArgs, Exit> {
    let cli = crate::args::parse(words.iter().map(Into::into))?;
    match cli.verb {
        Verb::Paths(steering) => Ok(*steering),
        _ => Err(Exit::failed("the links cannot be steered")),
    }
}

/// Whether this process answers there, and not another daemon that steers. Blocks for as long as that one takes to answer.
fn is_own(run_dir: &Path) -> bool {
    let answer = control::ask(run_dir, &Question::Status { at_most: Some(0) });
    matches!(answer, Ok(Answer::Status(status)) if status.pid == std::process::id())
}

/// What the links are used for.
fn profile(args: &RunArgs) -> String {
    let minimised = args.minimise.map(|what| what.profile().to_owned());
    minimised.or_else(|| args.profile.clone()).unwrap_or_else(|| "throughput".to_owned())
}
