//! A link: packets in at one end, the same packets out at the other, later, fewer and never faster than it may.
//!
//! In: packets with the time at which they come, and changes. Out: packets with the time at which they are due.
//!
//! 1. Each direction is a queue, then a server (a rate, a trace or the shared 802.11 medium), then loss, then a delay
//!    line. What is lost was served first: it has used the link.
//! 2. All times are computed from the end of the packet served before, never from the time of the call. A driver that
//!    comes late delivers late, but the link loses no rate by it.
//! 3. `pushed = delivered + dropped + inside`, in packets and in bytes, at every moment.
//! 4. The same seed, packets and times give the same deliveries; the n-th decision of each kind depends on n alone
//!    (see [`crate::rng`]).
//! 5. Time never goes back; an earlier `now` counts as the latest one seen.
//! 6. `change` and `push` at one and the same instant work in the order of the calls; what the link does by itself at
//!    an instant (a packet served, a scheduled change) comes before both.
//!
//! An actor with a clock of its own was not used: one machine without a clock serves the lab, where a timer drives it,
//! and the simulation, where a minute takes milliseconds.

mod codel;
mod contention;
mod delay;
mod lane;
pub(crate) mod loss;
mod policer;
mod queue;
mod server;
mod stats;

use std::collections::VecDeque;

use marline_core::units::{Bitrate, DataSize, Instant};

use crate::medium::Medium;
use crate::spec::{Carrier, Change, LinkSpec, QueueLimit, TraceFile, Uplink};
use crate::trace::Trace;
use contention::contend;
use delay::DelayLine;
use lane::Lane;
use loss::LossProcess;
use policer::Policer;
use queue::Queue;
use server::Server;
pub use stats::{Count, Stats};

/// Anything that a link can carry.
pub trait Packet {
    /// Bytes of the IP packet, headers included.
    fn size(&self) -> DataSize;
}

impl Packet for Vec<u8> {
    fn size(&self) -> DataSize {
        DataSize::from_bytes(self.len() as u64)
    }
}

/// Which way a packet goes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Direction {
    /// Towards the client.
    Down,
    /// From the client.
    Up,
}

impl Direction {
    /// Both, for loops.
    pub const BOTH: [Self; 2] = [Self::Down, Self::Up];

    const fn lane(self) -> usize {
        match self {
            Self::Down => 0,
            Self::Up => 1,
        }
    }
}

/// A running link.
#[derive(Debug)]
pub struct Link<P> {
    lanes: [Lane<P>; 2],
    medium: Option<Medium>,
    /// Whether the uplink's rate follows the downlink's.
    up_follows: bool,
    /// Whether a change of the loss is only one towards the client.
    up_loses_alone: bool,
    held: bool,
    /// Changes to come, in order.
    schedule: VecDeque<(Instant, Change)>,
    /// Before this, nothing that the medium will send is due, if no more packets come.
    on_air: Option<Instant>,
    now: Instant,
}

impl<P: Packet> Link<P> {
    /// An idle link at time zero. The steps of its rate are scheduled; events are for the caller to
    /// [schedule](Self::schedule) or to [apply](Self::change).
    ///
    /// # Panics
    /// When the link names a trace that was not loaded: [`LinkSpec::load`] comes first.
    pub fn new(spec: &LinkSpec, seed: u64) -> Self {
        let mut medium = None;
        let mut schedule = VecDeque::new();
        let down = match &spec.down {
            Carrier::Rate { first, steps } => {
                schedule.extend(steps.iter().map(|(at, rate)| (Instant::ZERO + *at, Change::Rate(*rate))));
                Server::rate(*first)
            }
            Carrier::Trace(file) => Server::trace(loaded(file)),
            Carrier::Medium { preset, phy } => {
                let up = if let Uplink::Rate(rate) = spec.up { Some(rate) } else { None };
                let up = up.or(if *preset == crate::medium::Preset::BPaper { None } else { *phy });
                let shared = Medium::new(*preset, [*phy, up], seed, &spec.name);
                let solo = shared.solo_rate(0, spec.mtu);
                medium = Some(shared);
                Server::rate(solo)
            }
        };
        let up = match &spec.up {
            Uplink::Trace(file) => Server::trace(loaded(file)),
            Uplink::Rate(rate) if medium.is_none() => Server::rate(*rate),
            _ => Server::rate(medium.as_ref().map_or(down.nominal(), |medium| medium.solo_rate(1, spec.mtu))),
        };
        let lane = |direction: Direction, server: Server| {
            let limit = match spec.queue_limit() {
                QueueLimit::Time(time) => server.nominal() * time,
                QueueLimit::Size(size) => size,
            };
            let half = spec.rtt / 2;
            let loss = spec.up_loss.filter(|_| direction == Direction::Up).unwrap_or(spec.loss);
            Lane::new(
                spec.mtu,
                Queue::new(limit.max(spec.mtu), spec.codel.then_some(spec.mtu)),
                server,
                LossProcess::new(loss, seed, &spec.name, direction),
                spec.police.map(Policer::new),
                DelayLine::new(half, spec.jitter, spec.reorder, seed, &spec.name, direction),
            )
        };
        Self {
            lanes: [lane(Direction::Down, down), lane(Direction::Up, up)],
            medium,
            up_follows: spec.up == Uplink::Same,
            up_loses_alone: spec.up_loss.is_some(),
            held: false,
            schedule,
            on_air: None,
            now: Instant::ZERO,
        }
    }

