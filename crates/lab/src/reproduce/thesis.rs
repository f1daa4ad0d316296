//! Multi-link HTTP thesis: tables 5.12, 6.18, 6.19 and 7.10 and figure 5.7, its values beside the measured ones.
//!
//! 1. Measured values are medians over the runs (the thesis: medians of medians, section 3.4), with the standard
//!    deviation of the runs.
//! 2. If the paper has no value (marline's policy, LTE alone at low speed) or there is no measured one (memory in
//!    virtual time), the row has a null. If both are missing there is no row.
//! 3. A known reason for a difference is in the row's note. Where no cause is established, the report states that.
//!    The paper's own results, restated in other figures, do not count as an explanation.

use crate::html_report::Table;
use crate::results::{Backend, DownloadOutcome, ProcessUsage, ResultRow, round_to_thousandths, stats};

use super::paper::{DYNAMIC_CASES, METRICS, ThesisFigures};
use super::thesis_energy;

/// The policies, in the order of the tables.
pub(super) const POLICIES: [&str; 7] =
    ["single:wifi", "single:lte", "naive", "static-limit", "dynamic-limit", "bdp-limit", "marline"];
/// The cases, in the order of the tables.
pub(super) const CASES: [&str; 6] = ["HS-S6", "HS-S7", "LS", "TS", "TM", "AO"];

/// All rows of all artefacts for these outcomes; cases without an outcome are omitted.
pub(super) fn rows(
    paper: &ThesisFigures,
    outcomes: &[DownloadOutcome],
    backend: Backend,
    scale: f64,
) -> Vec<ResultRow> {
    let mut rows = Vec::new();
    for (artefact, metrics) in METRICS {
        let cases = CASES.into_iter().filter(|case| artefact != "F5.7" || DYNAMIC_CASES.contains(case));
        for case in cases.filter(|case| outcomes.iter().any(|outcome| outcome.case == *case)) {
            for policy in POLICIES {
                let runs: Vec<&DownloadOutcome> = outcomes
                    .iter()
                    .filter(|o| o.case == case && o.client == policy && o.backend == backend && o.is_complete())
                    .collect();
                for (metric, unit) in metrics {
                    let (measured, spread) = median_and_spread(&runs, metric);
                    let published = paper.value(artefact, case, policy, metric);
                    // Skip impossible values, such as the time of the LTE link when only Wi-Fi is used.
                    if published.is_none() && measured.is_none() && !runs.is_empty() {
                        continue;
                    }
                    rows.push(ResultRow {
                        artefact: artefact.into(),
                        case: case.into(),
                        policy: policy.into(),
                        metric: (*metric).into(),
                        unit: (*unit).into(),
                        paper: published,
                        measured: measured.map(round_to_thousandths),
                        spread: spread.map(round_to_thousandths),
                        clairvoyant: measured.and_then(|_| clairvoyant(&runs, metric)).map(round_to_thousandths),
                        backend,
                        scale,
                        note: difference_note(artefact, metric, backend, runs.is_empty(), measured.is_none()),
                    });
                }
            }
        }
    }
    rows
}

/// Value of a clairvoyant client: both links end together, at the ideal time.
fn clairvoyant(runs: &[&DownloadOutcome], metric: &str) -> Option<f64> {
    match metric {
        "link_delta" => Some(0.0),
        "time" | "time_wifi" | "time_lte" => {
            stats::median(&runs.iter().filter_map(|outcome| outcome.ideal_s).collect::<Vec<_>>())
        }
        _ => None,
    }
}

/// Median and standard deviation of the runs.
fn median_and_spread(runs: &[&DownloadOutcome], metric: &str) -> (Option<f64>, Option<f64>) {
    let (metric, deviation) = match metric.strip_prefix("sigma_") {
        Some(link) => (format!("throughput_{link}"), true),
        None => (metric.to_string(), false),
    };
    let values: Vec<f64> = runs.iter().filter_map(|outcome| value_of(outcome, &metric)).collect();
    if deviation { (stats::std_dev(&values), None) } else { (stats::median(&values), stats::std_dev(&values)) }
}

