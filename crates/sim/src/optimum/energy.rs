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

use super::{Case, bits};

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
pub struct Least {
    /// Of the best schedule on the grid.
    pub energy: Energy,
    /// No schedule needs less than this.
    pub bound: Energy,
}

impl Case {
    /// E*(P); none: it cannot be played by then.
    ///
    /// # Panics
    /// When there are not as many radios as links, more than one of them has a tail, or the grid has no size.
    pub fn least_energy(&self, radios: &[GreenBagRadio], playback: Duration, grid: Grid) -> Option<Least> {
        assert_eq!(radios.len(), self.links.len(), "a radio for each link");
        assert!(radios.iter().filter(|radio| has_tail(radio)).count() <= 1, "one link with a tail at most");
        assert!(!grid.bin.is_zero() && !grid.grain.is_zero(), "a grid of some size");
        if self.least_playback()? > playback + Duration::from_nanos(1000) {
            return None;
        }
        let joules = |view| Program::new(self, radios, playback, grid, view).solve();
        let energy = Energy::from_nanojoules((joules(View::Schedule)? * 1e9) as u64);
        let bound = Energy::from_nanojoules((joules(View::Bound)?.max(0.0) * 1e9) as u64);
        Some(Least { energy, bound: bound.min(energy) })
    }
}

/// Which way things are rounded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum View {
    Schedule,
    Bound,
}

/// The dynamic program: rates, needs and prices in grains and joules.
struct Program {
    view: View,
    /// Of each bin: its lanes, and the grains needed by its end.
    bins: Vec<Bin>,
    total: usize,
    tail: Tail,
    /// What rounding may have saved, in joules.
    doubt: f64,
}

#[derive(Clone, Debug)]
struct Bin {
    /// Links without a tail.
    plain: Vec<Lane>,
    /// The link with one.
    tailed: Option<Lane>,
    /// Grains that must have come by its end, and that can have.
    need: usize,
    most: usize,
}

impl Bin {
    fn push(&mut self, lane: Lane, radio: &GreenBagRadio) {
        if has_tail(radio) {
            self.tailed = Some(lane);
        } else {
            self.plain.push(lane);
        }
    }
}

/// A link in one bin.
#[derive(Clone, Copy, Default, Debug)]
struct Lane {
    /// The most grains.
    most: usize,
    /// Joules a grain.
    price: f64,
    /// Joules a grain if the rest of the bin is tail anyway.
    kept: f64,
    /// Joules of tail for the whole bin.
    idle: f64,
}

/// The tail in bins.
#[derive(Clone, Debug, Default)]
struct Tail {
    /// Joules of the bin in which so many are left; nothing for none.
    cost: Vec<f64>,
}

impl Tail {
    /// `left` of tail, cut into bins from its end.
    fn new(radio: Option<&GreenBagRadio>, shorter: f64, bin: f64) -> Self {
        let Some(radio) = radio else { return Self { cost: vec![0.0] } };
        let length = (radio.tail_time.as_secs_f64() - shorter).max(0.0);
        Self { cost: tail_costs(radio.tail_power.as_watts_f64(), length, bin) }
    }

    /// Bins of a whole tail.
    fn whole(&self) -> usize {
        self.cost.len() - 1
    }

    /// Joules from the state of so many bins to its end.
    fn rest(&self, left: usize) -> f64 {
        self.cost.iter().take(left + 1).sum()
    }
}

