//! Cells to rows: medians of the runs, gains and shares of the ideal within each run, the paper's figures beside.
//!
//! 1. A gain is over plain TCP of the same run and sender; in `F1` over Wi-Fi alone.
//! 2. The ideal is plain TCP without loss and blackouts, times the share of the time without a blackout.
//! 3. Where less than half of a published gain is measured, the row of `gain` says why, according to the sender's TCP_INFO and the links.

use super::config::{FigurePoint, IDEAL, Variant};
use super::energy::{self, ACK_SHARE, DOWNLOAD_MB};
use super::explain::ExplainInput;
use super::measurement::{MeasurementPoint, PointMeasurement, RunResult};
use super::paper::{self, GAIN, IDEAL_PERCENT};
use crate::Congestion;
use crate::accel::outages::availability;
use crate::reproduce::measurement;
use crate::results::{Backend, ResultRow, round_to_thousandths, stats};

/// All that was measured of some cases.
pub(super) struct Results<'a> {
    pub(super) cases: &'a [FigurePoint],
    pub(super) measurements: &'a [PointMeasurement],
    pub(super) senders: &'a [Congestion],
}

/// A metric of a run other than its rate.
type ResultMetric = fn(&RunResult) -> Option<f64>;

/// A run and its figures.
type NumberedRun<'a> = (u32, &'a RunResult);