/// One metric of one run.
fn value_of(outcome: &DownloadOutcome, metric: &str) -> Option<f64> {
    let link = |name: &str| outcome.links.iter().find(|link| link.name == name);
    let process = |metric: fn(&ProcessUsage) -> Option<f64>| outcome.process.as_ref().and_then(metric);
    match metric {
        "time" => Some(outcome.seconds),
        "time_wifi" => link("wifi")?.span_s.map(|(_, end)| end),
        "time_lte" => link("lte")?.span_s.map(|(_, end)| end),
        "link_delta" => outcome.link_delta_s,
        "throughput_wifi" => link("wifi")?.median_mbps,
        "throughput_lte" => link("lte")?.median_mbps,
        "cpu_p50" => process(|figures| Some(figures.cpu_p50)),
        "cpu_cv" => process(|figures| figures.cpu_cv),
        "cpu_integral" => process(|figures| Some(figures.cpu_integral)),
        "cpu_max" => process(|figures| Some(figures.cpu_max)),
        "cpu_p90" => process(|figures| Some(figures.cpu_p90)),
        "cpu_p05" => process(|figures| Some(figures.cpu_p05)),
        "memory_median" => process(|figures| Some(figures.memory_median)),
        "memory_cv" => process(|figures| figures.memory_cv),
        "memory_integral" => process(|figures| Some(figures.memory_integral)),
        "energy_main" => Some(thesis_energy::phone_energy(outcome)),
        "power_p90" => stats::quantile(&thesis_energy::phone_power(outcome), 0.9),
        "power_peak" => stats::range(&thesis_energy::phone_power(outcome)).map(|(_, most)| most),
        _ => None,
    }
}

/// The note of a row: why the paper's value and the measured one differ or cannot be compared.
fn difference_note(
    artefact: &str,
    metric: &str,
    backend: Backend,
    is_not_run: bool,
    absent: bool,
) -> Option<String> {
    let text = match (artefact, metric, backend) {
        _ if is_not_run => "not run",
        ("T5.12", "throughput_wifi" | "throughput_lte" | "sigma_wifi" | "sigma_lte", _) => {
            "of single links an input of the scenario, not a result"
        }
        ("T6.18" | "T6.19", metric, Backend::Sim) if metric != "time" => {
            "virtual time has no processes: run it in the lab"
        }
        ("T6.18", "cpu_cv", _) | ("T6.19", "memory_cv", _) => {
            "the paper: between runs; measured: the median of those within a run"
        }
        ("T6.18", "cpu_integral", _) | ("T6.19", "memory_integral", _) => {
            "the paper sums over samples, about 1.4 a second (integral over median times time); measured: over seconds"
        }
        ("T6.18", metric, _) if metric != "time" => {
            "the paper: a phone's processor; here: one core of this machine"
        }
        ("T7.10", "energy_main", _) => {
            "ours: the bytes of our run by a model of that phone; the model is fitted to the paper's rows, those of two links \
             included, so that agreement is no prediction"
        }
        ("T7.10", "energy_tail", _) => "the models have no tails: the paper's hold the idle power too",
        ("T7.10", "power_peak" | "power_p90", _) if absent => {
            "needs the timeline of the download, which is not kept with the results"
        }
        ("T7.10", "power_peak" | "power_p90", _) => {
            "here: of the model over slots of 0.1 s, so without the phone's own peaks"
        }
        ("T6.19", "memory_median", _) => "the paper: libcurl and nghttp2 on Android; here: marline on this machine",
        _ => return None,
    };
    Some(text.into())
}

/// Table 5.12 of one case, for people: the paper's value, a slash, the measured one.
pub(super) fn table_5_12(rows: &[ResultRow], case: &str) -> Table {
    let (_, metrics) = METRICS[0];
    let header = ["policy", "Wi-Fi s", "LTE s", "link Δ s", "Wi-Fi Mbit/s", "LTE Mbit/s", "σ Wi-Fi", "σ LTE"];
    side_by_side(rows, "T5.12", case, metrics, &header)
}

/// Table 6.18, 6.19 or 7.10 of one case, for people.
pub(super) fn table_of(rows: &[ResultRow], artefact: &str, case: &str) -> Table {
    let metrics = METRICS.iter().find(|(name, _)| *name == artefact).map_or(&[][..], |(_, metrics)| metrics);
    let header: Vec<&str> = std::iter::once("policy").chain(metrics.iter().map(|(metric, _)| *metric)).collect();
    side_by_side(rows, artefact, case, metrics, &header)
}

