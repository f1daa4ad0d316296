//! What is asked of a process that does not lead: it asks the one that does.
//!
//! In: a request, and who has sent it. Out: the answer of the process that leads, as it is; or none, if that one is not reached.
//!
//! 1. Each request has a connection to itself while it waits, because some wait for a window; connections are kept for the next ones.
//! 2. Who leads is what the store has said last. One that was not reached is not tried again for [`AWAY`]: heartbeats are answered
//!    meanwhile without it.
//! 3. So many ask at once, and the others wait: more than a process gets (`serve::OF_COLLEAGUE`) would look as if the other one
//!    were gone.
//! 4. The other process knows this one by its certificate, and believes it whom it has let in (`api`).

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::{Method, Response, StatusCode};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::api::with_type;
use super::client::{Client, ClientError, Origin};
use super::desk::{Desk, lock};
use super::lead::boot;
use super::problem::Problem;
use super::serve::OF_COLLEAGUE;
use crate::tls::Peer;

/// chosen: a request waits two seconds for its window.
const PATIENCE: Duration = Duration::from_secs(3);
/// chosen: a tenth of a lease, in which another one takes over.
const AWAY: Duration = Duration::from_secs(1);
/// chosen: less than a process gets (`serve::OF_COLLEAGUE`); more are opened and closed again.
const KEPT: usize = 64;

/// Rule 3. chosen: four processes that do not lead have room at the one that does.
const AT_ONCE: usize = OF_COLLEAGUE / 4;

/// The connections to the one that leads.
#[derive(Debug)]
pub(super) struct Colleague {
    kept: Mutex<Kept>,
    room: Semaphore,
}

impl Default for Colleague {
    fn default() -> Self {
        Self { kept: Mutex::default(), room: Semaphore::new(AT_ONCE) }
    }
}

#[derive(Debug, Default)]
struct Kept {
    place: String,
    idle: Vec<Client>,
    away: Duration,
}

impl Desk {
    /// What the process answers that leads; none: it is not reached, or leads no longer.
    pub(super) async fn pass(
        self: &Arc<Self>,
        member: (&Peer, Option<Origin>),
        method: &Method,
        path: &str,
        body: &Bytes,
    ) -> Option<Response<Full<Bytes>>> {
        let place = self.post.leader()?.place;
        let begun = boot();
        let _room = timeout(PATIENCE, self.colleague.room.acquire()).await.ok()?.ok()?;
        let mut kept = self.colleague.take(&place)?;
        loop {
            // One that was kept may have been closed in the meantime: then it is asked on a new one. All calls may be repeated.
            let (mut client, was_kept) = match kept.take() {
                Some(client) => (client, true),
                None => (self.colleague_at(&place)?, false),
            };
            let left = (begun + PATIENCE).saturating_sub(boot());
            let passed = timeout(left, client.pass(member, method, path, body.clone())).await;
            match passed.unwrap_or_else(|_| Err(client.late())) {
                Ok((status, body)) => {
                    self.colleague.keep(&place, client);
                    return answer(status, body);
                }
                Err(_) if was_kept && boot() < begun + PATIENCE => {}
                Err(error) => {
                    tracing::debug!(%error, "the process that leads is not reached");
                    self.colleague.lost(&place);
                    return None;
                }
            }
        }
    }

    fn colleague_at(&self, place: &str) -> Option<Client> {
        let made = Client::new(&format!("https://{place}"), (*self.trusted().peers).clone());
        made.inspect_err(|error: &ClientError| tracing::debug!(%error, "where the one is that leads")).ok()
    }
}

/// As the other one has said it.
fn answer(status: u16, body: Bytes) -> Option<Response<Full<Bytes>>> {
    if (200..300).contains(&status) {
        return Some(with_type(body, "application/json"));
    }
    let problem = serde_json::from_slice::<Problem>(&body).ok();
    let problem = problem.unwrap_or_else(|| {
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY);
        Problem::new(status, "answer", "the process that leads refuses")
    });
    (problem.title != "not-leading").then(|| problem.answer())
}

impl Colleague {
    /// A connection that is kept, if there is one; none at all, if it is not to be tried.
    fn take(&self, place: &str) -> Option<Option<Client>> {
        let mut kept = lock(&self.kept);
        if kept.place != place {
            *kept = Kept { place: place.to_owned(), ..Kept::default() };
        }
        (!place.is_empty() && boot() >= kept.away).then(|| kept.idle.pop())
    }

    fn keep(&self, place: &str, client: Client) {
        let mut kept = lock(&self.kept);
        if kept.place == place && kept.idle.len() < KEPT {
            kept.idle.push(client);
        }
    }

    fn lost(&self, place: &str) {
        let mut kept = lock(&self.kept);
        if kept.place == place {
            kept.idle.clear();
            kept.away = boot() + AWAY;
        }
    }
}
