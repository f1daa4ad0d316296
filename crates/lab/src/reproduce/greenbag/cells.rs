//! All cases in real time: many labs at once, each result kept as soon as it is there.
//!
//! In: figures, and a [`Book`]. Out: the book's cells.
//!
//! 1. A case needs minutes of real time and next to no processor (6 Mbit/s), so many run side by side, each in namespaces
//!    of its own; faster videos count for as many as they are faster. What a crowd would spoil is measured in
//!    each of them: how late its emulator was, and how long its proxy waited for a processor.
//! 2. The order is that of [`ORDER`], the figures that matter most first, so that a session that is stopped has them.
//!    The policies of one case run side by side: whatever the machine does meanwhile, it does to all of them.
//! 3. A case that fails is a cell with its problem. A lab that cannot be built ends everything.

use std::fmt;

use marline_core::units::Bitrate;
use serde::{Deserialize, Serialize};

use super::figures::Figure;
use super::real::{Measured, Workshop};
use super::runner::items;
use super::setting::{Played, Who};
use crate::LabError;
use crate::bench::is_stopped;
use crate::crowd::PLACE;
use crate::player::STOPPED;
use crate::reproduce::book::Book;
use crate::reproduce::cell::{self, Figures as _, Name};

/// One playing of a case.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Playing {
    artefact: String,
    case: String,
    policy: String,
    /// The repetition, from 0, which is also the seed of everything that is drawn.
    run: usize,
}

/// What came of it.
pub(super) type Cell = cell::Cell<Playing, Measured>;

impl Playing {
    fn of(figure: &Figure, who: Who, run: usize) -> Self {
        let policy = who.name().into();
        Self { artefact: figure.artefact.into(), case: figure.case.clone(), policy, run }
    }
}

impl Name for Playing {}

impl fmt::Display for Playing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { artefact, case, policy, run } = self;
        write!(f, "{artefact} {case} {policy} run {run}")
    }
}

/// The artefacts in the order in which they are played.
const ORDER: [&str; 10] = ["F13", "F14", "X-over", "X-fluct", "X-traces", "F12", "F11", "F10", "F9a", "F9b"];

/// As the videos of most figures.
const USUAL: Bitrate = Bitrate::from_mbps(6);

/// The room of a video of this rate.
fn room(rate: Bitrate) -> u64 {
    rate.max(USUAL).bits_per_sec() * PLACE / USUAL.bits_per_sec()
}

/// Plays what the book does not have yet, so many at once.
pub(super) fn play(
    figures: &[Figure],
    book: &Book<Playing, Measured>,
    workshop: &Workshop,
    at_once: usize,
) -> Result<(), LabError> {
    let mut all = items(figures);
    let rank = |at: usize| ORDER.iter().position(|artefact| *artefact == figures[at].artefact);
    all.sort_by_key(|(at, who, run)| (rank(*at), *run, *at, *who));
    let all: Vec<_> = all.into_iter().map(|one| vec![one]).collect();
    type Item = (usize, usize, usize);
    let name = |(at, who, run): &Item| Playing::of(&figures[*at], figures[*at].who[*who], *run);
    let room = |(at, _, run): &Item| room(figures[*at].settings[*run].video().mean_rate());
    let one = |(at, who, run): &Item| {
        let (figure, who) = (&figures[*at], figures[*at].who[*who]);
        let label = format!("{} {} {} {run}", figure.artefact, figure.case, who.name());
        match workshop.play(&figure.settings[*run], who, *run as u64 + 1, &label)? {
            Err(why) if is_stopped() || why == STOPPED => Ok(None),
            came => Ok(Some(came)),
        }
    };
    book.measure(&all, at_once, name, room, one)
}

/// What is known of one playing, beside the clairvoyant's.
pub(super) fn judged(cells: &[Cell], figure: &Figure, who: Who, run: usize) -> Result<Played, String> {
    let Measured { playback_s, interruption_s, stalls, energy_j, .. } =
        cell::measured(cells, &Playing::of(figure, who, run))?;
    figure.settings[run].judged(*playback_s, *interruption_s, *stalls, *energy_j, figure.energy)
}

/// How many of a policy's playings in a case are suspect.
pub(super) fn suspects(cells: &[Cell], figure: &Figure, who: Who) -> usize {
    let last = |run: usize| cell::last(cells, &Playing::of(figure, who, run));
    let is_suspect = |cell: &Cell| cell.measured.as_ref().is_some_and(|measured| measured.suspect().is_some());
    (0..figure.settings.len()).filter(|run| last(*run).is_some_and(is_suspect)).count()
}

/// Only what was played at all, whole repetitions of whole cases.
pub(super) fn played(figures: Vec<Figure>, cells: &[Cell]) -> Vec<Figure> {
    let cut = |mut figure: Figure| {
        let all =
            |run: usize| figure.who.iter().all(|who| cell::last(cells, &Playing::of(&figure, *who, run)).is_some());
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
        Cell::new(Playing::of(figure, who, run), Err("no lab".into()))
    }

    #[test]
    fn a_fast_video_counts_for_several() {
        assert_eq!([1, 6, 18].map(|mbps| room(Bitrate::from_mbps(mbps))), [PLACE, PLACE, 3 * PLACE]);
    }

    #[test]
    fn what_the_repository_keeps_is_understood() {
        cell::tests::is_understood::<Playing, Measured>("greenbag");
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
