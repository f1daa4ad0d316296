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
use crate::service::words::{Beat, BeatAnswer, Endpoint, MOST_HELD, Mark};
use crate::service::{Client, ClientError, Position};

/// Until the service says otherwise.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// A service cannot ask to be called more often than this.
const SHORTEST: Duration = Duration::from_millis(100);

/// What does not change while a relay runs.
#[derive(Clone, Debug)]
pub struct Terms {
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
pub async fn announce(relay: &Relay, terms: &Terms, mut client: Client, say: impl Fn(&str)) -> Infallible {
    let (mut heard, mut rate, mut answers, mut tells) = (Heard::default(), Rate::new(relay), None, false);
    let mut every = HEARTBEAT;
    // The number of a list that is not of this relay's authority, and that authority.
    let mut foreign = None;
    loop {
        let beat = Beat { held: tells.then(|| held(relay)), ..beat(relay, terms, rate.since(relay), heard.0) };
        let mut pause = every;
        match client.send::<BeatAnswer>("/v1/relays/heartbeat", &beat).await {
            Ok(answer) => {
                every = Duration::from_millis(answer.heartbeat_ms).clamp(SHORTEST, HEARTBEAT * 12);
                // Who has just told has nothing new to tell.
                pause = if answer.tell_held && !tells { SHORTEST } else { every };
                tells = answer.tell_held;
                match answers.replace(true) {
                    None => say("the fleet's service knows this relay"),
                    Some(false) => say("the fleet's service answers again"),
                    Some(true) => {}
                }
                take(relay, &answer, &mut heard);
                let (known, authority) = {
                    let trusted = relay.trusted.borrow();
                    (trusted.revocations.number(), trusted.revocations.authority().clone())
                };
                let asked = Some((answer.revocations, authority));
                if answer.revocations > known && foreign != asked {
                    match fetch(&mut client, relay).await {
                        Ok(true) => foreign = None,
                        Ok(false) => foreign = asked,
                        Err(error) => tracing::warn!("the revocation list: {error}"),
                    }
                }
            }
            Err(error) => {
                if answers.replace(false) != Some(false) {
                    say(&format!(
                        "the fleet's service does not answer: {error}; streams go on, and what is reserved stays reserved"
                    ));
                }
            }
        }
        tokio::time::sleep(pause).await;
    }
}

/// What is kept for whom, as far as a heartbeat can say it.
fn held(relay: &Relay) -> BTreeMap<Name, Bitrate> {
    relay.assigned().into_iter().take(MOST_HELD).collect()
}

fn beat(relay: &Relay, terms: &Terms, carried: Bitrate, seen: Mark) -> Beat {
    let (state, origins) = (relay.state(), relay.origins());
    let reached = |lower_bound: bool| -> BTreeMap<Endpoint, Bitrate> {
        let of = origins.iter().filter(|one| one.lower_bound == lower_bound);
        of.map(|one| (one.origin.clone(), one.rate)).collect()
    };
    Beat {
        capacity: terms.capacity,
        free: terms.capacity - state.reserved.max(carried),
        addresses: terms.addresses.clone(),
        server_name: terms.server_name.clone(),
        position: terms.position,
        origins: reached(false),
        origins_least: reached(true),
        draining: state.draining,
        seen,
        held: None,
    }
}

/// Does what the service says, if it is news.
fn take(relay: &Relay, answer: &BeatAnswer, heard: &mut Heard) {
    if !heard.is_news(answer.mark) {
        return;
    }
    relay.registry.close(answer.draining);
    if let Some(assignments) = &answer.assignments {
        let of = |reserved: &crate::service::words::Reserved| (reserved.edge.clone(), reserved.reservation);
        relay.registry.assign(assignments.iter().map(of).collect());
    }
}

/// The newest state that was told.
#[derive(Clone, Copy, Debug, Default)]
struct Heard(Mark);

impl Heard {
    /// Whether a state is no older than what was told before; it is the newest then.
    fn is_news(&mut self, mark: Mark) -> bool {
        let is = mark >= self.0;
        self.0 = self.0.max(mark);
        is
    }
}

/// What was carried between two heartbeats, in the direction that had more.
struct Rate {
    at: Instant,
    passed: [u64; 2],
}

impl Rate {
    fn new(relay: &Relay) -> Self {
        Self { at: Instant::now(), passed: relay.registry.passed() }
    }

    fn since(&mut self, relay: &Relay) -> Bitrate {
        let before = std::mem::replace(self, Self::new(relay));
        let most = self.passed.iter().zip(before.passed).map(|(now, was)| now.saturating_sub(was)).max();
        let time = self.at.saturating_duration_since(before.at);
        if time < SHORTEST { Bitrate::ZERO } else { DataSize::from_bytes(most.unwrap_or_default()) / time }
    }
}

/// The newest list, in the relay's file. Tunnels do not wait for its disk. False: while the authority is replaced, the service's list is
/// that of the other one, which belongs into `ca.pem`.
async fn fetch(client: &mut Client, relay: &Relay) -> Result<bool, FetchError> {
    let list = client.text("/v1/revoked").await?;
    let trusted = relay.trusted.borrow().clone();
    if trusted.others.have_issued(&list) {
        return Ok(false);
    }
    let held = trusted.revocations.clone();
    let taking = tokio::task::spawn_blocking(move || held.take(&list)).await;
    taking.map_err(|error| CaError::Library(error.to_string()))??;
    Ok(true)
}

#[derive(Debug, thiserror::Error)]
enum FetchError {
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
        let mut heard = Heard::default();
        let mark = |epoch, version| Mark { epoch, version };
        for (told, is) in [
            (mark(1, 5), true),
            (mark(1, 5), true),
            (mark(2, 1), true),
            (mark(1, 9), false),
            (mark(2, 0), false),
            (mark(2, 1), true),
        ] {
            assert_eq!(heard.is_news(told), is, "{told:?}");
        }
    }
}
