//! The table of `bench paths`, `bench fleet` and `bench accel`: a figure of ours, what others have beside it, and the bound that is asked for.
//!
//! In: figures, one at a time. Out: a line for each kind of figure, and JSON.

use serde::Serialize;

use crate::evidence::stats;
use crate::page::Table;
use crate::runner::command::say;

/// What must hold of the median.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Floor {
    /// It is only stated.
    Stated,
    /// At most this.
    AtMost(f64),
    /// At least this.
    AtLeast(f64),
    /// At most so many times the least of these others.
    AtMostTimes(f64, Vec<String>),
    /// At least so many times the greatest of these others.
    AtLeastTimes(f64, Vec<String>),
    /// At least so many times the sum of these others.
    AtLeastSum(f64, Vec<String>),
}

impl Floor {
    /// Whether more is better.
    const fn is_least(&self) -> bool {
        matches!(self, Self::AtLeast(_) | Self::AtLeastTimes(..) | Self::AtLeastSum(..))
    }
}

/// One kind of figure.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    case: String,
    what: &'static str,
    floor: Floor,
    /// Whose figure the floor is about.
    ours: String,
    figures: Vec<(String, Vec<f64>)>,
    suspect: Vec<String>,
    /// The sum of the figures is judged, and not their median.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    summed: bool,
}

/// All of them, and what went wrong.
#[derive(Debug, Default)]
pub(super) struct Sheet {
    rows: Vec<Row>,
    pub(super) problems: u32,
    /// Whose figures these are, if they are one run's alone.
    run: Option<u32>,
}

impl Sheet {
    /// One run's figures, to be joined to the others' ([`Self::join`]).
    pub(super) fn of_run(run: u32) -> Self {
        Self { run: Some(run), ..Self::default() }
    }

    /// One more figure of a client. The first one of a row brings the floor, and whose it is.
    pub(super) fn add(&mut self, case: &str, what: &'static str, about: (&str, &Floor), who: &str, figure: f64) {
        self.tell(case, &format!(", {what}: {who}: {figure:.3}"));
        self.put(case, what, about, who, figure, false);
    }

    /// One more count of a client, whose sum over all runs is judged. None is not worth a line.
    pub(super) fn count(&mut self, case: &str, what: &'static str, about: (&str, &Floor), who: &str, count: u32) {
        if count > 0 {
            self.tell(case, &format!(", {what}: {who}: {count}"));
        }
        self.put(case, what, about, who, f64::from(count), true);
    }

    fn put(&mut self, case: &str, what: &'static str, about: (&str, &Floor), who: &str, figure: f64, summed: bool) {
        let at = self.rows.iter().position(|row| row.case == case && row.what == what);
        let at = at.unwrap_or_else(|| {
            let (ours, floor) = (about.0.to_owned(), about.1.clone());
            let (figures, suspect) = (Vec::new(), Vec::new());
            self.rows.push(Row { case: case.into(), what, floor, ours, figures, suspect, summed });
            self.rows.len() - 1
        });
        self.rows[at].extend(who, [figure]);
    }

    /// What was measured of this case in the last run is doubtful.
    pub(super) fn suspect(&mut self, case: &str, why: &str) {
        self.tell(case, &format!(": suspect: {why}"));
        for row in self.rows.iter_mut().filter(|row| row.case == case) {
            row.suspect.push(why.to_owned());
        }
    }

    /// Something could not be measured.
    pub(super) fn problem(&mut self, case: &str, who: &str, run: u32, why: &dyn std::fmt::Display) {
        self.problems += 1;
        say(&format!("{case}, {who}, run {run}: FAILED: {why}"));
    }

    /// One line of this case while it goes on.
    pub(super) fn tell(&self, case: &str, rest: &str) {
        let run = self.run.map(|run| format!(", run {run}")).unwrap_or_default();
        say(&format!("{case}{run}{rest}"));
    }

