//! What relays say that they keep for edges, when who has told them so knows it no longer.
//!
//! In: a relay's list. Out: room that waits for who stands there.
//!
//! 1. A relay that a later epoch finds here for the first time, and that an earlier one has told of its edges, is asked for them
//!    while everybody announces himself anew. Until it has answered it keeps what it has, and edges are taken at their word.
//! 2. Its list comes before the words of edges: what stands there waits for its edge as long as everybody announces himself, and who
//!    says more than stands there has only what is left. Where that is not enough, whoever says the most beyond it goes first.
//! 3. A list counts as far as the relay can be filled: a relay that lies fills itself and nobody else. It says nothing of who
//!    is here already, and an edge that is seated anywhere, or lets go, is kept no other place.
//! 4. Who is on a list has told nothing yet: he has no lease, and is gone when the others were heard.

use std::collections::BTreeMap;

use marline_core::units::Bitrate;

use super::super::words::{Mark, Reserved};
use super::Machine;
use crate::identity::Name;

/// A relay's list.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// All that it has said, as far as it can be filled.
    said: BTreeMap<Name, Bitrate>,
    /// Those who were not heard yet.
    waits: BTreeMap<Name, Bitrate>,
    sum: Bitrate,
}

impl Kept {
    /// What waits for others than this one.
    fn but(&self, edge: &Name) -> Bitrate {
        self.sum - self.of(edge)
    }

    /// What waits for this one.
    pub(super) fn of(&self, edge: &Name) -> Bitrate {
        self.waits.get(edge).copied().unwrap_or_default()
    }

    /// What this one has said beyond the list.
    pub(super) fn beyond(&self, edge: &Name, reserved: Bitrate) -> Bitrate {
        reserved - self.said.get(edge).copied().unwrap_or_default()
    }

    /// What stands there of one who is seated.
    pub(super) fn said(&self, edge: &Name) -> Option<Bitrate> {
        self.said.get(edge).copied()
    }

    /// What waits in all.
    pub(super) fn sum(&self) -> Bitrate {
        self.sum
    }

    fn came(&mut self, edge: &Name) {
        if let Some(rate) = self.waits.remove(edge) {
            self.sum = self.sum - rate;
        }
    }
}

impl Machine {
    /// Rule 1: whether this relay is to be asked.
    pub(super) fn is_asked(&self, relay: &Name, seen: Mark) -> bool {
        let begins = !self.leads || self.now < self.grace;
        let before = self.relays.get(relay);
        begins && seen.epoch > 0 && seen.epoch != self.mark.epoch && before.is_none_or(|before| before.asked)
    }

    /// Whether it was asked and has not answered.
    pub(super) fn is_awaited(&self, relay: &Name) -> bool {
        self.now < self.grace && self.relays.get(relay).is_some_and(|relay| relay.asked)
    }

    /// A relay's list.
    pub(super) fn keep(&mut self, relay: &Name, list: BTreeMap<Name, Bitrate>) {
        let Some(known) = self.relays.get(relay) else { return };
        let mut left = known.beat.capacity - self.bursts(relay);
        let mut kept = Kept::default();
        for (edge, rate) in list.into_iter().filter(|(_, rate)| !rate.is_zero()) {
            if rate > left {
                continue;
            }
            left = left - rate;
            if self.edges.get(&edge).is_none_or(|edge| edge.seat.is_none()) {
                kept.waits.insert(edge.clone(), rate);
                kept.sum = kept.sum + rate;
            }
            kept.said.insert(edge, rate);
        }
        let changed = self.mark;
        let claims = self.claims.entry(relay.clone()).or_default();
        (claims.kept, claims.changed) = (kept, changed);
        self.fit(relay);
    }

    /// What waits at a relay for others than this one.
    pub(super) fn kept_but(&self, relay: &Name, edge: &Name) -> Bitrate {
        self.claims.get(relay).map_or(Bitrate::ZERO, |claims| claims.kept.but(edge))
    }

    /// Rule 3: this one is seated, or has let go.
    pub(super) fn came(&mut self, edge: &Name) {
        if self.lists {
            self.claims.values_mut().for_each(|claims| claims.kept.came(edge));
        }
    }

    /// Those at a relay who were not heard yet, as it is told of them.
    pub(super) fn waiting_at(&self, relay: &Name) -> impl Iterator<Item = Reserved> {
        let mark = self.mark;
        let waits = self.claims.get(relay).into_iter().flat_map(|claims| &claims.kept.waits);
        waits.map(move |(edge, rate)| Reserved { edge: edge.clone(), reservation: *rate, mark })
    }

    /// Rule 4: everybody was heard who lives.
    pub(super) fn end_lists(&mut self) {
        if !std::mem::take(&mut self.lists) {
            return;
        }
        let with_rest = self.claims.values().any(|claims| !claims.kept.waits.is_empty());
        let mark = if with_rest { self.next_version() } else { self.mark };
        for claims in self.claims.values_mut() {
            if !std::mem::take(&mut claims.kept).waits.is_empty() {
                claims.changed = mark;
            }
        }
        let asked: Vec<Name> =
            self.relays.iter().filter(|(_, relay)| relay.asked).map(|(name, _)| name.clone()).collect();
        for relay in asked {
            if let Some(known) = self.relays.get_mut(&relay) {
                known.asked = false;
            }
            self.fit(&relay);
        }
    }
}
