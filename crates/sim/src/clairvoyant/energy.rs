//! E*(P): the least energy with which a video can be played by P.
//!
//! In: a case, a radio for each link, P, a grid. Out: the energy of the best schedule on the grid, and a bound that no
//! schedule at all stays below ([`Least`]).
//!
//! 1. Time is cut into bins, bytes into grains. The state after a bin is how many grains have come and how many bins of
//!    tail are left; a step adds the grains that each link brings in the next bin, at most what it carries there.
//! 2. After each bin at least the grains that the video needs by then must have come (the start's threshold at the end
//!    of the bin in which the start lies).
//! 3. A link's grains of one bin cost α and β by the bin's rate, so the cheapest way to a state is a sliding minimum: a
//!    bin costs (states × links), whatever the links carry.
//! 4. The schedule's energy has the tail link's bytes at the end of each bin: what is left of a bin before them is tail
//!    if there was one, and the whole tail follows them. Supplies are rounded on their running sums, by less than one
//!    grain a link at any moment.
//! 5. The bound takes every rounding the other way: supplies up in each bin, needs down by a grain a link, the tail less
//!    one bin, the radio's first bin without waiting; and subtracts what moving less than a grain between bins of
//!    different price can save: a grain times the sum of all rises in price. It holds for supplies whose rates change
//!    at the ends of bins only.
//!
//! Bursts are not assumed to be few: a tail may be kept up, or let go and begun again.

use std::collections::VecDeque;

use marline_core::stream::GreenBagRadio;
use marline_core::units::{DataSize, Duration, Energy};

use super::{PlaybackCase, bits};

/// How finely time and bytes are cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grid {
    /// A bin.
    pub bin: Duration,
    /// A grain.
    pub grain: DataSize,
}

impl Default for Grid {
    /// Half a second and 12,500 bytes: within about one percent on minutes of video over a few Mbit/s.
    fn default() -> Self {
        Self { bin: Duration::from_millis(500), grain: DataSize::from_bytes(12_500) }
    }
}

/// The least energy, as far as a grid can tell it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OptimalEnergy {
    /// Of the best schedule on the grid.
    pub energy: Energy,
    /// No schedule needs less than this.
    pub lower_bound: Energy,
}

impl PlaybackCase {
    /// E*(P); none: it cannot be played by then.
    ///
    /// # Panics
    /// When there are not as many radios as links, more than one of them has a tail, or the grid has no size.
    pub fn min_energy(&self, radios: &[GreenBagRadio], playback: Duration, grid: Grid) -> Option<OptimalEnergy> {
        assert_eq!(radios.len(), self.links.len(), "a radio for each link");
        assert!(radios.iter().filter(|radio| has_tail(radio)).count() <= 1, "one link with a tail at most");
        assert!(!grid.bin.is_zero() && !grid.grain.is_zero(), "a grid of some size");
        if self.min_playback_time()? > playback + Duration::from_nanos(1000) {
            return None;
        }
        let solve = |rounding| Program::new(self, radios, playback, grid, rounding).solve();
        let energy = Energy::from_nanojoules((solve(Rounding::Feasible)? * 1e9) as u64);
        let bound = Energy::from_nanojoules((solve(Rounding::LowerBound)?.max(0.0) * 1e9) as u64);
        Some(OptimalEnergy { energy, lower_bound: bound.min(energy) })
    }
}

/// Which way things are rounded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Rounding {
    Feasible,
    LowerBound,
}

/// The dynamic program: rates, needs and prices in grains and joules.
struct Program {
    rounding: Rounding,
    /// Of each bin: its lanes, and the grains needed by its end.
    bins: Vec<Bin>,
    total_grains: usize,
    tail: TailCosts,
    /// What rounding may have saved, in joules.
    bound_slack: f64,
}

#[derive(Clone, Debug)]
struct Bin {
    /// Links without a tail.
    tailless: Vec<BinLink>,
    /// The link with one.
    with_tail: Option<BinLink>,
    /// Grains that must have come by its end, and that can have.
    needed_grains: usize,
    possible_grains: usize,
}

impl Bin {
    fn push(&mut self, lane: BinLink, radio: &GreenBagRadio) {
        if has_tail(radio) {
            self.with_tail = Some(lane);
        } else {
            self.tailless.push(lane);
        }
    }
}

/// A link in one bin.
#[derive(Clone, Copy, Default, Debug)]
struct BinLink {
    /// The most grains.
    max_grains: usize,
    /// Joules a grain.
    grain_joules: f64,
    /// Joules a grain if the rest of the bin is tail anyway.
    grain_joules_in_tail: f64,
    /// Joules of tail for the whole bin.
    tail_joules: f64,
}

/// The tail in bins.
#[derive(Clone, Debug, Default)]
struct TailCosts {
    /// Joules of the bin in which so many are left; nothing for none.
    bin_costs: Vec<f64>,
}

