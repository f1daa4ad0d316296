//! The host's links: on what terms, in what state, and what is known of their speed.
//!
//! In: ups and downs, what passed an interface, and what connections measured. Out: which links may be used, how fast
//! they are for all connections together, and what is left of a budget.
//!
//! 1. A link's rate is the sum over the connections that use it now; when none does, what that sum was last; before
//!    anything was measured, [`Config::assumed`] (eMPTCP §3.2).
//! 2. When a connection comes or goes, each one's part changes, and their medians tell it late: what two have brought one
//!    after the other would count twice, or what nobody has taken up yet not at all. Until that is over the link is as fast
//!    as it was before ([`Link::before`]), or as fast as those alone that were there, or as those that came.
//! 3. The radio's meter is fed by what connections saw, and by the interface's own counters where they say more: other
//!    programs' bytes, and headers. Counters of an interface come later than those of connections, so only what exceeds
//!    the sum of both is new. What the meter was fed is also what a budget is spent by.

use super::config::{Config, LinkConfig};
use super::late_bytes::LateBytes;
use super::link_mtu::LinkMtu;
use crate::energy::{Direction, Meter};
use crate::units::{Bitrate, DataSize, Duration, Instant, Ratio};

/// Links by their place: those of the configuration, then those that came later.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct LinkSet(u64);

impl LinkSet {
    /// The most links. Those beyond are left alone.
    pub(super) const MAX: usize = 64;
    pub(super) const EMPTY: Self = Self(0);

    pub(super) const fn single(link: usize) -> Self {
        Self(if link < Self::MAX { 1 << link } else { 0 })
    }

    pub(super) const fn contains(self, link: usize) -> bool {
        self.0 & Self::single(link).0 != 0
    }

    pub(super) const fn with(self, link: usize) -> Self {
        Self(self.0 | Self::single(link).0)
    }

    pub(super) const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub(super) const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub(super) const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(super) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(super) const fn len(self) -> u32 {
        self.0.count_ones()
    }

    pub(super) fn first(self) -> Option<usize> {
        (!self.is_empty()).then(|| self.0.trailing_zeros() as usize)
    }

    pub(super) fn iter(self) -> impl Iterator<Item = usize> {
        let mut remaining = self.0;
        core::iter::from_fn(move || {
            let link = (remaining != 0).then(|| remaining.trailing_zeros() as usize)?;
            remaining &= remaining - 1;
            Some(link)
        })
    }
}

/// One link of the host.
#[derive(Clone, Debug)]
pub(super) struct Link {
    pub(super) config: LinkConfig,
    pub(super) up: bool,
    /// Connections that use it now.
    user_count: u32,
    /// What those bring whose windows are open, and what the others do.
    settled_rates: Rates,
    unsettled_rates: Rates,
    /// How fast it was before the last ones came or went, and until when that counts.
    previous_rates: Option<(Instant, Rates)>,
    /// The last sum of rates and of forecasts that was not nothing.
    last_rate: Option<(Instant, Bitrate)>,
    last_forecast: Option<Bitrate>,
    pub(super) mtu: LinkMtu,
    /// When it came back from its last outage: what is known from before may be less than it can do now.
    recovered_at: Instant,
    /// Before this no further connection probes it while it is silent.
    pub(super) next_probe: Instant,
    /// Payload that connections carried over it, both ways.
    pub(super) carried: DataSize,
    /// Its budget is as good as gone, for the rest of the run: once it is left, nothing says how fast it would be.
    is_budget_spent: bool,
    /// What was told to the meter, down and up.
    accounted: [DataSize; 2],
    /// Where the interface's counters stood when they were first compared with that, and what had been fed by then.
    counter_base: Option<([DataSize; 2], [DataSize; 2])>,
    /// When the interface's counters came last, and what they said.
    last_counters: Option<(Instant, [DataSize; 2])>,
    /// What they knew then that no connection had told.
    unattributed: DataSize,
    /// What connections saw since.
    late_bytes: LateBytes,
    /// The last time at which anything came over it.
    pub(super) last_received: Option<Instant>,
    /// The last time at which a proof of life failed while nothing else came over it.
    pub(super) probe_failed_at: Option<Instant>,
}

impl Link {
    pub(super) fn new(config: LinkConfig) -> Self {
        Self {
            is_budget_spent: config.budget.is_some_and(DataSize::is_zero),
            config,
            up: false,
            user_count: 0,
            settled_rates: Rates::default(),
            unsettled_rates: Rates::default(),
            previous_rates: None,
            last_rate: None,
            last_forecast: None,
            mtu: LinkMtu::default(),
            recovered_at: Instant::ZERO,
            next_probe: Instant::ZERO,
            carried: DataSize::ZERO,
            accounted: [DataSize::ZERO; 2],
            counter_base: None,
            last_counters: None,
            unattributed: DataSize::ZERO,
            late_bytes: LateBytes::default(),
            last_received: None,
            probe_failed_at: None,
        }
    }

