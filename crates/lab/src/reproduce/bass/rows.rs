//! Result rows and thresholds of BASS, from measurements in virtual or real time.
//!
//! 1. `F5`, `X-upload`: for each set of links the rate of each link with plain TCP, their sum, and the rate of edge
//!    and relay. Rates are steady ones, because a live stream is long. *Efficiency* is the rate of edge and relay
//!    divided by the sum.
//! 2. `F8`: the edge's rate to relays, by distance.
//! 3. `F9`: for each origin the rate through the relay that line 6 of Algorithm 1 selects from the measured rates,
//!    through a random relay (the mean of all), and through the best one; if measured, also through the relay that
//!    the fleet service assigned. `F10`: γ = selected divided by best.
//! 4. `F11`: plain TCP over the better link, edge and relay over one link, edge and relay over both, for uploads of
//!    the same length. The gain is the third divided by the first. It is the product of *aggregation* (the third
//!    divided by the second) and *split* (the second divided by the first). `F12` is the distribution of gains.
//! 5. Repetitions are averaged before ratios are computed. A case without one of its routes has no row.
//! 6. For plain TCP of `F11` the fastest of the stored runs with the same seed counts. marline does not take part
//!    in these runs, so they should agree. A run that a busy machine slowed down would create an apparent gain. A
//!    row of `F12` gives the number of runs that disagree.

use marline_core::units::Duration;

use super::config::{UploadCase, UploadRoute};
use super::measurement::{UploadId, UploadMeasurement, UploadResult};
use super::simulate::index_of_max;
use crate::reproduce::measurement;
use crate::reproduce::threshold::{Bound, Threshold};
use crate::results::{ResultRow, round_to_thousandths, stats};

/// The cases and their measurements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Results<'a> {
    pub(super) cases: &'a [UploadCase],
    pub(super) measurements: &'a [UploadMeasurement],
    pub(super) congestion: &'a str,
}

/// The three rates of an origin, in Mbit/s.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Gain {
    direct: f64,
    split: f64,
    both: f64,
}

/// The relays of an origin, and which of them was selected.
#[derive(Clone, PartialEq, Debug)]
struct RelayChoice {
    /// Rate through each relay in Mbit/s.
    relay_rates: Vec<f64>,
    /// Index of the relay with the highest predicted rate.
    chosen: usize,
    /// Index of the relay that the fleet service assigned, if it was measured.
    assigned: Option<usize>,
}

impl RelayChoice {
    fn best(&self) -> f64 {
        self.relay_rates.iter().copied().fold(0.0, f64::max)
    }
}

