//! eMPTCP's figures as rows: what the text of its paper says beside ours.
//!
//! 1. Of every case and client: time, energy, energy per megabyte, bytes over each link, how often LTE was woken; means over
//!    the repetitions with their standard deviation. The paper plots these without numbers.
//! 2. Of every sentence that has a number: the paper's percentage (the middle of its range) and ours, for each reading of
//!    eMPTCP that was played and for our own policy. A sentence that a setting was tuned to says so.
//! 3. Of the courses (figures 7, 9 and 12): every [`EVERY`]th point of the first repetition.
//! 4. How much the MDP's schedule uses LTE.
//! 5. The clairvoyant's energy wherever it was looked for, and by artefact ([`super::clairvoyant`]).

use marline_core::energy::Model;

use super::figures::Figure;
use super::paper::{NEAR, SAID, Said};
use super::real::{Point, STEP_S};
use super::runner::Done;
use super::setting::Who;
use super::simulate::{self, Played};
use crate::evidence::{By, Row, stats, thousandths};
use crate::reproduce::floor::Floor;

/// What is measured in every case: name, unit, and how.
type Metric = (&'static str, &'static str, fn(&Played) -> Option<f64>);

pub(super) const METRICS: [Metric; 8] = [
    ("time", "s", |played| Some(played.seconds)),
    ("energy", "J", |played| Some(played.energy)),
    ("energy_per_megabyte", "J/MB", |played| Some(played.per_megabyte())),
    ("bytes_wifi", "MB", |played| Some(played.carried[0] / 1e6)),
    ("bytes_lte", "MB", |played| Some(played.carried[1] / 1e6)),
    ("wakes_lte", "1", |played| played.wakes),
    ("runs_waking_lte", "%", |played| played.wakes.map(|wakes| if wakes > 0.0 { 100.0 } else { 0.0 })),
    ("rate_after_5s", "Mbit/s", |played| played.later),
];

/// All rows of what was made so.
pub(super) fn rows(done: &[Done], floors: &[Floor], by: By, scale: f64) -> Vec<Row> {
    let mut rows: Vec<Row> = done.iter().flat_map(plain).collect();
    rows.extend(done.iter().flat_map(said));
    rows.extend(courses(done));
    rows.extend(super::clairvoyant::rows(done));
    rows.extend(floors.iter().map(Floor::row));
    for row in &mut rows {
        (row.by, row.scale) = (by, scale);
    }
    rows
}

fn plain(done: &Done) -> Vec<Row> {
    let mut rows = Vec::new();
    for (who, _) in &done.runs {
        let empty = |metric, unit| Row::empty(done.artefact, &done.case, who.name(), metric, unit);
        let Some(played) = done.played(*who) else {
            rows.push(Row { note: done.problems().next(), ..empty("energy", "J") });
            continue;
        };
        for (metric, unit, of) in METRICS {
            let values: Option<Vec<f64>> = played.iter().map(|played| of(played)).collect();
            let Some(values) = values else { continue };
            let least: Option<Vec<f64>> = played.iter().map(|played| Some(played.least?.energy)).collect();
            let least = least.filter(|_| metric == "energy").and_then(|values| stats::mean(&values));
            rows.push(Row {
                ours: stats::mean(&values).map(thousandths),
                spread: stats::sigma(&values).map(thousandths),
                clairvoyant: least.map(thousandths),
                ..empty(metric, unit)
            });
        }
    }
    rows
}

