//! Enrolment from the box: a token becomes NAME.pem, NAME.key and ca.pem (`docs/fleet.md`, "The life of a token").
//!
//! In: a token as a person brought it, and a service. Out: files.
//!
//! 1. The key is made here and stays here; only a request goes out.
//! 2. The service is known by the fingerprint in the token, before the token is shown to it.
//! 3. What stands in the way of the files is found before the token is spent. What comes back must be what the token has
//!    promised: this name, this key, this authority. While an authority is replaced, the service names the other authorities that it trusts,
//!    and the member trusts them as well.
//! 4. The authority's list of the revoked is fetched with the new certificate, for a relay begins with it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use crate::ca::{CaError, EnrolError, Fingerprint, KeyWithRequest, MemberFiles, RevocationFile, Token};
use crate::identity::Identity;
use crate::link_dialer::LinkDialer;
use crate::service::{Client, ClientError, EnrolReply, EnrolRequest};
use crate::tls::{Credentials, TlsError, client_config, first_contact_config};

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum EnrolmentError {
    /// The token is none.
    #[error(transparent)]
    Token(#[from] EnrolError),
    /// A file is in the way, or cannot be written.
    #[error(transparent)]
    File(#[from] CaError),
    /// The service is not reached, is another authority's, or refuses.
    #[error(transparent)]
    Service(#[from] ClientError),
    /// What came is no good.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// What came is not what the token has promised.
    #[error("the service has answered with something else than the token promises: {0}")]
    Mismatch(String),
}

/// What enrolment has brought.
#[derive(Clone, Debug)]
pub struct EnrolledMember {
    /// Who this machine is now.
    pub identity: Identity,
    /// Until when.
    pub not_after: String,
    /// Where it stands.
    pub files: MemberFiles,
    /// There was a `ca.pem`, which was kept, and it trusts other authorities than the service does.
    pub trusts_others: bool,
    /// The revocation list, or why it is not there.
    pub revocation_list: Result<PathBuf, String>,
}

/// Spends a token at the service of this URL, for files in `out`.
///
/// # Errors
/// There is no certificate; whether the token was spent the words tell.
pub async fn enrol_member(url: &str, token: &str, out: &Path) -> Result<EnrolledMember, EnrolmentError> {
    let parsed = Token::parse_unverified(token.trim())?;
    let identity = parsed.template.identity().clone();
    let files = MemberFiles::of(out, &identity.name)?;
    files.check_absent(parsed.authority)?;
    let new = KeyWithRequest::generate()?;
    let starts = LinkDialer::from_survey().await;
    let mut client =
        Client::new(url, first_contact_config(parsed.authority, true)?)?.with_dialer(Arc::clone(&starts));
    let enrol = EnrolRequest { token: token.trim().to_owned(), request: new.request };
    let enrolled: EnrolReply = client.post("/v1/enrol", &enrol).await?;
    let mismatch = |text: &str| EnrolmentError::Mismatch(text.to_owned());
    let authority = CertificateDer::from_pem_slice(enrolled.authority.as_bytes());
    let authority = authority.map_err(|_| mismatch("no certificate of an authority"))?;
    if Fingerprint::of(&authority) != parsed.authority {
        return Err(mismatch("another authority"));
    }
    let certificate = CertificateDer::from_pem_slice(enrolled.certificate.as_bytes());
    let certificate = certificate.map_err(|_| mismatch("no certificate"))?;
    let credentials = Credentials::new(certificate, &new.key, authority.clone())?;
    let credentials = credentials.with_bundle_pem(url, &enrolled.authority)?;
    // The library compares key and certificate.
    let tls = client_config(&credentials, None, true)?;
    if credentials.peer()?.identity != identity {
        return Err(mismatch("another name"));
    }
    files.write_parts(&enrolled.certificate, (&authority, &credentials.bundle_pem()), Some(&new.key))?;
    let trusts_others = files.has_other_authorities(&credentials.bundle_pem())?;
    let revoked = fetch_crl((url, tls, starts), &authority, out).await.map_err(|error| error.to_string());
    Ok(EnrolledMember { identity, not_after: enrolled.not_after, files, trusts_others, revocation_list: revoked })
}

/// Rule 4.
async fn fetch_crl(
    (url, tls, starts): (&str, rustls::ClientConfig, Arc<LinkDialer>),
    authority: &CertificateDer<'static>,
    out: &Path,
) -> Result<PathBuf, EnrolmentError> {
    let text = Client::new(url, tls)?.with_dialer(starts).get_text("/v1/revoked").await?;
    let path = out.join("revoked.pem");
    RevocationFile::install_if_newer(&path, authority, &text)?;
    Ok(path)
}
