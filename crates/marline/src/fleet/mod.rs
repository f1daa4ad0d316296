//! `marline fleet`: relays, the edges that send through them, and the service that matches both.
//!
//! In: words. Out: what `marline-fleet` does with them. Results go to standard output, what is said about them to standard
//! error; each list has a `--json` twin.

mod ca;

use clap::{Args, Subcommand};

use crate::Exit;

/// `marline fleet`.
#[derive(Debug, Args)]
pub struct FleetArgs {
    /// What to do.
    #[command(subcommand)]
    verb: FleetVerb,
}

/// The verbs of `marline fleet`.
#[derive(Debug, Subcommand)]
enum FleetVerb {
    /// The certificate authority: who belongs to the fleet, and who no longer does.
    #[command(after_help = ca::AFTER_HELP)]
    Ca(ca::CaArgs),
}

/// Does what was asked for.
pub(crate) fn run(args: FleetArgs) -> Result<(), Exit> {
    match args.verb {
        FleetVerb::Ca(args) => ca::run(args),
    }
}
