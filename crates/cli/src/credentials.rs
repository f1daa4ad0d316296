//! A member's files on the command line: the words that name them, where they are when nobody says, and what is wrong with them.
//!
//! In: `--certificate`, `--key`, `--fleet-ca` and `--revoked`. Out: who this is ([`Member`]), or one line.
//!
//! 1. What is not named stands beside the certificate, as `marline fleet enroll` and `marline fleet ca issue` write it: NAME.key,
//!    ca.pem and revoked.pem.
//! 2. The certificate says who the member is. One of another role is refused before anything is asked or listens.
//! 3. A file that is not there is named, with the word for another one or with what writes it.
//!
//! Whoever asks a fleet or serves in it has these words from here, so that they are alike everywhere.

use std::path::{Path, PathBuf};

use clap::Args;
use marline_fleet::ca::MemberFiles;
use marline_fleet::identity::{Identity, Role};
use marline_fleet::renew::MemberCert;
use marline_fleet::service::Client;
use marline_fleet::tls::{Credentials, client_config};

use crate::CliError;
use crate::fleet::unit_state_dir;

/// What is shown to others.
#[derive(Clone, Debug, Args)]
pub(crate) struct CertificateArgs {
    /// The certificate that is shown to others, as `marline fleet enroll` or `marline fleet ca issue` writes it.
    #[arg(long, value_name = "FILE")]
    certificate: Option<PathBuf>,
    /// Its key [default: beside the certificate, NAME.key].
    #[arg(long, value_name = "FILE", requires = "certificate")]
    key: Option<PathBuf>,
}

/// A member's files.
#[derive(Clone, Debug, Args)]
#[command(mut_arg("certificate", |word| word.required(true)))]
pub(crate) struct MemberFileArgs {
    #[command(flatten)]
    certificate: CertificateArgs,
    /// The authority's certificate, or those of several [default: beside the certificate, ca.pem].
    #[arg(long, value_name = "FILE")]
    fleet_ca: Option<PathBuf>,
}

/// The list of the revoked, of who looks at it himself.
#[derive(Clone, Debug, Args)]
pub(crate) struct RevocationArgs {
    /// The authority's list of revoked certificates, read again when it changes; with --fleet the newest one is fetched
    /// [default: beside the certificate, revoked.pem].
    #[arg(long, value_name = "FILE")]
    revoked: Option<PathBuf>,
}

/// Who this is.
#[derive(Debug)]
pub(crate) struct Member {
    /// Where that stands.
    pub(crate) files: MemberFiles,
    /// The same, and where it is renewed to.
    pub(crate) renewable: MemberCert,
    /// What it shows to others, and whom it trusts.
    pub(crate) credentials: Credentials,
    /// As the certificate says.
    pub(crate) identity: Identity,
}

impl CertificateArgs {
    /// Whether there is a certificate.
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

    /// Who this is, of who may be without a certificate; its authority is this one.
    pub(crate) fn read_member(&self, authority: PathBuf, role: Role) -> Result<Option<Member>, CliError> {
        self.files(Some(authority)).map(|files| Member::read(files, Some(role))).transpose()
    }
}

impl MemberFileArgs {
    /// Who this is: one of this role.
    pub(crate) fn read_member(&self, role: Role) -> Result<Member, CliError> {
        Member::read(self.files()?, Some(role))
    }

    /// Who this is, whatever its role.
    pub(crate) fn read_any_role(&self) -> Result<Member, CliError> {
        Member::read(self.files()?, None)
    }

    fn files(&self) -> Result<MemberFiles, CliError> {
        // The command line requires it of who names no verb.
        self.certificate.files(self.fleet_ca.clone()).ok_or_else(|| CliError::usage("--certificate is missing"))
    }
}

impl RevocationArgs {
    /// The list that was named.
    pub(crate) fn given_path(&self) -> Option<&Path> {
        self.revoked.as_deref()
    }

    /// The list: the one that was named, or the one beside the certificate; there or not.
    pub(crate) fn path(&self, member: &Member) -> PathBuf {
        self.revoked.clone().unwrap_or_else(|| member.files.certificate.with_file_name("revoked.pem"))
    }

    /// The list, which must be there.
    pub(crate) fn existing_path(&self, member: &Member) -> Result<PathBuf, CliError> {
        let path = self.path(member);
        there(&path, "name the authority's list of revoked certificates by --revoked")?;
        Ok(path)
    }
}

impl Member {
    fn read(files: MemberFiles, role: Option<Role>) -> Result<Self, CliError> {
        let issue = role.map_or("ROLE".to_owned(), |role| role.to_string());
        there(
            &files.certificate,
            &format!("`marline fleet enroll` or `marline fleet ca issue {issue}` writes it"),
        )?;
        there(&files.key, "name the certificate's key by --key")?;
        there(&files.authority, "name the authority's certificate by --ca")?;
        let usage_error = |error: &dyn std::fmt::Display| CliError::usage(error.to_string());
        // Edges and relays that run renew theirs.
        let state_dir = matches!(role, Some(Role::Edge | Role::Relay)).then(unit_state_dir).flatten();
        let renewable = MemberCert::new(files.clone(), state_dir.as_deref());
        let credentials = renewable.read().map_err(|error| usage_error(&error))?;
        let identity = credentials.peer().map_err(|error| usage_error(&error))?.identity;
        if let Some(role) = role.filter(|role| *role != identity.role) {
            let path = files.certificate.display();
            return Err(CliError::usage(format!(
                "{path}: it is the certificate of {identity}, and not of {}",
                role_with_article(role)
            )));
        }
        Ok(Self { files, renewable, credentials, identity })
    }

    /// For asking the fleet's service as this member, over the link that reaches it.
    pub(crate) fn client(&self, url: &str) -> Result<Client, CliError> {
        let fleet_error = |error: &dyn std::fmt::Display| CliError::usage(format!("--fleet: {error}"));
        let tls = client_config(&self.credentials, None, true).map_err(|error| fleet_error(&error))?;
        Client::new(url, tls).map(Client::over_links).map_err(|error| fleet_error(&error))
    }
}

/// Refuses a file that is not there; one that may not be looked at is refused where it is read.
fn there(path: &Path, help: &str) -> Result<(), CliError> {
    let is_missing = path.try_exists().is_ok_and(|exists| !exists);
    if is_missing { Err(CliError::usage(format!("{}: no such file; {help}", path.display()))) } else { Ok(()) }
}

fn role_with_article(role: Role) -> &'static str {
    match role {
        Role::Edge => "an edge",
        Role::Relay => "a relay",
        Role::Fleet => "a fleet's service",
        Role::Operator => "an operator",
    }
}

/// How the one with this certificate goes on: the command that it is for.
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
    fn what_is_not_named_stands_beside_the_certificate() {
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
