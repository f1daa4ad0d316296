//! E*(P): the minimum energy with which a video can be played within the playback time P.
//!
//! [`PlaybackCase::min_energy`] takes one radio per link, P and a grid. It returns the energy of the best schedule
//! on the grid, and a lower bound that holds for every schedule, on the grid or not ([`OptimalEnergy`]). Both come
//! from the same dynamic program, solved with opposite rounding.
//!
//! 1. Time is divided into bins and data into grains. The state after a bin is the number of grains delivered and
//!    the number of bins left in the radio's tail. A step adds the grains that each link delivers in the next bin,
//!    at most what its capacity allows.
//! 2. After each bin at least the grains that the video needs by then must have arrived. In the bin in which
//!    playback starts, the start threshold is required by the end of the bin.
//! 3. The cost of a link's grains in one bin is linear: α per bit, and β for the time they take at the rate of the
//!    bin. So the cheapest transition to each state is a sliding-window minimum, and a bin costs O(states × links)
//!    whatever the capacity of the links.
//! 4. In a schedule, the bytes of the link with the tail lie at the end of each bin. Before them the rest of the
//!    bin is tail if one was running, and a full tail follows them. Capacities are rounded on their running sums,
//!    so the error is below one grain per link at any moment.
//! 5. The bound rounds in the opposite direction: capacities up in each bin, requirements down by a grain per link,
//!    the tail shorter by one bin, and no idle time before the radio's bytes in its first bin. It also subtracts
//!    what could be saved by moving less than a grain between bins of different price: one grain times the sum of
//!    all price increases. The bound holds only for capacities whose rates change at bin boundaries.
//!
//! The number of bursts is not restricted: a schedule may keep a tail alive, or let it expire and start another
//! one.

use std::collections::VecDeque;

use marline_core::stream::GreenBagRadio;
use marline_core::units::{DataSize, Duration, Energy};

use super::{PlaybackCase, bits};

/// Resolution of the dynamic program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grid {
    /// Length of a time bin.
    pub bin: Duration,
    /// Amount of data in a grain.
    pub grain: DataSize,
}

impl Default for Grid {
    /// Half a second and 12,500 bytes: accurate to about one percent for minutes of video over a few Mbit/s.
    fn default() -> Self {
        Self { bin: Duration::from_millis(500), grain: DataSize::from_bytes(12_500) }
    }
}

/// The minimum energy, as exactly as the grid allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OptimalEnergy {
    /// Energy of the best schedule on the grid.
    pub energy: Energy,
    /// No schedule needs less energy than this.
    pub lower_bound: Energy,
}

impl PlaybackCase {
    /// E*(P), or `None` if the video cannot be played within `playback`.
    ///
    /// # Panics
    /// If the number of radios differs from the number of links, more than one radio has a tail, or the grid has a
    /// zero size.
    pub fn min_energy(&self, radios: &[GreenBagRadio], playback: Duration, grid: Grid) -> Option<OptimalEnergy> {
        assert_eq!(radios.len(), self.links.len(), "one radio per link");
        assert!(radios.iter().filter(|radio| has_tail(radio)).count() <= 1, "at most one link may have a tail");
        assert!(!grid.bin.is_zero() && !grid.grain.is_zero(), "bin and grain must not be zero");
        if self.min_playback_time()? > playback + Duration::from_nanos(1000) {
            return None;
        }
        let solve = |rounding| Program::new(self, radios, playback, grid, rounding).solve();
        let energy = Energy::from_nanojoules((solve(Rounding::Feasible)? * 1e9) as u64);
        let bound = Energy::from_nanojoules((solve(Rounding::LowerBound)?.max(0.0) * 1e9) as u64);
        Some(OptimalEnergy { energy, lower_bound: bound.min(energy) })
    }
}

/// Direction of rounding: towards a schedule that can be realized, or towards a bound below every schedule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Rounding {
    Feasible,
    LowerBound,
}

/// The dynamic program, with capacities and requirements in grains and prices in joules.
struct Program {
    rounding: Rounding,
    /// One entry per time bin, in order of time.
    bins: Vec<Bin>,
    total_grains: usize,
    tail: TailCosts,
    /// Joules that rounding may have saved; subtracted from the bound.
    bound_slack: f64,
}

