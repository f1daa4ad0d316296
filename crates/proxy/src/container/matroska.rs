//! Matroska and WebM: elements within elements (RFC 8794 §5 and §6; RFC 9559 §5.1.2).
//!
//! In: the bytes from an element on. Out: the duration that `Info` has, and the marks of `Cues`. `Info` stands before the
//! first cluster; a stream that was never finished has none. `Cues` mostly stand at the end, where a player reads them or
//! not; `SeekHead` says where.

use marline_core::units::Duration;

use super::{Next, Video, number};

/// Whether a file begins with the head of an EBML document.
pub(super) fn begins(held: &[u8]) -> bool {
    held.starts_with(&[0x1a, 0x45, 0xdf, 0xa3])
}

/// Where in the elements the scan is.
#[derive(Debug)]
pub(super) struct Elements {
    /// Nanoseconds of a tick; a million if the file does not say.
    scale: u64,
    ticks: Option<f64>,
    /// Where the contents of the segment begin: positions count from there.
    segment: u64,
    /// The seek that is being read: which element, and where.
    seek: (u64, u64),
    cues: Option<u64>,
    cues_end: Option<u64>,
    marks: Vec<(Duration, u64)>,
    /// The moment of the cue that is being read.
    cue: u64,
    /// The first cluster.
    pub(super) media: Option<u64>,
    pub(super) found: Option<(Video, &'static str)>,
}

impl Default for Elements {
    fn default() -> Self {
        Self {
            scale: 1_000_000,
            ticks: None,
            segment: 0,
            seek: (0, 0),
            cues: None,
            cues_end: None,
            marks: Vec::new(),
            cue: 0,
            media: None,
            found: None,
        }
    }
}

impl Elements {
    /// The element at `at`, as far as it is held.
    pub(super) fn step(&mut self, at: u64, held: &[u8]) -> Next {
        let next = self.element(at, held);
        let end = self.cues_end.filter(|end| matches!(next, Next::At(next) if next >= *end));
        if end.is_some() {
            self.cues_end = None;
            self.tell();
        }
        next
    }

    fn element(&mut self, at: u64, held: &[u8]) -> Next {
        let Some(name) = width(held) else { return if held.is_empty() { Next::More } else { Next::Over } };
        let (Some(id), Some(rest)) = (held.get(..name), held.get(name..)) else { return Next::More };
        let Some(len) = width(rest) else { return if rest.is_empty() { Next::More } else { Next::Over } };
        let Some(size) = rest.get(..len) else { return Next::More };
        let unknown = is_unknown(size);
        let size = number(size) & ((1_u64 << (7 * len)) - 1);
        let body = (name + len) as u64;
        match number(id) {
            SEGMENT => {
                self.segment = at + body;
                Next::At(at + body)
            }
            CUES => {
                self.cues_end = at.checked_add(body + size);
                Next::At(at + body)
            }
            INFO | SEEK_HEAD | SEEK | CUE | CUE_PLACE => Next::At(at + body),
            CLUSTER => {
                self.media.get_or_insert(at);
                // What lies between is clusters.
                self.cues.take().filter(|cues| *cues > at).map_or(Next::Over, Next::At)
            }
            _ if unknown => Next::Over,
            id @ (SCALE | DURATION | SEEK_ID | SEEK_PLACE | CUE_TIME | CUE_CLUSTER) if size <= 8 => {
                let start = body as usize;
                let Some(value) = held.get(start..start + size as usize) else { return Next::More };
                match (id, value.len()) {
                    (SCALE, _) => self.scale = number(value),
                    (SEEK_ID, _) => self.seek.0 = number(value),
                    (SEEK_PLACE, _) => self.seek.1 = number(value),
                    (CUE_TIME, _) => self.cue = number(value),
                    (CUE_CLUSTER, _) => self.mark(number(value)),
                    (_, 4) => self.ticks = Some(f64::from(f32::from_bits(number(value) as u32))),
                    (_, 8) => self.ticks = Some(f64::from_bits(number(value))),
                    _ => {}
                }
                if id == SEEK_PLACE && self.seek.0 == CUES {
                    self.cues = self.segment.checked_add(self.seek.1);
                }
                if matches!(id, SCALE | DURATION) {
                    self.tell();
                }
                Next::At(at + body + size)
            }
            _ => at.checked_add(body + size).map_or(Next::Over, Next::At),
        }
    }

    /// A cue leads to this place.
    fn mark(&mut self, place: u64) {
        let moment = u128::from(self.cue) * u128::from(self.scale);
        let moment = u64::try_from(moment).map(Duration::from_nanos);
        let (Ok(moment), Some(from)) = (moment, self.segment.checked_add(place)) else { return };
        // Of several tracks each has its cues; they rise as the file does.
        if self.marks.len() < MOST_MARKS && self.marks.last().is_none_or(|last| last.0 < moment && last.1 < from) {
            self.marks.push((moment, from));
        }
    }

