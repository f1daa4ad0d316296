//! Verifies complete pieces against their digests while the download continues.
//!
//! A piece is read from the page cache, where it was just written, and hashed in steps of 256 KiB, so that sockets
//! are served in between. SHA-1 is accepted for pieces, because most Metalink files have nothing else, and a mirror
//! would have to find a second preimage. SHA-1 is never accepted for the full file.

use marline_core::fetch::ByteRange;
use marline_net::checksum::Checksum;
use sha1::Sha1;
use sha2::{Digest, Sha256, Sha512};
use url::Url;

use super::digests::{Digests, PieceHash};
use super::error::DownloadError;
use crate::store::{Store, StoreError};

/// Verifies one range at a time; see the [module documentation](self).
#[derive(Debug, Default)]
pub(super) struct Verifier {
    digests: Digests,
    active: Option<ActiveCheck>,
    /// The last mismatch of the full file, for the error message.
    mismatch: Option<StoreError>,
    buffer: Vec<u8>,
}

#[derive(Debug)]
struct ActiveCheck {
    range: ByteRange,
    offset: u64,
    /// None: the full file, which the store hashes itself.
    hasher: Option<Hasher>,
}

#[derive(Debug)]
enum Hasher {
    Sha1(Sha1),
    Sha256(Sha256),
    Sha512(Sha512),
}

impl Hasher {
    fn new(hash: PieceHash) -> Self {
        match hash {
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

    /// Whether there is neither a digest of the file nor of its pieces.
    pub(super) fn has_no_digest(&self) -> bool {
        self.digests.full_file.is_none() && self.digests.pieces.is_none()
    }

    /// Sets the digest of the full file that a server advertises.
    pub(super) fn set_full_digest(&mut self, checksum: Checksum) {
        self.digests.full_file = Some(checksum);
    }

    /// Starts to verify a range: a piece, or the full file.
    pub(super) fn start(&mut self, span: ByteRange) {
        let hasher = self.digests.pieces.as_ref().map(|pieces| Hasher::new(pieces.hash));
        self.active = Some(ActiveCheck { range: span, offset: span.start, hasher });
    }

    pub(super) fn is_busy(&self) -> bool {
        self.active.is_some()
    }

    /// Bytes of the full file that have been read, while it is being verified.
    pub(super) fn checked_bytes(&self) -> Option<u64> {
        self.active.as_ref().filter(|current| current.hasher.is_none()).map(|current| current.offset)
    }

    /// Reads and hashes the next bytes. Returns the result after the last ones.
    ///
    /// # Errors
    /// The store cannot be read.
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
                // Fewer bytes than were received: another process has truncated the file.
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

    /// The error that describes the mismatch of the full file.
    pub(super) fn take_mismatch(&mut self) -> Option<StoreError> {
        self.mismatch.take()
    }
}

impl Digests {
    /// A pseudo URL that stands for these digests in the journal: bytes of several mirrors belong to no single URL.
    pub(super) fn journal_url(&self) -> Option<Url> {
        let mut hasher = Sha256::new();
        match (&self.pieces, &self.full_file) {
            (_, Some(Checksum::Sha256(digest))) => hasher.update([b"sha256 ", digest.as_slice()].concat()),
            (_, Some(Checksum::Sha512(digest))) => hasher.update([b"sha512 ", digest.as_slice()].concat()),
            (Some(pieces), None) => {
                // The name of the hash function is part of journals on disk, so it must not change.
                hasher.update(format!("{:?} {} ", pieces.hash, pieces.size.bytes()));
                pieces.digests.iter().for_each(|digest| hasher.update(digest));
            }
            (None, None) => return None,
        }
        let hex = data_encoding::HEXLOWER.encode(&hasher.finalize());
        Url::parse(&format!("digest:{hex}")).ok()
    }

    /// Whether `digest` matches the piece at `span`.
    fn matches_piece(&self, span: ByteRange, digest: &[u8]) -> bool {
        let Some(pieces) = &self.pieces else { return false };
        let number = usize::try_from(span.start / pieces.size.bytes().max(1)).ok();
        number.and_then(|number| pieces.digests.get(number)).is_some_and(|expected| expected == digest)
    }
}

/// Bytes hashed in one step. Our choice: half a millisecond of SHA-256.
const STEP_LEN: usize = 256 * 1024;
