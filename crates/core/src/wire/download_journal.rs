//! Format of a download's journal, which records the byte ranges of the unfinished file that are complete.
//!
//! A header identifies the file. Records of one fixed size follow in any order, each valid by itself. Header and
//! records carry message authentication codes, so a journal is accepted only if this user wrote it.
//!
//! ```text
//! header   0  "MARLINEJ"            record   0  start    u64, the highest bit: 1 synced, 0 written
//!          8  version      u16               8  end      u64
//!         10  validator    u8 kind          16  MAC of the header's MAC and the 16 bytes before
//!         11  zero         u8
//!         12  length of the validator u32
//!         16  nonce        u64
//!         24  file size    u64
//!         32  URL digest   32 bytes
//!         64  boot id      16 bytes
//!         80  namespace    u64
//!         88  mount        u64
//!         96  identity of the unfinished file, 16 bytes
//!        112  validator, then MAC of all before, then zeros to a multiple of 32
//! ```
//!
//! 1. Numbers are little-endian. A record is 32 bytes and begins at a multiple of 32, so no disk sector splits one.
//! 2. A record counts only if its MAC is valid. The MAC covers the header's MAC, and the header has a nonce. This one
//!    rule rejects a torn end, a hole of zeros, a stale block of an older journal and a record of another journal.
//!    Records behind them still count.
//! 3. A header with any error makes the whole journal unusable: nothing is guessed.
//! 4. [`Record::Written`] holds during the [`PageCacheEpoch`] of the header, because the page cache outlives a process;
//!    [`Record::Synced`] holds forever.
//! 5. The identity ties the journal to one unfinished file: an authentic journal beside another file proves nothing.
//!
//! The caller supplies the MAC function, because this crate has no cryptography. `download` passes HMAC-SHA256 with a
//! key of the user's, truncated to 128 bits. Text (JSON lines) was rejected, because a torn line can still be a
//! well-formed claim about a smaller range. A bitmap was rejected, because rewriting a bit in place is not atomic.

use alloc::string::String;
use alloc::vec::Vec;

/// Bytes of one record; the header is padded to a multiple of this length.
pub const RECORD_LEN: usize = 32;
/// Longest validator that is stored. Our choice: real ones are below 100 bytes; with a longer one there is no journal.
pub const MAX_VALIDATOR_LEN: usize = 4096;

const MAGIC: &[u8; 8] = b"MARLINEJ";
/// Format version. Version 1 had checksums instead of MACs.
const VERSION: u16 = 2;
const FIXED_LEN: usize = 112;
/// The highest bit of a record's start marks a synced range. No file reaches it: offsets in Linux are signed.
const SYNCED: u64 = 1 << 63;

/// A message authentication code, truncated to 128 bits.
pub type Mac = [u8; 16];

/// Header of a journal: identifies the file that it describes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Header {
    /// Random value, different in every journal. It gives each header another MAC, which ties the records to it.
    pub nonce: u64,
    /// Size of the complete file in bytes.
    pub file_size: u64,
    /// Digest of the URL. The URL itself may contain a password.
    pub url_digest: [u8; 32],
    /// Time during which unsynced records hold.
    pub epoch: PageCacheEpoch,
    /// Identity of the unfinished file that the records describe; zero if the file system offers none.
    pub partial_file: [u8; 16],
    /// Strong validator of the file on the server.
    pub validator: StoredValidator,
}

/// A period in which the page cache is not lost: one boot, and within it one mount of the file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PageCacheEpoch {
    /// The kernel's boot id; zero if unknown.
    pub boot_id: [u8; 16],
    /// The mount namespace to which `mount` belongs; zero if unknown.
    pub mount_namespace: u64,
    /// Id of the mount; zero if unknown.
    pub mount: u64,
}

impl PageCacheEpoch {
    /// Whether unsynced data written in `self` still exists in `now`. Another namespace numbers its mounts differently,
    /// so in that case only the boot id counts.
    pub fn is_valid_in(&self, now: &Self) -> bool {
        let same_mount = self.mount_namespace != now.mount_namespace || self.mount == now.mount;
        self.boot_id != [0; 16] && self.boot_id == now.boot_id && same_mount
    }
}

/// A strong validator as the journal stores it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StoredValidator {
    /// An ETag, including its quotes.
    Etag(String),
    /// A Last-Modified date, as received.
    LastModified(String),
}

