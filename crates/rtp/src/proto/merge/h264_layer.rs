//! Whether other frames depend on a packet's: the base layer of an ordinary stream of H.264 (RFC 6184 §5.3).
//!
//! In: a payload of RTP. Out: base, enhancement, or not known.
//!
//! 1. `nal_ref_idc` is zero for what nobody refers to: such frames are the layer that can be left out (temporal
//!    scalability, which ordinary encoders have by their B frames).
//! 2. Parameter sets and whatever is referred to are the base. Of an aggregate the header says the highest of its units.

/// Which layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layer {
    /// Others depend on it.
    Base,
    /// Nothing depends on it.
    Enhancement,
}

impl Layer {
    /// Of a payload of H.264; none: it is empty, or says that it is broken.
    pub fn of_h264(payload: &[u8]) -> Option<Self> {
        let first = *payload.first()?;
        let (broken, referred) = (first & 0x80 != 0, first & 0x60 != 0);
        (!broken).then_some(if referred { Self::Base } else { Self::Enhancement })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_referred_to_is_the_base() {
        // A parameter set, an IDR picture, a fragment of one, a P picture, a B picture, its fragment.
        let cases = [(0x67, true), (0x65, true), (0x7c, true), (0x41, true), (0x01, false), (0x1c, false)];
        for (first, is_base) in cases {
            let expected = if is_base { Layer::Base } else { Layer::Enhancement };
            assert_eq!(Layer::of_h264(&[first, 0x85]), Some(expected), "{first:#x}");
        }
        assert_eq!((Layer::of_h264(&[]), Layer::of_h264(&[0xe7])), (None, None));
    }
}
