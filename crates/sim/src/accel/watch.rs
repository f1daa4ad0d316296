//! What an accelerator must never do, as far as it can be seen at once.
//!
//! In: what it answers to a packet that it holds, and what it sends and delivers. Out: what was wrong, in words.

use marline_core::accel::{Mechanism, Mechanisms, Output};
use marline_core::wire::packet::{Checksum, Packet, Segment as View};

use super::packet::Read;
use super::station::Station;
use crate::link::Direction;
use crate::tcp::Segment;

/// What may be done with acknowledgements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Watch {
    /// Bytes may be acknowledged before they are here.
    pub(super) may_hide: bool,
}

impl Watch {
    pub(super) fn new(mechanisms: &Mechanisms) -> Self {
        let hiding = [Mechanism::Hide, Mechanism::FreezeFlight, Mechanism::FastFetch];
        Self { may_hide: mechanisms.has_any(&hiding) }
    }

    /// The answers of one drain; `held` is the packet, if the drain follows one.
    pub(super) fn on_answers(self, held: Option<&[u8]>, outputs: &[Output]) -> Result<(), String> {
        let answers = outputs.iter().filter(|output| matches!(output, Output::Leave(_) | Output::Hold)).count();
        match held {
            None if answers > 0 => return Err(format!("{answers} answers to nothing that was held")),
            Some(_) if answers != 1 => return Err(format!("{answers} answers to a packet that was held")),
            Some(packet) if View::parse(packet).is_err() => {
                let left = outputs.iter().any(|output| matches!(output, Output::Leave(bytes) if bytes.0 == packet));
                if !left {
                    return Err("what is not TCP did not leave as it came".into());
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// A packet to the server of this connection, from the accelerator.
    pub(super) fn on_sent(self, station: &Station, bytes: &[u8], read: &Read) -> Result<(), String> {
        checksum(bytes)?;
        let segment = match read {
            Read::Odd(why) => return Err((*why).into()),
            Read::Segment(segment) => segment,
        };
        if segment.flags.rst || segment.flags.syn {
            return Ok(());
        }
        let edge = segment.ack + segment.window.bytes();
        if edge > station.edge {
            return Err(format!("a window up to {edge}, the stack's own ends at {}", station.edge));
        }
        let next = station.received();
        if segment.ack > next && !self.may_hide {
            return Err(format!("{} is acknowledged, and {next} bytes are here", segment.ack));
        }
        Ok(())
    }

    /// A packet for the stack. Nothing is acknowledged to it that the server's has not.
    pub(super) fn on_delivered(station: &Station, bytes: &[u8], read: &Read) -> Result<Segment, String> {
        checksum(bytes)?;
        let segment = match read {
            Read::Odd(why) => return Err((*why).into()),
            Read::Segment(segment) => segment,
        };
        let view = View::parse(bytes).map_err(|refusal| refusal.to_string())?;
        let due = station.content.bytes(Direction::Down, segment.seqs.start, segment.seqs.end);
        if view.payload() != due {
            return Err(format!("wrong bytes within {:?}", segment.seqs));
        }
        let taken = station.taken_by_stack();
        if segment.flags.ack && segment.ack > taken {
            return Err(format!("{} is acknowledged, and the server has {taken}", segment.ack));
        }
        Ok(*segment)
    }
}

fn checksum(bytes: &[u8]) -> Result<(), String> {
    match Packet::parse(bytes).map(|packet| packet.checksum()) {
        Ok(Checksum::Valid) => Ok(()),
        Ok(other) => Err(format!("a packet's checksum: {other:?}")),
        Err(refusal) => Err(format!("no packet: {refusal}")),
    }
}
