//! A daemon's ear: a unix socket at which its owner asks and tells it something.
//!
//! In: one JSON question for each connection, at most a kibibyte, ended by a line end or by the end of the stream. Out: one
//! JSON answer or the refusal of one, and the connection is closed. What they are is the daemon's matter.
//!
//! 1. Only root and the daemon's own user may ask: the socket is made for its owner alone, in a directory that only its
//!    owner and root can write, and the asker's credentials are looked at as well.
//! 2. Whoever is slow loses his connection after two seconds; nobody makes the daemon wait. A few are heard at once, and
//!    the others wait in the kernel's queue.
//! 3. A socket that was left behind by a crash is replaced. One at which somebody listens is not.
//!
//! HTTP was not used: there is one question and one answer, and no browser is to reach this.

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

use crate::directory::Directory;

/// chosen: every question there is fits ten times.
const MAX_REQUEST_LEN: u64 = 1024;
/// chosen: a program on the same machine that needs longer has stopped.
const IO_TIMEOUT: Duration = Duration::from_secs(2);
/// chosen: people and a monitor ask; more at once is a mistake in a script.
pub const MAX_CONNS: usize = 16;
/// As the standard library has it; what waits there waits for [`AT_ONCE`].
const BACKLOG: i32 = 128;

/// What an asker is told.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RawReply<A> {
    Response(A),
    /// One sentence.
    Refused(String),
}

/// What a daemon says that has nothing more to say.
pub const SHUTTING_DOWN: &str = "the daemon is ending";

/// The listening end. It lives in a tokio runtime; the socket is removed with it.
#[derive(Debug)]
pub struct ControlServer {
    accept_task: tokio::task::JoinHandle<()>,
    dir: Directory,
    file_name: String,
    /// Which file that is: another run may have put its own in its place.
    file_id: (u64, u64),
}

impl ControlServer {
    /// Listens at `path`, in place of whatever was left there, and makes its directory if that is not there. `answer` is what
    /// is answered, or a sentence that says why nothing is.
    ///
    /// # Errors
    /// The directory is not safe or cannot be written, or somebody listens there.
    pub fn listen<Q, A, F>(path: &Path, handler: impl Fn(Q) -> F + Send + Sync + 'static) -> io::Result<Self>
    where
        Q: DeserializeOwned + Send + 'static,
        A: Serialize + Send + Sync + 'static,
        F: Future<Output = Result<A, String>> + Send + 'static,
    {
        Directory::make(socket_dir(path))?;
        let within = Directory::own(socket_dir(path))?;
        let name = path.file_name().and_then(|name| name.to_str()).ok_or(io::ErrorKind::InvalidInput)?;
        let socket = within.path_of(name);
        if std::os::unix::net::UnixStream::connect(&socket).is_ok() {
            let message = format!("another one listens at {}", path.display());
            return Err(io::Error::new(io::ErrorKind::AddrInUse, message));
        }
        within.unlink(name)?;
        // By its own name, which /proc/net/unix shows: so other users see that a daemon runs.
        let listener = UnixListener::from_std(bind_listener(path)?)?;
        let file = file_id(&socket).map_err(|_| directory_replaced(path))?;
        let accepting = tokio::spawn(accept_loop(listener, Arc::new(handler)));
        Ok(Self { accept_task: accepting, dir: within, file_name: name.to_owned(), file_id: file })
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        self.accept_task.abort();
        if file_id(&self.dir.path_of(&self.file_name)).is_ok_and(|file| file == self.file_id) {
            let _ = self.dir.unlink(&self.file_name);
        }
    }
}

/// The name of the directory leads elsewhere by now, and so the socket is not in the directory that was checked.
fn directory_replaced(path: &Path) -> io::Error {
    io::Error::other(format!("{}: its directory was replaced while the socket was made", path.display()))
}

/// A listening socket for its owner alone. Linux gives a socket's file the mode that the socket has when it is bound, so there
/// is no moment in which others may connect, and no path is opened a second time to change it.
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
                    let _place = permit;
                    if let Ok(Err(error)) = tokio::time::timeout(IO_TIMEOUT, serve_conn(stream, &*handler)).await {
                        tracing::debug!(%error, "a question on the control socket failed");
                    }
                });
            }
            Err(error) => {
                // Out of descriptors: those that are open may close.
                tracing::debug!(%error, "the control socket does not accept");
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
        Err("only root and the daemon's own user may ask".to_owned())
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
    Ok(serde_json::from_slice(line).map_err(|error| format!("the question is not understood: {error}")))
}

/// Why a daemon did not answer.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// No process listens.
    #[error("{}", no_daemon(who, socket, error))]
    NotRunning {
        /// The command that it would be.
        who: &'static str,
        /// Where it would be.
        socket: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// Somebody listens, and this user may not ask.
    #[error("{}: not permitted: ask as root, or as the user whom `{who}` runs as", socket.display())]
    NotPermitted {
        /// Which command.
        who: &'static str,
        /// Where it is.
        socket: PathBuf,
    },
    /// It ended while it was asked.
    #[error("`{0}` has ended")]
    Ended(&'static str),
    /// The answer did not come, or is none.
    #[error("{}: `{who}` does not answer: {error}", socket.display())]
    NoResponse {
        /// Which command.
        who: &'static str,
        /// Where it is.
        socket: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// It answered with a refusal.
    #[error("{0}")]
    Refused(String),
}

/// Asks the daemon that listens at `socket`; `who` is the command that it is. Blocks, for four seconds at most between two bytes.
///
/// # Errors
/// Nobody is there, he does not answer, or he refuses.
pub fn query_daemon<A: DeserializeOwned>(
    command: &'static str,
    socket: &Path,
    request: &impl Serialize,
) -> Result<A, ControlError> {
    let socket_path = || socket.to_owned();
    // In a directory of just anybody's there may be a socket of just anybody's.
    let connected =
        Directory::open(socket_dir(socket)).and_then(|_| std::os::unix::net::UnixStream::connect(socket));
    // Another user's directory may be empty; one that cannot be looked into may not.
    let is_empty = || std::fs::symlink_metadata(socket).is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    let mut stream = connected.map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied if !is_empty() => {
            ControlError::NotPermitted { who: command, socket: socket_path() }
        }
        _ => ControlError::NotRunning { who: command, socket: socket_path(), error },
    })?;
    match exchange_json(&mut stream, request) {
        Ok(RawReply::Response(response)) => Ok(response),
        Ok(RawReply::Refused(why)) if why == SHUTTING_DOWN => Err(ControlError::Ended(command)),
        Ok(RawReply::Refused(why)) => Err(ControlError::Refused(why)),
        Err(error) => Err(match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
                ControlError::Ended(command)
            }
            _ => ControlError::NoResponse { who: command, socket: socket_path(), error },
        }),
    }
}

/// The same sentence for every daemon. The socket is named only where it is more than absent: an unsafe directory, say.
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

/// The directory of a socket.
fn socket_dir(socket: &Path) -> &Path {
    socket.parent().filter(|path| !path.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
