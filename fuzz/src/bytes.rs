//! Reads decisions from the bytes of an input. After the end of the input every value is zero.

/// The part of an input that has not been read.
#[derive(Clone, Debug)]
pub(crate) struct Bytes<'a>(pub(crate) &'a [u8]);

impl<'a> Bytes<'a> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reads up to `n` bytes.
    pub(crate) fn take(&mut self, n: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(n.min(self.0.len()));
        self.0 = rest;
        taken
    }

    pub(crate) fn u8(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }

    pub(crate) fn u16(&mut self) -> u16 {
        u16::from(self.u8()) << 8 | u16::from(self.u8())
    }

    pub(crate) fn u64(&mut self) -> u64 {
        self.take(8).iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
    }

    /// Selects one of the values by the next byte.
    pub(crate) fn one_of<T: Clone>(&mut self, values: &[T]) -> T {
        let index = usize::from(self.u8()) % values.len();
        values[index].clone()
    }

    /// Reads a number of any magnitude, with a preference for small ones: the first byte is the number itself or
    /// selects how many bits follow.
    pub(crate) fn size(&mut self) -> u64 {
        match self.u8() {
            small @ 0..=127 => u64::from(small),
            shift @ 128..=223 => u64::from(self.u16()) << ((shift - 128) % 40),
            224..=254 => self.u64(),
            255 => u64::MAX,
        }
    }
}
