//! Minimum energy of a plain transfer: a number of bytes, over links with known capacity, by a deadline.
//!
//! [`Transfer::min_energy`] takes the radio of each link, what concurrently active radios share, a deadline and a
//! grid. It returns the energy of the best schedule on the grid and a bound below every schedule
//! ([`OptimalEnergy`]).
//!
//! 1. At each moment a subset of the links is active, at full rate (a *mode*). A mode has a rate and a power: the
//!    base powers, less the shared part for all but one link, plus the price of the bits. A lower rate never pays,
//!    because power above the base grows at most in proportion to the rate.
//! 2. Rates are constant within a bin. The minimum cost of a bin's bytes is therefore the lower hull of its modes,
//!    and a few sliding-window minima carry the states from one bin to the next ([`super::energy`]).
//! 3. One link may have a tail. Its state is the number of bins left; a bin that uses the link restarts it, with
//!    the bytes at the end of the bin. A start from idle first pays a promotion. Bytes may move during the
//!    promotion, as the meter counts them, and active power is not paid meanwhile.
//! 4. The bound is a Lagrangian relaxation: for any price λ per byte, the minimum of (energy − λ × bytes) over all
//!    schedules, plus λ × size, is below the energy of every schedule. Without the size constraint, only the tail
//!    connects the bins. So each evaluation is a walk over bins and tail states without grains. The bound is
//!    concave in λ, and ternary search finds the best λ. In the relaxation the tail is a bin shorter, so that bytes
//!    may lie anywhere in their bins. A power curve with a knee counts only by its first segment, because the meter
//!    evaluates the mean rate of a transfer. The schedule's own energy uses the power at the current rate, which
//!    equals the meter's result at steady rates.
//!
//! The program of [`super::energy`] does not apply: it adds independent costs per link, and here the cost of a link
//! depends on which others are active.

use marline_core::energy::{ConcurrentDraw, RadioModel};
use marline_core::units::{Bitrate, DataSize, Duration, Energy};

use super::energy::{GrainRange, Grid, OptimalEnergy, relax, tail_costs};
use super::{CapacityCurve, bits};

/// A number of bytes to be transferred over several links.
#[derive(Clone, Debug)]
pub struct Transfer {
    /// Capacity of each link, in the same bytes as `size`.
    pub links: Vec<CapacityCurve>,
    /// Total over all links; it may be split among them in any way.
    pub size: DataSize,
}

impl Transfer {
    /// When all links together have carried `size`, to a microsecond; `None` if that takes more than a year.
    pub fn min_time(&self) -> Option<Duration> {
        let is_carried_by =
            |at: f64| self.links.iter().map(|link| link.carried_bits(at)).sum::<f64>() >= bits(self.size);
        let (mut uncovered_at, mut covered_at) = (0.0, 1.0);
        while !is_carried_by(covered_at) {
            (uncovered_at, covered_at) = (covered_at, covered_at * 2.0);
            if covered_at > 365.0 * 86_400.0 {
                return None;
            }
        }
        while covered_at - uncovered_at > 1e-6 {
            let middle = (uncovered_at + covered_at) / 2.0;
            if is_carried_by(middle) { covered_at = middle } else { uncovered_at = middle }
        }
        Some(Duration::from_secs_f64(covered_at))
    }

