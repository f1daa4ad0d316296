//! `marline relay status`, `drain` and `stop`: what the owner of a relay on this machine asks it, and tells it.
//!
//! 1. Which relay: the one that `--name` says; otherwise the only one that answers.
//! 2. Results go to standard output; exit code 1 where nobody answers, 77 where this user may not ask, as `marline paths status`.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use marline_fleet::identity::Name;
use marline_fleet::relay::control::{AskError, COMMAND_NAME, Request, Status, running_relays, send_request};

use crate::Exit;
use crate::energy::{json, table};
use crate::output::print;
use crate::paths::{run_dirs, unanswered};
use crate::progress::size;

/// The verbs of `marline relay`.
#[derive(Debug, Subcommand)]
pub(super) enum RelayVerb {
    /// Show tunnels, edges and what is reached, of a relay on this machine.
    Status {
        #[command(flatten)]
        which: Which,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Take no new tunnels; the old ones end when they end. The relay goes on running.
    Drain {
        #[command(flatten)]
        which: Which,
        /// Take new tunnels again.
        #[arg(long)]
        undo: bool,
    },
    /// Take no new tunnels, and end with the last one: as the first SIGTERM does.
    Stop {
        #[command(flatten)]
        which: Which,
        /// End at once, and the tunnels with it: as the second SIGTERM does.
        #[arg(long)]
        now: bool,
    },
}

/// Which relay.
#[derive(Clone, Debug, Args)]
pub(super) struct Which {
    /// The relay's name [default: the only one that runs here].
    #[arg(long, value_name = "NAME")]
    name: Option<Name>,
    /// Where its socket is [default: /run/marline, or $XDG_RUNTIME_DIR/marline].
    #[arg(long, value_name = "DIRECTORY")]
    run_dir: Option<PathBuf>,
}

/// Does what was asked for.
pub(super) fn run(verb: &RelayVerb) -> Result<(), Exit> {
    match verb {
        RelayVerb::Status { which, json: as_json } => {
            let status = ask(which, Request::Status)?;
            print(&if *as_json { json(&status)? } else { shown(&status) })
        }
        RelayVerb::Drain { which, undo } => {
            let status = ask(which, Request::Drain { undo: *undo })?;
            print(&format!("{}\n", course(&status)))
        }
        RelayVerb::Stop { which, now } => {
            let status = ask(which, Request::Stop { now: *now })?;
            print(&format!("{}\n", course(&status)))
        }
    }
}

fn ask(which: &Which, question: Request) -> Result<Status, Exit> {
    let (run_dir, name) = one(which)?;
    send_request(&run_dir, &name, question).map_err(|error| unanswered(&error))
}

/// The relay that is meant, and where.
fn one(which: &Which) -> Result<(PathBuf, Name), Exit> {
    let dirs = run_dirs(which.run_dir.as_deref());
    let mut there = Vec::new();
    for dir in &dirs {
        there.extend(running_relays(dir).unwrap_or_default().into_iter().map(|name| (dir.clone(), name)));
    }
    if let Some(name) = &which.name {
        let named = there.into_iter().find(|(_, other)| other == name);
        // Asking where there is none says what to do.
        return Ok(named.unwrap_or_else(|| (dirs.into_iter().next().unwrap_or_default(), name.clone())));
    }
    // A socket that a crash has left is none.
    let mut refusal = None;
    there.retain(|(dir, name)| match send_request(dir, name, Request::Status) {
        Ok(_) => true,
        Err(error) => {
            refusal = refusal.take().or(Some(unanswered(&error)));
            false
        }
    });
    let names: Vec<String> = there.iter().map(|(_, name)| name.to_string()).collect();
    match there.pop() {
        Some(one) if names.len() == 1 => Ok(one),
        Some(_) => {
            Err(Exit::usage(format!("several relays run here: {}; choose one with --name", names.join(", "))))
        }
        None => Err(refusal.unwrap_or_else(|| {
            let socket = dirs.first().cloned().unwrap_or_default();
            unanswered(&AskError::Nobody { who: COMMAND_NAME, socket, error: std::io::ErrorKind::NotFound.into() })
        })),
    }
}

/// One line: what it does.
fn course(status: &Status) -> String {
    let tunnels = status.state.tunnels;
    let does = match (status.ending, status.state.draining, status.state.closed) {
        (true, ..) => format!("ends when {tunnels} tunnels have"),
        (_, true, _) => format!("takes no new tunnels; {tunnels} are open"),
        (_, _, true) => format!("takes no new tunnels, for the fleet says so; {tunnels} are open"),
        _ => format!("takes new tunnels; {tunnels} are open"),
    };
    format!("relay {}: {does}", status.name)
}

/// chosen: more than a screen holds.
const MOST: usize = 100;

fn shown(status: &Status) -> String {
    let state = &status.state;
    let mut text = format!(
        "{}\nmarline {}, process {}, for {} s; {} from edges, {} to edges",
        course(status),
        status.version,
        status.pid,
        status.uptime_s,
        size(state.up_bytes),
        size(state.down_bytes)
    );
    if let Some(capacity) = status.capacity {
        let _ = write!(text, "; {} of {} reserved", state.reserved, capacity);
    }
    text += "\n\n";
    let mut rows = vec![["EDGE", "CONNECTIONS", "TUNNELS", "RESERVED", "UP", "DOWN"].map(str::to_owned).to_vec()];
    rows.extend(state.edges.iter().take(MOST).map(|edge| {
        let counts = [edge.connections.to_string(), edge.tunnels.to_string(), edge.reserved.to_string()];
        [vec![edge.name.clone()], counts.to_vec(), vec![size(edge.up_bytes), size(edge.down_bytes)]].concat()
    }));
    text += &table(&rows);
    if state.edges.len() > MOST {
        let _ = writeln!(text, "and {} more; --json has all", state.edges.len() - MOST);
    }
    if !status.origins.is_empty() {
        let mut rows = vec![vec!["SERVER".to_owned(), "REACHED".to_owned()]];
        let reached = |least: bool| if least { "at least " } else { "" };
        rows.extend(
            status
                .origins
                .iter()
                .map(|one| vec![one.origin.to_string(), format!("{}{}", reached(one.lower_bound), one.rate)]),
        );
        let _ = write!(text, "\n{}", table(&rows));
    }
    text
}
