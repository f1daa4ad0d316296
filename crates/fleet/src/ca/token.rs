//! Enrolment tokens: a line of text that brings its bearer one certificate.
//!
//! `mlt1.PAYLOAD.SIGNATURE`, both base64url without padding. The payload is JSON: the grant (identity, addresses, life of the
//! certificate), `until`, a nonce and the fingerprint of the authority. The signature is the authority's (ECDSA P-256,
//! SHA-256, ASN.1) over [`PURPOSE`] and the payload as it is written.
//!
//! 1. A token proves itself; those that are outstanding are stored nowhere. Only what was spent is remembered.
//! 2. [`PURPOSE`] keeps tokens apart from certificates and revocation lists, which the same key signs and which begin with
//!    another byte.
//! 3. Verifying needs no comparison in constant time: there is no secret that an answer's time could betray.
//! 4. The fingerprint is for who enrols: it came by the hand that brought the token, and says whom to tell it.
//! 5. A token is a secret until it is spent: it does not print itself.

use std::fmt;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rcgen::SigningKey as _;
use serde::{Deserialize, Serialize};
use webpki::EndEntityCert;
use webpki::ring::ECDSA_P256_SHA256;

use super::error::EnrolError;
use super::ids::{Fingerprint, Nonce};
use super::timestamp::UtcSeconds;
use super::{Authority, CaError, CertTemplate, serde_text};

/// What a token says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Token {
    /// What the certificate will say.
    #[serde(rename = "grant")]
    pub template: CertTemplate,
    /// Until when the token can be used.
    #[serde(rename = "until", with = "serde_text")]
    pub expires_at: UtcSeconds,
    /// What is spent with it.
    #[serde(with = "serde_text")]
    pub nonce: Nonce,
    /// Whose token it is, and whom its bearer may trust.
    #[serde(with = "serde_text")]
    pub authority: Fingerprint,
}

impl Token {
    /// Reads a token without verifying it, as who enrols does: it trusts who gave the token to it.
    ///
    /// # Errors
    /// It is none: [`EnrolError::Malformed`].
    pub fn parse_unverified(text: &str) -> Result<Self, EnrolError> {
        TokenParts::of(text).map(|parts| parts.token)
    }
}

/// A token as text. It does not print itself.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenText(String);

impl TokenText {
    /// The text, for the one place that needs it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for TokenText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MASKED")
    }
}

impl Authority {
    /// A token that can be used once in the next `valid`.
    ///
    /// # Errors
    /// The system gives no random numbers.
    pub fn create_token(
        &self,
        template: &CertTemplate,
        lifetime: Duration,
        now: UtcSeconds,
    ) -> Result<TokenText, CaError> {
        let expires_at = now.saturating_add(lifetime).min(self.not_after);
        let token = Token {
            template: template.clone(),
            expires_at,
            nonce: Nonce::random()?,
            authority: self.fingerprint(),
        };
        let payload = serde_json::to_vec(&token).map_err(|error| CaError::Library(error.to_string()))?;
        let payload = URL_SAFE_NO_PAD.encode(payload);
        let signature = URL_SAFE_NO_PAD.encode(self.signer()?.key().sign(&signed_bytes(&payload))?);
        Ok(TokenText(format!("{PREFIX}.{payload}.{signature}")))
    }

    /// What a token of this authority says, whether or not it was used.
    pub(super) fn verify_token(&self, text: &str, now: UtcSeconds) -> Result<Token, EnrolError> {
        let TokenParts { token, payload, signature } = TokenParts::of(text)?;
        let certificate = EndEntityCert::try_from(&self.certificate)
            .map_err(|error| CaError::Library(format!("the authority's certificate: {error}")))?;
        let is_signed = certificate.verify_signature(ECDSA_P256_SHA256, &signed_bytes(payload), &signature).is_ok();
        if token.authority != self.fingerprint() || !is_signed {
            return Err(EnrolError::OtherAuthority);
        }
        if token.expires_at < now { Err(EnrolError::Expired) } else { Ok(token) }
    }
}

struct TokenParts<'a> {
    token: Token,
    payload: &'a str,
    signature: Vec<u8>,
}

impl<'a> TokenParts<'a> {
    fn of(text: &'a str) -> Result<Self, EnrolError> {
        let wrong = |text: &str| EnrolError::Malformed(text.to_owned());
        let text = text.trim();
        if text.len() > MAX_LEN {
            return Err(wrong("it is too long"));
        }
        let mut parts = text.split('.');
        let (Some(PREFIX), Some(payload), Some(signature), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(wrong("it is not mlt1.….…"));
        };
        let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).map_err(|_| wrong("it is not base64url"));
        // The library's words would repeat what may be a secret.
        let token =
            serde_json::from_slice(&decode(payload)?).map_err(|_| wrong("it does not say what a token says"))?;
        Ok(Self { token, payload, signature: decode(signature)? })
    }
}

/// What is signed: the payload as it stands in the text.
fn signed_bytes(payload: &str) -> Vec<u8> {
    [SIGNING_CONTEXT, payload.as_bytes()].concat()
}

const PREFIX: &str = "mlt1";
const SIGNING_CONTEXT: &[u8] = b"marline enrolment token 1\0";
/// One with sixteen long addresses has about 6000.
const MAX_LEN: usize = 8192;
