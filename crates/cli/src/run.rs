//! `marline run`: this process becomes a command whose TCP sockets are MPTCP sockets.
//!
//! In: a command and its arguments. Out: nothing of ours: the command's output and exit code, or one line and a code
//! of 1, 64, 77, or, as shells have it, 126 (cannot be executed) and 127 (not found).
//!
//! 1. Everything is tried before the command starts; a command never starts without what was asked for.
//! 2. There is no fallback to `mptcpize`: what it cannot do (static programs) it does not say. It is named where it
//!    may help.

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use clap::Args;
use marline_paths::run::{self, CongestionControl, RunError, RunOptions, StartOutcome};

use crate::CliError;

pub(crate) const AFTER_HELP: &str = "\
Examples:
  marline run -- curl -O https://example.org/big.iso
      curl speaks MPTCP where the server does, and TCP where it does not.
  marline run --congestion cubic -- nginx -g 'daemon off;'
      A server whose listeners accept MPTCP, with this congestion control.

Whatever the command starts is included, statically linked programs too. The exit code is the command's;
126: it cannot be executed, 127: it was not found. Only with CAP_SYS_ADMIN do set-user-ID programs (sudo,
ping) keep their privileges below the command. Which links are used is decided by the kernel's endpoints
(ip mptcp) or by a daemon. docs/run.md has the details.";

/// `marline run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The congestion control of each socket, such as cubic or bbr [default: the machine's].
    #[arg(long, value_name = "NAME")]
    congestion: Option<CongestionControl>,
    /// The command and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Becomes the command.
pub(crate) fn run(args: RunArgs) -> Result<(), CliError> {
    let mut arguments = args.command.into_iter();
    let Some(program) = arguments.next().filter(|program_name| !program_name.is_empty()) else {
        return Err(CliError::usage("say which command to run; see `marline run --help`"));
    };
    match run::start(&RunOptions { congestion: args.congestion.clone() }) {
        Ok(StartOutcome::AlreadyActive) if args.congestion.is_some() => {
            return Err(CliError::failed(
                "--cc: the outer `marline run` decides about these sockets; say it there",
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
        "; for dynamically linked programs `mptcpize run` may do"
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

/// What shells end with when a command is there and cannot be executed, and when it is not there.
const EXIT_NOT_EXECUTABLE: u8 = 126;
const EXIT_NOT_FOUND: u8 = 127;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_cannot_run_ends_as_in_a_shell() {
        let exit = |kind: ErrorKind| exec_error(OsStr::new("x"), &kind.into()).code;
        assert_eq!(exit(ErrorKind::NotFound), 127);
        assert_eq!(exit(ErrorKind::PermissionDenied), 126);
    }
}
