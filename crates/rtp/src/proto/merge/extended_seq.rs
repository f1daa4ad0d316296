//! ExtendedSeq that go round, made such that do not (RFC 3550 appendix A.1).
//!
//! In: 16 bits of a number, in about their order. Out: all of it.
//!
//! What is a little behind is late; everything else is ahead, however long the silence before it was.

/// Extends numbers by what was seen last.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct ExtendedSeq(Option<u64>);

/// So far behind is late. From RFC 3550 appendix A.1 (`MAX_DROPOUT`), which has it for the other direction.
const MAX_LATE: u16 = 3000;

/// Where counting begins, so that what comes a little too late has a number, too.
const START: u64 = 1 << 32;

impl ExtendedSeq {
    /// The whole number; the highest one is remembered.
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
    fn numbers_go_on_where_their_bits_go_round() {
        let mut extended = ExtendedSeq::default();
        let first = extended.extend(65_534);
        assert_eq!(extended.extend(1), first + 3);
        assert_eq!(extended.extend(65_535), first + 1, "one that comes late");
        assert_eq!(extended.extend(2), first + 4);
        assert_eq!(extended.extend(50_002), first + 50_004, "after a long silence");
    }
}
