//! Control socket of the daemon: a unix socket for `status`, `watch` and `explain`.
//!
//! Each connection carries one [`ControlRequest`] and one [`ControlReply`]. [`marline_net::control_socket`] defines
//! the transport and access control.
//!
//! 1. Clients never block the driver.
//! 2. The listening process holds the instance lock ([`super::host_config::InstanceLock`]), so a socket that it
//!    replaces is a leftover of a crash.

use std::io;
use std::path::Path;
use std::sync::Arc;

use marline_core::paths::{ConnId, Paths};
use marline_net::control_socket::{ControlServer, SHUTTING_DOWN};
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};

use super::status::{Explanation, RunInfo, Status};
use super::{DriverQuery, SharedPolicy, Snapshot};

pub use super::host_config::socket_path;
pub use marline_net::control_socket::ControlError;

/// A request to the daemon.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "ask", deny_unknown_fields)]
pub enum ControlRequest {
    /// The state of the run.
    Status {
        /// Maximum number of connections in the reply; none: all.
        #[serde(default)]
        max_connections: Option<usize>,
    },
    /// The decisions about one connection.
    Explain {
        /// Token of the connection.
        token: u32,
    },
}

/// A reply of the daemon.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ControlReply {
    /// Reply to [`ControlRequest::Status`].
    Status(Box<Status>),
    /// Reply to [`ControlRequest::Explain`].
    Explanation(Box<Explanation>),
}

/// Name of the daemon in error texts.
pub const COMMAND_NAME: &str = "marline paths";

/// The listening socket, whose file is removed on drop. Needs a tokio runtime.
#[derive(Debug)]
pub struct ControlSocket(#[expect(dead_code, reason = "it is held, not read")] ControlServer);

impl ControlSocket {
    /// Listens in the run directory, replacing a leftover socket, and queries the driver through `driver`.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn listen(
        run_dir: &Path,
        run_info: RunInfo,
        policy: SharedPolicy,
        driver: mpsc::Sender<DriverQuery>,
    ) -> io::Result<Self> {
        let run_info = Arc::new(run_info);
        let server = ControlServer::listen(&socket_path(run_dir), move |request| {
            let (run_info, policy, driver) = (Arc::clone(&run_info), policy.clone(), driver.clone());
            async move {
                // The driver has ended and does not reply.
                let reply = handle_request(request, &run_info, &policy, &driver).await;
                reply.unwrap_or_else(|| Err(SHUTTING_DOWN.to_owned()))
            }
        })?;
        Ok(Self(server))
    }
}

/// Handles a request; none: the driver has ended.
async fn handle_request(
    request: ControlRequest,
    run_info: &RunInfo,
    policy: &SharedPolicy,
    driver: &mpsc::Sender<DriverQuery>,
) -> Option<Result<ControlReply, String>> {
    Some(Ok(match request {
        ControlRequest::Status { max_connections } => {
            let snapshot = request_snapshot(driver).await?;
            ControlReply::Status(Box::new(
                policy.read(|policy| Status::new(run_info, &snapshot, policy, max_connections)),
            ))
        }
        ControlRequest::Explain { token } => {
            let (reply_tx, reply_rx) = oneshot::channel();
            driver.send(DriverQuery::Explain(ConnId(token), reply_tx)).await.ok()?;
            match reply_rx.await.ok()? {
                Some((connection, decisions)) => {
                    let snapshot = request_snapshot(driver).await?;
                    let explanation = |policy: &Paths| Explanation::new(&connection, &decisions, &snapshot, policy);
                    ControlReply::Explanation(Box::new(policy.read(explanation)))
                }
                None => {
                    return Some(Err(format!(
                        "there is no connection {token:08x}, and none that ended within the last minute; `marline paths status` lists the known ones"
                    )));
                }
            }
        }
    }))
}

async fn request_snapshot(driver: &mpsc::Sender<DriverQuery>) -> Option<Snapshot> {
    let (reply_tx, reply_rx) = oneshot::channel();
    driver.send(DriverQuery::Snapshot(reply_tx)).await.ok()?;
    reply_rx.await.ok()
}

