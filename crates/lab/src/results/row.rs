//! One figure of a paper beside ours: a row of `reproduce --json`.

use serde::{Deserialize, Serialize};

use super::Backend;

/// A figure. Values that do not exist are null and not left out.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResultRow {
    /// The table or figure as the paper numbers it: `T5.12`.
    pub artefact: String,
    /// The paper's scenario.
    pub case: String,
    /// The policy, as it is written in scenarios.
    pub policy: String,
    /// What is measured.
    pub metric: String,
    /// Its unit.
    pub unit: String,
    /// The paper's figure.
    pub paper: Option<f64>,
    /// Ours: the median of the runs, or their mean where the paper has means (GreenBag).
    #[serde(alias = "ours")]
    pub measured: Option<f64>,
    /// The standard deviation of the runs.
    pub spread: Option<f64>,
    /// What a client could have reached that knew the future.
    pub clairvoyant: Option<f64>,
    /// Who made ours.
    #[serde(alias = "by")]
    pub backend: Backend,
    /// How much of the paper's work was done: `1`, `0.1`.
    pub scale: f64,
    /// What must be known to compare the two.
    pub note: Option<String>,
}

impl ResultRow {
    /// One without figures, of all the work.
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

/// To a thousandth: the rest is noise.
pub(crate) fn round_to_thousandths(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_all_fields_in_their_order_and_nulls() {
        let row =
            ResultRow { measured: Some(31.5), ..ResultRow::empty("T5.12", "LS", "single:lte", "time_lte", "s") };
        let text = serde_json::to_string(&row).unwrap();
        let expected = r#"{"artefact":"T5.12","case":"LS","policy":"single:lte","metric":"time_lte","unit":"s","paper":null,"measured":31.5,"spread":null,"clairvoyant":null,"backend":"sim","scale":1.0,"note":null}"#;
        assert_eq!(text, expected);
    }
}
