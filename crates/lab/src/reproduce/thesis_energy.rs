//! Energy of the thesis's phones during a download (chapter 7), computed from the bytes of each link over time. The
//! models are fitted to tables 7.1 to 7.5 of the thesis (`thesis-s6`, `thesis-s7` of `marline energy models`).
//!
//! 1. The first scenario was measured with the S6, all others with the S7.
//! 2. Both models describe the whole phone, with a constant 0.7 W; they have no tails.
//! 3. The models are fitted to the values that they are compared with here: the coefficients of each link to the
//!    single-link rows, the shared part and the cost of simultaneous use to 17 (S7) and 4 (S6) multi-link rows. So
//!    agreement with table 7.10 is not a prediction. The multi-link rows only show whether time and shares of the
//!    links match the paper.

use marline_core::energy::{Direction, Model};
use marline_core::link::LinkKind;
use marline_core::units::{Bitrate, DataSize, Duration, Instant};

use crate::results::energy::{device_model, payload_of};
use crate::results::{DownloadOutcome, SLOT_S};

/// Energy of the phone from the start of the download to its end, in joules.
pub(super) fn phone_energy(outcome: &DownloadOutcome) -> f64 {
    let end = Instant::ZERO + Duration::from_secs_f64(outcome.seconds);
    outcome.energy_meter(phone_model(&outcome.case)).energy_so_far(end).total().as_joules_f64()
}

/// Power of the phone in each slot, in watts; empty if the timeline was not stored.
pub(super) fn phone_power(outcome: &DownloadOutcome) -> Vec<f64> {
    let model = phone_model(&outcome.case);
    let slot_count = outcome.links.iter().map(|link| link.timeline.len()).max().unwrap_or(0);
    let slot = |at: usize| {
        let loads: Vec<(LinkKind, Direction, Bitrate)> = outcome
            .links
            .iter()
            .filter_map(|link| Some((link.kind, *link.timeline.get(at).filter(|bytes| **bytes > 0)?)))
            .map(|(kind, bytes)| {
                let rate = DataSize::from_bytes(payload_of(bytes)) / Duration::from_secs_f64(SLOT_S);
                (kind, Direction::Down, rate)
            })
            .collect();
        (model.active_power(&loads) + model.platform()).as_watts_f64()
    };
    // The last slot is only partly used.
    (0..slot_count.saturating_sub(1)).map(slot).collect()
}

fn phone_model(case: &str) -> Model {
    device_model(if case == "HS-S6" { "thesis-s6" } else { "thesis-s7" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::outcome::tests::example_outcome;

    /// A download of 250 MB over one link at a constant rate, in the time of table 7.10.
    fn alone(case: &str, wifi: bool, seconds: f64) -> DownloadOutcome {
        let mut outcome = DownloadOutcome { case: case.into(), ..example_outcome("single", 0, seconds) };
        for link in &mut outcome.links {
            link.timeline = Vec::new();
            let used = (link.kind == LinkKind::Wifi) == wifi;
            link.ip_bytes = if used { 250_000_000 / 1448 * 1500 } else { 0 };
            link.span_s = used.then_some((0.0, seconds));
        }
        outcome
    }

    #[test]
    fn single_links_use_the_energy_of_table_7_10() {
        let rows = [("HS-S6", true, 26.06, 58.68), ("HS-S6", false, 52.97, 103.10), ("HS-S7", true, 26.25, 50.20)];
        for (case, wifi, seconds, paper) in rows {
            let measured = phone_energy(&alone(case, wifi, seconds));
            assert!((measured / paper - 1.0).abs() < 0.05, "{case} {wifi}: {measured} J instead of {paper}");
        }
    }

    #[test]
    fn two_links_use_more_than_one_and_the_phone_has_a_base_power() {
        let both = DownloadOutcome { case: "HS-S7".into(), ..example_outcome("marline", 0, 6.0) };
        let watts = phone_power(&both);
        assert!(watts.iter().all(|watts| *watts > 0.7) && watts.len() == 59);
        assert!(phone_energy(&both) > 6.0 * 0.7);
        assert!((phone_energy(&both) / 6.0 - watts.iter().sum::<f64>() / 59.0).abs() < 0.1);
        let idle = DownloadOutcome { links: Vec::new(), ..both };
        assert!((phone_energy(&idle) - 4.2).abs() < 1e-6);
    }
}
