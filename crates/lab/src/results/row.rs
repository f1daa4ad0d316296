//! Result row of `reproduce --json`: one figure of a paper beside the measured one.

use serde::{Deserialize, Serialize};

use super::Backend;

/// One figure. Missing values are null, not left out.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResultRow {
    /// Table or figure as the paper numbers it, such as `T5.12`.
    pub artefact: String,
    /// Scenario of the paper.
    pub case: String,
    /// The policy, as scenarios name it.
    pub policy: String,
    /// The measured quantity.
    pub metric: String,
    /// Unit of the values.
    pub unit: String,
    /// The paper's value.
    pub paper: Option<f64>,
    /// The value measured here: the median of the runs (thesis, Super-aggregation) or their mean (GreenBag, eMPTCP, BASS).
    #[serde(alias = "ours")]
    pub measured: Option<f64>,
    /// Standard deviation of the runs.
    pub spread: Option<f64>,
    /// Value of a clairvoyant client, which knows the future.
    pub clairvoyant: Option<f64>,
    /// Whether `measured` was simulated or measured in real time.
    #[serde(alias = "by")]
    pub backend: Backend,
    /// Share of the paper's workload that was run: `1`, `0.1`.
    pub scale: f64,
    /// What to consider when comparing the two values.
    pub note: Option<String>,
}

impl ResultRow {
    /// A row without values, for the full workload.
    pub(crate) fn empty(artefact: &str, case: &str, policy: &str, metric: &str, unit: &str) -> Self {
        Self {
            artefact: artefact.into(),
            case: case.into(),
            policy: policy.into(),
            metric: metric.into(),
            unit: unit.into(),
            paper: None,
            measured: None,
            spread: None,
            clairvoyant: None,
            backend: Backend::Sim,
            scale: 1.0,
            note: None,
        }
    }
}

/// Rounds to a thousandth; further digits are noise.
pub(crate) fn round_to_thousandths(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_all_fields_in_order_and_writes_missing_values_as_null() {
        let row =
            ResultRow { measured: Some(31.5), ..ResultRow::empty("T5.12", "LS", "single:lte", "time_lte", "s") };
        let text = serde_json::to_string(&row).unwrap();
        let expected = r#"{"artefact":"T5.12","case":"LS","policy":"single:lte","metric":"time_lte","unit":"s","paper":null,"measured":31.5,"spread":null,"clairvoyant":null,"backend":"sim","scale":1.0,"note":null}"#;
        assert_eq!(text, expected);
    }
}
