//! Runs the forwarder on its own thread; connections are redirected while the handle lives.
//!
//! A task beside the driver's would not do: forwarding 1 Gbit/s takes most of a CPU core in small steps, and each
//! kernel event would wait behind some of them.

use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::sync::oneshot;

use super::{Config, ForwardError, ForwarderCounters, run};

/// A running forwarder. After it was dropped, the thread has ended and rules and routes are removed.
#[derive(Debug)]
pub struct Forwarder {
    /// Dropping the sender stops the thread.
    stop: Option<oneshot::Sender<std::convert::Infallible>>,
    error_rx: oneshot::Receiver<ForwardError>,
    thread: Option<JoinHandle<()>>,
}

impl Forwarder {
    /// Starts the thread in the network namespace of the calling thread.
    ///
    /// # Errors
    /// The thread or event loop cannot be created. Errors of the redirection are reported by
    /// [`wait_for_error`](Self::wait_for_error).
    pub fn start(config: Config, counters: Arc<ForwarderCounters>) -> Result<Self, ForwardError> {
        let thread_error = |error| ForwardError::Socket { object: "a thread", error };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(thread_error)?;
        let (stop, stop_rx) = oneshot::channel();
        let (error_tx, error_rx) = oneshot::channel();
        let run_thread = move || {
            let forwarding = async {
                tokio::select! {
                    Err(error) = run(config, counters) => Some(error),
                    _ = stop_rx => None,
                }
            };
            if let Some(error) = runtime.block_on(forwarding) {
                // The receiver may have been dropped already.
                let _ = error_tx.send(error);
            }
        };
        let thread =
            std::thread::Builder::new().name("forwarder".into()).spawn(run_thread).map_err(thread_error)?;
        Ok(Self { stop: Some(stop), error_rx, thread: Some(thread) })
    }

    /// Waits until the forwarder fails, or has failed to start.
    pub async fn wait_for_error(&mut self) -> ForwardError {
        let result = (&mut self.error_rx).await;
        result.unwrap_or_else(|_| ForwardError::Nft("the forwarder's thread ended unexpectedly".to_owned()))
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was already reported.
            let _ = thread.join();
        }
    }
}
