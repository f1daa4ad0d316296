//! Scans MP4 and related formats, which consist of nested boxes (ISO 14496-12 §4.2).
//!
//! Finds a duration in `mvhd` or `mehd`, fragments in `sidx`, and index marks in the tables of tracks: the chunks
//! (`stco`, `co64`) and when each begins (`stsc`, `stts`). Sizes of single samples are not needed. Other boxes are
//! skipped without being held, whatever their size, and so are tables that are too large.

use marline_core::units::{DataSize, Duration};

use super::{ScanStep, VideoTiming, big_endian, ticks_to_duration};

/// Whether a file begins with a box that only complete MP4 files begin with. A segment (`styp`) is no whole video, and
/// its timing does not describe the playlist to which it belongs.
pub(super) fn is_mp4(buffered: &[u8]) -> bool {
    let name = buffered.get(4..8).unwrap_or_default();
    matches!(name, b"ftyp" | b"moov") && big_endian(buffered.get(..4).unwrap_or_default()) >= 8
}

/// State of the scan, which visits one box after the other.
#[derive(Debug, Default)]
pub(super) struct Mp4Scan {
    /// Ticks per second of `mvhd`.
    timescale: u64,
    /// The offset of the first box with media data.
    pub(super) media_start: Option<u64>,
    duration: Option<Duration>,
    track: TrackTables,
    /// The index marks of all video and audio tracks.
    index: Vec<(Duration, u64)>,
    pub(super) found: Option<(VideoTiming, &'static str)>,
}

/// The tables of a track, as far as they were read.
#[derive(Debug, Default)]
struct TrackTables {
    timescale: u64,
    /// It is a video or audio track.
    is_media: bool,
    /// Runs of samples: their number, and the ticks that each lasts.
    sample_durations: Vec<(u64, u64)>,
    /// Runs of chunks: the first chunk, counted from one, and the number of samples in each.
    samples_per_chunk: Vec<(u64, u64)>,
    chunk_offsets: Vec<u64>,
}

impl TrackTables {
    /// The time and the offset of each chunk; empty while a table is missing.
    fn chunk_index(&self) -> Vec<(Duration, u64)> {
        let mut marks = Vec::new();
        let mut times = self.sample_durations.iter().copied();
        let (mut samples_left, mut ticks_per_sample) = times.next().unwrap_or_default();
        let mut runs = self.samples_per_chunk.iter().peekable();
        let (mut ticks, mut samples) = (0_u64, 0_u64);
        if !self.is_media
            || self.timescale == 0
            || self.sample_durations.is_empty()
            || self.samples_per_chunk.is_empty()
        {
            return marks;
        }
        for (chunk, offset) in (1_u64..).zip(&self.chunk_offsets) {
            while let Some((_, samples_per_chunk)) = runs.next_if(|(first, _)| *first <= chunk) {
                samples = *samples_per_chunk;
            }
            marks.extend(ticks_to_duration(ticks, self.timescale).map(|begins| (begins, *offset)));
            let mut chunk_samples_left = samples;
            while chunk_samples_left > 0 {
                let run_len = chunk_samples_left.min(samples_left);
                ticks = ticks.saturating_add(run_len.saturating_mul(ticks_per_sample));
                (chunk_samples_left, samples_left) = (chunk_samples_left - run_len, samples_left - run_len);
                if samples_left == 0 {
                    match times.next() {
                        Some(next) => (samples_left, ticks_per_sample) = next,
                        None => break,
                    }
                }
            }
        }
        marks
    }
}

/// The entries of a table whose numbers have the same width. The table follows a version, flags and a count.
fn read_table<const N: usize>(body: &[u8], width: usize) -> Vec<[u64; N]> {
    let entry = |entry: &[u8]| {
        std::array::from_fn(|at| big_endian(entry.get(at * width..(at + 1) * width).unwrap_or_default()))
    };
    body.get(8..).unwrap_or_default().chunks_exact(N * width).map(entry).collect()
}

impl Mp4Scan {
    /// Parses the box at offset `at`, whose bytes are held at least in part.
    pub(super) fn step(&mut self, at: u64, buffered: &[u8]) -> ScanStep {
        let (Some(size), Some(box_type)) = (buffered.get(..4), buffered.get(4..8)) else {
            return ScanStep::NeedMore;
        };
        let (header_len, size) = match big_endian(size) {
            // Size 0: the box extends to the end of the file.
            0 => {
                self.media_start = self.media_start.or((box_type == b"mdat").then_some(at));
                return ScanStep::Done;
            }
            1 => match buffered.get(8..16) {
                Some(large) => (16, big_endian(large)),
                None => return ScanStep::NeedMore,
            },
            size => (8, size),
        };
        if size < header_len {
            return ScanStep::Done;
        }
        let Some(box_end) = at.checked_add(size) else { return ScanStep::Done };
        if matches!(box_type, b"mdat" | b"moof") {
            self.media_start.get_or_insert(at);
        }
        match box_type {
            // Containers whose contents are scanned box by box.
            b"moov" | b"mvex" | b"mdia" | b"minf" | b"stbl" => ScanStep::SkipTo(at + header_len),
            b"trak" => {
                self.track = TrackTables::default();
                ScanStep::SkipTo(at + header_len)
            }
            b"mvhd" | b"mehd" | b"sidx" | b"mdhd" | b"hdlr" | b"stts" | b"stsc" | b"stco" | b"co64" => {
                let Some(box_len) = usize::try_from(size).ok().filter(|len| *len < super::MAX_HELD) else {
                    return ScanStep::SkipTo(box_end);
                };
                let Some(body) = buffered.get(header_len as usize..box_len) else { return ScanStep::NeedMore };
                match box_type {
                    b"mvhd" => self.read_mvhd(body),
                    b"mehd" => self.read_mehd(body),
                    b"sidx" => self.read_sidx(box_end, body),
                    _ => self.read_track_box(box_type, body),
                }
                ScanStep::SkipTo(box_end)
            }
            // From here on the file consists of fragments, and no box describes the whole.
            b"moof" => ScanStep::Done,
            _ => ScanStep::SkipTo(box_end),
        }
    }

