//! Report of most benchmarks (`bench accel`, `bench fleet`, `bench paths` and others): collects figures one at a time. It prints a table
//! with marline's median, the figures of the other clients and the threshold, and writes JSON.

use serde::Serialize;

use crate::html_report::Table;
use crate::results::stats;
use crate::runner::command::notice;

/// What the median must satisfy.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Threshold {
    /// No threshold; the figure is only reported.
    Stated,
    AtMost(f64),
    AtLeast(f64),
    /// At most this factor times the smallest figure of these clients.
    AtMostTimes(f64, Vec<String>),
    /// At least this factor times the largest figure of these clients.
    AtLeastTimes(f64, Vec<String>),
    /// At least this factor times the sum of the figures of these clients.
    AtLeastSum(f64, Vec<String>),
}

impl Threshold {
    /// Whether the threshold is a minimum.
    const fn is_lower_bound(&self) -> bool {
        matches!(self, Self::AtLeast(_) | Self::AtLeastTimes(..) | Self::AtLeastSum(..))
    }
}

/// One metric of one case: a row of the table.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ReportRow {
    case: String,
    metric: &'static str,
    threshold: Threshold,
    /// The client whose figure is compared with the threshold.
    marline: String,
    figures: Vec<(String, Vec<f64>)>,
    unreliable_reasons: Vec<String>,
    /// Whether the sum of the figures is compared with the threshold instead of their median.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    is_summed: bool,
}

/// All rows, and the number of failed measurements.
#[derive(Debug, Default)]
pub(super) struct ReportTable {
    rows: Vec<ReportRow>,
    pub(super) problems: u32,
    /// The run whose figures these are, if the table belongs to a single run.
    run: Option<u32>,
}

impl ReportTable {
    /// Table of a single run, to be appended to the common one ([`Self::append`]).
    pub(super) fn for_run(run: u32) -> Self {
        Self { run: Some(run), ..Self::default() }
    }

    /// Adds a figure of a client. The first figure of a row sets its threshold and the client that it applies to.
    pub(super) fn add(
        &mut self,
        case: &str,
        metric: &'static str,
        marline_and_threshold: (&str, &Threshold),
        client: &str,
        figure: f64,
    ) {
        self.log(case, &format!(", {metric}: {client}: {figure:.3}"));
        self.add_figure(case, metric, marline_and_threshold, client, figure, false);
    }

    /// Adds a count of a client. The sum over all runs is compared with the threshold. Zero is not logged.
    pub(super) fn count(
        &mut self,
        case: &str,
        metric: &'static str,
        marline_and_threshold: (&str, &Threshold),
        client: &str,
        count: u32,
    ) {
        if count > 0 {
            self.log(case, &format!(", {metric}: {client}: {count}"));
        }
        self.add_figure(case, metric, marline_and_threshold, client, f64::from(count), true);
    }

    fn add_figure(
        &mut self,
        case: &str,
        metric: &'static str,
        marline_and_threshold: (&str, &Threshold),
        client: &str,
        figure: f64,
        is_summed: bool,
    ) {
        let index = self.rows.iter().position(|row| row.case == case && row.metric == metric);
        let index = index.unwrap_or_else(|| {
            let (marline, threshold) = (marline_and_threshold.0.to_owned(), marline_and_threshold.1.clone());
            let (figures, unreliable_reasons) = (Vec::new(), Vec::new());
            self.rows.push(ReportRow {
                case: case.into(),
                metric,
                threshold,
                marline,
                figures,
                unreliable_reasons,
                is_summed,
            });
            self.rows.len() - 1
        });
        self.rows[index].add_figures(client, [figure]);
    }

    /// Marks all rows that the case has so far as unreliable.
    pub(super) fn mark_unreliable(&mut self, case: &str, reason: &str) {
        self.log(case, &format!(": suspect: {reason}"));
        for row in self.rows.iter_mut().filter(|row| row.case == case) {
            row.unreliable_reasons.push(reason.to_owned());
        }
    }

    /// Reports a measurement that failed.
    pub(super) fn problem(&mut self, case: &str, client: &str, run: u32, reason: &dyn std::fmt::Display) {
        self.problems += 1;
        notice(&format!("{case}, {client}, run {run}: FAILED: {reason}"));
    }

    /// Logs a line about this case while it runs.
    pub(super) fn log(&self, case: &str, text: &str) {
        let run = self.run.map(|run| format!(", run {run}")).unwrap_or_default();
        notice(&format!("{case}{run}{text}"));
    }

