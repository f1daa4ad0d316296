//! The solver: a plan and a bound that get better with every step.
//!
//! In: an instance; of a re-matching also its prices and where boxes are. Out: after each step the best plan so far, what it gains
//! and what no plan can exceed.
//!
//! 1. Work is counted in candidates looked at; the caller says how much a step may do, and looks at its own clock between
//!    steps. A step ends with the first part that uses the work up: some hundred microseconds late; of a million
//!    boxes 20 ms were seen, and some tens when they are sorted.
//! 2. How work is cut into steps changes nothing: after the same sum of work the answer is the same.
//! 3. The gain never falls and the bound never rises. Of a re-matching the gain may fall by what staying is worth, where a
//!    box goes back to where it was.
//! 4. First a plan by the prices at hand, so that there is one; in a re-matching whoever can stays, and the others take what is
//!    left. Then better prices (`prices`), a plan by them (`build`), a local search (`climb`) and windows (`window`), and a
//!    proof if there are at most [`SMALL`] boxes (`exact`).
//! 5. It ends when gain and bound meet, or when the last of these brings nothing more.
//!
//! One general method was not used. A proof of 8 relays takes milliseconds and one of 50 takes days, while prices are as good as
//! exact for 500.

use alloc::vec;
use alloc::vec::Vec;

use super::build::Build;
use super::climb::Climb;
use super::exact::Tree;
use super::instance::{Instance, NONE};
use super::plan::Plan;
use super::prices::{Prices, Search, whole};
use super::seats::Seats;
use super::view::{Stay, View};
use super::window::Windows;
use crate::units::Bitrate;

/// What is known before a re-matching.
#[derive(Clone, Copy, Debug)]
pub struct Before<'a> {
    /// The last prices.
    pub prices: &'a Prices,
    /// The relay of each box; none for those that are new or alone. May be shorter than the list of boxes.
    pub relays: &'a [Option<usize>],
    /// What it is worth that boxes stay.
    pub stay: Stay,
}

/// How far a solver is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// What the best plan gains.
    pub gain: Bitrate,
    /// What no plan exceeds.
    pub bound: Bitrate,
    /// Further steps change nothing.
    pub is_done: bool,
}

impl Progress {
    /// How much less than the bound the gain is: the most that is missing to the best plan.
    pub fn gap(&self) -> f64 {
        let (gain, bound) = (self.gain.bits_per_sec() as f64, self.bound.bits_per_sec() as f64);
        if bound > 0.0 { 1.0 - gain / bound } else { 0.0 }
    }
}

/// A search for the best plan of an instance.
#[derive(Clone, Debug)]
pub struct Solver<'a> {
    instance: &'a Instance,
    /// Where boxes are, as candidates; empty for a first matching.
    homes: Vec<u32>,
    stay: Stay,
    search: Search,
    /// The plan that is worked on, and the one of the stage before while that is better.
    seats: Seats,
    spare: Option<Seats>,
    bound: Bitrate,
    stage: Stage,
    /// Work asked for, and done.
    asked: u64,
    done: u64,
}

#[derive(Clone, Debug)]
enum Stage {
    First(Build),
    Prices,
    Second(Build),
    Climb(Climb),
    Windows(Windows),
    Exact(Tree),
    Done,
}

impl<'a> Solver<'a> {
    /// A solver that has not begun.
    pub fn new(instance: &'a Instance, before: Option<Before<'_>>) -> Self {
        let free = Prices::free(instance.relays());
        let (prices, stay) = before.map_or((&free, Stay::default()), |before| (before.prices, before.stay));
        let homes = before.map_or(vec![], |before| homes(instance, before.relays));
        let view = View::new(instance, &homes, stay);
        let mut seats = Seats::new(view);
        for (at, home) in homes.iter().enumerate().filter(|(_, home)| **home != NONE) {
            if seats.fits(view, *home) {
                seats.put(view, at, *home);
            }
        }
        let search = Search::new(View::plain(instance), prices, !homes.is_empty());
        let stage = Stage::First(Build::new(&search.best, seats.clone()));
        let bound = Instance::MOST_ROOM * 2;
        Self { instance, homes, stay, search, seats, spare: None, bound, stage, asked: 0, done: 0 }
    }

