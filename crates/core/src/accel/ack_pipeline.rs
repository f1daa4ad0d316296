//! Pipeline of each pure ACK of a flow: observation, then rewriters, then the output link.
//!
//! 1. Early ACK comes first ([`super::early_ack::stage`]): it replaces what the receiver reports by what the sender is to learn, as if early-acked
//!    bytes had arrived. Whatever follows sees that ACK.
//! 2. One observation pass ([`super::flow`]) updates all estimators and returns an [`AckObservation`], which is not
//!    changed afterwards.
//! 3. Each [`AckRewriter`] of one list (`FlowState::rewriters`) takes the observation and what the rewriters before it
//!    have changed, and returns its own change. The Eifel undo comes before the withheld ACK, because its ACKs must
//!    carry the exact number.
//! 4. The output link is selected last ([`super::output_link`]); it changes the link and the time, never the packet.
//!
//! A mechanism that changes ACKs is added with a file or folder of its own, which implements [`AckRewriter`], and one
//! line in that list.

use super::Mechanisms;
use crate::units::{Duration, Instant};
use crate::wire::packet::{Ack, Rewrite, Seq, TcpTimestamp};

/// What one ACK shows, together with the state of its flow.
#[derive(Clone, Copy, Debug)]
pub(super) struct AckObservation<'a> {
    /// When the ACK leaves or arrived.
    pub(super) now: Instant,
    /// The ACK after early ACK has changed it.
    pub(super) ack: Ack,
    /// Whether the ACK is dropped, because it reports nothing new.
    pub(super) is_suppressed: bool,
    /// The mechanisms that are enabled.
    pub(super) mechanisms: &'a Mechanisms,
    /// Whether the local stack is the sender.
    pub(super) is_upload: bool,
    /// Bytes that it acknowledges beyond the previous ACK.
    pub(super) advance: u32,
    /// Holes that it reports for the first time.
    pub(super) new_holes: u32,
    /// The end of the highest byte that was received.
    pub(super) highest: Seq,
    /// Whether a hole is open.
    pub(super) is_hole_open: bool,
    /// Whether a hole is so long that the sender may not have repaired all of it.
    pub(super) has_long_hole: bool,
    /// Whether a loss that it shows is random, on a path that passed its test, of a sender that responds to congestion.
    pub(super) is_random: bool,
    /// The flow's smoothed round-trip time, or its default.
    pub(super) rtt: Duration,
    /// Whether both ends have agreed on SACK.
    pub(super) is_sack_permitted: bool,
    /// Whether the sender's window is closed by a zero-window freeze.
    pub(super) is_frozen: bool,
    /// Whether the flow is fast enough, and has been without loss for long enough, that one withheld byte costs nothing.
    pub(super) can_withhold: bool,
}

/// What is different in the ACK that leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct AckChange {
    /// The number to acknowledge; none: that of the ACK.
    pub(super) ack: Option<Seq>,
    /// The timestamp to echo; none: that of the ACK.
    pub(super) echo: Option<TcpTimestamp>,
    /// Whether later rewriters must leave the number as it is.
    pub(super) is_exact: bool,
}

/// A mechanism that changes ACKs.
pub(super) trait AckRewriter {
    /// Returns `change`, the changes so far, with those of this mechanism. It is called for every ACK, also while the
    /// mechanism is disabled, so that its state follows what the sender has learned.
    fn rewrite(&mut self, seen: &AckObservation<'_>, change: AckChange) -> AckChange;
}

impl AckChange {
    /// Writes the changes into the packet that holds `ack`.
    pub(super) fn write(&self, packet: &mut [u8], ack: &Ack) {
        let Ok(mut rewrite) = Rewrite::of(packet) else { return };
        if let Some(number) = self.ack.filter(|number| *number != ack.ack) {
            rewrite.set_ack(number);
        }
        if let (Some(echo), Some(timestamps)) = (self.echo, ack.timestamps)
            && echo != timestamps.ts_ecr
        {
            rewrite.set_ts_ecr(echo);
        }
    }
}
