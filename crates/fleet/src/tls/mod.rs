//! TLS between members of the fleet: version 1.3, both sides with a certificate of our authority.
//!
//! In: files that enrolment or `marline fleet ca issue` wrote, and a revocation list. Out: configurations for rustls, and
//! who the other side is.
//!
//! 1. The system's authorities count for nothing here, ours for everything. It signs everybody itself, so a chain is one
//!    certificate long, and the authority's own needs no revocation status: it is what is trusted.
//!    While an authority is replaced, `ca.pem` holds several (`authorities`): each of them is trusted, and the one that has signed
//!    the member's own certificate is its authority, whose list is `revoked.pem`.
//! 2. A server asks for the role, too: an edge's certificate ends in the handshake where relays are expected.
//! 3. The revocation list is part of a configuration. When [`Revocations::refresh`] brings a new one, make a new
//!    configuration; its tickets are new as well, so every client goes through a full handshake once.
//! 4. Sessions are resumed: one round trip less on a slow link. rustls then looks at neither dates nor lists again, but still
//!    has the certificate: ask [`Peer::check`] after each handshake, and now and then on connections that last.
//! 5. Who enrols has no certificate yet: the fleet lets strangers in ([`Clients::strangers`]) as far as enrolment, and they
//!    know it by the fingerprint in their token ([`first_contact_config`]).
//!
//! ring is the provider, for the reasons in `net::http::tls`.

mod authorities;
mod verify;

#[cfg(test)]
mod tests;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use marline_net::private_file::{SecretError, read_secret};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::version::TLS13;
use rustls::{ClientConfig, ServerConfig};
use webpki::EndEntityCert;

pub(crate) use self::authorities::OtherAuthorities;
use self::authorities::{CaBundle, PerAuthorityVerifier, has_signed};
use self::verify::{PinnedVerifier, RoleVerifier};
use crate::ca::{Address, Fingerprint, KeyPem, RevocationFile, UtcSeconds, Validity};
use crate::identity::{Identity, Role};

/// Why nobody can be trusted, or is not.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or holds something else.
    #[error("{}: {text}", path.display())]
    File {
        /// Which one.
        path: PathBuf,
        /// Why.
        text: String,
    },
    /// Other users may read the key.
    #[error(transparent)]
    Secret(SecretError),
    /// The library refuses.
    #[error("TLS cannot be set up: {0}")]
    Library(String),
    /// The other side is not let in.
    #[error("{0}")]
    Peer(String),
}

/// What somebody shows to others: a certificate, its key, and the authority that it trusts.
pub struct Credentials {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    /// The one that has signed it.
    authority: CertificateDer<'static>,
    /// Those that it trusts besides.
    other_authorities: OtherAuthorities,
}

