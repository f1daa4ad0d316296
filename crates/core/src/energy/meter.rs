//! The radios of one device: who pays for what they share, and what the device drew in all.
//!
//! In: links with their kinds, and signs of traffic on them. Out: an [`Account`] so far or with the tails to come, and
//! the cost of plans.
//!
//! 1. A link whose kind the model does not describe has no bill; it never stops a download or a report.
//! 2. Of radios that are active at the same time, the one that is found so later pays no shared base power. Two busy
//!    links therefore take turns, each link's bill never falls, and the sum is what the model says: the base powers of
//!    all, less the shared part for all but one.
//! 3. A byte is crowded ([`super::Together::extra`]) if another radio is active in the moment in which it is counted.

use alloc::vec::Vec;

use super::radio::ActivePeriod;
use super::{Direction, EnergyBreakdown, Model, Radio, RadioState};
use crate::link::{LinkId, LinkKind};
use crate::units::{Bitrate, DataSize, Duration, Energy, Instant};

/// The radios of one device, and what is theirs in common.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Meter {
    model: Model,
    start: Instant,
    /// In the order of the links' numbers.
    radios: Vec<(LinkId, Option<Radio>)>,
    active_periods: ActivePeriods,
}

/// One part of a plan: so many bytes over a link, steadily.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkLoad {
    /// The link.
    pub link: LinkId,
    /// Which way.
    pub direction: Direction,
    /// How many bytes.
    pub size: DataSize,
    /// How fast.
    pub rate: Bitrate,
}

impl Meter {
    /// Nothing moves since `start`.
    pub fn new(model: Model, start: Instant) -> Self {
        Self { model, start, radios: Vec::new(), active_periods: ActivePeriods::default() }
    }

    /// There is such a link since `now`; again for one that is known changes nothing. Its radio is idle.
    pub fn add_link(&mut self, now: Instant, link: LinkId, kind: LinkKind) {
        if let Err(at) = self.radios.binary_search_by_key(&link, |(id, _)| *id) {
            let radio = self.model.radio(kind).map(|model| Radio::new(*model, now));
            self.radios.insert(at, (link, radio));
        }
    }

    /// Bytes came or went on a link; none at all for a connection or a request that was begun. A link that was never
    /// told of is left out.
    pub fn on_bytes(&mut self, now: Instant, link: LinkId, direction: Direction, size: DataSize) {
        let is_concurrent = self.is_concurrent(now, link);
        let Some(radio) = self.radio_mut(link) else { return };
        let active = radio.record_traffic(now, direction, size);
        self.add_shared(link, active, if is_concurrent { size } else { DataSize::ZERO });
    }

    /// As [`Radio::carry`]. Links that carry at the same time are told of in pieces, in turns, where `extra` counts.
    pub fn on_flow(&mut self, from: Instant, to: Instant, link: LinkId, direction: Direction, size: DataSize) {
        let is_concurrent = self.is_concurrent(from, link);
        let Some(radio) = self.radio_mut(link) else { return };
        let active = radio.record_flow(from, to, direction, size);
        self.add_shared(link, active, if is_concurrent { size } else { DataSize::ZERO });
    }

    /// What was drawn up to `now`.
    pub fn energy_so_far(&self, now: Instant) -> EnergyBreakdown {
        self.breakdown(now, |radio| radio.totals(now))
    }

    /// What was drawn up to `now`, and what the radios draw from then until all of them are idle, if nothing more comes.
    /// The platform is counted up to `now`.
    pub fn energy_until_idle(&self, now: Instant) -> EnergyBreakdown {
        self.breakdown(now, |radio| radio.totals_at_idle(now))
    }

