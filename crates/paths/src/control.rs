//! The daemon's ear: a unix socket at which `status`, `watch` and `explain` ask.
//!
//! In: one [`Question`] for each connection. Out: one [`Answer`]. How they come and go, and who may ask, is
//! [`marline_net::control_socket`]'s.
//!
//! 1. Nobody makes the driver wait.
//! 2. Who listens holds the claim ([`super::ground::Claim`]): a socket that is replaced is one that a crash has left.

use std::io;
use std::path::Path;
use std::sync::Arc;

use marline_core::paths::{ConnId, Paths};
use marline_net::control_socket::{ControlServer, SHUTTING_DOWN};
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};

use super::status::{About, Explained, Status};
use super::{Ask, Shared, Snapshot};

pub use super::ground::socket;
pub use marline_net::control_socket::ControlError;

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
}

/// Whose this is.
pub const WHO: &str = "marline paths";

/// The listening end. It lives in a tokio runtime; the socket is removed with it.
#[derive(Debug)]
pub struct Control(#[expect(dead_code, reason = "it is held, not read")] ControlServer);

impl Control {
    /// Listens in the run directory, in place of whatever was left there, and asks the driver through `driver`.
    ///
    /// # Errors
    /// When the directory cannot be written.
    pub fn listen(run_dir: &Path, about: About, policy: Shared, driver: mpsc::Sender<Ask>) -> io::Result<Self> {
        let about = Arc::new(about);
        let ear = ControlServer::listen(&socket(run_dir), move |question| {
            let (about, policy, driver) = (Arc::clone(&about), policy.clone(), driver.clone());
            async move {
                // A driver that has gone answers nothing.
                let told = answer(question, &about, &policy, &driver).await;
                told.unwrap_or_else(|| Err(SHUTTING_DOWN.to_owned()))
            }
        })?;
        Ok(Self(ear))
    }
}

/// None: the driver is gone.
async fn answer(
    question: Question,
    about: &About,
    policy: &Shared,
    driver: &mpsc::Sender<Ask>,
) -> Option<Result<Answer, String>> {
    Some(Ok(match question {
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
                None => {
                    return Some(Err(format!(
                        "there is no connection {token:08x}, and none that ended within the last minute; `marline paths status` lists those that are known"
                    )));
                }
            }
        }
    }))
}

async fn snapshot(driver: &mpsc::Sender<Ask>) -> Option<Snapshot> {
    let (reply, replied) = oneshot::channel();
    driver.send(Ask::Snapshot(reply)).await.ok()?;
    replied.await.ok()
}

/// Asks the daemon of this run directory. Blocks, for four seconds at most between two bytes.
///
/// # Errors
/// Nobody is there, he does not answer, or he refuses.
pub fn ask(run_dir: &Path, question: &Question) -> Result<Answer, ControlError> {
    marline_net::control_socket::query_daemon(WHO, &socket(run_dir), question)
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

    fn about() -> About {
        About {
            policy: Policy::Emptcp,
            profile: Goal::Energy,
            energy_model: None,
            notes: Vec::new(),
            forwarder: None,
        }
    }

    /// One that knows no links and no radios.
    fn policy() -> Shared {
        let model = Model::new("none", BTreeMap::new(), ConcurrentDraw::default(), Power::ZERO).unwrap();
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
            let _silent: Vec<_> = (0..MAX_CONNS + 1).map(connect).collect();
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
            assert!(refusal.is_empty() || refusal.contains("the request cannot be parsed"), "{refusal}");
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
            assert!(
                Control::listen(directory.path(), about(), policy(), mpsc::channel(1).0).is_err(),
                "one listens"
            );
            std::fs::remove_file(socket(directory.path())).unwrap();
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
        let sentence = "no marline paths daemon runs in this network namespace; start it with `marline paths`, or name its \
                        --run-dir";
        assert_eq!(error, sentence);
        // A socket that a crash has left.
        drop(std::os::unix::net::UnixListener::bind(socket(directory.path())).unwrap());
        assert_eq!(ask(directory.path(), &Question::Status { at_most: None }).unwrap_err().to_string(), sentence);
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
        assert!(matches!(asked(), ControlError::NotRunning { .. }), "{}", asked());
        drop(std::os::unix::net::UnixListener::bind(socket(&run_dir)).unwrap());
        assert!(matches!(asked(), ControlError::NotPermitted { .. }), "{}", asked());
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
