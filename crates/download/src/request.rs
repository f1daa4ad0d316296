//! Input of a run (batch, files, settings), the observers of its progress, and the errors that it can end with.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use marline_core::energy::Model;
use marline_core::fetch::{Config, ConnErrorKind, Failure};

use marline_core::units::{Bitrate, DataSize};
use marline_net::checksum::Checksum;
use marline_net::egress::EgressPolicy;
use marline_net::http::TrustRootsError;
use serde::Serialize;
use url::Url;

use super::{BatchProgress, ConnectOptions, Links, PieceDigests, Progress, Report};
use crate::store::StoreError;

/// Settings that all downloads of a command share.
#[derive(Clone)]
pub struct Settings {
    /// Selection of the links to use.
    pub links: Links,
    /// Configuration of the machine. Mirrors and the state of an earlier run are filled in for each file.
    pub config: Config,
    /// Credentials for servers; never printed.
    pub credentials: Credentials,
    /// PEM file with the only certificate authorities to trust; none: those of the system.
    pub ca_file: Option<PathBuf>,
    /// Maximum rate of all links together; none: unlimited. The limit of a single link is part of its profile.
    pub rate_limit: Option<Bitrate>,
    /// How energy is measured.
    pub energy: EnergyOptions,
    /// Whether to request MPTCP, and to leave the use of several links to it where the server supports it.
    pub mptcp: bool,
    /// Proxies and IP version.
    pub connect_options: ConnectOptions,
    /// Files from which cookies are loaded, and to which they are saved.
    pub cookie_files: CookieFiles,
    /// Whether a file gets the modification time that its server reports.
    pub use_remote_time: bool,
}

/// Credentials for servers, given by the user.
#[derive(Clone, Default)]
pub struct Credentials {
    /// Additional header fields, as name and value. They are sent only to the origins of the user's URLs, and
    /// Cookie and Authorization only to the origin of the first URL.
    pub headers: Vec<(String, String)>,
    /// User and password for Basic authentication (RFC 7617).
    pub user: Option<(String, String)>,
    /// The URL to whose origin login, cookies and authorization belong: the first one; none: they are not sent.
    pub credential_origin: Option<Url>,
    /// Logins for hosts (netrc), for URLs and redirects without another login.
    pub host_logins: Logins,
    /// Whether all credentials are sent to every host that redirects lead to.
    pub send_to_all_hosts: bool,
}

/// Cookie files in Netscape format. Without any, cookies are kept in memory for the run.
#[derive(Clone, Debug, Default)]
pub struct CookieFiles {
    /// Files that are read before the first request.
    pub load: Vec<PathBuf>,
    /// File that is written after all downloads have ended, whether they succeeded or not.
    pub save: Option<PathBuf>,
}

/// Logins from a netrc file.
#[derive(Clone, Default)]
pub struct Logins {
    /// User and password, by lower-case host name.
    pub hosts: BTreeMap<String, (String, String)>,
    /// User and password for hosts that the user names and the file does not list.
    pub default: Option<(String, String)>,
}

/// One file to download.
#[derive(Clone)]
pub struct FileRequest {
    /// URLs of the file; the first one identifies it. At least one, all `http` or `https`.
    pub mirrors: Vec<MirrorUrl>,
    /// Destination of the bytes.
    pub target: Target,
    /// Expected digests and size of the file.
    pub digests: Digests,
    /// File for the decision log; none: no log.
    pub decision_log: Option<PathBuf>,
}

/// One URL of a file.
#[derive(Clone)]
pub struct MirrorUrl {
    /// The URL without login.
    pub url: Url,
    /// The login that the URL contained; it is sent only to the URL's origin.
    pub login: Option<(String, String)>,
    /// Whether a server or a Metalink file named the URL, not the user. Such a URL gets none of the user's
    /// credentials.
    pub is_untrusted: bool,
    /// Which addresses it may be connected to.
    pub egress: EgressPolicy,
}

impl MirrorUrl {
    /// A URL that the user named, without login.
    pub fn from_user(url: Url) -> Self {
        Self { url, login: None, is_untrusted: false, egress: EgressPolicy::user() }
    }
}