    /// Appends the figures of one run. A reason for unreliability applies to all rows of the case in that run, also
    /// to those added after it was reported.
    pub(super) fn append(&mut self, run: Self) {
        self.problems += run.problems;
        // A row has only the reasons reported after its creation, so the row with most reasons has all of the run.
        let reasons_of = |case: &str| {
            let rows = run.rows.iter().filter(|row| row.case == case);
            rows.map(|row| &row.unreliable_reasons).max_by_key(|reasons| reasons.len()).cloned().unwrap_or_default()
        };
        for row in &run.rows {
            let same_row = |existing: &&mut ReportRow| existing.case == row.case && existing.metric == row.metric;
            match self.rows.iter_mut().find(same_row) {
                Some(existing) => {
                    row.figures
                        .iter()
                        .for_each(|(client, figures)| existing.add_figures(client, figures.iter().copied()));
                    existing.unreliable_reasons.extend(reasons_of(&row.case));
                }
                None => self.rows.push(ReportRow { unreliable_reasons: reasons_of(&row.case), ..row.clone() }),
            }
        }
    }

    /// The report as JSON.
    pub(super) fn to_json(&self) -> serde_json::Value {
        let row = |row: &ReportRow| serde_json::json!({"row": row, "bound": row.bound(), "verdict": row.verdict()});
        self.rows.iter().map(row).collect()
    }

    /// The report as a table for people.
    pub(super) fn table(&self) -> Table {
        const HEAD: [&str; 8] = ["case", "what", "ours", "min–max", "beside", "floor", "", "runs"];
        let mut notes: Vec<String> = vec!["Medians.".into()];
        notes.extend(
            self.rows
                .iter()
                .filter_map(|row| Some(format!("* suspect: {}: {}", row.case, row.unreliable_reasons.first()?))),
        );
        notes.dedup();
        Table {
            header: HEAD.map(str::to_owned).to_vec(),
            rows: self.rows.iter().map(ReportRow::cells).collect(),
            note: Some(notes.join(" ")),
        }
    }
}

impl ReportRow {
    fn add_figures(&mut self, client: &str, new_figures: impl IntoIterator<Item = f64>) {
        match self.figures.iter_mut().find(|(name, _)| name == client) {
            Some((_, figures)) => figures.extend(new_figures),
            None => self.figures.push((client.to_owned(), new_figures.into_iter().collect())),
        }
    }

    fn figures_of(&self, client: &str) -> Option<&[f64]> {
        self.figures.iter().find(|(name, _)| name == client).map(|(_, figures)| figures.as_slice())
    }

    /// The figure for all runs: their median, or their sum for counts.
    fn summary_of(&self, client: &str) -> Option<f64> {
        let figures = self.figures_of(client)?;
        if self.is_summed { Some(figures.iter().sum()) } else { stats::median(figures) }
    }

    fn bound(&self) -> Option<f64> {
        let figures_of =
            |names: &[String]| names.iter().filter_map(|name| self.summary_of(name)).collect::<Vec<f64>>();
        match &self.threshold {
            Threshold::Stated => None,
            Threshold::AtMost(bound) | Threshold::AtLeast(bound) => Some(*bound),
            Threshold::AtMostTimes(times, names) => Some(figures_of(names).into_iter().reduce(f64::min)? * times),
            Threshold::AtLeastTimes(times, names) => Some(figures_of(names).into_iter().reduce(f64::max)? * times),
            // If a client has no figure, there is no sum to compare with.
            Threshold::AtLeastSum(times, names) => {
                let others_figures = figures_of(names);
                (others_figures.len() == names.len()).then(|| others_figures.iter().sum::<f64>() * times)
            }
        }
    }

    fn verdict(&self) -> &'static str {
        let (our_figure, bound) = match (self.summary_of(&self.marline), self.bound()) {
            _ if matches!(self.threshold, Threshold::Stated) => return "stated",
            (Some(our_figure), Some(bound)) => (our_figure, bound),
            _ => return "no run",
        };
        let is_met =
            if self.threshold.is_lower_bound() { our_figure >= bound - 1e-9 } else { our_figure <= bound + 1e-9 };
        if is_met { "met" } else { "MISSED" }
    }

    fn cells(&self) -> Vec<String> {
        let our_figures = self.figures_of(&self.marline).unwrap_or_default();
        let others = self.figures.iter().filter(|(name, _)| *name != self.marline);
        let other_cells = others.map(|(name, _)| format!("{name} {}", format_number(self.summary_of(name))));
        let sign = if self.threshold.is_lower_bound() { "≥" } else { "≤" };
        let range = stats::range(our_figures).filter(|_| !self.is_summed);
        let range = range.map(|(min, max)| format!("{}–{}", format_number(Some(min)), format_number(Some(max))));
        vec![
            self.case.clone(),
            self.metric.into(),
            if self.is_summed {
                format!("{} in all", our_figures.iter().sum::<f64>())
            } else {
                format_number(stats::median(our_figures))
            },
            range.unwrap_or_default(),
            other_cells.collect::<Vec<_>>().join(", "),
            self.bound().map_or("–".into(), |bound| format!("{sign} {}", format_number(Some(bound)))),
            self.verdict().into(),
            format!("{}{}", our_figures.len(), if self.unreliable_reasons.is_empty() { "" } else { "*" }),
        ]
    }
}

