//! `marline paths`: from words to a daemon that steers MPTCP connections, and to questions that it answers.
//!
//! 1. Everything that the user wrote, and whether this machine is fit for it, is looked at before anything is changed.
//! 2. What is said about the run goes to standard error, results to standard output; each result has a `--json` twin.
//! 3. Nothing here decides or changes anything: `core::paths` and `marline_paths` do.

mod args;
mod doctor;
mod eib;
mod render;
mod run;

use std::path::{Path, PathBuf};

use marline_net::links::LinksError;
use marline_paths::PathsError;
use marline_paths::control::{self, Answer, ControlError, Question};
use marline_paths::ground::{self, RUN_DIR};

use self::args::{PathsCommand, RunDirArgs};
use crate::output::{print_result, say};
use crate::{CliError, ConfigFile};

pub(crate) use self::args::{AFTER_HELP, AFTER_RESTORE, PathsArgs, RestoreArgs};
#[cfg(feature = "fleet")]
pub(crate) use self::render::repeat;
pub(crate) use self::run::PathsConfig;

/// Does what was asked for.
pub(crate) fn run(args: PathsArgs, config: Option<&Path>) -> Result<(), CliError> {
    match args.command {
        None => run::run(args.run, config),
        Some(PathsCommand::Run(run)) => run::run(*run, config),
        Some(PathsCommand::Status { run_dir_args, json, at_most }) => {
            let reply = query(&DaemonLocation::from_args(&run_dir_args, config)?, &Question::Status { at_most })?;
            let Answer::Status(status) = reply else { return Err(unexpected_reply()) };
            print_result(&if json {
                to_json(&status)?
            } else {
                render::render_status(&status, at_most.unwrap_or(render::DEFAULT_MAX_CONNECTIONS))
            })
        }
        Some(PathsCommand::Watch { run_dir_args }) => {
            let (location, mut has_answered) = (DaemonLocation::from_args(&run_dir_args, config)?, false);
            render::watch(|| {
                match query_daemon(&location, &Question::Status { at_most: Some(render::DEFAULT_MAX_CONNECTIONS) })
                {
                    Ok(Answer::Status(status)) => {
                        has_answered = true;
                        Ok(status)
                    }
                    Ok(_) => Err(unexpected_reply()),
                    // There was one a second ago.
                    Err(ControlError::NotRunning { .. }) if has_answered => {
                        Err(query_error(&ControlError::Ended(control::WHO)))
                    }
                    Err(error) => Err(query_error(&error)),
                }
            })
        }
        Some(PathsCommand::Explain { token, run_dir_args, json }) => {
            let reply = query(&DaemonLocation::from_args(&run_dir_args, config)?, &Question::Explain { token })?;
            let Answer::Explained(explained) = reply else { return Err(unexpected_reply()) };
            print_result(&if json { to_json(&explained)? } else { render::render_explanation(&explained) })
        }
        Some(PathsCommand::Doctor { probe, run_dir_args, json }) => {
            let file = ConfigFile::read(config)?;
            doctor::run(&probe, &DaemonLocation::from_config(&run_dir_args, &file)?.run_dir, &file, json)
        }
        Some(PathsCommand::Eib { energy_model, kinds, json }) => {
            eib::run(energy_model.as_deref(), kinds, json, config)
        }
        Some(PathsCommand::Restore(args)) => restore_from_args(&args, config),
    }
}

/// `marline restore`.
pub(crate) fn restore_from_args(args: &RestoreArgs, config: Option<&Path>) -> Result<(), CliError> {
    restore(&DaemonLocation::from_args(&args.run_dir_args, config)?.run_dir, args.quiet)
}

fn restore(run_dir: &Path, quiet: bool) -> Result<(), CliError> {
    let result = ground::restore(run_dir).map_err(|error| match error {
        PathsError::NotPermitted { what } => {
            CliError::new(CliError::PRIVILEGE, format!("{what}: not permitted: needs CAP_NET_ADMIN"))
        }
        error => to_cli_error(error),
    })?;
    if !quiet {
        result.lines.iter().for_each(|line| say(line));
    }
    if !result.left.is_empty() {
        return Err(CliError::failed(result.left.join("; ")));
    }
    if !quiet && result.lines.is_empty() {
        say("there is nothing to put back");
    }
    Ok(())
}

/// Where a daemon is looked for.
struct DaemonLocation {
    run_dir: PathBuf,
    /// Somebody said so; otherwise it is the usual place.
    is_explicit: bool,
}

impl DaemonLocation {
    /// The command line's, else the configuration's, which is read only then.
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

/// The run directory that somebody has named.
fn explicit_run_dir(run_dir_args: &RunDirArgs, file: &ConfigFile) -> Result<Option<PathBuf>, CliError> {
    let run_dir = run_dir_args.run_dir.clone().or_else(|| file.paths.run_dir.clone());
    match run_dir.as_deref().filter(|named| named.exists() && !named.is_dir()) {
        Some(path) => Err(CliError::usage(format!(
            "--run-dir {}: it is no directory; name one, or one that can be made",
            path.display()
        ))),
        None => Ok(run_dir),
    }
}

/// The daemon's answer.
fn query(location: &DaemonLocation, request: &Question) -> Result<Answer, CliError> {
    query_daemon(location, request).map_err(|error| query_error(&error))
}

pub(crate) fn query_error(error: &ControlError) -> CliError {
    let code =
        if matches!(error, ControlError::NotPermitted { .. }) { CliError::PRIVILEGE } else { CliError::FAILED };
    CliError::new(code, error.to_string())
}

/// The same, or why there is none. Where nobody names a run directory, the one of a user's dry run counts if there is no
/// other.
fn query_daemon(location: &DaemonLocation, request: &Question) -> Result<Answer, ControlError> {
    let user_dir = if location.is_explicit { None } else { user_run_dir() };
    match (control::ask(&location.run_dir, request), user_dir) {
        (Err(ControlError::NotRunning { .. }), Some(own)) if control::socket(&own).exists() => {
            control::ask(&own, request)
        }
        (asked, _) => asked,
    }
}

/// Where a user without privileges may have sockets.
pub(crate) fn user_run_dir() -> Option<PathBuf> {
    let runtime_dir = std::env::var_os("XDG_RUNTIME_DIR").filter(|place| !place.is_empty())?;
    Some(Path::new(&runtime_dir).join("marline"))
}

/// Where the socket of a daemon may be that needs no privileges, the likelier place first.
#[cfg(feature = "fleet")]
pub(crate) fn run_dirs(given: Option<&Path>) -> Vec<PathBuf> {
    match given {
        Some(named) => vec![named.to_owned()],
        None => std::iter::once(RUN_DIR.into()).chain(user_run_dir()).collect(),
    }
}

/// How the daemon's errors end the process.
fn to_cli_error(error: PathsError) -> CliError {
    let code = match &error {
        PathsError::NotPermitted { .. } | PathsError::Unwritable(_) => CliError::PRIVILEGE,
        PathsError::Links(LinksError::NoLink { .. }) => CliError::NETWORK,
        _ => CliError::FAILED,
    };
    CliError::new(code, error.to_string())
}

/// An answer to another question.
fn unexpected_reply() -> CliError {
    CliError::failed("the daemon answers something else than it was asked: it may be of another version")
}

fn to_json(value: &impl serde::Serialize) -> Result<String, CliError> {
    crate::energy::to_json(value)
}
