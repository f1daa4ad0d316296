//! Finds the duration of a video in its container, while the bytes pass through the proxy.
//!
//! It is fed chunks of the file with their offsets, in any order, and yields a [`VideoTiming`] as soon as the container
//! contains one.
//!
//! 1. Nothing is requested: the scan examines only what the player reads. It waits for one offset at a time and takes
//!    it from whichever chunk contains it. A player reads a head at the end of the file before it plays, so the scan
//!    sees it as well.
//! 2. MP4: `mvhd` has the duration (ISO 14496-12 §8.2.2), `mehd` that of fragmented files; `sidx` has bytes and time of
//!    each fragment (§8.16.3), and `stbl` the offset and time of each chunk (§8.5). Matroska and WebM: `Duration` of
//!    `Info` (RFC 9559 §5.1.2), and the clusters of `Cues` (§5.1.5) if the player reads them. MPEG-TS: clock references
//!    and the bytes between them (ISO 13818-1 §2.4.3.4).
//! 3. Implausible figures are ignored: a duration of zero or of more than a year.
//! 4. At most [`MAX_HELD`] bytes are held, and none of the media data.
//! 5. The head of any other file is kept for a program that knows more containers
//!    ([`ContainerScan::take_unknown_head`]).
//!
//! Crates that read MP4 or Matroska need a whole seekable file, and only a hundredth of their code would be used
//! here.

mod matroska;
mod mp4;
mod ts;

use marline_core::playback::{MediaProfile, ProfileError};
use marline_core::units::{Bitrate, DataSize, Duration};

/// The timing of a video, as far as its container contains it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum VideoTiming {
    Duration(Duration),
    /// Duration and size of successive fragments, from the first byte of the file.
    Fragments(Vec<(Duration, DataSize)>),
    /// The duration, and the file offset from which the data of some moments begin, in increasing order of the moments.
    Index(Duration, Vec<(Duration, u64)>),
    /// The mean rate.
    Rate(Bitrate),
}

impl VideoTiming {
    /// The profile of a file of `total` bytes; `None`: it would be implausible.
    pub(crate) fn profile(&self, total: DataSize) -> Option<MediaProfile> {
        let profile = match self {
            Self::Duration(duration) => MediaProfile::variable([(*duration, total)]),
            Self::Index(duration, marks) => index_profile(*duration, marks, total.bytes()),
            Self::Rate(rate) => MediaProfile::variable([(total / *rate, total)]),
            Self::Fragments(pieces) => {
                let total_bytes: DataSize = pieces.iter().map(|(_, size)| *size).sum();
                if total_bytes > total {
                    return None;
                }
                MediaProfile::variable(pieces.iter().copied().chain([(Duration::ZERO, total - total_bytes)]))
            }
        };
        profile.ok().filter(|profile| profile.duration() <= MAX_DURATION)
    }
}

/// The scan of one file.
#[derive(Debug)]
pub(crate) struct ContainerScan {
    /// The file offset at which `held` begins.
    held_start: u64,
    buffered: Vec<u8>,
    container: Container,
    /// The timing, and the name of the structure that contained it.
    found: Option<(VideoTiming, &'static str)>,
    /// The offset of the first picture or sound.
    media_start: Option<u64>,
    /// The head of a file in an unsupported container.
    unknown_head: Option<Vec<u8>>,
}

/// The detected container, with its parser.
#[derive(Debug)]
enum Container {
    Unknown,
    Mp4(mp4::Mp4Scan),
    Matroska(matroska::MatroskaScan),
    Ts(ts::PcrRate),
    Unsupported,
    /// Nothing more can be learnt.
    Done,
}

/// The result of parsing the held bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ScanStep {
    /// More bytes are needed.
    NeedMore,
    /// Continue at this offset of the file.
    SkipTo(u64),
    /// Nothing more can be learnt.
    Done,
}

impl Default for ContainerScan {
    fn default() -> Self {
        Self {
            held_start: 0,
            buffered: Vec::new(),
            container: Container::Unknown,
            found: None,
            media_start: None,
            unknown_head: None,
        }
    }
}