    /// Minimum energy until the deadline, including the tails after it; `None` if the transfer is impossible by
    /// then.
    ///
    /// # Panics
    /// If the number of radios differs from the number of links, more than one radio has a tail, or the grid has a
    /// zero size.
    pub fn min_energy(
        &self,
        radios: &[RadioModel],
        concurrent_draw: ConcurrentDraw,
        deadline: Duration,
        grid: Grid,
    ) -> Option<OptimalEnergy> {
        assert_eq!(radios.len(), self.links.len(), "one radio per link");
        assert!(radios.iter().filter(|radio| has_tail(radio)).count() <= 1, "at most one link may have a tail");
        assert!(!grid.bin.is_zero() && !grid.grain.is_zero(), "bin and grain must not be zero");
        let bins = self.bins(radios, concurrent_draw, deadline, grid);
        let tailed = radios.iter().find(|radio| has_tail(radio));
        let grain = bits(grid.grain);
        let total = (bits(self.size) / grain).floor() as usize;
        let schedule = TailProgram::new(tailed, grid.bin, 0.0);
        let energy = schedule.min_joules(&bins, total, grain)?;
        let relaxed = TailProgram::new(tailed, grid.bin, grid.bin.as_secs_f64());
        let bound = relaxed.lagrange_bound(&bins, bits(self.size));
        let joules = |joules: f64| Energy::from_nanojoules((joules.max(0.0) * 1e9) as u64);
        Some(OptimalEnergy { energy: joules(energy), lower_bound: joules(bound.min(energy)) })
    }

    fn bins(
        &self,
        radios: &[RadioModel],
        concurrent_draw: ConcurrentDraw,
        deadline: Duration,
        grid: Grid,
    ) -> Vec<Bin> {
        let (end, bin) = (deadline.as_secs_f64(), grid.bin.as_secs_f64());
        let count = (end / bin - 1e-9).ceil().max(1.0) as usize;
        let shared_base = concurrent_draw.shared_base.as_watts_f64();
        let bin_at = |at: usize| {
            let (from, to) = (at as f64 * bin, ((at + 1) as f64 * bin).min(end));
            let carried: Vec<f64> =
                self.links.iter().map(|link| link.carried_bits(to) - link.carried_bits(from)).collect();
            let mut bin_modes = Bin { seconds: to - from, modes: Vec::new() };
            // Each set of links that all carry something in this bin is a mode; the empty set is to be idle.
            for mask in 0..1_usize << radios.len() {
                let active_links = || (0..radios.len()).filter(|link| mask >> link & 1 == 1);
                if active_links().any(|link| carried[link] <= 0.0) {
                    continue;
                }
                let rate = |link: usize| carried[link] / (to - from);
                let power = |link: usize| {
                    radios[link].down.power_at(Bitrate::from_bits_per_sec(rate(link) as u64)).as_watts_f64()
                };
                let linear_power = |link: usize| {
                    let draw = radios[link].down;
                    draw.base.as_watts_f64() + draw.per_bit.picojoules() as f64 * 1e-12 * rate(link)
                };
                let (power, linear_power): (f64, f64) =
                    (active_links().map(power).sum(), active_links().map(linear_power).sum());
                let further_links = active_links().count().saturating_sub(1) as f64;
                bin_modes.modes.push(Mode {
                    mask,
                    bits: active_links().map(|link| carried[link]).sum(),
                    joules: (power - shared_base * further_links) * bin_modes.seconds,
                    linear_joules: (linear_power - shared_base * further_links) * bin_modes.seconds,
                    uses_tail_link: active_links().any(|link| has_tail(&radios[link])),
                });
            }
            bin_modes
        };
        (0..count).map(bin_at).collect()
    }
}

fn has_tail(radio: &RadioModel) -> bool {
    !radio.tail.energy().is_zero()
}

/// A period of constant rates.
#[derive(Clone, Debug)]
struct Bin {
    seconds: f64,
    /// The first mode is to be idle.
    modes: Vec<Mode>,
}

/// A set of links, active for a whole bin.
#[derive(Clone, Copy, Debug)]
struct Mode {
    /// Active links, one bit per link.
    mask: usize,
    bits: f64,
    joules: f64,
    /// Energy by the first segment of each power curve. The meter takes the mean rate of a transfer, which may be
    /// below the knee.
    linear_joules: f64,
    /// Whether the link with the tail is active.
    uses_tail_link: bool,
}

impl Mode {
    fn linearized(self) -> Self {
        Self { joules: self.linear_joules, ..self }
    }
}

