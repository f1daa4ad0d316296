//! Control socket of a daemon: a unix socket that takes one JSON request and returns one JSON response per
//! connection.
//!
//! A request has at most 1 KiB and ends with a line end or the end of the stream. The reply is a response or a
//! refusal, then the connection is closed. Each daemon defines its own requests and responses.
//!
//! 1. Only root and the daemon's own user may send requests. The socket is accessible to its owner only, in a
//!    directory that only its owner and root can write to, and the credentials of the peer are checked as well.
//! 2. A connection ends after two seconds, in which the client sends its request, the daemon handles it and the
//!    client reads the reply. So a slow client never blocks the daemon. [`MAX_CONNS`] clients are served at a time;
//!    the others wait in the kernel's queue.
//! 3. A socket that a crashed daemon left behind is replaced. One with a listener is not.
//!
//! HTTP was not used: there is one request and one response, and browsers must not reach this interface.

use std::future::Future;
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{Mode, fchmod};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;

use crate::run_dir::RunDir;

/// Our choice: ten times the length of the longest request.
const MAX_REQUEST_LEN: u64 = 1024;
/// Limit for a whole connection on the daemon's side: reading the request, handling it and writing the reply. Our
/// choice: a program on the same machine that needs longer has hung.
const IO_TIMEOUT: Duration = Duration::from_secs(2);
/// Our choice: people and a monitoring program send requests; more at once is a mistake in a script.
pub const MAX_CONNS: usize = 16;
/// Length of the kernel's queue of connections that wait for one of the [`MAX_CONNS`] permits. Same as the standard
/// library.
const BACKLOG: i32 = 128;

/// The reply on the wire.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RawReply<A> {
    Response(A),
    /// A refusal: one sentence for the user.
    Refused(String),
}

/// Refusal that a daemon sends while it shuts down; clients report it as [`ControlError::Ended`].
pub const SHUTTING_DOWN: &str = "the daemon is ending";

/// The listener. It needs a tokio runtime; dropping it removes the socket.
#[derive(Debug)]
pub struct ControlServer {
    accept_task: tokio::task::JoinHandle<()>,
    dir: RunDir,
    file_name: String,
    /// Device and inode of the socket: another daemon may have replaced the file meanwhile.
    file_id: (u64, u64),
}

