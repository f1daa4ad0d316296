//! `marline paths`: runs the MPTCP path manager from its arguments, and sends control requests to a running one.
//!
//! 1. All arguments and the suitability of the host are checked before the host is changed.
//! 2. Notices go to standard error and results to standard output; each result is also available with `--json`.
//! 3. This module makes no decisions and changes nothing: `core::paths` decides and `marline_paths` acts.

mod args;
mod doctor;
mod eib;
mod render;
mod run;

use std::path::{Path, PathBuf};

use marline_net::links::LinksError;
use marline_paths::PathsError;
use marline_paths::control::{self, ControlError, ControlReply, ControlRequest};
use marline_paths::host_config::RUN_DIR;
use marline_paths::restore;

use self::args::PathsCommand;
use crate::args::RunDirArgs;
use crate::control::query_error;
use crate::directories::user_run_dir;
use crate::output::print_notice;
use crate::{CliError, ConfigFile};

#[cfg(feature = "fleet")]
pub(crate) use self::args::RunArgs;
pub(crate) use self::args::{AFTER_HELP, AFTER_RESTORE, PathsArgs, RestoreArgs};
#[cfg(feature = "fleet")]
pub(crate) use self::run::run as run_path_manager;

/// Runs a subcommand of `marline paths`.
pub(crate) fn run(args: PathsArgs, config: Option<&Path>) -> Result<(), CliError> {
    match args.command {
        None => run::run(args.run, config),
        Some(PathsCommand::Run(run)) => run::run(*run, config),
        Some(PathsCommand::Status { run_dir_args, format, at_most }) => {
            let reply = query(
                &DaemonLocation::from_args(&run_dir_args, config)?,
                &ControlRequest::Status { max_connections: at_most },
            )?;
            let ControlReply::Status(status) = reply else { return Err(unexpected_reply()) };
            let at_most = at_most.unwrap_or(render::DEFAULT_MAX_CONNECTIONS);
            format.print(&*status, |status| render::render_status(status, at_most))
        }
        Some(PathsCommand::Watch { run_dir_args }) => {
            let (location, mut has_answered) = (DaemonLocation::from_args(&run_dir_args, config)?, false);
            render::watch(|| {
                match query_daemon(
                    &location,
                    &ControlRequest::Status { max_connections: Some(render::DEFAULT_MAX_CONNECTIONS) },
                ) {
                    Ok(ControlReply::Status(status)) => {
                        has_answered = true;
                        Ok(status)
                    }
                    Ok(_) => Err(unexpected_reply()),
                    // The daemon responded a second ago, so it has ended since.
                    Err(ControlError::NotRunning { .. }) if has_answered => {
                        Err(query_error(&ControlError::Ended(control::COMMAND_NAME)))
                    }
                    Err(error) => Err(query_error(&error)),
                }
            })
        }
        Some(PathsCommand::Explain { token, run_dir_args, format }) => {
            let reply =
                query(&DaemonLocation::from_args(&run_dir_args, config)?, &ControlRequest::Explain { token })?;
            let ControlReply::Explanation(explained) = reply else { return Err(unexpected_reply()) };
            format.print(&*explained, render::render_explanation)
        }
        Some(PathsCommand::Doctor { probe, run_dir_args, format }) => {
            let file = ConfigFile::read(config)?;
            doctor::run(&probe, &DaemonLocation::from_config(&run_dir_args, &file)?.run_dir, &file, format)
        }
        Some(PathsCommand::Eib { model, kinds, format }) => {
            eib::run(model.energy_model.as_deref(), kinds, format, config)
        }
        Some(PathsCommand::Restore(args)) => restore_from_args(&args, config),
    }
}

/// `marline restore`.
pub(crate) fn restore_from_args(args: &RestoreArgs, config: Option<&Path>) -> Result<(), CliError> {
    restore(&DaemonLocation::from_args(&args.run_dir_args, config)?.run_dir, args.quiet)
}

fn restore(run_dir: &Path, quiet: bool) -> Result<(), CliError> {
    let result = restore::restore(run_dir).map_err(|error| match error {
        PathsError::NotPermitted { operation } => {
            CliError::new(CliError::PRIVILEGE, format!("{operation}: not permitted: needs CAP_NET_ADMIN"))
        }
        error => to_cli_error(error),
    })?;
    if !quiet {
        result.restored.iter().for_each(|line| print_notice(line));
    }
    if !result.remaining.is_empty() {
        return Err(CliError::failed(result.remaining.join("; ")));
    }
    if !quiet && result.restored.is_empty() {
        print_notice("nothing to restore");
    }
    Ok(())
}

/// Run directory (of the control socket) in which a daemon is expected.
struct DaemonLocation {
    run_dir: PathBuf,
    /// The directory was set by an option or the configuration file; otherwise it is the default.
    is_explicit: bool,
}

impl DaemonLocation {
    /// The directory of the command line, else that of the configuration file. The file is not read if it is not needed.
    fn from_args(run_dir_args: &RunDirArgs, config: Option<&Path>) -> Result<Self, CliError> {
        let file = if run_dir_args.run_dir.is_some() && config.is_none() {
            ConfigFile::default()
        } else {
            ConfigFile::read(config)?
        };
        Self::from_config(run_dir_args, &file)
    }

    fn from_config(run_dir_args: &RunDirArgs, file: &ConfigFile) -> Result<Self, CliError> {
        let run_dir = explicit_run_dir(run_dir_args, file)?;
        Ok(Self { is_explicit: run_dir.is_some(), run_dir: run_dir.unwrap_or_else(|| RUN_DIR.into()) })
    }
}

/// The run directory of the command line or the configuration file.
fn explicit_run_dir(run_dir_args: &RunDirArgs, file: &ConfigFile) -> Result<Option<PathBuf>, CliError> {
    let run_dir = run_dir_args.run_dir.clone().or_else(|| file.paths.run_dir.clone());
    match run_dir.as_deref().filter(|named| named.exists() && !named.is_dir()) {
        Some(path) => Err(CliError::usage(format!(
            "--run-dir {}: not a directory; name a directory or a path where one can be created",
            path.display()
        ))),
        None => Ok(run_dir),
    }
}

/// Sends a request to the daemon and maps its errors to exit codes.
fn query(location: &DaemonLocation, request: &ControlRequest) -> Result<ControlReply, CliError> {
    query_daemon(location, request).map_err(|error| query_error(&error))
}

/// Sends a request to the daemon. Without an explicit run directory, a dry run of this user responds if no daemon runs in the
/// default directory.
fn query_daemon(location: &DaemonLocation, request: &ControlRequest) -> Result<ControlReply, ControlError> {
    let user_dir = if location.is_explicit { None } else { user_run_dir() };
    match (control::query(&location.run_dir, request), user_dir) {
        (Err(ControlError::NotRunning { .. }), Some(user_dir)) if control::socket_path(&user_dir).exists() => {
            control::query(&user_dir, request)
        }
        (reply, _) => reply,
    }
}

/// Maps an error of the path manager to an exit code.
fn to_cli_error(error: PathsError) -> CliError {
    let code = match &error {
        PathsError::NotPermitted { .. } | PathsError::NotWritable(_) => CliError::PRIVILEGE,
        PathsError::Links(LinksError::NoLink { .. }) => CliError::NETWORK,
        _ => CliError::FAILED,
    };
    CliError::new(code, error.to_string())
}

/// Error for a response that does not match the request.
fn unexpected_reply() -> CliError {
    CliError::failed("unexpected response of the daemon: it may be of another version; restart it")
}
