//! `marline paths`: from words to a daemon that steers MPTCP connections, and to questions that it answers.
//!
//! 1. Everything that the user wrote, and whether this machine is fit for it, is looked at before anything is changed.
//! 2. What is said about the run goes to standard error, results to standard output; each result has a `--json` twin.
//! 3. Nothing here decides or changes anything: `core::paths` and `marline_paths` do.

mod args;
mod doctor;
mod eib;
mod run;
mod show;

use std::path::{Path, PathBuf};

use marline_net::links::LinksError;
use marline_paths::PathsError;
use marline_paths::control::{self, Answer, AskError, Question};
use marline_paths::ground::{self, RUN_DIR};

use self::args::{Daemon, PathsVerb};
use crate::output::{print, say};
use crate::{ConfigFile, Exit};

pub(crate) use self::args::{AFTER_HELP, AFTER_RESTORE, PathsArgs, RestoreArgs};
pub(crate) use self::run::PathsTerms;
#[cfg(feature = "fleet")]
pub(crate) use self::show::paint;

/// Does what was asked for.
pub(crate) fn run(args: PathsArgs, config: Option<&Path>) -> Result<(), Exit> {
    match args.verb {
        None => run::run(args.run, config),
        Some(PathsVerb::Run(run)) => run::run(*run, config),
        Some(PathsVerb::Status { daemon, json, at_most }) => {
            let asked = ask(&Place::of(&daemon, config)?, &Question::Status { at_most })?;
            let Answer::Status(status) = asked else { return Err(odd()) };
            print(&if json { json_of(&status)? } else { show::status(&status, at_most.unwrap_or(show::MOST)) })
        }
        Some(PathsVerb::Watch { daemon }) => {
            let (place, mut seen) = (Place::of(&daemon, config)?, false);
            show::watch(|| match asked(&place, &Question::Status { at_most: Some(show::MOST) }) {
                Ok(Answer::Status(status)) => {
                    seen = true;
                    Ok(status)
                }
                Ok(_) => Err(odd()),
                // There was one a second ago.
                Err(AskError::Nobody { .. }) if seen => Err(unanswered(&AskError::Ended(control::WHO))),
                Err(error) => Err(unanswered(&error)),
            })
        }
        Some(PathsVerb::Explain { token, daemon, json }) => {
            let asked = ask(&Place::of(&daemon, config)?, &Question::Explain { token })?;
            let Answer::Explained(explained) = asked else { return Err(odd()) };
            print(&if json { json_of(&explained)? } else { show::explained(&explained) })
        }
        Some(PathsVerb::Doctor { probe, daemon, json }) => {
            let file = ConfigFile::read(config)?;
            doctor::run(&probe, &Place::in_file(&daemon, &file)?.run_dir, &file, json)
        }
        Some(PathsVerb::Eib { energy_model, kinds, json }) => {
            eib::run(energy_model.as_deref(), kinds, json, config)
        }
        Some(PathsVerb::Restore(args)) => restore_host(&args, config),
    }
}

/// `marline restore`.
pub(crate) fn restore_host(args: &RestoreArgs, config: Option<&Path>) -> Result<(), Exit> {
    restore(&Place::of(&args.daemon, config)?.run_dir, args.quiet)
}

fn restore(run_dir: &Path, quiet: bool) -> Result<(), Exit> {
    let restored = ground::restore(run_dir).map_err(|error| match error {
        PathsError::NotPermitted { what } => {
            Exit::new(Exit::PRIVILEGE, format!("{what}: not permitted: needs CAP_NET_ADMIN"))
        }
        error => exit(error),
    })?;
    if !quiet {
        restored.lines.iter().for_each(|line| say(line));
    }
    if !restored.left.is_empty() {
        return Err(Exit::failed(restored.left.join("; ")));
    }
    if !quiet && restored.lines.is_empty() {
        say("there is nothing to put back");
    }
    Ok(())
}

/// Where a daemon is looked for.
struct Place {
    run_dir: PathBuf,
    /// Somebody said so; otherwise it is the usual place.
    is_named: bool,
}

impl Place {
    /// The command line's, else the configuration's, which is read only then.
    fn of(daemon: &Daemon, config: Option<&Path>) -> Result<Self, Exit> {
        let file = if daemon.run_dir.is_some() && config.is_none() {
            ConfigFile::default()
        } else {
            ConfigFile::read(config)?
        };
        Self::in_file(daemon, &file)
    }

    fn in_file(daemon: &Daemon, file: &ConfigFile) -> Result<Self, Exit> {
        let named = named_run_dir(daemon, file)?;
        Ok(Self { is_named: named.is_some(), run_dir: named.unwrap_or_else(|| RUN_DIR.into()) })
    }
}

/// The run directory that somebody has named.
fn named_run_dir(daemon: &Daemon, file: &ConfigFile) -> Result<Option<PathBuf>, Exit> {
    let named = daemon.run_dir.clone().or_else(|| file.paths.run_dir.clone());
    match named.as_deref().filter(|named| named.exists() && !named.is_dir()) {
        Some(other) => Err(Exit::usage(format!(
            "--run-dir {}: it is no directory; name one, or one that can be made",
            other.display()
        ))),
        None => Ok(named),
    }
}

/// The daemon's answer.
fn ask(place: &Place, question: &Question) -> Result<Answer, Exit> {
    asked(place, question).map_err(|error| unanswered(&error))
}

pub(crate) fn unanswered(error: &AskError) -> Exit {
    let code = if matches!(error, AskError::NotPermitted { .. }) { Exit::PRIVILEGE } else { Exit::FAILED };
    Exit::new(code, error.to_string())
}

/// The same, or why there is none. Where nobody names a run directory, the one of a user's dry run counts if there is no
/// other.
fn asked(place: &Place, question: &Question) -> Result<Answer, AskError> {
    let own = if place.is_named { None } else { own_run_dir() };
    match (control::ask(&place.run_dir, question), own) {
        (Err(AskError::Nobody { .. }), Some(own)) if control::socket(&own).exists() => control::ask(&own, question),
        (asked, _) => asked,
    }
}

/// Where a user without privileges may have sockets.
pub(crate) fn own_run_dir() -> Option<PathBuf> {
    let place = std::env::var_os("XDG_RUNTIME_DIR").filter(|place| !place.is_empty())?;
    Some(Path::new(&place).join("marline"))
}

/// Where the socket of a daemon may be that needs no privileges, the likelier place first.
#[cfg(feature = "fleet")]
pub(crate) fn run_dirs(named: Option<&Path>) -> Vec<PathBuf> {
    match named {
        Some(named) => vec![named.to_owned()],
        None => std::iter::once(RUN_DIR.into()).chain(own_run_dir()).collect(),
    }
}

/// How the daemon's errors end the process.
fn exit(error: PathsError) -> Exit {
    let code = match &error {
        PathsError::NotPermitted { .. } | PathsError::Unwritable(_) => Exit::PRIVILEGE,
        PathsError::Links(LinksError::NoLink { .. }) => Exit::NETWORK,
        _ => Exit::FAILED,
    };
    Exit::new(code, error.to_string())
}

/// An answer to another question.
fn odd() -> Exit {
    Exit::failed("the daemon answers something else than it was asked: it may be of another version")
}

fn json_of(value: &impl serde::Serialize) -> Result<String, Exit> {
    crate::energy::json(value)
}