/// State of the link with the tail in a bin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum TailUse {
    /// Not used; its tail, if any, continues to run down.
    Unused,
    /// Started from idle, with a promotion.
    Started,
    /// Used while its radio is still awake.
    Kept,
}

/// Cost of the tail in bins, and the walk over all bins.
#[derive(Clone, Debug)]
struct TailProgram {
    /// Indexed by the number of bins left: joules of the next of them. Entry 0 is zero.
    bin_costs: Vec<f64>,
    tail_watts: f64,
    /// Joules of a promotion, less the active power that is not paid meanwhile.
    promotion_joules: f64,
    has_tail: bool,
}

impl TailProgram {
    /// Uses the radio's tail, less `shortened_by` seconds.
    fn new(radio: Option<&RadioModel>, bin: Duration, shortened_by: f64) -> Self {
        let Some(radio) = radio else {
            return Self { bin_costs: vec![0.0], tail_watts: 0.0, promotion_joules: 0.0, has_tail: false };
        };
        let bin = bin.as_secs_f64();
        let time = radio.tail.time().as_secs_f64();
        // The stages of the tail are merged into one of their mean power.
        let watts = radio.tail.energy().as_joules_f64() / time;
        let length = (time - shortened_by).max(0.0);
        let promotion = radio.promotion.energy().as_joules_f64();
        let active_energy = radio.down.base.as_watts_f64() * radio.promotion.time.as_secs_f64();
        Self {
            bin_costs: tail_costs(watts, length, bin),
            tail_watts: watts,
            promotion_joules: promotion - active_energy,
            has_tail: true,
        }
    }

    fn full(&self) -> usize {
        self.bin_costs.len() - 1
    }

    fn remaining_cost(&self, remaining: usize) -> f64 {
        self.bin_costs.iter().take(remaining + 1).sum()
    }

    /// Cost of a bin's modes for a given use of the tail link, as points of bits and joules.
    fn cost_points(&self, bin: &Bin, tail_use: TailUse) -> Vec<CostPoint> {
        let point = |mode: &Mode| {
            let tail_joules =
                if tail_use == TailUse::Kept && !mode.uses_tail_link { self.tail_watts * bin.seconds } else { 0.0 };
            CostPoint { mask: mode.mask, bits: mode.bits, joules: mode.joules + tail_joules }
        };
        let is_allowed = |mode: &&Mode| tail_use != TailUse::Unused || !mode.uses_tail_link || !self.has_tail;
        bin.modes.iter().filter(is_allowed).map(point).collect()
    }

    /// Joules of the cheapest schedule that delivers `total` grains, or `None` if there is none.
    fn min_joules(&self, bins: &[Bin], total: usize, grain: f64) -> Option<f64> {
        let unreachable = || vec![f64::INFINITY; total + 1];
        let mut states: Vec<Vec<f64>> = (0..=self.full()).map(|_| unreachable()).collect();
        let mut next = states.clone();
        states[0][0] = 0.0;
        // Grains of each mode are rounded on the running sum of its bits, so that rounding loses no grain
        // permanently.
        let masks = bins.iter().flat_map(|bin| &bin.modes).map(|mode| mode.mask).max().unwrap_or(0);
        let mut carried_before = vec![0.0; masks + 1];
        let mut range = GrainRange { low: 0, high: 0 };
        let mut max_grains = 0;
        for bin in bins {
            let fastest = bin.modes.iter().max_by(|a, b| a.bits.total_cmp(&b.bits));
            max_grains += fastest.map_or(0, |mode| grain_count(carried_before[mode.mask], mode.bits, grain));
            range.high = max_grains.min(total);
            next.iter_mut().for_each(|state| state.fill(f64::INFINITY));
            let hull = |used: TailUse| LowerHull::new(self.cost_points(bin, used), &carried_before, grain);
            // The tail link is unused: other links may transmit while its tail runs down.
            let unused = hull(TailUse::Unused);
            for (remaining, state) in states.iter().enumerate() {
                let costs = unused.apply(state, range);
                relax(&mut next[remaining.saturating_sub(1)], &costs, self.bin_costs[remaining], range);
            }
            // The tail link is used, from idle after a promotion or within its tail; then a full tail is left.
            if self.has_tail && bin.modes.iter().any(|mode| mode.uses_tail_link) {
                let mut in_tail = unreachable();
                for state in &states[1..] {
                    relax(&mut in_tail, state, 0.0, range);
                }
                relax(
                    &mut next[self.full()],
                    &hull(TailUse::Started).apply(&states[0], range),
                    self.promotion_joules,
                    range,
                );
                relax(&mut next[self.full()], &hull(TailUse::Kept).apply(&in_tail, range), 0.0, range);
            }
            for mode in &bin.modes {
                carried_before[mode.mask] += mode.bits;
            }
            std::mem::swap(&mut states, &mut next);
        }
        let ends =
            states.iter().enumerate().map(|(remaining, state)| state[total] + self.remaining_cost(remaining));
        Some(ends.fold(f64::INFINITY, f64::min)).filter(|energy| energy.is_finite())
    }

