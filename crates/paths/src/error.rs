//! Why the driver cannot run. Trouble on the network and refused commands are not here: they are the policy's inputs.

use std::io;
use std::path::PathBuf;

use marline_net::links::LinksError;

/// Why the driver cannot run, one line each.
#[derive(Debug, thiserror::Error)]
pub enum PathsError {
    /// This kernel has no MPTCP, or no path manager that listens to generic netlink.
    #[error("this kernel has no MPTCP path manager ({0}); it needs Linux 5.19 or newer with CONFIG_MPTCP")]
    NoMptcp(io::Error),
    /// A privilege is missing.
    #[error("{what}: not permitted: needs CAP_NET_ADMIN (or `--dry-run`, which changes nothing)")]
    NotPermitted {
        /// What was tried.
        what: String,
    },
    /// The kernel does not answer as it should.
    #[error("{what}: {error}")]
    Kernel {
        /// What was asked.
        what: &'static str,
        /// What it said.
        error: io::Error,
    },
    /// Interfaces cannot be listed.
    #[error(transparent)]
    Links(#[from] LinksError),
    /// The log cannot be written.
    #[error("{}: the log cannot be written: {error}", path.display())]
    DecisionLog {
        /// Which.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// This user may not write what a run needs beside its privilege: the line says what and what next.
    #[error("{0}")]
    NotWritable(String),
    /// The host is not fit, or could not be made fit: the line says what and what next.
    #[error("{0}")]
    HostConfig(String),
}

impl PathsError {
    /// What `what` failed with: a missing privilege is told as such.
    pub fn kernel(operation: &'static str, error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::PermissionDenied {
            Self::NotPermitted { what: operation.to_owned() }
        } else {
            Self::Kernel { what: operation, error }
        }
    }

    /// Whether it may be otherwise a moment later. What is not permitted stays so, and what this kernel does not have.
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
        // A list of sockets that is not there is a module that is missing; an interface has only gone.
        let has_no_sock_diag = error.kind() == io::ErrorKind::NotFound && matches!(self, Self::Kernel { .. });
        !is_unsupported && !has_no_sock_diag
    }
}
