//! `marline fleet ca`: administration of the certificate authority: create it, issue, revoke and list certificates.
//!
//! 1. Enrolment tokens are meant for edges and relays: the private key is generated on the member's host and stays there, and the
//!    member renews its certificate automatically.
//! 2. Certificates issued here are for operators and for members that cannot enrol.
//! 3. Tokens and paths go to standard output, for scripts; keys never do.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use marline_fleet::ca::{
    Address, Authority, CaError, CertRequest, CertState, CertTemplate, IssuedCert, MemberFiles, RevocationFile,
    Serial, UtcSeconds,
};
use marline_fleet::identity::{Identity, Name, Role};
use marline_terminal::table::Table;
use serde::Serialize;

use crate::args::{JsonArgs, parse_positive_duration};
use crate::directories::config_dir;
use crate::output::{print_notice, print_result};
use crate::{CliError, credentials};

pub(super) const AFTER_HELP: &str = "\
Examples:
  marline fleet ca init --name 'Example fleet'
  marline fleet ca token --role edge --name cam-7
      Print an enrolment token: one line, valid once and for an hour, with which the edge gets its
      certificate.
  marline fleet ca token --role relay --name fra-1 --address fra-1.example.org --address 192.0.2.7
  marline fleet ca issue operator ann --out ~/marline
      Write ann.pem, ann.key and ca.pem for an operator.
  marline fleet ca revoke --role edge cam-7
  marline fleet ca list --json | jq -r '.[] | select(.state == \"valid\") | .identity'

The directory is /etc/marline/ca for root, otherwise ~/.config/marline/ca. Its ca.key is the
secret of the whole fleet: keep a backup where nobody else has access.
docs/fleet-reference.md describes all files.

Exit codes: 0 success, 1 failure, 64 wrong usage, 77 not permitted.";

/// `marline fleet ca`.
#[derive(Debug, Args)]
pub(super) struct CaArgs {
    #[command(subcommand)]
    command: CaCommand,
}

#[derive(Debug, Subcommand)]
enum CaCommand {
    /// Create a certificate authority, or complete an interrupted creation.
    Init {
        #[command(flatten)]
        ca_dir_args: CaDirArgs,
        /// Name of the authority in its certificate.
        #[arg(long, value_name = "NAME", default_value = "marline fleet")]
        name: String,
    },
    /// Print an enrolment token, with which a new member gets its certificate, once.
    Token {
        /// Role of the member: edge, relay, fleet or operator.
        #[arg(long, value_name = "ROLE")]
        role: Role,
        /// Name of the member.
        #[arg(long, value_name = "NAME")]
        name: Name,
        /// Public DNS name or IP address of a relay or fleet service, without a port; repeat for more.
        #[arg(long, value_name = "HOST")]
        address: Vec<Address>,
        /// Lifetime of the token.
        #[arg(long, value_name = "TIME", default_value = "1h", value_parser = parse_positive_duration)]
        valid: Duration,
        /// Lifetime of the certificate; edges and relays with --fleet renew it in time.
        #[arg(long, value_name = "TIME", default_value = "30d", value_parser = parse_positive_duration)]
        certificate_valid: Duration,
        #[command(flatten)]
        ca_dir_args: CaDirArgs,
    },
    /// Write a certificate and, unless --csr is given, its private key to files.
    Issue {
        /// Role of the member: edge, relay, fleet or operator.
        #[arg(value_name = "ROLE")]
        role: Role,
        /// Name of the member.
        #[arg(value_name = "NAME")]
        name: Name,
        /// Public DNS name or IP address of a relay or fleet service, without a port; repeat for more.
        #[arg(long, value_name = "HOST")]
        address: Vec<Address>,
        /// Lifetime of the certificate.
        #[arg(long, value_name = "TIME", default_value = "90d", value_parser = parse_positive_duration)]
        valid: Duration,
        /// Directory for NAME.pem, NAME.key and ca.pem, and for a relay also revoked.pem.
        #[arg(long, value_name = "DIR", default_value = ".")]
        out: PathBuf,
        /// Certify the key of this request (PKCS #10, PEM or DER) instead of a new one; names in the request are ignored.
        #[arg(long, value_name = "FILE")]
        csr: Option<PathBuf>,
        #[command(flatten)]
        ca_dir_args: CaDirArgs,
    },
    /// Revoke one certificate, or all certificates of a member.
    Revoke {
        /// Name of the member whose certificates are revoked.
        #[arg(value_name = "NAME", requires = "role", conflicts_with = "serial")]
        name: Option<Name>,
        /// Role of the member: edge, relay, fleet or operator.
        #[arg(long, value_name = "ROLE", requires = "name")]
        role: Option<Role>,
        /// Revoke only the certificate with this serial number, as shown by `list`.
        #[arg(long, value_name = "HEX")]
        serial: Option<Serial>,
        #[command(flatten)]
        ca_dir_args: CaDirArgs,
    },
    /// List all certificates and their states.
    #[command(mut_arg("json", |arg| arg.help("Print one JSON array")))]
    List {
        #[command(flatten)]
        format: JsonArgs,
        #[command(flatten)]
        ca_dir_args: CaDirArgs,
    },
}

