//! Edges: what they would have, what they have, and how it goes.
//!
//! 1. Every change of a seat or of what an edge uses keeps the sum of its relay's claims right: [`Machine::change`] is the one
//!    place for it.
//! 2. An edge that gets less than [`low`](super::Config::low) of what it offers, in [`LOW`] reports running, is matched anew; what it
//!    gets is what it can have there, whatever it measured before, until the next re-allocation.
//! 3. What an edge says that goes through counts beyond its reservation as far as that again, and no further than the share that
//!    relays keep for bursts: an edge that says too much fills no relay.
//! 4. A relay that an edge says it holds is its own again only while everybody announces himself anew, or if it was given by one
//!    who led before; and it takes the place of nobody, of none either who stands on the relay's list ([`kept`](super::kept)).
//! 5. An edge that asked and has no relay is matched again with each report: what it lacked may be there now. One that let go
//!    is not; it asks when it wants another one.

use marline_core::units::{Bitrate, Instant};

use super::super::words::{Assignment, EdgeRow, Held, Mark, Reason, Report, Standing, Wish};
use super::relays::{Load, millis};
use super::{Machine, Output};
use crate::identity::Name;

/// An edge that was heard.
#[derive(Debug)]
pub(super) struct Edge {
    pub(super) wish: Wish,
    pub(super) heard: Instant,
    pub(super) throughput: Bitrate,
    /// What it uses beyond its reservation, as far as that counts (rule 3).
    pub(super) over: Bitrate,
    pub(super) seat: Option<Seat>,
    pub(super) reason: Option<Reason>,
    /// Reports running that were low.
    low: u32,
    /// What a relay gave in truth, until then.
    pub(super) found: Option<(Name, Bitrate, Instant)>,
    /// Its request waits for an answer.
    pub(super) asked: bool,
}

/// An edge's place at a relay.
#[derive(Clone, Debug)]
pub(super) struct Seat {
    pub(super) relay: Name,
    pub(super) reservation: Bitrate,
    pub(super) since: Instant,
    pub(super) ends: Instant,
    pub(super) mark: Mark,
}

/// chosen: one report may have met a tunnel.
const LOW: u32 = 2;

impl Edge {
    /// What it takes up at its relay.
    pub(super) fn load(&self) -> Load {
        let of = |seat: &Seat| Load { reserved: seat.reservation, over: self.over };
        self.seat.as_ref().map_or_else(Load::default, of)
    }
}

impl Machine {
    /// An edge asks for a relay: it is matched at the end of the window.
    ///
    /// # Errors
    /// What it says cannot be.
    pub fn request(&mut self, name: &Name, wish: Wish, now: Instant) -> Result<(), String> {
        wish.check()?;
        self.advance(now);
        self.heard(name, wish);
        if let Some(edge) = self.edges.get_mut(name) {
            (edge.asked, edge.reason) = (true, Some(Reason::Pending));
        }
        self.enqueue(name);
        Ok(())
    }

    /// An edge says how it goes, and keeps what it has.
    ///
    /// # Errors
    /// What it says cannot be.
    pub fn report(&mut self, name: &Name, report: Report, now: Instant) -> Result<Standing, String> {
        let Report { wish, throughput, offered, held } = report;
        wish.check()?;
        self.advance(now);
        self.heard(name, wish);
        let has_seat = self.edges.get(name).is_some_and(|edge| edge.seat.is_some());
        if let Some(held) = held.filter(|_| !has_seat) {
            self.adopt(name, &held);
        }
        let (most, bursts) = self.most(name);
        self.change(name, |edge| {
            edge.throughput = throughput.min(most);
            let reserved = edge.seat.as_ref().map_or(Bitrate::ZERO, |seat| seat.reservation);
            edge.over = (edge.throughput - reserved).min(reserved).min(bursts);
        });
        self.judge(name, offered.unwrap_or(throughput), throughput);
        let edge = self.edges.get(name);
        let alone = edge.filter(|edge| edge.seat.is_none()).and_then(|edge| edge.reason);
        if matches!(alone, Some(Reason::NoRelay | Reason::NoGain | Reason::NoRoom)) {
            self.enqueue(name);
        }
        Ok(self.standing(name))
    }

    /// An edge needs its relay no longer.
    pub fn release(&mut self, name: &Name, now: Instant) {
        self.advance(now);
        self.queue.remove(name);
        self.came(name);
        self.unseat(name, Reason::Released);
        if self.edges.get_mut(name).is_some_and(|edge| std::mem::take(&mut edge.asked)) {
            self.outputs.push_back(Output::Decided(name.clone()));
        }
    }

