//! GreenBag's figures as rows: what the text of its paper says beside ours.
//!
//! 1. The paper plots its times and energies and gives no numbers for them; their rows have a null and say so.
//! 2. What its text does say in numbers has rows of its own: the best sizes of segments (§V-A2), whether a hole stops
//!    the video (§V-A4), savings (§V-A5, §V-B2), how much longer Wi-Fi alone takes.
//! 3. Ours are means over the repetitions, as the paper's are (§V-A1), with their standard deviation.

use super::figures::{ALL, TRACES};
use super::runner::Done;
use super::setting::{Played, Who};
use crate::evidence::{By, Row, stats, thousandths};
use crate::reproduce::floor::Floor;

/// What is measured in every case.
pub(super) const METRICS: [(&str, &str); 4] =
    [("playback_time", "s"), ("interruption", "s"), ("stalls", "1"), ("energy", "J")];

/// All rows of what was made so.
pub(super) fn rows(done: &[Done], floors: &[Floor], by: By) -> Vec<Row> {
    let mut rows: Vec<Row> = done.iter().flat_map(plain).collect();
    rows.extend(ratios(done));
    rows.extend(said(done));
    for floor in floors {
        let row = rows.iter_mut().find(|row| {
            (row.artefact.as_str(), row.case.as_str(), row.metric.as_str())
                == (floor.artefact, floor.case.as_str(), floor.metric)
                && row.policy == floor.who
        });
        if let Some(row) = row {
            let before = row.note.take().map(|note| format!("{note}; ")).unwrap_or_default();
            row.note = Some(format!("{before}floor: {}", floor.line()));
        }
    }
    rows.iter_mut().for_each(|row| row.by = by);
    rows
}

/// The clairvoyant's figure beside a metric.
fn least(played: &Played, metric: &str) -> Option<f64> {
    match metric {
        "playback_time" => Some(played.least_playback),
        "interruption" => Some(played.least_interruption),
        "stalls" => Some(0.0),
        _ => played.least_energy,
    }
}

fn ours(played: &Played, metric: &str) -> f64 {
    match metric {
        "playback_time" => played.playback,
        "interruption" => played.interruption,
        "stalls" => f64::from(played.stalls),
        _ => played.energy,
    }
}

fn row(done: &Done, who: Who, metric: &str, unit: &str) -> Row {
    Row::empty(done.artefact, &done.case, who.name(), metric, unit)
}

/// The four metrics of every policy.
fn plain(done: &Done) -> Vec<Row> {
    let of = |who: Who, (metric, unit): (&str, &str)| {
        let empty = row(done, who, metric, unit);
        let Some(played) = done.played(who) else {
            return Row { note: done.problems().next(), ..empty };
        };
        let values: Vec<f64> = played.iter().map(|played| ours(played, metric)).collect();
        let clairvoyant: Option<Vec<f64>> = played.iter().map(|played| least(played, metric)).collect();
        let note = if done.artefact.starts_with('X') { None } else { note(done, who, metric) };
        let suspects = done.suspects.iter().find(|(other, _)| *other == who).map_or(0, |(_, count)| *count);
        let suspect =
            (suspects > 0).then(|| format!("{suspects} of {} suspect: the machine was busy", played.len()));
        let note = [note, suspect].into_iter().flatten().reduce(|one, other| format!("{one}; {other}"));
        Row {
            ours: stats::mean(&values).map(thousandths),
            spread: stats::sigma(&values).map(thousandths),
            clairvoyant: clairvoyant.and_then(|values| stats::mean(&values)).map(thousandths),
            paper: (done.artefact == "F11" && who == Who::GreenbagP && metric == "stalls").then_some(0.0),
            note,
            ..empty
        }
    };
    let policies = done.runs.iter().map(|(who, _)| *who);
    policies.flat_map(|who| METRICS.into_iter().map(move |metric| of(who, metric))).collect()
}

fn note(done: &Done, who: Who, metric: &str) -> Option<String> {
    let text = match (done.artefact, who, metric) {
        (_, Who::Marline, _) => "not in the paper",
        ("F11", Who::GreenbagP, "stalls") => "the text: the buffer is not exhausted and there is no interruption",
        ("F11", Who::Unrecovered, "stalls") => "the text: the video is interrupted",
        ("F12", _, "playback_time") if done.case.contains("spare") => {
            "plotted only; the bandwidth is 110 % of the video's rate, as the text's reasons require"
        }
        ("F12", _, "playback_time") => {
            "plotted only; the video's rate is 110 % of the bandwidth, so what the links carry decides, not recovery"
        }
        ("F14", ..) if done.case.contains("fades") => {
            "plotted only; three fades of 8 s at 300 kbit/s, Table II's average"
        }
        ("F14", ..) => "plotted only; Table II's averages as constant rates",
        (_, _, "stalls") => return None,
        _ => "plotted only",
    };
    Some(text.into())
}

