//! Scans Matroska and WebM, which consist of nested elements (RFC 8794 §5 and §6; RFC 9559 §5.1.2).
//!
//! Finds the duration in `Info` and index marks in `Cues`. `Info` precedes the first cluster; a recording that was
//! never finished has no duration. `Cues` are usually at the end of the file, where not every player reads them;
//! `SeekHead` contains their position.

use marline_core::units::Duration;

use super::{ScanStep, VideoTiming, big_endian};

/// Whether a file begins with an EBML header.
pub(super) fn is_matroska(buffered: &[u8]) -> bool {
    buffered.starts_with(&[0x1a, 0x45, 0xdf, 0xa3])
}

/// State of the scan, which visits one element after the other.
#[derive(Debug)]
pub(super) struct MatroskaScan {
    /// Nanoseconds per tick; by default a million.
    timestamp_scale: u64,
    duration_ticks: Option<f64>,
    /// The offset of the segment's contents, to which positions are relative.
    segment_start: u64,
    /// The `Seek` entry that is being read: element ID and position.
    current_seek: (u64, u64),
    /// The offset of `Cues`, from `SeekHead`.
    cues_start: Option<u64>,
    /// The end of `Cues`, while they are being read.
    cues_end: Option<u64>,
    /// Index marks so far: time, and file offset of the cluster.
    index: Vec<(Duration, u64)>,
    /// The time of the cue that is being read.
    cue_time: u64,
    /// The offset of the first cluster.
    pub(super) media_start: Option<u64>,
    pub(super) found: Option<(VideoTiming, &'static str)>,
}

impl Default for MatroskaScan {
    fn default() -> Self {
        Self {
            timestamp_scale: 1_000_000,
            duration_ticks: None,
            segment_start: 0,
            current_seek: (0, 0),
            cues_start: None,
            cues_end: None,
            index: Vec::new(),
            cue_time: 0,
            media_start: None,
            found: None,
        }
    }
}

impl MatroskaScan {
    /// Parses the element at offset `at`, whose bytes are held at least in part.
    pub(super) fn step(&mut self, at: u64, buffered: &[u8]) -> ScanStep {
        let next = self.read_element(at, buffered);
        let finished_cues = self.cues_end.filter(|end| matches!(next, ScanStep::SkipTo(next) if next >= *end));
        if finished_cues.is_some() {
            self.cues_end = None;
            self.update_found();
        }
        next
    }

    fn read_element(&mut self, at: u64, buffered: &[u8]) -> ScanStep {
        let Some(id_len) = vint_len(buffered) else {
            return if buffered.is_empty() { ScanStep::NeedMore } else { ScanStep::Done };
        };
        let (Some(id), Some(remaining)) = (buffered.get(..id_len), buffered.get(id_len..)) else {
            return ScanStep::NeedMore;
        };
        let Some(size_len) = vint_len(remaining) else {
            return if remaining.is_empty() { ScanStep::NeedMore } else { ScanStep::Done };
        };
        let Some(size) = remaining.get(..size_len) else { return ScanStep::NeedMore };
        let is_size_unknown = is_unknown_size(size);
        let size = big_endian(size) & ((1_u64 << (7 * size_len)) - 1);
        let body_start = (id_len + size_len) as u64;
        match big_endian(id) {
            SEGMENT => {
                self.segment_start = at + body_start;
                ScanStep::SkipTo(at + body_start)
            }
            CUES => {
                self.cues_end = at.checked_add(body_start + size);
                ScanStep::SkipTo(at + body_start)
            }
            INFO | SEEK_HEAD | SEEK | CUE_POINT | CUE_TRACK_POSITIONS => ScanStep::SkipTo(at + body_start),
            CLUSTER => {
                self.media_start.get_or_insert(at);
                // Only clusters lie between here and the cues, so they are skipped.
                self.cues_start.take().filter(|cues| *cues > at).map_or(ScanStep::Done, ScanStep::SkipTo)
            }
            _ if is_size_unknown => ScanStep::Done,
            id @ (TIMESTAMP_SCALE | DURATION | SEEK_ID | SEEK_POSITION | CUE_TIME | CUE_CLUSTER_POSITION)
                if size <= 8 =>
            {
                let start = body_start as usize;
                let Some(value) = buffered.get(start..start + size as usize) else { return ScanStep::NeedMore };
                match (id, value.len()) {
                    (TIMESTAMP_SCALE, _) => self.timestamp_scale = big_endian(value),
                    (SEEK_ID, _) => self.current_seek.0 = big_endian(value),
                    (SEEK_POSITION, _) => self.current_seek.1 = big_endian(value),
                    (CUE_TIME, _) => self.cue_time = big_endian(value),
                    (CUE_CLUSTER_POSITION, _) => self.add_cue(big_endian(value)),
                    (_, 4) => self.duration_ticks = Some(f64::from(f32::from_bits(big_endian(value) as u32))),
                    (_, 8) => self.duration_ticks = Some(f64::from_bits(big_endian(value))),
                    _ => {}
                }
                if id == SEEK_POSITION && self.current_seek.0 == CUES {
                    self.cues_start = self.segment_start.checked_add(self.current_seek.1);
                }
                if matches!(id, TIMESTAMP_SCALE | DURATION) {
                    self.update_found();
                }
                ScanStep::SkipTo(at + body_start + size)
            }
            _ => at.checked_add(body_start + size).map_or(ScanStep::Done, ScanStep::SkipTo),
        }
    }

