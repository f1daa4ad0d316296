//! Enrolling: a token and a request become a certificate, once.
//!
//! 1. All that can be wrong with the token and the request is looked at first: a bad request does not cost the token.
//! 2. The token is spent before the certificate is made. Between the two a crash loses the token and nothing else; the other
//!    way round it could bring two certificates.
//! 3. A bearer that does not hear the answer needs a new token, too, and the certificate that it never got stands on the list.

use super::csr::CertRequest;
use super::error::EnrolError;
use super::ids::Nonce;
use super::timestamp::UtcSeconds;
use super::{Authority, CaError, IssuedChain};

/// Remembers which tokens were used. One fleet process has a [`SpentFile`](super::SpentFile); several need a store that they
/// share.
pub trait UsedTokens {
    /// Takes a nonce, for ever and for everybody who shares this store: false if it was taken before. When this returns, it
    /// is remembered whatever happens. It may be forgotten some time after `until`.
    ///
    /// # Errors
    /// Whether it was taken before cannot be known; the token is not to be honoured.
    fn claim(&mut self, nonce: Nonce, until: UtcSeconds) -> Result<bool, CaError>;
}

impl Authority {
    /// The certificate that a token brings, for the key of a request (PEM or DER).
    ///
    /// # Errors
    /// The token or the request is no good, or the authority cannot.
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
        if !used_tokens.claim(token.nonce, token.expires_at)? {
            return Err(EnrolError::Used);
        }
        Ok(self.issue(&token.template, &request, now)?)
    }
}
