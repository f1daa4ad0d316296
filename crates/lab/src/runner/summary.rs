//! Presents outcomes as tables and as pages.
//!
//! Values are medians over the successful runs. A client without a successful run shows its problem instead.

use std::collections::BTreeSet;

use marline_sim::scenario::{Case, Scenario};

use crate::html_report::{Chart, ChartMark, Section, Series, Stroke, Table};
use crate::results::{DownloadOutcome, SLOT_S, stats};

/// The outcomes of one client in one case.
#[derive(Clone, Debug)]
pub(crate) struct ClientOutcomes<'a> {
    pub(crate) client: &'a str,
    /// Successful and failed outcomes.
    pub(crate) outcomes: Vec<&'a DownloadOutcome>,
}

/// Groups the outcomes of a case by client, in the scenario's order.
pub(crate) fn groups<'a>(
    scenario: &'a Scenario,
    case: &str,
    outcomes: &'a [DownloadOutcome],
) -> Vec<ClientOutcomes<'a>> {
    let of_case: Vec<&DownloadOutcome> = outcomes.iter().filter(|outcome| outcome.case == case).collect();
    let mut groups: Vec<ClientOutcomes<'_>> = Vec::new();
    for client in scenario.clients.iter().map(ToString::to_string) {
        let all: Vec<&DownloadOutcome> =
            of_case.iter().copied().filter(|outcome| outcome.client == client).collect();
        if let Some(first) = all.first() {
            groups.push(ClientOutcomes { client: &first.client, outcomes: all });
        }
    }
    groups
}

impl<'a> ClientOutcomes<'a> {
    /// The successful outcomes.
    pub(crate) fn complete(&self) -> impl Iterator<Item = &'a DownloadOutcome> + '_ {
        self.outcomes.iter().copied().filter(|outcome| outcome.is_complete())
    }

    /// The median of a figure over the successful runs that have it.
    pub(crate) fn median(&self, figure: impl Fn(&DownloadOutcome) -> Option<f64>) -> Option<f64> {
        stats::median(&self.complete().filter_map(figure).collect::<Vec<_>>())
    }

    /// The median time in seconds.
    pub(crate) fn seconds(&self) -> Option<f64> {
        self.median(|outcome| Some(outcome.seconds))
    }

    /// Number of unreliable runs, and the reason of the first one.
    pub(crate) fn unreliable(&self) -> Option<(usize, &'a str)> {
        let mut reasons = self.outcomes.iter().filter_map(|outcome| outcome.unreliable_reason.as_deref());
        let first = reasons.next()?;
        Some((1 + reasons.count(), first))
    }

    fn row(&self) -> Vec<String> {
        let times: Vec<f64> = self.complete().map(|outcome| outcome.seconds).collect();
        let Some((least, most)) = stats::range(&times) else {
            let problem = self.outcomes.first().and_then(|outcome| outcome.problem.clone()).unwrap_or_default();
            let mut row = vec![self.client.to_string(), "failed".into(), problem];
            row.resize(TABLE_HEADER.len(), String::new());
            return row;
        };
        let digits = if most < 2.0 { 3 } else { 2 };
        let number = |value: Option<f64>, digits: usize| value.map_or("–".into(), |v| format!("{v:.digits$}"));
        let mark = if self.complete().count() < self.outcomes.len() { " (some failed)" } else { "" };
        vec![
            format!("{}{mark}", self.client),
            number(self.seconds(), digits),
            format!("{least:.digits$}–{most:.digits$}"),
            number(self.median(DownloadOutcome::ratio), 3),
            number(self.median(|outcome| Some(outcome.goodput_mbps())), 1),
            number(self.median(|outcome| outcome.link_delta_s), 3),
            number(self.median(|outcome| outcome.wasted_bytes.map(|bytes| bytes as f64 / 1000.0)), 0),
            number(self.median(|outcome| outcome.cpu_s), 2),
            number(self.median(|outcome| outcome.peak_rss_bytes.map(|bytes| bytes as f64 / 1e6)), 1),
            number(self.median(|outcome| outcome.energy_j), 1),
        ]
    }
}

const TABLE_HEADER: [&str; 10] =
    ["client", "time s", "min–max", "÷ ideal", "Mbit/s", "link Δ s", "wasted kB", "CPU s", "RSS MB", "energy J"];

