//! A window's requests, or all edges, as one matching; and what becomes of its solution.
//!
//! In: the edges to be matched. Out: a [`Problem`] on its own, so that another thread may solve it; its solution comes back into
//! seats.
//!
//! 1. Edges that are not part of it count with what they claim. Those that are count as if they had left.
//! 2. A relay's room is R(s) less the threshold's share of T(s); one that is not open has none.
//! 3. What an edge reaches through a relay is B_o(c, s) = min(B(c, s), B_o(s)) (Algorithm 1, line 6), no more than it wants, and
//!    no more than the relay has left: an edge that could fill two relays is served by one. At the relay where it is that is what it
//!    has and what nobody has: it grows into what is free, and takes nothing from others. What is posed is solved as BASS has it.
//! 4. A solution is taken as far as it still fits. Who stays is seated before who comes, and who gets none comes last: if what he
//!    had is still free he keeps it, for a part of what he could use is in no plan. Who finds no room any more has what he had, or is
//!    matched again.

use std::collections::BTreeMap;

use marline_core::assign::{Before, Candidate, Instance, Prices, Solver, Stay};
use marline_core::units::{Bitrate, Ratio};

use super::super::words::Reason;
use super::edges::{Edge, Seat};
use super::relays::Load;
use super::{Machine, Output};
use crate::identity::Name;

/// A matching to be solved.
#[derive(Debug)]
pub struct Problem {
    instance: Instance,
    relays: Vec<Name>,
    boxes: Vec<Boxed>,
    homes: Vec<Option<usize>>,
    prices: Prices,
    better: Ratio,
    whole: bool,
}

/// A box of a problem.
#[derive(Clone, Debug)]
struct Boxed {
    edge: Name,
    /// The seat that it has while the problem is solved.
    seat: Option<Seat>,
    /// Why it has no relay, if it gets none.
    otherwise: Reason,
}

/// A problem that is solved.
#[derive(Debug)]
pub struct Solution {
    boxes: Vec<(Boxed, Option<(Name, Bitrate)>)>,
    /// What relays cost, of a matching of all edges.
    prices: Option<BTreeMap<Name, f64>>,
}

impl Problem {
    /// The best plan that is found with so much work, counted in candidates looked at.
    pub fn solve(self, work: u64) -> Solution {
        let stay = Stay { share: self.better, fee: Bitrate::ZERO };
        let before = Before { prices: &self.prices, relays: &self.homes, stay };
        let mut solver = Solver::new(&self.instance, Some(before));
        let mut left = work;
        while !solver.step(STEP.min(left)).is_done && left > STEP {
            left -= STEP;
        }
        let (plan, found) = (solver.plan(), solver.prices());
        let prices = self.whole.then(|| {
            let named = self.relays.iter().enumerate();
            named.map(|(at, relay)| (relay.clone(), found.of(at))).collect()
        });
        let place = |at: usize| {
            let relay = plan.relay(at)?;
            let rate = self.instance.of(at).find(|candidate| candidate.relay == relay)?.rate;
            Some((self.relays.get(relay)?.clone(), rate))
        };
        let boxes = self.boxes.iter().enumerate().map(|(at, boxed)| (boxed.clone(), place(at))).collect();
        Solution { boxes, prices }
    }

    /// How many boxes it has.
    pub fn boxes(&self) -> usize {
        self.boxes.len()
    }

    /// Whether it is of all edges, and not of a window.
    pub fn is_whole(&self) -> bool {
        self.whole
    }
}

/// chosen: a hundredth of a second between looks at what is left.
const STEP: u64 = 100_000;

impl Machine {
    /// Gives out the matching of the window, or of all edges that may be moved.
    pub(super) fn begin(&mut self, whole: bool) {
        let queue = std::mem::take(&mut self.queue);
        let movable = |edge: &Edge| match &edge.seat {
            Some(seat) => self.now.since(seat.since) >= self.config.settled,
            None => edge.reason != Some(Reason::Released),
        };
        let among = |(name, edge): &(&Name, &Edge)| queue.contains(*name) || (whole && movable(edge));
        let edges: Vec<(&Name, &Edge)> = self.edges.iter().filter(among).collect();
        if edges.is_empty() {
            return;
        }
        let problem = self.problem(&edges, whole);
        self.solving = true;
        self.outputs.push_back(Output::Solve(Box::new(problem)));
    }

