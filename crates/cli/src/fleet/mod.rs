//! `marline fleet`: relays, the edges that send through them, and the service that matches both.
//!
//! In: words. Out: what `marline-fleet` does with them. Results go to standard output, what is said about them to standard
//! error; each list has a `--json` twin.

mod ca;
mod enroll;
mod log_format;
mod operator;
mod renew;
mod run;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use marline_fleet::identity::Name;

use crate::CliError;
use crate::args::parse_positive_duration;

pub(crate) use log_format::init_default_log as start_saying;

/// In which order.
const AFTER_HELP: &str = "\
From nothing to a stream:
  marline fleet ca init                                        an authority, which signs everybody
  marline fleet run --listen 0.0.0.0:4444 --address HOST       the service
  marline fleet ca token --role relay --name fra-1 --address RELAY | ssh RELAY marline fleet enroll --fleet https://HOST:4444
  marline fleet ca token --role edge --name cam-7 | ssh BOX marline fleet enroll --fleet https://HOST:4444
  marline relay …, marline edge …                              on these machines, as `enrol` says
  marline fleet ca issue operator ann                          for you: `marline fleet status`
docs/fleet.md begins with all of it on one machine, to be pasted.";

/// `marline fleet`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct FleetArgs {
    /// What to do.
    #[command(subcommand)]
    command: FleetCommand,
}

/// The verbs of `marline fleet`.
#[derive(Debug, Subcommand)]
enum FleetCommand {
    /// The certificate authority: who belongs to the fleet, and who no longer does.
    #[command(after_help = ca::AFTER_HELP)]
    Ca(ca::CaArgs),
    /// Make a key on this machine, and let a token bring its certificate.
    #[command(after_help = enroll::AFTER_HELP)]
    Enroll(enroll::EnrollArgs),
    /// Bring the next certificate before this one ends, for the same key.
    #[command(after_help = renew::AFTER_HELP)]
    Renew(renew::RenewArgs),
    /// The service that matches edges with relays, until it is stopped.
    #[command(after_help = run::AFTER_HELP)]
    Run(run::RunArgs),
    /// Show relays and edges as the service sees them.
    Status {
        #[command(flatten)]
        operator_args: operator::OperatorArgs,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Show them anew each second.
    Watch {
        #[command(flatten)]
        operator_args: operator::OperatorArgs,
    },
    /// Close a relay for new streams, and move its edges; or open it again.
    Drain {
        /// Which relay.
        #[arg(value_name = "RELAY")]
        relay: Name,
        /// For so long [default: until --undo].
        #[arg(long = "for", value_name = "TIME", value_parser = parse_positive_duration, conflicts_with = "undo")]
        time: Option<Duration>,
        /// Open it again.
        #[arg(long)]
        undo: bool,
        #[command(flatten)]
        operator_args: operator::OperatorArgs,
    },
}

/// The directory that systemd has made for this unit (`StateDirectory=`).
pub(crate) fn unit_state_dir() -> Option<PathBuf> {
    std::env::var_os("STATE_DIRECTORY").filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// Does what was asked for.
pub(crate) fn run(args: FleetArgs) -> Result<(), CliError> {
    match args.command {
        FleetCommand::Ca(args) => ca::run(args),
        FleetCommand::Enroll(args) => enroll::run(&args),
        FleetCommand::Renew(args) => renew::run(&args),
        FleetCommand::Run(args) => run::run(args),
        FleetCommand::Status { operator_args, json } => operator::status(&operator_args, json),
        FleetCommand::Watch { operator_args } => operator::watch(&operator_args),
        FleetCommand::Drain { relay, time, undo, operator_args } => {
            operator::drain(&operator_args, &relay, time, undo)
        }
    }
}
