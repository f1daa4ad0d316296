//! `marline fleet`: administration of a fleet: certificate authority, enrolment, and the service that assigns relays to edges.
//!
//! This module parses arguments and prints results; `marline-fleet` does the work. Results go to standard output, notices
//! to standard error, and each list is also available with `--json`.

mod ca;
mod enroll;
mod log_format;
mod operator;
mod renew;
mod run;

use std::time::Duration;

use clap::{Args, Subcommand};
use marline_fleet::identity::Name;

use crate::CliError;
use crate::args::{JsonArgs, parse_positive_duration};

pub(crate) use log_format::init_default_log;

/// Steps to set up a fleet, in their order.
const AFTER_HELP: &str = "\
Set up a fleet:
  marline fleet ca init                                        create the certificate authority
  marline fleet run --listen 0.0.0.0:4444 --address HOST       start the service
  marline fleet ca token --role relay --name fra-1 --address RELAY | ssh RELAY marline fleet enroll --fleet https://HOST:4444
  marline fleet ca token --role edge --name cam-7 | ssh EDGE marline fleet enroll --fleet https://HOST:4444
  marline relay …, marline edge …                              run the commands that `enroll` prints on these hosts
  marline fleet ca issue operator ann                          create your certificate for `marline fleet status`
docs/fleet.md begins with commands that set up all of this on one host.";

/// `marline fleet`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct FleetArgs {
    /// The subcommand.
    #[command(subcommand)]
    command: FleetCommand,
}

/// Subcommands of `marline fleet`.
#[derive(Debug, Subcommand)]
enum FleetCommand {
    /// Manage the certificate authority: issue, revoke and list certificates.
    #[command(after_help = ca::AFTER_HELP)]
    Ca(ca::CaArgs),
    /// Generate a key on this host and get its certificate with an enrolment token.
    #[command(after_help = enroll::AFTER_HELP)]
    Enroll(enroll::EnrollArgs),
    /// Renew a certificate for the same key before it expires.
    #[command(after_help = renew::AFTER_HELP)]
    Renew(renew::RenewArgs),
    /// Run the fleet service, which assigns relays to edges, until it is stopped.
    #[command(after_help = run::AFTER_HELP)]
    Run(run::RunArgs),
    /// Show the service and its relays and edges.
    Status {
        #[command(flatten)]
        operator_args: operator::OperatorArgs,
        #[command(flatten)]
        format: JsonArgs,
    },
    /// Show the output of `status`, updated every second.
    Watch {
        #[command(flatten)]
        operator_args: operator::OperatorArgs,
    },
    /// Assign no further edges to a relay and move its edges to other relays, or cancel that.
    Drain {
        /// Name of the relay.
        #[arg(value_name = "RELAY")]
        relay: Name,
        /// Duration of the drain [default: until --undo].
        #[arg(long = "for", value_name = "TIME", value_parser = parse_positive_duration, conflicts_with = "undo")]
        time: Option<Duration>,
        /// Cancel the drain.
        #[arg(long)]
        undo: bool,
        #[command(flatten)]
        operator_args: operator::OperatorArgs,
    },
}

/// Runs a subcommand of `marline fleet`.
pub(crate) fn run(args: FleetArgs) -> Result<(), CliError> {
    match args.command {
        FleetCommand::Ca(args) => ca::run(args),
        FleetCommand::Enroll(args) => enroll::run(&args),
        FleetCommand::Renew(args) => renew::run(&args),
        FleetCommand::Run(args) => run::run(args),
        FleetCommand::Status { operator_args, format } => operator::status(&operator_args, format),
        FleetCommand::Watch { operator_args } => operator::watch(&operator_args),
        FleetCommand::Drain { relay, time, undo, operator_args } => {
            operator::drain(&operator_args, &relay, time, undo)
        }
    }
}