    /// The highest Lagrangian bound over all prices.
    fn lagrange_bound(&self, bins: &[Bin], size: f64) -> f64 {
        // No marginal bit costs more than a few times the average bit of the most expensive mode.
        let prices = bins.iter().flat_map(|bin| &bin.modes).filter(|mode| mode.bits > 0.0);
        let max_price = prices.map(|mode| mode.joules / mode.bits).fold(0.0, f64::max) * 4.0 + 1e-7;
        let value = |price: f64| self.lagrange_min(bins, price) + price * size;
        let (mut low, mut high) = (0.0, max_price);
        for _ in 0..80 {
            let (a, b) = (low + (high - low) / 3.0, high - (high - low) / 3.0);
            if value(a) < value(b) { low = a } else { high = b }
        }
        value(low).max(value(high)).max(0.0)
    }

    /// Minimum of (energy − price × bits), for any number of bits.
    fn lagrange_min(&self, bins: &[Bin], price: f64) -> f64 {
        let mut states = vec![f64::INFINITY; self.full() + 1];
        states[0] = 0.0;
        for bin in bins {
            let best = |tail_use: TailUse| {
                let linear = Bin { modes: bin.modes.iter().map(|mode| mode.linearized()).collect(), ..*bin };
                let values =
                    self.cost_points(&linear, tail_use).into_iter().map(|point| point.joules - price * point.bits);
                values.fold(f64::INFINITY, f64::min)
            };
            let mut next = vec![f64::INFINITY; states.len()];
            let unused = best(TailUse::Unused);
            for (remaining, state) in states.iter().enumerate() {
                let cost = &mut next[remaining.saturating_sub(1)];
                *cost = cost.min(state + unused + self.bin_costs[remaining]);
            }
            if self.has_tail {
                // The tail is one bin shorter, so in its last bin it is unknown how much of the real tail is left.
                let from_idle = states.iter().take(2).fold(f64::INFINITY, |least, state| least.min(*state));
                let from_tail = states.iter().skip(2).fold(f64::INFINITY, |least, state| least.min(*state));
                let with_use = (from_idle + best(TailUse::Started) + self.promotion_joules.min(0.0))
                    .min(from_tail + best(TailUse::Kept));
                let cost = &mut next[self.full()];
                *cost = cost.min(with_use);
            }
            states = next;
        }
        let ends = states.iter().enumerate().map(|(remaining, state)| state + self.remaining_cost(remaining));
        ends.fold(f64::INFINITY, f64::min)
    }
}

/// Lower hull of a bin's modes: segments of so many grains at a price each, cheapest first.
#[derive(Clone, Debug)]
struct LowerHull {
    idle_joules: f64,
    segments: Vec<(usize, f64)>,
}

/// A mode's bits and their cost.
#[derive(Clone, Copy, Debug)]
struct CostPoint {
    mask: usize,
    bits: f64,
    joules: f64,
}

