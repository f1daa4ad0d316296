//! All cases in real time: several labs at once, each result kept as soon as it is there.
//!
//! In: figures, and a [`Book`]. Out: the book's cells.
//!
//! 1. The order is that of [`ORDER`], repetition by repetition; the clients of one case run side by side, so that whatever
//!    the machine does meanwhile, it does to all of them.
//! 2. A case that fails is a cell with its problem. A lab that cannot be built ends everything.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::figures::Figure;
use super::real::{Measured, Workshop, is_stop};
use super::setting::Who;
use crate::LabError;
use crate::bench::is_stopped;
use crate::crowd::PLACE;
use crate::reproduce::book::Book;
use crate::reproduce::cell::{self, Figures, Name};

/// One repetition of one client.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Download {
    artefact: String,
    case: String,
    who: String,
    /// The server's congestion control.
    congestion: String,
    /// The repetition, from 0, which is also the seed of everything that is drawn.
    run: usize,
}

/// What came of it.
pub(super) type Cell = cell::Cell<Download, Measured>;

impl Download {
    fn of(figure: &Figure, who: Who, run: usize, congestion: &str) -> Self {
        Self {
            artefact: figure.artefact.into(),
            case: figure.case.clone(),
            who: who.name().into(),
            congestion: congestion.into(),
            run,
        }
    }
}

impl Name for Download {}

impl fmt::Display for Download {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { artefact, case, who, run, .. } = self;
        write!(f, "{artefact} {case} {who} run {run}")
    }
}

impl Figures for Measured {
    fn suspect(&self) -> Option<String> {
        cell::suspect(self.late_s, self.unseen)
    }

    fn line(&self) -> String {
        let of = |at: usize| self.links.get(at).map_or(0.0, |link| link.carried_bytes as f64 / 1e6);
        let said = self.said_j.zip(self.said_packets_j);
        let said = said.map(|(said, packets)| format!("; the daemon said {said:.1} of {packets:.1} J"));
        format!(
            "{:.2} s, {:.1} MB ({:.1} over Wi-Fi, {:.1} over LTE), {:.2} J{}",
            self.seconds,
            self.bytes as f64 / 1e6,
            of(0),
            of(1),
            self.energy_j,
            said.unwrap_or_default(),
        )
    }
}

/// The artefacts in the order in which they are done: what is short and says much first.
const ORDER: [&str; 11] = ["short", "F17", "F15", "F16", "F5", "X-unequal", "X-suspend", "F13", "F8", "F10", "F6"];

/// Does what the book does not have yet, so many at once.
pub(super) fn play(
    figures: &[Figure],
    book: &Book<Download, Measured>,
    workshop: &Workshop,
    at_once: usize,
) -> Result<(), LabError> {
    let congestion = workshop.congestion.name();
    let all = figures.iter().enumerate().flat_map(|(at, figure)| {
        let runs = 0..figure.settings.len();
        runs.flat_map(move |run| figure.who.iter().map(move |who| (at, *who, run)))
    });
    let rank = |at: usize| ORDER.iter().position(|artefact| *artefact == figures[at].artefact);
    let mut all: Vec<_> = all.collect();
    all.sort_by_key(|(at, who, run)| (rank(*at), *run, *at, *who));
    let all: Vec<_> = all.into_iter().map(|one| vec![one]).collect();
    let name = |(at, who, run): &(usize, Who, usize)| Download::of(&figures[*at], *who, *run, congestion);
    let one = |(at, who, run): &(usize, Who, usize)| {
        let figure = &figures[*at];
        let label = format!("{} {} {} {run}", figure.artefact, figure.case, who.name());
        match workshop.play(&figure.settings[*run], *who, *run as u64 + 1, &label)? {
            Err(why) if is_stopped() || is_stop(&why) => Ok(None),
            came => Ok(Some(came)),
        }
    };
    book.measure(&all, at_once, name, |_| PLACE, one)
}

/// What is known of one repetition; the last one counts.
pub(super) fn measured<'a>(
    cells: &'a [Cell],
    figure: &Figure,
    who: Who,
    run: usize,
    congestion: &str,
) -> Result<&'a Measured, String> {
    cell::measured(cells, &Download::of(figure, who, run, congestion))
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
    fn what_the_repository_keeps_is_understood() {
        cell::tests::is_understood::<Download, Measured>("emptcp");
    }

    #[test]
    fn another_sender_is_another_measurement() {
        let figure = &super::super::figures::short()[0];
        let name = Download::of(figure, Who::Marline, 0, "cubic");
        let cells = [Cell::new(name, Err("no lab".into()))];
        assert_eq!(measured(&cells, figure, Who::Marline, 0, "cubic").unwrap_err(), "no lab");
        assert_eq!(measured(&cells, figure, Who::Marline, 0, "bbr").unwrap_err(), "was not done");
    }
}
