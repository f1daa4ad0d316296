//! Computes the expected checksum incrementally, and the digest that identifies a URL in a journal.

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256, Sha512};

use super::Checksum;

/// A hash in progress, with its expected value.
#[derive(Clone, Debug)]
pub(super) enum Hasher {
    Sha256(Sha256, Vec<u8>),
    Sha512(Sha512, Vec<u8>),
}

/// Name, computed and expected value of a checksum that does not match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mismatch {
    pub(super) algorithm: &'static str,
    pub(super) computed: String,
    pub(super) expected: String,
}

impl Hasher {
    pub(super) fn new(want: &Checksum) -> Self {
        match want {
            Checksum::Sha256(want) => Self::Sha256(Sha256::new(), want.clone()),
            Checksum::Sha512(want) => Self::Sha512(Sha512::new(), want.clone()),
        }
    }

    pub(super) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hasher, _) => hasher.update(bytes),
            Self::Sha512(hasher, _) => hasher.update(bytes),
        }
    }

    /// Compares the digest after the last byte.
    pub(super) fn finish(self) -> Result<(), Mismatch> {
        let (name, got, want) = match self {
            Self::Sha256(hasher, want) => ("sha256", hasher.finalize().to_vec(), want),
            Self::Sha512(hasher, want) => ("sha512", hasher.finalize().to_vec(), want),
        };
        if got == want {
            Ok(())
        } else {
            Err(Mismatch { algorithm: name, computed: HEXLOWER.encode(&got), expected: HEXLOWER.encode(&want) })
        }
    }
}

/// The digest of a URL in a journal: SHA-256 of its text without user, password and fragment, which do not identify
/// the file.
pub(super) fn url_digest(url: &url::Url) -> [u8; 32] {
    let mut url = url.clone();
    url.set_fragment(None);
    // Both fail only for URLs without a host, which have nothing to remove.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    Sha256::digest(url.as_str()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_of_abc_match_fips_180() {
        let sha256 = "sha256=ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let sha512 = "sha512=ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a\
                      2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f";
        for want in [sha256, sha512] {
            let mut hasher = Hasher::new(&want.parse().unwrap());
            hasher.update(b"a");
            hasher.update(b"bc");
            let mut wrong = hasher.clone();
            assert_eq!(hasher.finish(), Ok(()));
            wrong.update(b"d");
            let mismatch = wrong.finish().unwrap_err();
            assert_eq!(format!("{}={}", mismatch.algorithm, mismatch.expected), want);
        }
    }

    #[test]
    fn password_and_fragment_do_not_change_the_url_digest() {
        let digest = |url: &str| url_digest(&url.parse().unwrap());
        assert_eq!(digest("http://u:p@h/a#x"), digest("http://h/a"));
        assert_ne!(digest("http://h/a?v=1"), digest("http://h/a?v=2"));
    }
}
