//! MP4 and its kin: boxes within boxes (ISO 14496-12 §4.2).
//!
//! In: the bytes from a box on. Out: a duration from `mvhd` or `mehd`, pieces from `sidx`. Boxes in which nothing can be
//! found are stepped over, whatever their size.

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
    pub(super) found: Option<(Video, &'static str)>,
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
            b"moov" | b"mvex" => Next::At(at + head),
            b"mvhd" | b"mehd" | b"sidx" => {
                let Ok(whole) = usize::try_from(size) else { return Next::Over };
                let Some(body) = held.get(head as usize..whole) else { return Next::More };
                match name {
                    b"mvhd" => self.mvhd(body),
                    b"mehd" => self.mehd(body),
                    _ => self.sidx(after, body),
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

    fn duration(&mut self, ticks: u64, source: &'static str) {
        if let Some(duration) = seconds(ticks, self.scale).filter(|duration| !duration.is_zero()) {
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
    fn a_box_of_64_bits_is_stepped_over() {
        let mut media = [1_u32.to_be_bytes().to_vec(), b"mdat".to_vec(), 1016_u64.to_be_bytes().to_vec()].concat();
        media.extend([3; 1000]);
        let file = [boxed(b"ftyp", b"isom"), media, boxed(b"moov", &mvhd(1200))].concat();
        assert_eq!(found(&file), Some((Video::Duration(Duration::from_secs(2)), "mp4 mvhd")));
    }
}