impl Results<'_> {
    /// The rows of these artefacts, and their thresholds.
    pub(super) fn rows(&self, is_selected: impl Fn(&str) -> bool) -> (Vec<ResultRow>, Vec<Threshold>) {
        let (mut rows, mut thresholds) = (Vec::new(), Vec::new());
        for artefact in ["F5", "X-upload"].into_iter().filter(|artefact| is_selected(artefact)) {
            for case in self.cases_of(artefact) {
                self.upload(case, &mut rows, &mut thresholds);
            }
        }
        if is_selected("F8") {
            let rates = self
                .cases_of("F8")
                .into_iter()
                .filter_map(|case| Some((case, self.mbps(case, UploadRoute::ToRelay(0))?)));
            rows.extend(rates.map(|(case, rate)| value_row("F8", &case.name, "edge", "rate", "Mbit/s", rate)));
        }
        self.choices(&is_selected, &mut rows);
        self.gains(&is_selected, &mut rows, &mut thresholds);
        (rows, thresholds)
    }

    /// The cases of an artefact, without repetitions.
    fn cases_of(&self, artefact: &str) -> Vec<&UploadCase> {
        let mut cases: Vec<&UploadCase> = Vec::new();
        for case in self.cases.iter().filter(|case| case.artefact == artefact) {
            if cases.iter().all(|known| known.name != case.name) {
                cases.push(case);
            }
        }
        cases
    }

    /// Mean of a value over the repetitions; `None` if one of them is missing.
    fn mean(&self, case: &UploadCase, route: UploadRoute, metric: impl Fn(&UploadResult) -> f64) -> Option<f64> {
        let again = self.cases.iter().filter(|c| (c.artefact, &c.name) == (case.artefact, &case.name));
        let value = |case: &UploadCase| {
            let cell = measurement::latest(self.measurements, &UploadId::new(case, route, self.congestion))?;
            cell.values.as_ref().map(&metric)
        };
        stats::mean(&again.map(value).collect::<Option<Vec<f64>>>()?)
    }

    fn mbps(&self, case: &UploadCase, route: UploadRoute) -> Option<f64> {
        self.mean(case, route, |measured| measured.mbps)
    }

    /// The rates of all stored runs with this seed (rule 6).
    fn runs(&self, case: &UploadCase, route: UploadRoute) -> Vec<f64> {
        let name = UploadId::new(case, route, self.congestion);
        let cells = self.measurements.iter().filter(|cell| cell.id == name);
        cells.filter_map(|cell| Some(cell.result().ok()?.mbps)).collect()
    }

    /// Rate of plain TCP over one link: the mean over repetitions of the fastest run of each (rule 6).
    fn direct_rate(&self, case: &UploadCase, route: UploadRoute) -> Option<f64> {
        let again = self.cases.iter().filter(|c| (c.artefact, &c.name) == (case.artefact, &case.name));
        let fastest = |case: &UploadCase| self.runs(case, route).into_iter().reduce(f64::max);
        stats::mean(&again.map(fastest).collect::<Option<Vec<f64>>>()?)
    }

    /// Number of plain TCP uploads that were repeated with the same seed, and how many of them differ by more than
    /// a fifth.
    fn disturbed_count(&self) -> (usize, usize) {
        let routes = |case: &UploadCase| case.routes.iter().map(|route| (case.clone(), *route)).collect::<Vec<_>>();
        let plain = self.cases.iter().filter(|case| case.artefact == "F11").flat_map(routes);
        let plain = plain.filter(|(_, route)| matches!(route, UploadRoute::Direct(_)));
        let repeated: Vec<Vec<f64>> =
            plain.map(|(case, route)| self.runs(&case, route)).filter(|runs| runs.len() > 1).collect();
        let differ = |runs: &&Vec<f64>| stats::range(runs).is_some_and(|(least, max)| least * MAX_RUN_RATIO < max);
        (repeated.len(), repeated.iter().filter(differ).count())
    }

    /// Rows and threshold of one case of `F5` or `X-upload` (rule 1).
    fn upload(&self, case: &UploadCase, rows: &mut Vec<ResultRow>, thresholds: &mut Vec<Threshold>) {
        let steady = |route| self.mean(case, route, |measured| measured.steady_mbps);
        let alone: Option<Vec<f64>> = (0..case.links.len()).map(|at| steady(UploadRoute::Direct(at))).collect();
        let (Some(alone), Some(through_relay)) = (alone, steady(UploadRoute::Through(0))) else { return };
        let (artefact, name) = (case.artefact, &case.name);
        let (sum, best) = (alone.iter().sum::<f64>(), alone.iter().copied().fold(0.0, f64::max));
        for (link, rate) in case.links.iter().zip(&alone) {
            rows.push(value_row(artefact, name, &format!("tcp:{}", link.name), "rate", "Mbit/s", *rate));
        }
        rows.push(value_row(artefact, name, "sum of tcp", "rate", "Mbit/s", sum));
        rows.push(value_row(artefact, name, "edge", "rate", "Mbit/s", through_relay));
        rows.push(value_row(artefact, name, "edge", "efficiency", "%", through_relay / sum * 100.0));
        if artefact != "X-upload" {
            return;
        }
        // One link has a tenth of the other's rate: the slow link need not add anything, but must not reduce the
        // rate.
        let unequal = best > 0.85 * sum;
        let (requirement, reference, least) = match unequal {
            true => ("of the best link's rate", best, 97.0),
            false => ("of the sum of the links' rates", sum, 92.0),
        };
        let note = unequal.then(|| format!("the sum as a goal: {:.1} % of it", through_relay / sum * 100.0));
        let bound = Bound::AtLeast(least);
        thresholds.push(Threshold {
            note,
            ..new_threshold(artefact, name, requirement, through_relay / reference * 100.0, bound, "%")
        });
    }

    /// Rows of `F9` and `F10` (rule 3).
    fn choices(&self, is_selected: &impl Fn(&str) -> bool, rows: &mut Vec<ResultRow>) {
        let mut all: Vec<RelayChoice> = Vec::new();
        for case in self.cases_of("F9") {
            let each = |route: fn(usize) -> UploadRoute| {
                (0..case.relays.len()).map(|at| self.mbps(case, route(at))).collect::<Option<Vec<_>>>()
            };
            let (Some(to), Some(from), Some(through)) =
                (each(UploadRoute::ToRelay), each(UploadRoute::FromRelay), each(UploadRoute::Through))
            else {
                continue;
            };
            // Line 6 of Algorithm 1: the rate through a relay is predicted as min(B(c, s), B_o(s)).
            let foretold: Vec<f64> = to.iter().zip(&from).map(|(to, from)| to.min(*from)).collect();
            let chosen = index_of_max(&foretold);
            let given = measurement::latest(
                self.measurements,
                &UploadId::new(case, UploadRoute::Assigned, self.congestion),
            );
            let given = given.and_then(|cell| cell.values.as_ref()?.relay).filter(|relay| *relay < through.len());
            if is_selected("F9") {
                for (at, rate) in through.iter().enumerate() {
                    rows.push(value_row("F9", &case.name, &format!("relay-{}", at + 1), "rate", "Mbit/s", *rate));
                    rows.push(value_row(
                        "F9",
                        &case.name,
                        &format!("relay-{}", at + 1),
                        "foretold",
                        "Mbit/s",
                        foretold[at],
                    ));
                }
            }
            all.push(RelayChoice { relay_rates: through, chosen, assigned: given });
        }
        let mut choosers: Vec<(&str, Vec<f64>, Vec<f64>)> = Vec::new();
        let mut chooser = |name, rate: &dyn Fn(&RelayChoice) -> Option<f64>| {
            // A method counts only if it has a rate for every origin, so that all means cover the same origins.
            let rates: Option<Vec<f64>> = all.iter().map(rate).collect();
            if let Some(rates) = rates.filter(|rates| !rates.is_empty()) {
                let gammas = rates.iter().zip(&all).map(|(rate, choice)| rate / choice.best()).collect();
                choosers.push((name, rates, gammas));
            }
        };
        chooser("fleet", &|choice| Some(choice.relay_rates[choice.assigned?]));
        chooser("measured rates", &|choice| Some(choice.relay_rates[choice.chosen]));
        chooser("random", &|choice| stats::mean(&choice.relay_rates));
        chooser("best", &|choice| Some(choice.best()));
        for (name, rates, gammas) in choosers {
            if is_selected("F9") {
                let spread = stats::std_dev(&rates).map(round_to_thousandths);
                let mean = stats::mean(&rates).unwrap_or_default();
                rows.push(ResultRow { spread, ..value_row("F9", ALL_ORIGINS, name, "rate", "Mbit/s", mean) });
            }
            if is_selected("F10") && name != "random" {
                for (metric, least) in [("γ = 1", 1.0), ("γ ≥ 0.9", 0.9), ("γ ≥ 0.8", 0.8), ("γ ≥ 0.5", 0.5)]
                {
                    let count = gammas.iter().filter(|gamma| **gamma >= least).count();
                    let measured = count as f64 / gammas.len() as f64 * 100.0;
                    let paper = (metric == "γ = 1" && name != "best").then_some(PAPER_HITS);
                    rows.push(ResultRow { paper, ..value_row("F10", ALL_ORIGINS, name, metric, "%", measured) });
                }
            }
        }
    }

    /// The rates of one origin; `None` if a route is missing.
    fn gain(&self, case: &UploadCase) -> Option<Gain> {
        let mean_of = |is_route: fn(&UploadRoute) -> bool| {
            let rate = |route: &UploadRoute| match route {
                UploadRoute::Direct(_) => self.direct_rate(case, *route),
                _ => self.mbps(case, *route),
            };
            let rates: Option<Vec<f64>> = case.routes.iter().filter(|route| is_route(route)).map(rate).collect();
            rates?.into_iter().reduce(f64::max).filter(|rate| *rate > 0.0)
        };
        Some(Gain {
            direct: mean_of(|route| matches!(route, UploadRoute::Direct(_)))?,
            split: mean_of(|route| matches!(route, UploadRoute::Split(_)))?,
            both: mean_of(|route| matches!(route, UploadRoute::Through(_) | UploadRoute::Assigned))?,
        })
    }

    /// Rows and threshold of `F11` and `F12` (rules 4 and 6).
    fn gains(
        &self,
        is_selected: &impl Fn(&str) -> bool,
        rows: &mut Vec<ResultRow>,
        thresholds: &mut Vec<Threshold>,
    ) {
        let all: Vec<(&UploadCase, Gain)> =
            self.cases_of("F11").into_iter().filter_map(|case| Some((case, self.gain(case)?))).collect();
        if all.is_empty() {
            return;
        }
        if is_selected("F11") {
            for (case, gain) in &all {
                let name = case.name.clone();
                let note = Some(format!("{}, {} lost", milliseconds(case.direct.rtt), case.direct.loss));
                for (policy, rate) in
                    [(DIRECT_TCP, gain.direct), (SPLIT_ONE_LINK, gain.split), (BOTH_LINKS, gain.both)]
                {
                    let note = note.clone();
                    rows.push(ResultRow { note, ..value_row("F11", &name, policy, "rate", "Mbit/s", rate) });
                }
                rows.push(value_row("F11", &name, BOTH_LINKS, "gain", "", gain.both / gain.direct));
            }
        }
        let gains: Vec<f64> = all.iter().map(|(_, gain)| gain.both / gain.direct).collect();
        let root = |metric: &dyn Fn(&Gain) -> f64| {
            let logs: Vec<f64> = all.iter().map(|(_, gain)| metric(gain).ln()).collect();
            stats::mean(&logs).unwrap_or_default().exp()
        };
        let (aggregation, split) = (root(&|gain| gain.both / gain.split), root(&|gain| gain.split / gain.direct));
        let mean = stats::mean(&gains).unwrap_or_default();
        let product = format!(
            "geometric mean {:.2} = aggregation {aggregation:.2} × split {split:.2}; BASS: {PAPER_MEAN_GAIN}",
            aggregation * split
        );
        if is_selected("F12") {
            let quantile = |share| stats::quantile(&gains, share).unwrap_or_default();
            let points = [
                ("least", quantile(0.0), Some(PAPER_MIN_GAIN)),
                ("of ten, one has less", quantile(0.1), None),
                ("median", quantile(0.5), Some(PAPER_MEDIAN_GAIN)),
                ("of ten, one has more", quantile(0.9), None),
                ("most", quantile(1.0), Some(PAPER_MAX_GAIN)),
                ("mean", mean, Some(PAPER_MEAN_GAIN)),
            ];
            for (metric, value, paper) in points {
                rows.push(ResultRow { paper, ..value_row("F12", ALL_ORIGINS, BOTH_LINKS, metric, "", value) });
            }
            rows.push(value_row("F12", ALL_ORIGINS, BOTH_LINKS, "aggregation, geometric mean", "", aggregation));
            rows.push(value_row("F12", ALL_ORIGINS, BOTH_LINKS, "split, geometric mean", "", split));
            let (repeated, unsteady) = self.disturbed_count();
            if repeated > 0 {
                let metric = "uploads that differ by more than a fifth when repeated";
                rows.push(value_row(
                    "F12",
                    ALL_ORIGINS,
                    DIRECT_TCP,
                    metric,
                    &format!("of {repeated}"),
                    unsteady as f64,
                ));
            }
        }
        let (case, bound) = (format!("{} origins", all.len()), Bound::AtLeast(3.0));
        let gain_threshold = new_threshold("F12", &case, "mean gain over plain TCP", mean, bound, "times");
        thresholds.push(Threshold { note: Some(product), ..gain_threshold });
    }
}

