//! A member's certificate, renewed by the member before it ends (`docs/fleet.md`, "Renewal").
//!
//! In: a service, and the files of a member. Out: a new certificate in the place of the old one, and in memory.
//!
//! 1. When a third of its life is left, the service is asked with the certificate that ends. The key stays as it is, so that one file
//!    changes, in one step.
//! 2. What comes must be what is there already: this name, this key, this authority; and it must end later.
//! 3. A service that does not answer is asked again each ten minutes; it is said at once and then each day, with the day on which it
//!    ends. So it is where there is no service to be asked.
//! 4. Where the certificate's file cannot be written, as under systemd (`LoadCredential=`), the new one goes to another place ([`Own`]),
//!    and at the next start the later one of both counts. What can be written nowhere counts until the process ends, and writing
//!    is tried again.
//! 5. Another certificate of the same member that somebody has put there counts within a minute.
//! 6. On request ([`Reloads`]) certificate, key and authority are read again at once, whatever their dates. Files that are no good
//!    change nothing.

use std::convert::Infallible;
use std::path::Path;
use std::time::{Duration, Instant};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::json;

use crate::ca::{CaError, MemberFiles, Span, Stamp};
use crate::reload::Reloads;
use crate::service::{Client, ClientError, Enrolled};
use crate::starts::Starts;
use crate::tls::{Credentials, TlsError, client_config};

/// chosen: a clock that was set is seen soon.
const LOOK: Duration = Duration::from_secs(60);
/// chosen: of ten days that are left it is a thousandth.
const AGAIN: Duration = Duration::from_secs(600);
const DAY: Duration = Duration::from_secs(86_400);
/// chosen: certificates may live for a minute.
const SHORTEST: Duration = Duration::from_secs(1);

/// Why there is no new certificate.
#[derive(Debug, thiserror::Error)]
pub enum RenewalError {
    /// The service is not reached, or refuses.
    #[error(transparent)]
    Service(#[from] ClientError),
    /// Certificate or key are no good.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// What came is not what was asked for.
    #[error("the service has answered with something else than the same certificate for longer: {0}")]
    Other(String),
}

/// A member's files, and where its renewed certificate is kept when the first one cannot be written.
#[derive(Clone, Debug)]
pub struct Own {
    files: MemberFiles,
    kept: Option<MemberFiles>,
}

impl Own {
    /// With a directory of the program's own, if it has one.
    pub fn new(files: MemberFiles, state: Option<&Path>) -> Self {
        let in_state = |dir: &Path| Some(dir.join(files.certificate.file_name()?));
        let certificate = state.and_then(in_state).filter(|path| *path != files.certificate);
        let kept = certificate.map(|certificate| MemberFiles { certificate, ..files.clone() });
        Self { files, kept }
    }

    /// What is to be shown: the later one of both.
    ///
    /// # Errors
    /// A file cannot be read, or holds something else.
    pub fn read(&self) -> Result<Credentials, TlsError> {
        let first = Credentials::read(&self.files.certificate, &self.files.key, &self.files.authority)?;
        let kept = self.kept.as_ref().and_then(|files| put_there(files, &first));
        Ok(kept.unwrap_or(first))
    }

    fn write(&self, new: &Renewed) -> Result<(), CaError> {
        match (new.write(&self.files), &self.kept) {
            (Err(_), Some(kept)) => new.write(kept),
            (done, _) => done,
        }
    }
}

/// A certificate that has come, and is not in its file yet.
#[derive(Debug)]
pub struct Renewed {
    /// What is shown from now on.
    pub own: Credentials,
    /// When it ends.
    pub ends: Stamp,
    /// Its text, for its file.
    chain: String,
}

impl Renewed {
    /// Puts it in the place of the old one.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, files: &MemberFiles) -> Result<(), CaError> {
        files.renew(&self.chain)
    }
}

/// Asks the service of this URL for the next certificate.
///
/// # Errors
/// There is none; the old one stays as it is.
pub async fn renew(url: &str, own: &Credentials) -> Result<Renewed, RenewalError> {
    let mut client = Client::new(url, client_config(own, None, true)?)?.over(Starts::surveyed().await);
    let came: Enrolled = client.send("/v1/renew", &json!({})).await?;
    let other = |text: &str| RenewalError::Other(text.to_owned());
    let certificate = CertificateDer::from_pem_slice(came.certificate.as_bytes());
    let next = own.renewed(certificate.map_err(|_| other("no certificate"))?);
    // The library compares key and certificate.
    client_config(&next, None, true).map_err(|_| other("another key"))?;
    if next.peer()?.identity != own.peer()?.identity {
        return Err(other("another name"));
    }
    if !next.is_of_its_authority() {
        return Err(other("another authority"));
    }
    let ends = next.span()?.ends;
    if ends <= own.span()?.ends {
        return Err(other("it ends no later"));
    }
    Ok(Renewed { own: next, ends, chain: came.certificate })
}