/// Whole grains that `bits` add to the `before` bits already counted.
fn grain_count(before: f64, bits: f64, grain: f64) -> usize {
    (((before + bits) / grain + 1e-6) as usize).saturating_sub((before / grain + 1e-6) as usize)
}

impl LowerHull {
    /// Builds the hull; `before` has the bits that each mode could have carried before this bin.
    fn new(mut points: Vec<CostPoint>, before: &[f64], grain: f64) -> Self {
        points.sort_by(|a, b| a.bits.total_cmp(&b.bits).then(a.joules.total_cmp(&b.joules)));
        let mut hull: Vec<CostPoint> = Vec::new();
        for point in points {
            while let [.., a, b] = hull.as_slice() {
                // `b` lies above the line from `a` to the new point, so it is not on the hull.
                let rise = (b.joules - a.joules) * (point.bits - a.bits);
                if rise < (point.joules - a.joules) * (b.bits - a.bits) {
                    break;
                }
                hull.pop();
            }
            if hull.last().is_none_or(|last| point.bits > last.bits) {
                hull.push(point);
            }
        }
        let grains =
            |point: &CostPoint| grain_count(before.get(point.mask).copied().unwrap_or(0.0), point.bits, grain);
        let parts = hull.windows(2).map(|pair| {
            let price = (pair[1].joules - pair[0].joules) / (pair[1].bits - pair[0].bits) * grain;
            (grains(&pair[1]).saturating_sub(grains(&pair[0])), price)
        });
        Self { idle_joules: hull.first().map_or(0.0, |first| first.joules), segments: parts.collect() }
    }

    fn apply(&self, from: &[f64], range: GrainRange) -> Vec<f64> {
        let mut state: Vec<f64> = from.iter().map(|joules| joules + self.idle_joules).collect();
        for (max_grains, price) in &self.segments {
            state = super::energy::sliding_min_up_to(&state, *max_grains, *price, range);
        }
        state
    }
}

#[cfg(test)]
mod tests {
    use marline_core::energy::{BUILT_IN, Direction, Meter, Model, ModelSpec};
    use marline_core::link::{LinkId, LinkKind};
    use marline_core::units::Instant;

    use super::*;
    use crate::rng::{Purpose, RandomStream};

    fn phone_model() -> Model {
        let (_, text) = BUILT_IN.into_iter().find(|(name, _)| *name == "emptcp-s3").unwrap();
        toml::from_str::<ModelSpec>(text).unwrap().into_model("emptcp-s3").unwrap().0
    }

    const KINDS: [LinkKind; 2] = [LinkKind::Wifi, LinkKind::Lte];

    fn min_energy(model: &Model, transfer: &Transfer, by: f64, grid: Grid) -> Option<(f64, f64)> {
        let radios = KINDS.map(|kind| *model.radio(kind).unwrap());
        let optimum = transfer.min_energy(&radios, model.concurrent(), Duration::from_secs_f64(by), grid)?;
        Some((optimum.energy.as_joules_f64(), optimum.lower_bound.as_joules_f64()))
    }

    fn constant(kbps: [u64; 2], megabits: u64) -> Transfer {
        let link = |kbps: u64| CapacityCurve::constant(Bitrate::from_bits_per_sec(kbps * 1000));
        Transfer { links: kbps.map(link).into(), size: DataSize::from_bytes(megabits * 125_000) }
    }

    const GRID: Grid = Grid { bin: Duration::from_millis(500), grain: DataSize::from_bytes(12_500) };

    #[test]
    fn fast_wifi_alone_needs_the_least_energy() {
        // 100 Mbit at 10 Mbit/s with 469.1 mW and 112.6 nJ/bit: 4.691 + 11.26 J.
        let (energy, bound) = min_energy(&phone_model(), &constant([10_000, 1000], 100), 12.0, GRID).unwrap();
        assert!((energy - 15.951).abs() < 0.01 && (energy - bound).abs() < 0.01, "{energy} {bound}");
        assert!(min_energy(&phone_model(), &constant([10_000, 1000], 100), 9.0, GRID).is_none());
    }

