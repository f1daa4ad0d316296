//! Builds TCP segments: retransmitted data for the local stack, acknowledgements, resets.
//!
//! 1. The caller, which has observed the flow, supplies sequence numbers, window and timestamps.
//! 2. The urgent pointer is zero; checksums are complete.

use alloc::vec::Vec;

use super::ip_builder::{build_packet, fits_in_packet};
use super::tcp::FIXED_LEN;
use super::{Flags, FourTuple, IpParams, OptionList, SackBlocks, Seq, Timestamps, protocol};

/// A TCP segment to be built.
#[derive(Clone, Copy, Debug)]
pub struct NewSegment<'a> {
    /// Addresses and ports.
    pub four_tuple: FourTuple,
    /// Traffic class, hop limit and flow label.
    pub ip_params: IpParams,
    /// Sequence number of its first byte.
    pub seq: Seq,
    /// Acknowledgement number; written in any case, valid only with [`Flags::ACK`].
    pub ack: Seq,
    /// The control bits.
    pub flags: Flags,
    /// The window field, already scaled down by the sender's window scale.
    pub window: u16,
    /// The TCP options.
    pub options: OptionList,
    /// The payload.
    pub payload: &'a [u8],
}

impl<'a> NewSegment<'a> {
    /// Data of an established connection, which fills a hole of the receiver.
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

    /// Aborts a connection. `seq` must be exactly the next number that the receiver expects; otherwise it only sends a
    /// challenge ACK (RFC 9293 §3.10.7.4).
    pub fn reset(four_tuple: &FourTuple, seq: Seq, ack: Seq) -> Self {
        Self { flags: Flags::RST | Flags::ACK, ..Self::data(four_tuple, seq, ack, 0, None, &[]) }
    }

    /// The packet; `None` if the payload is too long.
    pub fn emit(&self) -> Option<Vec<u8>> {
        fits_in_packet(&self.four_tuple.addrs, self.length()).then(|| self.write())
    }

    /// The packet, if the length has already been checked.
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

    /// Length of header and payload.
    fn length(&self) -> usize {
        FIXED_LEN + self.options.bytes().len() + self.payload.len()
    }

    /// Length of the header in words of four bytes: 5 to 15.
    fn header_words(&self) -> u16 {
        u16::try_from((FIXED_LEN + self.options.bytes().len()) / 4).unwrap_or(u16::MAX)
    }
}