impl Results<'_> {
    /// The rows, artefact by artefact.
    pub(super) fn rows(&self) -> Vec<ResultRow> {
        let mut rows = Vec::new();
        for case in self.cases {
            for sender in self.senders {
                for variant in &case.variants {
                    rows.extend(self.rows_of(case, *sender, variant));
                }
            }
        }
        rows.extend(self.energy());
        rows.iter_mut().for_each(|row| row.backend = Backend::Lab);
        rows
    }

    /// The successful runs of a variant, in their order.
    fn good_runs(&self, case: &FigurePoint, sender: Congestion, variant: &Variant) -> Vec<NumberedRun<'_>> {
        let max = self.measurements.iter().map(|cell| cell.id.run + 1).max().unwrap_or(0);
        let value_of = |run| {
            Some((
                run,
                measurement::latest_values(self.measurements, &MeasurementPoint::new(case, variant, sender, run))
                    .ok()?,
            ))
        };
        (0..max).filter_map(value_of).collect()
    }

    fn rows_of(&self, case: &FigurePoint, sender: Congestion, variant: &Variant) -> Vec<ResultRow> {
        let cells = self.good_runs(case, sender, variant);
        if cells.is_empty() {
            return Vec::new();
        }
        let policy = format!("{sender} {}", variant.name);
        let row = |metric: &str, unit: &str, values: &[f64]| ResultRow {
            paper: paper::paper_value(case.artefact, &case.name, variant.name, metric).map(|(value, _)| value),
            measured: stats::median(values).map(round_to_thousandths),
            spread: stats::std_dev(values).map(round_to_thousandths),
            ..ResultRow::empty(case.artefact, &case.name, &policy, metric, unit)
        };
        let each = |figure: ResultMetric| cells.iter().filter_map(|(_, cell)| figure(cell)).collect::<Vec<f64>>();
        let mut rows =
            vec![ResultRow { note: activity_note(&cells), ..row("rate", "Mbit/s", &each(|cell| Some(cell.mbps))) }];
        let gains = self.ratios(case, sender, &cells, baseline_variant(case));
        if !gains.is_empty() && variant.name != IDEAL && Some(variant.name) != baseline_variant(case) {
            let gain: Vec<f64> = gains.iter().map(|ratio| (ratio - 1.0) * 100.0).collect();
            let mut row = row(GAIN, "%", &gain);
            row.note = self.gain_note(case, sender, (variant, &cells), &row);
            rows.push(row);
        }
        let of_ideal = self.ideal_percent(case, sender, &cells);
        if !of_ideal.is_empty() && variant.name != IDEAL {
            rows.push(row(IDEAL_PERCENT, "%", &of_ideal));
        }
        for (metric, figure) in [
            ("until bytes come again", (|cell| cell.resumed_s) as ResultMetric),
            ("least ssthresh", |cell| Some(f64::from(cell.tcp_info.as_ref()?.min_ssthresh?))),
            ("most backoff", |cell| Some(f64::from(cell.tcp_info.as_ref()?.max_backoff))),
        ] {
            let values = each(figure);
            if cells.iter().any(|(_, cell)| cell.resumed_s.is_some()) && !values.is_empty() {
                rows.push(row(metric, if metric.starts_with("until") { "s" } else { "" }, &values));
            }
        }
        for (at, pair) in case.part_bounds.windows(2).enumerate() {
            let rates: Vec<f64> = cells.iter().filter_map(|(_, cell)| cell.part_mbps.get(at).copied()).collect();
            let metric = format!("{} to {} s", pair[0].as_secs(), pair[1].as_secs());
            rows.push(row(&metric, "Mbit/s", &rates));
        }
        rows
    }

    /// Each cell's rate divided by that of another variant in the same run.
    fn ratios(
        &self,
        case: &FigurePoint,
        sender: Congestion,
        cells: &[NumberedRun<'_>],
        variant: Option<&str>,
    ) -> Vec<f64> {
        let Some(variant) = case.variants.iter().find(|other| Some(other.name) == variant) else {
            return Vec::new();
        };
        let others = self.good_runs(case, sender, variant);
        let ratio = |(run, cell): &NumberedRun<'_>| {
            let (_, other) = others.iter().find(|(same, other)| same == run && other.mbps > 0.0)?;
            Some(cell.mbps / other.mbps)
        };
        cells.iter().filter_map(ratio).collect()
    }

    fn ideal_percent(&self, case: &FigurePoint, sender: Congestion, cells: &[NumberedRun<'_>]) -> Vec<f64> {
        let Some(variant) = case.variants.iter().find(|candidate| candidate.name == IDEAL) else {
            return Vec::new();
        };
        let ideals = self.good_runs(case, sender, variant);
        let share = |(run, cell): &NumberedRun<'_>| {
            let (_, ideal) = ideals.iter().find(|(same, ideal)| same == run && ideal.mbps > 0.0)?;
            let available_share = availability(&case.outages(*run), case.counted_from, case.length).as_f64();
            Some(cell.mbps / (ideal.mbps * available_share).max(1e-9) * 100.0)
        };
        cells.iter().filter_map(share).collect()
    }

    /// What must be known to compare a gain with the paper's.
    fn gain_note(
        &self,
        case: &FigurePoint,
        sender: Congestion,
        (row_variant, cells): (&Variant, &[NumberedRun<'_>]),
        row: &ResultRow,
    ) -> Option<String> {
        let (paper, section) = paper::paper_value(case.artefact, &case.name, row_variant.name, GAIN)?;
        let plain = case.variants.iter().find(|variant| variant.name == "plain");
        let plain = plain.map(|variant| self.good_runs(case, sender, variant)).unwrap_or_default();
        let share = stats::median(&self.ideal_percent(case, sender, &plain));
        let input = ExplainInput {
            sender,
            case,
            variant: row_variant,
            results: &figures(cells),
            plain_results: &figures(&plain),
            plain_ideal_percent: share,
        };
        let reason = (row.measured? < paper / 2.0).then(|| input.explanation()).flatten();
        Some(format!("{section}{}", reason.map(|why| format!("; {why}")).unwrap_or_default()))
    }

    /// §8's account of 10 MB, with the rates of the 802.11g cell.
    fn energy(&self) -> Vec<ResultRow> {
        let rate = |artefact: &str, name: &str, sender: Congestion, variant: &str| {
            let case = self.cases.iter().find(|case| case.artefact == artefact && case.name == name)?;
            let variant = case.variants.iter().find(|other| other.name == variant)?;
            let rates: Vec<f64> = self.good_runs(case, sender, variant).iter().map(|(_, cell)| cell.mbps).collect();
            stats::median(&rates)
        };
        let mut rows = Vec::new();
        for sender in self.senders {
            let offload = |variant| rate("F5", "11g-mixed, 50ms", *sender, variant);
            let aggregated = |variant| rate("F1", "11g-mixed", *sender, variant);
            let both = aggregated("both").zip(aggregated("cell")).map(|(both, cell)| (both, cell / both));
            let acks = DOWNLOAD_MB * ACK_SHARE;
            let sums = [
                (
                    "plain",
                    Some(65.82),
                    offload("plain").map(|mbps| energy::download_energy(DOWNLOAD_MB, 0.0, mbps)),
                ),
                (
                    "paper",
                    Some(65.69),
                    offload("paper").map(|mbps| energy::download_energy(DOWNLOAD_MB, acks, mbps)),
                ),
                ("ours", None, offload("ours").map(|mbps| energy::download_energy(DOWNLOAD_MB, acks, mbps))),
                (
                    "both",
                    Some(79.51),
                    both.map(|(mbps, share)| {
                        energy::download_energy(DOWNLOAD_MB * (1.0 - share), DOWNLOAD_MB * share, mbps)
                    }),
                ),
            ];
            for (variant, paper, measured) in sums.into_iter().filter(|(.., value)| value.is_some()) {
                let note = "circular: its three parameters are solved from these three sums; rates of F1 and F5"
                    .to_owned();
                let empty = ResultRow::empty("S8", "10 MB, 802.11g", &format!("{sender} {variant}"), "energy", "J");
                rows.push(ResultRow {
                    paper,
                    measured: measured.map(round_to_thousandths),
                    note: Some(note),
                    ..empty
                });
            }
        }
        rows
    }
}

/// The variant that gains are relative to.
fn baseline_variant(case: &FigurePoint) -> Option<&'static str> {
    let known = if case.artefact == "F1" { "wifi" } else { "plain" };
    case.variants.iter().map(|variant| variant.name).find(|name| *name == known)
}

