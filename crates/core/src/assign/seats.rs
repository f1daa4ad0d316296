//! Who sits where: a plan that is being changed.
//!
//! In: boxes and where they go. Out: who is at a relay, what is left there, what all of it is worth.
//!
//! A box is only ever put where it fits, so that every state is a plan that can be carried out.

use alloc::vec;
use alloc::vec::Vec;

use super::instance::NONE;
use super::view::View;

/// A plan, with the boxes of each relay.
#[derive(Clone, Debug)]
pub(super) struct Seats {
    /// Of each box its candidate, or [`NONE`].
    pub(super) choice: Vec<u32>,
    /// What each relay has left, in bits per second.
    pub(super) left: Vec<u64>,
    /// What all choices gain, and that without what staying is worth.
    pub(super) gain: i64,
    pub(super) real: i64,
    /// The boxes of each relay, in no order, and where each box is in its list.
    members: Vec<Vec<u32>>,
    place: Vec<u32>,
}

impl Seats {
    /// Everybody is alone.
    pub(super) fn new(view: View<'_>) -> Self {
        let (relays, boxes) = (view.instance.relays(), view.instance.boxes());
        Self {
            choice: vec![NONE; boxes],
            left: (0..relays).map(|relay| view.instance.room(relay).bits_per_sec()).collect(),
            gain: 0,
            real: 0,
            members: vec![Vec::new(); relays],
            place: vec![NONE; boxes],
        }
    }

    /// The boxes at a relay.
    pub(super) fn members(&self, relay: usize) -> &[u32] {
        &self.members[relay]
    }

    /// Whether there is room for a candidate.
    pub(super) fn fits(&self, view: View<'_>, choice: u32) -> bool {
        let edge = choice as usize;
        choice == NONE || view.instance.rate_of(edge).bits_per_sec() <= self.left[view.instance.relay_of(edge)]
    }

    /// Puts a box somewhere, where it must fit once it has left its place.
    pub(super) fn put(&mut self, view: View<'_>, at: usize, choice: u32) {
        let before = self.choice[at];
        self.gain += view.gain(at, choice) - view.gain(at, before);
        self.real += view.real(at, choice) - view.real(at, before);
        self.choice[at] = choice;
        if before != NONE {
            let relay = view.instance.relay_of(before as usize);
            self.left[relay] += view.instance.rate_of(before as usize).bits_per_sec();
            let place = self.place[at] as usize;
            self.members[relay].swap_remove(place);
            if let Some(moved) = self.members[relay].get(place) {
                self.place[*moved as usize] = place as u32;
            }
        }
        if choice != NONE {
            let relay = view.instance.relay_of(choice as usize);
            self.left[relay] -= view.instance.rate_of(choice as usize).bits_per_sec();
            self.place[at] = self.members[relay].len() as u32;
            self.members[relay].push(at as u32);
        }
    }

    /// Puts several boxes where they fit together: all leave before the first one is seated.
    pub(super) fn put_all(&mut self, view: View<'_>, moves: &[(u32, u32)]) {
        moves.iter().for_each(|(at, _)| self.put(view, *at as usize, NONE));
        moves.iter().for_each(|(at, choice)| self.put(view, *at as usize, *choice));
    }

    /// The choice of a box that is worth most under prices among those that fit and are worth more than `least`.
    pub(super) fn best_fit(&self, view: View<'_>, prices: &[f64], at: usize, least: f64) -> u32 {
        let (mut best, mut most) = (NONE, least);
        for edge in view.instance.edges(at).map(|edge| edge as u32) {
            let worth = view.priced(prices, at, edge);
            if worth > most && self.fits(view, edge) {
                (best, most) = (edge, worth);
            }
        }
        best
    }
}
