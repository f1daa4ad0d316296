//! Enrolment tokens: a line of text that its holder can exchange for one certificate.
//!
//! `mlt1.PAYLOAD.SIGNATURE`, both parts base64url without padding. The payload is JSON: the template (identity,
//! addresses, lifetime of the certificate; field `grant`), the expiry of the token (`until`), a nonce and the
//! fingerprint of the authority. The signature is the authority's (ECDSA P-256, SHA-256, ASN.1) over
//! [`SIGNING_CONTEXT`] and the encoded payload.
//!
//! 1. A token is self-contained: outstanding tokens are not stored anywhere, only used ones.
//! 2. [`SIGNING_CONTEXT`] separates tokens from certificates and revocation lists, which the same key signs and which
//!    begin with another byte.
//! 3. Verification needs no constant-time comparison, because the authority holds no secret that response times could
//!    reveal.
//! 4. The fingerprint is for the new member. It arrives with the token over a trusted channel and identifies the
//!    authority to which the token may be sent.
//! 5. A token is a secret until it is used, so its debug output is masked.

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

/// Contents of a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Token {
    /// Contents of the certificate to be issued.
    #[serde(rename = "grant")]
    pub template: CertTemplate,
    /// Expiry of the token.
    #[serde(rename = "until", with = "serde_text")]
    pub expires_at: UtcSeconds,
    /// Identifies the token among the used ones.
    #[serde(with = "serde_text")]
    pub nonce: Nonce,
    /// Fingerprint of the authority that signed the token and that its holder may trust.
    #[serde(with = "serde_text")]
    pub authority: Fingerprint,
}

impl Token {
    /// Parses a token without verifying it, as a new member does, which trusts the source of its token.
    ///
    /// # Errors
    /// If the text is not a token: [`EnrolError::Malformed`].
    pub fn parse_unverified(text: &str) -> Result<Self, EnrolError> {
        TokenParts::of(text).map(|parts| parts.token)
    }
}

/// A token as text. Its debug output is masked.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenText(String);

impl TokenText {
    /// The text, for the code that prints or sends it.
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
    /// Creates a token that can be used once within `lifetime`.
    ///
    /// # Errors
    /// If the key is kept elsewhere, or the system provides no random numbers.
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

    /// Verifies a token of this authority and returns its contents. Does not check whether it was used.
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
            return Err(wrong("it is not of the form mlt1.PAYLOAD.SIGNATURE"));
        };
        let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).map_err(|_| wrong("it is not base64url"));
        // The library's error messages could repeat a part of the secret.
        let token =
            serde_json::from_slice(&decode(payload)?).map_err(|_| wrong("its payload is not that of a token"))?;
        Ok(Self { token, payload, signature: decode(signature)? })
    }
}

/// The signed bytes: context and encoded payload.
fn signed_bytes(payload: &str) -> Vec<u8> {
    [SIGNING_CONTEXT, payload.as_bytes()].concat()
}

const PREFIX: &str = "mlt1";
const SIGNING_CONTEXT: &[u8] = b"marline enrolment token 1\0";
/// Longest token in bytes. A token with sixteen long addresses has about 6000.
const MAX_LEN: usize = 8192;
