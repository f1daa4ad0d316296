//! Enrolment of a member: exchanges a token for NAME.pem, NAME.key and ca.pem (`docs/fleet-reference.md`, "The life of a token").
//!
//! 1. The key is generated here and stays here; only a certificate request is sent.
//! 2. The service is verified by the fingerprint in the token before the token is sent to it.
//! 3. Obstacles to writing the files are detected before the token is used up. The response must match the token: same
//!    name, same key, same authority. While an authority is being replaced, the service also sends the other
//!    authorities that it trusts, and the member trusts them as well.
//! 4. The authority's revocation list is fetched with the new certificate, because a relay needs it to start.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use crate::ca::{CaError, EnrolError, Fingerprint, KeyWithRequest, MemberFiles, RevocationFile, Token};
use crate::identity::Identity;
use crate::link_dialer::LinkDialer;
use crate::service::{Client, ClientError, EnrolReply, EnrolRequest};
use crate::tls::{Credentials, TlsError, client_config, first_contact_config};

/// Reason why the enrolment failed.
#[derive(Debug, thiserror::Error)]
pub enum EnrolmentError {
    /// The token is invalid.
    #[error(transparent)]
    Token(#[from] EnrolError),
    /// A file exists already, or cannot be written.
    #[error(transparent)]
    File(#[from] CaError),
    /// The service cannot be reached, belongs to another authority, or refuses.
    #[error(transparent)]
    Service(#[from] ClientError),
    /// A received certificate is invalid.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The response does not match the token.
    #[error("the response of the service does not match the token: {0}")]
    Mismatch(String),
}

/// Result of an enrolment.
#[derive(Clone, Debug)]
pub struct EnrolledMember {
    /// The member's identity.
    pub identity: Identity,
    /// End of the certificate's validity.
    pub not_after: String,
    /// The files that were written.
    pub files: MemberFiles,
    /// Whether an existing `ca.pem` was kept that trusts other authorities than the service does.
    pub trusts_others: bool,
    /// Path of the revocation list, or the error that prevented fetching it.
    pub revocation_list: Result<PathBuf, String>,
}

/// Uses a token at the service at this URL and writes the files to `out`.
///
/// # Errors
/// If there is no certificate. The error text states whether the token was used up.
pub async fn enrol_member(url: &str, token: &str, out: &Path) -> Result<EnrolledMember, EnrolmentError> {
    let parsed = Token::parse_unverified(token.trim())?;
    let identity = parsed.template.identity().clone();
    let files = MemberFiles::of(out, &identity.name)?;
    files.check_absent(parsed.authority)?;
    let new = KeyWithRequest::generate()?;
    let dialer = LinkDialer::from_survey().await;
    let mut client =
        Client::new(url, first_contact_config(parsed.authority, true)?)?.with_dialer(Arc::clone(&dialer));
    let enrol = EnrolRequest { token: token.trim().to_owned(), request: new.request };
    let enrolled: EnrolReply = client.post("/v1/enrol", &enrol).await?;
    let mismatch = |text: &str| EnrolmentError::Mismatch(text.to_owned());
    let authority = CertificateDer::from_pem_slice(enrolled.authority.as_bytes());
    let authority = authority.map_err(|_| mismatch("it contains no certificate of an authority"))?;
    if Fingerprint::of(&authority) != parsed.authority {
        return Err(mismatch("it is from another authority"));
    }
    let certificate = CertificateDer::from_pem_slice(enrolled.certificate.as_bytes());
    let certificate = certificate.map_err(|_| mismatch("it contains no certificate"))?;
    let credentials = Credentials::new(certificate, &new.key, authority.clone())?;
    let credentials = credentials.with_bundle_pem(url, &enrolled.authority)?;
    // rustls checks that key and certificate match.
    let tls = client_config(&credentials, None, true)?;
    if credentials.peer()?.identity != identity {
        return Err(mismatch("the certificate has another name"));
    }
    files.write_parts(&enrolled.certificate, (&authority, &credentials.bundle_pem()), Some(&new.key))?;
    let trusts_others = files.has_other_authorities(&credentials.bundle_pem())?;
    let revoked = fetch_crl((url, tls, dialer), &authority, out).await.map_err(|error| error.to_string());
    Ok(EnrolledMember { identity, not_after: enrolled.not_after, files, trusts_others, revocation_list: revoked })
}

/// Rule 4: fetches the revocation list.
async fn fetch_crl(
    (url, tls, dialer): (&str, rustls::ClientConfig, Arc<LinkDialer>),
    authority: &CertificateDer<'static>,
    out: &Path,
) -> Result<PathBuf, EnrolmentError> {
    let text = Client::new(url, tls)?.with_dialer(dialer).get_text("/v1/revoked").await?;
    let path = out.join("revoked.pem");
    RevocationFile::install_if_newer(&path, authority, &text)?;
    Ok(path)
}