impl Program {
    fn new(case: &Case, radios: &[GreenBagRadio], playback: Duration, grid: Grid, view: View) -> Self {
        let (bin, grain) = (grid.bin.as_secs_f64(), bits(grid.grain));
        let end = playback.as_secs_f64();
        let start = end - case.video.duration().as_secs_f64();
        let count = ((end / bin) - 1e-9).ceil().max(1.0) as usize;
        let loss = if view == View::Bound { case.links.len().saturating_sub(1) } else { 0 };
        let grains = |bits: f64| match view {
            View::Schedule => (bits / grain - 1e-6).ceil() as usize,
            View::Bound => ((bits / grain + 1e-6).floor() as usize).saturating_sub(loss),
        };
        let all = bits(case.video.size());
        let mut bins = Vec::with_capacity(count);
        for at in 0..count {
            let (from, to) = (at as f64 * bin, ((at + 1) as f64 * bin).min(end));
            let need = match to {
                _ if at + 1 == count => all,
                to if to < start => 0.0,
                to => case.start_bits().max(case.decoded(to - start)),
            };
            let most = match view {
                View::Schedule => case.links.iter().map(|link| (link.carried(to) / grain - 1e-6).ceil()).sum(),
                View::Bound => (case.carried(to) / grain + 1e-6).floor(),
            };
            let mut made = Bin { plain: Vec::new(), tailed: None, need: grains(need), most: most as usize };
            for (link, radio) in case.links.iter().zip(radios) {
                let (before, after) = (link.carried(from), link.carried(to));
                let most = match view {
                    View::Schedule => (after / grain - 1e-6).ceil() - (before / grain - 1e-6).ceil(),
                    View::Bound => ((after - before) / grain - 1e-6).ceil(),
                };
                let rate = (after - before) / (to - from);
                if rate <= 0.0 {
                    made.push(Lane::default(), radio);
                    continue;
                }
                let price = grain * (per_bit_joules(radio) + radio.active_power.as_watts_f64() / rate);
                let kept = price - grain * radio.tail_power.as_watts_f64() / rate;
                let idle = radio.tail_power.as_watts_f64() * (to - from);
                made.push(Lane { most: most.max(0.0) as usize, price, kept, idle }, radio);
            }
            bins.push(made);
        }
        let tailed = radios.iter().find(|radio| has_tail(radio));
        let (shorter, doubt) = match view {
            View::Schedule => (0.0, 0.0),
            View::Bound => (bin, rises(&bins)),
        };
        Self { view, bins, total: grains(all), tail: Tail::new(tailed, shorter, bin), doubt }
    }

    /// Joules of the cheapest way through all bins; none: there is no way.
    fn solve(&self) -> Option<f64> {
        let nowhere = || vec![f64::INFINITY; self.total + 1];
        let mut states: Vec<Vec<f64>> = (0..=self.tail.whole()).map(|_| nowhere()).collect();
        let mut next = states.clone();
        states[0][0] = 0.0;
        // Every state lies between the last need and what can have come.
        let mut range = Range { low: 0, top: 0 };
        for bin in &self.bins {
            range.top = bin.most.min(self.total);
            self.step_tail(&states, bin, range, &mut next);
            for state in &mut next {
                for lane in &bin.plain {
                    *state = slide(state, lane, lane.price, 0, range);
                }
                state[..bin.need.min(self.total + 1)].fill(f64::INFINITY);
            }
            range.low = bin.need.min(self.total);
            std::mem::swap(&mut states, &mut next);
        }
        let ends = states.iter().enumerate().map(|(left, state)| state[self.total] + self.tail.rest(left));
        let best = ends.fold(f64::INFINITY, f64::min);
        best.is_finite().then_some(best - self.doubt)
    }

    /// What the link with the tail does in this bin: nothing, or some grains.
    fn step_tail(&self, states: &[Vec<f64>], bin: &Bin, range: Range, next: &mut [Vec<f64>]) {
        let whole = self.tail.whole();
        next.iter_mut().for_each(|state| state.fill(f64::INFINITY));
        for (left, state) in states.iter().enumerate() {
            lower(&mut next[left.saturating_sub(1)], state, self.tail.cost[left], range);
        }
        let Some(lane) = bin.tailed.filter(|lane| lane.most > 0) else { return };
        // In the bound's last bin of tail nobody knows how much of it is left.
        let sure = if self.view == View::Bound { 2 } else { 1 };
        let nowhere = vec![f64::INFINITY; self.total + 1];
        let (mut cold, mut warm) = (nowhere.clone(), nowhere);
        for (left, state) in states.iter().enumerate() {
            if left < sure {
                lower(&mut cold, state, 0.0, range);
            } else {
                lower(&mut warm, state, lane.idle, range);
            }
        }
        let begun = if self.view == View::Bound { lane.kept } else { lane.price };
        for (base, price) in [(cold, begun), (warm, lane.kept)] {
            lower(&mut next[whole], &slide(&base, &lane, price, 1, range), 0.0, range);
        }
    }
}

