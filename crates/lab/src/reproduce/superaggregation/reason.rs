//! Why a published gain does not come back, by what the sender's TCP_INFO showed.
//!
//! In: cells of the paper's form and of plain TCP. Out: one sentence, or none if nothing explains it.
//!
//! The sentences are about this run's numbers: each is said only where its number was seen.

use super::cell::{Cell, Tcp};
use crate::Congestion;
use crate::evidence::stats;

/// See the [module](self). `share`: plain TCP's percent of the ideal, where that was measured.
pub(super) fn why(sender: Congestion, cells: &[&Cell], plain: &[&Cell], share: Option<f64>) -> Option<String> {
    let of = |cells: &[&Cell], figure: fn(&Tcp) -> Option<f64>| {
        let values: Vec<f64> = cells.iter().filter_map(|cell| figure(cell.tcp.as_ref()?)).collect();
        stats::median(&values)
    };
    let frozen = cells.iter().any(|cell| cell.in_force.iter().any(|word| word.starts_with("freeze")));
    let ssthresh = |tcp: &Tcp| tcp.least_ssthresh.map(f64::from);
    let backoff = |tcp: &Tcp| Some(f64::from(tcp.most_backoff));
    let mut parts: Vec<String> = Vec::new();
    match (of(cells, ssthresh), of(plain, ssthresh)) {
        (Some(ours), Some(theirs)) if frozen && ours < theirs / 2.0 => {
            let times = of(cells, backoff).unwrap_or(0.0);
            parts.push(format!(
                "the sender cut ssthresh to {ours:.0} segments under the zero window (plain: {theirs:.0}) and doubled its timer \
                 {times:.0} times: it does not persist while data is outstanding"
            ));
        }
        _ => {}
    }
    if let Some(share) = share.filter(|share| *share > 85.0) {
        parts.push(format!("plain TCP of today has {share:.0} % of the ideal already"));
    }
    if sender == Congestion::Bbr {
        parts.push("BBR's rate does not follow losses".to_owned());
    }
    if cells.iter().all(|cell| cell.in_force.is_empty() && cell.left_alone.is_none()) && has_helper(cells) {
        parts.push("no mechanism was in force".to_owned());
    }
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// Whether somebody was to help in these.
fn has_helper(cells: &[&Cell]) -> bool {
    cells.iter().any(|cell| ["paper", "ours"].contains(&cell.way.as_str()))
}

#[cfg(test)]
mod tests {
    use super::super::setting::{Case, cases};
    use super::*;

    fn cell(case: &Case, way: usize, ssthresh: u32, backoff: u32, force: &[&str]) -> Cell {
        let tcp = Tcp {
            least_ssthresh: Some(ssthresh),
            cwnd: 100,
            most_backoff: backoff,
            most_rto: 300.0,
            retransmitted: 0,
        };
        Cell {
            tcp: Some(tcp),
            in_force: force.iter().map(|word| (*word).to_owned()).collect(),
            ..Cell::new(case, &case.ways[way], Congestion::Cubic, 0)
        }
    }

    #[test]
    fn a_sentence_is_said_only_where_its_number_was_seen() {
        let case = &cases("F6")[0];
        let (plain, frozen) = (cell(case, 0, 125, 1, &[]), cell(case, 1, 2, 3, &["freeze"]));
        let said = why(Congestion::Cubic, &[&frozen], &[&plain], Some(93.0)).unwrap();
        assert!(said.contains("ssthresh to 2 segments under the zero window (plain: 125)"), "{said}");
        assert!(said.contains("93 % of the ideal"), "{said}");
        let idle = cell(case, 1, 120, 1, &[]);
        assert_eq!(why(Congestion::Cubic, &[&idle], &[&plain], Some(60.0)).unwrap(), "no mechanism was in force");
        let works = cell(case, 1, 120, 1, &["freeze"]);
        assert_eq!(why(Congestion::Cubic, &[&works], &[&plain], None), None);
    }
}