    /// How an edge stands.
    pub fn standing(&self, name: &Name) -> Standing {
        let edge = self.edges.get(name);
        let assignment = edge.and_then(|edge| edge.seat.as_ref()).map(|seat| {
            let relay = self.relays.get(&seat.relay);
            Assignment {
                relay: seat.relay.clone(),
                addresses: relay.map(|relay| relay.beat.addresses.clone()).unwrap_or_default(),
                server_name: relay.map(|relay| relay.beat.server_name.clone()),
                reservation: seat.reservation,
                lease_ms: millis(seat.ends.since(self.now)),
                mark: seat.mark,
            }
        });
        let reason = if assignment.is_some() { None } else { edge.and_then(|edge| edge.reason) };
        Standing { assignment, reason, heartbeat_ms: millis(self.config.heartbeat), revocations: 0 }
    }

    /// All edges, by name.
    pub fn edges(&self) -> Vec<EdgeRow> {
        let row = |(name, edge): (&Name, &Edge)| EdgeRow {
            name: name.clone(),
            origin: edge.wish.origin.clone(),
            alone: edge.wish.alone,
            relay: edge.seat.as_ref().map(|seat| seat.relay.clone()),
            reservation: edge.seat.as_ref().map(|seat| seat.reservation),
            throughput: edge.throughput,
            reason: if edge.seat.is_some() { None } else { edge.reason },
            mark: edge.seat.as_ref().map(|seat| seat.mark),
            age_ms: millis(self.now.since(edge.heard)),
            certificate_ends: None,
            used_from: Vec::new(),
        };
        self.edges.iter().map(row).collect()
    }

    /// What it wants, and that it lives.
    pub(super) fn heard(&mut self, name: &Name, wish: Wish) {
        let (now, ends) = (self.now, self.now + self.config.lease);
        let new = || Edge {
            wish: wish.clone(),
            heard: now,
            throughput: Bitrate::ZERO,
            over: Bitrate::ZERO,
            seat: None,
            reason: None,
            low: 0,
            found: None,
            asked: false,
        };
        let edge = self.edges.entry(name.clone()).or_insert_with(new);
        (edge.wish, edge.heard) = (wish, now);
        if let Some(seat) = &mut edge.seat {
            seat.ends = ends;
        }
    }

    /// Rule 4.
    fn adopt(&mut self, name: &Name, held: &Held) {
        let (relay, begins) = (&held.relay, self.now < self.grace);
        let Some(edge) = self.edges.get(name) else { return };
        let measured = edge.wish.measured.iter().find(|one| one.relay == *relay).map(|one| one.rate);
        let Some(measured) = measured.filter(|_| held.mark.epoch <= self.mark.epoch) else { return };
        let reached = self.reach(edge).find(|(name, _)| *name == relay).map(|(_, rate)| rate);
        let mut reservation = held.reservation.min(reached.unwrap_or(measured));
        let room = match self.relays.get(relay) {
            // It will say whom it keeps what for.
            Some(_) if self.is_awaited(relay) && self.is_open(relay) => Bitrate::MAX,
            // Relays count for as much as they were told by who led before: now only edges' words do.
            Some(known) if begins && self.is_open(relay) => {
                let given = self.claims.get(relay).map_or(Bitrate::ZERO, |claims| claims.load.reserved);
                known.beat.capacity - self.bursts(relay) - given - self.kept_but(relay, name)
            }
            Some(_) => self.room(relay, Load::default()),
            None if begins => Bitrate::MAX,
            None => Bitrate::ZERO,
        };
        if reservation > room {
            let kept = self.claims.get(relay).map_or(Bitrate::ZERO, |claims| claims.kept.of(name));
            reservation = if kept.is_zero() { reservation } else { reservation.min(kept) };
        }
        let may = begins || held.mark.epoch < self.mark.epoch;
        if reservation.is_zero() || reservation > room || !may {
            self.enqueue(name);
            return;
        }
        let mark = self.next_version();
        let (since, ends) = (self.now, self.now + self.config.lease);
        let seat = Seat { relay: held.relay.clone(), reservation, since, ends, mark };
        self.change(name, |edge| edge.seat = Some(seat));
    }

    /// Rule 2.
    fn judge(&mut self, name: &Name, offered: Bitrate, throughput: Bitrate) {
        let (now, config) = (self.now, self.config);
        let Some(edge) = self.edges.get_mut(name) else { return };
        let Some(seat) = &edge.seat else { return };
        let is_low = throughput < offered.min(seat.reservation).share(config.low);
        edge.low = if is_low { edge.low + 1 } else { 0 };
        if edge.low >= LOW && now.since(seat.since) >= config.settled {
            edge.low = 0;
            edge.found = Some((seat.relay.clone(), throughput, now + config.reallocate));
            self.enqueue(name);
        }
    }

