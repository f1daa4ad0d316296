//! Scans MPEG-TS: packets of 188 bytes, some of which carry a clock reference (ISO 13818-1 §2.4.3).
//!
//! Finds the mean rate between the first and a later clock reference. It is updated each time the distance has doubled,
//! so that a slow beginning does not determine the result.

use marline_core::units::{DataSize, Duration};

use super::{ScanStep, VideoTiming, big_endian};

/// Whether a file begins with three packets; `None`: too few bytes are held.
pub(super) fn is_ts(buffered: &[u8]) -> Option<bool> {
    if buffered.first() != Some(&SYNC_BYTE) {
        return Some(false);
    }
    buffered.get(2 * PACKET_LEN).map(|third| *third == SYNC_BYTE && buffered.get(PACKET_LEN) == Some(&SYNC_BYTE))
}

/// Rate of the first program that has a clock.
#[derive(Debug, Default)]
pub(super) struct PcrRate {
    /// PID of the clock, file offset and value of its first reference.
    first: Option<(u16, u64, u64)>,
    /// The rate is updated at this distance from the first reference.
    next_report_at: Duration,
    pub(super) found: Option<(VideoTiming, &'static str)>,
}

impl PcrRate {
    /// Parses the packet at offset `at`.
    pub(super) fn step(&mut self, at: u64, buffered: &[u8]) -> ScanStep {
        let Some(packet) = buffered.get(..PACKET_LEN) else { return ScanStep::NeedMore };
        if packet.first() != Some(&SYNC_BYTE) {
            return ScanStep::Done;
        }
        let pid = (big_endian(packet.get(1..3).unwrap_or_default()) & 0x1fff) as u16;
        match (read_pcr(packet), self.first) {
            (Some(pcr), None) => (self.first, self.next_report_at) = (Some((pid, at, pcr)), MIN_DURATION),
            (Some(pcr), Some((first_pid, first_offset, first_pcr))) if first_pid == pid => {
                // The clock restarted or was set, so its differences are meaningless from now on.
                let Some(ticks) = pcr.checked_sub(first_pcr) else { return ScanStep::Done };
                let elapsed = Duration::from_micros(ticks / 27);
                if elapsed >= self.next_report_at {
                    self.next_report_at = elapsed * 2;
                    let rate = DataSize::from_bytes(at - first_offset) / elapsed;
                    self.found = Some((VideoTiming::Rate(rate), "mpeg-ts clock"));
                }
                if elapsed > MAX_DURATION {
                    return ScanStep::Done;
                }
            }
            _ => {}
        }
        ScanStep::SkipTo(at + PACKET_LEN as u64)
    }
}

/// The clock reference of a packet, in ticks of 27 MHz (§2.4.3.5).
fn read_pcr(packet: &[u8]) -> Option<u64> {
    let has_field = packet.get(3)? & 0x20 != 0;
    let (len, flags) = (packet.get(4)?, packet.get(5)?);
    if !has_field || *len < 7 || flags & 0x10 == 0 {
        return None;
    }
    let field = big_endian(packet.get(6..12)?);
    Some((field >> 15) * 300 + (field & 0x1ff))
}

const SYNC_BYTE: u8 = 0x47;
const PACKET_LEN: usize = 188;
/// A shorter file is a segment, whose rate does not describe the whole.
const MIN_DURATION: Duration = Duration::from_secs(15);
/// Beyond this, the rate hardly changes.
const MAX_DURATION: Duration = Duration::from_secs(600);

#[cfg(test)]
mod tests {
    use marline_core::units::Bitrate;

    use super::super::ContainerScan;
    use super::*;

    fn packet(pid: u16, pcr: Option<u64>) -> Vec<u8> {
        let [high, low] = pid.to_be_bytes();
        let mut packet = vec![SYNC_BYTE, high, low, 0x10];
        if let Some(shows) = pcr {
            packet[3] = 0x30;
            let field = ((shows / 300) << 15) | (shows % 300);
            packet.extend([7, 0x10]);
            packet.extend(&field.to_be_bytes()[2..]);
        }
        packet.resize(PACKET_LEN, 0xff);
        packet
    }

    #[test]
    fn the_rate_is_measured_between_references_of_one_clock() {
        // A hundred packets a second. One in ten carries the clock of PID 256; the clock of another PID is ignored.
        let mut file = packet(0, None);
        for n in 0..2000_u64 {
            let shows = (n % 10 == 0).then_some(5_000_000_000 + n * 270_000);
            file.extend(packet(256, shows));
            if n % 10 == 5 {
                file.truncate(file.len() - PACKET_LEN);
                file.extend(packet(257, Some(n)));
            }
        }
        let mut scan = ContainerScan::default();
        for (n, piece) in file.chunks(1000).enumerate() {
            scan.feed(n as u64 * 1000, piece);
        }
        let rate = Bitrate::from_bits_per_sec(188 * 8 * 100);
        assert_eq!(scan.video(), Some((&VideoTiming::Rate(rate), "mpeg-ts clock")));
    }
}
