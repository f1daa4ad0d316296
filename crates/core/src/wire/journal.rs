//! The bytes of a download's journal: what is in its place, said so that a crash can be believed.
//!
//! A header says which file the bytes are of; records of one fixed size follow, each true by itself, in any order.
//!
//! ```text
//! header   0  "MARLINEJ"            record   0  start    u64
//!          8  version      u16               8  end      u64
//!         10  validator    u8 kind          16  nonce    u64, the header's
//!         11  zero         u8               24  kind     u32, 1 written, 2 synced
//!         12  length of the validator u32   28  CRC-32 of the 28 bytes before
//!         16  nonce        u64
//!         24  total        u64
//!         32  URL digest   32 bytes
//!         64  boot id      16 bytes
//!         80  namespace    u64
//!         88  mount        u64
//!         96  validator, then CRC-32 of all before, then zeros to a multiple of 32
//! ```
//!
//! 1. Numbers are little-endian. A record is 32 bytes and begins at a multiple of 32, so no disk sector splits one.
//! 2. A record counts only if its CRC and its nonce are right. A torn tail, a hole of zeros and a stale block of an
//!    older journal are all refused by this one rule, and the records behind them still count.
//! 3. A header that is not entirely right makes the whole journal worthless: nothing is guessed.
//! 4. [`Record::Written`] holds as long as the [`Life`] of the header lasts (the page cache survives a process);
//!    [`Record::Synced`] holds for ever.
//!
//! Text (JSON lines) was not used: a torn line can still be a well-formed, smaller claim. A bitmap was not used:
//! rewriting a bit in place is not atomic, appending a record that proves itself is as good as that.

use alloc::string::String;
use alloc::vec::Vec;

/// Bytes of one record; the header is padded to a multiple of it.
pub const RECORD_LEN: usize = 32;
/// The longest validator that is kept. Chosen: real ones are below 100 bytes; a longer one means no journal.
pub const VALIDATOR_MAX: usize = 4096;

const MAGIC: &[u8; 8] = b"MARLINEJ";
const VERSION: u16 = 1;
const FIXED: usize = 96;

/// Which file the journal is about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Header {
    /// Different in each journal ever written; ties the records to it.
    pub nonce: u64,
    /// Bytes of the whole file.
    pub total: u64,
    /// Digest of the URL. The URL itself may hold a password.
    pub url: [u8; 32],
    /// How long unsynced claims hold.
    pub life: Life,
    /// The file's strong validator.
    pub validator: Mark,
}

/// A span of time in which the page cache is not lost: a boot, and within it one mount of the file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Life {
    /// The kernel's boot id; zero: unknown.
    pub boot: [u8; 16],
    /// The mount namespace that `mount` is a number in; zero: unknown.
    pub namespace: u64,
    /// The mount; zero: unknown.
    pub mount: u64,
}

impl Life {
    /// Whether what was written in `self` without a sync is still there in `now`. Another namespace numbers its
    /// mounts anew, so there only the boot decides.
    pub fn lasts(&self, now: &Self) -> bool {
        let same_mount = self.namespace != now.namespace || self.mount == now.mount;
        self.boot != [0; 16] && self.boot == now.boot && same_mount
    }
}

/// A strong validator, as the journal keeps it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Mark {
    /// An ETag, quotes included.
    Etag(String),
    /// A Last-Modified date.
    Date(String),
}

/// A claim about bytes `start..end`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Record {
    /// They were given to the kernel.
    Written {
        /// The first byte's offset.
        start: u64,
        /// One past the last byte's offset.
        end: u64,
    },
    /// They were on the disk before this record was written.
    Synced {
        /// The first byte's offset.
        start: u64,
        /// One past the last byte's offset.
        end: u64,
    },
}

/// Why a header is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HeaderError {
    /// Another file's bytes, or an empty one.
    #[error("it is not a journal of marline")]
    NotAJournal,
    /// Written by another version.
    #[error("it has version {0}, which is not known here")]
    Version(u16),
    /// Torn or damaged.
    #[error("its header is damaged")]
    Damaged,
}

