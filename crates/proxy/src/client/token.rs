//! The access token in the URLs of the proxy's own pages: 128 random bits in hexadecimal, compared in constant time.
//!
//! Unlike a password, it need not be remembered and cannot leak from a configuration file.

use marline_net::random::random_bytes;

/// The access token; see the [module documentation](self).
#[derive(Clone)]
pub(crate) struct Token(String);

impl Token {
    /// Creates a random token.
    ///
    /// # Errors
    /// The system provides no random bytes.
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self(data_encoding::HEXLOWER.encode(&random_bytes::<16>()?)))
    }

    /// The token as part of a URL.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the presented token is equal. The duration does not reveal how many characters match.
    pub(crate) fn matches(&self, presented: &str) -> bool {
        let (expected, actual) = (self.0.as_bytes(), presented.as_bytes());
        let differs = expected.iter().enumerate().fold(0, |differs, (at, byte)| {
            std::hint::black_box(differs | (byte ^ actual.get(at).copied().unwrap_or_default()))
        });
        differs == 0 && expected.len() == actual.len()
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MASKED")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_matches_only_itself() {
        let (one, other) = (Token::new().unwrap(), Token::new().unwrap());
        assert!(one.matches(one.as_str()) && !one.matches(other.as_str()));
        assert!(
            !one.matches("") && !one.matches(&one.as_str()[1..]) && !one.matches(&format!("{}0", one.as_str()))
        );
        assert_eq!((one.as_str().len(), format!("{one:?}").as_str()), (32, "MASKED"));
    }
}
