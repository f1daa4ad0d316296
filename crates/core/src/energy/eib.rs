//! Energy information base (EIB) of eMPTCP: whether one of two radios or both together need the least energy per
//! byte, at given rates.
//!
//! For a device model and two kinds of links it computes the thresholds of eMPTCP's Table 2, the heat map of its
//! Figure 3 and the operating region of its Figure 4 (§3.3, §4.1).
//!
//! 1. The second link alone is best below [`EibRow::second_below`], the first alone above [`EibRow::first_above`],
//!    and both together between the two. With affine powers these are y (b_b − b_l) / (b_l + d y) and
//!    y b_w / (b_b − b_w + d y). Here y is the second link's rate; b_w, b_l and b_b are the base powers of the first
//!    link, the second link and both; d = a_l − a_w is the difference of their energies per bit.
//! 2. The thresholds are found by bisection over the model's power, not by these formulas. Decisions therefore use
//!    exactly what the meter counts, for every power curve that a model may have.
//! 3. Where radios share no base power, both together are never the cheapest per byte (the energy of both is the
//!    mediant of the two). The two thresholds are then equal, and [`EibRow::has_both`] is false.
//! 4. Figure 3 and the table are valid for endless transfers; only Figure 4 includes promotion and tail.
//!
//! The paper stores a table. Here rows are computed on demand, so that every model file has one.

use super::{Direction, Model};
use crate::link::LinkKind;
use crate::units::{Bitrate, DataSize, Energy, Ratio};

/// The energy information base of two kinds of links.
#[derive(Clone, Copy, Debug)]
pub struct EnergyInfoBase<'a> {
    model: &'a Model,
    first: LinkKind,
    second: LinkKind,
}

/// Thresholds at one rate of the second link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EibRow {
    /// Rate of the second link (the paper's LTE).
    pub second: Bitrate,
    /// Below this rate of the first link (the paper's Wi-Fi), the second link alone is best.
    pub second_below: Bitrate,
    /// Above this rate of the first link, it alone is best; `None`: at no rate.
    pub first_above: Option<Bitrate>,
    /// Whether both together are best at any rate; if not, the two thresholds are equal.
    pub has_both: bool,
}

/// The set of links that needs the least energy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BestLinks {
    /// The first link alone.
    First,
    /// The second link alone.
    Second,
    /// Both links together.
    Both,
}

impl<'a> EnergyInfoBase<'a> {
    /// The energy information base of these two kinds; `None`: the model does not describe one of them.
    pub fn new(model: &'a Model, first: LinkKind, second: LinkKind) -> Option<Self> {
        (model.radio(first).is_some() && model.radio(second).is_some()).then_some(Self { model, first, second })
    }

    /// Thresholds at one rate of the second link.
    pub fn row(&self, second: Bitrate) -> EibRow {
        // Each comparison is false at low rates of the first link and true from some rate on, so bisection finds
        // its threshold.
        let below = lowest_rate(|first| self.both_beats_second(first, second));
        let above = lowest_rate(|first| !self.both_beats_first(first, second));
        match (below, above) {
            (Some(below), above) if above.is_none_or(|above| below < above) => {
                EibRow { second, second_below: below, first_above: above, has_both: true }
            }
            _ => {
                // No interval in which both are best: compare the single links only.
                let equal = lowest_rate(|first| self.first_beats_second(first, second));
                EibRow { second, second_below: equal.unwrap_or(MAX_RATE), first_above: equal, has_both: false }
            }
        }
    }

    /// Rows for these rates of the second link.
    pub fn rows(&self, second_rates: &[Bitrate]) -> alloc::vec::Vec<EibRow> {
        second_rates.iter().map(|second| self.row(*second)).collect()
    }