/// Mean energy over the clairvoyant's mean.
fn ratios(done: &[Done]) -> Vec<Row> {
    let of = |done: &Done, who: Who| {
        Some(Row {
            ours: Some(thousandths(energy_ratio(done, who)?)),
            clairvoyant: Some(1.0),
            ..row(done, who, "energy_ratio", "1")
        })
    };
    let wanders = done.iter().filter(|done| done.artefact == "X-fluct" || done.artefact == TRACES);
    wanders
        .flat_map(|done| [Who::GreenbagP, Who::GreenbagE, Who::Marline].map(|who| of(done, who)))
        .flatten()
        .collect()
}

/// Mean energy over the clairvoyant's mean energy at equal playback times.
pub(super) fn energy_ratio(done: &Done, who: Who) -> Option<f64> {
    let played = done.played(who)?;
    let least: Option<Vec<f64>> = played.iter().map(|played| played.least_energy).collect();
    Some(done.mean(who, |played| played.energy)? / stats::mean(&least?)?)
}

/// What the text says in numbers.
fn said(done: &[Done]) -> Vec<Row> {
    let mut rows = Vec::new();
    rows.extend(best_segments(done, "F9a", &["1:1", "1:3", "1:5"], 1000.0));
    rows.extend(best_segments(done, "F9b", &["80%", "100%", "120%"], 2000.0));
    let savings = |artefact: &str| -> Vec<(&Done, f64)> {
        let of = done.iter().filter(|done| done.artefact == artefact);
        of.filter_map(|done| Some((done, saving(done)?))).collect()
    };
    let thirteen = savings("F13");
    let values: Vec<f64> = thirteen.iter().map(|(_, saving)| *saving).collect();
    if let (Some((done, _)), Some((least, most))) = (thirteen.first(), stats::range(&values)) {
        for (metric, paper, ours) in [("energy_saving_least", 1.0, least), ("energy_saving_most", 40.0, most)] {
            let note = Some(
                "of GB-P's energy, over 50 to 100 %; why ours has a wider range is not established".to_string(),
            );
            rows.push(Row {
                case: "50 to 100%".into(),
                paper: Some(paper),
                ours: Some(thousandths(ours)),
                note,
                ..row(done, Who::GreenbagE, metric, "%")
            });
        }
    }
    for (done, saving) in savings("F14") {
        let paper = match done.case.as_str() {
            "Stationary 1" => Some(14.0),
            "Stationary 2" => Some(24.0),
            "Mobile with fades" => Some(25.0),
            _ => None,
        };
        let note = Some("of GB-P's energy; links of constant rate, the paper's were real ones".to_string());
        rows.push(Row {
            paper,
            ours: Some(thousandths(saving)),
            note,
            ..row(done, Who::GreenbagE, "energy_saving", "%")
        });
    }
    if let Some(done) = done.iter().find(|done| (done.artefact, done.case.as_str()) == ("F14", "Stationary 1")) {
        rows.extend(wifi_alone(done));
    }
    rows
}

/// GB-E's saving on GB-P, in percent.
fn saving(done: &Done) -> Option<f64> {
    let energy = |who| done.mean(who, |played| played.energy);
    Some((1.0 - energy(Who::GreenbagE)? / energy(Who::GreenbagP)?) * 100.0)
}

/// "WiFi's playback time in this scenario is 44-70 seconds longer than that of other cases."
fn wifi_alone(done: &Done) -> Vec<Row> {
    let time = |who: Who| done.mean(who, |played| played.playback);
    let others = ALL.iter().filter(|who| !matches!(who, Who::WifiOnly | Who::Marline));
    let others: Vec<f64> = others.filter_map(|who| time(*who)).collect();
    let (Some(wifi), Some((least, most))) = (time(Who::WifiOnly), stats::range(&others)) else { return Vec::new() };
    let of = |metric: &str, paper: f64, ours: f64| Row {
        paper: Some(paper),
        ours: Some(thousandths(ours)),
        note: Some("than the others of the paper".into()),
        ..row(done, Who::WifiOnly, metric, "s")
    };
    vec![of("longer_at_least", 44.0, wifi - most), of("longer_at_most", 70.0, wifi - least)]
}

