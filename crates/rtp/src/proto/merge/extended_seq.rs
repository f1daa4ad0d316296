//! Extended sequence numbers (RFC 3550 appendix A.1): 16-bit numbers that wrap become 64-bit numbers that do not.
//!
//! A number slightly below the highest one is a late packet. Every other number is ahead, however long the pause before it,
//! because an outage may cost more packets than half of the number space.

/// Extends sequence numbers by the highest one so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct ExtendedSeq(Option<u64>);

/// Largest distance below the highest number that counts as late. The value is `MAX_DROPOUT` of RFC 3550 appendix A.1, which limits
/// the other direction.
const MAX_LATE: u16 = 3000;

/// First cycle. It is above zero, so that packets which arrive before the first one in order have numbers as well.
const START: u64 = 1 << 32;

impl ExtendedSeq {
    /// Returns the extended number and remembers the highest one.
    pub(super) fn extend(&mut self, low: u16) -> u64 {
        let last = *self.0.get_or_insert(START | u64::from(low));
        let [.., high, lowest] = last.to_be_bytes();
        let ahead = low.wrapping_sub(u16::from_be_bytes([high, lowest]));
        let behind = ahead.wrapping_neg();
        if (1..=MAX_LATE).contains(&behind) {
            return last.saturating_sub(behind.into());
        }
        let seq = last.saturating_add(ahead.into());
        self.0 = Some(seq);
        seq
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extended_numbers_continue_across_a_wrap() {
        let mut extended = ExtendedSeq::default();
        let first = extended.extend(65_534);
        assert_eq!(extended.extend(1), first + 3);
        assert_eq!(extended.extend(65_535), first + 1, "a late packet");
        assert_eq!(extended.extend(2), first + 4);
        assert_eq!(extended.extend(50_002), first + 50_004, "after a long outage");
    }
}
