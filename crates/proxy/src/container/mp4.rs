//! MP4 and its kin: boxes within boxes (ISO 14496-12 §4.2).
//!
//! In: the bytes from a box on. Out: a duration from `mvhd` or `mehd`, pieces from `sidx`, marks from the tables of
//! tracks: the chunks (`stco`, `co64`) and when each begins (`stsc`, `stts`). Sizes of single samples are not needed.
//! Boxes in which nothing can be found are stepped over, whatever their size, and tables that are too large as well.

use marline_core::units::{DataSize, Duration};

use super::{Next, Video, number, seconds};

/// Whether a file begins with a box that only such files begin with. A segment (`styp`) is no whole video, and what it
/// says of itself is nothing that a player is told by.
pub(super) fn begins(held: &[u8]) -> bool {
    let name = held.get(4..8).unwrap_or_default();
    matches!(name, b"ftyp" | b"moov") && number(held.get(..4).unwrap_or_default()) >= 8
}

/// Where in the boxes the scan is.
#[derive(Debug, Default)]
pub(super) struct Boxes {
    /// Ticks a second of `mvhd`.
    scale: u64,
    /// The first box with pictures or sound.
    pub(super) media: Option<u64>,
    whole: Option<Duration>,
    track: Track,
    /// Of all tracks with pictures or sound.
    marks: Vec<(Duration, u64)>,
    pub(super) found: Option<(Video, &'static str)>,
}

/// The tables of a track, as far as they have come.
#[derive(Debug, Default)]
struct Track {
    scale: u64,
    plays: bool,
    /// How many samples, and how many ticks each lasts.
    times: Vec<(u64, u64)>,
    /// From which chunk on, counted from one, how many samples are in each.
    runs: Vec<(u64, u64)>,
    chunks: Vec<u64>,
}

impl Track {
    /// When each chunk begins and where it lies; empty: a table is missing.
    fn marks(&self) -> Vec<(Duration, u64)> {
        let mut marks = Vec::new();
        let mut times = self.times.iter().copied();
        let (mut left, mut each) = times.next().unwrap_or_default();
        let mut runs = self.runs.iter().peekable();
        let (mut ticks, mut samples) = (0_u64, 0_u64);
        if !self.plays || self.scale == 0 || self.times.is_empty() || self.runs.is_empty() {
            return marks;
        }
        for (chunk, offset) in (1_u64..).zip(&self.chunks) {
            while let Some((_, many)) = runs.next_if(|(first, _)| *first <= chunk) {
                samples = *many;
            }
            marks.extend(seconds(ticks, self.scale).map(|begins| (begins, *offset)));
            let mut of_chunk = samples;
            while of_chunk > 0 {
                let step = of_chunk.min(left);
                ticks = ticks.saturating_add(step.saturating_mul(each));
                (of_chunk, left) = (of_chunk - step, left - step);
                if left == 0 {
                    match times.next() {
                        Some(next) => (left, each) = next,
                        None => break,
                    }
                }
            }
        }
        marks
    }
}

/// The entries of a table of numbers of the same width behind a version, flags and a count.
fn table<const N: usize>(body: &[u8], width: usize) -> Vec<[u64; N]> {
    let entry = |entry: &[u8]| {
        std::array::from_fn(|at| number(entry.get(at * width..(at + 1) * width).unwrap_or_default()))
    };
    body.get(8..).unwrap_or_default().chunks_exact(N * width).map(entry).collect()
}

impl Boxes {
    /// The box at `at`, as far as it is held.
    pub(super) fn step(&mut self, at: u64, held: &[u8]) -> Next {
        let (Some(size), Some(name)) = (held.get(..4), held.get(4..8)) else { return Next::More };
        let (head, size) = match number(size) {
            // To the end of the file.
            0 => {
                self.media = self.media.or((name == b"mdat").then_some(at));
                return Next::Over;
            }
            1 => match held.get(8..16) {
                Some(large) => (16, number(large)),
                None => return Next::More,
            },
            size => (8, size),
        };
        if size < head {
            return Next::Over;
        }
        let Some(after) = at.checked_add(size) else { return Next::Over };
        if matches!(name, b"mdat" | b"moof") {
            self.media.get_or_insert(at);
        }
        match name {
            // Boxes whose contents are looked at one by one.
            b"moov" | b"mvex" | b"mdia" | b"minf" | b"stbl" => Next::At(at + head),
            b"trak" => {
                self.track = Track::default();
                Next::At(at + head)
            }
            b"mvhd" | b"mehd" | b"sidx" | b"mdhd" | b"hdlr" | b"stts" | b"stsc" | b"stco" | b"co64" => {
                let Some(whole) = usize::try_from(size).ok().filter(|whole| *whole < super::MOST) else {
                    return Next::At(after);
                };
                let Some(body) = held.get(head as usize..whole) else { return Next::More };
                match name {
                    b"mvhd" => self.mvhd(body),
                    b"mehd" => self.mehd(body),
                    b"sidx" => self.sidx(after, body),
                    _ => self.of_track(name, body),
                }
                Next::At(after)
            }
            // Fragments follow one another to the end, and no box with the whole is behind them.
            b"moof" => Next::Over,
            _ => Next::At(after),
        }
    }

