//! `marline fleet enroll`: turns this host into a fleet member with an enrolment token.
//!
//! The token is read from a file or from standard input. It is never an argument, since every user of the host can read the
//! arguments of a process.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use clap::Args;
use marline_fleet::enrol::{EnrolmentError, enrol_member};
use marline_fleet::service::ClientError;
use marline_net::private_file::read_secret;
use rustix::fs::Access;

use super::operator::new_runtime;
use crate::output::{print_notice, print_result};
use crate::{CliError, credentials};

pub(super) const AFTER_HELP: &str = "\
Examples:
  marline fleet ca token --role edge --name cam-7 | ssh cam-7 marline fleet enroll --fleet https://fleet.example.org:4444
      Write NAME.pem, NAME.key, ca.pem and revoked.pem to the current directory; the key never
      leaves the new member's host.
  marline fleet enroll --fleet https://fleet.example.org:4444 --token-file token --out /etc/marline/relay

The fingerprint in the token authenticates the service. A token can be used once.";

/// `marline fleet enroll`.
#[derive(Debug, Args)]
pub(super) struct EnrollArgs {
    /// URL of the fleet service.
    #[arg(long, value_name = "URL")]
    fleet: String,
    /// File with the token that `marline fleet ca token` printed; `-` reads standard input.
    #[arg(long, value_name = "FILE", default_value = "-")]
    token_file: PathBuf,
    /// Directory for certificate, key, CA certificate and revocation list.
    #[arg(long, value_name = "DIR", default_value = ".")]
    out: PathBuf,
}

/// Bytes that are read at most; a token has a few hundred.
const MAX_TOKEN: u64 = 16 * 1024;

pub(super) fn run(args: &EnrollArgs) -> Result<(), CliError> {
    let token = read_token(args)?;
    check_output_dir(&args.out)?;
    let member = new_runtime()?.block_on(enrol_member(&args.fleet, &token, &args.out)).map_err(to_cli_error)?;
    print_result(&format!("{}\n", member.files.certificate.display()))?;
    print_notice(&format!("this host is now {}, valid until {}", member.identity, member.not_after));
    if member.trusts_others {
        print_notice(&format!(
            "{} existed already and was kept, but it trusts other authorities than the service does: compare it with the service's ca.pem",
            member.files.authority.display()
        ));
    }
    if let Err(error) = member.revocation_list {
        print_notice(&format!("the revocation list could not be downloaded: {error}"));
    }
    print_notice(&format!(
        "next: {}",
        credentials::next_command(member.identity.role, &member.files.certificate, &args.fleet)
    ));
    Ok(())
}

/// Creates the output directory and checks that it is writable, before the token is used up.
fn check_output_dir(out: &Path) -> Result<(), CliError> {
    let created = std::fs::create_dir_all(out);
    let created = created.and_then(|()| Ok(rustix::fs::access(out, Access::WRITE_OK | Access::EXEC_OK)?));
    created.map_err(|error| CliError::usage(format!("--out {}: {error}; the token was not used", out.display())))
}

fn read_token(args: &EnrollArgs) -> Result<String, CliError> {
    if args.token_file.as_os_str() == "-" {
        let mut text = String::new();
        let result = std::io::stdin().take(MAX_TOKEN).read_to_string(&mut text);
        result.map_err(|error| CliError::usage(format!("--token-file -: {error}")))?;
        return Ok(text);
    }
    let bytes = read_secret(&args.token_file).map_err(|error| CliError::usage(format!("--token-file {error}")))?;
    String::from_utf8(bytes)
        .map_err(|_| CliError::usage(format!("--token-file {}: not a text file", args.token_file.display())))
}

fn to_cli_error(error: EnrolmentError) -> CliError {
    let code = match &error {
        EnrolmentError::Token(_) | EnrolmentError::Service(ClientError::Url(_)) => CliError::USAGE,
        EnrolmentError::Service(ClientError::Network { .. }) => CliError::NETWORK,
        EnrolmentError::Service(ClientError::Refused(problem)) if problem.status == 403 => CliError::PRIVILEGE,
        _ => CliError::FAILED,
    };
    CliError::new(code, error.to_string())
}
