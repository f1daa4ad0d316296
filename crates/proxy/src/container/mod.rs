//! How long a video is, from its container, while its bytes pass by.
//!
//! In: pieces of the file with their offsets, in any order, as players ask for them. Out: a [`Video`] as soon as the
//! container tells.
//!
//! 1. Nothing is asked for: the scan looks at what the player reads anyway. It wants one offset at a time and takes it
//!    whenever it comes by; a player reads a head at the end of the file before it plays, so the scan sees it, too.
//! 2. MP4: `mvhd` has the duration (ISO 14496-12 §8.2.2), of fragmented ones `mehd`; `sidx` has bytes and time of each
//!    fragment (§8.16.3), `stbl` where each chunk lies and when it is played (§8.5). Matroska and WebM: `Duration` of
//!    `Info` (RFC 9559 §5.1.2), and the clusters of `Cues` (§5.1.5) if the player reads them. MPEG-TS: clock references
//!    over bytes (ISO 13818-1 §2.4.3.4).
//! 3. No figure is believed that makes no sense: a duration of zero or of more than a year is none.
//! 4. At most [`MOST`] bytes are held, and never any of the video itself.
//!
//! 5. The head of any other file is kept, for somebody who knows more containers ([`Scan::strange`]).
//!
//! A crate was not used: those that read MP4 or Matroska want a whole file that can be sought in, and this needs a
//! hundredth of them.

mod matroska;
mod mp4;
mod ts;

use marline_core::playback::{MediaProfile, ProfileError};
use marline_core::units::{Bitrate, DataSize, Duration};

/// What a container tells of its video.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Video {
    /// How long it is.
    Duration(Duration),
    /// How long it is piece by piece, each with its bytes, from the first byte of the file.
    Pieces(Vec<(Duration, DataSize)>),
    /// How long it is, and from which byte on it plays what comes at some moments, the moments rising.
    Marks(Duration, Vec<(Duration, u64)>),
    /// How many bytes make a second.
    Rate(Bitrate),
}

impl Video {
    /// The decoding curve of a file of `total` bytes; none: it would make no sense.
    pub(super) fn profile(&self, total: DataSize) -> Option<MediaProfile> {
        let profile = match self {
            Self::Duration(duration) => MediaProfile::variable([(*duration, total)]),
            Self::Marks(duration, marks) => marked(*duration, marks, total.bytes()),
            Self::Rate(rate) => MediaProfile::variable([(total / *rate, total)]),
            Self::Pieces(pieces) => {
                let bytes: DataSize = pieces.iter().map(|(_, size)| *size).sum();
                if bytes > total {
                    return None;
                }
                MediaProfile::variable(pieces.iter().copied().chain([(Duration::ZERO, total - bytes)]))
            }
        };
        profile.ok().filter(|profile| profile.duration() <= LONGEST)
    }
}

/// A look at one file.
#[derive(Debug)]
pub(super) struct Scan {
    /// Where `held` begins.
    at: u64,
    held: Vec<u8>,
    step: Step,
    found: Option<(Video, &'static str)>,
    /// Where the first picture or sound begins.
    media: Option<u64>,
    /// How a file begins that is in no container of ours.
    strange: Option<Vec<u8>>,
}

/// Which container it is.
#[derive(Debug)]
enum Step {
    Unknown,
    Mp4(mp4::Boxes),
    Matroska(matroska::Elements),
    Ts(ts::Clock),
    Strange,
    /// There is nothing more to learn.
    Over,
}

/// What a step makes of the bytes held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Next {
    /// More of them are needed.
    More,
    /// Go on at this offset.
    At(u64),
    /// Nothing more can be learnt.
    Over,
}

impl Default for Scan {
    fn default() -> Self {
        Self { at: 0, held: Vec::new(), step: Step::Unknown, found: None, media: None, strange: None }
    }
}

impl Scan {
    /// Some bytes of the file. Tells whether something was learnt.
    pub(super) fn take(&mut self, at: u64, bytes: &[u8]) -> bool {
        let mut learnt = false;
        while !self.is_over() {
            let want = self.at + self.held.len() as u64;
            let skip = want.checked_sub(at).and_then(|skip| usize::try_from(skip).ok());
            let new = skip.and_then(|skip| bytes.get(skip..)).unwrap_or_default();
            if new.is_empty() {
                break;
            }
            // A piece at a time: most of what passes by is skipped, not held.
            self.held.extend_from_slice(new.get(..PIECE).unwrap_or(new));
            learnt |= self.work();
        }
        learnt
    }

    /// What the file plays, and where that is written.
    pub(super) fn found(&self) -> Option<(&Video, &'static str)> {
        self.found.as_ref().map(|(video, source)| (video, *source))
    }

    /// Where its first picture or sound begins: before that no player has anything to show.
    pub(super) fn media(&self) -> Option<u64> {
        self.media
    }

    /// The head of a file that is in no container of ours, once.
    pub(super) fn strange(&mut self) -> Option<Vec<u8>> {
        self.strange.take()
    }

