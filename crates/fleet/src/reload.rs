//! Reload requests: the daemon's SIGHUP handler passes them to the tasks that use files (certificates, keys, lists).
//!
//! A request carries no data and never ends a task. Each task reads its files again, and keeps its previous state if the
//! new files are invalid.

use tokio::sync::watch;

/// Sends reload requests. The number counts them; receivers only notice that it has changed.
#[derive(Debug)]
pub struct Reloader(watch::Sender<u64>);

/// Receives reload requests; several requests while a task is busy count as one.
#[derive(Clone, Debug)]
pub struct ReloadRequests(watch::Receiver<u64>);

impl Reloader {
    /// Creates a sender without a pending request.
    pub fn new() -> Self {
        Self(watch::Sender::new(0))
    }

    /// Requests all receivers to read their files again.
    pub fn request(&self) {
        self.0.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// A receiver of future requests.
    pub fn subscribe(&self) -> ReloadRequests {
        ReloadRequests(self.0.subscribe())
    }
}

impl Default for Reloader {
    fn default() -> Self {
        Self::new()
    }
}

impl ReloadRequests {
    /// A receiver that never gets a request, for tests.
    pub fn never() -> Self {
        Reloader::new().subscribe()
    }

    /// Waits for the next request. Never returns if the sender is gone.
    pub async fn requested(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
