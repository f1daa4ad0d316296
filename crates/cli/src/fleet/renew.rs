//! `marline fleet renew`: the next certificate of who has one, in the place of the old one.
//!
//! Relays and edges that know a service do this by themselves; people, and who speaks CONNECT with a program of his own, do it so.

use clap::Args;
use marline_fleet::renew::{RenewalError, renew};
use marline_fleet::service::ClientError;

use super::ca;
use super::operator::new_runtime;
use crate::CliError;
use crate::credentials::MemberFileArgs;
use crate::output::{print_result, say};

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
    member_files: MemberFileArgs,
}

pub(super) fn run(args: &RenewArgs) -> Result<(), CliError> {
    let member = args.member_files.read_any_role()?;
    let renewed = new_runtime()?.block_on(renew(&args.fleet, &member.credentials)).map_err(to_cli_error)?;
    renewed.write(&member.files).map_err(ca::to_cli_error)?;
    print_result(&format!("{}\n", member.files.certificate.display()))?;
    say(&format!("{} until {}", member.identity, renewed.not_after));
    Ok(())
}

fn to_cli_error(error: RenewalError) -> CliError {
    let code = match &error {
        RenewalError::Service(ClientError::Url(_)) => CliError::USAGE,
        RenewalError::Service(ClientError::Network { .. }) => CliError::NETWORK,
        RenewalError::Service(ClientError::Refused(problem)) if problem.status == 403 => CliError::PRIVILEGE,
        _ => CliError::FAILED,
    };
    CliError::new(code, error.to_string())
}