/// Runs with the same seed that differ by more than this factor were disturbed. Our choice: others repeat within a
/// few percent.
const MAX_RUN_RATIO: f64 = 1.2;
/// The clients that `F11` compares.
pub(super) const DIRECT_TCP: &str = "tcp, the better link";
pub(super) const SPLIT_ONE_LINK: &str = "edge and relay, one link";
pub(super) const BOTH_LINKS: &str = "edge and relay, both links";
/// Case of rows over all origins.
pub(super) const ALL_ORIGINS: &str = "all origins";
/// Values of BASS sections V-B.2 and V-C. The median is of "over 50% of the tests".
const PAPER_HITS: f64 = 77.0;
const PAPER_MIN_GAIN: f64 = 1.14;
const PAPER_MEDIAN_GAIN: f64 = 6.0;
const PAPER_MAX_GAIN: f64 = 14.59;
const PAPER_MEAN_GAIN: f64 = 5.11;

fn value_row(artefact: &str, case: &str, policy: &str, metric: &str, unit: &str, value: f64) -> ResultRow {
    ResultRow {
        measured: Some(round_to_thousandths(value)),
        ..ResultRow::empty(artefact, case, policy, metric, unit)
    }
}

fn new_threshold(
    artefact: &'static str,
    case: &str,
    requirement: &'static str,
    measured: f64,
    bound: Bound,
    unit: &'static str,
) -> Threshold {
    Threshold {
        artefact,
        case: case.to_owned(),
        policy: "marline",
        metric: "floor",
        requirement,
        measured,
        bound,
        unit,
        note: None,
    }
}