/// A record about the bytes `start..end` of the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Record {
    /// The bytes were written to the kernel's page cache.
    Written {
        /// Offset of the first byte.
        start: u64,
        /// Offset one past the last byte.
        end: u64,
    },
    /// The bytes were on the disk before this record was written.
    Synced {
        /// Offset of the first byte.
        start: u64,
        /// Offset one past the last byte.
        end: u64,
    },
}

/// Reason for rejecting a header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HeaderError {
    /// The bytes are of another file, or there are none.
    #[error("it is not a journal of marline")]
    NotAJournal,
    /// The journal was written by another version of marline.
    #[error("it has format {0}, this version of marline uses format 2")]
    Version(u16),
    /// The header is torn, damaged, or was written with another key.
    #[error("it is damaged, or was not written with this user's key")]
    NotAuthentic,
}

impl Header {
    /// The header's bytes, padded to a multiple of [`RECORD_LEN`], and its MAC, which the records need. The validator
    /// must not exceed [`MAX_VALIDATOR_LEN`]; otherwise the header is rejected when it is read.
    pub fn emit(&self, mac: impl Fn(&[u8]) -> Mac) -> (Vec<u8>, Mac) {
        let (kind, text) = match &self.validator {
            StoredValidator::Etag(text) => (1, text),
            StoredValidator::LastModified(text) => (2, text),
        };
        let mut out = Vec::with_capacity(FIXED_LEN + text.len() + 2 * RECORD_LEN);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&[kind, 0]);
        out.extend_from_slice(&u32::try_from(text.len()).unwrap_or(u32::MAX).to_le_bytes());
        out.extend_from_slice(&self.nonce.to_le_bytes());
        out.extend_from_slice(&self.file_size.to_le_bytes());
        out.extend_from_slice(&self.url_digest);
        out.extend_from_slice(&self.epoch.boot_id);
        out.extend_from_slice(&self.epoch.mount_namespace.to_le_bytes());
        out.extend_from_slice(&self.epoch.mount.to_le_bytes());
        out.extend_from_slice(&self.partial_file);
        out.extend_from_slice(text.as_bytes());
        let header_mac = mac(&out);
        out.extend_from_slice(&header_mac);
        out.resize(out.len().next_multiple_of(RECORD_LEN), 0);
        (out, header_mac)
    }

    /// Parses a header. Also returns its MAC and its length, which is the offset of the first record.
    ///
    /// # Errors
    /// If anything differs from what [`Header::emit`] writes with the same MAC function.
    pub fn parse(bytes: &[u8], mac: impl Fn(&[u8]) -> Mac) -> Result<(Self, Mac, usize), HeaderError> {
        if bytes.first_chunk() != Some(MAGIC) {
            return Err(HeaderError::NotAJournal);
        }
        let version = bytes[MAGIC.len()..].first_chunk().ok_or(HeaderError::NotAuthentic)?;
        let version = u16::from_le_bytes(*version);
        if version != VERSION {
            return Err(HeaderError::Version(version));
        }
        let fixed: &[u8; FIXED_LEN] = bytes.first_chunk().ok_or(HeaderError::NotAuthentic)?;
        let len = u32::from_le_bytes(bytes_at(fixed, 12)) as usize;
        if len > MAX_VALIDATOR_LEN {
            return Err(HeaderError::NotAuthentic);
        }
        let (covered, remaining) = bytes.split_at_checked(FIXED_LEN + len).ok_or(HeaderError::NotAuthentic)?;
        let header_mac = mac(covered);
        if remaining.first_chunk() != Some(&header_mac) {
            return Err(HeaderError::NotAuthentic);
        }
        let text = covered.get(FIXED_LEN..).unwrap_or_default().to_vec();
        let text = String::from_utf8(text).map_err(|_| HeaderError::NotAuthentic)?;
        let header = Self {
            nonce: u64_at(fixed, 16),
            file_size: u64_at(fixed, 24),
            url_digest: bytes_at(fixed, 32),
            epoch: PageCacheEpoch {
                boot_id: bytes_at(fixed, 64),
                mount_namespace: u64_at(fixed, 80),
                mount: u64_at(fixed, 88),
            },
            partial_file: bytes_at(fixed, 96),
            validator: match fixed[10] {
                1 => StoredValidator::Etag(text),
                2 => StoredValidator::LastModified(text),
                _ => return Err(HeaderError::NotAuthentic),
            },
        };
        Ok((header, header_mac, (FIXED_LEN + len + header_mac.len()).next_multiple_of(RECORD_LEN)))
    }

    /// Whether these are the first bytes of a marline journal as a crash may have left it: of any version, torn, or
    /// never written to the disk (zeros).
    pub fn is_remnant(bytes: &[u8]) -> bool {
        bytes.iter().zip(MAGIC).all(|(byte, magic_byte)| *byte == 0 || byte == magic_byte)
    }
}

