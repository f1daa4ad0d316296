//! TLS between members of the fleet: version 1.3, with certificates of the fleet's own authority on both sides.
//!
//! From the files that enrolment or `marline fleet ca issue` wrote and a revocation list, this module builds rustls
//! configurations, and it reads the identity of a peer from its certificate.
//!
//! 1. The system's certificate authorities are not trusted, only the fleet's. It signs all members itself, so a chain
//!    has no intermediate certificates. The authority's own certificate needs no revocation status, because it is the trust
//!    anchor. While an authority is being replaced, `ca.pem` holds several (`authorities`): each of them is trusted.
//!    The one that signed the member's own certificate is its authority, whose revocation list is `revoked.pem`.
//! 2. A server also checks the role: where relays are expected, the handshake rejects the certificate of an edge.
//! 3. The revocation list is part of a configuration. When [`RevocationFile::refresh`] reports a new one, create a new
//!    configuration. Its session tickets are new as well, so every client performs a full handshake once.
//! 4. Sessions are resumed, which saves the certificates (not a round trip: TLS 1.3 needs one in any case, and early data is not used)
//!    and their verification. rustls checks neither dates nor lists again in this case, but still has the certificate. Call
//!    [`Peer::check`] after each handshake, and periodically on long connections.
//! 5. A member that enrols has no certificate yet. The fleet service accepts it without one for enrolment only
//!    ([`ClientAuth::allow_unauthenticated`]). The member recognizes the service by the fingerprint in its token
//!    ([`first_contact_config`]).
//!
//! ring is the cryptographic provider, for the reasons in `net::http::tls`.

mod authorities;
mod verify;

#[cfg(test)]
mod tests;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use marline_net::private_file::{SecretError, read_secret};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::version::TLS13;
use rustls::{ClientConfig, ServerConfig};
use webpki::EndEntityCert;

pub(crate) use self::authorities::OtherAuthorities;
use self::authorities::{CaBundle, PerAuthorityVerifier, has_signed};
use self::verify::{PinnedVerifier, RoleVerifier};
use crate::ca::{Address, Fingerprint, KeyPem, RevocationFile, UtcSeconds, Validity};
use crate::crypto::{crypto_provider, server_name};
use crate::identity::{Identity, Role};

/// Error of the TLS setup, or reason for rejecting a peer.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or has unexpected contents.
    #[error("{}: {text}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The problem.
        text: String,
    },
    /// Other users may read the private key.
    #[error(transparent)]
    Secret(SecretError),
    /// rustls or webpki reports an error.
    #[error("TLS cannot be set up: {0}")]
    Library(String),
    /// The peer is rejected.
    #[error("{0}")]
    Peer(String),
}

/// Credentials of a member: its certificate, its key, and the authorities that it trusts.
pub struct Credentials {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    /// The authority that signed the certificate.
    authority: CertificateDer<'static>,
    /// Further trusted authorities.
    other_authorities: OtherAuthorities,
}

impl Credentials {
    /// Reads NAME.pem, NAME.key and ca.pem.
    ///
    /// # Errors
    /// If one of the files cannot be read or has unexpected contents.
    pub fn read(certificate: &Path, key: &Path, authority: &Path) -> Result<Self, TlsError> {
        let chain = read_certificates(certificate)?;
        // The library's error messages contain no part of the key.
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
            // A certificate of another authority is rejected where it is used.
            [one] => Some(one),
            several => several.iter().find(signed),
        };
        let signer = authority_of_chain.cloned().ok_or_else(|| {
            file_error(authority, format!("none of the authorities in it has signed {}", certificate.display()))
        })?;
        let others = bundle.into_others(&signer, authority)?;
        Ok(Self { chain, key, authority: signer, other_authorities: others })
    }

    /// Creates credentials from the results of an enrolment.
    ///
    /// # Errors
    /// If the key cannot be parsed.
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

    /// The same credentials with a new certificate for the same key, issued by one of the trusted authorities.
    #[must_use]
    pub fn with_certificate(&self, certificate: CertificateDer<'static>) -> Self {
        let (key, mut authority, mut others) =
            (self.key.clone_key(), self.authority.clone(), self.other_authorities.clone());
        others.promote_issuer(&mut authority, &certificate);
        Self { chain: vec![certificate, authority.clone()], key, authority, other_authorities: others }
    }

    /// Adds the other authorities in the bundle that the enrolment returned.
    ///
    /// # Errors
    /// If the text is not a valid bundle.
    pub(crate) fn with_bundle_pem(mut self, service: &str, pem: &str) -> Result<Self, TlsError> {
        let from = Path::new(service);
        self.other_authorities = CaBundle::parse(pem.as_bytes(), from)?.into_others(&self.authority, from)?;
        Ok(self)
    }

    /// PEM bundle of the member's authority and the others.
    pub(crate) fn bundle_pem(&self) -> String {
        self.other_authorities.to_bundle_pem(&self.authority)
    }

    /// Adds the other authorities in a bundle file.
    ///
    /// # Errors
    /// If the file cannot be read or has unexpected contents.
    pub fn with_bundle(mut self, path: &Path) -> Result<Self, TlsError> {
        self.other_authorities = CaBundle::read(path)?.into_others(&self.authority, path)?;
        Ok(self)
    }

    /// Adds a revocation list, unless the bundle has a newer one of the same authority.
    #[must_use]
    pub(crate) fn with_crl(mut self, crl: &RevocationFile) -> Self {
        self.other_authorities.update_crl(crl.authority(), crl.current());
        self
    }

    /// Subjects of the other trusted authorities whose revocation list is not known.
    pub fn authorities_without_crl(&self) -> Vec<String> {
        self.other_authorities.without_crl().collect()
    }

    pub(crate) fn other_authorities(&self) -> &OtherAuthorities {
        &self.other_authorities
    }

    /// Validity period of the certificate.
    ///
    /// # Errors
    /// If the certificate cannot be parsed.
    pub fn validity(&self) -> Result<Validity, TlsError> {
        let first = self.chain.first().ok_or_else(|| TlsError::Library("no certificate".to_owned()))?;
        Validity::of(first).map_err(TlsError::Library)
    }

    /// Whether the certificate is signed by the member's authority.
    pub(crate) fn is_signed_by_authority(&self) -> bool {
        self.chain.first().is_some_and(|certificate| has_signed(&self.authority, certificate))
    }

    /// Certificate of the member's authority.
    pub fn authority(&self) -> &CertificateDer<'static> {
        &self.authority
    }

    /// Identity of the member, as its peers see it.
    ///
    /// # Errors
    /// If the certificate contains no valid identity.
    pub fn peer(&self) -> Result<Peer, TlsError> {
        Peer::of(Some(&self.chain))
    }

    /// Whether clients that connect to `address` will accept the certificate.
    ///
    /// # Errors
    /// If the certificate does not cover this name or address.
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

