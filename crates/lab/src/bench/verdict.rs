//! Verdicts: whether marline met the thresholds of a scenario, compared with the best other client of the same
//! runs.
//!
//! Besides a scenario's own threshold, two general ones apply. In a case with steady links and a file of at least 100 MB, the times at
//! which the links end may differ by at most 0.06 s. In every case, waste may be at most 1 % of the file from 100 MB up, otherwise one
//! bandwidth-delay product of the links.

use marline_sim::scenario::{Case, Scenario, Threshold};
use marline_sim::spec::Downlink;
use serde::Serialize;

use crate::html_report::Table;
use crate::results::{DownloadOutcome, stats};
use crate::runner::summary::{ClientOutcomes, groups};

/// One threshold and the measured value.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Verdict {
    pub(super) case: String,
    pub(super) metric: String,
    /// Largest permitted value.
    pub(super) threshold: f64,
    /// Value of marline, if there is a run.
    pub(super) marline: Option<f64>,
    /// Value and name of the best other client.
    pub(super) best_other: Option<(f64, String)>,
    /// Number of runs of marline that were evaluated; for a verdict over all pairs, the number of pairs.
    pub(super) runs: usize,
    /// How many of them are unreliable.
    pub(super) unreliable_runs: usize,
}

impl Verdict {
    fn as_text(&self) -> &'static str {
        match self.marline {
            None => "no run",
            Some(value) if value <= self.threshold + 1e-9 => "met",
            Some(_) => "missed",
        }
    }
}

/// Largest permitted time between the ends of the links in a steady case, in seconds.
const MAX_LINK_DELTA_S: f64 = 0.06;
/// Largest permitted waste, as a share of a file of 100 MB or more.
const MAX_WASTE: f64 = 0.01;

/// All verdicts of a scenario.
pub(super) fn verdicts(scenario: &Scenario, outcomes: &[DownloadOutcome]) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    let mut ratios: Vec<(f64, String)> = Vec::new();
    let mut paired_threshold = None;
    for case in &scenario.cases {
        let groups = groups(scenario, &case.name, outcomes);
        let Some(marline) = groups.iter().find(|group| group.client == "marline") else { continue };
        match case.threshold {
            Some(Threshold::TimesAria2 { median, worst }) => {
                paired_threshold = Some((median, worst));
                let best = best(&groups, |name| name.starts_with("aria2"), ClientOutcomes::seconds);
                if let (Some(seconds), Some((best_seconds, name))) = (marline.seconds(), best) {
                    ratios.push((seconds / best_seconds, format!("{} ({name})", case.name)));
                }
            }
            Some(threshold) => verdicts.push(case_verdict(case, threshold, marline, &groups)),
            None => {}
        }
        verdicts.extend(common_verdicts(case, marline, &groups));
    }
    if let Some((median, worst)) = paired_threshold {
        verdicts.extend(paired_verdicts(scenario, &ratios, median, worst));
    }
    verdicts.extend(order_verdicts(scenario, outcomes));
    verdicts
}

/// The verdict on the case's own threshold.
fn case_verdict(
    case: &Case,
    threshold: Threshold,
    marline: &ClientOutcomes<'_>,
    groups: &[ClientOutcomes<'_>],
) -> Verdict {
    let curl_seconds = groups.iter().find(|group| group.client == "curl").and_then(ClientOutcomes::seconds);
    let best_other = |figure: &dyn Fn(&ClientOutcomes<'_>) -> Option<f64>| best(groups, is_other_client, figure);
    let ratio = |group: &ClientOutcomes<'_>| group.median(DownloadOutcome::ratio);
    let memory = |group: &ClientOutcomes<'_>| {
        let peak_rss = group.complete().filter_map(|outcome| outcome.peak_rss_bytes).max();
        peak_rss.map(|bytes| bytes as f64 / 1e6)
    };
    match threshold {
        Threshold::TimesIdeal(bound) => {
            new_verdict(case, "time ÷ ideal", bound, ratio(marline), best_other(&ratio), marline)
        }
        Threshold::MaxRss(bound) => {
            let bound = bound.bytes() as f64 / 1e6;
            new_verdict(case, "RSS MB", bound, memory(marline), best_other(&memory), marline)
        }
        Threshold::TimesCurl { factor, extra_time, max_time } => {
            let bound = curl_seconds.map_or(0.0, |curl| curl * factor + extra_time.as_secs_f64());
            let bound = max_time.map_or(bound, |most| bound.min(most.as_secs_f64()));
            new_verdict(
                case,
                "time s",
                bound,
                marline.seconds(),
                curl_seconds.map(|curl| (curl, "curl".into())),
                marline,
            )
        }
        Threshold::TimesAria2 { .. } => unreachable!("judged over all cases"),
    }
}

/// The verdicts on the thresholds that apply to every case.
fn common_verdicts(case: &Case, marline: &ClientOutcomes<'_>, groups: &[ClientOutcomes<'_>]) -> Vec<Verdict> {
    let is_steady = case.events.is_empty()
        && case.links.iter().all(|link| matches!(&link.downlink, Downlink::Rate { steps, .. } if steps.is_empty()));
    let wasted = |group: &ClientOutcomes<'_>| group.median(|o| o.wasted_bytes.map(|bytes| bytes as f64 / 1000.0));
    let delta = |group: &ClientOutcomes<'_>| group.median(|outcome| outcome.link_delta_s);
    let is_large = case.size.bytes() >= 100_000_000;
    let bdp_bytes: u64 = case.links.iter().map(|link| (nominal_rate(&link.downlink) * link.rtt).bytes()).sum();
    let bound = if is_large { case.size.bytes() as f64 * MAX_WASTE } else { bdp_bytes as f64 } / 1000.0;
    let mut verdicts = Vec::new();
    if is_steady && is_large {
        let best_other = best(groups, |name| name.starts_with("aria2"), delta);
        verdicts.push(new_verdict(case, "link Δ s", MAX_LINK_DELTA_S, delta(marline), best_other, marline));
    }
    let best_other = best(groups, |name| name.starts_with("aria2"), wasted);
    verdicts.push(new_verdict(case, "wasted kB", bound, wasted(marline), best_other, marline));
    verdicts
}

