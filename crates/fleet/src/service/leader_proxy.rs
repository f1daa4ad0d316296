//! Forwards requests from a process that is not the leader to the leader.
//!
//! The leader's response is passed on unchanged; `None` means that the leader could not be reached.
//!
//! 1. A forwarded request occupies a connection until the response, because some requests wait for a window. Connections are pooled.
//! 2. The leader is the one that the store named last. After a failed attempt it is not tried again for [`DOWN_TIME`]; meanwhile
//!    heartbeats are answered locally.
//! 3. At most [`MAX_REQUESTS`] requests are forwarded at once, the others wait. With more connections than the leader accepts from one
//!    process ([`MAX_FLEET_CONNECTIONS`]) it would appear to be down.
//! 4. The leader identifies this process by its certificate, and trusts it to name the member that it acts for (`api`).

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

/// chosen: a request waits up to two seconds for its window.
const FORWARD_TIMEOUT: Duration = Duration::from_secs(3);
/// chosen: a tenth of a lease, within which another process takes over.
const DOWN_TIME: Duration = Duration::from_secs(1);
/// Connections kept open. chosen: far fewer than the leader accepts ([`MAX_FLEET_CONNECTIONS`]); additional ones are closed after use.
const MAX_IDLE: usize = 64;

/// Rule 3. chosen: the leader has capacity for four processes that forward to it.
const MAX_REQUESTS: usize = MAX_FLEET_CONNECTIONS / 4;

/// The pool of connections to the leader.
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
    /// The leader's response; none: the leader is unreachable, or does not lead any more.
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
            // The server may have closed a pooled connection meanwhile: retry on a new one. All calls are idempotent.
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
                    tracing::debug!(%error, "cannot reach the leader");
                    self.leader_conns.mark_down(&address);
                    return None;
                }
            }
        }
    }

    fn leader_client(&self, address: &str) -> Option<Client> {
        let client = Client::new(&format!("https://{address}"), (*self.trusted().client_tls).clone());
        client.inspect_err(|error: &ClientError| tracing::debug!(%error, "invalid address of the leader")).ok()
    }
}

/// The leader's response, unchanged; none: it does not lead any more.
fn to_response(status: u16, body: Bytes) -> Option<Response<Full<Bytes>>> {
    if (200..300).contains(&status) {
        return Some(response_with_type(body, "application/json"));
    }
    let problem = serde_json::from_slice::<Problem>(&body).ok();
    let problem = problem.unwrap_or_else(|| {
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY);
        Problem::new(status, "answer", "the leader refused the request")
    });
    (problem.title != "not-leading").then(|| problem.to_response())
}

impl LeaderConns {
    /// `Some(Some(client))`: a pooled connection; `Some(None)`: open a new one; `None`: the leader is down, do not try.
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
