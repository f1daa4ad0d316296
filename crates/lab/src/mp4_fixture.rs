//! Test video: an MP4 header with a duration, followed by pseudo-random bytes up to the required size. Container
//! parsers accept it; no decoder could show it. Each byte can be computed from its offset.
//!
//! 1. It consists of `ftyp`, `moov` with only `mvhd` (ISO 14496-12 section 8.2.2), and `mdat` to the end. From
//!    these boxes `marline proxy` learns the duration.
//! 2. The size is that of the [`MediaProfile`], header included.
//! 3. Received bytes are checked in order as they arrive, without a copy of the file. A checksum would show an
//!    error only at the end.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, Weak};

use marline_core::playback::MediaProfile;
use marline_core::units::{DataSize, Duration};

use crate::TempDir;

/// A test video as a file in memory; several labs may serve it.
#[derive(Debug)]
pub(crate) struct Mp4Fixture {
    folder: TempDir,
    video: MediaProfile,
}

impl Mp4Fixture {
    /// Writes the file.
    ///
    /// # Errors
    /// Out of memory, no directory for temporary files, or a size smaller than the header.
    pub(crate) fn new(video: &MediaProfile) -> io::Result<Self> {
        let fixture = Self { folder: TempDir::new()?, video: video.clone() };
        let mut file = BufWriter::with_capacity(1 << 20, File::create(fixture.path())?);
        let (head, size) = (mp4_head(video), video.size().bytes());
        if (head.len() as u64) > size {
            return Err(io::Error::other("the video is smaller than its header"));
        }
        file.write_all(&head)?;
        let mut at = head.len() as u64;
        while at < size {
            let (bytes, from) = (filler_block(at / 8), (at % 8) as usize);
            let most = usize::try_from(size - at).unwrap_or(8).min(8 - from);
            file.write_all(bytes.get(from..from + most).unwrap_or_default())?;
            at += most as u64;
        }
        file.flush()?;
        Ok(fixture)
    }

    /// Path of the file.
    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("film.mp4")
    }

    /// Size, duration and rate of the video.
    pub(crate) fn video(&self) -> &MediaProfile {
        &self.video
    }

    /// Whether these are the bytes at offset `at` of a test video with this profile.
    pub(crate) fn matches_at(at: u64, bytes: &[u8], video: &MediaProfile) -> bool {
        let head = mp4_head(video);
        let in_head = head.get(usize::try_from(at).unwrap_or(usize::MAX)..).unwrap_or_default();
        let (first, remaining) = bytes.split_at(in_head.len().min(bytes.len()));
        if !in_head.starts_with(first) {
            return false;
        }
        let mut at = at + first.len() as u64;
        let mut remaining = remaining;
        while !remaining.is_empty() {
            let (bytes, from) = (filler_block(at / 8), (at % 8) as usize);
            let (part, after) = remaining.split_at((8 - from).min(remaining.len()));
            if !bytes.get(from..).unwrap_or_default().starts_with(part) {
                return false;
            }
            (at, remaining) = (at + part.len() as u64, after);
        }
        true
    }
}

/// The test videos in use, so that parallel labs share them.
#[derive(Debug, Default)]
pub(crate) struct Mp4Fixtures(Mutex<BTreeMap<(DataSize, Duration), Weak<Mp4Fixture>>>);

impl Mp4Fixtures {
    /// Returns the file of this video; creates it if it is not in use.
    ///
    /// # Errors
    /// Those of [`Mp4Fixture::new`].
    pub(crate) fn get_or_create(&self, video: &MediaProfile) -> io::Result<Arc<Mp4Fixture>> {
        let poisoned = |_| io::Error::other("another thread failed to write a video");
        let mut fixtures = self.0.lock().map_err(poisoned)?;
        fixtures.retain(|_, fixture| fixture.strong_count() > 0);
        let key = (video.size(), video.duration());
        if let Some(fixture) = fixtures.get(&key).and_then(Weak::upgrade) {
            return Ok(fixture);
        }
        let fixture = Arc::new(Mp4Fixture::new(video)?);
        fixtures.insert(key, Arc::downgrade(&fixture));
        Ok(fixture)
    }
}

/// Everything before the pseudo-random bytes.
fn mp4_head(video: &MediaProfile) -> Vec<u8> {
    let millis = u32::try_from(video.duration().as_millis()).unwrap_or(u32::MAX);
    let mut mvhd = vec![0; 12];
    mvhd.extend(1000_u32.to_be_bytes());
    mvhd.extend(millis.to_be_bytes());
    mvhd.resize(100, 0);
    let mut all = mp4_box(b"ftyp", b"isom\0\0\0\0");
    all.extend(mp4_box(b"moov", &mp4_box(b"mvhd", &mvhd)));
    // Size 1 means that the real size follows the box name, in 64 bits (section 4.2).
    let remaining = video.size().bytes().saturating_sub(all.len() as u64);
    all.extend(1_u32.to_be_bytes());
    all.extend(b"mdat");
    all.extend(remaining.to_be_bytes());
    all
}

fn mp4_box(name: &[u8; 4], body: &[u8]) -> Vec<u8> {
    let size = u32::try_from(8 + body.len()).unwrap_or(u32::MAX);
    [&size.to_be_bytes()[..], name, body].concat()
}

/// The eight bytes of a block, by the output function of splitmix64 (Steele, Lea, Flood 2014).
fn filler_block(block: u64) -> [u8; 8] {
    let mut z = block.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use marline_core::units::Bitrate;

    fn video(kbit: u64, seconds: u64) -> MediaProfile {
        MediaProfile::constant(Bitrate::from_bits_per_sec(kbit * 1000), Duration::from_secs(seconds)).unwrap()
    }

    #[test]
    fn bytes_match_at_any_offset_and_a_wrong_byte_is_detected() {
        let video = video(5455, 1);
        let fixture = Mp4Fixture::new(&video).unwrap();
        let bytes = std::fs::read(fixture.path()).unwrap();
        assert_eq!(bytes.len() as u64, video.size().bytes());
        for (from, upto) in [(0, 1), (0, bytes.len()), (3, 150), (141, 149), (1001, 1003), (7000, 70_001)] {
            assert!(Mp4Fixture::matches_at(from as u64, &bytes[from..upto], &video), "{from}..{upto}");
            let mut other = bytes[from..upto].to_vec();
            *other.last_mut().unwrap() ^= 1;
            assert!(!Mp4Fixture::matches_at(from as u64, &other, &video), "{from}..{upto}");
        }
        assert!(!Mp4Fixture::matches_at(500, &bytes[501..600], &video));
    }

    #[test]
    fn parallel_labs_share_a_video_and_the_last_one_removes_it() {
        let fixtures = Mp4Fixtures::default();
        let (one, other) =
            (fixtures.get_or_create(&video(800, 1)).unwrap(), fixtures.get_or_create(&video(800, 1)).unwrap());
        assert_eq!(one.path(), other.path());
        let path = fixtures.get_or_create(&video(800, 2)).unwrap().path();
        assert!(!path.exists() && one.path().exists());
    }
}
