//! What a relay tells the fleet's service, and what it is told.
//!
//! In: how the relay stands. Out: heartbeats; and, from their answers, what is reserved for whom, whether it is to take new
//! tunnels, and the newest revocation list in its file.
//!
//! 1. What is assigned counts if its epoch is no older than the newest one seen, and its version is newer in that epoch: after a
//!    fail-over two processes may speak, and the older one is not heard (`Heard`).
//! 2. A service that does not answer changes nothing: streams go on, and what was reserved stays reserved. It is said once.
//! 3. What is free is the capacity less what is reserved or was carried lately, whichever is more.
//! 4. A service that has just begun asks what is kept for whom, and is told at once ([`BeatAnswer::tell_held`]).
//! 5. A list that is newer than the one in force, and the authority's, goes to the relay's file, and is read from there as any
//!    other (`super::trust`).

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::{Duration, Instant};

use marline_core::units::{Bitrate, DataSize};

use super::Relay;
use crate::ca::{Address, CaError};
use crate::identity::Name;
use crate::service::api_types::{Endpoint, Heartbeat, HeartbeatReply, MAX_RESERVATIONS, StateVersion};
use crate::service::{Client, ClientError, Position};

/// Until the service says otherwise.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(5);
/// A service cannot ask to be called more often than this.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

/// What does not change while a relay runs.
#[derive(Clone, Debug)]
pub struct HeartbeatConfig {
    /// T(s), each way.
    pub capacity: Bitrate,
    /// Where edges reach it.
    pub addresses: Vec<Endpoint>,
    /// What they verify its certificate by.
    pub server_name: Address,
    /// Where it is.
    pub position: Option<Position>,
}

/// Announces the relay until dropped; `say` is told when the service answers, and when it does not any more.
pub async fn send_heartbeats(
    relay: &Relay,
    config: &HeartbeatConfig,
    mut client: Client,
    report: impl Fn(&str),
) -> Infallible {
    let (mut newest, mut rate, mut is_service_up, mut sends_reservations) =
        (NewestVersion::default(), CarriedRate::new(relay), None, false);
    let mut interval = DEFAULT_INTERVAL;
    // The number of a list that is not of this relay's authority, and that authority.
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
                // Who has just told has nothing new to tell.
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
                        Err(error) => tracing::warn!("the revocation list: {error}"),
                    }
                }
            }
            Err(error) => {
                if is_service_up.replace(false) != Some(false) {
                    report(&format!(
                        "the fleet's service does not answer: {error}; streams go on, and what is reserved stays reserved"
                    ));
                }
            }
        }
        tokio::time::sleep(pause).await;
    }
}

/// What is kept for whom, as far as a heartbeat can say it.
fn reservations(relay: &Relay) -> BTreeMap<Name, Bitrate> {
    relay.assigned().into_iter().take(MAX_RESERVATIONS).collect()
}

fn build_heartbeat(relay: &Relay, config: &HeartbeatConfig, carried: Bitrate, seen: StateVersion) -> Heartbeat {
    let (state, origins) = (relay.state(), relay.origins());
    let rates_of = |lower_bound: bool| -> BTreeMap<Endpoint, Bitrate> {
        let of = origins.iter().filter(|one| one.lower_bound == lower_bound);
        of.map(|one| (one.origin.clone(), one.rate)).collect()
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

/// Does what the service says, if it is news.
fn apply_reply(relay: &Relay, reply: &HeartbeatReply, newest: &mut NewestVersion) {
    if !newest.accept(reply.version) {
        return;
    }
    relay.registry.set_closed(reply.draining);
    if let Some(assignments) = &reply.reservations {
        let of = |reserved: &crate::service::api_types::Reservation| (reserved.edge.clone(), reserved.reservation);
        relay.registry.set_assigned(assignments.iter().map(of).collect());
    }
}

/// The newest state that was told.
#[derive(Clone, Copy, Debug, Default)]
struct NewestVersion(StateVersion);

impl NewestVersion {
    /// Whether a state is no older than what was told before; it is the newest then.
    fn accept(&mut self, version: StateVersion) -> bool {
        let is_newest = version >= self.0;
        self.0 = self.0.max(version);
        is_newest
    }
}

/// What was carried between two heartbeats, in the direction that had more.
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

/// The newest list, in the relay's file. Tunnels do not wait for its disk. False: while the authority is replaced, the service's list is
/// that of the other one, which belongs into `ca.pem`.
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
    fn who_led_before_is_not_heard() {
        let mut newest = NewestVersion::default();
        let state_version = |epoch, version| StateVersion { epoch, version };
        for (version, is) in [
            (state_version(1, 5), true),
            (state_version(1, 5), true),
            (state_version(2, 1), true),
            (state_version(1, 9), false),
            (state_version(2, 0), false),
            (state_version(2, 1), true),
        ] {
            assert_eq!(newest.accept(version), is, "{version:?}");
        }
    }
}
