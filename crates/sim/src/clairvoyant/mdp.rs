//! The scheduler of Pluntke et al. (MobiArch 2011): selects the interface for each second by a Markov decision
//! process.
//!
//! From the rate changes of two links and the power of their radios it computes an [`MdpSchedule`]: the interface
//! with the lowest long-term cost for each pair of rates and each state (awake or asleep) of the second radio.
//! [`crate::mptcp_sim::MdpPolicy`] executes it.
//!
//! 1. The unit of time is one second (as in the paper and in eMPTCP §4.6). A link's rates are quantized to levels.
//!    The transition probabilities are the frequencies in the link's recorded rates.
//! 2. Using an interface for a second costs its power at its rate, plus a promotion if its radio was asleep. While
//!    the second radio is awake and unused, its tail power is added. It falls asleep with the probability that
//!    yields its mean tail time.
//! 3. Future costs are discounted by `DISCOUNT` per second. Value iteration ends when no value changes by a
//!    microjoule or more.
//! 4. Only states reachable from the initial state are counted. Pairs of rates that never coincide, and a radio
//!    that is awake although the schedule never wakes it, would distort the statistics of the schedule.
//!
//! The paper's cost ignores how much data a second delivers: an interface that draws little power is cheap, however
//! slow it is. Therefore this scheduler never wakes a radio whose power exceeds that of the other one (eMPTCP
//! §4.6).

use marline_core::energy::RadioModel;
use marline_core::units::Bitrate;

/// Markov chain of a link's rate, with steps of one second.
#[derive(Clone, PartialEq, Debug)]
pub struct RateChain {
    /// Mean rate of each level.
    pub levels: Vec<Bitrate>,
    /// Probability of each transition: `transitions[from][to]`.
    pub transitions: Vec<Vec<f64>>,
    /// Level of the first recorded rate.
    pub initial: usize,
    /// Highest recorded rate; it sets the width of the levels.
    max_rate: Bitrate,
}

/// The interface that carries all data in a second.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InterfaceChoice {
    /// The interface whose radio is treated as always on.
    First,
    /// The interface whose radio sleeps and has a tail.
    Second,
}

/// The choice for each state: level of the first link, level of the second link, second radio awake or asleep.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MdpSchedule {
    choices: Vec<InterfaceChoice>,
    /// Number of levels of the second link.
    second_levels: usize,
    /// For each state, whether it is reachable from the initial state.
    reachable: Vec<bool>,
}

fn quantize(rate: Bitrate, max_rate: Bitrate, count: usize) -> usize {
    let fraction = rate.bits_per_sec() as f64 / max_rate.bits_per_sec().max(1) as f64;
    ((fraction * count as f64) as usize).min(count.saturating_sub(1))
}

impl RateChain {
    /// Learns the chain from one rate per second, with `count` levels of equal width up to the highest rate. A level without rates has a
    /// mean of zero.
    pub fn new(rates: &[Bitrate], count: usize) -> Self {
        let rate = |rate: &Bitrate| rate.bits_per_sec() as f64;
        let max_rate = rates.iter().copied().max().unwrap_or_default();
        let level = |rate: &Bitrate| quantize(*rate, max_rate, count);
        let mut level_sums = vec![(0.0, 0_u32); count];
        let mut transitions = vec![vec![0.0; count]; count];
        for r in rates {
            let sum = &mut level_sums[level(r)];
            *sum = (sum.0 + rate(r), sum.1 + 1);
        }
        for pair in rates.windows(2) {
            transitions[level(&pair[0])][level(&pair[1])] += 1.0;
        }
        for (at, row) in transitions.iter_mut().enumerate() {
            let total: f64 = row.iter().sum();
            match total > 0.0 {
                true => row.iter_mut().for_each(|share| *share /= total),
                // Levels without a recorded successor are absorbing.
                false => row[at] = 1.0,
            }
        }
        let mean = |(sum, n): &(f64, u32)| Bitrate::from_bits_per_sec((sum / f64::from((*n).max(1))) as u64);
        let initial = rates.first().map_or(0, level);
        Self { levels: level_sums.iter().map(mean).collect(), transitions, initial, max_rate }
    }

