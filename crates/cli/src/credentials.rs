//! Credentials of a fleet member on the command line: the options that name its files, their defaults and their checks.
//!
//! The options `--certificate`, `--key`, `--fleet-ca` and `--revoked` become a [`Member`], or an error of one line.
//!
//! 1. Files that are not named are expected beside the certificate, where `marline fleet enroll` and `marline fleet ca issue`
//!    write them: NAME.key, ca.pem and revoked.pem.
//! 2. The certificate contains the identity of the member. A certificate of a wrong role is rejected before any request is
//!    sent and before anything listens.
//! 3. The error for a missing file names the file, and the option for another one or the command that creates it.
//!
//! All commands of a fleet flatten these options from here, so that they are the same everywhere.

use std::path::{Path, PathBuf};

use clap::Args;
use marline_fleet::ca::MemberFiles;
use marline_fleet::identity::{Identity, Role};
use marline_fleet::renew::MemberCert;
use marline_fleet::service::Client;
use marline_fleet::tls::{Credentials, client_config};

use crate::CliError;
use crate::directories::unit_state_dir;

/// Options for a certificate and its key.
#[derive(Clone, Debug, Args)]
pub(crate) struct CertificateArgs {
    /// Certificate to present to peers, created by `marline fleet enroll` or `marline fleet ca issue`.
    #[arg(long, value_name = "FILE")]
    certificate: Option<PathBuf>,
    /// Private key of the certificate [default: NAME.key in the directory of the certificate].
    #[arg(long, value_name = "FILE", requires = "certificate")]
    key: Option<PathBuf>,
}

/// Options for the files of a fleet member: certificate, key and certificate authority.
#[derive(Clone, Debug, Args)]
#[command(mut_arg("certificate", |arg| arg.required(true)))]
pub(crate) struct MemberFileArgs {
    #[command(flatten)]
    certificate: CertificateArgs,
    /// Certificates of the fleet's certificate authority, one or several [default: ca.pem in the directory of the certificate].
    #[arg(long, value_name = "FILE")]
    fleet_ca: Option<PathBuf>,
}

/// Option for the revocation list, for daemons that check it themselves.
#[derive(Clone, Debug, Args)]
pub(crate) struct RevocationArgs {
    /// Revocation list (CRL) of the authority. It is reloaded when it changes; with --fleet the newest list is downloaded
    /// [default: revoked.pem in the directory of the certificate; if an edge with --fleet has none there, a file beside its state file].
    #[arg(long, value_name = "FILE")]
    revoked: Option<PathBuf>,
}

/// A fleet member: its files, credentials and identity.
#[derive(Debug)]
pub(crate) struct Member {
    /// Files of certificate, key and authority.
    pub(crate) files: MemberFiles,
    /// The certificate with the paths that a renewal writes to.
    pub(crate) member_cert: MemberCert,
    /// Certificate and key to present, and the authorities to trust.
    pub(crate) credentials: Credentials,
    /// Identity in the certificate.
    pub(crate) identity: Identity,
}

impl CertificateArgs {
    /// Whether `--certificate` was given.
    pub(crate) fn is_given(&self) -> bool {
        self.certificate.is_some()
    }

    fn files(&self, authority: Option<PathBuf>) -> Option<MemberFiles> {
        let certificate = self.certificate.clone()?;
        Some(MemberFiles {
            key: self.key.clone().unwrap_or_else(|| certificate.with_extension("key")),
            authority: authority.unwrap_or_else(|| certificate.with_file_name("ca.pem")),
            certificate,
        })
    }

    /// Reads the member if `--certificate` was given, with the CA file `authority`. Its role must be `role`.
    pub(crate) fn read_member(&self, authority: PathBuf, role: Role) -> Result<Option<Member>, CliError> {
        self.files(Some(authority)).map(|files| Member::read(files, Some(role))).transpose()
    }
}

impl MemberFileArgs {
    /// Reads the member, whose role must be `role`.
    pub(crate) fn read_member(&self, role: Role) -> Result<Member, CliError> {
        Member::read(self.files()?, Some(role))
    }

    /// Reads the member; every role is accepted.
    pub(crate) fn read_any_role(&self) -> Result<Member, CliError> {
        Member::read(self.files()?, None)
    }

    fn files(&self) -> Result<MemberFiles, CliError> {
        // clap requires the option unless a subcommand is given, so this is a safeguard only.
        self.certificate.files(self.fleet_ca.clone()).ok_or_else(|| CliError::usage("--certificate is missing"))
    }
}