    /// Somebody else knows what it plays.
    pub(super) fn told(&mut self, video: Video, source: &'static str) {
        if makes_sense(&video) {
            self.found = Some((video, source));
        }
    }

    /// Whether nothing more will be learnt.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.step, Step::Over)
    }

    fn work(&mut self) -> bool {
        let mut learnt = false;
        loop {
            let next = match &mut self.step {
                Step::Over => return learnt,
                Step::Unknown => match guess(&self.held) {
                    Some(step) => {
                        self.step = step;
                        continue;
                    }
                    None => Next::More,
                },
                Step::Mp4(boxes) => boxes.step(self.at, &self.held),
                Step::Matroska(elements) => elements.step(self.at, &self.held),
                Step::Ts(clock) => clock.step(self.at, &self.held),
                Step::Strange if self.held.len() < HEAD => Next::More,
                Step::Strange => {
                    self.strange = Some(std::mem::take(&mut self.held));
                    Next::Over
                }
            };
            let found = match &mut self.step {
                Step::Mp4(boxes) => boxes.found.take(),
                Step::Matroska(elements) => elements.found.take(),
                Step::Ts(clock) => clock.found.take(),
                Step::Unknown | Step::Strange | Step::Over => None,
            };
            let media = match &self.step {
                Step::Mp4(boxes) => boxes.media,
                Step::Matroska(elements) => elements.media,
                _ => None,
            };
            self.media = self.media.or(media);
            if let Some(found) = found.filter(|(video, _)| makes_sense(video)) {
                self.found = Some(found);
                learnt = true;
            }
            match next {
                Next::At(at) if at > self.at => {
                    let gone = usize::try_from(at - self.at).unwrap_or(usize::MAX).min(self.held.len());
                    self.held.drain(..gone);
                    self.at = at;
                    if self.held.is_empty() {
                        return learnt;
                    }
                }
                Next::More if self.held.len() < MOST => return learnt,
                _ => {
                    self.step = Step::Over;
                    self.held = Vec::new();
                    return learnt;
                }
            }
        }
    }
}

/// Everything before a mark is needed by its moment. Where one kind of bytes lies behind all others the player reads at
/// two places at once, and marks say nothing of its pace.
fn marked(duration: Duration, marks: &[(Duration, u64)], total: u64) -> Result<MediaProfile, ProfileError> {
    let ahead = |(moment, from): &(Duration, u64)| {
        *from as f64 / total.max(1) as f64 - moment.as_secs_f64() / duration.as_secs_f64()
    };
    let (mut time, mut bytes) = (Duration::ZERO, 0);
    let mut pieces = Vec::new();
    let apart = marks.iter().any(|mark| mark.1 < total && ahead(mark) > FAR);
    let marks = if apart { &[] } else { marks };
    for (moment, from) in marks.iter().filter(|(moment, from)| *moment < duration && *from < total) {
        if *moment >= time + LEAST_PIECE && *from > bytes {
            pieces.push((*moment - time, DataSize::from_bytes(from - bytes)));
            (time, bytes) = (*moment, *from);
        }
    }
    pieces.push((duration - time, DataSize::from_bytes(total - bytes)));
    MediaProfile::variable(pieces)
}

fn guess(held: &[u8]) -> Option<Step> {
    if held.len() < 8 {
        return None;
    }
    if mp4::begins(held) {
        return Some(Step::Mp4(mp4::Boxes::default()));
    }
    if matroska::begins(held) {
        return Some(Step::Matroska(matroska::Elements::default()));
    }
    match ts::begins(held) {
        Some(true) => Some(Step::Ts(ts::Clock::default())),
        Some(false) => Some(Step::Strange),
        None => None,
    }
}

fn makes_sense(video: &Video) -> bool {
    let duration = match video {
        Video::Duration(duration) | Video::Marks(duration, _) => *duration,
        Video::Pieces(pieces) => pieces.iter().fold(Duration::ZERO, |sum, (time, _)| sum.saturating_add(*time)),
        Video::Rate(rate) => return !rate.is_zero(),
    };
    !duration.is_zero() && duration <= LONGEST
}

/// `ticks` of a clock that ticks `scale` times a second.
fn seconds(ticks: u64, scale: u64) -> Option<Duration> {
    let nanos = u128::from(ticks) * 1_000_000_000 / u128::from(scale.max(1));
    (scale > 0).then(|| u64::try_from(nanos).ok().map(Duration::from_nanos)).flatten()
}

/// Eight bytes at most, the most significant first.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