    /// What these transfers add to [`finish`](Self::finish) if all of them start now, side by side, each at its steady rate: a
    /// promotion where the radio is idle, the active time, and the tail that begins anew, less the rest of the tail that is under way;
    /// less what they share, plus what they cost each other. Links without a bill cost nothing; a rate of zero costs the maximum.
    /// Several loads on one link are one after another.
    pub fn plan_energy(&self, now: Instant, plan: &[LinkLoad]) -> Energy {
        let concurrent = self.model.concurrent();
        let (mut sum, mut spans): (Energy, Vec<(ActivePeriod, DataSize)>) = (Energy::ZERO, Vec::new());
        let mut copies: Vec<(LinkId, Radio, Radio)> = Vec::new();
        for load in plan.iter().filter(|load| !load.size.is_zero()) {
            let Some(radio) = self.radio(load.link) else { continue };
            if load.rate.is_zero() {
                return Energy::MAX;
            }
            if !copies.iter().any(|(link, ..)| *link == load.link) {
                copies.push((load.link, *radio, *radio));
            }
            if let Some((.., with)) = copies.iter_mut().find(|(link, ..)| *link == load.link) {
                let active = with.add_transfer(now, load.direction, load.size, load.rate);
                spans.push((active, load.size));
            }
        }
        for (_, without, with) in copies {
            let end = with.last_traffic() + with.time_to_idle(with.last_traffic());
            sum += with.energy_until_idle(end).total() - without.energy_until_idle(end).total();
        }
        let (mut periods, mut shared) = (ActivePeriods::default(), Duration::ZERO);
        for ((from, to), _) in &spans {
            shared = shared.saturating_add(periods.add(*from, *to));
        }
        for (n, ((from, to), size)) in spans.iter().enumerate() {
            let mut others = ActivePeriods::default();
            for (_, ((from, to), _)) in spans.iter().enumerate().filter(|(other, _)| *other != n) {
                others.add(*from, *to);
            }
            let part = others.add(*from, *to);
            sum += concurrent.extra_per_bit * portion(*size, part, to.since(*from));
        }
        sum - concurrent.shared_base * shared
    }

    /// A link's radio; none: it is not known, or not described by the model.
    pub fn radio(&self, link: LinkId) -> Option<&Radio> {
        let at = self.radios.binary_search_by_key(&link, |(id, _)| *id).ok()?;
        self.radios.get(at)?.1.as_ref()
    }

    /// What each link's radio does at `now`; none where the model does not describe it.
    pub fn states(&self, now: Instant) -> impl Iterator<Item = (LinkId, Option<RadioState>)> {
        self.radios.iter().map(move |(link, radio)| (*link, radio.as_ref().map(|radio| radio.state(now))))
    }

    /// The device.
    pub const fn model(&self) -> &Model {
        &self.model
    }

    fn breakdown(&self, now: Instant, totals: impl Fn(&Radio) -> super::StateTotals) -> EnergyBreakdown {
        let concurrent = self.model.concurrent();
        let energy = |radio: &Radio| totals(radio).energy(radio.model(), concurrent);
        EnergyBreakdown {
            platform: self.model.platform() * now.since(self.start),
            links: self.radios.iter().map(|(link, radio)| (*link, radio.as_ref().map(energy))).collect(),
        }
    }

    fn radio_mut(&mut self, link: LinkId) -> Option<&mut Radio> {
        let at = self.radios.binary_search_by_key(&link, |(id, _)| *id).ok()?;
        self.radios.get_mut(at)?.1.as_mut()
    }

    /// Whether another radio is active.
    fn is_concurrent(&self, now: Instant, link: LinkId) -> bool {
        !self.model.concurrent().extra_per_bit.is_zero()
            && self.states(now).any(|(other, state)| other != link && state == Some(RadioState::Active))
    }

    fn add_shared(&mut self, link: LinkId, active: Option<ActivePeriod>, concurrent_bytes: DataSize) {
        let shared = match active {
            Some((from, to)) if !self.model.concurrent().shared_base.is_zero() => self.active_periods.add(from, to),
            _ => Duration::ZERO,
        };
        if let Some(radio) = self.radio_mut(link) {
            radio.add_shared(shared, concurrent_bytes);
        }
    }
}

/// The part of `size` that falls into `part` of `whole`.
fn portion(size: DataSize, part: Duration, whole: Duration) -> DataSize {
    let bytes = u128::from(size.bytes()).saturating_mul(part.as_nanos()).checked_div(whole.as_nanos());
    DataSize::from_bytes(bytes.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(0))
}

/// The times in which any radio was active: apart from each other, in order.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
struct ActivePeriods(Vec<ActivePeriod>);

impl ActivePeriods {
    /// The most times kept. New ones begin at most a gap ago, so that only the newest of each link can meet them; this is
    /// enough for eight links that pause all the time.
    const CAPACITY: usize = 64;

    /// Adds a time, and tells how much of it was there already.
    fn add(&mut self, from: Instant, to: Instant) -> Duration {
        // Those that touch it: all that end before it begins and all that begin after it ends are passed over.
        let first = self.0.partition_point(|(_, end)| *end < from);
        let last = self.0.partition_point(|(begin, _)| *begin <= to);
        let (mut merged, mut overlap) = ((from, to), Duration::ZERO);
        for (begin, end) in self.0.get(first..last).unwrap_or_default() {
            overlap = overlap.saturating_add(to.min(*end).since(from.max(*begin)));
            merged = (merged.0.min(*begin), merged.1.max(*end));
        }
        if first <= last {
            self.0.splice(first..last, [merged]);
        }
        if self.0.len() > Self::CAPACITY {
            self.0.remove(0);
        }
        overlap
    }
}
