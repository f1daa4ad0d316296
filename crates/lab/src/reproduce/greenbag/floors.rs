//! What is asked of our own policy in these cases, and whether it was met.
//!
//! 1. Constant links, Q up to 90 %: played within 1 s of the clairvoyant, on at most 5 % more than its energy, and never
//!    on more than half a percent above GB-P's.
//! 2. Constant links, Q of 110 and 120 %: within 2.5 s of the clairvoyant, and sooner than GB-P.
//! 3. Links that wander and recorded ones: in no repetition more than 0.3 s after GB-P.
//! 4. Links that wander: mean energy over the clairvoyant's at equal playback time, by scenario. `AGAIN` of `core::stream`
//!    was chosen on the first 20 draws, so these floors are held only on draws that it was tuned on.
//! 5. Holes with a tenth of bandwidth to spare (figure 12, `spare`): no later than GB-P and 0.3 s.

use super::figures::TRACES;
use super::rows::energy_ratio;
use super::runner::Done;
use super::setting::{Played, Who};
use crate::reproduce::floor::{Bound, Floor};

/// All that apply.
pub(super) fn floors(done: &[Done]) -> Vec<Floor> {
    done.iter().flat_map(|done| of(done).unwrap_or_default()).collect()
}

fn of(done: &Done) -> Option<Vec<Floor>> {
    let make = |metric, says, ours, most, unit| Floor {
        artefact: done.artefact,
        case: done.case.clone(),
        who: Who::Marline.name(),
        metric,
        says,
        ours,
        bound: Bound::AtMost(most),
        unit,
        note: None,
    };
    let mean = |who, figure: fn(&Played) -> f64| done.mean(who, figure);
    let time = |played: &Played| played.playback;
    let energy = |played: &Played| played.energy;
    let floors = match done.artefact {
        "F13" | "F14" if done.case != "100%" && !done.case.contains("fades") => {
            let least = done.played(Who::Marline)?.first()?.least_energy?;
            let joules = mean(Who::Marline, energy)?;
            vec![
                make(
                    "playback_time",
                    "at most the clairvoyant's + 1 s",
                    mean(Who::Marline, time)?,
                    mean(Who::Marline, |played| played.least_playback)? + 1.0,
                    "s",
                ),
                make("energy", "at most the clairvoyant's + 5 %", joules, least * 1.05, "J"),
                make("energy", "at most GB-P's + 0.5 %", joules, mean(Who::GreenbagP, energy)? * 1.005, "J"),
            ]
        }
        "X-over" => {
            let ours = mean(Who::Marline, time)?;
            let least = mean(Who::Marline, |played| played.least_playback)?;
            vec![
                make("playback_time", "at most the clairvoyant's + 2.5 s", ours, least + 2.5, "s"),
                make("playback_time", "below GB-P's", ours, mean(Who::GreenbagP, time)? - 0.001, "s"),
            ]
        }
        "X-fluct" => {
            let most = match done.case.as_str() {
                "80%" | "Stationary 1" => 1.15,
                "60%" | "Stationary 2" => 1.25,
                _ => 1.45,
            };
            let ratio = energy_ratio(done, Who::Marline)?;
            vec![
                Floor {
                    note: Some("on the draws that a constant of marline was chosen on".into()),
                    ..make("energy_ratio", "mean energy over the clairvoyant's", ratio, most, "")
                },
                make("playback_time", "in every run at most GB-P's + 0.3 s", latest(done)?, 0.3, "s"),
            ]
        }
        TRACES => vec![make("playback_time", "at most GB-P's + 0.3 s", latest(done)?, 0.3, "s")],
        "F12" if done.case.contains("spare") => {
            let bound = mean(Who::GreenbagP, time)? + 0.3;
            vec![make("playback_time", "at most GB-P's + 0.3 s", mean(Who::Marline, time)?, bound, "s")]
        }
        _ => Vec::new(),
    };
    Some(floors)
}

/// By how much our policy ended after GB-P in the repetition in which that was most.
fn latest(done: &Done) -> Option<f64> {
    let (ours, theirs) = (done.played(Who::Marline)?, done.played(Who::GreenbagP)?);
    ours.iter().zip(&theirs).map(|(ours, theirs)| ours.playback - theirs.playback).reduce(f64::max)
}

#[cfg(test)]
mod tests {
    use super::super::rows::tests::{done, played};
    use super::*;

    #[test]
    fn constant_links_have_three_floors_below_the_full_rate() {
        let runs: &[(Who, &[Played])] =
            &[(Who::GreenbagP, &[played(125.7, 103.0)]), (Who::Marline, &[played(125.9, 104.0)])];
        let found = floors(&[done("F13", "90%", runs)]);
        assert_eq!(found.iter().map(Floor::met).collect::<Vec<_>>(), [true, true, false]);
        assert_eq!(found[1].line(), "at most the clairvoyant's + 5 %: 104.00 J, ≤ 105.00: met");
        assert!(floors(&[done("F13", "100%", runs)]).is_empty());
    }

    #[test]
    fn holes_with_bandwidth_to_spare_are_held_to_gb_p() {
        let runs: &[(Who, &[Played])] =
            &[(Who::GreenbagP, &[played(115.8, 200.0)]), (Who::Marline, &[played(120.1, 150.0)])];
        let found = floors(&[done("F12", "4 holes, spare", runs)]);
        assert_eq!(found.iter().map(Floor::met).collect::<Vec<_>>(), [false]);
        assert!(floors(&[done("F12", "4 holes", runs)]).is_empty());
    }

    #[test]
    fn one_late_repetition_is_enough_to_miss() {
        let (gbp, ours) = ([played(125.7, 200.0); 2], [played(125.7, 110.0), played(126.1, 110.0)]);
        let found = floors(&[done("X-fluct", "80%", &[(Who::GreenbagP, &gbp), (Who::Marline, &ours)])]);
        assert_eq!(found.iter().map(Floor::met).collect::<Vec<_>>(), [true, false]);
        assert!((found[1].ours - 0.4).abs() < 1e-9);
    }
}