/// Where states may be finite.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    pub(super) low: usize,
    pub(super) top: usize,
}

/// Takes what is cheaper from `from`, at this extra cost.
pub(super) fn lower(to: &mut [f64], from: &[f64], cost: f64, range: Range) {
    for (to, from) in to[range.low..=range.top].iter_mut().zip(&from[range.low..=range.top]) {
        *to = to.min(from + cost);
    }
}

/// A grain of each link moved from bin to bin saves at most the sum of all rises of its price.
fn rises(bins: &[Bin]) -> f64 {
    let links = bins.first().map_or(0, |bin| bin.plain.len());
    let plain = (0..links).map(|link| {
        let prices = bins.iter().map(|bin| bin.plain[link]).filter(|lane| lane.most > 0).map(|lane| lane.price);
        rise(prices)
    });
    let tailed = bins.iter().filter_map(|bin| bin.tailed).filter(|lane| lane.most > 0).map(|lane| lane.kept);
    plain.sum::<f64>() + rise(tailed)
}

fn rise(prices: impl Iterator<Item = f64>) -> f64 {
    let mut last: Option<f64> = None;
    let step = |price: f64| price - last.replace(price).unwrap_or(price);
    prices.map(step).filter(|step| *step > 0.0).sum()
}

/// As [`slide`], from nothing to `most`.
pub(super) fn slide_by(from: &[f64], most: usize, price: f64, range: Range) -> Vec<f64> {
    slide(from, &Lane { most, ..Lane::default() }, price, 0, range)
}

/// `min over x in least..=most of from[a − x] + price × x`, for every a in the range.
fn slide(from: &[f64], lane: &Lane, price: f64, least: usize, range: Range) -> Vec<f64> {
    let mut to = vec![f64::INFINITY; from.len()];
    let mut window: VecDeque<(usize, f64)> = VecDeque::with_capacity(lane.most + 1);
    for (at, to) in to.iter_mut().enumerate().take(range.top + 1).skip(range.low) {
        if let Some(new) = at.checked_sub(least) {
            // Compared without the grains that all of them share.
            let key = from[new] - price * new as f64;
            if key.is_finite() {
                while window.back().is_some_and(|(_, old)| *old >= key) {
                    window.pop_back();
                }
                window.push_back((new, key));
            }
        }
        while window.front().is_some_and(|(old, _)| old + lane.most < at) {
            window.pop_front();
        }
        if let Some((_, key)) = window.front() {
            *to = key + price * at as f64;
        }
    }
    to
}

fn has_tail(radio: &GreenBagRadio) -> bool {
    !radio.tail_power.is_zero() && !radio.tail_time.is_zero()
}

/// Joules of each bin of a tail of `length` seconds, by how many bins are left; the last one may be shorter.
pub(super) fn tail_costs(watts: f64, length: f64, bin: f64) -> Vec<f64> {
    let count = (length / bin - 1e-9).ceil().max(0.0) as usize;
    let first = length - bin * (count as f64 - 1.0);
    let part = |left: usize| match left {
        0 => 0.0,
        1 => first * watts,
        _ => bin * watts,
    };
    (0..=count).map(part).collect()
}

pub(super) fn per_bit_joules(radio: &GreenBagRadio) -> f64 {
    radio.per_bit.picojoules() as f64 * 1e-12
}
