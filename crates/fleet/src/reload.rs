//! Requests to read files again: SIGHUP, passed on to the tasks of a daemon that hold something from files.
//!
//! A request never ends anything. Each task reads its files, and keeps what it had where the new files are no good.

use tokio::sync::watch;

/// Makes requests.
#[derive(Debug)]
pub struct Reloader(watch::Sender<u64>);

/// Receives requests; several that come while a task is busy count as one.
#[derive(Clone, Debug)]
pub struct ReloadRequests(watch::Receiver<u64>);

impl Reloader {
    /// Without a request yet.
    pub fn new() -> Self {
        Self(watch::Sender::new(0))
    }

    /// All receivers are to read their files again.
    pub fn request(&self) {
        self.0.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// A receiver of the requests from now on.
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
    /// Nobody makes requests.
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
