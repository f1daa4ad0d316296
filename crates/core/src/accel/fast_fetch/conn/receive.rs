//! Receive path of a mirrored connection.
//!
//! 1. A packet counts only if it acknowledges exactly what was sent; a reset without an acknowledgement, if it has a
//!    number that was acknowledged recently.
//! 2. The head is read in order and must be that of the flow: validator, length and offset. Behind it only wanted bytes
//!    are kept.

use super::{CloseReason, MirroredConn, Phase};
use crate::accel::early_ack::head_reassembler::{Head, HeadReassembler};
use crate::accel::early_ack::http_head::ResponseHead;
use crate::accel::seq_space::{PosRange, nearest_position, position_of};
use crate::units::Instant;
use crate::wire::packet::{Flags, Segment};

use super::pacer::AckPacer;

impl MirroredConn {
    /// A packet from the server, or a forged one; whether it counts.
    pub(crate) fn on_packet(&mut self, now: Instant, segment: &Segment<'_>) -> bool {
        let (flags, ack) = (segment.flags(), segment.ack());
        let is_own = match self.phase {
            Phase::Closed(_) => false,
            // A host without this connection answers with the acknowledged number (RFC 9293 section 3.10.7.1).
            _ if flags.contains(Flags::RST) && ack.is_none() => (self.acked.saturating_sub(RECENT_BYTES)
                ..=self.acked)
                .contains(&nearest_position(self.acked, segment.seq())),
            Phase::Connecting { .. } => ack == Some(self.isn.plus(1)),
            // A server that has not received all of the request acknowledges what it has.
            Phase::ReadingHead { .. } => {
                ack.is_some_and(|ack| ack.is_after(self.isn) && !ack.is_after(self.next_seq()))
            }
            Phase::Advancing => ack == Some(self.next_seq()),
        };
        if !is_own {
            return false;
        }
        match self.phase {
            _ if flags.contains(Flags::RST) => self.give_up(CloseReason::Closed),
            Phase::Connecting { .. } if flags.contains(Flags::SYN) => {
                let at = position_of(segment.seq().plus(1));
                (self.acked, self.highest, self.last_progress) = (at, at, now);
                self.rtt = now.since(self.syn_sent);
                self.head = HeadReassembler::new(at);
                self.phase = Phase::ReadingHead { tries: 1 };
                self.send_request();
            }
            Phase::Connecting { .. } => {}
            _ if flags.contains(Flags::SYN) => self.send_ack(),
            _ => self.on_segment(now, segment),
        }
        true
    }

    fn on_segment(&mut self, now: Instant, segment: &Segment<'_>) {
        let at = nearest_position(self.highest, segment.seq());
        let bytes = segment.payload();
        let end = at.saturating_add(bytes.len() as u64);
        if bytes.is_empty() && self.probes > 0 && self.phase == Phase::Advancing {
            self.on_position(now, at);
        }
        if !bytes.is_empty() {
            if end > self.highest {
                (self.highest, self.last_progress, self.probes) = (end, now, 0);
            }
            if matches!(self.phase, Phase::ReadingHead { .. }) {
                self.read_head(now, at, bytes);
            }
            if self.phase == Phase::Advancing {
                self.collect(now, at, bytes);
            }
        }
        let is_complete = self.phase == Phase::Advancing && end >= self.body_start + self.resource.length;
        if segment.flags().contains(Flags::FIN) && !is_complete {
            self.give_up(CloseReason::Closed);
        }
    }

    /// The server reports its position.
    fn on_position(&mut self, now: Instant, at: u64) {
        (self.probes, self.last_progress) = (0, now);
        if (self.body_start..self.acked).contains(&at) {
            // It has sent no more than that: later ACKs were ignored.
            self.pacer.on_stall(now);
            self.acked = at;
            self.next_duplicate_acks = None;
            self.send_ack();
        }
    }

    /// Reads the head like any receiver.
    fn read_head(&mut self, now: Instant, at: u64, bytes: &[u8]) {
        self.head.on_payload(at, bytes, bytes.len() as u64);
        self.received.insert(PosRange::new(at, at + bytes.len() as u64));
        self.acked = self.received.run_from(self.acked);
        while self.phase != Phase::Advancing {
            let answer = match self.head.take_head() {
                Head::Partial => break,
                Head::Complete(head) => ResponseHead::parse(&head),
                Head::TooLong | Head::Lost => return self.give_up(CloseReason::Differs),
            };
            let Ok(answer) = answer else { return self.give_up(CloseReason::Differs) };
            if answer.is_interim {
                continue;
            }
            let is_same = answer.part.is_ok_and(|part| {
                (part.offset, part.length, &part.etag) == (0, self.resource.length, &self.resource.etag)
            });
            if !is_same || answer.body != self.resource.length {
                return self.give_up(CloseReason::Differs);
            }
            self.body_start = self.head.next();
            self.acked = self.acked.max(self.body_start);
            self.phase = Phase::Advancing;
            self.pacer = AckPacer::new(self.options, now, self.ack_interval);
        }
        self.send_ack();
    }

    /// Keeps what is wanted of these bytes.
    fn collect(&mut self, now: Instant, at: u64, bytes: &[u8]) {
        let cut = usize::try_from(self.body_start.saturating_sub(at)).unwrap_or(usize::MAX);
        if self.wanted.on_bytes(at.saturating_sub(self.body_start), bytes.get(cut..).unwrap_or_default()) {
            (self.last_progress, self.probes) = (now, 0);
        }
        let is_waited_for = self.next_duplicate_acks.is_some() && at <= self.acked;
        for (fetched, since) in self.wanted.take_complete() {
            self.hole_time = (self.hole_time + now.since(since)) / 2;
            self.outputs.fetched.push(fetched);
        }
        if is_waited_for && self.ack_limit() > self.acked {
            // It has come: the server may go on at once.
            self.acked = self.ack_limit().min(self.highest).max(self.acked);
            self.next_duplicate_acks = None;
            self.pacer.on_hole(now);
            self.send_ack();
        }
    }
}

/// Our choice: more than is acknowledged in a round trip.
const RECENT_BYTES: u64 = 1024 * 1024;
