//! Cells to rows: medians of the runs, gains and shares of the ideal within each run, the paper's figures beside.
//!
//! 1. A gain is over plain TCP of the same run and sender; in `F1` over Wi-Fi alone.
//! 2. The ideal is plain TCP without trouble, times the share of the time in which the link was there.
//! 3. Where a published gain does not come back, the row of `gain` says why, by what the sender's TCP_INFO showed.

use super::cell::{Cell, Measured, Point};
use super::energy::{self, ACK_SHARE, DOWNLOAD};
use super::paper::{self, GAIN, OF_IDEAL};
use super::reason::Told;
use super::setting::{Case, IDEAL, Way};
use crate::Congestion;
use crate::accel::outages::availability;
use crate::evidence::{By, Row, stats, thousandths};
use crate::reproduce::cell;

/// All that was measured of some cases.
pub(super) struct Results<'a> {
    pub(super) cases: &'a [Case],
    pub(super) cells: &'a [Cell],
    pub(super) senders: &'a [Congestion],
}

/// What is told of a cell beside its rate.
type Figure = fn(&Measured) -> Option<f64>;

/// A run and its figures.
type Run<'a> = (u32, &'a Measured);

impl Results<'_> {
    /// The rows, artefact by artefact.
    pub(super) fn rows(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        for case in self.cases {
            for sender in self.senders {
                for way in &case.ways {
                    rows.extend(self.of(case, *sender, way));
                }
            }
        }
        rows.extend(self.energy());
        rows.iter_mut().for_each(|row| row.by = By::Lab);
        rows
    }

    /// What one way brought, in the order of its runs.
    fn good(&self, case: &Case, sender: Congestion, way: &Way) -> Vec<Run<'_>> {
        let most = self.cells.iter().map(|cell| cell.name.run + 1).max().unwrap_or(0);
        let of = |run| Some((run, cell::measured(self.cells, &Point::of(case, way, sender, run)).ok()?));
        (0..most).filter_map(of).collect()
    }

    fn of(&self, case: &Case, sender: Congestion, way: &Way) -> Vec<Row> {
        let cells = self.good(case, sender, way);
        if cells.is_empty() {
            return Vec::new();
        }
        let policy = format!("{sender} {}", way.name);
        let row = |metric: &str, unit: &str, values: &[f64]| Row {
            paper: paper::of(case.artefact, &case.name, way.name, metric).map(|(value, _)| value),
            ours: stats::median(values).map(thousandths),
            spread: stats::sigma(values).map(thousandths),
            ..Row::empty(case.artefact, &case.name, &policy, metric, unit)
        };
        let each = |figure: Figure| cells.iter().filter_map(|(_, cell)| figure(cell)).collect::<Vec<f64>>();
        let mut rows = vec![Row { note: did(&cells), ..row("rate", "Mbit/s", &each(|cell| Some(cell.mbps))) }];
        let gains = self.ratios(case, sender, &cells, baseline(case));
        if !gains.is_empty() && way.name != IDEAL && Some(way.name) != baseline(case) {
            let gain: Vec<f64> = gains.iter().map(|ratio| (ratio - 1.0) * 100.0).collect();
            let mut row = row(GAIN, "%", &gain);
            row.note = self.why(case, sender, (way, &cells), &row);
            rows.push(row);
        }
        let of_ideal = self.of_ideal(case, sender, &cells);
        if !of_ideal.is_empty() && way.name != IDEAL {
            rows.push(row(OF_IDEAL, "%", &of_ideal));
        }
        for (metric, figure) in [
            ("until bytes come again", (|cell| cell.resumed_s) as Figure),
            ("least ssthresh", |cell| Some(f64::from(cell.tcp.as_ref()?.least_ssthresh?))),
            ("most backoff", |cell| Some(f64::from(cell.tcp.as_ref()?.most_backoff))),
        ] {
            let values = each(figure);
            if cells.iter().any(|(_, cell)| cell.resumed_s.is_some()) && !values.is_empty() {
                rows.push(row(metric, if metric.starts_with("until") { "s" } else { "" }, &values));
            }
        }
        for (at, pair) in case.parts.windows(2).enumerate() {
            let rates: Vec<f64> = cells.iter().filter_map(|(_, cell)| cell.parts.get(at).copied()).collect();
            let metric = format!("{} to {} s", pair[0].as_secs(), pair[1].as_secs());
            rows.push(row(&metric, "Mbit/s", &rates));
        }
        rows
    }

    /// Each cell's rate over that of another way in the same run.
    fn ratios(&self, case: &Case, sender: Congestion, cells: &[Run<'_>], way: Option<&str>) -> Vec<f64> {
        let Some(way) = case.ways.iter().find(|other| Some(other.name) == way) else { return Vec::new() };
        let others = self.good(case, sender, way);
        let ratio = |(run, cell): &Run<'_>| {
            let (_, other) = others.iter().find(|(same, other)| same == run && other.mbps > 0.0)?;
            Some(cell.mbps / other.mbps)
        };
        cells.iter().filter_map(ratio).collect()
    }

    /// In percent.
    fn of_ideal(&self, case: &Case, sender: Congestion, cells: &[Run<'_>]) -> Vec<f64> {
        let Some(way) = case.ways.iter().find(|way| way.name == IDEAL) else { return Vec::new() };
        let ideals = self.good(case, sender, way);
        let share = |(run, cell): &Run<'_>| {
            let (_, ideal) = ideals.iter().find(|(same, ideal)| same == run && ideal.mbps > 0.0)?;
            let there = availability(&case.outages(*run), case.from, case.length).as_f64();
            Some(cell.mbps / (ideal.mbps * there).max(1e-9) * 100.0)
        };
        cells.iter().filter_map(share).collect()
    }

    /// What must be known to compare a gain with the paper's.
    fn why(&self, case: &Case, sender: Congestion, (way, cells): (&Way, &[Run<'_>]), row: &Row) -> Option<String> {
        let (paper, section) = paper::of(case.artefact, &case.name, way.name, GAIN)?;
        let plain = case.ways.iter().find(|way| way.name == "plain");
        let plain = plain.map(|way| self.good(case, sender, way)).unwrap_or_default();
        let share = stats::median(&self.of_ideal(case, sender, &plain));
        let told = Told { sender, case, way, cells: &figures(cells), plain: &figures(&plain), share };
        let why = (row.ours? < paper / 2.0).then(|| told.why()).flatten();
        Some(format!("{section}{}", why.map(|why| format!("; {why}")).unwrap_or_default()))
    }

    /// §8's account of 10 MB, with the rates of the 802.11g cell.
    fn energy(&self) -> Vec<Row> {
        let rate = |artefact: &str, name: &str, sender: Congestion, way: &str| {
            let case = self.cases.iter().find(|case| case.artefact == artefact && case.name == name)?;
            let way = case.ways.iter().find(|other| other.name == way)?;
            let rates: Vec<f64> = self.good(case, sender, way).iter().map(|(_, cell)| cell.mbps).collect();
            stats::median(&rates)
        };
        let mut rows = Vec::new();
        for sender in self.senders {
            let offload = |way| rate("F5", "11g-mixed, 50ms", *sender, way);
            let aggregated = |way| rate("F1", "11g-mixed", *sender, way);
            let both = aggregated("both").zip(aggregated("cell")).map(|(both, cell)| (both, cell / both));
            let acks = DOWNLOAD * ACK_SHARE;
            let sums = [
                ("plain", Some(65.82), offload("plain").map(|mbps| energy::joules(DOWNLOAD, 0.0, mbps))),
                ("paper", Some(65.69), offload("paper").map(|mbps| energy::joules(DOWNLOAD, acks, mbps))),
                ("ours", None, offload("ours").map(|mbps| energy::joules(DOWNLOAD, acks, mbps))),
                (
                    "both",
                    Some(79.51),
                    both.map(|(mbps, share)| energy::joules(DOWNLOAD * (1.0 - share), DOWNLOAD * share, mbps)),
                ),
            ];
            for (way, paper, ours) in sums.into_iter().filter(|(.., ours)| ours.is_some()) {
                let note = "circular: its three parameters are solved from these three sums; rates of F1 and F5"
                    .to_owned();
                let empty = Row::empty("S8", "10 MB, 802.11g", &format!("{sender} {way}"), "energy", "J");
                rows.push(Row { paper, ours: ours.map(thousandths), note: Some(note), ..empty });
            }
        }
        rows
    }
}

/// Whose rate gains are over.
fn baseline(case: &Case) -> Option<&'static str> {
    let known = if case.artefact == "F1" { "wifi" } else { "plain" };
    case.ways.iter().map(|way| way.name).find(|name| *name == known)
}