impl Header {
    /// The header's bytes, padded to a multiple of [`RECORD_LEN`]. A validator beyond [`VALIDATOR_MAX`] must not
    /// come here; its header would be refused when read.
    pub fn emit(&self) -> Vec<u8> {
        let (kind, text) = match &self.validator {
            Mark::Etag(text) => (1, text),
            Mark::Date(text) => (2, text),
        };
        let mut out = Vec::with_capacity(FIXED + text.len() + RECORD_LEN);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&[kind, 0]);
        out.extend_from_slice(&u32::try_from(text.len()).unwrap_or(u32::MAX).to_le_bytes());
        out.extend_from_slice(&self.nonce.to_le_bytes());
        out.extend_from_slice(&self.total.to_le_bytes());
        out.extend_from_slice(&self.url);
        out.extend_from_slice(&self.life.boot);
        out.extend_from_slice(&self.life.namespace.to_le_bytes());
        out.extend_from_slice(&self.life.mount.to_le_bytes());
        out.extend_from_slice(text.as_bytes());
        let crc = crc32(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        out.resize(out.len().next_multiple_of(RECORD_LEN), 0);
        out
    }

    /// Reads a header; also says how many bytes it takes, that is, where the records begin.
    ///
    /// # Errors
    /// When anything in it is not as [`Header::emit`] writes it.
    pub fn parse(bytes: &[u8]) -> Result<(Self, usize), HeaderError> {
        let fixed: &[u8; FIXED] = bytes.first_chunk().ok_or(HeaderError::NotAJournal)?;
        if array::<8>(fixed, 0) != *MAGIC {
            return Err(HeaderError::NotAJournal);
        }
        let version = u16::from_le_bytes(array(fixed, 8));
        if version != VERSION {
            return Err(HeaderError::Version(version));
        }
        let len = u32::from_le_bytes(array(fixed, 12)) as usize;
        if len > VALIDATOR_MAX {
            return Err(HeaderError::Damaged);
        }
        let text = bytes.get(FIXED..FIXED + len).ok_or(HeaderError::Damaged)?;
        let crc = bytes.get(FIXED + len..FIXED + len + 4).ok_or(HeaderError::Damaged)?;
        let covered = bytes.get(..FIXED + len).ok_or(HeaderError::Damaged)?;
        if crc != crc32(covered).to_le_bytes() {
            return Err(HeaderError::Damaged);
        }
        let text = String::from_utf8(text.to_vec()).map_err(|_| HeaderError::Damaged)?;
        let header = Self {
            nonce: u64_at(fixed, 16),
            total: u64_at(fixed, 24),
            url: array(fixed, 32),
            life: Life { boot: array(fixed, 64), namespace: u64_at(fixed, 80), mount: u64_at(fixed, 88) },
            validator: match fixed[10] {
                1 => Mark::Etag(text),
                2 => Mark::Date(text),
                _ => return Err(HeaderError::Damaged),
            },
        };
        Ok((header, (FIXED + len + 4).next_multiple_of(RECORD_LEN)))
    }
}