    /// Adds another one's figures behind these. What is doubtful of a run is so in all of its rows, those too that were
    /// made after it was said.
    pub(super) fn join(&mut self, run: Self) {
        self.problems += run.problems;
        let doubts = |case: &str| {
            let rows = run.rows.iter().filter(|row| row.case == case);
            rows.map(|row| &row.suspect).max_by_key(|doubts| doubts.len()).cloned().unwrap_or_default()
        };
        for row in &run.rows {
            let is = |known: &&mut Row| known.case == row.case && known.what == row.what;
            match self.rows.iter_mut().find(is) {
                Some(known) => {
                    row.figures.iter().for_each(|(who, figures)| known.extend(who, figures.iter().copied()));
                    known.suspect.extend(doubts(&row.case));
                }
                None => self.rows.push(Row { suspect: doubts(&row.case), ..row.clone() }),
            }
        }
    }

    /// As JSON.
    pub(super) fn record(&self) -> serde_json::Value {
        let row = |row: &Row| serde_json::json!({"row": row, "bound": row.bound(), "word": row.word()});
        self.rows.iter().map(row).collect()
    }

    /// For people.
    pub(super) fn table(&self) -> Table {
        const HEAD: [&str; 8] = ["case", "what", "ours", "min–max", "beside", "floor", "", "runs"];
        let mut notes: Vec<String> = vec!["Medians.".into()];
        notes.extend(
            self.rows.iter().filter_map(|row| Some(format!("* suspect: {}: {}", row.case, row.suspect.first()?))),
        );
        notes.dedup();
        Table {
            head: HEAD.map(str::to_owned).to_vec(),
            rows: self.rows.iter().map(Row::cells).collect(),
            note: Some(notes.join(" ")),
        }
    }
}

impl Row {
    fn extend(&mut self, who: &str, more: impl IntoIterator<Item = f64>) {
        match self.figures.iter_mut().find(|(name, _)| name == who) {
            Some((_, figures)) => figures.extend(more),
            None => self.figures.push((who.to_owned(), more.into_iter().collect())),
        }
    }

    fn of(&self, who: &str) -> Option<&[f64]> {
        self.figures.iter().find(|(name, _)| name == who).map(|(_, figures)| figures.as_slice())
    }

    /// What stands for all runs: their median, or their sum.
    fn whole(&self, who: &str) -> Option<f64> {
        let figures = self.of(who)?;
        if self.summed { Some(figures.iter().sum()) } else { stats::median(figures) }
    }

    fn bound(&self) -> Option<f64> {
        let others = |names: &[String]| names.iter().filter_map(|name| self.whole(name)).collect::<Vec<f64>>();
        match &self.floor {
            Floor::Stated => None,
            Floor::AtMost(bound) | Floor::AtLeast(bound) => Some(*bound),
            Floor::AtMostTimes(times, names) => Some(others(names).into_iter().reduce(f64::min)? * times),
            Floor::AtLeastTimes(times, names) => Some(others(names).into_iter().reduce(f64::max)? * times),
            // A sum of which one is missing is none.
            Floor::AtLeastSum(times, names) => {
                let each = others(names);
                (each.len() == names.len()).then(|| each.iter().sum::<f64>() * times)
            }
        }
    }

    fn word(&self) -> &'static str {
        let (ours, bound) = match (self.whole(&self.ours), self.bound()) {
            _ if matches!(self.floor, Floor::Stated) => return "stated",
            (Some(ours), Some(bound)) => (ours, bound),
            _ => return "no run",
        };
        let met = if self.floor.is_least() { ours >= bound - 1e-9 } else { ours <= bound + 1e-9 };
        if met { "met" } else { "MISSED" }
    }

    fn cells(&self) -> Vec<String> {
        let ours = self.of(&self.ours).unwrap_or_default();
        let others = self.figures.iter().filter(|(name, _)| *name != self.ours);
        let beside = others.map(|(name, _)| format!("{name} {}", number(self.whole(name))));
        let sign = if self.floor.is_least() { "≥" } else { "≤" };
        let range = stats::range(ours).filter(|_| !self.summed);
        let range = range.map(|(least, most)| format!("{}–{}", number(Some(least)), number(Some(most))));
        vec![
            self.case.clone(),
            self.what.into(),
            if self.summed { format!("{} in all", ours.iter().sum::<f64>()) } else { number(stats::median(ours)) },
            range.unwrap_or_default(),
            beside.collect::<Vec<_>>().join(", "),
            self.bound().map_or("–".into(), |bound| format!("{sign} {}", number(Some(bound)))),
            self.word().into(),
            format!("{}{}", ours.len(), if self.suspect.is_empty() { "" } else { "*" }),
        ]
    }
}

