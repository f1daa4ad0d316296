//! The authorities that a member trusts: its own, and others while an authority is being replaced (`docs/fleet.md`,
//! "Replacing the authority").
//!
//! A bundle contains the certificates of authorities and, in the same file, their revocation lists, as an OpenSSL
//! `CAfile` may.
//!
//! 1. A certificate is verified against the authority whose key signed it, with that authority's list. Subject names do
//!    not decide: a new authority often has the name of the old one, and webpki would apply the old authority's list to
//!    certificates of the new one.
//! 2. The member's own authority comes first. If another certificate in the bundle has the same key, the member's own
//!    revocation list still applies.
//! 3. The revocation list of the member's own authority is `revoked.pem`, not the one in the bundle.

use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};

use super::{Peer, TlsError, file_error, library_error, pem_error_text};
use crate::ca::{Crl, pem, pem_encode};

/// Our choice: an authority and its successor, with headroom for mistakes.
const MAX_AUTHORITIES: usize = 8;
/// Largest bundle in bytes. Our choice: a revocation list of 20,000 certificates has about 1 MiB as PEM.
const MAX_BUNDLE_LEN: u64 = 8 << 20;

/// Contents of a bundle.
#[derive(Debug)]
pub(super) struct CaBundle {
    pub(super) certificates: Vec<CertificateDer<'static>>,
    crls: Vec<CertificateRevocationListDer<'static>>,
}

impl CaBundle {
    pub(super) fn read(path: &Path) -> Result<Self, TlsError> {
        let io = |error: std::io::Error| file_error(path, error.to_string());
        let mut pem = Vec::new();
        std::fs::File::open(path).map_err(io)?.take(MAX_BUNDLE_LEN + 1).read_to_end(&mut pem).map_err(io)?;
        if pem.len() as u64 > MAX_BUNDLE_LEN {
            return Err(file_error(
                path,
                format!("it is larger than {} MiB, the limit for a CA bundle", MAX_BUNDLE_LEN >> 20),
            ));
        }
        Self::parse(&pem, path)
    }

    /// Parses a bundle; `path` is its source, for error messages.
    pub(super) fn parse(pem: &[u8], path: &Path) -> Result<Self, TlsError> {
        let bad = |error| file_error(path, pem_error_text(error));
        let parsed = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>().map_err(bad)?;
        let lists =
            CertificateRevocationListDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>().map_err(bad)?;
        let mut certificates: Vec<CertificateDer<'static>> = Vec::new();
        for certificate in parsed {
            if !certificates.contains(&certificate) {
                certificates.push(certificate);
            }
        }
        if certificates.is_empty() {
            return Err(file_error(path, "it holds no certificate of an authority".to_owned()));
        }
        if certificates.len() > MAX_AUTHORITIES {
            let count = certificates.len();
            return Err(file_error(
                path,
                format!(
                    "it holds the certificates of {count} authorities, more than the limit of {MAX_AUTHORITIES}: remove old ones"
                ),
            ));
        }
        Ok(Self { certificates, crls: lists })
    }

    /// Returns all authorities except the member's own, each with its newest list.
    pub(super) fn into_others(
        self,
        authority: &CertificateDer<'_>,
        path: &Path,
    ) -> Result<OtherAuthorities, TlsError> {
        for certificate in self.certificates.iter().filter(|_| self.certificates.len() > 1) {
            let parsed = x509_parser::parse_x509_certificate(certificate);
            let (_, parsed) = parsed.map_err(|error| file_error(path, error.to_string()))?;
            if !parsed.is_ca() {
                let subject = marline_net::printable::printable(&parsed.subject().to_string()).into_owned();
                return Err(file_error(
                    path,
                    format!("the certificate of {subject} in it is not a CA certificate: remove it"),
                ));
            }
        }
        let mut others: Vec<OtherAuthority> = self
            .certificates
            .iter()
            .filter(|certificate| *certificate != authority)
            .map(|certificate| OtherAuthority { certificate: certificate.clone(), crl: None })
            .collect();
        for der in self.crls {
            if Crl::of(der.clone(), authority).is_ok() {
                // Rule 3: the member's own list is not taken from the bundle.
                continue;
            }
            let mut matching =
                others.iter_mut().filter_map(|other| Some((Crl::of(der.clone(), &other.certificate).ok()?, other)));
            let (crl, other) = matching.next().ok_or_else(|| {
                file_error(path, "a revocation list in it is signed by none of the authorities in it".to_owned())
            })?;
            if other.crl.as_ref().is_none_or(|known| known.number < crl.number) {
                other.crl = Some(crl);
            }
        }
        Ok(OtherAuthorities(others))
    }
}

