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

use super::api::response_with_type;
use super::client::{CallerProcess, Client, ClientError};
use super::coordinator::{Coordinator, lock};
use super::leader_election::boot_time;
use super::listener::MAX_FLEET_CONNECTIONS;
use super::problem::Problem;
use crate::tls::Peer;

/// chosen: a request waits two seconds for its window.
const FORWARD_TIMEOUT: Duration = Duration::from_secs(3);
/// chosen: a tenth of a lease, in which another one takes over.
const DOWN_TIME: Duration = Duration::from_secs(1);
/// chosen: less than a process gets (`serve::OF_COLLEAGUE`); more are opened and closed again.
const MAX_IDLE: usize = 64;

/// Rule 3. chosen: four processes that do not lead have room at the one that does.
const MAX_REQUESTS: usize = MAX_FLEET_CONNECTIONS / 4;

/// The connections to the one that leads.
#[derive(Debug)]
pub(super) struct LeaderConns {
    idle: Mutex<IdleClients>,
    permits: Semaphore,
}

impl Default for LeaderConns {
    fn default() -> Self {
        Self { idle: Mutex::default(), permits: Semaphore::new(MAX_REQUESTS) }
    }
}

#[derive(Debug, Default)]
struct IdleClients {
    address: String,
    clients: Vec<Client>,
    down_until: Duration,
}

impl Coordinator {
    /// What the process answers that leads; none: it is not reached, or leads no longer.
    pub(super) async fn forward_to_leader(
        self: &Arc<Self>,
        member: (&Peer, Option<CallerProcess>),
        method: &Method,
        path: &str,
        body: &Bytes,
    ) -> Option<Response<Full<Bytes>>> {
        let address = self.lease.leader()?.address;
        let started_at = boot_time();
        let _permit = timeout(FORWARD_TIMEOUT, self.leader_conns.permits.acquire()).await.ok()?.ok()?;
        let mut idle_client = self.leader_conns.take(&address)?;
        loop {
            // One that was kept may have been closed in the meantime: then it is asked on a new one. All calls may be repeated.
            let (mut client, was_reused) = match idle_client.take() {
                Some(client) => (client, true),
                None => (self.leader_client(&address)?, false),
            };
            let left = (started_at + FORWARD_TIMEOUT).saturating_sub(boot_time());
            let response = timeout(left, client.forward(member, method, path, body.clone())).await;
            match response.unwrap_or_else(|_| Err(client.timed_out())) {
                Ok((status, body)) => {
                    self.leader_conns.put_back(&address, client);
                    return to_response(status, body);
                }
                Err(_) if was_reused && boot_time() < started_at + FORWARD_TIMEOUT => {}
                Err(error) => {
                    tracing::debug!(%error, "the process that leads is not reached");
                    self.leader_conns.mark_down(&address);
                    return None;
                }
            }
        }
    }

    fn leader_client(&self, address: &str) -> Option<Client> {
        let client = Client::new(&format!("https://{address}"), (*self.trusted().client_tls).clone());
        client.inspect_err(|error: &ClientError| tracing::debug!(%error, "where the one is that leads")).ok()
    }
}

/// As the other one has said it.
fn to_response(status: u16, body: Bytes) -> Option<Response<Full<Bytes>>> {
    if (200..300).contains(&status) {
        return Some(response_with_type(body, "application/json"));
    }
    let problem = serde_json::from_slice::<Problem>(&body).ok();
    let problem = problem.unwrap_or_else(|| {
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY);
        Problem::new(status, "answer", "the process that leads refuses")
    });
    (problem.title != "not-leading").then(|| problem.to_response())
}

impl LeaderConns {
    /// A connection that is kept, if there is one; none at all, if it is not to be tried.
    fn take(&self, address: &str) -> Option<Option<Client>> {
        let mut idle = lock(&self.idle);
        if idle.address != address {
            *idle = IdleClients { address: address.to_owned(), ..IdleClients::default() };
        }
        (!address.is_empty() && boot_time() >= idle.down_until).then(|| idle.clients.pop())
    }

    fn put_back(&self, address: &str, client: Client) {
        let mut idle = lock(&self.idle);
        if idle.address == address && idle.clients.len() < MAX_IDLE {
            idle.clients.push(client);
        }
    }

    fn mark_down(&self, address: &str) {
        let mut idle = lock(&self.idle);
        if idle.address == address {
            idle.clients.clear();
            idle.down_until = boot_time() + DOWN_TIME;
        }
    }
}
