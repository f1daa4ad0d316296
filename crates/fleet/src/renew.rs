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

use crate::ca::{CaError, MemberFiles, UtcSeconds, Validity};
use crate::link_dialer::LinkDialer;
use crate::reload::ReloadRequests;
use crate::service::{Client, ClientError, EnrolReply};
use crate::tls::{Credentials, TlsError, client_config};

/// chosen: a clock that was set is seen soon.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// chosen: of ten days that are left it is a thousandth.
const RETRY_INTERVAL: Duration = Duration::from_secs(600);
const DAY: Duration = Duration::from_secs(86_400);
/// chosen: certificates may live for a minute.
const MIN_CHECK_INTERVAL: Duration = Duration::from_secs(1);

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
    Mismatch(String),
}

/// A member's files, and where its renewed certificate is kept when the first one cannot be written.
#[derive(Clone, Debug)]
pub struct MemberCert {
    files: MemberFiles,
    fallback: Option<MemberFiles>,
}

impl MemberCert {
    /// With a directory of the program's own, if it has one.
    pub fn new(files: MemberFiles, state: Option<&Path>) -> Self {
        let in_state = |dir: &Path| Some(dir.join(files.certificate.file_name()?));
        let certificate = state.and_then(in_state).filter(|path| *path != files.certificate);
        let kept = certificate.map(|certificate| MemberFiles { certificate, ..files.clone() });
        Self { files, fallback: kept }
    }

    /// What is to be shown: the later one of both.
    ///
    /// # Errors
    /// A file cannot be read, or holds something else.
    pub fn read(&self) -> Result<Credentials, TlsError> {
        let first = Credentials::read(&self.files.certificate, &self.files.key, &self.files.authority)?;
        let kept = self.fallback.as_ref().and_then(|files| newer_in_files(files, &first));
        Ok(kept.unwrap_or(first))
    }

    fn write(&self, new: &Renewed) -> Result<(), CaError> {
        match (new.write(&self.files), &self.fallback) {
            (Err(_), Some(kept)) => new.write(kept),
            (done, _) => done,
        }
    }
}

/// A certificate that has come, and is not in its file yet.
#[derive(Debug)]
pub struct Renewed {
    /// What is shown from now on.
    pub credentials: Credentials,
    /// When it ends.
    pub not_after: UtcSeconds,
    /// Its text, for its file.
    chain: String,
}

impl Renewed {
    /// Puts it in the place of the old one.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, files: &MemberFiles) -> Result<(), CaError> {
        files.replace_certificate(&self.chain)
    }
}

/// Asks the service of this URL for the next certificate.
///
/// # Errors
/// There is none; the old one stays as it is.
pub async fn renew(url: &str, credentials: &Credentials) -> Result<Renewed, RenewalError> {
    let mut client =
        Client::new(url, client_config(credentials, None, true)?)?.with_dialer(LinkDialer::from_survey().await);
    let response: EnrolReply = client.post("/v1/renew", &json!({})).await?;
    let mismatch = |text: &str| RenewalError::Mismatch(text.to_owned());
    let certificate = CertificateDer::from_pem_slice(response.certificate.as_bytes());
    let renewed = credentials.with_certificate(certificate.map_err(|_| mismatch("no certificate"))?);
    // The library compares key and certificate.
    client_config(&renewed, None, true).map_err(|_| mismatch("another key"))?;
    if renewed.peer()?.identity != credentials.peer()?.identity {
        return Err(mismatch("another name"));
    }
    if !renewed.is_signed_by_authority() {
        return Err(mismatch("another authority"));
    }
    let ends = renewed.validity()?.not_after;
    if ends <= credentials.validity()?.not_after {
        return Err(mismatch("it ends no later"));
    }
    Ok(Renewed { credentials: renewed, not_after: ends, chain: response.certificate })
}