/// Authorities that are trusted in addition to a member's own.
#[derive(Clone, Debug, Default)]
pub(crate) struct OtherAuthorities(Vec<OtherAuthority>);

#[derive(Clone, Debug)]
struct OtherAuthority {
    certificate: CertificateDer<'static>,
    crl: Option<Crl>,
}

impl OtherAuthorities {
    /// Number of authorities.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// PEM bundle of the member's own authority, which comes first, and these.
    pub(crate) fn to_bundle_pem(&self, authority: &CertificateDer<'_>) -> String {
        let mut text = pem(authority);
        for other in self.0.iter().filter(|other| other.certificate != *authority) {
            text.push_str(&pem(&other.certificate));
            if let Some(list) = &other.crl {
                text.push_str(&pem_encode("X509 CRL", &list.der));
            }
        }
        text
    }

    /// Replaces the list of one of these authorities, unless a newer one is known.
    pub(super) fn update_crl(&mut self, authority: &CertificateDer<'_>, crl: &Crl) {
        for other in self.0.iter_mut().filter(|other| other.certificate == *authority) {
            if other.crl.as_ref().is_none_or(|known| known.number < crl.number) {
                other.crl = Some(crl.clone());
            }
        }
    }

    /// Whether one of these authorities has issued this revocation list.
    pub(crate) fn has_issued(&self, pem: &str) -> bool {
        self.0.iter().any(|other| Crl::parse(pem.as_bytes(), &other.certificate).is_ok())
    }

    /// Checks that none of their lists contains the certificate of a peer.
    pub(crate) fn check_not_revoked(&self, peer: &Peer) -> Result<(), TlsError> {
        let mut lists = self.0.iter().filter_map(|other| other.crl.as_ref());
        match lists.any(|list| list.revoked.contains_key(&peer.serial)) {
            true => Err(TlsError::Peer(format!("{}: the certificate has been revoked", peer.identity))),
            false => Ok(()),
        }
    }

    /// Subjects of the authorities without a list, whose revoked members are still accepted.
    pub(crate) fn without_crl(&self) -> impl Iterator<Item = String> + '_ {
        let subject = |other: &OtherAuthority| {
            let parsed = x509_parser::parse_x509_certificate(&other.certificate).ok()?;
            Some(marline_net::printable::printable(&parsed.1.subject().to_string()).into_owned())
        };
        self.0.iter().filter(|other| other.crl.is_none()).filter_map(subject)
    }

    /// If one of these authorities has signed `certificate`, it becomes the member's own, and `authority` joins the
    /// others.
    pub(super) fn promote_issuer(
        &mut self,
        authority: &mut CertificateDer<'static>,
        certificate: &CertificateDer<'_>,
    ) {
        if has_signed(authority, certificate) {
            return;
        }
        if let Some(other) = self.0.iter_mut().find(|other| has_signed(&other.certificate, certificate)) {
            std::mem::swap(authority, &mut other.certificate);
            // The list of the former own authority is stored elsewhere.
            other.crl = None;
        }
    }
}

/// Whether an authority has signed a certificate.
pub(super) fn has_signed(authority: &CertificateDer<'_>, certificate: &CertificateDer<'_>) -> bool {
    match (x509_parser::parse_x509_certificate(certificate), x509_parser::parse_x509_certificate(authority)) {
        (Ok((_, certificate)), Ok((_, authority))) => {
            certificate.verify_signature(Some(authority.public_key())).is_ok()
        }
        _ => false,
    }
}

