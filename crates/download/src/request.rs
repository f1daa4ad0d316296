//! Input of a run (batch, files, settings), and the observers of its progress.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use marline_core::energy::Model;
use marline_core::fetch::Config;
use marline_core::units::Bitrate;
use marline_net::egress::EgressPolicy;
use url::Url;

use super::Links;
use super::connect_options::ConnectOptions;
use super::digests::Digests;
use super::error::DownloadError;
use super::report::{BatchProgress, Progress, Report};

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

#[cfg(test)]
mod tests {
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
}
