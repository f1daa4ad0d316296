//! Command-line text that may hold a secret: a user name with password, a header field, or a URL with a password.
//!
//! Its `Debug` output is `MASKED`, so that no log and no panic message prints it by accident. The memory is not wiped
//! after use: the command line stays readable in /proc anyway.

use std::fmt;

/// Text whose `Debug` output is `MASKED`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// The text itself; call this only where the secret is used.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MASKED")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_prints_as_masked() {
        assert_eq!(format!("{:?}", Some(Secret::from("hunter2".to_owned()))), "Some(MASKED)");
    }
}
