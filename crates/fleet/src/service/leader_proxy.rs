//! Forwards requests from a process that is not the leader to the leader.
//!
//! The leader's response is passed on unchanged; `None` means that the leader could not be reached.
//!
//! 1. A forwarded request occupies a connection until the response, because some requests wait for a window. Connections are pooled.
//! 2. The leader is the one that the store named last. After a failed attempt it is not tried again for a second; meanwhile
//!    heartbeats are answered locally.
//! 3. The number of requests that are forwarded at once is limited ([`leader_conns`](super::leader_conns)), the others wait.
//! 4. The leader identifies this process by its certificate, and trusts it to name the member that it acts for (`api`).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::{Method, Response, StatusCode};
use tokio::time::timeout;

use super::client::{CallerProcess, Client, ClientError};
use super::coordinator::Coordinator;
use super::leader_lease::boot_time;
use super::problem::{Problem, response_with_type};
use crate::tls::Peer;

/// Our choice: a request waits up to two seconds for its window.
const FORWARD_TIMEOUT: Duration = Duration::from_secs(3);
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
        let _permit = timeout(FORWARD_TIMEOUT, self.leader_conns.permit()).await.ok()??;
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
    (problem.title != "not_leading").then(|| problem.to_response())
}