/// Sends a request to the daemon of this run directory. Blocks for at most four seconds between two bytes.
///
/// # Errors
/// No daemon runs, it does not reply, or it refuses.
pub fn query(run_dir: &Path, request: &ControlRequest) -> Result<ControlReply, ControlError> {
    marline_net::control_socket::query_daemon(COMMAND_NAME, &socket_path(run_dir), request)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::{Read, Write};
    use std::os::unix::fs::PermissionsExt as _;

    use marline_core::energy::{ConcurrentDraw, Model};
    use marline_core::paths::{Config, Goal, Policy};
    use marline_core::units::Power;
    use marline_net::control_socket::MAX_CONNS;

    use super::*;

    fn run_info() -> RunInfo {
        RunInfo {
            policy: Policy::Emptcp,
            goal: Goal::Energy,
            energy_model: None,
            notes: Vec::new(),
            forwarder: None,
        }
    }

    /// A policy without links and radios.
    fn policy() -> SharedPolicy {
        let model = Model::new("none", BTreeMap::new(), ConcurrentDraw::default(), Power::ZERO).unwrap();
        SharedPolicy::new(Config::new(model, Vec::new()))
    }

    /// Runs `client_code` against a driver without connections.
    fn with_control_socket<T: Send + 'static>(client_code: impl FnOnce(&Path) -> T + Send + 'static) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let run_dir = directory.path().to_owned();
        runtime.block_on(async move {
            let (driver, mut queries) = mpsc::channel(1);
            let control = ControlSocket::listen(&run_dir, run_info(), policy(), driver).unwrap();
            let (result_tx, mut result_rx) = oneshot::channel();
            let client_run_dir = run_dir.clone();
            std::thread::spawn(move || result_tx.send(client_code(&client_run_dir)));
            loop {
                tokio::select! {
                    query = queries.recv() => match query.unwrap() {
                        DriverQuery::Snapshot(reply_tx) => reply_tx.send(Snapshot::default()).unwrap(),
                        DriverQuery::Explain(_, reply_tx) => reply_tx.send(None).unwrap(),
                    },
                    result = &mut result_rx => {
                        drop(control);
                        assert!(!socket_path(&run_dir).exists(), "the socket goes with the daemon");
                        return result.unwrap();
                    }
                }
            }
        })
    }

    #[test]
    fn a_request_gets_its_reply() {
        let (status, explain_error) = with_control_socket(|run_dir| {
            let error = query(run_dir, &ControlRequest::Explain { token: 7 }).unwrap_err().to_string();
            (query(run_dir, &ControlRequest::Status { max_connections: Some(3) }).unwrap(), error)
        });
        assert_eq!(
            status,
            ControlReply::Status(Box::new(policy().read(|policy| Status::new(
                &run_info(),
                &Snapshot::default(),
                policy,
                None
            ))))
        );
        assert!(explain_error.starts_with("there is no connection 00000007, "), "{explain_error}");
    }

    #[test]
    fn invalid_and_idle_clients_do_not_disturb_others() {
        let (rejections, still_answers) = with_control_socket(|run_dir| {
            // More connections than the server accepts: the idle ones are evicted before the real clients time out.
            let connect = |_| std::os::unix::net::UnixStream::connect(socket_path(run_dir)).unwrap();
            let _silent: Vec<_> = (0..MAX_CONNS + 1).map(connect).collect();
            let send_raw = |bytes: &[u8]| {
                let mut stream = std::os::unix::net::UnixStream::connect(socket_path(run_dir)).unwrap();
                let _ = stream.write_all(bytes);
                let _ = stream.shutdown(std::net::Shutdown::Write);
                let mut reply = String::new();
                let _ = stream.read_to_string(&mut reply);
                reply
            };
            let long = [b' '; 900].repeat(5);
            let nonsense: [&[u8]; 6] = [
                b"\n",
                b"{}\n",
                b"{\"ask\":\"reboot\"}",
                b"{\"ask\":\"explain\",\"token\":1,\"x\":2}",
                b"\xff\xfe\n",
                &long,
            ];
            let replies: Vec<String> = nonsense.iter().map(|bytes| send_raw(bytes)).collect();
            (replies, query(run_dir, &ControlRequest::Status { max_connections: None }).is_ok())
        });
        for rejection in rejections {
            // A client that is cut off while it writes may miss the reply.
            assert!(rejection.is_empty() || rejection.contains("the request cannot be parsed"), "{rejection}");
        }
        assert!(still_answers);
    }

    #[test]
    fn a_daemon_that_ends_during_a_request_is_reported_as_ended() {
        for reply in [&b""[..], b"{\"status\":{", b"{\"refused\":\"the daemon is ending\"}\n"] {
            let directory = tempfile::tempdir().unwrap();
            let listener = std::os::unix::net::UnixListener::bind(socket_path(directory.path())).unwrap();
            let daemon = std::thread::spawn(move || {
                let (mut client, _) = listener.accept().unwrap();
                if !reply.is_empty() {
                    client.read_exact(&mut [0; 8]).unwrap();
                    client.write_all(reply).unwrap();
                }
            });
            let error = query(directory.path(), &ControlRequest::Status { max_connections: None }).unwrap_err();
            assert_eq!(error.to_string(), "`marline paths` has ended", "{reply:?}");
            daemon.join().unwrap();
        }
    }

    #[test]
    fn a_socket_of_another_run_is_not_removed() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let directory = tempfile::tempdir().unwrap();
        runtime.block_on(async {
            let listen =
                || ControlSocket::listen(directory.path(), run_info(), policy(), mpsc::channel(1).0).unwrap();
            let first = listen();
            assert!(
                ControlSocket::listen(directory.path(), run_info(), policy(), mpsc::channel(1).0).is_err(),
                "one listens"
            );
            std::fs::remove_file(socket_path(directory.path())).unwrap();
            let second = listen();
            drop(first);
            assert!(socket_path(directory.path()).exists());
            drop(second);
            assert!(!socket_path(directory.path()).exists());
        });
    }

    #[test]
    fn without_a_daemon_the_error_states_the_remedy() {
        let directory = tempfile::tempdir().unwrap();
        let error =
            query(directory.path(), &ControlRequest::Status { max_connections: None }).unwrap_err().to_string();
        let sentence = "no marline paths daemon runs in this network namespace; start it with `marline paths`, or name its \
                        --run-dir";
        assert_eq!(error, sentence);
        // A leftover socket of a crash.
        drop(std::os::unix::net::UnixListener::bind(socket_path(directory.path())).unwrap());
        assert_eq!(
            query(directory.path(), &ControlRequest::Status { max_connections: None }).unwrap_err().to_string(),
            sentence
        );
    }

    #[test]
    fn requests_in_another_users_directory_are_not_permitted() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: only root can give directories away");
            return;
        }
        let parent = tempfile::tempdir().unwrap();
        let run_dir = parent.path().join("run");
        std::fs::create_dir(&run_dir).unwrap();
        // Neither directory belongs to root, so even root must not trust it.
        for dir in [parent.path(), &run_dir] {
            std::os::unix::fs::chown(dir, Some(65_534), None).unwrap();
        }
        let query_error = || query(&run_dir, &ControlRequest::Status { max_connections: None }).unwrap_err();
        assert!(matches!(query_error(), ControlError::NotRunning { .. }), "{}", query_error());
        drop(std::os::unix::net::UnixListener::bind(socket_path(&run_dir)).unwrap());
        assert!(matches!(query_error(), ControlError::NotPermitted { .. }), "{}", query_error());
    }

    #[test]
    fn the_socket_belongs_to_its_owner_and_replaces_a_leftover() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let directory = tempfile::tempdir().unwrap();
        drop(std::os::unix::net::UnixListener::bind(socket_path(directory.path())).unwrap());
        runtime.block_on(async {
            let _control =
                ControlSocket::listen(directory.path(), run_info(), policy(), mpsc::channel(1).0).unwrap();
            let mode = std::fs::metadata(socket_path(directory.path())).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        });
    }
}
