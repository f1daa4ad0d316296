//! A file of pseudo-random bytes to serve: always the same bytes for the same size, incompressible, with its
//! checksum.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use marline_core::units::DataSize;
use sha2::{Digest, Sha256};

use super::TempDir;

/// A file in memory that exists as long as this value. Several labs may serve it.
#[derive(Debug)]
pub struct Payload {
    temp_dir: TempDir,
    name: String,
    sha256: String,
}

impl Payload {
    /// Writes a file of `size`, whose name contains the size.
    ///
    /// # Errors
    /// Out of memory, or no directory for temporary files.
    pub fn new(size: DataSize) -> io::Result<Self> {
        let folder = TempDir::new()?;
        let name = format!("random-{}", size.bytes());
        let mut file = BufWriter::with_capacity(1 << 20, File::create(folder.path().join(&name))?);
        let mut digest = Sha256::new();
        let mut state = SEED;
        let mut left = size.bytes();
        let mut block = vec![0_u8; 1 << 16];
        while left > 0 {
            for chunk in block.chunks_exact_mut(8) {
                chunk.copy_from_slice(&splitmix64(&mut state).to_le_bytes());
            }
            let length = usize::try_from(left).unwrap_or(block.len()).min(block.len());
            let part = block.get(..length).unwrap_or(&[]);
            file.write_all(part)?;
            digest.update(part);
            left -= length as u64;
        }
        file.flush()?;
        let sha256 = data_encoding::HEXLOWER.encode(&digest.finalize());
        Ok(Self { temp_dir: folder, name, sha256 })
    }

    /// Path of the file.
    pub fn path(&self) -> PathBuf {
        self.directory().join(&self.name)
    }

    /// The directory that contains only this file.
    pub fn directory(&self) -> &Path {
        self.temp_dir.path()
    }

    /// SHA-256 of the file in hexadecimal digits.
    pub fn sha256(&self) -> &str {
        &self.sha256
    }
}

/// Chosen arbitrarily; it determines the bytes, so it must not change.
const SEED: u64 = 0x6d61_726c_696e_6521;

/// The next output of splitmix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
fn splitmix64(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_size_gives_the_same_bytes() {
        let (one, other) =
            (Payload::new(DataSize::from_kib(100)).unwrap(), Payload::new(DataSize::from_kib(100)).unwrap());
        assert_eq!(one.sha256(), other.sha256());
        assert_eq!(std::fs::read(one.path()).unwrap(), std::fs::read(other.path()).unwrap());
        let odd = Payload::new(DataSize::from_bytes(65_539)).unwrap();
        assert_eq!(std::fs::metadata(odd.path()).unwrap().len(), 65_539);
        assert_eq!(Payload::new(DataSize::ZERO).unwrap().sha256().get(..8), Some("e3b0c442"));
    }
}