    /// Takes a packet in at `now`. It may be dropped at once; the statistics tell.
    pub fn push(&mut self, direction: Direction, packet: P, now: Instant) {
        self.settle(now);
        self.lanes[direction.lane()].push(packet, self.now);
        self.serve(self.now);
    }

    /// The next packet that is due at or before `now`, earliest first.
    pub fn pop(&mut self, now: Instant) -> Option<(Direction, P)> {
        self.pop_due(now).map(|(_, direction, packet)| (direction, packet))
    }

    /// As [`Self::pop`], with the time at which the packet was due: what a driver's lateness is measured from.
    pub fn pop_due(&mut self, now: Instant) -> Option<(Instant, Direction, P)> {
        self.settle(now);
        let due = |lane: &Lane<P>| lane.due().unwrap_or(Instant::FAR_FUTURE);
        let direction = if due(&self.lanes[0]) <= due(&self.lanes[1]) { Direction::Down } else { Direction::Up };
        let (due, packet) = self.lanes[direction.lane()].deliver(self.now)?;
        Some((due, direction, packet))
    }

    /// When to call [`Self::pop`] next: nothing is due before. Holds until the next call that changes the link.
    pub fn next_event(&self) -> Option<Instant> {
        let waiting = self.lanes.iter().any(Lane::is_serving);
        let scheduled = self.schedule.front().map(|(at, _)| *at).filter(|_| waiting);
        // On a medium the lanes have no server of their own; what it sends next is in `on_air`.
        let next = if self.medium.is_some() { Lane::due } else { Lane::next_event };
        let lanes = self.lanes.iter().filter_map(next).min();
        [scheduled, lanes, self.on_air].into_iter().flatten().min()
    }

    /// Changes the link at `now`.
    pub fn change(&mut self, change: &Change, now: Instant) {
        self.settle(now);
        self.apply(change, self.now);
        self.serve(self.now);
    }

    /// Changes the link at a time to come, exactly then, however late the driver comes. A time that has passed
    /// counts as now.
    pub fn schedule(&mut self, at: Instant, change: Change) {
        let at = at.max(self.now);
        let place = self.schedule.partition_point(|(other, _)| *other <= at);
        self.schedule.insert(place, (at, change));
    }

    /// What the direction has carried, dropped and holds.
    pub fn stats(&self, direction: Direction) -> Stats {
        let mut stats = self.lanes[direction.lane()].stats();
        if let Some(medium) = &self.medium {
            stats.airtime = medium.airtime(direction.lane());
        }
        stats
    }

    /// Does all that happens up to `now`.
    fn settle(&mut self, now: Instant) {
        let now = now.max(self.now);
        while let Some((at, change)) = self.schedule.front().copied().filter(|(at, _)| *at <= now) {
            self.schedule.pop_front();
            self.serve(at);
            self.apply(&change, at);
        }
        self.serve(now);
    }

    fn serve(&mut self, now: Instant) {
        self.now = now;
        match &mut self.medium {
            None => self.lanes.iter_mut().for_each(|lane| lane.serve(now)),
            Some(medium) => {
                self.on_air = if self.held { None } else { contend(medium, &mut self.lanes, now) };
            }
        }
    }

    fn apply(&mut self, change: &Change, now: Instant) {
        match *change {
            Change::Rate(rate) => {
                self.set_rate(0, rate, now);
                if self.up_follows {
                    self.set_rate(1, rate, now);
                }
            }
            Change::Up(rate) => {
                self.up_follows = false;
                self.set_rate(1, rate, now);
            }
            Change::Down => self.lanes.iter_mut().for_each(|lane| lane.set_vanishing(true)),
            Change::Hold => self.set_held(true, now),
            Change::Back => {
                self.lanes.iter_mut().for_each(|lane| lane.set_vanishing(false));
                self.set_held(false, now);
            }
            Change::Loss(loss) => {
                let lanes = if self.up_loses_alone { 1 } else { 2 };
                self.lanes.iter_mut().take(lanes).for_each(|lane| lane.set_loss(loss));
            }
            Change::Rtt(rtt) => self.lanes.iter_mut().for_each(|lane| lane.set_delay(rtt / 2)),
            Change::Jitter(jitter) => self.lanes.iter_mut().for_each(|lane| lane.set_jitter(jitter)),
        }
    }

    fn set_rate(&mut self, lane: usize, rate: Bitrate, now: Instant) {
        match &mut self.medium {
            Some(medium) => medium.set_rate(lane, rate, now),
            None => self.lanes[lane].set_rate(rate, now),
        }
    }

    fn set_held(&mut self, held: bool, now: Instant) {
        if let (Some(medium), false) = (&mut self.medium, held) {
            medium.hold_until(now);
        }
        self.held = held;
        self.lanes.iter_mut().for_each(|lane| lane.set_held(held, now));
    }
}

pub(crate) fn loaded(file: &TraceFile) -> std::sync::Arc<Trace> {
    match &file.trace {
        Some(trace) => trace.clone(),
        None => panic!("trace {} was not loaded: LinkSpec::load comes first", file.file.display()),
    }
}

#[cfg(test)]
mod tests;
