//! Errors of the accelerator, one line each: which link, what is wrong, and the remedy.

use std::io;

use marline_net::links::LinksError;

/// Why the accelerator does not run. Nothing is changed then.
#[derive(Debug, thiserror::Error)]
pub enum AccelError {
    /// The arguments make no sense.
    #[error("{0}")]
    Usage(String),
    /// A link does not exist, or leads nowhere.
    #[error("{0}")]
    Link(String),
    /// Interfaces cannot be listed.
    #[error(transparent)]
    Links(#[from] LinksError),
    /// A privilege is missing.
    #[error(
        "{0}: not permitted: needs CAP_NET_ADMIN and CAP_NET_RAW (run as root, or with both as ambient capabilities)"
    )]
    /// A privilege is missing.
    NotPermitted(String),
    /// This host lacks something that is needed.
    #[error("{0}")]
    Unsupported(String),
    /// The kernel refuses a call.
    #[error("{operation}: {error}")]
    Kernel {
        /// What was attempted.
        operation: String,
        /// Its error.
        error: io::Error,
    },
}

impl AccelError {
    /// One accelerator per link.
    pub fn already_running(link: &str) -> Self {
        Self::Unsupported(format!(
            "link {link}: another `marline accel` serves it already; stop it first with `marline accel stop`"
        ))
    }

    /// The error of `what`; a missing privilege gets its own kind.
    pub(super) fn kernel(operation: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let operation = operation.into();
        move |error| match error.kind() {
            io::ErrorKind::PermissionDenied => Self::NotPermitted(operation),
            _ => Self::Kernel { operation, error },
        }
    }
}