    /// A solution comes back.
    pub fn solved(&mut self, solution: Solution, now: marline_core::units::Instant) {
        self.advance(now);
        self.solving = false;
        let Solution { boxes, prices } = solution;
        if let Some(prices) = prices {
            self.prices = prices;
        }
        let (mut boxes, others): (Vec<_>, Vec<_>) =
            boxes.into_iter().partition(|(boxed, _)| self.is_as_it_was(boxed));
        others.into_iter().for_each(|(boxed, _)| self.settle(boxed.edge));
        let stays = |boxed: &Boxed, to: &Option<(Name, Bitrate)>| {
            to.as_ref().is_some_and(|(to, _)| boxed.seat.as_ref().is_some_and(|seat| seat.relay == *to))
        };
        boxes.sort_by_key(|(boxed, to)| (to.is_none(), !stays(boxed, to)));
        let leaving = self.claims_of(boxes.iter().map(|(boxed, _)| boxed));
        let mut room: BTreeMap<Name, Bitrate> = BTreeMap::new();
        for (boxed, to) in boxes {
            let Boxed { edge, seat, otherwise } = boxed;
            let mut take = |relay: &Name, rate: Bitrate| {
                let claims = leaving.get(relay).copied().unwrap_or_default();
                let left = room.entry(relay.clone()).or_insert_with(|| self.room(relay, claims));
                let fits = rate <= *left;
                *left = if fits { *left - rate } else { *left };
                fits
            };
            // What brings it nothing, or is not offered any more, it does not keep.
            let keeps = to.is_some() || otherwise == Reason::NoRoom;
            match &to {
                Some((relay, rate)) if take(relay, *rate) => self.seat(&edge, relay, *rate),
                _ if keeps && seat.as_ref().is_some_and(|seat| take(&seat.relay, seat.reservation)) => {}
                Some(_) => {
                    self.unseat(&edge, Reason::NoRoom);
                    self.enqueue(&edge);
                    continue;
                }
                None => self.unseat(&edge, otherwise),
            }
            if self.edges.get_mut(&edge).is_some_and(|edge| std::mem::take(&mut edge.asked)) {
                self.outputs.push_back(Output::Decided(edge));
            }
        }
    }

    /// An edge that has gone or got another seat in the meantime is left alone; who still waits has this seat for an answer, or
    /// is matched again.
    fn settle(&mut self, name: Name) {
        let Some(edge) = self.edges.get_mut(&name).filter(|edge| edge.asked) else { return };
        if self.queue.contains(&name) {
            return;
        }
        if edge.seat.is_some() {
            edge.asked = false;
            self.outputs.push_back(Output::Decided(name));
        } else {
            self.enqueue(&name);
        }
    }

    fn problem(&self, edges: &[(&Name, &Edge)], whole: bool) -> Problem {
        let relays: Vec<Name> = self.relays.keys().filter(|relay| self.is_open(relay)).cloned().collect();
        let number: BTreeMap<&Name, usize> = relays.iter().enumerate().map(|(at, relay)| (relay, at)).collect();
        let boxes: Vec<Boxed> = edges
            .iter()
            .map(|(name, edge)| Boxed {
                edge: (*name).clone(),
                seat: edge.seat.clone(),
                otherwise: self.otherwise(edge),
            })
            .collect();
        let claims = self.claims_of(boxes.iter());
        let most = Instance::MOST_ROOM / (relays.len() as u64).max(1);
        let room = |relay: &Name| self.room(relay, claims.get(relay).copied().unwrap_or_default()).min(most);
        let room: Vec<Bitrate> = relays.iter().map(room).collect();
        let mut instance = Instance::new(&room).expect("each relay has its part of the most");
        let mut homes = Vec::with_capacity(edges.len());
        for (_, edge) in edges {
            let home = edge.seat.as_ref().and_then(|seat| number.get(&seat.relay).copied());
            let left = |at: usize, relay: &Name| {
                if home == Some(at) { self.room(relay, edge.load()).min(room[at]) } else { room[at] }
            };
            let candidates: Vec<Candidate> = self
                .reach(edge)
                .filter_map(|(relay, rate)| Some((*number.get(relay)?, relay, rate)))
                .map(|(at, relay, rate)| Candidate::through(at, rate, left(at, relay)))
                .collect();
            instance
                .add(edge.wish.alone, &candidates)
                .expect("a relay is named once, and there are fewer than 2^32");
            homes.push(home);
        }
        let prices = relays.iter().map(|relay| self.prices.get(relay).copied().unwrap_or(0.0));
        let prices = Prices::new(prices.collect::<Vec<_>>());
        Problem { instance, boxes, homes, prices, better: self.config.better, whole, relays }
    }