/// Option for the directory of the authority.
#[derive(Debug, Args)]
struct CaDirArgs {
    /// Directory of the authority [default: /etc/marline/ca for root, otherwise ~/.config/marline/ca].
    #[arg(long, value_name = "DIR")]
    ca_dir: Option<PathBuf>,
}

impl CaDirArgs {
    fn authority_dir(&self) -> Result<PathBuf, CliError> {
        path(self.ca_dir.clone(), "--ca-dir")
    }

    fn open(&self) -> Result<Authority, CliError> {
        Authority::open(&self.authority_dir()?).map_err(to_cli_error)
    }
}

/// The directory that `option` named, or the default directory of the authority.
pub(super) fn path(given: Option<PathBuf>, option: &str) -> Result<PathBuf, CliError> {
    let default = || default_authority_dir(rustix::process::geteuid().is_root(), config_dir());
    let no_home =
        || CliError::usage(format!("no home directory: set the directory of the authority with {option}"));
    given.or_else(default).ok_or_else(no_home)
}

fn default_authority_dir(is_root: bool, config: Option<PathBuf>) -> Option<PathBuf> {
    if is_root { Some("/etc/marline/ca".into()) } else { Some(config?.join("ca")) }
}

/// Runs a subcommand of `marline fleet ca`.
pub(super) fn run(args: CaArgs) -> Result<(), CliError> {
    let now = UtcSeconds::now();
    match args.command {
        CaCommand::Init { ca_dir_args, name } => init_authority(&ca_dir_args.authority_dir()?, &name, now),
        CaCommand::Token { role, name, address, valid, certificate_valid, ca_dir_args } => {
            print_token(&ca_dir_args, &cert_template(role, name, address, certificate_valid)?, valid, now)
        }
        CaCommand::Issue { role, name, address, valid, out, csr, ca_dir_args } => {
            issue_certificate(&ca_dir_args, &cert_template(role, name, address, valid)?, &out, csr.as_deref(), now)
        }
        CaCommand::Revoke { name, role, serial, ca_dir_args } => {
            let revoked = match (name, role, serial) {
                (_, _, Some(serial)) => ca_dir_args.open()?.revoke(serial, now).map(|one| vec![one]),
                (Some(name), Some(role), None) => ca_dir_args.open()?.revoke_name(&Identity { role, name }, now),
                _ => {
                    return Err(CliError::usage(
                        "nothing to revoke is named: use --role ROLE NAME, or --serial HEX; see `marline fleet ca revoke --help`",
                    ));
                }
            };
            let line = |one: IssuedCert| format!("{} {}\n", one.serial, one.identity);
            print_result(&revoked.map_err(to_cli_error)?.into_iter().map(line).collect::<String>())
        }
        CaCommand::List { format, ca_dir_args } => list_certificates(&ca_dir_args, format, now),
    }
}

fn init_authority(dir: &Path, name: &str, now: UtcSeconds) -> Result<(), CliError> {
    let authority = Authority::init(dir, name, now).map_err(|error| match error {
        CaError::Refused(_) => CliError::usage(error.to_string()),
        error => to_cli_error(error),
    })?;
    print_result(&format!("{}\n", dir.join("ca.pem").display()))?;
    print_notice(&format!("SHA-256 {}, valid until {}", authority.fingerprint(), authority.not_after()));
    print_notice(&format!(
        "{} is the secret of the fleet: keep a backup where nobody else has access",
        dir.join("ca.key").display()
    ));
    print_notice(&format!(
        "next: marline fleet run --ca-dir {} --listen ADDRESS:4444 --address HOST",
        dir.display()
    ));
    Ok(())
}

fn print_token(
    ca_dir_args: &CaDirArgs,
    template: &CertTemplate,
    lifetime: Duration,
    now: UtcSeconds,
) -> Result<(), CliError> {
    let token = ca_dir_args.open()?.create_token(template, lifetime, now).map_err(to_cli_error)?;
    print_result(&format!("{}\n", token.reveal()))?;
    print_notice(&format!(
        "valid once, until {}: the first host that uses the token becomes {}",
        now.saturating_add(lifetime),
        template.identity()
    ));
    print_notice(
        "next: on the new member's host, run marline fleet enroll --fleet https://HOST:4444 with the token on standard input",
    );
    Ok(())
}