    /// A connection's part in the sums has changed; none: it does not use the link (any more). Such a change shows in all
    /// parts after `settles`.
    pub(super) fn update_share(
        &mut self,
        config: &Config,
        now: Instant,
        [old, new]: [RateShare; 2],
        settle_time: Duration,
    ) {
        let is_over = self.previous_rates.is_none_or(|(until, _)| now >= until);
        if old.is_active != new.is_active && (is_over || self.user_count == 0) {
            let rates = Rates {
                recent: self.rate(config, now).bits_per_sec(),
                forecast: self.forecast(config, now).bits_per_sec(),
            };
            self.previous_rates = Some((now + settle_time, rates));
        }
        for (share, adds) in [(old, false), (new, true)] {
            let sum = if share.is_settled { &mut self.settled_rates } else { &mut self.unsettled_rates };
            *sum = if adds { sum.plus(share.rates) } else { sum.minus(share.rates) };
        }
        self.user_count = self.user_count.saturating_sub(old.is_active.into()).saturating_add(new.is_active.into());
        if self.user_count > 0 && new.is_active && new.is_settled {
            let Rates { recent, forecast } = self.rates(now);
            if recent > 0 {
                self.last_rate = Some((now, Bitrate::from_bits_per_sec(recent)));
            }
            self.last_forecast = Some(Bitrate::from_bits_per_sec(forecast));
        }
        self.update_budget(now);
    }

    /// What those that use it bring together.
    fn rates(&self, now: Instant) -> Rates {
        match self.previous_rates.filter(|(until, _)| now < *until) {
            Some((_, before)) => before.max(self.settled_rates).max(self.unsettled_rates),
            None => self.settled_rates.plus(self.unsettled_rates),
        }
    }

    /// Whether a connection measures it now.
    pub(super) const fn is_used(&self) -> bool {
        self.user_count > 0
    }

    /// What is to be expected of it: now, last, or assumed.
    pub(super) fn rate(&self, config: &Config, now: Instant) -> Bitrate {
        match (self.user_count, self.last_rate) {
            (0, None) => config.assumed_rate,
            // What was bad is not bad for ever: it fades towards what is assumed, so that it is tried again.
            (0, Some((at, known))) if known < config.assumed_rate => {
                let share = Ratio::of(now.since(at).as_millis() as u64, RATE_FADE_TIME.as_millis() as u64);
                known + (config.assumed_rate - known).share(share.min(Ratio::ONE))
            }
            (0, Some((_, known))) => known,
            _ => Bitrate::from_bits_per_sec(self.rates(now).recent),
        }
    }

    /// The same by the forecasts.
    pub(super) fn forecast(&self, config: &Config, now: Instant) -> Bitrate {
        match self.user_count {
            0 => self.last_forecast.unwrap_or(config.assumed_rate),
            _ => Bitrate::from_bits_per_sec(self.rates(now).forecast),
        }
    }

    /// What was measured of it last; none: it was never used.
    pub(super) fn last_rate(&self) -> Option<Bitrate> {
        self.last_rate.map(|(_, rate)| rate)
    }

    /// The same, if that was after its last outage.
    pub(super) fn rate_since_recovery(&self) -> Option<Bitrate> {
        self.last_rate
            .filter(|(at, _)| *at > self.recovered_at || self.recovered_at == Instant::ZERO)
            .map(|(_, rate)| rate)
    }

    /// It comes back from an outage. A rate of before does not count against it: it is taken for what is assumed of
    /// links at least, and for unknown where only a measurement will do ([`Link::known_since_return`]).
    pub(super) fn on_recovery(&mut self, config: &Config, now: Instant) {
        self.recovered_at = now;
        self.previous_rates = None;
        self.last_rate = self.last_rate.map(|(_, rate)| (now, rate.max(config.assumed_rate)));
    }

    /// Whether a proof of life failed on it, and nothing has come over it since.
    pub(super) fn is_silent(&self) -> bool {
        self.probe_failed_at.is_some_and(|lost| self.last_received.is_none_or(|alive| alive < lost))
    }

