//! The numbers that the multi-link HTTP thesis publishes, as data (`thesis.toml`). Tests check them against statements in
//! the text of the thesis.
//!
//! Cases and policies have the names of `scenarios/thesis.toml`: high-speed links with a Samsung S6 and S7 (`HS-S6`,
//! `HS-S7`), low-speed Wi-Fi (`LS`), and the dynamic scenarios; a single link, an equal split (`naive`), and the thesis's
//! Algorithms 1 to 3 (`static-limit`, `dynamic-limit`, `bdp-limit`).

use std::collections::BTreeMap;

use crate::LabError;

/// One value of the thesis.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct PaperFigure {
    /// Table or figure, such as `T5.12`.
    pub(super) artefact: &'static str,
    /// Case of the scenario, such as `HS-S6`.
    pub(super) case: String,
    /// Policy, such as `bdp-limit` or `single:wifi`.
    pub(super) policy: String,
    /// The measured quantity.
    pub(super) metric: &'static str,
    pub(super) unit: &'static str,
    /// The value; `None` where the table has a dash.
    pub(super) value: Option<f64>,
}

/// Metrics and units of each table, in the order of its columns.
pub(super) const METRICS: [(&str, &[(&str, &str)]); 5] = [
    (
        "T5.12",
        &[
            ("time_wifi", "s"),
            ("time_lte", "s"),
            ("link_delta", "s"),
            ("throughput_wifi", "Mbit/s"),
            ("throughput_lte", "Mbit/s"),
            ("sigma_wifi", "Mbit/s"),
            ("sigma_lte", "Mbit/s"),
        ],
    ),
    // `sigma`: standard deviation of the throughput. `link_delta`: difference of the links' times.
    // Figure 5.7 has no values of its own: its bars are whole downloads, the time of the slower link in table 5.12.
    ("F5.7", &[("time", "s")]),
    (
        "T6.18",
        &[
            ("time", "s"),
            ("cpu_p50", "%"),
            ("cpu_cv", "%"),
            ("cpu_integral", "% s"),
            ("cpu_max", "%"),
            ("cpu_p90", "%"),
            ("cpu_p05", "%"),
        ],
    ),
    ("T6.19", &[("time", "s"), ("memory_median", "KB"), ("memory_cv", "%"), ("memory_integral", "KB s")]),
    // Power and energy of the whole phone with the screen on, during the download and in the radio's tail after it. What
    // the thesis calls "now-energy" is the power.
    (
        "T7.10",
        &[("time", "s"), ("power_peak", "W"), ("power_p90", "W"), ("energy_main", "J"), ("energy_tail", "J")],
    ),
];

/// The cases of figure 5.7, the dynamic scenarios: the Wi-Fi "TechnoWLAN" with a stationary (`TS`) and a moving phone
/// (`TM`), and an office's Wi-Fi "AlwaysOnline" (`AO`).
pub(super) const DYNAMIC_CASES: [&str; 3] = ["TS", "TM", "AO"];

/// All values of the thesis.
#[derive(Clone, Debug)]
pub(super) struct ThesisFigures {
    figures: Vec<PaperFigure>,
}

impl ThesisFigures {
    /// Reads the values of `thesis.toml` and derives those of figure 5.7.
    pub(super) fn thesis() -> Result<Self, LabError> {
        let wrong = |message: String| LabError::Spec(format!("the thesis's figures: {message}"));
        let tables: BTreeMap<String, Vec<String>> =
            toml::from_str(include_str!("thesis.toml")).map_err(|error| wrong(error.to_string()))?;
        let mut figures = Vec::new();
        for (artefact, metrics) in METRICS {
            for line in tables.get(artefact).into_iter().flatten() {
                let fields: Vec<&str> = line.split(' ').collect();
                let [case, policy, values @ ..] = fields.as_slice() else { return Err(wrong(line.clone())) };
                if values.len() != metrics.len() {
                    return Err(wrong(format!("{artefact}: {line}: {} values expected", metrics.len())));
                }
                for ((metric, unit), value) in metrics.iter().zip(values) {
                    let value = match *value {
                        "-" => None,
                        value => Some(value.parse().map_err(|_| wrong(format!("{artefact}: {line}: {value}")))?),
                    };
                    let (case, policy) = (case.to_string(), policy.to_string());
                    figures.push(PaperFigure { artefact, case, policy, metric, unit, value });
                }
            }
        }
        let mut paper = Self { figures };
        let slower: Vec<PaperFigure> = paper
            .figures
            .iter()
            .filter(|f| {
                f.artefact == "T5.12" && f.metric == "time_wifi" && DYNAMIC_CASES.contains(&f.case.as_str())
            })
            .map(|f| PaperFigure {
                artefact: "F5.7",
                metric: "time",
                value: paper.time(&f.case, &f.policy),
                ..f.clone()
            })
            .collect();
        paper.figures.extend(slower);
        Ok(paper)
    }

    /// A value; `None` if the thesis has none.
    pub(super) fn value(&self, artefact: &str, case: &str, policy: &str, metric: &str) -> Option<f64> {
        let wanted =
            |f: &&PaperFigure| f.artefact == artefact && f.case == case && f.policy == policy && f.metric == metric;
        self.figures.iter().find(wanted)?.value
    }

