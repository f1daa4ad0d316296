//! `marline paths eib`: prints the energy information base of a device in the form of Table 2 of the eMPTCP paper.

use std::path::Path;

use marline_core::energy::{EibRow, EnergyInfoBase};
use marline_core::link::LinkKind;
use marline_core::units::Bitrate;
use marline_terminal::table::Table;
use serde::Serialize;

use crate::args::JsonArgs;
use crate::{CliError, ConfigFile, energy};

/// One row. Serialises to one element of `rows` of `--json`.
#[derive(Serialize)]
struct JsonRow {
    /// Rate of the second link, for which the thresholds hold.
    second_mbps: f64,
    /// Below this rate of the first link, the second link alone is best.
    second_below_mbps: f64,
    /// Above this rate of the first link, the first link alone is best; null: at no rate.
    first_above_mbps: Option<f64>,
    /// Whether both links together are best between the thresholds; if not, the two are equal.
    both: bool,
}

/// Prints the energy information base.
pub(super) fn run(
    model: Option<&str>,
    (first, second): (LinkKind, LinkKind),
    format: JsonArgs,
    config: Option<&Path>,
) -> Result<(), CliError> {
    let configured = ConfigFile::read(config)?.energy_model;
    let no_model =
        || CliError::usage("the energy model is `none`, which has no radio: name another one with --energy-model");
    let model = energy::select_model(model, configured.as_deref())?.ok_or_else(no_model)?;
    let Some(base) = EnergyInfoBase::new(&model, first, second) else {
        let missing = if model.radio(first).is_none() { first } else { second };
        return Err(CliError::usage(format!(
            "the model {} has no {missing} radio; `marline energy show {0}` lists its radios",
            model.name()
        )));
    };
    let rows: Vec<JsonRow> = base.rows(&rates()).iter().map(row_json).collect();
    let value = serde_json::json!({ "model": model.name(), "first": first, "second": second, "rows": rows });
    format.print(&value, |_| table(model.name(), first, second, &rows))
}

/// Rates of the second link: the four of the paper (500 to 2000 kbit/s), and higher ones that today's links have.
fn rates() -> Vec<Bitrate> {
    let kbps = [500, 1000, 1500, 2000, 3000, 5000, 8000, 12_000, 20_000, 50_000, 100_000];
    kbps.map(|kbps: u64| Bitrate::from_bits_per_sec(kbps * 1000)).into()
}

fn row_json(row: &EibRow) -> JsonRow {
    JsonRow {
        second_mbps: row.second.as_mbps_f64(),
        second_below_mbps: row.second_below.as_mbps_f64(),
        first_above_mbps: row.first_above.map(Bitrate::as_mbps_f64),
        both: row.has_both,
    }
}

fn table(model: &str, first: LinkKind, second: LinkKind, eib_rows: &[JsonRow]) -> String {
    let mut table = Table::without_header();
    table.row([
        format!("{second}, Mbit/s"),
        format!("{second} alone below"),
        "both".into(),
        format!("{first} alone above"),
    ]);
    let three_decimals = |rate: f64| format!("{rate:.3}");
    for line in eib_rows {
        let first_above = line.first_above_mbps.map_or_else(|| "never".to_owned(), three_decimals);
        let both = match line.first_above_mbps {
            _ if !line.both => "never".to_owned(),
            Some(first_alone) => {
                format!("{} to {}", three_decimals(line.second_below_mbps), three_decimals(first_alone))
            }
            None => format!("from {}", three_decimals(line.second_below_mbps)),
        };
        table.row([format!("{:.1}", line.second_mbps), three_decimals(line.second_below_mbps), both, first_above]);
    }
    format!("{model}: links with the least energy per byte, by the rate of the {first} link in Mbit/s\n\n{table}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_the_range_in_which_both_links_are_best() {
        let line =
            |both, above| JsonRow { second_mbps: 1.0, second_below_mbps: 0.234, first_above_mbps: above, both };
        let text = table("m", LinkKind::Wifi, LinkKind::Lte, &[line(true, Some(0.502)), line(false, None)]);
        let lines: Vec<&str> = text.lines().skip(2).collect();
        assert_eq!(
            lines,
            [
                "lte, Mbit/s  lte alone below  both            wifi alone above",
                "1.0          0.234            0.234 to 0.502  0.502",
                "1.0          0.234            never           never",
            ]
        );
    }
}
