//! Control socket of a relay, for `marline relay status`, `drain` and `stop`.
//!
//! Each [`Request`] over the socket in the run directory ([`marline_net::control_socket`]) gets the relay's [`Status`] as response.
//!
//! 1. The name of the socket contains the relay's name, so that several relays can share a run directory. A second relay of the
//!    same name cannot listen while the first one runs.
//! 2. `drain` can be undone. `stop` cannot: it has the effect of the first SIGTERM, and with `now` that of the second.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use marline_core::units::Bitrate;
use marline_net::control_socket::{ControlServer, query_daemon};
use serde::{Deserialize, Serialize};

pub use marline_net::control_socket::ControlError;

use super::origin_rates::OriginRate;
use super::{Relay, RelayState};
use crate::identity::Name;

/// A request to a running relay.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "ask", deny_unknown_fields)]
pub enum Request {
    /// Report the status.
    Status,
    /// Accept no new tunnels, or accept them again.
    Drain {
        /// Accept them again.
        #[serde(default)]
        undo: bool,
    },
    /// Stop when the last tunnel has ended.
    Stop {
        /// Stop at once.
        #[serde(default)]
        now: bool,
    },
}

/// The status of a relay, for its owner.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Status {
    /// Name of the relay.
    pub name: Name,
    /// Version of the program.
    pub version: String,
    /// Process id.
    pub pid: u32,
    /// Time since its start, in seconds.
    pub uptime_s: u64,
    /// The relay stops when the last tunnel has ended.
    pub ending: bool,
    /// The capacity for each direction; none: not configured.
    #[serde(rename = "capacity_bps")]
    pub capacity: Option<Bitrate>,
    /// Tunnels, edges and bytes.
    #[serde(flatten)]
    pub state: RelayState,
    /// Measured rates to origin servers.
    pub origins: Vec<OriginRate>,
}

/// The listening socket; removed when dropped.
#[derive(Debug)]
pub struct ControlSocket(#[expect(dead_code, reason = "it is held, not read")] ControlServer);

/// The command that listens, for error texts.
pub const COMMAND_NAME: &str = "marline relay";

/// Path of the control socket of the relay of this name.
pub fn socket_path(run_dir: &Path, name: &Name) -> PathBuf {
    run_dir.join(format!("{SOCKET_PREFIX}{name}{SOCKET_SUFFIX}"))
}

const SOCKET_PREFIX: &str = "relay-";
const SOCKET_SUFFIX: &str = ".sock";

/// The names of the relays that have sockets in the directory, sorted. A crashed relay may have left its socket.
///
/// # Errors
/// The directory cannot be read.
pub fn running_relays(run_dir: &Path) -> io::Result<Vec<Name>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(run_dir)? {
        let name = entry?.file_name();
        let name = name
            .to_str()
            .and_then(|name| name.strip_prefix(SOCKET_PREFIX)?.strip_suffix(SOCKET_SUFFIX)?.parse().ok());
        names.extend(name);
    }
    names.sort();
    Ok(names)
}

impl ControlSocket {
    /// Listens for requests to a relay of this name.
    ///
    /// # Errors
    /// The directory cannot be created or written, or another relay of this name is running.
    pub fn listen(run_dir: &Path, name: &Name, relay: &Arc<Relay>) -> io::Result<Self> {
        let path = socket_path(run_dir, name);
        let (relay, name) = (Arc::clone(relay), name.clone());
        let started_at = std::time::Instant::now();
        let listener = ControlServer::listen(&path, move |request: Request| {
            let result = relay.execute(request);
            std::future::ready(result.map(|()| relay.status(&name, started_at.elapsed().as_secs())))
        })?;
        Ok(Self(listener))
    }
}

impl Relay {
    fn execute(&self, request: Request) -> Result<(), String> {
        match request {
            Request::Status => {}
            Request::Drain { undo: false } => self.drain(),
            Request::Drain { undo: true } => {
                if !self.undrain() {
                    return Err("this relay is stopping, which cannot be undone".to_owned());
                }
            }
            Request::Stop { now } => self.stop(now),
        }
        Ok(())
    }

    fn status(&self, name: &Name, up_s: u64) -> Status {
        Status {
            name: name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_s: up_s,
            ending: self.is_ending(),
            capacity: self.config.limits.capacity,
            state: self.state(),
            origins: self.origins(),
        }
    }
}

/// Sends a request to the relay of this name, and returns its status.
///
/// # Errors
/// No relay of this name runs, it does not respond, or it refuses the request.
pub fn send_request(run_dir: &Path, name: &Name, request: Request) -> Result<Status, ControlError> {
    query_daemon(COMMAND_NAME, &socket_path(run_dir, name), &request)
}
