//! `marline fleet renew`: renews the certificate of a member and replaces its file.
//!
//! Relays and edges with `--fleet` renew their certificates themselves. This command is for operators, and for members that
//! use a relay with another CONNECT client.

use clap::Args;
use marline_fleet::renew::{RenewalError, renew};
use marline_fleet::service::ClientError;

use super::ca;
use super::operator::new_runtime;
use crate::CliError;
use crate::credentials::MemberFileArgs;
use crate::output::{print_notice, print_result};

pub(super) const AFTER_HELP: &str = "\
Examples:
  marline fleet renew --fleet https://fleet.example.org:4444 --certificate ann.pem
      Replace ann.pem with a certificate of the same name, addresses, key and lifetime. Possible
      in the last third of the lifetime.

Relays and edges with --fleet renew their certificates themselves. An expired certificate cannot
be renewed: enrol again with a new token.

Exit codes: 0 success, 1 failure or too early, 64 wrong usage, 69 service unreachable,
77 not permitted.";

/// `marline fleet renew`.
#[derive(Debug, Args)]
pub(super) struct RenewArgs {
    /// URL of the fleet service.
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
    print_notice(&format!("{}, valid until {}", member.identity, renewed.not_after));
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
