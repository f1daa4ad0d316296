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
const LONGEST: u64 = 1024;
/// chosen: a program on the same machine that needs longer has stopped.
const PATIENCE: Duration = Duration::from_secs(2);
/// chosen: people and a monitor ask; more at once is a mistake in a script.
pub const AT_ONCE: usize = 16;
/// As the standard library has it; what waits there waits for [`AT_ONCE`].
const BACKLOG: i32 = 128;

/// What an asker is told.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Told<A> {
    Answer(A),
    /// One sentence.
    Refused(String),
}

/// What a daemon says that has nothing more to say.
pub const ENDING: &str = "the daemon is ending";

/// The listening end. It lives in a tokio runtime; the socket is removed with it.
#[derive(Debug)]
pub struct Ear {
    accepting: tokio::task::JoinHandle<()>,
    within: Directory,
    name: String,
    /// Which file that is: another run may have put its own in its place.
    file: (u64, u64),
}

impl Ear {
    /// Listens at `path`, in place of whatever was left there, and makes its directory if that is not there. `answer` is what
    /// is answered, or a sentence that says why nothing is.
    ///
    /// # Errors
    /// The directory is not safe or cannot be written, or somebody listens there.
    pub fn listen<Q, A, F>(path: &Path, answer: impl Fn(Q) -> F + Send + Sync + 'static) -> io::Result<Self>
    where
        Q: DeserializeOwned + Send + 'static,
        A: Serialize + Send + Sync + 'static,
        F: Future<Output = Result<A, String>> + Send + 'static,
    {
        Directory::make(directory(path))?;
        let within = Directory::own(directory(path))?;
        let name = path.file_name().and_then(|name| name.to_str()).ok_or(io::ErrorKind::InvalidInput)?;
        let socket = within.path_of(name);
        if std::os::unix::net::UnixStream::connect(&socket).is_ok() {
            let words = format!("another one listens at {}", path.display());
            return Err(io::Error::new(io::ErrorKind::AddrInUse, words));
        }
        within.unlink(name)?;
        // By its own name, which /proc/net/unix shows: so other users see that a daemon runs.
        let listener = UnixListener::from_std(bound(path)?)?;
        let file = identity(&socket).map_err(|_| replaced(path))?;
        let accepting = tokio::spawn(accept(listener, Arc::new(answer)));
        Ok(Self { accepting, within, name: name.to_owned(), file })
    }
}

impl Drop for Ear {
    fn drop(&mut self) {
        self.accepting.abort();
        if identity(&self.within.path_of(&self.name)).is_ok_and(|file| file == self.file) {
            let _ = self.within.unlink(&self.name);
        }
    }
}

/// The name of the directory leads elsewhere by now, and so the socket is not in the directory that was checked.
fn replaced(path: &Path) -> io::Error {
    io::Error::other(format!("{}: its directory was replaced while the socket was made", path.display()))
}

/// A listening socket for its owner alone. Linux gives a socket's file the mode that the socket has when it is bound, so there
/// is no moment in which others may connect, and no path is opened a second time to change it.
fn bound(path: &Path) -> io::Result<std::os::unix::net::UnixListener> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let file = std::fs::symlink_metadata(path)?;
    Ok((file.dev(), file.ino()))
}

async fn accept<Q, A, F>(listener: UnixListener, answer: Arc<impl Fn(Q) -> F + Send + Sync + 'static>)
where
    Q: DeserializeOwned + Send + 'static,
    A: Serialize + Send + Sync + 'static,
    F: Future<Output = Result<A, String>> + Send + 'static,
{
    let room = Arc::new(Semaphore::new(AT_ONCE));
    while let Ok(place) = Arc::clone(&room).acquire_owned().await {
        match listener.accept().await {
            Ok((stream, _)) => {
                let answer = Arc::clone(&answer);
                tokio::spawn(async move {
                    let _place = place;
                    if let Ok(Err(error)) = tokio::time::timeout(PATIENCE, serve(stream, &*answer)).await {
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

async fn serve<Q, A, F>(mut stream: UnixStream, answer: &(impl Fn(Q) -> F + Sync)) -> io::Result<()>
where
    Q: DeserializeOwned + Send + 'static,
    A: Serialize + Send + Sync + 'static,
    F: Future<Output = Result<A, String>> + Send,
{
    let asked = if may_ask(&stream)? {
        read(&mut stream).await?
    } else {
        Err("only root and the daemon's own user may ask".to_owned())
    };
    let told = match asked {
        Ok(question) => answer(question).await.map_or_else(Told::Refused, Told::Answer),
        Err(why) => Told::Refused(why),
    };
    let mut text = serde_json::to_vec(&told)?;
    text.push(b'\n');
    stream.write_all(&text).await?;
    stream.shutdown().await
}

fn may_ask(stream: &UnixStream) -> io::Result<bool> {
    let user = stream.peer_cred()?.uid();
    Ok(user == 0 || user == rustix::process::geteuid().as_raw())
}

async fn read<Q: DeserializeOwned>(stream: &mut UnixStream) -> io::Result<Result<Q, String>> {
    let mut text = Vec::new();
    let mut limited = stream.take(LONGEST);
    while !text.contains(&b'\n') && limited.read_buf(&mut text).await? > 0 {}
    let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
    Ok(serde_json::from_slice(line).map_err(|error| format!("the question is not understood: {error}")))
}

/// Why a daemon did not answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// No process listens.
    #[error("{}", no_daemon(who, socket, error))]
    Nobody {
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
    NoAnswer {
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
pub fn ask<A: DeserializeOwned>(
    who: &'static str,
    socket: &Path,
    question: &impl Serialize,
) -> Result<A, AskError> {
    let here = || socket.to_owned();
    // In a directory of just anybody's there may be a socket of just anybody's.
    let connected =
        Directory::open(directory(socket)).and_then(|_| std::os::unix::net::UnixStream::connect(socket));
    // Another user's directory may be empty; one that cannot be looked into may not.
    let is_empty = || std::fs::symlink_metadata(socket).is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    let mut stream = connected.map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied if !is_empty() => AskError::NotPermitted { who, socket: here() },
        _ => AskError::Nobody { who, socket: here(), error },
    })?;
    match exchange(&mut stream, question) {
        Ok(Told::Answer(answer)) => Ok(answer),
        Ok(Told::Refused(why)) if why == ENDING => Err(AskError::Ended(who)),
        Ok(Told::Refused(why)) => Err(AskError::Refused(why)),
        Err(error) => Err(match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
                AskError::Ended(who)
            }
            _ => AskError::NoAnswer { who, socket: here(), error },
        }),
    }
}

/// The same sentence for every daemon. The socket is named only where it is more than absent: an unsafe directory, say.
fn no_daemon(who: &str, socket: &Path, error: &io::Error) -> String {
    let sentence =
        format!("no {who} daemon runs in this network namespace; start it with `{who}`, or name its --run-dir");
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => sentence,
        _ => format!("{sentence} ({}: {error})", socket.display()),
    }
}

fn exchange<A: DeserializeOwned>(
    stream: &mut std::os::unix::net::UnixStream,
    question: &impl Serialize,
) -> io::Result<Told<A>> {
    stream.set_read_timeout(Some(2 * PATIENCE))?;
    stream.set_write_timeout(Some(2 * PATIENCE))?;
    let mut text = serde_json::to_vec(question)?;
    text.push(b'\n');
    stream.write_all(&text)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    if !answer.ends_with(b"\n") {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(serde_json::from_slice(&answer)?)
}

/// The directory of a socket.
fn directory(socket: &Path) -> &Path {
    socket.parent().filter(|path| !path.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
