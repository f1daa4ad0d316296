//! The host's links: limits of their use, state, and throughput.
//!
//! Inputs are link changes, interface counters and the measurements of connections. The module provides which links
//! may be used, their throughput for all connections together, and what is left of a budget.
//!
//! 1. A link's rate is the sum over the connections that use it now. If none does, it is the last such sum; before
//!    any measurement it is [`Config::assumed_rate`] (eMPTCP §3.2).
//! 2. When a connection starts or stops using a link, the shares of all its connections change, but their medians
//!    show this late. What two connections carried one after the other would count twice, or released capacity that
//!    no connection uses yet would not count at all. Until the shares have settled, the rate is the highest of three: the
//!    rate before the change, the sum of the settled connections, and the sum of the others.
//! 3. The radio's meter receives the bytes seen by connections, and those of the interface's counters that exceed
//!    them: headers and other programs' traffic. The interface's counters are read later than those of connections,
//!    so only what exceeds the sum of both is new. The same bytes are charged to the budget.

use super::config::{Config, LinkConfig};
use super::late_bytes::LateBytes;
use super::link_mtu::LinkMtu;
use crate::energy::{Direction, Meter};
use crate::units::{Bitrate, DataSize, Duration, Instant, Ratio};

/// Set of links by their index: those of the configuration first, then those added later.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct LinkSet(u64);

impl LinkSet {
    /// Maximum number of links. Further links are not used.
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

/// State of one link of the host.
#[derive(Clone, Debug)]
pub(super) struct Link {
    pub(super) config: LinkConfig,
    pub(super) up: bool,
    /// Number of connections that use it now.
    user_count: u32,
    /// Sum of the rates of connections whose rate has settled, and that of the others.
    settled_rates: Rates,
    unsettled_rates: Rates,
    /// Rates before the last change of its users, and the time until which they count.
    previous_rates: Option<(Instant, Rates)>,
    /// Last sums of rates and of forecasts that were not zero.
    last_rate: Option<(Instant, Bitrate)>,
    last_forecast: Option<Bitrate>,
    pub(super) mtu: LinkMtu,
    /// Time of its last change of state: it came up, went down, or responded again. Older measurements may be lower
    /// than what it can carry now.
    recovered_at: Instant,
    /// Time before which no further connection probes it while it is unresponsive.
    pub(super) next_probe: Instant,
    /// Payload bytes that connections carried over it, in both directions.
    pub(super) carried: DataSize,
    /// Whether its budget is spent or nearly spent. Once true it stays true: when the link is unused, its rate is
    /// unknown, and with it the reserve that the budget needs.
    is_budget_spent: bool,
    /// Bytes reported to the meter, down and up.
    accounted: [DataSize; 2],
    /// Interface counters at their first comparison with `accounted`, and the value of `accounted` then.
    counter_base: Option<([DataSize; 2], [DataSize; 2])>,
    /// Time and values of the last interface counters.
    last_counters: Option<(Instant, [DataSize; 2])>,
    /// Bytes of the last interface counters that no connection had reported.
    unattributed: DataSize,
    /// Bytes that polls have reported since then.
    late_bytes: LateBytes,
    /// Last time at which anything was received over it.
    pub(super) last_received: Option<Instant>,
    /// Last time at which a liveness probe failed while nothing else was received.
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

