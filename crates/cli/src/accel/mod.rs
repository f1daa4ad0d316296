//! `marline accel`: runs an accelerator, and queries or stops those that run.
//!
//! 1. Arguments and the requirements of this machine are checked before anything is changed.
//! 2. Messages about the run go to standard error, results to standard output; each result is also available as JSON
//!    (`--json`).
//! 3. Decisions are made in `core::accel`, and the system is changed in `marline_accel`.

mod args;
mod options;
mod render;
mod repair;
mod rtp;
mod run;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use marline_accel::control::{self, COMMAND, Request, Response};
use marline_accel::{AccelError, check_requirements, restore, status::Status};
use marline_net::control_socket::ControlError;

use self::args::{AccelCommand, DaemonArgs};
use crate::CliError;
use crate::control::query_error;
use crate::output::print_notice;

pub(crate) use self::args::{AFTER_HELP, AccelArgs};

/// Executes the command.
pub(crate) fn run(args: AccelArgs) -> Result<(), CliError> {
    match args.subcommand {
        None => run::run(args.run),
        Some(AccelCommand::Status { daemon, format }) => {
            let text = |all: &Vec<Status>| all.iter().map(render::status).collect::<Vec<_>>().join("\n");
            format.print(&statuses(&daemon)?, text)
        }
        Some(AccelCommand::Stop { daemon }) => stop(&daemon),
        Some(AccelCommand::Rtp(args)) => rtp::run(*args),
        Some(AccelCommand::Repair(args)) => repair::run(&args),
        Some(AccelCommand::Doctor { format }) => {
            let report = render::requirement_report(check_requirements());
            format.print(&report, render::requirements)?;
            if report.ok { Ok(()) } else { Err(CliError::without_message(CliError::FAILED)) }
        }
    }
}

/// Default run directory. It is not that of the other daemons: the accelerator runs as root, and must not share a directory with daemons
/// of other users.
const RUN_DIR: &str = "/run/marline-accel";

fn run_dir(named: Option<&Path>) -> PathBuf {
    named.unwrap_or(Path::new(RUN_DIR)).to_owned()
}

/// The primary links of the accelerators that may run: the one of `--primary`, or those with a control socket in the run directory.
fn primaries(daemon: &DaemonArgs) -> Vec<String> {
    let dir = run_dir(daemon.run_dir_args.run_dir.as_deref());
    daemon.primary.clone().map_or_else(|| control::primaries(&dir), |primary| vec![primary])
}

/// The status of each accelerator that runs.
fn statuses(daemon: &DaemonArgs) -> Result<Vec<Status>, CliError> {
    let dir = run_dir(daemon.run_dir_args.run_dir.as_deref());
    let (mut all, mut why) = (Vec::new(), None);
    for primary in primaries(daemon) {
        match control::send_request(&dir, &primary, Request::Status) {
            Ok(Response::Status(status)) => all.push(*status),
            Ok(_) => return Err(unexpected_response()),
            Err(error) => why = why.or(Some(error)),
        }
    }
    match why {
        _ if !all.is_empty() => Ok(all),
        Some(error) => Err(query_error(&error)),
        None => Err(query_error(&ControlError::NotRunning {
            daemon_command: COMMAND,
            socket: control::socket(&dir, "*"),
            error: std::io::ErrorKind::NotFound.into(),
        })),
    }
}

/// Stops the accelerators, waits until they have ended, and removes the packet rules that killed runs have left for any link.
fn stop(daemon: &DaemonArgs) -> Result<(), CliError> {
    let dir = run_dir(daemon.run_dir_args.run_dir.as_deref());
    let mut ended = Vec::new();
    for primary in primaries(daemon) {
        match control::send_request(&dir, &primary, Request::Stop) {
            Ok(Response::Stopping { pid }) => {
                wait_for(pid, &dir, &primary)?;
                ended.push(primary);
            }
            Ok(_) => return Err(unexpected_response()),
            // The socket was left by a process that has ended.
            Err(ControlError::NotRunning { .. } | ControlError::Ended(_)) => {}
            Err(error) => return Err(query_error(&error)),
        }
    }
    let swept = match restore() {
        // Those that were stopped have removed their own rules.
        Err(AccelError::NotPermitted(_)) if !ended.is_empty() => Vec::new(),
        swept => swept.map_err(exit)?,
    };
    ended.iter().for_each(|primary| print_notice(&format!("{primary}: stopped; everything is as it was before")));
    swept.iter().for_each(|device| print_notice(&format!("{device}: removed packet rules of a killed run")));
    if ended.is_empty() && swept.is_empty() {
        print_notice("no `marline accel` runs here, and no packet rules are left");
    }
    Ok(())
}

/// Waits until the process has restored everything, which it shows by removing its control socket.
fn wait_for(pid: u32, dir: &Path, primary: &str) -> Result<(), CliError> {
    let begun = Instant::now();
    while control::socket(dir, primary).exists() {
        if begun.elapsed() > STOP_TIMEOUT {
            return Err(CliError::failed(format!(
                "{primary}: process {pid} does not end; `kill -9 {pid}` is safe, and then run this command again"
            )));
        }
        std::thread::sleep(STOP_TIMEOUT / 500);
    }
    Ok(())
}

/// Longest wait for the end of one accelerator. Our choice: programs that change packet rules wait up to five seconds for each other, and
/// several changes are necessary.
const STOP_TIMEOUT: Duration = Duration::from_secs(15);

/// The exit code of an error.
fn exit(error: AccelError) -> CliError {
    let code = match &error {
        AccelError::Usage(_) => CliError::USAGE,
        AccelError::Link(_) | AccelError::Links(_) => CliError::NETWORK,
        AccelError::NotPermitted(_) => CliError::PRIVILEGE,
        AccelError::Unsupported(_) | AccelError::Kernel { .. } => CliError::FAILED,
    };
    CliError::new(code, error.to_string())
}

/// A response to another request.
fn unexpected_response() -> CliError {
    CliError::failed("the accelerator sends an unexpected response: its version may differ; restart it")
}
