//! Names of the members of a fleet.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use core::fmt::{self, Display};
use core::str::FromStr;

use serde::{Deserialize, Serialize};

/// Name of one edge, relay, fleet process or operator: 1 to 63 of `a-z`, `0-9`, `-`, `_` and `.`, beginning with a
/// letter or digit. It can be used in URIs, file names and logs without escaping.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(String);

impl Name {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Name {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let inner = |byte: u8| plain(byte) || matches!(byte, b'-' | b'_' | b'.');
        let good = text.len() <= MAX_NAME_LEN && text.bytes().next().is_some_and(plain) && text.bytes().all(inner);
        let wrong = || {
            format!(
                "`{text}` is not a valid name: use 1 to {MAX_NAME_LEN} of a-z, 0-9, - _ and ., a letter or digit first"
            )
        };
        good.then(|| Self(text.to_owned())).ok_or_else(wrong)
    }
}

impl TryFrom<String> for Name {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Name> for String {
    fn from(name: Name) -> Self {
        name.0
    }
}

const MAX_NAME_LEN: usize = 63;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_up_to_63_plain_characters() {
        for text in ["a", "cam-7", "fra.1", "0_b", &"a".repeat(63)] {
            assert_eq!(text.parse::<Name>().unwrap().as_str(), text);
        }
        for text in ["", "Cam", "a/b", "..", "-a", "a b", &"a".repeat(64)] {
            assert!(text.parse::<Name>().is_err(), "{text}");
        }
    }
}