    /// Replaces a connection's share in the sums. A changed user count shows in all shares after `settle_time`.
    pub(super) fn update_share(
        &mut self,
        config: &Config,
        now: Instant,
        [old, new]: [RateShare; 2],
        settle_time: Duration,
    ) {
        let is_over = self.previous_rates.is_none_or(|(until, _)| now >= until);
        if old.is_active != new.is_active && (is_over || self.user_count == 0) {
            // A connection starts or stops using the link: keep the present rates until all shares have settled (rule
            // 2).
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

    /// Rates of all its users together (rule 2).
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

    /// Expected rate: the present one, the last one, or the assumed one.
    pub(super) fn rate(&self, config: &Config, now: Instant) -> Bitrate {
        match (self.user_count, self.last_rate) {
            (0, None) => config.assumed_rate,
            // A low rate is not valid forever: it approaches the assumed rate with time, so that the link is tried
            // again.
            (0, Some((at, known))) if known < config.assumed_rate => {
                let share = Ratio::of(now.since(at).as_millis() as u64, RATE_FADE_TIME.as_millis() as u64);
                known + (config.assumed_rate - known).share(share.min(Ratio::ONE))
            }
            (0, Some((_, known))) => known,
            _ => Bitrate::from_bits_per_sec(self.rates(now).recent),
        }
    }

    /// Expected rate by the connections' forecasts (see [`rate`](Self::rate)).
    pub(super) fn forecast(&self, config: &Config, now: Instant) -> Bitrate {
        match self.user_count {
            0 => self.last_forecast.unwrap_or(config.assumed_rate),
            _ => Bitrate::from_bits_per_sec(self.rates(now).forecast),
        }
    }

    /// Last measured rate; `None`: it was never used.
    pub(super) fn last_rate(&self) -> Option<Bitrate> {
        self.last_rate.map(|(_, rate)| rate)
    }

    /// Last measured rate, if it was measured after the last outage.
    pub(super) fn rate_since_recovery(&self) -> Option<Bitrate> {
        self.last_rate
            .filter(|(at, _)| *at > self.recovered_at || self.recovered_at == Instant::ZERO)
            .map(|(_, rate)| rate)
    }

    /// Processes the link's recovery from an outage. A rate from before must not count against it: it is raised to
    /// the assumed rate, and counts as unknown where only a measurement is accepted
    /// ([`rate_since_recovery`](Self::rate_since_recovery)).
    pub(super) fn on_recovery(&mut self, config: &Config, now: Instant) {
        self.recovered_at = now;
        self.previous_rates = None;
        self.last_rate = self.last_rate.map(|(_, rate)| (now, rate.max(config.assumed_rate)));
    }

    /// Whether a liveness probe failed on it, and nothing was received over it since.
    pub(super) fn is_unresponsive(&self) -> bool {
        self.probe_failed_at.is_some_and(|lost| self.last_received.is_none_or(|alive| alive < lost))
    }

    /// Counts payload bytes that a poll of a connection has found.
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
        // The bytes arrived over the whole time since the previous poll, unless that was long ago or they are few.
        match now.since(from) <= MAX_COUNTER_GAP && size >= MIN_FLOW {
            true => meter.on_flow(from, now, self.config.id, direction, size),
            false => meter.on_bytes(now, self.config.id, direction, size),
        }
        self.last_received = Some(now);
    }

    /// Counts the interface's counters; returns the bytes that no polled connection explains.
    pub(super) fn on_interface_counters(
        &mut self,
        meter: &mut Meter,
        now: Instant,
        counters: [DataSize; 2],
    ) -> DataSize {
        if self.last_counters.is_some_and(|(_, last)| counters[0] < last[0] || counters[1] < last[1]) {
            // Another interface of the same name, or a modem that was reset: the counters restarted at zero.
            self.counter_base = Some(([DataSize::ZERO; 2], self.accounted));
        }
        let (base, accounted) = *self.counter_base.get_or_insert((counters, self.accounted));
        let mut unattributed = DataSize::ZERO;
        for direction in [Direction::Down, Direction::Up] {
            let index = direction_index(direction);
            let unaccounted = (counters[index] - base[index]) - (self.accounted[index] - accounted[index]);
            if !unaccounted.is_zero() {
                // Distribute the bytes over the time in which they probably arrived: directly after the last poll,
                // or over the whole time since the last reading, or (if that was too long ago or they are few) at
                // this moment.
                match (self.late_bytes.arrival_of(now, unaccounted), self.last_counters) {
                    (Some((from, to)), _) => meter.on_flow(from, to, self.config.id, direction, unaccounted),
                    (None, Some((from, _)))
                        if now.since(from) <= MAX_COUNTER_GAP && unaccounted >= MIN_FLOW * 4 =>
                    {
                        meter.on_flow(from, now, self.config.id, direction, unaccounted);
                    }
                    _ => meter.on_bytes(now, self.config.id, direction, unaccounted),
                }
                self.accounted[index] += unaccounted;
                unattributed += unaccounted;
            }
        }
        self.last_counters = Some((now, counters));
        self.late_bytes = LateBytes::default();
        self.unattributed = unattributed;
        self.update_budget(now);
        unattributed
    }

    /// Remaining budget; `None`: unlimited.
    pub(super) fn budget_left(&self) -> Option<DataSize> {
        self.config.budget.map(|budget| budget - (self.accounted[0] + self.accounted[1]))
    }

    /// Whether the link must not be used because of its budget.
    pub(super) const fn is_budget_spent(&self) -> bool {
        self.is_budget_spent
    }

    /// Marks the budget as spent before it is exceeded. Data in flight still arrives after the link is released, so
    /// a reserve is kept: [`BUDGET_RESERVE_TIME`] at its rate, plus as many bytes beside payload (headers, other
    /// programs) as passed between the last two readings of the interface.
    fn update_budget(&mut self, now: Instant) {
        let reserve = Bitrate::from_bits_per_sec(self.rates(now).recent) * BUDGET_RESERVE_TIME + self.unattributed;
        self.is_budget_spent |= self.budget_left().is_some_and(|left| left <= reserve);
    }
}

/// Time between the poll that finds a budget spent and the last byte: a poll interval and an RTT with queueing
/// delay. Our choice: the longest interval of active connections, and half a second of queueing delay.
const BUDGET_RESERVE_TIME: Duration = Duration::from_millis(800);

/// If counters were read no longer ago than this, and their difference is at least some packets, the bytes count as
/// a flow over that time. Otherwise the pause that ends a transfer in the radio's model (0.5 s) would
/// pass between two readings.
const MAX_COUNTER_GAP: Duration = Duration::from_millis(1500);
const MIN_FLOW: DataSize = DataSize::from_bytes(6000);

/// Time in which a low rate of an unused link fades toward the assumed rate. Our choice: three times the mean time
/// for which Wi-Fi stays good or bad in eMPTCP's evaluation.
const RATE_FADE_TIME: Duration = Duration::from_secs(120);

/// Index in arrays with one value per direction: down, up.
pub(super) const fn direction_index(direction: Direction) -> usize {
    match direction {
        Direction::Down => 0,
        Direction::Up => 1,
    }
}

/// Share of a connection in a link's sums.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct RateShare {
    pub(super) is_active: bool,
    /// Whether the rates were measured after slow start.
    pub(super) is_settled: bool,
    pub(super) rates: Rates,
}

/// Two rates in bits per second.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Rates {
    /// Over the last two seconds.
    pub(super) recent: u64,
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
