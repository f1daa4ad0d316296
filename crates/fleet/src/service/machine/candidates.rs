//! Which relays a box may measure (BASS Algorithm 1, line 3): the nearest of those that have something left.

use std::time::Duration;

use marline_core::units::{Bitrate, Instant};

use super::super::position::{Nearness, Position};
use super::super::words::{Candidate, Endpoint};
use super::Machine;
use super::relays::Relay;
use crate::identity::Name;

/// What an edge says of where it is and where it sends to.
#[derive(Clone, Debug, Default)]
pub struct Near {
    /// Where it is; none: as it said last.
    pub position: Option<Position>,
    /// Its server.
    pub origin: Option<Endpoint>,
}

impl Machine {
    /// The nearest relays that are open and have a larger share free than the threshold. Of several that are equally near, the
    /// one that reaches the server best comes first; who has measured nothing there is taken for no better than others.
    pub fn candidates(&mut self, edge: &Name, near: &Near, now: Instant) -> Vec<Candidate> {
        self.advance(now);
        let known = self.edges.get(edge).map(|edge| &edge.wish);
        let position = near.position.or_else(|| known.and_then(|wish| wish.position));
        let round_trip = |relay: &Name| {
            let measured = known?.measured.iter().find(|one| one.relay == *relay)?;
            measured.rtt_ms.map(|millis| Duration::from_millis(millis.into()))
        };
        let mut found: Vec<(Nearness, Option<Bitrate>, &Name, &Relay)> = Vec::new();
        for (name, relay) in &self.relays {
            if !self.is_open(name) || self.load_rate(name) < self.config.threshold {
                continue;
            }
            let nearness = Nearness::of((position, relay.beat.position), round_trip(name), (edge, name));
            let origin = near.origin.as_ref().and_then(|origin| relay.beat.origins.get(origin)).copied();
            found.push((nearness, origin, name, relay));
        }
        // Of a thousand relays each edge is told three.
        found.sort_by(|(a, one, ..), (b, other, ..)| a.order(*b).then(other.cmp(one)));
        found.truncate(self.config.candidates);
        let candidate = |(nearness, origin, name, relay): (Nearness, Option<Bitrate>, &Name, &Relay)| Candidate {
            relay: name.clone(),
            addresses: relay.beat.addresses.clone(),
            server_name: relay.beat.server_name.clone(),
            free: self.free(name),
            capacity: relay.beat.capacity,
            origin,
            distance_km: nearness.km(),
        };
        found.into_iter().map(candidate).collect()
    }
}