/// Threshold of the share of edges that have the best relay, in percent, compared with the best plan's.
pub(super) fn hit_threshold(case: &str, measured: f64, best: f64) -> Threshold {
    let requirement = "γ = 1 in 90 %, else 2 points less than the best plan's";
    let bound = Bound::AtLeast((best - 2.0).min(90.0));
    let note = Some(format!("the best plan's {best:.1} %; BASS: 77 %"));
    Threshold { note, ..new_threshold("F10", case, requirement, measured, bound, "%") }
}

fn milliseconds(time: Duration) -> String {
    format!("{} ms", time.as_millis())
}

#[cfg(test)]
mod tests {
    use super::super::cases::{Effort, cases};
    use super::*;

    fn cell(case: &UploadCase, route: UploadRoute, mbps: f64) -> UploadMeasurement {
        UploadMeasurement::new(UploadId::new(case, route, "cubic"), Ok(UploadResult::rounded(mbps, mbps)))
    }

    fn judged(cases: &[UploadCase], cells: &[UploadMeasurement]) -> (Vec<ResultRow>, Vec<Threshold>) {
        Results { cases, measurements: cells, congestion: "cubic" }.rows(|_| true)
    }

    fn value(rows: &[ResultRow], artefact: &str, policy: &str, metric: &str) -> ResultRow {
        let is_row = |row: &&ResultRow| {
            (row.artefact.as_str(), row.policy.as_str(), row.metric.as_str()) == (artefact, policy, metric)
        };
        rows.iter().rfind(is_row).unwrap().clone()
    }

