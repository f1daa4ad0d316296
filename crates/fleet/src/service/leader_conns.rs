//! The pool of connections to the process that leads.
//!
//! At most [`MAX_REQUESTS`] requests are forwarded at once. With more connections than the leader accepts from one process
//! ([`MAX_FLEET_CONNECTIONS`]) it would appear to be down.

use std::sync::Mutex;
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};

use super::client::Client;
use super::leader_lease::boot_time;
use super::lock::lock;

/// Connections of another process of the service, which forwards for many members. Our choice: several times the edge requests that are
/// matched together, from four other processes.
pub(super) const MAX_FLEET_CONNECTIONS: usize = 1024;
/// How long a leader that could not be reached is not tried. Our choice: a tenth of a lease, within which another process takes over.
const DOWN_TIME: Duration = Duration::from_secs(1);
/// Connections kept open. Our choice: far fewer than the leader accepts ([`MAX_FLEET_CONNECTIONS`]); additional ones are closed after use.
const MAX_IDLE: usize = 64;

/// Requests that are forwarded at once (rule 3 of `leader_proxy`). Our choice: the leader has capacity for four processes that forward to
/// it.
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

impl LeaderConns {
    /// Waits until another request may be forwarded.
    pub(super) async fn permit(&self) -> Option<SemaphorePermit<'_>> {
        self.permits.acquire().await.ok()
    }

    /// `Some(Some(client))`: a pooled connection; `Some(None)`: open a new one; `None`: the leader is down, do not try.
    pub(super) fn take(&self, address: &str) -> Option<Option<Client>> {
        let mut idle = lock(&self.idle);
        if idle.address != address {
            *idle = IdleClients { address: address.to_owned(), ..IdleClients::default() };
        }
        (!address.is_empty() && boot_time() >= idle.down_until).then(|| idle.clients.pop())
    }

    /// Returns a connection to the pool.
    pub(super) fn put_back(&self, address: &str, client: Client) {
        let mut idle = lock(&self.idle);
        if idle.address == address && idle.clients.len() < MAX_IDLE {
            idle.clients.push(client);
        }
    }

    /// The leader could not be reached: it is not tried for a while.
    pub(super) fn mark_down(&self, address: &str) {
        let mut idle = lock(&self.idle);
        if idle.address == address {
            idle.clients.clear();
            idle.down_until = boot_time() + DOWN_TIME;
        }
    }
}
