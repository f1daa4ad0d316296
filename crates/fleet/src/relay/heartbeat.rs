//! Sends the relay's heartbeats to the fleet service, and applies the replies.
//!
//! A reply contains reservations, whether the relay must refuse new tunnels, and the number of the newest revocation list.
//!
//! 1. A reply counts if its epoch (each leader of the service begins a new one) is no older than the newest epoch received, and its
//!    version is no older within that epoch: after a failover two processes may respond for a while, and the older one is ignored
//!    (`NewestVersion`).
//! 2. An unreachable service changes nothing: streams continue and reservations stay in force. It is reported once.
//! 3. The free capacity is the capacity less the reserved rate or the rate carried since the last heartbeat, whichever is larger.
//! 4. A service that has restarted requests the reservations, and gets them at once ([`HeartbeatReply::report_reservations`]).
//! 5. A revocation list of the relay's authority that is newer than the present one is written to the relay's file, from which
//!    `server_trust` reads it like any other.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::{Duration, Instant};

use marline_core::units::{Bitrate, DataSize};

use super::Relay;
use crate::ca::{Address, CaError};
use crate::identity::Name;
use crate::service::api_types::{Endpoint, Heartbeat, HeartbeatReply, MAX_RESERVATIONS, StateVersion};
use crate::service::{Client, ClientError, Position};

/// Interval until the service states another one.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(5);
/// Lower bound for the interval that a service may request.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

/// The part of a heartbeat that is constant while a relay runs.
#[derive(Clone, Debug)]
pub struct HeartbeatConfig {
    /// T(s): the capacity for each direction.
    pub capacity: Bitrate,
    /// Addresses at which edges reach the relay.
    pub addresses: Vec<Endpoint>,
    /// The name or address for which edges verify its certificate.
    pub server_name: Address,
    /// Geographical position of the relay.
    pub position: Option<Position>,
}

/// Sends heartbeats until dropped. `report` is called when the service responds, and when it does not respond any more.
pub async fn send_heartbeats(
    relay: &Relay,
    config: &HeartbeatConfig,
    mut client: Client,
    report: impl Fn(&str),
) -> Infallible {
    let (mut newest, mut rate, mut is_service_up, mut sends_reservations) =
        (NewestVersion::default(), CarriedRate::new(relay), None, false);
    let mut interval = DEFAULT_INTERVAL;
    // Number of a list of another authority, and the relay's authority at that time: do not fetch the same list again.
    let mut foreign_crl = None;
    loop {
        let heartbeat = Heartbeat {
            reservations: sends_reservations.then(|| reservations(relay)),
            ..build_heartbeat(relay, config, rate.take_rate(relay), newest.0)
        };
        let mut pause = interval;
        match client.post::<HeartbeatReply>("/v1/relays/heartbeat", &heartbeat).await {
            Ok(reply) => {
                interval = Duration::from_millis(reply.heartbeat_ms).clamp(MIN_INTERVAL, DEFAULT_INTERVAL * 12);
                // Reservations that the service has just received need not be sent again at once.
                pause = if reply.report_reservations && !sends_reservations { MIN_INTERVAL } else { interval };
                sends_reservations = reply.report_reservations;
                match is_service_up.replace(true) {
                    None => report("the fleet's service knows this relay"),
                    Some(false) => report("the fleet's service answers again"),
                    Some(true) => {}
                }
                apply_reply(relay, &reply, &mut newest);
                let (crl_number, authority) = {
                    let trusted = relay.trusted.borrow();
                    (trusted.revocations.number(), trusted.revocations.authority().clone())
                };
                let fetched = Some((reply.revocations, authority));
                if reply.revocations > crl_number && foreign_crl != fetched {
                    match fetch_crl(&mut client, relay).await {
                        Ok(true) => foreign_crl = None,
                        Ok(false) => foreign_crl = fetched,
                        Err(error) => tracing::warn!("cannot update the revocation list: {error}"),
                    }
                }
            }
            Err(error) => {
                if is_service_up.replace(false) != Some(false) {
                    report(&format!(
                        "the fleet's service does not answer: {error}; streams continue, and reservations stay in force"
                    ));
                }
            }
        }
        tokio::time::sleep(pause).await;
    }
}

