//! Enrolment: exchanges a token and a certificate request for a certificate, once.
//!
//! 1. Token and request are verified completely before the token is used up, so a bad request does not cost the token.
//! 2. The token is marked as used before the certificate is signed. A crash in between loses only the token. The
//!    reverse order could issue two certificates.
//! 3. A member that does not receive the response needs a new token as well. The certificate that it never received
//!    remains in the issued log.

use super::csr::CertRequest;
use super::error::EnrolError;
use super::ids::Nonce;
use super::timestamp::UtcSeconds;
use super::{Authority, CaError, IssuedChain};

/// Store of used tokens. A single fleet process uses a [`UsedTokensFile`](super::UsedTokensFile); several processes
/// need a store that they share.
pub trait UsedTokens {
    /// Marks a nonce as used, for all processes that share this store; returns `false` if it was used before. The mark
    /// is durable when this returns. It may be dropped some time after `until`.
    ///
    /// # Errors
    /// If it is unknown whether the nonce was used; the token must then be rejected.
    fn mark_used(&mut self, nonce: Nonce, until: UtcSeconds) -> Result<bool, CaError>;
}

impl Authority {
    /// Issues the certificate of a token for the key of a request (PEM or DER).
    ///
    /// # Errors
    /// If the token or the request is invalid, or the authority fails.
    pub fn enrol(
        &self,
        token: &str,
        request: &[u8],
        now: UtcSeconds,
        used_tokens: &mut dyn UsedTokens,
    ) -> Result<IssuedChain, EnrolError> {
        let token = self.verify_token(token, now)?;
        let request = CertRequest::parse(request).map_err(|error| match error {
            CaError::Request(text) => EnrolError::Request(text),
            error => EnrolError::Authority(error),
        })?;
        if !used_tokens.mark_used(token.nonce, token.expires_at)? {
            return Err(EnrolError::Used);
        }
        Ok(self.issue(&token.template, &request, now)?)
    }
}