    fn read_mvhd(&mut self, body: &[u8]) {
        let (scale, ticks) = match body.first() {
            Some(1) => (body.get(20..24), body.get(24..32)),
            _ => (body.get(12..16), body.get(16..20)),
        };
        let (Some(scale), Some(ticks)) = (scale, ticks) else { return };
        self.timescale = big_endian(scale);
        // All ones: the duration is unknown (§8.2.2.3).
        if ticks.iter().any(|byte| *byte != 0xff) {
            self.set_duration(big_endian(ticks), "mp4 mvhd");
        }
    }

    fn read_mehd(&mut self, body: &[u8]) {
        let ticks = if body.first() == Some(&1) { body.get(4..12) } else { body.get(4..8) };
        self.set_duration(ticks.map_or(0, big_endian), "mp4 mehd");
    }

    fn read_track_box(&mut self, name: &[u8], body: &[u8]) {
        let track = &mut self.track;
        match name {
            b"mdhd" => {
                let scale = if body.first() == Some(&1) { body.get(20..24) } else { body.get(12..16) };
                track.timescale = scale.map_or(0, big_endian);
            }
            b"hdlr" => track.is_media = matches!(body.get(8..12), Some(b"vide" | b"soun")),
            b"stts" => {
                track.sample_durations =
                    read_table(body, 4).into_iter().map(|[count, each]| (count, each)).collect()
            }
            b"stsc" => {
                track.samples_per_chunk =
                    read_table(body, 4).into_iter().map(|[first, count, _]| (first, count)).collect()
            }
            b"stco" => track.chunk_offsets = read_table(body, 4).into_iter().map(|[offset]| offset).collect(),
            _ => track.chunk_offsets = read_table(body, 8).into_iter().map(|[offset]| offset).collect(),
        }
        let marks = track.chunk_index();
        let Some(duration) = self.duration.filter(|_| !marks.is_empty()) else { return };
        track.chunk_offsets = Vec::new();
        self.index.extend(marks);
        // Data that is needed by a moment counts, whichever track it belongs to.
        self.index.sort_unstable();
        let mut monotonic: Vec<(Duration, u64)> = Vec::with_capacity(self.index.len());
        for (moment, offset) in &self.index {
            let max_offset = monotonic.last().map_or(*offset, |(_, most)| *offset.max(most));
            match monotonic.last_mut().filter(|last| last.0 == *moment) {
                Some(last) => last.1 = max_offset,
                None => monotonic.push((*moment, max_offset)),
            }
        }
        self.found = Some((VideoTiming::Index(duration, monotonic), "mp4 stbl"));
    }

