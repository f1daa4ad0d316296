//! Windows: branch and bound on a few relays and the boxes there that are least decided, all others staying where they are.
//!
//! In: a plan, prices. Out: a better plan.
//!
//! 1. A window is a relay and some of those with which it shares most boxes, in turn. Of all boxes that measured one of them it has
//!    those whose two best choices are nearest to each other under the prices.
//! 2. What is to be decided there is an instance of its own ([`Tree`]): the relays have what is left and what the window's
//!    boxes take up; a box that is elsewhere now has as its own rate what it is worth there.
//! 3. Each relay has its window in turn. When a round brings next to nothing, windows grow: more relays, more boxes, more work
//!    for each. After the round of the largest ones it is done.
//!
//! Larger sweeps of the local search were not used: what is left after it are knots of five and more boxes.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use super::exact::Tree;
use super::instance::{Candidate, Instance, NONE};
use super::seats::Seats;
use super::view::{Stay, View};
use crate::units::Bitrate;

/// A search under way.
#[derive(Clone, Debug)]
pub(super) struct Windows {
    /// The boxes that measured each relay, one relay after the other, and where they begin.
    first: Vec<u32>,
    boxes: Vec<u32>,
    size: usize,
    /// Where growing ends.
    largest: usize,
    round: usize,
    relay: usize,
    /// What the plan gained when the round began.
    before: i64,
    open: Option<Box<Window>>,
}

/// One of them.
#[derive(Clone, Debug)]
struct Window {
    instance: Instance,
    homes: Vec<u32>,
    stay: Stay,
    /// The boxes, and of each candidate in it the candidate outside.
    boxes: Vec<u32>,
    edges: Vec<u32>,
    start: i64,
    tree: Tree,
    work: u64,
}

/// How large windows are.
#[derive(Clone, Copy, Debug)]
struct Size {
    relays: usize,
    boxes: usize,
    /// Candidates looked at.
    work: u64,
}

impl Windows {
    /// `thorough`: up to the largest windows; else only the first few sizes.
    pub(super) fn new(view: View<'_>, thorough: bool) -> Self {
        let instance = view.instance;
        let mut first = vec![0_u32; instance.relays() + 1];
        (0..instance.candidates()).for_each(|edge| first[instance.relay_of(edge) + 1] += 1);
        for relay in 0..instance.relays() {
            first[relay + 1] += first[relay];
        }
        let (mut next, mut boxes) = (first.clone(), vec![0; instance.candidates()]);
        for at in 0..instance.boxes() {
            for edge in instance.edges(at) {
                let place = &mut next[instance.relay_of(edge)];
                boxes[*place as usize] = at as u32;
                *place += 1;
            }
        }
        let largest = if thorough { SIZES.len() } else { FEW };
        Self { first, boxes, size: 0, largest, round: 0, relay: 0, before: 0, open: None }
    }

    pub(super) fn is_done(&self) -> bool {
        self.size == self.largest
    }

    /// Some more of it; gives the work that this was.
    pub(super) fn advance(&mut self, view: View<'_>, prices: &[f64], seats: &mut Seats) -> u64 {
        let size = SIZES[self.size];
        if let Some(window) = self.open.as_mut().filter(|window| !window.is_done(size)) {
            let work = window.tree.advance(View::new(&window.instance, &window.homes, window.stay));
            window.work += work;
            return work;
        }
        if let Some(window) = self.open.take() {
            window.close(view, seats);
        }
        if self.relay == 0 {
            self.before = seats.gain;
        }
        if self.relay == view.instance.relays() {
            self.end_round(seats.gain);
            return 1;
        }
        self.relay += 1;
        let (relays, seen) = self.neighbours(view, self.relay - 1, size.relays);
        let (boxes, looked) = self.least_decided(view, prices, &relays, size.boxes);
        let (window, begun) = Window::new(view, prices, seats, &relays, boxes);
        self.open = Some(Box::new(window));
        seen + looked + begun
    }

    fn end_round(&mut self, gain: i64) {
        let grow = gain - self.before <= gain / ENOUGH;
        self.size += usize::from(grow);
        self.round += 1;
        self.relay = 0;
    }

    fn measured(&self, relay: usize) -> &[u32] {
        &self.boxes[self.first[relay] as usize..self.first[relay + 1] as usize]
    }

    /// A relay and others with which it shares boxes: those with which it shares most take turns.
    fn neighbours(&self, view: View<'_>, relay: usize, count: usize) -> (Vec<usize>, u64) {
        let mut shared = vec![0_u32; view.instance.relays()];
        let mut work = 0;
        for at in self.measured(relay).iter().take(ENOUGH_BOXES) {
            for edge in view.instance.edges(*at as usize) {
                work += 1;
                shared[view.instance.relay_of(edge)] += 1;
            }
        }
        shared[relay] = 0;
        let mut others: Vec<usize> = (0..shared.len()).filter(|other| shared[*other] > 0).collect();
        others.sort_by_key(|other| core::cmp::Reverse(shared[*other]));
        others.truncate(TURNS.max(count));
        if !others.is_empty() {
            let turn = self.round % others.len();
            others.rotate_left(turn);
        }
        (core::iter::once(relay).chain(others).take(count).collect(), work)
    }

