//! Repairs one flow whose data was acknowledged early by a process that has ended ([`PendingRepair`]).
//!
//! The sender holds the missing bytes for received and never repeats them. This machine injects them into the local
//! stack, and then watches the stack's own acknowledgements until they are past every hole. A hole is repaired when the
//! stack acknowledges it, not when its bytes were injected: the stack may drop them.
//!
//! 1. The usual reason for a drop is PAWS (RFC 7323 section 5): a segment older than the newest timestamp that the
//!    stack has accepted in order is discarded. That timestamp moves on when the sender repairs another, earlier hole
//!    itself, long after the hole's own timestamp was written down. The stack echoes it in each acknowledgement, so an
//!    injected segment carries the newest echo, or the hole's own timestamp if that is newer.
//! 2. A flow is reset at both ends if a hole's bytes cannot be fetched, if the stack waits for bytes that the sender
//!    takes for received, or if it is unknown how much was acknowledged ([`PendingRepair::is_acked_known`]): within
//!    [`RESET_AFTER`].
//! 3. Where the stack waits for other bytes, the sender repeats those, and may take as long as TCP does ([`MAX_TIME`]).

use alloc::vec::Vec;

use super::pending::{INJECT_INTERVAL, PendingRepair};
use crate::accel::event::PacketBytes;
use crate::units::{Duration, Instant};
use crate::wire::packet::{Flags, Segment, Seq, TcpTimestamp};

/// The repair of one flow.
#[derive(Clone, Debug)]
pub struct Repair {
    pending: PendingRepair,
    /// In the order of the holes.
    holes: Vec<HoleState>,
    /// What the local stack acknowledges.
    next_expected: Seq,
    /// When it last acknowledged something new.
    last_progress: Instant,
    /// The newest timestamp that it echoes.
    echo: Option<TcpTimestamp>,
    /// The number that it sends next.
    next_local_seq: Seq,
    is_seen: bool,
    began: Instant,
    state: RepairState,
    resets: u8,
    last_action: Option<Instant>,
}

/// What is known of one hole.
#[derive(Clone, Debug, Default)]
struct HoleState {
    bytes: Option<Vec<u8>>,
    has_failed: bool,
    given: Option<Instant>,
}

/// How far a repair has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RepairState {
    /// Some holes are not filled yet.
    Open,
    /// The local stack has acknowledged every hole.
    Filled,
    /// The flow is being reset, or was.
    Reset,
    /// The flow no longer existed.
    Gone,
}

/// A packet of a repair.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RepairPacket {
    /// Give it to the local stack, as if it had been received.
    Deliver(PacketBytes),
    /// For the server, over the flow's own link.
    Send(PacketBytes),
}

impl Repair {
    /// A repair that begins at `now`.
    pub fn new(now: Instant, pending: PendingRepair) -> Self {
        Self {
            holes: pending.holes.iter().map(|_| HoleState::default()).collect(),
            next_expected: Seq::new(pending.next_expected),
            last_progress: now,
            echo: None,
            next_local_seq: Seq::new(pending.acked_by_server.0),
            is_seen: false,
            began: now,
            state: RepairState::Open,
            resets: 0,
            last_action: None,
            pending,
        }
    }

    /// The holes that this repair fills.
    pub const fn pending(&self) -> &PendingRepair {
        &self.pending
    }

    /// How far it has come.
    pub const fn state(&self) -> RepairState {
        self.state
    }

    /// Whether nothing is left to do.
    pub const fn is_over(&self) -> bool {
        match self.state {
            RepairState::Open => false,
            RepairState::Filled | RepairState::Gone => true,
            RepairState::Reset => self.resets >= MAX_RESETS,
        }
    }

    /// Number of holes that were filled.
    pub fn filled(&self) -> usize {
        let is_filled = |(at, hole_state): (usize, &HoleState)| hole_state.given.is_some() && self.is_past(at);
        self.holes.iter().enumerate().filter(|one| is_filled(*one)).count()
    }

    /// The local stack has sent this segment of the flow.
    pub fn on_local_segment(&mut self, now: Instant, segment: &Segment<'_>) {
        let flags = segment.flags();
        if flags.contains(Flags::RST) {
            // The stack knows no such connection, or has just closed it.
            if self.state == RepairState::Open {
                self.state = RepairState::Gone;
            }
            self.resets = MAX_RESETS;
            return;
        }
        let Some(ack) = segment.ack() else { return };
        if !self.is_seen || ack.is_after(self.next_expected) {
            (self.next_expected, self.last_progress) = (ack, now);
        }
        self.is_seen = true;
        self.next_local_seq = self.next_local_seq.later(segment.seq_range().end);
        if let Some(timestamps) = segment.timestamps()
            && self.echo.is_none_or(|old| old.is_before(timestamps.ts_ecr))
        {
            self.echo = Some(timestamps.ts_ecr);
        }
    }

    /// The bytes of a hole; none: they could not be fetched.
    pub fn on_fetched(&mut self, hole: usize, bytes: Option<Vec<u8>>) {
        if let Some(hole_state) = self.holes.get_mut(hole) {
            hole_state.has_failed |= bytes.is_none();
            hole_state.bytes = bytes.or(hole_state.bytes.take());
        }
    }

