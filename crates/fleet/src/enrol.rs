//! Enrolment of a member (an edge or relay): uses a token to obtain a certificate, and writes NAME.pem, NAME.key and ca.pem
//! (`docs/fleet-reference.md`, "The life of a token").
//!
//! 1. The key is generated here and stays here; only a certificate request is sent.
//! 2. The token contains the fingerprint of the fleet's certificate authority. TLS verifies the service with it before the
//!    token is sent.
//! 3. Files that exist already are detected before the token is sent, because sending uses it up. The response must match the token: same
//!    name, same key, same authority. While an authority is being replaced, the service also sends the other
//!    authorities that it trusts, and the member trusts them as well.
//! 4. The authority's revocation list is fetched with the new certificate, because a relay does not start without one.

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
    /// Whether `out` already contained a `ca.pem` with other authorities than the service sent. It was not overwritten.
    pub trusts_others: bool,
    /// Path of the revocation list, or the error that prevented fetching it.
    pub revocation_list: Result<PathBuf, String>,
}

/// Uses a token at the service at this URL and writes the files to `out`.
///
/// # Errors
/// - The token is invalid, or a file exists already: the token was not sent and can be used again.
/// - The service cannot be reached: the token may have been used up, since a response can be lost.
/// - The service refuses: its message states the reason.
/// - The response is invalid or does not match the token, or a file cannot be written or read: the token is used up,
///   and some of the files may exist.
pub async fn enrol_member(url: &str, token: &str, out: &Path) -> Result<EnrolledMember, EnrolmentError> {
    let parsed = Token::parse_unverified(token.trim())?;
    let identity = parsed.template.identity().clone();
    let files = MemberFiles::of(out, &identity.name)?;
    files.check_absent(parsed.authority)?;
    let key_pair = KeyWithRequest::generate()?;
    // Offers HTTP by ALPN.
    let http = true;
    let dialer = LinkDialer::from_survey().await;
    let mut client =
        Client::new(url, first_contact_config(parsed.authority, http)?)?.with_dialer(Arc::clone(&dialer));
    let request = EnrolRequest { token: token.trim().to_owned(), request: key_pair.request };
    let reply: EnrolReply = client.post("/v1/enrol", &request).await?;
    let mismatch = |text: &str| EnrolmentError::Mismatch(text.to_owned());
    let authority = CertificateDer::from_pem_slice(reply.authority.as_bytes());
    let authority = authority.map_err(|_| mismatch("it contains no certificate of an authority"))?;
    if Fingerprint::of(&authority) != parsed.authority {
        return Err(mismatch("it is from another authority"));
    }
    let certificate = CertificateDer::from_pem_slice(reply.certificate.as_bytes());
    let certificate = certificate.map_err(|_| mismatch("it contains no certificate"))?;
    let credentials = Credentials::new(certificate, &key_pair.key, authority.clone())?;
    let credentials = credentials.with_bundle_pem(url, &reply.authority)?;
    // rustls checks that key and certificate match. There is no revocation list yet (`None`).
    let tls = client_config(&credentials, None, http)?;
    if credentials.peer()?.identity != identity {
        return Err(mismatch("the certificate has another name"));
    }
    // From here on the files may exist, also if an error is returned.
    let trusts_others =
        files.write_parts(&reply.certificate, (&authority, &credentials.bundle_pem()), Some(&key_pair.key))?;
    let revocation_list = fetch_crl((url, tls, dialer), &authority, out).await.map_err(|error| error.to_string());
    Ok(EnrolledMember { identity, not_after: reply.not_after, files, trusts_others, revocation_list })
}

/// Fetches the revocation list and installs it as `revoked.pem` in `out`.
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