/// Which clients a server accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientAuth {
    /// Accepted roles; if empty, no client with a certificate is accepted.
    pub roles: Vec<Role>,
    /// Whether clients without a certificate are accepted as well, for enrolment.
    pub allow_unauthenticated: bool,
}

/// Configuration of a relay or the fleet service: TLS 1.3, clients with these roles that are not revoked. With `http`,
/// the ALPN protocol is `http/1.1`.
///
/// # Errors
/// If key, certificate or revocation list is invalid.
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

/// Configuration of a client of a relay or the fleet service: TLS 1.3, servers of the trusted authorities only. With a
/// revocation list, revoked servers are rejected.
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
    // The peer has the authority's certificate, so it need not be sent.
    let chain = credentials.chain.iter().filter(|part| **part != credentials.authority).cloned().collect();
    let mut config = builder.with_client_auth_cert(chain, credentials.key.clone_key()).map_err(library_error)?;
    config.alpn_protocols = alpn_protocols(http);
    Ok(config)
}

/// Configuration for enrolment: no certificate of its own; the server's authority must have this fingerprint.
///
/// # Errors
/// If rustls rejects the configuration.
pub fn first_contact_config(authority: Fingerprint, http: bool) -> Result<ClientConfig, TlsError> {
    let provider = Arc::new(crypto_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider)).with_protocol_versions(&[&TLS13]);
    let verifier = Arc::new(PinnedVerifier { authority, provider });
    let builder = builder.map_err(library_error)?.dangerous().with_custom_certificate_verifier(verifier);
    let mut config = builder.with_no_client_auth();
    config.alpn_protocols = alpn_protocols(http);
    Ok(config)
}

/// Whether a certificate covers this name or address.
pub(crate) fn is_valid_for(certificate: &CertificateDer<'_>, address: &Address) -> bool {
    let certificate = EndEntityCert::try_from(certificate);
    let name = server_name(address);
    certificate.is_ok_and(|cert| name.is_some_and(|name| cert.verify_is_valid_for_subject_name(&name).is_ok()))
}

/// Identity of a peer, from its certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Name and role.
    pub identity: Identity,
    /// Serial number of the certificate, as encoded there.
    pub serial: Vec<u8>,
    /// End of the certificate's validity.
    pub not_after: UtcSeconds,
}

impl Peer {
    /// Reads `peer_certificates()` of a connection after its handshake, which may be a resumed one.
    ///
    /// # Errors
    /// If the peer presented no certificate, or one without a valid identity.
    pub fn of(certificates: Option<&[CertificateDer<'_>]>) -> Result<Self, TlsError> {
        let none = || TlsError::Peer("the peer presented no certificate".to_owned());
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

    /// Whether the peer is still accepted. For resumed sessions and long connections, which rustls does not check
    /// again.
    ///
    /// # Errors
    /// If the certificate has been revoked or has expired.
    pub fn check(&self, revocations: &RevocationFile, now: UtcSeconds) -> Result<(), TlsError> {
        if revocations.is_revoked(&self.serial) {
            return Err(TlsError::Peer(format!("{}: the certificate has been revoked", self.identity)));
        }
        if self.not_after < now {
            return Err(TlsError::Peer(format!(
                "{}: the certificate expired at {}",
                self.identity, self.not_after
            )));
        }
        Ok(())
    }
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
        rustls::pki_types::pem::Error::NoItemsFound => "it holds no PEM section of the expected kind".to_owned(),
        other => other.to_string(),
    }
}

fn library_error(error: impl ToString) -> TlsError {
    TlsError::Library(error.to_string())
}