fn nominal_rate(downlink: &Downlink) -> marline_core::units::Bitrate {
    match downlink {
        Downlink::Rate { initial: first, .. } => *first,
        Downlink::Trace(file) => file.trace.as_ref().map_or_else(Default::default, |trace| trace.mean_rate()),
        Downlink::Wifi { phy, .. } => phy.unwrap_or_default(),
    }
}

/// The verdicts on the ratio to the best aria2 setting, over all pairs: median and worst.
fn paired_verdicts(scenario: &Scenario, ratios: &[(f64, String)], median: f64, worst: f64) -> [Verdict; 2] {
    let values: Vec<f64> = ratios.iter().map(|(ratio, _)| *ratio).collect();
    let largest = ratios.iter().max_by(|a, b| a.0.total_cmp(&b.0));
    let verdict = |metric: &str, threshold: f64, marline: Option<f64>, best_other: Option<(f64, String)>| Verdict {
        case: scenario.name.clone(),
        metric: metric.into(),
        threshold,
        marline,
        best_other,
        runs: ratios.len(),
        unreliable_runs: 0,
    };
    [
        verdict("time ÷ best aria2, median of pairs", median, stats::median(&values), None),
        verdict(
            "time ÷ best aria2, worst pair",
            worst,
            largest.map(|(ratio, _)| *ratio),
            largest.map(|(_, name)| (1.0, name.clone())),
        ),
    ]
}

/// Compares the cases `x` and `x-swapped`: the difference of their medians in percent may be at most the larger spread of the two, or half
/// a percent.
fn order_verdicts(scenario: &Scenario, outcomes: &[DownloadOutcome]) -> Vec<Verdict> {
    let times = |case: &str| -> Vec<f64> {
        outcomes
            .iter()
            .filter(|o| o.case == case && o.client == "marline" && o.is_complete())
            .map(|o| o.seconds)
            .collect()
    };
    let mut verdicts = Vec::new();
    for case in &scenario.cases {
        let swapped = format!("{}-swapped", case.name);
        if scenario.case(&swapped).is_none() {
            continue;
        }
        let (original, swapped_times) = (times(&case.name), times(&swapped));
        let difference_percent = stats::median(&original)
            .zip(stats::median(&swapped_times))
            .map(|(a, b)| (a - b).abs() / a.min(b) * 100.0);
        let spread = |times: &[f64]| stats::range(times).map_or(0.0, |(min, max)| (max - min) / min * 100.0);
        verdicts.push(Verdict {
            case: case.name.clone(),
            metric: "order of links: % between medians".into(),
            // At most the spread of the runs; half a percent is always permitted, because it is not noticeable.
            threshold: spread(&original).max(spread(&swapped_times)).max(0.5),
            marline: difference_percent,
            best_other: None,
            runs: original.len() + swapped_times.len(),
            unreliable_runs: 0,
        });
    }
    verdicts
}

fn new_verdict(
    case: &Case,
    metric: &str,
    threshold: f64,
    marline: Option<f64>,
    best_other: Option<(f64, String)>,
    group: &ClientOutcomes<'_>,
) -> Verdict {
    let (runs, unreliable_runs) = (group.complete().count(), group.unreliable().map_or(0, |(n, _)| n));
    Verdict {
        case: case.name.clone(),
        metric: metric.into(),
        threshold,
        marline,
        best_other,
        runs,
        unreliable_runs,
    }
}

fn is_other_client(name: &str) -> bool {
    name.starts_with("aria2") || name.starts_with("curl")
}