impl ContainerScan {
    /// Scans some bytes of the file, which begin at offset `at`. Returns whether something was learnt.
    pub(crate) fn feed(&mut self, at: u64, bytes: &[u8]) -> bool {
        let mut has_learnt = false;
        while !self.is_done() {
            let wanted_offset = self.held_start + self.buffered.len() as u64;
            let skip = wanted_offset.checked_sub(at).and_then(|skip| usize::try_from(skip).ok());
            let new_bytes = skip.and_then(|skip| bytes.get(skip..)).unwrap_or_default();
            if new_bytes.is_empty() {
                break;
            }
            // Small chunks, because most bytes are skipped and need not be held.
            self.buffered.extend_from_slice(new_bytes.get(..CHUNK_SIZE).unwrap_or(new_bytes));
            has_learnt |= self.advance();
        }
        has_learnt
    }

    /// The timing of the video, and the name of the structure that contained it.
    pub(crate) fn video(&self) -> Option<(&VideoTiming, &'static str)> {
        self.found.as_ref().map(|(video, source)| (video, *source))
    }

    /// The offset of the first picture or sound. Before it, a player has nothing to show.
    pub(crate) fn media_start(&self) -> Option<u64> {
        self.media_start
    }

    /// The head of a file in an unsupported container. Returned once.
    pub(crate) fn take_unknown_head(&mut self) -> Option<Vec<u8>> {
        self.unknown_head.take()
    }

    /// Sets the timing of the video, as found by another source.
    pub(crate) fn set_video(&mut self, video: VideoTiming, source: &'static str) {
        if is_plausible(&video) {
            self.found = Some((video, source));
        }
    }

    /// Whether nothing more can be learnt.
    pub(crate) fn is_done(&self) -> bool {
        matches!(self.container, Container::Done)
    }

    fn advance(&mut self) -> bool {
        let mut has_learnt = false;
        loop {
            let next = match &mut self.container {
                Container::Done => return has_learnt,
                Container::Unknown => match detect(&self.buffered) {
                    Some(step) => {
                        self.container = step;
                        continue;
                    }
                    None => ScanStep::NeedMore,
                },
                Container::Mp4(boxes) => boxes.step(self.held_start, &self.buffered),
                Container::Matroska(elements) => elements.step(self.held_start, &self.buffered),
                Container::Ts(clock) => clock.step(self.held_start, &self.buffered),
                Container::Unsupported if self.buffered.len() < UNKNOWN_HEAD_SIZE => ScanStep::NeedMore,
                Container::Unsupported => {
                    self.unknown_head = Some(std::mem::take(&mut self.buffered));
                    ScanStep::Done
                }
            };
            let found = match &mut self.container {
                Container::Mp4(boxes) => boxes.found.take(),
                Container::Matroska(elements) => elements.found.take(),
                Container::Ts(clock) => clock.found.take(),
                Container::Unknown | Container::Unsupported | Container::Done => None,
            };
            let media = match &self.container {
                Container::Mp4(boxes) => boxes.media_start,
                Container::Matroska(elements) => elements.media_start,
                _ => None,
            };
            self.media_start = self.media_start.or(media);
            if let Some(found) = found.filter(|(video, _)| is_plausible(video)) {
                self.found = Some(found);
                has_learnt = true;
            }
            match next {
                ScanStep::SkipTo(at) if at > self.held_start => {
                    // Discard the held bytes before the offset that is needed next.
                    let skipped =
                        usize::try_from(at - self.held_start).unwrap_or(usize::MAX).min(self.buffered.len());
                    self.buffered.drain(..skipped);
                    self.held_start = at;
                    if self.buffered.is_empty() {
                        return has_learnt;
                    }
                }
                ScanStep::NeedMore if self.buffered.len() < MAX_HELD => return has_learnt,
                _ => {
                    self.container = Container::Done;
                    self.buffered = Vec::new();
                    return has_learnt;
                }
            }
        }
    }
}

/// A profile from index marks: all bytes before a mark are needed by its moment. If the file is not interleaved (one
/// kind of data follows all others), the player reads at two offsets at once and the marks do not describe its rate.
fn index_profile(duration: Duration, marks: &[(Duration, u64)], total: u64) -> Result<MediaProfile, ProfileError> {
    let lead = |(moment, offset): &(Duration, u64)| {
        *offset as f64 / total.max(1) as f64 - moment.as_secs_f64() / duration.as_secs_f64()
    };
    let (mut last_moment, mut last_offset) = (Duration::ZERO, 0);
    let mut pieces = Vec::new();
    let is_not_interleaved = marks.iter().any(|mark| mark.1 < total && lead(mark) > MAX_INTERLEAVING_LEAD);
    let marks = if is_not_interleaved { &[] } else { marks };
    for (moment, offset) in marks.iter().filter(|(moment, from)| *moment < duration && *from < total) {
        if *moment >= last_moment + MIN_INDEX_STEP && *offset > last_offset {
            pieces.push((*moment - last_moment, DataSize::from_bytes(offset - last_offset)));
            (last_moment, last_offset) = (*moment, *offset);
        }
    }
    pieces.push((duration - last_moment, DataSize::from_bytes(total - last_offset)));
    MediaProfile::variable(pieces)
}

