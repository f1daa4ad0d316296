//! Reload requests: passes SIGHUP on to the tasks of a daemon that use files.
//!
//! A request never ends a task. Each task reads its files again, and keeps its previous state if the new files are
//! invalid.

use tokio::sync::watch;

/// Sends reload requests.
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
    /// A receiver that never gets a request.
    pub fn never() -> Self {
        Reloader::new().subscribe()
    }

    /// Waits for the next request.
    pub async fn requested(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