    /// Adds an index mark at this position.
    fn add_cue(&mut self, position: u64) {
        let moment = u128::from(self.cue_time) * u128::from(self.timestamp_scale);
        let moment = u64::try_from(moment).map(Duration::from_nanos);
        let (Ok(moment), Some(offset)) = (moment, self.segment_start.checked_add(position)) else { return };
        // Each track has cues of its own. Only increasing ones are kept.
        if self.index.len() < MAX_CUES && self.index.last().is_none_or(|last| last.0 < moment && last.1 < offset) {
            self.index.push((moment, offset));
        }
    }

    /// Publishes the timing. The scale may follow the duration in the file, so both trigger an update.
    fn update_found(&mut self) {
        let seconds = self.duration_ticks.unwrap_or_default() * self.timestamp_scale as f64 / 1e9;
        if let Ok(duration) = Duration::try_from_secs_f64(seconds)
            && !duration.is_zero()
        {
            self.found = Some(match self.index.len() {
                0 | 1 => (VideoTiming::Duration(duration), "matroska Info"),
                _ => (VideoTiming::Index(duration, self.index.clone()), "matroska Cues"),
            });
        }
    }
}

/// The length of a variable-size integer, from its first byte.
fn vint_len(bytes: &[u8]) -> Option<usize> {
    let zeros = bytes.first()?.leading_zeros() as usize;
    (zeros < 8).then_some(zeros + 1)
}

/// All ones: the size is unknown (RFC 8794 §6.2).
fn is_unknown_size(size: &[u8]) -> bool {
    let ones = u64::MAX >> (64 - 7 * size.len());
    big_endian(size) & ones == ones
}

const SEGMENT: u64 = 0x1853_8067;
const INFO: u64 = 0x1549_a966;
const TIMESTAMP_SCALE: u64 = 0x002a_d7b1;
const DURATION: u64 = 0x4489;
const SEEK_HEAD: u64 = 0x114d_9b74;
const SEEK: u64 = 0x4dbb;
const SEEK_ID: u64 = 0x53ab;
const SEEK_POSITION: u64 = 0x53ac;
const CUES: u64 = 0x1c53_bb6b;
const CUE_POINT: u64 = 0xbb;
const CUE_TIME: u64 = 0xb3;
const CUE_TRACK_POSITIONS: u64 = 0xb7;
const CUE_CLUSTER_POSITION: u64 = 0xf1;
/// Our choice: a day with a cue every two seconds.
const MAX_CUES: usize = 50_000;
const CLUSTER: u64 = 0x1f43_b675;

#[cfg(test)]
mod tests {
    use marline_core::units::DataSize;

    use super::super::ContainerScan;
    use super::*;

    /// With a size of eight bytes, as written by muxers that fill it in later.
    fn element(id: &[u8], body: &[u8]) -> Vec<u8> {
        let mut size = (body.len() as u64).to_be_bytes();
        size[0] = 1;
        [id, &size, body].concat()
    }

