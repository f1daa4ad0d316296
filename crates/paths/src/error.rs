//! Errors that prevent or end a run of the driver. Network outages and refused commands are no errors here: they are
//! inputs of the policy.

use std::io;
use std::path::PathBuf;

use marline_net::links::LinksError;

/// Why the driver cannot run, in one line.
#[derive(Debug, thiserror::Error)]
pub enum PathsError {
    /// This kernel has no MPTCP, or no path manager with generic netlink.
    #[error("this kernel has no MPTCP path manager ({0}); it needs Linux 5.19 or newer with CONFIG_MPTCP")]
    NoMptcp(io::Error),
    /// CAP_NET_ADMIN is missing.
    #[error("{operation}: not permitted: needs CAP_NET_ADMIN (or `--dry-run`, which changes nothing)")]
    NotPermitted {
        /// The attempted operation.
        operation: String,
    },
    /// A request to the kernel failed.
    #[error("{operation}: {error}")]
    Kernel {
        /// The operation.
        operation: &'static str,
        /// The error of the kernel.
        error: io::Error,
    },
    /// The interfaces cannot be listed.
    #[error(transparent)]
    Links(#[from] LinksError),
    /// The decision log cannot be written.
    #[error("{}: the log cannot be written: {error}", path.display())]
    DecisionLog {
        /// Path of the log.
        path: PathBuf,
        /// The error of the write.
        error: io::Error,
    },
    /// This user lacks the permission to write a needed file or setting. The line states the problem and the remedy.
    #[error("{0}")]
    NotWritable(String),
    /// The host is unsuitable or could not be configured. The line states the problem and the remedy.
    #[error("{0}")]
    HostConfig(String),
}

impl PathsError {
    /// An error of a kernel operation. A missing privilege becomes [`Self::NotPermitted`].
    pub fn kernel(operation: &'static str, error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::PermissionDenied {
            Self::NotPermitted { operation: operation.to_owned() }
        } else {
            Self::Kernel { operation, error }
        }
    }

    /// Whether a retry may succeed. Missing privileges and missing kernel features are permanent.
    pub fn is_transient(&self) -> bool {
        use rustix::io::Errno;
        let error = match self {
            Self::Kernel { error, .. } | Self::Links(LinksError::Netlink(error)) => error,
            _ => return false,
        };
        let is_unsupported = matches!(
            Errno::from_io_error(error),
            Some(
                Errno::AFNOSUPPORT
                    | Errno::PROTONOSUPPORT
                    | Errno::OPNOTSUPP
                    | Errno::NOSYS
                    | Errno::BADF
                    | Errno::PERM
                    | Errno::ACCESS
            )
        );
        // ENOENT of sock_diag means a missing kernel module, whereas a missing interface may come back.
        let has_no_sock_diag = error.kind() == io::ErrorKind::NotFound && matches!(self, Self::Kernel { .. });
        !is_unsupported && !has_no_sock_diag
    }
}