    /// Time of a whole download according to table 5.12: that of the slower link.
    pub(super) fn time(&self, case: &str, policy: &str) -> Option<f64> {
        let value_of = |link: &str| self.value("T5.12", case, policy, link);
        [value_of("time_wifi"), value_of("time_lte")].into_iter().flatten().reduce(f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::stats;

    const CASES: [&str; 6] = ["HS-S6", "HS-S7", "LS", "TS", "TM", "AO"];

    fn near(a: f64, b: f64) {
        assert!((a - b).abs() < 0.006, "{a} instead of {b}");
    }

    fn mean(paper: &ThesisFigures, rows: &[(&str, &str)], metric: &str) -> f64 {
        let values: Vec<f64> =
            rows.iter().map(|(case, policy)| paper.value("T5.12", case, policy, metric).unwrap()).collect();
        stats::mean(&values).unwrap()
    }

    #[test]
    fn the_values_give_the_averages_in_the_text() {
        let paper = ThesisFigures::thesis().unwrap();
        // Table 5.10.
        let second = CASES.map(|case| (case, "dynamic-limit"));
        near(mean(&paper, &second, "link_delta"), 2.96);
        near(mean(&paper, &second, "sigma_wifi"), 12.92);
        near(mean(&paper, &second, "sigma_lte"), 11.18);
        // Table 5.11.
        let fastest =
            [("AO", "dynamic-limit"), ("TS", "naive"), ("TM", "naive"), ("LS", "bdp-limit"), ("HS-S7", "naive")];
        near(mean(&paper, &fastest, "throughput_lte"), 73.39);
        // §5.1.2.
        let multi = ["naive", "static-limit", "dynamic-limit", "bdp-limit"];
        near(mean(&paper, &multi.map(|policy| ("LS", policy)), "throughput_lte"), 65.87);
        near(mean(&paper, &multi.map(|policy| ("HS-S7", policy)), "throughput_lte"), 49.77);
    }

    #[test]
    fn the_values_give_the_ratios_of_table_5_2() {
        let paper = ThesisFigures::thesis().unwrap();
        let ratio =
            |case, policy, single| paper.time(case, policy).unwrap() / paper.time(case, single).unwrap() * 100.0;
        near(ratio("HS-S6", "naive", "single:wifi"), 124.17);
        near(ratio("HS-S6", "bdp-limit", "single:lte"), 31.49);
        near(ratio("HS-S7", "bdp-limit", "single:wifi"), 63.05);
        near(ratio("HS-S7", "static-limit", "single:lte"), 52.92);
    }

    #[test]
    fn the_link_deltas_are_the_differences_of_the_times() {
        let paper = ThesisFigures::thesis().unwrap();
        for case in CASES {
            for policy in ["naive", "static-limit", "dynamic-limit", "bdp-limit"] {
                let value_of = |metric| paper.value("T5.12", case, policy, metric).unwrap();
                near((value_of("time_wifi") - value_of("time_lte")).abs(), value_of("link_delta"));
            }
        }
    }

    #[test]
    fn the_values_give_the_correlation_of_table_6_17() {
        let paper = ThesisFigures::thesis().unwrap();
        let values_of = |metric| {
            let cases = ["AO", "HS-S7", "TS", "TM", "LS"];
            cases.map(|case| paper.value("T6.18", case, "bdp-limit", metric).unwrap())
        };
        let (times, medians) = (values_of("time"), values_of("cpu_p50"));
        let centred = |values: [f64; 5]| values.map(|value| value - stats::mean(&values).unwrap());
        let (times, medians) = (centred(times), centred(medians));
        let dot = |a: [f64; 5], b: [f64; 5]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        near(dot(times, medians) / (dot(times, times) * dot(medians, medians)).sqrt(), -0.81);
    }

    #[test]
    fn the_values_give_the_energies_in_the_text() {
        let paper = ThesisFigures::thesis().unwrap();
        let energy = |case, policy| paper.value("T7.10", case, policy, "energy_main").unwrap();
        // Table 7.2 and §7.3.
        near(energy("HS-S6", "bdp-limit") / energy("HS-S6", "single:wifi") * 100.0, 128.72);
        near(energy("HS-S7", "naive") / energy("HS-S7", "single:lte") * 100.0, 87.21);
        near(energy("TS", "bdp-limit") / energy("TS", "single:lte") * 100.0, 119.76);
        near(energy("AO", "bdp-limit") / energy("AO", "single:lte") * 100.0, 104.89);
    }

    #[test]
    fn every_table_has_its_35_rows_and_figure_5_7_its_18() {
        let paper = ThesisFigures::thesis().unwrap();
        let rows = |artefact: &str, metric: &str| {
            paper.figures.iter().filter(|f| f.artefact == artefact && f.metric == metric).count()
        };
        assert_eq!((rows("T5.12", "link_delta"), rows("T6.18", "time"), rows("T6.19", "time")), (35, 35, 35));
        assert_eq!((rows("F5.7", "time"), rows("T7.10", "energy_main")), (18, 35));
        assert_eq!(paper.value("F5.7", "AO", "bdp-limit", "time"), Some(14.94));
        assert_eq!(paper.value("T5.12", "LS", "single:lte", "time_lte"), None);
    }
}
