//! The control socket of `marline accel`: how it stands, and its end.
//!
//! In: questions. Out: answers of the packets' thread. One socket for each primary link, `accel-NAME.sock` in the run
//! directory.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use marline_net::control_socket::{self, ControlError, ControlServer, SHUTTING_DOWN};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use super::engine::Bell;
use super::status::Status;

/// The command that listens.
pub const WHO: &str = "marline accel";

/// What can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "ask", deny_unknown_fields)]
pub enum Question {
    /// How does it stand?
    Status,
    /// Put everything back, and end.
    Stop,
}

/// What is answered.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// How it stands.
    Status(Box<Status>),
    /// It is about to end.
    Ending {
        /// This process.
        pid: u32,
    },
}

/// Where the accelerator of this primary link is asked.
pub fn socket(run_dir: &Path, primary: &str) -> PathBuf {
    run_dir.join(format!("accel-{primary}.sock"))
}

/// The primary links for which there is a socket in a run directory, sorted; a crash leaves some behind.
pub fn primaries(run_dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(run_dir).into_iter().flatten().flatten();
    let name = |entry: std::fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        Some(name.strip_prefix("accel-")?.strip_suffix(".sock")?.to_owned())
    };
    let mut names: Vec<String> = entries.filter_map(name).collect();
    names.sort();
    names
}

/// Answers as long as it lives. `stop` is told when somebody wants the end.
///
/// # Errors
/// The socket cannot be made.
pub fn listen(run_dir: &Path, primary: &str, bell: Bell, stop: Arc<Notify>) -> io::Result<ControlServer> {
    let answer = move |question| {
        let (bell, stop) = (bell.clone(), Arc::clone(&stop));
        async move {
            match question {
                Question::Status => bell
                    .status()
                    .await
                    .map(|status| Answer::Status(Box::new(status)))
                    .ok_or_else(|| SHUTTING_DOWN.into()),
                Question::Stop => {
                    stop.notify_one();
                    Ok(Answer::Ending { pid: std::process::id() })
                }
            }
        }
    };
    ControlServer::listen(&socket(run_dir, primary), answer)
}

/// Whether an accelerator of this primary link answers.
pub fn is_taken(run_dir: &Path, primary: &str) -> bool {
    ask(run_dir, primary, Question::Status).is_ok()
}

/// Asks the accelerator of this primary link.
///
/// # Errors
/// Nobody is there, he does not answer, or he refuses.
pub fn ask(run_dir: &Path, primary: &str, question: Question) -> Result<Answer, ControlError> {
    control_socket::query_daemon(WHO, &socket(run_dir, primary), &question)
}
