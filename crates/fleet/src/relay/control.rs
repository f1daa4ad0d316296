//! What a relay's owner asks it, and tells it: `marline relay status`, `drain` and `stop`.
//!
//! In: a [`Question`] over the relay's socket in the run directory ([`marline_net::control_socket`]). Out: its [`Status`].
//!
//! 1. The socket has the relay's name, so that several of them share a run directory. Where a relay of this name lives, another
//!    one is not heard.
//! 2. `drain` is undone by its opposite; `stop` is not: it does what the first SIGTERM does, and with `now` what the second one
//!    does.

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

/// What can be asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "ask", deny_unknown_fields)]
pub enum Request {
    /// How it stands.
    Status,
    /// No new tunnels, or new ones again.
    Drain {
        /// New ones again.
        #[serde(default)]
        undo: bool,
    },
    /// End, when the last tunnel has.
    Stop {
        /// Do not wait for it.
        #[serde(default)]
        now: bool,
    },
}

/// How a relay stands, for its owner.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Status {
    /// Its name.
    pub name: Name,
    /// The program's version.
    pub version: String,
    /// The process.
    pub pid: u32,
    /// For how long it has run, in seconds.
    pub uptime_s: u64,
    /// It ends when the last tunnel has.
    pub ending: bool,
    /// What it may carry each way; none: it is not known.
    #[serde(rename = "capacity_bps")]
    pub capacity: Option<Bitrate>,
    /// Tunnels, edges and bytes.
    #[serde(flatten)]
    pub state: RelayState,
    /// What it reaches to servers.
    pub origins: Vec<OriginRate>,
}

/// The listening end; the socket goes with it.
#[derive(Debug)]
pub struct ControlSocket(#[expect(dead_code, reason = "it is held, not read")] ControlServer);

/// The command that listens.
pub const COMMAND_NAME: &str = "marline relay";

/// Where a relay of this name is asked.
pub fn socket_path(run_dir: &Path, name: &Name) -> PathBuf {
    run_dir.join(format!("{SOCKET_PREFIX}{name}{SOCKET_SUFFIX}"))
}

const SOCKET_PREFIX: &str = "relay-";
const SOCKET_SUFFIX: &str = ".sock";

/// The relays whose sockets are there, in the order of their names; a crash may have left one.
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
    /// Listens for a relay of this name.
    ///
    /// # Errors
    /// The directory cannot be made or written, or another relay of this name answers there.
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
                    return Err("this relay is ending, which cannot be undone".to_owned());
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

/// Asks the relay of this name.
///
/// # Errors
/// One line: nobody is there, he does not answer, or he refuses.
pub fn send_request(run_dir: &Path, name: &Name, request: Request) -> Result<Status, ControlError> {
    query_daemon(COMMAND_NAME, &socket_path(run_dir, name), &request)
}