impl RevocationArgs {
    /// Value of `--revoked`.
    pub(crate) fn given_path(&self) -> Option<&Path> {
        self.revoked.as_deref()
    }

    /// Path of the list: the value of `--revoked`, or revoked.pem beside the certificate. The file need not exist.
    pub(crate) fn path(&self, member: &Member) -> PathBuf {
        self.revoked.clone().unwrap_or_else(|| member.files.certificate.with_file_name("revoked.pem"))
    }

    /// As [`Self::path`], but the file must exist.
    pub(crate) fn existing_path(&self, member: &Member) -> Result<PathBuf, CliError> {
        let path = self.path(member);
        check_exists(&path, "set the revocation list of the authority with --revoked")?;
        Ok(path)
    }
}

impl Member {
    fn read(files: MemberFiles, role: Option<Role>) -> Result<Self, CliError> {
        let issue = role.map_or("ROLE".to_owned(), |role| role.to_string());
        check_exists(
            &files.certificate,
            &format!("create it with `marline fleet enroll` or `marline fleet ca issue {issue}`"),
        )?;
        check_exists(&files.key, "set the key of the certificate with --key")?;
        check_exists(&files.authority, "set the certificate of the authority with --fleet-ca")?;
        let usage_error = |error: &dyn std::fmt::Display| CliError::usage(error.to_string());
        // Only edges and relays renew their certificates while they run, so only they need a writable state directory.
        let state_dir = matches!(role, Some(Role::Edge | Role::Relay)).then(unit_state_dir).flatten();
        let renewable = MemberCert::new(files.clone(), state_dir.as_deref());
        let credentials = renewable.read().map_err(|error| usage_error(&error))?;
        let identity = credentials.peer().map_err(|error| usage_error(&error))?.identity;
        if let Some(role) = role.filter(|role| *role != identity.role) {
            let path = files.certificate.display();
            return Err(CliError::usage(format!(
                "{path}: certificate of {identity}, but {} is needed",
                role_with_article(role)
            )));
        }
        Ok(Self { files, member_cert: renewable, credentials, identity })
    }

    /// Creates a client of the fleet service that authenticates as this member and uses whichever link reaches the service.
    pub(crate) fn client(&self, url: &str) -> Result<Client, CliError> {
        let fleet_error = |error: &dyn std::fmt::Display| CliError::usage(format!("--fleet: {error}"));
        let tls = client_config(&self.credentials, None, true).map_err(|error| fleet_error(&error))?;
        Client::new(url, tls).map(Client::over_links).map_err(|error| fleet_error(&error))
    }
}

/// Fails with the remedy `help` if the file does not exist. A file whose existence cannot be checked fails when it is read.
fn check_exists(path: &Path, help: &str) -> Result<(), CliError> {
    let is_missing = path.try_exists().is_ok_and(|exists| !exists);
    if is_missing { Err(CliError::usage(format!("{}: no such file; {help}", path.display()))) } else { Ok(()) }
}

fn role_with_article(role: Role) -> &'static str {
    match role {
        Role::Edge => "that of an edge",
        Role::Relay => "that of a relay",
        Role::Fleet => "that of a fleet service",
        Role::Operator => "that of an operator",
    }
}

/// The command to run next with a new certificate, for the "next:" line of enrolment and issuance.
pub(crate) fn next_command(role: Role, certificate: &Path, fleet: &str) -> String {
    let certificate = certificate.display();
    match role {
        Role::Edge => format!("marline edge --certificate {certificate} --fleet {fleet}"),
        Role::Relay => format!(
            "marline relay --certificate {certificate} --listen 0.0.0.0:4443 --fleet {fleet} --announce HOST:4443 --capacity RATE"
        ),
        Role::Fleet => format!("marline fleet run --certificate {certificate} --listen ADDRESS:4444"),
        Role::Operator => format!("marline fleet status --certificate {certificate} --fleet {fleet}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_default_to_the_directory_of_the_certificate() {
        let files = |key: Option<&str>, authority: Option<&str>| {
            let certificate_args =
                CertificateArgs { certificate: Some("a/cam-7.pem".into()), key: key.map(Into::into) };
            let MemberFiles { certificate, key, authority } =
                certificate_args.files(authority.map(Into::into)).unwrap();
            [certificate, key, authority].map(|path| path.display().to_string())
        };
        assert_eq!(files(None, None), ["a/cam-7.pem", "a/cam-7.key", "a/ca.pem"]);
        assert_eq!(files(Some("k"), Some("c")), ["a/cam-7.pem", "k", "c"]);
        assert!(CertificateArgs { certificate: None, key: None }.files(None).is_none());
    }
}