impl Credentials {
    /// Reads NAME.pem, NAME.key and ca.pem.
    ///
    /// # Errors
    /// One of them cannot be read, or holds something else.
    pub fn read(certificate: &Path, key: &Path, authority: &Path) -> Result<Self, TlsError> {
        let chain = read_certificates(certificate)?;
        // The library's words name no part of a key.
        let pem = read_secret(key).map_err(|error| match error {
            SecretError::File { path, error } => TlsError::File { path, text: error.to_string() },
            open => TlsError::Secret(open),
        })?;
        let key = PrivateKeyDer::from_pem_slice(&pem).map_err(|error| file_error(key, pem_error_text(error)))?;
        let bundle = CaBundle::read(authority)?;
        let signed = |authority: &&CertificateDer<'_>| {
            chain.first().is_some_and(|certificate| has_signed(authority, certificate))
        };
        let authority_of_chain = match bundle.certificates.as_slice() {
            // A certificate of another authority is refused where it is used.
            [one] => Some(one),
            several => several.iter().find(signed),
        };
        let signer = authority_of_chain.cloned().ok_or_else(|| {
            file_error(authority, format!("none of the authorities in it has signed {}", certificate.display()))
        })?;
        let others = bundle.into_others(&signer, authority)?;
        Ok(Self { chain, key, authority: signer, other_authorities: others })
    }

    /// From what enrolment has brought.
    ///
    /// # Errors
    /// The key is none.
    pub fn new(
        certificate: CertificateDer<'static>,
        key: &KeyPem,
        authority: CertificateDer<'static>,
    ) -> Result<Self, TlsError> {
        let key = PrivateKeyDer::from_pem_slice(key.reveal().as_bytes());
        let key = key.map_err(|error| TlsError::Library(pem_error_text(error)))?;
        Ok(Self {
            chain: vec![certificate, authority.clone()],
            key,
            authority,
            other_authorities: OtherAuthorities::default(),
        })
    }

    /// With another certificate for the same key, of one of its authorities.
    #[must_use]
    pub fn with_certificate(&self, certificate: CertificateDer<'static>) -> Self {
        let (key, mut authority, mut others) =
            (self.key.clone_key(), self.authority.clone(), self.other_authorities.clone());
        others.promote_issuer(&mut authority, &certificate);
        Self { chain: vec![certificate, authority.clone()], key, authority, other_authorities: others }
    }

    /// Trusting the other authorities as well that enrolment has brought.
    ///
    /// # Errors
    /// It is no bundle.
    pub(crate) fn with_bundle_pem(mut self, service: &str, pem: &str) -> Result<Self, TlsError> {
        let from = Path::new(service);
        self.other_authorities = CaBundle::parse(pem.as_bytes(), from)?.into_others(&self.authority, from)?;
        Ok(self)
    }

    /// Its authority and the others, as a bundle.
    pub(crate) fn bundle_pem(&self) -> String {
        self.other_authorities.to_bundle_pem(&self.authority)
    }

    /// Trusting the other authorities in a bundle as well.
    ///
    /// # Errors
    /// The file cannot be read, or holds something else.
    pub fn with_bundle(mut self, path: &Path) -> Result<Self, TlsError> {
        self.other_authorities = CaBundle::read(path)?.into_others(&self.authority, path)?;
        Ok(self)
    }

    /// Knowing this list, where it is newer than the bundle's list of the same authority.
    #[must_use]
    pub(crate) fn with_crl(mut self, crl: &RevocationFile) -> Self {
        self.other_authorities.update_crl(crl.authority(), crl.current());
        self
    }

    /// The other authorities that it trusts whose revocation list is not known, by the subjects of their certificates.
    pub fn authorities_without_crl(&self) -> Vec<String> {
        self.other_authorities.without_crl().collect()
    }

    pub(crate) fn other_authorities(&self) -> &OtherAuthorities {
        &self.other_authorities
    }

    /// From when to when it counts.
    ///
    /// # Errors
    /// The certificate does not say.
    pub fn validity(&self) -> Result<Validity, TlsError> {
        let first = self.chain.first().ok_or_else(|| TlsError::Library("no certificate".to_owned()))?;
        Validity::of(first).map_err(TlsError::Library)
    }

    /// Whether its authority has signed it.
    pub(crate) fn is_signed_by_authority(&self) -> bool {
        self.chain.first().is_some_and(|certificate| has_signed(&self.authority, certificate))
    }

    /// Whom it trusts.
    pub fn authority(&self) -> &CertificateDer<'static> {
        &self.authority
    }

    /// Who it is.
    ///
    /// # Errors
    /// The certificate does not say.
    pub fn peer(&self) -> Result<Peer, TlsError> {
        Peer::of(Some(&self.chain))
    }

    /// Whether those who reach it there will take its certificate.
    ///
    /// # Errors
    /// The certificate is not for this name or address.
    pub fn is_for(&self, address: &Address) -> Result<(), TlsError> {
        let identity = self.peer()?.identity;
        match self.chain.first().is_some_and(|first| is_valid_for(first, address)) {
            true => Ok(()),
            false => Err(TlsError::Peer(format!("the certificate of {identity} is for other names and addresses"))),
        }
    }
}

impl Clone for Credentials {
    fn clone(&self) -> Self {
        Self {
            chain: self.chain.clone(),
            key: self.key.clone_key(),
            authority: self.authority.clone(),
            other_authorities: self.other_authorities.clone(),
        }
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("key", &"MASKED").finish_non_exhaustive()
    }
}

/// Whom a server lets in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientAuth {
    /// These; none: nobody with a certificate.
    pub roles: Vec<Role>,
    /// Also those without any certificate, who want to enrol.
    pub allow_unauthenticated: bool,
}

/// For a relay or the fleet: TLS 1.3, clients of these roles, none of them revoked. With `http`, the protocol (ALPN) is
/// `http/1.1`.
///
/// # Errors
/// Key, certificate or list are no good.
pub fn server_config(
    credentials: &Credentials,
    crl: CertificateRevocationListDer<'static>,
    clients: &ClientAuth,
    http: bool,
) -> Result<ServerConfig, TlsError> {
    let provider = Arc::new(crypto_provider());
    let authorities = PerAuthorityVerifier::for_clients(
        &credentials.authority,
        crl,
        &credentials.other_authorities,
        clients.allow_unauthenticated,
        &provider,
    )?;
    let verifier = RoleVerifier { authorities, roles: clients.roles.clone() };
    let builder = ServerConfig::builder_with_provider(provider).with_protocol_versions(&[&TLS13]);
    let builder = builder.map_err(library_error)?.with_client_cert_verifier(Arc::new(verifier));
    let mut config =
        builder.with_single_cert(credentials.chain.clone(), credentials.key.clone_key()).map_err(library_error)?;
    config.alpn_protocols = alpn_protocols(http);
    Ok(config)
}