    fn set_duration(&mut self, ticks: u64, source: &'static str) {
        if let Some(duration) = ticks_to_duration(ticks, self.timescale).filter(|duration| !duration.is_zero()) {
            self.duration = Some(duration);
            self.found = Some((VideoTiming::Duration(duration), source));
        }
    }

    /// Reads a fragment index. The first fragment begins at a given distance after the box. References to further
    /// indices carry no sizes, so such an index is ignored.
    fn read_sidx(&mut self, end: u64, body: &[u8]) {
        let is_version_1 = body.first() == Some(&1);
        let (first_offset, entries_start) =
            if is_version_1 { (body.get(20..28), 32) } else { (body.get(16..20), 24) };
        let (Some(scale), Some(first)) = (body.get(8..12).map(big_endian), first_offset.map(big_endian)) else {
            return;
        };
        let Some(first_fragment) = end.checked_add(first) else { return };
        let mut fragments = vec![(Duration::ZERO, DataSize::from_bytes(first_fragment))];
        for entry in body.get(entries_start..).unwrap_or_default().chunks_exact(12) {
            let size = big_endian(entry.get(..4).unwrap_or_default());
            let time = ticks_to_duration(big_endian(entry.get(4..8).unwrap_or_default()), scale);
            let Some(time) = time.filter(|_| size >> 31 == 0) else { return };
            fragments.push((time, DataSize::from_bytes(size)));
        }
        if fragments.len() > 1 {
            self.found = Some((VideoTiming::Fragments(fragments), "mp4 sidx"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::ContainerScan;
    use super::super::tests::{mp4_box, mvhd};
    use super::*;

    fn found(file: &[u8]) -> Option<(VideoTiming, &'static str)> {
        let mut scan = ContainerScan::default();
        scan.feed(0, file);
        scan.video().map(|(video, source)| (video.clone(), source))
    }

    #[test]
    fn a_fragmented_file_has_its_duration_in_mehd_or_sidx() {
        let mehd = mp4_box(b"mehd", &[[0, 0, 0, 0], 1800_u32.to_be_bytes()].concat());
        let moov = mp4_box(b"moov", &[mvhd(0), mp4_box(b"mvex", &mehd)].concat());
        let head = [mp4_box(b"ftyp", b"iso5"), moov].concat();
        assert_eq!(found(&head), Some((VideoTiming::Duration(Duration::from_secs(3)), "mp4 mehd")));

        let mut body = [[0_u32.to_be_bytes(), 1_u32.to_be_bytes(), 1000_u32.to_be_bytes()].concat(), vec![0; 8]];
        body[1].extend(2_u32.to_be_bytes());
        for (size, time) in [(5000_u32, 2000_u32), (7000, 2500)] {
            body[1].extend([size.to_be_bytes(), time.to_be_bytes(), [0x90, 0, 0, 0]].concat());
        }
        let file = [head, mp4_box(b"sidx", &body.concat()), mp4_box(b"moof", &[0; 100])].concat();
        let before = file.len() as u64 - 108;
        let piece = |millis, bytes| (Duration::from_millis(millis), DataSize::from_bytes(bytes));
        let pieces = vec![piece(0, before), piece(2000, 5000), piece(2500, 7000)];
        assert_eq!(found(&file), Some((VideoTiming::Fragments(pieces), "mp4 sidx")));
    }

    #[test]
    fn a_duration_of_64_bits_is_read_and_an_unknown_one_is_ignored() {
        let mut body = vec![1];
        body.extend([0; 19]);
        body.extend(90_000_u32.to_be_bytes());
        body.extend((90_000_u64 * 7200).to_be_bytes());
        body.extend([0; 80]);
        let file = [mp4_box(b"ftyp", b"mp42"), mp4_box(b"moov", &mp4_box(b"mvhd", &body))].concat();
        assert_eq!(found(&file), Some((VideoTiming::Duration(Duration::from_secs(7200)), "mp4 mvhd")));
        let file = [mp4_box(b"ftyp", b"mp42"), mp4_box(b"moov", &mvhd(u32::MAX))].concat();
        assert_eq!(found(&file), None);
    }

    #[test]
    fn the_tables_of_tracks_yield_a_profile_of_variable_rate() {
        let full = |name: &[u8; 4], words: &[u32]| {
            let words = words.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<u8>>();
            mp4_box(name, &[&[0; 4], &words[..]].concat())
        };
        let track = |kind: &[u8; 4], chunks: &[u32]| {
            // Each chunk has two samples of half a second, the last one has one.
            let tables = [
                full(b"stts", &[2, 4, 500, 3, 500]),
                full(b"stsc", &[2, 1, 2, 1, 4, 1, 1]),
                full(b"stco", &[&[chunks.len() as u32], chunks].concat()),
            ];
            let kind = mp4_box(b"hdlr", &[&[0; 8], &kind[..], &[0; 12]].concat());
            let media = [
                full(b"mdhd", &[0, 0, 1000, 4000, 0]),
                kind,
                mp4_box(b"minf", &mp4_box(b"stbl", &tables.concat())),
            ];
            mp4_box(b"trak", &mp4_box(b"mdia", &media.concat()))
        };
        let tracks = [
            track(b"vide", &[1000, 2000, 6000, 8000]),
            track(b"soun", &[1900, 5900, 7900, 9900]),
            track(b"text", &[9990, 9991, 9992, 9993]),
        ];
        let file =
            [mp4_box(b"ftyp", b"isom"), mp4_box(b"moov", &[vec![mvhd(2400)], tracks.to_vec()].concat().concat())]
                .concat();
        let (video, source) = found(&file).unwrap();
        assert_eq!(source, "mp4 stbl");
        let profile = video.profile(DataSize::from_bytes(10_000)).unwrap();
        assert_eq!((profile.duration(), profile.size().bytes()), (Duration::from_secs(4), 10_000));
        // The second second has twice as many bytes as the third.
        let by = |second| profile.bytes_at(Duration::from_secs(second));
        assert_eq!((by(1), by(2), by(3)), (5900, 7900, 9900));
        assert_eq!(video.profile(DataSize::from_bytes(5000)).unwrap().size().bytes(), 5000);
        // If all audio follows all video, the marks are useless.
        let apart = [track(b"vide", &[1000, 2000, 3000, 4000]), track(b"soun", &[9000, 9100, 9200, 9300])];
        let file =
            [mp4_box(b"ftyp", b"isom"), mp4_box(b"moov", &[vec![mvhd(2400)], apart.to_vec()].concat().concat())]
                .concat();
        let even = found(&file).unwrap().0.profile(DataSize::from_bytes(10_000)).unwrap();
        assert_eq!(even.bytes_at(Duration::from_secs(2)), 5000);
    }

    #[test]
    fn a_box_with_a_size_of_64_bits_is_skipped() {
        let mut media = [1_u32.to_be_bytes().to_vec(), b"mdat".to_vec(), 1016_u64.to_be_bytes().to_vec()].concat();
        media.extend([3; 1000]);
        let file = [mp4_box(b"ftyp", b"isom"), media, mp4_box(b"moov", &mvhd(1200))].concat();
        assert_eq!(found(&file), Some((VideoTiming::Duration(Duration::from_secs(2)), "mp4 mvhd")));
    }
}