    /// Energy per byte over both links, divided by that over the better one alone (Figure 3). Below 1, both links
    /// are better. `None`: one of the rates is zero.
    pub fn relative_energy(&self, first: Bitrate, second: Bitrate) -> Option<f64> {
        if first.is_zero() || second.is_zero() {
            return None;
        }
        let per_bit = |power: u64, rate: Bitrate| power as f64 / rate.bits_per_sec() as f64;
        let alone = per_bit(self.first_power(first), first).min(per_bit(self.second_power(second), second));
        Some(per_bit(self.both_power(first, second), first + second) / alone)
    }

    /// Best links for a whole transfer on idle radios, including promotions and tails (Figure 4).
    pub fn best_for_transfer(&self, size: DataSize, first: Bitrate, second: Bitrate) -> BestLinks {
        let energy = |links: BestLinks| self.transfer_energy(links, size, first, second);
        let alone = if energy(BestLinks::First) <= energy(BestLinks::Second) {
            BestLinks::First
        } else {
            BestLinks::Second
        };
        if energy(BestLinks::Both) < energy(alone) { BestLinks::Both } else { alone }
    }

    /// Range of the first link's rate in which both links are best for a whole transfer of this size (one line
    /// through Figure 4); `None`: there is none.
    pub fn both_region(&self, size: DataSize, second: Bitrate) -> Option<(Bitrate, Bitrate)> {
        let energy = |links: BestLinks, first: Bitrate| self.transfer_energy(links, size, first, second);
        let from = lowest_rate(|first| energy(BestLinks::Both, first) < energy(BestLinks::Second, first))?;
        let to = lowest_rate(|first| energy(BestLinks::Both, first) >= energy(BestLinks::First, first))
            .unwrap_or(MAX_RATE);
        (from < to).then_some((from, to))
    }

    /// Energy of a whole transfer on idle radios, including promotions and tails.
    pub fn transfer_energy(&self, links: BestLinks, size: DataSize, first: Bitrate, second: Bitrate) -> Energy {
        let wake_energy = |kind| self.model.radio(kind).map_or(Energy::ZERO, |radio| radio.single_packet_energy());
        let (power, rate, fixed) = match links {
            BestLinks::First => (self.first_power(first), first, wake_energy(self.first)),
            BestLinks::Second => (self.second_power(second), second, wake_energy(self.second)),
            BestLinks::Both => {
                (self.both_power(first, second), first + second, wake_energy(self.first) + wake_energy(self.second))
            }
        };
        if rate.is_zero() {
            return Energy::MAX;
        }
        crate::units::Power::from_microwatts(power) * (size / rate) + fixed
    }

    /// eMPTCP's decision (§3.4): it leaves the current set of links only when the first link's rate is beyond the
    /// threshold by the safety factor. This hysteresis prevents oscillation.
    pub fn next_links(&self, current: BestLinks, first: Bitrate, second: Bitrate, safety: Ratio) -> BestLinks {
        let row = self.row(second);
        let above = |limit: Option<Bitrate>| limit.is_some_and(|limit| first > limit + limit.share(safety));
        let under = |limit: Option<Bitrate>| limit.is_none_or(|limit| first < limit - limit.share(safety));
        match current {
            BestLinks::Both if above(row.first_above) => BestLinks::First,
            BestLinks::Both if under(Some(row.second_below)) => BestLinks::Second,
            BestLinks::First if under(row.first_above) && (row.has_both || under(Some(row.second_below))) => {
                // A change between the two single links always passes through `Both`.
                BestLinks::Both
            }
            BestLinks::Second if above(Some(row.second_below)) => BestLinks::Both,
            unchanged => unchanged,
        }
    }

    fn both_beats_second(&self, first: Bitrate, second: Bitrate) -> bool {
        let (both, alone) = (self.both_power(first, second), self.second_power(second));
        power_times_rate(both, second) < power_times_rate(alone, first + second)
    }

    fn both_beats_first(&self, first: Bitrate, second: Bitrate) -> bool {
        let (both, alone) = (self.both_power(first, second), self.first_power(first));
        power_times_rate(both, first) < power_times_rate(alone, first + second)
    }

