//! Errors that a download can end with, their categories, and the exit codes of the process.

use std::path::PathBuf;
use std::time::Duration;

use marline_core::fetch::{ConnErrorKind, Failure};
use marline_net::http::TrustRootsError;
use serde::Serialize;

use crate::store::StoreError;

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
    /// None of the other categories: the data budgets are used up, the reader has gone away, or the file has changed after
    /// the reader got a part of it.
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
