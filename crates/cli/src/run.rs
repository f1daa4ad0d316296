//! `marline run`: replaces this process with a command whose TCP sockets are created as MPTCP sockets.
//!
//! Output and exit code are those of the command. If it cannot be started, there is one error line and the exit code is 1,
//! 64 or 77, or, as in shells, 126 (not executable) or 127 (not found).
//!
//! 1. All preparations precede the command: it never starts without the requested sockets.
//! 2. There is no fallback to `mptcpize`, which does not affect statically linked programs and does not report that. The
//!    error names it where it may help.

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use clap::Args;
use marline_paths::run::{self, CongestionControl, RunError, RunOptions, StartOutcome};

use crate::CliError;
use crate::args::CongestionArgs;

pub(crate) const AFTER_HELP: &str = "\
Examples:
  marline run -- curl -O https://example.org/big.iso
      Download with MPTCP if the server supports it, else with TCP.
  marline run --congestion cubic -- nginx -g 'daemon off;'
      Run a server that accepts MPTCP, with this congestion control.

Child processes are included, statically linked programs as well. The exit code is that of the
command; 126: it is not executable, 127: it was not found. Set-user-ID programs (sudo, ping)
started by the command keep their privileges only with CAP_SYS_ADMIN. The kernel's endpoints (ip
mptcp) or a daemon such as `marline paths` decide which links are used. See docs/mptcp.md.";

/// `marline run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    #[command(flatten)]
    congestion_args: CongestionArgs<CongestionControl>,
    /// Command to run, with its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Replaces this process with the command; returns only on failure.
pub(crate) fn run(args: RunArgs) -> Result<(), CliError> {
    let mut arguments = args.command.into_iter();
    let Some(program) = arguments.next().filter(|program_name| !program_name.is_empty()) else {
        return Err(CliError::usage("missing command to run; see `marline run --help`"));
    };
    match run::start(&RunOptions { congestion: args.congestion_args.congestion.clone() }) {
        Ok(StartOutcome::AlreadyActive) if args.congestion_args.congestion.is_some() => {
            return Err(CliError::failed(
                "--congestion: an outer `marline run` already controls these sockets; set the option there",
            ));
        }
        Ok(started) => tracing::debug!(?started, program = %program.display(), "run"),
        Err(error) => return Err(start_error(&error)),
    }
    let error = Command::new(&program).args(arguments).exec();
    Err(exec_error(&program, &error))
}

fn start_error(error: &RunError) -> CliError {
    let code = match error {
        RunError::Refused(_) => CliError::PRIVILEGE,
        _ => CliError::FAILED,
    };
    let may_use_mptcpize = matches!(error, RunError::HasSupervisor | RunError::Refused(_) | RunError::NoSeccomp(_));
    let hint = if may_use_mptcpize && is_in_path(OsStr::new("mptcpize")) {
        "; for dynamically linked programs, try `mptcpize run`"
    } else {
        ""
    };
    CliError::new(code, format!("run: {error}{hint}"))
}

fn exec_error(program: &OsStr, error: &std::io::Error) -> CliError {
    let (code, reason) = match error.kind() {
        ErrorKind::NotFound => (EXIT_NOT_FOUND, "command not found".to_owned()),
        _ => (EXIT_NOT_EXECUTABLE, error.to_string()),
    };
    CliError::new(code, format!("run: {}: {reason}", program.display()))
}

fn is_in_path(program: &OsStr) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Exit codes of shells for a command that cannot be executed and for one that does not exist.
const EXIT_NOT_EXECUTABLE: u8 = 126;
const EXIT_NOT_FOUND: u8 = 127;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_cannot_start_has_the_exit_code_of_a_shell() {
        let exit = |kind: ErrorKind| exec_error(OsStr::new("x"), &kind.into()).code;
        assert_eq!(exit(ErrorKind::NotFound), 127);
        assert_eq!(exit(ErrorKind::PermissionDenied), 126);
    }
}
