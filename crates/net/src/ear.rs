//! A daemon's ear: a unix socket in its run directory at which its own user asks.
//!
//! In: one JSON value for each connection, at most a kibibyte, ended by a line end or by the end of the stream. Out: one JSON
//! value, and the connection is closed.
//!
//! 1. Only root and the daemon's own user may ask: the socket is for its owner alone, and the asker's credentials are looked
//!    at as well, because between `bind` and `chmod` there is a moment. The directory is one that nobody else can write in.
//! 2. Whoever is slow loses his connection after two seconds.
//! 3. A socket at which nobody listens any more is replaced; a second daemon of the same name is refused.

use std::convert::Infallible;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

use crate::paths::ground::Directory;

/// chosen: every question there is fits ten times.
const LONGEST: u64 = 1024;
/// chosen: a program on the same machine that needs longer has stopped.
const PATIENCE: Duration = Duration::from_secs(2);
/// chosen: out of descriptors, those that are open may close.
const BREATH: Duration = Duration::from_millis(100);

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Said<A> {
    Answer(A),
    Refused(String),
}

/// The listening end. It lives in a tokio runtime; the socket is removed with it.
#[derive(Debug)]
pub struct Ear {
    listener: UnixListener,
    path: PathBuf,
    /// Which file that is: another run may have put its own in its place.
    file: (u64, u64),
}

impl Ear {
    /// Listens at `NAME.sock` in the run directory, which is made if it is not there.
    ///
    /// # Errors
    /// Another one listens there, or the directory is not fit.
    pub fn open(run_dir: &Path, name: &str) -> io::Result<Self> {
        Directory::make(run_dir)?;
        let path = socket(run_dir, name);
        if std::os::unix::net::UnixStream::connect(&path).is_ok() {
            return Err(io::Error::new(ErrorKind::AddrInUse, format!("another one listens at {}", path.display())));
        }
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&path)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
        let file = identity(&path)?;
        Ok(Self { listener, path, file })
    }

    /// Answers until dropped.
    pub async fn attend<Q: DeserializeOwned, A: Serialize>(&self, mut answer: impl FnMut(Q) -> A) -> Infallible {
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    if let Ok(Err(error)) = tokio::time::timeout(PATIENCE, serve(stream, &mut answer)).await {
                        tracing::debug!(%error, "a question on the control socket failed");
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "the control socket does not accept");
                    tokio::time::sleep(BREATH).await;
                }
            }
        }
    }
}

impl Drop for Ear {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|file| file == self.file) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Where a daemon of this name listens.
pub fn socket(run_dir: &Path, name: &str) -> PathBuf {
    run_dir.join(format!("{name}.sock"))
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let file = std::fs::symlink_metadata(path)?;
    Ok((file.dev(), file.ino()))
}

async fn serve<Q: DeserializeOwned, A: Serialize>(
    mut stream: UnixStream,
    answer: &mut impl FnMut(Q) -> A,
) -> io::Result<()> {
    let user = stream.peer_cred()?.uid();
    let said = if user == 0 || user == rustix::process::geteuid().as_raw() {
        let mut text = Vec::new();
        let mut limited = (&mut stream).take(LONGEST);
        while !text.contains(&b'\n') && limited.read_buf(&mut text).await? > 0 {}
        let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
        match serde_json::from_slice(line) {
            Ok(question) => Said::Answer(answer(question)),
            Err(error) => Said::Refused(format!("the question is not understood: {error}")),
        }
    } else {
        Said::Refused("only root and the daemon's own user may ask".to_owned())
    };
    let mut text = serde_json::to_vec(&said)?;
    text.push(b'\n');
    stream.write_all(&text).await?;
    stream.shutdown().await
}

/// Why a daemon did not answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// Nobody listens.
    #[error("no `marline {name}` runs here ({}: {error}); start one, or name its --run-dir", socket.display())]
    Nobody {
        /// Who was asked.
        name: String,
        /// Where it would be.
        socket: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// Somebody listens, and this user may not ask.
    #[error("{}: not permitted: ask as root, or as the user whom `marline {name}` runs as", socket.display())]
    NotPermitted {
        /// Who was asked.
        name: String,
        /// Where it is.
        socket: PathBuf,
    },
    /// The answer did not come, or is none.
    #[error("{}: `marline {name}` does not answer: {error}", socket.display())]
    NoAnswer {
        /// Who was asked.
        name: String,
        /// Where it is.
        socket: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// It answered with a refusal.
    #[error("{0}")]
    Refused(String),
}

/// Asks the daemon of this name in this run directory. Blocks, for four seconds at most between two bytes.
///
/// # Errors
/// Nobody is there, he does not answer, or he refuses.
pub fn ask<A: DeserializeOwned>(run_dir: &Path, name: &str, question: &impl Serialize) -> Result<A, AskError> {
    let (path, name) = (socket(run_dir, name), name.to_owned());
    // In a directory of just anybody's there may be a socket of just anybody's.
    let connected = Directory::open(run_dir).and_then(|_| std::os::unix::net::UnixStream::connect(&path));
    let mut stream = match connected {
        Ok(stream) => stream,
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            return Err(AskError::NotPermitted { name, socket: path });
        }
        Err(error) => return Err(AskError::Nobody { name, socket: path, error }),
    };
    let mut exchange = || -> io::Result<Said<A>> {
        stream.set_read_timeout(Some(2 * PATIENCE))?;
        stream.set_write_timeout(Some(2 * PATIENCE))?;
        let mut text = serde_json::to_vec(question)?;
        text.push(b'\n');
        stream.write_all(&text)?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok(serde_json::from_slice(&answer)?)
    };
    match exchange() {
        Ok(Said::Answer(answer)) => Ok(answer),
        Ok(Said::Refused(why)) => Err(AskError::Refused(why)),
        Err(error) => Err(AskError::NoAnswer { name, socket: path, error }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_an_ear<T: Send + 'static>(work: impl FnOnce(&Path) -> T + Send + 'static) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let run_dir = directory.path().join("run");
        runtime.block_on(async move {
            let ear = Ear::open(&run_dir, "edge").unwrap();
            assert_eq!(Ear::open(&run_dir, "edge").unwrap_err().kind(), ErrorKind::AddrInUse);
            let mode = std::fs::metadata(socket(&run_dir, "edge")).unwrap().mode() & 0o777;
            assert_eq!(mode, 0o600);
            let asker = run_dir.clone();
            let working = tokio::task::spawn_blocking(move || work(&asker));
            let done = tokio::select! {
                never = ear.attend(|number: u32| number * 2) => match never {},
                done = working => done.unwrap(),
            };
            drop(ear);
            assert!(!socket(&run_dir, "edge").exists(), "the socket goes with the daemon");
            done
        })
    }

    #[test]
    fn a_question_is_answered_and_one_that_is_none_refused() {
        with_an_ear(|run_dir| {
            assert_eq!(ask::<u32>(run_dir, "edge", &21).unwrap(), 42);
            let refused = ask::<u32>(run_dir, "edge", &"forty-two").unwrap_err();
            assert!(refused.to_string().contains("not understood"), "{refused}");
            let nobody = ask::<u32>(run_dir, "relay", &1).unwrap_err();
            assert!(nobody.to_string().starts_with("no `marline relay` runs here"), "{nobody}");
        });
    }

    #[test]
    fn a_socket_that_a_crash_has_left_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        drop(std::os::unix::net::UnixListener::bind(socket(directory.path(), "edge")).unwrap());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { Ear::open(directory.path(), "edge").unwrap() });
    }
}