impl Record {
    /// The record's bytes in the journal with this nonce.
    pub fn emit(self, nonce: u64) -> [u8; RECORD_LEN] {
        let (kind, start, end) = match self {
            Self::Written { start, end } => (1_u32, start, end),
            Self::Synced { start, end } => (2, start, end),
        };
        let mut out = [0; RECORD_LEN];
        out[..8].copy_from_slice(&start.to_le_bytes());
        out[8..16].copy_from_slice(&end.to_le_bytes());
        out[16..24].copy_from_slice(&nonce.to_le_bytes());
        out[24..28].copy_from_slice(&kind.to_le_bytes());
        let crc = crc32(&out[..28]);
        out[28..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads a record of the journal with this nonce; none if it is torn, damaged, empty or another journal's.
    pub fn parse(bytes: &[u8; RECORD_LEN], nonce: u64) -> Option<Self> {
        let crc = u32::from_le_bytes(array(bytes, 28));
        if crc != crc32(&bytes[..28]) || u64_at(bytes, 16) != nonce {
            return None;
        }
        let (start, end) = (u64_at(bytes, 0), u64_at(bytes, 8));
        match u32::from_le_bytes(array(bytes, 24)) {
            _ if start >= end => None,
            1 => Some(Self::Written { start, end }),
            2 => Some(Self::Synced { start, end }),
            _ => None,
        }
    }
}

/// All records that count in the bytes behind a header.
pub fn records(bytes: &[u8], nonce: u64) -> impl Iterator<Item = Record> + '_ {
    bytes.as_chunks().0.iter().filter_map(move |record| Record::parse(record, nonce))
}

fn u64_at<const LEN: usize>(bytes: &[u8; LEN], at: usize) -> u64 {
    u64::from_le_bytes(array(bytes, at))
}

/// `N` bytes from `at`; both are constants of the layout.
fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

/// CRC-32 as in IEEE 802.3, bit by bit: a journal grows by a few dozen bytes for each mebibyte, a table would not pay.
fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ 0xEDB8_8320 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            nonce: 0x0123_4567_89ab_cdef,
            total: 250_000_000,
            url: [7; 32],
            life: Life { boot: [1; 16], namespace: 2, mount: 3 },
            validator: Mark::Etag("\"65e-5f\"".into()),
        }
    }

    #[test]
    fn the_checksum_is_the_one_of_802_3() {
        assert_eq!(crc32(b"123456789"), 0xCBF4_3926);
        assert_eq!(crc32(b""), 0);
    }

    #[test]
    fn a_header_comes_back_as_it_was() {
        for validator in [Mark::Etag("\"x\"".into()), Mark::Date("Sun, 06 Nov 1994 08:49:37 GMT".into())] {
            for boot in [[0; 16], [9; 16]] {
                let header =
                    Header { validator: validator.clone(), life: Life { boot, ..header().life }, ..header() };
                let bytes = header.emit();
                assert_eq!(bytes.len() % RECORD_LEN, 0);
                assert_eq!(Header::parse(&bytes), Ok((header, bytes.len())));
            }
        }
    }

    #[test]
    fn a_header_with_any_bit_wrong_or_any_byte_missing_is_refused() {
        let good = header().emit();
        let covered = FIXED + 8 + 4;
        for bit in 0..covered * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::parse(&bad).is_err(), "bit {bit}");
        }
        for len in 0..covered {
            assert!(Header::parse(&good[..len]).is_err(), "{len} bytes");
        }
        let long = Header { validator: Mark::Etag("x".repeat(VALIDATOR_MAX + 1)), ..header() };
        assert_eq!(Header::parse(&long.emit()), Err(HeaderError::Damaged));
    }

    #[test]
    fn a_record_with_any_bit_wrong_is_no_record() {
        let good = Record::Synced { start: 5, end: 1 << 40 };
        let bytes = good.emit(77);
        assert_eq!(Record::parse(&bytes, 77), Some(good));
        assert_eq!(Record::parse(&bytes, 78), None);
        for bit in 0..RECORD_LEN * 8 {
            let mut bad = bytes;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Record::parse(&bad, 77), None, "bit {bit}");
        }
        assert_eq!(Record::parse(&[0; RECORD_LEN], 0), None);
        assert_eq!(Record::parse(&Record::Written { start: 5, end: 5 }.emit(1), 1), None);
    }

    #[test]
    fn records_behind_a_hole_still_count_and_a_torn_tail_does_not() {
        let (first, second) = (Record::Written { start: 0, end: 9 }, Record::Synced { start: 0, end: 4 });
        let mut bytes = first.emit(1).to_vec();
        bytes.extend([0; RECORD_LEN]);
        bytes.extend(second.emit(1));
        bytes.extend(&first.emit(1)[..31]);
        assert_eq!(records(&bytes, 1).collect::<Vec<_>>(), [first, second]);
    }

    #[test]
    fn written_claims_end_with_the_boot_or_the_mount() {
        let life = header().life;
        assert!(life.lasts(&life));
        assert!(!life.lasts(&Life { boot: [2; 16], ..life }));
        assert!(!life.lasts(&Life { mount: 4, ..life }));
        assert!(life.lasts(&Life { namespace: 9, mount: 4, ..life }));
        assert!(!Life::default().lasts(&Life::default()));
    }
}