/// Nothing lasts longer than a year.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);
/// No part of a video that plays along has so much of the bytes so much too early.
const FAR: f64 = 0.5;
/// Marks closer than that are one.
const LEAST_PIECE: Duration = Duration::from_millis(500);
/// A `sidx` of a day of two-second fragments is half of it.
const MOST: usize = 1 << 20;
const PIECE: usize = 4096;
/// Of a strange file. chosen: the heads of AVI, FLV, ASF, Ogg, FLAC and MP3 with a picture in it are shorter.
const HEAD: usize = 256 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn boxed(name: &[u8; 4], body: &[u8]) -> Vec<u8> {
        let mut out = (body.len() as u32 + 8).to_be_bytes().to_vec();
        out.extend_from_slice(name);
        out.extend_from_slice(body);
        out
    }

    /// `mvhd` of version 0: 600 ticks a second.
    pub(super) fn mvhd(ticks: u32) -> Vec<u8> {
        let mut body = vec![0; 12];
        body.extend(600_u32.to_be_bytes());
        body.extend(ticks.to_be_bytes());
        body.extend([0; 80]);
        boxed(b"mvhd", &body)
    }

    #[test]
    fn pieces_of_any_size_tell_the_same() {
        let moov = boxed(b"moov", &[mvhd(6000), boxed(b"trak", &[1; 9000])].concat());
        let file = [boxed(b"ftyp", b"isomiso2"), moov, boxed(b"mdat", &[2; 50_000])].concat();
        for size in [1, 7, 100, 4096, 100_000] {
            let mut scan = Scan::default();
            let mut at = 0;
            for piece in file.chunks(size) {
                scan.take(at, piece);
                at += piece.len() as u64;
            }
            assert_eq!(scan.found(), Some((&Video::Duration(Duration::from_secs(10)), "mp4 mvhd")), "{size}");
            assert!(scan.held.len() < 2 * PIECE);
        }
    }

    #[test]
    fn a_head_at_the_end_is_seen_when_the_player_reads_it() {
        let media = boxed(b"mdat", &[2; 50_000]);
        let file = [boxed(b"ftyp", b"isomiso2"), media, boxed(b"moov", &mvhd(600))].concat();
        let mut scan = Scan::default();
        assert!(!scan.take(0, &file[..20_000]));
        assert!(!scan.take(30_000, &file[30_000..50_000]));
        let end = file.len() - 130;
        assert!(scan.take(end as u64, &file[end..]), "{scan:?}");
        assert_eq!(scan.found(), Some((&Video::Duration(Duration::from_secs(1)), "mp4 mvhd")));
    }

    #[test]
    fn files_that_ffmpeg_makes_are_understood() {
        let folder = tempfile::tempdir().unwrap();
        for (name, words) in [
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
                .args(words.split(' ').filter(|word| !word.is_empty()))
                .arg(&file)
                .status();
            if !made.is_ok_and(|status| status.success()) {
                eprintln!("skipped: ffmpeg is not installed, or cannot make {name}");
                continue;
            }
            let bytes = std::fs::read(&file).unwrap();
            let mut scan = Scan::default();
            for (n, piece) in bytes.chunks(10_000).enumerate() {
                scan.take(n as u64 * 10_000, piece);
            }
            let total = DataSize::from_bytes(bytes.len() as u64);
            let profile = scan.found().and_then(|(video, _)| video.profile(total)).expect(name);
            let seconds = profile.duration().as_secs_f64();
            assert!((38.5..41.5).contains(&seconds), "{name}: {seconds} by {:?}", scan.found());
        }
    }

    #[test]
    fn the_head_of_what_is_no_container_of_ours_is_for_others() {
        for text in [&b"<!doctype html><html>"[..], b"#EXTM3U\n#EXT-X", b"\x89PNG\r\n\x1a\n12345678", &[0; 4000]] {
            let mut scan = Scan::default();
            scan.take(0, text);
            scan.take(text.len() as u64, &[0x20; 5000]);
            assert!(!scan.is_over() && scan.found().is_none() && scan.strange().is_none(), "{text:?}");
            scan.take(text.len() as u64 + 5000, &[0x20; HEAD]);
            assert!(scan.is_over() && scan.found().is_none(), "{text:?}");
            let head = scan.strange().unwrap();
            assert!(head.len() >= HEAD && head.starts_with(text), "{text:?}");
            assert_eq!(scan.strange(), None);
        }
    }

    #[test]
    fn nothing_makes_it_panic_or_hold_much() {
        let mut seed = 7_u64;
        let mut random = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as u8
        };
        for head in [&b"\0\0\0\x10ftypisom"[..], b"\x1a\x45\xdf\xa3", b"\x47\x40\0\x10"] {
            for _ in 0..200 {
                let mut file = head.to_vec();
                file.extend((0..3000).map(|_| random()));
                let mut scan = Scan::default();
                for (n, piece) in file.chunks(113).enumerate() {
                    scan.take(n as u64 * 113, piece);
                }
                assert!(scan.held.len() <= MOST + PIECE);
            }
        }
    }

    #[test]
    fn pieces_that_are_more_than_the_file_are_not_believed() {
        let second = (Duration::from_secs(1), DataSize::from_bytes(1000));
        let video = Video::Pieces(vec![second; 3]);
        assert!(video.profile(DataSize::from_bytes(2999)).is_none());
        assert_eq!(video.profile(DataSize::from_bytes(3100)).unwrap().duration(), Duration::from_secs(3));
        let rate = Video::Rate(Bitrate::from_mbps(8)).profile(DataSize::from_bytes(10_000_000)).unwrap();
        assert_eq!(rate.duration(), Duration::from_secs(10));
    }
}