impl TailCosts {
    /// `left` of tail, cut into bins from its end.
    fn new(radio: Option<&GreenBagRadio>, shortened_by: f64, bin: f64) -> Self {
        let Some(radio) = radio else { return Self { bin_costs: vec![0.0] } };
        let length = (radio.tail_time.as_secs_f64() - shortened_by).max(0.0);
        Self { bin_costs: tail_costs(radio.tail_power.as_watts_f64(), length, bin) }
    }

    /// Bins of a whole tail.
    fn full(&self) -> usize {
        self.bin_costs.len() - 1
    }

    /// Joules from the state of so many bins to its end.
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
        let count = ((end_time / bin) - 1e-9).ceil().max(1.0) as usize;
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
                let max_grains = match rounding {
                    Rounding::Feasible => {
                        (carried_after / grain - 1e-6).ceil() - (carried_before / grain - 1e-6).ceil()
                    }
                    Rounding::LowerBound => ((carried_after - carried_before) / grain - 1e-6).ceil(),
                };
                let rate = (carried_after - carried_before) / (to - from);
                if rate <= 0.0 {
                    bin_data.push(BinLink::default(), radio);
                    continue;
                }
                let per_grain = grain * (joules_per_bit(radio) + radio.active_power.as_watts_f64() / rate);
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

    /// Joules of the cheapest way through all bins; none: there is no way.
    fn solve(&self) -> Option<f64> {
        let unreachable = || vec![f64::INFINITY; self.total_grains + 1];
        let mut states: Vec<Vec<f64>> = (0..=self.tail.full()).map(|_| unreachable()).collect();
        let mut next = states.clone();
        states[0][0] = 0.0;
        // Every state lies between the last need and what can have come.
        let mut range = GrainRange { low: 0, high: 0 };
        for bin in &self.bins {
            range.high = bin.possible_grains.min(self.total_grains);
            self.step_tail(&states, bin, range, &mut next);
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

    /// What the link with the tail does in this bin: nothing, or some grains.
    fn step_tail(&self, states: &[Vec<f64>], bin: &Bin, range: GrainRange, next: &mut [Vec<f64>]) {
        let full_tail = self.tail.full();
        next.iter_mut().for_each(|state| state.fill(f64::INFINITY));
        for (remaining, state) in states.iter().enumerate() {
            relax(&mut next[remaining.saturating_sub(1)], state, self.tail.bin_costs[remaining], range);
        }
        let Some(link) = bin.with_tail.filter(|lane| lane.max_grains > 0) else { return };
        // In the bound's last bin of tail nobody knows how much of it is left.
        let certain_bins = if self.rounding == Rounding::LowerBound { 2 } else { 1 };
        let unreachable = vec![f64::INFINITY; self.total_grains + 1];
        let (mut from_idle, mut from_tail) = (unreachable.clone(), unreachable);
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

/// Where states may be finite.
#[derive(Clone, Copy, Debug)]
pub(super) struct GrainRange {
    pub(super) low: usize,
    pub(super) high: usize,
}

/// Takes what is cheaper from `from`, at this extra cost.
pub(super) fn relax(to: &mut [f64], from: &[f64], cost: f64, range: GrainRange) {
    for (to, from) in to[range.low..=range.high].iter_mut().zip(&from[range.low..=range.high]) {
        *to = to.min(from + cost);
    }
}

/// A grain of each link moved from bin to bin saves at most the sum of all rises of its price.
fn sum_of_rises(bins: &[Bin]) -> f64 {
    let links = bins.first().map_or(0, |bin| bin.tailless.len());
    let plain = (0..links).map(|link| {
        let prices = bins
            .iter()
            .map(|bin| bin.tailless[link])
            .filter(|lane| lane.max_grains > 0)
            .map(|lane| lane.grain_joules);
        price_rise(prices)
    });
    let tailed = bins
        .iter()
        .filter_map(|bin| bin.with_tail)
        .filter(|lane| lane.max_grains > 0)
        .map(|lane| lane.grain_joules_in_tail);
    plain.sum::<f64>() + price_rise(tailed)
}

fn price_rise(prices: impl Iterator<Item = f64>) -> f64 {
    let mut last: Option<f64> = None;
    let rise = |price: f64| price - last.replace(price).unwrap_or(price);
    prices.map(rise).filter(|step| *step > 0.0).sum()
}

/// As [`slide`], from nothing to `most`.
pub(super) fn sliding_min_up_to(from: &[f64], max_grains: usize, price: f64, range: GrainRange) -> Vec<f64> {
    sliding_min(from, &BinLink { max_grains, ..BinLink::default() }, price, 0, range)
}

/// `min over x in least..=most of from[a − x] + price × x`, for every a in the range.
fn sliding_min(from: &[f64], link: &BinLink, price: f64, min_grains: usize, range: GrainRange) -> Vec<f64> {
    let mut to = vec![f64::INFINITY; from.len()];
    let mut window: VecDeque<(usize, f64)> = VecDeque::with_capacity(link.max_grains + 1);
    for (at, cost) in to.iter_mut().enumerate().take(range.high + 1).skip(range.low) {
        if let Some(source_index) = at.checked_sub(min_grains) {
            // Compared without the grains that all of them share.
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

/// Joules of each bin of a tail of `length` seconds, by how many bins are left; the last one may be shorter.
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
