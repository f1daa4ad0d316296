//! Changing a segment where it lies, with its checksums.
//!
//! In: the bytes of a packet with TCP. Out: the same bytes, of the same length, saying something else.
//!
//! 1. A checksum is changed by what has changed under it (RFC 1624, equation 3), whatever lies behind: the cost does
//!    not depend on the payload. One that was right stays right; one that was wrong stays wrong, so that damage on the
//!    way is still found at the end.
//! 2. A checksum that is not filled in yet ([`Checksum::Unfilled`](super::Checksum::Unfilled)) is the sum of the
//!    pseudo header: only another address changes it. The caller says which of both it is: a queue and a TUN device
//!    know, the bytes do not always. What goes back through a packet queue must be [filled](Rewrite::fill): the
//!    kernel sends a packet that it gets back as it is.
//! 3. SACK blocks that go are overwritten with no-operations, and the header keeps its length. Shortening it would move
//!    the payload and change the lengths of IP and pseudo header, for bytes that are spared on the fast link only; an
//!    ACK that is to be short on the thin one is [made anew](super::Ack::emit).
//! 4. What is not there is not added: no acknowledgement without its flag, no timestamp without its option. The answer
//!    says whether something was done.

use core::net::IpAddr;

use super::checksum::pseudo;
use super::emit::{fill, put};
use super::ip::Layout;
use super::option::{NOP, SACK, write_blocks};
use super::segment::FIXED;
use super::sum::{Sum, mended, moved};
use super::{Flags, OptionList, Options, Pair, Refusal, Sacks, Segment, Seq, Span, Stamp, TcpOption, protocol};

/// A segment that can be changed.
#[derive(Debug)]
pub struct Rewrite<'a> {
    /// Exactly the packet.
    bytes: &'a mut [u8],
    layout: Layout,
    pair: Pair,
    flags: Flags,
    /// Where the options end.
    payload: usize,
    /// Whether the checksum is over all, or over the pseudo header only.
    is_filled: bool,
}

impl<'a> Rewrite<'a> {
    /// Opens a packet whose checksum is over all of it, be it right or wrong.
    ///
    /// # Errors
    /// If it is not a whole segment.
    pub fn of(bytes: &'a mut [u8]) -> Result<Self, Refusal> {
        Self::open(bytes, true)
    }

    /// Opens a packet whose checksum is not filled in yet.
    ///
    /// # Errors
    /// If it is not a whole segment.
    pub fn of_unfilled(bytes: &'a mut [u8]) -> Result<Self, Refusal> {
        Self::open(bytes, false)
    }

    fn open(bytes: &'a mut [u8], is_filled: bool) -> Result<Self, Refusal> {
        let segment = Segment::parse(bytes)?;
        let (packet, flags) = (segment.packet(), segment.flags());
        let (layout, pair) = (packet.layout, packet.pair());
        let payload = layout.body + FIXED + segment.option_bytes().len();
        let (bytes, _) = bytes.split_at_mut_checked(layout.end).ok_or(Refusal::Short)?;
        Ok(Self { bytes, layout, pair, flags, payload, is_filled })
    }

    /// Another acknowledgement number; `false` if the segment acknowledges nothing.
    pub fn set_ack(&mut self, ack: Seq) -> bool {
        let acknowledges = self.flags.contains(Flags::ACK);
        if acknowledges {
            self.change(self.layout.body + 8, &ack.number().to_be_bytes());
        }
        acknowledges
    }

    /// Another window, as it stands in the header.
    pub fn set_window(&mut self, window: u16) {
        self.change(self.layout.body + 14, &window.to_be_bytes());
    }

    /// Another echoed timestamp (`TSecr`); `false` if there is none.
    pub fn set_echo(&mut self, echo: Stamp) -> bool {
        let mut from = 0;
        while let Some((at, length, _)) =
            self.option_behind(from, |option| matches!(option, TcpOption::Timestamps(_)))
        {
            // Behind kind, length and the sender's own clock.
            self.change(self.options_at() + at + 6, &echo.ticks().to_be_bytes());
            from = at + length;
        }
        from > 0
    }

