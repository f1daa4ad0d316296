//! Selection of the candidate relays that an edge measures (BASS Algorithm 1, line 3): the nearest relays with free capacity.

use alloc::vec::Vec;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use super::capacity::CapacityView;
use super::relay_table::RelayRecord;
use crate::fleet::messages::Candidate;
use crate::fleet::position::{Distance, Position};
use crate::fleet::{Endpoint, Name};
use crate::units::Bitrate;

/// What a request for candidates states about the edge.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Proximity {
    /// The edge's position; none: as in its last request.
    pub position: Option<Position>,
    /// The origin server of its stream.
    pub origin: Option<Endpoint>,
}

/// The nearest relays that are open (healthy and not draining) and have a free share of at least the threshold. At equal distance the
/// relay with the highest measured rate to the origin server comes first; relays that have not measured this server come last.
pub(super) fn candidates(view: CapacityView<'_>, edge: &Name, proximity: &Proximity) -> Vec<Candidate> {
    let request = view.placements.get(edge).map(|edge| &edge.request);
    let position = proximity.position.or_else(|| request.and_then(|request| request.position));
    let rtt_to = |relay: &Name| {
        let measured = request?.measurements.iter().find(|one| one.relay == *relay)?;
        measured.rtt_ms.map(|millis| Duration::from_millis(millis.into()))
    };
    let mut found: Vec<(Distance, Option<Bitrate>, &Name, &RelayRecord)> = Vec::new();
    for (name, relay) in view.relays.iter() {
        if !view.is_open(name) || view.free_share(name) < view.config.threshold {
            continue;
        }
        let distance = Distance::of((position, relay.heartbeat.position), rtt_to(name), (edge, name));
        let origin_rate =
            proximity.origin.as_ref().and_then(|origin| relay.heartbeat.origin_rates.get(origin)).copied();
        found.push((distance, origin_rate, name, relay));
    }
    // Of possibly a thousand relays only the first `max_candidates` are returned.
    found.sort_by(|(a, first_rate, ..), (b, second_rate, ..)| a.cmp_distance(*b).then(second_rate.cmp(first_rate)));
    found.truncate(view.config.max_candidates);
    let candidate =
        |(distance, origin_rate, name, relay): (Distance, Option<Bitrate>, &Name, &RelayRecord)| Candidate {
            relay: name.clone(),
            addresses: relay.heartbeat.addresses.clone(),
            server_name: relay.heartbeat.server_name.clone(),
            free: view.free_capacity(name),
            capacity: relay.heartbeat.capacity,
            origin_rate,
            distance_km: distance.km(),
        };
    found.into_iter().map(candidate).collect()
}
