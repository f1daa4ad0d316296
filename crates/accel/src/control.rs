//! Control socket of `marline accel`: status and stop. One socket for each primary link, `accel-NAME.sock` in the run
//! directory.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use marline_net::control_socket::{self, ControlError, ControlServer, SHUTTING_DOWN};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use super::status::Status;
use crate::packet_loop::LoopHandle;

/// The command that listens.
pub const COMMAND: &str = "marline accel";

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "ask", deny_unknown_fields)]
pub enum Request {
    /// Report the status.
    Status,
    /// Restore everything, and end.
    Stop,
}

/// A response.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Response {
    /// The status.
    Status(Box<Status>),
    /// It is about to end.
    Stopping {
        /// This process.
        pid: u32,
    },
}

/// The control socket of the accelerator of this primary link.
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

/// Serves the control socket as long as the result lives. `stop` is notified by a request to stop.
///
/// # Errors
/// The socket cannot be created.
pub fn listen(run_dir: &Path, primary: &str, handle: LoopHandle, stop: Arc<Notify>) -> io::Result<ControlServer> {
    let answer = move |request| {
        let (handle, stop) = (handle.clone(), Arc::clone(&stop));
        async move {
            match request {
                Request::Status => handle
                    .status()
                    .await
                    .map(|status| Response::Status(Box::new(status)))
                    .ok_or_else(|| SHUTTING_DOWN.into()),
                Request::Stop => {
                    stop.notify_one();
                    Ok(Response::Stopping { pid: std::process::id() })
                }
            }
        }
    };
    ControlServer::listen(&socket(run_dir, primary), answer)
}

/// Whether an accelerator of this primary link responds.
pub fn is_taken(run_dir: &Path, primary: &str) -> bool {
    send_request(run_dir, primary, Request::Status).is_ok()
}

/// Sends a request to the accelerator of this primary link.
///
/// # Errors
/// None runs, it does not respond, or it refuses.
pub fn send_request(run_dir: &Path, primary: &str, request: Request) -> Result<Response, ControlError> {
    control_socket::query_daemon(COMMAND, &socket(run_dir, primary), &request)
}