#[derive(Clone, Debug)]
struct Bin {
    /// Links whose radio has no tail.
    tailless: Vec<BinLink>,
    /// The only link whose radio has a tail.
    with_tail: Option<BinLink>,
    /// Grains that must, and grains that can at most, have arrived by the end of the bin.
    needed_grains: usize,
    possible_grains: usize,
}

impl Bin {
    fn push(&mut self, link_bin: BinLink, radio: &GreenBagRadio) {
        if has_tail(radio) {
            self.with_tail = Some(link_bin);
        } else {
            self.tailless.push(link_bin);
        }
    }
}

/// What a link can carry in one bin, and at what price.
#[derive(Clone, Copy, Default, Debug)]
struct BinLink {
    /// Upper limit of grains in this bin.
    max_grains: usize,
    /// Joules per grain if the rest of the bin is idle.
    grain_joules: f64,
    /// Joules per grain if the rest of the bin is tail anyway.
    grain_joules_in_tail: f64,
    /// Joules of a tail that lasts the whole bin.
    tail_joules: f64,
}

/// Cost of the tail, in bins.
#[derive(Clone, Debug, Default)]
struct TailCosts {
    /// Indexed by the number of bins left: joules of the next of them. Entry 0 is zero.
    bin_costs: Vec<f64>,
}

impl TailCosts {
    /// Divides a tail, less `shortened_by` seconds, into bins counted from its end.
    fn new(radio: Option<&GreenBagRadio>, shortened_by: f64, bin: f64) -> Self {
        let Some(radio) = radio else { return Self { bin_costs: vec![0.0] } };
        let length = (radio.tail_time.as_secs_f64() - shortened_by).max(0.0);
        Self { bin_costs: tail_costs(radio.tail_power.as_watts_f64(), length, bin) }
    }

    /// Number of bins in a full tail.
    fn full(&self) -> usize {
        self.bin_costs.len() - 1
    }

    /// Joules from a state with `remaining_bins` until the end of the tail.
    fn remaining_cost(&self, remaining_bins: usize) -> f64 {
        self.bin_costs.iter().take(remaining_bins + 1).sum()
    }
}

impl Program {
    fn new(
        case: &PlaybackCase,
        radios: &[GreenBagRadio],
        playback: Duration,
        grid: Grid,
        rounding: Rounding,
    ) -> Self {
        let (bin, grain) = (grid.bin.as_secs_f64(), bits(grid.grain));
        let end_time = playback.as_secs_f64();
        let start_time = end_time - case.video.duration().as_secs_f64();
        // The small term prevents a rounding error from adding an empty bin.
        let count = ((end_time / bin) - 1e-9).ceil().max(1.0) as usize;
        // Whole grains per link can fall short of the floor of their sum, by one less than the number of links.
        let grains_lost = if rounding == Rounding::LowerBound { case.links.len().saturating_sub(1) } else { 0 };
        let grains = |bits: f64| match rounding {
            Rounding::Feasible => (bits / grain - 1e-6).ceil() as usize,
            Rounding::LowerBound => ((bits / grain + 1e-6).floor() as usize).saturating_sub(grains_lost),
        };
        let total_bits = bits(case.video.size());
        let mut bins = Vec::with_capacity(count);
        for at in 0..count {
            let (from, to) = (at as f64 * bin, ((at + 1) as f64 * bin).min(end_time));
            let need = match to {
                _ if at + 1 == count => total_bits,
                to if to < start_time => 0.0,
                to => case.start_bits().max(case.bits_decoded_after(to - start_time)),
            };
            let arrived = match rounding {
                Rounding::Feasible => {
                    case.links.iter().map(|link| (link.carried_bits(to) / grain - 1e-6).ceil()).sum()
                }
                Rounding::LowerBound => (case.carried(to) / grain + 1e-6).floor(),
            };
            let mut bin_data = Bin {
                tailless: Vec::new(),
                with_tail: None,
                needed_grains: grains(need),
                possible_grains: arrived as usize,
            };
            for (link, radio) in case.links.iter().zip(radios) {
                let (carried_before, carried_after) = (link.carried_bits(from), link.carried_bits(to));
                // Differences of rounded running sums lose no grain permanently. The bound rounds each bin up by
                // itself.
                let max_grains = match rounding {
                    Rounding::Feasible => {
                        (carried_after / grain - 1e-6).ceil() - (carried_before / grain - 1e-6).ceil()
                    }
                    Rounding::LowerBound => ((carried_after - carried_before) / grain - 1e-6).ceil(),
                };
                let rate = (carried_after - carried_before) / (to - from);
                if rate <= 0.0 {
                    // A link without capacity is kept, because `sum_of_rises` finds the links by their position.
                    bin_data.push(BinLink::default(), radio);
                    continue;
                }
                let per_grain = grain * (joules_per_bit(radio) + radio.active_power.as_watts_f64() / rate);
                // In the tail, a grain's active time replaces tail time that would be paid anyway.
                let per_grain_in_tail = per_grain - grain * radio.tail_power.as_watts_f64() / rate;
                let tail_joules = radio.tail_power.as_watts_f64() * (to - from);
                bin_data.push(
                    BinLink {
                        max_grains: max_grains.max(0.0) as usize,
                        grain_joules: per_grain,
                        grain_joules_in_tail: per_grain_in_tail,
                        tail_joules,
                    },
                    radio,
                );
            }
            bins.push(bin_data);
        }
        let tailed = radios.iter().find(|radio| has_tail(radio));
        let (shortened_by, slack) = match rounding {
            Rounding::Feasible => (0.0, 0.0),
            Rounding::LowerBound => (bin, sum_of_rises(&bins)),
        };
        Self {
            rounding,
            bins,
            total_grains: grains(total_bits),
            tail: TailCosts::new(tailed, shortened_by, bin),
            bound_slack: slack,
        }
    }

