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

use super::config::{Config, LinkTerms};
use super::link_mtu::LinkMtu;
use super::trail::Trail;
use crate::energy::{Direction, Meter};
use crate::units::{Bitrate, DataSize, Duration, Instant, Ratio};

/// Links by their place: those of the configuration, then those that came later.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Links(u64);

impl Links {
    /// The most links. Those beyond are left alone.
    pub(super) const MAX: usize = 64;
    pub(super) const NONE: Self = Self(0);

    pub(super) const fn one(link: usize) -> Self {
        Self(if link < Self::MAX { 1 << link } else { 0 })
    }

    pub(super) const fn has(self, link: usize) -> bool {
        self.0 & Self::one(link).0 != 0
    }

    pub(super) const fn with(self, link: usize) -> Self {
        Self(self.0 | Self::one(link).0)
    }

    pub(super) const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub(super) const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub(super) const fn or(self, other: Self) -> Self {
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
        let mut rest = self.0;
        core::iter::from_fn(move || {
            let link = (rest != 0).then(|| rest.trailing_zeros() as usize)?;
            rest &= rest - 1;
            Some(link)
        })
    }
}

/// One link of the host.
#[derive(Clone, Debug)]
pub(super) struct Link {
    pub(super) terms: LinkTerms,
    pub(super) up: bool,
    /// Connections that use it now.
    users: u32,
    /// What those bring whose windows are open, and what the others do.
    ripe: Rates,
    young: Rates,
    /// How fast it was before the last ones came or went, and until when that counts.
    before: Option<(Instant, Rates)>,
    /// The last sum of rates and of forecasts that was not nothing.
    known: Option<(Instant, Bitrate)>,
    known_forecast: Option<Bitrate>,
    pub(super) mtu: LinkMtu,
    /// When it came back from its last outage: what is known from before may be less than it can do now.
    returned: Instant,
    /// Before this no further connection probes it while it is silent.
    pub(super) next_probe: Instant,
    /// Payload that connections carried over it, both ways.
    pub(super) carried: DataSize,
    /// Its budget is as good as gone, for the rest of the run: once it is left, nothing says how fast it would be.
    spent: bool,
    /// What was told to the meter, down and up.
    fed: [DataSize; 2],
    /// Where the interface's counters stood when they were first compared with that, and what had been fed by then.
    base: Option<([DataSize; 2], [DataSize; 2])>,
    /// When the interface's counters came last, and what they said.
    counted: Option<(Instant, [DataSize; 2])>,
    /// What they knew then that no connection had told.
    unexplained: DataSize,
    /// What connections saw since.
    trail: Trail,
    /// The last time at which anything came over it.
    pub(super) alive: Option<Instant>,
    /// The last time at which a proof of life failed while nothing else came over it.
    pub(super) lost: Option<Instant>,
}

impl Link {
    pub(super) fn new(terms: LinkTerms) -> Self {
        Self {
            spent: terms.budget.is_some_and(DataSize::is_zero),
            terms,
            up: false,
            users: 0,
            ripe: Rates::default(),
            young: Rates::default(),
            before: None,
            known: None,
            known_forecast: None,
            mtu: LinkMtu::default(),
            returned: Instant::ZERO,
            next_probe: Instant::ZERO,
            carried: DataSize::ZERO,
            fed: [DataSize::ZERO; 2],
            base: None,
            counted: None,
            unexplained: DataSize::ZERO,
            trail: Trail::default(),
            alive: None,
            lost: None,
        }
    }

    /// A connection's part in the sums has changed; none: it does not use the link (any more). Such a change shows in all
    /// parts after `settles`.
    pub(super) fn on_share(&mut self, config: &Config, now: Instant, [old, new]: [Share; 2], settles: Duration) {
        let over = self.before.is_none_or(|(until, _)| now >= until);
        if old.uses != new.uses && (over || self.users == 0) {
            let rates = Rates {
                recent: self.rate(config, now).bits_per_sec(),
                forecast: self.predicted(config, now).bits_per_sec(),
            };
            self.before = Some((now + settles, rates));
        }
        for (share, add) in [(old, false), (new, true)] {
            let sum = if share.ripe { &mut self.ripe } else { &mut self.young };
            *sum = if add { sum.plus(share.rates) } else { sum.less(share.rates) };
        }
        self.users = self.users.saturating_sub(old.uses.into()).saturating_add(new.uses.into());
        if self.users > 0 && new.uses && new.ripe {
            let Rates { recent, forecast } = self.rates(now);
            if recent > 0 {
                self.known = Some((now, Bitrate::from_bits_per_sec(recent)));
            }
            self.known_forecast = Some(Bitrate::from_bits_per_sec(forecast));
        }
        self.count(now);
    }

    /// What those that use it bring together.
    fn rates(&self, now: Instant) -> Rates {
        match self.before.filter(|(until, _)| now < *until) {
            Some((_, before)) => before.max(self.ripe).max(self.young),
            None => self.ripe.plus(self.young),
        }
    }

    /// Whether a connection measures it now.
    pub(super) const fn used(&self) -> bool {
        self.users > 0
    }

    /// What is to be expected of it: now, last, or assumed.
    pub(super) fn rate(&self, config: &Config, now: Instant) -> Bitrate {
        match (self.users, self.known) {
            (0, None) => config.assumed,
            // What was bad is not bad for ever: it fades towards what is assumed, so that it is tried again.
            (0, Some((at, known))) if known < config.assumed => {
                let share = Ratio::of(now.since(at).as_millis() as u64, FADES.as_millis() as u64);
                known + (config.assumed - known).share(share.min(Ratio::ONE))
            }
            (0, Some((_, known))) => known,
            _ => Bitrate::from_bits_per_sec(self.rates(now).recent),
        }
    }

