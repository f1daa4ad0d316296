//! `marline fleet renew`: the next certificate of who has one, in the place of the old one.
//!
//! Relays and edges that know a service do this by themselves; people, and who speaks CONNECT with a program of his own, do it so.

use clap::Args;
use marline_fleet::renew::{RenewalError, renew};
use marline_fleet::service::ClientError;

use super::ask::runtime;
use super::ca;
use crate::Exit;
use crate::member::Files;
use crate::output::{print, say};

pub(super) const AFTER_HELP: &str = "\
Examples:
  marline fleet renew --fleet https://fleet.example.org:4444 --certificate ann.pem
      From the last third of its life on: the same name, addresses and key, for as long again. ann.pem is replaced.

Relays and edges with --fleet renew their own. One that has ended is not renewed: enrol again with a new token.

Exit codes: 0 done, 1 failed or too early, 64 wrong usage, 69 the service is not reached, 77 not permitted.";

/// `marline fleet renew`.
#[derive(Debug, Args)]
pub(super) struct RenewArgs {
    /// The service.
    #[arg(long, value_name = "URL")]
    fleet: String,
    #[command(flatten)]
    files: Files,
}

pub(super) fn run(args: &RenewArgs) -> Result<(), Exit> {
    let member = args.files.read_any()?;
    let renewed = runtime()?.block_on(renew(&args.fleet, &member.own)).map_err(exit)?;
    renewed.write(&member.files).map_err(ca::exit)?;
    print(&format!("{}\n", member.files.certificate.display()))?;
    say(&format!("{} until {}", member.identity, renewed.not_after));
    Ok(())
}

fn exit(error: RenewalError) -> Exit {
    let code = match &error {
        RenewalError::Service(ClientError::Url(_)) => Exit::USAGE,
        RenewalError::Service(ClientError::Network { .. }) => Exit::NETWORK,
        RenewalError::Service(ClientError::Refused(problem)) if problem.status == 403 => Exit::PRIVILEGE,
        _ => Exit::FAILED,
    };
    Exit::new(code, error.to_string())
}