    #[test]
    fn both_links_are_best_if_wifi_is_slow_and_the_transfer_long() {
        // 400 Mbit; Wi-Fi alone would take 400 s. Both links: 1458.7 mW for 400/6 s, then the tail, less 20 mJ of
        // promotion.
        let model = phone_model();
        let (energy, bound) = min_energy(&model, &constant([1000, 5000], 400), 70.0, GRID).unwrap();
        let time = 400.0 / 6.0;
        let by_hand = 1.4587 * time + 0.1126 * time + 0.05197 * 5.0 * time + 12.271 - 0.020;
        assert!((energy / by_hand - 1.0).abs() < 0.005, "{energy} instead of {by_hand}");
        assert!(bound <= energy && bound > 0.97 * energy, "{bound}");
    }

    /// The energy meter's result for a schedule: the set of active links in each bin of one second.
    fn metered_joules(model: &Model, masks: &[usize], rates: &[[u64; 2]]) -> f64 {
        let mut meter = Meter::new(model.clone(), Instant::ZERO);
        for (id, kind) in (0..).map(LinkId).zip(KINDS) {
            meter.add_link(Instant::ZERO, id, kind);
        }
        for (at, mask) in (0_u64..).zip(masks) {
            for link in (0..2).filter(|link| mask >> link & 1 == 1) {
                let (from, to) = (Instant::from_millis(at * 1000), Instant::from_millis(at * 1000 + 1000));
                let size = Bitrate::from_bits_per_sec(rates[at as usize][link] * 1000) * Duration::from_secs(1);
                let id = LinkId(u16::try_from(link).unwrap());
                meter.on_flow(from, to, id, Direction::Down, size);
            }
        }
        meter.energy_until_idle(Instant::from_millis(100_000)).total().as_joules_f64()
    }

    #[test]
    fn the_meter_finds_no_better_schedule_of_whole_bins() {
        let mut random = RandomStream::new(9, "transfers", 0, Purpose::Other);
        let model = phone_model();
        let grid = Grid { bin: Duration::from_secs(1), grain: DataSize::from_bytes(12_500) };
        let mut near = 0;
        for round in 0..30 {
            let rates: Vec<[u64; 2]> =
                (0..6).map(|_| [100 * (1 + random.below(40)), 1000 * (1 + random.below(9))]).collect();
            let maximum: u64 = rates.iter().map(|bin| bin[0] + bin[1]).sum();
            let wanted = maximum * (30 + random.below(65)) / 100;
            let link = |at: usize| {
                let rates = rates.iter().map(move |bin| Bitrate::from_bits_per_sec(bin[at] * 1000));
                CapacityCurve::from_steps(Duration::from_secs(1), rates)
            };
            let transfer = Transfer { links: vec![link(0), link(1)], size: DataSize::from_bytes(wanted * 125) };
            let (energy, bound) = min_energy(&model, &transfer, 6.0, grid).unwrap();
            assert!(bound <= energy, "round {round}");
            let mut best = f64::INFINITY;
            for code in 0..4_usize.pow(6) {
                let masks: Vec<usize> = (0..6).map(|bin| code >> (2 * bin) & 3).collect();
                let carried: u64 = masks
                    .iter()
                    .zip(&rates)
                    .map(|(mask, bin)| (mask & 1) as u64 * bin[0] + (mask >> 1) as u64 * bin[1])
                    .sum();
                if carried >= wanted {
                    best = best.min(metered_joules(&model, &masks, &rates));
                }
            }
            // The program's schedules include all of whole bins, except for the tail within a bin and the first
            // promotion.
            assert!(energy <= best + 0.1, "round {round}: {energy}, brute force {best}");
            assert!(bound <= best + 1e-6, "round {round}: bound {bound}, brute force {best}");
            near += u32::from(energy > 0.93 * best);
        }
        assert!(near >= 20, "{near} of 30");
    }
}
