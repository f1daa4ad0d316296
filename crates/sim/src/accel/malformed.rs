//! Unexpected packets: random bytes, and copies of real packets with some bytes changed.

use marline_core::accel::{CaptureLevel, Input, PacketBytes, SNAP_LENGTH};

use crate::accel::scenario::Malformed;
use crate::rng::{Purpose, RandomStream};

/// The source of such packets.
#[derive(Debug)]
pub(super) struct MalformedPackets {
    rng: RandomStream,
    last: Vec<u8>,
}

impl MalformedPackets {
    pub(super) fn new(seed: u64) -> Self {
        Self { rng: RandomStream::new(seed, "hostile", 0, Purpose::Other), last: vec![0x45, 0, 0, 40] }
    }

    /// A real packet, which the next copies are made of.
    pub(super) fn remember(&mut self, packet: &[u8]) {
        self.last.clear();
        self.last.extend_from_slice(packet);
    }

    /// The input with such a packet; none if it is not held and capture is off.
    pub(super) fn input(&mut self, hostility: Malformed, level: CaptureLevel) -> Option<Input> {
        let bytes = match hostility {
            Malformed::NoiseOut | Malformed::NoiseIn => self.noise(),
            Malformed::MutantIn => self.mutant(0),
            Malformed::MutantOut => {
                let mut bytes = self.mutant(24);
                // A port that no flow uses here, so that no flow depends on what becomes of it.
                let port = if bytes.first().is_some_and(|first| first >> 4 == 6) { 40 } else { 20 };
                if let Some(port) = bytes.get_mut(port..port + 2) {
                    port.copy_from_slice(&[0x13, 0x88]);
                }
                bytes
            }
        };
        if matches!(hostility, Malformed::NoiseOut | Malformed::MutantOut) {
            return Some(Input::Outgoing(PacketBytes(bytes)));
        }
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let mut bytes = bytes;
        match level {
            CaptureLevel::None => return None,
            CaptureLevel::Headers => bytes.truncate(SNAP_LENGTH),
            CaptureLevel::Full => {}
        }
        Some(Input::Captured { packet: PacketBytes(bytes), length })
    }

    fn noise(&mut self) -> Vec<u8> {
        let length = self.rng.below(120);
        (0..length).map(|_| self.byte()).collect()
    }

    /// A copy of the last real packet, in which one to four bytes from offset `from` on (among the first 80) are changed.
    fn mutant(&mut self, from: u64) -> Vec<u8> {
        let mut bytes = self.last.clone();
        let end = (bytes.len() as u64).min(80);
        for _ in 0..=self.rng.below(4) {
            let offset = from + self.rng.below(end.saturating_sub(from));
            let byte = self.byte();
            if let Some(target) = usize::try_from(offset).ok().and_then(|offset| bytes.get_mut(offset)) {
                *target = byte;
            }
        }
        bytes
    }

    fn byte(&mut self) -> u8 {
        u8::try_from(self.rng.below(256)).unwrap_or(0)
    }
}