/// Expected digests and size of a file, as far as they are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Digests {
    /// Digest of the full file.
    pub full_file: Option<Checksum>,
    /// Digests of its pieces.
    pub pieces: Option<PieceDigests>,
    /// Size in bytes.
    pub size: Option<DataSize>,
}

/// A list of files to download in one run.
#[derive(Clone)]
pub struct Batch {
    /// Settings that the downloads share.
    pub settings: Settings,
    /// The files, in the order of the list; at least one.
    pub files: Vec<FileRequest>,
    /// Maximum number of simultaneous downloads.
    pub parallel: usize,
    /// Whether files that an earlier run has completed are skipped if they have not changed.
    pub skip_completed: bool,
    /// Time limit of the whole batch; none: unlimited.
    pub max_time: Option<Duration>,
}

/// How the energy of downloads is measured; by default not at all.
#[derive(Clone, Debug, Default)]
pub struct EnergyOptions {
    /// Model of the device whose radios the links represent.
    pub model: Option<Model>,
    /// Directory of the kernel's power supplies, if this host's battery is to be read as well.
    pub power_supply_dir: Option<PathBuf>,
}

/// Leaves out everything that is or may be secret.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("Credentials")
            .field("headers", &names)
            .field("user", &self.user.as_ref().map(|_| "MASKED"))
            .field("home", &self.credential_origin.as_ref().map(Url::as_str))
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for FileRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let urls: Vec<&str> = self.mirrors.iter().map(|mirror| mirror.url.as_str()).collect();
        f.debug_struct("File").field("urls", &urls).field("target", &self.target).finish_non_exhaustive()
    }
}

/// Destination of the bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A file that the user named. An existing file is replaced.
    File(PathBuf),
    /// A file that a list or a Metalink file names. An existing file is kept: a number is added to the name of the
    /// new one.
    ListedFile(PathBuf),
    /// A file in this directory, named by Content-Disposition or the URL.
    Directory(PathBuf),
    /// Standard output, in order.
    Stdout,
}

/// Receives the progress of a batch.
pub trait BatchObserver {
    /// Reports the progress, about ten times a second.
    fn on_progress(&mut self, overview: &BatchProgress);
    /// Shows a message: one line, without a line end. `file` is the name of the file that it refers to.
    fn on_message(&mut self, file: Option<&str>, text: &str);
    /// A file is complete, or has failed.
    fn on_file_ended(&mut self, ended: FileResult);
}

/// How a file of a batch ended.
#[derive(Debug)]
pub struct FileResult {
    /// Index in the list of the batch.
    pub index: usize,
    /// The first URL of the file.
    pub url: String,
    /// Report, or the error.
    pub result: Result<Report, DownloadError>,
}

/// Receives the progress of one download.
pub trait DownloadObserver {
    /// Reports the progress, about ten times a second.
    fn on_progress(&mut self, progress: &Progress);
    /// Shows a message: one line, without a line end.
    fn on_message(&mut self, text: &str);
}