/// Keeps a member's certificate new until dropped. `shows` puts one in force, or says why it cannot; on request it is called with
/// what counts then, changed or not, so that it reads again what else belongs to it.
pub async fn keep_renewed(
    url: Option<&str>,
    files: &Own,
    mut own: Credentials,
    mut reloads: Reloads,
    mut shows: impl FnMut(&Credentials) -> Result<(), String>,
) -> Infallible {
    let (mut unwritten, mut asked, mut told): (Option<Renewed>, Option<Instant>, Option<Instant>) =
        (None, None, None);
    warn_without_list(&files.files.authority, &own);
    loop {
        let life = own.span().map_or(Duration::ZERO, Span::life);
        tokio::select! {
            () = tokio::time::sleep((life / 60).clamp(SHORTEST, LOOK)) => {}
            () = reloads.requested() => {
                if let Some(there) = reloaded(files, &own, &mut shows) {
                    (own, unwritten) = (there, None);
                    warn_without_list(&files.files.authority, &own);
                }
            }
        }
        // Rule 4.
        if let Some(new) = unwritten.take()
            && files.write(&new).is_err()
        {
            unwritten = Some(new);
        }
        // Rule 5.
        if let Some(there) = put_there(&files.files, &own).filter(|_| unwritten.is_none()) {
            let file = files.files.certificate.display();
            match shows(&there) {
                Ok(()) => tracing::info!("{file}: another certificate, which counts from now on"),
                Err(error) => tracing::warn!("{file}: another certificate counts from now on, but {error}"),
            }
            own = there;
        }
        let Ok(span) = own.span() else { continue };
        let pause = AGAIN.min(life / 30);
        if Stamp::now() < span.due() || asked.is_some_and(|at| at.elapsed() < pause) {
            continue;
        }
        let is_told = told.is_some_and(|at| at.elapsed() < DAY);
        let Some(url) = url else {
            if !is_told {
                let file = files.files.certificate.display();
                tracing::warn!("{file}: the certificate ends at {}: put another one in its place", span.ends);
                told = Some(Instant::now());
            }
            continue;
        };
        asked = Some(Instant::now());
        match renew(url, &own).await {
            Ok(new) => {
                (own, told) = (new.own.clone(), None);
                match shows(&own) {
                    Ok(()) => tracing::info!("the certificate was renewed, until {}", new.ends),
                    Err(error) => tracing::warn!("the certificate was renewed, until {}, but {error}", new.ends),
                }
                if let Err(error) = files.write(&new) {
                    tracing::warn!("{error}: the new certificate counts until this process ends");
                    unwritten = Some(new);
                }
            }
            Err(error) if !is_told => {
                tracing::warn!(
                    "{error}: the certificate, which ends at {}, is not renewed; asked again",
                    span.ends
                );
                told = Some(Instant::now());
            }
            Err(_) => {}
        }
    }
}

/// Names the authorities in this file that are trusted without a list of the certificates that they have revoked.
pub fn warn_without_list(authority: &Path, own: &Credentials) {
    for subject in own.without_list() {
        tracing::warn!(
            "{}: {subject} is trusted without its revocation list, and so are the certificates that it has revoked: append its revoked.pem",
            authority.display()
        );
    }
}

/// Rule 6: what is in the files, if it is in force now.
fn reloaded(
    files: &Own,
    own: &Credentials,
    shows: &mut impl FnMut(&Credentials) -> Result<(), String>,
) -> Option<Credentials> {
    let read = files.read().map_err(|error| error.to_string()).and_then(|there| {
        // The library compares key and certificate.
        client_config(&there, None, true).map_err(|error| error.to_string())?;
        let identity = |of: &Credentials| of.peer().map(|peer| peer.identity).map_err(|error| error.to_string());
        let (new, old) = (identity(&there)?, identity(own)?);
        if !there.is_of_its_authority() {
            return Err(format!("another authority than {} has signed it", files.files.authority.display()));
        }
        if new == old { Ok(there) } else { Err(format!("it is of {new}, and this process is {old}: restart it")) }
    });
    let file = files.files.certificate.display();
    match read {
        Ok(there) => match shows(&there) {
            Ok(()) => {
                tracing::info!("{file}: certificate, key, authority and revocation list are read again");
                Some(there)
            }
            Err(error) => {
                tracing::warn!("{error}: what was read before stays in force");
                None
            }
        },
        Err(error) => {
            tracing::warn!("{file}: {error}: certificate, key and authority that were read before stay in force");
            // The list may be good.
            if let Err(error) = shows(own) {
                tracing::warn!("{error}: what was read before stays in force");
            }
            None
        }
    }
}

/// Another certificate of the same member in its file, if it is whole and was made later.
fn put_there(files: &MemberFiles, own: &Credentials) -> Option<Credentials> {
    let there = Credentials::read(&files.certificate, &files.key, &files.authority).ok()?;
    let later = there.span().ok()?.made > own.span().ok()?.made;
    let same = there.peer().ok()?.identity == own.peer().ok()?.identity && there.authority() == own.authority();
    // Half of two files that are being changed is no pair.
    (later && same && client_config(&there, None, true).is_ok()).then_some(there)
}