/// The smallest figure of the matching clients, and the client's name.
fn best<'a>(
    groups: &[ClientOutcomes<'a>],
    is_candidate: impl Fn(&str) -> bool,
    figure: impl Fn(&ClientOutcomes<'a>) -> Option<f64>,
) -> Option<(f64, String)> {
    let all = groups.iter().filter(|group| is_candidate(group.client));
    all.filter_map(|group| Some((figure(group)?, group.client.to_string()))).min_by(|a, b| a.0.total_cmp(&b.0))
}

/// All verdicts as one table.
pub(super) fn table(verdicts: &[Verdict]) -> Table {
    let number = |value: f64| if value.abs() < 100.0 { format!("{value:.3}") } else { format!("{value:.0}") };
    let row = |verdict: &Verdict| {
        vec![
            verdict.case.clone(),
            verdict.metric.clone(),
            verdict.best_other.as_ref().map_or("–".into(), |(value, name)| format!("{} {name}", number(*value))),
            verdict.marline.map_or("–".into(), number),
            format!("≤ {}", number(verdict.threshold)),
            verdict.as_text().to_string(),
            if verdict.unreliable_runs > 0 {
                format!("{} of {} suspect", verdict.unreliable_runs, verdict.runs)
            } else {
                verdict.runs.to_string()
            },
        ]
    };
    Table {
        header: ["case", "what", "best other", "marline", "floor", "verdict", "runs"].map(str::to_owned).to_vec(),
        rows: verdicts.iter().map(row).collect(),
        note: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::outcome::tests::example_outcome;
    use crate::scenarios;

    fn runs(case: &str, client: &str, seconds: &[f64]) -> Vec<DownloadOutcome> {
        let make_outcome = |(run, s): (usize, &f64)| DownloadOutcome {
            case: case.into(),
            ..example_outcome(client, run as u32, *s)
        };
        seconds.iter().enumerate().map(make_outcome).collect()
    }

    #[test]
    fn the_median_decides_whether_a_threshold_is_met() {
        let scenario = scenarios::load("floor-a").unwrap();
        let mut outcomes = runs("floor-a", "marline", &[6.0, 6.5, 6.1]);
        outcomes.extend(runs("floor-a", "aria2-s2", &[6.24, 6.24, 6.24]));
        let found = verdicts(&scenario, &outcomes);
        assert_eq!(
            found.iter().map(|v| v.metric.as_str()).collect::<Vec<_>>(),
            ["time ÷ ideal", "link Δ s", "wasted kB"]
        );
        assert_eq!(found.iter().map(Verdict::as_text).collect::<Vec<_>>(), ["met", "met", "met"]);
        assert_eq!(found[0].best_other.as_ref().unwrap().1, "aria2-s2");
        let slow = verdicts(&scenario, &runs("floor-a", "marline", &[6.3]));
        assert_eq!(slow[0].as_text(), "missed");
        assert!(verdicts(&scenario, &[]).is_empty());
    }

    #[test]
    fn pairs_are_judged_together() {
        let scenario = scenarios::load("pairs").unwrap();
        let (one, two) = (&scenario.cases[0].name, &scenario.cases[1].name);
        let mut outcomes = runs(one, "marline", &[10.0]);
        outcomes.extend(runs(one, "aria2-s2", &[10.1]));
        outcomes.extend(runs(one, "aria2-s16", &[12.0]));
        outcomes.extend(runs(two, "marline", &[10.2]));
        outcomes.extend(runs(two, "aria2-s2", &[10.0]));
        let all = verdicts(&scenario, &outcomes);
        let [.., median, worst] = all.as_slice() else { panic!("{all:?}") };
        assert_eq!(median.as_text(), "missed");
        assert!((median.marline.unwrap() - (10.0 / 10.1 + 1.02) / 2.0).abs() < 1e-9);
        assert!((worst.marline.unwrap() - 1.02).abs() < 1e-9 && worst.as_text() == "missed");
    }

    #[test]
    fn small_files_are_compared_with_curl_and_the_fixed_bound() {
        let scenario = scenarios::load("floor-small").unwrap();
        let mut outcomes = runs("a-10KB", "marline", &[0.055]);
        outcomes.extend(runs("a-10KB", "curl", &[0.054]));
        outcomes.extend(runs("a-5MB", "marline", &[0.57]));
        outcomes.extend(runs("a-5MB", "curl", &[0.63]));
        let verdicts = verdicts(&scenario, &outcomes);
        let verdict_of = |case: &str| verdicts.iter().find(|v| v.case == case && v.metric == "time s").unwrap();
        assert_eq!((verdict_of("a-10KB").as_text(), verdict_of("a-5MB").as_text()), ("met", "missed"));
    }

    #[test]
    fn the_order_of_links_matters_only_beyond_the_spread() {
        let scenario = scenarios::load("floor-order").unwrap();
        let mut outcomes = runs("a", "marline", &[6.00, 6.02]);
        outcomes.extend(runs("a-swapped", "marline", &[6.01, 6.03]));
        outcomes.extend(runs("d", "marline", &[15.0, 15.01]));
        outcomes.extend(runs("d-swapped", "marline", &[16.0, 16.01]));
        let verdicts = verdicts(&scenario, &outcomes);
        let verdict_of =
            |case: &str| verdicts.iter().find(|v| v.case == case && v.metric.starts_with("order")).unwrap();
        assert_eq!((verdict_of("a").as_text(), verdict_of("d").as_text()), ("met", "missed"));
        assert!(table(&verdicts).to_text().contains("order of links"));
    }
}
