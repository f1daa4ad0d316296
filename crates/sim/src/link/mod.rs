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
mod half_link;
pub(crate) mod loss;
mod policer;
mod queue;
mod stats;
mod transmitter;

use std::collections::VecDeque;

use marline_core::units::{Bitrate, DataSize, Instant};

use crate::spec::{Downlink, LinkEventKind, LinkSpec, QueueLimit, TraceFile, Uplink};
use crate::trace::Trace;
use crate::wifi_mac::WifiChannel;
use contention::run_contention;
use delay::DelayLine;
use half_link::HalfLink;
use loss::LossProcess;
use policer::Policer;
use queue::Queue;
pub use stats::{DirectionStats, PacketCount};
use transmitter::Transmitter;

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

    const fn index(self) -> usize {
        match self {
            Self::Down => 0,
            Self::Up => 1,
        }
    }
}

/// A running link.
#[derive(Debug)]
pub struct Link<P> {
    half_links: [HalfLink<P>; 2],
    channel: Option<WifiChannel>,
    /// Whether the uplink's rate follows the downlink's.
    uplink_follows: bool,
    /// Whether a change of the loss is only one towards the client.
    has_own_uplink_loss: bool,
    is_held: bool,
    /// Changes to come, in order.
    schedule: VecDeque<(Instant, LinkEventKind)>,
    /// Before this, nothing that the medium will send is due, if no more packets come.
    channel_event: Option<Instant>,
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
        let down = match &spec.downlink {
            Downlink::Rate { initial: first, steps } => {
                schedule.extend(steps.iter().map(|(at, rate)| (Instant::ZERO + *at, LinkEventKind::Rate(*rate))));
                Transmitter::rate(*first)
            }
            Downlink::Trace(file) => Transmitter::trace(loaded_trace(file)),
            Downlink::Wifi { preset, phy } => {
                let uplink_rate = if let Uplink::Rate(rate) = spec.uplink { Some(rate) } else { None };
                let uplink_rate =
                    uplink_rate.or(if *preset == crate::wifi_mac::WifiPreset::BPaper { None } else { *phy });
                let channel = WifiChannel::new(*preset, [*phy, uplink_rate], seed, &spec.name);
                let solo_rate = channel.solo_rate(0, spec.mtu);
                medium = Some(channel);
                Transmitter::rate(solo_rate)
            }
        };
        let up = match &spec.uplink {
            Uplink::Trace(file) => Transmitter::trace(loaded_trace(file)),
            Uplink::Rate(rate) if medium.is_none() => Transmitter::rate(*rate),
            _ => Transmitter::rate(
                medium.as_ref().map_or(down.nominal_rate(), |medium| medium.solo_rate(1, spec.mtu)),
            ),
        };
        let half_link = |direction: Direction, transmitter: Transmitter| {
            let limit = match spec.queue_limit() {
                QueueLimit::Time(time) => transmitter.nominal_rate() * time,
                QueueLimit::Size(size) => size,
            };
            let one_way_delay = spec.rtt / 2;
            let loss = spec.uplink_loss.filter(|_| direction == Direction::Up).unwrap_or(spec.loss);
            HalfLink::new(
                spec.mtu,
                Queue::new(limit.max(spec.mtu), spec.codel.then_some(spec.mtu)),
                transmitter,
                LossProcess::new(loss, seed, &spec.name, direction),
                spec.policer.map(Policer::new),
                DelayLine::new(one_way_delay, spec.jitter, spec.reorder, seed, &spec.name, direction),
            )
        };
        Self {
            half_links: [half_link(Direction::Down, down), half_link(Direction::Up, up)],
            channel: medium,
            uplink_follows: spec.uplink == Uplink::SameAsDownlink,
            has_own_uplink_loss: spec.uplink_loss.is_some(),
            is_held: false,
            schedule,
            channel_event: None,
            now: Instant::ZERO,
        }
    }

    /// Takes a packet in at `now`. It may be dropped at once; the statistics tell.
    pub fn push(&mut self, direction: Direction, packet: P, now: Instant) {
        self.advance(now);
        self.half_links[direction.index()].push(packet, self.now);
        self.transmit(self.now);
    }

    /// The next packet that is due at or before `now`, earliest first.
    pub fn pop(&mut self, now: Instant) -> Option<(Direction, P)> {
        self.pop_due(now).map(|(_, direction, packet)| (direction, packet))
    }

    /// As [`Self::pop`], with the time at which the packet was due: what a driver's lateness is measured from.
    pub fn pop_due(&mut self, now: Instant) -> Option<(Instant, Direction, P)> {
        self.advance(now);
        let due = |half: &HalfLink<P>| half.next_due().unwrap_or(Instant::FAR_FUTURE);
        let direction =
            if due(&self.half_links[0]) <= due(&self.half_links[1]) { Direction::Down } else { Direction::Up };
        let (due, packet) = self.half_links[direction.index()].deliver(self.now)?;
        Some((due, direction, packet))
    }

    /// When to call [`Self::pop`] next: nothing is due before. Holds until the next call that changes the link.
    pub fn next_event(&self) -> Option<Instant> {
        let waiting = self.half_links.iter().any(HalfLink::has_packets);
        let scheduled = self.schedule.front().map(|(at, _)| *at).filter(|_| waiting);
        // On a medium the lanes have no server of their own; what it sends next is in `on_air`.
        let next = if self.channel.is_some() { HalfLink::next_due } else { HalfLink::next_event };
        let half_link_event = self.half_links.iter().filter_map(next).min();
        [scheduled, half_link_event, self.channel_event].into_iter().flatten().min()
    }

    /// Changes the link at `now`.
    pub fn change(&mut self, change: &LinkEventKind, now: Instant) {
        self.advance(now);
        self.apply(change, self.now);
        self.transmit(self.now);
    }

    /// Changes the link at a time to come, exactly then, however late the driver comes. A time that has passed
    /// counts as now.
    pub fn schedule(&mut self, at: Instant, change: LinkEventKind) {
        let at = at.max(self.now);
        let index = self.schedule.partition_point(|(other, _)| *other <= at);
        self.schedule.insert(index, (at, change));
    }

    /// What the direction has carried, dropped and holds.
    pub fn stats(&self, direction: Direction) -> DirectionStats {
        let mut stats = self.half_links[direction.index()].stats();
        if let Some(medium) = &self.channel {
            stats.airtime = medium.airtime(direction.index());
        }
        stats
    }

    /// Does all that happens up to `now`.
    fn advance(&mut self, now: Instant) {
        let now = now.max(self.now);
        while let Some((at, change)) = self.schedule.front().copied().filter(|(at, _)| *at <= now) {
            self.schedule.pop_front();
            self.transmit(at);
            self.apply(&change, at);
        }
        self.transmit(now);
    }

    fn transmit(&mut self, now: Instant) {
        self.now = now;
        match &mut self.channel {
            None => self.half_links.iter_mut().for_each(|half| half.transmit_until(now)),
            Some(medium) => {
                self.channel_event =
                    if self.is_held { None } else { run_contention(medium, &mut self.half_links, now) };
            }
        }
    }

    fn apply(&mut self, change: &LinkEventKind, now: Instant) {
        match *change {
            LinkEventKind::Rate(rate) => {
                self.set_rate(0, rate, now);
                if self.uplink_follows {
                    self.set_rate(1, rate, now);
                }
            }
            LinkEventKind::UplinkRate(rate) => {
                self.uplink_follows = false;
                self.set_rate(1, rate, now);
            }
            LinkEventKind::Down => self.half_links.iter_mut().for_each(|half| half.set_down(true)),
            LinkEventKind::Hold => self.set_held(true, now),
            LinkEventKind::Restore => {
                self.half_links.iter_mut().for_each(|half| half.set_down(false));
                self.set_held(false, now);
            }
            LinkEventKind::Loss(loss) => {
                let affected = if self.has_own_uplink_loss { 1 } else { 2 };
                self.half_links.iter_mut().take(affected).for_each(|half| half.set_loss(loss));
            }
            LinkEventKind::Rtt(rtt) => self.half_links.iter_mut().for_each(|half| half.set_delay(rtt / 2)),
            LinkEventKind::Jitter(jitter) => self.half_links.iter_mut().for_each(|half| half.set_jitter(jitter)),
        }
    }

    fn set_rate(&mut self, direction: usize, rate: Bitrate, now: Instant) {
        match &mut self.channel {
            Some(medium) => medium.set_rate(direction, rate, now),
            None => self.half_links[direction].set_rate(rate, now),
        }
    }

    fn set_held(&mut self, held: bool, now: Instant) {
        if let (Some(medium), false) = (&mut self.channel, held) {
            medium.hold_until(now);
        }
        self.is_held = held;
        self.half_links.iter_mut().for_each(|half| half.set_held(held, now));
    }
}

pub(crate) fn loaded_trace(file: &TraceFile) -> std::sync::Arc<Trace> {
    match &file.trace {
        Some(trace) => trace.clone(),
        None => panic!("trace {} was not loaded: LinkSpec::load comes first", file.path.display()),
    }
}

#[cfg(test)]
mod tests;
