//! What a download needs to know before it starts, how it is watched, and how it can fail.

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

/// What all downloads of a command have in common.
#[derive(Clone)]
pub struct Settings {
    /// Which links may be used.
    pub links: Links,
    /// How the machine decides. Sources and what an earlier run left are filled in for each file.
    pub config: Config,
    /// What the user gave for the servers; never printed.
    pub credentials: Credentials,
    /// PEM file with the only roots to trust; none: the system's.
    pub ca_file: Option<PathBuf>,
    /// The most that all links together may carry a second; each link's own limit is in its choice.
    pub rate_limit: Option<Bitrate>,
    /// What the energy is measured by.
    pub energy: EnergyOptions,
    /// Ask for MPTCP, and leave it to that where the server speaks it.
    pub mptcp: bool,
    /// How servers are reached.
    pub connect_options: ConnectOptions,
    /// Where cookies come from and go to.
    pub cookie_files: CookieFiles,
    /// Whether a file gets the time at which its server says that it was last modified.
    pub use_remote_time: bool,
}

/// What the user gave for servers.
#[derive(Clone, Default)]
pub struct Credentials {
    /// Further header fields, as name and value. They stay with the origins of the user's URLs, cookies and authorization
    /// with that of the first one.
    pub headers: Vec<(String, String)>,
    /// User and password for Basic authentication (RFC 7617).
    pub user: Option<(String, String)>,
    /// The URL for whose origin login, cookies and authorization were given: the first one; none: they are not sent.
    pub credential_origin: Option<Url>,
    /// Logins of hosts, for URLs and redirects that have no other.
    pub host_logins: Logins,
    /// Send all of it wherever redirects lead.
    pub send_to_all_hosts: bool,
}

/// Files of cookies, in Netscape's format. Without any, cookies are kept for the run alone.
#[derive(Clone, Debug, Default)]
pub struct CookieFiles {
    /// Read before the first request.
    pub load: Vec<PathBuf>,
    /// Written when all downloads are over, however they ended.
    pub save: Option<PathBuf>,
}

/// Logins that a netrc file has.
#[derive(Clone, Default)]
pub struct Logins {
    /// By the host's name in small letters: user and password.
    pub hosts: BTreeMap<String, (String, String)>,
    /// For hosts that the user names and the file does not.
    pub default: Option<(String, String)>,
}

/// One file.
#[derive(Clone)]
pub struct FileRequest {
    /// Where it can be had, the one that names it first. At least one, all `http` or `https`.
    pub mirrors: Vec<MirrorUrl>,
    /// Where the bytes go.
    pub target: Target,
    /// What its bytes must hash to.
    pub digests: Digests,
    /// Where to write the log of every input and decision.
    pub decision_log: Option<PathBuf>,
}

/// A URL of a file.
#[derive(Clone)]
pub struct MirrorUrl {
    /// Without a login.
    pub url: Url,
    /// The login that the URL carried; sent to its origin only.
    pub login: Option<(String, String)>,
    /// A server or a Metalink file named it, not the user: it gets nothing of what the user gave.
    pub is_untrusted: bool,
    /// What it may be connected to.
    pub egress: EgressPolicy,
}

impl MirrorUrl {
    /// A URL that the user named.
    pub fn from_user(url: Url) -> Self {
        Self { url, login: None, is_untrusted: false, egress: EgressPolicy::user() }
    }
}

/// What the bytes of a file must hash to, and how many there are, as far as that is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Digests {
    /// Of the whole file.
    pub full_file: Option<Checksum>,
    /// Of its pieces.
    pub pieces: Option<PieceDigests>,
    /// The size.
    pub size: Option<DataSize>,
}

/// A command's downloads. The command line makes one; so can a program.
#[derive(Clone)]
pub struct Batch {
    /// What all of them have in common.
    pub settings: Settings,
    /// The files, in their order; at least one.
    pub files: Vec<FileRequest>,
    /// How many are downloaded at a time.
    pub parallel: usize,
    /// Files that an earlier run has completed are not fetched again if they have not changed.
    pub skip_completed: bool,
    /// The longest that all of them may take together.
    pub max_time: Option<Duration>,
}