    /// Level to which a rate belongs.
    pub fn level(&self, rate: Bitrate) -> usize {
        quantize(rate, self.max_rate, self.levels.len())
    }

    /// Levels that can follow `from_level`.
    fn successors(&self, from_level: usize) -> impl Iterator<Item = usize> {
        let row = self.transitions.get(from_level).map(Vec::as_slice).unwrap_or_default();
        row.iter().enumerate().filter(|(_, share)| **share > 0.0).map(|(at, _)| at)
    }
}

impl MdpSchedule {
    /// Computes the schedule with the lowest discounted cost, by value iteration.
    pub fn new(first: (&RateChain, &RadioModel), second: (&RateChain, &RadioModel)) -> Self {
        let (rows, columns) = (first.0.levels.len(), second.0.levels.len());
        let state_index = |a: usize, b: usize, awake: usize| (a * columns + b) * 2 + awake;
        let model = second.1;
        let tail = model.tail.time().as_secs_f64();
        let tail_watts = model.tail.energy().as_joules_f64() / tail.max(1e-9);
        let sleep_probability = (1.0 / tail.max(1.0)).min(1.0);
        let cost = |a: usize, b: usize, awake: usize, choice: InterfaceChoice| match choice {
            InterfaceChoice::First => {
                first.1.down.power_at(first.0.levels[a]).as_watts_f64() + if awake == 1 { tail_watts } else { 0.0 }
            }
            InterfaceChoice::Second => {
                let wake = if awake == 0 { model.promotion.energy().as_joules_f64() } else { 0.0 };
                model.down.power_at(second.0.levels[b]).as_watts_f64() + wake
            }
        };
        let mut values = vec![0.0_f64; rows * columns * 2];
        // Value iteration: once the values are stable, the choices derived from them are optimal.
        loop {
            // Expected future cost from each pair of levels, with the second radio awake or asleep.
            let mut expected = vec![0.0; values.len()];
            for a in 0..rows {
                for b in 0..columns {
                    for (c, p) in first.0.transitions[a].iter().enumerate().filter(|(_, p)| **p > 0.0) {
                        for (d, q) in second.0.transitions[b].iter().enumerate().filter(|(_, q)| **q > 0.0) {
                            for awake in 0..2 {
                                expected[state_index(a, b, awake)] += p * q * values[state_index(c, d, awake)];
                            }
                        }
                    }
                }
            }
            let total_cost = |a: usize, b: usize, awake: usize, choice: InterfaceChoice| {
                let (wake, sleep) = (expected[state_index(a, b, 1)], expected[state_index(a, b, 0)]);
                let expected_cost = match (choice, awake) {
                    (InterfaceChoice::Second, _) => wake,
                    (InterfaceChoice::First, 1) => wake * (1.0 - sleep_probability) + sleep * sleep_probability,
                    (InterfaceChoice::First, _) => sleep,
                };
                cost(a, b, awake, choice) + DISCOUNT * expected_cost
            };
            let (mut choices, mut new_values) =
                (Vec::with_capacity(values.len()), Vec::with_capacity(values.len()));
            for a in 0..rows {
                for b in 0..columns {
                    for awake in 0..2 {
                        let costs = [InterfaceChoice::First, InterfaceChoice::Second]
                            .map(|choice| total_cost(a, b, awake, choice));
                        choices.push(if costs[1] < costs[0] {
                            InterfaceChoice::Second
                        } else {
                            InterfaceChoice::First
                        });
                        new_values.push(costs[0].min(costs[1]));
                    }
                }
            }
            let change = values.iter().zip(&new_values).map(|(old, new)| (old - new).abs()).fold(0.0, f64::max);
            values = new_values;
            if change < 1e-6 {
                let reached = vec![false; choices.len()];
                let mut schedule = Self { choices, second_levels: columns, reachable: reached };
                schedule.mark_reachable(first.0, second.0);
                return schedule;
            }
        }
    }

    /// The interface to use in a state; the first one for unknown levels.
    pub fn choice(&self, first: usize, second: usize, awake: bool) -> InterfaceChoice {
        self.choices.get(self.state_index(first, second, awake)).copied().unwrap_or(InterfaceChoice::First)
    }

