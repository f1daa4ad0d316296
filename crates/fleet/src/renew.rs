//! Renewal of a member's certificate by the member itself, before it expires (`docs/fleet.md`, "Renewal").
//!
//! 1. When a third of the lifetime is left, the member presents its certificate to the service and requests a new one.
//!    The key stays the same, so only one file changes, atomically.
//! 2. The new certificate must have the same name, key and authority, and expire later.
//! 3. If the service does not respond, the request is repeated every ten minutes (short-lived certificates: each
//!    thirtieth of the lifetime). The failure is logged at once and
//!    then daily, with the expiry date. The same log applies without a service.
//! 4. If the certificate file cannot be written, as under systemd (`LoadCredential=`), the new certificate is written
//!    to a fallback directory ([`MemberCert`]). The next start uses the later of both. If it cannot be written there
//!    either, it is used until the process ends, and writing is retried.
//! 5. Another certificate of the same member that a user has put in the file is used within a minute.
//! 6. On a reload request ([`ReloadRequests`]) certificate, key and authority are read again at once, whatever their
//!    dates. Invalid files change nothing.

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

/// Interval of the checks. Our choice: short enough to notice soon that the clock was set.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// Interval of renewal attempts. Our choice: a thousandth of the ten days that are left.
const RETRY_INTERVAL: Duration = Duration::from_secs(600);
const DAY: Duration = Duration::from_secs(86_400);
/// Shortest interval of the checks. Our choice: certificates may have a lifetime of a minute.
const MIN_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Reason why there is no new certificate.
#[derive(Debug, thiserror::Error)]
pub enum RenewalError {
    /// The service cannot be reached, or refuses.
    #[error(transparent)]
    Service(#[from] ClientError),
    /// Certificate or key are invalid.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The response is not a renewal of the certificate.
    #[error("the response of the service is not a renewal of this certificate: {0}")]
    Mismatch(String),
}

/// A member's files, and where its renewed certificate is stored if the original file cannot be written.
#[derive(Clone, Debug)]
pub struct MemberCert {
    files: MemberFiles,
    fallback: Option<MemberFiles>,
}

impl MemberCert {
    /// Creates it with a state directory of the program, if there is one, as the fallback.
    pub fn new(files: MemberFiles, state: Option<&Path>) -> Self {
        let in_state = |dir: &Path| Some(dir.join(files.certificate.file_name()?));
        let certificate = state.and_then(in_state).filter(|path| *path != files.certificate);
        let fallback = certificate.map(|certificate| MemberFiles { certificate, ..files.clone() });
        Self { files, fallback }
    }

    /// The credentials to use: the later of both certificates.
    ///
    /// # Errors
    /// If a file cannot be read or has unexpected contents.
    pub fn read(&self) -> Result<Credentials, TlsError> {
        let first = Credentials::read(&self.files.certificate, &self.files.key, &self.files.authority)?;
        let newer = self.fallback.as_ref().and_then(|files| newer_in_files(files, &first));
        Ok(newer.unwrap_or(first))
    }

    fn write(&self, new: &Renewed) -> Result<(), CaError> {
        match (new.write(&self.files), &self.fallback) {
            (Err(_), Some(previous)) => new.write(previous),
            (done, _) => done,
        }
    }
}

/// A renewed certificate that has not been written yet.
#[derive(Debug)]
pub struct Renewed {
    /// The credentials to use from now on.
    pub credentials: Credentials,
    /// End of its validity.
    pub not_after: UtcSeconds,
    /// The certificate as PEM, for its file.
    chain: String,
}

impl Renewed {
    /// Replaces the certificate file.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, files: &MemberFiles) -> Result<(), CaError> {
        files.replace_certificate(&self.chain)
    }
}

/// Requests the next certificate from the service at this URL.
///
/// # Errors
/// If there is no new certificate; the old one is unchanged.
pub async fn renew(url: &str, credentials: &Credentials) -> Result<Renewed, RenewalError> {
    let mut client =
        Client::new(url, client_config(credentials, None, true)?)?.with_dialer(LinkDialer::from_survey().await);
    let response: EnrolReply = client.post("/v1/renew", &json!({})).await?;
    let mismatch = |text: &str| RenewalError::Mismatch(text.to_owned());
    let certificate = CertificateDer::from_pem_slice(response.certificate.as_bytes());
    let renewed = credentials.with_certificate(certificate.map_err(|_| mismatch("it contains no certificate"))?);
    // rustls checks that key and certificate match.
    client_config(&renewed, None, true).map_err(|_| mismatch("it is for another key"))?;
    if renewed.peer()?.identity != credentials.peer()?.identity {
        return Err(mismatch("it is for another name"));
    }
    if !renewed.is_signed_by_authority() {
        return Err(mismatch("it is from another authority"));
    }
    let ends = renewed.validity()?.not_after;
    if ends <= credentials.validity()?.not_after {
        return Err(mismatch("it does not expire later"));
    }
    Ok(Renewed { credentials: renewed, not_after: ends, chain: response.certificate })
}

