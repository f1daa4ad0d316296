//! State machine of one radio: its current state, the time spent in each state, and the cost of further bytes.
//!
//! Traffic is reported with its time ([`Radio::on_bytes`], or [`Radio::on_flow`] for a flow that is known to be
//! steady). The results are [`RadioState`], [`StateTotals`] and energies.
//!
//! 1. Reading changes nothing: every query is possible for any time not before the last traffic.
//! 2. Time never goes back; traffic with an older time counts as of the newest time seen.
//! 3. Bytes reported during a promotion count as carried. (Emulated links have no promotion; a real radio carries
//!    nothing until its promotion is over.)
//!
//! A radio is a few hundred bytes and `Copy`, so a policy can try a hypothetical transfer on a copy and discard it.

use super::{ConcurrentDraw, Direction, RadioEnergy, RadioModel, StateTotals};
use crate::units::{Bitrate, DataSize, Duration, Energy, Instant};

/// State of a radio.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RadioState {
    /// No traffic for longer than the tail.
    Idle,
    /// Changing from idle to active.
    Promotion,
    /// Carrying bytes, or carried some no longer than one gap ago.
    Active,
    /// In this stage of the tail, counted from zero.
    Tail(usize),
}

impl RadioState {
    /// The word for status displays and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Promotion => "promotion",
            Self::Active => "active",
            Self::Tail(_) => "tail",
        }
    }
}

/// One radio, with its state and totals.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Radio {
    model: RadioModel,
    phase: Phase,
    /// All time before this is contained in `totals`.
    settled_until: Instant,
    /// Time of the newest traffic.
    last_traffic: Instant,
    totals: StateTotals,
    /// Totals at the start of the current transfer. The second slope needs the mean rate of each transfer.
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
    /// Active up to `last`. The time after it becomes active or tail when the next traffic arrives or the gap is
    /// over.
    Awake {
        last: Instant,
    },
}

/// Start and end of a time that is known to have been active.
pub(super) type ActivePeriod = (Instant, Instant);

impl Radio {
    /// A radio that is idle at `start`.
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

    /// Reports traffic: bytes that arrived or were sent, or (with zero bytes) the start of a connection or request.
    pub fn on_bytes(&mut self, now: Instant, direction: Direction, size: DataSize) {
        self.record_traffic(now, direction, size);
    }

    /// Reports bytes carried evenly between `from` and `to`. The radio was active throughout, whatever its gap is;
    /// a promotion at the beginning is subtracted from that time.
    pub fn on_flow(&mut self, from: Instant, to: Instant, direction: Direction, size: DataSize) {
        self.record_flow(from, to, direction, size);
    }

    /// State at `now`.
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

    /// Energy drawn up to `now`, without the tail that follows. Power shared with other radios is not considered.
    pub fn energy_so_far(&self, now: Instant) -> RadioEnergy {
        self.totals(now).energy(&self.model, ConcurrentDraw::default())
    }

    /// Energy drawn when the radio is idle again, if no more traffic follows.
    pub fn energy_until_idle(&self, now: Instant) -> RadioEnergy {
        self.totals_at_idle(now).energy(&self.model, ConcurrentDraw::default())
    }

    /// Time until the radio is idle, if no more traffic follows; zero: it is idle.
    pub fn time_to_idle(&self, now: Instant) -> Duration {
        self.idle_at(now).since(now)
    }

    /// Energy of the remaining promotion and tail, if no more traffic follows.
    pub fn energy_to_idle(&self, now: Instant) -> Energy {
        self.energy_until_idle(now).total() - self.energy_so_far(now).total()
    }

    /// Time until bytes can be carried: the promotion, or its remaining part.
    pub fn promotion_time(&self, now: Instant) -> Duration {
        match self.advanced_to(now, false).phase {
            Phase::Idle => self.model.promotion.time,
            Phase::Promotion { until } => until.since(now),
            Phase::Awake { .. } => Duration::ZERO,
        }
    }

    /// The radio's model.
    pub const fn model(&self) -> &RadioModel {
        &self.model
    }

    /// Adds a transfer at a steady rate, after a promotion if one is needed, and returns its active period.
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
                // Between `last` and now lies either an undecided gap, which this traffic makes active, or a part
                // of the tail. In the tail `advance` has already counted all time up to now, so that
                // `settled_until` is later than `last`.
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
        // `true`: no more traffic follows, so the time since the last traffic is tail.
        self.advanced_to(self.idle_at(now), true).totals
    }

    /// Time of the newest traffic.
    pub(super) const fn last_traffic(&self) -> Instant {
        self.last_traffic
    }

    pub(super) fn add_shared(&mut self, time: Duration, concurrent_bytes: DataSize) {
        add_time(&mut self.totals.shared_time, time);
        self.totals.concurrent_bytes += concurrent_bytes;
    }

    /// Time at which the radio is idle, if no more traffic follows; `now` if it already is.
    fn idle_at(&self, now: Instant) -> Instant {
        let tail = self.model.tail.time();
        match self.phase {
            Phase::Idle => now,
            Phase::Promotion { until } => now.max(until + tail),
            Phase::Awake { last } => now.max(last + tail),
        }
    }

    /// The radio as it will be at `now` without further traffic. `decided`: no more traffic follows, so the last
    /// gap counts as tail.
    fn advanced_to(&self, now: Instant, decided: bool) -> Self {
        let mut copy = *self;
        copy.advance(now, decided);
        copy
    }

    /// Updates the number of bytes in the current transfer that exceed the rate at which the power curve's first
    /// line ends.
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

    /// Adds all time up to `now` to the totals, except a gap that is still undecided.
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
            // The transfer is over: the next one has its own mean rate.
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

/// `Duration`'s own addition panics on overflow; this one saturates.
fn add_time(sum: &mut Duration, time: Duration) {
    *sum = sum.saturating_add(time);
}

fn add_size(totals: &mut [DataSize; 2], direction: Direction, size: DataSize) {
    totals[direction.index()] += size;
}
