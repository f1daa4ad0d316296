//! Invariants that can be checked with each output of an accelerator: verdicts, packets that it sends, packets that it
//! delivers.

use marline_core::accel::{Mechanism, Mechanisms, Output};
use marline_core::wire::packet::{Checksum, Packet, Segment as View};

use super::packet::Read;
use crate::accel::tcp_pair::TcpPair;
use crate::link::Direction;
use crate::tcp::Segment;

/// The checks for one accelerator.
#[derive(Clone, Copy, Debug)]
pub(super) struct InvariantChecker {
    /// Bytes may be acknowledged before they arrive.
    pub(super) allows_early_ack: bool,
}

impl InvariantChecker {
    pub(super) fn new(mechanisms: &Mechanisms) -> Self {
        let early = [Mechanism::EarlyAck, Mechanism::FreezeInFlight, Mechanism::FastFetch];
        Self { allows_early_ack: mechanisms.has_any(&early) }
    }

    /// Checks the verdicts of one drain; `queued` is the held packet that was handled just before it, if there was one.
    pub(super) fn check_verdicts(self, queued: Option<&[u8]>, outputs: &[Output]) -> Result<(), String> {
        let verdicts =
            outputs.iter().filter(|output| matches!(output, Output::Forward(_) | Output::Suppress)).count();
        match queued {
            None if verdicts > 0 => return Err(format!("{verdicts} verdicts without a held packet")),
            Some(_) if verdicts != 1 => return Err(format!("{verdicts} verdicts for one held packet")),
            Some(packet) if View::parse(packet).is_err() => {
                let left =
                    outputs.iter().any(|output| matches!(output, Output::Forward(bytes) if bytes.0 == packet));
                if !left {
                    return Err("a packet that is not TCP was changed".into());
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Checks a packet to the server of this connection.
    pub(super) fn check_sent(self, pair: &TcpPair, bytes: &[u8], parsed: &Read) -> Result<(), String> {
        check_checksum(bytes)?;
        let segment = match parsed {
            Read::Invalid(why) => return Err((*why).into()),
            Read::Segment(segment) => segment,
        };
        if segment.flags.rst || segment.flags.syn {
            return Ok(());
        }
        let edge = segment.ack + segment.window.bytes();
        if edge > pair.right_edge {
            return Err(format!("a window up to {edge}, the stack's own ends at {}", pair.right_edge));
        }
        let next = pair.received();
        if segment.ack > next && !self.allows_early_ack {
            return Err(format!("{} is acknowledged, and {next} bytes have arrived", segment.ack));
        }
        Ok(())
    }

    /// Checks a packet for the local stack. Nothing is acknowledged to it that the server has not received.
    pub(super) fn check_delivered(pair: &TcpPair, bytes: &[u8], parsed: &Read) -> Result<Segment, String> {
        check_checksum(bytes)?;
        let segment = match parsed {
            Read::Invalid(why) => return Err((*why).into()),
            Read::Segment(segment) => segment,
        };
        let view = View::parse(bytes).map_err(|refusal| refusal.to_string())?;
        let due = pair.content.bytes(Direction::Down, segment.seqs.start, segment.seqs.end);
        if view.payload() != due {
            return Err(format!("wrong bytes within {:?}", segment.seqs));
        }
        let taken = pair.server_received();
        if segment.flags.ack && segment.ack > taken {
            return Err(format!("{} is acknowledged, and the server has received {taken}", segment.ack));
        }
        Ok(*segment)
    }
}

fn check_checksum(bytes: &[u8]) -> Result<(), String> {
    match Packet::parse(bytes).map(|packet| packet.checksum()) {
        Ok(Checksum::Valid) => Ok(()),
        Ok(other) => Err(format!("a packet's checksum: {other:?}")),
        Err(refusal) => Err(format!("not a packet: {refusal}")),
    }
}
