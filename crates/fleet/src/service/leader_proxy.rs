//! Forwards requests from a process that is not the leader to the leader.
//!
//! The leader's response is passed on with its status and body. `None` means that there is no response of the leader: none is known, it
//! has failed within the last second, it did not respond in time, or it does not lead any more.
//!
//! 1. A forwarded request occupies a connection until the response. An edge's request for a relay may take two seconds: the scheduler
//!    collects requests for a short time and matches them together. Connections are pooled.
//! 2. The leader is the process that held the lease when the shared store was last read. After a failed attempt it is not tried again for
//!    a second. Without a response of the leader the caller (`api`) answers heartbeats itself, and all other requests with 503.
//! 3. The number of requests that are forwarded at once is limited ([`leader_conns`](super::leader_conns)), the others wait.
//! 4. The leader identifies this process by its certificate, and trusts it to name the member (edge, relay or operator) that sent the
//!    request (`api`).

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

/// For one request in total: waiting for a permit, the attempt and a retry. Our choice: a second more than the scheduler may take to
/// decide an edge's request (`DECISION_WAIT` in `api`).
const FORWARD_TIMEOUT: Duration = Duration::from_secs(3);
impl Coordinator {
    /// Forwards a request on behalf of a member, and of the process that sent it if that is known. Returns the leader's response; for
    /// none see the module.
    pub(super) async fn forward_to_leader(
        self: &Arc<Self>,
        member: (&Peer, Option<CallerProcess>),
        method: &Method,
        path: &str,
        body: &Bytes,
    ) -> Option<Response<Full<Bytes>>> {
        let address = self.lease.leader()?.address;
        let started_at = boot_time();
        // Too many requests are being forwarded: no permit in time.
        let _permit = timeout(FORWARD_TIMEOUT, self.leader_conns.permit()).await.ok()??;
        // None if the leader has just failed.
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

/// The leader's response with its status and body; an error whose body is no problem becomes one. None: the leader does not lead any more.
fn to_response(status: u16, body: Bytes) -> Option<Response<Full<Bytes>>> {
    let code = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY);
    if code.is_success() {
        let mut response = response_with_type(body, "application/json");
        *response.status_mut() = code;
        return Some(response);
    }
    let problem = serde_json::from_slice::<Problem>(&body).ok();
    let problem = problem.unwrap_or_else(|| Problem::new(code, "answer", "the leader refused the request"));
    (problem.title != "not_leading").then(|| problem.to_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_of_the_leader_is_passed_on_unless_it_does_not_lead_any_more() {
        let status =
            |status, body| to_response(status, Bytes::from_static(body)).map(|response| response.status().as_u16());
        assert_eq!(status(200, b"{}"), Some(200));
        assert_eq!(status(201, b"{}"), Some(201));
        assert_eq!(status(403, br#"{"status":403,"title":"not_allowed","detail":"d"}"#), Some(403));
        assert_eq!(status(502, b"not a problem"), Some(502));
        assert_eq!(status(503, br#"{"status":503,"title":"not_leading","detail":"d"}"#), None);
    }
}
