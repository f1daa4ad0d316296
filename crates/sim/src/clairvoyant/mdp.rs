//! The scheduler of Pluntke et al. (MobiArch 2011): which interface to use in each second, by a Markov decision process.
//!
//! In: how each link's rate changes from second to second, and what its radio draws. Out: for each pair of rates, and
//! whether the second radio is awake, which interface costs least in the long run ([`Schedule`]). It is played by
//! [`crate::mptcp_sim::Scheduled`].
//!
//! 1. The unit of time is a second (as there, and as eMPTCP §4.6 has it). A link's rates are cut into levels; how often
//!    one follows another in its course is the probability that it does.
//! 2. Using an interface for a second costs what it draws at its rate, a promotion if it slept, and a tail's power while it
//!    is awake and another one is used. It falls asleep with a probability that makes the mean of its tail.
//! 3. Costs to come count `DISCOUNT` less for each second; value iteration ends when nothing changes by a microjoule.
//! 4. Of the states those count that can be reached from the first one: pairs of rates that never meet, and a radio that
//!    is awake though nothing ever wakes it, say nothing of the schedule.
//!
//! What a second brings is no part of the cost there: an interface is cheap that draws little, however slow it is. That
//! is why this scheduler never wakes a radio whose power is above the other's (eMPTCP §4.6).

use marline_core::energy::RadioModel;
use marline_core::units::Bitrate;

/// How a link's rate changes.
#[derive(Clone, PartialEq, Debug)]
pub struct RateChain {
    /// The mean of each level.
    pub levels: Vec<Bitrate>,
    /// From each level to each.
    pub transitions: Vec<Vec<f64>>,
    /// Where it begins.
    pub initial: usize,
    /// The highest rate.
    max_rate: Bitrate,
}

/// Which of two interfaces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InterfaceChoice {
    /// The first.
    First,
    /// The second.
    Second,
}

/// What to use: by the first link's level, the second's, and whether the second's radio is awake.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MdpSchedule {
    choices: Vec<InterfaceChoice>,
    /// Levels of the second link.
    second_levels: usize,
    /// Whether each state can be reached.
    reachable: Vec<bool>,
}

fn quantize(rate: Bitrate, max_rate: Bitrate, count: usize) -> usize {
    let fraction = rate.bits_per_sec() as f64 / max_rate.bits_per_sec().max(1) as f64;
    ((fraction * count as f64) as usize).min(count.saturating_sub(1))
}

impl RateChain {
    /// Of a course of rates, one a second, in at most so many levels of equal width.
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
                // Never seen, or seen last: it stays.
                false => row[at] = 1.0,
            }
        }
        let mean = |(sum, n): &(f64, u32)| Bitrate::from_bits_per_sec((sum / f64::from((*n).max(1))) as u64);
        let initial = rates.first().map_or(0, level);
        Self { levels: level_sums.iter().map(mean).collect(), transitions, initial, max_rate }
    }

    /// The level of a rate.
    pub fn level(&self, rate: Bitrate) -> usize {
        quantize(rate, self.max_rate, self.levels.len())
    }

    /// The levels that can follow one.
    fn successors(&self, from_level: usize) -> impl Iterator<Item = usize> {
        let row = self.transitions.get(from_level).map(Vec::as_slice).unwrap_or_default();
        row.iter().enumerate().filter(|(_, share)| **share > 0.0).map(|(at, _)| at)
    }
}

impl MdpSchedule {
    /// The cheapest for these two.
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
        loop {
            // What is to come from each pair of levels, awake and asleep.
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

    /// What to use in a state.
    pub fn choice(&self, first: usize, second: usize, awake: bool) -> InterfaceChoice {
        self.choices.get(self.state_index(first, second, awake)).copied().unwrap_or(InterfaceChoice::First)
    }

    /// In how many of the states that can be reached the second is used, and of how many.
    pub fn second_link_states(&self) -> (usize, usize) {
        let reached = || self.choices.iter().zip(&self.reachable).filter(|(_, reached)| **reached);
        (reached().filter(|(choice, _)| **choice == InterfaceChoice::Second).count(), reached().count())
    }

    fn state_index(&self, first: usize, second: usize, awake: bool) -> usize {
        (first * self.second_levels + second) * 2 + usize::from(awake)
    }

    /// Finds the states that can be reached from the first one, in which the second radio sleeps.
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

/// Of a second's cost in the one before. chosen: a horizon of half a minute, longer than any tail.
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
        let course: Vec<Bitrate> =
            (0..400).map(|second| Bitrate::from_mbps(if second / 20 % 2 == 0 { 1 } else { 15 })).collect();
        RateChain::new(&course, 8)
    }

    #[test]
    fn a_chain_stays_where_its_course_stays() {
        let chain = on_off();
        assert_eq!(chain.levels[7], Bitrate::from_mbps(15));
        assert!((chain.transitions[0][0] - 0.95).abs() < 0.01 && (chain.transitions[0][7] - 0.05).abs() < 0.01);
    }

    #[test]
    fn a_radio_that_always_draws_more_is_never_woken() {
        let lte = RateChain::new(&vec![Bitrate::from_mbps(10); 100], 4);
        let (used, of) =
            MdpSchedule::new((&on_off(), &radio(500, 0)), (&lte, &with_tail(radio(1288, 0)))).second_link_states();
        // Two levels of the first, one of the second, which always sleeps.
        assert_eq!((used, of), (0, 2));
    }

    #[test]
    fn one_that_draws_less_at_high_rates_is_used_there() {
        // As 3G and Wi-Fi in Pluntke et al.: the first draws much when it is fast.
        let second = RateChain::new(&vec![Bitrate::from_mbps(10); 100], 4);
        let schedule = MdpSchedule::new((&on_off(), &radio(300, 200)), (&second, &radio(900, 0)));
        let (slow, fast) = (on_off().level(Bitrate::from_mbps(1)), on_off().level(Bitrate::from_mbps(15)));
        assert_eq!(
            [slow, fast].map(|at| schedule.choice(at, 3, false)),
            [InterfaceChoice::First, InterfaceChoice::Second]
        );
        let (used, of) = schedule.second_link_states();
        assert!(used > 0 && used < of && of <= 4, "{used} of {of}");
    }
}