/// What the energy of a download is measured by; nothing at all by default.
#[derive(Clone, Debug, Default)]
pub struct EnergyOptions {
    /// The device whose radios the links are taken for.
    pub model: Option<Model>,
    /// The folder of the kernel's power supplies, if this machine's own battery is to be read as well.
    pub power_supply_dir: Option<PathBuf>,
}

/// What is secret, or may be, stays out.
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
        let urls: Vec<&str> = self.mirrors.iter().map(|source| source.url.as_str()).collect();
        f.debug_struct("File").field("urls", &urls).field("target", &self.target).finish_non_exhaustive()
    }
}

/// Where the bytes go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A file that the user named. It replaces a file of that name.
    File(PathBuf),
    /// A file that a list or a Metalink file names. It replaces no file: where there is one, a number is added to the name.
    ListedFile(PathBuf),
    /// A file in this directory, named by Content-Disposition or the URL.
    Directory(PathBuf),
    /// Standard output, in order.
    Stdout,
}

/// Who looks on while a batch runs.
pub trait BatchObserver {
    /// Called about ten times a second.
    fn on_progress(&mut self, overview: &BatchProgress);
    /// Something worth one line, without a line end. `file` is the name of the one that it is about.
    fn on_message(&mut self, file: Option<&str>, text: &str);
    /// A file is complete, or will not be.
    fn on_file_ended(&mut self, ended: FileResult);
}

/// How a file of a batch ended.
#[derive(Debug)]
pub struct FileResult {
    /// Its place in the list.
    pub index: usize,
    /// The URL that names it.
    pub url: String,
    /// How it went.
    pub result: Result<Report, DownloadError>,
}

/// Who looks on while a download runs.
pub trait DownloadObserver {
    /// Called about ten times a second.
    fn on_progress(&mut self, progress: &Progress);
    /// Something worth one line, without a line end.
    fn on_message(&mut self, text: &str);
}

/// Why a download did not end with the file.
#[derive(Debug, thiserror::Error)]
pub enum DownloadError {
    /// The server or the links do not give it.
    #[error("{url}: {failure}{}", hint(failure))]
    Failed {
        /// The URL.
        url: String,
        /// Why.
        failure: Failure,
    },
    /// There is nothing to ask.
    #[error("a file without a URL")]
    NoUrl,
    /// No link can be used.
    #[error(transparent)]
    Links(#[from] marline_net::links::LinksError),
    /// The bytes cannot be kept.
    #[error(transparent)]
    Store(#[from] crate::store::StoreError),
    /// The roots of trust cannot be read.
    #[error(transparent)]
    Trust(#[from] marline_net::http::TrustRootsError),
    /// Every link's name servers say that there is no such name.
    #[error("{url}: {why}")]
    UnknownHost {
        /// The URL.
        url: String,
        /// Who says so.
        why: String,
    },
    /// A page came where another kind of file was wanted.
    #[error(
        "{url}: the server sent an HTML page, not a {wanted}; open it in a browser, or name the file .html to keep the page"
    )]
    HtmlPage {
        /// The URL.
        url: String,
        /// The extension of the URL.
        wanted: String,
    },
    /// A file of cookies cannot be read or written.
    #[error("{path}: {error}: the cookies cannot be {done}")]
    Cookies {
        /// Its path.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
        /// `loaded` or `saved`.
        done: &'static str,
    },
    /// The log cannot be written.
    #[error("{path}: {error}: the log of decisions cannot be written")]
    DecisionLog {
        /// Its path.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// The log would be written into the download itself.
    #[error("{path}: the log of decisions would overwrite the download; name another file with --trace")]
    DecisionLogIsTarget {
        /// Its path.
        path: PathBuf,
    },
    /// The time limit is over.
    #[error("{url}: not complete within {}s; {}", limit.as_secs_f64(), next(*kept))]
    TimeLimit {
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
        Failure::BadStatus { status: 401 } => "; it wants a login: --user, or the one that was given is wrong",
        Failure::HtmlPage => "; open it in a browser, a login may be needed",
        Failure::RedirectLoop => "; --max-redirs N allows more redirects in a row",
        _ => "",
    }
}

/// What the same command would do.
fn next(kept: bool) -> &'static str {
    if kept { "run the same command again to go on" } else { "the same command starts from zero" }
}

impl DownloadError {
    /// The same error, now that it is known whether the next run can go on from what has arrived.
    pub(super) fn with_resumable(mut self, now: bool) -> Self {
        if let Self::TimeLimit { kept, .. } | Self::Interrupted { kept } = &mut self {
            *kept = now;
        }
        self
    }