impl Record {
    /// Bytes of the record for the journal whose header has the MAC `header`.
    pub fn emit(self, header: &Mac, mac: impl Fn(&[u8]) -> Mac) -> [u8; RECORD_LEN] {
        let (flag, start, end) = match self {
            Self::Written { start, end } => (0, start, end),
            Self::Synced { start, end } => (SYNCED, start, end),
        };
        let mut out = [0; RECORD_LEN];
        out[..8].copy_from_slice(&(start & !SYNCED | flag).to_le_bytes());
        out[8..16].copy_from_slice(&end.to_le_bytes());
        let record_mac = Self::mac(&bytes_at(&out, 0), header, mac);
        out[16..].copy_from_slice(&record_mac);
        out
    }

    /// Parses a record of the journal whose header has the MAC `header`; `None` if it is torn, damaged, empty, not
    /// authentic, or of another journal.
    pub fn parse(bytes: &[u8; RECORD_LEN], header: &Mac, mac: impl Fn(&[u8]) -> Mac) -> Option<Self> {
        // Preallocated blocks are zeros; there is no need to compute their MAC.
        if *bytes == [0; RECORD_LEN] || bytes_at::<16>(bytes, 16) != Self::mac(&bytes_at(bytes, 0), header, mac) {
            return None;
        }
        let (start, end) = (u64_at(bytes, 0), u64_at(bytes, 8));
        match (start & !SYNCED, start & SYNCED != 0) {
            (start, _) if start >= end => None,
            (start, false) => Some(Self::Written { start, end }),
            (start, true) => Some(Self::Synced { start, end }),
        }
    }

    /// The MAC of a record covers the header's MAC. Its input is shorter than any header, so no header has the same
    /// MAC.
    fn mac(range: &[u8; 16], header: &Mac, mac: impl Fn(&[u8]) -> Mac) -> Mac {
        let mut covered = [0; 32];
        covered[..16].copy_from_slice(header);
        covered[16..].copy_from_slice(range);
        mac(&covered)
    }
}

/// All valid records in the bytes that follow a header with the MAC `header`.
pub fn valid_records(bytes: &[u8], header: Mac, mac: impl Fn(&[u8]) -> Mac) -> impl Iterator<Item = Record> {
    bytes.as_chunks().0.iter().filter_map(move |record| Record::parse(record, &header, &mac))
}

fn u64_at<const LEN: usize>(bytes: &[u8; LEN], at: usize) -> u64 {
    u64::from_le_bytes(bytes_at(bytes, at))
}

