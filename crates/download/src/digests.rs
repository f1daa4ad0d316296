//! Expected digests of a file: of the full file, and of its pieces.

use marline_core::fetch::DigestScope;
use marline_core::units::DataSize;
use marline_net::checksum::Checksum;

/// Expected digests and size of a file, as far as they are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Digests {
    /// Digest of the full file.
    pub full_file: Option<Checksum>,
    /// Digests of its pieces.
    pub pieces: Option<PieceDigests>,
    /// Size in bytes.
    pub size: Option<DataSize>,
}

impl Digests {
    /// What the machine can verify with these digests: pieces, the full file, or nothing.
    pub(super) fn scope(&self) -> Option<DigestScope> {
        match (&self.pieces, &self.full_file) {
            (Some(pieces), _) => Some(DigestScope::Pieces(pieces.size)),
            (None, Some(_)) => Some(DigestScope::File),
            (None, None) => None,
        }
    }
}

/// Digests of all pieces of a file (Metalink, RFC 5854 section 4.1.3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PieceDigests {
    /// Size of each piece; the last one may be shorter.
    pub size: DataSize,
    /// The hash function.
    pub hash: PieceHash,
    /// One digest for each piece, in the order of the file.
    pub digests: Vec<Vec<u8>>,
}

/// Hash functions that are supported for pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PieceHash {
    /// SHA-1, 20 bytes.
    Sha1,
    /// SHA-256, 32 bytes.
    Sha256,
    /// SHA-512, 64 bytes.
    Sha512,
}

impl PieceHash {
    /// Length of a digest, in bytes.
    pub fn len(self) -> usize {
        match self {
            Self::Sha1 => 20,
            Self::Sha256 => 32,
            Self::Sha512 => 64,
        }
    }

    /// Always false; exists beside [`Self::len`].
    pub fn is_empty(self) -> bool {
        false
    }
}