/// Keeps a member's certificate valid until dropped. `install` puts new credentials in force, or returns why it cannot.
/// On a reload request it is called with the credentials in force, changed or not, so that dependent files are read
/// again as well.
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
        let lifetime = credentials.validity().map_or(Duration::ZERO, Validity::lifetime);
        tokio::select! {
            () = tokio::time::sleep((lifetime / 60).clamp(MIN_CHECK_INTERVAL, CHECK_INTERVAL)) => {}
            () = reload_requests.requested() => {
                if let Some(reloaded) = reload(files, &credentials, &mut install) {
                    (credentials, unwritten) = (reloaded, None);
                    warn_without_crl(&files.files.authority, &credentials);
                }
            }
        }
        // Rule 4: retry writing.
        if let Some(new) = unwritten.take()
            && files.write(&new).is_err()
        {
            unwritten = Some(new);
        }
        // Rule 5: use a certificate that a user has put in place.
        if let Some(newer) = newer_in_files(&files.files, &credentials).filter(|_| unwritten.is_none()) {
            let file = files.files.certificate.display();
            match install(&newer) {
                Ok(()) => tracing::info!("{file}: another certificate was found and is now in use"),
                Err(error) => {
                    tracing::warn!("{file}: another certificate was found and is now in use, but {error}")
                }
            }
            credentials = newer;
        }
        let Ok(validity) = credentials.validity() else { continue };
        let pause = RETRY_INTERVAL.min(lifetime / 30);
        if UtcSeconds::now() < validity.renewal_due() || last_attempt.is_some_and(|at| at.elapsed() < pause) {
            continue;
        }
        let has_warned = last_warning.is_some_and(|at| at.elapsed() < DAY);
        let Some(url) = url else {
            if !has_warned {
                let file = files.files.certificate.display();
                tracing::warn!(
                    "{file}: the certificate expires at {}: replace it with a new one",
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
                    tracing::warn!("{error}: the new certificate is in use, but is lost when this process ends");
                    unwritten = Some(renewed);
                }
            }
            Err(error) if !has_warned => {
                tracing::warn!(
                    "{error}: the certificate, which expires at {}, has not been renewed; retrying",
                    validity.not_after
                );
                last_warning = Some(Instant::now());
            }
            Err(_) => {}
        }
    }
}

/// Logs a warning for each authority in this file that is trusted without its revocation list.
pub fn warn_without_crl(authority: &Path, credentials: &Credentials) {
    for subject in credentials.authorities_without_crl() {
        tracing::warn!(
            "{}: {subject} is trusted without its revocation list, so certificates that it has revoked are accepted: append its revoked.pem",
            authority.display()
        );
    }
}

/// Rule 6: reads the files; returns their credentials if they have been put in force.
fn reload(
    files: &MemberCert,
    credentials: &Credentials,
    install: &mut impl FnMut(&Credentials) -> Result<(), String>,
) -> Option<Credentials> {
    let read = files.read().map_err(|error| error.to_string()).and_then(|loaded| {
        // rustls checks that key and certificate match.
        client_config(&loaded, None, true).map_err(|error| error.to_string())?;
        let identity =
            |member: &Credentials| member.peer().map(|peer| peer.identity).map_err(|error| error.to_string());
        let (new, old) = (identity(&loaded)?, identity(credentials)?);
        if !loaded.is_signed_by_authority() {
            return Err(format!("it is not signed by the authority in {}", files.files.authority.display()));
        }
        if new == old {
            Ok(loaded)
        } else {
            Err(format!("it belongs to {new}, but this process runs as {old}: restart the process"))
        }
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
            // The revocation list may still be valid.
            if let Err(error) = install(credentials) {
                tracing::warn!("{error}: what was read before stays in force");
            }
            None
        }
    }
}

/// A certificate of the same member in the file, if it is complete and was issued later.
fn newer_in_files(files: &MemberFiles, credentials: &Credentials) -> Option<Credentials> {
    let loaded = Credentials::read(&files.certificate, &files.key, &files.authority).ok()?;
    let is_later = loaded.validity().ok()?.issued_at > credentials.validity().ok()?.issued_at;
    let is_same_member = loaded.peer().ok()?.identity == credentials.peer().ok()?.identity
        && loaded.authority() == credentials.authority();
    // While the files are being replaced, certificate and key may not match.
    (is_later && is_same_member && client_config(&loaded, None, true).is_ok()).then_some(loaded)
}