    /// The same by the forecasts.
    pub(super) fn predicted(&self, config: &Config, now: Instant) -> Bitrate {
        match self.users {
            0 => self.known_forecast.unwrap_or(config.assumed),
            _ => Bitrate::from_bits_per_sec(self.rates(now).forecast),
        }
    }

    /// What was measured of it last; none: it was never used.
    pub(super) fn known(&self) -> Option<Bitrate> {
        self.known.map(|(_, rate)| rate)
    }

    /// The same, if that was after its last outage.
    pub(super) fn known_since_return(&self) -> Option<Bitrate> {
        self.known.filter(|(at, _)| *at > self.returned || self.returned == Instant::ZERO).map(|(_, rate)| rate)
    }

    /// It comes back from an outage. A rate of before does not count against it: it is taken for what is assumed of
    /// links at least, and for unknown where only a measurement will do ([`Link::known_since_return`]).
    pub(super) fn on_return(&mut self, config: &Config, now: Instant) {
        self.returned = now;
        self.before = None;
        self.known = self.known.map(|(_, rate)| (now, rate.max(config.assumed)));
    }

    /// Whether a proof of life failed on it, and nothing has come over it since.
    pub(super) fn is_silent(&self) -> bool {
        self.lost.is_some_and(|lost| self.alive.is_none_or(|alive| alive < lost))
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
        self.fed[side(direction)] += size;
        self.count(now);
        self.trail.on_look((from, now), size);
        // Bytes of a look have come all through the time since the last one, if that was a moment ago.
        match now.since(from) <= SPAN && size >= FLOW {
            true => meter.carry(from, now, self.terms.link, direction, size),
            false => meter.on_bytes(now, self.terms.link, direction, size),
        }
        self.alive = Some(now);
    }

    /// The interface's counters; the answer is what no connection that is looked at explains.
    pub(super) fn on_traffic(&mut self, meter: &mut Meter, now: Instant, counted: [DataSize; 2]) -> DataSize {
        if self.counted.is_some_and(|(_, last)| counted[0] < last[0] || counted[1] < last[1]) {
            // Another interface of the same name, or a modem that was reset: it counts from zero.
            self.base = Some(([DataSize::ZERO; 2], self.fed));
        }
        let (base, fed) = *self.base.get_or_insert((counted, self.fed));
        let mut unexplained = DataSize::ZERO;
        for direction in [Direction::Down, Direction::Up] {
            let at = side(direction);
            let more = (counted[at] - base[at]) - (self.fed[at] - fed[at]);
            if !more.is_zero() {
                match (self.trail.rest(now, more), self.counted) {
                    (Some((from, to)), _) => meter.carry(from, to, self.terms.link, direction, more),
                    (None, Some((from, _))) if now.since(from) <= SPAN && more >= FLOW * 4 => {
                        meter.carry(from, now, self.terms.link, direction, more);
                    }
                    _ => meter.on_bytes(now, self.terms.link, direction, more),
                }
                self.fed[at] += more;
                unexplained += more;
            }
        }
        self.counted = Some((now, counted));
        self.trail = Trail::default();
        self.unexplained = unexplained;
        self.count(now);
        unexplained
    }

    /// What its budget still allows; none: anything.
    pub(super) fn allowance(&self) -> Option<DataSize> {
        self.terms.budget.map(|budget| budget - (self.fed[0] + self.fed[1]))
    }

    /// Whether the budget forbids it.
    pub(super) const fn spent(&self) -> bool {
        self.spent
    }

    /// What is on its way when it is stopped still comes, so it is stopped so much earlier: [`IN_FLIGHT`] of its rate, and as
    /// much beside payload (headers, other programs' bytes) as passed between the last two counts of its interface.
    fn count(&mut self, now: Instant) {
        let reserve = Bitrate::from_bits_per_sec(self.rates(now).recent) * IN_FLIGHT + self.unexplained;
        self.spent |= self.allowance().is_some_and(|left| left <= reserve);
    }
}

/// What comes between the look that finds a budget spent and the last byte: a look's interval and a round trip with its
/// queue. chosen: the widest interval of active connections, and half a second of queue.
const IN_FLIGHT: Duration = Duration::from_millis(800);

/// Counters no further apart than this tell of a span of time in which bytes flowed, if there were some packets: between
/// two of them a radio's gap (0.5 s) would otherwise pass.
const SPAN: Duration = Duration::from_millis(1500);
const FLOW: DataSize = DataSize::from_bytes(6000);

/// How long a bad rate of a link that rests is believed, less and less. chosen: the paper's mean of Wi-Fi's states, thrice.
const FADES: Duration = Duration::from_secs(120);

/// Its place where there is one value for each way: down, up.
pub(super) const fn side(direction: Direction) -> usize {
    match direction {
        Direction::Down => 0,
        Direction::Up => 1,
    }
}

/// A connection's part in a link's sums.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Share {
    pub(super) uses: bool,
    /// Whether these were measured with an open window.
    pub(super) ripe: bool,
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
    fn each(self, other: Self, of: impl Fn(u64, u64) -> u64) -> Self {
        Self { recent: of(self.recent, other.recent), forecast: of(self.forecast, other.forecast) }
    }

    fn plus(self, other: Self) -> Self {
        self.each(other, u64::saturating_add)
    }

    fn less(self, other: Self) -> Self {
        self.each(other, u64::saturating_sub)
    }

    fn max(self, other: Self) -> Self {
        self.each(other, u64::max)
    }
}