    fn file(info: &[u8], unknown: bool) -> Vec<u8> {
        let head = element(&[0x1a, 0x45, 0xdf, 0xa3], &[0x42, 0x86, 0x81, 1]);
        let inside = [element(&[0xec], &[0; 300]), element(&[0x15, 0x49, 0xa9, 0x66], info)].concat();
        let mut segment = element(&[0x18, 0x53, 0x80, 0x67], &inside);
        if unknown {
            segment[4..12].copy_from_slice(&[1, 255, 255, 255, 255, 255, 255, 255]);
        }
        [head, segment, vec![0x1f, 0x43, 0xb6, 0x75, 0x81, 0]].concat()
    }

    fn found(file: &[u8]) -> Option<VideoTiming> {
        let mut scan = ContainerScan::default();
        scan.feed(0, file);
        scan.video().map(|(video, _)| video.clone())
    }

    #[test]
    fn the_duration_is_scaled_in_either_order_of_elements() {
        let scale = vec![0x2a, 0xd7, 0xb1, 0x83, 0x0f, 0x42, 0x40];
        let ticks = [vec![0x44, 0x89, 0x88], 12_500.0_f64.to_bits().to_be_bytes().to_vec()].concat();
        let twelve = Some(VideoTiming::Duration(Duration::from_millis(12_500)));
        for info in [[scale.clone(), ticks.clone()].concat(), [ticks.clone(), scale].concat(), ticks] {
            assert_eq!(found(&file(&info, false)), twelve);
            assert_eq!(found(&file(&info, true)), twelve);
        }
        let short = [vec![0x44, 0x89, 0x84], 3000.0_f32.to_bits().to_be_bytes().to_vec()].concat();
        assert_eq!(found(&file(&short, false)), Some(VideoTiming::Duration(Duration::from_secs(3))));
        assert_eq!(found(&file(&[], false)), None);
    }
    #[test]
    fn cues_at_the_end_yield_a_profile_once_the_player_reads_them() {
        let ticks = [vec![0x44, 0x89, 0x88], 4000.0_f64.to_bits().to_be_bytes().to_vec()].concat();
        let cue = |moment: u16, offset: u16| {
            let position =
                element(&[0xb7], &[vec![0xf7, 0x81, 1, 0xf1, 0x82], offset.to_be_bytes().to_vec()].concat());
            element(&[0xbb], &[vec![0xb3, 0x82], moment.to_be_bytes().to_vec(), position].concat())
        };
        let cues = [cue(0, 300), cue(1000, 7000), cue(2000, 8000), cue(3000, 9000)].concat();
        let cues = element(&[0x1c, 0x53, 0xbb, 0x6b], &cues);
        let seek = |position: u32| {
            let id = [vec![0x53, 0xab, 0x84], vec![0x1c, 0x53, 0xbb, 0x6b], vec![0x53, 0xac, 0x84]].concat();
            element(
                &[0x11, 0x4d, 0x9b, 0x74],
                &element(&[0x4d, 0xbb], &[id, position.to_be_bytes().to_vec()].concat()),
            )
        };
        let info = element(&[0x15, 0x49, 0xa9, 0x66], &ticks);
        let before = seek(0).len() + info.len();
        let cluster = element(&[0x1f, 0x43, 0xb6, 0x75], &vec![7; 10_000 - before]);
        let cues_position = u32::try_from(before + cluster.len()).unwrap();
        let inside = [seek(cues_position), info, cluster, cues].concat();
        let segment = element(&[0x18, 0x53, 0x80, 0x67], &inside);
        let file = [element(&[0x1a, 0x45, 0xdf, 0xa3], &[0x42, 0x86, 0x81, 1]), segment].concat();
        let mut scan = ContainerScan::default();
        scan.feed(0, &file[..5000]);
        assert_eq!(scan.video().unwrap().1, "matroska Info");
        let end = file.len() - 400;
        assert!(scan.feed(end as u64, &file[end..]));
        let (video, source) = scan.video().unwrap();
        let profile = video.profile(DataSize::from_bytes(file.len() as u64)).unwrap();
        let start = file.len() as u64 - inside.len() as u64;
        assert_eq!((source, profile.duration()), ("matroska Cues", Duration::from_secs(4)));
        assert_eq!(profile.bytes_at(Duration::from_secs(2)), start + 8000);
    }
}