    /// Returns what is to be sent now. To be called after each input, and at [`deadline`](Self::deadline).
    pub fn tick(&mut self, now: Instant) -> Vec<RepairPacket> {
        if self.state == RepairState::Open {
            if self.pending.is_acked_known
                && (0..self.holes.len()).all(|hole| self.is_past(hole))
                && !self.is_behind_early_ack()
            {
                self.state = RepairState::Filled;
            } else if self.must_reset(now) {
                (self.state, self.last_action) = (RepairState::Reset, None);
            }
        }
        match self.state {
            RepairState::Open => self.fill_holes(now),
            RepairState::Reset if !self.is_over() => self.reset_packets(now),
            _ => Vec::new(),
        }
    }

    /// When to tick next.
    pub fn deadline(&self) -> Option<Instant> {
        let next = self.last_action.map_or(self.began, |acted| acted + INJECT_INTERVAL);
        (!self.is_over()).then_some(next)
    }

    /// Whether the stack has acknowledged a hole. Its last byte may be withheld by another run.
    fn is_past(&self, hole: usize) -> bool {
        self.pending.holes.get(hole).is_none_or(|hole| !self.next_expected.is_before(hole.end().minus(1)))
    }

    /// Whether more was acknowledged to the sender than the stack has received in order.
    fn is_behind_early_ack(&self) -> bool {
        self.pending.acked_to_server.is_some_and(|acked| self.next_expected.is_before(Seq::new(acked).minus(1)))
    }

    /// Whether the stack waits for bytes that the sender does not repeat.
    fn is_stuck(&self) -> bool {
        let covers = |hole: &super::pending::PendingHole| {
            !self.next_expected.is_before(Seq::new(hole.seq)) && self.next_expected.is_before(hole.end().minus(1))
        };
        self.is_behind_early_ack() || self.pending.holes.iter().any(covers)
    }

    fn must_reset(&self, now: Instant) -> bool {
        let lacks = |test: fn(&HoleState) -> bool| {
            self.holes.iter().enumerate().any(|(hole, hole_state)| test(hole_state) && !self.is_past(hole))
        };
        let stalled_for = now.since(self.last_progress);
        !self.pending.is_acked_known
            || lacks(|hole_state| hole_state.has_failed && hole_state.bytes.is_none())
            || (now.since(self.began) >= RESET_AFTER && lacks(|hole_state| hole_state.bytes.is_none()))
            || (self.is_seen && self.is_stuck() && stalled_for >= RESET_AFTER)
            || now.since(self.began) >= MAX_TIME
    }

    /// Injects each hole's bytes once, and again those for which the stack waits; where there are none yet, a byte that
    /// it already has, which it answers with its position.
    fn fill_holes(&mut self, now: Instant) -> Vec<RepairPacket> {
        let is_due = |at: Option<Instant>| at.is_none_or(|at| now.since(at) >= INJECT_INTERVAL);
        let (may_repeat, mut packets) = (is_due(self.last_action), Vec::new());
        for (at, hole) in self.pending.holes.iter().enumerate() {
            let is_past = self.is_past(at);
            let is_awaited = !self.next_expected.is_before(Seq::new(hole.seq));
            let Some(hole_state) = self.holes.get_mut(at) else { continue };
            let Some(bytes) = hole_state.bytes.as_deref().filter(|_| !is_past) else { continue };
            if hole_state.given.is_none()
                || (is_awaited && is_due(hole_state.given))
                || (!self.is_seen && may_repeat)
            {
                packets.extend(self.pending.fill_segments(hole, bytes, self.echo));
                hole_state.given = Some(now);
            }
        }
        if packets.is_empty() && may_repeat {
            packets.extend(self.pending.probe_segment(self.next_expected));
        }
        if !packets.is_empty() {
            self.last_action = Some(now);
        }
        packets.into_iter().map(RepairPacket::Deliver).collect()
    }

    /// Resets for both ends. The local stack accepts only one with exactly the number it waits for, so the byte behind
    /// them asks for that number, or shows that the connection is gone.
    fn reset_packets(&mut self, now: Instant) -> Vec<RepairPacket> {
        if self.last_action.is_some_and(|acted| now.since(acted) < INJECT_INTERVAL) {
            return Vec::new();
        }
        self.last_action = Some(now);
        self.resets += 1;
        let mut packets: Vec<RepairPacket> =
            self.pending.local_resets(self.next_expected).into_iter().map(RepairPacket::Deliver).collect();
        packets.extend(self.pending.server_reset(self.next_local_seq, self.next_expected).map(RepairPacket::Send));
        packets.extend(self.pending.probe_segment(self.next_expected).map(RepairPacket::Deliver));
        packets
    }
}

/// Our choice: the application has its error within five seconds.
const RESET_AFTER: Duration = Duration::from_secs(4);
/// Our choice: beyond the timeouts of a sender that repairs a hole of its own.
const MAX_TIME: Duration = Duration::from_secs(120);
/// Our choice: over a link that loses one of ten, five resets all get lost once in 100,000 times.
const MAX_RESETS: u8 = 5;

#[cfg(test)]
mod tests;