    /// The scale may stand behind the duration: both are told of again.
    fn tell(&mut self) {
        let seconds = self.ticks.unwrap_or_default() * self.scale as f64 / 1e9;
        if let Ok(duration) = Duration::try_from_secs_f64(seconds)
            && !duration.is_zero()
        {
            self.found = Some(match self.marks.len() {
                0 | 1 => (Video::Duration(duration), "matroska Info"),
                _ => (Video::Marks(duration, self.marks.clone()), "matroska Cues"),
            });
        }
    }
}

/// How many bytes a number has, by its first one.
fn width(bytes: &[u8]) -> Option<usize> {
    let zeros = bytes.first()?.leading_zeros() as usize;
    (zeros < 8).then_some(zeros + 1)
}

/// All ones: nobody knows (RFC 8794 §6.2).
fn is_unknown(size: &[u8]) -> bool {
    let ones = u64::MAX >> (64 - 7 * size.len());
    number(size) & ones == ones
}

const SEGMENT: u64 = 0x1853_8067;
const INFO: u64 = 0x1549_a966;
const SCALE: u64 = 0x002a_d7b1;
const DURATION: u64 = 0x4489;
const SEEK_HEAD: u64 = 0x114d_9b74;
const SEEK: u64 = 0x4dbb;
const SEEK_ID: u64 = 0x53ab;
const SEEK_PLACE: u64 = 0x53ac;
const CUES: u64 = 0x1c53_bb6b;
const CUE: u64 = 0xbb;
const CUE_TIME: u64 = 0xb3;
const CUE_PLACE: u64 = 0xb7;
const CUE_CLUSTER: u64 = 0xf1;
/// chosen: a day with a cue each two seconds.
const MOST_MARKS: usize = 50_000;
const CLUSTER: u64 = 0x1f43_b675;

#[cfg(test)]
mod tests {
    use marline_core::units::DataSize;

    use super::super::Scan;
    use super::*;

    /// With a size of eight bytes, as muxers leave it that fill it in later.
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

    fn found(file: &[u8]) -> Option<Video> {
        let mut scan = Scan::default();
        scan.take(0, file);
        scan.found().map(|(video, _)| video.clone())
    }

    #[test]
    fn the_duration_is_in_ticks_of_the_scale_whichever_comes_first() {
        let scale = vec![0x2a, 0xd7, 0xb1, 0x83, 0x0f, 0x42, 0x40];
        let ticks = [vec![0x44, 0x89, 0x88], 12_500.0_f64.to_bits().to_be_bytes().to_vec()].concat();
        let twelve = Some(Video::Duration(Duration::from_millis(12_500)));
        for info in [[scale.clone(), ticks.clone()].concat(), [ticks.clone(), scale].concat(), ticks] {
            assert_eq!(found(&file(&info, false)), twelve);
            assert_eq!(found(&file(&info, true)), twelve);
        }
        let short = [vec![0x44, 0x89, 0x84], 3000.0_f32.to_bits().to_be_bytes().to_vec()].concat();
        assert_eq!(found(&file(&short, false)), Some(Video::Duration(Duration::from_secs(3))));
        assert_eq!(found(&file(&[], false)), None);
    }
    #[test]
    fn cues_at_the_end_say_where_the_thick_parts_lie_once_the_player_reads_them() {
        let ticks = [vec![0x44, 0x89, 0x88], 4000.0_f64.to_bits().to_be_bytes().to_vec()].concat();
        let cue = |moment: u16, place: u16| {
            let place = element(&[0xb7], &[vec![0xf7, 0x81, 1, 0xf1, 0x82], place.to_be_bytes().to_vec()].concat());
            element(&[0xbb], &[vec![0xb3, 0x82], moment.to_be_bytes().to_vec(), place].concat())
        };
        let cues = [cue(0, 300), cue(1000, 7000), cue(2000, 8000), cue(3000, 9000)].concat();
        let cues = element(&[0x1c, 0x53, 0xbb, 0x6b], &cues);
        let seek = |place: u32| {
            let id = [vec![0x53, 0xab, 0x84], vec![0x1c, 0x53, 0xbb, 0x6b], vec![0x53, 0xac, 0x84]].concat();
            element(
                &[0x11, 0x4d, 0x9b, 0x74],
                &element(&[0x4d, 0xbb], &[id, place.to_be_bytes().to_vec()].concat()),
            )
        };
        let info = element(&[0x15, 0x49, 0xa9, 0x66], &ticks);
        let before = seek(0).len() + info.len();
        let cluster = element(&[0x1f, 0x43, 0xb6, 0x75], &vec![7; 10_000 - before]);
        let place = u32::try_from(before + cluster.len()).unwrap();
        let inside = [seek(place), info, cluster, cues].concat();
        let segment = element(&[0x18, 0x53, 0x80, 0x67], &inside);
        let file = [element(&[0x1a, 0x45, 0xdf, 0xa3], &[0x42, 0x86, 0x81, 1]), segment].concat();
        let mut scan = Scan::default();
        scan.take(0, &file[..5000]);
        assert_eq!(scan.found().unwrap().1, "matroska Info");
        let end = file.len() - 400;
        assert!(scan.take(end as u64, &file[end..]));
        let (video, source) = scan.found().unwrap();
        let profile = video.profile(DataSize::from_bytes(file.len() as u64)).unwrap();
        let start = file.len() as u64 - inside.len() as u64;
        assert_eq!((source, profile.duration()), ("matroska Cues", Duration::from_secs(4)));
        assert_eq!(profile.bytes_at(Duration::from_secs(2)), start + 8000);
    }
}