    const EFFORT: Effort = Effort { runs: 1, quick: true, includes_fleet: false };

    #[test]
    fn the_gain_is_the_product_of_aggregation_and_split() {
        let origins = cases("F11", EFFORT);
        let mut cells = Vec::new();
        for (case, factor) in origins.iter().zip([1.0, 2.0, 4.0]) {
            for route in &case.routes {
                let rate = match route {
                    UploadRoute::Direct(at) => 1.0 - 0.1 * *at as f64,
                    UploadRoute::Split(_) => factor,
                    _ => 2.0 * factor,
                };
                cells.push(cell(case, *route, rate));
            }
        }
        let (rows, thresholds) = judged(&origins, &cells);
        assert_eq!(value(&rows, "F12", BOTH_LINKS, "mean").measured, Some(4.667));
        assert_eq!(value(&rows, "F12", BOTH_LINKS, "mean").paper, Some(5.11));
        assert_eq!(value(&rows, "F12", BOTH_LINKS, "aggregation, geometric mean").measured, Some(2.0));
        assert_eq!(value(&rows, "F12", BOTH_LINKS, "split, geometric mean").measured, Some(2.0));
        assert_eq!((thresholds.len(), thresholds[0].is_met()), (1, true));
        assert!(thresholds[0].to_row().note.unwrap().contains("aggregation 2.00 × split 2.00"));
        cells.iter_mut().filter(|cell| cell.id.route.starts_with("relay")).for_each(|cell| {
            cell.values = Some(UploadResult::rounded(1.5, 1.5));
        });
        assert!(!judged(&origins, &cells).1[0].is_met());
        cells.retain(|cell| cell.id.case != "origin 1");
        assert_eq!(judged(&origins, &cells).1[0].case, "2 origins");
    }

