//! All cases in real time: many labs at once, each result kept as soon as it is there.
//!
//! In: figures, and what earlier sessions left. Out: [`Cell`]s.
//!
//! 1. A case needs minutes of real time and next to no processor (6 Mbit/s), so many run side by side, each in namespaces
//!    of its own; faster videos count for as many as they are faster ([`Crowd`]). What a crowd would spoil is measured in
//!    each of them: how late its emulator was, and how long its proxy waited for a processor.
//! 2. The order is that of [`ORDER`], the figures that matter most first, so that a session that is stopped has them.
//!    The policies of one case run side by side: whatever the machine does meanwhile, it does to all of them.
//! 3. A case that fails is a cell with its problem. That, and one whose figures are suspect, is done again when the
//!    session goes on; the last one counts. A lab that cannot be built ends everything.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

use marline_core::units::Bitrate;
use serde::{Deserialize, Serialize};

use super::figures::Figure;
use super::real::{Measured, Workshop};
use super::runner::items;
use super::setting::{Played, Who};
use crate::LabError;
use crate::player::STOPPED;
use crate::reproduce::store::Kept;

/// One playing of a case.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Cell {
    pub(super) artefact: String,
    pub(super) case: String,
    pub(super) policy: String,
    /// The repetition, from 0, which is also the seed of everything that is drawn.
    pub(super) run: usize,
    /// Why it is no good.
    #[serde(default)]
    pub(super) problem: Option<String>,
    /// What was measured; none: a problem.
    pub(super) measured: Option<Measured>,
}

impl Kept for Cell {
    const KEY: &'static str = "cell";

    fn is_done(&self) -> bool {
        self.problem.is_none()
    }

    fn lean(&self) -> Self {
        self.clone()
    }
}

impl Cell {
    /// Whether it is this playing.
    fn is(&self, figure: &Figure, who: Who, run: usize) -> bool {
        (self.artefact.as_str(), self.case.as_str()) == (figure.artefact, figure.case.as_str())
            && self.policy == who.name()
            && self.run == run
    }

    /// Whether nothing is wrong with it.
    fn is_good(&self) -> bool {
        self.is_done() && self.measured.as_ref().is_some_and(|measured| measured.suspect().is_none())
    }

    /// One line for people.
    pub(super) fn line(&self) -> String {
        let Self { artefact, case, policy, run, .. } = self;
        let what = format!("{artefact} {case} {policy} run {run}");
        match (&self.measured, &self.problem) {
            (Some(measured), None) => {
                let Measured { playback_s, stalls, energy_j, .. } = measured;
                let suspect = measured.suspect().map(|why| format!("; suspect: {why}")).unwrap_or_default();
                format!("{what}: {playback_s:.1} s, {stalls} stalls, {energy_j:.1} J{suspect}")
            }
            (_, problem) => format!("{what}: FAILED: {}", problem.as_deref().unwrap_or("nothing was measured")),
        }
    }
}

/// The artefacts in the order in which they are played.
const ORDER: [&str; 10] = ["F13", "F14", "X-over", "X-fluct", "X-traces", "F12", "F11", "F10", "F9a", "F9b"];

/// Who plays now: at most so many videos of [`USUAL`].
struct Crowd {
    most: u64,
    now: Mutex<u64>,
    left: Condvar,
}

impl Crowd {
    fn new(at_once: usize) -> Self {
        Self { most: USUAL.bits_per_sec() * at_once.max(1) as u64, now: Mutex::new(0), left: Condvar::new() }
    }

    /// Does `work` when there is room for a video of this rate; one that is too fast for any crowd is alone.
    fn admit<T>(&self, rate: Bitrate, work: impl FnOnce() -> T) -> T {
        let weight = rate.max(USUAL).bits_per_sec();
        let full = |now: &mut u64| *now > 0 && *now + weight > self.most;
        let now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        *self.left.wait_while(now, full).unwrap_or_else(PoisonError::into_inner) += weight;
        let done = work();
        *self.now.lock().unwrap_or_else(PoisonError::into_inner) -= weight;
        self.left.notify_all();
        done
    }
}

/// As the videos of most figures.
const USUAL: Bitrate = Bitrate::from_mbps(6);

