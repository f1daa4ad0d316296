//! Matroska and WebM: elements within elements (RFC 8794 §5 and §6; RFC 9559 §5.1.2).
//!
//! In: the bytes from an element on. Out: the duration that `Info` has. It stands before the first cluster; a stream that
//! was never finished has none.

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
    /// The first cluster.
    pub(super) media: Option<u64>,
    pub(super) found: Option<(Video, &'static str)>,
}

impl Default for Elements {
    fn default() -> Self {
        Self { scale: 1_000_000, ticks: None, media: None, found: None }
    }
}

impl Elements {
    /// The element at `at`, as far as it is held.
    pub(super) fn step(&mut self, at: u64, held: &[u8]) -> Next {
        let Some(name) = width(held) else { return if held.is_empty() { Next::More } else { Next::Over } };
        let (Some(id), Some(rest)) = (held.get(..name), held.get(name..)) else { return Next::More };
        let Some(len) = width(rest) else { return if rest.is_empty() { Next::More } else { Next::Over } };
        let Some(size) = rest.get(..len) else { return Next::More };
        let unknown = is_unknown(size);
        let size = number(size) & ((1_u64 << (7 * len)) - 1);
        let body = (name + len) as u64;
        match number(id) {
            SEGMENT | INFO => Next::At(at + body),
            CLUSTER => {
                self.media.get_or_insert(at);
                Next::Over
            }
            _ if unknown => Next::Over,
            id @ (SCALE | DURATION) if size <= 8 => {
                let start = body as usize;
                let Some(value) = held.get(start..start + size as usize) else { return Next::More };
                match (id, value.len()) {
                    (SCALE, _) => self.scale = number(value),
                    (_, 4) => self.ticks = Some(f64::from(f32::from_bits(number(value) as u32))),
                    (_, 8) => self.ticks = Some(f64::from_bits(number(value))),
                    _ => {}
                }
                self.tell();
                Next::At(at + body + size)
            }
            _ => at.checked_add(body + size).map_or(Next::Over, Next::At),
        }
    }

    /// The scale may stand behind the duration: both are told of again.
    fn tell(&mut self) {
        let seconds = self.ticks.unwrap_or_default() * self.scale as f64 / 1e9;
        if let Ok(duration) = Duration::try_from_secs_f64(seconds)
            && !duration.is_zero()
        {
            self.found = Some((Video::Duration(duration), "matroska Info"));
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
const CLUSTER: u64 = 0x1f43_b675;

#[cfg(test)]
mod tests {
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
}
