//! `marline relay status`, `drain` and `stop`: control of a relay on this host over its control socket.
//!
//! 1. The relay is the one named by `--name`, otherwise the only one that responds.
//! 2. Results go to standard output. The exit code is 1 if no relay responds and 77 if this user may not connect, as for
//!    `marline paths status`.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use marline_fleet::identity::Name;
use marline_fleet::relay::control::{COMMAND_NAME, ControlError, Request, Status, running_relays, send_request};
use marline_terminal::table::Table;

use crate::CliError;
use crate::args::{JsonArgs, RunDirArgs};
use crate::control::query_error;
use crate::directories::run_dirs;
use crate::output::print_result;
use crate::progress::size;

/// Subcommands of `marline relay`.
#[derive(Debug, Subcommand)]
pub(super) enum RelayCommand {
    /// Show tunnels, edges and destination servers of a relay on this host.
    Status {
        #[command(flatten)]
        relay_ref: RelaySelectorArgs,
        #[command(flatten)]
        format: JsonArgs,
    },
    /// Accept no new tunnels; existing ones continue, and the relay keeps running.
    Drain {
        #[command(flatten)]
        relay_ref: RelaySelectorArgs,
        /// Accept new tunnels again.
        #[arg(long)]
        undo: bool,
    },
    /// Accept no new tunnels and exit when the last one has ended, as after the first SIGTERM.
    Stop {
        #[command(flatten)]
        relay_ref: RelaySelectorArgs,
        /// Close all tunnels and exit at once, as after the second SIGTERM.
        #[arg(long)]
        now: bool,
    },
}

/// Options that select a relay on this host.
#[derive(Clone, Debug, Args)]
#[command(mut_arg("run_dir", |arg| {
    arg.help("Directory of the control socket [default: /run/marline, or $XDG_RUNTIME_DIR/marline]")
}))]
pub(super) struct RelaySelectorArgs {
    /// Name of the relay [default: the only relay that runs on this host].
    #[arg(long, value_name = "NAME")]
    name: Option<Name>,
    #[command(flatten)]
    run_dir_args: RunDirArgs,
}

/// Sends the request to the relay and prints the response.
pub(super) fn run(command: &RelayCommand) -> Result<(), CliError> {
    match command {
        RelayCommand::Status { relay_ref, format } => format.print(&query(relay_ref, Request::Status)?, render),
        RelayCommand::Drain { relay_ref, undo } => {
            let status = query(relay_ref, Request::Drain { undo: *undo })?;
            print_result(&format!("{}\n", summary_line(&status)))
        }
        RelayCommand::Stop { relay_ref, now } => {
            let status = query(relay_ref, Request::Stop { now: *now })?;
            print_result(&format!("{}\n", summary_line(&status)))
        }
    }
}

fn query(relay_ref: &RelaySelectorArgs, request: Request) -> Result<Status, CliError> {
    let (run_dir, name) = find_relay(relay_ref)?;
    send_request(&run_dir, &name, request).map_err(|error| query_error(&error))
}

/// Finds the selected relay: its run directory and its name.
fn find_relay(relay_ref: &RelaySelectorArgs) -> Result<(PathBuf, Name), CliError> {
    let dirs = run_dirs(relay_ref.run_dir_args.run_dir.as_deref());
    let mut running = Vec::new();
    for dir in &dirs {
        running.extend(running_relays(dir).unwrap_or_default().into_iter().map(|name| (dir.clone(), name)));
    }
    if let Some(name) = &relay_ref.name {
        let named = running.into_iter().find(|(_, running_name)| running_name == name);
        // If no such relay runs, the request fails with an error that names the remedy.
        return Ok(named.unwrap_or_else(|| (dirs.into_iter().next().unwrap_or_default(), name.clone())));
    }
    // A crashed relay leaves its socket behind, so only relays that respond count.
    let mut first_error = None;
    running.retain(|(dir, name)| match send_request(dir, name, Request::Status) {
        Ok(_) => true,
        Err(error) => {
            first_error = first_error.take().or(Some(query_error(&error)));
            false
        }
    });
    let names: Vec<String> = running.iter().map(|(_, name)| name.to_string()).collect();
    match running.pop() {
        Some(only) if names.len() == 1 => Ok(only),
        Some(_) => {
            Err(CliError::usage(format!("several relays run here: {}; choose one with --name", names.join(", "))))
        }
        None => Err(first_error.unwrap_or_else(|| {
            let socket = dirs.first().cloned().unwrap_or_default();
            query_error(&ControlError::NotRunning {
                daemon_command: COMMAND_NAME,
                socket,
                error: std::io::ErrorKind::NotFound.into(),
            })
        })),
    }
}

/// One line about the state of the relay.
fn summary_line(status: &Status) -> String {
    let tunnels = status.state.tunnels;
    let activity = match (status.ending, status.state.draining, status.state.closed) {
        (true, ..) => format!("stopping; {tunnels} tunnels are still open"),
        (_, true, _) => format!("draining, accepts no new tunnels; {tunnels} are open"),
        (_, _, true) => format!("drained by the fleet, accepts no new tunnels; {tunnels} are open"),
        _ => format!("accepts new tunnels; {tunnels} are open"),
    };
    format!("relay {}: {activity}", status.name)
}

/// Edges in the table at most. Our choice: more than a screen shows.
const MAX_SHOWN_EDGES: usize = 100;

fn render(status: &Status) -> String {
    let state = &status.state;
    let mut text = format!(
        "{}\nmarline {}, process {}, for {} s; {} from edges, {} to edges",
        summary_line(status),
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
    let mut edges = Table::new(["EDGE", "CONNECTIONS", "TUNNELS", "RESERVED", "UP", "DOWN"]);
    for edge in state.edges.iter().take(MAX_SHOWN_EDGES) {
        edges.row([
            edge.name.clone(),
            edge.connections.to_string(),
            edge.tunnels.to_string(),
            edge.reserved.to_string(),
            size(edge.up_bytes),
            size(edge.down_bytes),
        ]);
    }
    text += &edges.to_string();
    if state.edges.len() > MAX_SHOWN_EDGES {
        let _ = writeln!(text, "and {} more; --json lists all", state.edges.len() - MAX_SHOWN_EDGES);
    }
    if !status.origins.is_empty() {
        let mut servers = Table::new(["SERVER", "MEASURED RATE"]);
        for origin in &status.origins {
            let prefix = if origin.lower_bound { "at least " } else { "" };
            servers.row([origin.origin.to_string(), format!("{prefix}{}", origin.rate)]);
        }
        let _ = write!(text, "\n{servers}");
    }
    text
}
