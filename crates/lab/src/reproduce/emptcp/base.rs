//! Table 2 and figures 3 and 4 of eMPTCP: the energy information base, computed from the device model that all
//! measurements use.
//!
//! The entries of table 2 are the paper's. The model `emptcp-s3` is fitted to them, so these rows show only how
//! well a model of this form can be fitted. Figures 3 and 4 are sampled at some rates; the paper prints no numbers
//! for them.

use marline_core::energy::{EnergyInfoBase, Model};
use marline_core::link::LinkKind;
use marline_core::units::{Bitrate, DataSize};

use crate::results::{ResultRow, round_to_thousandths};

/// Table 2: LTE rate, Wi-Fi rate below which LTE alone is best, Wi-Fi rate above which Wi-Fi alone is best; in
/// Mbit/s.
const TABLE_2: [(f64, f64, f64); 4] =
    [(0.5, 0.043, 0.234), (1.0, 0.134, 0.502), (1.5, 0.209, 0.803), (2.0, 0.304, 1.070)];
/// LTE rates of the columns of figure 3, in Mbit/s.
const LTE_RATES: [f64; 6] = [0.5, 1.0, 2.0, 4.0, 6.0, 10.0];
/// Transfer sizes of figure 4, in MB.
const TRANSFER_SIZES_MB: [u64; 3] = [1, 4, 16];

/// The rows of one of these artefacts.
pub(super) fn rows(artefact: &str, model: &Model) -> Vec<ResultRow> {
    let Some(base) = EnergyInfoBase::new(model, LinkKind::Wifi, LinkKind::Lte) else { return Vec::new() };
    match artefact {
        "T2" => table_2(&base),
        "F3" => figure_3(&base),
        _ => figure_4(&base),
    }
}

fn mbps(rate: f64) -> Bitrate {
    Bitrate::from_bits_per_sec((rate * 1e6).round() as u64)
}

fn value_row(artefact: &str, case: &str, metric: &str, unit: &str, measured: Option<f64>) -> ResultRow {
    ResultRow {
        measured: measured.map(round_to_thousandths),
        ..ResultRow::empty(artefact, case, model_name(), metric, unit)
    }
}

const fn model_name() -> &'static str {
    "eib"
}

/// Rows of table 2, with the deviation from the paper's entry.
fn table_2(base: &EnergyInfoBase<'_>) -> Vec<ResultRow> {
    let mut rows = Vec::new();
    for (lte, below, above) in TABLE_2 {
        let measured = base.row(mbps(lte));
        let case = format!("LTE {lte} Mbit/s");
        let make_row = |metric, paper: f64, measured: Option<Bitrate>| {
            let measured = measured.map(|rate| rate.as_mbps_f64());
            let off: Option<f64> = measured.map(|measured| (measured / paper - 1.0) * 100.0);
            let note = match off {
                Some(off) if off.abs() > 6.0 => {
                    format!(
                        "{off:+.0} %: no model with affine powers bends like this entry, the smallest of the table"
                    )
                }
                Some(off) => format!("{off:+.1} %"),
                None => "never".to_owned(),
            };
            ResultRow { paper: Some(paper), note: Some(note), ..value_row("T2", &case, metric, "Mbit/s", measured) }
        };
        rows.push(make_row("lte_only_below", below, Some(measured.second_below)));
        rows.push(make_row("wifi_only_above", above, measured.first_above));
    }
    rows
}

/// Rows of figure 3: energy per byte of both links divided by that of the better single link, for several Wi-Fi
/// rates.
fn figure_3(base: &EnergyInfoBase<'_>) -> Vec<ResultRow> {
    let mut rows = Vec::new();
    for lte in LTE_RATES {
        for share in [0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.5] {
            let wifi = lte * share;
            let case = format!("LTE {lte} Mbit/s");
            let relative = base.relative_energy(mbps(wifi), mbps(lte));
            rows.push(value_row(
                "F3",
                &case,
                &format!("both over the best single, Wi-Fi {wifi:.2}"),
                "1",
                relative,
            ));
        }
    }
    rows
}

/// Rows of figure 4: the range of Wi-Fi rates in which both links are best for a whole transfer, promotion and tail
/// included.
fn figure_4(base: &EnergyInfoBase<'_>) -> Vec<ResultRow> {
    let mut rows = Vec::new();
    for megabytes in TRANSFER_SIZES_MB {
        for lte in LTE_RATES {
            let case = format!("{megabytes} MB, LTE {lte} Mbit/s");
            let region = base.both_region(DataSize::from_bytes(megabytes * 1_000_000), mbps(lte));
            let note = region.is_none().then(|| "both are never best".to_owned());
            let from = region.map(|(from, _)| from.as_mbps_f64());
            let to = region.map(|(_, to)| to.as_mbps_f64());
            rows.push(ResultRow { note: note.clone(), ..value_row("F4", &case, "both_best_from", "Mbit/s", from) });
            rows.push(ResultRow { note, ..value_row("F4", &case, "both_best_to", "Mbit/s", to) });
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mptcp::testbed::ENERGY_MODEL;
    use crate::results::energy::device_model;

    #[test]
    fn table_2_is_reproduced_within_six_percent_except_its_first_entry() {
        let rows = rows("T2", &device_model(ENERGY_MODEL));
        assert_eq!(rows.len(), 8);
        for (at, row) in rows.iter().enumerate() {
            let off = row.measured.unwrap() / row.paper.unwrap() - 1.0;
            assert_eq!(off.abs() <= 0.06, at > 0, "{row:?}");
        }
    }

    #[test]
    fn both_links_are_best_for_more_rates_if_the_file_is_larger() {
        let rows = rows("F4", &device_model(ENERGY_MODEL));
        let widths: Vec<f64> = rows
            .chunks(2)
            .filter(|pair| pair[0].case.ends_with("LTE 2 Mbit/s"))
            .map(|pair| pair[1].measured.unwrap_or(0.0) - pair[0].measured.unwrap_or(0.0))
            .collect();
        assert!(widths.len() == 3 && widths[0] <= widths[1] && widths[1] < widths[2], "{widths:?}");
    }
}
