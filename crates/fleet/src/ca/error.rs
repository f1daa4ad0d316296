//! Errors of an authority and its directory, with the remedy where there is one.

use std::io;
use std::path::PathBuf;

use marline_net::atomic_file::FileError;

/// An operation of the authority failed.
#[derive(Debug, thiserror::Error)]
pub enum CaError {
    /// A file operation failed.
    #[error("{}: {error}", path.display())]
    File {
        /// The file or directory.
        path: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
    /// The file to be created exists already.
    #[error("{}: it exists already, and is not overwritten; {help}", path.display())]
    Exists {
        /// The existing file.
        path: PathBuf,
        /// What the user can do.
        help: &'static str,
    },
    /// The directory contains no authority.
    #[error("{0}: no authority here; `marline fleet ca init --ca-dir {0}` creates one", dir.display())]
    Absent {
        /// The directory.
        dir: PathBuf,
    },
    /// The authority's key is not in its directory.
    #[error(
        "{}: it is missing, so this authority cannot sign here: restore it from a copy, or issue and revoke where the key is \
         kept (docs/fleet.md, \"The root key off-line\")",
        dir.join("ca.key").display()
    )]
    KeyMissing {
        /// Directory of the authority.
        dir: PathBuf,
    },
    /// The creation of the authority was interrupted.
    #[error("{0}: the creation of this authority was interrupted; `marline fleet ca init --ca-dir {0}` completes it", dir.display())]
    Incomplete {
        /// Directory of the authority.
        dir: PathBuf,
    },
    /// The directory belongs to another user.
    #[error("{}: it belongs to another user ({owner}); run this command as that user: sudo -u '#{owner}' marline …", dir.display())]
    OtherOwner {
        /// Directory of the authority.
        dir: PathBuf,
        /// The numeric user id of its owner.
        owner: u32,
    },
    /// The permissions of a file or directory allow other users too much.
    #[error("{0}: users other than its owner may {action} it (mode {mode:04o}): chmod {required_mode:o} {0}", path.display())]
    TooPermissive {
        /// The file or directory.
        path: PathBuf,
        /// What others may do: read or write.
        action: &'static str,
        /// Its present mode.
        mode: u32,
        /// The mode that it should have.
        required_mode: u32,
    },
    /// A file has unexpected contents.
    #[error("{}: {text}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The problem, and the remedy.
        text: String,
    },
    /// The operation is not possible.
    #[error("{0}")]
    Refused(String),
    /// A certificate request is invalid.
    #[error("the certificate request {0}")]
    Request(String),
    /// A library or the system reports an error.
    #[error("{0}")]
    Library(String),
}

impl From<FileError> for CaError {
    fn from(FileError { path, error }: FileError) -> Self {
        Self::File { path, error }
    }
}

impl CaError {
    /// For [`Result::map_err`] after an operation on the file.
    pub(super) fn file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |error| Self::File { path, error }
    }

    pub(super) fn damaged(path: impl Into<PathBuf>, text: impl ToString) -> Self {
        Self::Damaged { path: path.into(), text: text.to_string() }
    }

    /// Whether a privilege is missing, so that another user could do it.
    pub fn is_not_permitted(&self) -> bool {
        matches!(self, Self::File { error, .. } if error.kind() == io::ErrorKind::PermissionDenied)
    }
}

impl CaError {
    /// Whether the process has reached its limit of open files, so that closing one helps.
    pub(crate) fn is_out_of_descriptors(&self) -> bool {
        // Linux: EMFILE, ENFILE.
        matches!(self, Self::File { error, .. } if matches!(error.raw_os_error(), Some(24 | 23)))
    }
}

impl From<rcgen::Error> for CaError {
    fn from(error: rcgen::Error) -> Self {
        Self::Library(format!("the certificate cannot be created: {error}"))
    }
}

/// Reason for not renewing a certificate.
#[derive(Debug, thiserror::Error)]
pub enum RenewError {
    /// It is too early, or a renewal would not extend the validity.
    #[error("{0}")]
    NotDue(String),
    /// The presented certificate is not accepted.
    #[error("{0}")]
    NotAllowed(String),
    /// The authority failed.
    #[error(transparent)]
    Authority(#[from] CaError),
}

/// Reason for not issuing a certificate for a token.
#[derive(Debug, thiserror::Error)]
pub enum EnrolError {
    /// The text is not a token.
    #[error("this is not a complete enrolment token: {0}")]
    Malformed(String),
    /// Another authority signed it, or none.
    #[error("the token is not from this authority")]
    OtherAuthority,
    /// The token has expired.
    #[error("the token has expired; get a new one from the operator of the fleet")]
    Expired,
    /// The token was used before.
    #[error("the token has already been used; get a new one from the operator of the fleet")]
    Used,
    /// The certificate request is invalid.
    #[error("the certificate request {0}")]
    Request(String),
    /// The authority failed; the token may count as used.
    #[error(transparent)]
    Authority(#[from] CaError),
}
