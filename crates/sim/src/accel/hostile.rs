//! Packets that nobody expects.
//!
//! In: packets that were really there. Out: random bytes, and packets like those with some of their bytes changed.

use marline_core::accel::{Bytes, Input, SIGHT, Sight};

use super::scene::Hostility;
use crate::rng::{Purpose, RandomStream};

/// Where they come from.
#[derive(Debug)]
pub(super) struct Hostile {
    chance: RandomStream,
    last: Vec<u8>,
}

impl Hostile {
    pub(super) fn new(seed: u64) -> Self {
        Self { chance: RandomStream::new(seed, "hostile", 0, Purpose::Other), last: vec![0x45, 0, 0, 40] }
    }

    /// A packet that was really there.
    pub(super) fn remember(&mut self, packet: &[u8]) {
        self.last.clear();
        self.last.extend_from_slice(packet);
    }

    /// What the driver tells of such a packet; nothing, if it passes and nobody looks.
    pub(super) fn input(&mut self, hostility: Hostility, sight: Sight) -> Option<Input> {
        let bytes = match hostility {
            Hostility::NoiseLeaves | Hostility::NoisePasses => self.noise(),
            Hostility::MutantPasses => self.mutant(0),
            Hostility::MutantLeaves => {
                let mut bytes = self.mutant(24);
                // Another port than any of a flow here, so that what becomes of it is nobody's loss.
                let port = if bytes.first().is_some_and(|first| first >> 4 == 6) { 40 } else { 20 };
                if let Some(port) = bytes.get_mut(port..port + 2) {
                    port.copy_from_slice(&[0x13, 0x88]);
                }
                bytes
            }
        };
        if matches!(hostility, Hostility::NoiseLeaves | Hostility::MutantLeaves) {
            return Some(Input::Leaving(Bytes(bytes)));
        }
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let mut bytes = bytes;
        match sight {
            Sight::None => return None,
            Sight::Heads => bytes.truncate(SIGHT),
            Sight::Whole => {}
        }
        Some(Input::Seen { packet: Bytes(bytes), length })
    }

    fn noise(&mut self) -> Vec<u8> {
        let length = self.chance.below(120);
        (0..length).map(|_| self.byte()).collect()
    }

    fn mutant(&mut self, from: u64) -> Vec<u8> {
        let mut bytes = self.last.clone();
        let end = (bytes.len() as u64).min(80);
        for _ in 0..=self.chance.below(4) {
            let place = from + self.chance.below(end.saturating_sub(from));
            let byte = self.byte();
            if let Some(old) = usize::try_from(place).ok().and_then(|place| bytes.get_mut(place)) {
                *old = byte;
            }
        }
        bytes
    }

    fn byte(&mut self) -> u8 {
        u8::try_from(self.chance.below(256)).unwrap_or(0)
    }
}