fn figures<'a>(cells: &[NumberedRun<'a>]) -> Vec<&'a RunResult> {
    cells.iter().map(|(_, cell)| *cell).collect()
}

/// What the accelerator did, if it took part.
fn activity_note(cells: &[NumberedRun<'_>]) -> Option<String> {
    let cells = figures(cells);
    let mut names: Vec<&str> = cells.iter().flat_map(|cell| cell.active.iter().map(String::as_str)).collect();
    names.sort_unstable();
    names.dedup();
    let suspect = cells.iter().filter(|cell| cell.unreliable_reason.is_some()).count();
    let alone =
        cells.iter().find_map(|cell| cell.inactive_reason.as_ref().map(|reason| format!("inactive: {reason}")));
    let parts = [
        (!names.is_empty()).then(|| format!("active: {}", names.join(", "))),
        alone,
        (suspect > 0).then(|| format!("{suspect} of {} runs suspect", cells.len())),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

#[cfg(test)]
mod tests {
    use super::super::config::cases;
    use super::*;

    fn measured(case: &FigurePoint, variant: usize, run: u32, mbps: f64) -> PointMeasurement {
        PointMeasurement::new(
            MeasurementPoint::new(case, &case.variants[variant], Congestion::Cubic, run),
            Ok(RunResult { mbps, ..RunResult::default() }),
        )
    }

    fn find<'a>(rows: &'a [ResultRow], policy: &str, metric: &str) -> &'a ResultRow {
        rows.iter().find(|row| row.policy == policy && row.metric == metric).unwrap()
    }

    #[test]
    fn gains_are_within_a_run_and_the_ideal_is_what_is_there() {
        let all = cases("F6");
        let case = all.iter().find(|case| case.name == "2s, 50ms").unwrap();
        let mut cells = Vec::new();
        for (run, factor) in [(0, 1.0), (1, 2.0), (2, 3.0)] {
            for (variant, mbps) in [(0, 10.0), (1, 9.0), (2, 12.0), (3, 16.0)] {
                cells.push(measured(case, variant, run, mbps * factor));
            }
        }
        let results = Results { cases: &all, measurements: &cells, senders: &[Congestion::Cubic, Congestion::Bbr] };
        let rows = results.rows();
        let gain = find(&rows, "cubic paper", GAIN);
        assert_eq!((gain.paper, gain.measured), (Some(87.0), Some(-10.0)));
        assert!(gain.note.as_ref().unwrap().starts_with("§6.4"));
        assert_eq!(find(&rows, "cubic ours", GAIN).measured, Some(20.0));
        let shares: Vec<f64> = (0..3)
            .map(|run| {
                100.0 * 10.0 / 16.0 / availability(&case.outages(run), case.counted_from, case.length).as_f64()
            })
            .collect();
        let measured = find(&rows, "cubic plain", IDEAL_PERCENT).measured.unwrap();
        assert!((measured - stats::median(&shares).unwrap()).abs() < 0.01, "{measured} {shares:?}");
        assert!(rows.iter().all(|row| !row.policy.starts_with("bbr")));
    }

    #[test]
    fn a_cell_that_failed_is_no_figure() {
        let all = cases("F5");
        let mut cells = vec![measured(&all[0], 0, 0, 14.0), measured(&all[0], 1, 0, 17.0)];
        cells.push(PointMeasurement { problem: Some("gone".into()), ..measured(&all[0], 2, 0, 3.0) });
        // One that was suspect was done again: the last one counts.
        cells.insert(0, measured(&all[0], 1, 0, 3.0));
        let rows = Results { cases: &all, measurements: &cells, senders: &[Congestion::Cubic] }.rows();
        assert!(rows.iter().all(|row| !row.policy.ends_with("ours")));
        assert!((find(&rows, "cubic paper", GAIN).measured.unwrap() - 21.429).abs() < 1e-3);
        assert!((find(&rows, "cubic plain", "energy").measured.unwrap() - 59.254).abs() < 0.01);
    }
}
