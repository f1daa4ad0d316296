//! All cases in real time: several labs at once, each result kept as soon as it is there.
//!
//! In: figures, and what earlier sessions left. Out: [`Cell`]s.
//!
//! 1. The order is that of [`ORDER`], repetition by repetition; the clients of one case run side by side, so that whatever
//!    the machine does meanwhile, it does to all of them.
//! 2. A case that fails is a cell with its problem. That, and one whose figures are suspect, is done again when the
//!    session goes on; the last one counts. A lab that cannot be built ends everything.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::{Deserialize, Serialize};

use super::figures::Figure;
use super::real::{Measured, Workshop, is_stop};
use super::setting::Who;
use crate::LabError;
use crate::reproduce::store::Kept;

/// One repetition of one client.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Cell {
    pub(super) artefact: String,
    pub(super) case: String,
    pub(super) who: String,
    /// The server's congestion control.
    pub(super) congestion: String,
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
    /// Whether it is this one.
    pub(super) fn is(&self, figure: &Figure, who: Who, run: usize, congestion: &str) -> bool {
        (self.artefact.as_str(), self.case.as_str()) == (figure.artefact, figure.case.as_str())
            && self.who == who.name()
            && self.run == run
            && self.congestion == congestion
    }

    /// Whether nothing is wrong with it.
    fn is_good(&self) -> bool {
        self.is_done() && self.measured.as_ref().is_some_and(|measured| measured.suspect().is_none())
    }

    /// One line for people.
    pub(super) fn line(&self) -> String {
        let Self { artefact, case, who, run, .. } = self;
        let what = format!("{artefact} {case} {who} run {run}");
        match (&self.measured, &self.problem) {
            (Some(measured), None) => {
                let of = |at: usize| measured.links.get(at).map_or(0.0, |link| link.carried_bytes as f64 / 1e6);
                let suspect = measured.suspect().map(|why| format!("; suspect: {why}")).unwrap_or_default();
                let said = measured.said_j.zip(measured.said_packets_j);
                let said = said.map(|(said, packets)| format!("; the daemon said {said:.1} of {packets:.1} J"));
                format!(
                    "{what}: {:.2} s, {:.1} MB ({:.1} over Wi-Fi, {:.1} over LTE), {:.2} J{}{suspect}",
                    measured.seconds,
                    measured.bytes as f64 / 1e6,
                    of(0),
                    of(1),
                    measured.energy_j,
                    said.unwrap_or_default(),
                )
            }
            (_, problem) => format!("{what}: FAILED: {}", problem.as_deref().unwrap_or("nothing was measured")),
        }
    }
}

/// The artefacts in the order in which they are done: what is short and says much first.
const ORDER: [&str; 11] = ["short", "F17", "F15", "F16", "F5", "X-unequal", "X-suspend", "F13", "F8", "F10", "F6"];

/// Does what `there` does not have yet, so many at once; `tell` hears of each as soon as it is done. Gives whether the user
/// stopped it.
pub(super) fn play(
    figures: &[Figure],
    there: &[Cell],
    workshop: &Workshop,
    at_once: usize,
    tell: impl Fn(&Cell) -> Result<(), LabError> + Sync,
) -> Result<bool, LabError> {
    let congestion = workshop.congestion.name();
    let all = figures.iter().enumerate().flat_map(|(at, figure)| {
        let runs = 0..figure.settings.len();
        runs.flat_map(move |run| figure.who.iter().map(move |who| (at, *who, run)))
    });
    let is_there = |(at, who, run): &(usize, Who, usize)| {
        there.iter().any(|cell| cell.is_good() && cell.is(&figures[*at], *who, *run, congestion))
    };
    let mut left: Vec<_> = all.filter(|item| !is_there(item)).collect();
    let rank = |at: usize| ORDER.iter().position(|artefact| *artefact == figures[at].artefact);
    left.sort_by_key(|(at, who, run)| (rank(*at), *run, *at, *who));
    let (next, broken) = (AtomicUsize::new(0), Mutex::new(None::<LabError>));
    let stopped = || marline_sys::signal::caught().is_some();
    let is_broken = || broken.lock().map_or(true, |broken| broken.is_some());
    let one = |(at, who, run): (usize, Who, usize)| -> Result<(), LabError> {
        let figure = &figures[at];
        let label = format!("{} {} {} {run}", figure.artefact, figure.case, who.name());
        let (measured, problem) = match workshop.play(&figure.settings[run], who, run as u64 + 1, &label)? {
            Ok(measured) => (Some(measured), None),
            Err(why) if stopped() || is_stop(&why) => return Ok(()),
            Err(why) => (None, Some(why)),
        };
        if stopped() {
            return Ok(());
        }
        tell(&Cell {
            artefact: figure.artefact.into(),
            case: figure.case.clone(),
            who: who.name().into(),
            congestion: congestion.into(),
            run,
            problem,
            measured,
        })
    };
    let work = || {
        while !stopped() && !is_broken() {
            let Some(item) = left.get(next.fetch_add(1, Ordering::Relaxed)).copied() else { return };
            if let (Err(error), Ok(mut broken)) = (one(item), broken.lock()) {
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

/// What is known of one repetition; the last one counts.
pub(super) fn measured<'a>(
    cells: &'a [Cell],
    figure: &Figure,
    who: Who,
    run: usize,
    congestion: &str,
) -> Result<&'a Measured, String> {
    let cell = cells.iter().rfind(|cell| cell.is(figure, who, run, congestion)).ok_or("was not done")?;
    if let Some(problem) = &cell.problem {
        return Err(problem.clone());
    }
    cell.measured.as_ref().ok_or_else(|| "nothing was measured".to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::figures::{ARTEFACTS, SUSPEND};
    use super::*;

    #[test]
    fn every_artefact_has_its_turn() {
        let all = ARTEFACTS.into_iter().chain([SUSPEND, super::super::figures::SHORT]);
        assert!(all.clone().all(|artefact| ORDER.contains(&artefact)));
        assert_eq!(all.count(), ORDER.len());
    }

    #[test]
    fn a_failure_says_why_and_is_no_measurement() {
        let figure = &super::super::figures::short()[0];
        let cell = Cell {
            artefact: figure.artefact.into(),
            case: figure.case.clone(),
            who: "marline".into(),
            congestion: "cubic".into(),
            run: 0,
            problem: Some("no lab".into()),
            measured: None,
        };
        assert!(cell.line().contains("FAILED: no lab") && !cell.is_done());
        let cells = [cell];
        assert_eq!(measured(&cells, figure, Who::Marline, 0, "cubic").unwrap_err(), "no lab");
        assert_eq!(measured(&cells, figure, Who::Marline, 0, "bbr").unwrap_err(), "was not done");
    }
}
