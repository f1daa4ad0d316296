//! Why flows cannot be helped, one line each: what, which link, why, what next.

use std::io;

use marline_net::links::LinksError;

/// Why the accelerator does not run. Nothing is changed then.
#[derive(Debug, thiserror::Error)]
pub enum AccelError {
    /// What was asked for makes no sense.
    #[error("{0}")]
    Usage(String),
    /// A link is not there, or leads nowhere.
    #[error("{0}")]
    Link(String),
    /// Interfaces cannot be listed.
    #[error(transparent)]
    Links(#[from] LinksError),
    /// A privilege is missing.
    #[error(
        "{0}: not permitted: needs CAP_NET_ADMIN and CAP_NET_RAW (run as root, or with both as ambient capabilities)"
    )]
    NotPermitted(String),
    /// This machine has not what is needed.
    #[error("{0}")]
    Unsupported(String),
    /// The kernel refuses something.
    #[error("{what}: {error}")]
    Kernel {
        /// What was asked.
        what: String,
        /// What it said.
        error: io::Error,
    },
}

impl AccelError {
    /// One accelerator is enough for a link.
    pub fn already_running(link: &str) -> Self {
        Self::Unsupported(format!(
            "link {link}: another `marline accel` helps it already; stop it first with `marline accel stop`"
        ))
    }

    /// What `what` failed with: a missing privilege is told as such.
    pub(super) fn kernel(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |error| match error.kind() {
            io::ErrorKind::PermissionDenied => Self::NotPermitted(what),
            _ => Self::Kernel { what, error },
        }
    }
}
