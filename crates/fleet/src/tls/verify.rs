//! Checks in addition to webpki: the role of a client, and an authority that is known by its fingerprint alone.
//!
//! Both verifiers delegate chains, dates, names and signatures to rustls's own verifiers and only restrict their
//! results.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, RootCertStore, SignatureScheme,
};

use super::TlsError;
use super::authorities::PerAuthorityVerifier;
use crate::ca::Fingerprint;
use crate::identity::{Identity, Role};

/// Accepts a client that the verifier of its authority accepts, if it has one of the roles.
#[derive(Debug)]
pub(super) struct RoleVerifier {
    pub(super) authorities: PerAuthorityVerifier<dyn ClientCertVerifier>,
    pub(super) roles: Vec<Role>,
}

impl ClientCertVerifier for RoleVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.authorities.hints()
    }

    fn offer_client_auth(&self) -> bool {
        self.authorities.member_verifier().offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.authorities.member_verifier().client_auth_mandatory()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let chain = self.authorities.verifier_for(end_entity);
        let verified = chain.verify_client_cert(end_entity, intermediates, now)?;
        let identity = Identity::of(end_entity).map_err(certificate_error)?;
        if self.roles.contains(&identity.role) {
            return Ok(verified);
        }
        Err(certificate_error(format!("{identity}: clients of the role {} are not accepted here", identity.role)))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.authorities.member_verifier().verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.authorities.member_verifier().verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.authorities.member_verifier().supported_verify_schemes()
    }
}

/// Trusts the authority with this fingerprint, whose certificate the server sends along.
#[derive(Debug)]
pub(super) struct PinnedVerifier {
    pub(super) authority: Fingerprint,
    pub(super) provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for PinnedVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let pinned = intermediates.iter().find(|part| Fingerprint::of(part) == self.authority);
        let pinned = pinned.ok_or(Error::InvalidCertificate(CertificateError::UnknownIssuer))?;
        let mut roots = RootCertStore::empty();
        roots.add(pinned.clone().into_owned())?;
        let chain = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&self.provider));
        let chain = chain.build().map_err(|error| Error::General(error.to_string()))?;
        chain.verify_server_cert(end_entity, &[], server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

fn certificate_error(text: String) -> Error {
    Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(TlsError::Peer(text)))))
}
