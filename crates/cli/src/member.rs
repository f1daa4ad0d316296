//! A member's files on the command line: the words that name them, where they are when nobody says, and what is wrong with them.
//!
//! In: `--certificate`, `--key`, `--ca` and `--revoked`. Out: who this is ([`Member`]), or one line.
//!
//! 1. What is not named stands beside the certificate, as `marline fleet enrol` and `marline fleet ca issue` write it: NAME.key,
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

use crate::Exit;
use crate::fleet::unit_state;

/// What is shown to others.
#[derive(Clone, Debug, Args)]
pub(crate) struct Shown {
    /// The certificate that is shown to others, as `marline fleet enrol` or `marline fleet ca issue` writes it.
    #[arg(long, value_name = "FILE")]
    certificate: Option<PathBuf>,
    /// Its key [default: beside the certificate, NAME.key].
    #[arg(long, value_name = "FILE", requires = "certificate")]
    key: Option<PathBuf>,
}

/// A member's files.
#[derive(Clone, Debug, Args)]
#[command(mut_arg("certificate", |word| word.required(true)))]
pub(crate) struct Files {
    #[command(flatten)]
    shown: Shown,
    /// The authority's certificate, or those of several [default: beside the certificate, ca.pem].
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
}

/// The list of the revoked, of who looks at it himself.
#[derive(Clone, Debug, Args)]
pub(crate) struct Revoked {
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
    pub(crate) kept: MemberCert,
    /// What it shows to others, and whom it trusts.
    pub(crate) own: Credentials,
    /// As the certificate says.
    pub(crate) identity: Identity,
}

impl Shown {
    /// Whether there is a certificate.
    pub(crate) fn is_named(&self) -> bool {
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
    pub(crate) fn read(&self, authority: PathBuf, role: Role) -> Result<Option<Member>, Exit> {
        self.files(Some(authority)).map(|files| Member::read(files, Some(role))).transpose()
    }
}

impl Files {
    /// Who this is: one of this role.
    pub(crate) fn read(&self, role: Role) -> Result<Member, Exit> {
        Member::read(self.files()?, Some(role))
    }

    /// Who this is, whatever its role.
    pub(crate) fn read_any(&self) -> Result<Member, Exit> {
        Member::read(self.files()?, None)
    }

    fn files(&self) -> Result<MemberFiles, Exit> {
        // The command line requires it of who names no verb.
        self.shown.files(self.ca.clone()).ok_or_else(|| Exit::usage("--certificate is missing"))
    }
}

impl Revoked {
    /// The list that was named.
    pub(crate) fn named(&self) -> Option<&Path> {
        self.revoked.as_deref()
    }

    /// The list: the one that was named, or the one beside the certificate; there or not.
    pub(crate) fn place(&self, member: &Member) -> PathBuf {
        self.revoked.clone().unwrap_or_else(|| member.files.certificate.with_file_name("revoked.pem"))
    }

    /// The list, which must be there.
    pub(crate) fn there(&self, member: &Member) -> Result<PathBuf, Exit> {
        let place = self.place(member);
        there(&place, "name the authority's list of revoked certificates by --revoked")?;
        Ok(place)
    }
}

impl Member {
    fn read(files: MemberFiles, role: Option<Role>) -> Result<Self, Exit> {
        let issue = role.map_or("ROLE".to_owned(), |role| role.to_string());
        there(&files.certificate, &format!("`marline fleet enrol` or `marline fleet ca issue {issue}` writes it"))?;
        there(&files.key, "name the certificate's key by --key")?;
        there(&files.authority, "name the authority's certificate by --ca")?;
        let bad = |error: &dyn std::fmt::Display| Exit::usage(error.to_string());
        // Edges and relays that run renew theirs.
        let state = matches!(role, Some(Role::Edge | Role::Relay)).then(unit_state).flatten();
        let kept = MemberCert::new(files.clone(), state.as_deref());
        let own = kept.read().map_err(|error| bad(&error))?;
        let identity = own.peer().map_err(|error| bad(&error))?.identity;
        if let Some(role) = role.filter(|role| *role != identity.role) {
            let place = files.certificate.display();
            return Err(Exit::usage(format!(
                "{place}: it is the certificate of {identity}, and not of {}",
                one(role)
            )));
        }
        Ok(Self { files, kept, own, identity })
    }

    /// For asking the fleet's service as this member, over the link that reaches it.
    pub(crate) fn client(&self, url: &str) -> Result<Client, Exit> {
        let wrong = |error: &dyn std::fmt::Display| Exit::usage(format!("--fleet: {error}"));
        let tls = client_config(&self.own, None, true).map_err(|error| wrong(&error))?;
        Client::new(url, tls).map(Client::over_links).map_err(|error| wrong(&error))
    }
}

/// Refuses a file that is not there; one that may not be looked at is refused where it is read.
fn there(path: &Path, help: &str) -> Result<(), Exit> {
    let is_missing = path.try_exists().is_ok_and(|there| !there);
    if is_missing { Err(Exit::usage(format!("{}: no such file; {help}", path.display()))) } else { Ok(()) }
}

fn one(role: Role) -> &'static str {
    match role {
        Role::Edge => "an edge",
        Role::Relay => "a relay",
        Role::Fleet => "a fleet's service",
        Role::Operator => "an operator",
    }
}

/// How the one with this certificate goes on: the command that it is for.
pub(crate) fn next(role: Role, certificate: &Path, fleet: &str) -> String {
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
            let shown = Shown { certificate: Some("a/cam-7.pem".into()), key: key.map(Into::into) };
            let MemberFiles { certificate, key, authority } = shown.files(authority.map(Into::into)).unwrap();
            [certificate, key, authority].map(|path| path.display().to_string())
        };
        assert_eq!(files(None, None), ["a/cam-7.pem", "a/cam-7.key", "a/ca.pem"]);
        assert_eq!(files(Some("k"), Some("c")), ["a/cam-7.pem", "k", "c"]);
        assert!(Shown { certificate: None, key: None }.files(None).is_none());
    }
}