    /// Joules of the cheapest schedule, or `None` if no schedule meets the requirements.
    fn solve(&self) -> Option<f64> {
        let unreachable = || vec![f64::INFINITY; self.total_grains + 1];
        let mut states: Vec<Vec<f64>> = (0..=self.tail.full()).map(|_| unreachable()).collect();
        let mut next = states.clone();
        states[0][0] = 0.0;
        // Finite states lie between the previous requirement and what can have arrived.
        let mut range = GrainRange { low: 0, high: 0 };
        for bin in &self.bins {
            range.high = bin.possible_grains.min(self.total_grains);
            self.step_tail(&states, bin, range, &mut next);
            // The tailless links come second and one after the other: each adds its grains to every state. States
            // that miss the requirement at the end of the bin are then removed.
            for state in &mut next {
                for link in &bin.tailless {
                    *state = sliding_min(state, link, link.grain_joules, 0, range);
                }
                state[..bin.needed_grains.min(self.total_grains + 1)].fill(f64::INFINITY);
            }
            range.low = bin.needed_grains.min(self.total_grains);
            std::mem::swap(&mut states, &mut next);
        }
        let ends = states
            .iter()
            .enumerate()
            .map(|(remaining, state)| state[self.total_grains] + self.tail.remaining_cost(remaining));
        let best = ends.fold(f64::INFINITY, f64::min);
        best.is_finite().then_some(best - self.bound_slack)
    }

    /// The transition of the link with the tail in this bin: idle, or some grains.
    ///
    /// An idle bin consumes one bin of the tail. A used bin restarts the full tail; its price depends on whether
    /// the rest of the bin is tail or idle.
    fn step_tail(&self, states: &[Vec<f64>], bin: &Bin, range: GrainRange, next: &mut [Vec<f64>]) {
        let full_tail = self.tail.full();
        next.iter_mut().for_each(|state| state.fill(f64::INFINITY));
        for (remaining, state) in states.iter().enumerate() {
            relax(&mut next[remaining.saturating_sub(1)], state, self.tail.bin_costs[remaining], range);
        }
        let Some(link) = bin.with_tail.filter(|link_bin| link_bin.max_grains > 0) else { return };
        // The bound's tail is one bin shorter, so in its last bin it is unknown how much of the real tail is left.
        let certain_bins = if self.rounding == Rounding::LowerBound { 2 } else { 1 };
        let unreachable = vec![f64::INFINITY; self.total_grains + 1];
        let (mut from_idle, mut from_tail) = (unreachable.clone(), unreachable);
        // Every used bin leads to a full tail. States within the tail pay for it during the whole bin, and their
        // grains are cheaper by the tail power of their active time.
        for (remaining, state) in states.iter().enumerate() {
            if remaining < certain_bins {
                relax(&mut from_idle, state, 0.0, range);
            } else {
                relax(&mut from_tail, state, link.tail_joules, range);
            }
        }
        let start_price =
            if self.rounding == Rounding::LowerBound { link.grain_joules_in_tail } else { link.grain_joules };
        for (costs, price) in [(from_idle, start_price), (from_tail, link.grain_joules_in_tail)] {
            relax(&mut next[full_tail], &sliding_min(&costs, &link, price, 1, range), 0.0, range);
        }
    }
}