    #[test]
    fn a_slow_repetition_of_plain_tcp_does_not_create_a_gain() {
        let origins = &cases("F11", EFFORT)[..1];
        let case = &origins[0];
        let rate = |route: &UploadRoute| match route {
            UploadRoute::Direct(_) => 2.0,
            UploadRoute::Split(_) => 3.0,
            _ => 6.0,
        };
        let mut cells: Vec<UploadMeasurement> =
            case.routes.iter().map(|route| cell(case, *route, rate(route))).collect();
        assert!(!judged(origins, &cells).0.iter().any(|row| row.metric.contains("repeated")));
        // Repeated on a machine that was stalled for a while.
        cells.extend([cell(case, UploadRoute::Direct(0), 0.5), cell(case, UploadRoute::Direct(1), 1.9)]);
        let (rows, _) = judged(origins, &cells);
        assert_eq!(value(&rows, "F12", BOTH_LINKS, "most").measured, Some(3.0));
        let metric = "uploads that differ by more than a fifth when repeated";
        let row = value(&rows, "F12", DIRECT_TCP, metric);
        assert_eq!((row.measured, row.unit.as_str()), (Some(1.0), "of 2"));
    }

    #[test]
    fn uploads_are_compared_with_the_sum_and_unequal_ones_with_the_best_link() {
        let sets = cases("X-upload", Effort { quick: false, ..EFFORT });
        let rates = |case: &UploadCase, measured: f64| {
            let widths: &[f64] = match case.name.as_str() {
                "8+8 Mbit/s" => &[8.0, 8.0],
                "20+2 Mbit/s" => &[20.0, 2.0],
                _ => &[5.0, 10.0, 3.0],
            };
            let alone = widths.iter().enumerate().map(|(at, rate)| cell(case, UploadRoute::Direct(at), *rate));
            alone.chain([cell(case, UploadRoute::Through(0), measured)]).collect::<Vec<_>>()
        };
        let verdict_of =
            |at: usize, measured: f64| judged(&sets[at..=at], &rates(&sets[at], measured)).1[0].clone();
        assert!(verdict_of(0, 14.8).is_met() && !verdict_of(0, 14.6).is_met());
        assert!(verdict_of(1, 16.6).is_met() && !verdict_of(1, 16.5).is_met());
        assert!(verdict_of(2, 19.5).is_met() && !verdict_of(2, 19.3).is_met());
        assert!(verdict_of(2, 19.5).note.unwrap().contains("goal"));
    }

    #[test]
    fn the_choice_follows_line_6_and_gamma_compares_it_with_the_best() {
        let choices = cases("F9", Effort { includes_fleet: true, ..EFFORT });
        let case = &choices[0];
        let mut cells = Vec::new();
        // Rates to, from and through each relay: the second one is predicted to be best, the third one is.
        for (at, [to, from, through]) in [[9.0, 4.0, 4.0], [8.0, 7.0, 6.0], [6.0, 9.0, 8.0]].into_iter().enumerate()
        {
            cells.extend([cell(case, UploadRoute::ToRelay(at), to), cell(case, UploadRoute::FromRelay(at), from)]);
            cells.push(cell(case, UploadRoute::Through(at), through));
        }
        let mut given = cell(case, UploadRoute::Assigned, 7.9);
        given.values = given.values.map(|measured| UploadResult { relay: Some(2), ..measured });
        let without = judged(&choices, &cells).0;
        assert!(without.iter().all(|row| row.policy != "fleet"));
        cells.push(given);
        let (rows, _) = judged(&choices, &cells);
        assert_eq!(value(&rows, "F9", "measured rates", "rate").measured, Some(6.0));
        assert_eq!(value(&rows, "F9", "random", "rate").measured, Some(6.0));
        assert_eq!(value(&rows, "F10", "measured rates", "γ = 1").measured, Some(0.0));
        assert_eq!(value(&rows, "F10", "measured rates", "γ ≥ 0.5").measured, Some(100.0));
        assert_eq!(value(&rows, "F10", "fleet", "γ = 1").measured, Some(100.0));
    }

    #[test]
    fn the_hit_rate_threshold_is_90_percent_or_two_points_below_the_best_plan() {
        assert!(hit_threshold("a", 90.0, 99.0).is_met());
        assert!(hit_threshold("a", 85.0, 86.7).is_met());
        assert!(!hit_threshold("a", 84.0, 86.7).is_met());
    }
}