/// Rule 1: one verifier for each authority, the member's own first.
#[derive(Debug)]
pub(super) struct PerAuthorityVerifier<V: ?Sized> {
    own_verifier: (CertificateDer<'static>, Arc<V>),
    other_verifiers: Vec<(CertificateDer<'static>, Arc<V>)>,
    subject_hints: Vec<DistinguishedName>,
}

impl<V: ?Sized> PerAuthorityVerifier<V> {
    fn of(
        authority: &CertificateDer<'static>,
        crl: Option<CertificateRevocationListDer<'static>>,
        others: &OtherAuthorities,
        verifier: impl Fn(Arc<RootCertStore>, Option<CertificateRevocationListDer<'static>>) -> Result<Arc<V>, TlsError>,
    ) -> Result<Self, TlsError> {
        let mut hints = Vec::new();
        let mut verifier_for = |authority: &CertificateDer<'static>, list| {
            let mut roots = RootCertStore::empty();
            roots.add(authority.clone()).map_err(library_error)?;
            hints.extend(roots.subjects());
            Ok::<_, TlsError>((authority.clone(), verifier(Arc::new(roots), list)?))
        };
        let own_verifier = verifier_for(authority, crl)?;
        let lists = others
            .0
            .iter()
            .map(|other| verifier_for(&other.certificate, other.crl.as_ref().map(|list| list.der.clone())));
        let others = lists.collect::<Result<_, _>>()?;
        Ok(Self { own_verifier, other_verifiers: others, subject_hints: hints })
    }

    /// Verifier of the member's own authority.
    pub(super) fn member_verifier(&self) -> &V {
        &self.own_verifier.1
    }

    /// Subjects of all authorities.
    pub(super) fn hints(&self) -> &[DistinguishedName] {
        &self.subject_hints
    }

    /// Verifier of the authority that signed this certificate. If none did, that of the member's own, which rejects it.
    pub(super) fn verifier_for(&self, certificate: &CertificateDer<'_>) -> &V {
        let (authority, own_verifier) = &self.own_verifier;
        if self.other_verifiers.is_empty() || has_signed(authority, certificate) {
            return own_verifier;
        }
        let other = self.other_verifiers.iter().find(|(authority, _)| has_signed(authority, certificate));
        other.map_or(own_verifier, |(_, verifier)| verifier)
    }
}

impl PerAuthorityVerifier<dyn ClientCertVerifier> {
    /// Verifier for a server. `allow_unauthenticated` also accepts clients without a certificate.
    pub(super) fn for_clients(
        authority: &CertificateDer<'static>,
        crl: CertificateRevocationListDer<'static>,
        others: &OtherAuthorities,
        allow_unauthenticated: bool,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Self, TlsError> {
        Self::of(authority, Some(crl), others, |roots, list| {
            let builder = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(provider)).with_crls(list);
            let builder = if allow_unauthenticated { builder.allow_unauthenticated() } else { builder };
            builder.build().map_err(library_error)
        })
    }
}

impl PerAuthorityVerifier<dyn ServerCertVerifier> {
    /// Verifier for a client.
    pub(super) fn for_servers(
        authority: &CertificateDer<'static>,
        crl: Option<CertificateRevocationListDer<'static>>,
        others: &OtherAuthorities,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Self, TlsError> {
        Self::of(authority, crl, others, |roots, list| {
            let builder = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(provider)).with_crls(list);
            let built: Arc<dyn ServerCertVerifier> = builder.build().map_err(library_error)?;
            Ok(built)
        })
    }
}

impl ServerCertVerifier for PerAuthorityVerifier<dyn ServerCertVerifier> {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verifier = self.verifier_for(end_entity);
        verifier.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.member_verifier().verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.member_verifier().verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.member_verifier().supported_verify_schemes()
    }
}