    /// A connection saw bytes on it.
    pub(super) fn on_payload(
        &mut self,
        meter: &mut Meter,
        (from, now): (Instant, Instant),
        direction: Direction,
        size: DataSize,
    ) {
        self.carried += size;
        self.accounted[direction_index(direction)] += size;
        self.update_budget(now);
        self.late_bytes.on_poll((from, now), size);
        // Bytes of a look have come all through the time since the last one, if that was a moment ago.
        match now.since(from) <= MAX_COUNTER_GAP && size >= MIN_FLOW {
            true => meter.on_flow(from, now, self.config.id, direction, size),
            false => meter.on_bytes(now, self.config.id, direction, size),
        }
        self.last_received = Some(now);
    }

    /// The interface's counters; the answer is what no connection that is looked at explains.
    pub(super) fn on_interface_counters(
        &mut self,
        meter: &mut Meter,
        now: Instant,
        counters: [DataSize; 2],
    ) -> DataSize {
        if self.last_counters.is_some_and(|(_, last)| counters[0] < last[0] || counters[1] < last[1]) {
            // Another interface of the same name, or a modem that was reset: it counts from zero.
            self.counter_base = Some(([DataSize::ZERO; 2], self.accounted));
        }
        let (base, accounted) = *self.counter_base.get_or_insert((counters, self.accounted));
        let mut unattributed = DataSize::ZERO;
        for direction in [Direction::Down, Direction::Up] {
            let index = direction_index(direction);
            let more = (counters[index] - base[index]) - (self.accounted[index] - accounted[index]);
            if !more.is_zero() {
                match (self.late_bytes.arrival_of(now, more), self.last_counters) {
                    (Some((from, to)), _) => meter.on_flow(from, to, self.config.id, direction, more),
                    (None, Some((from, _))) if now.since(from) <= MAX_COUNTER_GAP && more >= MIN_FLOW * 4 => {
                        meter.on_flow(from, now, self.config.id, direction, more);
                    }
                    _ => meter.on_bytes(now, self.config.id, direction, more),
                }
                self.accounted[index] += more;
                unattributed += more;
            }
        }
        self.last_counters = Some((now, counters));
        self.late_bytes = LateBytes::default();
        self.unattributed = unattributed;
        self.update_budget(now);
        unattributed
    }

    /// What its budget still allows; none: anything.
    pub(super) fn budget_left(&self) -> Option<DataSize> {
        self.config.budget.map(|budget| budget - (self.accounted[0] + self.accounted[1]))
    }

    /// Whether the budget forbids it.
    pub(super) const fn is_budget_spent(&self) -> bool {
        self.is_budget_spent
    }

    /// What is on its way when it is stopped still comes, so it is stopped so much earlier: [`IN_FLIGHT`] of its rate, and as
    /// much beside payload (headers, other programs' bytes) as passed between the last two counts of its interface.
    fn update_budget(&mut self, now: Instant) {
        let reserve = Bitrate::from_bits_per_sec(self.rates(now).recent) * BUDGET_RESERVE_TIME + self.unattributed;
        self.is_budget_spent |= self.budget_left().is_some_and(|left| left <= reserve);
    }
}

/// What comes between the look that finds a budget spent and the last byte: a look's interval and a round trip with its
/// queue. chosen: the widest interval of active connections, and half a second of queue.
const BUDGET_RESERVE_TIME: Duration = Duration::from_millis(800);

/// Counters no further apart than this tell of a span of time in which bytes flowed, if there were some packets: between
/// two of them a radio's gap (0.5 s) would otherwise pass.
const MAX_COUNTER_GAP: Duration = Duration::from_millis(1500);
const MIN_FLOW: DataSize = DataSize::from_bytes(6000);

/// How long a bad rate of a link that rests is believed, less and less. chosen: the paper's mean of Wi-Fi's states, thrice.
const RATE_FADE_TIME: Duration = Duration::from_secs(120);

/// Its place where there is one value for each way: down, up.
pub(super) const fn direction_index(direction: Direction) -> usize {
    match direction {
        Direction::Down => 0,
        Direction::Up => 1,
    }
}

/// A connection's part in a link's sums.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct RateShare {
    pub(super) is_active: bool,
    /// Whether these were measured with an open window.
    pub(super) is_settled: bool,
    pub(super) rates: Rates,
}

/// Bits per second.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Rates {
    /// Of the last two seconds.
    pub(super) recent: u64,
    /// By forecast.
    pub(super) forecast: u64,
}

impl Rates {
    fn combine(self, other: Self, op: impl Fn(u64, u64) -> u64) -> Self {
        Self { recent: op(self.recent, other.recent), forecast: op(self.forecast, other.forecast) }
    }

    fn plus(self, other: Self) -> Self {
        self.combine(other, u64::saturating_add)
    }

    fn minus(self, other: Self) -> Self {
        self.combine(other, u64::saturating_sub)
    }

    fn max(self, other: Self) -> Self {
        self.combine(other, u64::max)
    }
}