/// The assigned reservations, as many as a heartbeat may contain.
fn reservations(relay: &Relay) -> BTreeMap<Name, Bitrate> {
    relay.assigned().into_iter().take(MAX_RESERVATIONS).collect()
}

fn build_heartbeat(relay: &Relay, config: &HeartbeatConfig, carried: Bitrate, seen: StateVersion) -> Heartbeat {
    let (state, origins) = (relay.state(), relay.origins());
    let rates_of = |lower_bound: bool| -> BTreeMap<Endpoint, Bitrate> {
        let matching = origins.iter().filter(|one| one.lower_bound == lower_bound);
        matching.map(|one| (one.origin.clone(), one.rate)).collect()
    };
    Heartbeat {
        capacity: config.capacity,
        free: config.capacity - state.reserved.max(carried),
        addresses: config.addresses.clone(),
        server_name: config.server_name.clone(),
        position: config.position,
        origin_rates: rates_of(false),
        origin_lower_bounds: rates_of(true),
        draining: state.draining,
        seen_version: seen,
        reservations: None,
    }
}

/// Applies a reply of the service, unless it is outdated.
fn apply_reply(relay: &Relay, reply: &HeartbeatReply, newest: &mut NewestVersion) {
    if !newest.accept(reply.version) {
        return;
    }
    relay.registry.set_closed(reply.draining);
    if let Some(assignments) = &reply.reservations {
        let to_pair =
            |reserved: &crate::service::api_types::Reservation| (reserved.edge.clone(), reserved.reservation);
        relay.registry.set_assigned(assignments.iter().map(to_pair).collect());
    }
}

/// The newest version received.
#[derive(Clone, Copy, Debug, Default)]
struct NewestVersion(StateVersion);

impl NewestVersion {
    /// Whether a version is no older than all versions before; it then becomes the newest.
    fn accept(&mut self, version: StateVersion) -> bool {
        let is_newest = version >= self.0;
        self.0 = self.0.max(version);
        is_newest
    }
}

/// The rate between two heartbeats, of the direction that carried more.
struct CarriedRate {
    since: Instant,
    totals: [u64; 2],
}

impl CarriedRate {
    fn new(relay: &Relay) -> Self {
        Self { since: Instant::now(), totals: relay.registry.total_bytes() }
    }

    fn take_rate(&mut self, relay: &Relay) -> Bitrate {
        let previous = std::mem::replace(self, Self::new(relay));
        let max_bytes = self.totals.iter().zip(previous.totals).map(|(now, was)| now.saturating_sub(was)).max();
        let time = self.since.saturating_duration_since(previous.since);
        if time < MIN_INTERVAL { Bitrate::ZERO } else { DataSize::from_bytes(max_bytes.unwrap_or_default()) / time }
    }
}

/// Fetches the newest list into the relay's file; tunnels do not wait for the disk. False: the service's list is that of another authority,
/// as while an authority is replaced. That list belongs into `ca.pem`.
async fn fetch_crl(client: &mut Client, relay: &Relay) -> Result<bool, CrlError> {
    let list = client.get_text("/v1/revoked").await?;
    let trusted = relay.trusted.borrow().clone();
    if trusted.other_authorities.has_issued(&list) {
        return Ok(false);
    }
    let revocations = trusted.revocations.clone();
    let update = tokio::task::spawn_blocking(move || revocations.update(&list)).await;
    update.map_err(|error| CaError::Library(error.to_string()))??;
    Ok(true)
}

#[derive(Debug, thiserror::Error)]
enum CrlError {
    #[error(transparent)]
    Service(#[from] ClientError),
    #[error(transparent)]
    List(#[from] CaError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_of_an_earlier_leader_are_ignored() {
        let mut newest = NewestVersion::default();
        let state_version = |epoch, version| StateVersion { epoch, version };
        for (version, expected) in [
            (state_version(1, 5), true),
            (state_version(1, 5), true),
            (state_version(2, 1), true),
            (state_version(1, 9), false),
            (state_version(2, 0), false),
            (state_version(2, 1), true),
        ] {
            assert_eq!(newest.accept(version), expected, "{version:?}");
        }
    }
}
