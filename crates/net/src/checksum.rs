//! The expected checksum of a whole file, as users write it on the command line or in an input list.

use std::fmt;
use std::str::FromStr;

use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};

/// A digest written as `sha256=HEX` or `sha512=HEX`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// SHA-256, 32 bytes.
    Sha256(Vec<u8>),
    /// SHA-512, 64 bytes.
    Sha512(Vec<u8>),
}

/// Error of a text that is not a checksum; contains that text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a checksum: write sha256= and 64 hexadecimal digits, or sha512= and 128")]
pub struct ParseChecksumError(String);

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sha256(bytes) => write!(f, "sha256={}", HEXLOWER.encode(bytes)),
            Self::Sha512(bytes) => write!(f, "sha512={}", HEXLOWER.encode(bytes)),
        }
    }
}

impl FromStr for Checksum {
    type Err = ParseChecksumError;

    fn from_str(s: &str) -> Result<Self, ParseChecksumError> {
        let bad = || ParseChecksumError(s.to_owned());
        let (name, hex) = s.split_once('=').ok_or_else(bad)?;
        let bytes = HEXLOWER_PERMISSIVE.decode(hex.as_bytes()).map_err(|_| bad())?;
        match (name, hex.len()) {
            ("sha256", 64) => Ok(Self::Sha256(bytes)),
            ("sha512", 128) => Ok(Self::Sha512(bytes)),
            _ => Err(bad()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_needs_its_algorithm_and_all_digits() {
        let digest = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
        let Ok(Checksum::Sha256(bytes)) = format!("sha256={digest}").parse() else { panic!() };
        assert_eq!((bytes.len(), bytes[0], bytes[31]), (32, 0x9f, 0x08));
        assert_eq!(Checksum::Sha256(bytes).to_string(), format!("sha256={digest}"));
        for bad in ["sha256=12", "md5=d41d8cd98f00b204e9800998ecf8427e", digest, "sha512=zz"] {
            assert!(bad.parse::<Checksum>().is_err(), "{bad}");
        }
    }
}
