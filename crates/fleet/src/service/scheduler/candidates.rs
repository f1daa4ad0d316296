//! Which relays a box may measure (BASS Algorithm 1, line 3): the nearest of those that have something left.

use std::time::Duration;

use marline_core::units::{Bitrate, Instant};

use super::super::api_types::{Candidate, Endpoint};
use super::super::geo::{Distance, Position};
use super::FleetScheduler;
use super::relays::RelayRecord;
use crate::identity::Name;

/// What an edge says of where it is and where it sends to.
#[derive(Clone, Debug, Default)]
pub struct Proximity {
    /// Where it is; none: as it said last.
    pub position: Option<Position>,
    /// Its server.
    pub origin: Option<Endpoint>,
}

impl FleetScheduler {
    /// The nearest relays that are open and have a larger share free than the threshold. Of several that are equally near, the
    /// one that reaches the server best comes first; who has measured nothing there is taken for no better than others.
    pub fn candidates(&mut self, edge: &Name, proximity: &Proximity, now: Instant) -> Vec<Candidate> {
        self.advance(now);
        let request = self.edges.get(edge).map(|edge| &edge.request);
        let position = proximity.position.or_else(|| request.and_then(|request| request.position));
        let rtt_to = |relay: &Name| {
            let measured = request?.measurements.iter().find(|one| one.relay == *relay)?;
            measured.rtt_ms.map(|millis| Duration::from_millis(millis.into()))
        };
        let mut found: Vec<(Distance, Option<Bitrate>, &Name, &RelayRecord)> = Vec::new();
        for (name, relay) in &self.relays {
            if !self.is_open(name) || self.free_share(name) < self.config.threshold {
                continue;
            }
            let nearness = Distance::of((position, relay.heartbeat.position), rtt_to(name), (edge, name));
            let origin_rate =
                proximity.origin.as_ref().and_then(|origin| relay.heartbeat.origin_rates.get(origin)).copied();
            found.push((nearness, origin_rate, name, relay));
        }
        // Of a thousand relays each edge is told three.
        found.sort_by(|(a, first_rate, ..), (b, second_rate, ..)| {
            a.cmp_distance(*b).then(second_rate.cmp(first_rate))
        });
        found.truncate(self.config.max_candidates);
        let candidate =
            |(nearness, origin_rate, name, relay): (Distance, Option<Bitrate>, &Name, &RelayRecord)| Candidate {
                relay: name.clone(),
                addresses: relay.heartbeat.addresses.clone(),
                server_name: relay.heartbeat.server_name.clone(),
                free: self.free_capacity(name),
                capacity: relay.heartbeat.capacity,
                origin_rate,
                distance_km: nearness.km(),
            };
        found.into_iter().map(candidate).collect()
    }
}