/// `N` bytes from offset `at`; both are constants of the layout.
fn bytes_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FNV-1a twice: not a real MAC, but it depends on every bit of the input.
    fn mac(bytes: &[u8]) -> Mac {
        let hash = |seed: u64| bytes.iter().fold(seed, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3));
        let mut out = [0; 16];
        out[..8].copy_from_slice(&hash(0xcbf2_9ce4_8422_2325).to_le_bytes());
        out[8..].copy_from_slice(&hash(1).to_le_bytes());
        out
    }

    /// The same with another key.
    fn other_key(bytes: &[u8]) -> Mac {
        mac(bytes).map(|byte| byte ^ 1)
    }

    fn header() -> Header {
        Header {
            nonce: 0x0123_4567_89ab_cdef,
            file_size: 250_000_000,
            url_digest: [7; 32],
            epoch: PageCacheEpoch { boot_id: [1; 16], mount_namespace: 2, mount: 3 },
            partial_file: [5; 16],
            validator: StoredValidator::Etag("\"65e-5f\"".into()),
        }
    }

    #[test]
    fn a_header_reads_back_as_it_was_written() {
        for validator in [
            StoredValidator::Etag("\"x\"".into()),
            StoredValidator::LastModified("Sun, 06 Nov 1994 08:49:37 GMT".into()),
        ] {
            for boot in [[0; 16], [9; 16]] {
                let header = Header {
                    validator: validator.clone(),
                    epoch: PageCacheEpoch { boot_id: boot, ..header().epoch },
                    ..header()
                };
                let (bytes, sealed) = header.emit(mac);
                assert_eq!(bytes.len() % RECORD_LEN, 0);
                assert_eq!(Header::parse(&bytes, mac), Ok((header, sealed, bytes.len())));
                assert_eq!(Header::parse(&bytes, other_key), Err(HeaderError::NotAuthentic));
            }
        }
    }

    #[test]
    fn a_header_with_a_wrong_bit_or_a_missing_byte_is_rejected() {
        let (good, _) = header().emit(mac);
        let covered = FIXED_LEN + 8 + 16;
        for bit in 0..covered * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::parse(&bad, mac).is_err(), "bit {bit}");
        }
        for len in 0..covered {
            assert!(Header::parse(&good[..len], mac).is_err(), "{len} bytes");
        }
        let long = Header { validator: StoredValidator::Etag("x".repeat(MAX_VALIDATOR_LEN + 1)), ..header() };
        assert_eq!(Header::parse(&long.emit(mac).0, mac), Err(HeaderError::NotAuthentic));
    }

    #[test]
    fn a_journal_of_format_1_is_reported_as_such() {
        let mut old_header = b"MARLINEJ\x01\0\x01\0".to_vec();
        old_header.resize(96, 7);
        assert_eq!(Header::parse(&old_header, mac), Err(HeaderError::Version(1)));
        assert_eq!(Header::parse(b"precious", mac), Err(HeaderError::NotAJournal));
    }

    #[test]
    fn journal_remnants_of_a_crash_are_distinguished_from_other_files() {
        for remnant in [b"".as_slice(), b"MARL", b"MARLINEJ\x01\0", &[0; 100], &header().emit(mac).0] {
            assert!(Header::is_remnant(remnant), "{remnant:?}");
        }
        for other in [b"MARMALADE".as_slice(), b"hello", b"\0\0\x01", b"MARLINEK..."] {
            assert!(!Header::is_remnant(other), "{other:?}");
        }
    }

    #[test]
    fn a_record_with_a_wrong_bit_is_rejected() {
        let (good, header) = (Record::Synced { start: 5, end: 1 << 40 }, [77; 16]);
        let bytes = good.emit(&header, mac);
        assert_eq!(Record::parse(&bytes, &header, mac), Some(good));
        assert_eq!(Record::parse(&bytes, &[78; 16], mac), None, "record of another journal");
        assert_eq!(Record::parse(&bytes, &header, other_key), None, "record with another key");
        for bit in 0..RECORD_LEN * 8 {
            let mut bad = bytes;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Record::parse(&bad, &header, mac), None, "bit {bit}");
        }
        assert_eq!(Record::parse(&[0; RECORD_LEN], &header, mac), None);
        let empty = Record::Written { start: 5, end: 5 }.emit(&header, mac);
        assert_eq!(Record::parse(&empty, &header, mac), None);
    }

    #[test]
    fn records_after_a_hole_count_and_a_torn_one_does_not() {
        let (first, second) = (Record::Written { start: 0, end: 9 }, Record::Synced { start: 0, end: 4 });
        let (mut bytes, header) = (first.emit(&[1; 16], mac).to_vec(), [1; 16]);
        bytes.extend([0; RECORD_LEN]);
        bytes.extend(second.emit(&header, mac));
        bytes.extend(&first.emit(&header, mac)[..31]);
        assert_eq!(valid_records(&bytes, header, mac).collect::<Vec<_>>(), [first, second]);
    }

    #[test]
    fn unsynced_records_hold_until_reboot_or_remount() {
        let life = header().epoch;
        assert!(life.is_valid_in(&life));
        assert!(!life.is_valid_in(&PageCacheEpoch { boot_id: [2; 16], ..life }));
        assert!(!life.is_valid_in(&PageCacheEpoch { mount: 4, ..life }));
        assert!(life.is_valid_in(&PageCacheEpoch { mount_namespace: 9, mount: 4, ..life }));
        assert!(!PageCacheEpoch::default().is_valid_in(&PageCacheEpoch::default()));
    }
}
