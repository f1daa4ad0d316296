//! The daemon's ear: a unix socket at which `status`, `watch` and `explain` ask.
//!
//! In: one JSON request for each connection ([`Question`]), at most a kibibyte, ended by a line end or by the end of
//! the stream. Out: one JSON answer ([`Answer`]), and the connection is closed.
//!
//! 1. Only root and the daemon's own user may ask: the socket is for its owner alone, and the asker's credentials are
//!    looked at as well, because between `bind` and `chmod` there is a moment.
//! 2. Whoever is slow loses his connection after two seconds; nobody makes the driver wait. A few are heard at once, and
//!    the others wait in the kernel's queue.
//! 3. A socket that was left behind by a crash is replaced. Whether a daemon lives is not asked here: who listens holds
//!    the claim ([`super::ground::Claim`]).
//!
//! HTTP was not used: there is one question and one answer, and no browser is to reach this.

use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use marline_core::paths::{ConnId, Paths};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc, oneshot};

use super::ground::Directory;
use super::status::{About, Explained, Status};
use super::{Ask, Shared, Snapshot};

pub use super::ground::socket;

/// What can be asked.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "ask", deny_unknown_fields)]
pub enum Question {
    /// How things stand.
    Status {
        /// No more connections than this; none: all.
        #[serde(default)]
        at_most: Option<usize>,
    },
    /// What was decided on one connection.
    Explain {
        /// Its token.
        token: u32,
    },
}

/// What is answered.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// To [`Question::Status`].
    Status(Box<Status>),
    /// To [`Question::Explain`].
    Explained(Box<Explained>),
    /// Why not, one sentence.
    Refused(String),
}

/// chosen: every question there is fits ten times.
const LONGEST: u64 = 1024;
/// chosen: a program on the same machine that needs longer has stopped.
const PATIENCE: Duration = Duration::from_secs(2);

/// Of a daemon whose driver has gone.
const ENDING: &str = "the daemon is ending";

/// chosen: people and a monitor ask; more at once is a mistake in a script.
const AT_ONCE: usize = 16;

/// The listening end. It lives in a tokio runtime; the socket is removed with it.
#[derive(Debug)]
pub struct Control {
    accepting: tokio::task::JoinHandle<()>,
    path: PathBuf,
    /// Which file that is: another run may have put its own in its place.
    file: (u64, u64),
}

impl Control {
    /// Listens in the run directory, in place of whatever was left there, and asks the driver through `driver`.
    ///
    /// # Errors
    /// When the directory cannot be written.
    pub fn listen(run_dir: &Path, about: About, policy: Shared, driver: mpsc::Sender<Ask>) -> io::Result<Self> {
        Directory::open(run_dir)?;
        let path = socket(run_dir);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&path)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
        let accepting = tokio::spawn(accept(listener, Arc::new(about), policy, driver));
        let file = identity(&path)?;
        Ok(Self { accepting, path, file })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.accepting.abort();
        if identity(&self.path).is_ok_and(|file| file == self.file) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let file = std::fs::symlink_metadata(path)?;
    Ok((file.dev(), file.ino()))
}