/// Keeps a member's certificate new until dropped. `shows` puts one in force, or says why it cannot; on request it is called with
/// what counts then, changed or not, so that it reads again what else belongs to it.
pub async fn run_renewal(
    url: Option<&str>,
    files: &MemberCert,
    mut credentials: Credentials,
    mut reload_requests: ReloadRequests,
    mut install: impl FnMut(&Credentials) -> Result<(), String>,
) -> Infallible {
    let (mut unwritten, mut last_attempt, mut last_warning): (Option<Renewed>, Option<Instant>, Option<Instant>) =
        (None, None, None);
    warn_without_crl(&files.files.authority, &credentials);
    loop {
        let life = credentials.validity().map_or(Duration::ZERO, Validity::lifetime);
        tokio::select! {
            () = tokio::time::sleep((life / 60).clamp(MIN_CHECK_INTERVAL, CHECK_INTERVAL)) => {}
            () = reload_requests.requested() => {
                if let Some(reloaded) = reload(files, &credentials, &mut install) {
                    (credentials, unwritten) = (reloaded, None);
                    warn_without_crl(&files.files.authority, &credentials);
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
        if let Some(newer) = newer_in_files(&files.files, &credentials).filter(|_| unwritten.is_none()) {
            let file = files.files.certificate.display();
            match install(&newer) {
                Ok(()) => tracing::info!("{file}: another certificate, which counts from now on"),
                Err(error) => tracing::warn!("{file}: another certificate counts from now on, but {error}"),
            }
            credentials = newer;
        }
        let Ok(validity) = credentials.validity() else { continue };
        let pause = RETRY_INTERVAL.min(life / 30);
        if UtcSeconds::now() < validity.renewal_due() || last_attempt.is_some_and(|at| at.elapsed() < pause) {
            continue;
        }
        let has_warned = last_warning.is_some_and(|at| at.elapsed() < DAY);
        let Some(url) = url else {
            if !has_warned {
                let file = files.files.certificate.display();
                tracing::warn!(
                    "{file}: the certificate ends at {}: put another one in its place",
                    validity.not_after
                );
                last_warning = Some(Instant::now());
            }
            continue;
        };
        last_attempt = Some(Instant::now());
        match renew(url, &credentials).await {
            Ok(renewed) => {
                (credentials, last_warning) = (renewed.credentials.clone(), None);
                match install(&credentials) {
                    Ok(()) => tracing::info!("the certificate was renewed, until {}", renewed.not_after),
                    Err(error) => {
                        tracing::warn!("the certificate was renewed, until {}, but {error}", renewed.not_after)
                    }
                }
                if let Err(error) = files.write(&renewed) {
                    tracing::warn!("{error}: the new certificate counts until this process ends");
                    unwritten = Some(renewed);
                }
            }
            Err(error) if !has_warned => {
                tracing::warn!(
                    "{error}: the certificate, which ends at {}, is not renewed; asked again",
                    validity.not_after
                );
                last_warning = Some(Instant::now());
            }
            Err(_) => {}
        }
    }
}

/// Names the authorities in this file that are trusted without a list of the certificates that they have revoked.
pub fn warn_without_crl(authority: &Path, credentials: &Credentials) {
    for subject in credentials.authorities_without_crl() {
        tracing::warn!(
            "{}: {subject} is trusted without its revocation list, and so are the certificates that it has revoked: append its revoked.pem",
            authority.display()
        );
    }
}

/// Rule 6: what is in the files, if it is in force now.
fn reload(
    files: &MemberCert,
    credentials: &Credentials,
    install: &mut impl FnMut(&Credentials) -> Result<(), String>,
) -> Option<Credentials> {
    let read = files.read().map_err(|error| error.to_string()).and_then(|loaded| {
        // The library compares key and certificate.
        client_config(&loaded, None, true).map_err(|error| error.to_string())?;
        let identity = |of: &Credentials| of.peer().map(|peer| peer.identity).map_err(|error| error.to_string());
        let (new, old) = (identity(&loaded)?, identity(credentials)?);
        if !loaded.is_signed_by_authority() {
            return Err(format!("another authority than {} has signed it", files.files.authority.display()));
        }
        if new == old { Ok(loaded) } else { Err(format!("it is of {new}, and this process is {old}: restart it")) }
    });
    let file = files.files.certificate.display();
    match read {
        Ok(loaded) => match install(&loaded) {
            Ok(()) => {
                tracing::info!("{file}: certificate, key, authority and revocation list are read again");
                Some(loaded)
            }
            Err(error) => {
                tracing::warn!("{error}: what was read before stays in force");
                None
            }
        },
        Err(error) => {
            tracing::warn!("{file}: {error}: certificate, key and authority that were read before stay in force");
            // The list may be good.
            if let Err(error) = install(credentials) {
                tracing::warn!("{error}: what was read before stays in force");
            }
            None
        }
    }
}

/// Another certificate of the same member in its file, if it is whole and was made later.
fn newer_in_files(files: &MemberFiles, credentials: &Credentials) -> Option<Credentials> {
    let loaded = Credentials::read(&files.certificate, &files.key, &files.authority).ok()?;
    let is_later = loaded.validity().ok()?.issued_at > credentials.validity().ok()?.issued_at;
    let is_same_member = loaded.peer().ok()?.identity == credentials.peer().ok()?.identity
        && loaded.authority() == credentials.authority();
    // Half of two files that are being changed is no pair.
    (is_later && is_same_member && client_config(&loaded, None, true).is_ok()).then_some(loaded)
}