/// Why a download failed.
#[derive(Debug, thiserror::Error)]
pub enum DownloadError {
    /// The machine gave up: the server or the links do not deliver the file.
    #[error("{url}: {failure}{}", hint(failure))]
    Failed {
        /// The first URL of the file.
        url: String,
        /// The cause, as the machine reports it.
        failure: Failure,
    },
    /// A file request without a URL.
    #[error("a file of the batch has no URL")]
    NoUrl,
    /// No link can be used.
    #[error(transparent)]
    Links(#[from] marline_net::links::LinksError),
    /// The bytes cannot be stored.
    #[error(transparent)]
    Store(#[from] crate::store::StoreError),
    /// The certificate authorities cannot be read.
    #[error(transparent)]
    Trust(#[from] marline_net::http::TrustRootsError),
    /// The name servers of all links deny that the host name exists.
    #[error("{url}: {why}")]
    UnknownHost {
        /// The first URL of the file.
        url: String,
        /// The name, and the server that denies it.
        why: String,
    },
    /// The server sent an HTML page although another kind of file was expected.
    #[error(
        "{url}: the server sent an HTML page, not a {wanted}; open it in a browser, or name the file .html to keep the page"
    )]
    HtmlPage {
        /// The first URL of the file.
        url: String,
        /// The extension of the URL.
        wanted: String,
    },
    /// A cookie file cannot be read or written.
    #[error("{path}: cookies cannot be {done}: {error}")]
    Cookies {
        /// Path of the cookie file.
        path: PathBuf,
        /// The error of the system.
        error: std::io::Error,
        /// `loaded` or `saved`.
        done: &'static str,
    },
    /// The decision log cannot be written.
    #[error("{path}: the decision log cannot be written: {error}")]
    DecisionLog {
        /// Path of the log.
        path: PathBuf,
        /// The error of the system.
        error: std::io::Error,
    },
    /// The decision log would overwrite the download itself.
    #[error("{path}: the decision log would overwrite the download; choose another file with --trace")]
    DecisionLogIsTarget {
        /// Path of the log.
        path: PathBuf,
    },
    /// The time limit has expired.
    #[error("{url}: not complete within {}s; {}", limit.as_secs_f64(), next(*kept))]
    TimeLimit {
        /// The first URL of the file.
        url: String,
        /// The limit.
        limit: Duration,
        /// Whether the next run can resume from the received bytes.
        kept: bool,
    },
    /// The user has stopped the run.
    #[error("stopped; {}", next(*kept))]
    Interrupted {
        /// Whether the next run can resume from the received bytes.
        kept: bool,
    },
}

/// A remedy for failures whose text contains none.
fn hint(failure: &Failure) -> &'static str {
    match failure {
        Failure::BadStatus { status: 401 } => "; a login is required: use --user, or correct the given one",
        Failure::HtmlPage => "; open the URL in a browser: a login may be needed",
        Failure::RedirectLoop => "; --max-redirs N allows more redirects in a row",
        _ => "",
    }
}

/// What the same command would do next time.
fn next(kept: bool) -> &'static str {
    if kept { "run the same command again to resume" } else { "the same command starts from zero" }
}

impl DownloadError {
    /// Records whether the next run can resume, which is known only after the store was suspended.
    pub(super) fn with_resumable(mut self, now: bool) -> Self {
        if let Self::TimeLimit { kept, .. } | Self::Interrupted { kept } = &mut self {
            *kept = now;
        }
        self
    }

    /// Category of the failure.
    pub fn kind(&self) -> DownloadErrorKind {
        match self {
            Self::Trust(TrustRootsError::File { .. })
            | Self::DecisionLogIsTarget { .. }
            | Self::NoUrl
            | Self::Cookies { done: "loaded", .. } => DownloadErrorKind::Usage,
            Self::Cookies { .. } => DownloadErrorKind::Disk,
            Self::Links(_) => DownloadErrorKind::NoLink,
            Self::Failed { failure, .. } => failure_kind(failure),
            Self::Store(StoreError::ChecksumMismatch { .. }) => DownloadErrorKind::Verification,
            Self::Store(StoreError::ReaderGone { .. } | StoreError::ChangedAfterDelivery { .. }) => {
                DownloadErrorKind::Other
            }
            Self::Store(_) | Self::DecisionLog { .. } => DownloadErrorKind::Disk,
            Self::Trust(_) | Self::UnknownHost { .. } => DownloadErrorKind::Network,
            Self::Interrupted { .. } => DownloadErrorKind::Interrupted,
            Self::TimeLimit { .. } => DownloadErrorKind::TimeLimit,
            Self::HtmlPage { .. } => DownloadErrorKind::HtmlPage,
        }
    }

    /// Exit code of the process, see [`DownloadErrorKind::exit_code`].
    pub fn exit_code(&self) -> u8 {
        self.kind().exit_code()
    }
}

