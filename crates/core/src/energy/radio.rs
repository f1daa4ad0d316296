//! One radio: the state it is in, how long it was in each, and what further bytes would cost.
//!
//! In: signs of traffic with their times ([`Radio::on_bytes`], or [`Radio::carry`] for a flow that is known to be
//! steady). Out: [`State`], [`Sums`], and costs.
//!
//! 1. Reading changes nothing: every question is answered for any time not before the last sign.
//! 2. Time never goes back; a sign with an older time counts as of the newest one.
//! 3. Bytes in a promotion count as carried. (Links that are emulated know of no promotion; a real one carries nothing
//!    until it is over.)
//!
//! It is a few hundred bytes and `Copy`: a policy may try a future on a copy and throw it away.

use super::{ConcurrentDraw, Direction, RadioEnergy, RadioModel, StateTotals};
use crate::units::{Bitrate, DataSize, Duration, Energy, Instant};

/// What a radio does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RadioState {
    /// Nothing.
    Idle,
    /// It leaves idle.
    Promotion,
    /// It carries bytes, or did so no longer than a gap ago.
    Active,
    /// It waits for more, in this stage of its tail, counted from zero.
    Tail(usize),
}

/// One radio, with its states and what it did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Radio {
    model: RadioModel,
    phase: Phase,
    /// Everything before this is in `sums`.
    settled_until: Instant,
    /// The newest time heard of.
    last_traffic: Instant,
    totals: StateTotals,
    /// What was in the sums when the transfer under way began: active time, bytes, and the excess of those before it.
    transfer_start: TransferStart,
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct TransferStart {
    active_time: [Duration; 2],
    carried: [DataSize; 2],
    excess: [DataSize; 2],
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Idle,
    Promotion {
        until: Instant,
    },
    /// Active up to `last`; behind it, the next sign or the gap decides between active and tail.
    Awake {
        last: Instant,
    },
}

/// A time that is now known to have been active.
pub(super) type ActivePeriod = (Instant, Instant);

impl Radio {
    /// A radio that is idle since `start`.
    pub fn new(model: RadioModel, start: Instant) -> Self {
        Self {
            model,
            phase: Phase::Idle,
            settled_until: start,
            last_traffic: start,
            totals: StateTotals::default(),
            transfer_start: TransferStart::default(),
        }
    }

    /// A sign of traffic: bytes came or went, or (with none) a connection or a request was begun.
    pub fn on_bytes(&mut self, now: Instant, direction: Direction, size: DataSize) {
        self.record_traffic(now, direction, size);
    }

    /// Bytes came or went evenly over this time; the radio was active throughout, whatever its gap. A promotion at the
    /// beginning is taken out of the time.
    pub fn on_flow(&mut self, from: Instant, to: Instant, direction: Direction, size: DataSize) {
        self.record_flow(from, to, direction, size);
    }

    /// What it does at `now`.
    pub fn state(&self, now: Instant) -> RadioState {
        let copy = self.advanced_to(now, false);
        match copy.phase {
            Phase::Idle => RadioState::Idle,
            Phase::Promotion { .. } => RadioState::Promotion,
            Phase::Awake { last } if now.since(last) <= self.model.gap => RadioState::Active,
            Phase::Awake { last } => {
                let (mut end, since) = (Duration::ZERO, now.since(last));
                let stage = self.model.tail.stages().iter().position(|stage| {
                    end = end.saturating_add(stage.time);
                    since < end
                });
                stage.map_or(RadioState::Idle, RadioState::Tail)
            }
        }
    }

    /// Times and bytes up to `now`.
    pub fn totals(&self, now: Instant) -> StateTotals {
        self.advanced_to(now, false).totals
    }

    /// What it drew up to `now`; the tail to come is not in it. As of a radio that has nothing in common with others.
    pub fn energy_so_far(&self, now: Instant) -> RadioEnergy {
        self.totals(now).energy(&self.model, ConcurrentDraw::default())
    }

    /// What it will have drawn when it is idle again, if nothing more comes.
    pub fn energy_until_idle(&self, now: Instant) -> RadioEnergy {
        self.totals_at_idle(now).energy(&self.model, ConcurrentDraw::default())
    }

    /// How long until it is idle, if nothing more comes; zero: it is.
    pub fn time_to_idle(&self, now: Instant) -> Duration {
        self.idle_at(now).since(now)
    }

    /// The energy of the tail (and promotion) to come, if nothing more comes.
    pub fn energy_to_idle(&self, now: Instant) -> Energy {
        self.energy_until_idle(now).total() - self.energy_so_far(now).total()
    }

    /// How long it takes until bytes can move: the (rest of the) promotion.
    pub fn promotion_time(&self, now: Instant) -> Duration {
        match self.advanced_to(now, false).phase {
            Phase::Idle => self.model.promotion.time,
            Phase::Promotion { until } => until.since(now),
            Phase::Awake { .. } => Duration::ZERO,
        }
    }

    /// The model that it follows.
    pub const fn model(&self) -> &RadioModel {
        &self.model
    }

    /// Does a transfer at a steady rate, a promotion first if there must be one, and tells when it was active.
    pub(super) fn add_transfer(
        &mut self,
        now: Instant,
        direction: Direction,
        size: DataSize,
        rate: Bitrate,
    ) -> ActivePeriod {
        let start = now.max(self.last_traffic) + self.promotion_time(now.max(self.last_traffic));
        self.record_traffic(now, direction, DataSize::ZERO);
        let end = start + size / rate;
        self.record_flow(start, end, direction, size);
        (start, end)
    }

