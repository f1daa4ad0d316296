//! What a server says in a replayed connection.
//!
//! In: its packets. Out: how far the connection has come, and what of it was wanted.
//!
//! 1. A packet counts only if it acknowledges exactly what was sent; a reset without an acknowledgement, if it has a number that was
//!    said lately.
//! 2. The head is read in order, and has to be the flow's own: validator, length and place. Behind it nothing is kept but what
//!    is wanted.

use super::{End, Phase, Replay};
use crate::accel::early_ack::head_reassembler::{Head, Tap};
use crate::accel::early_ack::http_head::Answer;
use crate::accel::seq_space::{Stretch, first, near};
use crate::units::Instant;
use crate::wire::packet::{Flags, Segment};

use super::pacer::Stride;

impl Replay {
    /// A packet, of the server or of somebody who guesses; whether it counts.
    pub(in crate::accel) fn on_packet(&mut self, now: Instant, segment: &Segment<'_>) -> bool {
        let (flags, ack) = (segment.flags(), segment.ack());
        let is_own = match self.phase {
            Phase::Over(_) => false,
            // Who knows nothing of it answers with the number that he was told (RFC 9293 §3.10.7.1).
            _ if flags.contains(Flags::RST) && ack.is_none() => {
                (self.told.saturating_sub(RECENT)..=self.told).contains(&near(self.told, segment.seq()))
            }
            Phase::Calling { .. } => ack == Some(self.isn.plus(1)),
            // One that has not all of the request yet says what it waits for.
            Phase::Reading { .. } => ack.is_some_and(|ack| ack.is_after(self.isn) && !ack.is_after(self.own())),
            Phase::Walking => ack == Some(self.own()),
        };
        if !is_own {
            return false;
        }
        match self.phase {
            _ if flags.contains(Flags::RST) => self.give_up(End::Closed),
            Phase::Calling { .. } if flags.contains(Flags::SYN) => {
                let at = first(segment.seq().plus(1));
                (self.told, self.front, self.moved) = (at, at, now);
                self.rtt = now.since(self.called);
                self.tap = Tap::new(at);
                self.phase = Phase::Reading { tries: 1 };
                self.ask();
            }
            Phase::Calling { .. } => {}
            _ if flags.contains(Flags::SYN) => self.acknowledge(),
            _ => self.on_segment(now, segment),
        }
        true
    }

    fn on_segment(&mut self, now: Instant, segment: &Segment<'_>) {
        let at = near(self.front, segment.seq());
        let bytes = segment.payload();
        let end = at.saturating_add(bytes.len() as u64);
        if bytes.is_empty() && self.questions > 0 && self.phase == Phase::Walking {
            self.on_answer(now, at);
        }
        if !bytes.is_empty() {
            if end > self.front {
                (self.front, self.moved, self.questions) = (end, now, 0);
            }
            if matches!(self.phase, Phase::Reading { .. }) {
                self.read(now, at, bytes);
            }
            if self.phase == Phase::Walking {
                self.collect(now, at, bytes);
            }
        }
        let is_whole = self.phase == Phase::Walking && end >= self.body + self.resource.length;
        if segment.flags().contains(Flags::FIN) && !is_whole {
            self.give_up(End::Closed);
        }
    }

    /// The server says where it stands.
    fn on_answer(&mut self, now: Instant, at: u64) {
        (self.questions, self.moved) = (0, now);
        if (self.body..self.told).contains(&at) {
            // It has sent no more than that: what was said since was ignored.
            self.stride.on_lost(now);
            self.told = at;
            self.plea = None;
            self.acknowledge();
        }
    }

    /// The head is read as any receiver reads.
    fn read(&mut self, now: Instant, at: u64, bytes: &[u8]) {
        self.tap.see(at, bytes, bytes.len() as u64);
        self.have.insert(Stretch::new(at, at + bytes.len() as u64));
        self.told = self.have.run_from(self.told);
        while self.phase != Phase::Walking {
            let answer = match self.tap.head() {
                Head::Partial => break,
                Head::Whole(head) => Answer::parse(&head),
                Head::TooLong | Head::Lost => return self.give_up(End::Differs),
            };
            let Ok(answer) = answer else { return self.give_up(End::Differs) };
            if answer.is_interim {
                continue;
            }
            let is_same = answer.part.is_ok_and(|part| {
                (part.offset, part.length, &part.etag) == (0, self.resource.length, &self.resource.etag)
            });
            if !is_same || answer.body != self.resource.length {
                return self.give_up(End::Differs);
            }
            self.body = self.tap.next();
            self.told = self.told.max(self.body);
            self.phase = Phase::Walking;
            self.stride = Stride::new(now, self.beat);
        }
        self.acknowledge();
    }

    /// What of these bytes is wanted is kept.
    fn collect(&mut self, now: Instant, at: u64, bytes: &[u8]) {
        let cut = usize::try_from(self.body.saturating_sub(at)).unwrap_or(usize::MAX);
        if self.hunts.see(at.saturating_sub(self.body), bytes.get(cut..).unwrap_or_default()) {
            (self.moved, self.questions) = (now, 0);
        }
        let is_waited_for = self.plea.is_some() && at <= self.told;
        for (got, since) in self.hunts.take() {
            self.each = (self.each + now.since(since)) / 2;
            self.out.got.push(got);
        }
        if is_waited_for && self.limit() > self.told {
            // It has come: the server may go on at once.
            self.told = self.limit().min(self.front).max(self.told);
            self.plea = None;
            self.stride.on_hole(now);
            self.acknowledge();
        }
    }
}

/// chosen: more than is said in a round trip.
const RECENT: u64 = 1024 * 1024;