/// The table of a case.
pub(crate) fn table(groups: &[ClientOutcomes<'_>]) -> Table {
    let unreliable_notes: Vec<String> = groups
        .iter()
        .filter_map(|group| {
            group.unreliable().map(|(n, reason)| format!("{}: {n} suspect ({reason})", group.client))
        })
        .collect();
    Table {
        header: TABLE_HEADER.map(str::to_owned).to_vec(),
        rows: groups.iter().map(ClientOutcomes::row).collect(),
        note: (!unreliable_notes.is_empty()).then(|| unreliable_notes.join("; ")),
    }
}

/// The section of a case: one chart per client, with its own end, the ideal time, and the end of the fastest other
/// program.
pub(crate) fn section(case: &Case, groups: &[ClientOutcomes<'_>]) -> Section {
    let mut lead: Vec<String> = case.links.iter().map(ToString::to_string).collect();
    lead.extend(case.events.iter().take(12).map(ToString::to_string));
    if case.events.len() > 12 {
        lead.push(format!("and {} more events", case.events.len() - 12));
    }
    Section {
        heading: format!("{}: {}", case.name, case.size),
        lead: lead.join(" · "),
        charts: groups.iter().map(|group| chart(group, groups)).collect(),
        table: Some(table(groups)),
    }
}

fn chart(group: &ClientOutcomes<'_>, all: &[ClientOutcomes<'_>]) -> Chart {
    let names: Vec<&str> =
        group.outcomes.first().map_or_else(Vec::new, |o| o.links.iter().map(|link| link.name.as_str()).collect());
    let series = names.into_iter().enumerate().map(|(n, name)| Series {
        name: name.to_string(),
        runs: group
            .complete()
            .filter_map(|o| o.links.get(n))
            .map(|l| l.rates_mbps())
            .filter(|r| !r.is_empty())
            .collect(),
        slot_s: SLOT_S,
    });
    let mut marks = Vec::new();
    if let Some(ideal) = group.median(|outcome| outcome.ideal_s) {
        marks.push(ChartMark { at_s: ideal, label: format!("ideal {ideal:.2} s"), stroke: Stroke::Ideal });
    }
    if let Some(end) = group.seconds() {
        marks.push(ChartMark { at_s: end, label: format!("{} {end:.2} s", group.client), stroke: Stroke::End });
    }
    let others = all.iter().filter(|other| other.client != group.client && is_other_client(other.client));
    let best = others.filter_map(|other| Some((other.seconds()?, other.client)));
    if let Some((end, name)) = best.min_by(|a, b| a.0.total_cmp(&b.0)) {
        marks.push(ChartMark { at_s: end, label: format!("{name} {end:.2} s"), stroke: Stroke::BestOther });
    }
    Chart { title: group.client.to_string(), series: series.collect(), marks }
}

fn is_other_client(client: &str) -> bool {
    client.starts_with("aria2") || client.starts_with("curl")
}

/// Names of the cases, in the order of the outcomes.
pub(crate) fn cases_of(outcomes: &[DownloadOutcome]) -> Vec<&str> {
    let mut seen = BTreeSet::new();
    outcomes.iter().map(|outcome| outcome.case.as_str()).filter(|case| seen.insert(*case)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::outcome::tests::example_outcome;

    fn scenario() -> Scenario {
        let text = "name = \"a\"\ndescription = \"\"\nsize = \"100MB\"\nclients = [\"marline\", \"aria2-s2\", \"curl\"]\n\
                    links = [\"wifi,rate=80Mbit/s\", \"lte,rate=61Mbit/s\"]\n";
        Scenario::parse(text, std::path::Path::new("a")).unwrap()
    }

    #[test]
    fn a_table_has_a_row_per_client_with_medians() {
        let scenario = scenario();
        let mut outcomes = vec![example_outcome("aria2-s2", 0, 6.24)];
        outcomes.extend([6.0, 6.2, 6.1].iter().enumerate().map(|(n, s)| example_outcome("marline", n as u32, *s)));
        outcomes[0].unreliable_reason = Some("late".into());
        let mut failed = example_outcome("curl", 0, 1.0);
        failed.problem = Some("exit status: 7".into());
        outcomes.push(failed);
        let groups = groups(&scenario, "a", &outcomes);
        let table = table(&groups);
        assert_eq!(table.rows.len(), 3);
        assert_eq!(table.rows[0][..4], ["marline", "6.10", "6.00–6.20", "1.037"]);
        assert_eq!(table.rows[2][..3], ["curl", "failed", "exit status: 7"]);
        assert_eq!(table.note.as_deref(), Some("aria2-s2: 1 suspect (late)"));
    }

    #[test]
    fn charts_name_the_ideal_the_end_and_the_best_other() {
        let scenario = scenario();
        let outcomes = [
            example_outcome("marline", 0, 6.0),
            example_outcome("aria2-s2", 0, 6.24),
            example_outcome("curl", 0, 10.47),
        ];
        let groups = groups(&scenario, "a", &outcomes);
        let section = section(&scenario.cases[0], &groups);
        let labels: Vec<&str> = section.charts[0].marks.iter().map(|mark| mark.label.as_str()).collect();
        assert_eq!(labels, ["ideal 5.88 s", "marline 6.00 s", "aria2-s2 6.24 s"]);
        assert_eq!(section.charts[0].series[0].runs[0].len(), 60);
    }
}
