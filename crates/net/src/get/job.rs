//! What a download needs to know before it starts, how it is watched, and how it can fail.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use marline_core::energy::Model;
use marline_core::fetch::{Config, Failure};
use marline_core::units::Bitrate;
use url::Url;

use super::{Links, Progress};
use crate::store::Checksum;

/// Everything a download needs. The command line makes one; so can a program.
#[derive(Clone)]
pub struct Job {
    /// Where the file can be had; all of them carry the same file. At least one, all `http` or `https`.
    pub urls: Vec<Url>,
    /// Which links may be used.
    pub links: Links,
    /// Where the bytes go.
    pub target: Target,
    /// How the machine decides. `origins` and `resume` are filled in by the run.
    pub config: Config,
    /// Further header fields, as name and value.
    pub headers: Vec<(String, String)>,
    /// User and password for Basic authentication (RFC 7617); sent to the first URL's host only, never printed.
    pub user: Option<(String, String)>,
    /// PEM file with the only roots to trust; none: the system's.
    pub ca_file: Option<PathBuf>,
    /// What the whole file must hash to.
    pub checksum: Option<Checksum>,
    /// The most that all links together may carry a second; each link's own limit is in its choice.
    pub limit: Option<Bitrate>,
    /// The longest that the download may take.
    pub max_time: Option<Duration>,
    /// Where to write the log of every input and decision.
    pub trace: Option<PathBuf>,
    /// What its energy is measured by.
    pub energy: Accounting,
    /// Ask for MPTCP, and leave it to that where the server speaks it.
    pub mptcp: bool,
}

/// What the energy of a download is measured by; nothing at all by default.
#[derive(Clone, Debug, Default)]
pub struct Accounting {
    /// The device whose radios the links are taken for.
    pub model: Option<Model>,
    /// The folder of the kernel's power supplies, if this machine's own battery is to be read as well.
    pub supplies: Option<PathBuf>,
}

/// What is secret, or may be, stays out.
impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let urls: Vec<&str> = self.urls.iter().map(Url::as_str).collect();
        let names: Vec<&str> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("Job")
            .field("urls", &urls)
            .field("links", &self.links)
            .field("target", &self.target)
            .field("config", &self.config)
            .field("headers", &names)
            .field("user", &self.user.as_ref().map(|_| "MASKED"))
            .finish_non_exhaustive()
    }
}

/// Where the bytes go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A file.
    File(PathBuf),
    /// A file in this directory, named by Content-Disposition or the URL.
    Directory(PathBuf),
    /// Standard output, in order.
    Stdout,
}

/// Who looks on while a download runs.
pub trait Watcher {
    /// Called about ten times a second.
    fn progress(&mut self, progress: &Progress);
    /// Something worth one line, without a line end.
    fn line(&mut self, text: &str);
}

/// Why a download did not end with the file.
#[derive(Debug, thiserror::Error)]
pub enum GetError {
    /// The server or the links do not give it.
    #[error("{url}: {failure}{}", hint(failure))]
    Failed {
        /// The URL.
        url: String,
        /// Why.
        failure: Failure,
    },
    /// No link can be used.
    #[error(transparent)]
    Links(#[from] crate::links::LinksError),
    /// The bytes cannot be kept.
    #[error(transparent)]
    Store(#[from] crate::store::StoreError),
    /// The roots of trust cannot be read.
    #[error(transparent)]
    Trust(#[from] crate::http::TrustError),
    /// Every link's name servers say that there is no such name.
    #[error("{url}: {why}")]
    Name {
        /// The URL.
        url: String,
        /// Who says so.
        why: String,
    },
    /// The log cannot be written.
    #[error("{path}: {error}: the log of decisions cannot be written")]
    Trace {
        /// Its path.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// The log would be written into the download itself.
    #[error("{path}: the log of decisions would overwrite the download; name another file with --trace")]
    TraceIsTarget {
        /// Its path.
        path: PathBuf,
    },
    /// The time limit is over.
    #[error("{url}: not complete within {}s; {}", limit.as_secs_f64(), next(*kept))]
    TimeUp {
        /// The URL.
        url: String,
        /// The limit.
        limit: Duration,
        /// Whether the next run can go on from what has arrived.
        kept: bool,
    },
    /// The user asked to stop.
    #[error("stopped; {}", next(*kept))]
    Interrupted {
        /// Whether the next run can go on from what has arrived.
        kept: bool,
    },
}

/// What can be done about a failure, where that is not said by it.
fn hint(failure: &Failure) -> &'static str {
    match failure {
        Failure::Status { status: 401 } => "; it wants a login: --user, or the one that was given is wrong",
        _ => "",
    }
}

/// What the same command would do.
fn next(kept: bool) -> &'static str {
    if kept { "run the same command again to go on" } else { "the same command starts from zero" }
}

impl GetError {
    /// The same error, now that it is known whether the next run can go on from what has arrived.
    pub(super) fn with_kept(mut self, now: bool) -> Self {
        if let Self::TimeUp { kept, .. } | Self::Interrupted { kept } = &mut self {
            *kept = now;
        }
        self
    }

    /// The process's exit code: 1 failed, 64 a file that the user named cannot be used, 69 no network, 130 stopped by
    /// the user.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Trust(crate::http::TrustError::File { .. }) | Self::TraceIsTarget { .. } => 64,
            Self::Links(_) | Self::Failed { failure: Failure::NoLink { .. } | Failure::NoAnswer, .. } => 69,
            Self::Interrupted { .. } => 130,
            _ => 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_prints_no_secret() {
        let job = Job {
            urls: vec!["http://h/f".parse().unwrap()],
            links: Links::Named(Vec::new()),
            target: Target::Stdout,
            config: Config::default(),
            headers: vec![("X-Token".into(), "secret".into())],
            user: Some(("me".into(), "secret".into())),
            ca_file: None,
            checksum: None,
            limit: None,
            max_time: None,
            trace: None,
            energy: Accounting::default(),
            mptcp: false,
        };
        let text = format!("{job:?}");
        assert!(text.contains("MASKED") && text.contains("X-Token") && !text.contains("secret"), "{text}");
    }
}