    fn first_beats_second(&self, first: Bitrate, second: Bitrate) -> bool {
        power_times_rate(self.first_power(first), second) < power_times_rate(self.second_power(second), first)
    }

    /// Power of both links together, in microwatts.
    fn both_power(&self, first: Bitrate, second: Bitrate) -> u64 {
        let loads = [(self.first, Direction::Down, first), (self.second, Direction::Down, second)];
        self.model.active_power(&loads).microwatts()
    }

    fn first_power(&self, rate: Bitrate) -> u64 {
        self.model.active_power(&[(self.first, Direction::Down, rate)]).microwatts()
    }

    fn second_power(&self, rate: Bitrate) -> u64 {
        self.model.active_power(&[(self.second, Direction::Down, rate)]).microwatts()
    }
}

/// Compares power per rate by cross multiplication, which is exact: p1 / r1 < p2 / r2 if p1 × r2 < p2 × r1.
fn power_times_rate(power: u64, rate: Bitrate) -> u128 {
    u128::from(power) * u128::from(rate.bits_per_sec())
}

/// Upper bound of the first link's rate. Our choice: ten times the fastest Wi-Fi of today.
const MAX_RATE: Bitrate = Bitrate::from_mbps(100_000);

/// Lowest rate from which on a condition holds, by bisection; `None`: it does not even hold at [`MAX_RATE`].
fn lowest_rate(is_true: impl Fn(Bitrate) -> bool) -> Option<Bitrate> {
    let (mut low, mut high) = (0, MAX_RATE.bits_per_sec());
    if !is_true(MAX_RATE) {
        return None;
    }
    while low + 1 < high {
        let middle = low.midpoint(high);
        if is_true(Bitrate::from_bits_per_sec(middle)) { high = middle } else { low = middle }
    }
    Some(Bitrate::from_bits_per_sec(high))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::energy::tests::{emptcp, greenbag};

    fn kbps(n: u64) -> Bitrate {
        Bitrate::from_bits_per_sec(n * 1000)
    }

    fn near(found: Bitrate, expected: u64, percent: u64) -> bool {
        found.bits_per_sec().abs_diff(expected * 1000) <= expected * 10 * percent
    }

    #[test]
    fn the_built_in_model_reproduces_table_2_within_six_percent() {
        let model = emptcp();
        let base = EnergyInfoBase::new(&model, LinkKind::Wifi, LinkKind::Lte).unwrap();
        // No linear model fits the first entry (0.043); see docs/energy.md.
        let table = [(500, None, 234), (1000, Some(134), 502), (1500, Some(209), 803), (2000, Some(304), 1070)];
        for (lte, below, above) in table {
            let row = base.row(kbps(lte));
            assert!(row.has_both);
            assert!(below.is_none_or(|below| near(row.second_below, below, 6)), "{row:?}");
            assert!(near(row.first_above.unwrap(), above, 6), "{row:?}");
        }
    }

    #[test]
    fn above_the_measured_range_the_ratios_of_the_thresholds_stay_constant() {
        let model = emptcp();
        let base = EnergyInfoBase::new(&model, LinkKind::Wifi, LinkKind::Lte).unwrap();
        let at_5 = base.row(Bitrate::from_mbps(5));
        for times in [2, 4, 10] {
            let row = base.row(Bitrate::from_mbps(5 * times));
            let times_5 = |rate: Bitrate| rate.bits_per_sec() * times / 1000;
            assert!(near(row.second_below, times_5(at_5.second_below), 1), "{row:?} {at_5:?}");
            assert!(near(row.first_above.unwrap(), times_5(at_5.first_above.unwrap()), 1), "{row:?} {at_5:?}");
        }
    }

    #[test]
    fn without_shared_power_both_links_are_never_best() {
        let model = greenbag();
        let base = EnergyInfoBase::new(&model, LinkKind::Wifi, LinkKind::Lte).unwrap();
        let row = base.row(Bitrate::from_mbps(2));
        assert!(!row.has_both);
        // y b_w ÷ (b_l + d y) = 2 × 360.9 ÷ (2022.2 − 2 × 7.47) = 0.360 Mbit/s.
        assert!(near(row.first_above.unwrap(), 360, 1), "{row:?}");
        assert_eq!(Some(row.second_below), row.first_above);
    }

    #[test]
    fn the_papers_example_switches_at_552_and_452_kbit_s() {
        // A model with exactly the threshold 0.502 of the second row, 1 Mbit/s × 502 ÷ (1502 − 502): base powers of 502
        // and 1370 mW, of which 370 mW are shared.
        use crate::energy::{ConcurrentDraw, PowerCurve, RadioModel};
        let draw = |mw| PowerCurve { base: crate::units::Power::from_microwatts(mw), ..PowerCurve::default() };
        let radios = alloc::collections::BTreeMap::from([
            (LinkKind::Wifi, RadioModel::new(draw(502_000))),
            (LinkKind::Lte, RadioModel::new(draw(1_370_000))),
        ]);
        let together = ConcurrentDraw {
            shared_base: crate::units::Power::from_microwatts(370_000),
            ..ConcurrentDraw::default()
        };
        let model = Model::new("example", radios, together, crate::units::Power::ZERO).unwrap();
        let base = EnergyInfoBase::new(&model, LinkKind::Wifi, LinkKind::Lte).unwrap();
        let (lte, tenth) = (Bitrate::from_mbps(1), Ratio::from_percent(10));
        assert!(near(base.row(lte).first_above.unwrap(), 502, 1));
        let next = |now, wifi| base.next_links(now, kbps(wifi), lte, tenth);
        assert_eq!(next(BestLinks::Both, 551), BestLinks::Both);
        assert_eq!(next(BestLinks::Both, 554), BestLinks::First);
        assert_eq!(next(BestLinks::First, 453), BestLinks::First);
        assert_eq!(next(BestLinks::First, 450), BestLinks::Both);
    }

    #[test]
    fn the_region_for_both_links_shrinks_with_the_file_size() {
        let model = emptcp();
        let base = EnergyInfoBase::new(&model, LinkKind::Wifi, LinkKind::Lte).unwrap();
        let width = |mb: u64, lte: u64| {
            let region = base.both_region(DataSize::from_bytes(mb * 1_000_000), Bitrate::from_mbps(lte));
            region.map_or(0, |(from, to)| to.bits_per_sec() - from.bits_per_sec())
        };
        for lte in [1, 4, 8] {
            assert!(
                width(1, lte) <= width(4, lte) && width(4, lte) < width(16, lte) && width(16, lte) > 0,
                "{lte}"
            );
        }
        let best_links = |mb: u64, wifi, lte| {
            base.best_for_transfer(DataSize::from_bytes(mb * 1_000_000), kbps(wifi), kbps(lte))
        };
        assert_eq!(best_links(16, 2000, 8000), BestLinks::Both);
        assert_eq!(best_links(1, 2000, 2000), BestLinks::First);
        assert_eq!(base.best_for_transfer(DataSize::from_mib(256), kbps(50), kbps(8000)), BestLinks::Second);
    }

    #[test]
    fn both_links_need_less_energy_only_between_the_thresholds() {
        let model = emptcp();
        let base = EnergyInfoBase::new(&model, LinkKind::Wifi, LinkKind::Lte).unwrap();
        assert!(base.relative_energy(kbps(300), kbps(1000)).unwrap() < 1.0);
        assert!(base.relative_energy(kbps(3000), kbps(1000)).unwrap() > 1.0);
        assert!(base.relative_energy(kbps(50), kbps(1000)).unwrap() > 1.0);
        assert_eq!(base.relative_energy(Bitrate::ZERO, kbps(1000)), None);
    }

    #[test]
    fn a_kind_that_the_model_does_not_describe_has_no_energy_information_base() {
        assert!(EnergyInfoBase::new(&greenbag(), LinkKind::Wifi, LinkKind::Ethernet).is_none());
    }
}