    /// The most that goes through an edge's relay, and the share of it that is for bursts.
    fn most(&self, name: &Name) -> (Bitrate, Bitrate) {
        let Some(seat) = self.edges.get(name).and_then(|edge| edge.seat.as_ref()) else { return <_>::default() };
        let relay = self.relays.get(&seat.relay);
        (relay.map_or(Bitrate::ZERO, |relay| relay.beat.capacity), self.bursts(&seat.relay))
    }

    /// A relay that edges named before it was heard has said what it can carry, or what it keeps: whoever named the most beyond that
    /// goes first.
    pub(super) fn fit(&mut self, relay: &Name) {
        loop {
            let Some(claims) = self.claims.get(relay) else { return };
            let capacity = self.relays.get(relay).map_or(Bitrate::ZERO, |relay| relay.beat.capacity);
            if claims.load.reserved + claims.kept.sum() <= capacity - self.bursts(relay) {
                return;
            }
            let reserved = |name: &Name| self.edges.get(name).map_or(Bitrate::ZERO, |edge| edge.load().reserved);
            let beyond = |name: &&Name| (claims.kept.beyond(name, reserved(name)), reserved(name));
            let Some(most) = claims.edges.iter().max_by_key(beyond).cloned() else { return };
            if let Some(said) = claims.kept.said(&most).filter(|said| *said < reserved(&most)) {
                let mark = self.next_version();
                self.change(&most, |edge| {
                    if let Some(seat) = &mut edge.seat {
                        (seat.reservation, seat.mark) = (said, mark);
                    }
                });
                continue;
            }
            self.unseat(&most, Reason::NoRoom);
            self.enqueue(&most);
        }
    }

    /// Takes its relay from an edge.
    pub(super) fn unseat(&mut self, name: &Name, reason: Reason) {
        if self.edges.get(name).is_some_and(|edge| edge.seat.is_some()) {
            self.next_version();
        }
        self.change(name, |edge| (edge.seat, edge.reason, edge.over) = (None, Some(reason), Bitrate::ZERO));
    }

    /// Rule 1.
    pub(super) fn change(&mut self, name: &Name, change: impl FnOnce(&mut Edge)) {
        let mark = self.mark;
        let Some(edge) = self.edges.get_mut(name) else { return };
        let place = |edge: &Edge| edge.seat.as_ref().map(|seat| (seat.relay.clone(), seat.reservation));
        let (from, before) = (place(edge), edge.load());
        change(edge);
        let (to, after) = (place(edge), edge.load());
        if from != to {
            self.news.edge(name);
        }
        if let Some((relay, _)) = &from
            && let Some(claims) = self.claims.get_mut(relay)
        {
            claims.load = claims.load.less(before);
            if from != to {
                claims.edges.remove(name);
                claims.changed = mark;
            }
        }
        if let Some((relay, _)) = &to {
            let claims = self.claims.entry(relay.clone()).or_default();
            claims.load = claims.load.plus(after);
            if from != to {
                claims.edges.insert(name.clone());
                claims.changed = mark;
                self.came(name);
            }
        }
    }

    /// Leases that are over, and edges that were not heard for as long.
    pub(super) fn end_leases(&mut self) {
        let (now, lease) = (self.now, self.config.lease);
        let holds = |edge: &Edge| edge.seat.as_ref().is_some_and(|seat| seat.ends > now);
        let over = |edge: &Edge| now.since(edge.heard) > lease && !holds(edge);
        let gone: Vec<Name> =
            self.edges.iter().filter(|(_, edge)| over(edge)).map(|(name, _)| name.clone()).collect();
        for name in gone {
            self.release(&name, now);
            self.edges.remove(&name);
            self.news.edge(&name);
        }
    }

    /// Edges whose relay is no longer open go into the window, and stay where they are until it is decided.
    pub(super) fn displace(&mut self) {
        let open = |name: &Name| self.is_open(name) || (!self.relays.contains_key(name) && self.now < self.grace);
        let closed = self.claims.iter().filter(|(relay, claims)| !claims.edges.is_empty() && !open(relay));
        let displaced: Vec<Name> = closed.flat_map(|(_, claims)| claims.edges.iter().cloned()).collect();
        displaced.iter().for_each(|edge| self.enqueue(edge));
    }
}
