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
use marline_paths::run::{self, Congestion, Options, RunError, Started};

use crate::Exit;

pub(crate) const AFTER_HELP: &str = "\
Examples:
  marline run -- curl -O https://example.org/big.iso
      curl speaks MPTCP where the server does, and TCP where it does not.
  marline run --cc cubic -- nginx -g 'daemon off;'
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
    cc: Option<Congestion>,
    /// The command and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Becomes the command.
pub(crate) fn run(args: RunArgs) -> Result<(), Exit> {
    let mut words = args.command.into_iter();
    let Some(program) = words.next().filter(|word| !word.is_empty()) else {
        return Err(Exit::usage("say which command to run; see `marline run --help`"));
    };
    match run::start(&Options { congestion: args.cc.clone() }) {
        Ok(Started::Before) if args.cc.is_some() => {
            return Err(Exit::failed("--cc: the outer `marline run` decides about these sockets; say it there"));
        }
        Ok(started) => tracing::debug!(?started, program = %program.display(), "run"),
        Err(error) => return Err(refused(&error)),
    }
    let error = Command::new(&program).args(words).exec();
    Err(not_run(&program, &error))
}

fn refused(error: &RunError) -> Exit {
    let code = match error {
        RunError::Refused(_) => Exit::PRIVILEGE,
        _ => Exit::FAILED,
    };
    let elsewhere = matches!(error, RunError::Supervised | RunError::Refused(_) | RunError::NoSeccomp(_));
    let hint = if elsewhere && is_in_path(OsStr::new("mptcpize")) {
        "; for dynamically linked programs `mptcpize run` may do"
    } else {
        ""
    };
    Exit::new(code, format!("run: {error}{hint}"))
}

fn not_run(program: &OsStr, error: &std::io::Error) -> Exit {
    let (code, why) = match error.kind() {
        ErrorKind::NotFound => (NOT_FOUND, "command not found".to_owned()),
        _ => (NOT_EXECUTABLE, error.to_string()),
    };
    Exit::new(code, format!("run: {}: {why}", program.display()))
}

fn is_in_path(program: &OsStr) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// What shells end with when a command is there and cannot be executed, and when it is not there.
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_cannot_run_ends_as_in_a_shell() {
        let exit = |kind: ErrorKind| not_run(OsStr::new("x"), &kind.into()).code;
        assert_eq!(exit(ErrorKind::NotFound), 127);
        assert_eq!(exit(ErrorKind::PermissionDenied), 126);
    }
}
