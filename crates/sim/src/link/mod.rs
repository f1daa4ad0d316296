//! Link model: packets enter at one end and leave at the other, later and at most at the rate of the link; some are
//! lost.
//!
//! Inputs are packets with their times, and changes of the link. Outputs are packets with their due times.
//!
//! 1. Each direction is a policer if the link has one, then a queue, then a transmitter (a rate, a trace or the shared 802.11 channel),
//!    then loss, then a delay line. A lost packet has been transmitted before, so it has used capacity.
//! 2. All times are computed from the end of the previous transmission, never from the time of the call. A driver
//!    that is late delivers late, but the link loses no capacity.
//! 3. `offered = delivered + dropped + in_link`, in packets and in bytes, at every moment.
//! 4. Equal seeds, packets and times give equal deliveries; the n-th random decision of each kind depends only on n
//!    (see [`crate::rng`]).
//! 5. Time never goes back: an earlier `now` counts as the latest one so far.
//! 6. Calls of `change` and `push` at the same instant take effect in the order of the calls. The link's own events
//!    at that instant (a finished transmission, a scheduled change) come before them.
//!
//! The link has no clock of its own. So the same model serves the laboratory, where a timer drives it, and the
//! simulation, where a minute takes milliseconds.

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
    /// Size of the IP packet in bytes, including headers.
    fn size(&self) -> DataSize;
}

impl Packet for Vec<u8> {
    fn size(&self) -> DataSize {
        DataSize::from_bytes(self.len() as u64)
    }
}

/// Direction of a packet, as seen from the client.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Direction {
    /// Downlink: towards the client.
    Down,
    /// Uplink: from the client.
    Up,
}

impl Direction {
    /// Both directions, in the order of their indices.
    pub const BOTH: [Self; 2] = [Self::Down, Self::Up];

    const fn index(self) -> usize {
        match self {
            Self::Down => 0,
            Self::Up => 1,
        }
    }
}

/// A running link; see the [module documentation](self).
#[derive(Debug)]
pub struct Link<P> {
    half_links: [HalfLink<P>; 2],
    channel: Option<WifiChannel>,
    /// Whether the uplink's rate follows the downlink's.
    uplink_follows: bool,
    /// Whether a change of the loss rate affects the downlink only.
    has_own_uplink_loss: bool,
    is_held: bool,
    /// Scheduled changes, in order of time.
    schedule: VecDeque<(Instant, LinkEventKind)>,
    /// Lower limit of the next delivery from the channel, if no more packets are pushed.
    channel_event: Option<Instant>,
    now: Instant,
}

impl<P: Packet> Link<P> {
    /// An idle link at time zero. The steps of its rate are scheduled; events must be [scheduled](Self::schedule)
    /// or [applied](Self::change) by the caller.
    ///
    /// # Panics
    /// If the link uses a trace that was not loaded with [`LinkSpec::load`].
    pub fn new(spec: &LinkSpec, seed: u64) -> Self {
        let mut wifi_channel = None;
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
                wifi_channel = Some(channel);
                Transmitter::rate(solo_rate)
            }
        };
        let up = match &spec.uplink {
            Uplink::Trace(file) => Transmitter::trace(loaded_trace(file)),
            Uplink::Rate(rate) if wifi_channel.is_none() => Transmitter::rate(*rate),
            _ => Transmitter::rate(
                wifi_channel.as_ref().map_or(down.nominal_rate(), |medium| medium.solo_rate(1, spec.mtu)),
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
            channel: wifi_channel,
            uplink_follows: spec.uplink == Uplink::SameAsDownlink,
            has_own_uplink_loss: spec.uplink_loss.is_some(),
            is_held: false,
            schedule,
            channel_event: None,
            now: Instant::ZERO,
        }
    }

    /// Accepts a packet at `now`. It may be dropped at once; see [`Self::stats`].
    pub fn push(&mut self, direction: Direction, packet: P, now: Instant) {
        self.advance(now);
        self.half_links[direction.index()].push(packet, self.now);
        self.transmit(self.now);
    }

    /// The next packet that is due at or before `now`, earliest first.
    pub fn pop(&mut self, now: Instant) -> Option<(Direction, P)> {
        self.pop_due(now).map(|(_, direction, packet)| (direction, packet))
    }

    /// Like [`Self::pop`], with the due time of the packet, so that a driver can measure its own delay.
    pub fn pop_due(&mut self, now: Instant) -> Option<(Instant, Direction, P)> {
        self.advance(now);
        let due = |half: &HalfLink<P>| half.next_due().unwrap_or(Instant::FAR_FUTURE);
        let direction =
            if due(&self.half_links[0]) <= due(&self.half_links[1]) { Direction::Down } else { Direction::Up };
        let (due, packet) = self.half_links[direction.index()].deliver(self.now)?;
        Some((due, direction, packet))
    }

    /// When to call [`Self::pop`] next; nothing is due before. Valid until the next call that changes the link.
    pub fn next_event(&self) -> Option<Instant> {
        let waiting = self.half_links.iter().any(HalfLink::has_packets);
        let scheduled = self.schedule.front().map(|(at, _)| *at).filter(|_| waiting);
        // With a shared channel the half links have no transmitter of their own; `channel_event` has the next
        // delivery.
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

    /// Changes the link at a future time, exactly then, however late the driver is. A time in the past counts as
    /// now.
    pub fn schedule(&mut self, at: Instant, change: LinkEventKind) {
        let at = at.max(self.now);
        let index = self.schedule.partition_point(|(other, _)| *other <= at);
        self.schedule.insert(index, (at, change));
    }

    /// What this direction has carried and dropped, and what it holds.
    pub fn stats(&self, direction: Direction) -> DirectionStats {
        let mut stats = self.half_links[direction.index()].stats();
        if let Some(channel) = &self.channel {
            stats.airtime = channel.airtime(direction.index());
        }
        stats
    }

    /// Processes everything up to `now`: changes at their times, and the transmissions between them.
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
            Some(channel) => {
                self.channel_event =
                    if self.is_held { None } else { run_contention(channel, &mut self.half_links, now) };
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
            Some(channel) => channel.set_rate(direction, rate, now),
            None => self.half_links[direction].set_rate(rate, now),
        }
    }

    fn set_held(&mut self, is_held: bool, now: Instant) {
        if let (Some(channel), false) = (&mut self.channel, is_held) {
            channel.hold_until(now);
        }
        self.is_held = is_held;
        self.half_links.iter_mut().for_each(|half| half.set_held(is_held, now));
    }
}

pub(crate) fn loaded_trace(file: &TraceFile) -> std::sync::Arc<Trace> {
    match &file.trace {
        Some(trace) => trace.clone(),
        None => panic!("trace {} was not loaded: call LinkSpec::load first", file.path.display()),
    }
}

#[cfg(test)]
mod tests;
