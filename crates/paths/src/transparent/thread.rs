//! The forwarder on a thread of its own.
//!
//! In: its configuration. Out: a handle; connections are led here while it lives.
//!
//! A task beside the driver's was not used: the bytes of a gigabit a second take most of a processor in small steps, and
//! each event of the kernel would wait behind some of them.

use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::sync::oneshot;

use super::{Config, ForwardError, ForwarderCounters, run};

/// A forwarder that runs. Dropped, it has ended, and its rules and routes are gone.
#[derive(Debug)]
pub struct Forwarder {
    /// Dropped, it asks for the end.
    stop: Option<oneshot::Sender<std::convert::Infallible>>,
    error_rx: oneshot::Receiver<ForwardError>,
    thread: Option<JoinHandle<()>>,
}

impl Forwarder {
    /// Starts it, in the network namespace of the calling thread.
    ///
    /// # Errors
    /// No thread or event loop can be had. Whether connections can be led away is told by [`lost`](Self::lost).
    pub fn start(config: Config, counters: Arc<ForwarderCounters>) -> Result<Self, ForwardError> {
        let thread_error = |error| ForwardError::Socket { what: "a thread", error };
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
                // Whoever is not there any more does not want to know.
                let _ = error_tx.send(error);
            }
        };
        let thread =
            std::thread::Builder::new().name("forwarder".into()).spawn(run_thread).map_err(thread_error)?;
        Ok(Self { stop: Some(stop), error_rx, thread: Some(thread) })
    }

    /// Waits until it cannot go on, or could not begin.
    pub async fn wait_for_error(&mut self) -> ForwardError {
        let result = (&mut self.error_rx).await;
        result.unwrap_or_else(|_| ForwardError::Nft("the forwarder's thread is gone".to_owned()))
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of its own has been told already.
            let _ = thread.join();
        }
    }
}
