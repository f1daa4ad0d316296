//! Certificate requests (PKCS #10, RFC 2986): a public key, with proof that the sender has the private key.
//!
//! 1. The signature of a request must match its own key; nothing else in it is used. Requested names and extensions are
//!    not even rejected, because the authority decides the names.
//! 2. Keys are ECDSA P-256: handshakes are small, and ring signs with them in constant time.

use std::fmt;

use rcgen::{CertificateParams, DistinguishedName, KeyPair, PublicKeyData, SubjectPublicKeyInfo};
use rustls::pki_types::CertificateSigningRequestDer;
use rustls::pki_types::pem::PemObject;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer;

use super::CaError;

/// A public key whose owner has proved possession of the private key.
#[derive(Clone, Debug)]
pub struct CertRequest {
    key: SubjectPublicKeyInfo,
}

impl CertRequest {
    /// Parses PEM or DER.
    ///
    /// # Errors
    /// If it is not a request, its key is of another kind, or its signature is wrong: [`CaError::Request`].
    pub fn parse(bytes: &[u8]) -> Result<Self, CaError> {
        if bytes.len() > MAX_LEN {
            return Err(CaError::Request(format!("has more than {MAX_LEN} bytes")));
        }
        let pem = bytes.trim_ascii_start().starts_with(b"-----BEGIN");
        if !pem {
            return Self::from_der(bytes);
        }
        let der = CertificateSigningRequestDer::from_pem_slice(bytes)
            .map_err(|error| CaError::Request(format!("cannot be read: {error}")))?;
        Self::from_der(&der)
    }

    fn from_der(der: &[u8]) -> Result<Self, CaError> {
        let wrong = |text: &str| CaError::Request(text.to_owned());
        let (remaining, request) =
            X509CertificationRequest::from_der(der).map_err(|_| wrong("cannot be read: not PKCS #10"))?;
        if !remaining.is_empty() {
            return Err(wrong("has bytes after its end"));
        }
        let kind = || wrong("has a key of another kind than ECDSA P-256");
        let info = request.certification_request_info.subject_pki.raw;
        let key = SubjectPublicKeyInfo::from_der(info).map_err(|_| kind())?;
        if key.algorithm() != &rcgen::PKCS_ECDSA_P256_SHA256 {
            return Err(kind());
        }
        request.verify_signature().map_err(|_| wrong("is not signed with its own key"))?;
        Ok(Self { key })
    }

    pub(super) fn public_key(&self) -> &SubjectPublicKeyInfo {
        &self.key
    }
}

/// Longest request in bytes. Our choice: a P-256 request has 300 bytes, a long one of openssl with names 2000.
const MAX_LEN: usize = 16 * 1024;

/// A private key as PEM. Its debug output is masked.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyPem(String);

impl KeyPem {
    pub(super) fn of(key: &KeyPair) -> Self {
        Self(key.serialize_pem())
    }

    /// The PEM text, for the code that stores or uses it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for KeyPem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MASKED")
    }
}

/// Key and request of a new member: it keeps the key and sends the request.
#[derive(Clone, Debug)]
pub struct KeyWithRequest {
    /// The private key, which stays where it was created.
    pub key: KeyPem,
    /// The certificate request as PEM.
    pub request: String,
}

impl KeyWithRequest {
    /// Generates a new key and its request.
    ///
    /// # Errors
    /// If the system provides no random numbers.
    pub fn generate() -> Result<Self, CaError> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        let request = params.serialize_request(&key)?.pem()?;
        Ok(Self { key: KeyPem::of(&key), request })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_can_be_parsed_as_pem_and_der() {
        let new = KeyWithRequest::generate().unwrap();
        let der = CertificateSigningRequestDer::from_pem_slice(new.request.as_bytes()).unwrap();
        let (pem, der) = (CertRequest::parse(new.request.as_bytes()).unwrap(), CertRequest::parse(&der).unwrap());
        assert_eq!(pem.public_key(), der.public_key());
        let pair = KeyPair::from_pem(new.key.reveal()).unwrap();
        assert_eq!(pem.public_key().subject_public_key_info(), pair.subject_public_key_info());
        assert!(!format!("{new:?}").contains("PRIVATE"));
    }

    #[test]
    fn a_request_not_signed_by_its_own_key_is_rejected() {
        let new = KeyWithRequest::generate().unwrap();
        let der = CertificateSigningRequestDer::from_pem_slice(new.request.as_bytes()).unwrap().to_vec();
        let refused = |der: &[u8]| CertRequest::parse(der).unwrap_err().to_string();
        // The last byte belongs to the signature.
        let mut forged = der.clone();
        *forged.last_mut().unwrap() ^= 1;
        assert_eq!(refused(&forged), "the certificate request is not signed with its own key");
        // A request with its key replaced by another one's.
        let other = KeyWithRequest::generate().unwrap();
        let other = CertRequest::parse(other.request.as_bytes()).unwrap().public_key().subject_public_key_info();
        let own_key = CertRequest::parse(&der).unwrap().public_key().subject_public_key_info();
        let at = der.windows(own_key.len()).position(|part| part == own_key).unwrap();
        let mut swapped = der.clone();
        swapped[at..at + own_key.len()].copy_from_slice(&other);
        assert_eq!(refused(&swapped), "the certificate request is not signed with its own key");
        let mut longer = der.clone();
        longer.push(0);
        assert!(refused(&longer).contains("bytes after its end"));
        assert!(refused(&der[..der.len() - 1]).contains("not PKCS #10"));
        assert!(refused(b"-----BEGIN CERTIFICATE REQUEST-----").contains("cannot be read"));
        assert!(refused(&[0; MAX_LEN + 1]).contains("more than"));
    }

    #[test]
    fn a_key_of_another_kind_is_rejected() {
        for kind in [&rcgen::PKCS_ED25519, &rcgen::PKCS_ECDSA_P384_SHA384] {
            let key = KeyPair::generate_for(kind).unwrap();
            let request = CertificateParams::default().serialize_request(&key).unwrap().pem().unwrap();
            let message = CertRequest::parse(request.as_bytes()).unwrap_err().to_string();
            assert!(message.contains("another kind than ECDSA P-256"), "{message}");
        }
    }
}