/// For whoever connects to a relay or the fleet: TLS 1.3, servers of our authority only; with a list, none that is revoked.
///
/// # Errors
/// As [`server_config`].
pub fn client_config(
    credentials: &Credentials,
    crl: Option<CertificateRevocationListDer<'static>>,
    http: bool,
) -> Result<ClientConfig, TlsError> {
    let provider = Arc::new(crypto_provider());
    let verifier = Arc::new(PerAuthorityVerifier::for_servers(
        &credentials.authority,
        crl,
        &credentials.other_authorities,
        &provider,
    )?);
    let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[&TLS13]);
    let builder = builder.map_err(library_error)?.dangerous().with_custom_certificate_verifier(verifier);
    // The other side has the authority's certificate.
    let chain = credentials.chain.iter().filter(|part| **part != credentials.authority).cloned().collect();
    let mut config = builder.with_client_auth_cert(chain, credentials.key.clone_key()).map_err(library_error)?;
    config.alpn_protocols = alpn_protocols(http);
    Ok(config)
}

/// For who enrols: no certificate of its own, and the server's authority is the one with this fingerprint.
///
/// # Errors
/// The library refuses.
pub fn first_contact_config(authority: Fingerprint, http: bool) -> Result<ClientConfig, TlsError> {
    let provider = Arc::new(crypto_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider)).with_protocol_versions(&[&TLS13]);
    let verifier = Arc::new(PinnedVerifier { authority, provider });
    let builder = builder.map_err(library_error)?.dangerous().with_custom_certificate_verifier(verifier);
    let mut config = builder.with_no_client_auth();
    config.alpn_protocols = alpn_protocols(http);
    Ok(config)
}

/// Whether a certificate is for this name or address.
pub(crate) fn is_valid_for(certificate: &CertificateDer<'_>, address: &Address) -> bool {
    let certificate = EndEntityCert::try_from(certificate);
    certificate.is_ok_and(|it| it.verify_is_valid_for_subject_name(address.server_name()).is_ok())
}

/// Who the other side is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its name and role.
    pub identity: Identity,
    /// The number of its certificate, as it stands there.
    pub serial: Vec<u8>,
    /// When its certificate ends.
    pub not_after: UtcSeconds,
}

impl Peer {
    /// By `peer_certificates()` of a connection whose handshake is done, a resumed one as well.
    ///
    /// # Errors
    /// It showed none, or the certificate says nothing of the kind.
    pub fn of(certificates: Option<&[CertificateDer<'_>]>) -> Result<Self, TlsError> {
        let none = || TlsError::Peer("the other side has shown no certificate".to_owned());
        let certificate = certificates.and_then(<[_]>::first).ok_or_else(none)?;
        let identity = Identity::of(certificate).map_err(TlsError::Peer)?;
        let invalid = |error: String| TlsError::Peer(format!("the certificate of {identity}: {error}"));
        let serial =
            EndEntityCert::try_from(certificate).map_err(|error| invalid(error.to_string()))?.serial().to_vec();
        let (_, parsed) =
            x509_parser::parse_x509_certificate(certificate).map_err(|error| invalid(error.to_string()))?;
        let end = u64::try_from(parsed.validity().not_after.timestamp()).unwrap_or_default();
        Ok(Self { identity, serial, not_after: UtcSeconds::from_unix(end) })
    }

    /// Whether it may still be here: for resumed sessions and for connections that last.
    ///
    /// # Errors
    /// Its certificate was taken back or has expired.
    pub fn check(&self, revocations: &RevocationFile, now: UtcSeconds) -> Result<(), TlsError> {
        if revocations.is_revoked(&self.serial) {
            return Err(TlsError::Peer(format!("{}: the certificate has been revoked", self.identity)));
        }
        if self.not_after < now {
            return Err(TlsError::Peer(format!("{}: the certificate ended at {}", self.identity, self.not_after)));
        }
        Ok(())
    }
}

/// The one place of this crate that names the cryptography.
pub(crate) fn crypto_provider() -> CryptoProvider {
    rustls::crypto::ring::default_provider()
}

fn alpn_protocols(http: bool) -> Vec<Vec<u8>> {
    if http { vec![b"http/1.1".to_vec()] } else { Vec::new() }
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let read = read.map_err(|error| file_error(path, pem_error_text(error)))?;
    if read.is_empty() { Err(file_error(path, "it holds no certificate".to_owned())) } else { Ok(read) }
}

fn file_error(path: &Path, text: String) -> TlsError {
    TlsError::File { path: path.into(), text }
}

fn pem_error_text(error: rustls::pki_types::pem::Error) -> String {
    match error {
        rustls::pki_types::pem::Error::Io(error) => error.to_string(),
        rustls::pki_types::pem::Error::NoItemsFound => "it holds nothing of the kind as PEM".to_owned(),
        other => other.to_string(),
    }
}

fn library_error(error: impl ToString) -> TlsError {
    TlsError::Library(error.to_string())
}