fn issue_certificate(
    ca_dir_args: &CaDirArgs,
    template: &CertTemplate,
    out: &Path,
    csr: Option<&Path>,
    now: UtcSeconds,
) -> Result<(), CliError> {
    let files =
        MemberFiles::of(out, &template.identity().name).map_err(|error| CliError::usage(error.to_string()))?;
    let request = csr.map(read_request).transpose()?;
    let authority = ca_dir_args.open()?;
    files.check_can_write(authority.certificate(), request.is_none()).map_err(to_cli_error)?;
    std::fs::create_dir_all(out).map_err(|error| CliError::failed(format!("{}: {error}", out.display())))?;
    // Before a certificate is issued, so that an existing file or a missing permission does not waste one.
    let revoked =
        (template.identity().role == Role::Relay).then(|| write_revocations(&authority, &files)).transpose()?;
    let (chain, key) = match &request {
        Some(request) => (authority.issue(template, request, now).map_err(to_cli_error)?, None),
        None => {
            let (chain, key) = authority.issue_with_key(template, now).map_err(to_cli_error)?;
            (chain, Some(key))
        }
    };
    files.write(&chain, key.as_ref()).map_err(to_cli_error)?;
    let paths = [Some(&files.certificate), key.as_ref().map(|_| &files.key), Some(&files.authority)];
    let written = paths.into_iter().chain([revoked.as_ref()]);
    let lines: String = written.flatten().map(|path| format!("{}\n", path.display())).collect();
    print_result(&lines)?;
    print_notice(&format!(
        "{}, valid until {}, serial {}",
        template.identity(),
        chain.record.not_after,
        chain.record.serial
    ));
    print_notice(&format!(
        "next: {}",
        credentials::next_command(template.identity().role, &files.certificate, "https://HOST:4444")
    ));
    Ok(())
}

/// Writes the revocation list beside a relay's files, since a relay does not start without one.
fn write_revocations(authority: &Authority, files: &MemberFiles) -> Result<PathBuf, CliError> {
    let (source, target) = (authority.crl_path(), files.authority.with_file_name("revoked.pem"));
    let text = std::fs::read_to_string(&source);
    let text = text.map_err(|error| CliError::failed(format!("{}: {error}", source.display())))?;
    RevocationFile::install_if_newer(&target, authority.certificate(), &text).map_err(to_cli_error)?;
    Ok(target)
}

fn read_request(path: &Path) -> Result<CertRequest, CliError> {
    let usage_error = |text: String| CliError::usage(format!("{}: {text}", path.display()));
    let bytes = std::fs::read(path).map_err(|error| usage_error(error.to_string()))?;
    CertRequest::parse(&bytes).map_err(|error| usage_error(error.to_string()))
}

fn cert_template(
    role: Role,
    name: Name,
    addresses: Vec<Address>,
    lifetime: Duration,
) -> Result<CertTemplate, CliError> {
    CertTemplate::new(Identity { role, name }, addresses, lifetime)
        .map_err(|error| CliError::usage(error.to_string()))
}

/// One certificate in the JSON output.
#[derive(Serialize)]
struct CertificateRow {
    #[serde(flatten)]
    issued: IssuedCert,
    state: CertState,
}

fn list_certificates(ca_dir_args: &CaDirArgs, format: JsonArgs, now: UtcSeconds) -> Result<(), CliError> {
    let all = ca_dir_args.open()?.issued_certs(now).map_err(to_cli_error)?;
    let rows: Vec<CertificateRow> =
        all.into_iter().map(|(issued, state)| CertificateRow { issued, state }).collect();
    format.print(&rows, |rows| {
        let mut table = Table::new(["identity", "serial", "valid until", "state"]);
        for CertificateRow { issued, state } in rows {
            let state = match state {
                CertState::Valid => "valid",
                CertState::Expired => "expired",
                CertState::Revoked => "revoked",
            };
            let (identity, serial) = (issued.identity.to_string(), issued.serial.to_string());
            table.row([identity, serial, issued.not_after.to_string(), state.to_owned()]);
        }
        table.to_string()
    })
}

/// Maps an error of the authority to an exit code.
pub(super) fn to_cli_error(error: CaError) -> CliError {
    let code = if error.is_not_permitted() { CliError::PRIVILEGE } else { CliError::FAILED };
    CliError::new(code, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_authority_is_in_etc_for_root_and_in_the_home_directory_for_others() {
        assert_eq!(
            default_authority_dir(true, Some("/home/ann/.config/marline".into())),
            Some("/etc/marline/ca".into())
        );
        let default_dir = default_authority_dir(false, Some("/home/ann/.config/marline".into()));
        assert_eq!(default_dir, Some("/home/ann/.config/marline/ca".into()));
        assert_eq!(default_authority_dir(false, None), None);
    }
}