async fn accept(listener: UnixListener, about: Arc<About>, policy: Shared, driver: mpsc::Sender<Ask>) {
    let room = Arc::new(Semaphore::new(AT_ONCE));
    while let Ok(place) = Arc::clone(&room).acquire_owned().await {
        match listener.accept().await {
            Ok((stream, _)) => {
                let (about, policy, driver) = (Arc::clone(&about), policy.clone(), driver.clone());
                tokio::spawn(async move {
                    let _place = place;
                    if let Ok(Err(error)) =
                        tokio::time::timeout(PATIENCE, serve(stream, &about, &policy, &driver)).await
                    {
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

async fn serve(
    mut stream: UnixStream,
    about: &About,
    policy: &Shared,
    driver: &mpsc::Sender<Ask>,
) -> io::Result<()> {
    let answer = if may_ask(&stream)? {
        match read(&mut stream).await? {
            Ok(question) => {
                let told = answer(question, about, policy, driver).await;
                told.unwrap_or_else(|| Answer::Refused(ENDING.to_owned()))
            }
            Err(why) => Answer::Refused(why),
        }
    } else {
        Answer::Refused("only root and the daemon's own user may ask".to_owned())
    };
    let mut text = serde_json::to_vec(&answer)?;
    text.push(b'\n');
    stream.write_all(&text).await?;
    stream.shutdown().await
}

/// None: the driver is gone.
async fn answer(question: Question, about: &About, policy: &Shared, driver: &mpsc::Sender<Ask>) -> Option<Answer> {
    Some(match question {
        Question::Status { at_most } => {
            let snapshot = snapshot(driver).await?;
            Answer::Status(Box::new(policy.look(|policy| Status::new(about, &snapshot, policy, at_most))))
        }
        Question::Explain { token } => {
            let (reply, replied) = oneshot::channel();
            driver.send(Ask::Explain(ConnId(token), reply)).await.ok()?;
            match replied.await.ok()? {
                Some((connection, decisions)) => {
                    let snapshot = snapshot(driver).await?;
                    let explain = |policy: &Paths| Explained::new(&connection, &decisions, &snapshot, policy);
                    Answer::Explained(Box::new(policy.look(explain)))
                }
                None => Answer::Refused(format!(
                    "there is no connection {token:08x}, and none that ended within the last minute; `marline paths status` lists those that are known"
                )),
            }
        }
    })
}

async fn snapshot(driver: &mpsc::Sender<Ask>) -> Option<Snapshot> {
    let (reply, replied) = oneshot::channel();
    driver.send(Ask::Snapshot(reply)).await.ok()?;
    replied.await.ok()
}

fn may_ask(stream: &UnixStream) -> io::Result<bool> {
    let user = stream.peer_cred()?.uid();
    Ok(user == 0 || user == rustix::process::geteuid().as_raw())
}

async fn read(stream: &mut UnixStream) -> io::Result<Result<Question, String>> {
    let mut text = Vec::new();
    let mut limited = stream.take(LONGEST);
    while !text.contains(&b'\n') && limited.read_buf(&mut text).await? > 0 {}
    let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
    Ok(serde_json::from_slice(line).map_err(|error| format!("the question is not understood: {error}")))
}

/// Why a daemon did not answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// Nobody listens.
    #[error("no `marline paths` runs here ({}: {error}); start one with `marline paths`, or name its --run-dir", socket.display())]
    Nobody {
        /// Where it would be.
        socket: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// Somebody listens, and this user may not ask.
    #[error("{}: not permitted: ask as root, or as the user whom `marline paths` runs as", socket.display())]
    NotPermitted {
        /// Where it is.
        socket: PathBuf,
    },
    /// It ended while it was asked.
    #[error("`marline paths` has ended")]
    Ended,
    /// The answer did not come, or is none.
    #[error("{}: the daemon does not answer: {error}", socket.display())]
    NoAnswer {
        /// Where it is.
        socket: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// It answered with a refusal.
    #[error("{0}")]
    Refused(String),
}

/// Asks the daemon of this run directory. Blocks, for four seconds at most between two bytes.
///
/// # Errors
/// Nobody is there, he does not answer, or he refuses.
pub fn ask(run_dir: &Path, question: &Question) -> Result<Answer, AskError> {
    let socket = socket(run_dir);
    // In a directory of just anybody's there may be a socket of just anybody's.
    let connected = Directory::open(run_dir).and_then(|_| std::os::unix::net::UnixStream::connect(&socket));
    // Another user's directory may be empty; one that cannot be looked into may not.
    let is_empty =
        || std::fs::symlink_metadata(&socket).is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    let mut stream = connected.map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied if !is_empty() => AskError::NotPermitted { socket: socket.clone() },
        _ => AskError::Nobody { socket: socket.clone(), error },
    })?;
    let exchange = |stream: &mut std::os::unix::net::UnixStream| -> io::Result<Answer> {
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
    };
    match exchange(&mut stream) {
        Ok(Answer::Refused(why)) if why == ENDING => Err(AskError::Ended),
        Ok(Answer::Refused(why)) => Err(AskError::Refused(why)),
        Ok(answer) => Ok(answer),
        Err(error) => Err(match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
                AskError::Ended
            }
            _ => AskError::NoAnswer { socket, error },
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use marline_core::energy::{Model, Together};
    use marline_core::paths::{Config, Policy, Profile};
    use marline_core::units::Power;

    use super::*;

    fn about() -> About {
        About {
            policy: Policy::Emptcp,
            profile: Profile::Energy,
            energy_model: None,
            notes: Vec::new(),
            forwarder: None,
        }
    }

    /// One that knows no links and no radios.
    fn policy() -> Shared {
        let model = Model::new("none", BTreeMap::new(), Together::default(), Power::ZERO).unwrap();
        Shared::new(Config::new(model, Vec::new()))
    }

    /// Runs the work beside a driver that knows no connection.
    fn with_a_control<T: Send + 'static>(work: impl FnOnce(&Path) -> T + Send + 'static) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let run_dir = directory.path().to_owned();
        runtime.block_on(async move {
            let (driver, mut asked) = mpsc::channel(1);
            let control = Control::listen(&run_dir, about(), policy(), driver).unwrap();
            let (tell, mut told) = oneshot::channel();
            let asker = run_dir.clone();
            std::thread::spawn(move || tell.send(work(&asker)));
            loop {
                tokio::select! {
                    ask = asked.recv() => match ask.unwrap() {
                        Ask::Snapshot(reply) => reply.send(Snapshot::default()).unwrap(),
                        Ask::Explain(_, reply) => reply.send(None).unwrap(),
                    },
                    result = &mut told => {
                        drop(control);
                        assert!(!socket(&run_dir).exists(), "the socket goes with the daemon");
                        return result.unwrap();
                    }
                }
            }
        })
    }

    #[test]
    fn a_question_gets_its_answer() {
        let (status, explained) = with_a_control(|run_dir| {
            let explain = ask(run_dir, &Question::Explain { token: 7 }).unwrap_err().to_string();
            (ask(run_dir, &Question::Status { at_most: Some(3) }).unwrap(), explain)
        });
        assert_eq!(
            status,
            Answer::Status(Box::new(policy().look(|policy| Status::new(
                &about(),
                &Snapshot::default(),
                policy,
                None
            ))))
        );
        assert!(explained.starts_with("there is no connection 00000007, "), "{explained}");
    }

    #[test]
    fn nonsense_and_silence_get_a_refusal_or_nothing_and_disturb_nobody() {
        let (refusals, then) = with_a_control(|run_dir| {
            // More than are heard at once: they lose their places before those who ask lose their patience.
            let connect = |_| std::os::unix::net::UnixStream::connect(socket(run_dir)).unwrap();
            let _silent: Vec<_> = (0..AT_ONCE + 1).map(connect).collect();
            let told = |bytes: &[u8]| {
                let mut stream = std::os::unix::net::UnixStream::connect(socket(run_dir)).unwrap();
                let _ = stream.write_all(bytes);
                let _ = stream.shutdown(std::net::Shutdown::Write);
                let mut answer = String::new();
                let _ = stream.read_to_string(&mut answer);
                answer
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
            let answers: Vec<String> = nonsense.iter().map(|bytes| told(bytes)).collect();
            (answers, ask(run_dir, &Question::Status { at_most: None }).is_ok())
        });
        for refusal in refusals {
            // A stream that was cut off while the asker still wrote may lose the answer.
            assert!(refusal.is_empty() || refusal.contains("the question is not understood"), "{refusal}");
        }
        assert!(then);
    }

    #[test]
    fn a_daemon_that_ends_while_it_is_asked_has_ended() {
        for answer in [&b""[..], b"{\"status\":{", b"{\"refused\":\"the daemon is ending\"}\n"] {
            let directory = tempfile::tempdir().unwrap();
            let listener = std::os::unix::net::UnixListener::bind(socket(directory.path())).unwrap();
            let daemon = std::thread::spawn(move || {
                let (mut asker, _) = listener.accept().unwrap();
                if !answer.is_empty() {
                    asker.read_exact(&mut [0; 8]).unwrap();
                    asker.write_all(answer).unwrap();
                }
            });
            let error = ask(directory.path(), &Question::Status { at_most: None }).unwrap_err();
            assert_eq!(error.to_string(), "`marline paths` has ended", "{answer:?}");
            daemon.join().unwrap();
        }
    }

    #[test]
    fn a_socket_that_another_run_has_put_in_its_place_stays() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let directory = tempfile::tempdir().unwrap();
        runtime.block_on(async {
            let listen = || Control::listen(directory.path(), about(), policy(), mpsc::channel(1).0).unwrap();
            let first = listen();
            let second = listen();
            drop(first);
            assert!(socket(directory.path()).exists());
            drop(second);
            assert!(!socket(directory.path()).exists());
        });
    }

    #[test]
    fn where_nobody_listens_the_line_says_what_to_do() {
        let directory = tempfile::tempdir().unwrap();
        let error = ask(directory.path(), &Question::Status { at_most: None }).unwrap_err().to_string();
        assert!(error.starts_with("no `marline paths` runs here ("), "{error}");
        // A socket that a crash has left.
        drop(std::os::unix::net::UnixListener::bind(socket(directory.path())).unwrap());
        let error = ask(directory.path(), &Question::Status { at_most: None }).unwrap_err().to_string();
        assert!(error.contains("Connection refused"), "{error}");
    }

    #[test]
    fn in_another_users_directory_asking_is_not_permitted_where_there_is_a_socket() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: only root can give directories away");
            return;
        }
        let above = tempfile::tempdir().unwrap();
        let run_dir = above.path().join("run");
        std::fs::create_dir(&run_dir).unwrap();
        // Neither is root's, so that even root does not trust it.
        for place in [above.path(), &run_dir] {
            std::os::unix::fs::chown(place, Some(65_534), None).unwrap();
        }
        let asked = || ask(&run_dir, &Question::Status { at_most: None }).unwrap_err();
        assert!(matches!(asked(), AskError::Nobody { .. }), "{}", asked());
        drop(std::os::unix::net::UnixListener::bind(socket(&run_dir)).unwrap());
        assert!(matches!(asked(), AskError::NotPermitted { .. }), "{}", asked());
    }

    #[test]
    fn the_socket_is_for_its_owner_and_replaces_one_that_was_left() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let directory = tempfile::tempdir().unwrap();
        drop(std::os::unix::net::UnixListener::bind(socket(directory.path())).unwrap());
        runtime.block_on(async {
            let _control = Control::listen(directory.path(), about(), policy(), mpsc::channel(1).0).unwrap();
            let mode = std::fs::metadata(socket(directory.path())).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        });
    }
}