/// Plays what `there` does not have yet, so many at once; `tell` hears of each as soon as it is done. Gives whether the
/// user stopped it.
pub(super) fn play(
    figures: &[Figure],
    there: &[Cell],
    workshop: &Workshop,
    at_once: usize,
    tell: impl Fn(&Cell) -> Result<(), LabError> + Sync,
) -> Result<bool, LabError> {
    let is_there = |(at, who, run): &(usize, usize, usize)| {
        let figure = &figures[*at];
        there.iter().any(|cell| cell.is_good() && cell.is(figure, figure.who[*who], *run))
    };
    let mut left: Vec<_> = items(figures).into_iter().filter(|item| !is_there(item)).collect();
    let rank = |at: usize| ORDER.iter().position(|artefact| *artefact == figures[at].artefact);
    left.sort_by_key(|(at, who, run)| (rank(*at), *run, *at, *who));
    let (next, broken, crowd) = (AtomicUsize::new(0), Mutex::new(None), Crowd::new(at_once));
    let stopped = || marline_sys::signal::caught().is_some();
    let is_broken =
        || broken.lock().map_or(true, |broken: std::sync::MutexGuard<'_, Option<LabError>>| broken.is_some());
    let work = || {
        while !stopped() && !is_broken() {
            let Some((at, who, run)) = left.get(next.fetch_add(1, Ordering::Relaxed)).copied() else { return };
            let (figure, who) = (&figures[at], figures[at].who[who]);
            let label = format!("{} {} {} {run}", figure.artefact, figure.case, who.name());
            let setting = &figure.settings[run];
            let played = crowd.admit(setting.video().mean(), || {
                if stopped() || is_broken() {
                    None
                } else {
                    Some(workshop.play(setting, who, run as u64 + 1, &label))
                }
            });
            let Some(played) = played else { return };
            let played = played.and_then(|measured| {
                if stopped() || measured.as_ref().is_err_and(|why| why == STOPPED) {
                    return Ok(());
                }
                let (measured, problem) = match measured {
                    Ok(measured) => (Some(measured), None),
                    Err(problem) => (None, Some(problem)),
                };
                tell(&Cell {
                    artefact: figure.artefact.into(),
                    case: figure.case.clone(),
                    policy: who.name().into(),
                    run,
                    problem,
                    measured,
                })
            });
            if let (Err(error), Ok(mut broken)) = (played, broken.lock()) {
                broken.get_or_insert(error);
            }
        }
    };
    std::thread::scope(|scope| (0..at_once.max(1)).for_each(|_| drop(scope.spawn(work))));
    match broken.into_inner() {
        Ok(Some(error)) if !stopped() => Err(error),
        _ => Ok(stopped()),
    }
}

/// What is known of one playing, beside the clairvoyant's.
pub(super) fn judged(cells: &[Cell], figure: &Figure, who: Who, run: usize) -> Result<Played, String> {
    let cell = cells.iter().rfind(|cell| cell.is(figure, who, run)).ok_or("was not played")?;
    if let Some(problem) = &cell.problem {
        return Err(problem.clone());
    }
    let Measured { playback_s, interruption_s, stalls, energy_j, .. } =
        cell.measured.as_ref().ok_or("nothing was measured")?;
    figure.settings[run].judged(*playback_s, *interruption_s, *stalls, *energy_j, figure.energy)
}

/// How many of a policy's playings in a case are suspect.
pub(super) fn suspects(cells: &[Cell], figure: &Figure, who: Who) -> usize {
    let last = |run: usize| cells.iter().rfind(|cell| cell.is(figure, who, run));
    let is_suspect = |cell: &Cell| cell.measured.as_ref().is_some_and(|measured| measured.suspect().is_some());
    (0..figure.settings.len()).filter(|run| last(*run).is_some_and(is_suspect)).count()
}

/// Only what was played at all, whole repetitions of whole cases.
pub(super) fn played(figures: Vec<Figure>, cells: &[Cell]) -> Vec<Figure> {
    let cut = |mut figure: Figure| {
        let all = |run: usize| figure.who.iter().all(|who| cells.iter().any(|cell| cell.is(&figure, *who, run)));
        let runs = (0..figure.settings.len()).take_while(|run| all(*run)).count();
        figure.settings.truncate(runs);
        (runs > 0).then_some(figure)
    };
    figures.into_iter().filter_map(cut).collect()
}

#[cfg(test)]
mod tests {
    use super::super::figures::{Effort, figures};
    use super::*;

    fn cell(figure: &Figure, who: Who, run: usize) -> Cell {
        Cell {
            artefact: figure.artefact.into(),
            case: figure.case.clone(),
            policy: who.name().into(),
            run,
            problem: Some("no lab".into()),
            measured: None,
        }
    }

    #[test]
    fn a_fast_video_counts_for_several_and_one_that_is_too_fast_is_alone() {
        let (crowd, most) = (Crowd::new(4), AtomicUsize::new(0));
        let (slow, fast) = (Bitrate::from_mbps(3), Bitrate::from_mbps(60));
        let played = AtomicUsize::new(0);
        let watch = |rate: Bitrate, weight: usize| {
            crowd.admit(rate, || {
                let now = played.fetch_add(weight, Ordering::SeqCst) + weight;
                most.fetch_max(now, Ordering::SeqCst);
                std::thread::yield_now();
                played.fetch_sub(weight, Ordering::SeqCst);
            });
        };
        std::thread::scope(|scope| {
            for _ in 0..20 {
                scope.spawn(|| watch(slow, 1));
                scope.spawn(|| watch(fast, 100));
            }
        });
        assert!([100, 1, 2, 3, 4].contains(&most.into_inner()));
    }

    #[test]
    fn only_whole_repetitions_are_shown() {
        let all = figures("X-fluct", Effort { runs: Some(3), ..Effort::FULL });
        let mut cells = Vec::new();
        for run in 0..2 {
            cells.extend(all[1].who.iter().map(|who| cell(&all[1], *who, run)));
        }
        cells.extend(all[1].who.iter().skip(1).map(|who| cell(&all[1], *who, 2)));
        let shown = played(all, &cells);
        assert_eq!((shown.len(), shown[0].settings.len(), shown[0].case.as_str()), (1, 2, "80%"));
        assert_eq!(judged(&cells, &shown[0], Who::Marline, 1), Err("no lab".into()));
        assert!(cells[0].line().contains("FAILED: no lab"), "{}", cells[0].line());
    }

    #[test]
    fn every_artefact_has_its_turn() {
        let mut known: Vec<&str> = super::super::figures::ARTEFACTS.into();
        known.push(super::super::figures::TRACES);
        known.sort_unstable();
        let mut order: Vec<&str> = ORDER.into();
        order.sort_unstable();
        assert_eq!(known, order);
    }
}