/// The sizes of segments that are as good as the best.
fn best_segments(done: &[Done], artefact: &'static str, families: &[&str], paper_upto: f64) -> Vec<Row> {
    let mut rows = Vec::new();
    for family in families {
        let times: Vec<(&Done, f64, f64)> = done
            .iter()
            .filter(|done| done.artefact == artefact)
            .filter_map(|done| {
                let kib = done.case.strip_prefix(family)?.trim().strip_suffix(" KiB")?.parse().ok()?;
                Some((done, kib, done.mean(Who::GreenbagP, |played| played.playback)?))
            })
            .collect();
        let Some(best) = times.iter().map(|(_, _, time)| *time).min_by(f64::total_cmp) else { continue };
        let good: Vec<f64> =
            times.iter().filter(|(.., time)| *time <= best * AS_GOOD).map(|(_, kib, _)| *kib).collect();
        let (Some((done, ..)), Some((from, upto))) = (times.first(), stats::range(&good)) else { continue };
        for (metric, paper, ours) in [("best_segment_from", 100.0, from), ("best_segment_to", paper_upto, upto)] {
            rows.push(Row {
                case: (*family).into(),
                paper: Some(paper),
                ours: Some(ours),
                note: Some("sizes within 1 % of the best one's playback time".into()),
                ..row(done, Who::GreenbagP, metric, "KiB")
            });
        }
    }
    rows
}

/// The paper's confidence intervals are about 1 % (§V-A1).
const AS_GOOD: f64 = 1.01;

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn played(playback: f64, energy: f64) -> Played {
        Played {
            playback,
            interruption: playback - 120.0,
            stalls: 0,
            energy,
            least_playback: 125.0,
            least_interruption: 5.0,
            least_energy: Some(100.0),
        }
    }

    pub(in super::super) fn done(artefact: &'static str, case: &str, runs: &[(Who, &[Played])]) -> Done {
        let runs = runs.iter().map(|(who, runs)| (*who, runs.iter().map(|played| Ok(*played)).collect())).collect();
        Done { artefact, case: case.into(), runs, suspects: Vec::new() }
    }

    #[test]
    fn a_saving_of_the_text_stands_beside_ours() {
        let runs: &[(Who, &[Played])] = &[
            (Who::LteOnly, &[played(143.0, 300.0)]),
            (Who::WifiOnly, &[played(187.0, 80.0)]),
            (Who::GreenbagP, &[played(121.0, 200.0)]),
            (Who::GreenbagE, &[played(121.0, 170.0)]),
        ];
        let rows = rows(&[done("F14", "Stationary 1", runs)], &[], By::Lab);
        assert!(rows.iter().all(|row| row.by == By::Lab));
        let of = |metric: &str| rows.iter().find(|row| row.metric == metric).unwrap();
        assert_eq!((of("energy_saving").paper, of("energy_saving").ours), (Some(14.0), Some(15.0)));
        assert_eq!((of("longer_at_least").paper, of("longer_at_least").ours), (Some(44.0), Some(44.0)));
        assert_eq!(of("longer_at_most").ours, Some(66.0));
        let energy = rows.iter().find(|row| row.metric == "energy" && row.policy == "greenbag-e").unwrap();
        assert_eq!((energy.paper, energy.ours, energy.clairvoyant), (None, Some(170.0), Some(100.0)));
        assert!(energy.note.as_ref().unwrap().starts_with("plotted only"));
    }

    #[test]
    fn the_best_segments_are_those_within_a_hundredth() {
        let of =
            |kib: u64, time: f64| done("F9a", &format!("1:3 {kib} KiB"), &[(Who::GreenbagP, &[played(time, 1.0)])]);
        let rows = rows(&[of(10, 50.0), of(100, 46.1), of(1000, 46.0), of(5000, 47.0)], &[], By::Sim);
        let best = |metric: &str| rows.iter().find(|row| row.metric == metric).and_then(|row| row.ours);
        assert_eq!((best("best_segment_from"), best("best_segment_to")), (Some(100.0), Some(1000.0)));
    }

    #[test]
    fn repetitions_become_mean_and_deviation_and_a_failure_a_null() {
        let two = [played(125.0, 110.0), played(127.0, 130.0)];
        let mut case = done("X-fluct", "80%", &[(Who::Marline, &two)]);
        case.suspects = vec![(Who::Marline, 1)];
        let of = |rows: &[Row], metric: &str| rows.iter().find(|row| row.metric == metric).cloned();
        let made = rows(std::slice::from_ref(&case), &[], By::Sim);
        let time = of(&made, "playback_time").unwrap();
        assert_eq!((time.ours, time.clairvoyant), (Some(126.0), Some(125.0)));
        assert!((time.spread.unwrap() - 1.414).abs() < 1e-9);
        assert!(time.note.unwrap().starts_with("1 of 2 suspect"));
        assert_eq!(of(&made, "energy_ratio").unwrap().ours, Some(1.2));
        let mut broken = case;
        broken.runs[0].1.push(Err("no end".into()));
        let made = rows(&[broken], &[], By::Sim);
        let time = of(&made, "playback_time").unwrap();
        assert!(time.ours.is_none() && time.note.unwrap().contains("no end"));
        assert!(of(&made, "energy_ratio").is_none());
    }
}