impl ControlServer {
    /// Listens at `path`, replaces a socket left there, and creates the directory if it does not exist. `handler`
    /// returns the response, or a sentence that says why the request is refused.
    ///
    /// # Errors
    /// The directory is not safe or cannot be written to, or another process listens there.
    pub fn listen<Q, A, F>(path: &Path, handler: impl Fn(Q) -> F + Send + Sync + 'static) -> io::Result<Self>
    where
        Q: DeserializeOwned + Send + 'static,
        A: Serialize + Send + Sync + 'static,
        F: Future<Output = Result<A, String>> + Send + 'static,
    {
        RunDir::ensure(socket_dir(path))?;
        let dir = RunDir::open_own(socket_dir(path))?;
        let name = path.file_name().and_then(|name| name.to_str()).ok_or(io::ErrorKind::InvalidInput)?;
        let socket = dir.path_in_dir(name);
        if std::os::unix::net::UnixStream::connect(&socket).is_ok() {
            let message = format!("another process listens at {}", path.display());
            return Err(io::Error::new(io::ErrorKind::AddrInUse, message));
        }
        dir.unlink(name)?;
        // Bound by the path that the user knows, because /proc/net/unix shows it: so other users see that a daemon
        // runs.
        let listener = UnixListener::from_std(bind_listener(path)?)?;
        let file = file_id(&socket).map_err(|_| directory_replaced(path))?;
        let accept_task = tokio::spawn(accept_loop(listener, Arc::new(handler)));
        Ok(Self { accept_task, dir, file_name: name.to_owned(), file_id: file })
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        self.accept_task.abort();
        if file_id(&self.dir.path_in_dir(&self.file_name)).is_ok_and(|file| file == self.file_id) {
            let _ = self.dir.unlink(&self.file_name);
        }
    }
}

/// The path of the directory has changed meanwhile, so the socket is not in the directory that was checked.
fn directory_replaced(path: &Path) -> io::Error {
    io::Error::other(format!("{}: the directory was replaced while the socket was being created", path.display()))
}

/// Creates a listening socket for its owner only. Linux gives the socket's file the mode that the socket has when it
/// is bound. So there is no moment at which other users may connect, and no path is opened a second time to change
/// the mode.
fn bind_listener(path: &Path) -> io::Result<std::os::unix::net::UnixListener> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

fn file_id(path: &Path) -> io::Result<(u64, u64)> {
    let file = std::fs::symlink_metadata(path)?;
    Ok((file.dev(), file.ino()))
}

async fn accept_loop<Q, A, F>(listener: UnixListener, handler: Arc<impl Fn(Q) -> F + Send + Sync + 'static>)
where
    Q: DeserializeOwned + Send + 'static,
    A: Serialize + Send + Sync + 'static,
    F: Future<Output = Result<A, String>> + Send + 'static,
{
    let permits = Arc::new(Semaphore::new(MAX_CONNS));
    while let Ok(permit) = Arc::clone(&permits).acquire_owned().await {
        match listener.accept().await {
            Ok((stream, _)) => {
                let handler = Arc::clone(&handler);
                tokio::spawn(async move {
                    let _permit = permit;
                    if let Ok(Err(error)) = tokio::time::timeout(IO_TIMEOUT, serve_conn(stream, &*handler)).await {
                        tracing::debug!(%error, "a request on the control socket failed");
                    }
                });
            }
            Err(error) => {
                // Out of file descriptors: open connections may close soon.
                tracing::debug!(%error, "the control socket cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn serve_conn<Q, A, F>(mut stream: UnixStream, handler: &(impl Fn(Q) -> F + Sync)) -> io::Result<()>
where
    Q: DeserializeOwned + Send + 'static,
    A: Serialize + Send + Sync + 'static,
    F: Future<Output = Result<A, String>> + Send,
{
    let request = if is_authorized(&stream)? {
        read_request(&mut stream).await?
    } else {
        Err("only root and the daemon's own user may send requests".to_owned())
    };
    let reply = match request {
        Ok(request) => handler(request).await.map_or_else(RawReply::Refused, RawReply::Response),
        Err(why) => RawReply::Refused(why),
    };
    let mut text = serde_json::to_vec(&reply)?;
    text.push(b'\n');
    stream.write_all(&text).await?;
    stream.shutdown().await
}

fn is_authorized(stream: &UnixStream) -> io::Result<bool> {
    let user = stream.peer_cred()?.uid();
    Ok(user == 0 || user == rustix::process::geteuid().as_raw())
}

async fn read_request<Q: DeserializeOwned>(stream: &mut UnixStream) -> io::Result<Result<Q, String>> {
    let mut text = Vec::new();
    let mut limited = stream.take(MAX_REQUEST_LEN);
    while !text.contains(&b'\n') && limited.read_buf(&mut text).await? > 0 {}
    let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
    Ok(serde_json::from_slice(line).map_err(|error| format!("the request cannot be parsed: {error}")))
}

/// Why a daemon returned no response.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// No process listens at the socket.
    #[error("{}", no_daemon(daemon_command, socket, error))]
    NotRunning {
        /// The command that starts the daemon.
        daemon_command: &'static str,
        /// Path of the socket.
        socket: PathBuf,
        /// Why the connection failed.
        error: io::Error,
    },
    /// A process listens, and this user may not connect.
    #[error("{}: not permitted: run this command as root, or as the user that `{daemon_command}` runs as", socket.display())]
    NotPermitted {
        /// The command that starts the daemon.
        daemon_command: &'static str,
        /// Path of the socket.
        socket: PathBuf,
    },
    /// The daemon shuts down, or closed the connection without a complete reply.
    #[error("`{0}` has ended")]
    Ended(&'static str),
    /// No response arrived, or it is not valid.
    #[error("{}: `{daemon_command}` does not answer: {error}", socket.display())]
    NoResponse {
        /// The command that starts the daemon.
        daemon_command: &'static str,
        /// Path of the socket.
        socket: PathBuf,
        /// Why reading the response failed.
        error: io::Error,
    },
    /// The daemon refused the request, with this reason.
    #[error("{0}")]
    Refused(String),
}

/// Sends a request to the daemon that listens at `socket` and returns its response; `command` is the command that
/// starts the daemon. Blocking; waits at most four seconds for each read and write.
///
/// # Errors
/// No daemon listens, it does not respond, or it refuses.
pub fn query_daemon<A: DeserializeOwned>(
    command: &'static str,
    socket: &Path,
    request: &impl Serialize,
) -> Result<A, ControlError> {
    let socket_path = || socket.to_owned();
    // A directory that any user can write to may contain a socket of any user, so the directory is checked first.
    let connected = RunDir::open(socket_dir(socket)).and_then(|_| std::os::unix::net::UnixStream::connect(socket));
    // The socket is known to be absent even in another user's directory, unless that directory cannot be searched.
    let is_empty = || std::fs::symlink_metadata(socket).is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    let mut stream = connected.map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied if !is_empty() => {
            ControlError::NotPermitted { daemon_command: command, socket: socket_path() }
        }
        _ => ControlError::NotRunning { daemon_command: command, socket: socket_path(), error },
    })?;
    match exchange_json(&mut stream, request) {
        Ok(RawReply::Response(response)) => Ok(response),
        Ok(RawReply::Refused(why)) if why == SHUTTING_DOWN => Err(ControlError::Ended(command)),
        Ok(RawReply::Refused(why)) => Err(ControlError::Refused(why)),
        Err(error) => Err(match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
                ControlError::Ended(command)
            }
            _ => ControlError::NoResponse { daemon_command: command, socket: socket_path(), error },
        }),
    }
}

/// One sentence for all daemons. The socket is named only if it is not simply absent, such as in an unsafe directory.
fn no_daemon(command: &str, socket: &Path, error: &io::Error) -> String {
    let sentence = format!(
        "no {command} daemon runs in this network namespace; start it with `{command}`, or name its --run-dir"
    );
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => sentence,
        _ => format!("{sentence} ({}: {error})", socket.display()),
    }
}

fn exchange_json<A: DeserializeOwned>(
    stream: &mut std::os::unix::net::UnixStream,
    request: &impl Serialize,
) -> io::Result<RawReply<A>> {
    stream.set_read_timeout(Some(2 * IO_TIMEOUT))?;
    stream.set_write_timeout(Some(2 * IO_TIMEOUT))?;
    let mut text = serde_json::to_vec(request)?;
    text.push(b'\n');
    stream.write_all(&text)?;
    let mut response = Vec::new();
    stream.read_to_end(&mut response)?;
    if !response.ends_with(b"\n") {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(serde_json::from_slice(&response)?)
}

/// The directory that contains a socket.
fn socket_dir(socket: &Path) -> &Path {
    socket.parent().filter(|path| !path.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
