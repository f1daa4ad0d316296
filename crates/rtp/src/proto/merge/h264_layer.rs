//! Layers of an H.264 stream (RFC 6184 section 5.3): whether other frames depend on the frame of a packet.
//!
//! `nal_ref_idc` is zero for frames that no other frame refers to. They form the enhancement layer, which can be dropped without
//! damage to other frames; ordinary encoders produce it with their B-frames. Parameter sets and all referenced frames form the
//! base layer. The header of an aggregation packet holds the highest value of its units.

/// Layer of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layer {
    /// Other frames depend on it.
    Base,
    /// No other frame depends on it.
    Enhancement,
}

impl Layer {
    /// The layer of an H.264 payload, or `None` if it is empty or marked as damaged.
    pub fn of_h264(payload: &[u8]) -> Option<Self> {
        let first = *payload.first()?;
        let (is_damaged, is_referenced) = (first & 0x80 != 0, first & 0x60 != 0);
        (!is_damaged).then_some(if is_referenced { Self::Base } else { Self::Enhancement })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn referenced_frames_are_the_base_layer() {
        // A parameter set, an IDR picture, a fragment of one, a P picture, a B picture, its fragment.
        let cases = [(0x67, true), (0x65, true), (0x7c, true), (0x41, true), (0x01, false), (0x1c, false)];
        for (first, is_base) in cases {
            let expected = if is_base { Layer::Base } else { Layer::Enhancement };
            assert_eq!(Layer::of_h264(&[first, 0x85]), Some(expected), "{first:#x}");
        }
        assert_eq!((Layer::of_h264(&[]), Layer::of_h264(&[0xe7])), (None, None));
    }
}