fn detect(buffered: &[u8]) -> Option<Container> {
    if buffered.len() < 8 {
        return None;
    }
    if mp4::is_mp4(buffered) {
        return Some(Container::Mp4(mp4::Mp4Scan::default()));
    }
    if matroska::is_matroska(buffered) {
        return Some(Container::Matroska(matroska::MatroskaScan::default()));
    }
    match ts::is_ts(buffered) {
        Some(true) => Some(Container::Ts(ts::PcrRate::default())),
        Some(false) => Some(Container::Unsupported),
        None => None,
    }
}

fn is_plausible(video: &VideoTiming) -> bool {
    let duration = match video {
        VideoTiming::Duration(duration) | VideoTiming::Index(duration, _) => *duration,
        VideoTiming::Fragments(pieces) => {
            pieces.iter().fold(Duration::ZERO, |sum, (time, _)| sum.saturating_add(*time))
        }
        VideoTiming::Rate(rate) => return !rate.is_zero(),
    };
    !duration.is_zero() && duration <= MAX_DURATION
}

/// The duration of `ticks` at `scale` ticks per second.
fn ticks_to_duration(ticks: u64, scale: u64) -> Option<Duration> {
    let nanos = u128::from(ticks) * 1_000_000_000 / u128::from(scale.max(1));
    (scale > 0).then(|| u64::try_from(nanos).ok().map(Duration::from_nanos)).flatten()
}

