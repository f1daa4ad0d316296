//! Test video: an MP4 file in memory whose header contains the duration, filled with pseudo-random bytes. Its bytes
//! are available, so that received data can be compared.
//!
//! Only the header is real (`ftyp`, `moov` with `mvhd`, the beginning of `mdat`). Nothing decodes the video here,
//! and a file of any rate is created at once. The tests of `marline proxy` use videos from ffmpeg with real
//! players.

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use marline_core::playback::MediaProfile;
use marline_core::units::{Bitrate, DataSize};

use crate::Payload;

/// A test video in memory; it is removed with this value.
#[derive(Debug)]
pub(super) struct Mp4Fixture {
    payload: Payload,
    pub(super) bytes: Vec<u8>,
    pub(super) rate: Bitrate,
    pub(super) length: Duration,
}

impl Mp4Fixture {
    /// Creates a video of this rate and length.
    pub(super) fn new(rate: Bitrate, length: Duration) -> io::Result<Self> {
        let payload = Payload::new(rate * length)?;
        File::options().write(true).open(payload.path())?.write_all(&mp4_head(length, rate * length))?;
        let bytes = std::fs::read(payload.path())?;
        Ok(Self { payload, bytes, rate, length })
    }

    /// Path of the file.
    pub(super) fn path(&self) -> PathBuf {
        self.payload.path()
    }

    /// Rate and duration, for the player model.
    pub(super) fn profile(&self) -> io::Result<MediaProfile> {
        MediaProfile::constant(self.rate, self.length).map_err(io::Error::other)
    }

    /// Size of the first second, which a player needs to show the first frame.
    pub(super) fn first_second(&self) -> DataSize {
        self.rate * Duration::from_secs(1)
    }

    /// Whether these are the bytes at this offset.
    pub(super) fn matches_at(&self, offset: u64, bytes: &[u8]) -> bool {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        self.bytes.get(start..start.saturating_add(bytes.len())) == Some(bytes)
    }
}

/// The MP4 boxes before the media data (ISO 14496-12 section 8.2.2).
fn mp4_head(length: Duration, size: DataSize) -> Vec<u8> {
    let millis = u32::try_from(length.as_millis()).unwrap_or(u32::MAX);
    let mut mvhd = vec![0; 12];
    mvhd.extend(1000_u32.to_be_bytes());
    mvhd.extend(millis.to_be_bytes());
    mvhd.resize(100, 0);
    let mut head = [mp4_box(b"ftyp", b"isom\0\0\0\0isom"), mp4_box(b"moov", &mp4_box(b"mvhd", &mvhd))].concat();
    // Size 1 means that the real size follows the box name, in 64 bits.
    let mdat_size = size.bytes().saturating_sub(head.len() as u64);
    head.extend(1_u32.to_be_bytes());
    head.extend(b"mdat");
    head.extend(mdat_size.to_be_bytes());
    head
}

fn mp4_box(name: &[u8; 4], body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(8 + body.len()).unwrap_or(u32::MAX);
    [&length.to_be_bytes(), &name[..], body].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_video_has_an_mp4_header_and_recognizes_its_bytes() {
        let fixture = Mp4Fixture::new(Bitrate::from_mbps(1), Duration::from_secs(2)).unwrap();
        assert_eq!(fixture.bytes.len(), 250_000);
        assert_eq!((&fixture.bytes[4..8], &fixture.bytes[32..36]), (&b"ftyp"[..], &b"mvhd"[..]));
        assert!(fixture.matches_at(249_990, &fixture.bytes[249_990..]));
        assert!(!fixture.matches_at(249_991, &fixture.bytes[249_990..]));
        assert_eq!(fixture.first_second().bytes(), 125_000);
    }
}
