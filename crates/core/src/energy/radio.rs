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

use super::{Bill, Direction, RadioModel, Sums, Together};
use crate::units::{Bitrate, DataSize, Duration, Energy, Instant};

/// What a radio does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
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
    settled: Instant,
    /// The newest time heard of.
    latest: Instant,
    sums: Sums,
    /// What was in the sums when the transfer under way began: active time, bytes, and the excess of those before it.
    begun: Begun,
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Begun {
    active: [Duration; 2],
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
pub(super) type Active = (Instant, Instant);

impl Radio {
    /// A radio that is idle since `start`.
    pub fn new(model: RadioModel, start: Instant) -> Self {
        Self {
            model,
            phase: Phase::Idle,
            settled: start,
            latest: start,
            sums: Sums::default(),
            begun: Begun::default(),
        }
    }

    /// A sign of traffic: bytes came or went, or (with none) a connection or a request was begun.
    pub fn on_bytes(&mut self, now: Instant, direction: Direction, size: DataSize) {
        self.sign(now, direction, size);
    }

    /// Bytes came or went evenly over this time; the radio was active throughout, whatever its gap. A promotion at the
    /// beginning is taken out of the time.
    pub fn carry(&mut self, from: Instant, to: Instant, direction: Direction, size: DataSize) {
        self.span(from, to, direction, size);
    }

    /// What it does at `now`.
    pub fn state(&self, now: Instant) -> State {
        let copy = self.at(now, false);
        match copy.phase {
            Phase::Idle => State::Idle,
            Phase::Promotion { .. } => State::Promotion,
            Phase::Awake { last } if now.since(last) <= self.model.gap => State::Active,
            Phase::Awake { last } => {
                let (mut end, since) = (Duration::ZERO, now.since(last));
                let stage = self.model.tail.stages().iter().position(|stage| {
                    end = end.saturating_add(stage.time);
                    since < end
                });
                stage.map_or(State::Idle, State::Tail)
            }
        }
    }

    /// Times and bytes up to `now`.
    pub fn sums(&self, now: Instant) -> Sums {
        self.at(now, false).sums
    }

    /// What it drew up to `now`; the tail to come is not in it. As of a radio that has nothing in common with others.
    pub fn spent(&self, now: Instant) -> Bill {
        self.sums(now).bill(&self.model, Together::default())
    }

    /// What it will have drawn when it is idle again, if nothing more comes.
    pub fn finish(&self, now: Instant) -> Bill {
        self.finished(now).bill(&self.model, Together::default())
    }

    /// How long until it is idle, if nothing more comes; zero: it is.
    pub fn tail_left(&self, now: Instant) -> Duration {
        self.asleep(now).since(now)
    }

    /// The energy of the tail (and promotion) to come, if nothing more comes.
    pub fn tail_cost(&self, now: Instant) -> Energy {
        self.finish(now).total() - self.spent(now).total()
    }

    /// How long it takes until bytes can move: the (rest of the) promotion.
    pub fn wake_time(&self, now: Instant) -> Duration {
        match self.at(now, false).phase {
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
    pub(super) fn transfer(&mut self, now: Instant, direction: Direction, size: DataSize, rate: Bitrate) -> Active {
        let start = now.max(self.latest) + self.wake_time(now.max(self.latest));
        self.sign(now, direction, DataSize::ZERO);
        let end = start + size / rate;
        self.span(start, end, direction, size);
        (start, end)
    }

    pub(super) fn sign(&mut self, now: Instant, direction: Direction, size: DataSize) -> Option<Active> {
        let active = self.signed(now, direction, size);
        self.weigh();
        active
    }

    fn signed(&mut self, now: Instant, direction: Direction, size: DataSize) -> Option<Active> {
        let now = now.max(self.latest);
        self.latest = now;
        self.settle(now, false);
        add_size(&mut self.sums.carried, direction, size);
        match self.phase {
            Phase::Idle => {
                self.sums.wakes = self.sums.wakes.saturating_add(1);
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
                let from = self.settled;
                let active = from == last && now > from;
                if active {
                    add(&mut self.sums.active[direction.index()], now - from);
                }
                self.settled = now;
                active.then_some((from, now))
            }
        }
    }

    pub(super) fn span(
        &mut self,
        from: Instant,
        to: Instant,
        direction: Direction,
        size: DataSize,
    ) -> Option<Active> {
        let before = self.sign(from, direction, size);
        let to = to.max(self.latest);
        self.latest = to;
        if let Phase::Promotion { until } = self.phase {
            self.settle(to.min(until), false);
        }
        if let Phase::Awake { last } = self.phase
            && to > last
        {
            add(&mut self.sums.active[direction.index()], to - last);
            self.phase = Phase::Awake { last: to };
            self.settled = to;
            self.weigh();
            return Some((before.map_or(last, |(from, _)| from), to));
        }
        before
    }

    pub(super) fn finished(&self, now: Instant) -> Sums {
        self.at(self.asleep(now), true).sums
    }

    /// When it was last heard of.
    pub(super) const fn latest(&self) -> Instant {
        self.latest
    }

    pub(super) fn on_shared(&mut self, time: Duration, crowded: DataSize) {
        add(&mut self.sums.shared, time);
        self.sums.crowded += crowded;
    }

    /// When it is idle, if nothing more comes; `now` if it is already.
    fn asleep(&self, now: Instant) -> Instant {
        let tail = self.model.tail.time();
        match self.phase {
            Phase::Idle => now,
            Phase::Promotion { until } => now.max(until + tail),
            Phase::Awake { last } => now.max(last + tail),
        }
    }

    /// As it will be at `now` if nothing more comes; `decided`: nothing more does, so the last gap is tail.
    fn at(&self, now: Instant, decided: bool) -> Self {
        let mut copy = *self;
        copy.settle(now, decided);
        copy
    }

    /// How much of the transfer under way came faster than the first line of the power reaches.
    fn weigh(&mut self) {
        for (at, draw) in [self.model.down, self.model.up].into_iter().enumerate() {
            let (size, time) = (self.sums.carried[at] - self.begun.carried[at], self.sums.active[at]);
            let time = time.saturating_sub(self.begun.active[at]);
            self.sums.excess[at] = self.begun.excess[at] + draw.excess(size, time);
        }
    }

    /// Puts everything up to `now` into the sums, a gap apart that is still open.
    fn settle(&mut self, now: Instant, decided: bool) {
        if let Phase::Promotion { until } = self.phase {
            let to = now.min(until);
            add(&mut self.sums.promotion, to.since(self.settled));
            self.settled = self.settled.max(to);
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
            self.begun = Begun { active: self.sums.active, carried: self.sums.carried, excess: self.sums.excess };
            let mut begins = last;
            for (sum, stage) in self.sums.tail.iter_mut().zip(self.model.tail.stages()) {
                let ends = begins + stage.time;
                add(sum, now.min(ends).since(begins.max(self.settled)));
                begins = ends;
            }
            self.settled = self.settled.max(now.min(begins));
            if now < begins {
                return;
            }
            self.phase = Phase::Idle;
        }
        add(&mut self.sums.idle, now.since(self.settled));
        self.settled = self.settled.max(now);
    }
}

/// Durations that panic on overflow have no place here.
fn add(sum: &mut Duration, time: Duration) {
    *sum = sum.saturating_add(time);
}

fn add_size(sums: &mut [DataSize; 2], direction: Direction, size: DataSize) {
    sums[direction.index()] += size;
}