    pub(super) fn record_traffic(
        &mut self,
        now: Instant,
        direction: Direction,
        size: DataSize,
    ) -> Option<ActivePeriod> {
        let active = self.record_without_excess(now, direction, size);
        self.update_excess();
        active
    }

    fn record_without_excess(
        &mut self,
        now: Instant,
        direction: Direction,
        size: DataSize,
    ) -> Option<ActivePeriod> {
        let now = now.max(self.last_traffic);
        self.last_traffic = now;
        self.advance(now, false);
        add_size(&mut self.totals.carried, direction, size);
        match self.phase {
            Phase::Idle => {
                self.totals.promotions = self.totals.promotions.saturating_add(1);
                self.phase = match self.model.promotion.time {
                    Duration::ZERO => Phase::Awake { last: now },
                    time => Phase::Promotion { until: now + time },
                };
                None
            }
            Phase::Promotion { .. } => None,
            Phase::Awake { last } => {
                self.phase = Phase::Awake { last: now };
                // In the tail everything up to now is settled, and nothing of it was active.
                let from = self.settled_until;
                let active = from == last && now > from;
                if active {
                    add_time(&mut self.totals.active[direction.index()], now - from);
                }
                self.settled_until = now;
                active.then_some((from, now))
            }
        }
    }

    pub(super) fn record_flow(
        &mut self,
        from: Instant,
        to: Instant,
        direction: Direction,
        size: DataSize,
    ) -> Option<ActivePeriod> {
        let before = self.record_traffic(from, direction, size);
        let to = to.max(self.last_traffic);
        self.last_traffic = to;
        if let Phase::Promotion { until } = self.phase {
            self.advance(to.min(until), false);
        }
        if let Phase::Awake { last } = self.phase
            && to > last
        {
            add_time(&mut self.totals.active[direction.index()], to - last);
            self.phase = Phase::Awake { last: to };
            self.settled_until = to;
            self.update_excess();
            return Some((before.map_or(last, |(from, _)| from), to));
        }
        before
    }

    pub(super) fn totals_at_idle(&self, now: Instant) -> StateTotals {
        self.advanced_to(self.idle_at(now), true).totals
    }

    /// When it was last heard of.
    pub(super) const fn last_traffic(&self) -> Instant {
        self.last_traffic
    }

    pub(super) fn add_shared(&mut self, time: Duration, concurrent_bytes: DataSize) {
        add_time(&mut self.totals.shared_time, time);
        self.totals.concurrent_bytes += concurrent_bytes;
    }

    /// When it is idle, if nothing more comes; `now` if it is already.
    fn idle_at(&self, now: Instant) -> Instant {
        let tail = self.model.tail.time();
        match self.phase {
            Phase::Idle => now,
            Phase::Promotion { until } => now.max(until + tail),
            Phase::Awake { last } => now.max(last + tail),
        }
    }

    /// As it will be at `now` if nothing more comes; `decided`: nothing more does, so the last gap is tail.
    fn advanced_to(&self, now: Instant, decided: bool) -> Self {
        let mut copy = *self;
        copy.advance(now, decided);
        copy
    }

    /// How much of the transfer under way came faster than the first line of the power reaches.
    fn update_excess(&mut self) {
        for (direction, curve) in [self.model.down, self.model.up].into_iter().enumerate() {
            let (size, time) = (
                self.totals.carried[direction] - self.transfer_start.carried[direction],
                self.totals.active[direction],
            );
            let time = time.saturating_sub(self.transfer_start.active_time[direction]);
            self.totals.excess_bytes[direction] =
                self.transfer_start.excess[direction] + curve.excess_bytes(size, time);
        }
    }

    /// Puts everything up to `now` into the sums, a gap apart that is still open.
    fn advance(&mut self, now: Instant, decided: bool) {
        if let Phase::Promotion { until } = self.phase {
            let to = now.min(until);
            add_time(&mut self.totals.promotion, to.since(self.settled_until));
            self.settled_until = self.settled_until.max(to);
            if now < until {
                return;
            }
            self.phase = Phase::Awake { last: until };
        }
        if let Phase::Awake { last } = self.phase {
            if !decided && now.since(last) <= self.model.gap {
                return;
            }
            // The transfer is over: the next one has a mean rate of its own.
            self.transfer_start = TransferStart {
                active_time: self.totals.active,
                carried: self.totals.carried,
                excess: self.totals.excess_bytes,
            };
            let mut stage_start = last;
            for (sum, stage) in self.totals.tail.iter_mut().zip(self.model.tail.stages()) {
                let stage_end = stage_start + stage.time;
                add_time(sum, now.min(stage_end).since(stage_start.max(self.settled_until)));
                stage_start = stage_end;
            }
            self.settled_until = self.settled_until.max(now.min(stage_start));
            if now < stage_start {
                return;
            }
            self.phase = Phase::Idle;
        }
        add_time(&mut self.totals.idle, now.since(self.settled_until));
        self.settled_until = self.settled_until.max(now);
    }
}

/// Durations that panic on overflow have no place here.
fn add_time(sum: &mut Duration, time: Duration) {
    *sum = sum.saturating_add(time);
}

fn add_size(totals: &mut [DataSize; 2], direction: Direction, size: DataSize) {
    totals[direction.index()] += size;
}