fn number(value: Option<f64>) -> String {
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
    fn a_floor_is_about_our_median_and_the_best_of_the_others() {
        let mut sheet = Sheet::default();
        let floor = Floor::AtLeastTimes(0.97, vec!["single:wifi".into(), "single:lte".into()]);
        let mut add = |who, figure| sheet.add("50+5", "Mbit/s", ("marline", &floor), who, figure);
        add("single:wifi", 40.0);
        add("single:lte", 4.0);
        add("mptcp", 30.0);
        for figure in [38.0, 39.0, 60.0] {
            add("marline", figure);
        }
        assert_eq!((sheet.rows[0].bound(), sheet.rows[0].word()), (Some(40.0 * 0.97), "met"));
        sheet.add("50+5", "Mbit/s", ("marline", &floor), "marline", 30.0);
        sheet.add("50+5", "Mbit/s", ("marline", &floor), "marline", 30.0);
        assert_eq!(sheet.rows[0].word(), "MISSED");
        let cells = &sheet.table().rows[0];
        assert!(cells[4].contains("mptcp 30.0") && cells[5] == "≥ 38.8" && cells[7] == "5", "{cells:?}");
        sheet.suspect("50+5", "late");
        assert_eq!(sheet.table().rows[0][7], "5*");
        sheet.add("fault", "s", ("marline", &Floor::AtMost(1.0)), "marline", 0.4);
        assert_eq!(sheet.rows[1].word(), "met");
        let sum = Floor::AtLeastSum(0.92, vec!["a".into(), "b".into()]);
        sheet.add("8+8", "Mbit/s", ("marline", &sum), "marline", 14.8);
        sheet.add("8+8", "Mbit/s", ("marline", &sum), "a", 8.0);
        assert_eq!(sheet.rows[2].word(), "no run");
        sheet.add("8+8", "Mbit/s", ("marline", &sum), "b", 8.0);
        assert_eq!((sheet.rows[2].bound(), sheet.rows[2].word()), (Some(16.0 * 0.92), "met"));
        sheet.add("new", "s", ("marline", &Floor::AtMost(1.0)), "mptcp", 0.4);
        assert_eq!(sheet.rows[3].word(), "no run");
    }
    #[test]
    fn runs_joined_in_their_order_are_one_sheet_whoever_was_ready_first() {
        let none = Floor::AtMost(0.0);
        let run = |number: u32, figure: f64, stalls: u32, late: bool| {
            let mut sheet = Sheet::of_run(number);
            sheet.add("both tls", "Mbit/s", ("ours", &Floor::Stated), "plain", figure);
            if late {
                sheet.suspect("both tls", "late");
            }
            sheet.add("both tls", "of plain", ("ours", &Floor::AtLeast(5.0)), "ours", figure);
            sheet.count("both tls", "runs with a stall", ("ours", &none), "ours", stalls);
            sheet
        };
        let mut sheet = Sheet::default();
        for part in [run(0, 6.0, 0, false), run(1, 7.0, 1, true), run(2, 5.0, 1, false)] {
            sheet.join(part);
        }
        assert_eq!(sheet.rows[1].figures, [("ours".to_owned(), vec![6.0, 7.0, 5.0])]);
        let rows = sheet.table().rows;
        assert_eq!((rows[1][2].as_str(), rows[1][6].as_str(), rows[1][7].as_str()), ("6.000", "met", "3*"));
        assert_eq!((rows[2][2].as_str(), rows[2][6].as_str(), rows[2][7].as_str()), ("2 in all", "MISSED", "3*"));
        assert!(rows[2][3].is_empty() && sheet.rows[0].suspect == ["late"]);
    }
}
