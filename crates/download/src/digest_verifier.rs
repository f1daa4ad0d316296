//! Comparing bytes that are in their place with their digests, while the download goes on.
//!
//! A piece is read from the page cache, to which it was just written, and hashed a quarter of a mebibyte at a time, so
//! that sockets are served in between. SHA-1 is accepted for pieces, as most Metalink files have no other: a mirror would
//! have to find a second preimage. It never counts for the whole file.

use marline_core::fetch::{ByteRange, DigestScope};
use marline_core::units::DataSize;
use marline_net::checksum::Checksum;
use sha1::Sha1;
use sha2::{Digest, Sha256, Sha512};
use url::Url;

use super::DownloadError;
use super::request::Digests;
use crate::store::{Store, StoreError};

/// Digests of all pieces of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PieceDigests {
    /// Bytes of each piece but the last.
    pub size: DataSize,
    /// Which function.
    pub hash: PieceHash,
    /// In order.
    pub digests: Vec<Vec<u8>>,
}

/// Functions that are understood for pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PieceHash {
    /// 20 bytes.
    Sha1,
    /// 32 bytes.
    Sha256,
    /// 64 bytes.
    Sha512,
}

impl PieceHash {
    /// Bytes of a digest.
    pub fn len(self) -> usize {
        match self {
            Self::Sha1 => 20,
            Self::Sha256 => 32,
            Self::Sha512 => 64,
        }
    }

    /// Never.
    pub fn is_empty(self) -> bool {
        false
    }
}

impl Digests {
    /// What they prove of a file from several sources.
    pub(super) fn scope(&self) -> Option<DigestScope> {
        match (&self.pieces, &self.full_file) {
            (Some(pieces), _) => Some(DigestScope::Pieces(pieces.size)),
            (None, Some(_)) => Some(DigestScope::File),
            (None, None) => None,
        }
    }
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Verifier {
    digests: Digests,
    active: Option<ActiveCheck>,
    /// The last mismatch of the whole, for the message.
    mismatch: Option<StoreError>,
    buffer: Vec<u8>,
}

#[derive(Debug)]
struct ActiveCheck {
    range: ByteRange,
    offset: u64,
    /// None: the whole file, which the store itself hashes.
    hasher: Option<Hasher>,
}

#[derive(Debug)]
enum Hasher {
    Sha1(Sha1),
    Sha256(Sha256),
    Sha512(Sha512),
}

impl Hasher {
    fn new(function: PieceHash) -> Self {
        match function {
            PieceHash::Sha1 => Self::Sha1(Sha1::new()),
            PieceHash::Sha256 => Self::Sha256(Sha256::new()),
            PieceHash::Sha512 => Self::Sha512(Sha512::new()),
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha1(hasher) => hasher.update(bytes),
            Self::Sha256(hasher) => hasher.update(bytes),
            Self::Sha512(hasher) => hasher.update(bytes),
        }
    }

    fn finish(self) -> Vec<u8> {
        match self {
            Self::Sha1(hasher) => hasher.finalize().to_vec(),
            Self::Sha256(hasher) => hasher.finalize().to_vec(),
            Self::Sha512(hasher) => hasher.finalize().to_vec(),
        }
    }
}

impl Verifier {
    pub(super) fn new(digests: Digests) -> Self {
        Self { digests, ..Self::default() }
    }

    /// Whether nothing is known of the file's bytes.
    pub(super) fn has_no_digest(&self) -> bool {
        self.digests.full_file.is_none() && self.digests.pieces.is_none()
    }

    /// A server has said what the whole hashes to.
    pub(super) fn set_full_digest(&mut self, checksum: Checksum) {
        self.digests.full_file = Some(checksum);
    }

    /// These bytes are to be verified.
    pub(super) fn start(&mut self, span: ByteRange) {
        let hasher = self.digests.pieces.as_ref().map(|pieces| Hasher::new(pieces.hash));
        self.active = Some(ActiveCheck { range: span, offset: span.start, hasher });
    }

    pub(super) fn is_busy(&self) -> bool {
        self.active.is_some()
    }

    /// How far the whole file has been read, while it is.
    pub(super) fn checked_bytes(&self) -> Option<u64> {
        self.active.as_ref().filter(|current| current.hasher.is_none()).map(|current| current.offset)
    }

    /// Reads and hashes some bytes. The result, when all have been read.
    ///
    /// # Errors
    /// When the disk fails.
    pub(super) fn step(&mut self, store: &mut Store) -> Result<Option<(ByteRange, bool)>, DownloadError> {
        let Some(current) = &mut self.active else { return Ok(None) };
        let is_valid = match &mut current.hasher {
            None => match store.check_step() {
                Ok(Some(read)) => {
                    current.offset = read;
                    return Ok(None);
                }
                Ok(None) => true,
                Err(mismatch @ StoreError::ChecksumMismatch { .. }) => {
                    self.mismatch = Some(mismatch);
                    false
                }
                Err(other) => return Err(other.into()),
            },
            Some(hasher) => {
                self.buffer.resize(STEP_LEN, 0);
                let len = usize::try_from(current.range.end - current.offset).unwrap_or(STEP_LEN).min(STEP_LEN);
                let buffer = self.buffer.get_mut(..len).unwrap_or_default();
                let read = store.read(current.offset, buffer)?;
                hasher.update(buffer.get(..read).unwrap_or_default());
                current.offset += read as u64;
                // Fewer bytes than are claimed: the file was cut by somebody.
                if read > 0 && current.offset < current.range.end {
                    return Ok(None);
                }
                let is_complete = current.offset == current.range.end;
                let digest = current.hasher.take().map(Hasher::finish);
                is_complete && digest.is_some_and(|digest| self.digests.matches_piece(current.range, &digest))
            }
        };
        Ok(self.active.take().map(|current| (current.range, is_valid)))
    }

    /// Why the whole does not match.
    pub(super) fn take_mismatch(&mut self) -> Option<StoreError> {
        self.mismatch.take()
    }
}

impl Digests {
    /// Names these digests where the journal of a file names its URL: bytes of several sources belong to none of them.
    pub(super) fn journal_url(&self) -> Option<Url> {
        let mut hasher = Sha256::new();
        match (&self.pieces, &self.full_file) {
            (_, Some(Checksum::Sha256(digest))) => hasher.update([b"sha256 ", digest.as_slice()].concat()),
            (_, Some(Checksum::Sha512(digest))) => hasher.update([b"sha512 ", digest.as_slice()].concat()),
            (Some(pieces), None) => {
                hasher.update(format!("{:?} {} ", pieces.hash, pieces.size.bytes()));
                pieces.digests.iter().for_each(|digest| hasher.update(digest));
            }
            (None, None) => return None,
        }
        let hex = data_encoding::HEXLOWER.encode(&hasher.finalize());
        Url::parse(&format!("digest:{hex}")).ok()
    }

    /// Whether this is the digest of the piece that begins there.
    fn matches_piece(&self, span: ByteRange, digest: &[u8]) -> bool {
        let Some(pieces) = &self.pieces else { return false };
        let number = usize::try_from(span.start / pieces.size.bytes().max(1)).ok();
        number.and_then(|number| pieces.digests.get(number)).is_some_and(|expected| expected == digest)
    }
}

/// Hashed in one turn. chosen: half a millisecond of SHA-256.
const STEP_LEN: usize = 256 * 1024;