/// By how many percent one is off another.
fn said(done: &Done) -> Vec<Row> {
    let of = |said: Said| {
        let ours = said.ours(done)?;
        let outside = (said.from - ours).max(ours - said.to);
        let range = match said.from == said.to {
            true => format!("§{}", said.section),
            false => format!("§{}: {} to {} %", said.section, said.from, said.to),
        };
        let of_emptcp = said.who != Who::Marline && said.than != Who::Marline;
        let mut why = String::new();
        if outside > NEAR && !said.why.is_empty() && of_emptcp {
            why = format!("; {}", said.why);
        }
        if said.tuned {
            why += "; the setting was chosen so that this comes out: agreement shows nothing";
        }
        if !of_emptcp {
            why += "; the paper's is of eMPTCP";
        }
        let metric = format!("{} against {}", said.what.name(), said.than.name());
        Some(Row {
            paper: Some((said.from + said.to) / 2.0),
            ours: Some((ours * 10.0).round() / 10.0),
            note: Some(format!("{range}{why}")),
            ..Row::empty(done.artefact, &done.case, said.who.name(), &metric, "%")
        })
    };
    // What is said of eMPTCP is asked of each reading of its text, and of our own policy.
    let read = |said: &Said| [Who::Emptcp, Who::Settled, Who::Table, Who::Marline].map(|who| said.read(who));
    let mut all: Vec<Said> = SAID.iter().flat_map(read).collect();
    all.dedup();
    all.into_iter().filter_map(of).collect()
}

/// The figures over time, and whose course they are.
pub(super) const COURSES: [(&str, &str, &str); 3] =
    [("F7", "F8", ""), ("F9", "F10", "n=2 λoff=0.025"), ("F12", "F13", "")];
/// Points of a course between two that are shown.
const EVERY: usize = 5;

fn courses(done: &[Done]) -> Vec<Row> {
    let mut rows = Vec::new();
    for (artefact, of, case) in COURSES {
        let Some(done) = done.iter().find(|done| done.artefact == of && done.case.starts_with(case)) else {
            continue;
        };
        for (who, runs) in &done.runs {
            let Some(Ok(first)) = runs.first() else { continue };
            for (at, points) in (1_u32..).zip(first.course.chunks(EVERY)) {
                let seconds = at * STEP_S * EVERY as u32;
                let mut push = |metric: &str, unit: &str, value: f64| {
                    let empty = Row::empty(artefact, &format!("at {seconds} s"), who.name(), metric, unit);
                    rows.push(Row { ours: Some(thousandths(value)), ..empty });
                };
                let mean = |link: usize| {
                    points.iter().map(|point: &Point| point.mbps[link]).sum::<f64>() / points.len() as f64
                };
                push("energy", "J", points.last().map_or(0.0, |point| point.joules));
                push("rate_wifi", "Mbit/s", mean(0));
                push("rate_lte", "Mbit/s", mean(1));
            }
        }
    }
    rows
}

