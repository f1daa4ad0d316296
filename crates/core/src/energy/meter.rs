//! Energy meter of a device: the radios of all its links, what they share, and the total.
//!
//! Drivers report links with their kinds and the traffic on them. The meter returns an [`EnergyBreakdown`], up to
//! now or until the radios are idle, and the energy that planned transfers would cost.
//!
//! 1. A link whose kind the model does not describe has no energy figure; its traffic is ignored.
//! 2. While several radios are active, only one of them counts the shared base power: each period is charged to the
//!    radio for which it is reported first, and radios reported later count no shared base for it. Busy links
//!    therefore alternate, the energy of each link never decreases, and the sum is what the model states: all base
//!    powers, less the shared part for all radios but one.
//! 3. A byte counts as concurrent ([`super::ConcurrentDraw::extra_per_bit`]) if another radio is active when it is
//!    reported.

use alloc::vec::Vec;

use super::radio::ActivePeriod;
use super::{Direction, EnergyBreakdown, Model, Radio, RadioState};
use crate::link::{LinkId, LinkKind};
use crate::units::{Bitrate, DataSize, Duration, Energy, Instant};

/// The radios of one device and their common state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Meter {
    model: Model,
    start: Instant,
    /// Sorted by link number. `None`: the model does not describe the link's kind.
    radios: Vec<(LinkId, Option<Radio>)>,
    active_periods: ActivePeriods,
}

/// One part of a plan: a transfer over a link at a steady rate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkLoad {
    /// The link.
    pub link: LinkId,
    /// Direction of the transfer.
    pub direction: Direction,
    /// Number of bytes.
    pub size: DataSize,
    /// The steady rate.
    pub rate: Bitrate,
}

impl Meter {
    /// A meter without links, which counts the platform's energy from `start`.
    pub fn new(model: Model, start: Instant) -> Self {
        Self { model, start, radios: Vec::new(), active_periods: ActivePeriods::default() }
    }

    /// Adds a link, whose radio is idle at `now`. A link that is already known is not changed.
    pub fn add_link(&mut self, now: Instant, link: LinkId, kind: LinkKind) {
        if let Err(at) = self.radios.binary_search_by_key(&link, |(id, _)| *id) {
            let radio = self.model.radio(kind).map(|model| Radio::new(*model, now));
            self.radios.insert(at, (link, radio));
        }
    }

    /// Reports bytes that arrived or were sent on a link; zero bytes mean that a connection or request was started.
    /// Unknown links are ignored.
    pub fn on_bytes(&mut self, now: Instant, link: LinkId, direction: Direction, size: DataSize) {
        let is_concurrent = self.is_concurrent(now, link);
        let Some(radio) = self.radio_mut(link) else { return };
        let active = radio.record_traffic(now, direction, size);
        self.add_shared(link, active, if is_concurrent { size } else { DataSize::ZERO });
    }

    /// Like [`Radio::on_flow`]. If several links carry data at the same time, report them alternately in small
    /// pieces: `extra_per_bit` is decided for each report.
    pub fn on_flow(&mut self, from: Instant, to: Instant, link: LinkId, direction: Direction, size: DataSize) {
        let is_concurrent = self.is_concurrent(from, link);
        let Some(radio) = self.radio_mut(link) else { return };
        let active = radio.record_flow(from, to, direction, size);
        self.add_shared(link, active, if is_concurrent { size } else { DataSize::ZERO });
    }

    /// Energy drawn up to `now`.
    pub fn energy_so_far(&self, now: Instant) -> EnergyBreakdown {
        self.breakdown(now, |radio| radio.totals(now))
    }

    /// Energy drawn up to `now` plus what the radios draw until all of them are idle, if no more traffic follows.
    /// The platform is counted only up to `now`.
    pub fn energy_until_idle(&self, now: Instant) -> EnergyBreakdown {
        self.breakdown(now, |radio| radio.totals_at_idle(now))
    }