    /// Rule 3: the relays that an edge has measured, with what it reaches through them.
    pub(super) fn reach<'a>(&'a self, edge: &'a Edge) -> impl Iterator<Item = (&'a Name, Bitrate)> {
        edge.wish.measured.iter().filter_map(move |measured| {
            let relay = self.relays.get(&measured.relay)?;
            let onward = relay.beat.origins.get(&edge.wish.origin).copied().unwrap_or(relay.beat.capacity);
            let found =
                edge.found.as_ref().filter(|(relay, _, until)| *relay == measured.relay && self.now < *until);
            let uplink = found.map_or(measured.rate, |(_, rate, _)| measured.rate.min(*rate));
            let wanted = edge.wish.wanted.unwrap_or(Bitrate::MAX);
            Some((&measured.relay, uplink.min(onward).min(wanted)))
        })
    }

    fn otherwise(&self, edge: &Edge) -> Reason {
        let open = self.reach(edge).filter(|(relay, _)| self.is_open(relay));
        match open.map(|(_, rate)| rate).max() {
            None => Reason::NoRelay,
            Some(most) if most <= edge.wish.alone => Reason::NoGain,
            Some(_) => Reason::NoRoom,
        }
    }

    /// What boxes claim of each relay.
    fn claims_of<'a>(&self, boxes: impl Iterator<Item = &'a Boxed>) -> BTreeMap<Name, Load> {
        let mut claims = BTreeMap::new();
        for edge in boxes.filter_map(|boxed| self.edges.get(&boxed.edge)) {
            if let Some(seat) = &edge.seat {
                let sum: &mut Load = claims.entry(seat.relay.clone()).or_default();
                *sum = sum.plus(edge.load());
            }
        }
        claims
    }

    fn is_as_it_was(&self, boxed: &Boxed) -> bool {
        let mark = |seat: &Option<Seat>| seat.as_ref().map(|seat| seat.mark);
        let left = |edge: &Edge| edge.reason == Some(Reason::Released) && !edge.asked;
        self.edges.get(&boxed.edge).is_some_and(|edge| mark(&edge.seat) == mark(&boxed.seat) && !left(edge))
    }

    /// Seats an edge; one that stays with the same reservation has what it had.
    fn seat(&mut self, edge: &Name, relay: &Name, reservation: Bitrate) {
        let before = self.edges.get(edge).and_then(|edge| edge.seat.clone());
        let stays = before.filter(|seat| seat.relay == *relay);
        if stays.as_ref().is_some_and(|seat| seat.reservation == reservation) {
            return;
        }
        let (now, ends, mark) = (self.now, self.now + self.config.lease, self.next_version());
        let since = stays.map_or(now, |seat| seat.since);
        let seat = Seat { relay: relay.clone(), reservation, since, ends, mark };
        self.change(edge, |edge| {
            if edge.seat.as_ref().is_none_or(|old| old.relay != seat.relay) {
                // What went through the old one says nothing of the new one.
                (edge.throughput, edge.over) = (Bitrate::ZERO, Bitrate::ZERO);
            }
            (edge.seat, edge.reason) = (Some(seat), None);
        });
    }
}
