//! Relays: what they say, what their edges claim, and what follows of both.
//!
//! 1. Whose reservations have changed since the state that a relay has seen, is told all of them; others nothing. So is who has seen a
//!    state of our epoch that we have not told it: a store that lost its newest words has let somebody else lead in the same one.
//! 2. A relay that has not been heard for a lease is forgotten; its edges were matched anew when it missed its heartbeats.
//! 3. A relay that has seen a later epoch counts, for a store may have been lost, and so does one that has seen a version of
//!    ours that is still to come: another one leads in the same epoch. But not beyond [`FARTHEST`], and each relay once in a lease:
//!    one that lies must neither use up the numbers nor keep the others listening. Nothing else follows of it.

use std::collections::BTreeSet;
use std::time::Duration;

use marline_core::units::{Bitrate, Instant, Ratio};

use super::super::words::{Beat, BeatAnswer, Mark, RelayRow, Reserved};
use super::kept::Kept;
use super::{Machine, Output};
use crate::identity::Name;

/// A relay that was heard.
#[derive(Debug)]
pub(super) struct Relay {
    pub(super) beat: Beat,
    pub(super) heard: Instant,
    /// When it was ahead of us last (rule 3).
    ahead: Option<Instant>,
    /// It is to say what it keeps, and has not yet ([`kept`](super::kept)).
    pub(super) asked: bool,
    /// What it was told last.
    told: Option<Mark>,
}

/// What edges take up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Load {
    /// What is kept for them.
    pub(super) reserved: Bitrate,
    /// What they use beyond that.
    pub(super) over: Bitrate,
}

impl Load {
    pub(super) fn all(self) -> Bitrate {
        self.reserved + self.over
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self { reserved: self.reserved + other.reserved, over: self.over + other.over }
    }

    pub(super) fn less(self, other: Self) -> Self {
        Self { reserved: self.reserved - other.reserved, over: self.over - other.over }
    }
}

/// What edges have at a relay.
#[derive(Debug, Default)]
pub(super) struct Claims {
    pub(super) load: Load,
    pub(super) edges: BTreeSet<Name>,
    /// When somebody came, went, or got another reservation.
    pub(super) changed: Mark,
    /// What the relay has said that it keeps.
    pub(super) kept: Kept,
}

/// Rule 3. chosen: epochs count starts of the service.
const FARTHEST: u64 = 1_000_000;

impl Machine {
    /// A relay announces itself.
    ///
    /// # Errors
    /// What it says cannot be.
    pub fn heartbeat(&mut self, relay: &Name, mut beat: Beat, now: Instant) -> Result<BeatAnswer, String> {
        beat.check()?;
        self.advance(now);
        let (seen, held) = (beat.seen, beat.held.take());
        let asked = self.is_asked(relay, seen) && held.is_none();
        let answers = self.is_asked(relay, seen) && self.leads;
        let was_open = self.is_open(relay);
        let before = self.relays.get(relay);
        let (is_new, mut ahead) = (before.is_none(), before.and_then(|before| before.ahead));
        let by_us = before.and_then(|before| before.told) == Some(seen);
        if self.is_ahead(seen) && ahead.is_none_or(|at| self.now.since(at) >= self.config.lease) {
            ahead = Some(self.now);
            self.outputs.push_back(Output::Behind(seen.epoch));
        }
        if before.is_none_or(|before| !before.beat.is_like(&beat)) {
            self.news.relay(relay);
        }
        self.relays.insert(relay.clone(), Relay { beat, heard: self.now, ahead, asked, told: None });
        let tell_held = asked && self.leads;
        self.lists |= tell_held || answers;
        match held {
            Some(list) if answers => self.keep(relay, list),
            _ if is_new && self.leads && !asked => self.fit(relay),
            _ => {}
        }
        if was_open && !self.is_open(relay) {
            self.next_sweep = self.now;
        }
        let changed = self.claims.get(relay).map_or(Mark::default(), |claims| claims.changed);
        let knows = seen.epoch == self.mark.epoch && seen >= changed && (by_us || !self.leads);
        // One that is asked has seen nothing new, and keeps what it has.
        let mark = if tell_held { seen } else { self.mark };
        if let Some(known) = self.relays.get_mut(relay) {
            known.told = Some(mark);
        }
        Ok(BeatAnswer {
            mark,
            heartbeat_ms: millis(self.config.heartbeat),
            revocations: 0,
            draining: self.drains.contains_key(relay),
            assignments: (!knows && !tell_held).then(|| self.reserved_at(relay)),
            tell_held,
        })
    }

    /// An operator closes a relay for new streams, for so long or for good, or opens it again.
    pub fn drain(&mut self, relay: &Name, closed: bool, time: Option<Duration>, now: Instant) {
        self.advance(now);
        if closed {
            self.drains.insert(relay.clone(), time.map(|time| self.now + time));
            self.next_sweep = self.now;
        } else {
            self.drains.remove(relay);
        }
    }