fn figures<'a>(cells: &[Run<'a>]) -> Vec<&'a Measured> {
    cells.iter().map(|(_, cell)| *cell).collect()
}

/// What the accelerator did, if it took part.
fn did(cells: &[Run<'_>]) -> Option<String> {
    let cells = figures(cells);
    let mut words: Vec<&str> = cells.iter().flat_map(|cell| cell.active.iter().map(String::as_str)).collect();
    words.sort_unstable();
    words.dedup();
    let suspect = cells.iter().filter(|cell| cell.suspect.is_some()).count();
    let alone = cells.iter().find_map(|cell| cell.inactive_reason.as_ref().map(|why| format!("inactive: {why}")));
    let parts = [
        (!words.is_empty()).then(|| format!("active: {}", words.join(", "))),
        alone,
        (suspect > 0).then(|| format!("{suspect} of {} runs suspect", cells.len())),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

#[cfg(test)]
mod tests {
    use super::super::setting::cases;
    use super::*;

    fn measured(case: &Case, way: usize, run: u32, mbps: f64) -> Cell {
        Cell::new(
            Point::of(case, &case.ways[way], Congestion::Cubic, run),
            Ok(Measured { mbps, ..Measured::default() }),
        )
    }

    fn find<'a>(rows: &'a [Row], policy: &str, metric: &str) -> &'a Row {
        rows.iter().find(|row| row.policy == policy && row.metric == metric).unwrap()
    }

    #[test]
    fn gains_are_within_a_run_and_the_ideal_is_what_is_there() {
        let all = cases("F6");
        let case = all.iter().find(|case| case.name == "2s, 50ms").unwrap();
        let mut cells = Vec::new();
        for (run, factor) in [(0, 1.0), (1, 2.0), (2, 3.0)] {
            for (way, mbps) in [(0, 10.0), (1, 9.0), (2, 12.0), (3, 16.0)] {
                cells.push(measured(case, way, run, mbps * factor));
            }
        }
        let results = Results { cases: &all, cells: &cells, senders: &[Congestion::Cubic, Congestion::Bbr] };
        let rows = results.rows();
        let gain = find(&rows, "cubic paper", GAIN);
        assert_eq!((gain.paper, gain.ours), (Some(87.0), Some(-10.0)));
        assert!(gain.note.as_ref().unwrap().starts_with("§6.4"));
        assert_eq!(find(&rows, "cubic ours", GAIN).ours, Some(20.0));
        let shares: Vec<f64> = (0..3)
            .map(|run| 100.0 * 10.0 / 16.0 / availability(&case.outages(run), case.from, case.length).as_f64())
            .collect();
        let ours = find(&rows, "cubic plain", OF_IDEAL).ours.unwrap();
        assert!((ours - stats::median(&shares).unwrap()).abs() < 0.01, "{ours} {shares:?}");
        assert!(rows.iter().all(|row| !row.policy.starts_with("bbr")));
    }

    #[test]
    fn a_cell_that_failed_is_no_figure() {
        let all = cases("F5");
        let mut cells = vec![measured(&all[0], 0, 0, 14.0), measured(&all[0], 1, 0, 17.0)];
        cells.push(Cell { problem: Some("gone".into()), ..measured(&all[0], 2, 0, 3.0) });
        // One that was suspect was done again: the last one counts.
        cells.insert(0, measured(&all[0], 1, 0, 3.0));
        let rows = Results { cases: &all, cells: &cells, senders: &[Congestion::Cubic] }.rows();
        assert!(rows.iter().all(|row| !row.policy.ends_with("ours")));
        assert!((find(&rows, "cubic paper", GAIN).ours.unwrap() - 21.429).abs() < 1e-3);
        assert!((find(&rows, "cubic plain", "energy").ours.unwrap() - 59.254).abs() < 0.01);
    }
}