/// Indices of the states that may be finite, inclusive.
#[derive(Clone, Copy, Debug)]
pub(super) struct GrainRange {
    pub(super) low: usize,
    pub(super) high: usize,
}

/// Takes over the states of `from` that are cheaper, at the additional `cost`.
pub(super) fn relax(to: &mut [f64], from: &[f64], cost: f64, range: GrainRange) {
    for (to, from) in to[range.low..=range.high].iter_mut().zip(&from[range.low..=range.high]) {
        *to = to.min(from + cost);
    }
}

/// Upper limit of what moving less than a grain of each link between bins saves: the sum of all increases of its
/// price.
fn sum_of_rises(bins: &[Bin]) -> f64 {
    let links = bins.first().map_or(0, |bin| bin.tailless.len());
    let plain = (0..links).map(|link| {
        let prices = bins
            .iter()
            .map(|bin| bin.tailless[link])
            .filter(|link_bin| link_bin.max_grains > 0)
            .map(|link| link.grain_joules);
        price_rise(prices)
    });
    let tailed = bins
        .iter()
        .filter_map(|bin| bin.with_tail)
        .filter(|link| link.max_grains > 0)
        .map(|link| link.grain_joules_in_tail);
    plain.sum::<f64>() + price_rise(tailed)
}

fn price_rise(prices: impl Iterator<Item = f64>) -> f64 {
    let mut last: Option<f64> = None;
    let rise = |price: f64| price - last.replace(price).unwrap_or(price);
    prices.map(rise).filter(|step| *step > 0.0).sum()
}

/// As [`sliding_min`], with zero to `max_grains` grains.
pub(super) fn sliding_min_up_to(from: &[f64], max_grains: usize, price: f64, range: GrainRange) -> Vec<f64> {
    sliding_min(from, &BinLink { max_grains, ..BinLink::default() }, price, 0, range)
}

/// For every `a` in the range, the minimum over `x` in `min_grains..=link.max_grains` of `from[a − x] + price × x`.
///
/// Uses the monotonic queue of the sliding-window minimum, so the cost does not depend on the width of the window.
fn sliding_min(from: &[f64], link: &BinLink, price: f64, min_grains: usize, range: GrainRange) -> Vec<f64> {
    let mut to = vec![f64::INFINITY; from.len()];
    let mut window: VecDeque<(usize, f64)> = VecDeque::with_capacity(link.max_grains + 1);
    for (at, cost) in to.iter_mut().enumerate().take(range.high + 1).skip(range.low) {
        if let Some(source_index) = at.checked_sub(min_grains) {
            // Keys omit `price × at`, which all candidates for one state share.
            let key = from[source_index] - price * source_index as f64;
            if key.is_finite() {
                while window.back().is_some_and(|(_, back_key)| *back_key >= key) {
                    window.pop_back();
                }
                window.push_back((source_index, key));
            }
        }
        while window.front().is_some_and(|(front_index, _)| front_index + link.max_grains < at) {
            window.pop_front();
        }
        if let Some((_, key)) = window.front() {
            *cost = key + price * at as f64;
        }
    }
    to
}

fn has_tail(radio: &GreenBagRadio) -> bool {
    !radio.tail_power.is_zero() && !radio.tail_time.is_zero()
}

/// Joules of each bin of a tail of `length` seconds, indexed by the number of bins left. The last bin may be
/// shorter.
pub(super) fn tail_costs(watts: f64, length: f64, bin: f64) -> Vec<f64> {
    let bin_count = (length / bin - 1e-9).ceil().max(0.0) as usize;
    let last_bin_length = length - bin * (bin_count as f64 - 1.0);
    let bin_cost = |remaining: usize| match remaining {
        0 => 0.0,
        1 => last_bin_length * watts,
        _ => bin * watts,
    };
    (0..=bin_count).map(bin_cost).collect()
}

pub(super) fn joules_per_bit(radio: &GreenBagRadio) -> f64 {
    radio.per_bit.picojoules() as f64 * 1e-12
}
