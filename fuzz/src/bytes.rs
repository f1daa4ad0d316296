//! Decisions out of bytes: each question takes some, and when none are left every answer is zero.

/// The rest of an input.
#[derive(Clone, Debug)]
pub(crate) struct Bytes<'a>(pub(crate) &'a [u8]);

impl<'a> Bytes<'a> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Up to `n` bytes.
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

    /// One of the values.
    pub(crate) fn one_of<T: Clone>(&mut self, values: &[T]) -> T {
        let at = usize::from(self.u8()) % values.len();
        values[at].clone()
    }

    /// A number of any magnitude, small ones more often: a byte chooses how many bits follow.
    pub(crate) fn size(&mut self) -> u64 {
        match self.u8() {
            small @ 0..=127 => u64::from(small),
            shift @ 128..=223 => u64::from(self.u16()) << ((shift - 128) % 40),
            224..=254 => self.u64(),
            255 => u64::MAX,
        }
    }
}