fn side_by_side(
    rows: &[ResultRow],
    artefact: &str,
    case: &str,
    metrics: &[(&str, &str)],
    header: &[&str],
) -> Table {
    let number = |value: Option<f64>| value.map_or("–".into(), |value| format!("{value:.2}"));
    let cell = |policy: &str, metric: &str| {
        let row = rows
            .iter()
            .find(|r| r.artefact == artefact && r.case == case && r.policy == policy && r.metric == metric);
        match row {
            Some(ResultRow { paper: None, measured: None, .. }) | None => "–".into(),
            Some(row) => format!("{} / {}", number(row.paper), number(row.measured)),
        }
    };
    let line = |policy: &str| {
        std::iter::once(policy.to_string()).chain(metrics.iter().map(|(metric, _)| cell(policy, metric))).collect()
    };
    Table {
        header: header.iter().map(ToString::to_string).collect(),
        rows: POLICIES.iter().map(|policy| line(policy)).collect(),
        note: None,
    }
}

/// A policy's time as a share of a single link's, in the paper and as measured.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct TimeShare {
    pub(super) case: &'static str,
    pub(super) policy: &'static str,
    pub(super) single: &'static str,
    pub(super) paper: f64,
    pub(super) measured: f64,
}

impl TimeShare {
    /// Difference between the two in percentage points.
    pub(super) fn difference(&self) -> f64 {
        (self.measured - self.paper).abs() * 100.0
    }
}

/// Every policy's time divided by each single link's time, if both the paper and the measurements have it.
/// Single-link LTE was not measured at low speed. The thesis compares with the high-speed scenario there (table
/// 5.3), and so does this function.
pub(super) fn shares(paper: &ThesisFigures, outcomes: &[DownloadOutcome]) -> Vec<TimeShare> {
    let measured = |case: &str, policy: &str| median_time(outcomes, case, policy);
    let published = |case: &str, policy: &str| {
        paper.time(case, policy).or_else(|| paper.time("HS-S7", policy).filter(|_| case == "LS"))
    };
    let mut shares = Vec::new();
    for case in CASES {
        for policy in ["naive", "static-limit", "dynamic-limit", "bdp-limit"] {
            for single in ["single:wifi", "single:lte"] {
                let (Some(p), Some(p1)) = (published(case, policy), published(case, single)) else { continue };
                let (Some(o), Some(o1)) = (measured(case, policy), measured(case, single)) else { continue };
                shares.push(TimeShare { case, policy, single, paper: p / p1, measured: o / o1 });
            }
        }
    }
    shares
}

/// The multi-link approaches from fast to slow: in the paper, and as measured.
pub(super) fn orders(paper: &ThesisFigures, outcomes: &[DownloadOutcome], case: &str) -> [Vec<&'static str>; 2] {
    let sorted = |time: &dyn Fn(&str) -> Option<f64>| {
        let mut timed: Vec<(f64, &'static str)> = ["naive", "static-limit", "dynamic-limit", "bdp-limit"]
            .into_iter()
            .filter_map(|policy| Some((time(policy)?, policy)))
            .collect();
        timed.sort_by(|a, b| a.0.total_cmp(&b.0));
        timed.into_iter().map(|(_, policy)| policy).collect()
    };
    [sorted(&|policy| paper.time(case, policy)), sorted(&|policy| median_time(outcomes, case, policy))]
}

fn median_time(outcomes: &[DownloadOutcome], case: &str, policy: &str) -> Option<f64> {
    let matching = outcomes.iter().filter(|o| o.case == case && o.client == policy && o.is_complete());
    stats::median(&matching.map(|outcome| outcome.seconds).collect::<Vec<_>>())
}

/// marline's time divided by that of the fastest of Algorithms 1 to 3, in each case that has both.
pub(super) fn time_over_best(outcomes: &[DownloadOutcome]) -> Vec<(&'static str, &'static str, f64)> {
    let row_of = |case: &'static str| {
        let timed = ["static-limit", "dynamic-limit", "bdp-limit"]
            .into_iter()
            .filter_map(|policy| Some((policy, median_time(outcomes, case, policy)?)));
        let (policy, best) = timed.min_by(|(_, a), (_, b)| a.total_cmp(b))?;
        Some((case, policy, median_time(outcomes, case, "marline")? / best))
    };
    CASES.into_iter().filter_map(row_of).collect()
}