/// In how many of the states that it can reach the MDP's schedule uses LTE (§4.6: in none, so that it is TCP over Wi-Fi).
pub(super) fn computed(figure: &Figure, model: &Model) -> Row {
    let shares: Vec<f64> = figure
        .settings
        .iter()
        .map(|setting| simulate::mdp(setting, model))
        .map(|(used, of)| used as f64 / of.max(1) as f64 * 100.0)
        .collect();
    let ours = stats::mean(&shares);
    let note = match ours {
        Some(share) if share > 0.0 => {
            "§4.6: WiFi-only in all scenarios; in this model a fast Wi-Fi draws more a second than LTE, so that the \
             schedule, which counts joules a second, takes LTE there"
        }
        _ => "§4.6: WiFi-only in all scenarios",
    };
    let empty = Row::empty(figure.artefact, &figure.case, Who::Mdp.name(), "states_with_lte", "%");
    Row { paper: Some(0.0), ours: ours.map(thousandths), note: Some(note.into()), ..empty }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Ten megabytes in so many seconds for so many joules.
    pub(in super::super) fn played([seconds, energy]: [f64; 2]) -> Played {
        Played {
            seconds,
            bytes: 10e6,
            energy,
            carried: [9e6, 1.5e6],
            wakes: Some(1.0),
            later: Some(80.0 / seconds),
            course: vec![Point { mbps: [4.0, 2.0], joules: energy / 2.0 }; 7],
            least: None,
        }
    }

    pub(in super::super) fn done(artefact: &'static str, case: &str, runs: &[(Who, [f64; 2])]) -> Done {
        let runs = runs.iter().map(|(who, figures)| (*who, vec![Ok(played(*figures))])).collect();
        Done { artefact, case: case.into(), runs }
    }

    #[test]
    fn a_sentence_of_the_paper_stands_beside_ours() {
        let runs = [(Who::TcpWifi, [200.0, 100.0]), (Who::Mptcp, [100.0, 110.0]), (Who::Emptcp, [130.0, 99.0])];
        let rows = rows(&[done("F8", "on-off 40 s", &runs)], &[], By::Sim, 0.5);
        assert!(rows.iter().all(|row| row.scale == 0.5 && row.by == By::Sim));
        let of = |metric: &str| rows.iter().find(|row| row.policy == "emptcp" && row.metric == metric).unwrap();
        let energy = of("energy against mptcp");
        assert_eq!((energy.paper, energy.ours), (Some(-8.0), Some(-10.0)));
        assert!(energy.note.as_ref().unwrap().starts_with("§4.3") && !energy.note.as_ref().unwrap().contains(';'));
        let time = of("time against mptcp");
        assert_eq!(time.ours, Some(30.0));
        assert!(time.note.as_ref().unwrap().contains("over upstream MPTCP"), "{time:?}");
        assert_eq!(of("energy_per_megabyte").ours, Some(9.9));
    }

    #[test]
    fn a_sentence_that_the_setting_was_tuned_to_says_so_and_our_own_policy_stands_beside_it() {
        let runs = [
            (Who::TcpWifi, [200.0, 100.0]),
            (Who::Mptcp, [100.0, 110.0]),
            (Who::Settled, [100.0, 99.0]),
            (Who::Marline, [110.0, 99.0]),
        ];
        let rows = rows(&[done("F10", "n=2 λoff=0.025", &runs)], &[], By::Sim, 1.0);
        let of = |policy: &str, metric: &str| {
            let row = rows.iter().find(|row| row.policy == policy && row.metric == metric).unwrap();
            (row.ours.unwrap(), row.note.clone().unwrap())
        };
        let (twice, note) = of("single:wifi", "time against emptcp-settled");
        assert_eq!(twice, 100.0);
        assert!(note.contains("chosen so that this comes out"), "{note}");
        let (ours, note) = of("marline", "time against mptcp");
        assert_eq!(ours, 10.0);
        assert!(note.ends_with("the paper's is of eMPTCP"), "{note}");
        assert!(!of("emptcp-settled", "time against mptcp").1.contains("chosen"));
    }

    #[test]
    fn a_course_is_that_of_its_first_repetition() {
        let rows = rows(&[done("F8", "on-off 40 s", &[(Who::Mptcp, [14.0, 20.0])])], &[], By::Sim, 1.0);
        let course: Vec<&Row> = rows.iter().filter(|row| row.artefact == "F7" && row.metric == "energy").collect();
        assert_eq!(course.iter().map(|row| row.case.as_str()).collect::<Vec<_>>(), ["at 10 s", "at 20 s"]);
        let table = super::super::table::course(&rows, "F7").unwrap();
        assert_eq!(table.rows[0], ["at 10 s", "10.0"]);
        assert!(super::super::table::course(&rows, "F12").is_none());
    }

    #[test]
    fn who_failed_has_a_null_and_the_reason() {
        let mut case = done("F5", "good Wi-Fi", &[(Who::Marline, [14.0, 20.0])]);
        case.runs[0].1.push(Err("no end".into()));
        let rows = rows(&[case], &[], By::Lab, 1.0);
        assert_eq!(rows.len(), 1);
        assert!(rows[0].ours.is_none() && rows[0].note.as_ref().unwrap().contains("no end"));
    }
}
