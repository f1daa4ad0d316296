//! What can go wrong with an authority and its directory: whose fault it is, and what helps.

use std::io;
use std::path::PathBuf;

use marline_net::atomic_file::FileError;

/// An authority could not do it.
#[derive(Debug, thiserror::Error)]
pub enum CaError {
    /// A file or directory refuses.
    #[error("{}: {error}", path.display())]
    File {
        /// Which one.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// What is to be made is there already.
    #[error("{}: it exists already, and is not overwritten; {help}", path.display())]
    Exists {
        /// Which file.
        path: PathBuf,
        /// What helps.
        help: &'static str,
    },
    /// There is no authority.
    #[error("{0}: no authority here; `marline fleet ca init --dir {0}` makes one", dir.display())]
    Absent {
        /// Where it was looked for.
        dir: PathBuf,
    },
    /// Its key is not in its directory.
    #[error(
        "{}: it is missing, so this authority signs nothing here: put it back from a copy, or issue and revoke where the key is \
         kept (docs/fleet.md, \"The root key off-line\")",
        dir.join("ca.key").display()
    )]
    KeyMissing {
        /// Where the authority is.
        dir: PathBuf,
    },
    /// Making it was interrupted.
    #[error("{0}: making this authority was interrupted; `marline fleet ca init --dir {0}` finishes it", dir.display())]
    Incomplete {
        /// Where.
        dir: PathBuf,
    },
    /// The directory belongs to another user.
    #[error("{}: it belongs to another user ({owner}); run this command as that user: sudo -u '#{owner}' marline …", dir.display())]
    OtherOwner {
        /// The directory of the authority.
        dir: PathBuf,
        /// The numeric user id of its owner.
        owner: u32,
    },
    /// Others than the owner may do too much.
    #[error("{0}: others than its owner may {action} it (mode {mode:04o}): chmod {required_mode:o} {0}", path.display())]
    TooPermissive {
        /// Which file or directory.
        path: PathBuf,
        /// Read or write.
        action: &'static str,
        /// Its mode.
        mode: u32,
        /// The mode that it should have.
        required_mode: u32,
    },
    /// A file does not hold what it should.
    #[error("{}: {text}", path.display())]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// What is wrong, and what helps.
        text: String,
    },
    /// What was asked for is not possible.
    #[error("{0}")]
    Refused(String),
    /// What was sent to be signed is no good.
    #[error("the certificate request {0}")]
    Request(String),
    /// The library or the system refuses.
    #[error("{0}")]
    Library(String),
}

impl From<FileError> for CaError {
    fn from(FileError { path, error }: FileError) -> Self {
        Self::File { path, error }
    }
}

impl CaError {
    /// For [`Result::map_err`] after something was done with the file.
    pub(super) fn file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |error| Self::File { path, error }
    }

    pub(super) fn damaged(path: impl Into<PathBuf>, text: impl ToString) -> Self {
        Self::Damaged { path: path.into(), text: text.to_string() }
    }

    /// Whether a privilege is missing: another user could do it.
    pub fn is_not_permitted(&self) -> bool {
        matches!(self, Self::File { error, .. } if error.kind() == io::ErrorKind::PermissionDenied)
    }
}

impl CaError {
    /// Whether the process has as many files open as it may: one that is closed helps.
    pub(crate) fn is_out_of_descriptors(&self) -> bool {
        // Linux: EMFILE, ENFILE.
        matches!(self, Self::File { error, .. } if matches!(error.raw_os_error(), Some(24 | 23)))
    }
}

impl From<rcgen::Error> for CaError {
    fn from(error: rcgen::Error) -> Self {
        Self::Library(format!("the certificate cannot be made: {error}"))
    }
}

/// Why a certificate is not renewed.
#[derive(Debug, thiserror::Error)]
pub enum RenewError {
    /// It is too early, or of no use.
    #[error("{0}")]
    NotDue(String),
    /// The certificate that was shown opens no door.
    #[error("{0}")]
    NotAllowed(String),
    /// The authority cannot.
    #[error(transparent)]
    Authority(#[from] CaError),
}

/// Why a token brings no certificate.
#[derive(Debug, thiserror::Error)]
pub enum EnrolError {
    /// It is no token.
    #[error("this is no enrolment token, or not all of it: {0}")]
    Malformed(String),
    /// Another authority made it, or nobody.
    #[error("the token is not from this authority")]
    OtherAuthority,
    /// It came too late.
    #[error("the token has expired; ask for a new one")]
    Expired,
    /// It has brought a certificate before.
    #[error("the token was used already; ask for a new one")]
    Used,
    /// What is to be certified is no good.
    #[error("the certificate request {0}")]
    Request(String),
    /// The authority cannot; the token may be lost.
    #[error(transparent)]
    Authority(#[from] CaError),
}