    /// The boxes of these relays whose two best choices are nearest to each other.
    fn least_decided(&self, view: View<'_>, prices: &[f64], relays: &[usize], count: usize) -> (Vec<u32>, u64) {
        let mut all: Vec<u32> = relays.iter().flat_map(|relay| self.measured(*relay)).copied().collect();
        all.sort_unstable();
        all.dedup();
        let mut work = 0;
        let apart = |at: &u32| {
            work += view.instance.edges(*at as usize).len() as u64;
            let two = view.two(prices, *at as usize);
            (two.first - two.second, *at)
        };
        let mut apart: Vec<(f64, u32)> = all.iter().map(apart).collect();
        if apart.len() > count {
            apart.select_nth_unstable_by(count, |a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
            apart.truncate(count);
            apart.sort_unstable_by_key(|(_, at)| *at);
        }
        (apart.into_iter().map(|(_, at)| at).collect(), work + all.len() as u64)
    }
}

impl Window {
    fn new(view: View<'_>, prices: &[f64], seats: &Seats, relays: &[usize], boxes: Vec<u32>) -> (Self, u64) {
        let inside = |edge: usize| relays.iter().position(|relay| *relay == view.instance.relay_of(edge));
        let mut room: Vec<u64> = relays.iter().map(|relay| seats.left[*relay]).collect();
        let seated = boxes.iter().map(|at| seats.choice[*at as usize]).filter(|choice| *choice != NONE);
        for edge in seated.map(|choice| choice as usize) {
            if let Some(place) = inside(edge) {
                room[place] += view.instance.rate_of(edge).bits_per_sec();
            }
        }
        let room: Vec<Bitrate> = room.into_iter().map(Bitrate::from_bits_per_sec).collect();
        let mut instance = Instance::new(&room).expect("a part of what an instance has room for");
        let (mut edges, mut homes, mut plan) = (Vec::new(), Vec::new(), Vec::new());
        for at in boxes.iter().map(|at| *at as usize) {
            let now = seats.choice[at];
            let elsewhere = now != NONE && inside(now as usize).is_none();
            let own = Bitrate::from_bits_per_sec(view.worth(at, if elsewhere { now } else { NONE }));
            let (mut home, mut here, mut candidates) = (NONE, NONE, Vec::new());
            for edge in view.instance.edges(at) {
                let Some(relay) = inside(edge) else { continue };
                let rate = view.instance.rate_of(edge);
                // What the instance would leave out has no number in it.
                if rate <= own || rate > room[relay] {
                    continue;
                }
                let number = edges.len() as u32;
                home = if view.home(at) == edge as u32 { number } else { home };
                here = if now == edge as u32 { number } else { here };
                edges.push(edge as u32);
                candidates.push(Candidate { relay, rate });
            }
            instance.add(own, &candidates).expect("a box of an instance, with some of its candidates");
            homes.push(home);
            plan.push(here);
        }
        let prices: Vec<f64> = relays.iter().map(|relay| prices[*relay]).collect();
        let within = View::new(&instance, &homes, view.stay());
        let (tree, work) = Tree::new(within, &prices, &plan);
        let stay = view.stay();
        (Self { start: tree.gain, instance, homes, stay, boxes, edges, tree, work }, work)
    }

    fn is_done(&self, size: Size) -> bool {
        self.tree.is_done() || self.work >= size.work
    }

    /// Takes over what was found.
    fn close(&self, view: View<'_>, seats: &mut Seats) {
        if self.tree.gain <= self.start {
            return;
        }
        let mut moves = Vec::new();
        for (at, choice) in self.boxes.iter().zip(&self.tree.best) {
            let now = seats.choice[*at as usize];
            let to = if *choice == NONE { NONE } else { self.edges[*choice as usize] };
            // To stay alone in the window is to stay where one is outside.
            let inside = now != NONE && self.edges.contains(&now);
            if to != now && (to != NONE || inside) {
                moves.push((*at, to));
            }
        }
        seats.put_all(view, &moves);
    }
}

/// Rule 3. measured on 50 relays and 1,000 boxes, load 0.9 and 1.2: 40 boxes of two relays leave 0.6 %, 80 leave 0.5, 160 leave
/// 0.3, and 160 of four relays 0.25 and 0.19.
const SIZES: [Size; 8] = [
    Size { relays: 2, boxes: 40, work: 60_000 },
    Size { relays: 2, boxes: 80, work: 120_000 },
    Size { relays: 2, boxes: 160, work: 500_000 },
    Size { relays: 3, boxes: 160, work: 1_000_000 },
    Size { relays: 4, boxes: 160, work: 2_000_000 },
    Size { relays: 4, boxes: 240, work: 4_000_000 },
    Size { relays: 5, boxes: 240, work: 8_000_000 },
    Size { relays: 6, boxes: 320, work: 16_000_000 },
];
/// Before a proof: so many sizes. measured on 8 relays and 60 boxes, load 1.2: they halve what is missing after a second.
const FEW: usize = 3;
/// Which part of the plan a round must gain for another one with windows of the same size.
const ENOUGH: i64 = 100_000;
/// So many boxes tell which relays are neighbours, and so many neighbours take turns. chosen: a city and those around it.
const ENOUGH_BOXES: usize = 1000;
const TURNS: usize = 8;
