//! Errors of building and using a lab; their texts name the remedy.

use std::io;
use std::path::PathBuf;

/// Exit code for a missing privilege.
const EXIT_NO_PRIVILEGE: u8 = 77;
/// Exit code for wrong usage.
const EXIT_USAGE: u8 = 64;
/// Exit code of shells for a command that does not exist.
const EXIT_NOT_FOUND: u8 = 127;
/// Exit code of shells for a command that exists and cannot be executed.
const EXIT_NOT_EXECUTABLE: u8 = 126;

/// Why a lab could not be built or used.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// The description of the lab, or the command line, is invalid.
    #[error("{0}")]
    Spec(String),
    /// The kernel refused a user namespace.
    #[error(
        "no user namespace: {source}: run as root, or allow it \
         (sysctl user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns); run `marline-lab doctor` for details"
    )]
    UserNamespace {
        /// The kernel's error.
        source: io::Error,
    },
    /// The kernel refused a TUN device.
    #[error("cannot create the device `{name}`: /dev/net/tun: {source}: {hint}")]
    Tun {
        /// Name of the link that needs the device.
        name: String,
        /// The kernel's error.
        source: io::Error,
        /// The remedy.
        hint: &'static str,
    },
    /// A step of building or using the lab failed.
    #[error("{step}: {source}")]
    Setup {
        /// The step, or the object that it concerned.
        step: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// A required program is not installed.
    #[error("`{program}` is not installed: apt-get install {package}")]
    MissingProgram {
        /// Name of the program.
        program: String,
        /// Debian package that contains it.
        package: &'static str,
    },
    /// `marline` is not in the directory of this program, and the variable `MARLINE` is not set.
    #[error("{}: not found: a lab runs the `marline` in its own directory: cargo build -p marline, or set MARLINE=FILE", expected_path.display())]
    NoProgram {
        /// The path at which it was expected.
        expected_path: PathBuf,
    },
    /// The variable `MARLINE` names a file that does not exist.
    #[error("MARLINE={}: not found: name the program `marline`, or unset it to run the one beside this program", path.display())]
    NamedProgram {
        /// The path in the variable.
        path: PathBuf,
    },
    /// The server did not start.
    #[error("the server did not start: {0}")]
    Server(String),
    /// The command could not be started.
    #[error("cannot start `{program}`: {source}")]
    Start {
        /// Name of the command's program.
        program: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// The emulator's thread has ended.
    #[error("the emulator ended: {0}")]
    Emulator(String),
}

impl LabError {
    /// For `map_err`: adds the step at which the error occurred.
    pub(crate) fn at_step(step: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let step = step.into();
        move |source| Self::Setup { step, source }
    }

    /// Exit code for scripts: 64 usage, 77 missing privilege, 127 command not found and 126 command not executable
    /// (as in shells), 1 anything else.
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
    fn a_command_that_cannot_be_started_gives_the_exit_code_of_a_shell() {
        let start = |kind: io::ErrorKind| LabError::Start { program: "x".into(), source: kind.into() }.exit_code();
        assert_eq!((start(io::ErrorKind::NotFound), start(io::ErrorKind::PermissionDenied)), (127, 126));
    }
}