    /// Does so much more work, and says how far it is.
    pub fn step(&mut self, work: u64) -> Progress {
        self.asked = self.asked.saturating_add(work);
        while self.done < self.asked && !matches!(self.stage, Stage::Done) {
            self.done = self.done.saturating_add(self.part().max(1));
            if self.progress().gain >= self.bound {
                self.stage = Stage::Done;
            }
        }
        self.progress()
    }

    /// How far it is.
    pub fn progress(&self) -> Progress {
        let gain = Bitrate::from_bits_per_sec(self.best().real.max(0) as u64);
        Progress { gain, bound: self.bound.max(gain), is_done: matches!(self.stage, Stage::Done) }
    }

    /// The best plan so far.
    pub fn plan(&self) -> Plan {
        Plan::new(self.instance, &self.best().choice)
    }

    /// The best prices so far.
    pub fn prices(&self) -> Prices {
        Prices::new(self.search.best.iter().copied())
    }

    fn best(&self) -> &Seats {
        match &self.spare {
            Some(spare) if spare.gain > self.seats.gain => spare,
            _ => &self.seats,
        }
    }

    /// One part of the work, as much as must be done at once.
    fn part(&mut self) -> u64 {
        let view = View::new(self.instance, &self.homes, self.stay);
        let prices = &self.search.best;
        match &mut self.stage {
            Stage::First(build) => {
                let work = build.advance(view);
                if build.is_done() {
                    self.seats = core::mem::replace(build, Build::new(&[], Seats::new(view))).into_seats();
                    self.stage = Stage::Prices;
                }
                work
            }
            Stage::Prices => {
                let work = self.search.advance(View::plain(self.instance));
                self.bound = self.bound.min(whole(self.search.bound));
                if self.search.is_done() {
                    self.stage = Stage::Second(Build::new(&self.search.best, Seats::new(view)));
                }
                work
            }
            Stage::Second(build) => {
                let work = build.advance(view);
                if build.is_done() {
                    let seats = core::mem::replace(build, Build::new(&[], Seats::new(view))).into_seats();
                    self.spare = Some(core::mem::replace(&mut self.seats, seats));
                    self.stage = Stage::Climb(Climb::default());
                }
                work
            }
            Stage::Climb(climb) => {
                let work = climb.advance(view, prices, &mut self.seats);
                if climb.is_done() {
                    self.end_climb();
                }
                work
            }
            Stage::Windows(windows) => {
                let work = windows.advance(view, prices, &mut self.seats);
                if windows.is_done() {
                    self.end_windows();
                }
                work
            }
            Stage::Exact(tree) => {
                let work = tree.advance(view);
                if tree.gain > self.seats.gain {
                    let moves = (0_u32..).zip(tree.best.iter().copied());
                    self.seats.put_all(view, &moves.collect::<Vec<_>>());
                }
                self.bound = self.bound.min(whole(tree.bound()));
                if tree.is_done() {
                    self.stage = Stage::Done;
                }
                work
            }
            Stage::Done => 1,
        }
    }

    /// Goes on with the better one of the two plans.
    fn end_climb(&mut self) {
        let view = View::new(self.instance, &self.homes, self.stay);
        if let Some(spare) = self.spare.take().filter(|spare| spare.gain > self.seats.gain) {
            self.seats = spare;
        }
        self.stage = Stage::Windows(Windows::new(view, self.instance.boxes() > SMALL));
    }

    /// Tries a proof, if there are few boxes.
    fn end_windows(&mut self) {
        let view = View::new(self.instance, &self.homes, self.stay);
        self.stage = if self.instance.boxes() <= SMALL {
            Stage::Exact(Tree::new(view, &self.search.best, &self.seats.choice).0)
        } else {
            Stage::Done
        };
    }
}

/// Where boxes are, as candidates of this instance; empty if nobody is anywhere.
fn homes(instance: &Instance, relays: &[Option<usize>]) -> Vec<u32> {
    let home = |(at, relay): (usize, &Option<usize>)| {
        let relay = (*relay)?;
        instance.edges(at).find(|edge| instance.relay_of(*edge) == relay).map(|edge| edge as u32)
    };
    let homes = relays.iter().take(instance.boxes()).enumerate().map(|pair| home(pair).unwrap_or(NONE));
    let homes: Vec<u32> = homes.collect();
    if homes.iter().all(|home| *home == NONE) { vec![] } else { homes }
}

/// The most boxes for which a proof is tried. measured: 60 boxes of 8 relays take 0.1 to 0.3 s in the mean.
const SMALL: usize = 100;