    fn mvhd(&mut self, body: &[u8]) {
        let (scale, ticks) = match body.first() {
            Some(1) => (body.get(20..24), body.get(24..32)),
            _ => (body.get(12..16), body.get(16..20)),
        };
        let (Some(scale), Some(ticks)) = (scale, ticks) else { return };
        self.scale = number(scale);
        // All ones: nobody knows (§8.2.2.3).
        if ticks.iter().any(|byte| *byte != 0xff) {
            self.duration(number(ticks), "mp4 mvhd");
        }
    }

    fn mehd(&mut self, body: &[u8]) {
        let ticks = if body.first() == Some(&1) { body.get(4..12) } else { body.get(4..8) };
        self.duration(ticks.map_or(0, number), "mp4 mehd");
    }

    fn of_track(&mut self, name: &[u8], body: &[u8]) {
        let track = &mut self.track;
        match name {
            b"mdhd" => {
                let scale = if body.first() == Some(&1) { body.get(20..24) } else { body.get(12..16) };
                track.scale = scale.map_or(0, number);
            }
            b"hdlr" => track.plays = matches!(body.get(8..12), Some(b"vide" | b"soun")),
            b"stts" => track.times = table(body, 4).into_iter().map(|[many, each]| (many, each)).collect(),
            b"stsc" => track.runs = table(body, 4).into_iter().map(|[first, many, _]| (first, many)).collect(),
            b"stco" => track.chunks = table(body, 4).into_iter().map(|[offset]| offset).collect(),
            _ => track.chunks = table(body, 8).into_iter().map(|[offset]| offset).collect(),
        }
        let marks = track.marks();
        let Some(whole) = self.whole.filter(|_| !marks.is_empty()) else { return };
        track.chunks = Vec::new();
        self.marks.extend(marks);
        // What is needed by a moment is needed whichever track it is of.
        self.marks.sort_unstable();
        let mut rising: Vec<(Duration, u64)> = Vec::with_capacity(self.marks.len());
        for (moment, from) in &self.marks {
            let most = rising.last().map_or(*from, |(_, most)| *from.max(most));
            match rising.last_mut().filter(|last| last.0 == *moment) {
                Some(last) => last.1 = most,
                None => rising.push((*moment, most)),
            }
        }
        self.found = Some((Video::Marks(whole, rising), "mp4 stbl"));
    }

    fn duration(&mut self, ticks: u64, source: &'static str) {
        if let Some(duration) = seconds(ticks, self.scale).filter(|duration| !duration.is_zero()) {
            self.whole = Some(duration);
            self.found = Some((Video::Duration(duration), source));
        }
    }

