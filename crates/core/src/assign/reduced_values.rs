//! Values of an edge's choices as a solver sees them, with or without prices.
//!
//! For a repeated matching, it also knows the present relay of each edge and the switching cost.
//!
//! 1. The value of a candidate is its rate, plus a bonus if the edge is there now ([`SwitchingCost`]). The value of
//!    using no relay is the edge's direct rate.
//! 2. The reduced value of a candidate is its value less the price of its relay for each bit of its rate.
//! 3. Values are integers in bits per second, at most 2^55, and so are their sums; reduced values are floating
//!    point.

use super::instance::{Instance, NONE, to_f64};
use crate::units::{Bitrate, Ratio};

/// Bonus for an edge that keeps its relay. The edge moves, or is displaced by another one, only if that gains more
/// than the bonus.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SwitchingCost {
    /// κ: bonus as a share of the edge's rate there. If a move interrupts an edge for t seconds, and edges keep a
    /// relay for T seconds, a move breaks even at κ = t / T. Values above 100 % count as 100 %.
    pub share: Ratio,
    /// The same bonus for each edge, whatever its rate is. If the number of moved edges is limited, it gives the
    /// highest gain for that number: heavy edges move, for which it is a small part of the gain.
    pub fee: Bitrate,
}

/// An instance together with the present assignment and the switching cost.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReducedInstance<'a> {
    pub(super) instance: &'a Instance,
    /// Present candidate of each edge; edges beyond the end have none.
    current: &'a [u32],
    switching_cost: SwitchingCost,
}

/// The two best choices of an edge under prices: candidates, or [`NONE`] for no relay.
#[derive(Clone, Copy, Debug)]
pub(super) struct TopTwo {
    pub(super) best: u32,
    pub(super) best_value: f64,
    pub(super) second: u32,
    /// Minus infinity if there is no second choice.
    pub(super) second_value: f64,
}

impl<'a> ReducedInstance<'a> {
    pub(super) fn new(instance: &'a Instance, current: &'a [u32], switching_cost: SwitchingCost) -> Self {
        // The sum of all fees must fit into the range in which sums are exact.
        let fee = switching_cost.fee.min(Instance::MAX_CAPACITY / (current.len() as u64).max(1));
        Self {
            instance,
            current,
            switching_cost: SwitchingCost { share: switching_cost.share.min(Ratio::ONE), fee },
        }
    }

    /// A view in which no edge has a relay yet.
    pub(super) fn without_current(instance: &'a Instance) -> Self {
        Self::new(instance, &[], SwitchingCost::default())
    }

    /// Present candidate of an edge, or [`NONE`].
    pub(super) fn current(self, edge: usize) -> u32 {
        self.current.get(edge).copied().unwrap_or(NONE)
    }

    /// The switching cost, limited to its valid range.
    pub(super) fn switching_cost(self) -> SwitchingCost {
        self.switching_cost
    }

    /// Value of a choice (rule 1).
    pub(super) fn value(self, edge: usize, choice: u32) -> u64 {
        if choice == NONE {
            return self.instance.direct_rate(edge).bits_per_sec();
        }
        let rate = self.instance.rate_of(choice as usize);
        let bonus = if self.current(edge) == choice {
            (rate.share(self.switching_cost.share) + self.switching_cost.fee).bits_per_sec()
        } else {
            0
        };
        rate.bits_per_sec() + bonus
    }

    /// Value of a choice less the edge's direct rate.
    pub(super) fn gain(self, edge: usize, choice: u32) -> i64 {
        if choice == NONE {
            return 0;
        }
        self.value(edge, choice) as i64 - self.instance.direct_rate(edge).bits_per_sec() as i64
    }

    /// Like [`gain`](Self::gain), without the bonus for the present relay.
    pub(super) fn rate_gain(self, edge: usize, choice: u32) -> i64 {
        Self::without_current(self.instance).gain(edge, choice)
    }

    /// Reduced value of a choice (rule 2).
    pub(super) fn reduced_value(self, prices: &[f64], edge: usize, choice: u32) -> f64 {
        if choice == NONE {
            return self.instance.direct_bits(edge);
        }
        let candidate = choice as usize;
        let rate = self.instance.bits_of(candidate);
        let bonus = if self.current(edge) == choice {
            rate * self.switching_cost.share.as_f64() + to_f64(self.switching_cost.fee)
        } else {
            0.0
        };
        rate - prices[self.instance.relay_of(candidate)] * rate + bonus
    }

    /// The two choices of an edge with the highest reduced values.
    pub(super) fn top_two(self, prices: &[f64], edge: usize) -> TopTwo {
        let first = self.instance.direct_bits(edge);
        let mut top_two = TopTwo { best: NONE, best_value: first, second: NONE, second_value: f64::NEG_INFINITY };
        // Same formula as `reduced_value`; this is the innermost loop of all, so constant parts are kept out of it.
        let (current, candidates) = (self.current(edge), self.instance.candidate_range(edge));
        let (relays, rates) = self.instance.relays_and_rates(candidates.clone());
        for ((candidate, relay), rate) in candidates.zip(relays).zip(rates) {
            let (candidate, rate) = (candidate as u32, to_f64(*rate));
            let mut value = rate - prices[*relay as usize] * rate;
            if candidate == current {
                value += rate * self.switching_cost.share.as_f64() + to_f64(self.switching_cost.fee);
            }
            if value > top_two.best_value {
                top_two = TopTwo {
                    best: candidate,
                    best_value: value,
                    second: top_two.best,
                    second_value: top_two.best_value,
                };
            } else if value > top_two.second_value {
                (top_two.second, top_two.second_value) = (candidate, value);
            }
        }
        top_two
    }
}