/// A big-endian number of at most eight bytes.
fn big_endian(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

/// Longer durations are implausible.
const MAX_DURATION: Duration = Duration::from_secs(366 * 24 * 3600);
/// In interleaved files, no mark is this fraction of the file ahead of its share of the duration.
const MAX_INTERLEAVING_LEAD: f64 = 0.5;
/// Closer marks are merged.
const MIN_INDEX_STEP: Duration = Duration::from_millis(500);
/// The most bytes that are held at a time. The `sidx` of a day of two-second fragments needs half of it.
const MAX_HELD: usize = 1 << 20;
const CHUNK_SIZE: usize = 4096;
/// The size of the head that is kept of an unsupported file. Our choice: the heads of AVI, FLV, ASF, Ogg, FLAC and MP3
/// with a cover picture are shorter.
const UNKNOWN_HEAD_SIZE: usize = 256 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn mp4_box(name: &[u8; 4], body: &[u8]) -> Vec<u8> {
        let mut out = (body.len() as u32 + 8).to_be_bytes().to_vec();
        out.extend_from_slice(name);
        out.extend_from_slice(body);
        out
    }

    /// A `mvhd` of version 0 with 600 ticks a second.
    pub(crate) fn mvhd(ticks: u32) -> Vec<u8> {
        let mut body = vec![0; 12];
        body.extend(600_u32.to_be_bytes());
        body.extend(ticks.to_be_bytes());
        body.extend([0; 80]);
        mp4_box(b"mvhd", &body)
    }

    #[test]
    fn chunks_of_any_size_give_the_same_result() {
        let moov = mp4_box(b"moov", &[mvhd(6000), mp4_box(b"trak", &[1; 9000])].concat());
        let file = [mp4_box(b"ftyp", b"isomiso2"), moov, mp4_box(b"mdat", &[2; 50_000])].concat();
        for size in [1, 7, 100, 4096, 100_000] {
            let mut scan = ContainerScan::default();
            let mut at = 0;
            for piece in file.chunks(size) {
                scan.feed(at, piece);
                at += piece.len() as u64;
            }
            assert_eq!(scan.video(), Some((&VideoTiming::Duration(Duration::from_secs(10)), "mp4 mvhd")), "{size}");
            assert!(scan.buffered.len() < 2 * CHUNK_SIZE);
        }
    }

    #[test]
    fn a_head_at_the_end_of_the_file_is_found_when_the_player_reads_it() {
        let media = mp4_box(b"mdat", &[2; 50_000]);
        let file = [mp4_box(b"ftyp", b"isomiso2"), media, mp4_box(b"moov", &mvhd(600))].concat();
        let mut scan = ContainerScan::default();
        assert!(!scan.feed(0, &file[..20_000]));
        assert!(!scan.feed(30_000, &file[30_000..50_000]));
        let end = file.len() - 130;
        assert!(scan.feed(end as u64, &file[end..]), "{scan:?}");
        assert_eq!(scan.video(), Some((&VideoTiming::Duration(Duration::from_secs(1)), "mp4 mvhd")));
    }

    #[test]
    fn files_written_by_ffmpeg_are_understood() {
        let folder = tempfile::tempdir().unwrap();
        for (name, args) in [
            ("end.mp4", ""),
            ("start.mp4", "-movflags +faststart"),
            ("fragments.mp4", "-movflags frag_keyframe+empty_moov+default_base_moof+global_sidx"),
            ("film.mkv", ""),
            ("film.ts", ""),
        ] {
            let file = folder.path().join(name);
            let input = "-v error -f lavfi -i testsrc2=size=64x48:rate=5:duration=40 -f lavfi -i sine=duration=40";
            let output = "-c:v mpeg2video -b:v 100k -c:a mp2 -f";
            let format = match name.rsplit('.').next() {
                Some("mkv") => "matroska",
                Some("ts") => "mpegts",
                _ => "mp4",
            };
            let made = std::process::Command::new("ffmpeg")
                .args(input.split(' ').chain(output.split(' ')).chain([format]))
                .args(args.split(' ').filter(|arg| !arg.is_empty()))
                .arg(&file)
                .status();
            if !made.is_ok_and(|status| status.success()) {
                eprintln!("skipped: ffmpeg is not installed, or cannot make {name}");
                continue;
            }
            let bytes = std::fs::read(&file).unwrap();
            let mut scan = ContainerScan::default();
            for (n, piece) in bytes.chunks(10_000).enumerate() {
                scan.feed(n as u64 * 10_000, piece);
            }
            let total = DataSize::from_bytes(bytes.len() as u64);
            let profile = scan.video().and_then(|(video, _)| video.profile(total)).expect(name);
            let seconds = profile.duration().as_secs_f64();
            assert!((38.5..41.5).contains(&seconds), "{name}: {seconds} by {:?}", scan.video());
        }
    }

    #[test]
    fn the_head_of_an_unsupported_file_is_kept_for_ffprobe() {
        for text in [&b"<!doctype html><html>"[..], b"#EXTM3U\n#EXT-X", b"\x89PNG\r\n\x1a\n12345678", &[0; 4000]] {
            let mut scan = ContainerScan::default();
            scan.feed(0, text);
            scan.feed(text.len() as u64, &[0x20; 5000]);
            assert!(!scan.is_done() && scan.video().is_none() && scan.take_unknown_head().is_none(), "{text:?}");
            scan.feed(text.len() as u64 + 5000, &[0x20; UNKNOWN_HEAD_SIZE]);
            assert!(scan.is_done() && scan.video().is_none(), "{text:?}");
            let head = scan.take_unknown_head().unwrap();
            assert!(head.len() >= UNKNOWN_HEAD_SIZE && head.starts_with(text), "{text:?}");
            assert_eq!(scan.take_unknown_head(), None);
        }
    }

    #[test]
    fn random_input_causes_no_panic_and_bounded_memory() {
        let mut seed = 7_u64;
        let mut random = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as u8
        };
        for head in [&b"\0\0\0\x10ftypisom"[..], b"\x1a\x45\xdf\xa3", b"\x47\x40\0\x10"] {
            for _ in 0..200 {
                let mut file = head.to_vec();
                file.extend((0..3000).map(|_| random()));
                let mut scan = ContainerScan::default();
                for (n, piece) in file.chunks(113).enumerate() {
                    scan.feed(n as u64 * 113, piece);
                }
                assert!(scan.buffered.len() <= MAX_HELD + CHUNK_SIZE);
            }
        }
    }

    #[test]
    fn fragments_larger_than_the_file_are_rejected() {
        let second = (Duration::from_secs(1), DataSize::from_bytes(1000));
        let video = VideoTiming::Fragments(vec![second; 3]);
        assert!(video.profile(DataSize::from_bytes(2999)).is_none());
        assert_eq!(video.profile(DataSize::from_bytes(3100)).unwrap().duration(), Duration::from_secs(3));
        let rate = VideoTiming::Rate(Bitrate::from_mbps(8)).profile(DataSize::from_bytes(10_000_000)).unwrap();
        assert_eq!(rate.duration(), Duration::from_secs(10));
    }
}
