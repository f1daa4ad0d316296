//! Text of the command line that may hold a secret: a login, a header field, a URL with a password in it.
//!
//! It prints as `MASKED` wherever a structure around it is printed, so that no log and no panic shows it by accident.
//! Wiping the memory afterwards was not done: the kernel keeps the command line readable all the while anyway.

use std::fmt;

/// A text that does not print itself.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// The text, for the one place that needs it.
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
