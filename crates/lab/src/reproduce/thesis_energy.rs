//! The thesis's phones: what a download would have drawn from their batteries (chapter 7).
//!
//! In: an outcome: how many bytes came over each link, and when. Out: joules and watts by the models that are fitted to
//! the thesis's tables 7.1 to 7.5 (`thesis-s6`, `thesis-s7` of `marline energy models`).
//!
//! 1. The first scenario was measured with the S6, all others with the S7.
//! 2. Both models are of the whole phone, 0.7 W of it always; they have no tails.
//! 3. The models are fitted to what they are compared with here: prices of each link to the single-link rows, the shared part
//!    and the price of crowded bits to 17 (S7) and 4 (S6) multi-link rows. So agreement with table 7.10 is no prediction; what
//!    the multi-link rows add is whether time and shares of the links are those of the paper.

use marline_core::energy::{Direction, Model};
use marline_core::link::LinkKind;
use marline_core::units::{Bitrate, DataSize, Duration, Instant};

use crate::results::energy::{device_model, payload_of};
use crate::results::{DownloadOutcome, SLOT_S};

/// What the phone drew from the start of the download to its end.
pub(super) fn phone_energy(outcome: &DownloadOutcome) -> f64 {
    let end = Instant::ZERO + Duration::from_secs_f64(outcome.seconds);
    outcome.energy_meter(phone_model(&outcome.case)).energy_so_far(end).total().as_joules_f64()
}

/// The phone's power in each slot; nothing where the timeline was not kept.
pub(super) fn phone_power(outcome: &DownloadOutcome) -> Vec<f64> {
    let model = phone_model(&outcome.case);
    let kept = outcome.links.iter().map(|link| link.timeline.len()).max().unwrap_or(0);
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
    // The last slot is only partly filled.
    (0..kept.saturating_sub(1)).map(slot).collect()
}

fn phone_model(case: &str) -> Model {
    device_model(if case == "HS-S6" { "thesis-s6" } else { "thesis-s7" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::outcome::tests::example_outcome;

    /// 250 MB over one link at a steady rate, in the time of table 7.10.
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
    fn single_links_draw_what_table_7_10_says() {
        let rows = [("HS-S6", true, 26.06, 58.68), ("HS-S6", false, 52.97, 103.10), ("HS-S7", true, 26.25, 50.20)];
        for (case, wifi, seconds, paper) in rows {
            let measured = phone_energy(&alone(case, wifi, seconds));
            assert!((measured / paper - 1.0).abs() < 0.05, "{case} {wifi}: {measured} J instead of {paper}");
        }
    }

    #[test]
    fn two_links_draw_more_than_one_and_the_phone_always_something() {
        let both = DownloadOutcome { case: "HS-S7".into(), ..example_outcome("marline", 0, 6.0) };
        let watts = phone_power(&both);
        assert!(watts.iter().all(|watts| *watts > 0.7) && watts.len() == 59);
        assert!(phone_energy(&both) > 6.0 * 0.7);
        assert!((phone_energy(&both) / 6.0 - watts.iter().sum::<f64>() / 59.0).abs() < 0.1);
        let idle = DownloadOutcome { links: Vec::new(), ..both };
        assert!((phone_energy(&idle) - 4.2).abs() < 1e-6);
    }
}