    /// Each SACK block becomes what `keep` makes of it, or goes. Says how many are left.
    ///
    /// Those that stay move together, in their order; no-operations take the place of the rest.
    pub fn map_sacks(&mut self, mut keep: impl FnMut(Span) -> Option<Span>) -> usize {
        let (mut from, mut left) = (0, 0);
        let is_sack = |option: &TcpOption<'_>| matches!(option, TcpOption::Sack(_));
        while let Some((at, length, TcpOption::Sack(sacks))) = self.option_behind(from, is_sack) {
            let mut kept = Sacks::default();
            for block in sacks.blocks().iter().filter_map(|block| keep(*block)) {
                kept.push(block);
            }
            left += kept.blocks().len();
            let mut new = [NOP; OptionList::ROOM];
            if !kept.is_empty() {
                let mut room = [0; Sacks::MOST * 8];
                let blocks = write_blocks(&mut room, &kept);
                put(&mut new, 0, &[SACK, u8::try_from(2 + blocks.len()).unwrap_or(0)]);
                put(&mut new, 2, blocks);
            }
            self.change(self.options_at() + at, new.get(..length).unwrap_or(&new));
            from = at + length;
        }
        left
    }

    /// All SACK blocks go.
    pub fn drop_sacks(&mut self) {
        self.map_sacks(|_| None);
    }

    /// Another sender; `false` if it is of the other family.
    pub fn set_source(&mut self, source: IpAddr) -> bool {
        self.set_pair(Pair::new(source, self.pair.destination()))
    }

    /// Another receiver; `false` if it is of the other family.
    pub fn set_destination(&mut self, destination: IpAddr) -> bool {
        self.set_pair(Pair::new(self.pair.source(), destination))
    }

    /// Makes the checksum anew, over all bytes. Needed before an unfilled segment leaves by a way that does not do it;
    /// makes a damaged one look whole.
    pub fn fill(&mut self) {
        let length = self.layout.end - self.layout.body;
        let before = pseudo(&self.pair, protocol::TCP, length);
        fill(self.bytes.get_mut(self.layout.body..).unwrap_or_default(), before, Some(CHECKSUM));
        self.is_filled = true;
    }

    const fn options_at(&self) -> usize {
        self.layout.body + FIXED
    }

    /// The first of these options at or behind `from`: where it is, how long, and what it says.
    fn option_behind(
        &self,
        from: usize,
        wanted: impl Fn(&TcpOption<'_>) -> bool,
    ) -> Option<(usize, usize, TcpOption<'_>)> {
        let mut options = Options::of(self.bytes.get(self.options_at()..self.payload).unwrap_or(&[]));
        core::iter::from_fn(|| options.placed()).find(|(at, _, option)| *at >= from && wanted(option))
    }

    fn set_pair(&mut self, pair: Option<Pair>) -> bool {
        let Some(pair) = pair else { return false };
        let (old, new) = (self.pair.sum().fold(), pair.sum().fold());
        match pair {
            Pair::V4(from, to) => {
                put(self.bytes, 12, &from.octets());
                put(self.bytes, 16, &to.octets());
                self.mend(HEADER_CHECKSUM, |checksum| mended(checksum, old, new));
            }
            Pair::V6(from, to) => {
                put(self.bytes, 8, &from.octets());
                put(self.bytes, 24, &to.octets());
            }
        }
        self.pair = pair;
        let is_filled = self.is_filled;
        self.mend(self.layout.body + CHECKSUM, |sum| {
            if is_filled { mended(sum, old, new) } else { moved(sum, old, new) }
        });
        true
    }

    /// Writes into TCP's header, and mends the checksum if it is over that.
    fn change(&mut self, at: usize, new: &[u8]) {
        // Headers begin at even places, so whole words around the change are words of the sum.
        let (from, to) = (at & !1, (at + new.len()).next_multiple_of(2));
        let sum = |bytes: &[u8]| Sum::default().add(bytes.get(from..to).unwrap_or(&[])).fold();
        let old = sum(self.bytes);
        put(self.bytes, at, new);
        let new = sum(self.bytes);
        if self.is_filled {
            self.mend(self.layout.body + CHECKSUM, |checksum| mended(checksum, old, new));
        }
    }

    fn mend(&mut self, at: usize, how: impl FnOnce(u16) -> u16) {
        if let Some(field) = self.bytes.get_mut(at..).and_then(|rest| rest.first_chunk_mut::<2>()) {
            *field = how(u16::from_be_bytes(*field)).to_be_bytes();
        }
    }
}

/// In TCP's header.
const CHECKSUM: usize = 16;
/// In IPv4's header.
const HEADER_CHECKSUM: usize = 10;