fn failure_kind(failure: &Failure) -> DownloadErrorKind {
    match failure {
        Failure::NoLink { .. } | Failure::NoResponse => DownloadErrorKind::NoLink,
        Failure::BadStatus { status: 400..=499 } => DownloadErrorKind::Http4xx,
        Failure::BadStatus { status: 500..=599 } => DownloadErrorKind::Http5xx,
        Failure::DigestMismatch => DownloadErrorKind::Verification,
        Failure::HtmlPage => DownloadErrorKind::HtmlPage,
        Failure::RetriesExhausted { error: trouble } if trouble.kind != ConnErrorKind::Protocol => {
            DownloadErrorKind::Network
        }
        Failure::BadStatus { .. }
        | Failure::RedirectLoop
        | Failure::ProtocolViolation { .. }
        | Failure::RetriesExhausted { .. } => DownloadErrorKind::Protocol,
        Failure::BudgetExhausted => DownloadErrorKind::Other,
    }
}

/// Categories of failures, as used by `--json` and the exit code. They are in ascending order of severity: the exit
/// code of a batch is that of its most severe failure.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DownloadErrorKind {
    /// None of the other categories: the data budgets are used up, or the reader has gone away.
    Other,
    /// The time limit (`--max-time`) has expired.
    TimeLimit,
    /// The server answers with a status of 500 to 599, after retries as well.
    Http5xx,
    /// The server answers with a status of 400 to 499.
    Http4xx,
    /// The server violates HTTP, or its redirects do not end.
    Protocol,
    /// The server sends an HTML page instead of the file.
    HtmlPage,
    /// The server cannot be reached: unknown host, connection refused, TLS failure.
    Network,
    /// No link of this host can be used, or none delivers data.
    NoLink,
    /// The bytes do not match their digest.
    Verification,
    /// The bytes cannot be stored, or the log or cookies cannot be written.
    Disk,
    /// A file or option that the user gave cannot be used.
    Usage,
    /// The user has stopped the run.
    Interrupted,
}

impl DownloadErrorKind {
    /// Exit code of the process: that of `sysexits.h` where one fits.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Other | Self::TimeLimit => 1,
            Self::Usage => 64,
            Self::Verification => 65,
            Self::Http4xx => 66,
            Self::HtmlPage => 67,
            Self::Network => 68,
            Self::NoLink => 69,
            Self::Disk => 74,
            Self::Http5xx => 75,
            Self::Protocol => 76,
            Self::Interrupted => 130,
        }
    }
}

#[cfg(test)]
mod tests {
    use marline_core::fetch::ConnError;

    use super::*;

    #[test]
    fn credentials_are_not_printed() {
        let credentials = Credentials {
            headers: vec![("X-Token".into(), "secret".into())],
            user: Some(("me".into(), "secret".into())),
            credential_origin: None,
            host_logins: Logins::default(),
            send_to_all_hosts: false,
        };
        let login = Some(("me".to_owned(), "secret".to_owned()));
        let mirror = MirrorUrl { login, ..MirrorUrl::from_user("http://h/f".parse().unwrap()) };
        let file = FileRequest {
            mirrors: vec![mirror],
            target: Target::Stdout,
            digests: Digests::default(),
            decision_log: None,
        };
        let text = format!("{credentials:?} {file:?}");
        assert!(text.contains("MASKED") && text.contains("X-Token") && !text.contains("secret"), "{text}");
    }

    #[test]
    fn failures_have_the_exit_code_of_their_category() {
        let failed = |failure| DownloadError::Failed { url: String::new(), failure };
        let conn_error = |kind| ConnError { kind, text: String::new() };
        for (failure, code) in [
            (Failure::BadStatus { status: 401 }, 66),
            (Failure::BadStatus { status: 404 }, 66),
            (Failure::BadStatus { status: 429 }, 66),
            (Failure::BadStatus { status: 503 }, 75),
            (Failure::BadStatus { status: 302 }, 76),
            (Failure::RetriesExhausted { error: conn_error(ConnErrorKind::Refused) }, 68),
            (Failure::RetriesExhausted { error: conn_error(ConnErrorKind::Tls) }, 68),
            (Failure::RetriesExhausted { error: conn_error(ConnErrorKind::Protocol) }, 76),
            (Failure::NoLink { error: None }, 69),
            (Failure::DigestMismatch, 65),
            (Failure::BudgetExhausted, 1),
        ] {
            assert_eq!(failed(failure.clone()).exit_code(), code, "{failure:?}");
        }
    }
}