fn format_number(value: Option<f64>) -> String {
    match value {
        None => "–".to_owned(),
        Some(value) if value.abs() >= 100.0 => format!("{value:.0}"),
        Some(value) if value.abs() >= 10.0 => format!("{value:.1}"),
        Some(value) => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threshold_compares_the_median_with_the_best_other_client() {
        let mut report = ReportTable::default();
        let threshold = Threshold::AtLeastTimes(0.97, vec!["single:wifi".into(), "single:lte".into()]);
        let mut add = |client, figure| report.add("50+5", "Mbit/s", ("marline", &threshold), client, figure);
        add("single:wifi", 40.0);
        add("single:lte", 4.0);
        add("mptcp", 30.0);
        for figure in [38.0, 39.0, 60.0] {
            add("marline", figure);
        }
        assert_eq!((report.rows[0].bound(), report.rows[0].verdict()), (Some(40.0 * 0.97), "met"));
        report.add("50+5", "Mbit/s", ("marline", &threshold), "marline", 30.0);
        report.add("50+5", "Mbit/s", ("marline", &threshold), "marline", 30.0);
        assert_eq!(report.rows[0].verdict(), "MISSED");
        let cells = &report.table().rows[0];
        assert!(cells[4].contains("mptcp 30.0") && cells[5] == "≥ 38.8" && cells[7] == "5", "{cells:?}");
        report.mark_unreliable("50+5", "late");
        assert_eq!(report.table().rows[0][7], "5*");
        report.add("fault", "s", ("marline", &Threshold::AtMost(1.0)), "marline", 0.4);
        assert_eq!(report.rows[1].verdict(), "met");
        let sum = Threshold::AtLeastSum(0.92, vec!["a".into(), "b".into()]);
        report.add("8+8", "Mbit/s", ("marline", &sum), "marline", 14.8);
        report.add("8+8", "Mbit/s", ("marline", &sum), "a", 8.0);
        assert_eq!(report.rows[2].verdict(), "no run");
        report.add("8+8", "Mbit/s", ("marline", &sum), "b", 8.0);
        assert_eq!((report.rows[2].bound(), report.rows[2].verdict()), (Some(16.0 * 0.92), "met"));
        report.add("new", "s", ("marline", &Threshold::AtMost(1.0)), "mptcp", 0.4);
        assert_eq!(report.rows[3].verdict(), "no run");
    }
    #[test]
    fn runs_are_appended_in_order_into_one_table() {
        let none = Threshold::AtMost(0.0);
        let run = |number: u32, figure: f64, stalls: u32, is_late: bool| {
            let mut report = ReportTable::for_run(number);
            report.add("both tls", "Mbit/s", ("ours", &Threshold::Stated), "plain", figure);
            if is_late {
                report.mark_unreliable("both tls", "late");
            }
            report.add("both tls", "of plain", ("ours", &Threshold::AtLeast(5.0)), "ours", figure);
            report.count("both tls", "runs with a stall", ("ours", &none), "ours", stalls);
            report
        };
        let mut report = ReportTable::default();
        for part in [run(0, 6.0, 0, false), run(1, 7.0, 1, true), run(2, 5.0, 1, false)] {
            report.append(part);
        }
        assert_eq!(report.rows[1].figures, [("ours".to_owned(), vec![6.0, 7.0, 5.0])]);
        let rows = report.table().rows;
        assert_eq!((rows[1][2].as_str(), rows[1][6].as_str(), rows[1][7].as_str()), ("6.000", "met", "3*"));
        assert_eq!((rows[2][2].as_str(), rows[2][6].as_str(), rows[2][7].as_str()), ("2 in all", "MISSED", "3*"));
        assert!(rows[2][3].is_empty() && report.rows[0].unreliable_reasons == ["late"]);
    }
}