/// Remarks for comparing shares and order with the paper. They do not explain any single difference.
pub(super) const COMPARISON_NOTES: [&str; 3] = [
    "Why they differ is not established. The paper does not state the RTTs: 20 ms (Wi-Fi) and 40 ms (LTE) are chosen here, \
     from its arithmetic example (§4.3.5).",
    "The order of Algorithms 1 to 3 depends on the RTT of LTE: `marline-lab run thesis-rtt --sim` uses 40, 80 and 120 ms. \
     At 80 and 120 ms Algorithm 3 is the first one in 9 of 10 cases, as in the paper; at 40 ms Algorithm 1 in 4 of 5.",
    "Not modelled: LTE's slow build-up after a new connection (§3.1.4, §4.4.3.3), HTTP/2 over TLS, a bandwidth constant found by \
     trial for each scenario (§8.2.2; here 240 Mbit/s for every link).",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::outcome::tests::example_outcome;

    fn outcomes() -> Vec<DownloadOutcome> {
        let times = [26.0, 34.0, 19.0, 18.0, 18.5, 16.5, 15.0];
        let make_outcomes = |run: u32| {
            POLICIES.iter().zip(times).map(move |(policy, s)| example_outcome(policy, run, s + f64::from(run)))
        };
        (0..3).flat_map(make_outcomes).map(|outcome| DownloadOutcome { case: "HS-S7".into(), ..outcome }).collect()
    }

    #[test]
    fn every_artefact_has_a_row_per_policy_and_metric() {
        let paper = ThesisFigures::thesis().unwrap();
        let rows = rows(&paper, &outcomes(), Backend::Lab, 0.1);
        // HS-S7 is not part of figure 5.7.
        assert!(rows.iter().all(|row| row.artefact != "F5.7"));
        for (artefact, metrics) in METRICS.into_iter().filter(|(artefact, _)| *artefact != "F5.7") {
            for (policy, (metric, _)) in POLICIES.iter().flat_map(|p| metrics.iter().map(move |m| (p, m))) {
                let value = paper.value(artefact, "HS-S7", policy, metric);
                let row =
                    rows.iter().find(|r| r.artefact == artefact && r.policy == *policy && r.metric == *metric);
                assert_eq!(row.and_then(|row| row.paper), value, "{artefact} {policy} {metric}");
            }
        }
        let value_of =
            |policy: &str, metric: &str| rows.iter().find(|r| r.policy == policy && r.metric == metric).unwrap();
        let delta = value_of("bdp-limit", "link_delta");
        assert_eq!((delta.artefact.as_str(), delta.paper, delta.measured), ("T5.12", Some(0.5), Some(0.02)));
        assert_eq!((value_of("marline", "time").paper, value_of("marline", "time").measured), (None, Some(16.0)));
        assert_eq!(
            (value_of("naive", "time").spread, value_of("naive", "time").clairvoyant),
            (Some(1.0), Some(5.88))
        );
        assert_eq!(
            (value_of("naive", "sigma_wifi").measured, value_of("naive", "sigma_wifi").spread),
            (Some(0.0), None)
        );
        assert!(rows.iter().all(|row| row.scale == 0.1 && row.backend == Backend::Lab));
        assert!(rows.iter().all(|row| row.measured.is_some() || row.paper.is_some()));
        let note = |metric: &str| value_of("bdp-limit", metric).note.clone().unwrap_or_default();
        assert!(note("energy_main").contains("no prediction") && note("sigma_lte").contains("an input"));
        assert_eq!(delta.clairvoyant, Some(0.0));
    }

    #[test]
    fn shares_are_times_over_single_link_times() {
        let paper = ThesisFigures::thesis().unwrap();
        let shares = shares(&paper, &outcomes());
        assert_eq!(shares.len(), 8);
        let third = shares.iter().find(|s| s.policy == "bdp-limit" && s.single == "single:wifi").unwrap();
        assert!((third.paper - 0.6305).abs() < 1e-3 && (third.measured - 17.5 / 27.0).abs() < 1e-9, "{third:?}");
        let best = time_over_best(&outcomes());
        assert!(
            matches!(best[..], [("HS-S7", "bdp-limit", ratio)] if (ratio - 16.0 / 17.5).abs() < 1e-9),
            "{best:?}"
        );
        let [published, computed_order] = orders(&paper, &outcomes(), "HS-S7");
        assert_eq!(published, ["bdp-limit", "static-limit", "dynamic-limit", "naive"]);
        assert_eq!(computed_order, published);
    }

    #[test]
    fn tables_show_both_figures() {
        let paper = ThesisFigures::thesis().unwrap();
        let rows = rows(&paper, &outcomes(), Backend::Lab, 1.0);
        let table = table_5_12(&rows, "HS-S7");
        assert_eq!(table.rows[5][..4], ["bdp-limit", "16.55 / 17.50", "16.05 / 17.50", "0.50 / 0.02"]);
        assert_eq!(table_of(&rows, "T6.19", "HS-S7").header[0], "policy");
    }
}