    /// Fragments from the end of the box and a gap on. One that refers to further indices tells nothing of bytes.
    fn sidx(&mut self, end: u64, body: &[u8]) {
        let long = body.first() == Some(&1);
        let (first, entries) = if long { (body.get(20..28), 32) } else { (body.get(16..20), 24) };
        let (Some(scale), Some(first)) = (body.get(8..12).map(number), first.map(number)) else { return };
        let Some(before) = end.checked_add(first) else { return };
        let mut pieces = vec![(Duration::ZERO, DataSize::from_bytes(before))];
        for entry in body.get(entries..).unwrap_or_default().chunks_exact(12) {
            let size = number(entry.get(..4).unwrap_or_default());
            let time = seconds(number(entry.get(4..8).unwrap_or_default()), scale);
            let Some(time) = time.filter(|_| size >> 31 == 0) else { return };
            pieces.push((time, DataSize::from_bytes(size)));
        }
        if pieces.len() > 1 {
            self.found = Some((Video::Pieces(pieces), "mp4 sidx"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Scan;
    use super::super::tests::{boxed, mvhd};
    use super::*;

    fn found(file: &[u8]) -> Option<(Video, &'static str)> {
        let mut scan = Scan::default();
        scan.take(0, file);
        scan.found().map(|(video, source)| (video.clone(), source))
    }

    #[test]
    fn a_fragmented_file_tells_in_its_extension_or_its_index() {
        let mehd = boxed(b"mehd", &[[0, 0, 0, 0], 1800_u32.to_be_bytes()].concat());
        let moov = boxed(b"moov", &[mvhd(0), boxed(b"mvex", &mehd)].concat());
        let head = [boxed(b"ftyp", b"iso5"), moov].concat();
        assert_eq!(found(&head), Some((Video::Duration(Duration::from_secs(3)), "mp4 mehd")));

        let mut body = [[0_u32.to_be_bytes(), 1_u32.to_be_bytes(), 1000_u32.to_be_bytes()].concat(), vec![0; 8]];
        body[1].extend(2_u32.to_be_bytes());
        for (size, time) in [(5000_u32, 2000_u32), (7000, 2500)] {
            body[1].extend([size.to_be_bytes(), time.to_be_bytes(), [0x90, 0, 0, 0]].concat());
        }
        let file = [head, boxed(b"sidx", &body.concat()), boxed(b"moof", &[0; 100])].concat();
        let before = file.len() as u64 - 108;
        let piece = |millis, bytes| (Duration::from_millis(millis), DataSize::from_bytes(bytes));
        let pieces = vec![piece(0, before), piece(2000, 5000), piece(2500, 7000)];
        assert_eq!(found(&file), Some((Video::Pieces(pieces), "mp4 sidx")));
    }

    #[test]
    fn a_duration_of_64_bits_is_read_and_one_that_nobody_knows_is_not() {
        let mut body = vec![1];
        body.extend([0; 19]);
        body.extend(90_000_u32.to_be_bytes());
        body.extend((90_000_u64 * 7200).to_be_bytes());
        body.extend([0; 80]);
        let file = [boxed(b"ftyp", b"mp42"), boxed(b"moov", &boxed(b"mvhd", &body))].concat();
        assert_eq!(found(&file), Some((Video::Duration(Duration::from_secs(7200)), "mp4 mvhd")));
        let file = [boxed(b"ftyp", b"mp42"), boxed(b"moov", &mvhd(u32::MAX))].concat();
        assert_eq!(found(&file), None);
    }

    #[test]
    fn the_tables_of_tracks_say_where_the_thick_parts_lie() {
        let full = |name: &[u8; 4], words: &[u32]| {
            let words = words.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<u8>>();
            boxed(name, &[&[0; 4], &words[..]].concat())
        };
        let track = |kind: &[u8; 4], chunks: &[u32]| {
            // Two samples of half a second in each chunk, one in the last.
            let tables = [
                full(b"stts", &[2, 4, 500, 3, 500]),
                full(b"stsc", &[2, 1, 2, 1, 4, 1, 1]),
                full(b"stco", &[&[chunks.len() as u32], chunks].concat()),
            ];
            let kind = boxed(b"hdlr", &[&[0; 8], &kind[..], &[0; 12]].concat());
            let media =
                [full(b"mdhd", &[0, 0, 1000, 4000, 0]), kind, boxed(b"minf", &boxed(b"stbl", &tables.concat()))];
            boxed(b"trak", &boxed(b"mdia", &media.concat()))
        };
        let tracks = [
            track(b"vide", &[1000, 2000, 6000, 8000]),
            track(b"soun", &[1900, 5900, 7900, 9900]),
            track(b"text", &[9990, 9991, 9992, 9993]),
        ];
        let file =
            [boxed(b"ftyp", b"isom"), boxed(b"moov", &[vec![mvhd(2400)], tracks.to_vec()].concat().concat())]
                .concat();
        let (video, source) = found(&file).unwrap();
        assert_eq!(source, "mp4 stbl");
        let profile = video.profile(DataSize::from_bytes(10_000)).unwrap();
        assert_eq!((profile.duration(), profile.size().bytes()), (Duration::from_secs(4), 10_000));
        // The second second is twice as thick as the third.
        let by = |second| profile.bytes_at(Duration::from_secs(second));
        assert_eq!((by(1), by(2), by(3)), (5900, 7900, 9900));
        assert_eq!(video.profile(DataSize::from_bytes(5000)).unwrap().size().bytes(), 5000);
        // All sound behind all pictures says nothing.
        let apart = [track(b"vide", &[1000, 2000, 3000, 4000]), track(b"soun", &[9000, 9100, 9200, 9300])];
        let file = [boxed(b"ftyp", b"isom"), boxed(b"moov", &[vec![mvhd(2400)], apart.to_vec()].concat().concat())]
            .concat();
        let even = found(&file).unwrap().0.profile(DataSize::from_bytes(10_000)).unwrap();
        assert_eq!(even.bytes_at(Duration::from_secs(2)), 5000);
    }

    #[test]
    fn a_box_of_64_bits_is_stepped_over() {
        let mut media = [1_u32.to_be_bytes().to_vec(), b"mdat".to_vec(), 1016_u64.to_be_bytes().to_vec()].concat();
        media.extend([3; 1000]);
        let file = [boxed(b"ftyp", b"isom"), media, boxed(b"moov", &mvhd(1200))].concat();
        assert_eq!(found(&file), Some((Video::Duration(Duration::from_secs(2)), "mp4 mvhd")));
    }
}
