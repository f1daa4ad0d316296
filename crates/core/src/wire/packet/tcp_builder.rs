//! Segments that are made here: fills for the own stack, acknowledgements, the end of a flow.
//!
//! In: what the header is to say, and payload. Out: a packet that a [`Segment`](super::Segment) reads back as that.
//!
//! 1. Nothing is invented: numbers, window and timestamps are the caller's, who has seen the flow.
//! 2. The urgent pointer is zero; checksums are whole.

use alloc::vec::Vec;

use super::ip_builder::{build_packet, fits_in_packet};
use super::tcp::FIXED_LEN;
use super::{Flags, FourTuple, IpParams, OptionList, SackBlocks, Seq, Timestamps, protocol};

/// A segment to be made.
#[derive(Clone, Copy, Debug)]
pub struct NewSegment<'a> {
    /// From whom to whom.
    pub four_tuple: FourTuple,
    /// How it travels.
    pub ip_params: IpParams,
    /// Its first number.
    pub seq: Seq,
    /// What it acknowledges; written in any case, and means nothing without [`Flags::ACK`].
    pub ack: Seq,
    /// Its control bits.
    pub flags: Flags,
    /// The window, shifted by the sender's scale already.
    pub window: u16,
    /// Its options.
    pub options: OptionList,
    /// Its data.
    pub payload: &'a [u8],
}

impl<'a> NewSegment<'a> {
    /// Data of an established connection: what fills a hole of the receiver.
    pub fn data(
        four_tuple: &FourTuple,
        seq: Seq,
        ack: Seq,
        window: u16,
        timestamps: Option<Timestamps>,
        payload: &'a [u8],
    ) -> Self {
        let options = OptionList::established(timestamps, &SackBlocks::default());
        let ip_params = IpParams::default();
        Self { four_tuple: *four_tuple, ip_params, seq, ack, flags: Flags::ACK, window, options, payload }
    }

    /// Ends a connection at once. `seq` must be exactly the number that the receiver waits for, or it only asks back
    /// (RFC 9293 §3.10.7.4).
    pub fn reset(four_tuple: &FourTuple, seq: Seq, ack: Seq) -> Self {
        Self { flags: Flags::RST | Flags::ACK, ..Self::data(four_tuple, seq, ack, 0, None, &[]) }
    }

    /// The packet; `None` if the payload is too long for one.
    pub fn emit(&self) -> Option<Vec<u8>> {
        fits_in_packet(&self.four_tuple.addrs, self.length()).then(|| self.write())
    }

    /// The packet, known to fit.
    pub(super) fn write(&self) -> Vec<u8> {
        build_packet(&self.four_tuple.addrs, self.ip_params, protocol::TCP, self.length(), |bytes| {
            bytes.extend_from_slice(&self.four_tuple.source_port.to_be_bytes());
            bytes.extend_from_slice(&self.four_tuple.destination_port.to_be_bytes());
            bytes.extend_from_slice(&self.seq.number().to_be_bytes());
            bytes.extend_from_slice(&self.ack.number().to_be_bytes());
            bytes.extend_from_slice(&(self.header_words() << 12 | self.flags.bits()).to_be_bytes());
            bytes.extend_from_slice(&self.window.to_be_bytes());
            bytes.extend_from_slice(&[0; 4]);
            bytes.extend_from_slice(self.options.bytes());
            bytes.extend_from_slice(self.payload);
        })
    }

    /// Header and payload.
    fn length(&self) -> usize {
        FIXED_LEN + self.options.bytes().len() + self.payload.len()
    }

    /// The header in words of four bytes: 5 to 15.
    fn header_words(&self) -> u16 {
        u16::try_from((FIXED_LEN + self.options.bytes().len()) / 4).unwrap_or(u16::MAX)
    }
}