    /// What operators have said in all, and to whoever; nothing else counts.
    pub fn drains(&mut self, drains: Vec<(Name, Option<Duration>)>, now: Instant) {
        self.advance(now);
        self.drains = drains.into_iter().map(|(relay, time)| (relay, time.map(|time| self.now + time))).collect();
        self.next_sweep = self.now;
    }

    /// What operators have said and still counts, and for how long.
    pub fn drained(&self) -> Vec<(Name, Option<Duration>)> {
        let left = |until: &Option<Instant>| until.map(|until| until.since(self.now));
        self.drains.iter().map(|(relay, until)| (relay.clone(), left(until))).collect()
    }

    /// Whether this relay has announced itself.
    pub fn knows(&self, relay: &Name) -> bool {
        self.relays.contains_key(relay)
    }

    /// All relays, by name.
    pub fn relays(&self) -> Vec<RelayRow> {
        let row = |(name, relay): (&Name, &Relay)| RelayRow {
            name: name.clone(),
            capacity: relay.beat.capacity,
            free: self.free(name),
            claimed: self.claims.get(name).map_or(Bitrate::ZERO, |claims| claims.load.all()),
            edges: self.claims.get(name).map_or(0, |claims| claims.edges.len()),
            healthy: self.is_healthy(relay),
            draining: relay.beat.draining || self.drains.contains_key(name),
            age_ms: millis(self.now.since(relay.heard)),
            addresses: relay.beat.addresses.clone(),
            position: relay.beat.position,
            certificate_ends: None,
            used_from: Vec::new(),
        };
        self.relays.iter().map(row).collect()
    }

    /// R(s), by rule 3 of the machine; none of a relay that is not known.
    pub(super) fn free(&self, name: &Name) -> Bitrate {
        let Some(relay) = self.relays.get(name) else { return Bitrate::ZERO };
        let claimed = self.claims.get(name).map_or(Bitrate::ZERO, |claims| claims.load.all());
        let said = relay.beat.capacity - relay.beat.free;
        relay.beat.capacity - said.max(claimed)
    }

    /// What a relay can still be given, if these were not there: R(s) less the threshold's share, which bursts of others fill
    /// first. So the word of one edge takes nothing from another.
    pub(super) fn room(&self, name: &Name, leaving: Load) -> Bitrate {
        let Some(relay) = self.relays.get(name).filter(|_| self.is_open(name)) else { return Bitrate::ZERO };
        let stay = self.claims.get(name).map_or_else(Load::default, |claims| claims.load.less(leaving));
        let said = relay.beat.capacity - relay.beat.free - leaving.all();
        let bursts = self.bursts(name);
        let waits = self.claims.get(name).map_or(Bitrate::ZERO, |claims| claims.kept.sum());
        relay.beat.capacity - bursts - said.max(stay.reserved + waits + (stay.over - bursts))
    }

    /// The threshold's share of T(s).
    pub(super) fn bursts(&self, name: &Name) -> Bitrate {
        self.relays.get(name).map_or(Bitrate::ZERO, |relay| relay.beat.capacity.share(self.config.threshold))
    }

    /// Rule 3.
    fn is_ahead(&self, seen: Mark) -> bool {
        match seen.epoch.checked_sub(self.mark.epoch) {
            None => false,
            Some(0) => seen.version > self.mark.version,
            Some(by) => by <= FARTHEST,
        }
    }

    /// One that another process has heard.
    pub(super) fn remember(&mut self, name: Name, beat: Beat) {
        let heard = self.now;
        // What is written is what it was told.
        self.relays.entry(name).or_insert(Relay { beat, heard, ahead: None, asked: false, told: None }).asked =
            false;
    }

    /// r(s).
    pub(super) fn load_rate(&self, name: &Name) -> Ratio {
        let capacity = self.relays.get(name).map_or(0, |relay| relay.beat.capacity.bits_per_sec());
        Ratio::of(self.free(name).bits_per_sec(), capacity)
    }

    /// Whether it is there and takes new streams.
    pub(super) fn is_open(&self, name: &Name) -> bool {
        let open = |relay: &Relay| self.is_healthy(relay) && !relay.beat.draining;
        self.relays.get(name).is_some_and(open) && !self.drains.contains_key(name)
    }

    fn is_healthy(&self, relay: &Relay) -> bool {
        self.now < self.grace || self.now.since(relay.heard) <= self.config.heartbeat * self.config.missed
    }

    pub(super) fn forget_relays(&mut self) {
        let (now, lease) = (self.now, self.config.lease);
        let news = &mut self.news;
        self.relays.retain(|name, relay| {
            let stays = now.since(relay.heard) <= lease;
            if !stays {
                news.relay(name);
            }
            stays
        });
    }

    fn reserved_at(&self, relay: &Name) -> Vec<Reserved> {
        let edges = self.claims.get(relay).into_iter().flat_map(|claims| &claims.edges);
        let of = |name: &Name| {
            let seat = self.edges.get(name)?.seat.as_ref()?;
            Some(Reserved { edge: name.clone(), reservation: seat.reservation, mark: seat.mark })
        };
        edges.filter_map(of).chain(self.waiting_at(relay)).collect()
    }
}

pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
