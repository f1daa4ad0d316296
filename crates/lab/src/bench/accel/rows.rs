//! The rows of `loss`, `loss-http`, `blackout`, `both` and `upload`: their links and floors.

use std::time::Duration;

use marline_core::units::Ratio;

use super::super::accel::run::BenchRun;
use super::Bench;
use super::paired::{self, Requirement, Row};
use crate::accel::{Contender, Topology};

struct RowSpec {
    case: &'static str,
    row: &'static str,
    secure: bool,
    rtt: u64,
    loss: u32,
    /// The second link's downstream rate in kbit/s.
    down: u32,
    /// Seconds of each outage.
    outage_s: u64,
    /// The client uploads instead of downloading.
    up: bool,
    requirements: &'static [Requirement],
}

const fn row(case: &'static str, row: &'static str, secure: bool, requirements: &'static [Requirement]) -> RowSpec {
    RowSpec { case, row, secure, rtt: 50, loss: 0, down: 900, outage_s: 0, up: false, requirements }
}

use Requirement::{NoStall, OfIdeal, OfPlain};

/// The floors of issue 6. It has none for uploads, which must not be slower than plain TCP.
const ROWS: [RowSpec; 15] = [
    RowSpec { loss: 1, ..row("loss", "50ms", true, &[OfPlain(4.0)]) },
    RowSpec { loss: 1, rtt: 200, ..row("loss", "200ms", true, &[OfPlain(8.0)]) },
    RowSpec { loss: 1, ..row("loss-http", "1% 50ms", false, &[OfIdeal(0.95)]) },
    RowSpec { loss: 1, rtt: 200, ..row("loss-http", "1% 200ms", false, &[OfIdeal(0.9)]) },
    RowSpec { loss: 3, ..row("loss-http", "3% 50ms", false, &[OfIdeal(0.9)]) },
    RowSpec { loss: 1, down: 600, ..row("loss-http", "1% thin", false, &[OfIdeal(0.9)]) },
    RowSpec { loss: 2, down: 600, ..row("loss-http", "2% thin", false, &[OfIdeal(0.9)]) },
    RowSpec { loss: 3, down: 600, ..row("loss-http", "3% thin", false, &[OfPlain(5.0)]) },
    RowSpec { outage_s: 10, ..row("blackout", "10s", true, &[OfIdeal(0.94)]) },
    RowSpec { outage_s: 2, ..row("blackout", "2s", true, &[OfIdeal(0.95)]) },
    RowSpec { loss: 1, outage_s: 2, ..row("both", "tls", true, &[OfPlain(5.0), NoStall]) },
    RowSpec { loss: 1, outage_s: 2, ..row("both", "http", false, &[OfPlain(8.0), NoStall]) },
    RowSpec { up: true, loss: 1, ..row("upload", "1% 50ms", false, &[OfPlain(1.0)]) },
    RowSpec { up: true, loss: 1, rtt: 200, ..row("upload", "1% 200ms", false, &[OfPlain(1.0)]) },
    RowSpec { up: true, outage_s: 10, ..row("upload", "dark 10s", false, &[OfPlain(1.0)]) },
];

pub(super) fn units<'a>(bench: &'a Bench, case: &str) -> Vec<BenchRun<'a>> {
    let mut units = Vec::new();
    for written in ROWS.iter().filter(|written| written.case == case && bench.wants(case, written.row)) {
        let (length, from) = match written.outage_s {
            // Reductions are undone after four seconds at the earliest, which a quick run must cover.
            0 if written.up && bench.quick => (Duration::from_secs(12), Duration::from_secs(1)),
            0 => bench.time(36, 6),
            // A quick run has one outage, too.
            outage_s if bench.quick => (Duration::from_secs(18 + outage_s), Duration::ZERO),
            _ => (Duration::from_secs(60), Duration::ZERO),
        };
        let row = Row {
            name: format!("{case} {}", written.row),
            is_tls: written.secure,
            outage: (written.outage_s > 0).then(|| Duration::from_secs(written.outage_s)),
            length,
            from,
            requirements: written.requirements.to_vec(),
            // Bytes of TLS cannot be fetched, and those of an upload need not be.
            contender: if written.secure || written.up {
                Contender::default_mechanisms()
            } else {
                Contender::with_early_ack()
            },
        };
        let world = move |seed| Topology {
            rtt: Duration::from_millis(written.rtt),
            loss: Ratio::from_percent(written.loss),
            is_upload: written.up,
            cell: Some((written.down, 400)),
            congestion: bench.congestion,
            ..Topology::default_links(seed)
        };
        units.extend(paired::units(bench, row, bench.runs(if case == "both" { 20 } else { 5 }), world));
    }
    units
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_rows_have_one_name_and_all_belong_to_a_case() {
        let mut names: Vec<String> = ROWS.iter().map(|row| format!("{} {}", row.case, row.row)).collect();
        assert!(ROWS.iter().all(|row| super::super::CASES.contains(&row.case)));
        names.sort();
        names.dedup();
        assert_eq!(names.len(), ROWS.len());
    }
}
