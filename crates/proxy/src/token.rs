//! The secret in the address of what is ours.
//!
//! In: the system's randomness. Out: 128 bits in hexadecimal digits, and a comparison that takes the same time whatever
//! is offered. A password was not used: there is nothing to remember, and nothing to leak from a configuration file.

use marline_net::random::random;

/// See the [module](self).
#[derive(Clone)]
pub(super) struct Token(String);

impl Token {
    /// A new one.
    ///
    /// # Errors
    /// The system has no randomness.
    pub(super) fn new() -> std::io::Result<Self> {
        Ok(Self(data_encoding::HEXLOWER.encode(&random::<16>()?)))
    }

    /// As it stands in an address.
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it is this one; the time tells nothing of how much of it was right.
    pub(super) fn matches(&self, presented: &str) -> bool {
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
    fn a_token_is_itself_only() {
        let (one, other) = (Token::new().unwrap(), Token::new().unwrap());
        assert!(one.matches(one.as_str()) && !one.matches(other.as_str()));
        assert!(
            !one.matches("") && !one.matches(&one.as_str()[1..]) && !one.matches(&format!("{}0", one.as_str()))
        );
        assert_eq!((one.as_str().len(), format!("{one:?}").as_str()), (32, "MASKED"));
    }
}