    /// Energy that these transfers add to [`energy_until_idle`](Self::energy_until_idle) if all of them start now,
    /// in parallel, each at its steady rate.
    ///
    /// It consists of a promotion where the radio is idle, the active time, and a new tail, less the remaining part
    /// of a tail that is already running; less the shared base power, plus the extra energy of concurrent bytes.
    /// Links without a model cost nothing; a rate of zero costs the maximum. Several loads on one link run one
    /// after another.
    pub fn plan_energy(&self, now: Instant, plan: &[LinkLoad]) -> Energy {
        let concurrent = self.model.concurrent();
        let (mut sum, mut transfers): (Energy, Vec<(ActivePeriod, DataSize)>) = (Energy::ZERO, Vec::new());
        // Each link's radio twice: as it is, and with its transfers added.
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
                transfers.push((active, load.size));
            }
        }
        for (_, without, with) in copies {
            // Compare both at the same time, the end of the longer tail, so that the power of the idle state
            // cancels out.
            let end = with.last_traffic() + with.time_to_idle(with.last_traffic());
            sum += with.energy_until_idle(end).total() - without.energy_until_idle(end).total();
        }
        let (mut periods, mut shared) = (ActivePeriods::default(), Duration::ZERO);
        // Overlaps between the radios: the shared base counts once, and bytes during an overlap cost extra.
        for ((from, to), _) in &transfers {
            shared = shared.saturating_add(periods.add(*from, *to));
        }
        for (n, ((from, to), size)) in transfers.iter().enumerate() {
            let mut others = ActivePeriods::default();
            for (_, ((from, to), _)) in transfers.iter().enumerate().filter(|(other, _)| *other != n) {
                others.add(*from, *to);
            }
            let overlap = others.add(*from, *to);
            sum += concurrent.extra_per_bit * portion(*size, overlap, to.since(*from));
        }
        sum - concurrent.shared_base * shared
    }

    /// Radio of a link; `None`: the link is unknown or the model does not describe its kind.
    pub fn radio(&self, link: LinkId) -> Option<&Radio> {
        let at = self.radios.binary_search_by_key(&link, |(id, _)| *id).ok()?;
        self.radios.get(at)?.1.as_ref()
    }

    /// State of each link's radio at `now`; `None` where the model does not describe its kind.
    pub fn states(&self, now: Instant) -> impl Iterator<Item = (LinkId, Option<RadioState>)> {
        self.radios.iter().map(move |(link, radio)| (*link, radio.as_ref().map(|radio| radio.state(now))))
    }

    /// The device's model.
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

    /// Whether another link's radio is active, which makes bytes on this link cost extra.
    fn is_concurrent(&self, now: Instant, link: LinkId) -> bool {
        !self.model.concurrent().extra_per_bit.is_zero()
            && self.states(now).any(|(other, state)| other != link && state == Some(RadioState::Active))
    }

    fn add_shared(&mut self, link: LinkId, active: Option<ActivePeriod>, concurrent_bytes: DataSize) {
        // Time in which another radio was already active is charged without the shared base power.
        let shared = match active {
            Some((from, to)) if !self.model.concurrent().shared_base.is_zero() => self.active_periods.add(from, to),
            _ => Duration::ZERO,
        };
        if let Some(radio) = self.radio_mut(link) {
            radio.add_shared(shared, concurrent_bytes);
        }
    }
}

/// The share of `size` that falls into `part` of the duration `total`.
fn portion(size: DataSize, part: Duration, total: Duration) -> DataSize {
    let bytes = u128::from(size.bytes()).saturating_mul(part.as_nanos()).checked_div(total.as_nanos());
    DataSize::from_bytes(bytes.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(0))
}

/// Periods in which any radio was active: disjoint and in order.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
struct ActivePeriods(Vec<ActivePeriod>);

impl ActivePeriods {
    /// Most periods kept. New periods start at most one gap ago, so only the newest period of each link can overlap
    /// them. Our choice: enough for eight links that pause all the time.
    const CAPACITY: usize = 64;

    /// Adds a period and returns how much of it was already covered.
    fn add(&mut self, from: Instant, to: Instant) -> Duration {
        // The range `first..last` holds the periods that touch the new one: they neither end before it begins nor
        // begin after it ends.
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
