//! Why a lab could not be built or used, in words that say what to do next.

use std::io;
use std::path::PathBuf;

/// The exit code of a missing privilege.
const EXIT_NO_PRIVILEGE: u8 = 77;
/// The exit code of wrong usage.
const EXIT_USAGE: u8 = 64;
/// What shells end with when a command is not there.
const EXIT_NOT_FOUND: u8 = 127;
/// What shells end with when a command is there and cannot be executed.
const EXIT_NOT_EXECUTABLE: u8 = 126;

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// The description of the lab makes no sense.
    #[error("{0}")]
    Spec(String),
    /// A user namespace was refused.
    #[error(
        "no user namespace: {source}: run as root, or allow it \
         (sysctl user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns); `marline-lab doctor` tells more"
    )]
    UserNamespace {
        /// The kernel's answer.
        source: io::Error,
    },
    /// TUN devices are refused.
    #[error("cannot make the device `{name}`: /dev/net/tun: {source}: {hint}")]
    Tun {
        /// The link that it was for.
        name: String,
        /// The kernel's answer.
        source: io::Error,
        /// What to do.
        hint: &'static str,
    },
    /// A step of the setting up was refused.
    #[error("{step}: {source}")]
    Setup {
        /// The step.
        step: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A program that is needed is not installed.
    #[error("`{program}` is not installed: apt-get install {package}")]
    MissingProgram {
        /// The program.
        program: String,
        /// Debian's package of it.
        package: &'static str,
    },
    /// `marline` is not beside this program, and `MARLINE` names none.
    #[error("{}: not found: a lab runs the `marline` beside it: cargo build -p marline, or MARLINE=FILE", beside.display())]
    NoProgram {
        /// Where it would be.
        beside: PathBuf,
    },
    /// `MARLINE` names no file.
    #[error("MARLINE={}: not found: name the program `marline`, or unset it to run the one beside this program", path.display())]
    NamedProgram {
        /// What is named.
        path: PathBuf,
    },
    /// The server did not come up.
    #[error("the server did not start: {0}")]
    Server(String),
    /// The command could not be started.
    #[error("cannot start `{program}`: {source}")]
    Start {
        /// The command.
        program: String,
        /// Why.
        source: io::Error,
    },
    /// The emulator's thread is gone.
    #[error("the emulator ended: {0}")]
    Emulator(String),
}

impl LabError {
    /// For `map_err`: names the step at which it happened.
    pub(crate) fn at_step(step: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let step = step.into();
        move |source| Self::Setup { step, source }
    }

    /// The exit code that says so to scripts: 64 usage, 77 missing privilege, 127 and 126 a command that is not there or
    /// cannot be executed, as shells have it; 1 anything else.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Spec(_) => EXIT_USAGE,
            Self::UserNamespace { .. } => EXIT_NO_PRIVILEGE,
            Self::Start { source, .. } if source.kind() == io::ErrorKind::NotFound => EXIT_NOT_FOUND,
            Self::Start { .. } => EXIT_NOT_EXECUTABLE,
            Self::Tun { source, .. } | Self::Setup { source, .. }
                if source.kind() == io::ErrorKind::PermissionDenied =>
            {
                EXIT_NO_PRIVILEGE
            }
            _ => 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_cannot_be_started_ends_as_in_a_shell() {
        let start = |kind: io::ErrorKind| LabError::Start { program: "x".into(), source: kind.into() }.exit_code();
        assert_eq!((start(io::ErrorKind::NotFound), start(io::ErrorKind::PermissionDenied)), (127, 126));
    }
}
