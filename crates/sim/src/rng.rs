//! Random numbers that depend only on their position in a named stream.
//!
//! A stream is identified by a seed, the name of a link, a direction and a purpose.
//!
//! 1. A number is a function of (seed, link, direction, purpose, n). It does not depend on the packet or the time
//!    for which it is drawn, nor on any other link. Therefore equal seeds give equal losses in virtual and in real
//!    time.
//! 2. Each purpose has its own stream, so that enabling jitter does not change the losses.
//! 3. The function is SplitMix64 (Steele, Lea, Flood, OOPSLA 2014, figure 16), used as a counter-based generator.
//!
//! With one shared generator, the loss of a packet on one link would shift every decision on all others. No
//! experiment could then be repeated with only one thing changed.

use marline_core::units::Ratio;

/// Purpose of a random stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// Which packets are lost.
    Loss,
    /// Deviation of each packet's delay from the mean.
    Jitter,
    /// Number of backoff slots of a Wi-Fi station.
    Backoff,
    /// Anything else that a scenario or a test decides.
    Other,
}

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub struct RandomStream {
    key: u64,
    index: u64,
}

impl RandomStream {
    /// The stream of this seed, name (of a link), direction (0 down, 1 up) and purpose, from its beginning.
    pub fn new(seed: u64, name: &str, direction: u64, purpose: Purpose) -> Self {
        let named_key = name.bytes().fold(seed, |key, byte| splitmix64(key ^ u64::from(byte)));
        Self { key: splitmix64(splitmix64(named_key ^ direction) ^ ((purpose as u64) << 8)), index: 0 }
    }

    /// The n-th number of the stream, independent of what was drawn.
    pub fn at(&self, n: u64) -> u64 {
        splitmix64(self.key.wrapping_add(n.wrapping_mul(GOLDEN_GAMMA)))
    }

    /// The next number of the stream, uniform over all 64 bits.
    pub fn draw(&mut self) -> u64 {
        let drawn = self.at(self.index);
        self.index = self.index.wrapping_add(1);
        drawn
    }

    /// The next number, below `n`; zero if `n` is zero.
    pub fn below(&mut self, n: u64) -> u64 {
        // The high half of the product is below n; its bias is at most n in 2^64.
        u64::try_from((u128::from(self.draw()) * u128::from(n)) >> 64).unwrap_or(0)
    }

    /// True with the probability `fraction`.
    pub fn bernoulli(&mut self, fraction: Ratio) -> bool {
        self.below(1_000_000) < u64::from(fraction.ppm())
    }
}

/// Increment of SplitMix64: 2^64 divided by the golden ratio, made odd.
const GOLDEN_GAMMA: u64 = 0x9E37_79B9_7F4A_7C15;

/// Output function of SplitMix64.
fn splitmix64(z: u64) -> u64 {
    let z = z.wrapping_add(GOLDEN_GAMMA);
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splitmix64_produces_the_reference_values() {
        // First outputs for state zero, from the reference implementation.
        assert_eq!(splitmix64(0), 0xE220_A839_7B1D_CDAF);
        assert_eq!(splitmix64(GOLDEN_GAMMA), 0x6E78_9E6A_A1B9_65F4);
    }

    #[test]
    fn a_number_depends_only_on_its_index() {
        let fresh = RandomStream::new(7, "wifi", 0, Purpose::Loss);
        let mut used = fresh.clone();
        let drawn: Vec<u64> = (0..100).map(|_| used.draw()).collect();
        assert!((0..100).all(|n| fresh.at(n) == drawn[usize::try_from(n).unwrap()]));
    }

    #[test]
    fn seed_name_direction_and_purpose_each_select_a_different_stream() {
        let firsts = [
            RandomStream::new(1, "wifi", 0, Purpose::Loss).draw(),
            RandomStream::new(2, "wifi", 0, Purpose::Loss).draw(),
            RandomStream::new(1, "lte", 0, Purpose::Loss).draw(),
            RandomStream::new(1, "wifi", 1, Purpose::Loss).draw(),
            RandomStream::new(1, "wifi", 0, Purpose::Jitter).draw(),
        ];
        let distinct: std::collections::BTreeSet<u64> = firsts.into_iter().collect();
        assert_eq!(distinct.len(), firsts.len());
    }

    #[test]
    fn shares_and_bounds_hold() {
        let mut stream = RandomStream::new(3, "lte", 0, Purpose::Other);
        let hits = (0..100_000).filter(|_| stream.bernoulli(Ratio::from_percent(3))).count();
        assert!((2800..3200).contains(&hits), "{hits}");
        assert!((0..1000).all(|_| stream.below(16) < 16));
        assert_eq!(stream.below(0), 0);
        assert!(!stream.bernoulli(Ratio::ZERO));
        assert!(stream.bernoulli(Ratio::ONE));
    }
}
