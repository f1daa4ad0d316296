//! Each mechanism over second links from good to useless, without loss and with much of it: none may cost goodput.
//!
//! | mechanism | second link, kbit/s in each direction | loss |
//! |---|---|---|
//! | `ack-offload` | 50, 100, 400, 1000 | 0, 1, 3 % |
//! | `early-ack`, plain HTTP | 50, 100, 400, 1000 | 1, 3 % |
//! | `eifel-undo`, `withheld-ack` and `outage-revert`, which need no second link | 400 | 0, 1, 3 % |
//! | the default mechanisms (`all`) | 50 | 1 % |
//!
//! Nine pairs of each, and the median of their ratios.

use marline_core::units::Ratio;

use super::super::accel::run::BenchRun;
use super::Bench;
use super::paired::{self, Requirement, Row};
use crate::accel::{Contender, Topology};

/// One cell of the grid.
#[derive(Clone, PartialEq, Debug)]
struct Cell {
    name: &'static str,
    /// Names of the enabled mechanisms, separated by commas; empty: the default ones.
    mechanisms: &'static str,
    secure: bool,
    kbps: u32,
    loss: u32,
}

fn cells() -> Vec<Cell> {
    let cells = |name, mechanisms, secure, rates: &[u32], losses: &[u32]| {
        let pairs = rates.iter().flat_map(|kbps| losses.iter().map(move |loss| (*kbps, *loss)));
        pairs.map(|(kbps, loss)| Cell { name, mechanisms, secure, kbps, loss }).collect::<Vec<_>>()
    };
    let rates = [50, 100, 400, 1000];
    let mut all = cells("offload", "ack-offload", true, &rates, &[0, 1, 3]);
    all.extend(cells("hide", "early-ack", false, &rates, &[1, 3]));
    all.extend(cells("undo", "eifel-undo,withheld-ack,outage-revert", true, &[400], &[0, 1, 3]));
    all.extend(cells("all", "", true, &[50], &[1]));
    all
}

pub(super) fn units(bench: &Bench) -> Vec<BenchRun<'_>> {
    let mut units = Vec::new();
    // Our choice: at 3 % plain TCP needs some seconds for a stable figure; all cells together take less than two
    // hours.
    let (length, from) = bench.time(15, 3);
    for cell in cells() {
        let name = format!("{} {}k {}%", cell.name, cell.kbps, cell.loss);
        if !bench.wants("grid", &name) {
            continue;
        }
        let contender = if cell.mechanisms.is_empty() {
            Contender::default_mechanisms()
        } else {
            Contender::only("ours", cell.mechanisms)
        };
        let row = Row {
            name: format!("grid {name}"),
            is_tls: cell.secure,
            outage: None,
            length,
            from,
            requirements: vec![Requirement::OfPlain(0.97)],
            contender,
        };
        let world = move |seed| Topology {
            loss: Ratio::from_percent(cell.loss),
            cell: Some((cell.kbps, cell.kbps)),
            congestion: bench.congestion,
            ..Topology::default_links(seed)
        };
        units.extend(paired::units(bench, row, bench.runs(9), world));
    }
    units
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grid_has_twenty_four_cells_and_none_twice() {
        let all = cells();
        assert_eq!(all.len(), 24);
        for (at, cell) in all.iter().enumerate() {
            assert!(!all[..at].contains(cell), "{cell:?}");
        }
    }
}