    /// Number of reachable states in which the second interface is used, and number of all reachable states.
    pub fn second_link_states(&self) -> (usize, usize) {
        let reached = || self.choices.iter().zip(&self.reachable).filter(|(_, reached)| **reached);
        (reached().filter(|(choice, _)| **choice == InterfaceChoice::Second).count(), reached().count())
    }

    fn state_index(&self, first: usize, second: usize, awake: bool) -> usize {
        (first * self.second_levels + second) * 2 + usize::from(awake)
    }

    /// Marks the states reachable from the initial one, in which the second radio is asleep.
    fn mark_reachable(&mut self, first: &RateChain, second: &RateChain) {
        let mut queue = vec![(first.initial, second.initial, false)];
        while let Some((a, b, awake)) = queue.pop() {
            let index = self.state_index(a, b, awake);
            if std::mem::replace(&mut self.reachable[index], true) {
                continue;
            }
            let awake_after: &[bool] = match (self.choice(a, b, awake), awake) {
                (InterfaceChoice::Second, _) => &[true],
                (InterfaceChoice::First, true) => &[true, false],
                (InterfaceChoice::First, false) => &[false],
            };
            for c in first.successors(a) {
                queue
                    .extend(second.successors(b).flat_map(|d| awake_after.iter().map(move |awake| (c, d, *awake))));
            }
        }
    }
}

/// Discount of costs per second. Our choice: it gives a horizon of half a minute, longer than any tail.
const DISCOUNT: f64 = 0.97;

#[cfg(test)]
mod tests {
    use marline_core::energy::{PowerCurve, PowerStage, Tail};
    use marline_core::units::{Duration, EnergyPerBit, Power};

    use super::*;

    fn radio(base: u64, per_bit: u64) -> RadioModel {
        let draw = PowerCurve {
            base: Power::from_milliwatts(base),
            per_bit: EnergyPerBit::from_picojoules(per_bit * 1000),
            ..RadioModel::new(PowerCurve::default()).down
        };
        RadioModel::new(draw)
    }

    fn with_tail(model: RadioModel) -> RadioModel {
        let stage = PowerStage { power: Power::from_milliwatts(1000), time: Duration::from_secs(10) };
        RadioModel { tail: Tail::new(&[stage]).unwrap(), ..model }
    }

    fn on_off() -> RateChain {
        let rates: Vec<Bitrate> =
            (0..400).map(|second| Bitrate::from_mbps(if second / 20 % 2 == 0 { 1 } else { 15 })).collect();
        RateChain::new(&rates, 8)
    }

    #[test]
    fn transition_probabilities_equal_the_recorded_frequencies() {
        let chain = on_off();
        assert_eq!(chain.levels[7], Bitrate::from_mbps(15));
        assert!((chain.transitions[0][0] - 0.95).abs() < 0.01 && (chain.transitions[0][7] - 0.05).abs() < 0.01);
    }

    #[test]
    fn a_radio_with_higher_power_is_never_woken() {
        let lte = RateChain::new(&vec![Bitrate::from_mbps(10); 100], 4);
        let (used, total) =
            MdpSchedule::new((&on_off(), &radio(500, 0)), (&lte, &with_tail(radio(1288, 0)))).second_link_states();
        // Two levels of the first link, one of the second, whose radio always sleeps.
        assert_eq!((used, total), (0, 2));
    }

    #[test]
    fn a_second_radio_is_used_where_it_needs_less_power() {
        // As 3G and Wi-Fi in Pluntke et al.: the first radio's power rises with its rate.
        let second = RateChain::new(&vec![Bitrate::from_mbps(10); 100], 4);
        let schedule = MdpSchedule::new((&on_off(), &radio(300, 200)), (&second, &radio(900, 0)));
        let (slow, fast) = (on_off().level(Bitrate::from_mbps(1)), on_off().level(Bitrate::from_mbps(15)));
        assert_eq!(
            [slow, fast].map(|at| schedule.choice(at, 3, false)),
            [InterfaceChoice::First, InterfaceChoice::Second]
        );
        let (used, total) = schedule.second_link_states();
        assert!(used > 0 && used < total && total <= 4, "{used} of {total}");
    }
}
