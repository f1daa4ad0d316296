//! `marline paths`: from words to a daemon that steers MPTCP connections, and to questions that it answers.
//!
//! 1. Everything that the user wrote, and whether this machine is fit for it, is looked at before anything is changed.
//! 2. What is said about the run goes to standard error, results to standard output; each result has a `--json` twin.
//! 3. Nothing here decides or changes anything: `core::paths` and `net::paths` do.

mod args;
mod doctor;
mod eib;
mod run;
mod show;

use std::io::Write;
use std::path::{Path, PathBuf};

use marline_net::links::LinksError;
use marline_net::paths::PathsError;
use marline_net::paths::control::{self, Answer, AskError, Question};
use marline_net::paths::ground::{self, RUN_DIR};

use self::args::{Daemon, PathsVerb};
use crate::Exit;

pub(crate) use self::args::{AFTER_HELP, PathsArgs};
pub(crate) use self::run::PathsTerms;

/// Does what was asked for.
pub(crate) fn run(args: PathsArgs, config: Option<&Path>) -> Result<(), Exit> {
    match args.verb {
        None => run::run(args.run, config),
        Some(PathsVerb::Run(run)) => run::run(*run, config),
        Some(PathsVerb::Status { daemon, json, at_most }) => {
            let Answer::Status(status) = ask(&daemon, &Question::Status { at_most })? else { return Err(odd()) };
            print(&if json { json_of(&status)? } else { show::status(&status, at_most.unwrap_or(show::MOST)) })
        }
        Some(PathsVerb::Watch { daemon }) => {
            show::watch(|| match ask(&daemon, &Question::Status { at_most: Some(show::MOST) })? {
                Answer::Status(status) => Ok(status),
                _ => Err(odd()),
            })
        }
        Some(PathsVerb::Explain { token, daemon, json }) => {
            let Answer::Explained(explained) = ask(&daemon, &Question::Explain { token })? else {
                return Err(odd());
            };
            print(&if json { json_of(&explained)? } else { show::explained(&explained) })
        }
        Some(PathsVerb::Doctor { probe, daemon, json }) => doctor::run(&probe, &run_dir(&daemon), json),
        Some(PathsVerb::Eib { energy_model, kinds, json }) => {
            eib::run(energy_model.as_deref(), kinds, json, config)
        }
        Some(PathsVerb::Restore { daemon, quiet }) => restore(&daemon, quiet),
    }
}

fn restore(daemon: &Daemon, quiet: bool) -> Result<(), Exit> {
    let lines = ground::restore(&run_dir(daemon)).map_err(|error| match error {
        PathsError::NotPermitted { what } => {
            Exit::new(Exit::PRIVILEGE, format!("{what}: not permitted: needs CAP_NET_ADMIN"))
        }
        error => exit(error),
    })?;
    if !quiet {
        let lines = if lines.is_empty() { vec!["there is nothing to put back".to_owned()] } else { lines };
        for line in lines {
            say(&line);
        }
    }
    Ok(())
}

/// The daemon's answer. Without `--run-dir` the one of a user's dry run counts where there is no other.
fn ask(daemon: &Daemon, question: &Question) -> Result<Answer, Exit> {
    let first = run_dir(daemon);
    let own = daemon.run_dir.is_none().then(own_run_dir).flatten();
    let asked = match (control::ask(&first, question), own) {
        (Err(AskError::Nobody { .. }), Some(own)) if control::socket(&own).exists() => control::ask(&own, question),
        (asked, _) => asked,
    };
    asked.map_err(|error| {
        let code = if matches!(error, AskError::NotPermitted { .. }) { Exit::PRIVILEGE } else { Exit::FAILED };
        Exit::new(code, error.to_string())
    })
}

fn run_dir(daemon: &Daemon) -> PathBuf {
    daemon.run_dir.clone().unwrap_or_else(|| RUN_DIR.into())
}

/// Where a user without privileges may have sockets.
fn own_run_dir() -> Option<PathBuf> {
    let place = std::env::var_os("XDG_RUNTIME_DIR").filter(|place| !place.is_empty())?;
    Some(Path::new(&place).join("marline"))
}

/// How the daemon's errors end the process.
fn exit(error: PathsError) -> Exit {
    let code = match &error {
        PathsError::NotPermitted { .. } => Exit::PRIVILEGE,
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

fn print(text: &str) -> Result<(), Exit> {
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(())
}

/// A line for people.
fn say(line: &str) {
    // A closed standard error must not end a daemon.
    let _ = writeln!(std::io::stderr(), "marline: {line}");
}