    /// What sort of failure it is.
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

    /// The process's exit code, see [`Kind::exit_code`].
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

/// Sorts of failures, as `--json` names them and the exit code tells them apart. The order is that of a batch, whose exit
/// code is that of its worst file: the last one is the worst.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DownloadErrorKind {
    /// None of the others: budgets are spent, a reader has gone away.
    Other,
    /// `--max-time` is over.
    TimeLimit,
    /// The server answers with a status of 500 to 599, also when asked again.
    Http5xx,
    /// The server answers with a status of 400 to 499.
    Http4xx,
    /// The server does not speak HTTP as it should, or its redirects lead nowhere.
    Protocol,
    /// The server sends an HTML page instead of the file.
    HtmlPage,
    /// The server cannot be reached: no such name, refused, no TLS.
    Network,
    /// No link of this machine can be used, or nothing comes over any of them.
    NoLink,
    /// The bytes do not match their digest.
    Verification,
    /// The bytes cannot be stored.
    Disk,
    /// Something that the user named cannot be used.
    Usage,
    /// The user stopped it.
    Interrupted,
}

impl DownloadErrorKind {
    /// The process's exit code: those of `sysexits.h` where it has one.
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
    fn what_the_user_gave_is_not_printed() {
        let credentials = Credentials {
            headers: vec![("X-Token".into(), "secret".into())],
            user: Some(("me".into(), "secret".into())),
            credential_origin: None,
            host_logins: Logins::default(),
            send_to_all_hosts: false,
        };
        let login = Some(("me".to_owned(), "secret".to_owned()));
        let source = MirrorUrl { login, ..MirrorUrl::from_user("http://h/f".parse().unwrap()) };
        let file = FileRequest {
            mirrors: vec![source],
            target: Target::Stdout,
            digests: Digests::default(),
            decision_log: None,
        };
        let text = format!("{credentials:?} {file:?}");
        assert!(text.contains("MASKED") && text.contains("X-Token") && !text.contains("secret"), "{text}");
    }

    #[test]
    fn each_sort_of_failure_has_a_code_of_its_own() {
        let failed = |failure| DownloadError::Failed { url: String::new(), failure };
        let trouble = |kind| ConnError { kind, text: String::new() };
        for (failure, code) in [
            (Failure::BadStatus { status: 401 }, 66),
            (Failure::BadStatus { status: 404 }, 66),
            (Failure::BadStatus { status: 429 }, 66),
            (Failure::BadStatus { status: 503 }, 75),
            (Failure::BadStatus { status: 302 }, 76),
            (Failure::RetriesExhausted { error: trouble(ConnErrorKind::Refused) }, 68),
            (Failure::RetriesExhausted { error: trouble(ConnErrorKind::Tls) }, 68),
            (Failure::RetriesExhausted { error: trouble(ConnErrorKind::Protocol) }, 76),
            (Failure::NoLink { error: None }, 69),
            (Failure::DigestMismatch, 65),
            (Failure::BudgetExhausted, 1),
        ] {
            assert_eq!(failed(failure.clone()).exit_code(), code, "{failure:?}");
        }
    }
}
