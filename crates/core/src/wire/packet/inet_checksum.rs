//! The Internet checksum (RFC 1071): the one's complement sum of 16-bit words, with end-around carry.
//!
//! Computes the sum of bytes that begin at an even offset, and updates a checksum after some words have changed without
//! reading the rest (RFC 1624).
//!
//! 1. Four bytes are added at a time. The sum is the same modulo 2¹⁶ − 1 (RFC 1071 §2 (C)), and folded at the end.
//! 2. The incremental update is equation 3 of RFC 1624. It never turns a valid checksum into the wrong one of the two
//!    representations of zero, as RFC 1141 does.

/// A sum that is not folded yet. It cannot overflow before 2³² words, more than any packet has.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct InetSum(u64);

impl InetSum {
    /// Adds these bytes; an odd last byte is padded with a zero.
    pub(super) fn add(self, bytes: &[u8]) -> Self {
        let (fours, remaining) = bytes.as_chunks::<4>();
        let partial_sum: u64 = fours.iter().map(|four| u64::from(u32::from_be_bytes(*four))).sum();
        let mut last = [0; 4];
        for (to, from) in last.iter_mut().zip(remaining) {
            *to = *from;
        }
        Self(self.0 + partial_sum + u64::from(u32::from_be_bytes(last)))
    }

    /// Adds a number of up to 32 bits, as in a pseudo header.
    pub(super) fn add_word(self, word: u32) -> Self {
        Self(self.0 + u64::from(word))
    }

    /// The folded sum. It is zero only if all words were zero.
    pub(super) fn fold(self) -> u16 {
        let mut sum = self.0;
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        u16::try_from(sum).unwrap_or(u16::MAX)
    }
}

/// The checksum after words with the sum `old` were replaced by words with the sum `new` (RFC 1624, equation 3).
pub(super) fn incremental_update(checksum: u16, old: u16, new: u16) -> u16 {
    !InetSum::default().add_word((!checksum).into()).add_word((!old).into()).add_word(new.into()).fold()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Reference implementation: the definition, word by word.
    pub(in super::super) fn reference_sum(bytes: &[u8]) -> u16 {
        let mut sum = 0_u32;
        for (at, byte) in bytes.iter().enumerate() {
            sum += u32::from(*byte) << if at % 2 == 0 { 8 } else { 0 };
            sum = (sum & 0xffff) + (sum >> 16);
        }
        u16::try_from(sum).unwrap()
    }

    #[test]
    fn the_example_of_rfc_1071() {
        // §3: the words 0001 f203 f4f5 f6f7 sum to ddf2.
        assert_eq!(InetSum::default().add(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]).fold(), 0xddf2);
    }

    #[test]
    fn the_example_of_rfc_1624() {
        // §4: with checksum dd2f, the word 5555 becomes 3285: the result is 0000, not ffff.
        assert_eq!(incremental_update(0xdd2f, 0x5555, 0x3285), 0x0000);
    }

    proptest! {
        #[test]
        fn the_fast_sum_equals_the_reference(bytes in proptest::collection::vec(any::<u8>(), 0..70)) {
            prop_assert_eq!(InetSum::default().add(&bytes).fold(), reference_sum(&bytes));
        }

        #[test]
        fn an_updated_checksum_equals_a_recomputed_one(
            mut bytes in proptest::collection::vec(any::<u8>(), 8..64), at in 0_usize..3, new: [u8; 4],
        ) {
            // Only zeros would have the other representation of zero; no header consists of zeros.
            bytes[7] |= 1;
            let at = at * 2;
            let before = !reference_sum(&bytes);
            let old = reference_sum(&bytes[at..at + 4]);
            bytes[at..at + 4].copy_from_slice(&new);
            prop_assume!(reference_sum(&bytes) != 0);
            prop_assert_eq!(incremental_update(before, old, reference_sum(&new)), !reference_sum(&bytes));
        }
    }
}
